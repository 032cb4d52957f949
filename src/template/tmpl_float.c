#include "template/tmpl_float.h"
#include "base/dmath.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

double tmpl_float_trunc(double x)
{
    double whole;
    modf(x, &whole);
    return whole;
}

double tmpl_float_floor(double x)
{
    double whole = tmpl_float_trunc(x);
    return x < whole ? whole - 1 : whole;
}

double tmpl_float_round_even(double x)
{
    double whole, half;
    double rest = modf(x, &whole);
    rest = rest < 0 ? -rest : rest;
    if (rest > 0.5 || (rest == 0.5 && modf(whole / 2, &half) != 0))
        whole += x < 0 ? -1 : 1;
    return whole;
}

/* Subtract y times falling powers of two; every step is exact. */
double tmpl_float_fmod(double x, double y)
{
    double a = x < 0 ? -x : x, b = y < 0 ? -y : y;
    int ea, eb;
    if (isinf(b) || a < b)
        return x;
    frexp(a, &ea);
    frexp(b, &eb);
    for (int k = ea - eb; k >= 0; k--) {
        double part = ldexp(b, k);
        if (part <= a)
            a -= part;
    }
    return copysign(a, x);
}

double tmpl_float_pow10(long n)
{
    char text[32];
    snprintf(text, sizeof(text), "1e%ld", n);
    return strtod(text, NULL);
}

/* By squaring, in the widest type there is. */
static double pow_integral(double x, int n)
{
    long double r = 1, base = x;
    for (int left = n < 0 ? -n : n; left; left >>= 1) {
        if (left & 1)
            r *= base;
        base *= base;
    }
    return (double)(n < 0 ? 1 / r : r);
}

double tmpl_float_pow(double x, double y)
{
    if (y == 0 || x == 1)
        return 1;
    if (isnan(x) || isnan(y))
        return NAN;
    if (tmpl_float_trunc(y) == y && y >= -16384 && y <= 16384)
        return pow_integral(x, (int)y);
    if (x == 0)
        return y < 0 ? INFINITY : 0;
    if (isinf(y))
        return (x > 1 || x < -1) == (y > 0) ? INFINITY : x == -1 ? 1 : 0;
    if (isinf(x))
        return y > 0 ? INFINITY : 0;
    double sign = 1;
    if (x < 0) { /* a huge integral power: even beyond 2^53 */
        sign = tmpl_float_fmod(y, 2) != 0 ? -1 : 1;
        x = -x;
    }
    double r = dmath_pow(x, y);
    if (y == 0.5) /* one step of Newton's: a square root is common, and has one right answer */
        r = (double)(((long double)r + (long double)x / r) / 2);
    return sign * r;
}
