/* json_schema.c - JSON schemas (2020-12, and what older drafts wrote otherwise) as expressions: references, combinations, values and
 * types. Whatever is not understood is an error that says where; what is left out on purpose is in the table below. */
#include "grammar/json_schema_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_SCHEMA_DEPTH 200

/* --- keywords --- */

enum keyword_kind {
    KEYWORD_KNOWN,
    KEYWORD_NOTE, /* says nothing about which values there are */
    KEYWORD_WEAK, /* says more than is enforced: named to the caller */
    KEYWORD_NO,   /* cannot be enforced */
};

static const struct {
    const char *name;
    enum keyword_kind kind;
} keywords[] = {
    { "$ref", KEYWORD_KNOWN },
    { "type", KEYWORD_KNOWN },
    { "enum", KEYWORD_KNOWN },
    { "const", KEYWORD_KNOWN },
    { "anyOf", KEYWORD_KNOWN },
    { "oneOf", KEYWORD_KNOWN },
    { "allOf", KEYWORD_KNOWN },
    { "properties", KEYWORD_KNOWN },
    { "required", KEYWORD_KNOWN },
    { "additionalProperties", KEYWORD_KNOWN },
    { "unevaluatedProperties", KEYWORD_KNOWN },
    { "patternProperties", KEYWORD_KNOWN },
    { "propertyNames", KEYWORD_KNOWN },
    { "minProperties", KEYWORD_KNOWN },
    { "maxProperties", KEYWORD_KNOWN },
    { "items", KEYWORD_KNOWN },
    { "prefixItems", KEYWORD_KNOWN },
    { "additionalItems", KEYWORD_KNOWN },
    { "minItems", KEYWORD_KNOWN },
    { "maxItems", KEYWORD_KNOWN },
    { "minLength", KEYWORD_KNOWN },
    { "maxLength", KEYWORD_KNOWN },
    { "pattern", KEYWORD_KNOWN },
    { "format", KEYWORD_KNOWN },
    { "minimum", KEYWORD_KNOWN },
    { "maximum", KEYWORD_KNOWN },
    { "exclusiveMinimum", KEYWORD_KNOWN },
    { "exclusiveMaximum", KEYWORD_KNOWN },
    { "multipleOf", KEYWORD_KNOWN },
    { "$schema", KEYWORD_NOTE },
    { "$id", KEYWORD_NOTE },
    { "id", KEYWORD_NOTE },
    { "$anchor", KEYWORD_NOTE },
    { "$comment", KEYWORD_NOTE },
    { "$vocabulary", KEYWORD_NOTE },
    { "$defs", KEYWORD_NOTE },
    { "definitions", KEYWORD_NOTE },
    { "title", KEYWORD_NOTE },
    { "description", KEYWORD_NOTE },
    { "default", KEYWORD_NOTE },
    { "example", KEYWORD_NOTE },
    { "examples", KEYWORD_NOTE },
    { "deprecated", KEYWORD_NOTE },
    { "readOnly", KEYWORD_NOTE },
    { "writeOnly", KEYWORD_NOTE },
    { "contentEncoding", KEYWORD_NOTE },
    { "contentMediaType", KEYWORD_NOTE },
    { "contentSchema", KEYWORD_NOTE },
    { "discriminator", KEYWORD_NOTE },
    { "externalDocs", KEYWORD_NOTE },
    { "xml", KEYWORD_NOTE },
    { "strict", KEYWORD_NOTE },
    { "uniqueItems", KEYWORD_WEAK },
    { "not", KEYWORD_NO },
    { "if", KEYWORD_NO },
    { "then", KEYWORD_NO },
    { "else", KEYWORD_NO },
    { "contains", KEYWORD_NO },
    { "minContains", KEYWORD_NO },
    { "maxContains", KEYWORD_NO },
    { "dependentRequired", KEYWORD_KNOWN },
    { "dependentSchemas", KEYWORD_KNOWN },
    { "dependencies", KEYWORD_KNOWN },
    { "unevaluatedItems", KEYWORD_NO },
    { "$dynamicRef", KEYWORD_NO },
    { "$dynamicAnchor", KEYWORD_NO },
    { "$recursiveRef", KEYWORD_NO },
    { "$recursiveAnchor", KEYWORD_NO },
};

