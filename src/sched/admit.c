/* admit.c - rows begin, get memory, give it up, and end.
 *
 * Memory is promised a stretch ahead: at the start for the prompt and SCHED_PROMISE tokens, then SCHED_PROMISE more whenever
 * they are used up. Where none is left, the least entitled row that may be asked is parked: it gives up its memory and its ids are
 * taken again when there is room, so that its answer stays what it would have been. A row may be asked if it has emitted
 * SCHED_PROMISE tokens since it was parked last; the one that needs more memory has, so somebody can always be asked. */
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "sched/sched_int.h"

#include <string.h>

/* --- the end of a request --- */

static void sched_end(struct sched_finished *f, enum err_code code, const char *text)
{
    f->finish = FINISH_ERROR;
    err_set(&f->err, code, "%s", text);
}

static void sched_publish_finished(struct sched *s, struct sched_request *r,
                                   const struct sched_finished *f)
{
    struct sched_event ev = { .kind = SCHED_EVENT_FINISHED, .id = r->id, .finished = *f };
    enum err_code why = f->finish == FINISH_ERROR ? f->err.code : ERR_OK;
    s->stats.finished++;
    if (why == ERR_CANCELLED)
        s->stats.cancelled++;
    else if (why == ERR_TIMEOUT)
        s->stats.expired++;
    else if (f->finish == FINISH_ERROR)
        s->stats.failed++;
    histogram_add(&s->stats.histograms[SCHED_HISTOGRAM_REQUEST],
                  (double)(clock_us() - r->submitted_us) * 1e-6);
    log_debug("sched", "request %llu finished: %d, %d prompt tokens, %d tokens",
              (unsigned long long)r->id, (int)f->finish, f->n_prompt, f->n_tokens);
    rank_leave(s, r);
    sched_publish(s, &ev);
    sched_request_free(r);
}

static void sched_unlink(struct sched *s, struct sched_request *r)
{
    struct sched_request *prev = NULL;
    for (struct sched_request *at = s->first; at != r; at = at->next)
        prev = at;
    *(prev ? &prev->next : &s->first) = r->next;
    if (s->last == r)
        s->last = prev;
    r->next = NULL;
    s->stats.waiting--;
}

/* A waiting request ends without having had a row. */
static void sched_drop_waiting(struct sched *s, struct sched_request *r, enum err_code code,
                               const char *text)
{
    struct sched_finished f = { 0 };
    sched_end(&f, code, text);
    f.queued_us = clock_us() - r->submitted_us;
    sched_unlink(s, r);
    sched_publish_finished(s, r, &f);
}

void sched_cancel_now(struct sched *s, req_id id)
{
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->request->id != id || row->is_done)
            continue;
        row->is_done = true;
        sched_end(&row->result, ERR_CANCELLED, "cancelled");
        return;
    }
    for (struct sched_request *r = s->first; r; r = r->next)
        if (r->id == id) {
            sched_drop_waiting(s, r, ERR_CANCELLED, "cancelled");
            return;
        }
}

static bool sched_is_late(const struct sched_request *r, int64_t now)
{
    return r->deadline_us != 0 && now >= r->deadline_us;
}

void sched_expire(struct sched *s)
{
    int64_t now = clock_us();
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->is_done || !sched_is_late(row->request, now))
            continue;
        row->is_done = true;
        sched_end(&row->result, ERR_TIMEOUT, "the deadline has passed");
    }
    struct sched_request *next;
    for (struct sched_request *r = s->first; r; r = next) {
        next = r->next;
        if (sched_is_late(r, now))
            sched_drop_waiting(s, r, ERR_TIMEOUT, "the deadline has passed before a start");
    }
}

int64_t sched_next_deadline(const struct sched *s)
{
    int64_t first = 0;
    for (int32_t i = 0; i < s->n_rows; i++) {
        int64_t at = s->rows[i].request->deadline_us;
        if (at != 0 && (first == 0 || at < first))
            first = at;
    }
    for (const struct sched_request *r = s->first; r; r = r->next)
        if (r->deadline_us != 0 && (first == 0 || r->deadline_us < first))
            first = r->deadline_us;
    return first;
}

