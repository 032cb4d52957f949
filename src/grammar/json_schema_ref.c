/* json_schema_ref.c - what $ref names: a pointer, an anchor, or a schema of the same document by its $id. Nothing is ever fetched.
 *
 * References are resolved as RFC 3986, 5.2 says, against the $id of the schema that is around them. Schemas are looked for where keywords
 * hold them, so that a "$id" in an enum is a value. */
#include "grammar/json_schema_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REF_URI 1024

struct schema_place { /* a schema, and the resource that it is in */
    const struct json *v;
    int32_t resource;
};

struct schema_name { /* of a resource, or an anchor in one */
    const char *text;
    const struct json *v;
    int32_t resource; /* of an anchor; -1: the text is a resource's URI */
};

struct schema_index {
    struct schema_place *places; /* [n_places] by address */
    struct schema_name *names;   /* [n_names] resources and anchors */
    int32_t n_places, cap_places, n_names, cap_names;
};

/* --- URIs --- */

/* Length of "scheme:", 0: there is none. */
static size_t uri_scheme(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
    return n > 0 && s[n] == ':' ? n + 1 : 0;
}

/* Of "scheme:" and "//host" what there is: where the path begins. */
static size_t uri_root(const char *s)
{
    size_t n = uri_scheme(s);
    return strncmp(s + n, "//", 2) == 0 ? n + 2 + strcspn(s + n + 2, "/?#") : n;
}

/* "/a/b/../c" is "/a/c". */
static void uri_remove_dots(char *path)
{
    char *out = path;
    const char *p = path;
    while (*p) {
        size_t n = 1 + strcspn(p + 1, "/");
        bool is_last = p[n] == '\0';
        if (strncmp(p, "/..", n) == 0 && n == 3) {
            while (out > path && *--out != '/')
                ;
            if (is_last)
                *out++ = '/';
        } else if (strncmp(p, "/.", n) == 0 && n == 2) {
            if (is_last)
                *out++ = '/';
        } else {
            memmove(out, p, n);
            out += n;
        }
        p += n;
    }
    *out = '\0';
}

/* ref (without a fragment) seen from base. False: it is too long. */
static bool uri_resolve(const char *base, const char *ref, char out[REF_URI])
{
    size_t root = uri_root(base), n;
    if (uri_scheme(ref) || base[0] == '\0')
        n = (size_t)snprintf(out, REF_URI, "%s", ref);
    else if (strncmp(ref, "//", 2) == 0)
        n = (size_t)snprintf(out, REF_URI, "%.*s%s", (int)uri_scheme(base), base, ref);
    else if (ref[0] == '/')
        n = (size_t)snprintf(out, REF_URI, "%.*s%s", (int)root, base, ref);
    else if (ref[0] == '\0')
        n = (size_t)snprintf(out, REF_URI, "%s", base);
    else {
        const char *slash = strrchr(base + root, '/');
        n = (size_t)snprintf(out, REF_URI, "%.*s%s%s", (int)(slash ? slash + 1 - base : (long)root),
                             base, slash ? "" : "/", ref);
    }
    if (n >= REF_URI)
        return false;
    root = uri_root(out);
    if (out[root] == '/')
        uri_remove_dots(out + root);
    return true;
}

/* --- where schemas are --- */

static void index_schema(struct json_schema *x, const struct json *v, int32_t resource);

static void index_name(struct json_schema *x, struct schema_name name)
{
    struct schema_index *s = x->index;
    if (s->n_names == s->cap_names) {
        int32_t cap = s->cap_names ? 2 * s->cap_names : 16;
        struct schema_name *names = build_alloc(x->b, (size_t)cap * sizeof(*names));
        if (s->n_names)
            memcpy(names, s->names, (size_t)s->n_names * sizeof(*names));
        s->names = names;
        s->cap_names = cap;
    }
    s->names[s->n_names++] = name;
}

static void index_place(struct json_schema *x, struct schema_place place)
{
    struct schema_index *s = x->index;
    if (s->n_places == s->cap_places) {
        int32_t cap = s->cap_places ? 2 * s->cap_places : 64;
        struct schema_place *places = build_alloc(x->b, (size_t)cap * sizeof(*places));
        if (s->n_places)
            memcpy(places, s->places, (size_t)s->n_places * sizeof(*places));
        s->places = places;
        s->cap_places = cap;
    }
    s->places[s->n_places++] = place;
}

static void index_kids(struct json_schema *x, const struct json *v, int32_t resource)
{
    static const char *const maps[] = { "properties", "patternProperties", "$defs", "definitions",
                                        "dependentSchemas" };
    static const char *const kids[] = { "allOf",
                                        "anyOf",
                                        "oneOf",
                                        "prefixItems",
                                        "items",
                                        "not",
                                        "if",
                                        "then",
                                        "else",
                                        "contains",
                                        "additionalProperties",
                                        "propertyNames",
                                        "additionalItems",
                                        "unevaluatedItems",
                                        "unevaluatedProperties" };
    for (size_t i = 0; i < ARRAY_LEN(maps); i++) {
        const struct json *map = json_get(v, maps[i]);
        for (size_t k = 0; json_is(map, JSON_TYPE_OBJECT) && k < map->n; k++)
            index_schema(x, &map->members[k].value, resource);
    }
    for (size_t i = 0; i < ARRAY_LEN(kids); i++) {
        const struct json *kid = json_get(v, kids[i]);
        for (size_t k = 0; json_is(kid, JSON_TYPE_ARRAY) && k < kid->n; k++)
            index_schema(x, &kid->items[k], resource);
        if (kid)
            index_schema(x, kid, resource);
    }
}

