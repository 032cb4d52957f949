/* Kept histories on disk, through the engine: a new process begins where the old one ended, with the same answers. */
#include "engine_rows.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/tier_file.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];

static int setup(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/t_engine_disk.XXXXXX");
    return mkdtemp(dir) ? 0 : 1;
}

static int teardown(void **state)
{
    char command[128];
    fio_set_hook(NULL, NULL);
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

static struct tiny_config config_of(const char *file)
{
    return (struct tiny_config){
        .file = file, .n_ctx = N_CTX, .max_rows = 4, .keep_bytes = RUNNER_KEEP_ALL, .disk_dir = dir
    };
}

/* Turns without steps until the row waits for the disk no more. */
static void fetch_wait(struct tiny_engine *t, row_id row)
{
    for (int i = 0; i < 20000 && t->engine->ops->is_fetching(t->engine, row); i++) {
        clock_sleep_us(500);
        t->engine->ops->tend(t->engine);
        tiny_engine_check(t);
    }
    assert_false(t->engine->ops->is_fetching(t->engine, row));
}

/* What a row with these ids begins with once the disk was asked. */
static int32_t found(struct tiny_engine *t, const struct engine_request *req, bool *was_read)
{
    struct engine_disk_stats before, after;
    row_id row = open_row(t, req);
    t->engine->ops->disk_stats(t->engine, &before);
    t->engine->ops->fetch(t->engine, row);
    fetch_wait(t, row);
    t->engine->ops->disk_stats(t->engine, &after);
    *was_read = after.read > before.read;
    int32_t n = t->engine->ops->reuse(t->engine, row);
    tiny_engine_check(t);
    t->engine->ops->close(t->engine, row);
    return n;
}

static bool flush(struct tiny_engine *t)
{
    bool is_durable = false;
    t->engine->ops->flush(t->engine);
    for (int i = 0; i < 60000 && !t->engine->ops->flush_is_over(t->engine, &is_durable); i++) {
        clock_sleep_us(500);
        t->engine->ops->tend(t->engine);
    }
    assert_true(t->engine->ops->flush_is_over(t->engine, &is_durable));
    return is_durable;
}

/* As answer_run, behind what disk and memory have. */
static void answer_after_fetch(struct tiny_engine *t, const struct engine_request *req,
                               struct answer *a, int32_t *n_found)
{
    row_id row = open_row(t, req);
    struct engine_result res = { 0 };
    memset(a, 0, sizeof(*a));
    t->engine->ops->fetch(t->engine, row);
    fetch_wait(t, row);
    *n_found = t->engine->ops->reuse(t->engine, row);
    grow(t, row, INT32_MAX);
    while (res.finish == FINISH_NONE) {
        res = step(t, row, 7);
        t->engine->ops->tend(t->engine);
        if (res.n_tokens > 0)
            a->tokens[a->n++] = res.tokens[0];
        assert_in_range(a->n, 0, ANSWER_MAX - 1);
    }
    t->engine->ops->close(t->engine, row);
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        assert_int_equal(a->tokens[i].id, b->tokens[i].id);
        assert_memory_equal(&a->tokens[i].logprob, &b->tokens[i].logprob, sizeof(float));
    }
}

static const char *const kinds[] = { TINY "llama.gguf", TINY "qwen2.gguf", TINY "gemma3.gguf",
                                     "tests/golden/families/qwen35.gguf",
                                     "tests/golden/families/gpt-oss.gguf" };

