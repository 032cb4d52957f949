/* call_answer.c - the answers of a call on their way to its client: what stands before them, tokens, ends, and a client that reads
 * too slowly. */
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "server/server_int.h"

/* --- back-pressure --- */

static void call_pause_if_full(struct call *call)
{
    if (!call->conn || call->is_detached || http_unsent(call->conn) < LIMIT_UNSENT_HIGH)
        return;
    if (call->generation) { /* it goes on, and this reader takes more of it when it can */
        call->is_paused = true;
        return;
    }
    /* Sent again with each token that is still under way: a command that found no room is made up for. */
    call->is_paused = true;
    for (int32_t i = 0; i < call->n_legs; i++)
        if (call->legs[i].is_live)
            (void)!sched_pause(call->server->sched, call->legs[i].id, true);
}

void call_resume_if_empty(struct call *call)
{
    if (!call->is_paused || http_unsent(call->conn) > LIMIT_UNSENT_LOW)
        return;
    call->is_paused = false;
    for (int32_t i = 0; i < call->n_legs && !call->generation; i++)
        if (call->legs[i].is_live &&
            sched_pause(call->server->sched, call->legs[i].id, false) != ERR_OK)
            call->is_paused = call->server->has_due = true;
}

void call_drained(void *arg, struct http_conn *c)
{
    struct call *call = http_data(c);
    if (!call)
        return;
    call_resume_if_empty(call);
    if (call->generation)
        call_resume_pump(call);
    if (call->response)
        call_response_resume(call);
    else if (call->generation)
        call_free_if_over(call);
}

bool call_is_wanted(const struct call *call)
{
    bool is_over = call->response && response_is_over(call->response);
    return (call->conn || call->is_detached) && !is_over;
}

/* --- the stream --- */

/* What was written of the stream goes out. */
static void call_send(struct call *call)
{
    const struct buf *out = &call->server->out;
    if (out->len > 0)
        call->sent_us = clock_us();
    http_stream_add(call->conn, out->data, out->len);
}

/* Something for a client that has had nothing for long. */
static void call_nudge(struct call *call)
{
    struct server *s = call->server;
    buf_reset(&s->out);
    if (call->response) {
        call_response_keep_alive(call);
        return;
    }
    if (call->dialect->keep_alive)
        call->dialect->keep_alive(&s->out, &call->head, call->states, call->n_legs);
    else
        buf_add_str(&s->out, ": keep-alive\n\n");
    call_send(call);
    call_pause_if_full(call);
}

/* Clients and what stands between take a silent connection for a dead one; one that is full hears from us anyway. */
void call_keep_alive(struct server *s)
{
    int64_t now = clock_us();
    for (struct call *call = s->calls; call; call = call->next) {
        bool is_stream = call->response ? call->is_view_stream : call->is_streaming;
        if (call->conn && is_stream && !call->is_paused &&
            now - call->sent_us >= s->config.keep_alive_ms * 1000)
            call_nudge(call);
    }
}

void call_start(struct call *call)
{
    struct server *s = call->server;
    call->is_streaming = call->prepared->is_stream || call->response || call->wants_stream;
    if (call->response) {
        call_response_start(call);
        return;
    }
    if (!call->is_streaming) {
        for (int32_t i = 0; i < call->n_begun; i++)
            leg_show_prompt(&call->legs[i]);
        return;
    }
    char extra[LIMIT_IGNORED_BYTES + 128], headers[2048];
    call_extra_headers(call, extra, sizeof(extra));
    reply_headers(&call->to, extra, headers, sizeof(headers));
    http_stream_begin(call->conn, "text/event-stream; charset=utf-8", headers);
    call->sent_us = clock_us();
    buf_reset(&s->out);
    for (int32_t i = 0; i < call->n_legs; i++) {
        struct dialect_choice c = { .index = i };
        size_t at = s->out.len;
        if (call->dialect->begin)
            call->dialect->begin(&s->out, &call->head, &call->states[i], &c);
        if (!call->prepared->prompts[call->legs[i].prompt].scores)
            leg_show_prompt(&call->legs[i]); /* else when the scores are there */
        call_resume_label(&call->legs[i], at, false);
    }
    call_send(call);
}

/* Write what the answer may show now, and its end. Nothing while it waits for the scores of its prompt. */
static void call_write_leg(struct leg *leg)
{
    struct call *call = leg->call;
    struct dialect_choice end;
    if (!leg->is_shown || leg->is_ended)
        return;
    leg_show(leg);
    if (leg->is_live || leg->end.finish == FINISH_ERROR)
        return;
    leg->is_ended = true;
    if (leg_choice(leg, &end))
        call->dialect->end(&call->server->out, &call->head, &call->states[leg->index], &end);
}

