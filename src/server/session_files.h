/* session_files.h - records of sessions in a directory, one file each, on a thread of their own.
 *
 * A file is written beside its place, synced and renamed: a crash leaves the old one or the new one. Several processes may share a
 * directory. A damaged file is moved aside (.bad), which the log says. At most LIMIT_SESSIONS_SAVED of everyone's.
 * Thread: the functions are the I/O thread's; all files are the disk thread's. */
#ifndef PLUMB_SERVER_SESSION_FILES_H
#define PLUMB_SERVER_SESSION_FILES_H

#include "base/disk.h"
#include "server/session_record.h"

#define SESSION_FILES_QUEUED 256

enum session_op {
    SESSION_OP_SAVE,   /* `record`, durable when it comes back */
    SESSION_OP_LOAD,   /* the record whose who, salt, model and name `record` has */
    SESSION_OP_DELETE, /* that one; ERR_NOT_FOUND: there is none */
    SESSION_OP_LIST,   /* all heads of that who, salt and model */
};

struct session_job {
    struct disk_job disk;
    enum session_op op;
    struct session_record record;
    void *owner;                  /* the caller's, not looked at */
    struct session_record *heads; /* LIST: [n_heads] without ids, by name */
    int32_t n_heads;
    size_t bytes;   /* SAVE, LOAD: of the file */
    struct err err; /* ERR_OK: done. ERR_NOT_FOUND; ERR_FULL: too many, or the disk; ERR_IO */
    /* private to session_files.c */
    struct session_files *files;
    struct session_job *next;
};

struct session_job *session_job_new(enum session_op op);
void session_job_free(struct session_job *job); /* may be NULL */

struct session_files;

/* wake: thread: disk; a job is done: session_files_next has it. */
struct session_files *session_files_new(const char *dir, void (*wake)(void *arg), void *arg);
void session_files_free(
    struct session_files *f); /* what is queued is done first (disk_free); f may be NULL */
/* Errors: ERR_FULL - the disk thread is behind; the job stays the caller's. */
enum err_code session_files_submit(struct session_files *f, struct session_job *job) MUST_CHECK;
struct session_job *session_files_next(struct session_files *f); /* the caller's again; or NULL */

#endif
