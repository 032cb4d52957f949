/* Element-wise ops, norms, rope and gather against ref. */
#include "check.h"

#include "tensor/route.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct rows_case {
    int n_rows, cols;
    int kind;     /* of data */
    bool special; /* NaN, infinities, largest and smallest numbers among it */
};

static void fill(struct check_buf *b, const struct rows_case *k)
{
    static const float odd[] = { NAN,    INFINITY, -INFINITY, 0.0f,    -0.0f,  1e38f, -3e38f,
                                 1e-45f, -1e-40f,  88.0f,     -104.0f, 0.625f, -0.6f, 9.0f };
    for (int t = 0; t < k->n_rows; t++) {
        float *row = b->t.data + t * b->t.stride;
        check_fill(row, (size_t)k->cols, k->kind);
        for (int i = 0; k->special && i < k->cols; i++)
            if (check_rand() % 3 == 0)
                row[i] = odd[check_rand() % ARRAY_LEN(odd)];
    }
}

static void copy(struct check_buf *to, const struct check_buf *from)
{
    memcpy(to->t.data, from->t.data, from->n * sizeof(float));
}

struct bufs {
    struct check_buf a, b, want, got;
    float *w;
};

/* One op by number on y (prefilled with a's data), with b and w as its other operands. */
static const char *const op_names[] = { "add",
                                        "add_bias",
                                        "scale",
                                        "softcap",
                                        "silu",
                                        "gelu",
                                        "rms_norm",
                                        "rms_norm_heads",
                                        "sigmoid",
                                        "l2_norm",
                                        "l2_norm_heads",
                                        "swiglu",
                                        "act silu",
                                        "act gelu",
                                        "act sigmoid",
                                        "layer_norm",
                                        "layer_norm in place",
                                        "scatter_add",
                                        "copy",
                                        "act_gelu_erf",
                                        "gelu_erf",
                                        "gate_rows",
                                        "root_dots" };

/* Every third row of y stays; the last one is written first. */
static void run_scatter(struct backend *be, struct tensor y, struct tensor x)
{
    int32_t rows[128];
    float w[128];
    uint8_t is_first[128];
    int n = 0;
    for (int t = (int)y.rows - 1; t >= 0; t--) {
        if (y.rows > 2 && t % 3 == 1)
            continue;
        is_first[n] = t % 2 == 0;
        w[n] = 0.25f + 0.3f * (float)t;
        rows[n++] = t;
    }
    x.rows = n;
    ops_scatter_add(be, y, x, rows, w, is_first);
}

static void run_op(struct backend *be, int op, struct tensor y, const struct bufs *s)
{
    int n = (int)y.cols;
    switch (op) {
    case 0:
        ops_add(be, y, s->b.t);
        break;
    case 1:
        ops_add_bias(be, y, s->w);
        break;
    case 2:
        ops_scale(be, y, 0.3f);
        break;
    case 3:
        ops_softcap(be, y, 30.0f);
        break;
    case 4:
    case 5:
        ops_glu(be, y, s->a.t, s->b.t, op == 4 ? GLU_KIND_SILU : GLU_KIND_GELU_TANH);
        break;
    case 6:
        ops_rms_norm(be, y, s->a.t, s->w, n, 1e-6f);
        break;
    case 7:
        ops_rms_norm(be, y, y, s->w, n % 4 == 0 ? n / 4 : n, 1e-5f);
        break;
    case 8:
        ops_glu(be, y, s->a.t, s->b.t, GLU_KIND_SIGMOID);
        break;
    case 9:
        ops_l2_norm(be, y, s->a.t, n, 1e-6f, 0.25f);
        break;
    case 10:
        ops_l2_norm(be, y, y, n % 4 == 0 ? n / 4 : n, 1e-6f, 1);
        break;
    case 11:
        ops_glu(be, y, s->a.t, s->b.t, GLU_KIND_SWIGLU_CLAMPED);
        break;
    case 12:
    case 13:
    case 14:
        ops_act(be, y,
                (enum glu_kind[]){ GLU_KIND_SILU, GLU_KIND_GELU_TANH, GLU_KIND_SIGMOID }[op - 12]);
        break;
    case 15:
    case 16:
        ops_layer_norm(be, y, op == 15 ? s->a.t : y, s->w, s->b.t.data, 1e-5f);
        break;
    case 17:
        run_scatter(be, y, s->b.t);
        break;
    case 18:
        ops_copy(be, y, s->b.t);
        break;
    case 19:
        ops_act(be, y, GLU_KIND_GELU_ERF);
        break;
    case 20:
        ops_glu(be, y, s->a.t, s->b.t, GLU_KIND_GELU_ERF);
        break;
    case 21:
        ops_gate_rows(be, y, tensor_cols(s->b.t, n / 2, 1));
        break;
    default: /* dots of half a row; the rest of y stays */
        ops_root_dots(be, tensor_cols(y, 0, n % 2 == 0 ? 2 : 1), s->a.t, s->b.t, 0.125f);
        break;
    }
}

