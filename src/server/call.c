/* call.c - the life of an API request up to its acceptance, and the ways in which it ends without an answer.
 *
 * Invariants: (1) a call is freed when it has no client, no job and no live leg, never before; (2) conn is set to NULL before the last
 * bytes of a reply are written, because the connection is free for its next request then. */
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

const char *call_outcome_name(enum call_outcome o)
{
    static const char *const names[] = { "abort", "success", "error" };
    return names[o];
}

void call_free_if_over(struct call *call)
{
    struct server *s = call->server;
    if (call->conn || call->job || call->n_live > 0 || call->n_store > 0 ||
        (call->is_detached && call->generation)) /* it may not have begun yet */
        return;
    bool is_counted = !call->is_maker;
    response_unref(call->response);
    worker_job_free(call->again);
    for (int32_t i = 0; i < call->n_legs; i++)
        leg_release(&call->legs[i]);
    mem_free(MEM_CAT_REQUEST, call->legs);
    mem_free(MEM_CAT_REQUEST, call->states);
    mem_free(MEM_CAT_REQUEST, call->from);
    if (call->generation)
        call_resume_unref(call);
    call_session_close(call);
    prepare_free(call->prepared);
    s->score_bytes -= call->score_bytes;
    *(call->prev ? &call->prev->next : &s->calls) = call->next;
    if (call->next)
        call->next->prev = call->prev;
    s->n_calls--;
    s->n_makers -= call->is_maker;
    s->n_outcomes[call->outcome] += is_counted;
    s->last_call_us = clock_us();
    if (call->track && is_counted)
        trace_span(
            "completion.total", call->track, call->arrived_us, s->last_call_us,
            "{\"outcome\":\"%s\",\"request_id\":\"%s\",\"trace_id\":\"%s\",\"prompt_tokens\":"
            "%lld,\"tokens\":%lld}",
            call_outcome_name(call->outcome), call->to.request_id, call->to.trace_id,
            (long long)call->usage.prompt_tokens, (long long)call->usage.completion_tokens);
    mem_free(MEM_CAT_REQUEST, call);
}

void call_abandon(struct call *call)
{
    struct server *s = call->server;
    if (call->job && !atomic_load(&call->job->is_cancelled) &&
        worker_cancel(s->workers, call->job)) {
        worker_job_free(call->job);
        call->job = NULL;
    }
    if (call->generation && !call->is_maker) {
        call_resume_leave(call, false);
        call_response_gone(call);
        return;
    }
    for (int32_t i = 0; i < call->n_legs; i++) {
        struct leg *leg = &call->legs[i];
        if (!leg->is_live)
            continue;
        leg->is_cancel_due = sched_cancel(s->sched, leg->id) != ERR_OK;
        s->has_due = s->has_due || leg->is_cancel_due;
    }
    call_response_gone(call);
}

void call_fail(struct call *call, const struct api_error *e)
{
    struct server *s = call->server;
    struct http_conn *c = call->conn;
    if (call->is_maker) {
        call_resume_fail(call, e);
        return;
    }
    if (call->response && (call->has_begun || call->n_store > 0)) {
        call_response_fail(call, e);
        return;
    }
    call->conn = NULL;
    call->is_detached = call->is_finishing = false;
    call->outcome = CALL_OUTCOME_ERROR;
    if (e->status >= 500 && e->status != 504) /* the text may quote the request: not logged */
        log_warn("http", "%s failed: %d %s", call->to.request_id, e->status,
                 e->code ? e->code : "");
    call_abandon(call);
    if (call->track)
        trace_instant("response.final_write", call->track, clock_us(), "{\"status\":%d}",
                      e->status);
    if (!c) /* nobody waits for it */
        return;
    if (call->is_streaming && !call->response) {
        buf_reset(&s->out);
        call->dialect->error(&s->out, &call->head, call->states, e);
        http_stream_add(c, s->out.data, s->out.len);
        http_stream_end(c);
    } else {
        reply_error(c, &call->to, e);
    }
}

