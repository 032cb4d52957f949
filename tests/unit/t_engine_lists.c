/* Rows that are sampled by short lists: the same answers as from all logits, whatever the lists leave out.
 *
 * A CPU backend stands for a device whose memory is not the host's: what is not downloaded is not there. */
#include "engine_rows.h"
#include "support/plain_shortlist.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS 6

static struct {
    struct backend *inner;
    struct backend_ops ops;
    int keys;             /* of a part that lists have at most */
    int silent;           /* one row of so many has no list that can be used; 0: all have */
    int n_asked;          /* lists */
    int64_t n_downloaded; /* bytes */
    bool is_odd;          /* the logits are not finite */
    /* what is asked for and not yet filled */
    struct tensor x;
    const float *t;
    int32_t *best;
    struct shortlist *lists;
} device;

static void device_best(struct backend *be, struct tensor x, int32_t *best)
{
    if (device.is_odd)
        x.data[7] = NAN;
    device.x = x;
    device.best = best;
}

static void device_shortlist(struct backend *be, struct tensor x, const float *t,
                             struct shortlist *lists)
{
    assert_non_null(device.best);
    assert_ptr_equal(x.data, device.x.data);
    device.t = t;
    device.lists = lists;
}

/* Fewer keys, and the floor that goes with them. */
static void list_shorten(struct shortlist *list, int32_t n)
{
    for (int i = 0; i < SHORTLIST_PARTS; i++) {
        struct shortlist_part *p = &list->parts[i];
        if (p->n <= n)
            continue;
        p->floor = shortlist_key_order(p->keys[n]) + 1;
        while (p->n > 0 && shortlist_key_order(p->keys[p->n - 1]) < p->floor)
            p->n--;
    }
}

static void device_fill(void)
{
    struct shortlist *list = device.lists;
    for (int64_t i = 0; device.best && i < device.x.rows; i++) {
        const float *x = device.x.data + i * device.x.stride;
        bool is_finite = true;
        for (int64_t k = 0; k < device.x.cols; k++)
            is_finite = is_finite && isfinite(x[k]);
        device.best[i] = is_finite ? (int32_t)device.inner->ops->argmax(device.inner, x,
                                                                        device.x.cols, &is_finite)
                                   : -1;
        if (!list || device.t[i] <= 0)
            continue;
        plain_shortlist(list, x, (int32_t)device.x.cols, device.t[i]);
        list_shorten(list, device.keys);
        device.n_asked++;
        for (int k = 0; k < SHORTLIST_PARTS && device.silent > 0; k++)
            if (device.n_asked % device.silent == 0)
                list->parts[k].n = -1;
        list++;
    }
    device.best = NULL;
    device.lists = NULL;
}

static void device_failed(struct backend *be, uint8_t *flags)
{
    device.inner->ops->failed(device.inner, flags);
    device_fill();
}

static void device_download(struct backend *be, void *host, const void *src, size_t bytes)
{
    device.n_downloaded += (int64_t)bytes;
    device.inner->ops->download(device.inner, host, src, bytes);
}

static void device_close(struct backend *be)
{
    device.inner->ops->close(device.inner);
    free(be);
}

static struct backend *device_wrap(struct backend *be)
{
    struct backend *out = calloc(1, sizeof(*out));
    device.inner = be;
    device.ops = *be->ops;
    device.ops.is_host = false;
    device.ops.best = device_best;
    device.ops.shortlist = device_shortlist;
    device.ops.failed = device_failed;
    device.ops.download = device_download;
    device.ops.close = device_close;
    *out = (struct backend){ &device.ops, be->state };
    return out;
}

static void open_engine(struct tiny_engine *t, const char *file,
                        struct backend *(*wrap)(struct backend *be), int threads)
{
    tiny_engine_open(
        t, &(struct tiny_config){
               .file = file, .n_ctx = N_CTX, .max_rows = ROWS, .threads = threads, .wrap = wrap });
}

/* Row i: greedy, or sampled in one of the usual ways. */
static struct engine_request request_of(int i, const int32_t *ids)
{
    struct engine_request req = request(ids, 30 + i, 20);
    struct sample_params *p = &req.sample;
    p->seed = 40 + (uint64_t)i;
    p->temperature = (float[ROWS]){ 1, 0, 0.7f, 1.8f, 0.9f, 1.2f }[i];
    p->top_p = i == 2 ? 0.9f : 1;
    p->min_p = i == 4 ? 0.02f : 0;
    p->top_k = i == 4 ? 40 : 0;
    p->xtc_probability = i == 3 ? 0.5f : 0;
    p->xtc_threshold = i == 3 ? 0.05f : 1;
    p->n_logprobs = i == 5 ? 2 : -1; /* by its logits, beside the others */
    return req;
}

