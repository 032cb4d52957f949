/* call_session.c - sessions on the I/O thread: which one a request is a turn of, what its answers leave, and what clients ask of
 * sessions themselves: to be listed, saved, restored, deleted.
 *
 * A session that is restored is computed: its ids go through the scheduler like a prompt of one token's answer, so that memory and disk
 * give what they have, the rest is computed, and a reply that says `restored` has decoded from it. */
#include "base/clock.h"
#include "server/prepare_int.h"
#include "server/server_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- turns --- */

/* Whose session of which salt and model a call asks for. */
static void session_like(const struct call *call, const char *name, const uint8_t *salt,
                         struct session_record *out)
{
    const struct server *s = call->server;
    const char *model = s->model.engine->info.identity;
    *out = (struct session_record){ 0 };
    memcpy(out->who, call->who, sizeof(out->who));
    memcpy(out->salt, salt, sizeof(out->salt));
    if (!model)
        model = s->model.engine->info.model_id;
    snprintf(out->model, sizeof(out->model), "%.*s", (int)strcspn(model, "/"), model);
    snprintf(out->name, sizeof(out->name), "%s", name);
}

static void session_forget(struct server *s, struct session *session)
{
    (void)!sched_unpin(s->sched, session->key); /* else it goes by age */
    sessions_remove(&s->sessions, session);
}

static void session_make_room(struct server *s, const unsigned char *who, bool is_new)
{
    struct session *victim;
    while ((victim = sessions_victim(&s->sessions, who, is_new)) != NULL)
        session_forget(s, victim);
}

static void session_join(struct call *call, const struct session_record *like)
{
    struct server *s = call->server;
    struct session *session = sessions_find(&s->sessions, like);
    if (!session) {
        session_make_room(s, like->who, true);
        session = sessions_add(&s->sessions, like, guard_session(s, like), clock_wall_s());
    }
    sessions_ref(&s->sessions, session, clock_wall_s());
    call->session = session;
}

void call_session_open(struct call *call)
{
    const struct prepared *p = call->prepared;
    struct session_record like;
    if (!p->session[0] || p->n_choices == 0 || call->session)
        return;
    session_like(call, p->session, p->requests[0]->engine.cache_salt, &like);
    session_join(call, &like);
}

void call_session_close(struct call *call)
{
    struct server *s = call->server;
    struct session *session = call->session;
    uint64_t key = session ? session->key : 0;
    call->session = NULL;
    if (session && sessions_unref(&s->sessions, session))
        (void)!sched_unpin(s->sched, key); /* its last answer was pinned after it was deleted */
}

void call_session_leg(struct leg *leg, struct sched_request *r)
{
    struct call *call = leg->call;
    const struct engine_request *e = &r->engine;
    if (!call->session || leg->index != call->prepared->prompts[leg->prompt].first)
        return;
    r->engine.session = call->session->key;
    leg->cut = e->n_cuts > 0 ? e->cuts[e->n_cuts - 1] : e->n_prompt - 1; /* else: the same again */
    buf_add(&leg->history, e->prompt, sizeof(*e->prompt) * (size_t)e->n_prompt);
    buf_add(&leg->history, e->begun, sizeof(*e->begun) * (size_t)e->n_begun);
}

void call_session_event(struct leg *leg, const struct sched_event *ev)
{
    struct call *call = leg->call;
    const struct sched_finished *f = &ev->finished;
    if (leg->history.len == 0)
        return;
    if (ev->kind == SCHED_EVENT_TOKEN) {
        if (!call->is_restore)
            buf_add(&leg->history, &ev->token.token.id, sizeof(ev->token.token.id));
        return;
    }
    bool is_whole =
        f->finish != FINISH_ERROR || /* what a client ended stays, too */
        (f->n_tokens > 0 && (f->err.code == ERR_CANCELLED || f->err.code == ERR_TIMEOUT));
    if (is_whole && !leg->history.failed) {
        sessions_put(&call->server->sessions, call->session,
                     (const int32_t *)(const void *)leg->history.data,
                     (int32_t)(leg->history.len / sizeof(int32_t)), leg->cut);
        session_make_room(call->server, call->session->record.who, false);
    }
    buf_release(&leg->history);
}

