/* tags.c - choices, and text with constrained regions. */
#include "grammar/grammar_int.h"
#include "json/json.h"

#include <string.h>

#define TAGS_MAX      512
#define TAGS_TRIGGERS 256
#define TAGS_BYTES    200 /* of a trigger */

const struct expr *tags_read_choice(struct build *b, const struct json *v)
{
    struct expr_list all = { 0 };
    if (!json_is(v, JSON_TYPE_ARRAY) || v->n == 0)
        return build_fail(b, ERR_INVALID, "choice: must be an array of strings, not empty");
    for (size_t i = 0; i < v->n && !b->code; i++) {
        if (!json_is(&v->items[i], JSON_TYPE_STRING))
            return build_fail(b, ERR_INVALID, "choice[%zu]: must be a string", i);
        expr_list_add(b, &all, expr_bytes(b, v->items[i].text, v->items[i].len));
    }
    return expr_alt(b, all.items, all.n);
}

/* A control token of the model stands between U+FDD0 and U+FDD1, which are in no text; in the vocabulary's bytes between 0xFF and 0xFE. The
 * next ones, up to U+FDD5, become the bytes of enum tags_part. */
struct grammar_bytes tags_text(struct build *b, const struct json *v)
{
    char *out = build_alloc(b, v->len + 1);
    size_t n = 0;
    for (size_t i = 0; i < v->len; i++) {
        bool is_mark = i + 2 < v->len && memcmp(v->text + i, "\xEF\xB7", 2) == 0 &&
                       (unsigned char)v->text[i + 2] >= 0x90 &&
                       (unsigned char)v->text[i + 2] <= 0x95;
        out[n++] = is_mark ? (char)(0xFF - ((unsigned char)v->text[i + 2] - 0x90)) : v->text[i];
        i += is_mark ? 2 : 0;
    }
    return (struct grammar_bytes){ out, n };
}

/* What a text leaves open, by its byte there. */
enum tags_part {
    TAGS_PART_LINE = 0xFA,   /* a line end, or nothing */
    TAGS_PART_ID = 0xFB,     /* `, "id": "NINE"`, or nothing */
    TAGS_PART_NINE = 0xFC,   /* nine letters or digits */
    TAGS_PART_NUMBER = 0xFD, /* of up to three digits */
};

static const struct expr *tags_part(struct build *b, enum tags_part part)
{
    static const struct expr_range r[] = { { '0', '9' }, { 'A', 'Z' }, { 'a', 'z' } };
    const struct expr *nine = expr_repeat(b, expr_class(b, r, 3, false), 9, 9);
    switch (part) {
    case TAGS_PART_LINE:
        return expr_optional(b, expr_text(b, "\n"));
    case TAGS_PART_ID:
        return expr_optional(b,
                             expr_seq3(b, expr_text(b, ", \"id\": \""), nine, expr_text(b, "\"")));
    case TAGS_PART_NINE:
        return nine;
    default:
        return expr_repeat(b, expr_class(b, r, 1, false), 1, 3);
    }
}

static bool tags_is_part(char c)
{
    return (uint8_t)c >= TAGS_PART_LINE && (uint8_t)c <= TAGS_PART_NUMBER;
}

const struct expr *tags_pattern(struct build *b, struct grammar_bytes text)
{
    struct expr_list all = { 0 };
    for (size_t i = 0, end; i < text.len; i = end) {
        for (end = i; end < text.len && !tags_is_part(text.data[end]); end++)
            ;
        expr_list_add(b, &all, expr_bytes(b, text.data + i, end - i));
        if (end < text.len)
            expr_list_add(b, &all, tags_part(b, (enum tags_part)(uint8_t)text.data[end++]));
    }
    return expr_seq(b, all.items, all.n);
}

static bool tags_trigger(struct build *b, struct grammar_bytes *out, const struct json *v, size_t i)
{
    if (!json_is(v, JSON_TYPE_STRING) || v->len == 0 || v->len > TAGS_BYTES) {
        build_fail(b, ERR_INVALID, "triggers[%zu]: must be a string of 1 to %d bytes", i,
                   TAGS_BYTES);
        return false;
    }
    *out = tags_text(b, v);
    return true;
}

struct tags_inside {
    struct expr_list arguments;
    const struct expr **of; /* of each tag, for those that name it by `same` */
};

