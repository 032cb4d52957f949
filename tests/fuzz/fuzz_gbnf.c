/* fuzz_gbnf.c - any bytes as a grammar in GBNF: an error that names its line or rule, or a grammar that can be walked. */
#include "fuzz/use_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct use use;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g;
    struct err err = { 0 };
    use_init(&use);
    struct grammar_source source = { .kind = GRAMMAR_KIND_GBNF,
                                     .text = (const char *)data,
                                     .n = size };
    if (grammar_compile(&source, use.vocab, &g, NULL, &err) != ERR_OK) {
        BUG_ON(err.text[0] == '\0');
        return 0;
    }
    use.random = size;
    use_texts(&use, g, 6, use_whole);
    grammar_unref(g);
    return 0;
}
