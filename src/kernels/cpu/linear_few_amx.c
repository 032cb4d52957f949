/* Matrix products with AMX tiles for few rows of x: more than the direct kernels serve, too few to share unpacked weights.
 *
 * A tile of weights goes group by group through a ring that stays in the first-level cache: unpacked, multiplied by 16 rows of x,
 * the product stored, and the chains taken one step on, each of a different group at a time, so that nothing waits: the weights of
 * a group are unpacked while the products of the groups before are under way. Measured with weights from memory, 16 rows, one
 * thread: Q4_K 38 ns for a group of a tile, Q6_K 54; through scratch with VNNI 61 and 95, and the weights alone take 24 and 34
 * to arrive.
 *
 * - Four products are under way: loading C, A and B, a product and the store of it take 11.6 ns with two, 9.9 with four.
 * - Q6_K's scales change every 16 elements, so each half of a group is a product of its own. (Scales within the codes, as in
 *   linear_amx.c, need unpacking of 60 ns.)
 * - More than 16 rows: the tile is unpacked again, from the nearest caches, for each block of 16. */
#include "kernels/cpu/linear_amx.h"

/* C: tmm0..3; A (x): tmm4, tmm5; B (w): tmm6, tmm7. */
static const struct tile_config tiles_groups = {
    .palette = 1,
    .colsb = { 64, 64, 64, 64, GROUP, GROUP, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, GROUP / 4, GROUP / 4 },
};
static const struct tile_config tiles_halves = {
    .palette = 1,
    .colsb = { 64, 64, 64, 64, GROUP / 2, GROUP / 2, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, GROUP / 8, GROUP / 8 },
};

#define RING_CODES  4 /* groups: two that are multiplied next, two that are unpacked meanwhile */
#define RING_SCALES 8 /* groups: from unpacking to the chain; and of an unrolled loop */

struct ring {
    _Alignas(64) uint8_t codes[RING_CODES][STEP];
    _Alignas(64) float dot[2][2][TILE][TILE]; /* [group][half][row of x][row] */
    _Alignas(64) float scale[RING_SCALES][3][TILE];
};
_Static_assert(sizeof(struct ring) <= sizeof(((struct lin_scratch *)0)->tiles), "scratch");

/* A tile times a block of 16 rows of x. */
struct pass {
    const struct lin_job *job;
    struct ring *ring;
    int64_t tile;
    int t0;
    const uint8_t *base; /* the tile */
    int n;               /* groups */
    const int8_t *q;     /* of the block, STEP a group */
    const float *dx;     /* TILE a group */
};

/* Whether each half of a group is a product: Q2_K's scales are in its codes. */
Z_INLINE bool has_two_products(enum lin_kind kind)
{
    return lin_scales(kind) == LIN_SCALES_HALVES;
}

/* Groups whose products are under way when a group's chains are computed. */
Z_INLINE int ahead_of(const bool halves)
{
    return halves ? 2 : 4;
}

/* In what follows `slot` is a group's number modulo RING_SCALES, a constant once the loop is unrolled. */

Z_INLINE void unpack_group(const enum lin_kind kind, const struct pass *a, int g, const int slot)
{
    const struct lin_block at = lin_block(kind, a->job->w);
    const int sub = g & ((1 << at.shift) - 1);
    const uint8_t *b = a->base + (size_t)(g >> at.shift) * (size_t)at.bytes;
    const uint8_t *c = b + at.codes + sub * lin_code_bytes(kind);
    float(*scale)[TILE] = a->ring->scale[slot];
    if (g >= a->n)
        return;
#pragma GCC unroll 8
    for (int l = 0; l < lin_code_bytes(kind); l += 64)
        _mm_prefetch((const char *)c + 4096 + l, _MM_HINT_T0);
    _mm_prefetch((const char *)b + 4096 + (at.shift == 3 ? 64 * sub : 0), _MM_HINT_T0);
    const struct zscales z = load_scales(kind, a->job->w, b, sub);
    unpack_codes(kind, c, &z, false, a->ring->codes[slot % RING_CODES]);
    _mm512_store_ps(scale[0], z.d);
    if (has_two_products(kind)) {
        _mm512_store_ps(scale[1], z.s0);
        _mm512_store_ps(scale[2], z.s1);
    }
}

