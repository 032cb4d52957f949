/* tokenizer_model.h - a tokenizer from SentencePiece's own file (tokenizer.model), for directories without a tokenizer.json. */
#ifndef PLUMB_TOKENIZER_TOKENIZER_MODEL_H
#define PLUMB_TOKENIZER_TOKENIZER_MODEL_H

#include "tokenizer/tokenizer.h"

/* Texts are borrowed during the call; data NULL = absent. */
struct tokenizer_model_source {
    struct tokenizer_str model; /* tokenizer.model */
    struct tokenizer_str
        config; /* tokenizer_config.json: added_tokens_decoder, bos_token, add_bos_token and the like */
    struct tokenizer_str added; /* added_tokens.json: an object of texts and ids */
    const int32_t
        *ends; /* [n_ends] more ids that end a generation; those out of range count for nothing */
    int32_t n_ends;
};

/* BPE and unigram models, with the spaces' treatment that the file asks for; a space in front is put after special tokens too, as
 * the classes did that such directories are of, unless tokenizer_config.json says legacy: false. What the file is silent about: BPE begins a prompt with bos, unigram ends it with eos.
 * Errors: ERR_INVALID - damaged; ERR_UNSUPPORTED - word and character models, a normalizer with rules on a BPE model, and others
 * that this build does not know, named; ERR_NOMEM. */
enum err_code tokenizer_new_model(const struct tokenizer_model_source *src, struct tokenizer **out,
                                  struct err *err) MUST_CHECK;

/* What the texts say, not made into a tokenizer: for writing it to a file of another kind. Errors: as above. */
struct tokenizer_model_file;
enum err_code tokenizer_model_open(const struct tokenizer_model_source *src,
                                   struct tokenizer_model_file **out, struct err *err) MUST_CHECK;
/* Without a pipeline. Lives as long as f and the source's texts. */
const struct tokenizer_spec *tokenizer_model_spec(const struct tokenizer_model_file *f);
void tokenizer_model_close(struct tokenizer_model_file *f); /* f may be NULL */

#endif
