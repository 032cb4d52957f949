/* fuzz_json_schema.c - any bytes as a JSON schema: an error that says what and where, or a grammar whose texts are all JSON. */
#include "fuzz/use_grammar.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct use use;

static void use_texts(struct grammar *g, uint64_t seed)
{
    struct grammar_state *s, *other;
    char text[USE_TEXT];
    size_t n;
    BUG_ON(grammar_state_new(g, &s, NULL) != ERR_OK ||
           grammar_state_new(g, &other, NULL) != ERR_OK);
    use.random = seed;
    for (int i = 0; i < 6; i++) {
        struct json_doc doc;
        if (!use_walk(&use, s, other, text, &n))
            continue;
        BUG_ON(json_parse(&doc, text, n, (size_t)1 << 24, NULL) != ERR_OK);
        json_doc_release(&doc);
    }
    grammar_state_free(s);
    grammar_state_free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g;
    struct buf notes;
    struct err err = { 0 };
    if (size < 1)
        return 0;
    use_init(&use);
    struct grammar_source source = { .kind = GRAMMAR_KIND_SCHEMA,
                                     .text = (const char *)data + 1,
                                     .n = size - 1,
                                     .is_compact = data[0] & 1 };
    buf_init(&notes, MEM_CAT_GRAMMAR, 4096);
    if (grammar_compile(&source, use.vocab, &g, &notes, &err) == ERR_OK) {
        use_texts(g, size + data[size - 1]);
        grammar_unref(g);
    } else {
        BUG_ON(err.text[0] == '\0');
    }
    buf_release(&notes);
    return 0;
}
