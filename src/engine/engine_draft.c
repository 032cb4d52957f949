/* engine_draft.c - which guesses a step verifies, and what they have come to.
 *
 * The rows of a step that decode are asked in one go. Ids that must come (guide.h) are guesses that are always right. All others are
 * cut to what pays (speculate.h); a drafter that takes time is asked only where its guesses seem to pay for that, too, and rarely to
 * see whether they would. A guess's row is tentative: the cache takes it, and the rows behind the first guess that was not
 * sampled are taken back before the next step. State of a row: planned (n_drafts set, items lengthened) -> stepped -> sampled (n_fed
 * counts what stays) -> settled (the cache has n_fed tokens); a step that fails as a whole ends its rows. */
#include "base/clock.h"
#include "engine/engine_int.h"

#include <string.h>

#define SLOW_SHARE \
    0.25 /* of the time that a row has decoded may be spent on knowing its text: what is lost at worst */
#define SLOW_PROBE_FIRST 32 /* tokens after which a drafter that does not pay is asked again, ... */
#define SLOW_PROBE_LAST  512 /* ... twice as many each time */

void draft_open(struct engine_model *em, row_id id, const struct engine_request *req)
{
    struct row *row = &em->rows[id];
    row->no_slow = row->no_drafts || !em->slow ||
                   em->slow->ops->open(em->slow, id, req, row->ids_max, NULL) != ERR_OK;
    row->no_drafts = row->no_drafts || !em->drafter ||
                     em->drafter->ops->open(em->drafter, id, req, row->ids_max, NULL) != ERR_OK;
    row->probe_after = SLOW_PROBE_FIRST;
    expected_init(&row->expected, row->no_drafts ? NULL : req->expected, em->base.info.n_vocab);
    for (int32_t i = row->n_prompt; i < row->n_ids; i++)
        expected_feed(&row->expected, row->ids[i]);
}

void draft_close(struct engine_model *em, row_id id)
{
    struct row *row = &em->rows[id];
    expected_release(&row->expected);
    if (!row->no_drafts)
        em->drafter->ops->close(em->drafter, id, row->ids, row->n_ids);
    if (!row->no_slow)
        em->slow->ops->close(em->slow, id, row->ids, row->n_ids);
}

/* Guesses that the row can take in this step; 0 where it does not decode. */
static int32_t draft_room(const struct engine_model *em, const struct row *row,
                          const struct runner_item *item)
{
    bool decodes = item->n == 1 && item->n_out == 1 && row->n_ids - row->n_fed == 1 &&
                   row->ids_max > row->n_prompt && row->n_scored == row->n_prompt;
    int32_t n = row->ids_max - row->n_ids - 1,
            room = decodes ? runner_room(em->runner, row->seq) - 1 : 0;
    n = n < room ? n : room;
    return n < em->drafts_max ? n : em->drafts_max;
}

/* What guide and grammar know of the next ids. */
static void draft_known(struct row *row, struct draft_ask *a)
{
    bool is_sure = true;
    a->n = guide_ahead(&row->guide, a->ids_out, a->n_max);
    if (a->n == 0 && row->constraint.state)
        a->n = constraint_ahead(&row->constraint, &row->guide, a->ids_out, a->n_max, &is_sure);
    if (!is_sure && row->no_drafts)
        a->n = 0;
    memset(a->sure, is_sure ? -1 : DRAFT_SPELLED, sizeof(a->sure));
}

/* What is expected to come goes before what the text once said, unless that agrees and knows more. */
static void draft_expect(const struct row *row, struct draft_ask *a)
{
    int32_t ids[DRAFT_MAX], n = expected_ahead(&row->expected, ids, a->n_max);
    if (n == 0 || (a->n >= n && memcmp(a->ids_out, ids, (size_t)n * sizeof(*ids)) == 0))
        return;
    a->n = n;
    memcpy(a->ids_out, ids, (size_t)n * sizeof(*ids));
    memset(a->sure, DRAFT_EXPECTED, sizeof(a->sure));
}

/* Guesses of the rows that can take some: what the fast drafter says, then what guide and grammar know. Returns the number of asks. */
static int32_t draft_ask_all(struct engine_model *em, const struct engine_work *work, int32_t n)
{
    int32_t n_asks = 0, n_known = 0,
            end = em->base.info.max_rows; /* those it is not asked for wait at the end */
    for (int32_t i = 0; i < n; i++) {
        struct row *row = &em->rows[work[i].row];
        struct draft_ask a = { .row = work[i].row,
                               .ids = row->ids,
                               .n_ids = row->n_ids,
                               .n_max = draft_room(em, row, &em->items[i]) };
        row->n_guess = 0;
        if (a.n_max < 1)
            continue;
        draft_known(row, &a);
        if (a.n > 0 || (row->no_drafts && !row->no_slow))
            em->asks[end - ++n_known] = a;
        else if (!row->no_drafts)
            em->asks[n_asks++] = a;
    }
    if (n_asks > 0)
        em->drafter->ops->draft(em->drafter, em->asks, n_asks);
    for (int32_t i = 0; i < n_asks; i++)
        draft_expect(&em->rows[em->asks[i].row], &em->asks[i]);
    memmove(em->asks + n_asks, em->asks + end - n_known, (size_t)n_known * sizeof(*em->asks));
    return n_asks + n_known;
}

