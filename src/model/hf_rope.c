/* hf_rope.c - the rotary part of config.json: rope_theta, rope_scaling (transformers 4) or rope_parameters (transformers 5, where
 * models with two bases have one object for each kind of layer). */
#include "base/dmath.h"
#include "model/hf.h"
#include "tensor/backend.h"

#include <string.h>

#define ROPE_TWO_PI     6.283185307179586
#define ROPE_DIMS_MAX   4096
#define ROPE_NOT_TURNED 1e30f /* the published converter's divisor */

/* The object's names, in the order in which they are looked for. */
#define ROPE_KEY(name)                                              \
    "rope_parameters.full_attention." name " rope_parameters." name \
    " rope_scaling.full_attention." name " rope_scaling." name

static enum err_code rope_int(struct hf *h, const char *paths, const char *key, struct err *err)
{
    int64_t v;
    enum err_code code = hf_int(h, paths, 1, (int64_t)1 << 40, 0, &v, err);
    return code || !v ? code : hf_set_int(h, key, v, err);
}

static enum err_code rope_float(struct hf *h, const char *paths, const char *key, struct err *err)
{
    double v;
    enum err_code code = hf_float(h, paths, 0, &v, err);
    return code || v == 0 ? code : hf_set_float(h, key, v, err);
}

static enum err_code rope_head_dim(struct hf *h, int64_t *out, struct err *err)
{
    int64_t width, heads;
    enum err_code code = hf_int(h, "hidden_size", 1, 1 << 20, 1, &width, err);
    if (!code)
        code = hf_int(h, "num_attention_heads", 1, 1 << 16, 1, &heads, err);
    if (!code)
        code = hf_int(h, "head_dim", 1, ROPE_DIMS_MAX, width / heads, out, err);
    return code;
}

/* How many dimensions of a head turn, and for which base. */
static enum err_code rope_base(struct hf *h, int64_t *n_dims, double *base, struct err *err)
{
    int64_t head;
    double part;
    enum err_code code = rope_head_dim(h, &head, err);
    if (!code)
        code = hf_float(h, ROPE_KEY("partial_rotary_factor") " partial_rotary_factor rotary_pct", 1,
                        &part, err);
    if (!code && !(part > 0 && part <= 1))
        code = err_set(err, ERR_INVALID, "config.json: partial_rotary_factor: %g is not in (0, 1]",
                       part);
    if (code)
        return code;
    *n_dims = (int64_t)((double)head * part);
    if (*n_dims < 2 || *n_dims > ROPE_DIMS_MAX)
        return err_set(err, ERR_INVALID, "config.json: %lld rotary dimensions, want 2 to %d",
                       (long long)*n_dims, ROPE_DIMS_MAX);
    code = hf_set_int(h, "rope.dimension_count", *n_dims, err);
    if (!code)
        code = hf_float(h, ROPE_KEY("rope_theta") " rope_theta", 10000, base, err);
    if (!code)
        code = hf_set_float(h, "rope.freq_base", *base, err);
    if (!code)
        code = rope_float(h, "rope_parameters.sliding_attention.rope_theta rope_local_base_freq",
                          "rope.freq_base_swa", err);
    return code;
}

/* Llama 3.1: slow frequencies are divided by the factor, fast ones are not, those between partly. GGUF has the divisors. */
static enum err_code rope_llama3(struct hf *h, int64_t n_dims, double base, struct err *err)
{
    double factor, low, high;
    float divisors[ROPE_DIMS_MAX / 2];
    int64_t orig;
    enum err_code code = hf_float(h, ROPE_KEY("factor"), 8, &factor, err);
    if (!code)
        code = hf_float(h, ROPE_KEY("low_freq_factor"), 1, &low, err);
    if (!code)
        code = hf_float(h, ROPE_KEY("high_freq_factor"), 4, &high, err);
    if (!code)
        code = hf_int(h, ROPE_KEY("original_max_position_embeddings"), 1, (int64_t)1 << 40, 8192,
                      &orig, err);
    if (!code && !(base > 1 && factor > 0 && low > 0 && high > low))
        code = err_set(err, ERR_INVALID,
                       "config.json: llama3 rope: base %g, factor %g, low_freq_factor %g, "
                       "high_freq_factor %g: want base over 1, positive factors, low under high",
                       base, factor, low, high);
    if (code)
        return code;
    for (int64_t i = 0; i < n_dims / 2; i++) {
        double length = ROPE_TWO_PI * dmath_pow(base, 2.0 * (double)i / (double)n_dims);
        double turns = (double)orig / length;
        double smooth = (turns - low) / (high - low);
        smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
        divisors[i] = (float)(1 / ((1 - smooth) / factor + smooth));
    }
    return hf_emit_vector(h, "rope_freqs.weight", divisors, n_dims / 2, err);
}

