#include "tensor/fmath_impl.h"

float fmath_log(float x)
{
    return fmath_log_of(x);
}

float fmath_softplus(float x)
{
    return fmath_softplus_of(x);
}

void fmath_sincos(double a, float *s, float *c)
{
    fmath_sincos_of(a, s, c);
}
