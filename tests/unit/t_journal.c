/* The journal: records come back, torn and damaged ones count up to the damage, and every failing or deadly call of the disk leaves records
 * that are prefixes of what was written. */
#include "base/clock.h"
#include "base/fio.h"
#include "server/journal_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_US 20000000

static char dir[64];
static const unsigned char me[JOURNAL_DIGEST_BYTES] = "me";

static int world_set(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/t_journal.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int world_unset(void **state)
{
    char command[128];
    fio_set_hook(NULL, NULL);
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

static void wake(void *arg)
{
}

static struct journal *open_journal(void)
{
    const struct journal_config config = { dir, 1 << 20, 1000, wake, NULL };
    return journal_new(&config);
}

static void name_of(const char *id, char name[JOURNAL_NAME_BYTES])
{
    journal_name(me, id, name);
}

/* --- a record of two answers, the second with 3 + 4 tokens and an end --- */

static void head_init(struct journal_head *h, int32_t n_logprobs)
{
    *h = (struct journal_head){ .id = "x",
                                .dialect = "chat",
                                .answer_id = "chatcmpl-1",
                                .fingerprint = "fp_1",
                                .identity = "w/1/cpu/f16",
                                .created_s = 1764000000,
                                .now_s = 1764000001,
                                .seed = 77,
                                .settings = { 1, 2, 3 },
                                .n_choices = 2,
                                .n_logprobs = n_logprobs };
    memcpy(h->who, me, sizeof(me));
}

static struct engine_token token_of(int32_t i)
{
    struct engine_token t = { .id = 100 + i, .logprob = -0.5f * (float)i, .n_top = 2 };
    t.top[0] = (struct engine_logprob){ 100 + i, -0.25f };
    t.top[1] = (struct engine_logprob){ 7, -3 };
    return t;
}

static void add_tokens(struct journal_job *job, int32_t choice, int32_t first, int32_t n,
                       int32_t n_logprobs)
{
    struct journal_tokens t;
    struct buf payload;
    journal_tokens_init(&t, n_logprobs);
    for (int32_t i = 0; i < first + n; i++) {
        struct engine_token token = token_of(i);
        journal_tokens_add(&t, &token);
    }
    buf_init(&payload, MEM_CAT_SERVER, 1 << 20);
    journal_write_tokens(choice, &t, first, n, &payload);
    journal_add_frame(job, 'T', &payload);
    buf_release(&payload);
    journal_tokens_release(&t);
}

static struct journal_job *job_of(enum journal_op op, const char *id)
{
    char name[JOURNAL_NAME_BYTES];
    name_of(id, name);
    return journal_job_new(op, name);
}

static void add_head(struct journal_job *job, int32_t n_logprobs)
{
    struct journal_head h;
    struct buf payload, body;
    head_init(&h, n_logprobs);
    buf_init(&payload, MEM_CAT_SERVER, 1 << 20);
    buf_init(&body, MEM_CAT_SERVER, 1 << 20);
    buf_add_str(&body, "{\"messages\":[]}");
    journal_write_head(&h, &body, &payload);
    journal_add_frame(job, 'H', &payload);
    buf_release(&payload);
    buf_release(&body);
}

static void add_end(struct journal_job *job, int32_t choice, int32_t n_tokens)
{
    struct sched_finished end = { .finish = FINISH_END,
                                  .n_tokens = n_tokens,
                                  .text_safe = 9,
                                  .n_prompt = 5,
                                  .n_cached = 4,
                                  .n_reasoning = 1 };
    struct buf payload;
    buf_init(&payload, MEM_CAT_SERVER, 1 << 20);
    journal_write_end(choice, &end, &payload);
    journal_add_frame(job, 'E', &payload);
    buf_release(&payload);
}

static void send(struct journal *j, struct journal_job *job)
{
    assert_int_equal(journal_submit(j, job), ERR_OK);
}

static void write_record(struct journal *j, const char *id, int32_t n_logprobs,
                         enum journal_op last)
{
    struct journal_job *job = job_of(JOURNAL_OP_BEGIN, id);
    add_head(job, n_logprobs);
    send(j, job);
    job = job_of(JOURNAL_OP_APPEND, id);
    add_tokens(job, 1, 0, 3, n_logprobs);
    job->is_synced = true;
    send(j, job);
    job = job_of(JOURNAL_OP_APPEND, id);
    add_tokens(job, 0, 0, 2, n_logprobs);
    add_tokens(job, 1, 3, 4, n_logprobs);
    add_end(job, 1, 7);
    send(j, job);
    send(j, job_of(last, id));
}

static struct journal_job *find(struct journal *j, const char *id)
{
    struct journal_job *job, *mine = job_of(JOURNAL_OP_FIND, id);
    int64_t end = clock_us() + WAIT_US;
    send(j, mine);
    while ((job = journal_next(j)) == NULL) {
        assert_true(clock_us() < end);
        usleep(100);
    }
    assert_ptr_equal(job, mine);
    return job;
}

/* What is there is a beginning of what was written. Returns the number of tokens. */
static int32_t check_record(const struct journal_record *r, int32_t n_logprobs)
{
    int32_t n = 0;
    assert_string_equal(r->head.id, "x");
    assert_string_equal(r->head.dialect, "chat");
    assert_int_equal(r->head.seed, 77);
    assert_int_equal(r->head.now_s, 1764000001);
    assert_int_equal(r->head.settings[2], 3);
    assert_string_equal(r->body.data, "{\"messages\":[]}");
    assert_int_equal(r->head.n_choices, 2);
    for (int32_t c = 0; c < 2; c++) {
        const struct journal_tokens *t = &r->choices[c].tokens;
        for (int32_t i = 0; i < t->n; i++) {
            struct engine_token got, want = token_of(i);
            journal_tokens_get(t, i, &got);
            assert_int_equal(got.id, want.id);
            if (n_logprobs < 0)
                continue;
            assert_true(got.logprob == want.logprob);
            assert_int_equal(got.n_top, want.n_top < n_logprobs ? want.n_top : n_logprobs);
            assert_memory_equal(got.top, want.top, sizeof(want.top[0]) * (size_t)got.n_top);
        }
        n += t->n;
    }
    assert_false(r->choices[0].is_over);
    if (r->choices[1].is_over) {
        assert_int_equal(r->choices[1].tokens.n, 7);
        assert_int_equal(r->choices[1].end.finish, FINISH_END);
        assert_int_equal(r->choices[1].end.n_cached, 4);
    }
    return n;
}

/* --- tests --- */

static void a_record_comes_back_after_a_restart(void **state)
{
    static const int32_t logprobs[] = { -1, 0, 2, 20 };
    for (size_t i = 0; i < ARRAY_LEN(logprobs); i++) {
        struct journal *j = open_journal();
        write_record(j, "x", logprobs[i], JOURNAL_OP_KEEP);
        journal_free(j);
        j = open_journal();
        struct journal_job *job = find(j, "x");
        assert_non_null(job->record);
        assert_int_equal(check_record(job->record, logprobs[i]), 9);
        assert_true(job->record->choices[1].is_over);
        journal_job_free(job);
        job = find(j, "y");
        assert_null(job->record);
        journal_job_free(job);
        send(j, job_of(JOURNAL_OP_REMOVE, "x"));
        job = find(j, "x");
        assert_null(job->record);
        journal_job_free(job);
        journal_free(j);
    }
}

static void a_record_goes_on_where_it_was_torn(void **state)
{
    char name[JOURNAL_NAME_BYTES], path[JOURNAL_PATH_BYTES];
    struct stat st;
    struct journal *j = open_journal();
    write_record(j, "x", 2, JOURNAL_OP_KEEP);
    journal_free(j);
    name_of("x", name);
    journal_path(dir, name, JOURNAL_SUFFIX, path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 5), 0); /* the end is torn */
    j = open_journal();
    struct journal_job *job = find(j, "x");
    assert_int_equal(check_record(job->record, 2), 9);
    assert_false(job->record->choices[1].is_over);
    struct journal_job *resume = job_of(JOURNAL_OP_RESUME, "x");
    resume->n_valid = job->record->n_valid;
    memcpy(resume->check, job->record->check, sizeof(resume->check));
    journal_job_free(job);
    send(j, resume);
    job = job_of(JOURNAL_OP_APPEND, "x");
    add_tokens(job, 0, 2, 3, 2);
    add_end(job, 1, 7);
    send(j, job);
    job = find(j, "x"); /* it is being written: what it says is in memory */
    assert_null(job->record);
    journal_job_free(job);
    send(j, job_of(JOURNAL_OP_KEEP, "x"));
    job = find(j, "x");
    assert_int_equal(check_record(job->record, 2), 12);
    assert_true(job->record->choices[1].is_over);
    journal_job_free(job);
    journal_free(j);
}

/* Any cut, and any flipped bit, of a record: it is refused or a beginning of what it was. */
static void any_damage_costs_what_is_behind_it(void **state)
{
    char name[JOURNAL_NAME_BYTES], path[JOURNAL_PATH_BYTES];
    struct journal_record r;
    struct err err;
    struct journal *j = open_journal();
    write_record(j, "x", 2, JOURNAL_OP_KEEP);
    journal_free(j);
    name_of("x", name);
    journal_path(dir, name, JOURNAL_SUFFIX, path);
    int fd = open(path, O_RDONLY);
    char data[4096];
    ssize_t n = read(fd, data, sizeof(data));
    close(fd);
    assert_in_range(n, 500, sizeof(data) - 1);
    for (ssize_t cut = 0; cut <= n; cut++) {
        if (journal_record_read(name, data, (size_t)cut, &r, &err) == ERR_OK) {
            assert_int_equal(check_record(&r, 2) == 9 && r.choices[1].is_over, cut == n);
            assert_true(r.n_valid <= (size_t)cut);
        }
        journal_record_release(&r);
    }
    for (ssize_t at = 0; at < n; at++) {
        data[at] ^= (char)(1 << at % 8);
        if (journal_record_read(name, data, (size_t)n, &r, &err) == ERR_OK) {
            (void)check_record(&r, 2);
            assert_true(r.n_valid <= (size_t)at);
        }
        journal_record_release(&r);
        data[at] ^= (char)(1 << at % 8);
    }
    name[0] ^= 1; /* another file's */
    assert_int_equal(journal_record_read(name, data, (size_t)n, &r, &err), ERR_INVALID);
    journal_record_release(&r);
    name[0] ^= 1;
    data[7] = '2';
    assert_int_equal(journal_record_read(name, data, (size_t)n, &r, &err), ERR_UNSUPPORTED);
    journal_record_release(&r);
}

struct fault {
    _Atomic int n;
    int at, why; /* why 0: the process ends there */
    bool is_lasting;
};

static int fault_hook(void *arg, enum fio_op op, const char *path)
{
    struct fault *f = arg;
    int n = ++f->n;
    if (n != f->at && !(f->is_lasting && n > f->at))
        return 0;
    if (f->why == 0)
        _exit(9);
    return f->why;
}

static void check_what_is_left(bool may_be_gone)
{
    struct journal *j = open_journal();
    struct journal_job *job = find(j, "x");
    if (job->record)
        (void)check_record(job->record, 2);
    else
        assert_true(may_be_gone);
    journal_job_free(job);
    journal_free(j);
}

static void each_call_of_the_disk_may_fail(void **state)
{
    static const int whys[] = { EIO, ENOSPC };
    for (int at = 1; at < 30; at++) {
        for (size_t w = 0; w < 2 * ARRAY_LEN(whys); w++) {
            struct fault f = { .at = at, .why = whys[w / 2], .is_lasting = w % 2 };
            fio_set_hook(fault_hook, &f);
            struct journal *j = open_journal();
            write_record(j, "x", 2, JOURNAL_OP_KEEP);
            journal_free(j);
            fio_set_hook(NULL, NULL);
            check_what_is_left(true);
            j = open_journal();
            send(j, job_of(JOURNAL_OP_REMOVE, "x"));
            journal_free(j);
        }
    }
}

static void the_process_may_die_at_each_call(void **state)
{
    int n_died = 0;
    for (int at = 1; at < 30; at++) {
        int status;
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct fault f = { .at = at };
            fio_set_hook(fault_hook, &f);
            struct journal *j = open_journal();
            write_record(j, "x", 2, JOURNAL_OP_KEEP);
            journal_free(j);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        n_died += WEXITSTATUS(status) == 9;
        check_what_is_left(WEXITSTATUS(status) == 9);
        struct journal *j = open_journal();
        write_record(j, "x", 2, JOURNAL_OP_KEEP); /* in the place of what is left */
        struct journal_job *job = find(j, "x");
        assert_int_equal(check_record(job->record, 2), 9);
        journal_job_free(job);
        send(j, job_of(JOURNAL_OP_REMOVE, "x"));
        journal_free(j);
    }
    assert_in_range(n_died, 8, 29);
}

static void another_process_that_writes_is_seen(void **state)
{
    int fds[2], status;
    char c;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct journal *j = open_journal();
        struct journal_job *job = job_of(JOURNAL_OP_BEGIN, "x");
        add_head(job, 2);
        (void)!journal_submit(j, job);
        journal_job_free(find(j, "y")); /* it was written */
        (void)!write(fds[1], "x", 1);
        usleep(10000000);
        _exit(1);
    }
    assert_int_equal(read(fds[0], &c, 1), 1);
    struct journal *j = open_journal();
    struct journal_job *job = find(j, "x");
    assert_null(job->record);
    assert_true(job->is_elsewhere);
    journal_job_free(job);
    kill(pid, 9);
    waitpid(pid, &status, 0);
    job = find(j, "x");
    assert_non_null(job->record);
    journal_job_free(job);
    journal_free(j);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_record_comes_back_after_a_restart, world_set,
                                        world_unset),
        cmocka_unit_test_setup_teardown(a_record_goes_on_where_it_was_torn, world_set, world_unset),
        cmocka_unit_test_setup_teardown(any_damage_costs_what_is_behind_it, world_set, world_unset),
        cmocka_unit_test_setup_teardown(each_call_of_the_disk_may_fail, world_set, world_unset),
        cmocka_unit_test_setup_teardown(the_process_may_die_at_each_call, world_set, world_unset),
        cmocka_unit_test_setup_teardown(another_process_that_writes_is_seen, world_set,
                                        world_unset),
    };
    return cmocka_run_group_tests_name("journal", tests, NULL, NULL);
}
