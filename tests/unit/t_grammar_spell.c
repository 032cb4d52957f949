/* What a grammar leaves no choice of, in tokens: blanks between JSON's tokens as the text has them so far. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar/grammar.h"

#include <stdio.h>
#include <string.h>

/* The bytes, then pieces of several: ids from 256 on. */
static const char *const pieces[] = { "{\"",   "name", "\":",  " \"", "\",",      "{\n",
                                      "\",\n", "  ",   " ",    "get", "_weather", "\"",
                                      "city",  ", ",   "unit", "}}",  "   " };

static struct grammar_vocab *vocab;

static int setup(void **state)
{
    static char bytes[256];
    struct grammar_bytes all[256 + ARRAY_LEN(pieces)];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        all[i] = (struct grammar_bytes){ &bytes[i], 1 };
    }
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++)
        all[256 + i] = (struct grammar_bytes){ pieces[i], strlen(pieces[i]) };
    (void)state;
    return grammar_vocab_new(all, (int32_t)ARRAY_LEN(all), &vocab, NULL);
}

static int teardown(void **state)
{
    (void)state;
    grammar_vocab_free(vocab);
    return 0;
}

/* What is spelled behind the tokens of `text`, which `|` separates, with a `|` before each token. */
static const char *spelled(enum grammar_kind kind, const char *source, const char *text)
{
    static char out[400];
    struct grammar *g = NULL;
    struct grammar_state *s = NULL, *probe = NULL;
    struct grammar_layout layout = { 0 };
    struct err err;
    int32_t ids[64], n;
    struct grammar_source src = {
        .kind = kind, .text = source, .n = strlen(source), .has_no_masks = true
    };
    assert_int_equal(grammar_compile(&src, vocab, &g, NULL, &err), ERR_OK);
    assert_int_equal(grammar_state_new(g, &s, &err), ERR_OK);
    assert_int_equal(grammar_state_new(g, &probe, &err), ERR_OK);
    for (size_t len; *text; text += len + (text[len] == '|')) {
        len = strcspn(text, "|");
        assert_true(grammar_step(s, text, len));
        grammar_layout_feed(&layout, text, len);
    }
    n = grammar_spell(s, &layout, probe, ids, (int32_t)ARRAY_LEN(ids));
    out[0] = '\0';
    for (int32_t i = 0; i < n; i++) {
        struct grammar_bytes b = grammar_vocab_bytes(vocab, ids[i]);
        snprintf(out + strlen(out), sizeof(out) - strlen(out), "|%.*s", (int)b.len, b.data);
    }
    grammar_state_free(s);
    grammar_state_free(probe);
    grammar_unref(g);
    return out;
}

static const char call[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"get_weather\"},\"city\":{\"type\":"
    "\"string\"},\"unit\":{\"type\":\"integer\"}},\"required\":[\"name\",\"city\",\"unit\"],"
    "\"additionalProperties\":false}";

static void t_one_line_unless_lines_were_seen(void **state)
{
    (void)state;
    /* The last token may go on into what is open, and is left out. */
    assert_string_equal(spelled(GRAMMAR_KIND_SCHEMA, call, "{"),
                        "|\"|name|\":| \"|get|_weather|\",| \"|city|\":");
    assert_string_equal(
        spelled(GRAMMAR_KIND_SCHEMA, call, "{\"name\": \"get_weather\", \"city\": \"a\""),
        "|, |\"|unit");
}

static void t_lines_as_the_text_has_them(void **state)
{
    (void)state;
    assert_string_equal(
        spelled(GRAMMAR_KIND_SCHEMA, call, "{\n|  \"name\": \"get_weather\",\n|  \"city\": \"a\","),
        "|\n| | \"|unit");
    assert_string_equal(spelled(GRAMMAR_KIND_SCHEMA, call,
                                "{\n|    \"name\": \"get_weather\",\n|    \"city\": \"a\","),
                        "|\n|   | \"|unit");
}

static void t_blanks_are_cut_as_the_text_has_them(void **state)
{
    (void)state;
    assert_string_equal(spelled(GRAMMAR_KIND_SCHEMA, call,
                                "{\n|  |\"name\": \"get_weather\",\n|  |\"city\": \"a\","),
                        "|\n|  |\"|unit");
}

static void t_nothing_where_there_is_a_choice(void **state)
{
    (void)state;
    assert_string_equal(
        spelled(GRAMMAR_KIND_SCHEMA, call, "{\"name\": \"get_weather\", \"city\": \""), "");
    assert_string_equal(spelled(GRAMMAR_KIND_REGEX, "a+", "a"), "");
    assert_string_equal(spelled(GRAMMAR_KIND_REGEX, "(name|city)", ""), "");
    assert_string_equal(spelled(GRAMMAR_KIND_REGEX, "name", "name"), "");
}

static void t_all_of_a_text_that_ends(void **state)
{
    (void)state;
    assert_string_equal(spelled(GRAMMAR_KIND_REGEX, "get_weather", ""), "|get|_weather");
    assert_string_equal(spelled(GRAMMAR_KIND_REGEX, "get\\n\\n", "get"), "|\n|\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t_one_line_unless_lines_were_seen),
        cmocka_unit_test(t_lines_as_the_text_has_them),
        cmocka_unit_test(t_blanks_are_cut_as_the_text_has_them),
        cmocka_unit_test(t_nothing_where_there_is_a_choice),
        cmocka_unit_test(t_all_of_a_text_that_ends),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
