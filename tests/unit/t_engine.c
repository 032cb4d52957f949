#include "base/log.h"
#include "engine/engine_model.h"
#include "kernels/ref/ref.h"
#include "model/model_int.h"
#include "support/tiny_engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const int32_t prompt[] = { 10, 20, 30, 40, 50, 60, 70, 80, 90, 100 };

static void lab_open(struct tiny_engine *lab, const char *file, int32_t n_ctx, int32_t max_rows,
                     int64_t kv_bytes)
{
    tiny_engine_open(
        lab, &(struct tiny_config){
                 .file = file, .n_ctx = n_ctx, .max_rows = max_rows, .kv_bytes = kv_bytes });
}

static struct engine_request request(int32_t n_prompt, int32_t max_tokens)
{
    return (struct engine_request){ .prompt = prompt,
                                    .n_prompt = n_prompt,
                                    .max_tokens = max_tokens,
                                    .ignore_end = true,
                                    .sample = tiny_greedy };
}

/* Run a row to its end; returns the tokens emitted. */
static int32_t run(struct tiny_engine *lab, const struct engine_request *req,
                   struct engine_result *res)
{
    struct engine_work work = { .n_tokens = 32 };
    struct err err = { 0 };
    int32_t n = 0;
    if (lab->engine->ops->open(lab->engine, req, &work.row, &err) ||
        lab->engine->ops->grow(lab->engine, work.row, INT32_MAX, &err))
        fail_msg("%s", err.text);
    *res = (struct engine_result){ 0 };
    for (int i = 0; i < 10000 && res->finish == FINISH_NONE; i++) {
        if (lab->engine->ops->step(lab->engine, &work, 1, res, &err))
            fail_msg("%s", err.text);
        n += res->n_tokens;
        tiny_engine_check(lab);
    }
    lab->engine->ops->close(lab->engine, work.row);
    tiny_engine_check(lab);
    return n;
}

static void an_answer_ends_at_its_limit_or_at_the_context(void **state)
{
    struct tiny_engine lab;
    struct engine_result res;
    static const char *const files[] = { TINY "llama.gguf", TINY "gemma3.gguf" };
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        lab_open(&lab, files[i], 200, 2, 0);
        struct engine_request req = request(10, 7);
        assert_int_equal(run(&lab, &req, &res), 7);
        assert_int_equal(res.finish, FINISH_LENGTH);
        assert_int_equal(res.text_safe, 7);
        req.max_tokens = -1;
        assert_int_equal(run(&lab, &req, &res), 190); /* prompt and answer fill the context */
        assert_int_equal(res.finish, FINISH_LENGTH);
        req.max_tokens = 1000000; /* clamped to the room */
        assert_int_equal(run(&lab, &req, &res), 190);
        tiny_engine_close(&lab);
    }
}

/* They are what the answer is made of then: what follows is as if they had been sampled, and their logprobs are the model's. */
static void forced_ids_are_emitted_with_the_models_logprobs(void **state)
{
    enum { N = 6 };
    struct tiny_engine lab;
    struct err err = { 0 };
    struct engine_token first[N], second[N];
    lab_open(&lab, TINY "qwen2.gguf", 200, 2, 0);
    for (int pass = 0; pass < 2; pass++) {
        struct engine_request req = request(10, N);
        struct engine_work work = { .n_tokens = 64 };
        struct engine_token *out = pass == 0 ? first : second;
        req.sample.n_logprobs = 2;
        req.guide.n_forced = pass == 0 ? 2 : 3;
        req.guide.forced[0] = 17;
        req.guide.forced[1] = 3;
        req.guide.forced[2] =
            first[2].id; /* the second pass forces what the model chose by itself */
        assert_int_equal(lab.engine->ops->open(lab.engine, &req, &work.row, &err), ERR_OK);
        assert_int_equal(lab.engine->ops->grow(lab.engine, work.row, INT32_MAX, &err), ERR_OK);
        for (int n = 0; n < N;) {
            struct engine_result res;
            assert_int_equal(lab.engine->ops->step(lab.engine, &work, 1, &res, &err), ERR_OK);
            for (int32_t i = 0; i < res.n_tokens; i++) /* what must come comes in one step */
                out[n++] = res.tokens[i];
        }
        lab.engine->ops->close(lab.engine, work.row);
        assert_int_equal(out[0].id, 17);
        assert_int_equal(out[1].id, 3);
        assert_true(out[0].logprob < 0 && out[0].n_top == 2);
        assert_true(out[0].top[0].logprob >= out[0].logprob);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(first[i].id, second[i].id);
        assert_true(first[i].logprob == second[i].logprob);
    }
    tiny_engine_close(&lab);
}

