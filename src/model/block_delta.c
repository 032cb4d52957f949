/* block_delta.c - the recurrent block of hybrid models: a gated delta net (Yang et al. 2024, as Qwen3-Next has it).
 *
 *   q k v = silu(conv(W_qkv h))     z = W_z h     decay, beta = gates(W_a h, W_b h)
 *   o = delta rule(l2(q) / sqrt(Ks), l2(k), v, decay, beta)      h = W_o (norm(o) * silu(z)) */
#include "model/model_int.h"
#include "tensor/ops.h"

#include <math.h>

#define DELTA_L2_EPS 1e-6f /* a constant of the published code, whatever the norms have */

size_t model_state_bytes(const struct model *m)
{
    const struct model_state *s = &m->state;
    int64_t n = 0, one = (s->taps - 1) * s->conv_cols + s->n_heads * s->key_dim * s->value_dim;
    for (int64_t i = 0; i < m->n_layers; i++)
        n += m->layers[i].group == MODEL_GROUP_STATE;
    n = n * one + (m->ngrams.n_heads ? (m->ngrams.taps - 1) * m->n_streams * m->width : 0);
    return (size_t)n * sizeof(float);
}

/* Which of its backend's recurrent layers it is. */
static int64_t delta_index(const struct model *m, int layer_i)
{
    int64_t n = 0;
    for (int64_t i = layer_i < m->n_host_layers ? 0 : m->n_host_layers; i < layer_i; i++)
        n += m->layers[i].group == MODEL_GROUP_STATE;
    return n;
}

/* A recurrent layer's kept rows. */
struct delta_kept {
    struct tensor mix, decay, beta;
};

static struct delta_kept delta_kept(const struct model *m, const struct state_keep *k, int layer_i)
{
    int64_t first = delta_index(m, layer_i) * k->n_rows, c = m->state.conv_cols;
    int64_t heads = m->state.n_heads;
    return (struct delta_kept){ .mix = tensor_of(k->mix + first * c, k->n_rows, c),
                                .decay = tensor_of(k->decay + first * heads, k->n_rows, heads),
                                .beta = tensor_of(k->beta + first * heads, k->n_rows, heads) };
}

static struct tensor row_of(struct tensor t, int64_t i)
{
    return (struct tensor){
        .data = t.data + i * t.stride, .rows = 1, .cols = t.cols, .stride = t.stride
    };
}

/* Keep what the tentative rows brought. */
static void delta_keep(const struct model *m, struct model_step *st, int layer_i, struct tensor mix,
                       struct tensor decay, struct tensor beta)
{
    const struct seq_view *seqs = st->seqs[MODEL_GROUP_STATE];
    struct delta_kept k = delta_kept(m, st->keep, layer_i);
    for (int i = 0; i < st->n_seqs; i++)
        for (int32_t t = seqs[i].row0; seqs[i].is_tentative && t < seqs[i].row0 + seqs[i].n_rows;
             t++) {
            int32_t to = st->keep_rows[t];
            ops_gather(m->be, row_of(k.mix, to), mix, &t);
            ops_gather(m->be, row_of(k.decay, to), decay, &t);
            ops_gather(m->be, row_of(k.beta, to), beta, &t);
        }
}

/* From the convolution's input to the heads' outputs. conv, out: where the rows' convolution and outputs go. */
static void delta_recur(const struct model *m, struct state_layer *state,
                        const struct model_layer *l, const struct delta_kept *in,
                        struct tensor conv, struct tensor out, const struct seq_view *seqs,
                        int n_seqs)
{
    const struct model_state *s = &m->state;
    int64_t keys = s->n_key_heads * s->key_dim;
    struct tensor q = tensor_cols(conv, 0, keys), k = tensor_cols(conv, keys, keys);
    struct tensor v = tensor_cols(conv, 2 * keys, s->n_heads * s->value_dim);
    ops_conv_silu(m->be, conv, in->mix, l->conv_w, state, seqs, n_seqs);
    ops_l2_norm(m->be, q, q, (int)s->key_dim, DELTA_L2_EPS, 1 / sqrtf((float)s->key_dim));
    ops_l2_norm(m->be, k, k, (int)s->key_dim, DELTA_L2_EPS, 1);
    ops_delta_rule(m->be, out, q, k, v, in->decay, in->beta, state, seqs, n_seqs);
}

