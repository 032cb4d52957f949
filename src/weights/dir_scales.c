/* dir_scales.c - matrices of a directory whose scales are tensors of their own, shown as one tensor (struct scales).
 *
 *   MLX   X.weight U32 [out][in * bits / 32], X.scales and X.biases [out][in / group]; config.json: quantization has group_size and
 *         bits for all, and an object (or false: not quantised) for a module that differs
 *   fp8   X.weight F8_E4M3 or F8_E5M2 [out][in], X.weight_scale_inv or X.weight_scale: one, one a row, or one for each block of
 *         quantization_config.weight_block_size; X.input_scale is of activations, which stay as they are */
#include "weights/weights_edit.h"
#include "weights/weights_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SCALES_BLOCK 128 /* of fp8 where config.json is silent */

/* Module names are as in the files; tensors of X begin with it. */
static bool scales_stem(const struct weights_tensor *t, const char *tail, int *len)
{
    size_t n = strlen(t->name), k = strlen(tail);
    *len = (int)(n - k);
    return n > k && strcmp(t->name + n - k, tail) == 0;
}

static const struct weights_tensor *scales_find(const struct weights *w,
                                                const struct weights_tensor *t, int len,
                                                const char *tail)
{
    char name[WEIGHTS_NAME_MAX + 24];
    snprintf(name, sizeof(name), "%.*s%s", len, t->name, tail);
    return weights_find(w, name);
}

static bool scales_is_float(const struct weights_tensor *t)
{
    return t->type == DTYPE_F32 || t->type == DTYPE_F16 || t->type == DTYPE_BF16;
}

/* quantization.KEY of the module, else of all. */
static enum err_code scales_config(const struct weights *w, const struct weights_tensor *t, int len,
                                   const char *key, int64_t *out, struct err *err)
{
    char path[2 * WEIGHTS_NAME_MAX];
    snprintf(path, sizeof(path), "config.quantization.%.*s.%s", len, t->name, key);
    if (!weights_meta(w, path))
        snprintf(path, sizeof(path), "config.quantization.%s", key);
    return weights_int(w, path, 1, 1 << 16, out, err);
}

static enum err_code scales_join_mlx(const struct weights *w, int len, struct weights_tensor *t,
                                     struct err *err)
{
    int64_t bits, group;
    const struct weights_tensor *s = scales_find(w, t, len, ".scales");
    const struct weights_tensor *b = scales_find(w, t, len, ".biases");
    enum err_code code = scales_config(w, t, len, "bits", &bits, err);
    if (!code)
        code = scales_config(w, t, len, "group_size", &group, err);
    if (code)
        return code;
    enum dtype type = dtype_mlx((int)bits);
    if (type == DTYPE_COUNT || (group != 32 && group != 64 && group != 128))
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor '%s': %" PRId64 " bits in groups of %" PRId64
                       ": 2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128 are known",
                       t->name, bits, group);
    if (!b)
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor '%s': scales without biases: MLX's mode 'affine' alone is known",
                       t->name);
    int64_t in = s->shape[0] * group;
    bool fits = s->shape[0] < ((int64_t)1 << 40) && in % 32 == 0 && t->shape[0] == in / 32 * bits &&
                scales_is_float(s) && s->type == b->type;
    for (int i = 0; i < WEIGHTS_DIMS_MAX; i++)
        fits &= s->shape[i] == b->shape[i] && (i == 0 || s->shape[i] == t->shape[i]);
    if (!fits)
        return err_set(err, ERR_INVALID,
                       "tensor '%s': %" PRId64 " words a row and %" PRId64
                       " scales do not fit %" PRId64 " bits in groups of %" PRId64,
                       t->name, t->shape[0], s->shape[0], bits, group);
    t->type = type;
    t->shape[0] = in;
    t->scales = (struct scales){
        .scales = s->data, .biases = b->data, .type = s->type, .rows = 1, .cols = group
    };
    return ERR_OK;
}

