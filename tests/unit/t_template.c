#include "template/template_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define NOW 1767225599 /* 2025-12-31 23:59:59 UTC */

/* Render text over caller's and own variables (JSON, may be NULL). The result has the caller's bytes between "[" and "]". */
static enum err_code run(const char *text, const char *caller, const char *own, char **out,
                         struct err *err)
{
    struct template *t = NULL;
    struct json_doc c = { 0 }, o = { 0 };
    struct template_output got;
    struct buf marked;
    *out = NULL;
    enum err_code code = template_parse("t", text, strlen(text), &t, err);
    if (code)
        return code;
    if (caller)
        assert_int_equal(json_parse(&c, caller, strlen(caller), (size_t)1 << 24, NULL), ERR_OK);
    if (own)
        assert_int_equal(json_parse(&o, own, strlen(own), (size_t)1 << 24, NULL), ERR_OK);
    template_output_init(&got, (size_t)1 << 20);
    const struct template_input in = { .caller = caller ? &c.root : NULL,
                                       .own = own ? &o.root : NULL,
                                       .now = NOW };
    code = template_render(t, &in, &got, err);
    buf_init(&marked, MEM_CAT_BASE, (size_t)1 << 21);
    size_t at = 0;
    for (size_t i = 0; i < got.caller.n; i++) {
        const struct span *s = &got.caller.spans[i];
        assert_true(s->p0 < s->p1 && s->p1 <= got.text.len && s->p0 >= at);
        assert_true(i == 0 || s->p0 > s[-1].p1); /* touching ones are merged */
        buf_add(&marked, got.text.data + at, s->p0 - at);
        buf_add_char(&marked, '[');
        buf_add(&marked, got.text.data + s->p0, s->p1 - s->p0);
        buf_add_char(&marked, ']');
        at = s->p1;
    }
    buf_add(&marked, got.text.data + at, got.text.len - at);
    if (!code)
        *out = buf_take(&marked, NULL);
    buf_release(&marked);
    template_output_release(&got);
    template_free(t);
    json_doc_release(&c);
    json_doc_release(&o);
    return code;
}

static void check(const char *text, const char *caller, const char *want)
{
    struct err err = { 0 };
    char *got;
    if (run(text, caller, NULL, &got, &err))
        fail_msg("%s: %s", text, err.text);
    if (strcmp(got, want) != 0)
        fail_msg("%s\n   got  %s\n   want %s", text, got, want);
    mem_free(MEM_CAT_BASE, got);
}

static void check_error(const char *text, const char *caller, enum err_code want,
                        const char *want_text)
{
    struct err err = { 0 };
    char *got;
    enum err_code code = run(text, caller, NULL, &got, &err);
    if (code != want || !strstr(err.text, want_text))
        fail_msg("%.80s\n   got %d %s\n   want %d %s", text, code, err.text, want, want_text);
}

/* --- whose bytes --- */

static void plain_output_tells_the_callers_bytes(void **state)
{
    check("<|im_start|>{{ m }}<|im_end|>", "{\"m\":\"<|x|>\"}", "<|im_start|>[<|x|>]<|im_end|>");
    check("{{ m }}{{ m }}", "{\"m\":\"a\"}", "[aa]");
    check("{{ m }}", "{\"m\":\"\"}", "");
    check("{{ m.a.b[0] }}", "{\"m\":{\"a\":{\"b\":[\"x\"]}}}", "[x]");
    check("{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}",
          "{\"m\":{\"k\":\"v\",\"n\":1}}", "[k]=[v];[n]=[1];");
}

