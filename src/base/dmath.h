/* dmath.h - exp, log and power whose bits do not depend on the C library.
 *
 * Only IEEE +, -, *, / and bit moves in a fixed order, so every machine and compiler gives the same result. Errors against the
 * exact value: dmath_exp and dmath_log below 2 units in the last place, dmath_pow below 1e-14 relative for results that tables
 * of rotary frequencies need, dmath_expf below 2 units in the last place of f32. */
#ifndef PLUMB_BASE_DMATH_H
#define PLUMB_BASE_DMATH_H

#include <stdint.h>
#include <string.h>

#ifndef DMATH_FN /* a compiler for devices defines its own */
#define DMATH_FN static inline
#endif

double dmath_exp(double x); /* overflow: inf; underflow: 0; NaN: NaN */
double dmath_log(double x); /* x > 0 and finite, else -inf (0), NaN (below 0), x (inf, NaN) */
double dmath_pow(double x, double y); /* exp(y * log(x)); x > 0 */

DMATH_FN float dmath_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

DMATH_FN uint32_t dmath_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

/* e^x for x <= 88.7 (larger x gives some large value). 0 below -104, so -inf gives 0. Inline and free of branches: a loop over it
 * becomes vector code with the same bits. Not for NaN.
 * k = round(x / ln 2), r = x - k ln 2 in two pieces, then the Taylor polynomial (|r| < 0.347: the eighth term is under 2^-27). */
DMATH_FN float dmath_expf(float x)
{
    x = x > -104.0f ? x : -104.0f;
    x = x < 88.7f ? x : 88.7f;
    float t =
        x * 0x1.715476p+0f + 0x1.8p+23f; /* the sum rounds to an integer: low bits of t hold it */
    int32_t k = (int32_t)(dmath_f32_bits(t) - dmath_f32_bits(0x1.8p+23f));
    float kf = t - 0x1.8p+23f;
    float r = (x - kf * 0x1.62e4p-1f) - kf * 0x1.7f7d1cp-20f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t k0 = k >> 1, k1 = k - k0; /* two factors: results may be denormal */
    return p * dmath_bits_f32((uint32_t)(k0 + 127) << 23) *
           dmath_bits_f32((uint32_t)(k1 + 127) << 23);
}

#endif
