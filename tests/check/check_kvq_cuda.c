/* Quantised caches on the GPU: its pages hold what ref's do, in the order of cu_kvq (params.h), and attention has the bits that an f16 cache
 * has of what those bytes say; kernels that read codes have the bits of the plain ones, whose pages are taken out. */
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

/* The place of column c of a unit in the lanes' order: the columns of lanes 0 to 3 of a quad, four for each 16. */
static int lanes_place(int c)
{
    for (int lane = 0, place = 0; lane < 4; lane++)
        for (int step = 0; step < 4; step++)
            for (int i = 0; i < 4; i++, place++)
                if (c == step * 16 + i / 2 * 8 + lane * 2 + i % 2)
                    return place;
    return -1;
}

/* A part of ref's as the GPU holds it. */
static void to_lanes(uint8_t *out, uint8_t *part, enum dtype type, int dim, int v)
{
    struct kvq_part from = kvq_part_at(type, dim, v, part);
    int groups = kvq_groups(dim), unit = from.row / groups;
    uint16_t *scales = (uint16_t *)(void *)(out + (size_t)from.row * KV_PAGE_TOKENS);
    for (int j = 0; j < KV_PAGE_TOKENS; j++)
        for (int c = 0; c < from.row; c++) {
            int place = lanes_place(c % unit); /* of 4 bits: of the low nibble */
            place = unit == KVQ_GROUP ? place : place / 16 * 8 + place % 16;
            if (v)
                out[j * from.row + c] = from.codes[j * from.row + c];
            else
                out[j * from.row + c / unit * unit + place] = from.codes[c * KV_PAGE_TOKENS + j];
        }
    for (int i = 0; i < groups * KV_PAGE_TOKENS; i++) {
        scales[2 * i] = from.scales[i];
        scales[2 * i + 1] = from.biases[i];
    }
    if (v)
        return;
    uint16_t *base = scales + 2 * groups * KV_PAGE_TOKENS;
    for (int i = 0; i < dim; i++)
        base[i / KVQ_GROUP * KVQ_GROUP + lanes_place(i % KVQ_GROUP)] = from.base[i];
    memcpy(base + dim, from.relative, (size_t)groups * sizeof(*from.relative));
}

