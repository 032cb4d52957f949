/* Rounds of guesses as transactions, on full, window and recurrent layers: whatever is accepted, the next logits are those of the ids that
 * stayed, taken one by one; what is no such thing is refused and changes nothing. */
#include "support/tiny_engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_IDS = 230, GUESSES = 4, V_MAX = 512 };

/* Full layers, windows of which the text is several times as long, and states. */
static const char *const files[] = { TINY "llama-yarn.gguf", TINY "gemma3.gguf",
                                     "tests/golden/families/qwen35.gguf" };

static struct world {
    struct tiny_engine lab; /* for its model */
    struct runner *r;
    int64_t v;
    int32_t ids[N_IDS];
    float want[N_IDS][V_MAX]; /* logits after each id, taken one by one */
} w;

static struct runner *open_runner(void)
{
    struct runner *r;
    struct err err = { 0 };
    struct runner_options o = { .model = w.lab.model,
                                .n_ctx = 256,
                                .max_seqs = 2,
                                .max_rows = 64,
                                .max_out = 16,
                                .max_tentative = GUESSES + 1,
                                .cache_type = DTYPE_F16 };
    if (runner_new(&o, &r, &err))
        fail_msg("%s", err.text);
    return r;
}

static int32_t open_seq(struct runner *r)
{
    int32_t seq;
    struct err err;
    assert_int_equal(runner_open(r, &seq, &err), ERR_OK);
    assert_int_equal(runner_reserve(r, seq, N_IDS, &err), ERR_OK);
    return seq;
}

static void world_open(const char *file)
{
    struct err err;
    tiny_engine_open(&w.lab, &(struct tiny_config){ .file = file, .n_ctx = 64, .max_rows = 1 });
    w.v = w.lab.model->n_vocab;
    assert_in_range(w.v, 1, V_MAX);
    w.r = open_runner();
    struct runner_item item = { .seq = open_seq(w.r), .n = 1, .n_out = 1 };
    for (int32_t i = 0; i < N_IDS; i++) {
        w.ids[i] = (i * 37 + i * i * 11) % 280;
        item.ids = &w.ids[i];
        assert_int_equal(runner_step(w.r, &item, 1, &err), ERR_OK);
        memcpy(w.want[i], item.logits, (size_t)w.v * sizeof(float));
    }
    runner_close(w.r, item.seq);
}

static void world_close(void)
{
    struct err err = { 0 };
    if (runner_check(w.r, &err))
        fail_msg("%s", err.text);
    runner_free(w.r);
    tiny_engine_close(&w.lab);
}

static void check(void)
{
    struct err err = { 0 };
    if (runner_check(w.r, &err))
        fail_msg("%s", err.text);
}

