/* The store of responses: rows, owners, bounds, restarts, and files that are damaged, foreign, read-only or full. */
#include "base/clock.h"
#include "server/store_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_US 20000000
#define MAX     (1 << 20)
#define AGE     1000

static char dir[64];
static const unsigned char me[STORE_WHO_BYTES] = "me", other[STORE_WHO_BYTES] = "other";

static int world_set(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/t_store.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int world_unset(void **state)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

static void wake(void *arg)
{
    ++*(_Atomic int *)arg;
}

static _Atomic int n_wakes;

static struct store *open_store_at(const char *path, int64_t max_bytes)
{
    const struct store_config config = { path, max_bytes, AGE, wake, &n_wakes };
    return store_new(&config);
}

static struct store *open_store(void)
{
    return open_store_at(dir, MAX);
}

static struct store_job *wait_for(struct store *s)
{
    struct store_job *job;
    int64_t end = clock_us() + WAIT_US;
    while ((job = store_next(s)) == NULL) {
        assert_true(clock_us() < end);
        usleep(200);
    }
    return job;
}

static struct store_job *make_put(const unsigned char *who, const char *id, const char *previous,
                                  size_t log_bytes)
{
    struct store_job *job = store_job_new(STORE_OP_PUT, 1);
    struct store_row *r = &job->rows[0];
    memcpy(job->who, who, STORE_WHO_BYTES);
    snprintf(r->id, sizeof(r->id), "%s", id);
    snprintf(r->previous, sizeof(r->previous), "%s", previous);
    r->created_s = 1764000000;
    r->status = STORE_STATUS_OVER;
    buf_printf(&r->frame, "{\"frame\":\"%s\"}", id);
    buf_printf(&r->input, "[\"%s\"]", id);
    for (size_t i = 0; i < log_bytes; i++)
        buf_add_char(&r->log, (char)(i * 7)); /* NUL among them */
    buf_add_str(&r->outcome, "{}");
    return job;
}

/* Send a job and give its error. */
static enum err_code do_job(struct store *s, struct store_job *job, struct store_job **out)
{
    assert_int_equal(store_submit(s, job), ERR_OK);
    struct store_job *done = wait_for(s);
    assert_ptr_equal(done, job);
    enum err_code code = done->err.code;
    if (out)
        *out = done;
    else
        store_job_free(done);
    return code;
}

static enum err_code put(struct store *s, const unsigned char *who, const char *id,
                         const char *previous, size_t log_bytes)
{
    return do_job(s, make_put(who, id, previous, log_bytes), NULL);
}

static enum err_code ask(struct store *s, enum store_op op, const unsigned char *who,
                         const char *id, struct store_job **out)
{
    struct store_job *job = store_job_new(op, 0);
    memcpy(job->who, who, STORE_WHO_BYTES);
    snprintf(job->id, sizeof(job->id), "%s", id);
    return do_job(s, job, out);
}

static struct store_stats stats(const struct store *s)
{
    struct store_stats st;
    store_read_stats(s, &st);
    return st;
}

/* --- rows --- */

static void a_row_comes_back_after_a_restart(void **state)
{
    struct store_job *job;
    struct store *s = open_store();
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(put(s, me, "resp_1", "resp_0", 1000), ERR_OK);
    store_free(s);
    s = open_store();
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_1", &job), ERR_OK);
    const struct store_row *r = &job->rows[0];
    assert_string_equal(r->id, "resp_1");
    assert_string_equal(r->previous, "resp_0");
    assert_int_equal(r->created_s, 1764000000);
    assert_int_equal(r->status, STORE_STATUS_OVER);
    assert_string_equal(r->frame.data, "{\"frame\":\"resp_1\"}");
    assert_string_equal(r->input.data, "[\"resp_1\"]");
    assert_int_equal(r->log.len, 1000);
    assert_int_equal((unsigned char)r->log.data[999], (999 * 7) & 0xff);
    store_job_free(job);
    assert_int_equal(stats(s).rows, 1);
    store_free(s);
}

static void nothing_is_made_before_the_first_row(void **state)
{
    char path[128];
    struct store *s = open_store();
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_1", NULL), ERR_NOT_FOUND);
    store_free(s);
    snprintf(path, sizeof(path), "%s/" STORE_DB_NAME, dir);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void the_file_is_its_owners_alone(void **state)
{
    struct stat st;
    char path[128], sub[96];
    snprintf(sub, sizeof(sub), "%s/a/b", dir);
    struct store *s = open_store_at(sub, MAX);
    assert_int_equal(put(s, me, "resp_1", "", 10), ERR_OK);
    snprintf(path, sizeof(path), "%s/" STORE_DB_NAME, sub);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(sub, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    store_free(s);
}

static void nobody_else_finds_or_deletes_a_row(void **state)
{
    struct store *s = open_store();
    assert_int_equal(put(s, me, "resp_1", "", 10), ERR_OK);
    assert_int_equal(ask(s, STORE_OP_GET, other, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(ask(s, STORE_OP_CHAIN, other, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(ask(s, STORE_OP_DELETE, other, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_1", NULL), ERR_OK);
    assert_int_equal(ask(s, STORE_OP_DELETE, me, "resp_1", NULL), ERR_OK);
    assert_int_equal(ask(s, STORE_OP_DELETE, me, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(stats(s).rows, 0);
    assert_int_equal(stats(s).bytes, 0);
    store_free(s);
}

static void a_chain_comes_oldest_first_and_names_what_is_missing(void **state)
{
    struct store_job *job;
    struct store *s = open_store();
    assert_int_equal(put(s, me, "a", "", 10), ERR_OK);
    assert_int_equal(put(s, me, "b", "a", 10), ERR_OK);
    assert_int_equal(put(s, me, "c", "b", 10), ERR_OK);
    assert_int_equal(ask(s, STORE_OP_CHAIN, me, "c", &job), ERR_OK);
    assert_int_equal(job->n, 3);
    assert_string_equal(job->rows[0].id, "a");
    assert_string_equal(job->rows[2].id, "c");
    store_job_free(job);
    assert_int_equal(ask(s, STORE_OP_DELETE, me, "a", NULL), ERR_OK);
    assert_int_equal(ask(s, STORE_OP_CHAIN, me, "c", &job), ERR_NOT_FOUND);
    assert_string_equal(job->id, "a");
    store_job_free(job);
    store_free(s);
}

/* --- bounds --- */

static void the_least_recently_used_rows_make_room(void **state)
{
    char id[32];
    struct store *s = open_store_at(dir, 50000);
    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof(id), "resp_%02d", i);
        assert_int_equal(put(s, me, id, "", 5000), ERR_OK);
        assert_true(stats(s).bytes <= 50000);
    }
    assert_in_range(stats(s).rows, 5, 10);
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_00", NULL), ERR_NOT_FOUND);
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_39", NULL), ERR_OK);
    assert_int_equal(put(s, me, "large", "", 60000), ERR_UNSUPPORTED);
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_39", NULL), ERR_OK); /* none went for it */
    assert_int_equal(stats(s).is_on, 1);
    store_free(s);
}

/* Change the file as another program would; rc of SQLite. */
static int change(const char *sql)
{
    sqlite3 *db;
    char path[128];
    snprintf(path, sizeof(path), "%s/" STORE_DB_NAME, dir);
    int rc = sqlite3_open(path, &db);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    sqlite3_close(db);
    return rc;
}

static void an_old_row_is_gone(void **state)
{
    struct store *s = open_store();
    assert_int_equal(put(s, me, "old", "", 10), ERR_OK);
    assert_int_equal(put(s, me, "new", "", 10), ERR_OK);
    store_free(s);
    assert_int_equal(change("UPDATE response SET used=used-2*1000 WHERE id='old'"), SQLITE_OK);
    s = open_store();
    assert_int_equal(ask(s, STORE_OP_GET, me, "old", NULL), ERR_NOT_FOUND);
    assert_int_equal(ask(s, STORE_OP_GET, me, "new", NULL), ERR_OK);
    assert_int_equal(put(s, me, "newer", "", 10), ERR_OK);
    assert_int_equal(stats(s).rows, 2); /* the old one made room */
    store_free(s);
}

/* --- several processes, and dead ones --- */

static void put_running(struct store *s, const char *id)
{
    struct store_job *job = make_put(me, id, "", 10);
    job->rows[0].status = STORE_STATUS_RUNNING;
    assert_int_equal(do_job(s, job, NULL), ERR_OK);
}

static bool is_orphan(struct store *s, const char *id)
{
    struct store_job *job;
    assert_int_equal(ask(s, STORE_OP_GET, me, id, &job), ERR_OK);
    bool is = job->rows[0].is_orphan;
    assert_int_equal(job->rows[0].status, STORE_STATUS_RUNNING);
    store_job_free(job);
    return is;
}

static void what_ran_in_a_dead_process_is_an_orphan(void **state)
{
    struct store *a = open_store(), *b = open_store();
    put_running(a, "of_a");
    put_running(b, "of_b");
    assert_false(is_orphan(a, "of_a"));
    assert_false(is_orphan(a, "of_b"));
    assert_false(is_orphan(b, "of_a"));
    store_free(b);
    assert_true(is_orphan(a, "of_b"));
    store_free(a);
    a = open_store();
    assert_true(is_orphan(a, "of_a"));
    store_free(a);
}

static void two_stores_share_a_directory(void **state)
{
    struct store *a = open_store(), *b = open_store();
    char id[32];
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof(id), "resp_%d", i);
        assert_int_equal(put(i % 2 ? a : b, me, id, "", 100), ERR_OK);
        assert_int_equal(ask(i % 2 ? b : a, STORE_OP_GET, me, id, NULL), ERR_OK);
    }
    assert_int_equal(put(a, me, "last", "", 1), ERR_OK);
    assert_int_equal(stats(a).rows, 21);
    store_free(a);
    store_free(b);
}

/* --- damage --- */

static int n_moved(void)
{
    char command[128];
    snprintf(command, sizeof(command), "exit $(ls '%s' | grep -c 'damaged-[0-9]*[a-z]$')", dir);
    return WEXITSTATUS(system(command));
}

static void write_at(long at, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/" STORE_DB_NAME, dir);
    FILE *f = fopen(path, at < 0 ? "wb" : "r+b");
    assert_non_null(f);
    fseek(f, at < 0 ? 0 : at, SEEK_SET);
    for (int i = 0; i < 64; i++)
        fputs(text, f);
    fclose(f);
}

static void check_begun_anew(void)
{
    struct store *s = open_store();
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(put(s, me, "resp_2", "", 100), ERR_OK);
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_2", NULL), ERR_OK);
    assert_int_equal(stats(s).is_on, 1);
    store_free(s);
    assert_int_equal(n_moved(), 1);
}

static void a_file_of_garbage_is_moved_aside(void **state)
{
    write_at(-1, "this is no database at all, whatever its name says; ");
    check_begun_anew();
}

static void a_foreign_database_is_moved_aside_unchanged(void **state)
{
    char path[192];
    sqlite3 *db;
    int64_t n = 0;
    sqlite3_stmt *st;
    assert_int_equal(change("CREATE TABLE cats(name); INSERT INTO cats VALUES('Mia')"), SQLITE_OK);
    check_begun_anew();
    snprintf(path, sizeof(path), "mv '%s'/*damaged-*[a-z] '%s/foreign'", dir, dir);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof(path), "%s/foreign", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM cats", -1, &st, NULL), SQLITE_OK);
    if (sqlite3_step(st) == SQLITE_ROW)
        n = sqlite3_column_int64(st, 0);
    assert_int_equal(n, 1);
    sqlite3_finalize(st);
    sqlite3_close(db);
}

static void a_newer_version_is_moved_aside(void **state)
{
    struct store *s = open_store();
    assert_int_equal(put(s, me, "resp_1", "", 100), ERR_OK);
    store_free(s);
    assert_int_equal(change("PRAGMA user_version=2"), SQLITE_OK);
    check_begun_anew();
}

static void damage_within_the_file_is_found(void **state)
{
    struct store *s = open_store();
    for (int i = 0; i < 20; i++) {
        char id[32];
        snprintf(id, sizeof(id), "resp_%d", i);
        assert_int_equal(put(s, me, id, "", 3000), ERR_OK);
    }
    store_free(s);
    for (long at = 4096; at < 12 * 4096; at += 4096)
        write_at(at, "\x11\x22\x33garbage");
    check_begun_anew();
}

static void a_row_whose_bytes_changed_is_lost(void **state)
{
    struct store *s = open_store();
    assert_int_equal(put(s, me, "resp_1", "", 100), ERR_OK);
    assert_int_equal(put(s, me, "resp_2", "", 100), ERR_OK);
    store_free(s);
    assert_int_equal(change("UPDATE response SET input='[1]' WHERE id='resp_1'"), SQLITE_OK);
    s = open_store();
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_2", NULL), ERR_OK);
    assert_int_equal(n_moved(), 0);
    store_free(s);
}

/* --- disks that cannot be written --- */

static void a_place_that_cannot_be_written_switches_the_store_off(void **state)
{
    struct store *s = open_store_at("/proc/self/no-such-place", MAX);
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_1", NULL), ERR_NOT_FOUND);
    assert_int_equal(put(s, me, "resp_1", "", 100), ERR_IO);
    assert_int_equal(stats(s).is_on, 0);
    assert_int_equal(put(s, me, "resp_1", "", 100), ERR_STATE); /* not tried again at once */
    assert_int_equal(stats(s).losses, 2);
    store_free(s);
}

/* In a process of its own, whose files may not grow: as good as a full disk. */
static void full_disk(void)
{
    const struct rlimit small = { 200 << 10, 200 << 10 };
    char id[32];
    enum err_code code = ERR_OK;
    int n = 0;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &small) != 0)
        _exit(10);
    struct store *s = open_store();
    for (; n < 100 && code == ERR_OK; n++) {
        snprintf(id, sizeof(id), "resp_%d", n);
        code = put(s, me, id, "", 8000);
    }
    bool is_as_told = n > 2 && n < 100 && (code == ERR_IO || code == ERR_FULL) && !stats(s).is_on &&
                      stats(s).losses == 1;
    store_free(s);
    _exit(is_as_told ? 0 : 11);
}

static void a_full_disk_switches_the_store_off(void **state)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        full_disk();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    struct store *s = open_store(); /* what was kept before is whole */
    assert_int_equal(ask(s, STORE_OP_GET, me, "resp_0", NULL), ERR_OK);
    assert_int_equal(put(s, me, "new", "", 100), ERR_OK);
    store_free(s);
    assert_int_equal(n_moved(), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, world_set, world_unset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_row_comes_back_after_a_restart),
        TEST(nothing_is_made_before_the_first_row),
        TEST(the_file_is_its_owners_alone),
        TEST(nobody_else_finds_or_deletes_a_row),
        TEST(a_chain_comes_oldest_first_and_names_what_is_missing),
        TEST(the_least_recently_used_rows_make_room),
        TEST(an_old_row_is_gone),
        TEST(what_ran_in_a_dead_process_is_an_orphan),
        TEST(two_stores_share_a_directory),
        TEST(a_file_of_garbage_is_moved_aside),
        TEST(a_foreign_database_is_moved_aside_unchanged),
        TEST(a_newer_version_is_moved_aside),
        TEST(damage_within_the_file_is_found),
        TEST(a_row_whose_bytes_changed_is_lost),
        TEST(a_place_that_cannot_be_written_switches_the_store_off),
        TEST(a_full_disk_switches_the_store_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
