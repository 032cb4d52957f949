/* Matrix products with AVX-512 VNNI. */
#include "kernels/cpu/linear_zmm.h"
#include "kernels/cpu/plain_impl.h"

#include <string.h>

typedef void direct_fn(const struct lin_job *job, int t0, int64_t tile);

#define DIRECT(kind, nt)                                                              \
    static void direct_##kind##_##nt(const struct lin_job *job, int t0, int64_t tile) \
    {                                                                                 \
        direct(LIN_KIND_##kind, nt, job, t0, tile);                                   \
    }
#define DIRECT_ALL(kind) \
    DIRECT(kind, 1)      \
    DIRECT(kind, 2)      \
    DIRECT(kind, 3) DIRECT(kind, 4) DIRECT(kind, 5) DIRECT(kind, 6) DIRECT(kind, 7) DIRECT(kind, 8)
#define DIRECT_ROW(kind)                                                           \
    [LIN_KIND_##kind] = { direct_##kind##_1, direct_##kind##_2, direct_##kind##_3, \
                          direct_##kind##_4, direct_##kind##_5, direct_##kind##_6, \
                          direct_##kind##_7, direct_##kind##_8 }

DIRECT_ALL(Q4_0)
DIRECT_ALL(Q4_1)
DIRECT_ALL(Q5_0)
DIRECT_ALL(Q5_1)
DIRECT_ALL(Q8_0)
DIRECT_ALL(Q4_K)
DIRECT_ALL(Q5_K)
DIRECT_ALL(Q6_K)

static direct_fn *const direct_of[LIN_KIND_GROUPED][DIRECT_MAX] = {
    DIRECT_ROW(Q4_0), DIRECT_ROW(Q4_1), DIRECT_ROW(Q5_0), DIRECT_ROW(Q5_1),
    DIRECT_ROW(Q8_0), DIRECT_ROW(Q4_K), DIRECT_ROW(Q5_K), DIRECT_ROW(Q6_K),
};

/* Rows [t0, t0 + nt) of x over the scratch; nt <= BLOCK_MAX. */
Z_INLINE void block_kind(const bool affine, const bool halves, int nt, const struct act *x,
                         const int32_t *neg, int64_t i, int n, struct lin_scratch *s, int u, int t0,
                         const uint8_t *next, int step)
{
    switch (nt) {
    case 1:
        block(affine, halves, 1, x, neg, i, n, s, u, t0, next, step);
        break;
    case 2:
        block(affine, halves, 2, x, neg, i, n, s, u, t0, next, step);
        break;
    case 3:
        block(affine, halves, 3, x, neg, i, n, s, u, t0, next, step);
        break;
    case 4:
        block(affine, halves, 4, x, neg, i, n, s, u, t0, next, step);
        break;
    case 5:
        block(affine, halves, 5, x, neg, i, n, s, u, t0, next, step);
        break;
    case 6:
        block(affine, halves, 6, x, neg, i, n, s, u, t0, next, step);
        break;
    case 7:
        block(affine, halves, 7, x, neg, i, n, s, u, t0, next, step);
        break;
    default:
        block(affine, halves, 8, x, neg, i, n, s, u, t0, next, step);
        break;
    }
}

/* A chunk of groups of one tile: unpacked, then every row of x. The first rows fetch what the next call unpacks. */
static void chunk(const struct lin_job *j, int64_t tile, int64_t g0, int n, struct lin_scratch *s,
                  int u, const uint8_t *fetch)
{
    const enum lin_kind kind = j->w->kind;
    const struct act *x = j->x;
    const int32_t *neg = neg_of(kind, x);
    unpack_any(kind, j->w->data + (size_t)tile * j->w->tile_bytes, g0, n, s);
    for (int t = 0; t < j->n_rows; t += BLOCK_MAX) {
        int nt = (int)min_i64(BLOCK_MAX, j->n_rows - t);
        int64_t i = act_index(x, t, g0);
        const uint8_t *next = t == 0 ? fetch : NULL;
        const int step = lin_block_bytes(kind) >> lin_log2_groups(kind);
        if (kind == LIN_KIND_Q6_K)
            block_kind(false, true, nt, x, neg, i, n, s, u, t, next, step);
        else if (lin_is_affine(kind))
            block_kind(true, false, nt, x, neg, i, n, s, u, t, next, step);
        else
            block_kind(false, false, nt, x, neg, i, n, s, u, t, next, step);
    }
}

/* Address of a tile's group g (a multiple of LIN_CHUNK, so the first of its block); may be past the end: for prefetching. */
static const uint8_t *packed_at(const struct weight *w, int64_t tile, int64_t g)
{
    return w->data + (size_t)tile * w->tile_bytes +
           (size_t)(g >> lin_log2_groups(w->kind)) * (size_t)lin_block_bytes(w->kind);
}

/* Chunks of groups outermost: the part of x that they need stays in the second-level cache for all tiles. */
static void through_scratch(const struct lin_job *j, int64_t tile0, int64_t tile1,
                            struct lin_scratch *s)
{
    const int64_t n = j->w->n_groups;
    for (int64_t u = 0; u < tile1 - tile0; u++)
        for (int a = 0; a < 2; a++)
            memset(s->acc[u][a], 0, (size_t)j->n_rows * sizeof(s->acc[0][0][0]));
    for (int64_t g = 0; g < n; g += LIN_CHUNK) {
        for (int64_t u = 0; u < tile1 - tile0; u++) {
            bool last = u + 1 == tile1 - tile0;
            const uint8_t *fetch =
                packed_at(j->w, last ? tile0 : tile0 + u + 1, last ? g + LIN_CHUNK : g);
            chunk(j, tile0 + u, g, (int)min_i64(LIN_CHUNK, n - g), s, (int)u, fetch);
        }
    }
    const bool affine = lin_is_affine(j->w->kind);
    for (int t = 0; t < j->n_rows; t++) {
        for (int64_t u = 0; u < tile1 - tile0; u++) {
            __m512 y = _mm512_load_ps(s->acc[u][0][t]);
            if (affine)
                y = _mm512_add_ps(y, _mm512_load_ps(s->acc[u][1][t]));
            store_tile(j, tile0 + u, t, y);
        }
    }
}

static void grouped(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    if (j->n_rows > DIRECT_MAX) {
        through_scratch(j, tile0, tile1, s);
        return;
    }
    direct_fn *fn = direct_of[j->w->kind][j->n_rows - 1];
    for (int64_t tile = tile0; tile < tile1; tile++)
        fn(j, 0, tile);
}

const struct lin_ops lin_ops_avx512 = { "avx512", grouped, plain };
