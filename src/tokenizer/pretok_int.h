/* pretok_int.h - the table of published pre-tokenizers. */
#ifndef PLUMB_TOKENIZER_PRETOK_INT_H
#define PLUMB_TOKENIZER_PRETOK_INT_H

#include "tokenizer/tokenizer_int.h"

#define PRETOK_STAGES_MAX 8

struct pretok_entry {
    const char *ids; /* values of tokenizer.ggml.pre, spaces between; NULL ends the table */
    struct pretok_info info;
    struct {
        const char *pattern; /* NULL ends; \s and \S are Unicode's White_Space */
        int cut; /* digits: matches are cut into groups of so many from the right; 0 = not */
    } stages[PRETOK_STAGES_MAX];
};
extern const struct pretok_entry pretok_table[];
/* NULL: not there, or pre is NULL. */
const struct pretok_entry *pretok_entry_of(const char *pre);

/* Compile a pattern of a published tokenizer to *out, a pcre2_code. */
enum err_code pretok_compile(const char *pattern, void **out, struct err *err) MUST_CHECK;

#endif
