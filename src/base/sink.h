/* sink.h - a file that appears under its name only when it is whole.
 *
 * Bytes go to NAME.part-PID beside it; sink_commit flushes them to the disk and renames. What is not committed is removed by
 * sink_abort. Not thread-safe. Writing to a full disk gives ERR_IO with the system's words. */
#ifndef PLUMB_BASE_SINK_H
#define PLUMB_BASE_SINK_H

#include "base/mem.h"

struct sink {
    int fd; /* -1: closed */
    char *path, *part;
    uint64_t n; /* bytes given so far */
    /* private to sink.c */
    char *held; /* [SINK_HELD] */
    size_t n_held;
};

/* Errors: ERR_IO - the directory is absent or not to be written, the part file is there already. On error *s is closed. */
enum err_code sink_open(struct sink *s, const char *path, struct err *err) MUST_CHECK;
enum err_code sink_write(struct sink *s, const void *data, size_t n, struct err *err) MUST_CHECK;
/* Zeros up to the next multiple of align, a power of two. */
enum err_code sink_pad(struct sink *s, size_t align, struct err *err) MUST_CHECK;
/* Everything given so far is on the disk, under s->part. */
enum err_code sink_sync(struct sink *s, struct err *err) MUST_CHECK;
/* On the disk, under its name, closed. On error the part file is gone and the sink closed. */
enum err_code sink_commit(struct sink *s, struct err *err) MUST_CHECK;
void sink_abort(struct sink *s); /* fine on a closed or zeroed one */

/* The names in a directory are on the disk. */
enum err_code sink_sync_dir(const char *dir, struct err *err) MUST_CHECK;

#endif
