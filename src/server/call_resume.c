/* call_resume.c - generations that outlive their connection and the process, on the I/O thread.
 *
 * A request with an id of the client's own is first looked for: among what runs, then in the journal. What it finds it reads; else it
 * begins. A generation is made by a call without a client (the maker), which has the scheduler's requests; every client is a reader,
 * which takes tokens from the generation at its own pace and shows them by means of its own, from the first one on. So a second reader, a
 * client that comes back and one that comes after a restart are the same thing: they get the same bytes. A reader that is
 * slow waits for itself; the maker's rows do not pause.
 * Invariants: (1) a generation is on the server's list while a call refers to it; (2) one that is cut off is never joined: who asks for it
 * waits until its last tokens are with the journal, and finds it there. */
#include "base/clock.h"
#include "base/log.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

static struct generation *resume_find_live(const struct server *s, const char *name)
{
    struct generation *g = s->generations;
    while (g && strcmp(g->name, name) != 0)
        g = g->next;
    return g;
}

/* Does anybody take what it reads: a client, or a response that runs without one? */
static bool resume_reads(const struct call *call)
{
    return call->conn || call->is_detached;
}

static void resume_refuse(struct call *call, const char *code, const char *text)
{
    struct api_error e;
    api_error_set(&e, 409, code, NULL, "%s", text);
    call->server->n_resume_refused++;
    call_fail(call, &e);
}

/* --- readers --- */

void call_resume_pump(struct call *call)
{
    struct generation *g = call->generation;
    bool goes_on = g->is_ready && call->n_legs > 0;
    while (goes_on && resume_reads(call) && !call->is_paused) {
        goes_on = false;
        for (int32_t i = 0; i < call->n_legs && resume_reads(call) && !call->is_paused; i++) {
            struct leg *leg = &call->legs[i];
            const struct generation_choice *c = &g->choices[i];
            if (!leg->is_live)
                continue;
            if (leg->n_fed < c->tokens.n) {
                struct sched_token t;
                generation_get(g, i, leg->n_fed++, &t);
                call_take_token(leg, &t);
                goes_on = true;
            } else if (c->is_over) {
                call_take_end(leg, &c->end);
                goes_on = true;
            }
        }
    }
}

/* Each reader once. The end of a response ends those that look on, too: any call may be gone then, so that the list begins again. */
static void resume_each(struct generation *g, struct server *s, void (*act)(struct call *call))
{
    uint64_t pass = ++s->next_pass;
    for (struct call *call = s->calls; call;) {
        bool is_due = call->pass != pass && call->generation == g && !call->is_maker;
        call->pass = pass;
        if (is_due) {
            act(call);
            call_free_if_over(call);
        }
        call = is_due ? s->calls : call->next;
    }
}

static void resume_pump_all(struct generation *g, struct server *s)
{
    resume_each(g, s, call_resume_pump);
}

/* Where the reader's stream begins. False: e. */
static bool resume_read_from(struct call *call, struct leg_place *have, struct api_error *e)
{
    const struct prepared *p = call->prepared;
    if (!call->from || p->response)
        for (int32_t i = 0; i < p->n_choices; i++)
            have[i] = (struct leg_place){ -1, 0 };
    else if (!call_resume_read_places(call->from, have, p->n_choices))
        return api_error_set(e, 400, NULL, "from",
                             "from (or Last-Event-ID): '%.40s' is no place in a stream of %d "
                             "answers: use the id of an event, or a number of tokens",
                             call->from, p->n_choices);
    return !call->from || !p->response || call_response_read_from(call, e);
}

/* It is ready: the reader's reply begins. */
static void resume_start(struct call *call)
{
    struct generation *g = call->generation;
    const struct prepared *p = call->prepared = g->prepared;
    struct leg_place have[LIMIT_CHOICES];
    struct api_error e;
    int32_t prompt = 0;
    if (!resume_read_from(call, have, &e)) {
        call_fail(call, &e);
        return;
    }
    memcpy(call->answer_id, g->head.answer_id, sizeof(call->answer_id));
    call_describe(call);
    call->head.created = g->head.created_s;
    if (p->response)
        call_response_open(call);
    call_add_legs(call);
    for (int32_t i = 0; i < p->n_choices; i++) {
        while (i >= p->prompts[prompt].first + p->prompts[prompt].n_choices)
            prompt++;
        call->legs[i] = (struct leg){ .call = call,
                                      .index = i,
                                      .prompt = prompt,
                                      .is_live = true,
                                      .place = { -1, 0 },
                                      .have = have[i] };
        leg_init(&call->legs[i]);
    }
    call->n_live = call->n_begun = p->n_choices;
    call_start(call);
    call_resume_pump(call);
}

