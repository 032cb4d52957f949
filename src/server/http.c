#include "server/http.h"
#include "base/log.h"
#include "server/tls.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum http_state {
    HTTP_STATE_HEAD,    /* waiting for, or reading, a head */
    HTTP_STATE_BODY,    /* reading a body */
    HTTP_STATE_BUSY,    /* the layer above owes a reply */
    HTTP_STATE_CLOSING, /* the last reply is on its way; what comes in is dropped */
};

struct http_conn {
    struct http_server *server;
    struct http_conn *prev, *next;
    struct bufferevent *bev;
    struct event *timer; /* of the state */
    struct event *turn;  /* to take up what was sent ahead */
    enum http_state state;
    bool is_partial;   /* HEAD: bytes of a head are there */
    bool is_streaming; /* BUSY: the reply's head is out */
    bool ends_after;   /* the reply that goes out is the last */
    bool is_in_turn;   /* on the stack: free later */
    bool is_dead;
    bool is_flushed; /* CLOSING: our side is shut */
    size_t scanned;  /* HEAD: bytes without an end of head */
    char *head_text;
    struct http_head head;
    struct http_chunked chunked;
    struct buf body;
    void *data;
    char peer[64]; /* numeric address */
};

struct http_server {
    struct event_base *base;
    struct tls *tls;
    struct evbuffer *out; /* scratch: what is written goes to a connection in one piece */
    struct evconnlistener *listener;
    struct event *resume; /* listening again after EMFILE */
    struct http_ops ops;
    struct http_seconds seconds;
    struct http_conn *conns; /* newest first */
    int n_conns, max_conns;
    size_t bodies_bytes; /* of bodies that are being received */
    int port;
    int64_t n_replies[6]; /* by the first digit of their status */
    bool is_stopping;
};

/* --- the life of a connection --- */

static void http_timer(struct http_conn *c, int seconds)
{
    struct timeval tv = { seconds, 0 };
    evtimer_del(c->timer);
    if (seconds > 0)
        evtimer_add(c->timer, &tv);
}

static void http_drop_body(struct http_conn *c)
{
    c->server->bodies_bytes -= c->body.len;
    buf_release(&c->body);
}

static void http_free(struct http_conn *c)
{
    struct http_server *s = c->server;
    if (c->is_in_turn) {
        c->is_dead = true;
        return;
    }
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_conns--;
    http_drop_body(c);
    event_free(c->timer);
    event_free(c->turn);
    bufferevent_free(c->bev);
    mem_free(MEM_CAT_SERVER, c->head_text);
    mem_free(MEM_CAT_SERVER, c);
}

/* Cut off, telling the layer above if it owes a reply. */
static void http_abort(struct http_conn *c)
{
    if (c->is_dead)
        return;
    if (c->state == HTTP_STATE_BUSY) {
        c->state = HTTP_STATE_CLOSING;
        c->server->ops.closed(c->server->ops.arg, c);
    }
    http_free(c);
}

/* The output is sent: shut our side and read what is still under way, so that the client sees the reply, not a reset. */
static void http_flushed(struct http_conn *c)
{
    if (c->is_flushed)
        return;
    c->is_flushed = true;
    if (c->server->tls)
        tls_end(c->bev);
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    http_timer(c, LIMIT_LINGER_SECONDS);
}

static void http_begin_closing(struct http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    c->state = HTTP_STATE_CLOSING;
    http_drop_body(c);
    evbuffer_drain(in, evbuffer_get_length(in));
    http_timer(c, c->server->seconds.stall);
    bufferevent_setwatermark(c->bev, EV_WRITE, 0, 0);
    if (http_unsent(c) == 0)
        http_flushed(c);
}

/* The reply is written: the next request, or the end. */
static void http_finish(struct http_conn *c)
{
    c->data = NULL;
    c->is_streaming = false;
    if (c->ends_after) {
        http_begin_closing(c);
        return;
    }
    http_drop_body(c);
    mem_free(MEM_CAT_SERVER, c->head_text);
    c->head_text = NULL;
    c->state = HTTP_STATE_HEAD;
    c->is_partial = false;
    c->scanned = 0;
    http_timer(c, c->server->seconds.idle);
    /* In a turn of its own: what comes next may end replies of other connections (DELETE), whose next requests do the same, and so
     * on as deep as there are connections. */
    if (!c->is_in_turn && evbuffer_get_length(bufferevent_get_input(c->bev)) > 0)
        event_active(c->turn, EV_TIMEOUT, 0);
}

