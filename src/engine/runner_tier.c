/* runner_tier.c - kept histories go to disk: pages are gathered into files' buffers.
 *
 * Nodes that the tree gets stand in a line, ends are marked. Between steps as many as the tier has buffers for are copied and
 * handed over: 0.15 ms for the page of a 0.5B model, which 64 tokens of prompt took 250 ms to compute. What goes from memory before
 * that is dropped, so that nobody waits for a disk and no page is held for one. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/runner_tier_int.h"
#include "engine/tier_space.h"

#include <string.h>

#define P KV_PAGE_TOKENS

#define WISH_OUT -2 /* the node is being written */

#define FLUSH_US 10000000 /* without a file that was written, a flush has failed */

/* --- bytes --- */

static bool layer_is_of(const struct runner *r, int64_t i, int group)
{
    const struct model_layer *l = &r->model->layers[i];
    return (int)l->group == group && (group == MODEL_GROUP_STATE || l->kv_from == i);
}

/* n bytes of the backend's, to bytes or from there. Returns what comes behind them. */
static uint8_t *move_bytes(struct backend *be, void *at, size_t n, uint8_t *bytes, bool is_out)
{
    if (n > 0 && is_out)
        be->ops->download(be, bytes, at, n);
    else if (n > 0)
        be->ops->upload(be, at, bytes, n);
    return bytes + n;
}

uint8_t *runner_move_page(struct runner *r, int group, int32_t page, uint8_t *bytes, bool is_out)
{
    for (int64_t i = 0; i < r->model->n_layers; i++) {
        struct backend *be = runner_be(r, i);
        size_t n = layer_is_of(r, i, group) ? runner_layer_page(r, i) : 0;
        size_t n_index = n ? runner_index_page(r, i) : 0;
        if (n > 0)
            bytes = move_bytes(be, r->layers[i].data + (size_t)page * n, n, bytes, is_out);
        if (n_index > 0)
            bytes = move_bytes(be, r->index[i].data + (size_t)page * n_index / sizeof(float),
                               n_index, bytes, is_out);
    }
    return bytes;
}

static uint8_t *move_state(struct backend *be, struct state_layer *s, int32_t slot, uint8_t *bytes,
                           bool is_out)
{
    size_t conv = (size_t)(s->taps - 1) * (size_t)s->conv_cols;
    size_t matrix = (size_t)s->n_heads * (size_t)s->key_dim * (size_t)s->value_dim;
    if (matrix > 0)
        bytes = move_bytes(be, s->matrix + (size_t)slot * matrix, matrix * sizeof(float), bytes,
                           is_out);
    return move_bytes(be, s->conv + (size_t)slot * conv, conv * sizeof(float), bytes, is_out);
}

uint8_t *runner_move_slot(struct runner *r, int32_t slot, uint8_t *bytes, bool is_out)
{
    for (int64_t i = 0; i < r->model->n_layers; i++)
        if (layer_is_of(r, i, MODEL_GROUP_STATE))
            bytes = move_state(runner_be(r, i), &r->states[i], slot, bytes, is_out);
    if (r->model->ngrams.n_heads > 0)
        bytes = move_state(runner_be(r, r->model->ngrams.layer_i), &r->ngram_state, slot, bytes,
                           is_out);
    return bytes;
}

/* --- what is to be written --- */

static void wish_add(struct runner_tier *t, int32_t node)
{
    if (t->wish_at[node] != -1)
        return;
    BUG_ON(t->n_wishes == t->wish_cap); /* a place for each node, and gone ones are counted out */
    int32_t at = (t->wish_first + t->n_wishes++) % t->wish_cap;
    t->wishes[at] = node;
    t->wish_at[node] = at;
}

void runner_tier_removed(struct runner *r, int32_t node, int32_t heir)
{
    struct runner_tier *t = r->tier;
    if (!t)
        return;
    if (t->wish_at[node] >= 0) {
        t->wishes[t->wish_at[node]] = -1;
        tier_count_dropped(t->tier, heir < 0);
    }
    t->wish_at[node] = -1;
}

