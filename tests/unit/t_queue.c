#include "base/clock.h"
#include "base/queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#define SENDERS 3
#define EACH    20000

static void order_bounds_and_close(void **state)
{
    struct queue q;
    int v = 0;
    queue_init(&q, sizeof(int), 3);
    assert_int_equal(queue_try_pop(&q, &v), ERR_NOT_FOUND);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++)
            assert_int_equal(queue_try_push(&q, &(int){ 10 * round + i }), ERR_OK);
        assert_int_equal(queue_try_push(&q, &(int){ 99 }), ERR_FULL);
        assert_int_equal(queue_len(&q), 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(queue_pop(&q, &v), ERR_OK);
            assert_int_equal(v, 10 * round + i);
        }
    }
    assert_int_equal(queue_push(&q, &(int){ 7 }), ERR_OK);
    queue_close(&q);
    assert_int_equal(queue_push(&q, &(int){ 8 }), ERR_STATE);
    assert_int_equal(queue_try_push(&q, &(int){ 8 }), ERR_STATE);
    assert_int_equal(queue_pop(&q, &v), ERR_OK); /* what was in comes out */
    assert_int_equal(v, 7);
    assert_int_equal(queue_pop(&q, &v), ERR_STATE);
    assert_int_equal(queue_try_pop(&q, &v), ERR_STATE);
    assert_int_equal(queue_pop_timed(&q, &v, 1000000), ERR_STATE);
    queue_release(&q);
}

static void a_timed_wait_ends(void **state)
{
    struct queue q;
    int v;
    queue_init(&q, sizeof(int), 1);
    int64_t start = clock_us();
    assert_int_equal(queue_pop_timed(&q, &v, 20000), ERR_TIMEOUT);
    int64_t took = clock_us() - start;
    assert_in_range(took, 19000, 20000000);
    assert_int_equal(queue_push(&q, &(int){ 5 }), ERR_OK);
    assert_int_equal(queue_pop_timed(&q, &v, 0), ERR_OK);
    assert_int_equal(v, 5);
    queue_release(&q);
}

struct message {
    int32_t sender, number;
};

static struct queue shared;

static void *send_all(void *arg)
{
    struct message m = { .sender = (int32_t)(intptr_t)arg };
    for (m.number = 0; m.number < EACH; m.number++)
        if (queue_push(&shared, &m) != ERR_OK)
            return (void *)1;
    return NULL;
}

static void many_senders_lose_nothing_and_keep_their_order(void **state)
{
    pthread_t threads[SENDERS];
    int32_t next[SENDERS] = { 0 };
    queue_init(&shared, sizeof(struct message), 7);
    for (intptr_t i = 0; i < SENDERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, (void *)i), 0);
    for (int n = 0; n < SENDERS * EACH; n++) {
        struct message m;
        assert_int_equal(queue_pop(&shared, &m), ERR_OK);
        assert_int_equal(m.number, next[m.sender]);
        next[m.sender]++;
    }
    for (int i = 0; i < SENDERS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(queue_len(&shared), 0);
    queue_release(&shared);
}

static void *pop_until_closed(void *arg)
{
    struct message m;
    return queue_pop(&shared, &m) == ERR_STATE ? arg : NULL;
}

static void close_wakes_who_waits(void **state)
{
    pthread_t thread;
    void *out;
    queue_init(&shared, sizeof(struct message), 1);
    assert_int_equal(pthread_create(&thread, NULL, pop_until_closed, &shared), 0);
    queue_close(&shared);
    pthread_join(thread, &out);
    assert_ptr_equal(out, &shared);
    queue_release(&shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_bounds_and_close),
        cmocka_unit_test(a_timed_wait_ends),
        cmocka_unit_test(many_senders_lose_nothing_and_keep_their_order),
        cmocka_unit_test(close_wakes_who_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
