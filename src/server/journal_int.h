/* journal_int.h - the files of the journal. Thread: the disk thread alone. */
#ifndef PLUMB_SERVER_JOURNAL_INT_H
#define PLUMB_SERVER_JOURNAL_INT_H

#include "server/journal.h"

#define JOURNAL_SUFFIX     ".gen"
#define JOURNAL_BAD_SUFFIX ".gen.bad"
#define JOURNAL_PATH_BYTES 4400

/* A record that is being written. */
struct journal_file {
    struct journal_file *next;
    char name[JOURNAL_NAME_BYTES];
    int fd; /* locked */
    size_t size;
    unsigned char check[JOURNAL_CHECK_BYTES]; /* of its last frame */
    bool is_named;                            /* its name in the directory is durable */
};

/* What the directory holds. */
struct journal_census {
    int64_t records, bytes;
};

/* Path of a record, or (name NULL) of the directory. */
void journal_path(const char *dir, const char *name, const char *suffix,
                  char out[JOURNAL_PATH_BYTES]);

/* Errors of all: ERR_FULL - no room on the disk; ERR_IO. */

/* Read a record. ERR_NOT_FOUND; ERR_STATE - another process writes it; ERR_INVALID, ERR_UNSUPPORTED - its bytes are no record. */
enum err_code journal_file_find(const char *dir, const char *name, int64_t ttl_s,
                                struct journal_record *out, struct err *err) MUST_CHECK;
/* Make a file for a new record; one of that name that nobody writes is overwritten. ERR_STATE as above. Directories are made. */
enum err_code journal_file_begin(const char *dir, const char *name, struct journal_file **out,
                                 struct err *err) MUST_CHECK;
/* Go on with the first n_valid bytes of one. */
enum err_code journal_file_resume(const char *dir, const char *name, size_t n_valid,
                                  const unsigned char *check, struct journal_file **out,
                                  struct err *err) MUST_CHECK;
/* Append sealed bytes. After an error the file ends where it did, or in a torn frame. */
enum err_code journal_file_append(const char *dir, struct journal_file *f, const void *data,
                                  size_t n, struct err *err) MUST_CHECK;
enum err_code journal_file_sync(const char *dir, struct journal_file *f,
                                struct err *err) MUST_CHECK;
void journal_file_close(struct journal_file *f); /* its age begins now */

/* Errors: ERR_NOT_FOUND. */
enum err_code journal_file_remove(const char *dir, const char *name, struct err *err) MUST_CHECK;
enum err_code journal_file_set_aside(const char *dir, const char *name, struct err *err) MUST_CHECK;

/* Count what there is; drop what is older than ttl_s, then the oldest until all are within max_bytes. Files that somebody writes stay. */
void journal_file_sweep(const char *dir, int64_t ttl_s, int64_t max_bytes,
                        struct journal_census *out);

#endif
