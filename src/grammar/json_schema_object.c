/* json_schema_object.c - objects of JSON schemas. Properties come in the order in which they are declared, those that are only required
 * behind them, others last; another key is never the name of a declared one. */
#include "grammar/json_schema_int.h"

#include <string.h>

#define OBJECT_PATTERNS 4

struct object_key {
    const char *text;
    size_t n;
    bool is_required;
};

struct object {
    struct json_schema *x;
    const struct meeting *m;
    struct object_key *keys;
    size_t n, cap;
    const struct json
        *patterns[OBJECT_PATTERNS]; /* patternProperties' members, by their place in `at` */
    const char *pattern_names[OBJECT_PATTERNS];
    size_t pattern_lens[OBJECT_PATTERNS];
    int pattern_of[OBJECT_PATTERNS];                  /* the meeting's schema */
    const struct expr *pattern_keys[OBJECT_PATTERNS]; /* as texts of keys */
    int n_patterns;
    bool is_open, has_declared;
    bool is_evaluated;       /* what no schema says anything of may not be there */
    struct object_key spare; /* given out once the build has failed */
};

static struct object_key *object_find(struct object *o, const char *text, size_t n)
{
    for (size_t i = 0; i < o->n; i++)
        if (o->keys[i].n == n && memcmp(o->keys[i].text, text, n) == 0)
            return &o->keys[i];
    return NULL;
}

static struct object_key *object_add(struct object *o, const char *text, size_t n)
{
    struct object_key *k = object_find(o, text, n);
    o->x->b->work += (int64_t)o->n / 4;
    if (k || build_is_late(o->x->b))
        return k ? k : &o->spare;
    if (o->n == o->cap) {
        o->cap = o->cap ? 2 * o->cap : 16;
        struct object_key *keys = build_alloc(o->x->b, o->cap * sizeof(*keys));
        if (o->n)
            memcpy(keys, o->keys, o->n * sizeof(*keys));
        o->keys = keys;
    }
    o->keys[o->n] = (struct object_key){ text, n, false };
    return &o->keys[o->n++];
}

/* --- what is declared --- */

static void object_patterns(struct object *o, int i, const struct json *v)
{
    struct json_schema *x = o->x;
    const char *path = o->m->s[i].path;
    if (!json_is(v, JSON_TYPE_OBJECT)) {
        json_schema_fail(x, ERR_INVALID, path, "patternProperties", "must be an object");
        return;
    }
    for (size_t k = 0; k < v->n && !x->b->code; k++) {
        if (o->n_patterns == OBJECT_PATTERNS) {
            json_schema_fail(x, ERR_FULL, path, "patternProperties", "are more than 4 patterns");
            return;
        }
        o->patterns[o->n_patterns] = &v->members[k].value;
        o->pattern_names[o->n_patterns] = v->members[k].key;
        o->pattern_lens[o->n_patterns] = v->members[k].key_len;
        o->pattern_of[o->n_patterns] = i;
        o->pattern_keys[o->n_patterns++] =
            regex_search(x->b, v->members[k].key, v->members[k].key_len, true,
                         json_schema_path(x, path, "patternProperties", 17));
    }
}

static void object_declared(struct object *o)
{
    struct json_schema *x = o->x;
    for (int i = 0; i < o->m->n && !x->b->code; i++) {
        const struct json *v = o->m->s[i].v, *props = json_get(v, "properties");
        const struct json *patterns = json_get(v, "patternProperties");
        if (props && !json_is(props, JSON_TYPE_OBJECT)) {
            json_schema_fail(x, ERR_INVALID, o->m->s[i].path, "properties", "must be an object");
            return;
        }
        for (size_t k = 0; props && k < props->n; k++) {
            const struct json *one = &props->members[k].value;
            object_add(o, props->members[k].key, props->members[k].key_len);
            /* What may not be there is not declared. */
            o->has_declared = o->has_declared || !json_is(one, JSON_TYPE_BOOL) || one->boolean;
        }
        if (patterns)
            object_patterns(o, i, patterns);
    }
    for (int i = 0; i < o->m->n && !x->b->code; i++) {
        const struct json *required = json_get(o->m->s[i].v, "required");
        if (json_is(required, JSON_TYPE_BOOL)) /* draft 3 */
            continue;
        if (required && !json_is(required, JSON_TYPE_ARRAY))
            json_schema_fail(x, ERR_INVALID, o->m->s[i].path, "required", "must be an array");
        for (size_t k = 0; json_is(required, JSON_TYPE_ARRAY) && k < required->n; k++) {
            const struct json *name = &required->items[k];
            if (!json_is(name, JSON_TYPE_STRING))
                json_schema_fail(x, ERR_INVALID, o->m->s[i].path, "required",
                                 "must be an array of strings");
            else
                object_add(o, name->text, name->len)->is_required = true;
        }
    }
}

