/* draft_mtp.c - the model's own head for multi-token prediction guesses (src/model/nextn.c).
 *
 * The head reads pairs: the model's state of a position p and the id at p + 1. Its cache holds those of positions [first, n_read),
 * all made of the model's states; the states of [n_read, n_read + n_pending) wait until a guess is wanted or there are many, because
 * several are read in the time of one. What it makes of its own states while it guesses is cut off again at once: the model's come with
 * the next step.
 *
 * A row whose beginning was not computed (a kept or shared prefix) begins with what the head has kept of the same ids, else at the first
 * state that comes: it sees less then, and guesses worse. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/draft_guess.h"
#include "engine/runner.h"
#include "engine/speculate.h"
#include "tensor/ops.h"

#include <string.h>

#define PENDING 64 /* states of a row that wait, at most */
#define COST_ROWS \
    8 /* a step of more pairs than this for each guess says little about what a guess takes */

struct mtp_row {
    bool is_open;
    bool is_lost;  /* it has no memory, or a value that is not finite */
    int32_t first; /* -1 = no state has come */
    int32_t n_read, n_pending;
    int32_t n_prompt;
    int32_t n_ids; /* of guess.ids, the row's */
    struct guess guess;
};

struct draft_mtp {
    struct drafter base; /* first: the vtable casts */
    struct runner *runner;
    struct sampler sampler;
    struct guess_rules rules;
    struct mtp_row *rows;      /* [max_rows] */
    struct runner_item *items; /* [max_rows] */
    struct draft_ask **asked;  /* [max_rows] the ask of each item */
    int32_t max_rows;
    struct model_taps taps;
    const struct model *model; /* whose head it is */
    float *pending;            /* [max_rows][PENDING][D] backend memory */
    size_t pending_bytes;
    struct step_cost cost; /* of a guess for so many rows */
};

static struct draft_mtp *draft_mtp_of(struct drafter *d)
{
    return (struct draft_mtp *)(void *)d;
}

/* States [first, first + n) of those that the row has waiting. */
static struct tensor mtp_pending(const struct draft_mtp *dm, const struct mtp_row *r, int32_t first,
                                 int32_t n)
{
    int64_t width = dm->runner->model->width, row = r - dm->rows;
    return tensor_of(dm->pending + (row * PENDING + first) * width, n, width);
}

/* --- rows --- */

static enum err_code draft_mtp_open(struct drafter *d, row_id row, const struct engine_request *req,
                                    int32_t ids_max, struct err *err)
{
    struct draft_mtp *dm = draft_mtp_of(d);
    struct mtp_row *r = &dm->rows[row];
    BUG_ON(r->is_open);
    *r = (struct mtp_row){ .first = -1, .n_prompt = req->n_prompt };
    enum err_code code = guess_open(&r->guess, dm->runner, req, ids_max, dm->sampler.n_vocab, err);
    if (code)
        return code;
    r->is_open = true;
    return ERR_OK;
}

static void mtp_row_lose(struct draft_mtp *dm, struct mtp_row *r)
{
    r->is_lost = true;
    runner_rewind(dm->runner, r->guess.seq);
}

/* What it has read is kept under the ids behind the states. Without the first ones it would be another text's. */
static void mtp_row_keep(struct draft_mtp *dm, const struct mtp_row *r, bool goes_on)
{
    if (!r->is_lost && r->first == 0 && r->n_read > 0)
        runner_keep(dm->runner, r->guess.seq, r->guess.salt, r->guess.ids + 1, r->n_read, goes_on);
}

static void draft_mtp_close(struct drafter *d, row_id row, const int32_t *ids, int32_t n_ids)
{
    struct draft_mtp *dm = draft_mtp_of(d);
    struct mtp_row *r = &dm->rows[row];
    (void)ids;
    (void)n_ids;
    mtp_row_keep(dm, r, false);
    guess_close(&r->guess, dm->runner);
    *r = (struct mtp_row){ 0 };
}

/* A row's ids are never other ones, there are only more of them. */
static void mtp_row_note(struct mtp_row *r, const int32_t *ids, int32_t n_ids)
{
    if (n_ids <= r->n_ids)
        return;
    memcpy(r->guess.ids + r->n_ids, ids + r->n_ids, (size_t)(n_ids - r->n_ids) * sizeof(*ids));
    r->n_ids = n_ids;
}

/* --- reading --- */

