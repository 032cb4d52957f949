#include "cli/load.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem_limit.h"
#include "cli/load_split.h"
#include "cli/load_template.h"
#include "cli/load_tokenizer.h"
#include "cli/model_path.h"
#include "engine/tier_space.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ref/ref.h"
#include "model/projected.h"

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

/* Of layer i's cache, a page. */
static int64_t load_page_bytes(const struct load *l, int64_t i)
{
    const struct model_layer *layer = &l->model->layers[i];
    const struct backend *be = model_layer_be(l->model, i);
    return layer->group == MODEL_GROUP_STATE || layer->kv_from != i
               ? 0
               : (int64_t)be->ops->kv_page_bytes(be, l->cache_type, layer->n_kv_heads,
                                                 layer->head_dim);
}

/* A quarter of what the weights have left of the GPU's memory, and no more than leaves the CPU's layers a quarter of the host's. */
static int64_t load_kv_of_gpu(const struct load *l)
{
    int64_t quarter = l->be->ops->free_bytes(l->be) / 4, mine = 0, all = 0;
    for (int64_t i = 0; i < l->model->n_layers; i++) {
        int64_t page = load_page_bytes(l, i);
        mine += i >= l->model->n_host_layers ? page : 0;
        all += page;
    }
    if (mine > 0)
        quarter = (int64_t)((double)quarter * (double)all / (double)mine);
    if (mine < all) {
        double host = (double)load_kv_default() * (double)all / (double)(all - mine);
        quarter = (double)quarter > host ? (int64_t)host : quarter;
    }
    quarter = quarter > LOAD_KV_MIN ? quarter : LOAD_KV_MIN;
    log_info("load", "cache memory: %lld MiB, by a quarter of what is free on the GPU",
             (long long)(quarter >> 20));
    return quarter;
}

/* --- parts --- */

static enum err_code load_cpu(const struct load *l, struct backend **out, struct err *err)
{
    const char *name = l->o->backend ? l->o->backend : "cpu";
    struct cpu_options cpu = { .threads = (int)l->o->threads };
    if (strcmp(name, "ref") == 0)
        return ref_backend_open(out, err);
    if (l->o->cpu_mask) {
        enum err_code code = cpu_level_parse(l->o->cpu_mask, &cpu.level, err);
        if (code)
            return err_prefix(err, code, "--cpu-mask");
    }
    if (strcmp(name, "cpu") == 0)
        return cpu_backend_open(&cpu, out, err);
    return err_set(err, ERR_INVALID, "--backend: '%s' is not one of cpu, ref", name);
}