/* Does v say nothing of properties but by its $ref? */
static bool object_only_refers(const struct json *v)
{
    static const char *const names[] = { "properties",
                                         "patternProperties",
                                         "additionalProperties",
                                         "allOf",
                                         "anyOf",
                                         "oneOf",
                                         "required",
                                         "dependentSchemas",
                                         "dependencies",
                                         "if",
                                         "unevaluatedProperties" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_get(v, names[i]))
            return false;
    return json_get(v, "$ref") != NULL;
}

/* unevaluatedProperties: false of the schema that all others here are parts of (or refer to): they say all that it evaluates. Any other one
 * is refused. */
static bool object_is_evaluated(struct object *o)
{
    bool is_whole = o->m->n_roots == 1;
    bool is_closed = false;
    for (int i = 0; i < o->m->n; i++) {
        const struct json *v = json_get(o->m->s[i].v, "unevaluatedProperties");
        bool is_bool = json_is(v, JSON_TYPE_BOOL), is_first = is_whole;
        is_whole = is_whole && object_only_refers(o->m->s[i].v);
        if (!v || (is_bool && v->boolean))
            continue;
        if (!is_bool || !is_first)
            json_schema_fail(o->x, ERR_UNSUPPORTED, o->m->s[i].path, "unevaluatedProperties",
                             "is enforced where it is false, and no part of another schema");
        is_closed = true;
    }
    return is_closed;
}

/* May there be others? Where additionalProperties is not said: only if nothing is declared. */
static void object_openness(struct object *o)
{
    bool is_said = false, is_closed = false;
    o->is_evaluated = object_is_evaluated(o);
    for (int i = 0; i < o->m->n; i++) {
        const struct json *v = json_get(o->m->s[i].v, "additionalProperties");
        if (json_is(v, JSON_TYPE_BOOL) && !v->boolean)
            is_closed = true;
        else if (v)
            is_said = true;
    }
    o->is_open =
        !is_closed && (is_said || (!o->is_evaluated && !o->has_declared && o->n_patterns == 0));
}

/* --- members --- */

/* Is the key one of the pattern's? Asked of the automaton: their intersection is empty or not. */
static bool object_matches(struct object *o, const char *text, size_t n, int pattern)
{
    const struct expr *e =
        expr_and(o->x->b, json_text_plain(o->x->b, text, n), o->pattern_keys[pattern]);
    struct nfa a;
    nfa_init(&a, o->x->b);
    int32_t from = nfa_state(&a), to = nfa_state(&a);
    if (e->kind != EXPR_NONE)
        nfa_emit(&a, e, from, to);
    bool is_some = a.first[from] >= 0; /* only what leads to the end is written */
    nfa_release(&a);
    return is_some;
}

/* What the value of a key must satisfy: `declared` by its name, or NULL: of a key that has just these patterns (bits). */
static const struct expr *object_value(struct object *o, const struct object_key *key,
                                       unsigned patterns)
{
    struct json_schema *x = o->x;
    struct meeting value = { .n = 0 };
    bool is_any_said = false;
    for (int i = 0; i < o->m->n && !x->b->code; i++) {
        const struct json *v = o->m->s[i].v, *props = json_get(v, "properties");
        const struct json *more = json_get(v, "additionalProperties");
        const char *path = o->m->s[i].path;
        bool is_said = false;
        for (size_t k = 0; key && json_is(props, JSON_TYPE_OBJECT) && k < props->n; k++) {
            const struct json_member *p = &props->members[k];
            if (p->key_len != key->n || memcmp(p->key, key->text, key->n) != 0)
                continue;
            is_said = true;
            json_schema_join(x, &value, &p->value,
                             json_schema_path(x, json_schema_path(x, path, "properties", 10),
                                              p->key, p->key_len));
        }
        for (int k = 0; k < o->n_patterns; k++) {
            if (o->pattern_of[k] != i || !(patterns >> k & 1))
                continue;
            is_said = true;
            json_schema_join(x, &value, o->patterns[k],
                             json_schema_path(x, json_schema_path(x, path, "patternProperties", 17),
                                              o->pattern_names[k], o->pattern_lens[k]));
        }
        is_any_said = is_any_said || is_said || more;
        if (!is_said && more)
            json_schema_join(x, &value, more,
                             json_schema_path(x, path, "additionalProperties", 20));
    }
    bool is_none = value.is_none || (o->is_evaluated && !is_any_said);
    return is_none ? expr_none() : json_schema_meet(x, &value);
}