/* Ring entries of nodes that are gone make room when the line is taken from; here they are packed where the ring is full. */
static void wish_pack(struct runner_tier *t)
{
    int32_t n = 0, n_flush = 0;
    for (int32_t i = 0; i < t->n_wishes; i++) {
        int32_t node = t->wishes[(t->wish_first + i) % t->wish_cap];
        if (node < 0)
            continue;
        n_flush += i < t->n_flush_wishes;
        int32_t to = (t->wish_first + n++) % t->wish_cap;
        t->wishes[to] = node;
        t->wish_at[node] = to;
    }
    t->n_wishes = n;
    t->n_flush_wishes = n_flush;
}

void runner_tier_kept(struct runner *r, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                      int32_t n)
{
    struct runner_tier *t = r->tier;
    struct prefix_hit hit = { .pages = r->hit_pages,
                              .nodes = r->hit_pages + kv_pages_for(r->n_ctx) };
    struct tier_key key = tier_root(t->tier, salt);
    struct prefix_view v;
    prefix_find(&r->prefix, salt, ids, n, &hit);
    for (int32_t i = 0; i < kv_pages_for(hit.n_tokens); i++) {
        int32_t node = hit.nodes[i];
        if (!prefix_view(&r->prefix, node, &v))
            break;
        bool is_node = v.n == P;
        if (!is_node && r->n_ends > 0)
            break; /* the end has it */
        key = tier_key_child(key, is_node ? TIER_KIND_NODE : TIER_KIND_END, v.ids, v.n);
        t->keys[node] = key;
        if (t->n_wishes == t->wish_cap)
            wish_pack(t);
        if (!tier_find(t->tier, key, salt, NULL))
            wish_add(t, node);
    }
}

static struct tier_key parent_key(const struct runner_tier *t, const struct prefix_view *v)
{
    return v->parent >= 0 ? t->keys[v->parent] : tier_root(t->tier, v->salt);
}

/* The record of a node of the tree. */
static void record_of_node(const struct runner_tier *t, int32_t node, const struct prefix_view *v,
                           struct tier_record *out)
{
    *out = (struct tier_record){ .kind = v->n == P ? TIER_KIND_NODE : TIER_KIND_END,
                                 .key = t->keys[node],
                                 .parent = parent_key(t, v),
                                 .offset = v->offset,
                                 .n_ids = v->n,
                                 .seconds = v->seconds };
    memcpy(out->salt, v->salt, ENGINE_SALT_BYTES);
    memcpy(out->ids, v->ids, (size_t)v->n * sizeof(*v->ids));
}

/* The record of an end. False: the node that it hangs on holds less. */
static bool record_of_end(const struct runner *r, const struct runner_end *e,
                          const struct prefix_view *v, struct tier_record *out)
{
    const struct kv_table *window = &e->tables[MODEL_GROUP_WINDOW];
    const struct runner_tier *t = r->tier;
    int32_t n = e->len - v->offset;
    bool is_behind = n == P; /* the whole node stands before it */
    if (n < 1 || n > v->n)
        return false;
    *out = (struct tier_record){ .kind = TIER_KIND_END,
                                 .parent = is_behind ? t->keys[e->node] : parent_key(t, v),
                                 .offset = is_behind ? e->len : v->offset,
                                 .n_ids = is_behind ? 0 : n,
                                 .window_first = window->first,
                                 .n_window = window->n - window->first,
                                 .seconds = v->seconds * n / v->n };
    memcpy(out->salt, v->salt, ENGINE_SALT_BYTES);
    memcpy(out->ids, v->ids, (size_t)out->n_ids * sizeof(*v->ids));
    out->key = tier_key_child(out->parent, TIER_KIND_END, out->ids, out->n_ids);
    return true;
}

/* False: the copies, or what made the bytes that they took, have failed, which the next step will say. */
static bool write_job(struct runner *r, struct tier_job *job)
{
    const struct model *m = r->model;
    if (r->fault.code == ERR_OK && m->be->ops->wait(m->be, &r->fault) == ERR_OK) {
        tier_submit(r->tier->tier, job);
        return true;
    }
    tier_count_dropped(r->tier->tier, 1);
    tier_give_back(r->tier->tier, job);
    return false;
}

