/* calls.c - calls of tools as models write them, read from JSON that the server makes: one behind another, or in messages of which each
 * says whom it is for. What makes a reader see a call is in no other text, so that every call has arguments of its tool.
 *
 *   "arguments": [{"schema": S} | {"elements": {...}} | {"lark": TEXT, "name": NAME}, ...]  also "spelling": "gemma" with a "quote", or
 *     "python". lark: one string, a text of that grammar; as an element with "elements", whose "schema" is not looked at then
 *   CALL: {"begin": TEXT, "arguments": INDEX, "end": TEXT}
 *   calls:    {"arguments", "first": [CALL, ...], "calls": [CALL, ...], "between": TEXT, "end": TEXT}: one of `first`, then others if there
 *             is a text to stand between two
 *   messages: {"arguments", "calls": [CALL with a "word", ...], "names": [...], "prefixes": [...], "marks": [...], and
 *              "recipient": TEXT, "all": TEXT            ">>>all\n" content, ">>>NAME\n" arguments; the first ">>>" has been read
 *           or "to": TEXT, "text": TEXT, "ends": [...], "starts": [...]}   HEADER text CONTENT end HEADER ... */
#include "grammar/grammar_int.h"
#include "json/json.h"

#include <string.h>

/* --- what they share --- */

static const struct expr *calls_text(struct build *b, const struct json *v, const char *key)
{
    const struct json *text = json_get(v, key);
    if (!json_is(text, JSON_TYPE_STRING))
        return build_fail(b, ERR_INVALID, "calls: '%s' must be a string", key);
    return tags_pattern(b, tags_text(b, text));
}

static const struct expr *calls_lark_text(struct build *b, const void *arg)
{
    const struct json *text = arg;
    return lark_read(b, text->text, text->len);
}

/* An object of one string, however objects and strings are written. An element's text holds no '<', so that it does not end there; framing
 * that a reader drops is written for it to drop. */
static const struct expr *calls_lark(struct build *b, const struct json *v)
{
    const struct json *text = json_get(v, "lark"), *name = json_get(v, "name");
    const struct json *elements = json_get(v, "elements");
    if (!json_is(text, JSON_TYPE_STRING) || !json_is(name, JSON_TYPE_STRING))
        return build_fail(b, ERR_INVALID, "calls: 'lark' and 'name' must be strings");
    if (elements) {
        const struct json *trims = json_get(elements, "trims");
        const struct expr *line =
            json_is(trims, JSON_TYPE_BOOL) && trims->boolean ? expr_text(b, "\n") : expr_empty();
        b->text = TEXT_RAW;
        const struct expr *kids[] = {
            calls_text(b, elements, "open"), expr_bytes(b, name->text, name->len),
            calls_text(b, elements, "raw"),  line,
            calls_lark_text(b, text),        line,
            calls_text(b, elements, "close")
        };
        return expr_seq(b, kids, 7);
    }
    struct expr_item item = { json_text_name_of(b, name->text, name->len, true), false };
    if (!item.e)
        return build_fail(b, ERR_UNSUPPORTED, "calls: '%.80s' cannot be written as a name",
                          name->text);
    bool is_round = b->text == TEXT_PYTHON;
    item.e = expr_seq2(b, item.e, json_text_quoted(b, calls_lark_text, text));
    return json_text_list(b, is_round ? '(' : '{', is_round ? ')' : '}', &item, 1, NULL, 0, 0, 0);
}

static const struct expr *calls_argument(struct build *b, const struct json *v)
{
    const struct json *spelling = json_get(v, "spelling"), *quote = json_get(v, "quote");
    enum text_kind text = json_str_eq(spelling, "gemma") && json_is(quote, JSON_TYPE_STRING)
                              ? TEXT_GEMMA
                          : json_str_eq(spelling, "python") ? TEXT_PYTHON
                                                            : TEXT_JSON;
    json_text_use(b, text,
                  text == TEXT_GEMMA ? tags_text(b, quote) : (struct grammar_bytes){ "", 0 });
    const struct json *elements = json_get(v, "elements");
    if (json_get(v, "lark"))
        return calls_lark(b, v);
    return elements ? elements_read(b, elements) : json_schema_read(b, json_get(v, "schema"));
}

bool calls_read_arguments(struct build *b, const struct json *v, struct expr_list *out)
{
    const struct json *list = json_get(v, "arguments");
    for (size_t i = 0; json_is(list, JSON_TYPE_ARRAY) && i < list->n && !b->code; i++) {
        int32_t rule = build_new_rule(b, "arguments");
        expr_list_add(b, out, expr_rule(b, rule));
        build_set_rule(b, rule, calls_argument(b, &list->items[i]));
        if (!b->code)
            b->rules[rule].is_called = true; /* several calls share it */
    }
    return b->code == ERR_OK;
}

