/* tokenizer_write_int.h - what the writers of a tokenizer.json share. */
#ifndef PLUMB_TOKENIZER_TOKENIZER_WRITE_INT_H
#define PLUMB_TOKENIZER_TOKENIZER_WRITE_INT_H

#include "base/map.h"
#include "tokenizer/tokenizer_write.h"
#include "json/json.h"

/* Open the object `key` with its "type"; the caller ends it. */
void tokenizer_write_typed(struct json_writer *j, const char *key, const char *type);
/* A step {"type": "Replace"} of a list; is_regex: `from` is a pattern. */
void tokenizer_write_replace(struct json_writer *j, const char *from, bool is_regex,
                             const char *to);
/* The steps of a normalizer that put marks where spaces are, and one before the text where the vocabulary wants it. */
void tokenizer_write_space_marks(struct json_writer *j, const struct tokenizer_spec *s);

/* tokenizer_write_words.c: vocabularies without merges, which are WordPiece and Unigram. */
void tokenizer_write_words_normalizer(struct json_writer *j, const struct tokenizer_spec *s);
void tokenizer_write_words_pre_tokenizer(struct json_writer *j, const struct tokenizer_spec *s);
void tokenizer_write_words_decoder(struct json_writer *j, const struct tokenizer_spec *s);
/* Errors: ERR_UNSUPPORTED - two tokens whose spelling is one; ERR_NOMEM. */
enum err_code tokenizer_write_words_model(struct json_writer *j, const struct tokenizer_spec *s,
                                          struct err *err) MUST_CHECK;

#endif