/* False: every buffer is out. */
static bool write_node(struct runner *r, int32_t node)
{
    struct runner_tier *t = r->tier;
    struct prefix_view v;
    struct tier_record rec;
    BUG_ON(!prefix_view(&r->prefix, node, &v)); /* one that goes leaves the line */
    record_of_node(t, node, &v, &rec);
    t->wish_at[node] = -1;
    if (tier_find(t->tier, rec.key, rec.salt, NULL))
        return true;
    struct tier_job *job = tier_take(t->tier, TIER_OP_WRITE, &rec);
    if (!job) {
        t->wish_at[node] = t->wish_first;
        return false;
    }
    runner_move_page(r, MODEL_GROUP_FULL, v.page, job->file + TIER_HEADER_BYTES, true);
    job->tag = (uint64_t)node + 1;
    if (write_job(r, job))
        t->wish_at[node] = WISH_OUT;
    return true;
}

static bool write_end(struct runner *r, const struct runner_end *e)
{
    struct runner_tier *t = r->tier;
    struct prefix_view v;
    struct tier_record rec;
    if (!prefix_view(&r->prefix, e->node, &v) || !record_of_end(r, e, &v, &rec) ||
        tier_find(t->tier, rec.key, rec.salt, NULL))
        return true;
    struct tier_job *job = tier_take(t->tier, TIER_OP_WRITE, &rec);
    if (!job)
        return false;
    uint8_t *at = job->file + TIER_HEADER_BYTES;
    job->tag = 0;
    if (rec.n_ids > 0)
        at = runner_move_page(r, MODEL_GROUP_FULL, v.page, at, true);
    for (int32_t i = 0; i < rec.n_window; i++)
        at = runner_move_page(r, MODEL_GROUP_WINDOW,
                              e->tables[MODEL_GROUP_WINDOW].pages[rec.window_first + i], at, true);
    if (runner_has_state(r))
        at = runner_move_slot(r, e->tables[MODEL_GROUP_STATE].pages[0], at, true);
    (void)write_job(r, job);
    return true;
}

static void tend_writes(struct runner *r)
{
    struct runner_tier *t = r->tier;
    int32_t n_due = 0;
    bool is_on = tier_can_write(t->tier);
    while (t->n_wishes > 0) {
        int32_t node = t->wishes[t->wish_first];
        if (node >= 0 && is_on && !write_node(r, node))
            break;
        if (node >= 0 && !is_on) {
            t->wish_at[node] = -1;
            tier_count_dropped(t->tier, 1);
        }
        t->wish_first = (t->wish_first + 1) % t->wish_cap;
        t->n_wishes--;
        t->n_flush_wishes -= t->n_flush_wishes > 0;
    }
    for (int32_t i = 0; i < r->n_ends; i++) {
        struct runner_end *e = &r->ends[i];
        if (!e->is_due)
            continue;
        e->is_due = is_on && !write_end(r, e);
        if (!is_on)
            tier_count_dropped(t->tier, 1);
        n_due += e->is_due;
    }
    tier_count_pending(t->tier, t->n_wishes + n_due);
}

/* --- flush --- */

/* Has a file what the node holds? A partly used page may lie in one that goes on. */
static bool node_is_on_disk(const struct runner_tier *t, int32_t node, const struct prefix_view *v)
{
    struct tier_record rec;
    int32_t run = 0;
    return v->n == P
               ? tier_find(t->tier, t->keys[node], v->salt, NULL)
               : tier_find_run(t->tier, parent_key(t, v), v->salt, v->ids, v->n, &rec, &run) &&
                     run == v->n;
}

/* Is all there that the flush wanted? What gave way to a later file, under a cap that is too small, is not. */
static bool flush_is_whole(struct runner *r)
{
    struct runner_tier *t = r->tier;
    struct prefix_view v;
    struct tier_record rec;
    for (int32_t i = 0; i < r->prefix.n_slots; i++) /* what waits came later */
        if (t->wish_at[i] == -1 && prefix_view(&r->prefix, i, &v) && (v.n == P || r->n_ends == 0) &&
            !node_is_on_disk(t, i, &v))
            return false;
    for (int32_t i = 0; i < r->n_ends; i++) {
        const struct runner_end *e = &r->ends[i];
        if (e->is_flushed && prefix_view(&r->prefix, e->node, &v) &&
            record_of_end(r, e, &v, &rec) && !tier_find(t->tier, rec.key, rec.salt, NULL))
            return false;
    }
    return true;
}

