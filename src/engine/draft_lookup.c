/* draft_lookup.c - prompt lookup: an index of each row's ids by every three that follow one another, and one of recent answers.
 *
 * Positions of one hash form a list, the latest first. Of the candidates the one with the longest common ending wins; where several
 * are alike, the one that the last guess was read from goes on (a copied text in which something was changed), else the latest. */
#include "engine/draft.h"
#include "engine/draft_past.h"

#include <string.h>

#define LOOKUP_WALK \
    64 /* candidates that are looked at: the list of a frequent gram is as long as the text */
#define LOOKUP_LEAD \
    16 /* ids of the prompt that a recent answer is kept with, so that its start is found */
#define LOOKUP_NEAR 48 /* ids that may have been left out or put in since the last guess was read */

struct lookup_row {
    bool is_open;
    int32_t n_prompt;
    uint8_t salt[ENGINE_SALT_BYTES];
    int32_t *prev;  /* [ids_max] the position before of the same hash, or -1 */
    int32_t *heads; /* [n_heads] a power of two; -1 = none */
    int32_t n_heads, n_indexed;
    int32_t cursor,
        cursor_n; /* the last guess was read from here, when the row had so many ids; -1 = none */
};

struct lookup {
    struct drafter base;     /* first: the vtable casts */
    struct lookup_row *rows; /* [max_rows] */
    int32_t max_rows;
    struct past past;
};

static struct lookup *lookup_of(struct drafter *d)
{
    return (struct lookup *)(void *)d;
}

static void lookup_row_release(struct lookup_row *r)
{
    mem_free(MEM_CAT_REQUEST, r->prev);
    mem_free(MEM_CAT_REQUEST, r->heads);
    *r = (struct lookup_row){ 0 };
}

/* What follows the row's prompt, or is expected to. */
static void lookup_add_past(struct lookup *l, const struct lookup_row *r, const int32_t *prompt,
                            const int32_t *ids, int32_t n)
{
    int32_t lead = r->n_prompt < LOOKUP_LEAD ? r->n_prompt : LOOKUP_LEAD;
    past_add(&l->past, r->salt, prompt + r->n_prompt - lead, lead, ids, n);
}

static enum err_code lookup_open(struct drafter *d, row_id row, const struct engine_request *req,
                                 int32_t ids_max, struct err *err)
{
    struct lookup_row *r = &lookup_of(d)->rows[row];
    BUG_ON(r->is_open || ids_max < 1);
    *r = (struct lookup_row){
        .is_open = true, .n_prompt = req->n_prompt, .n_heads = 64, .cursor = -1
    };
    memcpy(r->salt, req->cache_salt, sizeof(r->salt));
    while (r->n_heads < ids_max)
        r->n_heads *= 2;
    r->prev = mem_try_array(MEM_CAT_REQUEST, (size_t)ids_max, sizeof(*r->prev));
    r->heads = mem_try_array(MEM_CAT_REQUEST, (size_t)r->n_heads, sizeof(*r->heads));
    if (!r->prev || !r->heads) {
        lookup_row_release(r);
        return err_set(err, ERR_NOMEM, "lookup: no memory for an index of %d ids", ids_max);
    }
    memset(r->heads, 0xFF, (size_t)r->n_heads * sizeof(*r->heads));
    if (req->n_predicted > 0)
        lookup_add_past(lookup_of(d), r, req->prompt, req->predicted, req->n_predicted);
    return ERR_OK;
}

static void lookup_close(struct drafter *d, row_id row, const int32_t *ids, int32_t n_ids)
{
    struct lookup_row *r = &lookup_of(d)->rows[row];
    lookup_add_past(lookup_of(d), r, ids, ids + r->n_prompt, n_ids - r->n_prompt);
    lookup_row_release(r);
}

/* Of the gram that ends at `end`. */
static int32_t lookup_hash(const struct lookup_row *r, const int32_t *ids, int32_t end)
{
    uint64_t h = 0;
    for (int32_t i = end - PAST_GRAM + 1; i <= end; i++)
        h = (h ^ (uint64_t)ids[i]) * 0x9E3779B97F4A7C15u;
    return (int32_t)(h >> 33 & (uint64_t)(r->n_heads - 1));
}

/* Ids that agree, going back from a and from b. */
static int32_t lookup_match(const int32_t *ids, int32_t a, int32_t b)
{
    int32_t n = 0;
    while (n < PAST_MATCH && n <= a && ids[a - n] == ids[b - n])
        n++;
    return n;
}

