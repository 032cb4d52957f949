/* Grammars of tools' calls: arguments in each spelling, calls one behind another, free text around them, messages. In sources and texts a
 * backtick stands for a double quote, \1 and \2 for the bytes around a control token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar/grammar.h"

#include <stdio.h>
#include <string.h>

static void spell(const char *from, char *to, size_t cap, bool has_marks)
{
    size_t n = 0;
    for (; *from; from++) {
        BUG_ON(n + 4 > cap);
        if (*from == '`')
            to[n++] = '"';
        else if (has_marks && (*from == 1 || *from == 2))
            to[n++] = *from == 1 ? '\xFF' : '\xFE';
        else if (*from == 1 || *from == 2)
            n += (size_t)sprintf(to + n, "\xEF\xB7%c", *from == 1 ? 0x90 : 0x91);
        else
            to[n++] = *from;
    }
    to[n] = '\0';
}

static enum err_code compile(enum grammar_kind kind, const char *source, struct grammar **out,
                             struct err *err)
{
    char text[8192];
    spell(source, text, sizeof(text), false);
    struct grammar_source s = { .kind = kind, .text = text, .n = strlen(text) };
    return grammar_compile(&s, NULL, out, NULL, err);
}

static bool fits(enum grammar_kind kind, const char *source, const char *text)
{
    struct grammar *g;
    struct grammar_state *s;
    struct err err;
    char bytes[4096];
    if (compile(kind, source, &g, &err))
        fail_msg("%s: %s", source, err.text);
    spell(text, bytes, sizeof(bytes), true);
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    bool is_fine = grammar_step(s, bytes, strlen(bytes)) && grammar_is_complete(s);
    grammar_state_free(s);
    grammar_unref(g);
    return is_fine;
}

struct row {
    const char *text;
    bool fits;
};

static void check(enum grammar_kind kind, const char *source, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fits(kind, source, rows[i].text) != rows[i].fits)
            fail_msg("row %zu: %s", i, rows[i].text);
}

#define CHECK(kind, source, rows) check(kind, source, rows, ARRAY_LEN(rows))

/* --- arguments --- */

#define ALONE(argument) \
    "{`arguments`: [" argument "], `calls`: [{`begin`: ``, `arguments`: 0}], `end`: ``}"

static void arguments_may_be_elements(void **arg)
{
    (void)arg;
    static const char source[] =
        ALONE("{`elements`: {`open`: `<a=`, `raw`: `>`, `json`: `>`, `stop`: `</a>`, `close`: "
              "`</a>`, `over`: [`</f>`, `</c>`], `types`: {`x`: `string`, `n`: `other`, `l`: "
              "`other`}, `schema`: "
              "{`properties`: {`x`: {`type`: `string`}, `n`: {`type`: `integer`, `maximum`: 99}, "
              "`o`: {`type`: [`string`, `null`]}, `l`: {`type`: `array`, `items`: {`anyOf`: "
              "[{`enum`: [`</a>`]}, {`type`: `string`, `pattern`: `[<x]`}, {`type`: `string`}]}}},"
              " `required`: [`x`, `n`]}}}");
    static const struct row rows[] = {
        { "<a=x>1 < 2</a><a=n>7</a>", true },
        { "<a=x>1 < 2</a><a=n>7</a><a=o>tr</a>", true },
        { "<a=x>1 < 2</a><a=n>7</a><a=o>true</a>", false },
        { "<a=x>1 < 2</a><a=n>7</a><a=o>null</a>", true },
        { "<a=x>1 < 2</a><a=n>7</a><a=o>12</a>", false },
        { "<a=x></a></a><a=n>7</a>", false },
        { "<a=n>7</a>", false },
        { "<a=x>b</f> <</c></a><a=n>7</a>", true },
        { "<a=x>b</f> </c></a><a=n>7</a>", false },
        { "<a=x><![CDATA[b</a><a=n>7</a>", false },
        { "<a=x>b</a><a=n>700</a>", false },
        { "<a=x>b</a><a=n>7</a><a=l>[`u\\u003cv`, `\\u003c/a>`]</a>", true },
        { "<a=x>b</a><a=n>7</a><a=l>[`u<v`]</a>", false },
        { "<a=x>b</a><a=n>7</a><a=l>[`</a>`]</a>", false },
    };
    CHECK(GRAMMAR_KIND_CALLS, source, rows);
}

