/* sched.c - mail, the loop of the engine thread, and its statistics. */
#include "sched/sched.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"

#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#define SCHED_CHUNK_MIN   16      /* fewer tokens in a chunk cost more than they save in waiting */
#define SCHED_CHUNK_FIRST 64      /* until a step has shown what a prompt token costs */
#define SCHED_ALONE_US    1000000 /* longest chunk where nobody waits but a cancel */
#define SCHED_MAIL        4096    /* commands waiting; new requests are bounded by max_waiting */

enum sched_state { SCHED_STATE_LOADING, SCHED_STATE_READY, SCHED_STATE_CLOSED };

enum sched_mail_kind { SCHED_MAIL_NEW, SCHED_MAIL_CANCEL, SCHED_MAIL_PAUSE, SCHED_MAIL_RESUME };

struct sched_mail {
    enum sched_mail_kind kind;
    req_id id;
    struct sched_request *request; /* NEW */
};

/* A request that has a row in the engine. */
struct sched_row {
    struct sched_request *request;
    row_id row;
    int32_t n_left; /* prompt tokens not yet taken */
    bool is_paused;
    bool is_done; /* retired before the next step */
    int64_t opened_us, prompt_done_us;
    struct sched_finished result;
};

struct sched_counters {      /* one writer each unless said; read from anywhere */
    _Atomic int64_t waiting; /* written by submitters too */
    _Atomic int64_t accepted;
    _Atomic int64_t running, finished, cancelled, failed;
    _Atomic int64_t steps, prompt_tokens, tokens, last_step_us, step_started_us;
};

struct sched {
    struct sched_config config;
    struct queue mail, events;
    pthread_t thread;
    _Atomic int state;
    struct sched_counters stats;
    /* engine thread only from here */
    struct engine *engine;
    struct sched_request *first, *last; /* waiting, oldest first */
    struct sched_row *rows;             /* [n_rows] in order of arrival */
    int32_t n_rows;
    struct engine_work *work; /* [n_work] the step being made */
    struct sched_row **work_rows;
    struct engine_result *results;
    int32_t n_work;
    int32_t n_step_prompt; /* prompt tokens in it */
    double us_per_token;   /* of a prompt, by the last steps; 0 = not known */
    bool has_unread;       /* events pushed since the last wake */
};

struct sched_request *sched_request_new(req_id id, const struct engine_request *from)
{
    size_t prompt = sizeof(int32_t) * (size_t)from->n_prompt;
    size_t bias = sizeof(struct logit_bias) * (size_t)from->sample.n_bias;
    size_t stops = sizeof(struct engine_bytes) * (size_t)from->n_stops;
    size_t text = 0;
    for (int32_t i = 0; i < from->n_stops; i++)
        text += from->stops[i].len;
    struct sched_request *r = mem_try(MEM_CAT_REQUEST, sizeof(*r) + stops + bias + prompt + text);
    if (!r)
        return NULL;
    r->id = id;
    r->engine = *from;
    char *p = (char *)(r + 1); /* stops first: they need the widest alignment */
    struct engine_bytes *s = (struct engine_bytes *)(void *)p;
    char *bytes = p + stops + bias + prompt;
    for (int32_t i = 0; i < from->n_stops; i++) {
        memcpy(bytes, from->stops[i].data, from->stops[i].len);
        s[i] = (struct engine_bytes){ bytes, from->stops[i].len };
        bytes += from->stops[i].len;
    }
    r->engine.stops = s;
    if (bias)
        memcpy(p + stops, from->sample.bias, bias);
    r->engine.sample.bias = (const struct logit_bias *)(void *)(p + stops);
    if (prompt)
        memcpy(p + stops + bias, from->prompt, prompt);
    r->engine.prompt = (const int32_t *)(void *)(p + stops + bias);
    return r;
}

void sched_request_free(struct sched_request *r)
{
    mem_free(MEM_CAT_REQUEST, r);
}

/* --- events out --- */

static void sched_wake(struct sched *s)
{
    if (s->has_unread && s->config.wake)
        s->config.wake(s->config.wake_arg);
    s->has_unread = false;
}

