/* family_bert.c - BERT (Devlin et al. 2018), RoBERTa and Nomic's BERT (Nussbaum et al. 2024): text encoders. Rows see the whole text;
 * norms stand behind the sums; learnt positions, or rotary ones and a gated silu in place of gelu (nomic-bert). */
#include "model/model_int.h"

#include <string.h>

static enum err_code bert_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 1000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    bool has_rope = strcmp(m->arch, "nomic-bert") == 0;
    for (int64_t i = 0; i < m->n_layers && !code; i++)
        m->layers[i].rope_i = has_rope ? 0 : -1;
    if (!code && has_rope)
        code = model_parse_rope(w, m, &rope, err);
    m->glu = has_rope ? GLU_KIND_SILU : GLU_KIND_GELU_ERF;
    return code ? code : model_parse_two_way(w, m, err);
}

/* What the two architectures share. */
#define BERT_RULES                                                                        \
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),                          \
        RULE_MODEL("token_types.weight", NULL, VECTOR, TENSOR_FLAG_OPTIONAL, token_type), \
        RULE_MODEL("token_embd_norm.weight", "[D]", VECTOR, 0, embed_norm),               \
        RULE_MODEL("token_embd_norm.bias", "[D]", VECTOR, 0, embed_norm_b),               \
        RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),                           \
        RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bq),             \
        RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),                           \
        RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bk),             \
        RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),                           \
        RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bv),             \
        RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),                      \
        RULE_LAYER("attn_output.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, bo),          \
        RULE_LAYER("attn_output_norm.weight", "[D]", VECTOR, 0, attn_post_norm),          \
        RULE_LAYER("attn_output_norm.bias", "[D]", VECTOR, 0, attn_post_norm_b),          \
        RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),                           \
        RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),                       \
        RULE_LAYER("ffn_down.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, b_down),         \
        RULE_LAYER("layer_output_norm.weight", "[D]", VECTOR, 0, ffn_post_norm),          \
        RULE_LAYER("layer_output_norm.bias", "[D]", VECTOR, 0, ffn_post_norm_b)

static const struct tensor_rule bert_tensors[] = {
    BERT_RULES,
    RULE_MODEL("position_embd.weight", "[T][D]", MATRIX, 0, pos_embed),
    RULE_LAYER("ffn_up.bias", "[F]", VECTOR, TENSOR_FLAG_OPTIONAL, b_up),
    { 0 },
};

static const struct tensor_rule nomic_bert_tensors[] = {
    BERT_RULES,
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    { 0 },
};

/* --- directories --- */

#define BERT_LAYER(hf_, gguf_)                                      \
    {                                                               \
        "encoder.layer.%d." hf_, "blk.%d." gguf_, HF_TRANSFORM_NONE \
    }
static const struct hf_name bert_names[] = {
    { "embeddings.word_embeddings.weight", "token_embd.weight", HF_TRANSFORM_NONE },
    { "embeddings.token_type_embeddings.weight", "token_types.weight", HF_TRANSFORM_NONE },
    { "embeddings.position_embeddings.weight", "position_embd.weight", HF_TRANSFORM_NONE },
    { "embeddings.LayerNorm.weight", "token_embd_norm.weight", HF_TRANSFORM_NONE },
    { "embeddings.LayerNorm.bias", "token_embd_norm.bias", HF_TRANSFORM_NONE },
    /* gamma and beta: names of the first checkpoints */
    { "embeddings.LayerNorm.gamma", "token_embd_norm.weight", HF_TRANSFORM_NONE },
    { "embeddings.LayerNorm.beta", "token_embd_norm.bias", HF_TRANSFORM_NONE },
    { "embeddings.position_ids", NULL, HF_TRANSFORM_DROP },
    BERT_LAYER("attention.self.query.weight", "attn_q.weight"),
    BERT_LAYER("attention.self.query.bias", "attn_q.bias"),
    BERT_LAYER("attention.self.key.weight", "attn_k.weight"),
    BERT_LAYER("attention.self.key.bias", "attn_k.bias"),
    BERT_LAYER("attention.self.value.weight", "attn_v.weight"),
    BERT_LAYER("attention.self.value.bias", "attn_v.bias"),
    BERT_LAYER("attention.output.dense.weight", "attn_output.weight"),
    BERT_LAYER("attention.output.dense.bias", "attn_output.bias"),
    BERT_LAYER("attention.output.LayerNorm.weight", "attn_output_norm.weight"),
    BERT_LAYER("attention.output.LayerNorm.bias", "attn_output_norm.bias"),
    BERT_LAYER("attention.output.LayerNorm.gamma", "attn_output_norm.weight"),
    BERT_LAYER("attention.output.LayerNorm.beta", "attn_output_norm.bias"),
    BERT_LAYER("intermediate.dense.weight", "ffn_up.weight"),
    BERT_LAYER("intermediate.dense.bias", "ffn_up.bias"),
    BERT_LAYER("output.dense.weight", "ffn_down.weight"),
    BERT_LAYER("output.dense.bias", "ffn_down.bias"),
    BERT_LAYER("output.LayerNorm.weight", "layer_output_norm.weight"),
    BERT_LAYER("output.LayerNorm.bias", "layer_output_norm.bias"),
    BERT_LAYER("output.LayerNorm.gamma", "layer_output_norm.weight"),
    BERT_LAYER("output.LayerNorm.beta", "layer_output_norm.bias"),
    { 0 },
};