/* The next turn of a conversation after a restart finds all of the last one. */
static void a_restart_goes_on_where_it_was(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tiny_engine t;
        struct tiny_config config = config_of(kinds[k]);
        int32_t ids[PROMPT_MAX + 40], n_found;
        struct answer first, warm, cold;
        prompt_fill(ids, PROMPT_MAX, 0, 1);
        tiny_engine_open(&t, &config);
        struct engine_request req = request(ids, 170, 20);
        req.sample.n_logprobs = 0;
        answer_run(&t, &req, &first);
        assert_true(flush(&t));
        tiny_engine_close(&t);

        for (int i = 0; i < 20; i++)
            ids[170 + i] = first.tokens[i].id;
        struct engine_request next = request(ids, 200, 20);
        next.sample.n_logprobs = 0;
        tiny_engine_open(&t, &config);
        answer_after_fetch(&t, &next, &warm, &n_found);
        assert_int_equal(n_found, 189); /* the last token of the answer was never taken */
        struct engine_disk_stats s;
        t.engine->ops->disk_stats(t.engine, &s);
        assert_true(s.is_on && s.is_there);
        assert_in_range(s.read, 3, 4);
        tiny_engine_close(&t);

        config.disk_dir = NULL;
        tiny_engine_open(&t, &config);
        answer_run(&t, &next, &cold);
        tiny_engine_close(&t);
        assert_same(&warm, &cold);
        teardown(state);
        setup(state);
    }
}

/* --- namespaces --- */

static void keep_one(const struct tiny_config *config, struct engine_request *req)
{
    struct tiny_engine t;
    struct answer a;
    tiny_engine_open(&t, config);
    answer_run(&t, req, &a);
    assert_true(flush(&t));
    tiny_engine_close(&t);
}

/* The folder of the one namespace that is there. */
static void space_dir(char *out, size_t n)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    out[0] = '\0';
    while ((e = readdir(d)) != NULL)
        if (strlen(e->d_name) == 16)
            snprintf(out, n, "%s/%s", dir, e->d_name);
    closedir(d);
}

/* Each part of the name changed alone: nothing is found, not even where its files are put into the other's folder. */
static void histories_of_others_are_not_found(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_config usual = config_of(kinds[0]),
                       others[5] = { usual, usual, usual, usual, usual };
    struct engine_request req = request(ids, 200, 4);
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    others[0].cache_type = DTYPE_BF16; /* pages of the same size */
    others[1].digest = "e";
    others[2].content = 1; /* other weights that are called the same */
    others[3].numerics = "cpu-2";
    others[4].file = TINY "llama-yarn.gguf"; /* other angles, the same sizes */
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        struct tiny_engine t;
        char own[96], other[96], command[400];
        bool was_read;
        keep_one(&usual, &req);
        space_dir(own, sizeof(own));
        tiny_engine_open(&t, &others[i]);
        assert_int_equal(found(&t, &req, &was_read), 0);
        assert_false(was_read);
        tiny_engine_close(&t);
        snprintf(command, sizeof(command), "mv '%s' '%s/kept'", own, dir);
        assert_int_equal(system(command), 0);
        space_dir(other, sizeof(other));
        assert_string_not_equal(own, other);
        snprintf(command, sizeof(command), "mv '%s/kept'/* '%s/' && rmdir '%s/kept'", dir, other,
                 dir);
        assert_int_equal(system(command), 0);
        tiny_engine_open(&t, &others[i]);
        assert_int_equal(found(&t, &req, &was_read), 0);
        struct engine_disk_stats stats;
        t.engine->ops->disk_stats(t.engine, &stats);
        assert_int_equal(stats.quarantined, 4);
        assert_int_equal(stats.files, 0);
        tiny_engine_close(&t);
        teardown(state);
        setup(state);
    }
    struct tiny_engine t;
    bool was_read;
    keep_one(&usual, &req);
    req.cache_salt[5] = 1;
    tiny_engine_open(&t, &usual);
    assert_int_equal(found(&t, &req, &was_read), 0);
    req.cache_salt[5] = 0;
    assert_int_equal(found(&t, &req, &was_read), 199);
    tiny_engine_close(&t);
}

