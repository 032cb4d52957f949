/* tier.h - kept histories on disk: files of a directory, their index, and the thread that writes and reads them.
 *
 * DIR/plumb-ssd-cache.lock   whose it is while a process runs (flock), and the secret that keys are made with
 * DIR/SPACE/KEY.node|.end    files of one namespace (tier_file.h); other namespaces' count to the cap and go by age
 * DIR/quarantine/            files that could not be used, at most TIER_QUARANTINE_MAX; beyond that they are deleted
 * What is none of ours is left alone. A second process is refused.
 *
 * Owns: the index, the disk thread, and jobs with a buffer for one file each: there are no more of them, so that nothing queues up
 * without bound. The caller fills a job's buffer and submits it; it comes back by tier_done. Reads go before writes. Nothing here waits
 * for the disk but tier_open (the lock) and tier_close.
 * Trouble: where a write or read fails as no damaged file explains, that direction is off for TIER_OFF_SECONDS and said once.
 * Thread: the caller's one (the engine's), but tier_read_stats: any. */
#ifndef PLUMB_ENGINE_TIER_H
#define PLUMB_ENGINE_TIER_H

#include "base/disk.h"
#include "engine/tier_file.h"

#define TIER_OFF_SECONDS    60
#define TIER_QUARANTINE_MAX 16
#define TIER_FILES_MAX      (1 << 20)
#define TIER_STAGE_BYTES    (32 << 20) /* buffers of one direction, but for ... */
#define TIER_JOBS_MAX       32         /* ... their number; at least 2 */

struct tier_options {
    const char *dir; /* made if missing; copied */
    int64_t max_bytes;
    struct tier_space space;
    size_t end_bytes; /* largest payload of an END; 0: ENDs have the page of a NODE at most */
};

enum tier_op { TIER_OP_WRITE, TIER_OP_READ, TIER_OP_SYNC };

struct tier_job {
    struct disk_job disk; /* first: the disk thread's */
    enum tier_op op;
    struct tier_record record;
    uint8_t *file; /* header block, then the payload: payload_bytes of record */
    uint64_t tag;  /* the caller's */
    struct err
        err; /* when it comes back. WRITE: ERR_OK - the file is there (durable after the next SYNC) */
    /* private to tier.c from here */
    struct tier *tier;
    struct tier_job *next;
    size_t cap;
    bool is_big;
};

struct tier_stats { /* each number by itself */
    int64_t is_on;  /* both directions work */
    int64_t files, bytes, max_bytes;
    int64_t written, written_bytes, read, read_bytes;
    int64_t dropped; /* gave way, or were over the cap, before they were written */
    int64_t failed;  /* by the disk */
    int64_t evicted, quarantined, pending;
};

struct tier;

/* Errors: ERR_STATE - another process has the directory; ERR_IO, ERR_FULL, ERR_NOT_FOUND of making it; ERR_NOMEM. */
enum err_code tier_open(const struct tier_options *o, struct tier **out,
                        struct err *err) MUST_CHECK;
void tier_close(
    struct tier *t,
    int64_t max_us); /* what was submitted is done first, as by disk_free; may be NULL */

/* On the disk thread, whenever a job has come back or the index is complete. Must not block. */
void tier_set_wake(struct tier *t, void (*wake)(void *arg), void *arg);

bool tier_is_ready(struct tier *t);        /* the directory has been read */
bool tier_can_write(const struct tier *t); /* neither is off */
bool tier_can_read(const struct tier *t);
void tier_set_slow(struct tier *t, const char *why); /* a read took too long: reading is off */

struct tier_key tier_root(const struct tier *t, const uint8_t salt[ENGINE_SALT_BYTES]);
/* The file of a key, as far as the index knows. */
bool tier_find(struct tier *t, struct tier_key key, const uint8_t salt[ENGINE_SALT_BYTES],
               struct tier_record *out);
/* Of what stands directly behind parent, the file that begins with most of ids [n], of either kind; *run: how many. */
bool tier_find_run(struct tier *t, struct tier_key parent, const uint8_t salt[ENGINE_SALT_BYTES],
                   const int32_t *ids, int32_t n, struct tier_record *out, int32_t *run);
/* Of the ENDs behind parent whose ids all are the first of ids [n], that with the most. */
bool tier_find_end(struct tier *t, struct tier_key parent, const uint8_t salt[ENGINE_SALT_BYTES],
                   const int32_t *ids, int32_t n, struct tier_record *out);

/* A free job whose buffer holds the record's file, or NULL: all are busy. Submit it or give it back. */
struct tier_job *tier_take(struct tier *t, enum tier_op op, const struct tier_record *r);
void tier_submit(struct tier *t, struct tier_job *job);
struct tier_job *tier_done(struct tier *t); /* one that is done, or NULL */
void tier_give_back(struct tier *t, struct tier_job *job);
/* No job of this direction is out. */
bool tier_is_idle(struct tier *t, enum tier_op op);

void tier_count_dropped(struct tier *t, int64_t n);
void tier_count_pending(struct tier *t, int64_t n); /* that the caller has not submitted yet */
void tier_read_stats(const struct tier *t, struct tier_stats *out); /* t may be NULL */

#endif
