/* kv_store and attention against ref: page bytes and outputs; ref against a plain softmax in double. */
#include "check.h"

#include "tensor/half.h"
#include "tensor/kvq.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define P     KV_PAGE_TOKENS
#define PAGES 96

enum poison { POISON_NONE, POISON_QUERY, POISON_KEY, POISON_VALUE };

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
    int n_pages; /* 0 = PAGES */
    enum poison
        poison; /* a value that is not finite in the last row's query, or a middle row's key or value */
    bool is_two_way;
};

struct side {
    struct backend *be;
    struct kv_layer kv;
    size_t bytes;
};

static void side_open(struct side *s, struct backend *be, const struct attn_case *k)
{
    size_t page = be->ops->kv_page_bytes(be, k->type, k->kv_heads, k->head_dim);
    int n_pages = k->n_pages ? k->n_pages : PAGES;
    s->be = be;
    s->bytes = page * (size_t)n_pages;
    s->kv = (struct kv_layer){ k->type, k->kv_heads, k->head_dim, n_pages,
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
    float *rk, *rv; /* as the cache holds them */
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
        struct seq_view v = { .n_rows = n, .pos0 = pos, .pages = pages };
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
        views[i] = (struct seq_view){
            .row0 = row, .n_rows = k->seq[i].n_rows, .pos0 = k->seq[i].pos0, .pages = pages[i]
        };
        size_t n = (size_t)(k->seq[i].n_rows * cols) * sizeof(float);
        memcpy(nk + row * cols, keys[i].k + k->seq[i].pos0 * cols, n);
        memcpy(nv + row * cols, keys[i].v + k->seq[i].pos0 * cols, n);
        row += k->seq[i].n_rows;
    }
    struct attn_params p = { .scale = 1.0f / sqrtf((float)k->head_dim),
                             .softcap = k->softcap,
                             .window = k->window,
                             .n_heads = k->kv_heads * k->per,
                             .sinks = k->sinks ? sinks : NULL,
                             .is_two_way = k->is_two_way };
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

/* What the cache holds of a group of position pos; x is its place in [pos][kv_heads * head_dim]. */
static void round_group(const struct attn_case *k, float *y, const float *x, int pos, int n,
                        bool is_key)
{
    uint16_t base[KVQ_GROUP];
    struct kvq_group q;
    if (is_key)
        kvq_base(base, x - (int64_t)(pos % P) * k->kv_heads * k->head_dim, n);
    BUG_ON(!kvq_quantise(&q, x, is_key ? base : NULL, n, kvq_top(k->type)));
    for (int i = 0; i < n; i++)
        y[i] = is_key ? kvq_key(q.codes[i], q.scale, q.bias, q.is_relative, base[i])
                      : kvq_value(q.codes[i], q.scale, q.bias);
}

/* What the cache holds of x [n_pos][kv_heads * head_dim]. */
static void round_heads(const struct attn_case *k, float *y, const float *x, int n_pos, bool is_key)
{
    int64_t cols = (int64_t)k->kv_heads * k->head_dim;
    for (int64_t i = 0; i < n_pos * cols && !kvq_is(k->type); i++)
        y[i] = rounded(k->type, x[i]);
    for (int64_t at = 0; at < n_pos * cols && kvq_is(k->type); at += k->head_dim)
        for (int g = 0; g < kvq_groups(k->head_dim); g++)
            round_group(k, y + at + g * KVQ_GROUP, x + at + g * KVQ_GROUP, (int)(at / cols),
                        kvq_group_len(k->head_dim, g), is_key);
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
                int end = pos + 1, all = k->seq[s].pos0 + k->seq[s].n_rows;
                if (k->is_two_way)
                    end = k->window && pos + k->window < all ? pos + k->window : all;
                for (int j = first; j < end; j++) {
                    int64_t at = (int64_t)(j * k->kv_heads + h / k->per) * d;
                    double dot = 0;
                    for (int i = 0; i < d; i++)
                        dot +=
                            (double)q.data[row * q.stride + h * d + i] * (double)keys[s].rk[at + i];
                    dot /= sqrt(d);
                    if (k->softcap > 0)
                        dot = (double)k->softcap * tanh(dot / (double)k->softcap);
                    sum += exp(dot);
                    for (int i = 0; i < d; i++)
                        acc[i] += exp(dot) * (double)keys[s].rv[at + i];
                }
                for (int i = 0; i < d; i++) {
                    double e = (double)out.data[row * out.stride + h * d + i] - acc[i] / sum;
                    err += e * e;
                    size += acc[i] / sum * (acc[i] / sum);
                }
                worst = larger(worst, sqrt(err / size));
            }
        }
    }
    return worst;
}

