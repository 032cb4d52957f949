/* Rows of the engine that need no vocabulary head, and answers that have more ends than the model's. */
#include "base/log.h"
#include "engine_rows.h"

/* Rows whose hidden state alone is wanted see no head and change nothing for the others, wherever they stand in the step. */
static void hidden_states_need_no_head(void **state)
{
    enum { N = 5, ROWS = 7 };
    static int32_t ids[PROMPT_MAX];
    static float alone[N][512], logits[N][512];
    struct tiny_engine t;
    struct runner *r;
    struct err err;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = files[f], .n_ctx = N_CTX, .max_rows = 2 });
        size_t width = (size_t)t.model->width, vocab = (size_t)t.model->n_vocab;
        assert_true(width <= ARRAY_LEN(alone[0]) && vocab <= ARRAY_LEN(logits[0]));
        struct runner_options o = { .model = t.model,
                                    .n_ctx = 64,
                                    .max_seqs = N,
                                    .max_rows = N * ROWS,
                                    .max_out = N * 2,
                                    .cache_type = DTYPE_F16 };
        assert_int_equal(runner_new(&o, &r, &err), ERR_OK);
        for (unsigned heads = 0; heads < 1u << N; heads++) { /* bit i = item i has no head */
            struct runner_item items[N];
            for (int i = 0; i < N; i++) {
                items[i] = (struct runner_item){ .ids = ids + i,
                                                 .n = ROWS - i,
                                                 .n_out = 1 + i % 2,
                                                 .wants_hidden = true,
                                                 .has_no_head = heads >> i & 1 };
                assert_int_equal(runner_open(r, &items[i].seq, &err), ERR_OK);
                assert_int_equal(runner_reserve(r, items[i].seq, ROWS, &err), ERR_OK);
            }
            assert_int_equal(runner_step(r, items, N, &err), ERR_OK);
            for (int i = 0; i < N; i++) {
                int last = items[i].n_out - 1;
                assert_false(items[i].has_failed);
                assert_int_equal(items[i].logits == NULL, items[i].has_no_head);
                if (heads == 0) {
                    memcpy(alone[i], items[i].hidden + (size_t)last * width, width * sizeof(float));
                    memcpy(logits[i], items[i].logits + (size_t)last * vocab,
                           vocab * sizeof(float));
                }
                assert_memory_equal(items[i].hidden + (size_t)last * width, alone[i],
                                    width * sizeof(float));
                if (items[i].logits)
                    assert_memory_equal(items[i].logits + (size_t)last * vocab, logits[i],
                                        vocab * sizeof(float));
                runner_close(r, items[i].seq);
            }
        }
        runner_free(r);
        tiny_engine_close(&t);
    }
}

static void an_answer_may_have_more_ends(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 2 });
    struct engine_request req = request(ids, 20, 5);
    req.ignore_end = false;
    row_id row = open_row(&t, &req);
    grow(&t, row, INT32_MAX);
    struct engine_result res = take(&t, row, 20);
    assert_int_equal(res.n_tokens, 1);
    int32_t first = res.tokens[0].id;
    t.engine->ops->close(t.engine, row);
    req.end_ids[0] = first + 1;
    req.end_ids[1] = first;
    for (req.n_end_ids = 1; req.n_end_ids <= 2; req.n_end_ids++) {
        row = open_row(&t, &req);
        grow(&t, row, INT32_MAX);
        res = take(&t, row, 20);
        assert_int_equal(res.n_tokens, req.n_end_ids == 1);
        assert_int_equal(res.finish, req.n_end_ids == 1 ? FINISH_NONE : FINISH_END);
        t.engine->ops->close(t.engine, row);
    }
    struct err err;
    req.n_end_ids = ENGINE_ENDS_MAX + 1;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    tiny_engine_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states_need_no_head),
        cmocka_unit_test(an_answer_may_have_more_ends),
    };
    log_set_level(LOG_LEVEL_WARN);
    return cmocka_run_group_tests_name("engine_head", tests, NULL, NULL);
}
