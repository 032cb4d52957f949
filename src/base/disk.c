#include "base/disk.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"

#include <stdatomic.h>
#include <time.h>

struct disk {
    struct queue jobs; /* of struct disk_job * */
    pthread_t thread;
    _Atomic int64_t n_run; /* jobs that have ended */
};

static void *disk_run(void *arg)
{
    struct disk *d = arg;
    struct disk_job *job;
    pthread_setname_np(pthread_self(), "disk");
    while (queue_pop(&d->jobs, &job) == ERR_OK) {
        job->run(job);
        d->n_run++;
    }
    return NULL;
}

struct disk *disk_new(size_t max_queued)
{
    struct disk *d = mem_alloc(MEM_CAT_BASE, sizeof(*d));
    queue_init(&d->jobs, sizeof(struct disk_job *), max_queued);
    BUG_ON(pthread_create(&d->thread, NULL, disk_run, d) != 0);
    return d;
}

enum err_code disk_submit(struct disk *d, struct disk_job *job)
{
    return queue_try_push(&d->jobs, &job);
}

/* Has the thread ended? Waits a little for it. */
static bool disk_join(struct disk *d)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_timedjoin_np(d->thread, NULL, &until) == 0;
}

bool disk_free(struct disk *d, const char *what, int64_t max_us)
{
    if (!d)
        return true;
    int64_t begun = clock_us(), last = begun, n_run = d->n_run;
    queue_close(&d->jobs);
    while (!disk_join(d)) {
        int64_t now = clock_us();
        if (d->n_run != n_run)
            last = now;
        n_run = d->n_run;
        if (now - last <= max_us && now - begun <= 3 * max_us)
            continue;
        log_error("disk",
                  "%s: the disk has not answered for %.1f s: what it was not given yet (%zu jobs) "
                  "is lost",
                  what, (double)(now - last) * 1e-6, queue_len(&d->jobs));
        return false;
    }
    queue_release(&d->jobs);
    mem_free(MEM_CAT_BASE, d);
    return true;
}
