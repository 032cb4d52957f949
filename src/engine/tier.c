#include "engine/tier.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/tier_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* --- the lock and the secret --- */

struct lock_text {
    char magic[16];
    uint8_t secret[16];
    uint64_t sum;
};

static uint64_t lock_sum(const struct lock_text *l)
{
    return XXH3_64bits(l, offsetof(struct lock_text, sum));
}

/* The secret that the directory has, or a new one: what was kept is not found any more then. */
static enum err_code tier_read_secret(struct tier *t, const char *path, struct err *err)
{
    static const char magic[16] = "plumb ssd cache";
    struct lock_text l = { 0 };
    if (fio_read(t->lock_fd, path, &l, sizeof(l), 0) == sizeof(l) &&
        memcmp(l.magic, magic, sizeof(magic)) == 0 && l.sum == lock_sum(&l)) {
        memcpy(t->secret, l.secret, sizeof(t->secret));
        return ERR_OK;
    }
    memcpy(l.magic, magic, sizeof(magic));
    if (getrandom(l.secret, sizeof(l.secret), 0) != sizeof(l.secret))
        return fio_error(err, "getrandom");
    l.sum = lock_sum(&l);
    if (!fio_write(t->lock_fd, path, &l, sizeof(l), 0) || !fio_sync(t->lock_fd, path) ||
        !fio_sync_dir(t->dir))
        return fio_error(err, path);
    memcpy(t->secret, l.secret, sizeof(t->secret));
    return ERR_OK;
}

