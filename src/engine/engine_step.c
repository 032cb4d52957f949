/* engine_step.c - one step: what each row takes, the forward pass, what is emitted. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_int.h"
#include "tensor/ops.h"
#include "tensor/shortlist.h"

#include <stdatomic.h>
#include <string.h>

/* Whether the row's choices go by its logits as they are, and nothing else is made of these. */
static bool row_is_free(const struct row *row)
{
    return !row->constraint.state && guide_is_free(&row->guide) && row->n_scored == row->n_prompt &&
           row->signal.n_bins == 0;
}

/* Whether the likeliest id is all that the row's choices look at. */
static bool row_is_greedy(const struct row *row)
{
    const struct sample_params *p = &row->sample;
    return p->temperature == 0 && p->n_logprobs < 0 && p->n_bias == 0 &&
           p->repetition_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0 &&
           row_is_free(row);
}

/* Rows with logits that the item asks for: the last one where the next token is due, and those that score the prompt. At most
 * n_out_max of these: then it takes fewer ids. */
static enum err_code row_plan(struct row *row, const struct engine_work *work, bool is_embedder,
                              int32_t n_out_max, struct runner_item *item, struct err *err)
{
    int32_t left = row->n_ids - row->n_fed;
    if (!row->is_open || row->is_finished)
        return err_set(err, ERR_STATE, "row %d is %s", work->row,
                       row->is_open ? "finished" : "not open");
    if (work->n_tokens < 1)
        return err_set(err, ERR_STATE, "row %d: asked to take %d ids", work->row, work->n_tokens);
    int32_t n = work->n_tokens < left ? work->n_tokens : left;
    if (is_embedder && n < left)
        return err_set(err, ERR_STATE, "row %d: asked to take %d ids of %d: a text is one step",
                       work->row, n, left);
    int32_t cut = engine_cuts_next(row);
    if (row->n_fed + n > cut) /* what stands there is kept */
        n = cut - row->n_fed;
    int32_t n_out = n == left;
    if (row->n_scored <
        row->n_prompt) { /* nothing is emitted yet: all is prompt, or what the answer has begun with */
        int32_t first = row->n_scored - 1 > row->n_fed ? row->n_scored - 1 : row->n_fed;
        n_out = row->n_fed + n > first ? row->n_fed + n - first : 0;
        int32_t over = n_out > n_out_max ? n_out - n_out_max : 0;
        n -= over;
        n_out -= over;
    }
    *item = (struct runner_item){ .seq = row->seq,
                                  .ids = row->ids + row->n_fed,
                                  .n = n,
                                  .n_out = n_out,
                                  .wants_best = row_is_greedy(row),
                                  .list_t = row_is_free(row) && sample_may_be_short(&row->sample)
                                                ? row->sample.temperature
                                                : 0,
                                  .wants_hidden = row->hidden && n_out > 0,
                                  .has_no_head = row->hidden && n_out > 0 && !row->scores &&
                                                 row->signal.n_bins == 0 };
    return ERR_OK;
}

static bool engine_model_is_end(const struct engine_model *em, const struct row *row, int32_t id)
{
    for (int32_t i = 0; i < row->n_ends; i++)
        if (row->end_ids[i] == id)
            return true;
    for (int32_t i = 0; i < em->n_end; i++)
        if (em->end_ids[i] == id)
            return true;
    return false;
}

static void row_finish(struct row *row, struct engine_result *res, enum finish finish)
{
    row->is_finished = true;
    row->has_failed = finish == FINISH_ERROR;
    res->finish = finish;
    if (finish != FINISH_STOP_STRING)
        guide_finish(&row->guide);
}

int32_t row_feed(struct row *row, const struct engine_bytes *bytes, int32_t id, enum err_code *code,
                 struct err *err)
{
    enum guide_phase was = row->guide.phase;
    bool is_forced = guide_next(&row->guide) != NULL;
    int32_t stop = guide_feed(&row->guide, id, bytes[id].data, bytes[id].len);
    expected_feed(&row->expected, id);
    if (row->constraint.state)
        *code = constraint_feed(&row->constraint, &row->guide, was, is_forced, id, err);
    return stop;
}

