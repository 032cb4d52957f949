/* Grammars: what their automata let through, their masks against stepping every token, forks and steps back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar/grammar.h"

#include <string.h>

#define N_TOKENS 3000

static uint64_t random_state = 1;

static uint32_t random_next(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static struct grammar *compile(enum grammar_kind kind, const char *text, struct grammar_vocab *v)
{
    struct grammar_source s = { .kind = kind, .text = text, .n = strlen(text) };
    struct grammar *g = NULL;
    struct err err;
    if (grammar_compile(&s, v, &g, NULL, &err) != ERR_OK)
        fail_msg("%s: %s", text, err.text);
    return g;
}

static bool fits(enum grammar_kind kind, const char *source, const char *text)
{
    struct grammar *g = compile(kind, source, NULL);
    struct grammar_state *s;
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    bool is_fine = grammar_step(s, text, strlen(text)) && grammar_is_complete(s);
    grammar_state_free(s);
    grammar_unref(g);
    return is_fine;
}

static const char json_gbnf[] =
    "root ::= object\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" "
    "[0-9a-fA-F]{4}) )* "
    "\"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
    "[1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20} # blanks\n";

static void grammars_let_through_what_they_say(void **arg)
{
    (void)arg;
    static const struct {
        enum grammar_kind kind;
        const char *source, *text;
        bool fits;
    } rows[] = {
        { GRAMMAR_KIND_REGEX, "a{2,4}b?", "aaab", true },
        { GRAMMAR_KIND_REGEX, "a{2,4}b?", "ab", false },
        { GRAMMAR_KIND_REGEX, "[^a-c]+", "xyz\xC3\xA9", true },
        { GRAMMAR_KIND_REGEX, "[^a-c]+", "xya", false },
        { GRAMMAR_KIND_REGEX, "\\p{Lu}\\d+(?i:ab)",
          "\xC3\x89"
          "12aB",
          true },
        { GRAMMAR_KIND_REGEX, "(?:x|yy)*z", "xyyxz", true },
        { GRAMMAR_KIND_REGEX, "^(a|b)$", "a", true },
        { GRAMMAR_KIND_REGEX, "[a-z]{1,50000}", "abcdefgh", true },
        { GRAMMAR_KIND_REGEX, "x{3000,50000}", "xx", false },
        { GRAMMAR_KIND_CHOICE, "[\"yes\", \"no\", \"yes, but\"]", "yes, but", true },
        { GRAMMAR_KIND_CHOICE, "[\"yes\", \"no\"]", "yesno", false },
        { GRAMMAR_KIND_OBJECT, "", "{\"a\": [1, 2.5e3, {\"b\": null}]}", true },
        { GRAMMAR_KIND_OBJECT, "", "[1]", false },
        { GRAMMAR_KIND_GBNF, json_gbnf, "{\"a\": [1, {\"b\": \"\\u00e9\"}]}", true },
        { GRAMMAR_KIND_GBNF, json_gbnf, "{\"a\" 1}", false },
        { GRAMMAR_KIND_GBNF, "root ::= \"(\" root \")\" | \"x\"", "(((x)))", true },
        { GRAMMAR_KIND_GBNF, "root ::= \"(\" root \")\" | \"x\"", "(((x))", false },
        { GRAMMAR_KIND_GBNF, "root ::= (a | b){2,}\na ::= \"a\"\n\nb ::= \"b\" # x\n", "abba",
          true },
        { GRAMMAR_KIND_TAGS,
          "{\"structures\": [{\"begin\": \"<f=a>\", \"schema\": {\"type\": \"integer\"}, \"end\": "
          "\"</f>\"}], "
          "\"triggers\": [\"<f=\"]}",
          "text < <f <f=a>12</f> more", true },
        { GRAMMAR_KIND_TAGS,
          "{\"structures\": [{\"begin\": \"<f=a>\", \"schema\": {\"type\": \"integer\"}, \"end\": "
          "\"</f>\"}], "
          "\"triggers\": [\"<f=\"]}",
          "text <f=b>", false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (fits(rows[i].kind, rows[i].source, rows[i].text) != rows[i].fits)
            fail_msg("row %zu: %s", i, rows[i].text);
}

static void what_cannot_be_compiled_is_named(void **arg)
{
    (void)arg;
    static const struct {
        enum grammar_kind kind;
        const char *source, *says;
    } rows[] = {
        { GRAMMAR_KIND_REGEX, "(?=a)b", "look-around" },
        { GRAMMAR_KIND_REGEX, "(a)\\1", "back-references" },
        { GRAMMAR_KIND_REGEX, "a(", "not closed" },
        { GRAMMAR_KIND_REGEX, "a^b", "cannot be enforced" },
        { GRAMMAR_KIND_GBNF, "root ::= root \"a\" | \"b\"", "refers to itself" },
        { GRAMMAR_KIND_GBNF, "root ::= a\na ::= b\nb ::= a", "refers to itself" },
        { GRAMMAR_KIND_GBNF, "root ::= nope", "not defined" },
        { GRAMMAR_KIND_GBNF, "a ::= \"b\"", "root" },
        { GRAMMAR_KIND_GBNF, "root ::= \"a", "line 1" },
        { GRAMMAR_KIND_GBNF, "root ::= \"a\"\nroot2 = \"b\"", "line 2" },
        { GRAMMAR_KIND_GBNF, "root ::= \"a\" root", "nothing can fit" },
        { GRAMMAR_KIND_CHOICE, "[1]", "choice[0]" },
        { GRAMMAR_KIND_SCHEMA, "{\"properties\": {\"a\": {\"not\": {}}}}", "#/properties/a: not" },
        { GRAMMAR_KIND_SCHEMA, "{\"properties\": {\"a\": {\"if\": {}}}}", "#/properties/a: if" },
        { GRAMMAR_KIND_SCHEMA, "{\"type\": \"strnig\"}", "type" },
        { GRAMMAR_KIND_SCHEMA, "{\"type\": \"string\", \"pattern\": \"(?!x)\"}", "#/pattern" },
        { GRAMMAR_KIND_SCHEMA, "{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}",
          "no" },
        { GRAMMAR_KIND_SCHEMA, "5", "no schema" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar_source s = { .kind = rows[i].kind,
                                    .text = rows[i].source,
                                    .n = strlen(rows[i].source) };
        struct grammar *g = NULL;
        struct err err = { 0 };
        if (grammar_compile(&s, NULL, &g, NULL, &err) == ERR_OK || !strstr(err.text, rows[i].says))
            fail_msg("row %zu: '%s' does not say '%s'", i, err.text, rows[i].says);
    }
    assert_int_equal(mem_bytes(MEM_CAT_GRAMMAR), 0);
}

/* --- masks --- */

