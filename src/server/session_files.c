#include "server/session_files.h"
#include "base/fio.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 4400
#define SUFFIX     ".session"
#define PART       ".part-"

#define PART_SECONDS 3600 /* no save takes so long */

struct session_files {
    char *dir;
    struct disk *disk;
    pthread_mutex_t lock; /* of all below */
    struct session_job *first, *last;
    void (*wake)(void *arg);
    void *wake_arg;
};

/* --- jobs --- */

struct session_job *session_job_new(enum session_op op)
{
    struct session_job *job = mem_alloc(MEM_CAT_SERVER, sizeof(*job));
    job->op = op;
    return job;
}

void session_job_free(struct session_job *job)
{
    if (!job)
        return;
    session_record_release(&job->record);
    mem_free(MEM_CAT_SERVER, job->heads);
    mem_free(MEM_CAT_SERVER, job);
}

/* --- files (the disk thread) --- */

static void session_path(const struct session_files *f, const char *name, const char *end,
                         char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%.4000s/sessions%s%s%s", f->dir, name ? "/" : "", name ? name : "",
             end);
}

/* The first `most` bytes of a file, or all of them. */
static enum err_code read_file(const char *path, size_t most, struct buf *out, struct err *err)
{
    struct stat st;
    int fd = fio_open(path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0)
        return fio_error(err, path);
    enum err_code code = ERR_OK;
    if (fstat(fd, &st) != 0)
        code = fio_error(err, path);
    else if (!S_ISREG(st.st_mode) || st.st_size > LIMIT_SESSION_RECORD)
        code = err_set(err, ERR_INVALID, "%s: it is no file of at most %d bytes", path,
                       LIMIT_SESSION_RECORD);
    size_t n = code ? 0 : (size_t)st.st_size < most ? (size_t)st.st_size : most;
    char *data = mem_try(MEM_CAT_SERVER, n + 1);
    if (!code && !data)
        code = err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", path, n);
    ssize_t got = code ? 0 : fio_read(fd, path, data, n, 0);
    if (got < 0)
        code = fio_error(err, path);
    else
        buf_add(out, data, (size_t)got);
    mem_free(MEM_CAT_SERVER, data);
    close(fd);
    return code;
}

static void set_aside(const struct session_files *f, const char *name, const struct err *why)
{
    char from[PATH_BYTES], to[PATH_BYTES];
    session_path(f, name, SUFFIX, from);
    session_path(f, name, ".bad", to);
    bool is_aside = fio_rename(from, to);
    log_error("session", "%s: %s; it %s", from, why->text,
              is_aside ? "was moved aside (.bad): that session is not found any more"
                       : "could not be moved aside");
}

/* Each name of a record in the directory; false where there is no directory. */
static bool each_file(const struct session_files *f,
                      void (*see)(const struct session_files *f, const char *name, void *arg),
                      void *arg)
{
    char path[PATH_BYTES], name[SESSION_FILE_BYTES];
    struct dirent *e;
    session_path(f, NULL, "", path);
    DIR *d = opendir(path);
    if (!d)
        return false;
    while ((e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name), tail = strlen(SUFFIX);
        if (n != SESSION_FILE_BYTES - 1 + tail || strcmp(e->d_name + n - tail, SUFFIX) != 0)
            continue;
        snprintf(name, sizeof(name), "%.*s", SESSION_FILE_BYTES - 1, e->d_name);
        see(f, name, arg);
    }
    closedir(d);
    return true;
}

static void count_file(const struct session_files *f, const char *name, void *arg)
{
    (*(int32_t *)arg)++;
}

/* Is there room for one more record of that name? */
static enum err_code check_room(const struct session_files *f, const char *name, struct err *err)
{
    char path[PATH_BYTES];
    int32_t n = 0;
    session_path(f, name, SUFFIX, path);
    if (access(path, F_OK) == 0) /* it takes its place */
        return ERR_OK;
    (void)each_file(f, count_file, &n);
    return n < LIMIT_SESSIONS_SAVED
               ? ERR_OK
               : err_set(err, ERR_FULL, "%d sessions are saved in %s, the limit: delete some", n,
                         f->dir);
}

