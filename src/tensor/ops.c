#include "tensor/ops.h"
#include "tensor/kvq.h"
#include "tensor/route.h"

struct tensor tensor_of(float *data, int64_t rows, int64_t cols)
{
    return (struct tensor){ .data = data, .rows = rows, .cols = cols, .stride = cols };
}

struct tensor tensor_cols(struct tensor t, int64_t first, int64_t n)
{
    return (struct tensor){ .data = t.data + first, .rows = t.rows, .cols = n, .stride = t.stride };
}

static void check_tensor(struct tensor t)
{
    BUG_ON(t.rows < 0 || t.rows > BACKEND_ROWS_MAX || t.cols <= 0 || t.stride < t.cols);
    BUG_ON(t.rows > 0 && !t.data);
}

static void check_same(struct tensor a, struct tensor b)
{
    check_tensor(a);
    check_tensor(b);
    BUG_ON(a.rows != b.rows || a.cols != b.cols);
}

void ops_begin(struct backend *be, int n_rows)
{
    BUG_ON(n_rows < 0 || n_rows > BACKEND_ROWS_MAX);
    be->ops->begin(be, n_rows);
}

void ops_failed(struct backend *be, uint8_t *flags)
{
    be->ops->failed(be, flags);
}

enum err_code ops_loaded(struct backend *be, enum err_code code, struct err *err)
{
    struct err why;
    enum err_code fault = be->ops->wait(be, &why);
    return fault && (!code || code == ERR_NOMEM) ? err_set(err, ERR_IO, "%s", why.text) : code;
}

int ops_threads(const struct backend *be)
{
    return be->ops->threads ? be->ops->threads(be) : 1;
}

void ops_parallel(struct backend *be, void (*fn)(void *ctx, int64_t i), void *ctx, int64_t n)
{
    if (be->ops->parallel && n > 1) {
        be->ops->parallel(be, fn, ctx, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        fn(ctx, i);
}

void ops_embed(struct backend *be, struct tensor y, const struct weight *w, const int32_t *ids)
{
    check_tensor(y);
    const struct weight_shape *s = be->ops->shape(w);
    BUG_ON(y.cols != s->in);
    for (int64_t t = 0; t < y.rows; t++)
        BUG_ON(ids[t] < 0 || ids[t] >= s->out);
    if (y.rows)
        be->ops->embed(be, y, w, ids);
}

static void check_linear(const struct backend *be, struct tensor y, struct tensor x,
                         const struct weight *w)
{
    check_tensor(y);
    check_tensor(x);
    const struct weight_shape *s = be->ops->shape(w);
    BUG_ON(y.rows != x.rows || x.cols != s->in || y.cols != s->out);
}

void ops_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w)
{
    check_linear(be, y, x, w);
    if (y.rows)
        be->ops->linear(be, y, x, w);
}

void ops_linear_many(struct backend *be, int n, const struct tensor *y, struct tensor x,
                     const struct weight *const *w)
{
    BUG_ON(n < 1 || n > BACKEND_LINEAR_MANY_MAX);
    for (int i = 0; i < n; i++)
        check_linear(be, y[i], x, w[i]);
    if (!x.rows)
        return;
    if (be->ops->linear_many) {
        be->ops->linear_many(be, n, y, x, w);
        return;
    }
    for (int i = 0; i < n; i++)
        be->ops->linear(be, y[i], x, w[i]);
}

void ops_add_bias(struct backend *be, struct tensor y, const float *b)
{
    check_tensor(y);
    if (y.rows)
        be->ops->add_bias(be, y, b);
}

void ops_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w, int n,
                  float eps)
{
    check_same(y, x);
    BUG_ON(n <= 0 || x.cols % n != 0);
    if (y.rows)
        be->ops->rms_norm(be, y, x, w, n, eps);
}

void ops_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
              const int32_t *pos)
{
    check_tensor(x);
    BUG_ON(head_dim <= 0 || head_dim > BACKEND_HEAD_DIM_MAX || x.cols % head_dim != 0);
    BUG_ON(r->n_dims <= 0 || r->n_dims % 2 != 0 || r->n_dims > head_dim);
    if (x.rows)
        be->ops->rope(be, x, r, head_dim, pos);
}

