/* projected.h - drafters that read another model's hidden states: bound to that model, and from their logits to guesses.
 *
 * The models themselves are struct model with projected.block > 0 (family_projected.c). Thread: engine thread. Host backends alone.
 * Letters: those of model.h, R rank of the head's bias. */
#ifndef PLUMB_MODEL_PROJECTED_H
#define PLUMB_MODEL_PROJECTED_H

#include "model/model.h"

/* Whether the weights (after model_adapt) are of such a drafter. */
bool model_is_projected(const struct weights *w);

/* Make the drafter m one of target's, which is on the same backend and outlives it: m borrows the embedding and the vocabulary's head where it
 * has none. Errors: ERR_INVALID - width, layers, vocabulary or mask do not fit (names both); ERR_UNSUPPORTED - target's states are none
 * that a drafter knows, or the backend is no host. */
enum err_code model_project(struct model *m, const struct model *target,
                            struct err *err) MUST_CHECK;

/* The head that goes from guess to guess of several rows at a time, and what it thinks of each. */
struct projected_walk {
    const struct model *m;
    int32_t max_rows;
    size_t bytes;
    float *block; /* one allocation of `bytes` */
    /* [max_rows][.]: R of the guess before, what the bias is made of, what that is made of, V */
    float *in, *made, *joint, *bias;
    float *state;        /* [max_rows][R] of the recurrent head, by slots */
    float *conf;         /* [max_rows] */
    float *next;         /* [n_candidates][R] */
    int32_t *candidates; /* [n_candidates] host memory */
};

struct projected_guess {
    int32_t slot;        /* in [0, max_rows): the row's, from guess to guess */
    int32_t prev;        /* the id in front */
    const float *hidden; /* [D] of the block's row that guesses */
    float *
        logits; /* [V] of it; the bias is added; behind a selector all but its candidates' are hugely negative */
    float
        confidence; /* set: that it comes true, where the guesses before it did; -1 = the model has no word for it */
};

/* Errors: ERR_NOMEM. */
enum err_code projected_walk_init(struct projected_walk *w, const struct model *m, int32_t max_rows,
                                  struct err *err) MUST_CHECK;
void projected_walk_release(struct projected_walk *w); /* fine on a zeroed walk */
/* The slot's row begins a block. */
void projected_walk_begin(struct projected_walk *w, int32_t slot);
/* The next guess of each of n <= max_rows rows. */
void projected_walk_step(struct projected_walk *w, struct projected_guess *guesses, int32_t n);

#endif
