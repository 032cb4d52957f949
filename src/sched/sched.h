/* sched.h - the engine thread: requests wait, share steps, and end; events say what became of them.
 *
 * Owns: the engine (made by `load` on the engine thread, freed there), every accepted request until its FINISHED event.
 * Does not know: text, JSON, tensors, connections.
 * Thread: the functions below may be called from any thread but sched_stop (once, when nobody else calls); events are for one
 * receiver. Between the threads stand two bounded queues, mail in and events out; nothing mutable is shared but atomics.
 * Invariants: (1) each accepted request gets exactly one FINISHED event, and no event after it; (2) a row is open in the engine
 *             iff its request is in the row list; (3) what the rows were promised of the cache is what they may use: a step never
 *             finds no memory; (4) a row that gave up its memory is not asked to do so again before 64 more tokens.
 *
 * Who goes first: lower priority numbers before higher ones; among equals the key that has had least service (tokens of prompts
 * and, doubly, of answers; Sheng et al., "Fairness in Serving Large Language Models", 2024), then the oldest. Where memory runs
 * out, the newest row of the last in that order waits, its ids are computed again later. */
#ifndef PLUMB_SCHED_SCHED_H
#define PLUMB_SCHED_SCHED_H

#include "base/histogram.h"
#include "engine/engine.h"

typedef uint64_t req_id; /* chosen by the caller; unique among its live requests */

/* A generation with its own copies of everything that the engine will read. */
struct sched_request {
    req_id id;
    struct engine_request engine;
    req_id
        leader; /* one of the same submission with the same prompt, computed once for both; its own id: none */
    uint64_t key;        /* on whose account: an API key's or an address's hash */
    int32_t priority;    /* lower goes first; 0 is usual */
    bool is_background;  /* starts when nothing else is there, and rests while something is */
    int64_t deadline_us; /* clock_us() at which it ends with ERR_TIMEOUT; 0 = none */
    uint64_t trace;      /* its track in the trace; 0 = not traced */
    /* private to sched/ from here */
    struct sched_request *next; /* in the waiting list */
    struct sched_account *account;
    uint64_t seq; /* order of arrival */
    int64_t submitted_us;
};

/* Deep copy of `from` in one block (the arrays that the engine fills stay the caller's; its grammar is referenced); leader is its own id, the rest 0.
 * NULL when there is no memory. Free with sched_request_free unless it was accepted. */
struct sched_request *sched_request_new(req_id id, const struct engine_request *from);
void sched_request_free(struct sched_request *r);

enum sched_event_kind {
    SCHED_EVENT_READY,    /* the model is loaded: requests are accepted */
    SCHED_EVENT_FAILED,   /* it could not be loaded: err; nothing will ever be accepted */
    SCHED_EVENT_TOKEN,    /* one emitted token */
    SCHED_EVENT_FINISHED, /* the last event of a request */
    SCHED_EVENT_FLUSHED,  /* a flush is over: all that was kept is durable, or not */
};

struct sched_token {
    struct engine_token token;
    int64_t text_safe; /* bytes of the answer that may be shown; see engine.h */
};

struct sched_finished {
    /* FINISH_ERROR: err says why; ERR_CANCELLED after sched_cancel or sched_stop, ERR_TIMEOUT at the deadline */
    enum finish finish;
    int32_t stop_index;
    int64_t text_safe;
    int32_t n_prompt,
        n_tokens;        /* taken from the prompt; of the answer, what it began with included */
    int32_t n_reasoning; /* of these, in a think span */
    int32_t n_shared;    /* prompt tokens that another row of the submission had computed; */
    int32_t n_cached;    /* that rows before it had: they were kept */
    int32_t n_preempted; /* times that it gave up its memory */
    struct engine_speculation speculation;
    int64_t queued_us, prefill_us, decode_us;
    struct err err;
};

struct sched_event {
    enum sched_event_kind kind;
    req_id id; /* TOKEN, FINISHED; FLUSHED: as sched_flush was given it */
    union {
        struct sched_token token;
        struct sched_finished finished;
        bool is_durable;
        struct err err; /* FAILED */
    };
};

