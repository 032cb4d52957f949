/* elements.c - arguments that a model writes as elements: for each property of a schema, in their order, text that opens it with its name,
 * the value, text that closes it. Strings stand there as they are, other values as JSON; how a reader tells one from the other is its
 * caller's to say (`types`): where it cannot know, a string never looks like JSON.
 *
 *   {"schema": {...}, "open": "<parameter=", "raw": ">\n", "json": ">\n", "stop": "</parameter>", "close": "\n</parameter>\n",
 *    "types": {"a": "string", "b": "other"}, "over": ["</function>", "</tool_call>"], "trims": false}
 *
 * over: texts that end the call, and so a value, whose own end is missing: one behind the other, blanks between. trims: the reader drops a
 * line end at either side of a value, so that none may be there. */
#include "grammar/json_schema_int.h"

#include <stdio.h>
#include <string.h>

struct elements {
    struct json_schema *x;
    struct grammar_bytes open, raw, json, stop, close;
    const struct json *types;
    const struct expr *over; /* NULL: nothing is */
    bool trims;
};

#define ELEMENTS_JSON "-{[\" \t\n0123456789" /* what JSON begins with, but its words */

static const char *const elements_words[] = { "true", "false", "null" };

/* Characters of a value, but those of `but`. */
static const struct expr *elements_class(struct build *b, const char *but)
{
    static const struct expr_range all[] = { { 9, 10 }, { 0x20, 0x10FFFF } };
    struct expr_range not [40], out[42];
    int32_t n = (int32_t)strlen(but);
    BUG_ON(n > 32);
    for (int32_t i = 0; i < n; i++)
        not [i] = (struct expr_range){ (unsigned char)but[i], (unsigned char)but[i] };
    n += expr_ranges_invert(all, 2, not +n);
    n = expr_ranges_join(not, n);
    return expr_class(b, out, expr_ranges_invert(not, n, out), false);
}

/* Any text that a reader takes as it is: no end is in it, no framing at its own ends. */
static const struct expr *elements_free(struct elements *e)
{
    struct build *b = e->x->b;
    const struct expr *any = expr_repeat(b, expr_any(), 0, EXPR_INF), *line = expr_text(b, "\n");
    const struct expr *stop = expr_bytes(b, e->stop.data, e->stop.len);
    const struct expr * not [] = {
        expr_seq3(b, any, e->over ? expr_alt2(b, stop, e->over) : stop, any),
        expr_seq2(b, expr_text(b, "<![CDATA["), any),
        expr_seq2(b, any, expr_text(b, "\r")),
        expr_seq3(b, expr_optional(b, expr_text(b, "\r")), line, any),
        expr_seq2(b, any, line),
    };
    return expr_not(b, expr_alt(b, not, e->trims ? 5 : 3));
}

static const struct expr *elements_over(struct build *b, const struct json *list)
{
    static const struct expr_range r[] = { { '\t', '\n' }, { '\r', '\r' }, { ' ', ' ' } };
    const struct expr *e = NULL;
    for (size_t i = 0; json_is(list, JSON_TYPE_ARRAY) && i < list->n; i++) {
        const struct json *v = &list->items[i];
        if (!json_is(v, JSON_TYPE_STRING))
            return build_fail(b, ERR_INVALID, "elements: 'over' must hold strings");
        const struct expr *text = expr_bytes(b, v->text, v->len);
        const struct expr *blanks = expr_repeat(b, expr_class(b, r, 3, false), 0, EXPR_INF);
        e = e ? expr_seq3(b, e, blanks, text) : text;
    }
    return e;
}

/* min to max characters of a value (EXPR_INF: no bound); `but` are not among them. */
static const struct expr *elements_more(struct build *b, const char *but, int64_t min, int64_t max)
{
    return max < 0 ? expr_none() : expr_repeat(b, elements_class(b, but), min > 0 ? min : 0, max);
}

static int64_t elements_less(int64_t n, int64_t by)
{
    return n == EXPR_INF ? n : n - by;
}

