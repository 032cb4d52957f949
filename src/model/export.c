/* export.c - tensors' names and rows, in both directions. */
#include "model/export.h"
#include "base/log.h"
#include "model/export_int.h"
#include "model/hf_nextn.h"
#include "model/model_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EXPORT_ARENA ((size_t)1 << 30)
#define EXPORT_KEY   256

static enum err_code export_init(struct export *x, const struct weights *w, struct err *err)
{
    *x = (struct export){ .w = w };
    arena_init(&x->arena, MEM_CAT_WEIGHTS, EXPORT_ARENA);
    enum err_code code = weights_str(w, "general.architecture", &x->arch, err);
    const struct model_family *f;
    for (int i = 0; !code && !x->map && (f = model_family_at(i)) != NULL; i++)
        for (const struct hf_map *m = f->hf; m && m->arch && !x->map; m++)
            if (strcmp(m->arch, x->arch) == 0)
                x->map = m;
    if (!code && !x->map)
        code = err_set(err, ERR_UNSUPPORTED,
                       "general.architecture: '%.64s' has no table of Hugging Face's names: it "
                       "cannot be converted from or to a directory",
                       x->arch);
    return code;
}

void export_release(struct export *x)
{
    mem_free(MEM_CAT_WEIGHTS, x->tensors);
    mem_free(MEM_CAT_WEIGHTS, x->values);
    arena_release(&x->arena);
    *x = (struct export){ .w = NULL };
}

const struct meta_value *export_meta(const struct export *x, const char *name)
{
    char key[EXPORT_KEY];
    snprintf(key, sizeof(key), "%s.%s", x->arch, name);
    return weights_meta(x->w, key);
}

int64_t export_int(const struct export *x, const char *name, int64_t fallback)
{
    char key[EXPORT_KEY];
    int64_t v;
    snprintf(key, sizeof(key), "%s.%s", x->arch, name);
    return weights_array_int(x->w, key, 0, &v, NULL) ? fallback : v;
}

double export_float(const struct export *x, const char *name, double fallback)
{
    char key[EXPORT_KEY];
    double v;
    snprintf(key, sizeof(key), "%s.%s", x->arch, name);
    return weights_float_or(x->w, key, fallback, &v, NULL) ? fallback : v;
}

bool export_is_mlx(const struct export *x)
{
    return x->flags & EXPORT_FLAG_MLX;
}

int64_t export_trunk(const struct export *x)
{
    int64_t n = export_int(x, "block_count", 0), head = export_int(x, "nextn_predict_layers", 0);
    return head > 0 && head < n ? n - head : n;
}

enum err_code export_add(struct export *x, const struct weights_tensor *src, const char *name,
                         struct recode **out, struct err *err)
{
    if (x->n_tensors == x->cap) {
        x->cap = x->cap ? 2 * x->cap : 256;
        x->tensors = mem_realloc(MEM_CAT_WEIGHTS, x->tensors, (size_t)x->cap * sizeof(*x->tensors));
    }
    struct recode *r = &x->tensors[x->n_tensors];
    const struct weights_tensor **parts = arena_alloc(&x->arena, sizeof(const void *));
    *r = (struct recode){ .name = arena_strndup(&x->arena, name, strlen(name)),
                          .parts = parts,
                          .n_parts = 1,
                          .type = src->type,
                          .n_dims = src->n_dims };
    if (!parts || !r->name)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory", name);
    parts[0] = src;
    memcpy(r->shape, src->shape, sizeof(r->shape));
    x->n_tensors++;
    *out = r;
    return ERR_OK;
}

enum err_code export_add_part(struct export *x, struct recode *r, const struct weights_tensor *src,
                              struct err *err)
{
    const struct weights_tensor **parts =
        arena_alloc(&x->arena, (size_t)(r->n_parts + 1) * sizeof(*parts));
    if (!parts)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory", r->name);
    memcpy(parts, r->parts, (size_t)r->n_parts * sizeof(*parts));
    parts[r->n_parts++] = src;
    r->parts = parts;
    return ERR_OK;
}

int32_t *export_indexes(struct export *x, int64_t n, struct err *err)
{
    int32_t *out = arena_alloc(&x->arena, (size_t)n * sizeof(*out));
    if (!out)
        err_set(err, ERR_NOMEM, "no memory for %lld indexes", (long long)n);
    return out;
}

