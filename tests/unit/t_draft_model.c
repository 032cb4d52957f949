/* A draft model that is the model itself guesses just what the model says, whatever it has guessed before and wherever a row has gone. */
#include "base/philox.h"
#include "engine/draft.h"
#include "engine_rows.h"

#define N_PROMPT 100
#define N_ANSWER 120
#define N_ALL    (N_PROMPT + N_ANSWER)

static const char *const guessers[] = { TINY "llama.gguf", TINY "gemma3.gguf",
                                        "tests/golden/families/qwen35.gguf" };

struct pair {
    struct tiny_engine t;
    struct drafter *d;
    struct engine_request req;
    int32_t ids[N_ALL];
};

static void pair_open(struct pair *p, const char *file, const struct sample_params *sample,
                      int64_t kv_bytes)
{
    struct err err = { 0 };
    prompt_fill(p->ids, N_PROMPT, 0, 1);
    tiny_engine_open(&p->t, &(struct tiny_config){ .file = file, .n_ctx = N_CTX, .max_rows = 2 });
    p->req = request(p->ids, N_PROMPT, N_ANSWER);
    p->req.sample = *sample;
    row_id row = open_row(&p->t, &p->req);
    grow(&p->t, row, INT32_MAX);
    struct engine_result res = take(&p->t, row, N_PROMPT);
    for (int32_t n = N_PROMPT; n < N_ALL; n++) {
        p->ids[n] = res.tokens[0].id;
        if (n + 1 < N_ALL)
            res = step(&p->t, row, 1);
    }
    p->t.engine->ops->close(p->t.engine, row);
    struct draft_model_options o = { .model = p->t.model,
                                     .n_vocab = (int32_t)p->t.model->n_vocab,
                                     .n_ctx = N_CTX,
                                     .kv_bytes = kv_bytes,
                                     .max_rows = 2,
                                     .cache_type = DTYPE_F16 };
    if (draft_model_new(&o, &p->d, &err))
        fail_msg("%s", err.text);
}

static void pair_close(struct pair *p)
{
    p->d->ops->free(p->d);
    tiny_engine_close(&p->t);
}

/* Ask until it knows the text. */
static struct draft_ask ask(struct pair *p, row_id row, const int32_t *ids, int32_t n,
                            int32_t n_max)
{
    struct draft_ask a = { .row = row, .ids = ids, .n_ids = n, .n_max = n_max };
    for (int i = 0; i < 4 && a.n == 0; i++)
        p->d->ops->draft(p->d, &a, 1);
    return a;
}

static void guesses_are(const struct draft_ask *a, const int32_t *want, int32_t n)
{
    assert_int_equal(a->n, n);
    assert_memory_equal(a->ids_out, want, (size_t)n * sizeof(*want));
    for (int32_t i = 0; i < n; i++)
        assert_in_range(a->sure[i], DRAFT_MODEL_SURE, DRAFT_MODEL_BEFORE - 1);
}

static void walk(const char *file, const struct sample_params *sample)
{
    static struct pair p;
    int32_t other[N_ALL];
    struct err err;
    pair_open(&p, file, sample, 0);
    assert_int_equal(p.d->ops->open(p.d, 0, &p.req, N_CTX, &err), ERR_OK);
    for (int32_t n = N_PROMPT, turn = 0; n + DRAFT_MAX < N_ALL; turn++) {
        uint32_t counter[4] = { (uint32_t)turn, 0, 0, 0 }, key[2] = { 7, 9 }, dice[4];
        philox4x32(counter, key, dice);
        int32_t n_max = (int32_t)(dice[0] % DRAFT_MAX) + 1;
        struct draft_ask a = ask(&p, 0, p.ids, n, n_max);
        guesses_are(&a, p.ids + n, n_max);
        if (dice[1] % 3 == 0) { /* the row went elsewhere for a while */
            memcpy(other, p.ids, sizeof(other));
            other[n] = (other[n] + 1) % 280;
            (void)ask(&p, 0, other, n + 1, 4);
        }
        n += 1 + (int32_t)(dice[2] % (uint32_t)(n_max + 1)); /* of the guesses so many came true */
    }
    p.d->ops->close(p.d, 0, p.ids, N_PROMPT);
    pair_close(&p);
}

static void guesses_are_what_the_model_says(void **state)
{
    struct sample_params sampled = tiny_greedy;
    sampled.temperature = 0.9f;
    sampled.seed = 11;
    sampled.frequency_penalty = 0.3f;
    for (size_t i = 0; i < ARRAY_LEN(guessers); i++) {
        walk(guessers[i], &tiny_greedy);
        walk(guessers[i], &sampled);
    }
    (void)state;
}

