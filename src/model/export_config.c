/* export_config.c - config.json from GGUF's keys: the tables of hf.h read backwards, and what each family says that no table can. */
#include "model/export_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT_LAYERS_MAX 1024

/* --- values --- */

static bool export_has(const struct export *x, const char *path)
{
    for (int32_t i = 0; i < x->n_values; i++)
        if (strcmp(x->values[i].path, path) == 0)
            return true;
    return false;
}

enum err_code export_set(struct export *x, const char *path, const struct meta_value *v,
                         struct err *err)
{
    if (export_has(x, path))
        return ERR_OK; /* two names of GGUF's for one of config.json: the first stands */
    size_t n = (size_t)x->n_values + 1;
    x->values = mem_realloc(MEM_CAT_WEIGHTS, x->values, n * sizeof(*x->values));
    struct export_value *out = &x->values[x->n_values];
    *out = (struct export_value){ .path = arena_strndup(&x->arena, path, strlen(path)),
                                  .is_null = !v };
    if (!out->path)
        return err_set(err, ERR_NOMEM, "config.json: no memory for %s", path);
    if (v)
        out->v = *v;
    x->n_values++;
    return ERR_OK;
}

enum err_code export_set_null(struct export *x, const char *path, struct err *err)
{
    return export_set(x, path, NULL, err);
}

enum err_code export_set_int(struct export *x, const char *path, int64_t v, struct err *err)
{
    return export_set(x, path, &(struct meta_value){ .type = META_TYPE_I64, .i = v }, err);
}

static double export_shortest(double v)
{
    char text[32];
    double back = v;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        back = strtod(text, NULL);
        if ((float)back == (float)v)
            break;
    }
    return back;
}

enum err_code export_set_float(struct export *x, const char *path, double v, struct err *err)
{
    return export_set(x, path,
                      &(struct meta_value){ .type = META_TYPE_F64, .f = export_shortest(v) }, err);
}

enum err_code export_set_bool(struct export *x, const char *path, bool v, struct err *err)
{
    return export_set(x, path, &(struct meta_value){ .type = META_TYPE_BOOL, .u = v }, err);
}

enum err_code export_set_str(struct export *x, const char *path, const char *v, struct err *err)
{
    return export_set(x, path,
                      &(struct meta_value){ .type = META_TYPE_STRING, .s = { v, strlen(v) } }, err);
}

enum err_code export_set_strs(struct export *x, const char *path, const struct meta_str *strs,
                              int64_t n, struct err *err)
{
    struct meta_value v = { .type = META_TYPE_ARRAY };
    v.array.type = META_TYPE_STRING;
    v.array.n = (uint64_t)n;
    v.array.strs = strs;
    return export_set(x, path, &v, err);
}

enum err_code export_set_floats(struct export *x, const char *path, const float *v, int64_t n,
                                struct err *err)
{
    double *data = arena_alloc(&x->arena, (size_t)n * sizeof(*data));
    if (!data)
        return err_set(err, ERR_NOMEM, "config.json: no memory for %s", path);
    for (int64_t i = 0; i < n; i++)
        data[i] = export_shortest((double)v[i]);
    struct meta_value value = { .type = META_TYPE_ARRAY };
    value.array.type = META_TYPE_F64;
    value.array.n = (uint64_t)n;
    value.array.data = (const uint8_t *)data;
    return export_set(x, path, &value, err);
}

/* --- windows --- */

/* layer_types: the file's pattern, without one all but every period-th have the window. */
static enum err_code export_layer_types(struct export *x, int64_t period, struct err *err)
{
    static const struct meta_str window = { "sliding_attention", 17 },
                                 full = { "full_attention", 14 };
    const struct meta_value *pattern = export_meta(x, "attention.sliding_window_pattern");
    int64_t n = export_int(x, "block_count", 0);
    struct meta_value item;
    struct meta_str *types = arena_alloc(&x->arena, EXPORT_LAYERS_MAX * sizeof(*types));
    if (!types || n < 1 || n > EXPORT_LAYERS_MAX)
        return err_set(err, types ? ERR_INVALID : ERR_NOMEM, "%s.block_count: %lld", x->arch,
                       (long long)n);
    for (int64_t i = 0; i < n; i++) {
        bool is_window = (i + 1) % period != 0;
        if (pattern && pattern->type == META_TYPE_ARRAY && (uint64_t)i < pattern->array.n) {
            meta_array_at(pattern, (uint64_t)i, &item);
            is_window = item.u != 0;
        }
        types[i] = is_window ? window : full;
    }
    return export_set_strs(x, "layer_types", types, n, err);
}

