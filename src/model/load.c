/* load.c - the family's tensor table against the file: shapes, parts of fused tensors, packing, what is left over. */
#include "base/log.h"
#include "model/model_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MODEL_NAME_MAX 96

struct model_block { /* a vector that was loaded */
    struct model_block *next;
    struct backend *be; /* NULL: in host memory, for no backend */
    float *data;
    size_t bytes;
};

/* --- shapes --- */

/* l: the layer that the tensor is of, NULL = none. */
static int64_t model_letter(const struct model *m, const struct model_layer *l, char c)
{
    switch (c) {
    case 'D':
        return m->width;
    case 'H':
        return l ? l->n_heads : m->n_heads;
    case 'G':
        return l ? l->n_kv_heads : m->n_kv_heads;
    case 'K':
        return l ? l->head_dim : m->head_dim;
    case 'F':
        return l ? l->n_ff : m->n_ff;
    case 'L':
        return m->n_layers;
    case 'N':
        return m->n_dense;
    case 'Y':
        return m->n_embd;
    case 'Q':
        return m->n_labels;
    case 'Z':
        return m->n_streams;
    case 'M':
        return m->mix_rank;
    case 'O':
        return (m->ngrams.taps - 1) / m->ngrams.size + 1;
    case 'I':
        return m->index_dim;
    case 'J':
        return m->pick.n_heads;
    case 'U':
        return m->ngrams.n_heads * m->ngrams.dim;
    case 'T':
        return m->n_ctx_train;
    case 't':
        return m->projected.taps.n;
    case 'r':
        return m->projected.rank;
    case 'c':
        return model_conv_own(m);
    case 'P':
        return m->n_inp;
    case 'C':
        return m->state.conv_cols;
    case 'W':
        return m->state.taps;
    case 'S':
        return m->state.n_heads;
    case 'R':
        return m->state.n_key_heads;
    case 'A':
        return m->state.key_dim;
    case 'B':
        return m->state.value_dim;
    case 'V':
        return m->n_vocab;
    case 'E':
        return m->n_experts;
    case 'X':
        return m->n_ff_expert;
    default:
        BUG_ON("unknown letter in a shape");
        return 0;
    }
}

/* A sum of products of letters, up to ']' or the end: "H*K+G*K". Nothing is 0. */
static int64_t model_size(const struct model *m, const struct model_layer *l, const char *expr)
{
    int64_t sum = 0, product = 1;
    if (*expr == '\0')
        return 0;
    for (; *expr && *expr != ']'; expr++) {
        if (*expr == '+') {
            sum += product;
            product = 1;
        } else if (*expr != '*') {
            product *= model_letter(m, l, *expr);
        }
    }
    return sum + product;
}

/* "[H*K][D]" to shape[0..n), innermost first as GGUF has it; returns n. */
static int model_shape(const struct model *m, const struct model_layer *l, const char *expr,
                       int64_t shape[WEIGHTS_DIMS_MAX])
{
    int64_t dims[WEIGHTS_DIMS_MAX];
    int n = 0;
    for (const char *p = strchr(expr, '['); p; p = strchr(p, '['))
        dims[n++] = model_size(m, l, ++p);
    for (int i = 0; i < WEIGHTS_DIMS_MAX; i++)
        shape[i] = i < n ? dims[n - 1 - i] : 1;
    return n;
}

/* "[4096][512]", outermost first. */
static const char *model_shape_text(const int64_t *shape, int n, char out[96])
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = n - 1; i >= 0; i--)
        at += (size_t)snprintf(out + at, 96 - at, "[%lld]", (long long)shape[i]);
    return out;
}

static enum err_code model_check_shape(const struct model *m, const struct model_layer *l,
                                       const char *shape, const struct weights_tensor *t,
                                       struct err *err)
{
    int64_t want[WEIGHTS_DIMS_MAX];
    char want_text[96], text[96];
    if (!shape)
        return ERR_OK;
    int n = model_shape(m, l, shape, want);
    if (memcmp(want, t->shape, sizeof(want)) == 0)
        return ERR_OK;
    return err_set(err, ERR_INVALID, "tensor %s: want %s, file has %s", t->name,
                   model_shape_text(want, n, want_text),
                   model_shape_text(t->shape, t->n_dims, text));
}

