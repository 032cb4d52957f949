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

/* --- characters --- */

enum text_way text_way(enum text_kind text, uint32_t cp)
{
    char quote = text == TEXT_SINGLE ? '\'' : '"';
    switch (text) {
    case TEXT_RAW:
        return cp == '<' || cp == '\r' ? TEXT_WAY_NEVER : TEXT_WAY_RAW;
    case TEXT_GEMMA_BARS:
        return cp == '|' ? TEXT_WAY_NEVER : TEXT_WAY_RAW;
    case TEXT_NONE:
    case TEXT_GEMMA:
        return TEXT_WAY_RAW;
    default:
        return cp < 0x20 || cp == (uint32_t)quote || cp == '\\' ||
                       (cp == '<' && (text == TEXT_ELEMENT || text == TEXT_VALUE))
                   ? TEXT_WAY_ESCAPED
                   : TEXT_WAY_RAW;
    }
}

size_t text_escape(uint32_t cp, char out[TEXT_ESCAPE_BYTES])
{
    static const char letters[] = "\"'\\\b\f\n\r\t", names[] = "\"'\\bfnrt";
    static const char hex[] = "0123456789abcdef";
    const char *p = cp ? strchr(letters, (int)cp) : NULL;
    const char text[] = { '\\', 'u', '0', '0', hex[cp >> 4 & 15], hex[cp & 15] };
    memcpy(out, text, sizeof(text));
    if (p)
        out[1] = names[p - letters];
    return p ? 2 : sizeof(text);
}

