/* step.c - what one step holds, and what becomes of its results.
 *
 * A step has one token of every row that decodes, then pending ids of the others, the most entitled first, up to what the stall bound
 * allows. What it costs is learnt from the steps before. */
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "sched/sched_int.h"

#define SCHED_CHUNK_MIN   16      /* fewer tokens in a chunk cost more than they save in waiting */
#define SCHED_CHUNK_FIRST 64      /* until a step has shown what a prompt token costs */
#define SCHED_ALONE_US    1000000 /* longest chunk where nobody waits but a cancel */
#define SCHED_MARGIN \
    0.85 /* of the stall bound is planned for: the same step took up to 1.2 times as long as the one before */

/* --- build --- */

static void sched_add_work(struct sched *s, struct sched_row *row, int32_t n)
{
    s->work[s->n_work] = (struct engine_work){ row->row, n };
    s->work_rows[s->n_work++] = row;
}

static int32_t sched_pending(const struct sched_row *row)
{
    return row->n_ids - row->n_fed;
}

/* Pending ids that this step may take beside n_decode decoding rows. */
static int32_t sched_chunk(const struct sched *s, int32_t n_decode)
{
    int64_t bound = n_decode > 0 ? s->config.max_stall_us : SCHED_ALONE_US;
    double n =
        s->us_per_token > 0 ? SCHED_MARGIN * (double)bound / s->us_per_token : SCHED_CHUNK_FIRST;
    int32_t room = s->engine->info.max_step_rows - n_decode;
    int32_t chunk = n >= (double)room ? room : (int32_t)n;
    if (chunk < SCHED_CHUNK_MIN)
        chunk = SCHED_CHUNK_MIN;
    if (chunk > room)
        chunk = room;
    int32_t block = s->engine->info.step_block;
    int32_t whole = block > 1 ? (n_decode + chunk) / block * block - n_decode : chunk;
    return whole >= SCHED_CHUNK_MIN ? whole : chunk;
}

/* Of a row's pending ids, how many it takes at most now. A prompt that others wait to share stops before its last token: then each of
 * them takes that one for itself, whatever the cache has dropped by then. */
static int32_t sched_take_max(const struct sched *s, const struct sched_row *row)
{
    int32_t n = sched_pending(row);
    if (s->engine->info.is_embedder)
        return n;
    int32_t before_last = row->request->engine.n_prompt - 1 - row->n_fed;
    if (before_last > 0 && sched_has_sibling_waiting(s, row->request))
        return before_last;
    return n;
}

/* Rows with more than one pending id, most entitled first. */
static int32_t sched_sort_prompts(struct sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (row->is_parked || row->is_done || sched_rests(s, row) || sched_pending(row) < 2)
            continue;
        int32_t at = n++;
        for (; at > 0 && rank_is_before(row->request, s->prompts[at - 1]->request); at--)
            s->prompts[at] = s->prompts[at - 1];
        s->prompts[at] = row;
    }
    return n;
}

void sched_build_step(struct sched *s)
{
    s->n_work = 0;
    s->n_step_prompt = 0;
    for (int32_t i = 0; i < s->n_rows; i++) {
        struct sched_row *row = &s->rows[i];
        if (!row->is_parked && !row->is_done && !sched_rests(s, row) && sched_pending(row) == 1)
            sched_add_work(s, row, 1);
    }
    int32_t left = sched_chunk(s, s->n_work), n = sched_sort_prompts(s);
    for (int32_t i = 0; i < n && left > 0; i++) {
        int32_t take = sched_take_max(s, s->prompts[i]);
        if (take > left && s->engine->info.is_embedder) {
            /* whole or not at all; the most entitled one always fits a step of its own */
            if (s->n_work > 0 || take > s->engine->info.max_step_rows)
                continue;
            left = take;
        }
        take = take < left ? take : left;
        sched_add_work(s, s->prompts[i], take);
        s->n_step_prompt += take;
        left -= take;
    }
}

/* --- forward --- */

static void sched_learn_cost(struct sched *s, int64_t us)
{
    if (s->n_step_prompt < SCHED_CHUNK_MIN)
        return;
    /* Decode rows counted in, up at once and down slowly: errs to smaller chunks, for the bound is one. */
    double now = (double)us / s->n_step_prompt;
    s->us_per_token = now > s->us_per_token ? now : 0.75 * s->us_per_token + 0.25 * now;
}

void sched_forward(struct sched *s)
{
    struct err err;
    s->step_start_us = clock_us();
    s->stats.step_started_us = s->step_start_us;
    enum err_code code = s->engine->ops->step(s->engine, s->work, s->n_work, s->results, &err);
    s->step_end_us = clock_us();
    int64_t us = s->step_end_us - s->step_start_us;
    s->stats.step_started_us = 0;
    s->stats.last_step_us = us;
    s->stats.steps++;
    histogram_add(&s->stats.histograms[SCHED_HISTOGRAM_STEP], (double)us * 1e-6);
    histogram_add(&s->stats.histograms[SCHED_HISTOGRAM_STEP_ROWS], s->n_work);
    sched_learn_cost(s, us);
    sched_tell(s); /* it may have failed before there was time for it */
    if (code == ERR_OK)
        return;
    log_error("sched", "a step of %d rows failed: %s", s->n_work, err.text);
    bool is_mended = code == ERR_LOST || (code == ERR_IO && s->engine->ops->mend);
    if (is_mended) /* the rows are none the worse for it: what they were can be made again */
        err.code = ERR_LOST;
    for (int32_t i = 0; i < s->n_work; i++)
        s->results[i] =
            (struct engine_result){ .row = s->work[i].row, .finish = FINISH_ERROR, .err = err };
    if (is_mended)
        sched_mend(s, code == ERR_LOST, &err);
}

