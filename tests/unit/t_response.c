/* Responses: the log and what is told from it, for answers cut at every byte; custom tools' inputs; views from every number. */
#include "server/response.h"
#include "json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ID "resp_0123456789abcdef0123456789abcdef"

static struct response *make(unsigned flags)
{
    struct response *r = response_new(ID, flags);
    r->created_s = 1764000000;
    r->outcome.status =
        flags & RESPONSE_FLAG_BACKGROUND ? RESPONSE_STATUS_QUEUED : RESPONSE_STATUS_IN_PROGRESS;
    buf_add_str(&r->frame, "\"model\":\"m\"");
    buf_add_str(&r->input, "[]");
    buf_add_str(&r->custom, "\npatch\n");
    return r;
}

static void add(struct response *r, enum part_kind kind, const char *name, const char *text,
                size_t n)
{
    const struct part p = {
        .kind = kind, .id = "call_0123456789abcdef", .name = name, .text = text, .n = n
    };
    response_add_part(r, &p, NULL);
}

static void add_text(struct response *r, enum part_kind kind, const char *text)
{
    add(r, kind, NULL, text, strlen(text));
}

/* A call whose arguments come in pieces of `step` bytes; 0 = at once. */
static void add_call(struct response *r, const char *name, const char *arguments, size_t step)
{
    size_t n = strlen(arguments);
    add(r, PART_CALL_BEGIN, name, "", 0);
    for (size_t at = 0; at < n; at += step ? step : n) {
        size_t piece = step && n - at > step ? step : n - at;
        add(r, PART_CALL_ARGUMENTS, name, arguments + at, piece);
    }
    add(r, PART_CALL_END, name, "", 0);
}

static void finish(struct response *r, enum response_status status)
{
    r->outcome.status = status;
    r->outcome.has_usage = true;
    r->outcome.input_tokens = 3;
    r->outcome.output_tokens = 4;
}

/* The object, parsed. */
static void read_object(const struct response *r, struct json_doc *doc)
{
    struct buf out;
    struct err err;
    buf_init(&out, MEM_CAT_BASE, 1 << 20);
    response_write_object(r, &out);
    if (json_parse(doc, out.data, out.len, 1 << 22, &err) != ERR_OK)
        fail_msg("%s: %s", err.text, out.data);
    buf_release(&out);
}

static const struct json *item(const struct json_doc *doc, size_t i)
{
    const struct json *output = json_get(&doc->root, "output");
    assert_true(json_is(output, JSON_TYPE_ARRAY) && i < output->n);
    return &output->items[i];
}

static void check_str(const struct json *obj, const char *key, const char *want)
{
    const struct json *v = json_get(obj, key);
    assert_true(json_is(v, JSON_TYPE_STRING));
    assert_string_equal(v->text, want);
}

/* All events from a number on. */
static void tell(const struct response *r, int64_t after, struct buf *out)
{
    struct response_view v = { .after = after };
    response_write_events(r, &v, SIZE_MAX, out);
    assert_true(v.is_ended == response_is_over(r));
}

/* The data of the event that begins at p, parsed; its end. */
static const char *read_event(const char *p, struct json_doc *doc)
{
    const char *data = strstr(p, "\ndata: "), *end = strstr(p, "\n\n");
    assert_true(strncmp(p, "event: response.", 16) == 0 && data && end && data < end);
    assert_int_equal(json_parse(doc, data + 7, (size_t)(end - data - 7), 1 << 22, NULL), ERR_OK);
    return end + 2;
}

/* --- events --- */

static void make_long(struct response *r)
{
    add_text(r, PART_REASONING, "let me ");
    add_text(r, PART_REASONING, "see");
    response_add_keep_alive(r);
    add_text(r, PART_CONTENT, "Gr\xc3\xbc\xc3\x9f");
    add_text(r, PART_CONTENT, "e\n");
    add_call(r, "look", "{\"q\":1}", 3);
    add_call(r, "patch", "{\"input\":\"*** a\\n\"}", 4);
    add_text(r, PART_CONTENT, "end");
}

