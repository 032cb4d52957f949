/* model.c - a model's life: metadata to hyperparameters, loading, scratch. */
#include "model/model.h"
#include "base/log.h"
#include "model/model_int.h"
#include "tensor/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MODEL_LAYERS_MAX 1024

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

/* Layer layer_i's value of a key that is one number or a list. Errors: also a value beyond [1, max]; absent with fallback 0. */
static enum err_code model_layer_int(const struct weights *w, const struct model *m,
                                     const char *name, int64_t layer_i, int64_t max,
                                     int64_t fallback, int64_t *out, struct err *err)
{
    char key[128];
    const struct meta_value *v = weights_meta(w, model_key(m, name, key));
    if (!v || v->type != META_TYPE_ARRAY)
        return v || fallback == 0 ? weights_int(w, key, 1, max, out, err)
                                  : (*out = fallback, ERR_OK);
    enum err_code code = weights_array_int(w, key, (uint64_t)layer_i, out, err);
    if (!code && (*out < 1 || *out > max))
        code = err_set(err, ERR_INVALID, "%s: %lld of layer %lld is not in [1, %lld]", key,
                       (long long)*out, (long long)layer_i, (long long)max);
    return code;
}

/* Width of layer layer_i's ffn; where experts are all there is, a file may have the shared one's alone. */
static enum err_code model_ffn(const struct weights *w, const struct model *m, int64_t layer_i,
                               int64_t *out, struct err *err)
{
    char key[128];
    int64_t shared = 0;
    enum err_code code = weights_int_or(w, model_key(m, "expert_shared_feed_forward_length", key),
                                        1, 1 << 20, 0, &shared, err);
    return code ? code
                : model_layer_int(w, m, "feed_forward_length", layer_i, 1 << 20, shared, out, err);
}

/* Layers with a list of their own for heads or ffn. */
static enum err_code model_parse_layer_sizes(const struct weights *w, struct model *m,
                                             struct err *err)
{
    enum err_code code = ERR_OK;
    for (int64_t i = 0; i < m->n_layers && !code; i++) {
        int64_t ff = 0, kv = 0;
        code = model_ffn(w, m, i, &ff, err);
        if (!code)
            code = model_layer_int(w, m, "attention.head_count_kv", i, m->n_heads, m->n_heads, &kv,
                                   err);
        if (!code && m->n_heads % kv != 0)
            code = err_set(err, ERR_INVALID, "layer %lld: %lld kv heads do not divide %lld",
                           (long long)i, (long long)kv, (long long)m->n_heads);
        m->layers[i].n_ff = (int)ff;
        m->layers[i].n_kv_heads = (int)kv;
        m->layers[i].kv_from = (int)i;
    }
    return code;
}

