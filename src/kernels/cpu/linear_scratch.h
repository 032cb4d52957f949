/* linear_scratch.h - the order in which many rows of x pass over weights that are unpacked to scratch.
 *
 * A chunk of groups of a tile is unpacked once, then blocks of rows of x pass over it; the accumulators of all rows are kept in
 * memory between chunks, which changes no bit. */
#ifndef PLUMB_KERNELS_CPU_LINEAR_SCRATCH_H
#define PLUMB_KERNELS_CPU_LINEAR_SCRATCH_H

#include "kernels/cpu/cpu_int.h"

/* Address of a tile's group g (the first of its block); may be past the end: for prefetching. */
static inline const uint8_t *packed_at(const struct weight *w, int64_t tile, int64_t g)
{
    return w->data + (size_t)tile * w->tile_bytes +
           (size_t)(g >> w->block.shift) * (size_t)w->block.bytes;
}

/* What a chunk's place in its row means for the accumulators. */
struct part {
    int64_t g0; /* groups [g0, g0 + n) */
    int n;
    bool is_first;        /* they start from zero, */
    bool is_last;         /* and end as y; between, they are kept in scratch */
    const uint8_t *fetch; /* what is unpacked next */
};

/* A chunk of groups of one tile (number u of the scratch): unpacked, then every row of x. */
typedef void chunk_fn(const struct lin_job *j, int64_t tile, struct lin_scratch *s, int u,
                      const struct part *p);

/* Chunks of `size` groups outermost: the part of x that they need stays in the second-level cache for all tiles. */
static inline __attribute__((always_inline)) void through_scratch(const struct lin_job *j,
                                                                  int64_t tile0, int64_t tile1,
                                                                  struct lin_scratch *s,
                                                                  chunk_fn *chunk, const int size)
{
    const int64_t n = j->w->n_groups;
    for (int64_t g = 0; g < n; g += size) {
        for (int64_t u = 0; u < tile1 - tile0; u++) {
            bool last = u + 1 == tile1 - tile0;
            struct part p = { g, (int)min_i64(size, n - g), g == 0, g + size >= n,
                              packed_at(j->w, last ? tile0 : tile0 + u + 1, last ? g + size : g) };
            chunk(j, tile0 + u, s, (int)u, &p);
        }
    }
}

#endif