const struct expr *json_text_raw(struct build *b)
{
    static const struct expr_range all = { 0, 0x10FFFF };
    struct build_text *x = &b->texts[b->text];
    if (!x->jraw)
        x->jraw = expr_class(b, &all, 1, true);
    return x->jraw;
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
static const struct expr *text_escapes(struct build *b)
{
    const struct expr *hex = text_hex(b, "0123456789abcdef");
    const struct expr *hex2 = expr_repeat(b, hex, 2, 2), *hex3 = expr_repeat(b, hex, 3, 3);
    const struct expr *d = text_hex(b, "d");
    const struct expr *high[] = { d, text_hex(b, "89ab"), hex2, expr_text(b, "\\u"),
                                  d, text_hex(b, "cdef"), hex2 };
    const struct expr *codes[] = { expr_seq2(b, text_hex(b, "0123456789abcef"), hex3),
                                   expr_seq3(b, d, text_hex(b, "01234567"), hex2),
                                   expr_seq(b, high, 7) };
    bool is_python = b->text == TEXT_PYTHON || b->text == TEXT_SINGLE;
    const char *names = is_python ? "\"\\'bfnrt" : "\"\\/bfnrt";
    struct expr_range r[8];
    for (int i = 0; i < 8; i++)
        r[i] = (struct expr_range){ (uint8_t)names[i], (uint8_t)names[i] };
    return expr_seq2(b, expr_text(b, "\\"),
                     expr_alt2(b, expr_class(b, r, 8, false),
                               expr_seq2(b, expr_text(b, "u"), expr_alt(b, codes, 3))));
}

/* Those that stand as they are. */
static const struct expr *text_unescaped(struct build *b)
{
    struct expr_range r[130];
    int32_t n = 0;
    for (uint32_t cp = 0; cp < 0x80; cp++)
        if (text_way(b->text, cp) == TEXT_WAY_RAW)
            r[n++] = (struct expr_range){ cp, cp };
    r[n++] = (struct expr_range){ 0x80, 0x10FFFF };
    return expr_class(b, r, n, false);
}

static bool text_has_escapes(const struct build *b)
{
    return text_way(b->text, '\\') == TEXT_WAY_ESCAPED;
}

const struct expr *json_text_char(struct build *b)
{
    struct build_text *x = &b->texts[b->text];
    if (!x->jchar)
        x->jchar = text_has_escapes(b) ? expr_alt2(b, text_unescaped(b), text_escapes(b))
                                       : text_unescaped(b);
    return x->jchar;
}

const struct expr *json_text_plain(struct build *b, const char *text, size_t n)
{
    struct buf out;
    bool is_fine = true;
    buf_init(&out, MEM_CAT_GRAMMAR, TEXT_ESCAPE_BYTES * n + 16);
    for (size_t i = 0; i < n && is_fine; i++) {
        char escape[TEXT_ESCAPE_BYTES];
        enum text_way way = text_way(b->text, (uint8_t)text[i]);
        if (way == TEXT_WAY_ESCAPED)
            buf_add(&out, escape, text_escape((uint8_t)text[i], escape));
        else
            buf_add_char(&out, text[i]);
        is_fine = way != TEXT_WAY_NEVER;
    }
    const struct expr *e = is_fine ? expr_bytes(b, out.data, out.len) : expr_none();
    buf_release(&out);
    return e;
}

/* --- strings --- */

void json_text_use(struct build *b, enum text_kind text, struct grammar_bytes quote)
{
    b->text = text;
    if (text != TEXT_GEMMA)
        return;
    bool is_other = quote.len != b->quote.len || memcmp(quote.data, b->quote.data, quote.len) != 0;
    b->text = quote.len > 0 && (uint8_t)quote.data[0] == 0xFF ? TEXT_GEMMA : TEXT_GEMMA_BARS;
    b->quote = quote;
    if (is_other) /* what was made has other quotes */
        b->texts[b->text] = (struct build_text){ .jchar = NULL };
}

static const struct expr *text_between_quotes(struct build *b, const struct expr *e)
{
    bool is_gemma = b->text == TEXT_GEMMA || b->text == TEXT_GEMMA_BARS;
    const struct expr *quote = is_gemma ? expr_bytes(b, b->quote.data, b->quote.len)
                                        : expr_text(b, b->text == TEXT_SINGLE ? "'" : "\"");
    return expr_seq3(b, quote, e, quote);
}

const struct expr *json_text_quoted(struct build *b,
                                    const struct expr *(*make)(struct build *b, const void *arg),
                                    const void *arg)
{
    const struct expr *e = text_between_quotes(b, make(b, arg));
    if (b->text != TEXT_PYTHON)
        return e;
    b->text = TEXT_SINGLE;
    const struct expr *other = text_between_quotes(b, make(b, arg));
    b->text = TEXT_PYTHON;
    return expr_alt2(b, e, other);
}

static const struct expr *text_free(struct build *b, const void *arg)
{
    (void)arg;
    return expr_repeat(b, json_text_char(b), 0, EXPR_INF);
}

const struct expr *json_text_string(struct build *b)
{
    struct build_text *x = &b->texts[b->text];
    if (!x->jstring) {
        int32_t rule = build_new_rule(b, "string");
        build_set_rule(b, rule, json_text_quoted(b, text_free, NULL));
        b->rules[rule].is_called = true; /* one state for all strings: one wide mask */
        x->jstring = expr_rule(b, rule);
    }
    return x->jstring;
}

static bool text_is_gemma(const struct build *b)
{
    return b->text == TEXT_GEMMA || b->text == TEXT_GEMMA_BARS;
}

const struct expr *json_text_ws(struct build *b)
{
    struct build_text *x = &b->texts[b->text];
    if (!x->ws && (b->is_compact || text_is_gemma(b)))
        x->ws = expr_empty();
    if (!x->ws) {
        const struct expr *indent =
            expr_alt2(b, expr_repeat(b, expr_text(b, " "), 0, TEXT_INDENT),
                      expr_repeat(b, expr_text(b, "\t"), 1, TEXT_INDENT / 4));
        const struct expr *some =
            expr_alt2(b, expr_text(b, " "), expr_seq2(b, expr_text(b, "\n"), indent));
        int32_t rule = build_new_rule(b, "blanks");
        build_set_rule(b, rule, expr_optional(b, some));
        b->rules[rule].is_called = true; /* it stands everywhere, and is longer than most else */
        x->ws = expr_rule(b, rule);
    }
    return x->ws;
}

/* --- names of members --- */

#define TEXT_BARS \
    "{}[]\"':,=()\\<|>" /* not in a name without quotes: it would end there, or elsewhere */

static bool text_is_bare(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)name[i] <= ' ' || name[i] == 0x7F || strchr(TEXT_BARS, name[i]))
            return false;
    return n > 0;
}

