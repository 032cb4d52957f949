/* export_family.c - config.json of the families whose keys say more than the tables can: Gemma 4, gpt-oss, hybrids, BERT. */
#include "model/export_int.h"

#include <string.h>

#define EXPORT_LAYERS_MAX 1024
#define EXPORT_DIMS_MAX   4096

/* Element i of ARCH.name, or the one number that it is for all. */
static int64_t export_of_layer(const struct export *x, const char *name, int64_t i,
                               int64_t fallback)
{
    const struct meta_value *v = export_meta(x, name);
    struct meta_value item;
    if (!v || v->type != META_TYPE_ARRAY)
        return export_int(x, name, fallback);
    if ((uint64_t)i >= v->array.n)
        return fallback;
    meta_array_at(v, (uint64_t)i, &item);
    return item.i;
}

struct export_pair {
    const char *path;
    int64_t v;
};

static enum err_code export_set_pairs(struct export *x, const struct export_pair *pairs, size_t n,
                                      struct err *err)
{
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < n && !code; i++)
        code = export_set_int(x, pairs[i].path, pairs[i].v, err);
    return code;
}

static int64_t export_layers(const struct export *x)
{
    int64_t n = export_int(x, "block_count", 0);
    return n < 0 ? 0 : n > EXPORT_LAYERS_MAX ? EXPORT_LAYERS_MAX : n;
}

/* --- Gemma 4 --- */

struct gemma4_sizes {
    int64_t n, n_shared, kv, kv_full, ff, ff_shared; /* layers; heads and widths of each kind */
    bool is_k_v;                                     /* values of full layers are their keys */
};

static bool gemma4_is_full(const struct export *x, int64_t i)
{
    return export_of_layer(x, "attention.sliding_window_pattern", i, (i + 1) % 6 != 0) == 0;
}

/* What the layers have, which config.json can say for each kind of layer alone. */
static enum err_code gemma4_sizes(const struct export *x, struct gemma4_sizes *s, struct err *err)
{
    *s = (struct gemma4_sizes){ .n = export_layers(x) };
    s->n_shared = export_int(x, "attention.shared_kv_layers", 0);
    for (int64_t i = 0; i < s->n; i++) {
        bool is_full = gemma4_is_full(x, i), is_own = i < s->n - s->n_shared;
        int64_t *kv = is_full ? &s->kv_full : &s->kv, *ff = is_own ? &s->ff : &s->ff_shared;
        int64_t kv_i = export_of_layer(x, "attention.head_count_kv", i, 1);
        int64_t ff_i = export_of_layer(x, "feed_forward_length", i, 1);
        bool lacks_v = !export_find(x, "blk.%d.attn_v.weight", i);
        if ((*kv && *kv != kv_i) || (*ff && *ff != ff_i) || (lacks_v && is_own && !is_full))
            return err_set(err, ERR_UNSUPPORTED,
                           "gemma4: layer %lld has other sizes than those of its kind before it, "
                           "which config.json cannot say",
                           (long long)i);
        *kv = kv_i;
        *ff = ff_i;
        s->is_k_v |= lacks_v && is_own;
    }
    if (!s->kv)
        s->kv = s->kv_full;
    if (!s->ff_shared)
        s->ff_shared = s->ff;
    if (!s->is_k_v && s->kv_full && s->kv_full != s->kv)
        return err_set(err, ERR_UNSUPPORTED,
                       "gemma4.attention.head_count_kv: %lld and %lld, which config.json can say "
                       "only where values are the keys",
                       (long long)s->kv, (long long)s->kv_full);
    if (s->ff_shared != s->ff && s->ff_shared != 2 * s->ff)
        return err_set(err, ERR_UNSUPPORTED,
                       "gemma4.feed_forward_length: %lld and %lld, which is not the double",
                       (long long)s->ff, (long long)s->ff_shared);
    return ERR_OK;
}

/* How much of a head turns: the pairs whose divisor is not huge. */
static enum err_code gemma4_part(const struct export *x, int64_t head, double *out, struct err *err)
{
    float divisors[EXPORT_DIMS_MAX / 2];
    const struct weights_tensor *t = weights_find(x->w, "rope_freqs.weight");
    int64_t n = 0;
    *out = 1;
    if (!t)
        return ERR_OK;
    if (t->n_dims != 1 || t->shape[0] > EXPORT_DIMS_MAX / 2 || 2 * t->shape[0] != head)
        return err_set(err, ERR_INVALID, "tensor %s: %lld numbers, want half a head of %lld",
                       t->name, (long long)t->shape[0], (long long)head);
    enum err_code code = weights_dequantize(t->type, t->data, t->shape[0], divisors, err);
    while (!code && n < t->shape[0] && divisors[n] == 1)
        n++;
    for (int64_t i = n; i < t->shape[0] && !code; i++)
        if (divisors[i] < 1e20f)
            code = err_set(err, ERR_UNSUPPORTED,
                           "tensor %s: number %lld is %g, neither 1 nor huge: config.json could "
                           "not say it",
                           t->name, (long long)i, (double)divisors[i]);
    *out = (double)n / (double)t->shape[0];
    return code;
}

