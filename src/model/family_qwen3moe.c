/* family_qwen3moe.c - Qwen3 mixtures of experts (Yang et al. 2025): Qwen3 with experts in every layer. */
#include "model/model_int.h"

static enum err_code qwen3moe_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 1000000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    m->route.is_normed = true;
    return code ? code : model_parse_experts(w, m, err);
}

static const struct tensor_rule qwen3moe_tensors[] = {
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
    RULE_LAYER("ffn_gate_inp.weight", "[E][D]", MATRIX, 0, router),
    RULE_LAYER("ffn_gate_exps.weight", "[E][X][D]", EXPERTS, 0, w_gate_e),
    RULE_LAYER("ffn_up_exps.weight", "[E][X][D]", EXPERTS, 0, w_up_e),
    RULE_LAYER("ffn_down_exps.weight", "[E][D][X]", EXPERTS, 0, w_down_e),
    { 0 },
};

static const struct hf_map qwen3moe_hf[] = {
    {
        .arch = "qwen3moe",
        .names = "Qwen3MoeForCausalLM qwen3_moe",
    },
    { 0 },
};

const struct model_family family_qwen3moe = {
    .name = "qwen3moe",
    .archs = (const char *const[]){ "qwen3moe", NULL },
    .parse = qwen3moe_parse,
    .tensors = qwen3moe_tensors,
    .hf = qwen3moe_hf,
    .step = block_step_pre_norm,
};
