/* Grammars in Lark's notation: what they let through, and what is refused with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar/grammar.h"

#include <string.h>

static enum err_code compile(const char *text, struct grammar **out, struct err *err)
{
    struct grammar_source s = { .kind = GRAMMAR_KIND_LARK, .text = text, .n = strlen(text) };
    return grammar_compile(&s, NULL, out, NULL, err);
}

static bool fits(const char *source, const char *text)
{
    struct grammar *g;
    struct grammar_state *s;
    struct err err;
    if (compile(source, &g, &err))
        fail_msg("%s: %s", source, err.text);
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    bool is_fine = grammar_step(s, text, strlen(text)) && grammar_is_complete(s);
    grammar_state_free(s);
    grammar_unref(g);
    return is_fine;
}

static void grammars_let_through_what_they_say(void **arg)
{
    (void)arg;
    static const char sums[] =
        "?start: sum\n?sum: product | sum \"+\" product -> add\n"
        "?product: atom | product \"*\" atom -> mul\n"
        "?atom: INT | \"(\" sum \")\"\n%import common (INT, WS)\n%ignore WS\n";
    static const char around[] =
        "start: item\nitem: call | add | NAME\ncall: item \"(\" item? \")\"\n"
        "add: item \"+\" item\nNAME: /[a-z]/\n";
    static const struct {
        const char *source, *text;
        bool fits;
    } rows[] = {
        { sums, "1+2*(3+4)*5", true },
        { sums, " 1 +\n2 ", true },
        { sums, "1+", false },
        { sums, "1 2", false },
        { around, "a(b)(c+d)+e()", true },
        { around, "a(b", false },
        { "start: \"a\" | \"b\"i\n  | \"c\"~2..3\n\n  | [\"d\"] \"e\"", "ccc", true },
        { "start: \"a\" | \"b\"i\n  | \"c\"~2..3\n\n  | [\"d\"] \"e\"", "B", true },
        { "start: \"a\" | \"b\"i\n  | \"c\"~2..3\n\n  | [\"d\"] \"e\"", "e", true },
        { "start: \"a\" | \"b\"i\n  | \"c\"~2..3\n\n  | [\"d\"] \"e\"", "c", false },
        { "start: X{2,} // two or more\nX: \"a\"..\"c\" # one", "abcc", true },
        { "start: X{2,}\nX: \"a\"..\"c\"", "a", false },
        { "start: (\"a\"\n  | \"b\"\n)+ \\\n \"c\"", "abac", true },
        { "start: /a\\/b/i \"\\u00e9\\x41\\t\\d\"",
          "A/b\xC3\xA9"
          "A\t\\d",
          true },
        { "start: /[]x]+/", "]x", true },
        { "start.3: A\nA.-1: \"a\" B\n!?_x: \"y\"\nB: \"b\"", "ab", true },
        { "start: | \"(\" start \")\" start", "(()())", true },
        { "start: | \"(\" start \")\" start", "(()", false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (fits(rows[i].source, rows[i].text) != rows[i].fits)
            fail_msg("row %zu: %s", i, rows[i].text);
}

static void what_cannot_be_compiled_is_named_with_its_line(void **arg)
{
    (void)arg;
    static const struct {
        const char *source, *says;
    } rows[] = {
        { "", "no rule named start" },
        { "a: \"b\"", "no rule named start" },
        { "start: \"a\"\n\nb: c", "line 3: 'c' is not defined" },
        { "start: \"a\"\nstart: \"b\"", "line 2: a name that is defined twice" },
        { "start: A\nA: b\nb: \"c\"", "line 2: a terminal cannot hold a rule" },
        { "start: \"a", "line 1: a string that is not closed" },
        { "start: \"a\nb\"", "line 1: a string that is not closed" },
        { "start: /a", "line 1: a regular expression that is not closed" },
        { "start: /a/m", "line 1: the flags" },
        { "start: A\nA: /(?<=a)b/", "line 2: regular expression" },
        { "start: \"b\"..\"a\"", "line 1: a range" },
        { "start: \"ab\"..\"c\"", "line 1: a range" },
        { "start: \"a\" (\"b\"", "line 1: a group that is not closed" },
        { "start: \"a\" )", "line 1: a character that is not expected" },
        { "start: \"a\"~3..2", "line 1: a repetition is" },
        { "start: \"a\"~2..", "line 1: a repetition is" },
        { "start: \"a\"~200000", "line 1: a repetition of more than" },
        { "start \"a\"", "line 1: ':' is missing" },
        { "start: a{\"x\"}\na{x}: x", "line 1: templates" },
        { "start: \"a\"\n%declare B", "line 2: a statement" },
        { "%import common.PYTHON\nstart: \"a\"", "line 1: %import has no such terminal" },
        { "%import .rules.x\nstart: \"a\"", "line 1: %import is supported" },
        { "start: <|x|>", "line 1: tokens" },
        { "start: a\na: [b] a \"x\" | \"y\"\nb: \"b\"", "line 2: a refers to itself" },
        { "start: a\na: a \"x\"", "nothing can fit" },
        { "start: \"\\xZZ\"", "line 1: not enough hexadecimal digits" },
        { "start: \"\\ud800\"", "line 1: not a code point" },
        { "start: \"\xFF\"", "line 1: a string that is not UTF-8" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar *g = NULL;
        struct err err = { 0 };
        if (compile(rows[i].source, &g, &err) == ERR_OK || !strstr(err.text, rows[i].says))
            fail_msg("row %zu: %s: %s", i, rows[i].source, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_let_through_what_they_say),
        cmocka_unit_test(what_cannot_be_compiled_is_named_with_its_line),
    };
    return cmocka_run_group_tests_name("lark", tests, NULL, NULL);
}