#define PRODUCT(C, A, B, x, w)                      \
    do {                                            \
        if (is_unsigned)                            \
            PRODUCT_INT8("tdpbsud", C, A, B, x, w); \
        else                                        \
            PRODUCT_INT8("tdpbssd", C, A, B, x, w); \
    } while (0)

/* The product of group g. One past the last group is of whatever lies there, and not used. */
Z_INLINE void group_product(const enum lin_kind kind, const struct pass *a, int g, const int slot)
{
    const bool halves = has_two_products(kind), is_unsigned = kind == LIN_KIND_MLX8;
    const uint8_t *w = a->ring->codes[slot % RING_CODES];
    const int8_t *x = a->q + (int64_t)g * STEP;
    if (halves && slot % 2 == 0) {
        PRODUCT("0", "4", "6", x, w);
        PRODUCT("1", "5", "7", x + GROUP / 2, w + STEP / 2);
    } else if (halves) {
        PRODUCT("2", "4", "6", x, w);
        PRODUCT("3", "5", "7", x + GROUP / 2, w + STEP / 2);
    } else if (slot % 4 == 0) {
        PRODUCT("0", "4", "6", x, w);
    } else if (slot % 4 == 1) {
        PRODUCT("1", "5", "7", x, w);
    } else if (slot % 4 == 2) {
        PRODUCT("2", "4", "6", x, w);
    } else {
        PRODUCT("3", "5", "7", x, w);
    }
}

Z_INLINE void group_store(const bool halves, struct ring *r, const int slot)
{
    float(*to)[TILE][TILE] = r->dot[slot % 2];
    if (halves && slot % 2 == 0) {
        TILE_STORE("0", to[0]);
        TILE_STORE("1", to[1]);
    } else if (halves) {
        TILE_STORE("2", to[0]);
        TILE_STORE("3", to[1]);
    } else if (slot % 4 == 0) {
        TILE_STORE("0", to[0]);
    } else if (slot % 4 == 1) {
        TILE_STORE("1", to[0]);
    } else if (slot % 4 == 2) {
        TILE_STORE("2", to[0]);
    } else {
        TILE_STORE("3", to[0]);
    }
}

/* ad = fma(dot, d * dx, ad), where dot of halves is s0 dot0 + s1 dot1, exact in f32. */
Z_INLINE void chain_group(const bool halves, const struct pass *a, __m512 ad[TILE], int g,
                          const int slot)
{
    const float(*scale)[TILE] = a->ring->scale[slot];
    const float(*dot)[TILE][TILE] = a->ring->dot[slot % 2];
    const float *dx = a->dx + (int64_t)g * TILE;
    const __m512 zero = _mm512_set1_ps(DOT_ZERO), d = _mm512_load_ps(scale[0]);
    const __m512 s0 = halves ? _mm512_load_ps(scale[1]) : zero;
    const __m512 s1 = halves ? _mm512_load_ps(scale[2]) : zero;
    if (g >= a->n)
        return;
#pragma GCC unroll 16
    for (int t = 0; t < TILE; t++) {
        __m512 u = _mm512_sub_ps(_mm512_load_ps(dot[0][t]), zero);
        if (halves) {
            __m512 v = _mm512_sub_ps(_mm512_load_ps(dot[1][t]), zero);
            u = _mm512_fmadd_ps(s0, u, _mm512_mul_ps(s1, v));
        }
        ad[t] = _mm512_fmadd_ps(u, _mm512_mul_ps(d, _mm512_set1_ps(dx[t])), ad[t]);
    }
}

/* Before the chain of group 0: the products of as many groups as can be under way, and the first one stored. */
Z_INLINE void start(const enum lin_kind kind, const struct pass *a)
{
    const bool halves = has_two_products(kind);
    const int ahead = ahead_of(halves);
    struct ring *r = a->ring;
#pragma GCC unroll 7
    for (int g = 0; g < ahead + 3; g++) {
        unpack_group(kind, a, g, g);
        if (g >= 3)
            group_product(kind, a, g - 3, g - 3);
    }
    group_store(halves, r, 0);
    group_product(kind, a, ahead, ahead);
}

