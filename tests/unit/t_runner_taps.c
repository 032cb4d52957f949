/* Hidden states for drafters: what the layers gave, wherever a text is cut, and the same bits of everything else with and without. */
#include "engine_rows.h"

#include <math.h>

#define FAMILIES "tests/golden/families/"
#define N        77
#define LAYERS   8
#define WIDTH    128
#define VOCAB    512

/* Windows, recurrent layers with such a one last, layer norms, norms on both sides, inputs of layers, experts. */
static const char *const models[] = {
    TINY "llama.gguf",         TINY "gemma3.gguf",         FAMILIES "qwen35.gguf",
    FAMILIES "qwen3next.gguf", FAMILIES "starcoder2.gguf", FAMILIES "glm4.gguf",
    FAMILIES "gemma4-e.gguf",  FAMILIES "gemma4-moe.gguf", FAMILIES "gpt-oss.gguf",
    FAMILIES "olmo2.gguf",
};

static float layers[LAYERS + 1][N]
                   [WIDTH]; /* what the hook saw; then what the logits were made of */
static float logits[N][VOCAB];

static void hook(void *ctx, int layer_i, struct tensor x)
{
    (void)ctx;
    for (int64_t i = 0; i < x.rows; i++)
        memcpy(layers[layer_i][i], x.data + i * x.stride, (size_t)x.cols * sizeof(float));
}

static struct runner *runner_of(const struct model *m, const struct model_taps *taps)
{
    struct runner *r;
    struct err err = { 0 };
    struct runner_options o = { .model = (struct model *)(uintptr_t)m,
                                .n_ctx = 128,
                                .max_seqs = 2,
                                .max_rows = N + 1,
                                .max_out = N + 1,
                                .cache_type = DTYPE_F16,
                                .taps = *taps };
    if (runner_new(&o, &r, &err))
        fail_msg("%s", err.text);
    return r;
}

static struct runner_item item_of(struct runner *r, const int32_t *ids, int32_t n)
{
    struct err err = { 0 };
    struct runner_item it = { .ids = ids, .n = n };
    assert_int_equal(runner_open(r, &it.seq, &err), ERR_OK);
    assert_int_equal(runner_reserve(r, it.seq, n, &err), ERR_OK);
    return it;
}

/* The whole text in one step, all rows with output. */
static void look(struct model *m, const int32_t *ids)
{
    struct err err = { 0 };
    struct runner *r = runner_of(m, &(struct model_taps){ 0 });
    struct runner_item it = item_of(r, ids, N);
    it.n_out = N;
    it.wants_hidden = true;
    m->tap = (struct model_tap){ hook, NULL };
    assert_int_equal(runner_step(r, &it, 1, &err), ERR_OK);
    assert_null(it.tapped);
    m->tap.fn = NULL;
    size_t width = (size_t)m->width, vocab = (size_t)m->n_vocab;
    for (size_t i = 0; i < N; i++) {
        memcpy(layers[m->n_layers][i], it.hidden + i * width, width * sizeof(float));
        memcpy(logits[i], it.logits + i * vocab, vocab * sizeof(float));
    }
    runner_free(r);
}

/* In pieces, beside a sequence that wants none: rows with and without output. */
static void compare(struct model *m, const int32_t *ids, const struct model_taps *taps,
                    int32_t chunk)
{
    struct err err = { 0 };
    size_t width = (size_t)m->width, vocab = (size_t)m->n_vocab;
    struct runner *r = runner_of(m, taps);
    struct runner_item items[2] = { item_of(r, ids, N), item_of(r, ids, N) };
    int turn = 0;
    for (int32_t at = 0; at < N; at += items[0].n, turn++) {
        items[0].ids = ids + at;
        items[0].n = N - at < chunk ? N - at : chunk;
        items[0].n_out = turn % 3 == 0 ? 0 : turn % 3 == 1 ? 1 : items[0].n;
        items[0].wants_taps = true;
        items[1].ids = ids + turn;
        items[1].n = 1;
        items[1].n_out = turn % 2;
        assert_int_equal(runner_step(r, items, turn < N ? 2 : 1, &err), ERR_OK);
        assert_null(items[1].tapped);
        assert_false(items[0].has_failed);
        for (int32_t i = 0; i < items[0].n; i++)
            for (int k = 0; k < taps->n; k++)
                assert_memory_equal(items[0].tapped +
                                        ((size_t)i * (size_t)taps->n + (size_t)k) * width,
                                    layers[taps->at[k]][at + i], width * sizeof(float));
        for (int32_t i = 0; i < items[0].n_out; i++)
            assert_memory_equal(items[0].logits + (size_t)i * vocab,
                                logits[at + items[0].n - items[0].n_out + i],
                                vocab * sizeof(float));
        if (items[1].n_out)
            assert_memory_equal(items[1].logits, logits[turn], vocab * sizeof(float));
    }
    runner_free(r);
}

