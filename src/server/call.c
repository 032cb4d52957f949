/* call.c - the life of a generation request: body, preparation, acceptance, tokens, end; and its client's going at any
 * point of it.
 *
 * Invariants: (1) a call is freed when it has no client, no job and no live leg, never before; (2) conn is set to NULL before the last
 * bytes of a reply are written, because the connection may take up its next request at once. */
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

static void call_free_if_over(struct call *call)
{
    struct server *s = call->server;
    if (call->conn || call->job || call->n_live > 0)
        return;
    for (int32_t i = 0; i < call->n_legs; i++) {
        answer_release(&call->legs[i].answer);
        buf_release(&call->legs[i].text);
    }
    mem_free(MEM_CAT_REQUEST, call->legs);
    prepare_free(call->prepared);
    *(call->prev ? &call->prev->next : &s->calls) = call->next;
    if (call->next)
        call->next->prev = call->prev;
    s->n_calls--;
    s->last_call_us = clock_us();
    mem_free(MEM_CAT_REQUEST, call);
}

static void call_cancel_legs(struct call *call)
{
    for (int32_t i = 0; i < call->n_legs; i++) {
        struct leg *leg = &call->legs[i];
        if (!leg->is_live)
            continue;
        leg->is_cancel_due = sched_cancel(call->server->sched, leg->id) != ERR_OK;
        call->server->has_due = call->server->has_due || leg->is_cancel_due;
    }
}

/* Tell the client, end the reply, stop what still runs. */
static void call_fail(struct call *call, const struct api_error *e)
{
    struct server *s = call->server;
    struct http_conn *c = call->conn;
    call->conn = NULL;
    if (e->status >= 500) /* the text may quote the request: not logged */
        log_warn("http", "%s failed: %d %s", call->request_id, e->status, e->code ? e->code : "");
    if (call->is_streaming) {
        buf_reset(&s->out);
        call->dialect->error(&s->out, e);
        http_stream_add(c, s->out.data, s->out.len);
        http_stream_end(c);
    } else {
        reply_error(s, c, call->request_id, call->origin, e);
    }
    call_cancel_legs(call);
}

/* --- preparation --- */

void call_begin(struct server *s, struct http_conn *c, const struct http_head *head,
                enum prepare_kind kind)
{
    struct call *call = mem_alloc(MEM_CAT_REQUEST, sizeof(*call));
    struct worker_job *job = mem_alloc(MEM_CAT_REQUEST, sizeof(*job));
    const char *origin = http_header(head, "Origin");
    call->server = s;
    call->conn = c;
    reply_request_id(s, head, call->request_id);
    snprintf(call->origin, sizeof(call->origin), "%s", origin ? origin : "");
    call->next = s->calls;
    if (s->calls)
        s->calls->prev = call;
    s->calls = call;
    s->n_calls++;
    http_set_data(c, call);
    job->owner = call;
    job->kind = kind;
    job->seed = server_random();
    http_take_body(c, &job->body);
    if (worker_submit(s->workers, job) == ERR_OK) {
        call->job = job;
        return;
    }
    struct api_error e;
    worker_job_free(job);
    api_error_set(&e, 429, "too_many_requests", NULL, "%d requests are being prepared; try again",
                  LIMIT_PREPARING);
    call_fail(call, &e);
    call_free_if_over(call);
}

static void call_describe(struct call *call)
{
    const struct server *s = call->server;
    const struct prepared *p = call->prepared;
    call->dialect = p->kind == PREPARE_CHAT ? &dialect_chat : &dialect_completions;
    snprintf(call->answer_id, sizeof(call->answer_id), "%s%016llx", call->dialect->id_prefix,
             (unsigned long long)server_random());
    call->head = (struct dialect_head){
        .id = call->answer_id,
        .model = s->model_id,
        .fingerprint = s->model.engine->info.fingerprint,
        .created = clock_wall_s(),
        .tokenizer = s->model.tokenizer,
        .has_logprobs = p->n_logprobs >= 0,
        .includes_usage = p->includes_usage,
    };
}