/* y = ad + the chain of minimums, which are still in the nearest caches. */
Z_INLINE void finish(const enum lin_kind kind, const struct pass *a, __m512 ad[TILE])
{
    const struct lin_block at = lin_block(kind, a->job->w);
    const int rows = a->job->n_rows - a->t0;
    if (lin_is_affine(kind)) {
        const struct act *x = a->job->x;
        int64_t i = act_index(x, a->t0, 0);
        __m512 am[TILE];
#pragma GCC unroll 16
        for (int t = 0; t < TILE; t++)
            am[t] = _mm512_setzero_ps();
        for (int g = 0; g < a->n; g++, i += TILE) {
            const uint8_t *b = a->base + (size_t)(g >> at.shift) * (size_t)at.bytes;
            const struct zscales z = load_scales(kind, a->job->w, b, g & ((1 << at.shift) - 1));
#pragma GCC unroll 16
            for (int t = 0; t < TILE; t++)
                am[t] = kind == LIN_KIND_Q2_K
                            ? chain_mins(am[t], z.m, z.o0, z.o1, x, i + t)
                            : _mm512_fmadd_ps(z.m, _mm512_set1_ps(x->s[i + t]), am[t]);
        }
#pragma GCC unroll 16
        for (int t = 0; t < TILE; t++)
            ad[t] = _mm512_add_ps(ad[t], am[t]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < TILE; t++)
        if (t < rows)
            store_tile(a->job, a->tile, a->t0 + t, ad[t]);
}

/* kind is a constant at each call. */
Z_INLINE void block(const enum lin_kind kind, const struct pass *a)
{
    const bool halves = has_two_products(kind);
    const int ahead = ahead_of(halves);
    __m512 ad[TILE];
#pragma GCC unroll 16
    for (int t = 0; t < TILE; t++)
        ad[t] = _mm512_setzero_ps();
    start(kind, a);
    for (int g = 0; g < a->n; g += RING_SCALES) {
#pragma GCC unroll 8
        for (int k = 0; k < RING_SCALES; k++) {
            group_store(halves, a->ring, (k + 1) % RING_SCALES);
            group_product(kind, a, g + k + ahead + 1, (k + ahead + 1) % RING_SCALES);
            chain_group(halves, a, ad, g + k, k);
            unpack_group(kind, a, g + k + ahead + 3, (k + ahead + 3) % RING_SCALES);
        }
    }
    finish(kind, a, ad);
}

#define BLOCK(kind)                                \
    static void block_##kind(const struct pass *a) \
    {                                              \
        block(LIN_KIND_##kind, a);                 \
    }
#define BLOCK_ROW(kind) [LIN_KIND_##kind] = block_##kind,

LIN_KINDS_GROUPED(BLOCK)

typedef void block_fn(const struct pass *a);
static block_fn *const block_of[LIN_KIND_GROUPED] = { LIN_KINDS_GROUPED(BLOCK_ROW) };

void linear_few_grouped(const struct lin_job *j, int64_t tile0, int64_t tile1,
                        struct lin_scratch *s)
{
    const struct act *x = j->x;
    struct pass a = { .job = j, .ring = (struct ring *)s->tiles, .n = (int)x->n_groups };
    BUG_ON(x->mb != TILE);
    tiles_configure(has_two_products(j->w->kind) ? &tiles_halves : &tiles_groups);
    for (a.tile = tile0; a.tile < tile1; a.tile++) {
        a.base = j->w->data + (size_t)a.tile * j->w->tile_bytes;
        for (a.t0 = 0; a.t0 < j->n_rows; a.t0 += TILE) {
            a.q = x->q + act_index(x, a.t0, 0) * GROUP;
            a.dx = x->d + act_index(x, a.t0, 0);
            block_of[j->w->kind](&a);
        }
    }
    tiles_release();
}
