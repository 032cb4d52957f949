/* compare_ops.c - every op on both backends: the oracle first, on copies of what the op changes, then the fast one in place. */
#include "tensor/compare_int.h"
#include "tensor/index.h"
#include "tensor/ops.h"
#include "tensor/route.h"

#include <string.h>

/* --- rows --- */

/* For ops of one result y: `oracle_call` and `fast_call` are the op on either. */
#define COMPARE_ROWS(op, y_, oracle_call, fast_call)                   \
    do {                                                               \
        struct compare_call call = compare_begin_on(be, op, y_);       \
        struct backend *fast = call.c->fast, *oracle = call.c->oracle; \
        if (call.want.data)                                            \
            oracle->ops->oracle_call;                                  \
        fast->ops->fast_call;                                          \
        compare_check(&call, call.y, call.want);                       \
        compare_end(&call);                                            \
    } while (0)

static void compare_add_bias(struct backend *be, struct tensor y, const float *b)
{
    COMPARE_ROWS(COMPARE_OP_ADD_BIAS, y, add_bias(oracle, call.want, b), add_bias(fast, y, b));
}

static void compare_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                             int n, float eps)
{
    COMPARE_ROWS(COMPARE_OP_RMS_NORM, y,
                 rms_norm(oracle, call.want, compare_input(&call, x), w, n, eps),
                 rms_norm(fast, y, x, w, n, eps));
}

static void compare_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                               const float *b, float eps)
{
    COMPARE_ROWS(COMPARE_OP_LAYER_NORM, y,
                 layer_norm(oracle, call.want, compare_input(&call, x), w, b, eps),
                 layer_norm(fast, y, x, w, b, eps));
}

static void compare_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                            float scale)
{
    COMPARE_ROWS(COMPARE_OP_L2_NORM, y,
                 l2_norm(oracle, call.want, compare_input(&call, x), n, eps, scale),
                 l2_norm(fast, y, x, n, eps, scale));
}

static void compare_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
                         const int32_t *pos)
{
    COMPARE_ROWS(COMPARE_OP_ROPE, x, rope(oracle, call.want, r, head_dim, pos),
                 rope(fast, x, r, head_dim, pos));
}

static void compare_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
                        enum glu_kind kind)
{
    COMPARE_ROWS(COMPARE_OP_GLU, y,
                 glu(oracle, call.want, compare_input(&call, gate), compare_input(&call, up), kind),
                 glu(fast, y, gate, up, kind));
}

static void compare_act(struct backend *be, struct tensor y, enum glu_kind kind)
{
    COMPARE_ROWS(COMPARE_OP_ACT, y, act(oracle, call.want, kind), act(fast, y, kind));
}

static void compare_add(struct backend *be, struct tensor y, struct tensor x)
{
    COMPARE_ROWS(COMPARE_OP_ADD, y, add(oracle, call.want, compare_input(&call, x)),
                 add(fast, y, x));
}

static void compare_scale(struct backend *be, struct tensor y, float s)
{
    COMPARE_ROWS(COMPARE_OP_SCALE, y, scale(oracle, call.want, s), scale(fast, y, s));
}

static void compare_softcap(struct backend *be, struct tensor y, float cap)
{
    COMPARE_ROWS(COMPARE_OP_SOFTCAP, y, softcap(oracle, call.want, cap), softcap(fast, y, cap));
}

static void compare_copy_op(struct backend *be, struct tensor y, struct tensor x)
{
    COMPARE_ROWS(COMPARE_OP_COPY, y, copy(oracle, call.want, compare_input(&call, x)),
                 copy(fast, y, x));
}

static void compare_gate_rows(struct backend *be, struct tensor y, struct tensor g)
{
    COMPARE_ROWS(COMPARE_OP_GATE_ROWS, y, gate_rows(oracle, call.want, g), gate_rows(fast, y, g));
}

static void compare_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                              float scale)
{
    COMPARE_ROWS(
        COMPARE_OP_ROOT_DOTS, y,
        root_dots(oracle, call.want, compare_input(&call, a), compare_input(&call, b), scale),
        root_dots(fast, y, a, b, scale));
}

