#include "server/store.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/store_int.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct store {
    struct store_config config;
    char *dir;
    struct disk *disk;
    _Atomic size_t queued_bytes;
    pthread_mutex_t lock; /* of the list of jobs that are done, and config.wake */
    struct store_job *first, *last;
    /* the disk thread's from here */
    struct store_db *db;  /* NULL: not open */
    int64_t off_until_us; /* the disk failed: nothing is written until then; 0 = it did not */
    _Atomic int64_t is_off, rows, bytes, puts, losses; /* read by anyone */
};

/* --- rows and jobs --- */

static void store_row_init(struct store_row *r)
{
    *r = (struct store_row){ 0 };
    buf_init(&r->frame, MEM_CAT_SERVER, STORE_CHAIN_BYTES);
    buf_init(&r->input, MEM_CAT_SERVER, STORE_CHAIN_BYTES);
    buf_init(&r->log, MEM_CAT_SERVER, STORE_CHAIN_BYTES);
    buf_init(&r->outcome, MEM_CAT_SERVER, STORE_CHAIN_BYTES);
}

static void store_row_release(struct store_row *r)
{
    buf_release(&r->frame);
    buf_release(&r->input);
    buf_release(&r->log);
    buf_release(&r->outcome);
}

static size_t store_row_bytes(const struct store_row *r)
{
    return r->frame.len + r->input.len + r->log.len + r->outcome.len;
}

static void store_job_add_row(struct store_job *job)
{
    job->rows = mem_realloc(MEM_CAT_SERVER, job->rows, sizeof(*job->rows) * (size_t)(job->n + 1));
    store_row_init(&job->rows[job->n++]);
}

struct store_job *store_job_new(enum store_op op, int32_t n_rows)
{
    struct store_job *job = mem_alloc(MEM_CAT_SERVER, sizeof(*job));
    job->op = op;
    for (int32_t i = 0; i < n_rows; i++)
        store_job_add_row(job);
    return job;
}

void store_job_free(struct store_job *job)
{
    if (!job)
        return;
    for (int32_t i = 0; i < job->n; i++)
        store_row_release(&job->rows[i]);
    mem_free(MEM_CAT_SERVER, job->rows);
    mem_free(MEM_CAT_SERVER, job->more);
    mem_free(MEM_CAT_SERVER, job);
}

/* --- trouble (the disk thread) --- */

static void store_switch_off(struct store *s, const struct err *why)
{
    if (!s->is_off)
        log_error("store",
                  "%s; responses are not kept now, answers go on; the next try is in %d s, "
                  "--no-store ends this message",
                  why->text, STORE_OFF_SECONDS);
    s->off_until_us = clock_us() + (int64_t)STORE_OFF_SECONDS * 1000000;
    s->is_off = 1;
    store_db_close(s->db);
    s->db = NULL;
}

/* The file cannot be used: it goes out of the way, and the next PUT begins a new one. */
static void store_abandon_file(struct store *s, const struct err *why)
{
    char name[4400];
    struct err err;
    store_db_close(s->db);
    s->db = NULL;
    if (store_db_move_aside(s->dir, name, sizeof(name), &err) != ERR_OK)
        store_switch_off(s, &err);
    else
        log_error("store",
                  "%s; the file was moved to %s and a new one is begun: what it held is "
                  "not found any more",
                  why->text, name);
}

/* Open the database if it is not. Errors: ERR_NOT_FOUND - there is none yet, or it was just moved aside. */
static enum err_code store_open(struct store *s, bool is_new, struct err *err)
{
    if (s->db)
        return ERR_OK;
    if (s->off_until_us > clock_us())
        return err_set(err, ERR_STATE, "the store is off: its disk failed");
    enum err_code code = store_db_open(s->dir, is_new, &s->db, err);
    if (code == ERR_INVALID) {
        store_abandon_file(s, err);
        code = store_db_open(s->dir, is_new, &s->db, err);
    }
    if (code == ERR_OK && s->is_off)
        log_info("store", "the store is on again");
    if (code == ERR_OK)
        s->is_off = 0;
    else if (code != ERR_NOT_FOUND)
        store_switch_off(s, err);
    return code;
}

/* What an error of a statement means for the store. */
static void store_judge(struct store *s, const struct err *err)
{
    if (err->code == ERR_INVALID)
        store_abandon_file(s, err);
    else if (err->code == ERR_FULL || err->code == ERR_IO)
        store_switch_off(s, err);
}

/* --- operations (the disk thread) --- */

/* One more row of a chain or beside it. *bytes: of all so far. */
static enum err_code store_add_found(struct store *s, struct store_job *job, const char *id,
                                     size_t *bytes)
{
    if (job->n == STORE_CHAIN_ROWS || *bytes > STORE_CHAIN_BYTES)
        return err_set(&job->err, ERR_UNSUPPORTED,
                       "the conversation has more than %d turns or %d bytes", STORE_CHAIN_ROWS,
                       STORE_CHAIN_BYTES);
    store_job_add_row(job);
    struct store_row *row = &job->rows[job->n - 1];
    snprintf(job->id, sizeof(job->id), "%s", id); /* the one that an error is about */
    enum err_code code = store_db_get(s->db, job->who, id, s->config.max_age_s, row, &job->err);
    *bytes += store_row_bytes(row);
    return code;
}