/* The items' pairs are in the cache then. False: the step failed as a whole. */
static bool mtp_step(struct draft_mtp *dm, int32_t n)
{
    struct err err;
    if (runner_step(dm->runner, dm->items, n, &err) == ERR_OK)
        return true;
    log_warn("draft", "the model's head cannot guess: %s", err.text);
    return false;
}

static struct runner_item mtp_item(const struct draft_mtp *dm, const struct mtp_row *r, int32_t n,
                                   bool has_out)
{
    return (struct runner_item){ .seq = r->guess.seq,
                                 .ids = r->guess.ids + r->n_read + 1,
                                 .n = n,
                                 .n_out = has_out,
                                 .inputs = mtp_pending(dm, r, 0, n) };
}

/* The first n of those that wait are in the cache. */
static void mtp_row_has_read(struct draft_mtp *dm, struct mtp_row *r, int32_t n)
{
    bool was_in_prompt = r->n_read < r->n_prompt - 1;
    for (int32_t i = n; i < r->n_pending; i++) /* one by one: they may overlap */
        ops_copy(dm->runner->model->be, mtp_pending(dm, r, i - n, 1), mtp_pending(dm, r, i, 1));
    r->n_read += n;
    r->n_pending -= n;
    if (was_in_prompt && r->n_read >= r->n_prompt - 1) /* for those that come while it goes on */
        mtp_row_keep(dm, r, true);
}

/* The first n of those that wait are read. */
static void mtp_read(struct draft_mtp *dm, struct mtp_row *r, int32_t n)
{
    if (runner_reserve(dm->runner, r->guess.seq, r->n_read + n - r->first, NULL) != ERR_OK) {
        mtp_row_lose(dm, r);
        return;
    }
    dm->items[0] = mtp_item(dm, r, n, false);
    if (mtp_step(dm, 1) && !dm->items[0].has_failed)
        mtp_row_has_read(dm, r, n);
    else
        mtp_row_lose(dm, r);
}

/* The row's first state that comes is that of position pos. */
static void mtp_row_begin(struct draft_mtp *dm, struct mtp_row *r, int32_t pos)
{
    if (r->first >= 0)
        runner_rewind(dm->runner, r->guess.seq);
    else
        for (int i = 0; i < 4;
             i++) /* the first id is no key of a pair, but they all depend on it */
            r->guess.salt[i] ^= (uint8_t)(r->guess.ids[0] >> 8 * i);
    r->first = r->n_read = pos;
    r->n_pending = 0;
    if (pos == 0)
        return;
    if (runner_reuse(dm->runner, r->guess.seq, r->guess.salt, r->guess.ids + 1, pos) == pos)
        r->first = 0;
    else
        runner_rewind(dm->runner, r->guess.seq);
}

static void mtp_see_one(struct draft_mtp *dm, const struct draft_seen *seen)
{
    struct mtp_row *r = &dm->rows[seen->row];
    if (r->is_lost)
        return;
    mtp_row_note(r, seen->ids, seen->n_ids);
    if (r->first < 0 || seen->pos > r->n_read + r->n_pending)
        mtp_row_begin(dm, r, seen->pos);
    for (int32_t i = r->n_read + r->n_pending - seen->pos; i < seen->n && !r->is_lost;) {
        if (r->n_pending == PENDING) /* the last one stays: a guess begins with it */
            mtp_read(dm, r, PENDING);
        int32_t n = seen->n - i < PENDING - r->n_pending ? seen->n - i : PENDING - r->n_pending;
        ops_copy(dm->runner->model->be, mtp_pending(dm, r, r->n_pending, n),
                 tensor_rows(seen->states, i, n));
        r->n_pending += n;
        i += n;
    }
}

static void draft_mtp_see(struct drafter *d, const struct draft_seen *seen, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        mtp_see_one(draft_mtp_of(d), &seen[i]);
}

static const struct model_taps *draft_mtp_taps(const struct drafter *d)
{
    return &((const struct draft_mtp *)(const void *)d)->taps;
}

/* --- guesses --- */

/* May the row be guessed for? It has the states of all ids but the last one then, and memory. */
static bool mtp_row_is_ready(struct draft_mtp *dm, struct mtp_row *r, const struct draft_ask *a)
{
    if (r->is_lost || r->n_pending == 0 || r->n_read + r->n_pending != a->n_ids - 1)
        return false;
    int32_t n = a->n_ids - 1 - r->first + a->n_max;
    return n <= dm->runner->n_ctx && runner_reserve(dm->runner, r->guess.seq, n, NULL) == ERR_OK;
}

