/* The device of a running engine fails, or is lost: what it ends, what goes on, and with which bits.
 *
 * A CPU backend stands for the device: its wait says ERR_LOST when it is told to, all memory that it gave is overwritten then, and
 * its reset wants all of that memory back. After ERR_IO what rows have is overwritten, not the weights. */
#include "engine_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- a device that can be lost --- */

#define BLOCKS 256

static struct {
    struct backend *inner;
    struct backend_ops ops;
    struct {
        void *p;
        size_t bytes;
        enum mem_cat cat;
    } blocks[BLOCKS];
    int lose_in, fail_in; /* waits; 0: not */
    int n_resets;
    bool is_lost, is_dead, is_closed; /* is_closed: the reset failed */
} device;

static void *device_alloc(struct backend *be, enum mem_cat cat, size_t bytes)
{
    void *p = device.inner->ops->alloc(device.inner, cat, bytes);
    for (int i = 0; p && i < BLOCKS; i++)
        if (!device.blocks[i].p) {
            device.blocks[i].p = p;
            device.blocks[i].bytes = bytes;
            device.blocks[i].cat = cat;
            return p;
        }
    fail_msg("too many blocks");
    return NULL;
}

static void device_free(struct backend *be, enum mem_cat cat, void *p, size_t bytes)
{
    for (int i = 0; i < BLOCKS; i++)
        if (device.blocks[i].p == p)
            device.blocks[i].p = NULL;
    device.inner->ops->free(device.inner, cat, p, bytes);
}

static void device_spoil(bool has_weights)
{
    for (int i = 0; i < BLOCKS; i++)
        if (device.blocks[i].p && (has_weights || device.blocks[i].cat == MEM_CAT_KV))
            memset(device.blocks[i].p, 0xFF, device.blocks[i].bytes);
}

static enum err_code device_wait(struct backend *be, struct err *err)
{
    assert_false(device.is_closed);
    if (device.lose_in > 0 && --device.lose_in == 0)
        device.is_lost = true;
    if (device.is_lost)
        device_spoil(true);
    if (device.fail_in > 0 && --device.fail_in == 0) {
        device_spoil(false);
        return err_set(err, ERR_IO, "the device would not");
    }
    return device.is_lost ? err_set(err, ERR_LOST, "the device fell off") : ERR_OK;
}

static enum err_code device_reset(struct backend *be, struct err *err)
{
    assert_true(device.is_lost);
    for (int i = 0; i < BLOCKS; i++)
        assert_null(device.blocks[i].p);
    device.is_closed = device.is_dead;
    if (device.is_dead)
        return err_set(err, ERR_IO, "there is no device");
    device.is_lost = false;
    device.n_resets++;
    return ERR_OK;
}

static void device_close(struct backend *be)
{
    device.inner->ops->close(device.inner);
    free(be);
}

static struct backend *device_wrap(struct backend *be)
{
    struct backend *out = calloc(1, sizeof(*out));
    memset(&device, 0, sizeof(device));
    device.inner = be;
    device.ops = *be->ops;
    device.ops.alloc = device_alloc;
    device.ops.free = device_free;
    device.ops.wait = device_wait;
    device.ops.reset = device_reset;
    device.ops.close = device_close;
    *out = (struct backend){ &device.ops, be->state };
    return out;
}

static enum err_code restore(void *ctx, struct err *err)
{
    struct tiny_engine *t = ctx;
    model_unload(t->model);
    enum err_code code = t->be->ops->reset(t->be, err);
    struct model_load_options o = { .weights = t->weights, .be = t->be };
    return code ? code : model_reload(t->model, &o, err);
}

/* --- helpers --- */

#define FAMILY "tests/golden/families/"

static const char *const models[] = { TINY "llama.gguf", TINY "gemma3.gguf",
                                      FAMILY "qwen35-tied.gguf", FAMILY "qwen4exp-sparse.gguf" };

static void open_engine(struct tiny_engine *t, const char *file, const char *dir)
{
    tiny_engine_open(t, &(struct tiny_config){ .file = file,
                                               .n_ctx = N_CTX,
                                               .max_rows = 4,
                                               .keep_bytes = RUNNER_KEEP_ALL,
                                               .disk_dir = dir,
                                               .wrap = device_wrap,
                                               .restore = restore });
}

