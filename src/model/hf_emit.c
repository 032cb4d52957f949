/* hf_emit.c - giving the model a directory's tensors: under other names, as views, small ones changed, matrices with a layout. */
#include "base/dmath.h"
#include "model/hf.h"

#include <stdio.h>
#include <string.h>

enum err_code hf_push(struct hf *h, const struct weights_tensor *t, const char *name,
                      struct err *err)
{
    if (h->n == h->cap) {
        h->cap = h->cap ? h->cap * 2 : 256;
        h->tensors = mem_realloc(MEM_CAT_WEIGHTS, h->tensors, (size_t)h->cap * sizeof(*h->tensors));
    }
    struct weights_tensor *out = &h->tensors[h->n];
    *out = *t;
    out->name = weights_strndup(h->w, name, strlen(name));
    if (!out->name)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory for its name", name);
    h->n++;
    return ERR_OK;
}

enum err_code hf_emit_vector(struct hf *h, const char *name, const float *v, int64_t n,
                             struct err *err)
{
    size_t bytes = (size_t)n * sizeof(*v);
    void *data = weights_alloc(h->w, bytes);
    if (!data)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory for %zu bytes", name, bytes);
    memcpy(data, v, bytes);
    struct weights_tensor t = { .type = DTYPE_F32, .n_dims = 1, .bytes = bytes, .data = data };
    t.shape[0] = n;
    t.shape[1] = t.shape[2] = t.shape[3] = 1;
    return hf_push(h, &t, name, err);
}

static int64_t hf_elems(const struct weights_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

static float hf_change(float x, enum hf_transform transform)
{
    switch (transform) {
    case HF_TRANSFORM_ADD_ONE:
        return x + 1;
    case HF_TRANSFORM_NEG_EXP:
        return (float)-dmath_exp((double)x);
    default:
        return x;
    }
}

/* A small tensor decoded, changed and kept as f32. */
static enum err_code hf_emit_changed(struct hf *h, const struct weights_tensor *t, const char *name,
                                     enum hf_transform transform, struct err *err)
{
    int64_t n = hf_elems(t);
    struct weights_tensor copy = *t;
    float *x = (float)n < 1e9f ? weights_alloc(h->w, (size_t)n * sizeof(*x)) : NULL;
    if (!x)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory for %lld numbers", t->name,
                       (long long)n);
    if (!dtype_info(t->type)->can_decode || dtype_info(t->type)->has_scales)
        return err_set(err, ERR_UNSUPPORTED, "tensor %s: type %s where a vector is wanted", t->name,
                       dtype_info(t->type)->name);
    enum err_code code = weights_dequantize(t->type, t->data, n, x, err);
    for (int64_t i = 0; i < n && !code; i++)
        x[i] = hf_change(x[i], transform);
    copy.type = DTYPE_F32;
    copy.data = (const uint8_t *)x;
    copy.bytes = (size_t)n * sizeof(*x);
    return code ? code : hf_push(h, &copy, name, err);
}

enum err_code hf_emit_rows(struct hf *h, const struct weights_tensor *t, const char *name,
                           const struct hf_rows *r, enum hf_transform transform, struct err *err)
{
    const int64_t all = r->all * r->width, n = r->n * r->width;
    BUG_ON(n > all);
    if (hf_elems(t) != all)
        return err_set(err, ERR_INVALID, "tensor %s: %lld numbers, want %lld", t->name,
                       (long long)hf_elems(t), (long long)all);
    int32_t at = h->n;
    enum err_code code = hf_emit_changed(h, t, name, transform, err);
    float *from = mem_try_array(MEM_CAT_WEIGHTS, (size_t)all, sizeof(*from));
    if (code || !from) {
        mem_free(MEM_CAT_WEIGHTS, from);
        return code ? code : err_set(err, ERR_NOMEM, "tensor %s: no memory", t->name);
    }
    struct weights_tensor *out = &h->tensors[at];
    float *to = (float *)(uintptr_t)out->data;
    memcpy(from, to, (size_t)all * sizeof(*from));
    for (int64_t i = 0; i < r->n; i++)
        memcpy(to + i * r->width, from + (r->rows ? r->rows[i] : i) * r->width,
               (size_t)r->width * sizeof(*from));
    mem_free(MEM_CAT_WEIGHTS, from);
    out->n_dims = r->cols ? 2 : 1;
    out->shape[0] = r->cols ? r->cols : n;
    out->shape[1] = r->cols ? n / r->cols : 1;
    out->shape[2] = out->shape[3] = 1;
    out->bytes = (size_t)n * sizeof(float);
    return ERR_OK;
}

int32_t *hf_indexes(struct hf *h, int64_t n, struct err *err)
{
    int32_t *out = weights_alloc(h->w, (size_t)n * sizeof(*out));
    if (!out)
        err_set(err, ERR_NOMEM, "no memory for %lld indexes", (long long)n);
    return out;
}

struct weights_layout *hf_layout(struct hf *h, const struct weights_layout *l, struct err *err)
{
    struct weights_layout *out = weights_alloc(h->w, sizeof(*out));
    if (out)
        *out = *l;
    else
        err_set(err, ERR_NOMEM, "no memory for a layout");
    return out;
}

