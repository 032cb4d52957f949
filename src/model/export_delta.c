/* export_delta.c - hybrids of attention and gated delta nets to directories: hf_delta.c the other way. */
#include "model/export_int.h"
#include "model/hf_nextn.h"

#include <stdio.h>
#include <string.h>

struct delta {
    int64_t keys, values, key_dim, value_dim, taps; /* heads; elements of one */
    bool is_tiled; /* GGUF deals value heads out to the key heads */
};

static enum err_code delta_sizes(const struct export *x, struct delta *s, struct err *err)
{
    *s = (struct delta){ .keys = export_int(x, "ssm.group_count", 0),
                         .values = export_int(x, "ssm.time_step_rank", 0),
                         .key_dim = export_int(x, "ssm.state_size", 0),
                         .taps = export_int(x, "ssm.conv_kernel", 0),
                         .is_tiled = strcmp(x->arch, "qwen3next") != 0 };
    int64_t inner = export_int(x, "ssm.inner_size", 0);
    if (s->keys < 1 || s->values < s->keys || s->values % s->keys != 0 || s->key_dim < 1 ||
        s->taps < 1 || inner < 1 || inner % s->values != 0 || inner > 1 << 24 ||
        s->keys * s->key_dim > 1 << 24)
        return err_set(err, ERR_INVALID,
                       "%s.ssm.*: %lld key heads of %lld, %lld value heads of %lld numbers "
                       "together, %lld taps: not a delta net's sizes",
                       x->arch, (long long)s->keys, (long long)s->key_dim, (long long)s->values,
                       (long long)inner, (long long)s->taps);
    s->value_dim = inner / s->values;
    return ERR_OK;
}

/* Where GGUF has the value head that stands at h in the directory. */
static int64_t delta_head(const struct delta *s, int64_t h)
{
    int64_t per = s->values / s->keys;
    return s->is_tiled ? h % per * s->keys + h / per : h;
}

/* Rows: `first` that stay, then the value heads of `dim` rows each. */
static int32_t *delta_rows(struct export *x, const struct delta *s, int64_t first, int64_t dim,
                           struct err *err)
{
    const int64_t n = first + s->values * dim;
    int32_t *rows = export_indexes(x, n, err);
    for (int64_t i = 0; rows && i < n; i++) {
        int64_t v = i - first;
        rows[i] = (int32_t)(i < first ? i : first + delta_head(s, v / dim) * dim + v % dim);
    }
    return rows;
}

enum delta_kind { DELTA_ROWS, DELTA_COLUMNS, DELTA_VECTOR, DELTA_CONV };

static const struct delta_name {
    const char *gguf, *hf;
    enum delta_kind kind;
    bool has_keys, has_dim;
} delta_names[] = {
    { "blk.%d.attn_qkv.weight", "in_proj_qkv.weight", DELTA_ROWS, true, true },
    { "blk.%d.attn_gate.weight", "in_proj_z.weight", DELTA_ROWS, false, true },
    { "blk.%d.ssm_alpha.weight", "in_proj_a.weight", DELTA_ROWS, false, false },
    { "blk.%d.ssm_beta.weight", "in_proj_b.weight", DELTA_ROWS, false, false },
    { "blk.%d.ssm_out.weight", "out_proj.weight", DELTA_COLUMNS, false, true },
    { "blk.%d.ssm_conv1d.weight", "conv1d.weight", DELTA_CONV, true, true },
    { "blk.%d.ssm_a", "A_log", DELTA_VECTOR, false, false },
    { "blk.%d.ssm_dt.bias", "dt_bias", DELTA_VECTOR, false, false },
    { 0 },
};

static enum err_code delta_shape(const struct weights_tensor *t, int64_t have, int64_t want,
                                 struct err *err)
{
    if (have == want)
        return ERR_OK;
    return err_set(err, ERR_INVALID, "tensor %s: %lld rows or columns, the keys want %lld", t->name,
                   (long long)have, (long long)want);
}

/* [C][K] as [C][1][K], of MLX as [C][K][1]. */
static void delta_conv(const struct export *x, const struct delta *s, struct recode *r)
{
    r->cols = s->taps;
    r->n_dims = 3;
    r->shape[2] = r->shape[1];
    r->shape[1] = export_is_mlx(x) ? s->taps : 1;
    r->shape[0] = export_is_mlx(x) ? 1 : s->taps;
}