/* What may be sampled: sets ctx->forced or ctx->mask. */
static enum err_code row_restrict(const struct engine_model *em, struct row *row,
                                  struct sample_context *ctx, struct engine_result *res)
{
    ctx->forced = guide_next(&row->guide);
    if (ctx->forced)
        return ERR_OK;
    if (row->constraint.state) {
        struct constraint_ends ends = { .ids = em->end_ids,
                                        .more = row->end_ids,
                                        .n_ids = em->n_end,
                                        .n_more = row->n_ends,
                                        .is_ignored = row->ignore_end };
        int64_t start = clock_us();
        enum err_code code =
            constraint_mask(&row->constraint, &row->guide, &ends, &ctx->mask, &res->err);
        res->mask_us += (int32_t)(clock_us() - start) + 1; /* rounded up: there was one */
        return code;
    }
    if (guide_goes_on(&row->guide))
        ctx->mask = em->no_end;
    return ERR_OK;
}

/* Sample from output k of the item, unless its likeliest id is all that counts or the choice was made before, and emit. */
static void row_emit(struct engine_model *em, struct sampler *s, struct row *row,
                     const struct runner_item *item, int64_t k, struct engine_result *res)
{
    struct sample_context ctx = {
        .history = row->ids, .n_history = row->n_ids, .keep = em->keep, .n_keep = em->n_keep
    };
    struct engine_token *token = &row->tokens[res->n_tokens];
    if (item->best) {
        token->id = item->best[k];
        token->n_top = 0;
        token->logprob = 0;
    } else if (!item->is_chosen && (row_restrict(em, row, &ctx, res) ||
                                    sample_token(s, item->logits + k * s->n_vocab, &row->sample,
                                                 &ctx, token, &res->err))) {
        row_finish(row, res, FINISH_ERROR);
        return;
    }
    int32_t id = token->id;
    bool can_end = !row->ignore_end || row->constraint.state; /* a grammar's end is one */
    if (can_end && !ctx.forced && engine_model_is_end(em, row, id)) {
        row_finish(row, res, FINISH_END);
        return;
    }
    row->ids[row->n_ids++] = id;
    enum err_code code = ERR_OK;
    int32_t stop = row_feed(row, em->token_bytes, id, &code, &res->err);
    if (code) {
        row_finish(row, res, FINISH_ERROR);
    } else if (stop >= 0) {
        res->stop_index = stop;
        row_finish(row, res, FINISH_STOP_STRING);
    } else if (row->constraint.state && constraint_is_over(&row->constraint, &row->guide)) {
        row_finish(row, res, FINISH_END); /* an end id is all that could come */
    } else if (row->n_ids == row->ids_max) {
        row_finish(row, res, FINISH_LENGTH);
    }
    row->safe_at[res->n_tokens++] = row->guide.text_safe;
}

/* Fill the entries of the prompt that follow the positions from pos on, of which logits [n][V] are. */
static enum err_code row_score(struct sampler *s, struct row *row, const float *logits, int32_t pos,
                               int32_t n, struct err *err)
{
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < n && row->n_scored < row->n_prompt && !code; i++) {
        int32_t at = pos + i + 1;
        BUG_ON(at != row->n_scored);
        code = sample_score(s, logits + (int64_t)i * s->n_vocab, row->ids[at], row->n_score_top,
                            &row->scores[at], err);
        row->n_scored += code == ERR_OK;
    }
    return code;
}

static void row_fail(struct row *row, int32_t from, struct engine_result *res)
{
    err_set(&res->err, ERR_NUMERIC,
            "non-finite values at positions [%d, %d); the model file may be damaged", from,
            row->n_fed);
    row_finish(row, res, FINISH_ERROR);
}

/* Guesses stay as long as each is what was sampled in its place; then the next token is sampled behind it. */
static void row_verify(struct engine_model *em, struct sampler *s, struct row *row,
                       const struct runner_item *item, struct engine_result *res)
{
    int32_t first = item->n - row->n_drafts, n_out = item->n_out - row->n_drafts;
    for (int32_t i = 0; i < row->n_drafts && res->finish == FINISH_NONE; i++) {
        if (row->ids[row->n_ids - 1] != row->guess[i])
            return;
        row->n_fed++;
        res->n_taken++;
        if (first + i >= item->n_good)
            row_fail(row, row->n_fed - 1, res);
        else
            row_emit(em, s, row, item, n_out + i, res);
    }
}