/* --- turns --- */

/* A job that came back. */
static void tend_done(struct runner *r, struct tier_job *job)
{
    struct runner_tier *t = r->tier;
    t->flush_until_us = clock_us() + FLUSH_US;
    if (job->op == TIER_OP_SYNC && !(t->is_syncing && job->tag == t->flush_id)) {
        ; /* of a flush that began again, or was given up */
    } else if (job->op == TIER_OP_SYNC) {
        struct tier_stats s;
        tier_read_stats(t->tier, &s);
        t->is_durable =
            job->err.code == ERR_OK && s.dropped == t->dropped_before && flush_is_whole(r);
        t->is_flush_over = true;
        t->is_flushing = t->is_syncing = false;
    } else if (job->op == TIER_OP_READ && t->active >= 0 &&
               job->tag >> 1 == t->fetches[t->active].ticket) {
        fetch_back(r, job);
    } else if (job->op == TIER_OP_WRITE && job->tag > 0 &&
               tier_key_equal(t->keys[job->tag - 1], job->record.key) &&
               t->wish_at[job->tag - 1] == WISH_OUT) {
        t->wish_at[job->tag - 1] = -1;
    }
    tier_give_back(t->tier, job);
}

static void flush_fail(struct runner_tier *t)
{
    t->is_flushing = t->is_syncing = t->is_durable = false;
    t->is_flush_over = true;
}

/* Returns the clock_us() at which it is due again; 0 = only when something came back. */
static int64_t tend_flush(struct runner *r)
{
    struct runner_tier *t = r->tier;
    bool is_due = t->n_flush_wishes > 0;
    if (!t->is_flushing)
        return 0;
    for (int32_t i = 0; i < r->n_ends; i++)
        is_due = is_due || (r->ends[i].is_flushed && r->ends[i].is_due);
    if (clock_us() > t->flush_until_us || !tier_can_write(t->tier)) {
        flush_fail(t);
        return 0;
    }
    if (is_due || t->is_syncing || !tier_is_idle(t->tier, TIER_OP_SYNC))
        return t->flush_until_us;
    struct tier_job *job =
        tier_take(t->tier, TIER_OP_SYNC, NULL); /* its turn is behind the writes */
    BUG_ON(!job);                               /* there is one */
    job->tag = t->flush_id;
    t->is_syncing = true;
    tier_submit(t->tier, job);
    return t->flush_until_us;
}

int64_t runner_tier_tend(struct runner *r)
{
    struct runner_tier *t = r->tier;
    struct tier_job *job;
    if (!t)
        return 0;
    mem_guard_enter();
    while ((job = tier_done(t->tier)) != NULL)
        tend_done(r, job);
    if (t->active >= 0 && t->level == t->n_levels && !t->has_last && t->n_out == 0)
        fetch_over(t);
    fetch_begin(r);
    fetch_ask(r);
    int64_t due = fetch_expire(r);
    tend_writes(r);
    int64_t until = tend_flush(r);
    runner_trim(r);
    mem_guard_leave();
    return due == 0 || (until != 0 && until < due) ? until : due;
}

/* --- asked from outside --- */

void runner_flush(struct runner *r)
{
    struct runner_tier *t = r->tier;
    struct prefix_view v;
    struct tier_record rec;
    struct tier_stats s;
    if (!t)
        return;
    for (int32_t i = 0; i < r->prefix.n_slots; i++)
        if (prefix_view(&r->prefix, i, &v) && (v.n == P || r->n_ends == 0) &&
            !node_is_on_disk(t, i, &v)) {
            if (t->n_wishes == t->wish_cap)
                wish_pack(t);
            wish_add(t, i);
        }
    for (int32_t i = 0; i < r->n_ends; i++) {
        struct runner_end *e = &r->ends[i];
        e->is_flushed =
            e->len > 0 && prefix_view(&r->prefix, e->node, &v) && record_of_end(r, e, &v, &rec);
        if (e->is_flushed)
            e->is_due = !tier_find(t->tier, rec.key, rec.salt, NULL);
    }
    tier_read_stats(t->tier, &s);
    t->n_flush_wishes = t->n_wishes;
    t->dropped_before = s.dropped;
    t->flush_id++;
    t->flush_until_us = clock_us() + FLUSH_US;
    t->is_flushing = true;
    t->is_syncing = t->is_flush_over = false;
}

