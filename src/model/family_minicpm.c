/* family_minicpm.c - MiniCPM (Hu et al. 2024): llama with scales on the embedding, on what each branch adds, and on the logits. */
#include "model/model_int.h"

#include <math.h>

static enum err_code minicpm_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NORMAL, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    /* old files have none of the keys */
    if (!code)
        code = model_parse_scale(w, m, "embedding_scale", 12, &m->embed_scale, err);
    if (!code)
        code = model_parse_scale(w, m, "residual_scale", 1.4f / sqrtf((float)m->n_layers),
                                 &m->residual_scale, err);
    if (!code)
        code = model_parse_scale(w, m, "logit_scale", (float)m->width / 256, &m->logit_scale, err);
    m->logit_scale = 1 / m->logit_scale;
    return code;
}

static const struct tensor_rule minicpm_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    { "rope_freqs.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    { "rope_factors_long.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    { "rope_factors_short.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("attn_output.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, bo),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    { 0 },
};

static enum err_code minicpm_more(struct hf *h, struct err *err)
{
    int64_t n_layers, width;
    double depth, base, embed;
    enum err_code code = hf_int(h, "num_hidden_layers", 1, 1024, 1, &n_layers, err);
    if (!code)
        code = hf_int(h, "hidden_size", 1, 1 << 20, 1, &width, err);
    if (!code)
        code = hf_float(h, "scale_depth", 1, &depth, err);
    if (!code)
        code = hf_float(h, "dim_model_base", 1, &base, err);
    if (!code)
        code = hf_float(h, "scale_emb", 1, &embed, err);
    if (!code && !(base > 0))
        code = err_set(err, ERR_INVALID, "config.json: dim_model_base: %g is not over 0", base);
    if (!code)
        code = hf_set_float(h, "embedding_scale", embed, err);
    if (!code)
        code = hf_set_float(h, "residual_scale", depth / sqrt((double)n_layers), err);
    return code ? code : hf_set_float(h, "logit_scale", (double)width / base, err);
}

static const struct hf_map minicpm_hf[] = {
    {
        .arch = "minicpm",
        .names = "MiniCPMForCausalLM minicpm",
        .is_permuted = true,
        .more = minicpm_more,
    },
    { 0 },
};

const struct model_family family_minicpm = {
    .name = "minicpm",
    .archs = (const char *const[]){ "minicpm", NULL },
    .parse = minicpm_parse,
    .tensors = minicpm_tensors,
    .hf = minicpm_hf,
    .step = block_step_pre_norm,
};
