/* Ops that become one kernel: rules that look at the last recorded commands. Everything that the ops would have written is written, so a
 * family's step need not know of it; the plain backend records op by op and is what tests/check compares with. */
#include "kernels/cuda/cuda_int.h"

#include <string.h>

static bool is_same(const struct cu_tensor *a, const struct cu_tensor *b)
{
    return a->data == b->data && a->stride == b->stride && a->rows == b->rows && a->cols == b->cols;
}

/* An RMS norm of whole rows, with the addition before it. */
static bool fuse_norm(struct cuda_state *st, const struct cu_norm *n)
{
    struct cu_row_norm c;
    if (n->kind != CU_NORM_RMS || n->n != n->x.cols || n->n > CU_NORM_MAX)
        return false;
    memset(&c, 0, sizeof(c));
    c.x = n->x;
    c.y = n->y;
    c.w = n->w;
    c.eps = n->eps;
    const struct cu_elementwise *add = cuda_last(st, 0, CUDA_OP_ELEMENTWISE);
    if (add && add->op == CU_EW_ADD && is_same(&add->y, &n->x)) {
        c.h = add->a;
        cuda_drop(st, 1);
    }
    cuda_append(st, CUDA_OP_ROW_NORM, &c, sizeof(c));
    return true;
}

/* The product of gate and up, with what joins them. */
static bool fuse_glu(struct cuda_state *st, const struct cu_elementwise *e)
{
    struct cu_linear *l = cuda_last(st, 0, CUDA_OP_LINEAR_RING);
    if (e->op != CU_EW_GLU)
        return false;
    if (l && l->n_jobs == 2 && !l->has_glu && l->rows == e->y.rows && l->w[0].out == e->y.cols &&
        l->w[1].out == e->y.cols && l->y[0] == e->a.data && l->y[0] == e->y.data &&
        l->y[1] == e->b.data && l->stride[0] == e->a.stride && l->stride[0] == e->y.stride &&
        l->stride[1] == e->b.stride) {
        l->has_glu = 1;
        l->glu_kind = e->kind;
        return true;
    }
    return false;
}

/* Activations to bf16, by the command that makes them. */
static bool fuse_quantise(struct cuda_state *st, const struct cu_quantise *q)
{
    struct cu_row_norm *norm = cuda_last(st, 0, CUDA_OP_ROW_NORM);
    struct cu_linear *l = cuda_last(st, 0, CUDA_OP_LINEAR_RING);
    struct cu_attention *a = cuda_last(st, 0, CUDA_OP_ATTENTION);
    const struct cu_elementwise *e = cuda_last(st, 0, CUDA_OP_ELEMENTWISE);
    bool is_whole = q->x.cols % CU_UNIT == 0;
    if (norm && !norm->q.out && is_same(&norm->y, &q->x)) {
        norm->q = *q;
        return true;
    }
    if (l && l->has_glu && !l->q.out && is_whole && l->y[0] == q->x.data &&
        l->stride[0] == q->x.stride && l->rows == q->x.rows && l->w[0].out == q->x.cols) {
        l->q = *q;
        return true;
    }
    if (a && a->is_whole && !a->to_bf16.out && is_whole && is_same(&a->out, &q->x)) {
        a->to_bf16 = *q;
        return true;
    }
    if (e && e->op == CU_EW_GLU && is_same(&e->y, &q->x)) {
        struct cu_glu c;
        memset(&c, 0, sizeof(c));
        c.e = *e;
        c.q = *q;
        cuda_drop(st, 1);
        cuda_append(st, CUDA_OP_GLU, &c, sizeof(c));
        return true;
    }
    return false;
}

/* The rotation of queries before that of these keys, of heads that are turned whole; NULL: what was recorded last is something else. */
static const struct cu_rope *last_ropes(struct cuda_state *st, const struct cu_tensor *keys,
                                        int head_dim)
{
    const struct cu_rope *k = cuda_last(st, 0, CUDA_OP_ROPE), *q = cuda_last(st, 1, CUDA_OP_ROPE);
    bool is_so = k && q && is_same(&k->x, keys) && k->table == q->table && k->half == q->half &&
                 k->is_neox == q->is_neox && k->head_dim == q->head_dim && k->x.rows == q->x.rows &&
                 2 * k->half == k->head_dim && k->head_dim == head_dim;
    return is_so ? q : NULL;
}

/* Rotations of queries and keys, then the store. */
static bool fuse_store(struct cuda_state *st, const struct cu_kv_store *s)
{
    const struct cu_rope *q = last_ropes(st, &s->k, s->kv.head_dim);
    struct cu_rope_store c;
    if (!q)
        return false;
    memset(&c, 0, sizeof(c));
    c.q = *q;
    c.kv = *s;
    cuda_drop(st, 2);
    cuda_append(st, CUDA_OP_ROPE_STORE, &c, sizeof(c));
    return true;
}

/* ... to a quantised cache of whole units, which a row writes without another's key; a block has all groups of a head. */
static bool fuse_kvq_store(struct cuda_state *st, const struct cu_kvq_store *s)
{
    const struct cu_rope *q = last_ropes(st, &s->k, s->kv.head_dim);
    struct cu_rope_kvq_store c;
    if (!q || !s->is_single || !s->kv.is_whole || CU_KVQ_WARPS % s->kv.groups != 0)
        return false;
    memset(&c, 0, sizeof(c));
    c.q = *q;
    c.kv = *s;
    cuda_drop(st, 2);
    cuda_append(st, CUDA_OP_ROPE_KVQ_STORE, &c, sizeof(c));
    return true;
}

bool cuda_fuse(struct cuda_state *st, enum cuda_op op, const void *params)
{
    switch (op) {
    case CUDA_OP_NORM:
        return fuse_norm(st, params);
    case CUDA_OP_ELEMENTWISE:
        return fuse_glu(st, params);
    case CUDA_OP_QUANTISE:
        return fuse_quantise(st, params);
    case CUDA_OP_KV_STORE:
        return fuse_store(st, params);
    case CUDA_OP_KVQ_STORE:
        return fuse_kvq_store(st, params);
    default:
        return false;
    }
}