/* --- one tensor --- */

struct model_loading {
    const struct model_load_options *o;
    bool *is_used; /* [tensors of the file] */
    int32_t n_done, n_all;
    const struct model_layer *layer; /* of the rule under way, or NULL */
    int64_t layer_i;                 /* its number, or as model_load_options.on_size has it */
    struct backend *be;              /* that the rule's tensors are for; NULL: a look */
};

static void model_drop(void *ctx, const uint8_t *data, size_t n)
{
    weights_drop(ctx, data, n);
}

/* A tensor that would be loaded, for who wants to know sizes. */
static void model_tell_size(const struct model_loading *ld, const struct weights_tensor *t,
                            enum tensor_kind kind)
{
    int64_t rows = t->shape[1] * t->shape[2] * t->shape[3];
    bool is_vector = kind == TENSOR_KIND_VECTOR, is_expert = kind == TENSOR_KIND_EXPERTS;
    struct weight_source src = { .name = t->name,
                                 .type = is_vector ? DTYPE_F32 : t->type,
                                 .out = is_vector ? 1 : rows,
                                 .in = is_vector ? t->shape[0] * rows : t->shape[0],
                                 .scales = t->scales };
    if (ld->o->on_size)
        ld->o->on_size(ld->o->ctx, ld->layer_i, is_expert, &src);
}

/* be NULL: a look: is it there, and could it be read */
static enum err_code model_pack(struct model *m, const struct model_loading *ld,
                                const struct weights_tensor *t, struct weight **out,
                                struct err *err)
{
    const struct weights *w = ld->o->weights;
    const struct dtype_info *info = dtype_info(t->type);
    struct backend *be = ld->be;
    if (!be)
        return info->can_decode || info->has_scales
                   ? ERR_OK
                   : err_set(err, ERR_UNSUPPORTED, "tensor %s: type %s cannot be decoded", t->name,
                             info->name);
    if (!be->ops->supports(be, t->type))
        return err_set(err, ERR_UNSUPPORTED, "tensor %s: type %s is not supported by backend %s",
                       t->name, info->name, be->ops->name);
    struct weights_tensor plain;
    void *mem = NULL;
    enum err_code code = weights_take(t, &plain, &mem, err);
    struct weight_source src = { .name = t->name,
                                 .scales = plain.scales,
                                 .type = plain.type,
                                 .out = plain.shape[1],
                                 .in = plain.shape[0],
                                 .data = plain.data,
                                 .drop = mem ? NULL : model_drop,
                                 .drop_ctx = (void *)(uintptr_t)w };
    if (!code)
        code = be->ops->pack(be, &src, out, err);
    if (!code)
        m->weight_bytes += be->ops->shape(*out)->bytes;
    if (mem)
        weights_drop(w, t->data, t->bytes);
    mem_free(MEM_CAT_WEIGHTS, mem);
    return code;
}

/* n numbers of a tensor on the host. The caller frees. */
static enum err_code model_decode(const struct weights_tensor *t, int64_t n, float **out,
                                  struct err *err)
{
    float *host = mem_try(MEM_CAT_WEIGHTS, (size_t)n * sizeof(float));
    BUG_ON(t->layout);
    if (!host)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory for %lld numbers", t->name,
                       (long long)n);
    enum err_code code = weights_dequantize(t->type, t->data, n, host, err);
    for (int64_t i = 0; i < n && !code; i++)
        if (!isfinite(host[i]))
            code = err_set(err, ERR_INVALID,
                           "tensor %s: element %lld is %g; the file is damaged, fetch it again",
                           t->name, (long long)i, (double)host[i]);
    if (code)
        mem_free(MEM_CAT_WEIGHTS, host);
    else
        *out = host;
    return code;
}

/* [rows][cols] to [cols][rows]. */
static void model_turn(float *x, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols) * sizeof(*x);
    float *from = mem_alloc(MEM_CAT_WEIGHTS, bytes);
    memcpy(from, x, bytes);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            x[c * rows + r] = from[r * cols + c];
    mem_free(MEM_CAT_WEIGHTS, from);
}