enum err_code model_parse_common(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    const struct weights_tensor *embed = weights_find(w, "token_embd.weight");
    if (!embed && m->n_vocab == 0)
        return err_set(err, ERR_INVALID, "tensor token_embd.weight: missing");
    m->n_vocab = embed ? embed->shape[1] : m->n_vocab;
    if (m->n_vocab < 1 || m->n_vocab > 1 << 22)
        return err_set(err, ERR_INVALID, "tensor token_embd.weight: %lld rows, at most %d",
                       (long long)m->n_vocab, 1 << 22);
    const struct model_int_key keys[] = {
        { "block_count", &m->n_layers, 1, MODEL_LAYERS_MAX },
        { "embedding_length", &m->width, 1, 1 << 17 },
        { "attention.head_count", &m->n_heads, 1, 4096 },
        { "context_length", &m->n_ctx_train, 1, 1 << 28 },
    };
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(keys) && !code; i++)
        code = weights_int(w, model_key(m, keys[i].name, key), keys[i].min, keys[i].max,
                           keys[i].out, err);
    if (!code)
        code = model_ffn(w, m, 0, &m->n_ff, err);
    if (!code)
        code = model_layer_int(w, m, "attention.head_count_kv", 0, m->n_heads, m->n_heads,
                               &m->n_kv_heads, err);
    if (code)
        return code;
    if (m->n_heads % m->n_kv_heads != 0)
        return err_set(err, ERR_INVALID,
                       "%s.attention.head_count_kv: %lld does not divide %lld heads", m->arch,
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
        code =
            weights_float_or(w, model_key(m, "attention.layer_norm_epsilon", key), 1e-5, &eps, err);
    if (!code)
        code = weights_float_or(w, model_key(m, "attention.layer_norm_rms_epsilon", key), eps, &eps,
                                err);
    if (!code && !(eps >= 0 && eps < 1))
        code = err_set(err, ERR_INVALID, "%s: %g is not in [0, 1)", key, eps);
    if (code)
        return code;
    m->eps = (float)eps;
    m->layers = mem_alloc(MEM_CAT_WEIGHTS, (size_t)m->n_layers * sizeof(*m->layers));
    for (int64_t i = 0; i < m->n_layers; i++)
        m->layers[i] = (struct model_layer){ .n_heads = (int)m->n_heads,
                                             .n_kv_heads = (int)m->n_kv_heads,
                                             .head_dim = (int)m->head_dim,
                                             .n_ff = (int)m->n_ff,
                                             .attn = { .scale = 1 / sqrtf((float)m->head_dim),
                                                       .n_heads = (int)m->n_heads } };
    return model_parse_layer_sizes(w, m, err);
}

enum err_code model_parse_scale(const struct weights *w, const struct model *m, const char *name,
                                float fallback, float *out, struct err *err)
{
    char key[128];
    double v;
    enum err_code code = weights_float_or(w, model_key(m, name, key), (double)fallback, &v, err);
    if (!code && !(v > 0 && v <= 1e6))
        code = err_set(err, ERR_INVALID, "%s: %g is not in (0, 1e6]", key, v);
    *out = code ? fallback : (float)v;
    return code;
}

enum err_code model_parse_experts(const struct weights *w, struct model *m, struct err *err)
{
    /* numbers of the key expert_gating_func */
    static const enum route_kind kinds[] = { ROUTE_KIND_SOFTMAX, ROUTE_KIND_SIGMOID,
                                             ROUTE_KIND_SOFTMAX_USED };
    char key[128];
    int64_t used = 0, gating = 0;
    if (!weights_meta(w, model_key(m, "expert_count", key)))
        return ERR_OK;
    enum err_code code = weights_int(w, key, 0, BACKEND_EXPERTS_MAX, &m->n_experts, err);
    if (code || m->n_experts == 0)
        return code;
    code = weights_int(w, model_key(m, "expert_used_count", key), 1, m->n_experts, &used, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "expert_feed_forward_length", key), 1, 1 << 20,
                              m->n_ff, &m->n_ff_expert, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "expert_gating_func", key), 0, ARRAY_LEN(kinds), 0,
                              &gating, err);
    if (!code)
        code = weights_bool_or(w, model_key(m, "expert_weights_norm", key), m->route.is_normed,
                               &m->route.is_normed, err);
    m->route.scale = 1;
    if (!code)
        code = model_parse_scale(w, m, "expert_weights_scale", 1, &m->route.scale, err);
    m->route.n_used = (int)used;
    if (gating > 0)
        m->route.kind = kinds[gating - 1];
    return code;
}

/* numbers of the key pooling_type */
enum { POOLING_NONE, POOLING_MEAN, POOLING_CLS, POOLING_LAST, POOLING_RANK };

/* Two labels rank only where the first is yes. */
static bool model_labels_rank(const struct weights *w, const struct model *m)
{
    char key[128];
    const struct meta_value *v = weights_meta(w, model_key(m, "classifier.output_labels", key));
    if (m->n_labels == 1)
        return true;
    return m->n_labels == 2 && v && v->type == META_TYPE_ARRAY &&
           v->array.type == META_TYPE_STRING && v->array.n == 2 && v->array.strs[0].len == 3 &&
           memcmp(v->array.strs[0].data, "yes", 3) == 0;
}