/* The index is host code that all backends share; what it picks is seen by attention, which is compared. */
static int compare_index_add(struct backend *be, struct tensor means, int32_t *first,
                             struct tensor k, struct index_layer *ix, const struct seq_view *seqs,
                             int n_seqs)
{
    return index_add_rows(means, first, k, ix, seqs, n_seqs);
}

static bool compare_index_pick(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                               struct tensor means, struct index_layer *ix,
                               const struct index_pick *p, float *scores,
                               const struct seq_view *seqs, int n_seqs)
{
    return index_pick_rows(be, picked, words, q, means, ix, p, scores, seqs, n_seqs);
}

static void compare_gather(struct backend *be, struct tensor y, struct tensor x,
                           const int32_t *rows)
{
    COMPARE_ROWS(COMPARE_OP_GATHER, y, gather(oracle, call.want, x, rows),
                 gather(fast, y, x, rows));
}

static void compare_scatter_add(struct backend *be, struct tensor y, struct tensor x,
                                const int32_t *rows, const float *w, const uint8_t *is_first)
{
    COMPARE_ROWS(COMPARE_OP_SCATTER_ADD, y, scatter_add(oracle, call.want, x, rows, w, is_first),
                 scatter_add(fast, y, x, rows, w, is_first));
}

static void compare_attention(struct backend *be, struct tensor out, struct tensor q,
                              const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                              const struct attn_params *p)
{
    COMPARE_ROWS(COMPARE_OP_ATTENTION, out,
                 attention(oracle, call.want, compare_input(&call, q), kv, seqs, n_seqs, p),
                 attention(fast, out, q, kv, seqs, n_seqs, p));
}

static void compare_delta_gates(struct backend *be, struct tensor a, struct tensor b,
                                const float *bias, const float *s)
{
    struct compare_call call = compare_begin_on(be, COMPARE_OP_DELTA_GATES, a);
    struct tensor want_b = compare_copy(&call, b);
    if (call.want.data && want_b.data)
        call.c->oracle->ops->delta_gates(call.c->oracle, call.want, want_b, bias, s);
    call.c->fast->ops->delta_gates(call.c->fast, a, b, bias, s);
    compare_check(&call, a, call.want);
    compare_check(&call, b, want_b);
    compare_end(&call);
}

/* --- weights --- */

static void compare_embed(struct backend *be, struct tensor y, const struct weight *w,
                          const int32_t *ids)
{
    struct compare_call call = compare_begin(be, COMPARE_OP_EMBED, w->shape.type, w->source.name);
    struct backend *oracle = call.c->oracle;
    struct tensor want = compare_copy(&call, y);
    struct weight *packed = compare_pack(&call, w);
    if (packed) {
        oracle->ops->embed(oracle, want, packed, ids);
        oracle->ops->unpack_free(oracle, packed);
    }
    call.y = y;
    call.c->fast->ops->embed(call.c->fast, y, w->fast, ids);
    compare_check(&call, y, want);
    compare_end(&call);
}

/* y is what the fast backend gave. */
static void compare_product(struct backend *be, struct tensor y, struct tensor x,
                            const struct weight *w)
{
    struct compare_call call = compare_begin(be, COMPARE_OP_LINEAR, w->shape.type, w->source.name);
    struct backend *oracle = call.c->oracle;
    struct tensor want = compare_copy(&call, y);
    struct weight *packed = compare_pack(&call, w);
    if (packed) {
        oracle->ops->linear(oracle, want, x, packed);
        oracle->ops->unpack_free(oracle, packed);
    }
    call.y = y;
    compare_check(&call, y, want);
    compare_end(&call);
}

static void compare_linear(struct backend *be, struct tensor y, struct tensor x,
                           const struct weight *w)
{
    struct compare *c = compare_of(be);
    c->fast->ops->linear(c->fast, y, x, w->fast);
    compare_product(be, y, x, w);
}

static void compare_linear_many(struct backend *be, int n, const struct tensor *y, struct tensor x,
                                const struct weight *const *w)
{
    const struct weight *fast[BACKEND_LINEAR_MANY_MAX] = { NULL };
    for (int i = 0; i < n; i++)
        fast[i] = w[i]->fast;
    ops_linear_many(compare_of(be)->fast, n, y, x, fast);
    for (int i = 0; i < n; i++)
        compare_product(be, y[i], x, w[i]);
}

