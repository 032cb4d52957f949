/* A layer as families write it, on the GPU: the fast backend makes several of its ops one kernel and a graph of the whole, the plain one runs
 * op by op; everything that the ops write is compared bit for bit. */
#include "check.h"

#include <stdio.h>
#include <string.h>

#define HISTORY_MAX 1024 /* positions in the cache before the step */
#define QUICK_ROWS  40
#define PASSES      3 /* one kernel after the other, as a graph that is made, as one that is there */

struct layer_case {
    enum dtype type, cache;
    int heads, kv_heads, head_dim, ff;
    int n_seqs, rows_of_seq, history; /* a sequence's rows, positions before them */
    enum rope_kind rope;
    enum glu_kind glu;
    int poison; /* row that has a value that is not finite; -1: none */
};

/* What the layer reads and writes. */
enum buf {
    BUF_X,
    BUF_H,
    BUF_Q,
    BUF_K,
    BUF_V,
    BUF_ATT,
    BUF_GATE,
    BUF_UP,
    BUF_OLD_K,
    BUF_OLD_V,
    BUFS
};
enum mat { MAT_Q, MAT_K, MAT_V, MAT_O, MAT_GATE, MAT_UP, MAT_DOWN, MATS };

struct layer {
    const struct layer_case *k;
    int64_t width;
    int rows, n_pages;
    struct check_buf start[BUFS];
    float *norm; /* [2 width] */
    uint8_t *data[MATS];
    struct scales scales[MATS];
    int64_t out[MATS], in[MATS];
    int32_t pages[64][32], pos[512];
};

/* One backend's copy of it. */
struct layer_on {
    struct backend *be;
    struct tensor t[BUFS];
    struct weight *w[MATS];
    float *norm;
    struct kv_layer kv;
    size_t kv_bytes;
    uint8_t flags[512], *cache;
    struct check_buf got[BUFS];
};

static void layer_init(struct layer *l, const struct layer_case *k)
{
    int64_t q = (int64_t)k->heads * k->head_dim, g = (int64_t)k->kv_heads * k->head_dim;
    *l = (struct layer){ .k = k, .width = q, .rows = k->n_seqs * k->rows_of_seq };
    const int64_t cols[BUFS] = { q, q, q, g, g, q, k->ff, k->ff, g, g };
    for (int i = 0; i < BUFS; i++) {
        int64_t rows = i < BUF_OLD_K ? l->rows : HISTORY_MAX;
        l->start[i] = check_buf_new(rows, cols[i], cols[i] + (i == BUF_Q ? 4 : 0));
        for (int64_t t = 0; t < rows; t++)
            check_fill(l->start[i].t.data + t * l->start[i].t.stride, (size_t)cols[i], 0);
    }
    if (k->poison >= 0)
        l->start[BUF_H].t.data[k->poison * q + q / 3] = k->poison % 2 ? NAN : INFINITY;
    const int64_t out[MATS] = { q, g, g, q, k->ff, k->ff, q },
                  in[MATS] = { q, q, q, q, q, q, k->ff };
    for (int i = 0; i < MATS; i++) {
        l->out[i] = out[i];
        l->in[i] = in[i];
        l->data[i] = check_scaled_weight(k->type, out[i], in[i], i, &l->scales[i]);
    }
    l->norm = mem_alloc(MEM_CAT_SCRATCH, 2 * (size_t)q * sizeof(float));
    check_fill(l->norm, 2 * (size_t)q, 0);
    for (int s = 0; s < k->n_seqs; s++) {
        int n = (k->history + k->rows_of_seq - 1) / KV_PAGE_TOKENS + 1;
        for (int i = 0; i < n; i++)
            l->pages[s][i] = l->n_pages + n - 1 - i;
        l->n_pages += n;
        for (int i = 0; i < k->rows_of_seq; i++)
            l->pos[s * k->rows_of_seq + i] = k->history + i;
    }
}

static void layer_free(struct layer *l)
{
    for (int i = 0; i < BUFS; i++)
        check_buf_free(&l->start[i]);
    for (int i = 0; i < MATS; i++)
        mem_free(MEM_CAT_WEIGHTS, l->data[i]);
    mem_free(MEM_CAT_SCRATCH, l->norm);
}

