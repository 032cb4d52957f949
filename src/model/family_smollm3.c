/* family_smollm3.c - SmolLM3 (Hugging Face 2025): llama without rotation in every fourth layer. */
#include "model/model_int.h"

#define SMOLLM3_NO_ROPE 4 /* no key of the file says so */

static enum err_code smollm3_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NORMAL, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    for (int64_t i = 0; i < m->n_layers && !code; i++)
        if ((i + 1) % SMOLLM3_NO_ROPE == 0)
            m->layers[i].rope_i = -1;
    return code;
}

static const struct tensor_rule smollm3_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
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

static enum err_code smollm3_more(struct hf *h, struct err *err)
{
    int64_t every;
    enum err_code code =
        hf_int(h, "no_rope_layer_interval", 0, 1 << 20, SMOLLM3_NO_ROPE, &every, err);
    return code || every == SMOLLM3_NO_ROPE
               ? code
               : err_set(err, ERR_UNSUPPORTED, "config.json: no_rope_layer_interval: %lld, not %d",
                         (long long)every, SMOLLM3_NO_ROPE);
}

static const struct hf_map smollm3_hf[] = {
    {
        .arch = "smollm3",
        .names = "SmolLM3ForCausalLM smollm3",
        .is_permuted = true,
        .more = smollm3_more,
    },
    { 0 },
};

const struct model_family family_smollm3 = {
    .name = "smollm3",
    .archs = (const char *const[]){ "smollm3", NULL },
    .parse = smollm3_parse,
    .tensors = smollm3_tensors,
    .hf = smollm3_hf,
    .step = block_step_pre_norm,
};
