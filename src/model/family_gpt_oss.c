/* family_gpt_oss.c - gpt-oss (Agarwal et al. 2025): sinks in the attention, a sliding window in every other layer, experts with a clamped swiglu, biases
 * everywhere. GGUF calls the norm before the experts post_attention_norm. */
#include "model/model_int.h"

#include <stdio.h>
#include <string.h>

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

/* --- directories: gate and up in every other row, matrices turned, or MXFP4 with codes and exponents apart --- */

static enum err_code gpt_oss_more(struct hf *h, struct err *err)
{
    return hf_windows(h, 2, err);
}

/* Rows first, first + step, ... */
static int32_t *gpt_oss_rows(struct hf *h, int64_t first, int64_t step, int64_t n, struct err *err)
{
    int32_t *rows = hf_indexes(h, n, err);
    for (int64_t i = 0; rows && i < n; i++)
        rows[i] = (int32_t)(first + i * step);
    return rows;
}

/* The biases of both parts in one: [E][X (gate up)] */
static enum err_code gpt_oss_bias(struct hf *h, const struct weights_tensor *t, int64_t layer_i,
                                  struct err *err)
{
    static const char *const names[] = { "gate", "up" };
    char name[64];
    enum err_code code = ERR_OK;
    int64_t n = t->shape[0] / 2 * t->shape[1];
    for (int i = 0; i < 2 && !code; i++) {
        int32_t *rows = gpt_oss_rows(h, i, 2, n, err);
        snprintf(name, sizeof(name), "blk.%lld.ffn_%s_exps.bias", (long long)layer_i, names[i]);
        struct hf_rows r = {
            .rows = rows, .all = 2 * n, .width = 1, .n = n, .cols = t->shape[0] / 2
        };
        code = rows ? hf_emit_rows(h, t, name, &r, HF_TRANSFORM_NONE, err) : ERR_NOMEM;
    }
    return code;
}

/* t as a stack of [n_rows][cols] matrices whose rows are those of `step` matrices in turn: one tensor for each of these. */
static enum err_code gpt_oss_stack(struct hf *h, const struct weights_tensor *t,
                                   const struct weights_layout *l, int64_t cols, int step,
                                   const char *const *names, const int64_t at[2], struct err *err)
{
    enum err_code code = ERR_OK;
    for (int i = 0; i < step && !code; i++) {
        struct weights_tensor copy = *t;
        struct weights_layout one = *l;
        copy.n_dims = 3;
        copy.shape[2] = l->is_apart ? t->shape[3] : t->shape[2];
        copy.shape[3] = 1;
        copy.shape[1] = l->n_rows / step;
        copy.shape[0] = cols;
        if (step > 1 && !(one.rows = gpt_oss_rows(h, i, step, copy.shape[1], err)))
            return ERR_NOMEM;
        copy.layout = hf_layout(h, &one, err);
        code =
            copy.layout ? hf_emit_as(h, &copy, names[i], at, 1, HF_TRANSFORM_NONE, err) : ERR_NOMEM;
    }
    return code;
}

/* MXFP4: codes [E][rows][blocks][16] and exponents [E][rows][blocks]. */
static enum err_code gpt_oss_apart(struct hf *h, const struct weights_tensor *t, int step,
                                   const char *const *names, const int64_t at[2], struct err *err)
{
    char name[WEIGHTS_NAME_MAX + 1];
    int stem = (int)(strlen(t->name) - strlen("blocks"));
    snprintf(name, sizeof(name), "%.*sscales", stem, t->name);
    const struct weights_tensor *e = weights_find(h->w, name);
    if (!e || e->type != DTYPE_U8 || t->type != DTYPE_U8 || t->shape[0] != 16 ||
        e->shape[0] != t->shape[1] || e->shape[1] != t->shape[2] || e->shape[2] != t->shape[3] ||
        t->shape[2] % step != 0)
        return err_set(err, ERR_INVALID,
                       "tensor %s: want bytes [E][rows][blocks][16], and %s with [E][rows][blocks]",
                       t->name, name);
    struct weights_tensor copy = *t;
    int64_t cols = t->shape[1] * 32;
    copy.type = DTYPE_MXFP4;
    copy.scales = (struct scales){ .scales = e->data, .type = DTYPE_U8, .rows = 1, .cols = 32 };
    return gpt_oss_stack(h, &copy,
                         &(struct weights_layout){ .n_rows = t->shape[2], .is_apart = true }, cols,
                         step, names, at, err);
}

