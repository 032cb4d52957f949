/* model.c - loading: metadata to hyperparameters, the family's tensor table against the file, scratch. */
#include "model/model.h"
#include "model/model_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct model_block { /* a vector in backend memory */
    struct model_block *next;
    float *data;
    size_t bytes;
};

#define MODEL_LAYERS_MAX 1024
#define MODEL_NAME_MAX   96

const char *model_key(const struct model *m, const char *name, char out[128])
{
    snprintf(out, 128, "%s.%s", m->arch, name);
    return out;
}

/* --- metadata --- */

struct model_int_key {
    const char *name;
    int64_t *out;
    int64_t min, max;
};

enum err_code model_parse_common(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    const struct weights_tensor *embed = weights_find(w, "token_embd.weight");
    if (!embed)
        return err_set(err, ERR_INVALID, "tensor token_embd.weight: missing");
    m->n_vocab = embed->shape[1];
    if (m->n_vocab < 1 || m->n_vocab > 1 << 22)
        return err_set(err, ERR_INVALID, "tensor token_embd.weight: %lld rows, at most %d",
                       (long long)m->n_vocab, 1 << 22);
    const struct model_int_key keys[] = {
        { "block_count", &m->n_layers, 1, MODEL_LAYERS_MAX },
        { "embedding_length", &m->width, 1, 1 << 17 },
        { "feed_forward_length", &m->n_ff, 1, 1 << 20 },
        { "attention.head_count", &m->n_heads, 1, 4096 },
        { "context_length", &m->n_ctx_train, 1, 1 << 28 },
    };
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(keys) && !code; i++)
        code = weights_int(w, model_key(m, keys[i].name, key), keys[i].min, keys[i].max,
                           keys[i].out, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "attention.head_count_kv", key), 1, m->n_heads,
                              m->n_heads, &m->n_kv_heads, err);
    if (code)
        return code;
    if (m->n_heads % m->n_kv_heads != 0)
        return err_set(err, ERR_INVALID, "%s: %lld does not divide %lld heads", key,
                       (long long)m->n_kv_heads, (long long)m->n_heads);
    int64_t value_dim = 0;
    double eps = 0;
    code = weights_int_or(w, model_key(m, "attention.key_length", key), 2, BACKEND_HEAD_DIM_MAX,
                          m->width / m->n_heads, &m->head_dim, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "attention.value_length", key), 2,
                              BACKEND_HEAD_DIM_MAX, m->head_dim, &value_dim, err);
    if (!code && value_dim != m->head_dim)
        code = err_set(err, ERR_UNSUPPORTED, "%s: %lld; heads of two sizes are not supported", key,
                       (long long)value_dim);
    if (!code && (m->head_dim < 2 || m->head_dim > BACKEND_HEAD_DIM_MAX))
        code = err_set(err, ERR_INVALID, "%s: a head of %lld is not in [2, %d]", m->arch,
                       (long long)m->head_dim, BACKEND_HEAD_DIM_MAX);
    if (!code)
        code = weights_float_or(w, model_key(m, "attention.layer_norm_rms_epsilon", key), 1e-5,
                                &eps, err);
    if (!code && !(eps >= 0 && eps < 1))
        code = err_set(err, ERR_INVALID, "%s: %g is not in [0, 1)", key, eps);
    if (code)
        return code;
    m->eps = (float)eps;
    m->layers = mem_alloc(MEM_CAT_WEIGHTS, (size_t)m->n_layers * sizeof(*m->layers));
    for (int64_t i = 0; i < m->n_layers; i++)
        m->layers[i].attn = (struct attn_params){ .scale = 1 / sqrtf((float)m->head_dim),
                                                  .n_heads = (int)m->n_heads };
    return ERR_OK;
}

/* --- tensors --- */

static int64_t model_letter(const struct model *m, char c)
{
    switch (c) {
    case 'D':
        return m->width;
    case 'H':
        return m->n_heads;
    case 'G':
        return m->n_kv_heads;
    case 'K':
        return m->head_dim;
    case 'F':
        return m->n_ff;
    case 'V':
        return m->n_vocab;
    default:
        BUG_ON("unknown letter in a shape");
        return 0;
    }
}

