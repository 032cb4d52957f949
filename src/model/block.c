/* block.c - the pieces that the families' steps are written in. */
#include "model/model_int.h"
#include "tensor/ops.h"

#include <math.h>
#include <string.h>

/* h = the final norm of x, or `to` is. */
static void block_final_norm(const struct model *m, struct tensor to, struct tensor x)
{
    if (m->out_norm_b)
        ops_layer_norm(m->be, to, x, m->out_norm, m->out_norm_b, m->eps);
    else
        ops_rms_norm(m->be, to, x, m->out_norm, (int)m->width, m->eps);
}

/* From the second backend's buffer to one of the model's. */
static void block_cross(const struct model *m, float *to, const float *from, int64_t n)
{
    m->be->ops->upload(m->be, to, from, (size_t)n * sizeof(*to));
}

/* x where what is tapped is, too. */
static struct tensor block_tap_x(const struct model *m, struct model_step *st)
{
    if (m == st->model)
        return st->x;
    block_cross(st->model, st->model_x, st->x.data, st->x.rows * st->x.cols);
    return tensor_of(st->model_x, st->x.rows, st->x.cols);
}

/* Layer layer_i's part of what is tapped. */
static void block_tap(const struct model *m, struct model_step *st, int layer_i)
{
    for (int i = 0; i < st->taps->n; i++) {
        struct tensor to = tensor_cols(st->tapped, i * m->width, m->width);
        if (st->taps->at[i] == layer_i)
            ops_copy(st->model->be, to, block_tap_x(m, st));
        if (st->taps->at[i] == m->n_layers && layer_i == m->n_layers - 1)
            block_final_norm(m, to, st->x);
    }
}

/* What the rows' types add: of a pair of texts the second has a type of its own. */
static void block_types(const struct model *m, struct model_step *st)
{
    const struct seq_view *seqs = st->seqs[MODEL_GROUP_FULL];
    if (m->n_types < 2 || m->sep_id < 0) {
        ops_add_bias(m->be, st->x, m->token_type);
        return;
    }
    for (int i = 0; i < st->n_seqs; i++) {
        int row0 = seqs[i].row0, n = seqs[i].n_rows, n_first = 0;
        while (n_first < n && st->ids[row0 + n_first] != m->sep_id)
            n_first++;
        n_first += n_first < n; /* the mark is of the first text */
        ops_add_bias(m->be, tensor_rows(st->x, row0, n_first), m->token_type);
        if (n_first < n)
            ops_add_bias(m->be, tensor_rows(st->x, row0 + n_first, n - n_first),
                         m->token_type + m->width);
    }
}

void block_embed(const struct model *m, struct model_step *st)
{
    st->x = tensor_of(st->scratch->x, st->n_rows, m->width);
    st->h = tensor_of(st->scratch->h, st->n_rows, m->width);
    if (st->first > 0) /* x is there */
        return;
    ops_embed(m->be, st->x, m->embed, st->ids);
    if (m->embed_scale != 1)
        ops_scale(m->be, st->x, m->embed_scale);
    if (m->token_type)
        block_types(m, st);
    if (m->pos_embed) {
        ops_embed(m->be, st->h, m->pos_embed, st->pos);
        ops_add(m->be, st->x, st->h);
    }
    if (m->embed_norm)
        ops_layer_norm(m->be, st->x, st->x, m->embed_norm, m->embed_norm_b, m->eps);
    if (st->taps)
        block_tap(m, st, -1);
}

void block_norm(const struct model *m, struct model_step *st, const float *w)
{
    ops_rms_norm(m->be, st->h, st->x, w, (int)m->width, m->eps);
}

void block_layer_norm(const struct model *m, struct model_step *st, const float *w, const float *b)
{
    ops_layer_norm(m->be, st->h, st->x, w, b, m->eps);
}

void block_post_norm(const struct model *m, struct model_step *st, const float *w)
{
    ops_rms_norm(m->be, st->h, st->h, w, (int)m->width, m->eps);
}

