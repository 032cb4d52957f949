/* compare.c - device services, calls and results of the comparing backend. */
#include "tensor/compare_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const op_names[COMPARE_OP_COUNT] = {
    [COMPARE_OP_EMBED] = "embed",
    [COMPARE_OP_LINEAR] = "linear",
    [COMPARE_OP_ADD_BIAS] = "add_bias",
    [COMPARE_OP_RMS_NORM] = "rms_norm",
    [COMPARE_OP_LAYER_NORM] = "layer_norm",
    [COMPARE_OP_L2_NORM] = "l2_norm",
    [COMPARE_OP_ROPE] = "rope",
    [COMPARE_OP_KV_STORE] = "kv_store",
    [COMPARE_OP_KV_COPY_PAGE] = "kv_copy_page",
    [COMPARE_OP_ATTENTION] = "attention",
    [COMPARE_OP_GLU] = "glu",
    [COMPARE_OP_ACT] = "act",
    [COMPARE_OP_ADD] = "add",
    [COMPARE_OP_SCALE] = "scale",
    [COMPARE_OP_SOFTCAP] = "softcap",
    [COMPARE_OP_COPY] = "copy",
    [COMPARE_OP_GATE_ROWS] = "gate_rows",
    [COMPARE_OP_ROOT_DOTS] = "root_dots",
    [COMPARE_OP_GATHER] = "gather",
    [COMPARE_OP_SCATTER_ADD] = "scatter_add",
    [COMPARE_OP_ROUTE] = "route",
    [COMPARE_OP_CONV_SILU] = "conv_silu",
    [COMPARE_OP_DELTA_GATES] = "delta_gates",
    [COMPARE_OP_DELTA_RULE] = "delta_rule",
    [COMPARE_OP_STATE_COPY] = "state_copy",
    [COMPARE_OP_FAILED] = "failed",
    [COMPARE_OP_EXP_SCALED] = "exp_scaled",
    [COMPARE_OP_ARGMAX] = "argmax",
};

const char *compare_op_name(enum compare_op op)
{
    BUG_ON((unsigned)op >= COMPARE_OP_COUNT);
    return op_names[op];
}

/* --- device services: the fast backend's --- */

static void *compare_alloc(struct backend *be, enum mem_cat cat, size_t bytes)
{
    struct compare *c = compare_of(be);
    return c->fast->ops->alloc(c->fast, cat, bytes);
}

static void compare_free(struct backend *be, enum mem_cat cat, void *p, size_t bytes)
{
    struct compare *c = compare_of(be);
    c->fast->ops->free(c->fast, cat, p, bytes);
}

static void compare_upload(struct backend *be, void *dst, const void *host, size_t bytes)
{
    struct compare *c = compare_of(be);
    c->fast->ops->upload(c->fast, dst, host, bytes);
}

static void compare_download(struct backend *be, void *host, const void *src, size_t bytes)
{
    struct compare *c = compare_of(be);
    c->fast->ops->download(c->fast, host, src, bytes);
}

static enum err_code compare_wait(struct backend *be, struct err *err)
{
    struct compare *c = compare_of(be);
    if (c->code)
        return err_set(err, c->code, "%s", c->err.text);
    return c->fast->ops->wait(c->fast, err);
}

static void compare_close(struct backend *be)
{
    struct compare *c = compare_of(be);
    c->fast->ops->close(c->fast);
    if (c->oracle)
        c->oracle->ops->close(c->oracle);
    arena_release(&c->arena);
    mem_free(MEM_CAT_BASE, c);
    mem_free(MEM_CAT_BASE, be);
}

/* --- weights --- */

static bool compare_supports(const struct backend *be, enum dtype type)
{
    const struct compare *c = compare_of(be);
    return c->fast->ops->supports(c->fast, type) &&
           (!c->oracle || c->oracle->ops->supports(c->oracle, type));
}

/* Bytes that are made for the call alone (a source without drop) are kept. */
static enum err_code compare_keep(struct weight *w, struct err *err)
{
    struct weight_source *s = &w->source;
    struct scales *sc = &s->scales;
    size_t n = dtype_row_bytes(s->type, s->in) * (size_t)s->out, scales = 0;
    if (s->drop)
        return ERR_OK;
    if (sc->scales)
        scales = (size_t)((s->out + sc->rows - 1) / sc->rows) *
                 dtype_row_bytes(sc->type, (s->in + sc->cols - 1) / sc->cols);
    w->copy_bytes = n + scales * (sc->biases ? 2 : 1);
    uint8_t *to = w->copy = mem_try_big(MEM_CAT_WEIGHTS, w->copy_bytes);
    if (!to)
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", s->name, w->copy_bytes);
    s->data = memcpy(to, s->data, n);
    if (sc->scales)
        sc->scales = memcpy(to + n, sc->scales, scales);
    if (sc->scales && sc->biases)
        sc->biases = memcpy(to + n + scales, sc->biases, scales);
    return ERR_OK;
}

