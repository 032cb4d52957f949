/* Matrix products of the CPU backend: quantise the rows once, then tiles of every weight over the threads.
 *
 * Threads share the tiles of all weights of a call (q, k, v; gate and up) as one list of chunks. More than CPU_ROWS rows go in
 * passes. */
#include "kernels/cpu/cpu_int.h"

#include <string.h>

/* How a weight's tiles are handed out: n_big chunks of `big` tiles, the rest in chunks of `small`. */
struct lin_cut {
    int64_t big, n_big, small;
    int64_t n_chunks;
};

struct lin_run {
    struct cpu_state *st;
    struct tensor x;
    int64_t t0; /* first row of the pass */
    int n_rows; /* of the pass */
    struct act act;
    int n;
    struct lin_job jobs[BACKEND_LINEAR_MANY_MAX];
    struct lin_cut cuts[BACKEND_LINEAR_MANY_MAX];
    bool grouped; /* the form of x in this pass: quantised or float */
};

/* Bytes of the arrays of struct act: quantised rows and cleaned copies share them, and the copies are the larger: 128 bytes for
 * a group, against 124. */
static size_t act_bytes(int64_t in)
{
    size_t groups = (size_t)(in + GROUP - 1) / GROUP;
    return CPU_ROWS * groups * GROUP * sizeof(float);
}

bool cpu_linear_reserve(struct cpu_state *st, int64_t in)
{
    if (in <= st->max_in)
        return true;
    size_t bytes = act_bytes(in);
    uint8_t *mem = mem_try_big(MEM_CAT_SCRATCH, bytes);
    if (!mem)
        return false;
    mem_free_big(MEM_CAT_SCRATCH, st->act_mem, st->act_bytes);
    st->act_mem = mem;
    st->act_bytes = bytes;
    st->max_in = in;
    return true;
}

static void act_lay_out(struct act *a, uint8_t *mem, int n_rows, int64_t in, bool with_bf16)
{
    a->mb = n_rows <= 8 ? n_rows : TILE;
    a->n_groups = in / GROUP;
    size_t n = (size_t)(n_rows + a->mb - 1) / (size_t)a->mb * (size_t)a->mb * (size_t)a->n_groups;
    n = (n + 15) / 16 * 16; /* every array starts at a multiple of 64 bytes */
    size_t max = CPU_ROWS * (size_t)a->n_groups;
    BUG_ON(n > (max + 15) / 16 * 16);
    a->q = (int8_t *)mem;
    a->d = (float *)(mem + n * GROUP);
    a->s = a->d + n;
    a->neg8 = (int32_t *)(a->s + n);
    a->neg16 = a->neg8 + n;
    a->neg128 = a->neg16 + n;
    a->neg32_0 = a->neg128 + n;
    a->neg32_1 = a->neg32_0 + n;
    a->bf16 = with_bf16 ? (uint16_t *)(a->neg32_1 + n) : NULL;
    a->f = (float *)a->q;
}

/* Groups that one chunk of the quantiser takes; about a microsecond's work each 64. */
#define QUANTISE_PER 128

static void fail_row(const struct lin_run *r, int64_t t)
{
    __atomic_store_n(&r->st->flags[t], 1, __ATOMIC_RELAXED);
}

static void prepare_chunk(void *ctx, int64_t chunk, int thread)
{
    struct lin_run *r = ctx;
    int64_t per_row = (r->act.n_groups + QUANTISE_PER - 1) / QUANTISE_PER;
    int64_t t = chunk / per_row, g0 = chunk % per_row * QUANTISE_PER;
    int64_t g1 = min_i64(g0 + QUANTISE_PER, r->act.n_groups);
    const float *x = r->x.data + (r->t0 + t) * r->x.stride;
    if (!r->st->rows.quantise(&r->act, t, x, g0, g1))
        fail_row(r, r->t0 + t);
}

static void clean_row(void *ctx, int64_t t, int thread)
{
    struct lin_run *r = ctx;
    const float *x = r->x.data + (r->t0 + t) * r->x.stride;
    if (!r->st->rows.clean(r->act.f + t * r->x.cols, x, r->x.cols))
        fail_row(r, r->t0 + t);
}

