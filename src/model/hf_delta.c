/* hf_delta.c - directories of the hybrids of attention and gated delta nets (Qwen3-Next, Qwen3.5 and on).
 *
 * What GGUF has otherwise: value heads of Qwen3.5 stand by key heads in a directory, and are dealt out to them in turn in GGUF (head h
 * has key head h % Gs), so rows and columns of value heads move. Qwen3-Next has q, k, v and z of each key head in one run.
 * mlx-lm keeps the convolution's taps in the middle dimension, and its norms hold the weight + 1 already. */
#include "model/hf_delta.h"
#include "model/hf_nextn.h"

#include <stdio.h>
#include <string.h>

#define DELTA_LAYERS_MAX 1024

struct delta_sizes {
    int64_t keys, values, key_dim, value_dim, taps; /* heads; elements of one */
};

static enum err_code delta_sizes(const struct hf *h, struct delta_sizes *s, struct err *err)
{
    enum err_code code = hf_int(h, "linear_num_key_heads", 1, 1 << 12, 16, &s->keys, err);
    if (!code)
        code = hf_int(h, "linear_num_value_heads", 1, 1 << 12, 32, &s->values, err);
    if (!code)
        code = hf_int(h, "linear_key_head_dim", 1, 1 << 12, 128, &s->key_dim, err);
    if (!code)
        code = hf_int(h, "linear_value_head_dim", 1, 1 << 12, 128, &s->value_dim, err);
    if (!code)
        code = hf_int(h, "linear_conv_kernel_dim", 1, 64, 4, &s->taps, err);
    if (!code && s->values % s->keys != 0)
        code = err_set(err, ERR_INVALID,
                       "config.json: linear_num_value_heads: %lld is no multiple of %lld key heads",
                       (long long)s->values, (long long)s->keys);
    return code;
}

/* How the pairs of a head are shared between time, height and width, which text does not ask: readers of GGUF want it said. */
static enum err_code delta_sections(struct hf *h, struct err *err)
{
    int64_t parts[4] = { 11, 11, 10, 0 };
    const struct meta_value *v = hf_config(h, "rope_parameters.mrope_section");
    struct meta_value item;
    for (uint64_t i = 0; v && v->type == META_TYPE_ARRAY && i < v->array.n && i < 3; i++) {
        meta_array_at(v, i, &item);
        parts[i] = item.i;
    }
    return hf_set_ints(h, "rope.dimension_sections", parts, ARRAY_LEN(parts), err);
}

enum err_code hf_delta_more(struct hf *h, struct err *err)
{
    struct delta_sizes s;
    int64_t n = 0, width, is_state[DELTA_LAYERS_MAX];
    enum err_code code = delta_sizes(h, &s, err);
    if (!code)
        code = hf_set_int(h, "ssm.conv_kernel", s.taps, err);
    if (!code)
        code = hf_set_int(h, "ssm.state_size", s.key_dim, err);
    if (!code)
        code = hf_set_int(h, "ssm.group_count", s.keys, err);
    if (!code)
        code = hf_set_int(h, "ssm.time_step_rank", s.values, err);
    if (!code)
        code = hf_set_int(h, "ssm.inner_size", s.values * s.value_dim, err);
    if (!code) /* mixtures of experts need not say it */
        code = hf_int(h, "intermediate_size shared_expert_intermediate_size", 1, 1 << 20, 1, &width,
                      err);
    if (!code)
        code = hf_set_int(h, "feed_forward_length", width, err);
    if (!code)
        code = hf_int(h, "num_hidden_layers", 1, DELTA_LAYERS_MAX, 1, &n, err);
    int64_t interval = 4;
    if (!code)
        code = hf_int(h, "full_attention_interval", 1, 1 << 20, 4, &interval, err);
    for (int64_t i = 0; i < n && !code; i++) {
        bool is;
        code = hf_layer_is(h, i, "linear_attention", (i + 1) % interval != 0, &is, err);
        is_state[i] = is;
    }
    if (!code && strcmp(h->map->arch, "qwen3next") != 0)
        code = delta_sections(h, err);
    if (!code)
        code = hf_nextn_more(h, err);
    for (int64_t i = 0; i < h->n_nextn && n < DELTA_LAYERS_MAX; i++)
        is_state[n++] = false;
    return code ? code : hf_set_ints(h, "attention.recurrent_layers", is_state, (uint64_t)n, err);
}

/* --- value heads: by key heads to dealt out in turn --- */

/* Where the value head that GGUF has at h stands in the directory. */
static int64_t delta_head(const struct delta_sizes *s, int64_t h)
{
    return h % s->keys * (s->values / s->keys) + h / s->keys;
}

