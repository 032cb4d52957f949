/* Rows of the engine that share, give up and get back memory, score their prompts, or want no answer at all. */
#include "base/log.h"
#include "engine/sample.h"
#include "engine_rows.h"

#include <math.h>
#include <stdio.h>

static int64_t free_pages(const struct tiny_engine *t, int group)
{
    struct engine_usage u;
    t->engine->ops->usage(t->engine, &u);
    assert_in_range(group, 0, u.n_groups - 1);
    return u.groups[group].n_free - u.groups[group].n_promised;
}

static void a_row_has_no_memory_until_it_grows(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct engine_usage u;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[1], .n_ctx = N_CTX, .max_rows = 2 });
    t.engine->ops->usage(t.engine, &u);
    assert_int_equal(u.n_groups, 2);
    assert_string_equal(u.groups[0].name, "full");
    assert_string_equal(u.groups[1].name, "window");
    int64_t full = u.groups[0].n_free, window = u.groups[1].n_free;
    assert_int_equal(full, u.groups[0].n_pages);
    struct engine_request req = request(ids, 100, 10);
    row_id row = open_row(&t, &req);
    assert_int_equal(free_pages(&t, 0), full);
    grow(&t, row, 1);
    assert_int_equal(free_pages(&t, 0), full - 1);
    assert_int_equal(free_pages(&t, 1), window - 1);
    grow(&t, row, 70);
    assert_int_equal(free_pages(&t, 0), full - 2);
    grow(&t, row, 5); /* no promise is taken back */
    assert_int_equal(free_pages(&t, 0), full - 2);
    grow(&t, row, INT32_MAX); /* 100 and 9 of the answer */
    assert_int_equal(free_pages(&t, 0), full - 2);
    t.engine->ops->usage(t.engine, &u);
    assert_int_equal(u.groups[0].n_promised, 2);
    assert_int_equal(take(&t, row, 100).n_tokens, 1);
    t.engine->ops->usage(t.engine, &u);
    assert_int_equal(u.groups[0].n_promised, 0);
    assert_int_equal(u.groups[0].n_free, full - 2);
    t.engine->ops->rewind(t.engine, row);
    tiny_engine_check(&t);
    assert_int_equal(free_pages(&t, 0), full);
    assert_int_equal(free_pages(&t, 1), window);
    t.engine->ops->close(t.engine, row);
    tiny_engine_close(&t);
}

/* All groups or none. */
static void a_promise_that_cannot_be_kept_changes_nothing(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct err err;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[1], .n_ctx = N_CTX, .max_rows = 4 });
    int64_t bytes = tiny_engine_page_bytes(&t, 0), window = tiny_engine_page_bytes(&t, 1);
    tiny_engine_close(&t);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[1],
                                                .n_ctx = N_CTX,
                                                .max_rows = 4,
                                                .kv_bytes = bytes * 9 + window * 8 });
    struct engine_request req = request(ids, 200, 100);
    row_id rows[4];
    int n = 0;
    for (; n < 4; n++) {
        rows[n] = open_row(&t, &req);
        int64_t full_left = free_pages(&t, 0), window_left = free_pages(&t, 1);
        if (t.engine->ops->grow(t.engine, rows[n], INT32_MAX, &err) == ERR_OK)
            continue;
        assert_int_equal(err.code, ERR_NOMEM);
        assert_non_null(strstr(err.text, "299 tokens need"));
        assert_non_null(strstr(err.text, "pages more of"));
        assert_int_equal(free_pages(&t, 0), full_left);
        assert_int_equal(free_pages(&t, 1), window_left);
        break;
    }
    assert_in_range(n, 1, 3);
    t.engine->ops->close(t.engine, rows[0]);
    grow(&t, rows[n], INT32_MAX);
    for (int i = 1; i <= n; i++)
        t.engine->ops->close(t.engine, rows[i]);
    tiny_engine_close(&t);
}

