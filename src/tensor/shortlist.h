/* shortlist.h - what a backend tells of a row of logits that stays in its memory: the best candidates and the sums of all weights, from
 * which most choices can be made (engine/sample.h, sample_short).
 *
 * The columns are dealt out to parts, in runs of SHORTLIST_RUN by turns. Of each part stands here every column whose order reaches the
 * part's floor; so of the row every column is known whose order reaches the greatest floor, and nothing is known of the others
 * but what they add to the sums. A weight is exp((logit - max) / t), the very bits of dmath_expf; a sum of n weights is one of f64 additions in
 * any order: two such sums differ by less than the (n 2^-51)th part, which is twice what 2 (n - 1) roundings can make. */
#ifndef PLUMB_TENSOR_SHORTLIST_H
#define PLUMB_TENSOR_SHORTLIST_H

#include "base/dmath.h"

#define SHORTLIST_PARTS 32
#define SHORTLIST_RUN   32
#define SHORTLIST_KEYS  128 /* columns of a part that are listed, at most */

struct shortlist_part {
    double sum, sum_t; /* of the part's weights, at temperature 1 and at the row's */
    float max;         /* greatest logit of the row */
    uint32_t floor;
    int32_t n; /* keys; -1 in all parts: a logit is not finite, and nothing else is told */
    int32_t pad;
    uint64_t keys[SHORTLIST_KEYS]; /* [n] in any order */
};

struct shortlist {
    struct shortlist_part parts[SHORTLIST_PARTS];
};

/* A logit's order as an integer: greater is better; -0 is +0. And the logit of an order. */
DMATH_FN uint32_t shortlist_order(float logit)
{
    uint32_t u = dmath_f32_bits(logit + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

DMATH_FN float shortlist_logit(uint32_t order)
{
    return dmath_bits_f32(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

/* Keys ascend as candidates get worse: (logit descending, id ascending). */
DMATH_FN uint64_t shortlist_key(uint32_t order, int32_t id)
{
    return (uint64_t)~order << 32 | (uint32_t)id;
}

DMATH_FN uint32_t shortlist_key_order(uint64_t key)
{
    return ~(uint32_t)(key >> 32);
}

#endif