/* --- what is told --- */

static void write_time(struct json_writer *w, const char *name, int64_t s)
{
    json_key(w, name);
    if (s > 0)
        json_int(w, s);
    else
        json_null(w);
}

/* One that is known, that is saved, or both (either may be NULL). */
static void write_session(struct json_writer *w, const struct session *x,
                          const struct session_record *saved)
{
    const struct session_record *r = x ? &x->record : saved;
    json_begin_object(w);
    json_field_str(w, "id", r->name);
    json_field_str(w, "object", "session");
    json_field_int(w, "created", r->created_s);
    write_time(w, "last_used", x ? x->used_s : 0);
    json_field_int(w, "turns", x ? x->n_turns : 0);
    json_field_int(w, "tokens", r->n_histories > 0 ? r->histories[0].n : 0);
    json_field_array(w, "histories");
    for (int32_t i = 0; i < r->n_histories; i++)
        json_int(w, r->histories[i].n);
    json_end_array(w);
    json_field_bool(w, "running", x && x->n_live > 0);
    json_field_bool(w, "saved", saved != NULL);
    write_time(w, "saved_at", saved ? saved->saved_s : 0);
    json_end_object(w);
}

static void session_reply(struct call *call)
{
    struct http_conn *c = call->conn;
    call->conn = NULL;
    call->outcome = CALL_OUTCOME_SUCCESS;
    reply_body(c, &call->to, NULL, "", &call->server->out);
}

static void begin_reply(struct call *call, struct json_writer *w)
{
    buf_reset(&call->server->out);
    json_writer_init(w, &call->server->out);
}

static void session_not_found(struct call *call, const char *what)
{
    struct api_error e;
    api_error_set(&e, 404, "session_not_found", "id",
                  "there is no %s '%s' of this key, cache_salt and model", what,
                  call->session_like.name);
    call_fail(call, &e);
}

/* --- listing --- */

static bool is_of(const struct session *x, const struct session_record *like)
{
    return !x->is_gone && memcmp(x->record.who, like->who, sizeof(like->who)) == 0 &&
           memcmp(x->record.salt, like->salt, sizeof(like->salt)) == 0 &&
           strcmp(x->record.model, like->model) == 0;
}

static const struct session_record *head_of(const struct session_job *job, const char *name)
{
    for (int32_t i = 0; job && i < job->n_heads; i++)
        if (strcmp(job->heads[i].name, name) == 0)
            return &job->heads[i];
    return NULL;
}

/* job: what is saved; NULL where nothing can be. */
static void reply_list(struct call *call, const struct session_job *job)
{
    const struct sessions *all = &call->server->sessions;
    struct session_record like = call->session_like;
    struct json_writer w;
    begin_reply(call, &w);
    json_begin_object(&w);
    json_field_str(&w, "object", "list");
    json_field_array(&w, "data");
    for (const struct session *x = all->first; x; x = x->next)
        if (is_of(x, &like))
            write_session(&w, x, head_of(job, x->record.name));
    for (int32_t i = 0; job && i < job->n_heads; i++) {
        snprintf(like.name, sizeof(like.name), "%s", job->heads[i].name);
        if (!sessions_find(all, &like))
            write_session(&w, NULL, &job->heads[i]);
    }
    json_end_array(&w);
    json_end_object(&w);
    session_reply(call);
}

static void reply_one(struct call *call, const struct session_job *job)
{
    const struct session *x = sessions_find(&call->server->sessions, &call->session_like);
    const struct session_record *saved = head_of(job, call->session_like.name);
    struct json_writer w;
    if (!x && !saved) {
        session_not_found(call, "session");
        return;
    }
    begin_reply(call, &w);
    write_session(&w, x, saved);
    session_reply(call);
}

