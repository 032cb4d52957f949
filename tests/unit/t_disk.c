/* The disk thread: order, bound, and what is queued when it ends. */
#include "base/clock.h"
#include "base/disk.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define JOBS 16

struct job {
    struct disk_job disk;
    int number;
};

static _Atomic bool is_open;
static _Atomic int n_done;
static int order[JOBS];

static void job_run(struct disk_job *disk)
{
    const struct job *job = (const struct job *)disk;
    while (!is_open)
        usleep(200);
    order[n_done] = job->number;
    n_done++;
}

static void job_run_slowly(struct disk_job *disk)
{
    usleep(100000);
    job_run(disk);
}

static void jobs_run_in_order_and_all_of_them(void **state)
{
    struct disk *d = disk_new(JOBS);
    struct job jobs[JOBS];
    is_open = false;
    n_done = 0;
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = (struct job){ { job_run }, i };
        assert_int_equal(disk_submit(d, &jobs[i].disk), ERR_OK);
    }
    is_open = true;
    assert_true(disk_free(d, "jobs", DISK_CLOSE_US)); /* runs what is queued */
    assert_int_equal(n_done, JOBS);
    for (int i = 0; i < JOBS; i++)
        assert_int_equal(order[i], i);
}

static void a_full_line_refuses_and_never_waits(void **state)
{
    struct disk *d = disk_new(2);
    struct job jobs[4];
    int n = 0;
    enum err_code code = ERR_OK;
    is_open = false;
    n_done = 0;
    for (; n < 4 && code == ERR_OK; n++) { /* one may be with the thread already */
        jobs[n] = (struct job){ { job_run }, n };
        code = disk_submit(d, &jobs[n].disk);
    }
    assert_int_equal(code, ERR_FULL);
    is_open = true;
    assert_true(disk_free(d, "jobs", DISK_CLOSE_US));
    assert_int_equal(n_done, n - 1);
}

/* One that never ends (until the test lets it): what stands behind it is given up, and nothing is freed. */
static void a_disk_that_hangs_is_not_waited_for(void **state)
{
    static struct job jobs[2]; /* the thread has them to the end */
    struct disk *d = disk_new(2);
    is_open = false;
    n_done = 0;
    for (int i = 0; i < 2; i++) {
        jobs[i] = (struct job){ { job_run }, i };
        assert_int_equal(disk_submit(d, &jobs[i].disk), ERR_OK);
    }
    int64_t begun = clock_us();
    assert_false(disk_free(d, "jobs", 100000));
    assert_in_range(clock_us() - begun, 100000, 2000000);
    assert_int_equal(n_done, 0);
    is_open = true; /* the thread ends, and so may d */
    assert_true(disk_free(d, "jobs", DISK_CLOSE_US));
    assert_int_equal(n_done, 2);
}

/* Jobs that end are waited for, longer than for any one of them. */
static void a_slow_disk_is_waited_for(void **state)
{
    struct disk *d = disk_new(4);
    struct job jobs[4];
    is_open = true;
    n_done = 0;
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){ { job_run_slowly }, i };
        assert_int_equal(disk_submit(d, &jobs[i].disk), ERR_OK);
    }
    assert_true(disk_free(d, "jobs", 300000));
    assert_int_equal(n_done, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_run_in_order_and_all_of_them),
        cmocka_unit_test(a_full_line_refuses_and_never_waits),
        cmocka_unit_test(a_disk_that_hangs_is_not_waited_for),
        cmocka_unit_test(a_slow_disk_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