/* Rows of `joint` are Gs runs: columns [first, first + n) of each run go to `to`, side by side. */
static void delta_split(const struct model *m, struct tensor joint, int64_t first, int64_t n,
                        struct tensor to)
{
    int64_t run = joint.cols / m->state.n_key_heads;
    for (int64_t g = 0; g < m->state.n_key_heads; g++)
        ops_copy(m->be, tensor_cols(to, g * n, n), tensor_cols(joint, g * run + first, n));
}

static void delta_project(const struct model *m, struct model_step *st, const struct model_layer *l,
                          const struct delta_kept *in, struct tensor z)
{
    const struct model_state *s = &m->state;
    int64_t per = s->n_heads / s->n_key_heads;
    ops_linear_many(m->be, 2, (const struct tensor[]){ in->mix, z }, st->h,
                    (const struct weight *const[]){ l->w_mix, l->w_z });
    if (l->w_decay)
        ops_linear_many(m->be, 2, (const struct tensor[]){ in->decay, in->beta }, st->h,
                        (const struct weight *const[]){ l->w_decay, l->w_beta });
    if (l->w_beta_decay) {
        struct tensor joint = tensor_of(st->scratch->joint, st->n_rows, 2 * s->n_heads);
        ops_linear(m->be, joint, st->h, l->w_beta_decay);
        delta_split(m, joint, 0, per, in->beta);
        delta_split(m, joint, per, per, in->decay);
    }
}

bool block_delta(const struct model *m, struct model_step *st, int layer_i)
{
    const struct model_layer *l = &m->layers[layer_i];
    const struct model_state *s = &m->state;
    struct model_scratch *sc = st->scratch;
    int64_t rows = st->n_rows, values = s->n_heads * s->value_dim;
    struct delta_kept in = { .mix = tensor_of(sc->mix, rows, s->conv_cols),
                             .decay = tensor_of(sc->decay, rows, s->n_heads),
                             .beta = tensor_of(sc->beta, rows, s->n_heads) };
    struct tensor z = tensor_of(sc->z, rows, values), out = tensor_of(sc->att, rows, values);
    delta_project(m, st, l, &in, z);
    ops_delta_gates(m->be, in.decay, in.beta, l->decay_bias, l->decay_scale);
    if (st->keep)
        delta_keep(m, st, layer_i, in.mix, in.decay, in.beta);
    delta_recur(m, &st->state[layer_i], l, &in, tensor_of(sc->conv, rows, s->conv_cols), out,
                st->seqs[MODEL_GROUP_STATE], st->n_seqs);
    bool is_last = layer_i == m->n_layers - 1;
    if (!block_goes_on(m, st, layer_i))
        return false;
    ops_rms_norm(m->be, out, out, l->delta_norm, (int)s->value_dim, m->eps);
    ops_glu(m->be, out, z, out, m->delta_glu);
    if (is_last && st->n_out < st->n_rows)
        block_narrow(m, st, &out);
    ops_linear(m->be, st->h, out, l->w_delta_out);
    return true;
}

/* The layers of one backend. */
static void delta_replay(const struct model *m, struct model_step *st, const struct seq_view *seqs,
                         int n_seqs)
{
    const struct model_state *s = &m->state;
    for (int i = 0; i < n_seqs; i++) {
        if (m->ngrams.n_heads > 0 && m->ngrams.layer_i >= st->first && m->ngrams.layer_i < st->end)
            block_ngrams_replay(m, st, &seqs[i]);
        for (int l = st->first; l < st->end; l++) {
            if (m->layers[l].group != MODEL_GROUP_STATE)
                continue;
            struct delta_kept all = delta_kept(m, st->keep, l);
            struct seq_view view = seqs[i];
            struct delta_kept in = { row_of(all.mix, view.row0), row_of(all.decay, view.row0),
                                     row_of(all.beta, view.row0) };
            in.mix.rows = in.decay.rows = in.beta.rows = view.n_rows;
            view.row0 = 0;
            delta_recur(m, &st->state[l], &m->layers[l], &in,
                        tensor_of(st->scratch->conv, view.n_rows, s->conv_cols),
                        tensor_of(st->scratch->att, view.n_rows, s->n_heads * s->value_dim), &view,
                        1);
        }
    }
}

