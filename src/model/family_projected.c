/* family_projected.c - drafters that read another model's hidden states: DFlash (Chen et al. 2026) and its second version, which adds
 * convolutions along the block and a selector, and DSpark (DeepSeek's DeepSpec, 2026), which adds a head that goes from guess to guess; on the
 * blocks of Qwen3 or of Gemma 4.
 *
 * A step is one of two kinds. Of hidden states (inputs) each layer makes keys and values of one and the same vector, the norm of a matrix
 * times what was tapped, and stores them: the row's context. A block is the text's last token and tokens that hide what is to be
 * guessed; its rows see the context and one another, both ways (in sliding layers, unless the file says otherwise, only back), and each
 * layer makes their keys and values anew, of what the layer before made of them. Keys and tensor names are those of published GGUF files of
 * the architecture "dflash"; those of two heads, which these have not, are ours. */
#include "model/model_int.h"
#include "tensor/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PROJECTED_BLOCK_MAX      64
#define PROJECTED_TAPS_MAX       8
#define PROJECTED_CANDIDATES_MAX 256

/* --- metadata --- */

/* Which states are read: the key counts the layers in front of them. */
static enum err_code projected_parse_taps(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    const struct meta_value *v = weights_meta(w, model_key(m, "target_layers", key));
    struct model_taps *taps = &m->projected.taps;
    if (!v || v->type != META_TYPE_ARRAY || v->array.n < 1 || v->array.n > MODEL_TAPS_MAX)
        return err_set(err, ERR_INVALID, "%s: want a list of 1 to %d layers", key, MODEL_TAPS_MAX);
    for (uint64_t i = 0; i < v->array.n; i++) {
        int64_t at;
        enum err_code code = weights_array_int(w, key, i, &at, err);
        if (!code && (at < 0 || at > 1 << 16 || (i > 0 && at - 1 <= taps->at[i - 1])))
            code =
                err_set(err, ERR_INVALID, "%s: %lld: layers ascend, from 0 on", key, (long long)at);
        if (code)
            return code;
        taps->at[taps->n++] = (int)at - 1;
    }
    return ERR_OK;
}

static enum err_code projected_parse_selector(const struct weights *w, struct model *m,
                                              struct err *err)
{
    struct model_projected *p = &m->projected;
    const struct weights_tensor *in = weights_find(w, "selector_predecessor.weight");
    char key[128];
    int64_t n = 0;
    if (!in || !weights_find(w, "selector_successor.weight") ||
        weights_find(w, "markov_w1.weight") || weights_find(w, "markov_w2.weight"))
        return err_set(err, ERR_INVALID,
                       "tensors selector_predecessor.weight and selector_successor.weight: want "
                       "both, and no markov_w1 and markov_w2, beside selector_hidden");
    enum err_code code =
        weights_int(w, model_key(m, "selector_top_k", key), 1, PROJECTED_CANDIDATES_MAX, &n, err);
    p->head = PROJECTED_HEAD_SELECTOR;
    p->rank = in->shape[0];
    p->first_out = 1;
    p->n_candidates = (int32_t)n;
    return code;
}

