/* json_schema_depend.c - dependentRequired, dependentSchemas and the older dependencies, as the schemas that say the same: a key is not there,
 * or it is and so is what it depends on. */
#include "grammar/json_schema_int.h"

#include <string.h>

static struct json *depend_object(struct build *b, size_t n)
{
    struct json *v = build_alloc(b, sizeof(*v));
    v->type = JSON_TYPE_OBJECT;
    v->members = build_alloc(b, n * sizeof(*v->members));
    return v;
}

static struct json *depend_add(struct json *v, const char *key, struct json value)
{
    struct json_member *m = &v->members[v->n++];
    m->key = key;
    m->key_len = strlen(key);
    m->value = value;
    return v;
}

static struct json depend_array(struct build *b, size_t n)
{
    return (struct json){ .type = JSON_TYPE_ARRAY,
                          .items = build_alloc(b, (n + 1) * sizeof(struct json)) };
}

/* {"properties": {key: false}} */
static struct json depend_without(struct build *b, const struct json_member *key)
{
    struct json *keys = depend_object(b, 1);
    keys->n = 1;
    keys->members[0] = (struct json_member){ .key = key->key, .key_len = key->key_len };
    keys->members[0].value = (struct json){ .type = JSON_TYPE_BOOL };
    return *depend_add(depend_object(b, 1), "properties", *keys);
}

/* {"required": [key, ...], "allOf": [schema]}: one of `names` and `schema` is there. */
static struct json depend_with(struct build *b, const struct json_member *key,
                               const struct json *names, const struct json *schema)
{
    struct json *v = depend_object(b, 2), list = depend_array(b, names ? names->n : 0);
    list.items[list.n++] =
        (struct json){ .type = JSON_TYPE_STRING, .text = key->key, .len = key->key_len };
    for (size_t i = 0; names && i < names->n; i++)
        list.items[list.n++] = names->items[i];
    depend_add(v, "required", list);
    if (schema) {
        struct json all = depend_array(b, 1);
        all.items[all.n++] = *schema;
        depend_add(v, "allOf", all);
    }
    return *v;
}

static const struct json *depend_make(struct build *b, const struct json_member *key)
{
    bool is_list = json_is(&key->value, JSON_TYPE_ARRAY);
    struct json any = depend_array(b, 2);
    any.items[any.n++] = depend_without(b, key);
    any.items[any.n++] =
        depend_with(b, key, is_list ? &key->value : NULL, is_list ? NULL : &key->value);
    return depend_add(depend_object(b, 1), "anyOf", any);
}

const struct json *json_schema_depend(struct json_schema *x, const struct json_member *key)
{
    for (struct schema_made *m = x->made; m; m = m->next)
        if (m->key == key)
            return m->v;
    struct schema_made *m = build_alloc(x->b, sizeof(*m));
    m->key = key;
    m->v = depend_make(x->b, key);
    m->next = x->made;
    x->made = m;
    return m->v;
}
