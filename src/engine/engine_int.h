/* engine_int.h - what the files of the real engine share. engine_model.c: rows' life and memory.  engine_step.c: steps and what they
 * emit. engine_draft.c: guesses of what comes next. engine_cuts.c: where prompts are cut. */
#ifndef PLUMB_ENGINE_ENGINE_INT_H
#define PLUMB_ENGINE_ENGINE_INT_H

#include "engine/constraint.h"
#include "engine/engine_model.h"
#include "engine/expected.h"
#include "engine/guide.h"
#include "engine/sample.h"
#include "engine/speculate.h"

/* Rows that are sampled at a time, at most: each takes 36 bytes of scratch for each token of the vocabulary. */
#define ENGINE_SAMPLERS_MAX 8

struct row {
    bool is_open;
    bool is_finished;
    bool has_failed; /* its cache may hold non-finite values */
    bool ignore_end;
    int32_t end_ids[ENGINE_ENDS_MAX]; /* [n_ends] beside the model's */
    int32_t n_ends;
    int32_t seq;
    int32_t n_prompt;
    int32_t n_ids;    /* prompt and answer so far */
    int32_t n_fed;    /* of them in the cache */
    int32_t ids_max;  /* n_prompt + the most tokens of the answer */
    int32_t fed_max;  /* the last token of an answer is never fed back */
    int32_t n_scored; /* entries of scores that are filled; n_prompt where none are wanted */
    int32_t n_score_top;
    struct engine_token *scores; /* [n_prompt] the caller's, or NULL */
    struct engine_signal signal;
    float *hidden;            /* [n_embd] the caller's, or NULL */
    struct engine_miss *miss; /* the caller's, or NULL */
    int32_t *ids;             /* [ids_max] */
    uint8_t salt[ENGINE_SALT_BYTES];
    uint64_t session;              /* 0 = none */
    int32_t cuts[ENGINE_CUTS_MAX]; /* [n_cuts] ascending: ends are kept there */
    int32_t n_cuts, cut_to_disk;   /* of them, the one that is worth a file */
    struct sample_params sample;
    struct logit_bias *bias; /* the copy that sample.bias points to */
    struct guide guide;
    struct constraint constraint;
    struct expected expected;
    struct engine_token tokens[DRAFT_MAX + 1]; /* of the last step */
    int64_t safe_at[DRAFT_MAX + 1];
    bool no_drafts, no_slow;  /* neither drafter is asked; the one that takes time is not */
    int32_t guess[DRAFT_MAX]; /* [n_guess] of the step; the first n_drafts of them are in it */
    int32_t n_guess, n_drafts;
    int8_t sure[DRAFT_MAX]; /* as in struct draft_ask */
    struct draft_rate rate;
    double allowance_us; /* that the slow drafter may take to know the row's text */
    int32_t n_quiet;     /* tokens since that drafter was asked, ... */
    int32_t probe_after; /* ... which is done at this many, whether it seems to pay or not */
    struct engine_speculation speculation;
};

struct engine_model {
    struct engine base; /* first: the vtable casts */
    char fingerprint[20], identity[ENGINE_MODEL_IDENTITY];
    char *model_id;
    struct runner *runner;
    int64_t other_kv; /* bytes of caches that were there before its own: a drafter's */
    struct sampler samplers[ENGINE_SAMPLERS_MAX]; /* one for each row that is sampled at a time */
    int n_samplers;
    bool has_warned; /* an end found no room */
    const struct engine_bytes *token_bytes;
    const int32_t *end_ids;
    int32_t n_end;
    int32_t *keep; /* [n_keep] end ids and newlines: what XTC spares */
    int32_t n_keep;
    uint32_t *no_end;               /* bit id set = it is no end id: a mask for sample_context */
    struct row *rows;               /* [max_rows] */
    struct runner_item *items;      /* [max_rows] */
    const struct engine_work *work; /* of the step that runs */
    struct drafter *drafter;        /* borrowed, or NULL */
    struct drafter *slow;           /* one that takes time; borrowed, or NULL */
    bool drafts_always;
    bool is_lost;                                         /* the last step said ERR_LOST */
    enum err_code (*restore)(void *ctx, struct err *err); /* or NULL */
    void *restore_ctx;
    int32_t drafts_max;            /* guesses of a row in a step */
    struct draft_ask *asks, *plan; /* [max_rows] */
    struct draft_seen *seen;       /* [max_rows]; NULL: nobody wants states */
    int64_t slow_us;               /* that the slow drafter took for this step */
    struct step_cost cost;         /* of steps in which nobody takes a prompt */
    struct draft_rate rate;        /* of all rows */
};

static inline struct engine_model *engine_model_of(struct engine *e)
{
    return (struct engine_model *)(void *)e;
}

static inline struct row *engine_model_row(struct engine_model *em, row_id id)
{
    BUG_ON(id < 0 || id >= em->base.info.max_rows || !em->rows[id].is_open);
    return &em->rows[id];
}

/* What the row has taken is kept for those that begin alike; what failed is not. goes_on: full pages alone. */
void row_keep(struct engine_model *em, const struct row *row, bool goes_on);

/* One more id of the answer, for guide and constraint. Returns as guide_feed does. *code: the row has failed, err says why. */
int32_t row_feed(struct row *row, const struct engine_bytes *bytes, int32_t id, enum err_code *code,
                 struct err *err);

/* --- guesses (engine_draft.c) --- */

/* A row begins and ends for the drafters; one that has no memory for it is not asked. */
void draft_open(struct engine_model *em, row_id id, const struct engine_request *req);
void draft_close(struct engine_model *em, row_id id);
/* Lengthen the items [n] of rows that decode by the guesses that this step verifies; n_out, n_rows: room for rows with logits, and for
 * rows at all, that the step has left. */
void draft_plan(struct engine_model *em, const struct engine_work *work, int32_t n, int32_t n_out,
                int32_t n_rows);
/* After the step: forget what did not come true, and learn from it. */
void draft_settle(struct engine_model *em, const struct engine_work *work,
                  struct engine_result *results, int32_t n, int64_t us);

/* --- engine_cuts.c --- */
void engine_cuts_choose(const struct engine_model *em, struct row *row,
                        const struct engine_request *req);
/* The next one behind what the row has taken, or INT32_MAX. And does it stand at one? */
int32_t engine_cuts_next(const struct row *row);
bool engine_cuts_is_at(const struct row *row);

/* runner_options.choose: choices of the step's rows by their short lists. */
void engine_model_choose(void *engine_model, struct runner_item *items, int32_t n);

enum err_code engine_model_step(struct engine *e, const struct engine_work *work, int32_t n,
                                struct engine_result *results, struct err *err);

#endif
