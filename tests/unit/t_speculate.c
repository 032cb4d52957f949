/* Guesses: what prompt lookup finds, and which of them a step pays for. */
#include "engine/draft_past.h"
#include "engine/speculate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- lookup --- */

static struct draft_ask look_up(const int32_t *ids, int32_t n, int32_t n_max)
{
    struct drafter *d;
    struct err err;
    struct engine_request req = { 0 };
    struct draft_ask a = { .ids = ids, .n_ids = n, .n_max = n_max };
    assert_int_equal(draft_lookup_new(1, &d, &err), ERR_OK);
    assert_int_equal(d->ops->open(d, 0, &req, 256, &err), ERR_OK);
    d->ops->draft(d, &a, 1);
    d->ops->close(d, 0, ids, n);
    d->ops->free(d);
    return a;
}

static void what_followed_the_longest_ending_is_guessed(void **state)
{
    /* 7 8 9 is followed by 1 behind 5, by 2 behind 6 and by 3 at the last time. */
    static const int32_t ids[] = {
        5, 7, 8, 9, 1, 4, 6, 7, 8, 9, 2, 4, 0, 7, 8, 9, 3, 4, 6, 7, 8, 9
    };
    struct draft_ask a = look_up(ids, 22, 4);
    assert_int_equal(a.n, 4);
    assert_int_equal(a.ids_out[0], 2);
    assert_int_equal(a.ids_out[1], 4);
    assert_int_equal(a.ids_out[2], 0);
    assert_int_equal(a.sure[3], draft_lookup_sure(5)); /* 4 6 7 8 9 */
    a = look_up(ids + 1, 15, 3);                       /* of equal endings the latest */
    assert_int_equal(a.ids_out[0], 2);
    (void)state;
}

static void a_guess_goes_on_into_itself(void **state)
{
    static const int32_t ids[] = { 1, 2, 3, 1, 2, 3 };
    struct draft_ask a = look_up(ids, 6, 8);
    assert_int_equal(a.n, 8);
    for (int32_t i = 0; i < 8; i++)
        assert_int_equal(a.ids_out[i], i % 3 + 1);
    (void)state;
}

static void without_three_known_ids_nothing_is_guessed(void **state)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 9, 3, 4 };
    assert_int_equal(look_up(ids, 7, 8).n, 0);
    assert_int_equal(look_up(ids, 1, 8).n, 0);
    assert_int_equal(look_up(ids, 3, 8).n, 0);
    (void)state;
}

/* A text of lines that all begin alike, copied with one line changed: behind the change the copy goes on where it was. */
static void a_copy_goes_on_behind_a_change(void **state)
{
    int32_t ids[160], n = 0;
    struct drafter *d;
    struct err err;
    struct engine_request req = { 0 };
    for (int32_t line = 0; line < 16; line++)
        for (int32_t i = 0; i < 5; i++)
            ids[n++] = i < 4 ? i : 100 + line; /* 0 1 2 3 and one of its own */
    assert_int_equal(draft_lookup_new(1, &d, &err), ERR_OK);
    assert_int_equal(d->ops->open(d, 0, &req, 160, &err), ERR_OK);
    for (int32_t line = 0; line < 8; line++)
        for (int32_t i = 0; i < 5; i++) {
            struct draft_ask a = { .ids = ids, .n_ids = n, .n_max = 1 };
            d->ops->draft(d, &a, 1);
            int32_t want = i < 4 ? i : line == 3 ? 999 : 100 + line;
            if (line > 4 && i == 4) /* all lines end alike up to here: only the place tells */
                assert_int_equal(a.ids_out[0], want);
            ids[n++] = want;
        }
    d->ops->close(d, 0, ids, n);
    d->ops->free(d);
    (void)state;
}

/* --- recent answers --- */

#define N_TEXT 40

/* Text i: ids that occur in no other. */
static void text_fill(int32_t *ids, int32_t i)
{
    for (int32_t k = 0; k < N_TEXT; k++)
        ids[k] = i * N_TEXT + k;
}

static void answers_of_the_same_salt_are_guessed_from(void **state)
{
    static const uint8_t salts[2][ENGINE_SALT_BYTES] = { { 1 }, { 2 } };
    int32_t ids[N_TEXT];
    struct drafter *d;
    struct err err;
    struct engine_request req = { .n_prompt = 4 };
    assert_int_equal(draft_lookup_new(1, &d, &err), ERR_OK);
    text_fill(ids, 0);
    memcpy(req.cache_salt, salts[0], sizeof(req.cache_salt));
    for (int salt = 0; salt < 2; salt++) {
        assert_int_equal(d->ops->open(d, 0, &req, 256, &err), ERR_OK);
        struct draft_ask a = { .ids = ids, .n_ids = 6, .n_max = 8 };
        d->ops->draft(d, &a, 1);
        assert_int_equal(a.n, 0);
        d->ops->close(d, 0, ids, N_TEXT);
        assert_int_equal(d->ops->open(d, 0, &req, 256, &err), ERR_OK);
        d->ops->draft(d, &a, 1);
        assert_int_equal(a.n, 8);
        assert_memory_equal(a.ids_out, ids + 6, 8 * sizeof(*ids));
        a.n_ids = N_TEXT - 3; /* to its end and no further */
        d->ops->draft(d, &a, 1);
        assert_int_equal(a.n, 3);
        d->ops->close(d, 0, ids, 4); /* no answer: nothing to remember */
        memcpy(req.cache_salt, salts[1], sizeof(req.cache_salt));
    }
    d->ops->free(d);
    (void)state;
}