const struct expr *calls_arguments_of(struct build *b, const struct json *v,
                                      const struct expr_list *arguments)
{
    int64_t at;
    struct err err;
    if (json_to_int(json_get(v, "arguments"), "arguments", 0, arguments->n - 1, &at, &err))
        return build_fail(b, ERR_INVALID, "calls: %.100s", err.text);
    return arguments->items[at];
}

static const struct expr *calls_one(struct build *b, const struct json *v,
                                    const struct expr_list *arguments)
{
    const struct expr *e = calls_arguments_of(b, v, arguments);
    return expr_seq3(b, calls_text(b, v, "begin"), e,
                     json_get(v, "end") ? calls_text(b, v, "end") : expr_empty());
}

static const struct expr *calls_any(struct build *b, const struct json *list,
                                    const struct expr_list *arguments)
{
    struct expr_list all = { 0 };
    if (!json_is(list, JSON_TYPE_ARRAY))
        return build_fail(b, ERR_INVALID, "calls: must be an array");
    for (size_t i = 0; i < list->n && !b->code; i++)
        expr_list_add(b, &all, calls_one(b, &list->items[i], arguments));
    return expr_alt(b, all.items, all.n);
}

const struct expr *calls_read_list(struct build *b, const struct json *v,
                                   const struct expr_list *arguments)
{
    const struct json *first = json_get(v, "first"), *all = json_get(v, "calls");
    const struct expr *e = calls_any(b, first ? first : all, arguments);
    if (!json_get(v, "between") || b->code)
        return e;
    const struct expr *more =
        expr_seq2(b, calls_text(b, v, "between"), calls_any(b, all, arguments));
    return expr_seq2(b, e, expr_repeat(b, more, 0, EXPR_INF));
}

const struct expr *calls_read(struct build *b, const struct json *v)
{
    struct expr_list arguments = { 0 };
    if (!calls_read_arguments(b, v, &arguments))
        return expr_none();
    return expr_seq2(b, calls_read_list(b, v, &arguments), calls_text(b, v, "end"));
}

/* --- messages --- */

struct messages {
    struct build *b;
    const struct json *v;
    struct expr_list arguments;
    const struct expr *any;   /* any bytes */
    const struct expr *chars; /* a character */
    const struct expr *words; /* what a reader takes for the name of a tool */
};

/* Texts of a list; plain: without the bytes around control tokens, as a reader sees them. */
static const struct expr *messages_texts(struct messages *m, const char *key, bool is_plain)
{
    struct expr_list all = { 0 };
    struct build *b = m->b;
    const struct json *list = json_get(m->v, key);
    if (!json_is(list, JSON_TYPE_ARRAY))
        return build_fail(b, ERR_INVALID, "messages: '%s' must be an array", key);
    for (size_t i = 0; i < list->n && !b->code; i++) {
        if (!json_is(&list->items[i], JSON_TYPE_STRING))
            return build_fail(b, ERR_INVALID, "messages: '%s' must hold strings", key);
        struct grammar_bytes x = tags_text(b, &list->items[i]);
        char *text = build_alloc(b, x.len + 1);
        size_t n = 0;
        for (size_t k = 0; k < x.len; k++)
            if (!is_plain || (uint8_t)x.data[k] < 0xFE)
                text[n++] = x.data[k];
        expr_list_add(b, &all, expr_bytes(b, text, n));
    }
    return expr_alt(b, all.items, all.n);
}

/* Any number of `units` in which `text` does not occur. */
static const struct expr *messages_without(struct messages *m, const struct expr *units,
                                           const struct expr *text)
{
    return expr_and(m->b, expr_repeat(m->b, units, 0, EXPR_INF),
                    expr_not(m->b, expr_seq3(m->b, m->any, text, m->any)));
}

static const struct expr *messages_words(struct messages *m, bool has_numbers)
{
    static const struct expr_range range = { '0', '9' };
    struct build *b = m->b;
    const struct expr *digits = expr_repeat(b, expr_class(b, &range, 1, false), 1, EXPR_INF);
    const struct expr *number = expr_optional(b, expr_seq2(b, expr_text(b, ":"), digits));
    return expr_seq3(b, expr_repeat(b, messages_texts(m, "prefixes", true), 0, EXPR_INF),
                     messages_texts(m, "names", true), has_numbers ? number : expr_empty());
}

static const struct expr *messages_recipients(struct messages *m)
{
    struct build *b = m->b;
    const struct expr *mark = calls_text(b, m->v, "recipient"), *all = calls_text(b, m->v, "all");
    const struct expr *head =
        expr_seq2(b, mark, expr_alt2(b, expr_seq2(b, m->words, expr_text(b, "\n")), all));
    const struct expr *part = expr_alt2(b, expr_seq2(b, all, messages_without(m, m->chars, head)),
                                        calls_any(b, json_get(m->v, "calls"), &m->arguments));
    return expr_seq2(b, part, expr_repeat(b, expr_seq2(b, mark, part), 0, EXPR_INF));
}

