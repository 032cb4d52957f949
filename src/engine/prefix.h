/* prefix.h - kept histories: a tree that says which cache pages hold the keys and values of which ids.
 *
 * A node is one page of a pool: 1 to KV_PAGE_TOKENS ids behind those of its parents. Only full nodes have children; a short one is a
 * *tail*. Roots stand for salts: requests of different salts never meet. Each node holds one reference of its page, so that a page
 * may be in use by running sequences and kept at the same time; nobody writes a page that a node holds.
 * Lookup goes by a hash of (parent, ids) with full compare, then by the longest common run among the last node's children.
 * Eviction takes leaves only, by GreedyDual (Young 1994; Cao and Irani 1997): priority = clock + seconds to recompute, all pages being
 * of one size; the clock is the last evicted priority. A page that a sequence uses is never given up, and none that is *pinned*, alone or
 * by a node that stands on it: who pins sees to it that room is left.
 *
 * Owns: nodes, sized at init; the pool is the caller's. Thread: engine thread. Allocation: none after prefix_init.
 * Invariants: (1) every node but a root holds exactly one reference of its page; (2) a node's children are reached by hash (full
 * ones) or by its list (all), and begin differently from one another in full; (3) the heap holds exactly the leaves without a pin, lowest
 * priority first; (4) a node counts its own pins and those of all that stand on it. prefix_check() verifies them; tests call it after every operation. */
#ifndef PLUMB_ENGINE_PREFIX_H
#define PLUMB_ENGINE_PREFIX_H

#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "tensor/backend.h"

#define PREFIX_ROOTS  64   /* salts at a time */
#define PREFIX_GHOSTS 4096 /* nodes given up that are remembered, by their hashes alone */

struct prefix_node;

struct prefix {
    struct kv_pool *pool;
    int32_t max_idle; /* pages that only the tree holds, at most; 0 = nothing is kept */
    double clock;
    int64_t n_evicted;
    /* private to prefix.c from here */
    struct prefix_node *nodes; /* [n_slots] */
    int32_t n_slots, n_nodes, n_roots;
    int32_t n_pinned;  /* nodes with a pin */
    int32_t free_slot; /* list through parent; -1 = none */
    int32_t *buckets;  /* [n_buckets] a power of two; -1 = empty */
    int32_t n_buckets;
    int32_t *heap; /* [n_heap] leaves */
    int32_t n_heap;
    uint64_t *ghosts; /* [PREFIX_GHOSTS] a ring; 0 = empty */
    int32_t ghost_at;
    /* Told of each node that goes, before its number stands for another one: whoever hangs something on it lets go, or hangs it on
     * heir, a node that begins with the same ids (-1 = there is none); the node's pins are the heir's then. May be NULL; set after
     * prefix_init. */
    void (*removed)(void *ctx, int32_t node, int32_t heir);
    void *ctx;
};

/* A lookup's result: ids [0, n_tokens) are in pages[0 .. kv_pages_for(n_tokens)); where n_tokens is no multiple of the page, the last
 * one is shared only in part and must be copied before anything is written behind. nodes[] are those of the pages. */
struct prefix_hit {
    int32_t n_tokens;
    int32_t *pages, *nodes; /* the caller's, room for kv_pages_for(n) */
    int32_t root;
};

/* Errors: ERR_NOMEM. Release with prefix_release (fine on a zeroed struct; gives the pages back). */
enum err_code prefix_init(struct prefix *p, struct kv_pool *pool, int32_t max_idle,
                          struct err *err) MUST_CHECK;
void prefix_release(struct prefix *p);

/* The longest kept beginning of ids [n]; what is found counts as used. */
void prefix_find(struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                 int32_t n, struct prefix_hit *hit);

/* Whether the n-th of ids lies in the node, n <= hit->n_tokens, for the hit that was found of ids. Other nodes than the hit's may hold
 * the same beginning of a page. */
bool prefix_holds(const struct prefix *p, const struct prefix_hit *hit, int32_t node,
                  const int32_t *ids, int32_t n);

/* How far kept histories of the salt go along with ids [n], how the nearest one goes on, and what was once kept behind it. Changes
 * nothing, and nothing counts as used. Sets all members of out but reason and n_reused. False: nothing is kept of that salt. */
bool prefix_look(const struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                 int32_t n, struct engine_miss *out);

/* Keep ids [n], whose entries of the full table are pages[0 .. kv_pages_for(n)). seconds: to recompute one token. What is kept already
 * stays as it is. With only_full a last, partly used page is left out: its sequence goes on writing it.
 * Returns the node that the last id kept lies in (it may hold more ids than were given), or -1 where nothing is. */
int32_t prefix_put(struct prefix *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                   int32_t n, const int32_t *pages, double seconds, bool only_full);

/* Give up kept pages, least worth first, until n more are free. Returns how many became free: less where sequences use the rest. */
int32_t prefix_evict(struct prefix *p, int32_t n);
/* Give up what is over max_idle. */
void prefix_trim(struct prefix *p);

/* The node, and with it all that it stands on, is not given up until each pin is taken back. */
void prefix_pin(struct prefix *p, int32_t node);
void prefix_unpin(struct prefix *p, int32_t node);
bool prefix_is_pinned(const struct prefix *p, int32_t node); /* itself, or by what stands on it */
/* Does the node stand on `on`, or is it that one? */
bool prefix_stands_on(const struct prefix *p, int32_t node, int32_t on);

/* Pages that only the tree holds: what prefix_evict could free in the end. */
int32_t prefix_idle(const struct prefix *p);

/* A node and where it stands. False: the number is a root's or nobody's. */
struct prefix_view {
    int32_t parent; /* -1: its parent is a root */
    int32_t n, page;
    int32_t offset;      /* tokens before its ids */
    const int32_t *ids;  /* [n] */
    const uint8_t *salt; /* [ENGINE_SALT_BYTES] */
    double seconds;      /* that computing its ids again would take */
};
bool prefix_view(const struct prefix *p, int32_t node, struct prefix_view *out);

/* held[page] += 1 for each node, for kv_pool_check. */
void prefix_count_held(const struct prefix *p, int32_t *held);
/* Errors: ERR_STATE, naming the first violation. */
enum err_code prefix_check(const struct prefix *p, struct err *err) MUST_CHECK;

#endif
