/* Random operations on rows: nothing that the scheduler may do changes an answer, and the ledger adds up after each. */
#include "base/log.h"
#include "base/philox.h"
#include "engine_rows.h"

#include <stdio.h>

enum { KINDS = 7, ROWS = 5, SCORES_N = 140, BINS_N = 16 };

/* A request and what it gives alone. */
struct kind {
    int32_t ids[PROMPT_MAX];
    struct engine_request req;
    struct answer want;
    struct engine_token scores[SCORES_N];
    int32_t bins[BINS_N];
};

struct live {
    bool is_open;
    const struct kind *kind;
    row_id row;
    int32_t pending, n; /* ids to take; tokens emitted */
    int32_t promised;   /* ids that there is room for */
    struct engine_token scores[SCORES_N];
    int32_t bins[BINS_N];
};

struct world {
    struct tiny_engine t;
    struct kind kinds[KINDS];
    struct live rows[ROWS];
    uint32_t seed, turn, n_draws;
    int n_reused, n_shared, n_rewound, n_refused, n_finished;
};

static uint32_t dice(struct world *w, uint32_t n)
{
    uint32_t counter[4] = { w->turn, w->n_draws++, 0, 0 }, key[2] = { w->seed, 11 }, out[4];
    philox4x32(counter, key, out);
    return out[0] % n;
}

static void world_kinds(struct world *w)
{
    static const int32_t lengths[KINDS] = { 30, 100, 130, 140, 200, 65, 129 };
    static const struct engine_bytes stop = { "xxxxxxxxx", 9 };
    for (int i = 0; i < KINDS; i++) {
        struct kind *k = &w->kinds[i];
        prompt_fill(k->ids, PROMPT_MAX, i % 2 ? 64 : 110, i / 2);
        k->req = request(k->ids, lengths[i], 3 + i * 5);
        k->req.sample.n_logprobs = i % 3;
        k->req.sample.seed = (uint64_t)i;
        k->req.sample.temperature = i % 2 ? 0.9f : 0;
        k->req.sample.frequency_penalty = i == 4 ? 0.5f : 0;
    }
    w->kinds[1].req.ignore_end = false;
    w->kinds[2].req.stops = &stop;
    w->kinds[2].req.n_stops = 1;
    w->kinds[3].req.prompt_scores = w->kinds[3].scores;
    w->kinds[3].req.n_score_top = 2;
    w->kinds[5].req.max_tokens = 0;
    w->kinds[5].req.signal = (struct engine_signal){ BINS_N, -9, w->kinds[5].bins };
}

/* Cache for about two and a half of five rows. */
static void world_open(struct world *w, const char *file, uint32_t seed, int32_t keep_pages)
{
    memset(w, 0, sizeof(*w));
    w->seed = seed;
    world_kinds(w);
    struct tiny_config config = {
        .file = file, .n_ctx = N_CTX, .max_rows = ROWS, .max_step_rows = 40
    };
    tiny_engine_open(&w->t, &config);
    for (int i = 0; i < KINDS; i++)
        answer_run(&w->t, &w->kinds[i].req, &w->kinds[i].want);
    struct engine_usage u;
    w->t.engine->ops->usage(w->t.engine, &u);
    for (int32_t g = 0; g < u.n_groups; g++)
        config.kv_bytes += u.groups[g].page_bytes * (g ? 11 : 9);
    config.keep_bytes = u.groups[0].page_bytes * keep_pages;
    tiny_engine_close(&w->t);
    tiny_engine_open(&w->t, &config);
}

static void world_join(struct world *w, struct live *l)
{
    memset(l, 0, sizeof(*l));
    l->kind = &w->kinds[dice(w, KINDS)];
    struct engine_request req = l->kind->req;
    if (req.prompt_scores)
        req.prompt_scores = l->scores;
    if (req.signal.n_bins)
        req.signal.bins = l->bins;
    req.session = dice(w, 2) * (1 + dice(w, 4));
    l->row = open_row(&w->t, &req);
    l->pending = req.n_prompt;
    l->is_open = true;
}

