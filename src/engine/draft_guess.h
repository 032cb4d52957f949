/* draft_guess.h - what drafters that compute logits of their own share: the row's parameters, sampled with the row's own draws, and
 * when to stop. */
#ifndef PLUMB_ENGINE_DRAFT_GUESS_H
#define PLUMB_ENGINE_DRAFT_GUESS_H

#include "engine/draft.h"
#include "engine/runner.h"
#include "engine/sample.h"

/* What guesses of a drafter may be. */
struct guess_rules {
    int32_t n_vocab;  /* ids from there on are never guessed */
    int32_t *end_ids; /* [n_end] nothing is guessed behind them */
    int32_t n_end;
};

/* end_ids [n_end] are copied. */
void guess_rules_init(struct guess_rules *r, int32_t n_vocab, const int32_t *end_ids,
                      int32_t n_end);
void guess_rules_release(struct guess_rules *r);

/* One row: its text and its sequence in the drafter's own cache. */
struct guess {
    int32_t *ids; /* [ids_max + DRAFT_MAX] for the drafter to fill: the row's and its guesses */
    int32_t seq;
    uint8_t salt[ENGINE_SALT_BYTES];
    struct sample_params sample;
    struct logit_bias *bias; /* what sample.bias points to */
    double reach; /* chance that all guesses of the round so far come true; 1 before the first */
};

/* A row of at most ids_max ids begins. The request's parameters, with the biases of ids that a drafter of n_vocab tokens knows. Errors:
 * ERR_NOMEM; those of runner_open. */
enum err_code guess_open(struct guess *g, struct runner *rn, const struct engine_request *req,
                         int32_t ids_max, int32_t n_vocab, struct err *err) MUST_CHECK;
void guess_close(struct guess *g, struct runner *rn);
void guess_release(struct guess *g); /* without its sequence, whose runner goes away */

/* What a guess is made of. */
struct guess_source {
    float *logits;      /* [V] behind ids; written to */
    const int32_t *ids; /* [n] the row's and its guesses so far */
    int32_t n;
    float
        confidence; /* that it comes true, 0..1; negative: the probability of the choice says it */
};

/* One more guess for the ask. Returns whether another one is wanted; the ask has one more where that is so, or the last one that it wanted. */
bool guess_take(struct guess *g, struct sampler *s, const struct guess_rules *rules,
                const struct guess_source *from, struct draft_ask *a);

#endif