static void draft_set_chances(const struct engine_model *em, struct draft_ask *a)
{
    for (int32_t i = 0; i < a->n; i++)
        a->chance[i] =
            a->sure[i] < 0 ? 1 : draft_rate_of(&em->rows[a->row].rate, &em->rate, a->sure[i]);
}

/* --- the drafter that takes time --- */

/* Would its guesses be likelier than those that are there, and may it be asked at all? Then the ask is for them. */
static void draft_want_slow(const struct engine_model *em, struct draft_ask *a)
{
    const struct row *row = &em->rows[a->row];
    double any = draft_rate_of(&row->rate, &em->rate, DRAFT_MODEL_BEFORE);
    bool is_known =
        em->drafts_always || em->slow->ops->due_us(em->slow, a->row, a->n_ids) <= row->allowance_us;
    if (row->no_slow || !is_known || (a->n > 0 && (a->chance[0] >= any || a->sure[0] < 0)))
        return;
    a->is_due = true;
    a->n = a->n_max;
    for (int32_t i = 0; i < a->n; i++)
        a->chance[i] = any;
}

/* The chance from which on another guess of one row is worth its making and its row in the step, where so much comes in a us. */
static double draft_least(const struct engine_model *em, int32_t n_rows, double rate)
{
    double more = step_cost_of(&em->cost, n_rows + 2) - step_cost_of(&em->cost, n_rows + 1);
    double making = em->slow->ops->is_block ? 0 : em->slow->ops->guess_us(em->slow, 1);
    return (more + making) * rate;
}

/* Of the asks [n] in em->plan those that the slow drafter is to answer: first in em->plan then. Returns how many. */
static int32_t draft_choose_slow(struct engine_model *em, int32_t n, bool pays, double least)
{
    int32_t n_slow = 0;
    for (int32_t i = 0; i < n; i++) {
        struct draft_ask a = em->plan[i];
        struct row *row = &em->rows[a.row];
        if (!a.is_due)
            continue;
        bool is_probe = !pays || a.n == 0;
        if (is_probe && row->n_quiet < row->probe_after)
            continue;
        if (is_probe && row->probe_after < SLOW_PROBE_LAST)
            row->probe_after *= 2;
        if (!is_probe)
            row->probe_after = SLOW_PROBE_FIRST;
        row->n_quiet = 0;
        a.n_max = is_probe ? 1 : a.n;
        a.n = 0;
        a.is_due = false;
        a.least = least;
        em->plan[n_slow++] = a;
    }
    return n_slow;
}

/* Ask it for those of the asks [n] for which it seems to pay. */
static void draft_ask_slow(struct engine_model *em, const struct speculate_room *room, int32_t n)
{
    memcpy(em->plan, em->asks, (size_t)n * sizeof(*em->asks));
    double without = speculate_plan(&em->cost, NULL, room, em->plan, n), with = 0;
    memcpy(em->plan, em->asks, (size_t)n * sizeof(*em->asks));
    for (int32_t i = 0; i < n; i++)
        draft_want_slow(em, &em->plan[i]);
    if (!em->drafts_always)
        with = speculate_plan(&em->cost, em->slow, room, em->plan, n);
    bool pays = em->drafts_always || with > without;
    double least = em->drafts_always ? 0 : draft_least(em, room->n_rows, pays ? with : without);
    int32_t n_slow = draft_choose_slow(em, n, pays, least);
    if (n_slow == 0)
        return;
    runner_meanwhile(em->runner);
    int64_t start = clock_us();
    em->slow->ops->draft(em->slow, em->plan, n_slow);
    em->slow_us = clock_us() - start;
    for (int32_t i = 0; i < n_slow; i++) {
        struct draft_ask *a = em->asks;
        while (a->row != em->plan[i].row)
            a++;
        if (em->plan[i].n == 0) { /* it was reading */
            em->rows[a->row].allowance_us -= (double)em->slow_us / n_slow;
            continue;
        }
        em->rows[a->row].speculation.computed += em->plan[i].n;
        em->plan[i].n_max = a->n_max;
        *a = em->plan[i];
        draft_set_chances(em, a);
    }
}

/* --- the step's guesses --- */

/* The ask's guesses become the row's: all are compared with what is sampled, those that pay are verified. */
static void draft_note(struct engine_model *em, struct draft_ask *a)
{
    struct row *row = &em->rows[a->row];
    row->n_guess = a->n;
    if (row->constraint.state && a->n > 0 && a->sure[0] >= 0) /* no need to verify what is barred */
        row->n_guess = a->n = constraint_cut(&row->constraint, &row->guide, a->ids_out, a->n);
    memcpy(row->sure, a->sure, (size_t)a->n * sizeof(*row->sure));
    memcpy(row->guess, a->ids_out, (size_t)a->n * sizeof(*row->guess));
}