static void hf_squeeze(struct weights_tensor *t)
{
    int n = 0;
    for (int i = 0; i < t->n_dims; i++)
        if (t->shape[i] != 1)
            t->shape[n++] = t->shape[i];
    t->n_dims = n ? n : 1;
    for (; n < WEIGHTS_DIMS_MAX; n++)
        t->shape[n] = 1;
}

enum err_code hf_emit(struct hf *h, const struct weights_tensor *t, const char *name,
                      enum hf_transform transform, struct err *err)
{
    struct weights_tensor copy = *t;
    switch (transform) {
    case HF_TRANSFORM_DROP:
        return ERR_OK;
    case HF_TRANSFORM_ADD_ONE:
    case HF_TRANSFORM_NEG_EXP:
        return hf_emit_changed(h, t, name, transform, err);
    case HF_TRANSFORM_SQUEEZE:
        hf_squeeze(&copy);
        break;
    case HF_TRANSFORM_NONE:
        break;
    }
    return hf_push(h, &copy, name, err);
}

bool hf_match(const char *pattern, const char *name, int64_t at[2], int *n)
{
    *n = 0;
    while (*pattern) {
        if (pattern[0] != '%' || pattern[1] != 'd') {
            if (*pattern++ != *name++)
                return false;
            continue;
        }
        size_t digits = strspn(name, "0123456789");
        if (digits == 0 || digits > 6 || (digits > 1 && name[0] == '0') || *n == 2)
            return false;
        int64_t v = 0;
        for (size_t i = 0; i < digits; i++)
            v = v * 10 + (name[i] - '0');
        at[(*n)++] = v;
        name += digits;
        pattern += 2;
    }
    return *name == '\0';
}

void hf_fill(const char *pattern, const int64_t at[2], int n, char out[HF_NAME_MAX])
{
    size_t used = 0;
    int i = 0;
    for (const char *p = pattern; *p && used < HF_NAME_MAX - 24; p++) {
        if (p[0] == '%' && p[1] == 'd' && i < n) {
            used += (size_t)snprintf(out + used, 24, "%lld", (long long)at[i++]);
            p++;
        } else {
            out[used++] = *p;
        }
    }
    out[used] = '\0';
}

enum err_code hf_emit_as(struct hf *h, const struct weights_tensor *t, const char *gguf,
                         const int64_t at[2], int n, enum hf_transform transform, struct err *err)
{
    char name[HF_NAME_MAX];
    hf_fill(gguf, at, n, name);
    return hf_emit(h, t, name, transform, err);
}

/* --- rotary pairs --- */

/* GGUF has the two of a pair side by side, of a head after another; the directory has first all first ones. */
static enum err_code hf_pair_rows(struct hf *h, const struct weights_tensor *t, bool is_key,
                                  int64_t n, int32_t **out, struct err *err)
{
    int64_t heads, kv;
    enum err_code code = hf_int(h, "num_attention_heads", 1, 1 << 16, 1, &heads, err);
    if (!code)
        code = hf_int(h, "num_key_value_heads", 1, 1 << 16, heads, &kv, err);
    if (code)
        return code;
    heads = is_key ? kv : heads;
    if (n % (2 * heads) != 0)
        return err_set(err, ERR_INVALID, "tensor %s: %lld rows are not %lld heads of pairs",
                       t->name, (long long)n, (long long)heads);
    int32_t *rows = *out = hf_indexes(h, n, err);
    int64_t size = n / heads;
    for (int64_t i = 0; rows && i < n; i++) {
        int64_t at = i % size;
        rows[i] = (int32_t)(i - at + at % 2 * (size / 2) + at / 2);
    }
    return rows ? ERR_OK : ERR_NOMEM;
}

enum err_code hf_take_permuted(struct hf *h, const struct weights_tensor *t, const char *name,
                               bool *is_done, struct err *err)
{
    static const struct {
        const char *hf, *gguf;
        bool is_key, is_bias;
    } names[] = {
        { "model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", false, false },
        { "model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", true, false },
        { "model.layers.%d.self_attn.q_proj.bias", "blk.%d.attn_q.bias", false, true },
        { "model.layers.%d.self_attn.k_proj.bias", "blk.%d.attn_k.bias", true, true },
    };
    int64_t at[2];
    int n, i = 0;
    while (i < (int)ARRAY_LEN(names) && !hf_match(names[i].hf, name, at, &n))
        i++;
    if (i == (int)ARRAY_LEN(names))
        return ERR_OK;
    *is_done = true;
    int32_t *rows = NULL;
    int64_t all = t->shape[names[i].is_bias ? 0 : 1];
    enum err_code code = hf_pair_rows(h, t, names[i].is_key, all, &rows, err);
    if (code)
        return code;
    if (names[i].is_bias) {
        char gguf[HF_NAME_MAX];
        hf_fill(names[i].gguf, at, n, gguf);
        struct hf_rows r = { .rows = rows, .all = all, .width = 1, .n = all };
        return hf_emit_rows(h, t, gguf, &r, HF_TRANSFORM_NONE, err);
    }
    struct weights_tensor copy = *t;
    copy.layout = hf_layout(h, &(struct weights_layout){ .n_rows = all, .rows = rows }, err);
    return copy.layout ? hf_emit_as(h, &copy, names[i].gguf, at, n, HF_TRANSFORM_NONE, err)
                       : ERR_NOMEM;
}
