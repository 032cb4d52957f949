/* family_gpt_oss.c - gpt-oss (Agarwal et al. 2025): sinks in the attention, a sliding window in every other layer, experts with a clamped swiglu, biases
 * everywhere. GGUF calls the norm before the experts post_attention_norm. */
#include "model/model_int.h"

static enum err_code gpt_oss_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = { .kind = ROPE_KIND_NEOX,
                                                 .base_key = "rope.freq_base",
                                                 .base = 150000,
                                                 .is_scaled = true,
                                                 .is_yarn_exact = true };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    m->glu = GLU_KIND_SWIGLU_CLAMPED;
    m->route.kind = ROUTE_KIND_SOFTMAX_USED;
    if (!code)
        code = model_parse_windows(w, m, 128, 2, err);
    return code ? code : model_parse_experts(w, m, err);
}

static const struct tensor_rule gpt_oss_tensors[] = {
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
    RULE_LAYER("attn_output.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, bo),
    RULE_LAYER("attn_sinks.weight", "[H]", HOST, 0, attn.sinks),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate_inp.weight", "[E][D]", MATRIX, 0, router),
    RULE_LAYER("ffn_gate_exps.weight", "[E][X][D]", EXPERTS, 0, w_gate_e),
    RULE_LAYER("ffn_up_exps.weight", "[E][X][D]", EXPERTS, 0, w_up_e),
    RULE_LAYER("ffn_down_exps.weight", "[E][D][X]", EXPERTS, 0, w_down_e),
    RULE_LAYER("ffn_gate_inp.bias", "[E]", VECTOR, 0, b_router),
    RULE_LAYER("ffn_gate_exps.bias", "[E][X]", VECTOR, 0, b_gate_e),
    RULE_LAYER("ffn_up_exps.bias", "[E][X]", VECTOR, 0, b_up_e),
    RULE_LAYER("ffn_down_exps.bias", "[E][D]", VECTOR, 0, b_down_e),
    { 0 },
};

const struct model_family family_gpt_oss = {
    .name = "gpt_oss",
    .archs = (const char *const[]){ "gpt-oss", NULL },
    .parse = gpt_oss_parse,
    .tensors = gpt_oss_tensors,
    .step = block_step_pre_norm,
};
