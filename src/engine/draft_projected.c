/* draft_projected.c - a drafter that reads the model's hidden states guesses, a block at a time.
 *
 * A row's context is what the drafter has made of the states of its tokens: the cache of a sequence, as many tokens as the model has computed. What
 * the model did not compute for this row (what it began with) is there where the drafter has kept it too; else there is a gap, and the
 * tokens behind it stand in the cache after those before it, at the positions of the text (shift). States of a few tokens wait until the
 * drafter is asked or enough have come: for one at a time all of its projections would be read, 5 % of what the model reads for a token,
 * also where no guess of it pays. A block is written behind the context, guessed with and cut off at once, so that a round's rejected guesses
 * never come in. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/draft_guess.h"
#include "engine/runner.h"
#include "engine/speculate.h"
#include "model/projected.h"
#include "tensor/ops.h"

#include <string.h>

#define SEE_ROWS 128 /* states that are taken in one step */
#define WAITING  16  /* of a row that wait at most: a block of rows */
#define OUT_ROWS 64  /* rows of a step that guess: each takes a vocabulary of logits */
#define NEVER_US 1e12

struct projected_row {
    bool is_open;
    int32_t shift;     /* tokens of the text that the cache lacks, all before ... */
    int32_t segment;   /* ... this position, from which on it has every one */
    int32_t n_waiting; /* states behind the cache's end */
    int32_t n_text;    /* in guess.ids, guesses included */
    struct guess guess;
    const float *logits, *hidden; /* [V] [D] of its first row that guesses */
};

struct draft_projected {
    struct drafter base; /* first: the vtable casts */
    const struct model *model;
    struct runner *runner;
    struct sampler sampler;
    struct projected_walk walk;
    struct projected_row *rows; /* [max_rows] */
    struct runner_item *items;  /* [max_rows] */
    struct draft_ask *
        *asked; /* [max_rows] the ask of each item, then those that are still guessed for */
    struct projected_guess *guesses; /* [max_rows] */
    int32_t *blocks;                 /* [max_rows][block] their ids */
    float *waiting;                  /* [max_rows][WAITING][taps.n * D] backend memory */
    size_t waiting_bytes;
    struct guess_rules rules;
    int32_t max_rows, n_items, n_rows;
    struct step_cost cost; /* of blocks for so many rows */
};

static struct draft_projected *draft_projected_of(struct drafter *d)
{
    return (struct draft_projected *)(void *)d;
}

/* --- rows --- */

static int32_t projected_row_len(const struct draft_projected *dp, const struct projected_row *r)
{
    return dp->runner->seqs[r->guess.seq].len;
}

/* The position behind its context. */
static int32_t projected_row_end(const struct draft_projected *dp, const struct projected_row *r)
{
    return r->shift + projected_row_len(dp, r) + r->n_waiting;
}

/* The n waiting states of the row from the i-th on. */
static struct tensor projected_waiting(const struct draft_projected *dp, row_id row, int32_t i,
                                       int32_t n)
{
    int64_t cols = dp->model->projected.taps.n * dp->model->width;
    return tensor_of(dp->waiting + ((int64_t)row * WAITING + i) * cols, n, cols);
}

static enum err_code draft_projected_open(struct drafter *d, row_id row,
                                          const struct engine_request *req, int32_t ids_max,
                                          struct err *err)
{
    struct draft_projected *dp = draft_projected_of(d);
    struct projected_row *r = &dp->rows[row];
    BUG_ON(r->is_open);
    *r = (struct projected_row){ 0 };
    enum err_code code =
        guess_open(&r->guess, dp->runner, req, ids_max, (int32_t)dp->model->n_vocab, err);
    if (code)
        return code;
    r->is_open = true;
    if (req->n_prompt > 1)
        (void)runner_reuse(dp->runner, r->guess.seq, r->guess.salt, req->prompt, req->n_prompt - 1);
    return ERR_OK;
}

