#include "engine/prefix.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

#define P KV_PAGE_TOKENS

struct prefix_node {
    uint64_t key; /* of (parent's key, ids); a root's of its salt */
    int32_t parent, child, next,
        prev;            /* tree; -1 = none. A free slot's parent is the next free one */
    int32_t bucket_next; /* full nodes and roots */
    int32_t heap_at;     /* place in the heap; -1 = no leaf, or pinned */
    int32_t n_pins;      /* of it and of what stands on it */
    int32_t page;        /* -1: a root */
    int32_t n;           /* ids; 0: a root, -1: a free slot */
    double seconds, priority;
    union {
        int32_t ids[P];
        uint8_t salt[ENGINE_SALT_BYTES];
    };
};

static bool node_is_root(const struct prefix_node *d)
{
    return d->n == 0;
}

/* --- the heap of leaves --- */

static bool heap_is_before(const struct prefix *p, int32_t a, int32_t b)
{
    const struct prefix_node *x = &p->nodes[a], *y = &p->nodes[b];
    return x->priority != y->priority ? x->priority < y->priority : a < b;
}

static void heap_put(struct prefix *p, int32_t at, int32_t node)
{
    p->heap[at] = node;
    p->nodes[node].heap_at = at;
}

/* Move the entry at a place up or down to where it belongs. */
static void heap_settle(struct prefix *p, int32_t at)
{
    int32_t node = p->heap[at];
    while (at > 0 && heap_is_before(p, node, p->heap[(at - 1) / 2])) {
        heap_put(p, at, p->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (int32_t c; (c = 2 * at + 1) < p->n_heap; at = c) {
        if (c + 1 < p->n_heap && heap_is_before(p, p->heap[c + 1], p->heap[c]))
            c++;
        if (!heap_is_before(p, p->heap[c], node))
            break;
        heap_put(p, at, p->heap[c]);
    }
    heap_put(p, at, node);
}

static void heap_add(struct prefix *p, int32_t node)
{
    heap_put(p, p->n_heap++, node);
    heap_settle(p, p->n_heap - 1);
}

static void heap_remove(struct prefix *p, int32_t node)
{
    int32_t at = p->nodes[node].heap_at;
    p->nodes[node].heap_at = -1;
    if (at == --p->n_heap)
        return;
    heap_put(p, at, p->heap[p->n_heap]);
    heap_settle(p, at);
}

/* --- nodes --- */

static int32_t *bucket_of(const struct prefix *p, uint64_t key)
{
    return &p->buckets[key & (uint64_t)(p->n_buckets - 1)];
}

static void node_hash_in(struct prefix *p, int32_t i)
{
    int32_t *b = bucket_of(p, p->nodes[i].key);
    p->nodes[i].bucket_next = *b;
    *b = i;
}

static void node_hash_out(struct prefix *p, int32_t i)
{
    int32_t *at = bucket_of(p, p->nodes[i].key);
    while (*at != i)
        at = &p->nodes[*at].bucket_next;
    *at = p->nodes[i].bucket_next;
}

static int32_t node_take_slot(struct prefix *p)
{
    int32_t i = p->free_slot;
    BUG_ON(i < 0); /* a slot for each page and each root */
    p->free_slot = p->nodes[i].parent;
    p->nodes[i] = (struct prefix_node){ .parent = -1,
                                        .child = -1,
                                        .next = -1,
                                        .prev = -1,
                                        .bucket_next = -1,
                                        .heap_at = -1,
                                        .page = -1 };
    return i;
}

static void node_give_slot(struct prefix *p, int32_t i)
{
    p->nodes[i].n = -1;
    p->nodes[i].parent = p->free_slot;
    p->free_slot = i;
}

static void node_link(struct prefix *p, int32_t i, int32_t parent)
{
    struct prefix_node *d = &p->nodes[i], *up = &p->nodes[parent];
    d->parent = parent;
    d->next = up->child;
    if (up->child >= 0)
        p->nodes[up->child].prev = i;
    else if (up->heap_at >= 0)
        heap_remove(p, parent); /* no leaf any more */
    up->child = i;
}

static void node_add_pins(struct prefix *p, int32_t i, int32_t n)
{
    for (; !node_is_root(&p->nodes[i]); i = p->nodes[i].parent) {
        struct prefix_node *d = &p->nodes[i];
        p->n_pinned -= d->n_pins > 0;
        d->n_pins += n;
        BUG_ON(d->n_pins < 0);
        p->n_pinned += d->n_pins > 0;
        if (d->n_pins > 0 && d->heap_at >= 0)
            heap_remove(p, i);
        else if (d->n_pins == 0 && d->heap_at < 0 && d->child < 0)
            heap_add(p, i);
    }
}

/* A leaf that goes leaves its pins to its heir, which hangs on the same node. */
static void node_hand_pins(struct prefix *p, int32_t i, int32_t heir)
{
    int32_t n = p->nodes[i].n_pins;
    if (n == 0)
        return;
    BUG_ON(heir < 0); /* pinned ones are not given up */
    node_add_pins(p, heir, n);
    node_add_pins(p, i, -n);
}

/* Take a leaf out. Its page may become free; its parent may become a leaf, or a root without children, which goes too. */
static void node_remove(struct prefix *p, int32_t i, int32_t heir)
{
    struct prefix_node *d = &p->nodes[i], *up = &p->nodes[d->parent];
    int32_t parent = d->parent;
    BUG_ON(d->child >= 0 || node_is_root(d));
    node_hand_pins(p, i, heir);
    heap_remove(p, i);
    if (d->n == P)
        node_hash_out(p, i);
    if (d->prev >= 0)
        p->nodes[d->prev].next = d->next;
    else
        up->child = d->next;
    if (d->next >= 0)
        p->nodes[d->next].prev = d->prev;
    kv_pool_unkeep(p->pool, d->page);
    if (p->removed)
        p->removed(p->ctx, i, heir);
    node_give_slot(p, i);
    p->n_nodes--;
    if (up->child >= 0)
        return;
    if (!node_is_root(up)) {
        if (up->n_pins == 0)
            heap_add(p, parent);
    } else {
        node_hash_out(p, parent);
        node_give_slot(p, parent);
        p->n_roots--;
    }
}

static void node_use(struct prefix *p, int32_t i)
{
    struct prefix_node *d = &p->nodes[i];
    d->priority = p->clock + d->seconds;
    if (d->heap_at >= 0)
        heap_settle(p, d->heap_at);
}

/* --- finding --- */

/* Of n ids behind a node with that key. */
static uint64_t key_behind(uint64_t key, const int32_t *ids, int32_t n)
{
    return XXH3_64bits_withSeed(ids, (size_t)n * sizeof(*ids), key);
}

static uint64_t key_of(const struct prefix *p, int32_t parent, const int32_t *ids)
{
    return key_behind(p->nodes[parent].key, ids, P);
}

static int32_t find_root(const struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES])
{
    int32_t i = *bucket_of(p, XXH3_64bits(salt, ENGINE_SALT_BYTES));
    while (i >= 0 &&
           !(node_is_root(&p->nodes[i]) && memcmp(p->nodes[i].salt, salt, ENGINE_SALT_BYTES) == 0))
        i = p->nodes[i].bucket_next;
    return i;
}

/* The full child with these ids [P], or -1. */
static int32_t find_full(const struct prefix *p, int32_t parent, const int32_t *ids)
{
    int32_t i = *bucket_of(p, key_of(p, parent, ids));
    while (i >= 0 && !(p->nodes[i].n == P && p->nodes[i].parent == parent &&
                       memcmp(p->nodes[i].ids, ids, sizeof(p->nodes[i].ids)) == 0))
        i = p->nodes[i].bucket_next;
    return i;
}

/* The child that begins with most of ids [n], and how many; -1 and 0 where none does. */
static int32_t find_run(const struct prefix *p, int32_t parent, const int32_t *ids, int32_t n,
                        int32_t *run)
{
    int32_t best = -1;
    *run = 0;
    for (int32_t i = p->nodes[parent].child; i >= 0; i = p->nodes[i].next) {
        const struct prefix_node *d = &p->nodes[i];
        int32_t k = 0, max = d->n < n ? d->n : n;
        while (k < max && d->ids[k] == ids[k])
            k++;
        if (k > *run) {
            *run = k;
            best = i;
        }
    }
    return best;
}

void prefix_find(struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                 int32_t n, struct prefix_hit *hit)
{
    int32_t at = p->n_nodes > 0 ? find_root(p, salt) : -1, run, next;
    hit->n_tokens = 0;
    hit->root = at;
    if (at < 0)
        return;
    while (n - hit->n_tokens >= P && (next = find_full(p, at, ids + hit->n_tokens)) >= 0) {
        at = next;
        node_use(p, at);
        hit->nodes[hit->n_tokens / P] = at;
        hit->pages[hit->n_tokens / P] = p->nodes[at].page;
        hit->n_tokens += P;
    }
    next = find_run(p, at, ids + hit->n_tokens, n - hit->n_tokens, &run);
    if (next >= 0) {
        node_use(p, next);
        hit->nodes[hit->n_tokens / P] = next;
        hit->pages[hit->n_tokens / P] = p->nodes[next].page;
        hit->n_tokens += run;
    }
}

bool prefix_holds(const struct prefix *p, const struct prefix_hit *hit, int32_t node,
                  const int32_t *ids, int32_t n)
{
    int32_t i = (n - 1) / P, parent = i > 0 ? hit->nodes[i - 1] : hit->root;
    const struct prefix_node *d = &p->nodes[node];
    return n <= hit->n_tokens && d->parent == parent && d->n >= n - i * P &&
           memcmp(d->ids, ids + i * P, (size_t)(n - i * P) * sizeof(*ids)) == 0;
}

/* --- looking: for who wants to know why no more was found --- */

static void ghost_add(struct prefix *p, int32_t i)
{
    const struct prefix_node *d = &p->nodes[i];
    p->ghosts[p->ghost_at] = key_behind(p->nodes[d->parent].key, d->ids, d->n);
    p->ghost_at = (p->ghost_at + 1) % PREFIX_GHOSTS;
}

static bool ghost_is(const struct prefix *p, uint64_t key)
{
    for (int32_t i = 0; i < PREFIX_GHOSTS; i++)
        if (p->ghosts[i] == key)
            return key != 0;
    return false;
}

/* Of ids [n] behind a node with that key, how many were kept once: whole pages, then a tail. */
static int32_t ghost_run(const struct prefix *p, uint64_t key, const int32_t *ids, int32_t n)
{
    int32_t total = 0;
    for (uint64_t next; n - total >= P; total += P, key = next) {
        next = key_behind(key, ids + total, P);
        if (!ghost_is(p, next))
            break;
    }
    for (int32_t k = n - total < P ? n - total : P - 1; k > 0; k--)
        if (ghost_is(p, key_behind(key, ids + total, k)))
            return total + k;
    return total;
}

/* What stands behind the first `run` ids of the node. */
static void look_on(const struct prefix *p, int32_t node, int32_t run, struct engine_miss *out)
{
    while (node >= 0 && out->n_kept < ENGINE_MISS_IDS) {
        const struct prefix_node *d = &p->nodes[node];
        while (run < d->n && out->n_kept < ENGINE_MISS_IDS)
            out->kept[out->n_kept++] = d->ids[run++];
        node = d->child;
        run = 0;
    }
}

bool prefix_look(const struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                 int32_t n, struct engine_miss *out)
{
    int32_t at = p->n_nodes > 0 ? find_root(p, salt) : -1, run = 0, next;
    uint64_t key = XXH3_64bits(salt, ENGINE_SALT_BYTES);
    out->n_found = out->n_kept = 0;
    if (at >= 0) {
        while (n - out->n_found >= P && (next = find_full(p, at, ids + out->n_found)) >= 0) {
            at = next;
            out->n_found += P;
        }
        next = find_run(p, at, ids + out->n_found, n - out->n_found, &run);
        key = p->nodes[at].key;
        look_on(p, next >= 0 ? next : p->nodes[at].child, run, out);
    }
    out->n_given_up = ghost_run(p, key, ids + out->n_found, n - out->n_found) - run;
    out->n_given_up = out->n_given_up > 0 ? out->n_given_up : 0;
    out->n_found += run;
    return at >= 0;
}

/* --- keeping --- */

static int32_t put_root(struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES])
{
    int32_t i = find_root(p, salt);
    if (i >= 0 || p->n_roots == PREFIX_ROOTS)
        return i;
    i = node_take_slot(p);
    memcpy(p->nodes[i].salt, salt, ENGINE_SALT_BYTES);
    p->nodes[i].key = XXH3_64bits(salt, ENGINE_SALT_BYTES);
    node_hash_in(p, i);
    p->n_roots++;
    return i;
}

