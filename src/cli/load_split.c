#include "cli/load_split.h"
#include "base/log.h"
#include "engine/engine_model.h"
#include "tensor/kvq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPLIT_ROOM   ((int64_t)384 << 20) /* kernels, graphs, rotary tables; what the driver wants */
#define SPLIT_TOKENS 4096 /* of context that must find room where nobody has said how much */

struct sizes {
    const struct backend *be;
    int64_t n_layers;
    int64_t *weights, *experts; /* [L] bytes */
    int64_t input, output;      /* before and behind the layers */
    int64_t embed;              /* of the input: what a tied head needs once more */
    int64_t widest;             /* columns of a product */
};

static void split_on_size(void *ctx, int64_t layer_i, bool is_expert,
                          const struct weight_source *src)
{
    struct sizes *s = ctx;
    bool is_vector = src->out == 1;
    int64_t bytes = is_vector ? src->in * (int64_t)sizeof(float)
                              : (int64_t)s->be->ops->packed_bytes(s->be, src);
    s->widest = !is_vector && src->in > s->widest ? src->in : s->widest;
    if (layer_i >= s->n_layers)
        return;
    if (layer_i >= 0)
        *(is_expert ? &s->experts[layer_i] : &s->weights[layer_i]) += bytes;
    else
        *(layer_i == MODEL_SIZE_INPUT ? &s->input : &s->output) += bytes;
    if (strcmp(src->name, "token_embd.weight") == 0)
        s->embed = bytes;
}

/* --- flags --- */

bool load_split_is_none(const char *gpu_layers)
{
    return gpu_layers && strcmp(gpu_layers, "0") == 0;
}

/* "word" is -1. */
static enum err_code split_number(const char *flag, const char *text, const char *word,
                                  int64_t *out, struct err *err)
{
    char *end = NULL;
    *out = -1;
    if (!text || strcmp(text, word) == 0)
        return ERR_OK;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || n < 0 || n > 1 << 20)
        return err_set(err, ERR_INVALID, "%s: '%s' is neither a number of layers nor '%s'", flag,
                       text, word);
    *out = n;
    return ERR_OK;
}

static enum err_code split_flags(const char *gpu_layers, const char *cpu_experts, int64_t *n_gpu,
                                 int64_t *n_experts, struct err *err)
{
    enum err_code code = split_number("--gpu-layers", gpu_layers, "auto", n_gpu, err);
    return code ? code : split_number("--cpu-experts", cpu_experts, "auto", n_experts, err);
}

enum err_code load_split_check(const char *gpu_layers, const char *cpu_experts, struct err *err)
{
    int64_t n_gpu, n_experts;
    return split_flags(gpu_layers, cpu_experts, &n_gpu, &n_experts, err);
}

/* --- need --- */

static int64_t split_page(const struct load_split_options *o, const struct model *m, int64_t i)
{
    const struct model_layer *l = &m->layers[i];
    return l->group == MODEL_GROUP_STATE || l->kv_from != i
               ? 0
               : (int64_t)o->be->ops->kv_page_bytes(o->be, o->cache_type, l->n_kv_heads,
                                                    l->head_dim);
}

