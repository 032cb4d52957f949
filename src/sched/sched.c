/* sched.c - the scheduler's life: mail, the loop of the engine thread, and what other threads may call. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/constraint.h"
#include "sched/sched_int.h"

#include <string.h>

#define SCHED_MAIL           4096 /* commands waiting; new requests are bounded by max_waiting */
#define SCHED_ACCOUNTS_SPARE 1024 /* keys without requests whose service is remembered */

enum sched_mail_kind {
    SCHED_MAIL_NEW,
    SCHED_MAIL_CANCEL,
    SCHED_MAIL_PAUSE,
    SCHED_MAIL_RESUME,
    SCHED_MAIL_WAKE, /* the engine has something to tend */
    SCHED_MAIL_FLUSH,
    SCHED_MAIL_UNPIN, /* id: the session's */
};

struct sched_mail {
    enum sched_mail_kind kind;
    req_id id;
    struct sched_request *request; /* NEW: and those linked to it */
};

struct sched_request *sched_request_new(req_id id, const struct engine_request *from)
{
    size_t prompt = sizeof(int32_t) * (size_t)from->n_prompt;
    size_t begun = sizeof(int32_t) * (size_t)from->n_begun;
    size_t predicted = sizeof(int32_t) * (size_t)from->n_predicted;
    size_t bias = sizeof(struct logit_bias) * (size_t)from->sample.n_bias;
    size_t stops = sizeof(struct engine_bytes) * (size_t)from->n_stops;
    size_t text = 0;
    for (int32_t i = 0; i < from->n_stops; i++)
        text += from->stops[i].len;
    struct sched_request *r =
        mem_try(MEM_CAT_REQUEST, sizeof(*r) + stops + bias + prompt + begun + predicted + text);
    if (!r)
        return NULL;
    r->id = r->leader = id;
    r->engine = *from;
    grammar_ref(from->grammar);
    grammar_ref(from->expected);
    char *p = (char *)(r + 1); /* stops first: they need the widest alignment */
    struct engine_bytes *s = (struct engine_bytes *)(void *)p;
    char *bytes = p + stops + bias + prompt + begun + predicted;
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
    if (begun)
        memcpy(p + stops + bias + prompt, from->begun, begun);
    r->engine.begun = r->engine.prompt + from->n_prompt;
    if (predicted)
        memcpy(p + stops + bias + prompt + begun, from->predicted, predicted);
    r->engine.predicted = r->engine.begun + from->n_begun;
    return r;
}

void sched_request_free(struct sched_request *r)
{
    if (r) {
        grammar_unref(r->engine.grammar);
        grammar_unref(r->engine.expected);
    }
    mem_free(MEM_CAT_REQUEST, r);
}

/* --- events out --- */

void sched_wake(struct sched *s)
{
    if (s->has_unread && s->config.wake)
        s->config.wake(s->config.wake_arg);
    s->has_unread = false;
}

/* Waits while the queue is full: a receiver that is slower than the model slows it down, and memory stays bounded. */
void sched_publish(struct sched *s, const struct sched_event *ev)
{
    s->has_unread = true;
    if (queue_try_push(&s->events, ev) != ERR_FULL)
        return;
    sched_wake(s);
    if (queue_push(&s->events, ev) == ERR_OK)
        s->has_unread = true; /* else stopped: nobody reads any more */
}

/* --- stages of the loop --- */

static void sched_publish_flushed(struct sched *s, req_id id, bool is_durable)
{
    struct sched_event ev = { .kind = SCHED_EVENT_FLUSHED, .id = id, .is_durable = is_durable };
    sched_publish(s, &ev);
}

static void sched_begin_flush(struct sched *s, req_id id)
{
    if (!s->engine->ops->flush || s->n_flushes == SCHED_FLUSHES) {
        sched_publish_flushed(s, id, false);
        return;
    }
    s->flushes[s->n_flushes++] = id;
    s->engine->ops->flush(
        s->engine); /* one that is under way begins again: it may lack what came since */
}

/* What the engine's own thread has done, before rows are let in that may have waited for it. */
static void sched_tend(struct sched *s)
{
    bool is_durable;
    if (!s->engine->ops->tend)
        return;
    s->tend_us = s->engine->ops->tend(s->engine);
    if (s->n_flushes == 0 || !s->engine->ops->flush_is_over(s->engine, &is_durable))
        return;
    for (int32_t i = 0; i < s->n_flushes; i++)
        sched_publish_flushed(s, s->flushes[i], is_durable);
    s->n_flushes = 0;
}

