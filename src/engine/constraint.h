/* constraint.h - a row's grammar: which tokens may come next, and what has come.
 *
 * The grammar's text is the answer proper: it begins behind a think span (guide.h) and behind ids that were forced; what comes before
 * it in an answer is free. Behind a span some blanks may stand before it. An end id is let through exactly where the text may end.
 * Guesses are tried on a copy of the state, so that there is nothing to roll back when they turn out wrong.
 * Owns: the states, the mask. Allocation: in init only. Not thread-safe. */
#ifndef PLUMB_ENGINE_CONSTRAINT_H
#define PLUMB_ENGINE_CONSTRAINT_H

#include "engine/guide.h"
#include "grammar/grammar.h"

#define CONSTRAINT_BLANKS 16 /* between a span and the text */
#define CONSTRAINT_MARK \
    0xFF /* a token whose bytes begin with it shows no text: a marker's control token */

struct constraint {
    struct grammar_state *state; /* NULL: the answer is free */
    /* private to constraint.c from here */
    struct grammar_state *probe; /* for what may not stay */
    struct grammar_vocab *vocab;
    uint32_t *mask; /* [n_vocab] bits */
    bool fits;      /* what has come while a span might yet open */
    int32_t n_blanks;
    struct grammar_layout layout;
    int whole; /* is there a token with more behind a whole end of a span? -1: nobody has looked */
};

struct constraint_ends {       /* ids that end an answer */
    const int32_t *ids, *more; /* [n_ids], [n_more] */
    int32_t n_ids, n_more;
    bool is_ignored; /* they come only where nothing else can */
};

/* g (referenced) may be NULL. Errors: ERR_NOMEM; ERR_INVALID - it is of another vocabulary. Release with constraint_release (fine on
 * a zeroed struct). */
enum err_code constraint_init(struct constraint *c, struct grammar *g, int32_t n_vocab,
                              struct err *err) MUST_CHECK;
void constraint_release(struct constraint *c);
size_t constraint_bytes_max(int32_t n_vocab); /* memory beside the struct */

/* The ids that may come next: bit sets as in sample.h. Valid until the next call. Errors: ERR_FULL - the grammar's bounds do not hold them;
 * ERR_INVALID - no token of the vocabulary goes on. */
enum err_code constraint_mask(struct constraint *c, const struct guide *g,
                              const struct constraint_ends *ends, const uint32_t **mask,
                              struct err *err) MUST_CHECK;
/* The guide was fed id; before it stood at `was`, and forced it if is_forced. Errors: ERR_FULL - the text needs more stacks than the bounds
 * allow; ERR_INVALID - it is not in the grammar. */
enum err_code constraint_feed(struct constraint *c, const struct guide *g, enum guide_phase was,
                              bool is_forced, int32_t id, struct err *err) MUST_CHECK;
/* Nothing can follow what has come. */
bool constraint_is_over(const struct constraint *c, const struct guide *g);
/* How many of the guesses [n] the grammar lets through. */
int32_t constraint_cut(struct constraint *c, const struct guide *g, const int32_t *ids, int32_t n);
/* What the grammar itself knows of the next ids: up to n_max into ids. *is_sure: no others are possible; else they spell what
 * comes but for blanks, most likely in these pieces. Returns how many. */
int32_t constraint_ahead(struct constraint *c, const struct guide *g, int32_t *ids, int32_t n_max,
                         bool *is_sure);

#endif
