/* linear_direct.h - the rest of a file of linear whose kernels unpack weights straight into registers; included at its end.
 *
 * The includer has defined DIRECT(kind, nt): a function direct_KIND_NT of type direct_fn for nt rows of x from t0 on. */
#ifndef PLUMB_KERNELS_CPU_LINEAR_DIRECT_H
#define PLUMB_KERNELS_CPU_LINEAR_DIRECT_H

#include "kernels/cpu/cpu_int.h"

#ifdef DIRECT

typedef void direct_fn(const struct lin_job *job, int t0, int64_t tile);

#define DIRECT_ALL(kind) DIRECT(kind, 1) DIRECT(kind, 2) DIRECT(kind, 3) DIRECT(kind, 4)
#define DIRECT_ROW(kind) \
    [LIN_KIND_##         \
        kind] = { direct_##kind##_1, direct_##kind##_2, direct_##kind##_3, direct_##kind##_4 },

LIN_KINDS_GROUPED(DIRECT_ALL)

static direct_fn *const direct_of[LIN_KIND_GROUPED][DIRECT_ROWS] = { LIN_KINDS_GROUPED(
    DIRECT_ROW) };

/* A tile's weights stay in the nearest caches while rows of x pass over them, DIRECT_ROWS at a time, so that no pass crosses the
 * border of the activations' own blocks of 16. */
static void grouped_direct(const struct lin_job *j, int64_t tile0, int64_t tile1,
                           struct lin_scratch *s)
{
    for (int64_t tile = tile0; tile < tile1; tile++) {
        for (int t = 0; t < j->n_rows; t += DIRECT_ROWS) {
            int nt = (int)min_i64(DIRECT_ROWS, j->n_rows - t);
            direct_of[j->w->kind][nt - 1](j, t, tile);
        }
    }
}

#endif

#endif
