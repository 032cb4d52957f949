/* expr.c - expressions: made with the obvious simplifications, so that what fits nothing or only the empty text shows. */
#include "base/utf8.h"
#include "grammar/grammar_int.h"

#include <stdlib.h>
#include <string.h>

#define EXPR_SIZE_MAX ((int64_t)1 << 50)

static const struct expr none = { .kind = EXPR_NONE, .size = 1 };
static const struct expr empty = { .kind = EXPR_EMPTY, .size = 1 };
static const struct expr any_byte = { .kind = EXPR_ANY, .size = 1 };

const struct expr *expr_none(void)
{
    return &none;
}

const struct expr *expr_empty(void)
{
    return &empty;
}

const struct expr *expr_any(void)
{
    return &any_byte;
}

static struct expr *expr_new(struct build *b, enum expr_kind kind, int64_t size)
{
    struct expr *e = build_alloc(b, sizeof(*e));
    e->kind = kind;
    e->size = size < EXPR_SIZE_MAX ? size : EXPR_SIZE_MAX;
    return e;
}

void expr_list_add(struct build *b, struct expr_list *l, const struct expr *e)
{
    if (l->n == l->cap) {
        int32_t cap = l->cap ? 2 * l->cap : 8;
        const struct expr **items = build_alloc(b, (size_t)cap * sizeof(*items));
        if (l->n)
            memcpy(items, l->items, (size_t)l->n * sizeof(*items));
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = e;
}

const struct expr *expr_bytes(struct build *b, const char *bytes, size_t n)
{
    if (n == 0)
        return &empty;
    struct expr *e = expr_new(b, EXPR_BYTES, (int64_t)n);
    char *copy = build_alloc(b, n + 1);
    memcpy(copy, bytes, n);
    e->bytes = copy;
    e->n_bytes = n;
    return e;
}

const struct expr *expr_text(struct build *b, const char *text)
{
    return expr_bytes(b, text, strlen(text));
}

/* --- classes --- */

static int expr_compare_ranges(const void *x, const void *y)
{
    const struct expr_range *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

int32_t expr_ranges_join(struct expr_range *r, int32_t n)
{
    int32_t k = 0;
    if (n > 1)
        qsort(r, (size_t)n, sizeof(*r), expr_compare_ranges);
    for (int32_t i = 0; i < n; i++) {
        if (r[i].lo > r[i].hi)
            continue;
        if (k > 0 && r[i].lo <= r[k - 1].hi + 1)
            r[k - 1].hi = r[i].hi > r[k - 1].hi ? r[i].hi : r[k - 1].hi;
        else
            r[k++] = r[i];
    }
    return k;
}

int32_t expr_ranges_invert(const struct expr_range *r, int32_t n, struct expr_range *out)
{
    uint32_t from = 0;
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        if (r[i].lo > from)
            out[k++] = (struct expr_range){ from, r[i].lo - 1 };
        from = r[i].hi + 1;
    }
    if (from <= 0x10FFFF)
        out[k++] = (struct expr_range){ from, 0x10FFFF };
    return k;
}

const struct expr *expr_class(struct build *b, const struct expr_range *ranges, int32_t n,
                              bool in_string)
{
    struct expr_range *r = build_alloc(b, (size_t)(2 * n + 2) * sizeof(*r));
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) { /* without surrogates */
        uint32_t lo = ranges[i].lo, hi = ranges[i].hi < 0x10FFFF ? ranges[i].hi : 0x10FFFF;
        if (lo < 0xD800 && hi >= lo)
            r[k++] = (struct expr_range){ lo, hi < 0xD800 ? hi : 0xD7FF };
        if (hi > 0xDFFF && hi >= lo)
            r[k++] = (struct expr_range){ lo > 0xDFFF ? lo : 0xE000, hi };
    }
    k = expr_ranges_join(r, k);
    if (k == 0)
        return &none;
    bool is_ascii = r[k - 1].hi < 0x80;
    struct expr *e = expr_new(b, EXPR_CLASS, (is_ascii ? 1 : 4 + k) + (in_string ? 8 : 0));
    e->ranges = r;
    e->n = k;
    e->text = in_string ? (uint8_t)b->text : TEXT_NONE;
    return e;
}

/* --- sequences and alternatives --- */

static const struct expr *expr_of_kids(struct build *b, enum expr_kind kind, int64_t size,
                                       const struct expr **kids, int32_t n)
{
    struct expr *e = expr_new(b, kind, size);
    e->kids = kids;
    e->n = n;
    return e;
}