static void whole_pages_are_shared_and_the_tail_is_copied(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 4 });
    struct engine_request req = request(ids, 200, 10);
    row_id a = open_row(&t, &req);
    grow(&t, a, 200);
    row_id b = open_row(&t, &req);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 0); /* nothing is taken yet */
    int32_t first = take(&t, a, 200).tokens->id;
    int64_t before = free_pages(&t, 0);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 199); /* its last one is its own */
    tiny_engine_check(&t);
    assert_int_equal(free_pages(&t, 0), before - 1);
    grow(&t, b, 200);
    assert_int_equal(free_pages(&t, 0), before - 1);
    t.engine->ops->close(t.engine, a); /* what b shares stays */
    tiny_engine_check(&t);
    assert_int_equal(free_pages(&t, 0), before); /* a's tail */
    struct engine_result res = step(&t, b, 1);
    assert_int_equal(res.tokens->id, first);
    row_id c = open_row(&t, &req);
    t.engine->ops->rewind(t.engine, b);
    assert_int_equal(t.engine->ops->share(t.engine, c, b), 0);
    t.engine->ops->close(t.engine, b);
    t.engine->ops->close(t.engine, c);
    tiny_engine_check(&t);
    tiny_engine_close(&t);
}

/* The tail needs a page that nobody is promised; without one the whole pages are shared. */
static void without_a_page_for_the_tail_less_is_shared(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 4 });
    int64_t bytes = tiny_engine_page_bytes(&t, 0);
    tiny_engine_close(&t);
    tiny_engine_open(&t,
                     &(struct tiny_config){
                         .file = files[0], .n_ctx = N_CTX, .max_rows = 4, .kv_bytes = bytes * 6 });
    struct engine_request req = request(ids, 200, 10), small = request(ids, 150, 10);
    row_id a = open_row(&t, &req), hog = open_row(&t, &small), b = open_row(&t, &req);
    grow(&t, a, 200);
    grow(&t, hog, 128); /* 6 of 6 */
    take(&t, a, 200);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 192);
    tiny_engine_check(&t);
    t.engine->ops->close(t.engine, b);
    b = open_row(&t, &small);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 128);
    t.engine->ops->close(t.engine, hog);
    t.engine->ops->close(t.engine, b);
    b = open_row(&t, &small);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 149);
    t.engine->ops->close(t.engine, a);
    t.engine->ops->close(t.engine, b);
    tiny_engine_close(&t);
}

/* A window's row that has moved on cannot give an earlier position what it needs. */
static void a_window_that_moved_on_shares_only_its_end(void **state)
{
    int32_t a_ids[PROMPT_MAX], b_ids[PROMPT_MAX];
    struct tiny_engine t;
    prompt_fill(a_ids, PROMPT_MAX, 130, 1);
    prompt_fill(b_ids, PROMPT_MAX, 130, 2);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[1], .n_ctx = N_CTX, .max_rows = 4 });
    int32_t window = t.model->window;
    assert_in_range(window, 1, 63);
    struct engine_request ra = request(a_ids, 250, 10), rb = request(b_ids, 250, 10);
    row_id a = open_row(&t, &ra), b = open_row(&t, &rb);
    grow(&t, a, 250);
    take(&t, a, 130);
    int64_t full = free_pages(&t, 0), win = free_pages(&t, 1);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 130);
    tiny_engine_check(&t);
    assert_int_equal(free_pages(&t, 0), full - 1);
    assert_int_equal(free_pages(&t, 1), win - (130 / P - (131 - window) / P + 1));
    t.engine->ops->close(t.engine, b);
    take(&t, a, 120); /* positions about 130 are gone in the window's layers */
    b = open_row(&t, &rb);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 0);
    t.engine->ops->close(t.engine, b);
    b = open_row(&t, &ra);
    assert_int_equal(t.engine->ops->share(t.engine, b, a), 249);
    tiny_engine_check(&t);
    t.engine->ops->close(t.engine, a);
    t.engine->ops->close(t.engine, b);
    tiny_engine_check(&t);
    tiny_engine_close(&t);
}