static enum err_code projected_parse_head(const struct weights *w, struct model *m, struct err *err)
{
    struct model_projected *p = &m->projected;
    char key[128];
    const struct weights_tensor *in = weights_find(w, "markov_w1.weight");
    const struct weights_tensor *conf = weights_find(w, "conf_proj.weight");
    bool is_anchored;
    if (weights_find(w, "selector_hidden.weight"))
        return projected_parse_selector(w, m, err);
    p->rank = in ? in->shape[0] : 0;
    if (in)
        p->head = weights_find(w, "markov_gate.weight")    ? PROJECTED_HEAD_GATED
                  : weights_find(w, "markov_joint.weight") ? PROJECTED_HEAD_RECURRENT
                                                           : PROJECTED_HEAD_PLAIN;
    if (!in != !weights_find(w, "markov_w2.weight") ||
        weights_find(w, "selector_predecessor.weight") ||
        weights_find(w, "selector_successor.weight"))
        return err_set(err, ERR_INVALID,
                       "tensors markov_w1.weight and markov_w2.weight: want both or none, and no "
                       "part of a selector without selector_hidden");
    p->confidence_has_markov = conf && in && conf->shape[0] == m->width + p->rank;
    if (conf && ((!p->confidence_has_markov && conf->shape[0] != m->width) || conf->shape[1] != 1))
        return err_set(err, ERR_INVALID,
                       "tensor conf_proj.weight: %lld rows of %lld, want one of %lld or %lld",
                       (long long)conf->shape[1], (long long)conf->shape[0], (long long)m->width,
                       (long long)(m->width + p->rank));
    enum err_code code =
        weights_bool_or(w, model_key(m, "sample_from_anchor", key), in != NULL, &is_anchored, err);
    p->first_out = !is_anchored;
    return code;
}

/* The tensors of one convolution of a layer are there, and as the keys say. */
static enum err_code projected_check_conv(const struct weights *w, const struct model *m,
                                          int64_t layer_i, const char *branch, struct err *err)
{
    char name[64];
    snprintf(name, sizeof(name), "blk.%lld.%s_conv_base", (long long)layer_i, branch);
    const struct weights_tensor *t = weights_find(w, name);
    if (m->projected.conv_taps == 0)
        return t ? err_set(err, ERR_INVALID, "%s.conv_kernel_size: missing, tensor %s needs it",
                           m->arch, name)
                 : ERR_OK;
    if (!t || t->shape[0] != m->width || t->shape[1] != m->projected.conv_taps ||
        t->shape[2] != 2 || t->shape[3] != 1)
        return err_set(err, ERR_INVALID, "tensor %s: want [2][%d][%lld]", name,
                       m->projected.conv_taps, (long long)m->width);
    snprintf(name, sizeof(name), "blk.%lld.%s_conv_proj.weight", (long long)layer_i, branch);
    return weights_find(w, name)
               ? ERR_OK
               : err_set(err, ERR_INVALID, "tensor %s: missing, its base needs it", name);
}

/* Each layer has the convolutions, of sizes that the keys say, or none has. */
static enum err_code projected_parse_convs(const struct weights *w, struct model *m,
                                           struct err *err)
{
    char key[128];
    int64_t taps, cols;
    enum err_code code = weights_int_or(w, model_key(m, "conv_kernel_size", key), 1,
                                        PROJECTED_TAPS_MAX, 0, &taps, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "conv_group_size", key), 1, m->width, m->width, &cols,
                              err);
    if (!code && m->width % cols != 0)
        code = err_set(err, ERR_INVALID, "%s: %lld does not divide %lld", key, (long long)cols,
                       (long long)m->width);
    if (code)
        return code;
    m->projected.conv_taps = (int32_t)taps;
    m->projected.conv_cols = (int32_t)cols;
    for (int64_t i = 0; i < m->n_layers && !code; i++) {
        code = projected_check_conv(w, m, i, "attn", err);
        if (!code)
            code = projected_check_conv(w, m, i, "ffn", err);
    }
    return code;
}

/* Layers with a window see back alone, the others both ways, unless the file says something of all. */
static enum err_code projected_parse_layers(const struct weights *w, struct model *m,
                                            struct err *err)
{
    char key[128];
    bool is_causal;
    float scale = 1 / sqrtf((float)m->head_dim);
    enum err_code code = model_parse_windows(w, m, 0, 1, err);
    if (!code)
        code = model_parse_scale(w, m, "attention.scale", scale, &scale, err);
    bool is_told = weights_meta(w, model_key(m, "attention.causal", key)) != NULL;
    if (!code)
        code = weights_bool_or(w, key, false, &is_causal, err);
    for (int64_t i = 0; i < m->n_layers && !code; i++) {
        struct model_layer *l = &m->layers[i];
        l->attn.is_two_way = is_told ? !is_causal : l->group == MODEL_GROUP_FULL;
        l->attn.scale = scale;
    }
    return code;
}