/* --- caches --- */

static int32_t first_block(const struct seq_view *s)
{
    return s->pos0 / KV_PAGE_TOKENS;
}

/* Past the last block that the rows touch. */
static int32_t end_block(const struct seq_view *s)
{
    return s->n_rows ? (s->pos0 + s->n_rows - 1) / KV_PAGE_TOKENS + 1 : first_block(s);
}

/* The pages that the rows are stored in, as a cache of their own with page tables to it. False: nothing is compared. */
static bool take_pages(struct compare_call *call, const struct kv_layer *kv, size_t page,
                       const struct seq_view *seqs, int n_seqs, struct kv_layer *own,
                       struct seq_view **views)
{
    *own = *kv;
    own->n_pages = 0;
    own->data = NULL;
    if (!compare_is_on(call))
        return false;
    for (int i = 0; i < n_seqs; i++)
        own->n_pages += end_block(&seqs[i]) - first_block(&seqs[i]);
    own->data = compare_take(call, page * (size_t)own->n_pages);
    *views = compare_take(call, sizeof(**views) * (size_t)n_seqs);
    int32_t n = 0;
    for (int i = 0; i < n_seqs && own->data && *views; i++) {
        int32_t *pages = compare_take(call, sizeof(*pages) * (size_t)(end_block(&seqs[i]) + 1));
        (*views)[i] = seqs[i];
        (*views)[i].pages = pages;
        for (int32_t b = first_block(&seqs[i]); pages && b < end_block(&seqs[i]); b++) {
            memcpy(own->data + (size_t)n * page, kv->data + (size_t)seqs[i].pages[b] * page, page);
            pages[b] = n++;
        }
    }
    return compare_is_on(call);
}

static void compare_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k,
                             struct tensor v, const struct seq_view *seqs, int n_seqs)
{
    struct compare_call call = compare_begin(be, COMPARE_OP_KV_STORE, kv->type, "");
    struct backend *fast = call.c->fast, *oracle = call.c->oracle;
    size_t page = be->ops->kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim);
    struct kv_layer own;
    struct seq_view *views;
    bool is_on = take_pages(&call, kv, page, seqs, n_seqs, &own, &views);
    if (is_on)
        oracle->ops->kv_store(oracle, &own, k, v, views, n_seqs);
    fast->ops->kv_store(fast, kv, k, v, seqs, n_seqs);
    for (int i = 0; i < n_seqs; i++)
        for (int32_t b = first_block(&seqs[i]); b < end_block(&seqs[i]); b++)
            compare_check_bytes(&call, kv->data + (size_t)seqs[i].pages[b] * page,
                                is_on ? own.data + (size_t)views[i].pages[b] * page : NULL, 1,
                                (int64_t)page);
    compare_end(&call);
}

static void compare_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src)
{
    struct compare_call call = compare_begin(be, COMPARE_OP_KV_COPY_PAGE, kv->type, "");
    struct backend *fast = call.c->fast, *oracle = call.c->oracle;
    size_t page = be->ops->kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim);
    struct kv_layer own = *kv;
    own.n_pages = 2;
    own.data = compare_is_on(&call) ? compare_take(&call, 2 * page) : NULL;
    if (own.data) {
        memcpy(own.data + page, kv->data + (size_t)src * page, page);
        oracle->ops->kv_copy_page(oracle, &own, 0, 1);
    }
    fast->ops->kv_copy_page(fast, kv, dst, src);
    compare_check_bytes(&call, kv->data + (size_t)dst * page, own.data, 1, (int64_t)page);
    compare_end(&call);
}

/* --- states --- */

/* A slot's numbers, of the convolution or the matrices. */
static struct tensor slot_of(const struct state_layer *st, bool is_conv, int32_t slot)
{
    if (is_conv) {
        int64_t n = (int64_t)(st->taps - 1) * st->conv_cols;
        return (struct tensor){ st->conv + slot * n, st->taps - 1, st->conv_cols, st->conv_cols };
    }
    int64_t rows = (int64_t)st->n_heads * st->key_dim;
    return (struct tensor){ st->matrix + slot * rows * st->value_dim, rows, st->value_dim,
                            st->value_dim };
}

