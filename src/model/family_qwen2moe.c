/* family_qwen2moe.c - Qwen1.5 and Qwen2 mixtures of experts (Yang et al. 2024): Qwen2 with experts and a gated shared expert in every
 * layer; the router's weights are not divided by their sum. */
#include "model/model_int.h"

static enum err_code qwen2moe_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_shared_experts(w, m, err);
    return code ? code : model_parse_rope(w, m, &rope, err);
}

static const struct tensor_rule qwen2moe_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULES_SHARED_MOE,
    { 0 },
};

static enum err_code qwen2moe_more(struct hf *h, struct err *err)
{
    bool has_window;
    enum err_code code = hf_bool(h, "use_sliding_window", false, &has_window, err);
    if (!code && has_window)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: use_sliding_window: qwen2moe models with a window are not "
                       "supported");
    return code;
}

static const struct hf_map qwen2moe_hf[] = {
    {
        .arch = "qwen2moe",
        .names = "Qwen2MoeForCausalLM Qwen2MoeModel qwen2_moe",
        .more = qwen2moe_more,
    },
    { 0 },
};

const struct model_family family_qwen2moe = {
    .name = "qwen2moe",
    .archs = (const char *const[]){ "qwen2moe", NULL },
    .parse = qwen2moe_parse,
    .tensors = qwen2moe_tensors,
    .hf = qwen2moe_hf,
    .step = block_step_pre_norm,
};