void export_fill(const char *pattern, int64_t layer, char out[HF_NAME_MAX])
{
    hf_fill(pattern, (const int64_t[2]){ layer, 0 }, 1, out);
}

const struct weights_tensor *export_find(const struct export *x, const char *pattern, int64_t layer)
{
    char name[HF_NAME_MAX];
    export_fill(pattern, layer, name);
    return weights_find(x->w, name);
}

/* Rows of q and k, weight or bias, where the family's directories have the two of a rotary pair half a head apart. */
static enum err_code export_order(struct export *x, const char *gguf, struct recode *r,
                                  struct err *err)
{
    static const char *const names[] = { "blk.%d.attn_q.weight", "blk.%d.attn_q.bias",
                                         "blk.%d.attn_k.weight", "blk.%d.attn_k.bias" };
    int64_t at[2];
    int n, i = 0;
    while (i < (int)ARRAY_LEN(names) && !hf_match(names[i], gguf, at, &n))
        i++;
    if (!x->map->is_permuted || i == (int)ARRAY_LEN(names))
        return ERR_OK;
    int64_t heads = export_int(x, "attention.head_count", 1);
    heads = i < 2 ? heads : export_int(x, "attention.head_count_kv", heads);
    r->cols = r->n_dims == 1;
    int64_t rows = r->cols ? r->shape[0] : r->shape[1];
    if (heads < 1 || rows % (2 * heads) != 0)
        return err_set(err, ERR_INVALID, "tensor %s: %lld rows are not %lld heads of pairs", gguf,
                       (long long)rows, (long long)heads);
    const int64_t size = rows / heads;
    int32_t *from = export_indexes(x, size, err);
    for (int64_t k = 0; from && k < size; k++)
        from[k] = (int32_t)(k % (size / 2) * 2 + k / (size / 2));
    r->groups = heads;
    r->rows = from;
    return from ? ERR_OK : ERR_NOMEM;
}

/* --- to GGUF --- */

enum err_code export_stack(struct export *x, const struct weights_tensor *t, int64_t layer,
                           const char *single, const char *name, struct err *err)
{
    char part[HF_NAME_MAX];
    struct recode *r;
    int64_t n = export_int(x, "expert_count", 0), id[2] = { layer, 0 };
    if (n < 1 || n > 1 << 16 || t->n_dims != 2)
        return err_set(err, ERR_INVALID, "tensor %s: an expert of a model with %lld", t->name,
                       (long long)n);
    enum err_code code = export_add(x, t, name, &r, err);
    const struct weights_tensor **parts =
        code ? NULL : arena_alloc(&x->arena, (size_t)n * sizeof(*parts));
    if (!parts)
        return code ? code : err_set(err, ERR_NOMEM, "tensor %s: no memory", t->name);
    for (; id[1] < n; id[1]++) {
        hf_fill(single, id, 2, part);
        parts[id[1]] = weights_find(x->w, part);
        if (!parts[id[1]])
            return err_set(err, ERR_INVALID, "tensor %s: missing", part);
    }
    r->parts = parts;
    r->n_parts = (int)n;
    r->n_dims = 3;
    r->shape[2] = n;
    return ERR_OK;
}

static enum err_code export_gguf_tensor(struct export *x, const struct weights_tensor *t,
                                        struct err *err)
{
    static const char *const stacks[][2] = {
        { "blk.%d.ffn_gate.%d.weight", "blk.%d.ffn_gate_exps.weight" },
        { "blk.%d.ffn_up.%d.weight", "blk.%d.ffn_up_exps.weight" },
        { "blk.%d.ffn_down.%d.weight", "blk.%d.ffn_down_exps.weight" },
    };
    char name[HF_NAME_MAX];
    int64_t at[2];
    int n;
    struct recode *r;
    for (size_t i = 0; i < ARRAY_LEN(stacks); i++) {
        if (!hf_match(stacks[i][0], t->name, at, &n))
            continue;
        hf_fill(stacks[i][1], at, 1, name);
        return at[1] ? ERR_OK : export_stack(x, t, at[0], stacks[i][0], name, err);
    }
    return export_add(x, t, t->name, &r, err);
}

enum err_code export_gguf(struct export *x, const struct weights *w, struct err *err)
{
    enum err_code code = export_init(x, w, err);
    for (int32_t i = 0; i < weights_n_tensors(w) && !code; i++)
        code = export_gguf_tensor(x, weights_tensor_at(w, i), err);
    return code;
}