/* Its place and memory are free, and the numbers say so, before anybody hears of its end. */
static void sched_retire_row(struct sched *s, int32_t i)
{
    struct sched_row row = s->rows[i];
    struct sched_finished *f = &row.result;
    int64_t now = clock_us(), began = row.first_token_us ? row.first_token_us : now;
    f->n_prompt = row.n_prompt;
    f->queued_us = row.opened_us - row.request->submitted_us;
    f->prefill_us = began - row.opened_us;
    f->decode_us = now - began;
    if (row.first_token_us)
        histogram_add(&s->stats.histograms[SCHED_HISTOGRAM_DECODE], (double)f->decode_us * 1e-6);
    if (trace_is_on() && row.request->trace != 0 && row.first_token_us)
        trace_span("decode.total", row.request->trace, row.first_token_us, now,
                   "{\"tokens\":%d,\"preempted\":%d}", f->n_tokens, f->n_preempted);
    s->engine->ops->close(s->engine, row.row);
    s->n_rows--;
    memmove(&s->rows[i], &s->rows[i + 1], (size_t)(s->n_rows - i) * sizeof(row));
    sched_stats_rows(s);
    sched_publish_finished(s, row.request, f);
}

void sched_retire(struct sched *s)
{
    for (int32_t i = 0; i < s->n_rows;) {
        if (!s->rows[i].is_done) {
            i++;
            continue;
        }
        sched_deliver(s); /* its last tokens come before its end, and are lost with its row */
        sched_retire_row(s, i);
    }
}

void sched_end_all(struct sched *s)
{
    while (s->first)
        sched_drop_waiting(s, s->first, ERR_CANCELLED, "the server stops");
    for (int32_t i = 0; i < s->n_rows; i++) {
        s->rows[i].is_done = true;
        sched_end(&s->rows[i].result, ERR_CANCELLED, "the server stops");
    }
    sched_retire(s);
    sched_wake(s);
}

/* --- memory --- */

/* The row has no memory any more. */
static void sched_note_parked(struct sched *s, struct sched_row *row)
{
    if (row->n_fed > row->n_again)
        row->n_again = row->n_fed;
    row->n_fed = row->n_promised = 0;
    row->n_kept = row->result.n_tokens;
    row->is_parked = row->asks_disk = true;
    row->result.n_preempted++;
    s->stats.preempted++;
    if (trace_is_on() && row->request->trace != 0)
        trace_instant("engine.preempt", row->request->trace, clock_us(), "{\"ids\":%d}",
                      row->n_ids);
    log_debug("sched", "request %llu gives up its memory after %d tokens",
              (unsigned long long)row->request->id, row->n_ids);
}

static void sched_park(struct sched *s, struct sched_row *row)
{
    s->engine->ops->rewind(s->engine, row->row);
    sched_note_parked(s, row);
}

void sched_mend(struct sched *s, bool is_lost, struct err *err)
{
    struct err lost = *err, why = { ERR_UNSUPPORTED, "the engine cannot" };
    int64_t start = clock_us();
    enum err_code code =
        s->engine->ops->mend ? s->engine->ops->mend(s->engine, &why) : ERR_UNSUPPORTED;
    if (code) {
        s->has_failed = true;
        err_set(err, ERR_LOST, "%s; this process cannot use it again: %s", lost.text, why.text);
        s->failure = *err;
        return;
    }
    if (is_lost) {
        s->stats.mended++;
        log_warn("sched", "the device was opened again and the model loaded in %.1f s",
                 (double)(clock_us() - start) / 1e6);
    }
    for (int32_t i = 0; i < s->n_rows; i++) {
        if (s->rows[i].is_fetching) { /* asked once more */
            s->rows[i].is_fetching = false;
            s->rows[i].asks_disk = true;
        }
        if (!s->rows[i].is_parked && !s->rows[i].is_done)
            sched_note_parked(s, &s->rows[i]);
    }
}

/* The least entitled row that may be asked to give up its memory for `asker`: a row that already runs asks all, itself included; one
 * that would start asks those whose reader is slow and those of a lower class. */
static struct sched_row *sched_victim(struct sched *s, const struct sched_row *asker,
                                      bool is_running)
{
    struct sched_row *worst = NULL;
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->is_parked || row->is_done)
            continue;
        if (row->result.n_preempted > 0 && row->result.n_tokens - row->n_kept < SCHED_PROMISE)
            continue;
        if (!is_running &&
            (row == asker || !(row->is_paused || rank_is_above(asker->request, row->request))))
            continue;
        if (!worst || row->is_paused > worst->is_paused ||
            (row->is_paused == worst->is_paused && rank_is_before(worst->request, row->request)))
            worst = row;
    }
    return worst;
}