static void compare_unpack_free(struct backend *be, struct weight *w)
{
    struct compare *c = compare_of(be);
    if (!w)
        return;
    if (w->fast)
        c->fast->ops->unpack_free(c->fast, w->fast);
    mem_free_big(MEM_CAT_WEIGHTS, w->copy, w->copy_bytes);
    mem_free(MEM_CAT_WEIGHTS, w);
}

static enum err_code compare_pack_weight(struct backend *be, const struct weight_source *src,
                                         struct weight **out, struct err *err)
{
    struct compare *c = compare_of(be);
    struct weight *w = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*w));
    w->source = *src;
    enum err_code code = c->oracle ? compare_keep(w, err) : ERR_OK;
    if (!code)
        code = c->fast->ops->pack(c->fast, src, &w->fast, err);
    if (code) {
        compare_unpack_free(be, w);
        return code;
    }
    w->shape = *c->fast->ops->shape(w->fast);
    *out = w;
    return ERR_OK;
}

static const struct weight_shape *compare_shape(const struct weight *w)
{
    return &w->shape;
}

static size_t compare_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads,
                                    int head_dim)
{
    const struct compare *c = compare_of(be);
    size_t bytes = c->fast->ops->kv_page_bytes(c->fast, type, n_kv_heads, head_dim);
    BUG_ON(c->oracle &&
           bytes != c->oracle->ops->kv_page_bytes(c->oracle, type, n_kv_heads, head_dim));
    return bytes;
}

/* --- calls --- */

struct compare_call compare_begin(struct backend *be, enum compare_op op, enum dtype type,
                                  const char *name)
{
    struct compare *c = compare_of(be);
    struct compare_call call = { .c = c, .r = &c->results[op][type], .name = name };
    call.guard = mem_guard_suspend();
    call.r->op = op;
    call.r->type = type;
    call.r->n_calls++;
    return call;
}

struct compare_call compare_begin_on(struct backend *be, enum compare_op op, struct tensor y)
{
    struct compare_call call = compare_begin(be, op, DTYPE_COUNT, "");
    call.y = y;
    call.want = compare_copy(&call, y);
    return call;
}

void compare_end(struct compare_call *call)
{
    struct compare *c = call->c;
    if (c->on_op) {
        struct compare_event e = { call->r->op, call->r->type, c->layer,
                                   call->name,  call->y,       call->n_different };
        c->on_op(c->ctx, &e);
    }
    arena_reset(&c->arena);
    mem_guard_resume(call->guard);
}

static void compare_no_memory(struct compare *c, size_t n)
{
    c->code = err_set(&c->err, ERR_NOMEM, "comparing: no memory for %zu bytes", n);
}

void *compare_take(struct compare_call *call, size_t n)
{
    void *p = arena_alloc(&call->c->arena, n);
    if (!p)
        compare_no_memory(call->c, n);
    return p;
}

struct tensor compare_copy(struct compare_call *call, struct tensor t)
{
    struct tensor copy = { NULL, t.rows, t.cols, t.cols };
    if (!compare_is_on(call))
        return copy;
    copy.data = compare_take(call, (size_t)(t.rows * t.cols) * sizeof(float));
    for (int64_t r = 0; r < t.rows && copy.data; r++)
        memcpy(copy.data + r * t.cols, t.data + r * t.stride, (size_t)t.cols * sizeof(float));
    return copy;
}

struct tensor compare_input(const struct compare_call *call, struct tensor x)
{
    if (x.data != call->y.data)
        return x;
    BUG_ON(x.rows != call->y.rows || x.cols != call->y.cols);
    return call->want;
}

struct weight *compare_pack(struct compare_call *call, const struct weight *w)
{
    struct compare *c = call->c;
    struct weight *packed = NULL;
    if (compare_is_on(call))
        c->code = c->oracle->ops->pack(c->oracle, &w->source, &packed, &c->err);
    return c->code ? NULL : packed;
}

/* --- results --- */

static void compare_note(struct compare_call *call, const struct compare_diff *at)
{
    struct compare_result *r = call->r;
    double diff = fabs((double)at->fast - (double)at->oracle);
    if (isnan(diff))
        diff = INFINITY;
    if (r->n_different++ == 0) {
        r->first = *at;
        r->first.call = r->n_calls;
        r->first.layer = call->c->layer;
        snprintf(r->first.name, sizeof(r->first.name), "%s", call->name);
    }
    call->n_different++;
    r->max_diff = diff > r->max_diff ? diff : r->max_diff;
}

