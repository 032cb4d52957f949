/* The CUDA backend: fast kernels against its own plain ones and element-wise ops against ref, bit for bit; products against an fp64 dot of
 * the same weights, attention against fp64 of the same keys and values. */
#include "check.h"

#include "kernels/cuda/cuda_backend.h"
#include "tensor/half.h"
#include "tensor/route.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu {
    struct check *c;
    struct backend *fast, *plain;
};

/* --- buffers on the device --- */

static size_t bytes_of(const struct check_buf *b)
{
    return b->n * sizeof(float);
}

/* A copy of the buffer, gaps and canaries included. */
static struct tensor to_device(struct backend *be, const struct check_buf *b)
{
    struct tensor t = b->t;
    t.data = be->ops->alloc(be, MEM_CAT_SCRATCH, bytes_of(b));
    BUG_ON(!t.data);
    be->ops->upload(be, t.data, b->t.data, bytes_of(b));
    return t;
}

static void from_device(struct backend *be, struct check_buf *b, struct tensor t)
{
    be->ops->download(be, b->t.data, t.data, bytes_of(b));
    be->ops->free(be, MEM_CAT_SCRATCH, t.data, bytes_of(b));
}

static float *array_to_device(struct backend *be, const float *x, size_t n)
{
    float *p = be->ops->alloc(be, MEM_CAT_SCRATCH, n * sizeof(float));
    BUG_ON(!p);
    be->ops->upload(be, p, x, n * sizeof(float));
    return p;
}

static void is_well(struct gpu *g, struct backend *be, const char *what)
{
    struct err err = { 0 };
    enum err_code code = be->ops->wait(be, &err);
    check_that(g->c, code == ERR_OK, "%s: %s", what, err.text);
}

/* --- products --- */

static void gpu_linear(struct backend *be, struct check_buf *y, const struct check_buf *x,
                       const struct weight *w, uint8_t *flags)
{
    struct tensor dx = to_device(be, x), dy = to_device(be, y);
    ops_begin(be, (int)x->t.rows);
    ops_linear(be, dy, dx, w);
    ops_failed(be, flags);
    from_device(be, y, dy);
    be->ops->free(be, MEM_CAT_SCRATCH, dx.data, bytes_of(x));
}

static double rounded(float x)
{
    return (double)bf16_to_f32(f32_to_bf16(x));
}

/* y is the dot of the rounded weights and activations, but for 1e-5 of the sum of magnitudes. */
static void check_dot(struct gpu *g, const char *name, const struct check_buf *y,
                      const struct check_buf *x, const struct check_buf *w)
{
    double worst = 0;
    for (int64_t t = 0; t < y->t.rows; t++)
        for (int64_t r = 0; r < y->t.cols; r++) {
            double dot = 0, size = 1e-30;
            for (int64_t i = 0; i < x->t.cols; i++) {
                double p = rounded(x->t.data[t * x->t.stride + i]) *
                           (double)w->t.data[r * w->t.stride + i];
                dot += p;
                size += fabs(p);
            }
            worst = larger(worst, fabs((double)y->t.data[t * y->t.stride + r] - dot) / size);
        }
    check_that(g->c, worst <= 1e-5, "cuda/linear-fp64/%s [%lld][%lld]: %g", name,
               (long long)y->t.cols, (long long)x->t.cols, worst);
}

/* The weights as the device has them, against the file's: a code's scale and value are each rounded to bf16. */
static struct check_buf gpu_weights(struct gpu *g, enum dtype type, const struct weight *w,
                                    const struct weight *ref)
{
    const struct weight_shape *s = g->plain->ops->shape(w);
    struct check_buf got = check_buf_new(s->out, s->in, s->in),
                     want = check_buf_new(s->out, s->in, s->in);
    int32_t ids[256];
    for (int i = 0; i < s->out; i++)
        ids[i] = i;
    struct tensor d = to_device(g->plain, &got);
    ops_embed(g->plain, d, w, ids);
    from_device(g->plain, &got, d);
    ops_embed(g->c->ref, want.t, ref, ids);
    double worst = 0;
    for (int64_t r = 0; r < s->out; r++) {
        double most = 0, off = 0;
        for (int64_t i = 0; i < s->in; i++) {
            most = larger(most, fabs((double)want.t.data[r * s->in + i]));
            off = larger(
                off, fabs((double)want.t.data[r * s->in + i] - (double)got.t.data[r * s->in + i]));
        }
        worst = larger(worst, most > 1e-30 ? off / most : 0);
    }
    check_that(g->c, worst <= 0.03, "cuda/weights/%s [%lld][%lld]: %g", dtype_info(type)->name,
               (long long)s->out, (long long)s->in, worst);
    check_buf_free(&want);
    return got;
}