/* --- to Hugging Face --- */

const struct hf_name *export_row(const struct export *x, const char *name, int64_t at[2], int *n)
{
    const struct hf_name *tables[] = { x->map->tensors, hf_common_names() };
    for (size_t i = 0; i < ARRAY_LEN(tables); i++)
        for (const struct hf_name *row = tables[i]; row && row->hf; row++)
            if (row->gguf && hf_match(row->gguf, name, at, n))
                return row;
    return NULL;
}

static enum err_code export_undo(struct recode *r, const struct hf_name *row, struct err *err)
{
    switch (row->transform) {
    case HF_TRANSFORM_NONE:
        return ERR_OK;
    case HF_TRANSFORM_ADD_ONE:
        r->change = RECODE_SUB_ONE;
        return ERR_OK;
    case HF_TRANSFORM_NEG_EXP:
        r->change = RECODE_LOG_NEG;
        return ERR_OK;
    case HF_TRANSFORM_SQUEEZE: /* [C][K] was [C][1][K] */
        r->n_dims = 3;
        r->shape[2] = r->shape[1];
        r->shape[1] = 1;
        return ERR_OK;
    default:
        return err_set(err, ERR_UNSUPPORTED, "tensor %s: how it became %s cannot be undone yet",
                       row->hf, row->gguf);
    }
}

enum err_code export_unknown(const struct export *x, const struct weights_tensor *t,
                             struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "tensor %s: the table of %s has no Hugging Face name for it", t->name, x->arch);
}

/* Tensors that config.json says: divisors of rotary frequencies (export_rope.c). */
static bool export_is_config(const char *name)
{
    static const char *const names[] = { "rope_freqs.weight", "rope_factors_long.weight",
                                         "rope_factors_short.weight" };
    bool is = false;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        is |= strcmp(name, names[i]) == 0;
    return is;
}

/* The name as the family's directories have it. */
static const char *export_prefix(const struct export *x, const char *name, char out[HF_NAME_MAX])
{
    const struct export_naming *n = export_naming_of(x);
    bool is_own = strncmp(name, "bert.", 5) == 0 || strncmp(name, "classifier.", 11) == 0;
    if (export_is_classifier(x) && strcmp(x->arch, "bert") == 0 && !is_own) {
        snprintf(out, HF_NAME_MAX, "bert.%.200s", name);
        return out;
    }
    if (n && n->is_bare && strncmp(name, "model.", 6) == 0)
        return name + 6;
    if (!n || !n->prefix || !export_is_mlx(x))
        return name;
    snprintf(out, HF_NAME_MAX, "%s%.200s", n->prefix, name);
    return out;
}

static enum err_code export_hf_tensor(struct export *x, const struct weights_tensor *t,
                                      struct err *err)
{
    static const export_give_fn gives[] = { export_experts, export_delta, export_classifier };
    char name[HF_NAME_MAX];
    int64_t at[2];
    int n;
    struct recode *r;
    bool is_done = export_is_config(t->name);
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(gives) && !is_done && !code; i++)
        code = gives[i](x, t, &is_done, err);
    if (is_done || code)
        return code;
    const struct hf_name *row = export_row(x, t->name, at, &n);
    if (!row)
        return export_unknown(x, t, err);
    hf_fill(row->hf, at, n, name);
    code = export_add(x, t, name, &r, err);
    if (!code)
        code = export_undo(r, row, err);
    return code ? code : export_order(x, t->name, r, err);
}

/* A head for multi-token prediction stays behind on the way to mlx-lm, which has none and takes its tensors for a sign that norms are
 * stored without their 1. */
static bool export_leaves(const struct export *x, const char *name)
{
    return export_is_mlx(x) && export_trunk(x) < export_int(x, "block_count", 0) &&
           hf_nextn_is_of(name, export_trunk(x));
}