const struct expr *json_schema_fail(struct json_schema *x, enum err_code code, const char *path,
                                    const char *keyword, const char *what)
{
    return build_fail(x->b, code, "%.120s: %.60s %s", path, keyword, what);
}

static void schema_check_keywords(struct json_schema *x, const struct json *v, const char *path)
{
    for (size_t i = 0; i < v->n && !x->b->code; i++) {
        const char *name = v->members[i].key;
        size_t k = 0;
        while (k < ARRAY_LEN(keywords) && strcmp(keywords[k].name, name) != 0)
            k++;
        enum keyword_kind kind = k < ARRAY_LEN(keywords) ? keywords[k].kind : KEYWORD_WEAK;
        bool is_off = json_is(&v->members[i].value, JSON_TYPE_BOOL) && !v->members[i].value.boolean;
        if (kind == KEYWORD_NO)
            json_schema_fail(x, ERR_UNSUPPORTED, path, name, "cannot be enforced");
        else if (kind == KEYWORD_WEAK && !is_off)
            build_note(x->b, name);
    }
}

const char *json_schema_path(struct json_schema *x, const char *path, const char *more, size_t n)
{
    size_t len = strlen(path);
    char *p = build_alloc(x->b, len + n + 2);
    memcpy(p, path, len);
    p[len] = '/';
    memcpy(p + len + 1, more, n);
    return p;
}

const char *json_schema_at(const struct meeting *m)
{
    return m->n > 0 ? m->s[0].path : "#";
}

/* --- meetings --- */

struct join_link { /* schemas that are being joined, one because of the other */
    const struct json *v;
    const struct join_link *up;
};

static void schema_join_dependents(struct json_schema *x, struct meeting *m, const struct json *v,
                                   const char *path, const struct join_link *up);

static void schema_join(struct json_schema *x, struct meeting *m, const struct json *v,
                        const char *path, const struct join_link *up)
{
    struct join_link here = { v, up };
    if (x->b->code)
        return;
    if (json_is(v, JSON_TYPE_BOOL)) {
        m->is_none = m->is_none || !v->boolean;
        return;
    }
    if (!json_is(v, JSON_TYPE_OBJECT)) {
        json_schema_fail(x, ERR_INVALID, path, "", "is no schema: an object, true or false");
        return;
    }
    for (const struct join_link *l = up; l; l = l->up)
        if (l->v == v) {
            json_schema_fail(x, ERR_INVALID, path, "$ref", "refers to itself and to nothing else");
            return;
        }
    for (int i = 0; i < m->n; i++) {
        if (m->s[i].v != v)
            continue;
        if (m->s[i].done) /* as a branch of its own */
            json_schema_fail(x, ERR_INVALID, path, "$ref", "refers to itself and to nothing else");
        return;
    }
    if (m->n == MEETING_MAX) {
        json_schema_fail(x, ERR_FULL, path, "allOf", "joins too many schemas");
        return;
    }
    m->s[m->n++] = (struct meeting_schema){ .v = v, .path = path };
    schema_check_keywords(x, v, path);
    const struct json *ref = json_get(v, "$ref"), *all = json_get(v, "allOf");
    if (ref) {
        const struct json *to = json_schema_resolve(x, v, path);
        if (to)
            schema_join(x, m, to, json_schema_path(x, path, "$ref", 4), &here);
    }
    if (all && (!json_is(all, JSON_TYPE_ARRAY) || all->n == 0))
        json_schema_fail(x, ERR_INVALID, path, "allOf", "must be an array, not empty");
    for (size_t i = 0; json_is(all, JSON_TYPE_ARRAY) && i < all->n; i++)
        schema_join(x, m, &all->items[i], json_schema_path(x, path, "allOf", 5), &here);
    schema_join_dependents(x, m, v, path, &here);
}

