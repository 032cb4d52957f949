/* mask.c - which tokens fit: a walk of the vocabulary's tries by the automaton, most of it remembered.
 *
 * What a head allows is put together from pieces that do not know the stack: an *entry* holds the tokens that fit by the head's state
 * alone, and the places in the tries (*pops*) where the call that the state belongs to has ended. What goes on from there depends on
 * the frame below: an entry of its own, by the entry before it and the frame's content; and so on down, as far as tokens reach. Entries
 * are kept, so that a mask is most often some unions.
 * Walks step *relative* stacks (their bottom is where the walk began), each set of them a number with a row of moves that is filled as
 * it is asked for: a byte costs one look-up.
 * Inside a JSON string nearly all tokens fit. Those that are plain characters are not walked: where a state leads by every such
 * character to the same next one, `height` times over, they fit if they have at most so many characters.
 * Counts of loops are made equal where no token is long enough to see the difference.
 * Everything lies in one block; when it is full all is forgotten. It depends on nothing but the grammar, so no answer does on it. */
#include "base/clock.h"
#include "grammar/grammar_int.h"

#include <string.h>

#define MASK_WARM_US  40000
#define MASK_WIDE     24 /* bytes that a state lets through: a mask of less is made in microseconds */
#define MASK_FIXED    ((size_t)3 << 20) /* of its memory, whatever the vocabulary */
#define MASK_TOKEN    112               /* and for each token: some 900 masks that are bit sets */
#define MASK_FRAMES   8192              /* power of two */
#define MASK_SETS     8192
#define MASK_ENTRIES  8192
#define MASK_UNKNOWN  (-2)
#define MASK_ENDLESS  (VOCAB_PLAIN_MAX + 1)
#define MASK_NO_ENTRY (-1)

struct mask_set {  /* relative stacks */
    int32_t *next; /* [n_classes]; -1 = nothing fits; MASK_UNKNOWN */
    struct stack_head *heads;
    int32_t n;
    bool is_bottom;
};

struct mask_key { /* of an entry: below < 0: the first, by a head's state */
    int32_t below, ret;
    int64_t count;
};

struct mask_entry {
    struct mask_key key;
    int32_t n_ids, n_pops;
    int32_t *ids;   /* [n_ids] tokens, or */
    uint32_t *bits; /* a bit set of them; NULL = ids */
    int32_t *pops;  /* [n_pops] nodes; their tokens are in already */
};

struct mask_cache {
    struct stack_pool pool;
    struct mask_set *sets; /* [MASK_SETS] */
    int32_t *set_slots;    /* [2 * MASK_SETS] number + 1 */
    struct mask_entry *entries;
    int32_t *entry_slots;
    int32_t n_sets, n_entries;
    bool is_full, is_over;   /* the block has no room; a set has more stacks than fit */
    int32_t *plain_next;     /* [n_states] MASK_UNKNOWN, -1, or where every plain character leads */
    size_t fixed, used, max; /* of block */
    _Atomic size_t
        high; /* the most that was used: what is behind was never touched, and takes no memory */
    char *block;
};

static size_t mask_cache_max(const struct grammar *g)
{
    return MASK_FIXED + MASK_TOKEN * (size_t)g->vocab->n_tokens +
           (size_t)g->n_states * sizeof(int32_t);
}

size_t mask_cache_bytes(const struct grammar *g)
{
    return sizeof(*g->cache) + atomic_load_explicit(&g->cache->high, memory_order_relaxed);
}

static void *mask_alloc(struct mask_cache *m, size_t n)
{
    n = (n + 15) & ~(size_t)15;
    if (m->used + n > m->max) {
        m->is_full = true;
        return NULL;
    }
    void *p = m->block + m->used;
    m->used += n;
    if (m->used > atomic_load_explicit(&m->high, memory_order_relaxed))
        atomic_store_explicit(&m->high, m->used, memory_order_relaxed);
    return p;
}

static void mask_forget(struct mask_cache *m)
{
    m->used = m->fixed;
    m->n_sets = m->n_entries = 0;
    m->is_full = m->is_over = false;
    stack_pool_reset(&m->pool);
    memset(m->set_slots, 0, 2 * MASK_SETS * sizeof(*m->set_slots));
    memset(m->entry_slots, 0, 2 * MASK_ENTRIES * sizeof(*m->entry_slots));
}