static const char *index_base(const struct json_schema *x, int32_t resource)
{
    return x->index->names[resource].text;
}

static void index_schema(struct json_schema *x, const struct json *v, int32_t resource)
{
    if (!json_is(v, JSON_TYPE_OBJECT) || x->b->code)
        return;
    const struct json *id = json_get(v, "$id"), *anchor = json_get(v, "$anchor");
    char uri[REF_URI], own[REF_URI];
    if (json_is(id, JSON_TYPE_STRING) && id->len > 0 && id->text[0] != '#' && id->len < REF_URI) {
        snprintf(own, sizeof(own), "%.*s", (int)strcspn(id->text, "#"), id->text);
        if (uri_resolve(index_base(x, resource), own, uri)) {
            char *text = build_alloc(x->b, strlen(uri) + 1);
            memcpy(text, uri, strlen(uri) + 1);
            resource = x->index->n_names;
            index_name(x, (struct schema_name){ text, v, -1 });
        }
    }
    if (json_is(anchor, JSON_TYPE_STRING))
        index_name(x, (struct schema_name){ anchor->text, v, resource });
    index_place(x, (struct schema_place){ v, resource });
    index_kids(x, v, resource);
}

static int index_compare(const void *a, const void *b)
{
    const struct schema_place *x = a, *y = b;
    return x->v < y->v ? -1 : x->v > y->v;
}

void json_schema_index(struct json_schema *x)
{
    x->index = build_alloc(x->b, sizeof(*x->index));
    index_name(x, (struct schema_name){ "", x->root, -1 });
    index_schema(x, x->root, 0);
    if (x->index->n_places > 1)
        qsort(x->index->places, (size_t)x->index->n_places, sizeof(*x->index->places),
              index_compare);
}

/* Where a pointer alone leads to it is not listed: of the document itself. */
static int32_t index_resource(const struct json_schema *x, const struct json *v)
{
    struct schema_place key = { v, 0 };
    const struct schema_place *found = NULL;
    if (x->index->n_places > 0)
        found =
            bsearch(&key, x->index->places, (size_t)x->index->n_places, sizeof(key), index_compare);
    return found ? found->resource : 0;
}

static const struct json *index_find(const struct json_schema *x, const char *text,
                                     int32_t resource, int32_t *out)
{
    for (int32_t i = 0; i < x->index->n_names; i++) {
        const struct schema_name *n = &x->index->names[i];
        if (n->resource != resource || strcmp(n->text, text) != 0)
            continue;
        *out = i;
        return n->v;
    }
    return NULL;
}

/* --- pointers --- */

/* One segment of a JSON pointer in a URI fragment: %41, ~0 and ~1 are decoded. */
static size_t schema_segment(const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        char c = p[i];
        if (c == '%' && i + 2 < n && sscanf(p + i + 1, "%2x", &v) == 1) {
            c = (char)v;
            i += 2;
        }
        out[k++] = c;
    }
    n = k;
    k = 0;
    for (size_t i = 0; i < n; i++) {
        char c = out[i];
        if (c == '~' && i + 1 < n && (out[i + 1] == '0' || out[i + 1] == '1'))
            c = out[++i] == '0' ? '~' : '/';
        out[k++] = c;
    }
    return k;
}

static const struct json *schema_child(const struct json *v, const char *key, size_t n)
{
    if (json_is(v, JSON_TYPE_ARRAY)) {
        size_t i = 0;
        for (size_t k = 0; k < n; k++) {
            if (key[k] < '0' || key[k] > '9' || i > 1000000)
                return NULL;
            i = i * 10 + (size_t)(key[k] - '0');
        }
        return n > 0 && i < v->n ? &v->items[i] : NULL;
    }
    for (size_t i = 0; json_is(v, JSON_TYPE_OBJECT) && i < v->n; i++)
        if (v->members[i].key_len == n && memcmp(v->members[i].key, key, n) == 0)
            return &v->members[i].value;
    return NULL;
}

static const struct json *schema_point(const struct json *at, const char *p)
{
    char key[512];
    while (at && *p == '/') {
        size_t n = strcspn(++p, "/");
        if (n >= sizeof(key))
            return NULL;
        at = schema_child(at, key, schema_segment(p, n, key));
        p += n;
    }
    return *p ? NULL : at;
}

const struct json *json_schema_resolve(struct json_schema *x, const struct json *v,
                                       const char *path)
{
    const struct json *ref = json_get(v, "$ref");
    char own[REF_URI], uri[REF_URI];
    int32_t resource = index_resource(x, v), anchor;
    if (!json_is(ref, JSON_TYPE_STRING) || ref->len >= REF_URI) {
        json_schema_fail(x, ERR_INVALID, path, "$ref",
                         "must be a string, and not longer than 1023");
        return NULL;
    }
    size_t n = strcspn(ref->text, "#");
    snprintf(own, sizeof(own), "%.*s", (int)n, ref->text);
    const struct json *at = x->index->names[resource].v;
    if (n > 0)
        at = uri_resolve(index_base(x, resource), own, uri) ? index_find(x, uri, -1, &resource)
                                                            : NULL;
    if (!at) {
        json_schema_fail(x, ERR_UNSUPPORTED, path, "$ref",
                         "must name a schema of this one (#/..., an $anchor or $id): nothing is "
                         "fetched");
        return NULL;
    }
    const char *fragment = ref->text[n] ? ref->text + n + 1 : "";
    at = fragment[0] && fragment[0] != '/' ? index_find(x, fragment, resource, &anchor)
                                           : schema_point(at, fragment);
    if (!at)
        build_fail(x->b, ERR_INVALID, "%.120s: $ref '%.80s' names nothing in the schema", path,
                   ref->text);
    return at;
}
