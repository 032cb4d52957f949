/* draft_model.c - a smaller model guesses.
 *
 * What a row has fed (fed[0, n_fed)) is its ids as they were, guesses included: what did not come true is cut off before the next
 * guesses, by runner_truncate where that is possible, else at the snapshot that stands before the guesses, else by reading anew. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/draft_guess.h"
#include "engine/runner.h"
#include "engine/speculate.h"

#include <string.h>

#define READ_ROWS \
    128 /* ids that are read in a step; a step of a long text must not hold up the others' tokens for long */
#define READ_DUE \
    32 /* more pending ids than this are read first, and guesses wait for the next step */

struct model_row {
    bool is_open;
    bool is_lost;  /* it has an id that this model does not know, or is longer than it can read */
    int32_t n_fed; /* of guess.ids, in its cache */
    struct guess guess;
};

struct draft_model {
    struct drafter base; /* first: the vtable casts */
    struct runner *runner;
    struct sampler sampler;
    struct model_row *rows;    /* [max_rows] */
    struct runner_item *items; /* [max_rows] */
    struct draft_ask **asked;  /* [max_rows] the ask of each item */
    struct guess_rules rules;
    int32_t max_rows;
    struct step_cost cost; /* of a guess for so many rows */
    double read_us;        /* of an id of a long text; 0 = not known */
};

static struct draft_model *draft_model_of(struct drafter *d)
{
    return (struct draft_model *)(void *)d;
}

/* --- rows --- */

static enum err_code draft_model_open(struct drafter *d, row_id row,
                                      const struct engine_request *req, int32_t ids_max,
                                      struct err *err)
{
    struct draft_model *dm = draft_model_of(d);
    struct model_row *r = &dm->rows[row];
    BUG_ON(r->is_open);
    *r = (struct model_row){ 0 };
    enum err_code code = guess_open(&r->guess, dm->runner, req, ids_max, dm->sampler.n_vocab, err);
    if (code)
        return code;
    r->is_open = true;
    for (int32_t i = 0; i < req->n_prompt; i++)
        r->is_lost = r->is_lost || req->prompt[i] >= dm->sampler.n_vocab;
    if (!r->is_lost && req->n_prompt > 1) {
        r->n_fed =
            runner_reuse(dm->runner, r->guess.seq, r->guess.salt, req->prompt, req->n_prompt - 1);
        memcpy(r->guess.ids, req->prompt, (size_t)r->n_fed * sizeof(*r->guess.ids));
    }
    return ERR_OK;
}

static void draft_model_close(struct drafter *d, row_id row, const int32_t *ids, int32_t n_ids)
{
    struct draft_model *dm = draft_model_of(d);
    struct model_row *r = &dm->rows[row];
    int32_t n = 0;
    while (n < r->n_fed && n < n_ids && r->guess.ids[n] == ids[n])
        n++;
    if (n > 0 && runner_can_truncate(dm->runner, r->guess.seq, n)) {
        runner_truncate(dm->runner, r->guess.seq, n);
        runner_keep(dm->runner, r->guess.seq, r->guess.salt, r->guess.ids, n, false);
    }
    guess_close(&r->guess, dm->runner);
    *r = (struct model_row){ 0 };
}

/* Back to the first n ids. */
static void model_row_cut(struct draft_model *dm, struct model_row *r, int32_t n)
{
    while (n > 0 && !runner_can_truncate(dm->runner, r->guess.seq, n))
        n--;
    if (n > 0)
        runner_truncate(dm->runner, r->guess.seq, n);
    else
        runner_rewind(dm->runner, r->guess.seq);
    r->n_fed = n;
}

/* Where the row stands is what both have: at least one id is pending then. False: it cannot be guessed for. */
static bool model_row_sync(struct draft_model *dm, struct model_row *r, const struct draft_ask *a)
{
    int32_t n = 0, max = r->n_fed < a->n_ids - 1 ? r->n_fed : a->n_ids - 1;
    while (n < max && r->guess.ids[n] == a->ids[n])
        n++;
    if (n < r->n_fed)
        model_row_cut(dm, r, n);
    for (int32_t i = r->n_fed; i < a->n_ids; i++)
        r->is_lost = r->is_lost || a->ids[i] >= dm->sampler.n_vocab;
    r->is_lost = r->is_lost || a->n_ids + a->n_max > dm->runner->n_ctx;
    memcpy(r->guess.ids + r->n_fed, a->ids + r->n_fed,
           (size_t)(a->n_ids - r->n_fed) * sizeof(*r->guess.ids));
    r->guess.reach = 1;
    return !r->is_lost &&
           runner_reserve(dm->runner, r->guess.seq, a->n_ids + a->n_max, NULL) == ERR_OK;
}