/* Run here if there is little to do, else on the pool. */
static void run_all(struct cpu_state *st, pool_fn *fn, void *ctx, int64_t n, bool small)
{
    if (!small) {
        pool_run(st->pool, fn, ctx, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        fn(ctx, i, 0);
}

/* The last block's rows that do not exist take part in products of whole blocks: what lies there must not be denormal, which
 * would take hundreds of cycles. */
static void clear_missing(struct act *a, int n_rows)
{
    for (int64_t g = 0; n_rows % a->mb && g < a->n_groups; g++) {
        int64_t i = act_index(a, n_rows, g);
        size_t n = (size_t)(a->mb - n_rows % a->mb) * sizeof(float);
        memset(&a->d[i], 0, n);
        memset(&a->s[i], 0, n);
    }
}

static void prepare(struct lin_run *r)
{
    int64_t per_row = (r->act.n_groups + QUANTISE_PER - 1) / QUANTISE_PER;
    bool small = r->n_rows * r->x.cols <= 16384;
    if (r->grouped) {
        clear_missing(&r->act, r->n_rows);
        run_all(r->st, prepare_chunk, r, r->n_rows * per_row, small);
    } else {
        run_all(r->st, clean_row, r, r->n_rows, small);
    }
}

static void tiles_chunk(void *ctx, int64_t chunk, int thread)
{
    struct lin_run *r = ctx;
    int i = 0;
    while (chunk >= r->cuts[i].n_chunks)
        chunk -= r->cuts[i++].n_chunks;
    const struct lin_job *j = &r->jobs[i];
    const struct lin_cut *c = &r->cuts[i];
    bool is_big = chunk < c->n_big;
    int64_t t0 = is_big ? chunk * c->big : c->n_big * c->big + (chunk - c->n_big) * c->small;
    int64_t t1 = min_i64(t0 + (is_big ? c->big : c->small), j->w->n_tiles);
    lin_fn *fn = j->w->kind < LIN_KIND_GROUPED ? r->st->lin.grouped : r->st->lin.plain;
    fn(j, t0, t1, &r->st->scratch[thread]);
}

/* Bytes of weights in a chunk, for few rows. Each thread reads ahead, 4 KiB by instruction and more by itself, and what it reads past
 * its chunk's end is another one's: chunks of 32 KiB cost a fifth of the decoding speed of the 1.5B against 256 KiB (18.5, 21.1,
 * 21.5, 22.2 tokens/s with 32, 64, 128, 256). The last ones to finish are waited for, so the end goes out in small pieces. */
#define CHUNK_BIG   ((int64_t)256 << 10)
#define CHUNK_SMALL ((int64_t)32 << 10)

static int64_t tiles_of(int64_t bytes, const struct weight *w)
{
    int64_t n = bytes / (int64_t)w->tile_bytes;
    return n < 1 ? 1 : n;
}

/* Cut one weight of a pass over `total` bytes; small chunks for the last one's last tiles. */
static struct lin_cut cut_tiles(const struct weight *w, int n_rows, int threads, int64_t total,
                                bool is_last)
{
    struct lin_cut c = { .big = LIN_N_TILES, .small = LIN_N_TILES };
    if (n_rows <= 8) {
        int64_t share = total / (4 * threads);
        share = share < CHUNK_SMALL ? CHUNK_SMALL : min_i64(share, CHUNK_BIG);
        c.big = tiles_of(share, w);
        c.small = tiles_of(CHUNK_SMALL, w);
    }
    int64_t end = is_last ? min_i64(w->n_tiles / 2, threads * c.big) : 0;
    c.n_big = (w->n_tiles - end) / c.big;
    c.n_chunks = c.n_big + (w->n_tiles - c.n_big * c.big + c.small - 1) / c.small;
    return c;
}

/* One pass: the weights of one form (grouped or plain). */
static void lin_pass(struct lin_run *r, const struct tensor *y, const struct weight *const *w,
                     int n)
{
    const int bf16_rows = r->st->lin.bf16_rows;
    bool wide = false;
    for (int i = 0; bf16_rows && r->n_rows >= bf16_rows && i < n; i++)
        wide = wide || w[i]->kind == LIN_KIND_Q6_K;
    act_lay_out(&r->act, r->st->act_mem, r->n_rows, r->x.cols, wide);
    prepare(r);
    int64_t bytes = 0, total = 0;
    r->n = 0;
    for (int i = 0; i < n; i++) {
        if ((w[i]->kind < LIN_KIND_GROUPED) != r->grouped)
            continue;
        int k = r->n++;
        r->jobs[k] = (struct lin_job){ w[i], &r->act, r->n_rows, y[i].data + r->t0 * y[i].stride,
                                       y[i].stride };
        bytes += (int64_t)w[i]->shape.bytes;
    }
    for (int k = 0; k < r->n; k++) {
        r->cuts[k] =
            cut_tiles(r->jobs[k].w, r->n_rows, pool_threads(r->st->pool), bytes, k + 1 == r->n);
        total += r->cuts[k].n_chunks;
    }
    pool_run(r->st->pool, tiles_chunk, r, total);
}

void cpu_linear_many(struct backend *be, int n, const struct tensor *y, struct tensor x,
                     const struct weight *const *w)
{
    struct lin_run r = { .st = cpu_of(be), .x = x };
    bool any[2] = { false, false };
    for (int i = 0; i < n; i++)
        any[w[i]->kind < LIN_KIND_GROUPED] = true;
    for (r.t0 = 0; r.t0 < x.rows; r.t0 += CPU_ROWS) {
        r.n_rows = (int)min_i64(CPU_ROWS, x.rows - r.t0);
        for (int form = 0; form < 2; form++) {
            r.grouped = form == 1;
            if (any[form])
                lin_pass(&r, y, w, n);
        }
    }
}

void cpu_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w)
{
    cpu_linear_many(be, 1, &y, x, &w);
}

struct embed_job {
    struct tensor y;
    const struct weight *w;
    const int32_t *ids;
};

static void embed_row(void *ctx, int64_t t, int thread)
{
    const struct embed_job *j = ctx;
    cpu_weight_row(j->w, j->ids[t], j->y.data + t * j->y.stride);
}

void cpu_embed(struct backend *be, struct tensor y, const struct weight *w, const int32_t *ids)
{
    struct embed_job j = { y, w, ids };
    pool_run(cpu_of(be)->pool, embed_row, &j, y.rows);
}