void block_add(const struct model *m, struct model_step *st)
{
    if (m->residual_scale != 1)
        ops_scale(m->be, st->h, m->residual_scale);
    ops_add(m->be, st->x, st->h);
}

void block_start(const struct model *m, struct model_step *st)
{
    void (*meanwhile)(void *ctx) = st->meanwhile;
    if (!meanwhile)
        return;
    st->meanwhile = NULL;
    m->be->ops->start(m->be);
    meanwhile(st->meanwhile_ctx);
}

/* The ops to come are of n_out rows. The backend's row flags go by the row numbers of its tensors, so those so far are fetched. */
static void block_begin_out(const struct model *m, struct model_step *st)
{
    block_start(m, st);
    ops_failed(m->be, st->flags);
    memset(st->scratch->out_failed, 0, (size_t)st->n_out);
    st->flags = st->scratch->out_failed;
    ops_begin(m->be, st->n_out);
}

/* The rows without output go on for taps alone: what meets them from here on is no failure of theirs, as without taps. */
static void block_spare(const struct model *m, struct model_step *st)
{
    if (st->flags != st->failed)
        return;
    block_start(m, st);
    ops_failed(m->be, st->failed);
    memset(st->scratch->tail_failed, 0, (size_t)st->n_rows);
    st->flags = st->scratch->tail_failed;
    ops_begin(m->be, st->n_rows);
}

bool block_goes_on(const struct model *m, struct model_step *st, int layer_i)
{
    if (layer_i < m->n_layers - 1 || st->n_out > 0)
        return true;
    if (st->is_whole)
        block_spare(m, st);
    return st->is_whole;
}

/* The last layer was computed of all rows: x shrinks to those with output. */
static void block_narrow_end(const struct model *m, struct model_step *st)
{
    const uint8_t *tail = st->flags;
    struct tensor x_out = tensor_of(st->scratch->x_out, st->n_out, st->x.cols);
    block_begin_out(m, st);
    for (int i = 0; i < st->n_out; i++)
        st->failed[st->out_rows[i]] |= tail[st->out_rows[i]];
    ops_gather(m->be, x_out, st->x, st->out_rows);
    st->x = x_out;
}

void block_layer_end(const struct model *m, struct model_step *st, int layer_i)
{
    if (m->tap.fn)
        m->tap.fn(m->tap.ctx, layer_i, st->x);
    if (st->taps)
        block_tap(m, st, layer_i);
    if (st->is_whole && layer_i == m->n_layers - 1 && st->n_out > 0 && st->n_out < st->n_rows)
        block_narrow_end(m, st);
}

/* From here on only the rows whose logits are wanted: att and x shrink to them. */
void block_narrow(const struct model *m, struct model_step *st, struct tensor *att)
{
    if (st->is_whole) {
        block_spare(m, st);
        return;
    }
    block_begin_out(m, st);
    struct tensor att_out = tensor_of(st->scratch->att_out, st->n_out, att->cols);
    struct tensor x_out = tensor_of(st->scratch->x_out, st->n_out, st->x.cols);
    ops_gather(m->be, att_out, *att, st->out_rows);
    ops_gather(m->be, x_out, st->x, st->out_rows);
    *att = att_out;
    st->x = x_out;
    st->h = tensor_of(st->scratch->h, st->n_out, m->width);
}

/* The n columns from `first` on of each head of `from`, side by side. */
static void block_heads(const struct model *m, struct tensor to, struct tensor from, int64_t first,
                        int64_t n)
{
    int64_t heads = to.cols / n, wide = from.cols / heads;
    for (int64_t h = 0; h < heads; h++)
        ops_copy(m->be, tensor_cols(to, h * n, n), tensor_cols(from, h * wide + first, n));
}