struct headers {
    const struct expr *plain;  /* up to the text, of messages that are no calls */
    const struct expr *before; /* ... up to a tool's name */
    const struct expr *after;  /* behind a name, to where the text begins */
};

static struct headers messages_headers(struct messages *m)
{
    static const struct expr_range blanks[] = {
        { '\t', '\n' }, { '\r', '\r' }, { ' ', ' ' }, { '<', '<' }
    };
    struct build *b = m->b;
    struct expr_range others[6];
    const struct json *mark = json_get(m->v, "text");
    struct grammar_bytes text =
        json_is(mark, JSON_TYPE_STRING) ? tags_text(b, mark) : (struct grammar_bytes){ "", 0 };
    bool is_marked = text.len > 2 && (uint8_t)text.data[0] == 0xFF;
    const struct expr *plain = expr_bytes(b, text.data + is_marked, text.len - 2u * is_marked);
    const struct expr *whole = expr_bytes(b, text.data, text.len), *to = calls_text(b, m->v, "to");
    const struct expr *units = expr_alt2(b, m->chars, messages_texts(m, "marks", false));
    const struct expr *before = messages_without(m, units, expr_alt2(b, plain, to));
    int32_t n = expr_ranges_invert(blanks, 4, others);
    const struct expr *word = expr_and(
        b, expr_repeat(b, expr_class(b, others, n, false), 0, EXPR_INF), expr_not(b, m->words));
    const struct expr *begun =
        expr_alt2(b, expr_class(b, blanks, 4, false), expr_bytes(b, "\xFF", 1));
    const struct expr *rest = expr_optional(
        b, expr_and(b, messages_without(m, units, plain), expr_seq2(b, begun, m->any)));
    int32_t rule = build_new_rule(b, "the end of a header");
    build_set_rule(b, rule, expr_seq2(b, rest, whole));
    if (!b->code)
        b->rules[rule].is_called = true; /* it stands behind every name */
    struct headers h = { .before = expr_seq2(b, before, to), .after = expr_rule(b, rule) };
    h.plain = expr_seq2(b, expr_alt2(b, before, expr_seq3(b, h.before, word, rest)), whole);
    return h;
}

static const struct expr *messages_addressed(struct messages *m)
{
    static const struct expr_range blank[] = { { '\t', '\n' }, { '\r', '\r' }, { ' ', ' ' } };
    struct build *b = m->b;
    struct headers h = messages_headers(m);
    const struct json *list = json_get(m->v, "calls");
    struct expr_list calls = { 0 };
    for (size_t i = 0; json_is(list, JSON_TYPE_ARRAY) && i < list->n && !b->code; i++)
        expr_list_add(b, &calls,
                      expr_seq3(b, calls_text(b, &list->items[i], "word"), h.after,
                                calls_one(b, &list->items[i], &m->arguments)));
    const struct expr *call = expr_alt(b, calls.items, calls.n);
    const struct expr *text = messages_without(m, m->chars, messages_texts(m, "ends", true));
    /* The first one is known by what it begins with, others by what ends the one before. */
    const struct expr *begun =
        expr_seq3(b, expr_repeat(b, expr_class(b, blank, 3, false), 0, EXPR_INF),
                  messages_texts(m, "starts", false), m->any);
    const struct expr *first = expr_alt2(b, expr_seq2(b, expr_and(b, h.plain, begun), text),
                                         expr_seq2(b, expr_and(b, h.before, begun), call));
    const struct expr *next =
        expr_alt2(b, expr_seq2(b, h.plain, text), expr_seq2(b, h.before, call));
    return expr_seq2(
        b, first,
        expr_repeat(b, expr_seq2(b, messages_texts(m, "ends", false), next), 0, EXPR_INF));
}

const struct expr *calls_read_messages(struct build *b, const struct json *v)
{
    static const struct expr_range all = { 0, 0x10FFFF };
    struct messages m = { .b = b, .v = v };
    bool is_addressed = json_get(v, "recipient") == NULL;
    if (!calls_read_arguments(b, v, &m.arguments))
        return expr_none();
    m.any = expr_repeat(b, expr_any(), 0, EXPR_INF);
    m.chars = expr_class(b, &all, 1, false);
    m.words = messages_words(&m, is_addressed);
    const struct expr *e = b->code        ? expr_none()
                           : is_addressed ? messages_addressed(&m)
                                          : messages_recipients(&m);
    return b->code ? expr_none() : e;
}