/* Classifiers of any family: n_labels of the tensor cls.output.weight. Errors: ERR_UNSUPPORTED - labels that rank nothing, pooling that
 * is not known. */
static enum err_code model_parse_classifier(const struct weights *w, struct model *m,
                                            struct err *err)
{
    char key[128];
    int64_t kind;
    const struct weights_tensor *labels = weights_find(w, "cls.output.weight");
    const struct weights_tensor *types = weights_find(w, "token_types.weight");
    m->sep_id = -1;
    m->n_types = types ? types->shape[1] : 0;
    enum err_code code =
        weights_int_or(w, model_key(m, "pooling_type", key), 0, 15, POOLING_NONE, &kind, err);
    if (!code && types && types->shape[0] != m->width)
        code = err_set(err, ERR_INVALID, "tensor token_types.weight: rows of %lld, want %lld",
                       (long long)types->shape[0], (long long)m->width);
    if (!code && !m->is_two_way && (kind == POOLING_MEAN || kind == POOLING_CLS))
        code = err_set(err, ERR_UNSUPPORTED,
                       "%s: %lld: a model whose rows do not see later ones gives its last state "
                       "(3); mean (1) and cls (2) are not known for it",
                       key, (long long)kind);
    if (code || (kind != POOLING_RANK && !labels))
        return code;
    if (!labels)
        return err_set(err, ERR_INVALID, "tensor cls.output.weight: missing, %s is rank", key);
    if (strcmp(m->arch, "bert") == 0 && !weights_find(w, "cls.weight"))
        log_warn("model",
                 "tensor cls.weight: missing: a converter left out the model's pooler, the "
                 "scores are not the model's; open its directory instead");
    if (m->is_two_way) /* files of RoBERTa have no word for it */
        m->pooling = MODEL_POOLING_CLS;
    m->n_labels = m->n_embd = labels->n_dims == 1 ? 1 : labels->shape[1];
    if (m->n_labels < 1 || m->n_labels > m->width || !model_labels_rank(w, m))
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor cls.output.weight: %lld labels; a reranker has one, or yes and no",
                       (long long)m->n_labels);
    return ERR_OK;
}

enum err_code model_parse_two_way(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    int64_t kind;
    enum err_code code =
        weights_int_or(w, model_key(m, "pooling_type", key), 0, 15, POOLING_MEAN, &kind, err);
    if (!code && kind > POOLING_RANK)
        code = err_set(err, ERR_UNSUPPORTED,
                       "%s: %lld: mean (1), cls (2), last (3) and rank (4) are known", key,
                       (long long)kind);
    m->is_two_way = true;
    m->pooling = kind == POOLING_CLS || kind == POOLING_RANK ? MODEL_POOLING_CLS
                 : kind == POOLING_LAST                      ? MODEL_POOLING_LAST
                                                             : MODEL_POOLING_MEAN;
    for (int64_t i = 0; i < m->n_layers; i++)
        m->layers[i].attn.is_two_way = true;
    return code;
}

enum err_code model_parse_shared_experts(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    int64_t ff = 0;
    enum err_code code = model_parse_experts(w, m, err);
    if (!code)
        code = weights_int_or(w, model_key(m, "expert_shared_feed_forward_length", key), 1, 1 << 20,
                              m->n_ff, &ff, err);
    m->n_ff = code ? m->n_ff : ff;
    for (int64_t i = 0; i < m->n_layers && !code; i++)
        m->layers[i].n_ff = (int)ff;
    if (!code && m->n_experts == 0)
        code = err_set(err, ERR_INVALID, "%s.expert_count: missing or 0", m->arch);
    return code;
}

