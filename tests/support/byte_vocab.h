/* byte_vocab.h - a vocabulary of the 256 bytes and some control tokens, and a small chat template over it. For tests. */
#ifndef PLUMB_TESTS_SUPPORT_BYTE_VOCAB_H
#define PLUMB_TESTS_SUPPORT_BYTE_VOCAB_H

#include "template/template.h"
#include "tokenizer/tokenizer.h"

#define BYTE_VOCAB_START 256 /* "<|im_start|>" */
#define BYTE_VOCAB_STOP  257 /* "<|im_end|>" */
#define BYTE_VOCAB_END   258 /* "<|end|>" */
#define BYTE_VOCAB_SIZE \
    270 /* and markers of the ways in which models write calls and think spans */

/* The control token whose spelling begins s[0, n): its id and bytes; -1 = none. */
int32_t byte_vocab_control(const char *s, size_t n, size_t *len);

/* Ids 0..255 are the bytes. */
enum err_code byte_vocab_new(struct tokenizer **out, struct err *err);

/* ChatML. A system message "raise" raises "No system role: Z9". */
enum err_code byte_vocab_template(struct template **out, struct err *err);
/* Its text. */
extern const char byte_vocab_template_text[];

#endif
