/* fuzz_gbnf.c - any bytes as a grammar in GBNF: an error that names its line or rule, or a grammar that can be walked. */
#include "fuzz/use_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct use use;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g;
    struct grammar_state *s, *other;
    struct err err = { 0 };
    char text[USE_TEXT];
    size_t n;
    use_init(&use);
    struct grammar_source source = { .kind = GRAMMAR_KIND_GBNF,
                                     .text = (const char *)data,
                                     .n = size };
    if (grammar_compile(&source, use.vocab, &g, NULL, &err) != ERR_OK) {
        BUG_ON(err.text[0] == '\0');
        return 0;
    }
    BUG_ON(grammar_state_new(g, &s, NULL) != ERR_OK ||
           grammar_state_new(g, &other, NULL) != ERR_OK);
    use.random = size;
    for (int i = 0; i < 6; i++) {
        if (!use_walk(&use, s, other, text, &n))
            continue;
        grammar_state_reset(s); /* and the same text in one step */
        BUG_ON(!grammar_step(s, text, n) || !grammar_is_complete(s));
    }
    grammar_state_free(s);
    grammar_state_free(other);
    grammar_unref(g);
    return 0;
}