static void check_elementwise(struct check *c, const struct rows_case *k)
{
    int64_t stride = k->cols + 7;
    struct bufs s = { .a = check_buf_new(k->n_rows, k->cols, stride),
                      .b = check_buf_new(k->n_rows, k->cols, k->cols),
                      .want = check_buf_new(k->n_rows, k->cols, stride),
                      .got = check_buf_new(k->n_rows, k->cols, stride),
                      .w = mem_alloc(MEM_CAT_SCRATCH, (size_t)k->cols * sizeof(float)) };
    fill(&s.a, k);
    fill(&s.b, k);
    check_fill(s.w, (size_t)k->cols, 0);
    for (int op = 0; op < (int)ARRAY_LEN(op_names); op++) {
        copy(&s.want, &s.a);
        run_op(c->ref, op, s.want.t, &s);
        for (int b = 0; b < c->n_cpu; b++) {
            copy(&s.got, &s.a);
            run_op(c->cpu[b].be, op, s.got.t, &s);
            check_that(c, check_buf_same(&s.want, &s.got, true), "%s/%s [%d][%d], data %d%s",
                       op_names[op], c->cpu[b].name, k->n_rows, k->cols, k->kind,
                       k->special ? ", special values" : "");
        }
    }
    check_buf_free(&s.a);
    check_buf_free(&s.b);
    check_buf_free(&s.want);
    check_buf_free(&s.got);
    mem_free(MEM_CAT_SCRATCH, s.w);
}

static void check_rope_case(struct check *c, enum rope_kind kind, int n_dims, int head_dim,
                            int heads, int n_rows)
{
    float inv[BACKEND_HEAD_DIM_MAX / 2];
    int32_t pos[2048];
    for (int i = 0; i < n_dims / 2; i++)
        inv[i] = (float)pow(10000.0, -2.0 * i / n_dims);
    for (int t = 0; t < n_rows; t++)
        pos[t] = t % 5 == 4 ? check_range(0, 1 << 20) : 100 + t;
    struct rope r = { kind, n_dims, inv, n_dims == 64 ? 1.25f : 1.0f };
    int64_t cols = (int64_t)heads * head_dim;
    struct check_buf x = check_buf_new(n_rows, cols, cols + 1);
    struct check_buf want = check_buf_new(n_rows, cols, cols + 1);
    struct check_buf got = check_buf_new(n_rows, cols, cols + 1);
    for (int t = 0; t < n_rows; t++)
        check_fill(x.t.data + t * x.t.stride, (size_t)cols, 0);
    copy(&want, &x);
    ops_begin(c->ref, n_rows);
    ops_rope(c->ref, want.t, &r, head_dim, pos);
    for (int b = 0; b < c->n_cpu; b++) {
        ops_begin(c->cpu[b].be, n_rows);
        for (int again = 0; again < 2; again++) { /* the second time from the kept angles */
            copy(&got, &x);
            ops_rope(c->cpu[b].be, got.t, &r, head_dim, pos);
            check_that(c, check_buf_same(&want, &got, false),
                       "rope/%s kind %d dims %d of %d, %d rows", c->cpu[b].name, (int)kind, n_dims,
                       head_dim, n_rows);
        }
    }
    check_buf_free(&x);
    check_buf_free(&want);
    check_buf_free(&got);
}