/* What the rows see of layer layer_i's keys, by its index: into a. */
static void block_index(const struct model *m, struct model_step *st, int layer_i, struct tensor x,
                        struct attn_params *a)
{
    const struct model_layer *l = &m->layers[layer_i];
    struct index_layer *ix = &st->index[layer_i];
    const struct seq_view *seqs = st->seqs[l->group];
    const struct rope *rope = &m->ropes[l->rope_i];
    struct tensor q = tensor_of(st->scratch->index_q, x.rows, m->pick.n_heads * m->index_dim);
    struct tensor k = tensor_of(st->scratch->index_k, x.rows, m->index_dim);
    struct tensor mean = tensor_of(st->scratch->index_mean, x.rows, m->index_dim);
    int32_t *first = st->scratch->index_first;
    ops_linear_many(m->be, 2, (const struct tensor[]){ q, k }, x,
                    (const struct weight *const[]){ l->w_index_q, l->w_index_k });
    ops_rms_norm(m->be, q, q, l->index_q_norm, (int)m->index_dim, m->eps);
    ops_rope(m->be, q, rope, (int)m->index_dim, st->pos);
    mean.rows = ops_index_add(m->be, mean, first, k, ix, seqs, st->n_seqs);
    ops_rms_norm(m->be, mean, mean, l->index_k_norm, (int)m->index_dim, m->eps);
    ops_rope(m->be, mean, rope, (int)m->index_dim, first);
    if (!ops_index_pick(m->be, st->picked, st->picked_words, q, mean, ix, &m->pick, st->pick_scores,
                        seqs, st->n_seqs))
        return;
    a->picked = st->picked;
    a->picked_words = st->picked_words;
}

bool block_attn(const struct model *m, struct model_step *st, int layer_i)
{
    return block_attn_of(m, st, layer_i, st->h);
}

bool block_attn_of(const struct model *m, struct model_step *st, int layer_i, struct tensor x)
{
    const struct model_layer *l = &m->layers[layer_i];
    const struct seq_view *seqs = st->seqs[l->group];
    struct kv_layer *kv = &st->kv[l->kv_from];
    struct model_scratch *s = st->scratch;
    int64_t rows = st->n_rows, head = l->head_dim;
    struct tensor q = tensor_of(s->q, rows, l->n_heads * head);
    struct tensor k = tensor_of(s->k, rows, l->n_kv_heads * head);
    struct tensor v = tensor_of(s->v, rows, l->n_kv_heads * head);
    struct tensor att = tensor_of(s->att, rows, l->n_heads * head);
    struct tensor joint = m->is_q_gated ? tensor_of(s->mix, rows, 2 * q.cols) : q;
    struct attn_params params = l->attn;

    if (l->w_index_q)
        block_index(m, st, layer_i, x, &params);
    bool has_kv = l->kv_from == layer_i;
    int n_made = !has_kv ? 1 : l->wv ? 3 : 2;
    ops_linear_many(m->be, n_made, (const struct tensor[]){ joint, k, v }, x,
                    (const struct weight *const[]){ l->wq, l->wk, l->wv });
    if (n_made == 2)
        ops_copy(m->be, v, k);
    if (l->bq)
        ops_add_bias(m->be, q, l->bq);
    if (l->bk)
        ops_add_bias(m->be, k, l->bk);
    if (l->bv)
        ops_add_bias(m->be, v, l->bv);
    if (m->is_q_gated)
        block_heads(m, q, joint, 0, head);
    if (l->q_norm)
        ops_rms_norm(m->be, q, q, l->q_norm, (int)(m->is_qk_norm_wide ? q.cols : head), m->eps);
    if (l->k_norm && has_kv)
        ops_rms_norm(m->be, k, k, l->k_norm, (int)(m->is_qk_norm_wide ? k.cols : head), m->eps);
    if (l->rope_i >= 0) {
        ops_rope(m->be, q, &m->ropes[l->rope_i], (int)head, st->pos);
        if (has_kv)
            ops_rope(m->be, k, &m->ropes[l->rope_i], (int)head, st->pos);
    }
    if (m->is_v_normed && has_kv) /* x / sqrt(sum / n + eps), as an l2 norm */
        ops_l2_norm(m->be, v, v, (int)head, m->eps * (float)head, sqrtf((float)head));
    if (has_kv)
        ops_kv_store(m->be, kv, k, v, seqs, st->n_seqs);

    bool is_last = layer_i == m->n_layers - 1;
    if (!block_goes_on(m, st, layer_i))
        return false;
    ops_attention(m->be, att, q, kv, seqs, st->n_seqs, &params);
    if (m->is_q_gated) {
        block_heads(m, q, joint, head, head);
        ops_glu(m->be, att, q, att, GLU_KIND_SIGMOID);
    }
    if (is_last && st->n_out < st->n_rows && m->pooling != MODEL_POOLING_MEAN)
        block_narrow(m, st, &att);
    ops_linear(m->be, st->h, att, l->wo);
    if (l->bo)
        ops_add_bias(m->be, st->h, l->bo);
    return true;
}

