/* engine_model.h - the real engine: engine.h over a model, its paged cache, the sampler and stop strings.
 *
 * Owns: the runner and one small record per open row (ids, bias, stop strings; allocated at open, freed at close).
 * Borrows: model, token bytes, end ids: they outlive the engine. grow, share, rewind and step allocate nothing. */
#ifndef PLUMB_ENGINE_ENGINE_MODEL_H
#define PLUMB_ENGINE_ENGINE_MODEL_H

#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/runner.h"

struct engine_model_options {
    struct model *model;
    const struct engine_bytes
        *token_bytes;       /* [n_vocab] what each token adds to a text; "" for control tokens */
    const int32_t *end_ids; /* [n_end] ids that end an answer */
    int32_t n_end;
    const char *model_id;         /* copied */
    const char *weights_digest;   /* goes into the fingerprint */
    int64_t n_ctx;                /* 0 = see runner.h */
    int64_t kv_bytes;             /* 0 = see runner.h */
    int32_t max_rows;             /* 0 = ENGINE_MODEL_ROWS */
    int32_t max_step_rows;        /* 0 = ENGINE_MODEL_STEP_ROWS */
    enum dtype cache_type;        /* F32 unless set: the commands pass F16 */
    int64_t keep_bytes;           /* see runner.h */
    const char *disk_dir;         /* where kept histories are on disk; NULL = nowhere */
    int64_t disk_bytes;           /* of that directory's files, at most */
    uint8_t content[16];          /* tier_space_content of the weights, where there is a disk_dir */
    const char *numerics;         /* NULL = the backend's; tests name others */
    struct drafter *drafter;      /* guesses the next ids; borrowed, NULL = none does */
    struct drafter *slow_drafter; /* one that takes time; borrowed, NULL = none */
    bool drafts_always;           /* every guess is verified, whether it pays or not (tests) */
    /* The model's device was lost and all backend memory of the engine is freed: open it anew (backend_ops.reset) and load again what was
     * loaded (model_reload). NULL: the engine cannot go on then. */
    enum err_code (*restore)(void *ctx, struct err *err);
    void *restore_ctx;
};

#define ENGINE_MODEL_ROWS      16
#define ENGINE_MODEL_STEP_ROWS 512
#define ENGINE_MODEL_BLOCK \
    16 /* activations are laid out in blocks of 16 rows: 48 rows took 180 ms, 50 took 300 */
#define ENGINE_MODEL_OUT 32 /* rows of a step with logits, at least: what a scored prompt takes */

/* Guesses of a row in one step where layers are recurrent: each row's inputs are kept until it is known whether it stays, in a model of
 * 24 such layers and 16 rows 13 MiB for each guess. */
#define ENGINE_MODEL_STATE_DRAFTS 4

/* Logs a table of the process's memory: it takes no more for models and answers afterwards.
 * Errors: those of runner_new; ERR_NOMEM; ERR_UNSUPPORTED - a drafter's model. Free with (*out)->ops->free. */
enum err_code engine_model_new(const struct engine_model_options *o, struct engine **out,
                               struct err *err) MUST_CHECK;

/* What open requests take at most, all rows together. */
int64_t engine_model_request_bytes(const struct engine *e);

/* The engine's runner, for tests: runner_check after every operation. */
const struct runner *engine_model_runner(const struct engine *e);

/* "fp_" and 12 hex digits of a hash over the weights' digest, the program's version, the backend's numerics and the cache's type:
 * what the bits of an answer depend on beside the request. out[20]. */
void engine_model_fingerprint(const char *weights_digest, const char *numerics,
                              enum dtype cache_type, char out[20]);
#define ENGINE_MODEL_IDENTITY 192 /* bytes of the text that is hashed, engine_info's identity */

#endif
