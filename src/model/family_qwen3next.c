/* family_qwen3next.c - Qwen3-Next: three layers with a gated delta net for each one with gated attention, experts and a gated
 * shared expert in every layer. Value heads stand by key heads: head h has key head h / (Hs / Gs). */
#include "model/hf_delta.h"
#include "model/model_int.h"

static enum err_code qwen3next_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_delta(w, m, err);
    m->state.is_tiled = false;
    m->is_q_gated = true;
    m->route.is_normed = true;
    if (!code)
        code = model_parse_shared_experts(w, m, err);
    return code ? code : model_parse_rope(w, m, &rope, err);
}

static const struct tensor_rule qwen3next_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULES_GATED_ATTN,
    RULES_DELTA,
    RULE_LAYER("attn_qkv.weight", "[C][D]", MATRIX, TENSOR_FLAG_STATE, w_mix),
    RULE_LAYER("attn_gate.weight", "[S*B][D]", MATRIX, TENSOR_FLAG_STATE, w_z),
    RULE_LAYER("ssm_ba.weight", "[S+S][D]", MATRIX, TENSOR_FLAG_STATE, w_beta_decay),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULES_SHARED_MOE,
    { 0 },
};

static const struct hf_map qwen3next_hf[] = {
    {
        .arch = "qwen3next",
        .names = "Qwen3NextForCausalLM Qwen3NextModel qwen3_next",
        .has_layer_types = true,
        .tensors = hf_delta_names,
        .more = hf_delta_more,
        .take = hf_delta_take,
    },
    { 0 },
};

const struct model_family family_qwen3next = {
    .name = "qwen3next",
    .archs = (const char *const[]){ "qwen3next", NULL },
    .parse = qwen3next_parse,
    .tensors = qwen3next_tensors,
    .hf = qwen3next_hf,
    .step = block_step_hybrid,
};