static void numbers_rise_by_one_from_zero(void **state)
{
    struct response *r = make(RESPONSE_FLAG_BACKGROUND);
    struct buf out;
    int64_t n = 0, number;
    response_add_started(r);
    make_long(r);
    finish(r, RESPONSE_STATUS_COMPLETED);
    buf_init(&out, MEM_CAT_BASE, 1 << 20);
    tell(r, 0, &out);
    for (const char *p = out.data; *p; n++) {
        struct json_doc doc;
        p = read_event(p, &doc);
        assert_int_equal(
            json_to_int(json_get(&doc.root, "sequence_number"), "n", 0, 1000, &number, NULL),
            ERR_OK);
        assert_int_equal(number, n);
        json_doc_release(&doc);
    }
    assert_true(n > 30);
    buf_release(&out);
    response_unref(r);
}

static void a_stream_from_any_number_is_the_rest_of_the_whole(void **state)
{
    struct response *r = make(0);
    struct buf whole, rest;
    make_long(r);
    finish(r, RESPONSE_STATUS_COMPLETED);
    buf_init(&whole, MEM_CAT_BASE, 1 << 20);
    buf_init(&rest, MEM_CAT_BASE, 1 << 20);
    tell(r, 0, &whole);
    const char *p = whole.data;
    for (int64_t n = 0; *p; n++) {
        buf_reset(&rest);
        tell(r, n, &rest);
        assert_string_equal(rest.data, p);
        p = strstr(p, "\n\n") + 2;
    }
    buf_reset(&rest);
    tell(r, 1000, &rest);
    assert_string_equal(rest.data, "");
    buf_release(&whole);
    buf_release(&rest);
    response_unref(r);
}

static void a_view_that_follows_sees_what_a_late_one_sees(void **state)
{
    struct response *r = make(0);
    struct response_view v = { 0 };
    struct buf live, late;
    buf_init(&live, MEM_CAT_BASE, 1 << 20);
    buf_init(&late, MEM_CAT_BASE, 1 << 20);
    response_write_events(r, &v, SIZE_MAX, &live);
    for (int i = 0; i < 3; i++) {
        add_text(r, PART_CONTENT, "abc");
        response_write_events(r, &v, SIZE_MAX, &live);
        add(r, PART_CALL_BEGIN, "look", "", 0);
        response_write_events(r, &v, SIZE_MAX, &live);
        add_text(r, PART_CALL_ARGUMENTS, "{}");
        response_write_events(r, &v, SIZE_MAX, &live);
        add(r, PART_CALL_END, "look", "", 0);
    }
    finish(r, RESPONSE_STATUS_INCOMPLETE);
    response_write_events(r, &v, SIZE_MAX, &live);
    assert_true(v.is_ended);
    tell(r, 0, &late);
    assert_string_equal(live.data, late.data);
    assert_non_null(strstr(live.data, "event: response.incomplete\n"));
    buf_release(&live);
    buf_release(&late);
    response_unref(r);
}

static void a_view_in_small_bites_sees_the_same(void **state)
{
    struct response *r = make(0);
    struct response_view v = { 0 };
    struct buf bites, whole;
    make_long(r);
    finish(r, RESPONSE_STATUS_FAILED);
    buf_init(&bites, MEM_CAT_BASE, 1 << 20);
    buf_init(&whole, MEM_CAT_BASE, 1 << 20);
    tell(r, 0, &whole);
    for (int i = 0; i < 1000 && !v.is_ended; i++)
        response_write_events(r, &v, bites.len + 1, &bites);
    assert_string_equal(bites.data, whole.data);
    buf_release(&bites);
    buf_release(&whole);
    response_unref(r);
}

/* --- objects --- */