/* The step that loses the device, or (ERR_IO) fails there. */
static void step_broken(struct tiny_engine *t, row_id row, enum err_code how)
{
    struct engine_result res;
    struct engine_work work = { row, 8 };
    struct err err = { 0 };
    *(how == ERR_LOST ? &device.lose_in : &device.fail_in) = 1;
    assert_int_equal(t->engine->ops->step(t->engine, &work, 1, &res, &err), how);
    assert_non_null(strstr(err.text, how == ERR_LOST ? "fell off" : "would not"));
}

static void step_lost(struct tiny_engine *t, row_id row)
{
    step_broken(t, row, ERR_LOST);
}

static void mend(struct tiny_engine *t)
{
    struct err err = { 0 };
    if (t->engine->ops->mend(t->engine, &err))
        fail_msg("%s", err.text);
    tiny_engine_check(t);
}

/* Go on with a row to its end: its answer, of which n tokens are there, is the lone one's. */
static void finish_row(struct tiny_engine *t, row_id row, int n, const struct answer *want)
{
    struct engine_result res = { 0 };
    while (res.finish == FINISH_NONE) {
        res = step(t, row, 5);
        for (int i = 0; i < res.n_tokens; i++)
            token_equals(&res.tokens[i], &want->tokens[n++]);
    }
    assert_int_equal(n, want->n);
    t->engine->ops->close(t->engine, row);
}

/* --- tests --- */

static void rows_beside_go_on(enum err_code how)
{
    static int32_t ids[3][PROMPT_MAX];
    for (size_t f = 0; f < ARRAY_LEN(models); f++) {
        struct tiny_engine t;
        struct answer want[3];
        struct engine_request req[3];
        struct engine_result res = { 0 };
        for (int i = 0; i < 3; i++) {
            prompt_fill(ids[i], 150, 70, i);
            req[i] = request(ids[i], 100 + i, 20);
        }
        open_engine(&t, models[f], NULL);
        for (int i = 0; i < 3; i++)
            answer_run(&t, &req[i], &want[i]);
        row_id a = open_row(&t, &req[0]), b = open_row(&t, &req[1]);
        grow(&t, a, INT32_MAX);
        grow(&t, b, INT32_MAX);
        take(&t, a, 30);
        res = take(&t, b, req[1].n_prompt);
        int n = 0;
        for (; n < 4; n++, res = step(&t, b, 1))
            token_equals(&res.tokens[0], &want[1].tokens[n]);
        token_equals(&res.tokens[0], &want[1].tokens[n++]);
        step_broken(&t, a, how);
        mend(&t);
        t.engine->ops->close(t.engine, a);
        tiny_engine_check(&t);
        grow(&t, b, INT32_MAX);
        finish_row(&t, b, n, &want[1]);
        struct answer again;
        for (int i = 0; i < 3; i++) {
            answer_run(&t, &req[i], &again);
            assert_int_equal(again.n, want[i].n);
            for (int k = 0; k < again.n; k++)
                token_equals(&again.tokens[k], &want[i].tokens[k]);
        }
        assert_int_equal(device.n_resets, how == ERR_LOST);
        tiny_engine_close(&t);
    }
}

static void rows_beside_the_step_go_on_with_the_same_bits(void **state)
{
    rows_beside_go_on(ERR_LOST);
}

/* A copy for a row that is not in the failing step may be what has failed: nothing in memory is believed. */
static void nothing_in_memory_is_believed_after_a_failed_step(void **state)
{
    rows_beside_go_on(ERR_IO);
}

static bool flush_whole(struct tiny_engine *t)
{
    bool is_durable = false;
    t->engine->ops->flush(t->engine);
    for (int i = 0; i < 2000 && !t->engine->ops->flush_is_over(t->engine, &is_durable); i++) {
        t->engine->ops->tend(t->engine);
        usleep(1000);
    }
    return is_durable;
}