/* What a process left that died over a save. */
static void sweep_parts(const struct session_files *f)
{
    char dir[PATH_BYTES], path[PATH_BYTES + 300];
    struct dirent *e;
    struct stat st;
    session_path(f, NULL, "", dir);
    DIR *d = opendir(dir);
    while (d && (e = readdir(d)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, PART) && stat(path, &st) == 0 &&
            time(NULL) - st.st_mtime > PART_SECONDS)
            (void)fio_unlink(path);
    }
    if (d)
        closedir(d);
}

static enum err_code write_file(const struct session_files *f, const char *name,
                                const struct buf *data, struct err *err)
{
    char part[PATH_BYTES], path[PATH_BYTES], dir[PATH_BYTES], end[48];
    snprintf(end, sizeof(end), PART "%ld", (long)getpid());
    session_path(f, name, end, part);
    session_path(f, name, SUFFIX, path);
    session_path(f, NULL, "", dir);
    int fd = fio_open(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fio_error(err, part);
    enum err_code code = ERR_OK;
    if (!fio_write(fd, part, data->data, data->len, 0) || !fio_sync(fd, part))
        code = fio_error(err, part);
    close(fd);
    if (!code && !fio_rename(part, path))
        code = fio_error(err, path);
    if (code)
        (void)fio_unlink(part);
    else if (!fio_sync_dir(dir))
        code = fio_error(err, dir);
    return code;
}

static enum err_code do_save(struct session_job *job, const char *name, struct err *err)
{
    const struct session_files *f = job->files;
    char dir[PATH_BYTES];
    struct buf data;
    session_path(f, NULL, "", dir);
    buf_init(&data, MEM_CAT_SERVER, LIMIT_SESSION_RECORD);
    session_record_write(&job->record, &data);
    enum err_code code =
        data.failed ? err_set(err, ERR_FULL, "a record of over %d bytes", LIMIT_SESSION_RECORD)
                    : fio_make_dirs(dir, err);
    if (!code) {
        sweep_parts(f);
        code = check_room(f, name, err);
    }
    if (!code)
        code = write_file(f, name, &data, err);
    job->bytes = data.len;
    buf_release(&data);
    return code;
}

static enum err_code do_load(struct session_job *job, const char *name, struct err *err)
{
    const struct session_files *f = job->files;
    char path[PATH_BYTES], own[SESSION_FILE_BYTES];
    struct session_record found = { 0 };
    struct buf data;
    session_path(f, name, SUFFIX, path);
    buf_init(&data, MEM_CAT_SERVER, LIMIT_SESSION_RECORD);
    enum err_code code = read_file(path, LIMIT_SESSION_RECORD, &data, err);
    job->bytes = data.len;
    if (!code)
        code = session_record_read(data.data, data.len, &found, err);
    buf_release(&data);
    if (!code)
        session_file_name(&found, own);
    if (!code && strcmp(own, name) != 0)
        code = err_set(err, ERR_INVALID, "it was renamed");
    if (code == ERR_INVALID) {
        set_aside(f, name, err);
        code = err_set(err, ERR_NOT_FOUND, "its record is damaged");
    }
    if (code) {
        session_record_release(&found);
        return code;
    }
    job->record = found;
    return ERR_OK;
}

static enum err_code do_delete(const struct session_job *job, const char *name, struct err *err)
{
    char path[PATH_BYTES], dir[PATH_BYTES];
    session_path(job->files, name, SUFFIX, path);
    session_path(job->files, NULL, "", dir);
    if (!fio_unlink(path))
        return fio_error(err, path);
    return fio_sync_dir(dir) ? ERR_OK : fio_error(err, dir);
}

/* A head that is of whom the job asks for. A file that cannot be read is passed over: who names it is told. */
static void list_file(const struct session_files *f, const char *name, void *arg)
{
    struct session_job *job = arg;
    struct session_record head;
    char path[PATH_BYTES];
    struct buf data;
    struct err err;
    session_path(f, name, SUFFIX, path);
    buf_init(&data, MEM_CAT_SERVER, SESSION_HEAD_BYTES);
    bool is_fine = job->n_heads < LIMIT_SESSIONS_SAVED &&
                   read_file(path, SESSION_HEAD_BYTES, &data, &err) == ERR_OK &&
                   session_record_read_head(data.data, data.len, &head, &err) == ERR_OK;
    buf_release(&data);
    if (is_fine && memcmp(head.who, job->record.who, sizeof(head.who)) == 0 &&
        memcmp(head.salt, job->record.salt, sizeof(head.salt)) == 0 &&
        strcmp(head.model, job->record.model) == 0)
        job->heads[job->n_heads++] = head;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct session_record *)a)->name,
                  ((const struct session_record *)b)->name);
}

