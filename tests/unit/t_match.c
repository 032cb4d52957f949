#include "base/philox.h"
#include "engine/match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct match open_match(const char *const *stops, int n)
{
    struct engine_bytes bytes[ENGINE_STOPS_MAX] = { 0 };
    struct match m;
    struct err err;
    for (int i = 0; i < n; i++)
        bytes[i] = (struct engine_bytes){ stops[i], strlen(stops[i]) };
    assert_int_equal(match_init(&m, bytes, n, &err), ERR_OK);
    return m;
}

/* The oracle: after each byte look at every stop string in the plainest way. */
static int oracle(const char *text, int n, const char *const *stops, int n_stops, int64_t *safe)
{
    for (int end = 1; end <= n; end++) {
        int hit = -1;
        for (int k = 0; k < n_stops; k++) {
            int len = (int)strlen(stops[k]);
            if (len <= end && memcmp(text + end - len, stops[k], (size_t)len) == 0 &&
                (hit < 0 || len > (int)strlen(stops[hit])))
                hit = k;
        }
        if (hit >= 0) {
            *safe = end - (int64_t)strlen(stops[hit]);
            return hit;
        }
    }
    int held = 0;
    for (int k = 0; k < n_stops; k++)
        for (int len = (int)strlen(stops[k]) - 1; len > held; len--)
            if (len <= n && memcmp(text + n - len, stops[k], (size_t)len) == 0)
                held = len;
    *safe = n - held;
    return -1;
}

static void check_cut(const char *text, const char *const *stops, int n_stops, const int *cuts,
                      int n_cuts)
{
    struct match m = open_match(stops, n_stops);
    int at = 0, hit = -1, n = (int)strlen(text);
    int64_t before = 0, want_safe;
    for (int i = 0; i <= n_cuts && hit < 0; i++) {
        int end = i < n_cuts ? cuts[i] : n;
        hit = match_feed(&m, text + at, (size_t)(end - at));
        at = end;
        int want = oracle(text, at, stops, n_stops, &want_safe);
        assert_int_equal(hit, want);
        assert_int_equal(m.text_safe, want_safe);
        assert_int_equal(m.n_bytes, at);
        assert_true(m.text_safe >= before);
        before = m.text_safe;
    }
    if (hit < 0) {
        match_finish(&m);
        assert_int_equal(m.text_safe, n);
    }
    match_release(&m);
}

static void every_cut_into_three_tokens_gives_the_same_end(void **state)
{
    static const char *const stops[] = { "abab", "\n\nUser:", "bac", "\xf0\x9f\x91\x8d" };
    static const char *const texts[] = { "xxabaabababzz", "hello\n\n\nUser: x",
                                         "ababac",        "ok \xf0\x9f\x91\x8e\xf0\x9f\x91\x8d!",
                                         "aba",           "\n\nUse" };
    for (size_t t = 0; t < ARRAY_LEN(texts); t++)
        for (int a = 0; a <= (int)strlen(texts[t]); a++)
            for (int b = a; b <= (int)strlen(texts[t]); b++)
                check_cut(texts[t], stops, 4, (const int[]){ a, b }, 2);
}

static void random_texts_and_stops_agree_with_the_plain_search(void **state)
{
    for (uint32_t n = 0; n < 4000; n++) {
        uint32_t counter[4] = { n, 0, 0, 0 }, key[2] = { 9, 9 }, r[4];
        char text[64], words[4][8];
        const char *stops[4];
        int cuts[32], n_cuts = 0, len = 0;
        for (int i = 0; i < 60; i++) {
            counter[1] = (uint32_t)i;
            philox4x32(counter, key, r);
            text[len++] = (char)('a' + r[0] % 3);
            if (r[1] % 3 == 0 && n_cuts < 32)
                cuts[n_cuts++] = len;
        }
        text[len] = '\0';
        for (int k = 0; k < 4; k++) {
            counter[2] = (uint32_t)k + 1;
            philox4x32(counter, key, r);
            int m = 2 + (int)(r[0] % 6);
            for (int i = 0; i < m; i++)
                words[k][i] = (char)('a' + (r[1] >> (2 * i)) % 3);
            words[k][m] = '\0';
            stops[k] = words[k];
        }
        check_cut(text, stops, 1 + (int)(n % 4), cuts, n_cuts);
    }
}

static void of_strings_that_end_together_the_longest_wins(void **state)
{
    static const char *const stops[] = { "c", "bc", "abc", "abc" };
    struct match m = open_match(stops, 4);
    assert_int_equal(match_feed(&m, "zabcz", 5), 2);
    assert_int_equal(m.text_safe, 1);
    match_release(&m);
}

static void bytes_of_any_value_match(void **state)
{
    struct match m;
    struct err err;
    const struct engine_bytes stop = { "\0\xff", 2 };
    assert_int_equal(match_init(&m, &stop, 1, &err), ERR_OK);
    assert_int_equal(match_feed(&m, "a\0", 2), -1);
    assert_int_equal(m.text_safe, 1);
    assert_int_equal(match_feed(&m, "\0\xff", 2), 0);
    assert_int_equal(m.text_safe, 2);
    match_release(&m);
}

static void no_stops_hold_nothing_back(void **state)
{
    struct match m = open_match(NULL, 0);
    assert_int_equal(match_feed(&m, "abc", 3), -1);
    assert_int_equal(m.text_safe, 3);
    match_release(&m);
}

static void limits_are_named(void **state)
{
    struct match m;
    struct err err;
    char big[ENGINE_STOP_BYTES + 1];
    memset(big, 'x', sizeof(big));
    struct engine_bytes stops[ENGINE_STOPS_MAX + 1];
    for (size_t i = 0; i < ARRAY_LEN(stops); i++)
        stops[i] = (struct engine_bytes){ big, 1 };
    assert_int_equal(match_init(&m, stops, ENGINE_STOPS_MAX + 1, &err), ERR_INVALID);
    assert_int_equal(match_init(&m, stops, ENGINE_STOPS_MAX, &err), ERR_OK);
    match_release(&m);
    stops[1].len = 0;
    assert_int_equal(match_init(&m, stops, 2, &err), ERR_INVALID);
    stops[1].len = ENGINE_STOP_BYTES + 1;
    assert_int_equal(match_init(&m, stops, 2, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "string 1"));
    stops[1].len = ENGINE_STOP_BYTES;
    assert_int_equal(match_init(&m, stops, 2, &err), ERR_OK);
    match_release(&m);
    mem_fail_nth(1);
    assert_int_equal(match_init(&m, stops, 2, &err), ERR_NOMEM);
    mem_fail_nth(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_into_three_tokens_gives_the_same_end),
        cmocka_unit_test(random_texts_and_stops_agree_with_the_plain_search),
        cmocka_unit_test(of_strings_that_end_together_the_longest_wins),
        cmocka_unit_test(bytes_of_any_value_match),
        cmocka_unit_test(no_stops_hold_nothing_back),
        cmocka_unit_test(limits_are_named),
    };
    return cmocka_run_group_tests_name("match", tests, NULL, NULL);
}