static void check_gpu_rows(struct gpu *g, const char *name, const struct weight *fast,
                           const struct weight *plain, const struct check_buf *w, int rows,
                           int poison)
{
    const struct weight_shape *s = g->plain->ops->shape(plain);
    struct check_buf x = check_buf_new(rows, s->in, s->in + 3);
    struct check_buf want = check_buf_new(rows, s->out, s->out + 5),
                     got = check_buf_new(rows, s->out, s->out + 5);
    uint8_t flags[2][1024] = { { 0 } };
    for (int t = 0; t < rows; t++)
        check_fill(x.t.data + t * x.t.stride, (size_t)s->in, t % 3 == 2 ? 2 : 0);
    if (poison >= 0)
        x.t.data[poison * x.t.stride + s->in / 2] = poison % 2 ? NAN : 3.4e38f;
    gpu_linear(g->plain, &want, &x, plain, flags[0]);
    gpu_linear(g->fast, &got, &x, fast, flags[1]);
    for (int t = 0; t < rows; t++)
        if (flags[0][t] != (t == poison))
            check_that(g->c, false, "cuda/linear/%s: row %d flag %d", name, t, flags[0][t]);
    check_that(g->c,
               check_buf_same(&want, &got, false) &&
                   memcmp(flags[0], flags[1], sizeof(flags[0])) == 0,
               "cuda/linear/%s [%lld][%lld] %d rows%s", name, (long long)s->out, (long long)s->in,
               rows, poison >= 0 ? ", one row not finite" : "");
    if (poison < 0 && rows <= 9)
        check_dot(g, name, &want, &x, w);
    check_buf_free(&x);
    check_buf_free(&want);
    check_buf_free(&got);
}

static void check_gpu_shape(struct gpu *g, enum dtype type, int64_t out, int64_t in)
{
    static const int rows[] = { 1, 2, 8, 9, 16, 17, 33, 64, 65, 129, 300 };
    static int form;
    const char *name = dtype_info(type)->name;
    struct scales scales;
    uint8_t *data = check_scaled_weight(type, out, in, form++ % 9, &scales);
    struct weight *ref = check_pack(g->c->ref, type, out, in, data, &scales);
    struct weight *fast = check_pack(g->fast, type, out, in, data, &scales);
    struct weight *plain = check_pack(g->plain, type, out, in, data, &scales);
    struct check_buf w = gpu_weights(g, type, plain, ref);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (!g->c->is_quick || ((size_t)form + i) % 3 == 0)
            check_gpu_rows(g, name, fast, plain, &w, rows[i], -1);
    check_gpu_rows(g, name, fast, plain, &w, 20, 11);
    check_gpu_rows(g, name, fast, plain, &w, 3, 2);
    check_buf_free(&w);
    g->c->ref->ops->unpack_free(g->c->ref, ref);
    g->fast->ops->unpack_free(g->fast, fast);
    g->plain->ops->unpack_free(g->plain, plain);
    mem_free(MEM_CAT_WEIGHTS, data);
    is_well(g, g->fast, name);
    is_well(g, g->plain, name);
}

