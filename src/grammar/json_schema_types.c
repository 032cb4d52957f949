/* json_schema_types.c - strings, numbers and arrays of JSON schemas. */
#include "grammar/json_schema_int.h"

#include <stdio.h>
#include <string.h>

bool json_schema_count(struct json_schema *x, const struct meeting *m, const char *keyword,
                       bool is_largest, int64_t *out)
{
    bool has_one = false;
    for (int i = 0; i < m->n; i++) {
        const struct json *v = json_get(m->s[i].v, keyword);
        struct err err;
        int64_t n;
        if (!v)
            continue;
        if (json_to_int(v, keyword, 0, INT64_MAX / 4, &n, &err) != ERR_OK) {
            json_schema_fail(x, ERR_INVALID, m->s[i].path, keyword,
                             "must be an integer, not negative");
            return false;
        }
        if (!has_one || (is_largest ? n > *out : n < *out))
            *out = n;
        has_one = true;
    }
    return has_one;
}

/* --- strings --- */

const struct expr *json_schema_patterns(struct json_schema *x, const struct meeting *m)
{
    const struct expr *all = NULL;
    for (int i = 0; i < m->n && !x->b->code; i++) {
        const struct json *p = json_get(m->s[i].v, "pattern"), *f = json_get(m->s[i].v, "format");
        const struct expr *e = NULL;
        if (p && !json_is(p, JSON_TYPE_STRING))
            return json_schema_fail(x, ERR_INVALID, m->s[i].path, "pattern", "must be a string");
        if (p)
            e = regex_search(x->b, p->text, p->len, true,
                             json_schema_path(x, m->s[i].path, "pattern", 7));
        if (e)
            all = all ? expr_and(x->b, all, e) : e;
        e = json_is(f, JSON_TYPE_STRING) ? json_format_read(x->b, f->text) : NULL;
        if (f && !e)
            build_note(x->b, "format");
        if (e)
            all = all ? expr_and(x->b, all, e) : e;
    }
    return all;
}

/* Characters one by one, and among them one class that is repeated: the bounds of the whole become its own. NULL: it is not of that shape. */
static const struct expr *types_bounded(struct build *b, const struct expr *e, int64_t min,
                                        int64_t max)
{
    const struct expr *const *kids = e->kind == EXPR_SEQ ? e->kids : &e;
    int32_t n = e->kind == EXPR_SEQ ? e->n : 1, at = -1;
    int64_t fixed = 0;
    struct expr_list all = { 0 };
    for (int32_t i = 0; i < n; i++) {
        int64_t longest = expr_longest(b, kids[i]);
        if (longest == expr_shortest(b, kids[i]) && longest != EXPR_INF) {
            fixed += longest;
            continue;
        }
        if (at >= 0 || kids[i]->kind != EXPR_REPEAT || expr_longest(b, kids[i]->kids[0]) != 1 ||
            expr_shortest(b, kids[i]->kids[0]) != 1)
            return NULL;
        at = i;
    }
    if (at < 0)
        return NULL;
    const struct expr *r = kids[at];
    int64_t lo = min - fixed > r->min ? min - fixed : r->min;
    int64_t hi = max != EXPR_INF && max - fixed < r->max ? max - fixed : r->max;
    if (hi < lo || hi < 0)
        return expr_none();
    for (int32_t i = 0; i < n; i++)
        expr_list_add(b, &all, i == at ? expr_repeat(b, r->kids[0], lo, hi) : kids[i]);
    return expr_seq(b, all.items, all.n);
}

struct types_string {
    struct json_schema *x;
    const struct meeting *m;
};

/* Without its quotes. */
static const struct expr *types_string(struct build *b, const void *arg)
{
    struct json_schema *x = ((const struct types_string *)arg)->x;
    const struct meeting *m = ((const struct types_string *)arg)->m;
    int64_t min = 0, max = EXPR_INF;
    const struct expr *e = json_schema_patterns(x, m);
    json_schema_count(x, m, "minLength", true, &min);
    if (!json_schema_count(x, m, "maxLength", false, &max))
        max = EXPR_INF;
    if (min > max)
        return expr_none();
    if (!e)
        return expr_repeat(b, json_text_char(b), min, max);
    bool is_long = max != EXPR_INF && expr_longest(b, e) > max;
    if (expr_shortest(b, e) < min || is_long) {
        const struct expr *own = types_bounded(b, e, min, max);
        if (own)
            return own;
        if (min > 2000 || (is_long && max > 2000))
            return json_schema_fail(x, ERR_FULL, json_schema_at(m),
                                    is_long ? "maxLength" : "minLength",
                                    "over 2000 cannot be enforced together with a pattern");
        e = expr_and(b, e, expr_repeat(b, json_text_raw(b), min, is_long ? max : EXPR_INF));
    }
    return e;
}

