/* http_parse.h - the syntax of HTTP/1.1 requests (RFC 9112): head and chunked body, from bytes in memory. No sockets.
 *
 * Strict where leniency has let requests be smuggled: CRLF only, no folded headers, no blank before a colon, one
 * Content-Length, never both Content-Length and Transfer-Encoding. */
#ifndef PLUMB_SERVER_HTTP_PARSE_H
#define PLUMB_SERVER_HTTP_PARSE_H

#include "base/buf.h"
#include "server/limits.h"

enum http_method {
    HTTP_METHOD_GET,
    HTTP_METHOD_HEAD,
    HTTP_METHOD_POST,
    HTTP_METHOD_DELETE,
    HTTP_METHOD_OPTIONS,
    HTTP_METHOD_OTHER, /* known to HTTP or not: nothing here answers it */
};

struct http_header {
    const char *name, *value; /* value without blanks around it */
};

struct http_head { /* points into the text that was parsed */
    enum http_method method;
    const char *path;  /* percent-decoded, starts with '/' */
    const char *query; /* after '?', as sent; "" without */
    int minor;         /* HTTP/1.minor */
    struct http_header headers[LIMIT_HEADERS];
    int n_headers;
    int64_t content_length; /* -1 = none given */
    bool is_chunked;
    bool expects_continue;
    bool keeps_alive; /* after the reply, as far as the client is concerned */
};

/* Parse text[0..len), which ends with the empty line; text is changed (terminators) and must stay while head is used.
 * Errors: the HTTP status to refuse with (400, 417, 431, 501, 505), err says why; 0 = ok. */
int http_parse_head(char *text, size_t len, struct http_head *head, struct err *err) MUST_CHECK;

/* First header of that name, any case; NULL. */
const char *http_header(const struct http_head *head, const char *name);

/* Is `token` in the comma-separated list, any case? */
bool http_list_has(const char *list, const char *token);

/* A chunked body, fed as it comes. */
struct http_chunked {
    int state;
    uint64_t left;     /* of the chunk */
    size_t line_bytes; /* of extensions and trailers so far: bounded by LIMIT_HEAD_BYTES */
};

/* Take what belongs to the body from data[0..n): decoded bytes go to out. *used says how much was taken; *is_done whether the body
 * is whole. Errors: ERR_INVALID - syntax; ERR_FULL - out's cap. */
enum err_code http_chunked_feed(struct http_chunked *c, const char *data, size_t n, size_t *used,
                                struct buf *out, bool *is_done, struct err *err) MUST_CHECK;

#endif