/* Bytes of layer i's cache: its part of what was said, else of one sequence, and a recurrent layer's states. */
static int64_t split_cache(const struct load_split_options *o, const struct model *m, int64_t i)
{
    const struct model_layer *l = &m->layers[i];
    int64_t all = 0, page = split_page(o, m, i), tokens = o->ctx ? o->ctx : m->n_ctx_train;
    for (int64_t k = 0; k < m->n_layers; k++)
        all += split_page(o, m, k);
    if (l->group == MODEL_GROUP_STATE) {
        int64_t n_state = 0;
        for (int64_t k = 0; k < m->n_layers; k++)
            n_state += m->layers[k].group == MODEL_GROUP_STATE;
        return 2 * ENGINE_MODEL_ROWS * (int64_t)model_state_bytes(m) / n_state;
    }
    if (o->kv_memory > 0 && all > 0)
        return (int64_t)((double)o->kv_memory * (double)page / (double)all);
    if (o->ctx == 0 && tokens > SPLIT_TOKENS)
        tokens = SPLIT_TOKENS;
    if (l->group == MODEL_GROUP_WINDOW && tokens > m->window + o->step_rows)
        tokens = m->window + o->step_rows;
    return (o->ctx ? 1 : 2) * page * ((tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

static int64_t split_step(const struct load_split_options *o, const struct model *m,
                          const struct sizes *s)
{
    int64_t rows = o->step_rows, moe = m->n_experts ? m->n_experts + 4 * m->width : 0;
    if (m->n_experts > 0) /* pairs of rows and experts, between the kernels */
        moe += 2 * m->n_ff_expert + m->width;
    int64_t as_f16 = 0; /* quantised pages of one layer, taken out */
    for (int64_t i = 0; i < m->n_layers && kvq_is(o->cache_type); i++) {
        int64_t cache = 4 * split_cache(o, m, i);
        as_f16 = m->layers[i].group != MODEL_GROUP_STATE && cache > as_f16 ? cache : as_f16;
    }
    return as_f16 + (int64_t)model_scratch_bytes(m, o->step_rows, ENGINE_MODEL_OUT) +
           rows * moe * (int64_t)sizeof(float) +
           2 * (s->widest + 64) * (rows + 128) * (int64_t)sizeof(uint16_t);
}

struct need {
    int64_t weights, cache, step, all;
};

static struct need split_need(const struct load_split_options *o, const struct model *m,
                              const struct sizes *s, const struct load_split *at)
{
    struct need n = { .weights = s->output, .step = split_step(o, m, s) };
    if (at->n_host_layers == 0)
        n.weights += s->input;
    else if (m->is_head_tied)
        n.weights += s->embed;
    for (int64_t i = at->n_host_layers; i < m->n_layers; i++) {
        n.weights += s->weights[i] + (i < at->n_host_experts ? 0 : s->experts[i]);
        n.cache += split_cache(o, m, i);
    }
    n.all = n.weights + n.cache + n.step + SPLIT_ROOM;
    return n;
}

/* --- plan --- */

/* Fewer layers on the CPU, where later ones read the keys of those. */
static int64_t split_allowed(const struct model *m, int64_t n)
{
    int64_t least = n;
    for (int64_t i = n; i < m->n_layers; i++)
        if (m->layers[i].kv_from < least)
            least = m->layers[i].kv_from;
    return least;
}

/* The first that fits of: experts of more and more layers to the CPU, then layers. False: none does. */
static bool split_search(const struct load_split_options *o, const struct model *m,
                         const struct sizes *s, int64_t n_experts, int64_t free_bytes,
                         struct load_split *out)
{
    int64_t most = m->n_experts > 0 ? m->n_layers : 0;
    *out = (struct load_split){ 0, n_experts < 0 ? 0 : n_experts };
    while (split_need(o, m, s, out).all > free_bytes && n_experts < 0 && out->n_host_experts < most)
        out->n_host_experts++;
    while (split_need(o, m, s, out).all > free_bytes) {
        if (++out->n_host_layers >= m->n_layers ||
            split_allowed(m, out->n_host_layers) < out->n_host_layers)
            return false;
    }
    return true;
}

static enum err_code split_refuse(const struct need *n, int64_t n_layers, int64_t free_bytes,
                                  int64_t fits, struct err *err)
{
    char remedy[96] = "no layer fits, --device cpu runs it";
    if (fits > 0)
        snprintf(remedy, sizeof(remedy), "--gpu-layers %lld fits", (long long)fits);
    return err_set(err, ERR_NOMEM,
                   "%lld layers need %lld MiB of the GPU's memory (weights %lld, cache %lld, step "
                   "buffers %lld, room %lld), %lld MiB are free: %s; so does a smaller --ctx or "
                   "--kv-memory need less",
                   (long long)n_layers, (long long)(n->all >> 20), (long long)(n->weights >> 20),
                   (long long)(n->cache >> 20), (long long)(n->step >> 20),
                   (long long)(SPLIT_ROOM >> 20), (long long)(free_bytes >> 20), remedy);
}

static enum err_code split_decide(const struct load_split_options *o, const struct model *m,
                                  const struct sizes *s, struct load_split *out, struct err *err)
{
    int64_t n_gpu, n_experts, free_bytes = o->be->ops->free_bytes(o->be);
    enum err_code code = split_flags(o->gpu_layers, o->cpu_experts, &n_gpu, &n_experts, err);
    if (code)
        return code;
    if (n_experts > 0 && m->n_experts == 0)
        return err_set(err, ERR_INVALID, "--cpu-experts: the model has no experts");
    struct load_split auto_split;
    bool fits = split_search(o, m, s, n_experts, free_bytes, &auto_split);
    *out = auto_split;
    if (n_gpu >= 0)
        *out = (struct load_split){ n_gpu < m->n_layers ? m->n_layers - n_gpu : 0,
                                    n_experts < 0 ? 0 : n_experts };
    else if (!fits)
        *out = (struct load_split){ 0, n_experts < 0 ? 0 : n_experts };
    if (out->n_host_experts > m->n_layers)
        out->n_host_experts = m->n_layers;
    struct need n = split_need(o, m, s, out);
    if (n.all > free_bytes)
        return split_refuse(&n, m->n_layers - out->n_host_layers, free_bytes,
                            fits ? m->n_layers - auto_split.n_host_layers : 0, err);
    log_info("load",
             "the GPU has %lld of %lld layers%s: %lld MiB (weights %lld, cache from %lld, step "
             "buffers %lld), %lld MiB are free",
             (long long)(m->n_layers - out->n_host_layers), (long long)m->n_layers,
             out->n_host_experts > out->n_host_layers ? " without the experts of some" : "",
             (long long)(n.all >> 20), (long long)(n.weights >> 20), (long long)(n.cache >> 20),
             (long long)(n.step >> 20), (long long)(free_bytes >> 20));
    if (out->n_host_experts > out->n_host_layers)
        log_info("load", "the CPU has the experts of the first %lld layers",
                 (long long)out->n_host_experts);
    return ERR_OK;
}

enum err_code load_split_plan(const struct load_split_options *o, struct load_split *out,
                              struct err *err)
{
    struct sizes s = { .be = o->be };
    struct model *look = NULL;
    struct err no_head = { 0 };
    struct model_load_options mo = { .weights = o->weights,
                                     .nextn_err = o->wants_head ? &no_head : NULL };
    *out = (struct load_split){ 0 };
    enum err_code code = model_load(&mo, &look, err);
    if (code)
        return code;
    s.n_layers = look->n_layers;
    model_free(look);
    look = NULL;
    s.weights = mem_alloc(MEM_CAT_BASE, (size_t)s.n_layers * sizeof(*s.weights));
    s.experts = mem_alloc(MEM_CAT_BASE, (size_t)s.n_layers * sizeof(*s.experts));
    mo.on_size = split_on_size;
    mo.ctx = &s;
    code = model_load(&mo, &look, err);
    if (!code)
        code = split_decide(o, look, &s, out, err);
    model_free(look);
    mem_free(MEM_CAT_BASE, s.weights);
    mem_free(MEM_CAT_BASE, s.experts);
    return code;
}
