/* Recurrent layers against ref: the convolution, the gates, the delta rule; every sequence's slot beside its rows. And ref against
 * itself: a sequence in one piece, row by row, and taken back. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define N_SLOTS 5

struct state_case {
    int heads, key_heads, key_dim, value_dim, taps;
    bool is_tiled, special;
};

/* Sequences of a step: one that begins, one token, a long one, one that is taken back. */
static const struct seq_view views[] = {
    { .row0 = 0, .n_rows = 3, .pos0 = 0, .slot = 4 },
    { .row0 = 3, .n_rows = 1, .pos0 = 7, .slot = 0 },
    { .row0 = 4, .n_rows = 21, .pos0 = 100, .slot = 2 },
    { .row0 = 25, .n_rows = 4, .pos0 = 5, .slot = 1, .is_tentative = true },
};
#define N_ROWS 29

static int64_t conv_cols(const struct state_case *k)
{
    return 2 * k->key_heads * k->key_dim + k->heads * k->value_dim;
}

/* A layer with its slots; what is in them is for the caller. */
static struct state_layer layer_of(const struct state_case *k, float *conv, float *matrix)
{
    return (struct state_layer){ .n_slots = N_SLOTS,
                                 .taps = k->taps,
                                 .conv_cols = (int)conv_cols(k),
                                 .n_heads = k->heads,
                                 .n_key_heads = k->key_heads,
                                 .key_dim = k->key_dim,
                                 .value_dim = k->value_dim,
                                 .is_tiled = k->is_tiled,
                                 .conv = conv,
                                 .matrix = matrix };
}

/* The operands: x is the convolution's input and, by columns, q, k and v. */
struct operands {
    struct check_buf x, a, b;      /* [N_ROWS][C] [N_ROWS][Hs] [N_ROWS][Hs] */
    struct check_buf conv, matrix; /* [N_SLOTS][.] the slots before the step */
    float *w, *bias, *scale;       /* [W][C] [Hs] [Hs] */
};

struct results {
    struct check_buf y, out, a, b, conv, matrix;
};

static void fill_odd(struct check_buf *b, bool special)
{
    static const float odd[] = { NAN, INFINITY, -0.0f, 1e38f, -3e38f, 1e-40f };
    check_fill(b->t.data, b->n, 0);
    for (size_t i = 0; special && i < b->n; i++)
        if (check_rand() % 50 == 0)
            b->t.data[i] = odd[check_rand() % ARRAY_LEN(odd)];
}

static void operands_init(struct operands *o, const struct state_case *k)
{
    int64_t c = conv_cols(k);
    size_t taps = (size_t)k->taps, heads = (size_t)k->heads;
    o->x = check_buf_new(N_ROWS, c, c + 3);
    o->a = check_buf_new(N_ROWS, k->heads, k->heads + 1);
    o->b = check_buf_new(N_ROWS, k->heads, k->heads);
    o->conv = check_buf_new(N_SLOTS, (k->taps - 1) * c, (k->taps - 1) * c);
    o->matrix = check_buf_new(N_SLOTS, (int64_t)k->heads * k->key_dim * k->value_dim,
                              (int64_t)k->heads * k->key_dim * k->value_dim);
    struct check_buf *const all[] = { &o->x, &o->a, &o->b, &o->conv, &o->matrix };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        fill_odd(all[i], k->special);
    o->w = mem_alloc(MEM_CAT_SCRATCH, taps * (size_t)c * sizeof(float));
    o->bias = mem_alloc(MEM_CAT_SCRATCH, heads * sizeof(float));
    o->scale = mem_alloc(MEM_CAT_SCRATCH, heads * sizeof(float));
    check_fill(o->w, taps * (size_t)c, 0);
    check_fill(o->bias, heads, 0);
    for (size_t i = 0; i < heads; i++)
        o->scale[i] = -0.01f - fabsf(check_normal());
}

static void operands_free(struct operands *o)
{
    struct check_buf *const all[] = { &o->x, &o->a, &o->b, &o->conv, &o->matrix };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        check_buf_free(all[i]);
    mem_free(MEM_CAT_SCRATCH, o->w);
    mem_free(MEM_CAT_SCRATCH, o->bias);
    mem_free(MEM_CAT_SCRATCH, o->scale);
}

static struct check_buf same_shape(const struct check_buf *b)
{
    return check_buf_new(b->t.rows, b->t.cols, b->t.stride);
}

static void results_init(struct results *r, const struct operands *o, const struct state_case *k)
{
    *r = (struct results){ .y = same_shape(&o->x),
                           .out = check_buf_new(N_ROWS, (int64_t)k->heads * k->value_dim,
                                                (int64_t)k->heads * k->value_dim + 5),
                           .a = same_shape(&o->a),
                           .b = same_shape(&o->b),
                           .conv = same_shape(&o->conv),
                           .matrix = same_shape(&o->matrix) };
}

static void results_free(struct results *r)
{
    struct check_buf *const all[] = { &r->y, &r->out, &r->a, &r->b, &r->conv, &r->matrix };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        check_buf_free(all[i]);
}

