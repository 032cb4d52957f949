#include "server/worker.h"
#include "base/clock.h"
#include "base/trace.h"

#include <pthread.h>

struct worker_list { /* first in, first out */
    struct worker_job *first, *last;
};

struct worker_line { /* of a class */
    struct worker_pool *pool;
    enum worker_class class;
    struct worker_list jobs; /* not begun */
    pthread_cond_t not_empty;
    /* written under the lock, read by anyone */
    _Atomic int64_t queued, running, done, cancelled, refused;
};

struct worker_pool {
    struct worker_config config;
    pthread_mutex_t lock; /* of the lines and of `done` */
    struct worker_line lines[WORKER_CLASS_COUNT];
    struct worker_list done;
    bool is_closed;
    pthread_t threads[WORKER_CLASS_COUNT * LIMIT_PREP_SLOTS];
    int n_threads;
};

const char *worker_class_name(enum worker_class c)
{
    static const char *const names[] = { "text", "grammar", "media" };
    BUG_ON((unsigned)c >= ARRAY_LEN(names));
    return names[c];
}

static void worker_list_add(struct worker_list *l, struct worker_job *job)
{
    job->next = NULL;
    *(l->last ? &l->last->next : &l->first) = job;
    l->last = job;
}

static struct worker_job *worker_list_take(struct worker_list *l)
{
    struct worker_job *job = l->first;
    if (!job)
        return NULL;
    l->first = job->next;
    if (!l->first)
        l->last = NULL;
    job->next = NULL;
    return job;
}

static bool worker_list_remove(struct worker_list *l, const struct worker_job *job)
{
    struct worker_job *prev = NULL, *at = l->first;
    while (at && at != job) {
        prev = at;
        at = at->next;
    }
    if (!at)
        return false;
    *(prev ? &prev->next : &l->first) = at->next;
    if (l->last == at)
        l->last = prev;
    at->next = NULL;
    return true;
}

/* --- the threads --- */

/* The next job of the line; NULL when the pool closes. */
static struct worker_job *worker_wait(struct worker_line *line)
{
    struct worker_pool *p = line->pool;
    pthread_mutex_lock(&p->lock);
    while (!line->jobs.first && !p->is_closed)
        pthread_cond_wait(&line->not_empty, &p->lock);
    struct worker_job *job = p->is_closed ? NULL : worker_list_take(&line->jobs);
    if (job) {
        line->queued--;
        line->running++;
    }
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void *worker_run(void *arg)
{
    struct worker_line *line = arg;
    struct worker_pool *p = line->pool;
    struct worker_job *job;
    while ((job = worker_wait(line)) != NULL) {
        if (trace_is_on() && job->trace)
            trace_span("engine.request_wait", job->trace, job->submitted_us, clock_us(),
                       "{\"class\":\"%s\",\"capacity\":%d}", worker_class_name(line->class),
                       p->config.slots[line->class]);
        p->config.prepare(p->config.prepare_arg, job);
        if (!job->keeps_body)
            buf_release(&job->body);
        pthread_mutex_lock(&p->lock);
        worker_list_add(&p->done, job);
        line->running--;
        line->done++;
        pthread_mutex_unlock(&p->lock);
        p->config.wake(p->config.wake_arg);
    }
    return NULL;
}

/* --- the pool --- */

struct worker_pool *worker_pool_new(const struct worker_config *config)
{
    struct worker_pool *p = mem_alloc(MEM_CAT_SERVER, sizeof(*p));
    p->config = *config;
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < WORKER_CLASS_COUNT; i++) {
        BUG_ON(config->slots[i] < 1 || config->slots[i] > LIMIT_PREP_SLOTS);
        p->lines[i].pool = p;
        p->lines[i].class = (enum worker_class)i;
        pthread_cond_init(&p->lines[i].not_empty, NULL);
    }
    return p;
}

void worker_pool_start(struct worker_pool *p)
{
    BUG_ON(p->n_threads != 0);
    for (int i = 0; i < WORKER_CLASS_COUNT; i++)
        for (int k = 0; k < p->config.slots[i]; k++)
            BUG_ON(pthread_create(&p->threads[p->n_threads++], NULL, worker_run, &p->lines[i]) !=
                   0);
}

void worker_pool_free(struct worker_pool *p)
{
    struct worker_job *job;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->is_closed = true;
    for (int i = 0; i < WORKER_CLASS_COUNT; i++)
        pthread_cond_broadcast(&p->lines[i].not_empty);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    for (int i = 0; i < WORKER_CLASS_COUNT; i++) {
        while ((job = worker_list_take(&p->lines[i].jobs)) != NULL)
            worker_job_free(job);
        pthread_cond_destroy(&p->lines[i].not_empty);
    }
    while ((job = worker_list_take(&p->done)) != NULL)
        worker_job_free(job);
    pthread_mutex_destroy(&p->lock);
    mem_free(MEM_CAT_SERVER, p);
}

/* --- jobs --- */

enum err_code worker_submit(struct worker_pool *p, struct worker_job *job)
{
    struct worker_line *line = &p->lines[job->class];
    job->submitted_us = clock_us();
    pthread_mutex_lock(&p->lock);
    bool is_full = line->queued >= p->config.max_queued;
    if (is_full) {
        line->refused++;
    } else {
        worker_list_add(&line->jobs, job);
        line->queued++;
        pthread_cond_signal(&line->not_empty);
    }
    pthread_mutex_unlock(&p->lock);
    return is_full ? ERR_FULL : ERR_OK;
}

bool worker_cancel(struct worker_pool *p, struct worker_job *job)
{
    struct worker_line *line = &p->lines[job->class];
    pthread_mutex_lock(&p->lock);
    bool is_ours = worker_list_remove(&line->jobs, job);
    if (is_ours)
        line->queued--;
    line->cancelled++;
    pthread_mutex_unlock(&p->lock);
    atomic_store(&job->is_cancelled, true);
    return is_ours;
}

struct worker_job *worker_next(struct worker_pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct worker_job *job = worker_list_take(&p->done);
    pthread_mutex_unlock(&p->lock);
    return job;
}

void worker_job_free(struct worker_job *job)
{
    if (!job)
        return;
    prepare_free(job->prepared);
    store_job_free(job->history);
    buf_release(&job->body);
    mem_free(MEM_CAT_REQUEST, job);
}

void worker_read_stats(const struct worker_pool *p, enum worker_class c, struct worker_stats *out)
{
    const struct worker_line *line = &p->lines[c];
    *out = (struct worker_stats){
        .slots = p->config.slots[c],
        .queued = line->queued,
        .running = line->running,
        .done = line->done,
        .cancelled = line->cancelled,
        .refused = line->refused,
    };
}