/* As published with code of its own, and as transformers has it. */
#define NOMIC_LAYER(hf_, gguf_)                 \
    {                                           \
        hf_, "blk.%d." gguf_, HF_TRANSFORM_NONE \
    }
static const struct hf_name nomic_bert_names[] = {
    { "embeddings.word_embeddings.weight", "token_embd.weight", HF_TRANSFORM_NONE },
    { "embeddings.token_type_embeddings.weight", "token_types.weight", HF_TRANSFORM_NONE },
    { "emb_ln.weight", "token_embd_norm.weight", HF_TRANSFORM_NONE },
    { "emb_ln.bias", "token_embd_norm.bias", HF_TRANSFORM_NONE },
    NOMIC_LAYER("encoder.layers.%d.attn.Wqkv.weight", "attn_qkv.weight"),
    NOMIC_LAYER("encoder.layers.%d.attn.out_proj.weight", "attn_output.weight"),
    NOMIC_LAYER("encoder.layers.%d.mlp.fc11.weight", "ffn_up.weight"),
    NOMIC_LAYER("encoder.layers.%d.mlp.fc12.weight", "ffn_gate.weight"),
    NOMIC_LAYER("encoder.layers.%d.mlp.fc2.weight", "ffn_down.weight"),
    NOMIC_LAYER("encoder.layers.%d.norm1.weight", "attn_output_norm.weight"),
    NOMIC_LAYER("encoder.layers.%d.norm1.bias", "attn_output_norm.bias"),
    NOMIC_LAYER("encoder.layers.%d.norm2.weight", "layer_output_norm.weight"),
    NOMIC_LAYER("encoder.layers.%d.norm2.bias", "layer_output_norm.bias"),
    { "embeddings.LayerNorm.weight", "token_embd_norm.weight", HF_TRANSFORM_NONE },
    { "embeddings.LayerNorm.bias", "token_embd_norm.bias", HF_TRANSFORM_NONE },
    NOMIC_LAYER("model.layers.%d.post_attention_layernorm.weight", "attn_output_norm.weight"),
    NOMIC_LAYER("model.layers.%d.post_attention_layernorm.bias", "attn_output_norm.bias"),
    NOMIC_LAYER("model.layers.%d.post_mlp_layernorm.weight", "layer_output_norm.weight"),
    NOMIC_LAYER("model.layers.%d.post_mlp_layernorm.bias", "layer_output_norm.bias"),
    { 0 },
};

static const struct hf_key bert_keys[] = {
    { "layer_norm_eps", "attention.layer_norm_epsilon" },
    { "layer_norm_epsilon", "attention.layer_norm_epsilon" },
    /* of nomic's own code */
    { "n_layer", "block_count" },
    { "n_embd", "embedding_length" },
    { "n_inner", "feed_forward_length" },
    { "n_head", "attention.head_count" },
    { "max_trained_positions", "context_length" },
    { "n_positions", "context_length" },
    { 0 },
};

