/* Who goes first, and who gives way: fair shares, priorities, background work, deadlines, memory, shared prompts. */
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

struct wish { /* what a request asks for beside its text */
    uint64_t key;
    int32_t priority;
    bool is_background;
    int64_t deadline_us; /* from now */
};

static void submit_wish(struct world *w, req_id id, const char *text, struct wish wish)
{
    struct sched_request *r = make_full(id, text, -1, NULL);
    r->key = wish.key;
    r->priority = wish.priority;
    r->is_background = wish.is_background;
    r->deadline_us = wish.deadline_us ? clock_us() + wish.deadline_us : 0;
    assert_int_equal(sched_submit(w->sched, &r, 1, NULL), ERR_OK);
}

static struct sched_stats stats(const struct world *w)
{
    struct sched_stats st;
    sched_read_stats(w->sched, &st);
    return st;
}

/* One key has ten requests in the line when another one comes with two: those are not the eleventh and twelfth. */
static void a_key_with_many_requests_does_not_starve_another(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, STEP_SLOW / 4);
    wait_ready(&w);
    for (req_id id = 0; id < 10; id++)
        submit_wish(&w, id, "!count 10", (struct wish){ .key = 1 });
    wait_tokens(&w, 0, 1);
    submit_wish(&w, 10, "!count 10", (struct wish){ .key = 2 });
    submit_wish(&w, 11, "!count 10", (struct wish){ .key = 2 });
    wait_ended(&w, 12);
    assert_int_equal(outcomes[0].order, 0);
    assert_int_equal(outcomes[10].order, 1);
    assert_in_range(outcomes[11].order, 2, 3); /* both have had as much by then */
    for (req_id id = 1; id < 9; id++)
        assert_true(outcomes[id].order < outcomes[id + 1].order);
    world_stop(&w);
}

/* A key that has been away is not owed the time of its absence. */
static void a_key_that_comes_late_starts_level(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, 1000);
    wait_ready(&w);
    for (req_id id = 0; id < 4; id++)
        submit_wish(&w, id, "!count 50", (struct wish){ .key = 1 });
    wait_ended(&w, 3);
    for (req_id id = 4; id < 8; id++)
        submit_wish(&w, id, "!count 50", (struct wish){ .key = 1 });
    for (req_id id = 8; id < 12; id++)
        submit_wish(&w, id, "!count 50", (struct wish){ .key = 2 });
    wait_ended(&w, 12);
    int last_old = 0, last_new = 0;
    for (req_id id = 4; id < 8; id++)
        last_old = outcomes[id].order > last_old ? outcomes[id].order : last_old;
    for (req_id id = 8; id < 12; id++)
        last_new = outcomes[id].order > last_new ? outcomes[id].order : last_new;
    assert_true(last_old >= 10 && last_new >= 9); /* they alternate: neither is done first */
    world_stop(&w);
}

static void a_lower_priority_number_goes_first(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, STEP_SLOW / 4);
    wait_ready(&w);
    submit(&w, 0, "!count 10");
    wait_tokens(&w, 0, 1);
    submit_wish(&w, 1, "!say c", (struct wish){ .priority = 5 });
    submit_wish(&w, 2, "!say b", (struct wish){ .priority = 0 });
    submit_wish(&w, 3, "!say a", (struct wish){ .priority = -5 });
    wait_ended(&w, 4);
    assert_int_equal(outcomes[3].order, 1);
    assert_int_equal(outcomes[2].order, 2);
    assert_int_equal(outcomes[1].order, 3);
    world_stop(&w);
}

static void background_work_waits_for_an_idle_engine_and_rests_when_it_is_not(void **state)
{
    struct world w = { 0 };
    world_start(&w, 4, 1000);
    wait_ready(&w);
    submit(&w, 0, "!count 100");
    wait_tokens(&w, 0, 1);
    submit_wish(&w, 1, "!count 300", (struct wish){ .is_background = true });
    wait_ended(&w, 1);
    assert_int_equal(outcomes[0].order, 0); /* places were free, the engine was not */
    assert_int_equal(outcomes[1].n, 0);
    wait_tokens(&w, 1, 5);
    submit(&w, 2, "!count 100");
    wait_tokens(&w, 2, 2);
    size_t before = outcomes[1].n;
    wait_ended(&w, 2);
    assert_int_equal(outcomes[2].order, 1);
    assert_in_range(outcomes[1].n, before, before + 2);
    wait_ended(&w, 3);
    assert_outcome(1, FINISH_END, NULL);
    assert_int_equal(outcomes[1].n, 300);
    world_stop(&w);
}