/* The backend wrapped in the one that compares or tells. */
static enum err_code load_wrapped(struct load *l, struct err *err)
{
    const struct load_compare *c = l->o->compare;
    enum err_code code = load_cpu(l, &l->be, err);
    if (code)
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

/* The GPU's backend, and the CPU's beside it. */
static enum err_code load_cuda(struct load *l, struct err *err)
{
    struct cuda_device dev;
    enum err_code code = cuda_device_find(0, &dev, err);
    if (!code)
        code = load_cpu(l, &l->host, err);
    if (!code)
        code = cuda_backend_open(&(struct cuda_options){ .host = l->host }, &l->be, err);
    if (!code && !l->be->ops->caches(l->be, l->cache_type))
        code = err_set(err, ERR_UNSUPPORTED,
                       "--cache-type: the GPU's backend has no f32; --device cpu has all");
    if (!code)
        log_info("load", "GPU 0: %s, compute capability %d.%d, %lld of %lld MiB are free", dev.name,
                 dev.major, dev.minor, (long long)(dev.free_bytes >> 20),
                 (long long)(dev.bytes >> 20));
    return code;
}

static void load_close_backend(struct load *l)
{
    if (l->be)
        l->be->ops->close(l->be);
    if (l->host)
        l->host->ops->close(l->host);
    l->be = l->host = NULL;
}

static bool load_is_auto(const struct load *l)
{
    return !l->o->device || strcmp(l->o->device, "auto") == 0;
}

/* What --device and --backend say. is_refused: the GPU could not take the model. */
static enum err_code load_backend(struct load *l, bool is_refused, struct err *err)
{
    const char *device = l->o->device ? l->o->device : "auto";
    struct err why = { 0 };
    if (l->o->compare)
        return load_wrapped(l, err);
    if (strcmp(device, "cuda") == 0 && !load_split_is_none(l->o->gpu_layers))
        return load_cuda(l, err);
    if (!load_is_auto(l) && strcmp(device, "cpu") != 0 && strcmp(device, "cuda") != 0)
        return err_set(err, ERR_INVALID, "--device: '%s' is not one of cpu, cuda, auto", device);
    bool tries = load_is_auto(l) && !is_refused && cuda_is_built() && !l->o->backend &&
                 !load_split_is_none(l->o->gpu_layers);
    if (tries && load_cuda(l, &why) == ERR_OK)
        return ERR_OK;
    if (tries) {
        log_info("load", "the CPU computes: %s", why.text);
        load_close_backend(l);
    }
    return load_cpu(l, &l->be, err);
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

/* Which layers are the GPU's. */
static enum err_code load_split(const struct load *l, struct model_load_options *mo,
                                struct err *err)
{
    struct load_split split;
    struct load_split_options o = { .weights = l->weights,
                                    .be = l->be,
                                    .gpu_layers = l->o->gpu_layers,
                                    .cpu_experts = l->o->cpu_experts,
                                    .ctx = l->o->ctx,
                                    .kv_memory = l->o->kv_memory,
                                    .cache_type = l->cache_type,
                                    .step_rows = LOAD_STEP_ROWS_GPU,
                                    .wants_head = l->o->wants_head };
    enum err_code code = load_split_plan(&o, &split, err);
    mo->n_host_layers = split.n_host_layers;
    mo->n_host_experts = split.n_host_experts;
    mo->host = split.n_host_layers + split.n_host_experts > 0 ? l->host : NULL;
    return code;
}

static enum err_code load_model(struct load *l, struct err *err)
{
    struct model_load_options mo = { .weights = l->weights,
                                     .be = l->be,
                                     .ctx = l,
                                     .nextn_err = l->o->wants_head ? &l->no_head : NULL };
    if (l->host) {
        enum err_code refused = load_split(l, &mo, err);
        if (refused)
            return refused;
    }
    if (isatty(STDERR_FILENO))
        mo.on_tensor = load_progress;
    return model_load(&mo, &l->model, err);
}

/* With --device auto the CPU takes what the GPU cannot. */
static enum err_code load_model_anywhere(struct load *l, struct err *err)
{
    enum err_code code = load_model(l, err);
    if ((code != ERR_NOMEM && code != ERR_UNSUPPORTED) || !load_is_auto(l) || !l->host)
        return code;
    log_warn("load", "the CPU computes: %s", err->text);
    load_close_backend(l);
    code = load_backend(l, true, err);
    return code ? code : load_model(l, err);
}

enum err_code load_open(struct load *l, const struct load_options *o, struct err *err)
{
    int64_t start = clock_us();
    *l = (struct load){ .o = o };
    enum err_code code = load_split_check(o->gpu_layers, o->cpu_experts, err);
    if (!code)
        code = load_cache_type(l, err);
    if (!code)
        code = load_file(l, err);
    if (!code)
        code = model_adapt(l->weights, err);
    if (!code && model_is_projected(l->weights))
        code = err_set(err, ERR_UNSUPPORTED,
                       "%s: it guesses for another model, and answers nothing itself: --model "
                       "THAT --speculate draft:%s",
                       l->id, o->model);
    if (!code)
        code = load_rope(l->weights, &o->rope, err);
    l->file_us = clock_us() - start;
    int64_t t = clock_us();
    if (!code)
        code = load_tokenizer(l->weights, &l->tokenizer, err);
    l->text_us = clock_us() - t;
    if (!code)
        code = load_backend(l, false, err);
    t = clock_us();
    if (!code)
        code = load_model_anywhere(l, err);
    if (!code)
        l->model->sep_id = l->model->n_labels > 0 ? tokenizer_frame(l->tokenizer).tail : -1;
    if (!code && (l->model->is_two_way || l->model->n_labels > 0) && !o->takes_embedders)
        code = err_set(err, ERR_UNSUPPORTED, "%s: %s", l->id,
                       l->model->n_labels > 0 ? ENGINE_CLASSIFIER_TEXT : ENGINE_EMBEDDER_TEXT);
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

/* The GPU is lost: the engine has given up what it had there, and so do the models here; then all of it once more. */
static enum err_code load_restore(void *ctx, struct err *err)
{
    struct load *l = ctx;
    struct model_load_options mo = { .weights = l->weights,
                                     .be = l->be,
                                     .host = l->model->host,
                                     .nextn_err = l->model->nextn ? &l->no_head : NULL };
    if (!l->be->ops->reset)
        return err_set(err, ERR_UNSUPPORTED, "the %s backend has no way back", l->be->ops->name);
    model_unload(l->model);
    if (l->draft.model)
        model_unload(l->draft.model);
    enum err_code code = l->be->ops->reset(l->be, err);
    if (!code)
        code = model_reload(l->model, &mo, err);
    if (!code && l->draft.model) {
        mo = (struct model_load_options){ .weights = l->draft.weights, .be = l->be };
        code = model_reload(l->draft.model, &mo, err);
    }
    return code;
}

/* The draft model, which takes its part of the memory that the engine was to have. */
static enum err_code load_draft(struct load *l, const char *path, struct engine_model_options *o,
                                struct err *err)
{
    struct load_draft_options d = { .path = path,
                                    .model = l->model,
                                    .tokenizer = l->tokenizer,
                                    .be = l->be,
                                    .n_ctx = o->n_ctx,
                                    .kv_bytes = o->kv_bytes,
                                    .max_rows = o->max_rows,
                                    .cache_type = o->cache_type };
    enum err_code code = load_draft_open(&l->draft, &d, err);
    if (!code)
        o->kv_bytes -= load_draft_kv(l->model, l->draft.model, o->kv_bytes);
    return code;
}

/* The model's own head, likewise. */
static enum err_code load_head(struct load *l, bool is_needed, struct engine_model_options *o,
                               struct err *err)
{
    if (!l->model->nextn && is_needed)
        return err_set(err, ERR_UNSUPPORTED, "--speculate mtp: %s: %s; auto does without", l->id,
                       l->no_head.text);
    if (!l->model->nextn)
        return ERR_OK;
    struct draft_mtp_options d = { .model = l->model,
                                   .end_ids = o->end_ids,
                                   .n_end = o->n_end,
                                   .n_ctx = o->n_ctx,
                                   .kv_bytes = draft_mtp_kv(l->model, o->kv_bytes),
                                   .max_rows = o->max_rows,
                                   .cache_type = o->cache_type };
    o->kv_bytes -= d.kv_bytes;
    log_info("draft", "the model's head for multi-token prediction guesses");
    enum err_code code = draft_mtp_new(&d, &l->draft.drafter, err);
    return code ? err_prefix(err, code, "--speculate") : ERR_OK;
}

enum err_code load_engine(struct load *l, int32_t max_rows, const struct load_engine_options *keep,
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
                                      .max_step_rows = l->host ? LOAD_STEP_ROWS_GPU : 0,
                                      .keep_bytes = keep->bytes,
                                      .disk_dir = keep->dir,
                                      .disk_bytes = keep->disk_bytes,
                                      .cache_type = l->cache_type,
                                      .restore = load_restore,
                                      .restore_ctx = l };
    if (o.kv_bytes == 0)
        o.kv_bytes = l->host ? load_kv_of_gpu(l) : load_kv_default();
    if (keep->dir) {
        int64_t start = clock_us();
        tier_space_content(l->weights, o.content);
        log_debug("tier", "the weights' bytes were hashed in %.0f ms",
                  (double)(clock_us() - start) * 1e-3);
    }
    o.end_ids = tokenizer_end_ids(l->tokenizer, &o.n_end);
    enum err_code code = keep->speculates ? draft_lookup_new(max_rows, &l->drafter, err) : ERR_OK;
    if (!code && keep->draft_model)
        code = load_draft(l, keep->draft_model, &o, err);
    else if (!code)
        code = load_head(l, keep->needs_head, &o, err);
    o.drafter = l->drafter;
    o.slow_drafter = l->draft.drafter;
    return code ? code : engine_model_new(&o, &l->engine, err);
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
    if (l->drafter)
        l->drafter->ops->free(l->drafter);
    load_draft_close(&l->draft);
    mem_free(MEM_CAT_TOKENIZER, l->token_bytes);
    model_free(l->model);
    template_free(l->chat_template);
    json_doc_release(&l->template_own);
    tokenizer_free(l->tokenizer);
    load_close_backend(l);
    weights_close(l->weights);
    mem_free(MEM_CAT_BASE, l->id);
    *l = (struct load){ 0 };
}
