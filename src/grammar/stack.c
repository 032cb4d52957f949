/* stack.c - the stacks of a pushdown automaton, all of those that the text can have led to.
 *
 * Frames are kept once each, so that equal stacks are equal numbers. A head is listed only if it has a move on a byte: what it can
 * become without one stands beside it. */
#include "grammar/grammar_int.h"

#include <string.h>

#define STACK_TODO (4 * GRAMMAR_HEADS)

void stack_pool_reset(struct stack_pool *p)
{
    memset(p->slots, 0, (size_t)p->cap * 2 * sizeof(*p->slots));
    p->n = 1;
    p->frames[0] = (struct stack_frame){ .ret = -1, .parent = -1 };
}

static uint64_t stack_hash(int32_t ret, int64_t count, int32_t parent)
{
    uint64_t h = ((uint64_t)(uint32_t)ret * 0x9E3779B97F4A7C15u) ^
                 ((uint64_t)count * 0xC2B2AE3D27D4EB4Fu) ^
                 ((uint64_t)(uint32_t)parent * 0x165667B19E3779F9u);
    return h ^ h >> 32;
}

void stack_pool_index(struct stack_pool *p)
{
    uint64_t mask = (uint64_t)p->cap * 2 - 1;
    memset(p->slots, 0, (size_t)p->cap * 2 * sizeof(*p->slots));
    for (int32_t f = 1; f < p->n; f++) {
        const struct stack_frame *x = &p->frames[f];
        uint64_t h = stack_hash(x->ret, x->count, x->parent);
        while (p->slots[h & mask])
            h++;
        p->slots[h & mask] = f;
    }
}

/* The frame's number; -1: the pool is full, or the stack too deep. */
static int32_t stack_frame(struct stack_pool *p, int32_t ret, int64_t count, int32_t parent)
{
    uint64_t h = stack_hash(ret, count, parent), mask = (uint64_t)p->cap * 2 - 1;
    for (; p->slots[h & mask]; h++) {
        const struct stack_frame *f = &p->frames[p->slots[h & mask]];
        if (f->ret == ret && f->count == count && f->parent == parent)
            return p->slots[h & mask];
    }
    int32_t depth = p->frames[parent].depth + 1;
    if (p->n == p->cap || depth > GRAMMAR_DEPTH)
        return -1;
    p->frames[p->n] =
        (struct stack_frame){ .ret = ret, .parent = parent, .count = count, .depth = depth };
    p->slots[h & mask] = p->n;
    return p->n++;
}

struct stack_closure {
    const struct grammar *g;
    struct stack_pool *p;
    struct stack_heads *h;
    struct stack_head todo[STACK_TODO], seen[STACK_TODO];
    int32_t n_todo, n_seen;
};

/* Its lists are not cleared: that would take longer than the rest. */
static void stack_begin(struct stack_closure *c, const struct grammar *g, struct stack_pool *p,
                        struct stack_heads *h)
{
    c->g = g;
    c->p = p;
    c->h = h;
    c->n_todo = c->n_seen = 0;
}

static void stack_push(struct stack_closure *c, int32_t state, int32_t frame)
{
    if (frame < 0) { /* too deep */
        c->h->is_over = true;
        return;
    }
    for (int32_t i = 0; i < c->n_seen; i++)
        if (c->seen[i].state == state && c->seen[i].frame == frame)
            return;
    if (c->n_seen == STACK_TODO || c->n_todo == STACK_TODO) {
        c->h->is_over = true;
        return;
    }
    c->seen[c->n_seen++] = c->todo[c->n_todo++] = (struct stack_head){ state, frame };
}

/* Every item that is not in `read`, and what may follow any number of times. */
static void stack_items(struct stack_closure *c, int32_t loop, int64_t read, int32_t parent)
{
    const struct grammar_set *s = &c->g->sets[c->g->loops[loop].set];
    for (int32_t i = 0; i < s->n; i++)
        if (!(read >> i & 1))
            stack_push(c, s->starts[i], stack_frame(c->p, ~loop, read | (int64_t)1 << i, parent));
    if (s->starts[s->n] >= 0)
        stack_push(c, s->starts[s->n], stack_frame(c->p, ~loop, read, parent));
}

/* A set of which the items in `read` are complete: its end, or one more behind what separates them. */
static void stack_set(struct stack_closure *c, int32_t loop, int64_t read, int32_t parent)
{
    const struct grammar_loop *l = &c->g->loops[loop];
    const struct grammar_set *s = &c->g->sets[l->set];
    int n = __builtin_popcountll((unsigned long long)read);
    if ((read & s->required) == s->required && n >= l->min)
        stack_push(c, l->ret, parent);
    if ((n < s->n || s->starts[s->n] >= 0) && n < l->max)
        stack_push(c, l->start, stack_frame(c->p, ~loop, read | SET_SEPARATOR, parent));
}

