/* call_response.c - the Responses API on the I/O thread: calls that make a response, calls that look at one, and the store.
 *
 * A response that is being made stands with the call that makes it (is_run); others that show its stream hold a reference. Each call
 * tells its own client from the log, as far as that client reads; so a slow one holds up nobody, but for the foreground
 * call whose rows pause as they do in every API.
 * Invariant: a background response has been stored before its client is told its id, and is stored again when it is over. */
#include "base/clock.h"
#include "base/log.h"
#include "server/server_int.h"
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESPONSE_PREFIX "/v1/responses/"

/* --- the store --- */

/* Send a job that comes back to the call, or (NULL) to nobody. False: the disk thread is behind, or nothing is kept. */
static bool call_submit_store(struct server *s, struct call *call, struct store_job *job)
{
    job->owner = call;
    if (!s->store || store_submit(s->store, job) != ERR_OK) {
        store_job_free(job);
        return false;
    }
    if (call)
        call->n_store++;
    return true;
}

static struct store_job *call_store_job(const struct call *call, enum store_op op, const char *id)
{
    struct store_job *job = store_job_new(op, op == STORE_OP_PUT ? 1 : 0);
    memcpy(job->who, call->who, sizeof(job->who));
    snprintf(job->id, sizeof(job->id), "%s", id);
    return job;
}

static bool call_put(struct call *call, struct call *owner)
{
    struct store_job *job = call_store_job(call, STORE_OP_PUT, "");
    job->is_last = response_is_over(call->response);
    response_to_row(call->response, &job->rows[0]);
    return call_submit_store(call->server, owner, job);
}

/* The response is over: it is kept as it is now. What it was recorded with goes when it is. */
static void call_keep(struct call *call)
{
    const struct prepared *p =
        call->prepared; /* NULL: a kept one, that could not be prepared again */
    if ((p && !p->response->is_stored) || call->is_dropped)
        return;
    if (!call_put(call, call->generation ? call : NULL))
        log_warn("store", "%s is not kept: the disk is behind", call->response->id);
}

/* --- showing it --- */

static void call_begin_stream(struct call *call)
{
    char extra[LIMIT_IGNORED_BYTES + 128] = "", headers[2048];
    if (call->is_run)
        call_extra_headers(call, extra, sizeof(extra));
    reply_headers(&call->to, extra, headers, sizeof(headers));
    http_stream_begin(call->conn, "text/event-stream; charset=utf-8", headers);
    call->sent_us = clock_us();
    call->is_view_stream = call->has_begun = true;
}

/* Send what the client can take. */
static void call_pump(struct call *call)
{
    struct server *s = call->server;
    while (call->conn && call->is_view_stream && !call->view.is_ended &&
           http_unsent(call->conn) < LIMIT_UNSENT_HIGH) {
        buf_reset(&s->out);
        response_write_events(call->response, &call->view, LIMIT_UNSENT_LOW, &s->out);
        if (s->out.len == 0)
            break;
        call->sent_us = clock_us();
        http_stream_add(call->conn, s->out.data, s->out.len);
    }
    if (call->conn && call->is_view_stream && call->view.is_ended) {
        bool is_fine = call->response->outcome.status != RESPONSE_STATUS_FAILED;
        http_stream_end(call_let_go(call, is_fine ? CALL_OUTCOME_SUCCESS : CALL_OUTCOME_ERROR));
    }
}

/* The whole object, to a client that waits for it. */
static void call_reply_object(struct call *call)
{
    struct server *s = call->server;
    char extra[LIMIT_IGNORED_BYTES + 128] = "";
    if (call->is_run)
        call_extra_headers(call, extra, sizeof(extra));
    buf_reset(&s->out);
    response_write_object(call->response, &s->out);
    if (s->out.failed) {
        struct api_error e;
        api_error_set(&e, 500, NULL, NULL, "the reply is over its limit of %d bytes: stream it",
                      LIMIT_REPLY_BYTES);
        call_fail(call, &e);
        return;
    }
    reply_body(call_let_go(call, CALL_OUTCOME_SUCCESS), &call->to, NULL, extra, &s->out);
}

/* Others that show the response get their part. They may end and go. */
static void call_pump_others(struct call *call)
{
    struct call *next;
    if (call->response->n_refs == 1)
        return;
    for (struct call *other = call->server->calls; other; other = next) {
        next = other->next;
        if (other == call || other->response != call->response)
            continue;
        call_pump(other);
        call_free_if_over(other);
    }
}

