/* tokenizer_write.h - a tokenizer.json for the `tokenizers` library from a vocabulary as GGUF has it. */
#ifndef PLUMB_TOKENIZER_TOKENIZER_WRITE_H
#define PLUMB_TOKENIZER_TOKENIZER_WRITE_H

#include "tokenizer/tokenizer.h"

/* Append the text to out. Byte-level BPE with its published patterns, SentencePiece BPE, whose merges are made from the scores,
 * WordPiece and Unigram. Need: spec is one that tokenizer_new takes, without a pipeline.
 * Errors: ERR_UNSUPPORTED - patterns that the library's language cannot say, two tokens of one spelling; ERR_INVALID; ERR_FULL - out's
 * cap; ERR_NOMEM. */
enum err_code tokenizer_write_json(const struct tokenizer_spec *spec, struct buf *out,
                                   struct err *err) MUST_CHECK;

/* The spelling of an id; data is NULL where id is none. */
struct tokenizer_str tokenizer_write_piece(const struct tokenizer_spec *spec, int32_t id);

#endif