static struct grammar_bytes tokens[N_TOKENS];
static char token_text[N_TOKENS][24];

/* All bytes, then pieces as vocabularies have them: words, punctuation in runs, halves of characters, blanks. */
static struct grammar_vocab *make_vocab(void)
{
    static const char *const parts[] = { "a",        "b",    "key",  "\"",   "\"",       ":",
                                         ",",        "{",    "}",    "[",    "]",        " ",
                                         "\n",       "1",    "0",    "x",    "-",        ".",
                                         "e",        "true", "\\",   "null", "\xC3\xA9", "\xF0\x9F",
                                         "\x98\x80", "u00",  "name", "<f=",  "</f>",     "  ",
                                         "\t" };
    struct grammar_vocab *v;
    for (int i = 0; i < N_TOKENS; i++) {
        size_t n = 0;
        for (uint32_t k = i < 256 ? 0 : 1 + random_next(4); k > 0; k--) {
            const char *p = parts[random_next(ARRAY_LEN(parts))];
            memcpy(token_text[i] + n, p, strlen(p));
            n += strlen(p);
        }
        if (i < 256)
            token_text[i][n++] = (char)i;
        tokens[i] = (struct grammar_bytes){ token_text[i], n };
    }
    tokens[300].len = 0;
    assert_int_equal(grammar_vocab_new(tokens, N_TOKENS, &v, NULL), ERR_OK);
    return v;
}

static void check_mask(struct grammar_state *s, struct grammar_state *other)
{
    uint32_t mask[(N_TOKENS + 31) / 32];
    int32_t only, n = grammar_mask(s, mask, &only), count = 0, last = -1;
    for (int i = 0; i < N_TOKENS; i++) {
        bool is_allowed = mask[i / 32] >> i % 32 & 1;
        grammar_state_copy(other, s);
        bool is_fine = tokens[i].len > 0 && grammar_step(other, tokens[i].data, tokens[i].len);
        if (is_allowed != is_fine)
            fail_msg("token %d '%.*s': mask %d, stepping %d", i, (int)tokens[i].len, tokens[i].data,
                     is_allowed, is_fine);
        count += is_fine;
        last = is_fine ? i : last;
    }
    assert_int_equal(n, count < 2 ? count : 2);
    assert_int_equal(only, count == 1 ? last : -1);
}

