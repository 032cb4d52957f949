/* tier_disk.c - what the tier does on the disk thread: the directory is read, files are written, read, given up, put aside. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/tier_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TIER_SYNC_EVERY 32 /* names that wait for the directory to be synced, at most */

void tier_call_wake(struct tier *t)
{
    pthread_mutex_lock(&t->lock);
    void (*wake)(void *arg) = t->wake;
    void *arg = t->wake_arg;
    pthread_mutex_unlock(&t->lock);
    if (wake)
        wake(arg);
}

void tier_switch_off(struct tier *t, _Atomic int64_t *until_us, const char *what, const char *why)
{
    int64_t before = atomic_exchange(until_us, clock_us() + (int64_t)TIER_OFF_SECONDS * 1000000);
    t->failed++;
    if (before == 0) /* said once, until it works again */
        log_error("tier",
                  "%s; kept histories are not %s disk now, answers go on; the next try is in %d s",
                  why, strcmp(what, "read") == 0 ? "read from" : "written to", TIER_OFF_SECONDS);
}

static void tier_is_well(_Atomic int64_t *until_us, const char *what)
{
    if (atomic_exchange(until_us, 0) != 0)
        log_info("tier", "kept histories are %s disk again",
                 strcmp(what, "read") == 0 ? "read from" : "written to");
}

/* --- the index --- */

static void tier_count(struct tier *t)
{
    t->files = t->index.n_entries;
    t->bytes = t->index.n_bytes;
}

static void tier_forget(struct tier *t, int32_t i)
{
    pthread_mutex_lock(&t->lock);
    tier_index_remove(&t->index, i);
    tier_count(t);
    pthread_mutex_unlock(&t->lock);
}

static void tier_entry_path(const struct tier *t, int32_t i, char out[TIER_PATH_BYTES])
{
    const struct tier_entry *e = &t->index.entries[i];
    if (e->path)
        snprintf(out, TIER_PATH_BYTES, "%s", e->path);
    else
        tier_file_path(out, t->space_dir, e->kind, e->key);
}

/* False: the file cannot be deleted. */
static bool tier_delete(struct tier *t, int32_t i)
{
    char path[TIER_PATH_BYTES];
    tier_entry_path(t, i, path);
    if (!fio_unlink(path) && errno != ENOENT)
        return false;
    tier_forget(t, i);
    return true;
}

/* Room for n bytes under the cap, which is not made at the cost of what the new file stands on. */
static enum err_code tier_make_room(struct tier *t, int64_t n, const struct tier_key *parent,
                                    struct err *err)
{
    while (t->index.n_bytes + n > t->max_bytes) {
        int32_t i = tier_index_victim(&t->index);
        if (i < 0 || n > t->max_bytes ||
            (parent && !t->index.entries[i].path &&
             tier_key_equal(t->index.entries[i].key, *parent)))
            return err_set(err, ERR_NOMEM, "over the cap of %lld MiB",
                           (long long)t->max_bytes >> 20);
        if (!tier_delete(t, i))
            return fio_error(err, t->space_dir);
        t->evicted++;
    }
    return ERR_OK;
}

/* --- files that cannot be used --- */

