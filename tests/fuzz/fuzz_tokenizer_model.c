/* fuzz_tokenizer_model.c - any bytes as a tokenizer.model with its two JSON files, and a text: an error, or ids of the vocabulary.
 *
 * Input: a byte, the number of bytes of the text; the text; the same of tokenizer_config.json and of added_tokens.json; the rest is the
 * model. */
#include "base/log.h"
#include "tokenizer/tokenizer_model.h"
#include "use_tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_set_level(LOG_LEVEL_ERROR);
    return 0;
}

static struct tokenizer_str take(const uint8_t **data, size_t *size)
{
    size_t n = *size ? **data : 0;
    *data += *size > 0;
    *size -= *size > 0;
    n = n < *size ? n : *size;
    struct tokenizer_str s = { n ? (const char *)*data : NULL, n };
    *data += n;
    *size -= n;
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };
    struct tokenizer_str text = take(&data, &size);
    struct tokenizer_model_source src = { .config = take(&data, &size),
                                          .added = take(&data, &size) };
    char *copy = malloc(size ? size : 1); /* of its own size, so that a read behind it is seen */
    BUG_ON(!copy);
    memcpy(copy, data, size);
    src.model = (struct tokenizer_str){ copy, size };
    int64_t before = mem_bytes(MEM_CAT_TOKENIZER);
    if (tokenizer_new_model(&src, &t, &err))
        BUG_ON(t || err.text[0] == '\0');
    else
        use_tokenizer(t, text.data ? text.data : "", text.len);
    tokenizer_free(t);
    BUG_ON(mem_bytes(MEM_CAT_TOKENIZER) != before);
    free(copy);
    return 0;
}