static void masks_are_what_stepping_every_token_says(void **arg)
{
    (void)arg;
    static const struct {
        enum grammar_kind kind;
        const char *source;
    } rows[] = {
        { GRAMMAR_KIND_OBJECT, "" },
        { GRAMMAR_KIND_GBNF, json_gbnf },
        { GRAMMAR_KIND_SCHEMA, "{\"type\": \"string\", \"maxLength\": 100000, \"minLength\": 2}" },
        { GRAMMAR_KIND_SCHEMA, "{\"type\": \"string\", \"maxLength\": 9}" },
        { GRAMMAR_KIND_SCHEMA,
          "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 3000}, "
          "\"minItems\": 2, \"maxItems\": 5000}" },
        { GRAMMAR_KIND_SCHEMA,
          "{\"properties\": {\"key\": {\"type\": \"integer\"}, \"name\": {\"type\": "
          "\"string\"}}, \"additionalProperties\": true}" },
        { GRAMMAR_KIND_SCHEMA, "{\"type\": \"string\", \"pattern\": \"^[a-z]{1,2000}$\"}" },
        { GRAMMAR_KIND_REGEX, "(\"[^\"]*\"|[a-z ]+)*" },
        { GRAMMAR_KIND_REGEX, "(.|\\n){0,2000}" },
        { GRAMMAR_KIND_TAGS, "{\"structures\": [{\"begin\": \"<f=a\", \"schema\": {}, \"end\": "
                             "\"</f>\"}], \"triggers\": [\"<f=\"]}" },
    };
    struct grammar_vocab *v = make_vocab();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar *g = compile(rows[i].kind, rows[i].source, v);
        struct grammar_state *s, *other;
        assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
        assert_int_equal(grammar_state_new(g, &other, NULL), ERR_OK);
        for (int walk = 0; walk < 6; walk++) {
            grammar_state_reset(s);
            for (int step = 0; step < 25 && !grammar_is_over(s); step++) {
                uint32_t mask[(N_TOKENS + 31) / 32], id = random_next(N_TOKENS);
                check_mask(s, other);
                int32_t n = grammar_mask(s, mask, NULL);
                assert_true(n > 0);
                while (!(mask[id / 32] >> id % 32 & 1))
                    id = (id + 1) % N_TOKENS;
                assert_true(grammar_step(s, tokens[id].data, tokens[id].len));
            }
        }
        grammar_state_free(s);
        grammar_state_free(other);
        grammar_unref(g);
    }
    grammar_vocab_free(v);
    assert_int_equal(mem_bytes(MEM_CAT_GRAMMAR), 0);
}

static void steps_can_be_taken_back(void **arg)
{
    (void)arg;
    struct grammar *g = compile(GRAMMAR_KIND_OBJECT, "", NULL);
    struct grammar_state *s, *other;
    static const char text[] = "{\"a\": [[[1, {\"b\": [[]]}]]]}";
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    assert_int_equal(grammar_state_new(g, &other, NULL), ERR_OK);
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        uint32_t before[8], after[8];
        grammar_next_bytes(s, before);
        assert_true(grammar_step(s, text + i, 1));
        assert_true(grammar_back(s, 1));
        grammar_next_bytes(s, after);
        assert_memory_equal(before, after, sizeof(before));
        assert_false(grammar_step(s, "\x01", 1));
        assert_true(grammar_step(s, text + i, 1));
        grammar_state_copy(other, s);
    }
    assert_true(grammar_is_complete(s) && grammar_is_over(s) && grammar_is_over(other));
    assert_true(grammar_back(s, 20));
    assert_false(grammar_back(s, 60));
    assert_true(grammar_step(s, text + sizeof(text) - 21, 20));
    assert_true(grammar_is_over(s));
    grammar_state_free(s);
    grammar_state_free(other);
    grammar_unref(g);
}

/* --- forks and steps back --- */

#define N_WORDS ((N_TOKENS + 31) / 32)
#define N_STEPS 60

static uint32_t past[N_STEPS + 1][N_WORDS];