static void sched_handle_mail(struct sched *s, const struct sched_mail *m)
{
    switch (m->kind) {
    case SCHED_MAIL_NEW:
        *(s->last ? &s->last->next : &s->first) = m->request;
        for (s->last = m->request;; s->last = s->last->next) {
            rank_enter(s, s->last);
            if (!s->last->next)
                break;
        }
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
    case SCHED_MAIL_WAKE:
        s->is_woken = false;
        break;
    case SCHED_MAIL_FLUSH:
        sched_begin_flush(s, m->id);
        break;
    case SCHED_MAIL_UNPIN:
        if (s->engine->ops->unpin)
            s->engine->ops->unpin(s->engine, m->id);
        sched_stats_rows(s);
        break;
    }
}

/* Wait for mail if the last turn had no work: then nothing but mail or a deadline can make any. */
static enum err_code sched_wait_mail(struct sched *s, struct sched_mail *m)
{
    int64_t deadline = sched_next_deadline(s), now = clock_us();
    if (s->tend_us != 0 && (deadline == 0 || s->tend_us < deadline))
        deadline = s->tend_us;
    if (deadline == 0)
        return queue_pop(&s->mail, m);
    return queue_pop_timed(&s->mail, m, deadline > now ? deadline - now : 1);
}

/* False when the scheduler stops. */
static bool sched_take_mail(struct sched *s, bool is_idle)
{
    struct sched_mail m;
    enum err_code code;
    if (is_idle) {
        code = sched_wait_mail(s, &m);
        if (code == ERR_OK)
            sched_handle_mail(s, &m);
        else if (code != ERR_TIMEOUT)
            return false;
    }
    while ((code = queue_try_pop(&s->mail, &m)) == ERR_OK)
        sched_handle_mail(s, &m);
    return code != ERR_STATE;
}

static bool sched_has_done(const struct sched *s)
{
    for (int32_t i = 0; i < s->n_rows; i++)
        if (s->rows[i].is_done)
            return true;
    return false;
}

static void sched_meanwhile(void *arg)
{
    sched_tell(arg);
}

/* One turn, over and over. The order of the stages is part of the design:
 * 1. mail and deadlines first, so that a cancel that has arrived is never followed by another step of its row;
 * 2. retire before admitting, so that a row's place and memory serve the next request in the same turn;
 * 3. rows that run get their memory before those that would start; what came from disk is there before either looks for it;
 * 4. admit before building, so that a new prompt takes part in this very step;
 * 5. build: all decoding rows, then prompts up to the stall bound, most entitled first;
 * 6. forward, sampling, verification and commit are the engine's: after it a row's state is whole again;
 * 7. route last: what a client sees is committed. It is told in the next step (sched_meanwhile), while a device works that would
 *    have nothing to do now; or with the end of a row, or where there is no next step. Then one wake for all of it. */
static void sched_loop(struct sched *s)
{
    bool is_idle = true;
    while (sched_take_mail(s, is_idle)) { /* 1 */
        sched_expire(s);
        sched_retire(s); /* 2 */
        sched_tend(s);   /* 3 */
        sched_grow(s);
        sched_admit(s);      /* 4 */
        sched_build_step(s); /* 5 */
        if (s->n_work > 0) {
            sched_forward(s); /* 6 */
            sched_route(s);   /* 7 */
        } else {
            sched_tell(s);
        }
        if (s->has_failed) {
            sched_retire(s); /* with the step's error, not as those that the end cuts off */
            return;
        }
        is_idle = s->n_work == 0 && !sched_has_done(s);
    }
}

/* Thread: any of the engine's. */
static void sched_wake_up(void *arg)
{
    struct sched *s = arg;
    struct sched_mail m = { .kind = SCHED_MAIL_WAKE };
    if (!atomic_exchange(&s->is_woken, true) && queue_try_push(&s->mail, &m) != ERR_OK)
        s->is_woken = false; /* full: there are turns anyway */
}

/* After a failure others read statistics of the engine, and a request may be on its way that was let in before, until sched_stop says that
 * nobody is there any more. */
