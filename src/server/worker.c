#include "server/worker.h"
#include "base/queue.h"

struct worker_pool {
    struct queue todo, done; /* of struct worker_job * */
    struct prepare_context ctx;
    void (*wake)(void *arg);
    void *arg;
    int n_threads, n_jobs;
    int n_inside; /* I/O thread: jobs submitted and not taken back; bounds both queues */
    pthread_t threads[LIMIT_PREP_THREADS];
};

static void *worker_run(void *arg)
{
    struct worker_pool *p = arg;
    struct worker_job *job;
    while (queue_pop(&p->todo, &job) == ERR_OK) {
        if (!atomic_load(&job->is_cancelled))
            job->prepared =
                prepare_request(&p->ctx, job->kind, job->body.data, job->body.len, job->seed);
        buf_release(&job->body);
        enum err_code code = queue_push(&p->done, &job); /* never waits: n_inside bounds it */
        BUG_ON(code != ERR_OK);
        p->wake(p->arg);
    }
    return NULL;
}

struct worker_pool *worker_pool_new(int n_threads, int n_jobs, void (*wake)(void *arg), void *arg)
{
    BUG_ON(n_threads > LIMIT_PREP_THREADS);
    struct worker_pool *p = mem_alloc(MEM_CAT_SERVER, sizeof(*p));
    p->n_jobs = n_jobs;
    p->wake = wake;
    p->arg = arg;
    queue_init(&p->todo, sizeof(struct worker_job *), (size_t)n_jobs);
    queue_init(&p->done, sizeof(struct worker_job *), (size_t)n_jobs);
    p->n_threads = n_threads;
    return p;
}

void worker_pool_ready(struct worker_pool *p, const struct prepare_context *ctx)
{
    p->ctx = *ctx;
    for (int i = 0; i < p->n_threads; i++)
        BUG_ON(pthread_create(&p->threads[i], NULL, worker_run, p) != 0);
}

enum err_code worker_submit(struct worker_pool *p, struct worker_job *job)
{
    if (p->n_inside == p->n_jobs)
        return ERR_FULL;
    enum err_code code = queue_try_push(&p->todo, &job);
    if (code == ERR_OK)
        p->n_inside++;
    return code;
}

struct worker_job *worker_next(struct worker_pool *p)
{
    struct worker_job *job;
    if (queue_try_pop(&p->done, &job) != ERR_OK)
        return NULL;
    p->n_inside--;
    return job;
}

void worker_job_free(struct worker_job *job)
{
    if (!job)
        return;
    prepare_free(job->prepared);
    buf_release(&job->body);
    mem_free(MEM_CAT_REQUEST, job);
}

void worker_pool_free(struct worker_pool *p)
{
    struct worker_job *job;
    if (!p)
        return;
    while (queue_try_pop(&p->todo, &job) == ERR_OK)
        worker_job_free(job);
    queue_close(&p->todo);
    for (int i = 0; i < p->n_threads; i++)
        if (p->ctx.model)
            pthread_join(p->threads[i], NULL);
    while ((job = worker_next(p)) != NULL)
        worker_job_free(job);
    queue_release(&p->todo);
    queue_release(&p->done);
    mem_free(MEM_CAT_SERVER, p);
}