static void expect_mask(struct grammar_state *s, const uint32_t *wanted, const char *what)
{
    uint32_t mask[N_WORDS];
    (void)grammar_mask(s, mask, NULL);
    if (memcmp(mask, wanted, sizeof(mask)) != 0)
        fail_msg("%s: another mask", what);
}

static int32_t random_token(const uint32_t *mask)
{
    uint32_t id = random_next(N_TOKENS);
    for (int i = 0; i < N_TOKENS; i++, id = (id + 1) % N_TOKENS)
        if (mask[id / 32] >> id % 32 & 1)
            return (int32_t)id;
    return -1;
}

/* A walk in which steps are taken back and forks go other ways: masks are always those of the same text read at once. */
static void walk_with_forks(struct grammar_state *s, struct grammar_state *fork)
{
    int n = 0;
    grammar_state_reset(s);
    (void)grammar_mask(s, past[0], NULL);
    for (int turn = 0; turn < N_STEPS; turn++) {
        int32_t id = random_token(past[n]), other = random_token(past[n]);
        if (id < 0)
            break;
        grammar_state_copy(fork, s);
        assert_true(grammar_step(fork, tokens[other].data, tokens[other].len));
        expect_mask(s, past[n], "after a fork has gone on");
        assert_true(grammar_back(fork, 1));
        expect_mask(fork, past[n], "a fork after a step back");
        assert_true(grammar_step(s, tokens[id].data, tokens[id].len));
        assert_true(grammar_step(fork, tokens[id].data, tokens[id].len));
        (void)grammar_mask(s, past[++n], NULL);
        expect_mask(fork, past[n], "a fork after the same step");
        assert_int_equal(grammar_is_complete(fork), grammar_is_complete(s));
        if (random_next(3) > 0)
            continue;
        int back = (int)random_next((uint32_t)(n < GRAMMAR_BACK ? n : GRAMMAR_BACK) + 1);
        assert_true(grammar_back(s, back));
        n -= back;
        expect_mask(s, past[n], "after steps back");
        if (random_next(2)) { /* a fork's past is its own */
            grammar_state_copy(s, fork);
            assert_true(grammar_back(s, back));
        }
        expect_mask(s, past[n], "a fork after steps back");
    }
}

static void forks_and_steps_back_are_the_states_before(void **arg)
{
    (void)arg;
    static const struct grammar_source rows[] = {
        { .kind = GRAMMAR_KIND_OBJECT, .text = "" },
        { .kind = GRAMMAR_KIND_GBNF, .text = json_gbnf },
        {
            .kind = GRAMMAR_KIND_SCHEMA,
            .text = "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 3000}, "
                    "\"maxItems\": 5000}",
        },
        { .kind = GRAMMAR_KIND_SCHEMA,
          .text = "{\"properties\": {\"a\": {}, \"b\": {}, \"key\": {\"type\": \"integer\"}}, "
                  "\"required\": "
                  "[\"a\", \"key\"]}",
          .is_any_order = true },
        { .kind = GRAMMAR_KIND_REGEX, .text = "(.|\\n){0,2000}" },
    };
    struct grammar_vocab *v = make_vocab();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar *g;
        struct grammar_state *s, *fork;
        struct err err;
        struct grammar_source source = rows[i];
        source.n = strlen(source.text);
        if (grammar_compile(&source, v, &g, NULL, &err) != ERR_OK)
            fail_msg("row %zu: %s", i, err.text);
        assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
        assert_int_equal(grammar_state_new(g, &fork, NULL), ERR_OK);
        for (int walk = 0; walk < 20; walk++)
            walk_with_forks(s, fork);
        grammar_state_free(s);
        grammar_state_free(fork);
        grammar_unref(g);
    }
    grammar_vocab_free(v);
    assert_int_equal(mem_bytes(MEM_CAT_GRAMMAR), 0);
}