const struct expr *json_schema_string(struct json_schema *x, const struct meeting *m)
{
    static const char *const names[] = { "pattern", "format", "minLength", "maxLength" };
    const struct types_string arg = { x, m };
    bool is_free = true;
    for (int i = 0; i < m->n; i++)
        for (size_t k = 0; k < ARRAY_LEN(names); k++)
            is_free = is_free && !json_get(m->s[i].v, names[k]);
    return is_free ? json_text_string(x->b) : json_text_quoted(x->b, types_string, &arg);
}

/* --- numbers --- */

static int types_compare(const struct json_bound *a, const struct json_bound *b)
{
    if (a->is_negative != b->is_negative)
        return a->is_negative ? -1 : 1;
    size_t n = strlen(a->whole), k = strlen(b->whole);
    int c = n != k ? (n < k ? -1 : 1) : strcmp(a->whole, b->whole);
    if (c == 0)
        c = strcmp(a->part, b->part);
    return a->is_negative ? -c : c;
}

/* The tightest of the bounds on one side. False: there is none. */
static bool types_bound(struct json_schema *x, const struct meeting *m, bool is_least,
                        struct json_bound *out)
{
    const char *const names[2][2] = { { "maximum", "exclusiveMaximum" },
                                      { "minimum", "exclusiveMinimum" } };
    bool has_one = false;
    for (int i = 0; i < m->n; i++)
        for (int k = 0; k < 2; k++) {
            const struct json *v = json_get(m->s[i].v, names[is_least][k]);
            struct json_bound now;
            if (!v || (k == 1 && json_is(v, JSON_TYPE_BOOL) && !v->boolean))
                continue;
            if (k == 1 && json_is(v, JSON_TYPE_BOOL)) /* draft 4: it is about the other one */
                v = json_get(m->s[i].v, names[is_least][0]);
            if (!json_is(v, JSON_TYPE_NUMBER)) {
                json_schema_fail(x, ERR_INVALID, m->s[i].path, names[is_least][k],
                                 "must be a number");
                return false;
            }
            if (!json_number_bound(v, &now)) {
                json_schema_fail(x, ERR_FULL, m->s[i].path, names[is_least][k],
                                 "has more digits than can be enforced (18, and 20 behind the "
                                 "point)");
                return false;
            }
            now.excludes = k == 1;
            int c = has_one ? types_compare(&now, out) : 0;
            if (!has_one || (is_least ? c > 0 : c < 0) || (c == 0 && now.excludes))
                *out = now;
            has_one = true;
        }
    return has_one;
}

/* multipleOf of all: integers' least common multiple in *whole (0: none), or so many digits behind the point (-1: none). */
static void types_multiple(struct json_schema *x, const struct meeting *m, int64_t *whole,
                           int *digits)
{
    *whole = 0;
    *digits = -1;
    for (int i = 0; i < m->n && !x->b->code; i++) {
        const struct json *v = json_get(m->s[i].v, "multipleOf");
        struct json_bound b;
        int64_t n = 0;
        if (!v)
            continue;
        if (!json_is(v, JSON_TYPE_NUMBER) || !json_number_bound(v, &b) || b.is_negative ||
            (strcmp(b.whole, "0") == 0 && b.part[0] == '\0')) {
            json_schema_fail(x, ERR_INVALID, m->s[i].path, "multipleOf",
                             "must be a positive number");
            return;
        }
        size_t zeros = strspn(b.part, "0");
        if (strcmp(b.whole, "0") == 0 && strcmp(b.part + zeros, "1") == 0) {
            *digits = *digits < 0 || (int)zeros + 1 < *digits ? (int)zeros + 1 : *digits;
            continue;
        }
        n = b.part[0] ? 0 : json_number_round(&b, true);
        int64_t a = n, c = *whole;
        while (n > 0 && c > 0) {
            int64_t t = a % c;
            a = c;
            c = t;
        }
        int64_t lcm = *whole && n ? n / a * *whole : n;
        if (n < 1 || n > 4096 || lcm > 4096) {
            json_schema_fail(x, ERR_UNSUPPORTED, m->s[i].path, "multipleOf",
                             "is enforced for integers up to 4096, and for 0.1, 0.01, ...");
            return;
        }
        *whole = lcm;
    }
}

static const struct expr *types_integer(struct json_schema *x, const struct json_bound *lo,
                                        const struct json_bound *hi, int64_t multiple)
{
    long long from = 0, to = 0;
    if (lo)
        from = json_number_round(lo, true);
    if (hi)
        to = json_number_round(hi, false);
    const struct expr *e = json_number_integers(x->b, lo ? &from : NULL, hi ? &to : NULL);
    if (multiple > 1) {
        const struct expr *mod = expr_mod(x->b, multiple);
        e = expr_and(x->b, e, expr_seq2(x->b, expr_optional(x->b, expr_text(x->b, "-")), mod));
    }
    return e;
}

