#include "base/dmath.h"

static double dmath_bits_f64(uint64_t u)
{
    double f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static uint64_t dmath_f64_bits(double f)
{
    uint64_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

#define DMATH_INF dmath_bits_f64(0x7ff0000000000000u)
#define DMATH_NAN dmath_bits_f64(0x7ff8000000000000u)

/* ln 2 in two pieces; the first has 32 trailing zero bits, so its product with an exponent is exact. */
#define DMATH_LN2_HI 0x1.62e42feep-1
#define DMATH_LN2_LO 0x1.a39ef35793c76p-33

double dmath_exp(double x)
{
    if (x != x)
        return x;
    if (x > 709.78)
        return DMATH_INF;
    if (x < -745.2)
        return 0;
    double t = x * 0x1.71547652b82fep+0 + 0x1.8p+52;
    double kf = t - 0x1.8p+52;
    int64_t k = (int64_t)kf;
    double r = (x - kf * DMATH_LN2_HI) - kf * DMATH_LN2_LO;
    double p = 1;
    for (int i = 14; i >= 1;
         i--) /* Horner form of the Taylor series: |r| < 0.347, the next term is under 2^-62 */
        p = 1 + p * r / i;
    int64_t k0 = k / 2, k1 = k - k0;
    return p * dmath_bits_f64((uint64_t)(k0 + 1023) << 52) *
           dmath_bits_f64((uint64_t)(k1 + 1023) << 52);
}

double dmath_log(double x)
{
    if (x != x || x == DMATH_INF)
        return x;
    if (x == 0)
        return -DMATH_INF;
    if (x < 0)
        return DMATH_NAN;
    int64_t k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t u = dmath_f64_bits(x);
    k += (int64_t)(u >> 52) - 1023;
    double m = dmath_bits_f64((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) { /* sqrt 2 */
        m *= 0.5;
        k++;
    }
    /* log m = 2 artanh s with s = (m - 1) / (m + 1), |s| < 0.172; the first term is taken as (m-1) - s(m-1)/1 ... so that the
     * leading digits are exact: 2s = f - s f with f = m - 1. */
    double f = m - 1;
    double s = f / (m + 1);
    double z = s * s;
    double p = 0;
    for (int i = 23; i >= 3; i -= 2)
        p = p * z + 2.0 / i;
    double tail = s * z * p - s * f;
    double kf = (double)k;
    return kf * DMATH_LN2_HI + (f + (tail + kf * DMATH_LN2_LO));
}

double dmath_pow(double x, double y)
{
    return dmath_exp(y * dmath_log(x));
}