static void joining_keeps_each_side(void **state)
{
    check("{{ '<' ~ m ~ '>' }}", "{\"m\":\"a\"}", "<[a]>");
    check("{{ '<' + m + '>' }}", "{\"m\":\"a\"}", "<[a]>");
    check("{{ ['x', m, 'y']|join(', ') }}", "{\"m\":\"a\"}", "x, [a], y");
    check("{{ ['x', 'y']|join(m) }}", "{\"m\":\"a\"}", "x[a]y");
    check("{{ m.join(['x', 'y', 'z']) }}", "{\"m\":\"-\"}", "x[-]y[-]z");
    check("{{ ('<' ~ m) * 2 }}", "{\"m\":\"a\"}", "<[a]<[a]");
    check("{{ '%s|%5s|%-4s|' % (m, m, m) }}", "{\"m\":\"a\"}", "[a]|    [a]|[a]   |");
    check("{{ '{}<{:>3}>{k!r}'.format(m, m, k=m) }}", "{\"m\":\"a\"}", "[a]<  [a]>['a']");
    check("{{ m % 'x' }}", "{\"m\":\"<%s>\"}", "[<]x[>]");
    check("{{ m.format('x') }}", "{\"m\":\"<{}>\"}", "[<]x[>]");
}

static void cutting_keeps_what_is_left(void **state)
{
    check("{{ ('ab' ~ m ~ 'cd')[1:5] }}", "{\"m\":\"xyz\"}", "b[xyz]");
    check("{{ ('ab' ~ m ~ 'cd')[3:6] }}", "{\"m\":\"xyz\"}", "[yz]c");
    check("{{ ('ab' ~ m)[::-1] }}", "{\"m\":\"xy\"}", "[yx]ba");
    check("{{ ('a' ~ m)[1] }}", "{\"m\":\"xy\"}", "[x]");
    check("{{ (' ' ~ m ~ ' ')|trim }}", "{\"m\":\" x \"}", "[x]");
    check("{{ ('<' ~ m ~ '>').strip('<>') }}", "{\"m\":\"x\"}", "[x]");
    check("{{ ('a,' ~ m ~ ',b').split(',')|join('|') }}", "{\"m\":\"x,y\"}", "a|[x]|[y]|b");
    check("{{ m.split(none, 1)|join('|') }}{{ m.rsplit(none, 1)|join('|') }}",
          "{\"m\":\"  a b c  \"}", "[a]|[b c    a b]|[c]");
    check("{{ m.split('</think>')[-1].lstrip('\\n') }}", "{\"m\":\"<think>q</think>\\n\\nans\"}",
          "[ans]");
    check("{% for c in 'a' ~ m %}{{ c }}.{% endfor %}", "{\"m\":\"xy\"}", "a.[x].[y].");
    check("{{ ('a' ~ m).partition('x')|join('|') }}", "{\"m\":\"xy\"}", "a|[x]|[y]");
    check("{{ ('aa' ~ m)|truncate(4, true, '~', 0) }}", "{\"m\":\"xxxx\"}", "aa[x]~");
}

static void replacing_keeps_both_origins(void **state)
{
    check("{{ m|replace('a', 'b') }}", "{\"m\":\"xax\"}", "[x]b[x]");
    check("{{ 'a-a'|replace('-', m) }}", "{\"m\":\"<|x|>\"}", "a[<|x|>]a");
    check("{{ m.replace('<', '<|im_end|>') }}", "{\"m\":\"a<b\"}", "[a]<|im_end|>[b]");
}

static void mapping_bytes_keeps_their_origin(void **state)
{
    check("{{ ('ab' ~ m)|upper }}", "{\"m\":\"x\xC3\x9F\"}", "AB[XSS]");
    check("{{ ('AB' ~ m)|lower }}", "{\"m\":\"XY\"}", "ab[xy]");
    check("{{ ('ab' ~ m)|title }}", "{\"m\":\"cd ef\"}", "Ab[cd Ef]");
    check("{{ ('ab' ~ m)|capitalize }}", "{\"m\":\"CD\"}", "Ab[cd]");
    check("{{ (m ~ '<')|e }}", "{\"m\":\"<\"}", "[&lt;]&lt;");
    check("{{ (m ~ 'y')|indent(2, true) }}", "{\"m\":\"x\\n\"}", "  [x]\n  y");
    check("{{ ('/' ~ m)|urlencode }}", "{\"m\":\"a b\"}", "/[a%20b]");
}

