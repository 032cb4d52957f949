/* The project's own functions against long double libm over their whole range, and their special values. */
#include "tensor/fmath.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* |got - want| in units of the last place of want (of the smallest denormal where want is denormal). */
static double ulps(float got, long double want)
{
    int e;
    frexpl(want, &e);
    e = e < -125 ? -125 : e;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, e - 24));
}

typedef float one_fn(float);
typedef long double oracle_fn(long double);

/* Worst error over every `step`-th float bit pattern of magnitude in [lo, hi], both signs where asked. */
static double worst(one_fn *f, oracle_fn *g, float lo, float hi, int both)
{
    uint32_t a, b;
    memcpy(&a, &lo, 4);
    memcpy(&b, &hi, 4);
    double w = 0;
    for (uint32_t u = a; u <= b; u += 1009) {
        for (int s = 0; s <= both; s++) {
            float x = of_bits(u | (uint32_t)s << 31);
            double e = ulps(f(x), g((long double)x));
            w = e > w ? e : w;
        }
    }
    return w;
}

static void exp_is_within_2_ulp(void **state)
{
    (void)state;
    double e = worst(fmath_exp, expl, 1e-30f, 88.7f, 1);
    print_message("exp %.3f ulp\n", e);
    assert_true(e <= 2.0);
    /* results that are denormal */
    assert_true(worst(fmath_exp, expl, 88.7f, 88.72f, 1) <= 2.0);
    double d = 0;
    for (float x = -87.0f; x > -104.5f; x -= 0.001f) {
        double u = ulps(fmath_exp(x), expl(x));
        d = u > d ? u : d;
    }
    assert_true(d <= 2.0);
}

static void exp_has_its_special_values(void **state)
{
    (void)state;
    assert_true(fmath_exp(0.0f) == 1.0f && fmath_exp(-0.0f) == 1.0f);
    assert_true(fmath_exp(-INFINITY) == 0.0f && !signbit(fmath_exp(-INFINITY)));
    assert_true(fmath_exp(INFINITY) == INFINITY && fmath_exp(89.0f) == INFINITY);
    assert_true(fmath_exp(-105.0f) == 0.0f && fmath_exp(-FLT_MAX) == 0.0f);
    assert_true(fmath_exp(nextafterf(-104.0f, -INFINITY)) == 0.0f); /* attention leaves those out */
    assert_true(isnan(fmath_exp(NAN)));
}

static void tanh_is_within_2_ulp(void **state)
{
    (void)state;
    double e = worst(fmath_tanh, tanhl, 1e-30f, 12.0f, 1);
    print_message("tanh %.3f ulp\n", e);
    assert_true(e <= 2.0);
    assert_true(fmath_tanh(INFINITY) == 1.0f && fmath_tanh(-INFINITY) == -1.0f);
    assert_true(fmath_tanh(0.0f) == 0.0f && signbit(fmath_tanh(-0.0f)));
    assert_true(isnan(fmath_tanh(NAN)));
}

static void erf_is_within_1e_7(void **state)
{
    (void)state;
    double worst_abs = 0;
    for (float x = -6; x < 6; x += 0x1p-13f) {
        double e = fabs((double)fmath_erf(x) - (double)erfl((long double)x));
        worst_abs = e > worst_abs ? e : worst_abs;
    }
    print_message("erf %.2e\n", worst_abs);
    assert_true(worst_abs <= 1e-7);
    assert_true(worst(fmath_erf, erfl, 1e-30f, 0.9f, 1) <= 2.0);
    assert_true(fmath_erf(INFINITY) == 1.0f && fmath_erf(-INFINITY) == -1.0f);
    assert_true(fmath_erf(5.0f) == 1.0f && fmath_erf(FLT_MAX) == 1.0f);
    assert_true(fmath_erf(0.0f) == 0.0f && signbit(fmath_erf(-0.0f)));
    assert_true(isnan(fmath_erf(NAN)));
}

static void log_is_within_2_ulp(void **state)
{
    (void)state;
    double e = worst(fmath_log, logl, 1e-45f, FLT_MAX, 0);
    print_message("log %.3f ulp\n", e);
    assert_true(e <= 2.0);
    assert_true(fmath_log(1.0f) == 0.0f && fmath_log(0.0f) == -INFINITY);
    assert_true(fmath_log(INFINITY) == INFINITY && isnan(fmath_log(-1.0f)));
}

/* Angles of rotary embeddings: a position up to 2^20 times an f32 frequency is exact in double. */
static long double softplus(long double x)
{
    return log1pl(expl(x));
}

static long double sigmoid(long double x)
{
    return 1 / (1 + expl(-x));
}

static void softplus_and_sigmoid_are_within_6_ulp(void **state)
{
    (void)state;
    double s = worst(fmath_softplus, softplus, 1e-30f, 80, 1);
    double g = worst(fmath_sigmoid, sigmoid, 1e-30f, 80, 1);
    print_message("softplus %.3f ulp, sigmoid %.3f ulp\n", s, g);
    assert_true(s <= 6.0 && g <= 6.0);
    assert_true(isnan(fmath_softplus(NAN)) && fmath_softplus(INFINITY) == INFINITY);
    assert_true(fmath_softplus(-INFINITY) == fmath_exp(-INFINITY));
}

static void sincos_of_rope_angles_is_within_0_51_ulp(void **state)
{
    (void)state;
    double w = 0;
    for (int i = 0; i < 64; i++) {
        float f = (float)pow(10000.0, -i / 64.0);
        for (int32_t pos = 0; pos <= 1 << 20; pos += 1 + pos / 997) {
            double a = (double)pos * (double)f;
            float s, c;
            fmath_sincos(a, &s, &c);
            double es = pos ? ulps(s, sinl((long double)a)) : fabs((double)s);
            double ec = ulps(c, cosl((long double)a));
            w = es > w ? es : w;
            w = ec > w ? ec : w;
        }
    }
    print_message("sincos %.3f ulp\n", w);
    assert_true(w <= 0.51);
    float s, c;
    fmath_sincos(-2.5, &s, &c);
    assert_true(ulps(s, sinl(-2.5L)) <= 0.51 && ulps(c, cosl(-2.5L)) <= 0.51);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_2_ulp),
        cmocka_unit_test(exp_has_its_special_values),
        cmocka_unit_test(tanh_is_within_2_ulp),
        cmocka_unit_test(erf_is_within_1e_7),
        cmocka_unit_test(log_is_within_2_ulp),
        cmocka_unit_test(softplus_and_sigmoid_are_within_6_ulp),
        cmocka_unit_test(sincos_of_rope_angles_is_within_0_51_ulp),
    };
    return cmocka_run_group_tests_name("fmath", tests, NULL, NULL);
}
