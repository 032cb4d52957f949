/* What an answer shows: whole code points, nothing that might become a stop string, the same in pieces as at once. */
#include "server/answer.h"
#include "support/byte_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct tokenizer *tok;

static int setup(void **state)
{
    return byte_vocab_new(&tok, NULL) == ERR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    tokenizer_free(tok);
    return 0;
}

/* Add bytes one by one, shown up to `safe` bytes when the answer ends; pieces are cut by the bits of `cuts`. */
static void show(const char *bytes, size_t n, size_t safe, unsigned cuts, struct buf *out)
{
    struct answer a;
    answer_init(&a, tok, false, 0);
    buf_reset(out);
    for (size_t i = 0; i < n; i++) {
        struct engine_token t = { .id = (unsigned char)bytes[i] };
        answer_add(&a, &t);
        if (cuts >> i % 32 & 1)
            answer_show(&a, (int64_t)(i + 1 < safe ? i + 1 : safe), false, out);
    }
    answer_show(&a, (int64_t)safe, true, out);
    answer_release(&a);
}

static void pieces_make_the_same_text_as_one(void **state)
{
    static const struct {
        const char *bytes;
        size_t safe; /* 0 = all */
        const char *want;
    } rows[] = {
        { "plain", 0, "plain" },
        { "h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80!", 0, "h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80!" },
        { "a\x80"
          "b",
          0,
          "a\xef\xbf\xbd"
          "b" },
        { "a\xff\xfe", 0, "a\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xe2\x82"
          "A",
          0,
          "\xef\xbf\xbd"
          "A" }, /* one for the whole ill-formed part */
        { "\xf0\x9f\x98\xf0\x9f\x98\x80", 0, "\xef\xbf\xbd\xf0\x9f\x98\x80" },
        { "\xed\xa0\x80", 0,
          "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" }, /* a surrogate is no character */
        { "a\xe2\x82", 0, "a" },                    /* cut by the end: dropped */
        { "abcdef", 3, "abc" },                     /* the rest became a stop string */
        { "\xc3\xa9\xc3\xa9", 3, "\xc3\xa9" },
    };
    struct buf out;
    buf_init(&out, MEM_CAT_BASE, 1000);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        size_t n = strlen(rows[i].bytes);
        for (unsigned cuts = 0; cuts < 1u << (n < 10 ? n : 10); cuts++) {
            show(rows[i].bytes, n, rows[i].safe ? rows[i].safe : n, cuts, &out);
            assert_string_equal(out.data, rows[i].want);
        }
    }
    buf_release(&out);
}

static void tokens_come_with_their_text(void **state)
{
    static const char bytes[] = "a\xc3\xa9"
                                "bcd";
    struct answer a;
    struct buf out;
    size_t n;
    answer_init(&a, tok, true, 10);
    buf_init(&out, MEM_CAT_BASE, 1000);
    for (size_t i = 0; i < 2; i++)
        answer_add(&a, &(struct engine_token){ .id = (unsigned char)bytes[i] });
    answer_show(&a, 2, false, &out);
    const struct answer_token *t = answer_peek_tokens(&a, false, &n);
    assert_int_equal(n, 1); /* half of the second character is not shown */
    assert_int_equal(t[0].token.id, 'a');
    assert_int_equal(t[0].text_offset, 10);
    answer_drop_tokens(&a, n);
    for (size_t i = 2; i < sizeof(bytes) - 1; i++)
        answer_add(&a, &(struct engine_token){ .id = (unsigned char)bytes[i] });
    answer_show(&a, 4, true, &out); /* "cd" was cut off */
    t = answer_peek_tokens(&a, true, &n);
    assert_int_equal(n, 3);
    assert_int_equal(t[0].text_offset, 11);
    assert_int_equal(t[1].text_offset, 11);
    assert_int_equal(t[2].text_offset, 12);
    assert_string_equal(out.data, "a\xc3\xa9"
                                  "b");
    answer_release(&a);
    buf_release(&out);
}

static void tokens_without_bytes_are_counted_too(void **state)
{
    struct answer a;
    struct buf out;
    size_t n;
    answer_init(&a, tok, true, 0);
    buf_init(&out, MEM_CAT_BASE, 1000);
    answer_add(&a, &(struct engine_token){ .id = BYTE_VOCAB_START });
    answer_add(&a, &(struct engine_token){ .id = 'x' });
    answer_show(&a, 1, true, &out);
    (void)answer_peek_tokens(&a, true, &n);
    assert_int_equal(n, 2);
    assert_string_equal(out.data, "x");
    answer_release(&a);
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_make_the_same_text_as_one),
        cmocka_unit_test(tokens_come_with_their_text),
        cmocka_unit_test(tokens_without_bytes_are_counted_too),
    };
    return cmocka_run_group_tests_name("answer", tests, setup, teardown);
}
