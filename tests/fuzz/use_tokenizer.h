/* use_tokenizer.h - what the fuzz targets that read tokenizers do with one: encode a text, decode its ids. */
#ifndef PLUMB_TESTS_FUZZ_USE_TOKENIZER_H
#define PLUMB_TESTS_FUZZ_USE_TOKENIZER_H

#include "tokenizer/tokenizer.h"

/* An error with a text and no ids, or ids of the vocabulary that decode. */
static inline void use_tokenizer(const struct tokenizer *t, const char *text, size_t len)
{
    struct token_list ids;
    struct buf out;
    struct err err = { 0 };
    token_list_init(&ids, 1 << 16);
    buf_init(&out, MEM_CAT_BASE, (size_t)1 << 26);
    unsigned flags = TOKENIZER_FLAG_SPECIAL | TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_EOS;
    if (tokenizer_encode(t, text, len, NULL, flags, &ids, &err)) {
        BUG_ON(ids.n != 0 || err.text[0] == '\0');
    } else {
        for (int32_t i = 0; i < ids.n; i++)
            BUG_ON(ids.ids[i] < 0 || ids.ids[i] >= tokenizer_n_tokens(t));
        BUG_ON(tokenizer_decode(t, ids.ids, ids.n, true, &out, &err));
    }
    token_list_release(&ids);
    buf_release(&out);
}

#endif
