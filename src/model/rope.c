/* rope.c - rotary frequencies from the file's keys: plain, linear (Chen et al. 2023), yarn (Peng et al. 2023), longrope (Ding et
 * al. 2024), and the per-dimension divisors of Llama 3.1 that GGUF stores as a tensor. Host, double, rounded to f32 once.
 *
 * Longrope has two sets of divisors, for texts up to the original context and for longer ones. The published code changes the
 * set in mid-text, and with it every key computed before. Here an answer does not depend on how long the text gets, so a model
 * has one set: the long one if its context is longer than the original. */
#include "base/dmath.h"
#include "model/model_int.h"

#include <math.h>
#include <string.h>

#define ROPE_TWO_PI 6.283185307179586

struct rope_scaling {
    double factor; /* positions are divided by this; 1 = none */
    bool is_yarn, is_long;
    bool is_exact;     /* yarn: its borders are not rounded to pairs */
    double n_ctx_orig; /* yarn, longrope: context that the frequencies were trained for */
    double ext_factor; /* yarn: 1 = full mix, 0 = plain interpolation */
    double
        attn_factor; /* yarn: multiplies the published magnitude factor; longrope: is it, 0 = not told */
    double beta_fast,
        beta_slow; /* yarn: turns in the original context between which the mix runs */
};

static enum err_code rope_read_orig(const struct weights *w, const struct model *m,
                                    struct rope_scaling *s, struct err *err)
{
    char key[128];
    int64_t orig;
    enum err_code code =
        weights_int_or(w, model_key(m, "rope.scaling.original_context_length", key), 1,
                       (int64_t)1 << 40, m->n_ctx_train, &orig, err);
    s->n_ctx_orig = (double)orig;
    return code;
}

/* The magnitude factor is told, or the published one. */
static enum err_code rope_read_long(const struct weights *w, const struct model *m,
                                    struct rope_scaling *s, struct err *err)
{
    char key[128];
    s->is_long = true;
    s->factor = 1;
    enum err_code code = rope_read_orig(w, m, s, err);
    if (!code)
        code = weights_float_or(w, model_key(m, "rope.scaling.attn_factor", key), 0,
                                &s->attn_factor, err);
    double ratio = (double)m->n_ctx_train / s->n_ctx_orig;
    if (!code && s->attn_factor == 0)
        s->attn_factor = ratio > 1 && s->n_ctx_orig > 1
                             ? sqrt(1 + dmath_log(ratio) / dmath_log(s->n_ctx_orig))
                             : 1;
    return code;
}

static enum err_code rope_read_yarn(const struct weights *w, const struct model *m,
                                    struct rope_scaling *s, struct err *err)
{
    char key[128];
    const struct {
        const char *name;
        double *out;
    } floats[] = {
        { "rope.scaling.yarn_ext_factor", &s->ext_factor },
        { "rope.scaling.attn_factor", &s->attn_factor },
        { "rope.scaling.yarn_attn_factor", &s->attn_factor },
        { "rope.scaling.yarn_beta_fast", &s->beta_fast },
        { "rope.scaling.yarn_beta_slow", &s->beta_slow },
    };
    bool is_cut = true;
    enum err_code code = rope_read_orig(w, m, s, err);
    if (!code) /* only from config.json: GGUF has no such key */
        code =
            weights_bool_or(w, model_key(m, "rope.scaling.yarn_truncate", key), true, &is_cut, err);
    s->is_exact = !is_cut;
    for (size_t i = 0; i < ARRAY_LEN(floats) && !code; i++)
        code = weights_float_or(w, model_key(m, floats[i].name, key), *floats[i].out, floats[i].out,
                                err);
    if (!code && !(s->beta_fast > 0 && s->beta_slow > 0))
        code = err_set(err, ERR_INVALID, "%s.rope.scaling: yarn betas must be over 0", m->arch);
    return code;
}

static enum err_code rope_read_scaling(const struct weights *w, const struct model *m,
                                       struct rope_scaling *s, struct err *err)
{
    char key[128];
    const char *type = "linear"; /* old files have a factor and no type */
    double factor = 1;
    *s = (struct rope_scaling){
        .factor = 1, .ext_factor = 1, .attn_factor = 1, .beta_fast = 32, .beta_slow = 1
    };
    enum err_code code =
        weights_float_or(w, model_key(m, "rope.scale_linear", key), 1, &factor, err);
    if (!code)
        code = weights_float_or(w, model_key(m, "rope.scaling.factor", key), factor, &factor, err);
    if (!code && weights_meta(w, model_key(m, "rope.scaling.type", key)))
        code = weights_str(w, key, &type, err);
    if (code || strcmp(type, "none") == 0)
        return code;
    if (factor == 0)
        factor = 1;
    if (!(factor >= 1.0 / 1024 && factor <= 1048576))
        return err_set(err, ERR_INVALID, "%s.rope.scaling.factor: %g is not in [1/1024, 1048576]",
                       m->arch, factor);
    s->factor = factor;
    if (strcmp(type, "linear") == 0)
        return ERR_OK;
    if (strcmp(type, "longrope") == 0)
        return rope_read_long(w, m, s, err);
    if (strcmp(type, "yarn") != 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: '%s' is not one of none, linear, yarn, longrope",
                       key, type);
    s->is_yarn = true;
    return rope_read_yarn(w, m, s, err);
}

/* Index of the rotary pair that makes `turns` full turns over the original context. */
static double rope_yarn_pair(double turns, int n_dims, double base, double n_ctx)
{
    return n_dims * dmath_log(n_ctx / (turns * ROPE_TWO_PI)) / (2 * dmath_log(base));
}