static int32_t put_node(struct prefix *p, int32_t parent, const int32_t *ids, int32_t n,
                        int32_t page, double seconds)
{
    int32_t i = node_take_slot(p);
    struct prefix_node *d = &p->nodes[i];
    memcpy(d->ids, ids, (size_t)n * sizeof(*ids));
    d->n = n;
    d->page = page;
    d->seconds = seconds * n;
    d->priority = p->clock + d->seconds;
    kv_pool_keep(p->pool, page);
    node_link(p, i, parent);
    heap_add(p, i);
    p->n_nodes++;
    if (n == P) {
        d->key = key_of(p, parent, ids);
        node_hash_in(p, i);
    }
    return i;
}

/* Tails that ids [n] begin with say nothing that the new node does not. */
static void drop_covered(struct prefix *p, int32_t parent, const int32_t *ids, int32_t n,
                         int32_t heir)
{
    for (int32_t i = p->nodes[parent].child, next; i >= 0; i = next) {
        const struct prefix_node *d = &p->nodes[i];
        next = d->next;
        if (d->n < n && memcmp(d->ids, ids, (size_t)d->n * sizeof(*ids)) == 0)
            node_remove(p, i, heir);
    }
}

int32_t prefix_put(struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                   int32_t n, const int32_t *pages, double seconds, bool only_full)
{
    if (p->max_idle == 0 || n < (only_full ? P : 1))
        return -1;
    int32_t at = put_root(p, salt), pos = 0, run;
    if (at < 0)
        return -1;
    for (; n - pos >= P; pos += P) {
        int32_t next = find_full(p, at, ids + pos);
        if (next >= 0) {
            node_use(p, next);
        } else {
            next = put_node(p, at, ids + pos, P, pages[pos / P], seconds);
            drop_covered(p, at, ids + pos, P, next);
        }
        at = next;
    }
    if (only_full || pos == n)
        return at;
    int32_t same = find_run(p, at, ids + pos, n - pos, &run);
    if (run == n - pos) {
        node_use(p, same);
        return same;
    }
    int32_t tail = put_node(p, at, ids + pos, n - pos, pages[pos / P], seconds);
    drop_covered(p, at, ids + pos, n - pos, tail);
    return tail;
}