static void deadlines_end_requests_wherever_they_are(void **state)
{
    struct world w = { 0 };
    world_start(&w, 1, 2000);
    wait_ready(&w);
    submit_wish(&w, 0, "!forever", (struct wish){ .deadline_us = 150000 });
    submit_wish(&w, 1, "!say queued", (struct wish){ .deadline_us = 50000 });
    submit(&w, 2, "!say after");
    wait_ended(&w, 3);
    assert_outcome(1, FINISH_ERROR, "");
    assert_int_equal(outcomes[1].end.err.code, ERR_TIMEOUT);
    assert_outcome(0, FINISH_ERROR, NULL);
    assert_int_equal(outcomes[0].end.err.code, ERR_TIMEOUT);
    assert_true(outcomes[0].n > 0);
    assert_outcome(2, FINISH_END, "after");
    /* nothing runs: the engine thread sleeps until the deadline */
    submit_wish(&w, 3, "!forever", (struct wish){ .deadline_us = 150000 });
    wait_tokens(&w, 3, 1);
    assert_int_equal(sched_pause(w.sched, 3, true), ERR_OK);
    wait_ended(&w, 4);
    assert_int_equal(outcomes[3].end.err.code, ERR_TIMEOUT);
    assert_int_equal(stats(&w).expired, 3);
    world_stop(&w);
}

/* Six rows that want 5 pages each over a pool of 12: all answers are whole, nobody is asked twice within 64 tokens. */
static void rows_give_up_memory_and_lose_nothing(void **state)
{
    struct world w = { .script = { .n_ctx = 768, .max_step_rows = 64, .n_pages = 12 } };
    world_start(&w, 6, 100);
    wait_ready(&w);
    for (req_id id = 0; id < 6; id++)
        submit_wish(&w, id, "!count 300", (struct wish){ .key = id % 3 });
    wait_ended(&w, 6);
    int32_t n_preempted = 0;
    for (req_id id = 0; id < 6; id++) {
        assert_outcome(id, FINISH_END, NULL);
        assert_int_equal(outcomes[id].n, 300);
        for (int i = 0; i < 300; i++)
            assert_int_equal(outcomes[id].text[i], '0' + i % 10);
        assert_in_range(outcomes[id].end.n_preempted, 0, 1 + 300 / 64);
        assert_int_equal(outcomes[id].end.n_prompt, 10);
        n_preempted += outcomes[id].end.n_preempted;
    }
    struct sched_stats st = stats(&w);
    assert_true(n_preempted > 0);
    assert_int_equal(st.preempted, n_preempted);
    assert_true(st.recomputed_tokens > 0);
    assert_int_equal(st.prompt_tokens, 6 * 10);
    assert_int_equal(st.cache.n_groups, 1);
    assert_int_equal(st.cache.groups[0].n_promised, 0);
    world_stop(&w);
}

/* Rows that gave up their memory ask the disk for what they had, while others go on, and compute none of it again. */
static void rows_that_gave_up_memory_ask_the_disk(void **state)
{
    struct world w = { .script = {
                           .n_ctx = 768, .max_step_rows = 64, .n_pages = 12, .fetch_us = 3000 } };
    world_start(&w, 6, 100);
    wait_ready(&w);
    for (req_id id = 0; id < 6; id++)
        submit_wish(&w, id, "!count 300", (struct wish){ .key = id % 3 });
    wait_ended(&w, 6);
    int32_t n_preempted = 0;
    for (req_id id = 0; id < 6; id++) {
        assert_outcome(id, FINISH_END, NULL);
        for (int i = 0; i < 300; i++)
            assert_int_equal(outcomes[id].text[i], '0' + i % 10);
        n_preempted += outcomes[id].end.n_preempted;
    }
    struct sched_stats st = stats(&w);
    assert_true(n_preempted > 0);
    assert_int_equal(engine_script_fetches(w.engine), n_preempted);
    assert_int_equal(st.disk_waits, n_preempted);
    assert_int_equal(st.recomputed_tokens, 0);
    world_stop(&w);
}

/* All places are held by rows that wait for the disk when a more entitled request arrives: it has no place to start at, and must not keep
 * those from going on. They did not: nobody ran, and nothing came any more. */
static void who_has_no_place_does_not_stop_those_that_have(void **state)
{
    struct world w = {
        .script = { .n_ctx = 256, .max_step_rows = 64, .fetch_us = 20000, .fetches_first = 1 }
    };
    world_start(&w, 2, 100);
    wait_ready(&w);
    for (req_id id = 0; id < 2; id++)
        submit_wish(&w, id, "!count 20", (struct wish){ .priority = 1 });
    while (engine_script_rows(w.engine) < 2)
        usleep(1000);
    for (req_id id = 2; id < 4; id++)
        submit_wish(&w, id, "!count 20", (struct wish){ .priority = 0 });
    wait_ended(&w, 4);
    for (req_id id = 0; id < 4; id++)
        assert_outcome(id, FINISH_END, NULL);
    assert_true(outcomes[0].order < 2 || outcomes[1].order < 2);
    world_stop(&w);
}

