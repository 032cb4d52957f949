/* Mixtures of experts on the GPU: the op that does all of it against route, gather, products and sums one after the other. */
#include "check.h"
#include "tensor/route.h"

#include <stdio.h>
#include <string.h>

#define ROWS_MAX 600

struct moe_case {
    enum dtype type, down_type;
    int n, n_used;
    int64_t width, ff;
    struct route route;
    bool has_bias, has_scale;
    enum glu_kind glu;
};

/* A backend's copy of the layer. */
struct moe_on {
    struct backend *be;
    struct weight *gate[BACKEND_EXPERTS_MAX], *up[BACKEND_EXPERTS_MAX], *down[BACKEND_EXPERTS_MAX];
    float *b_gate, *b_up, *b_down;
};

static float *on_device(struct backend *be, const float *x, size_t n)
{
    float *p = be->ops->alloc(be, MEM_CAT_SCRATCH, n * sizeof(*p));
    BUG_ON(!p);
    if (x)
        be->ops->upload(be, p, x, n * sizeof(*p));
    return p;
}

static void off_device(struct backend *be, void *p, size_t n)
{
    be->ops->free(be, MEM_CAT_SCRATCH, p, n * sizeof(float));
}

/* The three matrices of expert e, the same bytes for both backends. */
static void moe_pack(const struct moe_case *k, struct moe_on on[2], int e)
{
    const struct {
        enum dtype type;
        int64_t out, in;
    } shapes[] = { { k->type, k->ff, k->width },
                   { k->type, k->ff, k->width },
                   { k->down_type, k->width, k->ff } };
    for (int i = 0; i < 3; i++) {
        struct scales scales;
        uint8_t *data =
            check_scaled_weight(shapes[i].type, shapes[i].out, shapes[i].in, 0, &scales);
        for (int b = 0; b < 2; b++) {
            struct weight *w =
                check_pack(on[b].be, shapes[i].type, shapes[i].out, shapes[i].in, data, &scales);
            *(i == 0 ? &on[b].gate[e] : i == 1 ? &on[b].up[e] : &on[b].down[e]) = w;
        }
        mem_free(MEM_CAT_WEIGHTS, data);
    }
}

static void moe_bias(const struct moe_case *k, struct moe_on on[2])
{
    size_t n = (size_t)k->n * (size_t)(k->ff > k->width ? k->ff : k->width);
    float *x = mem_alloc(MEM_CAT_SCRATCH, n * sizeof(*x));
    for (int i = 0; i < 3; i++) {
        check_fill(x, n, 0);
        for (int b = 0; b < 2; b++)
            *(i == 0   ? &on[b].b_gate
              : i == 1 ? &on[b].b_up
                       : &on[b].b_down) = on_device(on[b].be, x, n);
    }
    mem_free(MEM_CAT_SCRATCH, x);
}

static void moe_free(const struct moe_case *k, struct moe_on *on)
{
    size_t n = (size_t)k->n * (size_t)(k->ff > k->width ? k->ff : k->width);
    for (int e = 0; e < k->n; e++) {
        on->be->ops->unpack_free(on->be, on->gate[e]);
        on->be->ops->unpack_free(on->be, on->up[e]);
        on->be->ops->unpack_free(on->be, on->down[e]);
    }
    if (k->has_bias) {
        off_device(on->be, on->b_gate, n);
        off_device(on->be, on->b_up, n);
        off_device(on->be, on->b_down, n);
    }
}

/* The rows of expert e by themselves: y[rows] += w * expert(x[rows]). */
static void moe_expert(const struct moe_case *k, const struct moe_on *on, int e, struct tensor y,
                       struct tensor x, const int32_t *rows, const float *w, const uint8_t *first,
                       int n, uint8_t *flags)
{
    struct backend *be = on->be;
    size_t wide = (size_t)ROWS_MAX * (size_t)k->width, ff = (size_t)ROWS_MAX * (size_t)k->ff;
    float *block = on_device(be, NULL, 2 * wide + 2 * ff);
    struct tensor in = { block, n, k->width, k->width },
                  out = { block + wide, n, k->width, k->width };
    struct tensor gate = { block + 2 * wide, n, k->ff, k->ff }, up = gate;
    uint8_t failed[ROWS_MAX] = { 0 };
    up.data += ff;
    ops_begin(be, n);
    ops_gather(be, in, x, rows);
    ops_linear(be, gate, in, on->gate[e]);
    ops_linear(be, up, in, on->up[e]);
    if (k->has_bias) {
        ops_add_bias(be, gate, on->b_gate + e * k->ff);
        ops_add_bias(be, up, on->b_up + e * k->ff);
    }
    ops_glu(be, gate, gate, up, k->glu);
    ops_linear(be, out, gate, on->down[e]);
    if (k->has_bias)
        ops_add_bias(be, out, on->b_down + e * k->width);
    ops_scatter_add(be, y, out, rows, w, first);
    ops_failed(be, failed);
    for (int i = 0; i < n; i++)
        flags[rows[i]] |= failed[i];
    off_device(be, block, 2 * wide + 2 * ff);
}

static void moe_apart(const struct moe_case *k, const struct moe_on *on, struct tensor y,
                      struct tensor x, struct tensor logits, const float *scale, uint8_t *flags)
{
    static int32_t ids[ROWS_MAX * 64], rows[ROWS_MAX];
    static float w[ROWS_MAX * 64], row_w[ROWS_MAX];
    static uint8_t first[ROWS_MAX];
    int used = k->n_used;
    ops_route(on->be, logits, &k->route, ids, w);
    for (int e = 0; e < k->n; e++) {
        int n = 0;
        for (int i = 0; i < x.rows * used; i++)
            if (ids[i] == e) {
                rows[n] = i / used;
                row_w[n] = scale ? w[i] * scale[e] : w[i];
                first[n++] = i % used == 0;
            }
        if (n > 0)
            moe_expert(k, on, e, y, x, rows, row_w, first, n, flags);
    }
}