void model_state_replay(const struct model *m, struct model_step *st, const struct seq_view *seqs,
                        int n_seqs)
{
    if (m->n_host_layers > 0) {
        struct model host = *m;
        struct model_step part = *st;
        host.be = m->host;
        part.scratch = st->scratch->host;
        part.keep = st->keep->host;
        part.first = 0;
        part.end = (int)m->n_host_layers;
        delta_replay(&host, &part, seqs, n_seqs);
    }
    st->first = (int)m->n_host_layers;
    st->end = (int)m->n_layers;
    delta_replay(m, st, seqs, n_seqs);
}

void block_step_hybrid(const struct model *m, struct model_step *st)
{
    if (m->w_join)
        block_join(m, st);
    else
        block_embed(m, st);
    for (int i = st->first; i < st->end; i++) {
        const struct model_layer *l = &m->layers[i];
        block_norm(m, st, l->attn_norm);
        bool goes_on = l->group == MODEL_GROUP_STATE ? block_delta(m, st, i) : block_attn(m, st, i);
        if (!goes_on)
            return;
        block_add(m, st);
        block_norm(m, st, l->ffn_norm);
        block_ffn(m, st, l);
        block_add(m, st);
        block_layer_end(m, st, i);
    }
    block_head(m, st);
}

/* --- metadata --- */

static enum err_code delta_parse_sizes(const struct weights *w, struct model *m, struct err *err)
{
    struct model_state *s = &m->state;
    int64_t inner = 0;
    char key[128];
    const struct {
        const char *name;
        int64_t *out;
        int64_t min, max;
    } keys[] = {
        { "ssm.conv_kernel", &s->taps, 2, BACKEND_STATE_TAPS_MAX },
        { "ssm.state_size", &s->key_dim, 2, BACKEND_STATE_DIM_MAX },
        { "ssm.group_count", &s->n_key_heads, 1, 4096 },
        { "ssm.time_step_rank", &s->n_heads, 1, 4096 },
        { "ssm.inner_size", &inner, 1, 4096 * BACKEND_STATE_DIM_MAX },
    };
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        enum err_code code = weights_int(w, model_key(m, keys[i].name, key), keys[i].min,
                                         keys[i].max, keys[i].out, err);
        if (code)
            return code;
    }
    s->value_dim = inner / s->n_heads;
    if (inner % s->n_heads != 0 || s->value_dim > BACKEND_STATE_DIM_MAX)
        return err_set(err, ERR_INVALID, "%s: %lld is not %lld heads of at most %d", key,
                       (long long)inner, (long long)s->n_heads, BACKEND_STATE_DIM_MAX);
    if (s->n_heads % s->n_key_heads != 0 || s->key_dim % 2 != 0)
        return err_set(err, ERR_INVALID,
                       "%s.ssm: %lld heads of %lld key heads with %lld keys: the first is no "
                       "multiple of the second, or the last is odd",
                       m->arch, (long long)s->n_heads, (long long)s->n_key_heads,
                       (long long)s->key_dim);
    s->conv_cols = 2 * s->n_key_heads * s->key_dim + inner;
    return ERR_OK;
}

enum err_code model_parse_delta(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    int64_t interval = 0;
    enum err_code code = weights_int_or(w, model_key(m, "nextn_predict_layers", key), 0,
                                        m->n_layers - 1, 0, &m->n_layers_ignored, err);
    m->n_layers -= code ? 0 : m->n_layers_ignored;
    if (!code)
        code = delta_parse_sizes(w, m, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "full_attention_interval", key), 1, 1 << 20, 4,
                              &interval, err);
    bool has_list = weights_meta(w, model_key(m, "attention.recurrent_layers", key)) != NULL;
    for (int64_t i = 0; i < m->n_layers && !code; i++) {
        int64_t is_state = (i + 1) % interval != 0;
        if (has_list)
            code = weights_array_int(w, key, (uint64_t)i, &is_state, err);
        m->layers[i].group = is_state ? MODEL_GROUP_STATE : MODEL_GROUP_FULL;
    }
    return code;
}