/* Pages of ref's become the GPU's, if its order is another one. */
static void as_on_gpu(uint8_t *pages, size_t bytes, enum dtype type, int dim)
{
    size_t n = kv_part_bytes(type, dim, 0), m = kv_part_bytes(type, dim, 1);
    uint8_t *tmp = mem_alloc(MEM_CAT_KV, n);
    for (size_t at = 0; at < bytes && dim % KVQ_GROUP == 0; at += n + m)
        for (int v = 0; v < 2; v++) {
            uint8_t *part = pages + at + (v ? n : 0);
            memset(tmp, 0, n);
            to_lanes(tmp, part, type, dim, v);
            memcpy(part, tmp, v ? m : n);
        }
    mem_free(MEM_CAT_KV, tmp);
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
    as_on_gpu(want, slab, k->type, k->head_dim);
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

/* --- pages of any numbers --- */

struct page_case {
    enum dtype type;
    int kv_heads, per, head_dim;
    int32_t window;
    float softcap;
    int n_seqs;
    struct {
        int pos0, n_rows;
    } seq[3];
};

#define PAGES 20 /* of each sequence */

/* A bias of any size and a scale that can stand beside it: the bias over an integer between top / 2 and 2^20, of the other sign. */
static void any_line(enum dtype type, uint16_t *scale, uint16_t *bias)
{
    int least = (kvq_top(type) + 1) / 2;
    int64_t z = least + (int64_t)check_rand() % ((int64_t)1 << (4 + check_rand() % 17));
    *bias = (uint16_t)(check_rand() % 0x7C00 | (check_rand() % 2) << 15);
    if (check_rand() % 4) /* often near 1, so that softmax has more than one weight */
        *bias = (uint16_t)((*bias & 0x83FF) | (12 + check_rand() % 5) << 10);
    *scale = f32_to_f16(-f16_to_f32(*bias) / (float)(z < 1 << 20 ? z : 1 << 20));
    if (check_rand() % 16 == 0 || (*scale & 0x7FFF) == 0)
        *scale = 0;
}

/* Pages as ref has them: each code, line, base and bit is one that a store can leave. */
static void any_pages(const struct page_case *k, uint8_t *pages, size_t bytes)
{
    size_t part[2] = { kv_part_bytes(k->type, k->head_dim, 0),
                       kv_part_bytes(k->type, k->head_dim, 1) };
    int groups = kvq_groups(k->head_dim);
    for (size_t at = 0, i = 0; at < bytes; at += part[i % 2], i++) {
        struct kvq_part p = kvq_part_at(k->type, k->head_dim, i % 2, pages + at);
        for (int c = 0; c < p.row * KV_PAGE_TOKENS; c++)
            p.codes[c] = (uint8_t)check_rand();
        for (int g = 0; g < groups * KV_PAGE_TOKENS; g++)
            any_line(k->type, &p.scales[g], &p.biases[g]);
        for (int g = 0; g < groups && i % 2 == 0; g++)
            p.relative[g] = (uint64_t)check_rand() << 32 ^ check_rand();
        for (int c = 0; c < k->head_dim && i % 2 == 0; c++) /* some are as far out as can be */
            p.base[c] =
                (uint16_t)(check_rand() % (c % 29 ? 0x4400 : 0x7C00) | (check_rand() % 2) << 15);
    }
}

static void page_run(struct backend *be, const struct page_case *k, const uint8_t *pages,
                     size_t bytes, const struct check_buf *q, struct check_buf *out)
{
    static int32_t numbers[3][PAGES];
    struct seq_view seqs[3];
    struct kv_layer kv = { k->type, k->kv_heads, k->head_dim, k->n_seqs * PAGES,
                           be->ops->alloc(be, MEM_CAT_KV, bytes) };
    struct tensor dq = q->t, o = out->t;
    struct attn_params p = {
        .scale = 0.05f, .softcap = k->softcap, .window = k->window, .n_heads = k->kv_heads * k->per
    };
    be->ops->upload(be, kv.data, pages, bytes);
    dq.data = upload(be, q->t.data, q->n * sizeof(float));
    o.data = upload(be, out->t.data, out->n * sizeof(float));
    for (int s = 0, row = 0; s < k->n_seqs; row += k->seq[s++].n_rows) {
        for (int i = 0; i < PAGES; i++)
            numbers[s][i] = (i * 7 + s) % PAGES * k->n_seqs + s;
        seqs[s] = (struct seq_view){
            .row0 = row, .n_rows = k->seq[s].n_rows, .pos0 = k->seq[s].pos0, .pages = numbers[s]
        };
    }
    uint8_t flags[64] = { 0 };
    ops_begin(be, dq.rows);
    ops_attention(be, o, dq, &kv, seqs, k->n_seqs, &p);
    ops_failed(be, flags);
    be->ops->download(be, out->t.data, o.data, out->n * sizeof(float));
    be->ops->free(be, MEM_CAT_SCRATCH, dq.data, q->n * sizeof(float));
    be->ops->free(be, MEM_CAT_SCRATCH, o.data, out->n * sizeof(float));
    be->ops->free(be, MEM_CAT_KV, kv.data, bytes);
}

static void check_pages(struct check *c, const struct page_case *k, struct backend *fast,
                        struct backend *plain)
{
    size_t bytes = (size_t)(k->n_seqs * PAGES * k->kv_heads) * kv_head_bytes(k->type, k->head_dim);
    uint8_t *pages = mem_alloc(MEM_CAT_KV, bytes);
    int64_t rows = 0, cols = (int64_t)k->kv_heads * k->per * k->head_dim;
    for (int s = 0; s < k->n_seqs; s++)
        rows += k->seq[s].n_rows;
    struct check_buf q = check_buf_new(rows, cols, cols),
                     want = check_buf_new(rows, cols, cols + 2),
                     got = check_buf_new(rows, cols, cols + 2);
    check_fill(q.t.data, q.n, 0);
    any_pages(k, pages, bytes);
    as_on_gpu(pages, bytes, k->type, k->head_dim);
    page_run(plain, k, pages, bytes, &q, &want);
    page_run(fast, k, pages, bytes, &q, &got);
    check_that(c, check_buf_same(&want, &got, false),
               "cuda/kvq/pages/%s %dx%dx%d, %d sequences, the first at %d, window %d, cap %g",
               dtype_info(k->type)->name, k->kv_heads, k->per, k->head_dim, k->n_seqs,
               k->seq[0].pos0, k->window, (double)k->softcap);
    check_that(c, fast->ops->wait(fast, NULL) == ERR_OK && plain->ops->wait(plain, NULL) == ERR_OK,
               "cuda/kvq/pages: wait");
    check_buf_free(&q);
    check_buf_free(&want);
    check_buf_free(&got);
    mem_free(MEM_CAT_KV, pages);
}

static void check_all_pages(struct check *c, struct backend *fast, struct backend *plain)
{
    static const struct page_case cases[] = {
        { 0, 2, 4, 64, 0, 0, 1, { { 1100, 1 } } },
        { 0, 2, 4, 128, 0, 0, 1, { { 1100, 1 } } },
        { 0, 1, 1, 64, 0, 0, 1, { { 63, 1 } } },
        { 0, 1, 7, 128, 0, 0, 1, { { 64, 4 } } },
        { 0, 3, 2, 64, 200, 0, 1, { { 700, 9 } } },
        { 0, 1, 16, 128, 130, 0, 2, { { 1000, 2 }, { 511, 1 } } },
        { 0, 2, 8, 64, 0, 0, 3, { { 900, 1 }, { 250, 40 }, { 0, 4 } } },
        { 0, 2, 3, 128, 0, 0, 3, { { 255, 1 }, { 256, 1 }, { 1279, 1 } } },
        /* those whose pages are taken out */
        { 0, 1, 2, 64, 0, 20, 1, { { 600, 1 } } },
        { 0, 1, 2, 192, 0, 0, 1, { { 600, 1 } } },
        { 0, 1, 2, 48, 0, 0, 1, { { 600, 1 } } },
    };
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        struct page_case k = cases[i / 2];
        k.type = i % 2 ? DTYPE_KV_Q4 : DTYPE_KV_Q8;
        check_pages(c, &k, fast, plain);
    }
}

