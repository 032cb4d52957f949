/* speculate.h - how many guesses a step verifies: those whose expected tokens are worth the time that their rows take.
 *
 * Two things are measured while serving: what a step costs by its number of rows (struct step_cost), and how often guesses of a class
 * are taken (struct draft_rate), of all rows and of each. A row that loses soon gets no more rows; as guesses are compared with what
 * is sampled whether they were verified or not, it gets them again when they come true, without a trial.
 * Neither decides what is sampled: the same ids come with any choice. Pure, no clock, no allocation. */
#ifndef PLUMB_ENGINE_SPECULATE_H
#define PLUMB_ENGINE_SPECULATE_H

#include "engine/draft.h"

#define STEP_COST_ROWS 64 /* larger steps are not told apart */

struct step_cost {
    float us[STEP_COST_ROWS + 1]; /* [rows] mean of the latest steps; 0 = none was measured */
};

/* A step of so many rows took us. */
void step_cost_add(struct step_cost *c, int32_t n_rows, int64_t us);
/* What it would take: between two measured counts on the line, beyond them by STEP_COST_SLOPE of a single row's for each.
 * 0 where nothing was measured. Never decreases with n_rows. */
double step_cost_of(const struct step_cost *c, int32_t n_rows);

struct draft_rate {                               /* zeroed at first */
    float n[DRAFT_CLASSES], taken[DRAFT_CLASSES]; /* of the latest first guesses */
};

/* A first guess of class `sure` came true or not. */
void draft_rate_add(struct draft_rate *r, int32_t sure, bool is_taken);
/* The chance of the next guess, where the one before it came true: the row's own, with `all` to begin with. */
double draft_rate_of(const struct draft_rate *row, const struct draft_rate *all, int32_t sure);

/* What a step has without guesses, and room for. */
struct speculate_room {
    int32_t n_rows;   /* rows of the step, of which ... */
    int32_t n_decode; /* ... so many yield a token */
    int32_t n_max;    /* guesses that are possible */
};

/* Cut the guesses of asks [n] (each chance is set) to those that pay. slow: the drafter that is to make those that are due, whose time
 * counts then; NULL = none are. Returns the tokens that come in a us so, 0 where the cost is not known (and no guess is left). */
double speculate_plan(const struct step_cost *c, const struct drafter *slow,
                      const struct speculate_room *room, struct draft_ask *asks, int32_t n);

#endif