/* Two rows of different lengths in one call are guessed as each alone; a long text is read in pieces, one row at a time. */
static void rows_are_guessed_together(void **state)
{
    static struct pair p;
    struct err err;
    pair_open(&p, guessers[0], &tiny_greedy, 0);
    assert_int_equal(p.d->ops->open(p.d, 0, &p.req, N_CTX, &err), ERR_OK);
    assert_int_equal(p.d->ops->open(p.d, 1, &p.req, N_CTX, &err), ERR_OK);
    struct draft_ask asks[2] = {
        { .row = 0, .ids = p.ids, .n_ids = N_PROMPT, .n_max = 3 },
        { .row = 1, .ids = p.ids, .n_ids = N_PROMPT + 20, .n_max = 7 },
    };
    p.d->ops->draft(p.d, asks, 2);
    guesses_are(&asks[0], p.ids + N_PROMPT, 3);
    assert_int_equal(asks[1].n, 0); /* one text was read in this call */
    p.d->ops->draft(p.d, asks, 2);
    guesses_are(&asks[0], p.ids + N_PROMPT, 3);
    guesses_are(&asks[1], p.ids + N_PROMPT + 20, 7);
    p.d->ops->close(p.d, 0, p.ids, N_PROMPT);
    p.d->ops->close(p.d, 1, p.ids, N_PROMPT);
    assert_int_equal(p.d->ops->open(p.d, 0, &p.req, N_CTX, &err), ERR_OK);
    asks[0].n_ids = N_PROMPT + 20; /* what is kept of them is not read again */
    assert_true(p.d->ops->due_us(p.d, 0, N_PROMPT + 20) <= p.d->ops->due_us(p.d, 0, N_PROMPT + 99));
    p.d->ops->draft(p.d, asks, 1);
    guesses_are(&asks[0], p.ids + N_PROMPT + 20, 3);
    p.d->ops->close(p.d, 0, p.ids, N_PROMPT);
    pair_close(&p);
    (void)state;
}

/* What is over its context or its memory is not guessed, and does not disturb others. */
static void without_room_nothing_is_guessed(void **state)
{
    static struct pair p;
    int32_t ids[N_CTX + 32];
    struct err err;
    pair_open(&p, guessers[0], &tiny_greedy, 0);
    prompt_fill(ids, N_CTX + 32, 0, 2);
    assert_int_equal(p.d->ops->open(p.d, 0, &p.req, N_CTX + 32, &err), ERR_OK);
    assert_int_equal(ask(&p, 0, ids, N_CTX - 3, 4).n, 0);
    assert_int_equal(ask(&p, 0, ids, N_CTX + 20, 4).n, 0);
    assert_int_equal(p.d->ops->open(p.d, 1, &p.req, N_CTX, &err), ERR_OK);
    struct draft_ask a = ask(&p, 1, p.ids, N_PROMPT, 4);
    guesses_are(&a, p.ids + N_PROMPT, 4);
    p.d->ops->close(p.d, 0, p.ids, N_PROMPT);
    p.d->ops->close(p.d, 1, p.ids, N_PROMPT);
    pair_close(&p);
    (void)state;
}

/* It stops where its guesses have become unlikely, but for the first. */
static void what_is_unlikely_is_not_guessed_on(void **state)
{
    static struct pair p;
    struct err err;
    pair_open(&p, guessers[0], &tiny_greedy, 0);
    assert_int_equal(p.d->ops->open(p.d, 0, &p.req, N_CTX, &err), ERR_OK);
    struct draft_ask a = ask(&p, 0, p.ids, N_PROMPT, 8);
    assert_int_equal(a.n, 8);
    a.least = 0.999; /* random weights are never so sure */
    p.d->ops->draft(p.d, &a, 1);
    assert_int_equal(a.n, 1);
    p.d->ops->close(p.d, 0, p.ids, N_PROMPT);
    pair_close(&p);
    (void)state;
}

static void sureness_goes_by_the_probability(void **state)
{
    assert_int_equal(draft_model_sure(-3), DRAFT_MODEL_SURE);
    assert_int_equal(draft_model_sure(-1), DRAFT_MODEL_SURE + 1);
    assert_int_equal(draft_model_sure(-0.001f), DRAFT_MODEL_BEFORE - 1);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_are_what_the_model_says),
        cmocka_unit_test(rows_are_guessed_together),
        cmocka_unit_test(without_room_nothing_is_guessed),
        cmocka_unit_test(what_is_unlikely_is_not_guessed_on),
        cmocka_unit_test(sureness_goes_by_the_probability),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