/* What it has is kept for rows that begin alike, where nothing is missing in it. */
static void projected_row_keep(struct draft_projected *dp, const struct projected_row *r,
                               const int32_t *ids, int32_t n_ids, bool goes_on)
{
    int32_t n = projected_row_len(dp, r);
    if (r->shift == 0 && n > 0 && n <= n_ids)
        runner_keep(dp->runner, r->guess.seq, r->guess.salt, ids, n, goes_on);
}

/* --- context --- */

/* The items' states become context. Where the step fails their rows lack them. */
static void projected_take(struct draft_projected *dp)
{
    struct err err;
    if (dp->n_items > 0 && runner_step(dp->runner, dp->items, dp->n_items, &err) != ERR_OK)
        log_warn("draft", "the drafter cannot take states: %s", err.text);
    dp->n_items = dp->n_rows = 0;
}

/* Its context begins anew at the position. */
static void projected_row_restart(struct draft_projected *dp, struct projected_row *r, int32_t pos)
{
    runner_rewind(dp->runner, r->guess.seq);
    r->shift = r->segment = pos;
    r->n_waiting = 0;
}

/* States of the row, which follow its context, go to items. False: there is no memory, and it begins anew behind them. */
static bool projected_put(struct draft_projected *dp, struct projected_row *r, struct tensor states)
{
    int32_t n = (int32_t)states.rows, len = projected_row_len(dp, r);
    if (runner_reserve(dp->runner, r->guess.seq, len + n, NULL) != ERR_OK) {
        projected_row_restart(dp, r, r->shift + len + n);
        return false;
    }
    for (int32_t at = 0; at < n;) {
        int32_t piece = n - at < SEE_ROWS - dp->n_rows ? n - at : SEE_ROWS - dp->n_rows;
        dp->items[dp->n_items++] = (struct runner_item){
            .seq = r->guess.seq,
            .n = piece,
            .shift = r->shift,
            .inputs = tensor_rows(states, at, piece),
        };
        dp->n_rows += piece;
        at += piece;
        if (dp->n_rows == SEE_ROWS)
            projected_take(dp);
    }
    return true;
}

/* What waits goes to items. The row's next states may come once these are taken. */
static void projected_put_waiting(struct draft_projected *dp, row_id row)
{
    struct projected_row *r = &dp->rows[row];
    int32_t n = r->n_waiting;
    r->n_waiting = 0;
    if (n > 0)
        (void)projected_put(dp, r, projected_waiting(dp, row, 0, n));
}

static void projected_see_row(struct draft_projected *dp, const struct draft_seen *seen)
{
    struct projected_row *r = &dp->rows[seen->row];
    int32_t end = projected_row_end(dp, r), at = seen->pos, last = seen->pos + seen->n;
    if (at < r->segment || (at > end && end == r->shift))
        projected_row_restart(dp, r, at);
    else if (at <= end) /* those before are the same */
        at = end;
    if (at >= last)
        return;
    if (r->n_waiting + last - at > WAITING || at > end) {
        projected_put_waiting(dp, seen->row);
        projected_take(dp);
    }
    if (at > projected_row_end(dp, r)) { /* nobody has the states between */
        r->shift += at - projected_row_end(dp, r);
        r->segment = at;
    }
    struct tensor states = tensor_rows(seen->states, at - seen->pos, last - at);
    if (last - at > WAITING) {
        (void)projected_put(dp, r, states);
        return;
    }
    ops_copy(dp->model->be, projected_waiting(dp, seen->row, r->n_waiting, last - at), states);
    r->n_waiting += last - at;
}

static void draft_projected_see(struct drafter *d, const struct draft_seen *seen, int32_t n)
{
    struct draft_projected *dp = draft_projected_of(d);
    for (int32_t i = 0; i < n; i++)
        projected_see_row(dp, &seen[i]);
    projected_take(dp);
    for (int32_t i = 0; i < n; i++)
        if (seen[i].n > WAITING) /* prompts, for those that come while they run */
            projected_row_keep(dp, &dp->rows[seen[i].row], seen[i].ids, seen[i].n_ids, true);
}

