/* runner_keep.c - histories that outlive their sequences: the tree of full layers' pages, and beside it what cannot be cut.
 *
 * A window's pages and the state of recurrent layers stand at one number of tokens. When a sequence ends, what it had there is kept as
 * an *end*, hung on the tree's node in which the last token lies; a sequence that begins alike begins at the longest such end that it
 * covers. Nothing is copied for keeping: the pages change hands. Ends are the first to go, the longest unused before others. */
#include "engine/runner_int.h"
#include "tensor/ops.h"

#include <string.h>

static bool runner_has_ends(const struct runner *r)
{
    return r->has_group[MODEL_GROUP_WINDOW] || r->has_group[MODEL_GROUP_STATE];
}

/* --- ends --- */

static bool end_is_held(const struct runner_end *e)
{
    return e->len > 0;
}

static void end_drop(struct runner *r, struct runner_end *e)
{
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        kv_table_reset(&r->pools[g], &e->tables[g]);
    e->len = 0;
    e->is_due = e->is_flushed = e->is_pinned = false;
}

static int64_t end_bytes(const struct runner *r, const struct runner_end *e)
{
    int64_t bytes = 0;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        bytes += (int64_t)(e->tables[g].n - e->tables[g].first) * (int64_t)r->page_bytes[g];
    return bytes;
}

/* The end that was unused for longest, but for the one that a sequence is beginning with. Pinned ones come last, or not at all. */
static struct runner_end *end_oldest(struct runner *r, bool costs_pins)
{
    struct runner_end *oldest = NULL;
    for (int32_t i = 0; i < r->n_ends; i++) {
        struct runner_end *e = &r->ends[i];
        if (end_is_held(e) && e != r->end_in_use && (costs_pins || !e->is_pinned) &&
            (!oldest || e->is_pinned < oldest->is_pinned ||
             (e->is_pinned == oldest->is_pinned && e->age < oldest->age)))
            oldest = e;
    }
    return oldest;
}

static void end_moved(void *ctx, int32_t node, int32_t heir)
{
    struct runner *r = ctx;
    runner_tier_removed(r, node, heir);
    runner_pins_moved(r, node, heir);
    for (int32_t i = 0; i < r->n_ends; i++) {
        struct runner_end *e = &r->ends[i];
        if (!end_is_held(e) || e->node != node)
            continue;
        e->node = heir;
        if (heir < 0)
            end_drop(r, e);
    }
}

struct runner_end *runner_end_take(struct runner *r)
{
    for (int32_t i = 0; i < r->n_ends; i++)
        if (!end_is_held(&r->ends[i]))
            return &r->ends[i];
    struct runner_end *oldest = end_oldest(r, false);
    if (oldest)
        end_drop(r, oldest);
    return oldest;
}

/* The sequence's window and state become an end: its table's references are taken over when it lets go of them. */
static void end_put(struct runner *r, const struct runner_seq *s, int32_t node)
{
    for (int32_t i = 0; i < r->n_ends; i++) {
        struct runner_end *e = &r->ends[i];
        if (end_is_held(e) && e->node == node && e->len == s->len) {
            e->age = r->next_end++;
            return;
        }
    }
    struct runner_end *to = runner_end_take(r);
    if (!to)
        return;
    to->is_due = r->tier != NULL;
    to->node = node;
    to->len = s->len;
    to->age = r->next_end++;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        if (g != MODEL_GROUP_FULL)
            kv_table_hold(&r->pools[g], &to->tables[g], &s->tables[g]);
    runner_mark_end(r, to);
}

/* The longest end that ids begin with. */
static struct runner_end *end_find(struct runner *r, const struct prefix_hit *hit,
                                   const int32_t *ids)
{
    struct runner_end *best = NULL;
    for (int32_t i = 0; i < r->n_ends; i++) {
        struct runner_end *e = &r->ends[i];
        if (end_is_held(e) && (!best || e->len > best->len) &&
            prefix_holds(&r->prefix, hit, e->node, ids, e->len))
            best = e;
    }
    return best;
}

int32_t runner_end_tokens(struct runner *r, const struct prefix_hit *hit, const int32_t *ids)
{
    const struct runner_end *e = end_find(r, hit, ids);
    return e ? e->len : 0;
}

/* --- memory --- */

