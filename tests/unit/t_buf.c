#include "base/buf.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void check(const struct buf *b)
{
    assert_true(b->len <= b->max);
    assert_int_equal(b->data[b->len], '\0');
}

static void grows_and_terminates(void **state)
{
    struct buf b;
    buf_init(&b, MEM_CAT_BASE, 1 << 20);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 5000; i++) {
        buf_printf(&b, "%d,", i);
        check(&b);
    }
    buf_add_str(&b, "end");
    buf_add_char(&b, '!');
    assert_string_equal(b.data + b.len - 10, ",4999,end!");
    assert_int_equal(buf_check(&b, "text", NULL), ERR_OK);
    buf_release(&b);
}

static void the_cap_is_exact_and_failure_sticks(void **state)
{
    struct buf b;
    struct err err;
    buf_init(&b, MEM_CAT_BASE, 5);
    buf_add(&b, "12345", 5);
    assert_false(b.failed);
    buf_add_char(&b, '6');
    assert_true(b.failed);
    check(&b);
    buf_add(&b, "", 0);
    assert_string_equal(b.data, "12345");
    assert_int_equal(buf_check(&b, "reply", &err), ERR_FULL);
    assert_string_equal(err.text, "reply: over its limit of 5 bytes");
    buf_drop(&b, 2);
    assert_string_equal(b.data, "345");
    buf_add_char(&b, '6'); /* there is room, but something was lost before */
    assert_string_equal(b.data, "345");
    buf_reset(&b);
    buf_printf(&b, "%s", "abcdef");
    assert_true(b.failed);
    assert_int_equal(b.len, 0);
    buf_release(&b);
}

static void take_hands_over(void **state)
{
    struct buf b;
    size_t n;
    int64_t before = mem_bytes(MEM_CAT_BASE);
    buf_init(&b, MEM_CAT_BASE, 100);
    char *empty = buf_take(&b, &n);
    assert_int_equal(n, 0);
    assert_string_equal(empty, "");
    buf_add_str(&b, "abc");
    char *p = buf_take(&b, &n);
    assert_int_equal(n, 3);
    assert_string_equal(p, "abc");
    assert_string_equal(b.data, "");
    mem_free(MEM_CAT_BASE, p);
    mem_free(MEM_CAT_BASE, empty);
    buf_release(&b);
    assert_int_equal(mem_bytes(MEM_CAT_BASE), before);
}

static void no_memory_is_a_failure_not_a_crash(void **state)
{
    struct buf b;
    buf_init(&b, MEM_CAT_BASE, 1000);
    mem_fail_nth(1);
    buf_add_str(&b, "abc");
    mem_fail_nth(0);
    assert_true(b.failed);
    assert_string_equal(b.data, "");
    buf_release(&b);
}

static void code_points_are_written_as_utf8(void **state)
{
    struct buf b;
    buf_init(&b, MEM_CAT_BASE, 100);
    buf_add_code_point(&b, 'a');
    buf_add_code_point(&b, 0xE9);
    buf_add_code_point(&b, 0x20AC);
    buf_add_code_point(&b, 0x1F600);
    buf_add_code_point(&b, 0xD800);
    assert_string_equal(b.data, "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xEF\xBF\xBD");
    assert_true(utf8_is_valid(b.data, b.len));
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_terminates),
        cmocka_unit_test(the_cap_is_exact_and_failure_sticks),
        cmocka_unit_test(take_hands_over),
        cmocka_unit_test(no_memory_is_a_failure_not_a_crash),
        cmocka_unit_test(code_points_are_written_as_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