static const struct expr *object_key_text(struct object *o, const struct object_key *key)
{
    return json_text_plain(o->x->b, key->text, key->n);
}

/* A declared name, as far as `names` allows it (NULL: it does), with what stands before the value. */
static const struct expr *object_name(struct object *o, const struct object_key *key,
                                      const struct expr *names)
{
    struct build *b = o->x->b;
    const struct expr *e = json_text_name_of(b, key->text, key->n, o->m->is_call);
    if (!e)
        return json_schema_fail(
            o->x, ERR_UNSUPPORTED,
            json_schema_path(o->x, json_schema_path(o->x, json_schema_at(o->m), "properties", 10),
                             key->text, key->n),
            "the name", "cannot be written as the model's calls are");
    return names ? json_text_name(b, expr_and(b, object_key_text(o, key), names), o->m->is_call)
                 : e;
}

/* Texts of keys that propertyNames allows; NULL: all. */
static const struct expr *object_names(struct object *o)
{
    struct json_schema *x = o->x;
    struct meeting names = { .n = 0 };
    struct expr_list all = { 0 };
    for (int i = 0; i < o->m->n; i++) {
        const struct json *v = json_get(o->m->s[i].v, "propertyNames");
        if (v)
            json_schema_join(x, &names, v,
                             json_schema_path(x, o->m->s[i].path, "propertyNames", 13));
    }
    if (names.is_none)
        return expr_none();
    if (names.n == 0 || x->b->code)
        return NULL;
    for (int i = 0; i < names.n; i++) {
        const struct json *v = names.s[i].v, *list = json_get(v, "enum");
        if (json_get(v, "anyOf") || json_get(v, "oneOf") || json_get(v, "const"))
            return json_schema_fail(x, ERR_UNSUPPORTED, names.s[i].path, "propertyNames",
                                    "is enforced with pattern, format, enum, minLength and "
                                    "maxLength only");
        struct json_schema_check *check = build_alloc(x->b, sizeof(*check));
        json_schema_check_init(x, &names, list, check);
        for (size_t k = 0; json_is(list, JSON_TYPE_ARRAY) && k < list->n; k++) {
            const struct json *s = &list->items[k];
            if (!json_is(s, JSON_TYPE_STRING) || !json_schema_allows(x, check, s))
                continue;
            struct object_key key = { s->text, s->len, false };
            expr_list_add(x->b, &all, object_key_text(o, &key));
        }
        if (list)
            return expr_alt(x->b, all.items, all.n);
    }
    int64_t min = 0, max = EXPR_INF;
    const struct expr *e = json_schema_patterns(x, &names);
    json_schema_count(x, &names, "minLength", true, &min);
    if (!json_schema_count(x, &names, "maxLength", false, &max))
        max = EXPR_INF;
    const struct expr *length = expr_repeat(x->b, json_text_raw(x->b), min, max);
    return !e ? length : min == 0 && max == EXPR_INF ? e : expr_and(x->b, e, length);
}

/* A member whose key is none of the declared ones: by the patterns that its key has and has not. NULL: there is none. */
static const struct expr *object_rest(struct object *o)
{
    struct build *b = o->x->b;
    struct expr_list all = { 0 }, declared = { 0 };
    const struct expr *names = object_names(o);
    const struct expr *any = names ? names : expr_repeat(b, json_text_raw(b), 0, EXPR_INF);
    for (size_t i = 0; i < o->n; i++)
        expr_list_add(b, &declared, object_key_text(o, &o->keys[i]));
    for (unsigned set = 0; set < 1u << o->n_patterns && !b->code; set++) {
        if (set == 0 && !o->is_open)
            continue;
        const struct expr *key = any, *value = object_value(o, NULL, set);
        if (o->n > 0)
            key = expr_and(b, key, expr_not(b, expr_alt(b, declared.items, declared.n)));
        for (int k = 0; k < o->n_patterns; k++)
            key = expr_and(b, key,
                           set >> k & 1 ? o->pattern_keys[k] : expr_not(b, o->pattern_keys[k]));
        if (o->n == 0 && o->n_patterns == 0 && !names)
            key = expr_repeat(b, json_text_char(b), 0, EXPR_INF);
        expr_list_add(b, &all, expr_seq2(b, json_text_name(b, key, o->m->is_call), value));
    }
    const struct expr *e = expr_alt(b, all.items, all.n);
    return e->kind == EXPR_NONE ? NULL : e;
}

