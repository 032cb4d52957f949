/* The disk thread: order, bound, and what is queued when it ends. */
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
    disk_free(d); /* runs what is queued */
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
    disk_free(d);
    assert_int_equal(n_done, n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_run_in_order_and_all_of_them),
        cmocka_unit_test(a_full_line_refuses_and_never_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