static void draft_projected_close(struct drafter *d, row_id row, const int32_t *ids, int32_t n_ids)
{
    struct draft_projected *dp = draft_projected_of(d);
    struct projected_row *r = &dp->rows[row];
    projected_put_waiting(dp, row);
    projected_take(dp);
    projected_row_keep(dp, r, ids, n_ids, false);
    guess_close(&r->guess, dp->runner);
    *r = (struct projected_row){ 0 };
}

/* --- guesses --- */

/* The text that the ask is for is the row's: its context is cut where it has more. False: some is missing at its end. */
static bool projected_row_sync(struct draft_projected *dp, struct projected_row *r,
                               const struct draft_ask *a)
{
    int32_t last = a->n_ids - 1, end = projected_row_end(dp, r);
    if (end > last && last >= r->segment && last > r->shift &&
        runner_can_truncate(dp->runner, r->guess.seq, last - r->shift)) {
        runner_truncate(dp->runner, r->guess.seq, last - r->shift);
        end = last;
    }
    if (end != last || projected_row_len(dp, r) == 0)
        return false;
    memcpy(r->guess.ids, a->ids, (size_t)a->n_ids * sizeof(*r->guess.ids));
    r->n_text = a->n_ids;
    r->guess.reach = 1;
    return true;
}

static int32_t projected_room(const struct draft_projected *dp, const struct draft_ask *a)
{
    const struct model_projected *p = &dp->model->projected;
    return a->n_max < p->block - p->first_out ? a->n_max : p->block - p->first_out;
}

/* Rows of a block that guesses n tokens, of which logits are asked for: where a row sees those before it behind every branch, they are all
 * computed to the end. */
static int32_t projected_outs(const struct draft_projected *dp, int32_t n)
{
    const struct model_projected *p = &dp->model->projected;
    return p->conv_taps > 0 ? n + p->first_out : n;
}

/* The ask's block becomes an item, if there is room for it in this step and in memory. */
static bool projected_add_block(struct draft_projected *dp, struct draft_ask *a, int32_t n_out)
{
    const struct model_projected *p = &dp->model->projected;
    struct projected_row *r = &dp->rows[a->row];
    int32_t n = projected_room(dp, a), rows = n + p->first_out, outs = projected_outs(dp, n);
    if (n_out + outs > dp->runner->max_out || dp->n_rows + rows > dp->runner->max_rows)
        return false;
    if (!projected_row_sync(dp, r, a) ||
        runner_reserve(dp->runner, r->guess.seq, projected_row_len(dp, r) + rows, NULL) != ERR_OK)
        return true; /* no guesses, but the next ask may have room */
    int32_t *ids = dp->blocks + (int64_t)dp->n_items * p->block;
    for (int32_t i = 1; i < rows; i++)
        ids[i] = p->mask_id;
    ids[0] = a->ids[a->n_ids - 1];
    dp->asked[dp->n_items] = a;
    dp->items[dp->n_items++] = (struct runner_item){ .seq = r->guess.seq,
                                                     .ids = ids,
                                                     .n = rows,
                                                     .n_out = outs,
                                                     .n_back = rows,
                                                     .wants_hidden = true,
                                                     .shift = r->shift };
    dp->n_rows += rows;
    return true;
}

/* The row's next guess from its logits. False: none, or no further one. */
static bool projected_pick(struct draft_projected *dp, struct draft_ask *a,
                           const struct projected_guess *g)
{
    struct projected_row *r = &dp->rows[a->row];
    struct guess_source from = {
        .logits = g->logits, .ids = r->guess.ids, .n = r->n_text, .confidence = g->confidence
    };
    int32_t n = a->n;
    bool goes_on = guess_take(&r->guess, &dp->sampler, &dp->rules, &from, a);
    if (a->n > n)
        r->guess.ids[r->n_text++] = a->ids_out[n];
    return goes_on && a->n < projected_room(dp, a);
}

