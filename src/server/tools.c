#include "server/tools.h"
#include "server/limits.h"
#include "server/relaxed.h"

#include <stdio.h>
#include <string.h>

/* --- reading --- */

static bool tools_read_one(struct tool *tool, const struct json *v, size_t index,
                           struct api_error *e)
{
    const struct json *f = json_get_set(v, "function");
    char where[48];
    snprintf(where, sizeof(where), "tools[%zu]", index);
    if (!json_is(f, JSON_TYPE_OBJECT))
        f = v;
    const struct json *name = json_get_set(f, "name"), *schema = json_get_set(f, "parameters");
    const struct json *strict = json_get_set(f, "strict");
    if (!json_is(name, JSON_TYPE_STRING) || name->len == 0 || name->len >= TOOLS_NAME_BYTES ||
        strlen(name->text) != name->len)
        return api_error_set(e, 400, NULL, where,
                             "%s: needs a function with a name of 1 to %d bytes", where,
                             TOOLS_NAME_BYTES - 1);
    if (schema && !json_is(schema, JSON_TYPE_OBJECT))
        return api_error_set(e, 400, NULL, where, "%s: parameters must be a JSON schema", where);
    *tool = (struct tool){ .name = name->text, .schema = schema };
    tool->is_strict = json_is(strict, JSON_TYPE_BOOL) && strict->boolean;
    return true;
}

bool tools_read(const struct json *body, struct tools **out, struct api_error *e)
{
    const struct json *v = json_get_set(body, "tools");
    struct buf text;
    struct json_writer w;
    struct err err;
    *out = NULL;
    if (!v)
        return true;
    if (!json_is(v, JSON_TYPE_ARRAY))
        return api_error_set(e, 400, NULL, "tools", "tools: must be an array");
    for (size_t i = 0; i < v->n; i++)
        if (!json_is(&v->items[i], JSON_TYPE_OBJECT))
            return api_error_set(e, 400, NULL, "tools", "tools[%zu]: must be an object", i);
    if (v->n == 0)
        return true;
    struct tools *t = mem_alloc(MEM_CAT_REQUEST, sizeof(*t));
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    json_writer_init(&w, &text);
    json_value(&w, v);
    enum err_code code = json_parse(&t->doc, text.data, text.len, LIMIT_JSON_VALUES, &err);
    buf_release(&text);
    bool is_fine = code == ERR_OK;
    if (!is_fine)
        api_error_set(e, 400, NULL, "tools", "tools: %s", err.text);
    t->tools = mem_alloc(MEM_CAT_REQUEST, sizeof(*t->tools) * (v->n + 1));
    for (size_t i = 0; is_fine && i < t->doc.root.n; i++) {
        const struct json *item = &t->doc.root.items[i], *type = json_get_set(item, "type");
        if (type && !json_str_eq(type, "function"))
            continue;
        is_fine = tools_read_one(&t->tools[t->n], item, i, e);
        t->n += is_fine;
    }
    if (!is_fine) {
        tools_free(t);
        return false;
    }
    *out = t;
    return true;
}

/* {"type": "text"}, or {"type": "grammar", "syntax": "lark" or "regex", "definition": TEXT}. */
static bool tools_read_format(struct tool *tool, const struct json *v, size_t index,
                              struct api_error *e)
{
    const struct json *syntax = json_get_set(v, "syntax"), *text = json_get_set(v, "definition");
    char where[48];
    snprintf(where, sizeof(where), "tools[%zu].format", index);
    if (json_str_eq(json_get_set(v, "type"), "text"))
        return true;
    tool->is_lark = json_str_eq(syntax, "lark");
    if (!json_str_eq(json_get_set(v, "type"), "grammar") ||
        !(tool->is_lark || json_str_eq(syntax, "regex")) || !json_is(text, JSON_TYPE_STRING) ||
        strlen(text->text) != text->len)
        return api_error_set(e, 400, NULL, where,
                             "%s: must be of type text, or of type grammar with a definition in "
                             "the syntax lark or regex",
                             where);
    tool->grammar = text->text;
    tool->is_strict = true;
    return true;
}

