/* The preparation pool with a `prepare` that waits: classes, bounds, cancels at every stage. */
#include "base/clock.h"
#include "server/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_US  20000000 /* nothing takes so long, even under tsan on a busy machine */
#define QUEUED   8
#define RANDOM_N 3000

struct world {
    struct worker_pool *pool;
    _Atomic bool is_open[WORKER_CLASS_COUNT]; /* jobs of the class run through */
    _Atomic int n_begun[WORKER_CLASS_COUNT];
    _Atomic int n_wakes;
};

static void world_prepare(void *arg, struct worker_job *job)
{
    struct world *w = arg;
    w->n_begun[job->class]++;
    while (!w->is_open[job->class] && !job->is_cancelled)
        usleep(200);
    if (!job->is_cancelled)
        job->prepared = mem_alloc(MEM_CAT_REQUEST, sizeof(*job->prepared));
}

static void world_wake(void *arg)
{
    struct world *w = arg;
    w->n_wakes++;
}

static void world_start(struct world *w, int text_slots)
{
    const struct worker_config config = {
        .slots = { [WORKER_CLASS_TEXT] = text_slots, 1, 1 },
        .max_queued = QUEUED,
        .prepare = world_prepare,
        .prepare_arg = w,
        .wake = world_wake,
        .wake_arg = w,
    };
    *w = (struct world){ 0 };
    w->pool = worker_pool_new(&config);
    worker_pool_start(w->pool);
}

static struct worker_job *job_new(enum worker_class class)
{
    struct worker_job *job = mem_alloc(MEM_CAT_REQUEST, sizeof(*job));
    job->class = class;
    buf_init(&job->body, MEM_CAT_REQUEST, 1000);
    buf_add_str(&job->body, "body");
    return job;
}

static struct worker_job *submit(struct world *w, enum worker_class class)
{
    struct worker_job *job = job_new(class);
    assert_int_equal(worker_submit(w->pool, job), ERR_OK);
    return job;
}

static struct worker_job *wait_next(struct world *w)
{
    struct worker_job *job;
    int64_t end = clock_us() + WAIT_US;
    while ((job = worker_next(w->pool)) == NULL) {
        assert_true(clock_us() < end);
        usleep(200);
    }
    return job;
}

static struct worker_stats stats(struct world *w, enum worker_class class)
{
    struct worker_stats st;
    worker_read_stats(w->pool, class, &st);
    return st;
}

static void wait_begun(struct world *w, enum worker_class class, int n)
{
    int64_t end = clock_us() + WAIT_US;
    while (w->n_begun[class] < n) {
        assert_true(clock_us() < end);
        usleep(200);
    }
}

static void a_busy_class_never_holds_up_another(void **state)
{
    struct world w;
    world_start(&w, 2);
    w.is_open[WORKER_CLASS_TEXT] = true;
    /* Every slot and place of two classes is taken by jobs that do not end. */
    for (int c = WORKER_CLASS_GRAMMAR; c <= WORKER_CLASS_MEDIA; c++) {
        submit(&w, (enum worker_class)c);
        wait_begun(&w, (enum worker_class)c, 1);
        for (int i = 0; i < QUEUED; i++)
            submit(&w, (enum worker_class)c);
        struct worker_job *more = job_new((enum worker_class)c);
        assert_int_equal(worker_submit(w.pool, more), ERR_FULL);
        worker_job_free(more);
        assert_int_equal(stats(&w, (enum worker_class)c).refused, 1);
    }
    for (int i = 0; i < 100; i++) {
        struct worker_job *job = submit(&w, WORKER_CLASS_TEXT);
        assert_ptr_equal(wait_next(&w), job);
        assert_non_null(job->prepared);
        assert_int_equal(job->body.len, 0);
        worker_job_free(job);
    }
    w.is_open[WORKER_CLASS_MEDIA] = true; /* and one of them goes on while the other stands */
    for (int i = 0; i <= QUEUED; i++) {
        struct worker_job *job = wait_next(&w);
        assert_int_equal(job->class, WORKER_CLASS_MEDIA);
        worker_job_free(job);
    }
    assert_int_equal(stats(&w, WORKER_CLASS_GRAMMAR).queued, QUEUED);
    assert_int_equal(stats(&w, WORKER_CLASS_GRAMMAR).running, 1);
    assert_int_equal(stats(&w, WORKER_CLASS_MEDIA).done, QUEUED + 1);
    int64_t end = clock_us() + WAIT_US;
    while (w.n_wakes < 100 + QUEUED + 1 && clock_us() < end) /* a job is there before its wake */
        usleep(200);
    assert_int_equal(w.n_wakes, 100 + QUEUED + 1);
    w.is_open[WORKER_CLASS_GRAMMAR] = true; /* the pool's end waits for what has begun */
    worker_pool_free(w.pool);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), 0);
}