static int32_t dir_count(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    int32_t n = 0;
    while (d && (e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Out of the way, for whoever wants to know why; beyond some it is deleted. */
static void tier_put_aside(struct tier *t, const char *path, const char *why)
{
    char dir[TIER_PATH_BYTES], to[2 * TIER_PATH_BYTES];
    snprintf(dir, sizeof(dir), "%s/" TIER_QUARANTINE, t->dir);
    const char *name = strrchr(path, '/');
    bool is_full = dir_count(dir) >= TIER_QUARANTINE_MAX;
    snprintf(to, sizeof(to), "%s%s", dir, name ? name : "/file");
    if (is_full || !fio_mkdir(dir, 0700) || !fio_rename(path, to))
        (void)fio_unlink(path);
    t->quarantined++;
    log_warn("tier", "%s: a file is not used and %s", why, is_full ? "deleted" : "put aside");
}

/* --- reading the directory --- */

/* One file of this namespace's folder: an entry, or out of the way. */
static void tier_scan_file(struct tier *t, const char *path, enum tier_kind kind,
                           struct tier_key key)
{
    uint8_t head[TIER_HEADER_BYTES];
    struct tier_record r;
    struct err err;
    struct stat st;
    int fd = fio_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return;                                       /* gone, or it will be a miss */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* only the header: nothing is read ahead */
    ssize_t n = fio_read(fd, path, head, sizeof(head), 0);
    bool is_there = n >= 0 && fstat(fd, &st) == 0;
    close(fd);
    if (!is_there)
        return;
    enum err_code code = tier_header_read(head, (size_t)n, &t->space, &r, &err);
    if (!code && (r.kind != kind || !tier_key_equal(r.key, key)))
        code = err_set(&err, ERR_INVALID, "its name is another one's");
    if (!code && (size_t)st.st_size != tier_file_bytes(&t->space, &r))
        code = err_set(&err, ERR_INVALID, "it is cut short");
    if (!code && (size_t)st.st_size > t->file_max)
        code = err_set(&err, ERR_INVALID, "it is larger than any of this model");
    if (code) {
        err_prefix(&err, code, "%s", path);
        tier_put_aside(t, path, err.text);
        return;
    }
    pthread_mutex_lock(&t->lock);
    if (tier_index_find(&t->index, key) < 0 &&
        tier_index_add(&t->index, &r, st.st_size, st.st_mtime, &err))
        log_warn("tier", "%s", err.text);
    tier_count(t);
    pthread_mutex_unlock(&t->lock);
}

static void tier_scan_name(struct tier *t, const char *dir, const char *name, bool is_own)
{
    char path[TIER_PATH_BYTES];
    enum tier_kind kind;
    struct tier_key key;
    struct stat st;
    struct err err;
    size_t n = strlen(name);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
        return;
    if (is_own && n > 4 && strcmp(name + n - 4, ".tmp") == 0) {
        (void)fio_unlink(path); /* never published */
        return;
    }
    if (!tier_file_parse_name(name, &kind, &key))
        return; /* none of ours */
    if (is_own) {
        tier_scan_file(t, path, kind, key);
        return;
    }
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    pthread_mutex_lock(&t->lock);
    if (tier_index_add_other(&t->index, path, st.st_size, st.st_mtime, &err))
        log_warn("tier", "%s", err.text);
    tier_count(t);
    pthread_mutex_unlock(&t->lock);
}

static void tier_scan_dir(struct tier *t, const char *dir, bool is_own)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && t->index.n_entries < TIER_FILES_MAX && (e = readdir(d)) != NULL)
        if (e->d_name[0] != '.')
            tier_scan_name(t, dir, e->d_name, is_own);
    if (d)
        closedir(d);
}

/* Folders of namespaces have names of 16 hex digits. */
static bool is_space_name(const char *name)
{
    return strlen(name) == 16 && strspn(name, "0123456789abcdef") == 16;
}

void tier_scan_run(struct disk_job *job)
{
    struct tier *t =
        (struct tier *)(void *)((char *)job - offsetof(struct tier, scan)); /* its member */
    char path[TIER_PATH_BYTES];
    struct err err;
    int64_t start = clock_us();
    tier_scan_dir(t, t->space_dir, true);
    int32_t n_own = t->index.n_entries;
    DIR *d = opendir(t->dir);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL)
        if (is_space_name(e->d_name) &&
            (size_t)snprintf(path, sizeof(path), "%s/%s", t->dir, e->d_name) < sizeof(path) &&
            strcmp(path, t->space_dir) != 0)
            tier_scan_dir(t, path, false);
    if (d)
        closedir(d);
    if (tier_make_room(t, 0, NULL, &err))
        log_warn("tier", "%s", err.text);
    log_info("tier", "%s: %d files of this model, %d of others, %.1f MiB; read in %.0f ms", t->dir,
             n_own, t->index.n_entries - n_own, (double)t->index.n_bytes / 0x1p20,
             (double)(clock_us() - start) * 1e-3);
    pthread_mutex_lock(&t->lock);
    t->is_ready = true;
    pthread_mutex_unlock(&t->lock);
    tier_call_wake(t);
}

/* --- jobs --- */

/* Names that were published are durable from here on. */
static enum err_code tier_sync(struct tier *t, struct err *err)
{
    if (!tier_can_write(
            t)) /* a system that failed once may say yes to the next call all the same */
        return err_set(err, ERR_STATE, "writing is off");
    if (t->n_unsynced == 0)
        return ERR_OK;
    if (!fio_sync_dir(t->space_dir))
        return fio_error(err, t->space_dir);
    t->n_unsynced = 0;
    return ERR_OK;
}

/* A partly used page says nothing that a file which begins with the same ids does not, where nothing else stands at its end. */
static void tier_drop_covered(struct tier *t, const struct tier_record *r)
{
    if (t->space.page_bytes[1] > 0 || t->space.page_bytes[2] > 0)
        return;
    for (int32_t i = tier_index_child(&t->index, r->parent), next; i >= 0; i = next) {
        const struct tier_entry *e = &t->index.entries[i];
        next = tier_index_next(&t->index, i);
        if (e->kind == TIER_KIND_END && e->n_ids < r->n_ids &&
            memcmp(e->ids, r->ids, (size_t)e->n_ids * sizeof(*r->ids)) == 0)
            (void)tier_delete(t, i);
    }
}