static void check_gpu_linear(struct gpu *g)
{
    static const enum dtype types[] = { DTYPE_Q4_0,    DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,
                                        DTYPE_Q8_0,    DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,
                                        DTYPE_Q2_K,    DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS,
                                        DTYPE_MXFP4,   DTYPE_MLX2, DTYPE_MLX3,   DTYPE_MLX4,
                                        DTYPE_MLX5,    DTYPE_MLX6, DTYPE_MLX8,   DTYPE_F8_E4M3,
                                        DTYPE_F8_E5M2, DTYPE_F16,  DTYPE_BF16,   DTYPE_F32 };
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        char group[64];
        snprintf(group, sizeof(group), "cuda/linear/%s", dtype_info(types[i])->name);
        if (!check_wants(g->c, group))
            continue;
        int64_t block = dtype_info(types[i])->block_elems;
        check_gpu_shape(g, types[i], 37, block == 256 ? 256 : block == 1 ? 39 : 32);
        check_gpu_shape(g, types[i], 144,
                        block == 256 ? 2304 : 1600); /* 36, 25 units: uneven segments */
        if (!g->c->is_quick &&
            (types[i] == DTYPE_Q4_K || types[i] == DTYPE_BF16 || types[i] == DTYPE_Q8_0))
            check_gpu_shape(g, types[i], 256, 8960);
    }
}

/* --- ops on rows --- */

struct rows_case {
    int64_t rows, cols;
    int kind;
};

typedef void rows_op(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                     const float *v);

static void op_add(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                   const float *v)
{
    ops_copy(be, y, x);
    ops_add(be, y, z);
    ops_add_bias(be, y, v);
    ops_scale(be, y, 0.3f);
}

static void op_glu(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                   const float *v)
{
    ops_glu(be, y, x, z, GLU_KIND_SILU);
    ops_glu(be, y, y, z, GLU_KIND_GELU_TANH);
    ops_glu(be, y, y, x, GLU_KIND_SWIGLU_CLAMPED);
    ops_glu(be, y, x, y, GLU_KIND_SIGMOID);
}

static void op_act(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                   const float *v)
{
    ops_copy(be, y, x);
    ops_act(be, y, GLU_KIND_SILU);
    ops_act(be, y, GLU_KIND_GELU_TANH);
    ops_softcap(be, y, 5);
    ops_gate_rows(be, y, tensor_cols(z, 0, 1));
}

static void op_gather(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                      const float *v)
{
    int32_t rows[64];
    float w[64];
    uint8_t first[64];
    for (int i = 0; i < y.rows; i++) {
        rows[i] = (int32_t)(y.rows - 1 - i);
        w[i] = 0.25f * (float)i;
        first[i] = i % 2;
    }
    ops_gather(be, y, x, rows);
    ops_scatter_add(be, y, z, rows, w, first);
}

static void op_rms(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                   const float *v)
{
    ops_rms_norm(be, y, x, v, (int)x.cols, 1e-5f);
}

static void op_l2(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                  const float *v)
{
    ops_l2_norm(be, y, x, (int)x.cols, 1e-5f, 3);
}

static void op_layer(struct backend *be, struct tensor y, struct tensor x, struct tensor z,
                     const float *v)
{
    ops_layer_norm(be, y, x, v, v, 1e-5f);
}

static const struct {
    const char *name;
    rows_op *run;
    bool is_exact; /* the bits of ref; else 1e-5 */
} rows_ops[] = {
    { "add", op_add, true },           { "glu", op_glu, true },       { "act", op_act, true },
    { "gather", op_gather, true },     { "rms_norm", op_rms, false }, { "l2_norm", op_l2, false },
    { "layer_norm", op_layer, false },
};

static bool is_near(const struct check_buf *a, const struct check_buf *b)
{
    for (int64_t t = 0; t < a->t.rows; t++)
        for (int64_t i = 0; i < a->t.cols; i++) {
            double x = (double)a->t.data[t * a->t.stride + i],
                   y = (double)b->t.data[t * b->t.stride + i];
            if (!(fabs(x - y) <= 1e-5 * (1 + fabs(x))))
                return false;
        }
    return true;
}

