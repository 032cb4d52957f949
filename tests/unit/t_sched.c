/* The scheduler over the scripted engine: order, cancels at every stage, failures, pauses, bounds. */
#include "base/clock.h"
#include "base/mem.h"
#include "support/sched_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void answers_come_in_order_of_arrival_with_one_row(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, 0);
    wait_ready(&w);
    for (req_id id = 0; id < 8; id++)
        submit(&w, id, id % 2 ? "!say odd" : "!say even");
    wait_ended(&w, 8);
    for (req_id id = 0; id < 8; id++) {
        assert_outcome(id, FINISH_END, id % 2 ? "odd" : "even");
        assert_int_equal(outcomes[id].order, id);
        assert_int_equal(outcomes[id].end.n_tokens, id % 2 ? 3 : 4);
        assert_int_equal(outcomes[id].end.text_safe, id % 2 ? 3 : 4);
        assert_int_equal(outcomes[id].end.n_prompt, id % 2 ? 8 : 9);
    }
    world_stop(&w);
}

static void many_rows_share_steps_and_keep_their_answers(void **state)
{
    struct world w = { .config = { .max_waiting = 64, .max_stall_us = 250000 } };
    world_start(&w, 8, 1000);
    wait_ready(&w);
    char text[32];
    for (req_id id = 0; id < 40; id++) {
        snprintf(text, sizeof(text), "!say answer %d", (int)id);
        submit(&w, id, text);
    }
    wait_ended(&w, 40);
    for (req_id id = 0; id < 40; id++) {
        snprintf(text, sizeof(text), "answer %d", (int)id);
        assert_outcome(id, FINISH_END, text);
    }
    struct sched_stats st;
    sched_read_stats(w.sched, &st);
    assert_true(st.steps < st.tokens / 2); /* shared, not one by one */
    world_stop(&w);
}

static void nothing_is_accepted_while_loading_and_after_a_drain(void **state)
{
    struct world w = { .load_us = 100000 };
    world_start(&w, 1, 0);
    struct sched_request *r = make_full(1, "!say x", -1, NULL);
    struct err err;
    assert_int_equal(sched_submit(w.sched, &r, 1, &err), ERR_STATE);
    wait_ready(&w);
    submit(&w, 2, "!say last");
    sched_drain(w.sched);
    assert_int_equal(sched_submit(w.sched, &r, 1, &err), ERR_STATE);
    wait_ended(&w, 1);
    assert_outcome(2, FINISH_END, "last");
    sched_request_free(r);
    world_stop(&w);
}

static void a_failed_load_is_told_and_nothing_is_accepted(void **state)
{
    struct world w = { .fail_load = 1 };
    world_start(&w, 1, 0);
    struct sched_event ev;
    next_event(&w, &ev);
    assert_int_equal(ev.kind, SCHED_EVENT_FAILED);
    assert_int_equal(ev.err.code, ERR_NOT_FOUND);
    assert_string_equal(ev.err.text, "no such model");
    struct sched_request *r = make_full(1, "x", -1, NULL);
    assert_int_equal(sched_submit(w.sched, &r, 1, NULL), ERR_STATE);
    sched_request_free(r);
    world_stop(&w);
}

static void the_waiting_line_is_bounded_and_takes_all_or_none(void **state)
{
    struct world w = { .config = { .max_waiting = 4, .max_stall_us = 250000 } };
    world_start(&w, 1, STEP_SLOW);
    wait_ready(&w);
    submit(&w, 0, "!forever");
    wait_tokens(&w, 0, 1);
    submit(&w, 1, "!say a");
    submit(&w, 2, "!say b");
    struct sched_request *three[3];
    for (int i = 0; i < 3; i++)
        three[i] = make_full((req_id)(3 + i), "!say c", -1, NULL);
    struct err err;
    assert_int_equal(sched_submit(w.sched, three, 3, &err), ERR_FULL);
    assert_int_equal(sched_submit(w.sched, three, 2, &err), ERR_OK);
    assert_int_equal(sched_submit(w.sched, three + 2, 1, &err), ERR_FULL);
    sched_request_free(three[2]);
    assert_int_equal(sched_cancel(w.sched, 0), ERR_OK);
    wait_ended(&w, 5);
    assert_outcome(4, FINISH_END, "c");
    world_stop(&w);
}

