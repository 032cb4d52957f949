/* nfa_tags.c - text around tags. Free text holds no trigger: the automaton that looks for all of them at once (Aho and Corasick 1975,
 * "Efficient string matching") reads it, and where a trigger is complete the tags that begin with it follow. */
#include "grammar/grammar_int.h"

#include <string.h>

struct tags {
    struct nfa *a;
    const struct expr *e;
    int32_t n;            /* nodes: prefixes of triggers, the empty one first */
    int32_t (*next)[256]; /* [n] by byte; -1 = none until they are filled */
    int32_t *fails,
        *found; /* [n] the longest other prefix that it ends with; trigger that is complete, or -1 */
    int32_t *order;  /* [n] nodes by length */
    int32_t *states; /* [n] of the NFA */
};

static int32_t tags_node(struct tags *t)
{
    memset(t->next[t->n], 0xFF, sizeof(t->next[t->n]));
    t->found[t->n] = -1;
    return t->n++;
}

static void tags_add(struct tags *t, int32_t trigger)
{
    const struct grammar_bytes *x = &t->e->triggers[trigger];
    int32_t at = 0;
    for (size_t i = 0; i < x->len; i++) {
        int32_t *next = &t->next[at][(uint8_t)x->data[i]];
        if (*next < 0) {
            int32_t node = tags_node(t);
            t->next[at][(uint8_t)x->data[i]] = node;
            at = node;
        } else {
            at = *next;
        }
    }
    if (t->found[at] < 0)
        t->found[at] = trigger;
}

/* Where no prefix goes on, its longest ending that is one does: shorter ones first. */
static void tags_fill(struct tags *t)
{
    int32_t n = 0;
    t->order[n++] = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t s = t->order[i], fail = t->fails[s];
        int32_t other = t->found[fail];
        if (s > 0 && other >= 0 && (t->found[s] < 0 || other < t->found[s]))
            t->found[s] = other;
        for (int c = 0; c < 256; c++) {
            int32_t to = t->next[s][c], by_fail = s > 0 ? t->next[fail][c] : 0;
            if (to < 0) {
                t->next[s][c] = by_fail;
                continue;
            }
            t->fails[to] = by_fail;
            t->order[n++] = to;
        }
    }
}

static void tags_open(struct tags *t, int32_t trigger, int32_t from, int32_t back, int32_t to)
{
    for (int32_t i = 0; i < t->e->n; i++) {
        const struct expr_tag *tag = &t->e->tags[i];
        size_t skip = t->e->triggers[trigger].len;
        if (tag->trigger != trigger)
            continue;
        int32_t inside = nfa_state(t->a);
        nfa_emit(t->a, expr_bytes(t->a->b, tag->begin + skip, tag->n_begin - skip), from, inside);
        nfa_emit(t->a, tag->rest, inside, t->e->stops_after_first ? to : back);
    }
}

static void tags_emit(struct tags *t, int32_t s, const int32_t *opened)
{
    for (int c = 0, end; c < 256; c = end) {
        int32_t to = t->next[s][c];
        for (end = c + 1; end < 256 && t->next[s][end] == to; end++)
            ;
        nfa_byte(t->a, t->states[s], (uint8_t)c, (uint8_t)(end - 1),
                 t->found[to] >= 0 ? opened[t->found[to]] : t->states[to]);
    }
}

void nfa_emit_tags(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    struct tags t = { .a = a, .e = e };
    size_t total = 1;
    for (int32_t i = 0; i < e->n_triggers; i++)
        total += e->triggers[i].len;
    t.next = build_alloc(a->b, total * sizeof(*t.next));
    t.fails = build_alloc(a->b, 4 * total * sizeof(*t.fails));
    t.found = t.fails + total;
    t.order = t.found + total;
    t.states = t.order + total;
    int32_t *opened = build_alloc(a->b, (size_t)(e->n_triggers + 1) * sizeof(*opened));
    tags_node(&t);
    for (int32_t i = 0; i < e->n_triggers; i++)
        tags_add(&t, i);
    tags_fill(&t);
    for (int32_t s = 0; s < t.n; s++)
        t.states[s] = nfa_state(a);
    for (int32_t i = 0; i < e->n_triggers; i++) {
        opened[i] = nfa_state(a);
        tags_open(&t, i, opened[i], t.states[0], to);
    }
    nfa_eps(a, from, t.states[0]);
    for (int32_t s = 0; s < t.n && !a->b->code; s++) {
        if (t.found[s] >= 0)
            continue;
        nfa_eps(a, t.states[s], to);
        tags_emit(&t, s, opened);
        a->b->work += 256;
    }
}
