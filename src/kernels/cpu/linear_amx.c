/* Matrix products with AMX tiles, for many rows of x.
 *
 * A tile product of 16 rows of x, 16 rows of w and one group of 32 gives the exact integer dots; the two f32 chains are then
 * AVX-512's, so the bits are the same. Dots pass through memory: there is no other way from a tile to a vector register.
 *
 * What shapes this file, measured on Emerald Rapids: while tile instructions are in flight, and for about 100 cycles after, port 5
 * does no 512-bit multiplication, fma or conversion (48 of them: 9.3 ns alone, 17.9 beside one tile instruction), but it adds and
 * subtracts. So no dot is converted:
 * - int8 products start from C = 0x4B400000, the bits of the float 1.5 * 2^23. A sum of less than 2^22 added to that stays in its
 *   binade, and subtracting the float leaves the dot, exactly. Products run between the chains of the groups before them: 17.4 ns
 *   for a group of 16 x 16 against 23 in turns, 8 groups each, with conversions.
 * - Q6_K's scales change every 16 elements, so they go into the codes: scale * code is an integer of up to 13 bits, the sum of two
 *   bf16 numbers, its upper 8 bits and the rest. bf16 products add integers under 2^24 in f32, exactly in any order, so the dots of
 *   both parts end in one tile as the float s0 * dot0 + s1 * dot1: 19.5 ns; two int8 products and their sum, 32. For the other
 *   kinds bf16 is the faster in the first-level cache (15.3 ns) and the slower with x in the second, being twice as large.
 * - The chain of minimums, which needs no dots, is a pass of its own when no tile instruction is about, over whole rows, whose
 *   accumulators then need not be kept.
 */
#include "kernels/cpu/linear_amx.h"

/* Rows of x up to which linear_few_amx.c serves (from 9 on; 32: by 2 to 40 % faster than this file, 48: even, 64: slower by 2 to
 * 20 %), and from which Q6_K goes in bf16, whose unpacking takes 60 ns a group (128: even). */
#define FEW_ROWS_MAX  48
#define BF16_ROWS_MIN 160

/* C: tmm0, tmm1; A (x): tmm4, tmm5; B (w): tmm6, tmm7. */
static const struct tile_config tiles_int8 = {
    .palette = 1,
    .colsb = { 64, 64, 0, 0, GROUP, GROUP, 64, 64 },
    .rows = { 16, 16, 0, 0, 16, 16, GROUP / 4, GROUP / 4 },
};
static const struct tile_config tiles_bf16 = {
    .palette = 1,
    .colsb = { 64, 64, 0, 0, 64, 64, 64, 64 },
    .rows = { 16, 16, 0, 0, 16, 16, GROUP / 2, GROUP / 2 },
};

/* C = A * B + A * B', where codes holds B and B'. */
#define PRODUCT_BF16(C, A, B, x, codes)                                    \
    __asm__ volatile("tilezero %%tmm" C "\n\t"                             \
                     "tileloadd (%0,%3,1), %%tmm" A "\n\t"                 \
                     "tileloadd (%1,%3,1), %%tmm" B "\n\t"                 \
                     "tdpbf16ps %%tmm" B ", %%tmm" A ", %%tmm" C "\n\t"    \
                     "tileloadd (%2,%3,1), %%tmm" B "\n\t"                 \
                     "tdpbf16ps %%tmm" B ", %%tmm" A ", %%tmm" C ::"r"(x), \
                     "r"(codes), "r"((codes) + 2 * STEP), "r"((int64_t)64) \
                     : "memory")
/* --- unpacking of groups of a tile to scratch --- */

/* As bytes. kind is a constant at each call. */
Z_INLINE void unpack_int8(const enum lin_kind kind, const struct weight *w, const uint8_t *base,
                          int64_t g0, int n, struct lin_scratch *s)
{
    const struct lin_block at = lin_block(kind, w);
    for (int k = 0; k < n; k++) {
        const int64_t g = g0 + k;
        const int sub = (int)(g & ((1 << at.shift) - 1));
        const uint8_t *b = base + (g >> at.shift) * at.bytes;
        const struct zscales z = load_scales(kind, w, b, sub);
        unpack_codes(kind, b + at.codes + sub * lin_code_bytes(kind), &z, true,
                     s->tiles + k * STEP);
        _mm512_store_ps(s->scale[k][0], z.d);
    }
}