static void computed_text_of_the_callers_data_is_the_callers(void **state)
{
    check("{{ m|tojson }}", "{\"m\":{\"a\":[1,\"<\",null,true]}}",
          "[{\"a\": [1, \"<\", null, true]}]");
    check("{{ {'k': m}|tojson }}", "{\"m\":\"v\"}", "{\"k\": [\"v\"]}");
    check("{{ ['<', m]|tojson }}", "{\"m\":\"\\n\"}", "[\"<\", [\"\\n\"]]");
    check("{{ [m, 'b'] }}", "{\"m\":\"a'\"}", "[[\"a'\"], 'b']");
    check("{{ m }}", "{\"m\":[1,{\"a\":2.50}]}", "[[1, {'a': 2.5}]]");
    check("{{ m }}|{{ m + 1 }}|{{ m ~ 'x' }}|{{ '%d' % m }}|{{ -m }}", "{\"m\":5}",
          "[5]|[6]|[5]x|[5]|[-5]");
    check("{{ m|int }}|{{ m|float }}", "{\"m\":\"5\"}", "[5]|[5.0]");
    check("{{ 1 + 1 }}{% for x in m %}{{ loop.index }}{% endfor %}{{ m|length }}", "{\"m\":[1,2]}",
          "2122");
    check("{{ m is string }}{{ m == 'a' }}", "{\"m\":\"a\"}", "TrueTrue");
}

static void blocks_and_macros_keep_origins(void **state)
{
    check("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(m) }}{{ f('a') }}", "{\"m\":\"x\"}",
          "<[x]><a>");
    check("{% set s %}<{{ m }}>{% endset %}{{ s }}{{ s|length }}", "{\"m\":\"x\"}", "<[x]>3");
    check("{% filter upper %}a{{ m }}{% endfilter %}", "{\"m\":\"x\"}", "A[X]");
    check("{% macro f() %}<{{ caller(m) }}>{% endmacro %}{% call(y) f() %}{{ y }}-{% endcall %}",
          "{\"m\":\"x\"}", "<[x]->");
    check(
        "{% set ns = namespace(s='') %}{% for x in m %}{% set ns.s = ns.s ~ '<' ~ x %}{% endfor %}"
        "{{ ns.s }}",
        "{\"m\":[\"a\",\"b\"]}", "<[a]<[b]");
    check("{% generation %}{{ m }}.{% endgeneration %}", "{\"m\":\"x\"}", "[x].");
}

/* A long text grows in place; an older, shorter one must not see the new bytes or spans. */
static void appended_text_shares_without_leaking(void **state)
{
    check("{% set a = 'x' * 300 %}{% set a = a ~ m %}{% set b = a ~ '1' %}{% set c = a ~ m %}"
          "{{ a[299:] }}|{{ b[299:] }}|{{ c[299:] }}|{{ a|length }}",
          "{\"m\":\"yz\"}", "x[yz]|x[yz]1|x[yzyz]|302");
}

static void own_variables_win_and_are_not_the_callers(void **state)
{
    struct err err = { 0 };
    char *got;
    assert_int_equal(run("{{ bos_token }}{{ m }}", "{\"bos_token\":\"evil\",\"m\":\"x\"}",
                         "{\"bos_token\":\"<s>\"}", &got, &err),
                     ERR_OK);
    assert_string_equal(got, "<s>[x]");
    mem_free(MEM_CAT_BASE, got);
}

/* --- values --- */

