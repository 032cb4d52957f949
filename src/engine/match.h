/* match.h - stop strings over a stream of bytes, whatever the borders between tokens.
 *
 * The string that is complete first ends the text; of several that end at the same byte the longest; of equal ones the first.
 * text_safe counts the bytes that may be shown: no stop string can begin before it any more. It never decreases.
 * (Knuth-Morris-Pratt, one automaton per string: time is O(bytes * strings), no byte is looked at twice.)
 * Owns: copies of the strings. Allocation: in init only. Not thread-safe. */
#ifndef PLUMB_ENGINE_MATCH_H
#define PLUMB_ENGINE_MATCH_H

#include "base/mem.h"
#include "engine/engine.h"

struct match {
    int64_t n_bytes;   /* fed so far */
    int64_t text_safe; /* final once a stop string matched: where it begins */
    /* private to match.c from here */
    struct match_stop *stops; /* [n_stops] */
    int32_t n_stops;
};

/* Errors: ERR_INVALID - a stop string is empty or over ENGINE_STOP_BYTES, or there are over ENGINE_STOPS_MAX; ERR_NOMEM.
 * Release with match_release (fine on a zeroed struct). */
enum err_code match_init(struct match *m, const struct engine_bytes *stops, int32_t n_stops,
                         struct err *err) MUST_CHECK;
void match_release(struct match *m);

/* Memory of a match with ENGINE_STOPS_MAX strings. */
size_t match_bytes_max(void);

/* Feed the bytes of one token. Returns the index of the stop string that ended the text, or -1. After a match feed no more. */
int32_t match_feed(struct match *m, const char *data, size_t len);

/* The text ends here without a match: all of it may be shown. */
void match_finish(struct match *m);

#endif
