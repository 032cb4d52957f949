/* hf_pooling.c - what a sentence-transformers directory says about making one direction of a text's states (modules.json). */
#include "model/hf.h"

#include <stdio.h>
#include <string.h>

#define POOLING_MODULES_MAX 16

/* A module's type is a Python class: sentence_transformers.models.Pooling, or of a later package. */
static const char *pooling_class(const char *type)
{
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

/* The modules are those that are known: a transformer, pooling, dense layers without an activation, and the norm, which every embedding
 * gets here. */
static enum err_code pooling_check_modules(struct hf *h, struct err *err)
{
    static const char *const known[] = { "Transformer", "Pooling", "Dense", "Normalize" };
    char key[64];
    enum err_code code = ERR_OK;
    for (int i = 0; i < POOLING_MODULES_MAX && !code; i++) {
        const char *type;
        bool is_known = false;
        snprintf(key, sizeof(key), "modules.list.%d.type", i);
        if (!weights_meta(h->w, key))
            break;
        code = weights_str(h->w, key, &type, err);
        for (size_t k = 0; k < ARRAY_LEN(known) && !code; k++)
            is_known = is_known || strcmp(pooling_class(type), known[k]) == 0;
        if (!code && !is_known)
            code = err_set(err, ERR_UNSUPPORTED,
                           "modules.json: module '%.64s' is not known: Transformer, Pooling, Dense "
                           "and Normalize are",
                           type);
    }
    return code;
}

/* Dense layers have neither bias nor activation. */
static enum err_code pooling_check_dense(struct hf *h, struct err *err)
{
    char key[64];
    enum err_code code = ERR_OK;
    for (int i = 0; i < POOLING_MODULES_MAX && !code; i++) {
        const char *act = "Identity";
        bool has_bias;
        snprintf(key, sizeof(key), "modules.dense.%d.activation_function", i);
        if (!weights_meta(h->w, key))
            break;
        code = weights_str(h->w, key, &act, err);
        snprintf(key, sizeof(key), "modules.dense.%d.bias", i);
        if (!code)
            code = weights_bool_or(h->w, key, false, &has_bias, err);
        if (!code && (has_bias || strcmp(pooling_class(act), "Identity") != 0))
            code = err_set(err, ERR_UNSUPPORTED,
                           "modules.json: a dense layer with %s is not supported",
                           has_bias ? "a bias" : "an activation");
    }
    return code;
}

enum err_code hf_pooling(struct hf *h, struct err *err)
{
    static const struct {
        const char *key, *mode;
        int64_t type; /* of GGUF's pooling_type */
    } kinds[] = { { "modules.pooling.pooling_mode_mean_tokens", "mean", 1 },
                  { "modules.pooling.pooling_mode_cls_token", "cls", 2 },
                  { "modules.pooling.pooling_mode_lasttoken", "lasttoken", 3 } };
    const char *mode = "";
    int64_t type = 0;
    enum err_code code = pooling_check_modules(h, err);
    if (!code)
        code = pooling_check_dense(h, err);
    if (!code && weights_meta(h->w, "modules.pooling.pooling_mode"))
        code = weights_str(h->w, "modules.pooling.pooling_mode", &mode, err);
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(kinds) && !code; i++) {
        bool is_on;
        code = weights_bool_or(h->w, kinds[i].key, strcmp(mode, kinds[i].mode) == 0, &is_on, err);
        if (!code && is_on) {
            type = kinds[i].type;
            n++;
        }
    }
    bool has_pooling = weights_meta(h->w, "modules.pooling.word_embedding_dimension") ||
                       weights_meta(h->w, "modules.pooling.embedding_dimension") || *mode || n > 0;
    if (!code && has_pooling && n != 1)
        code = err_set(err, ERR_UNSUPPORTED,
                       "modules.json: pooling that is not one of mean, cls and lasttoken alone");
    return code || type == 0 ? code : hf_set_int(h, "pooling_type", type, err);
}