/* --- giving up --- */

int32_t prefix_evict(struct prefix *p, int32_t n)
{
    int32_t n_freed = 0, n_kept = 0, n_heap = p->n_heap;
    /* Leaves that sequences use go to the heap's unused end for the while: there are no more of them than sequences. */
    while (n_freed < n && p->n_heap > 0) {
        int32_t i = p->heap[0];
        if (kv_pool_refs(p->pool, p->nodes[i].page) > 1) {
            heap_remove(p, i);
            p->heap[p->n_slots + n_kept++] = i;
            continue;
        }
        p->clock = p->nodes[i].priority;
        ghost_add(p, i);
        node_remove(p, i, -1);
        p->n_evicted++;
        n_freed++;
    }
    BUG_ON(n_kept > n_heap);
    while (n_kept > 0)
        heap_add(p, p->heap[p->n_slots + --n_kept]);
    return n_freed;
}

void prefix_pin(struct prefix *p, int32_t node)
{
    node_add_pins(p, node, 1);
}

void prefix_unpin(struct prefix *p, int32_t node)
{
    node_add_pins(p, node, -1);
}

bool prefix_is_pinned(const struct prefix *p, int32_t node)
{
    return p->nodes[node].n_pins > 0;
}

bool prefix_stands_on(const struct prefix *p, int32_t node, int32_t on)
{
    while (node != on && !node_is_root(&p->nodes[node]))
        node = p->nodes[node].parent;
    return node == on;
}