void call_response_send(struct call *call)
{
    struct response *r = call->response;
    bool is_over = response_is_over(r);
    if (response_has_failed(r) && !is_over) {
        struct api_error e;
        api_error_set(&e, 500, NULL, NULL, "the response is over its limit of %d bytes",
                      LIMIT_REPLY_BYTES);
        call_fail(call, &e);
        return;
    }
    if (is_over) {
        call_keep(call);
        call->outcome =
            r->outcome.status == RESPONSE_STATUS_FAILED ? CALL_OUTCOME_ERROR : CALL_OUTCOME_SUCCESS;
        call->is_detached = false;
        if (call->generation && !call->conn)
            call_resume_told(call);
    }
    call_pump_others(call);
    if (call->is_view_stream)
        call_pump(call);
    else if (is_over && call->conn && call->n_store == 0) /* else when its first PUT is back */
        call_reply_object(call);
}

void call_response_keep_alive(struct call *call)
{
    static const char comment[] = ": keep-alive\n\n";
    struct call *run = call->server->calls;
    while (run && !(run->response == call->response && run->is_run))
        run = run->next;
    if (run && run->generation) { /* told again it would not be there: it takes up no number */
        http_stream_add(call->conn, comment, sizeof(comment) - 1);
        call->sent_us = clock_us();
        return;
    }
    if (!run || response_is_over(run->response) || http_unsent(call->conn) >= LIMIT_UNSENT_HIGH ||
        run->response->log.len + 64 > LIMIT_REPLY_BYTES) /* it may not end here: others would go */
        return;
    run->dialect->keep_alive(&run->server->out, &run->head, run->states, run->n_legs);
    call_response_send(run);
}

void call_response_resume(struct call *call)
{
    call_pump(call);
    call_free_if_over(call);
}

/* A client that only looks on: its stream ends early. */
static void call_end_view(struct call *call, const struct api_error *e)
{
    struct server *s = call->server;
    struct json_writer w;
    buf_reset(&s->out);
    buf_add_str(&s->out, "event: error\ndata: ");
    json_writer_init(&w, &s->out);
    json_begin_object(&w);
    json_field_str(&w, "type", "error");
    json_field_int(&w, "sequence_number", call->view.n_events);
    json_field_str(&w, "code", e->code ? e->code : "server_error");
    json_field_str(&w, "message", e->text);
    json_field_null(&w, "param");
    json_end_object(&w);
    buf_add_str(&s->out, "\n\n");
    struct http_conn *c = call_let_go(call, CALL_OUTCOME_ERROR);
    http_stream_add(c, s->out.data, s->out.len);
    http_stream_end(c);
}

void call_response_fail(struct call *call, const struct api_error *e)
{
    struct server *s = call->server;
    if (call->generation && call->is_detached && s->state == SERVER_STATE_DRAINING &&
        e->status == 503) { /* its record and its row stay: it goes on after the restart */
        call->is_detached = false;
        call_abandon(call);
        return;
    }
    if (call->is_run && !response_is_over(call->response)) {
        call->is_dropped = call->is_dropped || e->status == 409; /* it can go on as it was begun */
        if (e->status >= 500 && e->status != 504)
            log_warn("http", "%s failed: %d %s", call->to.request_id, e->status,
                     e->code ? e->code : "");
        call->dialect->error(&call->server->out, &call->head, call->states, e);
        call_abandon(call);
        call_response_send(call);
    } else if (call->conn && call->is_view_stream) {
        call_end_view(call, e);
    }
}

void call_response_gone(struct call *call)
{
    if (!call->is_run || response_is_over(call->response))
        return;
    call->response->outcome.status = RESPONSE_STATUS_CANCELLED;
    call_pump_others(call);
}

/* --- making one --- */

void call_response_open(struct call *call)
{
    struct prepared_response *p = call->prepared->response;
    if (call->response) { /* it is kept, and goes on: its log begins again */
        buf_add(&call->response->custom, p->custom.data, p->custom.len);
        call->head.response = call->response;
        return;
    }
    unsigned flags = (p->is_background ? RESPONSE_FLAG_BACKGROUND : 0u) |
                     (p->has_summary ? RESPONSE_FLAG_SUMMARY : 0u);
    struct response *r = response_new(call->answer_id, flags);
    snprintf(r->previous, sizeof(r->previous), "%s", p->previous);
    r->created_s = call->head.created;
    r->outcome.status = p->is_background ? RESPONSE_STATUS_QUEUED : RESPONSE_STATUS_IN_PROGRESS;
    buf_add(&r->frame, p->frame.data, p->frame.len);
    buf_add(&r->input, p->input.data, p->input.len);
    buf_add(&r->custom, p->custom.data, p->custom.len);
    call->response = r;
    call->head.response = r;
    call->is_run = true;
}