/* --- replies --- */

/* What was written to the server's scratch goes out: in one piece, which TLS makes one record of. */
static void http_send(struct http_conn *c)
{
    evbuffer_add_buffer(bufferevent_get_output(c->bev), c->server->out);
}

static const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        { 200, "OK" },
        { 204, "No Content" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 413, "Content Too Large" },
        { 417, "Expectation Failed" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 499, "Client Closed Request" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
        { 507, "Insufficient Storage" },
    };
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Status";
}

static void http_add_head(struct http_conn *c, int status, const char *content_type,
                          const char *extra)
{
    struct evbuffer *out = c->server->out;
    char date[64];
    struct tm tm;
    c->server->n_replies[status / 100 < 6 ? status / 100 : 0]++;
    time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (!c->head.keeps_alive || c->server->is_stopping)
        c->ends_after = true;
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: plumb\r\nConnection: %s\r\n%s",
                        status, http_reason(status), date, c->ends_after ? "close" : "keep-alive",
                        extra);
    if (content_type)
        evbuffer_add_printf(out, "Content-Type: %s\r\n", content_type);
}

void http_reply(struct http_conn *c, int status, const char *content_type, const char *extra,
                const char *body, size_t n)
{
    BUG_ON(c->state == HTTP_STATE_CLOSING || c->is_streaming);
    struct evbuffer *out = c->server->out;
    bool has_body = c->head.is_chunked || c->head.content_length > 0;
    if (c->state != HTTP_STATE_BUSY && has_body) /* refused before its body was read */
        c->ends_after = true;
    http_add_head(c, status, n > 0 ? content_type : NULL, extra);
    if (status != 204)
        evbuffer_add_printf(out, "Content-Length: %zu\r\n", n);
    evbuffer_add(out, "\r\n", 2);
    if (c->head.method != HTTP_METHOD_HEAD)
        evbuffer_add(out, body, n);
    http_send(c);
    http_finish(c);
}

void http_stream_begin(struct http_conn *c, const char *content_type, const char *extra)
{
    BUG_ON(c->state != HTTP_STATE_BUSY || c->is_streaming);
    struct evbuffer *out = c->server->out;
    if (c->head.minor == 0) /* no chunks in HTTP/1.0: the end of the connection ends the reply */
        c->ends_after = true;
    http_add_head(c, 200, content_type, extra);
    if (c->head.minor > 0)
        evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    evbuffer_add(out, "\r\n", 2);
    http_send(c);
    c->is_streaming = true;
}

void http_stream_add(struct http_conn *c, const char *data, size_t n)
{
    BUG_ON(!c->is_streaming);
    struct evbuffer *out = c->server->out;
    if (n == 0)
        return;
    if (c->head.minor > 0)
        evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, data, n);
    if (c->head.minor > 0)
        evbuffer_add(out, "\r\n", 2);
    http_send(c);
}

void http_stream_end(struct http_conn *c)
{
    BUG_ON(!c->is_streaming);
    if (c->head.minor > 0)
        evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5);
    http_finish(c);
}

