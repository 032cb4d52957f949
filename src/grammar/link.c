/* link.c - from expressions to one automaton: which rules are called and which written out in place, the automata of those that are
 * called, and what of them can be part of a text at all. */
#include "grammar/grammar_int.h"

#include <string.h>

#define LINK_INLINE_SIZE 48    /* a rule of several uses is written out in place up to this size */
#define LINK_ONCE_SIZE   20000 /* one of a single use */

struct link {
    struct build *b;
    struct nfa *nfas;   /* [n] of the rules that are called */
    int32_t *rule_of;   /* [n] */
    int32_t *from, *to; /* [n] states of each NFA */
    int32_t *start;     /* [n] in d */
    int32_t n, cap;
    struct dfa d;
    bool *is_nullable, *is_live; /* [d.n_states] */
    struct grammar_loop *loops;  /* one for each call of a loop */
    int32_t n_loops, cap_loops;
    struct grammar_set *sets;
    int32_t n_sets;
};

/* --- rules --- */

static void link_visit(struct build *b, const struct expr *e, int depth);

static void link_visit_rule(struct build *b, int32_t rule, int depth)
{
    struct build_rule *r = &b->rules[rule];
    enum { NEW, OPEN, DONE };
    r->n_refs++;
    if (r->mark == OPEN)
        r->is_recursive = true;
    if (r->mark != NEW)
        return;
    if (!r->e) {
        build_fail(b, ERR_INVALID, "rule '%s' is not defined", r->name);
        return;
    }
    if (depth > 4000) {
        build_fail(b, ERR_FULL, "the rules are nested more than 4000 deep");
        return;
    }
    r->mark = OPEN;
    link_visit(b, r->e, depth + 1);
    b->rules[rule].mark = DONE;
}

static void link_visit(struct build *b, const struct expr *e, int depth)
{
    if (e->kind == EXPR_RULE)
        link_visit_rule(b, e->rule, depth);
    for (int32_t i = 0; e->kind == EXPR_LIST && i < e->n; i++)
        link_visit(b, e->items[i].e, depth);
    for (int32_t i = 0; e->kind == EXPR_TAGS && i < e->n; i++)
        link_visit(b, e->tags[i].rest, depth);
    if (e->kind == EXPR_LIST) {
        link_visit(b, e->sep, depth);
        if (e->rest)
            link_visit(b, e->rest, depth);
    }
    for (int32_t i = 0; e->kids && i < e->n && !b->code; i++)
        link_visit(b, e->kids[i], depth);
}

/* Sizes, of the called ones first. */
static void link_size_rule(struct build *b, int32_t rule);

static void link_size(struct build *b, const struct expr *e)
{
    if (e->kind == EXPR_RULE)
        link_size_rule(b, e->rule);
    for (int32_t i = 0; e->kind == EXPR_LIST && i < e->n; i++)
        link_size(b, e->items[i].e);
    for (int32_t i = 0; e->kind == EXPR_TAGS && i < e->n; i++)
        link_size(b, e->tags[i].rest);
    if (e->kind == EXPR_LIST && e->rest)
        link_size(b, e->rest);
    for (int32_t i = 0; e->kids && i < e->n; i++)
        link_size(b, e->kids[i]);
}

static void link_size_rule(struct build *b, int32_t rule)
{
    struct build_rule *r = &b->rules[rule];
    if (r->mark == 3)
        return;
    r->mark = 3;
    link_size(b, r->e);
    r->size = expr_full_size(b, r->e);
    r->is_inlined = !r->is_recursive && !(r->is_called && r->n_refs > 1) &&
                    r->size <= (r->n_refs == 1 ? LINK_ONCE_SIZE : LINK_INLINE_SIZE);
}

/* --- the automata of the called ones --- */