static int32_t live_taken(const struct live *l)
{
    return l->kind->req.n_prompt + l->n - l->pending;
}

static void world_share(struct world *w, struct live *l)
{
    struct live *from = &w->rows[dice(w, ROWS)];
    if (!from->is_open || from == l || live_taken(l) > 0 || l->promised > 0)
        return;
    int32_t n = w->t.engine->ops->share(w->t.engine, l->row, from->row);
    assert_in_range(n, 0, l->kind->req.n_prompt - 1);
    assert_in_range(n, 0, live_taken(from));
    assert_true(n == 0 || l->kind->req.prompt_scores == NULL || l->n > 0 ||
                l->scores[l->kind->req.n_prompt - 1].id ==
                    l->kind->ids[l->kind->req.n_prompt - 1]); /* all scores are there already */
    l->pending -= n;
    l->promised = n;
    w->n_shared += n > 0;
}

static void world_reuse(struct world *w, struct live *l)
{
    if (live_taken(l) > 0 || l->promised > 0)
        return;
    int32_t n = w->t.engine->ops->reuse(w->t.engine, l->row);
    assert_in_range(n, 0, l->pending - 1);
    l->pending -= n;
    l->promised = n;
    w->n_reused += n > 0;
}

static void world_grow(struct world *w, struct live *l)
{
    struct err err;
    int32_t n = l->promised + (int32_t)dice(w, 90);
    if (w->t.engine->ops->grow(w->t.engine, l->row, n, &err) == ERR_OK)
        l->promised = n;
    else
        w->n_refused++;
}

static void world_leave(struct world *w, struct live *l)
{
    w->t.engine->ops->close(w->t.engine, l->row);
    l->is_open = false;
}

static void live_check_end(const struct live *l, const struct engine_result *res)
{
    const struct kind *k = l->kind;
    assert_int_equal(res->finish, k->want.finish);
    assert_int_equal(res->text_safe, k->want.text_safe);
    assert_int_equal(l->n, k->want.n);
    if (k->req.prompt_scores)
        scores_equal(l->scores, k->scores, k->req.n_prompt);
    if (k->req.signal.n_bins)
        assert_memory_equal(l->bins, k->bins, sizeof(k->bins));
}

static void live_take_result(struct live *l, const struct engine_result *res)
{
    l->pending -= res->n_taken;
    if (res->n_tokens > 0) {
        assert_in_range(l->n, 0, l->kind->want.n - 1);
        token_equals(res->tokens, &l->kind->want.tokens[l->n++]);
        l->pending++;
    }
    if (res->finish != FINISH_NONE)
        live_check_end(l, res);
}

/* Some of the rows, each with ids that it was promised room for. */
static void world_step(struct world *w)
{
    struct engine_work work[ROWS];
    struct engine_result results[ROWS];
    struct live *rows[ROWS];
    struct err err;
    int32_t n = 0, room = w->t.engine->info.max_step_rows;
    for (int i = 0; i < ROWS; i++) {
        struct live *l = &w->rows[i];
        int32_t most = l->is_open ? l->promised - live_taken(l) : 0;
        most = most < l->pending ? most : l->pending;
        most = most < room ? most : room;
        if (most < 1 || dice(w, 4) == 0)
            continue;
        rows[n] = l;
        work[n] = (struct engine_work){ l->row, 1 + (int32_t)dice(w, (uint32_t)most) };
        room -= work[n++].n_tokens;
    }
    if (n == 0)
        return;
    if (w->t.engine->ops->step(w->t.engine, work, n, results, &err))
        fail_msg("turn %u: %s", w->turn, err.text);
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(results[i].n_taken, 1, work[i].n_tokens);
        live_take_result(rows[i], &results[i]);
        if (results[i].finish == FINISH_NONE)
            continue;
        w->n_finished++;
        world_leave(w, rows[i]);
    }
}