/* "[H*K][D]" to shape[0..n), innermost first as GGUF has it; returns n. */
static int model_shape(const struct model *m, const char *expr, int64_t shape[WEIGHTS_DIMS_MAX])
{
    int64_t dims[WEIGHTS_DIMS_MAX];
    int n = 0;
    for (const char *p = expr; *p; p++) {
        if (*p == '[')
            dims[n++] = 1;
        else if (*p != '*' && *p != ']')
            dims[n - 1] *= model_letter(m, *p);
    }
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

static enum err_code model_check_shape(const struct model *m, const struct tensor_rule *rule,
                                       const struct weights_tensor *t, struct err *err)
{
    int64_t want[WEIGHTS_DIMS_MAX];
    char want_text[96], text[96];
    if (!rule->shape)
        return ERR_OK;
    int n = model_shape(m, rule->shape, want);
    if (memcmp(want, t->shape, sizeof(want)) == 0)
        return ERR_OK;
    return err_set(err, ERR_INVALID, "tensor %s: want %s, file has %s", t->name,
                   model_shape_text(want, n, want_text),
                   model_shape_text(t->shape, t->n_dims, text));
}

static void model_drop(void *ctx, const uint8_t *data, size_t n)
{
    weights_drop(ctx, data, n);
}

static enum err_code model_pack(struct model *m, const struct weights *w,
                                const struct weights_tensor *t, struct weight **out,
                                struct err *err)
{
    if (!m->be->ops->supports(m->be, t->type))
        return err_set(err, ERR_UNSUPPORTED, "tensor %s: type %s is not supported by backend %s",
                       t->name, dtype_info(t->type)->name, m->be->ops->name);
    struct weight_source src = { .name = t->name,
                                 .scales = t->scales,
                                 .type = t->type,
                                 .out = t->shape[1],
                                 .in = t->shape[0],
                                 .data = t->data,
                                 .drop = model_drop,
                                 .drop_ctx = (void *)(uintptr_t)w };
    enum err_code code = m->be->ops->pack(m->be, &src, out, err);
    if (!code)
        m->weight_bytes += m->be->ops->shape(*out)->bytes;
    return code;
}

static enum err_code model_upload(struct model *m, const struct weights_tensor *t,
                                  const float **out, struct err *err)
{
    int64_t n = t->shape[0];
    size_t bytes = (size_t)n * sizeof(float);
    struct model_block *b = NULL;
    float *host = mem_try(MEM_CAT_WEIGHTS, bytes);
    if (!host)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory for %zu bytes", t->name, bytes);
    enum err_code code = weights_dequantize(t->type, t->data, n, host, err);
    for (int64_t i = 0; i < n && !code; i++)
        if (!isfinite(host[i]))
            code = err_set(err, ERR_INVALID,
                           "tensor %s: element %lld is %g; the file is damaged, fetch it again",
                           t->name, (long long)i, (double)host[i]);
    if (!code) {
        b = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*b));
        *b = (struct model_block){ .next = m->blocks, .bytes = bytes };
        b->data = m->be->ops->alloc(m->be, MEM_CAT_WEIGHTS, bytes);
        if (b->data) {
            m->be->ops->upload(m->be, b->data, host, bytes);
            m->blocks = b;
            m->weight_bytes += bytes;
            *out = b->data;
        } else {
            mem_free(MEM_CAT_WEIGHTS, b);
            code = err_set(err, ERR_NOMEM, "tensor %s: no memory for %zu bytes", t->name, bytes);
        }
    }
    mem_free(MEM_CAT_WEIGHTS, host);
    return code;
}

struct model_loading {
    const struct model_load_options *o;
    bool *is_used; /* [tensors of the file] */
    int32_t n_done, n_all;
};

static enum err_code model_load_tensor(struct model *m, struct model_loading *ld,
                                       const struct tensor_rule *rule, const char *name, void *base,
                                       struct err *err)
{
    const struct weights *w = ld->o->weights;
    const struct weights_tensor *t = weights_find(w, name);
    if (!t)
        return rule->flags & TENSOR_FLAG_OPTIONAL
                   ? ERR_OK
                   : err_set(err, ERR_INVALID, "tensor %s: missing, %s models need it", name,
                             m->family->name);
    int32_t at = 0;
    while (weights_tensor_at(w, at) != t)
        at++;
    ld->is_used[at] = true;
    enum err_code code = model_check_shape(m, rule, t, err);
    char *field = (char *)base + rule->offset;
    if (!code && rule->kind == TENSOR_KIND_MATRIX)
        code = model_pack(m, w, t, (struct weight **)(void *)field, err);
    if (!code && rule->kind == TENSOR_KIND_VECTOR)
        code = model_upload(m, t, (const float **)(void *)field, err);
    if (ld->o->on_tensor)
        ld->o->on_tensor(ld->o->ctx, ++ld->n_done, ld->n_all);
    return code;
}

static enum err_code model_load_rule(struct model *m, struct model_loading *ld,
                                     const struct tensor_rule *rule, struct err *err)
{
    char name[MODEL_NAME_MAX];
    if (!(rule->flags & TENSOR_FLAG_LAYER))
        return model_load_tensor(m, ld, rule, rule->name, m, err);
    const char *rest = strstr(rule->name, "%d") + 2;
    int prefix = (int)(rest - 2 - rule->name);
    for (int64_t i = 0; i < m->n_layers; i++) {
        snprintf(name, sizeof(name), "%.*s%lld%s", prefix, rule->name, (long long)i, rest);
        enum err_code code = model_load_tensor(m, ld, rule, name, &m->layers[i], err);
        if (code)
            return code;
    }
    return ERR_OK;
}