static void check_gather(struct check *c)
{
    struct check_buf x = check_buf_new(9, 33, 40), want = check_buf_new(4, 33, 35);
    struct check_buf got = check_buf_new(4, 33, 35);
    const int32_t rows[4] = { 8, 0, 3, 3 };
    for (int t = 0; t < 9; t++)
        check_fill(x.t.data + t * 40, 33, 0);
    ops_gather(c->ref, want.t, x.t, rows);
    for (int b = 0; b < c->n_cpu; b++) {
        check_buf_reset(&got);
        ops_gather(c->cpu[b].be, got.t, x.t, rows);
        check_that(c, check_buf_same(&want, &got, false), "gather/%s", c->cpu[b].name);
    }
    check_buf_free(&x);
    check_buf_free(&want);
    check_buf_free(&got);
}

/* --- routing --- */

static void check_route(struct check *c, const struct route *r, int n_rows, int n_experts, int kind)
{
    int32_t want_ids[40 * 8], ids[40 * 8];
    float want_w[40 * 8], w[40 * 8];
    struct check_buf x = check_buf_new(n_rows, n_experts, n_experts + 3);
    size_t n = (size_t)n_rows * (size_t)r->n_used;
    for (int t = 0; t < n_rows; t++) {
        float *row = x.t.data + t * x.t.stride;
        check_fill(row, (size_t)n_experts, kind);
        row[check_range(0, n_experts - 1)] = t % 4 == 3 ? NAN : row[0]; /* a tie */
    }
    ops_route(c->ref, x.t, r, want_ids, want_w);
    for (size_t i = 0; i < n; i++)
        check_that(c,
                   want_ids[i] >= 0 && want_ids[i] < n_experts &&
                       (i % (size_t)r->n_used == 0 || want_ids[i] > want_ids[i - 1]),
                   "route/ids ascend");
    for (int b = 0; b < c->n_cpu; b++) {
        ops_route(c->cpu[b].be, x.t, r, ids, w);
        check_that(c,
                   memcmp(ids, want_ids, n * sizeof(*ids)) == 0 &&
                       memcmp(w, want_w, n * sizeof(*w)) == 0,
                   "route/%s kind %d, %d rows of %d, data %d", c->cpu[b].name, (int)r->kind, n_rows,
                   n_experts, kind);
    }
    check_buf_free(&x);
}

static void check_routes(struct check *c)
{
    float bias[160];
    check_fill(bias, 160, 0);
    for (int kind = 0; kind < CHECK_KINDS; kind++) {
        check_route(c, &(struct route){ ROUTE_KIND_SOFTMAX, 8, true, 1, NULL }, 40, 160, kind);
        check_route(c, &(struct route){ ROUTE_KIND_SOFTMAX_USED, 4, false, 1, NULL }, 3, 32, kind);
        check_route(c, &(struct route){ ROUTE_KIND_SIGMOID, 6, true, 2.5f, bias }, 9, 160, kind);
        check_route(c, &(struct route){ ROUTE_KIND_SOFTMAX, 1, false, 1, NULL }, 2, 1, kind);
    }
}

/* --- sampling --- */