/* --- saving --- */

static void reply_saved(struct call *call, bool is_durable)
{
    struct json_writer w;
    begin_reply(call, &w);
    json_begin_object(&w);
    json_field_str(&w, "id", call->session_like.name);
    json_field_str(&w, "object", "session");
    json_field_bool(&w, "saved", true);
    json_field_int(&w, "tokens", call->session_tokens);
    json_field_bool(&w, "pages_durable", is_durable);
    json_field_int(&w, "elapsed_ms", (clock_us() - call->arrived_us) / 1000);
    json_end_object(&w);
    call->server->n_sessions_saved++;
    session_reply(call);
}

void call_session_flushed(struct call *call, bool is_durable)
{
    if (call->conn)
        reply_saved(call, is_durable);
}

/* The record is durable; where there is a disk cache what layers keep of it shall be, too. */
static void session_saved(struct call *call)
{
    struct server *s = call->server;
    struct sched_stats st;
    sched_read_stats(s->sched, &st);
    call->id = s->next_id++;
    call->is_flush = st.disk.is_there && sched_flush(s->sched, call->id) == ERR_OK;
    if (call->is_flush)
        call->n_store++;
    else
        reply_saved(call, false);
}

/* --- restoring --- */

/* Each history as a prompt of one token's answer, the newest last: it is the one that was used last then. */
static struct prepared *restore_prepare(const struct session_record *r, int32_t n_ctx)
{
    struct prepared *p = prepare_new(PREPARE_RESTORE);
    prepare_room(p, r->n_histories > 0 ? r->n_histories : 1);
    p->n_logprobs = p->n_prompt_logprobs = -1;
    for (int32_t i = r->n_histories; i-- > 0;) {
        const struct session_history *h = &r->histories[i];
        struct engine_request e = {
            .prompt = h->ids,
            .n_prompt = h->n < n_ctx    ? h->n
                        : h->n == n_ctx ? n_ctx - 1
                                        : h->n,
            .max_tokens = 1,
            .no_drafts = true,
            .sample = { .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .n_logprobs = -1 },
            .cuts = { h->cut },
            .n_cuts = h->cut > 0,
        };
        memcpy(e.cache_salt, r->salt, sizeof(e.cache_salt));
        p->requests[p->n_choices] = sched_request_new(0, &e);
        if (!p->requests[p->n_choices])
            break; /* no memory */
        p->prompts[p->n_prompts++] = (struct prepared_prompt){ .first = p->n_choices++,
                                                               .n_choices = 1,
                                                               .n_tokens = e.n_prompt };
        p->prompt_tokens += e.n_prompt;
    }
    return p;
}

static void session_restore(struct call *call, const struct session_record *saved)
{
    struct server *s = call->server;
    struct api_error e;
    call->prepared = restore_prepare(saved, s->model.engine->info.n_ctx);
    call->is_restore = true;
    if (call->prepared->n_choices < saved->n_histories || saved->n_histories == 0) {
        api_error_set(&e, 503, "out_of_memory", NULL, "no memory for the session's token ids");
        call_fail(call, &e);
        return;
    }
    session_join(call, saved);
    call->session->record.created_s = saved->created_s;
    call_describe(call);
    call->head.session = call->session_like.name;
    call_run(call);
}

static void restored_whole(struct buf *out, const struct dialect_head *h,
                           const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "id", h->session);
    json_field_str(&w, "object", "session");
    json_field_bool(&w, "restored", true);
    json_field_int(&w, "histories", n);
    json_field_int(&w, "tokens", u->prompt_tokens);
    json_field_int(&w, "cached_tokens", u->cached_tokens);
    json_field_int(&w, "computed_tokens", u->prompt_tokens - u->cached_tokens);
    json_field_int(&w, "elapsed_ms", u->prompt_us / 1000);
    json_end_object(&w);
}

