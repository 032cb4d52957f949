/* json_text.c - JSON as expressions (RFC 8259): what schemas are put together from.
 *
 * Blanks: at most one between two tokens, or a line end and an indentation: whatever people write, but no endless run. Numbers have
 * at most 19 digits before the point, 20 behind it and 3 in the exponent, for the same reason. */
#include "base/utf8.h"
#include "grammar/grammar_int.h"
#include "json/json.h"

#include <string.h>

#define TEXT_INDENT 64

static const struct expr *text_ascii(struct build *b, uint32_t lo, uint32_t hi)
{
    struct expr_range r = { lo, hi };
    return expr_class(b, &r, 1, false);
}

const struct expr *json_text_raw(struct build *b)
{
    static const struct expr_range all[] = { { 0, '<' - 1 }, { '<' + 1, 0x10FFFF }, { '<', '<' } };
    if (!b->jraw)
        b->jraw = expr_class(b, all, b->bars_less ? 2 : 3, true);
    return b->jraw;
}

static const struct expr *text_hex(struct build *b, const char *digits)
{
    struct expr_range r[22];
    int32_t n = 0;
    for (const char *p = digits; *p; p++) {
        r[n++] = (struct expr_range){ (uint8_t)*p, (uint8_t)*p };
        if (*p >= 'a')
            r[n++] = (struct expr_range){ (uint8_t)(*p - 32), (uint8_t)(*p - 32) };
    }
    return expr_class(b, r, n, false);
}

/* Escapes of one character: names, \uXXXX of no surrogate, and pairs of them. */
static const struct expr *text_escape(struct build *b)
{
    const struct expr *hex = text_hex(b, "0123456789abcdef");
    const struct expr *hex2 = expr_repeat(b, hex, 2, 2), *hex3 = expr_repeat(b, hex, 3, 3);
    const struct expr *d = text_hex(b, "d");
    const struct expr *high[] = { d, text_hex(b, "89ab"), hex2, expr_text(b, "\\u"),
                                  d, text_hex(b, "cdef"), hex2 };
    const struct expr *codes[] = { expr_seq2(b, text_hex(b, "0123456789abcef"), hex3),
                                   expr_seq3(b, d, text_hex(b, "01234567"), hex2),
                                   expr_seq(b, high, 7) };
    static const char names[] = "\"\\/bfnrt";
    struct expr_range r[8];
    for (int i = 0; i < 8; i++)
        r[i] = (struct expr_range){ (uint8_t)names[i], (uint8_t)names[i] };
    return expr_seq2(b, expr_text(b, "\\"),
                     expr_alt2(b, expr_class(b, r, 8, false),
                               expr_seq2(b, expr_text(b, "u"), expr_alt(b, codes, 3))));
}

const struct expr *json_text_char(struct build *b)
{
    static const struct expr_range raw[] = {
        { 0x20, 0x21 }, { 0x23, '<' - 1 }, { '<' + 1, 0x5B }, { 0x5D, 0x10FFFF }, { '<', '<' }
    };
    if (!b->jchar)
        b->jchar = expr_alt2(b, expr_class(b, raw, b->bars_less ? 4 : 5, false), text_escape(b));
    return b->jchar;
}

const struct expr *json_text_string(struct build *b)
{
    if (!b->jstring) {
        int32_t rule = build_new_rule(b, "string");
        build_set_rule(b, rule,
                       expr_seq3(b, expr_text(b, "\""),
                                 expr_repeat(b, json_text_char(b), 0, EXPR_INF),
                                 expr_text(b, "\"")));
        b->rules[rule].is_called = true; /* one state for all strings: one wide mask */
        b->jstring = expr_rule(b, rule);
    }
    return b->jstring;
}

const struct expr *json_text_ws(struct build *b)
{
    if (!b->ws && b->is_compact)
        b->ws = expr_empty();
    if (!b->ws) {
        const struct expr *indent =
            expr_alt2(b, expr_repeat(b, expr_text(b, " "), 0, TEXT_INDENT),
                      expr_repeat(b, expr_text(b, "\t"), 1, TEXT_INDENT / 4));
        const struct expr *some =
            expr_alt2(b, expr_text(b, " "), expr_seq2(b, expr_text(b, "\n"), indent));
        int32_t rule = build_new_rule(b, "blanks");
        build_set_rule(b, rule, expr_optional(b, some));
        b->rules[rule].is_called = true; /* it stands everywhere, and is longer than most else */
        b->ws = expr_rule(b, rule);
    }
    return b->ws;
}

const struct expr *json_text_colon(struct build *b)
{
    return expr_seq2(b, expr_text(b, ":"), json_text_ws(b));
}

const struct expr *json_text_list(struct build *b, char open, char close,
                                  const struct expr_item *items, int32_t n, const struct expr *rest,
                                  int64_t min, int64_t max, unsigned flags)
{
    const struct expr *ws = json_text_ws(b), *comma = expr_seq2(b, expr_text(b, ","), ws);
    const struct expr *list = expr_list(b, items, n, comma, rest, min, max, flags);
    if (list->kind == EXPR_NONE)
        return list;
    const struct expr *kids[] = { expr_bytes(b, &open, 1), ws, list, ws, expr_bytes(b, &close, 1) };
    return expr_seq(b, kids, 5);
}

