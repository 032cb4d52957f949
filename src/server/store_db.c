/* store_db.c - the SQLite side of the store: file, schema, rows.
 *
 * Invariants: (1) size.rows and size.bytes are what the table holds, kept by triggers, so that two processes agree; (2) a row whose
 * digest does not fit its columns does not exist; (3) each process holds a lock on one byte of the lock file, at the offset that its
 * running rows name: the kernel lets go of it when the process dies, however it dies. */
#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#undef ERR_STATE

#include "base/clock.h"
#include "base/log.h"
#include "server/store_int.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define STORE_DB_APPLICATION 0x706c6d62 /* "plmb" */
#define STORE_DB_VERSION     1
#define STORE_DB_LOCK_NAME   "responses.lock"
#define STORE_DB_BUSY_MS     5000 /* another process writes */
#define STORE_DB_ROW_BYTES   512  /* what a row costs beside its columns */
#define STORE_DB_PAGES_FREED 256  /* given back to the file system after each change */

#define OWNER_BYTES  16
#define DIGEST_BYTES 16

struct store_db {
    sqlite3 *sql;
    int lock_fd;
    int64_t boot;             /* offset of our lock; never 0 */
    unsigned char secret[32]; /* of owners; lives in the file */
};

/* --- errors --- */

static enum err_code store_db_code(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
        return ERR_INVALID;
    case SQLITE_FULL:
        return ERR_FULL;
    default:
        return rc == SQLITE_IOERR_WRITE && errno == EFBIG ? ERR_FULL : ERR_IO;
    }
}

static enum err_code store_db_fail(struct store_db *db, const char *what, struct err *err)
{
    int rc = sqlite3_extended_errcode(db->sql);
    return err_set(err, store_db_code(rc), "%s: %s (SQLite %d)", what, sqlite3_errmsg(db->sql), rc);
}

/* --- statements --- */

static enum err_code store_db_exec(struct store_db *db, const char *sql, struct err *err)
{
    return sqlite3_exec(db->sql, sql, NULL, NULL, NULL) == SQLITE_OK
               ? ERR_OK
               : store_db_fail(db, "store", err);
}

static enum err_code store_db_prepare(struct store_db *db, const char *sql, sqlite3_stmt **out,
                                      struct err *err)
{
    *out = NULL;
    return sqlite3_prepare_v2(db->sql, sql, -1, out, NULL) == SQLITE_OK
               ? ERR_OK
               : store_db_fail(db, "store", err);
}

/* Run a statement that gives no rows, and end it. */
static enum err_code store_db_finish(struct store_db *db, sqlite3_stmt *st, struct err *err)
{
    enum err_code code = sqlite3_step(st) == SQLITE_DONE ? ERR_OK : store_db_fail(db, "store", err);
    sqlite3_finalize(st);
    return code;
}

/* The first column of the first row as an integer; `otherwise` where there is no row. */
static enum err_code store_db_int(struct store_db *db, const char *sql, int64_t otherwise,
                                  int64_t *out, struct err *err)
{
    sqlite3_stmt *st;
    *out = otherwise;
    enum err_code code = store_db_prepare(db, sql, &st, err);
    if (code != ERR_OK)
        return code;
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int64(st, 0);
    else if (rc != SQLITE_DONE)
        code = store_db_fail(db, "store", err);
    sqlite3_finalize(st);
    return code;
}

/* --- who runs what --- */

static struct flock store_db_lock_at(int64_t offset)
{
    return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1 };
}