/* Promise the row memory for n_tokens. False: not now; a row that runs may have been parked itself. */
static bool sched_promise(struct sched *s, struct sched_row *row, int32_t n_tokens, bool is_running,
                          struct err *err)
{
    enum err_code code;
    while ((code = s->engine->ops->grow(s->engine, row->row, n_tokens, err)) == ERR_NOMEM) {
        struct sched_row *victim = sched_victim(s, row, is_running);
        if (!victim)
            return false;
        sched_park(s, victim);
        if (victim == row)
            return false;
    }
    if (code == ERR_OK)
        row->n_promised = n_tokens;
    return code == ERR_OK;
}

void sched_grow(struct sched *s)
{
    struct err err;
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->is_parked || row->is_done || sched_rests(s, row) || row->n_fed < row->n_promised)
            continue;
        if (sched_promise(s, row, row->n_promised + SCHED_PROMISE, true, &err) || row->is_parked)
            continue;
        row->is_done = true;
        row->result.finish = FINISH_ERROR;
        row->result.err = err;
    }
}

/* --- the start --- */

bool sched_rests(const struct sched *s, const struct sched_row *row)
{
    if (row->is_paused || !row->request->is_background)
        return row->is_paused;
    for (int32_t i = 0; i < s->n_rows; i++) {
        const struct sched_row *other = &s->rows[i];
        /* One that waits for memory may wait for this row's, which must emit some tokens before it can be asked. */
        if (!other->request->is_background && !other->is_paused && !other->is_parked &&
            !other->is_done)
            return true;
    }
    return false;
}

/* A row whose prompt the request shares, and which has taken most of it. */
static struct sched_row *sched_sibling(struct sched *s, const struct sched_request *r)
{
    struct sched_row *best = NULL;
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->request != r && row->request->leader == r->leader && !row->is_parked &&
            !row->is_done && (!best || row->n_fed > best->n_fed))
            best = row;
    }
    return best;
}

bool sched_has_sibling_waiting(const struct sched *s, const struct sched_request *r)
{
    for (const struct sched_request *w = s->first; w; w = w->next)
        if (w->leader == r->leader)
            return true;
    return false;
}

/* Another row is computing the request's prompt now. */
static bool sched_waits_for_sibling(struct sched *s, const struct sched_request *r)
{
    const struct sched_row *row = sched_sibling(s, r);
    return row && row->n_fed < r->engine.n_prompt - 1 && !row->is_paused;
}

/* The row begins with n ids that it need not take. */
static void sched_count_found(struct sched *s, struct sched_row *row, int32_t n, bool is_shared)
{
    int32_t of_prompt = n < row->request->engine.n_prompt ? n : row->request->engine.n_prompt;
    int32_t more = of_prompt - row->n_prompt;
    if (more <= 0)
        return;
    row->n_prompt = of_prompt;
    if (is_shared) {
        row->result.n_shared += more;
        s->stats.shared_tokens += more;
    } else {
        row->result.n_cached += more;
        s->stats.cached_tokens += more;
    }
}

/* Memory for all of the row's ids and some to come, and what another row has computed of them: one of the same submission that runs,
 * or any before. */
static bool sched_let_in(struct sched *s, struct sched_row *row, struct err *err)
{
    const struct sched_row *from = sched_sibling(s, row->request);
    int32_t n = from ? s->engine->ops->share(s->engine, row->row, from->row) : 0;
    bool is_shared = n > 0;
    if (!is_shared)
        n = s->engine->ops->reuse(s->engine, row->row);
    if (!sched_promise(s, row, row->n_ids + SCHED_PROMISE, false, err)) {
        s->engine->ops->rewind(s->engine, row->row);
        return false;
    }
    row->is_parked = false;
    row->n_fed = n;
    sched_count_found(s, row, n, is_shared);
    if (row->is_new)
        rank_charge(row->request,
                    row->request->engine.n_prompt - row->result.n_shared - row->result.n_cached);
    row->is_new = false;
    return true;
}

static bool sched_is_memory_held(const struct sched *s)
{
    for (int32_t i = 0; i < s->n_rows; i++)
        if (!s->rows[i].is_parked)
            return true;
    return false;
}

/* Ask the disk for more of the row's ids. */
static void sched_fetch(struct sched *s, struct sched_row *row)
{
    row->is_fetching = s->engine->ops->fetch && s->engine->ops->fetch(s->engine, row->row);
    s->stats.disk_waits += row->is_fetching;
    if (row->is_fetching) /* from here on there is a time at which the engine stops waiting */
        s->tend_us = s->engine->ops->tend(s->engine);
}

