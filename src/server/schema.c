#include "server/schema.h"
#include "json/json.h"

#include <string.h>

#define SCHEMA_ALTERNATIVES_MAX 40
#define SCHEMA_BYTES_MAX        (1 << 20)

/* What an alternative of a union is: some kinds can be written shorter than as a list of schemas. */
enum schema_kind { SCHEMA_NAME, SCHEMA_LITERAL, SCHEMA_OTHER };

struct schema_reader {
    const char *type; /* all of it, for whoever debugs */
    const char *p;
};

static void schema_union(struct schema_reader *r, struct buf *out, bool is_nullable);

/* --- reading --- */

static void schema_blanks(struct schema_reader *r)
{
    r->p += strspn(r->p, " \n");
}

static bool schema_take(struct schema_reader *r, char c)
{
    schema_blanks(r);
    if (*r->p != c)
        return false;
    r->p++;
    schema_blanks(r);
    return true;
}

static void schema_need(struct schema_reader *r, char c)
{
    BUG_ON(!schema_take(r, c));
}

/* A word of letters, digits and what field names have; it must not be empty. */
static size_t schema_word(struct schema_reader *r, const char **word)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    schema_blanks(r);
    size_t n = strspn(r->p, letters);
    BUG_ON(n == 0);
    *word = r->p;
    r->p += n;
    return n;
}

static bool schema_is(const char *word, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(word, name, n) == 0;
}

/* --- pieces --- */

/* The bounds up to `close` as members of those names; the bracket is open, both numbers may be left out. */
static void schema_bounds(struct schema_reader *r, struct buf *out, char close, const char *least,
                          const char *greatest)
{
    const char *number;
    if (schema_take(r, close))
        return;
    size_t n = schema_word(r, &number);
    buf_printf(out, ",\"%s\":%.*s", least, (int)n, number);
    if (schema_take(r, ',')) {
        n = schema_word(r, &number);
        buf_printf(out, ",\"%s\":%.*s", greatest, (int)n, number);
    }
    schema_need(r, close);
}

static void schema_object(struct schema_reader *r, struct buf *out)
{
    struct buf required;
    const char *name;
    bool is_first = true;
    buf_init(&required, MEM_CAT_SERVER, SCHEMA_BYTES_MAX);
    buf_add_str(out, "\"type\":\"object\",\"properties\":{");
    while (!schema_take(r, '}')) {
        if (!is_first)
            schema_need(r, ',');
        size_t n = schema_word(r, &name);
        buf_printf(out, "%s\"%.*s\":{", is_first ? "" : ",", (int)n, name);
        if (!schema_take(r, '?'))
            buf_printf(&required, "%s\"%.*s\"", required.len > 0 ? "," : "", (int)n, name);
        schema_need(r, ':');
        schema_union(r, out, false);
        buf_add_char(out, '}');
        is_first = false;
    }
    buf_add_char(out, '}');
    if (required.len > 0)
        buf_printf(out, ",\"required\":[%s]", required.data);
    out->failed = out->failed || required.failed;
    buf_release(&required);
}

static void schema_map(struct schema_reader *r, struct buf *out, bool is_ids)
{
    buf_add_str(out, "\"type\":\"object\",");
    if (is_ids)
        buf_add_str(out, "\"propertyNames\":{\"pattern\":\"^[0-9]+$\"},");
    buf_add_str(out, "\"additionalProperties\":{");
    schema_need(r, '(');
    schema_union(r, out, false);
    schema_need(r, ')');
    buf_add_char(out, '}');
}

/* A type that has a name: one of JSON's, or a schema's. */
static enum schema_kind schema_named(struct schema_reader *r, struct buf *out)
{
    static const struct {
        const char *word, *type, *least, *greatest;
    } rows[] = {
        { "string", "string", "minLength", "maxLength" },
        { "word", "string\",\"pattern\":\"^[A-Za-z0-9_.:-]+$", "minLength", "maxLength" },
        { "int", "integer", "minimum", "maximum" },
        { "number", "number", "minimum", "maximum" },
        { "bool", "boolean", NULL, NULL },
        { "null", "null", NULL, NULL },
        { "object", "object", NULL, NULL },
    };
    const char *word;
    size_t n = schema_word(r, &word);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (!schema_is(word, n, rows[i].word))
            continue;
        buf_printf(out, "\"type\":\"%s\"", rows[i].type);
        if (!rows[i].least || !schema_take(r, '('))
            return SCHEMA_NAME;
        schema_bounds(r, out, ')', rows[i].least, rows[i].greatest);
        return SCHEMA_OTHER;
    }
    if (schema_is(word, n, "map") || schema_is(word, n, "ids")) {
        schema_map(r, out, *word == 'i');
    } else if (!schema_is(word, n, "any")) {
        BUG_ON(*word < 'A' || *word > 'Z');
        buf_printf(out, "\"$ref\":\"#/components/schemas/%.*s\"", (int)n, word);
    }
    return SCHEMA_OTHER;
}