int32_t prefix_idle(const struct prefix *p)
{
    return p->pool ? p->pool->n_idle : 0;
}

bool prefix_view(const struct prefix *p, int32_t node, struct prefix_view *out)
{
    const struct prefix_node *d = node >= 0 && node < p->n_slots ? &p->nodes[node] : NULL;
    if (!d || d->n <= 0)
        return false;
    const struct prefix_node *up = &p->nodes[d->parent];
    *out = (struct prefix_view){ .parent = node_is_root(up) ? -1 : d->parent,
                                 .n = d->n,
                                 .page = d->page,
                                 .ids = d->ids,
                                 .seconds = d->seconds };
    for (; !node_is_root(up); up = &p->nodes[up->parent])
        out->offset += P;
    out->salt = up->salt;
    return true;
}

void prefix_trim(struct prefix *p)
{
    int32_t n = prefix_idle(p) - p->max_idle;
    if (n > 0)
        prefix_evict(p, n);
}

/* --- life --- */

enum err_code prefix_init(struct prefix *p, struct kv_pool *pool, int32_t max_idle, struct err *err)
{
    *p = (struct prefix){ .pool = pool, .max_idle = max_idle, .free_slot = -1, .n_buckets = 1 };
    p->n_slots = pool->n_pages + PREFIX_ROOTS;
    while (p->n_buckets < p->n_slots)
        p->n_buckets *= 2;
    p->nodes = mem_try_array(MEM_CAT_KV, (size_t)p->n_slots, sizeof(*p->nodes));
    p->buckets = mem_try_array(MEM_CAT_KV, (size_t)p->n_buckets, sizeof(*p->buckets));
    p->heap = mem_try_array(MEM_CAT_KV, (size_t)p->n_slots * 2, sizeof(*p->heap));
    p->ghosts = mem_try_array(MEM_CAT_KV, PREFIX_GHOSTS, sizeof(*p->ghosts));
    if (!p->nodes || !p->buckets || !p->heap || !p->ghosts) {
        prefix_release(p);
        return err_set(err, ERR_NOMEM, "prompt cache: no memory for the notes on %d pages",
                       pool->n_pages);
    }
    for (int32_t i = 0; i < p->n_buckets; i++)
        p->buckets[i] = -1;
    for (int32_t i = p->n_slots; i-- > 0;)
        node_give_slot(p, i);
    return ERR_OK;
}