/* x [rows][cols] to [(rows - 1) * (size) + 1][cols]: zeros between. */
static enum err_code model_spread(const struct model *m, float **x, int64_t rows, int64_t cols,
                                  int64_t *n, struct err *err)
{
    int64_t step = m->ngrams.size;
    *n = ((rows - 1) * step + 1) * cols;
    float *to = mem_try_array(MEM_CAT_WEIGHTS, (size_t)*n, sizeof(*to));
    if (!to)
        return err_set(err, ERR_NOMEM, "no memory for %lld numbers", (long long)*n);
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * step * cols, *x + r * cols, (size_t)cols * sizeof(*to));
    mem_free(MEM_CAT_WEIGHTS, *x);
    *x = to;
    return ERR_OK;
}

static enum err_code model_upload(struct model *m, const struct model_loading *ld,
                                  const struct weights_tensor *t, const struct tensor_rule *rule,
                                  const float **out, struct err *err)
{
    bool is_host = rule->kind == TENSOR_KIND_HOST;
    struct backend *be = ld->be;
    int64_t n = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    size_t bytes = (size_t)n * sizeof(float);
    float *host = NULL;
    enum err_code code = be ? model_decode(t, n, &host, err) : ERR_OK;
    if (code || !be)
        return code;
    if (rule->flags & TENSOR_FLAG_TURNED)
        model_turn(host, t->shape[1], t->shape[0]);
    if (rule->flags & TENSOR_FLAG_SPREAD &&
        (code = model_spread(m, &host, t->shape[0], t->shape[1], &n, err)) != ERR_OK) {
        mem_free(MEM_CAT_WEIGHTS, host);
        return code;
    }
    bytes = (size_t)n * sizeof(float);
    float *data = is_host ? host : be->ops->alloc(be, MEM_CAT_WEIGHTS, bytes);
    if (data) {
        struct model_block *b = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*b));
        *b = (struct model_block){ m->blocks, is_host ? NULL : be, data, bytes };
        m->blocks = b;
        m->weight_bytes += bytes;
        *out = data;
        if (!is_host)
            be->ops->upload(be, data, host, bytes);
    } else {
        code = err_set(err, ERR_NOMEM, "tensor %s: no memory for %zu bytes", t->name, bytes);
    }
    if (!is_host)
        mem_free(MEM_CAT_WEIGHTS, host);
    return code;
}

/* --- finding --- */

/* Tensors that a file may have in one: `part` is `rows` rows of `whole` from row `first` on, which has `all` rows. Files that hold the
 * gate above the up matrix call both of them up. */
static const struct fused {
    const char *part, *whole, *first, *rows, *all;
} fused[] = {
    { "attn_q.", "attn_qkv.", "", "H*K", "H*K+G*K+G*K" },
    { "attn_k.", "attn_qkv.", "H*K", "G*K", "H*K+G*K+G*K" },
    { "attn_v.", "attn_qkv.", "H*K+G*K", "G*K", "H*K+G*K+G*K" },
    { "ffn_gate.", "ffn_up.", "", "F", "F+F" },
    { "ffn_up.", "ffn_up.", "F", "F", "F+F" },
    { "ffn_gate_exps.", "ffn_gate_up_exps.", "", "X", "X+X" },
    { "ffn_up_exps.", "ffn_gate_up_exps.", "X", "X", "X+X" },
};

static void model_mark(struct model_loading *ld, const struct weights_tensor *t)
{
    const struct weights *w = ld->o->weights;
    int32_t at = 0;
    while (weights_tensor_at(w, at) != t)
        at++;
    if (!ld->is_used[at] && ld->o->on_tensor)
        ld->o->on_tensor(ld->o->ctx, ++ld->n_done, ld->n_all);
    ld->is_used[at] = true;
}

/* Where a tensor stands: rows [first, first + rows) of `all`, of each matrix if it is a stack. */
struct model_found {
    const struct weights_tensor *all;
    int64_t first, rows;
};

static int model_row_dim(const struct weights_tensor *t)
{
    return t->n_dims > 1;
}