/* --- guesses --- */

/* One guess from the logits behind the row's last id. False: none, or no further one. */
static bool model_row_guess(struct draft_model *dm, struct model_row *r, float *logits,
                            struct draft_ask *a)
{
    int32_t n = a->n;
    struct guess_source from = {
        .logits = logits, .ids = r->guess.ids, .n = r->n_fed, .confidence = -1
    };
    bool goes_on = guess_take(&r->guess, &dm->sampler, &dm->rules, &from, a);
    if (a->n > n)
        r->guess.ids[r->n_fed] = a->ids_out[n];
    return goes_on;
}

static void draft_model_item(struct draft_model *dm, int32_t at, struct draft_ask *a, int32_t n,
                             bool has_out)
{
    const struct model_row *r = &dm->rows[a->row];
    dm->asked[at] = a;
    dm->items[at] = (struct runner_item){ .seq = r->guess.seq,
                                          .ids = r->guess.ids + r->n_fed,
                                          .n = n,
                                          .n_out = has_out,
                                          .n_back = a->n };
}

/* The items' ids are in the cache then. False: the step failed, and no row has guesses. */
static bool draft_model_step(struct draft_model *dm, int32_t n, int32_t n_ids)
{
    struct err err;
    int64_t start = clock_us();
    if (runner_step(dm->runner, dm->items, n, &err) != ERR_OK) {
        log_warn("draft", "the draft model cannot guess: %s", err.text);
        return false;
    }
    for (int32_t i = 0; i < n; i++)
        dm->rows[dm->asked[i]->row].n_fed += dm->items[i].n;
    if (n_ids == n)
        step_cost_add(&dm->cost, n, clock_us() - start);
    else if (n_ids >= READ_ROWS / 2)
        dm->read_us = (double)(clock_us() - start) / n_ids;
    return true;
}

/* The first row with much to read reads a piece; those with little have their items made. Returns how many these are. */
static int32_t draft_model_read(struct draft_model *dm, struct draft_ask *asks, int32_t n)
{
    int32_t n_ready = 0, n_pending = 0;
    bool has_read = false;
    for (int32_t i = 0; i < n; i++) {
        struct draft_ask *a = &asks[i];
        struct model_row *r = &dm->rows[a->row];
        a->n = 0;
        int32_t pending = model_row_sync(dm, r, a) ? a->n_ids - r->n_fed : 0;
        if (pending <= READ_DUE || has_read)
            continue;
        has_read = true;
        draft_model_item(dm, 0, a, pending <= READ_ROWS ? pending - 1 : READ_ROWS, false);
        (void)draft_model_step(dm, 1, dm->items[0].n);
    }
    for (int32_t i = 0; i < n; i++) {
        const struct model_row *r = &dm->rows[asks[i].row];
        int32_t pending = asks[i].n_ids - r->n_fed;
        bool is_ready = !r->is_lost && pending <= READ_DUE &&
                        n_pending + pending <= dm->runner->max_rows &&
                        runner_room(dm->runner, r->guess.seq) >= pending + asks[i].n_max;
        if (!is_ready)
            continue;
        draft_model_item(dm, n_ready++, &asks[i], pending, true);
        n_pending += pending;
    }
    return n_ready;
}

