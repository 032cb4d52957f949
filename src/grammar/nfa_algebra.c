/* nfa_algebra.c - what is not made by joining automata: intersections, complements, multiples. */
#include "grammar/grammar_int.h"

#include <string.h>

/* Largest product of two automata. */
#define ALGEBRA_STATES 40000

/* The deterministic automaton of e, with its state 0 dead: complete. Moves by byte: next[state * 256 + byte]. */
struct algebra {
    int32_t *next;
    bool *accepts;
    int32_t n, start;
};

static void algebra_release(struct algebra *x)
{
    mem_free(MEM_CAT_GRAMMAR, x->next);
    mem_free(MEM_CAT_GRAMMAR, x->accepts);
    *x = (struct algebra){ 0 };
}

static bool algebra_alloc(struct algebra *x, struct build *b, int32_t cap)
{
    x->next = mem_try_array(MEM_CAT_GRAMMAR, (size_t)cap * 256, sizeof(*x->next));
    x->accepts = mem_try_array(MEM_CAT_GRAMMAR, (size_t)cap, sizeof(*x->accepts));
    if (!x->next || !x->accepts)
        build_fail(b, ERR_NOMEM, "no memory for %d states of a grammar", cap);
    return b->code == ERR_OK;
}

static void algebra_of(struct build *b, const struct expr *e, struct algebra *out);

static void algebra_plain(struct build *b, const struct expr *e, struct algebra *out)
{
    struct nfa a;
    struct dfa d;
    bool cuts[257] = { false };
    uint8_t class_of[256];
    nfa_init(&a, b);
    a.is_whole = true;
    int32_t from = nfa_state(&a), to = nfa_state(&a);
    nfa_emit(&a, e, from, to);
    for (int32_t i = 0; i < a.n_edges && !b->code; i++)
        if (a.edges[i].kind == NFA_EDGE_CALL || a.edges[i].kind == NFA_EDGE_LOOP)
            build_fail(b, ERR_FULL, "a pattern or bound is too large to be combined with others");
    nfa_mark_cuts(&a, cuts);
    dfa_init(&d, dfa_classes(cuts, class_of));
    if (!b->code) {
        int32_t start = dfa_subset(&d, &a, from, to, class_of);
        if (!b->code && d.n_states > ALGEBRA_STATES)
            build_fail(b, ERR_FULL, "a pattern is too large to be combined with others");
        if (!b->code && algebra_alloc(out, b, d.n_states + 1)) {
            out->n = d.n_states + 1;
            out->start = start + 1;
            for (int32_t i = 0; i < d.n_states; i++) {
                out->accepts[i + 1] = d.accepts[i];
                for (int c = 0; c < 256; c++)
                    out->next[(i + 1) * 256 + c] = d.next[i * d.n_classes + class_of[c]] + 1;
            }
        }
    }
    dfa_release(&d);
    nfa_release(&a);
}

/* Pairs of states, found from the start: at most ALGEBRA_STATES. */
static void algebra_product(struct build *b, const struct algebra *x, const struct algebra *y,
                            struct algebra *out)
{
    int32_t n = 0;
    int64_t size = (int64_t)x->n * y->n;
    int32_t *index = NULL, *pairs = NULL;
    if (size > (int64_t)1 << 26) {
        build_fail(b, ERR_FULL, "two patterns are too large to be combined");
        return;
    }
    index = mem_try_array(MEM_CAT_GRAMMAR, (size_t)size, sizeof(*index)); /* state + 1 */
    pairs = mem_alloc(MEM_CAT_GRAMMAR, (ALGEBRA_STATES + 1) * 2 * sizeof(*pairs));
    if (!index)
        build_fail(b, ERR_NOMEM, "no memory for a product of %lld states", (long long)size);
    if (!b->code && algebra_alloc(out, b, ALGEBRA_STATES + 1)) {
        pairs[n++] = 0; /* the dead one */
        index[0] = 1;
        int32_t first = x->start * y->n + y->start;
        if (index[first] == 0) {
            pairs[n++] = first;
            index[first] = n;
        }
        out->start = index[first] - 1;
        for (int32_t i = 0; i < n && !build_is_late(b); i++) {
            int32_t s = pairs[i] / y->n, t = pairs[i] % y->n;
            out->accepts[i] = x->accepts[s] && y->accepts[t];
            b->work += 256;
            for (int c = 0; c < 256; c++) {
                int32_t u = x->next[s * 256 + c], v = y->next[t * 256 + c];
                int32_t pair = u && v ? u * y->n + v : 0;
                if (index[pair] == 0 && n > ALGEBRA_STATES) {
                    build_fail(b, ERR_FULL, "two patterns are too large to be combined");
                    break;
                }
                if (index[pair] == 0) {
                    pairs[n++] = pair;
                    index[pair] = n;
                }
                out->next[i * 256 + c] = index[pair] - 1;
            }
        }
        out->n = n;
    }
    mem_free(MEM_CAT_GRAMMAR, index);
    mem_free(MEM_CAT_GRAMMAR, pairs);
}