/* Published: magnitudes grow by attention_factor; without one by 0.1 ln(factor) + 1, or by the quotient of two such
 * (mscale, mscale_all_dim: DeepSeek). GGUF's key is what that is to be multiplied with. */
static enum err_code rope_yarn_magnitude(struct hf *h, double factor, struct err *err)
{
    double given, scale, scale_all;
    enum err_code code = hf_float(h, ROPE_KEY("attention_factor"), 0, &given, err);
    if (!code)
        code = hf_float(h, ROPE_KEY("mscale"), 0, &scale, err);
    if (!code)
        code = hf_float(h, ROPE_KEY("mscale_all_dim"), 0, &scale_all, err);
    if (code)
        return code;
    double log_factor = factor > 1 ? 0.1 * dmath_log(factor) : 0, plain = 1 + log_factor;
    if (given == 0 && scale != 0 && scale_all != 0)
        given = (1 + scale * log_factor) / (1 + scale_all * log_factor);
    return given == 0 ? ERR_OK : hf_set_float(h, "rope.scaling.attn_factor", given / plain, err);
}

static enum err_code rope_yarn(struct hf *h, struct err *err)
{
    double factor;
    bool is_cut;
    enum err_code code = hf_float(h, ROPE_KEY("factor"), 1, &factor, err);
    if (!code)
        code = rope_yarn_magnitude(h, factor, err);
    if (!code)
        code = rope_float(h, ROPE_KEY("beta_fast"), "rope.scaling.yarn_beta_fast", err);
    if (!code)
        code = rope_float(h, ROPE_KEY("beta_slow"), "rope.scaling.yarn_beta_slow", err);
    if (!code)
        code = rope_int(h, ROPE_KEY("original_max_position_embeddings"),
                        "rope.scaling.original_context_length", err);
    if (!code)
        code = hf_bool(h, ROPE_KEY("truncate"), true, &is_cut, err);
    if (!code && !is_cut)
        code = hf_set_bool(h, "rope.scaling.yarn_truncate", false, err);
    return code;
}

/* Divisors of short and of long sequences, each a list in config.json and a tensor in GGUF. */
static enum err_code rope_long_list(struct hf *h, const char *paths, const char *name,
                                    int64_t n_dims, struct err *err)
{
    float divisors[ROPE_DIMS_MAX / 2];
    struct meta_value one;
    const struct meta_value *v = NULL;
    char path[64];
    for (const char *p = paths; *p && !v;) {
        size_t n = strcspn(p, " ");
        BUG_ON(n >= sizeof(path));
        memcpy(path, p, n);
        path[n] = '\0';
        v = hf_config(h, path);
        p += n + strspn(p + n, " ");
    }
    if (!v || v->type != META_TYPE_ARRAY || v->array.n != (uint64_t)(n_dims / 2) ||
        (v->array.type != META_TYPE_F64 && v->array.type != META_TYPE_I64))
        return err_set(err, ERR_INVALID, "config.json: longrope: %s: want %lld numbers", paths,
                       (long long)(n_dims / 2));
    for (int64_t i = 0; i < n_dims / 2; i++) {
        meta_array_at(v, (uint64_t)i, &one);
        divisors[i] = (float)(one.type == META_TYPE_F64 ? one.f : (double)one.i);
    }
    return hf_emit_vector(h, name, divisors, n_dims / 2, err);
}