/* All rows at once, until all have ended. */
static void run_together(struct tiny_engine *t, const int32_t *ids, struct answer *answers)
{
    row_id rows[ROWS];
    memset(answers, 0, ROWS * sizeof(*answers));
    for (int i = 0; i < ROWS; i++) {
        struct engine_request req = request_of(i, ids);
        rows[i] = open_row(t, &req);
        grow(t, rows[i], INT32_MAX);
    }
    for (int n_left = ROWS; n_left > 0;) {
        struct engine_work work[ROWS];
        struct engine_result res[ROWS];
        struct err err = { 0 };
        int n = 0, which[ROWS];
        for (int i = 0; i < ROWS; i++)
            if (answers[i].finish == FINISH_NONE) {
                which[n] = i;
                work[n++] = (struct engine_work){ rows[i], 32 / ROWS };
            }
        if (t->engine->ops->step(t->engine, work, n, res, &err))
            fail_msg("%s", err.text);
        for (int k = 0; k < n; k++) {
            struct answer *a = &answers[which[k]];
            if (res[k].n_tokens > 0)
                a->tokens[a->n++] = res[k].tokens[0];
            a->finish = res[k].finish;
            n_left -= a->finish != FINISH_NONE;
        }
    }
    for (int i = 0; i < ROWS; i++)
        t->engine->ops->close(t->engine, rows[i]);
}

static void short_lists_change_no_answer(void **state)
{
    static const int keys[] = { SHORTLIST_KEYS, 6, 1, 0 };
    static struct answer want[ROWS], got[ROWS];
    int32_t ids[PROMPT_MAX];
    prompt_fill(ids, PROMPT_MAX, 0, 3);
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        struct tiny_engine t;
        open_engine(&t, files[f], NULL, 1);
        for (int i = 0; i < ROWS; i++) {
            struct engine_request req = request_of(i, ids);
            answer_run(&t, &req, &want[i]);
        }
        tiny_engine_close(&t);
        for (int k = 0; k < 2 * (int)ARRAY_LEN(keys); k++) {
            memset(&device, 0, sizeof(device));
            device.keys = keys[k / 2];
            device.silent = k % 2 ? 3 : 0;
            open_engine(&t, files[f], device_wrap, 1 + k % 3);
            run_together(&t, ids, got);
            for (int i = 0; i < ROWS; i++) {
                assert_int_equal(got[i].n, want[i].n);
                assert_int_equal(got[i].finish, want[i].finish);
                for (int j = 0; j < want[i].n; j++)
                    token_equals(&got[i].tokens[j], &want[i].tokens[j]);
            }
            const struct runner *r = engine_model_runner(t.engine);
            print_message("%s: %d keys, one of %d silent: %lld of %lld by lists, %lld KiB copied\n",
                          files[f], device.keys, device.silent, (long long)r->n_chosen,
                          (long long)r->n_listed, (long long)(device.n_downloaded >> 10));
            assert_int_equal(r->n_listed, 4 * 20); /* four of the rows, each of their tokens */
            if (device.keys == SHORTLIST_KEYS && !device.silent)
                assert_true(r->n_chosen > 4 * 20 * 9 / 10);
            if (device.keys == 0)
                assert_int_equal(r->n_chosen, 0);
            tiny_engine_close(&t);
        }
    }
}

static void logits_that_are_not_finite_end_their_row_with_the_same_error(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    prompt_fill(ids, PROMPT_MAX, 0, 3);
    memset(&device, 0, sizeof(device));
    device.keys = SHORTLIST_KEYS;
    open_engine(&t, files[0], device_wrap, 1);
    struct engine_request req = request_of(0, ids);
    row_id row = open_row(&t, &req);
    grow(&t, row, INT32_MAX);
    device.is_odd = true;
    struct engine_result res = step(&t, row, 32);
    assert_int_equal(res.finish, FINISH_ERROR);
    assert_non_null(strstr(res.err.text, "token 7"));
    tiny_engine_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_lists_change_no_answer),
        cmocka_unit_test(logits_that_are_not_finite_end_their_row_with_the_same_error),
    };
    return cmocka_run_group_tests_name("engine_lists", tests, NULL, NULL);
}