const struct expr *expr_seq(struct build *b, const struct expr *const *kids, int32_t n)
{
    int64_t size = 0;
    int32_t k = 0;
    const struct expr **copy = build_alloc(b, (size_t)(n + 1) * sizeof(*copy));
    for (int32_t i = 0; i < n; i++) {
        if (kids[i]->kind == EXPR_NONE)
            return &none;
        if (kids[i]->kind == EXPR_EMPTY)
            continue;
        copy[k++] = kids[i];
        size += kids[i]->size;
    }
    return k < 2 ? k ? copy[0] : &empty : expr_of_kids(b, EXPR_SEQ, size, copy, k);
}

const struct expr *expr_seq2(struct build *b, const struct expr *x, const struct expr *y)
{
    const struct expr *const kids[] = { x, y };
    return expr_seq(b, kids, 2);
}

const struct expr *expr_seq3(struct build *b, const struct expr *x, const struct expr *y,
                             const struct expr *z)
{
    const struct expr *const kids[] = { x, y, z };
    return expr_seq(b, kids, 3);
}

const struct expr *expr_alt(struct build *b, const struct expr *const *kids, int32_t n)
{
    int64_t size = 1;
    int32_t k = 0;
    const struct expr **copy = build_alloc(b, (size_t)(n + 1) * sizeof(*copy));
    for (int32_t i = 0; i < n; i++) {
        if (kids[i]->kind == EXPR_NONE)
            continue;
        copy[k++] = kids[i];
        size += kids[i]->size;
    }
    return k < 2 ? k ? copy[0] : &none : expr_of_kids(b, EXPR_ALT, size, copy, k);
}

const struct expr *expr_alt2(struct build *b, const struct expr *x, const struct expr *y)
{
    const struct expr *const kids[] = { x, y };
    return expr_alt(b, kids, 2);
}

/* --- others --- */

static struct expr *expr_of(struct build *b, enum expr_kind kind, const struct expr *x,
                            const struct expr *y, int64_t size)
{
    struct expr *e = expr_new(b, kind, size);
    const struct expr **kids = build_alloc(b, 2 * sizeof(*kids));
    kids[0] = x;
    kids[1] = y;
    e->kids = kids;
    e->n = y ? 2 : 1;
    return e;
}

const struct expr *expr_repeat(struct build *b, const struct expr *x, int64_t min, int64_t max)
{
    if (min > max)
        return &none;
    if (max == 0 || x->kind == EXPR_EMPTY)
        return &empty;
    if (x->kind == EXPR_NONE)
        return min == 0 ? &empty : &none;
    if (min == 1 && max == 1)
        return x;
    int64_t times = max == EXPR_INF ? min + 1 : max;
    bool is_large = times > 4000 || x->size * times > 4000;
    struct expr *e = expr_of(b, EXPR_REPEAT, x, NULL, is_large ? 4000 : x->size * times + 1);
    e->min = min;
    e->max = max;
    return e;
}

const struct expr *expr_optional(struct build *b, const struct expr *x)
{
    return expr_repeat(b, x, 0, 1);
}

const struct expr *expr_and(struct build *b, const struct expr *x, const struct expr *y)
{
    if (x->kind == EXPR_NONE || y->kind == EXPR_NONE)
        return &none;
    return expr_of(b, EXPR_AND, x, y, x->size + y->size);
}

const struct expr *expr_not(struct build *b, const struct expr *x)
{
    return expr_of(b, EXPR_NOT, x, NULL, x->size);
}

const struct expr *expr_mod(struct build *b, int64_t m)
{
    struct expr *e = expr_new(b, EXPR_MOD, m);
    e->min = m;
    return e;
}

/* States of the further items of a list: written out up to a bound, then counted. */
static int64_t expr_rest_size(int64_t size, int64_t min, int64_t max)
{
    int64_t times = max != EXPR_INF ? max : min > 1 ? min : 1;
    return times > 1200 || size * times > 1200 ? 1200 + 2 * size : size * times;
}

