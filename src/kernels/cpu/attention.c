/* Attention over pages (kv.c).
 *
 * A query is one head of one row. The queries of a kv head, row by row, are cut into slices; a slice walks the pages once,
 * widening each page's K and V once for all its queries. Blocks of 64 positions are computed each from nothing and merged in
 * position order, so where there are fewer slices than threads the blocks themselves are spread over them, with the same bits. */
#include "kernels/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#define P             KV_PAGE_TOKENS
#define SLICE         48 /* queries of a slice */
#define BY_BLOCKS_MIN 8  /* blocks of a slice from which it pays to spread them over threads */
#define PART_FLOATS   ((size_t)1 << 20) /* of block results that wait to be merged */

struct attn_scratch {
    _Alignas(64) float page[P * BACKEND_HEAD_DIM_MAX]; /* K or V widened */
    _Alignas(64) float w[SLICE][P];                    /* scores, then weights */
    _Alignas(64) float acc[SLICE][BACKEND_HEAD_DIM_MAX];
    _Alignas(64) float part[ATTN_QUERIES][BACKEND_HEAD_DIM_MAX];
    float m[SLICE], l[SLICE];   /* running */
    float mb[SLICE], lb[SLICE]; /* of the block */
    bool bad[SLICE];            /* a score was not finite */
};

/* The queries of one kv head of one sequence that go together. */
struct slice {
    const struct seq_view *seq;
    int g;      /* kv head */
    int q0, q1; /* queries [q0, q1): query i is head g * per + i % per of row i / per */
};

struct attn_job {
    struct cpu_state *st;
    struct tensor out, q;
    const struct kv_layer *kv;
    const struct attn_params *p;
    const struct seq_view *seqs;
    int n_seqs;
    int per;     /* query heads of a kv head */
    int slice_q; /* queries of a slice */
    /* blocks spread over threads: one slice */
    struct slice one;
    int32_t b0, n_blocks; /* blocks [b0, b0 + n_blocks) of this round */
    float *
        parts; /* [n_blocks][queries][head_dim + 2]: m, l, then weighted V; l < 0: not finite; l = 0: none */
};

/* One per thread, and one for the state of attend_by_blocks. */
#define SCRATCHES(threads) ((size_t)((threads) + 1) * sizeof(struct attn_scratch))

bool cpu_attention_init(struct cpu_state *st, int threads)
{
    st->attn_scratch = mem_try_big(MEM_CAT_SCRATCH, SCRATCHES(threads));
    st->attn_parts = mem_try_big(MEM_CAT_SCRATCH, PART_FLOATS * sizeof(float));
    return st->attn_scratch && st->attn_parts;
}

void cpu_attention_release(struct cpu_state *st, int threads)
{
    mem_free_big(MEM_CAT_SCRATCH, st->attn_scratch, SCRATCHES(threads));
    mem_free_big(MEM_CAT_SCRATCH, st->attn_parts, PART_FLOATS * sizeof(float));
}

static int32_t query_pos(const struct attn_job *j, const struct slice *s, int q)
{
    return s->seq->pos0 + q / j->per;
}

static int query_head(const struct attn_job *j, const struct slice *s, int q)
{
    return s->g * j->per + q % j->per;
}

static int64_t query_row(const struct attn_job *j, const struct slice *s, int q)
{
    return s->seq->row0 + q / j->per;
}

static int32_t first_key(const struct attn_job *j, int32_t pos)
{
    int32_t w = j->p->window;
    return w && pos >= w ? pos - w + 1 : 0;
}

/* Keys [j0, j1) of block b that query q looks at; false: none. */
static bool query_range(const struct attn_job *j, const struct slice *s, int q, int32_t b, int *j0,
                        int *j1)
{
    int32_t pos = query_pos(j, s, q), lo = first_key(j, pos) - b * P, hi = pos + 1 - b * P;
    *j0 = lo > 0 ? lo : 0;
    *j1 = hi < P ? hi : P;
    return *j0 < *j1;
}

static const float *page_wide(const struct attn_job *j, struct attn_scratch *x,
                              const struct slice *s, int32_t b, int v)
{
    return cpu_kv_wide(j->st, j->kv, s->seq, b, s->g, v, x->page);
}

/* Weights, maximum and sum of block b for every query of the slice. */
static void block_weights(const struct attn_job *j, struct attn_scratch *x, const struct slice *s,
                          int32_t b)
{
    const float *k = page_wide(j, x, s, b, 0);
    int n = s->q1 - s->q0, d = j->kv->head_dim;
    for (int i0 = 0; i0 < n; i0 += ATTN_QUERIES) {
        int m = n - i0 < ATTN_QUERIES ? n - i0 : ATTN_QUERIES;
        const float *a[ATTN_QUERIES];
        float *c[ATTN_QUERIES];
        for (int i = 0; i < m; i++) {
            int q = s->q0 + i0 + i;
            a[i] = j->q.data + query_row(j, s, q) * j->q.stride + query_head(j, s, q) * d;
            c[i] = x->w[i0 + i];
        }
        j->st->attn.product(c, a, m, k, P, 0, d, P);
    }
    for (int i = 0; i < n; i++) {
        int j0, j1;
        x->lb[i] = 0;
        if (x->bad[i] || !query_range(j, s, s->q0 + i, b, &j0, &j1))
            continue;
        if (!j->st->attn.weights(x->w[i], j0, j1, j->p->scale, j->p->softcap, &x->mb[i], &x->lb[i]))
            x->bad[i] = true;
    }
}

