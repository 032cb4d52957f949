/* small_vocab.h - a vocabulary of each kind, small enough to know by heart: tests of the tokenizer without a model. */
#ifndef PLUMB_TESTS_SUPPORT_SMALL_VOCAB_H
#define PLUMB_TESTS_SUPPORT_SMALL_VOCAB_H

#include "tokenizer/tokenizer.h"

#define SMALL_VOCAB_MAX 448

struct small_vocab {
    struct tokenizer_spec spec; /* points into this struct: do not move it */
    struct tokenizer_str pieces[SMALL_VOCAB_MAX];
    uint8_t types[SMALL_VOCAB_MAX];
    float scores[SMALL_VOCAB_MAX];
    struct tokenizer_str merges[SMALL_VOCAB_MAX];
    char text[16384];
    size_t used;
};

/* Fill v. Every kind has the control tokens <s> </s> <|im_start|> <|im_end|> <|im|>, the user tokens <tool> and <tool>!, unk
 * <unk> ([UNK], [CLS], [SEP] in WPM), and can spell every byte (WPM, UGM: words of a to z). The others join "he" "ll" "hell" "hello"
 * " w" and runs of A and of spaces by two, four, eight. */
void small_vocab_init(struct small_vocab *v, enum tokenizer_kind kind, const char *pre);

#endif