static void keys_new(struct keys *keys, const struct attn_case *k, int n)
{
    int64_t all = (int64_t)n * k->kv_heads * k->head_dim;
    keys->n = n;
    keys->k = mem_alloc(MEM_CAT_SCRATCH, (size_t)(4 * all) * sizeof(float));
    keys->v = keys->k + all;
    keys->rk = keys->k + 2 * all;
    keys->rv = keys->k + 3 * all;
    check_fill(keys->k, (size_t)(2 * all), 0);
    if (kvq_is(k->type)) /* channels that are far out at every position, as keys have them */
        for (int64_t i = 0; i < all; i++)
            keys->k[i] += i % k->head_dim % 29 == 3 ? 60 : 0;
    round_heads(k, keys->rk, keys->k, n, true);
    round_heads(k, keys->rv, keys->v, n, false);
}

/* The row of the step that must fail, or -1. */
static int poison(const struct attn_case *k, struct tensor q, struct keys *keys)
{
    int rows = total_rows(k), t = k->seq[0].n_rows / 2, d = k->head_dim;
    int64_t at = (int64_t)((k->seq[0].pos0 + t) * k->kv_heads + k->kv_heads - 1) * d + d - 1;
    if (k->poison == POISON_QUERY)
        q.data[(rows - 1) * q.stride + 1] = NAN;
    if (k->poison == POISON_KEY)
        keys->k[at] = NAN;
    if (k->poison == POISON_VALUE)
        keys->v[at] = t % 2 ? INFINITY : 65536; /* over f16: the group fails as well */
    return k->poison == POISON_NONE ? -1 : k->poison == POISON_QUERY ? rows - 1 : t;
}

static void check_case(struct check *c, const struct attn_case *k, int number)
{
    int rows = total_rows(k), heads = k->kv_heads * k->per;
    int64_t q_cols = (int64_t)heads * k->head_dim;
    struct keys keys[3];
    float sinks[64];
    uint8_t flags[2][1024];
    struct check_buf q = check_buf_new(rows, q_cols, q_cols + 2);
    struct check_buf want = check_buf_new(rows, q_cols, q_cols + 1);
    struct check_buf got = check_buf_new(rows, q_cols, q_cols + 1);
    for (int s = 0; s < k->n_seqs; s++) {
        keys_new(&keys[s], k, k->seq[s].pos0 + k->seq[s].n_rows);
    }
    check_fill(sinks, ARRAY_LEN(sinks), 0);
    for (int t = 0; t < rows; t++)
        check_fill(q.t.data + t * q.t.stride, (size_t)q_cols, 0);
    int failing = poison(k, q.t, &keys[0]);
    struct side ref, cpu;
    side_open(&ref, c->ref, k);
    run_side(&ref, k, keys, q.t, want.t, sinks, flags[0]);
    if (!k->poison) {
        double e = worst_error(k, keys, q.t, want.t, sinks);
        check_that(c, e < 2e-5, "attention-fp64 case %d: relative error %g", number, e);
    }
    for (int t = 0; t < rows; t++)
        check_that(c, flags[0][t] == (t == failing), "attention case %d: row %d flag %d", number, t,
                   flags[0][t]);
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
    }
    check_buf_free(&q);
    check_buf_free(&want);
    check_buf_free(&got);
}