static void check_rows_op(struct gpu *g, size_t op, const struct rows_case *k)
{
    struct check_buf x = check_buf_new(k->rows, k->cols, k->cols + 1);
    struct check_buf z = check_buf_new(k->rows, k->cols, k->cols);
    struct check_buf want = check_buf_new(k->rows, k->cols, k->cols + 2),
                     got = check_buf_new(k->rows, k->cols, k->cols + 2);
    float *v = mem_alloc(MEM_CAT_SCRATCH, (size_t)k->cols * sizeof(float));
    check_fill(v, (size_t)k->cols, 0);
    for (int t = 0; t < k->rows; t++) {
        check_fill(x.t.data + t * x.t.stride, (size_t)k->cols, k->kind);
        check_fill(z.t.data + t * z.t.stride, (size_t)k->cols, 0);
    }
    rows_ops[op].run(g->c->ref, want.t, x.t, z.t, v);
    struct tensor dx = to_device(g->fast, &x), dz = to_device(g->fast, &z),
                  dy = to_device(g->fast, &got);
    float *dv = array_to_device(g->fast, v, (size_t)k->cols);
    ops_begin(g->fast, (int)k->rows);
    rows_ops[op].run(g->fast, dy, dx, dz, dv);
    from_device(g->fast, &got, dy);
    g->fast->ops->free(g->fast, MEM_CAT_SCRATCH, dx.data, bytes_of(&x));
    g->fast->ops->free(g->fast, MEM_CAT_SCRATCH, dz.data, bytes_of(&z));
    g->fast->ops->free(g->fast, MEM_CAT_SCRATCH, dv, (size_t)k->cols * sizeof(float));
    check_that(g->c,
               rows_ops[op].is_exact ? check_buf_same(&want, &got, true) : is_near(&want, &got),
               "cuda/rows/%s [%lld][%lld] data %d", rows_ops[op].name, (long long)k->rows,
               (long long)k->cols, k->kind);
    check_buf_free(&x);
    check_buf_free(&z);
    check_buf_free(&want);
    check_buf_free(&got);
    mem_free(MEM_CAT_SCRATCH, v);
}

static void check_gpu_rope(struct gpu *g, enum rope_kind kind, int n_dims, int head_dim)
{
    enum { ROWS = 7, HEADS = 3 };
    float inv[256];
    int32_t pos[ROWS];
    struct rope r = { kind, n_dims, inv, 1.1f };
    struct check_buf want = check_buf_new(ROWS, HEADS * head_dim, HEADS * head_dim + 1);
    struct check_buf got = check_buf_new(ROWS, HEADS * head_dim, HEADS * head_dim + 1);
    for (int i = 0; i < n_dims / 2; i++)
        inv[i] = powf(10000, -2.0f * (float)i / (float)n_dims);
    for (int t = 0; t < ROWS; t++) {
        pos[t] = 1000 * t + t;
        check_fill(want.t.data + t * want.t.stride, (size_t)(HEADS * head_dim), 0);
    }
    memcpy(got.t.data, want.t.data, bytes_of(&want));
    struct tensor d = to_device(g->fast, &got);
    ops_rope(g->c->ref, want.t, &r, head_dim, pos);
    ops_begin(g->fast, ROWS);
    ops_rope(g->fast, d, &r, head_dim, pos);
    from_device(g->fast, &got, d);
    check_that(g->c, check_buf_same(&want, &got, false), "cuda/rope kind %d, %d of %d", (int)kind,
               n_dims, head_dim);
    check_buf_free(&want);
    check_buf_free(&got);
}

static void check_gpu_rows_ops(struct gpu *g)
{
    static const int64_t cols[] = { 1, 7, 64, 1000, 1024, 1025, 4096 };
    for (size_t op = 0; op < ARRAY_LEN(rows_ops); op++)
        for (size_t i = 0; i < ARRAY_LEN(cols); i++)
            for (int kind = 0; kind < 3; kind++)
                check_rows_op(g, op,
                              &(struct rows_case){ 1 + 8 * (int64_t)(i % 3), cols[i], kind });
    check_gpu_rope(g, ROPE_KIND_NEOX, 64, 64);
    check_gpu_rope(g, ROPE_KIND_NORMAL, 128, 128);
    check_gpu_rope(g, ROPE_KIND_NEOX, 20, 80);
    is_well(g, g->fast, "rows");
}

/* --- attention --- */

