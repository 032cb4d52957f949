/* family_gemma3.c - Gemma 3 text models (Gemma team 2025): a norm before and after each branch, norms on q and k, five layers
 * with a sliding window for each one with full attention, two rotary bases, gelu. GGUF norms hold the published weight + 1.
 * EmbeddingGemma (2025) is the same both ways: a row sees the text before and after it, its window is half on each side; the
 * mean of the states goes through two matrices where the file has them. */
#include "model/model_int.h"

#include <math.h>
#include <string.h>

#define GEMMA3_PATTERN 6 /* every sixth layer has full attention */
#define GEMMA3_LAYERS_27B \
    62 /* the 27B alone scales queries by width / heads instead of the head size */

static enum err_code gemma3_parse_layers(const struct weights *w, struct model *m, struct err *err)
{
    enum err_code code = model_parse_windows(w, m, 0, GEMMA3_PATTERN, err);
    float scale = 1 / sqrtf((float)m->head_dim);
    if (m->n_layers == GEMMA3_LAYERS_27B)
        scale = 1 / sqrtf((float)m->width / (float)m->n_heads);
    if (!code)
        code = model_parse_scale(w, m, "attention.scale", scale, &scale, err);
    for (int64_t i = 0; i < m->n_layers; i++) {
        struct model_layer *l = &m->layers[i];
        l->rope_i = l->group == MODEL_GROUP_WINDOW ? 1 : 0;
        l->attn.scale = scale;
    }
    return code;
}

/* The window of a two-way model is `window` wide on both sides together. No layer may let go of a page. */
static enum err_code gemma3_parse_embedding(const struct weights *w, struct model *m,
                                            struct err *err)
{
    enum err_code code = model_parse_two_way(w, m, err);
    for (int64_t i = 0; i < m->n_layers; i++) {
        struct model_layer *l = &m->layers[i];
        l->group = MODEL_GROUP_FULL;
        l->attn.window = l->attn.window ? l->attn.window / 2 + 1 : 0;
    }
    m->window = 0;
    const struct weights_tensor *first = weights_find(w, "dense_2.weight");
    const struct weights_tensor *second = weights_find(w, "dense_3.weight");
    m->n_dense = first ? first->shape[1] : 0;
    m->n_embd = second ? second->shape[1] : m->width;
    if (!code && (!first != !second || m->n_dense > 1 << 17 || m->n_embd > 1 << 17))
        code =
            err_set(err, ERR_INVALID,
                    "tensors dense_2.weight and dense_3.weight: want both or none, of at most %d "
                    "rows",
                    1 << 17);
    return code;
}

static enum err_code gemma3_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec ropes[] = {
        { .rope_i = 0,
          .kind = ROPE_KIND_NEOX,
          .base_key = "rope.freq_base",
          .base = 1000000,
          .is_scaled = true },
        { .rope_i = 1, .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base_swa", .base = 10000 },
    };
    char key[128];
    double softcap = 0;
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = gemma3_parse_layers(w, m, err);
    if (!code && strcmp(m->arch, "gemma-embedding") == 0)
        code = gemma3_parse_embedding(w, m, err);
    for (size_t i = 0; i < ARRAY_LEN(ropes) && !code; i++)
        code = model_parse_rope(w, m, &ropes[i], err);
    if (!code)
        code = weights_float_or(w, model_key(m, "final_logit_softcapping", key), 0, &softcap, err);
    /* The published code casts the root to the activations' type: 25.25 instead of 25.298 for the 270M in bf16, exact in f32. Ours
     * are f32, and so is the reference's f32 run. It hardly matters: KL divergence 5e-6 between the two, perplexities 14.457
     * (rounded) and 14.459 (exact) on prose, 4.816 and 4.818 on code, without rounded activations. */
    m->embed_scale = sqrtf((float)m->width);
    m->logit_softcap = (float)softcap;
    m->glu = GLU_KIND_GELU_TANH;
    return code;
}

static const struct tensor_rule gemma3_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_MODEL("dense_2.weight", "[N][D]", MATRIX, TENSOR_FLAG_OPTIONAL, w_dense[0]),
    RULE_MODEL("dense_3.weight", "[Y][N]", MATRIX, TENSOR_FLAG_OPTIONAL, w_dense[1]),
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_q_norm.weight", "[K]", VECTOR, 0, q_norm),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_k_norm.weight", "[K]", VECTOR, 0, k_norm),
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

/* Widths of the dense layers, which readers of GGUF want said. */
static enum err_code gemma3_dense(struct hf *h, struct err *err)
{
    static const struct {
        const char *tensor, *in, *out;
    } layers[] = { { "2_Dense.linear.weight", "dense_2_feat_in", "dense_2_feat_out" },
                   { "3_Dense.linear.weight", "dense_3_feat_in", "dense_3_feat_out" } };
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(layers) && !code; i++) {
        const struct weights_tensor *t = weights_find(h->w, layers[i].tensor);
        if (!t)
            continue;
        code = hf_set_int(h, layers[i].in, t->shape[0], err);
        if (!code)
            code = hf_set_int(h, layers[i].out, t->shape[1], err);
    }
    return code;
}

static enum err_code gemma3_more(struct hf *h, struct err *err)
{
    int64_t period;
    double size = 0;
    enum err_code code = hf_int(h, "sliding_window_pattern _sliding_window_pattern", 1, 1024,
                                GEMMA3_PATTERN, &period, err);
    bool is_two_way;
    if (!code)
        code = hf_bool(h, "use_bidirectional_attention", false, &is_two_way, err);
    if (!code && is_two_way != (strcmp(h->map->arch, "gemma-embedding") == 0))
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: use_bidirectional_attention does not go with this "
                       "architecture");
    if (!code && is_two_way)
        code = hf_pooling(h, err);
    if (!code && is_two_way)
        code = gemma3_dense(h, err);
    if (!code)
        code = hf_windows(h, period, err);
    if (!code)
        code = hf_float(h, "query_pre_attn_scalar", 0, &size, err);
    /* in f32, as where a GGUF file is silent */
    return code || !(size > 0)
               ? code
               : hf_set_float(h, "attention.scale", (double)(1 / sqrtf((float)size)), err);
}

static const struct hf_name gemma3_names[] = {
    { "2_Dense.linear.weight", "dense_2.weight", HF_TRANSFORM_NONE },
    { "3_Dense.linear.weight", "dense_3.weight", HF_TRANSFORM_NONE },
    { "model.norm.weight", "output_norm.weight", HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.pre_feedforward_layernorm.weight", "blk.%d.ffn_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { "model.layers.%d.post_feedforward_layernorm.weight", "blk.%d.post_ffw_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { 0 },
};

static const struct hf_map gemma3_hf[] = {
    { .arch = "gemma3",
      .names = "Gemma3ForCausalLM Gemma3ForConditionalGeneration gemma3_text gemma3",
      .acts = "gelu_pytorch_tanh",
      .has_layer_types = true,
      .tensors = gemma3_names,
      .more = gemma3_more },
    { .arch = "gemma-embedding",
      .names = "Gemma3TextModel",
      .acts = "gelu_pytorch_tanh",
      .has_layer_types = true,
      .tensors = gemma3_names,
      .more = gemma3_more },
    { 0 },
};

const struct model_family family_gemma3 = {
    .name = "gemma3",
    .archs = (const char *const[]){ "gemma3", "gemma-embedding", NULL },
    .parse = gemma3_parse,
    .tensors = gemma3_tensors,
    .step = block_step_both_norms,
    .hf = gemma3_hf,
};
