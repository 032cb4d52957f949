/* Grammars that would be huge: each compiles small or is refused with a text that says what is too large, in seconds and within memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "grammar/grammar.h"

#include <string.h>
#include <sys/resource.h>

#define TEXT_MAX ((size_t)16 << 20)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER    20
#define BYTES_MAX ((int64_t)8 << 30)
#else
#define SLOWER    1
#define BYTES_MAX ((int64_t)512 << 20)
#endif

static struct buf text;

static void add_times(const char *s, int n)
{
    for (int i = 0; i < n; i++)
        buf_printf(&text, "%s", s);
}

/* --- sources --- */

static void nested_groups(void)
{
    add_times("(", 300);
    add_times("a", 1);
    add_times(")", 300);
}

static void many_categories(void)
{
    add_times("\\p{L}[^\\W\\d]", 20000);
}

static void many_folds(void)
{
    add_times("(?i)[^\xC3\xA9]", 3000);
}

static void many_words(void)
{
    add_times("(\\w+\\W+)*", 200);
}

static void long_regex(void)
{
    add_times("abcdefghij", 300000);
}

static void chain_of_references(void)
{
    buf_printf(&text, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 1000; i++)
        buf_printf(
            &text,
            "\"d%d\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/d%d\"}}},", i,
            i + 1);
    buf_printf(&text, "\"d1000\":{\"type\":\"null\"}}}");
}

static void large_enum(void)
{
    buf_printf(&text, "{\"enum\":[\"first\"");
    for (int i = 0; i < 50000; i++)
        buf_printf(&text, ",\"value number %d\"", i);
    buf_printf(&text, "]}");
}

static void enum_of_5000(void)
{
    buf_printf(&text, "{\"enum\":[\"first\"");
    for (int i = 0; i < 5000; i++)
        buf_printf(&text, ",\"value number %d\"", i);
    buf_printf(&text, "]}");
}

static void two_large_enums(void)
{
    buf_printf(&text, "{\"allOf\":[");
    enum_of_5000();
    buf_printf(&text, ",");
    large_enum();
    buf_printf(&text, "]}");
}

static void many_properties(void)
{
    buf_printf(&text, "{\"type\":\"object\",\"properties\":{\"p\":{}");
    for (int i = 0; i < 30000; i++)
        buf_printf(&text, ",\"p%d\":{\"type\":\"string\"}", i);
    buf_printf(&text, "}}");
}

static void product_of_branches(void)
{
    buf_printf(&text, "{\"allOf\":[{}");
    for (int i = 0; i < 14; i++)
        buf_printf(&text,
                   ",{\"anyOf\":[{\"properties\":{\"k%d\":{\"const\":1}}},{\"properties\":{\"k%d\":"
                   "{\"const\":"
                   "2}}},{\"properties\":{\"k%d\":{\"const\":3}}}]}",
                   i, i, i);
    buf_printf(&text, "]}");
}

static void many_joined(void)
{
    buf_printf(&text, "{\"allOf\":[{}");
    for (int i = 0; i < 60; i++)
        buf_printf(&text, ",{\"minLength\":%d}", i);
    buf_printf(&text, "]}");
}

static void many_rules(void)
{
    buf_printf(&text, "root ::= r0\n");
    for (int i = 0; i < 30000; i++)
        buf_printf(&text, "r%d ::= \"x\" r%d\n", i, i + 1);
    buf_printf(&text, "r30000 ::= \"x\"\n");
}

static void doubling_rules(void)
{
    buf_printf(&text, "root ::= r0\n");
    for (int i = 0; i < 40; i++)
        buf_printf(&text, "r%d ::= r%d r%d | \"x\"\n", i, i + 1, i + 1);
    buf_printf(&text, "r40 ::= \"a\"\n");
}

static void large_choice(void)
{
    buf_printf(&text, "[\"a\"");
    for (int i = 0; i < 60000; i++)
        buf_printf(&text, ",\"choice %d\"", i);
    buf_printf(&text, "]");
}

static void long_triggers(void)
{
    buf_printf(&text, "{\"structures\":[{\"begin\":\"00");
    add_times("y", 150);
    buf_printf(&text, "\",\"schema\":{},\"end\":\"e\"}],\"triggers\":[");
    for (int i = 0; i < 64; i++) {
        buf_printf(&text, "%s\"%02d", i ? "," : "", i);
        add_times("y", 150);
        buf_printf(&text, "\"");
    }
    buf_printf(&text, "]}");
}

