/* Ends that are kept inside of prompts: a changed last message, or the same prompt again, goes on from there. */
#include "engine_rows.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_int.h"

#include <stdio.h>
#include <stdlib.h>

#define LONG 400

/* Windows, windows and full layers, states, windows alone. */
static const char *const with_ends[] = { TINY "gemma3.gguf", "tests/golden/families/gpt-oss.gguf",
                                         "tests/golden/families/qwen35.gguf",
                                         "tests/golden/families/phi3.gguf" };

static struct tiny_config config_of(const char *file)
{
    return (struct tiny_config){ .file = file,
                                 .n_ctx = 1000,
                                 .max_rows = 4,
                                 .max_step_rows = 96,
                                 .keep_bytes = RUNNER_KEEP_ALL };
}

static void ids_fill(int32_t *ids, int32_t same, int32_t lineage)
{
    for (int32_t i = 0; i < LONG; i++)
        ids[i] = (i * 37 + i * i * 11 + (i < same ? 0 : lineage * 53)) % 280;
}

static void answer_warm(struct tiny_engine *t, const struct engine_request *req, struct answer *a,
                        int32_t *n_found)
{
    row_id row = open_row(t, req);
    struct engine_result res = { 0 };
    memset(a, 0, sizeof(*a));
    for (int i = 0; t->engine->ops->fetch(t->engine, row) && i < 1; i++)
        for (int k = 0; k < 10000 && t->engine->ops->is_fetching(t->engine, row); k++) {
            clock_sleep_us(500);
            t->engine->ops->tend(t->engine);
        }
    *n_found = t->engine->ops->reuse(t->engine, row);
    grow(t, row, INT32_MAX);
    while (res.finish == FINISH_NONE) {
        res = step(t, row, 50);
        if (res.n_tokens > 0)
            a->tokens[a->n++] = res.tokens[0];
        assert_in_range(a->n, 0, ANSWER_MAX - 1);
    }
    t->engine->ops->close(t->engine, row);
}

static struct engine_request logged(const int32_t *ids, int32_t n)
{
    struct engine_request req = request(ids, n, 12);
    req.sample.n_logprobs = 2;
    return req;
}

static void assert_cold(const char *file, const struct engine_request *req, const struct answer *a)
{
    struct tiny_config config = config_of(file);
    struct tiny_engine t;
    struct answer want;
    config.keep_bytes = 0;
    tiny_engine_open(&t, &config);
    answer_run(&t, req, &want);
    tiny_engine_close(&t);
    assert_int_equal(a->n, want.n);
    for (int i = 0; i < want.n; i++)
        token_equals(&a->tokens[i], &want.tokens[i]);
}

static void a_prompt_goes_on_from_its_cuts(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(with_ends); k++) {
        struct tiny_config config = config_of(with_ends[k]);
        struct tiny_engine t;
        struct answer a;
        int32_t ids[LONG], other[LONG], early[LONG], n;
        ids_fill(ids, 310, 1);
        ids_fill(other, 310, 2);
        ids_fill(early, 200, 3);
        struct engine_request req = logged(ids, LONG), changed = logged(other, LONG);
        struct engine_request too_early = logged(early, LONG);
        tiny_engine_open(&t, &config);
        assert_true(t.engine->info.keeps_ends);
        const int32_t cuts[] = { 100, 300, 370 };
        memcpy(req.cuts, cuts, sizeof(cuts));
        req.n_cuts = 3;
        answer_warm(&t, &req, &a, &n);
        assert_int_equal(n, 0);
        assert_cold(with_ends[k], &req, &a);
        answer_warm(&t, &req, &a, &n);
        assert_int_equal(n, 370); /* the same again */
        assert_cold(with_ends[k], &req, &a);
        answer_warm(&t, &changed, &a, &n);
        assert_int_equal(n, 300); /* its end is another one */
        assert_cold(with_ends[k], &changed, &a);
        answer_warm(&t, &changed, &a, &n);
        assert_int_equal(n, (LONG - 1) / 16 * 16); /* nobody said where to cut */
        assert_cold(with_ends[k], &changed, &a);
        answer_warm(&t, &too_early, &a, &n);
        assert_int_equal(n, 0); /* 100 is too early to be worth it */
        tiny_engine_close(&t);
    }
}