/* Case B41: both numbers in the text. */
static void a_prompt_without_room_is_refused_with_both_numbers(void **state)
{
    static int32_t ids[64];
    struct tiny_engine lab;
    struct err err;
    struct engine_result res;
    row_id row;
    lab_open(&lab, TINY "qwen2.gguf", 50, 2, 0);
    struct engine_request req = request(50, -1);
    req.prompt = ids;
    for (req.n_prompt = 50; req.n_prompt < 60; req.n_prompt++) {
        char want[16];
        snprintf(want, sizeof(want), "%d", req.n_prompt);
        assert_int_equal(lab.engine->ops->open(lab.engine, &req, &row, &err), ERR_FULL);
        assert_non_null(strstr(err.text, want));
        assert_non_null(strstr(err.text, "50"));
    }
    req.n_prompt = 49;
    assert_int_equal(run(&lab, &req, &res), 1);
    assert_int_equal(res.finish, FINISH_LENGTH);
    tiny_engine_close(&lab);
}

static void bad_requests_are_refused_and_leave_no_row(void **state)
{
    struct tiny_engine lab;
    struct err err;
    row_id row;
    lab_open(&lab, TINY "llama.gguf", 100, 2, 0);
    int64_t before = mem_bytes(MEM_CAT_REQUEST);
    struct engine_request req = request(0, 5);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &row, &err), ERR_INVALID);
    req = request(5, 0);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &row, &err), ERR_INVALID);
    req = request(5, 5);
    const int32_t bad[] = { 1, 288, 3 };
    req.prompt = bad;
    req.n_prompt = 3;
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &row, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "288 at 1"));
    req = request(5, 5);
    req.sample.top_p = 2;
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &row, &err), ERR_INVALID);
    req = request(5, 5);
    req.stops = &(struct engine_bytes){ "", 0 };
    req.n_stops = 1;
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &row, &err), ERR_INVALID);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), before);
    tiny_engine_check(&lab);
    tiny_engine_close(&lab);
}

static void rows_run_out_and_come_back(void **state)
{
    struct tiny_engine lab;
    struct err err;
    row_id rows[3];
    struct engine_request req = request(10, 20);
    lab_open(&lab, TINY "gemma3.gguf", 100, 2, 0);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &rows[0], &err), ERR_OK);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &rows[1], &err), ERR_OK);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &rows[2], &err), ERR_NOMEM);
    lab.engine->ops->close(lab.engine, rows[0]);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &rows[2], &err), ERR_OK);
    lab.engine->ops->close(lab.engine, rows[1]);
    lab.engine->ops->close(lab.engine, rows[2]);
    tiny_engine_check(&lab);
    tiny_engine_close(&lab);
}