void block_keys(const struct model *m, struct model_step *st, int layer_i, struct tensor x)
{
    const struct model_layer *l = &m->layers[layer_i];
    int head = l->head_dim;
    struct tensor k = tensor_of(st->scratch->k, x.rows, (int64_t)l->n_kv_heads * head);
    struct tensor v = tensor_of(st->scratch->v, x.rows, k.cols);
    ops_linear_many(m->be, l->wv ? 2 : 1, (const struct tensor[]){ k, v }, x,
                    (const struct weight *const[]){ l->wk, l->wv });
    if (!l->wv)
        ops_copy(m->be, v, k);
    if (l->bk)
        ops_add_bias(m->be, k, l->bk);
    if (l->bv)
        ops_add_bias(m->be, v, l->bv);
    if (l->k_norm)
        ops_rms_norm(m->be, k, k, l->k_norm, head, m->eps);
    ops_rope(m->be, k, &m->ropes[l->rope_i], head, st->pos);
    if (m->is_v_normed)
        ops_l2_norm(m->be, v, v, head, m->eps * (float)head, sqrtf((float)head));
    ops_kv_store(m->be, &st->kv[layer_i], k, v, st->seqs[l->group], st->n_seqs);
}

void block_ffn(const struct model *m, struct model_step *st, const struct model_layer *l)
{
    block_ffn_of(m, st, l, st->h);
}

void block_ffn_of(const struct model *m, struct model_step *st, const struct model_layer *l,
                  struct tensor x)
{
    if (l->router && l->w_shared_gate) {
        block_moe_shared(m, st, l, x);
        return;
    }
    if (l->router) {
        block_moe(m, st, l, x);
        return;
    }
    block_ffn_dense(m, st, l, x);
}

void block_ffn_dense(const struct model *m, struct model_step *st, const struct model_layer *l,
                     struct tensor x)
{
    struct tensor gate = tensor_of(st->scratch->gate, st->h.rows, l->n_ff);
    struct tensor up = tensor_of(st->scratch->up, st->h.rows, l->n_ff);
    if (l->w_gate) {
        ops_linear_many(m->be, 2, (const struct tensor[]){ gate, up }, x,
                        (const struct weight *const[]){ l->w_gate, l->w_up });
        ops_glu(m->be, gate, gate, up, m->glu);
    } else {
        gate = up;
        ops_linear(m->be, gate, x, l->w_up);
        if (l->b_up)
            ops_add_bias(m->be, gate, l->b_up);
        ops_act(m->be, gate, m->glu);
    }
    ops_linear(m->be, st->h, gate, l->w_down);
    if (l->b_down)
        ops_add_bias(m->be, st->h, l->b_down);
}

/* The mean of each text's rows of x: sums by ascending positions, whatever else is in the step. */
static void block_mean(const struct model *m, struct model_step *st, struct tensor out)
{
    const struct seq_view *seqs = st->seqs[MODEL_GROUP_FULL];
    for (int i = 0, s = 0; i < st->n_out; i++) {
        while (st->out_rows[i] >= seqs[s].row0 + seqs[s].n_rows)
            s++;
        struct tensor sum = tensor_rows(out, i, 1);
        ops_copy(m->be, sum, tensor_rows(st->x, seqs[s].row0, 1));
        for (int r = 1; r < seqs[s].n_rows; r++)
            ops_add(m->be, sum, tensor_rows(st->x, seqs[s].row0 + r, 1));
        ops_scale(m->be, sum, 1 / (float)seqs[s].n_rows);
    }
}