static enum err_code rope_longrope(struct hf *h, int64_t n_dims, struct err *err)
{
    int64_t orig, all;
    double given;
    enum err_code code =
        rope_long_list(h, ROPE_KEY("long_factor"), "rope_factors_long.weight", n_dims, err);
    if (!code)
        code =
            rope_long_list(h, ROPE_KEY("short_factor"), "rope_factors_short.weight", n_dims, err);
    if (!code)
        code = hf_int(h, "max_position_embeddings", 1, (int64_t)1 << 40, 4096, &all, err);
    if (!code)
        code = hf_int(
            h, "original_max_position_embeddings " ROPE_KEY("original_max_position_embeddings"), 2,
            (int64_t)1 << 40, all, &orig, err);
    if (!code)
        code = hf_float(h, ROPE_KEY("attention_factor"), 0, &given, err);
    if (code)
        return code;
    double factor = (double)all / (double)orig;
    if (given == 0 &&
        factor > 1) { /* sqrt(1 + ln factor / ln orig); a square root by its logarithm */
        double squared = 1 + dmath_log(factor) / dmath_log((double)orig);
        given = dmath_exp(0.5 * dmath_log(squared));
    }
    code = hf_set_int(h, "rope.scaling.original_context_length", orig, err);
    return code ? code : hf_set_float(h, "rope.scaling.attn_factor", given == 0 ? 1 : given, err);
}

static bool rope_is(const char *type, const char *name)
{
    return strcmp(type, name) == 0;
}

enum err_code hf_rope(struct hf *h, struct err *err)
{
    const char *type;
    double base = 0;
    int64_t n_dims = 0;
    enum err_code code = rope_base(h, &n_dims, &base, err);
    if (!code)
        code = hf_str(h, ROPE_KEY("rope_type") " " ROPE_KEY("type"), "default", &type, err);
    /* dynamic: up to max_position_embeddings its frequencies are those of none (the base grows by (factor * length / trained - factor +
     * 1)^(d / (d - 2)) with a longer text). Beyond, every key that is cached would have to be turned again: not followed, told where a
     * context is longer. mrope: text counts alike in all its sections. */
    if (!code && rope_is(type, "dynamic"))
        return hf_set_bool(h, "rope.is_dynamic", true, err);
    if (code || rope_is(type, "default") || rope_is(type, "mrope"))
        return code;
    if (rope_is(type, "llama3"))
        return rope_llama3(h, n_dims, base, err);
    if (rope_is(type, "longrope") || rope_is(type, "su")) {
        code = hf_set_str(h, "rope.scaling.type", "longrope", err);
        return code ? code : rope_longrope(h, n_dims, err);
    }
    if (!rope_is(type, "linear") && !rope_is(type, "yarn"))
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: rope type '%.64s' is not one of default, linear, dynamic, "
                       "mrope, yarn, llama3, longrope",
                       type);
    code = hf_set_str(h, "rope.scaling.type", type, err);
    if (!code)
        code = rope_float(h, ROPE_KEY("factor"), "rope.scaling.factor", err);
    return code || rope_is(type, "linear") ? code : rope_yarn(h, err);
}

enum err_code hf_rope_partial(struct hf *h, int64_t head_dim, struct err *err)
{
    float divisors[ROPE_DIMS_MAX / 2];
    double base, part;
    enum err_code code =
        hf_float(h, "rope_parameters.full_attention.rope_theta", 1000000, &base, err);
    if (!code)
        code =
            hf_float(h, "rope_parameters.full_attention.partial_rotary_factor", 0.25, &part, err);
    if (!code && (head_dim > BACKEND_HEAD_DIM_MAX || !(part > 0 && part <= 1)))
        code = err_set(err, ERR_INVALID,
                       "config.json: heads of %lld, of which %g turn: want at most %d, and a part "
                       "in (0, 1]",
                       (long long)head_dim, part, BACKEND_HEAD_DIM_MAX);
    if (code)
        return code;
    int64_t n_turned = (int64_t)((double)head_dim * part / 2);
    for (int64_t i = 0; i < head_dim / 2; i++)
        divisors[i] = i < n_turned ? 1 : ROPE_NOT_TURNED;
    code = hf_set_int(h, "rope.dimension_count", head_dim, err);
    if (!code)
        code = hf_set_float(h, "rope.freq_base", base, err);
    return code ? code : hf_emit_vector(h, "rope_freqs.weight", divisors, head_dim / 2, err);
}