static void every_part_of_a_namespace_counts(void **state)
{
    struct tier_space a = { .n_layers = 3 }, b;
    struct tier_record r = { .kind = TIER_KIND_END, .n_ids = 3, .ids = { 1, 2, 3 } }, got;
    r.key = tier_key_child(r.parent, r.kind, r.ids, r.n_ids);
    struct err err;
    uint8_t file[TIER_HEADER_BYTES]; /* no payload */
    tier_header_write(file, &a, &r);
    assert_int_equal(tier_header_read(file, sizeof(file), &a, &got, &err), ERR_OK);
    for (size_t i = 0; i < sizeof(a); i++) {
        b = a;
        ((uint8_t *)&b)[i] ^= 1;
        assert_non_null(tier_space_differs(&a, &b));
        assert_int_equal(tier_header_read(file, sizeof(file), &b, &got, &err), ERR_STATE);
        assert_non_null(strstr(err.text, tier_space_differs(&a, &b)));
    }
    b = a;
    b.adapters[0] = 1;
    assert_string_equal(tier_space_differs(&a, &b), "adapters");
}

/* --- what is found --- */

static void the_longer_of_memory_and_disk_is_taken(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    struct tiny_engine t;
    struct answer a;
    int32_t ids[PROMPT_MAX], other[PROMPT_MAX];
    bool was_read;
    prompt_fill(ids, PROMPT_MAX, 100, 1);
    prompt_fill(other, PROMPT_MAX, 100, 2);
    struct engine_request req = request(ids, 200, 4), branch = request(other, 150, 4);
    keep_one(&config, &req);
    tiny_engine_open(&t, &config);
    answer_run(&t, &branch, &a);
    assert_int_equal(found(&t, &branch, &was_read), 149);
    assert_false(was_read); /* memory has it all */
    assert_int_equal(found(&t, &req, &was_read), 199);
    assert_true(was_read);
    assert_int_equal(found(&t, &req, &was_read), 199);
    assert_false(was_read);
    struct engine_disk_stats s;
    t.engine->ops->disk_stats(t.engine, &s);
    assert_int_equal(s.read, 3); /* the first page was in memory */
    tiny_engine_close(&t);
}

/* A prompt that ends, or differs, in the middle of a page begins there. */
static void a_page_is_found_in_part(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    struct tiny_engine t;
    int32_t ids[PROMPT_MAX], other[PROMPT_MAX];
    bool was_read;
    prompt_fill(ids, PROMPT_MAX, 100, 1);
    prompt_fill(other, PROMPT_MAX, 100, 2);
    struct engine_request req = request(ids, 200, 4), part = request(ids, 120, 4),
                          branch = request(other, 150, 4);
    keep_one(&config, &req);
    tiny_engine_open(&t, &config);
    assert_int_equal(found(&t, &branch, &was_read), 100);
    assert_true(was_read);
    assert_int_equal(found(&t, &part, &was_read), 119);
    assert_true(was_read);
    assert_int_equal(found(&t, &req, &was_read), 199);
    assert_true(was_read);
    tiny_engine_close(&t);
}

/* --- bounds --- */

static void the_cap_holds_and_costs_leaves_only(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    struct tiny_engine t;
    struct engine_disk_stats s;
    struct answer a;
    int32_t ids[PROMPT_MAX];
    bool was_read;
    tiny_engine_open(&t, &config);
    config.disk_bytes = 6 * (tiny_engine_page_bytes(&t, 0) + TIER_HEADER_BYTES);
    tiny_engine_close(&t);
    tiny_engine_open(&t, &config);
    for (int32_t lineage = 1; lineage < 9; lineage++) {
        prompt_fill(ids, PROMPT_MAX, 0, lineage);
        struct engine_request req = request(ids, 200, 4);
        answer_run(&t, &req, &a);
        flush(&t); /* old ones that were given up are written again, and may be too many */
        t.engine->ops->disk_stats(t.engine, &s);
        assert_in_range(s.bytes, 1, config.disk_bytes);
        assert_in_range(s.files, 1, 6);
    }
    assert_true(s.evicted > 0);
    tiny_engine_close(&t);
    tiny_engine_open(&t, &config);
    int32_t n = 0;
    for (int32_t lineage = 1; lineage < 9; lineage++) {
        prompt_fill(ids, PROMPT_MAX, 0, lineage);
        struct engine_request req = request(ids, 200, 4);
        n += found(&t, &req, &was_read) > 0;
    }
    assert_true(n > 0);
    tiny_engine_close(&t);
}