/* False: nobody behind it starts either. */
static bool sched_start_request(struct sched *s, struct sched_request *r)
{
    struct err err;
    if (s->n_rows == s->engine->info.max_rows)
        return false;
    struct sched_row *row = &s->rows[s->n_rows];
    *row = (struct sched_row){ .request = r,
                               .n_ids = r->engine.n_prompt + r->engine.n_begun,
                               .is_parked = true,
                               .is_new = true };
    row->result.n_tokens = r->engine.n_begun;
    enum err_code code = s->engine->ops->open(s->engine, &r->engine, &row->row, &err);
    if (code == ERR_NOMEM && s->n_rows > 0)
        return false; /* a row that ends gives its place back */
    if (code != ERR_OK) {
        sched_drop_waiting(s, r, code, err.text);
        return true;
    }
    sched_fetch(s, row);
    if (!row->is_fetching && !sched_let_in(s, row, &err)) {
        s->engine->ops->close(s->engine, row->row);
        if (sched_is_memory_held(s))
            return false;
        sched_drop_waiting(s, r, ERR_FULL,
                           err.text); /* all memory is there, and it is too little */
        return true;
    }
    sched_unlink(s, r);
    row->opened_us = clock_us();
    histogram_add(&s->stats.histograms[SCHED_HISTOGRAM_QUEUE],
                  (double)(row->opened_us - r->submitted_us) * 1e-6);
    if (trace_is_on() && r->trace != 0)
        trace_span("engine.admission_wait", r->trace, r->submitted_us, row->opened_us,
                   "{\"rows\":%d}", s->n_rows);
    s->n_rows++;
    return true;
}

/* What the row had taken may be on disk alone by now. Asked once there is memory for it, which is others' until the disk is read. */
static void sched_ask_disk(struct sched *s, struct sched_row *row)
{
    s->engine->ops->rewind(s->engine, row->row);
    row->n_fed = row->n_promised = 0;
    row->is_parked = true;
    row->asks_disk = false;
    sched_fetch(s, row);
}

/* False: not now, and nobody behind it is let in before it. */
static bool sched_resume_row(struct sched *s, struct sched_row *row)
{
    struct err err;
    bool is_in = sched_let_in(s, row, &err);
    if (is_in && row->asks_disk) {
        sched_ask_disk(s, row);
        is_in = row->is_fetching || sched_let_in(s, row, &err);
    }
    if (is_in)
        return true;
    if (sched_is_memory_held(s))
        return false;
    row->is_done = true; /* all memory is there, and it is too little */
    row->result.finish = FINISH_ERROR;
    row->result.err = err;
    return true;
}

static struct sched_request *sched_best_waiting(struct sched *s)
{
    struct sched_request *best = NULL;
    for (struct sched_request *r = s->first; r; r = r->next)
        if ((!best || rank_is_before(r, best)) && !sched_waits_for_sibling(s, r))
            best = r;
    return best;
}

/* It waits for the disk, while others go on. */
static bool sched_is_fetching(const struct sched *s, struct sched_row *row)
{
    row->is_fetching = row->is_fetching && s->engine->ops->is_fetching(s->engine, row->row);
    return row->is_fetching;
}

static struct sched_row *sched_best_parked(struct sched *s)
{
    struct sched_row *best = NULL;
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->is_parked && !row->is_done && !sched_rests(s, row) && !sched_is_fetching(s, row) &&
            (!best || rank_is_before(row->request, best->request)))
            best = row;
    }
    return best;
}

/* Background work starts only where nothing else is: asked and done in one place, on the thread that owns the engine. */
static bool sched_may_start(const struct sched *s, const struct sched_request *r)
{
    int32_t max_rows = s->engine->info.max_rows;
    if (!r->is_background)
        return true;
    if (max_rows > 1 && s->n_rows + 1 == max_rows) /* the last place is for others */
        return false;
    for (int32_t i = 0; i < s->n_rows; i++)
        if (!s->rows[i].request->is_background)
            return false;
    return true;
}

void sched_admit(struct sched *s)
{
    bool goes_on = true;
    while (goes_on) {
        struct sched_row *row = sched_best_parked(s);
        struct sched_request *r = sched_best_waiting(s);
        /* One that has no place to start at keeps no row waiting that has one: if that were the last to wait for the disk, nobody would
         * ever go on. */
        if (r && (s->n_rows == s->engine->info.max_rows || !sched_may_start(s, r) ||
                  (row && rank_is_before(row->request, r))))
            r = NULL;
        goes_on = r && sched_start_request(s, r);
        if (row && !goes_on && (!r || !sched_is_memory_held(s)))
            goes_on = sched_resume_row(s, row);
    }
    sched_stats_rows(s);
}
