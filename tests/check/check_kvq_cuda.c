/* Quantised caches on the GPU: the bytes of its pages are ref's, and attention has the bits that an f16 cache has of what those bytes say. */
#include "check.h"
#include "tensor/kvq.h"

#include <stdio.h>
#include <string.h>

#define N_MAX 420

struct kvq_case {
    enum dtype type;
    int kv_heads, per, head_dim, n;
    int32_t window;
    int step; /* rows of a step */
    bool is_odd;
};

struct kvq_data {
    float k[N_MAX * 512], v[N_MAX * 512], q[N_MAX * 1024];
    float out[2][N_MAX * 1024];
    int32_t pages[N_MAX / KV_PAGE_TOKENS + 1];
    int n_pages;
};

static void *upload(struct backend *be, const void *x, size_t bytes)
{
    void *p = be->ops->alloc(be, MEM_CAT_SCRATCH, bytes);
    BUG_ON(!p);
    if (x)
        be->ops->upload(be, p, x, bytes);
    return p;
}

/* All rows in steps; the pages' bytes and what attention makes of them. is_quiet: it is not asked. */
static void kvq_run(struct backend *be, const struct kvq_case *k, const struct kvq_data *d,
                    enum dtype type, int step, uint8_t *pages, float *out, uint8_t *flags)
{
    int64_t kv_cols = k->kv_heads * k->head_dim, cols = kv_cols * k->per;
    size_t page = be->ops->kv_page_bytes(be, type, k->kv_heads, k->head_dim);
    size_t slab = page * (size_t)d->n_pages, rows = (size_t)k->n * sizeof(float);
    struct kv_layer kv = { type, k->kv_heads, k->head_dim, d->n_pages,
                           be->ops->alloc(be, MEM_CAT_KV, slab) };
    float *dk = upload(be, d->k, rows * (size_t)kv_cols),
          *dv = upload(be, d->v, rows * (size_t)kv_cols);
    float *dq = upload(be, d->q, rows * (size_t)cols),
          *dout = upload(be, NULL, rows * (size_t)cols);
    struct attn_params p = { .scale = 0.1f, .window = k->window, .n_heads = k->kv_heads * k->per };
    for (int at = 0; at < k->n; at += step) {
        int n = k->n - at < step ? k->n - at : step;
        struct seq_view s = { .n_rows = n, .pos0 = at, .pages = d->pages };
        struct tensor kk = { dk + at * kv_cols, n, kv_cols, kv_cols },
                      vv = { dv + at * kv_cols, n, kv_cols, kv_cols };
        struct tensor qq = { dq + at * cols, n, cols, cols },
                      o = { dout + at * cols, n, cols, cols };
        ops_begin(be, n);
        ops_kv_store(be, &kv, kk, vv, &s, 1);
        if (out)
            ops_attention(be, o, qq, &kv, &s, 1, &p);
        ops_failed(be, flags + at);
    }
    if (pages)
        be->ops->download(be, pages, kv.data, slab);
    if (out)
        be->ops->download(be, out, dout, rows * (size_t)cols);
    be->ops->free(be, MEM_CAT_SCRATCH, dk, rows * (size_t)kv_cols);
    be->ops->free(be, MEM_CAT_SCRATCH, dv, rows * (size_t)kv_cols);
    be->ops->free(be, MEM_CAT_SCRATCH, dq, rows * (size_t)cols);
    be->ops->free(be, MEM_CAT_SCRATCH, dout, rows * (size_t)cols);
    be->ops->free(be, MEM_CAT_KV, kv.data, slab);
}

/* x becomes what is read of it. */
static void as_read(const struct kvq_case *k, float *x, int v)
{
    static uint16_t base[512];
    for (int h = 0; h < k->kv_heads; h++)
        for (int t = 0; t < k->n; t++)
            for (int g = 0; g < kvq_groups(k->head_dim); g++) {
                int n = kvq_group_len(k->head_dim, g);
                float *at = x + (t * k->kv_heads + h) * k->head_dim + g * KVQ_GROUP;
                struct kvq_group q;
                if (t % KV_PAGE_TOKENS == 0)
                    kvq_base(base + g * KVQ_GROUP, at, n);
                (void)!kvq_quantise(&q, at, v ? NULL : base + g * KVQ_GROUP, n, kvq_top(k->type));
                for (int i = 0; i < n; i++)
                    at[i] = v ? kvq_value(q.codes[i], q.scale, q.bias)
                              : kvq_key(q.codes[i], q.scale, q.bias, q.is_relative,
                                        base[g * KVQ_GROUP + i]);
            }
}

