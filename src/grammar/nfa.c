/* nfa.c - the automaton with spontaneous moves that an expression stands for.
 *
 * Every emission adds edges out of `from` and into `to` and states of its own between, so that what begins and ends at one state may
 * stand in a loop. Rules that are small, or used once, are written out in place; others are called. */
#include "base/utf8.h"
#include "grammar/grammar_int.h"

#include <string.h>

#define NFA_INLINE_DEPTH 100
#define NFA_CALL_SIZE    100
#define NFA_EXPAND_MAX   1200  /* states of an expanded repetition */
#define NFA_WHOLE_MAX    40000 /* the same where nothing can be counted */

void nfa_init(struct nfa *a, struct build *b)
{
    *a = (struct nfa){ .b = b };
}

void nfa_release(struct nfa *a)
{
    mem_free(MEM_CAT_GRAMMAR, a->first);
    mem_free(MEM_CAT_GRAMMAR, a->edges);
    *a = (struct nfa){ 0 };
}

int32_t nfa_state(struct nfa *a)
{
    if (a->n_states >= BUILD_NFA_STATES) {
        build_fail(a->b, ERR_FULL, "the grammar is too large: over %d states", BUILD_NFA_STATES);
        return a->n_states - 1;
    }
    if (a->n_states == a->cap_states) {
        a->cap_states = a->cap_states ? 2 * a->cap_states : 256;
        a->first =
            mem_realloc(MEM_CAT_GRAMMAR, a->first, (size_t)a->cap_states * sizeof(*a->first));
    }
    a->first[a->n_states] = -1;
    return a->n_states++;
}

void nfa_edge(struct nfa *a, int32_t from, struct nfa_edge edge)
{
    if (a->n_edges >= 8 * BUILD_NFA_STATES) {
        build_fail(a->b, ERR_FULL, "the grammar is too large: over %d moves", 8 * BUILD_NFA_STATES);
        return;
    }
    if (a->n_edges == a->cap_edges) {
        a->cap_edges = a->cap_edges ? 2 * a->cap_edges : 512;
        a->edges = mem_realloc(MEM_CAT_GRAMMAR, a->edges, (size_t)a->cap_edges * sizeof(*a->edges));
    }
    edge.next = a->first[from];
    a->edges[a->n_edges] = edge;
    a->first[from] = a->n_edges++;
}

void nfa_eps(struct nfa *a, int32_t from, int32_t to)
{
    if (from != to)
        nfa_edge(a, from, (struct nfa_edge){ .kind = NFA_EDGE_EPS, .target = to });
}

void nfa_byte(struct nfa *a, int32_t from, uint8_t lo, uint8_t hi, int32_t to)
{
    nfa_edge(a, from,
             (struct nfa_edge){ .kind = NFA_EDGE_BYTES, .lo = lo, .hi = hi, .target = to });
}

static void nfa_emit_bytes(struct nfa *a, const char *bytes, size_t n, int32_t from, int32_t to)
{
    for (size_t i = 0; i < n; i++) {
        int32_t next = i + 1 == n ? to : nfa_state(a);
        nfa_byte(a, from, (uint8_t)bytes[i], (uint8_t)bytes[i], next);
        from = next;
    }
}

static void nfa_emit_seq(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < e->n && !a->b->code; i++) {
        int32_t next = i + 1 == e->n ? to : nfa_state(a);
        nfa_emit(a, e->kids[i], from, next);
        from = next;
    }
}

/* --- repetition --- */

static int32_t nfa_new_loop(struct build *b, struct build_loop l)
{
    for (int32_t i = 0; i < b->n_loops; i++)
        if (b->loops[i].rule == l.rule && b->loops[i].min == l.min && b->loops[i].max == l.max &&
            b->loops[i].list == l.list)
            return i;
    if (b->n_loops == b->cap_loops) {
        b->cap_loops = b->cap_loops ? 2 * b->cap_loops : 16;
        b->loops = mem_realloc(MEM_CAT_GRAMMAR, b->loops, (size_t)b->cap_loops * sizeof(*b->loops));
    }
    b->loops[b->n_loops] = l;
    return b->n_loops++;
}