static const struct {
    const char *name;
    enum grammar_kind kind;
    void (*make)(void); /* or */
    const char *source;
    const char *says; /* the refusal; NULL: it compiles */
} rows[] = {
    { "counts of counts", GRAMMAR_KIND_REGEX, NULL, "(((a{1000}){1000}){1000})", NULL },
    { "counts of counts that may be empty", GRAMMAR_KIND_REGEX, NULL,
      "((a{0,1000}){0,1000}){0,1000}", "what may be empty" },
    { "a state for every subset", GRAMMAR_KIND_REGEX, NULL, "(a|b)*a(a|b){20}",
      "too large: over 60000 states" },
    { "two long counts", GRAMMAR_KIND_REGEX, NULL, "[a-z]{1,50000}[0-9]{1,50000}", NULL },
    { "a count over the bound", GRAMMAR_KIND_REGEX, NULL, "x{100001}", "more than 100000 times" },
    { "what other matchers take exponential time for", GRAMMAR_KIND_REGEX, NULL,
      "(x+x+)+y(a*)*(.*a){30}", NULL },
    { "nested groups", GRAMMAR_KIND_REGEX, nested_groups, NULL, "nested too deep" },
    { "many categories", GRAMMAR_KIND_REGEX, many_categories, NULL, "192 MiB" },
    { "many folds", GRAMMAR_KIND_REGEX, many_folds, NULL, "too complex" },
    { "many loops over words", GRAMMAR_KIND_REGEX, many_words, NULL, NULL },
    { "a long regular expression", GRAMMAR_KIND_REGEX, long_regex, NULL, "192 MiB" },
    { "a chain of references", GRAMMAR_KIND_SCHEMA, chain_of_references, NULL, "nested too deep" },
    { "an enum of 5,000", GRAMMAR_KIND_SCHEMA, enum_of_5000, NULL, NULL },
    { "an enum of 50,000", GRAMMAR_KIND_SCHEMA, large_enum, NULL, "too large: over" },
    { "two enums that meet", GRAMMAR_KIND_SCHEMA, two_large_enums, NULL, "too complex" },
    { "30,000 properties", GRAMMAR_KIND_SCHEMA, many_properties, NULL, "too complex" },
    { "all combinations of branches", GRAMMAR_KIND_SCHEMA, product_of_branches, NULL, "192 MiB" },
    { "60 schemas in one", GRAMMAR_KIND_SCHEMA, many_joined, NULL, "allOf joins too many" },
    { "a long string", GRAMMAR_KIND_SCHEMA, NULL, "{\"type\":\"string\",\"maxLength\":1000000}",
      NULL },
    { "arrays in arrays in arrays", GRAMMAR_KIND_SCHEMA, NULL,
      "{\"type\":\"array\",\"minItems\":10,\"maxItems\":30000,\"items\":{\"type\":\"array\","
      "\"minItems\":3,"
      "\"maxItems\":30000,\"items\":{\"type\":\"array\",\"maxItems\":30000,\"items\":{\"type\":"
      "\"number\"}}}}",
      NULL },
    { "a pattern with a state for every subset", GRAMMAR_KIND_SCHEMA, NULL,
      "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){18}\",\"maxLength\":"
      "50}}}",
      "#/properties/a: the grammar is too large" },
    { "a pattern and a long bound", GRAMMAR_KIND_SCHEMA, NULL,
      "{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"a.*b\",\"maxLength\":1990}}}",
      "#/properties/a: two patterns are too large" },
    { "patterns of keys that meet", GRAMMAR_KIND_SCHEMA, NULL,
      "{\"type\":\"object\",\"patternProperties\":{\"a.*b\":{},\"b.*c\":{},\"(x|y)*x(x|y){12}\":{}}"
      "}",
      "too large to be combined" },
    { "a multiple of a large number", GRAMMAR_KIND_SCHEMA, NULL,
      "{\"type\":\"integer\",\"multipleOf\":5000}", "multipleOf is enforced" },
    { "30,000 rules", GRAMMAR_KIND_GBNF, many_rules, NULL, "more than 20000 rules" },
    { "rules that double", GRAMMAR_KIND_GBNF, doubling_rules, NULL, NULL },
    { "counts of counts in GBNF", GRAMMAR_KIND_GBNF, NULL, "root ::= ((\"a\"{1000}){1000}){1000}",
      NULL },
    { "a state for every subset in GBNF", GRAMMAR_KIND_GBNF, NULL,
      "root ::= (\"a\" | \"b\")* \"a\" (\"a\" | \"b\"){25}", "too large" },
    { "nested groups in GBNF", GRAMMAR_KIND_GBNF, nested_groups, NULL, "line 1" },
    { "60,000 choices", GRAMMAR_KIND_CHOICE, large_choice, NULL, "too large: over 400000 states" },
    { "long triggers", GRAMMAR_KIND_TAGS, long_triggers, NULL, NULL },
};

static void huge_grammars_are_small_or_refused(void **arg)
{
    (void)arg;
    buf_init(&text, MEM_CAT_BASE, TEXT_MAX);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar *g = NULL;
        struct err err = { 0 };
        buf_reset(&text);
        if (rows[i].make)
            rows[i].make();
        else
            buf_printf(&text, "%s", rows[i].source);
        struct grammar_source s = { .kind = rows[i].kind, .text = text.data, .n = text.len };
        int64_t start = clock_thread_us();
        enum err_code code = grammar_compile(&s, NULL, &g, NULL, &err);
        int64_t us = clock_thread_us() - start;
        if (us > (int64_t)5000000 * SLOWER)
            fail_msg("%s: %lld ms", rows[i].name, (long long)us / 1000);
        bool is_late = SLOWER > 1 && strstr(err.text, "takes too long"); /* instrumented code is */
        if (!rows[i].says && code && !is_late)
            fail_msg("%s: %s", rows[i].name, err.text);
        if (rows[i].says && !(code && (is_late || strstr(err.text, rows[i].says))))
            fail_msg("%s: '%s' does not say '%s'", rows[i].name, err.text, rows[i].says);
        if (g && grammar_size(g) > (size_t)64 << 20)
            fail_msg("%s: %zu bytes", rows[i].name, grammar_size(g));
        grammar_unref(g);
        assert_int_equal(mem_bytes(MEM_CAT_GRAMMAR), 0);
    }
    buf_release(&text);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    if ((int64_t)use.ru_maxrss * 1024 > BYTES_MAX)
        fail_msg("compiling took %ld KiB", use.ru_maxrss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_grammars_are_small_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