static const struct attn_case cases[] = {
    /* decode, short and long (blocks over threads), one and several kv heads */
    { 2, 6, 128, DTYPE_F16, 0, 0, false, 1, { { 0, 1 } }, 0, POISON_NONE, false },
    { 2, 6, 128, DTYPE_F16, 0, 0, false, 1, { { 63, 1 } }, 0, POISON_NONE, false },
    { 2, 6, 128, DTYPE_F16, 0, 0, false, 1, { { 64, 1 } }, 0, POISON_NONE, false },
    { 1, 4, 256, DTYPE_F16, 0, 0, false, 1, { { 1500, 1 } }, 0, POISON_NONE, false },
    { 2, 7, 64, DTYPE_F16, 0, 0, false, 1, { { 1999, 1 } }, 0, POISON_NONE, false },
    { 1, 7, 64, DTYPE_F32, 0, 0, true, 1, { { 1200, 2 } }, 0, POISON_NONE, false },
    /* more blocks than there is room for results: several rounds where threads share few slices */
    { 3, 8, 256, DTYPE_F16, 0, 0, true, 1, { { 1000, 6 } }, 0, POISON_NONE, false },
    /* verification: a few rows at depth, more queries than a pass takes */
    { 2, 7, 64, DTYPE_BF16, 0, 0, false, 1, { { 700, 5 } }, 0, POISON_NONE, false },
    { 3, 1, 128, DTYPE_F32, 0, 0, false, 1, { { 500, 16 } }, 0, POISON_NONE, false },
    { 1, 13, 80, DTYPE_F16, 300, 0, false, 1, { { 900, 8 } }, 0, POISON_NONE, false },
    /* prefill, whole and in the middle */
    { 3, 3, 64, DTYPE_F16, 0, 0, false, 1, { { 0, 200 } }, 0, POISON_NONE, false },
    { 3, 3, 64, DTYPE_BF16, 0, 0, false, 1, { { 50, 77 } }, 0, POISON_NONE, false },
    { 1, 4, 256, DTYPE_F16, 100, 0, false, 1, { { 300, 130 } }, 0, POISON_NONE, false },
    { 2, 2, 128, DTYPE_F32, 0, 30, true, 1, { { 10, 65 } }, 0, POISON_NONE, false },
    /* windows that cut blocks and drop pages */
    { 1, 4, 64, DTYPE_F16, 128, 0, false, 1, { { 1000, 1 } }, 0, POISON_NONE, false },
    { 1, 4, 64, DTYPE_F16, 1, 0, false, 1, { { 70, 3 } }, 0, POISON_NONE, false },
    { 2, 1, 64, DTYPE_BF16, 700, 50, true, 2, { { 1500, 4 }, { 3, 9 } }, 0, POISON_NONE, false },
    /* several sequences in one step: decode and prefill mixed */
    { 2,
      3,
      64,
      DTYPE_F16,
      0,
      0,
      false,
      3,
      { { 333, 1 }, { 0, 40 }, { 129, 5 } },
      0,
      POISON_NONE,
      false },
    { 1,
      1,
      80,
      DTYPE_F16,
      0,
      0,
      false,
      3,
      { { 64, 1 }, { 127, 1 }, { 128, 1 } },
      0,
      POISON_NONE,
      false },
    /* head sizes that are no multiple of a register; many heads on one kv head */
    { 2, 2, 12, DTYPE_F16, 0, 0, false, 2, { { 30, 4 }, { 0, 3 } }, 0, POISON_NONE, false },
    { 1, 3, 40, DTYPE_BF16, 20, 0, false, 1, { { 100, 7 } }, 0, POISON_NONE, false },
    { 1, 50, 32, DTYPE_F16, 0, 0, false, 1, { { 900, 3 } }, 0, POISON_NONE, false },
    /* both ways: short and long, with windows, several texts, many queries a kv head, and after others' positions */
    { 2, 1, 32, DTYPE_F16, 0, 0, false, 1, { { 0, 1 } }, 0, POISON_NONE, true },
    { 2, 2, 64, DTYPE_F16, 0, 0, false, 1, { { 0, 63 } }, 0, POISON_NONE, true },
    { 3, 1, 32, DTYPE_F32, 0, 0, false, 1, { { 0, 300 } }, 0, POISON_NONE, true },
    { 1, 3, 256, DTYPE_F16, 40, 0, false, 1, { { 0, 200 } }, 0, POISON_NONE, true },
    { 1, 3, 64, DTYPE_BF16, 1, 0, false, 1, { { 0, 70 } }, 0, POISON_NONE, true },
    { 2, 2, 64, DTYPE_F16, 65, 30, true, 1, { { 0, 130 } }, 0, POISON_NONE, true },
    { 2,
      3,
      64,
      DTYPE_F16,
      0,
      0,
      false,
      3,
      { { 0, 64 }, { 0, 1 }, { 0, 129 } },
      0,
      POISON_NONE,
      true },
    { 1, 50, 32, DTYPE_KV_Q8, 90, 0, false, 2, { { 0, 100 }, { 70, 30 } }, 0, POISON_NONE, true },
    { 2, 2, 64, DTYPE_F16, 0, 0, false, 1, { { 0, 75 } }, 0, POISON_QUERY, true },
    /* a query that is not finite fails its row alone */
    { 2, 2, 64, DTYPE_F16, 0, 0, false, 1, { { 70, 5 } }, 0, POISON_QUERY, false },
    { 1, 2, 64, DTYPE_F16, 0, 0, false, 1, { { 1400, 1 } }, 0, POISON_QUERY, false },
    /* quantised caches: decode over one and several threads, prefill, windows, several sequences, short last groups */
    { 2, 6, 128, DTYPE_KV_Q8, 0, 0, false, 1, { { 63, 1 } }, 0, POISON_NONE, false },
    { 2, 6, 128, DTYPE_KV_Q4, 0, 0, false, 1, { { 64, 1 } }, 0, POISON_NONE, false },
    { 2, 7, 64, DTYPE_KV_Q8, 0, 0, false, 1, { { 1999, 1 } }, 0, POISON_NONE, false },
    { 1, 4, 256, DTYPE_KV_Q4, 0, 0, false, 1, { { 1500, 1 } }, 0, POISON_NONE, false },
    { 3, 3, 64, DTYPE_KV_Q8, 0, 0, false, 1, { { 50, 177 } }, 0, POISON_NONE, false },
    { 1, 4, 256, DTYPE_KV_Q4, 100, 0, false, 1, { { 300, 130 } }, 0, POISON_NONE, false },
    { 2, 1, 64, DTYPE_KV_Q4, 700, 50, true, 2, { { 1500, 4 }, { 3, 9 } }, 0, POISON_NONE, false },
    { 2,
      3,
      64,
      DTYPE_KV_Q8,
      0,
      0,
      false,
      3,
      { { 333, 1 }, { 0, 40 }, { 129, 5 } },
      0,
      POISON_NONE,
      false },
    { 1,
      2,
      80,
      DTYPE_KV_Q8,
      0,
      0,
      false,
      3,
      { { 64, 1 }, { 127, 1 }, { 128, 1 } },
      0,
      POISON_NONE,
      false },
    { 1, 2, 80, DTYPE_KV_Q4, 0, 0, false, 2, { { 64, 1 }, { 127, 9 } }, 0, POISON_NONE, false },
    { 2, 2, 12, DTYPE_KV_Q4, 0, 0, false, 2, { { 30, 4 }, { 0, 3 } }, 0, POISON_NONE, false },
    { 1, 3, 97, DTYPE_KV_Q8, 20, 0, false, 1, { { 100, 7 } }, 0, POISON_NONE, false },
    { 1, 3, 97, DTYPE_KV_Q4, 0, 0, false, 1, { { 60, 7 } }, 0, POISON_NONE, false },
    { 2, 2, 64, DTYPE_KV_Q8, 0, 0, false, 1, { { 70, 5 } }, 0, POISON_QUERY, false },
    { 2, 2, 64, DTYPE_KV_Q8, 0, 0, false, 1, { { 70, 5 } }, 0, POISON_KEY, false },
    { 2, 2, 80, DTYPE_KV_Q4, 0, 0, false, 1, { { 0, 70 } }, 0, POISON_VALUE, false },
    { 1, 2, 96, DTYPE_KV_Q4, 0, 0, false, 1, { { 1400, 1 } }, 0, POISON_KEY, false },
    { 1, 2, 96, DTYPE_KV_Q8, 0, 0, false, 1, { { 1400, 1 } }, 0, POISON_VALUE, false },
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
        { .kv_heads = 2, .head_dim = 64, .type = DTYPE_KV_Q8 },
        { .kv_heads = 1, .head_dim = 97, .type = DTYPE_KV_Q4 },
    };
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        check_copy(c, c->ref, "ref", &shapes[i]);
        for (int b = 0; b < c->n_cpu; b++)
            check_copy(c, c->cpu[b].be, c->cpu[b].name, &shapes[i]);
    }
}

