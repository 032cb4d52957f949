/* See pool.h.
 *
 * A job is published by storing a new ticket: its number in the high half, the chunks that are left in the low half. A chunk is
 * taken by compare-and-swap on the whole ticket, so a worker that read an old job's fields can never take a chunk of a new
 * one: its swap fails. Conversely a swap that succeeds proves that the fields read since the ticket was loaded are the current
 * job's, and they stay so until this chunk is counted in `done`, which the caller waits for. */
#include "kernels/cpu/pool.h"

#include "base/mem.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SPIN_WORKER 1500  /* about 45 us at 28 ns a pause */
#define SPIN_CALLER 20000 /* the tail of a job: others are in their last chunk */

struct pool_worker {
    struct pool *pool;
    int index;
    pthread_t thread;
};

/* Each line of the cache has one purpose: a fork and join is as many trips of lines between cores as it has hand-overs. */
struct pool {
    /* The job. All that a worker needs comes with the line that it polls. The fields are stable while a chunk of the job is
     * unfinished. */
    _Alignas(64) _Atomic uint64_t ticket; /* job number << 32 | chunks left */
    _Atomic(pool_fn *) fn;
    _Atomic(void *) ctx;
    _Atomic uint32_t n;
    _Atomic uint32_t done_all; /* what `done` is when the job's chunks are finished */
    _Alignas(64) _Atomic uint32_t
        done; /* chunks finished since the start, modulo 2^32; never set back: that were a trip */
    _Atomic uint32_t caller_sleeps;     /* futex on done has a waiter */
    _Alignas(64) _Atomic uint32_t wake; /* futex word: job number */
    /* Some worker may sleep. Whoever wakes them takes it back: a woken worker may wait long for a core, and until it has one each
     * job would pay for another wake (146 a token on a machine with five times as much to do as it can). */
    _Atomic uint32_t has_sleepers;
    _Atomic bool quit;
    int n_threads;
    struct pool_worker *workers; /* [n_threads - 1] */
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void pool_set_fp(void)
{
#if defined(__x86_64__)
    _mm_setcsr(0x1F80); /* all exceptions masked, nearest even, FTZ and DAZ off */
#elif defined(__aarch64__)
    /* FPCR: nothing trapped, nearest even, FZ and FZ16 off, NaN with their payloads, IEEE halves */
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* How many it woke. */
static long futex_wake(_Atomic uint32_t *word, int n)
{
    return syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Take chunks of job `id` until none is left. */
static void pool_work(struct pool *p, uint32_t id, int thread)
{
    for (;;) {
        uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
        if ((uint32_t)(t >> 32) != id)
            return;
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
        uint32_t n = atomic_load_explicit(&p->n, memory_order_relaxed);
        uint32_t all = atomic_load_explicit(&p->done_all, memory_order_relaxed);
        uint32_t left = (uint32_t)t;
        if (left == 0)
            return;
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel,
                                                   memory_order_relaxed))
            continue;
        fn(ctx, n - left, thread);
        uint32_t done = atomic_fetch_add_explicit(&p->done, 1, memory_order_seq_cst) + 1;
        if (done == all && atomic_load_explicit(&p->caller_sleeps, memory_order_seq_cst))
            futex_wake(&p->done, 1);
    }
}

/* Wait until the job number differs from `last`: spin, then sleep. */
static uint32_t pool_next_job(struct pool *p, uint32_t last)
{
    for (int i = 0; i < SPIN_WORKER; i++) {
        uint32_t id = (uint32_t)(atomic_load_explicit(&p->ticket, memory_order_acquire) >> 32);
        if (id != last || atomic_load_explicit(&p->quit, memory_order_relaxed))
            return id;
        pause_cpu();
    }
    atomic_store(&p->has_sleepers, 1);
    while (atomic_load(&p->wake) == last && !atomic_load(&p->quit))
        futex_wait(&p->wake, last);
    return atomic_load(&p->wake);
}

static void *worker_main(void *arg)
{
    struct pool_worker *w = arg;
    struct pool *p = w->pool;
    pool_set_fp();
    uint32_t last = 0;
    while (!atomic_load(&p->quit)) {
        last = pool_next_job(p, last);
        pool_work(p, last, w->index);
    }
    return NULL;
}

void pool_run(struct pool *p, pool_fn *fn, void *ctx, int64_t n)
{
    BUG_ON(n < 0 || n > INT32_MAX);
    if (n <= 1 || p->n_threads == 1) {
        for (int64_t i = 0; i < n; i++)
            fn(ctx, i, 0);
        return;
    }
    uint32_t id = (uint32_t)(atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    uint32_t all = atomic_load_explicit(&p->done_all, memory_order_relaxed) + (uint32_t)n;
    /* The old ticket is spent (no chunk left), so nobody acts on these until the new one is out. */
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&p->n, (uint32_t)n, memory_order_relaxed);
    atomic_store_explicit(&p->done_all, all, memory_order_relaxed);
    atomic_store_explicit(&p->ticket, (uint64_t)id << 32 | (uint32_t)n, memory_order_release);
    atomic_store_explicit(&p->wake, id, memory_order_seq_cst); /* before looking for sleepers */
    if (atomic_load(&p->has_sleepers) && atomic_exchange(&p->has_sleepers, 0)) {
        int others = p->n_threads - 1, n_wanted = n <= others ? (int)n - 1 : others;
        long n_woken = futex_wake(&p->wake, n_wanted);
        if (n_wanted < others && n_woken == n_wanted) /* some may sleep on */
            atomic_store(&p->has_sleepers, 1);
    }
    pool_work(p, id, 0);
    for (int i = 0; atomic_load_explicit(&p->done, memory_order_acquire) != all; i++) {
        if (i < SPIN_CALLER) {
            pause_cpu();
            continue;
        }
        uint32_t seen = atomic_load(&p->done);
        atomic_store(&p->caller_sleeps, 1);
        if (atomic_load(&p->done) == seen && seen != all)
            futex_wait(&p->done, seen);
        atomic_store(&p->caller_sleeps, 0);
    }
}

int pool_threads(const struct pool *p)
{
    return p->n_threads;
}

void pool_bind(struct pool *p, const cpu_set_t *cores)
{
    for (int i = 1; i < p->n_threads; i++)
        pthread_setaffinity_np(p->workers[i - 1].thread, sizeof(cores[i]), &cores[i]);
}

enum err_code pool_new(int n_threads, struct pool **out, struct err *err)
{
    BUG_ON(n_threads < 1);
    struct pool *p = mem_try_big(MEM_CAT_BASE, sizeof(*p));
    if (!p)
        return err_set(err, ERR_NOMEM, "no memory for the thread pool");
    p->n_threads = 1;
    p->workers = mem_alloc(MEM_CAT_BASE, (size_t)n_threads * sizeof(*p->workers));
    pool_set_fp();
    for (int i = 1; i < n_threads; i++) {
        struct pool_worker *w = &p->workers[i - 1];
        w->pool = p;
        w->index = i;
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            pool_free(p);
            return err_set(err, ERR_IO, "thread %d of %d could not be started: %s; use fewer",
                           i + 1, n_threads, strerror(rc));
        }
        p->n_threads = i + 1;
    }
    *out = p;
    return ERR_OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, INT32_MAX);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->workers[i - 1].thread, NULL);
    mem_free(MEM_CAT_BASE, p->workers);
    mem_free_big(MEM_CAT_BASE, p, sizeof(*p));
}
