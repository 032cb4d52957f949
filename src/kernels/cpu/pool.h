/* pool.h - the threads of the CPU backend: fork, dynamic chunks, join.
 *
 * A job is n chunks of independent outputs; whoever is free takes the next one, so a core that is busy with something else
 * slows the job by no more than its share. The calling thread works too. Workers spin for about 50 us between jobs (a fork and
 * join then costs under 0.5 us; a futex wake costs 10) and sleep after that. Every thread runs with the default floating-point
 * environment: round to nearest, denormals as IEEE says.
 * Thread: one caller at a time. Allocation: none after pool_new. */
#ifndef PLUMB_KERNELS_CPU_POOL_H
#define PLUMB_KERNELS_CPU_POOL_H

#include "base/err.h"

#include <sched.h>
#include <stdint.h>

struct pool;

/* thread: 0 (the caller) .. n_threads - 1, for per-thread scratch. */
typedef void pool_fn(void *ctx, int64_t chunk, int thread);

/* n_threads >= 1 counts the caller. Errors: ERR_IO - a thread could not be started. */
enum err_code pool_new(int n_threads, struct pool **out, struct err *err) MUST_CHECK;
void pool_free(struct pool *p); /* NULL is fine */
int pool_threads(const struct pool *p);

/* Bind worker i to cores[i], where the system lets it. The caller, thread 0, stays free: it is not the pool's. */
void pool_bind(struct pool *p, const cpu_set_t *cores);

/* Run fn on chunks [0, n), n < 2^31; returns when all are done and their writes are visible. */
void pool_run(struct pool *p, pool_fn *fn, void *ctx, int64_t n);

/* Set the calling thread's floating-point environment as the ops need it. */
void pool_set_fp(void);

#endif
