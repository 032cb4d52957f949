/* family_gemma2.c - Gemma 2 (Gemma team 2024): Gemma with a norm on both sides of each branch, a sliding window in every other layer, and soft caps on
 * scores and logits. */
#include "model/model_int.h"

#include <math.h>

#define GEMMA2_LAYERS_27B \
    46 /* the 27B alone scales queries by width / heads instead of the head size */

static enum err_code gemma2_parse_layers(const struct weights *w, struct model *m, struct err *err)
{
    float cap = 0, scale = 1 / sqrtf((float)m->head_dim);
    enum err_code code = model_parse_windows(w, m, 4096, 2, err);
    if (!code)
        code = model_parse_scale(w, m, "attn_logit_softcapping", 50, &cap, err);
    if (!code)
        code = model_parse_scale(w, m, "final_logit_softcapping", 30, &m->logit_softcap, err);
    if (m->n_layers == GEMMA2_LAYERS_27B)
        scale = 1 / sqrtf((float)m->width / (float)m->n_heads);
    if (!code)
        code = model_parse_scale(w, m, "attention.scale", scale, &scale, err);
    for (int64_t i = 0; i < m->n_layers; i++) {
        m->layers[i].attn.scale = scale;
        m->layers[i].attn.softcap = cap;
    }
    m->embed_scale = sqrtf((float)m->width);
    m->glu = GLU_KIND_GELU_TANH;
    return code;
}

static enum err_code gemma2_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    return code ? code : gemma2_parse_layers(w, m, err);
}

static const struct tensor_rule gemma2_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, 0, attn_post_norm),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    RULE_LAYER("post_ffw_norm.weight", "[D]", VECTOR, 0, ffn_post_norm),
    { 0 },
};

static const struct hf_name gemma2_names[] = {
    { "model.norm.weight", "output_norm.weight", HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.pre_feedforward_layernorm.weight", "blk.%d.ffn_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.post_feedforward_layernorm.weight", "blk.%d.post_ffw_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { 0 },
};

static enum err_code gemma2_more(struct hf *h, struct err *err)
{
    double size;
    enum err_code code = hf_windows(h, 2, err);
    if (!code)
        code = hf_float(h, "query_pre_attn_scalar", 0, &size, err);
    return code || !(size > 0) ? code : hf_set_float(h, "attention.scale", 1 / sqrt(size), err);
}

static const struct hf_map gemma2_hf[] = {
    {
        .arch = "gemma2",
        .names = "Gemma2ForCausalLM gemma2",
        .acts = "gelu_pytorch_tanh",
        .has_layer_types = true,
        .tensors = gemma2_names,
        .more = gemma2_more,
    },
    { 0 },
};

const struct model_family family_gemma2 = {
    .name = "gemma2",
    .archs = (const char *const[]){ "gemma2", NULL },
    .parse = gemma2_parse,
    .tensors = gemma2_tensors,
    .hf = gemma2_hf,
    .step = block_step_both_norms,
};
