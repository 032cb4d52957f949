/* Attention over pages (kv.c).
 *
 * A query is one head of one row. The queries of a kv head, row by row, are cut into slices; a slice walks the pages once, each
 * K and V read once for all its queries. Blocks of 64 positions are computed each from nothing and merged in position order.
 *
 * With many slices a thread takes one at a time. With few, a thread that finds none left takes blocks of another's slice, the last
 * ones first; their results wait in memory until they are merged in order. So two threads with a kv head each share nothing,
 * and any number of threads come to their end together: with the same bits, for a block is the same whoever computes it. */
#include "kernels/cpu/cpu_int.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define P     KV_PAGE_TOKENS
#define SLICE 48 /* queries of a slice, at most */
/* Slices a thread from which they are taken whole: the last ones then cost at most a quarter of a thread's time. */
#define SLICES_MANY 4
/* For each thread: results of blocks that wait to be merged. Two threads at one row of the 1.5B get 10,000 positions into a round. */
#define PART_FLOATS ((size_t)1 << 17)

/* What a thread needs for a block. */
struct attn_scratch {
    _Alignas(64) float page[P * BACKEND_HEAD_DIM_MAX]; /* K or V widened */
    _Alignas(64) float w[SLICE][P];                    /* scores, then weights */
    float mb[SLICE], lb[SLICE];                        /* maximum and sum of the weights */
    float alpha[SLICE], beta[SLICE];
    bool bad[SLICE]; /* a score was not finite */
    /* the queries of the slice at hand, and the range of the block that each looks at */
    const float *q[SLICE];
    int32_t pos[SLICE], end[SLICE]; /* positions; behind the last key */
    int j0[SLICE], j1[SLICE];
};

/* The queries of one kv head of one sequence that go together. */
struct slice {
    const struct seq_view *seq;
    int g;      /* kv head */
    int q0, q1; /* queries [q0, q1): query i is head g * per + i % per of row i / per */
};

/* A slice under way. */
struct attn_run {
    _Alignas(64) _Atomic uint64_t range; /* blocks not taken yet: first << 32 | end */
    struct slice s;
    int32_t b0, b1; /* blocks of this round */
    _Alignas(64) float acc[SLICE * BACKEND_HEAD_DIM_MAX];
    float m[SLICE], l[SLICE];
    bool bad[SLICE];
};

struct attn_job {
    struct cpu_state *st;
    struct tensor out, q;
    const struct kv_layer *kv;
    const struct attn_params *p;
    const struct seq_view *seqs;
    int n_seqs;
    int per;     /* query heads of a kv head */
    int slice_q; /* queries of a slice, at most */
    /* few slices, shared: run i is slice i */
    int n_runs;
    _Atomic int next_run;
    int32_t round_blocks; /* of a slice in a round: as many as there is room for parts */
    bool is_last;         /* round */
};

#define RUNS(threads)       ((size_t)(threads)*SLICES_MANY)
#define RUN_BYTES(threads)  (RUNS(threads) * sizeof(struct attn_run))
#define PART_BYTES(threads) ((size_t)(threads)*PART_FLOATS * sizeof(float))

bool cpu_attention_init(struct cpu_state *st, int threads)
{
    st->attn_scratch = mem_try_big(MEM_CAT_SCRATCH, (size_t)threads * sizeof(struct attn_scratch));
    st->attn_runs = mem_try_big(MEM_CAT_SCRATCH, RUN_BYTES(threads));
    st->attn_parts = mem_try_big(MEM_CAT_SCRATCH, PART_BYTES(threads));
    return st->attn_scratch && st->attn_runs && st->attn_parts;
}

void cpu_attention_release(struct cpu_state *st, int threads)
{
    mem_free_big(MEM_CAT_SCRATCH, st->attn_scratch, (size_t)threads * sizeof(struct attn_scratch));
    mem_free_big(MEM_CAT_SCRATCH, st->attn_runs, RUN_BYTES(threads));
    mem_free_big(MEM_CAT_SCRATCH, st->attn_parts, PART_BYTES(threads));
}

/* --- slices --- */

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

static int32_t slice_first_block(const struct attn_job *j, const struct slice *s)
{
    return first_key(j, query_pos(j, s, s->q0)) / P;
}