static const struct expr *text_bare(struct build *b)
{
    static const struct expr_range r[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
    return expr_repeat(b, expr_class(b, r, 4, false), 1, EXPR_INF);
}

static const struct expr *text_colon(struct build *b)
{
    return expr_seq2(b, expr_text(b, ":"), json_text_ws(b));
}

/* Without quotes where it is a word, or else between them. */
const struct expr *json_text_name(struct build *b, const struct expr *text, bool is_call)
{
    bool is_gemma = text_is_gemma(b), is_bare = is_call && b->text == TEXT_PYTHON;
    if (!is_gemma && !is_bare)
        return expr_seq2(b, text_between_quotes(b, text), text_colon(b));
    const struct expr *word = text_bare(b), *bare = expr_and(b, text, word);
    if (is_bare)
        return expr_seq2(b, bare, expr_text(b, "="));
    const struct expr *other = text_between_quotes(b, expr_and(b, text, expr_not(b, word)));
    return expr_seq2(b, expr_alt2(b, bare, other), text_colon(b));
}

struct text_constant {
    const char *text;
    size_t n;
};

static const struct expr *text_constant(struct build *b, const void *arg)
{
    const struct text_constant *x = arg;
    return json_text_plain(b, x->text, x->n);
}

const struct expr *json_text_name_of(struct build *b, const char *name, size_t n, bool is_call)
{
    struct text_constant x = { name, n };
    bool is_python = is_call && b->text == TEXT_PYTHON;
    bool is_bare = (text_is_gemma(b) || is_python) && text_is_bare(name, n);
    if (is_python)
        return is_bare ? expr_seq2(b, expr_bytes(b, name, n), expr_text(b, "=")) : NULL;
    return expr_seq2(b, is_bare ? expr_bytes(b, name, n) : json_text_quoted(b, text_constant, &x),
                     text_colon(b));
}

/* --- lists --- */

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

const struct expr *json_text_word(struct build *b, const char *word)
{
    static const char *const other[][2] = { { "null", "None" },
                                            { "true", "True" },
                                            { "false", "False" } };
    const struct expr *e = expr_text(b, word);
    for (size_t i = 0; i < ARRAY_LEN(other); i++) /* Gemma's template writes None, too */
        if (strcmp(word, other[i][0]) == 0 &&
            (b->text == TEXT_PYTHON || b->text == TEXT_VALUE || (i == 0 && text_is_gemma(b))))
            e = expr_alt2(b, e, expr_text(b, other[i][1]));
    return e;
}

static const struct expr *text_member(struct build *b, const struct expr *value)
{
    const struct expr *name = json_text_string(b);
    if (text_is_gemma(b))
        name = expr_alt2(b, text_bare(b), name);
    return expr_seq3(b, name, text_colon(b), value);
}

const struct expr *json_text_value(struct build *b)
{
    struct build_text *x = &b->texts[b->text];
    if (x->any_value)
        return x->any_value;
    int32_t value = build_new_rule(b, "any value"), object = build_new_rule(b, "any object");
    x->any_value = expr_rule(b, value);
    x->any_object = object;
    build_set_rule(
        b, object,
        json_text_list(b, '{', '}', NULL, 0, text_member(b, x->any_value), 0, EXPR_INF, 0));
    const struct expr *kids[] = {
        json_text_string(b),
        json_text_number(b),
        json_text_word(b, "true"),
        json_text_word(b, "false"),
        json_text_word(b, "null"),
        expr_rule(b, object),
        json_text_list(b, '[', ']', NULL, 0, x->any_value, 0, EXPR_INF, 0),
    };
    build_set_rule(b, value, expr_alt(b, kids, 7));
    return x->any_value;
}

const struct expr *json_text_object(struct build *b)
{
    json_text_value(b);
    return b->code ? expr_none() : expr_rule(b, b->texts[b->text].any_object);
}

/* --- constants --- */

int64_t json_text_length(const char *text, size_t n)
{
    return (int64_t)utf8_count(text, n);
}

const struct expr *json_text_constant(struct build *b, const struct json *v)
{
    struct text_constant string = { v->text, v->len };
    switch (v->type) {
    case JSON_TYPE_NULL:
        return json_text_word(b, "null");
    case JSON_TYPE_BOOL:
        return json_text_word(b, v->boolean ? "true" : "false");
    case JSON_TYPE_NUMBER:
        return expr_bytes(b, v->text, v->len);
    case JSON_TYPE_STRING:
        return json_text_quoted(b, text_constant, &string);
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
                expr_seq2(b, json_text_name_of(b, v->members[i].key, v->members[i].key_len, false),
                          items[i].e);
    }
    return json_text_list(b, is_object ? '{' : '[', is_object ? '}' : ']', items, (int32_t)v->n,
                          NULL, 0, 0, 0);
}