enum err_code mask_cache_new(struct grammar *g, struct err *err)
{
    struct mask_cache *m = mem_try(MEM_CAT_GRAMMAR, sizeof(*m));
    size_t bytes = mask_cache_max(g);
    char *block = mem_try(MEM_CAT_GRAMMAR, bytes); /* zeroed: untouched pages cost nothing */
    if (!m || !block) {
        mem_free(MEM_CAT_GRAMMAR, m);
        mem_free(MEM_CAT_GRAMMAR, block);
        return err_set(err, ERR_NOMEM, "no memory for a cache of masks");
    }
    *m = (struct mask_cache){ .block = block, .max = bytes };
    m->plain_next = mask_alloc(m, (size_t)g->n_states * sizeof(*m->plain_next));
    m->pool.cap = MASK_FRAMES;
    m->pool.frames = mask_alloc(m, MASK_FRAMES * sizeof(*m->pool.frames));
    m->pool.slots = mask_alloc(m, 2 * MASK_FRAMES * sizeof(*m->pool.slots));
    m->sets = mask_alloc(m, MASK_SETS * sizeof(*m->sets));
    m->set_slots = mask_alloc(m, 2 * MASK_SETS * sizeof(*m->set_slots));
    m->entries = mask_alloc(m, MASK_ENTRIES * sizeof(*m->entries));
    m->entry_slots = mask_alloc(m, 2 * MASK_ENTRIES * sizeof(*m->entry_slots));
    m->fixed = m->used;
    for (int32_t s = 0; s < g->n_states; s++)
        m->plain_next[s] = MASK_UNKNOWN;
    mask_forget(m);
    g->cache = m;
    return ERR_OK;
}

void mask_cache_free(struct grammar *g)
{
    if (g->cache)
        mem_free(MEM_CAT_GRAMMAR, g->cache->block);
    mem_free(MEM_CAT_GRAMMAR, g->cache);
}

/* --- sets of relative stacks --- */

/* Its number; -1: there is no room. */
static int32_t mask_set(const struct grammar *g, struct mask_cache *m, const struct stack_heads *h)
{
    uint64_t hash = h->is_bottom, mask = 2 * MASK_SETS - 1;
    for (int32_t i = 0; i < h->n; i++)
        hash = (hash ^ ((uint64_t)(uint32_t)h->at[i].state << 24) ^ (uint64_t)h->at[i].frame) *
               0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    for (; m->set_slots[hash & mask]; hash++) {
        const struct mask_set *s = &m->sets[m->set_slots[hash & mask] - 1];
        if (s->n == h->n && s->is_bottom == h->is_bottom &&
            memcmp(s->heads, h->at, (size_t)h->n * sizeof(*h->at)) == 0)
            return m->set_slots[hash & mask] - 1;
    }
    if (m->n_sets == MASK_SETS) {
        m->is_full = true;
        return -1;
    }
    struct mask_set *s = &m->sets[m->n_sets];
    s->next = mask_alloc(m, (size_t)g->n_classes * sizeof(*s->next));
    s->heads = mask_alloc(m, (size_t)h->n * sizeof(*s->heads));
    if (m->is_full)
        return -1;
    for (int32_t c = 0; c < g->n_classes; c++)
        s->next[c] = MASK_UNKNOWN;
    memcpy(s->heads, h->at, (size_t)h->n * sizeof(*h->at));
    s->n = h->n;
    s->is_bottom = h->is_bottom;
    m->set_slots[hash & mask] = ++m->n_sets;
    return m->n_sets - 1;
}

static int32_t mask_move(const struct grammar *g, struct mask_cache *m, int32_t set, uint8_t byte)
{
    struct stack_heads from, to;
    from.n = m->sets[set].n;
    memcpy(from.at, m->sets[set].heads, (size_t)from.n * sizeof(*from.at));
    stack_step(g, &m->pool, &from, byte, &to);
    m->is_full = m->is_full || m->pool.n == MASK_FRAMES;
    m->is_over = m->is_over || to.is_over;
    int32_t next = to.n == 0 && !to.is_bottom ? -1 : mask_set(g, m, &to);
    if (!m->is_full)
        m->sets[set].next[g->class_of[byte]] = next;
    return next;
}

/* --- plain characters --- */