/* Texts that begin as one of JSON's words does, and are not it. */
static void elements_add_word(struct build *b, const char *word, const char *but, int64_t min,
                              int64_t max, struct expr_list *all)
{
    char not_next[8];
    int64_t len = (int64_t)strlen(word);
    for (int64_t k = 1; k <= len; k++) {
        const struct expr *begun = expr_bytes(b, word, (size_t)k);
        snprintf(not_next, sizeof(not_next), "%s%s", but, k == len ? " \t\n" : "");
        if (k < len)
            snprintf(not_next, sizeof(not_next), "%s%c", but, word[k]);
        if (k < len && k >= min && k <= max)
            expr_list_add(b, all, begun);
        if (k < max)
            expr_list_add(b, all,
                          expr_seq3(b, begun, elements_class(b, not_next),
                                    elements_more(b, but, min - k - 1, elements_less(max, k + 1))));
    }
}

/* Text of min to max characters that cannot be read as JSON. */
static const struct expr *elements_no_json(struct build *b, const char *but, int64_t min,
                                           int64_t max)
{
    struct expr_list all = { 0 };
    char first[32];
    snprintf(first, sizeof(first), "%s%stfn", ELEMENTS_JSON, but);
    expr_list_add(b, &all,
                  expr_seq2(b, elements_class(b, first),
                            elements_more(b, but, min - 1, elements_less(max, 1))));
    for (size_t i = 0; i < ARRAY_LEN(elements_words); i++)
        elements_add_word(b, elements_words[i], but, min, max, &all);
    return expr_alt(b, all.items, all.n);
}

/* Text of min to max characters; has_json: none that could be read as JSON. A bound is counted, so the closing text's first character is
 * left out there instead of the whole. */
static const struct expr *elements_text(struct elements *e, int64_t min, int64_t max, bool has_json)
{
    struct build *b = e->x->b;
    bool is_bounded = max != EXPR_INF;
    const char but[3] = { is_bounded ? e->stop.data[0] : '\0', e->trims ? '\n' : '\0', '\0' };
    const struct expr *some =
        has_json ? elements_no_json(b, but, min, max) : elements_more(b, but, min, max);
    return is_bounded ? some : expr_and(b, some, elements_free(e));
}

/* Could a reader take it for JSON? */
static bool elements_is_json(const struct json *v)
{
    bool is_json = v->len == 0 || strchr(ELEMENTS_JSON, v->text[0]);
    for (size_t i = 0; i < ARRAY_LEN(elements_words); i++)
        is_json = is_json || strncmp(v->text, elements_words[i], strlen(elements_words[i])) == 0;
    return is_json;
}

/* The strings that are listed, as far as they can be written. */
static const struct expr *elements_listed(struct elements *e, const struct meeting *m,
                                          const struct json *list, int32_t n, bool has_json)
{
    struct expr_list all = { 0 };
    struct build *b = e->x->b;
    struct json_schema_check *check = build_alloc(b, sizeof(*check));
    json_schema_check_init(e->x, m, NULL, check);
    for (int32_t i = 0; i < n && !b->code; i++) {
        const struct json *v = &list[i];
        bool may_be = json_is(v, JSON_TYPE_STRING) && json_schema_allows(e->x, check, v);
        if (may_be && !(has_json && elements_is_json(v)))
            expr_list_add(b, &all, expr_bytes(b, v->text, v->len));
    }
    return expr_and(b, expr_alt(b, all.items, all.n), elements_free(e));
}

static const struct expr *elements_string(struct elements *e, const struct meeting *m,
                                          bool has_json);

/* Alternatives of a schema that is in the meeting. */
static const struct expr *elements_branches(struct elements *e, const struct meeting *m, int i,
                                            const struct json *list, unsigned flag, bool has_json)
{
    struct expr_list all = { 0 };
    for (size_t k = 0; k < list->n && !e->x->b->code; k++) {
        struct meeting one = *m;
        one.s[i].done |= flag;
        json_schema_join(e->x, &one, &list->items[k], m->s[i].path);
        if (!one.is_none)
            expr_list_add(e->x->b, &all, elements_string(e, &one, has_json));
    }
    return expr_alt(e->x->b, all.items, all.n);
}

static bool elements_has_string(const struct meeting *m)
{
    for (int i = 0; i < m->n; i++) {
        const struct json *type = json_get(m->s[i].v, "type");
        bool is_in = !type || json_str_eq(type, "string");
        for (size_t k = 0; json_is(type, JSON_TYPE_ARRAY) && k < type->n; k++)
            is_in = is_in || json_str_eq(&type->items[k], "string");
        if (!is_in)
            return false;
    }
    return true;
}