static void schema_join_dependents(struct json_schema *x, struct meeting *m, const struct json *v,
                                   const char *path, const struct join_link *up)
{
    static const char *const names[] = { "dependentRequired", "dependentSchemas", "dependencies" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct json *map = json_get(v, names[i]);
        if (map && !json_is(map, JSON_TYPE_OBJECT)) {
            json_schema_fail(x, ERR_INVALID, path, names[i], "must be an object");
            return;
        }
        for (size_t k = 0; map && k < map->n && !x->b->code; k++)
            schema_join(x, m, json_schema_depend(x, &map->members[k]),
                        json_schema_path(x, path, names[i], strlen(names[i])), up);
    }
}

void json_schema_join(struct json_schema *x, struct meeting *m, const struct json *v,
                      const char *path)
{
    m->n_roots++;
    schema_join(x, m, v, path, NULL);
}

/* A branch of a schema that is in the meeting. */
static void schema_join_branch(struct json_schema *x, struct meeting *m, const struct json *v,
                               const char *path)
{
    schema_join(x, m, v, path, NULL);
}

static const struct expr *schema_compile(struct json_schema *x, const struct meeting *m);

static int schema_compare(const void *a, const void *b)
{
    const struct meeting_schema *x = a, *y = b;
    return x->v < y->v ? -1 : x->v > y->v;
}

/* Where it matters which of the schemas the others are parts of. */
static bool schema_has_parts(const struct meeting *m)
{
    for (int i = 0; i < m->n; i++)
        if (json_get(m->s[i].v, "unevaluatedProperties"))
            return true;
    return false;
}

const struct expr *json_schema_meet(struct json_schema *x, const struct meeting *m)
{
    struct meeting sorted = *m;
    bool has_parts = schema_has_parts(m);
    const struct json *first = has_parts ? m->s[0].v : NULL;
    int n_roots = has_parts ? m->n_roots : 0;
    uint64_t h = m->is_call;
    if (x->b->code || m->is_none)
        return expr_none();
    qsort(sorted.s, (size_t)sorted.n, sizeof(*sorted.s), schema_compare);
    for (int i = 0; i < sorted.n; i++)
        h = (h ^ (uint64_t)(uintptr_t)sorted.s[i].v ^ sorted.s[i].done) * 0x9E3779B97F4A7C15u;
    struct schema_reader_memo **slot = &x->slots[h >> 40 & (JSON_SCHEMA_SLOTS - 1)];
    for (const struct schema_reader_memo *k = *slot; k; k = k->next) {
        bool is_same = k->hash == h && k->n == sorted.n && k->is_call == m->is_call &&
                       k->first == first && k->n_roots == n_roots;
        for (int i = 0; is_same && i < k->n; i++)
            is_same = k->v[i] == sorted.s[i].v && k->done[i] == sorted.s[i].done;
        if (is_same)
            return expr_rule(x->b, k->rule);
    }
    if (++x->depth > JSON_SCHEMA_DEPTH)
        return json_schema_fail(x, ERR_FULL, json_schema_at(m), "",
                                "the schema is nested too deep");
    struct schema_reader_memo *k = build_alloc(x->b, sizeof(*k));
    k->hash = h;
    k->n = sorted.n;
    k->n_roots = n_roots;
    k->first = first;
    k->is_call = m->is_call;
    for (int i = 0; i < sorted.n; i++) {
        k->v[i] = sorted.s[i].v;
        k->done[i] = sorted.s[i].done;
    }
    k->rule = build_new_rule(x->b, json_schema_at(m));
    k->next = *slot;
    *slot = k;
    build_set_rule(x->b, k->rule, schema_compile(x, m));
    x->depth--;
    return x->b->code || build_is_late(x->b) ? expr_none() : expr_rule(x->b, k->rule);
}

/* --- combinations --- */

static unsigned schema_type_bit(const struct json *name)
{
    static const char *const names[] = { "null",  "boolean", "number", "string",
                                         "array", "object",  "integer" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_str_eq(name, names[i]))
            return 1u << i;
    return 0;
}