enum err_code runner_keep_alloc(struct runner *r, int64_t keep_bytes, struct err *err)
{
    if (keep_bytes == 0)
        return ERR_OK;
    struct kv_pool *p = &r->pools[MODEL_GROUP_FULL];
    size_t page = r->page_bytes[MODEL_GROUP_FULL];
    int64_t n = page > 0 ? keep_bytes / (int64_t)page : p->n_pages;
    int32_t n_pages = kv_pages_for(r->n_ctx);
    r->keep_bytes_max = keep_bytes;
    r->n_ends = runner_has_ends(r) ? r->max_seqs * RUNNER_ENDS_PER_SEQ : 0;
    r->hit_pages = mem_try_array(MEM_CAT_KV, (size_t)n_pages * 2, sizeof(*r->hit_pages));
    r->ends = mem_try_array(MEM_CAT_KV, (size_t)r->n_ends, sizeof(*r->ends));
    if (!r->hit_pages || !r->ends)
        return err_set(err, ERR_NOMEM, "prompt cache: no memory for %d tokens", r->n_ctx);
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < r->n_ends && !code; i++)
        for (int g = 0; g < MODEL_GROUP_COUNT && !code; g++)
            if (g != MODEL_GROUP_FULL)
                code = kv_table_init(&r->ends[i].tables[g], n_pages, err);
    if (!code)
        code = kv_table_init(&r->spare, 1, err);
    if (!code)
        code = prefix_init(&r->prefix, p, n < p->n_pages ? (int32_t)n : p->n_pages, err);
    r->prefix.removed = end_moved;
    r->prefix.ctx = r;
    return code ? code : runner_pins_alloc(r, err);
}

void runner_keep_free(struct runner *r)
{
    for (int32_t i = 0; r->ends && i < r->n_ends; i++) {
        end_drop(r, &r->ends[i]);
        for (int g = 0; g < MODEL_GROUP_COUNT; g++)
            kv_table_release(&r->ends[i].tables[g]);
    }
    r->prefix.removed = NULL;
    prefix_release(&r->prefix);
    mem_free(MEM_CAT_KV, r->ends);
    mem_free(MEM_CAT_KV, r->pins);
    mem_free(MEM_CAT_KV, r->hit_pages);
    kv_table_release(&r->spare);
}

bool runner_make_room(struct runner *r, int group, int32_t n)
{
    int32_t lacks = n - runner_unpromised(r, group);
    struct runner_end *e;
    if (lacks > 0 && group == MODEL_GROUP_FULL && prefix_idle(&r->prefix) >= lacks) {
        lacks -= prefix_evict(&r->prefix, lacks);
        while (lacks > 0 && runner_give_up_pin(r))
            lacks -= prefix_evict(&r->prefix, lacks);
    }
    while (group != MODEL_GROUP_FULL && runner_unpromised(r, group) < n &&
           (e = end_oldest(r, true)))
        end_drop(r, e);
    if (group == MODEL_GROUP_STATE && runner_unpromised(r, group) < n)
        (void)runner_free_slots(r, n, NULL);
    return n <= runner_unpromised(r, group);
}

/* Bytes of the ends and of the tree's idle pages that are over the budget. */
static int64_t keep_over(const struct runner *r)
{
    int64_t bytes = (int64_t)prefix_idle(&r->prefix) * (int64_t)r->page_bytes[MODEL_GROUP_FULL];
    for (int32_t i = 0; i < r->n_ends; i++)
        bytes += end_bytes(r, &r->ends[i]);
    return bytes - r->keep_bytes_max;
}

void runner_trim(struct runner *r)
{
    int64_t page = (int64_t)r->page_bytes[MODEL_GROUP_FULL], over;
    struct runner_end *e;
    if (r->prefix.max_idle == 0)
        return;
    prefix_trim(&r->prefix);
    if (r->n_ends == 0)
        return;
    while (keep_over(r) > 0 && (e = end_oldest(r, false)))
        end_drop(r, e);
    while (page > 0 && (over = keep_over(r)) > 0 &&
           prefix_evict(&r->prefix, (int32_t)((over + page - 1) / page)) > 0)
        ;
    while (keep_over(r) > 0 && (e = end_oldest(r, true))) /* pinned ones are left */
        end_drop(r, e);
}

int32_t runner_kept_pages(const struct runner *r, int group)
{
    int32_t n = 0;
    if (group == MODEL_GROUP_FULL)
        return prefix_idle(&r->prefix);
    for (int32_t i = 0; i < r->n_ends; i++)
        n += r->ends[i].tables[group].n - r->ends[i].tables[group].first;
    return n;
}

int32_t runner_pinned_pages(const struct runner *r, int group)
{
    int32_t n = 0;
    if (group == MODEL_GROUP_FULL)
        return r->prefix.n_pinned;
    for (int32_t i = 0; i < r->n_ends; i++)
        if (r->ends[i].is_pinned)
            n += r->ends[i].tables[group].n - r->ends[i].tables[group].first;
    return n;
}

/* --- keeping and beginning --- */

