/* load_tokenizer.h - a tokenizer from a GGUF file's metadata. */
#ifndef PLUMB_CLI_LOAD_TOKENIZER_H
#define PLUMB_CLI_LOAD_TOKENIZER_H

#include "tokenizer/tokenizer.h"
#include "weights/weights.h"

/* Build the tokenizer that w's tokenizer.ggml.* keys describe. w may hold no tensor at all. The tokenizer keeps nothing of w.
 * Errors: ERR_NOT_FOUND - no vocabulary in the file; ERR_INVALID - a damaged one (names the key); ERR_UNSUPPORTED - a kind that
 * this build does not know; ERR_NOMEM. */
enum err_code load_tokenizer(const struct weights *w, struct tokenizer **out,
                             struct err *err) MUST_CHECK;

/* Open the model that --model names and build its tokenizer. */
enum err_code load_tokenizer_of(const char *model, struct tokenizer **out,
                                struct err *err) MUST_CHECK;

#endif