#define TYPE_NULL    1u
#define TYPE_BOOL    2u
#define TYPE_NUMBER  4u
#define TYPE_STRING  8u
#define TYPE_ARRAY   16u
#define TYPE_OBJECT  32u
#define TYPE_INTEGER 64u
#define TYPE_ALL     127u

/* Bits of the types that `type` names; a number may be an integer. */
static unsigned schema_types_of(const struct json *v)
{
    const struct json *type = json_get(v, "type");
    unsigned types = 0;
    if (!type)
        return TYPE_ALL;
    if (json_is(type, JSON_TYPE_STRING))
        types = schema_type_bit(type);
    for (size_t i = 0; json_is(type, JSON_TYPE_ARRAY) && i < type->n; i++) {
        unsigned bit = schema_type_bit(&type->items[i]);
        if (bit == 0)
            return 0;
        types |= bit;
    }
    return types & TYPE_NUMBER ? types | TYPE_INTEGER : types;
}

/* Two branches of oneOf of which no value satisfies both, for all that is easily seen: types, or a property with other constants. */
static bool schema_is_apart(struct json_schema *x, const struct json *a, const struct json *b)
{
    for (int i = 0; i < 8 && json_get(a, "$ref"); i++)
        a = json_schema_resolve(x, a, "oneOf");
    for (int i = 0; i < 8 && json_get(b, "$ref"); i++)
        b = json_schema_resolve(x, b, "oneOf");
    if (x->b->code || !json_is(a, JSON_TYPE_OBJECT) || !json_is(b, JSON_TYPE_OBJECT))
        return (json_is(a, JSON_TYPE_BOOL) && !a->boolean) ||
               (json_is(b, JSON_TYPE_BOOL) && !b->boolean); /* false: no value at all */
    const struct json *p = json_get(a, "properties"), *q = json_get(b, "properties");
    const struct json *c = json_get(a, "const"), *d = json_get(b, "const");
    if ((schema_types_of(a) & schema_types_of(b)) == 0)
        return true;
    if (json_is(c, JSON_TYPE_STRING) && json_is(d, JSON_TYPE_STRING))
        return strcmp(c->text, d->text) != 0;
    for (size_t i = 0; json_is(p, JSON_TYPE_OBJECT) && i < p->n; i++) {
        const struct json *other = json_get(q, p->members[i].key);
        c = json_get(&p->members[i].value, "const");
        d = json_get(other, "const");
        const struct json *need = json_get(a, "required");
        bool is_needed = false;
        for (size_t k = 0; json_is(need, JSON_TYPE_ARRAY) && k < need->n; k++)
            is_needed = is_needed || json_str_eq(&need->items[k], p->members[i].key);
        if (is_needed && json_is(c, JSON_TYPE_STRING) && json_is(d, JSON_TYPE_STRING) &&
            strcmp(c->text, d->text) != 0)
            return true;
    }
    return false;
}

static void schema_check_one_of(struct json_schema *x, const struct json *list)
{
    for (size_t i = 0; i < list->n; i++)
        for (size_t k = i + 1; k < list->n && i < 64; k++)
            if (!schema_is_apart(x, &list->items[i], &list->items[k])) {
                build_note(x->b, "oneOf");
                return;
            }
}