struct attn_case {
    enum dtype type;
    int kv_heads, per, head_dim, n;
    struct attn_params p;
};

/* A sequence of n positions in pages that are not in order; keys, values, queries. */
struct attn_data {
    struct check_buf q, k, v;
    int32_t pages[64];
    int n_pages;
};

static void attn_data_init(struct attn_data *d, const struct attn_case *k)
{
    d->q = check_buf_new(k->n, (int64_t)k->kv_heads * k->per * k->head_dim,
                         (int64_t)k->kv_heads * k->per * k->head_dim + 2);
    d->k = check_buf_new(k->n, (int64_t)k->kv_heads * k->head_dim,
                         (int64_t)k->kv_heads * k->head_dim + 1);
    d->v =
        check_buf_new(k->n, (int64_t)k->kv_heads * k->head_dim, (int64_t)k->kv_heads * k->head_dim);
    for (int t = 0; t < k->n; t++) {
        check_fill(d->q.t.data + t * d->q.t.stride, (size_t)d->q.t.cols, 0);
        check_fill(d->k.t.data + t * d->k.t.stride, (size_t)d->k.t.cols, 0);
        check_fill(d->v.t.data + t * d->v.t.stride, (size_t)d->v.t.cols, 0);
    }
    d->n_pages = k->n / KV_PAGE_TOKENS + 1;
    for (int i = 0; i < d->n_pages; i++)
        d->pages[i] = (i * 5 + 3) % d->n_pages;
    if (d->n_pages % 5 == 0)
        for (int i = 0; i < d->n_pages; i++)
            d->pages[i] = d->n_pages - 1 - i;
}

/* Steps of at most `step` rows, from `first` on the queries count; the keys before it are stored in one go. */
static void attn_run(struct gpu *g, struct backend *be, const struct attn_case *k,
                     const struct attn_data *d, int first, int step, struct check_buf *out)
{
    size_t page = be->ops->kv_page_bytes(be, k->type, k->kv_heads, k->head_dim);
    struct kv_layer kv = { k->type, k->kv_heads, k->head_dim, d->n_pages,
                           be->ops->alloc(be, MEM_CAT_KV, page * (size_t)d->n_pages) };
    struct tensor q = to_device(be, &d->q), kk = to_device(be, &d->k), v = to_device(be, &d->v);
    struct tensor o = to_device(be, out);
    uint8_t flags[1024] = { 0 };
    BUG_ON(!kv.data);
    for (int at = 0; at < k->n;) {
        int n = at < first ? first : k->n - at < step ? k->n - at : step;
        struct seq_view s = { .n_rows = n, .pos0 = at, .pages = d->pages };
        struct tensor part[4] = { q, kk, v, o };
        for (int i = 0; i < 4; i++) {
            part[i].data += at * part[i].stride;
            part[i].rows = n;
        }
        ops_begin(be, n);
        ops_kv_store(be, &kv, part[1], part[2], &s, 1);
        if (at >= first)
            ops_attention(be, part[3], part[0], &kv, &s, 1, &k->p);
        ops_failed(be, flags);
        at += n;
    }
    from_device(be, out, o);
    for (int t = 0; t < k->n; t++)
        if (flags[t])
            check_that(g->c, false, "cuda/attention: row %d failed", t);
    be->ops->free(be, MEM_CAT_SCRATCH, q.data, bytes_of(&d->q));
    be->ops->free(be, MEM_CAT_SCRATCH, kk.data, bytes_of(&d->k));
    be->ops->free(be, MEM_CAT_SCRATCH, v.data, bytes_of(&d->v));
    be->ops->free(be, MEM_CAT_KV, kv.data, page * (size_t)d->n_pages);
}

static double as_type(enum dtype type, float x)
{
    return type == DTYPE_F16 ? (double)f16_to_f32(f32_to_f16(x)) : rounded(x);
}

