/* expected.h - what an answer is likely to say where its form is known but not enforced: calls of the tools that were offered.
 *
 * Walks a grammar along the answer. Where the answer leaves it, it begins anew; what the grammar is certain of is guessed in the
 * likeliest tokens. Nothing here decides what is sampled.
 * Owns: the states. Allocation: in init only. Not thread-safe. */
#ifndef PLUMB_ENGINE_EXPECTED_H
#define PLUMB_ENGINE_EXPECTED_H

#include "grammar/grammar.h"

struct expected {
    struct grammar_state *state; /* NULL: nothing is expected */
    /* private to expected.c */
    struct grammar_state *probe;
    struct grammar_vocab *vocab;
    struct grammar_layout layout;
};

/* g (referenced; compiled for n_vocab tokens, or it is not used) may be NULL. Without memory nothing is expected. Release with
 * expected_release (fine on a zeroed struct). */
void expected_init(struct expected *x, struct grammar *g, int32_t n_vocab);
void expected_release(struct expected *x);
size_t expected_bytes_max(void); /* memory beside the struct */

/* One more token of the answer. */
void expected_feed(struct expected *x, int32_t id);
/* Tokens that spell what must come: up to n_max into ids. Returns how many. */
int32_t expected_ahead(const struct expected *x, int32_t *ids, int32_t n_max);

#endif