static void check_moe_rows(struct check *c, const struct moe_case *k, struct moe_on on[2], int n,
                           int poison)
{
    static float x[ROWS_MAX * 1024], y[2][ROWS_MAX * 1024], logits[ROWS_MAX * 256];
    static float scale[BACKEND_EXPERTS_MAX];
    uint8_t flags[2][ROWS_MAX] = { { 0 } };
    size_t bytes = (size_t)n * (size_t)k->width * sizeof(float);
    bool is_there = true;
    struct err err = { 0 };
    check_fill(x, (size_t)(n * k->width), n % 3);
    check_fill(logits, (size_t)(n * k->n), 0);
    for (int i = 0; i < n * k->n && n % 2; i += 3) /* equal ones: the lower id */
        logits[i] = 0.5f;
    for (int e = 0; e < k->n; e++)
        scale[e] = 1 + check_normal() / 8;
    if (poison >= 0)
        x[poison * k->width + 5] = poison % 2 ? NAN : 3e38f;
    for (int b = 0; b < 2; b++) {
        struct backend *be = on[b].be;
        struct tensor dx = { on_device(be, x, (size_t)(n * k->width)), n, k->width, k->width };
        struct tensor dy = { on_device(be, NULL, (size_t)(n * k->width)), n, k->width, k->width };
        struct tensor dl = { on_device(be, logits, (size_t)(n * k->n)), n, k->n, k->n };
        struct experts e = { .route = &k->route,
                             .n = k->n,
                             .gate = (const struct weight *const *)on[b].gate,
                             .up = (const struct weight *const *)on[b].up,
                             .down = (const struct weight *const *)on[b].down,
                             .b_gate = on[b].b_gate,
                             .b_up = on[b].b_up,
                             .b_down = on[b].b_down,
                             .scale = k->has_scale ? scale : NULL,
                             .glu = k->glu };
        if (b == 0) {
            ops_begin(be, n);
            is_there = ops_moe(be, dy, dx, dl, &e);
            ops_failed(be, flags[0]);
        } else {
            moe_apart(k, &on[b], dy, dx, dl, e.scale, flags[1]);
        }
        is_there = is_there && be->ops->wait(be, &err) == ERR_OK;
        be->ops->download(be, y[b], dy.data, bytes);
        off_device(be, dx.data, (size_t)(n * k->width));
        off_device(be, dy.data, (size_t)(n * k->width));
        off_device(be, dl.data, (size_t)(n * k->n));
    }
    bool is_same = is_there;
    for (int t = 0; t < n && is_same; t++)
        is_same = flags[0][t] == flags[1][t] &&
                  (flags[1][t] || memcmp(y[0] + t * k->width, y[1] + t * k->width,
                                         (size_t)k->width * sizeof(float)) == 0);
    check_that(c, is_same, "cuda/moe/%s %s %d of %d [%lld][%lld] kind %d, %d rows%s: %s",
               dtype_info(k->type)->name, dtype_info(k->down_type)->name, k->n_used, k->n,
               (long long)k->ff, (long long)k->width, k->route.kind, n, poison >= 0 ? ", odd" : "",
               is_there ? "differs" : err.text);
}

void check_moe_cuda(struct check *c, struct backend *fast, struct backend *plain)
{
    static float bias[256];
    static const int rows[] = { 1, 2, 3, 8, 9, 16, 17, 33, 64, 200, 513 };
    const struct route softmax = { .kind = ROUTE_KIND_SOFTMAX, .is_normed = true, .scale = 1 };
    const struct route used = { .kind = ROUTE_KIND_SOFTMAX_USED, .scale = 1 };
    const struct route sigmoid = {
        .kind = ROUTE_KIND_SIGMOID, .is_normed = true, .scale = 2.5f, .bias = bias
    };
    struct moe_case cases[] = {
        { DTYPE_Q4_K, DTYPE_Q6_K, 128, 8, 512, 256, softmax, false, false, GLU_KIND_SILU },
        { DTYPE_Q8_0, DTYPE_Q8_0, 60, 4, 320, 96, softmax, false, true, GLU_KIND_GELU_TANH },
        { DTYPE_MXFP4, DTYPE_MXFP4, 32, 4, 576, 288, used, true, false, GLU_KIND_SWIGLU_CLAMPED },
        { DTYPE_BF16, DTYPE_BF16, 8, 2, 96, 80, used, false, false, GLU_KIND_SILU },
        { DTYPE_Q4_0, DTYPE_Q5_1, 256, 8, 128, 64, sigmoid, false, false, GLU_KIND_SILU },
        { DTYPE_F16, DTYPE_Q8_0, 3, 3, 36, 32, softmax, true, true, GLU_KIND_SILU },
    };
    static struct moe_on on[2];
    check_fill(bias, ARRAY_LEN(bias), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct moe_case *k = &cases[i];
        k->route.n_used = k->n_used;
        memset(on, 0, sizeof(on));
        on[0].be = fast;
        on[1].be = plain;
        for (int e = 0; e < k->n; e++)
            moe_pack(k, on, e);
        if (k->has_bias)
            moe_bias(k, on);
        for (size_t r = 0; r < ARRAY_LEN(rows); r++)
            if (!c->is_quick || (i + r) % 3 == 0)
                check_moe_rows(c, k, on, rows[r], -1);
        check_moe_rows(c, k, on, 7, 3);
        check_moe_rows(c, k, on, 40, 22);
        moe_free(k, &on[0]);
        moe_free(k, &on[1]);
    }
}