static void *device_memory(struct backend *be, size_t bytes)
{
    void *p = be->ops->alloc(be, MEM_CAT_SCRATCH, bytes);
    BUG_ON(!p);
    return p;
}

static void layer_on_init(struct layer_on *o, struct backend *be, const struct layer *l)
{
    const struct layer_case *k = l->k;
    *o = (struct layer_on){ .be = be };
    for (int i = 0; i < BUFS; i++) {
        o->t[i] = l->start[i].t;
        o->t[i].data = device_memory(be, l->start[i].n * sizeof(float));
        o->got[i] = check_buf_new(l->start[i].t.rows, l->start[i].t.cols, l->start[i].t.stride);
    }
    for (int i = 0; i < MATS; i++)
        o->w[i] = check_pack(be, k->type, l->out[i], l->in[i], l->data[i], &l->scales[i]);
    o->norm = device_memory(be, 2 * (size_t)l->width * sizeof(float));
    be->ops->upload(be, o->norm, l->norm, 2 * (size_t)l->width * sizeof(float));
    size_t page = be->ops->kv_page_bytes(be, k->cache, k->kv_heads, k->head_dim);
    o->kv_bytes = page * (size_t)l->n_pages;
    o->kv = (struct kv_layer){ k->cache, k->kv_heads, k->head_dim, l->n_pages,
                               device_memory(be, o->kv_bytes) };
    o->cache = mem_alloc(MEM_CAT_SCRATCH, o->kv_bytes);
}

static void layer_on_free(struct layer_on *o, const struct layer *l)
{
    struct backend *be = o->be;
    for (int i = 0; i < BUFS; i++) {
        be->ops->free(be, MEM_CAT_SCRATCH, o->t[i].data, o->got[i].n * sizeof(float));
        check_buf_free(&o->got[i]);
    }
    for (int i = 0; i < MATS; i++)
        be->ops->unpack_free(be, o->w[i]);
    be->ops->free(be, MEM_CAT_SCRATCH, o->norm, 2 * (size_t)l->width * sizeof(float));
    be->ops->free(be, MEM_CAT_SCRATCH, o->kv.data, o->kv_bytes);
    mem_free(MEM_CAT_SCRATCH, o->cache);
}

/* The positions before the step. */
static void store_history(struct layer_on *o, const struct layer *l)
{
    for (int s = 0; s < l->k->n_seqs && l->k->history > 0; s++) {
        struct seq_view v = { .n_rows = l->k->history, .pages = l->pages[s] };
        struct tensor k = o->t[BUF_OLD_K], x = o->t[BUF_OLD_V];
        k.rows = x.rows = l->k->history;
        ops_begin(o->be, l->k->history);
        ops_kv_store(o->be, &o->kv, k, x, &v, 1);
    }
}

static void layer_run(struct layer_on *o, const struct layer *l)
{
    const struct layer_case *k = l->k;
    struct backend *be = o->be;
    const struct tensor *t = o->t;
    struct weight *const *w = o->w;
    struct seq_view v[64];
    float inv[256];
    struct rope r = { k->rope, k->head_dim, inv, 1 };
    struct attn_params p = { .scale = 0.1f, .n_heads = k->heads };
    for (int i = 0; i < k->head_dim / 2; i++)
        inv[i] = powf(10000, -2.0f * (float)i / (float)k->head_dim);
    for (int s = 0; s < k->n_seqs; s++)
        v[s] = (struct seq_view){ .row0 = s * k->rows_of_seq,
                                  .n_rows = k->rows_of_seq,
                                  .pos0 = k->history,
                                  .pages = l->pages[s] };
    ops_begin(be, l->rows);
    ops_add(be, t[BUF_X], t[BUF_H]);
    ops_rms_norm(be, t[BUF_H], t[BUF_X], o->norm, (int)l->width, 1e-5f);
    ops_linear_many(be, 3, (const struct tensor[]){ t[BUF_Q], t[BUF_K], t[BUF_V] }, t[BUF_H],
                    (const struct weight *const[]){ w[MAT_Q], w[MAT_K], w[MAT_V] });
    ops_rope(be, t[BUF_Q], &r, k->head_dim, l->pos);
    ops_rope(be, t[BUF_K], &r, k->head_dim, l->pos);
    ops_kv_store(be, &o->kv, t[BUF_K], t[BUF_V], v, k->n_seqs);
    ops_attention(be, t[BUF_ATT], t[BUF_Q], &o->kv, v, k->n_seqs, &p);
    ops_linear(be, t[BUF_H], t[BUF_ATT], w[MAT_O]);
    ops_add(be, t[BUF_X], t[BUF_H]);
    ops_rms_norm(be, t[BUF_H], t[BUF_X], o->norm + l->width, (int)l->width, 1e-5f);
    ops_linear_many(be, 2, (const struct tensor[]){ t[BUF_GATE], t[BUF_UP] }, t[BUF_H],
                    (const struct weight *const[]){ w[MAT_GATE], w[MAT_UP] });
    ops_glu(be, t[BUF_GATE], t[BUF_GATE], t[BUF_UP], k->glu);
    ops_linear(be, t[BUF_H], t[BUF_GATE], w[MAT_DOWN]);
    memset(o->flags, 0, sizeof(o->flags));
    ops_failed(be, o->flags);
}

