/* Matrix products with AMX tiles, for many rows of x. Few rows go the AVX-512 way, and so does
 * Q6_K: its scales change every 16 elements, and half-filled tile products cost what full ones do (no gain measured).
 *
 * A tile product of 16 rows of x, 16 rows of w and one group of 32 gives the exact integer dots; the two f32 chains are then
 * AVX-512's, so the bits are the same. The tile unit works beside the vector unit: tile products run a batch
 * of groups ahead of the chains. Their results pass through memory (there is no other way from a tile to a vector register).
 * The tile instructions are spelled in asm: gcc 12's intrinsics declare neither the memory that they read nor all of the
 * configuration, so stores to it may legally be moved. Nothing else in this file touches tile registers. */
#include "kernels/cpu/linear_zmm.h"

#define AMX_ROWS_MIN 48 /* under this the tiles do not win */

/* C: tmm0, tmm1; A (x): tmm4, tmm5; B (w): tmm6, tmm7. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

/* Per call: the registers are released at its end, so that a thread that is switched out does not carry 8 KiB of tiles. */
static void tiles_configure(void)
{
    struct tile_config c = { .palette = 1 };
    for (int i = 0; i < 2; i++) {
        c.rows[i] = 16, c.colsb[i] = 64;
        c.rows[4 + i] = 16, c.colsb[4 + i] = GROUP;
        c.rows[6 + i] = GROUP / 4, c.colsb[6 + i] = 64;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

static void tiles_release(void)
{
    __asm__ volatile("tilerelease");
}

/* C = x q * w codes, exact: [row of x][row of w]. */
#define TILE_PRODUCT(C, A, B, q, codes)                                  \
    __asm__ volatile("tilezero %%tmm" C "\n\t"                           \
                     "tileloadd (%0,%2,1), %%tmm" A "\n\t"               \
                     "tileloadd (%1,%3,1), %%tmm" B "\n\t"               \
                     "tdpbssd %%tmm" B ", %%tmm" A ", %%tmm" C ::"r"(q), \
                     "r"(codes), "r"((int64_t)GROUP), "r"((int64_t)64)   \
                     : "memory")
#define TILE_STORE(C, dot) \
    __asm__ volatile("tilestored %%tmm" C ", (%0,%1,1)" ::"r"(dot), "r"((int64_t)64) : "memory")

/* Number `slot` of a batch: its product, then the store of the one before, which has had time to finish (measured: 10.3 against
 * 12.3 ns a group). */
Z_INLINE void tile_group(struct lin_scratch *s, int k, int slot, const int8_t *q)
{
    if (slot % 2) {
        TILE_PRODUCT("1", "5", "7", q, s->codes[k]);
        TILE_STORE("0", s->dot[slot - 1]);
    } else {
        TILE_PRODUCT("0", "4", "6", q, s->codes[k]);
        if (slot)
            TILE_STORE("1", s->dot[slot - 1]);
    }
}

Z_INLINE void tile_last(struct lin_scratch *s, int slot)
{
    if (slot % 2)
        TILE_STORE("1", s->dot[slot]);
    else
        TILE_STORE("0", s->dot[slot]);
}

/* Where the activations of the next work lie, fetched meanwhile: tile loads would wait for every line. */
struct ahead {
    const int8_t *q_near; /* the next 16 rows, this chunk: into the first-level cache */
    const float *d_near;
    const int8_t
        *q_far; /* these rows, next chunk: into the second-level one, a part with each tile */
    int far_line;
};

Z_INLINE void fetch_ahead(const struct ahead *a, int k)
{
#pragma GCC unroll 8
    for (int l = 0; l < TILE * GROUP; l += 64)
        _mm_prefetch((const char *)a->q_near + k * TILE * GROUP + l, _MM_HINT_T0);
    _mm_prefetch((const char *)(a->d_near + k * TILE), _MM_HINT_T0);
    const char *far = (const char *)a->q_far + k * TILE * GROUP + 64 * a->far_line;
    _mm_prefetch(far, _MM_HINT_T1);
    _mm_prefetch(far + 64, _MM_HINT_T1);
}

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

/* The chain of dots, 16 rows of x at once. i: their first index in x's arrays. */
static void dots_block(const struct act *x, int64_t i, const struct part *p, struct lin_scratch *s,
                       float (*acc)[TILE], const struct ahead *ahead)
{
    const int8_t *q = x->q + i * GROUP;
    const float *dx = x->d + i;
    __m512 ad[TILE];
    acc_load(ad, acc, p->is_first);
    for (int k0 = 0; k0 < p->n; k0 += LIN_BATCH) {
        const int m = p->n - k0 < LIN_BATCH ? p->n - k0 : LIN_BATCH;
        for (int b = 0; b < m; b++) {
            tile_group(s, k0 + b, b, q + (k0 + b) * TILE * GROUP);
            fetch_ahead(ahead, k0 + b);
        }
        tile_last(s, m - 1);
        for (int b = 0; b < m; b++, dx += TILE) {
            const __m512 d = _mm512_load_ps(s->scale[k0 + b][0]);
#pragma GCC unroll 16
            for (int t = 0; t < TILE; t++)
                ad[t] = _mm512_fmadd_ps(to_f32(_mm512_load_si512(s->dot[b][t])),
                                        _mm512_mul_ps(d, _mm512_set1_ps(dx[t])), ad[t]);
        }
    }
    acc_store(ad, acc);
}

/* The chain of minimums: it needs no dots, so it is a pass of its own (16 accumulators more would not fit the registers). */
static void mins_block(const struct act *x, int64_t i, const struct part *p, struct lin_scratch *s,
                       float (*acc)[TILE])
{
    const float *sx = x->s + i;
    __m512 am[TILE];
    acc_load(am, acc, p->is_first);
    for (int k = 0; k < p->n; k++, sx += TILE) {
        const __m512 m = _mm512_load_ps(s->scale[k][1]);
#pragma GCC unroll 16
        for (int t = 0; t < TILE; t++)
            am[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(sx[t]), am[t]);
    }
    acc_store(am, acc);
}

static void store_rows(const struct lin_job *j, int64_t tile, int64_t t0, struct lin_scratch *s,
                       int u, bool affine)
{
    for (int64_t t = t0; t < min_i64(t0 + TILE, j->n_rows); t++) {
        __m512 y = _mm512_load_ps(s->acc[u][0][t]);
        store_tile(j, tile, t, affine ? _mm512_add_ps(y, _mm512_load_ps(s->acc[u][1][t])) : y);
    }
}

static void fetch_chunk(const uint8_t *at, size_t bytes)
{
    for (size_t l = 0; l < bytes; l += 64)
        _mm_prefetch((const char *)at + l, _MM_HINT_T1);
}

/* See chunk_fn. Rows of the last block of x that do not exist are computed from whatever lies there, and not stored. */
static void chunk(const struct lin_job *j, int64_t tile, struct lin_scratch *s, int u,
                  const struct part *p)
{
    const enum lin_kind kind = j->w->kind;
    const struct act *x = j->x;
    const bool affine = lin_is_affine(kind);
    unpack_any(kind, true, j->w->data + (size_t)tile * j->w->tile_bytes, p->g0, p->n, s);
    fetch_chunk(p->fetch, (size_t)(p->n * (lin_block_bytes(kind) >> lin_log2_groups(kind))));
    for (int t = 0; t < j->n_rows; t += TILE) {
        int64_t i = act_index(x, t, p->g0);
        int64_t next = act_index(x, t + TILE < j->n_rows ? t + TILE : 0, p->g0);
        struct ahead ahead = { x->q + next * GROUP, x->d + next,
                               x->q + (i + (int64_t)LIN_CHUNK * TILE) * GROUP, 2 * u };
        if (p->is_last)
            for (int64_t r = t; r < min_i64(t + TILE, j->n_rows); r++)
                __builtin_prefetch(j->y + r * j->y_stride + tile * TILE, 1);
        dots_block(x, i, p, s, &s->acc[u][0][t], &ahead);
        if (affine)
            mins_block(x, i, p, s, &s->acc[u][1][t]);
        if (p->is_last)
            store_rows(j, tile, t, s, u, affine);
    }
}

static void grouped(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    if (j->n_rows < AMX_ROWS_MIN || j->w->kind == LIN_KIND_Q6_K) {
        lin_ops_avx512.grouped(j, tile0, tile1, s);
        return;
    }
    tiles_configure();
    through_scratch(j, tile0, tile1, s, chunk);
    tiles_release();
}

static void plain(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    lin_ops_avx512.plain(j, tile0, tile1, s);
}

const struct lin_ops lin_ops_amx = { "amx", grouped, plain };
