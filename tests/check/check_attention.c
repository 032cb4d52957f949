/* kv_store and attention against ref: page bytes and outputs; ref against a plain softmax in double. */
#include "check.h"

#include "tensor/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define P     KV_PAGE_TOKENS
#define PAGES 96

struct attn_case {
    int kv_heads, per, head_dim;
    enum dtype type;
    int window;
    float softcap;
    bool sinks;
    int n_seqs;
    struct {
        int pos0, n_rows; /* [0, pos0) is stored first */
    } seq[3];
    bool poison; /* a NaN in the query of the last row */
};

struct side {
    struct backend *be;
    struct kv_layer kv;
    size_t bytes;
};

static void side_open(struct side *s, struct backend *be, const struct attn_case *k)
{
    size_t page = be->ops->kv_page_bytes(be, k->type, k->kv_heads, k->head_dim);
    s->be = be;
    s->bytes = page * PAGES;
    s->kv = (struct kv_layer){ k->type, k->kv_heads, k->head_dim, PAGES,
                               be->ops->alloc(be, MEM_CAT_KV, s->bytes) };
    memset(s->kv.data, 0xFF, s->bytes); /* what is not written is NaN */
}

static void side_close(struct side *s)
{
    s->be->ops->free(s->be, MEM_CAT_KV, s->kv.data, s->bytes);
}

static int total_rows(const struct attn_case *k)
{
    int n = 0;
    for (int s = 0; s < k->n_seqs; s++)
        n += k->seq[s].n_rows;
    return n;
}

/* Sequence s owns every third page, so that pages of different ones lie between each other. Pages under the window of all its
 * rows are -1. */
static void make_pages(const struct attn_case *k, int s, bool drop, int32_t pages[PAGES])
{
    for (int i = 0; i < PAGES; i++) {
        bool under = drop && k->window && (i + 1) * P <= k->seq[s].pos0 - k->window + 1;
        pages[i] = under || 3 * i + s >= PAGES ? -1 : 3 * i + s;
    }
}

struct keys { /* of one sequence: [pos][kv_heads * head_dim] */
    float *k, *v;
    int n;
};

static void store_prefix(struct side *s, const struct attn_case *k, int i, const struct keys *keys)
{
    int32_t pages[PAGES];
    int64_t cols = (int64_t)k->kv_heads * k->head_dim;
    make_pages(k, i, false, pages);
    for (int pos = 0; pos < k->seq[i].pos0;) { /* in uneven pieces */
        int n = 1 + pos % 129;
        n = n < k->seq[i].pos0 - pos ? n : k->seq[i].pos0 - pos;
        struct seq_view v = { 0, n, pos, pages };
        ops_kv_store(s->be, &s->kv, tensor_of(keys->k + pos * cols, n, cols),
                     tensor_of(keys->v + pos * cols, n, cols), &v, 1);
        pos += n;
    }
}

static void run_side(struct side *s, const struct attn_case *k, const struct keys *keys,
                     struct tensor q, struct tensor out, const float *sinks, uint8_t *flags)
{
    int32_t pages[3][PAGES];
    struct seq_view views[3];
    int64_t cols = (int64_t)k->kv_heads * k->head_dim;
    int row = 0, rows = total_rows(k);
    float *nk = mem_alloc(MEM_CAT_SCRATCH, (size_t)(rows * cols) * sizeof(float));
    float *nv = mem_alloc(MEM_CAT_SCRATCH, (size_t)(rows * cols) * sizeof(float));
    for (int i = 0; i < k->n_seqs; i++) {
        store_prefix(s, k, i, &keys[i]);
        make_pages(k, i, true, pages[i]);
        views[i] = (struct seq_view){ row, k->seq[i].n_rows, k->seq[i].pos0, pages[i] };
        size_t n = (size_t)(k->seq[i].n_rows * cols) * sizeof(float);
        memcpy(nk + row * cols, keys[i].k + k->seq[i].pos0 * cols, n);
        memcpy(nv + row * cols, keys[i].v + k->seq[i].pos0 * cols, n);
        row += k->seq[i].n_rows;
    }
    struct attn_params p = { .scale = 1.0f / sqrtf((float)k->head_dim),
                             .softcap = k->softcap,
                             .window = k->window,
                             .n_heads = k->kv_heads * k->per,
                             .sinks = k->sinks ? sinks : NULL };
    ops_begin(s->be, rows);
    ops_kv_store(s->be, &s->kv, tensor_of(nk, rows, cols), tensor_of(nv, rows, cols), views,
                 k->n_seqs);
    ops_attention(s->be, out, q, &s->kv, views, k->n_seqs, &p);
    memset(flags, 0, (size_t)rows);
    ops_failed(s->be, flags);
    mem_free(MEM_CAT_SCRATCH, nk);
    mem_free(MEM_CAT_SCRATCH, nv);
}

