/* relaxed.h - JSON as models write it, made JSON: bytes in, strict JSON out, as they come.
 *
 * What is JSON comes out as it is. Repaired on the way: single quotes, unquoted names, quotes and line ends inside strings, bad
 * escapes, trailing and doubled commas, missing and wrong closing brackets, missing values (null), True, False, None, NaN;
 * any other bare word becomes a string. A quote ends a string only where a comma, a colon or a bracket follows.
 * The output never depends on how the input was cut. Bounded: nesting by JSON_DEPTH_MAX, memory by the caps of its buffers.
 * Owns: its buffers; appends to the caller's `out`. */
#ifndef PLUMB_SERVER_RELAXED_H
#define PLUMB_SERVER_RELAXED_H

#include "json/json.h"

#define RELAXED_QUOTE '\xFD' /* a byte of no text: quotes a string in which nothing is escaped */

struct relaxed {
    struct buf *out;
    bool is_done;    /* the value is complete */
    bool has_failed; /* it is no object or array; only before is_plausible */
    bool
        is_plausible; /* a name with its colon was read, or an array or an empty object: from here on nothing fails */
    /* private to relaxed.c from here */
    int state, depth;
    char stack[JSON_DEPTH_MAX + 1]; /* '{' or '[' */
    char quote;
    bool is_key;
    struct buf held; /* blanks and a comma that wait for what follows */
    struct buf word; /* a bare word; or an escape */
};

void relaxed_init(struct relaxed *r, struct buf *out);
void relaxed_release(struct relaxed *r);      /* fine on a zeroed struct */
void relaxed_push(struct relaxed *r, char c); /* need: not done, not failed */
/* Inside a string, where whatever comes belongs to it? */
bool relaxed_in_string(const struct relaxed *r);
bool relaxed_in_name(const struct relaxed *r);     /* in a bare name */
bool relaxed_wants_value(const struct relaxed *r); /* a value is what comes next */
/* The input ends: close what is open. */
void relaxed_finish(struct relaxed *r);

/* All of text at once. False: it is no object or array. Bytes after the value are left out. */
bool relaxed_repair(const char *text, size_t n, struct buf *out);

/* Append a piece of a string's content, escaped; no quotes. */
void relaxed_escape(struct buf *out, const char *s, size_t n);

#endif