bool tools_add_formats(struct tools *t, const struct json *custom, struct api_error *e)
{
    struct buf text;
    struct json_writer w;
    struct err err;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    json_writer_init(&w, &text);
    json_value(&w, custom);
    enum err_code code = json_parse(&t->formats, text.data, text.len, LIMIT_JSON_VALUES, &err);
    buf_release(&text);
    if (code)
        return api_error_set(e, 400, NULL, "tools", "tools: %s", err.text);
    for (size_t i = 0; i < t->formats.root.n; i++) {
        const struct json *item = &t->formats.root.items[i], *name = json_get(item, "name");
        const struct json *format = json_get_set(item, "format");
        if (!json_str_eq(json_get(item, "type"), "custom") || !format)
            continue;
        for (size_t k = 0; k < t->n; k++)
            if (json_str_eq(name, t->tools[k].name) &&
                !tools_read_format(&t->tools[k], format, i, e))
                return false;
    }
    return true;
}

void tools_free(struct tools *t)
{
    if (!t)
        return;
    json_doc_release(&t->doc);
    json_doc_release(&t->formats);
    mem_free(MEM_CAT_REQUEST, t->tools);
    mem_free(MEM_CAT_REQUEST, t);
}

const struct tool *tools_find(const struct tools *t, const char *name, size_t n)
{
    for (size_t i = 0; t && i < t->n; i++)
        if (strlen(t->tools[i].name) == n && memcmp(t->tools[i].name, name, n) == 0)
            return &t->tools[i];
    return NULL;
}

/* --- schemas --- */

#define TOOLS_DEPTH 8 /* references and alternatives that are followed */

/* The schema that a local reference names. */
static const struct json *tools_resolve(const struct json *root, const struct json *schema,
                                        int depth)
{
    const struct json *ref = json_get_set(schema, "$ref");
    if (!json_is(ref, JSON_TYPE_STRING) || depth == 0)
        return schema;
    const char *p = ref->text;
    const struct json *at = root;
    if (*p++ != '#')
        return NULL;
    while (*p == '/' && at) {
        char key[TOOLS_NAME_BYTES];
        size_t n = strcspn(++p, "/");
        if (n >= sizeof(key))
            return NULL;
        memcpy(key, p, n);
        key[n] = '\0';
        at = json_get(at, key);
        p += n;
    }
    return at ? tools_resolve(root, at, depth - 1) : NULL;
}

static unsigned tools_types(const struct json *root, const struct json *schema, int depth);

static unsigned tools_bit(const struct json *name)
{
    static const char *const names[] = { "null",  "boolean", "number", "string",
                                         "array", "object",  "integer" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_str_eq(name, names[i]))
            return 1u << (i == 6 ? (size_t)JSON_TYPE_NUMBER : i);
    return 0;
}

static unsigned tools_types_of_any(const struct json *root, const struct json *list, int depth)
{
    unsigned types = 0;
    for (size_t i = 0; i < list->n; i++) {
        unsigned one = tools_types(root, &list->items[i], depth);
        if (one == 0)
            return 0;
        types |= one;
    }
    return types;
}

/* The types that a value of that schema may have, as bits of enum json_type; 0 = it does not say. */
static unsigned tools_types(const struct json *root, const struct json *schema, int depth)
{
    static const char *const choices[] = { "anyOf", "oneOf" };
    unsigned types = 0;
    if (depth == 0)
        return 0;
    schema = tools_resolve(root, schema, depth);
    const struct json *type = json_get_set(schema, "type"), *list = json_get_set(schema, "enum");
    const struct json *only = json_get(schema, "const");
    if (json_is(type, JSON_TYPE_STRING))
        return tools_bit(type);
    for (size_t i = 0; json_is(type, JSON_TYPE_ARRAY) && i < type->n; i++)
        types |= tools_bit(&type->items[i]);
    for (size_t i = 0; types == 0 && json_is(list, JSON_TYPE_ARRAY) && i < list->n; i++)
        types |= 1u << list->items[i].type;
    if (types == 0 && only)
        types = 1u << only->type;
    for (size_t i = 0; i < ARRAY_LEN(choices) && types == 0; i++) {
        const struct json *any = json_get_set(schema, choices[i]);
        if (json_is(any, JSON_TYPE_ARRAY))
            types = tools_types_of_any(root, any, depth - 1);
    }
    return types;
}

