/* Sessions: names, records and what damage does to them, files that a process may die over, and the table of those that are known. */
#include "base/fio.h"
#include "server/session_files.h"
#include "server/sessions.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* --- names --- */

static void names_are_letters_digits_and_some_signs(void **state)
{
    char out[LIMIT_SESSION_BYTES + 1], longest[LIMIT_SESSION_BYTES + 2];
    static const char *const fine[] = { "a", "A-b_c.d:e", "0", "sha256:x" };
    static const char *const bad[] = { "", " ", "a b", "a/b", "../x", "\xc3\xa4", "a\n", "a%" };
    for (size_t i = 0; i < ARRAY_LEN(fine); i++) {
        assert_true(session_name_is_fine(fine[i], strlen(fine[i])));
        session_name_of(fine[i], strlen(fine[i]), out);
        assert_string_equal(out, fine[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_false(session_name_is_fine(bad[i], strlen(bad[i])));
        session_name_of(bad[i], strlen(bad[i]), out);
        assert_true(session_name_is_fine(out, strlen(out)));
        assert_int_equal(strlen(out), 7 + 32);
    }
    assert_false(session_name_is_fine("a\0b", 3));
    memset(longest, 'x', sizeof(longest));
    assert_true(session_name_is_fine(longest, LIMIT_SESSION_BYTES));
    assert_false(session_name_is_fine(longest, LIMIT_SESSION_BYTES + 1));
}

/* --- records --- */

static int32_t ids_a[] = { 5, 0, 151935, 7 }, ids_b[] = { 9 };

static struct session_record record_of(const char *name)
{
    struct session_record r = { .created_s = 1700000000,
                                .saved_s = 1700000100,
                                .n_histories = 2,
                                .histories = { { ids_a, 4, 2 }, { ids_b, 1, 0 } } };
    memset(r.who, 3, sizeof(r.who));
    memset(r.salt, 4, sizeof(r.salt));
    snprintf(r.model, sizeof(r.model), "0123abcd");
    snprintf(r.name, sizeof(r.name), "%s", name);
    return r;
}

static void check_record(const struct session_record *r, const char *name)
{
    struct session_record want = record_of(name);
    assert_memory_equal(r->who, want.who, sizeof(want.who));
    assert_memory_equal(r->salt, want.salt, sizeof(want.salt));
    assert_string_equal(r->model, want.model);
    assert_string_equal(r->name, name);
    assert_int_equal(r->created_s, want.created_s);
    assert_int_equal(r->saved_s, want.saved_s);
    assert_int_equal(r->n_histories, 2);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(r->histories[i].n, want.histories[i].n);
        assert_int_equal(r->histories[i].cut, want.histories[i].cut);
        if (r->histories[i].ids)
            assert_memory_equal(r->histories[i].ids, want.histories[i].ids,
                                (size_t)want.histories[i].n * sizeof(int32_t));
    }
}

static void a_record_comes_back_and_damage_is_seen(void **state)
{
    struct session_record r = record_of("work"), got;
    struct buf data;
    struct err err;
    buf_init(&data, MEM_CAT_SERVER, 1 << 20);
    session_record_write(&r, &data);
    assert_int_equal(session_record_read(data.data, data.len, &got, &err), ERR_OK);
    check_record(&got, "work");
    session_record_release(&got);
    assert_true(data.len < SESSION_HEAD_BYTES);
    assert_int_equal(session_record_read_head(data.data, data.len, &got, &err), ERR_OK);
    check_record(&got, "work");
    assert_null(got.histories[0].ids);
    session_record_release(&got);
    for (size_t n = 0; n < data.len; n++) {
        assert_int_not_equal(session_record_read(data.data, n, &got, &err), ERR_OK);
        session_record_release(&got);
    }
    for (size_t i = 0; i < data.len * 8; i++) {
        data.data[i / 8] ^= (char)(1 << i % 8);
        assert_int_not_equal(session_record_read(data.data, data.len, &got, &err), ERR_OK);
        session_record_release(&got);
        data.data[i / 8] ^= (char)(1 << i % 8);
    }
    buf_add_char(&data, 0);
    assert_int_equal(session_record_read(data.data, data.len, &got, &err), ERR_INVALID);
    session_record_release(&got);
    data.data[7] = '2';
    assert_int_equal(session_record_read(data.data, data.len, &got, &err), ERR_UNSUPPORTED);
    session_record_release(&got);
    buf_release(&data);
}

static void everything_that_parts_sessions_is_in_the_files_name(void **state)
{
    struct session_record r = record_of("work");
    char name[SESSION_FILE_BYTES], other[SESSION_FILE_BYTES];
    session_file_name(&r, name);
    r.saved_s++;
    r.n_histories = 0;
    session_file_name(&r, other);
    assert_string_equal(name, other);
    for (int i = 0; i < 4; i++) {
        r = record_of("work");
        r.who[31] ^= i == 0;
        r.salt[31] ^= i == 1;
        r.model[0] ^= i == 2;
        r.name[0] ^= i == 3;
        session_file_name(&r, other);
        assert_string_not_equal(name, other);
    }
}

/* --- files --- */

static char dir[64];

static int dir_make(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/t_session.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int dir_remove(void **state)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

static void wake(void *arg)
{
}

/* Do it, and have the job back. */
static struct session_job *ask(enum session_op op, const char *name)
{
    struct session_files *f = session_files_new(dir, wake, NULL);
    struct session_job *job = session_job_new(op), *done;
    struct session_record like = record_of(name);
    if (op == SESSION_OP_SAVE) {
        assert_true(session_record_copy(&like, &job->record));
    } else {
        job->record = like;
        job->record.n_histories = 0;
    }
    assert_int_equal(session_files_submit(f, job), ERR_OK);
    while (!(done = session_files_next(f)))
        usleep(100);
    session_files_free(f);
    return done;
}

static enum err_code ask_code(enum session_op op, const char *name)
{
    struct session_job *job = ask(op, name);
    enum err_code code = job->err.code;
    if (code == ERR_OK && op == SESSION_OP_LOAD)
        check_record(&job->record, name);
    session_job_free(job);
    return code;
}

static void records_are_saved_listed_loaded_and_deleted(void **state)
{
    assert_int_equal(ask_code(SESSION_OP_LOAD, "a"), ERR_NOT_FOUND);
    assert_int_equal(ask_code(SESSION_OP_SAVE, "b"), ERR_OK);
    assert_int_equal(ask_code(SESSION_OP_SAVE, "a"), ERR_OK);
    assert_int_equal(ask_code(SESSION_OP_SAVE, "a"), ERR_OK);
    assert_int_equal(ask_code(SESSION_OP_LOAD, "a"), ERR_OK);
    struct session_job *job = ask(SESSION_OP_LIST, "");
    assert_int_equal(job->n_heads, 2);
    check_record(&job->heads[0], "a");
    check_record(&job->heads[1], "b");
    session_job_free(job);
    assert_int_equal(ask_code(SESSION_OP_DELETE, "a"), ERR_OK);
    assert_int_equal(ask_code(SESSION_OP_DELETE, "a"), ERR_NOT_FOUND);
    assert_int_equal(ask_code(SESSION_OP_LOAD, "a"), ERR_NOT_FOUND);
    assert_int_equal(ask_code(SESSION_OP_LOAD, "b"), ERR_OK);
}

static void as_many_are_saved_as_may_be(void **state)
{
    char name[16];
    for (int i = 0; i < LIMIT_SESSIONS_SAVED; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        assert_int_equal(ask_code(SESSION_OP_SAVE, name), ERR_OK);
    }
    assert_int_equal(ask_code(SESSION_OP_SAVE, "more"), ERR_FULL);
    assert_int_equal(ask_code(SESSION_OP_SAVE, "s0"), ERR_OK); /* in its own place */
    assert_int_equal(ask_code(SESSION_OP_DELETE, "s1"), ERR_OK);
    assert_int_equal(ask_code(SESSION_OP_SAVE, "more"), ERR_OK);
}

struct fault {
    _Atomic int n;
    int at, why; /* why 0: the process ends there */
};

static int fault_hook(void *arg, enum fio_op op, const char *path)
{
    struct fault *f = arg;
    if (++f->n != f->at)
        return 0;
    if (f->why == 0)
        _exit(9);
    return f->why;
}

/* What was there before is whole, or what was saved is. */
static void any_call_may_fail_or_be_the_last(void **state)
{
    static const int whys[] = { 0, EIO, ENOSPC };
    int n_died = 0, n_failed = 0;
    for (int at = 1; at < 25; at++)
        for (size_t w = 0; w < ARRAY_LEN(whys); w++) {
            int status;
            pid_t pid = fork();
            assert_true(pid >= 0);
            if (pid == 0) {
                struct fault f = { .at = at, .why = whys[w] };
                fio_set_hook(fault_hook, &f);
                enum err_code code = ask_code(SESSION_OP_SAVE, "x");
                _exit(code != ERR_OK);
            }
            assert_int_equal(waitpid(pid, &status, 0), pid);
            n_died += WEXITSTATUS(status) == 9;
            n_failed += WEXITSTATUS(status) == 1;
            enum err_code code = ask_code(SESSION_OP_LOAD, "x");
            assert_true(code == ERR_OK || (code == ERR_NOT_FOUND && WEXITSTATUS(status) != 0));
            assert_int_equal(ask_code(SESSION_OP_SAVE, "x"), ERR_OK);
            assert_int_equal(ask_code(SESSION_OP_LOAD, "x"), ERR_OK);
            if (at % 2)
                assert_int_equal(ask_code(SESSION_OP_DELETE, "x"), ERR_OK);
        }
    assert_in_range(n_died, 5, 24);
    assert_in_range(n_failed, 10, 48);
}

/* --- the table --- */

static struct session *add(struct sessions *s, int who, const char *name)
{
    struct session_record like = record_of(name);
    memset(like.who, who, sizeof(like.who));
    struct session *victim;
    while ((victim = sessions_victim(s, like.who, true)) != NULL)
        sessions_remove(s, victim);
    return sessions_add(s, &like, 1, 100);
}

static void one_key_has_half_of_the_table(void **state)
{
    struct sessions s = { 0 };
    char name[16];
    struct session_record like = record_of("keep");
    memset(like.who, 1, sizeof(like.who));
    struct session *keep = add(&s, 1, "keep");
    sessions_ref(&s, keep, 100);
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        add(&s, 2, name);
    }
    assert_int_equal(s.n, LIMIT_SESSIONS / 2 + 1);
    assert_ptr_equal(sessions_find(&s, &like), keep);
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        add(&s, 3 + i % 7, name);
    }
    assert_int_equal(s.n, LIMIT_SESSIONS);
    assert_ptr_equal(sessions_find(&s, &like), keep); /* a call has it */
    sessions_remove(&s, keep);
    assert_null(sessions_find(&s, &like));
    assert_true(sessions_unref(&s, keep)); /* the last of it */
    sessions_release(&s);
}

