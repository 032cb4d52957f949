/* server_int.h - the I/O thread's state: calls, their answers, and what routes and guards need. */
#ifndef PLUMB_SERVER_SERVER_INT_H
#define PLUMB_SERVER_SERVER_INT_H

#include "sched/sched.h"
#include "server/answer.h"
#include "server/dialect.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/response.h"
#include "server/server.h"
#include "server/session_files.h"
#include "server/sessions.h"
#include "server/worker.h"

struct event;
struct tls;

enum server_state { SERVER_STATE_LOADING, SERVER_STATE_READY, SERVER_STATE_DRAINING };

struct guard_digest {
    unsigned char bytes[32];
};

/* Whom a reply is for: what its headers say again. */
struct reply_to {
    char request_id[LIMIT_REQUEST_ID_BYTES + 1];
    bool has_own_id;                           /* the client has named it */
    char trace_id[LIMIT_REQUEST_ID_BYTES + 1]; /* "": there is no trace */
    char origin[256];                          /* of the page that calls, if it may; "" */
    bool is_anthropic; /* errors have that API's shape, and its header says the id again */
};

/* A place in the stream of one answer: the events of its first `tokens` tokens are out (-1: not even what stands before it), and so
 * many of those that follow. */
struct leg_place {
    int32_t tokens, events;
};

/* One answer of a call: a generation that the scheduler owns until its FINISHED event. */
struct leg {
    struct call *call;
    req_id id;
    int32_t index;
    int32_t prompt;     /* of call->prepared->prompts */
    bool is_live;       /* the scheduler knows it */
    bool is_cancel_due; /* a cancel found the mail full: tried again */
    bool
        is_shown; /* what stands before the answer is out; until then a stream's answer is held back */
    bool is_ended;     /* its last part is out */
    int64_t text_safe; /* of its newest token */
    struct answer answer;
    struct splitter *splitter; /* NULL: all of the answer is content */
    int32_t n_calls;           /* tool calls begun */
    int32_t n_tokens;          /* that belong to it */
    int32_t n_fed; /* tokens of its generation that it has had, or (the maker's) brought */
    struct leg_place place,
        have;     /* of a generation's reader: what is out; what its client had before */
    bool is_done; /* it is complete though the model goes on: what comes is dropped */
    struct sched_finished end;
    /* What was collected of it, for the end: leg.c. */
    struct buf text;    /* of the parts, joined */
    struct buf parts;   /* struct leg_part */
    struct buf tokens;  /* struct answer_token, of the content */
    struct buf ids;     /* int32_t, of the whole answer, where they are kept */
    struct buf history; /* int32_t, what it leaves to its session; empty: nothing */
    int32_t cut;        /* of that, the prompt's stable boundary */
    struct part *told;  /* the parts as leg_choice gave them last */
};

enum call_outcome { CALL_OUTCOME_ABORT, CALL_OUTCOME_SUCCESS, CALL_OUTCOME_ERROR };
#define CALL_OUTCOME_COUNT 3
const char *call_outcome_name(enum call_outcome o);

enum call_wish {                /* what is to be done with a kept response */
                 CALL_WISH_RUN, /* nothing: it is being made */
                 CALL_WISH_OBJECT,
                 CALL_WISH_STREAM,
                 CALL_WISH_ITEMS,
                 CALL_WISH_CANCEL,
                 CALL_WISH_DELETE,
};

/* One API request, from its body to the end of its reply. Lives until the worker has given its job back and all legs are finished, even
 * if the client goes earlier. */
