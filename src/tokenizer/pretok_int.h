/* pretok_int.h - the table of published pre-tokenizers. */
#ifndef PLUMB_TOKENIZER_PRETOK_INT_H
#define PLUMB_TOKENIZER_PRETOK_INT_H

#include "tokenizer/tokenizer_int.h"

#define PRETOK_STAGES_MAX 8

struct pretok_entry {
    const char *ids; /* values of tokenizer.ggml.pre, spaces between; NULL ends the table */
    struct pretok_info info;
    struct {
        const char *pattern; /* NULL ends; the published dialect (pretok.c) */
        int cut; /* digits: matches are cut into groups of so many from the right; 0 = not */
    } stages[PRETOK_STAGES_MAX];
};
extern const struct pretok_entry pretok_table[];
/* NULL: not there, or pre is NULL. */
const struct pretok_entry *pretok_entry_of(const char *pre);

/* Compile a pattern of a published tokenizer to *out, a pcre2_code. */
enum err_code pretok_compile(const char *pattern, void **out, struct err *err) MUST_CHECK;

/* Word characters of the published dialect, inside brackets: marks and letter-like symbols are some; of other numbers than digits and those of
 * letters only Latin-1's. */
#define PRETOK_WORD                                                         \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}" \
    "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

#endif
