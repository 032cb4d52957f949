/* A drafter that reads hidden states guesses the same of a row whatever it computes beside, wherever the row's states come in pieces, and
 * whether it computed the context or kept it; what cannot be has no guesses. What it guesses is tests/golden/projected.c's matter. */
#include "engine/draft.h"
#include "engine_rows.h"
#include "model/projected.h"
#include "tensor/ops.h"

#include <stdio.h>

#define FOLDER "tests/golden/projected/"
#define N_TEXT 200
#define BLOCK  7

struct world {
    struct tiny_engine t; /* the model that it guesses for */
    struct weights *weights;
    struct model *model;
    struct drafter *d;
    struct runner *runner; /* the model's, which looks */
    struct tensor states;  /* of ids */
    struct engine_request req;
    int32_t ids[N_TEXT];
};

static void must(enum err_code code, const struct err *err)
{
    if (code)
        fail_msg("%s", err->text);
}

static void world_look(struct world *w)
{
    struct err err = { 0 };
    struct runner_options ro = { .model = w->t.model,
                                 .n_ctx = N_TEXT,
                                 .max_seqs = 1,
                                 .max_rows = N_TEXT,
                                 .max_out = 1,
                                 .cache_type = DTYPE_F16,
                                 .taps = w->model->projected.taps };
    struct runner_item it = { .ids = w->ids, .n = N_TEXT, .wants_taps = true };
    must(runner_new(&ro, &w->runner, &err), &err);
    must(runner_open(w->runner, &it.seq, &err), &err);
    must(runner_reserve(w->runner, it.seq, N_TEXT, &err), &err);
    must(runner_step(w->runner, &it, 1, &err), &err);
    int64_t cols = w->model->projected.taps.n * w->model->width;
    w->states = (struct tensor){ (float *)(uintptr_t)it.tapped, N_TEXT, cols, cols };
}

static void world_open(struct world *w, const char *name, int64_t kv_bytes)
{
    char path[256];
    struct err err = { 0 };
    memset(w, 0, sizeof(*w));
    prompt_fill(w->ids, N_TEXT, 0, 1);
    tiny_engine_open(&w->t, &(struct tiny_config){
                                .file = FOLDER "target.gguf", .n_ctx = N_CTX, .max_rows = 2 });
    snprintf(path, sizeof(path), FOLDER "%s", name);
    must(weights_open(path, &w->weights, &err), &err);
    must(model_load(&(struct model_load_options){ .weights = w->weights, .be = w->t.be }, &w->model,
                    &err),
         &err);
    must(model_project(w->model, w->t.model, &err), &err);
    struct draft_model_options o = { .model = w->model,
                                     .n_vocab = (int32_t)w->model->n_vocab,
                                     .n_ctx = N_CTX,
                                     .kv_bytes = kv_bytes,
                                     .max_rows = 3,
                                     .cache_type = DTYPE_F16 };
    must(draft_projected_new(&o, &w->d, &err), &err);
    world_look(w);
    w->req = request(w->ids, 1, N_TEXT);
}

static void world_close(struct world *w)
{
    w->d->ops->free(w->d);
    runner_free(w->runner);
    model_free(w->model);
    weights_close(w->weights);
    tiny_engine_close(&w->t);
}

static void open_at(struct world *w, row_id row)
{
    struct err err = { 0 };
    must(w->d->ops->open(w->d, row, &w->req, N_CTX, &err), &err);
}

/* The states of [from, to), in steps of so many. */
static void see(struct world *w, row_id row, int32_t from, int32_t to, int32_t piece)
{
    for (int32_t at = from; at < to; at += piece) {
        int32_t n = to - at < piece ? to - at : piece;
        struct draft_seen seen = { .row = row,
                                   .pos = at,
                                   .n = n,
                                   .ids = w->ids,
                                   .n_ids = at + n,
                                   .states = tensor_rows(w->states, at, n) };
        w->d->ops->see(w->d, &seen, 1);
    }
}

static struct draft_ask ask_for(const struct world *w, row_id row, int32_t n, int32_t n_max)
{
    return (struct draft_ask){ .row = row, .ids = w->ids, .n_ids = n, .n_max = n_max };
}

static struct draft_ask ask(struct world *w, row_id row, int32_t n, int32_t n_max)
{
    struct draft_ask a = ask_for(w, row, n, n_max);
    w->d->ops->draft(w->d, &a, 1);
    return a;
}

/* What a row says that has seen all of the text in one go, and nothing else. */
static struct draft_ask alone(struct world *w, int32_t n, int32_t n_max)
{
    w->req.n_prompt = 1;
    w->req.cache_salt[0]++;
    open_at(w, 2);
    see(w, 2, 0, n - 1, N_TEXT);
    struct draft_ask a = ask(w, 2, n, n_max);
    w->d->ops->close(w->d, 2, w->ids, n);
    assert_in_range(a.n, 1, n_max);
    return a;
}

static void asks_equal(const struct draft_ask *a, const struct draft_ask *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids_out, b->ids_out, (size_t)a->n * sizeof(*a->ids_out));
    assert_memory_equal(a->sure, b->sure, (size_t)a->n * sizeof(*a->sure));
}

