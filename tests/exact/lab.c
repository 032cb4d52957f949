/* lab.c - a model, its backend and an engine over it, as a configuration asks; digests. */
#include "engine/sample.h"
#include "exact.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ref/ref.h"
#include "lab_int.h"
#include "model/projected.h"
#include "sha.h"

#include <stdio.h>
#include <string.h>

/* --- labs --- */

static enum err_code lab_open_backend(struct lab *lab, const struct lab_config *config,
                                      struct err *err)
{
    if (strcmp(config->backend, "ref") == 0)
        return ref_backend_open(&lab->be, err);
    if (strncmp(config->backend, "cuda", 4) == 0) {
        struct cuda_options cuda = { .is_plain = strcmp(config->backend, "cuda plain") == 0 };
        return cuda_backend_open(&cuda, &lab->be, err);
    }
    struct cpu_options o = { .threads = config->threads };
    enum err_code code = config->level ? cpu_level_parse(config->level, &o.level, err) : ERR_OK;
    if (!code && !cpu_level_available(o.level))
        return err_set(err, ERR_UNSUPPORTED, "this processor has no %s", config->level);
    return code ? code : cpu_backend_open(&o, &lab->be, err);
}

/* Half of the layers, or fewer where later ones read their keys. */
static int64_t lab_half(const struct model *m)
{
    int64_t n = m->n_layers / 2;
    for (int64_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].kv_from < n && i >= n)
            n = m->layers[i].kv_from;
    return n;
}

/* Errors: also ERR_UNSUPPORTED - there is nothing to split. */
static enum err_code lab_load(struct lab *lab, const struct lab_config *config, struct err *err)
{
    struct model_load_options o = { .weights = lab->weights };
    struct err no_head = { 0 };
    bool is_gpu = strncmp(config->backend, "cuda", 4) == 0;
    struct model *look = NULL;
    enum err_code code = config->split ? model_load(&o, &look, err) : ERR_OK;
    if (!code && look) {
        o.n_host_layers = config->split == SPLIT_LAYERS ? lab_half(look) : 0;
        o.n_host_experts = config->split == SPLIT_EXPERTS && look->n_experts ? look->n_layers : 0;
        if (o.n_host_layers + o.n_host_experts == 0)
            code = err_set(err, ERR_UNSUPPORTED, "%s: nothing to split", config->name);
    }
    model_free(look);
    if (!code && config->split)
        code = is_gpu ? cpu_backend_open(&(struct cpu_options){ .threads = 2 }, &lab->host, err)
                      : ref_backend_open(&lab->host, err);
    o.be = lab->be;
    o.host = lab->host;
    o.nextn_err = config->drafts == DRAFTS_HEAD ? &no_head : NULL;
    if (!code)
        code = model_load(&o, &lab->model, err);
    if (!code && config->drafts == DRAFTS_HEAD && !lab->model->nextn)
        code = err_set(err, ERR_NOT_FOUND, "%s", no_head.text);
    return code;
}

/* The spelling in the file stands in for a token's bytes: stop strings need some bytes, not the right ones. */
static enum err_code lab_read_tokens(struct lab *lab, struct err *err)
{
    const struct meta_value *v = weights_meta(lab->weights, "tokenizer.ggml.tokens");
    int64_t end = 0;
    enum err_code code =
        weights_int(lab->weights, "tokenizer.ggml.eos_token_id", 0, 1 << 22, &end, err);
    if (code)
        return code;
    lab->end_id = (int32_t)end;
    lab->n_vocab = (int32_t)lab->model->n_vocab;
    lab->token_bytes = mem_alloc(MEM_CAT_BASE, (size_t)lab->n_vocab * sizeof(*lab->token_bytes));
    for (int32_t i = 0; i < lab->n_vocab; i++) {
        lab->token_bytes[i].data = "";
        if (v && (uint64_t)i < v->array.n)
            lab->token_bytes[i] =
                (struct engine_bytes){ v->array.strs[i].data, v->array.strs[i].len };
    }
    return ERR_OK;
}