/* A cut inside a page that another sequence holds would let one of them write what the other reads. */
static void a_shared_page_is_not_cut(void **state)
{
    int32_t ids[PROMPT_MAX], a, b;
    struct tiny_engine t;
    struct runner *r;
    struct err err;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 1 });
    struct runner_options o = { .model = t.model,
                                .n_ctx = 200,
                                .max_seqs = 2,
                                .max_rows = 200,
                                .max_out = 1,
                                .cache_type = DTYPE_F16 };
    assert_int_equal(runner_new(&o, &r, &err), ERR_OK);
    assert_int_equal(runner_open(r, &a, &err), ERR_OK);
    assert_int_equal(runner_open(r, &b, &err), ERR_OK);
    assert_int_equal(runner_reserve(r, a, 200, &err), ERR_OK);
    struct runner_item item = { .seq = a, .ids = ids, .n = 150 };
    assert_int_equal(runner_step(r, &item, 1, &err), ERR_OK);
    assert_int_equal(runner_share(r, b, a, 150), 150);
    assert_true(runner_can_truncate(r, a, 140)); /* its own page */
    assert_true(runner_can_truncate(r, a, 128));
    assert_false(runner_can_truncate(r, a, 127));
    assert_false(runner_can_truncate(r, b, 1));
    assert_true(runner_can_truncate(r, b, 64));
    runner_truncate(r, b, 64); /* the second page is a's alone again */
    assert_int_equal(runner_check(r, &err), ERR_OK);
    assert_true(runner_can_truncate(r, a, 127));
    assert_false(runner_can_truncate(r, a, 63));
    runner_free(r);
    tiny_engine_close(&t);
}

static void given_up_memory_changes_no_answer(void **state)
{
    static int32_t ids[PROMPT_MAX];
    static struct answer want;
    struct tiny_engine t;
    const struct engine_bytes stops[] = { { "xxxxxxxxxxxxxxxxxxxxxxxx", 24 }, { "yy", 2 } };
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = files[f], .n_ctx = N_CTX, .max_rows = 2 });
        struct engine_request req = request(ids, 90, 35);
        req.sample.temperature = 1;
        req.sample.seed = 5;
        req.sample.repetition_penalty = 1.2f;
        req.sample.n_logprobs = 3;
        req.stops = stops;
        req.n_stops = 2;
        answer_run(&t, &req, &want);
        assert_int_equal(want.n, 24); /* the stop string ends it */
        assert_int_equal(want.finish, FINISH_STOP_STRING);
        row_id row = open_row(&t, &req);
        struct engine_result res = { 0 };
        int32_t n = 0, pending = 90;
        int64_t safe = 0;
        for (int i = 0; res.finish == FINISH_NONE; i++) {
            if (i % 5 == 4) {
                t.engine->ops->rewind(t.engine, row);
                tiny_engine_check(&t);
                pending = 90 + n;
            }
            grow(&t, row, 90 + n);
            int32_t chunk = pending < 29 ? pending : 29;
            res = step(&t, row, chunk);
            assert_int_equal(res.n_taken, chunk);
            pending -= chunk;
            assert_int_equal(res.n_tokens, pending == 0);
            assert_true(res.text_safe >= safe);
            safe = res.text_safe;
            if (res.n_tokens > 0)
                token_equals(res.tokens, &want.tokens[n++]);
            pending += res.n_tokens;
        }
        assert_int_equal(n, want.n);
        assert_int_equal(res.finish, want.finish);
        assert_int_equal(res.text_safe, want.text_safe);
        t.engine->ops->close(t.engine, row);
        tiny_engine_close(&t);
    }
}

/* --- scores and signal --- */