/* Of two buffers the one where x is not. */
static float *block_other(const struct model_step *st, struct tensor x)
{
    return x.data == st->scratch->h ? st->scratch->x_out : st->scratch->h;
}

/* h = the labels' logits, of the pooled states. */
static void block_classify(const struct model *m, struct model_step *st, struct tensor pooled)
{
    if (m->w_class) {
        struct tensor dense = tensor_of(block_other(st, pooled), st->n_out, m->width);
        ops_linear(m->be, dense, pooled, m->w_class);
        if (m->b_class)
            ops_add_bias(m->be, dense, m->b_class);
        ops_softcap(m->be, dense, 1); /* tanh */
        pooled = dense;
    }
    struct tensor labels = tensor_of(block_other(st, pooled), st->n_out, m->n_labels);
    ops_linear(m->be, labels, pooled, m->w_labels);
    if (m->b_labels)
        ops_add_bias(m->be, labels, m->b_labels);
    st->h = tensor_of(st->scratch->h, st->n_out, m->n_labels); /* where the runner looks */
    if (labels.data != st->h.data)
        ops_copy(m->be, st->h, labels);
}

void block_pool(const struct model *m, struct model_step *st)
{
    struct tensor pooled = st->x; /* narrowed already, or as many rows as texts */
    BUG_ON(st->n_logits > 0);
    if (m->pooling == MODEL_POOLING_MEAN) {
        pooled = tensor_of(st->scratch->x_out, st->n_out, m->width);
        block_begin_out(m, st);
        block_mean(m, st, pooled);
    }
    if (m->n_labels > 0) {
        block_classify(m, st, pooled);
        return;
    }
    st->h = tensor_of(st->scratch->h, st->n_out, m->n_embd); /* where the runner looks */
    if (m->n_dense == 0) {
        ops_copy(m->be, st->h, pooled);
        return;
    }
    struct tensor dense = tensor_of(st->scratch->gate, st->n_out, m->n_dense);
    ops_linear(m->be, dense, pooled, m->w_dense[0]);
    ops_linear(m->be, st->h, dense, m->w_dense[1]);
}

void block_head(const struct model *m, struct model_step *st)
{
    if (st->end < m->n_layers)
        return;
    if (m->is_two_way) {
        if (m->out_norm)
            ops_rms_norm(m->be, st->x, st->x, m->out_norm, (int)m->width, m->eps);
        block_pool(m, st);
        return;
    }
    struct tensor logits = tensor_of(st->scratch->logits, st->n_logits, m->n_vocab);
    if (st->n_out == 0) /* it was all for taps */
        return;
    st->h = tensor_of(st->scratch->h, st->n_out, m->width); /* where the runner looks */
    block_final_norm(m, st->h, st->x);
    if (m->n_labels > 0)
        block_classify(m, st, st->h);
    if (st->n_logits == 0)
        return;
    ops_linear(m->be, logits, tensor_of(st->h.data, st->n_logits, m->width), m->head);
    if (m->logit_scale != 1)
        ops_scale(m->be, logits, m->logit_scale);
    if (m->logit_softcap > 0)
        ops_softcap(m->be, logits, m->logit_softcap);
}

/* The norm before a branch, of the kind that the model has. */
static void block_branch_norm(const struct model *m, struct model_step *st, const float *w,
                              const float *b)
{
    if (b)
        block_layer_norm(m, st, w, b);
    else
        block_norm(m, st, w);
}

