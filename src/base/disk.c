#include "base/disk.h"
#include "base/queue.h"

struct disk {
    struct queue jobs; /* of struct disk_job * */
    pthread_t thread;
};

static void *disk_run(void *arg)
{
    struct disk *d = arg;
    struct disk_job *job;
    pthread_setname_np(pthread_self(), "disk");
    while (queue_pop(&d->jobs, &job) == ERR_OK)
        job->run(job);
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

void disk_free(struct disk *d)
{
    if (!d)
        return;
    queue_close(&d->jobs);
    pthread_join(d->thread, NULL);
    queue_release(&d->jobs);
    mem_free(MEM_CAT_BASE, d);
}