/* The first event of a prompt's first answer says that its scores are there: all its answers go on from here. */
static void call_write_held(struct leg *leg)
{
    struct call *call = leg->call;
    const struct prepared_prompt *prompt = &call->prepared->prompts[leg->prompt];
    if (leg->is_shown || leg->index != prompt->first)
        return;
    for (int32_t i = prompt->first; i < prompt->first + prompt->n_choices; i++) {
        leg_show_prompt(&call->legs[i]);
        if (i != leg->index)
            call_write_leg(&call->legs[i]);
    }
}

static void call_mark_first_write(struct call *call)
{
    if (!call->has_written && call->track)
        trace_instant("response.first_write", call->track, clock_us(), "{}");
    call->has_written = true;
}

/* A part that is over the limit (scores of a very long prompt) cannot be sent in pieces. False: the call has ended. */
static bool call_may_send(struct call *call)
{
    struct api_error e;
    bool is_lost = call->server->out.failed;
    for (int32_t i = 0; i < call->n_legs; i++)
        is_lost = is_lost || call->legs[i].text.failed || call->legs[i].parts.failed;
    if (!is_lost)
        return true;
    api_error_set(&e, 500, NULL, NULL, "one part of the reply is over its limit of %d bytes",
                  LIMIT_REPLY_BYTES);
    call_fail(call, &e);
    return false;
}

/* The answer has all that is wanted (one call): the model need not go on. */
static void call_stop_if_done(struct leg *leg)
{
    struct server *s = leg->call->server;
    if (!leg->is_done || !leg->is_live || leg->call->generation)
        return;
    leg->is_cancel_due = sched_cancel(s->sched, leg->id) != ERR_OK;
    s->has_due = s->has_due || leg->is_cancel_due;
}

void call_take_token(struct leg *leg, const struct sched_token *t)
{
    struct call *call = leg->call;
    struct server *s = call->server;
    if (!call_is_wanted(call) || leg->is_done)
        return;
    answer_add(&leg->answer, &t->token);
    leg_add_id(leg, t->token.id);
    leg->text_safe = t->text_safe;
    leg->n_tokens++;
    if (!call->is_streaming) {
        leg_show(leg);
        call_stop_if_done(leg);
        return;
    }
    buf_reset(&s->out);
    call_write_held(leg);
    call_write_leg(leg);
    call_resume_label(leg, 0, false);
    call_stop_if_done(leg);
    if (!call_may_send(call))
        return;
    if (call->response) {
        call_response_send(call);
    } else {
        if (s->out.len > 0)
            call_mark_first_write(call);
        call_send(call);
    }
    call_pause_if_full(call);
}

/* --- the end --- */

struct http_conn *call_let_go(struct call *call, enum call_outcome outcome)
{
    struct http_conn *c = call->conn;
    call->conn = NULL;
    call->outcome = outcome;
    if (call->generation && !call->is_detached)
        call_resume_told(call);
    call_mark_first_write(call);
    if (call->track)
        trace_instant("response.final_write", call->track, clock_us(), "{}");
    return c;
}

/* All answers as the end of the reply wants them. False: one is over its limit. */
static bool call_choices(struct call *call, struct dialect_choice *out)
{
    bool is_fine = true;
    for (int32_t i = 0; i < call->n_legs; i++)
        is_fine = leg_choice(&call->legs[i], &out[i]) && is_fine;
    return is_fine;
}

static void call_reply_whole(struct call *call)
{
    struct server *s = call->server;
    struct dialect_choice *choices =
        mem_alloc(MEM_CAT_REQUEST, sizeof(*choices) * (size_t)call->n_legs);
    char extra[LIMIT_IGNORED_BYTES + 128];
    bool is_fine = call_choices(call, choices);
    buf_reset(&s->out);
    if (is_fine)
        call->dialect->whole(&s->out, &call->head, choices, call->n_legs, &call->usage);
    mem_free(MEM_CAT_REQUEST, choices);
    if (!is_fine || s->out.failed) {
        struct api_error e;
        api_error_set(&e, 500, NULL, NULL, "the reply is over its limit of %d bytes: stream it",
                      LIMIT_REPLY_BYTES);
        call_fail(call, &e);
        return;
    }
    call->server->n_sessions_restored += call->is_restore;
    call_extra_headers(call, extra, sizeof(extra));
    reply_body(call_let_go(call, CALL_OUTCOME_SUCCESS), &call->to, NULL, extra, &s->out);
}

/* The last of the stream: what comes after all answers. */
static void call_close(struct call *call)
{
    struct server *s = call->server;
    struct dialect_choice choices[LIMIT_CHOICES];
    if (call->failure.status != 0)
        call->dialect->error(&s->out, &call->head, call->states, &call->failure);
    else if (call_choices(call, choices))
        call->dialect->close(&s->out, &call->head, call->states, choices, call->n_legs,
                             &call->usage);
}

