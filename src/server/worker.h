/* worker.h - threads that prepare requests, so that a long prompt's JSON, template and tokens stall neither I/O nor the engine.
 *
 * Owns: a job from worker_submit to worker_next. Thread: the functions are called by the I/O thread; `wake` by the workers. */
#ifndef PLUMB_SERVER_WORKER_H
#define PLUMB_SERVER_WORKER_H

#include "server/prepare.h"

#include <stdatomic.h>

struct worker_job {
    void *owner; /* the I/O thread's; not looked at here */
    enum prepare_kind kind;
    struct buf body;
    uint64_t seed;
    _Atomic bool is_cancelled; /* set by the I/O thread: a job not begun is not begun */
    struct prepared *prepared; /* the result; NULL if cancelled */
};

struct worker_pool;

/* The context is copied when `ready` is called with it; no job may come before. */
struct worker_pool *worker_pool_new(int n_threads, int n_jobs, void (*wake)(void *arg), void *arg);
void worker_pool_ready(struct worker_pool *p, const struct prepare_context *ctx);

/* Errors: ERR_FULL - too many jobs; the job stays the caller's. */
enum err_code worker_submit(struct worker_pool *p, struct worker_job *job) MUST_CHECK;
struct worker_job *worker_next(struct worker_pool *p); /* one that is done, or NULL */
void worker_job_free(struct worker_job *job);
void worker_pool_free(struct worker_pool *p); /* jobs inside are dropped, the threads joined */

#endif