static enum err_code projected_parse_numbers(const struct weights *w, struct model *m,
                                             struct err *err)
{
    char key[128];
    const char *act = "silu";
    double softcap = 0;
    enum err_code code = model_parse_scale(w, m, "logit_scale", 1, &m->logit_scale, err);
    if (!code)
        code = model_parse_scale(w, m, "embedding_scale", 1, &m->embed_scale, err);
    if (!code)
        code = weights_float_or(w, model_key(m, "final_logit_softcapping", key), 0, &softcap, err);
    m->logit_softcap = (float)softcap;
    if (!code && weights_meta(w, model_key(m, "hidden_act", key)))
        code = weights_str(w, key, &act, err);
    if (!code && strcmp(act, "silu") != 0 && strcmp(act, "gelu_pytorch_tanh") != 0)
        code =
            err_set(err, ERR_UNSUPPORTED, "%s: '%.64s' is not silu or gelu_pytorch_tanh", key, act);
    if (!code && weights_meta(w, model_key(m, "attention.value_scale", key)))
        code = err_set(err, ERR_UNSUPPORTED, "%s: scaled values are not supported", key);
    m->glu = strcmp(act, "silu") == 0 ? GLU_KIND_SILU : GLU_KIND_GELU_TANH;
    return code;
}

static enum err_code projected_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    char key[128];
    int64_t block = 0, mask = 0;
    struct model_projected *p = &m->projected;
    const struct meta_value *tokens = weights_meta(w, "tokenizer.ggml.tokens");
    int64_t n_tokens = tokens && tokens->type == META_TYPE_ARRAY ? (int64_t)tokens->array.n : 0;
    enum err_code code =
        weights_int_or(w, model_key(m, "vocab_size", key), 1, 1 << 22, n_tokens, &m->n_vocab, err);
    if (!code)
        code = model_parse_common(w, m, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "block_size", key), 1, PROJECTED_BLOCK_MAX, 16,
                              &block, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "target_layer_count", key), 1, 1 << 16, 0,
                              &p->n_target_layers, err);
    if (!code)
        code = weights_int(w, "tokenizer.ggml.mask_token_id", 0, 1 << 22, &mask, err);
    p->block = (int32_t)block;
    p->mask_id = (int32_t)mask;
    if (!code)
        code = projected_parse_taps(w, m, err);
    if (!code)
        code = projected_parse_head(w, m, err);
    if (!code && p->block < 1 + p->first_out)
        code = err_set(err, ERR_INVALID, "%s.block_size: %d rows leave none to guess with", m->arch,
                       p->block);
    if (!code)
        code = projected_parse_convs(w, m, err);
    if (!code)
        code = projected_parse_layers(w, m, err);
    if (!code)
        code = projected_parse_numbers(w, m, err);
    m->is_v_normed = weights_find(w, "blk.0.post_attention_norm.weight") != NULL; /* Gemma 4's */
    return code ? code : model_parse_rope(w, m, &rope, err);
}

/* --- steps --- */

static void projected_context(const struct model *m, struct model_step *st)
{
    const struct model_projected *p = &m->projected;
    struct tensor x = tensor_of(st->scratch->h, st->n_rows, m->width);
    BUG_ON(st->n_out > 0 || st->inputs.rows != st->n_rows);
    ops_linear(m->be, x, st->inputs, p->fc);
    ops_rms_norm(m->be, x, x, p->fc_norm, (int)m->width, m->eps);
    for (int i = 0; i < m->n_layers; i++)
        block_keys(m, st, i, x);
}

/* One of a branch's two convolutions along each block: y = sum over j of (base[j] + own[j]) * the row j before. All of it is host memory
 * (model_project). half: 0 before the branch, 1 behind it; own: what conv_own holds. */