/* A branch of anyOf or oneOf at a time, each with all the rest of the meeting. NULL: there is none of them left. */
static const struct expr *schema_branches(struct json_schema *x, const struct meeting *m)
{
    static const char *const names[] = { "anyOf", "oneOf" };
    for (int i = 0; i < m->n; i++)
        for (int k = 0; k < 2; k++) {
            const struct json *list = json_get(m->s[i].v, names[k]);
            struct expr_list all = { 0 };
            if (!list || m->s[i].done >> k & 1)
                continue;
            if (!json_is(list, JSON_TYPE_ARRAY) || list->n == 0)
                return json_schema_fail(x, ERR_INVALID, m->s[i].path, names[k],
                                        "must be an array, not empty");
            if (k == 1)
                schema_check_one_of(x, list);
            for (size_t j = 0; j < list->n && !x->b->code; j++) {
                char text[40];
                int n = snprintf(text, sizeof(text), "%s/%zu", names[k], j);
                struct meeting with = *m;
                with.s[i].done |= 1u << k;
                schema_join_branch(x, &with, &list->items[j],
                                   json_schema_path(x, m->s[i].path, text, (size_t)n));
                expr_list_add(x->b, &all, json_schema_meet(x, &with));
            }
            return expr_alt(x->b, all.items, all.n);
        }
    return NULL;
}

/* --- values --- */

struct schema_strings {
    struct json_schema *x;
    const struct meeting *m;
    const struct json **values; /* [n] */
    size_t n;
};

/* Those of the values that the patterns allow, without their quotes. */
static const struct expr *schema_strings(struct build *b, const void *arg)
{
    const struct schema_strings *s = arg;
    struct expr_list all = { 0 };
    for (size_t i = 0; i < s->n && !b->code; i++)
        expr_list_add(b, &all, json_text_plain(b, s->values[i]->text, s->values[i]->len));
    const struct expr *e = expr_alt(b, all.items, all.n);
    const struct expr *patterns = s->n > 0 ? json_schema_patterns(s->x, s->m) : NULL;
    return patterns ? expr_and(b, e, patterns) : e;
}

/* enum and const: those of their values that everything else allows. NULL: there are none of these keywords. */
static const struct expr *schema_values(struct json_schema *x, const struct meeting *m)
{
    const struct json *list = NULL, *only = NULL;
    struct expr_list all = { 0 };
    struct schema_strings strings = { x, m, NULL, 0 };
    for (int i = 0; i < m->n; i++) {
        const struct json *e = json_get(m->s[i].v, "enum"), *c = json_get(m->s[i].v, "const");
        if (e && (!json_is(e, JSON_TYPE_ARRAY) || e->n == 0))
            return json_schema_fail(x, ERR_INVALID, m->s[i].path, "enum",
                                    "must be an array, not empty");
        list = e && !list ? e : list;
        only = c ? c : only;
    }
    if (!list && !only)
        return NULL;
    struct json_schema_check *check = build_alloc(x->b, sizeof(*check));
    json_schema_check_init(x, m, only ? only : list, check);
    size_t n = only ? 1 : list->n;
    strings.values = build_alloc(x->b, n * sizeof(*strings.values));
    for (size_t i = 0; i < n && !x->b->code; i++) {
        const struct json *v = only ? only : &list->items[i];
        if (!json_schema_allows(x, check, v))
            continue;
        if (json_is(v, JSON_TYPE_STRING))
            strings.values[strings.n++] = v;
        else
            expr_list_add(x->b, &all, json_text_constant(x->b, v));
    }
    json_schema_patterns(x, m); /* what is wrong with them is told though no string is there */
    if (strings.n > 0)
        expr_list_add(x->b, &all, json_text_quoted(x->b, schema_strings, &strings));
    return expr_alt(x->b, all.items, all.n);
}

/* Types that a schema without `type` is about, by its keywords; 0: about any. */
static unsigned schema_implied(const struct json *v)
{
    static const struct {
        const char *name;
        unsigned types;
    } rows[] = {
        { "properties", TYPE_OBJECT },
        { "required", TYPE_OBJECT },
        { "additionalProperties", TYPE_OBJECT },
        { "patternProperties", TYPE_OBJECT },
        { "propertyNames", TYPE_OBJECT },
        { "unevaluatedProperties", TYPE_OBJECT },
        { "dependentRequired", TYPE_OBJECT },
        { "dependentSchemas", TYPE_OBJECT },
        { "dependencies", TYPE_OBJECT },
        { "minProperties", TYPE_OBJECT },
        { "maxProperties", TYPE_OBJECT },
        { "items", TYPE_ARRAY },
        { "prefixItems", TYPE_ARRAY },
        { "minItems", TYPE_ARRAY },
        { "maxItems", TYPE_ARRAY },
        { "minLength", TYPE_STRING },
        { "maxLength", TYPE_STRING },
        { "pattern", TYPE_STRING },
        { "format", TYPE_STRING },
        { "minimum", TYPE_NUMBER | TYPE_INTEGER },
        { "maximum", TYPE_NUMBER | TYPE_INTEGER },
        { "exclusiveMinimum", TYPE_NUMBER | TYPE_INTEGER },
        { "exclusiveMaximum", TYPE_NUMBER | TYPE_INTEGER },
        { "multipleOf", TYPE_NUMBER | TYPE_INTEGER },
    };
    unsigned types = 0;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (json_get(v, rows[i].name))
            types |= rows[i].types;
    return types;
}