enum err_code model_parse_windows(const struct weights *w, struct model *m, int64_t fallback,
                                  int64_t period, struct err *err)
{
    char key[128];
    int64_t window = 0;
    enum err_code code = weights_int_or(w, model_key(m, "attention.sliding_window", key), 0,
                                        INT32_MAX, fallback, &window, err);
    if (code || window == 0)
        return code;
    m->window = (int32_t)window;
    const struct meta_value *pattern =
        weights_meta(w, model_key(m, "attention.sliding_window_pattern", key));
    for (int64_t i = 0; i < m->n_layers && !code; i++) {
        int64_t is_local = period == 0 || (i + 1) % period != 0;
        if (pattern && pattern->type == META_TYPE_ARRAY)
            code = weights_array_int(w, key, (uint64_t)i, &is_local, err);
        struct model_layer *l = &m->layers[i];
        l->group = is_local ? MODEL_GROUP_WINDOW : MODEL_GROUP_FULL;
        l->attn.window = is_local ? m->window : 0;
    }
    return code;
}

/* --- loading --- */

/* Whether the layers can be shared out so. */
static enum err_code model_check_host(const struct model *m, struct err *err)
{
    if (!m->host)
        return ERR_OK;
    BUG_ON(!m->host->ops->is_host);
    if (m->n_host_layers < 0 || m->n_host_layers >= m->n_layers)
        return err_set(err, ERR_INVALID, "%lld layers of %lld on the host: one at least is not",
                       (long long)m->n_host_layers, (long long)m->n_layers);
    for (int64_t i = m->n_host_layers; i < m->n_layers; i++)
        if (m->layers[i].kv_from < m->n_host_layers)
            return err_set(err, ERR_UNSUPPORTED,
                           "layer %lld reads the keys of layer %d: at most %d layers can be on the "
                           "host, not %lld",
                           (long long)i, m->layers[i].kv_from, m->layers[i].kv_from,
                           (long long)m->n_host_layers);
    return ERR_OK;
}

const char *model_numerics(const struct model *m, char out[MODEL_NUMERICS])
{
    const char *be = m->be->ops->numerics, *host = m->host ? m->host->ops->numerics : be;
    if (strcmp(be, host) == 0)
        snprintf(out, MODEL_NUMERICS, "%s", be);
    else
        snprintf(out, MODEL_NUMERICS, "%s %s-%lld-%lld", be, host, (long long)m->n_host_layers,
                 (long long)m->n_host_experts);
    return out;
}

enum err_code model_load(const struct model_load_options *o, struct model **out, struct err *err)
{
    const char *arch;
    enum err_code code = model_adapt(o->weights, err);
    if (code)
        return code;
    code = weights_str(o->weights, "general.architecture", &arch, err);
    if (code)
        return code;
    const struct model_family *family = model_family_find(arch);
    if (!family)
        return err_set(err, ERR_UNSUPPORTED, "general.architecture: '%s' is not supported", arch);
    struct model *m = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*m));
    m->family = family;
    m->be = o->be;
    m->host = o->host;
    m->n_host_layers = o->host ? o->n_host_layers : 0;
    m->n_host_experts = o->host ? o->n_host_experts : 0;
    m->arch = mem_strdup(MEM_CAT_WEIGHTS, arch);
    m->embed_scale = m->residual_scale = m->logit_scale = 1;
    m->n_streams = 1;
    m->glu = m->delta_glu = GLU_KIND_SILU;
    code = family->parse(o->weights, m, err);
    if (!code)
        code = model_parse_classifier(o->weights, m, err);
    if (!code && m->pick.n_heads > 0 && o->be && !o->be->ops->index_pick)
        code = err_set(err, ERR_UNSUPPORTED, "sparse attention (%s) is not known to backend %s",
                       arch, o->be->ops->name);
    if (!code && m->ngrams.n_heads > 0 && o->be &&
        !model_layer_be(m, m->ngrams.layer_i)->ops->root_dots)
        code = err_set(err, ERR_UNSUPPORTED, "n-gram embeddings (%s) are not known to backend %s",
                       arch, o->be->ops->name);
    if (!code)
        code = model_check_host(m, err);
    if (!code)
        code = model_load_tensors(m, o, err);
    if (m->be)
        code = ops_loaded(m->be, code, err);
    if (code) {
        model_free(m);
        return code;
    }
    if (m->n_embd == 0)
        m->n_embd = m->width;
    for (int64_t i = 0; i < m->n_layers; i++)
        m->has_group[m->layers[i].group] = true;
    if (m->nextn)
        model_nextn_borrow(m);
    *out = m;
    return ERR_OK;
}