static void projected_convolve(const struct model *m, const struct model_step *st, struct tensor y,
                               struct tensor x, const float *base, int half)
{
    const struct model_projected *p = &m->projected;
    const struct seq_view *seqs = st->seqs[MODEL_GROUP_FULL];
    int64_t n_groups = m->width / p->conv_cols, n_own = model_conv_own(m);
    for (int s = 0; s < st->n_seqs; s++)
        for (int i = 0; i < seqs[s].n_rows; i++) {
            int64_t row = seqs[s].row0 + i;
            const float *own = st->scratch->conv_own + row * n_own;
            float *to = y.data + row * y.stride;
            memset(to, 0, (size_t)m->width * sizeof(*to));
            for (int j = 0; j < p->conv_taps && j <= i; j++) {
                const float *from = x.data + (row - j) * x.stride;
                int64_t at = (int64_t)half * p->conv_taps + j;
                for (int64_t c = 0; c < m->width; c++) {
                    to[c] += base[at * m->width + c] * from[c];
                    to[c] += own[at * n_groups + c / p->conv_cols] * from[c];
                }
            }
        }
}

/* h = the convolution before a branch of h, where the layer has one. */
static void projected_before(const struct model *m, struct model_step *st, const float *base,
                             const struct weight *own)
{
    struct tensor to = tensor_of(st->scratch->conv_to, st->h.rows, m->width);
    if (!base)
        return;
    ops_linear(m->be, tensor_of(st->scratch->conv_own, st->h.rows, model_conv_own(m)), st->h, own);
    projected_convolve(m, st, to, st->h, base, 0);
    ops_copy(m->be, st->h, to);
}

/* ... and behind it. */
static void projected_behind(const struct model *m, struct model_step *st, const float *base)
{
    struct tensor from = tensor_of(st->scratch->conv_to, st->h.rows, m->width);
    if (!base)
        return;
    ops_copy(m->be, from, st->h);
    projected_convolve(m, st, st->h, from, base, 1);
}

static void projected_step(const struct model *m, struct model_step *st)
{
    if (st->inputs.rows > 0) {
        projected_context(m, st);
        return;
    }
    BUG_ON(m->projected.conv_taps > 0 && st->n_out != st->n_rows); /* a row sees those before it */
    block_embed(m, st);
    for (int i = 0; i < m->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        block_norm(m, st, l->attn_norm);
        projected_before(m, st, l->conv_attn, l->w_conv_attn);
        if (!block_attn(m, st, i))
            return;
        projected_behind(m, st, l->conv_attn);
        if (l->attn_post_norm)
            block_post_norm(m, st, l->attn_post_norm);
        block_add(m, st);
        block_norm(m, st, l->ffn_norm);
        projected_before(m, st, l->conv_ffn, l->w_conv_ffn);
        block_ffn(m, st, l);
        projected_behind(m, st, l->conv_ffn);
        if (l->ffn_post_norm)
            block_post_norm(m, st, l->ffn_post_norm);
        block_add(m, st);
        if (l->out_scale)
            ops_scale(m->be, st->x, l->out_scale[0]);
    }
    block_head(m, st);
}

#define MAYBE TENSOR_FLAG_OPTIONAL

