/* Matrix products with AVX-512 VNNI. */
#include "kernels/cpu/linear_zmm.h"
#include "kernels/cpu/plain_impl.h"

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
                          direct_##kind##_7, direct_##kind##_8 },

LIN_KINDS_GROUPED(DIRECT_ALL)

static direct_fn *const direct_of[LIN_KIND_GROUPED][DIRECT_MAX] = { LIN_KINDS_GROUPED(DIRECT_ROW) };

#define BLOCK_MAX 8 /* rows of x that pass over the scratch together */

/* A job's part in scratch: what block() works on. */
struct pass {
    const struct lin_job *job;
    int64_t tile;
    struct lin_scratch *s;
    int u; /* the tile's number in scratch */
    const struct part *p;
    const int32_t *neg; /* undoes the bias; NULL exactly if affine */
};

/* What the chains of unpacked groups are. */
enum form {
    FORM_PLAIN,
    FORM_AFFINE,
    FORM_HALVES,
    FORM_MINS, /* affine, the minimum of each half times an integer in s->min */
};

/* The groups in scratch times rows [t0, t0 + nt) of x. form and nt are constants at each call. The first rows fetch what is
 * unpacked next, a group's bytes with each group. */
Z_INLINE void block(const enum form form, const int nt, const struct pass *a, int t0)
{
    const bool affine = form == FORM_AFFINE || form == FORM_MINS, halves = form == FORM_HALVES;
    const struct act *x = a->job->x;
    const struct part *p = a->p;
    struct lin_scratch *s = a->s;
    const int32_t *neg = a->neg;
    const struct lin_block *at = &a->job->w->block;
    const int next_step = t0 == 0 ? at->bytes >> at->shift : 0;
    int64_t i = act_index(x, t0, p->g0);
    __m512 ad[BLOCK_MAX], am[BLOCK_MAX];
    if (p->is_last)
        for (int t = 0; t < nt; t++) /* the lines that y will be stored to */
            __builtin_prefetch(a->job->y + (t0 + t) * a->job->y_stride + a->tile * TILE, 1);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
        ad[t] = am[t] = _mm512_setzero_ps();
        if (!p->is_first) {
            ad[t] = _mm512_load_ps(s->acc[a->u][0][t0 + t]);
            if (affine)
                am[t] = _mm512_load_ps(s->acc[a->u][1][t0 + t]);
        }
    }
    for (int k = 0; k < p->n; k++, i += x->mb) {
        const int8_t *q = x->q + i * GROUP;
        __m512i dot[BLOCK_MAX], dot1[BLOCK_MAX];
        for (int l = 0; l < next_step; l += 64)
            _mm_prefetch((const char *)p->fetch + k * next_step + l, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            dot[t] = affine ? _mm512_setzero_si512() : _mm512_set1_epi32(neg[i + t]);
            if (halves)
                dot1[t] = _mm512_set1_epi32(x->neg32_1[i + t]);
        }
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m512i w = _mm512_load_si512(&s->codes[k][64 * j]);
#pragma GCC unroll 8
            for (int t = 0; t < nt; t++)
                dp(halves && j >= 4 ? &dot1[t] : &dot[t], w, q + t * GROUP + 4 * j);
        }
        const __m512 m = _mm512_load_ps(s->scale[k][1]), m1 = _mm512_load_ps(s->scale[k][2]);
        const struct zscales z = { _mm512_load_ps(s->scale[k][0]),
                                   m,
                                   m,
                                   m1,
                                   _mm512_load_ps(s->min[form == FORM_MINS ? 2 * k : 0]),
                                   _mm512_load_ps(s->min[form == FORM_MINS ? 2 * k + 1 : 0]) };
        const enum lin_kind like = form == FORM_HALVES ? LIN_KIND_Q6_K
                                   : affine            ? LIN_KIND_Q4_1
                                                       : LIN_KIND_Q4_0;
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            chain(form == FORM_MINS ? LIN_KIND_Q4_0 : like, dot[t], halves ? dot1[t] : dot[t], &z,
                  x, i + t, &ad[t], &am[t]);
            if (form == FORM_MINS)
                am[t] = chain_mins(am[t], z.m, z.o0, z.o1, x, i + t);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
        if (p->is_last) {
            store_tile(a->job, a->tile, t0 + t, affine ? _mm512_add_ps(ad[t], am[t]) : ad[t]);
            continue;
        }
        _mm512_store_ps(s->acc[a->u][0][t0 + t], ad[t]);
        if (affine)
            _mm512_store_ps(s->acc[a->u][1][t0 + t], am[t]);
    }
}

/* As block, nt any number up to BLOCK_MAX. */
Z_INLINE void block_any(const enum form form, int nt, const struct pass *a, int t0)
{
    switch (nt) {
    case 1:
        block(form, 1, a, t0);
        break;
    case 2:
        block(form, 2, a, t0);
        break;
    case 3:
        block(form, 3, a, t0);
        break;
    case 4:
        block(form, 4, a, t0);
        break;
    case 5:
        block(form, 5, a, t0);
        break;
    case 6:
        block(form, 6, a, t0);
        break;
    case 7:
        block(form, 7, a, t0);
        break;
    default:
        block(form, BLOCK_MAX, a, t0);
        break;
    }
}

/* See chunk_fn. */
static void chunk(const struct lin_job *j, int64_t tile, struct lin_scratch *s, int u,
                  const struct part *p)
{
    const enum lin_kind kind = j->w->kind;
    const struct pass a = { j, tile, s, u, p, neg_of(unpacked_bias(kind), j->x) };
    unpack_any(j->w, j->w->data + (size_t)tile * j->w->tile_bytes, p->g0, p->n, s);
    for (int t = 0; t < j->n_rows; t += BLOCK_MAX) {
        int nt = (int)min_i64(BLOCK_MAX, j->n_rows - t);
        if (lin_scales(kind) == LIN_SCALES_MINS)
            block_any(FORM_MINS, nt, &a, t);
        else if (lin_has_halves(kind))
            block_any(FORM_HALVES, nt, &a, t);
        else if (lin_is_affine(kind))
            block_any(FORM_AFFINE, nt, &a, t);
        else
            block_any(FORM_PLAIN, nt, &a, t);
    }
}

static void grouped(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    if (j->n_rows > DIRECT_MAX) {
        through_scratch(j, tile0, tile1, s, chunk, LIN_CHUNK);
        return;
    }
    direct_fn *fn = direct_of[j->w->kind][j->n_rows - 1];
    for (int64_t tile = tile0; tile < tile1; tile++)
        fn(j, 0, tile);
}

const struct lin_ops lin_ops_avx512 = { "avx512", grouped, plain, 0 };