#define VALUES                                                                                   \
    "{`type`: `object`, `properties`: {`s`: {`type`: `string`}, `e`: {`enum`: [`a`, `it's`, 5, " \
    "null, true]}, `p`: {`type`: `string`, `pattern`: `^[x'|]+$`}, `o`: {`type`: `object`, "     \
    "`properties`: {`k k`: {`type`: `boolean`}}, `additionalProperties`: {`type`: `integer`}}, " \
    "`l`: {`type`: `array`, `items`: {`type`: `string`, `maxLength`: 3}}, `any`: {}}, "          \
    "`required`: [`s`], `additionalProperties`: false}"

static void arguments_may_be_gemmas(void **arg)
{
    (void)arg;
    static const char source[] =
        ALONE("{`schema`: " VALUES ", `spelling`: `gemma`, `quote`: `\1<|\\`|>\2`}");
    static const char plain[] =
        ALONE("{`schema`: " VALUES ", `spelling`: `gemma`, `quote`: `<|\\`|>`}");
    static const struct row rows[] = {
        { "{s:\1<|`|>\2a `b` {c}, \n<|`|> \\ é\1<|`|>\2}", true },
        { "{s:\1<|`|>\2\1<|`|>\2,e:\1<|`|>\2it's\1<|`|>\2,o:{\1<|`|>\2k k\1<|`|>\2:true,z9:5}}",
          true },
        { "{s:\1<|`|>\2\1<|`|>\2,e:None}", true },
        { "{s:\1<|`|>\2\1<|`|>\2,e:null}", true },
        { "{s:\1<|`|>\2\1<|`|>\2,e:5,p:\1<|`|>\2x|x'\1<|`|>\2,l:[\1<|`|>\2abc\1<|`|>\2,\1<|`|>"
          "\2d\1<|`|>\2]}",
          true },
        { "{s:\1<|`|>\2\1<|`|>\2,any:{a:[1,{}],\1<|`|>\2b c\1<|`|>\2:false}}", true },
        { "{s:`a`}", false },
        { "{s: \1<|`|>\2a\1<|`|>\2}", false },
        { "{e:5}", false },
        { "{s:\1<|`|>\2\1<|`|>\2,e:6}", false },
        { "{s:\1<|`|>\2\1<|`|>\2,l:[\1<|`|>\2abcd\1<|`|>\2]}", false },
        { "{s:\1<|`|>\2\1<|`|>\2,o:{k k:true}}", false },
        { "{s:\1<|`|>\2\1<|`|>\2,o:{z:true}}", false },
        { "{s:\1<|`|>\2\1<|`|>\2,x:5}", false },
    };
    static const struct row plain_rows[] = {
        { "{s:<|`|>a `b` {c}<|`|>}", true },
        { "{s:<|`|>a | b<|`|>}", false },
        { "{s:<|`|><|`|>,p:<|`|>x'<|`|>}", true },
        { "{s:<|`|><|`|>,p:<|`|>x|<|`|>}", false },
    };
    CHECK(GRAMMAR_KIND_CALLS, source, rows);
    CHECK(GRAMMAR_KIND_CALLS, plain, plain_rows);
}

static void arguments_may_be_pythons(void **arg)
{
    (void)arg;
    static const char source[] = ALONE("{`schema`: " VALUES ", `spelling`: `python`}");
    static const struct row rows[] = {
        { "(s=`it's`)", true },
        { "(s='say `it\\'s`')", true },
        { "(s='a\\n\\u00e9\\\\', e=`it's`)", true },
        { "(s=``, e='it\\'s', o={'k k': True, `z9`: 5})", true },
        { "(s=``, e=None)", true },
        { "(s=``, e=null, p='x`')", false },
        { "(s=``, e=true, p='x\\'|')", true },
        { "(s=``, e=True, p=`x'|`)", true },
        { "(s=``, l=['abc', `d`], any={'a': [1, {}], 'b c': False})", true },
        { "(\n  s=``,\n  l=[]\n)", true },
        { "(s='it's')", false },
        { "(s=`a\nb`)", false },
        { "(s=a)", false },
        { "(`s`=`a`)", false },
        { "(s = `a`)", false },
        { "{s=`a`}", false },
        { "()", false },
        { "(s=``, e=6)", false },
        { "(s=``, l=['abcd'])", false },
        { "(s=``, o={'z': True})", false },
        { "(s=``, x=5)", false },
    };
    CHECK(GRAMMAR_KIND_CALLS, source, rows);
    struct grammar *g;
    struct err err;
    assert_int_equal(compile(GRAMMAR_KIND_CALLS,
                             ALONE("{`schema`: {`type`: `object`, `properties`: {`a b`: {}}}, "
                                   "`spelling`: `python`}"),
                             &g, &err),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "#/properties/a b: the name"));
    assert_true(fits(GRAMMAR_KIND_CALLS,
                     ALONE("{`schema`: {`type`: `object`, `minProperties`: 1}, `spelling`: "
                           "`python`}"),
                     "(a=1, b_c={'x y': []})"));
}

