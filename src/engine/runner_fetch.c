/* runner_fetch.c - kept histories come back from disk.
 *
 * One sequence at a time is fetched: the nodes that memory lacks in order, then what stands at the end. What came is put into the tree
 * like anything kept, and the sequence begins with it by runner_reuse. What goes meanwhile, from memory or disk, ends the fetch: the
 * sequence begins with what is there. */
#include "base/clock.h"
#include "engine/runner_tier_int.h"

#include <string.h>

#define P KV_PAGE_TOKENS

/* A sequence gives up waiting for the disk after this, or as long as computing would take. */
#define FETCH_LEAST_US 1000000
#define FETCH_MOST_US  60000000
/* ... and before that so long for the index at the start, or for those before it. */
#define FETCH_LINE_US 5000000

/* The most tokens <= n that memory lets a sequence begin with, and the full nodes among them. */
static int32_t ram_tokens(struct runner *r, const struct fetch *f, int32_t *n_levels)
{
    struct prefix_hit hit = { .pages = r->hit_pages,
                              .nodes = r->hit_pages + kv_pages_for(r->n_ctx) };
    prefix_find(&r->prefix, f->salt, f->ids, f->n, &hit);
    *n_levels = hit.n_tokens / P;
    return r->n_ends > 0 ? runner_end_tokens(r, &hit, f->ids) : hit.n_tokens;
}

static void fetch_set_last(struct runner_tier *t, int32_t n_levels, const struct tier_record *rec,
                           int32_t run, double seconds)
{
    t->n_levels = n_levels > t->level ? n_levels : t->level;
    t->last = *rec;
    t->last_run = run;
    t->has_last = true;
    t->seconds = seconds + rec->seconds;
}

/* Can memory keep what would be read? Nodes at the end are left away for it where that makes sense. */
static bool fetch_fits(struct runner *r, bool is_whole)
{
    struct runner_tier *t = r->tier;
    int64_t room = prefix_idle(&r->prefix) - r->prefix.n_pinned;
    room = (room > 0 ? room : 0) + runner_unpromised(r, MODEL_GROUP_FULL);
    room = (room < r->prefix.max_idle ? room : r->prefix.max_idle) - t->level - 1;
    if (t->n_levels - t->level <= room)
        return true;
    t->n_levels = t->level + (int32_t)(room > 0 ? room : 0);
    t->has_last = false;
    return !is_whole && room > 0;
}

/* What would be read: nodes [level, n_levels), then last_run ids of `last`. False: memory has as much. */
static bool fetch_plan(struct runner *r, const struct fetch *f)
{
    struct runner_tier *t = r->tier;
    struct tier_key key = tier_root(t->tier, f->salt);
    struct tier_record rec;
    bool has_ends = r->n_ends > 0;
    double seconds = 0;
    int32_t d = 0, most = ram_tokens(r, f, &t->level);
    t->n_levels = t->level;
    t->last_run = 0;
    t->n_out = 0;
    t->seconds = 0;
    for (;; d++) { /* d nodes are there, key is that of the last */
        int32_t n = f->n - d * P < P ? f->n - d * P : P;
        if (d == t->level)
            t->at = key;
        if (has_ends && tier_find_end(t->tier, key, f->salt, f->ids + d * P, n, &rec) &&
            rec.offset == d * P && rec.offset + rec.n_ids > most) {
            most = rec.offset + rec.n_ids;
            fetch_set_last(t, d, &rec, rec.n_ids, seconds);
        }
        if (n < P)
            break;
        struct tier_key next = tier_key_child(key, TIER_KIND_NODE, f->ids + d * P, P);
        if (d >= t->level && !(tier_find(t->tier, next, f->salt, &rec) && rec.offset == d * P &&
                               memcmp(rec.ids, f->ids + d * P, sizeof(rec.ids)) == 0))
            break;
        seconds += d >= t->level ? rec.seconds : 0;
        key = next;
    }
    if (has_ends)
        return t->has_last && fetch_fits(r, true);
    int32_t run = 0;
    t->has_last = false;
    t->n_levels = d;
    t->seconds = seconds;
    if (tier_find_run(t->tier, key, f->salt, f->ids + d * P, f->n - d * P, &rec, &run) &&
        rec.offset == d * P)
        fetch_set_last(t, d, &rec, run, seconds);
    return d * P + (t->has_last ? run : 0) > most && fetch_fits(r, false);
}