/* A number of our own and the lock that shows that we live. */
static enum err_code store_db_lock(struct store_db *db, const char *dir, struct err *err)
{
    char path[4200];
    uint64_t any;
    snprintf(path, sizeof(path), "%s/" STORE_DB_LOCK_NAME, dir);
    db->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (db->lock_fd < 0)
        return err_set(err, errno == ENOSPC ? ERR_FULL : ERR_IO, "%s: %s", path, strerror(errno));
    do {
        BUG_ON(getrandom(&any, sizeof(any), 0) != (ssize_t)sizeof(any));
        db->boot = (int64_t)(any >> 2) + 1;
        struct flock own = store_db_lock_at(db->boot);
        if (fcntl(db->lock_fd, F_OFD_SETLK, &own) == 0)
            return ERR_OK;
    } while (errno == EAGAIN || errno == EACCES);
    return err_set(err, ERR_IO, "%s: cannot lock: %s", path, strerror(errno));
}

static bool store_db_is_alive(const struct store_db *db, int64_t boot)
{
    struct flock other = store_db_lock_at(boot);
    if (boot == db->boot)
        return true;
    return boot > 0 && fcntl(db->lock_fd, F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK;
}

/* --- open --- */

static const char store_db_schema[] =
    "PRAGMA application_id=0x706c6d62;"
    "PRAGMA user_version=1;"
    "CREATE TABLE secret(value BLOB NOT NULL);"
    "CREATE TABLE size(rows INTEGER NOT NULL, bytes INTEGER NOT NULL);"
    "INSERT INTO size VALUES(0,0);"
    "CREATE TABLE response("
    " id TEXT PRIMARY KEY, owner BLOB NOT NULL, previous TEXT NOT NULL, created INTEGER NOT NULL,"
    " used INTEGER NOT NULL, status INTEGER NOT NULL, boot INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, digest BLOB NOT NULL,"
    " frame TEXT NOT NULL, input TEXT NOT NULL, log BLOB NOT NULL, outcome TEXT NOT NULL);"
    "CREATE INDEX response_used ON response(used);"
    "CREATE TRIGGER response_add AFTER INSERT ON response BEGIN"
    " UPDATE size SET rows=rows+1, bytes=bytes+new.bytes; END;"
    "CREATE TRIGGER response_drop AFTER DELETE ON response BEGIN"
    " UPDATE size SET rows=rows-1, bytes=bytes-old.bytes; END;";

static enum err_code store_db_read_secret(struct store_db *db, struct err *err)
{
    sqlite3_stmt *st;
    enum err_code code = store_db_prepare(db, "SELECT value FROM secret", &st, err);
    if (code != ERR_OK)
        return code;
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW && sqlite3_column_bytes(st, 0) == (int)sizeof(db->secret))
        memcpy(db->secret, sqlite3_column_blob(st, 0), sizeof(db->secret));
    else if (rc == SQLITE_ROW || rc == SQLITE_DONE)
        code = err_set(err, ERR_INVALID, "store: the file has no secret");
    else
        code = store_db_fail(db, "store", err);
    sqlite3_finalize(st);
    return code;
}

/* A new file becomes ours; caller holds the transaction. */
static enum err_code store_db_create(struct store_db *db, struct err *err)
{
    sqlite3_stmt *st;
    enum err_code code = store_db_exec(db, store_db_schema, err);
    if (code == ERR_OK)
        code = store_db_prepare(db, "INSERT INTO secret VALUES(?)", &st, err);
    if (code != ERR_OK)
        return code;
    BUG_ON(getrandom(db->secret, sizeof(db->secret), 0) != (ssize_t)sizeof(db->secret));
    sqlite3_bind_blob(st, 1, db->secret, sizeof(db->secret), SQLITE_STATIC);
    return store_db_finish(db, st, err);
}

/* Is it ours, and of a version that we know? *is_empty: it is anybody's. Nothing is written. */
static enum err_code store_db_identify(struct store_db *db, bool *is_empty, struct err *err)
{
    int64_t n = 0, application = 0, version = 0;
    enum err_code code = store_db_int(db, "SELECT count(*) FROM sqlite_master", 0, &n, err);
    if (code == ERR_OK)
        code = store_db_int(db, "PRAGMA application_id", 0, &application, err);
    if (code == ERR_OK)
        code = store_db_int(db, "PRAGMA user_version", 0, &version, err);
    *is_empty = n == 0;
    if (code != ERR_OK || *is_empty)
        return code;
    if (application != STORE_DB_APPLICATION)
        return err_set(err, ERR_INVALID, "store: the file is a database of another program");
    if (version != STORE_DB_VERSION)
        return err_set(err, ERR_INVALID, "store: the file has version %lld, this program knows %d",
                       (long long)version, STORE_DB_VERSION);
    return ERR_OK;
}

