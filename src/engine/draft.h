/* draft.h - drafters: guesses of the ids that an answer goes on with, which the next step verifies.
 *
 * Any drafter is safe: a guess stays only where it is what the row's own sampler picks at that place (engine_step.c). How many guesses
 * are worth their rows is not the drafter's to say (speculate.h); it only tells how sure it is, by a class that acceptance is
 * measured for.
 * Thread: engine thread. Allocation: in new and open only. */
#ifndef PLUMB_ENGINE_DRAFT_H
#define PLUMB_ENGINE_DRAFT_H

#include "base/mem.h"
#include "engine/engine.h"

#define DRAFT_MAX     16 /* guesses of a row in one step */
#define DRAFT_CLASSES 9
#define DRAFT_SPELLED \
    8 /* the class of bytes that a grammar is certain of, in the likeliest tokens */

/* What is wanted of one row, and the answer. */
struct draft_ask {
    row_id row;
    const int32_t *ids; /* [n_ids] prompt and answer so far */
    int32_t n_ids;
    int32_t n_max;              /* 1..DRAFT_MAX */
    int32_t ids_out[DRAFT_MAX]; /* [n] filled */
    int32_t n;                  /* 0 = no idea */
    int32_t sure;               /* class 0..DRAFT_CLASSES - 1; drafters: below DRAFT_SPELLED */
};

struct drafter;
struct drafter_ops {
    const char *name;
    /* A row begins; all of its ids, prompt and answer, are at most ids_max. Errors: ERR_NOMEM. */
    enum err_code (*open)(struct drafter *d, row_id row, const struct engine_request *req,
                          int32_t ids_max, struct err *err);
    /* Fill the asks [n], each of another open row. */
    void (*draft)(struct drafter *d, struct draft_ask *asks, int32_t n);
    void (*close)(struct drafter *d, row_id row);
    void (*free)(struct drafter *d);
};

struct drafter {
    const struct drafter_ops *ops;
};

/* Prompt lookup: what followed the last time that the row's ids ended as they do now, the longest such ending first (Saxena, "Prompt
 * lookup decoding", 2023). Classes: by the length of the ending. Errors: ERR_NOMEM. */
enum err_code draft_lookup_new(int32_t max_rows, struct drafter **out, struct err *err) MUST_CHECK;
int32_t draft_lookup_sure(int32_t n_matched);

#endif