static int32_t link_add_rule(struct link *k, int32_t rule)
{
    struct build_rule *r = &k->b->rules[rule];
    if (r->automaton >= 0)
        return r->automaton;
    if (k->n == k->cap) {
        k->cap = k->cap ? 2 * k->cap : 32;
        size_t n = (size_t)k->cap;
        k->nfas = mem_realloc(MEM_CAT_GRAMMAR, k->nfas, n * sizeof(*k->nfas));
        k->rule_of = mem_realloc(MEM_CAT_GRAMMAR, k->rule_of, n * sizeof(*k->rule_of));
        k->from = mem_realloc(MEM_CAT_GRAMMAR, k->from, n * sizeof(*k->from));
        k->to = mem_realloc(MEM_CAT_GRAMMAR, k->to, n * sizeof(*k->to));
        k->start = mem_realloc(MEM_CAT_GRAMMAR, k->start, n * sizeof(*k->start));
    }
    int32_t i = k->n++;
    r->automaton = i;
    k->rule_of[i] = rule;
    nfa_init(&k->nfas[i], k->b);
    return i;
}

static void link_add_loop(struct link *k, const struct build_loop *l)
{
    if (l->rule >= 0) {
        link_add_rule(k, l->rule);
        return;
    }
    for (int32_t i = 0; i < l->list->n; i++)
        link_add_rule(k, l->items[i]);
    link_add_rule(k, l->sep_rule);
    if (l->rest_rule >= 0)
        link_add_rule(k, l->rest_rule);
}

static void link_emit(struct link *k)
{
    int64_t states = 0;
    for (int32_t i = 0; i < k->n && !build_is_late(k->b); i++) {
        struct nfa a = k->nfas[i];
        k->from[i] = nfa_state(&a);
        k->to[i] = nfa_state(&a);
        k->b->where = k->b->rules[k->rule_of[i]].name;
        nfa_emit(&a, k->b->rules[k->rule_of[i]].e, k->from[i], k->to[i]);
        k->nfas[i] = a;
        states += a.n_states;
        if (states > BUILD_NFA_STATES)
            build_fail(k->b, ERR_FULL, "the grammar is too large: over %d states",
                       BUILD_NFA_STATES);
        for (int32_t e = 0; e < a.n_edges && !k->b->code; e++) {
            if (a.edges[e].kind == NFA_EDGE_CALL)
                link_add_rule(k, a.edges[e].arg);
            else if (a.edges[e].kind == NFA_EDGE_LOOP)
                link_add_loop(k, &k->b->loops[a.edges[e].arg]);
        }
    }
}

static void link_subsets(struct link *k, uint8_t class_of[256])
{
    bool cuts[257] = { false };
    for (int32_t i = 0; i < k->n; i++)
        nfa_mark_cuts(&k->nfas[i], cuts);
    cuts[0] = cuts[256] = true;
    dfa_init(&k->d, dfa_classes(cuts, class_of));
    for (int32_t i = 0; i < k->n && !k->b->code; i++) {
        k->b->where = k->b->rules[k->rule_of[i]].name;
        k->start[i] = dfa_subset(&k->d, &k->nfas[i], k->from[i], k->to[i], class_of);
        nfa_release(&k->nfas[i]);
    }
    k->b->where = NULL;
}

static int32_t link_start(const struct link *k, int32_t rule)
{
    return k->start[k->b->rules[rule].automaton];
}

static int32_t link_new_set(struct link *k, const struct build_loop *l)
{
    k->sets = mem_realloc(MEM_CAT_GRAMMAR, k->sets, (size_t)(k->n_sets + 1) * sizeof(*k->sets));
    struct grammar_set *s = &k->sets[k->n_sets];
    *s = (struct grammar_set){ .n = l->list->n, .needs_one = l->list->needs_one };
    for (int32_t i = 0; i < s->n; i++) {
        s->starts[i] = link_start(k, l->items[i]);
        s->required |= (int64_t)!l->list->items[i].is_optional << i;
    }
    s->starts[s->n] = l->rest_rule >= 0 ? link_start(k, l->rest_rule) : -1;
    return k->n_sets++;
}