static void full_layers_need_no_cuts(void **state)
{
    struct tiny_config config = config_of(files[0]);
    struct tiny_engine t;
    struct answer a;
    int32_t ids[LONG];
    ids_fill(ids, 0, 1);
    struct engine_request req = request(ids, LONG, 2);
    req.cuts[0] = 300;
    req.n_cuts = 1;
    tiny_engine_open(&t, &config);
    assert_false(t.engine->info.keeps_ends);
    row_id row = open_row(&t, &req);
    grow(&t, row, INT32_MAX);
    step(&t, row, 96);
    step(&t, row, 96);
    step(&t, row, 96);
    assert_int_equal(step(&t, row, 96).n_taken, 96);
    t.engine->ops->close(t.engine, row);
    answer_run(&t, &req, &a);
    tiny_engine_close(&t);
}

/* Hostile numbers are nothing to fear. */
static void odd_cuts_are_left_out(void **state)
{
    struct tiny_config config = config_of(with_ends[0]);
    struct tiny_engine t;
    struct answer a;
    int32_t ids[LONG], n;
    ids_fill(ids, 0, 1);
    struct engine_request req = logged(ids, LONG);
    const int32_t cuts[] = { -5, 0, INT32_MIN, 399, 399, 5000, INT32_MAX, 260 };
    memcpy(req.cuts, cuts, sizeof(cuts));
    req.n_cuts = 8;
    tiny_engine_open(&t, &config);
    answer_warm(&t, &req, &a, &n);
    assert_cold(with_ends[0], &req, &a);
    answer_warm(&t, &req, &a, &n);
    assert_int_equal(n, 399);
    tiny_engine_close(&t);
}

static void the_last_cut_is_found_on_disk(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(with_ends); k++) {
        struct tiny_config config = config_of(with_ends[k]);
        struct tiny_engine t;
        struct answer a;
        char dir[] = "/tmp/t_engine_cuts.XXXXXX", command[64];
        int32_t ids[LONG], n;
        ids_fill(ids, 0, 1);
        struct engine_request req = logged(ids, LONG);
        req.cuts[0] = 300;
        req.cuts[1] = 370;
        req.n_cuts = 2;
        assert_non_null(mkdtemp(dir));
        config.disk_dir = dir;
        tiny_engine_open(&t, &config);
        answer_warm(&t, &req, &a, &n);
        tiny_engine_close(&t); /* writes what is due */
        tiny_engine_open(&t, &config);
        answer_warm(&t, &req, &a, &n);
        assert_int_equal(n, 370);
        assert_cold(with_ends[k], &req, &a);
        tiny_engine_close(&t);
        snprintf(command, sizeof(command), "rm -rf '%s'", dir);
        assert_int_equal(system(command), 0);
    }
}

static int32_t ends_held(const struct tiny_engine *t)
{
    const struct runner *r = engine_model_runner(t->engine);
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_ends; i++)
        n += r->ends[i].len > 0;
    return n;
}

static struct engine_request cut_at(const int32_t *ids, int32_t first, int32_t second)
{
    struct engine_request req = logged(ids, LONG);
    req.cuts[0] = first;
    req.cuts[1] = second;
    req.n_cuts = 2;
    return req;
}