static void properties_come_in_any_order_if_asked_for(void **arg)
{
    (void)arg;
    static const char text[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": "
        "\"null\"}, "
        "\"c\": {}}, \"required\": [\"b\"], \"additionalProperties\": {\"type\": \"boolean\"}}";
    static const struct {
        const char *text;
        bool fits;
    } rows[] = {
        { "{\"b\": null}", true },
        { "{\"c\": 1, \"b\": null, \"a\": 7}", true },
        { "{\"x\": true, \"b\": null, \"y\": false, \"a\": 7}", true },
        { "{\"a\": 7}", false },
        { "{\"b\": null, \"a\": 7, \"b\": null}", false },
        { "{\"b\": null, \"x\": 1}", false },
        { "{\"b\": null,}", false },
    };
    struct grammar_source source = {
        .kind = GRAMMAR_KIND_SCHEMA, .text = text, .n = sizeof(text) - 1, .is_any_order = true
    };
    struct grammar *g;
    struct grammar_state *s, *other;
    struct grammar_vocab *v = make_vocab();
    assert_int_equal(grammar_compile(&source, v, &g, NULL, NULL), ERR_OK);
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    assert_int_equal(grammar_state_new(g, &other, NULL), ERR_OK);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        grammar_state_reset(s);
        bool is_fine =
            grammar_step(s, rows[i].text, strlen(rows[i].text)) && grammar_is_complete(s);
        if (is_fine != rows[i].fits)
            fail_msg("%s", rows[i].text);
    }
    grammar_state_reset(s);
    for (size_t i = 0; i < strlen(rows[2].text); i++) {
        check_mask(s, other);
        assert_true(grammar_step(s, rows[2].text + i, 1));
    }
    grammar_state_free(s);
    grammar_state_free(other);
    grammar_unref(g);
    grammar_vocab_free(v);
}

static void bytes_that_must_come_are_told(void **arg)
{
    (void)arg;
    struct grammar *g = compile(GRAMMAR_KIND_CHOICE, "[\"abcx\", \"abcy\"]", NULL);
    struct grammar_state *s;
    char out[16];
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    assert_int_equal(grammar_forced(s, out, sizeof(out)), 3);
    assert_memory_equal(out, "abc", 3);
    grammar_state_free(s);
    grammar_unref(g);
}

/* A state's stacks are compacted as they go: a long text needs no more memory than a short one. */
static void long_texts_fit(void **arg)
{
    (void)arg;
    struct grammar *g = compile(GRAMMAR_KIND_OBJECT, "", NULL);
    struct grammar_state *s;
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    assert_true(grammar_step(s, "{\"a\": [", 7));
    for (int i = 0; i < 20000; i++)
        assert_true(grammar_step(s, "{\"b\": [[\"x\", -1.5]]},\n", 22));
    for (int i = 0; i < GRAMMAR_DEPTH; i++)
        if (!grammar_step(s, "[", 1))
            break;
    assert_false(
        grammar_step(s, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 61));
    grammar_state_free(s);
    grammar_unref(g);
    assert_int_equal(mem_bytes(MEM_CAT_GRAMMAR), 0);
}

static void alternatives_of_several_kinds_are_one_grammar(void **arg)
{
    (void)arg;
    static const struct grammar_source rows[] = {
        { .kind = GRAMMAR_KIND_SCHEMA, .text = "{\"type\": \"null\"}", .n = 16 },
        { .kind = GRAMMAR_KIND_REGEX, .text = "x+", .n = 2, .before = "<", .after = ">" },
    };
    struct grammar_vocab *v = make_vocab();
    struct grammar *g;
    struct grammar_state *s;
    assert_int_equal(grammar_compile_any(rows, 2, v, &g, NULL, NULL), ERR_OK);
    assert_ptr_equal(grammar_ref(g), g);
    grammar_unref(g);
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    assert_true(grammar_step(s, "<xx>", 4) && grammar_is_over(s));
    grammar_state_reset(s);
    assert_true(grammar_step(s, "null", 4) && grammar_is_over(s));
    assert_true((size_t)mem_bytes(MEM_CAT_GRAMMAR) > grammar_state_bytes() + grammar_size(g) / 2);
    grammar_state_free(s);
    grammar_unref(g);
    grammar_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_let_through_what_they_say),
        cmocka_unit_test(what_cannot_be_compiled_is_named),
        cmocka_unit_test(masks_are_what_stepping_every_token_says),
        cmocka_unit_test(steps_can_be_taken_back),
        cmocka_unit_test(forks_and_steps_back_are_the_states_before),
        cmocka_unit_test(properties_come_in_any_order_if_asked_for),
        cmocka_unit_test(bytes_that_must_come_are_told),
        cmocka_unit_test(long_texts_fit),
        cmocka_unit_test(alternatives_of_several_kinds_are_one_grammar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