/* --- calls --- */

#define TWO                                                                                  \
    "`arguments`: [{`schema`: {`type`: `object`, `properties`: {`n`: {`type`: `integer`}}, " \
    "`required`: [`n`]}}, {`schema`: {`type`: `object`, `additionalProperties`: false}}]"

static void calls_follow_one_another(void **arg)
{
    (void)arg;
    static const char several[] =
        "{" TWO ", `first`: [{`begin`: `f: `, `arguments`: 0}], `calls`: [{`begin`: `f: `, "
        "`arguments`: 0}, {`begin`: `g: `, `arguments`: 1}], `between`: `; `, `end`: `.`}";
    static const char one[] = "{" TWO ", `calls`: [{`begin`: `f: `, `arguments`: 0}, {`begin`: "
                              "`g: `, `arguments`: 1}], `end`: `.`}";
    static const struct row several_rows[] = {
        { "f: {`n`:1}.", true },    { "f: {`n`:1}; g: {}; f: {`n`:2}.", true }, { "g: {}.", false },
        { "f: {`n`:1}; .", false }, { "f: {`n`:1}; g: {`n`:1}.", false },
    };
    static const struct row one_rows[] = {
        { "f: {`n`:1}.", true },
        { "g: {}.", true },
        { "g: {}; g: {}.", false },
    };
    CHECK(GRAMMAR_KIND_CALLS, several, several_rows);
    CHECK(GRAMMAR_KIND_CALLS, one, one_rows);
}

/* Free text is UTF-8 with the marks that are named; a trigger in plain characters can be made to lead nowhere. */
static void calls_stand_in_free_text(void **arg)
{
    (void)arg;
    static const char source[] =
        "{" TWO ", `marks`: [`\1<think>\2`], `triggers`: [`\1<call>\2`, `<call>`], `structures`: "
        "[{`begin`: `\1<call>\2`, `calls`: [{`begin`: `f`, `arguments`: 0}, {`begin`: `g`, "
        "`arguments`: 1}], `between`: `|`, `end`: `\1</call>\2`}]}";
    static const struct row rows[] = {
        { "", true },
        { "é 日 < <c <call \1<think>\2", true },
        { "a \1<call>\2f{`n`:1}|g{}\1</call>\2 b \1<call>\2g{}\1</call>\2", true },
        { "a \1<call>\2f{`n`:1}", false },
        { "a \1<call>\2h{}\1</call>\2", false },
        { "<call>f{`n`:1}", false },
        { "\1</call>\2", false },
        { "a \xC3", false },
        { "a \xC3(", false },
        { "a \xED\xA0\x80", false },
        { "a \xC0\x80", false },
        { "a \xFF", false },
        { "a \xFE", false },
        { "a \1<thank>\2", false },
    };
    CHECK(GRAMMAR_KIND_TAGS, source, rows);
}

/* --- messages --- */

static void messages_say_whom_they_are_for(void **arg)
{
    (void)arg;
    static const char source[] =
        "{" TWO ", `calls`: [{`word`: `functions.f`, `begin`: ``, `arguments`: 0, `end`: ``}, "
        "{`word`: `functions.g`, `begin`: ``, `arguments`: 1, `end`: ``}], `names`: [`f`, `g`], "
        "`prefixes`: [`functions.`, `tools.`], `to`: `to=`, `text`: `\1<|message|>\2`, `marks`: "
        "[`\1<|channel|>\2`, `\1<|message|>\2`, `\1<|start|>\2`, `\1<|end|>\2`, `\1<|call|>\2`, "
        "`\1<|constrain|>\2`], `ends`: [`\1<|end|>\2`, `\1<|call|>\2`], `starts`: "
        "[`\1<|channel|>\2`, "
        "`\1<|start|>\2`, `to=`, `\1<|message|>\2`]}";
#define F(header) "\1<|channel|>\2commentary to=functions.f" header "\1<|message|>\2"
    static const struct row rows[] = {
        { "\1<|channel|>\2final\1<|message|>\2Hm, to=functions.f {}", true },
        { "\1<|message|>\2Hm", true },
        { F(" \1<|constrain|>\2json") "{`n`:1}", true },
        { " to=functions.g\1<|channel|>\2commentary json\1<|message|>\2{}", true },
        { F("") "{`n`:1}\1<|call|>\2\1<|start|>\2assistant\1<|channel|>\2final\1<|message|>\2x",
          true },
        { "\1<|channel|>\2analysis\1<|message|>\2Hm.\1<|end|>\2\1<|start|>\2assistant" F(
              " json") "{`n`:1}\1<|end|>\2" F("") "{`n`:2}",
          true },
        { "\1<|channel|>\2analysis "
          "to=browser.find\1<|message|>\2x\1<|end|>\2\1<|start|>\2assistant "
          "to=user\1<|message|>\2y",
          true },
        { "\1<|channel|>\2commentary to=functions.fg\1<|message|>\2free", true },
        { F("") "{}", false },
        { F(" json") "free", false },
        { "\1<|channel|>\2commentary to=f\1<|message|>\2free", false },
        { "\1<|channel|>\2commentary to=tools.functions.f:1 x\1<|message|>\2free", false },
        { "\1<|channel|>\2analysis\1<|message|>\2Hm.\1<|end|>\2" F("") "{`n`:`1`}", false },
        { "\1<|channel|>\2commentary to=functions.f<|message|>free\1<|message|>\2{}", false },
        { "\1<|channel|>\2final\1<|message|>\2a<|end|>b", false },
        { "\1<|channel|>\2final\1<|message|>\2a\1<|start|>\2b", false },
        { "Hm", false },
        { "\1<|channel|>\2final", false },
    };
    CHECK(GRAMMAR_KIND_MESSAGES, source, rows);
}

