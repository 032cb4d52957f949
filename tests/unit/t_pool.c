/* Every chunk of every job runs exactly once, whatever the thread count and however short the jobs are. */
#include "kernels/cpu/pool.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CHUNKS 300

struct job {
    int n_threads;
    int64_t n;
    int32_t count[CHUNKS];
    int32_t bad_thread;
};

static void count_chunk(void *ctx, int64_t chunk, int thread)
{
    struct job *j = ctx;
    j->count[chunk]++; /* a chunk is one thread's alone; tsan would see it if not */
    if (thread < 0 || thread >= j->n_threads)
        __atomic_store_n(&j->bad_thread, 1, __ATOMIC_RELAXED);
}

static void run_jobs(int n_threads, int jobs, int rest_us)
{
    struct pool *p = NULL;
    struct err err = { 0 };
    assert_int_equal(pool_new(n_threads, &p, &err), ERR_OK);
    assert_int_equal(pool_threads(p), n_threads);
    for (int i = 0; i < jobs; i++) {
        struct job j = { .n_threads = n_threads, .n = i % CHUNKS };
        pool_run(p, count_chunk, &j, j.n);
        for (int c = 0; c < CHUNKS; c++)
            assert_int_equal(j.count[c], c < j.n);
        assert_int_equal(j.bad_thread, 0);
        if (rest_us && i % 16 == 0)
            usleep((useconds_t)rest_us); /* long enough that the workers sleep */
    }
    pool_free(p);
    assert_int_equal(mem_bytes(MEM_CAT_BASE), 0);
}

static void every_chunk_runs_once(void **state)
{
    (void)state;
    run_jobs(1, 400, 0);
    run_jobs(2, 4000, 0);
    run_jobs(5, 2000, 0);
}

static void sleeping_workers_wake(void **state)
{
    (void)state;
    run_jobs(2, 600, 2000);
    run_jobs(4, 600, 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chunk_runs_once),
        cmocka_unit_test(sleeping_workers_wake),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