static void resume_join(struct call *call, struct generation *g)
{
    call->generation = g;
    call->is_reading = true;
    g->n_refs++;
    g->n_readers++;
    if (g->is_ready)
        resume_start(call);
}

/* What is read of a generation is not the scheduler's: nothing comes any more. */
static void resume_drop_legs(struct call *call)
{
    for (int32_t i = 0; i < call->n_legs; i++)
        call->legs[i].is_live = false;
    call->n_live = 0;
}

void call_resume_told(struct call *call)
{
    call->generation->is_told = true;
    call->generation->n_readers -= call->is_reading;
    call->is_reading = false;
    resume_drop_legs(call);
}

/* Nobody waits for it: its rows end, its record stays. */
static void resume_cut_off(struct generation *g)
{
    struct call *maker = g->maker;
    g->is_dying = true;
    if (!maker)
        return;
    maker->is_finishing = false;
    call_abandon(maker);
    call_free_if_over(maker);
}

void call_resume_leave(struct call *call, bool is_closed)
{
    struct generation *g = call->generation;
    resume_drop_legs(call);
    if (call->is_maker || !call->is_reading)
        return;
    call->is_reading = false;
    if (--g->n_readers > 0 || g->is_failing || !g->maker)
        return;
    bool goes_on = is_closed && g->is_ready && g->prepared->disconnect == PREPARE_DISCONNECT_FINISH;
    if (goes_on)
        g->maker->is_finishing = true;
    else
        resume_cut_off(g);
}

/* Those that waited for the end of one look again. */
static void resume_wake_waiting(struct server *s)
{
    for (struct call *call = s->calls; call; call = call->next)
        if (call->find && !resume_find_live(s, call->find->name) &&
            journal_submit(s->journal, call->find) == ERR_OK)
            call->find = NULL; /* else again with the next tick */
}

void call_resume_unref(struct call *call)
{
    struct server *s = call->server;
    struct generation *g = call->generation;
    call->generation = NULL;
    if (call->prepared == g->prepared)
        call->prepared = NULL;
    if (call->is_maker)
        g->maker = NULL;
    if (--g->n_refs > 0) {
        if (call->is_maker)
            generation_flush(g);
        return;
    }
    *(g->prev ? &g->prev->next : &s->generations) = g->next;
    if (g->next)
        g->next->prev = g->prev;
    generation_free(g);
    resume_wake_waiting(s);
}

/* --- the maker --- */

/* Its readers are told, its rows end. The maker is not freed. */
static void resume_fail(struct generation *g, const struct api_error *e)
{
    struct server *s = g->maker->server;
    g->is_failing = g->is_dying = true;
    g->maker->is_finishing = false;
    for (struct call *call = s->calls; call;) {
        if (call->generation != g || call->is_maker || !resume_reads(call)) {
            call = call->next;
            continue;
        }
        s->n_resume_refused += e->status == 409;
        call_fail(call, e);
        call_free_if_over(call);
        call = s->calls; /* others may have gone with it */
    }
    call_abandon(g->maker);
}

void call_resume_fail(struct call *maker, const struct api_error *e)
{
    resume_fail(maker->generation, e);
}

static struct generation *resume_new(struct call *reader, const struct journal_job *job,
                                     enum prepare_kind kind)
{
    struct server *s = reader->server;
    struct generation *g = generation_new(s->journal, s->config.checkpoint, kind, job->name);
    struct call *maker = call_new_maker(reader);
    memcpy(g->head.who, reader->who, sizeof(g->head.who));
    memcpy(g->head.digest, job->digest, sizeof(g->head.digest));
    snprintf(g->head.id, sizeof(g->head.id), "%s", reader->to.request_id);
    maker->to.is_anthropic = kind == PREPARE_MESSAGES;
    maker->generation = g;
    g->maker = maker;
    g->next = s->generations;
    if (g->next)
        g->next->prev = g;
    s->generations = g;
    return g;
}

/* Prepare it: as it was, where there is a record. */
static void resume_prepare(struct generation *g, struct worker_job *job)
{
    struct call *maker = g->maker;
    job->owner = maker;
    job->class = prepare_is_constrained(job->body.data, job->body.len) ? WORKER_CLASS_GRAMMAR
                                                                       : WORKER_CLASS_TEXT;
    job->kind = g->kind;
    job->trace = maker->track;
    job->is_recorded = true;
    g->head.seed = job->seed;
    if (job->id[0]) /* a response's items are named after it */
        snprintf(maker->answer_id, sizeof(maker->answer_id), "%.39s", job->id);
    call_prepare(maker, job);
}