static void messages_name_recipients(void **arg)
{
    (void)arg;
    static const char source[] =
        "{" TWO ", `calls`: [{`begin`: `f\\n`, `arguments`: 0, `end`: ``}, {`begin`: `g\\n`, "
        "`arguments`: 1, `end`: ``}], `names`: [`f`, `g`], `prefixes`: [`functions.`], "
        "`recipient`: `>>>`, `all`: `all\\n`}";
    static const struct row rows[] = {
        { "all\nHm", true },
        { "f\n{`n`:1}", true },
        { "all\n>>> x = 1\n>>>>all\n>>>g\n{}>>>f\n{`n`:2}", true },
        { "all\n>>>h\n", true },
        { "f\n{}", false },
        { "f\n{`n`:1} more", false },
        { "all\n>>>f\nfree", false },
        { "all\n>>>functions.f\n{}", false },
        { "h\nfree", false },
        { "Hm", false },
    };
    CHECK(GRAMMAR_KIND_MESSAGES, source, rows);
}

static void what_is_malformed_is_refused(void **arg)
{
    (void)arg;
    static const struct {
        enum grammar_kind kind;
        const char *source;
    } rows[] = {
        { GRAMMAR_KIND_CALLS, "{}" },
        { GRAMMAR_KIND_CALLS, "[]" },
        { GRAMMAR_KIND_CALLS, "{" TWO ", `calls`: [{`begin`: ``, `arguments`: 2}], `end`: ``}" },
        { GRAMMAR_KIND_CALLS, "{" TWO ", `calls`: [{`begin`: 1, `arguments`: 1}], `end`: ``}" },
        { GRAMMAR_KIND_CALLS, "{" TWO ", `calls`: [], `end`: ``}" },
        { GRAMMAR_KIND_CALLS, "{" TWO ", `calls`: [{`begin`: ``, `arguments`: 0}]}" },
        { GRAMMAR_KIND_CALLS,
          "{`arguments`: [{}], `calls`: [{`begin`: ``, `arguments`: 0}], `end`: ``}" },
        { GRAMMAR_KIND_MESSAGES, "{}" },
        { GRAMMAR_KIND_MESSAGES, "{`recipient`: `>`, `names`: [], `prefixes`: []}" },
        { GRAMMAR_KIND_TAGS, "{`triggers`: [`a`], `structures`: [{`begin`: `a`, `calls`: 5, "
                             "`end`: ``}]}" },
        { GRAMMAR_KIND_TAGS, "{`triggers`: [`a`], `structures`: [{`begin`: `a`, `arguments`: 0, "
                             "`end`: ``}]}" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct grammar *g = NULL;
        struct err err;
        if (compile(rows[i].kind, rows[i].source, &g, &err) == ERR_OK)
            fail_msg("row %zu: %s", i, rows[i].source);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_may_be_elements),
        cmocka_unit_test(arguments_may_be_gemmas),
        cmocka_unit_test(arguments_may_be_pythons),
        cmocka_unit_test(calls_follow_one_another),
        cmocka_unit_test(calls_stand_in_free_text),
        cmocka_unit_test(messages_say_whom_they_are_for),
        cmocka_unit_test(messages_name_recipients),
        cmocka_unit_test(what_is_malformed_is_refused),
    };
    return cmocka_run_group_tests_name("grammar_calls", tests, NULL, NULL);
}
