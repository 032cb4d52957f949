#include "base/utf8.h"
#include "json/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PARSE_MAX ((size_t)64 << 20)

struct text {
    const char *data;
    size_t len;
};
#define T(s)             \
    {                    \
        s, sizeof(s) - 1 \
    }

/* RFC 8259: texts that every parser takes, and texts that none may take (the kinds that parser comparisons list). */
static const struct text accepted[] = {
    T("[[]   ]"),
    T("[\"\"]"),
    T("[]"),
    T("[\"a\"]"),
    T("[false]"),
    T("[null, 1, \"1\", {}]"),
    T("[null]"),
    T("[1\n]"),
    T(" [1]"),
    T("[1,null,null,null,2]"),
    T("[2] "),
    T("[123e65]"),
    T("[0e+1]"),
    T("[0e1]"),
    T("[ 4]"),
    T("[-0.000000000000000000000000000000000000000000000000000000000000000000000000000001]"),
    T("[20e1]"),
    T("[-0]"),
    T("[-123]"),
    T("[-1]"),
    T("[1E22]"),
    T("[1E-2]"),
    T("[1E+2]"),
    T("[123e45]"),
    T("[123.456e78]"),
    T("[1e-2]"),
    T("[1e+2]"),
    T("[123]"),
    T("[123.456789]"),
    T("{\"asd\":\"sdf\", \"dfg\":\"fgh\"}"),
    T("{\"a\":\"b\",\"a\":\"c\"}"),
    T("{}"),
    T("{\"\":0}"),
    T("{\"foo\\u0000bar\": 42}"),
    T("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"),
    T("{\"a\":[]}"),
    T("{\n\"a\": \"b\"\n}"),
    T("[\"\\u0060\\u012a\\u12AB\"]"),
    T("[\"\\uD801\\udc37\"]"),
    T("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
    T("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"),
    T("[\"\\\\u0000\"]"),
    T("[\"\\\"\"]"),
    T("[\"a/*b*/c/*d//e\"]"),
    T("[\"\\\\a\"]"),
    T("[\"\\\\n\"]"),
    T("[\"\\u0012\"]"),
    T("[\"\\uFFFF\"]"),
    T("[\"\xF4\x8F\xBF\xBF\"]"),
    T("[\"\xEF\xBF\xBF\"]"),
    T("[\"\\u0000\"]"),
    T("[\"\xE2\x82\xAC\xF0\x9D\x84\x9E\"]"),
    T("[\"\\uDBFF\\uDFFE\"]"),
    T("[\"\xE2\x80\xA8\xE2\x80\xA9\"]"),
    T("[\"\x7F\"]"),
    T("false"),
    T("42"),
    T("-0.1"),
    T("null"),
    T("\"asd\""),
    T("true"),
    T("\"\""),
    T("[\"a\"]\n"),
    T(" [] "),
    T("\t\r\n[\t]\r\n"),
};

static const struct text refused[] = {
    T("6\"ts"), /* yajl waits for the rest of a token */
    T("{} \"ts"),
    T("[1] tru"),
    T(""),
    T(" "),
    T("[1 true]"),
    T("[a\xE5]"),
    T("[\"\": 1]"),
    T("[\"\"],"),
    T("[,1]"),
    T("[1,,2]"),
    T("[\"x\",,]"),
    T("[\"x\"]]"),
    T("[\"\",]"),
    T("[\"x\""),
    T("[x"),
    T("[3[4]]"),
    T("[\xFF]"),
    T("[1:2]"),
    T("[,]"),
    T("[-]"),
    T("[   , \"\"]"),
    T("[\"a\",\n4\n,1,"),
    T("[1,]"),
    T("[\"\va\"\\f]"),
    T("[*]"),
    T("[1,\n1\n,1"),
    T("[{}"),
    T("[fals]"),
    T("[nul]"),
    T("[tru]"),
    T("123\0"),
    T("[++1234]"),
    T("[+1]"),
    T("[+Inf]"),
    T("[-01]"),
    T("[-1.0.]"),
    T("[-2.]"),
    T("[-NaN]"),
    T("[.-1]"),
    T("[.2e-3]"),
    T("[0.1.2]"),
    T("[0.3e+]"),
    T("[0.3e]"),
    T("[0.e1]"),
    T("[0E+]"),
    T("[0E]"),
    T("[0e]"),
    T("[1.0e+]"),
    T("[1.0e-]"),
    T("[1.0e]"),
    T("[1 000.0]"),
    T("[1eE2]"),
    T("[2.e+3]"),
    T("[2.e3]"),
    T("[9.e+]"),
    T("[Inf]"),
    T("[NaN]"),
    T("[Infinity]"),
    T("[\xEF\xBC\x91]"),
    T("[1+2]"),
    T("[0x1]"),
    T("[0x42]"),
    T("[-Infinity]"),
    T("[-foo]"),
    T("[- 1]"),
    T("[-012]"),
    T("[-.123]"),
    T("[-1x]"),
    T("[1ea]"),
    T("[1e\xE5]"),
    T("[1.]"),
    T("[.123]"),
    T("[1.2a-3]"),
    T("[1.8011670033376514H-308]"),
    T("[012]"),
    T("[00]"),
    T("01"),
    T("[\"x\", truth]"),
    T("{[: \"x\"}\n"),
    T("{\"x\", null}"),
    T("{\"x\"::\"b\"}"),
    T("{\"a\":\"a\" 123}"),
    T("{key: 'value'}"),
    T("{\"a\" b}"),
    T("{:\"b\"}"),
    T("{\"a\" \"b\"}"),
    T("{\"a\":"),
    T("{\"a\""),
    T("{1:1}"),
    T("{9999E9999:1}"),
    T("{null:null,null:null}"),
    T("{\"id\":0,,,,,}"),
    T("{'a':0}"),
    T("{\"id\":0,}"),
    T("{\"a\":\"b\"}/**/"),
    T("{\"a\":\"b\"}//"),
    T("{\"a\":/*comment*/\"b\"}"),
    T("/*comment*/{}"),
    T("{\"a\":\"b\",,\"c\":\"d\"}"),
    T("{a: \"b\"}"),
    T("{\"a\":\"a"),
    T("{ \"foo\" : \"bar\", \"a\" }"),
    T("{\"a\":\"b\"}#"),
    T("[\"\\uD800\\\"]"),
    T("[\"\\uD800\\u\"]"),
    T("[\"\\uD800\\u1\"]"),
    T("[\"\\uD800\\u1x\"]"),
    T("[\xC3\xA9]"),
    T("[\"\\x00\"]"),
    T("[\"\\\\\\\"]"),
    T("[\"\\\t\"]"),
    T("[\"\\\xF0\x9F\x8C\x80\"]"),
    T("[\"\\\"]"),
    T("[\"\\u00A\"]"),
    T("[\"\\uD834\\uDd\"]"),
    T("[\"\\uD800\\uD800\\x\"]"),
    T("[\"\\u\xE5\"]"),
    T("[\"\\a\"]"),
    T("[\"\\uqqqq\"]"),
    T("[\"\\\xE5\"]"),
    T("[\\u0020\"asd\"]"),
    T("[\\n]"),
    T("\""),
    T("['single quote']"),
    T("abc"),
    T("[\"\\"),
    T("[\"a\0a\"]"),
    T("[\"new\nline\"]"),
    T("[\"\t\"]"),
    T("[\"\x1F\"]"),
    T("\"\\UA66D\""),
    T("\"\"x"),
    T("<.>"),
    T("[<null>]"),
    T("[1]x"),
    T("{\"a\":true} \"x\""),
    T("['"),
    T("[True]"),
    T("1]"),
    T("{\"x\": true,"),
    T("[][]"),
    T("]"),
    T("\xEF\xBB\xBF{}"),
    T("\xE5"),
    T("["),
    T("{"),
    T("[\0]"),
    T("2@"),
    T("{}}"),
    T("[\f]"),
    T("\v1"),
    T("[\xE2\x81\xA0]"),
    T("[\"\xFF\"]"),
    T("[\"\xC0\xAF\"]"),
    T("[\"\xED\xA0\x80\"]"),
    T("[\"\xF4\x90\x80\x80\"]"),
    T("[\"\xE6\x97\"]"),
    T("[\"\x80\"]"),
    T("null null"),
    T("nullx"),
    T("truefalse"),
};

/* The value written back; NULL for a text that is refused. The caller frees with test_free. */
static char *round_trip(const char *text, size_t len, struct err *err)
{
    struct json_doc doc;
    if (json_parse(&doc, text, len, PARSE_MAX, err))
        return NULL;
    struct buf out;
    struct json_writer w;
    buf_init(&out, MEM_CAT_BASE, PARSE_MAX);
    json_writer_init(&w, &out);
    json_value(&w, &doc.root);
    json_doc_release(&doc);
    assert_false(out.failed);
    char *copy = test_malloc(out.len + 1);
    memcpy(copy, out.data, out.len + 1);
    buf_release(&out);
    return copy;
}

static void assert_round_trip(const char *text, size_t len, const char *want)
{
    struct err err = { 0 };
    char *got = round_trip(text, len, &err);
    if (!got)
        fail_msg("refused %s: %s", text, err.text);
    assert_string_equal(got, want);
    test_free(got);
}

static void accepts_what_the_rfc_accepts(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(accepted); i++) {
        struct err err = { 0 };
        char *got = round_trip(accepted[i].data, accepted[i].len, &err);
        if (!got)
            fail_msg("refused %s: %s", accepted[i].data, err.text);
        test_free(got);
    }
}