static void the_object_holds_what_was_said(void **state)
{
    struct response *r = make(0);
    struct json_doc doc;
    make_long(r);
    finish(r, RESPONSE_STATUS_COMPLETED);
    read_object(r, &doc);
    check_str(&doc.root, "status", "completed");
    check_str(&doc.root, "model", "m");
    assert_int_equal(json_get(&doc.root, "output")->n, 5);
    check_str(item(&doc, 0), "type", "reasoning");
    check_str(&json_get(item(&doc, 0), "content")->items[0], "text", "let me see");
    check_str(item(&doc, 1), "type", "message");
    check_str(&json_get(item(&doc, 1), "content")->items[0], "text",
              "Gr\xc3\xbc\xc3\x9f"
              "e\n");
    check_str(item(&doc, 2), "arguments", "{\"q\":1}");
    check_str(item(&doc, 2), "id", "fc_0123456789abcdef0123456789abcdef_2");
    check_str(item(&doc, 3), "type", "custom_tool_call");
    check_str(item(&doc, 3), "input", "*** a\n");
    check_str(item(&doc, 4), "status", "completed");
    json_doc_release(&doc);
    response_unref(r);
}

static void reasoning_is_a_summary_where_one_is_wanted(void **state)
{
    struct response *r = make(RESPONSE_FLAG_SUMMARY);
    struct json_doc doc;
    struct buf out;
    add_text(r, PART_REASONING, "hm");
    finish(r, RESPONSE_STATUS_COMPLETED);
    read_object(r, &doc);
    check_str(&json_get(item(&doc, 0), "summary")->items[0], "text", "hm");
    assert_int_equal(json_get(item(&doc, 0), "content")->n, 0);
    json_doc_release(&doc);
    buf_init(&out, MEM_CAT_BASE, 1 << 20);
    tell(r, 0, &out);
    assert_non_null(strstr(out.data, "event: response.reasoning_summary_text.delta\n"));
    assert_null(strstr(out.data, "reasoning_text.delta"));
    buf_release(&out);
    response_unref(r);
}

static void an_item_that_was_cut_is_incomplete(void **state)
{
    struct response *r = make(0);
    struct json_doc doc;
    add_text(r, PART_CONTENT, "a");
    add(r, PART_CALL_BEGIN, "look", "", 0);
    add_text(r, PART_CALL_ARGUMENTS, "{\"q\"");
    read_object(r, &doc);
    check_str(item(&doc, 1), "status", "in_progress");
    json_doc_release(&doc);
    finish(r, RESPONSE_STATUS_INCOMPLETE);
    read_object(r, &doc);
    check_str(item(&doc, 0), "status", "completed");
    check_str(item(&doc, 1), "status", "incomplete");
    check_str(item(&doc, 1), "arguments", "{\"q\"");
    check_str(json_get(&doc.root, "incomplete_details"), "reason", "max_output_tokens");
    json_doc_release(&doc);
    response_unref(r);
}

/* --- custom tools --- */

static void check_custom(const char *arguments, const char *want)
{
    for (size_t step = 0; step <= strlen(arguments); step++) {
        struct response *r = make(0);
        struct json_doc doc;
        add_call(r, "patch", arguments, step);
        finish(r, RESPONSE_STATUS_COMPLETED);
        read_object(r, &doc);
        check_str(item(&doc, 0), "input", want);
        json_doc_release(&doc);
        response_unref(r);
    }
}

static void a_custom_input_is_the_string_however_it_is_cut(void **state)
{
    check_custom("{\"input\":\"plain\"}", "plain");
    check_custom(" { \"input\" : \"a\\\"b\\\\c\\nd\\u00e9\" } ", "a\"b\\c\nd\xc3\xa9");
    check_custom("{\"input\":\"\\ud83d\\ude00 \\ud83d!\"}", "\xf0\x9f\x98\x80 \xef\xbf\xbd!");
    check_custom("{\"input\":\"\\ud83d\"}", "\xef\xbf\xbd");
    check_custom("{\"input\":\"two\nlines\"}", "two\nlines");
    check_custom("{\"input\":\"\"}", "");
    check_custom("{\"input\":\"x\",\"more\":1}", "x");
    /* of another shape: the one string in it, else as it stands */
    check_custom("{\"text\":\"other\"}", "other");
    check_custom("{\"input\":5}", "{\"input\":5}");
    check_custom("{\"a\":\"1\",\"b\":\"2\"}", "{\"a\":\"1\",\"b\":\"2\"}");
    check_custom("not JSON", "not JSON");
}

