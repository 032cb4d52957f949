/* load_draft.h - what guesses for a model: --speculate draft:PATH, a smaller model or a drafter that reads its hidden states. The file
 * says which. */
#ifndef PLUMB_CLI_LOAD_DRAFT_H
#define PLUMB_CLI_LOAD_DRAFT_H

#include "engine/draft.h"
#include "tokenizer/tokenizer.h"
#include "weights/weights.h"

struct load_draft {
    struct weights *weights;
    struct model *model;
    struct drafter *drafter;
};

struct load_draft_options {
    const char *path; /* as --model */
    /* The model that it guesses for. */
    const struct model *model;
    const struct tokenizer *tokenizer;
    struct backend *be; /* both are computed on it */
    int64_t n_ctx;      /* 0 = the draft model's */
    int64_t
        kv_bytes; /* of the cache of both; load_draft_kv says which part of it is the draft model's */
    int32_t max_rows;
    enum dtype cache_type;
};

/* Errors: of loading (named with --speculate and the path); ERR_INVALID - another vocabulary, with the first token that differs;
 * those of model_project. */
enum err_code load_draft_open(struct load_draft *d, const struct load_draft_options *o,
                              struct err *err) MUST_CHECK;
/* Of bytes of cache for both models the draft model's part: both can hold the same tokens then. */
int64_t load_draft_kv(const struct model *model, const struct model *draft, int64_t bytes);
void load_draft_close(struct load_draft *d); /* fine on a zeroed struct */

#endif