/* Where every byte of [lo, hi] leads from s, then `more` continuation bytes: one state, or -1. Only through states that do nothing
 * else. */
static int32_t plain_through(const struct grammar *g, int32_t s, int lo, int hi, int more)
{
    int32_t to = -1, last = -1, last_to = -1;
    for (int c = lo; c <= hi; c++) {
        int32_t t = g->next[(int64_t)s * g->n_classes + g->class_of[c]];
        if (t < 0)
            return -1;
        if (t != last) {
            last = t;
            if (more > 0 && g->flags[t] != STATE_READS)
                return -1;
            last_to = more > 0 ? plain_through(g, t, 0x80, 0xBF, more - 1) : t;
        }
        if (last_to < 0 || (to >= 0 && last_to != to))
            return -1;
        to = last_to;
    }
    return to;
}

/* The same where the second byte has bounds of its own: leads [lead, lead]. */
static int32_t plain_second(const struct grammar *g, int32_t s, int lead, int lo, int hi, int more)
{
    int32_t t = g->next[(int64_t)s * g->n_classes + g->class_of[lead]];
    return t < 0 || g->flags[t] != STATE_READS ? -1 : plain_through(g, t, lo, hi, more);
}

static int32_t plain_find(const struct grammar *g, int32_t s)
{
    int32_t to = plain_through(g, s, 0x20, 0x21, 0);
    if (to < 0 || plain_through(g, s, 0x23, 0x5B, 0) != to ||
        plain_through(g, s, 0x5D, 0x7F, 0) != to || plain_through(g, s, 0xC2, 0xDF, 1) != to ||
        plain_second(g, s, 0xE0, 0xA0, 0xBF, 1) != to || plain_through(g, s, 0xE1, 0xEC, 2) != to ||
        plain_second(g, s, 0xED, 0x80, 0x9F, 1) != to || plain_through(g, s, 0xEE, 0xEF, 2) != to ||
        plain_second(g, s, 0xF0, 0x90, 0xBF, 2) != to || plain_through(g, s, 0xF1, 0xF3, 3) != to ||
        plain_second(g, s, 0xF4, 0x80, 0x8F, 2) != to)
        return -1;
    return to;
}

static int32_t plain_next(const struct grammar *g, int32_t s)
{
    int32_t *known = &g->cache->plain_next[s];
    if (*known == MASK_UNKNOWN)
        *known = plain_find(g, s);
    return *known;
}

/* No plain character can follow, whatever is below on the stack. */
static bool plain_ends(const struct grammar *g, int32_t s)
{
    const int32_t *next = g->next + (int64_t)s * g->n_classes;
    if (g->flags[s] & (STATE_ACCEPTS | STATE_CALLS))
        return false;
    for (int c = 0x20; c < 256; c++)
        if (c != '"' && c != '\\' && next[g->class_of[c]] >= 0)
            return false;
    return true;
}

/* Plain characters that fit from s on and no more: 1 or more, MASK_ENDLESS, or 0: not to be told so. */
static int32_t plain_height(const struct grammar *g, int32_t s)
{
    for (int32_t h = 0; h < MASK_ENDLESS; h++) {
        int32_t to = plain_next(g, s);
        if (to == s && g->flags[s] == STATE_READS)
            return MASK_ENDLESS;
        if (to < 0)
            return plain_ends(g, s) ? h : 0;
        if (g->flags[to] & (STATE_ACCEPTS | STATE_CALLS))
            return 0;
        s = to;
    }
    return MASK_ENDLESS;
}

/* The same inside a loop of plain characters, `left` of them. */
static int32_t plain_loop_height(const struct grammar *g, const struct grammar_loop *l,
                                 int64_t left)
{
    int32_t to = plain_next(g, l->start);
    if (to < 0 || !(g->flags[to] & STATE_ENDS) || !plain_ends(g, l->ret))
        return 0;
    return left > VOCAB_PLAIN_MAX ? MASK_ENDLESS : (int32_t)left;
}

/* --- walks --- */

struct walk {
    const struct grammar *g;
    struct mask_cache *m;
    const struct grammar_vocab *v;
    struct vocab_scratch *found;
    int32_t n_ids, n_pops;
};

/* Both once each: places where calls end may lie inside one another. */
static void walk_accept(struct walk *w, int32_t token)
{
    for (; token >= 0; token = w->v->same[token]) {
        if (w->found->has_id[token / 32] >> token % 32 & 1)
            return;
        w->found->has_id[token / 32] |= 1u << token % 32;
        w->found->ids[w->n_ids++] = token;
    }
}