/* A background response is told once it is stored: from then on it is promised. */
void call_response_start(struct call *call)
{
    struct api_error e;
    if (call->has_begun) /* its client was told long ago */
        return;
    if (!call->prepared->response->is_background) {
        if (call->prepared->is_stream || call->wants_stream) {
            call_begin_stream(call);
            call_pump(call);
        }
        return;
    }
    if (call_put(call, call))
        return;
    api_error_set(&e, 503, "store_busy", NULL, "the disk is behind: try again");
    call_fail(call, &e);
}

/* The first PUT of a background response is back. */
static void call_accepted(struct call *call, const struct store_job *job)
{
    struct api_error e;
    if (job->is_last) /* it is over and kept */
        return;
    if (job->err.code != ERR_OK) {
        if (!call->conn)
            return;
        api_error_set(&e, 503, "store_off", "background",
                      "background: the response cannot be kept: %.400s", job->err.text);
        call_fail(call, &e);
        return;
    }
    if (!call->conn) { /* the client went before it knew the id */
        (void)call_submit_store(call->server, NULL,
                                call_store_job(call, STORE_OP_DELETE, call->response->id));
        return;
    }
    call->has_begun = true;
    call->is_detached = !response_is_over(call->response);
    if (call->prepared->is_stream) {
        call_begin_stream(call);
        call_pump(call);
    } else {
        call_reply_object(call);
    }
}

/* --- its history --- */

void call_response_load(struct call *call, struct worker_job *job)
{
    struct prepared_response *p = call->prepared->response;
    struct store_job *chain = call_store_job(call, STORE_OP_CHAIN, p->previous);
    struct api_error e;
    chain->more = p->more;
    chain->n_more = p->n_more;
    p->more = NULL;
    prepare_free(call->prepared);
    call->prepared = NULL;
    job->keeps_body = false;
    call->again = job;
    if (call_submit_store(call->server, call, chain))
        return;
    api_error_set(&e, 503, "store_busy", NULL, "the disk is behind: try again");
    call_fail(call, &e);
}

/* What a failed look at the store means to the client. */
static void call_store_error(const struct store_job *job, const char *param, struct api_error *e)
{
    if (job->err.code == ERR_NOT_FOUND)
        api_error_set(e, 404,
                      param[0] == 'p' ? "previous_response_not_found" : "response_not_found", param,
                      "no response with the id '%.80s' is kept", job->id);
    else if (job->err.code == ERR_UNSUPPORTED)
        api_error_set(e, 400, "context_length_exceeded", param, "%s", job->err.text);
    else
        api_error_set(e, 503, "store_off", param, "what is kept cannot be read now: %.400s",
                      job->err.text);
}

static void call_loaded(struct call *call, struct store_job *job)
{
    struct worker_job *again = call->again;
    struct api_error e;
    bool is_wanted = call->conn || (call->is_maker && call->generation->n_readers > 0);
    call->again = NULL;
    if (is_wanted && job->err.code == ERR_OK) {
        again->history = job;
        call_prepare(call, again);
        return;
    }
    worker_job_free(again);
    if (is_wanted) {
        call_store_error(job, "previous_response_id", &e);
        call_fail(call, &e);
    }
    store_job_free(job);
}

/* --- GET, DELETE, cancel --- */

/* The call that makes the response, if it is the client's; or NULL. */
static struct call *call_find_run(const struct call *call, const char *id)
{
    for (struct call *run = call->server->calls; run; run = run->next)
        if (run->is_run && strcmp(run->response->id, id) == 0 && !run->is_dropped &&
            memcmp(run->who, call->who, sizeof(run->who)) == 0)
            return run;
    return NULL;
}

static void call_not_found(struct call *call, const char *id)
{
    struct api_error e;
    api_error_set(&e, 404, "response_not_found", "response_id",
                  "no response with the id '%.80s' is kept%s", id,
                  call->server->store ? "" : ": this server keeps none");
    call_fail(call, &e);
}

static void call_reply_deleted(struct call *call, const char *id)
{
    struct server *s = call->server;
    struct json_writer w;
    buf_reset(&s->out);
    json_writer_init(&w, &s->out);
    json_begin_object(&w);
    json_field_str(&w, "id", id);
    json_field_str(&w, "object", "response");
    json_field_bool(&w, "deleted", true);
    json_end_object(&w);
    reply_body(call_let_go(call, CALL_OUTCOME_SUCCESS), &call->to, NULL, "", &s->out);
}