static int32_t slice_end_block(const struct attn_job *j, const struct slice *s)
{
    return (attn_end(j->p, s->seq, query_pos(j, s, s->q1 - 1)) - 1) / P + 1;
}

static int64_t slices_of_head(const struct attn_job *j, const struct seq_view *seq)
{
    return ((int64_t)seq->n_rows * j->per + j->slice_q - 1) / j->slice_q;
}

static int64_t count_slices(const struct attn_job *j)
{
    int64_t n = 0;
    for (int s = 0; s < j->n_seqs; s++)
        n += slices_of_head(j, &j->seqs[s]) * j->kv->n_kv_heads;
    return n;
}

/* Slice number i of the job: sequences, kv heads and slices of a head's queries, in that order. */
static struct slice slice_at(const struct attn_job *j, int64_t i)
{
    for (int s = 0; s < j->n_seqs; s++) {
        int n = j->seqs[s].n_rows * j->per;
        int64_t slices = slices_of_head(j, &j->seqs[s]);
        if (i < slices * j->kv->n_kv_heads) {
            int q0 = (int)(i % slices) * j->slice_q;
            return (struct slice){ &j->seqs[s], (int)(i / slices), q0,
                                   q0 + j->slice_q < n ? q0 + j->slice_q : n };
        }
        i -= slices * j->kv->n_kv_heads;
    }
    BUG_ON(true);
}

/* The queries of a slice, before its first block on this thread. */
static void scratch_enter(const struct attn_job *j, struct attn_scratch *x, const struct slice *s)
{
    for (int i = 0; i < s->q1 - s->q0; i++) {
        int q = s->q0 + i;
        x->pos[i] = query_pos(j, s, q);
        x->end[i] = attn_end(j->p, s->seq, x->pos[i]);
        x->q[i] = j->q.data + query_row(j, s, q) * j->q.stride +
                  (int64_t)query_head(j, s, q) * j->kv->head_dim;
    }
}

static void run_start(const struct attn_job *j, struct attn_run *r)
{
    int n = r->s.q1 - r->s.q0;
    for (int i = 0; i < n; i++) {
        r->m[i] = j->p->sinks ? j->p->sinks[query_head(j, &r->s, r->s.q0 + i)] : -INFINITY;
        r->l[i] = j->p->sinks ? 1 : 0;
        r->bad[i] = false;
    }
    memset(r->acc, 0, (size_t)(n * j->kv->head_dim) * sizeof(float));
}

static void run_finish_query(const struct attn_job *j, struct attn_run *r, int i)
{
    int d = j->kv->head_dim, q = r->s.q0 + i;
    int64_t row = query_row(j, &r->s, q);
    float *y = j->out.data + row * j->out.stride + (int64_t)query_head(j, &r->s, q) * d;
    if (!r->bad[i] && j->st->attn.finish(y, r->acc + (size_t)i * (size_t)d, d, 1.0f / r->l[i]))
        return;
    memset(y, 0, (size_t)d * sizeof(float));
    __atomic_store_n(&j->st->flags[row], 1, __ATOMIC_RELAXED);
}

/* --- a block --- */

/* Queries [i0, i1) of a slice have keys in the block that is being computed. */
struct queries {
    int i0, i1;
};

/* x->j0, x->j1: which keys of block b each query looks at. Rows ascend, so the queries that have any are neighbours. */
static struct queries block_ranges(const struct attn_job *j, struct attn_scratch *x, int n,
                                   int32_t b)
{
    struct queries r = { n, 0 };
    for (int i = 0; i < n; i++) {
        int32_t lo = first_key(j, x->pos[i]) - b * P, hi = x->end[i] - b * P;
        x->j0[i] = lo > 0 ? lo : 0;
        x->j1[i] = hi < P ? hi : P;
        if (x->j0[i] >= x->j1[i])
            continue;
        r.i0 = i < r.i0 ? i : r.i0;
        r.i1 = i + 1;
    }
    return r;
}