/* The strings that satisfy the meeting, as they stand. */
static const struct expr *elements_string(struct elements *e, const struct meeting *m,
                                          bool has_json)
{
    static const struct {
        const char *name;
        unsigned flag;
    } choices[] = { { "anyOf", MEETING_NO_ANY }, { "oneOf", MEETING_NO_ONE } };
    struct build *b = e->x->b;
    const struct expr *all = NULL;
    int64_t min = 0, max = EXPR_INF;
    if (!elements_has_string(m))
        return expr_none();
    for (int i = 0; i < m->n && !b->code; i++) {
        const struct json *v = m->s[i].v, *one = json_get(v, "const"), *list = json_get(v, "enum");
        if (one)
            return elements_listed(e, m, one, 1, has_json);
        if (json_is(list, JSON_TYPE_ARRAY))
            return elements_listed(e, m, list->items, (int32_t)list->n, has_json);
        for (size_t c = 0; c < ARRAY_LEN(choices); c++) {
            const struct json *any = json_get(v, choices[c].name);
            if (json_is(any, JSON_TYPE_ARRAY) && !(m->s[i].done & choices[c].flag))
                return elements_branches(e, m, i, any, choices[c].flag, has_json);
        }
    }
    for (int i = 0; i < m->n && !b->code; i++) {
        const struct json *p = json_get(m->s[i].v, "pattern"), *f = json_get(m->s[i].v, "format");
        const struct expr *x = json_is(p, JSON_TYPE_STRING)
                                   ? regex_search(b, p->text, p->len, false, m->s[i].path)
                                   : NULL;
        if (x)
            all = all ? expr_and(b, all, x) : x;
        x = json_is(f, JSON_TYPE_STRING) ? json_format_read(b, f->text) : NULL;
        if (x)
            all = all ? expr_and(b, all, x) : x;
        else if (f)
            build_note(b, "format");
    }
    json_schema_count(e->x, m, "minLength", true, &min);
    if (!json_schema_count(e->x, m, "maxLength", false, &max))
        max = EXPR_INF;
    if (min > max)
        return expr_none();
    if (!all)
        return elements_text(e, min, max, has_json);
    bool is_long = max != EXPR_INF && expr_longest(b, all) > max;
    if (expr_shortest(b, all) < min || is_long || has_json)
        all = expr_and(b, all, elements_text(e, min, is_long ? max : EXPR_INF, has_json));
    return expr_and(b, all, elements_free(e));
}

/* Values of all types but strings, as JSON; and strings that cannot be taken for any. */
static const struct expr *elements_either(struct elements *e, const struct json *schema,
                                          const char *path)
{
    static const char *const types[] = { "null", "boolean", "number", "array", "object" };
    struct build *b = e->x->b;
    struct expr_list all = { 0 };
    for (size_t i = 0; i < ARRAY_LEN(types) && !b->code; i++) {
        struct json *of = build_alloc(b, sizeof(*of));
        struct json_member *member = build_alloc(b, sizeof(*member));
        *member = (struct json_member){ "type", 4, { .type = JSON_TYPE_STRING, .text = types[i] } };
        member->value.len = strlen(types[i]);
        *of = (struct json){ .type = JSON_TYPE_OBJECT, .members = member, .n = 1 };
        struct meeting m = { .n = 0 };
        json_schema_join(e->x, &m, schema, path);
        json_schema_join(e->x, &m, of, path);
        expr_list_add(b, &all, expr_seq2(b, tags_pattern(b, e->json), json_schema_meet(e->x, &m)));
    }
    struct meeting m = { .n = 0 };
    json_schema_join(e->x, &m, schema, path);
    bool is_told = e->raw.len != e->json.len || memcmp(e->raw.data, e->json.data, e->raw.len) != 0;
    if (!m.is_none)
        expr_list_add(b, &all,
                      expr_seq2(b, tags_pattern(b, e->raw), elements_string(e, &m, !is_told)));
    return expr_alt(b, all.items, all.n);
}

