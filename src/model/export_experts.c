/* export_experts.c - GGUF's stacks of experts as directories have them: a matrix for each expert, or stacks of another make; mlx-lm has
 * stacks everywhere. */
#include "model/export_int.h"

#include <stdio.h>
#include <string.h>

enum experts_kind {
    EXPERTS_KIND_SINGLE, /* a matrix for each expert, by the tables */
    EXPERTS_KIND_FUSED,  /* stacks: gate with up behind it, down */
    EXPERTS_KIND_TURNED, /* stacks [cols][rows] or MXFP4 in two, gate and up in turn, biases */
};

static const struct experts_names {
    const char *arch;
    enum experts_kind kind;
    const char *stem, *mlx; /* in front of "gate_up_proj"; of "gate_proj.weight" */
} experts_names[] = {
    { "gemma4", EXPERTS_KIND_FUSED, "model.layers.%d.experts.",
      "model.layers.%d.experts.switch_glu." },
    { "gpt-oss", EXPERTS_KIND_TURNED, "model.layers.%d.mlp.experts.",
      "model.layers.%d.mlp.experts." },
    { "llama", EXPERTS_KIND_SINGLE, "", "model.layers.%d.block_sparse_moe.switch_mlp." },
    { NULL, EXPERTS_KIND_SINGLE, "", "model.layers.%d.mlp.switch_mlp." },
};

static const struct experts_names *experts_of(const struct export *x)
{
    const struct experts_names *n = experts_names;
    while (n->arch && strcmp(n->arch, x->arch) != 0)
        n++;
    return n;
}

/* "STEM gate_proj.weight" */
static enum err_code experts_add(struct export *x, const struct weights_tensor *t, const char *stem,
                                 const char *rest, int64_t layer, struct recode **r,
                                 struct err *err)
{
    char pattern[HF_NAME_MAX], name[HF_NAME_MAX];
    snprintf(pattern, sizeof(pattern), "%s%s", stem, rest);
    export_fill(pattern, layer, name);
    return export_add(x, t, name, r, err);
}

/* --- a matrix for each expert --- */

/* Rows [row0, row0 + n_rows) of each expert's matrix under the name that the tables have for `what` of one expert. */
static enum err_code experts_split(struct export *x, const struct weights_tensor *t,
                                   const char *what, int64_t layer, int64_t row0, int64_t n_rows,
                                   struct err *err)
{
    char single[HF_NAME_MAX], name[HF_NAME_MAX];
    struct recode *r;
    int64_t at[2];
    int n;
    enum err_code code = ERR_OK;
    for (int64_t e = 0; e < t->shape[2] && !code; e++) {
        snprintf(single, sizeof(single), "blk.%lld.ffn_%s.%lld.weight", (long long)layer, what,
                 (long long)e);
        const struct hf_name *row = export_row(x, single, at, &n);
        if (!row || row->transform)
            return export_unknown(x, t, err);
        hf_fill(row->hf, at, n, name);
        code = export_add(x, t, name, &r, err);
        if (code)
            break;
        r->row0 = e * t->shape[1] + row0;
        r->n_rows = n_rows;
        r->n_dims = 2;
        r->shape[1] = n_rows;
        r->shape[2] = 1;
    }
    return code;
}

/* --- stacks --- */

/* Half of every matrix: gate (0) or up (1). */
static enum err_code experts_half(struct export *x, const struct weights_tensor *t,
                                  const char *stem, int half, int64_t layer, struct err *err)
{
    static const char *const names[] = { "gate_proj.weight", "up_proj.weight" };
    struct recode *r;
    const int64_t n = t->shape[1] / 2;
    int32_t *rows = export_indexes(x, n, err);
    if (!rows)
        return ERR_NOMEM;
    for (int64_t i = 0; i < n; i++)
        rows[i] = (int32_t)(half * n + i);
    enum err_code code = experts_add(x, t, stem, names[half], layer, &r, err);
    if (code)
        return code;
    r->groups = t->shape[2];
    r->rows = rows;
    r->shape[1] = n;
    return ERR_OK;
}

/* The up stack that goes with a gate stack or its biases. */
static enum err_code experts_up(const struct export *x, const struct weights_tensor *gate,
                                const char *part, int64_t layer, const struct weights_tensor **up,
                                struct err *err)
{
    char pattern[64];
    snprintf(pattern, sizeof(pattern), "blk.%%d.ffn_up_exps.%s", part);
    *up = export_find(x, pattern, layer);
    if (*up && memcmp((*up)->shape, gate->shape, sizeof(gate->shape)) == 0)
        return ERR_OK;
    return err_set(err, ERR_INVALID, "tensor %s: no ffn_up_exps.%s of its shape goes with it",
                   gate->name, part);
}

