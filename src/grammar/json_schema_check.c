/* json_schema_check.c - does a value that the schema itself names (enum, const) satisfy all else? Patterns and formats are left to the
 * automata. */
#include "grammar/json_schema_int.h"

#include <math.h>
#include <string.h>

#define CHECK_DEPTH 64

static bool check_equal(const struct json *a, const struct json *b)
{
    double x, y;
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case JSON_TYPE_NULL:
        return true;
    case JSON_TYPE_BOOL:
        return a->boolean == b->boolean;
    case JSON_TYPE_NUMBER:
        if (json_to_double(a, "", -INFINITY, INFINITY, &x, NULL) != ERR_OK ||
            json_to_double(b, "", -INFINITY, INFINITY, &y, NULL) != ERR_OK)
            return strcmp(a->text, b->text) == 0;
        return x == y;
    case JSON_TYPE_STRING:
        return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
    case JSON_TYPE_ARRAY:
        for (size_t i = 0; a->n == b->n && i < a->n; i++)
            if (!check_equal(&a->items[i], &b->items[i]))
                return false;
        return a->n == b->n;
    case JSON_TYPE_OBJECT:
        for (size_t i = 0; a->n == b->n && i < a->n; i++) {
            const struct json *v = json_get(b, a->members[i].key);
            if (!v || !check_equal(&a->members[i].value, v))
                return false;
        }
        return a->n == b->n;
    }
    return false;
}

static bool check_type(const struct json *type, const struct json *v)
{
    static const char *const names[] = { "null", "boolean", "number", "string", "array", "object" };
    for (size_t i = 0; json_is(type, JSON_TYPE_ARRAY) && i < type->n; i++)
        if (check_type(&type->items[i], v))
            return true;
    if (json_is(type, JSON_TYPE_ARRAY))
        return false;
    if (!json_str_eq(type, "integer"))
        return json_str_eq(type, names[v->type]);
    double x;
    return v->type == JSON_TYPE_NUMBER &&
           json_to_double(v, "", -INFINITY, INFINITY, &x, NULL) == ERR_OK && x == floor(x);
}

static bool check_limit(const struct json *s, const char *keyword, double value, int sign)
{
    const struct json *limit = json_get(s, keyword);
    double x;
    if (!limit || json_to_double(limit, "", -INFINITY, INFINITY, &x, NULL) != ERR_OK)
        return true;
    return sign < 0 ? value >= x : value <= x;
}

static bool check_number(const struct json *s, const struct json *v)
{
    const struct json *low = json_get(s, "exclusiveMinimum"),
                      *high = json_get(s, "exclusiveMaximum"),
                      *multiple = json_get(s, "multipleOf");
    double x, y;
    if (json_to_double(v, "", -INFINITY, INFINITY, &x, NULL) != ERR_OK)
        return false;
    if (!check_limit(s, "minimum", x, -1) || !check_limit(s, "maximum", x, 1))
        return false;
    if (json_is(low, JSON_TYPE_NUMBER) &&
        (json_to_double(low, "", -INFINITY, INFINITY, &y, NULL) != ERR_OK || x <= y))
        return false;
    if (json_is(high, JSON_TYPE_NUMBER) &&
        (json_to_double(high, "", -INFINITY, INFINITY, &y, NULL) != ERR_OK || x >= y))
        return false;
    if (json_is(multiple, JSON_TYPE_NUMBER) &&
        (json_to_double(multiple, "", -INFINITY, INFINITY, &y, NULL) != ERR_OK ||
         x / y != floor(x / y)))
        return false;
    return true;
}

static bool check_schema(struct json_schema *x, const struct json *s, const struct json *v,
                         int depth);

static bool check_array(struct json_schema *x, const struct json *s, const struct json *v,
                        int depth)
{
    const struct json *prefix = json_get(s, "prefixItems"), *items = json_get(s, "items");
    if (json_is(items, JSON_TYPE_ARRAY)) {
        prefix = items;
        items = json_get(s, "additionalItems");
    }
    for (size_t i = 0; i < v->n; i++) {
        const struct json *one =
            json_is(prefix, JSON_TYPE_ARRAY) && i < prefix->n ? &prefix->items[i] : items;
        if (one && !check_schema(x, one, &v->items[i], depth + 1))
            return false;
    }
    return check_limit(s, "minItems", (double)v->n, -1) &&
           check_limit(s, "maxItems", (double)v->n, 1);
}

static bool check_dependents(struct json_schema *x, const struct json *s, const struct json *v,
                             int depth)
{
    static const char *const names[] = { "dependentRequired", "dependentSchemas", "dependencies" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct json *map = json_get(s, names[i]);
        for (size_t k = 0; map && k < map->n; k++)
            if (!check_schema(x, json_schema_depend(x, &map->members[k]), v, depth + 1))
                return false;
    }
    return true;
}

