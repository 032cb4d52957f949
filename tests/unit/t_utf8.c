#include "base/utf8.h"

#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void every_code_point_comes_back(void **state)
{
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char s[4];
        uint32_t got;
        size_t n = utf8_encode(cp, s);
        bool is_surrogate = cp >= 0xD800 && cp <= 0xDFFF;
        assert_int_equal(utf8_decode(s, n, &got), n);
        assert_int_equal(got, is_surrogate ? UTF8_REPLACEMENT : cp);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_decode(s, cut, &got), 0);
            assert_int_equal(utf8_complete_prefix(s, cut), 0);
            assert_int_equal(utf8_bad_length(s, cut), cut);
        }
        assert_int_equal(utf8_complete_prefix(s, n), n);
    }
    char s[4];
    assert_int_equal(utf8_encode(0x110000, s), 3);
}

/* The second column is len(bytes.decode("utf-8", "replace")) of CPython 3.11, the third the number of U+FFFD in it. */
static const struct {
    const char *bytes;
    int n_chars, n_bad;
} replaced[] = {
    { "abc", 3, 0 },
    { "\x80", 1, 1 },
    { "\xC0\xAF", 2, 2 },                         /* overlong */
    { "\xE0\x80\xAF", 3, 3 },                     /* overlong */
    { "\xED\xA0\x80", 3, 3 },                     /* surrogate */
    { "\xF4\x90\x80\x80", 4, 4 },                 /* over U+10FFFF */
    { "\xF5\x80\x80\x80", 4, 4 },                 /* no such lead */
    { "\xE2\x82", 1, 1 },                         /* cut */
    { "\xF0\x9F\x98", 1, 1 },                     /* cut */
    { "\xE2\x82\x41", 2, 1 },                     /* cut by a letter */
    { "\xF0\x9F\xF0\x9F\x98\x80", 2, 1 },         /* cut by another */
    { "\x61\xF1\x80\x80\xE1\x80\xC2\x62", 5, 3 }, /* Unicode 15, table 3-8 */
    { "\xFF\xFE", 2, 2 },
    { "\xC3\xA9\xC3", 2, 1 },
};

static void ill_formed_parts_are_cut_as_in_python(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(replaced); i++) {
        const char *s = replaced[i].bytes;
        size_t n = strlen(s);
        int bad = 0;
        assert_int_equal(utf8_count(s, n), replaced[i].n_chars);
        for (size_t at = 0; at < n;) {
            uint32_t cp;
            size_t len = utf8_decode(s + at, n - at, &cp);
            bad += len == 0;
            at += len ? len : utf8_bad_length(s + at, n - at);
        }
        assert_int_equal(bad, replaced[i].n_bad);
        assert_int_equal(utf8_is_valid(s, n), bad == 0);
    }
}

static void a_stream_holds_back_only_what_may_be_completed(void **state)
{
    assert_int_equal(utf8_complete_prefix("", 0), 0);
    assert_int_equal(utf8_complete_prefix("ab\xE2\x82", 4), 2);
    assert_int_equal(utf8_complete_prefix("ab\xF0\x9F\x98", 5), 2);
    assert_int_equal(utf8_complete_prefix("ab\xC3", 3), 2);
    assert_int_equal(utf8_complete_prefix("ab\xE0\x80", 4), 4); /* never becomes a code point */
    assert_int_equal(utf8_complete_prefix("ab\xFF", 3), 3);
    assert_int_equal(utf8_complete_prefix("\x80\x80\x80\x80", 4), 4);
    assert_int_equal(utf8_complete_prefix("\xE2\x82\xAC\xE2", 4), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_comes_back),
        cmocka_unit_test(ill_formed_parts_are_cut_as_in_python),
        cmocka_unit_test(a_stream_holds_back_only_what_may_be_completed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
