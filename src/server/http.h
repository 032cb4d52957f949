/* http.h - HTTP/1.1 for many clients on one thread, over libevent's sockets and timers.
 *
 * Owns: the listener and every connection. A connection answers one request at a time; what a client sends ahead waits,
 * bounded. Reading never stops while a request is answered, so a client that goes is noticed at once, in the queue and in the
 * prompt too; an end of file from the client counts as gone.
 * Why not evhttp (libevent 2.1.12): it answers what it refuses itself (syntax, size) with HTML that cannot be replaced; nothing can
 * look at a head before the body has been taken in, so Host, Origin, route and size cannot refuse early; its time-out is one
 * of silence, which a byte every few seconds defeats; and a byte that arrives while a request is pending and reading is on
 * ends the process (event_errx, "illegal connection state").
 * Does not know: JSON, models, routes. Thread: I/O thread only. */
#ifndef PLUMB_SERVER_HTTP_H
#define PLUMB_SERVER_HTTP_H

#include "server/http_parse.h"

struct event_base;
struct http_server;
struct http_conn;
struct tls;

/* What the layer above does. A connection given to `head` gets exactly one of: http_reply, a stream's end, or `closed`. */
struct http_ops {
    /* The head is read, the body is not. Return how many bytes of body may come; or reply and return -1. */
    int64_t (*head)(void *arg, struct http_conn *c, const struct http_head *head);
    /* The request is whole: reply now or later. */
    void (*request)(void *arg, struct http_conn *c, const struct http_head *head);
    /* This request is refused here (bad syntax, too large, too slow): reply with that status and text. head is NULL where it could
     * not be read. */
    void (*refuse)(void *arg, struct http_conn *c, const struct http_head *head, int status,
                   const char *text);
    /* The client has gone, or was cut off, before the reply ended. c is freed afterwards. */
    void (*closed)(void *arg, struct http_conn *c);
    /* A stream's unsent output fell below LIMIT_UNSENT_LOW. */
    void (*drained)(void *arg, struct http_conn *c);
    void *arg;
};

struct http_seconds { /* 0 = what limits.h says */
    int head, body, idle, stall;
};

struct http_options {
    struct event_base *base;
    const char *host;
    int port; /* 0: any free one */
    struct http_ops ops;
    struct http_seconds seconds;
    struct tls *tls; /* borrowed until http_server_close; NULL: plain text */
};

/* Listen. Errors: ERR_INVALID - host; ERR_IO - address in use and the like. */
enum err_code http_server_open(const struct http_options *o, struct http_server **out,
                               struct err *err) MUST_CHECK;
int http_server_port(const struct http_server *s);
int http_server_connections(const struct http_server *s);
/* Replies so far whose status begins with that digit. */
int64_t http_server_replies(const struct http_server *s, int hundreds);
void http_server_stop_listening(
    struct http_server *s); /* and close what is idle; replies say Connection: close */
void http_server_close(struct http_server *s); /* everything, at once; `closed` is called */

/* What the layer above keeps with the request that is being answered. */
void http_set_data(struct http_conn *c, void *data);
void *http_data(const struct http_conn *c);

/* The numeric address of the other end; "" where it is not known. */
const char *http_peer(const struct http_conn *c);

/* The body of the request: moved into out (initialised by the callee). */
void http_take_body(struct http_conn *c, struct buf *out);

/* A whole reply. extra: header lines that end in CRLF, or "". */
void http_reply(struct http_conn *c, int status, const char *content_type, const char *extra,
                const char *body, size_t n);

/* A reply in pieces, status 200. */
void http_stream_begin(struct http_conn *c, const char *content_type, const char *extra);
void http_stream_add(struct http_conn *c, const char *data, size_t n);
void http_stream_end(struct http_conn *c);
size_t http_unsent(const struct http_conn *c); /* bytes that the client has not taken yet */

#endif
