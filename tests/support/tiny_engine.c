#include "support/tiny_engine.h"
#include "kernels/cpu/cpu_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t end_ids[] = { 287 };

const struct sample_params tiny_greedy = {
    .top_p = 1, .typical_p = 1, .xtc_threshold = 1, .repetition_penalty = 1, .n_logprobs = -1
};

static void tiny_engine_must(enum err_code code, const char *file, const struct err *err)
{
    if (!code)
        return;
    fprintf(stderr, "%s: %s\n", file, err->text);
    abort();
}

void tiny_engine_open(struct tiny_engine *t, const struct tiny_config *config)
{
    struct err err = { 0 };
    memset(t, 0, sizeof(*t));
    for (size_t i = 0; i < ARRAY_LEN(t->bytes); i++)
        t->bytes[i] = (struct engine_bytes){ "x", 1 };
    struct cpu_options co = { .threads = config->threads ? config->threads : 1 };
    tiny_engine_must(cpu_backend_open(&co, &t->be, &err), config->file, &err);
    if (config->wrap)
        t->be = config->wrap(t->be);
    tiny_engine_must(weights_open(config->file, &t->weights, &err), config->file, &err);
    struct model_load_options mo = { .weights = t->weights, .be = t->be };
    tiny_engine_must(model_load(&mo, &t->model, &err), config->file, &err);
    struct engine_model_options eo = {
        .model = t->model,
        .token_bytes = t->bytes,
        .end_ids = end_ids,
        .n_end = 1,
        .model_id = "tiny",
        .weights_digest = config->digest ? config->digest : "d",
        .n_ctx = config->n_ctx,
        .kv_bytes = config->kv_bytes,
        .max_rows = config->max_rows,
        .max_step_rows = config->max_step_rows ? config->max_step_rows : 32,
        .cache_type = config->cache_type ? config->cache_type : DTYPE_F16,
        .keep_bytes = config->keep_bytes,
        .disk_dir = config->disk_dir,
        .disk_bytes = config->disk_bytes ? config->disk_bytes : (int64_t)1 << 30,
        .content = { config->content },
        .numerics = config->numerics,
        .restore = config->restore,
        .restore_ctx = t,
    };
    tiny_engine_must(engine_model_new(&eo, &t->engine, &err), config->file, &err);
}

void tiny_engine_close(struct tiny_engine *t)
{
    t->engine->ops->free(t->engine);
    model_free(t->model);
    weights_close(t->weights);
    t->be->ops->close(t->be);
}

void tiny_engine_check(const struct tiny_engine *t)
{
    struct err err = { 0 };
    struct engine_usage u;
    tiny_engine_must(runner_check(engine_model_runner(t->engine), &err), "cache", &err);
    t->engine->ops->usage(t->engine, &u);
    for (int32_t i = 0; i < u.n_groups; i++)
        BUG_ON(u.groups[i].n_promised < 0 || u.groups[i].n_promised > u.groups[i].n_free ||
               u.groups[i].n_free + u.groups[i].n_kept > u.groups[i].n_pages);
}

int64_t tiny_engine_page_bytes(const struct tiny_engine *t, int group)
{
    struct engine_usage u;
    t->engine->ops->usage(t->engine, &u);
    BUG_ON(group >= u.n_groups);
    return u.groups[group].page_bytes;
}