static struct tensor columns(struct tensor t, int64_t from, int64_t n)
{
    return (struct tensor){ .data = t.data + from, .rows = t.rows, .cols = n, .stride = t.stride };
}

static void copy(struct check_buf *to, const struct check_buf *from)
{
    memcpy(to->t.data, from->t.data, from->n * sizeof(float));
}

/* What a layer does with a step. */
static void run_views(struct backend *be, const struct state_case *k, const struct operands *o,
                      struct results *r, const struct seq_view *seqs, int n_seqs)
{
    struct state_layer st = layer_of(k, r->conv.t.data, r->matrix.t.data);
    int64_t keys = (int64_t)k->key_heads * k->key_dim;
    ops_conv_silu(be, r->y.t, o->x.t, o->w, &st, seqs, n_seqs);
    ops_delta_rule(be, r->out.t, columns(r->y.t, 0, keys), columns(r->y.t, keys, keys),
                   columns(r->y.t, 2 * keys, (int64_t)k->heads * k->value_dim), r->a.t, r->b.t, &st,
                   seqs, n_seqs);
}

static void run(struct backend *be, const struct state_case *k, const struct operands *o,
                struct results *r, const struct seq_view *seqs, int n_seqs)
{
    copy(&r->conv, &o->conv);
    copy(&r->matrix, &o->matrix);
    copy(&r->a, &o->a);
    copy(&r->b, &o->b);
    check_buf_reset(&r->y);
    check_buf_reset(&r->out);
    ops_begin(be, N_ROWS);
    ops_delta_gates(be, r->a.t, r->b.t, o->bias, o->scale);
    run_views(be, k, o, r, seqs, n_seqs);
}

static bool results_same(const struct results *a, const struct results *b)
{
    return check_buf_same(&a->a, &b->a, true) && check_buf_same(&a->b, &b->b, true) &&
           check_buf_same(&a->y, &b->y, true) && check_buf_same(&a->out, &b->out, true) &&
           check_buf_same(&a->conv, &b->conv, true) && check_buf_same(&a->matrix, &b->matrix, true);
}

/* The long sequence row by row: the same outputs and the same slot. */
static void check_cut(struct check *c, const struct state_case *k, const struct operands *o,
                      const struct results *want)
{
    struct results got;
    results_init(&got, o, k);
    struct seq_view s = views[2];
    s.n_rows = 0;
    run(c->ref, k, o, &got, &s, 1);
    for (int t = 0; t < views[2].n_rows; t += s.n_rows) {
        s.row0 = views[2].row0 + t;
        s.pos0 = views[2].pos0 + t;
        s.n_rows = t % 3 == 0 ? 1 : 2;
        if (t + s.n_rows > views[2].n_rows)
            s.n_rows = views[2].n_rows - t;
        run_views(c->ref, k, o, &got, &s, 1);
    }
    bool same = true;
    for (int t = 0; t < views[2].n_rows; t++) {
        int64_t at = (views[2].row0 + t) * got.out.t.stride;
        same = same && memcmp(got.out.t.data + at, want->out.t.data + at,
                              (size_t)got.out.t.cols * sizeof(float)) == 0;
    }
    int64_t n = got.matrix.t.cols, nc = got.conv.t.cols;
    same = same &&
           memcmp(got.matrix.t.data + 2 * n, want->matrix.t.data + 2 * n,
                  (size_t)n * sizeof(float)) == 0 &&
           memcmp(got.conv.t.data + 2 * nc, want->conv.t.data + 2 * nc,
                  (size_t)nc * sizeof(float)) == 0;
    check_that(c, same || k->special, "state cut/ref %d heads [%d][%d]", k->heads, k->key_dim,
               k->value_dim);
    results_free(&got);
}

static void check_case(struct check *c, const struct state_case *k)
{
    struct operands o;
    struct results want, got;
    operands_init(&o, k);
    results_init(&want, &o, k);
    results_init(&got, &o, k);
    run(c->ref, k, &o, &want, views, (int)ARRAY_LEN(views));
    for (int b = 0; b < c->n_cpu; b++) {
        run(c->cpu[b].be, k, &o, &got, views, (int)ARRAY_LEN(views));
        check_that(c, results_same(&want, &got), "state/%s %d of %d heads [%d][%d], %d taps%s%s",
                   c->cpu[b].name, k->key_heads, k->heads, k->key_dim, k->value_dim, k->taps,
                   k->is_tiled ? ", tiled" : "", k->special ? ", special values" : "");
    }
    int64_t n = want.matrix.t.cols;
    check_that(c, memcmp(want.matrix.t.data + n, o.matrix.t.data + n, (size_t)n * 4) == 0,
               "state tentative/ref leaves the slot alone");
    check_cut(c, k, &o, &want);
    struct state_layer st = layer_of(k, want.conv.t.data, want.matrix.t.data);
    ops_state_copy(c->ref, &st, 3, 2);
    for (int b = 0; b < c->n_cpu; b++) {
        st = layer_of(k, got.conv.t.data, got.matrix.t.data);
        run(c->cpu[b].be, k, &o, &got, views, (int)ARRAY_LEN(views));
        ops_state_copy(c->cpu[b].be, &st, 3, 2);
        check_that(c,
                   check_buf_same(&want.matrix, &got.matrix, true) &&
                       check_buf_same(&want.conv, &got.conv, true),
                   "state_copy/%s", c->cpu[b].name);
    }
    operands_free(&o);
    results_free(&want);
    results_free(&got);
}