/* What is common to a block's products over K (v = 0) or V; next: the block read after it, -1: none. */
static struct attn_product block_product(const struct attn_job *j, struct attn_scratch *x,
                                         const struct slice *s, int32_t b, int v, int32_t next)
{
    const struct kv_layer *kv = j->kv;
    uint8_t *part = cpu_kv_part(kv, s->seq, b, s->g, v);
    struct attn_product p = { .b = part, .type = kv->type, .wide = x->page };
    if (kvq_is(kv->type)) {
        struct kvq_part codes = kvq_part_at(kv->type, kv->head_dim, v, part);
        (v ? j->st->attn.unpack_v : j->st->attn.unpack_k)(x->page, &codes, kv->head_dim, kv->type);
        p.b = (const uint8_t *)x->page;
        p.type = DTYPE_F32;
    }
    if (!v || next >= 0) {
        p.next = cpu_kv_part(kv, s->seq, v ? next : b, s->g, !v);
        p.next_bytes = (int64_t)kv_part_bytes(kv->type, kv->head_dim, !v);
    }
    return p;
}

/* A score so low that its weight is exactly 0 beside any other's; finite, so that a block of nothing else is merged with a factor of 0. */
#define SCORE_UNSEEN (-1e30f)

/* Keys of block b that a query's row has not picked. */
static void block_unpicked(const struct attn_job *j, struct attn_scratch *x, const struct slice *s,
                           int32_t b, struct queries r)
{
    for (int i = r.i0; i < r.i1; i++) {
        int64_t row = query_row(j, s, s->q0 + i);
        uint64_t unseen = ~j->p->picked[row * j->p->picked_words + b];
        for (; unseen; unseen &= unseen - 1)
            x->w[i][__builtin_ctzll(unseen)] = SCORE_UNSEEN;
    }
}

/* Weights, maxima and sums of block b. */
static struct queries block_weights(const struct attn_job *j, struct attn_scratch *x,
                                    const struct slice *s, int32_t b, bool *bad)
{
    struct queries r = block_ranges(j, x, s->q1 - s->q0, b);
    struct attn_product p = block_product(j, x, s, b, 0, -1);
    p.c = x->w[r.i0];
    p.c_stride = P;
    p.a = x->q + r.i0;
    p.n = r.i1 - r.i0;
    p.stride = P;
    p.k1 = j->kv->head_dim;
    p.cols = P;
    j->st->attn.product(&p);
    if (j->p->picked)
        block_unpicked(j, x, s, b, r);
    j->st->attn.weights(x->w[r.i0], p.n, x->j0 + r.i0, x->j1 + r.i0, j->p->scale, j->p->softcap,
                        x->mb + r.i0, x->lb + r.i0, bad + r.i0);
    return r;
}

/* Weighted V of block b for each query: to c, merged by x->alpha and x->beta or as it is. Queries that look at the same keys
 * share a pass. */
static void block_values(const struct attn_job *j, struct attn_scratch *x, const struct slice *s,
                         int32_t b, int32_t next, struct queries r, float *c, int64_t c_stride,
                         bool is_merged)
{
    const float *a[SLICE];
    struct attn_product p = block_product(j, x, s, b, 1, next);
    p.c_stride = c_stride;
    p.a = a;
    p.stride = p.cols = j->kv->head_dim;
    for (int i = r.i0; i < r.i1; i += p.n) {
        p.k0 = x->j0[i];
        p.k1 = x->j1[i];
        for (p.n = 0; i + p.n < r.i1 && x->j0[i + p.n] == p.k0 && x->j1[i + p.n] == p.k1; p.n++)
            a[p.n] = x->w[i + p.n];
        p.c = c + i * c_stride;
        p.alpha = is_merged ? x->alpha + i : NULL;
        p.beta = is_merged ? x->beta + i : NULL;
        j->st->attn.product(&p);
        p.next = NULL;
    }
}

/* Block b merged into its slice. */
static void run_block(const struct attn_job *j, struct attn_scratch *x, struct attn_run *r,
                      int32_t b, int32_t next)
{
    struct queries q = block_weights(j, x, &r->s, b, r->bad);
    j->st->attn.factors(r->m + q.i0, r->l + q.i0, x->mb + q.i0, x->lb + q.i0, q.i1 - q.i0,
                        x->alpha + q.i0, x->beta + q.i0);
    block_values(j, x, &r->s, b, next, q, r->acc, j->kv->head_dim, true);
}