static const char *const drafters[] = { "dflash",  "dflash-window", "dflash-both-ways",
                                        "dflash2", "dspark",        "dspark-rnn" };

static void rows_are_guessed_together(void **state)
{
    static struct world w;
    for (size_t i = 0; i < ARRAY_LEN(drafters); i++) {
        world_open(&w, drafters[i], 0);
        struct draft_ask a = alone(&w, 80, 3), b = alone(&w, 151, 16);
        open_at(&w, 0);
        open_at(&w, 1);
        see(&w, 0, 0, 79, 17);
        see(&w, 1, 0, 150, 31);
        struct draft_ask asks[2] = { ask_for(&w, 0, 80, 3), ask_for(&w, 1, 151, 16) };
        w.d->ops->draft(w.d, asks, 2);
        asks_equal(&asks[0], &a);
        asks_equal(&asks[1], &b);
        assert_true(b.n <= BLOCK && a.n <= 3);
        w.d->ops->close(w.d, 0, w.ids, 80);
        w.d->ops->close(w.d, 1, w.ids, 151);
        world_close(&w);
    }
    (void)state;
}

/* Rounds: after each block some rows are added, from the block's first place on. */
static void a_block_leaves_nothing_behind(void **state)
{
    static struct world w;
    for (size_t i = 0; i < ARRAY_LEN(drafters); i++) {
        world_open(&w, drafters[i], 0);
        open_at(&w, 0);
        for (int32_t n = 58, k = 0, known = 0; n < 150; n += 1 + k++ % 5) {
            see(&w, 0, known > 0 ? known - k % 3 : 0, n - 1, 9); /* some of them once more */
            known = n - 1;
            if (k % 7 > 4) /* it is not asked every time */
                continue;
            struct draft_ask got = ask(&w, 0, n, 1 + k % 8), want = alone(&w, n, 1 + k % 8);
            asks_equal(&got, &want);
        }
        w.d->ops->close(w.d, 0, w.ids, 150);
        world_close(&w);
    }
    (void)state;
}

static void what_is_kept_is_found_again(void **state)
{
    static struct world w;
    world_open(&w, "dspark", 0);
    struct draft_ask want = alone(&w, 130, 5);
    w.req.n_prompt = 130;
    w.req.cache_salt[0]++;
    open_at(&w, 0);
    assert_true(w.d->ops->due_us(w.d, 0, 130) > 0);
    assert_int_equal(ask(&w, 0, 130, 5).n, 0);
    see(&w, 0, 0, 129, 50);
    assert_true(w.d->ops->due_us(w.d, 0, 130) == 0);
    open_at(&w, 1); /* begins with what the row has, which goes on: its full pages */
    see(&w, 1, 128, 129, 1);
    struct draft_ask got = ask(&w, 1, 130, 5);
    asks_equal(&got, &want);
    w.d->ops->close(w.d, 0, w.ids, 130);
    w.d->ops->close(w.d, 1, w.ids, 130);
    open_at(&w, 0); /* and with all of what it had */
    got = ask(&w, 0, 130, 5);
    asks_equal(&got, &want);
    w.d->ops->close(w.d, 0, w.ids, 130);
    w.req.cache_salt[0]++;
    open_at(&w, 0);
    assert_int_equal(ask(&w, 0, 130, 5).n, 0);
    w.d->ops->close(w.d, 0, w.ids, 130);
    world_close(&w);
    (void)state;
}

static void a_gap_is_gone_once_the_row_is_computed_again(void **state)
{
    static struct world w;
    world_open(&w, "dflash", 0);
    struct draft_ask want = alone(&w, 120, 6);
    open_at(&w, 0);
    see(&w, 0, 0, 20, 20);
    see(&w, 0, 70, 119, 11);
    struct draft_ask holed = ask(&w, 0, 120, 6);
    assert_int_equal(holed.n, 6);
    assert_int_equal(ask(&w, 0, 60, 6).n, 0); /* in the gap */
    struct draft_ask again = ask(&w, 0, 120, 6);
    asks_equal(&again, &holed);
    see(&w, 0, 0, 119, 40);
    struct draft_ask got = ask(&w, 0, 120, 6);
    asks_equal(&got, &want);
    got = ask(&w, 0, 101, 6); /* it goes back */
    want = alone(&w, 101, 6);
    asks_equal(&got, &want);
    w.d->ops->close(w.d, 0, w.ids, 120);
    world_close(&w);
    (void)state;
}