size_t http_unsent(const struct http_conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

const char *http_peer(const struct http_conn *c)
{
    return c->peer;
}

void http_set_data(struct http_conn *c, void *data)
{
    c->data = data;
}

void *http_data(const struct http_conn *c)
{
    return c->data;
}

void http_take_body(struct http_conn *c, struct buf *out)
{
    c->server->bodies_bytes -= c->body.len;
    *out = c->body;
    buf_init(&c->body, MEM_CAT_SERVER, 0);
}

/* --- requests in --- */

static void http_refuse_now(struct http_conn *c, int status, const char *text)
{
    bool has_head = c->state == HTTP_STATE_BODY;
    c->ends_after = true;
    c->server->ops.refuse(c->server->ops.arg, c, has_head ? &c->head : NULL, status, text);
}

/* Length of the head in the input, its empty line included; 0 = not whole yet. */
static size_t http_find_head(struct http_conn *c, struct evbuffer *in)
{
    struct evbuffer_ptr at;
    size_t from = c->scanned > 3 ? c->scanned - 3 : 0;
    evbuffer_ptr_set(in, &at, from, EVBUFFER_PTR_SET);
    at = evbuffer_search(in, "\r\n\r\n", 4, &at);
    c->scanned = evbuffer_get_length(in);
    return at.pos < 0 ? 0 : (size_t)at.pos + 4;
}

/* Empty lines before a request are allowed (RFC 9112, 2.2). */
static void http_skip_empty_lines(struct evbuffer *in)
{
    char two[2];
    while (evbuffer_copyout(in, two, 2) == 2 && two[0] == '\r' && two[1] == '\n')
        evbuffer_drain(in, 2);
}

/* After the head: what the layer above allows, then the body. */
static void http_begin_body(struct http_conn *c)
{
    struct http_server *s = c->server;
    c->state = HTTP_STATE_BODY;
    int64_t max = s->ops.head(s->ops.arg, c, &c->head);
    if (max < 0)
        return;
    if (c->head.content_length > max) {
        char text[96];
        snprintf(text, sizeof(text), "the body has %lld bytes, the limit is %lld",
                 (long long)c->head.content_length, (long long)max);
        http_refuse_now(c, 413, text);
        return;
    }
    buf_init(&c->body, MEM_CAT_SERVER, (size_t)max);
    c->chunked = (struct http_chunked){ 0 };
    if (c->head.expects_continue && (c->head.is_chunked || c->head.content_length > 0))
        evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    http_timer(c, s->seconds.body);
}

/* Take one head from the input. False: more bytes are needed. */
static bool http_read_head(struct http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    struct err err;
    if (c->scanned == 0)
        http_skip_empty_lines(in);
    size_t len = evbuffer_get_length(in);
    if (len == 0)
        return false;
    if (!c->is_partial)
        http_timer(c, c->server->seconds.head);
    c->is_partial = true;
    size_t n = http_find_head(c, in);
    if (n == 0 && len < LIMIT_HEAD_BYTES)
        return false;
    c->head = (struct http_head){ .minor = 1, .path = "", .query = "" };
    if (n == 0 || n > LIMIT_HEAD_BYTES) {
        http_refuse_now(c, 431, "the request's head is over its limit of 32768 bytes");
        return false;
    }
    c->head_text = mem_alloc(MEM_CAT_SERVER, n + 1);
    evbuffer_remove(in, c->head_text, n);
    int status = http_parse_head(c->head_text, n, &c->head, &err);
    if (status != 0) {
        http_refuse_now(c, status, err.text);
        return false;
    }
    http_begin_body(c);
    return true;
}

/* Move what belongs to the body out of the input. False: more is needed, or the request was refused. */
static bool http_read_body(struct http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    size_t want = c->head.content_length > 0 ? (size_t)c->head.content_length : 0;
    struct err err = { 0 };
    bool is_done = !c->head.is_chunked && c->body.len == want;
    while (!is_done) {
        size_t n = evbuffer_get_contiguous_space(in), used = n;
        if (n == 0)
            return false;
        char *data = (char *)evbuffer_pullup(in, (ev_ssize_t)n);
        size_t before = c->body.len;
        if (c->head.is_chunked) {
            enum err_code code =
                http_chunked_feed(&c->chunked, data, n, &used, &c->body, &is_done, &err);
            if (code != ERR_OK) {
                c->server->bodies_bytes += c->body.len - before;
                http_refuse_now(c, code == ERR_FULL ? 413 : 400, err.text);
                return false;
            }
        } else {
            used = n < want - c->body.len ? n : want - c->body.len;
            buf_add(&c->body, data, used);
        }
        evbuffer_drain(in, used);
        c->server->bodies_bytes += c->body.len - before;
        if (c->body.failed || c->server->bodies_bytes > LIMIT_BODIES_TOTAL) {
            http_refuse_now(c, 503, "too many bytes of requests are being received; try again");
            return false;
        }
        is_done = is_done || (!c->head.is_chunked && c->body.len == want);
    }
    return true;
}

/* Do all that the input allows: several requests may have been sent ahead. */
static void http_advance(struct http_conn *c)
{
    if (c->is_in_turn) /* called from below this loop: it goes on by itself */
        return;
    c->is_in_turn = true;
    while (!c->is_dead) {
        if (c->state == HTTP_STATE_HEAD && !http_read_head(c))
            break;
        if (c->state == HTTP_STATE_HEAD) /* answered by its head alone */
            continue;
        if (c->is_dead || c->state != HTTP_STATE_BODY || !http_read_body(c))
            break;
        c->state = HTTP_STATE_BUSY;
        http_timer(c, 0);
        c->server->ops.request(c->server->ops.arg, c, &c->head);
        if (c->state != HTTP_STATE_HEAD)
            break;
    }
    c->is_in_turn = false;
    if (c->is_dead)
        http_free(c);
}

/* --- libevent's callbacks --- */

static void http_on_read(struct bufferevent *bev, void *arg)
{
    struct http_conn *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    if (c->state == HTTP_STATE_CLOSING)
        evbuffer_drain(in, evbuffer_get_length(in));
    else if (c->state != HTTP_STATE_BUSY)
        http_advance(c);
    else if (evbuffer_get_length(in) >= LIMIT_PIPELINE_BYTES)
        http_abort(
            c); /* reading would have to stop, and with it the watch for the client's going */
}

static void http_on_write(struct bufferevent *bev, void *arg)
{
    struct http_conn *c = arg;
    if (c->state == HTTP_STATE_CLOSING && http_unsent(c) == 0)
        http_flushed(c);
    else if (c->state == HTTP_STATE_BUSY && c->is_streaming)
        c->server->ops.drained(c->server->ops.arg, c);
}

static void http_on_event(struct bufferevent *bev, short what, void *arg)
{
    if (what & BEV_EVENT_CONNECTED) /* the handshake is done */
        return;
    http_abort(arg); /* end of file, error, or no byte taken for LIMIT_STALL_SECONDS */
}

static void http_on_turn(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    if (c->state == HTTP_STATE_HEAD || c->state == HTTP_STATE_BODY)
        http_advance(c);
}

static void http_on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    if (c->state == HTTP_STATE_HEAD && c->is_partial) {
        c->head = (struct http_head){ .minor = 1, .path = "", .query = "" };
        http_refuse_now(c, 408, "the request's head took too long");
    } else if (c->state == HTTP_STATE_BODY) {
        http_refuse_now(c, 408, "the request's body took too long");
    } else {
        http_abort(c);
    }
}