static enum schema_kind schema_primary(struct schema_reader *r, struct buf *out)
{
    if (schema_take(r, '{')) {
        schema_object(r, out);
    } else if (schema_take(r, '(')) {
        schema_union(r, out, false);
        schema_need(r, ')');
    } else if (*r->p == '\'') {
        const char *end = strchr(r->p + 1, '\'');
        BUG_ON(!end);
        buf_printf(out, "\"const\":\"%.*s\"", (int)(end - r->p - 1), r->p + 1);
        r->p = end + 1;
        return SCHEMA_LITERAL;
    } else {
        return schema_named(r, out);
    }
    return SCHEMA_OTHER;
}

/* A primary, and arrays of it. */
static enum schema_kind schema_single(struct schema_reader *r, struct buf *out)
{
    enum schema_kind kind = schema_primary(r, out);
    while (schema_take(r, '[')) {
        struct buf items;
        buf_init(&items, MEM_CAT_SERVER, SCHEMA_BYTES_MAX);
        buf_add(&items, out->data, out->len);
        buf_reset(out);
        buf_printf(out, "\"type\":\"array\",\"items\":{%s}", items.data);
        schema_bounds(r, out, ']', "minItems", "maxItems");
        out->failed = out->failed || items.failed;
        buf_release(&items);
        kind = SCHEMA_OTHER;
    }
    return kind;
}

/* --- unions --- */

static bool schema_is_null(const struct buf *b)
{
    return strcmp(b->data, "\"type\":\"null\"") == 0;
}

/* What stands behind the colon of a one-member text. */
static const char *schema_value(const struct buf *b)
{
    return strchr(b->data, ':') + 1;
}

/* Names alone: a list of types. Literals, and null: a list of values. Else a list of schemas. */
static void schema_alternatives(const struct buf *a, const enum schema_kind *kinds, size_t n,
                                struct buf *out)
{
    bool are_names = true, are_literals = true;
    for (size_t i = 0; i < n; i++) {
        are_names = are_names && kinds[i] == SCHEMA_NAME;
        are_literals = are_literals && (kinds[i] == SCHEMA_LITERAL || schema_is_null(&a[i]));
    }
    buf_add_str(out, are_names ? "\"type\":[" : are_literals ? "\"enum\":[" : "\"anyOf\":[");
    for (size_t i = 0; i < n; i++) {
        const char *comma = i > 0 ? "," : "";
        if (are_names)
            buf_printf(out, "%s%s", comma, schema_value(&a[i]));
        else if (are_literals)
            buf_printf(out, "%s%s", comma, schema_is_null(&a[i]) ? "null" : schema_value(&a[i]));
        else
            buf_printf(out, "%s{%s}", comma, a[i].data);
    }
    buf_add_char(out, ']');
}

/* The members of a union's schema, without the braces. */
static void schema_union(struct schema_reader *r, struct buf *out, bool is_nullable)
{
    struct buf a[SCHEMA_ALTERNATIVES_MAX];
    enum schema_kind kinds[SCHEMA_ALTERNATIVES_MAX];
    size_t n = 0;
    do {
        BUG_ON(n + 1 >= SCHEMA_ALTERNATIVES_MAX);
        buf_init(&a[n], MEM_CAT_SERVER, SCHEMA_BYTES_MAX);
        kinds[n] = schema_single(r, &a[n]);
        n++;
    } while (schema_take(r, '|'));
    bool is_null = schema_is_null(&a[0]), is_any = n == 1 && a[0].len == 0;
    if (is_nullable && !is_any && !is_null) {
        buf_init(&a[n], MEM_CAT_SERVER, SCHEMA_BYTES_MAX);
        buf_add_str(&a[n], "\"type\":\"null\"");
        kinds[n++] = SCHEMA_NAME;
    }
    if (n == 1)
        buf_add(out, a[0].data, a[0].len);
    else
        schema_alternatives(a, kinds, n, out);
    for (size_t i = 0; i < n; i++) {
        out->failed = out->failed || a[i].failed;
        buf_release(&a[i]);
    }
}

void schema_write(struct buf *out, const char *type, bool is_nullable, const char *doc)
{
    struct schema_reader r = { .type = type, .p = type };
    struct json_writer w;
    size_t begin;
    buf_add_char(out, '{');
    if (doc) {
        buf_add_str(out, "\"description\":");
        json_writer_init(&w, out);
        json_str(&w, doc);
        buf_add_char(out, ',');
    }
    begin = out->len;
    schema_union(&r, out, is_nullable);
    schema_blanks(&r);
    BUG_ON(*r.p);
    if (doc && out->len == begin) /* any: nothing follows the comma */
        buf_cut(out, begin - 1);
    buf_add_char(out, '}');
}
