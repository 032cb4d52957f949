/* family_phi3.c - Phi-3, Phi-3.5 and Phi-4 mini (Abdin et al. 2024): llama, with q, k and v in one matrix, gate and up in another. */
#include "model/model_int.h"

static enum err_code phi3_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    return code ? code : model_parse_windows(w, m, 0, 0, err); /* every layer */
}

static const struct tensor_rule phi3_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    { "rope_factors_long.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    { "rope_factors_short.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    { 0 },
};

static const struct hf_name phi3_names[] = {
    { "model.layers.%d.self_attn.qkv_proj.weight", "blk.%d.attn_qkv.weight", HF_TRANSFORM_NONE },
    { "model.layers.%d.mlp.gate_up_proj.weight", "blk.%d.ffn_up.weight", HF_TRANSFORM_NONE },
    { 0 },
};

static const struct hf_map phi3_hf[] = {
    {
        .arch = "phi3",
        .names = "Phi3ForCausalLM phi3",
        .tensors = phi3_names,
        .more = hf_window,
    },
    { 0 },
};

const struct model_family family_phi3 = {
    .name = "phi3",
    .archs = (const char *const[]){ "phi3", NULL },
    .parse = phi3_parse,
    .tensors = phi3_tensors,
    .hf = phi3_hf,
    .step = block_step_pre_norm,
};
