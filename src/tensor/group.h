/* group.h - a quantised weight row in canonical form: groups of 32 integer codes with exact f32 scales.
 *
 * Every quantised type is brought to one form, so that its arithmetic is defined once (docs/numerics.md). With i the element,
 * h = i / 16 its half:    w[i] = d * s[h] * c[i] + m * o[h]
 * d * s[h] * c[i] and m * o[h] are exact in f32 for every type, so w[i] has one rounding (none where m = 0).
 * Canonical dot of a row with int8 activations q, scale dx, groups ascending, dot_h = sum of c[i] q[i] and sum_h = sum of q[i]
 * over a half, all integers exact (and their sums under 2^24, so exact in f32 too):
 *     ad = fmaf((float)(s[0] dot_0 + s[1] dot_1), d * dx, ad)
 *     am = fmaf(m, dx * (float)(o[0] sum_0 + o[1] sum_1), am)        affine types only
 *     y  = ad + am                                                   (y = ad for the others) */
#ifndef PLUMB_TENSOR_GROUP_H
#define PLUMB_TENSOR_GROUP_H

#include "base/err.h"
#include "tensor/dtype.h"

#define GROUP 32

struct group {
    int8_t c[GROUP];
    float d, m;
    int8_t s[2]; /* 1 where the scale of both halves is d */
    uint8_t o[2];
};

/* Whether the type is stored in groups (a quantised type that this build computes with). */
bool group_is_type(enum dtype type);
/* Whether m is used. */
bool group_is_affine(enum dtype type);

/* Groups [g0, g0 + n) of a row at data (row bytes as in the file). Need: group_is_type(type). */
void group_decode(enum dtype type, const uint8_t *row, int64_t g0, int64_t n, struct group *out);

/* The element's value. */
static inline float group_value(const struct group *g, int i)
{
    int h = i / 16;
    return g->d * (float)(g->s[h] * g->c[i]) + g->m * (float)g->o[h];
}

#endif
