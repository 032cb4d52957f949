/* fuzz_json_schema.c - any bytes as a JSON schema: an error that says what and where, or a grammar whose texts are all JSON. */
#include "fuzz/use_grammar.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct use use;

static void check_json(struct grammar_state *s, const char *text, size_t n)
{
    struct json_doc doc;
    (void)s;
    BUG_ON(json_parse(&doc, text, n, (size_t)1 << 24, NULL) != ERR_OK);
    json_doc_release(&doc);
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
        use.random = size + data[size - 1];
        use_texts(&use, g, 6, check_json);
        grammar_unref(g);
    } else {
        BUG_ON(err.text[0] == '\0');
    }
    buf_release(&notes);
    return 0;
}
