/* family_gemma4.c - Gemma 4, the text part: as Gemma 3 with a norm on both sides of each branch, and heads of two sizes: larger ones,
 * with fewer kv heads, in the layers with full attention, where a part of the pairs is not rotated (rope_freqs holds a huge divisor
 * for them) and values may be the keys before their norm. Values are normed without a weight, scores are not scaled. The last
 * layers may read the keys and values of the last one of their kind before them. Small models have inputs of their own for
 * every layer: what the token has there, mixed with a projection of its embedding. Mixtures of experts have both an ffn and experts in
 * every layer. Norms hold the published weight. */
#include "model/model_int.h"
#include "tensor/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The layers that read others' keys and values: the last one of the same kind of those that have some. */
static enum err_code gemma4_parse_sharing(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    int64_t n_shared = 0;
    enum err_code code = weights_int_or(w, model_key(m, "attention.shared_kv_layers", key), 0,
                                        m->n_layers - 1, 0, &n_shared, err);
    for (int64_t i = m->n_layers - n_shared; i < m->n_layers && !code; i++) {
        int64_t from = m->n_layers - n_shared - 1;
        while (from >= 0 && m->layers[from].group != m->layers[i].group)
            from--;
        if (from < 0)
            code = err_set(err, ERR_INVALID, "%s: %lld leaves layer %lld without keys", key,
                           (long long)n_shared, (long long)i);
        m->layers[i].kv_from = (int)from;
    }
    return code;
}

static enum err_code gemma4_parse_layers(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    int64_t local_dim = 0;
    enum err_code code = model_parse_windows(w, m, 0, 6, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "attention.key_length_swa", key), 2,
                              BACKEND_HEAD_DIM_MAX, m->head_dim, &local_dim, err);
    for (int64_t i = 0; i < m->n_layers && !code; i++) {
        struct model_layer *l = &m->layers[i];
        bool is_local = l->group == MODEL_GROUP_WINDOW;
        l->rope_i = is_local;
        l->head_dim = is_local ? (int)local_dim : (int)m->head_dim;
        l->attn.scale = 1;
    }
    return code ? code : gemma4_parse_sharing(w, m, err);
}

static enum err_code gemma4_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec ropes[] = {
        { .rope_i = 0,
          .kind = ROPE_KIND_NEOX,
          .base_key = "rope.freq_base",
          .base = 1000000,
          .is_scaled = true },
        { .rope_i = 1,
          .kind = ROPE_KIND_NEOX,
          .base_key = "rope.freq_base_swa",
          .base = 10000,
          .dims_key = "rope.dimension_count_swa" },
    };
    char key[128];
    double softcap = 0;
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = gemma4_parse_layers(w, m, err);
    for (size_t i = 0; i < ARRAY_LEN(ropes) && !code; i++)
        code = model_parse_rope(w, m, &ropes[i], err);
    if (!code && m->ropes[1].n_dims > m->layers[0].head_dim && m->layers[0].rope_i == 1)
        code = err_set(err, ERR_INVALID, "%s.rope.dimension_count_swa: %d is over a head of %d",
                       m->arch, m->ropes[1].n_dims, m->layers[0].head_dim);
    if (!code)
        code = weights_float_or(w, model_key(m, "final_logit_softcapping", key), 0, &softcap, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "embedding_length_per_layer_input", key), 0, 1 << 14,
                              0, &m->n_inp, err);
    m->route.is_normed = true;
    if (!code)
        code = model_parse_experts(w, m, err);
    m->embed_scale = sqrtf((float)m->width);
    m->logit_softcap = (float)softcap;
    m->glu = GLU_KIND_GELU_TANH;
    m->is_v_normed = true;
    return code;
}

/* inp = (what the token has for every layer * sqrt(P) + norm(projection of x / sqrt(D))) / sqrt(2) */
static void gemma4_inputs(const struct model *m, struct model_step *st)
{
    int64_t cols = m->n_layers * m->n_inp;
    struct tensor inp = tensor_of(st->scratch->inp, st->n_rows, cols);
    struct tensor mix = tensor_of(st->scratch->inp_mix, st->n_rows, cols);
    ops_embed(m->be, inp, m->inp_embed, st->ids);
    ops_scale(m->be, inp, sqrtf((float)m->n_inp));
    ops_linear(m->be, mix, st->x, m->inp_proj);
    ops_scale(m->be, mix, 1 / sqrtf((float)m->width));
    ops_rms_norm(m->be, mix, mix, m->inp_proj_norm, (int)m->n_inp, m->eps);
    ops_add(m->be, inp, mix);
    ops_scale(m->be, inp, 0.70710678118654752f);
}

