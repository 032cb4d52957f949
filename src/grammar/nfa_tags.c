/* nfa_tags.c - text around tags. Free text is UTF-8, with the control tokens that may stand in it, and holds no trigger: the automaton that
 * looks for all of them at once (Aho and Corasick 1975, "Efficient string matching") reads it together with one for characters, and where
 * a trigger is complete the tags that begin with it follow. A trigger within a control token's spelling is none. */
#include "grammar/grammar_int.h"

#include <string.h>

struct tags {
    struct nfa *a;
    const struct expr *e;
    int32_t n;            /* nodes: prefixes of triggers, the empty one first */
    int32_t (*next)[256]; /* [n] by byte; -1 = none until they are filled */
    int32_t *fails,
        *found; /* [n] the longest other prefix that it ends with; trigger that is complete, or -1 */
    int32_t *order; /* [n] nodes by length */
    int32_t (*units)
        [256]; /* [n_units] by byte: places in a character or control token, the first one before it; -1 = none */
    int32_t n_units;
    int32_t **
        states; /* [n_units][n] of the NFA, 0 = none yet; a unit's are made when the first is asked for */
    int64_t *todo; /* [n_todo] pairs whose moves are missing: unit * n + node */
    int32_t n_todo, cap_todo;
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

static void tags_open(struct tags *t, int32_t trigger, int32_t from, int32_t back)
{
    for (int32_t i = 0; i < t->e->n; i++) {
        const struct expr_tag *tag = &t->e->tags[i];
        size_t skip = t->e->triggers[trigger].len;
        if (tag->trigger != trigger)
            continue;
        int32_t inside = nfa_state(t->a);
        nfa_emit(t->a, expr_bytes(t->a->b, tag->begin + skip, tag->n_begin - skip), from, inside);
        nfa_emit(t->a, tag->rest, inside, back);
    }
}

/* --- characters and control tokens --- */

static void tags_units(struct tags *t, int32_t from, int lo, int hi, int32_t to)
{
    for (int c = lo; c <= hi; c++)
        t->units[from][c] = to;
}

static int32_t tags_unit(struct tags *t)
{
    memset(t->units[t->n_units], 0xFF, sizeof(t->units[t->n_units]));
    return t->n_units++;
}

/* UTF-8 (RFC 3629): how many bytes are left, and what the next one may be. */
static void tags_add_utf8(struct tags *t)
{
    enum { START, ONE, TWO, THREE, E0, ED, F0, F4, N };
    for (int i = 0; i < N; i++)
        tags_unit(t);
    tags_units(t, START, 0x00, 0x7F, START);
    tags_units(t, START, 0xC2, 0xDF, ONE);
    tags_units(t, START, 0xE0, 0xEF, TWO);
    tags_units(t, START, 0xE0, 0xE0, E0);
    tags_units(t, START, 0xED, 0xED, ED);
    tags_units(t, START, 0xF0, 0xF0, F0);
    tags_units(t, START, 0xF1, 0xF3, THREE);
    tags_units(t, START, 0xF4, 0xF4, F4);
    tags_units(t, ONE, 0x80, 0xBF, START);
    tags_units(t, TWO, 0x80, 0xBF, ONE);
    tags_units(t, THREE, 0x80, 0xBF, TWO);
    tags_units(t, E0, 0xA0, 0xBF, ONE);
    tags_units(t, ED, 0x80, 0x9F, ONE);
    tags_units(t, F0, 0x90, 0xBF, TWO);
    tags_units(t, F4, 0x80, 0x8F, TWO);
}

/* The control tokens in a text. */
static void tags_add_marks(struct tags *t, const struct grammar_bytes *text)
{
    const char *end = text->data + text->len, *at = text->data;
    while (at < end && (at = memchr(at, 0xFF, (size_t)(end - at)))) {
        const char *last = memchr(at, 0xFE, (size_t)(end - at));
        int32_t unit = 0;
        for (; last && at < last; at++) {
            int32_t *next = &t->units[unit][(uint8_t)*at];
            *next = *next < 0 ? tags_unit(t) : *next;
            unit = *next;
        }
        if (!last)
            return;
        t->units[unit][0xFE] = 0;
    }
}

static void tags_make_units(struct tags *t)
{
    const struct expr *e = t->e;
    size_t total = 8;
    for (int32_t i = 0; i < e->n_triggers; i++)
        total += e->triggers[i].len;
    for (int32_t i = 0; i < e->n_marks; i++)
        total += e->marks[i].len;
    t->units = build_alloc(t->a->b, total * sizeof(*t->units));
    tags_add_utf8(t);
    for (int32_t i = 0; i < e->n_triggers; i++)
        tags_add_marks(t, &e->triggers[i]);
    for (int32_t i = 0; i < e->n_marks; i++)
        tags_add_marks(t, &e->marks[i]);
    t->states = build_alloc(t->a->b, (size_t)t->n_units * sizeof(*t->states));
}

/* --- the whole --- */

static int32_t tags_state(struct tags *t, int32_t node, int32_t unit)
{
    struct build *b = t->a->b;
    if (!t->states[unit])
        t->states[unit] = build_alloc(b, (size_t)t->n * sizeof(**t->states));
    int32_t *s = &t->states[unit][node];
    if (*s > 0)
        return *s;
    if (t->n_todo == t->cap_todo) {
        t->cap_todo = t->cap_todo ? 2 * t->cap_todo : 256;
        t->todo = mem_realloc(MEM_CAT_GRAMMAR, t->todo, (size_t)t->cap_todo * sizeof(*t->todo));
    }
    t->todo[t->n_todo++] = (int64_t)unit * t->n + node;
    return *s = nfa_state(t->a);
}

/* Where byte c leads; -1: nowhere. */
static int32_t tags_go(struct tags *t, int32_t node, int32_t unit, int c, const int32_t *opened)
{
    int32_t to = t->next[node][c], next = t->units[unit][c];
    if (next < 0)
        return -1;
    return t->found[to] >= 0 && next == 0 ? opened[t->found[to]] : tags_state(t, to, next);
}

static void tags_emit(struct tags *t, int32_t node, int32_t unit, const int32_t *opened)
{
    int32_t from = tags_state(t, node, unit);
    for (int c = 0, end; c < 256; c = end) {
        int32_t to = tags_go(t, node, unit, c, opened);
        for (end = c + 1; end < 256 && tags_go(t, node, unit, end, opened) == to; end++)
            ;
        if (to >= 0)
            nfa_byte(t->a, from, (uint8_t)c, (uint8_t)(end - 1), to);
    }
}

void nfa_emit_tags(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    struct tags t = { .a = a, .e = e };
    size_t total = 1;
    for (int32_t i = 0; i < e->n_triggers; i++)
        total += e->triggers[i].len;
    t.next = build_alloc(a->b, total * sizeof(*t.next));
    t.fails = build_alloc(a->b, 3 * total * sizeof(*t.fails));
    t.found = t.fails + total;
    t.order = t.found + total;
    int32_t *opened = build_alloc(a->b, (size_t)(e->n_triggers + 1) * sizeof(*opened));
    tags_node(&t);
    for (int32_t i = 0; i < e->n_triggers; i++)
        tags_add(&t, i);
    tags_fill(&t);
    tags_make_units(&t);
    nfa_eps(a, from, tags_state(&t, 0, 0));
    for (int32_t i = 0; i < e->n_triggers; i++) {
        opened[i] = nfa_state(a);
        tags_open(&t, i, opened[i], tags_state(&t, 0, 0));
    }
    while (t.n_todo > 0 && !a->b->code) {
        int64_t pair = t.todo[--t.n_todo];
        int32_t node = (int32_t)(pair % t.n), unit = (int32_t)(pair / t.n);
        if (unit == 0)
            nfa_eps(a, tags_state(&t, node, unit), to);
        tags_emit(&t, node, unit, opened);
        a->b->work += 256;
    }
    mem_free(MEM_CAT_GRAMMAR, t.todo);
}
