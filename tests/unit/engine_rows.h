/* engine_rows.h - what the tests of the engine's rows share: prompts that begin alike, rows stepped by hand, lone answers. */
#ifndef PLUMB_TESTS_UNIT_ENGINE_ROWS_H
#define PLUMB_TESTS_UNIT_ENGINE_ROWS_H

#include "support/tiny_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define P          KV_PAGE_TOKENS
#define N_CTX      320
#define PROMPT_MAX 256

static const char *const files[] = { TINY "llama.gguf", TINY "gemma3.gguf", TINY "qwen2.gguf" };

/* Ids that two lineages share up to `same`. */
static inline void prompt_fill(int32_t *ids, int32_t n, int32_t same, int32_t lineage)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (i * 37 + i * i * 11 + (i < same ? 0 : lineage * 53)) % 280;
}

static inline struct engine_request request(const int32_t *ids, int32_t n_prompt,
                                            int32_t max_tokens)
{
    return (struct engine_request){ .prompt = ids,
                                    .n_prompt = n_prompt,
                                    .max_tokens = max_tokens,
                                    .ignore_end = true,
                                    .sample = tiny_greedy };
}

static inline row_id open_row(struct tiny_engine *t, const struct engine_request *req)
{
    row_id row;
    struct err err = { 0 };
    if (t->engine->ops->open(t->engine, req, &row, &err))
        fail_msg("%s", err.text);
    return row;
}

static inline void grow(struct tiny_engine *t, row_id row, int32_t n)
{
    struct err err = { 0 };
    if (t->engine->ops->grow(t->engine, row, n, &err))
        fail_msg("%s", err.text);
    tiny_engine_check(t);
}

static inline struct engine_result step(struct tiny_engine *t, row_id row, int32_t n)
{
    struct engine_result res;
    struct engine_work work = { row, n };
    struct err err = { 0 };
    if (t->engine->ops->step(t->engine, &work, 1, &res, &err))
        fail_msg("%s", err.text);
    tiny_engine_check(t);
    return res;
}

/* Take n ids, however many steps it needs. Returns the last step's result. */
static inline struct engine_result take(struct tiny_engine *t, row_id row, int32_t n)
{
    struct engine_result res = { 0 };
    while (n > 0) {
        int32_t chunk = n < t->engine->info.max_step_rows ? n : t->engine->info.max_step_rows;
        res = step(t, row, chunk);
        assert_in_range(res.n_taken, 1, chunk);
        n -= res.n_taken;
    }
    return res;
}

/* --- lone answers --- */

#define ANSWER_MAX 40

struct answer {
    struct engine_token tokens[ANSWER_MAX];
    int32_t n;
    enum finish finish;
    int32_t stop_index;
    int64_t text_safe;
};

static inline void token_equals(const struct engine_token *got, const struct engine_token *want)
{
    assert_int_equal(got->id, want->id);
    assert_memory_equal(&got->logprob, &want->logprob, sizeof(float));
    assert_int_equal(got->n_top, want->n_top);
    assert_memory_equal(got->top, want->top, (size_t)want->n_top * sizeof(want->top[0]));
}

static inline void answer_run(struct tiny_engine *t, const struct engine_request *req,
                              struct answer *a)
{
    row_id row = open_row(t, req);
    struct engine_result res = { 0 };
    memset(a, 0, sizeof(*a));
    grow(t, row, INT32_MAX);
    while (res.finish == FINISH_NONE) {
        res = step(t, row, t->engine->info.max_step_rows);
        if (res.n_tokens > 0)
            a->tokens[a->n++] = res.tokens[0];
        assert_in_range(a->n, 0, ANSWER_MAX - 1);
    }
    a->finish = res.finish;
    a->stop_index = res.stop_index;
    a->text_safe = res.text_safe;
    t->engine->ops->close(t->engine, row);
}

static inline void scores_equal(const struct engine_token *a, const struct engine_token *b,
                                int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        token_equals(&a[i], &b[i]);
}

#endif