/* How many queries from i on look at the same keys of the block (so that they can share a pass over V). */
static int same_range(const struct attn_job *j, const struct slice *s, const struct attn_scratch *x,
                      int i, int32_t b, int *j0, int *j1)
{
    int n = 0;
    *j0 = *j1 = 0;
    for (; i + n < s->q1 - s->q0 && n < ATTN_QUERIES; n++) {
        int a0, a1;
        bool any = query_range(j, s, s->q0 + i + n, b, &a0, &a1) && !x->bad[i + n];
        if (!any || (n > 0 && (a0 != *j0 || a1 != *j1)))
            break;
        *j0 = a0;
        *j1 = a1;
    }
    return n;
}

/* Weighted V of block b for each query, given to `take` (results in x->part). */
typedef void take_fn(const struct attn_job *j, struct attn_scratch *x, int i, int32_t b,
                     const float *part);

static void block_values(const struct attn_job *j, struct attn_scratch *x, const struct slice *s,
                         int32_t b, take_fn *take)
{
    const float *v = page_wide(j, x, s, b, 1);
    int d = j->kv->head_dim;
    for (int i = 0; i < s->q1 - s->q0;) {
        int j0, j1;
        int m = same_range(j, s, x, i, b, &j0, &j1);
        if (m == 0) {
            i++;
            continue;
        }
        const float *a[ATTN_QUERIES];
        float *c[ATTN_QUERIES];
        for (int k = 0; k < m; k++) {
            a[k] = x->w[i + k];
            c[k] = x->part[k];
        }
        j->st->attn.product(c, a, m, v, d, j0, j1, d);
        for (int k = 0; k < m; k++)
            take(j, x, i + k, b, x->part[k]);
        i += m;
    }
}

static void merge_one(const struct attn_job *j, struct attn_scratch *x, int i, float mb, float lb,
                      const float *part)
{
    j->st->attn.merge(x->acc[i], &x->m[i], &x->l[i], part, j->kv->head_dim, mb, lb);
}

static void take_merge(const struct attn_job *j, struct attn_scratch *x, int i, int32_t b,
                       const float *part)
{
    merge_one(j, x, i, x->mb[i], x->lb[i], part);
}

static void slice_start(const struct attn_job *j, struct attn_scratch *x, const struct slice *s)
{
    for (int i = 0; i < s->q1 - s->q0; i++) {
        x->m[i] = j->p->sinks ? j->p->sinks[query_head(j, s, s->q0 + i)] : -INFINITY;
        x->l[i] = j->p->sinks ? 1 : 0;
        x->bad[i] = false;
        memset(x->acc[i], 0, (size_t)j->kv->head_dim * sizeof(float));
    }
}

static void slice_finish(const struct attn_job *j, struct attn_scratch *x, const struct slice *s)
{
    int d = j->kv->head_dim;
    for (int i = 0; i < s->q1 - s->q0; i++) {
        int64_t row = query_row(j, s, s->q0 + i);
        float *y = j->out.data + row * j->out.stride + query_head(j, s, s->q0 + i) * d;
        if (!x->bad[i] && j->st->attn.finish(y, x->acc[i], d, 1.0f / x->l[i]))
            continue;
        memset(y, 0, (size_t)d * sizeof(float));
        __atomic_store_n(&j->st->flags[row], 1, __ATOMIC_RELAXED);
    }
}

static int32_t slice_first_block(const struct attn_job *j, const struct slice *s)
{
    return first_key(j, query_pos(j, s, s->q0)) / P;
}

static int32_t slice_end_block(const struct attn_job *j, const struct slice *s)
{
    return query_pos(j, s, s->q1 - 1) / P + 1;
}

/* Slice number i of the job: sequences, kv heads and slices of a head's queries, in that order. */
static struct slice slice_at(const struct attn_job *j, int64_t i)
{
    for (int s = 0; s < j->n_seqs; s++) {
        int n = j->seqs[s].n_rows * j->per;
        int64_t slices = (n + j->slice_q - 1) / j->slice_q;
        if (i < slices * j->kv->n_kv_heads) {
            int q0 = (int)(i % slices) * j->slice_q;
            return (struct slice){ &j->seqs[s], (int)(i / slices), q0,
                                   q0 + j->slice_q < n ? q0 + j->slice_q : n };
        }
        i -= slices * j->kv->n_kv_heads;
    }
    BUG_ON(true);
}