/* One head of one row in fp64. */
static void attn_fp64(const struct attn_case *k, const struct attn_data *d, int t, int h,
                      double *out)
{
    int g = h / k->per, first = k->p.window && t >= k->p.window ? t - k->p.window + 1 : 0;
    double score[4096], max = k->p.sinks ? (double)k->p.sinks[h] : -1e300, sum = 0;
    int end = attn_end(&k->p, &(struct seq_view){ .n_rows = k->n }, t);
    for (int j = first; j < end; j++) {
        double s = 0;
        for (int i = 0; i < k->head_dim; i++)
            s += as_type(k->type, d->q.t.data[t * d->q.t.stride + h * k->head_dim + i]) *
                 as_type(k->type, d->k.t.data[j * d->k.t.stride + g * k->head_dim + i]);
        s *= (double)k->p.scale;
        if (k->p.softcap > 0)
            s = (double)k->p.softcap * tanh(s / (double)k->p.softcap);
        score[j] = s;
        max = larger(max, s);
    }
    if (k->p.sinks)
        sum = exp((double)k->p.sinks[h] - max);
    for (int i = 0; i < k->head_dim; i++)
        out[i] = 0;
    for (int j = first; j < end; j++) {
        double w = exp(score[j] - max);
        sum += w;
        for (int i = 0; i < k->head_dim; i++)
            out[i] += w * as_type(k->type, d->v.t.data[j * d->v.t.stride + g * k->head_dim + i]);
    }
    for (int i = 0; i < k->head_dim; i++)
        out[i] /= sum;
}

static void check_attn_fp64(struct gpu *g, const struct attn_case *k, const struct attn_data *d,
                            const struct check_buf *got, const char *name)
{
    double worst = 0, out[512];
    for (int i = 0; i < 6; i++) {
        int t = k->n - 1 - i * (k->n / 7), h = i % (k->kv_heads * k->per);
        attn_fp64(k, d, t, h, out);
        const float *have = got->t.data + t * got->t.stride + h * k->head_dim;
        for (int c = 0; c < k->head_dim; c++)
            worst = larger(worst, fabs(out[c] - (double)have[c]));
    }
    check_that(g->c, worst < (k->type == DTYPE_F16 ? 1e-3 : 8e-3), "cuda/attention-fp64/%s: %g",
               name, worst);
}

static void check_attn_case(struct gpu *g, const struct attn_case *k)
{
    static const struct {
        int first, step; /* first: per cent */
    } cuts[] = { { 0, 4096 }, { 0, 200 }, { 90, 1 }, { 80, 7 }, { 0, 64 } };
    struct attn_data d;
    char name[128];
    attn_data_init(&d, k);
    struct check_buf want = check_buf_new(k->n, d.q.t.cols, d.q.t.cols),
                     got = check_buf_new(k->n, d.q.t.cols, d.q.t.cols);
    snprintf(name, sizeof(name), "%s %dx%dx%d n %d window %d cap %g%s", dtype_info(k->type)->name,
             k->kv_heads, k->per, k->head_dim, k->n, k->p.window, (double)k->p.softcap,
             k->p.sinks        ? " sinks"
             : k->p.is_two_way ? " both ways"
                               : "");
    attn_run(g, g->plain, k, &d, 0, 4096, &want);
    check_attn_fp64(g, k, &d, &want, name);
    for (size_t i = 0; i < (k->p.is_two_way ? 1 : ARRAY_LEN(cuts)); i++) {
        int first = k->n * cuts[i].first / 100;
        check_buf_reset(&got);
        attn_run(g, g->fast, k, &d, first, cuts[i].step, &got);
        bool same = true;
        int bad = -1;
        for (int t = first; t < k->n; t++)
            if (memcmp(got.t.data + t * got.t.stride, want.t.data + t * want.t.stride,
                       (size_t)got.t.cols * sizeof(float)) != 0) {
                same = false;
                bad = bad < 0 ? t : bad;
            }
        check_that(g->c, same, "cuda/attention/%s, steps of %d from %d: row %d", name, cuts[i].step,
                   first, bad);
    }
    check_buf_free(&d.q);
    check_buf_free(&d.k);
    check_buf_free(&d.v);
    check_buf_free(&want);
    check_buf_free(&got);
    is_well(g, g->fast, name);
    is_well(g, g->plain, name);
}