static enum err_code tier_lock(struct tier *t, struct err *err)
{
    char path[TIER_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/" TIER_LOCK_NAME, t->dir);
    if (!fio_mkdir(t->dir, 0700))
        return fio_error(err, t->dir);
    if (!fio_mkdir(t->space_dir, 0700))
        return fio_error(err, t->space_dir);
    t->lock_fd = fio_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (t->lock_fd < 0)
        return fio_error(err, path);
    if (flock(t->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK
                   ? err_set(err, ERR_STATE,
                             "%s: another process keeps its histories there: give each its own "
                             "directory",
                             t->dir)
                   : fio_error(err, path);
    return tier_read_secret(t, path, err);
}

/* --- jobs --- */

static int32_t tier_jobs_of(size_t bytes)
{
    size_t n = TIER_STAGE_BYTES / bytes;
    return n < 2 ? 2 : n > TIER_JOBS_MAX ? TIER_JOBS_MAX : (int32_t)n;
}

/* Of a file with so much payload. */
static size_t tier_round(size_t bytes)
{
    return (2 * TIER_HEADER_BYTES + bytes - 1) / TIER_HEADER_BYTES * TIER_HEADER_BYTES;
}

/* For each direction buffers of a node's size and two of an end's; one job without a buffer for SYNC. */
static enum err_code tier_alloc_jobs(struct tier *t, size_t end_bytes, struct err *err)
{
    size_t node = tier_round(t->space.page_bytes[0]), end = tier_round(end_bytes);
    int32_t n_nodes = tier_jobs_of(node), n_ends = end_bytes > t->space.page_bytes[0] ? 2 : 0;
    int32_t n = n_nodes + n_ends;
    t->file_max = n_ends > 0 ? end : node;
    t->slab_bytes = 2 * ((size_t)n_nodes * node + (size_t)n_ends * end);
    t->n_jobs = 2 * n + 1;
    t->slab = mem_try_big(MEM_CAT_KV, t->slab_bytes);
    t->jobs = mem_try_array(MEM_CAT_KV, (size_t)t->n_jobs, sizeof(*t->jobs));
    if (!t->slab || !t->jobs)
        return err_set(err, ERR_NOMEM, "%s: no memory for buffers of %zu MiB", t->dir,
                       t->slab_bytes >> 20);
    uint8_t *at = t->slab;
    for (int32_t i = 0; i < t->n_jobs; i++) {
        struct tier_job *job = &t->jobs[i];
        enum tier_op op = i == 2 * n ? TIER_OP_SYNC : i < n ? TIER_OP_WRITE : TIER_OP_READ;
        job->tier = t;
        job->disk.run = tier_job_run;
        job->op = op;
        if (op != TIER_OP_SYNC) {
            job->is_big = i % n >= n_nodes;
            job->cap = job->is_big ? end : node;
            job->file = at;
            at += job->cap;
        }
        tier_list_add(&t->idle[op], job);
    }
    return ERR_OK;
}

struct tier_job *tier_take(struct tier *t, enum tier_op op, const struct tier_record *r)
{
    size_t bytes = r ? tier_file_bytes(&t->space, r) : 0;
    struct tier_list others = { 0 };
    struct tier_job *job, *found = NULL;
    pthread_mutex_lock(&t->lock);
    while ((job = tier_list_take(&t->idle[op])) != NULL) {
        bool fits =
            r ? bytes <= job->cap && job->is_big == (r->kind == TIER_KIND_END &&
                                                     bytes > tier_round(t->space.page_bytes[0]))
              : true;
        if (fits && !found)
            found = job;
        else
            tier_list_add(&others, job);
    }
    t->idle[op] = others;
    t->n_out[op] += found != NULL;
    pthread_mutex_unlock(&t->lock);
    if (found && r)
        found->record = *r;
    return found;
}

void tier_submit(struct tier *t, struct tier_job *job)
{
    job->err.code = ERR_OK;
    if (job->op == TIER_OP_WRITE)
        job->record.created_s = clock_wall_s();
    pthread_mutex_lock(&t->lock);
    tier_list_add(job->op == TIER_OP_READ ? &t->reads : &t->writes, job);
    pthread_mutex_unlock(&t->lock);
    BUG_ON(disk_submit(t->disk, &job->disk) != ERR_OK); /* there is room for every job */
}

struct tier_job *tier_done(struct tier *t)
{
    pthread_mutex_lock(&t->lock);
    struct tier_job *job = tier_list_take(&t->done);
    pthread_mutex_unlock(&t->lock);
    return job;
}

void tier_give_back(struct tier *t, struct tier_job *job)
{
    pthread_mutex_lock(&t->lock);
    t->n_out[job->op]--;
    tier_list_push(&t->idle[job->op],
                   job); /* the next in line: its buffer is in the processor's caches */
    pthread_mutex_unlock(&t->lock);
}

bool tier_is_idle(struct tier *t, enum tier_op op)
{
    pthread_mutex_lock(&t->lock);
    bool is_idle = t->n_out[op] == 0;
    pthread_mutex_unlock(&t->lock);
    return is_idle;
}

/* --- finding --- */

struct tier_key tier_root(const struct tier *t, const uint8_t salt[ENGINE_SALT_BYTES])
{
    return tier_key_root(t->secret, salt);
}

bool tier_find(struct tier *t, struct tier_key key, const uint8_t salt[ENGINE_SALT_BYTES],
               struct tier_record *out)
{
    pthread_mutex_lock(&t->lock);
    int32_t i = tier_index_find(&t->index, key);
    if (i >= 0 && out)
        tier_index_record(&t->index, i, salt, out);
    pthread_mutex_unlock(&t->lock);
    return i >= 0;
}

static int32_t ids_alike(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b)
{
    int32_t n = 0, max = n_a < n_b ? n_a : n_b;
    while (n < max && a[n] == b[n])
        n++;
    return n;
}

bool tier_find_run(struct tier *t, struct tier_key parent, const uint8_t salt[ENGINE_SALT_BYTES],
                   const int32_t *ids, int32_t n, struct tier_record *out, int32_t *run)
{
    int32_t best = -1;
    *run = 0;
    pthread_mutex_lock(&t->lock);
    for (int32_t i = tier_index_child(&t->index, parent); i >= 0;
         i = tier_index_next(&t->index, i)) {
        const struct tier_entry *e = &t->index.entries[i];
        int32_t k = ids_alike(e->ids, e->n_ids, ids, n);
        if (k > *run) {
            *run = k;
            best = i;
        }
    }
    if (best >= 0)
        tier_index_record(&t->index, best, salt, out);
    pthread_mutex_unlock(&t->lock);
    return best >= 0;
}

bool tier_find_end(struct tier *t, struct tier_key parent, const uint8_t salt[ENGINE_SALT_BYTES],
                   const int32_t *ids, int32_t n, struct tier_record *out)
{
    int32_t best = -1;
    pthread_mutex_lock(&t->lock);
    for (int32_t i = tier_index_child(&t->index, parent); i >= 0;
         i = tier_index_next(&t->index, i)) {
        const struct tier_entry *e = &t->index.entries[i];
        if (e->kind == TIER_KIND_END && ids_alike(e->ids, e->n_ids, ids, n) == e->n_ids &&
            (best < 0 || e->n_ids > t->index.entries[best].n_ids))
            best = i;
    }
    if (best >= 0)
        tier_index_record(&t->index, best, salt, out);
    pthread_mutex_unlock(&t->lock);
    return best >= 0;
}

/* --- state --- */

void tier_set_wake(struct tier *t, void (*wake)(void *arg), void *arg)
{
    pthread_mutex_lock(&t->lock);
    t->wake = wake;
    t->wake_arg = arg;
    pthread_mutex_unlock(&t->lock);
}

bool tier_is_ready(struct tier *t)
{
    pthread_mutex_lock(&t->lock);
    bool is_ready = t->is_ready;
    pthread_mutex_unlock(&t->lock);
    return is_ready;
}

bool tier_can_write(const struct tier *t)
{
    return t->write_off_us <= clock_us();
}

bool tier_can_read(const struct tier *t)
{
    return t->read_off_us <= clock_us();
}

void tier_set_slow(struct tier *t, const char *why)
{
    tier_switch_off(t, &t->read_off_us, "read", why);
}

void tier_count_dropped(struct tier *t, int64_t n)
{
    t->dropped += n;
}

void tier_count_pending(struct tier *t, int64_t n)
{
    t->pending = n;
}

void tier_read_stats(const struct tier *t, struct tier_stats *out)
{
    *out = (struct tier_stats){ 0 };
    if (t)
        *out = (struct tier_stats){ .is_on = tier_can_read(t) && tier_can_write(t),
                                    .files = t->files,
                                    .bytes = t->bytes,
                                    .max_bytes = t->max_bytes,
                                    .written = t->written,
                                    .written_bytes = t->written_bytes,
                                    .read = t->n_read,
                                    .read_bytes = t->read_bytes,
                                    .dropped = t->dropped,
                                    .failed = t->failed,
                                    .evicted = t->evicted,
                                    .quarantined = t->quarantined,
                                    .pending = t->pending };
}

/* --- life --- */

enum err_code tier_open(const struct tier_options *o, struct tier **out, struct err *err)
{
    char space_dir[TIER_PATH_BYTES];
    struct tier *t = mem_alloc(MEM_CAT_KV, sizeof(*t));
    BUG_ON(strlen(o->dir) > TIER_PATH_BYTES / 2);
    snprintf(space_dir, sizeof(space_dir), "%s/%016llx", o->dir,
             (unsigned long long)XXH3_64bits(&o->space, sizeof(o->space)));
    t->dir = mem_strdup(MEM_CAT_KV, o->dir);
    t->space_dir = mem_strdup(MEM_CAT_KV, space_dir);
    t->space = o->space;
    t->max_bytes = o->max_bytes;
    t->lock_fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    tier_index_init(&t->index);
    enum err_code code = tier_alloc_jobs(t, o->end_bytes, err);
    if (!code)
        code = tier_lock(t, err);
    if (code) {
        tier_close(t, DISK_CLOSE_US);
        return code;
    }
    t->disk = disk_new((size_t)t->n_jobs + 1);
    t->scan.run = tier_scan_run;
    BUG_ON(disk_submit(t->disk, &t->scan) != ERR_OK);
    *out = t;
    return ERR_OK;
}

void tier_close(struct tier *t, int64_t max_us)
{
    if (!t)
        return;
    if (!disk_free(t->disk, t->dir, max_us))
        return; /* its thread uses all this */
    if (t->lock_fd >= 0)
        close(t->lock_fd);
    tier_index_release(&t->index);
    pthread_mutex_destroy(&t->lock);
    mem_free(MEM_CAT_KV, t->jobs);
    if (t->slab)
        mem_free_big(MEM_CAT_KV, t->slab, t->slab_bytes);
    mem_free(MEM_CAT_KV, t->dir);
    mem_free(MEM_CAT_KV, t->space_dir);
    mem_free(MEM_CAT_KV, t);
}
