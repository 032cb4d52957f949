/* engine.h - what the scheduler asks of an engine: rows that are opened, stepped and closed. A vtable, so that scheduler and
 * server run against a scripted engine without a model.
 *
 * An engine takes and returns token ids, never text or JSON. A *row* is one running generation. Each step the scheduler says
 * which rows take part and how much of their prompt; the engine runs the forward pass, samples, matches stop strings on the
 * tokens' bytes and reports. The answer of a row does not depend on which other rows took part or how the prompt was cut.
 * Thread: engine thread only, except engine_info (immutable). */
#ifndef PLUMB_ENGINE_ENGINE_H
#define PLUMB_ENGINE_ENGINE_H

#include "base/err.h"

#include <stdint.h>

#define ENGINE_STOPS_MAX    16  /* stop strings per request */
#define ENGINE_STOP_BYTES   256 /* bytes of one stop string */
#define ENGINE_LOGPROBS_MAX 20

struct engine_bytes { /* borrowed bytes, not terminated */
    const char *data;
    size_t len;
};

struct logit_bias {
    int32_t id;
    float bias; /* -100 and below: never */
};

/* How the next token is chosen. Order and meaning: docs/sampling.md. All "off" values are the zero of their field's note. */
struct sample_params {
    float temperature;        /* 0 = greedy */
    int32_t top_k;            /* 0 = off */
    float top_p;              /* 1 = off */
    float min_p;              /* 0 = off */
    float typical_p;          /* 1 = off */
    float xtc_probability;    /* 0 = off */
    float xtc_threshold;      /* over 0.5 = off */
    float repetition_penalty; /* 1 = off */
    float presence_penalty;   /* 0 = off */
    float frequency_penalty;  /* 0 = off */
    int32_t penalty_last_n;   /* tokens of history looked at; 0 = whole */
    uint64_t seed;
    uint32_t choice;    /* 0 for a single answer */
    int32_t n_logprobs; /* -1 = none, else top alternatives 0..ENGINE_LOGPROBS_MAX */
    const struct logit_bias *bias;
    int32_t n_bias;
};

/* One generation. Everything pointed to is borrowed until open returns; the engine copies what it keeps. */
struct engine_request {
    const int32_t *prompt; /* [n_prompt], n_prompt >= 1, every id in [0, n_vocab) */
    int32_t n_prompt;
    int32_t max_tokens; /* < 0: until the model ends or the context is full; clamped to the room */
    bool ignore_end;    /* end tokens do not end the row (benchmarks) */
    struct sample_params sample;
    const struct engine_bytes *stops; /* [n_stops] */
    int32_t n_stops;
};

struct engine_logprob {
    int32_t id;
    float logprob;
};

/* An emitted token. An end token is not emitted: it finishes the row. */
struct engine_token {
    int32_t id;
    float logprob; /* set if the request asked for logprobs */
    int32_t n_top;
    struct engine_logprob top[ENGINE_LOGPROBS_MAX]; /* descending, ties to the lowest id */
};

enum finish {
    FINISH_NONE,        /* still running */
    FINISH_END,         /* the model ended */
    FINISH_STOP_STRING, /* a stop string matched: stop_index says which */
    FINISH_LENGTH,      /* max_tokens or the context's end */
    FINISH_ERROR,       /* this row alone failed; err says why */
};

typedef int32_t row_id; /* index in [0, max_rows) of the engine */

struct engine_work {
    row_id row;
    int32_t n_prompt; /* prompt tokens to take now; 0 = the prompt is done: decode */
};

struct engine_result {
    row_id row;
    int32_t n_tokens;                  /* emitted in this step */
    const struct engine_token *tokens; /* [n_tokens], valid until the next step */
    /* Bytes of the row's whole answer so far that may be shown: the rest might still become part of a stop string, or was cut
     * by one. Counts the concatenated bytes of all emitted tokens. Never decreases; at a finish it is final. */
    int64_t text_safe;
    enum finish finish;
    int32_t stop_index; /* FINISH_STOP_STRING */
    struct err err;     /* FINISH_ERROR */
};

struct engine_info {
    const char *model_id;    /* name the API shows */
    const char *fingerprint; /* "fp_" + 12 hex digits: model, build and numerics */
    int32_t n_vocab;
    int32_t n_ctx;         /* longest sequence, prompt and answer */
    int32_t n_ctx_train;   /* the model's own */
    int32_t max_rows;      /* rows open at a time */
    int32_t max_step_rows; /* tokens in one step, all rows together */
    int64_t created;       /* Unix seconds */
};

struct engine;
struct engine_ops {
    /* Start a row. Errors: ERR_INVALID - the request cannot run at all (text for the client; prompt over the context:
     * code ERR_FULL with both numbers); ERR_NOMEM - no room now. */
    enum err_code (*open)(struct engine *e, const struct engine_request *req, row_id *row,
                          struct err *err);
    /* Run one step. work [n], each row once; sum of rows <= max_step_rows. results [n] in the order of work.
     * An error return means that the step as a whole failed: every row in it is to be closed. */
    enum err_code (*step)(struct engine *e, const struct engine_work *work, int32_t n,
                          struct engine_result *results, struct err *err);
    void (*close)(struct engine *e,
                  row_id row); /* any time between steps; frees the row's memory */
    void (*free)(struct engine *e);
};

struct engine {
    const struct engine_ops *ops;
    struct engine_info info; /* immutable after creation: any thread */
};

#endif