static enum err_code store_db_setup(struct store_db *db, struct err *err)
{
    bool is_empty;
    enum err_code code =
        store_db_exec(db, "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON", err);
    if (code == ERR_OK)
        code = store_db_identify(db, &is_empty, err);
    if (code == ERR_OK)
        code = store_db_exec(db,
                             "PRAGMA auto_vacuum=INCREMENTAL; PRAGMA secure_delete=ON;"
                             "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                             "PRAGMA journal_size_limit=16777216;"
                             "BEGIN IMMEDIATE",
                             err);
    if (code != ERR_OK)
        return code;
    code = store_db_identify(db, &is_empty, err); /* another process may have made it ours */
    if (code == ERR_OK)
        code = is_empty ? store_db_create(db, err) : store_db_read_secret(db, err);
    if (code == ERR_OK)
        code = store_db_exec(db, "COMMIT", err);
    if (code != ERR_OK)
        (void)!store_db_exec(db, "ROLLBACK", NULL);
    return code;
}

/* mkdir -p, for the owner alone. */
static enum err_code store_db_make_dir(const char *dir, struct err *err)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s", dir) >= sizeof(path))
        return err_set(err, ERR_INVALID, "the state directory's name is too long");
    for (char *p = path + 1;; p++) {
        char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return err_set(err, errno == ENOSPC ? ERR_FULL : ERR_IO, "%s: %s", path,
                           strerror(errno));
        *p = c;
        if (c == '\0')
            return ERR_OK;
    }
}

/* The file exists from here on, readable by its owner alone (SQLite gives its side files the same mode). */
static enum err_code store_db_make_file(const char *dir, const char *path, bool is_new,
                                        struct err *err)
{
    if (is_new) {
        enum err_code code = store_db_make_dir(dir, err);
        if (code != ERR_OK)
            return code;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC | (is_new ? O_CREAT : 0), 0600);
    if (fd < 0)
        return err_set(err,
                       errno == ENOENT   ? ERR_NOT_FOUND
                       : errno == ENOSPC ? ERR_FULL
                                         : ERR_IO,
                       "%s: %s", path, strerror(errno));
    close(fd);
    return ERR_OK;
}

enum err_code store_db_open(const char *dir, bool is_new, struct store_db **out, struct err *err)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/" STORE_DB_NAME, dir);
    enum err_code code = store_db_make_file(dir, path, is_new, err);
    if (code != ERR_OK)
        return code;
    struct store_db *db = mem_alloc(MEM_CAT_SERVER, sizeof(*db));
    db->lock_fd = -1;
    code = store_db_lock(db, dir, err);
    if (code == ERR_OK) {
        int rc = sqlite3_open_v2(path, &db->sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
        sqlite3_busy_timeout(db->sql, STORE_DB_BUSY_MS);
        code = rc == SQLITE_OK ? store_db_setup(db, err) : store_db_fail(db, path, err);
    }
    if (code != ERR_OK) {
        store_db_close(db);
        return code;
    }
    *out = db;
    return ERR_OK;
}

void store_db_close(struct store_db *db)
{
    if (!db)
        return;
    sqlite3_close(db->sql);
    if (db->lock_fd >= 0)
        close(db->lock_fd);
    mem_free(MEM_CAT_SERVER, db);
}

