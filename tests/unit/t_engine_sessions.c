/* Sessions: what a conversation left stays while others come and go, within bounds, and no answer knows of it. */
#include "engine_rows.h"

#define LONG 400

/* Full layers, windows, windows and full layers, states, windows alone. */
static const char *const kinds[] = { TINY "llama.gguf", TINY "gemma3.gguf",
                                     "tests/golden/families/gpt-oss.gguf",
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

/* An engine that keeps no more than so many tokens' pages and, where there are ends, so many of them. */
static void open_small(struct tiny_engine *t, const char *file, int32_t n_pages, int32_t n_ends)
{
    struct tiny_config config = config_of(file);
    tiny_engine_open(t, &config);
    const struct runner *r = engine_model_runner(t->engine);
    int64_t page = (int64_t)r->page_bytes[MODEL_GROUP_FULL];
    int64_t end =
        3 * (int64_t)r->page_bytes[MODEL_GROUP_WINDOW] + (int64_t)r->page_bytes[MODEL_GROUP_STATE];
    config.keep_bytes = n_pages * page + (r->n_ends > 0 ? n_ends * end : 0);
    tiny_engine_close(t);
    tiny_engine_open(t, &config);
}

static void ids_fill(int32_t *ids, int32_t same, int32_t lineage)
{
    for (int32_t i = 0; i < LONG; i++)
        ids[i] = (i * 37 + i * i * 11 + (i < same ? 0 : lineage * 53)) % 280;
}

/* One turn; returns how many ids of its prompt were reused. */
static int32_t turn(struct tiny_engine *t, const struct engine_request *req, struct answer *a)
{
    row_id row = open_row(t, req);
    struct engine_result res = { 0 };
    memset(a, 0, sizeof(*a));
    int32_t n = t->engine->ops->reuse(t->engine, row);
    tiny_engine_check(t);
    grow(t, row, INT32_MAX);
    while (res.finish == FINISH_NONE) {
        res = step(t, row, 50);
        if (res.n_tokens > 0)
            a->tokens[a->n++] = res.tokens[0];
    }
    t->engine->ops->close(t->engine, row);
    tiny_engine_check(t);
    return n;
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

/* A turn of a session: ids [n] of a conversation whose prompt may part from its next one at `cut`. */
static struct engine_request turn_of(uint64_t session, const int32_t *ids, int32_t n, int32_t cut)
{
    struct engine_request req = request(ids, n, 8);
    req.sample.n_logprobs = 2;
    req.session = session;
    req.cuts[0] = cut;
    req.n_cuts = cut > 0;
    return req;
}

static void others_come_and_go(struct tiny_engine *t, int32_t n)
{
    struct answer a;
    int32_t ids[LONG];
    for (int32_t i = 0; i < n; i++) {
        ids_fill(ids, 0, 100 + i);
        struct engine_request req = turn_of(0, ids, 300, 290);
        (void)turn(t, &req, &a);
    }
}

static void a_session_stays_while_others_come_and_go(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
        for (int has_session = 0; has_session < 2; has_session++) {
            struct tiny_engine t;
            struct answer a;
            int32_t ids[LONG], next[LONG];
            ids_fill(ids, 0, 1);
            ids_fill(next, 280, 1); /* the reply comes back cut into other tokens */
            for (int32_t i = 280; i < LONG; i++)
                next[i] = (ids[i] + 1) % 280;
            memcpy(next, ids, 280 * sizeof(*ids));
            open_small(&t, kinds[k], 20, 12);
            struct engine_request first = turn_of((uint64_t)has_session * 7, ids, 300, 270);
            struct engine_request second = turn_of((uint64_t)has_session * 7, next, 380, 360);
            assert_int_equal(turn(&t, &first, &a), 0);
            assert_cold(kinds[k], &first, &a);
            others_come_and_go(&t, 12);
            int32_t n = turn(&t, &second, &a);
            if (has_session) /* else what is left of it hangs on how long computing it took */
                assert_in_range(n, t.engine->info.keeps_ends ? 270 : 280, 280);
            assert_cold(kinds[k], &second, &a);
            tiny_engine_close(&t);
        }
}

static int64_t pinned(const struct tiny_engine *t)
{
    return engine_model_runner(t->engine)->prefix.n_pinned;
}

static void sessions_hold_half_at_most(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tiny_engine t;
        struct answer a;
        int32_t ids[LONG];
        open_small(&t, kinds[k], 20, 12);
        const struct runner *r = engine_model_runner(t.engine);
        for (int32_t i = 0; i < 12; i++) {
            ids_fill(ids, 0, i);
            struct engine_request req = turn_of(1 + (uint64_t)i, ids, 300, 0);
            (void)turn(&t, &req, &a);
            assert_true(pinned(&t) <= r->prefix.max_idle / 2);
        }
        assert_true(r->n_pins_lost > 0);
        ids_fill(ids, 0, 11); /* the newest is there */
        struct engine_request req = turn_of(12, ids, 300, 0);
        assert_true(turn(&t, &req, &a) > 0);
        assert_cold(kinds[k], &req, &a);
        tiny_engine_close(&t);
    }
}

static void sessions_give_way_to_rows(void **state)
{
    struct tiny_config config = config_of(kinds[0]);
    struct tiny_engine t;
    struct answer a;
    int32_t ids[1000];
    tiny_engine_open(&t, &config);
    config.kv_bytes = 16 * tiny_engine_page_bytes(&t, 0); /* as many as one row may want */
    tiny_engine_close(&t);
    tiny_engine_open(&t, &config);
    ids_fill(ids, 0, 1);
    struct engine_request req = turn_of(5, ids, 300, 0);
    (void)turn(&t, &req, &a);
    assert_int_equal(pinned(&t), 5);
    for (int32_t i = 0; i < 980; i++)
        ids[i] = (i * 7 + 3) % 280;
    struct engine_request large = turn_of(0, ids, 980, 0);
    assert_int_equal(turn(&t, &large, &a), 0); /* fails where it finds no memory */
    assert_int_equal(pinned(&t), 0);
    assert_int_equal(engine_model_runner(t.engine)->n_pins_lost, 1);
    tiny_engine_close(&t);
}

static void a_session_that_is_let_go_holds_nothing(void **state)
{
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tiny_engine t;
        struct answer a;
        int32_t ids[LONG];
        open_small(&t, kinds[k], 20, 12);
        ids_fill(ids, 0, 1);
        struct engine_request req = turn_of(5, ids, 300, 270);
        (void)turn(&t, &req, &a);
        assert_true(pinned(&t) > 0);
        t.engine->ops->unpin(t.engine, 6); /* nobody's */
        assert_true(pinned(&t) > 0);
        t.engine->ops->unpin(t.engine, 5);
        tiny_engine_check(&t);
        assert_int_equal(pinned(&t), 0);
        const struct runner *r = engine_model_runner(t.engine);
        assert_true(prefix_evict((struct prefix *)&r->prefix, 100) >= 5); /* nothing holds it */
        assert_int_equal(turn(&t, &req, &a), 0);
        tiny_engine_close(&t);
    }
}