void compare_check(struct compare_call *call, struct tensor y, struct tensor want)
{
    call->r->n_elements += y.rows * y.cols;
    for (int64_t i = 0; i < y.rows && want.data && compare_is_on(call); i++) {
        const float *a = y.data + i * y.stride, *b = want.data + i * want.stride;
        if (memcmp(a, b, (size_t)y.cols * sizeof(float)) == 0)
            continue;
        for (int64_t j = 0; j < y.cols; j++)
            /* the bits of a NaN are nobody's business: its row fails */
            if (memcmp(a + j, b + j, sizeof(float)) != 0 && !(isnan(a[j]) && isnan(b[j])))
                compare_note(call, &(struct compare_diff){ .rows = y.rows,
                                                           .cols = y.cols,
                                                           .row = i,
                                                           .col = j,
                                                           .fast = a[j],
                                                           .oracle = b[j] });
    }
}

/* One whole number of an output: y at i in [0, rows * cols), the oracle has want. */
static void compare_check_code(struct compare_call *call, int64_t i, int64_t rows, int64_t cols,
                               int32_t y, int32_t want)
{
    if (y != want)
        compare_note(call, &(struct compare_diff){ .rows = rows,
                                                   .cols = cols,
                                                   .row = i / cols,
                                                   .col = i % cols,
                                                   .fast = (float)y,
                                                   .oracle = (float)want });
}

void compare_check_bytes(struct compare_call *call, const uint8_t *y, const uint8_t *want,
                         int64_t rows, int64_t cols)
{
    call->r->n_elements += rows * cols;
    for (int64_t i = 0; i < rows * cols && want && compare_is_on(call); i++)
        compare_check_code(call, i, rows, cols, y[i], want[i]);
}

void compare_check_ints(struct compare_call *call, const int32_t *y, const int32_t *want,
                        int64_t rows, int64_t cols)
{
    call->r->n_elements += rows * cols;
    for (int64_t i = 0; i < rows * cols && want && compare_is_on(call); i++)
        compare_check_code(call, i, rows, cols, y[i], want[i]);
}

const struct compare_result *compare_result_at(const struct backend *be, int i)
{
    const struct compare *c = compare_of(be);
    for (int op = 0; op < COMPARE_OP_COUNT; op++)
        for (int type = 0; type <= DTYPE_COUNT; type++)
            if (c->results[op][type].n_calls > 0 && i-- == 0)
                return &c->results[op][type];
    return NULL;
}

void compare_set_layer(struct backend *be, int layer)
{
    compare_of(be)->layer = layer;
}

/* --- opening --- */

static void compare_fill(struct compare *c)
{
    const struct backend_ops *fast = c->fast->ops;
    c->ops = compare_ops;
    c->ops.api_version = BACKEND_API;
    c->ops.name = c->oracle ? "compare" : "trace";
    c->ops.is_host = true;
    c->ops.numerics = fast->numerics;
    c->ops.alloc = compare_alloc;
    c->ops.free = compare_free;
    c->ops.upload = compare_upload;
    c->ops.download = compare_download;
    c->ops.wait = compare_wait;
    c->ops.close = compare_close;
    if (!fast->root_dots)
        c->ops.root_dots = NULL;
    if (!fast->index_add) {
        c->ops.index_add = NULL;
        c->ops.index_pick = NULL;
    }
    c->ops.supports = compare_supports;
    c->ops.pack = compare_pack_weight;
    c->ops.unpack_free = compare_unpack_free;
    c->ops.shape = compare_shape;
    c->ops.kv_page_bytes = compare_kv_page_bytes;
    /* threads and parallel stay NULL: what samples on several threads would call the ops there, and results are not shared */
    if (!fast->exp_scaled || (c->oracle && !c->oracle->ops->exp_scaled))
        c->ops.exp_scaled = NULL;
    if (!fast->argmax || (c->oracle && !c->oracle->ops->argmax))
        c->ops.argmax = NULL;
}

enum err_code compare_backend_open(const struct compare_options *o, struct backend **out,
                                   struct err *err)
{
    const struct backend *both[] = { o->fast, o->oracle };
    for (size_t i = 0; i < ARRAY_LEN(both); i++)
        if (both[i] && !both[i]->ops->is_host)
            return err_set(err, ERR_UNSUPPORTED,
                           "backend %s: its memory is not the host's, it is not compared",
                           both[i]->ops->name);
    struct compare *c = mem_alloc(MEM_CAT_BASE, sizeof(*c));
    c->fast = o->fast;
    c->oracle = o->oracle;
    c->on_op = o->on_op;
    c->ctx = o->ctx;
    arena_init(&c->arena, MEM_CAT_SCRATCH, SIZE_MAX);
    compare_fill(c);
    struct backend *be = mem_alloc(MEM_CAT_BASE, sizeof(*be));
    be->ops = &c->ops;
    be->state = c;
    *out = be;
    return ERR_OK;
}
