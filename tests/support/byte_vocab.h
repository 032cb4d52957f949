/* byte_vocab.h - a vocabulary of the 256 bytes and three control tokens, and a small chat template over it. For tests. */
#ifndef PLUMB_TESTS_SUPPORT_BYTE_VOCAB_H
#define PLUMB_TESTS_SUPPORT_BYTE_VOCAB_H

#include "template/template.h"
#include "tokenizer/tokenizer.h"

#define BYTE_VOCAB_START 256 /* "<|im_start|>" */
#define BYTE_VOCAB_STOP  257 /* "<|im_end|>" */
#define BYTE_VOCAB_END   258 /* "<|end|>" */
#define BYTE_VOCAB_SIZE  259

/* Ids 0..255 are the bytes. */
enum err_code byte_vocab_new(struct tokenizer **out, struct err *err);

/* ChatML. A system message "raise" raises "No system role: Z9". */
enum err_code byte_vocab_template(struct template **out, struct err *err);

#endif