/* --- the whole --- */

/* Where it is asked for; and Gemma's template sorts names. */
static bool object_is_any_order(const struct object *o)
{
    enum text_kind text = o->x->b->text;
    bool is_gemma = text == TEXT_GEMMA || text == TEXT_GEMMA_BARS;
    return o->n > 1 && (o->x->b->is_any_order || (is_gemma && o->n <= SET_MAX));
}

/* Numbers of members: those that declared properties leave open are enforced only where that is simple. */
static bool object_counts(struct object *o, const struct expr *rest, size_t n_required,
                          int64_t *min, int64_t *max, bool *needs_one)
{
    int64_t least = 0, most = EXPR_INF;
    json_schema_count(o->x, o->m, "minProperties", true, &least);
    if (!json_schema_count(o->x, o->m, "maxProperties", false, &most))
        most = EXPR_INF;
    *min = 0;
    *max = EXPR_INF;
    *needs_one = false;
    if (o->n == 0) {
        *min = least;
        *max = most;
        return true;
    }
    if (object_is_any_order(o) && !rest) { /* of the declared ones */
        *min = least;
        *max = most;
        return *max >= *min && *max >= (int64_t)n_required;
    }
    bool is_counted = o->n == n_required && !object_is_any_order(o);
    if (least > (int64_t)n_required && n_required == 0 && least == 1)
        *needs_one = true;
    else if (least > (int64_t)n_required && rest && is_counted)
        *min = least - (int64_t)n_required;
    else if (least > (int64_t)n_required) {
        json_schema_fail(o->x, ERR_UNSUPPORTED, json_schema_at(o->m), "minProperties",
                         "is not enforced beside optional properties");
        return false;
    }
    if (rest && is_counted && most != EXPR_INF) {
        *max = most - (int64_t)n_required;
    } else if (most < (int64_t)o->n || (rest && most != EXPR_INF)) {
        json_schema_fail(o->x, ERR_UNSUPPORTED, json_schema_at(o->m), "maxProperties",
                         "is not enforced beside optional properties");
        return false;
    }
    return *max >= *min;
}

const struct expr *json_schema_object(struct json_schema *x, const struct meeting *m)
{
    struct object o = { .x = x, .m = m };
    struct expr_item *items;
    size_t n_required = 0;
    int64_t min, max;
    bool needs_one;
    object_declared(&o);
    if (x->b->code)
        return expr_none();
    object_openness(&o);
    items = build_alloc(x->b, (o.n + 1) * sizeof(*items));
    const struct expr *names = object_names(&o);
    for (size_t i = 0; i < o.n && !x->b->code; i++) {
        unsigned patterns = 0;
        for (int k = 0; k < o.n_patterns; k++)
            patterns |= (unsigned)object_matches(&o, o.keys[i].text, o.keys[i].n, k) << k;
        const struct expr *name = object_name(&o, &o.keys[i], names);
        items[i] =
            (struct expr_item){ expr_seq2(x->b, name, object_value(&o, &o.keys[i], patterns)),
                                !o.keys[i].is_required };
        n_required += o.keys[i].is_required;
    }
    const struct expr *rest = object_rest(&o);
    if (x->b->code || !object_counts(&o, rest, n_required, &min, &max, &needs_one))
        return expr_none();
    unsigned flags = needs_one ? LIST_NEEDS_ONE : 0;
    if (object_is_any_order(&o)) {
        if (o.n > SET_MAX)
            return json_schema_fail(x, ERR_FULL, json_schema_at(m), "properties",
                                    "are more than 62 and cannot be in any order");
        flags |= LIST_ANY_ORDER;
    }
    bool is_round = m->is_call; /* only Python's are */
    return json_text_list(x->b, is_round ? '(' : '{', is_round ? ')' : '}', items, (int32_t)o.n,
                          rest, min, max, flags);
}