static unsigned schema_types(struct json_schema *x, const struct meeting *m)
{
    unsigned types = TYPE_ALL, implied = 0;
    bool has_type = false;
    for (int i = 0; i < m->n; i++) {
        unsigned t = schema_types_of(m->s[i].v);
        if (t == 0)
            json_schema_fail(x, ERR_INVALID, m->s[i].path, "type", "names no type of JSON");
        types &= t;
        has_type = has_type || json_get(m->s[i].v, "type");
        implied |= schema_implied(m->s[i].v);
    }
    return has_type || implied == 0 ? types : implied;
}

/* A call's arguments are an object, and its members are not put together as those of others are. */
static const struct expr *schema_call(struct json_schema *x, const struct meeting *m)
{
    for (int i = 0; i < m->n; i++)
        if (json_get(m->s[i].v, "enum") || json_get(m->s[i].v, "const"))
            return json_schema_fail(x, ERR_UNSUPPORTED, m->s[i].path, "enum",
                                    "cannot be enforced for all the arguments of a call");
    return schema_types(x, m) & TYPE_OBJECT ? json_schema_object(x, m) : expr_none();
}

static const struct expr *schema_compile(struct json_schema *x, const struct meeting *m)
{
    struct expr_list all = { 0 };
    const struct expr *e = schema_branches(x, m);
    if (!e && m->is_call)
        e = schema_call(x, m);
    if (!e)
        e = schema_values(x, m);
    if (e || x->b->code)
        return x->b->code ? expr_none() : e;
    unsigned types = schema_types(x, m), implied = 0;
    for (int i = 0; i < m->n; i++)
        implied |= schema_implied(m->s[i].v);
    if (types == TYPE_ALL && implied == 0)
        return json_text_value(x->b);
    if (types & TYPE_NULL)
        expr_list_add(x->b, &all, json_text_word(x->b, "null"));
    if (types & TYPE_BOOL)
        expr_list_add(x->b, &all,
                      expr_alt2(x->b, json_text_word(x->b, "true"), json_text_word(x->b, "false")));
    if (types & TYPE_STRING)
        expr_list_add(x->b, &all, json_schema_string(x, m));
    if (types & (TYPE_NUMBER | TYPE_INTEGER))
        expr_list_add(x->b, &all, json_schema_number(x, m, !(types & TYPE_NUMBER)));
    if (types & TYPE_ARRAY)
        expr_list_add(x->b, &all, json_schema_array(x, m));
    if (types & TYPE_OBJECT)
        expr_list_add(x->b, &all, json_schema_object(x, m));
    return expr_alt(x->b, all.items, all.n);
}

const struct expr *json_schema_read(struct build *b, const struct json *schema)
{
    struct json_schema *x = build_alloc(b, sizeof(*x));
    struct meeting m = { .is_call = b->text == TEXT_PYTHON };
    x->b = b;
    x->root = schema;
    json_schema_index(x);
    json_schema_join(x, &m, schema, "#");
    const struct expr *e = json_schema_meet(x, &m);
    if (!b->code && e->kind == EXPR_NONE)
        return build_fail(b, ERR_INVALID, "#: no value satisfies the schema");
    return e;
}