static enum err_code store_chain(struct store *s, struct store_job *job)
{
    size_t bytes = 0;
    char id[STORE_ID_BYTES];
    enum err_code code = ERR_OK;
    memcpy(id, job->id, sizeof(id));
    while (id[0] && code == ERR_OK) {
        code = store_add_found(s, job, id, &bytes);
        memcpy(id, job->rows[job->n - 1].previous, sizeof(id));
    }
    job->n_chain = job->n;
    for (int32_t i = 0, k = job->n - 1; i < k; i++, k--) {
        struct store_row row = job->rows[i];
        job->rows[i] = job->rows[k];
        job->rows[k] = row;
    }
    for (int32_t i = 0; i < job->n_more && code == ERR_OK; i++)
        code = store_add_found(s, job, job->more[i], &bytes);
    return code;
}

static enum err_code store_do(struct store *s, struct store_job *job)
{
    int64_t max_age_s = s->config.max_age_s;
    enum err_code code = store_open(s, job->op == STORE_OP_PUT, &job->err);
    if (code != ERR_OK)
        return code;
    switch (job->op) {
    case STORE_OP_OPEN:
        return ERR_OK;
    case STORE_OP_PUT:
        return store_db_put(s->db, job->who, &job->rows[0], s->config.max_bytes, max_age_s,
                            &job->err);
    case STORE_OP_GET:
        store_job_add_row(job);
        return store_db_get(s->db, job->who, job->id, max_age_s, &job->rows[0], &job->err);
    case STORE_OP_CHAIN:
        return store_chain(s, job);
    case STORE_OP_DELETE:
        return store_db_delete(s->db, job->who, job->id, &job->err);
    }
    return ERR_OK;
}

static void store_count(struct store *s, const struct store_job *job)
{
    int64_t rows = 0, bytes = 0;
    if (job->op == STORE_OP_PUT) {
        s->puts++;
        s->losses += job->err.code != ERR_OK;
    }
    if (!s->db || store_db_size(s->db, &rows, &bytes, NULL) == ERR_OK) {
        s->rows = rows;
        s->bytes = bytes;
    }
}

static void store_hand_back(struct store *s, struct store_job *job)
{
    s->queued_bytes -= job->bytes;
    if (job->op == STORE_OP_OPEN) {
        store_job_free(job);
        return;
    }
    pthread_mutex_lock(&s->lock);
    *(s->last ? &s->last->next : &s->first) = job;
    s->last = job;
    if (s->config.wake)
        s->config.wake(s->config.wake_arg);
    pthread_mutex_unlock(&s->lock);
}

static void store_run(struct disk_job *disk)
{
    struct store_job *job = (struct store_job *)disk; /* its first member */
    struct store *s = job->store;
    job->err.code = ERR_OK;
    if (store_do(s, job) == ERR_OK)
        job->err.code = ERR_OK;
    else
        store_judge(s, &job->err);
    /* A file that was lost is begun anew with the row that found it out. */
    if (job->op == STORE_OP_PUT && job->err.code == ERR_INVALID) {
        job->err.code = ERR_OK;
        if (store_do(s, job) != ERR_OK)
            store_judge(s, &job->err);
    }
    if (job->err.code == ERR_INVALID) /* what the file held is gone */
        job->err.code = ERR_NOT_FOUND;
    if (job->op == STORE_OP_PUT && job->err.code == ERR_UNSUPPORTED)
        log_warn("store", "%s is not kept: %s", job->rows[0].id, job->err.text);
    store_count(s, job);
    store_hand_back(s, job);
}

/* --- the store --- */

struct store *store_new(const struct store_config *config)
{
    struct store *s = mem_alloc(MEM_CAT_SERVER, sizeof(*s));
    s->config = *config;
    s->dir = mem_strdup(MEM_CAT_SERVER, config->dir);
    pthread_mutex_init(&s->lock, NULL);
    s->disk = disk_new(STORE_QUEUED);
    struct store_job *job = store_job_new(STORE_OP_OPEN, 0);
    BUG_ON(store_submit(s, job) != ERR_OK);
    return s;
}

void store_free(struct store *s)
{
    struct store_job *job;
    if (!s)
        return;
    if (!disk_free(s->disk, "kept responses", DISK_CLOSE_US)) { /* its thread uses all this */
        pthread_mutex_lock(&s->lock);
        s->config.wake = NULL;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    store_db_close(s->db);
    while ((job = store_next(s)) != NULL)
        store_job_free(job);
    pthread_mutex_destroy(&s->lock);
    mem_free(MEM_CAT_SERVER, s->dir);
    mem_free(MEM_CAT_SERVER, s);
}

enum err_code store_submit(struct store *s, struct store_job *job)
{
    job->disk.run = store_run;
    job->store = s;
    job->bytes = 0;
    for (int32_t i = 0; i < job->n; i++)
        job->bytes += store_row_bytes(&job->rows[i]);
    size_t bytes = job->bytes;
    if (s->queued_bytes > 0 && s->queued_bytes + bytes > STORE_QUEUE_BYTES)
        return ERR_FULL;
    s->queued_bytes += bytes; /* before the job can be gone */
    enum err_code code = disk_submit(s->disk, &job->disk);
    if (code != ERR_OK)
        s->queued_bytes -= bytes;
    return code;
}

struct store_job *store_next(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    struct store_job *job = s->first;
    if (job) {
        s->first = job->next;
        if (!s->first)
            s->last = NULL;
        job->next = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return job;
}

void store_read_stats(const struct store *s, struct store_stats *out)
{
    *out = (struct store_stats){ 0 };
    if (s)
        *out = (struct store_stats){ !s->is_off, s->rows, s->bytes, s->puts, s->losses };
}
