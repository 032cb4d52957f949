/* family_granite.c - Granite 3 (IBM 2024): llama with multipliers on the embedding, the scores, what each branch adds, and the logits. */
#include "model/model_int.h"

static enum err_code granite_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NORMAL, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    float scale = 0;
    if (!code)
        code = model_parse_scale(w, m, "attention.scale", m->layers[0].attn.scale, &scale, err);
    for (int64_t i = 0; i < m->n_layers && !code; i++)
        m->layers[i].attn.scale = scale;
    if (!code)
        code = model_parse_scale(w, m, "embedding_scale", 1, &m->embed_scale, err);
    if (!code)
        code = model_parse_scale(w, m, "residual_scale", 1, &m->residual_scale, err);
    if (!code)
        code = model_parse_scale(w, m, "logit_scale", 1, &m->logit_scale, err);
    m->logit_scale = 1 / m->logit_scale;
    return code;
}

static const struct tensor_rule granite_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    { "rope_freqs.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bq),
    RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bk),
    RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bv),
    RULE_LAYER("attn_output.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, bo),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    { 0 },
};

static const struct hf_key granite_keys[] = {
    { "attention_multiplier", "attention.scale" },
    { "embedding_multiplier", "embedding_scale" },
    { "residual_multiplier", "residual_scale" },
    { "logits_scaling", "logit_scale" },
    { 0 },
};

static const struct hf_map granite_hf[] = {
    {
        .arch = "granite",
        .names = "GraniteForCausalLM granite",
        .is_permuted = true,
        .keys = granite_keys,
    },
    { 0 },
};

const struct model_family family_granite = {
    .name = "granite",
    .archs = (const char *const[]){ "granite", NULL },
    .parse = granite_parse,
    .tensors = granite_tensors,
    .hf = granite_hf,
    .step = block_step_pre_norm,
};