static void numbers_keep_their_spelling(void **state)
{
    check("{{ x|tojson }}",
          "{\"x\":[0.1,1e-7,1.0,9223372036854775808,1000000000000000000000000000000,-0]}",
          "[[0.1, 1e-07, 1.0, 9223372036854775808, 1000000000000000000000000000000, 0]]");
    check("{{ 9223372036854775807 + 1 }} {{ 2 ** 64 - 1 }} {{ -(2 ** 63) }} {{ 10 ** 20 // 7 }} "
          "{{ -(10 ** 20) % 7 }} {{ 10 ** 20 > 1.5 }}",
          NULL,
          "9223372036854775808 18446744073709551615 -9223372036854775808 14285714285714285714 5 "
          "True");
    check("{{ 7 // -2 }} {{ 7 % -2 }} {{ -7 // 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 / 3 }}",
          NULL, "-4 -1 -4 3.0 0.5 0.3333333333333333");
    check("{{ 2 ** -1 }} {{ 2.0 ** 3 }} {{ 2 ** 0.5 }} {{ 1e22 }} {{ 1e16 }} {{ 0.1 + 0.2 }}", NULL,
          "0.5 8.0 1.4142135623730951 1e+22 1e+16 0.30000000000000004");
}

static void the_date_is_an_input(void **state)
{
    check("{{ strftime_now('%Y-%m-%d %H:%M:%S|%d %b %Y|%%|%-d|%j') }}", NULL,
          "2025-12-31 23:59:59|31 Dec 2025|%|31|365");
    check("{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%%') }}|{{ strftime_now('%d %b "
          "%Y')|length }}",
          NULL, "2025-12-31|%|11");
}

/* --- errors --- */

static void exceptions_have_the_templates_own_text(void **state)
{
    static const char text[] =
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system role: ' ~ "
        "messages[0].content) }}{% endif %}ok";
    struct err err = { 0 };
    char *got;
    assert_int_equal(
        run(text, "{\"messages\":[{\"role\":\"system\",\"content\":\"Z9\"}]}", NULL, &got, &err),
        ERR_INVALID);
    assert_string_equal(err.text, "No system role: Z9");
    check(text, "{\"messages\":[{\"role\":\"user\",\"content\":\"Z9\"}]}", "ok");
}

static void load_errors_name_line_and_construct(void **state)
{
    check_error("a\n{% if %}", NULL, ERR_INVALID, "t line 2: ");
    check_error("\n\n{% include 'x' %}", NULL, ERR_UNSUPPORTED,
                "line 3: {% include %} is not supported");
    check_error("{% import 'x' as y %}", NULL, ERR_UNSUPPORTED, "{% import %}");
    check_error("{% extends 'x' %}", NULL, ERR_UNSUPPORTED, "{% extends %}");
    check_error("{% from 'x' import y %}", NULL, ERR_UNSUPPORTED, "{% from %}");
    check_error("{% autoescape true %}{% endautoescape %}", NULL, ERR_UNSUPPORTED, "autoescape");
    check_error("{{ x|random }}", NULL, ERR_UNSUPPORTED, "filter 'random'");
    check_error("\n{{ x|nosuch }}", NULL, ERR_INVALID, "line 2: No filter named 'nosuch'.");
    check_error("{{ x is nosuch }}", NULL, ERR_INVALID, "No test named 'nosuch'.");
    check_error("{% frobnicate %}", NULL, ERR_INVALID, "unknown tag 'frobnicate'");
    check_error("{% for x in y %}", NULL, ERR_INVALID, "'for' of line 1 is not closed");
    check_error("{{ 'abc }}", NULL, ERR_INVALID, "string has no end");
    check_error("{{ (1 }}", NULL, ERR_INVALID, "unexpected '}'");
    check_error("{% break %}", NULL, ERR_INVALID, "'break' outside loop");
    check_error("{% raw %}x", NULL, ERR_INVALID, "Missing end of raw");
    check_error("{# x", NULL, ERR_INVALID, "Missing end of comment");
    check_error("{{ f(a=1, 2) }}", NULL, ERR_INVALID, "invalid syntax for function call");
    check_error("\xFF", NULL, ERR_INVALID, "not UTF-8");
    check("{% if false %}{{ x|nosuch }}{% endif %}ok", NULL, "ok");
}