/* What stands between beginning and end. */
static const struct expr *tags_inside(struct build *b, const struct json *v, size_t i,
                                      struct tags_inside *x)
{
    const struct json *same = json_get(v, "same"), *schema = json_get(v, "schema");
    int64_t at;
    if (json_get(v, "calls"))
        return calls_read_list(b, v, &x->arguments);
    if (json_get(v, "arguments"))
        return calls_arguments_of(b, v, &x->arguments);
    if (same && (json_to_int(same, "same", 0, (int64_t)i - 1, &at, NULL) || !x->of[at]))
        return build_fail(b, ERR_INVALID, "structures[%zu].same: names no earlier one", i);
    if (same)
        return x->of[i] = x->of[at];
    int32_t rule = build_new_rule(b, "a tag");
    x->of[i] = expr_rule(b, rule);
    json_text_use(b, TEXT_JSON, (struct grammar_bytes){ "", 0 });
    build_set_rule(b, rule, json_schema_read(b, schema));
    if (!b->code)
        b->rules[rule].is_called = true;
    return x->of[i];
}

static bool tags_has_inside(const struct json *v)
{
    static const char *const names[] = { "schema", "same", "arguments", "calls" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_get(v, names[i]))
            return true;
    return false;
}

static void tags_one(struct build *b, const struct json *v, size_t i, struct expr *e,
                     struct expr_tag *tag, struct tags_inside *inside)
{
    const struct json *begin = json_get_set(v, "begin"), *end = json_get_set(v, "end");
    if (!json_is(begin, JSON_TYPE_STRING) || !json_is(end, JSON_TYPE_STRING) ||
        !tags_has_inside(v)) {
        build_fail(b, ERR_INVALID, "structures[%zu]: needs begin, schema and end", i);
        return;
    }
    struct grammar_bytes at = tags_text(b, begin), after = tags_text(b, end);
    size_t n = 0;
    while (n < at.len && !tags_is_part(at.data[n]))
        n++;
    *tag = (struct expr_tag){ .begin = at.data, .n_begin = n, .trigger = -1 };
    for (int32_t k = 0; k < e->n_triggers; k++)
        if (e->triggers[k].len <= n &&
            memcmp(at.data, e->triggers[k].data, e->triggers[k].len) == 0)
            tag->trigger = k;
    if (tag->trigger < 0)
        build_fail(b, ERR_INVALID, "structures[%zu].begin: begins with no trigger", i);
    tag->rest = expr_seq3(b, tags_pattern(b, (struct grammar_bytes){ at.data + n, at.len - n }),
                          tags_inside(b, v, i, inside), tags_pattern(b, after));
}

static bool tags_read_marks(struct build *b, const struct json *v, struct expr *e)
{
    const struct json *list = json_get_set(v, "marks");
    if (!list)
        return true;
    struct grammar_bytes *marks = build_alloc(b, (list->n + 1) * sizeof(*marks));
    for (size_t i = 0; json_is(list, JSON_TYPE_ARRAY) && i < list->n; i++)
        if (!tags_trigger(b, &marks[i], &list->items[i], i))
            return false;
    e->marks = marks;
    e->n_marks = json_is(list, JSON_TYPE_ARRAY) ? (int32_t)list->n : 0;
    return true;
}

const struct expr *tags_read(struct build *b, const struct json *v)
{
    const struct json *list = json_get_set(v, "structures"), *marks = json_get_set(v, "triggers");
    if (!json_is(list, JSON_TYPE_ARRAY) || list->n == 0 || list->n > TAGS_MAX)
        return build_fail(b, ERR_INVALID, "structures: must be an array of 1 to %d tags", TAGS_MAX);
    if (!json_is(marks, JSON_TYPE_ARRAY) || marks->n == 0 || marks->n > TAGS_TRIGGERS)
        return build_fail(b, ERR_INVALID, "triggers: must be an array of 1 to %d strings",
                          TAGS_TRIGGERS);
    struct expr *e = build_alloc(b, sizeof(*e));
    struct grammar_bytes *triggers = build_alloc(b, marks->n * sizeof(*triggers));
    struct expr_tag *tags = build_alloc(b, list->n * sizeof(*tags));
    struct tags_inside inside = { .of = build_alloc(b, list->n * sizeof(*inside.of)) };
    *e = (struct expr){ .kind = EXPR_TAGS, .n = (int32_t)list->n, .size = 1000 };
    e->triggers = triggers;
    e->tags = tags;
    e->n_triggers = (int32_t)marks->n;
    for (size_t i = 0; i < marks->n; i++)
        if (!tags_trigger(b, &triggers[i], &marks->items[i], i))
            return expr_none();
    if (!calls_read_arguments(b, v, &inside.arguments) || !tags_read_marks(b, v, e))
        return expr_none();
    for (size_t i = 0; i < list->n && !b->code; i++)
        tags_one(b, &list->items[i], i, e, &tags[i], &inside);
    return b->code ? expr_none() : e;
}