/* What an answer is expected to say is guessed from its first token on. */
static void a_prediction_is_guessed_from(void **state)
{
    int32_t ids[N_TEXT];
    struct drafter *d;
    struct err err;
    assert_int_equal(draft_lookup_new(1, &d, &err), ERR_OK);
    text_fill(ids, 0);
    struct engine_request req = {
        .prompt = ids, .n_prompt = 4, .predicted = ids + 4, .n_predicted = N_TEXT - 4
    };
    assert_int_equal(d->ops->open(d, 0, &req, 256, &err), ERR_OK);
    for (int32_t n = 4; n < N_TEXT; n += 7) {
        struct draft_ask a = { .ids = ids, .n_ids = n, .n_max = 5 };
        d->ops->draft(d, &a, 1);
        assert_int_equal(a.n, n + 5 <= N_TEXT ? 5 : N_TEXT - n);
        assert_memory_equal(a.ids_out, ids + n, (size_t)a.n * sizeof(*ids));
    }
    d->ops->close(d, 0, ids, 4);
    d->ops->free(d);
    (void)state;
}

static void the_oldest_answers_are_forgotten(void **state)
{
    static const uint8_t salt[ENGINE_SALT_BYTES] = { 0 };
    int32_t ids[N_TEXT], out[4], n_matched;
    const int32_t n_texts = 3 * PAST_IDS / N_TEXT;
    struct past p;
    struct err err;
    assert_int_equal(past_init(&p, &err), ERR_OK);
    for (int32_t i = 0; i < n_texts; i++) {
        text_fill(ids, i);
        past_add(&p, salt, ids, 4, ids + 4, N_TEXT - 4);
        for (int32_t back = 0; back < PAST_TEXTS && back <= i; back += 51) {
            text_fill(ids, i - back);
            assert_int_equal(past_find(&p, salt, ids, 20, out, 4, &n_matched), 4);
            assert_int_equal(n_matched, 20);
            assert_memory_equal(out, ids + 20, sizeof(out));
        }
        if (i < PAST_TEXTS)
            continue;
        text_fill(ids, i - PAST_TEXTS);
        assert_int_equal(past_find(&p, salt, ids, 20, out, 4, &n_matched), 0);
    }
    int32_t *big = calloc(2 * PAST_TEXT_IDS, sizeof(*big));
    for (int32_t i = 0; i < 2 * PAST_TEXT_IDS; i++)
        big[i] = 1 << 28 | i;
    for (int32_t i = 0; i < 2 * PAST_IDS / PAST_TEXT_IDS; i++)
        past_add(&p, salt, ids, 4, big,
                 2 * PAST_TEXT_IDS); /* its last part, until the ring is full of it */
    assert_int_equal(past_find(&p, salt, ids, 20, out, 4, &n_matched), 0);
    assert_int_equal(past_find(&p, salt, big, 20, out, 4, &n_matched), 0);
    assert_int_equal(past_find(&p, salt, big, 2 * PAST_TEXT_IDS - 2, out, 4, &n_matched), 2);
    assert_int_equal(n_matched, PAST_MATCH);
    free(big);
    past_release(&p);
    (void)state;
}

/* --- what a step costs --- */

static void costs_lie_on_the_line_between_measured_counts(void **state)
{
    struct step_cost c = { 0 };
    assert_true(step_cost_of(&c, 3) <= 0);
    step_cost_add(&c, 1, 1000);
    assert_true(step_cost_of(&c, 1) > 999 && step_cost_of(&c, 1) < 1001);
    assert_true(step_cost_of(&c, 5) > 1000); /* by the slope, until it is measured */
    step_cost_add(&c, 5, 1400);
    assert_true(step_cost_of(&c, 3) > 1199 && step_cost_of(&c, 3) < 1201);
    step_cost_add(&c, 4, 100); /* more rows are not cheaper */
    assert_true(step_cost_of(&c, 4) > 999);
    for (int32_t n = 1; n < 100; n++)
        assert_true(step_cost_of(&c, n + 1) >= step_cost_of(&c, n));
    struct step_cost wide = { 0 };
    step_cost_add(&wide, 8, 1420); /* a single row by the slope, backwards */
    assert_true(step_cost_of(&wide, 1) > 900 && step_cost_of(&wide, 1) < 1100);
    (void)state;
}