/* --- the GPU: slots and rows are its memory --- */

static struct tensor to_gpu(struct backend *be, const struct check_buf *b)
{
    struct tensor t = b->t;
    t.data = be->ops->alloc(be, MEM_CAT_SCRATCH, b->n * sizeof(float));
    BUG_ON(!t.data);
    be->ops->upload(be, t.data, b->t.data, b->n * sizeof(float));
    return t;
}

static void from_gpu(struct backend *be, struct check_buf *b, struct tensor t)
{
    be->ops->download(be, b->t.data, t.data, b->n * sizeof(float));
    be->ops->free(be, MEM_CAT_SCRATCH, t.data, b->n * sizeof(float));
}

static float *floats_to_gpu(struct backend *be, const float *x, size_t n)
{
    float *p = be->ops->alloc(be, MEM_CAT_SCRATCH, n * sizeof(float));
    BUG_ON(!p);
    be->ops->upload(be, p, x, n * sizeof(float));
    return p;
}

/* A case on the GPU: its operands and results are copied there and back. */
static void run_gpu(struct backend *be, const struct state_case *k, const struct operands *o,
                    struct results *r)
{
    struct operands d = *o;
    struct results out = *r;
    size_t taps = (size_t)k->taps, cols = (size_t)conv_cols(k), heads = (size_t)k->heads;
    copy(&r->conv, &o->conv);
    copy(&r->matrix, &o->matrix);
    copy(&r->a, &o->a);
    copy(&r->b, &o->b);
    check_buf_reset(&r->y);
    check_buf_reset(&r->out);
    struct check_buf *const all[] = { &r->y, &r->out, &r->a, &r->b, &r->conv, &r->matrix };
    struct check_buf *const on[] = { &out.y, &out.out, &out.a, &out.b, &out.conv, &out.matrix };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        on[i]->t = to_gpu(be, all[i]);
    d.x.t = to_gpu(be, &o->x);
    d.w = floats_to_gpu(be, o->w, taps * cols);
    d.bias = floats_to_gpu(be, o->bias, heads);
    d.scale = floats_to_gpu(be, o->scale, heads);
    ops_begin(be, N_ROWS);
    ops_delta_gates(be, out.a.t, out.b.t, d.bias, d.scale);
    run_views(be, k, &d, &out, views, (int)ARRAY_LEN(views));
    struct state_layer st = layer_of(k, out.conv.t.data, out.matrix.t.data);
    ops_state_copy(be, &st, 3, 2);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        from_gpu(be, all[i], on[i]->t);
    be->ops->free(be, MEM_CAT_SCRATCH, d.x.t.data, o->x.n * sizeof(float));
    be->ops->free(be, MEM_CAT_SCRATCH, d.w, taps * cols * sizeof(float));
    be->ops->free(be, MEM_CAT_SCRATCH, d.bias, heads * sizeof(float));
    be->ops->free(be, MEM_CAT_SCRATCH, d.scale, heads * sizeof(float));
}

static const struct state_case cases[] = {
    { 4, 2, 16, 16, 4, true, false },    { 4, 2, 16, 16, 4, false, true },
    { 3, 3, 8, 20, 4, true, false },     { 6, 2, 128, 128, 4, true, false },
    { 6, 2, 64, 70, 3, false, false },   { 1, 1, 2, 1, 2, true, false },
    { 2, 1, 256, 256, 8, false, false }, { 5, 5, 34, 129, 4, true, true },
    { 16, 4, 128, 128, 4, false, true },
};

void check_state_cuda(struct check *c, struct backend *be)
{
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct state_case *k = &cases[i];
        struct operands o;
        struct results want, got;
        operands_init(&o, k);
        results_init(&want, &o, k);
        results_init(&got, &o, k);
        run(c->ref, k, &o, &want, views, (int)ARRAY_LEN(views));
        struct state_layer st = layer_of(k, want.conv.t.data, want.matrix.t.data);
        ops_state_copy(c->ref, &st, 3, 2);
        run_gpu(be, k, &o, &got);
        check_that(c, results_same(&want, &got), "cuda/state %d of %d heads [%d][%d], %d taps%s",
                   k->key_heads, k->heads, k->key_dim, k->value_dim, k->taps,
                   k->special ? ", special values" : "");
        operands_free(&o);
        results_free(&want);
        results_free(&got);
    }
}

void check_state(struct check *c)
{
    if (check_wants(c, "state"))
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            check_case(c, &cases[i]);
}