static void a_cancel_in_the_queue_never_starts_the_request(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, STEP_SLOW);
    wait_ready(&w);
    submit(&w, 0, "!forever");
    wait_tokens(&w, 0, 1);
    for (req_id id = 1; id <= 4; id++)
        submit(&w, id, "!say queued");
    assert_int_equal(sched_cancel(w.sched, 4), ERR_OK); /* last, first, middle */
    assert_int_equal(sched_cancel(w.sched, 1), ERR_OK);
    assert_int_equal(sched_cancel(w.sched, 2), ERR_OK);
    wait_ended(&w, 3);
    for (req_id id = 1; id <= 4; id++) {
        if (id == 3)
            continue;
        assert_outcome(id, FINISH_ERROR, "");
        assert_int_equal(outcomes[id].end.err.code, ERR_CANCELLED);
        assert_int_equal(outcomes[id].end.n_prompt, 0);
    }
    submit(&w, 5, "!say after");
    assert_int_equal(sched_cancel(w.sched, 0), ERR_OK);
    wait_ended(&w, 6);
    assert_outcome(3, FINISH_END, "queued");
    assert_outcome(5, FINISH_END, "after");
    assert_true(outcomes[3].order < outcomes[5].order);
    world_stop(&w);
}

static void a_cancel_in_the_prompt_ends_it_within_a_chunk(void **state)
{
    struct world w = { .script = { .n_ctx = 4096, .max_step_rows = 64, .prompt_us = 1000 } };
    char text[3001];
    memset(text, 'a', 3000);
    text[3000] = '\0';
    world_start(&w, 1, 0);
    wait_ready(&w);
    submit(&w, 0, text); /* 3 seconds of prompt */
    usleep(150000);
    int64_t t0 = clock_us();
    assert_int_equal(sched_cancel(w.sched, 0), ERR_OK);
    wait_ended(&w, 1);
    assert_outcome(0, FINISH_ERROR, "");
    assert_int_equal(outcomes[0].end.err.code, ERR_CANCELLED);
    assert_in_range(outcomes[0].end.n_prompt, 1, 2000);
    assert_in_range(clock_us() - t0, 0, 1500000);
    world_stop(&w);
}

static void a_cancel_while_decoding_frees_the_row_for_the_next(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, 1000);
    wait_ready(&w);
    submit(&w, 0, "!forever");
    submit(&w, 1, "!say next");
    wait_tokens(&w, 0, 5);
    assert_int_equal(sched_cancel(w.sched, 0), ERR_OK);
    assert_int_equal(sched_cancel(w.sched, 0), ERR_OK); /* twice, and an id that does not exist */
    assert_int_equal(sched_cancel(w.sched, 60), ERR_OK);
    wait_ended(&w, 2);
    assert_outcome(0, FINISH_ERROR, NULL);
    assert_outcome(1, FINISH_END, "next");
    world_stop(&w);
}

static void a_failing_row_ends_alone(void **state)
{
    struct world w = { 0 };
    world_start(&w, 4, 1000);
    wait_ready(&w);
    submit(&w, 0, "!count 50");
    submit(&w, 1, "!fail 3");
    submit(&w, 2, "!nan");
    submit(&w, 3, "!refuse");
    wait_ended(&w, 4);
    assert_outcome(0, FINISH_END, "01234567890123456789012345678901234567890123456789");
    assert_outcome(1, FINISH_ERROR, "xxx");
    assert_outcome(2, FINISH_ERROR, "");
    assert_int_equal(outcomes[2].end.err.code, ERR_NUMERIC);
    assert_outcome(3, FINISH_ERROR, "");
    assert_int_equal(outcomes[3].end.err.code, ERR_INVALID);
    world_stop(&w);
}

