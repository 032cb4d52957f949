/* runner_round.c - the ways back: rounds of guesses, which are verified or have never been, and cuts at a place.
 *
 *            a step of 1 + k tentative rows, k > 0
 *     none ----------------------------------------> open
 *      ^                                             |  |
 *      |  resolve(a), 0 <= a <= k: 1 + a rows stay   |  |  resolve(a): one of the 1 + a rows has failed
 *      +---------------------------------------------+  +------------------------------------------------> poisoned
 *      ^                                                                                                       |
 *      +-------------------------- rewind, close (from open, too), truncate from open -------------------------+
 *
 * Whatever the group keeps, an open round has not lost what each of its ends needs: full layers have all pages; a window has dropped what
 * the row behind the sure one no longer sees, not what the last guess does not; recurrent layers stand before the round, with the
 * rows' inputs beside (runner_state.c). A step without guesses keeps nothing and begins no round. Rows of other sequences in the
 * same step are rounds of their own: what fails in one, or is refused, changes nothing in another. */
#include "engine/runner_int.h"

enum err_code runner_round_check_step(const struct runner *r, const struct runner_item *it,
                                      struct err *err)
{
    const struct runner_round *round = &r->seqs[it->seq].round;
    if (round->state == ROUND_OPEN)
        return err_set(err, ERR_STATE, "sequence %d: a round of %d guesses is not resolved",
                       it->seq, round->n_rows - 1);
    if (round->state == ROUND_POISONED)
        return err_set(err, ERR_STATE, "sequence %d: a row of its last round failed", it->seq);
    if (it->is_tentative && runner_has_state(r) && it->n > r->max_tentative)
        return err_set(err, ERR_INVALID, "sequence %d: %d tentative rows, at most %d", it->seq,
                       it->n, r->max_tentative);
    return ERR_OK;
}

void runner_round_begin(struct runner_seq *s, const struct runner_item *it)
{
    if (!it->is_tentative || it->n < 2)
        return;
    s->round = (struct runner_round){
        .state = ROUND_OPEN, .base = s->len, .n_rows = it->n, .n_good = it->n_good
    };
}

enum err_code runner_resolve(struct runner *r, int32_t seq, int32_t n_accepted, struct err *err)
{
    struct runner_round *round = &r->seqs[seq].round;
    if (round->state != ROUND_OPEN)
        return err_set(err, ERR_STATE, "sequence %d: %s", seq,
                       round->state == ROUND_NONE ? "no round is open"
                                                  : "a row of its last round failed");
    if (n_accepted < 0 || n_accepted > round->n_rows - 1)
        return err_set(err, ERR_INVALID, "sequence %d: %d accepted of %d guesses", seq, n_accepted,
                       round->n_rows - 1);
    if (n_accepted + 1 > round->n_good) {
        round->state = ROUND_POISONED;
        return err_set(err, ERR_NUMERIC, "sequence %d: non-finite values at position %d", seq,
                       round->base + round->n_good);
    }
    runner_truncate(r, seq, round->base + 1 + n_accepted);
    return ERR_OK;
}

/* --- cuts --- */

bool runner_can_truncate(const struct runner *r, int32_t seq, int32_t n_tokens)
{
    const struct runner_seq *s = &r->seqs[seq];
    const struct kv_table *t = &s->tables[MODEL_GROUP_WINDOW];
    int32_t lowest = n_tokens + 1 - r->model->window; /* that the next row sees */
    bool is_cut = n_tokens % KV_PAGE_TOKENS != 0 &&
                  kv_table_is_shared(&r->pools[MODEL_GROUP_FULL], &s->tables[MODEL_GROUP_FULL],
                                     n_tokens / KV_PAGE_TOKENS);
    if (runner_has_state(r) && n_tokens < s->len - s->n_tentative && n_tokens > 0 &&
        runner_slot_at(r, seq, n_tokens) < 0)
        return false;
    return n_tokens >= 0 && n_tokens <= s->len && !is_cut &&
           t->first * KV_PAGE_TOKENS <= (lowest > 0 ? lowest : 0);
}

void runner_truncate(struct runner *r, int32_t seq, int32_t n_tokens)
{
    BUG_ON(!runner_can_truncate(r, seq, n_tokens));
    struct runner_seq *s = &r->seqs[seq];
    if (runner_has_state(r) && n_tokens < s->len - s->n_tentative) {
        s->n_tentative = 0; /* the slot stands before them */
        if (n_tokens > 0)
            runner_copy_slot(r, runner_slot(s), runner_slot_at(r, seq, n_tokens));
    } else {
        runner_settle(r, seq, n_tokens);
    }
    runner_drop_snapshots(r, seq, n_tokens);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        if (s->tables[g].n > 0)
            kv_table_truncate(&r->pools[g], &s->tables[g], runner_span(g, n_tokens));
    s->len = n_tokens;
    s->round = (struct runner_round){ 0 };
}

enum err_code runner_round_check(const struct runner *r, struct err *err)
{
    for (int32_t i = 0; i < r->max_seqs; i++) {
        const struct runner_seq *s = &r->seqs[i];
        const struct runner_round *round = &s->round;
        bool is_open = round->state == ROUND_OPEN;
        if (round->state != ROUND_NONE && !s->is_open)
            return err_set(err, ERR_STATE, "sequence %d: closed in a round", i);
        if (is_open && (round->n_rows < 2 || round->base + round->n_rows != s->len))
            return err_set(err, ERR_STATE,
                           "sequence %d: a round of %d rows behind %d, and %d tokens", i,
                           round->n_rows, round->base, s->len);
        if (!is_open && s->n_tentative > 0)
            return err_set(err, ERR_STATE, "sequence %d: %d tentative rows without a round", i,
                           s->n_tentative);
        for (int32_t a = 0; is_open && a < round->n_rows; a++)
            if (!runner_can_truncate(r, i, round->base + 1 + a))
                return err_set(err, ERR_STATE, "sequence %d: no way back to %d of %d tokens", i,
                               round->base + 1 + a, s->len);
    }
    return ERR_OK;
}
