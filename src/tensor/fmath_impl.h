/* fmath_impl.h - the bodies of log, softplus, sin and cos: fmath.c compiles them for the host, kernels/cuda for the device. */
#ifndef PLUMB_TENSOR_FMATH_IMPL_H
#define PLUMB_TENSOR_FMATH_IMPL_H

#include "tensor/fmath.h"

FMATH_FN float fmath_log_of(float x)
{
    if (!(x > 0))
        return x == 0 ? -INFINITY : NAN;
    if (x == INFINITY)
        return x;
    int32_t e = 0;
    if (x < 0x1p-126f) { /* denormal */
        x *= 0x1p24f;
        e = -24;
    }
    uint32_t u;
    memcpy(&u, &x, 4);
    e += (int32_t)(u >> 23) - 127;
    u = (u & 0x7FFFFFu) | 0x3F800000u;
    float m;
    memcpy(&m, &u, 4);
    if (m > 0x1.6a09e6p+0f) { /* sqrt(2) */
        m *= 0.5f;
        e++;
    }
    float f = m - 1.0f, z = f * f, n = (float)e;
    /* log(m) on m - 1 in [sqrt(1/2) - 1, sqrt(2) - 1]: f - f^2/2 + f^3 Q(f). */
    const float q[9] = {
        0x1.1d8ea6p-4f,  -0x1.d635bcp-4f, 0x1.dea282p-4f,  -0x1.fcf4c6p-4f, 0x1.23d21ap-3f,
        -0x1.555b4ap-3f, 0x1.999d5ap-3f,  -0x1.fffffcp-3f, 0x1.555554p-2f,
    };
    float p = q[0];
    for (int i = 1; i < 9; i++)
        p = fmaf(p, f, q[i]);
    p = fmaf(n, FMATH_LN2_LO, p * f * z);
    p = fmaf(-0.5f, z, p);
    return fmaf(n, FMATH_LN2_HI, f + p);
}

FMATH_FN float fmath_softplus_of(float x)
{
    if (!(x <= 20.0f))
        return x;
    float e = fmath_exp(x), u = 1.0f + e;
    return u == 1.0f ? e : fmath_log_of(u) * (e / (u - 1.0f));
}

#define SINCOS_RINT 0x1.8p52 /* adding and subtracting it rounds a double to an integer */
#define PIO2_HI     0x1.921fb54442d18p+0
#define PIO2_LO     0x1.1a62633145c07p-54
#define TWO_OVER_PI 0x1.45f306dc9c883p-1

FMATH_FN void fmath_sincos_of(double a, float *s, float *c)
{
    double n = fma(a, TWO_OVER_PI, SINCOS_RINT) - SINCOS_RINT;
    double r = fma(n, -PIO2_HI, a);
    r = fma(n, -PIO2_LO, r);
    double z = r * r;
    double ps = fma(0x1.6dbbee1f24647p-19, z, -0x1.a013a11619d1bp-13);
    ps = fma(ps, z, 0x1.11110dea5e8c0p-7);
    ps = fma(ps, z, -0x1.555555545c0f8p-3);
    float sr = (float)fma(r * z, ps, r);
    double pc = fma(-0x1.2522e6d930e5bp-22, z, 0x1.a015c02820885p-16);
    pc = fma(pc, z, -0x1.6c16bf51b0df9p-10);
    pc = fma(pc, z, 0x1.555555550225fp-5);
    float cr = (float)fma(z * z, pc, fma(-0.5, z, 1.0));
    switch ((int64_t)n & 3) {
    case 0:
        *s = sr, *c = cr;
        break;
    case 1:
        *s = cr, *c = -sr;
        break;
    case 2:
        *s = -sr, *c = -cr;
        break;
    default:
        *s = -cr, *c = sr;
        break;
    }
}

#endif
