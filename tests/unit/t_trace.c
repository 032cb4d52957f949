#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/trace.h"
#include "json/json.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WRITERS 4
#define EACH    3000

static char path[] = "/tmp/plumb-trace-XXXXXX";

static void read_text(struct buf *text)
{
    struct err err;
    buf_init(text, MEM_CAT_BASE, 64 << 20);
    assert_int_equal(file_read(path, text, &err), ERR_OK);
}

static const struct json *member(const struct json *v, const char *key)
{
    const struct json *m = json_get(v, key);
    assert_non_null(m);
    return m;
}

static int64_t number(const struct json *v, const char *key)
{
    int64_t n;
    assert_int_equal(json_to_int(member(v, key), key, INT64_MIN + 1, INT64_MAX, &n, NULL), ERR_OK);
    return n;
}

static void spans_have_times_tracks_and_arguments(void **state)
{
    struct err err;
    struct buf text;
    struct json_doc doc;
    assert_false(trace_is_on());
    trace_span("nobody.hears", 1, 0, 1, "{}");
    assert_int_equal(trace_open(path, &err), ERR_OK);
    assert_true(trace_is_on());
    int64_t t = clock_us();
    trace_name(7, "req-7");
    trace_span("prefill.total", 7, t, t + 250, "{\"tokens\":%d,\"outcome\":\"%s\"}", 12, "success");
    trace_instant("response.first_write", 7, t + 300, "{}");
    char big[2000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    trace_span("args.too.long", 7, t, t - 5, "{\"a\":\"%s\"}", big);
    trace_close();
    assert_false(trace_is_on());
    trace_close();
    trace_span("nobody.hears", 1, 0, 1, "{}");
    read_text(&text);
    assert_int_equal(json_parse(&doc, text.data, text.len, 1 << 20, &err), ERR_OK);
    assert_int_equal(doc.root.n, 6);
    const struct json *span = &doc.root.items[3], *instant = &doc.root.items[4];
    assert_true(json_str_eq(member(&doc.root.items[2], "ph"), "M"));
    assert_true(json_str_eq(member(span, "ph"), "X"));
    assert_true(json_str_eq(member(span, "name"), "prefill.total"));
    assert_int_equal(number(span, "tid"), 7);
    assert_int_equal(number(span, "dur"), 250);
    assert_in_range(number(span, "ts"), 0, 10000000);
    assert_int_equal(number(member(span, "args"), "tokens"), 12);
    assert_true(json_str_eq(member(member(span, "args"), "outcome"), "success"));
    assert_int_equal(number(instant, "ts") - number(span, "ts"), 300);
    assert_int_equal(member(&doc.root.items[5], "args")->n, 0);
    assert_int_equal(number(&doc.root.items[5], "dur"), 0);
    json_doc_release(&doc);
    buf_release(&text);
}

static void *write_many(void *arg)
{
    uint64_t track = *(const uint64_t *)arg;
    for (int i = 0; i < EACH; i++)
        trace_span("work", track, clock_us(), clock_us() + i, "{\"i\":%d}", i);
    return NULL;
}

static void threads_write_whole_events_in_their_own_order(void **state)
{
    struct err err;
    struct buf text;
    struct json_doc doc;
    pthread_t threads[WRITERS];
    uint64_t tracks[WRITERS];
    int64_t next[WRITERS] = { 0 };
    assert_int_equal(trace_open(path, &err), ERR_OK);
    for (uint64_t i = 0; i < WRITERS; i++) {
        tracks[i] = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, &tracks[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    trace_close();
    read_text(&text);
    assert_int_equal(json_parse(&doc, text.data, text.len, 256 << 20, &err), ERR_OK);
    assert_int_equal(doc.root.n, WRITERS * EACH + 2);
    for (size_t i = 2; i < doc.root.n; i++) {
        const struct json *ev = &doc.root.items[i];
        assert_int_equal(number(member(ev, "args"), "i"), next[number(ev, "tid") - 1]++);
    }
    json_doc_release(&doc);
    buf_release(&text);
}

/* A kill leaves a prefix of whole lines: with the bracket that viewers do without it is JSON. */
static void a_kill_leaves_whole_events(void **state)
{
    struct err err;
    struct buf text;
    struct json_doc doc;
    pid_t child = fork();
    if (child == 0) {
        if (trace_open(path, &err) == ERR_OK)
            write_many(&(uint64_t){ 3 });
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    read_text(&text);
    assert_true(text.len > 64 << 10);
    buf_add_char(&text, ']');
    assert_int_equal(json_parse(&doc, text.data, text.len, 64 << 20, &err), ERR_OK);
    assert_in_range(doc.root.n, 500, EACH + 2);
    json_doc_release(&doc);
    buf_release(&text);
}

static void a_full_disk_ends_the_trace_and_nothing_else(void **state)
{
    struct err err;
    assert_int_equal(trace_open("/nonexistent/dir/file", &err), ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/dir/file"));
    assert_false(trace_is_on());
    assert_int_equal(trace_open("/dev/full", &err), ERR_OK);
    write_many(&(uint64_t){ 1 });
    assert_false(trace_is_on());
    trace_close();
    assert_int_equal(trace_open("/dev/full", &err), ERR_OK); /* and at the end */
    trace_close();
    assert_false(trace_is_on());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_have_times_tracks_and_arguments),
        cmocka_unit_test(threads_write_whole_events_in_their_own_order),
        cmocka_unit_test(a_kill_leaves_whole_events),
        cmocka_unit_test(a_full_disk_ends_the_trace_and_nothing_else),
    };
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