const struct expr *json_schema_number(struct json_schema *x, const struct meeting *m,
                                      bool is_integer)
{
    struct json_bound lo, hi;
    int64_t multiple;
    int digits;
    bool has_lo = types_bound(x, m, true, &lo), has_hi = types_bound(x, m, false, &hi);
    types_multiple(x, m, &multiple, &digits);
    if (x->b->code)
        return expr_none();
    if (is_integer || multiple > 0)
        return types_integer(x, has_lo ? &lo : NULL, has_hi ? &hi : NULL, multiple);
    if (!has_lo && !has_hi && digits < 0)
        return json_text_number(x->b);
    const struct expr *e = json_number_range(x->b, has_lo ? &lo : NULL, has_hi ? &hi : NULL);
    if (digits >= 0) {
        struct expr_range r = { '0', '9' };
        const struct expr *digit = expr_class(x->b, &r, 1, false);
        const struct expr *point =
            expr_seq2(x->b, expr_text(x->b, "."), expr_repeat(x->b, digit, 1, digits));
        e = expr_and(x->b, e,
                     expr_seq3(x->b, expr_optional(x->b, expr_text(x->b, "-")),
                               expr_repeat(x->b, digit, 1, EXPR_INF), expr_optional(x->b, point)));
    }
    return e;
}

/* --- arrays --- */

/* The schemas of the item at i; prefix: how many places have one of their own. */
static void types_item(struct json_schema *x, const struct meeting *m, size_t i,
                       struct meeting *out)
{
    *out = (struct meeting){ .n = 0 };
    for (int k = 0; k < m->n; k++) {
        const struct json *prefix = json_get(m->s[k].v, "prefixItems");
        const struct json *items = json_get(m->s[k].v, "items");
        const char *name = "items";
        char text[40];
        if (json_is(items, JSON_TYPE_ARRAY)) { /* before 2020-12 */
            prefix = items;
            items = json_get(m->s[k].v, "additionalItems");
            name = "additionalItems";
        }
        if (json_is(prefix, JSON_TYPE_ARRAY) && i < prefix->n) {
            int n = snprintf(text, sizeof(text), "prefixItems/%zu", i);
            json_schema_join(x, out, &prefix->items[i],
                             json_schema_path(x, m->s[k].path, text, (size_t)n));
        } else if (items) {
            json_schema_join(x, out, items, json_schema_path(x, m->s[k].path, name, strlen(name)));
        }
    }
}

static size_t types_prefix(const struct meeting *m)
{
    size_t n = 0;
    for (int k = 0; k < m->n; k++) {
        const struct json *prefix = json_get(m->s[k].v, "prefixItems");
        const struct json *items = json_get(m->s[k].v, "items");
        prefix = json_is(items, JSON_TYPE_ARRAY) ? items : prefix;
        if (json_is(prefix, JSON_TYPE_ARRAY) && prefix->n > n)
            n = prefix->n;
    }
    return n;
}

const struct expr *json_schema_array(struct json_schema *x, const struct meeting *m)
{
    int64_t min = 0, max = EXPR_INF;
    size_t prefix = types_prefix(m);
    struct meeting item;
    json_schema_count(x, m, "minItems", true, &min);
    if (!json_schema_count(x, m, "maxItems", false, &max))
        max = EXPR_INF;
    types_item(x, m, prefix, &item);
    const struct expr *rest = json_schema_meet(x, &item);
    if (min > max || x->b->code)
        return expr_none();
    if (prefix == 0)
        return json_text_list(x->b, '[', ']', NULL, 0, rest, min, max, 0);
    if (prefix > 1000)
        return json_schema_fail(x, ERR_FULL, json_schema_at(m), "prefixItems",
                                "has over 1000 items");
    const struct expr *comma = expr_seq2(x->b, expr_text(x->b, ","), json_text_ws(x->b));
    int64_t own = (int64_t)prefix;
    const struct expr *e = expr_empty();
    if (max > own || min > own)
        e = expr_repeat(x->b, expr_seq2(x->b, comma, rest), min > own ? min - own : 0,
                        max == EXPR_INF ? EXPR_INF : max - own);
    for (int64_t i = own - 1; i >= 0 && !x->b->code; i--) {
        if (i >= max) {
            e = expr_empty();
            continue;
        }
        types_item(x, m, (size_t)i, &item);
        const struct expr *one = expr_seq2(x->b, json_schema_meet(x, &item), e);
        if (i > 0)
            one = expr_seq2(x->b, comma, one);
        e = i < min ? one : expr_optional(x->b, one);
    }
    const struct expr *ws = json_text_ws(x->b);
    const struct expr *kids[] = { expr_text(x->b, "["), ws, e, ws, expr_text(x->b, "]") };
    return expr_seq(x->b, kids, 5);
}