/* --- preparation --- */

static void call_link(struct server *s, struct call *call)
{
    call->next = s->calls;
    if (s->calls)
        s->calls->prev = call;
    s->calls = call;
    s->n_calls++;
}

struct call *call_new_maker(struct call *reader)
{
    struct call *call = mem_alloc(MEM_CAT_REQUEST, sizeof(*call));
    call->server = reader->server;
    call->is_maker = true;
    call->arrived_us = reader->arrived_us;
    call->account = reader->account;
    call->track = reader->track;
    call->to = reader->to;
    memcpy(call->who, reader->who, sizeof(call->who));
    call->server->n_makers++;
    call_link(call->server, call);
    return call;
}

struct call *call_new_run(const struct call *asker)
{
    struct call *call = mem_alloc(MEM_CAT_REQUEST, sizeof(*call));
    call->server = asker->server;
    call->is_run = call->is_detached = call->has_begun = true;
    call->dialect = &dialect_responses;
    call->arrived_us = asker->arrived_us;
    call->account = asker->account;
    memcpy(call->who, asker->who, sizeof(call->who));
    call->to = asker->to;
    call->to.has_own_id = false;
    call_link(call->server, call);
    return call;
}

struct call *call_new(struct server *s, struct http_conn *c, const struct http_head *head)
{
    struct call *call = mem_alloc(MEM_CAT_REQUEST, sizeof(*call));
    call->server = s;
    call->conn = c;
    call->arrived_us = clock_us();
    call->account = guard_account(s, head, http_peer(c));
    reply_to_init(&call->to, head);
    if (trace_is_on()) {
        call->track = ++s->next_track;
        trace_name(call->track, call->to.request_id);
    }
    call_link(s, call);
    http_set_data(c, call);
    return call;
}

void call_prepare(struct call *call, struct worker_job *job)
{
    struct api_error e;
    if (worker_submit(call->server->workers, job) == ERR_OK) {
        call->job = job;
        return;
    }
    worker_job_free(job);
    api_error_set(&e, 429, "queue_full", NULL, "too many requests wait to be prepared; try again");
    call_fail(call, &e);
}

void call_begin(struct server *s, struct http_conn *c, const struct http_head *head,
                enum prepare_kind kind)
{
    struct call *call = call_new(s, c, head);
    struct worker_job *job = mem_alloc(MEM_CAT_REQUEST, sizeof(*job));
    job->owner = call;
    job->kind = kind;
    job->seed = server_random();
    job->trace = call->track;
    http_take_body(c, &job->body);
    job->class = prepare_is_constrained(job->body.data, job->body.len) ? WORKER_CLASS_GRAMMAR
                                                                       : WORKER_CLASS_TEXT;
    guard_who(head, http_peer(c), call->who);
    const char *affinity = http_header(head, "x-session-affinity");
    if (affinity && *affinity)
        session_name_of(affinity, strlen(affinity), job->session);
    if (kind == PREPARE_RESPONSES || kind == PREPARE_INPUT_TOKENS) {
        snprintf(job->id, sizeof(job->id), "resp_%016llx%016llx",
                 (unsigned long long)server_random(), (unsigned long long)server_random());
        snprintf(call->answer_id, sizeof(call->answer_id), "%.39s", job->id);
    }
    if (!call_resume_begin(call, job, head))
        call_prepare(call, job);
    call_free_if_over(call);
}