static void rope_fill(struct rope *r, float *inv_freq, double base, const float *factors,
                      const struct rope_scaling *s)
{
    double low = 0, high = 0;
    if (s->is_yarn) {
        low = rope_yarn_pair(s->beta_fast, r->n_dims, base, s->n_ctx_orig);
        high = rope_yarn_pair(s->beta_slow, r->n_dims, base, s->n_ctx_orig);
        low = s->is_exact ? low : floor(low);
        high = s->is_exact ? high : ceil(high);
        low = low < 0 ? 0 : low;
        high = high > r->n_dims - 1 ? r->n_dims - 1 : high;
        r->scale = (float)(s->attn_factor * (s->factor > 1 ? 1 + 0.1 * dmath_log(s->factor) : 1));
    }
    if (s->is_long)
        r->scale = (float)s->attn_factor;
    for (int i = 0; i < r->n_dims / 2; i++) {
        double f = dmath_pow(base, -2.0 * i / r->n_dims);
        if (factors)
            f /= (double)factors[i];
        double slow = f / s->factor;
        if (s->is_yarn) {
            double width = high - low < 0.001 ? 0.001 : high - low;
            double ramp = (i - low) / width;
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            double mix = (1 - ramp) * s->ext_factor;
            slow = slow * (1 - mix) + f * mix;
        }
        inv_freq[i] = (float)slow;
    }
    r->inv_freq = inv_freq;
}

/* The file's divisors, or NULL in *out. The caller frees. */
static enum err_code rope_read_factors(const struct weights *w, const char *name, int n,
                                       float **out, struct err *err)
{
    const struct weights_tensor *t = weights_find(w, name);
    *out = NULL;
    if (!t)
        return ERR_OK;
    if (t->n_dims != 1 || t->shape[0] != n)
        return err_set(err, ERR_INVALID, "tensor %s: want [%d], file has [%lld]", name, n,
                       (long long)t->shape[0]);
    *out = mem_alloc(MEM_CAT_WEIGHTS, (size_t)n * sizeof(float));
    enum err_code code = weights_dequantize(t->type, t->data, n, *out, err);
    for (int i = 0; i < n && !code; i++)
        if (!((*out)[i] > 0 && isfinite((*out)[i])))
            code = err_set(err, ERR_INVALID, "tensor %s: element %d is %g, want > 0", name, i,
                           (double)(*out)[i]);
    return code;
}

/* Files of longrope models need not name the kind: the tensors do. */
static const char *rope_factors_name(const struct weights *w, const struct model *m,
                                     struct rope_scaling *s, struct err *err, enum err_code *code)
{
    *code = ERR_OK;
    if (!weights_find(w, "rope_factors_long.weight"))
        return "rope_freqs.weight";
    if (!s->is_long)
        *code = rope_read_long(w, m, s, err);
    return (double)m->n_ctx_train > s->n_ctx_orig ? "rope_factors_long.weight"
                                                  : "rope_factors_short.weight";
}

/* Angles must fit where they are rounded to whole turns: positions end below 2^28. */
static enum err_code rope_check(const struct model *m, const struct rope *r, struct err *err)
{
    for (int i = 0; i < r->n_dims / 2; i++)
        if (!(fabsf(r->inv_freq[i]) <= 1e6f))
            return err_set(err, ERR_INVALID,
                           "%s.rope: pair %d turns by %g a position; a divisor of frequencies or "
                           "the scaling is damaged",
                           m->arch, i, (double)r->inv_freq[i]);
    return ERR_OK;
}

enum err_code model_parse_rope(const struct weights *w, struct model *m,
                               const struct model_rope_spec *spec, struct err *err)
{
    char key[128];
    int64_t n_dims;
    double base;
    float *factors = NULL;
    struct rope_scaling scaling = { .factor = 1 };
    struct rope *r = &m->ropes[spec->rope_i];
    enum err_code code = weights_int_or(
        w, model_key(m, spec->dims_key ? spec->dims_key : "rope.dimension_count", key), 2,
        m->head_dim, m->head_dim, &n_dims, err);
    if (!code && n_dims % 2 != 0)
        code = err_set(err, ERR_INVALID, "%s: %lld is odd", key, (long long)n_dims);
    if (!code)
        code = weights_float_or(w, model_key(m, spec->base_key, key), spec->base, &base, err);
    if (!code && !(base > 1 && base < 1e12))
        code = err_set(err, ERR_INVALID, "%s: %g is not in (1, 1e12)", key, base);
    if (!code && spec->is_scaled)
        code = rope_read_scaling(w, m, &scaling, err);
    if (!code && spec->is_scaled) {
        const char *name = rope_factors_name(w, m, &scaling, err, &code);
        if (!code)
            code = rope_read_factors(w, name, (int)n_dims / 2, &factors, err);
    }
    if (!code) {
        *r = (struct rope){ .kind = spec->kind, .n_dims = (int)n_dims, .scale = 1 };
        m->inv_freq[spec->rope_i] = mem_alloc(MEM_CAT_WEIGHTS, (size_t)n_dims / 2 * sizeof(float));
        scaling.is_exact = scaling.is_exact || spec->is_yarn_exact;
        rope_fill(r, m->inv_freq[spec->rope_i], base, factors, &scaling);
        code = rope_check(m, r, err);
    }
    mem_free(MEM_CAT_WEIGHTS, factors);
    return code;
}