static void states_are_what_the_layers_gave(void **state)
{
    static const int32_t chunks[] = { N, 64, 7, 1 };
    static int32_t ids[N];
    prompt_fill(ids, N, 0, 1);
    for (size_t f = 0; f < ARRAY_LEN(models); f++) {
        struct tiny_engine t;
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = models[f], .n_ctx = N_CTX, .max_rows = 2 });
        struct model *m = t.model;
        int l = (int)m->n_layers;
        assert_true(l <= LAYERS && m->width <= WIDTH && m->n_vocab <= VOCAB);
        look(m, ids);
        const struct model_taps some[] = {
            { .n = 1, .at = { l } }, /* an MTP head's */
            { .n = 1, .at = { 0 } },
            { .n = 2, .at = { 0, l - 1 } },
            { .n = 3, .at = { 0, l - 1, l } },
        };
        for (size_t i = 0; i < ARRAY_LEN(some); i++)
            for (size_t c = 0; c < ARRAY_LEN(chunks); c++)
                compare(m, ids, &some[i], chunks[c]);
        tiny_engine_close(&t);
    }
    (void)state;
}

/* What meets rows without output behind the place where they would have been left out is no failure of theirs, with taps as without. */
static void rows_fail_as_without_taps(void **state)
{
    static const int32_t outs[] = { 0, 1, 3 };
    static int32_t ids[N];
    prompt_fill(ids, N, 0, 1);
    for (size_t f = 0; f < ARRAY_LEN(models); f++) {
        struct tiny_engine t;
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = models[f], .n_ctx = N_CTX, .max_rows = 2 });
        const struct model_layer *last = &t.model->layers[t.model->n_layers - 1];
        const float *norm = last->ffn_norm ? last->ffn_norm : last->ffn_post_norm;
        float *w = (float *)(uintptr_t)norm, was = w[0]; /* the CPU's backend: host memory */
        struct model_taps taps = { .n = 1, .at = { (int)t.model->n_layers } };
        w[0] = INFINITY; /* for all that is computed there */
        for (size_t o = 0; o < ARRAY_LEN(outs); o++)
            for (int has_taps = 0; has_taps < 2; has_taps++) {
                struct err err = { 0 };
                struct runner *r = runner_of(t.model, &taps);
                struct runner_item it = item_of(r, ids, 9);
                it.n_out = outs[o];
                it.wants_taps = has_taps;
                assert_int_equal(runner_step(r, &it, 1, &err), ERR_OK);
                assert_int_equal(it.has_failed, outs[o] > 0);
                assert_int_equal(it.n_good, 9 - outs[o]);
                runner_free(r);
            }
        w[0] = was;
        tiny_engine_close(&t);
    }
    (void)state;
}

/* Models whose states no drafter knows say so. */
static void some_models_have_none(void **state)
{
    static const char *const without[] = { FAMILIES "qwen4exp.gguf", FAMILIES "bert.gguf" };
    for (size_t f = 0; f < ARRAY_LEN(without); f++) {
        struct tiny_engine t;
        struct runner *r;
        struct err err = { 0 };
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = without[f], .n_ctx = 64, .max_rows = 2 });
        struct runner_options o = { .model = t.model,
                                    .n_ctx = 64,
                                    .max_seqs = 1,
                                    .max_rows = 8,
                                    .max_out = 1,
                                    .cache_type = DTYPE_F16,
                                    .taps = { .n = 1, .at = { 1 } } };
        assert_int_equal(runner_new(&o, &r, &err), ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "hidden states"));
        tiny_engine_close(&t);
    }
    (void)state;
}

/* --- through the engine --- */