static void layer_pass(struct layer_on *o, const struct layer *l)
{
    struct backend *be = o->be;
    for (int i = 0; i < BUFS; i++)
        be->ops->upload(be, o->t[i].data, l->start[i].t.data, l->start[i].n * sizeof(float));
    memset(o->cache, 0x11, o->kv_bytes);
    be->ops->upload(be, o->kv.data, o->cache, o->kv_bytes);
    store_history(o, l);
    layer_run(o, l);
    for (int i = 0; i < BUFS; i++)
        be->ops->download(be, o->got[i].t.data, o->t[i].data, o->got[i].n * sizeof(float));
    be->ops->download(be, o->cache, o->kv.data, o->kv_bytes);
}

static void check_layer(struct check *c, struct backend *fast, struct backend *plain,
                        const struct layer_case *k)
{
    static const char *const names[BUFS] = { "x",   "h",    "q",  "k",     "v",
                                             "att", "gate", "up", "old k", "old v" };
    struct layer l;
    struct layer_on a, b;
    struct err err = { 0 };
    layer_init(&l, k);
    layer_on_init(&a, plain, &l);
    layer_on_init(&b, fast, &l);
    layer_pass(&a, &l);
    for (int pass = 0; pass < PASSES; pass++) {
        layer_pass(&b, &l);
        for (int i = 0; i < BUFS; i++)
            check_that(c, check_buf_same(&a.got[i], &b.got[i], true),
                       "cuda/fused/%s %dx%dx%d ff %d, %d x %d rows at %d, poison %d, pass %d: %s",
                       dtype_info(k->type)->name, k->heads, k->kv_heads, k->head_dim, k->ff,
                       k->n_seqs, k->rows_of_seq, k->history, k->poison, pass, names[i]);
        check_that(c,
                   memcmp(a.flags, b.flags, sizeof(a.flags)) == 0 &&
                       memcmp(a.cache, b.cache, a.kv_bytes) == 0,
                   "cuda/fused/%s: flags and cache", dtype_info(k->type)->name);
    }
    for (int t = 0; t < l.rows; t++)
        if (a.flags[t] != (t == k->poison))
            check_that(c, false, "cuda/fused: row %d, flag %d", t, a.flags[t]);
    check_that(c, fast->ops->wait(fast, &err) == ERR_OK, "cuda/fused: %s", err.text);
    layer_on_free(&a, &l);
    layer_on_free(&b, &l);
    layer_free(&l);
}

/* What the best column of a row is: of equal ones the lowest, 0 as -0, and none where one is not finite. */
static int32_t best_of(const float *x, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return -1;
        best = x[i] > x[best] ? (int32_t)i : best;
    }
    return best;
}