static const struct tensor_rule projected_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, MAYBE, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, MAYBE, head),
    { "rope_freqs.weight", NULL, TENSOR_KIND_PARSED, MAYBE, 0 },
    RULE_MODEL("fc.weight", "[D][t*D]", MATRIX, 0, projected.fc),
    RULE_MODEL("enc.output_norm.weight", "[D]", VECTOR, 0, projected.fc_norm),
    RULE_MODEL("markov_w1.weight", "[V][r]", MATRIX, MAYBE, projected.markov_in),
    RULE_MODEL("markov_w2.weight", "[V][r]", MATRIX, MAYBE, projected.markov_out),
    RULE_MODEL("markov_gate.weight", "[r][D+r]", MATRIX, MAYBE, projected.w_markov_gate),
    RULE_MODEL("markov_gate.bias", "[r]", VECTOR, MAYBE, projected.b_markov_gate),
    RULE_MODEL("markov_joint.weight", "[r+r+r][r+r+D]", MATRIX, MAYBE, projected.w_markov_joint),
    RULE_MODEL("markov_joint.bias", "[r+r+r]", VECTOR, MAYBE, projected.b_markov_joint),
    RULE_MODEL("selector_predecessor.weight", "[V][r]", MATRIX, MAYBE, projected.markov_in),
    RULE_MODEL("selector_successor.weight", "[V][r]", MATRIX, MAYBE, projected.markov_out),
    RULE_MODEL("selector_hidden.weight", "[r][D]", MATRIX, MAYBE, projected.w_selector),
    RULE_MODEL("conf_proj.weight", NULL, MATRIX, MAYBE, projected.w_confidence),
    RULE_MODEL("conf_proj.bias", NULL, VECTOR, MAYBE, projected.b_confidence),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, MAYBE, bq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, MAYBE, bk),
    RULE_LAYER("attn_q_norm.weight", "[K]", VECTOR, 0, q_norm),
    RULE_LAYER("attn_k_norm.weight", "[K]", VECTOR, 0, k_norm),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, MAYBE, wv),
    RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, MAYBE, bv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("attn_output.bias", "[D]", VECTOR, MAYBE, bo),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, MAYBE, attn_post_norm),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    RULE_LAYER("post_ffw_norm.weight", "[D]", VECTOR, MAYBE, ffn_post_norm),
    RULE_LAYER("layer_output_scale.weight", NULL, HOST, MAYBE, out_scale),
    RULE_LAYER("attn_conv_base", NULL, HOST, MAYBE, conv_attn),
    RULE_LAYER("attn_conv_proj.weight", "[c][D]", MATRIX, MAYBE, w_conv_attn),
    RULE_LAYER("ffn_conv_base", NULL, HOST, MAYBE, conv_ffn),
    RULE_LAYER("ffn_conv_proj.weight", "[c][D]", MATRIX, MAYBE, w_conv_ffn),
    { 0 },
};

/* --- directories --- */

static enum err_code projected_refuse(const struct hf *h, struct err *err)
{
    static const struct {
        const char *path, *text;
    } refused[] = {
        { "dflash_config.attention_value_scale", "scaled values are" },
        { "transformer_layer_config.hidden_size", "the layout of speculators is" },
        { "aux_hidden_state_layer_ids", "the layout of speculators is" },
    };
    int64_t n_vocab, n_draft;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        if (hf_config(h, refused[i].path))
            return err_set(err, ERR_UNSUPPORTED, "config.json: %s: %s not supported",
                           refused[i].path, refused[i].text);
    enum err_code code = hf_int(h, "vocab_size", 1, 1 << 22, 1, &n_vocab, err);
    if (!code)
        code = hf_int(h, "draft_vocab_size", 1, 1 << 22, n_vocab, &n_draft, err);
    if (!code && n_draft != n_vocab)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: draft_vocab_size: %lld of %lld tokens; a part of the "
                       "vocabulary is not supported",
                       (long long)n_draft, (long long)n_vocab);
    return code;
}

static enum err_code projected_taps(struct hf *h, struct err *err)
{
    const struct meta_value *v = hf_config(h, "dflash_config.target_layer_ids");
    int64_t at[MODEL_TAPS_MAX];
    struct meta_value one;
    if (!v)
        v = hf_config(h, "target_layer_ids");
    if (!v || v->type != META_TYPE_ARRAY || v->array.type != META_TYPE_I64 || v->array.n < 1 ||
        v->array.n > MODEL_TAPS_MAX)
        return err_set(err, ERR_INVALID,
                       "config.json: target_layer_ids: want a list of 1 to %d layers",
                       MODEL_TAPS_MAX);
    for (uint64_t i = 0; i < v->array.n; i++) {
        meta_array_at(v, i, &one);
        at[i] = one.i + 1;
    }
    return hf_set_ints(h, "target_layers", at, v->array.n, err);
}