void model_unload(struct model *m)
{
    model_free_tensors(m);
    m->n_params = 0;
    m->weight_bytes = 0;
}

enum err_code model_reload(struct model *m, const struct model_load_options *o, struct err *err)
{
    BUG_ON(o->be != m->be || (m->host && o->host != m->host));
    enum err_code code = ops_loaded(m->be, model_load_tensors(m, o, err), err);
    if (code)
        model_unload(m);
    else if (m->nextn)
        model_nextn_borrow(m);
    return code;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    model_free_tensors(m);
    for (int i = 0; i < MODEL_ROPES_MAX; i++)
        mem_free(MEM_CAT_WEIGHTS, m->inv_freq[i]);
    mem_free(MEM_CAT_WEIGHTS, m->layers);
    mem_free(MEM_CAT_WEIGHTS, (void *)(uintptr_t)m->arch);
    mem_free(MEM_CAT_WEIGHTS, m);
}

/* --- scratch --- */

#define SCRATCH_ALIGN 16 /* floats: 64 bytes */

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#define SCRATCH_PARTS 32

struct scratch_part {
    float **out;
    int64_t rows, cols;
};

static void scratch_parts(struct model_scratch *s, const struct model *m, int max_rows, int max_out,
                          struct scratch_part parts[SCRATCH_PARTS])
{
    const struct model_state *r = &m->state;
    int64_t q = 0, kv = 0, ff = m->n_ff_expert, values = r->n_heads * r->value_dim;
    for (int64_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        q = max_i64(q, (int64_t)l->n_heads * l->head_dim);
        kv = max_i64(kv, (int64_t)l->n_kv_heads * l->head_dim);
        ff = max_i64(ff, l->n_ff);
    }
    ff = max_i64(ff, m->n_dense);
    int64_t streams = m->n_streams > 1 ? m->n_streams * m->width : 0;
    int64_t mix = max_i64(r->conv_cols, m->is_q_gated ? 2 * q : 0), att = max_i64(q, values);
    const struct scratch_part all[SCRATCH_PARTS] = {
        { &s->x, max_rows, m->n_streams * m->width },
        { &s->h, max_rows, max_i64(m->width, m->n_embd) },
        { &s->q, max_rows, q },
        { &s->k, max_rows, kv },
        { &s->v, max_rows, kv },
        { &s->att, max_rows, att },
        { &s->gate, max_rows, ff },
        { &s->up, max_rows, ff },
        { &s->x_out, max_out, m->n_streams * m->width },
        { &s->att_out, max_out, att },
        { &s->mix, max_rows, mix },
        { &s->join, max_rows, m->w_join ? 2 * m->width : 0 },
        { &s->conv, max_rows, r->conv_cols },
        { &s->z, max_rows, values },
        { &s->decay, max_rows, m->state.n_heads },
        { &s->beta, max_rows, m->state.n_heads },
        { &s->joint, max_rows, max_i64(2 * r->n_heads, 1) },
        { &s->inp, max_rows, m->n_layers * m->n_inp },
        { &s->inp_mix, max_rows, m->n_layers * m->n_inp },
        { &s->mixed, max_rows, streams },
        { &s->mix_gate, max_rows, streams },
        { &s->mix_conv, max_rows, m->ngrams.n_heads ? streams : 0 },
        { &s->mix_low, max_rows, m->mix_rank },
        { &s->inject, max_rows, m->n_streams },
        { &s->inject_out, max_out, m->n_streams },
        { &s->ngram, max_rows, m->ngrams.n_heads * m->ngrams.dim },
        { &s->conv_own, max_rows, model_conv_own(m) },
        { &s->conv_to, max_rows, model_conv_own(m) ? m->width : 0 },
        { &s->index_q, max_rows, m->pick.n_heads * m->index_dim },
        { &s->index_k, max_rows, m->index_dim },
        { &s->index_mean, max_rows, m->index_dim },
        { &s->logits, max_out, m->is_two_way || m->n_labels ? 1 : m->n_vocab },
    };
    memcpy(parts, all, sizeof(all));
}

