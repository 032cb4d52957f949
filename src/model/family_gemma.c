/* family_gemma.c - Gemma (Gemma team 2024): llama with gelu and a scaled embedding. GGUF norms hold the published weight + 1. */
#include "model/model_int.h"

#include <math.h>

static enum err_code gemma_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    m->embed_scale = sqrtf((float)m->width);
    m->glu = GLU_KIND_GELU_TANH;
    return code;
}

static const struct tensor_rule gemma_tensors[] = {
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

static const struct hf_name gemma_names[] = {
    { "model.norm.weight", "output_norm.weight", HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { 0 },
};

static const struct hf_map gemma_hf[] = {
    {
        .arch = "gemma",
        .names = "GemmaForCausalLM gemma",
        .acts = "gelu_pytorch_tanh gelu", /* old files say gelu and mean the other */
        .tensors = gemma_names,
    },
    { 0 },
};

const struct model_family family_gemma = {
    .name = "gemma",
    .archs = (const char *const[]){ "gemma", NULL },
    .parse = gemma_parse,
    .tensors = gemma_tensors,
    .hf = gemma_hf,
    .step = block_step_pre_norm,
};