void call_describe(struct call *call)
{
    static const struct dialect *const dialects[] = {
        [PREPARE_CHAT] = &dialect_chat,         [PREPARE_COMPLETIONS] = &dialect_completions,
        [PREPARE_SIGNAL] = &dialect_signal,     [PREPARE_RESPONSES] = &dialect_responses,
        [PREPARE_MESSAGES] = &dialect_messages, [PREPARE_EMBEDDINGS] = &dialect_embeddings,
        [PREPARE_INFILL] = &dialect_infill,     [PREPARE_RERANK] = &dialect_rerank,
        [PREPARE_SCORE] = &dialect_score,       [PREPARE_RESTORE] = &dialect_restored,
    };
    const struct server *s = call->server;
    const struct prepared *p = call->prepared;
    call->dialect = dialects[p->kind];
    if (!call->answer_id[0])
        snprintf(call->answer_id, sizeof(call->answer_id), "%s%016llx", call->dialect->id_prefix,
                 (unsigned long long)server_random());
    call->head = (struct dialect_head){
        .id = call->answer_id,
        .model = s->model_id,
        .fingerprint = s->model.engine->info.fingerprint,
        .created = clock_wall_s(),
        .prompt_tokens = p->prompt_tokens,
        .tokenizer = s->model.tokenizer,
        .n_vocab = s->model.engine->info.n_vocab,
        .n_logprobs = p->n_logprobs,
        .n_prompt_logprobs = p->n_prompt_logprobs,
        .echoes_logprobs = p->echoes_logprobs,
        .includes_usage = p->includes_usage,
        .n_dims = p->embeddings.n_dims,
        .is_base64 = p->embeddings.is_base64,
        .ranking = &p->ranking,
        .diagnosis = p->diagnosis,
        .returns_ids = p->returns_ids,
        .compared = p->compares ? &call->compared : NULL,
        .has_earlier = p->compare_with[0] != '\0',
    };
}

/* Compare the request with the one that it names, and remember it for those that will name it. */
static void call_print(struct call *call)
{
    struct server *s = call->server;
    struct prepared *p = call->prepared;
    if (p->compare_with[0])
        call->compared = prints_compare(&s->prints, p->compare_with, call->account, p->print);
    if (!p->print)
        return;
    p->print->n_tokens = p->prompt_tokens;
    prints_put(&s->prints, call->answer_id, call->account, p->print);
    p->print = NULL;
}

/* A place for a leg: there is one (LIMIT_LIVE). Ids go up by one, so that an old id never names a new leg. */
void call_add_leg(struct call *call, int32_t index, int32_t prompt)
{
    struct server *s = call->server;
    struct leg *leg = &call->legs[index];
    struct sched_request *r = call->prepared->requests[index];
    while (s->legs[s->next_id % LIMIT_LIVE])
        s->next_id++;
    *leg = (struct leg){ .call = call, .index = index, .prompt = prompt, .id = s->next_id++ };
    leg_init(leg);
    s->legs[leg->id % LIMIT_LIVE] = leg;
    s->n_legs++;
    r->id = leg->id;
    r->leader = call->legs[call->prepared->prompts[prompt].first].id;
    r->key = call->account;
    if (call->prepared->deadline_ms > 0)
        r->deadline_us = call->arrived_us + call->prepared->deadline_ms * 1000;
    r->trace = call->track;
    call_session_leg(leg, r);
    if (call->track && index > 0) { /* they overlap: each has its own line */
        char name[LIMIT_REQUEST_ID_BYTES + 32];
        snprintf(name, sizeof(name), "%s answer %d", call->to.request_id, index);
        r->trace = ++s->next_track;
        trace_name(r->trace, name);
    }
}

void call_add_legs(struct call *call)
{
    const struct prepared *p = call->prepared;
    call->legs = mem_alloc(MEM_CAT_REQUEST, sizeof(*call->legs) * (size_t)p->n_choices);
    call->states = mem_alloc(MEM_CAT_REQUEST, sizeof(*call->states) * (size_t)p->n_choices);
    call->n_legs = p->n_choices;
    call->score_bytes = p->score_bytes;
    call->server->score_bytes += p->score_bytes;
}

/* Texts to embed may be many more than the scheduler's line is long: a few at a time. */
static int32_t call_next(const struct call *call)
{
    const struct prepared *p = call->prepared;
    int32_t left = p->n_choices - call->n_begun, most = call->server->config.max_waiting;
    if (!p->embeddings.hidden && p->ranking.top_n == 0)
        return left;
    most = most < LIMIT_INPUTS_AT_ONCE ? most : LIMIT_INPUTS_AT_ONCE;
    return left < most ? left : most;
}