/* What the constrained requests must be: strings that are cut, loops, alternatives, all that a JSON text has. */
static enum err_code lab_compile(struct lab *lab, struct err *err)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
        "\"kind\":{\"enum\":[\"first\",\"second\",3]},\"list\":{\"type\":\"array\",\"items\":{"
        "\"type\":"
        "\"integer\"},\"minItems\":2,\"maxItems\":5},\"more\":{\"anyOf\":[{\"type\":\"null\"},{\"$"
        "ref\":"
        "\"#\"}]}},\"required\":[\"name\",\"kind\",\"list\"],\"additionalProperties\":false}";
    struct grammar_source source = { .kind = GRAMMAR_KIND_SCHEMA,
                                     .text = schema,
                                     .n = sizeof(schema) - 1 };
    struct grammar_bytes *bytes = mem_alloc(MEM_CAT_BASE, (size_t)lab->n_vocab * sizeof(*bytes));
    for (int32_t i = 0; i < lab->n_vocab; i++)
        if (i != lab->end_id)
            bytes[i] = (struct grammar_bytes){ lab->token_bytes[i].data, lab->token_bytes[i].len };
    enum err_code code = grammar_vocab_new(bytes, lab->n_vocab, &lab->vocab, err);
    mem_free(MEM_CAT_BASE, bytes);
    return code ? code : grammar_compile(&source, lab->vocab, &lab->grammar, NULL, err);
}

/* Of a page of the full layers, all together; of the windows', where there are no others. */
static int64_t lab_page_bytes(const struct lab *lab, const struct lab_config *config)
{
    const struct model *m = lab->model;
    enum model_group group = m->has_group[MODEL_GROUP_FULL] ? MODEL_GROUP_FULL : MODEL_GROUP_WINDOW;
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].group == group)
            bytes += (int64_t)m->be->ops->kv_page_bytes(m->be, config->cache_type,
                                                        (int)m->n_kv_heads, (int)m->head_dim);
    return bytes;
}

static enum err_code lab_open_draft_model(struct lab *lab, struct err *err)
{
    struct draft_model_options o = { .model = lab->model,
                                     .n_vocab = lab->n_vocab,
                                     .end_ids = &lab->end_id,
                                     .n_end = 1,
                                     .n_ctx = 512,
                                     .max_rows = EXACT_REQUESTS_MAX + 1,
                                     .cache_type = DTYPE_KV_Q4 };
    return draft_model_new(&o, &lab->slow, err);
}

static enum err_code lab_open_projected(struct lab *lab, const struct lab_config *config,
                                        struct err *err)
{
    enum err_code code = weights_open(exact_projected(config->drafts), &lab->slow_weights, err);
    if (!code)
        code =
            model_load(&(struct model_load_options){ .weights = lab->slow_weights, .be = lab->be },
                       &lab->slow_model, err);
    if (!code)
        code = model_project(lab->slow_model, lab->model, err);
    struct draft_model_options o = { .model = lab->slow_model,
                                     .n_vocab = lab->n_vocab,
                                     .end_ids = &lab->end_id,
                                     .n_end = 1,
                                     .n_ctx = 512,
                                     .kv_bytes = config->keep_pages > 5 ? 0 : (int64_t)1 << 18,
                                     .max_rows = EXACT_REQUESTS_MAX + 1,
                                     .cache_type = config->cache_type };
    return code ? code : draft_projected_new(&o, &lab->slow, err);
}

static enum err_code lab_open_head(struct lab *lab, const struct lab_config *config,
                                   struct err *err)
{
    struct draft_mtp_options o = { .model = lab->model,
                                   .end_ids = &lab->end_id,
                                   .n_end = 1,
                                   .n_ctx = 512,
                                   .max_rows = EXACT_REQUESTS_MAX + 1,
                                   .cache_type = config->cache_type };
    return draft_mtp_new(&o, &lab->slow, err);
}

