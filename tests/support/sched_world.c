#include "support/sched_world.h"
#include "base/clock.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

struct outcome outcomes[ALL_MAX];
int n_ended;

static enum err_code world_load(void *arg, struct engine **out, struct err *err)
{
    struct world *w = arg;
    if (w->load_us)
        usleep((useconds_t)w->load_us);
    if (w->fail_load)
        return err_set(err, ERR_NOT_FOUND, "no such model");
    *out = w->engine = engine_script_new(&w->script);
    return ERR_OK;
}

void world_start(struct world *w, int32_t rows, int64_t step_us)
{
    if (!w->script.n_ctx)
        w->script = (struct engine_script_config){ .n_ctx = 2048, .max_step_rows = 64 };
    w->script.max_rows = rows;
    w->script.step_us = step_us;
    if (!w->config.max_waiting)
        w->config = (struct sched_config){ .max_waiting = 16, .max_stall_us = 250000 };
    w->config.n_events = w->config.n_events ? w->config.n_events : 64;
    w->config.load = world_load;
    w->config.load_arg = w;
    memset(outcomes, 0, sizeof(outcomes));
    n_ended = 0;
    assert_int_equal(sched_start(&w->config, &w->sched, NULL), ERR_OK);
}

void take_event(const struct sched_event *ev)
{
    if (ev->kind == SCHED_EVENT_TOKEN) {
        struct outcome *o = &outcomes[ev->id];
        assert_int_equal(o->n_finished, 0); /* nothing comes after the end */
        assert_in_range(o->n, 0, TEXT_MAX - 2);
        o->text[o->n++] = (char)ev->token.token.id;
    } else if (ev->kind == SCHED_EVENT_FINISHED) {
        struct outcome *o = &outcomes[ev->id];
        o->n_finished++;
        o->end = ev->finished;
        o->order = n_ended++;
    }
}

void next_event(struct world *w, struct sched_event *ev)
{
    assert_int_equal(sched_next_event(w->sched, ev, WAIT_US), ERR_OK);
    take_event(ev);
}

void wait_ready(struct world *w)
{
    struct sched_event ev;
    next_event(w, &ev);
    assert_int_equal(ev.kind, SCHED_EVENT_READY);
}

struct sched_request *make_full(req_id id, const char *text, int32_t max_tokens, const char *stop)
{
    int32_t ids[TEXT_MAX];
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)text[i];
    struct engine_bytes stops = { stop, stop ? strlen(stop) : 0 };
    struct engine_request r = { .prompt = ids,
                                .n_prompt = (int32_t)n,
                                .max_tokens = max_tokens,
                                .sample = { .n_logprobs = -1 },
                                .stops = &stops,
                                .n_stops = stop ? 1 : 0 };
    return sched_request_new(id, &r);
}

void submit(struct world *w, req_id id, const char *text)
{
    struct sched_request *r = make_full(id, text, -1, NULL);
    struct err err;
    enum err_code code = sched_submit(w->sched, &r, 1, &err);
    if (code != ERR_OK)
        print_message("submit: %s\n", err.text);
    assert_int_equal(code, ERR_OK);
}

/* Read events until n requests have finished. */
void wait_ended(struct world *w, int n)
{
    struct sched_event ev;
    for (int i = 0; n_ended < n && i < 100000; i++)
        next_event(w, &ev);
    assert_int_equal(n_ended, n);
}

void wait_tokens(struct world *w, req_id id, size_t n)
{
    struct sched_event ev;
    for (int i = 0; outcomes[id].n < n && i < 100000; i++)
        next_event(w, &ev);
    assert_true(outcomes[id].n >= n);
}

void assert_outcome(req_id id, enum finish finish, const char *text)
{
    assert_int_equal(outcomes[id].n_finished, 1);
    if (outcomes[id].end.finish != finish)
        print_message("request %d: %s\n", (int)id, outcomes[id].end.err.text);
    assert_int_equal(outcomes[id].end.finish, finish);
    if (text)
        assert_string_equal(outcomes[id].text, text);
}

/* After the end nothing is open, waiting or counted as such. */
void world_stop(struct world *w)
{
    struct sched_stats st;
    struct sched_event ev;
    sched_read_stats(w->sched, &st);
    assert_int_equal(st.accepted, st.finished);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(sched_next_event(w->sched, &ev, 0), ERR_NOT_FOUND);
    if (w->engine)
        assert_int_equal(engine_script_rows(w->engine), 0);
    sched_stop(w->sched);
    assert_int_equal(mem_bytes(MEM_CAT_REQUEST), 0);
    assert_int_equal(mem_bytes(MEM_CAT_SERVER), 0);
}