/* [E][cols][rows] */
static enum err_code gpt_oss_turned(struct hf *h, const struct weights_tensor *t, int step,
                                    const char *const *names, const int64_t at[2], struct err *err)
{
    if (t->n_dims != 3 || t->shape[0] % step != 0 ||
        (t->type != DTYPE_BF16 && t->type != DTYPE_F16 && t->type != DTYPE_F32))
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor %s: want [E][columns][rows] of bf16, f16 or f32, or MXFP4 blocks",
                       t->name);
    return gpt_oss_stack(h, t, &(struct weights_layout){ .n_rows = t->shape[0], .is_turned = true },
                         t->shape[1], step, names, at, err);
}

static enum err_code gpt_oss_take(struct hf *h, const struct weights_tensor *t, const char *name,
                                  bool *is_done, struct err *err)
{
    static const char *const both[] = { "blk.%d.ffn_gate_exps.weight",
                                        "blk.%d.ffn_up_exps.weight" };
    static const char *const down[] = { "blk.%d.ffn_down_exps.weight" };
#define GPT_OSS(rest) "model.layers.%d.mlp.experts." rest
    int64_t at[2];
    int n;
    *is_done = true;
    if (hf_match(GPT_OSS("gate_up_proj_bias"), name, at, &n))
        return gpt_oss_bias(h, t, at[0], err);
    if (hf_match(GPT_OSS("gate_up_proj_blocks"), name, at, &n))
        return gpt_oss_apart(h, t, 2, both, at, err);
    if (hf_match(GPT_OSS("down_proj_blocks"), name, at, &n))
        return gpt_oss_apart(h, t, 1, down, at, err);
    if (hf_match(GPT_OSS("gate_up_proj"), name, at, &n))
        return gpt_oss_turned(h, t, 2, both, at, err);
    if (hf_match(GPT_OSS("down_proj"), name, at, &n))
        return gpt_oss_turned(h, t, 1, down, at, err);
#undef GPT_OSS
    *is_done = false;
    return ERR_OK;
}

static const struct hf_name gpt_oss_names[] = {
    HF_LAYER("post_attention_layernorm.weight", "post_attention_norm.weight"),
    HF_LAYER("self_attn.sinks", "attn_sinks.weight"),
    HF_LAYER("mlp.router.weight", "ffn_gate_inp.weight"),
    HF_LAYER("mlp.router.bias", "ffn_gate_inp.bias"),
    HF_LAYER("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    /* mlx-lm */
    HF_LAYER("mlp.experts.gate_proj.weight", "ffn_gate_exps.weight"),
    HF_LAYER("mlp.experts.up_proj.weight", "ffn_up_exps.weight"),
    HF_LAYER("mlp.experts.down_proj.weight", "ffn_down_exps.weight"),
    HF_LAYER("mlp.experts.gate_proj.bias", "ffn_gate_exps.bias"),
    HF_LAYER("mlp.experts.up_proj.bias", "ffn_up_exps.bias"),
    HF_LAYER("mlp.experts.down_proj.bias", "ffn_down_exps.bias"),
    /* taken with their blocks */
    HF_LAYER_AS("mlp.experts.gate_up_proj_scales", "", HF_TRANSFORM_DROP),
    HF_LAYER_AS("mlp.experts.down_proj_scales", "", HF_TRANSFORM_DROP),
    { 0 },
};

static const struct hf_key gpt_oss_keys[] = {
    { "intermediate_size", "expert_feed_forward_length" },
    { 0 },
};

static const struct hf_map gpt_oss_hf[] = {
    {
        .arch = "gpt-oss",
        .names = "GptOssForCausalLM gpt_oss",
        .has_layer_types = true,
        .tensors = gpt_oss_names,
        .keys = gpt_oss_keys,
        .more = gpt_oss_more,
        .take = gpt_oss_take,
    },
    { 0 },
};

const struct model_family family_gpt_oss = {
    .name = "gpt_oss",
    .archs = (const char *const[]){ "gpt-oss", NULL },
    .parse = gpt_oss_parse,
    .tensors = gpt_oss_tensors,
    .hf = gpt_oss_hf,
    .step = block_step_pre_norm,
};