static bool lookup_is_near(const struct lookup_row *r, int32_t at, int32_t n_ids)
{
    if (r->cursor < 0)
        return false;
    int32_t off = at + 1 - (r->cursor + n_ids - r->cursor_n);
    return off >= -LOOKUP_NEAR && off <= LOOKUP_NEAR;
}

/* Where the best candidate's ending ends, or -1. */
static int32_t lookup_find(const struct lookup_row *r, const int32_t *ids, int32_t n_ids,
                           int32_t *n_matched)
{
    int32_t best = -1, best_n = PAST_GRAM - 1, last = n_ids - 1;
    bool is_best_near = false;
    int32_t at = r->heads[lookup_hash(r, ids, last)];
    for (int32_t i = 0; at >= 0 && i < LOOKUP_WALK; i++, at = r->prev[at]) {
        int32_t n = lookup_match(ids, at, last);
        bool is_near = lookup_is_near(r, at, n_ids);
        if (n > best_n || (n == best_n && best >= 0 && is_near && !is_best_near)) {
            best = at;
            best_n = n;
            is_best_near = is_near;
        }
    }
    *n_matched = best_n;
    return best;
}

int32_t draft_lookup_sure(int32_t n_matched)
{
    int32_t sure = DRAFT_LOOKUP_SURE;
    for (int32_t n = PAST_GRAM; n < n_matched && sure < DRAFT_MODEL_SURE - 1; n += n / 2 + 1)
        sure++; /* up to 3, 5, 8, 13, 20, 31, 47 */
    return sure;
}

static void lookup_index(struct lookup_row *r, const int32_t *ids, int32_t n_ids)
{
    for (; r->n_indexed < n_ids - 1; r->n_indexed++) {
        if (r->n_indexed < PAST_GRAM - 1)
            continue;
        int32_t *head = &r->heads[lookup_hash(r, ids, r->n_indexed)];
        r->prev[r->n_indexed] = *head;
        *head = r->n_indexed;
    }
}

static void lookup_draft_row(const struct past *past, struct lookup_row *r, struct draft_ask *a)
{
    int32_t n_matched = 0, n_past, at = -1;
    lookup_index(r, a->ids, a->n_ids);
    if (a->n_ids > PAST_GRAM)
        at = lookup_find(r, a->ids, a->n_ids, &n_matched);
    n_matched = at < 0 ? 0 : n_matched;
    a->n = past_find(past, r->salt, a->ids, a->n_ids, a->ids_out, a->n_max, &n_past);
    if (a->n > 0 && n_past > n_matched) {
        memset(a->sure, draft_lookup_sure(n_past), sizeof(a->sure));
        return;
    }
    a->n = 0;
    if (at < 0)
        return;
    for (int32_t i = at + 1; a->n < a->n_max;
         i++, a->n++) /* what is copied may reach into the copy */
        a->ids_out[a->n] = i < a->n_ids ? a->ids[i] : a->ids_out[i - a->n_ids];
    memset(a->sure, draft_lookup_sure(n_matched), sizeof(a->sure));
    r->cursor = at + 1;
    r->cursor_n = a->n_ids;
}

static void lookup_draft(struct drafter *d, struct draft_ask *asks, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        lookup_draft_row(&lookup_of(d)->past, &lookup_of(d)->rows[asks[i].row], &asks[i]);
}

static void lookup_free(struct drafter *d)
{
    struct lookup *l = lookup_of(d);
    for (int32_t i = 0; i < l->max_rows; i++)
        lookup_row_release(&l->rows[i]);
    past_release(&l->past);
    mem_free(MEM_CAT_BASE, l->rows);
    mem_free(MEM_CAT_BASE, l);
}

static const struct drafter_ops lookup_ops = { .name = "ngram",
                                               .open = lookup_open,
                                               .draft = lookup_draft,
                                               .close = lookup_close,
                                               .free = lookup_free };

enum err_code draft_lookup_new(int32_t max_rows, struct drafter **out, struct err *err)
{
    struct lookup *l = mem_alloc(MEM_CAT_BASE, sizeof(*l));
    l->base.ops = &lookup_ops;
    l->max_rows = max_rows;
    l->rows = mem_try_array(MEM_CAT_BASE, (size_t)max_rows, sizeof(*l->rows));
    enum err_code code = l->rows
                             ? past_init(&l->past, err)
                             : err_set(err, ERR_NOMEM, "lookup: no memory for %d rows", max_rows);
    if (code) {
        mem_free(MEM_CAT_BASE, l->rows);
        mem_free(MEM_CAT_BASE, l);
        return code;
    }
    *out = &l->base;
    return ERR_OK;
}