static void check_kv(const struct kv_layer *kv)
{
    BUG_ON(kv->type != DTYPE_F16 && kv->type != DTYPE_BF16 && kv->type != DTYPE_F32 &&
           !kvq_is(kv->type));
    BUG_ON(kv->n_kv_heads <= 0 || kv->head_dim <= 0 || kv->head_dim > BACKEND_HEAD_DIM_MAX);
}

/* Sequences lie inside the rows. */
static void check_seqs(struct tensor t, const struct seq_view *seqs, int n_seqs)
{
    for (int i = 0; i < n_seqs; i++) {
        const struct seq_view *s = &seqs[i];
        BUG_ON(s->row0 < 0 || s->n_rows < 0 || s->row0 + s->n_rows > t.rows || s->pos0 < 0);
    }
}

void ops_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                  const struct seq_view *seqs, int n_seqs)
{
    check_kv(kv);
    check_same(k, v);
    BUG_ON(k.cols != (int64_t)kv->n_kv_heads * kv->head_dim);
    check_seqs(k, seqs, n_seqs);
    if (k.rows)
        be->ops->kv_store(be, kv, k, v, seqs, n_seqs);
}

void ops_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src)
{
    check_kv(kv);
    BUG_ON(dst < 0 || dst >= kv->n_pages || src < 0 || src >= kv->n_pages);
    if (dst != src)
        be->ops->kv_copy_page(be, kv, dst, src);
}

void ops_attention(struct backend *be, struct tensor out, struct tensor q,
                   const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                   const struct attn_params *p)
{
    check_kv(kv);
    check_same(out, q);
    BUG_ON(p->n_heads <= 0 || p->n_heads % kv->n_kv_heads != 0 || p->window < 0);
    BUG_ON(q.cols != (int64_t)p->n_heads * kv->head_dim);
    check_seqs(q, seqs, n_seqs);
    if (q.rows)
        be->ops->attention(be, out, q, kv, seqs, n_seqs, p);
}

void ops_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
             enum glu_kind kind)
{
    check_same(y, gate);
    check_same(y, up);
    if (y.rows)
        be->ops->glu(be, y, gate, up, kind);
}

void ops_act(struct backend *be, struct tensor y, enum glu_kind kind)
{
    check_tensor(y);
    BUG_ON(kind == GLU_KIND_SWIGLU_CLAMPED);
    if (y.rows)
        be->ops->act(be, y, kind);
}

void ops_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                    const float *b, float eps)
{
    check_same(y, x);
    if (y.rows)
        be->ops->layer_norm(be, y, x, w, b, eps);
}

void ops_scatter_add(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                     const float *w, const uint8_t *is_first)
{
    check_tensor(y);
    check_tensor(x);
    BUG_ON(y.cols != x.cols);
    for (int64_t i = 0; i < x.rows; i++)
        BUG_ON(rows[i] < 0 || rows[i] >= y.rows);
    if (x.rows)
        be->ops->scatter_add(be, y, x, rows, w, is_first);
}

void ops_route(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
               float *w)
{
    check_tensor(logits);
    BUG_ON(logits.cols > BACKEND_EXPERTS_MAX || r->n_used < 1 || r->n_used > logits.cols);
    if (logits.rows)
        be->ops->route(be, logits, r, ids, w);
}

bool ops_moe(struct backend *be, struct tensor y, struct tensor x, struct tensor logits,
             const struct experts *e)
{
    check_same(y, x);
    check_tensor(logits);
    BUG_ON(logits.rows != x.rows || logits.cols != e->n || e->route->n_used > e->n);
    return be->ops->moe && x.rows && be->ops->moe(be, y, x, logits, e);
}

void ops_add(struct backend *be, struct tensor y, struct tensor x)
{
    check_same(y, x);
    if (y.rows)
        be->ops->add(be, y, x);
}

void ops_scale(struct backend *be, struct tensor y, float s)
{
    check_tensor(y);
    if (y.rows)
        be->ops->scale(be, y, s);
}

void ops_softcap(struct backend *be, struct tensor y, float cap)
{
    check_tensor(y);
    BUG_ON(!(cap > 0));
    if (y.rows)
        be->ops->softcap(be, y, cap);
}

void ops_gate_rows(struct backend *be, struct tensor y, struct tensor g)
{
    check_tensor(y);
    check_tensor(g);
    BUG_ON(g.rows != y.rows || g.cols != 1);
    if (y.rows)
        be->ops->gate_rows(be, y, g);
}