void call_resume_record(struct call *call, struct journal_job *found)
{
    struct server *s = call->server;
    struct journal_record *r = found->record;
    enum prepare_kind kind;
    const struct engine_info *info = &s->model.engine->info;
    char text[640];
    if (found->dialect && memcmp(found->digest, r->head.digest, sizeof(found->digest)) != 0) {
        resume_refuse(call, "request_id_in_use",
                      "a request of that id was sent with another body (or to another path): use a "
                      "new id");
        return;
    }
    if (strcmp(r->head.fingerprint, info->fingerprint) != 0) {
        generation_say_change(&r->head, info, text, sizeof(text));
        resume_refuse(call, "fingerprint_changed", text);
        return;
    }
    if (!generation_kind(r->head.dialect, &kind)) {
        resume_refuse(call, "fingerprint_changed", "the record is of a dialect that is not known");
        return;
    }
    struct worker_job *job = mem_alloc(MEM_CAT_REQUEST, sizeof(*job));
    struct generation *g = resume_new(call, found, kind);
    g->record = r;
    found->record = NULL;
    g->head = r->head;
    job->seed = r->head.seed;
    job->now_s = r->head.now_s;
    if (kind == PREPARE_RESPONSES)
        snprintf(job->id, sizeof(job->id), "%s", r->head.answer_id);
    job->body = r->body;
    buf_init(&r->body, MEM_CAT_REQUEST, JOURNAL_RECORD_BYTES);
    s->n_resumed++;
    log_debug("http", "%s: resumed after %d tokens", call->to.request_id, r->choices[0].tokens.n);
    resume_join(call, g);
    resume_prepare(g, job);
    if (g->maker)
        call_free_if_over(g->maker);
}