/* Logits after each of n ids, by the runner alone, one at a time. */
static void logits_of(struct tiny_engine *t, const int32_t *ids, int32_t n, float *out)
{
    struct runner *r;
    struct err err = { 0 };
    struct runner_options o = { .model = t->model,
                                .n_ctx = n,
                                .max_seqs = 1,
                                .max_rows = 1,
                                .max_out = 1,
                                .cache_type = DTYPE_F16 };
    struct runner_item item = { .n = 1, .n_out = 1 };
    if (runner_new(&o, &r, &err) || runner_open(r, &item.seq, &err) ||
        runner_reserve(r, item.seq, n, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < n; i++) {
        item.ids = ids + i;
        assert_int_equal(runner_step(r, &item, 1, &err), ERR_OK);
        memcpy(out + (int64_t)i * t->model->n_vocab, item.logits,
               (size_t)t->model->n_vocab * sizeof(float));
    }
    runner_free(r);
}

static void scores_are_the_plain_log_softmax(void **state)
{
    enum { N = 120 };
    static int32_t ids[PROMPT_MAX];
    static struct engine_token scores[N];
    static const struct logit_bias bias = { 7, 50 };
    struct tiny_engine t;
    struct sampler s;
    struct err err;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = files[f], .n_ctx = N_CTX, .max_rows = 2 });
        int32_t v = t.engine->info.n_vocab;
        float *logits = mem_alloc(MEM_CAT_BASE, (size_t)v * N * sizeof(float));
        logits_of(&t, ids, N, logits);
        assert_int_equal(sampler_init(&s, v, &err), ERR_OK);
        struct engine_request req = request(ids, N, 5);
        req.prompt_scores = scores;
        req.n_score_top = 4;
        req.sample.repetition_penalty = 1.5f; /* neither this ... */
        req.sample.bias = &bias;              /* ... nor this is in the scores */
        req.sample.n_bias = 1;
        row_id row = open_row(&t, &req);
        grow(&t, row, N);
        assert_int_equal(take(&t, row, N).n_tokens, 1);
        t.engine->ops->close(t.engine, row);
        assert_int_equal(scores[0].id, ids[0]);
        assert_true(scores[0].logprob == 0);
        assert_int_equal(scores[0].n_top, 0);
        for (int32_t i = 1; i < N; i++) {
            const float *l = logits + (int64_t)(i - 1) * v;
            float want = sample_logprob(&s, l, ids[i]);
            assert_int_equal(scores[i].id, ids[i]);
            assert_memory_equal(&scores[i].logprob, &want, sizeof(want));
            assert_int_equal(scores[i].n_top, 4);
            assert_int_equal(scores[i].top[0].id, sample_argmax(l, v));
            for (int k = 0; k < 4; k++) {
                want = sample_logprob(&s, l, scores[i].top[k].id);
                assert_memory_equal(&scores[i].top[k].logprob, &want, sizeof(want));
                assert_true(k == 0 || scores[i].top[k].logprob <= scores[i].top[k - 1].logprob);
            }
        }
        sampler_release(&s);
        mem_free(MEM_CAT_BASE, logits);
        tiny_engine_close(&t);
    }
}

/* With less room for logits than asked for a step takes fewer ids; a decoding row beside it is served. */
static void scores_do_not_depend_on_the_cut(void **state)
{
    enum { N = 150 };
    static int32_t ids[PROMPT_MAX];
    static struct engine_token want[N], got[N];
    struct tiny_engine t;
    struct err err;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t,
                     &(struct tiny_config){
                         .file = files[1], .n_ctx = N_CTX, .max_rows = 3, .max_step_rows = 64 });
    struct engine_request req = request(ids, N, 0), other = request(ids, 20, 30);
    req.prompt_scores = want;
    req.n_score_top = 2;
    row_id row = open_row(&t, &req);
    grow(&t, row, INT32_MAX);
    struct engine_result res = step(&t, row, 64);
    assert_int_equal(res.n_taken, ENGINE_MODEL_OUT);
    res = take(&t, row, N - res.n_taken);
    assert_int_equal(res.finish, FINISH_LENGTH); /* no answer was wanted */
    assert_int_equal(res.n_tokens, 0);
    assert_int_equal(res.text_safe, 0);
    t.engine->ops->close(t.engine, row);
    for (int32_t chunk = 1; chunk < 60; chunk = chunk * 2 + 1) {
        memset(got, 0xee, sizeof(got));
        req.prompt_scores = got;
        row_id rows[2] = { open_row(&t, &req), open_row(&t, &other) };
        assert_int_equal(t.engine->ops->share(t.engine, rows[0], rows[1]), 0);
        grow(&t, rows[1], INT32_MAX);
        take(&t, rows[1], 20);
        struct engine_result both[2] = { 0 };
        int32_t pending = N;
        for (int i = 0; both[0].finish == FINISH_NONE; i++) {
            if (i % 7 == 6 && i < 40) {
                t.engine->ops->rewind(t.engine, rows[0]);
                pending = N;
            }
            grow(&t, rows[0], N);
            struct engine_work work[2] = { { rows[0], chunk < pending ? chunk : pending },
                                           { rows[1], 1 } };
            bool is_over = both[1].finish != FINISH_NONE;
            assert_int_equal(t.engine->ops->step(t.engine, work, is_over ? 1 : 2, both, &err),
                             ERR_OK);
            assert_in_range(both[0].n_taken, 1, work[0].n_tokens);
            pending -= both[0].n_taken;
        }
        scores_equal(got, want, N);
        t.engine->ops->close(t.engine, rows[0]);
        t.engine->ops->close(t.engine, rows[1]);
    }
    tiny_engine_close(&t);
}

