/* Request heads and chunked bodies: what is accepted, what is refused with which status, and that cuts change nothing. */
#include "server/http_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define H "Host: localhost\r\n"

static char text[1 << 17];
static struct http_head head;

static int parse(const char *s)
{
    struct err err = { 0 };
    size_t n = strlen(s);
    memcpy(text, s, n + 1);
    int status = http_parse_head(text, n, &head, &err);
    assert_int_equal(status != 0, err.text[0] != '\0');
    return status;
}

static void a_plain_request_is_read(void **state)
{
    assert_int_equal(
        parse("POST /v1/chat%20x/y?a=b%20c HTTP/1.1\r\nhost:localhost:80\r\n"
              "Content-Length: 12\r\nX-A:  two words\t\r\nExpect: 100-continue\r\n\r\n"),
        0);
    assert_int_equal(head.method, HTTP_METHOD_POST);
    assert_string_equal(head.path, "/v1/chat x/y");
    assert_string_equal(head.query, "a=b%20c");
    assert_int_equal(head.content_length, 12);
    assert_string_equal(http_header(&head, "x-a"), "two words");
    assert_null(http_header(&head, "x-b"));
    assert_true(head.keeps_alive && head.expects_continue && !head.is_chunked);
}

static void methods_versions_and_targets_are_told_apart(void **state)
{
    static const struct {
        const char *line;
        int status;
        enum http_method method;
        const char *path;
        bool keeps_alive;
    } rows[] = {
        { "GET / HTTP/1.1", 0, HTTP_METHOD_GET, "/", true },
        { "HEAD /x HTTP/1.0", 0, HTTP_METHOD_HEAD, "/x", false },
        { "DELETE /x HTTP/1.1", 0, HTTP_METHOD_DELETE, "/x", true },
        { "OPTIONS * HTTP/1.1", 0, HTTP_METHOD_OPTIONS, "*", true },
        { "PATCH /x HTTP/1.1", 0, HTTP_METHOD_OTHER, "/x", true },
        { "get /x HTTP/1.1", 0, HTTP_METHOD_OTHER, "/x", true },
        { "GET http://a.test/p?q HTTP/1.1", 0, HTTP_METHOD_GET, "/p", true },
        { "GET http://a.test HTTP/1.1", 0, HTTP_METHOD_GET, "/", true },
        { "GET / HTTP/2.0", 505, 0, NULL, false },
        { "GET /", 400, 0, NULL, false },
        { "GET  / HTTP/1.1", 400, 0, NULL, false },
        { "GET / HTTP/1.1 ", 505, 0, NULL, false },
        { " GET / HTTP/1.1", 400, 0, NULL, false },
        { "GET x HTTP/1.1", 400, 0, NULL, false },
        { "GET /%zz HTTP/1.1", 400, 0, NULL, false },
        { "GET /%00 HTTP/1.1", 400, 0, NULL, false },
        { "GET /%2 HTTP/1.1", 400, 0, NULL, false },
        { "GET /a\tb HTTP/1.1", 400, 0, NULL, false },
        { "G(T / HTTP/1.1", 400, 0, NULL, false },
        { "GET / FTP/1.1", 400, 0, NULL, false },
        { "", 400, 0, NULL, false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char s[256];
        snprintf(s, sizeof(s), "%s\r\n" H "\r\n", rows[i].line);
        assert_int_equal(parse(s), rows[i].status);
        if (rows[i].status)
            continue;
        assert_int_equal(head.method, rows[i].method);
        assert_string_equal(head.path, rows[i].path);
        assert_int_equal(head.keeps_alive, rows[i].keeps_alive);
    }
}

static void what_could_smuggle_a_request_is_refused(void **state)
{
    static const struct {
        const char *headers;
        int status;
    } rows[] = {
        { H "Content-Length: 1\r\nContent-Length: 1\r\n", 0 },
        { H "Content-Length: 1\r\nContent-Length: 2\r\n", 400 },
        { H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400 },
        { H "Content-Length: +1\r\n", 400 },
        { H "Content-Length: 1, 1\r\n", 400 },
        { H "Content-Length: 0x1\r\n", 400 },
        { H "Content-Length:\r\n", 400 },
        { H "Content-Length: 99999999999999999999\r\n", 400 },
        { H "Transfer-Encoding: gzip, chunked\r\n", 501 },
        { H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501 },
        { H "Transfer-Encoding: \x0b"
            "chunked\r\n",
          400 },
        { H "Transfer-Encoding : chunked\r\n", 400 },
        { H "X: a\r\n folded\r\n", 400 },
        { H "X\r\n", 400 },
        { H ": x\r\n", 400 },
        { H "X: a\nY: b\r\n", 400 },
        { H "X: a\rb\r\n", 400 },
        { H "X: \x01\r\n", 400 },
        { H "Expect: wonders\r\n", 417 },
        { H H, 400 },
        { "", 400 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char s[512];
        snprintf(s, sizeof(s), "POST / HTTP/1.1\r\n%s\r\n", rows[i].headers);
        assert_int_equal(parse(s), rows[i].status);
    }
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n"), 0); /* 1.0 knew no Host */
    assert_int_equal(parse("GET / HTTP/1.1\r\n" H), 400); /* no empty line */
    memcpy(text, "GET / HTTP/1.1\r\nA: \0\r\n\r\n", 25);
    assert_int_equal(http_parse_head(text, 25, &head, NULL), 400);
}

static void headers_are_counted(void **state)
{
    for (int n = LIMIT_HEADERS - 1; n <= LIMIT_HEADERS; n++) {
        size_t at = (size_t)sprintf(text, "GET / HTTP/1.1\r\n" H);
        for (int i = 0; i < n; i++)
            at += (size_t)sprintf(text + at, "X%d: y\r\n", i);
        at += (size_t)sprintf(text + at, "\r\n");
        assert_int_equal(http_parse_head(text, at, &head, NULL), n == LIMIT_HEADERS ? 431 : 0);
    }
}

static void lists_are_searched_by_whole_words(void **state)
{
    assert_true(http_list_has("a, Keep-Alive , b", "keep-alive"));
    assert_true(http_list_has("close", "CLOSE"));
    assert_false(http_list_has("closed, unclose", "close"));
    assert_false(http_list_has("", "close"));
    assert_false(http_list_has(",,  ,", "close"));
}

/* Feed s in pieces of `step` bytes; returns the code, out holds the body. */
static enum err_code feed(const char *s, size_t n, size_t step, struct buf *out, size_t *used_all,
                          bool *is_done)
{
    struct http_chunked c = { 0 };
    enum err_code code = ERR_OK;
    buf_reset(out);
    *is_done = false;
    *used_all = 0;
    for (size_t i = 0; i < n && !*is_done && code == ERR_OK; i += step) {
        size_t used, take = n - i < step ? n - i : step;
        code = http_chunked_feed(&c, s + i, take, &used, out, is_done, NULL);
        if (code == ERR_OK)
            *used_all += used;
    }
    return code;
}

static void chunked_bodies_are_the_same_however_they_are_cut(void **state)
{
    static const char s[] = "4\r\nWiki\r\n6;ext=\"1\"\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n"
                            "000\r\nTrailer: x\r\n\r\nNEXT";
    struct buf out;
    bool is_done;
    size_t used;
    buf_init(&out, MEM_CAT_BASE, 1000);
    for (size_t step = 1; step < sizeof(s); step++) {
        assert_int_equal(feed(s, sizeof(s) - 1, step, &out, &used, &is_done), ERR_OK);
        assert_true(is_done);
        assert_string_equal(out.data, "Wikipedia in \r\n\r\nchunks.");
        assert_int_equal(used, sizeof(s) - 1 - 4); /* what follows is the next request's */
    }
    buf_release(&out);
}

static void broken_chunks_are_refused(void **state)
{
    static const char *const rows[] = {
        "\r\n",        "g\r\n",        "4\nWiki\r\n",     "4\r\nWikiX\r\n",
        "-1\r\n",      "4\r\nWiki\rX", " 4\r\nWiki",      "FFFFFFFFF\r\n",
        "4;\n",        "0\r\n\nx",     "0\r\nA: b\n\r\n", "4\r\nWiki\r\n\r\n",
        "0x4\r\nWiki",
    };
    struct buf out;
    bool is_done;
    size_t used;
    buf_init(&out, MEM_CAT_BASE, 1000);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (size_t step = 1; step < 8; step++) {
            assert_int_equal(feed(rows[i], strlen(rows[i]), step, &out, &used, &is_done),
                             ERR_INVALID);
            assert_false(is_done);
        }
    buf_release(&out);
}

static void chunked_bodies_are_bounded(void **state)
{
    struct buf out;
    bool is_done;
    size_t used;
    buf_init(&out, MEM_CAT_BASE, 10);
    assert_int_equal(feed("B\r\n12345678901\r\n0\r\n\r\n", 21, 21, &out, &used, &is_done),
                     ERR_FULL);
    buf_release(&out);
    buf_init(&out, MEM_CAT_BASE, 10);
    memset(text, 'a', sizeof(text)); /* a trailer without end */
    memcpy(text, "0\r\n", 3);
    assert_int_equal(feed(text, sizeof(text), 4096, &out, &used, &is_done), ERR_INVALID);
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_request_is_read),
        cmocka_unit_test(methods_versions_and_targets_are_told_apart),
        cmocka_unit_test(what_could_smuggle_a_request_is_refused),
        cmocka_unit_test(headers_are_counted),
        cmocka_unit_test(lists_are_searched_by_whole_words),
        cmocka_unit_test(chunked_bodies_are_the_same_however_they_are_cut),
        cmocka_unit_test(broken_chunks_are_refused),
        cmocka_unit_test(chunked_bodies_are_bounded),
    };
    return cmocka_run_group_tests_name("http_parse", tests, NULL, NULL);
}