/* Calls name start states and loops from here on; a loop is one place where it is called. */
static void link_calls(struct link *k)
{
    for (int32_t i = 0; i < k->d.n_calls; i++) {
        struct dfa_call *c = &k->d.calls[i];
        if (!c->is_loop) {
            c->arg = link_start(k, c->arg);
            continue;
        }
        const struct build_loop *l = &k->b->loops[c->arg];
        if (k->n_loops == k->cap_loops) {
            k->cap_loops = k->cap_loops ? 2 * k->cap_loops : 16;
            k->loops =
                mem_realloc(MEM_CAT_GRAMMAR, k->loops, (size_t)k->cap_loops * sizeof(*k->loops));
        }
        k->loops[k->n_loops] = (struct grammar_loop){
            .start = link_start(k, l->rule >= 0 ? l->rule : l->sep_rule),
            .ret = c->target,
            .set = l->rule >= 0 ? -1 : link_new_set(k, l),
            .min = l->min > INT32_MAX - 1 ? INT32_MAX - 1 : (int32_t)l->min,
            .max = l->max == EXPR_INF ? INT32_MAX : (int32_t)l->max,
        };
        c->arg = k->n_loops++;
    }
}

/* --- what can be empty, what can end --- */

static bool link_set_is_nullable(const struct grammar_loop *l, const struct grammar_set *s)
{
    return l->min == 0 && s->required == 0 && !s->needs_one;
}

static bool link_call_is_nullable(const struct link *k, const struct dfa_call *c)
{
    if (!c->is_loop)
        return k->is_nullable[c->arg];
    if (k->loops[c->arg].set >= 0)
        return link_set_is_nullable(&k->loops[c->arg], &k->sets[k->loops[c->arg].set]);
    return k->loops[c->arg].min == 0 || k->is_nullable[k->loops[c->arg].start];
}

/* Can all that is required be read, and as many as are needed? */
static bool link_set_is_live(const struct link *k, const struct grammar_loop *l)
{
    const struct grammar_set *s = &k->sets[l->set];
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        bool is_live = s->starts[i] >= 0 && k->is_live[s->starts[i]];
        n += is_live;
        if (!is_live && s->required >> i & 1)
            return false;
    }
    bool has_rest = s->starts[s->n] >= 0 && k->is_live[s->starts[s->n]];
    return n >= l->min && (n > 0 || has_rest || !s->needs_one);
}

static bool link_call_is_live(const struct link *k, const struct dfa_call *c)
{
    if (!c->is_loop)
        return k->is_live[c->arg];
    if (k->loops[c->arg].set >= 0)
        return link_set_is_live(k, &k->loops[c->arg]);
    return k->loops[c->arg].min == 0 || k->is_live[k->loops[c->arg].start];
}

static bool link_is_nullable(const struct link *k, int32_t s)
{
    const struct dfa *d = &k->d;
    for (int32_t i = d->calls_at[s]; i < d->calls_at[s] + d->n_calls_of[s]; i++)
        if (k->is_nullable[d->calls[i].target] && link_call_is_nullable(k, &d->calls[i]))
            return true;
    return d->accepts[s];
}

static bool link_is_live(const struct link *k, int32_t s)
{
    const struct dfa *d = &k->d;
    const int32_t *next = d->next + (int64_t)s * d->n_classes;
    for (int32_t c = 0; c < d->n_classes; c++)
        if (next[c] >= 0 && k->is_live[next[c]])
            return true;
    for (int32_t i = d->calls_at[s]; i < d->calls_at[s] + d->n_calls_of[s]; i++)
        if (k->is_live[d->calls[i].target] && link_call_is_live(k, &d->calls[i]))
            return true;
    return d->accepts[s];
}

static void link_sweep(struct link *k)
{
    bool changes = true;
    k->is_nullable = mem_alloc(MEM_CAT_GRAMMAR, (size_t)k->d.n_states + 1);
    k->is_live = mem_alloc(MEM_CAT_GRAMMAR, (size_t)k->d.n_states + 1);
    while (changes && !build_is_late(k->b)) {
        changes = false;
        for (int32_t s = k->d.n_states - 1; s >= 0; s--) {
            if (!k->is_nullable[s] && link_is_nullable(k, s))
                k->is_nullable[s] = changes = true;
            if (!k->is_live[s] && link_is_live(k, s))
                k->is_live[s] = changes = true;
        }
        k->b->work += k->d.n_states;
    }
}

