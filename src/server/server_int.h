/* server_int.h - the I/O thread's state: calls, their answers, and what routes and guards need. */
#ifndef PLUMB_SERVER_SERVER_INT_H
#define PLUMB_SERVER_SERVER_INT_H

#include "sched/sched.h"
#include "server/answer.h"
#include "server/dialect.h"
#include "server/http.h"
#include "server/server.h"
#include "server/worker.h"

struct event;

enum server_state { SERVER_STATE_LOADING, SERVER_STATE_READY, SERVER_STATE_DRAINING };

/* One answer of a call: a generation that the scheduler owns until its FINISHED event. */
struct leg {
    struct call *call;
    req_id id;
    int32_t index;
    bool is_live;       /* the scheduler knows it */
    bool is_cancel_due; /* a cancel found the mail full: tried again */
    struct answer answer;
    struct buf text; /* not streamed: the answer so far */
    struct sched_finished end;
};

/* One API request, from its body to the end of its reply. Lives until the worker has given its job back and all legs are finished, even
 * if the client goes earlier. */
struct call {
    struct server *server;
    struct call *prev, *next;
    struct http_conn *conn; /* NULL: answered, or the client is gone */
    uint64_t id;
    char request_id[LIMIT_REQUEST_ID_BYTES + 1];
    char origin[256];       /* of the page that calls, if it may; "" */
    struct worker_job *job; /* while in preparation */
    struct prepared *prepared;
    const struct dialect *dialect;
    char answer_id[40]; /* "chatcmpl-..." */
    struct dialect_head head;
    struct leg *legs; /* [n_legs] */
    int32_t n_legs, n_live;
    bool is_streaming, is_paused;
    struct dialect_usage usage;
};

struct server {
    struct server_config config;
    enum server_state state;
    struct event_base *base;
    struct event *wake_event, *retry_timer, *drain_timer, *signals[2];
    int64_t drain_started_us, last_call_us;
    int wake_fd;
    struct http_server *http;
    struct sched *sched;
    struct worker_pool *workers;
    struct server_model model; /* valid from READY on */
    const char *model_id;
    struct call *calls;
    int32_t n_calls;
    uint64_t next_id;
    struct leg *legs[LIMIT_LIVE]; /* by id % LIMIT_LIVE */
    int32_t n_legs;
    struct buf out, text; /* scratch: of the reply being written; of what an answer shows now */
    bool has_due;         /* commands for the scheduler are to be tried again */
    char url[300];
    char bind_host[256]; /* config.host without brackets */
    struct err failure;
    int64_t started_us;
};

/* --- route.c --- */
int64_t route_head(void *arg, struct http_conn *c, const struct http_head *head);
void route_request(void *arg, struct http_conn *c, const struct http_head *head);
void route_refuse(void *arg, struct http_conn *c, const struct http_head *head, int status,
                  const char *text);

/* --- guard.c: may this Host and this Origin be served? --- */
bool guard_host(const struct server *s, const char *host);
/* own_host: the request's Host, whose pages are the server's own. */
bool guard_origin(const struct server *s, const char *origin, const char *own_host);

/* --- call.c --- */
void call_begin(struct server *s, struct http_conn *c, const struct http_head *head,
                enum prepare_kind kind);
void call_prepared(struct server *s, struct worker_job *job);
void call_event(struct server *s, const struct sched_event *ev);
void call_closed(void *arg, struct http_conn *c);  /* http_ops.closed */
void call_drained(void *arg, struct http_conn *c); /* http_ops.drained */
void call_retry(struct server *s);                 /* cancels that are due */
void call_end_all(struct server *s, const char *why);

/* --- reply.c --- */
/* Send an error or a JSON body; extra holds further header lines. c gets the headers that every reply has. */
void reply_error(struct server *s, struct http_conn *c, const char *request_id, const char *origin,
                 const struct api_error *e);
void reply_json(struct server *s, struct http_conn *c, const char *request_id, const char *origin,
                const char *extra, const struct buf *body);
/* Header lines that every reply has, and extra, into out[n]. */
void reply_headers(const char *request_id, const char *origin, const char *extra, char *out,
                   size_t n);
/* A client's X-Request-Id if it is harmless, else a new one. */
void reply_request_id(struct server *s, const struct http_head *head, char *out);

/* 64 random bits. */
uint64_t server_random(void);

#endif