/* h = norm(W (gelu(W_gate x) * the layer's input)) */
static void gemma4_input(const struct model *m, struct model_step *st, int layer_i)
{
    const struct model_layer *l = &m->layers[layer_i];
    struct tensor inp = tensor_cols(tensor_of(st->scratch->inp, st->n_rows, m->n_layers * m->n_inp),
                                    layer_i * m->n_inp, m->n_inp);
    struct tensor gate = tensor_of(st->scratch->inp_mix, st->x.rows, m->n_inp);
    if (st->x.rows < st->n_rows) { /* the last layer: the rows with logits */
        struct tensor all = inp;
        inp = tensor_of(st->scratch->inp_mix + st->x.rows * m->n_inp, st->x.rows, m->n_inp);
        ops_gather(m->be, inp, all, st->out_rows);
    }
    ops_linear(m->be, gate, st->x, l->w_inp_gate);
    ops_glu(m->be, gate, gate, inp, GLU_KIND_GELU_TANH);
    ops_linear(m->be, st->h, gate, l->w_inp_proj);
    block_post_norm(m, st, l->inp_norm);
}

static void gemma4_step(const struct model *m, struct model_step *st)
{
    block_embed(m, st);
    if (m->n_inp > 0 && st->first == 0)
        gemma4_inputs(m, st);
    for (int i = st->first; i < st->end; i++) {
        const struct model_layer *l = &m->layers[i];
        block_norm(m, st, l->attn_norm);
        if (!block_attn(m, st, i))
            return;
        block_post_norm(m, st, l->attn_post_norm);
        block_add(m, st);
        block_norm(m, st, l->ffn_norm);
        if (l->router)
            block_moe_beside(m, st, l);
        else
            block_ffn(m, st, l);
        block_post_norm(m, st, l->ffn_post_norm);
        block_add(m, st);
        if (m->n_inp > 0) {
            gemma4_input(m, st, i);
            block_add(m, st);
        }
        if (l->out_scale)
            ops_scale(m->be, st->x, l->out_scale[0]);
        block_layer_end(m, st, i);
    }
    block_head(m, st);
}

static const struct tensor_rule gemma4_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_MODEL("per_layer_token_embd.weight", "[V][L*P]", MATRIX, TENSOR_FLAG_INPUTS, inp_embed),
    RULE_MODEL("per_layer_model_proj.weight", "[L*P][D]", MATRIX, TENSOR_FLAG_INPUTS, inp_proj),
    RULE_MODEL("per_layer_proj_norm.weight", "[P]", VECTOR, TENSOR_FLAG_INPUTS, inp_proj_norm),
    { "rope_freqs.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_q_norm.weight", "[K]", VECTOR, 0, q_norm),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, TENSOR_FLAG_KV, wk),
    RULE_LAYER("attn_k_norm.weight", "[K]", VECTOR, TENSOR_FLAG_KV, k_norm),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, TENSOR_FLAG_KV | TENSOR_FLAG_OPTIONAL, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("post_attention_norm.weight", "[D]", VECTOR, 0, attn_post_norm),
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, 0, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, 0, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, 0, w_down),
    RULE_LAYER("post_ffw_norm.weight", "[D]", VECTOR, 0, ffn_post_norm),
    RULE_LAYER("ffn_gate_inp.weight", "[E][D]", MATRIX, TENSOR_FLAG_MOE, router),
    RULE_LAYER("ffn_gate_inp.scale", "[D]", VECTOR, TENSOR_FLAG_MOE, router_norm),
    RULE_LAYER("ffn_gate_exps.weight", "[E][X][D]", EXPERTS, TENSOR_FLAG_MOE, w_gate_e),
    RULE_LAYER("ffn_up_exps.weight", "[E][X][D]", EXPERTS, TENSOR_FLAG_MOE, w_up_e),
    RULE_LAYER("ffn_down_exps.weight", "[E][D][X]", EXPERTS, TENSOR_FLAG_MOE, w_down_e),
    RULE_LAYER("ffn_down_exps.scale", "[E]", HOST, TENSOR_FLAG_MOE | TENSOR_FLAG_OPTIONAL,
               expert_scale),
    RULE_LAYER("post_ffw_norm_1.weight", "[D]", VECTOR, TENSOR_FLAG_MOE, ffn_out_norm),
    RULE_LAYER("pre_ffw_norm_2.weight", "[D]", VECTOR, TENSOR_FLAG_MOE, expert_norm),
    RULE_LAYER("post_ffw_norm_2.weight", "[D]", VECTOR, TENSOR_FLAG_MOE, expert_out_norm),
    RULE_LAYER("inp_gate.weight", "[P][D]", MATRIX, TENSOR_FLAG_INPUTS, w_inp_gate),
    RULE_LAYER("proj.weight", "[D][P]", MATRIX, TENSOR_FLAG_INPUTS, w_inp_proj),
    RULE_LAYER("post_norm.weight", "[D]", VECTOR, TENSOR_FLAG_INPUTS, inp_norm),
    RULE_LAYER("layer_output_scale.weight", NULL, HOST, TENSOR_FLAG_OPTIONAL, out_scale),
    { 0 },
};