/* The first step of three rows met something else and took four times as long; afterwards one row at a time is measured, because more do
 * not seem to pay: it must be tried again some day. What was measured rightly stays. */
static void a_spoilt_time_is_forgotten(void **state)
{
    struct step_cost c = { 0 };
    step_cost_add(&c, 1, 5000);
    step_cost_add(&c, 3, 20000);
    assert_true(step_cost_of(&c, 2) > 10000);
    for (int i = 0; i < 200; i++)
        step_cost_add(&c, 1, 5000);
    assert_true(step_cost_of(&c, 2) < 5700 && step_cost_of(&c, 3) < 6200);
    for (int i = 0; i < 20; i++) { /* it is so dear indeed */
        step_cost_add(&c, 3, 20000);
        step_cost_add(&c, 1, 5000);
    }
    assert_true(step_cost_of(&c, 3) > 15000);
    (void)state;
}

/* --- what pays --- */

/* Eight guesses, each of which has that chance. */
static struct draft_ask ask_of(double chance)
{
    struct draft_ask a = { .n = 8, .n_max = 8 };
    for (int32_t i = 0; i < a.n; i++)
        a.chance[i] = chance;
    return a;
}

static int32_t plan_one(const struct step_cost *c, double chance)
{
    static const struct speculate_room room = { .n_rows = 1, .n_decode = 1, .n_max = 16 };
    struct draft_ask a = ask_of(chance);
    (void)speculate_plan(c, NULL, &room, &a, 1);
    return a.n;
}

static int32_t plan(const struct step_cost *c, double a, double b, int32_t *n_a, int32_t *n_b)
{
    static const struct speculate_room room = { .n_rows = 2, .n_decode = 2, .n_max = 16 };
    struct draft_ask asks[2] = { ask_of(a), ask_of(b) };
    (void)speculate_plan(c, NULL, &room, asks, 2);
    *n_a = asks[0].n;
    *n_b = asks[1].n;
    return *n_a + *n_b;
}

static void guesses_get_rows_by_their_chance(void **state)
{
    struct step_cost c = { 0 };
    int32_t a, b;
    step_cost_add(&c, 1, 1000);
    step_cost_add(&c, 8, 1400);
    step_cost_add(&c, 16, 2800);
    assert_int_equal(plan(&c, 0.02, 0.02, &a, &b), 0); /* a row costs 5 % of a step */
    assert_int_equal(a + b, 0);
    assert_true(plan(&c, 0.9, 0.02, &a, &b) > 0);
    assert_true(a >= 4 && b == 0);
    assert_true(plan(&c, 0.9, 0.6, &a, &b) > 0);
    assert_true(a > b && b > 0);
    assert_true(a + b + 2 <= 9); /* behind 8 rows each costs four times as much */
    struct step_cost steep = { 0 };
    for (int32_t n = 1; n <= STEP_COST_ROWS; n++)
        step_cost_add(&steep, n, 1000 * n);
    assert_int_equal(plan(&steep, 0.95, 0.95, &a, &b), 0);
    assert_int_equal(plan(&(struct step_cost){ 0 }, 1, 1, &a, &b), 0); /* nothing is known yet */
    (void)state;
}

/* A row whose guesses fail stops paying for them within 20 tokens, and pays again soon after they come true. */
static void a_row_that_loses_stops_and_comes_back(void **state)
{
    struct draft_rate all = { 0 }, row = { 0 };
    struct step_cost c = { 0 };
    int32_t n = 0;
    for (int32_t i = 0; i < 100; i++)
        draft_rate_add(&all, 2, i % 10 != 0); /* others do well */
    step_cost_add(&c, 1, 1000);
    step_cost_add(&c, 8, 1400);
    for (;; n++) {
        if (plan_one(&c, draft_rate_of(&row, &all, 2)) == 0)
            break;
        assert_in_range(n, 0, 19);
        draft_rate_add(&row, 2, false);
    }
    assert_true(n > 1);
    for (n = 0;; n++) {
        if (plan_one(&c, draft_rate_of(&row, &all, 2)) > 0)
            break;
        assert_in_range(n, 0, 9);
        draft_rate_add(&row, 2, true);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_the_longest_ending_is_guessed),
        cmocka_unit_test(a_guess_goes_on_into_itself),
        cmocka_unit_test(without_three_known_ids_nothing_is_guessed),
        cmocka_unit_test(a_copy_goes_on_behind_a_change),
        cmocka_unit_test(answers_of_the_same_salt_are_guessed_from),
        cmocka_unit_test(a_prediction_is_guessed_from),
        cmocka_unit_test(the_oldest_answers_are_forgotten),
        cmocka_unit_test(costs_lie_on_the_line_between_measured_counts),
        cmocka_unit_test(a_spoilt_time_is_forgotten),
        cmocka_unit_test(guesses_get_rows_by_their_chance),
        cmocka_unit_test(a_row_that_loses_stops_and_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