/* call->response is there: do what was wished for. */
static void call_show(struct call *call)
{
    struct response *r = call->response;
    struct api_error e;
    bool is_elsewhere = !response_is_over(r) && !call_find_run(call, r->id);
    if (is_elsewhere && (call->wish == CALL_WISH_STREAM || call->wish == CALL_WISH_CANCEL)) {
        api_error_set(&e, 409, "other_process", "response_id",
                      "the response runs in another process of this state directory");
        call_fail(call, &e);
    } else if (call->wish == CALL_WISH_STREAM) {
        call_begin_stream(call);
        call_pump(call);
    } else if (call->wish == CALL_WISH_ITEMS) {
        struct worker_job *job = mem_alloc(MEM_CAT_REQUEST, sizeof(*job));
        job->owner = call;
        job->class = WORKER_CLASS_TEXT;
        job->kind = PREPARE_RESPONSE_ITEMS;
        job->list = call->list;
        buf_init(&job->body, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
        buf_add(&job->body, r->input.data, r->input.len);
        call_prepare(call, job);
    } else if (call->wish == CALL_WISH_CANCEL && !(response_flags(r) & RESPONSE_FLAG_BACKGROUND)) {
        api_error_set(&e, 400, NULL, "response_id",
                      "only a background response can be cancelled; end others by closing their "
                      "connection or by DELETE /v1/requests/ID");
        call_fail(call, &e);
    } else {
        call_reply_object(call);
    }
}

/* End a response that runs here. */
static void call_stop_run(struct call *run)
{
    struct api_error e;
    api_error_set(&e, 499, "cancelled", NULL, "the response was cancelled");
    call_fail(run, &e);
    call_free_if_over(run);
}

/* It runs here. */
static void call_ask_run(struct call *call, struct call *run)
{
    struct response *r = call->response = response_ref(run->response);
    bool is_background = response_flags(r) & RESPONSE_FLAG_BACKGROUND;
    if (call->wish == CALL_WISH_CANCEL && is_background && !response_is_over(r))
        call_stop_run(run);
    if (call->wish == CALL_WISH_DELETE) {
        run->is_dropped = true;
        if (is_background && !response_is_over(r))
            call_stop_run(run);
        (void)call_submit_store(call->server, NULL, call_store_job(call, STORE_OP_DELETE, r->id));
        call_reply_deleted(call, r->id);
        return;
    }
    call_show(call);
}

/* Its server ended while it ran: it may have left a record. */
static void call_look_for_record(struct call *call)
{
    struct journal_job *look = journal_job_new(JOURNAL_OP_FIND, "");
    if (call_resume_look(call, call->response->id, look))
        return;
    journal_job_free(look);
    response_interrupt(call->response);
    call_show(call);
}

/* It came from the store. */
static void call_ask_kept(struct call *call, struct store_job *job)
{
    struct api_error e;
    struct err err;
    if (!call->conn)
        return;
    if (job->err.code != ERR_OK) {
        call_store_error(job, "response_id", &e);
        call_fail(call, &e);
        return;
    }
    if (job->op == STORE_OP_DELETE) {
        call_reply_deleted(call, job->id);
        return;
    }
    bool may_go_on = job->rows[0].is_orphan && call->server->journal;
    job->rows[0].is_orphan = job->rows[0].is_orphan && !may_go_on;
    call->response = response_from_row(&job->rows[0], &err);
    if (!call->response)
        call_not_found(call, job->id);
    else if (may_go_on && !response_is_over(call->response))
        call_look_for_record(call);
    else
        call_show(call);
}

/* The response goes on without a client, by its record: as a reader of the generation that the record becomes. */
static struct call *call_resume_run(struct call *call, struct journal_job *found)
{
    struct call *run = call_new_run(call);
    run->response = run->head.response = call->response;
    call->response = NULL;
    call_resume_record(run, found);
    return run;
}

void call_response_found(struct call *call, struct journal_job *found)
{
    const char *id = call->response->id;
    struct call *run = call_find_run(call, id);
    const char *fingerprint = call->server->model.engine->info.fingerprint;
    if (run) { /* somebody else has asked */
        response_unref(call->response);
    } else if (found->record && strcmp(found->record->head.fingerprint, fingerprint) == 0) {
        run = call_resume_run(call, found);
    } else if (!found->is_elsewhere) {
        response_interrupt(call->response);
    }
    if (run)
        call_ask_run(call, run);
    else
        call_show(call);
}

bool call_response_read_from(struct call *call, struct api_error *e)
{
    char *end;
    long long v = strtoll(call->from, &end, 10);
    if (end == call->from || *end || v < 0 || v > INT32_MAX)
        return api_error_set(e, 400, NULL, "from",
                             "from (or Last-Event-ID): '%.40s' is no sequence_number of an event",
                             call->from);
    call->view.after = v + 1;
    return true;
}

void call_stored(struct server *s, struct store_job *job)
{
    struct call *call = job->owner;
    if (call) {
        call->n_store--;
        if (job->op == STORE_OP_CHAIN) {
            call_loaded(call, job);
            job = NULL; /* the worker's, or gone */
        } else if (job->op == STORE_OP_PUT) {
            call_accepted(call, job);
        } else {
            call_ask_kept(call, job);
        }
        call_free_if_over(call);
    }
    store_job_free(job);
}

/* --- the request --- */

bool call_query(const char *query, const char *name, char *out, size_t n)
{
    size_t len = strlen(name);
    for (const char *p = query; *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t part = strcspn(p, "&");
        if (part <= len || strncmp(p, name, len) != 0 || p[len] != '=' || part - len > n)
            continue;
        memcpy(out, p + len + 1, part - len - 1);
        out[part - len - 1] = '\0';
        return true;
    }
    return false;
}

/* A whole number in [min, max]; `otherwise` where the parameter is absent. False: e. */
static bool call_query_int(const char *query, const char *name, int64_t min, int64_t max,
                           int64_t otherwise, int64_t *out, struct api_error *e)
{
    char text[24], *end;
    *out = otherwise;
    if (!call_query(query, name, text, sizeof(text)))
        return true;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || v < min || v > max)
        return api_error_set(e, 400, NULL, name, "%s: must be a whole number from %lld to %lld",
                             name, (long long)min, (long long)max);
    *out = v;
    return true;
}

