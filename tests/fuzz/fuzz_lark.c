/* fuzz_lark.c - any bytes as a grammar in Lark's notation: an error that names its line or rule, or a grammar that can be walked; and the same
 * as the text of a custom tool, in JSON, in Python's quotes and as an element, where every text's first quote or end is the real one. */
#include "fuzz/use_grammar.h"
#include "json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct use use;

/* A text in JSON is JSON of an object with that one string. */
static void check_json(struct grammar_state *s, const char *text, size_t n)
{
    struct json_doc doc = { 0 };
    (void)s;
    BUG_ON(json_parse(&doc, text, n, 1 << 20, NULL) != ERR_OK || doc.root.n != 1 ||
           !json_is(json_get(&doc.root, "input"), JSON_TYPE_STRING));
    json_doc_release(&doc);
}

static void as_argument(const char *text, size_t n, const char *how, bool is_json)
{
    struct buf source;
    struct json_writer w;
    struct grammar *g;
    buf_init(&source, MEM_CAT_REQUEST, 1 << 20);
    json_writer_init(&w, &source);
    buf_add_str(&source, "{\"arguments\": [{\"name\": \"input\", \"lark\": ");
    json_strn(&w, text, n);
    buf_printf(&source, "%s}], \"calls\": [{\"begin\": \"\", \"arguments\": 0}], \"end\": \"\"}",
               how);
    struct grammar_source s = { .kind = GRAMMAR_KIND_CALLS, .text = source.data, .n = source.len };
    if (grammar_compile(&s, use.vocab, &g, NULL, NULL) == ERR_OK) {
        if (!is_json)
            use.random = n;
        use_texts(&use, g, 4, is_json ? check_json : use_whole);
        grammar_unref(g);
    }
    buf_release(&source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g;
    struct err err = { 0 };
    use_init(&use);
    struct grammar_source source = { .kind = GRAMMAR_KIND_LARK,
                                     .text = (const char *)data,
                                     .n = size };
    if (grammar_compile(&source, use.vocab, &g, NULL, &err) != ERR_OK) {
        BUG_ON(err.text[0] == '\0');
        return 0;
    }
    use.random = size;
    use_texts(&use, g, 4, use_whole);
    grammar_unref(g);
    as_argument((const char *)data, size, "", true);
    as_argument((const char *)data, size, ", \"spelling\": \"python\"", false);
    as_argument((const char *)data, size,
                ", \"elements\": {\"open\": \"<a=\", \"raw\": \">\", \"close\": \"</a>\"}", false);
    return 0;
}