/* One answer of a stream is whole or has failed. */
static void call_stream_end(struct leg *leg)
{
    struct call *call = leg->call;
    struct server *s = call->server;
    bool is_error = call->failure.status != 0;
    buf_reset(&s->out);
    call_write_held(leg);
    call_write_leg(leg);
    call_resume_label(leg, 0, true);
    if (call->n_live == 0)
        call_close(call);
    if (!call_may_send(call))
        return;
    if (call->response) {
        call_response_send(call);
        return;
    }
    call_send(call);
    if (call->n_live == 0)
        http_stream_end(call_let_go(call, is_error ? CALL_OUTCOME_ERROR : CALL_OUTCOME_SUCCESS));
}

/* An answer failed. In a stream the others go on, and the error comes last; a reply that is whole or nothing ends at once, and so
 * does a stream whose other answers wait for this one's scores. */
static void call_leg_failed(struct leg *leg)
{
    struct call *call = leg->call;
    const struct prepared_prompt *prompt = &call->prepared->prompts[leg->prompt];
    struct api_error e;
    api_error_from(&e, &leg->end.err);
    if (call->n_legs > 1)
        api_error_set(&e, e.status, e.code, NULL, "answer %d: %.400s", leg->index,
                      leg->end.err.text);
    if (!call->is_streaming || call->n_legs == 1 || (prompt->scores && !leg->is_shown)) {
        call_fail(call, &e);
        return;
    }
    if (call->failure.status == 0)
        call->failure = e;
    call_stream_end(leg);
}

/* A prompt counts once, however many answers it has: then its cached part does too. */
static void call_count_cached(struct call *call, const struct leg *leg,
                              const struct sched_finished *f)
{
    if (leg->index == call->prepared->prompts[leg->prompt].first)
        call->usage.cached_tokens += f->n_cached;
}

static void call_count_speculation(struct engine_speculation *all,
                                   const struct engine_speculation *one)
{
    all->rounds += one->rounds;
    all->drafted += one->drafted;
    all->accepted += one->accepted;
    all->computed += one->computed;
    for (int i = 0; i < ENGINE_DRAFTS_MAX; i++)
        all->accepted_at[i] += one->accepted_at[i];
}

void call_take_end(struct leg *leg, const struct sched_finished *f)
{
    struct call *call = leg->call;
    leg->end = *f;
    leg->text_safe = f->text_safe;
    if (leg->is_done) { /* how far the model got meanwhile is chance */
        leg->end.finish = FINISH_END;
        leg->end.n_tokens = leg->n_tokens;
    }
    leg->is_live = leg->is_cancel_due = false;
    call->n_live--;
    call->usage.prompt_tokens = call->prepared->prompt_tokens;
    call_count_cached(call, leg, f);
    call_count_speculation(&call->usage.speculation, &f->speculation);
    call->usage.completion_tokens += leg->end.n_tokens;
    call->usage.reasoning_tokens += f->n_reasoning;
    call->usage.prompt_us += f->prefill_us;
    call->usage.decode_us += f->decode_us;
    log_debug("http", "%s: answer %d: %d prompt tokens in %lld ms, %d tokens in %lld ms",
              call->to.request_id, leg->index, f->n_prompt, (long long)f->prefill_us / 1000,
              f->n_tokens, (long long)f->decode_us / 1000);
    bool is_wanted = call_is_wanted(call);
    if (is_wanted && leg->end.finish == FINISH_ERROR) {
        call_leg_failed(leg);
    } else if (is_wanted && call->is_streaming) {
        call_stream_end(leg);
    } else if (is_wanted) {
        leg_show(leg);
        if (call->n_begun < call->n_legs)
            call_go_on(call);
        else if (call->n_live == 0)
            call_reply_whole(call);
    }
}

void call_event(struct server *s, const struct sched_event *ev)
{
    struct leg *leg = s->legs[ev->id % LIMIT_LIVE];
    BUG_ON(!leg || leg->id != ev->id); /* a leg stays until its FINISHED */
    struct call *call = leg->call;
    if (ev->kind == SCHED_EVENT_FINISHED) {
        s->legs[leg->id % LIMIT_LIVE] = NULL;
        s->n_legs--;
    }
    call_session_event(leg, ev);
    if (call->is_maker)
        call_resume_event(leg, ev);
    else if (ev->kind == SCHED_EVENT_TOKEN)
        call_take_token(leg, &ev->token);
    else
        call_take_end(leg, &ev->finished);
    if (ev->kind == SCHED_EVENT_FINISHED)
        call_free_if_over(call);
}