/* One more body of a loop, and the way out of it, where `count` of them are complete. */
static void stack_loop(struct stack_closure *c, int32_t loop, int64_t count, int32_t parent)
{
    const struct grammar_loop *l = &c->g->loops[loop];
    if (l->set >= 0) { /* its beginning */
        const struct grammar_set *s = &c->g->sets[l->set];
        if (l->min == 0 && s->required == 0 && !s->needs_one)
            stack_push(c, l->ret, parent);
        if (l->max > 0)
            stack_items(c, loop, 0, parent);
        return;
    }
    if (count >= l->min)
        stack_push(c, l->ret, parent);
    if (count < l->max)
        stack_push(c, l->start, stack_frame(c->p, ~loop, count, parent));
}

static void stack_return(struct stack_closure *c, struct stack_frame f, int32_t parent)
{
    if (f.ret >= 0) {
        stack_push(c, f.ret, parent);
        return;
    }
    const struct grammar_loop *l = &c->g->loops[~f.ret];
    int64_t count = f.count + 1;
    if (l->set >= 0 && f.count & SET_SEPARATOR) {
        stack_items(c, ~f.ret, f.count & ~SET_SEPARATOR, parent);
        return;
    }
    if (l->set >= 0) {
        stack_set(c, ~f.ret, f.count, parent);
        return;
    }
    if (l->max == INT32_MAX && count > l->min)
        count = l->min; /* one more changes nothing */
    stack_loop(c, ~f.ret, count, parent);
}

static void stack_list(struct stack_heads *h, struct stack_head x)
{
    for (int32_t i = 0; i < h->n; i++)
        if (h->at[i].state == x.state && h->at[i].frame == x.frame)
            return;
    if (h->n == GRAMMAR_HEADS)
        h->is_over = true;
    else
        h->at[h->n++] = x;
}

static void stack_close(struct stack_closure *c)
{
    const struct grammar *g = c->g;
    while (c->n_todo > 0) {
        struct stack_head x = c->todo[--c->n_todo];
        uint8_t flags = g->flags[x.state];
        if (flags & STATE_READS)
            stack_list(c->h, x);
        if (flags & STATE_ACCEPTS && x.frame == 0)
            c->h->is_bottom = true;
        else if (flags & STATE_ACCEPTS)
            stack_return(c, c->p->frames[x.frame], c->p->frames[x.frame].parent);
        for (int32_t i = g->calls_at[x.state]; i < g->calls_at[x.state + 1]; i++) {
            const struct dfa_call *call = &g->calls[i];
            if (call->is_loop)
                stack_loop(c, call->arg, 0, x.frame);
            else if (g->flags[call->target] & STATE_ENDS)
                stack_push(c, call->arg, x.frame); /* nothing is left to come back to */
            else
                stack_push(c, call->arg, stack_frame(c->p, call->target, 0, x.frame));
        }
    }
}

void stack_add(const struct grammar *g, struct stack_pool *p, struct stack_heads *h, int32_t state,
               int32_t frame)
{
    if (!(g->flags[state] & (STATE_ACCEPTS | STATE_CALLS))) { /* the usual case */
        stack_list(h, (struct stack_head){ state, frame });
        return;
    }
    struct stack_closure c;
    stack_begin(&c, g, p, h);
    stack_push(&c, state, frame);
    stack_close(&c);
}

void stack_pop(const struct grammar *g, struct stack_pool *p, struct stack_heads *h,
               struct stack_frame frame, int32_t parent)
{
    struct stack_closure c;
    stack_begin(&c, g, p, h);
    stack_return(&c, frame, parent);
    stack_close(&c);
}

void stack_body(const struct grammar *g, struct stack_pool *p, struct stack_heads *h, int32_t loop,
                int64_t count)
{
    struct stack_closure c;
    stack_begin(&c, g, p, h);
    stack_push(&c, g->loops[loop].start, stack_frame(p, ~loop, count, 0));
    stack_close(&c);
}

void stack_step(const struct grammar *g, struct stack_pool *p, const struct stack_heads *from,
                uint8_t byte, struct stack_heads *to)
{
    int32_t class = g->class_of[byte];
    to->n = 0;
    to->is_bottom = to->is_over = false;
    for (int32_t i = 0; i < from->n; i++) {
        int32_t next = g->next[(int64_t)from->at[i].state * g->n_classes + class];
        if (next >= 0)
            stack_add(g, p, to, next, from->at[i].frame);
    }
}
