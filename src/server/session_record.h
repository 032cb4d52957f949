/* session_record.h - the name of a session, and its record: the token ids of its histories, by which it can be restored after a restart.
 *
 *   file    "plumbse" and the format's version, a digit | head | check | ids, i32 each | check      (all numbers little-endian)
 *   head    32 bytes who | 32 bytes salt | texts model, name as u32 length and bytes | i64 created, saved | u32 histories
 *           | u32 ids, u32 cut of each
 *   check   the first 16 bytes of SHA-256 over all before it
 * Ids are all that it needs: what layers keep of them is found by them, in memory or on disk, or computed again.
 * A file's name is a hash over whose it is, of which salt, model and name: nobody else's is found by it.
 *
 * Pure: no files, no threads. */
#ifndef PLUMB_SERVER_SESSION_RECORD_H
#define PLUMB_SERVER_SESSION_RECORD_H

#include "base/buf.h"
#include "engine/engine.h"
#include "server/limits.h"

#define SESSION_WHO_BYTES   32 /* hash of who asks */
#define SESSION_MODEL_BYTES 80 /* digest of the weights, as text */
#define SESSION_FILE_BYTES  41 /* of a file's name without its end, NUL included */
#define SESSION_BRANCHES    4  /* histories of one session */
#define SESSION_HEAD_BYTES \
    (8 + 64 + 8 + SESSION_MODEL_BYTES + LIMIT_SESSION_BYTES + 20 + 8 * SESSION_BRANCHES + 16)

struct session_history {
    int32_t *ids; /* [n] MEM_CAT_SERVER */
    int32_t n;
    int32_t cut; /* tokens of the newest prompt's stable boundary; 0 = not known */
};

struct session_record {
    unsigned char who[SESSION_WHO_BYTES];
    uint8_t salt[ENGINE_SALT_BYTES];
    char model[SESSION_MODEL_BYTES];
    char name[LIMIT_SESSION_BYTES + 1];
    int64_t created_s, saved_s;
    int32_t n_histories;
    struct session_history histories[SESSION_BRANCHES]; /* the newest first */
};

/* May a client name a session so? Letters, digits and "-_.:", at most LIMIT_SESSION_BYTES. */
bool session_name_is_fine(const char *name, size_t n);
/* A name for any text: itself where that is one, else "sha256:" and 32 hex digits. out[LIMIT_SESSION_BYTES + 1]. */
void session_name_of(const char *text, size_t n, char *out);

/* The digest of a cache_salt, as engine_request has it. */
void session_salt_of(const char *text, size_t n, uint8_t out[ENGINE_SALT_BYTES]);

/* The name of the record's file. */
void session_file_name(const struct session_record *r, char out[SESSION_FILE_BYTES]);

void session_record_write(const struct session_record *r, struct buf *out);
/* Read a file's first n bytes up to the end of its head: no history has its ids then. Errors: ERR_INVALID - damaged, or none; ERR_UNSUPPORTED - of
 * another version. */
enum err_code session_record_read_head(const void *data, size_t n, struct session_record *out,
                                       struct err *err) MUST_CHECK;
/* Read a whole file. Release in any case. Errors: as above, ERR_NOMEM. */
enum err_code session_record_read(const void *data, size_t n, struct session_record *out,
                                  struct err *err) MUST_CHECK;
void session_record_release(struct session_record *r); /* fine on a zeroed struct */
/* False: no memory; the copy has no histories then. */
bool session_record_copy(const struct session_record *from, struct session_record *to) MUST_CHECK;

#endif