static size_t scratch_floats(const struct scratch_part *p)
{
    return (size_t)(p->rows * p->cols + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

size_t model_scratch_bytes(const struct model *m, int max_rows, int max_out)
{
    struct model_scratch s;
    struct scratch_part parts[SCRATCH_PARTS];
    size_t n = 0;
    scratch_parts(&s, m, max_rows, max_out, parts);
    for (int i = 0; i < SCRATCH_PARTS; i++)
        n += scratch_floats(&parts[i]);
    return n * sizeof(float);
}

/* The second backend's buffers. */
static enum err_code scratch_init_host(struct model_scratch *s, const struct model *m,
                                       struct err *err)
{
    struct model host = *m;
    host.be = m->host;
    host.host = NULL;
    s->host = mem_alloc(MEM_CAT_SCRATCH, sizeof(*s->host));
    return model_scratch_init(s->host, &host, s->max_rows, 1, err);
}

enum err_code model_scratch_init(struct model_scratch *s, const struct model *m, int max_rows,
                                 int max_out, struct err *err)
{
    struct scratch_part parts[SCRATCH_PARTS];
    *s = (struct model_scratch){ .be = m->be, .max_rows = max_rows, .max_out = max_out };
    scratch_parts(s, m, max_rows, max_out, parts);
    s->bytes = model_scratch_bytes(m, max_rows, max_out);
    s->block = m->be->ops->alloc(m->be, MEM_CAT_SCRATCH, s->bytes);
    s->out_failed = mem_try(MEM_CAT_SCRATCH, (size_t)max_out);
    s->tail_failed = mem_try(MEM_CAT_SCRATCH, (size_t)max_rows);
    s->ngram_rows = mem_try(MEM_CAT_SCRATCH, MODEL_NGRAM_HEADS_MAX * sizeof(*s->ngram_rows));
    s->index_first = mem_try_array(MEM_CAT_SCRATCH, (size_t)max_rows, sizeof(*s->index_first));
    if (!s->block || !s->out_failed || !s->tail_failed || !s->ngram_rows || !s->index_first) {
        size_t mib = s->bytes >> 20;
        model_scratch_release(s);
        return err_set(err, ERR_NOMEM,
                       "step buffers: no memory for %zu MiB (%d tokens, %d with logits)", mib,
                       max_rows, max_out);
    }
    enum err_code code = block_moe_scratch(m, max_rows, &s->moe, err);
    if (!code && m->host)
        code = scratch_init_host(s, m, err);
    if (code) {
        model_scratch_release(s);
        return code;
    }
    float *at = s->block;
    for (int i = 0; i < SCRATCH_PARTS; i++) {
        *parts[i].out = at;
        at += scratch_floats(&parts[i]);
    }
    return ERR_OK;
}

void model_scratch_release(struct model_scratch *s)
{
    if (s->block)
        s->be->ops->free(s->be, MEM_CAT_SCRATCH, s->block, s->bytes);
    mem_free(MEM_CAT_SCRATCH, s->out_failed);
    mem_free(MEM_CAT_SCRATCH, s->tail_failed);
    mem_free(MEM_CAT_SCRATCH, s->ngram_rows);
    mem_free(MEM_CAT_SCRATCH, s->index_first);
    block_moe_release(s->moe);
    if (s->host)
        model_scratch_release(s->host);
    mem_free(MEM_CAT_SCRATCH, s->host);
    *s = (struct model_scratch){ 0 };
}
