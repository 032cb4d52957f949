/* The benchmark of tests/check: GB/s of packed weights and GOPS of products by level and row count, other ops. */
#include "check.h"

#include "base/clock.h"
#include "kernels/cpu/cpu_backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench {
    const char *filter;
    struct backend *be;
    char level[16];
    int threads;
};

typedef void bench_fn(void *ctx);

/* With one thread its CPU time: what others do on the machine then counts only by the caches and the clock. */
static double now_us(bool alone)
{
    struct timespec t;
    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Best microseconds of a call: repeated for at least 150 ms and 5 times (the machine's speed wanders, so the best is kept). */
static double best_us(const struct bench *k, bench_fn *fn, void *ctx)
{
    double best = 1e30;
    bool alone = k->threads == 1;
    fn(ctx);
    int64_t start = clock_us();
    for (int n = 0; n < 5 || clock_us() - start < 150000; n++) {
        double t0 = now_us(alone);
        fn(ctx);
        double t = now_us(alone) - t0;
        best = t < best ? t : best;
    }
    return best;
}

/* --- products: enough copies of a weight that they do not fit the caches --- */

struct lin_bench {
    struct backend *be;
    int n;
    struct weight *w[64];
    struct tensor x, y;
};

static void run_linear(void *ctx)
{
    struct lin_bench *b = ctx;
    ops_begin(b->be, (int)b->x.rows);
    for (int i = 0; i < b->n; i++)
        ops_linear(b->be, b->y, b->x, b->w[i]);
}

static void bench_shape(struct bench *k, enum dtype type, int64_t out, int64_t in)
{
    static const int rows[] = { 1, 2, 4, 8, 12, 16, 32, 48, 64, 96, 512 };
    uint8_t *data = check_weight(type, out, in);
    struct lin_bench b = { .be = k->be };
    size_t one = 0;
    while (b.n < 64 && (size_t)b.n * one < (size_t)160 << 20) {
        b.w[b.n++] = check_pack(k->be, type, out, in, data, NULL);
        one = k->be->ops->shape(b.w[0])->bytes;
    }
    float *x = mem_try_big(MEM_CAT_SCRATCH, (size_t)(512 * in) * 4);
    float *y = mem_try_big(MEM_CAT_SCRATCH, (size_t)(512 * out) * 4);
    BUG_ON(!x || !y);
    check_fill(x, (size_t)(512 * in), 0);
    int all = b.n;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        b.x = tensor_of(x, rows[i], in);
        b.y = tensor_of(y, rows[i], out);
        b.n = rows[i] >= 64 ? 1 : all;
        double us = best_us(k, run_linear, &b);
        double bytes = (double)one * b.n, ops = 2.0 * (double)(out * in) * rows[i] * b.n;
        printf("linear/%s/%s/%d [%lld][%lld] rows %d: %.1f us, %.2f GB/s, %.0f GOPS\n",
               dtype_info(type)->name, k->level, k->threads, (long long)out, (long long)in, rows[i],
               us / b.n, bytes / us * 1e-3, ops / us * 1e-3);
    }
    fflush(stdout);
    for (int i = 0; i < all; i++)
        k->be->ops->unpack_free(k->be, b.w[i]);
    mem_free(MEM_CAT_WEIGHTS, data);
    mem_free_big(MEM_CAT_SCRATCH, x, (size_t)(512 * in) * 4);
    mem_free_big(MEM_CAT_SCRATCH, y, (size_t)(512 * out) * 4);
}

static void bench_linear(struct bench *k)
{
    static const struct {
        enum dtype type;
        int64_t out, in;
    } shapes[] = {
        { DTYPE_Q4_1, 1536, 576 },  { DTYPE_Q4_1, 8960, 1536 }, { DTYPE_Q4_K, 8960, 1536 },
        { DTYPE_Q4_K, 1536, 8960 }, { DTYPE_Q6_K, 1536, 8960 }, { DTYPE_Q8_0, 896, 4864 },
        { DTYPE_Q5_0, 4864, 896 },  { DTYPE_F16, 1536, 1536 },
    };
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        char group[64];
        snprintf(group, sizeof(group), "linear/%s/%s", dtype_info(shapes[i].type)->name, k->level);
        if (!k->filter || strstr(group, k->filter))
            bench_shape(k, shapes[i].type, shapes[i].out, shapes[i].in);
    }
}

/* --- attention: enough layers that their pages do not fit the caches, as in a model --- */

#define ATTN_LAYERS 32