const struct expr *expr_list(struct build *b, const struct expr_item *items, int32_t n,
                             const struct expr *sep, const struct expr *rest, int64_t min,
                             int64_t max, unsigned flags)
{
    int64_t size = 4 + (rest ? expr_rest_size(rest->size + sep->size, min, max) : 0);
    struct expr_item *copy = build_alloc(b, (size_t)(n + 1) * sizeof(*copy));
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        if (items[i].e->kind == EXPR_NONE && !items[i].is_optional)
            return &none;
        if (items[i].e->kind == EXPR_NONE)
            continue;
        copy[k++] = items[i];
        size += items[i].e->size + sep->size;
    }
    if (rest && (rest->kind == EXPR_NONE || max == 0)) {
        if (min > 0)
            return &none;
        rest = NULL;
    }
    struct expr *e = expr_new(b, EXPR_LIST, size);
    e->items = copy;
    e->n = k;
    e->sep = sep;
    e->rest = rest;
    e->min = min;
    e->max = max;
    e->needs_one = (flags & LIST_NEEDS_ONE) != 0;
    e->is_any_order = (flags & LIST_ANY_ORDER) != 0;
    return e;
}

const struct expr *expr_rule(struct build *b, int32_t rule)
{
    struct expr *e = expr_new(b, EXPR_RULE, 1);
    e->rule = rule;
    return e;
}

int64_t expr_full_size(const struct build *b, const struct expr *e)
{
    int64_t size = e->size;
    if (e->kind == EXPR_RULE)
        return b->rules[e->rule].is_inlined ? b->rules[e->rule].size : 1;
    if (e->kind != EXPR_SEQ && e->kind != EXPR_ALT && e->kind != EXPR_LIST &&
        e->kind != EXPR_REPEAT)
        return size;
    for (int32_t i = 0; i < e->n && size < EXPR_SIZE_MAX; i++) {
        const struct expr *kid = e->kind == EXPR_LIST ? e->items[i].e : e->kids[i];
        size += expr_full_size(b, kid) - kid->size;
    }
    if (e->kind == EXPR_LIST && e->rest)
        size += expr_rest_size(expr_full_size(b, e->rest) + e->sep->size, e->min, e->max);
    return size < EXPR_SIZE_MAX ? size : EXPR_SIZE_MAX;
}

/* --- lengths --- */

static int64_t expr_times(int64_t x, int64_t n)
{
    if (x == 0 || n == 0)
        return 0;
    return x == EXPR_INF || n == EXPR_INF || x > EXPR_SIZE_MAX / n ? EXPR_INF : x * n;
}

static int64_t expr_plus(int64_t x, int64_t y)
{
    return x == EXPR_INF || y == EXPR_INF ? EXPR_INF : x + y;
}

int64_t expr_longest(const struct build *b, const struct expr *e)
{
    int64_t n = 0, m;
    switch (e->kind) {
    case EXPR_BYTES:
        return (int64_t)utf8_count(e->bytes, e->n_bytes);
    case EXPR_CLASS:
        return 1;
    case EXPR_SEQ:
        for (int32_t i = 0; i < e->n; i++)
            n = expr_plus(n, expr_longest(b, e->kids[i]));
        return n;
    case EXPR_ALT:
        for (int32_t i = 0; i < e->n; i++) {
            m = expr_longest(b, e->kids[i]);
            n = m > n ? m : n;
        }
        return n;
    case EXPR_REPEAT:
        return expr_times(expr_longest(b, e->kids[0]), e->max);
    case EXPR_AND:
        n = expr_longest(b, e->kids[0]);
        m = expr_longest(b, e->kids[1]);
        return n < m ? n : m;
    case EXPR_NONE:
    case EXPR_EMPTY:
    case EXPR_BEGIN:
    case EXPR_END:
        return 0;
    default:
        return EXPR_INF;
    }
}

int64_t expr_shortest(const struct build *b, const struct expr *e)
{
    int64_t n = 0, m;
    switch (e->kind) {
    case EXPR_BYTES:
        return (int64_t)utf8_count(e->bytes, e->n_bytes);
    case EXPR_CLASS:
        return 1;
    case EXPR_SEQ:
        for (int32_t i = 0; i < e->n; i++)
            n = expr_plus(n, expr_shortest(b, e->kids[i]));
        return n;
    case EXPR_ALT:
        n = EXPR_INF;
        for (int32_t i = 0; i < e->n; i++) {
            m = expr_shortest(b, e->kids[i]);
            n = m < n ? m : n;
        }
        return n;
    case EXPR_REPEAT:
        return expr_times(expr_shortest(b, e->kids[0]), e->min);
    case EXPR_AND:
        n = expr_shortest(b, e->kids[0]);
        m = expr_shortest(b, e->kids[1]);
        return n > m ? n : m;
    case EXPR_NONE:
        return EXPR_INF;
    default:
        return 0;
    }
}
