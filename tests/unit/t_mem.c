#include "base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void counters_return_to_where_they_were(void **state)
{
    int64_t before = mem_bytes(MEM_CAT_SCRATCH);
    char *a = mem_alloc(MEM_CAT_SCRATCH, 1000);
    char *z = mem_alloc(MEM_CAT_SCRATCH, 0);
    char *s = mem_strndup(MEM_CAT_SCRATCH, "hello", 3);
    char *d = mem_strdup(MEM_CAT_SCRATCH, "hello");
    for (int i = 0; i < 1000; i++)
        assert_int_equal(a[i], 0);
    assert_true(mem_bytes(MEM_CAT_SCRATCH) >= before + 1010);
    a = mem_realloc(MEM_CAT_SCRATCH, a, 100000);
    assert_true(mem_bytes(MEM_CAT_SCRATCH) >= before + 100000);
    assert_string_equal(s, "hel");
    assert_string_equal(d, "hello");
    mem_free(MEM_CAT_SCRATCH, a);
    mem_free(MEM_CAT_SCRATCH, z);
    mem_free(MEM_CAT_SCRATCH, s);
    mem_free(MEM_CAT_SCRATCH, d);
    mem_free(MEM_CAT_SCRATCH, NULL);
    assert_int_equal(mem_bytes(MEM_CAT_SCRATCH), before);
    for (int c = 0; c < MEM_CAT_COUNT; c++)
        assert_non_null(mem_cat_name((enum mem_cat)c));
}

static void big_blocks_are_aligned_zeroed_and_counted(void **state)
{
    static const size_t sizes[] = { 0, 1, 4096, 4097, (2 << 20) - 1, 2 << 20, (5 << 20) + 3 };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        int64_t before = mem_bytes(MEM_CAT_WEIGHTS);
        char *p = mem_try_big(MEM_CAT_WEIGHTS, sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_true(mem_bytes(MEM_CAT_WEIGHTS) >= before + (int64_t)sizes[i]);
        if (sizes[i]) {
            assert_int_equal(p[0] | p[sizes[i] / 2] | p[sizes[i] - 1], 0);
            memset(p, 1, sizes[i]);
        }
        mem_free_big(MEM_CAT_WEIGHTS, p, sizes[i]);
        assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), before);
    }
    mem_free_big(MEM_CAT_WEIGHTS, NULL, 10);
}

static void what_cannot_be_had_is_null(void **state)
{
    assert_null(mem_try_array(MEM_CAT_BASE, SIZE_MAX / 2, 3));
    assert_null(mem_try_big(MEM_CAT_BASE, SIZE_MAX));
    void *p = NULL;
    mem_fail_nth(2);
    p = mem_try(MEM_CAT_BASE, 8);
    assert_non_null(p);
    assert_null(mem_try(MEM_CAT_BASE, 8));
    mem_free(MEM_CAT_BASE, p);
    mem_fail_nth(1);
    assert_null(mem_try_big(MEM_CAT_BASE, 8));
    mem_fail_nth(0);
}

static void an_arena_keeps_its_cap_and_its_zeroes(void **state)
{
    struct arena a;
    int64_t before = mem_bytes(MEM_CAT_REQUEST);
    arena_init(&a, MEM_CAT_REQUEST, 100000);
    for (int round = 0; round < 3; round++) {
        size_t sum = 0;
        for (size_t n = 1; n < 400; n++) {
            unsigned char *p = arena_alloc(&a, n);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(p[i], 0);
            memset(p, 0xAA, n);
            sum += n;
        }
        assert_true(a.used >= sum && a.used <= a.max);
        assert_null(arena_alloc(&a, 100000));
        assert_null(arena_alloc(&a, SIZE_MAX));
        char *s = arena_strndup(&a, "abcd", 2);
        assert_string_equal(s, "ab");
        arena_reset(&a);
        assert_int_equal(a.used, 0);
    }
    char *whole = arena_alloc(&a, 99984);
    assert_non_null(whole);
    arena_release(&a);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), before);
}

/* The guard aborts in debug builds; in release it only counts. */
static void allocating_in_a_step_is_a_bug(void **state)
{
    mem_guard_enter();
    mem_guard_enter();
    mem_guard_leave();
    mem_guard_leave();
    mem_free(MEM_CAT_BASE, mem_alloc(MEM_CAT_BASE, 8));
    mem_guard_enter();
    int depth = mem_guard_suspend();
    assert_int_equal(depth, 1);
    mem_free(MEM_CAT_BASE, mem_alloc(MEM_CAT_BASE, 8)); /* a tool may */
    mem_guard_resume(depth);
    mem_guard_leave();
#ifdef PLUMB_DEBUG
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr))
            _exit(3);
        mem_guard_enter();
        mem_free(MEM_CAT_BASE, mem_alloc(MEM_CAT_BASE, 8));
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#endif
}

static void *churn(void *arg)
{
    for (int i = 0; i < 5000; i++) {
        void *p = mem_alloc(MEM_CAT_SERVER, (size_t)i % 100);
        p = mem_realloc(MEM_CAT_SERVER, p, 200);
        mem_free(MEM_CAT_SERVER, p);
    }
    return arg;
}

static void counters_are_exact_across_threads(void **state)
{
    pthread_t threads[4];
    int64_t before = mem_bytes(MEM_CAT_SERVER);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(mem_bytes(MEM_CAT_SERVER), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_return_to_where_they_were),
        cmocka_unit_test(big_blocks_are_aligned_zeroed_and_counted),
        cmocka_unit_test(what_cannot_be_had_is_null),
        cmocka_unit_test(an_arena_keeps_its_cap_and_its_zeroes),
        cmocka_unit_test(allocating_in_a_step_is_a_bug),
        cmocka_unit_test(counters_are_exact_across_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