/* The sequences' slots as a state layer of its own, slot i for sequence i. False: nothing is compared. */
static bool take_slots(struct compare_call *call, const struct state_layer *st, bool is_conv,
                       const struct seq_view *seqs, int n_seqs, struct state_layer *own,
                       struct seq_view **views)
{
    struct tensor one = slot_of(st, is_conv, 0);
    size_t bytes = (size_t)(one.rows * one.cols) * sizeof(float);
    if (!compare_is_on(call))
        return false;
    float *data = compare_take(call, bytes * (size_t)n_seqs);
    *views = compare_take(call, sizeof(**views) * (size_t)n_seqs);
    *own = *st;
    own->n_slots = n_seqs;
    own->conv = is_conv ? data : NULL;
    own->matrix = is_conv ? NULL : data;
    for (int i = 0; i < n_seqs && data && *views; i++) {
        memcpy(slot_of(own, is_conv, i).data, slot_of(st, is_conv, seqs[i].slot).data, bytes);
        (*views)[i] = seqs[i];
        (*views)[i].slot = i;
    }
    return compare_is_on(call);
}

static void check_slots(struct compare_call *call, const struct state_layer *st,
                        const struct state_layer *own, bool is_conv, const struct seq_view *seqs,
                        int n_seqs)
{
    for (int i = 0; i < n_seqs && own; i++)
        compare_check(call, slot_of(st, is_conv, seqs[i].slot), slot_of(own, is_conv, i));
}

static void compare_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                              struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    struct compare_call call = compare_begin_on(be, COMPARE_OP_CONV_SILU, y);
    struct backend *fast = call.c->fast, *oracle = call.c->oracle;
    struct state_layer own;
    struct seq_view *views;
    bool is_on = take_slots(&call, st, true, seqs, n_seqs, &own, &views);
    if (is_on)
        oracle->ops->conv_silu(oracle, call.want, x, w, &own, views, n_seqs);
    fast->ops->conv_silu(fast, y, x, w, st, seqs, n_seqs);
    compare_check(&call, y, call.want);
    check_slots(&call, st, is_on ? &own : NULL, true, seqs, n_seqs);
    compare_end(&call);
}

static void compare_delta_rule(struct backend *be, struct tensor out, struct tensor q,
                               struct tensor k, struct tensor v, struct tensor decay,
                               struct tensor beta, struct state_layer *st,
                               const struct seq_view *seqs, int n_seqs)
{
    struct compare_call call = compare_begin_on(be, COMPARE_OP_DELTA_RULE, out);
    struct backend *fast = call.c->fast, *oracle = call.c->oracle;
    struct state_layer own;
    struct seq_view *views;
    bool is_on = take_slots(&call, st, false, seqs, n_seqs, &own, &views);
    if (is_on)
        oracle->ops->delta_rule(oracle, call.want, q, k, v, decay, beta, &own, views, n_seqs);
    fast->ops->delta_rule(fast, out, q, k, v, decay, beta, st, seqs, n_seqs);
    compare_check(&call, out, call.want);
    check_slots(&call, st, is_on ? &own : NULL, false, seqs, n_seqs);
    compare_end(&call);
}

/* What the slot becomes is known: no oracle is asked. */
static void compare_state_copy(struct backend *be, struct state_layer *st, int32_t dst, int32_t src)
{
    struct compare_call call = compare_begin(be, COMPARE_OP_STATE_COPY, DTYPE_COUNT, "");
    struct tensor conv = compare_copy(&call, slot_of(st, true, src));
    struct tensor matrix = compare_copy(&call, slot_of(st, false, src));
    call.c->fast->ops->state_copy(call.c->fast, st, dst, src);
    compare_check(&call, slot_of(st, true, dst), conv);
    compare_check(&call, slot_of(st, false, dst), matrix);
    compare_end(&call);
}

/* --- experts, flags --- */