const struct dialect dialect_restored = { .id_prefix = "session-", .whole = restored_whole };

/* --- deleting --- */

static void reply_deleted(struct call *call, bool was_saved)
{
    struct json_writer w;
    if (!was_saved && !call->was_known) {
        session_not_found(call, "session");
        return;
    }
    begin_reply(call, &w);
    json_begin_object(&w);
    json_field_str(&w, "id", call->session_like.name);
    json_field_str(&w, "object", "session.deleted");
    json_field_bool(&w, "deleted", true);
    json_end_object(&w);
    session_reply(call);
}

/* --- requests --- */

static void session_job_failed(struct call *call, const struct session_job *job)
{
    struct api_error e;
    if (job->err.code == ERR_NOT_FOUND) {
        session_not_found(call, "saved session");
        return;
    }
    if (job->err.code == ERR_FULL)
        api_error_set(&e, 507, "no_room", NULL, "the session is not saved: %.400s", job->err.text);
    else
        api_error_set(&e, 503, "disk_failed", NULL, "%.400s", job->err.text);
    call_fail(call, &e);
}

static void session_take(struct call *call, struct session_job *job)
{
    bool has_failed = job->err.code != ERR_OK;
    if (job->op == SESSION_OP_DELETE && (!has_failed || job->err.code == ERR_NOT_FOUND))
        reply_deleted(call, !has_failed);
    else if (has_failed)
        session_job_failed(call, job);
    else if (job->op == SESSION_OP_LIST)
        (call->session_like.name[0] ? reply_one : reply_list)(call, job);
    else if (job->op == SESSION_OP_SAVE)
        session_saved(call);
    else
        session_restore(call, &job->record);
}

void call_session_found(struct server *s, struct session_job *job)
{
    struct call *call = job->owner;
    if (call->conn)
        session_take(call, job);
    call->n_store--;
    session_job_free(job);
    call_free_if_over(call);
}

static void session_submit(struct call *call, struct session_job *job)
{
    struct api_error e;
    job->owner = call;
    if (session_files_submit(call->server->session_files, job) == ERR_OK) {
        call->n_store++;
        return;
    }
    session_job_free(job);
    api_error_set(&e, 503, "busy", NULL, "the disk is behind: try again");
    call_fail(call, &e);
}

static void session_look(struct call *call, enum session_op op)
{
    struct session_job *job = session_job_new(op);
    job->record = call->session_like;
    session_submit(call, job);
}

static void session_save(struct call *call)
{
    const struct session *x = sessions_find(&call->server->sessions, &call->session_like);
    struct session_job *job;
    struct api_error e;
    if (!x || x->record.n_histories == 0) {
        session_not_found(call, "session with an answer");
        return;
    }
    job = session_job_new(SESSION_OP_SAVE);
    if (!session_record_copy(&x->record, &job->record)) {
        session_job_free(job);
        api_error_set(&e, 503, "out_of_memory", NULL, "no memory for the session's token ids");
        call_fail(call, &e);
        return;
    }
    job->record.saved_s = clock_wall_s();
    call->session_tokens = job->record.histories[0].n;
    session_submit(call, job);
}

static void session_delete(struct call *call)
{
    struct server *s = call->server;
    struct session *x = sessions_find(&s->sessions, &call->session_like);
    call->was_known = x != NULL;
    if (x)
        session_forget(s, x);
    if (s->session_files)
        session_look(call, SESSION_OP_DELETE);
    else
        reply_deleted(call, false);
}

/* "%41" in a query's value. False: no such thing, or a NUL. */
static bool unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        char hex[3] = { 0 };
        *to = *p == '+' ? ' ' : *p;
        if (*p == '%') {
            hex[0] = p[1];
            hex[1] = p[1] ? p[2] : '\0';
            if (strspn(hex, "0123456789abcdefABCDEF") != 2 || strcmp(hex, "00") == 0)
                return false;
            *to = (char)strtol(hex, NULL, 16);
            p += 2;
        }
        to++;
    }
    *to = '\0';
    return true;
}