/* Numbers that no cache type holds as they are: denormals, both zeros, over the range, infinities, NaN, constant groups. */
static void fill_odd(float *x, int64_t n)
{
    static const float odd[] = { -0.0f,   0x1p-149f, -0x1p-130f, 0x1p-24f, 65519.0f, 65520.0f,
                                 3.4e38f, -3.4e38f,  INFINITY,   NAN,      1e-5f,    -7.0f };
    for (int64_t i = 0; i < n; i += KVQ_GROUP) {
        int64_t m = n - i < KVQ_GROUP ? n - i : KVQ_GROUP;
        float v = odd[check_rand() % ARRAY_LEN(odd)];
        if (check_rand() % 3 == 0)
            for (int64_t k = 0; k < m; k++)
                x[i + k] = v * (check_rand() % 4 ? 1.0f : check_normal());
        else if (check_rand() % 2)
            x[i + (int64_t)(check_rand() % (uint32_t)m)] = v;
    }
}

/* kv_store alone: bytes of the whole slab and flags, for every kind of number and head size. */
static void check_store(struct check *c, enum dtype type, int head_dim, int kind)
{
    struct attn_case k = {
        .kv_heads = 2, .head_dim = head_dim, .type = type, .n_seqs = 1, .n_pages = 9
    };
    const int rows = 70;
    int64_t cols = 2 * head_dim;
    int32_t pages[PAGES];
    struct check_buf x = check_buf_new(2 * rows, cols, cols + 3);
    struct tensor kt = x.t, vt = x.t;
    struct seq_view view = { .n_rows = rows, .pages = pages };
    uint8_t flags[2][70] = { { 0 } };
    struct side ref, cpu;
    make_pages(&k, 0, false, pages);
    for (int t = 0; t < 2 * rows; t++) {
        check_fill(x.t.data + t * x.t.stride, (size_t)cols, kind % CHECK_KINDS);
        if (kind >= CHECK_KINDS)
            fill_odd(x.t.data + t * x.t.stride, cols);
    }
    kt.rows = vt.rows = rows;
    vt.data += rows * vt.stride;
    side_open(&ref, c->ref, &k);
    ops_begin(c->ref, rows);
    ops_kv_store(c->ref, &ref.kv, kt, vt, &view, 1);
    ops_failed(c->ref, flags[0]);
    for (int b = 0; b < c->n_cpu; b++) {
        side_open(&cpu, c->cpu[b].be, &k);
        ops_begin(cpu.be, rows);
        ops_kv_store(cpu.be, &cpu.kv, kt, vt, &view, 1);
        memset(flags[1], 0, sizeof(flags[1]));
        ops_failed(cpu.be, flags[1]);
        check_that(c,
                   memcmp(ref.kv.data, cpu.kv.data, ref.bytes) == 0 &&
                       memcmp(flags[0], flags[1], sizeof(flags[0])) == 0,
                   "kv_store/%s %s, heads of %d, kind %d", c->cpu[b].name, dtype_info(type)->name,
                   head_dim, kind);
        side_close(&cpu);
    }
    side_close(&ref);
    check_buf_free(&x);
}

static void check_stores(struct check *c)
{
    static const enum dtype types[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_KV_Q8,
                                        DTYPE_KV_Q4 };
    static const int dims[] = { 1, 12, 33, 63, 64, 65, 80, 96, 127, 128, 256, 500, 512 };
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t d = 0; d < ARRAY_LEN(dims) && !(c->is_quick && dims[d] > 128);
             d += c->is_quick ? 3 : 1)
            for (int kind = 0; kind < CHECK_KINDS + 3; kind += c->is_quick ? 2 : 1)
                if (kvq_is(types[t]) || kind < CHECK_KINDS)
                    check_store(c, types[t], dims[d], kind);
}

void check_attention(struct check *c)
{
    if (!check_wants(c, "attention"))
        return;
    check_copies(c);
    check_stores(c);
    for (int i = 0; i < (int)ARRAY_LEN(cases); i++)
        if (!c->is_quick || !kvq_is(cases[i].type) ||
            cases[i].seq[0].pos0 + cases[i].seq[0].n_rows < 140)
            check_case(c, &cases[i], i); /* ref decodes element by element */
}