/* Digits, most significant first: the state is what is left modulo m. */
static void algebra_mod(struct build *b, int64_t m, struct algebra *out)
{
    int32_t n = (int32_t)m + 2; /* dead, start, remainders */
    if (!algebra_alloc(out, b, n))
        return;
    out->n = n;
    out->start = 1;
    out->accepts[2] = true;
    for (int32_t s = 1; s < n; s++)
        for (int digit = 0; digit < 10; digit++) {
            int64_t r = s == 1 ? 0 : s - 2;
            out->next[s * 256 + '0' + digit] = (int32_t)((r * 10 + digit) % m) + 2;
        }
}

/* Complements need the dead state as one that goes on: it is copied behind the others, and a new dead one is never reached. */
static void algebra_not(struct build *b, const struct algebra *x, struct algebra *out)
{
    if (!algebra_alloc(out, b, x->n + 1))
        return;
    out->n = x->n + 1;
    out->start = x->start ? x->start : x->n;
    for (int32_t s = 0; s < x->n; s++) {
        int32_t to = s ? s : x->n;
        out->accepts[to] = !x->accepts[s];
        for (int c = 0; c < 256; c++)
            out->next[to * 256 + c] = x->next[s * 256 + c] ? x->next[s * 256 + c] : x->n;
    }
}

static void algebra_of(struct build *b, const struct expr *e, struct algebra *out)
{
    struct algebra x = { 0 }, y = { 0 };
    *out = (struct algebra){ 0 };
    if (b->code)
        return;
    if (e->kind == EXPR_MOD) {
        algebra_mod(b, e->min, out);
    } else if (e->kind == EXPR_AND || e->kind == EXPR_NOT) {
        algebra_of(b, e->kids[0], &x);
        if (e->kind == EXPR_AND)
            algebra_of(b, e->kids[1], &y);
        if (!b->code && e->kind == EXPR_AND)
            algebra_product(b, &x, &y, out);
        else if (!b->code)
            algebra_not(b, &x, out);
    } else {
        algebra_plain(b, e, out);
    }
    algebra_release(&x);
    algebra_release(&y);
}

/* States that lead to the end: the others are not written. */
static void algebra_mark_live(const struct algebra *x, bool *is_live)
{
    bool changes = true;
    memcpy(is_live, x->accepts, (size_t)x->n);
    while (changes) {
        changes = false;
        for (int32_t s = x->n - 1; s > 0; s--)
            for (int c = 0; c < 256 && !is_live[s]; c++)
                if (x->next[s * 256 + c] && is_live[x->next[s * 256 + c]])
                    is_live[s] = changes = true;
    }
}

void nfa_emit_algebra(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    struct algebra x;
    algebra_of(a->b, e, &x);
    if (a->b->code || !x.next) {
        algebra_release(&x);
        return;
    }
    int32_t *map = mem_alloc(MEM_CAT_GRAMMAR, (size_t)x.n * sizeof(*map));
    bool *is_live = mem_alloc(MEM_CAT_GRAMMAR, (size_t)x.n);
    algebra_mark_live(&x, is_live);
    for (int32_t s = 1; s < x.n && !a->b->code; s++)
        map[s] = is_live[s] ? nfa_state(a) : -1;
    for (int32_t s = 1; s < x.n && !a->b->code; s++) {
        if (!is_live[s])
            continue;
        for (int c = 0, end; c < 256; c = end) {
            int32_t t = x.next[s * 256 + c];
            for (end = c + 1; end < 256 && x.next[s * 256 + end] == t; end++)
                ;
            if (t && is_live[t])
                nfa_byte(a, map[s], (uint8_t)c, (uint8_t)(end - 1), map[t]);
        }
        if (x.accepts[s])
            nfa_eps(a, map[s], to);
    }
    if (!a->b->code && x.start && is_live[x.start])
        nfa_eps(a, from, map[x.start]);
    mem_free(MEM_CAT_GRAMMAR, map);
    mem_free(MEM_CAT_GRAMMAR, is_live);
    algebra_release(&x);
}