/* Room and time for it? False: e. */
bool call_may_go(const struct call *call, struct api_error *e)
{
    const struct server *s = call->server;
    const struct prepared *p = call->prepared;
    if (p->deadline_ms > 0 && clock_us() - call->arrived_us >= p->deadline_ms * 1000)
        return api_error_set(e, 504, "deadline_exceeded", "deadline_ms",
                             "deadline_ms: %lld ms were over before the request was prepared",
                             (long long)p->deadline_ms);
    if (s->n_legs + call_next(call) > LIMIT_LIVE)
        return api_error_set(e, 429, "queue_full", NULL, "%d answers are under way; try again",
                             s->n_legs);
    if (s->score_bytes + p->score_bytes > LIMIT_SCORES_TOTAL)
        return api_error_set(e, 429, "queue_full", NULL,
                             "too many log-probabilities of prompts are under way; try again");
    return true;
}

/* Hand the next n answers to the scheduler. False: e; none of them has begun. */
static bool call_submit_next(struct call *call, int32_t n, struct api_error *e)
{
    struct server *s = call->server;
    struct prepared *p = call->prepared;
    struct err err;
    int64_t start_us = clock_us();
    int32_t first = call->n_begun, prompt = 0;
    for (int32_t i = first; i < first + n; i++) {
        while (i >= p->prompts[prompt].first + p->prompts[prompt].n_choices)
            prompt++;
        call_add_leg(call, i, prompt);
    }
    int64_t placed_us = clock_us(); /* from here on the scheduler's spans run */
    enum err_code code = sched_submit(s->sched, p->requests + first, n, &err);
    for (int32_t i = first; i < first + n; i++) {
        if (code != ERR_OK) {
            s->legs[call->legs[i].id % LIMIT_LIVE] = NULL;
            s->n_legs--;
            leg_release(&call->legs[i]);
            call->legs[i] = (struct leg){ 0 };
            continue;
        }
        p->requests[i] = NULL; /* the scheduler's */
        call->legs[i].is_live = true;
        call->n_live++;
    }
    call->n_begun += code == ERR_OK ? n : 0;
    if (call->track)
        trace_span("completion.placement", call->track, start_us, placed_us,
                   "{\"answers\":%d,\"accepted\":%s}", n, code == ERR_OK ? "true" : "false");
    if (code == ERR_FULL)
        return api_error_set(e, 429, "queue_full", NULL, "%s", err.text);
    if (code != ERR_OK)
        api_error_from(e, &err);
    return code == ERR_OK;
}

void call_go_on(struct call *call)
{
    struct api_error e;
    int32_t n = call_next(call);
    if (!call->conn || n == 0 || call->n_live > 0)
        return;
    bool is_full = call->server->n_legs + n > LIMIT_LIVE;
    bool has_gone = !is_full && call_submit_next(call, n, &e);
    if (is_full || (!has_gone && e.status == 429))
        call->server->has_due = true; /* others are before it: again soon */
    else if (!has_gone)
        call_fail(call, &e);
}

/* Hand the answers to the scheduler, or the first of them. False: e. */
static bool call_submit(struct call *call, struct api_error *e)
{
    if (!call_may_go(call, e))
        return false;
    call_add_legs(call);
    return call_submit_next(call, call_next(call), e);
}

void call_run(struct call *call)
{
    struct api_error e;
    if (call_submit(call, &e))
        call_start(call);
    else
        call_fail(call, &e);
}

void call_extra_headers(const struct call *call, char *out, size_t n)
{
    const struct prepared *p = call->prepared;
    int at = snprintf(out, n, "X-Plumb-Seed: %lld\r\n", (long long)p->seed);
    if (call->generation)
        at += snprintf(out + at, n - (size_t)at, "X-Plumb-Resumable: true\r\n");
    if (p->ignored[0])
        snprintf(out + at, n - (size_t)at, "X-Plumb-Ignored: %s\r\n", p->ignored);
}

