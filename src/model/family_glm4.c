/* family_glm4.c - GLM-4-0414 (Zhipu 2025): a norm on both sides of each branch, half of each head rotated, gate and up in one matrix. */
#include "model/model_int.h"

static enum err_code glm4_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NORMAL, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    return code;
}

static const struct tensor_rule glm4_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bq),
    RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bk),
    RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bv),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, 0, attn_post_norm),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    RULE_LAYER("post_ffw_norm.weight", "[D]", VECTOR, 0, ffn_post_norm),
    { 0 },
};

static const struct hf_name glm4_names[] = {
    { "model.layers.%d.post_self_attn_layernorm.weight", "blk.%d.post_attention_norm.weight",
      HF_TRANSFORM_NONE },
    { "model.layers.%d.post_mlp_layernorm.weight", "blk.%d.post_ffw_norm.weight",
      HF_TRANSFORM_NONE },
    { "model.layers.%d.mlp.gate_up_proj.weight", "blk.%d.ffn_up.weight", HF_TRANSFORM_NONE },
    { 0 },
};

static const struct hf_map glm4_hf[] = {
    {
        .arch = "glm4",
        .names = "Glm4ForCausalLM glm4",
        .tensors = glm4_names,
    },
    { 0 },
};

const struct model_family family_glm4 = {
    .name = "glm4",
    .archs = (const char *const[]){ "glm4", NULL },
    .parse = glm4_parse,
    .tensors = glm4_tensors,
    .hf = glm4_hf,
    .step = block_step_both_norms,
};