/* Gate with up behind it, in each matrix. */
static enum err_code experts_fused(struct export *x, const struct weights_tensor *t,
                                   const char *stem, const char *what, int64_t layer,
                                   struct err *err)
{
    struct recode *r;
    const struct weights_tensor *up;
    if (strcmp(what, "up") == 0) /* it went with gate */
        return ERR_OK;
    if (strcmp(what, "down") == 0)
        return experts_add(x, t, stem, "down_proj", layer, &r, err);
    enum err_code code = experts_add(x, t, stem, "gate_up_proj", layer, &r, err);
    if (code || strcmp(what, "gate") != 0)
        return code;
    code = experts_up(x, t, "weight", layer, &up, err);
    if (!code)
        code = export_add_part(x, r, up, err);
    r->groups = t->shape[2];
    r->shape[1] *= 2;
    return code;
}

/* --- gpt-oss --- */

/* Rows of two parts in turn. */
static int32_t *experts_in_turn(struct export *x, int64_t n, struct err *err)
{
    int32_t *rows = export_indexes(x, 2 * n, err);
    for (int64_t i = 0; rows && i < 2 * n; i++)
        rows[i] = (int32_t)(i % 2 * n + i / 2);
    return rows;
}

/* Add `t` (and up, in turn with its rows, unless that is NULL); the shape is the caller's. */
static enum err_code experts_turn_add(struct export *x, const struct weights_tensor *t,
                                      const struct weights_tensor *up, const int32_t *rows,
                                      const char *name, int64_t layer, struct recode **r,
                                      struct err *err)
{
    enum err_code code = experts_add(x, t, experts_of(x)->stem, name, layer, r, err);
    if (!code && up)
        code = export_add_part(x, *r, up, err);
    if (!code) {
        (*r)->groups = t->n_dims == 2 ? t->shape[1] : t->shape[2];
        (*r)->rows = rows;
    }
    return code;
}

/* [E][cols][rows], or the codes [E][rows][blocks][16] and exponents [E][rows][blocks] of MXFP4. */
static enum err_code experts_turned(struct export *x, const struct weights_tensor *t,
                                    const struct weights_tensor *up, const int32_t *rows,
                                    int64_t layer, struct err *err)
{
    static const char *const names[2][3] = {
        { "down_proj", "down_proj_blocks", "down_proj_scales" },
        { "gate_up_proj", "gate_up_proj_blocks", "gate_up_proj_scales" }
    };
    const char *const *name = names[up != NULL];
    const int64_t n = t->shape[1] * (up ? 2 : 1), blocks = t->shape[0] / 32;
    bool is_apart = t->type == DTYPE_MXFP4 && (x->flags & EXPORT_FLAG_MXFP4);
    struct recode *r;
    enum err_code code = experts_turn_add(x, t, up, rows, name[is_apart], layer, &r, err);
    if (code)
        return code;
    if (!is_apart) {
        r->form = RECODE_FORM_TURNED;
        r->shape[0] = n;
        r->shape[1] = t->shape[0];
        return ERR_OK;
    }
    r->form = RECODE_FORM_CODES;
    r->n_dims = 4;
    memcpy(r->shape, (int64_t[]){ 16, blocks, n, t->shape[2] }, sizeof(r->shape));
    code = experts_turn_add(x, t, up, rows, name[2], layer, &r, err);
    if (code)
        return code;
    r->form = RECODE_FORM_EXPONENTS;
    memcpy(r->shape, (int64_t[]){ blocks, n, t->shape[2], 1 }, sizeof(r->shape));
    return ERR_OK;
}

static enum err_code experts_bias(struct export *x, const struct weights_tensor *t,
                                  const struct weights_tensor *up, const int32_t *rows,
                                  int64_t layer, struct err *err)
{
    struct recode *r;
    enum err_code code = experts_turn_add(
        x, t, up, rows, up ? "gate_up_proj_bias" : "down_proj_bias", layer, &r, err);
    if (!code) {
        r->cols = 1;
        r->shape[0] *= up ? 2 : 1;
    }
    return code;
}