/* From guess to guess, all rows together. */
static void projected_guess_all(struct draft_projected *dp)
{
    int32_t n = 0;
    for (int32_t i = 0; i < dp->n_items; i++) {
        struct draft_ask *a = dp->asked[i];
        struct projected_row *r = &dp->rows[a->row];
        int64_t first = dp->items[i].n_out - projected_room(dp, a);
        r->logits = dp->items[i].logits + first * dp->model->n_vocab;
        r->hidden = dp->items[i].hidden + first * dp->model->width;
        projected_walk_begin(&dp->walk, a->row);
        if (!dp->items[i].has_failed)
            dp->asked[n++] = a;
    }
    while (n > 0) {
        int32_t n_next = 0;
        for (int32_t i = 0; i < n; i++) {
            const struct draft_ask *a = dp->asked[i];
            const struct projected_row *r = &dp->rows[a->row];
            dp->guesses[i] = (struct projected_guess){
                .slot = a->row,
                .prev = r->guess.ids[r->n_text - 1],
                .hidden = r->hidden + a->n * dp->model->width,
                .logits = (float *)(uintptr_t)r->logits + a->n * dp->model->n_vocab,
            };
        }
        projected_walk_step(&dp->walk, dp->guesses, n);
        for (int32_t i = 0; i < n; i++)
            if (projected_pick(dp, dp->asked[i], &dp->guesses[i]))
                dp->asked[n_next++] = dp->asked[i];
        n = n_next;
    }
}

/* The blocks of the items. Afterwards the rows have their contexts alone. */
static void projected_run_blocks(struct draft_projected *dp)
{
    struct err err;
    int64_t start = clock_us();
    enum err_code code = runner_step(dp->runner, dp->items, dp->n_items, &err);
    if (code)
        log_warn("draft", "the drafter cannot guess: %s", err.text);
    for (int32_t i = 0; i < dp->n_items && !code; i++) {
        const struct runner_item *it = &dp->items[i];
        runner_truncate(dp->runner, it->seq, dp->runner->seqs[it->seq].len - it->n);
    }
    if (!code)
        projected_guess_all(dp);
    if (!code)
        step_cost_add(&dp->cost, dp->n_items, clock_us() - start);
    dp->n_items = dp->n_rows = 0;
}

static void draft_projected_draft(struct drafter *d, struct draft_ask *asks, int32_t n)
{
    struct draft_projected *dp = draft_projected_of(d);
    int32_t n_out = 0;
    for (int32_t i = 0; i < n; i++) {
        asks[i].n = 0;
        projected_put_waiting(dp, asks[i].row);
    }
    projected_take(dp);
    for (int32_t i = 0; i < n; i++) {
        if (!projected_add_block(dp, &asks[i], n_out)) {
            if (dp->n_items > 0)
                projected_run_blocks(dp);
            n_out = 0;
            (void)projected_add_block(dp, &asks[i], 0);
        }
        n_out += projected_outs(dp, projected_room(dp, &asks[i]));
    }
    if (dp->n_items > 0)
        projected_run_blocks(dp);
}

static double draft_projected_guess_us(const struct drafter *d, int32_t n)
{
    const struct draft_projected *dp = (const struct draft_projected *)(const void *)d;
    return step_cost_of(&dp->cost, n);
}

static double draft_projected_due_us(const struct drafter *d, row_id row, int32_t n_ids)
{
    const struct draft_projected *dp = (const struct draft_projected *)(const void *)d;
    return projected_row_end(dp, &dp->rows[row]) == n_ids - 1 ? 0 : NEVER_US;
}

static const struct model_taps *draft_projected_taps(const struct drafter *d)
{
    return &((const struct draft_projected *)(const void *)d)->model->projected.taps;
}

/* --- life --- */