enum err_code store_db_move_aside(const char *dir, char *name, size_t n, struct err *err)
{
    static const char *const ends[] = { "", "-wal", "-shm" };
    char from[4200], to[4300];
    int64_t now = clock_wall_s();
    int i = 0;
    do {
        snprintf(name, n, "%s/" STORE_DB_NAME ".damaged-%lld%c", dir, (long long)now, 'a' + i);
    } while (access(name, F_OK) == 0 && ++i < 26);
    for (size_t k = 0; k < ARRAY_LEN(ends); k++) {
        snprintf(from, sizeof(from), "%s/" STORE_DB_NAME "%s", dir, ends[k]);
        snprintf(to, sizeof(to), "%s%s", name, ends[k]);
        if (rename(from, to) != 0 && errno != ENOENT)
            return err_set(err, ERR_IO, "%s: cannot be moved aside: %s", from, strerror(errno));
    }
    return ERR_OK;
}

/* --- rows --- */

static void store_db_owner(const struct store_db *db, const unsigned char *who,
                           unsigned char *owner)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned int n = sizeof(hash);
    BUG_ON(!HMAC(EVP_sha256(), db->secret, sizeof(db->secret), who, STORE_WHO_BYTES, hash, &n));
    memcpy(owner, hash, OWNER_BYTES);
}

/* Of the columns that are text or blobs, and of their lengths. */
static void store_db_digest(const struct store_row *r, unsigned char *digest)
{
    const struct buf *const columns[] = { &r->frame, &r->input, &r->log, &r->outcome };
    unsigned char hash[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    BUG_ON(!md || !EVP_DigestInit_ex(md, EVP_sha256(), NULL));
    EVP_DigestUpdate(md, r->id, strlen(r->id) + 1);
    for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
        uint64_t n = columns[i]->len;
        EVP_DigestUpdate(md, &n, sizeof(n));
        EVP_DigestUpdate(md, columns[i]->data, columns[i]->len);
    }
    EVP_DigestFinal_ex(md, hash, NULL);
    EVP_MD_CTX_free(md);
    memcpy(digest, hash, DIGEST_BYTES);
}

static int64_t store_db_row_bytes(const struct store_row *r)
{
    return (int64_t)(r->frame.len + r->input.len + r->log.len + r->outcome.len) +
           STORE_DB_ROW_BYTES;
}

/* Rows that are too old, then the ones used least recently until `bytes` more fit. Running rows of this or another process may go too:
 * their end brings them back. Caller holds the transaction. */
static enum err_code store_db_make_room(struct store_db *db, int64_t bytes, int64_t max_bytes,
                                        int64_t max_age_s, struct err *err)
{
    char sql[128];
    int64_t held = 0;
    snprintf(sql, sizeof(sql), "DELETE FROM response WHERE used < %lld",
             (long long)(clock_wall_s() - max_age_s));
    enum err_code code = store_db_exec(db, sql, err);
    while (code == ERR_OK) {
        code = store_db_int(db, "SELECT bytes FROM size", 0, &held, err);
        if (code != ERR_OK || held <= 0 || held + bytes <= max_bytes)
            break;
        code = store_db_exec(db,
                             "DELETE FROM response WHERE rowid="
                             "(SELECT rowid FROM response ORDER BY used,rowid LIMIT 1)",
                             err);
        if (code == ERR_OK && sqlite3_changes(db->sql) == 0)
            code = err_set(err, ERR_INVALID, "store: the file's own size is wrong");
    }
    return code;
}