static void walk_pop(struct walk *w, int32_t node)
{
    if (w->found->has_pop[node / 32] >> node % 32 & 1)
        return;
    w->found->has_pop[node / 32] |= 1u << node % 32;
    w->found->pops[w->n_pops++] = node;
}

static void walk_clear(struct walk *w)
{
    for (int32_t i = 0; i < w->n_ids; i++)
        w->found->has_id[w->found->ids[i] / 32] = 0;
    for (int32_t i = 0; i < w->n_pops; i++)
        w->found->has_pop[w->found->pops[i] / 32] = 0;
    w->n_ids = w->n_pops = 0;
}

/* The nodes [from, to), which lie below depth `base`, where `set` stands. */
static void walk_nodes(struct walk *w, int32_t from, int32_t to, int32_t base, int32_t set)
{
    int32_t at[GRAMMAR_TOKEN_BYTES + 1];
    const struct vocab_node *nodes = w->v->nodes;
    at[base] = set;
    for (int32_t i = from; i < to;) {
        const struct vocab_node *x = &nodes[i];
        int32_t s = at[x->depth - 1];
        int32_t next = w->m->sets[s].next[w->g->class_of[x->byte]];
        if (next == MASK_UNKNOWN) {
            next = mask_move(w->g, w->m, s, x->byte);
            if (w->m->is_full)
                return;
        }
        if (next < 0) {
            i = x->skip;
            continue;
        }
        walk_accept(w, x->token);
        if (w->m->sets[next].is_bottom)
            walk_pop(w, i);
        at[x->depth] = next;
        i = w->m->sets[next].n > 0 ? i + 1 : x->skip;
    }
}

static void walk_trie(struct walk *w, int trie, int32_t set)
{
    int32_t root = w->v->roots[trie];
    walk_nodes(w, root + 1, w->v->nodes[root].skip, 0, set);
}

/* --- entries --- */

static int32_t mask_find(const struct mask_cache *m, struct mask_key key, uint64_t *slot)
{
    uint64_t mask = 2 * MASK_ENTRIES - 1;
    uint64_t h = ((uint64_t)(uint32_t)key.below * 0x9E3779B97F4A7C15u) ^
                 ((uint64_t)(uint32_t)key.ret * 0xC2B2AE3D27D4EB4Fu) ^
                 ((uint64_t)key.count * 0x165667B19E3779F9u);
    for (h ^= h >> 29; m->entry_slots[h & mask]; h++) {
        const struct mask_key *k = &m->entries[m->entry_slots[h & mask] - 1].key;
        if (k->below == key.below && k->ret == key.ret && k->count == key.count)
            return m->entry_slots[h & mask] - 1;
    }
    *slot = h & mask;
    return MASK_NO_ENTRY;
}

/* Keep what the walk has found, and `plain` (a bit set, or NULL). */
static int32_t mask_keep(struct walk *w, struct mask_key key, uint64_t slot, const uint32_t *plain)
{
    struct mask_cache *m = w->m;
    size_t words = ((size_t)w->v->n_tokens + 31) / 32;
    if (m->n_entries == MASK_ENTRIES || m->is_full) {
        m->is_full = true;
        return MASK_NO_ENTRY;
    }
    struct mask_entry e = { .key = key, .n_ids = w->n_ids, .n_pops = w->n_pops };
    if (plain || (size_t)w->n_ids > words) {
        e.bits = mask_alloc(m, words * sizeof(*e.bits));
        if (e.bits && plain)
            memcpy(e.bits, plain, words * sizeof(*e.bits));
        else if (e.bits)
            memset(e.bits, 0, words * sizeof(*e.bits));
        for (int32_t i = 0; e.bits && i < w->n_ids; i++)
            e.bits[w->found->ids[i] / 32] |= 1u << w->found->ids[i] % 32;
    } else if (w->n_ids > 0) {
        e.ids = mask_alloc(m, (size_t)w->n_ids * sizeof(*e.ids));
        if (e.ids)
            memcpy(e.ids, w->found->ids, (size_t)w->n_ids * sizeof(*e.ids));
    }
    if (w->n_pops > 0)
        e.pops = mask_alloc(m, (size_t)w->n_pops * sizeof(*e.pops));
    if (m->is_full)
        return MASK_NO_ENTRY;
    if (e.pops)
        memcpy(e.pops, w->found->pops, (size_t)w->n_pops * sizeof(*e.pops));
    m->entries[m->n_entries] = e;
    m->entry_slots[slot] = ++m->n_entries;
    return m->n_entries - 1;
}