static void refuses_what_the_rfc_refuses(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        struct json_doc doc;
        struct err err = { 0 };
        enum err_code code = json_parse(&doc, refused[i].data, refused[i].len, PARSE_MAX, &err);
        if (code != ERR_INVALID)
            fail_msg("case %zu: %s: code %d", i, refused[i].data, code);
        assert_non_null(strstr(err.text, "JSON line "));
        assert_null(doc.arena.blocks);
    }
}

static void numbers_keep_their_spelling(void **state)
{
    static const char text[] = "[0.1,1e-7,1.0,9223372036854775808,1000000000000000000000000000000,"
                               "-0,-0.0,1E+2,0.10000000000000001,1e400]";
    assert_round_trip(text, sizeof(text) - 1, text);
}

static void strings_keep_nul_and_mend_lone_surrogates(void **state)
{
    static const struct {
        const char *text, *bytes;
        size_t len;
    } cases[] = {
        { "\"a\\u0000b\"", "a\0b", 3 },
        { "\"\\ud800\"", "\xEF\xBF\xBD", 3 },
        { "\"\\udc00x\"", "\xEF\xBF\xBDx", 4 },
        { "\"\\ud800\\ud800\\udc00\"", "\xEF\xBF\xBD\xF0\x90\x80\x80", 7 },
        { "\"\\uD834\\uDD1E\"", "\xF0\x9D\x84\x9E", 4 },
        { "\"\\ud800\\n\"", "\xEF\xBF\xBD\n", 4 },
        { "\"\\ud800\\u0041\"",
          "\xEF\xBF\xBD"
          "A",
          4 },
        { "\"\\\\ud800\"", "\\ud800", 6 },
        { "\"\\uffff\"", "\xEF\xBF\xBF", 3 },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct json_doc doc;
        struct err err = { 0 };
        if (json_parse(&doc, cases[i].text, strlen(cases[i].text), PARSE_MAX, &err))
            fail_msg("%s: %s", cases[i].text, err.text);
        assert_int_equal(doc.root.len, cases[i].len);
        assert_memory_equal(doc.root.text, cases[i].bytes, cases[i].len + 1);
        assert_true(utf8_is_valid(doc.root.text, doc.root.len));
        json_doc_release(&doc);
    }
}