/* Waits while the queue is full: a receiver that is slower than the model slows it down, and memory stays bounded. */
static void sched_publish(struct sched *s, const struct sched_event *ev)
{
    s->has_unread = true;
    if (queue_try_push(&s->events, ev) != ERR_FULL)
        return;
    sched_wake(s);
    if (queue_push(&s->events, ev) == ERR_OK)
        s->has_unread = true; /* else stopped: nobody reads any more */
}

static void sched_publish_finished(struct sched *s, req_id id, const struct sched_finished *f)
{
    struct sched_event ev = { .kind = SCHED_EVENT_FINISHED, .id = id, .finished = *f };
    bool is_cancel = f->finish == FINISH_ERROR && f->err.code == ERR_CANCELLED;
    s->stats.finished++;
    if (is_cancel)
        s->stats.cancelled++;
    else if (f->finish == FINISH_ERROR)
        s->stats.failed++;
    log_debug("sched", "request %llu finished: %d, %d prompt tokens, %d tokens",
              (unsigned long long)id, (int)f->finish, f->n_prompt, f->n_tokens);
    sched_publish(s, &ev);
}

/* --- the end of a request --- */

static void sched_end(struct sched_finished *f, enum err_code code, const char *text)
{
    f->finish = FINISH_ERROR;
    err_set(&f->err, code, "%s", text);
}

/* A waiting request leaves without having had a row. */
static void sched_drop_waiting(struct sched *s, struct sched_request *r, const struct err *why)
{
    struct sched_finished f = { .finish = FINISH_ERROR, .err = *why };
    f.queued_us = clock_us() - r->submitted_us;
    s->stats.waiting--;
    sched_publish_finished(s, r->id, &f);
    sched_request_free(r);
}

static void sched_cancel_now(struct sched *s, req_id id)
{
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->request->id != id || row->is_done)
            continue;
        row->is_done = true;
        sched_end(&row->result, ERR_CANCELLED, "cancelled");
        return;
    }
    struct sched_request *prev = NULL;
    for (struct sched_request *r = s->first; r; prev = r, r = r->next) {
        if (r->id != id)
            continue;
        *(prev ? &prev->next : &s->first) = r->next;
        if (s->last == r)
            s->last = prev;
        struct err why;
        err_set(&why, ERR_CANCELLED, "cancelled");
        sched_drop_waiting(s, r, &why);
        return;
    }
}

/* --- stages of the loop --- */

static void sched_handle_mail(struct sched *s, const struct sched_mail *m)
{
    switch (m->kind) {
    case SCHED_MAIL_NEW:
        *(s->last ? &s->last->next : &s->first) = m->request;
        s->last = m->request;
        break;
    case SCHED_MAIL_CANCEL:
        sched_cancel_now(s, m->id);
        break;
    case SCHED_MAIL_PAUSE:
    case SCHED_MAIL_RESUME:
        for (int32_t i = 0; i < s->n_rows; i++)
            if (s->rows[i].request->id == m->id)
                s->rows[i].is_paused = m->kind == SCHED_MAIL_PAUSE;
        break;
    }
}

/* Wait for mail if the last turn had no work: then nothing but mail can make any. False when the scheduler stops. */
static bool sched_take_mail(struct sched *s, bool is_idle)
{
    struct sched_mail m;
    enum err_code code;
    if (is_idle) {
        code = queue_pop(&s->mail, &m);
        if (code != ERR_OK)
            return false;
        sched_handle_mail(s, &m);
    }
    while ((code = queue_try_pop(&s->mail, &m)) == ERR_OK)
        sched_handle_mail(s, &m);
    return code != ERR_STATE;
}

static void sched_retire(struct sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (!row->is_done) {
            s->rows[n++] = *row;
            continue;
        }
        int64_t now = clock_us();
        struct sched_finished *f = &row->result;
        f->n_prompt = row->request->engine.n_prompt - row->n_left;
        f->queued_us = row->opened_us - row->request->submitted_us;
        f->prefill_us = (row->prompt_done_us ? row->prompt_done_us : now) - row->opened_us;
        f->decode_us = row->prompt_done_us ? now - row->prompt_done_us : 0;
        s->engine->ops->close(s->engine, row->row);
        sched_publish_finished(s, row->request->id, f);
        sched_request_free(row->request);
    }
    s->n_rows = n;
    s->stats.running = n;
}