/* A rule that holds just that expression; the same one for the same expression. */
static int32_t nfa_rule_of(struct build *b, const struct expr *x)
{
    if (x->kind == EXPR_RULE)
        return x->rule;
    for (int32_t i = b->n_rules - 1; i >= 0; i--)
        if (b->rules[i].e == x)
            return i;
    int32_t r = build_new_rule(b, "a repetition");
    build_set_rule(b, r, x);
    b->rules[r].is_recursive = false;
    return r;
}

void nfa_emit_repeat(struct nfa *a, const struct expr *x, int64_t min, int64_t max, int32_t from,
                     int32_t to)
{
    int64_t copies = max == EXPR_INF ? min + 1 : max;
    int64_t size = expr_full_size(a->b, x);
    int64_t most = a->is_whole ? NFA_WHOLE_MAX : NFA_EXPAND_MAX;
    if (copies > 2 && (copies > most || size * copies > most)) {
        if (max != EXPR_INF && max > INT32_MAX - 1)
            max = INT32_MAX - 1; /* no text is that long */
        int32_t loop = nfa_new_loop(
            a->b, (struct build_loop){ .rule = nfa_rule_of(a->b, x), .min = min, .max = max });
        nfa_edge(a, from, (struct nfa_edge){ .kind = NFA_EDGE_LOOP, .arg = loop, .target = to });
        return;
    }
    for (int64_t i = 0; i < min && !a->b->code; i++) {
        int32_t next = i + 1 == min && max == min ? to : nfa_state(a);
        nfa_emit(a, x, from, next);
        from = next;
    }
    if (max == EXPR_INF) {
        int32_t middle = nfa_state(a);
        nfa_eps(a, from, middle);
        nfa_emit(a, x, middle, middle);
        nfa_eps(a, middle, to);
        return;
    }
    for (int64_t i = min; i < max && !a->b->code; i++) {
        int32_t next = i + 1 == max ? to : nfa_state(a);
        nfa_eps(a, from, to);
        nfa_emit(a, x, from, next);
        from = next;
    }
    if (max == min && min == 0)
        nfa_eps(a, from, to);
}

/* --- lists --- */

/* The items of a list that has `rest`: from the state before one is written (`item`) to the end. */
static void nfa_emit_rest(struct nfa *a, const struct expr *e, int32_t item, int32_t to)
{
    int32_t at = nfa_state(a);
    const struct expr *rest = e->rest;
    bool is_twice = e->max != 1 && (e->max != EXPR_INF || e->min > 1);
    if (is_twice && expr_full_size(a->b, rest) > NFA_CALL_SIZE) {
        int32_t rule =
            build_new_rule(a->b, "an item"); /* nested lists would double at each level */
        build_set_rule(a->b, rule, rest);
        rest = expr_rule(a->b, rule);
    }
    nfa_emit(a, rest, item, at);
    if (e->max == EXPR_INF && e->min <= 1) {
        nfa_emit(a, e->sep, at, item);
        nfa_eps(a, at, to);
        return;
    }
    if (e->max == 1) {
        nfa_eps(a, at, to);
        return;
    }
    int64_t min = e->min > 1 ? e->min - 1 : 0, max = e->max == EXPR_INF ? EXPR_INF : e->max - 1;
    const struct expr *more = expr_seq2(a->b, e->sep, rest);
    nfa_emit_repeat(a, more, min, max, at, to);
}

