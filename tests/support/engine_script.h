/* engine_script.h - an engine without a model: what it answers is written in the prompt. For tests of scheduler and server.
 *
 * Its vocabulary is byte_vocab.h: ids 0..255 are bytes, 256.. control tokens without text. A prompt is read as the bytes of its ids.
 * The last "!command" in it (up to a line's end or a control token) says what to answer:
 *   !say TEXT      these bytes, then the model's end        !hex C3A9 80   these bytes
 *   !json STRING    the string's text, where the spelling of a control token is that token
 *   !count N       N tokens "0".."9" over and over          !fail N        N tokens "x", then this row fails
 *   !nan           fails with the first token (ERR_NUMERIC) !refuse        open fails (ERR_INVALID)
 *   !break         the whole step fails                     !forever       tokens until the length is reached
 *   !lose          ... and all rows lose their memory       !ruin          ... and nothing mends it
 *   !cuts          the request's cuts, blanks between them
 * Without a command the prompt's bytes come back (at most 64).
 * Think spans, stop strings and forced ids are guide.h's. Scores of a prompt are -0.25 each; bin i of a signal is i + 1; number i of 8 of a hidden
 * state is the last id - 4 x the prompt's length + i. A step that takes ids beyond the promised ones is a bug. */
#ifndef PLUMB_TESTS_SUPPORT_ENGINE_SCRIPT_H
#define PLUMB_TESTS_SUPPORT_ENGINE_SCRIPT_H

#include "engine/engine.h"

struct engine_script_config {
    int32_t n_ctx, max_rows, max_step_rows;
    int64_t step_us;   /* each step takes so long ... */
    int64_t prompt_us; /* ... and so much more for each further token of a row in it */
    int32_t n_pages;   /* of 64 tokens; 0 = always enough */
    int32_t shift;     /* added to what it says: another model */
    int64_t fetch_us;  /* what a row has lost comes back from disk in so long; 0 = never */
    int32_t
        fetches_first; /* 1: a row that begins asks the disk, too, which has nothing for it after as long */
    int32_t keeps_ends;      /* 1: engine_info's */
    const char *fingerprint; /* NULL: its usual one, which is of version 1 */
};

struct engine *engine_script_new(const struct engine_script_config *config);

/* Rows that are open now; pages that are promised. Thread: any. */
int32_t engine_script_rows(const struct engine *e);
int32_t engine_script_pages(const struct engine *e);
/* Fetches that brought something. Thread: any. */
int32_t engine_script_fetches(const struct engine *e);

#endif