static void check_exp(struct check *c, const struct check_buf *x)
{
    static const float temperatures[] = { 1, 0.7f, 0.01f, 90 };
    int64_t n = x->t.cols;
    struct check_buf want = check_buf_new(1, n, n), got = check_buf_new(1, n, n);
    for (size_t i = 0; i < ARRAY_LEN(temperatures); i++) {
        float max = i % 2 ? 3.5f : x->t.data[0], t = temperatures[i];
        c->ref->ops->exp_scaled(c->ref, want.t.data, x->t.data, n, max, t);
        for (int b = 0; b < c->n_cpu; b++) {
            check_buf_reset(&got);
            c->cpu[b].be->ops->exp_scaled(c->cpu[b].be, got.t.data, x->t.data, n, max, t);
            check_that(c, check_buf_same(&want, &got, false), "exp_scaled/%s [%lld], t %g",
                       c->cpu[b].name, (long long)n, (double)t);
        }
    }
    check_buf_free(&want);
    check_buf_free(&got);
}

static void check_argmax(struct check *c, const struct check_buf *x, const char *what)
{
    bool want_finite, finite;
    int64_t n = x->t.cols, want = c->ref->ops->argmax(c->ref, x->t.data, n, &want_finite);
    for (int b = 0; b < c->n_cpu; b++) {
        int64_t got = c->cpu[b].be->ops->argmax(c->cpu[b].be, x->t.data, n, &finite);
        check_that(c, finite == want_finite && (got == want || !finite),
                   "argmax/%s [%lld], %s: %lld, not %lld", c->cpu[b].name, (long long)n, what,
                   (long long)got, (long long)want);
    }
}

static void check_sampling(struct check *c, int n)
{
    struct check_buf x = check_buf_new(1, n, n);
    float *l = x.t.data;
    for (int kind = 0; kind < CHECK_KINDS; kind++) {
        check_fill(l, (size_t)n, kind);
        check_exp(c, &x);
        check_argmax(c, &x, "random");
        l[check_range(0, n - 1)] = 1e30f; /* ties: the lowest of them */
        l[check_range(0, n - 1)] = 1e30f;
        check_argmax(c, &x, "ties");
        l[check_range(0, n - 1)] = kind % 2 ? NAN : -INFINITY;
        check_argmax(c, &x, "not finite");
    }
    for (int i = 0; i < n; i++)
        l[i] = check_range(0, 2) ? -0.0f : 0.0f;
    check_argmax(c, &x, "zeros of both signs");
    for (int i = 0; i < n; i++)
        l[i] = i % 3 ? -1e-45f : -1e38f;
    check_argmax(c, &x, "negative numbers");
    check_buf_free(&x);
}

void check_rows(struct check *c)
{
    static const int vocabs[] = { 1, 2, 15, 511, 513, 49152, 151936 };
    for (size_t i = 0; i < ARRAY_LEN(vocabs) && check_wants(c, "sampling"); i++)
        check_sampling(c, vocabs[i]);
    static const int cols[] = { 1, 7, 16, 17, 64, 100, 576, 1000 };
    if (check_wants(c, "rows")) {
        for (size_t i = 0; i < ARRAY_LEN(cols); i++)
            for (int kind = 0; kind < CHECK_KINDS; kind++)
                check_elementwise(c, &(struct rows_case){ 3, cols[i], kind, kind % 2 == 1 });
        check_elementwise(c, &(struct rows_case){ 70, 900, 4, false }); /* over threads by rows */
        check_elementwise(c, &(struct rows_case){ 1, 40000, 0, true }); /* by columns */
        check_elementwise(c, &(struct rows_case){ 2, 20011, 1, false });
    }
    if (check_wants(c, "rope")) {
        check_rope_case(c, ROPE_KIND_NEOX, 64, 64, 3, 5);
        check_rope_case(c, ROPE_KIND_NORMAL, 64, 64, 9, 33);
        check_rope_case(c, ROPE_KIND_NEOX, 128, 128, 2, 1);
        check_rope_case(c, ROPE_KIND_NEOX, 20, 80, 2, 17);
        check_rope_case(c, ROPE_KIND_NORMAL, 6, 12, 2, 4);
        check_rope_case(c, ROPE_KIND_NEOX, 256, 256, 1,
                        1030); /* more rows than angles are kept for */
    }
    if (check_wants(c, "route"))
        check_routes(c);
    if (check_wants(c, "gather"))
        check_gather(c);
}