static void do_list(struct session_job *job)
{
    job->heads = mem_alloc(MEM_CAT_SERVER, sizeof(*job->heads) * LIMIT_SESSIONS_SAVED);
    (void)each_file(job->files, list_file, job);
    qsort(job->heads, (size_t)job->n_heads, sizeof(*job->heads), by_name);
}

static void session_run(struct disk_job *disk)
{
    struct session_job *job = (struct session_job *)disk; /* its first member */
    struct session_files *f = job->files;
    char name[SESSION_FILE_BYTES];
    enum err_code code = ERR_OK;
    session_file_name(&job->record, name);
    if (job->op == SESSION_OP_SAVE)
        code = do_save(job, name, &job->err);
    else if (job->op == SESSION_OP_LOAD)
        code = do_load(job, name, &job->err);
    else if (job->op == SESSION_OP_DELETE)
        code = do_delete(job, name, &job->err);
    else
        do_list(job);
    job->err.code = code;
    pthread_mutex_lock(&f->lock);
    *(f->last ? &f->last->next : &f->first) = job;
    f->last = job;
    if (f->wake)
        f->wake(f->wake_arg);
    pthread_mutex_unlock(&f->lock);
}

/* --- life --- */

struct session_files *session_files_new(const char *dir, void (*wake)(void *arg), void *arg)
{
    struct session_files *f = mem_alloc(MEM_CAT_SERVER, sizeof(*f));
    f->dir = mem_strdup(MEM_CAT_SERVER, dir);
    f->wake = wake;
    f->wake_arg = arg;
    pthread_mutex_init(&f->lock, NULL);
    f->disk = disk_new(SESSION_FILES_QUEUED);
    return f;
}

void session_files_free(struct session_files *f)
{
    struct session_job *job;
    if (!f)
        return;
    if (!disk_free(f->disk, "sessions", DISK_CLOSE_US)) { /* its thread uses all this */
        pthread_mutex_lock(&f->lock);
        f->wake = NULL;
        pthread_mutex_unlock(&f->lock);
        return;
    }
    while ((job = session_files_next(f)) != NULL)
        session_job_free(job);
    pthread_mutex_destroy(&f->lock);
    mem_free(MEM_CAT_SERVER, f->dir);
    mem_free(MEM_CAT_SERVER, f);
}

enum err_code session_files_submit(struct session_files *f, struct session_job *job)
{
    job->disk.run = session_run;
    job->files = f;
    job->next = NULL;
    return disk_submit(f->disk, &job->disk);
}

struct session_job *session_files_next(struct session_files *f)
{
    pthread_mutex_lock(&f->lock);
    struct session_job *job = f->first;
    if (job) {
        f->first = job->next;
        if (!f->first)
            f->last = NULL;
        job->next = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return job;
}