struct call {
    struct server *server;
    struct call *prev, *next;
    struct http_conn *conn; /* NULL: answered, or the client is gone */
    uint64_t id;
    uint64_t pass; /* over all calls that last met it */
    struct reply_to to;
    uint64_t account; /* whose turn it takes */
    int64_t arrived_us;
    uint64_t track; /* in the trace; 0 = none */
    enum call_outcome outcome;
    struct worker_job *job; /* while in preparation */
    struct prepared *prepared;
    int64_t score_bytes; /* counted in the server's */
    const struct dialect *dialect;
    char answer_id[40]; /* "chatcmpl-..." */
    /* Responses API: call_response.c */
    struct response *response; /* the one that it runs or shows */
    struct response_view view; /* how much of its stream the client has */
    unsigned char who[STORE_WHO_BYTES];
    enum call_wish wish;
    struct prepare_list list; /* ITEMS */
    bool is_run;              /* the response's answer comes from here */
    bool is_view_stream;      /* the client gets events, else the object */
    bool is_detached;         /* it runs whether or not there is a client */
    bool
        has_begun; /* head or reply are out: what goes wrong from here on is told by the response */
    bool is_dropped; /* it was deleted while it ran: not to be kept */
    int32_t n_store; /* store jobs, or a flush, that will come back */
    bool is_flush;   /* it waits for one, whose id is its own */
    /* call_session.c */
    struct session *session; /* that it is a turn of, or restores; or NULL */
    bool is_restore;
    bool was_known;                     /* the session that is deleted */
    struct session_record session_like; /* what is asked of: whose, of which salt, model, name */
    int64_t session_tokens;             /* that are saved */
    struct worker_job *
        again; /* to be prepared again, once its history is here; or once its record was looked for */
    /* Generations that can be resumed: call_resume.c */
    struct generation *generation; /* that it makes or reads; or NULL */
    struct journal_job *find;      /* waits for the end of one of its name */
    char *from;        /* where its client's stream is to begin; NULL: at the beginning */
    bool is_reading;   /* counted as one of its readers */
    bool is_maker;     /* has no client, but the scheduler's requests */
    bool is_finishing; /* the client has gone, the answer goes on */
    bool wants_stream; /* whatever the body says */
    struct dialect_head head;
    struct leg *legs;             /* [n_legs] */
    struct dialect_state *states; /* [n_legs] of the stream */
    int32_t n_legs, n_live;
    int32_t n_begun; /* legs that the scheduler has been given; the rest waits for them */
    bool is_streaming, is_paused, has_written;
    int64_t sent_us;          /* when the stream had its last bytes */
    struct api_error failure; /* of one answer of a stream whose others go on */
    struct dialect_usage usage;
    struct print_result compared; /* where that is asked for */
};