static void resume_begin_new(struct call *call, struct journal_job *found)
{
    struct worker_job *job = call->again;
    call->again = NULL;
    job->body = found->body;
    buf_init(&found->body, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    struct generation *g = resume_new(call, found, job->kind);
    resume_join(call, g);
    resume_prepare(g, job);
    if (g->maker)
        call_free_if_over(g->maker);
}

/* False: it waits. */
static bool resume_take_found(struct call *call, struct journal_job *job)
{
    struct server *s = call->server;
    struct generation *g = resume_find_live(s, job->name);
    struct api_error e;
    if (g && g->is_dying) {
        call->find = job;
        return false;
    }
    if (g && job->dialect && memcmp(job->digest, g->head.digest, sizeof(job->digest)) != 0) {
        resume_refuse(call, "request_id_in_use",
                      "a request of that id runs with another body (or on another path): use a "
                      "new id");
    } else if (g) {
        s->n_resumed++;
        resume_join(call, g);
    } else if (job->is_elsewhere) {
        resume_refuse(call, "other_process",
                      "a request of that id runs in another process of this directory");
    } else if (job->record) {
        call_resume_record(call, job);
    } else if (job->dialect) {
        resume_begin_new(call, job);
    } else {
        api_error_set(&e, 404, "request_not_found", "id",
                      "no request of the id '%.128s' runs or has a record", call->to.request_id);
        call_fail(call, &e);
    }
    return true;
}

void call_resume_found(struct server *s, struct journal_job *job)
{
    struct call *call = job->owner;
    if (call->conn && call->response)
        call_response_found(call, job);
    else if (call->conn && !resume_take_found(call, job))
        return;
    worker_job_free(call->again);
    call->again = NULL;
    journal_job_free(job);
    call->n_store--; /* until here it has stayed, whatever became of it */
    call_free_if_over(call);
}

/* --- acceptance --- */

/* The choices that have not ended, to the scheduler. False: e. */
static bool resume_submit(struct generation *g, struct api_error *e)
{
    struct call *maker = g->maker;
    struct server *s = maker->server;
    struct prepared *p = g->prepared;
    struct sched_request *requests[LIMIT_CHOICES];
    struct err err;
    int32_t n = 0, prompt = 0, leader = -1;
    if (!call_may_go(maker, e))
        return false;
    call_session_open(maker);
    call_add_legs(maker);
    maker->n_begun = p->n_choices;
    for (int32_t i = 0; i < p->n_choices; i++) {
        if (i >= p->prompts[prompt].first + p->prompts[prompt].n_choices) {
            prompt++;
            leader = -1;
        }
        if (g->choices[i].is_over)
            continue;
        struct sched_request *r = generation_request(g, i);
        if (!r)
            return api_error_set(e, 503, "out_of_memory", NULL, "no memory for the request");
        sched_request_free(p->requests[i]);
        p->requests[i] = requests[n++] = r;
        call_add_leg(maker, i, prompt);
        leader = leader < 0 ? i : leader;
        r->leader = maker->legs[leader].id; /* the first may have ended long ago */
        maker->legs[i].is_live = true;
        maker->legs[i].n_fed = g->choices[i].n_given > 0 ? g->choices[i].n_given - 1 : 0;
    }
    if (n == 0)
        return true;
    enum err_code code = sched_submit(s->sched, requests, n, &err);
    if (code == ERR_FULL)
        return api_error_set(e, 429, "queue_full", NULL, "%s", err.text);
    if (code != ERR_OK) {
        api_error_from(e, &err);
        return false;
    }
    for (int32_t i = 0; i < p->n_choices; i++)
        if (maker->legs[i].is_live) {
            p->requests[i] = NULL; /* the scheduler's */
            maker->n_live++;
        }
    return true;
}

/* Legs that the scheduler did not take. */
static void resume_undo_legs(struct call *maker)
{
    for (int32_t i = 0; i < maker->n_legs && maker->n_live == 0; i++) {
        struct leg *leg = &maker->legs[i];
        if (!leg->is_live)
            continue;
        maker->server->legs[leg->id % LIMIT_LIVE] = NULL;
        maker->server->n_legs--;
        leg->is_live = false;
    }
}

/* Answers that end with their first call are looked through by the maker, too: it ends the row. */
static void resume_watch(struct generation *g, struct leg *leg, int32_t index)
{
    const struct prepared *p = g->prepared;
    struct sched_token t;
    if (!p->is_split || !p->split.is_single || leg->is_done)
        return;
    generation_get(g, leg->index, index, &t);
    answer_add(&leg->answer, &t.token);
    leg->text_safe = t.text_safe;
    leg_show(leg);
    if (!leg->is_done)
        return;
    struct server *s = leg->call->server;
    g->choices[leg->index].is_done = true;
    leg->is_cancel_due = sched_cancel(s->sched, leg->id) != ERR_OK;
    s->has_due = s->has_due || leg->is_cancel_due;
}

static void resume_start_one(struct call *call)
{
    if (resume_reads(call))
        resume_start(call);
}

/* A background response is asked for by its own id, whatever its request's is. */
static void resume_name(struct generation *g)
{
    const struct prepared_response *r = g->prepared->response;
    if (r && r->is_background)
        journal_name(g->head.who, g->head.answer_id, g->name);
}

/* It was prepared and can be resumed. False: e. */
static bool resume_open(struct generation *g, struct api_error *e)
{
    struct call *maker = g->maker;
    struct server *s = maker->server;
    struct err err;
    if (g->record)
        memcpy(maker->answer_id, g->head.answer_id, sizeof(maker->answer_id));
    call_describe(maker);
    if (!g->record) {
        memcpy(g->head.answer_id, maker->answer_id, sizeof(g->head.answer_id));
        g->head.created_s = maker->head.created;
        resume_name(g);
    }
    enum err_code code = generation_open(g, &s->model.engine->info, s->model.tokenizer, &err);
    if (code == ERR_STATE)
        return api_error_set(e, 409, "settings_changed", NULL, "%s", err.text);
    if (code != ERR_OK) {
        api_error_from(e, &err);
        return false;
    }
    if (!resume_submit(g, e)) {
        resume_undo_legs(maker);
        return false;
    }
    for (int32_t i = 0; i < maker->n_legs; i++)
        for (int32_t k = 0; k < g->choices[i].tokens.n && maker->legs[i].is_live; k++)
            resume_watch(g, &maker->legs[i], k);
    generation_begin(g);
    g->is_ready = true;
    resume_each(g, s, resume_start_one);
    return true;
}

/* It cannot be resumed after all (its prompt is scored): the only reader makes it itself. */
static void resume_dissolve(struct generation *g, struct worker_job *job, struct prepared *p)
{
    struct server *s = g->maker->server;
    struct call *reader = s->calls;
    struct api_error e;
    while (reader && (reader->generation != g || reader->is_maker || !reader->conn))
        reader = reader->next;
    g->is_failing = g->is_dying = true;
    if (!reader || g->n_readers > 1) {
        api_error_set(&e, 409, "request_id_in_use", NULL,
                      "requests whose prompt is scored cannot be read by two: use new ids");
        resume_fail(g, &e);
        worker_job_free(job);
        prepare_free(p);
        return;
    }
    g->n_readers--;
    reader->is_reading = false;
    call_resume_unref(reader);
    job->owner = reader;
    job->prepared = p;
    job->is_recorded = false;
    call_prepared(s, job);
}

void call_resume_prepared(struct call *maker, struct worker_job *job)
{
    struct generation *g = maker->generation;
    struct prepared *p = job->prepared;
    struct api_error e;
    maker->job = NULL;
    job->prepared = NULL;
    if (p && p->error.status == 0 && g->n_readers > 0 && p->response &&
        p->response->needs_history) {
        maker->prepared = p;
        call_response_load(maker, job);
        call_free_if_over(maker);
        return;
    }
    if (p && p->error.status == 0 && g->n_readers > 0 && !g->record && !generation_fits(p)) {
        resume_dissolve(g, job, p);
        call_free_if_over(maker);
        return;
    }
    g->prepared = maker->prepared = p;
    g->head.now_s = job->now_s;
    buf_release(&g->body);
    g->body = job->body;
    buf_init(&job->body, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    worker_job_free(job);
    maker->n_store++; /* stays until here is done */
    if (p && g->n_readers > 0) {
        bool is_fine = p->error.status == 0 && generation_fits(p);
        if (p->error.status != 0)
            e = p->error;
        else if (!is_fine)
            api_error_set(&e, 500, NULL, NULL, "the record is of a request that has none");
        if (!is_fine || !resume_open(g, &e))
            resume_fail(g, &e);
    }
    maker->n_store--;
    call_free_if_over(maker);
}

bool call_resume_adopt(struct call *call, struct worker_job *job, struct prepared *p)
{
    struct server *s = call->server;
    struct journal_job named = { 0 };
    bool is_wanted = p->disconnect == PREPARE_DISCONNECT_RESUMABLE ||
                     (p->response && p->response->is_background);
    if (!s->journal || !job->is_recorded || call->generation || call->to.has_own_id || !is_wanted ||
        !generation_fits(p))
        return false;
    journal_name(call->who, call->to.request_id, named.name);
    journal_digest(generation_dialect(job->kind), job->body.data, job->body.len, named.digest);
    struct generation *g = resume_new(call, &named, job->kind);
    g->head.seed = job->seed;
    resume_join(call, g);
    job->owner = g->maker;
    job->prepared = p;
    if (job->id[0])
        snprintf(g->maker->answer_id, sizeof(g->maker->answer_id), "%.39s", job->id);
    call->n_store++; /* stays until here is done */
    call_resume_prepared(g->maker, job);
    call->n_store--;
    return true;
}

/* --- what the scheduler says --- */

static void resume_disagree(struct generation *g)
{
    struct api_error e;
    log_error("journal",
              "%s: the record does not agree with what the model says now; it is moved aside",
              g->head.id);
    g->is_wrong = true;
    api_error_set(&e, 500, "record_disagrees", NULL,
                  "the record of this answer does not agree with what the model says now: send the "
                  "request again");
    resume_fail(g, &e);
}

static void resume_token(struct generation *g, struct leg *leg, const struct engine_token *token)
{
    struct server *s = leg->call->server;
    struct generation_choice *c = &g->choices[leg->index];
    int32_t had = c->tokens.n;
    if (c->is_done || c->is_over || g->is_dying)
        return;
    if (!generation_add(g, leg->index, leg->n_fed++, token, s->model.tokenizer)) {
        resume_disagree(g);
        return;
    }
    if (c->tokens.n == had)
        return; /* the last one that the record had */
    resume_watch(g, leg, had);
    generation_checkpoint(g);
    resume_pump_all(g, s);
}

void call_resume_event(struct leg *leg, const struct sched_event *ev)
{
    struct call *maker = leg->call;
    struct generation *g = maker->generation;
    if (ev->kind == SCHED_EVENT_TOKEN) {
        resume_token(g, leg, &ev->token.token);
        return;
    }
    leg->is_live = leg->is_cancel_due = false;
    maker->n_live--;
    generation_finish(g, leg->index, &ev->finished);
    maker->n_store++; /* it may have been the last */
    resume_pump_all(g, maker->server);
    maker->n_store--;
}

void call_resume_tick(struct server *s)
{
    resume_wake_waiting(s);
    for (struct generation *g = s->generations; g; g = g->next)
        generation_flush(g);
}
