/* lark_turn.c - left recursion taken out of a grammar: A: A x | y becomes A: y x*. Definitions that lead to one another are put in a row, and
 * each is written out in those behind it (Paull's algorithm; Aho, Sethi, Ullman, "Compilers", 4.3). No tree is made of the texts, so that
 * nothing but their set must stay. */
#include "grammar/lark_int.h"

#include <string.h>

#define TURN_DEFS 1000  /* more are not looked at: left recursion among them is refused later */
#define TURN_ALTS 20000 /* of one definition */

void lark_add_alt(struct build *b, struct lark_def *d, const struct lark_alt *alt)
{
    if (d->n_alts == d->cap_alts) {
        d->cap_alts = d->cap_alts ? 2 * d->cap_alts : 4;
        struct lark_alt *alts = build_alloc(b, (size_t)d->cap_alts * sizeof(*alts));
        if (d->n_alts > 0)
            memcpy(alts, d->alts, (size_t)d->n_alts * sizeof(*alts));
        d->alts = alts;
    }
    d->alts[d->n_alts++] = *alt;
}

static struct lark_alt turn_join(struct build *b, const struct lark_alt *x,
                                 const struct expr *const *rest, int32_t n)
{
    struct lark_alt all = { .n = x->n + n, .leads = x->n > 0 ? x->leads : -1 };
    all.parts = build_alloc(b, (size_t)(all.n + 1) * sizeof(*all.parts));
    if (x->n > 0)
        memcpy(all.parts, x->parts, (size_t)x->n * sizeof(*all.parts));
    if (n > 0)
        memcpy(all.parts + x->n, rest, (size_t)n * sizeof(*all.parts));
    return all;
}

/* Alternatives that begin with `by` begin with its alternatives instead. */
static void turn_write_out(struct build *b, struct lark_def *defs, int32_t at, int32_t by)
{
    struct lark_def old = defs[at], *d = &defs[at];
    d->n_alts = d->cap_alts = 0;
    d->alts = NULL;
    for (int32_t i = 0; i < old.n_alts && !build_is_late(b); i++) {
        const struct lark_alt *x = &old.alts[i];
        if (x->leads != by) {
            lark_add_alt(b, d, x);
            continue;
        }
        for (int32_t k = 0; k < defs[by].n_alts && !b->code; k++) {
            struct lark_alt all = turn_join(b, &defs[by].alts[k], x->parts + 1, x->n - 1);
            lark_add_alt(b, d, &all);
        }
        if (d->n_alts > TURN_ALTS)
            build_fail(b, ERR_FULL, "grammar, line %d: left recursion through too many rules",
                       d->line);
    }
}

/* Its own alternatives that begin with it come behind the others, any number of times. */
static void turn_one(struct build *b, struct lark_def *defs, int32_t at)
{
    struct lark_def old = defs[at], *d = &defs[at];
    struct expr_list more = { 0 };
    for (int32_t i = 0; i < old.n_alts; i++)
        if (old.alts[i].leads == at && old.alts[i].n > 1)
            expr_list_add(b, &more, expr_seq(b, old.alts[i].parts + 1, old.alts[i].n - 1));
    const struct expr *rest = expr_repeat(b, expr_alt(b, more.items, more.n), 0, EXPR_INF);
    d->n_alts = d->cap_alts = 0;
    d->alts = NULL;
    for (int32_t i = 0; i < old.n_alts && !b->code; i++) {
        if (old.alts[i].leads == at)
            continue;
        struct lark_alt all = turn_join(b, &old.alts[i], &rest, more.n > 0);
        lark_add_alt(b, d, &all);
    }
}

/* reaches[i * n + k]: a text of i may begin with one of k, by first parts alone. */
static void turn_reach(const struct lark_def *defs, int32_t n, int32_t from, int32_t at,
                       bool *reaches)
{
    for (int32_t i = 0; i < defs[at].n_alts; i++) {
        int32_t to = defs[at].alts[i].leads;
        if (to < 0 || reaches[(int64_t)from * n + to])
            continue;
        reaches[(int64_t)from * n + to] = true;
        turn_reach(defs, n, from, to, reaches);
    }
}

void lark_turn(struct build *b, struct lark_def *defs, int32_t n)
{
    if (n > TURN_DEFS)
        return;
    bool *reaches = build_alloc(b, (size_t)n * (size_t)n + 1);
    for (int32_t i = 0; i < n && !b->code; i++)
        turn_reach(defs, n, i, i, reaches);
    for (int32_t i = 0; i < n && !b->code; i++) {
        if (!reaches[(int64_t)i * n + i])
            continue;
        for (int32_t k = 0; k < i && !b->code; k++)
            if (reaches[(int64_t)i * n + k] && reaches[(int64_t)k * n + i])
                turn_write_out(b, defs, i, k);
        turn_one(b, defs, i);
    }
}
