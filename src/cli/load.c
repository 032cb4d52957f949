#include "cli/load.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem_limit.h"
#include "cli/load_template.h"
#include "cli/load_tokenizer.h"
#include "cli/model_path.h"
#include "engine/tier_space.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/ref/ref.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOAD_KV_MIN ((int64_t)64 << 20) /* of cache, where the machine has next to nothing left */

/* --- memory --- */

int64_t load_kv_default(void)
{
    int64_t available = mem_limit_available(""), quarter = available / 4;
    if (quarter < LOAD_KV_MIN)
        quarter = LOAD_KV_MIN;
    log_info("load", "cache memory: %lld MiB, a quarter of the %lld MiB that are available",
             (long long)(quarter >> 20), (long long)(available >> 20));
    return quarter;
}

/* --- parts --- */

static enum err_code load_named_backend(struct load *l, struct err *err)
{
    const char *name = l->o->backend ? l->o->backend : "cpu";
    struct cpu_options cpu = { .threads = (int)l->o->threads };
    if (strcmp(name, "ref") == 0)
        return ref_backend_open(&l->be, err);
    if (l->o->cpu_mask) {
        enum err_code code = cpu_level_parse(l->o->cpu_mask, &cpu.level, err);
        if (code)
            return err_prefix(err, code, "--cpu-mask");
    }
    if (strcmp(name, "cpu") == 0)
        return cpu_backend_open(&cpu, &l->be, err);
    return err_set(err, ERR_INVALID, "--backend: '%s' is not one of cpu, ref", name);
}

static enum err_code load_backend(struct load *l, struct err *err)
{
    const struct load_compare *c = l->o->compare;
    enum err_code code = load_named_backend(l, err);
    if (code || !c)
        return code;
    struct compare_options o = { .fast = l->be, .on_op = c->on_op, .ctx = c->ctx };
    if (!c->is_trace)
        code = ref_backend_open(&o.oracle, err);
    if (!code)
        code = compare_backend_open(&o, &l->be, err);
    if (code && o.oracle)
        o.oracle->ops->close(o.oracle);
    return code;
}

static enum err_code load_cache_type(struct load *l, struct err *err)
{
    static const struct {
        const char *name;
        enum dtype type;
    } types[] = { { "f16", DTYPE_F16 },
                  { "bf16", DTYPE_BF16 },
                  { "f32", DTYPE_F32 },
                  { "q8", DTYPE_KV_Q8 },
                  { "q4", DTYPE_KV_Q4 } };
    const char *name = l->o->cache_type ? l->o->cache_type : "f16";
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (strcmp(types[i].name, name) == 0) {
            l->cache_type = types[i].type;
            return ERR_OK;
        }
    return err_set(err, ERR_INVALID, "--cache-type: '%s' is not one of f16, bf16, f32, q8, q4",
                   name);
}

static void load_progress(void *ctx, int32_t done, int32_t all)
{
    const struct load *l = ctx;
    int percent = (int)((int64_t)done * 100 / all), before = (int)((int64_t)(done - 1) * 100 / all);
    if (percent != before)
        fprintf(stderr, "\rloading %s: %d %%", l->id, percent);
    if (done == all)
        fprintf(stderr, "\r\033[K");
}

static enum err_code load_token_bytes(struct load *l, struct err *err)
{
    int32_t n = tokenizer_n_tokens(l->tokenizer);
    if (n > l->model->n_vocab)
        return err_set(err, ERR_INVALID, "the vocabulary has %d tokens, the model's head %lld", n,
                       (long long)l->model->n_vocab);
    l->token_bytes =
        mem_try_array(MEM_CAT_TOKENIZER, (size_t)l->model->n_vocab, sizeof(*l->token_bytes));
    if (!l->token_bytes)
        return err_set(err, ERR_NOMEM, "no memory for the bytes of %lld tokens",
                       (long long)l->model->n_vocab);
    for (int64_t i = 0; i < l->model->n_vocab; i++) {
        struct tokenizer_str s = tokenizer_bytes(l->tokenizer, (int32_t)i, false);
        l->token_bytes[i] = (struct engine_bytes){ s.data, s.len };
    }
    return ERR_OK;
}

