/* The benchmark's parts that are no op: a fork and join of the thread pool, and the speed of repacking weights. */
#include "check.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOBS       20000
#define JOBS_AWAKE 200 /* after a rest, so that a futex wakes the others */

static double now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void nothing(void *ctx, int64_t chunk, int thread)
{
}

static void fork_join(struct pool *p, const char *what, int jobs, int64_t rest_ns)
{
    double *ns = mem_alloc(MEM_CAT_SCRATCH, (size_t)jobs * sizeof(*ns));
    for (int i = 0; i < jobs; i++) {
        if (rest_ns)
            nanosleep(&(struct timespec){ .tv_nsec = rest_ns }, NULL);
        double t = now_ns(CLOCK_MONOTONIC);
        pool_run(p, nothing, NULL, pool_threads(p));
        ns[i] = now_ns(CLOCK_MONOTONIC) - t;
    }
    qsort(ns, (size_t)jobs, sizeof(*ns), by_size);
    printf("pool/%d %s: p50 %.0f ns, p90 %.0f, p99 %.0f, most %.0f\n", pool_threads(p), what,
           ns[jobs / 2], ns[jobs * 9 / 10], ns[jobs * 99 / 100], ns[jobs - 1]);
    mem_free(MEM_CAT_SCRATCH, ns);
}

static void bench_fork_join(int threads)
{
    struct pool *p;
    struct err err = { 0 };
    if (pool_new(threads, &p, &err) != ERR_OK) {
        printf("pool: %s\n", err.text);
        exit(1);
    }
    fork_join(p, "fork and join", JOBS, 0);
    fork_join(p, "fork and join, threads asleep", JOBS_AWAKE, 1000000);
    pool_free(p);
}

/* One thread's own time, best of 20: the pages that the system gives meanwhile are left out as far as that goes. */
static void bench_pack_type(struct backend *be, enum dtype type)
{
    const int64_t out = 1536, in = 1536;
    uint8_t *data = check_weight(type, out, in);
    double best = 1e30, bytes = (double)(dtype_row_bytes(type, in) * (size_t)out);
    struct weight *keep =
        check_pack(be, type, out, in, data, NULL); /* else the last one's end empties the memory */
    for (int i = 0; i < 20; i++) {
        double t = now_ns(CLOCK_THREAD_CPUTIME_ID);
        struct weight *w = check_pack(be, type, out, in, data, NULL);
        t = now_ns(CLOCK_THREAD_CPUTIME_ID) - t;
        best = t < best ? t : best;
        be->ops->unpack_free(be, w);
    }
    printf("pack/%s/1 [%d][%d]: %.2f GB/s of the file's bytes\n", dtype_info(type)->name, (int)out,
           (int)in, bytes / best);
    be->ops->unpack_free(be, keep);
    mem_free(MEM_CAT_WEIGHTS, data);
}

void check_bench_pool(const char *filter, int threads)
{
    static const enum dtype types[] = { DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                        DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_F16,  DTYPE_F32 };
    struct cpu_options o = { .threads = 1 };
    struct backend *be;
    struct err err = { 0 };
    if (!filter || strstr("pool", filter))
        bench_fork_join(threads ? threads : cpu_threads_default());
    if (filter && !strstr("pack", filter))
        return;
    if (cpu_backend_open(&o, &be, &err) != ERR_OK) {
        printf("open: %s\n", err.text);
        exit(1);
    }
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        bench_pack_type(be, types[i]);
    be->ops->close(be);
}