static enum err_code store_db_insert(struct store_db *db, const unsigned char *owner,
                                     const struct store_row *r, struct err *err)
{
    unsigned char digest[DIGEST_BYTES];
    sqlite3_stmt *st;
    enum err_code code = store_db_prepare(
        db,
        "INSERT INTO response(id,owner,previous,created,used,status,boot,bytes,digest,"
        "frame,input,log,outcome) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
        &st, err);
    if (code != ERR_OK)
        return code;
    store_db_digest(r, digest);
    sqlite3_bind_text(st, 1, r->id, -1, SQLITE_STATIC);
    sqlite3_bind_blob(st, 2, owner, OWNER_BYTES, SQLITE_STATIC);
    sqlite3_bind_text(st, 3, r->previous, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 4, r->created_s);
    sqlite3_bind_int64(st, 5, clock_wall_s());
    sqlite3_bind_int64(st, 6, r->status);
    sqlite3_bind_int64(st, 7, db->boot);
    sqlite3_bind_int64(st, 8, store_db_row_bytes(r));
    sqlite3_bind_blob(st, 9, digest, DIGEST_BYTES, SQLITE_STATIC);
    sqlite3_bind_text(st, 10, r->frame.data, (int)r->frame.len, SQLITE_STATIC);
    sqlite3_bind_text(st, 11, r->input.data, (int)r->input.len, SQLITE_STATIC);
    sqlite3_bind_blob64(st, 12, r->log.data, r->log.len, SQLITE_STATIC);
    sqlite3_bind_text(st, 13, r->outcome.data, (int)r->outcome.len, SQLITE_STATIC);
    return store_db_finish(db, st, err);
}

/* *n: rows that went. Caller holds the transaction. */
static enum err_code store_db_remove(struct store_db *db, const unsigned char *owner,
                                     const char *id, int *n, struct err *err)
{
    sqlite3_stmt *st;
    enum err_code code =
        store_db_prepare(db, "DELETE FROM response WHERE id=? AND owner=?", &st, err);
    if (code != ERR_OK)
        return code;
    sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC);
    sqlite3_bind_blob(st, 2, owner, OWNER_BYTES, SQLITE_STATIC);
    code = store_db_finish(db, st, err);
    *n = sqlite3_changes(db->sql);
    return code;
}

/* COMMIT, or ROLLBACK where code says so; pages that nobody needs go back to the file system. */
static enum err_code store_db_end(struct store_db *db, enum err_code code, struct err *err)
{
    char sql[64];
    if (code == ERR_OK)
        code = store_db_exec(db, "COMMIT", err);
    if (code != ERR_OK) {
        (void)!store_db_exec(db, "ROLLBACK", NULL);
        return code;
    }
    snprintf(sql, sizeof(sql), "PRAGMA incremental_vacuum(%d)", STORE_DB_PAGES_FREED);
    (void)!store_db_exec(db, sql, NULL); /* the row is in: what is not freed now is freed later */
    return ERR_OK;
}

enum err_code store_db_put(struct store_db *db, const unsigned char *who,
                           const struct store_row *row, int64_t max_bytes, int64_t max_age_s,
                           struct err *err)
{
    unsigned char owner[OWNER_BYTES];
    int64_t bytes = store_db_row_bytes(row);
    int n;
    if (bytes > max_bytes || bytes > 1 << 30)
        return err_set(err, ERR_UNSUPPORTED, "a response of %lld bytes, the whole store has %lld",
                       (long long)bytes, (long long)max_bytes);
    store_db_owner(db, who, owner);
    enum err_code code = store_db_exec(db, "BEGIN IMMEDIATE", err);
    if (code != ERR_OK)
        return code;
    code = store_db_remove(db, owner, row->id, &n, err);
    if (code == ERR_OK)
        code = store_db_make_room(db, bytes, max_bytes, max_age_s, err);
    if (code == ERR_OK)
        code = store_db_insert(db, owner, row, err);
    return store_db_end(db, code, err);
}

enum err_code store_db_delete(struct store_db *db, const unsigned char *who, const char *id,
                              struct err *err)
{
    unsigned char owner[OWNER_BYTES];
    int n = 0;
    store_db_owner(db, who, owner);
    enum err_code code = store_db_exec(db, "BEGIN IMMEDIATE", err);
    if (code != ERR_OK)
        return code;
    code = store_db_remove(db, owner, id, &n, err);
    if (code == ERR_OK && n == 0)
        code = err_set(err, ERR_NOT_FOUND, "no such response");
    return store_db_end(db, code, err);
}