struct sched_config {
    int32_t max_waiting;  /* requests accepted and not started */
    int64_t max_stall_us; /* longest time a decoding row may wait for another's prompt */
    int32_t n_events;     /* room of the event queue; the engine thread waits while it is full */
    /* On the engine thread, once. The engine belongs to the scheduler. */
    enum err_code (*load)(void *arg, struct engine **out, struct err *err);
    void *load_arg;
    /* On the engine thread: events are waiting. Must not block. May be NULL (a receiver that waits in sched_next_event). */
    void (*wake)(void *arg);
    void *wake_arg;
};

enum sched_histogram {                              /* seconds, but for the last */
                       SCHED_HISTOGRAM_QUEUE,       /* submission to start */
                       SCHED_HISTOGRAM_PREFILL,     /* start to first token */
                       SCHED_HISTOGRAM_DECODE,      /* first token to end */
                       SCHED_HISTOGRAM_FIRST_TOKEN, /* submission to first token */
                       SCHED_HISTOGRAM_INTER_TOKEN, /* between two tokens of a request */
                       SCHED_HISTOGRAM_REQUEST,     /* submission to end */
                       SCHED_HISTOGRAM_STEP,        /* one step */
                       SCHED_HISTOGRAM_MASK,        /* a grammar's masks of one row in a step */
                       SCHED_HISTOGRAM_STEP_ROWS,   /* requests in a step */
                       SCHED_HISTOGRAM_COUNT,
};

struct sched_stats {          /* a snapshot; each number by itself */
    int64_t waiting, running; /* requests now */
    int64_t paused;           /* of the running ones: their reader is slow */
    int64_t accepted, finished, cancelled, failed, expired; /* expired: by their deadline */
    int64_t refused;                                        /* the waiting line was full */
    int64_t preempted;                                      /* rows that gave up their memory */
    int64_t steps, prompt_tokens, tokens;                   /* taken and emitted since the start */
    int64_t shared_tokens,
        recomputed_tokens; /* not taken because shared; taken again after a preemption */
    int64_t cached_tokens; /* not taken because kept */
    int64_t drafted_tokens, accepted_tokens; /* guesses that steps have verified; that came true */
    int64_t last_step_us;
    struct engine_usage cache;
    struct engine_disk_stats disk;
    int64_t mended;     /* times that the engine's device was lost and opened anew */
    int64_t disk_waits; /* requests that waited for what was read from disk */
    struct histogram_snapshot histograms[SCHED_HISTOGRAM_COUNT];
    int64_t
        step_started_us; /* clock_us() of the step that runs now; 0 = none. A watchdog reads it */
};

struct sched;

/* Start the engine thread, which begins to load. Errors: ERR_IO - no thread. Stop with sched_stop. */
enum err_code sched_start(const struct sched_config *config, struct sched **out,
                          struct err *err) MUST_CHECK;

/* Hand over n requests, all or none. On success they belong to the scheduler, on failure to the caller.
 * Errors: ERR_FULL - the waiting line is full, come again later; ERR_STATE - loading, draining or stopped. */
enum err_code sched_submit(struct sched *s, struct sched_request *const *requests, int32_t n,
                           struct err *err) MUST_CHECK;

/* End the request wherever it is, between two steps at the latest. Unknown and finished ids are ignored.
 * Errors: ERR_FULL - no room in the mail queue right now, call again. */
enum err_code sched_cancel(struct sched *s, req_id id) MUST_CHECK;

/* A paused request keeps its row but takes no part in steps. Errors: as sched_cancel. */
enum err_code sched_pause(struct sched *s, req_id id, bool is_paused) MUST_CHECK;

/* Make all that is kept of finished prompts and answers durable; an event says when that is over. Errors: as sched_cancel. */
enum err_code sched_flush(struct sched *s, req_id id) MUST_CHECK;

/* What the session's turns have left is given up like anything else that is kept. Errors: as sched_cancel. */
enum err_code sched_unpin(struct sched *s, uint64_t session) MUST_CHECK;

/* The next event. timeout_us 0 = only if one is there (ERR_NOT_FOUND), else wait at most so long (ERR_TIMEOUT).
 * ERR_STATE after sched_stop began and all is read. */
enum err_code sched_next_event(struct sched *s, struct sched_event *out,
                               int64_t timeout_us) MUST_CHECK;

void sched_drain(struct sched *s); /* accept nothing more; what was accepted goes on */

/* Cancel everything, end the thread (after the step or load that runs now), free all. Events that are not read are dropped. */
void sched_stop(struct sched *s);

void sched_read_stats(const struct sched *s, struct sched_stats *out);

#endif
