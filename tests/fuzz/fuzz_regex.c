/* fuzz_regex.c - a regular expression (the first line) and texts (the others): what our automaton accepts PCRE2 matches from end to end, and
 * for texts of printable ASCII the other way round. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/utf8.h"
#include "fuzz/use_grammar.h"

#include <pcre2.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct use use;

/* 1, 0, or -1: it gave up. */
static int pcre_matches(pcre2_code *code, const char *text, size_t n)
{
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(code, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(context, 200000);
    int rc =
        pcre2_match(code, (PCRE2_SPTR)text, n, 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED, m, context);
    pcre2_match_context_free(context);
    pcre2_match_data_free(m);
    return rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
}

static bool is_printable(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x20 || text[i] > 0x7E)
            return false;
    return true;
}

static void compare_lines(struct grammar_state *s, pcre2_code *code, const char *text, size_t n)
{
    while (n > 0) {
        const char *end = memchr(text, '\n', n);
        size_t len = end ? (size_t)(end - text) : n;
        grammar_state_reset(s);
        bool is_ours = grammar_step(s, text, len) && grammar_is_complete(s);
        if (utf8_is_valid(text, len)) {
            int theirs = pcre_matches(code, text, len);
            BUG_ON(is_ours && theirs == 0);
            BUG_ON(!is_ours && theirs == 1 && is_printable(text, len));
        }
        text += len + (end != NULL);
        n -= len + (end != NULL);
    }
}

static void compare(struct grammar *g, pcre2_code *code, const char *text, size_t n)
{
    struct grammar_state *s, *other;
    char walked[USE_TEXT];
    size_t len;
    BUG_ON(grammar_state_new(g, &s, NULL) != ERR_OK ||
           grammar_state_new(g, &other, NULL) != ERR_OK);
    use.random = n;
    for (int i = 0; i < 6; i++)
        if (use_walk(&use, s, other, walked, &len) && code)
            BUG_ON(pcre_matches(code, walked, len) == 0);
    if (code)
        compare_lines(s, code, text, n);
    grammar_state_free(s);
    grammar_state_free(other);
}

/* Where the dialects differ on purpose: "{,n}" is a repetition here and text there; \v is one character here; names that stand twice. */
static bool is_other_dialect(const char *text, size_t n)
{
    return memmem(text, n, "{,", 2) || memmem(text, n, "\\v", 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = memchr(text, '\n', size);
    size_t n = end ? (size_t)(end - text) : size, offset;
    struct grammar *g;
    struct err err = { 0 };
    int number;
    use_init(&use);
    struct grammar_source source = { .kind = GRAMMAR_KIND_REGEX, .text = text, .n = n };
    if (grammar_compile(&source, use.vocab, &g, NULL, &err) != ERR_OK) {
        BUG_ON(err.text[0] == '\0');
        return 0;
    }
    pcre2_code *code = NULL;
    if (utf8_is_valid(text, n) && !is_other_dialect(text, n)) {
        pcre2_compile_context *context = pcre2_compile_context_create(NULL);
        pcre2_set_newline(context, PCRE2_NEWLINE_ANYCRLF);
        code = pcre2_compile((PCRE2_SPTR)text, n, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &number,
                             &offset, context);
        pcre2_compile_context_free(context);
    }
    compare(g, code, end ? end + 1 : text, end ? size - n - 1 : 0);
    pcre2_code_free(code);
    grammar_unref(g);
    return 0;
}
