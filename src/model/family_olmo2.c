/* family_olmo2.c - OLMo 2 and 3 (OLMo team 2024, 2025): norms after each branch and none before, q and k normed over all heads together; OLMo 3 has
 * a sliding window in three layers of four. */
#include "model/model_int.h"

static enum err_code olmo2_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec ropes[] = {
        { .rope_i = 0,
          .kind = ROPE_KIND_NEOX,
          .base_key = "rope.freq_base",
          .base = 10000,
          .is_scaled = true },
        /* layers with a window */
        { .rope_i = 1, .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000 },
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_windows(w, m, 0, 4, err);
    for (size_t i = 0; i < ARRAY_LEN(ropes) && !code; i++)
        code = model_parse_rope(w, m, &ropes[i], err);
    for (int64_t i = 0; i < m->n_layers && !code; i++)
        m->layers[i].rope_i = m->layers[i].group == MODEL_GROUP_WINDOW;
    m->is_qk_norm_wide = true;
    return code;
}

static void olmo2_step(const struct model *m, struct model_step *st)
{
    block_embed(m, st);
    for (int i = st->first; i < st->end; i++) {
        const struct model_layer *l = &m->layers[i];
        if (!block_attn_of(m, st, i, st->x))
            return;
        block_post_norm(m, st, l->attn_post_norm);
        block_add(m, st);
        block_ffn_of(m, st, l, st->x);
        block_post_norm(m, st, l->ffn_post_norm);
        block_add(m, st);
        block_layer_end(m, st, i);
    }
    block_head(m, st);
}

static const struct tensor_rule olmo2_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_q_norm.weight", "[H*K]", VECTOR, 0, q_norm),
    RULE_LAYER("attn_k_norm.weight", "[G*K]", VECTOR, 0, k_norm),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, 0, attn_post_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    RULE_LAYER("post_ffw_norm.weight", "[D]", VECTOR, 0, ffn_post_norm),
    { 0 },
};

static const struct hf_name olmo2_names[] = {
    { "model.layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight",
      HF_TRANSFORM_NONE },
    { "model.layers.%d.post_feedforward_layernorm.weight", "blk.%d.post_ffw_norm.weight",
      HF_TRANSFORM_NONE },
    { 0 },
};

static enum err_code olmo2_more(struct hf *h, struct err *err)
{
    return hf_windows(h, 4, err);
}

static const struct hf_map olmo2_hf[] = {
    {
        .arch = "olmo2",
        .names = "Olmo2ForCausalLM Olmo3ForCausalLM olmo2 olmo3",
        .has_layer_types = true,
        .tensors = olmo2_names,
        .more = olmo2_more,
    },
    { 0 },
};

const struct model_family family_olmo2 = {
    .name = "olmo2",
    .archs = (const char *const[]){ "olmo2", NULL },
    .parse = olmo2_parse,
    .tensors = olmo2_tensors,
    .hf = olmo2_hf,
    .step = olmo2_step,
};
