/* disk.h - one thread for everything that may wait for a disk, so that nothing else has to.
 *
 * Jobs run one at a time in the order in which they were submitted: what is written is there for whoever asks next. A job hands
 * itself back in its `run`, by means of its own. Thread: disk_submit by any. */
#ifndef PLUMB_BASE_DISK_H
#define PLUMB_BASE_DISK_H

#include "base/err.h"

#include <stdint.h>

struct disk_job {
    void (*run)(struct disk_job *job); /* on the disk thread; the job may be gone when it returns */
};

struct disk;

struct disk *disk_new(size_t max_queued); /* jobs that wait */
/* Never waits. Errors: ERR_FULL - too many jobs wait; the job stays the caller's. */
enum err_code disk_submit(struct disk *d, struct disk_job *job) MUST_CHECK;
/* What is queued is run first, as long as jobs end: one that takes longer than max_us (a disk that hangs), or all of them three times
 * that, is given up, which the log says with `what` is lost. Nobody may submit any more. d may be NULL. False: the thread still
 * runs, and d, the queued jobs and all that they use must be left alone until the process ends. */
bool disk_free(struct disk *d, const char *what, int64_t max_us) MUST_CHECK;
#define DISK_CLOSE_US 10000000 /* what those who keep files wait */

#endif