static enum err_code tier_write(struct tier *t, struct tier_job *job, struct err *err)
{
    const struct tier_record *r = &job->record;
    size_t n = tier_file_bytes(&t->space, r);
    if (!tier_can_write(t))
        return err_set(err, ERR_STATE, "writing is off");
    if (tier_index_find(&t->index, r->key) >= 0)
        return ERR_OK;
    enum err_code code = tier_make_room(t, (int64_t)n, &r->parent, err);
    if (!code && t->index.n_entries >= TIER_FILES_MAX)
        code = err_set(err, ERR_NOMEM, "%d files are there", TIER_FILES_MAX);
    if (code)
        return code;
    tier_header_write(job->file, &t->space, r);
    code = tier_file_put(t->space_dir, r, job->file, n, err);
    if (code)
        return code;
    t->n_unsynced++;
    pthread_mutex_lock(&t->lock);
    code = tier_index_add(&t->index, r, (int64_t)n, clock_wall_s(), err);
    tier_count(t);
    pthread_mutex_unlock(&t->lock);
    if (code)
        return code;
    t->written++;
    t->written_bytes += (int64_t)n;
    tier_drop_covered(t, r);
    return t->n_unsynced >= TIER_SYNC_EVERY ? tier_sync(t, err) : ERR_OK;
}

/* What cannot be used is a miss from now on. */
static void tier_read_failed(struct tier *t, const struct tier_job *job, const struct err *err)
{
    char path[TIER_PATH_BYTES];
    int32_t i = tier_index_find(&t->index, job->record.key);
    tier_file_path(path, t->space_dir, job->record.kind, job->record.key);
    if (err->code == ERR_IO || err->code == ERR_FULL || err->code == ERR_NOMEM) {
        tier_switch_off(t, &t->read_off_us, "read", err->text);
        return;
    }
    if (err->code != ERR_NOT_FOUND)
        tier_put_aside(t, path, err->text);
    if (i >= 0)
        tier_forget(t, i);
}

static enum err_code tier_read(struct tier *t, struct tier_job *job, struct err *err)
{
    size_t n = tier_file_bytes(&t->space, &job->record);
    enum err_code code = tier_file_get(t->space_dir, &t->space, &job->record, job->file, n, err);
    if (code)
        return code;
    int32_t i = tier_index_find(&t->index, job->record.key);
    t->n_read++;
    t->read_bytes += (int64_t)n;
    pthread_mutex_lock(&t->lock);
    if (i >= 0)
        t->index.entries[i].used_s = clock_wall_s();
    pthread_mutex_unlock(&t->lock);
    return ERR_OK;
}

static void tier_job_do(struct tier *t, struct tier_job *job)
{
    enum err_code code;
    if (job->op == TIER_OP_READ) {
        code = tier_read(t, job, &job->err);
        if (code)
            tier_read_failed(t, job, &job->err);
        else
            tier_is_well(&t->read_off_us, "read");
    } else {
        code = job->op == TIER_OP_WRITE ? tier_write(t, job, &job->err) : tier_sync(t, &job->err);
        if (code == ERR_OK)
            tier_is_well(&t->write_off_us, "write");
        else if (code != ERR_STATE && code != ERR_NOMEM)
            tier_switch_off(t, &t->write_off_us, "write", job->err.text);
        t->dropped += code != ERR_OK && job->op == TIER_OP_WRITE;
    }
    job->err.code = code;
}

void tier_job_run(struct disk_job *disk)
{
    struct tier *t =
        ((struct tier_job *)disk)->tier; /* its first member; any job that waits is done */
    struct err err;
    pthread_mutex_lock(&t->lock);
    struct tier_job *job = tier_list_take(&t->reads);
    if (!job)
        job = tier_list_take(&t->writes);
    bool is_last = !t->writes.first;
    pthread_mutex_unlock(&t->lock);
    BUG_ON(!job); /* one for each that was submitted */
    tier_job_do(t, job);
    bool is_write = job->op == TIER_OP_WRITE;
    pthread_mutex_lock(&t->lock);
    tier_list_add(&t->done, job);
    pthread_mutex_unlock(&t->lock);
    tier_call_wake(t);
    if (is_write && is_last && tier_sync(t, &err) && err.code != ERR_STATE)
        tier_switch_off(t, &t->write_off_us, "write", err.text);
}