struct server {
    struct server_config config;
    enum server_state state;
    struct event_base *base;
    struct event *wake_event, *retry_timer, *drain_timer, *watch_timer, *alive_timer, *signals[2];
    int64_t drain_started_us, last_call_us;
    bool is_wedged;  /* a step runs far too long: said once */
    bool is_hurried; /* a second signal came */
    int wake_fd;
    struct http_server *http;
    struct sched *sched;
    struct worker_pool *workers;
    struct grammars *grammars;
    struct store *store;                 /* NULL: responses are not kept */
    struct journal *journal;             /* NULL: no generation can be resumed */
    struct session_files *session_files; /* NULL: no session can be saved */
    struct sessions sessions;
    int64_t n_sessions_saved, n_sessions_restored;
    struct generation *generations;
    int64_t n_resumed, n_resume_refused;
    int32_t n_makers;               /* of the calls */
    struct prepare_context prepare; /* valid from READY on */
    unsigned char secret[16];       /* of hashes of keys and accounts */
    struct guard_digest *keys;      /* [n_keys]; NULL: none is asked for */
    int32_t n_keys;
    struct tls *tls;           /* NULL: plain text */
    struct server_model model; /* valid from READY on */
    const char *model_id;
    struct call *calls;
    int32_t n_calls;
    uint64_t next_id, next_track, next_pass;
    int64_t score_bytes; /* of all calls */
    struct prints prints;
    int64_t n_outcomes[CALL_OUTCOME_COUNT];
    struct leg *legs[LIMIT_LIVE]; /* by id % LIMIT_LIVE */
    int32_t n_legs;
    struct buf openapi;   /* what /openapi.json says, made once the model is loaded; empty before */
    struct buf out, text; /* scratch: of the reply being written; of what an answer shows now */
    struct buf labelled;  /* scratch: events with their ids */
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
bool route_is_anthropic(const char *path); /* /v1/messages and what is below it */

/* --- guard.c: who may be served, and on whose account --- */
/* Take the keys. Errors: ERR_INVALID - settings that would let in who should not be. */
enum err_code guard_init(struct server *s, struct err *err) MUST_CHECK;
void guard_release(struct server *s);
/* Is one of the keys there, where keys are asked for? In constant time for any key of a length. */
bool guard_key(const struct server *s, const struct http_head *head);
bool guard_host(const struct server *s, const char *host);
/* own_host: the request's Host, whose pages are the server's own. */
bool guard_origin(const struct server *s, const char *origin, const char *own_host);
/* On whose account a request goes: a hash of its API key, else of the address. */
uint64_t guard_account(const struct server *s, const struct http_head *head, const char *peer);

/* What the engine calls a session: a hash under a secret of the process; never 0. */
uint64_t guard_session(const struct server *s, const struct session_record *r);

/* Who asks, for what is kept: the same hash after a restart. Everyone on this machine without a key is one. */
void guard_who(const struct http_head *head, const char *peer, unsigned char *who);

/* --- call.c: from the body to acceptance, and the ends that are not answers --- */
struct call *call_new(struct server *s, struct http_conn *c, const struct http_head *head);
void call_begin(struct server *s, struct http_conn *c, const struct http_head *head,
                enum prepare_kind kind);
void call_prepared(struct server *s, struct worker_job *job);
void call_closed(void *arg, struct http_conn *c); /* http_ops.closed */
void call_retry(struct server *s);                /* cancels that are due */
/* Tell the client, end the reply, stop what still runs. */
void call_fail(struct call *call, const struct api_error *e);
void call_go_on(struct call *call); /* with the answers that have not begun */
int32_t call_cancel_id(struct server *s, const char *request_id); /* how many had that id */
void call_end_all(struct server *s, const char *why);
void call_free_if_over(struct call *call);
/* Nobody waits for it any more: what it holds comes back at once, or as soon as a worker or the scheduler is done with it. */
void call_abandon(struct call *call);
/* Give the job to the workers; the call fails where they have no room. */
void call_prepare(struct call *call, struct worker_job *job);
void call_extra_headers(const struct call *call, char *out, size_t n);
/* In any order, for call_resume.c: a call without a client; what its head says, once it is prepared; room for its legs; one leg and
 * its request; room and time for it (false: e). */
struct call *call_new_maker(struct call *reader);
/* A response that runs on for nobody's sake but its kept row's; who asks for it is only the first that looks on. */
struct call *call_new_run(const struct call *asker);
void call_describe(struct call *call);
void call_run(struct call *call); /* it is prepared and described: submit it, and begin its reply */
void call_add_legs(struct call *call);
void call_add_leg(struct call *call, int32_t index, int32_t prompt);
bool call_may_go(const struct call *call, struct api_error *e) MUST_CHECK;

/* --- call_answer.c: from acceptance to the end of the reply --- */
void call_start(struct call *call);
void call_take_token(struct leg *leg, const struct sched_token *t);
void call_take_end(struct leg *leg, const struct sched_finished *f); /* the call is not freed */
/* The value of a query's parameter into out[n]; false: it is not there, or too long. Values that are escaped have no use here. */
bool call_query(const char *query, const char *name, char *out, size_t n);
void call_event(struct server *s, const struct sched_event *ev);
void call_drained(void *arg, struct http_conn *c); /* http_ops.drained */
void call_resume_if_empty(struct call *call);
void call_keep_alive(struct server *s); /* an event on each stream that has been silent */

/* The last bytes are about to be written: the connection is free for its next request. */
struct http_conn *call_let_go(struct call *call, enum call_outcome outcome);
/* Does anybody still want its answer? */
bool call_is_wanted(const struct call *call);

/* --- call_response.c: the Responses API: what runs, what is kept, who looks on --- */
/* The head says that it was prepared; the scheduler does not have it yet. */
void call_response_open(struct call *call);
void call_response_start(struct call *call);      /* accepted */
void call_response_send(struct call *call);       /* its log has grown, or it is over */
void call_response_keep_alive(struct call *call); /* its client has had nothing for long */
void call_response_resume(struct call *call);     /* its client can take more */
void call_response_fail(struct call *call,
                        const struct api_error *e); /* has_begun, or it waits to be stored */
void call_response_gone(
    struct call *call); /* nobody waits for it any more: those who look on are told */
/* Ask the store for what the request names. */
void call_response_load(struct call *call, struct worker_job *job);
void call_stored(struct server *s, struct store_job *job);
/* GET, DELETE and POST of /v1/responses/...; rest: what follows the last slash of that. */
void call_response_ask(struct server *s, struct http_conn *c, const struct http_head *head,
                       const char *rest);

/* Of a stream that begins behind an event (call->from). False: e. */
bool call_response_read_from(struct call *call, struct api_error *e);
/* The record of a response whose server is gone was looked for. */
void call_response_found(struct call *call, struct journal_job *job);

/* --- call_cache.c: kept histories --- */
void call_cache_flush(struct server *s, struct http_conn *c, const struct http_head *head,
                      const char *rest);
void call_cache_flushed(struct server *s, const struct sched_event *ev);

void call_session_flushed(struct call *call, bool is_durable); /* of one that saves */

/* --- call_session.c --- */
extern const struct dialect dialect_restored;
/* It is prepared: find or begin the session that it names. And its end. */
void call_session_open(struct call *call);
void call_session_close(struct call *call);
/* The leg's request is a turn of the call's session; and what the scheduler says of it. */
void call_session_leg(struct leg *leg, struct sched_request *r);
void call_session_event(struct leg *leg, const struct sched_event *ev);
void call_session_found(struct server *s, struct session_job *job);
/* GET of /admin/sessions; GET, DELETE and POST of what is below it. */
void call_session_list(struct server *s, struct http_conn *c, const struct http_head *head,
                       const char *rest);
void call_session_ask(struct server *s, struct http_conn *c, const struct http_head *head,
                      const char *rest);

/* --- call_resume.c: generations that outlive their connection and the process --- */
/* May the request have a record, or find one? Then it is looked for, and the job is taken over. */
bool call_resume_begin(struct call *call, struct worker_job *job, const struct http_head *head);
/* Prepared without a record, and it wants one (its disconnect says so): what is prepared is taken over. */
bool call_resume_adopt(struct call *call, struct worker_job *job, struct prepared *p);
void call_resume_prepared(struct call *maker, struct worker_job *job);
void call_resume_fail(struct call *maker, const struct api_error *e); /* its readers are told */
void call_resume_found(struct server *s, struct journal_job *job);
void call_resume_event(struct leg *leg, const struct sched_event *ev); /* of a maker's leg */
void call_resume_pump(struct call *call); /* a reader takes what there is; the call is not freed */
/* The events of the answer that stand in the server's `out` from `at` on get their ids; those that the client has had are taken out. is_end:
 * they are the answer's last. Nothing for a call that reads no generation. */
void call_resume_label(struct leg *leg, size_t at, bool is_end);
/* One place for each of n answers, between commas, or one for all; false: it is none. */
bool call_resume_read_places(const char *from, struct leg_place *out, int32_t n) MUST_CHECK;
/* A reader has gone: its connection closed, or it was told an error; or it was told all. */
void call_resume_leave(struct call *call, bool is_closed);
void call_resume_told(struct call *call);
void call_resume_unref(struct call *call); /* the call is being freed */
/* Go on with a record that was found: the call reads it. Or it is told why not. */
void call_resume_record(struct call *call, struct journal_job *found);
bool call_resume_look(struct call *call, const char *id, struct journal_job *job) MUST_CHECK;
void call_resume_tick(struct server *s); /* each second */
/* GET /v1/requests/ID/stream */
void call_resume_ask(struct server *s, struct http_conn *c, const struct http_head *head,
                     const char *rest);

/* --- leg.c: an answer's tokens to parts, and parts to the stream or to what the reply at the end needs --- */
/* index, prompt, call and id are set. */
void leg_init(struct leg *leg);
void leg_release(struct leg *leg);
void leg_add_id(struct leg *leg, int32_t id); /* of its next token */
/* Text before the answer, with the prompt's scores where they are to be told. */
void leg_show_prompt(struct leg *leg);
/* Show what the answer may show now, and all of it if it has ended. A stream's parts are appended to the server's `out`. */
void leg_show(struct leg *leg);
/* The answer as `end`, `close` and `whole` want it. Valid until the next call for this leg. False: it is over a limit. */
bool leg_choice(struct leg *leg, struct dialect_choice *out);

/* --- reply.c --- */
void reply_to_init(struct reply_to *to, const struct http_head *head); /* head may be NULL */
/* Send an error, or a body of status 200; extra holds further header lines, content_type NULL is JSON. */
void reply_error(struct http_conn *c, const struct reply_to *to, const struct api_error *e);
void reply_body(struct http_conn *c, const struct reply_to *to, const char *content_type,
                const char *extra, const struct buf *body);
/* Header lines that every reply has, and extra, into out[n]. */
void reply_headers(const struct reply_to *to, const char *extra, char *out, size_t n);

/* --- metrics.c --- */
void metrics_write_text(struct server *s, struct buf *out); /* Prometheus' text format, 0.0.4 */
void metrics_write_json(struct server *s, struct buf *out);

/* How long the step that runs now has been running, in microseconds; 0 = none runs. */
int64_t server_step_us(const struct server *s);
bool server_is_wedged(const struct server *s); /* it will hardly end any more */

/* 64 random bits. */
uint64_t server_random(void);

#endif
