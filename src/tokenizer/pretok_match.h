/* pretok_match.h - the name that model files have for a tokenizer.json's pre-tokenizer. */
#ifndef PLUMB_TOKENIZER_PRETOK_MATCH_H
#define PLUMB_TOKENIZER_PRETOK_MATCH_H

#include "tokenizer/tokenizer.h"

#define PRETOK_NAME_MAX 64

/* The value of tokenizer.ggml.pre whose published patterns cut texts as the pipeline of spec does. Patterns are written in many ways,
 * so the cuts are compared: of a text with every known pitfall and of some thousands of random ones.
 * Need: spec is of a tokenizer.json, TOKENIZER_KIND_BPE.
 * Errors: ERR_UNSUPPORTED - none does; the text names the patterns. */
enum err_code pretok_match(const struct tokenizer_spec *spec, char out[PRETOK_NAME_MAX],
                           struct err *err) MUST_CHECK;

/* Whether both give every text of a probe the same ids, with their special tokens around it.
 * Errors: ERR_UNSUPPORTED - not; shows the text. */
enum err_code pretok_match_ids(const struct tokenizer *a, const struct tokenizer *b,
                               struct err *err) MUST_CHECK;

#endif