/* Items for the rows that can be guessed for, with what of theirs waits. Returns how many. */
static int32_t mtp_prepare(struct draft_mtp *dm, struct draft_ask *asks, int32_t n)
{
    int32_t n_items = 0, room = dm->runner->max_rows - n;
    for (int32_t i = 0; i < n; i++) {
        struct mtp_row *r = &dm->rows[asks[i].row];
        asks[i].n = 0;
        mtp_row_note(r, asks[i].ids, asks[i].n_ids);
        if (!mtp_row_is_ready(dm, r, &asks[i]))
            continue;
        if (r->n_pending - 1 > room)
            mtp_read(dm, r, r->n_pending - 1);
        room -= r->n_pending - 1;
    }
    for (int32_t i = 0; i < n; i++) {
        struct mtp_row *r = &dm->rows[asks[i].row];
        if (!mtp_row_is_ready(dm, r, &asks[i]))
            continue;
        r->guess.reach = 1;
        dm->asked[n_items] = &asks[i];
        dm->items[n_items++] = mtp_item(dm, r, r->n_pending, true);
    }
    return n_items;
}

/* One guess of each of n items more; those that want another one are the first items then. Returns how many. */
static int32_t mtp_guess(struct draft_mtp *dm, int32_t n)
{
    int32_t n_next = 0, n_pairs = 0;
    int64_t start = clock_us();
    for (int32_t i = 0; i < n; i++)
        n_pairs += dm->items[i].n;
    if (!mtp_step(dm, n))
        return 0;
    for (int32_t i = 0; i < n; i++) {
        struct draft_ask *a = dm->asked[i];
        struct mtp_row *r = &dm->rows[a->row];
        struct runner_item *it = &dm->items[i];
        int32_t n_guessed = a->n;
        if (it->has_failed) {
            mtp_row_lose(dm, r);
            continue;
        }
        if (a->n == 0)
            mtp_row_has_read(dm, r, r->n_pending);
        struct guess_source from = {
            .logits = it->logits, .ids = r->guess.ids, .n = a->n_ids + n_guessed, .confidence = -1
        };
        bool goes_on = guess_take(&r->guess, &dm->sampler, &dm->rules, &from, a);
        int32_t *id =
            r->guess.ids + a->n_ids + n_guessed; /* where the row's next ones will be noted */
        if (a->n > n_guessed)
            *id = a->ids_out[n_guessed];
        if (!goes_on)
            continue;
        dm->asked[n_next] = a;
        dm->items[n_next++] =
            (struct runner_item){ .seq = r->guess.seq,
                                  .ids = id,
                                  .n = 1,
                                  .n_out = 1,
                                  .inputs = tensor_of(it->made, 1, dm->runner->model->width) };
    }
    if (n_pairs <= n * COST_ROWS)
        step_cost_add(&dm->cost, n, clock_us() - start);
    return n_next;
}

static void draft_mtp_draft(struct drafter *d, struct draft_ask *asks, int32_t n)
{
    struct draft_mtp *dm = draft_mtp_of(d);
    for (int32_t n_items = mtp_prepare(dm, asks, n); n_items > 0;)
        n_items = mtp_guess(dm, n_items);
    for (int32_t i = 0; i < n; i++) {
        struct mtp_row *r = &dm->rows[asks[i].row];
        if (!r->is_lost && r->first >= 0 &&
            dm->runner->seqs[r->guess.seq].len > r->n_read - r->first)
            runner_truncate(dm->runner, r->guess.seq, r->n_read - r->first);
    }
}

static double draft_mtp_guess_us(const struct drafter *d, int32_t n)
{
    return step_cost_of(&((const struct draft_mtp *)(const void *)d)->cost, n);
}

/* It reads along: little is ever left. */
static double draft_mtp_due_us(const struct drafter *d, row_id row, int32_t n_ids)
{
    (void)d;
    (void)row;
    (void)n_ids;
    return 0;
}

/* --- life --- */

static void draft_mtp_free(struct drafter *d)
{
    struct draft_mtp *dm = draft_mtp_of(d);
    struct backend *be = dm->runner ? dm->runner->model->be : NULL;
    for (int32_t i = 0; dm->rows && i < dm->max_rows; i++)
        guess_release(&dm->rows[i].guess);
    if (dm->pending)
        be->ops->free(be, MEM_CAT_SCRATCH, dm->pending, dm->pending_bytes);
    runner_free(dm->runner);
    sampler_release(&dm->sampler);
    mem_free(MEM_CAT_BASE, dm->rows);
    mem_free(MEM_CAT_BASE, dm->items);
    mem_free(MEM_CAT_BASE, dm->asked);
    guess_rules_release(&dm->rules);
    mem_free(MEM_CAT_BASE, dm);
}