/* A body that may be empty would let its loop count without reading: it is asked for something, and none is needed. */
static void link_loops(struct link *k)
{
    struct dfa *d = &k->d;
    for (int32_t i = 0; i < k->n_loops && !k->b->code; i++) {
        struct grammar_loop *l = &k->loops[i];
        if (l->set >= 0)
            continue; /* members of objects are never empty */
        if (!k->is_live[l->start])
            l->max = 0;
        if (!k->is_nullable[l->start])
            continue;
        for (int32_t c = d->calls_at[l->start]; c < d->calls_at[l->start] + d->n_calls_of[l->start];
             c++)
            if (link_call_is_nullable(k, &d->calls[c])) {
                build_fail(k->b, ERR_UNSUPPORTED,
                           "a repetition with large bounds of what may be empty");
                return;
            }
        l->min = 0;
        int32_t n = d->n_states, s = dfa_state(d, k->b);
        if (s < n)
            return;
        memcpy(d->next + (int64_t)s * d->n_classes, d->next + (int64_t)l->start * d->n_classes,
               (size_t)d->n_classes * sizeof(*d->next));
        d->calls_at[s] = d->calls_at[l->start];
        d->n_calls_of[s] = d->n_calls_of[l->start];
        l->start = s;
    }
}

/* --- recursion that reads nothing --- */

/* Depth first through what a state can call without reading; a call that is met inside itself never ends. */
static bool link_recurs(const struct link *k, int32_t s, uint8_t *marks, int depth)
{
    const struct dfa *d = &k->d;
    if (marks[s] == 1 || depth > 3000)
        return true;
    if (marks[s] == 2)
        return false;
    marks[s] = 1;
    for (int32_t i = d->calls_at[s]; i < d->calls_at[s] + d->n_calls_of[s]; i++) {
        const struct dfa_call *c = &d->calls[i];
        int32_t inside = c->is_loop ? k->loops[c->arg].start : c->arg;
        bool is_set = c->is_loop && k->loops[c->arg].set >= 0; /* its items begin with a byte */
        if (!is_set && link_recurs(k, inside, marks, depth + 1))
            return true;
        /* Behind it only what is not `s` itself: a loop of calls that may be empty ends by itself. */
        if (link_call_is_nullable(k, c) && marks[c->target] != 1 &&
            link_recurs(k, c->target, marks, depth + 1))
            return true;
    }
    marks[s] = 2;
    return false;
}

static void link_check_recursion(struct link *k)
{
    size_t n = (size_t)k->d.n_states + 1 + (size_t)k->n_loops;
    uint8_t *marks = mem_alloc(MEM_CAT_GRAMMAR, n);
    /* Those that are called before those that call, so that the one is named that is meant. */
    for (int32_t i = k->n - 1; i >= 0 && !k->b->code; i--)
        if (link_recurs(k, k->start[i], marks, 0))
            build_fail(k->b, ERR_INVALID, "%s refers to itself without anything before it",
                       k->b->rules[k->rule_of[i]].name);
    mem_free(MEM_CAT_GRAMMAR, marks);
}

/* --- the result --- */

static void link_pack_state(struct link *k, struct grammar *g, int32_t s)
{
    const struct dfa *d = &k->d;
    bool reads = false;
    for (int32_t c = 0; c < d->n_classes; c++) {
        int32_t to = d->next[(int64_t)s * d->n_classes + c];
        bool is_live = to >= 0 && k->is_live[to];
        g->next[(int64_t)s * d->n_classes + c] = is_live ? to : -1;
        reads = reads || is_live;
    }
    g->calls_at[s] = g->n_calls;
    for (int32_t i = d->calls_at[s]; i < d->calls_at[s] + d->n_calls_of[s]; i++)
        if (k->is_live[d->calls[i].target] && link_call_is_live(k, &d->calls[i]))
            g->calls[g->n_calls++] = d->calls[i];
    bool calls = g->n_calls > g->calls_at[s];
    g->flags[s] =
        (uint8_t)((d->accepts[s] ? STATE_ACCEPTS : 0) | (reads ? STATE_READS : 0) |
                  (calls ? STATE_CALLS : 0) | (d->accepts[s] && !reads && !calls ? STATE_ENDS : 0));
}

