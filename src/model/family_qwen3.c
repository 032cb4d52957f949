/* family_qwen3.c - Qwen3 (Yang et al. 2025), its embedding and reranking models: Qwen2 with norms on the heads of q and k, without biases. */
#include "model/model_int.h"

static enum err_code qwen3_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 1000000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    return code;
}

static const struct tensor_rule qwen3_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_q_norm.weight", "[K]", VECTOR, 0, q_norm),
    RULE_LAYER("attn_k_norm.weight", "[K]", VECTOR, 0, k_norm),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    { 0 },
};

static const struct hf_map qwen3_hf[] = {
    {
        .arch = "qwen3",
        .names = "Qwen3ForCausalLM Qwen3Model qwen3",
    },
    { 0 },
};

const struct model_family family_qwen3 = {
    .name = "qwen3",
    .archs = (const char *const[]){ "qwen3", NULL },
    .parse = qwen3_parse,
    .tensors = qwen3_tensors,
    .hf = qwen3_hf,
    .step = block_step_pre_norm,
};
