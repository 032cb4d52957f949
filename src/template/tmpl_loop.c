/* tmpl_loop.c - for, with everything that `loop` tells. */
#include "template/template_ast.h"

#include <string.h>

static int32_t loop_name(const struct env *e)
{
    return map_get(&e->t->names, "loop", 4);
}

/* The next item that passes the loop's test (drawn as late as Python's generator would). */
static enum err_code loop_draw(struct env *e, struct loop *l, struct value *out, bool *has)
{
    const struct node *n = l->node;
    for (;;) {
        struct scope *outer = e->scope;
        struct value test;
        TRY(tmpl_next(e, l->iter, out, has));
        if (!*has || !n->c)
            return ERR_OK;
        TRY(tmpl_scope_push(e, l->scope, &e->scope));
        TRY(tmpl_assign(e, n->a, out));
        TRY(tmpl_eval(e, n->c, &test));
        e->scope = outer;
        if (tmpl_truth(&test))
            return ERR_OK;
    }
}

static enum err_code loop_peek(struct env *e, struct loop *l)
{
    if (l->has_after)
        return ERR_OK;
    bool has;
    TRY(loop_draw(e, l, &l->after, &has));
    l->has_after = has;
    return ERR_OK;
}

static enum err_code loop_next(struct env *e, struct loop *l, bool *has)
{
    struct value v;
    if (l->has_after) {
        v = l->after;
        l->has_after = false;
        *has = true;
    } else {
        TRY(loop_draw(e, l, &v, has));
        if (!*has)
            return ERR_OK;
    }
    l->index0++;
    l->before = l->current;
    l->current = v;
    return ERR_OK;
}

/* len() of what is looped over; a generator is drawn to its end for it. */
static enum err_code loop_length(struct env *e, struct loop *l)
{
    struct value rest, v;
    if (l->has_length)
        return ERR_OK;
    l->has_length = true;
    if (!l->node->c && l->source.type != V_ITER && tmpl_len(&l->source, &l->length))
        return ERR_OK;
    TRY(tmpl_list_new(e, V_LIST, 0, &rest));
    for (bool has = true; has;) {
        TRY(loop_draw(e, l, &v, &has));
        if (has)
            TRY(tmpl_push(e, &rest, v));
    }
    l->length = rest.seq->n + (size_t)(l->index0 + 1) + l->has_after;
    TRY(tmpl_iter(e, &rest, &l->iter));
    /* What was drawn has passed the test already. */
    struct node *plain = tmpl_alloc(e, sizeof(*plain));
    TRY(tmpl_check(e));
    *plain = *l->node;
    plain->c = NULL;
    l->node = plain;
    return ERR_OK;
}

static enum err_code loop_item(struct env *e, struct loop *l, bool is_next, struct value *out)
{
    if (is_next) {
        TRY(loop_peek(e, l));
        if (!l->has_after)
            return tmpl_undef_hint(e, "there is no next item", out);
        *out = l->after;
        return ERR_OK;
    }
    if (l->index0 == 0)
        return tmpl_undef_hint(e, "there is no previous item", out);
    *out = l->before;
    return ERR_OK;
}

enum err_code tmpl_loop_attr(struct env *e, struct loop *l, const struct str *name,
                             struct value *out, bool *has)
{
    static const char *const names[] = { "index",  "index0",   "first",     "last",
                                         "length", "revindex", "revindex0", "depth",
                                         "depth0", "previtem", "nextitem" };
    size_t i = 0;
    while (i < ARRAY_LEN(names) && !str_is(name, names[i]))
        i++;
    *has = i < ARRAY_LEN(names);
    switch (i) {
    case 0:
    case 1:
        *out = tmpl_int(l->index0 + (i == 0), false);
        return ERR_OK;
    case 2:
        *out = tmpl_bool(l->index0 == 0);
        return ERR_OK;
    case 3:
        TRY(loop_peek(e, l));
        *out = tmpl_bool(!l->has_after);
        return ERR_OK;
    case 4:
    case 5:
    case 6:
        TRY(loop_length(e, l));
        *out = tmpl_int((int64_t)l->length - (i == 4   ? 0
                                              : i == 5 ? l->index0
                                                       : l->index0 + 1),
                        false);
        return ERR_OK;
    case 7:
    case 8:
        *out = tmpl_int(l->depth0 + (i == 7), false);
        return ERR_OK;
    case 9:
    case 10:
        return loop_item(e, l, i == 10, out);
    default:
        return ERR_OK;
    }
}

/* --- running --- */

/* A scope for the next turn: the old one, emptied, unless a macro holds on to it. */
static enum err_code loop_scope(struct env *e, struct loop *l, struct scope **scope)
{
    if (*scope && !(*scope)->is_captured)
        (*scope)->n = 0;
    else
        TRY(tmpl_scope_push(e, l->scope, scope));
    e->scope = *scope;
    return ERR_OK;
}

