/* Every chunk of every job runs exactly once, whatever the thread count and however short the jobs are. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

#include "base/mem.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
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

/* Each chunk waits for all of them: it takes as many threads. */
static void meet(void *ctx, int64_t chunk, int thread)
{
    struct job *j = ctx;
    __atomic_fetch_add(&j->count[0], 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&j->count[0], __ATOMIC_SEQ_CST) < j->n)
        sched_yield();
}

/* A job of few chunks wakes only so many, and a larger one behind it finds all. */
static void those_that_sleep_on_wake_for_a_larger_job(void **state)
{
    struct pool *p = NULL;
    struct err err = { 0 };
    (void)state;
    assert_int_equal(pool_new(6, &p, &err), ERR_OK);
    for (int i = 0; i < 60; i++) {
        for (int64_t n = 2; n <= 6; n += i % 2 ? 1 : 4) {
            struct job j = { .n = n };
            pool_run(p, meet, &j, n);
            assert_int_equal(j.count[0], n);
        }
        usleep(1000);
    }
    pool_free(p);
}

/* --- binding --- */

static bool is_same_set(const cpu_set_t *a, const cpu_set_t *b)
{
    return CPU_EQUAL(a, b) != 0;
}

/* Every CPU that is allowed is in exactly one core. */
static void cores_part_the_allowed_cpus(void **state)
{
    (void)state;
    static cpu_set_t cores[CPU_THREADS_MAX];
    cpu_set_t allowed, one, seen, both;
    CPU_ZERO(&seen);
    assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    int n = cpu_cores(cores, CPU_THREADS_MAX);
    assert_true(n >= 1);
    for (int i = 0; i < n; i++) {
        assert_true(CPU_COUNT(&cores[i]) > 0);
        CPU_AND(&both, &seen, &cores[i]);
        assert_int_equal(CPU_COUNT(&both), 0);
        CPU_OR(&seen, &seen, &cores[i]);
    }
    assert_true(is_same_set(&seen, &allowed));
    int cpu = 0;
    while (!CPU_ISSET(cpu, &allowed))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0); /* as taskset does */
    n = cpu_cores(cores, CPU_THREADS_MAX);
    assert_int_equal(cpu_threads_default(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
    assert_int_equal(n, 1);
    assert_true(is_same_set(&cores[0], &one));
}

/* n cores of `per` CPUs. */
static void lay_out(cpu_set_t *cores, int n, int per)
{
    for (int i = 0; i < n; i++) {
        CPU_ZERO(&cores[i]);
        for (int k = 0; k < per; k++)
            CPU_SET(i + k * n, &cores[i]);
    }
}

static void binding_only_where_it_does_no_harm(void **state)
{
    (void)state;
    cpu_set_t cores[8];
    lay_out(cores, 8, 2);
    assert_true(cpu_should_bind(8, cores, 8));
    assert_false(cpu_should_bind(4, cores, 8));  /* another program may take the same four */
    assert_false(cpu_should_bind(16, cores, 8)); /* fewer cores than threads */
    assert_false(cpu_should_bind(1, cores, 1));  /* the caller alone */
    assert_false(cpu_should_bind(2, cores, 0));  /* the system does not say */
    lay_out(cores, 8, 1);
    assert_false(cpu_should_bind(8, cores, 8));
    CPU_SET(9, &cores[3]); /* of one core two CPUs are allowed */
    assert_true(cpu_should_bind(8, cores, 8));
}

struct bound {
    const cpu_set_t *cores;
    int32_t by_worker, wrong;
};

static void look_where(void *ctx, int64_t chunk, int thread)
{
    struct bound *b = ctx;
    cpu_set_t now;
    if (thread > 0) {
        bool ok =
            sched_getaffinity(0, sizeof(now), &now) == 0 && is_same_set(&now, &b->cores[thread]);
        __atomic_fetch_add(ok ? &b->by_worker : &b->wrong, 1, __ATOMIC_RELAXED);
    }
    usleep(100);
}

static void workers_are_bound_and_the_caller_is_not(void **state)
{
    (void)state;
    cpu_set_t before, after, cores[2];
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    if (CPU_COUNT(&before) < 2) {
        print_message("skip: cpu-feature: one CPU only\n");
        skip();
    }
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&cores[1]);
    CPU_SET(cpu, &cores[1]);
    cores[0] = before;
    struct pool *p = NULL;
    struct err err = { 0 };
    struct bound b = { .cores = cores };
    assert_int_equal(pool_new(2, &p, &err), ERR_OK);
    pool_bind(p, cores);
    for (int i = 0; i < 200 && b.by_worker == 0; i++)
        pool_run(p, look_where, &b, 64);
    pool_free(p);
    assert_true(b.by_worker > 0);
    assert_int_equal(b.wrong, 0);
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_true(is_same_set(&before, &after));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chunk_runs_once),
        cmocka_unit_test(sleeping_workers_wake),
        cmocka_unit_test(those_that_sleep_on_wake_for_a_larger_job),
        cmocka_unit_test(cores_part_the_allowed_cpus),
        cmocka_unit_test(binding_only_where_it_does_no_harm),
        cmocka_unit_test(workers_are_bound_and_the_caller_is_not),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