/* The block that a scale of fp8 is for: by how many there are. */
static enum err_code scales_join_fp8(const struct weights *w, const struct weights_tensor *s,
                                     struct weights_tensor *t, struct err *err)
{
    static const char key[] = "config.quantization_config.weight_block_size";
    int64_t rows = SCALES_BLOCK, cols = SCALES_BLOCK, in = t->shape[0];
    int64_t out = t->shape[1] * t->shape[2] * t->shape[3];
    int64_t n = s->shape[0] * s->shape[1] * s->shape[2] * s->shape[3];
    enum err_code code = ERR_OK;
    if (weights_meta(w, key) && !(code = weights_array_int(w, key, 0, &rows, err)))
        code = weights_array_int(w, key, 1, &cols, err);
    if (!code && (rows < 1 || cols < 1 || rows > 1 << 20 || cols > 1 << 20))
        code = err_set(err, ERR_INVALID, "%s: %" PRId64 " and %" PRId64, key, rows, cols);
    if (code)
        return code;
    if (n == 1) {
        rows = out;
        cols = in;
    } else if (n == out) {
        rows = 1;
        cols = in;
    }
    bool is_stack = t->n_dims > 2 && t->shape[1] % rows != 0; /* blocks would cross matrices */
    if (!scales_is_float(s) || is_stack || n != ((out - 1) / rows + 1) * ((in - 1) / cols + 1))
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor '%s': %" PRId64 " scales of type %s for %" PRId64
                       " rows of %" PRId64,
                       t->name, n, dtype_info(s->type)->name, out, in);
    t->scales = (struct scales){ .scales = s->data, .type = s->type, .rows = rows, .cols = cols };
    return ERR_OK;
}

static bool scales_is_fp8(const struct weights_tensor *t)
{
    return t->type == DTYPE_F8_E4M3 || t->type == DTYPE_F8_E5M2;
}

/* Whether t is a part of another tensor, and so none of its own. */
static bool scales_is_part(const struct weights *w, const struct weights_tensor *t)
{
    static const struct {
        const char *tail;
        bool is_mlx;
    } tails[] = { { ".scales", true },
                  { ".biases", true },
                  { ".weight_scale_inv", false },
                  { ".weight_scale", false },
                  { ".input_scale", false } };
    int len;
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        if (!scales_stem(t, tails[i].tail, &len))
            continue;
        const struct weights_tensor *whole = scales_find(w, t, len, ".weight");
        return whole && (tails[i].is_mlx ? whole->type == DTYPE_U32 : scales_is_fp8(whole));
    }
    return false;
}

static enum err_code scales_join(const struct weights *w, struct weights_tensor *t, struct err *err)
{
    int len;
    const struct weights_tensor *s = NULL;
    bool is_matrix = scales_stem(t, ".weight", &len);
    if (is_matrix && t->type == DTYPE_U32 && scales_find(w, t, len, ".scales"))
        return scales_join_mlx(w, len, t, err);
    if (!scales_is_fp8(t))
        return ERR_OK;
    if (is_matrix)
        s = scales_find(w, t, len, ".weight_scale_inv");
    if (is_matrix && !s)
        s = scales_find(w, t, len, ".weight_scale");
    if (s)
        return scales_join_fp8(w, s, t, err);
    t->scales = (struct scales){ .rows = 1, .cols = t->shape[0] };
    return ERR_OK;
}

/* Quantised in a way that is neither: said by its name before the tensors' names confuse. */
static enum err_code scales_check_method(const struct weights *w, struct err *err)
{
    static const char *const known[] = { "fp8", "compressed-tensors", "mxfp4" };
    const char *method, *mode;
    if (!weights_str(w, "config.quantization.mode", &mode, NULL) && strcmp(mode, "affine") != 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: quantization: mode '%.64s' is not known: affine is", mode);
    if (weights_str(w, "config.quantization_config.quant_method", &method, NULL))
        return ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(method, known[i]) == 0)
            return ERR_OK;
    return err_set(
        err, ERR_UNSUPPORTED,
        "config.json: quant_method '%.64s' is not known: fetch the model unquantised, as "
        "GGUF or as MLX",
        method);
}

enum err_code dir_join_scales(struct weights *w, struct err *err)
{
    int32_t n = 0;
    enum err_code code = scales_check_method(w, err);
    struct weights_tensor *all =
        mem_try_array(MEM_CAT_WEIGHTS, (size_t)w->n_tensors + 1, sizeof(*all));
    if (!all)
        return err_set(err, ERR_NOMEM, "no memory for %" PRId32 " tensors", w->n_tensors);
    for (int32_t i = 0; i < w->n_tensors && !code; i++) {
        if (scales_is_part(w, &w->tensors[i]))
            continue;
        all[n] = w->tensors[i];
        code = scales_join(w, &all[n++], err);
    }
    if (!code && n < w->n_tensors)
        code = weights_set_tensors(w, all, n, err);
    else if (!code && n)
        memcpy(w->tensors, all, (size_t)n * sizeof(*all)); /* fp8 without scales */
    mem_free(MEM_CAT_WEIGHTS, all);
    return code;
}