#define ROWS    3
#define N_SHARE 70

/* Remembers what it was told, and guesses the row's last id again. */
struct watcher {
    struct drafter base; /* first: the vtable casts */
    struct model_taps taps;
    size_t width;
    struct watched {
        bool is_open;
        int32_t from, n; /* positions [from, n) are known */
        float at[N_CTX][WIDTH];
    } rows[ROWS];
    int32_t n_calls;
};

static enum err_code watch_open(struct drafter *d, row_id row, const struct engine_request *req,
                                int32_t ids_max, struct err *err)
{
    struct watcher *w = (struct watcher *)(void *)d;
    (void)req;
    (void)ids_max;
    (void)err;
    w->rows[row].is_open = true;
    w->rows[row].from = w->rows[row].n = -1;
    return ERR_OK;
}

static void watch_draft(struct drafter *d, struct draft_ask *asks, int32_t n)
{
    struct watcher *w = (struct watcher *)(void *)d;
    for (int32_t i = 0; i < n; i++) {
        struct draft_ask *a = &asks[i];
        assert_int_equal(w->rows[a->row].n, a->n_ids - 1); /* all but the pending one was told */
        for (a->n = 0; a->n < a->n_max && a->n < 2; a->n++) {
            a->ids_out[a->n] = a->ids[a->n_ids - 1];
            a->sure[a->n] = DRAFT_MODEL_SURE;
        }
    }
}

static void watch_close(struct drafter *d, row_id row, const int32_t *ids, int32_t n_ids)
{
    (void)ids;
    (void)n_ids;
    ((struct watcher *)(void *)d)->rows[row].is_open = false;
}

static void watch_free(struct drafter *d)
{
    (void)d;
}

static double watch_guess_us(const struct drafter *d, int32_t n)
{
    (void)d;
    (void)n;
    return 1;
}

static double watch_due_us(const struct drafter *d, row_id row, int32_t n_ids)
{
    (void)d;
    (void)row;
    (void)n_ids;
    return 0;
}

static const struct model_taps *watch_taps(const struct drafter *d)
{
    return &((const struct watcher *)(const void *)d)->taps;
}

static void watch_see(struct drafter *d, const struct draft_seen *seen, int32_t n)
{
    struct watcher *w = (struct watcher *)(void *)d;
    w->n_calls++;
    for (int32_t i = 0; i < n; i++) {
        struct watched *r = &w->rows[seen[i].row];
        assert_true(r->is_open);
        assert_in_range(seen[i].n, 1, N_CTX);
        assert_in_range(seen[i].pos + seen[i].n, 1, seen[i].n_ids);
        assert_true(r->n < 0 || seen[i].pos <= r->n); /* no holes */
        if (r->n < 0 || seen[i].pos < r->from)
            r->from = seen[i].pos;
        for (int32_t k = 0; k < seen[i].n; k++) {
            const float *x = seen[i].states.data + k * seen[i].states.stride;
            if (seen[i].pos + k < r->n && seen[i].pos + k >= r->from) /* again: the same */
                assert_memory_equal(r->at[seen[i].pos + k], x, w->width * sizeof(float));
            memcpy(r->at[seen[i].pos + k], x, w->width * sizeof(float));
        }
        int32_t end = seen[i].pos + seen[i].n;
        r->n = end > r->n ? end : r->n;
    }
}

static const struct drafter_ops watch_ops = { .name = "watcher",
                                              .open = watch_open,
                                              .draft = watch_draft,
                                              .close = watch_close,
                                              .free = watch_free,
                                              .guess_us = watch_guess_us,
                                              .due_us = watch_due_us,
                                              .taps = watch_taps,
                                              .see = watch_see };

static struct watcher watcher;

/* What the watcher knows of a row is what one step over all of its ids gives. */
static void watched_is_right(struct model *m, row_id row, const int32_t *ids, int32_t from,
                             int32_t n)
{
    struct err err = { 0 };
    const struct watched *w = &watcher.rows[row];
    assert_int_equal(w->from, from);
    assert_int_equal(w->n, n);
    struct runner_options o = { .model = m,
                                .n_ctx = N_CTX,
                                .max_seqs = 1,
                                .max_rows = N_CTX,
                                .max_out = 1,
                                .cache_type = DTYPE_F16,
                                .taps = watcher.taps };
    struct runner *r;
    assert_int_equal(runner_new(&o, &r, &err), ERR_OK);
    struct runner_item it = item_of(r, ids, n);
    it.wants_taps = true;
    assert_int_equal(runner_step(r, &it, 1, &err), ERR_OK);
    for (int32_t i = from; i < n; i++)
        assert_memory_equal(w->at[i], it.tapped + (size_t)i * watcher.width,
                            watcher.width * sizeof(float));
    runner_free(r);
}

