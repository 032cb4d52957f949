/* engine_draft.c - which guesses a step verifies, and what they have come to.
 *
 * The rows of a step that decode are asked in one go. Ids that must come (guide.h) are guesses that are always right. All others are
 * cut to what pays (speculate.h). A guess's row is tentative: the cache takes it, and the rows behind the first guess that was not
 * sampled are taken back before the next step. State of a row: planned (n_drafts set, items lengthened) -> stepped -> sampled (n_fed
 * counts what stays) -> settled (the cache has n_fed tokens); a step that fails as a whole ends its rows. */
#include "engine/engine_int.h"

#include <string.h>

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
    a->sure = is_sure ? -1 : DRAFT_SPELLED;
}

/* Guesses of the rows that can take some: what the drafter says, then what guide and grammar know. Returns the number of asks. */
static int32_t draft_ask_all(struct engine_model *em, const struct engine_work *work, int32_t n)
{
    int32_t n_asks = 0, n_known = 0, end = em->base.info.max_rows; /* known ones wait at the end */
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
        if (a.n > 0)
            em->asks[end - ++n_known] = a;
        else if (!row->no_drafts)
            em->asks[n_asks++] = a;
    }
    if (n_asks > 0)
        em->drafter->ops->draft(em->drafter, em->asks, n_asks);
    memmove(em->asks + n_asks, em->asks + end - n_known, (size_t)n_known * sizeof(*em->asks));
    return n_asks + n_known;
}

/* The ask's guesses become the row's: all are compared with what is sampled, those that pay are verified. */
static void draft_note(struct engine_model *em, struct draft_ask *a)
{
    struct row *row = &em->rows[a->row];
    row->n_guess = a->n;
    row->sure = a->sure;
    if (row->constraint.state && a->sure >= 0) /* no need to verify what is barred */
        row->n_guess = a->n = constraint_cut(&row->constraint, &row->guide, a->ids_out, a->n);
    memcpy(row->guess, a->ids_out, (size_t)a->n * sizeof(*row->guess));
}

static int32_t draft_cut_all(struct draft_ask *asks, int32_t n, int32_t n_max)
{
    int32_t left = n_max;
    for (int32_t i = 0; i < n; i++) {
        asks[i].n = asks[i].n < left ? asks[i].n : left;
        left -= asks[i].n;
    }
    return n_max - left;
}

void draft_plan(struct engine_model *em, const struct engine_work *work, int32_t n, int32_t n_out,
                int32_t n_rows)
{
    int32_t n_asks = draft_ask_all(em, work, n), n_max = n_out < n_rows ? n_out : n_rows;
    int32_t n_taken = em->base.info.max_step_rows - n_rows, n_decode = 0;
    for (int32_t i = 0; i < n_asks; i++) {
        struct draft_ask *a = &em->asks[i];
        draft_note(em, a);
        em->chances[i] =
            a->sure < 0 ? 1 : draft_rate_of(&em->rows[a->row].rate, &em->rate, a->sure);
    }
    for (int32_t i = 0; i < n; i++)
        n_decode += em->items[i].n == 1;
    int32_t n_kept = em->drafts_always ? draft_cut_all(em->asks, n_asks, n_max)
                                       : speculate_plan(&em->cost, n_taken, em->asks, em->chances,
                                                        n_asks, n_decode, n_max);
    for (int32_t i = 0; i < n_asks && n_kept > 0; i++)
        em->rows[em->asks[i].row].n_drafts = em->asks[i].n;
    for (int32_t i = 0; i < n && n_kept > 0; i++) {
        struct row *row = &em->rows[work[i].row];
        memcpy(row->ids + row->n_ids, row->guess, (size_t)row->n_drafts * sizeof(*row->ids));
        em->items[i].n += row->n_drafts;
        em->items[i].n_out += row->n_drafts;
        em->items[i].is_tentative = row->n_drafts > 0;
    }
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
        if (row->sure >= 0) {
            draft_rate_add(&row->rate, row->sure, is_taken);
            draft_rate_add(&em->rate, row->sure, is_taken);
        }
        sp->accepted += is_taken && i < row->n_drafts;
        sp->accepted_at[i] += is_taken && i < row->n_drafts;
    }
}

void draft_settle(struct engine_model *em, const struct engine_work *work,
                  struct engine_result *results, int32_t n, int64_t us)
{
    int32_t n_rows = 0;
    bool is_decoding = true;
    for (int32_t i = 0; i < n; i++) {
        struct row *row = &em->rows[work[i].row];
        draft_learn(em, row, &results[i]);
        if (row->n_drafts > 0)
            runner_truncate(em->runner, row->seq, row->n_fed);
        n_rows += em->items[i].n;
        is_decoding = is_decoding && em->items[i].n - row->n_drafts == 1;
        results[i].speculation = row->speculation;
    }
    if (is_decoding)
        step_cost_add(&em->cost, n_rows, us);
}