void call_prepared(struct server *s, struct worker_job *job)
{
    struct call *call = job->owner;
    struct prepared *p = job->prepared;
    if (call->is_maker) {
        call_resume_prepared(call, job);
        return;
    }
    call->job = NULL;
    job->prepared = NULL;
    if (call->conn && p && p->error.status == 0 && p->response && p->response->needs_history) {
        call->prepared = p;
        call_response_load(call, job);
        call_free_if_over(call);
        return;
    }
    if (call->conn && p && p->error.status == 0 && call_resume_adopt(call, job, p)) {
        call_free_if_over(call);
        return;
    }
    worker_job_free(job);
    call->prepared = p;
    if (call->conn && p->error.status != 0) {
        call_fail(call, &p->error);
    } else if (call->conn && p->n_choices > 0) {
        call_describe(call);
        call_print(call);
        if (p->response)
            call_response_open(call);
        call_session_open(call);
        call_run(call);
    } else if (call->conn) {
        struct http_conn *c = call->conn;
        call->conn = NULL;
        call->outcome = CALL_OUTCOME_SUCCESS;
        reply_body(c, &call->to, NULL, "", &p->reply);
    }
    call_free_if_over(call);
}

/* --- the client is gone, or somebody ends it --- */

/* Does the answer go on without its client? */
static bool call_finishes(struct call *call)
{
    const struct prepared *p = call->prepared;
    bool goes_on = p && p->disconnect == PREPARE_DISCONNECT_FINISH && call->n_live > 0;
    for (int32_t i = 0; i < call->n_legs && goes_on && call->is_paused; i++)
        goes_on = !call->legs[i].is_live ||
                  sched_pause(call->server->sched, call->legs[i].id, false) == ERR_OK;
    call->is_finishing = goes_on;
    return goes_on;
}

void call_closed(void *arg, struct http_conn *c)
{
    struct call *call = http_data(c);
    if (!call)
        return;
    call->conn = NULL;
    log_debug("http", "%s: the client is gone", call->to.request_id);
    if (call->generation && !call->is_detached) {
        call_resume_leave(call, true);
        call_response_gone(call);
    } else if (!call->is_detached && !call_finishes(call))
        call_abandon(call);
    call_free_if_over(call);
}

void call_retry(struct server *s)
{
    s->has_due = false;
    struct call *next;
    for (struct call *call = s->calls; call; call = next) {
        next = call->next;
        for (int32_t i = 0; i < call->n_legs; i++) {
            struct leg *leg = &call->legs[i];
            if (!leg->is_cancel_due)
                continue;
            leg->is_cancel_due = sched_cancel(s->sched, leg->id) != ERR_OK;
            s->has_due = s->has_due || leg->is_cancel_due;
        }
        if (call->conn && !call->generation)
            call_resume_if_empty(call);
        if (call->prepared)
            call_go_on(call);
        call_free_if_over(call);
    }
}

/* End the calls of that id, or (NULL) all, that are not answered yet. */
static int32_t call_fail_each(struct server *s, const char *request_id, const struct api_error *e)
{
    int32_t n = 0;
    uint64_t pass = ++s->next_pass;
    for (struct call *call = s->calls; call;) {
        bool is_due = call->pass != pass &&
                      (call->conn || call->is_detached || call->is_finishing) &&
                      (!request_id || strcmp(call->to.request_id, request_id) == 0);
        call->pass = pass;
        if (!is_due) {
            call = call->next;
            continue;
        }
        call_fail(call, e);
        call_free_if_over(call);
        n++;
        call = s->calls; /* others may have gone with it */
    }
    return n;
}

int32_t call_cancel_id(struct server *s, const char *request_id)
{
    struct api_error e;
    api_error_set(&e, 499, "cancelled", NULL, "the request was cancelled");
    return call_fail_each(s, request_id, &e);
}

void call_end_all(struct server *s, const char *why)
{
    struct api_error e;
    api_error_set(&e, 503, "unavailable", NULL, "%s", why);
    (void)call_fail_each(s, NULL, &e);
}