static int64_t count_slices(const struct attn_job *j)
{
    int64_t n = 0;
    for (int s = 0; s < j->n_seqs; s++)
        n +=
            (int64_t)(j->seqs[s].n_rows * j->per + j->slice_q - 1) / j->slice_q * j->kv->n_kv_heads;
    return n;
}

static void attend_slice(void *ctx, int64_t chunk, int thread)
{
    const struct attn_job *j = ctx;
    struct attn_scratch *x = &j->st->attn_scratch[thread];
    struct slice s = slice_at(j, chunk);
    slice_start(j, x, &s);
    for (int32_t b = slice_first_block(j, &s); b < slice_end_block(j, &s); b++) {
        block_weights(j, x, &s, b);
        block_values(j, x, &s, b, take_merge);
    }
    slice_finish(j, x, &s);
}

/* --- one slice, its blocks spread over threads --- */

static float *part_at(const struct attn_job *j, int32_t block, int i)
{
    int n = j->one.q1 - j->one.q0;
    return j->parts + ((size_t)block * (size_t)n + (size_t)i) * (size_t)(j->kv->head_dim + 2);
}

static void take_keep(const struct attn_job *j, struct attn_scratch *x, int i, int32_t b,
                      const float *part)
{
    float *to = part_at(j, b - j->b0, i);
    to[0] = x->mb[i];
    to[1] = x->lb[i];
    memcpy(to + 2, part, (size_t)j->kv->head_dim * sizeof(float));
}

static void attend_block(void *ctx, int64_t chunk, int thread)
{
    const struct attn_job *j = ctx;
    struct attn_scratch *x = &j->st->attn_scratch[thread];
    int n = j->one.q1 - j->one.q0;
    int32_t b = j->b0 + (int32_t)chunk;
    for (int i = 0; i < n; i++)
        x->bad[i] = false;
    block_weights(j, x, &j->one, b);
    for (int i = 0; i < n; i++)
        part_at(j, (int32_t)chunk, i)[1] = x->bad[i] ? -1 : 0;
    block_values(j, x, &j->one, b, take_keep);
}

/* Rounds of as many blocks as the buffer holds; then merged in position order by the calling thread. */
static void attend_by_blocks(struct attn_job *j)
{
    struct attn_scratch *x = &j->st->attn_scratch[pool_threads(j->st->pool)]; /* of no thread */
    int n = j->one.q1 - j->one.q0;
    int32_t room = (int32_t)(PART_FLOATS / ((size_t)n * (size_t)(j->kv->head_dim + 2)));
    int32_t end = slice_end_block(j, &j->one);
    j->parts = j->st->attn_parts;
    slice_start(j, x, &j->one);
    for (int32_t b = slice_first_block(j, &j->one); b < end; b += room) {
        j->b0 = b;
        j->n_blocks = end - b < room ? end - b : room;
        pool_run(j->st->pool, attend_block, j, j->n_blocks);
        for (int32_t k = 0; k < j->n_blocks; k++) {
            for (int i = 0; i < n; i++) {
                const float *from = part_at(j, k, i);
                if (from[1] > 0 && !x->bad[i])
                    merge_one(j, x, i, from[0], from[1], from + 2);
                else if (from[1] < 0)
                    x->bad[i] = true;
            }
        }
    }
    slice_finish(j, x, &j->one);
}

/* Queries of a slice: whole rows where they fit, few enough that every thread gets some slices, many enough that widening a
 * page (as costly as about two queries) is shared. */
static int choose_slice(const struct attn_job *j)
{
    int64_t total = 0;
    for (int s = 0; s < j->n_seqs; s++)
        total += (int64_t)j->seqs[s].n_rows * j->per * j->kv->n_kv_heads;
    int64_t q = total / (4 * pool_threads(j->st->pool));
    q = q > SLICE ? SLICE : q < 2 * ATTN_QUERIES ? 2 * ATTN_QUERIES : q;
    if (j->per >= q)
        return j->per < SLICE ? j->per : SLICE;
    return (int)(q / j->per * j->per);
}

void cpu_attention(struct backend *be, struct tensor out, struct tensor q,
                   const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                   const struct attn_params *p)
{
    struct cpu_state *st = cpu_of(be);
    struct attn_job j = { .st = st, .out = out, .q = q, .kv = kv, .p = p, .seqs = seqs };
    j.n_seqs = n_seqs;
    j.per = p->n_heads / kv->n_kv_heads;
    j.slice_q = choose_slice(&j);
    int threads = pool_threads(st->pool);
    int64_t n = count_slices(&j);
    if (threads == 1 || n >= 2 * threads) {
        pool_run(st->pool, attend_slice, &j, n);
        return;
    }
    int64_t blocks = 0;
    for (int64_t i = 0; i < n; i++) {
        struct slice s = slice_at(&j, i);
        blocks += slice_end_block(&j, &s) - slice_first_block(&j, &s);
    }
    if (blocks < BY_BLOCKS_MIN * n) {
        pool_run(st->pool, attend_slice, &j, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        j.one = slice_at(&j, i);
        attend_by_blocks(&j);
    }
}