void block_step_pre_norm(const struct model *m, struct model_step *st)
{
    block_embed(m, st);
    for (int i = st->first; i < st->end; i++) {
        const struct model_layer *l = &m->layers[i];
        block_branch_norm(m, st, l->attn_norm, l->attn_norm_b);
        if (!block_attn(m, st, i))
            return;
        block_add(m, st);
        block_branch_norm(m, st, l->ffn_norm, l->ffn_norm_b);
        block_ffn(m, st, l);
        block_add(m, st);
        block_layer_end(m, st, i);
    }
    block_head(m, st);
}

void block_step_post_norm(const struct model *m, struct model_step *st)
{
    block_embed(m, st);
    for (int i = st->first; i < st->end; i++) {
        const struct model_layer *l = &m->layers[i];
        if (!block_attn_of(m, st, i, st->x))
            return;
        block_add(m, st);
        ops_layer_norm(m->be, st->x, st->x, l->attn_post_norm, l->attn_post_norm_b, m->eps);
        block_ffn_of(m, st, l, st->x);
        block_add(m, st);
        ops_layer_norm(m->be, st->x, st->x, l->ffn_post_norm, l->ffn_post_norm_b, m->eps);
        block_layer_end(m, st, i);
    }
    block_head(m, st);
}

void block_step_both_norms(const struct model *m, struct model_step *st)
{
    block_embed(m, st);
    for (int i = st->first; i < st->end; i++) {
        const struct model_layer *l = &m->layers[i];
        block_norm(m, st, l->attn_norm);
        if (!block_attn(m, st, i))
            return;
        block_post_norm(m, st, l->attn_post_norm);
        block_add(m, st);
        block_norm(m, st, l->ffn_norm);
        block_ffn(m, st, l);
        block_post_norm(m, st, l->ffn_post_norm);
        block_add(m, st);
        block_layer_end(m, st, i);
    }
    block_head(m, st);
}

/* The second backend's layers, and what the others take from them: the residual stream, and what was made of the embedding for each. */
static void block_host_layers(const struct model *m, struct model_step *st)
{
    struct model_scratch *s = st->scratch;
    struct model host = *m;
    host.be = m->host;
    st->scratch = s->host;
    st->first = 0;
    st->end = (int)m->n_host_layers;
    ops_begin(host.be, st->n_rows);
    m->family->step(&host, st);
    ops_failed(host.be, st->flags);
    st->scratch = s;
    block_cross(m, s->x, st->x.data, st->x.rows * st->x.cols);
    if (m->n_inp > 0)
        block_cross(m, s->inp, s->host->inp, st->n_rows * m->n_layers * m->n_inp);
}

void model_step_run(const struct model *m, struct model_step *st)
{
    struct model_scratch *s = st->scratch;
    const struct state_keep *keep = st->keep;
    BUG_ON(st->n_rows < 1 || st->n_rows > s->max_rows || st->n_out < 0 || st->n_out > s->max_out);
    BUG_ON(st->n_logits < 0 || st->n_logits > st->n_out);
    memset(st->failed, 0, (size_t)st->n_rows);
    st->flags = st->failed;
    st->is_whole = st->taps && st->taps->n > 0 && st->taps->at[st->taps->n - 1] >= m->n_layers - 1;
    BUG_ON(st->taps && (m->is_two_way || m->n_streams > 1));
    st->model = m;
    st->model_x = s->x;
    if (m->n_host_layers > 0) {
        st->keep = keep ? keep->host : NULL;
        block_host_layers(m, st);
        st->keep = keep;
    }
    st->first = (int)m->n_host_layers;
    st->end = (int)m->n_layers;
    ops_begin(m->be, st->n_rows);
    m->family->step(m, st);
    if (st->best && st->n_logits > 0)
        m->be->ops->best(m->be, tensor_of(s->logits, st->n_logits, m->n_vocab), st->best);
    if (st->list_t && st->n_logits > 0)
        m->be->ops->shortlist(m->be, tensor_of(s->logits, st->n_logits, m->n_vocab), st->list_t,
                              st->lists);
    block_start(m, st);
    ops_failed(m->be, st->flags);
    for (int i = 0; i < st->n_out && st->flags != st->failed; i++)
        st->failed[st->out_rows[i]] |= st->flags[i];
}