static bool model_find(struct model *m, struct model_loading *ld, const char *name,
                       struct model_found *out)
{
    char whole[MODEL_NAME_MAX];
    const struct weights_tensor *t = weights_find(ld->o->weights, name);
    for (size_t i = 0; i < ARRAY_LEN(fused); i++) {
        const struct fused *f = &fused[i];
        const char *at = strstr(name, f->part);
        const char *rest = at ? at + strlen(f->part) : "";
        if ((strcmp(rest, "weight") != 0 && strcmp(rest, "bias") != 0) ||
            (t && strcmp(f->part, f->whole) != 0))
            continue;
        snprintf(whole, sizeof(whole), "%.*s%s%s", (int)(at - name), name, f->whole, rest);
        const struct weights_tensor *all = weights_find(ld->o->weights, whole);
        if (!all || all->shape[model_row_dim(all)] != model_size(m, ld->layer, f->all))
            continue;
        model_mark(ld, all);
        *out = (struct model_found){ all, model_size(m, ld->layer, f->first),
                                     model_size(m, ld->layer, f->rows) };
        return true;
    }
    if (!t)
        return false;
    model_mark(ld, t);
    *out = (struct model_found){ t, 0, t->shape[model_row_dim(t)] };
    return true;
}

/* Matrix i of the stack that was found, or (i = -1) what is no stack. */
static enum err_code model_part(const struct model_found *found, int64_t i,
                                struct weights_tensor *out, struct err *err)
{
    const struct weights_tensor *t = found->all;
    int64_t in = t->n_dims == 1 ? 1 : t->shape[0];
    int64_t first = (i < 0 ? 0 : i * t->shape[1]) + found->first;
    *out = *t;
    if (i < 0 && found->rows == t->shape[model_row_dim(t)])
        return ERR_OK;
    if (t->layout)
        first = (i < 0 ? 0 : i * t->layout->n_rows) + found->first;
    if (t->scales.scales && first % t->scales.rows != 0)
        return err_set(err, ERR_UNSUPPORTED, "tensor %s: scales of %lld rows do not fit its parts",
                       t->name, (long long)t->scales.rows);
    if (t->layout) { /* nothing that is moved is a part of more */
        BUG_ON(i < 0 || found->first != 0 || found->rows != t->shape[1]);
        *out = weights_matrix(t, i);
        return ERR_OK;
    }
    out->shape[model_row_dim(t)] = found->rows;
    out->n_dims = t->n_dims == 1 ? 1 : 2;
    out->shape[2] = out->shape[3] = 1;
    out->bytes = dtype_row_bytes(t->type, in) * (size_t)found->rows;
    out->data += dtype_row_bytes(t->type, in) * (size_t)first;
    out->scales = scales_from_row(&t->scales, first, in);
    return ERR_OK;
}

static enum err_code model_missing(const struct model *m, const char *name, struct err *err)
{
    return err_set(err, ERR_INVALID, "tensor %s: missing, %s models need it", name,
                   m->family->name);
}

/* --- rules --- */

static bool is_of_experts(const struct tensor_rule *rule)
{
    return rule->kind == TENSOR_KIND_EXPERTS ||
           rule->offset == offsetof(struct model_layer, b_gate_e) ||
           rule->offset == offsetof(struct model_layer, b_up_e) ||
           rule->offset == offsetof(struct model_layer, b_down_e);
}