static void a_signal_counts_the_last_log_softmax(void **state)
{
    enum { N = 70, BINS = 37 };
    static int32_t ids[PROMPT_MAX];
    int32_t bins[BINS], want[BINS];
    struct tiny_engine t;
    struct sampler s;
    struct err err;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        tiny_engine_open(&t, &(struct tiny_config){ .file = files[f],
                                                    .n_ctx = N,
                                                    .max_rows = 2 }); /* fills the context */
        int32_t v = t.engine->info.n_vocab;
        float *logits = mem_alloc(MEM_CAT_BASE, (size_t)v * N * sizeof(float));
        logits_of(&t, ids, N, logits);
        assert_int_equal(sampler_init(&s, v, &err), ERR_OK);
        memset(want, 0, sizeof(want));
        for (int32_t i = 0; i < v; i++) {
            float logprob = sample_logprob(&s, logits + (int64_t)(N - 1) * v, i);
            int k = 0;
            while (k < BINS - 1 && (double)logprob >= -6.5 + (k + 1) * (6.5 / BINS))
                k++;
            want[k]++;
        }
        for (int32_t chunk = 1; chunk < 33; chunk += 31) {
            memset(bins, 0xee, sizeof(bins));
            struct engine_request req = request(ids, N, 0);
            req.signal = (struct engine_signal){ BINS, -6.5f, bins };
            row_id row = open_row(&t, &req);
            grow(&t, row, INT32_MAX);
            struct engine_result res = { 0 };
            while (res.finish == FINISH_NONE)
                res = step(&t, row, chunk);
            assert_int_equal(res.finish, FINISH_LENGTH);
            assert_int_equal(res.n_tokens, 0);
            assert_memory_equal(bins, want, sizeof(want));
            t.engine->ops->close(t.engine, row);
        }
        sampler_release(&s);
        mem_free(MEM_CAT_BASE, logits);
        tiny_engine_close(&t);
    }
}

static void a_hidden_state_is_that_of_the_last_id(void **state)
{
    enum { N = 70, EMBD = 512 };
    static int32_t ids[PROMPT_MAX];
    static float hidden[4][EMBD];
    struct tiny_engine t;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        tiny_engine_open(&t, &(struct tiny_config){ .file = files[f],
                                                    .n_ctx = N,
                                                    .max_rows = 2 }); /* fills the context */
        size_t bytes = (size_t)t.engine->info.n_embd * sizeof(float);
        assert_true(bytes > 0 && bytes <= sizeof(hidden[0]));
        for (int i = 0; i < 4; i++) { /* in chunks of three sizes; and a shorter prompt */
            static const int32_t chunks[] = { 32, 7, 1, 32 };
            memset(hidden[i], 0xee, sizeof(hidden[i]));
            struct engine_request req = request(ids, i < 3 ? N : N - 1, 0);
            req.hidden = hidden[i];
            row_id row = open_row(&t, &req);
            grow(&t, row, INT32_MAX);
            struct engine_result res = { 0 };
            while (res.finish == FINISH_NONE)
                res = step(&t, row, chunks[i]);
            assert_int_equal(res.finish, FINISH_LENGTH);
            assert_int_equal(res.n_tokens, 0);
            t.engine->ops->close(t.engine, row);
        }
        for (int32_t i = 0; i < t.engine->info.n_embd; i++)
            assert_true(isfinite(hidden[0][i]));
        assert_memory_equal(hidden[1], hidden[0], bytes);
        assert_memory_equal(hidden[2], hidden[0], bytes);
        assert_memory_not_equal(hidden[3], hidden[0], bytes);
        tiny_engine_close(&t);
    }
}

/* What a row with these ids begins with, of what is kept. */
static int32_t reuse_of(struct tiny_engine *t, const struct engine_request *req)
{
    row_id row = open_row(t, req);
    int32_t n = t->engine->ops->reuse(t->engine, row);
    tiny_engine_check(t);
    t->engine->ops->close(t->engine, row);
    tiny_engine_check(t);
    return n;
}

