/* draft.h - drafters: guesses of the ids that an answer goes on with, which the next step verifies.
 *
 * Any drafter is safe: a guess stays only where it is what the row's own sampler picks at that place (engine_step.c). How many guesses
 * are worth their rows is not the drafter's to say (speculate.h); it only tells how sure it is of each, by a class that acceptance is
 * measured for.
 * Thread: engine thread. Allocation: in new and open only. */
#ifndef PLUMB_ENGINE_DRAFT_H
#define PLUMB_ENGINE_DRAFT_H

#include "base/mem.h"
#include "engine/engine.h"
#include "model/model.h"

#define DRAFT_MAX 16 /* guesses of a row in one step */
/* Classes that acceptance is measured for, of every drafter its own. */
#define DRAFT_CLASSES      19
#define DRAFT_LOOKUP_SURE  0  /* to 7: by the length of the common ending */
#define DRAFT_MODEL_SURE   8  /* to 15: by what the draft model gives its choice */
#define DRAFT_MODEL_BEFORE 16 /* before it was asked: any of its guesses */
#define DRAFT_SPELLED      17 /* bytes that a grammar is certain of, in the likeliest tokens */
#define DRAFT_EXPECTED     18 /* ... one that is expected only */

/* What is wanted of one row, and the answer. */
struct draft_ask {
    row_id row;
    const int32_t *ids; /* [n_ids] prompt and answer so far */
    int32_t n_ids;
    int32_t n_max; /* 1..DRAFT_MAX */
    /* For a drafter that takes time: go on while all guesses so far come true with at least this chance, as far as it can tell. */
    double least;
    bool is_due;                /* the guesses are still to be made, by a drafter that takes time */
    int32_t ids_out[DRAFT_MAX]; /* [n] filled */
    int32_t n;                  /* 0 = no idea */
    int8_t sure[DRAFT_MAX];     /* [n] the class of each; -1 = it must come */
    double chance[DRAFT_MAX];   /* [n] that it comes true where those before it did (speculate.h) */
};

/* Positions [pos, pos + n) of a row that a step has computed and that stay: guesses that did not come true are not among them.
 * They come in ascending order, but not from the first one on: what a row began with (a kept or shared prefix, what came from disk) was
 * not computed, and nobody has its states; and once more from an earlier one, after a row gave up its memory. The same position of a
 * row always has the same state, whatever it was computed beside. A row of which something failed is told of no more. */
struct draft_seen {
    row_id row;
    int32_t pos, n;
    const int32_t *ids; /* [n_ids] prompt and answer so far, n_ids >= pos + n */
    int32_t n_ids;
    struct tensor states; /* [n][taps.n * D] backend memory, valid during the call */
};

struct drafter;
struct drafter_ops {
    const char *name;
    bool
        is_block; /* of one that takes time: all guesses of a row are made together, and guess_us is of all */
    /* A row begins; all of its ids, prompt and answer, are at most ids_max. Errors: ERR_NOMEM. */
    enum err_code (*open)(struct drafter *d, row_id row, const struct engine_request *req,
                          int32_t ids_max, struct err *err);
    /* Fill the asks [n], each of another open row. */
    void (*draft)(struct drafter *d, struct draft_ask *asks, int32_t n);
    /* It ends with these ids [n_ids]. */
    void (*close)(struct drafter *d, row_id row, const int32_t *ids, int32_t n_ids);
    void (*free)(struct drafter *d);
    /* Of a drafter that takes time, else NULL: us that one guess for each of n rows takes; and that the row takes before its first one,
     * when it has so many ids. 0 = not known yet. */
    double (*guess_us)(const struct drafter *d, int32_t n);
    double (*due_us)(const struct drafter *d, row_id row, int32_t n_ids);
    /* Of a drafter that takes time and wants the model's hidden states, else NULL: which ones it wants (engine_model_new asks once), and
     * what it is told after every step of the rows that it has open, prompts in their chunks too. What it computes of them it does
     * at once, on the same backend, or keeps in memory of its own. */
    const struct model_taps *(*taps)(const struct drafter *d);
    void (*see)(struct drafter *d, const struct draft_seen *seen, int32_t n);
    /* Of a drafter with backend memory of its own: its device is lost, all of that memory is freed and it has read nothing; and, once its
     * model is loaded again, ready to go on (errors: those of its new). NULL: the engine cannot go on then. */
    void (*lose)(struct drafter *d);
    enum err_code (*mend)(struct drafter *d, struct err *err);
};