static enum err_code experts_gpt_oss(struct export *x, const struct weights_tensor *t,
                                     const char *what, const char *part, int64_t layer,
                                     struct err *err)
{
    const struct weights_tensor *up = NULL;
    const int32_t *rows = NULL;
    bool is_bias = strcmp(part, "bias") == 0;
    enum err_code code = ERR_OK;
    if (strcmp(what, "up") == 0) /* it went with gate */
        return ERR_OK;
    if (strcmp(what, "gate") == 0) {
        code = experts_up(x, t, part, layer, &up, err);
        if (!code && !(rows = experts_in_turn(x, t->shape[is_bias ? 0 : 1], err)))
            code = ERR_NOMEM;
    }
    if (code)
        return code;
    return is_bias ? experts_bias(x, t, up, rows, layer, err)
                   : experts_turned(x, t, up, rows, layer, err);
}

/* --- the whole --- */

static enum err_code experts_mlx(struct export *x, const struct weights_tensor *t, const char *what,
                                 const char *part, int64_t layer, struct err *err)
{
    const char *stem = experts_of(x)->mlx;
    char rest[64];
    struct recode *r;
    if (strcmp(what, "gate_up") == 0) {
        enum err_code code = experts_half(x, t, stem, 0, layer, err);
        return code ? code : experts_half(x, t, stem, 1, layer, err);
    }
    snprintf(rest, sizeof(rest), "%s_proj.%s", what, part);
    return experts_add(x, t, stem, rest, layer, &r, err);
}

static enum err_code experts_hf(struct export *x, const struct weights_tensor *t, const char *what,
                                const char *part, int64_t layer, struct err *err)
{
    const struct experts_names *names = experts_of(x);
    const int64_t n = t->shape[1] / 2;
    enum err_code code;
    if (names->kind == EXPERTS_KIND_TURNED)
        return experts_gpt_oss(x, t, what, part, layer, err);
    if (names->kind == EXPERTS_KIND_FUSED)
        return experts_fused(x, t, names->stem, what, layer, err);
    if (strcmp(what, "gate_up") != 0)
        return experts_split(x, t, what, layer, 0, t->shape[1], err);
    code = experts_split(x, t, "gate", layer, 0, n, err);
    return code ? code : experts_split(x, t, "up", layer, n, n, err);
}

/* Of a directory that has a matrix for each expert: where the first stands. */
static enum err_code experts_single(struct export *x, const struct weights_tensor *t, bool *is_done,
                                    struct err *err)
{
    static const char *const whats[] = { "gate", "up", "down" };
    char single[64], name[HF_NAME_MAX], stack[HF_NAME_MAX];
    int64_t at[2];
    int n;
    for (size_t i = 0; i < ARRAY_LEN(whats); i++) {
        snprintf(single, sizeof(single), "blk.%%d.ffn_%s.%%d.weight", whats[i]);
        if (!hf_match(single, t->name, at, &n))
            continue;
        *is_done = true;
        snprintf(name, sizeof(name), "%s%s_proj.weight", experts_of(x)->mlx, whats[i]);
        hf_fill(name, at, 1, stack);
        return at[1] ? ERR_OK : export_stack(x, t, at[0], single, stack, err);
    }
    return ERR_OK;
}

enum err_code export_experts(struct export *x, const struct weights_tensor *t, bool *is_done,
                             struct err *err)
{
    static const char *const whats[] = { "gate", "up", "down", "gate_up" };
    static const char *const parts[] = { "weight", "bias" };
    char pattern[64];
    int64_t at[2];
    int n;
    if (export_is_mlx(x)) {
        enum err_code code = experts_single(x, t, is_done, err);
        if (code || *is_done)
            return code;
    }
    for (size_t i = 0; i < ARRAY_LEN(whats) * ARRAY_LEN(parts); i++) {
        const char *what = whats[i / 2], *part = parts[i % 2];
        snprintf(pattern, sizeof(pattern), "blk.%%d.ffn_%s_exps.%s", what, part);
        if (!hf_match(pattern, t->name, at, &n))
            continue;
        if (t->n_dims != (i % 2 ? 2 : 3) || (i % 2 && experts_of(x)->kind != EXPERTS_KIND_TURNED))
            return export_unknown(x, t, err);
        *is_done = true;
        return export_is_mlx(x) ? experts_mlx(x, t, what, part, at[0], err)
                                : experts_hf(x, t, what, part, at[0], err);
    }
    return ERR_OK;
}
