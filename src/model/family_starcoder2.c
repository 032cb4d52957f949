/* family_starcoder2.c - StarCoder2 (Lozhkov et al. 2024): layer norms with biases, biases on every matrix, gelu without a gate. */
#include "model/model_int.h"

static enum err_code starcoder2_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    m->glu = GLU_KIND_GELU_TANH;
    return code ? code : model_parse_windows(w, m, 0, 0, err); /* every layer */
}

static const struct tensor_rule starcoder2_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_MODEL("output_norm.bias", "[D]", VECTOR, 0, out_norm_b),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_norm.bias", "[D]", VECTOR, 0, attn_norm_b),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bq),
    RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bk),
    RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bv),
    RULE_LAYER("attn_output.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, bo),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_norm.bias", "[D]", VECTOR, 0, ffn_norm_b),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_up.bias", "[F]", VECTOR, TENSOR_FLAG_OPTIONAL, b_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    RULE_LAYER("ffn_down.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, b_down),
    { 0 },
};

static const struct hf_name starcoder2_names[] = {
    { "model.norm.bias", "output_norm.bias", HF_TRANSFORM_NONE },
    { "model.layers.%d.input_layernorm.bias", "blk.%d.attn_norm.bias", HF_TRANSFORM_NONE },
    { "model.layers.%d.post_attention_layernorm.bias", "blk.%d.ffn_norm.bias", HF_TRANSFORM_NONE },
    { "model.layers.%d.mlp.c_fc.weight", "blk.%d.ffn_up.weight", HF_TRANSFORM_NONE },
    { "model.layers.%d.mlp.c_fc.bias", "blk.%d.ffn_up.bias", HF_TRANSFORM_NONE },
    { "model.layers.%d.mlp.c_proj.weight", "blk.%d.ffn_down.weight", HF_TRANSFORM_NONE },
    { "model.layers.%d.mlp.c_proj.bias", "blk.%d.ffn_down.bias", HF_TRANSFORM_NONE },
    { 0 },
};

static const struct hf_key starcoder2_keys[] = {
    { "norm_epsilon", "attention.layer_norm_epsilon" },
    { 0 },
};

static const struct hf_map starcoder2_hf[] = {
    {
        .arch = "starcoder2",
        .names = "Starcoder2ForCausalLM starcoder2",
        .acts = "gelu_pytorch_tanh",
        .tensors = starcoder2_names,
        .keys = starcoder2_keys,
        .more = hf_window,
    },
    { 0 },
};

const struct model_family family_starcoder2 = {
    .name = "starcoder2",
    .archs = (const char *const[]){ "starcoder2", NULL },
    .parse = starcoder2_parse,
    .tensors = starcoder2_tensors,
    .hf = starcoder2_hf,
    .step = block_step_pre_norm,
};