static void store_db_column(sqlite3_stmt *st, int column, struct buf *out)
{
    const void *data = sqlite3_column_blob(st, column);
    buf_add(out, data, (size_t)sqlite3_column_bytes(st, column));
}

static void store_db_column_id(sqlite3_stmt *st, int column, char *out)
{
    const unsigned char *text = sqlite3_column_text(st, column);
    snprintf(out, STORE_ID_BYTES, "%s", text ? (const char *)text : "");
}

/* The row that st stands at. ERR_NOT_FOUND: it is damaged. */
static enum err_code store_db_take(struct store_db *db, sqlite3_stmt *st, struct store_row *row,
                                   struct err *err)
{
    unsigned char digest[DIGEST_BYTES];
    store_db_column_id(st, 0, row->id);
    store_db_column_id(st, 1, row->previous);
    row->created_s = sqlite3_column_int64(st, 2);
    row->status = sqlite3_column_int64(st, 3) == STORE_STATUS_RUNNING ? STORE_STATUS_RUNNING
                                                                      : STORE_STATUS_OVER;
    row->is_orphan =
        row->status == STORE_STATUS_RUNNING && !store_db_is_alive(db, sqlite3_column_int64(st, 4));
    store_db_column(st, 6, &row->frame);
    store_db_column(st, 7, &row->input);
    store_db_column(st, 8, &row->log);
    store_db_column(st, 9, &row->outcome);
    if (row->frame.failed || row->input.failed || row->log.failed || row->outcome.failed)
        return err_set(err, ERR_NOMEM, "no memory for a stored response");
    store_db_digest(row, digest);
    if (sqlite3_column_bytes(st, 5) == DIGEST_BYTES &&
        memcmp(sqlite3_column_blob(st, 5), digest, DIGEST_BYTES) == 0)
        return ERR_OK;
    log_warn("store", "%s is damaged and counts as lost", row->id);
    return err_set(err, ERR_NOT_FOUND, "the stored response is damaged");
}

/* Best effort: where nothing can be written, what is there can still be read. */
static void store_db_touch(struct store_db *db, const char *id)
{
    sqlite3_stmt *st;
    int64_t now = clock_wall_s();
    if (store_db_prepare(db, "UPDATE response SET used=? WHERE id=? AND used<?", &st, NULL) !=
        ERR_OK)
        return;
    sqlite3_bind_int64(st, 1, now);
    sqlite3_bind_text(st, 2, id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, now - 60); /* a write a minute is enough */
    (void)!store_db_finish(db, st, NULL);
}

enum err_code store_db_get(struct store_db *db, const unsigned char *who, const char *id,
                           int64_t max_age_s, struct store_row *row, struct err *err)
{
    unsigned char owner[OWNER_BYTES];
    sqlite3_stmt *st;
    store_db_owner(db, who, owner);
    enum err_code code = store_db_prepare(
        db,
        "SELECT id,previous,created,status,boot,digest,frame,input,log,outcome FROM response"
        " WHERE id=? AND owner=? AND used>=?",
        &st, err);
    if (code != ERR_OK)
        return code;
    sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC);
    sqlite3_bind_blob(st, 2, owner, OWNER_BYTES, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, clock_wall_s() - max_age_s);
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        code = store_db_take(db, st, row, err);
    else if (rc == SQLITE_DONE)
        code = err_set(err, ERR_NOT_FOUND, "no such response");
    else
        code = store_db_fail(db, "store", err);
    sqlite3_finalize(st);
    if (code == ERR_OK)
        store_db_touch(db, id);
    return code;
}

enum err_code store_db_size(struct store_db *db, int64_t *rows, int64_t *bytes, struct err *err)
{
    enum err_code code = store_db_int(db, "SELECT rows FROM size", 0, rows, err);
    return code == ERR_OK ? store_db_int(db, "SELECT bytes FROM size", 0, bytes, err) : code;
}