/* Where the cap is smaller than what memory keeps, a flush does not say that all of it is there. */
static void a_flush_under_a_small_cap_is_no_success(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    int32_t ids[PROMPT_MAX];
    struct answer a;
    struct tiny_engine t;
    bool was_whole = false, was_not = false;
    for (int n_files = 3; n_files < 10; n_files++) {
        struct engine_disk_stats s;
        tiny_engine_open(&t, &config);
        config.disk_bytes =
            n_files * ((tiny_engine_page_bytes(&t, 0) + 2 * TIER_HEADER_BYTES - 1) & ~4095);
        tiny_engine_close(&t);
        tiny_engine_open(&t, &config);
        for (int32_t lineage = 1; lineage < 3; lineage++) {
            prompt_fill(ids, PROMPT_MAX, 0, lineage);
            struct engine_request req = request(ids, 200, 4);
            answer_run(&t, &req, &a);
            flush(&t);
        }
        bool is_durable = flush(&t);
        t.engine->ops->disk_stats(t.engine, &s);
        assert_true(is_durable == (s.files == 8));
        was_whole = was_whole || is_durable;
        was_not = was_not || !is_durable;
        tiny_engine_close(&t);
        teardown(state);
        setup(state);
    }
    assert_true(was_whole && was_not);
}

static void a_second_process_is_refused(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    struct tiny_engine t;
    struct runner *r;
    struct err err;
    tiny_engine_open(&t, &config);
    struct runner_options o = { .model = t.model,
                                .n_ctx = 100,
                                .max_seqs = 1,
                                .max_rows = 16,
                                .max_out = 1,
                                .keep_bytes = RUNNER_KEEP_ALL };
    struct runner_tier_options to = {
        .dir = dir, .max_bytes = 1 << 20, .weights_digest = "d", .numerics = "cpu-1"
    };
    assert_int_equal(runner_new(&o, &r, &err), ERR_OK);
    assert_int_equal(runner_tier_open(r, &to, &err), ERR_STATE);
    assert_non_null(strstr(err.text, "another process"));
    assert_non_null(strstr(err.text, dir));
    runner_free(r);
    tiny_engine_close(&t);
}

/* --- damage --- */

static void damaged_files_are_misses(void **state)
{
    const struct {
        long at; /* from the end if negative */
        bool is_cut;
        bool is_scan; /* found out at the start */
    } damage[] = { { 0, false, true },     { 20, false, true },  { 300, false, true },
                   { 5000, false, false }, { -1, false, false }, { 4096, true, true },
                   { 100, true, true },    { 0, true, true },    { -1, true, true } };
    struct tiny_config config = config_of(kinds[0]);
    int32_t ids[PROMPT_MAX];
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    struct engine_request req = request(ids, 200, 8);
    struct answer want, got;
    struct tiny_engine t;
    config.disk_dir = NULL;
    tiny_engine_open(&t, &config);
    answer_run(&t, &req, &want);
    tiny_engine_close(&t);
    config.disk_dir = dir;
    for (size_t i = 0; i < ARRAY_LEN(damage); i++) {
        char path[96], file[400];
        keep_one(&config, &req);
        space_dir(path, sizeof(path));
        DIR *d = opendir(path);
        struct dirent *e;
        int32_t n_found;
        while ((e = readdir(d)) != NULL) {
            struct stat st;
            if (e->d_name[0] == '.')
                continue;
            snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
            assert_int_equal(stat(file, &st), 0);
            long at = damage[i].at < 0 ? st.st_size + damage[i].at : damage[i].at;
            if (damage[i].is_cut) {
                assert_int_equal(truncate(file, at), 0);
                continue;
            }
            FILE *f = fopen(file, "r+");
            fseek(f, at, SEEK_SET);
            int c = fgetc(f);
            fseek(f, at, SEEK_SET);
            fputc(c ^ 4, f);
            fclose(f);
        }
        closedir(d);
        snprintf(file, sizeof(file), "%s/notes.txt", path); /* not ours: stays */
        fclose(fopen(file, "w"));
        tiny_engine_open(&t, &config);
        answer_after_fetch(&t, &req, &got, &n_found);
        assert_int_equal(n_found, 0);
        assert_same(&got, &want);
        struct engine_disk_stats s;
        t.engine->ops->disk_stats(t.engine, &s);
        assert_true(s.is_on);
        assert_in_range(s.quarantined, 1, 4);
        assert_true(damage[i].is_scan ? s.quarantined == 4 : true);
        tiny_engine_close(&t);
        assert_int_equal(access(file, F_OK), 0);
        teardown(state);
        setup(state);
    }
}

