/* guide.h - what governs a row's answer beside the sampler: its think span, stop strings, and ids that must come.
 *
 * The span is found by its markers in the answer's bytes, whatever the borders between tokens: at the answer's start (blanks before
 * it do not count) or open from the start. Stop strings are looked for behind it only. Owns: the stop strings' automata.
 * Allocation: in init only. Not thread-safe. */
#ifndef PLUMB_ENGINE_GUIDE_H
#define PLUMB_ENGINE_GUIDE_H

#include "engine/match.h"

#define GUIDE_HELD_BYTES (ENGINE_MARK_BYTES + 16)

enum guide_phase {
    GUIDE_BEFORE, /* a span may yet open */
    GUIDE_OPEN,   /* inside it */
    GUIDE_ANSWER,
};

struct guide {
    int32_t n_reasoning; /* tokens of the span so far, its end included */
    int64_t text_safe;   /* as in engine.h */
    enum guide_phase phase;
    bool has_span;    /* there is one, open or closed */
    int32_t n_answer; /* visible bytes at the end of the last token that are of the answer */
    /* private to guide.c from here */
    struct engine_guide rules;
    struct match match;
    int64_t n_span; /* visible bytes before those that stop strings are looked for in */
    char held[GUIDE_HELD_BYTES]; /* visible bytes that may be blanks and the start of the opening */
    int32_t n_held, n_blanks;
    int32_t n_open, n_close; /* bytes of a marker matched so far */
    int16_t back[ENGINE_MARK_BYTES];
    const int32_t *queue; /* [n_queue] ids that come now, in rules */
    int32_t n_queue, at;
    bool is_forced_due;
};

/* Errors: those of match_init; ERR_INVALID - a count of req->guide is out of its range, or an id is not in the vocabulary.
 * Release with guide_release (fine on a zeroed struct). The guide must not move afterwards. */
enum err_code guide_init(struct guide *g, const struct engine_request *req, int32_t n_vocab,
                         struct err *err) MUST_CHECK;
void guide_release(struct guide *g);
size_t guide_bytes_max(void); /* memory beside the struct */

/* The id that comes next whatever the sampler says; NULL = the sampler's choice. */
const int32_t *guide_next(const struct guide *g);
/* The ids that are known to come, up to n_max of them, into ids. Returns how many. */
int32_t guide_ahead(const struct guide *g, int32_t *ids, int32_t n_max);
/* Must the answer go on, so that no end token may be chosen? (Text is due behind the span.) */
bool guide_goes_on(const struct guide *g);
/* Is the sampler's choice never restricted? */
bool guide_is_free(const struct guide *g);
/* One more token with its visible bytes. Returns the index of the stop string that ended the text, or -1. */
int32_t guide_feed(struct guide *g, int32_t id, const char *data, size_t len);
/* Of what these visible bytes would mean: do they go on with the opening and with nothing else? How many bytes stand behind the
 * end of the span that they complete; -1: they do not. And bytes of that end that are matched so far. */
bool guide_opens(const struct guide *g, int32_t id, const char *data, size_t len);
int32_t guide_rest(const struct guide *g, const char *data, size_t len);
int32_t guide_close_matched(const struct guide *g);
/* The answer ends without a stop string: all of it may be shown. */
void guide_finish(struct guide *g);

#endif