struct attn_bench {
    struct backend *be;
    struct kv_layer kv[ATTN_LAYERS];
    int n; /* layers */
    struct seq_view seqs[16];
    int n_seqs;
    struct tensor q, out, k;
    struct attn_params p;
};

static void run_attention(void *ctx)
{
    struct attn_bench *b = ctx;
    ops_begin(b->be, (int)b->q.rows);
    for (int i = 0; i < b->n; i++)
        ops_attention(b->be, b->out, b->q, &b->kv[i], b->seqs, b->n_seqs, &b->p);
}

static void run_store(void *ctx)
{
    struct attn_bench *b = ctx;
    ops_begin(b->be, (int)b->k.rows);
    for (int i = 0; i < b->n; i++)
        ops_kv_store(b->be, &b->kv[i], b->k, b->k, b->seqs, b->n_seqs);
}

struct attn_shape {
    int kv_heads, per, head_dim;
    int pos, rows, seqs; /* of each sequence */
};

/* Every position of every layer gets a key and a value: pages that were never written would all be one page of zeros. */
static void bench_fill_pages(struct attn_bench *b, const struct attn_shape *s)
{
    int64_t cols = (int64_t)s->kv_heads * s->head_dim;
    float *x = mem_alloc(MEM_CAT_SCRATCH, (size_t)(KV_PAGE_TOKENS * cols) * sizeof(float));
    struct tensor t = tensor_of(x, KV_PAGE_TOKENS, cols);
    check_fill(x, (size_t)(KV_PAGE_TOKENS * cols), 0);
    ops_begin(b->be, KV_PAGE_TOKENS);
    for (int i = 0; i < b->n; i++) {
        for (int32_t page = 0; page < b->kv[i].n_pages; page++) {
            struct seq_view v = { .n_rows = KV_PAGE_TOKENS, .pages = &page };
            ops_kv_store(b->be, &b->kv[i], t, t, &v, 1);
        }
    }
    mem_free(MEM_CAT_SCRATCH, x);
}

static void bench_attention_case(struct bench *k, enum dtype type, const struct attn_shape *s,
                                 const char *name)
{
    struct attn_bench b = { .be = k->be, .n_seqs = s->seqs };
    int rows = s->rows * s->seqs, per_seq = (s->pos + s->rows) / KV_PAGE_TOKENS + 1;
    int n_pages = per_seq * s->seqs;
    int32_t *pages = mem_alloc(MEM_CAT_SCRATCH, (size_t)n_pages * sizeof(*pages));
    size_t page = k->be->ops->kv_page_bytes(k->be, type, s->kv_heads, s->head_dim);
    while (b.n < ATTN_LAYERS && (b.n == 0 || (size_t)(b.n * n_pages) * page < (size_t)128 << 20)) {
        b.kv[b.n] =
            (struct kv_layer){ type, s->kv_heads, s->head_dim, n_pages,
                               k->be->ops->alloc(k->be, MEM_CAT_KV, page * (size_t)n_pages) };
        BUG_ON(!b.kv[b.n].data);
        b.n++;
    }
    for (int i = 0; i < n_pages; i++)
        pages[i] = i;
    for (int i = 0; i < s->seqs; i++)
        b.seqs[i] = (struct seq_view){
            .row0 = i * s->rows, .n_rows = s->rows, .pos0 = s->pos, .pages = pages + i * per_seq
        };
    bench_fill_pages(&b, s);
    int64_t cols = (int64_t)s->kv_heads * s->per * s->head_dim;
    float *q = mem_alloc(MEM_CAT_SCRATCH, (size_t)(2 * rows * cols) * sizeof(float));
    check_fill(q, (size_t)(rows * cols), 0);
    b.q = tensor_of(q, rows, cols);
    b.out = tensor_of(q + rows * cols, rows, cols);
    b.p = (struct attn_params){ .scale = 0.1f, .n_heads = s->kv_heads * s->per };
    double us = best_us(k, run_attention, &b) / b.n;
    double bytes = (double)page * (s->pos + s->rows) / KV_PAGE_TOKENS * s->seqs;
    double ops = 4.0 * rows * (s->pos + s->rows / 2.0) * (double)cols;
    b.k = tensor_of(q, rows, (int64_t)s->kv_heads * s->head_dim);
    double store = best_us(k, run_store, &b) / b.n;
    printf("%s: %.1f us, %.2f GB/s, %.1f GOPS; store %.2f us\n", name, us, bytes / us * 1e-3,
           ops / us * 1e-3, store);
    fflush(stdout);
    for (int i = 0; i < b.n; i++)
        k->be->ops->free(k->be, MEM_CAT_KV, b.kv[i].data, page * (size_t)n_pages);
    mem_free(MEM_CAT_SCRATCH, q);
    mem_free(MEM_CAT_SCRATCH, pages);
}