/* Upper halves of the floats a and b to pairs: a bf16 number each. */
Z_INLINE __m512i pair_floats(__m512 a, __m512 b)
{
    return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(_mm512_castps_si512(a), 16),
                                   _mm512_castps_si512(b));
}

/* What pair_floats drops. */
Z_INLINE __m512 lower_part(__m512 a)
{
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u);
    return _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), upper)));
}

/* Four signed codes of each lane times its scale. A tile's row 2j + o holds, side by side, the elements 4j + o and 4j + o + 2. */
Z_INLINE void put_scaled(uint8_t *to, __m512i v, __m512 scale)
{
    for (unsigned o = 0; o < 2; o++) {
        __m512 a = to_f32(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * o), 24));
        __m512 b = to_f32(_mm512_srai_epi32(_mm512_slli_epi32(v, 8 - 8 * o), 24));
        a = _mm512_mul_ps(a, scale);
        b = _mm512_mul_ps(b, scale);
        _mm512_store_si512(to + 64 * o, pair_floats(a, b));
        _mm512_store_si512(to + 2 * STEP + 64 * o, pair_floats(lower_part(a), lower_part(b)));
    }
}

/* Q6_K as two tiles of bf16 a group. */
static void unpack_bf16(const struct weight *w, const uint8_t *base, int64_t g0, int n,
                        struct lin_scratch *s)
{
    const enum lin_kind kind = LIN_KIND_Q6_K;
    const struct lin_block at = lin_block(kind, w);
    const __m512i bias = _mm512_set1_epi8((char)lin_bias(kind));
    for (int k = 0; k < n; k++) {
        const int sub = (int)(g0 + k) & 7;
        const uint8_t *b = base + (g0 + k) / 8 * at.bytes;
        const uint8_t *c = b + at.codes + sub * lin_code_bytes(kind);
        uint8_t *to = s->tiles + k * 4 * STEP;
        const struct zscales z = load_scales(kind, w, b, sub);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i lo, hi;
            codes_pair(kind, c, j, &lo, &hi);
            put_scaled(to + 128 * j, _mm512_sub_epi8(lo, bias), z.s0);
            put_scaled(to + 512 + 128 * j, _mm512_sub_epi8(hi, bias), z.s1);
        }
        _mm512_store_ps(s->scale[k][0], z.d);
    }
}

