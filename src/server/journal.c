#include "server/journal.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/journal_int.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define JOURNAL_SWEEP_US 60000000 /* between looks for records that are too old */

struct journal {
    struct journal_config config;
    char *dir;
    struct disk *disk;
    _Atomic size_t queued_bytes;
    pthread_mutex_t lock; /* of the list of jobs that are done, and config.wake */
    struct journal_job *first, *last;
    /* the disk thread's from here */
    struct journal_file *files; /* that are being written */
    int64_t off_until_us; /* the disk failed: nothing new is begun until then; 0 = it did not */
    int64_t swept_us;
    bool is_full;                                          /* max_bytes are used: said once */
    _Atomic int64_t is_off, records, bytes, begun, losses; /* read by anyone */
};

/* --- jobs --- */

struct journal_job *journal_job_new(enum journal_op op, const char *name)
{
    struct journal_job *job = mem_alloc(MEM_CAT_SERVER, sizeof(*job));
    job->op = op;
    snprintf(job->name, sizeof(job->name), "%s", name);
    buf_init(&job->body, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    buf_init(&job->frames, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    return job;
}

void journal_job_free(struct journal_job *job)
{
    if (!job)
        return;
    if (job->record)
        journal_record_release(job->record);
    mem_free(MEM_CAT_SERVER, job->record);
    buf_release(&job->body);
    buf_release(&job->frames);
    mem_free(MEM_CAT_SERVER, job);
}

/* In `frames` a frame is its type, the length of its payload as 4 bytes, and that: it is sealed by the thread that writes. */
void journal_add_frame(struct journal_job *job, char type, const struct buf *payload)
{
    uint32_t n = (uint32_t)payload->len;
    if (payload->failed || payload->len > JOURNAL_RECORD_BYTES)
        return;
    buf_add_char(&job->frames, type);
    buf_add(&job->frames, &n, sizeof(n));
    buf_add(&job->frames, payload->data, payload->len);
}

/* --- trouble (the disk thread) --- */

static void journal_switch_off(struct journal *j, const struct err *why)
{
    if (!j->is_off)
        log_error("journal",
                  "%s; answers go on, those that begin now cannot be resumed after a crash; the "
                  "next try is in %d s",
                  why->text, JOURNAL_OFF_SECONDS);
    j->off_until_us = clock_us() + (int64_t)JOURNAL_OFF_SECONDS * 1000000;
    j->is_off = 1;
}

static void journal_set_aside(struct journal *j, const char *name, const struct err *why)
{
    struct err err;
    bool is_aside = journal_file_set_aside(j->dir, name, &err) == ERR_OK;
    log_error("journal", "%s; %s: what it held is not found any more", why->text,
              is_aside ? "it was moved aside (.bad)" : err.text);
}

static struct journal_file **journal_link(struct journal *j, const char *name)
{
    struct journal_file **at = &j->files;
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

/* Nobody writes it any more. */
static void journal_let_go(struct journal *j, const char *name)
{
    struct journal_file **at = journal_link(j, name), *f = *at;
    if (!f)
        return;
    *at = f->next;
    journal_file_close(f);
}

/* --- operations (the disk thread) --- */

static void journal_sweep(struct journal *j, int64_t room)
{
    struct journal_census c;
    journal_file_sweep(j->dir, j->config.ttl_s, j->config.max_bytes - room, &c);
    j->records = c.records;
    j->bytes = c.bytes;
    j->swept_us = clock_us();
}

/* Room for n bytes more? */
static bool journal_has_room(struct journal *j, int64_t n)
{
    if (j->bytes + n > j->config.max_bytes)
        journal_sweep(j, n);
    bool is_full = j->bytes + n > j->config.max_bytes;
    if (is_full && !j->is_full)
        log_warn("journal",
                 "its %lld bytes are used by answers that run: newer ones cannot be resumed after "
                 "a crash; --journal-max gives it more",
                 (long long)j->config.max_bytes);
    j->is_full = is_full;
    return !is_full;
}

static void journal_seal_all(const struct buf *frames, struct journal_file *f, struct buf *out)
{
    for (size_t at = 0; at < frames->len;) {
        uint32_t n;
        memcpy(&n, frames->data + at + 1, sizeof(n));
        journal_seal((unsigned char)frames->data[at], frames->data + at + 1 + sizeof(n), n,
                     f->check, out);
        at += 1 + sizeof(n) + n;
    }
}

/* Where it fails the record ends with what it has: the rest of its answer would be computed again. */
static void journal_write(struct journal *j, const struct journal_job *job)
{
    struct journal_file *f = *journal_link(j, job->name);
    struct err err;
    struct buf out;
    if (!f)
        return;
    buf_init(&out, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES + (1 << 20));
    if (job->op == JOURNAL_OP_BEGIN)
        journal_begin(f->name, &out, f->check);
    journal_seal_all(&job->frames, f, &out);
    bool has_room = !out.failed && journal_has_room(j, (int64_t)out.len);
    enum err_code code = ERR_OK;
    if (has_room)
        code = journal_file_append(j->dir, f, out.data, out.len, &err);
    if (has_room && !code) {
        j->bytes += (int64_t)out.len;
        if (job->is_synced)
            code = journal_file_sync(j->dir, f, &err);
    }
    buf_release(&out);
    if (has_room && !code)
        return;
    j->losses++;
    if (code)
        journal_switch_off(j, &err);
    bool is_empty = f->size == 0;
    journal_let_go(j, job->name);
    if (is_empty)
        (void)!journal_file_remove(j->dir, job->name, NULL);
}

static void journal_start(struct journal *j, const struct journal_job *job)
{
    struct journal_file *f;
    struct err err;
    enum err_code code;
    j->begun++;
    journal_let_go(j, job->name);
    if (j->off_until_us > clock_us()) {
        j->losses++;
        return;
    }
    if (clock_us() - j->swept_us > JOURNAL_SWEEP_US)
        journal_sweep(j, 0);
    if (job->op == JOURNAL_OP_BEGIN)
        code = journal_file_begin(j->dir, job->name, &f, &err);
    else
        code = journal_file_resume(j->dir, job->name, job->n_valid, job->check, &f, &err);
    if (code) {
        j->losses++;
        if (code == ERR_STATE || (code == ERR_NOT_FOUND && job->op == JOURNAL_OP_RESUME))
            log_warn("journal", "%s: an answer cannot be resumed after a crash", err.text);
        else
            journal_switch_off(j, &err);
        return;
    }
    if (j->is_off)
        log_info("journal", "the journal is on again");
    j->is_off = 0;
    j->records += job->op == JOURNAL_OP_BEGIN;
    f->next = j->files;
    j->files = f;
    journal_write(j, job);
}

static void journal_find(struct journal *j, struct journal_job *job)
{
    struct err err = { 0 };
    if (job->dialect)
        journal_digest(job->dialect, job->body.data, job->body.len, job->digest);
    if (*journal_link(j, job->name)) /* it runs here: its tokens are in memory */
        return;
    job->record = mem_alloc(MEM_CAT_SERVER, sizeof(*job->record));
    enum err_code code = journal_file_find(j->dir, job->name, j->config.ttl_s, job->record, &err);
    if (code == ERR_OK)
        return;
    journal_record_release(job->record);
    mem_free(MEM_CAT_SERVER, job->record);
    job->record = NULL;
    job->is_elsewhere = code == ERR_STATE;
    if (code == ERR_INVALID)
        journal_set_aside(j, job->name, &err);
    else if (code != ERR_NOT_FOUND && code != ERR_STATE)
        journal_switch_off(j, &err);
}

/* No more comes of it. */
static void journal_end(struct journal *j, const struct journal_job *job)
{
    const struct err why = { ERR_INVALID, "a record does not agree with the model" };
    struct journal_file *f = *journal_link(j, job->name);
    struct err err;
    if (job->op == JOURNAL_OP_KEEP) {
        if (f && journal_file_sync(j->dir, f, &err) != ERR_OK)
            journal_switch_off(j, &err);
    } else if (job->op == JOURNAL_OP_DISTRUST) {
        journal_set_aside(j, job->name, &why);
    } else if (journal_file_remove(j->dir, job->name, &err) == ERR_OK) {
        j->records -= j->records > 0;
        j->bytes -= f ? (int64_t)f->size : 0;
    } else if (err.code != ERR_NOT_FOUND) {
        journal_switch_off(j, &err);
    }
    journal_let_go(j, job->name);
}

static void journal_hand_back(struct journal *j, struct journal_job *job)
{
    j->queued_bytes -= job->bytes;
    if (job->op != JOURNAL_OP_FIND) {
        journal_job_free(job);
        return;
    }
    pthread_mutex_lock(&j->lock);
    *(j->last ? &j->last->next : &j->first) = job;
    j->last = job;
    if (j->config.wake)
        j->config.wake(j->config.wake_arg);
    pthread_mutex_unlock(&j->lock);
}

static void journal_run(struct disk_job *disk)
{
    struct journal_job *job = (struct journal_job *)disk; /* its first member */
    struct journal *j = job->journal;
    switch (job->op) {
    case JOURNAL_OP_OPEN:
        journal_sweep(j, 0);
        break;
    case JOURNAL_OP_FIND:
        journal_find(j, job);
        break;
    case JOURNAL_OP_BEGIN:
    case JOURNAL_OP_RESUME:
        journal_start(j, job);
        break;
    case JOURNAL_OP_APPEND:
        journal_write(j, job);
        break;
    case JOURNAL_OP_KEEP:
    case JOURNAL_OP_REMOVE:
    case JOURNAL_OP_DISTRUST:
        journal_end(j, job);
        break;
    }
    journal_hand_back(j, job);
}

/* --- the journal --- */

struct journal *journal_new(const struct journal_config *config)
{
    struct journal *j = mem_alloc(MEM_CAT_SERVER, sizeof(*j));
    j->config = *config;
    j->dir = mem_strdup(MEM_CAT_SERVER, config->dir);
    pthread_mutex_init(&j->lock, NULL);
    j->disk = disk_new(JOURNAL_QUEUED);
    BUG_ON(journal_submit(j, journal_job_new(JOURNAL_OP_OPEN, "")) != ERR_OK);
    return j;
}

void journal_free(struct journal *j)
{
    struct journal_job *job;
    if (!j)
        return;
    if (!disk_free(j->disk, "records of answers", DISK_CLOSE_US)) { /* its thread uses all this */
        pthread_mutex_lock(&j->lock);
        j->config.wake = NULL;
        pthread_mutex_unlock(&j->lock);
        return;
    }
    while (j->files)
        journal_let_go(j, j->files->name);
    while ((job = journal_next(j)) != NULL)
        journal_job_free(job);
    pthread_mutex_destroy(&j->lock);
    mem_free(MEM_CAT_SERVER, j->dir);
    mem_free(MEM_CAT_SERVER, j);
}

enum err_code journal_submit(struct journal *j, struct journal_job *job)
{
    size_t bytes = job->body.len + job->frames.len;
    job->disk.run = journal_run;
    job->journal = j;
    job->next = NULL;
    job->bytes = bytes;
    if (j->queued_bytes > 0 && j->queued_bytes + bytes > JOURNAL_QUEUE_BYTES)
        return ERR_FULL;
    j->queued_bytes += bytes; /* before the job can be gone */
    enum err_code code = disk_submit(j->disk, &job->disk);
    if (code != ERR_OK)
        j->queued_bytes -= bytes;
    return code;
}

struct journal_job *journal_next(struct journal *j)
{
    pthread_mutex_lock(&j->lock);
    struct journal_job *job = j->first;
    if (job) {
        j->first = job->next;
        if (!j->first)
            j->last = NULL;
        job->next = NULL;
    }
    pthread_mutex_unlock(&j->lock);
    return job;
}

void journal_read_stats(const struct journal *j, struct journal_stats *out)
{
    *out = (struct journal_stats){ 0 };
    if (j)
        *out = (struct journal_stats){ !j->is_off, j->records, j->bytes, j->begun, j->losses };
}