static void a_failing_step_ends_its_rows_and_the_scheduler_lives(void **state)
{
    struct world w = { 0 };
    world_start(&w, 4, 1000);
    wait_ready(&w);
    submit(&w, 0, "!forever");
    wait_tokens(&w, 0, 2);
    submit(&w, 1, "!break");
    wait_ended(&w, 2);
    assert_outcome(0, FINISH_ERROR, NULL);
    assert_outcome(1, FINISH_ERROR, "");
    assert_string_equal(outcomes[1].end.err.text, "the device is gone");
    submit(&w, 2, "!say alive");
    wait_ended(&w, 3);
    assert_outcome(2, FINISH_END, "alive");
    world_stop(&w);
}

/* The step of a lost device is of all rows that are due; a paused one and those that wait have their answers whole. */
static void a_lost_device_ends_the_step_s_rows_and_the_others_go_on(void **state)
{
    struct world w = { 0 };
    struct sched_stats stats;
    world_start(&w, 4, 1000);
    wait_ready(&w);
    submit(&w, 0, "!forever");
    wait_tokens(&w, 0, 2);
    submit(&w, 1, "!count 300");
    wait_tokens(&w, 1, 3);
    assert_int_equal(sched_pause(w.sched, 1, true), ERR_OK);
    submit(&w, 2, "!lose");
    wait_ended(&w, 2);
    assert_outcome(0, FINISH_ERROR, NULL);
    assert_outcome(2, FINISH_ERROR, "");
    assert_string_equal(outcomes[2].end.err.text, "the device is gone");
    assert_int_equal(sched_pause(w.sched, 1, false), ERR_OK);
    submit(&w, 3, "!say alive");
    wait_ended(&w, 4);
    assert_outcome(3, FINISH_END, "alive");
    assert_int_equal(outcomes[1].end.finish, FINISH_END);
    assert_int_equal(outcomes[1].n, 300);
    for (size_t i = 0; i < 300; i++)
        assert_int_equal(outcomes[1].text[i], '0' + (int)(i % 10));
    sched_read_stats(w.sched, &stats);
    assert_int_equal(stats.mended, 1);
    world_stop(&w);
}

static void a_device_that_cannot_be_mended_is_told(void **state)
{
    struct world w = { 0 };
    struct sched_event ev;
    world_start(&w, 4, 1000);
    wait_ready(&w);
    submit(&w, 0, "!ruin");
    do
        next_event(&w, &ev);
    while (ev.kind != SCHED_EVENT_FAILED);
    assert_outcome(0, FINISH_ERROR, "");
    assert_string_equal(outcomes[0].end.err.text, "the device is gone");
    assert_int_equal(ev.err.code, ERR_LOST);
    assert_string_equal(
        ev.err.text, "the device is gone; this process cannot use it again: nothing answers there");
    struct sched_request *r = make_full(1, "x", -1, NULL);
    assert_int_equal(sched_submit(w.sched, &r, 1, NULL), ERR_STATE);
    sched_request_free(r);
    world_stop(&w);
}

static void a_paused_row_waits_while_others_go_on(void **state)
{
    struct world w = { 0 };
    world_start(&w, 2, 1000);
    wait_ready(&w);
    submit(&w, 0, "!count 1000");
    wait_tokens(&w, 0, 3);
    assert_int_equal(sched_pause(w.sched, 0, true), ERR_OK);
    submit(&w, 1, "!count 30");
    wait_ended(&w, 1);
    assert_outcome(1, FINISH_END, NULL);
    size_t n = outcomes[0].n; /* the pause and the answer of request 1 are behind us */
    struct sched_event ev;
    assert_int_equal(sched_next_event(w.sched, &ev, 50000), ERR_TIMEOUT);
    assert_in_range(n, 3, 900);
    assert_int_equal(sched_pause(w.sched, 0, false), ERR_OK);
    wait_tokens(&w, 0, n + 10);
    assert_int_equal(sched_pause(w.sched, 0, true), ERR_OK);
    assert_int_equal(sched_cancel(w.sched, 0), ERR_OK); /* a paused row can be cancelled */
    wait_ended(&w, 2);
    world_stop(&w);
}

