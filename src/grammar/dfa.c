/* dfa.c - deterministic automata by the subset construction. Calls are spontaneous moves that stay: a state has those of its members,
 * joined where they go through the same rule. */
#include "grammar/grammar_int.h"

#include <stdlib.h>
#include <string.h>

void dfa_init(struct dfa *d, int32_t n_classes)
{
    *d = (struct dfa){ .n_classes = n_classes };
}

void dfa_release(struct dfa *d)
{
    mem_free(MEM_CAT_GRAMMAR, d->next);
    mem_free(MEM_CAT_GRAMMAR, d->accepts);
    mem_free(MEM_CAT_GRAMMAR, d->calls_at);
    mem_free(MEM_CAT_GRAMMAR, d->n_calls_of);
    mem_free(MEM_CAT_GRAMMAR, d->calls);
    *d = (struct dfa){ 0 };
}

int32_t dfa_state(struct dfa *d, struct build *b)
{
    if (d->n_states >= BUILD_STATES) {
        build_fail(b, ERR_FULL, "the grammar is too large: over %d states", BUILD_STATES);
        return d->n_states - 1;
    }
    if (d->n_states == d->cap_states) {
        d->cap_states = d->cap_states ? 2 * d->cap_states : 64;
        size_t n = (size_t)d->cap_states;
        d->next =
            mem_realloc(MEM_CAT_GRAMMAR, d->next, n * (size_t)d->n_classes * sizeof(*d->next));
        d->accepts = mem_realloc(MEM_CAT_GRAMMAR, d->accepts, n * sizeof(*d->accepts));
        d->calls_at = mem_realloc(MEM_CAT_GRAMMAR, d->calls_at, n * sizeof(*d->calls_at));
        d->n_calls_of = mem_realloc(MEM_CAT_GRAMMAR, d->n_calls_of, n * sizeof(*d->n_calls_of));
    }
    int32_t s = d->n_states++;
    for (int32_t c = 0; c < d->n_classes; c++)
        d->next[(int64_t)s * d->n_classes + c] = -1;
    d->accepts[s] = false;
    d->calls_at[s] = d->n_calls_of[s] = 0;
    return s;
}

void nfa_mark_cuts(const struct nfa *a, bool cuts[257])
{
    cuts[0] = cuts[256] = true;
    for (int32_t i = 0; i < a->n_edges; i++)
        if (a->edges[i].kind == NFA_EDGE_BYTES) {
            cuts[a->edges[i].lo] = true;
            cuts[a->edges[i].hi + 1] = true;
        }
}

int32_t dfa_classes(const bool cuts[257], uint8_t class_of[256])
{
    int32_t n = 0;
    for (int c = 0; c < 256; c++) {
        n += c > 0 && cuts[c];
        class_of[c] = (uint8_t)n;
    }
    return n + 1;
}

/* --- sets of states --- */

struct subset {
    struct dfa *d;
    const struct nfa *a;
    struct build *b;
    int32_t accept;
    const uint8_t *class_of;
    uint32_t *stamps, stamp; /* [a->n_states] */
    int32_t *set, n;         /* being made: sorted once complete */
    int32_t *todo;
    /* states of d, numbered from `first`: their members are members[at[i], at[i + 1]) */
    int32_t first, n_sets, cap_sets, cap_members;
    int32_t *members, *at;
    int32_t *slots, n_slots; /* hash table of sets, number + 1 */
    int32_t **of_class;      /* [n_classes] targets */
    int32_t *n_of, *cap_of;
};

static bool subset_matters(const struct subset *u, int32_t s)
{
    if (s == u->accept)
        return true;
    for (int32_t i = u->a->first[s]; i >= 0; i = u->a->edges[i].next)
        if (u->a->edges[i].kind != NFA_EDGE_EPS)
            return true;
    return false;
}

static void subset_begin(struct subset *u)
{
    u->stamp++;
    u->n = 0;
}

/* s and what it can become by spontaneous moves; only states that do something are members. */
static void subset_add(struct subset *u, int32_t s)
{
    int32_t n_todo = 0;
    if (u->stamps[s] == u->stamp)
        return;
    u->stamps[s] = u->stamp;
    u->todo[n_todo++] = s;
    while (n_todo > 0) {
        s = u->todo[--n_todo];
        if (subset_matters(u, s))
            u->set[u->n++] = s;
        u->b->work++;
        for (int32_t i = u->a->first[s]; i >= 0; i = u->a->edges[i].next) {
            const struct nfa_edge *e = &u->a->edges[i];
            if (e->kind != NFA_EDGE_EPS || u->stamps[e->target] == u->stamp)
                continue;
            u->stamps[e->target] = u->stamp;
            u->todo[n_todo++] = e->target;
        }
    }
}

