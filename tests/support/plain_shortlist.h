/* plain_shortlist.h - plain C of the op shortlist: what its kernels are compared with. */
#ifndef PLUMB_TESTS_SUPPORT_PLAIN_SHORTLIST_H
#define PLUMB_TESTS_SUPPORT_PLAIN_SHORTLIST_H

#include "tensor/shortlist.h"

/* The short list of x [n] at temperature t: to the bit what the kernels make, but for the order of the keys (they ascend here) and what
 * stands behind them (zero). */
void plain_shortlist(struct shortlist *out, const float *x, int32_t n, float t);

/* Bring a kernel's list to that form. */
void plain_shortlist_sort(struct shortlist *list);

#endif