static void sched_admit(struct sched *s)
{
    while (s->first && s->n_rows < s->engine->info.max_rows) {
        struct sched_request *r = s->first;
        struct sched_row row = { .request = r, .n_left = r->engine.n_prompt };
        struct err err;
        enum err_code code = s->engine->ops->open(s->engine, &r->engine, &row.row, &err);
        if (code == ERR_OK) {
            code = s->engine->ops->grow(s->engine, row.row, INT32_MAX, &err);
            if (code != ERR_OK)
                s->engine->ops->close(s->engine, row.row);
        }
        if (code == ERR_NOMEM && s->n_rows > 0)
            return; /* a row that ends gives its memory back */
        s->first = r->next;
        if (!s->first)
            s->last = NULL;
        r->next = NULL;
        if (code != ERR_OK) {
            sched_drop_waiting(s, r, &err);
            continue;
        }
        row.opened_us = clock_us();
        s->rows[s->n_rows++] = row;
        s->stats.waiting--;
    }
    s->stats.running = s->n_rows;
}

static void sched_add_work(struct sched *s, struct sched_row *row, int32_t n_prompt)
{
    s->work[s->n_work] = (struct engine_work){ row->row, n_prompt > 0 ? n_prompt : 1 };
    s->work_rows[s->n_work++] = row;
    s->n_step_prompt += n_prompt;
}

/* Prompt tokens that this step may take beside n_decode decoding rows. */
static int32_t sched_chunk(const struct sched *s, int32_t n_decode)
{
    int64_t bound = n_decode > 0 ? s->config.max_stall_us : SCHED_ALONE_US;
    double n = s->us_per_token > 0 ? (double)bound / s->us_per_token : SCHED_CHUNK_FIRST;
    int32_t room = s->engine->info.max_step_rows - n_decode;
    int32_t chunk = n >= (double)room ? room : (int32_t)n;
    if (chunk < SCHED_CHUNK_MIN)
        chunk = SCHED_CHUNK_MIN;
    return chunk < room ? chunk : room;
}

static void sched_build_step(struct sched *s)
{
    s->n_work = 0;
    s->n_step_prompt = 0;
    for (int32_t i = 0; i < s->n_rows; i++)
        if (s->rows[i].n_left == 0 && !s->rows[i].is_paused)
            sched_add_work(s, &s->rows[i], 0);
    int32_t left = sched_chunk(s, s->n_work);
    for (int32_t i = 0; i < s->n_rows && left > 0; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->n_left == 0 || row->is_paused)
            continue;
        int32_t n = row->n_left < left ? row->n_left : left;
        sched_add_work(s, row, n);
        left -= n;
    }
}

static void sched_forward(struct sched *s)
{
    struct err err;
    int64_t t0 = clock_us();
    s->stats.step_started_us = t0;
    enum err_code code = s->engine->ops->step(s->engine, s->work, s->n_work, s->results, &err);
    int64_t us = clock_us() - t0;
    s->stats.step_started_us = 0;
    s->stats.last_step_us = us;
    s->stats.steps++;
    if (s->n_step_prompt >= SCHED_CHUNK_MIN) {
        double now =
            (double)us / s->n_step_prompt; /* decode rows counted in: errs to smaller chunks */
        s->us_per_token = s->us_per_token > 0 ? 0.5 * (s->us_per_token + now) : now;
    }
    if (code == ERR_OK)
        return;
    log_error("sched", "a step of %d rows failed: %s", s->n_work, err.text);
    for (int32_t i = 0; i < s->n_work; i++)
        s->results[i] =
            (struct engine_result){ .row = s->work[i].row, .finish = FINISH_ERROR, .err = err };
}