/* --- the store --- */

static void row_init(struct store_job **job)
{
    *job = store_job_new(STORE_OP_PUT, 1);
}

static void a_response_comes_back_from_its_row(void **state)
{
    struct response *r = make(RESPONSE_FLAG_BACKGROUND);
    struct store_job *job;
    struct err err;
    struct buf a, b;
    make_long(r);
    finish(r, RESPONSE_STATUS_FAILED);
    snprintf(r->outcome.error_code, sizeof(r->outcome.error_code), "server_error");
    snprintf(r->outcome.error_text, sizeof(r->outcome.error_text), "a \"reason\"");
    row_init(&job);
    response_to_row(r, &job->rows[0]);
    struct response *again = response_from_row(&job->rows[0], &err);
    assert_non_null(again);
    buf_init(&a, MEM_CAT_BASE, 1 << 20);
    buf_init(&b, MEM_CAT_BASE, 1 << 20);
    tell(r, 0, &a);
    tell(again, 0, &b);
    assert_string_equal(a.data, b.data);
    buf_release(&a);
    buf_release(&b);
    response_unref(again);
    response_unref(r);
    store_job_free(job);
}

static void an_orphan_has_failed(void **state)
{
    struct response *r = make(RESPONSE_FLAG_BACKGROUND);
    struct store_job *job;
    struct err err;
    row_init(&job);
    response_to_row(r, &job->rows[0]);
    assert_int_equal(job->rows[0].status, STORE_STATUS_RUNNING);
    job->rows[0].is_orphan = true;
    struct response *again = response_from_row(&job->rows[0], &err);
    assert_non_null(again);
    assert_int_equal(again->outcome.status, RESPONSE_STATUS_FAILED);
    response_unref(again);
    response_unref(r);
    store_job_free(job);
}

/* Whatever a log's bytes are, reading it ends and stays inside. */
static void a_broken_log_is_read_without_harm(void **state)
{
    uint32_t x = 1;
    struct buf out;
    buf_init(&out, MEM_CAT_BASE, 1 << 22);
    for (int round = 0; round < 2000; round++) {
        struct response *r = make(0);
        make_long(r);
        for (int i = 0; i < 4; i++) {
            x = x * 1664525 + 1013904223;
            r->log.data[1 + (x >> 8) % (r->log.len - 1)] = (char)(x >> 4);
        }
        finish(r, RESPONSE_STATUS_COMPLETED);
        buf_reset(&out);
        tell(r, 0, &out);
        buf_reset(&out);
        response_write_object(r, &out);
        response_unref(r);
    }
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_rise_by_one_from_zero),
        cmocka_unit_test(a_stream_from_any_number_is_the_rest_of_the_whole),
        cmocka_unit_test(a_view_that_follows_sees_what_a_late_one_sees),
        cmocka_unit_test(a_view_in_small_bites_sees_the_same),
        cmocka_unit_test(the_object_holds_what_was_said),
        cmocka_unit_test(reasoning_is_a_summary_where_one_is_wanted),
        cmocka_unit_test(an_item_that_was_cut_is_incomplete),
        cmocka_unit_test(a_custom_input_is_the_string_however_it_is_cut),
        cmocka_unit_test(a_response_comes_back_from_its_row),
        cmocka_unit_test(an_orphan_has_failed),
        cmocka_unit_test(a_broken_log_is_read_without_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
