/* family_qwen35moe.c - Qwen3.5 to Qwen3.8 mixtures of experts, the text part: Qwen3.5 with experts and a gated shared
 * expert in every layer. */
#include "model/hf_delta.h"
#include "model/model_int.h"

static enum err_code qwen35moe_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_delta(w, m, err);
    m->state.is_tiled = true;
    m->is_q_gated = true;
    m->route.is_normed = true;
    if (!code)
        code = model_parse_shared_experts(w, m, err);
    return code ? code : model_parse_rope(w, m, &rope, err);
}

static const struct tensor_rule qwen35moe_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULES_GATED_ATTN,
    RULES_DELTA,
    RULE_LAYER("attn_qkv.weight", "[C][D]", MATRIX, TENSOR_FLAG_STATE, w_mix),
    RULE_LAYER("attn_gate.weight", "[S*B][D]", MATRIX, TENSOR_FLAG_STATE, w_z),
    RULE_LAYER("ssm_alpha.weight", "[S][D]", MATRIX, TENSOR_FLAG_STATE, w_decay),
    RULE_LAYER("ssm_beta.weight", "[S][D]", MATRIX, TENSOR_FLAG_STATE, w_beta),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULES_SHARED_MOE,
    { 0 },
};

static const struct hf_map qwen35moe_hf[] = {
    {
        .arch = "qwen35moe",
        .names = "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration Qwen3_5MoeTextModel "
                 "Qwen3_5MoeModel qwen3_5_moe_text qwen3_5_moe",
        .has_layer_types = true,
        .tensors = hf_delta_names,
        .more = hf_delta_more,
        .take = hf_delta_take_tiled,
    },
    { 0 },
};

const struct model_family family_qwen35moe = {
    .name = "qwen35moe",
    .archs = (const char *const[]){ "qwen35moe", NULL },
    .parse = qwen35moe_parse,
    .tensors = qwen35moe_tensors,
    .hf = qwen35moe_hf,
    .step = block_step_hybrid,
};