/* A free place for a leg, or -1. Ids go up by one, so that an old id never names a new leg. */
static void call_add_leg(struct call *call, int32_t index)
{
    struct server *s = call->server;
    struct leg *leg = &call->legs[index];
    const char *echo = call->prepared->echo[index];
    while (s->legs[s->next_id % LIMIT_LIVE])
        s->next_id++;
    *leg = (struct leg){ .call = call, .index = index, .id = s->next_id++ };
    buf_init(&leg->text, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    answer_init(&leg->answer, s->model.tokenizer, call->head.has_logprobs,
                echo ? (int64_t)utf8_count(echo, strlen(echo)) : 0);
    s->legs[leg->id % LIMIT_LIVE] = leg;
    s->n_legs++;
    call->prepared->requests[index]->id = leg->id;
}

static void call_drop_leg(struct leg *leg)
{
    struct server *s = leg->call->server;
    s->legs[leg->id % LIMIT_LIVE] = NULL;
    s->n_legs--;
}

/* Hand the answers to the scheduler. False: e. */
static bool call_submit(struct call *call, struct api_error *e)
{
    struct server *s = call->server;
    struct prepared *p = call->prepared;
    struct err err;
    if (s->n_legs + p->n_choices > LIMIT_LIVE)
        return api_error_set(e, 429, "too_many_requests", NULL, "%d answers are under way",
                             s->n_legs);
    call->legs = mem_alloc(MEM_CAT_REQUEST, sizeof(*call->legs) * (size_t)p->n_choices);
    call->n_legs = p->n_choices;
    for (int32_t i = 0; i < call->n_legs; i++)
        call_add_leg(call, i);
    enum err_code code = sched_submit(s->sched, p->requests, p->n_choices, &err);
    for (int32_t i = 0; i < call->n_legs; i++) {
        if (code != ERR_OK) {
            call_drop_leg(&call->legs[i]);
            continue;
        }
        p->requests[i] = NULL; /* the scheduler's */
        call->legs[i].is_live = true;
        call->n_live++;
    }
    if (code == ERR_FULL)
        return api_error_set(e, 429, "too_many_requests", NULL, "%s", err.text);
    if (code != ERR_OK)
        api_error_from(e, &err);
    return code == ERR_OK;
}

static void call_extra_headers(const struct call *call, char *out, size_t n)
{
    const struct prepared *p = call->prepared;
    int at = snprintf(out, n, "X-Plumb-Seed: %lld\r\n", (long long)p->seed);
    if (p->ignored[0])
        snprintf(out + at, n - (size_t)at, "X-Plumb-Ignored: %s\r\n", p->ignored);
}

/* Text that stands before the answer (echo). */
static void call_show_echo(struct call *call, struct leg *leg)
{
    const char *echo = call->prepared->echo[leg->index];
    struct buf *to = call->is_streaming ? &call->server->text : &leg->text;
    if (!echo)
        return;
    buf_reset(to);
    buf_add_str(to, echo);
    if (!call->is_streaming)
        return;
    struct dialect_choice choice = { .index = leg->index, .text = to->data, .n = to->len };
    call->dialect->text(&call->server->out, &call->head, &choice);
}

static void call_start(struct call *call)
{
    struct server *s = call->server;
    call->is_streaming = call->prepared->is_stream;
    buf_reset(&s->out);
    if (call->is_streaming) {
        char extra[LIMIT_IGNORED_BYTES + 128], headers[2048];
        call_extra_headers(call, extra, sizeof(extra));
        reply_headers(call->request_id, call->origin, extra, headers, sizeof(headers));
        http_stream_begin(call->conn, "text/event-stream; charset=utf-8", headers);
    }
    for (int32_t i = 0; i < call->n_legs; i++) {
        if (call->is_streaming && call->dialect->begin)
            call->dialect->begin(&s->out, &call->head, i);
        call_show_echo(call, &call->legs[i]);
    }
    if (call->is_streaming)
        http_stream_add(call->conn, s->out.data, s->out.len);
}

static void call_generate(struct call *call)
{
    struct api_error e;
    call_describe(call);
    if (call_submit(call, &e))
        call_start(call);
    else
        call_fail(call, &e);
}

void call_prepared(struct server *s, struct worker_job *job)
{
    struct call *call = job->owner;
    struct prepared *p = job->prepared;
    call->job = NULL;
    job->prepared = NULL;
    worker_job_free(job);
    call->prepared = p;
    if (call->conn && p->error.status != 0) {
        call_fail(call, &p->error);
    } else if (call->conn && p->n_choices > 0) {
        call_generate(call);
    } else if (call->conn) {
        struct http_conn *c = call->conn;
        call->conn = NULL;
        reply_json(s, c, call->request_id, call->origin, "", &p->reply);
    }
    call_free_if_over(call);
}

/* --- back-pressure --- */

static void call_pause_if_full(struct call *call)
{
    if (http_unsent(call->conn) < LIMIT_UNSENT_HIGH)
        return;
    /* Sent again with each token that is still under way: a command that found no room is made up for. */
    call->is_paused = true;
    for (int32_t i = 0; i < call->n_legs; i++)
        if (call->legs[i].is_live)
            (void)!sched_pause(call->server->sched, call->legs[i].id, true);
}

static void call_resume_if_empty(struct call *call)
{
    if (!call->is_paused || http_unsent(call->conn) > LIMIT_UNSENT_LOW)
        return;
    call->is_paused = false;
    for (int32_t i = 0; i < call->n_legs; i++)
        if (call->legs[i].is_live &&
            sched_pause(call->server->sched, call->legs[i].id, false) != ERR_OK)
            call->is_paused = call->server->has_due = true;
}

void call_drained(void *arg, struct http_conn *c)
{
    struct call *call = http_data(c);
    if (call)
        call_resume_if_empty(call);
}

/* --- tokens --- */

/* Send what the answer may show now. */
static void call_stream_text(struct leg *leg, int64_t text_safe, bool is_end)
{
    struct call *call = leg->call;
    struct server *s = call->server;
    struct dialect_choice c = { .index = leg->index };
    buf_reset(&s->text);
    answer_show(&leg->answer, text_safe, is_end, &s->text);
    c.tokens = answer_peek_tokens(&leg->answer, is_end, &c.n_tokens);
    c.text = s->text.data;
    c.n = s->text.len;
    if (c.n == 0 && c.n_tokens == 0)
        return;
    call->dialect->text(&s->out, &call->head, &c);
    answer_drop_tokens(&leg->answer, c.n_tokens);
}

static void call_token(struct leg *leg, const struct sched_token *t)
{
    struct call *call = leg->call;
    struct server *s = call->server;
    if (!call->conn)
        return;
    answer_add(&leg->answer, &t->token);
    if (!call->is_streaming) {
        answer_show(&leg->answer, t->text_safe, false, &leg->text);
        return;
    }
    buf_reset(&s->out);
    call_stream_text(leg, t->text_safe, false);
    http_stream_add(call->conn, s->out.data, s->out.len);
    call_pause_if_full(call);
}

/* --- the end --- */

static void call_reply_whole(struct call *call)
{
    struct server *s = call->server;
    struct http_conn *c = call->conn;
    struct dialect_choice choices[LIMIT_CHOICES];
    char extra[LIMIT_IGNORED_BYTES + 128];
    bool is_lost = false;
    for (int32_t i = 0; i < call->n_legs; i++) {
        struct leg *leg = &call->legs[i];
        struct dialect_choice *x = &choices[i];
        *x = (struct dialect_choice){ .index = i, .text = leg->text.data, .n = leg->text.len };
        x->tokens = answer_peek_tokens(&leg->answer, true, &x->n_tokens);
        x->finish = leg->end.finish;
        is_lost = is_lost || leg->text.failed || leg->answer.bytes.failed;
    }
    buf_reset(&s->out);
    call->dialect->whole(&s->out, &call->head, choices, call->n_legs, &call->usage);
    if (is_lost || s->out.failed) {
        struct api_error e;
        api_error_set(&e, 500, NULL, NULL, "the reply is over its limit of %d bytes: stream it",
                      LIMIT_REPLY_BYTES);
        call_fail(call, &e);
        return;
    }
    call_extra_headers(call, extra, sizeof(extra));
    call->conn = NULL;
    reply_json(s, c, call->request_id, call->origin, extra, &s->out);
}

/* One answer is whole, or all are. */
static void call_leg_done(struct leg *leg)
{
    struct call *call = leg->call;
    struct server *s = call->server;
    struct http_conn *c = call->conn;
    if (!call->is_streaming) {
        answer_show(&leg->answer, leg->end.text_safe, true, &leg->text);
        if (call->n_live == 0)
            call_reply_whole(call);
        return;
    }
    struct dialect_choice choice = { .index = leg->index, .finish = leg->end.finish };
    buf_reset(&s->out);
    call_stream_text(leg, leg->end.text_safe, true);
    call->dialect->end(&s->out, &call->head, &choice);
    if (call->n_live == 0)
        call->dialect->close(&s->out, &call->head, &call->usage);
    http_stream_add(c, s->out.data, s->out.len);
    if (call->n_live > 0)
        return;
    call->conn = NULL;
    http_stream_end(c);
}

static void call_finished(struct leg *leg, const struct sched_finished *f)
{
    struct call *call = leg->call;
    leg->end = *f;
    leg->is_live = leg->is_cancel_due = false;
    call->n_live--;
    call_drop_leg(leg);
    call->usage.prompt_tokens = call->prepared->prompt_tokens;
    call->usage.completion_tokens += f->n_tokens;
    call->usage.prompt_us += f->prefill_us;
    call->usage.decode_us += f->decode_us;
    log_debug("http", "%s: answer %d: %d prompt tokens in %lld ms, %d tokens in %lld ms",
              call->request_id, leg->index, f->n_prompt, (long long)f->prefill_us / 1000,
              f->n_tokens, (long long)f->decode_us / 1000);
    if (call->conn && f->finish == FINISH_ERROR) {
        struct api_error e;
        api_error_from(&e, &f->err);
        call_fail(call, &e);
    } else if (call->conn) {
        call_leg_done(leg);
    }
    call_free_if_over(call);
}

void call_event(struct server *s, const struct sched_event *ev)
{
    struct leg *leg = s->legs[ev->id % LIMIT_LIVE];
    BUG_ON(!leg || leg->id != ev->id); /* a leg stays until its FINISHED */
    if (ev->kind == SCHED_EVENT_TOKEN)
        call_token(leg, &ev->token);
    else
        call_finished(leg, &ev->finished);
}

/* --- the client is gone, or the server goes --- */

void call_closed(void *arg, struct http_conn *c)
{
    struct call *call = http_data(c);
    if (!call)
        return;
    call->conn = NULL;
    log_debug("http", "%s: the client is gone", call->request_id);
    if (call->job)
        atomic_store(&call->job->is_cancelled, true);
    call_cancel_legs(call);
    call_free_if_over(call);
}

void call_retry(struct server *s)
{
    s->has_due = false;
    for (struct call *call = s->calls; call; call = call->next) {
        for (int32_t i = 0; i < call->n_legs; i++) {
            struct leg *leg = &call->legs[i];
            if (!leg->is_cancel_due)
                continue;
            leg->is_cancel_due = sched_cancel(s->sched, leg->id) != ERR_OK;
            s->has_due = s->has_due || leg->is_cancel_due;
        }
        if (call->conn)
            call_resume_if_empty(call);
    }
}

void call_end_all(struct server *s, const char *why)
{
    struct call *next;
    struct api_error e;
    api_error_set(&e, 503, "unavailable", NULL, "%s", why);
    for (struct call *call = s->calls; call; call = next) {
        next = call->next;
        if (call->job)
            atomic_store(&call->job->is_cancelled, true);
        if (call->conn)
            call_fail(call, &e);
        call_free_if_over(call);
    }
}