static void a_slow_receiver_slows_the_engine_and_loses_nothing(void **state)
{
    struct world w = { .config = { .max_waiting = 16, .max_stall_us = 250000, .n_events = 2 } };
    world_start(&w, 4, 0);
    wait_ready(&w);
    for (req_id id = 0; id < 4; id++)
        submit(&w, id, "!count 300");
    usleep(50000);
    struct sched_stats st;
    sched_read_stats(w.sched, &st);
    assert_in_range(st.tokens, 0, 100);
    wait_ended(&w, 4);
    for (req_id id = 0; id < 4; id++)
        assert_int_equal(outcomes[id].n, 300);
    world_stop(&w);
}

static void a_long_prompt_is_cut_to_the_stall_bound(void **state)
{
    struct world w = { .script = { .n_ctx = 4096, .max_step_rows = 512, .prompt_us = 200 },
                       .config = { .max_waiting = 16, .max_stall_us = 20000 } };
    char text[3001];
    memset(text, 'a', 3000);
    text[3000] = '\0';
    world_start(&w, 2, 100);
    wait_ready(&w);
    submit(&w, 0, "!count 400");
    wait_tokens(&w, 0, 3);
    submit(&w, 1, text); /* 0.6 s of prompt in one piece */
    int64_t last = clock_us(), worst = 0;
    struct sched_event ev;
    while (n_ended < 1) {
        next_event(&w, &ev);
        int64_t now = clock_us();
        if (ev.kind == SCHED_EVENT_TOKEN && ev.id == 0) {
            worst = now - last > worst ? now - last : worst;
            last = now;
        }
    }
    assert_in_range(worst, 1, 300000); /* 20 ms by the script; the rest is a busy machine's */
    wait_ended(&w, 2);
    world_stop(&w);
}

static void stop_strings_and_limits_reach_the_engine(void **state)
{
    struct world w = { 0 };
    world_start(&w, 2, 0);
    wait_ready(&w);
    struct sched_request *r[2] = { make_full(0, "!count 40", -1, "567"),
                                   make_full(1, "!count 40", 7, NULL) };
    assert_int_equal(sched_submit(w.sched, r, 2, NULL), ERR_OK);
    wait_ended(&w, 2);
    assert_outcome(0, FINISH_STOP_STRING, "01234567");
    assert_int_equal(outcomes[0].end.text_safe, 5);
    assert_outcome(1, FINISH_LENGTH, "0123456");
    world_stop(&w);
}

static void an_answer_that_has_begun_tells_only_its_rest(void **state)
{
    struct world w = { 0 };
    struct err err;
    int32_t ids[] = { '!', 's', 'a', 'y', ' ', 'h', 'e', 'l', 'l', 'o' }, begun[] = { 'h', 'e' };
    struct engine_request e = { .prompt = ids,
                                .n_prompt = 10,
                                .max_tokens = -1,
                                .sample = { .n_logprobs = -1 },
                                .begun = begun,
                                .n_begun = 2 };
    world_start(&w, 2, 0);
    wait_ready(&w);
    struct sched_request *r = sched_request_new(1, &e);
    begun[0] = ids[0] = 0; /* it has its own */
    assert_int_equal(sched_submit(w.sched, &r, 1, &err), ERR_OK);
    wait_ended(&w, 1);
    assert_outcome(1, FINISH_END, "llo");
    assert_int_equal(outcomes[1].end.n_tokens, 5);
    assert_int_equal(outcomes[1].end.n_prompt, 10);
    world_stop(&w);
}