/* Items that nothing fits are left out. A dead set is not called. */
static void link_pack_sets(struct link *k, struct grammar *g)
{
    for (int32_t i = 0; i < g->n_sets; i++) {
        struct grammar_set *s = &g->sets[i];
        int64_t required = 0;
        int32_t n = 0;
        for (int32_t j = 0; j < s->n; j++) {
            if (!k->is_live[s->starts[j]])
                continue;
            required |= (s->required >> j & 1) << n;
            s->starts[n++] = s->starts[j];
        }
        int32_t rest = s->starts[s->n];
        s->starts[n] = rest >= 0 && k->is_live[rest] ? rest : -1;
        s->required = required;
        s->n = n;
    }
}

static void link_pack(struct link *k, struct grammar *g)
{
    const struct dfa *d = &k->d;
    int64_t n = d->n_states, calls = 0;
    for (int32_t s = 0; s < d->n_states; s++)
        calls += d->n_calls_of[s];
    g->n_states = d->n_states;
    g->n_classes = d->n_classes;
    g->next = mem_try_array(MEM_CAT_GRAMMAR, (size_t)n * (size_t)d->n_classes, sizeof(*g->next));
    g->flags = mem_try_array(MEM_CAT_GRAMMAR, (size_t)n, 1);
    g->calls_at = mem_try_array(MEM_CAT_GRAMMAR, (size_t)n + 1, sizeof(*g->calls_at));
    g->calls = mem_try_array(MEM_CAT_GRAMMAR, (size_t)calls + 1, sizeof(*g->calls));
    if (!g->next || !g->flags || !g->calls_at || !g->calls) {
        build_fail(k->b, ERR_NOMEM, "no memory for a grammar of %lld states", (long long)n);
        return;
    }
    for (int32_t s = 0; s < d->n_states; s++)
        link_pack_state(k, g, s);
    g->calls_at[n] = g->n_calls;
    g->start = k->start[0];
    g->loops = k->loops;
    g->n_loops = k->n_loops;
    k->loops = NULL;
    g->sets = k->sets;
    g->n_sets = k->n_sets;
    k->sets = NULL;
    link_pack_sets(k, g);
    g->bytes = (size_t)n * ((size_t)d->n_classes * 4 + 5) + (size_t)calls * sizeof(*g->calls) +
               (size_t)g->n_loops * sizeof(*g->loops) + (size_t)g->n_sets * sizeof(*g->sets) +
               sizeof(*g);
}

static void link_release(struct link *k)
{
    for (int32_t i = 0; i < k->n; i++)
        nfa_release(&k->nfas[i]);
    mem_free(MEM_CAT_GRAMMAR, k->nfas);
    mem_free(MEM_CAT_GRAMMAR, k->rule_of);
    mem_free(MEM_CAT_GRAMMAR, k->from);
    mem_free(MEM_CAT_GRAMMAR, k->to);
    mem_free(MEM_CAT_GRAMMAR, k->start);
    mem_free(MEM_CAT_GRAMMAR, k->is_nullable);
    mem_free(MEM_CAT_GRAMMAR, k->is_live);
    mem_free(MEM_CAT_GRAMMAR, k->loops);
    mem_free(MEM_CAT_GRAMMAR, k->sets);
    dfa_release(&k->d);
}

enum err_code link_grammar(struct build *b, const struct expr *root, struct grammar *g)
{
    struct link k = { .b = b };
    int32_t rule = build_new_rule(b, "the grammar");
    build_set_rule(b, rule, root);
    if (!b->code)
        link_visit_rule(b, rule, 0);
    if (!b->code) {
        link_size_rule(b, rule);
        link_add_rule(&k, rule);
        link_emit(&k);
    }
    if (!b->code)
        link_subsets(&k, g->class_of);
    if (!b->code)
        link_calls(&k);
    if (!b->code)
        link_sweep(&k);
    if (!b->code)
        link_check_recursion(&k);
    if (!b->code && !k.is_live[k.start[0]])
        build_fail(b, ERR_INVALID, "nothing can fit the grammar");
    if (!b->code)
        link_loops(&k);
    if (!b->code) { /* loops may have added states, which are live */
        k.is_live = mem_realloc(MEM_CAT_GRAMMAR, k.is_live, (size_t)k.d.n_states + 1);
        for (int32_t i = 0; i < k.n_loops; i++)
            if (k.loops[i].max > 0 && k.loops[i].set < 0)
                k.is_live[k.loops[i].start] = true;
        link_pack(&k, g);
    }
    link_release(&k);
    return b->code;
}
