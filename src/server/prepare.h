/* prepare.h - from the bytes of a request's body to what the scheduler takes, or to a whole reply, or to an error.
 *
 * Pure: reads the model and the configuration, which never change, and touches nothing else. Thread: preparation workers. */
#ifndef PLUMB_SERVER_PREPARE_H
#define PLUMB_SERVER_PREPARE_H

#include "sched/sched.h"
#include "server/api_error.h"
#include "server/limits.h"
#include "server/server.h"

enum prepare_kind {
    PREPARE_CHAT,
    PREPARE_COMPLETIONS,
    PREPARE_TOKENIZE,
    PREPARE_DETOKENIZE,
    PREPARE_APPLY_TEMPLATE,
};

struct prepare_context {
    const struct server_model *model;
    const struct server_config *config;
    const char *model_id;
};

/* One prepared request. */
struct prepared {
    enum prepare_kind kind;
    struct api_error error; /* status != 0: only this is set */
    struct buf reply;       /* not a generation: the JSON to send */
    /* a generation from here */
    bool is_stream, includes_usage;
    int32_t n_logprobs; /* -1 = none */
    int32_t n_choices;  /* prompts x n, prompt-major */
    struct sched_request
        *requests[LIMIT_CHOICES]; /* [n_choices]; ids are not set yet; NULL once taken */
    char *echo[LIMIT_CHOICES];    /* text before the answer, or NULL */
    int64_t prompt_tokens;        /* each prompt once */
    uint64_t seed;
    char ignored[LIMIT_IGNORED_BYTES];
};

/* body is read only. seed: what to use where the request names none. */
struct prepared *prepare_request(const struct prepare_context *ctx, enum prepare_kind kind,
                                 const char *body, size_t n, uint64_t seed);
void prepare_free(struct prepared *p); /* and the requests that nobody took */

#endif
