/* fmath.h - the project's own exp, tanh, log, sin and cos: the same bits on every machine and in every instruction set.
 *
 * Each function is a fixed sequence of IEEE additions, multiplications and fused multiply-adds in round-to-nearest; the vector
 * kernels run the same sequence per lane. Polynomials: Chebyshev fits over the reduced range, coefficients rounded to f32 (to
 * double for sin and cos). Errors against the exact value, measured over the whole range by tests/unit/t_fmath.c: at most
 * 2 ulp for exp, tanh and log; sin and cos of the reduced angle are correctly rounded but for rare near-ties (0.51 ulp). */
#ifndef PLUMB_TENSOR_FMATH_H
#define PLUMB_TENSOR_FMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef FMATH_FN /* a compiler for devices defines its own */
#define FMATH_FN static inline
#endif

/* exp(x): n = rint(x / ln 2); r = x - n ln 2 in two parts; e^r = 1 + (r + r^2 P(r)); times 2^n, rounded once.
 * Inputs are clamped to [FMATH_EXP_MIN, FMATH_EXP_MAX], beyond which the result is 0 or infinity anyway. */
#define FMATH_LOG2E   0x1.715476p+0f
#define FMATH_LN2_HI  0x1.62e4p-1f /* 16 bits: n * hi is exact */
#define FMATH_LN2_LO  0x1.7f7d1cp-20f
#define FMATH_RINT    12582912.0f /* 1.5 * 2^23: adding and subtracting it rounds to an integer */
#define FMATH_EXP_MIN (-110.0f)
#define FMATH_EXP_MAX 90.0f
#define FMATH_EXP_P4  0x1.6d117cp-10f
#define FMATH_EXP_P3  0x1.120be2p-7f
#define FMATH_EXP_P2  0x1.555518p-5f
#define FMATH_EXP_P1  0x1.5554dcp-3f
#define FMATH_EXP_P0  0x1p-1f

/* tanh of a = |x|, with the sign of x: a < 0.625: a + a z P(z), z = a^2; above: 1 - 2 / (exp(2a) + 1). */
#define FMATH_TANH_SPLIT 0.625f
#define FMATH_TANH_P4    -0x1.8f8de4p-8f
#define FMATH_TANH_P3    0x1.58048ep-6f
#define FMATH_TANH_P2    -0x1.b9258ap-5f
#define FMATH_TANH_P1    0x1.110e1cp-3f
#define FMATH_TANH_P0    -0x1.555552p-2f

/* gelu in its tanh form: 0.5 g (1 + tanh(c (g + k g^3))). */
#define FMATH_GELU_C 0x1.988454p-1f /* sqrt(2 / pi) */
#define FMATH_GELU_K 0x1.6e4e26p-5f /* 0.044715 */

/* erf of a = |x|, with the sign of x: a < 0.9375: a + a P(z), z = a^2; above: 1 - exp(-Q(a)), a at most 4, where it is 1. Both sides
 * are within 1e-7 of it (t_fmath.c). */
#define FMATH_ERF_SPLIT 0.9375f
#define FMATH_ERF_MAX   4.0f
#define FMATH_ERF_P6    0x1.5bc248p-14f
#define FMATH_ERF_P5    -0x1.a9f3a6p-11f
#define FMATH_ERF_P4    0x1.54c074p-8f
#define FMATH_ERF_P3    -0x1.b80decp-6f
#define FMATH_ERF_P2    0x1.ce2e04p-4f
#define FMATH_ERF_P1    -0x1.812742p-2f
#define FMATH_ERF_P0    0x1.06eba8p-3f
#define FMATH_ERF_Q8    -0x1.b15dc2p-20f
#define FMATH_ERF_Q7    0x1.7e8124p-15f
#define FMATH_ERF_Q6    -0x1.36d13ep-11f
#define FMATH_ERF_Q5    0x1.36ad76p-8f
#define FMATH_ERF_Q4    -0x1.affa0ep-6f
#define FMATH_ERF_Q3    0x1.c27aacp-4f
#define FMATH_ERF_Q2    0x1.438cf2p-1f
#define FMATH_ERF_Q1    0x1.2152b4p+0f
#define FMATH_ERF_Q0    -0x1.3e6242p-12f
#define FMATH_SQRT_HALF 0x1.6a09e6p-1f