static void compare_route(struct backend *be, struct tensor logits, const struct route *r,
                          int32_t *ids, float *w)
{
    struct compare_call call = compare_begin(be, COMPARE_OP_ROUTE, DTYPE_COUNT, "");
    size_t n = (size_t)logits.rows * (size_t)r->n_used;
    int32_t *want_ids = compare_is_on(&call) ? compare_take(&call, n * sizeof(*ids)) : NULL;
    struct tensor y = tensor_of(w, logits.rows, r->n_used), want = compare_copy(&call, y);
    if (want.data && want_ids)
        call.c->oracle->ops->route(call.c->oracle, logits, r, want_ids, want.data);
    call.c->fast->ops->route(call.c->fast, logits, r, ids, w);
    compare_check_ints(&call, ids, want_ids, logits.rows, r->n_used);
    compare_check(&call, y, want);
    call.y = y;
    compare_end(&call);
}

static void compare_begin_rows(struct backend *be, int n_rows)
{
    struct compare *c = compare_of(be);
    c->n_rows = n_rows;
    c->fast->ops->begin(c->fast, n_rows);
    if (c->oracle)
        c->oracle->ops->begin(c->oracle, n_rows);
}

static void compare_failed(struct backend *be, uint8_t *flags)
{
    struct compare_call call = compare_begin(be, COMPARE_OP_FAILED, DTYPE_COUNT, "");
    struct compare *c = call.c;
    uint8_t *got = compare_is_on(&call) ? compare_take(&call, (size_t)c->n_rows) : NULL;
    uint8_t *want = compare_is_on(&call) ? compare_take(&call, (size_t)c->n_rows) : NULL;
    if (got && want) {
        c->fast->ops->failed(c->fast, got);
        c->oracle->ops->failed(c->oracle, want);
        compare_check_bytes(&call, got, want, c->n_rows, 1);
    }
    c->fast->ops->failed(c->fast, flags);
    compare_end(&call);
}

/* --- sampling --- */

static void compare_exp_scaled(struct backend *be, float *y, const float *x, int64_t n, float max,
                               float t)
{
    struct compare *c = compare_of(be);
    struct compare_call call = compare_begin_on(be, COMPARE_OP_EXP_SCALED, tensor_of(y, 1, n));
    if (call.want.data)
        c->oracle->ops->exp_scaled(c->oracle, call.want.data, x == y ? call.want.data : x, n, max,
                                   t);
    c->fast->ops->exp_scaled(c->fast, y, x, n, max, t);
    compare_check(&call, call.y, call.want);
    compare_end(&call);
}

static int64_t compare_argmax(struct backend *be, const float *x, int64_t n, bool *finite)
{
    struct compare *c = compare_of(be);
    struct compare_call call = compare_begin(be, COMPARE_OP_ARGMAX, DTYPE_COUNT, "");
    bool want_finite = true;
    int32_t want =
        compare_is_on(&call) ? (int32_t)c->oracle->ops->argmax(c->oracle, x, n, &want_finite) : 0;
    int64_t i = c->fast->ops->argmax(c->fast, x, n, finite);
    /* without finite values the index may be any */
    const int32_t got[] = { *finite ? (int32_t)i : 0, *finite };
    const int32_t wanted[] = { want_finite ? want : 0, want_finite };
    compare_check_ints(&call, got, wanted, 1, 2);
    compare_end(&call);
    return i;
}

const struct backend_ops compare_ops = {
    .embed = compare_embed,
    .linear = compare_linear,
    .linear_many = compare_linear_many,
    .add_bias = compare_add_bias,
    .rms_norm = compare_rms_norm,
    .layer_norm = compare_layer_norm,
    .l2_norm = compare_l2_norm,
    .rope = compare_rope,
    .kv_store = compare_kv_store,
    .kv_copy_page = compare_kv_copy_page,
    .attention = compare_attention,
    .glu = compare_glu,
    .act = compare_act,
    .add = compare_add,
    .scale = compare_scale,
    .softcap = compare_softcap,
    .copy = compare_copy_op,
    .gate_rows = compare_gate_rows,
    .root_dots = compare_root_dots,
    .index_add = compare_index_add,
    .index_pick = compare_index_pick,
    .gather = compare_gather,
    .scatter_add = compare_scatter_add,
    .route = compare_route,
    .conv_silu = compare_conv_silu,
    .delta_gates = compare_delta_gates,
    .delta_rule = compare_delta_rule,
    .state_copy = compare_state_copy,
    .begin = compare_begin_rows,
    .failed = compare_failed,
    .exp_scaled = compare_exp_scaled,
    .argmax = compare_argmax,
};