void prefix_release(struct prefix *p)
{
    for (int32_t i = 0; p->nodes && i < p->n_slots; i++)
        if (p->nodes[i].n > 0)
            kv_pool_unkeep(p->pool, p->nodes[i].page);
    mem_free(MEM_CAT_KV, p->nodes);
    mem_free(MEM_CAT_KV, p->buckets);
    mem_free(MEM_CAT_KV, p->heap);
    mem_free(MEM_CAT_KV, p->ghosts);
    *p = (struct prefix){ 0 };
}

/* --- checking --- */

void prefix_count_held(const struct prefix *p, int32_t *held)
{
    for (int32_t i = 0; i < p->n_slots; i++)
        if (p->nodes[i].n > 0)
            held[p->nodes[i].page]++;
}

static enum err_code check_node(const struct prefix *p, int32_t i, struct err *err)
{
    const struct prefix_node *d = &p->nodes[i];
    bool is_leaf = d->child < 0 && !node_is_root(d), is_in_heap = is_leaf && d->n_pins == 0;
    if (d->n > P || (d->n > 0 && (d->page < 0 || d->page >= p->pool->n_pages)))
        return err_set(err, ERR_STATE, "node %d: %d ids, page %d", i, d->n, d->page);
    if (d->n > 0 && d->n < P && d->child >= 0)
        return err_set(err, ERR_STATE, "node %d: %d ids and children", i, d->n);
    if (d->n > 0 && kv_pool_refs(p->pool, d->page) < 1)
        return err_set(err, ERR_STATE, "node %d: page %d is free", i, d->page);
    if (is_in_heap != (d->heap_at >= 0) || (is_in_heap && p->heap[d->heap_at] != i))
        return err_set(err, ERR_STATE, "node %d: leaf %d, %d pins, in the heap at %d", i, is_leaf,
                       d->n_pins, d->heap_at);
    if (d->n == P && find_full(p, d->parent, d->ids) != i)
        return err_set(err, ERR_STATE, "node %d: not found by its hash", i);
    if (node_is_root(d) && (d->child < 0 || find_root(p, d->salt) != i))
        return err_set(err, ERR_STATE, "root %d: empty, or not found by its salt", i);
    int32_t n_pins = 0;
    for (int32_t c = d->child, prev = -1; c >= 0; prev = c, c = p->nodes[c].next) {
        if (p->nodes[c].parent != i || p->nodes[c].prev != prev)
            return err_set(err, ERR_STATE, "node %d: child %d is linked elsewhere", i, c);
        n_pins += p->nodes[c].n_pins;
    }
    if (!node_is_root(d) && n_pins > d->n_pins)
        return err_set(err, ERR_STATE, "node %d: %d pins, those on it have %d", i, d->n_pins,
                       n_pins);
    return ERR_OK;
}