FMATH_FN float fmath_pow2i(int32_t n) /* 2^n, -126 <= n <= 127 */
{
    uint32_t u = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* x * 2^n with one rounding, |x| in [0.5, 2], -160 <= n <= 130. */
FMATH_FN float fmath_scale2(float x, int32_t n)
{
    int32_t a = n >> 1; /* x * 2^a is exact, so only the second product rounds */
    return x * fmath_pow2i(a) * fmath_pow2i(n - a);
}

FMATH_FN float fmath_exp(float x)
{
    if (x != x)
        return x;
    x = x < FMATH_EXP_MIN ? FMATH_EXP_MIN : x;
    x = x > FMATH_EXP_MAX ? FMATH_EXP_MAX : x;
    float n = fmaf(x, FMATH_LOG2E, FMATH_RINT) - FMATH_RINT;
    float r = fmaf(n, -FMATH_LN2_HI, x);
    r = fmaf(n, -FMATH_LN2_LO, r);
    float p = fmaf(FMATH_EXP_P4, r, FMATH_EXP_P3);
    p = fmaf(p, r, FMATH_EXP_P2);
    p = fmaf(p, r, FMATH_EXP_P1);
    p = fmaf(p, r, FMATH_EXP_P0);
    p = fmaf(p, r * r, r);
    return fmath_scale2(1.0f + p, (int32_t)n);
}

FMATH_FN float fmath_tanh(float x)
{
    float a = fabsf(x), y;
    if (a < FMATH_TANH_SPLIT) {
        float z = a * a;
        float p = fmaf(FMATH_TANH_P4, z, FMATH_TANH_P3);
        p = fmaf(p, z, FMATH_TANH_P2);
        p = fmaf(p, z, FMATH_TANH_P1);
        p = fmaf(p, z, FMATH_TANH_P0);
        y = fmaf(a * z, p, a);
    } else {
        y = 1.0f - 2.0f / (fmath_exp(a + a) + 1.0f);
    }
    return copysignf(y, x);
}

FMATH_FN float fmath_erf(float x)
{
    float a = fabsf(x), y;
    if (a < FMATH_ERF_SPLIT) {
        float z = a * a;
        float p = fmaf(FMATH_ERF_P6, z, FMATH_ERF_P5);
        p = fmaf(p, z, FMATH_ERF_P4);
        p = fmaf(p, z, FMATH_ERF_P3);
        p = fmaf(p, z, FMATH_ERF_P2);
        p = fmaf(p, z, FMATH_ERF_P1);
        p = fmaf(p, z, FMATH_ERF_P0);
        y = fmaf(a, p, a);
    } else {
        a = FMATH_ERF_MAX < a ? FMATH_ERF_MAX : a;
        float q = fmaf(FMATH_ERF_Q8, a, FMATH_ERF_Q7);
        q = fmaf(q, a, FMATH_ERF_Q6);
        q = fmaf(q, a, FMATH_ERF_Q5);
        q = fmaf(q, a, FMATH_ERF_Q4);
        q = fmaf(q, a, FMATH_ERF_Q3);
        q = fmaf(q, a, FMATH_ERF_Q2);
        q = fmaf(q, a, FMATH_ERF_Q1);
        q = fmaf(q, a, FMATH_ERF_Q0);
        y = 1.0f - fmath_exp(-q);
    }
    return copysignf(y, x);
}

/* g * sigmoid(g) */
FMATH_FN float fmath_silu(float g)
{
    return g / (1.0f + fmath_exp(-g));
}

FMATH_FN float fmath_sigmoid(float g)
{
    return 1.0f / (1.0f + fmath_exp(-g));
}

FMATH_FN float fmath_gelu_tanh(float g)
{
    float g3 = g * g * g;
    float t = fmath_tanh(FMATH_GELU_C * fmaf(FMATH_GELU_K, g3, g));
    return 0.5f * g * (1.0f + t);
}

/* gelu as it is defined: 0.5 g (1 + erf(g / sqrt(2))) */
FMATH_FN float fmath_gelu_erf(float g)
{
    return 0.5f * g * (1.0f + fmath_erf(FMATH_SQRT_HALF * g));
}

/* Agarwal et al. 2025 (gpt-oss): a silu with a steeper slope, both sides cut off. A NaN passes. */
#define FMATH_SWIGLU_LIMIT 7.0f
#define FMATH_SWIGLU_SLOPE 0x1.b3b646p+0f /* 1.702 */

FMATH_FN float fmath_swiglu_clamped(float g, float u)
{
    g = FMATH_SWIGLU_LIMIT < g ? FMATH_SWIGLU_LIMIT : g;
    u = FMATH_SWIGLU_LIMIT < u ? FMATH_SWIGLU_LIMIT : u;
    u = -FMATH_SWIGLU_LIMIT > u ? -FMATH_SWIGLU_LIMIT : u;
    return g * fmath_sigmoid(FMATH_SWIGLU_SLOPE * g) * (u + 1.0f);
}

/* Natural logarithm of x > 0, normal; 0 gives -infinity, a negative number NaN. */
float fmath_log(float x);

/* log(1 + e^x) with the relative precision of log where e^x is small (Kahan 1979); x itself over 20. */
float fmath_softplus(float x);

/* sin and cos of a, |a| <= 2^40: reduced in double by multiples of pi / 2, evaluated in double, rounded once to f32. */
void fmath_sincos(double a, float *s, float *c);

#endif