static void bench_attention(struct bench *k)
{
    static const enum dtype types[] = { DTYPE_F16, DTYPE_KV_Q8, DTYPE_KV_Q4 };
    static const struct attn_shape shapes[] = {
        { 2, 6, 128, 4096, 1, 1 }, { 2, 7, 64, 4096, 1, 1 },  { 3, 3, 64, 4096, 1, 1 },
        { 1, 4, 256, 4096, 1, 1 }, { 2, 6, 128, 4096, 4, 1 }, { 2, 7, 64, 3000, 1, 16 },
        { 2, 6, 128, 0, 512, 1 },  { 3, 3, 64, 0, 512, 1 },
    };
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            const struct attn_shape *s = &shapes[i];
            char group[96];
            snprintf(group, sizeof(group), "attention/%s/%s %dx%dx%d %dx%d at %d",
                     dtype_info(types[t])->name, k->level, s->kv_heads, s->per, s->head_dim,
                     s->seqs, s->rows, s->pos);
            if (!k->filter || strstr(group, k->filter))
                bench_attention_case(k, types[t], s, group);
        }
    }
}

/* --- the rest --- */

struct rows_bench {
    struct backend *be;
    struct tensor x, y, z;
    float *w;
    int op;
};

static void run_rows(void *ctx)
{
    struct rows_bench *b = ctx;
    for (int i = 0; i < 100; i++) {
        switch (b->op) {
        case 0:
            ops_rms_norm(b->be, b->y, b->x, b->w, (int)b->x.cols, 1e-6f);
            break;
        case 1:
            ops_glu(b->be, b->y, b->x, b->z, GLU_KIND_SILU);
            break;
        case 2:
            ops_glu(b->be, b->y, b->x, b->z, GLU_KIND_GELU_TANH);
            break;
        default:
            ops_add(b->be, b->y, b->x);
            ops_scale(b->be, b->y, 0.5f);
            break;
        }
    }
}

static void bench_rows(struct bench *k)
{
    static const char *const names[] = { "rms_norm", "silu", "gelu", "add+scale" };
    static const int rows[] = { 1, 64 };
    const int64_t cols = 8960;
    float *m = mem_try_big(MEM_CAT_SCRATCH, (size_t)(64 * cols) * 4 * 4);
    BUG_ON(!m);
    check_fill(m, (size_t)(64 * cols) * 4, 0);
    for (int op = 0; op < 4; op++) {
        for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
            struct rows_bench b = { k->be,
                                    tensor_of(m, rows[r], cols),
                                    tensor_of(m + 64 * cols, rows[r], cols),
                                    tensor_of(m + 128 * cols, rows[r], cols),
                                    m + 192 * cols,
                                    op };
            double us = best_us(k, run_rows, &b) / 100;
            printf("%s/%s/%d [%d][%lld]: %.2f us, %.2f ns an element\n", names[op], k->level,
                   k->threads, rows[r], (long long)cols, us, us * 1e3 / (double)(rows[r] * cols));
        }
    }
    mem_free_big(MEM_CAT_SCRATCH, m, (size_t)(64 * cols) * 4 * 4);
}

static void bench_level(const char *filter, int threads, enum cpu_level level)
{
    struct bench k = { .filter = filter };
    struct cpu_options o = { .threads = threads, .level = level };
    struct err err = { 0 };
    k.threads = threads ? threads : cpu_threads_default();
    snprintf(k.level, sizeof(k.level), "%s", cpu_level_name(level));
    if (cpu_backend_open(&o, &k.be, &err) != ERR_OK) {
        printf("open: %s\n", err.text);
        exit(1);
    }
    bench_linear(&k);
    bench_attention(&k);
    if (!filter || strstr("rows", filter))
        bench_rows(&k);
    k.be->ops->close(k.be);
}

void check_bench(const char *filter, int threads, int level)
{
    check_bench_pool(filter, threads);
    if (level != CPU_LEVEL_AUTO) {
        bench_level(filter, threads, (enum cpu_level)level);
        return;
    }
    for (int l = CPU_LEVEL_NEON; l < CPU_LEVEL_COUNT; l++)
        if (cpu_level_available((enum cpu_level)l))
            bench_level(filter, threads, (enum cpu_level)l);
}