enum err_code prefix_check(const struct prefix *p, struct err *err)
{
    int32_t n = 0, n_roots = 0, n_free = 0, n_leaves = 0, n_pinned = 0;
    for (int32_t i = 0; i < p->n_slots; i++) {
        const struct prefix_node *d = &p->nodes[i];
        n += d->n > 0;
        n_roots += d->n == 0;
        n_leaves += d->n > 0 && d->child < 0 && d->n_pins == 0;
        n_pinned += d->n > 0 && d->n_pins > 0;
        enum err_code code = d->n < 0 ? ERR_OK : check_node(p, i, err);
        if (code)
            return code;
    }
    for (int32_t i = p->free_slot; i >= 0; i = p->nodes[i].parent)
        n_free++;
    if (n != p->n_nodes || n_roots != p->n_roots || n + n_roots + n_free != p->n_slots ||
        n_leaves != p->n_heap || n_pinned != p->n_pinned)
        return err_set(err, ERR_STATE,
                       "%d nodes, %d roots, %d free of %d, %d of %d leaves, %d of %d pinned", n,
                       n_roots, n_free, p->n_slots, p->n_heap, n_leaves, p->n_pinned, n_pinned);
    for (int32_t i = 1; i < p->n_heap; i++)
        if (heap_is_before(p, p->heap[i], p->heap[(i - 1) / 2]))
            return err_set(err, ERR_STATE, "heap: entry %d is before its parent", i);
    return ERR_OK;
}