static void stopping_ends_what_runs_and_waits(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, 1000);
    wait_ready(&w);
    for (req_id id = 0; id < 5; id++)
        submit(&w, id, "!forever");
    wait_tokens(&w, 0, 3);
    sched_stop(w.sched);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), 0);
    assert_int_equal(mem_bytes(MEM_CAT_SERVER), 0);
}

/* 2,000 steps of chance over submit, cancel, pause and resume: each request ends exactly once and nothing is left. */
static void random_commands_leave_nothing_behind(void **state)
{
    static const char *const say[] = { "!count 20", "!forever", "!fail 4", "!say ab", "!refuse" };
    struct world w = { .config = { .max_waiting = 8, .max_stall_us = 250000 } };
    unsigned seed = (unsigned)time(NULL), x = seed;
    print_message("seed %u\n", seed);
    world_start(&w, 3, 0);
    wait_ready(&w);
    int n = 0, live = 0;
    for (int i = 0; i < 2000; i++) {
        x = x * 1664525u + 1013904223u;
        req_id id = x >> 8 & (ALL_MAX - 1);
        struct sched_event ev;
        if (sched_next_event(w.sched, &ev, 0) == ERR_OK && ev.kind == SCHED_EVENT_FINISHED)
            live--;
        if (x % 8 < 4 && live < 8) {
            struct sched_request *r = make_full(1000 + (req_id)n, say[(x >> 16) % 5], -1, NULL);
            if (sched_submit(w.sched, &r, 1, NULL) == ERR_OK) {
                n++;
                live++;
            } else {
                sched_request_free(r);
            }
        } else if (x % 8 < 6) {
            assert_int_equal(sched_cancel(w.sched, 1000 + (req_id)n - id % 12), ERR_OK);
        } else {
            assert_int_equal(sched_pause(w.sched, 1000 + (req_id)n - id % 12, x % 2), ERR_OK);
        }
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(sched_cancel(w.sched, 1000 + (req_id)i), ERR_OK);
    int64_t t0 = clock_us();
    while (live > 0 && clock_us() - t0 < WAIT_US) {
        struct sched_event ev;
        if (sched_next_event(w.sched, &ev, 100000) == ERR_OK && ev.kind == SCHED_EVENT_FINISHED)
            live--;
    }
    assert_int_equal(live, 0);
    world_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_come_in_order_of_arrival_with_one_row),
        cmocka_unit_test(many_rows_share_steps_and_keep_their_answers),
        cmocka_unit_test(nothing_is_accepted_while_loading_and_after_a_drain),
        cmocka_unit_test(a_failed_load_is_told_and_nothing_is_accepted),
        cmocka_unit_test(the_waiting_line_is_bounded_and_takes_all_or_none),
        cmocka_unit_test(a_cancel_in_the_queue_never_starts_the_request),
        cmocka_unit_test(a_cancel_in_the_prompt_ends_it_within_a_chunk),
        cmocka_unit_test(a_cancel_while_decoding_frees_the_row_for_the_next),
        cmocka_unit_test(a_failing_row_ends_alone),
        cmocka_unit_test(a_failing_step_ends_its_rows_and_the_scheduler_lives),
        cmocka_unit_test(a_lost_device_ends_the_step_s_rows_and_the_others_go_on),
        cmocka_unit_test(a_device_that_cannot_be_mended_is_told),
        cmocka_unit_test(a_paused_row_waits_while_others_go_on),
        cmocka_unit_test(a_slow_receiver_slows_the_engine_and_loses_nothing),
        cmocka_unit_test(a_long_prompt_is_cut_to_the_stall_bound),
        cmocka_unit_test(stop_strings_and_limits_reach_the_engine),
        cmocka_unit_test(an_answer_that_has_begun_tells_only_its_rest),
        cmocka_unit_test(stopping_ends_what_runs_and_waits),
        cmocka_unit_test(random_commands_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