static void type_errors_name_the_line(void **state)
{
    check_error("\n{{ 'n' + 1 }}", NULL, ERR_INVALID,
                "t line 2: TypeError: can only concatenate str (not \"int\") to str");
    check_error("{{ q.x }}", NULL, ERR_INVALID, "UndefinedError: 'q' is undefined");
    check_error("{{ m.x.y }}", "{\"m\":{}}", ERR_INVALID,
                "UndefinedError: 'dict object' has no attribute 'x'");
    check_error("{{ m.append(1) }}", "{\"m\":[]}", ERR_INVALID,
                "access to attribute 'append' of 'list' object is unsafe");
    check_error("{{ ''.__class__.__mro__ }}", NULL, ERR_INVALID, "unsafe");
    check_error("{{ range(100001) }}", NULL, ERR_INVALID, "Range too big");
}

/* --- bounds --- */

static char *repeated(const char *head, const char *part, int n, const char *tail)
{
    struct buf b;
    buf_init(&b, MEM_CAT_BASE, (size_t)8 << 20);
    buf_add_str(&b, head);
    for (int i = 0; i < n; i++)
        buf_add_str(&b, part);
    buf_add_str(&b, tail);
    return buf_take(&b, NULL);
}

/* Templates that would run for ever, or take all memory, end with an error soon. CPU seconds, generous for the sanitizers. */
static void hostile_templates_end(void **state)
{
    char *brackets = repeated("{{ ", "(", 100000, "1 }}");
    char *ifs = repeated("", "{% if 1 %}", 5000, "");
    char *sum = repeated("{{ 1", "+1", 100000, " }}");
    char *nots = repeated("{{ ", "not ", 100000, "1 }}");
    char *dots = repeated("{{ a", ".b", 100000, " }}");
    char *filters = repeated("{{ 'a'", "|upper", 30000, " }}");
    char *elifs = repeated("{% if 0 %}", "{% elif 0 %}", 30000, "{% endif %}");
    const char *const texts[] = {
        "{% for a in range(60000) %}{% for b in range(60000) %}{{ b }}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for v in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'a'|indent(999999999) }}",
        "{{ 2 ** 99999999 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'x'|center(999999999) }}",
        "{{ 'x'.zfill(999999999) }}",
        "{{ [[1]*9999]*9999 }}",
        "{{ ('-' * 5000000)|wordwrap(1) }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(18) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}"
        "{% for i in range(99999) %}{% set x = ns.s|upper %}{{ ns.s.rfind('zq') }}{% endfor %}",
        brackets,
        ifs,
        sum,
        nots,
        dots,
        filters,
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct err err = { 0 };
        char *got;
        clock_t start = clock();
        enum err_code code = run(texts[i], NULL, NULL, &got, &err);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (code != ERR_FULL && code != ERR_INVALID)
            fail_msg("%.60s: code %d", texts[i], code);
        if (seconds > 20)
            fail_msg("%.60s took %g s", texts[i], seconds);
    }
    check("{{ 'a'.join(range(9)|list|map('string')) }}", NULL, "0a1a2a3a4a5a6a7a8");
    check(elifs, NULL, "");
    mem_free(MEM_CAT_BASE, brackets);
    mem_free(MEM_CAT_BASE, ifs);
    mem_free(MEM_CAT_BASE, sum);
    mem_free(MEM_CAT_BASE, nots);
    mem_free(MEM_CAT_BASE, dots);
    mem_free(MEM_CAT_BASE, filters);
    mem_free(MEM_CAT_BASE, elifs);
}

static void memory_is_given_back(void **state)
{
    int64_t request = mem_bytes(MEM_CAT_REQUEST), tree = mem_bytes(MEM_CAT_TEMPLATE);
    struct err err = { 0 };
    char *got;
    assert_int_equal(
        run("{% for i in range(1000) %}{{ 'x' * 1000 }}{% endfor %}", NULL, NULL, &got, &err),
        ERR_OK);
    mem_free(MEM_CAT_BASE, got);
    assert_int_equal(run("{{ 'x' * 1000000000 }}", NULL, NULL, &got, &err), ERR_FULL);
    assert_int_equal(run("{% if %}", NULL, NULL, &got, &err), ERR_INVALID);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), request);
    assert_int_equal(mem_bytes(MEM_CAT_TEMPLATE), tree);
}