/* Rows: `first` that stay, then the value heads of `dim` rows each. */
static int32_t *delta_rows(struct hf *h, const struct delta_sizes *s, int64_t first, int64_t dim,
                           struct err *err)
{
    int64_t n = first + s->values * dim;
    int32_t *rows = hf_indexes(h, n, err);
    for (int64_t i = 0; rows && i < n; i++) {
        int64_t v = i - first;
        rows[i] = (int32_t)(i < first ? i : first + delta_head(s, v / dim) * dim + v % dim);
    }
    return rows;
}

enum delta_part { DELTA_PART_ROWS, DELTA_PART_COLUMNS, DELTA_PART_VECTOR };

/* What has value heads: in its rows (behind the key heads or not), its columns, or as a small tensor. */
static const struct delta_name {
    const char *hf, *gguf;
    enum delta_part part;
    bool has_keys, has_dim;
    enum hf_transform transform;
} delta_names[] = {
    { "in_proj_qkv.weight", "attn_qkv.weight", DELTA_PART_ROWS, true, true, HF_TRANSFORM_NONE },
    { "in_proj_z.weight", "attn_gate.weight", DELTA_PART_ROWS, false, true, HF_TRANSFORM_NONE },
    { "in_proj_a.weight", "ssm_alpha.weight", DELTA_PART_ROWS, false, false, HF_TRANSFORM_NONE },
    { "in_proj_b.weight", "ssm_beta.weight", DELTA_PART_ROWS, false, false, HF_TRANSFORM_NONE },
    { "out_proj.weight", "ssm_out.weight", DELTA_PART_COLUMNS, false, true, HF_TRANSFORM_NONE },
    { "conv1d.weight", "ssm_conv1d.weight", DELTA_PART_VECTOR, true, true, HF_TRANSFORM_NONE },
    { "A_log", "ssm_a", DELTA_PART_VECTOR, false, false, HF_TRANSFORM_NEG_EXP },
    { "dt_bias", "ssm_dt.bias", DELTA_PART_VECTOR, false, false, HF_TRANSFORM_NONE },
    { 0 },
};

static enum err_code delta_shape(const struct weights_tensor *t, int64_t have, int64_t want,
                                 struct err *err)
{
    if (have == want)
        return ERR_OK;
    return err_set(err, ERR_INVALID, "tensor %s: %lld rows or columns, config.json wants %lld",
                   t->name, (long long)have, (long long)want);
}

static enum err_code delta_emit(struct hf *h, const struct delta_sizes *s,
                                const struct weights_tensor *t, const struct delta_name *row,
                                bool is_tiled, const char *name, struct err *err)
{
    int64_t dim = row->has_dim ? s->value_dim : 1;
    int64_t first = row->has_keys ? 2 * s->keys * s->key_dim : 0, n = first + s->values * dim;
    bool moves = is_tiled && s->values != s->keys;
    bool is_columns = row->part == DELTA_PART_COLUMNS, is_conv = first && !is_columns;
    int32_t *rows = NULL;
    if (moves && !(rows = delta_rows(h, s, first, is_columns ? 1 : dim, err)))
        return ERR_NOMEM;
    if (row->part == DELTA_PART_VECTOR)
        return hf_emit_rows(h, t, name,
                            &(struct hf_rows){ .rows = rows,
                                               .all = n,
                                               .n = n,
                                               .width = is_conv ? s->taps : 1,
                                               .cols = is_conv ? s->taps : 0 },
                            row->transform, err);
    enum err_code code = delta_shape(t, t->shape[is_columns ? 0 : 1], n, err);
    struct weights_tensor copy = *t;
    struct weights_layout l = { .n_rows = t->shape[1] };
    if (is_columns) {
        l.run = dim;
        l.runs = rows;
    } else {
        l.rows = rows;
    }
    if (!code && moves && !(copy.layout = hf_layout(h, &l, err)))
        code = ERR_NOMEM;
    return code ? code : hf_emit_as(h, &copy, name, NULL, 0, HF_TRANSFORM_NONE, err);
}

/* --- Qwen3-Next: [q k v z] of each key head to q k v of all, and z of all --- */