static const struct json *tools_property(const struct tool *tool, const char *key, size_t n)
{
    const struct json *all = json_get_set(tool->schema, "properties");
    for (size_t i = 0; json_is(all, JSON_TYPE_OBJECT) && i < all->n; i++)
        if (all->members[i].key_len == n && memcmp(all->members[i].key, key, n) == 0)
            return &all->members[i].value;
    return NULL;
}

enum tools_type tools_type_of(const struct tool *tool, const char *key, size_t n)
{
    const struct json *p = tools_property(tool, key, n);
    unsigned types = p ? tools_types(tool->schema, p, TOOLS_DEPTH) : 0;
    if (types == 0)
        return TOOLS_TYPE_UNKNOWN;
    if (types == 1u << JSON_TYPE_STRING)
        return TOOLS_TYPE_STRING;
    return types & 1u << JSON_TYPE_STRING ? TOOLS_TYPE_UNKNOWN : TOOLS_TYPE_OTHER;
}

static bool tools_has(const struct json *object, const struct json *name)
{
    for (size_t i = 0; i < object->n; i++)
        if (object->members[i].key_len == name->len &&
            memcmp(object->members[i].key, name->text, name->len) == 0)
            return true;
    return false;
}

bool tools_allows(const struct tool *tool, const struct json *arguments)
{
    const struct json *required = json_get_set(tool->schema, "required");
    const struct json *all = json_get_set(tool->schema, "properties");
    if (!json_is(arguments, JSON_TYPE_OBJECT))
        return false;
    if (!tool->schema)
        return true;
    for (size_t i = 0; json_is(required, JSON_TYPE_ARRAY) && i < required->n; i++)
        if (json_is(&required->items[i], JSON_TYPE_STRING) &&
            !tools_has(arguments, &required->items[i]))
            return false;
    for (size_t i = 0; i < arguments->n; i++) {
        const struct json_member *m = &arguments->members[i];
        const struct json *p = tools_property(tool, m->key, m->key_len);
        unsigned types = p ? tools_types(tool->schema, p, TOOLS_DEPTH) : 0;
        const struct json *more = json_get(tool->schema, "additionalProperties");
        bool is_open = !json_is(all, JSON_TYPE_OBJECT) || json_is(more, JSON_TYPE_OBJECT) ||
                       (json_is(more, JSON_TYPE_BOOL) && more->boolean);
        if ((!p && !is_open) || (types != 0 && !(types & 1u << m->value.type)))
            return false;
    }
    return true;
}

/* --- raw values --- */

void tools_write_value(enum tools_type type, const char *text, size_t n, struct buf *out)
{
    static const char *const words[][2] = { { "True", "true" },
                                            { "False", "false" },
                                            { "None", "null" } };
    struct json_doc doc = { 0 };
    struct buf fixed;
    size_t from = 0, to = n;
    while (from < to && strchr(" \t\r\n", text[from]))
        from++;
    while (to > from && strchr(" \t\r\n", text[to - 1]))
        to--;
    buf_init(&fixed, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    bool is_json = type != TOOLS_TYPE_STRING && to > from &&
                   json_parse(&doc, text + from, to - from, LIMIT_JSON_VALUES, NULL) == ERR_OK &&
                   (type == TOOLS_TYPE_OTHER || doc.root.type != JSON_TYPE_STRING);
    if (is_json)
        buf_add(&fixed, text + from, to - from);
    else if (type != TOOLS_TYPE_STRING && to > from && (text[from] == '{' || text[from] == '['))
        is_json = relaxed_repair(text + from, to - from, &fixed);
    for (size_t i = 0; i < ARRAY_LEN(words) && type == TOOLS_TYPE_OTHER && !is_json; i++) {
        is_json =
            strlen(words[i][0]) == to - from && memcmp(words[i][0], text + from, to - from) == 0;
        if (is_json)
            buf_add_str(&fixed, words[i][1]);
    }
    if (is_json) {
        buf_add(out, fixed.data, fixed.len);
    } else {
        buf_add_char(out, '"');
        relaxed_escape(out, text, n);
        buf_add_char(out, '"');
    }
    json_doc_release(&doc);
    buf_release(&fixed);
}