/* The last id is taken: an answer's next token, or the end of a request that wants none. */
static void row_yield(struct engine_model *em, struct sampler *s, struct row *row,
                      const struct runner_item *item, struct engine_result *res)
{
    int64_t last = item->n_out - 1 - row->n_drafts, n_embd = em->base.info.n_embd;
    float *logits = item->logits ? item->logits + last * em->base.info.n_vocab : NULL;
    if (row->hidden)
        memcpy(row->hidden, item->hidden + last * n_embd, (size_t)n_embd * sizeof(*row->hidden));
    if (row->ids_max > row->n_prompt) {
        row_emit(em, s, row, item, last, res);
        row_verify(em, s, row, item, res);
    } else if (row->signal.n_bins > 0 && sample_signal(s, logits, &row->signal, &res->err)) {
        row_finish(row, res, FINISH_ERROR);
    } else {
        row_finish(row, res, FINISH_LENGTH);
    }
}

static void row_take(struct engine_model *em, struct sampler *s, struct row *row,
                     const struct runner_item *item, struct engine_result *res)
{
    int32_t n = item->n - row->n_drafts;              /* ids that were pending */
    int32_t pos = row->n_fed + item->n - item->n_out; /* of the first row with logits */
    row->n_fed += n;
    res->tokens = row->tokens;
    res->safe_at = row->safe_at;
    row->miss = NULL; /* told: what it finds again after it gave up its memory is another story */
    res->n_taken = n;
    if (item->has_failed && item->n_good < n) {
        row_fail(row, row->n_fed - n, res);
    } else if (row_score(s, row, item->logits, pos, item->n_out, &res->err)) {
        row_finish(row, res, FINISH_ERROR);
    } else if (row->n_fed == row->n_ids) {
        row_yield(em, s, row, item, res);
    }
    res->text_safe = row->guide.text_safe;
    res->n_reasoning = row->guide.n_reasoning;
}

/* Make the row's choices by its short lists, as long as guesses come true; they stand where they are emitted from. False: a list does not
 * say. Nothing else of the row changes. */
static bool row_choose(const struct engine_model *em, struct sampler *s, struct row *row,
                       const struct runner_item *item)
{
    struct sample_context ctx = {
        .history = row->ids, .n_history = row->n_ids, .keep = em->keep, .n_keep = em->n_keep
    };
    const struct shortlist *lists = item->lists + (item->n_out - 1 - row->n_drafts);
    for (int32_t i = 0; i <= row->n_drafts; i++, ctx.n_history++) {
        if (!sample_short(s, &lists[i], &row->sample, &ctx, &row->tokens[i]))
            return false;
        if (i < row->n_drafts && row->tokens[i].id != row->guess[i])
            return true;
    }
    return true;
}

/* Rows know nothing of one another, so they are sampled on all threads: about 100 us a row of 152k tokens (tests/sample). But where
 * a device computes, threads have gone to sleep by then, and waking them costs the caller more than a row that has no logits to look at,
 * which takes 0.2 us: with 15 asleep 8 greedy rows took 22 us from step to step in place of 10 (tests/support/bench_steps.c), and on two
 * processors at that, where no other one had to be called. */
struct sample_job {
    struct engine_model *em;
    struct runner_item *items;
    const struct engine_work *work;
    struct engine_result *results;
    int32_t n;
    _Atomic int32_t next; /* row that nobody has taken */
};

/* n_long: rows that are worth a thread. */
static void sample_rows(struct engine_model *em, void (*lane)(void *ctx, int64_t lane),
                        struct sample_job *j, int32_t n_long)
{
    int32_t n = n_long < em->n_samplers ? n_long : em->n_samplers;
    ops_parallel(em->runner->model->be, lane, j, n > 1 ? n : 1);
}

static void choose_lane(void *ctx, int64_t lane)
{
    struct sample_job *j = ctx;
    int32_t i;
    mem_guard_enter();
    while ((i = atomic_fetch_add(&j->next, 1)) < j->n)
        j->items[i].is_chosen =
            j->items[i].lists &&
            row_choose(j->em, &j->em->samplers[lane], &j->em->rows[j->work[i].row], &j->items[i]);
    mem_guard_leave();
}