static void draft_model_draft(struct drafter *d, struct draft_ask *asks, int32_t n)
{
    struct draft_model *dm = draft_model_of(d);
    int32_t n_items = draft_model_read(dm, asks, n);
    while (n_items > 0) {
        int32_t n_ids = 0, n_next = 0;
        for (int32_t i = 0; i < n_items; i++)
            n_ids += dm->items[i].n;
        if (!draft_model_step(dm, n_items, n_ids))
            return;
        for (int32_t i = 0; i < n_items; i++) {
            struct draft_ask *a = dm->asked[i];
            struct model_row *r = &dm->rows[a->row];
            if (a->n == 0) /* the way back, where layers are recurrent */
                (void)runner_snapshot(dm->runner, r->guess.seq);
            if (!dm->items[i].has_failed && model_row_guess(dm, r, dm->items[i].logits, a))
                draft_model_item(dm, n_next++, a, 1, true);
        }
        n_items = n_next;
    }
}

static double draft_model_guess_us(const struct drafter *d, int32_t n)
{
    const struct draft_model *dm = (const struct draft_model *)(const void *)d;
    return step_cost_of(&dm->cost, n);
}

static double draft_model_due_us(const struct drafter *d, row_id row, int32_t n_ids)
{
    const struct draft_model *dm = (const struct draft_model *)(const void *)d;
    return dm->read_us * (n_ids - dm->rows[row].n_fed);
}

/* --- life --- */

static void draft_model_free(struct drafter *d)
{
    struct draft_model *dm = draft_model_of(d);
    for (int32_t i = 0; dm->rows && i < dm->max_rows; i++)
        guess_release(&dm->rows[i].guess);
    runner_free(dm->runner);
    sampler_release(&dm->sampler);
    mem_free(MEM_CAT_BASE, dm->rows);
    mem_free(MEM_CAT_BASE, dm->items);
    mem_free(MEM_CAT_BASE, dm->asked);
    guess_rules_release(&dm->rules);
    mem_free(MEM_CAT_BASE, dm);
}

static void draft_model_lose(struct drafter *d)
{
    struct draft_model *dm = draft_model_of(d);
    for (int32_t i = 0; i < dm->max_rows; i++)
        dm->rows[i].n_fed = 0;
    runner_lose(dm->runner);
}

static enum err_code draft_model_mend(struct drafter *d, struct err *err)
{
    return runner_restore(draft_model_of(d)->runner, err);
}

static const struct drafter_ops draft_model_ops = { .name = "draft model",
                                                    .open = draft_model_open,
                                                    .draft = draft_model_draft,
                                                    .close = draft_model_close,
                                                    .free = draft_model_free,
                                                    .lose = draft_model_lose,
                                                    .mend = draft_model_mend,
                                                    .guess_us = draft_model_guess_us,
                                                    .due_us = draft_model_due_us };

enum err_code draft_model_new(const struct draft_model_options *o, struct drafter **out,
                              struct err *err)
{
    struct draft_model *dm = mem_alloc(MEM_CAT_BASE, sizeof(*dm));
    int64_t n_ctx = o->n_ctx < o->model->n_ctx_train ? o->n_ctx : 0;
    dm->base.ops = &draft_model_ops;
    dm->max_rows = o->max_rows;
    dm->rows = mem_alloc(MEM_CAT_BASE, (size_t)o->max_rows * sizeof(*dm->rows));
    dm->items = mem_alloc(MEM_CAT_BASE, (size_t)o->max_rows * sizeof(*dm->items));
    dm->asked = mem_alloc(MEM_CAT_BASE, (size_t)o->max_rows * sizeof(*dm->asked));
    guess_rules_init(&dm->rules, o->n_vocab, o->end_ids, o->n_end);
    int32_t max_rows = o->max_rows > READ_ROWS ? o->max_rows : READ_ROWS;
    struct runner_options ro = { .model = o->model,
                                 .n_ctx = n_ctx,
                                 .kv_bytes = o->kv_bytes,
                                 .max_seqs = o->max_rows,
                                 .max_rows = max_rows,
                                 .max_out = o->max_rows,
                                 .max_tentative = 1,
                                 .cache_type = o->cache_type,
                                 .keep_bytes = RUNNER_KEEP_ALL };
    enum err_code code = runner_new(&ro, &dm->runner, err);
    if (!code)
        code = sampler_init(&dm->sampler, (int32_t)o->model->n_vocab, err);
    if (code) {
        draft_model_free(&dm->base);
        return code;
    }
    dm->sampler.be = o->model->be;
    *out = &dm->base;
    return ERR_OK;
}