/* The least entitled row gives way, though it is not the newest of all. */
static void the_least_entitled_row_gives_way(void **state)
{
    struct world w = { .script = { .n_ctx = 384, .max_step_rows = 64, .n_pages = 6 } };
    world_start(&w, 3, 500);
    wait_ready(&w);
    submit_wish(&w, 0, "!count 200", (struct wish){ .priority = 1 });
    wait_tokens(&w, 0, 1);
    submit_wish(&w, 1, "!count 200", (struct wish){ .priority = 0 });
    submit_wish(&w, 2, "!count 200", (struct wish){ .priority = 0 });
    wait_ended(&w, 3);
    assert_true(outcomes[0].end.n_preempted > 0);
    assert_int_equal(outcomes[0].order, 2);
    assert_int_equal(outcomes[1].end.n_preempted, 0);
    for (req_id id = 0; id < 3; id++)
        assert_int_equal(outcomes[id].n, 200);
    world_stop(&w);
}

/* A paused row's memory is there for those that go on; it takes its ids again when its reader is back. */
static void a_slow_readers_memory_is_lent(void **state)
{
    struct world w = { .script = { .n_ctx = 256, .max_step_rows = 64, .n_pages = 4 } };
    world_start(&w, 2, 200);
    wait_ready(&w);
    submit(&w, 0, "!count 150");
    wait_tokens(&w, 0, 70);
    assert_int_equal(sched_pause(w.sched, 0, true), ERR_OK);
    submit(&w, 1, "!count 200");
    wait_ended(&w, 1);
    assert_outcome(1, FINISH_END, NULL);
    assert_int_equal(sched_pause(w.sched, 0, false), ERR_OK);
    wait_ended(&w, 2);
    assert_int_equal(outcomes[0].n, 150);
    assert_in_range(outcomes[0].end.n_preempted, 1, 2);
    world_stop(&w);
}

/* Background work that has just got its memory back may not be asked for it, and an answer waits for it: then it must not rest. */
static void background_work_does_not_rest_on_memory_that_is_waited_for(void **state)
{
    struct world w = { .script = { .n_ctx = 320, .max_step_rows = 64, .n_pages = 5 } };
    world_start(&w, 3, 500);
    wait_ready(&w);
    submit_wish(&w, 0, "!count 250", (struct wish){ .is_background = true });
    wait_tokens(&w, 0, 80);
    submit(&w, 1, "!count 200");
    wait_ended(&w, 1);
    assert_outcome(1, FINISH_END, NULL);
    wait_tokens(&w, 0, outcomes[0].n + 3);
    submit(&w, 2, "!count 200");
    wait_ended(&w, 3);
    assert_int_equal(outcomes[2].n, 200);
    assert_int_equal(outcomes[2].order, 1);
    assert_int_equal(outcomes[0].n, 250);
    assert_true(outcomes[0].end.n_preempted >= 2 && outcomes[2].end.n_preempted >= 1);
    world_stop(&w);
}

static void what_cannot_fit_alone_is_refused_with_numbers(void **state)
{
    struct world w = { .script = { .n_ctx = 2048, .max_step_rows = 64, .n_pages = 2 } };
    char text[201];
    memset(text, 'a', 200);
    text[200] = '\0';
    world_start(&w, 2, 0);
    wait_ready(&w);
    submit(&w, 0, text);
    submit(&w, 1, "!say fits");
    wait_ended(&w, 2);
    assert_outcome(0, FINISH_ERROR, "");
    assert_int_equal(outcomes[0].end.err.code, ERR_FULL);
    assert_non_null(strstr(outcomes[0].end.err.text, "2 of 2"));
    assert_outcome(1, FINISH_END, "fits");
    world_stop(&w);
}

/* n choices of one prompt of n_prompt tokens that ends with the command; ids from 0 on, the first is the leader. */
static void submit_choices(struct world *w, int n, int n_prompt, const char *command)
{
    struct sched_request *r[8];
    static char text[TEXT_MAX];
    memset(text, 'a', (size_t)n_prompt);
    strcpy(text + n_prompt - (int)strlen(command), command);
    for (req_id id = 0; id < (req_id)n; id++) {
        r[id] = make_full(id, text, -1, NULL);
        r[id]->leader = 0;
    }
    assert_int_equal(sched_submit(w->sched, r, n, NULL), ERR_OK);
}