void engine_model_choose(void *engine_model, struct runner_item *items, int32_t n)
{
    struct engine_model *em = engine_model;
    struct sample_job j = { .em = em, .items = items, .work = em->work, .n = n };
    int32_t n_long = 0;
    for (int32_t i = 0; i < n; i++)
        n_long += items[i].lists != NULL;
    sample_rows(em, choose_lane, &j, n_long);
}

static void sample_lane(void *ctx, int64_t lane)
{
    struct sample_job *j = ctx;
    int32_t i;
    mem_guard_enter();
    while ((i = atomic_fetch_add(&j->next, 1)) < j->n) {
        j->results[i] = (struct engine_result){ .row = j->work[i].row };
        row_take(j->em, &j->em->samplers[lane], &j->em->rows[j->work[i].row], &j->em->items[i],
                 &j->results[i]);
    }
    mem_guard_leave();
}

/* A row that stands before its prompt's last token: those that share the prompt may come later, so its state is kept there. */
static void engine_model_keep_states(struct engine_model *em, const struct engine_work *work,
                                     int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const struct row *row = &em->rows[work[i].row];
        if (row->n_fed == row->n_prompt - 1 && !row->has_failed)
            (void)runner_snapshot(em->runner,
                                  row->seq); /* where no slot is free the prompt is taken again */
    }
}

/* Rows that stand where later prompts may part from theirs. */
static void engine_model_keep_ends(struct engine_model *em, const struct engine_work *work,
                                   int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const struct row *row = &em->rows[work[i].row];
        if (row->has_failed || !engine_cuts_is_at(row) ||
            runner_keep_end(em->runner, row->seq, row->salt, row->ids, row->n_fed,
                            row->n_fed == row->cut_to_disk))
            continue;
        if (!em->has_warned) /* the prompt is computed again where it comes again */
            log_warn("engine",
                     "no room to keep what stands behind %d tokens of a prompt: more "
                     "--kv-memory or fewer --rows would make some; not said again",
                     row->n_fed);
        em->has_warned = true;
    }
}

enum err_code engine_model_step(struct engine *e, const struct engine_work *work, int32_t n,
                                struct engine_result *results, struct err *err)
{
    struct engine_model *em = engine_model_of(e);
    int64_t n_rows = 0, start = clock_us();
    int32_t n_out = em->runner->max_out; /* one for each row, the rest for those that score */
    if (n < 1 || n > e->info.max_rows || n > e->info.max_step_rows)
        return err_set(err, ERR_STATE, "step of %d rows, at most %d with %d tokens are possible", n,
                       e->info.max_rows, e->info.max_step_rows);
    mem_guard_enter();
    em->work = work;
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < n && !code; i++) {
        BUG_ON(work[i].row < 0 || work[i].row >= e->info.max_rows);
        code = row_plan(&em->rows[work[i].row], &work[i], e->info.is_embedder, n_out - (n - 1 - i),
                        &em->items[i], err);
        em->rows[work[i].row].n_drafts = 0;
        n_rows += code ? 0 : em->items[i].n;
        n_out -= em->items[i].n_out;
    }
    if (!code && n_rows > e->info.max_step_rows)
        code = err_set(err, ERR_STATE, "step of %lld tokens, at most %d", (long long)n_rows,
                       e->info.max_step_rows);
    if (!code) {
        draft_plan(em, work, n, n_out, e->info.max_step_rows - (int32_t)n_rows);
        code = runner_step(em->runner, em->items, n, err);
        em->is_lost = code == ERR_LOST;
    }
    if (!code) {
        struct sample_job j = { .em = em, .work = work, .results = results, .n = n };
        int32_t n_long = 0;
        for (int32_t i = 0; i < n; i++)
            n_long += em->items[i].logits && !em->items[i].best && !em->items[i].is_chosen;
        sample_rows(em, sample_lane, &j, n_long);
        draft_settle(em, work, results, n, clock_us() - start);
        for (int32_t i = 0; i < n; i++) /* prompts, for those that come while they run */
            if (em->items[i].n - em->rows[work[i].row].n_drafts > 1)
                row_keep(em, &em->rows[work[i].row], true);
        engine_model_keep_states(em, work, n);
        engine_model_keep_ends(em, work, n);
    }
    mem_guard_leave();
    return code;
}
