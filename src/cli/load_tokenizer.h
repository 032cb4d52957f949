/* load_tokenizer.h - a tokenizer from a GGUF file's metadata. */
#ifndef PLUMB_CLI_LOAD_TOKENIZER_H
#define PLUMB_CLI_LOAD_TOKENIZER_H

#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_model.h"
#include "weights/weights.h"

/* Build the tokenizer that w's tokenizer.ggml.* keys describe. w may hold no tensor at all. The tokenizer keeps nothing of w.
 * Errors: ERR_NOT_FOUND - no vocabulary in the file; ERR_INVALID - a damaged one (names the key); ERR_UNSUPPORTED - a kind that
 * this build does not know; ERR_NOMEM. */
enum err_code load_tokenizer(const struct weights *w, struct tokenizer **out,
                             struct err *err) MUST_CHECK;

/* What the keys say, for writing it to a file of another kind. Need: w is a GGUF file. Errors: as above. */
struct load_vocab {
    struct tokenizer_spec spec; /* borrows w and what follows */
    struct tokenizer_str *pieces, *merges;
    float *scores;
    uint8_t *types;
};
enum err_code load_vocab_open(struct load_vocab *v, const struct weights *w,
                              struct err *err) MUST_CHECK;
void load_vocab_close(struct load_vocab *v); /* fine on a zeroed one, and after an error */

/* The texts of a directory as tokenizer_json.h takes them. ends: room for LOAD_ENDS_MAX ids that config.json and
 * generation_config.json name. Errors: ERR_NOT_FOUND - no tokenizer.json. */
#define LOAD_ENDS_MAX 32
enum err_code load_vocab_texts(const struct weights *w, int32_t ends[LOAD_ENDS_MAX],
                               struct tokenizer_json_source *out, struct err *err) MUST_CHECK;

/* The same of a directory that has tokenizer.model and no tokenizer.json; false: it is none. */
bool load_vocab_model(const struct weights *w, int32_t ends[LOAD_ENDS_MAX],
                      struct tokenizer_model_source *out);

/* Open the model that --model names and build its tokenizer. */
enum err_code load_tokenizer_of(const char *model, struct tokenizer **out,
                                struct err *err) MUST_CHECK;

#endif