static enum err_code loop_run(struct env *e, struct loop *l, enum flow *flow)
{
    const struct node *n = l->node;
    struct value self = { .type = V_LOOP, .loop = l };
    struct scope *scope = NULL, *outer = e->scope;
    int32_t name = loop_name(e);
    bool is_empty = true;
    TRY(tmpl_iter(e, &l->source, &l->iter));
    for (;;) {
        bool has;
        e->scope = l->scope;
        TRY(loop_next(e, l, &has));
        if (!has)
            break;
        TRY(loop_scope(e, l, &scope));
        TRY(tmpl_assign(e, n->a, &l->current));
        if (name >= 0)
            TRY(tmpl_scope_set(e, name, self));
        TRY(tmpl_exec_list(e, &n->body, flow));
        bool is_broken = *flow == FLOW_BREAK;
        is_empty =
            is_empty && *flow != FLOW_ON; /* jinja2's else runs too if no turn reached its end */
        *flow = FLOW_ON;
        if (is_broken)
            break;
        e->line = n->line;
    }
    e->scope = outer;
    if (is_empty && n->else_body.n) {
        TRY(tmpl_scope_push(e, l->scope, &e->scope));
        TRY(tmpl_exec_list(e, &n->else_body, flow));
        e->scope = outer;
    }
    return ERR_OK;
}

static enum err_code loop_new(struct env *e, const struct node *n, struct scope *scope,
                              const struct value *source, int64_t depth0, struct loop **out)
{
    struct loop *l = tmpl_alloc(e, sizeof(*l));
    TRY(tmpl_check(e));
    *l = (struct loop){
        .node = n, .scope = scope, .source = *source, .index0 = -1, .depth0 = depth0
    };
    *out = l;
    return ERR_OK;
}

enum err_code tmpl_exec_for(struct env *e, const struct node *n, enum flow *flow)
{
    struct value source;
    struct loop *l;
    TRY(tmpl_eval(e, n->b, &source));
    e->line = n->line;
    TRY(loop_new(e, n, e->scope, &source, 0, &l));
    return loop_run(e, l, flow);
}

enum err_code tmpl_loop_call(struct env *e, struct loop *l, const struct args *a, struct value *out)
{
    struct value source;
    struct loop *inner;
    struct sb text, *outer = e->out;
    struct scope *scope = e->scope;
    enum flow flow = FLOW_ON;
    int line = e->line;
    if (!l->node->is_recursive)
        return tmpl_fail(
            e, "TypeError: The loop must have the 'recursive' marker to be called recursively.");
    TRY(tmpl_bind(e, "loop()", "iterable", 1, a, &source));
    e->depth += 10;
    if (e->depth > TMPL_DEPTH_MAX)
        return tmpl_full(e, "loops call each other too deep");
    TRY(loop_new(e, l->node, l->scope, &source, l->depth0 + 1, &inner));
    sb_init(&text, e);
    e->out = &text;
    e->scope = l->scope;
    TRY(loop_run(e, inner, &flow));
    e->scope = scope;
    e->out = outer;
    e->depth -= 10;
    e->line = line;
    return sb_finish(&text, out);
}

static enum err_code loop_cycle(struct env *e, const struct value *self, const struct args *a,
                                struct value *out)
{
    if (a->n_kw)
        return tmpl_fail(e, "TypeError: cycle() got an unexpected keyword argument");
    if (a->n == 0)
        return tmpl_fail(e, "TypeError: no items for cycling given");
    *out = a->pos[(uint64_t)self->loop->index0 % a->n];
    return ERR_OK;
}

static enum err_code loop_changed(struct env *e, const struct value *self, const struct args *a,
                                  struct value *out)
{
    struct loop *l = self->loop;
    struct value now;
    bool is_same = false;
    if (a->n_kw)
        return tmpl_fail(e, "TypeError: changed() got an unexpected keyword argument");
    TRY(tmpl_list_new(e, V_TUPLE, a->n, &now));
    for (size_t i = 0; i < a->n; i++)
        TRY(tmpl_push(e, &now, a->pos[i]));
    if (l->changed.type != V_MISSING)
        TRY(tmpl_equal(e, &l->changed, &now, &is_same));
    if (!is_same)
        l->changed = now;
    *out = tmpl_bool(!is_same);
    return ERR_OK;
}

const struct method tmpl_loop_methods[] = {
    { "cycle", loop_cycle },
    { "changed", loop_changed },
    { NULL, NULL },
};

static enum err_code cycler_next(struct env *e, const struct value *self, const struct args *a,
                                 struct value *out)
{
    struct cycler *c = self->cycler;
    TRY(tmpl_bind(e, "next()", "", 0, a, NULL));
    *out = c->items.items[c->pos];
    c->pos = (c->pos + 1) % c->items.n;
    return ERR_OK;
}

static enum err_code cycler_reset(struct env *e, const struct value *self, const struct args *a,
                                  struct value *out)
{
    TRY(tmpl_bind(e, "reset()", "", 0, a, NULL));
    self->cycler->pos = 0;
    *out = tmpl_none();
    return ERR_OK;
}

const struct method tmpl_cycler_methods[] = {
    { "next", cycler_next },
    { "reset", cycler_reset },
    { NULL, NULL },
};