/* Clients send other, small requests of the same session beside the conversation: those do not cost it its place, and a turn takes the
 * place of the one before it. */
static void a_session_has_some_branches(void **state)
{
    struct tiny_engine t;
    struct answer a;
    int32_t ids[LONG], other[LONG];
    open_small(&t, kinds[0], 40, 0);
    ids_fill(ids, 0, 1);
    for (int32_t n = 100; n <= 380; n += 70) {
        struct engine_request req = turn_of(5, ids, n, 0);
        (void)turn(&t, &req, &a);
        assert_int_equal(pinned(&t), kv_pages_for(n + 7)); /* one branch */
    }
    for (int32_t i = 0; i < RUNNER_BRANCHES - 1; i++) {
        ids_fill(other, 0, 50 + i);
        struct engine_request title = turn_of(5, other, 70, 0);
        (void)turn(&t, &title, &a);
    }
    others_come_and_go(&t, 10);
    struct engine_request req = turn_of(5, ids, 390, 0);
    assert_in_range(turn(&t, &req, &a), 380, 388);
    assert_cold(kinds[0], &req, &a);
    tiny_engine_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_stays_while_others_come_and_go),
        cmocka_unit_test(sessions_hold_half_at_most),
        cmocka_unit_test(sessions_give_way_to_rows),
        cmocka_unit_test(a_session_that_is_let_go_holds_nothing),
        cmocka_unit_test(a_session_has_some_branches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
