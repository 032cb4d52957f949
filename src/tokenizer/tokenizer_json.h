/* tokenizer_json.h - a tokenizer from the tokenizer.json of the `tokenizers` library. */
#ifndef PLUMB_TOKENIZER_TOKENIZER_JSON_H
#define PLUMB_TOKENIZER_TOKENIZER_JSON_H

#include "tokenizer/tokenizer.h"

/* Texts are borrowed during the call; data NULL = absent. */
struct tokenizer_json_source {
    struct tokenizer_str tokenizer; /* tokenizer.json */
    struct tokenizer_str config;    /* tokenizer_config.json: bos_token, eos_token and the like */
    const int32_t
        *ends; /* [n_ends] more ids that end a generation; those out of range count for nothing */
    int32_t n_ends;
};

/* Models BPE (byte-level, or over characters with or without bytes for the unknown), WordPiece and Unigram.
 * Errors: ERR_INVALID - damaged, text names the part; ERR_UNSUPPORTED - a model, normalizer, pre-tokenizer, post-processor or decoder
 * that this build does not know, named; ERR_NOMEM. */
enum err_code tokenizer_new_json(const struct tokenizer_json_source *src, struct tokenizer **out,
                                 struct err *err) MUST_CHECK;

/* What the texts say, not made into a tokenizer: for writing it to a file of another kind. */
struct tokenizer_file;
enum err_code tokenizer_file_open(const struct tokenizer_json_source *src,
                                  struct tokenizer_file **out, struct err *err) MUST_CHECK;
/* With its pipeline. Lives as long as f; the source's texts may be gone. */
const struct tokenizer_spec *tokenizer_file_spec(const struct tokenizer_file *f);
void tokenizer_file_close(struct tokenizer_file *f); /* f may be NULL */

#endif