static void check_gpu_attention(struct gpu *g)
{
    static const float sinks[64] = { 0.5f, -1, 2, 0, 1, 3, -2, 0.25f };
    static const struct attn_case cases[] = {
        { DTYPE_F16,
          2,
          4,
          128,
          700,
          { .scale = 0.09f, .softcap = 0, .window = 0, .n_heads = 8, .sinks = NULL } },
        { DTYPE_BF16,
          2,
          4,
          128,
          700,
          { .scale = 0.09f, .softcap = 0, .window = 0, .n_heads = 8, .sinks = NULL } },
        { DTYPE_F16,
          3,
          3,
          64,
          601,
          { .scale = 0.125f, .softcap = 0, .window = 100, .n_heads = 9, .sinks = NULL } },
        { DTYPE_F16,
          1,
          4,
          256,
          530,
          { .scale = 0.06f, .softcap = 30, .window = 300, .n_heads = 4, .sinks = NULL } },
        { DTYPE_BF16,
          2,
          7,
          80,
          400,
          { .scale = 0.1f, .softcap = 0, .window = 0, .n_heads = 14, .sinks = NULL } },
        { DTYPE_F16,
          2,
          1,
          16,
          300,
          { .scale = 0.25f, .softcap = 0, .window = 0, .n_heads = 2, .sinks = NULL } },
        { DTYPE_F16,
          2,
          4,
          64,
          600,
          { .scale = 0.125f, .softcap = 0, .window = 128, .n_heads = 8, .sinks = sinks } },
        { DTYPE_F16,
          1,
          32,
          128,
          330,
          { .scale = 0.09f, .softcap = 0, .window = 0, .n_heads = 32, .sinks = NULL } },
        { DTYPE_F16,
          1,
          2,
          512,
          300,
          { .scale = 0.04f, .softcap = 0, .window = 0, .n_heads = 2, .sinks = NULL } },
        { DTYPE_F16, 3, 1, 32, 300, { .scale = 0.18f, .n_heads = 3, .is_two_way = true } },
        { DTYPE_BF16, 2, 4, 128, 513, { .scale = 0.09f, .n_heads = 8, .is_two_way = true } },
        { DTYPE_F16,
          2,
          3,
          64,
          333,
          { .scale = 0.125f, .window = 70, .n_heads = 6, .is_two_way = true } },
        { DTYPE_F16,
          1,
          3,
          256,
          200,
          { .scale = 0.06f, .window = 50, .n_heads = 3, .is_two_way = true } },
        { DTYPE_F16, 12, 1, 64, 5, { .scale = 0.125f, .n_heads = 12, .is_two_way = true } },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i += g->c->is_quick ? 2 : 1)
        check_attn_case(g, &cases[i]);
}

void check_cuda(struct check *c)
{
    struct gpu g = { .c = c };
    struct err err = { 0 };
    struct cuda_options fast = { .device = 0 }, plain = { .is_plain = true };
    enum err_code code = cuda_backend_open(&fast, &g.fast, &err);
    if (code == ERR_NOT_FOUND || code == ERR_UNSUPPORTED) {
        printf("skip: no-gpu: %s\n", err.text);
        c->skipped++;
        return;
    }
    if (!code)
        code = cuda_backend_open(&plain, &g.plain, &err);
    if (!check_that(c, code == ERR_OK, "cuda/open: %s", err.text))
        return;
    check_gpu_linear(&g);
    if (check_wants(c, "cuda/rows"))
        check_gpu_rows_ops(&g);
    if (check_wants(c, "cuda/attention"))
        check_gpu_attention(&g);
    if (check_wants(c, "cuda/fused"))
        check_fused_cuda(c, g.fast, g.plain);
    if (check_wants(c, "cuda/shortlist"))
        check_shortlist_cuda(c, g.fast);
    if (check_wants(c, "cuda/kvq"))
        check_kvq_cuda(c, g.fast, g.plain);
    if (check_wants(c, "cuda/moe"))
        check_moe_cuda(c, g.fast, g.plain);
    if (check_wants(c, "cuda/state"))
        check_state_cuda(c, g.fast);
    g.fast->ops->close(g.fast);
    g.plain->ops->close(g.plain);
}