/* A scale that config.json has, or the fallback (0 = none). */
static enum err_code projected_scale(struct hf *h, const char *paths, double fallback,
                                     const char *name, struct err *err)
{
    double v;
    enum err_code code = hf_float(h, paths, fallback, &v, err);
    return code || v == 0 ? code : hf_set_float(h, name, v, err);
}

static enum err_code projected_windows(struct hf *h, struct err *err)
{
    const struct meta_value *causal = hf_config(h, "is_causal");
    bool is_all, is_causal;
    enum err_code code = hf_bool(h, "dflash_config.use_swa", false, &is_all, err);
    if (!code && is_all)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: dflash_config.use_swa: say it in layer_types");
    if (!code && (causal || hf_config(h, "dflash_config.causal"))) {
        code = hf_bool(h, "is_causal dflash_config.causal", false, &is_causal, err);
        if (!code)
            code = hf_set_bool(h, "attention.causal", is_causal, err);
    }
    return code ? code : hf_windows(h, 1, err);
}

static enum err_code projected_common(struct hf *h, struct err *err)
{
    int64_t mask;
    enum err_code code = projected_refuse(h, err);
    if (!code)
        code = hf_int(h, "dflash_config.mask_token_id mask_token_id", 0, 1 << 22, -1, &mask, err);
    if (!code && mask < 0)
        code = err_set(err, ERR_INVALID, "config.json: mask_token_id: missing");
    if (!code)
        code = weights_set_int(h->w, "tokenizer.ggml.mask_token_id", mask, err);
    if (!code)
        code = projected_taps(h, err);
    if (!code)
        code = projected_scale(h, "dflash_config.output_multiplier output_multiplier", 0,
                               "logit_scale", err);
    if (!code)
        code = projected_scale(h, "dflash_config.final_logit_softcapping final_logit_softcapping",
                               0, "final_logit_softcapping", err);
    return code;
}

static enum err_code projected_more(struct hf *h, struct err *err)
{
    const char *head;
    enum err_code code = projected_common(h, err);
    if (!code)
        code = projected_scale(h, "dflash_config.input_embedding_scale input_embedding_scale", 0,
                               "embedding_scale", err);
    if (!code)
        code = hf_str(h, "markov_head_type", "vanilla", &head, err);
    if (!code && strcmp(head, "vanilla") != 0 && strcmp(head, "gated") != 0 &&
        strcmp(head, "rnn") != 0)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: markov_head_type: '%.64s' is not vanilla, gated or rnn", head);
    const struct meta_value *v = weights_meta(h->w, "config.architectures");
    bool is_dspark = v && v->type == META_TYPE_ARRAY && v->array.n > 0 &&
                     memmem(v->array.strs[0].data, v->array.strs[0].len, "DSpark", 6) != NULL;
    if (!code)
        code = hf_set_bool(h, "sample_from_anchor", is_dspark, err);
    return code ? code : projected_windows(h, err);
}

static enum err_code projected_gemma4(struct hf *h, struct err *err)
{
    int64_t head, n_kv, width;
    bool is_shared;
    enum err_code code = projected_more(h, err);
    if (!code)
        code = hf_bool(h, "attention_k_eq_v", false, &is_shared, err);
    if (!code)
        code = hf_int(h, "global_head_dim", 2, BACKEND_HEAD_DIM_MAX, 512, &head, err);
    if (!code)
        code = hf_int(h, is_shared ? "num_global_key_value_heads" : "num_key_value_heads", 1,
                      1 << 16, 1, &n_kv, err);
    if (!code)
        code = hf_int(h, "hidden_size", 1, 1 << 17, 1, &width, err);
    if (!code)
        code = hf_set_int(h, "attention.key_length", head, err);
    if (!code)
        code = hf_set_int(h, "attention.value_length", head, err);
    if (!code)
        code = hf_set_int(h, "attention.head_count_kv", n_kv, err);
    if (!code)
        code = hf_set_float(h, "attention.scale", 1, err);
    if (!code)
        code = hf_set_float(h, "embedding_scale", (double)sqrtf((float)width), err);
    if (!code)
        code = hf_set_str(h, "hidden_act", "gelu_pytorch_tanh", err);
    return code ? code : hf_rope_partial(h, head, err);
}