/* What a prompt begins with is not kept again, nor is anything before it. */
static void only_what_lies_beyond_the_found_is_kept(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(with_ends); k++) {
        struct tiny_config config = config_of(with_ends[k]);
        struct tiny_engine t;
        struct answer a;
        int32_t ids[LONG], n;
        ids_fill(ids, 0, 1);
        struct engine_request early = cut_at(ids, 280, 280), late = cut_at(ids, 260, 370);
        tiny_engine_open(&t, &config);
        early.n_prompt = 300;
        answer_warm(&t, &early, &a, &n);
        assert_int_equal(ends_held(&t), 2); /* its cut, and where it ended */
        answer_warm(&t, &late, &a, &n);
        assert_int_equal(n, 280);
        assert_int_equal(ends_held(&t), 4); /* 370 and its end, not 260 */
        answer_warm(&t, &late, &a, &n);
        assert_int_equal(n, 370);
        assert_int_equal(ends_held(&t), 4);
        assert_cold(with_ends[k], &late, &a);
        tiny_engine_close(&t);
    }
}

/* An answer that is resumed, and one that takes its ids again, were kept on the first way. */
static void nothing_is_kept_at_cuts_while_resuming(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(with_ends); k++) {
        struct tiny_config config = config_of(with_ends[k]);
        struct tiny_engine t;
        struct answer a, rest;
        int32_t ids[LONG], begun[4], n;
        ids_fill(ids, 0, 1);
        struct engine_request req = cut_at(ids, 300, 370);
        tiny_engine_open(&t, &config);
        answer_warm(&t, &req, &a, &n);
        assert_int_equal(ends_held(&t), 3);
        tiny_engine_close(&t);

        tiny_engine_open(&t, &config);
        struct engine_request again = req;
        for (int i = 0; i < 4; i++)
            begun[i] = a.tokens[i].id;
        again.begun = begun;
        again.n_begun = 4;
        answer_warm(&t, &again, &rest, &n);
        assert_int_equal(ends_held(&t), 1); /* where it ended */
        assert_int_equal(rest.n, a.n - 4);
        for (int i = 0; i < rest.n; i++)
            token_equals(&rest.tokens[i], &a.tokens[4 + i]);
        tiny_engine_close(&t);

        tiny_engine_open(&t, &config);
        row_id row = open_row(&t, &req);
        grow(&t, row, INT32_MAX);
        take(&t, row, LONG);
        assert_int_equal(ends_held(&t), 2);
        struct runner *r = engine_model_of(t.engine)->runner;
        t.engine->ops->rewind(t.engine, row);
        prefix_evict(&r->prefix, r->pools[MODEL_GROUP_FULL].n_pages);
        assert_int_equal(ends_held(&t), 0);
        grow(&t, row, INT32_MAX);
        take(&t, row, LONG + 1);
        assert_int_equal(ends_held(&t), 0);
        t.engine->ops->close(t.engine, row);
        tiny_engine_close(&t);
    }
}

/* Where no page is free for a copy, the answer is the same and that is said once. */
static void no_room_for_a_cut_is_only_said(void **state)
{
    struct tiny_config config = config_of(with_ends[0]);
    struct tiny_engine t;
    struct answer a;
    int32_t ids[LONG], n;
    ids_fill(ids, 0, 1);
    struct engine_request req = cut_at(ids, 300, 370);
    config.max_rows = 1; /* windows for one sequence, which has them */
    tiny_engine_open(&t, &config);
    assert_false(engine_model_of(t.engine)->has_warned);
    answer_warm(&t, &req, &a, &n);
    assert_cold(with_ends[0], &req, &a);
    assert_true(engine_model_of(t.engine)->has_warned);
    assert_int_equal(ends_held(&t), 1); /* where it ended: that needs no copy */
    tiny_engine_close(&t);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_goes_on_from_its_cuts),
        cmocka_unit_test(full_layers_need_no_cuts),
        cmocka_unit_test(odd_cuts_are_left_out),
        cmocka_unit_test(the_last_cut_is_found_on_disk),
        cmocka_unit_test(only_what_lies_beyond_the_found_is_kept),
        cmocka_unit_test(nothing_is_kept_at_cuts_while_resuming),
        cmocka_unit_test(no_room_for_a_cut_is_only_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