/* --- faults: each call to the disk in turn --- */

struct fault {
    int64_t nth, n_calls; /* the nth fails; 0 = none */
    int why;              /* errno; 0: the process is killed there */
    int64_t sleep_us;     /* before each read */
};

static int fault_hook(void *arg, enum fio_op op, const char *path)
{
    struct fault *f = arg;
    if (op == FIO_READ && f->sleep_us > 0)
        clock_sleep_us(f->sleep_us);
    if (++f->n_calls != f->nth)
        return 0;
    if (f->why == 0)
        raise(SIGKILL);
    return f->why;
}

/* Two turns of a conversation and another one, between them a flush, as a process that is killed may have done them in part. */
static void work_through(const struct tiny_config *config, const int32_t *ids)
{
    struct tiny_engine t;
    struct engine_request first = request(ids, 130, 8), second = request(ids, 200, 8);
    struct answer a;
    int32_t n;
    tiny_engine_open(&t, config);
    answer_after_fetch(&t, &first, &a, &n);
    flush(&t);
    answer_after_fetch(&t, &second, &a, &n);
    flush(&t);
    tiny_engine_close(&t);
}

static int64_t files_at_most(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    int64_t n = 0;
    while (d && (e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Whatever was left, a new process answers as one without a disk, and leaves no scraps. */
static void assert_whole(const struct tiny_config *config, const int32_t *ids,
                         const struct answer *want, int64_t nth)
{
    struct tiny_engine t;
    struct answer got;
    int32_t n;
    char path[96];
    struct engine_request req = request(ids, 200, 8);
    tiny_engine_open(&t, config);
    answer_after_fetch(&t, &req, &got, &n);
    assert_same(&got, want);
    struct engine_disk_stats s;
    t.engine->ops->disk_stats(t.engine, &s);
    if (s.quarantined > 0) /* a file that has its name is whole, or it never gets it */
        fail_msg("killed at call %lld: %lld files were put aside", (long long)nth,
                 (long long)s.quarantined);
    assert_true(flush(&t));
    t.engine->ops->disk_stats(t.engine, &s);
    tiny_engine_close(&t);
    space_dir(path, sizeof(path));
    assert_int_equal(files_at_most(path), s.files);
}

static void want_answer(struct tiny_config config, const int32_t *ids, struct answer *want)
{
    struct tiny_engine t;
    struct engine_request req = request(ids, 200, 8);
    config.disk_dir = NULL;
    tiny_engine_open(&t, &config);
    answer_run(&t, &req, want);
    tiny_engine_close(&t);
}

static void a_kill_at_any_call_leaves_a_whole_directory(void **state)
{
    static const size_t which[] = { 0, 2, 3 }; /* pages alone, windows, states */
    for (size_t k = 0; k < ARRAY_LEN(which); k++) {
        struct tiny_config config = config_of(kinds[which[k]]);
        int32_t ids[PROMPT_MAX];
        struct answer want;
        int n_killed = 0;
        bool is_over = false;
        prompt_fill(ids, PROMPT_MAX, 0, 1);
        want_answer(config, ids, &want);
        for (int64_t nth = 1; !is_over && nth < 300; nth++) {
            pid_t pid = fork();
            assert_true(pid >= 0);
            if (pid == 0) {
                struct fault f = { .nth = nth };
                fio_set_hook(fault_hook, &f);
                work_through(&config, ids);
                _exit(0);
            }
            int status;
            assert_int_equal(waitpid(pid, &status, 0), pid);
            is_over = WIFEXITED(status);
            if (is_over)
                assert_int_equal(WEXITSTATUS(status), 0);
            else
                assert_int_equal(WTERMSIG(status), SIGKILL);
            n_killed += !is_over;
            assert_whole(&config, ids, &want, nth);
            if (nth % 3 != 0)
                continue; /* every third time on top of what was left */
            teardown(state);
            setup(state);
        }
        assert_true(is_over);
        print_message("%s: killed at %d calls\n", kinds[which[k]], n_killed);
        teardown(state);
        setup(state);
    }
}

static void a_call_that_fails_costs_no_answer(void **state)
{
    const int whys[] = { ENOSPC, EIO };
    for (size_t k = 0; k < 2; k++)
        for (size_t w = 0; w < ARRAY_LEN(whys); w++) {
            struct tiny_config config = config_of(kinds[2 * k]);
            int32_t ids[PROMPT_MAX], n;
            struct answer want, got;
            prompt_fill(ids, PROMPT_MAX, 0, 1);
            want_answer(config, ids, &want);
            for (int64_t nth = 1; nth < 300; nth++) {
                struct tiny_engine t;
                struct engine_disk_stats s;
                struct fault f = { .why = whys[w] };
                struct engine_request req = request(ids, 200, 8);
                tiny_engine_open(&t, &config);
                fio_set_hook(fault_hook, &f);
                f.nth = nth;
                answer_after_fetch(&t, &req, &got, &n);
                assert_same(&got, &want);
                bool is_durable = flush(&t);
                t.engine->ops->disk_stats(t.engine, &s);
                bool was_hit = f.n_calls >= nth;
                if (was_hit &&
                    is_durable) /* only a scrap that could not be deleted may go unnoticed */
                    assert_int_equal(s.failed, 0);
                assert_true(s.failed == 0 ? s.is_on : !s.is_on);
                tiny_engine_close(&t);
                fio_set_hook(NULL, NULL);
                assert_whole(&config, ids, &want, nth);
                teardown(state);
                setup(state);
                if (!was_hit)
                    break;
            }
        }
}

static void a_slow_disk_is_not_waited_for(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    int32_t ids[PROMPT_MAX];
    bool was_read;
    struct tiny_engine t;
    struct engine_disk_stats s;
    struct fault f = { .sleep_us = 1500000 };
    struct engine_request req = request(ids, 100, 8);
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    keep_one(&config, &req);
    tiny_engine_open(&t, &config);
    req.cache_salt[0] = 1;
    assert_int_equal(found(&t, &req, &was_read), 0); /* the directory has been read */
    req.cache_salt[0] = 0;
    fio_set_hook(fault_hook, &f);
    int64_t start = clock_us();
    assert_in_range(found(&t, &req, &was_read), 0, 64);
    assert_in_range(clock_us() - start, 500000, 1490000);
    t.engine->ops->disk_stats(t.engine, &s);
    assert_false(s.is_on);
    assert_int_equal(s.failed, 1);
    assert_in_range(found(&t, &req, &was_read), 0, 64); /* at once now */
    assert_in_range(clock_us() - start, 500000, 1499000);
    tiny_engine_close(&t);
}

/* --- a disk that hangs --- */

struct hang {
    enum fio_op op;
    const char *end;         /* of the path; NULL: any */
    _Atomic bool is_hanging; /* a call waits ... */
    _Atomic bool is_let_go;  /* ... for this */
};

static int hang_hook(void *arg, enum fio_op op, const char *path)
{
    struct hang *h = arg;
    size_t n = strlen(path), n_end = h->end ? strlen(h->end) : 0;
    if (op != h->op || n < n_end || strcmp(path + n - n_end, h->end ? h->end : "") != 0)
        return 0;
    h->is_hanging = true;
    while (!h->is_let_go)
        clock_sleep_us(500);
    return 0;
}

/* What came after a flush has begun belongs to the next one, which does not end with the first. */
static void a_second_flush_waits_for_its_own(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    int32_t ids[PROMPT_MAX], other[PROMPT_MAX];
    struct tiny_engine t;
    struct answer a;
    bool is_durable;
    char space[96];
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    prompt_fill(other, PROMPT_MAX, 0, 2);
    struct engine_request req = request(ids, 200, 4), second = request(other, 200, 4);
    keep_one(&config, &req); /* the folder has its name */
    space_dir(space, sizeof(space));
    struct hang h = { .op = FIO_SYNC, .end = strrchr(space, '/') };
    prompt_fill(ids, PROMPT_MAX, 0, 3);
    fio_set_hook(hang_hook, &h);
    tiny_engine_open(&t, &config);
    answer_run(&t, &req, &a);
    t.engine->ops->flush(t.engine);
    for (int i = 0; i < 20000 && !h.is_hanging; i++) {
        clock_sleep_us(200);
        t.engine->ops->tend(t.engine);
    }
    assert_true(h.is_hanging);
    answer_run(&t, &second, &a);
    t.engine->ops->flush(t.engine);
    assert_false(t.engine->ops->flush_is_over(t.engine, &is_durable));
    h.is_let_go = true;
    for (int i = 0; i < 20000 && !t.engine->ops->flush_is_over(t.engine, &is_durable); i++) {
        clock_sleep_us(200);
        t.engine->ops->tend(t.engine);
    }
    assert_true(t.engine->ops->flush_is_over(t.engine, &is_durable) && is_durable);
    struct engine_disk_stats s;
    t.engine->ops->disk_stats(t.engine, &s);
    assert_int_equal(s.files, 12);
    tiny_engine_close(&t);
    fio_set_hook(NULL, NULL);
}

/* Neither answers nor flushes wait for it for good. */
static void a_disk_that_hangs_is_given_up(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct answer a;
    struct hang h = { .op = FIO_READ };
    bool was_read;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    struct engine_request req = request(ids, 200, 4);
    keep_one(&config, &req);
    h.end = ".node"; /* its header, when the directory is read */
    fio_set_hook(hang_hook, &h);
    tiny_engine_open(&t, &config);
    int64_t start = clock_us();
    assert_int_equal(found(&t, &req, &was_read), 0);
    assert_in_range(clock_us() - start, 4000000, 30000000);
    start = clock_us();
    assert_int_equal(found(&t, &req, &was_read), 0); /* at once */
    assert_in_range(clock_us() - start, 0, 4000000);
    answer_run(&t, &req, &a);
    assert_false(flush(&t));
    h.is_let_go = true;
    assert_true(flush(&t));
    tiny_engine_close(&t);
    fio_set_hook(NULL, NULL);
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_restart_goes_on_where_it_was, setup, teardown),
        cmocka_unit_test_setup_teardown(histories_of_others_are_not_found, setup, teardown),
        cmocka_unit_test(every_part_of_a_namespace_counts),
        cmocka_unit_test_setup_teardown(the_longer_of_memory_and_disk_is_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(a_page_is_found_in_part, setup, teardown),
        cmocka_unit_test_setup_teardown(the_cap_holds_and_costs_leaves_only, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flush_under_a_small_cap_is_no_success, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_process_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_files_are_misses, setup, teardown),
        cmocka_unit_test_setup_teardown(a_kill_at_any_call_leaves_a_whole_directory, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_call_that_fails_costs_no_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_disk_is_not_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_flush_waits_for_its_own, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_hangs_is_given_up, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
