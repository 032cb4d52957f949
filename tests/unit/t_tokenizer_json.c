/* t_tokenizer_json.c - what a tokenizer.json and its config say around a text. Ids at large: tests/api/test_tokenizer_json.py. */
#include "base/log.h"
#include "tokenizer/tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define ADDED                                                                                  \
    "\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},{\"id\":5,\"content\":" \
    "\"</s>\",\"special\":true},{\"id\":9,\"content\":\"<T>\",\"lstrip\":true,\"rstrip\":true}],"
#define MODEL                                                                                    \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":" \
    "\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3},\"merges\":[[\"a\",\"b\"]]}}"
#define POST                                                                                     \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":" \
    "\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{"    \
    "\"id\":\"</s>\",\"type_id\":0}}],\"special_tokens\":{}},"

static struct tokenizer *open_json(const char *text, const char *config, const int32_t *ends,
                                   int32_t n_ends)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };
    struct tokenizer_json_source src = { .tokenizer = { text, strlen(text) },
                                         .config = { config, config ? strlen(config) : 0 },
                                         .ends = ends,
                                         .n_ends = n_ends };
    if (tokenizer_new_json(&src, &t, &err))
        fail_msg("%s", err.text);
    return t;
}

static void encodes(const struct tokenizer *t, const char *text, unsigned flags,
                    const int32_t *want, int32_t n)
{
    struct token_list ids;
    token_list_init(&ids, 100);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, flags, &ids, NULL), ERR_OK);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, (size_t)n * sizeof(*want));
    token_list_release(&ids);
}

#define AROUND (TOKENIZER_FLAG_SPECIAL | TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_EOS)

static void a_template_puts_ids_around_a_text(void **state)
{
    struct tokenizer *t = open_json("{" ADDED POST MODEL, NULL, NULL, 0);
    encodes(t, "ab a", AROUND, (const int32_t[]){ 4, 2, 3, 0, 5 }, 5);
    encodes(t, "<s>ab", AROUND, (const int32_t[]){ 4, 2, 5 }, 3); /* the text brought its own */
    encodes(t, "ab", 0, (const int32_t[]){ 2 }, 1);
    assert_true(tokenizer_adds_bos(t));
    assert_int_equal(tokenizer_bos(t), 4);
    tokenizer_free(t);
}

static void without_one_the_config_says_it(void **state)
{
    static const int32_t ends[] = { 2, 4000000, -1, 9 };
    int32_t n;
    struct tokenizer *t = open_json(
        "{" ADDED MODEL,
        "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\"}", ends,
        4);
    encodes(t, "ab", AROUND, (const int32_t[]){ 4, 2 }, 2);
    assert_int_equal(tokenizer_eos(t), 5);
    const int32_t *ids = tokenizer_end_ids(t, &n);
    assert_int_equal(n, 3); /* eos and those of `ends` that exist */
    assert_memory_equal(ids, ((const int32_t[]){ 2, 5, 9 }), 12);
    tokenizer_free(t);
}

static void added_tokens_take_their_blanks_and_control_tokens_need_leave(void **state)
{
    struct tokenizer *t = open_json("{" ADDED MODEL, NULL, NULL, 0);
    encodes(t, "a \n<T>\t b", 0, (const int32_t[]){ 0, 9, 1 }, 3);
    encodes(t, "a<s>", TOKENIZER_FLAG_SPECIAL, (const int32_t[]){ 0, 4 }, 2);
    encodes(t, "a<s>", 0, (const int32_t[]){ 0 }, 1); /* its bytes have no tokens here */
    assert_int_equal(tokenizer_n_tokens(t), 10);
    assert_int_equal(tokenizer_find(t, "[PAD7]", 6), 7); /* ids that nobody names */
    tokenizer_free(t);
}

static void every_failed_allocation_is_an_error_or_harmless(void **state)
{
    enum err_code code = ERR_NOMEM;
    int64_t n = 1;
    log_set_level(LOG_LEVEL_ERROR);
    for (; n < 400; n++) {
        struct tokenizer *t = NULL;
        struct err err;
        static const char text[] = "{" ADDED POST MODEL;
        struct tokenizer_json_source src = { .tokenizer = { text, sizeof(text) - 1 } };
        int64_t before = mem_bytes(MEM_CAT_TOKENIZER);
        mem_fail_nth(n);
        code = tokenizer_new_json(&src, &t, &err);
        mem_fail_nth(0);
        tokenizer_free(t);
        assert_int_equal(mem_bytes(MEM_CAT_TOKENIZER), before);
        if (code == ERR_OK)
            break;
    }
    assert_int_equal(code, ERR_OK);
    assert_true(n > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_puts_ids_around_a_text),
        cmocka_unit_test(without_one_the_config_says_it),
        cmocka_unit_test(added_tokens_take_their_blanks_and_control_tokens_need_leave),
        cmocka_unit_test(every_failed_allocation_is_an_error_or_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