static enum err_code gemma4_ropes(struct export *x, int64_t head, struct err *err)
{
    double part;
    enum err_code code = gemma4_part(x, head, &part, err);
    if (!code)
        code = export_set_str(x, "rope_parameters.full_attention.rope_type", "proportional", err);
    if (!code)
        code = export_set_float(x, "rope_parameters.full_attention.rope_theta",
                                export_float(x, "rope.freq_base", 1000000), err);
    if (!code)
        code =
            export_set_float(x, "rope_parameters.full_attention.partial_rotary_factor", part, err);
    if (!code)
        code = export_set_str(x, "rope_parameters.sliding_attention.rope_type", "default", err);
    return code ? code
                : export_set_float(x, "rope_parameters.sliding_attention.rope_theta",
                                   export_float(x, "rope.freq_base_swa", 10000), err);
}

static enum err_code gemma4_experts(struct export *x, struct err *err)
{
    const struct export_pair pairs[] = {
        { "num_experts", export_int(x, "expert_count", 0) },
        { "top_k_experts", export_int(x, "expert_used_count", 0) },
        { "moe_intermediate_size", export_int(x, "expert_feed_forward_length", 0) },
    };
    bool has = pairs[0].v > 0;
    enum err_code code = export_set_bool(x, "enable_moe_block", has, err);
    return code || !has ? code : export_set_pairs(x, pairs, ARRAY_LEN(pairs), err);
}

enum err_code export_gemma4(struct export *x, struct err *err)
{
    const struct weights_tensor *inputs = weights_find(x->w, "per_layer_token_embd.weight");
    struct gemma4_sizes s;
    int64_t full = export_int(x, "attention.key_length", 512);
    enum err_code code = gemma4_sizes(x, &s, err);
    const struct export_pair pairs[] = {
        { "head_dim", export_int(x, "attention.key_length_swa", full) },
        { "global_head_dim", full },
        { "num_key_value_heads", s.kv },
        { "intermediate_size", s.ff },
        { "num_kv_shared_layers", s.n_shared },
        { "hidden_size_per_layer_input", export_int(x, "embedding_length_per_layer_input", 0) },
    };
    if (!code)
        code = export_set_pairs(x, pairs, ARRAY_LEN(pairs), err);
    if (!code)
        code = export_set_bool(x, "use_double_wide_mlp", s.ff_shared != s.ff, err);
    if (!code)
        code = export_set_bool(x, "attention_k_eq_v", s.is_k_v, err);
    if (!code && s.is_k_v)
        code = export_set_int(x, "num_global_key_value_heads", s.kv_full, err);
    if (!code && inputs)
        code = export_set_int(x, "vocab_size_per_layer_input", inputs->shape[1], err);
    if (!code)
        code = gemma4_experts(x, err);
    if (!code)
        code = gemma4_ropes(x, full, err);
    return code ? code : export_windows(x, 0, 6, err);
}

/* --- gpt-oss --- */

static bool gpt_oss_is_mxfp4(const struct export *x)
{
    const struct weights_tensor *t = export_find(x, "blk.%d.ffn_down_exps.weight", 0);
    return t && t->type == DTYPE_MXFP4;
}

enum err_code export_gpt_oss(struct export *x, struct err *err)
{
    static const char *const plain[] = { "model.layers.*.self_attn", "model.layers.*.mlp.router",
                                         "model.embed_tokens", "lm_head" };
    enum err_code code = export_windows(x, 128, 2, err);
    if (!code)
        code = export_set_int(x, "num_local_experts", export_int(x, "expert_count", 0), err);
    if (!code)
        code = export_set_int(x, "intermediate_size",
                              export_int(x, "expert_feed_forward_length", 0), err);
    if (!code) /* the family's; GGUF has no key for it */
        code = export_set_float(x, "swiglu_limit", 7, err);
    if (code || !(x->flags & EXPORT_FLAG_MXFP4) || export_is_mlx(x) || !gpt_oss_is_mxfp4(x))
        return code;
    struct meta_str *names = arena_alloc(&x->arena, ARRAY_LEN(plain) * sizeof(*names));
    if (!names)
        return err_set(err, ERR_NOMEM, "config.json: no memory");
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        names[i] = (struct meta_str){ plain[i], strlen(plain[i]) };
    code = export_set_str(x, "quantization_config.quant_method", "mxfp4", err);
    return code ? code
                : export_set_strs(x, "quantization_config.modules_to_not_convert", names,
                                  ARRAY_LEN(plain), err);
}