/* Hand one row's part of the step on. */
static void sched_route_row(struct sched *s, struct sched_row *row, const struct engine_result *res)
{
    int32_t n_prompt = row->n_left > 0 ? res->n_taken : 0;
    row->n_left -= n_prompt;
    s->stats.prompt_tokens += n_prompt;
    if (n_prompt > 0 && row->n_left == 0)
        row->prompt_done_us = clock_us();
    for (int32_t i = 0; i < res->n_tokens; i++) {
        struct sched_event ev = { .kind = SCHED_EVENT_TOKEN, .id = row->request->id };
        ev.token.token = res->tokens[i];
        /* Before the last token of a step the row's older mark holds: it never decreases. */
        ev.token.text_safe = i == res->n_tokens - 1 ? res->text_safe : row->result.text_safe;
        sched_publish(s, &ev);
    }
    row->result.n_tokens += res->n_tokens;
    s->stats.tokens += res->n_tokens;
    if (res->text_safe > row->result.text_safe)
        row->result.text_safe = res->text_safe;
    if (res->finish == FINISH_NONE)
        return;
    row->is_done = true;
    row->result.finish = res->finish;
    row->result.stop_index = res->stop_index;
    if (res->finish == FINISH_ERROR)
        row->result.err = res->err;
}

static void sched_route(struct sched *s)
{
    for (int32_t i = 0; i < s->n_work; i++)
        sched_route_row(s, s->work_rows[i], &s->results[i]);
}

/* One turn, over and over. The order of the stages is part of the design:
 * 1. mail first, so that a cancel that has arrived is never followed by another step of its row;
 * 2. retire before admitting, so that a row's place and memory serve the next request in the same turn;
 * 3. admit before building, so that a new prompt takes part in this very step;
 * 4. build: all decoding rows, then prompt chunks up to the stall bound, oldest first;
 * 5. forward, sampling, verification and commit are the engine's: after it a row's state is whole again;
 * 6. route last: what a client sees is committed. Then one wake for all of it. */
static void sched_loop(struct sched *s)
{
    bool is_idle = true;
    while (sched_take_mail(s, is_idle)) { /* 1 */
        sched_retire(s);                  /* 2 */
        sched_admit(s);                   /* 3 */
        sched_build_step(s);              /* 4 */
        if (s->n_work > 0) {
            sched_forward(s); /* 5 */
            sched_route(s);   /* 6 */
        }
        is_idle = s->n_work == 0;
        sched_wake(s);
    }
}

/* Everything that is left ends as cancelled. */
static void sched_end_all(struct sched *s)
{
    while (s->first)
        sched_cancel_now(s, s->first->id);
    for (int32_t i = 0; i < s->n_rows; i++) {
        s->rows[i].is_done = true;
        sched_end(&s->rows[i].result, ERR_CANCELLED, "the server stops");
    }
    if (s->n_rows > 0)
        sched_retire(s);
    sched_wake(s);
}

static void *sched_thread(void *arg)
{
    struct sched *s = arg;
    struct sched_event ev = { .kind = SCHED_EVENT_READY };
    enum err_code code = s->config.load(s->config.load_arg, &s->engine, &ev.err);
    if (code != ERR_OK) {
        atomic_store(&s->state, SCHED_STATE_CLOSED);
        ev.kind = SCHED_EVENT_FAILED;
        ev.err.code = code;
        sched_publish(s, &ev);
        sched_wake(s);
        return NULL;
    }
    size_t n = (size_t)s->engine->info.max_rows;
    BUG_ON(n == 0 || s->engine->info.max_step_rows < s->engine->info.max_rows);
    s->rows = mem_alloc(MEM_CAT_SERVER, n * sizeof(*s->rows));
    s->work = mem_alloc(MEM_CAT_SERVER, n * sizeof(*s->work));
    s->work_rows = mem_alloc(MEM_CAT_SERVER, n * sizeof(struct sched_row *));
    s->results = mem_alloc(MEM_CAT_SERVER, n * sizeof(*s->results));
    int loading = SCHED_STATE_LOADING; /* a drain that came while loading stands */
    atomic_compare_exchange_strong(&s->state, &loading, SCHED_STATE_READY);
    sched_publish(s, &ev);
    sched_wake(s);
    sched_loop(s);
    sched_end_all(s);
    s->engine->ops->free(s->engine);
    return NULL;
}

