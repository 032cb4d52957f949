/* A step asks nothing of the system but to wait for the other threads: once the model is loaded and the rows are open, a filter kills the
 * process at any system call but futex. (Sanitizers make calls of their own: there the filter is left out.) */
#include "engine_rows.h"
#include "tensor/ops.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROWS 3

static void allow_futex_only(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog prog = { .len = ARRAY_LEN(f), .filter = f };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog) != 0)
        _exit(3);
#endif
}

/* Each of the two threads waits here for the other: a thread that has not run yet would still make the calls of its start. */
static void meet(void *ctx, int64_t i)
{
    _Atomic int *n = ctx;
    atomic_fetch_add(n, 1);
    while (atomic_load(n) < 2)
        sched_yield();
}

static enum err_code step_all(struct tiny_engine *t, const row_id *rows, int32_t n)
{
    struct engine_work work[ROWS];
    struct engine_result results[ROWS];
    struct err err;
    for (int i = 0; i < ROWS; i++)
        work[i] = (struct engine_work){ rows[i], n };
    return t->engine->ops->step(t->engine, work, ROWS, results, &err);
}

/* In a child: prompts in chunks, then tokens, sampled with all that needs scratch. Exit status 0: all went well. */
static void run_filtered(const char *file, bool is_broken)
{
    struct tiny_engine t;
    int32_t ids[64];
    row_id rows[ROWS];
    tiny_engine_open(
        &t, &(struct tiny_config){ .file = file, .n_ctx = N_CTX, .max_rows = ROWS, .threads = 2 });
    for (int i = 0; i < ROWS; i++) {
        prompt_fill(ids, 40, 0, i + 1);
        struct engine_request req = request(ids, 40, 60);
        req.sample.temperature = 0.9f;
        req.sample.top_p = 0.9f;
        req.sample.repetition_penalty = 1.1f;
        req.sample.n_logprobs = 3;
        rows[i] = open_row(&t, &req);
        grow(&t, rows[i], 100);
    }
    enum err_code code = step_all(&t, rows, 8);
    _Atomic int n = 0;
    ops_parallel(t.be, meet, &n, 2);
    allow_futex_only();
    if (is_broken)
        getppid();
    for (int i = 0; i < 40 && !code; i++)
        code = step_all(&t, rows, 8);
    _exit(code ? 1 : 0);
}

static int status_of(const char *file, bool is_broken)
{
    int status = -1;
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        run_filtered(file, is_broken);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void steps_call_nothing_but_futex(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        assert_int_equal(status_of(files[i], false), 0);
}

static void the_filter_filters(void **state)
{
    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(WIFSIGNALED(status_of(files[0], true)));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_call_nothing_but_futex),
        cmocka_unit_test(the_filter_filters),
    };
    return cmocka_run_group_tests_name("step calls", tests, NULL, NULL);
}