static void lone_surrogates_in_keys_are_mended_too(void **state)
{
    static const char text[] = "{\"\\udfff\":1,\"\\u0000\":2}";
    assert_round_trip(text, sizeof(text) - 1, "{\"\xEF\xBF\xBD\":1,\"\\u0000\":2}");
}

static void depth_ends_at_64(void **state)
{
    char text[400];
    for (int depth = 63; depth <= 66; depth++) {
        struct json_doc doc;
        struct err err = { 0 };
        size_t n = 0;
        for (int i = 0; i < depth; i++) {
            memcpy(text + n, i % 2 ? "[" : "{\"a\":", i % 2 ? 1 : 5);
            n += i % 2 ? 1 : 5;
        }
        text[n++] = '1';
        for (int i = depth - 1; i >= 0; i--)
            text[n++] = i % 2 ? ']' : '}';
        enum err_code code = json_parse(&doc, text, n, PARSE_MAX, &err);
        assert_int_equal(code, depth <= 64 ? ERR_OK : ERR_INVALID);
        if (code)
            assert_non_null(strstr(err.text, "deeper than 64"));
        json_doc_release(&doc);
    }
}

static void a_million_brackets_are_refused(void **state)
{
    size_t n = 1000000;
    char *text = test_malloc(n);
    struct json_doc doc;
    memset(text, '[', n);
    assert_int_equal(json_parse(&doc, text, n, PARSE_MAX, NULL), ERR_INVALID);
    test_free(text);
}