/* --- for other threads --- */

enum err_code sched_start(const struct sched_config *config, struct sched **out, struct err *err)
{
    struct sched *s = mem_alloc(MEM_CAT_SERVER, sizeof(*s));
    s->config = *config;
    queue_init(&s->mail, sizeof(struct sched_mail), SCHED_MAIL + (size_t)config->max_waiting);
    queue_init(&s->events, sizeof(struct sched_event), (size_t)config->n_events);
    if (pthread_create(&s->thread, NULL, sched_thread, s) != 0) {
        queue_release(&s->mail);
        queue_release(&s->events);
        mem_free(MEM_CAT_SERVER, s);
        return err_set(err, ERR_IO, "the engine thread could not be started");
    }
    *out = s;
    return ERR_OK;
}

enum err_code sched_submit(struct sched *s, struct sched_request *const *requests, int32_t n,
                           struct err *err)
{
    if (atomic_load(&s->state) != SCHED_STATE_READY)
        return err_set(err, ERR_STATE, "the server is loading its model or stopping");
    int64_t waiting = atomic_load(&s->stats.waiting);
    do {
        if (waiting + n > s->config.max_waiting)
            return err_set(err, ERR_FULL, "%lld requests are waiting, the limit is %d",
                           (long long)waiting, s->config.max_waiting);
    } while (!atomic_compare_exchange_weak(&s->stats.waiting, &waiting, waiting + n));
    s->stats.accepted += n;
    for (int32_t i = 0; i < n; i++) {
        struct sched_mail m = { SCHED_MAIL_NEW, requests[i]->id, requests[i] };
        requests[i]->submitted_us = clock_us();
        /* The queue has max_waiting places beyond those for commands; commands never take the last of them. */
        enum err_code code = queue_push(&s->mail, &m);
        BUG_ON(code != ERR_OK); /* sched_stop while someone submits */
    }
    return ERR_OK;
}

static enum err_code sched_command(struct sched *s, enum sched_mail_kind kind, req_id id)
{
    struct sched_mail m = { kind, id, NULL };
    if (queue_len(&s->mail) >= SCHED_MAIL - 64) /* leaves the places of new requests alone */
        return ERR_FULL;
    return queue_try_push(&s->mail, &m);
}

enum err_code sched_cancel(struct sched *s, req_id id)
{
    return sched_command(s, SCHED_MAIL_CANCEL, id);
}

enum err_code sched_pause(struct sched *s, req_id id, bool is_paused)
{
    return sched_command(s, is_paused ? SCHED_MAIL_PAUSE : SCHED_MAIL_RESUME, id);
}

enum err_code sched_next_event(struct sched *s, struct sched_event *out, int64_t timeout_us)
{
    if (timeout_us == 0)
        return queue_try_pop(&s->events, out);
    return queue_pop_timed(&s->events, out, timeout_us);
}

void sched_drain(struct sched *s)
{
    atomic_store(&s->state, SCHED_STATE_CLOSED);
}

void sched_stop(struct sched *s)
{
    sched_drain(s);
    queue_close(&s->mail);
    queue_close(&s->events);
    pthread_join(s->thread, NULL);
    mem_free(MEM_CAT_SERVER, s->rows);
    mem_free(MEM_CAT_SERVER, s->work);
    mem_free(MEM_CAT_SERVER, s->work_rows);
    mem_free(MEM_CAT_SERVER, s->results);
    queue_release(&s->mail);
    queue_release(&s->events);
    mem_free(MEM_CAT_SERVER, s);
}

void sched_read_stats(const struct sched *s, struct sched_stats *out)
{
    const struct sched_counters *c = &s->stats;
    *out = (struct sched_stats){
        .waiting = c->waiting,
        .running = c->running,
        .accepted = c->accepted,
        .finished = c->finished,
        .cancelled = c->cancelled,
        .failed = c->failed,
        .steps = c->steps,
        .prompt_tokens = c->prompt_tokens,
        .tokens = c->tokens,
        .last_step_us = c->last_step_us,
        .step_started_us = c->step_started_us,
    };
}