static void a_finished_row_is_kept_for_those_that_begin_alike(void **state)
{
    (void)state;
    struct tiny_engine t;
    int32_t ids[PROMPT_MAX], other[PROMPT_MAX];
    struct answer first, again;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    prompt_fill(other, PROMPT_MAX, 150, 2);
    for (int i = 0; i < 150; i++)
        other[i] = ids[i];
    tiny_engine_open(
        &t, &(struct tiny_config){
                .file = files[0], .n_ctx = N_CTX, .max_rows = 4, .keep_bytes = RUNNER_KEEP_ALL });
    struct engine_request req = request(ids, 200, 20);
    assert_int_equal(reuse_of(&t, &req), 0);
    answer_run(&t, &req, &first);
    assert_int_equal(reuse_of(&t, &req),
                     199); /* the last id is taken again: it gives the next token */
    answer_run(&t, &req, &again);
    assert_memory_equal(first.tokens, again.tokens, sizeof(first.tokens[0]) * (size_t)first.n);
    for (int i = 0; i < 20; i++)
        ids[200 + i] = first.tokens[i].id;
    struct engine_request next = request(ids, 230, 4); /* the next turn: the answer and more */
    assert_int_equal(reuse_of(&t, &next), 219);        /* the answer's last token was never taken */
    struct engine_request changed = request(other, 200, 4);
    assert_int_equal(reuse_of(&t, &changed), 150);
    next.cache_salt[31] = 1;
    assert_int_equal(reuse_of(&t, &next), 0);
    struct engine_token scores[PROMPT_MAX];
    req.prompt_scores = scores;
    assert_int_equal(reuse_of(&t, &req), 0); /* each position is scored by its own logits */
    tiny_engine_close(&t);
}

static void what_has_no_answer_is_not_kept(void **state)
{
    (void)state;
    struct tiny_engine t;
    int32_t ids[PROMPT_MAX], bins[4];
    struct answer a;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(
        &t, &(struct tiny_config){
                .file = files[0], .n_ctx = N_CTX, .max_rows = 4, .keep_bytes = RUNNER_KEEP_ALL });
    struct engine_request req = request(ids, 100, 0);
    req.signal = (struct engine_signal){ 4, -9, bins };
    answer_run(&t, &req, &a);
    struct engine_usage u;
    t.engine->ops->usage(t.engine, &u);
    assert_int_equal(u.groups[0].n_kept, 0);
    tiny_engine_close(&t);
}

static void rows_get_what_kept_histories_hold(void **state)
{
    (void)state;
    struct tiny_engine t;
    int32_t ids[PROMPT_MAX];
    struct answer a;
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 4 });
    int64_t page = tiny_engine_page_bytes(&t, 0);
    tiny_engine_close(&t);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0],
                                                .n_ctx = N_CTX,
                                                .max_rows = 4,
                                                .kv_bytes = 6 * page,
                                                .keep_bytes = RUNNER_KEEP_ALL });
    for (int32_t lineage = 1; lineage < 6; lineage++) {
        prompt_fill(ids, PROMPT_MAX, 0, lineage);
        struct engine_request req = request(ids, 4 * P, 8);
        answer_run(&t, &req, &a);
        struct engine_usage u;
        t.engine->ops->usage(t.engine, &u);
        assert_int_equal(u.groups[0].n_free + u.groups[0].n_kept, 6);
        assert_in_range(u.groups[0].n_kept, 5, 6);
    }
    struct engine_request req = request(ids, 4 * P, 8);
    assert_int_equal(reuse_of(&t, &req), 4 * P - 1); /* the newest is whole */
    tiny_engine_close(&t);
}