enum err_code export_hf(struct export *x, const struct weights *w, unsigned flags, struct err *err)
{
    char name[HF_NAME_MAX], bare[HF_NAME_MAX];
    int n_left = 0;
    enum err_code code = export_init(x, w, err);
    x->flags = flags;
    if (!code)
        code = export_config(x, err);
    for (int32_t i = 0; i < weights_n_tensors(w) && !code; i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        bool is_left = export_leaves(x, t->name);
        n_left += is_left;
        code = is_left ? ERR_OK : export_hf_tensor(x, t, err);
    }
    if (n_left > 0)
        log_warn("convert",
                 "%d tensors of the head for multi-token prediction are left out: "
                 "mlx-lm has no such head",
                 n_left);
    for (int32_t i = 0; i < x->n_tensors && !code; i++) {
        snprintf(bare, sizeof(bare), "%s", x->tensors[i].name);
        hf_nextn_undo(export_trunk(x), bare);
        const char *full = export_prefix(x, bare, name);
        x->tensors[i].name = arena_strndup(&x->arena, full, strlen(full));
        if (!x->tensors[i].name)
            code = err_set(err, ERR_NOMEM, "tensor %s: no memory", full);
    }
    return code;
}

/* --- checking --- */

static double export_number(const struct meta_value *v)
{
    switch (v->type) {
    case META_TYPE_F32:
    case META_TYPE_F64:
        return v->f;
    case META_TYPE_I8:
    case META_TYPE_I16:
    case META_TYPE_I32:
    case META_TYPE_I64:
        return (double)v->i;
    default:
        return (double)v->u;
    }
}

/* Experts' matrices, which stand in stacks or alone. */
static bool export_is_expert(const char *name)
{
    static const char *const singles[] = { "blk.%d.ffn_gate.%d.weight", "blk.%d.ffn_up.%d.weight",
                                           "blk.%d.ffn_down.%d.weight" };
    int64_t at[2];
    int n;
    bool is = strstr(name, "_exps.") != NULL;
    for (size_t i = 0; i < ARRAY_LEN(singles) && !is; i++)
        is = hf_match(singles[i], name, at, &n);
    return is;
}

static bool export_is_scalar(const struct meta_value *v)
{
    return v->type != META_TYPE_ARRAY && v->type != META_TYPE_STRING;
}

/* Numbers alike as f32, to what an exponential and its logarithm lose. */
static bool export_alike(const struct meta_value *a, const struct meta_value *b)
{
    if (a->type == META_TYPE_STRING && b->type == META_TYPE_STRING)
        return a->s.len == b->s.len && memcmp(a->s.data, b->s.data, a->s.len) == 0;
    if (!export_is_scalar(a) || !export_is_scalar(b))
        return true; /* lists: windows and the like are checked by loading */
    double p = export_number(a), q = export_number(b);
    return p == q || fabs(p - q) <= 1e-6 * (fabs(p) + fabs(q));
}

enum err_code export_check(const struct weights *gguf, const struct weights *dir, struct err *err)
{
    const char *key, *arch;
    enum err_code code = weights_str(gguf, "general.architecture", &arch, err);
    if (code)
        return code;
    size_t n = strlen(arch);
    struct export x = { .w = gguf, .arch = arch }, y = { .w = dir, .arch = arch };
    int64_t n_trunk = export_trunk(&x);
    bool has_head = n_trunk < export_int(&x, "block_count", 0);
    bool is_left = has_head && export_trunk(&y) == export_int(&y, "block_count", 0);
    for (int32_t i = 0; i < weights_n_meta(dir); i++) {
        const struct meta_value *v = weights_meta_at(dir, i, &key);
        const struct meta_value *was = weights_meta(gguf, key);
        if (is_left && strncmp(key, arch, n) == 0 && strcmp(key + n, ".block_count") == 0)
            continue;
        if (strncmp(key, arch, n) == 0 && key[n] == '.' && was && !export_alike(v, was))
            return err_set(err, ERR_INVALID,
                           "key %s: the directory says %g, the source %g: it cannot be converted",
                           key, export_is_scalar(v) ? export_number(v) : 0,
                           export_is_scalar(was) ? export_number(was) : 0);
    }
    for (int32_t i = 0; i < weights_n_tensors(gguf); i++) {
        const struct weights_tensor *t = weights_tensor_at(gguf, i);
        const struct weights_tensor *d = weights_find(dir, t->name);
        if (is_left && hf_nextn_is_of(t->name, n_trunk))
            continue;
        if (!d && !export_is_expert(t->name))
            return err_set(err, ERR_INVALID, "tensor %s: the directory lost it", t->name);
        if (d && memcmp(d->shape, t->shape, sizeof(t->shape)) != 0)
            return err_set(err, ERR_INVALID, "tensor %s: the directory has another shape", t->name);
    }
    return ERR_OK;
}