static void histories_take_their_own_place(void **state)
{
    struct sessions s = { 0 };
    struct session *x = add(&s, 1, "x");
    int32_t ids[400], other[400];
    for (int i = 0; i < 400; i++) {
        ids[i] = i;
        other[i] = -i;
    }
    sessions_put(&s, x, ids, 100, 80);
    sessions_put(&s, x, ids, 300, 280);
    assert_int_equal(x->record.n_histories, 1);
    assert_int_equal(x->record.histories[0].n, 300);
    sessions_put(&s, x, ids, 200, 0); /* an older turn again says nothing new */
    assert_int_equal(x->record.histories[0].n, 300);
    ids[290] = 7; /* in the last 64: the reply came back otherwise */
    sessions_put(&s, x, ids, 350, 0);
    assert_int_equal(x->record.n_histories, 1);
    ids[100] = 7;
    sessions_put(&s, x, ids, 350, 340);
    assert_int_equal(x->record.n_histories, 2);
    assert_int_equal(x->record.histories[0].cut, 340);
    for (int i = 0; i < 5; i++) {
        other[1] = i;
        sessions_put(&s, x, other, 128, 0);
    }
    assert_int_equal(x->record.n_histories, SESSION_BRANCHES);
    assert_int_equal(s.bytes, 4 * 128 * sizeof(int32_t));
    sessions_remove(&s, x);
    assert_int_equal(s.bytes, 0);
    sessions_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_letters_digits_and_some_signs),
        cmocka_unit_test(a_record_comes_back_and_damage_is_seen),
        cmocka_unit_test(everything_that_parts_sessions_is_in_the_files_name),
        cmocka_unit_test_setup_teardown(records_are_saved_listed_loaded_and_deleted, dir_make,
                                        dir_remove),
        cmocka_unit_test_setup_teardown(as_many_are_saved_as_may_be, dir_make, dir_remove),
        cmocka_unit_test_setup_teardown(any_call_may_fail_or_be_the_last, dir_make, dir_remove),
        cmocka_unit_test(one_key_has_half_of_the_table),
        cmocka_unit_test(histories_take_their_own_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