/* --- hybrids --- */

/* Every interval-th layer has full attention where the file has no list. */
static enum err_code hybrid_layers(struct export *x, struct err *err)
{
    static const struct meta_str state = { "linear_attention", 16 },
                                 full = { "full_attention", 14 };
    int64_t n = export_layers(x), interval = export_int(x, "full_attention_interval", 4);
    n = export_trunk(x) < n ? export_trunk(x) : n;
    struct meta_str *types = arena_alloc(&x->arena, (size_t)(n + 1) * sizeof(*types));
    if (!types || interval < 1)
        return err_set(err, types ? ERR_INVALID : ERR_NOMEM, "%s.full_attention_interval: %lld",
                       x->arch, (long long)interval);
    int64_t first = n;
    for (int64_t i = 0; i < n; i++) {
        bool is_state =
            export_of_layer(x, "attention.recurrent_layers", i, (i + 1) % interval != 0) != 0;
        types[i] = is_state ? state : full;
        first = !is_state && i < first ? i : first;
    }
    enum err_code code = export_set_strs(x, "layer_types", types, n, err);
    return code ? code : export_set_int(x, "full_attention_interval", first + 1, err);
}

/* Both spellings: transformers reads the object, mlx-lm's Qwen3-Next the others (export_rope.c). */
static enum err_code hybrid_rope(struct export *x, struct err *err)
{
    int64_t head = export_int(x, "attention.key_length", 1);
    int64_t dims = export_int(x, "rope.dimension_count", head);
    enum err_code code = export_set_str(x, "rope_parameters.rope_type", "default", err);
    if (!code)
        code = export_set_float(x, "rope_parameters.rope_theta",
                                export_float(x, "rope.freq_base", 10000000), err);
    if (!code)
        code = export_set_float(x, "rope_parameters.partial_rotary_factor",
                                (double)dims / (double)(head > 0 ? head : 1), err);
    const struct meta_value *sections = export_meta(x, "rope.dimension_sections");
    if (code || !sections || sections->type != META_TYPE_ARRAY || sections->array.n < 3)
        return code;
    struct meta_value three = *sections; /* the fourth is of no use here */
    three.array.n = 3;
    return export_set(x, "rope_parameters.mrope_section", &three, err);
}

enum err_code export_hybrid(struct export *x, struct err *err)
{
    int64_t values = export_int(x, "ssm.time_step_rank", 1);
    const struct export_pair pairs[] = {
        { "linear_num_key_heads", export_int(x, "ssm.group_count", 1) },
        { "linear_num_value_heads", values },
        { "linear_key_head_dim", export_int(x, "ssm.state_size", 1) },
        { "linear_value_head_dim", export_int(x, "ssm.inner_size", 1) / (values > 0 ? values : 1) },
        { "linear_conv_kernel_dim", export_int(x, "ssm.conv_kernel", 4) },
    };
    enum err_code code = export_set_pairs(x, pairs, ARRAY_LEN(pairs), err);
    int64_t n_head = export_int(x, "block_count", 0) - export_trunk(x);
    if (!code && n_head > 0) /* its layers are not counted */
        code = export_set_int(x, "num_hidden_layers", export_trunk(x), err);
    if (!code && n_head > 0 && !export_is_mlx(x))
        code = export_set_int(x, "mtp_num_hidden_layers", n_head, err);
    if (!code)
        code = hybrid_layers(x, err);
    if (!code && export_int(x, "expert_count", 0) > 0) {
        code = export_sparse(x, err);
        if (!code)
            code = export_set_bool(x, "norm_topk_prob", true, err);
    }
    if (code || strcmp(x->arch, "qwen3next") == 0)
        return code;
    return hybrid_rope(x, err);
}

/* --- encoders --- */

/* What all encoders have. */
static enum err_code bert_common(struct export *x, struct err *err)
{
    const struct weights_tensor *types = weights_find(x->w, "token_types.weight");
    int64_t n = types && types->n_dims == 2 ? types->shape[1] : 1;
    enum err_code code = export_set_int(x, "type_vocab_size", n, err);
    return code ? code
                : export_set_float(x, "layer_norm_eps",
                                   export_float(x, "attention.layer_norm_epsilon", 1e-12), err);
}

enum err_code export_bert(struct export *x, struct err *err)
{
    const struct weights_tensor *positions = weights_find(x->w, "position_embd.weight");
    enum err_code code = bert_common(x, err);
    if (!code && positions)
        code = export_set_int(x, "max_position_embeddings", positions->shape[1], err);
    return code ? code : export_set_str(x, "position_embedding_type", "absolute", err);
}

enum err_code export_nomic(struct export *x, struct err *err)
{
    enum err_code code = bert_common(x, err);
    return code ? code
                : export_set_float(x, "rope_theta", export_float(x, "rope.freq_base", 1000), err);
}