static bool call_read_query(struct call *call, const struct http_head *head, struct api_error *e)
{
    char text[16];
    int64_t after, limit;
    if (!call_query_int(head->query, "starting_after", 0, INT32_MAX, -1, &after, e) ||
        !call_query_int(head->query, "limit", 1, LIMIT_INPUT_ITEMS, 20, &limit, e))
        return false;
    call->view.after = after + 1;
    call->list.limit = (int32_t)limit;
    if (call->wish == CALL_WISH_OBJECT && call_query(head->query, "stream", text, sizeof(text)) &&
        strcmp(text, "true") == 0)
        call->wish = CALL_WISH_STREAM;
    if (call_query(head->query, "order", text, sizeof(text)))
        call->list.is_ascending = strcmp(text, "asc") == 0;
    (void)call_query(head->query, "after", call->list.after, sizeof(call->list.after));
    return true;
}

/* id and wish of "ID", "ID/input_items", "ID/cancel". False: no such path. */
static bool call_read_path(struct call *call, const struct http_head *head, const char *rest,
                           char *id, size_t n)
{
    size_t len = strcspn(rest, "/");
    const char *what = rest + len;
    bool is_post = head->method == HTTP_METHOD_POST;
    bool is_delete = head->method == HTTP_METHOD_DELETE;
    if (len == 0 || len >= n)
        return false;
    memcpy(id, rest, len);
    id[len] = '\0';
    if (is_delete && !*what)
        call->wish = CALL_WISH_DELETE;
    else if (is_post && strcmp(what, "/cancel") == 0)
        call->wish = CALL_WISH_CANCEL;
    else if (!is_post && !is_delete && !*what)
        call->wish = CALL_WISH_OBJECT;
    else if (!is_post && !is_delete && strcmp(what, "/input_items") == 0)
        call->wish = CALL_WISH_ITEMS;
    return call->wish != CALL_WISH_RUN;
}

void call_response_ask(struct server *s, struct http_conn *c, const struct http_head *head,
                       const char *rest)
{
    struct call *call = call_new(s, c, head);
    struct api_error e = { 0 };
    char id[STORE_ID_BYTES];
    guard_who(head, http_peer(c), call->who);
    if (!call_read_path(call, head, rest, id, sizeof(id)))
        api_error_set(&e, 404, "not_found", NULL,
                      "no such path: there are " RESPONSE_PREFIX "ID, .../input_items and "
                      ".../cancel");
    if (e.status == 0 && call_read_query(call, head, &e)) {
        struct call *run = call_find_run(call, id);
        enum store_op op = call->wish == CALL_WISH_DELETE ? STORE_OP_DELETE : STORE_OP_GET;
        if (run)
            call_ask_run(call, run);
        else if (!s->store)
            call_not_found(call, id);
        else if (!call_submit_store(s, call, call_store_job(call, op, id)))
            api_error_set(&e, 503, "store_busy", NULL, "the disk is behind: try again");
    }
    if (e.status != 0)
        call_fail(call, &e);
    call_free_if_over(call);
}