static void duplicate_keys_keep_the_first_place_and_the_last_value(void **state)
{
    static const char text[] = "{\"a\":1,\"b\":2,\"a\":3,\"c\":{\"x\":1,\"x\":[]},\"b\":4}";
    assert_round_trip(text, sizeof(text) - 1, "{\"a\":3,\"b\":4,\"c\":{\"x\":[]}}");
}

static void many_duplicate_keys_take_the_hashed_path(void **state)
{
    struct buf in;
    struct json_doc doc;
    buf_init(&in, MEM_CAT_BASE, PARSE_MAX);
    buf_add_char(&in, '{');
    for (int i = 0; i < 200000; i++)
        buf_printf(&in, "%s\"k%d\":%d", i ? "," : "", i % 1000, i);
    buf_add_char(&in, '}');
    assert_int_equal(json_parse(&doc, in.data, in.len, PARSE_MAX, NULL), ERR_OK);
    assert_int_equal(doc.root.n, 1000);
    assert_string_equal(doc.root.members[7].key, "k7");
    assert_string_equal(doc.root.members[7].value.text, "199007");
    json_doc_release(&doc);
    buf_release(&in);
}

static void the_byte_cap_holds(void **state)
{
    static const char text[] = "{\"k\":[1,2,3,\"some text\"],\"l\":{\"m\":null}}";
    struct json_doc doc;
    struct err err = { 0 };
    size_t max = 0;
    for (;; max += 16) {
        enum err_code code = json_parse(&doc, text, sizeof(text) - 1, max, &err);
        if (!code)
            break;
        assert_int_equal(code, ERR_FULL);
        assert_null(doc.arena.blocks);
        assert_true(max < 4096);
    }
    assert_true(max > 100);
    assert_true(doc.arena.used <= max);
    json_doc_release(&doc);
}

static void a_large_array_respects_the_cap(void **state)
{
    size_t n = 400001;
    char *text = test_malloc(n);
    struct json_doc doc;
    for (size_t i = 0; i < n; i++)
        text[i] = i == 0 ? '[' : i == n - 1 ? ']' : i % 2 ? '1' : ',';
    int64_t before = mem_bytes(MEM_CAT_REQUEST);
    assert_int_equal(json_parse(&doc, text, n, 100000, NULL), ERR_FULL);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), before);
    test_free(text);
}

static void every_truncation_is_refused(void **state)
{
    static const char text[] =
        "{\"a\": [1, -2.5e3, true, false, null, \"x\\u00e9\\ud83d\\ude00\"], "
        "\"b\": {\"c\": \"\xE6\x97\xA5\"}}";
    struct json_doc doc;
    for (size_t n = 0; n < sizeof(text) - 1; n++) {
        char *cut = test_malloc(n + 1); /* of its very size, for asan */
        memcpy(cut, text, n);
        struct err err = { 0 };
        assert_int_equal(json_parse(&doc, cut, n, PARSE_MAX, &err), ERR_INVALID);
        assert_true(err.text[0]);
        test_free(cut);
    }
    assert_int_equal(json_parse(&doc, text, sizeof(text) - 1, PARSE_MAX, NULL), ERR_OK);
    json_doc_release(&doc);
}

static void errors_tell_line_and_column(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{\n  \"a\": 1,\n  \"\xC3\xA9\xC3\xA9\": \xFF\n}", "JSON line 3, column 9: not UTF-8" },
        { "[1,\n\f2]", "JSON line 2, column 1: not JSON white space" },
        { "[1] 2", "JSON line 1, column " },
        { "{\n\"a\" 1}", "JSON line 2, column " },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct json_doc doc;
        struct err err = { 0 };
        assert_int_equal(json_parse(&doc, cases[i].text, strlen(cases[i].text), PARSE_MAX, &err),
                         ERR_INVALID);
        if (!strstr(err.text, cases[i].want))
            fail_msg("%s", err.text);
    }
}