/* What comes before the first layer. */
static bool is_of_input(const struct tensor_rule *rule)
{
    static const size_t fields[] = {
        offsetof(struct model, embed),        offsetof(struct model, pos_embed),
        offsetof(struct model, token_type),   offsetof(struct model, embed_norm),
        offsetof(struct model, embed_norm_b), offsetof(struct model, inp_embed),
        offsetof(struct model, inp_proj),     offsetof(struct model, inp_proj_norm)
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (rule->offset == fields[i])
            return true;
    return false;
}

/* The backend that what the rule loads is for. layer_i -1: the rule is of no layer. */
static struct backend *model_be_of(const struct model *m, const struct tensor_rule *rule,
                                   int64_t layer_i)
{
    if (!m->host)
        return m->be;
    if (layer_i < 0 && rule->kind == TENSOR_KIND_PARTS)
        return model_layer_be(m, m->ngrams.layer_i);
    if (layer_i < 0)
        return is_of_input(rule) ? model_layer_be(m, 0) : m->be;
    return is_of_experts(rule) && layer_i < m->n_host_experts ? m->host
                                                              : model_layer_be(m, layer_i);
}

/* What a classifier of any family has besides. */
static const struct tensor_rule classifier_tensors[] = {
    RULE_MODEL("cls.weight", "[D][D]", MATRIX, TENSOR_FLAG_OPTIONAL, w_class),
    RULE_MODEL("cls.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, b_class),
    RULE_MODEL("cls.output.weight", "[Q][D]", MATRIX, 0, w_labels),
    RULE_MODEL("cls.output.bias", "[Q]", VECTOR, TENSOR_FLAG_OPTIONAL, b_labels),
    { 0 },
};

/* One matrix for each expert, of a stack or ("blk.0.ffn_gate_exps.weight" not found) of "blk.0.ffn_gate.%d.weight". */
static enum err_code model_load_experts(struct model *m, struct model_loading *ld,
                                        const struct tensor_rule *rule, const char *name,
                                        struct weight ***out, struct err *err)
{
    char one[MODEL_NAME_MAX];
    struct model_found found;
    struct weights_tensor t;
    enum err_code code = ERR_OK;
    bool is_stack = model_find(m, ld, name, &found);
    int stem = (int)(strstr(name, "_exps.") - name);
    *out = mem_alloc(MEM_CAT_WEIGHTS, (size_t)m->n_experts * sizeof(struct weight *));
    if (is_stack && (found.all->shape[2] != m->n_experts || found.all->shape[3] != 1))
        return err_set(err, ERR_INVALID, "tensor %s: %lld experts, want %lld", found.all->name,
                       (long long)found.all->shape[2], (long long)m->n_experts);
    for (int64_t e = 0; e < m->n_experts && !code; e++) {
        snprintf(one, sizeof(one), "%.*s.%lld%s", stem, name, (long long)e, name + stem + 5);
        if (!is_stack && !model_find(m, ld, one, &found))
            return model_missing(m, e == 0 ? name : one, err);
        code = model_part(&found, is_stack ? e : -1, &t, err);
        if (!code)
            code =
                model_check_shape(m, ld->layer, rule->shape + 3, &t, err); /* without its "[E]" */
        if (!code) {
            model_tell_size(ld, &t, TENSOR_KIND_EXPERTS);
            code = model_pack(m, ld, &t, &(*out)[e], err);
        }
    }
    return code;
}

/* The n-grams' table. */
static enum err_code model_load_parts(struct model *m, struct model_loading *ld, const char *name,
                                      struct weight ***out, struct err *err)
{
    char one[MODEL_NAME_MAX];
    int stem = (int)(strstr(name, ".weight") - name);
    bool is_whole = weights_find(ld->o->weights, name) != NULL;
    enum err_code code = ERR_OK;
    *out = mem_alloc(MEM_CAT_WEIGHTS, (size_t)m->ngrams.n_parts * sizeof(struct weight *));
    for (int64_t i = 0; i < m->ngrams.n_parts && !code; i++) {
        struct model_found found;
        snprintf(one, sizeof(one), "%.*s.%lld.weight", stem, name, (long long)i);
        if (!model_find(m, ld, is_whole ? name : one, &found))
            return model_missing(m, is_whole ? name : one, err);
        if (found.all->shape[0] != m->ngrams.dim || found.all->shape[1] != m->ngrams.part_rows)
            return err_set(err, ERR_INVALID, "tensor %s: want [%lld][%lld]", found.all->name,
                           (long long)m->ngrams.part_rows, (long long)m->ngrams.dim);
        model_tell_size(ld, found.all, TENSOR_KIND_PARTS);
        code = model_pack(m, ld, found.all, &(*out)[i], err);
    }
    return code;
}

static enum err_code model_load_tensor(struct model *m, struct model_loading *ld,
                                       const struct tensor_rule *rule, const char *name, void *base,
                                       struct err *err)
{
    struct model_found found;
    struct weights_tensor t;
    void *field = (char *)base + rule->offset;
    if (rule->kind == TENSOR_KIND_EXPERTS)
        return model_load_experts(m, ld, rule, name, field, err);
    if (rule->kind == TENSOR_KIND_PARTS)
        return model_load_parts(m, ld, name, field, err);
    if (!model_find(m, ld, name, &found))
        return rule->flags & TENSOR_FLAG_OPTIONAL ? ERR_OK : model_missing(m, name, err);
    enum err_code code = model_part(&found, -1, &t, err);
    if (!code)
        code = model_check_shape(m, ld->layer, rule->shape, &t, err);
    if (code || rule->kind == TENSOR_KIND_PARSED)
        return code;
    if (rule->kind != TENSOR_KIND_HOST)
        model_tell_size(ld, &t, rule->kind);
    return rule->kind == TENSOR_KIND_MATRIX ? model_pack(m, ld, &t, field, err)
                                            : model_upload(m, ld, &t, rule, field, err);
}

static enum err_code model_load_rule(struct model *m, struct model_loading *ld,
                                     const struct tensor_rule *rule, struct err *err)
{
    char name[MODEL_NAME_MAX];
    if ((rule->flags & TENSOR_FLAG_INPUTS && m->n_inp == 0) ||
        (rule->flags & TENSOR_FLAG_NGRAMS && m->ngrams.n_heads == 0) ||
        (rule->flags & TENSOR_FLAG_INDEX && m->pick.n_heads == 0))
        return ERR_OK;
    if (rule->flags & (m->n_experts ? TENSOR_FLAG_DENSE : TENSOR_FLAG_MOE))
        return ERR_OK;
    if (!(rule->flags & TENSOR_FLAG_LAYER)) {
        ld->layer_i = rule->kind == TENSOR_KIND_PARTS ? m->ngrams.layer_i
                      : is_of_input(rule)             ? MODEL_SIZE_INPUT
                                                      : MODEL_SIZE_OUTPUT;
        ld->be = m->be ? model_be_of(m, rule, -1) : NULL;
        return model_load_tensor(m, ld, rule, rule->name, m, err);
    }
    const char *rest = strstr(rule->name, "%d") + 2;
    int prefix = (int)(rest - 2 - rule->name);
    for (int64_t i = 0; i < m->n_layers; i++) {
        struct model_layer *l = &m->layers[i];
        if (rule->flags & (l->group == MODEL_GROUP_STATE ? TENSOR_FLAG_ATTN : TENSOR_FLAG_STATE) ||
            (rule->flags & TENSOR_FLAG_NGRAMS && i != m->ngrams.layer_i))
            continue;
        snprintf(name, sizeof(name), "%.*s%lld%s", prefix, rule->name, (long long)i, rest);
        if (rule->flags & TENSOR_FLAG_KV && l->kv_from != i) {
            /* published files have them: trained for nothing */
            const struct weights_tensor *unused = weights_find(ld->o->weights, name);
            if (unused)
                model_mark(ld, unused);
            continue;
        }
        ld->layer = l;
        ld->layer_i = i;
        ld->be = m->be ? model_be_of(m, rule, i) : NULL;
        enum err_code code = model_load_tensor(m, ld, rule, name, l, err);
        ld->layer = NULL;
        if (code)
            return code;
    }
    return ERR_OK;
}

/* The head is the embedding's matrix: the same one, or where another backend has that, a second. */
static enum err_code model_load_head(struct model *m, struct model_loading *ld, struct err *err)
{
    struct model_found found;
    struct weights_tensor t;
    if (m->head || m->is_two_way || m->projected.block > 0)
        return ERR_OK;
    m->is_head_tied = true;
    m->head = m->embed;
    if (!m->be || m->n_host_layers == 0)
        return ERR_OK;
    m->head = NULL;
    if (!model_find(m, ld, "token_embd.weight", &found))
        return model_missing(m, "token_embd.weight", err);
    ld->be = m->be;
    enum err_code code = model_part(&found, -1, &t, err);
    return code ? code : model_pack(m, ld, &t, &m->head, err);
}

enum err_code model_load_beside(struct model *head, struct model_loading *ld,
                                const struct tensor_rule *rule, const char *name,
                                struct model_layer *layer, struct err *err)
{
    ld->be = head->be;
    ld->layer = layer;
    ld->layer_i = MODEL_SIZE_OUTPUT;
    enum err_code code = model_load_tensor(head, ld, rule, name, layer ? (void *)layer : head, err);
    ld->layer = NULL;
    return code;
}

/* Of a layer behind those that are computed: "blk.48.nextn.eh_proj.weight". */
static bool model_is_ignored(const struct model *m, const char *name)
{
    long long i;
    return m->n_layers_ignored > 0 && sscanf(name, "blk.%lld.", &i) == 1 && i >= m->n_layers &&
           i < m->n_layers + m->n_layers_ignored;
}

enum err_code model_load_tensors(struct model *m, const struct model_load_options *o,
                                 struct err *err)
{
    enum err_code code = ERR_OK;
    int n_ignored = 0;
    struct model_loading ld = { .o = o, .n_all = weights_n_tensors(o->weights) };
    ld.is_used = mem_alloc(MEM_CAT_WEIGHTS, (size_t)ld.n_all + 1);
    for (const struct tensor_rule *r = m->family->tensors; r->name && !code; r++)
        code = model_load_rule(m, &ld, r, err);
    for (const struct tensor_rule *r = classifier_tensors; m->n_labels && r->name && !code; r++)
        code = model_load_rule(m, &ld, r, err);
    if (!code)
        code = model_load_head(m, &ld, err);
    if (!code && o->nextn_err)
        model_load_nextn(m, &ld, o);
    for (int32_t i = 0; i < ld.n_all && !code; i++) {
        const struct weights_tensor *t = weights_tensor_at(o->weights, i);
        m->n_params += t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
        if (model_is_ignored(m, t->name))
            n_ignored += !m->nextn || !ld.is_used[i];
        else if (!ld.is_used[i])
            code =
                err_set(err, ERR_INVALID,
                        "tensor %s: not part of a %s model; the answers would be wrong without it",
                        t->name, m->family->name);
    }
    mem_free(MEM_CAT_WEIGHTS, ld.is_used);
    if (n_ignored && !code)
        log_info("model", "%d tensors of heads that draft tokens are not loaded", n_ignored);
    return code;
}

/* --- freeing --- */

static void model_free_weight(struct backend *be, struct weight **w)
{
    if (*w)
        be->ops->unpack_free(be, *w);
    *w = NULL;
}

void model_free_field(struct model *m, const struct tensor_rule *rule, int64_t layer_i)
{
    void *base = layer_i < 0 ? (void *)m : &m->layers[layer_i];
    void *field = (char *)base + rule->offset;
    struct backend *be = model_be_of(m, rule, layer_i);
    if (rule->kind == TENSOR_KIND_MATRIX)
        model_free_weight(be, field);
    if (rule->kind != TENSOR_KIND_EXPERTS && rule->kind != TENSOR_KIND_PARTS)
        return;
    struct weight ***experts = field;
    int64_t n = rule->kind == TENSOR_KIND_PARTS ? m->ngrams.n_parts : m->n_experts;
    for (int64_t e = 0; *experts && e < n; e++)
        model_free_weight(be, &(*experts)[e]);
    mem_free(MEM_CAT_WEIGHTS, *experts);
    *experts = NULL;
}

void model_free_blocks(struct model *m)
{
    while (m->blocks) {
        struct model_block *b = m->blocks;
        m->blocks = b->next;
        if (b->be)
            b->be->ops->free(b->be, MEM_CAT_WEIGHTS, b->data, b->bytes);
        else
            mem_free(MEM_CAT_WEIGHTS, b->data);
        mem_free(MEM_CAT_WEIGHTS, b);
    }
}

void model_free_tensors(struct model *m)
{
    model_free_nextn(m);
    if (m->is_head_tied && m->head != m->embed)
        model_free_weight(m->be, &m->head);
    if (m->is_head_tied || m->projected.borrows_head)
        m->head = NULL;
    if (m->projected.borrows_embed)
        m->embed = NULL;
    for (const struct tensor_rule *r = classifier_tensors; r->name; r++)
        model_free_field(m, r, -1);
    for (const struct tensor_rule *r = m->family->tensors; r->name; r++) {
        if (!(r->flags & TENSOR_FLAG_LAYER))
            model_free_field(m, r, -1);
        for (int64_t i = 0; r->flags & TENSOR_FLAG_LAYER && m->layers && i < m->n_layers; i++)
            model_free_field(m, r, i);
    }
    model_free_blocks(m);
}
