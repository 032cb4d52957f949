/* store.h - responses that are kept: a SQLite database in the state directory, bounded in bytes and age, that survives restarts.
 *
 * Several processes may share a directory. A row belongs to who created it (a hash of an API key or address); nobody else finds it.
 * What goes wrong with the disk never fails an answer: a damaged or foreign file is moved aside and a new one begun; a full or
 * unwritable disk switches the store off for STORE_OFF_SECONDS, and each is said in the log once.
 * Thread: the functions are the I/O thread's; all of SQLite happens on the disk thread. */
#ifndef PLUMB_SERVER_STORE_H
#define PLUMB_SERVER_STORE_H

#include "base/buf.h"
#include "base/disk.h"

#define STORE_ID_BYTES    80          /* of a response's id, terminator included */
#define STORE_WHO_BYTES   32          /* hash of who asks */
#define STORE_OFF_SECONDS 60          /* after the disk failed; then it is tried again */
#define STORE_QUEUED      256         /* jobs that wait for the disk thread ... */
#define STORE_QUEUE_BYTES (256 << 20) /* ... and their bytes */
#define STORE_CHAIN_ROWS  4096        /* turns of one conversation ... */
#define STORE_CHAIN_BYTES (64 << 20)  /* ... and their bytes */

enum store_status { /* of a row; what it means is response.h's */
                    STORE_STATUS_RUNNING = 0,
                    STORE_STATUS_OVER = 1,
};

struct store_row {
    char id[STORE_ID_BYTES], previous[STORE_ID_BYTES]; /* previous: "" = none */
    int64_t created_s;                                 /* Unix time */
    enum store_status status;
    bool is_orphan;                        /* it ran in a process that is gone: it will never end */
    struct buf frame, input, log, outcome; /* see response.h */
};

enum store_op {
    STORE_OP_OPEN, /* sent by the store itself */
    STORE_OP_PUT,  /* rows[0] is added or takes the place of the one with its id */
    STORE_OP_GET,  /* the row named id */
    STORE_OP_CHAIN, /* the row named id and all before it, the oldest first; then the rows of `more` */
    STORE_OP_DELETE, /* the row named id */
};

struct store_job {
    struct disk_job disk;
    enum store_op op;
    unsigned char who[STORE_WHO_BYTES];
    char id[STORE_ID_BYTES];      /* GET, CHAIN ("" = no chain), DELETE */
    char (*more)[STORE_ID_BYTES]; /* CHAIN: [n_more] rows that are wanted, too; the job's */
    int32_t n_more;
    void *owner;  /* the caller's, not looked at ... */
    bool is_last; /* ... as this */
    /* results; of PUT: rows[0] */
    struct store_row *rows; /* [n] */
    int32_t n;
    int32_t n_chain; /* CHAIN: of those, the chain's */
    struct err err; /* code ERR_OK: done. ERR_NOT_FOUND: no such row, id names it. Else: the disk */
    /* private to store.c */
    struct store *store;
    struct store_job *next;
    size_t bytes;
};

struct store_job *store_job_new(enum store_op op, int32_t n_rows);
void store_job_free(struct store_job *job); /* may be NULL */

struct store_config {
    const char *dir;         /* made if missing */
    int64_t max_bytes;       /* of all rows: the least recently used ones go */
    int64_t max_age_s;       /* since a row was last used */
    void (*wake)(void *arg); /* thread: disk; a job is done: store_next has it */
    void *wake_arg;
};

struct store_stats { /* each number by itself */
    int64_t is_on, rows, bytes, puts, losses;
};

struct store;

/* Opens what is there already; the first PUT makes directory and file. */
struct store *store_new(const struct store_config *config);
void store_free(struct store *s); /* what is queued is done first (disk_free); s may be NULL */
/* Errors: ERR_FULL - the disk thread is behind; the job stays the caller's. */
enum err_code store_submit(struct store *s, struct store_job *job) MUST_CHECK;
struct store_job *store_next(struct store *s); /* one that is done, the caller's again; or NULL */
void store_read_stats(const struct store *s,
                      struct store_stats *out); /* thread: any; s may be NULL */

#endif
