/* queue.h - a bounded queue of fixed-size messages between threads.
 *
 * Thread: any number of senders and receivers. Lock: one mutex per queue, guards everything in it; never held while calling out.
 * Messages are copied in and out by value. */
#ifndef PLUMB_BASE_QUEUE_H
#define PLUMB_BASE_QUEUE_H

#include "base/mem.h"

#include <pthread.h>

struct queue {
    size_t item_bytes;
    size_t cap; /* items */
    /* private to queue.c from here */
    pthread_mutex_t lock;
    pthread_cond_t not_empty, not_full;
    char *items;
    size_t head, len;
    bool is_closed;
};

void queue_init(struct queue *q, size_t item_bytes, size_t cap);
void queue_release(
    struct queue *q); /* items left inside are forgotten: drain first if they own anything */

/* Errors of all: ERR_STATE - closed. */
enum err_code queue_push(struct queue *q, const void *item) MUST_CHECK; /* waits while full */
enum err_code queue_try_push(struct queue *q,
                             const void *item) MUST_CHECK; /* ERR_FULL instead of waiting */
enum err_code queue_pop(struct queue *q, void *item)
    MUST_CHECK; /* waits while empty; after close drains, then ERR_STATE */
enum err_code queue_try_pop(struct queue *q, void *item) MUST_CHECK; /* ERR_NOT_FOUND if empty */

/* As queue_pop, but at most timeout_us; ERR_TIMEOUT. */
enum err_code queue_pop_timed(struct queue *q, void *item, int64_t timeout_us) MUST_CHECK;

void queue_close(struct queue *q); /* wakes every waiter */
size_t queue_len(struct queue *q);

#endif