static void allocation_failures_are_errors(void **state)
{
    static const char text[] = "[\"\\ud800\",{\"a\":[1,2,3]},\"b\"]";
    struct json_doc doc;
    for (int64_t nth = 1; nth < 50; nth++) {
        mem_fail_nth(nth);
        enum err_code code = json_parse(&doc, text, sizeof(text) - 1, PARSE_MAX, NULL);
        mem_fail_nth(0);
        if (code)
            assert_null(doc.arena.blocks);
        else if (nth > 1) {
            json_doc_release(&doc);
            return;
        }
        json_doc_release(&doc);
    }
    fail_msg("never succeeded");
}

static void members_are_found_by_key(void **state)
{
    static const char text[] = "{\"a\":null,\"b\":\"x\",\"a\\u0000\":1}";
    struct json_doc doc;
    assert_int_equal(json_parse(&doc, text, sizeof(text) - 1, PARSE_MAX, NULL), ERR_OK);
    assert_true(json_is(json_get(&doc.root, "a"), JSON_TYPE_NULL));
    assert_null(json_get_set(&doc.root, "a"));
    assert_true(json_str_eq(json_get_set(&doc.root, "b"), "x"));
    assert_false(json_str_eq(json_get(&doc.root, "b"), "xy"));
    assert_null(json_get(&doc.root, "c"));
    assert_null(json_get(json_get(&doc.root, "b"), "c"));
    assert_null(json_get(NULL, "c"));
    json_doc_release(&doc);
}

static void integers_convert_exactly(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t want;
    } cases[] = {
        { "0", true, 0 },
        { "-0", true, 0 },
        { "1.0", true, 1 },
        { "1e3", true, 1000 },
        { "12.50e1", true, 125 },
        { "1200e-2", true, 12 },
        { "9223372036854775807", true, INT64_MAX },
        { "-9223372036854775808", true, INT64_MIN },
        { "9007199254740993", true, 9007199254740993 },
        { "0e999999999999", true, 0 },
        { "0.000e-99999999999", true, 0 },
        { "9223372036854775808", false, 0 },
        { "-9223372036854775809", false, 0 },
        { "1e19", false, 0 },
        { "1.5", false, 0 },
        { "1e-1", false, 0 },
        { "1e99999999999999999999", false, 0 },
        { "\"1\"", false, 0 },
        { "true", false, 0 },
        { "null", false, 0 },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct json_doc doc;
        struct err err = { 0 };
        int64_t got = 0;
        assert_int_equal(json_parse(&doc, cases[i].text, strlen(cases[i].text), PARSE_MAX, NULL),
                         ERR_OK);
        enum err_code code = json_to_int(&doc.root, "seed", INT64_MIN, INT64_MAX, &got, &err);
        if ((code == ERR_OK) != cases[i].ok || got != cases[i].want)
            fail_msg("%s: code %d, %lld", cases[i].text, code, (long long)got);
        if (code)
            assert_non_null(strstr(err.text, "seed"));
        json_doc_release(&doc);
    }
}

static void ranges_are_kept(void **state)
{
    struct json_doc doc;
    struct err err = { 0 };
    int64_t i;
    double d;
    assert_int_equal(json_parse(&doc, "2.0", 3, PARSE_MAX, NULL), ERR_OK);
    assert_int_equal(json_to_int(&doc.root, "n", 1, 2, &i, &err), ERR_OK);
    assert_int_equal(json_to_int(&doc.root, "n", 3, 9, &i, &err), ERR_INVALID);
    assert_string_equal(err.text, "n: 2.0 is not an integer from 3 to 9");
    assert_int_equal(json_to_double(&doc.root, "n", 0, 2, &d, &err), ERR_OK);
    assert_true(d == 2.0);
    assert_int_equal(json_to_double(&doc.root, "n", 0, 1, &d, &err), ERR_INVALID);
    json_doc_release(&doc);
    assert_int_equal(json_parse(&doc, "1e400", 5, PARSE_MAX, NULL), ERR_OK);
    assert_int_equal(json_to_double(&doc.root, "n", 0, INFINITY, &d, &err), ERR_INVALID);
    json_doc_release(&doc);
}