static void a_cancel_in_the_line_gives_its_place_back_at_once(void **state)
{
    struct world w;
    struct worker_job *jobs[QUEUED], *running, *extra;
    world_start(&w, 1);
    running = submit(&w, WORKER_CLASS_TEXT);
    wait_begun(&w, WORKER_CLASS_TEXT, 1);
    for (int i = 0; i < QUEUED; i++)
        jobs[i] = submit(&w, WORKER_CLASS_TEXT);
    extra = job_new(WORKER_CLASS_TEXT);
    for (int i = 0; i < QUEUED; i += 3) { /* first, middle and last of the line */
        assert_int_equal(worker_submit(w.pool, extra), ERR_FULL);
        assert_true(worker_cancel(w.pool, jobs[i]));
        worker_job_free(jobs[i]);
        assert_int_equal(worker_submit(w.pool, extra), ERR_OK);
        jobs[i] = extra;
        extra = job_new(WORKER_CLASS_TEXT);
    }
    worker_job_free(extra);
    for (int i = QUEUED - 1; i >= 0; i--) {
        assert_true(worker_cancel(w.pool, jobs[i]));
        worker_job_free(jobs[i]);
    }
    assert_int_equal(stats(&w, WORKER_CLASS_TEXT).queued, 0);
    assert_int_equal(w.n_begun[WORKER_CLASS_TEXT], 1);
    assert_false(worker_cancel(w.pool, running)); /* begun: it ends early and comes back */
    assert_ptr_equal(wait_next(&w), running);
    assert_null(running->prepared);
    worker_job_free(running);
    w.is_open[WORKER_CLASS_TEXT] = true;
    running = submit(&w, WORKER_CLASS_TEXT);
    int64_t end = clock_us() + WAIT_US;
    while (stats(&w, WORKER_CLASS_TEXT).done < 2 && clock_us() < end)
        usleep(200);
    assert_false(worker_cancel(w.pool, running)); /* done: it comes back with its result */
    assert_ptr_equal(wait_next(&w), running);
    assert_non_null(running->prepared);
    worker_job_free(running);
    assert_null(worker_next(w.pool));
    worker_pool_free(w.pool);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), 0);
}

static void jobs_wait_for_the_start_and_a_pool_may_end_with_them(void **state)
{
    struct world w = { 0 };
    const struct worker_config config = { .slots = { 1, 1, 1 },
                                          .max_queued = QUEUED,
                                          .prepare = world_prepare,
                                          .prepare_arg = &w,
                                          .wake = world_wake,
                                          .wake_arg = &w };
    w.pool = worker_pool_new(&config);
    for (int i = 0; i < 3; i++)
        submit(&w, WORKER_CLASS_TEXT);
    worker_pool_free(w.pool); /* never started */
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), 0);
    w.is_open[WORKER_CLASS_TEXT] = true;
    w.pool = worker_pool_new(&config);
    for (int i = 0; i < 3; i++)
        submit(&w, WORKER_CLASS_TEXT);
    assert_int_equal(w.n_begun[WORKER_CLASS_TEXT], 0);
    worker_pool_start(w.pool);
    wait_begun(&w, WORKER_CLASS_TEXT, 1);
    worker_pool_free(w.pool); /* in any stage */
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), 0);
}

/* Every job comes back once: by its cancel, or by worker_next. */
static void random_cancels_lose_and_double_nothing(void **state)
{
    struct world w;
    struct worker_job *live[QUEUED * 4] = { NULL };
    int n_submitted = 0, n_back = 0;
    unsigned seed = 7;
    world_start(&w, 2);
    for (int i = 0; i < WORKER_CLASS_COUNT; i++)
        w.is_open[i] = true;
    for (int step = 0; step < RANDOM_N || n_back < n_submitted; step++) {
        size_t at = (size_t)rand_r(&seed) % ARRAY_LEN(live);
        struct worker_job *done;
        while ((done = worker_next(w.pool)) != NULL) {
            live[(size_t)done->owner - 1] = NULL;
            worker_job_free(done);
            n_back++;
        }
        if (!live[at] && step < RANDOM_N) {
            struct worker_job *job = job_new((enum worker_class)(rand_r(&seed) % 3));
            job->owner = (void *)(at + 1);
            if (worker_submit(w.pool, job) == ERR_OK) {
                live[at] = job;
                n_submitted++;
            } else {
                worker_job_free(job);
            }
        } else if (live[at] && !live[at]->is_cancelled && rand_r(&seed) % 2) {
            if (worker_cancel(w.pool, live[at])) {
                worker_job_free(live[at]);
                live[at] = NULL;
                n_back++;
            }
        }
        if (step % 8 == 0)
            usleep(50);
        assert_true(step < RANDOM_N * 100);
    }
    for (int i = 0; i < WORKER_CLASS_COUNT; i++) {
        assert_int_equal(stats(&w, (enum worker_class)i).queued, 0);
        assert_int_equal(stats(&w, (enum worker_class)i).running, 0);
    }
    worker_pool_free(w.pool);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_busy_class_never_holds_up_another),
        cmocka_unit_test(a_cancel_in_the_line_gives_its_place_back_at_once),
        cmocka_unit_test(jobs_wait_for_the_start_and_a_pool_may_end_with_them),
        cmocka_unit_test(random_cancels_lose_and_double_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
