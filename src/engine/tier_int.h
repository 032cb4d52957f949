/* tier_int.h - the tier's state. tier.c: the caller's side; tier_disk.c: the disk thread's. */
#ifndef PLUMB_ENGINE_TIER_INT_H
#define PLUMB_ENGINE_TIER_INT_H

#include "engine/tier.h"
#include "engine/tier_index.h"

#include <pthread.h>
#include <stdatomic.h>

#define TIER_LOCK_NAME  "plumb-ssd-cache.lock"
#define TIER_QUARANTINE "quarantine"

struct tier_list {
    struct tier_job *first, *last;
};

struct tier {
    char *dir, *space_dir;
    struct tier_space space;
    int64_t max_bytes;
    uint8_t secret[16];
    int lock_fd;
    struct disk *disk;
    struct tier_job *jobs; /* [n_jobs] of both directions and for SYNC */
    int32_t n_jobs;
    uint8_t *slab;               /* [slab_bytes] the jobs' buffers */
    size_t slab_bytes, file_max; /* the largest file that one of them holds */
    struct disk_job scan;
    pthread_mutex_t
        lock; /* of all below that is not atomic; the index is changed on the disk thread alone */
    struct tier_index index;
    struct tier_list idle[3], reads, writes, done; /* idle by enum tier_op */
    int32_t n_out[3];                              /* jobs out, by op */
    void (*wake)(void *arg);
    void *wake_arg;
    bool is_ready;
    /* the disk thread's */
    int32_t n_unsynced;
    _Atomic int64_t write_off_us, read_off_us; /* clock_us() until which they are off; 0 = on */
    _Atomic int64_t files, bytes, written, written_bytes, n_read, read_bytes, dropped, failed,
        evicted, quarantined, pending;
};

static inline void tier_list_add(struct tier_list *l, struct tier_job *job)
{
    job->next = NULL;
    *(l->last ? &l->last->next : &l->first) = job;
    l->last = job;
}

/* At the front. */
static inline void tier_list_push(struct tier_list *l, struct tier_job *job)
{
    job->next = l->first;
    l->first = job;
    if (!l->last)
        l->last = job;
}

static inline struct tier_job *tier_list_take(struct tier_list *l)
{
    struct tier_job *job = l->first;
    if (job) {
        l->first = job->next;
        if (!l->first)
            l->last = NULL;
    }
    return job;
}

/* On the disk thread: read the directory; do the best of the jobs that wait. */
void tier_scan_run(struct disk_job *job);
void tier_job_run(struct disk_job *job);
void tier_call_wake(struct tier *t);
void tier_switch_off(struct tier *t, _Atomic int64_t *until_us, const char *what, const char *why);

#endif