int ops_index_add(struct backend *be, struct tensor means, int32_t *first, struct tensor k,
                  struct index_layer *ix, const struct seq_view *seqs, int n_seqs)
{
    check_tensor(means);
    check_tensor(k);
    BUG_ON(k.cols != ix->dim || means.cols != ix->dim || means.rows < k.rows);
    BUG_ON(ix->ratio < 1 || KV_PAGE_TOKENS % ix->ratio != 0);
    return k.rows ? be->ops->index_add(be, means, first, k, ix, seqs, n_seqs) : 0;
}

bool ops_index_pick(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                    struct tensor means, struct index_layer *ix, const struct index_pick *p,
                    float *scores, const struct seq_view *seqs, int n_seqs)
{
    check_tensor(q);
    BUG_ON(p->n_heads < 1 || q.cols != (int64_t)p->n_heads * ix->dim || p->n_blocks < 1);
    return q.rows && be->ops->index_pick(be, picked, words, q, means, ix, p, scores, seqs, n_seqs);
}

void ops_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                   float scale)
{
    check_tensor(y);
    check_same(a, b);
    BUG_ON(a.rows != y.rows || y.cols < 1 || a.cols % y.cols != 0);
    if (y.rows)
        be->ops->root_dots(be, y, a, b, scale);
}

void ops_copy(struct backend *be, struct tensor y, struct tensor x)
{
    check_same(y, x);
    if (y.rows)
        be->ops->copy(be, y, x);
}

void ops_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows)
{
    check_tensor(y);
    check_tensor(x);
    BUG_ON(y.cols != x.cols);
    for (int64_t i = 0; i < y.rows; i++)
        BUG_ON(rows[i] < 0 || rows[i] >= x.rows);
    if (y.rows)
        be->ops->gather(be, y, x, rows);
}

void ops_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                 float scale)
{
    check_same(y, x);
    BUG_ON(n <= 0 || x.cols % n != 0);
    if (y.rows)
        be->ops->l2_norm(be, y, x, n, eps, scale);
}

static void check_state(const struct state_layer *st, struct tensor t, const struct seq_view *seqs,
                        int n_seqs)
{
    BUG_ON(st->taps < 2 || st->taps > BACKEND_STATE_TAPS_MAX || st->conv_cols <= 0);
    check_seqs(t, seqs, n_seqs);
    for (int i = 0; i < n_seqs; i++)
        BUG_ON(seqs[i].slot < 0 || seqs[i].slot >= st->n_slots);
}

static void check_matrices(const struct state_layer *st)
{
    BUG_ON(st->n_key_heads <= 0 || st->n_heads <= 0 || st->n_heads % st->n_key_heads != 0);
    BUG_ON(st->key_dim <= 0 || st->key_dim > BACKEND_STATE_DIM_MAX || st->key_dim % 2 != 0);
    BUG_ON(st->value_dim <= 0 || st->value_dim > BACKEND_STATE_DIM_MAX);
}

void ops_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                   struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    check_same(y, x);
    check_state(st, x, seqs, n_seqs);
    BUG_ON(x.cols != st->conv_cols || (y.rows > 0 && y.data == x.data));
    if (y.rows)
        be->ops->conv_silu(be, y, x, w, st, seqs, n_seqs);
}

void ops_delta_gates(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                     const float *s)
{
    check_same(a, b);
    if (a.rows)
        be->ops->delta_gates(be, a, b, bias, s);
}

void ops_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                    struct tensor v, struct tensor decay, struct tensor beta,
                    struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    check_same(out, v);
    check_same(q, k);
    check_same(decay, beta);
    check_matrices(st);
    check_state(st, out, seqs, n_seqs);
    BUG_ON(q.rows != v.rows || decay.rows != v.rows || decay.cols != st->n_heads);
    BUG_ON(q.cols != (int64_t)st->n_key_heads * st->key_dim);
    BUG_ON(v.cols != (int64_t)st->n_heads * st->value_dim);
    if (out.rows)
        be->ops->delta_rule(be, out, q, k, v, decay, beta, st, seqs, n_seqs);
}

void ops_state_copy(struct backend *be, struct state_layer *st, int32_t dst, int32_t src)
{
    BUG_ON(dst < 0 || dst >= st->n_slots || src < 0 || src >= st->n_slots);
    if (dst != src)
        be->ops->state_copy(be, st, dst, src);
}