/* --- numbers --- */

static const struct expr *text_number(struct build *b)
{
    const struct expr *digit = text_ascii(b, '0', '9');
    const struct expr *whole = expr_alt2(
        b, expr_text(b, "0"), expr_seq2(b, text_ascii(b, '1', '9'), expr_repeat(b, digit, 0, 18)));
    const struct expr *part = expr_seq2(b, expr_text(b, "."), expr_repeat(b, digit, 1, 20));
    const struct expr *sign = expr_alt2(b, expr_text(b, "+"), expr_text(b, "-"));
    const struct expr *mark = expr_alt2(b, expr_text(b, "e"), expr_text(b, "E"));
    const struct expr *power =
        expr_seq3(b, mark, expr_optional(b, sign), expr_repeat(b, digit, 1, 2));
    const struct expr *kids[] = { expr_optional(b, expr_text(b, "-")), whole,
                                  expr_optional(b, part), expr_optional(b, power) };
    return expr_seq(b, kids, 4);
}

const struct expr *json_text_number(struct build *b)
{
    if (!b->number)
        b->number = text_number(b);
    return b->number;
}

/* --- any value --- */

static const struct expr *text_member(struct build *b, const struct expr *value)
{
    return expr_seq3(b, json_text_string(b), json_text_colon(b), value);
}

const struct expr *json_text_value(struct build *b)
{
    if (b->any_value)
        return b->any_value;
    int32_t value = build_new_rule(b, "any value"), object = build_new_rule(b, "any object");
    b->any_value = expr_rule(b, value);
    b->any_object = object;
    build_set_rule(
        b, object,
        json_text_list(b, '{', '}', NULL, 0, text_member(b, b->any_value), 0, EXPR_INF, 0));
    const struct expr *kids[] = {
        json_text_string(b),
        json_text_number(b),
        expr_text(b, "true"),
        expr_text(b, "false"),
        expr_text(b, "null"),
        expr_rule(b, object),
        json_text_list(b, '[', ']', NULL, 0, b->any_value, 0, EXPR_INF, 0),
    };
    build_set_rule(b, value, expr_alt(b, kids, 7));
    return b->any_value;
}

const struct expr *json_text_object(struct build *b)
{
    json_text_value(b);
    return b->code ? expr_none() : expr_rule(b, b->any_object);
}

/* --- constants --- */

void json_text_escape(const char *text, size_t n, struct buf *out)
{
    static const char letters[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    for (size_t i = 0; i < n; i++) {
        const char *p = text[i] ? strchr(letters, text[i]) : NULL;
        if (p)
            buf_printf(out, "\\%c", names[p - letters]);
        else if ((uint8_t)text[i] < 0x20)
            buf_printf(out, "\\u%04x", (unsigned)(uint8_t)text[i]);
        else
            buf_add_char(out, text[i]);
    }
}

int64_t json_text_length(const char *text, size_t n)
{
    return (int64_t)utf8_count(text, n);
}

static const struct expr *text_string_constant(struct build *b, const char *text, size_t n)
{
    struct buf out;
    buf_init(&out, MEM_CAT_GRAMMAR, 8 * n + 16);
    buf_add_char(&out, '"');
    json_text_escape(text, n, &out);
    buf_add_char(&out, '"');
    const struct expr *e = expr_bytes(b, out.data, out.len);
    buf_release(&out);
    return e;
}

const struct expr *json_text_constant(struct build *b, const struct json *v)
{
    static const char *const words[] = { "null", "false", "true" };
    switch (v->type) {
    case JSON_TYPE_NULL:
        return expr_text(b, words[0]);
    case JSON_TYPE_BOOL:
        return expr_text(b, words[v->boolean ? 2 : 1]);
    case JSON_TYPE_NUMBER:
        return expr_bytes(b, v->text, v->len);
    case JSON_TYPE_STRING:
        return text_string_constant(b, v->text, v->len);
    case JSON_TYPE_ARRAY:
    case JSON_TYPE_OBJECT:
        break;
    }
    bool is_object = v->type == JSON_TYPE_OBJECT;
    struct expr_item *items = build_alloc(b, (v->n + 1) * sizeof(*items));
    for (size_t i = 0; i < v->n && !b->code; i++) {
        const struct json *value = is_object ? &v->members[i].value : &v->items[i];
        items[i].e = json_text_constant(b, value);
        if (is_object)
            items[i].e =
                expr_seq3(b, text_string_constant(b, v->members[i].key, v->members[i].key_len),
                          json_text_colon(b), items[i].e);
    }
    return json_text_list(b, is_object ? '{' : '[', is_object ? '}' : ']', items, (int32_t)v->n,
                          NULL, 0, 0, 0);
}