void runner_keep(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                 const int32_t *ids, int32_t n_tokens, bool only_full)
{
    struct runner_seq *s = &r->seqs[seq];
    BUG_ON(!s->is_open || n_tokens > s->len);
    if (r->prefix.max_idle == 0)
        return;
    if (runner_has_state(r))
        runner_settle(r, seq, s->len);
    int32_t node = prefix_put(&r->prefix, salt, ids, n_tokens, s->tables[MODEL_GROUP_FULL].pages,
                              r->token_seconds, only_full);
    if (node >= 0 && r->tier)
        runner_tier_kept(r, salt, ids, n_tokens);
    if (node >= 0 && !only_full && n_tokens == s->len && r->n_ends > 0)
        end_put(r, s, node);
}

/* n pages of the group for a copy, at the cost of other ends alone. */
static bool end_make_room(struct runner *r, int group, int32_t n)
{
    struct runner_end *e;
    while (runner_unpromised(r, group) < n && (e = end_oldest(r, false)))
        end_drop(r, e);
    return n <= runner_unpromised(r, group);
}

int32_t runner_spare_page(struct runner *r)
{
    struct kv_pool *p = &r->pools[MODEL_GROUP_FULL];
    if (runner_unpromised(r, MODEL_GROUP_FULL) < 1 && prefix_evict(&r->prefix, 1) < 1)
        return -1; /* pins do not give way to it */
    enum err_code code = kv_table_reserve(p, &r->spare, 1, NULL);
    if (!code)
        code = kv_table_extend(p, &r->spare, 1, NULL);
    BUG_ON(code != ERR_OK); /* there is room for one */
    return r->spare.pages[0];
}

/* The node that the last of ids [n] lies in, with a copy of the page that the sequence goes on writing. -1: no room. */
static int32_t keep_node(struct runner *r, const struct runner_seq *s,
                         const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids, int32_t n)
{
    const struct kv_table *t = &s->tables[MODEL_GROUP_FULL];
    int32_t n_whole = n / KV_PAGE_TOKENS;
    memcpy(r->hit_pages, t->pages, (size_t)n_whole * sizeof(*t->pages));
    if (n % KV_PAGE_TOKENS != 0) {
        int32_t page = runner_spare_page(r);
        if (page < 0)
            return -1;
        for (int64_t l = 0; l < r->model->n_layers; l++)
            if (r->model->layers[l].group == MODEL_GROUP_FULL && r->model->layers[l].kv_from == l)
                runner_copy_page(r, l, page, t->pages[n_whole]);
        r->hit_pages[n_whole] = page;
    }
    int32_t node = prefix_put(&r->prefix, salt, ids, n, r->hit_pages, r->token_seconds, false);
    kv_table_reset(&r->pools[MODEL_GROUP_FULL], &r->spare);
    return node;
}

/* Copies of a sequence's window and state, whole ones: there is room. */
static void end_copy(struct runner *r, struct runner_end *to, const struct runner_seq *s)
{
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        if (g == MODEL_GROUP_FULL || !r->has_group[g])
            continue;
        runner_share_group(r, g, &to->tables[g], &s->tables[g], s->len);
        if (g == MODEL_GROUP_STATE)
            runner_copy_slot(r, to->tables[g].pages[0], runner_slot(s));
    }
}

bool runner_keep_end(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                     const int32_t *ids, int32_t n, bool to_disk)
{
    struct runner_seq *s = &r->seqs[seq];
    const struct kv_table *window = &s->tables[MODEL_GROUP_WINDOW];
    BUG_ON(!s->is_open || n != s->len);
    if (r->n_ends == 0 || n == 0)
        return true;
    if (runner_has_state(r))
        runner_settle(r, seq, n);
    int32_t node = keep_node(r, s, salt, ids, n);
    if (node < 0)
        return false;
    for (int32_t i = 0; i < r->n_ends; i++)
        if (end_is_held(&r->ends[i]) && r->ends[i].node == node && r->ends[i].len == n) {
            r->ends[i].age = r->next_end++;
            return true;
        }
    if (!end_make_room(r, MODEL_GROUP_WINDOW, window->n - window->first) ||
        !end_make_room(r, MODEL_GROUP_STATE, runner_has_state(r)))
        return false;
    struct runner_end *to = runner_end_take(r);
    if (!to)
        return false;
    end_copy(r, to, s);
    to->node = node;
    to->len = n;
    to->age = r->next_end++;
    to->is_due = to_disk && r->tier;
    runner_mark_end(r, to);
    if (r->tier)
        runner_tier_kept(r, salt, ids, n);
    return true;
}