static enum err_code delta_emit_joint(struct hf *h, const struct delta_sizes *s,
                                      const struct weights_tensor *t, const int64_t at[2],
                                      struct err *err)
{
    const int64_t value = s->values / s->keys * s->value_dim, run = 2 * (s->key_dim + value);
    const struct {
        int64_t from, n;
        const char *gguf;
    } parts[] = { { 0, s->key_dim, NULL },
                  { s->key_dim, s->key_dim, NULL },
                  { 2 * s->key_dim, value, "blk.%d.attn_qkv.weight" },
                  { 2 * s->key_dim + value, value, "blk.%d.attn_gate.weight" } };
    enum err_code code = delta_shape(t, t->shape[1], run * s->keys, err);
    int32_t *rows = code ? NULL : hf_indexes(h, run * s->keys, err);
    if (!rows)
        return code ? code : ERR_NOMEM;
    int64_t n = 0;
    for (size_t p = 0; p < ARRAY_LEN(parts) && !code; p++) {
        for (int64_t g = 0; g < s->keys; g++)
            for (int64_t i = 0; i < parts[p].n; i++)
                rows[n++] = (int32_t)(g * run + parts[p].from + i);
        if (!parts[p].gguf)
            continue;
        struct weights_tensor copy = *t;
        copy.layout =
            hf_layout(h, &(struct weights_layout){ .n_rows = t->shape[1], .rows = rows }, err);
        copy.shape[1] = n;
        code = copy.layout ? hf_emit_as(h, &copy, parts[p].gguf, at, 1, HF_TRANSFORM_NONE, err)
                           : ERR_NOMEM;
        rows += n;
        n = 0;
    }
    return code;
}

/* Whether the directory is mlx-lm's. */
static bool delta_is_mlx(const struct hf *h, const struct delta_sizes *s)
{
    for (int32_t i = 0; i < weights_n_tensors(h->w); i++) {
        const struct weights_tensor *t = weights_tensor_at(h->w, i);
        if (strstr(t->name, ".linear_attn.conv1d.weight"))
            return t->shape[0] == 1 && t->shape[1] == s->taps;
    }
    return false;
}

static bool delta_ends(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static enum err_code delta_norm(struct hf *h, const struct delta_sizes *s,
                                const struct weights_tensor *t, const char *name, bool *is_done,
                                struct err *err)
{
    static const struct hf_name norms[] = {
        { "model.norm.weight", "output_norm.weight", 0 },
        { "model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", 0 },
        { "model.layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight",
          0 },
        { "model.layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", 0 },
        { "model.layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", 0 },
        HF_NEXTN_NORMS,
        { 0 },
    };
    int64_t at[2];
    int n;
    for (const struct hf_name *row = norms; row->hf; row++) {
        if (!hf_match(row->hf, name, at, &n))
            continue;
        *is_done = true;
        return hf_emit_as(h, t, row->gguf, at, n,
                          delta_is_mlx(h, s) ? HF_TRANSFORM_NONE : HF_TRANSFORM_ADD_ONE, err);
    }
    return ERR_OK;
}

static enum err_code delta_take(struct hf *h, const struct weights_tensor *t, const char *name,
                                bool is_tiled, bool *is_done, struct err *err)
{
    struct delta_sizes s;
    int64_t at[2];
    int n;
    char hf[96], gguf[96];
    enum err_code code = delta_sizes(h, &s, err);
    if (code)
        return code;
    if (delta_ends(name, "norm.weight") && !strstr(name, ".linear_attn."))
        return delta_norm(h, &s, t, name, is_done, err);
    *is_done = hf_match("model.layers.%d.linear_attn.in_proj_qkvz.weight", name, at, &n);
    if (*is_done)
        return delta_emit_joint(h, &s, t, at, err);
    for (const struct delta_name *row = delta_names; row->hf; row++) {
        snprintf(hf, sizeof(hf), "model.layers.%%d.linear_attn.%s", row->hf);
        if (!hf_match(hf, name, at, &n))
            continue;
        *is_done = true;
        snprintf(gguf, sizeof(gguf), "blk.%lld.%s", (long long)at[0], row->gguf);
        return delta_emit(h, &s, t, row, is_tiled, gguf, err);
    }
    return ERR_OK;
}

enum err_code hf_delta_take(struct hf *h, const struct weights_tensor *t, const char *name,
                            bool *is_done, struct err *err)
{
    return delta_take(h, t, name, false, is_done, err);
}

enum err_code hf_delta_take_tiled(struct hf *h, const struct weights_tensor *t, const char *name,
                                  bool *is_done, struct err *err)
{
    return delta_take(h, t, name, true, is_done, err);
}

const struct hf_name hf_delta_names[] = {
    { "model.layers.%d.linear_attn.norm.weight", "blk.%d.ssm_norm.weight", HF_TRANSFORM_NONE },
    { "model.layers.%d.linear_attn.in_proj_ba.weight", "blk.%d.ssm_ba.weight", HF_TRANSFORM_NONE },
    HF_NEXTN_ROWS,
    { 0 },
};