static enum err_code export_window(struct export *x, struct err *err)
{
    int64_t window = export_int(x, "attention.sliding_window", 0);
    return window > 0 ? export_set_int(x, "sliding_window", window, err)
                      : export_set_null(x, "sliding_window", err);
}

enum err_code export_windows(struct export *x, int64_t fallback, int64_t period, struct err *err)
{
    int64_t window = export_int(x, "attention.sliding_window", fallback);
    enum err_code code = export_layer_types(x, window > 0 ? period : 1, err);
    return code || window == 0 ? code : export_set_int(x, "sliding_window", window, err);
}

/* --- families --- */

static double export_heads(const struct export *x)
{
    double heads = (double)export_int(x, "attention.head_count", 1);
    return heads > 0 ? heads : 1;
}

/* The size that queries are scaled by the root of: a head's, but for the largest model of each kind. */
static double export_query_size(const struct export *x, int64_t layers_27b)
{
    double by_width = (double)export_int(x, "embedding_length", 1) / export_heads(x);
    double scale = export_float(x, "attention.scale", 0);
    if (scale > 0) /* given as f32: the size is a whole number */
        return nearbyint(1 / (scale * scale));
    if (export_int(x, "block_count", 0) == layers_27b)
        return by_width;
    return (double)export_int(x, "attention.key_length", (int64_t)by_width);
}

static enum err_code export_query(struct export *x, int64_t layers_27b, struct err *err)
{
    double size = export_query_size(x, layers_27b);
    return size == nearbyint(size) /* transformers takes no 256.0 */
               ? export_set_int(x, "query_pre_attn_scalar", (int64_t)size, err)
               : export_set_float(x, "query_pre_attn_scalar", size, err);
}

static enum err_code export_gemma2(struct export *x, struct err *err)
{
    enum err_code code = export_windows(x, 4096, 2, err);
    if (!code)
        code = export_query(x, 46, err);
    if (!code)
        code = export_set_float(x, "attn_logit_softcapping",
                                export_float(x, "attn_logit_softcapping", 50), err);
    return code ? code
                : export_set_float(x, "final_logit_softcapping",
                                   export_float(x, "final_logit_softcapping", 30), err);
}

static enum err_code export_gemma3(struct export *x, struct err *err)
{
    enum err_code code = export_windows(x, 0, 6, err);
    if (!code)
        code = export_query(x, 62, err);
    return code ? code
                : export_set_float(x, "rope_local_base_freq",
                                   export_float(x, "rope.freq_base_swa", 10000), err);
}

static enum err_code export_minicpm(struct export *x, struct err *err)
{
    double n = (double)export_int(x, "block_count", 1),
           width = (double)export_int(x, "embedding_length", 1);
    double residual = export_float(x, "residual_scale", 1.4 / sqrt(n));
    enum err_code code =
        export_set_float(x, "scale_emb", export_float(x, "embedding_scale", 12), err);
    if (!code)
        code = export_set_float(x, "scale_depth", residual * sqrt(n), err);
    return code ? code
                : export_set_float(x, "dim_model_base",
                                   width / export_float(x, "logit_scale", width / 256), err);
}

static enum err_code export_granite(struct export *x, struct err *err)
{
    return export_set_bool(x, "mlp_bias", false, err);
}

static enum err_code export_olmo(struct export *x, struct err *err)
{
    return export_meta(x, "attention.sliding_window") ? export_windows(x, 0, 4, err) : ERR_OK;
}

static enum err_code export_starcoder2(struct export *x, struct err *err)
{
    enum err_code code = export_set_bool(x, "use_bias", true, err);
    if (!code)
        code = export_set_str(x, "norm_type", "layer_norm", err);
    return code ? code : export_window(x, err);
}

static enum err_code export_qwen2(struct export *x, struct err *err)
{
    return export_set_bool(x, "use_sliding_window", false, err);
}

/* Every layer has experts, which mlx-lm wants to be told. */
enum err_code export_sparse(struct export *x, struct err *err)
{
    struct meta_value none = { .type = META_TYPE_ARRAY };
    none.array.type = META_TYPE_I64;
    enum err_code code = export_set_int(x, "decoder_sparse_step", 1, err);
    return code ? code : export_set(x, "mlp_only_layers", &none, err);
}

