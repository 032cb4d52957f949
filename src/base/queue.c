#include "base/queue.h"

#include <string.h>
#include <time.h>

void queue_init(struct queue *q, size_t item_bytes, size_t cap)
{
    pthread_condattr_t attr;
    *q = (struct queue){ .item_bytes = item_bytes, .cap = cap };
    q->items = mem_alloc(MEM_CAT_BASE, item_bytes * cap);
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->not_empty, &attr);
    pthread_cond_init(&q->not_full, &attr);
    pthread_condattr_destroy(&attr);
}

void queue_release(struct queue *q)
{
    pthread_cond_destroy(&q->not_full);
    pthread_cond_destroy(&q->not_empty);
    pthread_mutex_destroy(&q->lock);
    mem_free(MEM_CAT_BASE, q->items);
    q->items = NULL;
}

/* Caller holds the lock; there is room. */
static void queue_put(struct queue *q, const void *item)
{
    memcpy(q->items + (q->head + q->len) % q->cap * q->item_bytes, item, q->item_bytes);
    q->len++;
    pthread_cond_signal(&q->not_empty);
}

/* Caller holds the lock; there is an item. */
static void queue_get(struct queue *q, void *item)
{
    memcpy(item, q->items + q->head * q->item_bytes, q->item_bytes);
    q->head = (q->head + 1) % q->cap;
    q->len--;
    pthread_cond_signal(&q->not_full);
}

enum err_code queue_push(struct queue *q, const void *item)
{
    enum err_code code = ERR_OK;
    pthread_mutex_lock(&q->lock);
    while (q->len == q->cap && !q->is_closed)
        pthread_cond_wait(&q->not_full, &q->lock);
    if (q->is_closed)
        code = ERR_STATE;
    else
        queue_put(q, item);
    pthread_mutex_unlock(&q->lock);
    return code;
}

enum err_code queue_try_push(struct queue *q, const void *item)
{
    enum err_code code = ERR_OK;
    pthread_mutex_lock(&q->lock);
    if (q->is_closed)
        code = ERR_STATE;
    else if (q->len == q->cap)
        code = ERR_FULL;
    else
        queue_put(q, item);
    pthread_mutex_unlock(&q->lock);
    return code;
}

enum err_code queue_pop(struct queue *q, void *item)
{
    enum err_code code = ERR_OK;
    pthread_mutex_lock(&q->lock);
    while (q->len == 0 && !q->is_closed)
        pthread_cond_wait(&q->not_empty, &q->lock);
    if (q->len == 0)
        code = ERR_STATE;
    else
        queue_get(q, item);
    pthread_mutex_unlock(&q->lock);
    return code;
}

enum err_code queue_try_pop(struct queue *q, void *item)
{
    enum err_code code = ERR_OK;
    pthread_mutex_lock(&q->lock);
    if (q->len > 0)
        queue_get(q, item);
    else
        code = q->is_closed ? ERR_STATE : ERR_NOT_FOUND;
    pthread_mutex_unlock(&q->lock);
    return code;
}

enum err_code queue_pop_timed(struct queue *q, void *item, int64_t timeout_us)
{
    struct timespec ts;
    enum err_code code = ERR_OK;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t ns = ts.tv_nsec + timeout_us % 1000000 * 1000;
    ts.tv_sec += timeout_us / 1000000 + ns / 1000000000;
    ts.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&q->lock);
    while (q->len == 0 && !q->is_closed)
        if (pthread_cond_timedwait(&q->not_empty, &q->lock, &ts) != 0)
            break;
    if (q->len > 0)
        queue_get(q, item);
    else
        code = q->is_closed ? ERR_STATE : ERR_TIMEOUT;
    pthread_mutex_unlock(&q->lock);
    return code;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->is_closed = true;
    pthread_cond_broadcast(&q->not_empty);
    pthread_cond_broadcast(&q->not_full);
    pthread_mutex_unlock(&q->lock);
}

size_t queue_len(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    size_t n = q->len;
    pthread_mutex_unlock(&q->lock);
    return n;
}