/* The id at `at` and then guesses, of which n_right are right; the logits of those are compared. */
static struct runner_item begin(int32_t seq, int32_t at, int32_t n_guesses, int32_t n_right)
{
    static int32_t ids[2][GUESSES + 2];
    struct err err = { 0 };
    for (int32_t i = 0; i <= n_guesses; i++)
        ids[seq][i] = (w.ids[at + i] + (i <= n_right ? 0 : 7)) % 280;
    struct runner_item item = { .seq = seq,
                                .ids = ids[seq],
                                .n = n_guesses + 1,
                                .n_out = n_guesses + 1,
                                .is_tentative = true };
    if (runner_step(w.r, &item, 1, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i <= n_right; i++)
        assert_memory_equal(item.logits + i * w.v, w.want[at + i], (size_t)w.v * sizeof(float));
    check();
    return item;
}

static void whatever_is_accepted_nothing_else_stays(void **state)
{
    struct err err;
    for (size_t f = 0; f < ARRAY_LEN(files); f++)
        for (int32_t n_guesses = 0; n_guesses <= GUESSES; n_guesses++) {
            world_open(files[f]);
            int32_t seq = open_seq(w.r), at = 0;
            for (int32_t turn = 0; at + GUESSES + 1 < N_IDS; turn++) {
                int32_t n_right = turn % (n_guesses + 1); /* none, some, all */
                (void)begin(seq, at, n_guesses, n_right);
                if (n_guesses > 0)
                    assert_int_equal(runner_resolve(w.r, seq, n_right, &err), ERR_OK);
                at += 1 + n_right;
                assert_int_equal(w.r->seqs[seq].len, at);
                assert_int_equal(w.r->seqs[seq].n_tentative, 0);
                check();
            }
            runner_close(w.r, seq);
            world_close();
        }
    (void)state;
}

static void what_is_no_round_is_refused(void **state)
{
    struct err err;
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        world_open(files[f]);
        int32_t seq = open_seq(w.r);
        assert_int_equal(runner_resolve(w.r, seq, 0, &err), ERR_STATE); /* none is open */
        (void)begin(seq, 0, 0, 0);                                      /* no guesses: it is over */
        assert_int_equal(runner_resolve(w.r, seq, 0, &err), ERR_STATE);
        (void)begin(seq, 1, 3, 2);
        assert_int_equal(runner_resolve(w.r, seq, 4, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "4 accepted of 3 guesses"));
        assert_int_equal(runner_resolve(w.r, seq, -1, &err), ERR_INVALID);
        struct runner_item nested = {
            .seq = seq, .ids = w.ids + 4, .n = 2, .n_out = 2, .is_tentative = true
        };
        assert_int_equal(runner_step(w.r, &nested, 1, &err), ERR_STATE);
        assert_non_null(strstr(err.text, "a round of 3 guesses is not resolved"));
        check(); /* none of it changed anything */
        assert_int_equal(runner_resolve(w.r, seq, 2, &err), ERR_OK);
        assert_int_equal(runner_resolve(w.r, seq, 2, &err), ERR_STATE);
        (void)begin(seq, 4, 2, 2);
        runner_rewind(w.r, seq); /* a way out of an open round, too */
        assert_int_equal(runner_reserve(w.r, seq, N_IDS, &err), ERR_OK);
        (void)begin(seq, 0, 1, 1);
        runner_close(w.r, seq);
        world_close();
    }
    (void)state;
}

static void many_tentative_rows_are_refused_where_states_are_kept(void **state)
{
    struct err err;
    world_open(files[2]);
    struct runner_item item = {
        .seq = open_seq(w.r), .ids = w.ids, .n = GUESSES + 2, .n_out = 1, .is_tentative = true
    };
    assert_int_equal(runner_step(w.r, &item, 1, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "6 tentative rows, at most 5"));
    runner_close(w.r, item.seq);
    world_close();
    (void)state;
}

/* A fault in one sequence's round poisons it and no other's; a fault in guesses that are not accepted is none. */
static void a_fault_poisons_its_own_sequence(void **state)
{
    struct err err = { 0 };
    world_open(files[0]);
    int32_t good = open_seq(w.r), bad = open_seq(w.r);
    (void)begin(good, 0, 3, 3);
    float *bias = (float *)(uintptr_t)w.lab.model->layers[0].bq, saved = bias[0];
    struct runner_item item = {
        .seq = bad, .ids = w.ids, .n = 3, .n_out = 3, .is_tentative = true
    };
    bias[0] = NAN;
    assert_int_equal(runner_step(w.r, &item, 1, &err), ERR_OK);
    bias[0] = saved;
    assert_true(item.has_failed);
    assert_int_equal(runner_resolve(w.r, bad, 1, &err), ERR_NUMERIC);
    assert_non_null(strstr(err.text, "non-finite values at position 0"));
    assert_int_equal(runner_resolve(w.r, bad, 0, &err), ERR_STATE);
    assert_int_equal(runner_step(w.r, &item, 1, &err), ERR_STATE);
    assert_int_equal(runner_resolve(w.r, good, 3, &err), ERR_OK);
    (void)begin(good, 4, 2, 1);
    assert_int_equal(runner_resolve(w.r, good, 1, &err), ERR_OK);
    runner_rewind(w.r, bad);
    assert_int_equal(runner_reserve(w.r, bad, N_IDS, &err), ERR_OK);
    (void)begin(bad, 0, 3, 3);
    assert_int_equal(runner_resolve(w.r, bad, 3, &err), ERR_OK);
    check();
    runner_close(w.r, good);
    runner_close(w.r, bad);
    world_close();
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_accepted_nothing_else_stays),
        cmocka_unit_test(what_is_no_round_is_refused),
        cmocka_unit_test(many_tentative_rows_are_refused_where_states_are_kept),
        cmocka_unit_test(a_fault_poisons_its_own_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