/* Room for one more: of those that owe us a request, the one that has been silent longest goes. Connections are in the order of
 * their arrival, which is near enough. */
static bool http_make_room(struct http_server *s)
{
    struct http_conn *victim = NULL;
    if (s->n_conns < s->max_conns)
        return true;
    for (struct http_conn *c = s->conns; c; c = c->next)
        if (c->state != HTTP_STATE_BUSY)
            victim = c;
    if (victim)
        http_abort(victim);
    return victim != NULL;
}

static void http_set_socket(int fd)
{
    int one = 1, idle = 30, between = 10, gone_ms = LIMIT_STALL_SECONDS * 1000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    /* A peer that vanished without a word (power, cable) is noticed although nothing is sent to it. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof(between));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_ms, sizeof(gone_ms));
}

static void http_on_accept(struct evconnlistener *listener, evutil_socket_t fd,
                           struct sockaddr *addr, int len, void *arg)
{
    struct http_server *s = arg;
    if (!http_make_room(s)) {
        evutil_closesocket(fd);
        return;
    }
    struct timeval stall = { s->seconds.stall, 0 };
    http_set_socket(fd);
    struct bufferevent *bev = s->tls ? tls_accept(s->tls, s->base, fd)
                                     : bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!bev) {
        evutil_closesocket(fd);
        return;
    }
    struct http_conn *c = mem_alloc(MEM_CAT_SERVER, sizeof(*c));
    c->bev = bev;
    if (getnameinfo(addr, (socklen_t)len, c->peer, sizeof(c->peer), NULL, 0, NI_NUMERICHOST) != 0)
        c->peer[0] = '\0';
    c->server = s;
    c->timer = evtimer_new(s->base, http_on_timer, c);
    c->turn = evtimer_new(s->base, http_on_turn, c);
    BUG_ON(!c->timer || !c->turn);
    buf_init(&c->body, MEM_CAT_SERVER, 0);
    c->next = s->conns;
    if (s->conns)
        s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
    bufferevent_setcb(c->bev, http_on_read, http_on_write, http_on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, LIMIT_PIPELINE_BYTES);
    bufferevent_setwatermark(c->bev, EV_WRITE, LIMIT_UNSENT_LOW, 0);
    bufferevent_set_timeouts(c->bev, NULL, &stall);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    http_timer(c, s->seconds.head); /* the first request is due at once */
}