bool runner_flush_is_over(struct runner *r, bool *is_durable)
{
    *is_durable = r->tier && r->tier->is_durable;
    return !r->tier || r->tier->is_flush_over;
}

void runner_tier_stats(const struct runner *r, struct tier_stats *out)
{
    tier_read_stats(r->tier ? r->tier->tier : NULL, out);
}

/* --- life --- */

void runner_tier_set_wake(struct runner *r, void (*wake)(void *arg), void *arg)
{
    if (r->tier)
        tier_set_wake(r->tier->tier, wake, arg);
}

/* Largest payload of an end: its pages at most, a slot. */
static size_t end_bytes_max(const struct runner *r)
{
    size_t n_window = 0;
    if (r->has_group[MODEL_GROUP_WINDOW])
        n_window = (size_t)kv_pages_for(r->model->window) + 1;
    return r->page_bytes[MODEL_GROUP_FULL] + n_window * r->page_bytes[MODEL_GROUP_WINDOW] +
           r->page_bytes[MODEL_GROUP_STATE];
}

enum err_code runner_tier_open(struct runner *r, const struct runner_tier_options *o,
                               struct err *err)
{
    if (r->prefix.max_idle == 0)
        return err_set(err, ERR_INVALID,
                       "histories are kept on disk only where memory keeps some: ask for more "
                       "--prompt-cache, or leave --ssd-cache away");
    struct tier_options to = { .dir = o->dir,
                               .max_bytes = o->max_bytes,
                               .end_bytes = r->n_ends > 0 ? end_bytes_max(r) : 0 };
    struct runner_tier *t = mem_alloc(MEM_CAT_KV, sizeof(*t));
    size_t n_slots = (size_t)r->prefix.n_slots;
    tier_space_init(&to.space, &(struct tier_space_options){ .model = r->model,
                                                             .cache_type = r->cache_type,
                                                             .weights_digest = o->weights_digest,
                                                             .content = o->content,
                                                             .numerics = o->numerics,
                                                             .page_bytes = r->page_bytes });
    r->tier = t;
    t->active = -1;
    t->next_ticket = 1;
    t->wish_cap = r->prefix.n_slots;
    t->keys = mem_try_array(MEM_CAT_KV, n_slots, sizeof(*t->keys));
    t->wishes = mem_try_array(MEM_CAT_KV, n_slots, sizeof(*t->wishes));
    t->wish_at = mem_try_array(MEM_CAT_KV, n_slots, sizeof(*t->wish_at));
    t->fetches = mem_try_array(MEM_CAT_KV, (size_t)r->max_seqs, sizeof(*t->fetches));
    enum err_code code = ERR_OK;
    if (!t->keys || !t->wishes || !t->wish_at || !t->fetches)
        code = err_set(err, ERR_NOMEM, "%s: no memory for the notes on %zu pages", o->dir, n_slots);
    for (size_t i = 0; !code && i < n_slots; i++)
        t->wish_at[i] = -1;
    if (!code)
        code = tier_open(&to, &t->tier, err);
    if (code)
        runner_tier_close(r);
    return code;
}

/* What is kept goes to disk before the end, as far as that takes no longer than this. */
#define CLOSE_US 10000000

void runner_tier_close(struct runner *r)
{
    struct runner_tier *t = r->tier;
    bool is_durable, is_over = true;
    if (!t)
        return;
    if (t->tier && tier_can_write(t->tier)) {
        int64_t until = clock_us() + CLOSE_US;
        runner_flush(r);
        while (!(is_over = runner_flush_is_over(r, &is_durable)) && clock_us() < until) {
            runner_tier_tend(r);
            clock_sleep_us(500);
        }
    }
    tier_close(t->tier, is_over ? DISK_CLOSE_US : CLOSE_US / 10);
    mem_free(MEM_CAT_KV, t->keys);
    mem_free(MEM_CAT_KV, t->wishes);
    mem_free(MEM_CAT_KV, t->wish_at);
    mem_free(MEM_CAT_KV, t->fetches);
    mem_free(MEM_CAT_KV, t);
    r->tier = NULL;
}
