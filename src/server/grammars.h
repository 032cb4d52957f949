/* grammars.h - the compiled grammars of requests, kept by what they were compiled from, and the model's vocabulary for them.
 *
 * The vocabulary's trie is made when the first grammar is asked for, so that loading does not wait for it. Grammars that nobody has
 * used for longest are given up when all of them take more than the bound; rows that use one keep it alive.
 * Owns: grammars, vocabulary. Thread: any; one lock guards the list, compiling goes on outside it. */
#ifndef PLUMB_SERVER_GRAMMARS_H
#define PLUMB_SERVER_GRAMMARS_H

#include "base/histogram.h"
#include "grammar/grammar.h"
#include "server/server.h"

struct grammars_stats { /* each number by itself */
    int64_t n, bytes;   /* kept */
    int64_t compiled, found, refused, evicted;
    int64_t vocab_us; /* that the trie took; 0 = not made yet */
    struct histogram_snapshot compile;
};

struct grammars;

/* model must stay; it is looked at when the first grammar is asked for. */
struct grammars *grammars_new(const struct server_model *model, int64_t max_bytes);
void grammars_free(struct grammars *x); /* NULL is fine; nobody may use a grammar any more */

/* A grammar of one of the sources [n], referenced: unref it. notes: appended as grammar_compile_any does. Errors: of
 * compiling. What will not be enforced (has_no_masks) is not tried again where it failed before, while that is remembered. */
enum err_code grammars_get(struct grammars *x, const struct grammar_source *sources, int32_t n,
                           struct grammar **out, struct buf *notes, struct err *err) MUST_CHECK;
void grammars_read_stats(struct grammars *x, struct grammars_stats *out);

#endif
