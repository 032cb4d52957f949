/* convert_vocab.h - vocabularies without merges, and SentencePiece's own file, on their way to GGUF. */
#ifndef PLUMB_CLI_CONVERT_VOCAB_H
#define PLUMB_CLI_CONVERT_VOCAB_H

#include "cli/load_tokenizer.h"

struct convert_vocab { /* as GGUF's keys */
    bool has_prefix,
        squeezes; /* Unigram, SentencePiece: a space in front; runs of spaces count once */
    bool lowercase, strip_accents; /* WordPiece */
};

/* What the keys have to say of a WordPiece or Unigram vocabulary, or of one without a pipeline.
 * Errors: ERR_UNSUPPORTED - a step that they cannot say; named. */
enum err_code convert_vocab_check(const struct tokenizer_spec *s, struct convert_vocab *out,
                                  struct err *err) MUST_CHECK;

/* Whether a file that was written cuts texts as its source: of vocabularies for which convert_vocab_check goes by the shape of their
 * steps; others are not looked at. Errors: ERR_UNSUPPORTED - shows the text; those of load_tokenizer. */
enum err_code convert_vocab_same(const struct weights *from, const struct weights *to,
                                 struct err *err) MUST_CHECK;

#endif
