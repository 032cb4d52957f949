/* journal.h - records of generations in a directory, written behind by a thread of their own.
 *
 * Several processes may share a directory: who writes a record holds a lock on its file. What goes wrong with the disk never fails an
 * answer: a damaged or foreign file is moved aside (.bad), a full or unwritable disk switches the journal off for
 * JOURNAL_OFF_SECONDS, and each is said in the log once. A record that misses its newest tokens is as good as any: they are computed
 * again.
 * Thread: the functions are the I/O thread's; all files are the disk thread's. */
#ifndef PLUMB_SERVER_JOURNAL_H
#define PLUMB_SERVER_JOURNAL_H

#include "base/disk.h"
#include "server/journal_record.h"

#define JOURNAL_OFF_SECONDS 60         /* after the disk failed; then it is tried again */
#define JOURNAL_QUEUED      1024       /* jobs that wait for the disk thread ... */
#define JOURNAL_QUEUE_BYTES (64 << 20) /* ... and their bytes; a single larger one is taken */

enum journal_op {
    JOURNAL_OP_OPEN,   /* sent by the journal itself */
    JOURNAL_OP_FIND,   /* comes back with the record of that name, if there is one */
    JOURNAL_OP_BEGIN,  /* a new record: `frames` are its first */
    JOURNAL_OP_RESUME, /* the record that FIND gave: what is behind n_valid is cut off */
    JOURNAL_OP_APPEND, /* `frames` */
    JOURNAL_OP_KEEP,   /* no more comes */
    JOURNAL_OP_REMOVE,
    JOURNAL_OP_DISTRUST, /* what it says is wrong: moved aside */
};

struct journal_job {
    struct disk_job disk;
    enum journal_op op;
    char name[JOURNAL_NAME_BYTES];
    void *owner; /* FIND: the caller's, not looked at */
    /* FIND */
    const char *dialect; /* static; NULL: there is no body */
    struct buf body;     /* the job's; dialect and it are digested for the caller */
    unsigned char digest[JOURNAL_DIGEST_BYTES];
    struct journal_record *record; /* the result, the job's; NULL: none */
    bool is_elsewhere;             /* another process writes it */
    /* RESUME */
    size_t n_valid;
    unsigned char check[JOURNAL_CHECK_BYTES];
    /* BEGIN, APPEND */
    struct buf frames; /* journal_add_frame */
    bool is_synced;    /* BEGIN, APPEND: all of the record so far is durable then */
    /* private to journal.c */
    struct journal *journal;
    struct journal_job *next;
    size_t bytes;
};

struct journal_job *journal_job_new(enum journal_op op, const char *name);
void journal_job_free(struct journal_job *job); /* may be NULL */
/* payload is of journal_record.h. Nothing is added where it has failed. */
void journal_add_frame(struct journal_job *job, char type, const struct buf *payload);

struct journal_config {
    const char *dir;         /* made if missing */
    int64_t max_bytes;       /* of all files: those that nobody writes go, the oldest first */
    int64_t ttl_s;           /* so long a record that nobody writes stays */
    void (*wake)(void *arg); /* thread: disk; a FIND is done: journal_next has it */
    void *wake_arg;
};

struct journal_stats { /* each number by itself */
    int64_t is_on, records, bytes, begun, losses;
};

struct journal;

struct journal *journal_new(const struct journal_config *config);
void journal_free(struct journal *j); /* what is queued is done first (disk_free); j may be NULL */
/* Errors: ERR_FULL - the disk thread is behind; the job stays the caller's. */
enum err_code journal_submit(struct journal *j, struct journal_job *job) MUST_CHECK;
struct journal_job *journal_next(struct journal *j); /* a FIND, the caller's again; or NULL */
void journal_read_stats(const struct journal *j,
                        struct journal_stats *out); /* thread: any; j may be NULL */

#endif