/* Whose sessions, and of which salt: ?cache_salt=. False: e. */
static bool session_scope(struct call *call, const struct http_head *head, struct api_error *e)
{
    char text[3 * LIMIT_SALT_BYTES + 1] = "";
    uint8_t salt[ENGINE_SALT_BYTES] = { 0 };
    bool has_salt = call_query(head->query, "cache_salt", text, sizeof(text));
    if (has_salt && (!unescape(text) || strlen(text) > LIMIT_SALT_BYTES))
        return api_error_set(e, 400, NULL, "cache_salt",
                             "cache_salt: must be at most %d bytes, others than letters and digits "
                             "as %%XX",
                             LIMIT_SALT_BYTES);
    if (has_salt)
        session_salt_of(text, strlen(text), salt);
    session_like(call, "", salt, &call->session_like);
    return true;
}

void call_session_list(struct server *s, struct http_conn *c, const struct http_head *head,
                       const char *rest)
{
    struct call *call = call_new(s, c, head);
    struct api_error e = { 0 };
    guard_who(head, http_peer(c), call->who);
    if (!session_scope(call, head, &e))
        call_fail(call, &e);
    else if (s->session_files)
        session_look(call, SESSION_OP_LIST);
    else
        reply_list(call, NULL);
    call_free_if_over(call);
}

/* The name of "NAME", "NAME/save", "NAME/restore", and what follows it. False: e. */
static bool session_path(struct call *call, const char *rest, const char **action,
                         struct api_error *e)
{
    size_t n = strcspn(rest, "/");
    *action = rest + n;
    if (!session_name_is_fine(rest, n))
        return api_error_set(
            e, 400, NULL, "id",
            "'%.*s' is no name of a session: up to %d letters, digits and -_.: are",
            (int)(n < 40 ? n : 40), rest, LIMIT_SESSION_BYTES);
    if (**action && strcmp(*action, "/save") != 0 && strcmp(*action, "/restore") != 0)
        return api_error_set(e, 404, "not_found", NULL, "no such path: see GET /v1");
    snprintf(call->session_like.name, sizeof(call->session_like.name), "%.*s", (int)n, rest);
    return true;
}

static bool session_act(struct call *call, const struct http_head *head, const char *action,
                        struct api_error *e)
{
    struct server *s = call->server;
    bool saves = strcmp(action, "/save") == 0, restores = strcmp(action, "/restore") == 0;
    bool is_post = head->method == HTTP_METHOD_POST;
    if (is_post != (saves || restores)) {
        e->allow = saves || restores ? "POST, OPTIONS" : "GET, HEAD, DELETE, OPTIONS";
        return api_error_set(e, 405, "method_not_allowed", NULL,
                             "of a session there are GET, DELETE, POST .../save and POST "
                             ".../restore");
    }
    if (is_post && !s->session_files)
        return api_error_set(e, 400, "no_state_dir", NULL,
                             "sessions are saved in a directory, and this server has none: start "
                             "it with --state-dir DIR");
    if (head->method == HTTP_METHOD_DELETE)
        session_delete(call);
    else if (saves)
        session_save(call);
    else if (restores)
        session_look(call, SESSION_OP_LOAD);
    else if (s->session_files)
        session_look(call, SESSION_OP_LIST);
    else
        reply_one(call, NULL);
    return true;
}

void call_session_ask(struct server *s, struct http_conn *c, const struct http_head *head,
                      const char *rest)
{
    struct call *call = call_new(s, c, head);
    struct api_error e = { 0 };
    const char *action;
    guard_who(head, http_peer(c), call->who);
    if (!session_scope(call, head, &e) || !session_path(call, rest, &action, &e) ||
        !session_act(call, head, action, &e))
        call_fail(call, &e);
    call_free_if_over(call);
}