static bool check_object(struct json_schema *x, const struct json *s, const struct json *v,
                         int depth)
{
    const struct json *required = json_get(s, "required"), *known = json_get(s, "properties");
    const struct json *more = json_get(s, "additionalProperties");
    bool has_patterns = json_get(s, "patternProperties") != NULL;
    for (size_t i = 0; json_is(required, JSON_TYPE_ARRAY) && i < required->n; i++)
        if (!json_is(&required->items[i], JSON_TYPE_STRING) ||
            !json_get(v, required->items[i].text))
            return false;
    for (size_t i = 0; i < v->n; i++) {
        const struct json *one = json_get(known, v->members[i].key);
        if (!one && !has_patterns)
            one = more;
        if (one && !check_schema(x, one, &v->members[i].value, depth + 1))
            return false;
    }
    return check_limit(s, "minProperties", (double)v->n, -1) &&
           check_limit(s, "maxProperties", (double)v->n, 1) && check_dependents(x, s, v, depth);
}

static bool check_any(struct json_schema *x, const struct json *list, const struct json *v,
                      int depth)
{
    for (size_t i = 0; json_is(list, JSON_TYPE_ARRAY) && i < list->n; i++)
        if (check_schema(x, &list->items[i], v, depth + 1))
            return true;
    return !list;
}

static bool check_schema(struct json_schema *x, const struct json *s, const struct json *v,
                         int depth)
{
    if (json_is(s, JSON_TYPE_BOOL))
        return s->boolean;
    if (!json_is(s, JSON_TYPE_OBJECT) || x->b->code)
        return false;
    if (depth > CHECK_DEPTH) {
        build_fail(x->b, ERR_FULL, "enum: a value is too deep to be compared with its schema");
        return false;
    }
    const struct json *ref = json_get(s, "$ref"), *type = json_get(s, "type");
    const struct json *list = json_get(s, "enum"), *only = json_get(s, "const");
    const struct json *all = json_get(s, "allOf");
    if (ref) {
        const struct json *to = json_schema_resolve(x, s, "enum");
        if (!to || !check_schema(x, to, v, depth + 1))
            return false;
    }
    bool is_listed = !json_is(list, JSON_TYPE_ARRAY);
    for (size_t i = 0; !is_listed && i < list->n; i++)
        is_listed = check_equal(&list->items[i], v);
    x->b->work += 1 + (json_is(list, JSON_TYPE_ARRAY) ? (int64_t)list->n : 0);
    if (build_is_late(x->b))
        return false;
    if ((type && !check_type(type, v)) || !is_listed || (only && !check_equal(only, v)))
        return false;
    for (size_t i = 0; json_is(all, JSON_TYPE_ARRAY) && i < all->n; i++)
        if (!check_schema(x, &all->items[i], v, depth + 1))
            return false;
    if (!check_any(x, json_get(s, "anyOf"), v, depth) ||
        !check_any(x, json_get(s, "oneOf"), v, depth))
        return false;
    if (v->type == JSON_TYPE_STRING) {
        double n = (double)json_text_length(v->text, v->len);
        return check_limit(s, "minLength", n, -1) && check_limit(s, "maxLength", n, 1);
    }
    if (v->type == JSON_TYPE_NUMBER)
        return check_number(s, v);
    if (v->type == JSON_TYPE_ARRAY)
        return check_array(x, s, v, depth);
    return v->type != JSON_TYPE_OBJECT || check_object(x, s, v, depth);
}

void json_schema_check_init(struct json_schema *x, const struct meeting *m, const struct json *list,
                            struct json_schema_check *out)
{
    out->n = m->n;
    for (int i = 0; i < m->n; i++) {
        const struct json *v = m->s[i].v;
        struct json_member *members = build_alloc(x->b, (v->n + 1) * sizeof(*members));
        size_t k = 0;
        for (size_t j = 0; j < v->n; j++) {
            /* What these lead to is part of the meeting. */
            const char *key = v->members[j].key;
            bool is_joined = strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 ||
                             strcmp(key, "allOf") == 0 || strcmp(key, "$ref") == 0;
            if (!is_joined && &v->members[j].value != list)
                members[k++] = v->members[j];
        }
        out->s[i] = *v;
        out->s[i].members = members;
        out->s[i].n = k;
    }
}

bool json_schema_allows(struct json_schema *x, const struct json_schema_check *c,
                        const struct json *value)
{
    for (int i = 0; i < c->n; i++)
        if (!check_schema(x, &c->s[i], value, 0))
            return false;
    return true;
}