/* A count that tells the same tokens apart: only what a token can reach matters. */
static int64_t mask_count(const struct grammar *g, struct stack_frame f)
{
    if (f.ret >= 0)
        return 0;
    const struct grammar_loop *l = &g->loops[~f.ret];
    if (l->set >= 0)
        return f.count;
    int32_t far = GRAMMAR_TOKEN_BYTES + 2;
    if ((int64_t)l->min - f.count > far)
        return l->min - far - 1;
    if (f.count >= l->min && (int64_t)l->max - f.count > far)
        return l->min;
    return f.count;
}

/* What a head's state allows by itself. */
static int32_t mask_first(struct walk *w, int32_t state)
{
    uint64_t slot = 0;
    struct mask_key key = { -1, state, 0 };
    int32_t found = mask_find(w->m, key, &slot);
    if (found >= 0)
        return found;
    struct stack_heads h = { .n = 1, .at = { { state, 0 } } };
    int32_t set = mask_set(w->g, w->m, &h), height = plain_height(w->g, state);
    if (set < 0)
        return MASK_NO_ENTRY;
    if (height == 0)
        walk_trie(w, 0, set);
    walk_trie(w, 1, set);
    return mask_keep(w, key, slot,
                     height == 0              ? NULL
                     : height == MASK_ENDLESS ? w->v->plain[VOCAB_PLAIN_MAX]
                                              : w->v->plain[height]);
}

/* A head that stands at the start of a plain loop's body: body and frame in one, so that what is below is the loop's own. */
static int32_t mask_first_loop(struct walk *w, struct stack_frame f, int32_t height)
{
    uint64_t slot = 0;
    struct mask_key key = { -2, f.ret, mask_count(w->g, f) };
    int32_t found = mask_find(w->m, key, &slot);
    if (found >= 0)
        return found;
    struct stack_heads h = { .n = 0 };
    stack_body(w->g, &w->m->pool, &h, ~f.ret, key.count);
    int32_t set = mask_set(w->g, w->m, &h);
    if (set < 0)
        return MASK_NO_ENTRY;
    walk_trie(w, 1, set);
    return mask_keep(w, key, slot, w->v->plain[height == MASK_ENDLESS ? VOCAB_PLAIN_MAX : height]);
}

/* What follows where the entry's calls have ended, by the frame below. */
static int32_t mask_below(struct walk *w, int32_t entry, struct stack_frame f)
{
    uint64_t slot = 0;
    struct mask_key key = { entry, f.ret, mask_count(w->g, f) };
    int32_t found = mask_find(w->m, key, &slot);
    if (found >= 0)
        return found;
    struct stack_heads h = { .n = 0 };
    f.count = key.count;
    stack_pop(w->g, &w->m->pool, &h, f, 0);
    w->m->is_over = w->m->is_over || h.is_over;
    int32_t set = mask_set(w->g, w->m, &h);
    const struct mask_entry *e = &w->m->entries[entry];
    for (int32_t i = 0; set >= 0 && i < e->n_pops && !w->m->is_full; i++) {
        const struct vocab_node *x = &w->v->nodes[e->pops[i]];
        if (h.is_bottom)
            walk_pop(w, e->pops[i]);
        if (h.n > 0)
            walk_nodes(w, e->pops[i] + 1, x->skip, x->depth, set);
    }
    return set < 0 ? MASK_NO_ENTRY : mask_keep(w, key, slot, NULL);
}

/* --- masks --- */

static void mask_union(const struct mask_entry *e, size_t words, uint32_t *mask)
{
    for (size_t i = 0; e->bits && i < words; i++)
        mask[i] |= e->bits[i];
    for (int32_t i = 0; e->ids && i < e->n_ids; i++)
        mask[e->ids[i] / 32] |= 1u << e->ids[i] % 32;
}