static enum err_code draft_mtp_alloc(struct draft_mtp *dm, struct err *err)
{
    struct backend *be = dm->runner->model->be;
    dm->pending_bytes =
        (size_t)dm->max_rows * PENDING * (size_t)dm->runner->model->width * sizeof(*dm->pending);
    dm->pending = be->ops->alloc(be, MEM_CAT_SCRATCH, dm->pending_bytes);
    return dm->pending ? ERR_OK
                       : err_set(err, ERR_NOMEM, "head that guesses: no memory for %zu MiB",
                                 dm->pending_bytes >> 20);
}

static void draft_mtp_lose(struct drafter *d)
{
    struct draft_mtp *dm = draft_mtp_of(d);
    struct backend *be = dm->runner->model->be;
    for (int32_t i = 0; i < dm->max_rows; i++) {
        dm->rows[i].first = -1;
        dm->rows[i].n_read = dm->rows[i].n_pending = 0;
    }
    be->ops->free(be, MEM_CAT_SCRATCH, dm->pending, dm->pending_bytes);
    dm->pending = NULL;
    runner_lose(dm->runner);
}

static enum err_code draft_mtp_mend(struct drafter *d, struct err *err)
{
    struct draft_mtp *dm = draft_mtp_of(d);
    if (!dm->model->nextn)
        return err_set(err, ERR_NOMEM, "the head that guesses could not be loaded again");
    dm->runner->model = dm->model->nextn;
    enum err_code code = runner_restore(dm->runner, err);
    return code ? code : draft_mtp_alloc(dm, err);
}

static const struct drafter_ops draft_mtp_ops = { .name = "mtp",
                                                  .open = draft_mtp_open,
                                                  .draft = draft_mtp_draft,
                                                  .close = draft_mtp_close,
                                                  .free = draft_mtp_free,
                                                  .lose = draft_mtp_lose,
                                                  .mend = draft_mtp_mend,
                                                  .guess_us = draft_mtp_guess_us,
                                                  .due_us = draft_mtp_due_us,
                                                  .taps = draft_mtp_taps,
                                                  .see = draft_mtp_see };

int64_t draft_mtp_kv(const struct model *model, int64_t bytes)
{
    const struct model_layer *h = &model->nextn->layers[0];
    double own = (double)h->n_kv_heads * h->head_dim, all = own;
    for (int64_t i = 0; i < model->n_layers; i++)
        if (model->layers[i].group != MODEL_GROUP_STATE && model->layers[i].kv_from == i)
            all += (double)model->layers[i].n_kv_heads * model->layers[i].head_dim;
    return (int64_t)((double)bytes * own / all);
}

enum err_code draft_mtp_new(const struct draft_mtp_options *o, struct drafter **out,
                            struct err *err)
{
    struct draft_mtp *dm = mem_alloc(MEM_CAT_BASE, sizeof(*dm));
    size_t max_rows = (size_t)o->max_rows;
    dm->base.ops = &draft_mtp_ops;
    dm->model = o->model;
    dm->max_rows = o->max_rows;
    dm->taps = (struct model_taps){ .n = 1, .at = { (int)o->model->n_layers } };
    dm->rows = mem_alloc(MEM_CAT_BASE, max_rows * sizeof(*dm->rows));
    dm->items = mem_alloc(MEM_CAT_BASE, max_rows * sizeof(*dm->items));
    dm->asked = mem_alloc(MEM_CAT_BASE, max_rows * sizeof(*dm->asked));
    guess_rules_init(&dm->rules, (int32_t)o->model->n_vocab, o->end_ids, o->n_end);
    struct runner_options ro = { .model = o->model->nextn,
                                 .n_ctx = o->n_ctx,
                                 .kv_bytes = o->kv_bytes,
                                 .max_seqs = o->max_rows,
                                 .max_rows = PENDING + o->max_rows,
                                 .max_out = o->max_rows,
                                 .max_tentative = 1,
                                 .cache_type = o->cache_type,
                                 .keep_bytes = RUNNER_KEEP_ALL };
    enum err_code code = runner_new(&ro, &dm->runner, err);
    if (!code)
        code = draft_mtp_alloc(dm, err);
    if (!code)
        code = sampler_init(&dm->sampler, (int32_t)o->model->n_vocab, err);
    if (code) {
        draft_mtp_free(&dm->base);
        return code;
    }
    dm->sampler.be = o->model->be;
    *out = &dm->base;
    return ERR_OK;
}