static void draft_cut_all(struct draft_ask *asks, int32_t n, int32_t n_max)
{
    int32_t left = n_max;
    for (int32_t i = 0; i < n; i++) {
        asks[i].n = asks[i].n < left ? asks[i].n : left;
        left -= asks[i].n;
    }
}

void draft_plan(struct engine_model *em, const struct engine_work *work, int32_t n, int32_t n_out,
                int32_t n_rows)
{
    int32_t n_asks = draft_ask_all(em, work, n);
    struct speculate_room room = { .n_rows = em->base.info.max_step_rows - n_rows,
                                   .n_max = n_out < n_rows ? n_out : n_rows };
    for (int32_t i = 0; i < n; i++) {
        room.n_decode += em->items[i].n == 1;
        em->items[i].wants_taps = em->seen && !em->rows[work[i].row].no_slow;
    }
    for (int32_t i = 0; i < n_asks; i++)
        draft_set_chances(em, &em->asks[i]);
    em->slow_us = 0;
    if (em->slow && n_asks > 0)
        draft_ask_slow(em, &room, n_asks);
    for (int32_t i = 0; i < n_asks; i++)
        draft_note(em, &em->asks[i]);
    if (em->drafts_always)
        draft_cut_all(em->asks, n_asks, room.n_max);
    else
        (void)speculate_plan(&em->cost, NULL, &room, em->asks, n_asks);
    for (int32_t i = 0; i < n_asks; i++)
        em->rows[em->asks[i].row].n_drafts = em->asks[i].n;
    for (int32_t i = 0; i < n; i++) {
        struct row *row = &em->rows[work[i].row];
        memcpy(row->ids + row->n_ids, row->guess, (size_t)row->n_drafts * sizeof(*row->ids));
        em->items[i].n += row->n_drafts;
        em->items[i].n_out += row->n_drafts;
        em->items[i].is_tentative = row->n_drafts > 0;
    }
}

static void draft_learn_one(struct engine_model *em, struct row *row, int32_t sure, bool is_taken)
{
    if (sure < 0)
        return;
    draft_rate_add(&row->rate, sure, is_taken);
    draft_rate_add(&em->rate, sure, is_taken);
    if (sure < DRAFT_MODEL_SURE || sure >= DRAFT_MODEL_BEFORE)
        return;
    draft_rate_add(&row->rate, DRAFT_MODEL_BEFORE, is_taken);
    draft_rate_add(&em->rate, DRAFT_MODEL_BEFORE, is_taken);
}

static void draft_learn(struct engine_model *em, struct row *row, const struct engine_result *res)
{
    struct engine_speculation *sp = &row->speculation;
    int32_t n = row->n_drafts > 0 ? row->n_drafts : 1; /* unverified, only the first was reached */
    bool is_taken = true;
    sp->rounds += row->n_drafts > 0;
    sp->drafted += row->n_drafts;
    for (int32_t i = 0; i < n && i < row->n_guess && i < res->n_tokens && is_taken; i++) {
        is_taken = res->tokens[i].id == row->guess[i];
        draft_learn_one(em, row, row->sure[i], is_taken);
        sp->accepted += is_taken && i < row->n_drafts;
        sp->accepted_at[i] += is_taken && i < row->n_drafts;
    }
}

/* The hidden states of what has been computed and stays. */
static void draft_see(struct engine_model *em, const struct engine_work *work,
                      const struct engine_result *results, int32_t n)
{
    int64_t cols = em->runner->taps.n * em->runner->model->width;
    int32_t n_seen = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct row *row = &em->rows[work[i].row];
        int32_t n_new = results[i].n_taken;
        if (!em->items[i].tapped || row->has_failed || n_new == 0)
            continue;
        /* the backend's ops take what they read as their own */
        float *states = (float *)(uintptr_t)em->items[i].tapped;
        em->seen[n_seen++] = (struct draft_seen){ .row = work[i].row,
                                                  .pos = row->n_fed - n_new,
                                                  .n = n_new,
                                                  .ids = row->ids,
                                                  .n_ids = row->n_ids,
                                                  .states = { states, n_new, cols, cols } };
    }
    if (n_seen > 0)
        em->slow->ops->see(em->slow, em->seen, n_seen);
}

void draft_settle(struct engine_model *em, const struct engine_work *work,
                  struct engine_result *results, int32_t n, int64_t us)
{
    int32_t n_rows = 0;
    bool is_decoding = true;
    for (int32_t i = 0; i < n; i++) {
        struct row *row = &em->rows[work[i].row];
        draft_learn(em, row, &results[i]);
        if (row->n_drafts > 0 &&
            !row->has_failed) { /* one that failed has ended and is closed next */
            enum err_code code = runner_resolve(em->runner, row->seq, results[i].n_taken - 1, NULL);
            BUG_ON(code != ERR_OK);
        }
        n_rows += em->items[i].n;
        is_decoding = is_decoding && em->items[i].n - row->n_drafts == 1;
        results[i].speculation = row->speculation;
        row->n_quiet += results[i].n_tokens;
        row->allowance_us += SLOW_SHARE * (double)us / n;
    }
    if (is_decoding)
        step_cost_add(&em->cost, n_rows, us - em->slow_us);
    if (em->seen)
        draft_see(em, work, results, n);
}