static void check_kvq_case(struct check *c, const struct kvq_case *k, struct backend *fast,
                           struct backend *plain)
{
    static struct kvq_data d;
    static uint8_t flags[3][N_MAX];
    size_t kv_cols = (size_t)(k->kv_heads * k->head_dim), cols = kv_cols * (size_t)k->per;
    size_t n = (size_t)k->n;
    memset(flags, 0, sizeof(flags));
    check_fill(d.k, n * kv_cols, 0);
    check_fill(d.v, n * kv_cols, 0);
    check_fill(d.q, n * cols, 0);
    for (size_t i = 0; i < n; i++) /* a channel that is far out, another that is nothing */
        d.k[i * kv_cols + 3] += 90, d.v[i * kv_cols + 1] = 0;
    if (k->is_odd)
        d.k[70 * kv_cols + 2] = NAN, d.v[65 * kv_cols + kv_cols - 1] = 3e38f,
                           d.k[64 * kv_cols] = 1e30f;
    d.n_pages = k->n / KV_PAGE_TOKENS + 1;
    for (int i = 0; i < d.n_pages; i++)
        d.pages[i] = d.n_pages - 1 - i;
    size_t slab =
        (size_t)d.n_pages * c->ref->ops->kv_page_bytes(c->ref, k->type, k->kv_heads, k->head_dim);
    uint8_t *want = mem_alloc(MEM_CAT_KV, slab), *got = mem_alloc(MEM_CAT_KV, slab);
    char name[96];
    snprintf(name, sizeof(name), "%s %dx%dx%d n %d window %d steps of %d%s",
             dtype_info(k->type)->name, k->kv_heads, k->per, k->head_dim, k->n, k->window, k->step,
             k->is_odd ? ", odd" : "");
    kvq_run(c->ref, k, &d, k->type, k->step, want, NULL, flags[0]);
    kvq_run(fast, k, &d, k->type, k->step, got, d.out[0], flags[1]);
    bool is_same =
        fast->ops->kv_page_bytes(fast, k->type, k->kv_heads, k->head_dim) * (size_t)d.n_pages ==
            slab &&
        memcmp(want, got, slab) == 0;
    check_that(c, is_same, "cuda/kvq/bytes/%s", name);
    check_that(c, memcmp(flags[0], flags[1], n) == 0, "cuda/kvq/flags/%s", name);
    if (!k->is_odd) {
        as_read(k, d.k, 0);
        as_read(k, d.v, 1);
        kvq_run(plain, k, &d, DTYPE_F16, k->n, NULL, d.out[1], flags[2]);
        check_that(c, memcmp(d.out[0], d.out[1], n * cols * sizeof(float)) == 0,
                   "cuda/kvq/attention/%s", name);
    }
    check_that(c, fast->ops->wait(fast, NULL) == ERR_OK && plain->ops->wait(plain, NULL) == ERR_OK,
               "cuda/kvq/wait/%s", name);
    mem_free(MEM_CAT_KV, want);
    mem_free(MEM_CAT_KV, got);
}

void check_kvq_cuda(struct check *c, struct backend *fast, struct backend *plain)
{
    static const struct kvq_case cases[] = {
        { DTYPE_KV_Q8, 2, 4, 128, 400, 0, 400, false },
        { DTYPE_KV_Q8, 2, 4, 128, 300, 0, 1, false },
        { DTYPE_KV_Q8, 3, 1, 80, 200, 90, 7, false },
        { DTYPE_KV_Q8, 1, 2, 256, 190, 0, 64, false },
        { DTYPE_KV_Q8, 2, 2, 16, 130, 0, 13, true },
        { DTYPE_KV_Q4, 2, 4, 64, 400, 0, 400, false },
        { DTYPE_KV_Q4, 2, 2, 80, 150, 0, 1, false },
        { DTYPE_KV_Q4, 1, 3, 100, 200, 50, 30, true },
        { DTYPE_KV_Q4, 1, 2, 33, 130, 0, 20, false },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_kvq_case(c, &cases[i], fast, plain);
}