static void attend_slice(void *ctx, int64_t chunk, int thread)
{
    const struct attn_job *j = ctx;
    struct attn_scratch *x = &j->st->attn_scratch[thread];
    struct attn_run *r = &j->st->attn_runs[thread];
    r->s = slice_at(j, chunk);
    run_start(j, r);
    scratch_enter(j, x, &r->s);
    int32_t end = slice_end_block(j, &r->s);
    for (int32_t b = slice_first_block(j, &r->s); b < end; b++)
        run_block(j, x, r, b, b + 1 < end ? b + 1 : -1);
    for (int i = 0; i < r->s.q1 - r->s.q0; i++)
        run_finish_query(j, r, i);
}

/* --- few slices, shared by all threads --- */

static int32_t range_first(uint64_t range)
{
    return (int32_t)(range >> 32);
}

static int32_t range_end(uint64_t range)
{
    return (int32_t)(uint32_t)range;
}

/* Take the first or the last block of what is left; -1: nothing is. */
static int32_t run_take(struct attn_run *r, bool is_last)
{
    uint64_t t = atomic_load_explicit(&r->range, memory_order_relaxed);
    while (range_first(t) < range_end(t)) {
        uint64_t left = is_last ? t - 1 : t + ((uint64_t)1 << 32);
        if (atomic_compare_exchange_weak_explicit(&r->range, &t, left, memory_order_relaxed,
                                                  memory_order_relaxed))
            return is_last ? range_end(t) - 1 : range_first(t);
    }
    return -1;
}

/* The blocks from here on were taken by others than the slice's owner. */
static int32_t run_own_end(struct attn_run *r)
{
    return range_end(atomic_load_explicit(&r->range, memory_order_relaxed));
}

/* Of block b, query i: maximum, sum, weighted V. Sum 0: it looks at no key; -1: a score was not finite. */
static float *part_at(const struct attn_job *j, const struct attn_run *r, int32_t b, int i)
{
    size_t block = (size_t)(r - j->st->attn_runs) * (size_t)j->round_blocks + (size_t)(b - r->b0);
    return j->st->attn_parts +
           (block * (size_t)j->slice_q + (size_t)i) * (size_t)(j->kv->head_dim + 2);
}

static void run_own(const struct attn_job *j, struct attn_scratch *x, struct attn_run *r)
{
    if (r->b0 == slice_first_block(j, &r->s))
        run_start(j, r);
    scratch_enter(j, x, &r->s);
    for (int32_t b; (b = run_take(r, false)) >= 0;)
        run_block(j, x, r, b, b + 1 < r->b1 ? b + 1 : -1);
    for (int i = 0; j->is_last && run_own_end(r) == r->b1 && i < r->s.q1 - r->s.q0; i++)
        run_finish_query(j, r, i);
}

/* A block for another's slice. */
static void run_help(const struct attn_job *j, struct attn_scratch *x, struct attn_run *r,
                     int32_t b)
{
    int d = j->kv->head_dim;
    scratch_enter(j, x, &r->s);
    memset(x->bad, 0, sizeof(x->bad));
    struct queries q = block_weights(j, x, &r->s, b, x->bad);
    block_values(j, x, &r->s, b, b > r->b0 ? b - 1 : -1, q, part_at(j, r, b, 0) + 2, d + 2, false);
    for (int i = 0; i < r->s.q1 - r->s.q0; i++) {
        float *to = part_at(j, r, b, i);
        to[0] = x->mb[i];
        to[1] = i < q.i0 || i >= q.i1 ? 0 : x->bad[i] ? -1 : x->lb[i];
    }
}

/* The slice with the most blocks left; NULL: none has any. */
static struct attn_run *run_longest(const struct attn_job *j)
{
    struct attn_run *best = NULL;
    int32_t most = 0;
    for (int i = 0; i < j->n_runs; i++) {
        struct attn_run *r = &j->st->attn_runs[i];
        uint64_t t = atomic_load_explicit(&r->range, memory_order_relaxed);
        if (range_end(t) - range_first(t) > most) {
            most = range_end(t) - range_first(t);
            best = r;
        }
    }
    return best;
}