/* --- directories --- */

#define GEMMA4_LAYERS_MAX 1024

/* A size of the layers with full attention: a value of its own (transformers 5.0), or of each layer (5.20). */
static enum err_code gemma4_full_int(struct hf *h, const char *own, const char *name,
                                     int64_t fallback, int64_t *out, struct err *err)
{
    char paths[96];
    int64_t n = 0;
    bool is_full = false;
    enum err_code code = hf_int(h, "num_hidden_layers", 1, GEMMA4_LAYERS_MAX, 1, &n, err);
    int i = 0;
    for (; i < n && !code && !is_full; i++)
        code = hf_layer_is(h, i, "full_attention", (i + 1) % 6 == 0, &is_full, err);
    snprintf(paths, sizeof(paths), "%s per_layer_config.%d.%s", own, i - 1, name);
    return code ? code : hf_int(h, paths, 1, 1 << 16, fallback, out, err);
}

/* Keys and values of the layers: heads of two sizes, and ffns twice as wide where keys are shared. */
static enum err_code gemma4_layer_sizes(struct hf *h, struct err *err)
{
    int64_t n, kv, kv_full, ff, n_shared, kvs[GEMMA4_LAYERS_MAX], ffs[GEMMA4_LAYERS_MAX];
    bool is_wide, is_full, is_own;
    enum err_code code = hf_int(h, "num_hidden_layers", 1, GEMMA4_LAYERS_MAX, 1, &n, err);
    if (!code) /* only where values are the keys are their heads counted apart */
        code = hf_bool(h, "attention_k_eq_v", false, &is_own, err);
    if (!code)
        code = hf_int(h, "num_key_value_heads", 1, 1 << 16, 1, &kv, err);
    if (!code)
        code = gemma4_full_int(h, is_own ? "num_global_key_value_heads" : "", "num_key_value_heads",
                               kv, &kv_full, err);
    if (!code)
        code = hf_int(h, "intermediate_size", 1, 1 << 20, 1, &ff, err);
    if (!code)
        code = hf_int(h, "num_kv_shared_layers", 0, n, 0, &n_shared, err);
    if (!code)
        code = hf_bool(h, "use_double_wide_mlp", false, &is_wide, err);
    for (int64_t i = 0; i < n && !code; i++) {
        code = hf_layer_is(h, i, "full_attention", (i + 1) % 6 == 0, &is_full, err);
        kvs[i] = is_full ? kv_full : kv;
        ffs[i] = is_wide && i >= n - n_shared ? 2 * ff : ff;
    }
    if (!code)
        code = hf_set_ints(h, "attention.head_count_kv", kvs, (uint64_t)n, err);
    return code ? code : hf_set_ints(h, "feed_forward_length", ffs, (uint64_t)n, err);
}