struct drafter {
    const struct drafter_ops *ops;
};

/* Prompt lookup: what followed the last time that the row's ids ended as they do now, the longest such ending first (Saxena, "Prompt
 * lookup decoding", 2023), in the row itself or, where that ending is longer, in a recent answer of the same salt (draft_past.h).
 * Classes: by the length of the ending. Errors: ERR_NOMEM. */
enum err_code draft_lookup_new(int32_t max_rows, struct drafter **out, struct err *err) MUST_CHECK;
int32_t draft_lookup_sure(int32_t n_matched);

/* A smaller model of the same vocabulary, which has read the row's ids in a cache of its own and is sampled with the row's own
 * parameters and draws (Leviathan et al., "Fast inference from transformers via speculative decoding", 2022; here a guess is compared
 * with the very id that is sampled, so that what the row's draw picks of similar distributions mostly agrees). It reads long texts in
 * pieces, and guesses nothing until it knows the row's. Classes: by the probability of its choice.
 * Errors: those of runner_new; ERR_NOMEM. */
struct draft_model_options {
    struct model *model; /* borrowed, outlives the drafter */
    int32_t n_vocab;     /* of the model that it guesses for: ids from there on are never guessed */
    const int32_t *end_ids; /* [n_end] copied: nothing is guessed behind them */
    int32_t n_end;
    int64_t
        n_ctx; /* longest row; 0 = see runner.h. Rows that are longer than it can read are not guessed for */
    int64_t kv_bytes; /* of its cache */
    int32_t max_rows;
    enum dtype cache_type;
};
enum err_code draft_model_new(const struct draft_model_options *o, struct drafter **out,
                              struct err *err) MUST_CHECK;
int32_t draft_model_sure(float logprob); /* of any drafter that computes logits */

/* The model's own head for multi-token prediction (model.h: nextn, which is there): one guess of all the model's layers' work, the others of
 * its own states. It reads along while prompts and answers are computed, in a cache of its own, and is sampled as a draft model is.
 * Classes: those of a draft model. Errors: those of runner_new; ERR_NOMEM. */
struct draft_mtp_options {
    struct model *model;    /* borrowed, outlives the drafter */
    const int32_t *end_ids; /* [n_end] copied: nothing is guessed behind them */
    int32_t n_end;
    int64_t n_ctx;    /* longest row; 0 = see runner.h. Longer ones are not guessed for */
    int64_t kv_bytes; /* of its cache */
    int32_t max_rows;
    enum dtype cache_type;
};
enum err_code draft_mtp_new(const struct draft_mtp_options *o, struct drafter **out,
                            struct err *err) MUST_CHECK;
/* Of bytes of cache for both the head's part: both can hold the same tokens then. */
int64_t draft_mtp_kv(const struct model *model, int64_t bytes);

/* A drafter that reads the model's hidden states (model/projected.h; Chen et al., "DFlash", 2026) and guesses a block in one go, sampled as a
 * draft model's guesses are. Classes: by its confidence in each guess, without a head for that by the probability of its choice.
 * o->model: after model_project. Of its states it keeps what others may begin with, as far as its memory goes.
 * Errors: those of runner_new; ERR_NOMEM. */
enum err_code draft_projected_new(const struct draft_model_options *o, struct drafter **out,
                                  struct err *err) MUST_CHECK;

#endif
