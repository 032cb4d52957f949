#include "base/fio.h"
#include "server/journal_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void journal_path(const char *dir, const char *name, const char *suffix,
                  char out[JOURNAL_PATH_BYTES])
{
    snprintf(out, JOURNAL_PATH_BYTES, "%s/generations%s%s%s", dir, name ? "/" : "",
             name ? name : "", name ? suffix : "");
}

static bool journal_lock(int fd)
{
    int rc;
    do
        rc = flock(fd, LOCK_EX | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

/* Open and lock. ERR_STATE: another process has it. */
static enum err_code journal_open(const char *path, int flags, int *fd, struct err *err)
{
    *fd = fio_open(path, flags | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return fio_error(err, path);
    if (journal_lock(*fd))
        return ERR_OK;
    close(*fd);
    *fd = -1;
    return err_set(err, ERR_STATE, "%s is being written by another process", path);
}

static enum err_code journal_load(int fd, const char *path, struct buf *out, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fio_error(err, path);
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)JOURNAL_RECORD_BYTES)
        return err_set(err, ERR_INVALID, "%s: it is no file of at most %zu bytes", path,
                       JOURNAL_RECORD_BYTES);
    char *data = mem_try(MEM_CAT_SERVER, (size_t)st.st_size + 1);
    if (!data)
        return err_set(err, ERR_NOMEM, "%s: no memory for %lld bytes", path, (long long)st.st_size);
    ssize_t n = fio_read(fd, path, data, (size_t)st.st_size, 0);
    if (n > 0)
        buf_add(out, data, (size_t)n);
    mem_free(MEM_CAT_SERVER, data);
    return n < 0 ? fio_error(err, path) : ERR_OK;
}

static bool journal_is_old(const struct stat *st, int64_t ttl_s)
{
    return (int64_t)time(NULL) - (int64_t)st->st_mtime > ttl_s;
}

enum err_code journal_file_find(const char *dir, const char *name, int64_t ttl_s,
                                struct journal_record *out, struct err *err)
{
    char path[JOURNAL_PATH_BYTES];
    struct buf data;
    struct stat st;
    int fd;
    journal_path(dir, name, JOURNAL_SUFFIX, path);
    *out = (struct journal_record){ 0 };
    enum err_code code = journal_open(path, O_RDONLY, &fd, err);
    if (code)
        return code;
    buf_init(&data, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    if (fstat(fd, &st) == 0 && journal_is_old(&st, ttl_s))
        code = err_set(err, ERR_NOT_FOUND, "%s is older than %lld seconds", path, (long long)ttl_s);
    else
        code = journal_load(fd, path, &data, err);
    if (!code && journal_record_read(name, data.data, data.len, out, err) != ERR_OK)
        code = err_prefix(err, ERR_INVALID, "%s", path);
    close(fd);
    buf_release(&data);
    return code;
}

/* --- writing --- */

static struct journal_file *journal_file_new(const char *name, int fd)
{
    struct journal_file *f = mem_alloc(MEM_CAT_SERVER, sizeof(*f));
    snprintf(f->name, sizeof(f->name), "%s", name);
    f->fd = fd;
    return f;
}

enum err_code journal_file_begin(const char *dir, const char *name, struct journal_file **out,
                                 struct err *err)
{
    char path[JOURNAL_PATH_BYTES];
    int fd = -1;
    journal_path(dir, NULL, "", path);
    enum err_code code = fio_make_dirs(path, err);
    journal_path(dir, name, JOURNAL_SUFFIX, path);
    if (!code)
        code = journal_open(path, O_RDWR | O_CREAT, &fd, err);
    if (code)
        return code;
    if (ftruncate(fd, 0) != 0) {
        code = fio_error(err, path);
        close(fd);
        return code;
    }
    *out = journal_file_new(name, fd);
    return ERR_OK;
}

enum err_code journal_file_resume(const char *dir, const char *name, size_t n_valid,
                                  const unsigned char *check, struct journal_file **out,
                                  struct err *err)
{
    char path[JOURNAL_PATH_BYTES];
    struct stat st;
    int fd;
    journal_path(dir, name, JOURNAL_SUFFIX, path);
    enum err_code code = journal_open(path, O_RDWR, &fd, err);
    if (code)
        return code;
    if (fstat(fd, &st) != 0 || ftruncate(fd, (off_t)n_valid) != 0)
        code = fio_error(err, path);
    else if (st.st_size < (off_t)n_valid) /* it changed since it was read */
        code = err_set(err, ERR_STATE, "%s is shorter than it was", path);
    if (code) {
        close(fd);
        return code;
    }
    *out = journal_file_new(name, fd);
    (*out)->size = n_valid;
    (*out)->is_named = true;
    memcpy((*out)->check, check, JOURNAL_CHECK_BYTES);
    return ERR_OK;
}

enum err_code journal_file_append(const char *dir, struct journal_file *f, const void *data,
                                  size_t n, struct err *err)
{
    char path[JOURNAL_PATH_BYTES];
    journal_path(dir, f->name, JOURNAL_SUFFIX, path);
    if (fio_write(f->fd, path, data, n, (off_t)f->size)) {
        f->size += n;
        return ERR_OK;
    }
    enum err_code code = fio_error(err, path);
    (void)!ftruncate(f->fd, (off_t)f->size); /* a torn frame would do, too */
    return code;
}

enum err_code journal_file_sync(const char *dir, struct journal_file *f, struct err *err)
{
    char path[JOURNAL_PATH_BYTES];
    journal_path(dir, f->name, JOURNAL_SUFFIX, path);
    if (!fio_sync(f->fd, path))
        return fio_error(err, path);
    if (f->is_named)
        return ERR_OK;
    journal_path(dir, NULL, "", path);
    if (!fio_sync_dir(path))
        return fio_error(err, path);
    f->is_named = true;
    return ERR_OK;
}

void journal_file_close(struct journal_file *f)
{
    (void)!futimens(f->fd, NULL);
    close(f->fd);
    mem_free(MEM_CAT_SERVER, f);
}

enum err_code journal_file_remove(const char *dir, const char *name, struct err *err)
{
    char path[JOURNAL_PATH_BYTES];
    journal_path(dir, name, JOURNAL_SUFFIX, path);
    return fio_unlink(path) ? ERR_OK : fio_error(err, path);
}

enum err_code journal_file_set_aside(const char *dir, const char *name, struct err *err)
{
    char path[JOURNAL_PATH_BYTES], aside[JOURNAL_PATH_BYTES];
    journal_path(dir, name, JOURNAL_SUFFIX, path);
    journal_path(dir, name, JOURNAL_BAD_SUFFIX, aside);
    return fio_rename(path, aside) ? ERR_OK : fio_error(err, path);
}

/* --- sweeping --- */

struct journal_found {
    char file[JOURNAL_NAME_BYTES + sizeof(JOURNAL_BAD_SUFFIX)];
    int64_t bytes, mtime_s;
};

#define JOURNAL_FOUND_MAX 4096 /* files that a sweep sorts; more are counted */

static bool journal_is_ours(const char *name)
{
    size_t n = strlen(name), digits = JOURNAL_NAME_BYTES - 1;
    return n > digits && strspn(name, "0123456789abcdef") == digits &&
           (strcmp(name + digits, JOURNAL_SUFFIX) == 0 ||
            strcmp(name + digits, JOURNAL_BAD_SUFFIX) == 0);
}

/* Unlink unless somebody writes it. */
static bool journal_drop(const char *path)
{
    int fd;
    if (journal_open(path, O_RDONLY, &fd, NULL) != ERR_OK)
        return false;
    bool is_gone = fio_unlink(path);
    close(fd);
    return is_gone;
}

static int journal_found_compare(const void *a, const void *b)
{
    const struct journal_found *x = *(const struct journal_found *const *)a;
    const struct journal_found *y = *(const struct journal_found *const *)b;
    return (x->mtime_s > y->mtime_s) - (x->mtime_s < y->mtime_s);
}

/* One file of the directory: dropped if it is old; else counted, and noted in found[*n]. */
static void journal_meet(const char *dir, const char *file, int64_t ttl_s,
                         struct journal_found **found, int *n, struct journal_census *out)
{
    char path[JOURNAL_PATH_BYTES];
    struct stat st;
    journal_path(dir, file, "", path);
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
        (journal_is_old(&st, ttl_s) && journal_drop(path)))
        return;
    out->records++;
    out->bytes += st.st_size;
    if (*n == JOURNAL_FOUND_MAX)
        return;
    struct journal_found *f = found[(*n)++] = mem_alloc(MEM_CAT_SERVER, sizeof(*f));
    memcpy(f->file, file, strlen(file) + 1); /* journal_is_ours: it fits */
    f->bytes = st.st_size;
    f->mtime_s = st.st_mtime;
}

void journal_file_sweep(const char *dir, int64_t ttl_s, int64_t max_bytes,
                        struct journal_census *out)
{
    char path[JOURNAL_PATH_BYTES];
    int n = 0;
    *out = (struct journal_census){ 0 };
    journal_path(dir, NULL, "", path);
    DIR *d = opendir(path);
    if (!d)
        return;
    struct journal_found **found = mem_alloc(MEM_CAT_SERVER, sizeof(*found) * JOURNAL_FOUND_MAX);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (journal_is_ours(e->d_name))
            journal_meet(dir, e->d_name, ttl_s, found, &n, out);
    }
    closedir(d);
    qsort(found, (size_t)n, sizeof(*found), journal_found_compare);
    for (int i = 0; i < n; i++) {
        journal_path(dir, found[i]->file, "", path);
        if (out->bytes > max_bytes && journal_drop(path)) {
            out->bytes -= found[i]->bytes;
            out->records--;
        }
        mem_free(MEM_CAT_SERVER, found[i]);
    }
    mem_free(MEM_CAT_SERVER, found);
}