static void draft_projected_free(struct drafter *d)
{
    struct draft_projected *dp = draft_projected_of(d);
    for (int32_t i = 0; dp->rows && i < dp->max_rows; i++)
        guess_release(&dp->rows[i].guess);
    runner_free(dp->runner);
    sampler_release(&dp->sampler);
    projected_walk_release(&dp->walk);
    if (dp->waiting)
        dp->model->be->ops->free(dp->model->be, MEM_CAT_SCRATCH, dp->waiting, dp->waiting_bytes);
    mem_free(MEM_CAT_BASE, dp->rows);
    mem_free(MEM_CAT_BASE, dp->items);
    mem_free(MEM_CAT_BASE, dp->asked);
    mem_free(MEM_CAT_BASE, dp->guesses);
    mem_free(MEM_CAT_BASE, dp->blocks);
    guess_rules_release(&dp->rules);
    mem_free(MEM_CAT_BASE, dp);
}

static const struct drafter_ops draft_projected_ops = { .name = "projected context",
                                                        .is_block = true,
                                                        .open = draft_projected_open,
                                                        .draft = draft_projected_draft,
                                                        .close = draft_projected_close,
                                                        .free = draft_projected_free,
                                                        .guess_us = draft_projected_guess_us,
                                                        .due_us = draft_projected_due_us,
                                                        .taps = draft_projected_taps,
                                                        .see = draft_projected_see };

static void draft_projected_alloc(struct draft_projected *dp, const struct draft_model_options *o)
{
    size_t rows = (size_t)o->max_rows;
    dp->rows = mem_alloc(MEM_CAT_BASE, rows * sizeof(*dp->rows));
    dp->items = mem_alloc(MEM_CAT_BASE, rows * sizeof(*dp->items));
    dp->asked = mem_alloc(MEM_CAT_BASE, rows * sizeof(*dp->asked));
    dp->guesses = mem_alloc(MEM_CAT_BASE, rows * sizeof(*dp->guesses));
    dp->blocks =
        mem_alloc(MEM_CAT_BASE, rows * (size_t)o->model->projected.block * sizeof(*dp->blocks));
    guess_rules_init(&dp->rules, (int32_t)o->model->n_vocab, o->end_ids, o->n_end);
    dp->max_rows = o->max_rows;
}

enum err_code draft_projected_new(const struct draft_model_options *o, struct drafter **out,
                                  struct err *err)
{
    const struct model *m = o->model;
    struct draft_projected *dp = mem_alloc(MEM_CAT_BASE, sizeof(*dp));
    BUG_ON(m->projected.block == 0 || !m->head);
    dp->base.ops = &draft_projected_ops;
    dp->model = m;
    draft_projected_alloc(dp, o);
    int32_t blocks = o->max_rows * m->projected.block;
    int32_t max_rows = SEE_ROWS > m->projected.block ? SEE_ROWS : m->projected.block;
    struct runner_options ro = { .model = o->model,
                                 .n_ctx = o->n_ctx < m->n_ctx_train ? o->n_ctx : 0,
                                 .kv_bytes = o->kv_bytes,
                                 .max_seqs = o->max_rows,
                                 .max_rows = max_rows,
                                 .max_out = blocks < OUT_ROWS ? blocks : OUT_ROWS,
                                 .max_tentative = 1,
                                 .cache_type = o->cache_type,
                                 .keep_bytes = RUNNER_KEEP_ALL };
    enum err_code code = runner_new(&ro, &dp->runner, err);
    dp->waiting_bytes =
        (size_t)(o->max_rows * WAITING * m->projected.taps.n * m->width) * sizeof(*dp->waiting);
    dp->waiting = m->be->ops->alloc(m->be, MEM_CAT_SCRATCH, dp->waiting_bytes);
    if (!code && !dp->waiting)
        code = err_set(err, ERR_NOMEM, "states for a drafter: no memory for %zu MiB",
                       dp->waiting_bytes >> 20);
    if (!code)
        code = sampler_init(&dp->sampler, (int32_t)m->n_vocab, err);
    if (!code)
        code = projected_walk_init(&dp->walk, m, o->max_rows, err);
    if (code) {
        draft_projected_free(&dp->base);
        return code;
    }
    dp->sampler.be = m->be;
    *out = &dp->base;
    return ERR_OK;
}