static enum err_code gemma4_ropes(struct hf *h, int64_t head, int64_t full, struct err *err)
{
    double base_local;
    enum err_code code = hf_rope_partial(h, full, err);
    if (!code)
        code = hf_float(h, "rope_parameters.sliding_attention.rope_theta", 10000, &base_local, err);
    if (!code)
        code = hf_set_int(h, "rope.dimension_count_swa", head, err);
    return code ? code : hf_set_float(h, "rope.freq_base_swa", base_local, err);
}

static enum err_code gemma4_more(struct hf *h, struct err *err)
{
    int64_t head, full;
    const char *both_ways;
    enum err_code code = hf_str(h, "use_bidirectional_attention", "", &both_ways, err);
    if (!code && strcmp(both_ways, "all") == 0)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: use_bidirectional_attention: 'all' is not supported");
    if (!code)
        code = hf_int(h, "head_dim", 2, BACKEND_HEAD_DIM_MAX, 256, &head, err);
    if (!code)
        code = gemma4_full_int(h, "global_head_dim", "head_dim", 512, &full, err);
    if (!code)
        code = hf_set_int(h, "attention.key_length", full, err);
    if (!code)
        code = hf_set_int(h, "attention.value_length", full, err);
    if (!code)
        code = hf_set_int(h, "attention.key_length_swa", head, err);
    if (!code)
        code = hf_set_int(h, "attention.value_length_swa", head, err);
    if (!code)
        code = gemma4_layer_sizes(h, err);
    if (!code)
        code = gemma4_ropes(h, head, full, err);
    return code ? code : hf_windows(h, 6, err);
}

static const struct hf_key gemma4_keys[] = {
    { "num_kv_shared_layers", "attention.shared_kv_layers" },
    { "hidden_size_per_layer_input", "embedding_length_per_layer_input" },
    { "top_k_experts", "expert_used_count" },
    { "expert_intermediate_size", "expert_feed_forward_length" },
    { 0 },
};

static const struct hf_name gemma4_names[] = {
    { "model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", 0 },
    { "model.per_layer_model_projection.weight", "per_layer_model_proj.weight", 0 },
    { "model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight", 0 },
    HF_LAYER("post_attention_layernorm.weight", "post_attention_norm.weight"),
    HF_LAYER("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    HF_LAYER("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    HF_LAYER("per_layer_input_gate.weight", "inp_gate.weight"),
    HF_LAYER("per_layer_projection.weight", "proj.weight"),
    HF_LAYER("post_per_layer_input_norm.weight", "post_norm.weight"),
    HF_LAYER("layer_scalar", "layer_output_scale.weight"),
    HF_LAYER("router.proj.weight", "ffn_gate_inp.weight"),
    HF_LAYER("router.scale", "ffn_gate_inp.scale"),
    HF_LAYER("router.per_expert_scale", "ffn_down_exps.scale"),
    HF_LAYER("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    HF_LAYER("experts.down_proj", "ffn_down_exps.weight"),
    /* mlx-lm */
    HF_LAYER("experts.switch_glu.gate_proj.weight", "ffn_gate_exps.weight"),
    HF_LAYER("experts.switch_glu.up_proj.weight", "ffn_up_exps.weight"),
    HF_LAYER("experts.switch_glu.down_proj.weight", "ffn_down_exps.weight"),
    HF_LAYER("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    HF_LAYER("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
    HF_LAYER("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    { 0 },
};

static const struct hf_map gemma4_hf[] = {
    { .arch = "gemma4",
      .names = "Gemma4ForCausalLM Gemma4ForConditionalGeneration gemma4_text gemma4",
      .acts = "gelu_pytorch_tanh",
      .has_layer_types = true,
      .has_ropes = true,
      .tensors = gemma4_names,
      .keys = gemma4_keys,
      .more = gemma4_more },
    { 0 },
};

const struct model_family family_gemma4 = {
    .name = "gemma4",
    .archs = (const char *const[]){ "gemma4", NULL },
    .parse = gemma4_parse,
    .tensors = gemma4_tensors,
    .hf = gemma4_hf,
    .step = gemma4_step,
};