void check_kvq_cuda(struct check *c, struct backend *fast, struct backend *plain)
{
    static const struct kvq_case cases[] = {
        { DTYPE_KV_Q8, 2, 4, 128, 400, 0, 400, false },
        { DTYPE_KV_Q8, 2, 4, 128, 300, 0, 1, false },
        { DTYPE_KV_Q8, 2, 2, 64, 330, 0, 1, false },
        { DTYPE_KV_Q8, 1, 3, 64, 300, 100, 5, false },
        { DTYPE_KV_Q8, 1, 4, 128, 140, 0, 3, true },
        { DTYPE_KV_Q8, 3, 1, 80, 200, 90, 7, false },
        { DTYPE_KV_Q8, 1, 2, 256, 190, 0, 64, false },
        { DTYPE_KV_Q8, 2, 2, 16, 130, 0, 13, true },
        { DTYPE_KV_Q4, 2, 4, 64, 400, 0, 400, false },
        { DTYPE_KV_Q4, 2, 4, 64, 270, 0, 1, false },
        { DTYPE_KV_Q4, 1, 2, 128, 330, 0, 2, false },
        { DTYPE_KV_Q4, 1, 4, 128, 300, 90, 8, false },
        { DTYPE_KV_Q4, 2, 2, 64, 140, 0, 1, true },
        { DTYPE_KV_Q4, 2, 2, 80, 150, 0, 1, false },
        { DTYPE_KV_Q4, 1, 3, 100, 200, 50, 30, true },
        { DTYPE_KV_Q4, 1, 2, 33, 130, 0, 20, false },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_kvq_case(c, &cases[i], fast, plain);
    check_all_pages(c, fast, plain);
}
