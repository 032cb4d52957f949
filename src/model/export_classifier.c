/* export_classifier.c - models with a classifier's head (rerankers): GGUF's cls.* tensors in a directory. Encoders have one behind their
 * pooler, which RoBERTa's dense layer computes like; others a matrix alone. */
#include "model/export_int.h"

#include <stdio.h>
#include <string.h>

#define CLASSIFIER_LABELS_MAX 1024

bool export_is_classifier(const struct export *x)
{
    return weights_find(x->w, "cls.output.weight") != NULL;
}

static bool classifier_is_encoder(const struct export *x)
{
    return strcmp(x->arch, "bert") == 0;
}

enum err_code export_classifier(struct export *x, const struct weights_tensor *t, bool *is_done,
                                struct err *err)
{
    static const struct {
        const char *gguf, *encoder, *other;
    } names[] = { { "cls.output.weight", "classifier.weight", "score.weight" },
                  { "cls.output.bias", "classifier.bias", NULL },
                  { "cls.weight", "bert.pooler.dense.weight", NULL },
                  { "cls.bias", "bert.pooler.dense.bias", NULL } };
    struct recode *r;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i].gguf, t->name) != 0)
            continue;
        const char *name = classifier_is_encoder(x) ? names[i].encoder : names[i].other;
        if (!name)
            return export_unknown(x, t, err);
        *is_done = true;
        enum err_code code = export_add(x, t, name, &r, err);
        if (!code && i == 0 && r->n_dims == 1) /* one label */
            r->n_dims = 2;
        return code;
    }
    return ERR_OK;
}

const char *export_classifier_class(struct export *x, const char *class, struct err *err)
{
    char name[128];
    const char *tail = strstr(class, "ForCausalLM");
    if (!tail)
        tail = strstr(class, "Model");
    size_t n = tail ? (size_t)(tail - class) : strlen(class);
    int len = snprintf(name, sizeof(name), "%.*sForSequenceClassification", (int)n, class);
    char *out = arena_strndup(&x->arena, name, (size_t)len);
    if (!out)
        err_set(err, ERR_NOMEM, "config.json: no memory");
    return out;
}

/* id2label and label2id; a file that names none has numbers. */
enum err_code export_labels(struct export *x, struct err *err)
{
    const struct weights_tensor *t = weights_find(x->w, "cls.output.weight");
    const struct meta_value *v = export_meta(x, "classifier.output_labels");
    char label[96], path[128];
    int64_t n = t ? t->shape[1] : 0;
    enum err_code code = ERR_OK;
    bool has = v && v->type == META_TYPE_ARRAY && v->array.type == META_TYPE_STRING &&
               v->array.n == (uint64_t)n;
    if (n > CLASSIFIER_LABELS_MAX)
        return err_set(err, ERR_UNSUPPORTED, "tensor cls.output.weight: %lld labels, at most %d",
                       (long long)n, CLASSIFIER_LABELS_MAX);
    for (int64_t i = 0; i < n && !code; i++) {
        int len = snprintf(label, sizeof(label), "LABEL_%lld", (long long)i);
        const char *text = arena_strndup(&x->arena, label, (size_t)len);
        if (!text)
            return err_set(err, ERR_NOMEM, "config.json: no memory for labels");
        snprintf(path, sizeof(path), "id2label.%lld", (long long)i);
        code =
            has ? export_set(
                      x, path,
                      &(struct meta_value){ .type = META_TYPE_STRING, .s = v->array.strs[i] }, err)
                : export_set_str(x, path, text, err);
    }
    for (int64_t i = 0; i < n && !code && !has; i++) { /* names with dots would be paths */
        snprintf(path, sizeof(path), "label2id.LABEL_%lld", (long long)i);
        code = export_set_int(x, path, i, err);
    }
    return code;
}
