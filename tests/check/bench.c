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
    static const int rows[] = { 1, 2, 4, 8, 16, 32, 64, 512 };
    uint8_t *data = check_weight(type, out, in);
    struct lin_bench b = { .be = k->be };
    size_t one = 0;
    while (b.n < 64 && (size_t)b.n * one < (size_t)160 << 20) {
        b.w[b.n++] = check_pack(k->be, type, out, in, data);
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

/* --- attention --- */

struct attn_bench {
    struct backend *be;
    struct kv_layer kv;
    struct seq_view seq;
    struct tensor q, out, k;
    struct attn_params p;
};

static void run_attention(void *ctx)
{
    struct attn_bench *b = ctx;
    ops_begin(b->be, (int)b->q.rows);
    ops_attention(b->be, b->out, b->q, &b->kv, &b->seq, 1, &b->p);
}

static void run_store(void *ctx)
{
    struct attn_bench *b = ctx;
    ops_begin(b->be, (int)b->k.rows);
    ops_kv_store(b->be, &b->kv, b->k, b->k, &b->seq, 1);
}

static void bench_attention_case(struct bench *k, enum dtype type, int kv_heads, int per, int d,
                                 int pos, int rows)
{
    struct attn_bench b = { .be = k->be };
    int n_pages = (pos + rows) / KV_PAGE_TOKENS + 1;
    int32_t *pages = mem_alloc(MEM_CAT_SCRATCH, (size_t)n_pages * sizeof(*pages));
    size_t page = k->be->ops->kv_page_bytes(k->be, type, kv_heads, d);
    b.kv = (struct kv_layer){ type, kv_heads, d, n_pages,
                              k->be->ops->alloc(k->be, MEM_CAT_KV, page * (size_t)n_pages) };
    BUG_ON(!b.kv.data);
    for (int i = 0; i < n_pages; i++)
        pages[i] = i;
    b.seq = (struct seq_view){ 0, rows, pos, pages };
    int64_t cols = (int64_t)kv_heads * per * d;
    float *q = mem_alloc(MEM_CAT_SCRATCH, (size_t)(2 * rows * cols) * sizeof(float));
    check_fill(q, (size_t)(rows * cols), 0);
    b.q = tensor_of(q, rows, cols);
    b.out = tensor_of(q + rows * cols, rows, cols);
    b.p = (struct attn_params){ .scale = 0.1f, .n_heads = kv_heads * per };
    double us = best_us(k, run_attention, &b);
    double bytes = (double)page * (pos + rows) / KV_PAGE_TOKENS;
    double ops = 4.0 * rows * (pos + rows / 2.0) * (double)cols;
    b.k = tensor_of(q, rows, (int64_t)kv_heads * d);
    double store = best_us(k, run_store, &b);
    printf("attention/%s/%d %dx%d heads of %d, %s, %d rows at %d: %.1f us, %.2f GB/s, %.1f GOPS; "
           "store %.2f us\n",
           k->level, k->threads, kv_heads, per, d, dtype_info(type)->name, rows, pos, us,
           bytes / us * 1e-3, ops / us * 1e-3, store);
    k->be->ops->free(k->be, MEM_CAT_KV, b.kv.data, page * (size_t)n_pages);
    mem_free(MEM_CAT_SCRATCH, q);
    mem_free(MEM_CAT_SCRATCH, pages);
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
    static const enum dtype types[] = { DTYPE_F16, DTYPE_KV_Q8, DTYPE_KV_Q4 };
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
    if (!filter || strstr("attention", filter)) {
        for (size_t i = 0; i < ARRAY_LEN(types); i++) {
            bench_attention_case(&k, types[i], 2, 6, 128, 4096, 1);
            bench_attention_case(&k, types[i], 2, 7, 64, 4096, 1);
            bench_attention_case(&k, types[i], 3, 3, 64, 4096, 1);
            bench_attention_case(&k, types[i], 1, 4, 256, 4096, 1);
            bench_attention_case(&k, types[i], 2, 6, 128, 0, 512);
            bench_attention_case(&k, types[i], 3, 3, 64, 0, 512);
        }
    }
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