static enum err_code load_file(struct load *l, struct err *err)
{
    struct buf path, id;
    buf_init(&path, MEM_CAT_BASE, 4096);
    buf_init(&id, MEM_CAT_BASE, 4096);
    enum err_code code = model_path(l->o->model, &path, err);
    if (!code)
        code = weights_open(path.data, &l->weights, err);
    if (!code) {
        model_path_id(path.data, &id);
        l->id = buf_take(&id, NULL);
    }
    buf_release(&path);
    buf_release(&id);
    return code;
}

enum err_code load_open(struct load *l, const struct load_options *o, struct err *err)
{
    int64_t start = clock_us();
    *l = (struct load){ .o = o };
    enum err_code code = load_cache_type(l, err);
    if (!code)
        code = load_file(l, err);
    if (!code)
        code = model_adapt(l->weights, err);
    if (!code)
        code = load_rope(l->weights, &o->rope, err);
    l->file_us = clock_us() - start;
    int64_t t = clock_us();
    if (!code)
        code = load_tokenizer(l->weights, &l->tokenizer, err);
    l->text_us = clock_us() - t;
    if (!code)
        code = load_backend(l, err);
    t = clock_us();
    if (!code) {
        struct model_load_options mo = { .weights = l->weights, .be = l->be, .ctx = l };
        if (isatty(STDERR_FILENO))
            mo.on_tensor = load_progress;
        code = model_load(&mo, &l->model, err);
    }
    if (!code && l->model->is_two_way && !o->takes_embedders)
        code = err_set(err, ERR_UNSUPPORTED, "%s: %s", l->id, ENGINE_EMBEDDER_TEXT);
    l->weights_us = clock_us() - t;
    if (!code)
        load_rope_warn(l->weights, &o->rope, o->ctx, l->model->n_ctx_train);
    if (!code)
        code = load_token_bytes(l, err);
    if (code)
        load_close(l);
    l->load_us = clock_us() - start;
    return code;
}

enum err_code load_engine(struct load *l, int32_t max_rows, const struct load_keep *keep,
                          struct err *err)
{
    char digest[65];
    weights_digest(l->weights, digest);
    struct engine_model_options o = { .model = l->model,
                                      .token_bytes = l->token_bytes,
                                      .model_id = l->id,
                                      .weights_digest = digest,
                                      .n_ctx = l->o->ctx,
                                      .kv_bytes = l->o->kv_memory,
                                      .max_rows = max_rows,
                                      .keep_bytes = keep->bytes,
                                      .disk_dir = keep->dir,
                                      .disk_bytes = keep->disk_bytes,
                                      .cache_type = l->cache_type };
    if (o.kv_bytes == 0)
        o.kv_bytes = load_kv_default();
    if (keep->dir) {
        int64_t start = clock_us();
        tier_space_content(l->weights, o.content);
        log_debug("tier", "the weights' bytes were hashed in %.0f ms",
                  (double)(clock_us() - start) * 1e-3);
    }
    o.end_ids = tokenizer_end_ids(l->tokenizer, &o.n_end);
    return engine_model_new(&o, &l->engine, err);
}

enum err_code load_chat(struct load *l, struct err *err)
{
    if (!weights_meta(l->weights, "tokenizer.chat_template"))
        return ERR_OK;
    enum err_code code = load_template(l->weights, &l->chat_template, err);
    return code ? code : load_template_own(l->weights, &l->template_own, err);
}

struct engine *load_take_engine(struct load *l)
{
    struct engine *e = l->engine;
    l->engine = NULL;
    return e;
}

void load_close(struct load *l)
{
    if (l->engine)
        l->engine->ops->free(l->engine);
    mem_free(MEM_CAT_TOKENIZER, l->token_bytes);
    model_free(l->model);
    template_free(l->chat_template);
    json_doc_release(&l->template_own);
    tokenizer_free(l->tokenizer);
    if (l->be)
        l->be->ops->close(l->be);
    weights_close(l->weights);
    mem_free(MEM_CAT_BASE, l->id);
    *l = (struct load){ 0 };
}