/* With cache for one and a half sequences the second one is not promised more than the half. */
static void what_was_promised_is_there(void **state)
{
    struct tiny_engine lab;
    struct err err;
    row_id row, other;
    struct engine_request req = request(10, -1);
    lab_open(&lab, TINY "llama.gguf", 256, 4, 6 * 3 * 64 * 2 * 2 * 16 * 2);
    assert_int_equal(engine_model_runner(lab.engine)->pools[0].n_pages, 6);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &row, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &other, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->grow(lab.engine, row, INT32_MAX, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->grow(lab.engine, other, 129, &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "129 tokens need 3 pages more of full attention, 2 of 6"));
    assert_int_equal(lab.engine->ops->grow(lab.engine, other, 128, &err), ERR_OK);
    tiny_engine_check(&lab);
    lab.engine->ops->rewind(lab.engine, row);
    assert_int_equal(lab.engine->ops->grow(lab.engine, other, 129, &err), ERR_OK);
    tiny_engine_check(&lab);
    lab.engine->ops->close(lab.engine, other);
    lab.engine->ops->close(lab.engine, row);
    tiny_engine_close(&lab);
}

static void too_little_cache_is_an_error_with_the_arithmetic(void **state)
{
    struct tiny_engine lab;
    struct err err;
    struct engine *e;
    lab_open(&lab, TINY "llama.gguf", 64, 1, 0);
    struct engine_model_options o = { .model = lab.model,
                                      .token_bytes = lab.bytes,
                                      .model_id = "t",
                                      .weights_digest = "d",
                                      .n_ctx = 1 << 20,
                                      .kv_bytes = 1 << 20,
                                      .cache_type = DTYPE_F32 };
    assert_int_equal(engine_model_new(&o, &e, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "1048576 tokens needs 768 MiB"));
    o.n_ctx = 0; /* then as much as fits in half of it */
    assert_int_equal(engine_model_new(&o, &e, &err), ERR_OK);
    assert_in_range(e->info.n_ctx, 64, 512);
    e->ops->free(e);
    tiny_engine_close(&lab);
}

