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

/* A control token of the model stands between U+FDD0 and U+FDD1, which are in no text; in the vocabulary's bytes between 0xFF and 0xFE. */
struct grammar_bytes tags_text(struct build *b, const struct json *v)
{
    char *out = build_alloc(b, v->len + 1);
    size_t n = 0;
    for (size_t i = 0; i < v->len; i++) {
        bool is_mark = i + 2 < v->len && memcmp(v->text + i, "\xEF\xB7", 2) == 0 &&
                       ((unsigned char)v->text[i + 2] & 0xFE) == 0x90;
        out[n++] = !is_mark                                ? v->text[i]
                   : (unsigned char)v->text[i + 2] == 0x90 ? (char)0xFF
                                                           : (char)0xFE;
        i += is_mark ? 2 : 0;
    }
    return (struct grammar_bytes){ out, n };
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

/* What stands between beginning and end: a rule, which tags that name it by `same` share. */
static const struct expr *tags_inside(struct build *b, const struct json *v, size_t i,
                                      const struct expr **inside)
{
    const struct json *same = json_get(v, "same"), *schema = json_get(v, "schema");
    const struct json *elements = json_get(v, "elements");
    int64_t at;
    if (same && (json_to_int(same, "same", 0, (int64_t)i - 1, &at, NULL) || !inside[at]))
        return build_fail(b, ERR_INVALID, "structures[%zu].same: names no earlier one", i);
    if (same)
        return inside[i] = inside[at];
    int32_t rule = build_new_rule(b, "a tag");
    inside[i] = expr_rule(b, rule);
    build_set_rule(b, rule, elements ? elements_read(b, elements) : json_schema_read(b, schema));
    if (!b->code)
        b->rules[rule].is_called = true;
    return inside[i];
}

static void tags_one(struct build *b, const struct json *v, size_t i, struct expr *e,
                     struct expr_tag *tag, const struct expr **inside)
{
    const struct json *begin = json_get_set(v, "begin"), *end = json_get_set(v, "end");
    if (!json_is(begin, JSON_TYPE_STRING) || !json_is(end, JSON_TYPE_STRING) ||
        (!json_get(v, "schema") && !json_get(v, "elements") && !json_get(v, "same"))) {
        build_fail(b, ERR_INVALID, "structures[%zu]: needs begin, schema and end", i);
        return;
    }
    struct grammar_bytes at = tags_text(b, begin), after = tags_text(b, end);
    *tag = (struct expr_tag){ .begin = at.data, .n_begin = at.len, .trigger = -1 };
    for (int32_t k = 0; k < e->n_triggers; k++)
        if (e->triggers[k].len <= at.len &&
            memcmp(at.data, e->triggers[k].data, e->triggers[k].len) == 0)
            tag->trigger = k;
    if (tag->trigger < 0)
        build_fail(b, ERR_INVALID, "structures[%zu].begin: begins with no trigger", i);
    tag->rest = expr_seq2(b, tags_inside(b, v, i, inside), expr_bytes(b, after.data, after.len));
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
    const struct expr **inside = build_alloc(b, list->n * sizeof(*inside));
    *e = (struct expr){ .kind = EXPR_TAGS, .n = (int32_t)list->n, .size = 1000 };
    e->triggers = triggers;
    e->tags = tags;
    e->n_triggers = (int32_t)marks->n;
    for (size_t i = 0; i < marks->n; i++)
        if (!tags_trigger(b, &triggers[i], &marks->items[i], i))
            return expr_none();
    for (size_t i = 0; i < list->n && !b->code; i++)
        tags_one(b, &list->items[i], i, e, &tags[i], inside);
    return b->code ? expr_none() : e;
}
