/* fuzz_tokenizer_json.c - any bytes as a tokenizer.json, and a text: an error, or ids of the vocabulary.
 *
 * Input: a byte, the number of bytes of the text; the text; the rest is the file. */
#include "base/log.h"
#include "tokenizer/tokenizer_json.h"
#include "use_tokenizer.h"

#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_set_level(LOG_LEVEL_ERROR);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };
    if (size == 0)
        return 0;
    size_t len = data[0] < size - 1 ? data[0] : size - 1;
    const char *text = (const char *)data + 1;
    struct tokenizer_json_source src = { .tokenizer = { text + len, size - 1 - len } };
    int64_t before = mem_bytes(MEM_CAT_TOKENIZER);
    if (tokenizer_new_json(&src, &t, &err))
        BUG_ON(t || err.text[0] == '\0');
    else
        use_tokenizer(t, text, len);
    tokenizer_free(t);
    BUG_ON(mem_bytes(MEM_CAT_TOKENIZER) != before);
    return 0;
}