/* Counted as a loop is: an automaton of every order would have a state for each subset. */
static void nfa_emit_set(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    struct build *b = a->b;
    struct build_loop l = { .rule = -1, .min = e->min, .max = e->max, .list = e, .rest_rule = -1 };
    l.items = build_alloc(b, (size_t)(e->n + 1) * sizeof(*l.items));
    for (int32_t i = 0; i < e->n; i++)
        l.items[i] = nfa_rule_of(b, e->items[i].e);
    l.sep_rule = nfa_rule_of(b, e->sep);
    if (e->rest)
        l.rest_rule = nfa_rule_of(b, e->rest);
    if (b->code)
        return;
    int32_t loop = nfa_new_loop(b, l);
    nfa_edge(a, from, (struct nfa_edge){ .kind = NFA_EDGE_LOOP, .arg = loop, .target = to });
}

void nfa_emit_list(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    if (e->is_any_order) {
        nfa_emit_set(a, e, from, to);
        return;
    }
    int32_t none = from, some = -1; /* states: nothing is written yet; something is */
    for (int32_t i = 0; i < e->n && !a->b->code; i++) {
        int32_t item = nfa_state(a), after = nfa_state(a);
        if (none >= 0)
            nfa_eps(a, none, item);
        if (some >= 0)
            nfa_emit(a, e->sep, some, item);
        nfa_emit(a, e->items[i].e, item, after);
        if (some >= 0 && e->items[i].is_optional)
            nfa_eps(a, some, after);
        if (!e->items[i].is_optional)
            none = -1;
        some = after;
    }
    bool may_end = !e->rest || e->min == 0;
    if (e->rest) {
        int32_t item = nfa_state(a);
        if (none >= 0)
            nfa_eps(a, none, item);
        if (some >= 0)
            nfa_emit(a, e->sep, some, item);
        nfa_emit_rest(a, e, item, to);
    }
    if (may_end && none >= 0 && !e->needs_one)
        nfa_eps(a, none, to);
    if (may_end && some >= 0)
        nfa_eps(a, some, to);
}

/* --- rules --- */

static void nfa_emit_rule(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    struct build_rule *r = &a->b->rules[e->rule];
    if (r->is_inlined && a->inline_depth < NFA_INLINE_DEPTH) {
        const char *where = a->b->where;
        a->inline_depth++;
        a->b->where = r->name[0] == '#' ? r->name : where;
        nfa_emit(a, r->e, from, to);
        a->b->where = where;
        a->inline_depth--;
        return;
    }
    nfa_edge(a, from, (struct nfa_edge){ .kind = NFA_EDGE_CALL, .arg = e->rule, .target = to });
}

void nfa_emit(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    if (a->b->code)
        return;
    switch (e->kind) {
    case EXPR_NONE:
        break;
    case EXPR_EMPTY:
        nfa_eps(a, from, to);
        break;
    case EXPR_BYTES:
        nfa_emit_bytes(a, e->bytes, e->n_bytes, from, to);
        break;
    case EXPR_CLASS:
        nfa_emit_class(a, e, from, to);
        break;
    case EXPR_ANY:
        nfa_byte(a, from, 0, 255, to);
        break;
    case EXPR_SEQ:
        nfa_emit_seq(a, e, from, to);
        break;
    case EXPR_ALT:
        for (int32_t i = 0; i < e->n; i++)
            nfa_emit(a, e->kids[i], from, to);
        break;
    case EXPR_REPEAT:
        nfa_emit_repeat(a, e->kids[0], e->min, e->max, from, to);
        break;
    case EXPR_RULE:
        nfa_emit_rule(a, e, from, to);
        break;
    case EXPR_LIST:
        nfa_emit_list(a, e, from, to);
        break;
    case EXPR_AND:
    case EXPR_NOT:
    case EXPR_MOD:
        nfa_emit_algebra(a, e, from, to);
        break;
    case EXPR_TAGS:
        nfa_emit_tags(a, e, from, to);
        break;
    case EXPR_BEGIN:
    case EXPR_END:
        BUG_ON(true); /* regex.c has taken them out */
    }
}