static void odd_wishes_are_refused(void **state)
{
    int32_t ids[PROMPT_MAX], bins[1];
    struct engine_token scores[10];
    struct tiny_engine t;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0], .n_ctx = 50, .max_rows = 2 });
    const struct engine_signal bad[] = {
        { -1, -1, bins },       { ENGINE_SIGNAL_BINS_MAX + 1, -1, bins },
        { 1, 0, bins },         { 1, 1, bins },
        { 1, -INFINITY, bins }, { 1, NAN, bins },
        { 1, -1, NULL }
    };
    row_id row;
    struct err err;
    struct engine_request req = request(ids, 10, 0);
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        req.signal = bad[i];
        assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "signal"));
    }
    req = request(ids, 10, 1);
    req.signal = (struct engine_signal){ 1, -1, bins };
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    req.signal.n_bins = 0;
    float hidden[1];
    req.hidden = hidden;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "embedding"));
    req = request(ids, 10, 0);
    req.prompt_scores = scores;
    req.n_score_top = ENGINE_LOGPROBS_MAX + 1;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "21 alternatives"));
    req = request(ids, 51, 0);
    req.signal = (struct engine_signal){ 1, -1, bins };
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_FULL);
    assert_non_null(strstr(err.text, "51 tokens do not fit into the context of 50"));
    tiny_engine_check(&t);
    tiny_engine_close(&t);
}

static void an_answer_goes_on_from_any_of_its_tokens(void **state)
{
    struct tiny_engine t;
    struct answer whole, rest;
    int32_t ids[20], begun[ANSWER_MAX];
    prompt_fill(ids, 20, 20, 0);
    for (int32_t k = 0; k < 9; k++) {
        struct engine_request req = request(ids, 20, 10);
        req.sample.temperature = 1;
        req.sample.frequency_penalty = 0.5f;
        req.sample.seed = 5;
        req.sample.n_logprobs = 2;
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 2 });
        answer_run(&t, &req, &whole);
        tiny_engine_close(&t);
        assert_int_equal(whole.n, 10);
        for (int32_t i = 0; i < k; i++)
            begun[i] = whole.tokens[i].id;
        req.begun = begun;
        req.n_begun = k;
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 2 });
        answer_run(&t, &req, &rest);
        tiny_engine_close(&t);
        assert_int_equal(rest.n, 10 - k);
        for (int32_t i = k; i < 10; i++)
            token_equals(&rest.tokens[i - k], &whole.tokens[i]);
        assert_int_equal(rest.finish, whole.finish);
        assert_int_equal(rest.text_safe, whole.text_safe);
    }
}

static void an_answer_that_has_ended_cannot_go_on(void **state)
{
    struct tiny_engine t;
    struct err err;
    row_id row;
    int32_t ids[20], begun[3] = { 65, 66, 67 };
    struct engine_bytes stop = { "xx", 2 };
    tiny_engine_open(&t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 2 });
    prompt_fill(ids, 20, 20, 0);
    struct engine_request req = request(ids, 20, 3);
    req.begun = begun;
    req.n_begun = 3;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "3 tokens, it ends after 3"));
    req.max_tokens = 10;
    begun[1] = 1 << 20;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "token id 1048576 at 1"));
    begun[1] = 66;
    req.stops = &stop;
    req.n_stops = 1;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "a stop string has ended it with token 2 of 3"));
    tiny_engine_check(&t);
    tiny_engine_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_no_memory_until_it_grows),
        cmocka_unit_test(a_promise_that_cannot_be_kept_changes_nothing),
        cmocka_unit_test(whole_pages_are_shared_and_the_tail_is_copied),
        cmocka_unit_test(without_a_page_for_the_tail_less_is_shared),
        cmocka_unit_test(a_window_that_moved_on_shares_only_its_end),
        cmocka_unit_test(a_shared_page_is_not_cut),
        cmocka_unit_test(given_up_memory_changes_no_answer),
        cmocka_unit_test(scores_are_the_plain_log_softmax),
        cmocka_unit_test(scores_do_not_depend_on_the_cut),
        cmocka_unit_test(a_signal_counts_the_last_log_softmax),
        cmocka_unit_test(a_hidden_state_is_that_of_the_last_id),
        cmocka_unit_test(a_finished_row_is_kept_for_those_that_begin_alike),
        cmocka_unit_test(what_has_no_answer_is_not_kept),
        cmocka_unit_test(rows_get_what_kept_histories_hold),
        cmocka_unit_test(odd_wishes_are_refused),
        cmocka_unit_test(an_answer_goes_on_from_any_of_its_tokens),
        cmocka_unit_test(an_answer_that_has_ended_cannot_go_on),
    };
    log_set_level(LOG_LEVEL_WARN);
    return cmocka_run_group_tests_name("engine_rows", tests, NULL, NULL);
}