void fetch_over(struct runner_tier *t)
{
    t->fetches[t->active].is_wanted = false;
    t->active = -1;
}

void fetch_begin(struct runner *r)
{
    struct runner_tier *t = r->tier;
    while (t->active < 0 && tier_is_ready(t->tier)) {
        for (int32_t i = 0; i < r->max_seqs; i++)
            if (t->fetches[i].is_wanted &&
                (t->active < 0 || t->fetches[i].ticket < t->fetches[t->active].ticket))
                t->active = i;
        if (t->active < 0)
            return;
        if (!tier_can_read(t->tier) || !fetch_plan(r, &t->fetches[t->active])) {
            fetch_over(t);
            continue;
        }
        double us = t->seconds * 1e6;
        t->deadline_us = clock_us() + (us < FETCH_LEAST_US  ? FETCH_LEAST_US
                                       : us > FETCH_MOST_US ? FETCH_MOST_US
                                                            : (int64_t)us);
    }
}

void fetch_ask(struct runner *r)
{
    struct runner_tier *t = r->tier;
    struct tier_record rec;
    while (t->active >= 0 && (t->level < t->n_levels || t->has_last)) {
        const struct fetch *f = &t->fetches[t->active];
        bool is_node = t->level < t->n_levels;
        struct tier_key key = t->at;
        if (is_node)
            key = tier_key_child(t->at, TIER_KIND_NODE, f->ids + t->level * P, P);
        else
            rec = t->last;
        if (is_node && !tier_find(t->tier, key, f->salt, &rec)) {
            fetch_over(t); /* it was given up meanwhile */
            return;
        }
        struct tier_job *job = tier_take(t->tier, TIER_OP_READ, &rec);
        if (!job)
            return;
        job->tag = f->ticket << 1 | !is_node;
        tier_submit(t->tier, job);
        t->n_out++;
        t->at = key;
        if (is_node)
            t->level++;
        else
            t->has_last = false;
    }
}

/* A page of the full group for what was read, taken from the least worth that is kept. tip: the node that it will stand behind, which is
 * a leaf and must not go for it. -1: there is none. */
static int32_t page_take(struct runner *r, int32_t tip_page)
{
    struct kv_pool *p = &r->pools[MODEL_GROUP_FULL];
    if (tip_page >= 0)
        kv_pool_hold(p, tip_page);
    int32_t page = runner_spare_page(r);
    if (tip_page >= 0)
        kv_pool_drop(p, tip_page);
    return page;
}

/* Put n ids behind those of the record's offset into the tree, their page from the file. Returns the node, or -1. */
static int32_t take_page(struct runner *r, const struct fetch *f, const struct tier_record *rec,
                         int32_t n, uint8_t *bytes)
{
    struct prefix_hit hit = { .pages = r->hit_pages,
                              .nodes = r->hit_pages + kv_pages_for(r->n_ctx) };
    int32_t level = rec->offset / P;
    prefix_find(&r->prefix, f->salt, f->ids, rec->offset, &hit);
    if (hit.n_tokens < rec->offset)
        return -1; /* what it stands behind was given up meanwhile */
    if (n == 0)
        return level > 0 ? hit.nodes[level - 1] : -1;
    int32_t page = page_take(r, level > 0 ? hit.pages[level - 1] : -1);
    if (page < 0)
        return -1;
    runner_move_page(r, MODEL_GROUP_FULL, page, bytes, false);
    hit.pages[level] = page;
    int32_t node = prefix_put(&r->prefix, f->salt, f->ids, rec->offset + n, hit.pages,
                              rec->seconds / rec->n_ids, n == P);
    kv_table_reset(&r->pools[MODEL_GROUP_FULL], &r->spare);
    struct prefix_view v;
    if (node >= 0 && prefix_view(&r->prefix, node, &v))
        r->tier->keys[node] =
            tier_key_child(rec->parent, v.n == P ? TIER_KIND_NODE : TIER_KIND_END, v.ids, v.n);
    return node;
}