static const struct expr *elements_one(struct elements *e, const struct json_member *p)
{
    struct build *b = e->x->b;
    const struct json *type = json_get(e->types, p->key);
    const char *path =
        json_schema_path(e->x, json_schema_path(e->x, "#", "properties", 10), p->key, p->key_len);
    const struct expr *value;
    struct meeting m = { .n = 0 };
    if (json_str_eq(type, "other"))
        b->text = TEXT_VALUE;
    json_schema_join(e->x, &m, &p->value, path);
    if (m.is_none || b->code)
        value = expr_none();
    else if (json_str_eq(type, "string"))
        value = expr_seq2(b, tags_pattern(b, e->raw), elements_string(e, &m, false));
    else if (json_str_eq(type, "other"))
        value = expr_seq2(b, tags_pattern(b, e->json), json_schema_meet(e->x, &m));
    else
        value = elements_either(e, &p->value, path);
    b->text = TEXT_ELEMENT;
    return expr_seq3(b, expr_seq2(b, tags_pattern(b, e->open), expr_bytes(b, p->key, p->key_len)),
                     value, tags_pattern(b, e->close));
}

static bool elements_is_required(const struct json *required, const struct json_member *p)
{
    for (size_t i = 0; json_is(required, JSON_TYPE_ARRAY) && i < required->n; i++)
        if (json_str_eq(&required->items[i], p->key))
            return true;
    return false;
}

/* Schemas whose properties depend on more than their names. */
static bool elements_check(struct json_schema *x, const struct json *schema)
{
    static const char *const names[] = { "$ref",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "minProperties",
                                         "maxProperties",
                                         "enum",
                                         "const",
                                         "not",
                                         "if",
                                         "patternProperties",
                                         "propertyNames",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies" };
    const struct json *all = json_get(schema, "properties"), *need = json_get(schema, "required");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_get(schema, names[i]))
            json_schema_fail(x, ERR_UNSUPPORTED, "#", names[i],
                             "cannot be enforced where arguments are elements");
    for (size_t i = 0; json_is(need, JSON_TYPE_ARRAY) && i < need->n; i++)
        if (!json_is(&need->items[i], JSON_TYPE_STRING) || !json_get(all, need->items[i].text))
            json_schema_fail(x, ERR_UNSUPPORTED, "#", "required", "names what is not declared");
    return x->b->code == ERR_OK;
}

const struct expr *elements_read(struct build *b, const struct json *v)
{
    struct json_schema *x = build_alloc(b, sizeof(*x));
    const struct json *trims = json_get(v, "trims");
    struct elements e = { .x = x, .types = json_get(v, "types") };
    e.over = elements_over(b, json_get(v, "over"));
    e.trims = json_is(trims, JSON_TYPE_BOOL) && trims->boolean;
    struct expr_list all = { 0 };
    struct {
        const char *name;
        struct grammar_bytes *out;
    } texts[] = { { "open", &e.open },
                  { "raw", &e.raw },
                  { "json", &e.json },
                  { "stop", &e.stop },
                  { "close", &e.close } };
    const struct json *schema = json_get(v, "schema"), *props = json_get_set(schema, "properties");
    x->b = b;
    x->root = schema;
    b->text = TEXT_ELEMENT;
    json_schema_index(x);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        const struct json *text = json_get(v, texts[i].name);
        if (!json_is(text, JSON_TYPE_STRING))
            return build_fail(b, ERR_INVALID, "elements: '%s' must be a string", texts[i].name);
        *texts[i].out = tags_text(b, text);
    }
    if (!json_is(schema, JSON_TYPE_OBJECT) || (props && !json_is(props, JSON_TYPE_OBJECT)))
        return build_fail(b, ERR_INVALID, "#: properties must be an object");
    if (e.stop.len == 0 || !elements_check(x, schema))
        return build_fail(b, ERR_INVALID, "elements: 'stop' is empty");
    for (size_t i = 0; props && i < props->n && !b->code; i++) {
        const struct expr *one = elements_one(&e, &props->members[i]);
        bool is_required = elements_is_required(json_get(schema, "required"), &props->members[i]);
        expr_list_add(b, &all, is_required ? one : expr_optional(b, one));
    }
    return expr_seq(b, all.items, all.n);
}
