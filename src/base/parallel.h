/* parallel.h - one loop cut into ranges over short-lived threads; for work of milliseconds and more, outside any server. */
#ifndef PLUMB_BASE_PARALLEL_H
#define PLUMB_BASE_PARALLEL_H

#include <stdint.h>

#define PARALLEL_THREADS_MAX 64

/* fn(ctx, i0, i1) for ranges that cover [0, n) once each. The caller's thread takes one; a thread that cannot be made costs time
 * only. Returns when all are done. */
void parallel_for(int threads, int64_t n, void (*fn)(void *ctx, int64_t i0, int64_t i1), void *ctx);

#endif
