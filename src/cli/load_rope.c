#include "cli/load_rope.h"
#include "base/log.h"
#include "weights/weights_edit.h"

#include <stdio.h>
#include <string.h>

static const char *rope_key(const struct weights *w, const char *name, char out[128])
{
    const char *arch = "";
    if (weights_str(w, "general.architecture", &arch, NULL))
        arch = "";
    snprintf(out, 128, "%.60s.%s", arch, name);
    return out;
}

static enum err_code rope_set(struct weights *w, const char *name, double v, struct err *err)
{
    char key[128];
    return v == 0 ? ERR_OK : weights_set_float(w, rope_key(w, name, key), v, err);
}

/* The kind that holds with the flags. */
static const char *rope_kind(const struct weights *w, const struct load_rope *o)
{
    char key[128];
    const char *kind = "linear";
    if (o->scaling)
        return o->scaling;
    if (weights_meta(w, rope_key(w, "rope.scaling.type", key)) && !weights_str(w, key, &kind, NULL))
        return strcmp(kind, "none") == 0 ? "linear" : kind;
    return "linear";
}

enum err_code load_rope(struct weights *w, const struct load_rope *o, struct err *err)
{
    char key[128];
    const char *kind = rope_kind(w, o);
    bool is_yarn = strcmp(kind, "yarn") == 0;
    bool scales = o->scaling || o->scale != 0;
    const struct {
        const char *flag, *key;
        double value;
    } yarn[] = {
        { "ext-factor", "rope.scaling.yarn_ext_factor", o->ext_factor },
        { "attn-factor", "rope.scaling.yarn_attn_factor", o->attn_factor },
        { "beta-fast", "rope.scaling.yarn_beta_fast", o->beta_fast },
        { "beta-slow", "rope.scaling.yarn_beta_slow", o->beta_slow },
        { "orig-ctx", NULL, (double)o->orig_ctx },
    };
    if (o->scaling && !is_yarn && strcmp(kind, "none") != 0 && strcmp(kind, "linear") != 0)
        return err_set(err, ERR_INVALID, "--rope-scaling: '%s' is not one of none, linear, yarn",
                       kind);
    if (scales && weights_find(w, "rope_factors_long.weight"))
        return err_set(err, ERR_UNSUPPORTED,
                       "--rope-scaling, --rope-scale: a longrope model has divisors of its own");
    enum err_code code = rope_set(w, "rope.freq_base", o->base, err);
    if (!code && scales)
        code = weights_set_str(w, rope_key(w, "rope.scaling.type", key), kind, err);
    if (!code)
        code = rope_set(w, "rope.scaling.factor", o->scale, err);
    for (size_t i = 0; i < ARRAY_LEN(yarn) && !code; i++) {
        if (yarn[i].value != 0 && !is_yarn)
            return err_set(err, ERR_INVALID, "--yarn-%s: the scaling is %s, not yarn", yarn[i].flag,
                           kind);
        if (yarn[i].key)
            code = rope_set(w, yarn[i].key, yarn[i].value, err);
    }
    if (!code && o->orig_ctx)
        code = weights_set_int(w, rope_key(w, "rope.scaling.original_context_length", key),
                               o->orig_ctx, err);
    return code;
}

void load_rope_warn(const struct weights *w, const struct load_rope *o, int64_t n_ctx,
                    int64_t n_ctx_train)
{
    char key[128];
    bool is_dynamic = false;
    double reach = (double)n_ctx_train * (o->scale > 1 ? o->scale : 1);
    if ((double)n_ctx <= reach)
        return;
    if (!weights_bool_or(w, rope_key(w, "rope.is_dynamic", key), false, &is_dynamic, NULL) &&
        is_dynamic)
        log_warn(
            "load",
            "--ctx %lld: the model was trained for %lld tokens, and its rope scaling 'dynamic' "
            "is not followed beyond: frequencies would change with a text's length, and "
            "with them what is cached. --rope-scaling yarn --rope-scale X is one that stays",
            (long long)n_ctx, (long long)n_ctx_train);
    else
        log_warn("load",
                 "--ctx %lld: the model was trained for %lld tokens and answers badly beyond; "
                 "--rope-scaling yarn --rope-scale %.3g stretches its positions",
                 (long long)n_ctx, (long long)n_ctx_train, (double)n_ctx / (double)n_ctx_train);
}