static int subset_compare(const void *x, const void *y)
{
    const int32_t *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

static uint64_t subset_hash(const int32_t *set, int32_t n)
{
    uint64_t h = 14695981039346656037u;
    for (int32_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)set[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static void subset_rehash(struct subset *u)
{
    int32_t n = u->n_slots ? 2 * u->n_slots : 256;
    mem_free(MEM_CAT_GRAMMAR, u->slots);
    u->slots = mem_alloc(MEM_CAT_GRAMMAR, (size_t)n * sizeof(*u->slots));
    u->n_slots = n;
    for (int32_t i = 0; i < u->n_sets; i++) {
        uint64_t h = subset_hash(u->members + u->at[i], u->at[i + 1] - u->at[i]);
        while (u->slots[h & (uint64_t)(n - 1)])
            h++;
        u->slots[h & (uint64_t)(n - 1)] = i + 1;
    }
}

static void subset_store(struct subset *u)
{
    if (u->n_sets + 2 > u->cap_sets) {
        u->cap_sets = u->cap_sets ? 2 * u->cap_sets : 128;
        u->at = mem_realloc(MEM_CAT_GRAMMAR, u->at, (size_t)u->cap_sets * sizeof(*u->at));
        if (u->n_sets == 0)
            u->at[0] = 0;
    }
    int32_t from = u->at[u->n_sets];
    if (from + u->n >= u->cap_members) {
        u->cap_members = 2 * (from + u->n) + 256;
        u->members =
            mem_realloc(MEM_CAT_GRAMMAR, u->members, (size_t)u->cap_members * sizeof(*u->members));
    }
    if (u->n)
        memcpy(u->members + from, u->set, (size_t)u->n * sizeof(*u->set));
    u->at[++u->n_sets] = from + u->n;
}

/* The state of d for the set that was made. */
static int32_t subset_state(struct subset *u)
{
    if (u->n > 1)
        qsort(u->set, (size_t)u->n, sizeof(*u->set), subset_compare);
    if (3 * u->n_sets >= 2 * u->n_slots)
        subset_rehash(u);
    uint64_t h = subset_hash(u->set, u->n), mask = (uint64_t)(u->n_slots - 1);
    for (; u->slots[h & mask]; h++) {
        int32_t i = u->slots[h & mask] - 1, n = u->at[i + 1] - u->at[i];
        if (n == u->n && memcmp(u->members + u->at[i], u->set, (size_t)n * sizeof(*u->set)) == 0)
            return u->first + i;
    }
    int32_t s = dfa_state(u->d, u->b);
    if (u->b->code)
        return s;
    subset_store(u);
    u->slots[h & mask] = u->n_sets;
    for (int32_t i = 0; i < u->n; i++)
        u->d->accepts[s] = u->d->accepts[s] || u->set[i] == u->accept;
    return s;
}

/* --- moves --- */

static void subset_add_target(struct subset *u, int32_t class, int32_t target)
{
    if (u->n_of[class] > 0 && u->of_class[class][u->n_of[class] - 1] == target)
        return;
    if (u->n_of[class] == u->cap_of[class]) {
        u->cap_of[class] = u->cap_of[class] ? 2 * u->cap_of[class] : 16;
        u->of_class[class] = mem_realloc(MEM_CAT_GRAMMAR, u->of_class[class],
                                         (size_t)u->cap_of[class] * sizeof(**u->of_class));
    }
    u->of_class[class][u->n_of[class]++] = target;
}

static void subset_moves(struct subset *u, int32_t s)
{
    int32_t n_classes = u->d->n_classes;
    const int32_t *members = u->members + u->at[s - u->first];
    int32_t n = u->at[s - u->first + 1] - u->at[s - u->first];
    memset(u->n_of, 0, (size_t)n_classes * sizeof(*u->n_of));
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = u->a->first[members[i]]; k >= 0; k = u->a->edges[k].next) {
            const struct nfa_edge *e = &u->a->edges[k];
            for (int32_t c = u->class_of[e->lo];
                 e->kind == NFA_EDGE_BYTES && c <= u->class_of[e->hi]; c++)
                subset_add_target(u, c, e->target);
        }
    for (int32_t c = 0; c < n_classes && !u->b->code; c++) {
        if (u->n_of[c] == 0)
            continue;
        u->b->work += u->n_of[c];
        subset_begin(u);
        for (int32_t i = 0; i < u->n_of[c]; i++)
            subset_add(u, u->of_class[c][i]);
        int32_t to = subset_state(u);
        u->d->next[(int64_t)s * n_classes + c] = to;
    }
}

static void dfa_add_call(struct dfa *d, struct dfa_call call)
{
    if (d->n_calls == d->cap_calls) {
        d->cap_calls = d->cap_calls ? 2 * d->cap_calls : 64;
        d->calls = mem_realloc(MEM_CAT_GRAMMAR, d->calls, (size_t)d->cap_calls * sizeof(*d->calls));
    }
    d->calls[d->n_calls++] = call;
}

/* The calls of a state, those through one rule joined: what follows is the union of what follows each. */
static void subset_calls(struct subset *u, int32_t s)
{
    struct dfa *d = u->d;
    int32_t from = u->at[s - u->first], n = u->at[s - u->first + 1] - from;
    struct nfa_edge *calls = NULL;
    int32_t n_calls = 0, cap = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = u->a->first[u->members[from + i]]; k >= 0; k = u->a->edges[k].next) {
            if (u->a->edges[k].kind < NFA_EDGE_CALL)
                continue;
            if (n_calls == cap) {
                cap = cap ? 2 * cap : 8;
                calls = mem_realloc(MEM_CAT_GRAMMAR, calls, (size_t)cap * sizeof(*calls));
            }
            calls[n_calls++] = u->a->edges[k];
        }
    d->calls_at[s] = d->n_calls;
    for (int32_t i = 0; i < n_calls && !build_is_late(u->b); i++) {
        if (calls[i].target < 0)
            continue;
        subset_begin(u);
        for (int32_t k = i; k < n_calls; k++) {
            if (calls[k].target < 0 || calls[k].kind != calls[i].kind ||
                calls[k].arg != calls[i].arg)
                continue;
            subset_add(u, calls[k].target);
            if (k > i)
                calls[k].target = -1;
        }
        int32_t to = subset_state(u);
        dfa_add_call(d, (struct dfa_call){ .is_loop = calls[i].kind == NFA_EDGE_LOOP,
                                           .arg = calls[i].arg,
                                           .target = to });
    }
    d->n_calls_of[s] = d->n_calls - d->calls_at[s];
    mem_free(MEM_CAT_GRAMMAR, calls);
}

static void subset_release(struct subset *u)
{
    for (int32_t c = 0; c < u->d->n_classes; c++)
        mem_free(MEM_CAT_GRAMMAR, u->of_class[c]);
    mem_free(MEM_CAT_GRAMMAR, u->of_class);
    mem_free(MEM_CAT_GRAMMAR, u->n_of);
    mem_free(MEM_CAT_GRAMMAR, u->cap_of);
    mem_free(MEM_CAT_GRAMMAR, u->stamps);
    mem_free(MEM_CAT_GRAMMAR, u->set);
    mem_free(MEM_CAT_GRAMMAR, u->todo);
    mem_free(MEM_CAT_GRAMMAR, u->members);
    mem_free(MEM_CAT_GRAMMAR, u->at);
    mem_free(MEM_CAT_GRAMMAR, u->slots);
}

int32_t dfa_subset(struct dfa *d, const struct nfa *a, int32_t start, int32_t accept,
                   const uint8_t class_of[256])
{
    size_t n = (size_t)a->n_states, n_classes = (size_t)d->n_classes;
    if (a->b->code)
        return 0;
    struct subset u = {
        .d = d, .a = a, .b = a->b, .accept = accept, .class_of = class_of, .first = d->n_states
    };
    u.stamps = mem_alloc(MEM_CAT_GRAMMAR, n * sizeof(*u.stamps));
    u.set = mem_alloc(MEM_CAT_GRAMMAR, n * sizeof(*u.set));
    u.todo = mem_alloc(MEM_CAT_GRAMMAR, n * sizeof(*u.todo));
    u.of_class = mem_alloc(MEM_CAT_GRAMMAR, n_classes * sizeof(*u.of_class));
    u.n_of = mem_alloc(MEM_CAT_GRAMMAR, n_classes * sizeof(*u.n_of));
    u.cap_of = mem_alloc(MEM_CAT_GRAMMAR, n_classes * sizeof(*u.cap_of));
    subset_begin(&u);
    subset_add(&u, start);
    int32_t first = subset_state(&u);
    for (int32_t s = first; s < d->n_states && !build_is_late(a->b); s++) {
        subset_moves(&u, s);
        subset_calls(&u, s);
    }
    subset_release(&u);
    return first;
}