static void http_on_resume(evutil_socket_t fd, short what, void *arg)
{
    struct http_server *s = arg;
    if (s->listener)
        evconnlistener_enable(s->listener);
}

/* Out of descriptors: without a pause this would spin. */
static void http_on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct http_server *s = arg;
    struct timeval tv = { 0, 100000 };
    log_warn("http", "accept: %s; listening again in 100 ms", strerror(errno));
    evconnlistener_disable(listener);
    evtimer_add(s->resume, &tv);
}

/* --- the listener --- */

static int http_port_of(int fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    char port[16];
    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0 ||
        getnameinfo((struct sockaddr *)&ss, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV) != 0)
        return 0;
    return (int)strtol(port, NULL, 10);
}

static int http_max_connections(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY &&
        lim.rlim_cur < LIMIT_CONNECTIONS + 64)
        return lim.rlim_cur > 128 ? (int)lim.rlim_cur - 64 : 64;
    return LIMIT_CONNECTIONS;
}

enum err_code http_server_open(const struct http_options *o, struct http_server **out,
                               struct err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct addrinfo *ai = NULL;
    char service[16];
    snprintf(service, sizeof(service), "%d", o->port);
    int rc = getaddrinfo(o->host, service, &hints, &ai);
    if (rc != 0)
        return err_set(err, ERR_INVALID, "--host %s: %s", o->host, gai_strerror(rc));
    struct http_server *s = mem_alloc(MEM_CAT_SERVER, sizeof(*s));
    const struct http_seconds *seconds = &o->seconds;
    *s = (struct http_server){
        .base = o->base, .ops = o->ops, .tls = o->tls, .max_conns = http_max_connections()
    };
    s->seconds = (struct http_seconds){
        .head = seconds->head ? seconds->head : LIMIT_HEAD_SECONDS,
        .body = seconds->body ? seconds->body : LIMIT_BODY_SECONDS,
        .idle = seconds->idle ? seconds->idle : LIMIT_IDLE_SECONDS,
        .stall = seconds->stall ? seconds->stall : LIMIT_STALL_SECONDS,
    };
    s->listener =
        evconnlistener_new_bind(s->base, http_on_accept, s,
                                LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC,
                                512, ai->ai_addr, (int)ai->ai_addrlen);
    freeaddrinfo(ai);
    if (!s->listener) {
        mem_free(MEM_CAT_SERVER, s);
        return err_set(err, ERR_IO, "cannot listen on %s port %d: %s", o->host, o->port,
                       strerror(errno));
    }
    evconnlistener_set_error_cb(s->listener, http_on_accept_error);
    s->out = evbuffer_new();
    s->resume = evtimer_new(s->base, http_on_resume, s);
    BUG_ON(!s->out || !s->resume);
    s->port = http_port_of(evconnlistener_get_fd(s->listener));
    *out = s;
    return ERR_OK;
}

int http_server_port(const struct http_server *s)
{
    return s->port;
}

int http_server_connections(const struct http_server *s)
{
    return s->n_conns;
}

int64_t http_server_replies(const struct http_server *s, int hundreds)
{
    return s->n_replies[hundreds];
}

void http_server_stop_listening(struct http_server *s)
{
    struct http_conn *next;
    s->is_stopping = true;
    if (s->listener)
        evconnlistener_free(s->listener);
    s->listener = NULL;
    for (struct http_conn *c = s->conns; c; c = next) {
        next = c->next;
        if (c->state == HTTP_STATE_HEAD && !c->is_partial)
            http_abort(c);
    }
}

void http_server_close(struct http_server *s)
{
    if (!s)
        return;
    http_server_stop_listening(s);
    while (s->conns)
        http_abort(s->conns);
    event_free(s->resume);
    evbuffer_free(s->out);
    mem_free(MEM_CAT_SERVER, s);
}