enum err_code lab_open(struct lab *lab, const char *path, const struct lab_config *config,
                       struct err *err)
{
    *lab = (struct lab){ .keeps_plenty = config->keep_pages >= 100 };
    enum err_code code = lab_open_backend(lab, config, err);
    if (!code)
        code = exact_drafter_new(config->drafts, EXACT_REQUESTS_MAX + 1, &lab->drafter, err);
    if (!code)
        code = weights_open(path, &lab->weights, err);
    if (!code)
        code = lab_load(lab, config, err);
    if (!code)
        code = lab_read_tokens(lab, err);
    if (!code)
        code = lab_compile(lab, err);
    if (!code) {
        struct engine_model_options o = { .model = lab->model,
                                          .token_bytes = lab->token_bytes,
                                          .end_ids = &lab->end_id,
                                          .n_end = 1,
                                          .model_id = "exact",
                                          .weights_digest = "",
                                          .n_ctx = 512,
                                          .max_rows = EXACT_REQUESTS_MAX + 1,
                                          .max_step_rows = EXACT_STEP_ROWS,
                                          .cache_type = config->cache_type };
        o.keep_bytes = config->keep_pages * lab_page_bytes(lab, config);
        if (config->drafts == DRAFTS_MODEL)
            code = lab_open_draft_model(lab, err);
        if (exact_projected(config->drafts))
            code = lab_open_projected(lab, config, err);
        if (config->drafts == DRAFTS_HEAD)
            code = lab_open_head(lab, config, err);
        o.drafter = lab->drafter;
        o.slow_drafter = lab->slow;
        o.drafts_always = config->drafts != DRAFTS_NONE && config->drafts != DRAFTS_LOOKUP_AUTO;
        if (!code && config->has_disk && !lab->model->is_two_way)
            code = lab_disk_open(lab, &o, err);
        lab->options = o;
    }
    if (!code)
        code = engine_model_new(&lab->options, &lab->engine, err);
    if (code)
        lab_close(lab);
    return code;
}

void lab_close(struct lab *lab)
{
    if (lab->engine)
        lab->engine->ops->free(lab->engine);
    lab_disk_close(lab);
    if (lab->drafter)
        lab->drafter->ops->free(lab->drafter);
    if (lab->slow)
        lab->slow->ops->free(lab->slow);
    model_free(lab->slow_model);
    weights_close(lab->slow_weights);
    grammar_unref(lab->grammar);
    grammar_unref(lab->expected);
    grammar_vocab_free(lab->vocab);
    mem_free(MEM_CAT_BASE, lab->token_bytes);
    model_free(lab->model);
    if (lab->weights)
        weights_close(lab->weights);
    if (lab->be)
        lab->be->ops->close(lab->be);
    if (lab->host)
        lab->host->ops->close(lab->host);
    *lab = (struct lab){ 0 };
}

/* --- digests --- */

static enum err_code digest_step(struct runner *r, struct runner_item *item, struct sha *sha,
                                 struct err *err)
{
    item->n_out = item->n;
    enum err_code code = runner_step(r, item, 1, err);
    if (code)
        return code;
    sha_add(sha, item->ids, (size_t)item->n * sizeof(*item->ids));
    sha_add(sha, item->logits, (size_t)item->n * (size_t)r->model->n_vocab * sizeof(float));
    return ERR_OK;
}

enum err_code lab_digest(struct lab *lab, const int32_t *ids, int32_t n, int32_t n_new,
                         char out[65], struct err *err)
{
    struct runner_options o = { .model = lab->model,
                                .n_ctx = n + n_new,
                                .max_seqs = 1,
                                .max_rows = 16,
                                .max_out = 16,
                                .cache_type = DTYPE_F16 };
    struct runner *r = NULL;
    struct runner_item item = { 0 };
    struct sha *sha = sha_new();
    enum err_code code = runner_new(&o, &r, err);
    if (!code)
        code = runner_open(r, &item.seq, err);
    if (!code)
        code = runner_reserve(r, item.seq, n + n_new, err);
    for (int32_t at = 0; at < n && !code; at += item.n) {
        item.ids = ids + at;
        item.n = n - at < 16 ? n - at : 16;
        code = digest_step(r, &item, sha, err);
    }
    for (int32_t i = 0; i < n_new && !code; i++) {
        int32_t id =
            sample_argmax(item.logits + (int64_t)(item.n - 1) * r->model->n_vocab, lab->n_vocab);
        item.ids = &id;
        item.n = 1;
        code = digest_step(r, &item, sha, err);
    }
    sha_finish(sha, out);
    runner_free(r);
    return code;
}