static void sched_wait_stop(struct sched *s)
{
    struct sched_mail m;
    while (queue_pop(&s->mail, &m) == ERR_OK) {
        if (m.kind != SCHED_MAIL_NEW)
            continue;
        sched_handle_mail(s, &m);
        sched_end_all(s);
    }
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
    pthread_setname_np(
        pthread_self(),
        "engine"); /* not before: those that loading starts would have the name too */
    size_t n = (size_t)s->engine->info.max_rows;
    BUG_ON(n == 0 || s->engine->info.max_step_rows < s->engine->info.max_rows);
    s->rows = mem_alloc(MEM_CAT_SERVER, n * sizeof(*s->rows));
    s->work = mem_alloc(MEM_CAT_SERVER, n * sizeof(*s->work));
    s->work_rows = mem_alloc(MEM_CAT_SERVER, n * sizeof(struct sched_row *));
    s->prompts = mem_alloc(MEM_CAT_SERVER, n * sizeof(struct sched_row *));
    s->n_accounts = s->config.max_waiting + (int32_t)n + SCHED_ACCOUNTS_SPARE;
    s->accounts = mem_alloc(MEM_CAT_SERVER, (size_t)s->n_accounts * sizeof(*s->accounts));
    s->results = mem_alloc(MEM_CAT_SERVER, n * sizeof(*s->results));
    s->due = mem_alloc(MEM_CAT_SERVER, n * sizeof(*s->due));
    int loading = SCHED_STATE_LOADING; /* a drain that came while loading stands */
    atomic_compare_exchange_strong(&s->state, &loading, SCHED_STATE_READY);
    if (s->engine->ops->set_wake)
        s->engine->ops->set_wake(s->engine, sched_wake_up, s);
    s->engine->ops->set_meanwhile(s->engine, sched_meanwhile, s);
    atomic_store(&s->shown, s->engine);
    sched_publish(s, &ev);
    sched_wake(s);
    sched_loop(s);
    if (s->has_failed)
        atomic_store(&s->state, SCHED_STATE_CLOSED);
    sched_end_all(s);
    if (s->has_failed) {
        ev = (struct sched_event){ .kind = SCHED_EVENT_FAILED, .err = s->failure };
        sched_publish(s, &ev);
        sched_wake(s);
        sched_wait_stop(s);
    }
    if (s->engine->ops->set_wake)
        s->engine->ops->set_wake(s->engine, NULL, NULL);
    atomic_store(&s->shown, NULL);
    s->engine->ops->free(s->engine);
    return NULL;
}

/* --- for other threads --- */

enum err_code sched_start(const struct sched_config *config, struct sched **out, struct err *err)
{
    struct sched *s = mem_alloc(MEM_CAT_SERVER, sizeof(*s));
    s->config = *config;
    sched_stats_init(&s->stats);
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
        if (waiting + n > s->config.max_waiting) {
            s->stats.refused += n;
            return err_set(err, ERR_FULL, "%lld requests are waiting, the limit is %d",
                           (long long)waiting, s->config.max_waiting);
        }
    } while (!atomic_compare_exchange_weak(&s->stats.waiting, &waiting, waiting + n));
    s->stats.accepted += n;
    for (int32_t i = 0; i < n; i++) {
        requests[i]->submitted_us = clock_us();
        requests[i]->next = i + 1 < n ? requests[i + 1] : NULL;
    }
    struct sched_mail m = { SCHED_MAIL_NEW, requests[0]->id, requests[0] };
    /* The queue has max_waiting places beyond those for commands; commands never take the last of them. */
    enum err_code code = queue_push(&s->mail, &m);
    BUG_ON(code != ERR_OK); /* sched_stop while someone submits */
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

enum err_code sched_flush(struct sched *s, req_id id)
{
    return sched_command(s, SCHED_MAIL_FLUSH, id);
}

enum err_code sched_unpin(struct sched *s, uint64_t session)
{
    return sched_command(s, SCHED_MAIL_UNPIN, session);
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
    mem_free(MEM_CAT_SERVER, s->prompts);
    mem_free(MEM_CAT_SERVER, s->accounts);
    mem_free(MEM_CAT_SERVER, s->results);
    mem_free(MEM_CAT_SERVER, s->due);
    queue_release(&s->mail);
    queue_release(&s->events);
    mem_free(MEM_CAT_SERVER, s);
}
