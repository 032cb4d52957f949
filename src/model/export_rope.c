/* export_rope.c - rotary keys and tensors of GGUF as config.json's rope_theta and rope_scaling; hf_rope.c is the other way. */
#include "base/dmath.h"
#include "model/export_int.h"

#include <math.h>
#include <string.h>

#define EXPORT_TWO_PI   6.283185307179586
#define EXPORT_DIMS_MAX 4096
#define EXPORT_LOW      1.0 /* Llama 3.1: low_freq_factor, high_freq_factor */
#define EXPORT_HIGH     4.0

/* Both spellings: transformers reads the first, mlx-lm in some families the second alone. */
static enum err_code export_rope_type(struct export *x, const char *type, struct err *err)
{
    enum err_code code = export_set_str(x, "rope_scaling.rope_type", type, err);
    return code ? code : export_set_str(x, "rope_scaling.type", type, err);
}

static int64_t export_head_dim(const struct export *x)
{
    int64_t heads = export_int(x, "attention.head_count", 1);
    return export_int(x, "attention.key_length",
                      export_int(x, "embedding_length", 0) / (heads > 0 ? heads : 1));
}

/* A tensor of divisors as f32; n is how many there must be. */
static enum err_code export_divisors(const struct export *x, const char *name, int64_t n,
                                     float *out, struct err *err)
{
    const struct weights_tensor *t = weights_find(x->w, name);
    if (!t || t->shape[0] != n || t->n_dims != 1 || n > EXPORT_DIMS_MAX / 2)
        return err_set(err, ERR_INVALID, "tensor %s: want %lld numbers", name, (long long)n);
    return weights_dequantize(t->type, t->data, n, out, err);
}

/* Whether the divisors are what Llama 3.1's rule gives for these numbers. */
static bool export_is_llama3(const float *divisors, int64_t n_dims, double base, double factor,
                             double orig)
{
    for (int64_t i = 0; i < n_dims / 2; i++) {
        double length = EXPORT_TWO_PI * dmath_pow(base, 2.0 * (double)i / (double)n_dims);
        double smooth = (orig / length - EXPORT_LOW) / (EXPORT_HIGH - EXPORT_LOW);
        smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
        double want = 1 / ((1 - smooth) / factor + smooth);
        if (fabs((double)divisors[i] - want) > 1e-4 * want)
            return false;
    }
    return true;
}

/* The rule has four numbers and GGUF only its result. The slowest pair is divided by the factor; the original length is a power of two,
 * looked for; the other two are those of every model that was published. */
static enum err_code export_llama3(struct export *x, int64_t n_dims, struct err *err)
{
    float divisors[EXPORT_DIMS_MAX / 2];
    double base = export_float(x, "rope.freq_base", 10000), factor = 1;
    int64_t orig = 8192;
    enum err_code code = export_divisors(x, "rope_freqs.weight", n_dims / 2, divisors, err);
    if (code)
        return code;
    for (int64_t i = 0; i < n_dims / 2; i++)
        factor = (double)divisors[i] > factor ? (double)divisors[i] : factor;
    for (int64_t n = 8;
         n <= 1 << 20 && !export_is_llama3(divisors, n_dims, base, factor, (double)orig); n *= 2)
        orig = n;
    if (!export_is_llama3(divisors, n_dims, base, factor, (double)orig))
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor rope_freqs.weight: not what Llama 3's rule gives for any original "
                       "length: config.json could not say it");
    code = export_rope_type(x, "llama3", err);
    if (!code)
        code = export_set_float(x, "rope_scaling.factor", factor, err);
    if (!code)
        code = export_set_float(x, "rope_scaling.low_freq_factor", EXPORT_LOW, err);
    if (!code)
        code = export_set_float(x, "rope_scaling.high_freq_factor", EXPORT_HIGH, err);
    return code ? code
                : export_set_int(x, "rope_scaling.original_max_position_embeddings", orig, err);
}