#define UNPACK_INT8(kind)                                    \
    case LIN_KIND_##kind:                                    \
        if (LIN_KIND_##kind == LIN_KIND_Q6_K)                \
            unpack_bf16(w, base, g0, n, s);                  \
        else                                                 \
            unpack_int8(LIN_KIND_##kind, w, base, g0, n, s); \
        break;

static void unpack_tile(const struct weight *w, const uint8_t *base, int64_t g0, int n,
                        struct lin_scratch *s)
{
    switch (w->kind) {
        LIN_KINDS_GROUPED(UNPACK_INT8)
    default:
        BUG_ON(true);
    }
}

/* What unpack_tile made of the codes, and so how dots come of them. */
enum dots {
    DOTS_INT8,     /* signed bytes */
    DOTS_UNSIGNED, /* unsigned bytes */
    DOTS_NEGATED,  /* signed bytes of the other sign */
    DOTS_BF16,     /* two tiles of bf16 */
};

static enum dots dots_of(enum lin_kind kind)
{
    switch (kind) {
    case LIN_KIND_Q6_K:
        return DOTS_BF16;
    case LIN_KIND_Q3_K:
        return DOTS_NEGATED;
    case LIN_KIND_MLX8:
        return DOTS_UNSIGNED;
    default:
        return DOTS_INT8;
    }
}

/* --- products and chains --- */

/* What a pass over the rows of x works on. */
struct pass {
    const struct lin_job *job;
    struct lin_scratch *s;
    int64_t tile;
    int u; /* its number in scratch */
    const struct part *p;
};

/* 16 accumulators in: zero, or as kept. */
Z_INLINE void acc_load(__m512 a[TILE], float (*acc)[TILE], bool is_first)
{
#pragma GCC unroll 16
    for (int t = 0; t < TILE; t++)
        a[t] = is_first ? _mm512_setzero_ps() : _mm512_load_ps(acc[t]);
}

Z_INLINE void acc_store(const __m512 a[TILE], float (*acc)[TILE])
{
#pragma GCC unroll 16
    for (int t = 0; t < TILE; t++)
        _mm512_store_ps(acc[t], a[t]);
}

static void store_rows(const struct pass *a, int t0, const __m512 y[TILE])
{
    int n = a->job->n_rows - t0;
#pragma GCC unroll 16
    for (int t = 0; t < TILE; t++)
        if (t < n)
            store_tile(a->job, a->tile, t0 + t, y[t]);
}

/* ad = fma(dot, d * dx, ad) for 16 rows of x. */
Z_INLINE void chain_dots(const enum dots form, __m512 ad[TILE], float (*dot)[TILE], const float *d,
                         const float *dx)
{
    const __m512 dw = _mm512_load_ps(d), zero = _mm512_set1_ps(DOT_ZERO);
#pragma GCC unroll 16
    for (int t = 0; t < TILE; t++) {
        __m512 u = _mm512_load_ps(dot[t]);
        if (form == DOTS_NEGATED)
            u = _mm512_sub_ps(zero, u);
        else if (form != DOTS_BF16)
            u = _mm512_sub_ps(u, zero);
        ad[t] = _mm512_fmadd_ps(u, _mm512_mul_ps(dw, _mm512_set1_ps(dx[t])), ad[t]);
    }
}

/* The group whose product comes next. It runs over the groups of a block of x, then the next block's, and round again: what is
 * computed after the last is not used. */
struct ahead {
    const uint8_t *x; /* the block's part of x */
    int k;            /* group in it */
    int block;
};

/* Bytes of x of a group of a block. */
Z_INLINE int64_t x_step(const bool wide)
{
    return wide ? 2 * STEP : STEP;
}

static const uint8_t *x_base(const struct pass *a, bool wide)
{
    const struct act *x = a->job->x;
    const uint8_t *at = wide ? (const uint8_t *)x->bf16 : (const uint8_t *)x->q;
    return at + a->p->g0 * x_step(wide);
}

Z_INLINE void ahead_step(const bool wide, struct ahead *h, const struct pass *a, int n_blocks)
{
    h->k += 2;
    if (h->k < a->p->n)
        return;
    h->k = 0;
    h->x += a->job->x->n_groups * x_step(wide);
    if (++h->block == n_blocks) {
        h->block = 0;
        h->x = x_base(a, wide);
    }
}

/* Fetched meanwhile, with each group: a quarter of what this block needs of x in the next chunk, into the second-level cache. */
Z_INLINE void fetch_x(const bool wide, const struct ahead *h, const struct pass *a, int i)
{
    const uint8_t *x = h->x + (h->k + i + (wide ? AMX_CHUNK_BF16 : AMX_CHUNK)) * x_step(wide);
    const int part = (int)x_step(wide) / LIN_N_TILES;
#pragma GCC unroll 4
    for (int l = 0; l < part; l += 64)
        _mm_prefetch((const char *)x + a->u * part + l, _MM_HINT_T1);
}

#define GROUP_PRODUCT(C, A, B, i)                                                \
    do {                                                                         \
        const uint8_t *x_ = h.x + (h.k + (i)) * x_step(wide);                    \
        if (wide)                                                                \
            PRODUCT_BF16(C, A, B, x_, s->tiles + (h.k + (i)) * 4 * STEP);        \
        else if (form == DOTS_UNSIGNED)                                          \
            PRODUCT_INT8("tdpbsud", C, A, B, x_, s->tiles + (h.k + (i)) * STEP); \
        else                                                                     \
            PRODUCT_INT8("tdpbssd", C, A, B, x_, s->tiles + (h.k + (i)) * STEP); \
    } while (0)

/* The chains of dots of all rows of x, two groups a step. The products of a step are stored in the next and used in the one after,
 * over the borders of blocks too. An odd last group has a neighbour that is computed from whatever lies there and not used; so are
 * rows of the last block of x that do not exist. */
Z_INLINE void dots_pass(const enum dots form, const struct pass *a)
{
    const bool wide = form == DOTS_BF16;
    struct lin_scratch *s = a->s;
    const int n = a->p->n, n_rows = a->job->n_rows, n_blocks = (n_rows + TILE - 1) / TILE;
    struct ahead h = { x_base(a, wide), 0, 0 };
    const float *dx = a->job->x->d + a->p->g0 * TILE;
    int at = 0;
    GROUP_PRODUCT("0", "4", "6", 0);
    GROUP_PRODUCT("1", "5", "7", 1);
    ahead_step(wide, &h, a, n_blocks);
    TILE_STORE("0", s->dot[0][0]);
    GROUP_PRODUCT("0", "4", "6", 0);
    TILE_STORE("1", s->dot[0][1]);
    GROUP_PRODUCT("1", "5", "7", 1);
    for (int t = 0; t < n_rows; t += TILE, dx += (a->job->x->n_groups - n) * TILE) {
        __m512 ad[TILE];
        if (a->p->is_last)
            for (int64_t r = t; r < min_i64(t + TILE, n_rows);
                 r++) /* the lines that y will go to */
                __builtin_prefetch(a->job->y + r * a->job->y_stride + a->tile * TILE, 1);
        acc_load(ad, &s->acc[a->u][0][t], a->p->is_first);
        for (int k = 0; k < n; k += 2, at ^= 1) {
            ahead_step(wide, &h, a, n_blocks);
            TILE_STORE("0", s->dot[at ^ 1][0]);
            GROUP_PRODUCT("0", "4", "6", 0);
            fetch_x(wide, &h, a, 0);
            chain_dots(form, ad, s->dot[at][0], s->scale[k][0], dx);
            dx += TILE;
            TILE_STORE("1", s->dot[at ^ 1][1]);
            GROUP_PRODUCT("1", "5", "7", 1);
            fetch_x(wide, &h, a, 1);
            if (k + 1 < n) {
                chain_dots(form, ad, s->dot[at][1], s->scale[k + 1][0], dx);
                dx += TILE;
            }
        }
        if (a->p->is_last && !lin_is_affine(a->job->w->kind))
            store_rows(a, t, ad);
        else
            acc_store(ad, &s->acc[a->u][0][t]);
    }
}

/* Minimums of groups [g0, g0 + n) of a tile to scratch; Q2_K's three numbers in s->scale, which no dots need any more. */
static void unpack_mins(const struct weight *w, const uint8_t *base, int64_t g0, int n,
                        struct lin_scratch *s)
{
    for (int k = 0; k < n; k++) {
        const int sub = (int)((g0 + k) & ((1 << w->block.shift) - 1));
        const struct zscales z =
            load_scales(w->kind, w, base + ((g0 + k) >> w->block.shift) * w->block.bytes, sub);
        if (w->kind != LIN_KIND_Q2_K) {
            _mm512_store_ps(s->min[k], z.m);
            continue;
        }
        _mm512_store_ps(s->scale[k][0], z.m);
        _mm512_store_ps(s->scale[k][1], z.o0);
        _mm512_store_ps(s->scale[k][2], z.o1);
    }
}

/* The chains of groups [0, n) in scratch, of 16 rows of x; i: the first one's index in x, which are beside each other. */
Z_INLINE void mins_chain(const bool halves, const struct lin_scratch *s, const struct act *x,
                         int64_t i, int n, __m512 am[TILE])
{
    for (int k = 0; k < n; k++, i += TILE) {
        const __m512 m = _mm512_load_ps(halves ? s->scale[k][0] : s->min[k]);
        const __m512 o0 = _mm512_load_ps(s->scale[halves ? k : 0][1]);
        const __m512 o1 = _mm512_load_ps(s->scale[halves ? k : 0][2]);
#pragma GCC unroll 16
        for (int t = 0; t < TILE; t++)
            am[t] = halves ? chain_mins(am[t], m, o0, o1, x, i + t)
                           : _mm512_fmadd_ps(m, _mm512_set1_ps(x->s[i + t]), am[t]);
    }
}

/* The chains of minimums of groups [g0, g0 + n), and y after the last of them. */
static void mins_part(const struct pass *a, int64_t g0, int n)
{
    struct lin_scratch *s = a->s;
    const struct act *x = a->job->x;
    const bool is_last = g0 + n == x->n_groups;
    for (int t0 = 0; t0 < a->job->n_rows; t0 += TILE) {
        const int64_t i = act_index(x, t0, g0);
        __m512 am[TILE];
        acc_load(am, &s->acc[a->u][1][t0], g0 == 0);
        if (a->job->w->kind == LIN_KIND_Q2_K)
            mins_chain(true, s, x, i, n, am);
        else
            mins_chain(false, s, x, i, n, am);
        if (!is_last) {
            acc_store(am, &s->acc[a->u][1][t0]);
            continue;
        }
#pragma GCC unroll 16
        for (int t = 0; t < TILE; t++)
            am[t] = _mm512_add_ps(_mm512_load_ps(s->acc[a->u][0][t0 + t]), am[t]);
        store_rows(a, t0, am);
    }
}

/* Of whole rows at once: then their accumulators need not be kept, and the sums of x are one stream. */
static void mins_pass(const struct pass *a, const uint8_t *base)
{
    const int64_t n_groups = a->job->x->n_groups;
    const int64_t size = a->job->w->kind == LIN_KIND_Q2_K ? LIN_CHUNK : LIN_MINS;
    for (int64_t g = 0; g < n_groups; g += size) {
        int n = (int)min_i64(size, n_groups - g);
        unpack_mins(a->job->w, base, g, n, a->s);
        mins_part(a, g, n);
    }
}

static void fetch_chunk(const uint8_t *at, size_t bytes)
{
    for (size_t l = 0; l < bytes; l += 64)
        _mm_prefetch((const char *)at + l, _MM_HINT_T1);
}

/* See chunk_fn. */
static void chunk(const struct lin_job *j, int64_t tile, struct lin_scratch *s, int u,
                  const struct part *p)
{
    const enum lin_kind kind = j->w->kind;
    const struct pass a = { j, s, tile, u, p };
    const uint8_t *base = j->w->data + (size_t)tile * j->w->tile_bytes;
    unpack_tile(j->w, base, p->g0, p->n, s);
    fetch_chunk(p->fetch, (size_t)(p->n * (j->w->block.bytes >> j->w->block.shift)));
    switch (dots_of(kind)) {
    case DOTS_BF16:
        dots_pass(DOTS_BF16, &a);
        break;
    case DOTS_NEGATED:
        dots_pass(DOTS_NEGATED, &a);
        break;
    case DOTS_UNSIGNED:
        dots_pass(DOTS_UNSIGNED, &a);
        break;
    default:
        dots_pass(DOTS_INT8, &a);
    }
    if (p->is_last && lin_is_affine(kind))
        mins_pass(&a, base);
}

static void grouped(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    const bool wide = j->w->kind == LIN_KIND_Q6_K;
    if (j->n_rows > DIRECT_MAX && j->n_rows <= FEW_ROWS_MAX) {
        linear_few_grouped(j, tile0, tile1, s);
        return;
    }
    if (j->n_rows <= DIRECT_MAX || (wide && j->n_rows < BF16_ROWS_MIN)) {
        lin_ops_avx512.grouped(j, tile0, tile1, s);
        return;
    }
    tiles_configure(wide ? &tiles_bf16 : &tiles_int8);
    through_scratch(j, tile0, tile1, s, chunk, wide ? AMX_CHUNK_BF16 : AMX_CHUNK);
    tiles_release();
}

static void plain(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    lin_ops_avx512.plain(j, tile0, tile1, s);
}

const struct lin_ops lin_ops_amx = { "amx", grouped, plain, BF16_ROWS_MIN };