static enum err_code delta_give(struct export *x, const struct delta *s,
                                const struct weights_tensor *t, const struct delta_name *row,
                                int64_t layer, struct err *err)
{
    char pattern[HF_NAME_MAX], name[HF_NAME_MAX];
    struct recode *r;
    const int64_t dim = row->has_dim ? s->value_dim : 1;
    const int64_t first = row->has_keys ? 2 * s->keys * s->key_dim : 0;
    const int64_t n = first + s->values * dim;
    bool is_across = row->kind == DELTA_COLUMNS || row->kind == DELTA_VECTOR;
    enum err_code code = delta_shape(t, t->shape[is_across ? 0 : 1], n, err);
    if (!code && row->kind == DELTA_CONV)
        code = delta_shape(t, t->shape[0], s->taps, err);
    snprintf(pattern, sizeof(pattern), "model.layers.%%d.linear_attn.%s", row->hf);
    export_fill(pattern, layer, name);
    if (!code)
        code = export_add(x, t, name, &r, err);
    if (code)
        return code;
    if (row->kind == DELTA_CONV)
        delta_conv(x, s, r);
    if (row->kind == DELTA_VECTOR)
        r->cols = 1;
    if (strcmp(row->hf, "A_log") == 0)
        r->change = RECODE_LOG_NEG;
    if (!s->is_tiled || s->values == s->keys)
        return ERR_OK;
    int32_t *from = delta_rows(x, s, first, row->kind == DELTA_COLUMNS ? 1 : dim, err);
    if (row->kind == DELTA_COLUMNS) {
        r->run = dim;
        r->runs = from;
    } else {
        r->rows = from;
    }
    return from ? ERR_OK : ERR_NOMEM;
}

/* Qwen3-Next: q, k, v and z of each key head in one run, of GGUF's q k v of all and z of all. */
static enum err_code delta_give_joint(struct export *x, const struct delta *s,
                                      const struct weights_tensor *t, int64_t layer,
                                      struct err *err)
{
    const int64_t value = s->values / s->keys * s->value_dim, key = s->key_dim;
    const int64_t all_keys = s->keys * key, all_values = s->keys * value;
    const struct {
        int64_t from, n;
    } parts[] = {
        { 0, key }, { all_keys, key }, { 2 * all_keys, value }, { 2 * all_keys + all_values, value }
    };
    const struct weights_tensor *z = export_find(x, "blk.%d.attn_gate.weight", layer);
    char name[HF_NAME_MAX];
    struct recode *r;
    enum err_code code = delta_shape(t, t->shape[1], 2 * all_keys + all_values, err);
    if (!code)
        code = z ? delta_shape(z, z->shape[1], all_values, err)
                 : err_set(err, ERR_INVALID, "tensor %s: without attn_gate", t->name);
    export_fill("model.layers.%d.linear_attn.in_proj_qkvz.weight", layer, name);
    if (!code)
        code = export_add(x, t, name, &r, err);
    if (!code)
        code = export_add_part(x, r, z, err);
    int32_t *rows = code ? NULL : export_indexes(x, 2 * (all_keys + all_values), err);
    if (!rows)
        return code ? code : ERR_NOMEM;
    r->rows = rows;
    r->shape[1] = 2 * (all_keys + all_values);
    for (int64_t g = 0; g < s->keys; g++)
        for (size_t p = 0; p < ARRAY_LEN(parts); p++)
            for (int64_t i = 0; i < parts[p].n; i++)
                *rows++ = (int32_t)(parts[p].from + g * parts[p].n + i);
    return ERR_OK;
}

/* Norms are stored without their 1, by mlx-lm with it. */
static enum err_code delta_norm(struct export *x, const struct weights_tensor *t, bool *is_done,
                                struct err *err)
{
    static const struct hf_name norms[] = {
        { "model.norm.weight", "output_norm.weight", 0 },
        HF_LAYER("input_layernorm.weight", "attn_norm.weight"),
        HF_LAYER("post_attention_layernorm.weight", "post_attention_norm.weight"),
        HF_LAYER("self_attn.q_norm.weight", "attn_q_norm.weight"),
        HF_LAYER("self_attn.k_norm.weight", "attn_k_norm.weight"),
        HF_NEXTN_NORMS,
        { 0 },
    };
    char name[HF_NAME_MAX];
    struct recode *r;
    int64_t at[2];
    int n;
    for (const struct hf_name *row = norms; row->hf; row++) {
        if (!hf_match(row->gguf, t->name, at, &n))
            continue;
        *is_done = true;
        hf_fill(row->hf, at, n, name);
        enum err_code code = export_add(x, t, name, &r, err);
        if (!code && !export_is_mlx(x))
            r->change = RECODE_SUB_ONE;
        return code;
    }
    return ERR_OK;
}

enum err_code export_delta(struct export *x, const struct weights_tensor *t, bool *is_done,
                           struct err *err)
{
    struct delta s;
    int64_t at[2];
    int n;
    if (!export_meta(x, "ssm.time_step_rank"))
        return ERR_OK;
    enum err_code code = delta_sizes(x, &s, err);
    if (!code)
        code = delta_norm(x, t, is_done, err);
    if (code || *is_done)
        return code;
    for (const struct delta_name *row = delta_names; row->gguf; row++) {
        if (!hf_match(row->gguf, t->name, at, &n))
            continue;
        *is_done = true;
        if (s.is_tiled || row->kind != DELTA_ROWS)
            return delta_give(x, &s, t, row, at[0], err);
        if (!row->has_dim)
            return export_unknown(x, t, err);
        /* z goes with qkv */
        return row->has_keys ? delta_give_joint(x, &s, t, at[0], err) : ERR_OK;
    }
    return ERR_OK;
}