/* Heads that are trained with them and play no part in embeddings. */
static const char *const bert_ignored[] = { "pooler.",  "bert.pooler.", "roberta.pooler.", "cls.",
                                            "lm_head.", "classifier.",  "model.pooler.",   NULL };

static enum err_code bert_more(struct hf *h, struct err *err)
{
    const char *kind;
    enum err_code code = hf_str(h, "position_embedding_type", "absolute", &kind, err);
    if (!code && strcmp(kind, "absolute") != 0)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: position_embedding_type: '%.64s' is not absolute", kind);
    if (!code)
        code = hf_set_bool(h, "attention.causal", false, err);
    return code ? code : hf_pooling(h, err);
}

/* RoBERTa counts positions from behind its padding's id: the rows before are of no use. */
static enum err_code roberta_first(struct hf *h, int64_t *first, struct err *err)
{
    enum err_code code = hf_int(h, "pad_token_id", 0, 1 << 20, 1, first, err);
    *first += 1;
    return code;
}

static enum err_code roberta_more(struct hf *h, struct err *err)
{
    int64_t first, n;
    enum err_code code = bert_more(h, err);
    if (!code)
        code = roberta_first(h, &first, err);
    if (!code)
        code = hf_int(h, "max_position_embeddings", first + 1, 1 << 24, 514, &n, err);
    return code ? code : hf_set_int(h, "context_length", n - first, err);
}

static enum err_code roberta_take(struct hf *h, const struct weights_tensor *t, const char *name,
                                  bool *is_done, struct err *err)
{
    int64_t first;
    if (strcmp(name, "embeddings.position_embeddings.weight") != 0)
        return ERR_OK;
    enum err_code code = roberta_first(h, &first, err);
    if (!code && first >= t->shape[1])
        code = err_set(err, ERR_INVALID, "tensor %s: %lld rows, over %lld are needed", t->name,
                       (long long)t->shape[1], (long long)first);
    if (code)
        return code;
    struct weights_tensor copy = *t;
    size_t row = dtype_row_bytes(t->type, t->shape[0]);
    copy.shape[1] -= first;
    copy.data += row * (size_t)first;
    copy.bytes = row * (size_t)copy.shape[1];
    *is_done = true;
    return hf_emit(h, &copy, "position_embd.weight", HF_TRANSFORM_NONE, err);
}

static enum err_code nomic_bert_more(struct hf *h, struct err *err)
{
    double base;
    enum err_code code =
        hf_float(h, "rope_parameters.rope_theta rope_theta rotary_emb_base", 1000, &base, err);
    if (!code)
        code = hf_set_float(h, "rope.freq_base", base, err);
    if (!code)
        code = hf_set_bool(h, "attention.causal", false, err);
    return code ? code : hf_pooling(h, err);
}

static const struct hf_map bert_hf[] = {
    {
        .arch = "bert",
        .names = "BertModel BertForMaskedLM bert",
        .acts = "gelu",
        .has_ropes = true,
        .tensors = bert_names,
        .keys = bert_keys,
        .ignored = bert_ignored,
        .more = bert_more,
    },
    {
        .arch = "bert",
        .names = "RobertaModel RobertaForMaskedLM XLMRobertaModel XLMRobertaForMaskedLM roberta "
                 "xlm-roberta",
        .acts = "gelu",
        .has_ropes = true,
        .tensors = bert_names,
        .keys = bert_keys,
        .ignored = bert_ignored,
        .more = roberta_more,
        .take = roberta_take,
    },
    {
        .arch = "nomic-bert",
        .names = "NomicBertModel nomic_bert",
        .acts = "silu swiglu",
        .has_ropes = true,
        .tensors = nomic_bert_names,
        .keys = bert_keys,
        .ignored = bert_ignored,
        .more = nomic_bert_more,
    },
    { 0 },
};

const struct model_family family_bert = {
    .name = "bert",
    .archs = (const char *const[]){ "bert", NULL },
    .parse = bert_parse,
    .tensors = bert_tensors,
    .hf = bert_hf,
    .step = block_step_post_norm,
};

const struct model_family family_nomic_bert = {
    .name = "nomic_bert",
    .archs = (const char *const[]){ "nomic-bert", NULL },
    .parse = bert_parse,
    .tensors = nomic_bert_tensors,
    .step = block_step_post_norm,
};
