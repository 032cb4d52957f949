/* group.h - a quantised weight row in canonical form: groups of 32 integer codes with exact f32 scales.
 *
 * Every quantised type is brought to one form, so that its arithmetic is defined once (docs/numerics.md). With i the element,
 * h = i / 16 its half:    w[i] = d * s[h] * c[i] + m * o[h]
 * d * s[h] * c[i] and m * o[h] are exact in f32 for every type but MLX's with f32 scales, so w[i] has one rounding (none where m = 0).
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
    int16_t c[GROUP]; /* -128..255 */
    float d, m;
    int8_t s[2]; /* 1 where the scale of both halves is d */
    uint8_t o[2];
};

/* Whether the type is stored in groups (a quantised type that this build computes with). */
bool group_is_type(enum dtype type);
/* Whether m is used. */
bool group_is_affine(enum dtype type);

/* Groups [g0, g0 + n) of a row at data (row bytes as in the file); scales: of that row on, of MLX types only (else any).
 * Need: group_is_type(type). */
void group_decode(enum dtype type, const uint8_t *row, const struct scales *scales, int64_t g0,
                  int64_t n, struct group *out);

/* Eight codes of `bits` bits, the lowest bits first, to bytes. Reads `bits` bytes. */
static inline uint64_t group_mlx_codes(const uint8_t *p, int bits)
{
    uint64_t x = 0;
    for (int i = 0; i < bits; i++)
        x |= (uint64_t)p[i] << 8 * i;
    /* the low half stays, the high half moves up: four codes, two, one; masked before, as with over 4 bits they would meet */
    uint64_t m4 = (UINT64_C(1) << 4 * bits) - 1;
    uint64_t m2 = ((UINT64_C(1) << 2 * bits) - 1) * UINT64_C(0x0000000100000001);
    uint64_t m1 = ((UINT64_C(1) << bits) - 1) * UINT64_C(0x0001000100010001);
    x = (x & m4) | (x & ~m4) << (32 - 4 * bits);
    x = (x & m2) | (x & ~m2) << (16 - 2 * bits);
    return (x & m1) | (x & ~m1) << (8 - bits);
}

/* The element's value. */
static inline float group_value(const struct group *g, int i)
{
    int h = i / 16;
    return g->d * (float)(g->s[h] * g->c[i]) + g->m * (float)g->o[h];
}

#endif
