/* family_qwen2.c - Qwen2 and Qwen2.5 (Yang et al. 2024): the llama shape with biases on q, k and v, rotary pairs half a head
 * apart, and tied embeddings in the small sizes. */
#include "model/model_int.h"

static enum err_code qwen2_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    return code ? code : model_parse_rope(w, m, &rope, err);
}

static const struct tensor_rule qwen2_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, 0, bq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, 0, bk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, 0, bv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    { 0 },
};

static enum err_code qwen2_more(struct hf *h, struct err *err)
{
    bool has_window;
    enum err_code code = hf_bool(h, "use_sliding_window", false, &has_window, err);
    if (!code && has_window)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: use_sliding_window: qwen2 models with a window are not "
                       "supported");
    return code;
}

static const struct hf_map qwen2_hf[] = {
    { .arch = "qwen2",
      .names = "Qwen2ForCausalLM Qwen2Model Qwen2VLForConditionalGeneration "
               "Qwen2_5_VLForConditionalGeneration qwen2",
      .more = qwen2_more },
    { 0 },
};

const struct model_family family_qwen2 = {
    .name = "qwen2",
    .archs = (const char *const[]){ "qwen2", NULL },
    .parse = qwen2_parse,
    .tensors = qwen2_tensors,
    .step = block_step_pre_norm,
    .hf = qwen2_hf,
};
