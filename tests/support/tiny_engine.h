/* tiny_engine.h - the real engine on a checkpoint of tests/golden/tiny, on the fast backend. Failures abort with the text. */
#ifndef PLUMB_TESTS_SUPPORT_TINY_ENGINE_H
#define PLUMB_TESTS_SUPPORT_TINY_ENGINE_H

#include "engine/engine_model.h"

#define TINY "tests/golden/tiny/"

struct tiny_engine {
    struct backend *be;
    struct weights *weights;
    struct model *model;
    struct engine *engine;
    struct engine_bytes bytes[512]; /* every token spells "x" */
};

/* kv_bytes 0: plenty. At most 32 tokens a step unless max_step_rows says otherwise (0 = 32). End id 287. */
struct tiny_config {
    const char *file;
    int32_t n_ctx, max_rows, max_step_rows;
    int64_t kv_bytes, keep_bytes;
    int threads; /* 0 = 1 */
    /* Kept histories on disk; NULL = none. What else names their space, where it is not the usual. */
    const char *disk_dir;
    int64_t disk_bytes;    /* 0 = 1 GiB */
    enum dtype cache_type; /* 0 = F16 */
    const char *digest, *numerics;
    uint8_t content;
    /* The backend that is opened, in its place one around it, and what the engine does when that is lost. NULL = as it is */
    struct backend *(*wrap)(struct backend *be);
    enum err_code (*restore)(void *t, struct err *err);
};

void tiny_engine_open(struct tiny_engine *t, const struct tiny_config *config);
void tiny_engine_close(struct tiny_engine *t);

/* runner_check, and the ledger adds up. */
void tiny_engine_check(const struct tiny_engine *t);

/* Bytes of one page of the model's n-th kind of cache. */
int64_t tiny_engine_page_bytes(const struct tiny_engine *t, int group);

extern const struct sample_params tiny_greedy;

#endif