/* The record's window and state, as an end that hangs on the node. False: no room, or it does not fit the model. */
static bool take_end(struct runner *r, const struct tier_record *rec, int32_t node, uint8_t *bytes)
{
    int32_t len = rec->offset + rec->n_ids, last = rec->window_first + rec->n_window;
    bool has_window = r->has_group[MODEL_GROUP_WINDOW];
    if (len > r->n_ctx || (has_window ? last != kv_pages_for(len) : rec->n_window > 0) ||
        (has_window &&
         rec->window_first * P > (len + 1 > r->model->window ? len + 1 - r->model->window : 0)))
        return false;
    if (has_window && !runner_make_room(r, MODEL_GROUP_WINDOW, rec->n_window))
        return false;
    if (runner_has_state(r) && !runner_make_room(r, MODEL_GROUP_STATE, 1))
        return false;
    struct prefix_view v;
    struct runner_end *e = runner_end_take(r);
    if (!e || !prefix_view(&r->prefix, node, &v))
        return false;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        struct kv_table *to = &e->tables[g];
        int32_t first = g == MODEL_GROUP_WINDOW ? rec->window_first : 0;
        int32_t n = g == MODEL_GROUP_WINDOW ? rec->n_window : 1;
        if (g == MODEL_GROUP_FULL || !r->has_group[g])
            continue;
        kv_table_begin_at(to, first);
        enum err_code code = kv_table_reserve(&r->pools[g], to, n, NULL);
        if (!code)
            code = kv_table_extend(&r->pools[g], to, (first + n) * P, NULL);
        BUG_ON(code != ERR_OK); /* asked above */
        for (int32_t i = first; i < first + n && g == MODEL_GROUP_WINDOW; i++)
            bytes = runner_move_page(r, g, to->pages[i], bytes, false);
        if (g == MODEL_GROUP_STATE)
            bytes = runner_move_slot(r, to->pages[0], bytes, false);
    }
    e->node = node;
    e->len = len;
    e->age = r->next_end++;
    runner_mark_end(r, e);
    return true;
}

static bool fetch_take(struct runner *r, const struct tier_job *job)
{
    struct runner_tier *t = r->tier;
    const struct fetch *f = &t->fetches[t->active];
    const struct tier_record *rec = &job->record;
    uint8_t *bytes = job->file + TIER_HEADER_BYTES;
    bool is_last = job->tag & 1, has_ends = r->n_ends > 0;
    int32_t n = is_last ? t->last_run : P;
    int32_t node = take_page(r, f, rec, n, bytes);
    if (node < 0 || !is_last || !has_ends)
        return node >= 0;
    return take_end(r, rec, node, bytes + (n > 0 ? r->page_bytes[MODEL_GROUP_FULL] : 0));
}

int64_t fetch_expire(struct runner *r)
{
    struct runner_tier *t = r->tier;
    int64_t now = clock_us(), due = 0;
    if (t->active >= 0 && now > t->deadline_us) {
        tier_set_slow(t->tier, "reading took longer than computing would");
        fetch_over(t);
    }
    for (int32_t i = 0; i < r->max_seqs; i++) {
        struct fetch *f = &t->fetches[i];
        if (!f->is_wanted)
            continue;
        int64_t until = i == t->active ? t->deadline_us : f->since_us + FETCH_LINE_US;
        f->is_wanted = now <= until;
        t->has_waited = t->has_waited || !f->is_wanted;
        if (f->is_wanted && (due == 0 || until < due))
            due = until;
    }
    return due;
}

void fetch_back(struct runner *r, const struct tier_job *job)
{
    struct runner_tier *t = r->tier;
    t->n_out--;
    if (job->err.code != ERR_OK || !fetch_take(r, job))
        fetch_over(t);
    else
        t->fetches[t->active].n_read += job->tag & 1 ? t->last_run : P;
}

int32_t runner_fetched(const struct runner *r, int32_t seq)
{
    return r->tier ? r->tier->fetches[seq].n_read : 0;
}

bool runner_fetch(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                  const int32_t *ids, int32_t n)
{
    struct runner_tier *t = r->tier;
    if (!t || n < 1 || !tier_can_read(t->tier) || (t->has_waited && !tier_is_ready(t->tier)))
        return false;
    struct fetch *f = &t->fetches[seq];
    *f = (struct fetch){
        .is_wanted = true, .ids = ids, .n = n, .since_us = clock_us(), .ticket = t->next_ticket++
    };
    memcpy(f->salt, salt, sizeof(f->salt));
    runner_tier_tend(r);
    return f->is_wanted;
}

bool runner_is_fetching(const struct runner *r, int32_t seq)
{
    return r->tier && r->tier->fetches[seq].is_wanted;
}

void runner_fetch_end(struct runner *r, int32_t seq)
{
    struct runner_tier *t = r->tier;
    if (!t)
        return;
    t->fetches[seq].is_wanted = false;
    t->fetches[seq].n_read = 0;
    if (t->active == seq)
        t->active = -1;
}