static void check_best(struct check *c, struct backend *be, int64_t cols)
{
    enum { ROWS = 9 };
    struct check_buf x = check_buf_new(ROWS, cols, cols + 5);
    int32_t got[ROWS], want[ROWS];
    for (int t = 0; t < ROWS; t++) {
        float *row = x.t.data + t * x.t.stride;
        check_fill(row, (size_t)cols, t % CHECK_KINDS);
        for (int64_t i = 0; t >= 6 && i < cols; i++) /* all are equal, or nearly so */
            row[i] = t == 6 ? -2.5f : i % 3 ? -0.0f : 0.0f;
        if (t == 8)
            row[cols / 2] = check_rand() % 2 ? NAN : -INFINITY;
        want[t] = best_of(row, cols);
    }
    struct tensor d = x.t;
    d.data = device_memory(be, x.n * sizeof(float));
    be->ops->upload(be, d.data, x.t.data, x.n * sizeof(float));
    ops_begin(be, ROWS);
    be->ops->best(be, d, got);
    check_that(c, be->ops->wait(be, NULL) == ERR_OK && memcmp(got, want, sizeof(got)) == 0,
               "cuda/fused/best [%d][%lld]", ROWS, (long long)cols);
    be->ops->free(be, MEM_CAT_SCRATCH, d.data, x.n * sizeof(float));
    check_buf_free(&x);
}

void check_fused_cuda(struct check *c, struct backend *fast, struct backend *plain)
{
    static const struct layer_case shapes[] = {
        { DTYPE_Q4_K, DTYPE_F16, 4, 2, 64, 512, 1, 1, 0, ROPE_KIND_NORMAL, GLU_KIND_SILU, -1 },
        { DTYPE_Q4_K, DTYPE_F16, 12, 3, 128, 2560, 1, 1, 700, ROPE_KIND_NEOX, GLU_KIND_SILU, -1 },
        { DTYPE_Q8_0, DTYPE_BF16, 8, 8, 128, 1056, 1, 1, 300, ROPE_KIND_NEOX, GLU_KIND_GELU_TANH,
          -1 },
        { DTYPE_BF16, DTYPE_F16, 32, 8, 128, 1000, 1, 1, 63, ROPE_KIND_NORMAL, GLU_KIND_SILU, -1 },
        { DTYPE_Q6_K, DTYPE_F16, 36, 4, 128, 768, 1, 1, 10, ROPE_KIND_NORMAL, GLU_KIND_GELU_ERF,
          -1 },
        { DTYPE_MLX4, DTYPE_F16, 8, 4, 48, 384, 1, 1, 100, ROPE_KIND_NEOX, GLU_KIND_SWIGLU_CLAMPED,
          -1 },
        { DTYPE_Q4_K, DTYPE_KV_Q8, 8, 2, 64, 512, 1, 1, 600, ROPE_KIND_NORMAL, GLU_KIND_SILU, -1 },
        { DTYPE_Q8_0, DTYPE_KV_Q4, 6, 3, 128, 768, 1, 1, 127, ROPE_KIND_NEOX, GLU_KIND_SILU, -1 },
        { DTYPE_Q8_0, DTYPE_KV_Q8, 8, 2, 48, 384, 1, 1, 30, ROPE_KIND_NEOX, GLU_KIND_SILU, -1 },
    };
    /* Sequences and rows of each: kernels for few rows, for many, for both kinds of attention. */
    static const int steps[][2] = { { 1, 1 },  { 3, 1 },  { 8, 1 },  { 9, 1 },  { 2, 7 },
                                    { 17, 1 }, { 40, 1 }, { 3, 30 }, { 1, 200 } };
    static const int64_t vocabularies[] = { 1, 31, 1024, 1025, 128256, 151937 };
    for (size_t i = 0; i < ARRAY_LEN(vocabularies); i++)
        check_best(c, fast, vocabularies[i]);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (size_t j = 0; j < ARRAY_LEN(steps); j++) {
            struct layer_case k = shapes[i];
            k.n_seqs = steps[j][0];
            k.rows_of_seq = steps[j][1];
            if (c->is_quick && ((i + j) % 3 != 0 || k.n_seqs * k.rows_of_seq > QUICK_ROWS))
                continue;
            check_layer(c, fast, plain, &k);
            k.poison = k.n_seqs * k.rows_of_seq - 1;
            if (j == 1 || j == 5)
                check_layer(c, fast, plain, &k);
        }
}