static enum err_code model_load_tensors(struct model *m, const struct model_load_options *o,
                                        struct err *err)
{
    enum err_code code = ERR_OK;
    struct model_loading ld = { .o = o, .n_all = weights_n_tensors(o->weights) };
    ld.is_used = mem_alloc(MEM_CAT_WEIGHTS, (size_t)ld.n_all + 1);
    for (const struct tensor_rule *r = m->family->tensors; r->name && !code; r++)
        code = model_load_rule(m, &ld, r, err);
    for (int32_t i = 0; i < ld.n_all && !code; i++) {
        const struct weights_tensor *t = weights_tensor_at(o->weights, i);
        m->n_params += t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
        if (!ld.is_used[i])
            code =
                err_set(err, ERR_INVALID,
                        "tensor %s: not part of a %s model; the answers would be wrong without it",
                        t->name, m->family->name);
    }
    mem_free(MEM_CAT_WEIGHTS, ld.is_used);
    return code;
}

enum err_code model_load(const struct model_load_options *o, struct model **out, struct err *err)
{
    const char *arch;
    enum err_code code = weights_str(o->weights, "general.architecture", &arch, err);
    if (code)
        return code;
    const struct model_family *family = model_family_find(arch);
    if (!family)
        return err_set(err, ERR_UNSUPPORTED, "general.architecture: '%s' is not supported", arch);
    struct model *m = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*m));
    m->family = family;
    m->be = o->be;
    m->arch = mem_strdup(MEM_CAT_WEIGHTS, arch);
    m->embed_scale = 1;
    m->glu = GLU_KIND_SILU;
    code = family->parse(o->weights, m, err);
    if (!code)
        code = model_load_tensors(m, o, err);
    if (code) {
        model_free(m);
        return code;
    }
    if (!m->head)
        m->head = m->embed; /* tied */
    for (int64_t i = 0; i < m->n_layers; i++)
        m->has_group[m->layers[i].group] = true;
    *out = m;
    return ERR_OK;
}

static void model_free_weight(struct model *m, struct weight *w)
{
    if (w)
        m->be->ops->unpack_free(m->be, w);
}

void model_free(struct model *m)
{
    if (!m)
        return;
    for (int64_t i = 0; m->layers && i < m->n_layers; i++) {
        struct model_layer *l = &m->layers[i];
        struct weight *const all[] = { l->wq, l->wk, l->wv, l->wo, l->w_gate, l->w_up, l->w_down };
        for (size_t k = 0; k < ARRAY_LEN(all); k++)
            model_free_weight(m, all[k]);
    }
    if (m->head != m->embed)
        model_free_weight(m, m->head);
    model_free_weight(m, m->embed);
    while (m->blocks) {
        struct model_block *b = m->blocks;
        m->blocks = b->next;
        m->be->ops->free(m->be, MEM_CAT_WEIGHTS, b->data, b->bytes);
        mem_free(MEM_CAT_WEIGHTS, b);
    }
    for (int i = 0; i < MODEL_ROPES_MAX; i++)
        mem_free(MEM_CAT_WEIGHTS, m->inv_freq[i]);
    mem_free(MEM_CAT_WEIGHTS, m->layers);
    mem_free(MEM_CAT_WEIGHTS, (void *)(uintptr_t)m->arch);
    mem_free(MEM_CAT_WEIGHTS, m);
}

/* --- scratch --- */

#define SCRATCH_ALIGN 16 /* floats: 64 bytes */

enum err_code model_scratch_init(struct model_scratch *s, const struct model *m, int max_rows,
                                 int max_out, struct err *err)
{
    *s = (struct model_scratch){ .be = m->be, .max_rows = max_rows, .max_out = max_out };
    int64_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const struct {
        float **out;
        int64_t rows, cols;
    } parts[] = {
        { &s->x, max_rows, m->width },
        { &s->h, max_rows, m->width },
        { &s->q, max_rows, q },
        { &s->k, max_rows, kv },
        { &s->v, max_rows, kv },
        { &s->att, max_rows, q },
        { &s->gate, max_rows, m->n_ff },
        { &s->up, max_rows, m->n_ff },
        { &s->x_out, max_out, m->width },
        { &s->att_out, max_out, q },
        { &s->logits, max_out, m->n_vocab },
    };
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        n += (size_t)(parts[i].rows * parts[i].cols + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN *
             SCRATCH_ALIGN;
    s->bytes = n * sizeof(float);
    s->block = m->be->ops->alloc(m->be, MEM_CAT_SCRATCH, s->bytes);
    s->out_failed = mem_try(MEM_CAT_SCRATCH, (size_t)max_out);
    if (!s->block || !s->out_failed) {
        model_scratch_release(s);
        return err_set(err, ERR_NOMEM,
                       "step buffers: no memory for %zu MiB (%d tokens, %d with logits)",
                       s->bytes >> 20, max_rows, max_out);
    }
    float *at = s->block;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        *parts[i].out = at;
        at += (parts[i].rows * parts[i].cols + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    }
    return ERR_OK;
}

void model_scratch_release(struct model_scratch *s)
{
    if (s->block)
        s->be->ops->free(s->be, MEM_CAT_SCRATCH, s->block, s->bytes);
    mem_free(MEM_CAT_SCRATCH, s->out_failed);
    *s = (struct model_scratch){ 0 };
}