static void world_turn(struct world *w)
{
    struct live *l = &w->rows[dice(w, ROWS)];
    uint32_t what = dice(w, 16);
    if (!l->is_open) {
        world_join(w, l);
        if (dice(w, 2) == 0)
            world_share(w, l);
        else
            world_reuse(w, l);
    } else if (what < 3) {
        world_grow(w, l);
    } else if (what == 3 && dice(w, 3) == 0) {
        w->t.engine->ops->rewind(w->t.engine, l->row);
        l->pending = l->kind->req.n_prompt + l->n;
        l->promised = 0;
        w->n_rewound++;
        if (dice(w, 2) == 0)
            world_reuse(w, l);
    } else if (what == 4) {
        world_share(w, l);
        world_reuse(w, l);
    } else if (what == 5 && dice(w, 5) == 0) {
        world_leave(w, l);
    } else if (what == 6 && dice(w, 30) == 0) {
        w->t.engine->ops->unpin(w->t.engine, 1 + dice(w, 4));
    } else {
        world_step(w);
    }
}

/* Also: what the start-up table says of memory is never exceeded. */
static void random_operations_change_no_answer(void **state)
{
    static struct world w;
    const int32_t keep_pages[] = { 0, 2, 100 };
    for (size_t i = 0; i < ARRAY_LEN(files) * ARRAY_LEN(keep_pages); i++) {
        size_t f = i / ARRAY_LEN(keep_pages), k = i % ARRAY_LEN(keep_pages);
        int64_t before = mem_bytes(MEM_CAT_REQUEST);
        world_open(&w, files[f], 100 + (uint32_t)f, keep_pages[k]);
        int64_t kv = mem_bytes(MEM_CAT_KV), scratch = mem_bytes(MEM_CAT_SCRATCH);
        for (w.turn = 0; w.turn < 2500; w.turn++) {
            w.n_draws = 0;
            world_turn(&w);
            tiny_engine_check(&w.t);
            assert_int_equal(mem_bytes(MEM_CAT_KV), kv);
            assert_int_equal(mem_bytes(MEM_CAT_SCRATCH), scratch);
            assert_in_range(mem_bytes(MEM_CAT_REQUEST) - before, 0,
                            engine_model_request_bytes(w.t.engine));
        }
        assert_in_range(w.n_shared, 5, 10000);
        assert_in_range(w.n_rewound, 5, 10000);
        assert_in_range(w.n_refused, 5, 10000);
        assert_in_range(w.n_finished, 10, 10000);
        int least = w.t.model->has_group[MODEL_GROUP_WINDOW] ? 50 : 1; /* pages */
        assert_int_equal(w.n_reused > 3, keep_pages[k] >= least);
        print_message("%s: %d shared, %d reused, %d rewound, %d refused, %d finished\n", files[f],
                      w.n_shared, w.n_reused, w.n_rewound, w.n_refused, w.n_finished);
        for (int r = 0; r < ROWS; r++)
            if (w.rows[r].is_open)
                world_leave(&w, &w.rows[r]);
        tiny_engine_check(&w.t);
        struct engine_usage u;
        w.t.engine->ops->usage(w.t.engine, &u);
        for (int32_t g = 0; g < u.n_groups; g++)
            assert_int_equal(u.groups[g].n_free + u.groups[g].n_kept, u.groups[g].n_pages);
        assert_in_range(u.groups[0].n_kept, 0, keep_pages[k]);
        if (keep_pages[k] == 0 && u.n_groups > 1)
            assert_int_equal(u.groups[1].n_kept, 0);
        tiny_engine_close(&w.t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_change_no_answer),
    };
    log_set_level(LOG_LEVEL_WARN);
    return cmocka_run_group_tests_name("engine_random", tests, NULL, NULL);
}
