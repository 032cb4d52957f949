/* tmpl_float.h - the few functions of doubles that Python's arithmetic needs, without the mathematics library. */
#ifndef PLUMB_TEMPLATE_TMPL_FLOAT_H
#define PLUMB_TEMPLATE_TMPL_FLOAT_H

double tmpl_float_trunc(double x);
double tmpl_float_floor(double x);
double tmpl_float_round_even(double x);     /* to an integer, halves to the even one */
double tmpl_float_fmod(double x, double y); /* exact; y != 0, x finite */
double tmpl_float_pow10(long n);            /* correctly rounded */
/* Exact cases are exact; integral powers are within an ulp, others within 1e-14. x < 0 needs an integral y. */
double tmpl_float_pow(double x, double y);

#endif