static void a_step_refuses_what_cannot_be_meant(void **state)
{
    struct tiny_engine lab;
    struct err err;
    struct engine_result res;
    struct engine_work work = { 0 };
    lab_open(&lab, TINY "llama.gguf", 100, 2, 0);
    struct engine_request req = request(10, 1);
    assert_int_equal(lab.engine->ops->step(lab.engine, &work, 1, &res, &err), ERR_STATE);
    assert_int_equal(lab.engine->ops->open(lab.engine, &req, &work.row, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->step(lab.engine, &work, 1, &res, &err), ERR_STATE);
    work.n_tokens = 99; /* clamped to what is left */
    assert_int_equal(lab.engine->ops->step(lab.engine, &work, 1, &res, &err), ERR_STATE);
    assert_non_null(strstr(err.text, "10 tokens after 0, room for 0 of full attention"));
    assert_int_equal(lab.engine->ops->grow(lab.engine, work.row, 1, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->step(lab.engine, &work, 1, &res, &err), ERR_OK);
    assert_int_equal(res.n_taken, 10);
    assert_int_equal(res.finish, FINISH_LENGTH);
    assert_int_equal(lab.engine->ops->step(lab.engine, &work, 1, &res, &err), ERR_STATE);
    lab.engine->ops->close(lab.engine, work.row);
    tiny_engine_close(&lab);
}

/* A poisoned row (case B38) ends with an error and its neighbour's answer is the one it gives alone. The fault is planted in a bias
 * for the one step that the bad row takes. */
static void non_finite_values_end_their_row_only(void **state)
{
    struct tiny_engine lab;
    struct err err;
    struct engine_result res[2];
    struct engine_work work[2] = { 0 };
    int32_t want[12];
    lab_open(&lab, TINY "llama-yarn.gguf", 100, 2, 0);
    struct engine_request good = request(10, 12), bad = request(3, 12);
    assert_int_equal(lab.engine->ops->open(lab.engine, &good, &work[0].row, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->grow(lab.engine, work[0].row, 22, &err), ERR_OK);
    for (int i = 0; i < 12; i++) {
        work[0].n_tokens = i == 0 ? 10 : 1;
        assert_int_equal(lab.engine->ops->step(lab.engine, work, 1, res, &err), ERR_OK);
        want[i] = res[0].tokens[0].id;
    }
    lab.engine->ops->close(lab.engine, work[0].row);
    tiny_engine_close(&lab);

    lab_open(&lab, TINY "llama-yarn.gguf", 100, 2, 0);
    float *bias = (float *)(uintptr_t)lab.model->layers[0].bq;
    assert_int_equal(lab.engine->ops->open(lab.engine, &good, &work[0].row, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->open(lab.engine, &bad, &work[1].row, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->grow(lab.engine, work[0].row, 22, &err), ERR_OK);
    assert_int_equal(lab.engine->ops->grow(lab.engine, work[1].row, 15, &err), ERR_OK);
    work[1].n_tokens = 3;
    float saved = bias[0];
    bias[0] = NAN; /* the bad row's prompt alone sees it */
    assert_int_equal(lab.engine->ops->step(lab.engine, work + 1, 1, res + 1, &err), ERR_OK);
    bias[0] = saved;
    assert_int_equal(res[1].finish, FINISH_ERROR);
    assert_int_equal(res[1].err.code, ERR_NUMERIC);
    assert_non_null(strstr(res[1].err.text, "non-finite"));
    assert_int_equal(res[1].n_tokens, 0);
    for (int i = 0; i < 12; i++) {
        work[0].n_tokens = i == 0 ? 10 : 1;
        assert_int_equal(lab.engine->ops->step(lab.engine, work, 1, res, &err), ERR_OK);
        assert_int_equal(res[0].tokens[0].id, want[i]);
    }
    lab.engine->ops->close(lab.engine, work[0].row);
    lab.engine->ops->close(lab.engine, work[1].row);
    tiny_engine_close(&lab);
}

static void the_fingerprint_tells_what_the_bits_depend_on_apart(void **state)
{
    char a[20], b[20], c[20], d[20];
    engine_model_fingerprint("d1", "cpu-1", DTYPE_F16, a);
    engine_model_fingerprint("d2", "cpu-1", DTYPE_F16, b);
    engine_model_fingerprint("d1", "cpu-2", DTYPE_F16, c);
    engine_model_fingerprint("d1", "cpu-1", DTYPE_KV_Q8, d);
    assert_int_equal(strlen(a), 15);
    assert_memory_equal(a, "fp_", 3);
    assert_string_not_equal(a, b);
    assert_string_not_equal(a, c);
    assert_string_not_equal(a, d);
}

static void rewinding_and_going_on_gives_the_same_logits(void **state)
{
    static int32_t ids[120];
    struct tiny_engine lab;
    struct err err;
    struct runner *r;
    static const char *const files[] = { TINY "llama.gguf", TINY "gemma3.gguf" };
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        lab_open(&lab, files[f], 64, 1, 0);
        int64_t v = lab.model->n_vocab;
        float *want = mem_alloc(MEM_CAT_BASE, (size_t)v * sizeof(float));
        struct runner_options o = { .model = lab.model,
                                    .n_ctx = 128,
                                    .max_seqs = 1,
                                    .max_rows = 128,
                                    .max_out = 1,
                                    .cache_type = DTYPE_F16 };
        for (int i = 0; i < 120; i++)
            ids[i] = (i * 37 + 11) % 280;
        assert_int_equal(runner_new(&o, &r, &err), ERR_OK);
        struct runner_item item = { .ids = ids, .n = 113, .n_out = 1 };
        assert_int_equal(runner_open(r, &item.seq, &err), ERR_OK);
        assert_int_equal(runner_reserve(r, item.seq, 120, &err), ERR_OK);
        assert_int_equal(runner_step(r, &item, 1, &err), ERR_OK);
        memcpy(want, item.logits, (size_t)v * sizeof(float));
        item.ids = ids + 113;
        item.n = 5;
        assert_int_equal(runner_step(r, &item, 1, &err), ERR_OK);
        assert_true(runner_can_truncate(r, item.seq, 112));
        assert_false(runner_can_truncate(r, item.seq, 119));
        assert_int_equal(runner_can_truncate(r, item.seq, 20), f == 0); /* the window moved on */
        runner_truncate(r, item.seq, 112);
        assert_int_equal(runner_check(r, &err), ERR_OK);
        item.ids = ids + 112;
        item.n = 1;
        assert_int_equal(runner_step(r, &item, 1, &err), ERR_OK);
        assert_memory_equal(item.logits, want, (size_t)v * sizeof(float));
        runner_free(r);
        mem_free(MEM_CAT_BASE, want);
        tiny_engine_close(&lab);
    }
}

/* Fail the n-th allocation of loading, for all n: an error each time, nothing left behind. */
static void every_allocation_failure_of_loading_is_an_error(void **state)
{
    int n_failed = 0;
    for (int n = 1; n < 2000; n++) {
        struct err err;
        struct backend *be;
        struct weights *w = NULL;
        struct model *m = NULL;
        struct engine *e = NULL;
        struct engine_bytes bytes[288];
        for (size_t i = 0; i < ARRAY_LEN(bytes); i++)
            bytes[i] = (struct engine_bytes){ "x", 1 };
        int64_t before = mem_bytes(MEM_CAT_WEIGHTS) + mem_bytes(MEM_CAT_KV) +
                         mem_bytes(MEM_CAT_SCRATCH) + mem_bytes(MEM_CAT_BASE);
        assert_int_equal(ref_backend_open(&be, &err), ERR_OK);
        assert_int_equal(weights_open(TINY "gemma3-f16.gguf", &w, &err), ERR_OK);
        mem_fail_nth(n);
        enum err_code code =
            model_load(&(struct model_load_options){ .weights = w, .be = be }, &m, &err);
        if (!code)
            code = engine_model_new(&(struct engine_model_options){ .model = m,
                                                                    .token_bytes = bytes,
                                                                    .model_id = "t",
                                                                    .weights_digest = "d",
                                                                    .n_ctx = 64,
                                                                    .max_rows = 2 },
                                    &e, &err);
        mem_fail_nth(0);
        if (code)
            assert_int_equal(code, ERR_NOMEM);
        n_failed += code != ERR_OK;
        if (e)
            e->ops->free(e);
        model_free(m);
        weights_close(w);
        be->ops->close(be);
        assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS) + mem_bytes(MEM_CAT_KV) +
                             mem_bytes(MEM_CAT_SCRATCH) + mem_bytes(MEM_CAT_BASE),
                         before);
        if (!code)
            break;
    }
    assert_in_range(n_failed, 50, 1900);
}

static void every_family_is_found_by_its_architecture(void **state)
{
    int n = 0;
    for (; model_family_at(n); n++)
        for (const char *const *a = model_family_at(n)->archs; *a; a++)
            assert_ptr_equal(model_family_find(*a), model_family_at(n));
    assert_in_range(n, 12, 100);
    assert_null(model_family_find("no such family"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_ends_at_its_limit_or_at_the_context),
        cmocka_unit_test(forced_ids_are_emitted_with_the_models_logprobs),
        cmocka_unit_test(a_prompt_without_room_is_refused_with_both_numbers),
        cmocka_unit_test(bad_requests_are_refused_and_leave_no_row),
        cmocka_unit_test(rows_run_out_and_come_back),
        cmocka_unit_test(what_was_promised_is_there),
        cmocka_unit_test(too_little_cache_is_an_error_with_the_arithmetic),
        cmocka_unit_test(a_step_refuses_what_cannot_be_meant),
        cmocka_unit_test(non_finite_values_end_their_row_only),
        cmocka_unit_test(the_fingerprint_tells_what_the_bits_depend_on_apart),
        cmocka_unit_test(rewinding_and_going_on_gives_the_same_logits),
        cmocka_unit_test(every_allocation_failure_of_loading_is_an_error),
        cmocka_unit_test(every_family_is_found_by_its_architecture),
    };
    log_set_level(LOG_LEVEL_WARN);
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