/* Three rows want what one of them may have: who finds no memory is not guessed for, and has context again once there is some. */
static void without_memory_nothing_is_guessed(void **state)
{
    static struct world w;
    world_open(&w, "dflash", 0);
    size_t page = 0;
    for (int i = 0; i < w.model->n_layers; i++)
        page += w.t.be->ops->kv_page_bytes(w.t.be, DTYPE_F16, (int)w.model->n_kv_heads,
                                           (int)w.model->head_dim);
    world_close(&w);
    world_open(&w, "dflash", (int64_t)page * kv_pages_for(N_CTX));
    open_at(&w, 0);
    open_at(&w, 1);
    see(&w, 0, 0, 190, 64);
    see(&w, 1, 0, 190, 64); /* the last of these pieces finds no page */
    struct draft_ask a = ask(&w, 0, 191, 6);
    assert_int_equal(a.n, 6);
    assert_int_equal(ask(&w, 1, 191, 6).n, 0);
    w.d->ops->close(w.d, 0, w.ids, 190);
    see(&w, 1, 190, 195, 5);
    assert_int_equal(ask(&w, 1, 196, 6).n, 6);
    w.d->ops->close(w.d, 1, w.ids, 196);
    world_close(&w);
    (void)state;
}

static void what_is_unlikely_is_not_guessed_on(void **state)
{
    static struct world w;
    world_open(&w, "dspark-gated", 0);
    open_at(&w, 0);
    see(&w, 0, 0, 99, N_TEXT);
    struct draft_ask a = ask_for(&w, 0, 100, 5);
    a.least = 0.999999; /* its confidence is never so high */
    w.d->ops->draft(w.d, &a, 1);
    assert_int_equal(a.n, 1);
    w.d->ops->close(w.d, 0, w.ids, 100);
    world_close(&w);
    (void)state;
}

/* --- with an engine --- */

/* The greedy answer, every guess verified; what became of these. */
static struct engine_speculation answer_with(struct world *w, struct drafter *d,
                                             int32_t ids[N_TEXT])
{
    static const int32_t end_ids[] = { 287 };
    struct engine *e;
    struct engine_result res = { 0 };
    struct err err = { 0 };
    row_id row;
    struct engine_model_options o = { .model = w->t.model,
                                      .token_bytes = w->t.bytes,
                                      .end_ids = end_ids,
                                      .n_end = 1,
                                      .model_id = "tiny",
                                      .weights_digest = "d",
                                      .n_ctx = N_CTX,
                                      .max_rows = 2,
                                      .max_step_rows = 32,
                                      .cache_type = DTYPE_F16,
                                      .slow_drafter = d,
                                      .drafts_always = true };
    struct engine_request req = request(w->ids, 30, N_TEXT);
    int32_t n = 0;
    must(engine_model_new(&o, &e, &err), &err);
    must(e->ops->open(e, &req, &row, &err), &err);
    must(e->ops->grow(e, row, INT32_MAX, &err), &err);
    while (res.finish == FINISH_NONE) {
        struct engine_work work = { row, 32 };
        must(e->ops->step(e, &work, 1, &res, &err), &err);
        for (int32_t i = 0; i < res.n_tokens; i++)
            ids[n++] = res.tokens[i].id;
    }
    assert_int_equal(n, N_TEXT);
    e->ops->close(e, row);
    e->ops->free(e);
    return res.speculation;
}

static void guesses_come_true(void **state)
{
    static struct world w;
    static const char *const learnt[] = { "dflash", "dspark" };
    int32_t plain[N_TEXT], got[N_TEXT];
    for (size_t i = 0; i < ARRAY_LEN(learnt); i++) {
        world_open(&w, learnt[i], 0);
        (void)answer_with(&w, NULL, plain);
        struct engine_speculation sp = answer_with(&w, w.d, got);
        assert_memory_equal(got, plain, sizeof(got));
        assert_in_range(sp.drafted, 1, INT32_MAX);

        assert_true(sp.accepted * 50 > sp.drafted); /* chance is one of 288 */
        world_close(&w);
    }
    (void)state;
}

/* --- what does not fit --- */

static void refused(struct world *w, const struct model *target, const char *text)
{
    struct err err = { 0 };
    assert_int_equal(model_project(w->model, target, &err), ERR_INVALID);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
}

static void what_does_not_fit_is_refused(void **state)
{
    static struct world w;
    world_open(&w, "dspark", 0);
    struct model other = *w.t.model;
    other.width = 64;
    refused(&w, &other, "states of width 32, the model that it is to guess for has 64");
    other = *w.t.model;
    other.n_layers = 3;
    refused(&w, &other, "a model of 4 layers, the one that it is to guess for has 3");
    w.model->projected.n_target_layers = 0; /* a file that does not say */
    refused(&w, &other, "behind layer 2, the model that it is to guess for has 3 layers");
    other = *w.t.model;
    other.n_vocab = 300;
    refused(&w, &other, "288 tokens, the model that it is to guess for has 300");
    w.model->projected.mask_id = 288;
    refused(&w, w.t.model, "mask token 288 is none of its 288 tokens");
    world_close(&w);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_guessed_together),
        cmocka_unit_test(a_block_leaves_nothing_behind),
        cmocka_unit_test(what_is_kept_is_found_again),
        cmocka_unit_test(a_gap_is_gone_once_the_row_is_computed_again),
        cmocka_unit_test(without_memory_nothing_is_guessed),
        cmocka_unit_test(what_is_unlikely_is_not_guessed_on),
        cmocka_unit_test(guesses_come_true),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