/* What a device gives that fails meanwhile is not for the disk; the next step tells of it, and after that all goes on. */
static void what_a_failing_device_gives_is_not_written(void **state)
{
    static int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct answer want, got;
    struct engine_result res;
    struct err err = { 0 };
    char dir[] = "/tmp/plumb-lost-XXXXXX", command[64];
    assert_non_null(mkdtemp(dir));
    prompt_fill(ids, 200, 0, 1);
    struct engine_request req = request(ids, 180, 8);
    open_engine(&t, models[0], dir);
    answer_run(&t, &req, &want);
    device.fail_in = 1;
    assert_false(flush_whole(&t));
    assert_int_equal(device.fail_in, 0);
    row_id row = open_row(&t, &req);
    grow(&t, row, INT32_MAX);
    struct engine_work work = { row, 8 };
    assert_int_equal(t.engine->ops->step(t.engine, &work, 1, &res, &err), ERR_IO);
    assert_string_equal(err.text, "the device would not");
    mend(&t);
    t.engine->ops->close(t.engine, row);
    row = open_row(&t, &req);
    assert_false(t.engine->ops->fetch(t.engine, row));
    t.engine->ops->close(t.engine, row);
    answer_run(&t, &req, &got);
    for (int k = 0; k < got.n; k++)
        token_equals(&got.tokens[k], &want.tokens[k]);
    assert_true(flush_whole(&t));
    tiny_engine_close(&t);
    snprintf(command, sizeof(command), "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* What memory kept is gone, what the disk has is found. */
static void kept_histories_come_back_from_disk_alone(void **state)
{
    static int32_t ids[PROMPT_MAX];
    for (size_t f = 0; f < 3; f++) {
        struct tiny_engine t;
        struct answer want, got;
        struct engine_miss miss = { 0 };
        char dir[] = "/tmp/plumb-lost-XXXXXX";
        assert_non_null(mkdtemp(dir));
        prompt_fill(ids, 200, 0, 1);
        struct engine_request req = request(ids, 180, 8);
        open_engine(&t, models[f], f == 0 ? dir : NULL);
        answer_run(&t, &req, &want);
        if (f == 0)
            assert_true(flush_whole(&t));
        row_id row = open_row(&t, &req);
        grow(&t, row, INT32_MAX);
        step_lost(&t, row);
        mend(&t);
        t.engine->ops->close(t.engine, row);
        req.miss = &miss;
        row = open_row(&t, &req);
        if (f == 0) {
            assert_true(t.engine->ops->fetch(t.engine, row));
            while (t.engine->ops->is_fetching(t.engine, row)) {
                t.engine->ops->tend(t.engine);
                usleep(1000);
            }
        }
        int32_t n = t.engine->ops->reuse(t.engine, row);
        assert_int_equal(n > 0, f == 0);
        t.engine->ops->close(t.engine, row);
        req.miss = NULL;
        answer_run(&t, &req, &got);
        for (int k = 0; k < got.n; k++)
            token_equals(&got.tokens[k], &want.tokens[k]);
        tiny_engine_close(&t);
        char command[64];
        snprintf(command, sizeof(command), "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
}

static void lost_again_and_for_good(const char *file)
{
    static int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct answer want, got;
    struct err err = { 0 };
    prompt_fill(ids, 100, 0, 1);
    struct engine_request req = request(ids, 80, 8);
    open_engine(&t, file, NULL);
    answer_run(&t, &req, &want);
    for (int i = 0; i < 3; i++) {
        row_id row = open_row(&t, &req);
        grow(&t, row, INT32_MAX);
        step_lost(&t, row);
        mend(&t);
        t.engine->ops->close(t.engine, row);
        answer_run(&t, &req, &got);
        for (int k = 0; k < got.n; k++)
            token_equals(&got.tokens[k], &want.tokens[k]);
    }
    row_id row = open_row(&t, &req);
    grow(&t, row, INT32_MAX);
    step_lost(&t, row);
    device.is_dead = true;
    assert_int_equal(t.engine->ops->mend(t.engine, &err), ERR_IO);
    assert_string_equal(err.text, "there is no device");
    t.engine->ops->close(t.engine, row);
    tiny_engine_close(&t);
}

static void it_can_be_lost_again_and_for_good(void **state)
{
    for (size_t f = 0; f < ARRAY_LEN(models); f++)
        lost_again_and_for_good(models[f]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_beside_the_step_go_on_with_the_same_bits),
        cmocka_unit_test(nothing_in_memory_is_believed_after_a_failed_step),
        cmocka_unit_test(what_a_failing_device_gives_is_not_written),
        cmocka_unit_test(kept_histories_come_back_from_disk_alone),
        cmocka_unit_test(it_can_be_lost_again_and_for_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