static void attend_shared(void *ctx, int64_t chunk, int thread)
{
    struct attn_job *j = ctx;
    struct attn_scratch *x = &j->st->attn_scratch[thread];
    int i;
    while ((i = atomic_fetch_add_explicit(&j->next_run, 1, memory_order_relaxed)) < j->n_runs)
        run_own(j, x, &j->st->attn_runs[i]);
    for (struct attn_run *r; (r = run_longest(j));) {
        int32_t b = run_take(r, true);
        if (b >= 0)
            run_help(j, x, r, b);
    }
}

/* What others computed for query `chunk % slice_q` of a run, in position order. */
static void merge_query(void *ctx, int64_t chunk, int thread)
{
    const struct attn_job *j = ctx;
    struct attn_run *r = &j->st->attn_runs[chunk / j->slice_q];
    int i = (int)(chunk % j->slice_q), d = j->kv->head_dim;
    int32_t b = run_own_end(r);
    if (i >= r->s.q1 - r->s.q0 || b == r->b1)
        return;
    for (; b < r->b1; b++) {
        const float *part = part_at(j, r, b, i);
        if (part[1] < 0)
            r->bad[i] = true;
        else if (part[1] > 0)
            j->st->attn.merge(r->acc + (size_t)i * (size_t)d, &r->m[i], &r->l[i], part + 2, d,
                              part[0], part[1]);
    }
    if (j->is_last)
        run_finish_query(j, r, i);
}

/* Rounds of as many blocks as there is room for the results of. */
static void attend_few(struct attn_job *j, int n)
{
    struct attn_run *runs = j->st->attn_runs;
    size_t block = (size_t)j->slice_q * (size_t)(j->kv->head_dim + 2);
    size_t room = (size_t)pool_threads(j->st->pool) * PART_FLOATS;
    j->n_runs = n;
    j->round_blocks = (int32_t)(room / block / (size_t)n);
    for (int i = 0; i < n; i++) {
        runs[i].s = slice_at(j, i);
        runs[i].b1 = slice_first_block(j, &runs[i].s);
    }
    do {
        bool is_helped = false;
        j->is_last = true;
        for (int i = 0; i < n; i++) {
            int32_t end = slice_end_block(j, &runs[i].s);
            runs[i].b0 = runs[i].b1;
            runs[i].b1 = (int32_t)min_i64(runs[i].b0 + j->round_blocks, end);
            j->is_last = j->is_last && runs[i].b1 == end;
            atomic_store_explicit(&runs[i].range,
                                  (uint64_t)(uint32_t)runs[i].b0 << 32 | (uint32_t)runs[i].b1,
                                  memory_order_relaxed);
        }
        atomic_store_explicit(&j->next_run, 0, memory_order_relaxed);
        pool_run(j->st->pool, attend_shared, j, pool_threads(j->st->pool));
        for (int i = 0; i < n; i++)
            is_helped = is_helped || run_own_end(&runs[i]) < runs[i].b1;
        if (is_helped)
            pool_run(j->st->pool, merge_query, j, (int64_t)n * j->slice_q);
    } while (!j->is_last);
}

void cpu_attention(struct backend *be, struct tensor out, struct tensor q,
                   const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                   const struct attn_params *p)
{
    struct cpu_state *st = cpu_of(be);
    int threads = pool_threads(st->pool);
    struct attn_job j = { .st = st, .out = out, .q = q, .kv = kv, .p = p, .seqs = seqs };
    j.n_seqs = n_seqs;
    j.per = p->n_heads / kv->n_kv_heads;
    for (int s = 0; s < n_seqs; s++)
        j.slice_q = seqs[s].n_rows * j.per > j.slice_q ? seqs[s].n_rows * j.per : j.slice_q;
    if (j.slice_q > SLICE)
        j.slice_q = j.per > SLICE ? SLICE : SLICE / j.per * j.per; /* whole rows */
    int64_t n = count_slices(&j);
    if (threads == 1 || n >= (int64_t)SLICES_MANY * threads)
        pool_run(st->pool, attend_slice, &j, n);
    else if (n > 0)
        attend_few(&j, (int)n);
}