static enum err_code export_longrope(struct export *x, int64_t n_dims, struct err *err)
{
    float divisors[EXPORT_DIMS_MAX / 2];
    double scale = export_float(x, "rope.scaling.attn_factor", 0);
    int64_t orig = export_int(x, "rope.scaling.original_context_length", 0);
    enum err_code code = export_rope_type(x, "longrope", err);
    if (!code)
        code = export_divisors(x, "rope_factors_long.weight", n_dims / 2, divisors, err);
    if (!code)
        code = export_set_floats(x, "rope_scaling.long_factor", divisors, n_dims / 2, err);
    if (!code)
        code = export_divisors(x, "rope_factors_short.weight", n_dims / 2, divisors, err);
    if (!code)
        code = export_set_floats(x, "rope_scaling.short_factor", divisors, n_dims / 2, err);
    if (!code && scale > 0)
        code = export_set_float(x, "rope_scaling.attention_factor", scale, err);
    if (!code && orig > 0)
        code = export_set_int(x, "rope_scaling.original_max_position_embeddings", orig, err);
    if (!code && orig > 0)
        code = export_set_int(x, "original_max_position_embeddings", orig, err);
    return code;
}

static enum err_code export_yarn(struct export *x, double factor, struct err *err)
{
    static const struct {
        const char *gguf, *hf;
    } floats[] = { { "rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast" },
                   { "rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow" } };
    double scale = export_float(x, "rope.scaling.attn_factor",
                                export_float(x, "rope.scaling.yarn_attn_factor", 1));
    int64_t orig = export_int(x, "rope.scaling.original_context_length", 0);
    enum err_code code = export_rope_type(x, "yarn", err);
    if (!code)
        code = export_set_float(x, "rope_scaling.factor", factor, err);
    for (size_t i = 0; i < ARRAY_LEN(floats) && !code; i++)
        if (export_meta(x, floats[i].gguf))
            code = export_set_float(x, floats[i].hf, export_float(x, floats[i].gguf, 0), err);
    if (!code && scale != 1)
        code = export_set_float(x, "rope_scaling.attention_factor",
                                scale * (factor > 1 ? 1 + 0.1 * dmath_log(factor) : 1), err);
    if (!code && orig > 0)
        code = export_set_int(x, "rope_scaling.original_max_position_embeddings", orig, err);
    if (!code && strcmp(x->arch, "gpt-oss") == 0) /* GGUF has no key for it: the family's own way */
        code = export_set_bool(x, "rope_scaling.truncate", false, err);
    return code;
}

enum err_code export_rope(struct export *x, struct err *err)
{
    int64_t head = export_head_dim(x), dims = export_int(x, "rope.dimension_count", head);
    const struct meta_value *type = export_meta(x, "rope.scaling.type");
    double factor = export_float(x, "rope.scaling.factor", export_float(x, "rope.scale_linear", 1));
    enum err_code code = ERR_OK;
    if (dims < 2 || dims > EXPORT_DIMS_MAX || head < dims)
        return err_set(err, ERR_INVALID, "%s.rope.dimension_count: %lld of a head of %lld", x->arch,
                       (long long)dims, (long long)head);
    if (export_meta(x, "rope.freq_base"))
        code = export_set_float(x, "rope_theta", export_float(x, "rope.freq_base", 0), err);
    if (!code && dims != head)
        code = export_set_float(x, "partial_rotary_factor", (double)dims / (double)head, err);
    if (code || weights_find(x->w, "rope_freqs.weight"))
        return code ? code : export_llama3(x, dims, err);
    const char *name = type && type->type == META_TYPE_STRING ? type->s.data : "";
    size_t n = *name ? type->s.len : 0;
    /* the published converter leaves the type out */
    if (weights_find(x->w, "rope_factors_long.weight"))
        return export_longrope(x, dims, err);
    if (n == 4 && memcmp(name, "yarn", n) == 0)
        return export_yarn(x, factor, err);
    if ((n == 4 && memcmp(name, "none", n) == 0) || factor == 1 || factor == 0)
        return ERR_OK;
    code = export_rope_type(x, "linear", err);
    return code ? code : export_set_float(x, "rope_scaling.factor", factor, err);
}