static const struct hf_key projected_keys[] = {
    { "dflash_config.block_size", "block_size" },
    { "block_size", "block_size" },
    { "num_target_layers", "target_layer_count" },
    { "dflash_config.conv_kernel_size", "conv_kernel_size" },
    { "dflash_config.conv_group_size", "conv_group_size" },
    { "dflash_config.selector_top_k", "selector_top_k" },
    { 0 },
};

#define PROJECTED_NAMES                                                                     \
    { "fc.weight", "fc.weight", 0 }, { "hidden_norm.weight", "enc.output_norm.weight", 0 }, \
        { "markov_head.markov_w1.weight", "markov_w1.weight", 0 },                          \
        { "markov_head.markov_w2.weight", "markov_w2.weight", 0 },                          \
        { "confidence_head.proj.weight", "conf_proj.weight", 0 },                           \
    {                                                                                       \
        "confidence_head.proj.bias", "conf_proj.bias", 0                                    \
    }

static const struct hf_name projected_names[] = {
    PROJECTED_NAMES,
    { "markov_head.gate_proj.weight", "markov_gate.weight", 0 },
    { "markov_head.gate_proj.bias", "markov_gate.bias", 0 },
    { "markov_head.joint_proj.weight", "markov_joint.weight", 0 },
    { "markov_head.joint_proj.bias", "markov_joint.bias", 0 },
    { "candidate_selector.predecessor_codebook", "selector_predecessor.weight", 0 },
    { "candidate_selector.successor_codebook", "selector_successor.weight", 0 },
    { "candidate_selector.hidden_projection.weight", "selector_hidden.weight", 0 },
    HF_LAYER("attention_conv.base_kernel", "attn_conv_base"),
    HF_LAYER("attention_conv.kernel_projection.weight", "attn_conv_proj.weight"),
    HF_LAYER("mlp_conv.base_kernel", "ffn_conv_base"),
    HF_LAYER("mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight"),
    { 0 },
};

static const struct hf_name projected_names_gemma4[] = {
    PROJECTED_NAMES,
    HF_LAYER("post_attention_layernorm.weight", "post_attention_norm.weight"),
    HF_LAYER("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    HF_LAYER("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    HF_LAYER("layer_scalar", "layer_output_scale.weight"),
    { "markov_head.gate_proj.weight", "markov_gate.weight", 0 },
    { "markov_head.gate_proj.bias", "markov_gate.bias", 0 },
    { "markov_head.joint_proj.weight", "markov_joint.weight", 0 },
    { "markov_head.joint_proj.bias", "markov_joint.bias", 0 },
    { 0 },
};

static const struct hf_map projected_hf[] = {
    { .arch = "dflash",
      .names = "DFlashDraftModel DFlash2DraftModel DSparkDraftModel Qwen3DSparkModel",
      .has_layer_types = true,
      .tensors = projected_names,
      .keys = projected_keys,
      .more = projected_more },
    { .arch = "dflash",
      .names = "Gemma4DSparkModel",
      .acts = "gelu_pytorch_tanh",
      .has_layer_types = true,
      .has_ropes = true,
      .tensors = projected_names_gemma4,
      .keys = projected_keys,
      .more = projected_gemma4 },
    { 0 },
};

const struct model_family family_projected = {
    .name = "dflash",
    .archs = (const char *const[]){ "dflash", NULL },
    .parse = projected_parse,
    .tensors = projected_tensors,
    .hf = projected_hf,
    .step = projected_step,
};