static void the_writer_places_commas_and_escapes(void **state)
{
    struct buf out;
    struct json_writer w;
    buf_init(&out, MEM_CAT_BASE, 4096);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    json_key(&w, "a\"");
    json_begin_array(&w);
    json_int(&w, -5);
    json_uint(&w, UINT64_MAX);
    json_double(&w, 0.1);
    json_double(&w, INFINITY);
    json_begin_object(&w);
    json_end_object(&w);
    json_end_array(&w);
    json_key(&w, "s");
    json_strn(&w, "\b\t\n\v\f\r\x01\x1F\x7F\\/<\xFF\xE6\x97z\0", 17);
    json_key(&w, "r");
    json_raw(&w, "[1]", 3);
    json_key(&w, "t");
    json_bool(&w, true);
    json_key(&w, "n");
    json_null(&w);
    json_end_object(&w);
    assert_string_equal(
        out.data,
        "{\"a\\\"\":[-5,18446744073709551615,0.1,null,{}],"
        "\"s\":\"\\b\\t\\n\\u000b\\f\\r\\u0001\\u001f\x7F\\\\/<\xEF\xBF\xBD\xEF\xBF\xBDz\\u0000\","
        "\"r\":[1],\"t\":true,\"n\":null}");
    buf_release(&out);
}

static void doubles_are_written_as_python_does(void **state)
{
    static const struct {
        double v;
        const char *want;
    } cases[] = {
        { 0.1, "0.1" },
        { 1e-7, "1e-07" },
        { 1.0, "1.0" },
        { -0.0, "-0.0" },
        { 9223372036854775808.0, "9.223372036854776e+18" },
        { 1e30, "1e+30" },
        { 1e16, "1e+16" },
        { 1e15, "1000000000000000.0" },
        { 0.0001, "0.0001" },
        { 0.00001, "1e-05" },
        { 5e-324, "5e-324" },
        { 1.7976931348623157e308, "1.7976931348623157e+308" },
        { 5.684341886080802e-14, "5.684341886080802e-14" },
        { 0.30000000000000004, "0.30000000000000004" },
        { 123456.789, "123456.789" },
        { INFINITY, "inf" },
        { -INFINITY, "-inf" },
        { NAN, "nan" },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char out[32];
        assert_int_equal(json_format_double(cases[i].v, out), strlen(cases[i].want));
        assert_string_equal(out, cases[i].want);
    }
}

static void members_are_keys_and_values(void **state)
{
    static const struct json null = { .type = JSON_TYPE_NULL };
    struct json_writer w;
    struct buf out;
    buf_init(&out, MEM_CAT_BASE, 1 << 10);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    json_field_null(&w, "a");
    json_field_bool(&w, "b", true);
    json_field_int(&w, "c", -1);
    json_field_uint(&w, "d", UINT64_MAX);
    json_field_double(&w, "e", 0.5);
    json_field_str(&w, "f", "x\"");
    json_field_strn(&w, "g", "xyz", 2);
    json_field_raw(&w, "h", "[1]", 3);
    json_field_value(&w, "i", &null);
    json_field_object(&w, "j");
    json_field_array(&w, "k");
    json_end_array(&w);
    json_end_object(&w);
    json_end_object(&w);
    assert_string_equal(
        out.data,
        "{\"a\":null,\"b\":true,\"c\":-1,\"d\":18446744073709551615,\"e\":0.5,\"f\":\"x\\\"\","
        "\"g\":\"xy\",\"h\":[1],\"i\":null,\"j\":{\"k\":[]}}");
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_keys_and_values),
        cmocka_unit_test(accepts_what_the_rfc_accepts),
        cmocka_unit_test(refuses_what_the_rfc_refuses),
        cmocka_unit_test(numbers_keep_their_spelling),
        cmocka_unit_test(strings_keep_nul_and_mend_lone_surrogates),
        cmocka_unit_test(lone_surrogates_in_keys_are_mended_too),
        cmocka_unit_test(depth_ends_at_64),
        cmocka_unit_test(a_million_brackets_are_refused),
        cmocka_unit_test(duplicate_keys_keep_the_first_place_and_the_last_value),
        cmocka_unit_test(many_duplicate_keys_take_the_hashed_path),
        cmocka_unit_test(the_byte_cap_holds),
        cmocka_unit_test(a_large_array_respects_the_cap),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(errors_tell_line_and_column),
        cmocka_unit_test(allocation_failures_are_errors),
        cmocka_unit_test(members_are_found_by_key),
        cmocka_unit_test(integers_convert_exactly),
        cmocka_unit_test(ranges_are_kept),
        cmocka_unit_test(the_writer_places_commas_and_escapes),
        cmocka_unit_test(doubles_are_written_as_python_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