static float rounded(enum dtype type, float x)
{
    if (type == DTYPE_F16)
        return f16_to_f32(f32_to_f16(x));
    return type == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

/* Softmax attention in double over the rounded keys and values: relative error of each head's vector. */
static double worst_error(const struct attn_case *k, const struct keys *keys, struct tensor q,
                          struct tensor out, const float *sinks)
{
    double worst = 0;
    int row = 0, d = k->head_dim;
    for (int s = 0; s < k->n_seqs; s++) {
        for (int t = 0; t < k->seq[s].n_rows; t++, row++) {
            int pos = k->seq[s].pos0 + t;
            int first = k->window && pos >= k->window ? pos - k->window + 1 : 0;
            for (int h = 0; h < k->kv_heads * k->per; h++) {
                double sum = k->sinks ? exp((double)sinks[h]) : 0, err = 0, size = 0;
                double acc[BACKEND_HEAD_DIM_MAX] = { 0 };
                for (int j = first; j <= pos; j++) {
                    int64_t at = (int64_t)(j * k->kv_heads + h / k->per) * d;
                    double dot = 0;
                    for (int i = 0; i < d; i++)
                        dot += (double)q.data[row * q.stride + h * d + i] *
                               (double)rounded(k->type, keys[s].k[at + i]);
                    dot /= sqrt(d);
                    if (k->softcap > 0)
                        dot = (double)k->softcap * tanh(dot / (double)k->softcap);
                    sum += exp(dot);
                    for (int i = 0; i < d; i++)
                        acc[i] += exp(dot) * (double)rounded(k->type, keys[s].v[at + i]);
                }
                for (int i = 0; i < d; i++) {
                    double e = (double)out.data[row * out.stride + h * d + i] - acc[i] / sum;
                    err += e * e;
                    size += acc[i] / sum * (acc[i] / sum);
                }
                worst = fmax(worst, sqrt(err / size));
            }
        }
    }
    return worst;
}

static void check_case(struct check *c, const struct attn_case *k, int number)
{
    int rows = total_rows(k), heads = k->kv_heads * k->per;
    int64_t q_cols = (int64_t)heads * k->head_dim, kv_cols = (int64_t)k->kv_heads * k->head_dim;
    struct keys keys[3];
    float sinks[64];
    uint8_t flags[2][1024];
    struct check_buf q = check_buf_new(rows, q_cols, q_cols + 2);
    struct check_buf want = check_buf_new(rows, q_cols, q_cols + 1);
    struct check_buf got = check_buf_new(rows, q_cols, q_cols + 1);
    for (int s = 0; s < k->n_seqs; s++) {
        keys[s].n = k->seq[s].pos0 + k->seq[s].n_rows;
        size_t n = (size_t)(keys[s].n * kv_cols);
        keys[s].k = mem_alloc(MEM_CAT_SCRATCH, n * sizeof(float));
        keys[s].v = mem_alloc(MEM_CAT_SCRATCH, n * sizeof(float));
        check_fill(keys[s].k, n, 0);
        check_fill(keys[s].v, n, 0);
    }
    check_fill(sinks, ARRAY_LEN(sinks), 0);
    for (int t = 0; t < rows; t++)
        check_fill(q.t.data + t * q.t.stride, (size_t)q_cols, 0);
    if (k->poison)
        q.t.data[(rows - 1) * q.t.stride + 1] = NAN;
    struct side ref, cpu;
    side_open(&ref, c->ref, k);
    run_side(&ref, k, keys, q.t, want.t, sinks, flags[0]);
    if (!k->poison) {
        double e = worst_error(k, keys, q.t, want.t, sinks);
        check_that(c, e < 2e-5, "attention-fp64 case %d: relative error %g", number, e);
    }
    for (int t = 0; t < rows; t++)
        check_that(c, flags[0][t] == (k->poison && t == rows - 1),
                   "attention case %d: row %d flag %d", number, t, flags[0][t]);
    for (int b = 0; b < c->n_cpu; b++) {
        side_open(&cpu, c->cpu[b].be, k);
        check_buf_reset(&got);
        run_side(&cpu, k, keys, q.t, got.t, sinks, flags[1]);
        check_that(c, cpu.bytes == ref.bytes && memcmp(ref.kv.data, cpu.kv.data, ref.bytes) == 0,
                   "kv_store/%s case %d", c->cpu[b].name, number);
        check_that(
            c, check_buf_same(&want, &got, false) && memcmp(flags[0], flags[1], (size_t)rows) == 0,
            "attention/%s case %d", c->cpu[b].name, number);
        side_close(&cpu);
    }
    side_close(&ref);
    for (int s = 0; s < k->n_seqs; s++) {
        mem_free(MEM_CAT_SCRATCH, keys[s].k);
        mem_free(MEM_CAT_SCRATCH, keys[s].v);
    }
    check_buf_free(&q);
    check_buf_free(&want);
    check_buf_free(&got);
}

static const struct attn_case cases[] = {
    /* decode, short and long (blocks over threads), one and several kv heads */
    { 2, 6, 128, DTYPE_F16, 0, 0, false, 1, { { 0, 1 } }, false },
    { 2, 6, 128, DTYPE_F16, 0, 0, false, 1, { { 63, 1 } }, false },
    { 2, 6, 128, DTYPE_F16, 0, 0, false, 1, { { 64, 1 } }, false },
    { 1, 4, 256, DTYPE_F16, 0, 0, false, 1, { { 1500, 1 } }, false },
    { 2, 7, 64, DTYPE_F16, 0, 0, false, 1, { { 1999, 1 } }, false },
    { 1, 7, 64, DTYPE_F32, 0, 0, true, 1, { { 1200, 2 } }, false },
    /* prefill, whole and in the middle */
    { 3, 3, 64, DTYPE_F16, 0, 0, false, 1, { { 0, 200 } }, false },
    { 3, 3, 64, DTYPE_BF16, 0, 0, false, 1, { { 50, 77 } }, false },
    { 1, 4, 256, DTYPE_F16, 100, 0, false, 1, { { 300, 130 } }, false },
    { 2, 2, 128, DTYPE_F32, 0, 30, true, 1, { { 10, 65 } }, false },
    /* windows that cut blocks and drop pages */
    { 1, 4, 64, DTYPE_F16, 128, 0, false, 1, { { 1000, 1 } }, false },
    { 1, 4, 64, DTYPE_F16, 1, 0, false, 1, { { 70, 3 } }, false },
    { 2, 1, 64, DTYPE_BF16, 700, 50, true, 2, { { 1500, 4 }, { 3, 9 } }, false },
    /* several sequences in one step: decode and prefill mixed */
    { 2, 3, 64, DTYPE_F16, 0, 0, false, 3, { { 333, 1 }, { 0, 40 }, { 129, 5 } }, false },
    { 1, 1, 80, DTYPE_F16, 0, 0, false, 3, { { 64, 1 }, { 127, 1 }, { 128, 1 } }, false },
    /* head sizes that are no multiple of a register; many heads on one kv head */
    { 2, 2, 12, DTYPE_F16, 0, 0, false, 2, { { 30, 4 }, { 0, 3 } }, false },
    { 1, 3, 40, DTYPE_BF16, 20, 0, false, 1, { { 100, 7 } }, false },
    { 1, 50, 32, DTYPE_F16, 0, 0, false, 1, { { 900, 3 } }, false },
    /* a query that is not finite fails its row alone */
    { 2, 2, 64, DTYPE_F16, 0, 0, false, 1, { { 70, 5 } }, true },
    { 1, 2, 64, DTYPE_F16, 0, 0, false, 1, { { 1400, 1 } }, true },
};

/* Page 2 becomes page 5 and no other byte of the slab changes; a page onto itself changes nothing. */
static void check_copy(struct check *c, struct backend *be, const char *name,
                       const struct attn_case *k)
{
    struct side s;
    side_open(&s, be, k);
    size_t page = s.bytes / PAGES;
    uint8_t *want = mem_alloc(MEM_CAT_SCRATCH, s.bytes);
    for (size_t i = 0; i < s.bytes; i++)
        want[i] = (uint8_t)check_rand();
    memcpy(s.kv.data, want, s.bytes);
    memcpy(want + 2 * page, want + 5 * page, page);
    ops_kv_copy_page(be, &s.kv, 2, 5);
    ops_kv_copy_page(be, &s.kv, PAGES - 1, PAGES - 1);
    check_that(c, memcmp(want, s.kv.data, s.bytes) == 0, "kv_copy_page/%s %dx%d %s", name,
               k->kv_heads, k->head_dim, dtype_info(k->type)->name);
    mem_free(MEM_CAT_SCRATCH, want);
    side_close(&s);
}

static void check_copies(struct check *c)
{
    static const struct attn_case shapes[] = {
        { .kv_heads = 2, .head_dim = 64, .type = DTYPE_F16 },
        { .kv_heads = 3, .head_dim = 12, .type = DTYPE_BF16 },
        { .kv_heads = 1, .head_dim = 80, .type = DTYPE_F32 },
    };
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        check_copy(c, c->ref, "ref", &shapes[i]);
        for (int b = 0; b < c->n_cpu; b++)
            check_copy(c, c->cpu[b].be, c->cpu[b].name, &shapes[i]);
    }
}

void check_attention(struct check *c)
{
    if (!check_wants(c, "attention"))
        return;
    check_copies(c);
    for (int i = 0; i < (int)ARRAY_LEN(cases); i++)
        check_case(c, &cases[i], i);
}
