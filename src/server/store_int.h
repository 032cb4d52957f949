/* store_int.h - the database of the store. Thread: the disk thread alone. */
#ifndef PLUMB_SERVER_STORE_INT_H
#define PLUMB_SERVER_STORE_INT_H

#include "server/store.h"

#define STORE_DB_NAME "responses.db"

struct store_db;

/* Open dir's database. is_new: make directory and file where they are missing, else ERR_NOT_FOUND for want of a file.
 * Errors: ERR_INVALID - the file is damaged, of another program, or of a newer version; ERR_FULL - no room on the disk; ERR_IO. */
enum err_code store_db_open(const char *dir, bool is_new, struct store_db **out,
                            struct err *err) MUST_CHECK;
void store_db_close(struct store_db *db); /* may be NULL */
/* Put the files of a database that is closed out of the way; name[n] is told where the main one went. */
enum err_code store_db_move_aside(const char *dir, char *name, size_t n,
                                  struct err *err) MUST_CHECK;

/* Errors of all: as above, and ERR_NOT_FOUND - nobody of that who has such an id (expired and damaged ones are none). */

/* Add or replace. Rows make room that were used least recently. ERR_UNSUPPORTED: it is over max_bytes by itself. */
enum err_code store_db_put(struct store_db *db, const unsigned char *who,
                           const struct store_row *row, int64_t max_bytes, int64_t max_age_s,
                           struct err *err) MUST_CHECK;
/* The row counts as used now. */
enum err_code store_db_get(struct store_db *db, const unsigned char *who, const char *id,
                           int64_t max_age_s, struct store_row *row, struct err *err) MUST_CHECK;
enum err_code store_db_delete(struct store_db *db, const unsigned char *who, const char *id,
                              struct err *err) MUST_CHECK;
enum err_code store_db_size(struct store_db *db, int64_t *rows, int64_t *bytes,
                            struct err *err) MUST_CHECK;

#endif