/* --- route --- */

/* The row's ids that were taken: new ones of the prompt, the token emitted last, or some taken again. */
static void sched_count_taken(struct sched *s, struct sched_row *row, int32_t n)
{
    int32_t before = row->n_fed, n_prompt = row->request->engine.n_prompt;
    row->n_fed += n;
    int32_t of_prompt = row->n_fed < n_prompt ? row->n_fed : n_prompt;
    int32_t again = (row->n_fed < row->n_again ? row->n_fed : row->n_again) - before;
    if (again > 0)
        s->stats.recomputed_tokens += again;
    if (of_prompt <= row->n_prompt)
        return;
    s->stats.prompt_tokens += of_prompt - row->n_prompt;
    row->n_prompt = of_prompt;
}

static void sched_time_token(struct sched *s, struct sched_row *row)
{
    int64_t now = s->step_end_us;
    struct histogram *h = s->stats.histograms;
    if (row->first_token_us == 0) {
        row->first_token_us = now;
        histogram_add(&h[SCHED_HISTOGRAM_PREFILL], (double)(now - row->opened_us) * 1e-6);
        histogram_add(&h[SCHED_HISTOGRAM_FIRST_TOKEN],
                      (double)(now - row->request->submitted_us) * 1e-6);
    } else {
        histogram_add(&h[SCHED_HISTOGRAM_INTER_TOKEN], (double)(now - row->last_token_us) * 1e-6);
    }
    row->last_token_us = now;
}

/* The row's part of the step, and what it brings to an end. */
static void sched_trace_row(const struct sched *s, const struct sched_row *row, int32_t n_taken,
                            bool is_prompt, bool is_first)
{
    uint64_t track = row->request->trace;
    if (is_first)
        trace_span("prefill.total", track, row->opened_us, s->step_end_us,
                   "{\"tokens\":%d,\"shared\":%d}", row->n_prompt, row->result.n_shared);
    if (is_prompt)
        trace_span("prefill.chunk", track, s->step_start_us, s->step_end_us,
                   "{\"tokens\":%d,\"at\":%d}", n_taken, row->n_fed);
    if (is_first)
        trace_span("token_zero.total", track, s->step_start_us, s->step_end_us, "{}");
}

static void sched_route_tokens(struct sched *s, struct sched_row *row,
                               const struct engine_result *res)
{
    for (int32_t i = 0; i < res->n_tokens; i++)
        sched_time_token(s, row);
    if (res->n_tokens > 0)
        s->due[s->n_due++] =
            (struct sched_due){ row->request->id, res->n_tokens, res->tokens, res->safe_at };
    row->n_ids += res->n_tokens;
    row->result.n_tokens += res->n_tokens;
    s->stats.tokens += res->n_tokens;
    rank_charge(row->request, 2.0 * res->n_tokens);
    row->result.n_reasoning = res->n_reasoning;
    s->stats.drafted_tokens += res->speculation.drafted - row->result.speculation.drafted;
    s->stats.accepted_tokens += res->speculation.accepted - row->result.speculation.accepted;
    row->result.speculation = res->speculation;
    if (res->text_safe > row->result.text_safe)
        row->result.text_safe = res->text_safe;
}

static void sched_trace_step(const struct sched *s)
{
    trace_span("engine.mixed_forward", TRACE_ENGINE, s->step_start_us, s->step_end_us,
               "{\"rows\":%d,\"prompt_tokens\":%d,\"waiting\":%lld}", s->n_work, s->n_step_prompt,
               (long long)s->stats.waiting);
}

void sched_deliver(struct sched *s)
{
    int64_t start = trace_is_on() && s->n_due > 0 ? clock_us() : 0;
    for (int32_t i = 0; i < s->n_due; i++)
        for (int32_t k = 0; k < s->due[i].n; k++) {
            struct sched_event ev = { .kind = SCHED_EVENT_TOKEN, .id = s->due[i].id };
            ev.token.token = s->due[i].tokens[k];
            ev.token.text_safe = s->due[i].safe_at[k];
            sched_publish(s, &ev);
        }
    s->n_due = 0;
    if (start > 0)
        trace_span("response.token_route", TRACE_ENGINE, start, clock_us(), "{}");
}

void sched_tell(struct sched *s)
{
    sched_deliver(s);
    sched_wake(s);
}

void sched_route(struct sched *s)
{
    bool is_traced = trace_is_on();
    for (int32_t i = 0; i < s->n_work; i++) {
        struct sched_row *row = s->work_rows[i];
        const struct engine_result *res = &s->results[i];
        bool is_first = row->first_token_us == 0 && res->n_tokens > 0;
        bool is_prompt = row->n_fed + 1 < row->n_ids;
        sched_count_taken(s, row, res->n_taken);
        if (res->mask_us > 0)
            histogram_add(&s->stats.histograms[SCHED_HISTOGRAM_MASK], res->mask_us * 1e-6);
        if (is_traced && row->request->trace != 0)
            sched_trace_row(s, row, res->n_taken, is_prompt, is_first);
        sched_route_tokens(s, row, res);
        if (res->finish == FINISH_NONE)
            continue;
        row->is_done = true;
        row->result.finish = res->finish;
        row->result.stop_index = res->stop_index;
        if (res->finish == FINISH_ERROR)
            row->result.err = res->err;
    }
    if (is_traced)
        sched_trace_step(s);
}