static void output_over_its_cap_is_an_error(void **state)
{
    struct template *t = NULL;
    struct template_output out;
    struct err err = { 0 };
    const struct template_input in = { 0 };
    assert_int_equal(template_parse("t", "{{ 'x' * 100 }}", 15, &t, NULL), ERR_OK);
    template_output_init(&out, 99);
    assert_int_equal(template_render(t, &in, &out, &err), ERR_FULL);
    template_output_release(&out);
    template_output_init(&out, 100);
    assert_int_equal(template_render(t, &in, &out, &err), ERR_OK);
    assert_int_equal(template_render(t, &in, &out, &err), ERR_OK); /* again: it starts afresh */
    assert_int_equal(out.text.len, 100);
    template_output_release(&out);
    template_free(t);
}

static void uses_tells_what_a_template_looks_at(void **state)
{
    static const char text[] =
        "{% set made = 1 %}{% if tools %}{{ m.enable_thinking }}{{ x[key] }}{% endif %}";
    struct template *t = NULL;
    assert_int_equal(template_parse("t", text, sizeof(text) - 1, &t, NULL), ERR_OK);
    assert_true(template_uses(t, "tools"));
    assert_true(template_uses(t, "key"));
    assert_false(template_uses(t, "enable_thinking"));
    assert_false(template_uses(t, "made"));
    assert_false(template_uses(t, "documents"));
    template_free(t);
}

/* Every prefix of a template that uses every statement is an error or renders; no crash, no leak. */
static void every_truncation_is_told(void **state)
{
    static const char text[] =
        "{%- macro f(a, b=1) -%}{{ a ~ b|default('x') }}{{ caller() if caller }}{%- endmacro -%}"
        "{% for k, v in {'a': [1, 2.5]}.items() if k is string recursive %}{{ loop.index }}{% else "
        "%}n{% endfor %}"
        "{% call(z) f(1) %}{{ z }}{% endcall %}{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 "
        "%}"
        "{% with q = 1 %}{{ q[0:1:2] if false else (1,) }}{% endwith %}{# c #}{% raw %}{{{% endraw "
        "%}"
        "{% set s %}x{% endset %}{% filter upper %}{{ s }}{% endfilter %}{{ \"\\u00e9\" }}";
    for (size_t n = 0; n <= sizeof(text) - 1; n++) {
        struct template *t = NULL;
        struct err err = { 0 };
        char *cut = test_malloc(n + 1);
        memcpy(cut, text, n);
        if (template_parse("t", cut, n, &t, &err) != ERR_OK)
            assert_true(err.text[0]);
        test_free(cut);
        if (t) {
            struct template_output out;
            const struct template_input in = { 0 };
            template_output_init(&out, 1 << 16);
            if (template_render(t, &in, &out, &err) != ERR_OK)
                assert_true(err.text[0]);
            template_output_release(&out);
            template_free(t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_output_tells_the_callers_bytes),
        cmocka_unit_test(joining_keeps_each_side),
        cmocka_unit_test(cutting_keeps_what_is_left),
        cmocka_unit_test(replacing_keeps_both_origins),
        cmocka_unit_test(mapping_bytes_keeps_their_origin),
        cmocka_unit_test(computed_text_of_the_callers_data_is_the_callers),
        cmocka_unit_test(blocks_and_macros_keep_origins),
        cmocka_unit_test(appended_text_shares_without_leaking),
        cmocka_unit_test(own_variables_win_and_are_not_the_callers),
        cmocka_unit_test(numbers_keep_their_spelling),
        cmocka_unit_test(the_date_is_an_input),
        cmocka_unit_test(exceptions_have_the_templates_own_text),
        cmocka_unit_test(load_errors_name_line_and_construct),
        cmocka_unit_test(type_errors_name_the_line),
        cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(memory_is_given_back),
        cmocka_unit_test(output_over_its_cap_is_an_error),
        cmocka_unit_test(uses_tells_what_a_template_looks_at),
        cmocka_unit_test(every_truncation_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