static bool mask_head(struct walk *w, const struct stack_pool *pool, struct stack_head head,
                      uint32_t *mask)
{
    const struct grammar *g = w->g;
    size_t words = ((size_t)g->vocab->n_tokens + 31) / 32;
    int32_t frame = head.frame, entry;
    const struct stack_frame *f = &pool->frames[frame];
    const struct grammar_loop *l = frame > 0 && f->ret < 0 ? &g->loops[~f->ret] : NULL;
    int32_t height =
        l && l->set < 0 && l->start == head.state && g->flags[head.state] == STATE_READS
            ? plain_loop_height(g, l, (int64_t)l->max - f->count)
            : 0;
    if (height > 0) {
        entry = mask_first_loop(w, *f, height);
        frame = f->parent;
    } else {
        entry = mask_first(w, head.state);
    }
    while (entry >= 0) {
        walk_clear(w);
        mask_union(&g->cache->entries[entry], words, mask);
        if (g->cache->entries[entry].n_pops == 0 || frame == 0)
            return !g->cache->is_over;
        entry = mask_below(w, entry, pool->frames[frame]);
        frame = pool->frames[frame].parent;
    }
    walk_clear(w);
    return false;
}

static bool mask_is_wide(const struct grammar *g, int32_t state)
{
    int n = 0;
    for (int c = 0; c < 256; c++)
        n += g->next[(int64_t)state * g->n_classes + g->class_of[c]] >= 0;
    return n >= MASK_WIDE;
}

void mask_warm(struct grammar *g, const struct grammar_state *start)
{
    struct vocab_scratch scratch;
    struct walk w = { .g = g, .m = g->cache, .v = g->vocab, .found = &scratch };
    int64_t end = clock_thread_us() + MASK_WARM_US;
    uint32_t *mask =
        mem_try_array(MEM_CAT_GRAMMAR, (size_t)g->vocab->n_tokens / 32 + 1, sizeof(*mask));
    /* Of its own: the engine's masks do not wait for it. */
    bool is_fine = vocab_scratch_init(&scratch, g->vocab) && mask;
    for (int32_t i = 0; i < start->heads.n && is_fine; i++)
        is_fine = mask_head(&w, &start->pool, start->heads.at[i], mask);
    for (int32_t s = 0; s < g->n_states && is_fine; s++) {
        if (!mask_is_wide(g, s))
            continue;
        is_fine =
            mask_first(&w, s) >= 0 && g->cache->used < g->cache->max / 2 && clock_thread_us() < end;
        walk_clear(&w);
    }
    vocab_scratch_release(&scratch);
    mem_free(MEM_CAT_GRAMMAR, mask);
    if (g->cache->is_full || g->cache->is_over)
        mask_forget(g->cache);
}

/* 0, 1, or 2 for more; the id of the first. */
static int32_t mask_size(const uint32_t *mask, size_t words, int32_t *first)
{
    int32_t n = 0;
    for (size_t i = 0; i < words && n < 2; i++) {
        if (mask[i] == 0)
            continue;
        if (n == 0)
            *first = (int32_t)(i * 32) + __builtin_ctz(mask[i]);
        n += mask[i] & (mask[i] - 1) ? 2 : 1;
    }
    return n < 2 ? n : 2;
}

int32_t grammar_mask(struct grammar_state *s, uint32_t *mask, int32_t *only)
{
    struct grammar *g = s->g;
    BUG_ON(!g->vocab);
    size_t words = ((size_t)g->vocab->n_tokens + 31) / 32;
    int32_t first = -1;
    bool is_fine = false;
    struct walk w = { .g = g, .m = g->cache, .v = g->vocab, .found = &g->vocab->scratch };
    pthread_mutex_lock(&g->lock);
    pthread_mutex_lock(&g->vocab->lock);
    for (int tries = 0; tries < 2 && !is_fine; tries++) {
        if (g->cache->is_full || g->cache->is_over)
            mask_forget(g->cache);
        memset(mask, 0, words * sizeof(*mask));
        is_fine = true;
        for (int32_t i = 0; i < s->heads.n && is_fine; i++)
            is_fine = mask_head(&w, &s->pool, s->heads.at[i], mask);
    }
    pthread_mutex_unlock(&g->vocab->lock);
    pthread_mutex_unlock(&g->lock);
    int32_t n = is_fine ? mask_size(mask, words, &first) : -1;
    if (only)
        *only = n == 1 ? first : -1;
    return n;
}
