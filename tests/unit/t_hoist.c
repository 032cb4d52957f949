/* Which lines at a system prompt's head are volatile, and where they go. */
#include "server/hoist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void volatile_lines_are_known_by_their_form(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        bool is_volatile;
    } rows[] = {
        { "Today's date is 2026-11-30.", true },
        { "Today is Monday, 30 November 2026", true },
        { "The current date and time is: Mon Nov 30 04:05:06 UTC 2026", true },
        { "Current time: 04:05 AM", true },
        { "Date: 30.11.2026\r", true },
        { "[2026-11-30T04:05:06Z]", true },
        { "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2", true },
        { "X-Anthropic-Billing-Header:", true },
        { "Request ID: 7f3a9c1e-0000-4000-8000-0123456789ab", true },
        { "session_id=abc123def", true },
        { "x-request-id: a1b2c3d4", true },
        { "Conversation ID is 0123456789", true },
        { "You are a careful assistant.", false },
        { "Today is Monday, 30 November 2026. You are careful.", false },
        { "Today is a good day.", false },
        { "The date is unknown", false }, /* no number */
        { "Now is 12", false },
        { "Request ID: none", false },
        { "Request ID: a1b2c3d4 is yours", false },
        { "Request identity 123456", false },
        { "2026 was a year of rain", false },
        { "# 2026-11-30", false },
        { "", false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char text[600];
        int32_t n_lines;
        size_t line = strlen(rows[i].line);
        snprintf(text, sizeof(text), "%s\n\nYou are here.", rows[i].line);
        size_t n = hoist_find(text, strlen(text), &n_lines);
        if (n != (rows[i].is_volatile ? line + 2 : 0) || n_lines != rows[i].is_volatile)
            fail_msg("'%s': %zu bytes, %d lines", rows[i].line, n, n_lines);
        n = hoist_find(rows[i].line, line, &n_lines); /* nothing else is there: it stays */
        assert_int_equal(n + (size_t)n_lines, 0);
    }
}

static void only_the_head_is_looked_at_and_so_many_lines(void **state)
{
    (void)state;
    char text[HOIST_LINE_BYTES * 4] = "", line[HOIST_LINE_BYTES + 8];
    int32_t n_lines;
    for (int i = 0; i < HOIST_LINES_MAX + 2; i++)
        strcat(text, "Date: 2026-11-30\n");
    strcat(text, "You are here.");
    assert_int_equal(hoist_find(text, strlen(text), &n_lines), 17 * HOIST_LINES_MAX);
    assert_int_equal(n_lines, HOIST_LINES_MAX);
    assert_int_equal(hoist_find("You\nDate: 2026-11-30\nare", 24, &n_lines), 0);
    for (size_t n = HOIST_LINE_BYTES - 1; n <= HOIST_LINE_BYTES + 1; n++) {
        memset(line, '1', n);
        memcpy(line + n, "\nx", 2);
        assert_int_equal(hoist_find(line, n + 2, &n_lines), n <= HOIST_LINE_BYTES ? n + 1 : 0);
    }
    assert_int_equal(hoist_find("Date: 2026\0-11\nx", 16, &n_lines), 0);
    assert_int_equal(hoist_find("", 0, &n_lines), 0);
}

static void check(const char *before, const char *after)
{
    struct json_doc in = { 0 }, out = { 0 };
    struct api_error e = { 0 };
    struct json_writer w;
    struct buf text;
    int32_t n_lines;
    assert_int_equal(json_parse(&in, before, strlen(before), 1 << 20, NULL), ERR_OK);
    assert_true(hoist_apply(&in.root, &out, &n_lines, &e));
    assert_int_equal(n_lines > 0, after != NULL);
    if (after) {
        buf_init(&text, MEM_CAT_SERVER, 1 << 16);
        json_writer_init(&w, &text);
        json_value(&w, &out.root);
        assert_string_equal(text.data, after);
        buf_release(&text);
    }
    json_doc_release(&in);
    json_doc_release(&out);
}

#define SYSTEM "{\"role\":\"system\",\"content\":\"Date: 2026-11-30\\n\\nBe brief.\"}"
#define BRIEF  "{\"role\":\"system\",\"content\":\"Be brief.\"}"

static void they_go_to_the_end_of_the_last_message_that_is_no_answer(void **state)
{
    (void)state;
    check("{\"a\":1,\"messages\":[" SYSTEM
          ",{\"role\":\"user\",\"content\":\"Hi\",\"name\":\"n\"}],\"b\":2}",
          "{\"a\":1,\"messages\":[" BRIEF
          ",{\"role\":\"user\",\"content\":\"Hi\\n\\nDate: 2026-11-30\","
          "\"name\":\"n\"}],\"b\":2}");
    check("{\"messages\":[" SYSTEM
          ",{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
          "\"content\":\"Yo\"},{\"role\":\"tool\",\"content\":\"7\"},{\"role\":\"assistant\","
          "\"content\":\"S\"}]}",
          "{\"messages\":[" BRIEF ",{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
          "\"content\":\"Yo\"},{\"role\":\"tool\",\"content\":\"7\\n\\nDate: 2026-11-30\"},"
          "{\"role\":\"assistant\",\"content\":\"S\"}]}");
    check("{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"Date: "
          "2026-11-30\\nBe\"},"
          "{\"type\":\"text\",\"text\":\"brief\"}]},{\"role\":\"user\",\"content\":[{\"type\":"
          "\"text\",\"text\":\"Hi\"}]}]}",
          "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"Be\"},"
          "{\"type\":\"text\",\"text\":\"brief\"}]},{\"role\":\"user\",\"content\":[{\"type\":"
          "\"text\",\"text\":\"Hi\"},"
          "{\"type\":\"text\",\"text\":\"\\nDate: 2026-11-30\"}]}]}");
    check("{\"messages\":[" SYSTEM "]}", NULL);
    check("{\"messages\":[" SYSTEM ",{\"role\":\"assistant\",\"content\":\"Yo\"}]}", NULL);
    check("{\"messages\":[" SYSTEM ",{\"role\":\"user\",\"content\":null}]}", NULL);
    check("{\"messages\":[" BRIEF ",{\"role\":\"user\",\"content\":\"Hi\"}]}", NULL);
    check("{\"messages\":[{\"role\":\"user\",\"content\":\"Date: "
          "2026-11-30\\nHi\"},{\"role\":\"user\",\"content\":\"x\"}]}",
          NULL);
    check("{\"messages\":[7,8]}", NULL);
    check("{\"messages\":{}}", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(volatile_lines_are_known_by_their_form),
        cmocka_unit_test(only_the_head_is_looked_at_and_so_many_lines),
        cmocka_unit_test(they_go_to_the_end_of_the_last_message_that_is_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
