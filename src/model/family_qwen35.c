/* family_qwen35.c - Qwen3.5 to Qwen3.8, the text part: three layers with a gated delta net for each one with attention, whose heads
 * are gated; norms hold the published weight + 1; rotary positions on a quarter of a head (for text the three axes are the same).
 * Value heads are stored so that head h has key head h % Gs. */
#include "model/hf_delta.h"
#include "model/model_int.h"

static enum err_code qwen35_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_delta(w, m, err);
    m->state.is_tiled = true;
    m->is_q_gated = true;
    return code ? code : model_parse_rope(w, m, &rope, err);
}

static const struct tensor_rule qwen35_tensors[] = {
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
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    { 0 },
};

static const struct hf_map qwen35_hf[] = {
    {
        .arch = "qwen35",
        .names = "Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5TextModel Qwen3_5Model "
                 "qwen3_5_text qwen3_5",
        .has_layer_types = true,
        .tensors = hf_delta_names,
        .more = hf_delta_more,
        .take = hf_delta_take_tiled,
    },
    { 0 },
};

const struct model_family family_qwen35 = {
    .name = "qwen35",
    .archs = (const char *const[]){ "qwen35", NULL },
    .parse = qwen35_parse,
    .tensors = qwen35_tensors,
    .hf = qwen35_hf,
    .step = block_step_hybrid,
};