/* The full layers' pages of the first n_tokens, or of its whole pages where there is no room for a copy of the last. Returns how many. */
static int32_t runner_reuse_full(struct runner *r, struct kv_table *t, const struct prefix_hit *hit,
                                 int32_t n_tokens)
{
    struct kv_pool *p = &r->pools[MODEL_GROUP_FULL];
    const struct kv_table found = { .pages = hit->pages,
                                    .n = kv_pages_for(n_tokens),
                                    .cap = t->cap };
    int32_t n_whole = n_tokens / KV_PAGE_TOKENS;
    if (n_tokens > n_whole * KV_PAGE_TOKENS) {
        /* Neither it nor what it stands behind may be given up for its own copy: nodes with children are not. */
        kv_pool_hold(p, found.pages[n_whole]);
        if (!runner_make_room(r, MODEL_GROUP_FULL, 1))
            n_tokens = n_whole * KV_PAGE_TOKENS;
        kv_pool_drop(p, found.pages[n_whole]);
    }
    runner_share_group(r, MODEL_GROUP_FULL, t, &found, n_tokens);
    return n_tokens;
}

/* Copies of the end's window and state. False: no room. */
static bool runner_reuse_end(struct runner *r, struct runner_seq *s, const struct runner_end *e)
{
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        if (g == MODEL_GROUP_FULL || !r->has_group[g])
            continue;
        if (!runner_make_room(r, g, e->tables[g].n - e->tables[g].first))
            return false;
        runner_share_group(r, g, &s->tables[g], &e->tables[g], e->len);
        if (g == MODEL_GROUP_STATE)
            runner_copy_slot(r, runner_slot(s), e->tables[g].pages[0]);
    }
    return true;
}

/* The sequence has n tokens now. */
static int32_t reuse_done(struct runner *r, int32_t seq, const int32_t *ids, int32_t n)
{
    runner_note_ids(r, seq, 0, ids, n);
    return r->seqs[seq].len = n;
}

int32_t runner_reuse(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                     const int32_t *ids, int32_t n)
{
    struct runner_seq *s = &r->seqs[seq];
    struct kv_table *t = &s->tables[MODEL_GROUP_FULL];
    struct prefix_hit hit = { .pages = r->hit_pages,
                              .nodes = r->hit_pages + kv_pages_for(r->n_ctx) };
    BUG_ON(!s->is_open || s->len > 0 || t->n > 0 || t->n_reserved > 0);
    if (r->prefix.max_idle == 0)
        return 0;
    prefix_find(&r->prefix, salt, ids, n, &hit);
    if (r->n_ends == 0)
        return reuse_done(r, seq, ids, runner_reuse_full(r, t, &hit, hit.n_tokens));
    struct runner_end *e = end_find(r, &hit, ids);
    if (!e)
        return 0;
    r->end_in_use = e;
    e->age = r->next_end++;
    int32_t len = e->len; /* making room for the pages may cost the node that the end hangs on */
    bool is_whole =
        runner_reuse_full(r, t, &hit, len) == len && end_is_held(e) && runner_reuse_end(r, s, e);
    r->end_in_use = NULL;
    if (!is_whole)
        for (int g = 0; g < MODEL_GROUP_COUNT; g++)
            kv_table_reset(&r->pools[g], &s->tables[g]);
    return reuse_done(r, seq, ids, is_whole ? len : 0);
}

/* Why not all ids [n] of the prompt but the last, of which a look found miss->n_found. */
static enum engine_miss_reason reuse_reason(const struct runner *r, const struct engine_miss *miss,
                                            int32_t n)
{
    if (miss->n_reused >= n - 1)
        return ENGINE_MISS_WHOLE;
    if (miss->n_reused < miss->n_found)
        return r->n_ends > 0 ? ENGINE_MISS_STATE : ENGINE_MISS_NO_ROOM;
    if (miss->n_given_up > 0)
        return ENGINE_MISS_GIVEN_UP;
    return miss->n_kept > 0 ? ENGINE_MISS_DIFFERS : ENGINE_MISS_ENDS;
}

int32_t runner_reuse_told(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                          const int32_t *ids, int32_t n, struct engine_miss *miss)
{
    *miss = (struct engine_miss){ .reason = ENGINE_MISS_OFF };
    if (r->prefix.max_idle == 0)
        return 0;
    bool is_any = prefix_look(&r->prefix, salt, ids, n, miss);
    miss->n_reused = runner_reuse(r, seq, salt, ids, n - 1);
    miss->n_disk =
        runner_fetched(r, seq) < miss->n_reused ? runner_fetched(r, seq) : miss->n_reused;
    miss->reason = is_any || miss->n_given_up > 0 ? reuse_reason(r, miss, n) : ENGINE_MISS_EMPTY;
    return miss->n_reused;
}