/* Four choices of one prompt of 1,000 tokens: it is taken once, and its last token by each. */
static void a_prompt_of_several_choices_is_computed_once(void **state)
{
    struct world w = { .script = { .n_ctx = 2048, .max_step_rows = 64 } };
    world_start(&w, 4, 0);
    wait_ready(&w);
    submit_choices(&w, 4, 1000, "!count 20");
    wait_ended(&w, 4);
    for (req_id id = 0; id < 4; id++) {
        assert_outcome(id, FINISH_END, "01234567890123456789");
        assert_int_equal(outcomes[id].end.n_prompt, 1000);
        assert_int_equal(outcomes[id].end.n_shared, id == 0 ? 0 : 999);
    }
    assert_int_equal(stats(&w).prompt_tokens, 1000 + 3);
    assert_int_equal(stats(&w).shared_tokens, 3 * 999);
    world_stop(&w);
}

/* The one that computes the prompt is cancelled in the middle of it: the next one takes over. */
static void choices_outlive_the_one_that_computes_their_prompt(void **state)
{
    struct world w = { .script = { .n_ctx = 4096, .max_step_rows = 64, .prompt_us = 300 } };
    world_start(&w, 4, 0);
    wait_ready(&w);
    submit_choices(&w, 3, 2000, "!count 9");
    usleep(100000);
    assert_int_equal(sched_cancel(w.sched, 0), ERR_OK);
    wait_ended(&w, 3);
    assert_outcome(0, FINISH_ERROR, "");
    assert_outcome(1, FINISH_END, "012345678");
    assert_outcome(2, FINISH_END, "012345678");
    assert_int_equal(outcomes[2].end.n_shared, 1999);
    world_stop(&w);
}

/* Chance over everything at once, with little memory: each request ends exactly once, whole answers are right, nothing is left. */
static void random_wishes_leave_nothing_behind(void **state)
{
    struct world w = { .script = { .n_ctx = 576, .max_step_rows = 64, .n_pages = 9 },
                       .config = { .max_waiting = 16, .max_stall_us = 250000 } };
    unsigned seed = (unsigned)time(NULL), x = seed;
    print_message("seed %u\n", seed);
    world_start(&w, 5, 0);
    wait_ready(&w);
    struct sched_event ev;
    req_id n = 0;
    for (int i = 0; i < 4000; i++) {
        x = x * 1664525u + 1013904223u;
        if (n > 0 && x >> 28 == 0)
            assert_int_equal(sched_cancel(w.sched, (x >> 8) % n), ERR_OK);
        else if (n > 0 && x >> 28 < 4)
            assert_int_equal(sched_pause(w.sched, (x >> 8) % n, x >> 20 & 1), ERR_OK);
        else if (n < ALL_MAX && x >> 28 < 6 && stats(&w).waiting < 12)
            submit_wish(&w, n++, x >> 9 & 1 ? "!count 250" : "!count 90",
                        (struct wish){ .key = x >> 10 & 3,
                                       .priority = (int32_t)(x >> 12 & 1),
                                       .is_background = (x >> 13 & 7) == 0,
                                       .deadline_us = (x >> 16 & 15) == 0 ? 20000 : 0 });
        else if (sched_next_event(w.sched, &ev, 100) == ERR_OK)
            take_event(&ev);
    }
    for (req_id id = 0; id < n; id++)
        assert_int_equal(sched_pause(w.sched, id, false), ERR_OK);
    wait_ended(&w, (int)n);
    for (req_id id = 0; id < n; id++)
        for (size_t i = 0; i < outcomes[id].n; i++)
            assert_int_equal(outcomes[id].text[i], '0' + (int)i % 10);
    for (req_id id = 0; id < n; id++)
        if (outcomes[id].end.finish == FINISH_END)
            assert_true(outcomes[id].n == 250 || outcomes[id].n == 90);
    assert_int_equal(engine_script_pages(w.engine), 0);
    world_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_with_many_requests_does_not_starve_another),
        cmocka_unit_test(a_key_that_comes_late_starts_level),
        cmocka_unit_test(a_lower_priority_number_goes_first),
        cmocka_unit_test(background_work_waits_for_an_idle_engine_and_rests_when_it_is_not),
        cmocka_unit_test(deadlines_end_requests_wherever_they_are),
        cmocka_unit_test(rows_give_up_memory_and_lose_nothing),
        cmocka_unit_test(rows_that_gave_up_memory_ask_the_disk),
        cmocka_unit_test(who_has_no_place_does_not_stop_those_that_have),
        cmocka_unit_test(the_least_entitled_row_gives_way),
        cmocka_unit_test(a_slow_readers_memory_is_lent),
        cmocka_unit_test(background_work_does_not_rest_on_memory_that_is_waited_for),
        cmocka_unit_test(what_cannot_fit_alone_is_refused_with_numbers),
        cmocka_unit_test(a_prompt_of_several_choices_is_computed_once),
        cmocka_unit_test(choices_outlive_the_one_that_computes_their_prompt),
        cmocka_unit_test(random_wishes_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("sched_rank", tests, NULL, NULL);
}