/* Prompts in chunks, rows beside one another, guesses that come true and such that do not, a prefix that is shared, memory that was
 * given up. */
static void drafters_are_told_of_what_stays(void **state)
{
    static int32_t ids[2][PROMPT_MAX];
    for (size_t f = 0; f < ARRAY_LEN(models); f++) {
        struct tiny_engine t;
        struct err err = { 0 };
        tiny_engine_open(&t,
                         &(struct tiny_config){ .file = models[f], .n_ctx = N_CTX, .max_rows = 2 });
        t.engine->ops->free(t.engine);
        watcher = (struct watcher){ .base.ops = &watch_ops,
                                    .taps = { .n = 1, .at = { (int)t.model->n_layers } },
                                    .width = (size_t)t.model->width };
        int32_t end_id = 287;
        struct engine_model_options o = { .model = t.model,
                                          .token_bytes = t.bytes,
                                          .end_ids = &end_id,
                                          .n_end = 1,
                                          .model_id = "taps",
                                          .weights_digest = "",
                                          .n_ctx = N_CTX,
                                          .max_rows = ROWS,
                                          .max_step_rows = 48,
                                          .cache_type = DTYPE_F16,
                                          .slow_drafter = &watcher.base,
                                          .drafts_always = true };
        assert_int_equal(engine_model_new(&o, &t.engine, &err), ERR_OK);
        prompt_fill(ids[0], PROMPT_MAX, 0, 1);
        prompt_fill(ids[1], PROMPT_MAX, N_SHARE, 2);
        struct engine_request a = request(ids[0], 90, 150), b = request(ids[1], 100, 150);
        row_id rows[2] = { open_row(&t, &a), open_row(&t, &b) };
        grow(&t, rows[0], INT32_MAX);
        (void)take(&t, rows[0], 89);
        grow(&t, rows[1], 0);
        int32_t n_shared = t.engine->ops->share(t.engine, rows[1], rows[0]);
        grow(&t, rows[1], INT32_MAX);
        int32_t n[2] = { 90, 100 }, left[2] = { 1, 100 - n_shared };
        for (int turn = 0; turn < 45; turn++) {
            struct engine_result res[2];
            struct engine_work work[2] = { { rows[0], left[0] > 7 ? 7 : left[0] },
                                           { rows[1], left[1] > 9 ? 9 : left[1] } };
            if (turn == 12) { /* all is computed anew */
                t.engine->ops->rewind(t.engine, rows[0]);
                grow(&t, rows[0], INT32_MAX);
                left[0] = n[0];
                continue;
            }
            assert_int_equal(t.engine->ops->step(t.engine, work, 2, res, &err), ERR_OK);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(res[i].finish, FINISH_NONE);
                left[i] -= res[i].n_taken - res[i].n_tokens;
                for (int32_t k = 0; k < res[i].n_tokens; k++)
                    ids[i][n[i]++] = res[i].tokens[k].id;
            }
        }
        watched_is_right(t.model, rows[0], ids[0], 0, n[0] - left[0]);
        watched_is_right(t.model, rows[1], ids[1], n_shared, n[1] - left[1]);
        for (int i = 0; i < 2; i++)
            t.engine->ops->close(t.engine, rows[i]);
        a.no_drafts = true; /* nobody is told of a row that is not guessed for */
        rows[0] = open_row(&t, &a);
        grow(&t, rows[0], INT32_MAX);
        int32_t n_calls = watcher.n_calls;
        (void)take(&t, rows[0], 90);
        assert_int_equal(watcher.n_calls, n_calls);
        tiny_engine_close(&t);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_what_the_layers_gave),
        cmocka_unit_test(rows_fail_as_without_taps),
        cmocka_unit_test(some_models_have_none),
        cmocka_unit_test(drafters_are_told_of_what_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
