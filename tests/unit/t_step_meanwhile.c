/* What the host does while a device works: once in a step, when the device has all of it and before it is waited for, with what the step
 * before has told still there. */
#include "engine_rows.h"

#include <stdlib.h>

/* A CPU backend stands for the device. What is called of it stands in `calls`: b(egin) s(tart) f(ailed) w(ait), and m for the host's part. */
static struct {
    struct backend *inner;
    struct backend_ops ops;
    char calls[64];
    size_t n;
} device;

static struct engine_result last; /* of the step before */
static int32_t last_id;

static void note(char c)
{
    if (device.n < sizeof(device.calls) - 1)
        device.calls[device.n++] = c;
    device.calls[device.n] = '\0';
}

static void device_begin(struct backend *be, int n_rows)
{
    note('b');
    device.inner->ops->begin(device.inner, n_rows);
}

static void device_start(struct backend *be)
{
    note('s');
}

static void device_failed(struct backend *be, uint8_t *flags)
{
    note('f');
    device.inner->ops->failed(device.inner, flags);
}

static enum err_code device_wait(struct backend *be, struct err *err)
{
    note('w');
    return ERR_OK;
}

static void device_close(struct backend *be)
{
    device.inner->ops->close(device.inner);
    free(be);
}

static struct backend *host_wrap(struct backend *be)
{
    struct backend *out = calloc(1, sizeof(*out));
    device.inner = be;
    device.ops = *be->ops;
    device.ops.begin = device_begin;
    device.ops.failed = device_failed;
    device.ops.close = device_close;
    *out = (struct backend){ &device.ops, be->state };
    return out;
}

static struct backend *device_wrap(struct backend *be)
{
    struct backend *out = host_wrap(be);
    device.ops.is_host = false;
    device.ops.start = device_start;
    device.ops.wait = device_wait;
    return out;
}

static void meanwhile(void *arg)
{
    note('m');
    if (last.n_tokens > 0)
        assert_int_equal(last.tokens[0].id, last_id);
    mem_free(MEM_CAT_BASE, mem_alloc(MEM_CAT_BASE, 100)); /* it is no part of the step */
}

/* A prompt in two parts, then tokens. Fills calls with those of the last step each time `check` is called. */
static void answer(struct backend *(*wrap)(struct backend *be), void (*check)(int32_t n_left))
{
    struct tiny_engine t;
    int32_t ids[40];
    tiny_engine_open(
        &t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 2, .wrap = wrap });
    t.engine->ops->set_meanwhile(t.engine, meanwhile, NULL);
    prompt_fill(ids, 40, 0, 1);
    struct engine_request req = request(ids, 40, 6);
    row_id row = open_row(&t, &req);
    grow(&t, row, 46);
    memset(&last, 0, sizeof(last));
    for (int32_t left = 40; last.finish == FINISH_NONE; left -= last.n_taken) {
        device.n = 0;
        last = step(&t, row, left > 24 ? 24 : left > 0 ? left : 1);
        check(left);
        last_id = last.n_tokens > 0 ? last.tokens[0].id : -1;
    }
    assert_int_equal(last.finish, FINISH_LENGTH);
    t.engine->ops->close(t.engine, row);
    tiny_engine_close(&t);
}

static void check_device(int32_t left)
{
    const char *m = strchr(device.calls, 'm');
    assert_non_null(m);
    assert_null(strchr(m + 1, 'm'));
    assert_true(m > device.calls && m[-1] == 's');
    assert_true(strcspn(device.calls, "fw") > (size_t)(m - device.calls));
    assert_int_equal(device.calls[0], 'b');
    if (left <= 0) /* a token: one wait, but for the copy of what came of it */
        assert_memory_equal(device.calls, "bsmfw", 5);
}

static void check_host(int32_t left)
{
    assert_int_equal(device.calls[0], 'm');
    assert_null(strchr(device.calls + 1, 'm'));
    assert_null(strchr(device.calls, 's'));
}

static void once_while_the_device_works(void **state)
{
    (void)state;
    answer(device_wrap, check_device);
}

static void before_the_host_computes(void **state)
{
    (void)state;
    answer(host_wrap, check_host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once_while_the_device_works),
        cmocka_unit_test(before_the_host_computes),
    };
    return cmocka_run_group_tests_name("meanwhile", tests, NULL, NULL);
}