/* GGUF's qwen3moe means it where the file is silent; config.json's default is the other way. */
static enum err_code export_qwen3moe(struct export *x, struct err *err)
{
    enum err_code code = export_sparse(x, err);
    return code || export_meta(x, "expert_weights_norm")
               ? code
               : export_set_bool(x, "norm_topk_prob", true, err);
}

static enum err_code export_embedding(struct export *x, struct err *err)
{
    enum err_code code = export_gemma3(x, err);
    return code ? code : export_set_bool(x, "use_bidirectional_attention", true, err);
}

static enum err_code export_qwen2moe(struct export *x, struct err *err)
{
    enum err_code code = export_set_bool(x, "use_sliding_window", false, err);
    return code ? code : export_sparse(x, err);
}

static const struct export_family export_families[] = {
    { "llama", "expert_count", "MixtralForCausalLM", "mixtral", "silu", export_window },
    { "llama", "attention.sliding_window", "MistralForCausalLM", "mistral", "silu", export_window },
    { "llama", NULL, "LlamaForCausalLM", "llama", "silu", NULL },
    { "qwen2", NULL, "Qwen2ForCausalLM", "qwen2", "silu", export_qwen2 },
    { "qwen3", NULL, "Qwen3ForCausalLM", "qwen3", "silu", NULL },
    { "qwen3moe", NULL, "Qwen3MoeForCausalLM", "qwen3_moe", "silu", export_qwen3moe },
    { "gemma", NULL, "GemmaForCausalLM", "gemma", "gelu_pytorch_tanh", NULL },
    { "gemma2", NULL, "Gemma2ForCausalLM", "gemma2", "gelu_pytorch_tanh", export_gemma2 },
    { "gemma3", NULL, "Gemma3ForCausalLM", "gemma3_text", "gelu_pytorch_tanh", export_gemma3 },
    { "phi3", NULL, "Phi3ForCausalLM", "phi3", "silu", export_window },
    { "olmo2", "attention.sliding_window", "Olmo3ForCausalLM", "olmo3", "silu", export_olmo },
    { "olmo2", NULL, "Olmo2ForCausalLM", "olmo2", "silu", NULL },
    { "glm4", NULL, "Glm4ForCausalLM", "glm4", "silu", NULL },
    { "granite", NULL, "GraniteForCausalLM", "granite", "silu", export_granite },
    { "smollm3", NULL, "SmolLM3ForCausalLM", "smollm3", "silu", NULL },
    { "minicpm", NULL, "MiniCPMForCausalLM", "minicpm", "silu", export_minicpm },
    { "starcoder2", NULL, "Starcoder2ForCausalLM", "starcoder2", "gelu_pytorch_tanh",
      export_starcoder2 },
    { "qwen2moe", NULL, "Qwen2MoeForCausalLM", "qwen2_moe", "silu", export_qwen2moe },
    { "qwen3next", NULL, "Qwen3NextForCausalLM", "qwen3_next", "silu", export_hybrid },
    { "qwen35", NULL, "Qwen3_5ForCausalLM", "qwen3_5_text", "silu", export_hybrid },
    { "qwen35moe", NULL, "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "silu", export_hybrid },
    { "gemma4", NULL, "Gemma4ForCausalLM", "gemma4_text", "gelu_pytorch_tanh", export_gemma4 },
    { "gpt-oss", NULL, "GptOssForCausalLM", "gpt_oss", "silu", export_gpt_oss },
    { "bert", NULL, "BertModel", "bert", "gelu", export_bert },
    { "nomic-bert", NULL, "NomicBertModel", "nomic_bert", "silu", export_nomic },
    { "gemma-embedding", NULL, "Gemma3TextModel", "gemma3_text", "gelu_pytorch_tanh",
      export_embedding },
};

const struct export_naming *export_naming_of(const struct export *x)
{
    static const struct export_naming names[] = {
        { "qwen35", "qwen3_5", "language_model.", false },
        { "qwen35moe", "qwen3_5_moe", "language_model.", false },
        { "bert", NULL, NULL, true },
        { "nomic-bert", NULL, NULL, true },
        { "gemma-embedding", NULL, NULL, true },
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(names[i].arch, x->arch) == 0)
            return &names[i];
    return NULL;
}

static const struct export_family *export_family_of(const struct export *x)
{
    for (size_t i = 0; i < ARRAY_LEN(export_families); i++) {
        const struct export_family *f = &export_families[i];
        if (strcmp(f->arch, x->arch) == 0 && (!f->variant || export_int(x, f->variant, 0) > 0))
            return f;
    }
    return NULL;
}

/* --- the whole --- */

static enum err_code export_keys(struct export *x, const struct hf_key *keys, struct err *err)
{
    enum err_code code = ERR_OK;
    for (; keys && keys->hf && !code; keys++) {
        const struct meta_value *v = export_meta(x, keys->gguf);
        if (!v || v->type == META_TYPE_STRING || export_has(x, keys->hf))
            continue;
        if (v->type ==
            META_TYPE_ARRAY) { /* one number for each layer: config.json has one for all */
            struct meta_value first, other;
            meta_array_at(v, 0, &first);
            for (uint64_t i = 1; i < v->array.n; i++) {
                meta_array_at(v, i, &other);
                if (other.u != first.u)
                    return err_set(err, ERR_UNSUPPORTED,
                                   "%s.%s: differs between layers, which config.json cannot say",
                                   x->arch, keys->gguf);
            }
        }
        if (v->type == META_TYPE_F32 || v->type == META_TYPE_F64)
            code = export_set_float(x, keys->hf, v->f, err);
        else if (v->type == META_TYPE_BOOL)
            code = export_set_bool(x, keys->hf, v->u != 0, err);
        else
            code = export_set_int(x, keys->hf, export_int(x, keys->gguf, 0), err);
    }
    return code;
}

static enum err_code export_common(struct export *x, const struct export_family *f, struct err *err)
{
    static const char *const ids[] = { "bos", "eos", "pad" };
    static const char *const gguf_ids[] = { "tokenizer.ggml.bos_token_id",
                                            "tokenizer.ggml.eos_token_id",
                                            "tokenizer.ggml.padding_token_id" };
    const struct weights_tensor *embed = weights_find(x->w, "token_embd.weight");
    struct meta_str *class = arena_alloc(&x->arena, sizeof(*class));
    char path[32];
    if (!class || !embed)
        return err_set(err, class ? ERR_INVALID : ERR_NOMEM, "tensor token_embd.weight: missing");
    const char *name =
        export_is_classifier(x) ? export_classifier_class(x, f->class, err) : f->class;
    if (!name)
        return ERR_NOMEM;
    *class = (struct meta_str){ name, strlen(name) };
    const struct export_naming *n = export_naming_of(x);
    const char *type = n && n->mlx_type && export_is_mlx(x) ? n->mlx_type : f->type;
    enum err_code code = export_set_strs(x, "architectures", class, 1, err);
    if (!code)
        code = export_set_str(x, "model_type", type, err);
    if (!code)
        code = export_set_str(x, "hidden_act", f->act, err);
    if (!code && strncmp(f->arch, "gemma", 5) == 0)
        code = export_set_str(x, "hidden_activation", f->act, err);
    if (!code)
        code = export_set_int(x, "vocab_size", embed->shape[1], err);
    if (!code)
        code = export_set_bool(x, "tie_word_embeddings", !weights_find(x->w, "output.weight"), err);
    if (!code)
        code = export_set_bool(x, "attention_bias", weights_find(x->w, "blk.0.attn_q.bias") != NULL,
                               err);
    for (size_t i = 0; i < ARRAY_LEN(ids) && !code; i++) {
        int64_t id;
        snprintf(path, sizeof(path), "%s_token_id", ids[i]);
        bool has =
            !weights_int_or(x->w, gguf_ids[i], 0, embed->shape[1] - 1, -1, &id, NULL) && id >= 0;
        if (has)
            code = export_set_int(x, path, id, err);
        else if (!n || !n->is_bare) /* of encoders transformers takes no null */
            code = export_set_null(x, path, err);
    }
    return code;
}

enum err_code export_config(struct export *x, struct err *err)
{
    const struct export_family *f = export_family_of(x);
    if (!f)
        return err_set(err, ERR_UNSUPPORTED,
                       "general.architecture: '%.64s': its config.json cannot be written yet",
                       x->arch);
    enum err_code code = export_common(x, f, err);
    if (!code && export_is_classifier(x))
        code = export_labels(x, err);
    if (!code && f->more)
        code = f->more(x, err);
    if (!code)
        code = export_keys(x, x->map->keys, err);
    if (!code)
        code = export_keys(x, hf_common_keys(), err);
    return code || x->map->has_ropes ? code : export_rope(x, err);
}
