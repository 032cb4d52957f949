/* worker.h - threads that prepare requests, so that a long prompt's JSON, template and tokens stall neither I/O nor the engine.
 *
 * Each class of work has its own bounded line and its own slots (threads), so that a class that is busy never holds up another,
 * and none waits for a generation.
 * Owns: a job from worker_submit to worker_next or a worker_cancel that says so. Thread: the functions are called by the I/O
 * thread (worker_read_stats by any); `prepare` and `wake` by the workers. Lock: one mutex guards lines and results. */
#ifndef PLUMB_SERVER_WORKER_H
#define PLUMB_SERVER_WORKER_H

#include "server/prepare.h"

#include <stdatomic.h>

enum worker_class { /* what a job needs beside its text */
                    WORKER_CLASS_TEXT,
                    WORKER_CLASS_GRAMMAR,
                    WORKER_CLASS_MEDIA,
                    WORKER_CLASS_COUNT,
};
const char *worker_class_name(enum worker_class c);

struct worker_job {
    void *owner; /* the I/O thread's; not looked at here */
    enum worker_class class;
    enum prepare_kind kind;
    struct buf body;
    bool keeps_body;  /* set by `prepare`: the body is needed afterwards */
    bool is_recorded; /* a record may be made of it: body and time are to be kept */
    int64_t now_s;    /* is_recorded: the time for templates; 0 = set by `prepare` */
    char session[LIMIT_SESSION_BYTES + 1]; /* as in struct prepare_input; "" = none */
    char id[STORE_ID_BYTES];               /* as in struct prepare_input, and the next two */
    struct store_job *history;             /* the job's */
    struct prepare_list list;
    uint64_t seed;
    uint64_t trace;            /* track; 0 = none */
    _Atomic bool is_cancelled; /* set by worker_cancel: `prepare` may end early */
    struct prepared *prepared; /* the result; NULL if cancelled */
    /* private to worker.c from here */
    struct worker_job *next;
    int64_t submitted_us;
};

struct worker_config {
    int slots[WORKER_CLASS_COUNT];                      /* 1..LIMIT_PREP_SLOTS threads each */
    int max_queued;                                     /* jobs of a class that wait for a slot */
    void (*prepare)(void *arg, struct worker_job *job); /* fills job->prepared */
    void *prepare_arg;
    void (*wake)(void *arg); /* a job is done: worker_next has it */
    void *wake_arg;
};

struct worker_stats { /* of a class, each number by itself */
    int64_t slots, queued, running, done, cancelled, refused;
};

struct worker_pool;

/* Jobs may be submitted at once; they start with worker_pool_start (once: what `prepare` reads is complete from then on). */
struct worker_pool *worker_pool_new(const struct worker_config *config);
void worker_pool_start(struct worker_pool *p);
void worker_pool_free(struct worker_pool *p); /* jobs inside are dropped, the threads joined */

/* Errors: ERR_FULL - too many jobs of its class wait; the job stays the caller's. */
enum err_code worker_submit(struct worker_pool *p, struct worker_job *job) MUST_CHECK;
/* End a job that worker_next has not given back. True: it had not begun, its place is free and it is the caller's again. False: it
 * is at work or done, and comes back by worker_next, with or without a result. */
bool worker_cancel(struct worker_pool *p, struct worker_job *job) MUST_CHECK;
struct worker_job *worker_next(struct worker_pool *p); /* one that is done, or NULL */
void worker_job_free(struct worker_job *job);

void worker_read_stats(const struct worker_pool *p, enum worker_class c, struct worker_stats *out);

#endif
