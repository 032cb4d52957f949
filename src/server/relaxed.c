#include "server/relaxed.h"
#include "server/limits.h"

#include <string.h>

enum {
    AT_START,
    AT_KEY,   /* after '{' or a comma in an object */
    AT_ITEM,  /* after '[' or a comma in an array */
    AT_VALUE, /* after a colon */
    AT_COLON, /* after a name that surely has ended */
    AT_AFTER, /* after a value */
    IN_STRING,
    IN_ESCAPE, /* after a backslash */
    IN_HEX,    /* after \u: the digits are in word */
    IN_QUOTE,  /* after a quote that may or may not end the string; blanks after it are in held */
    IN_WORD,   /* a bare value */
    IN_NAME,   /* a bare name */
};

void relaxed_init(struct relaxed *r, struct buf *out)
{
    *r = (struct relaxed){ .out = out };
    buf_init(&r->held, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&r->word, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
}

void relaxed_release(struct relaxed *r)
{
    buf_release(&r->held);
    buf_release(&r->word);
}

static bool relaxed_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

void relaxed_escape(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            buf_add_char(out, '\\');
        if (c >= 0x20)
            buf_add_char(out, s[i]);
        else if (c == '\n' || c == '\t' || c == '\r')
            buf_add_str(out, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r");
        else
            buf_printf(out, "\\u%04x", c);
    }
}

/* What was held goes out; without the comma if the container ends. */
static void relaxed_flush(struct relaxed *r, bool has_comma)
{
    for (size_t i = 0; i < r->held.len; i++)
        if (r->held.data[i] != ',' || has_comma)
            buf_add_char(r->out, r->held.data[i]);
    buf_reset(&r->held);
}

/* --- values that are no strings or containers --- */

static bool relaxed_is_number(const char *s, size_t n)
{
    size_t i = n > 0 && s[0] == '-', first = i;
    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    if (i == first || (s[first] == '0' && i > first + 1))
        return false;
    if (i < n && s[i] == '.') {
        size_t dot = ++i;
        while (i < n && s[i] >= '0' && s[i] <= '9')
            i++;
        if (i == dot)
            return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i += i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-') ? 2 : 1;
        size_t digits = i;
        while (i < n && s[i] >= '0' && s[i] <= '9')
            i++;
        if (i == digits)
            return false;
    }
    return i == n;
}

static void relaxed_end_word(struct relaxed *r)
{
    static const char *const names[][2] = {
        { "true", "true" },   { "false", "false" }, { "null", "null" },   { "True", "true" },
        { "False", "false" }, { "None", "null" },   { "NaN", "null" },    { "undefined", "null" },
        { "nan", "null" },    { "TRUE", "true" },   { "FALSE", "false" }, { "nil", "null" },
    };
    size_t n = r->word.len;
    while (n > 0 && relaxed_is_blank(r->word.data[n - 1]))
        n--;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strlen(names[i][0]) == n && memcmp(names[i][0], r->word.data, n) == 0) {
            buf_add_str(r->out, names[i][1]);
            goto out;
        }
    if (relaxed_is_number(r->word.data, n)) {
        buf_add(r->out, r->word.data, n);
    } else {
        buf_add_char(r->out, '"');
        relaxed_escape(r->out, r->word.data, n);
        buf_add_char(r->out, '"');
    }
out:
    buf_reset(&r->word);
    r->state = AT_AFTER;
}

static void relaxed_end_name(struct relaxed *r)
{
    size_t n = r->word.len;
    while (n > 0 && relaxed_is_blank(r->word.data[n - 1]))
        n--;
    buf_add_char(r->out, '"');
    relaxed_escape(r->out, r->word.data, n);
    buf_add_str(r->out, "\":");
    buf_reset(&r->word);
    r->state = AT_VALUE;
}

/* --- containers --- */

static void relaxed_open(struct relaxed *r, char c)
{
    r->stack[r->depth++] = c;
    buf_add_char(r->out, c);
    r->state = c == '{' ? AT_KEY : AT_ITEM;
    r->is_plausible = r->is_plausible || c == '[';
}

static void relaxed_close_one(struct relaxed *r)
{
    buf_add_char(r->out, r->stack[--r->depth] == '{' ? '}' : ']');
    r->state = AT_AFTER;
    r->is_done = r->depth == 0;
    r->is_plausible = true;
}

/* A closing bracket closes what stands between it and its partner, too; one without a partner is left out. */
static void relaxed_close(struct relaxed *r, char c)
{
    char partner = c == '}' ? '{' : '[';
    int d = r->depth;
    while (d > 0 && r->stack[d - 1] != partner)
        d--;
    if (d == 0)
        return;
    relaxed_flush(r, false);
    while (r->depth >= d)
        relaxed_close_one(r);
}

/* --- strings --- */

static void relaxed_begin_string(struct relaxed *r, char quote, bool is_key)
{
    relaxed_flush(r, true);
    r->quote = quote;
    r->is_key = is_key;
    r->state = IN_STRING;
    buf_add_char(r->out, '"');
}

static void relaxed_string(struct relaxed *r, char c)
{
    if (c == r->quote && c == RELAXED_QUOTE) {
        buf_add_char(r->out, '"');
        r->state = r->is_key ? AT_COLON : AT_AFTER;
    } else if (c == r->quote) {
        r->state = IN_QUOTE;
    } else if (c == '\\' && r->quote != RELAXED_QUOTE) {
        r->state = IN_ESCAPE;
    } else if (c != RELAXED_QUOTE) {
        relaxed_escape(r->out, &c, 1);
    }
}

/* The quote before was one of the string's own characters. */
static void relaxed_inner_quote(struct relaxed *r)
{
    relaxed_escape(r->out, &r->quote, 1);
    relaxed_escape(r->out, r->held.data, r->held.len);
    buf_reset(&r->held);
    r->state = IN_STRING;
}

static void relaxed_end_string(struct relaxed *r)
{
    buf_add_char(r->out, '"');
    relaxed_flush(r, true);
    r->state = r->is_key ? AT_COLON : AT_AFTER;
}

static void relaxed_quote(struct relaxed *r, char c)
{
    if (relaxed_is_blank(c)) {
        buf_add_char(&r->held, c);
        return;
    }
    bool is_end = c == ',' || c == '}' || c == (r->is_key ? ':' : ']');
    if (!is_end && !r->is_plausible) {
        r->has_failed = true;
        return;
    }
    if (is_end)
        relaxed_end_string(r);
    else
        relaxed_inner_quote(r);
    relaxed_push(r, c);
}

static void relaxed_escaped(struct relaxed *r, char c)
{
    r->state = IN_STRING;
    if (strchr("\"\\/bfnrt", c) && c) {
        buf_add_char(r->out, '\\');
        buf_add_char(r->out, c);
    } else if (c == '\'') {
        buf_add_char(r->out, c);
    } else if (c == 'u') {
        r->state = IN_HEX;
        buf_reset(&r->word);
    } else { /* the backslash was meant */
        buf_add_str(r->out, "\\\\");
        relaxed_push(r, c);
    }
}

static void relaxed_hex(struct relaxed *r, char c)
{
    bool is_hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (is_hex)
        buf_add_char(&r->word, c);
    if (is_hex && r->word.len < 4)
        return;
    buf_add_str(r->out, is_hex ? "\\u" : "\\\\u");
    buf_add(r->out, r->word.data, r->word.len);
    buf_reset(&r->word);
    r->state = IN_STRING;
    if (!is_hex)
        relaxed_push(r, c);
}

/* --- between --- */

static void relaxed_value(struct relaxed *r, char c)
{
    if (c == '"' || c == '\'' || c == RELAXED_QUOTE) {
        relaxed_begin_string(r, c, false);
    } else if ((c == '{' || c == '[') && r->depth < JSON_DEPTH_MAX) {
        relaxed_flush(r, true);
        relaxed_open(r, c);
    } else if (c == ',' || c == '}' || c == ']') { /* nothing stands there */
        buf_add_str(r->out, "null");
        r->state = AT_AFTER;
        relaxed_push(r, c);
    } else {
        relaxed_flush(r, true);
        buf_add_char(&r->word, c);
        r->state = IN_WORD;
    }
}

static void relaxed_key(struct relaxed *r, char c)
{
    if (c == '"' || c == '\'' || c == RELAXED_QUOTE) {
        relaxed_begin_string(r, c, true);
    } else if (c == '}' || c == ']') {
        relaxed_close(r, c);
    } else if (c != ',') {
        relaxed_flush(r, true);
        buf_add_char(&r->word, c);
        r->state = IN_NAME;
    }
}

static void relaxed_name(struct relaxed *r, char c)
{
    if (c == ':') {
        relaxed_end_name(r);
        r->is_plausible = true;
    } else if (!strchr(",}]{[\"'", c) || c == '\0') {
        if (c != RELAXED_QUOTE)
            buf_add_char(&r->word, c);
    } else if (!r->is_plausible) {
        r->has_failed = true;
    } else { /* a name without a value */
        relaxed_end_name(r);
        relaxed_push(r, c);
    }
}

static void relaxed_after(struct relaxed *r, char c)
{
    bool is_object = r->stack[r->depth - 1] == '{';
    if (c == '}' || c == ']') {
        relaxed_close(r, c);
    } else if (c == ',') {
        buf_add_char(&r->held, ',');
        r->state = is_object ? AT_KEY : AT_ITEM;
    } else if (c == '"' || c == '\'' || c == RELAXED_QUOTE || c == '{' || c == '[') {
        buf_add_char(&r->held, ','); /* it was forgotten */
        r->state = is_object ? AT_KEY : AT_ITEM;
        relaxed_push(r, c);
    } /* else: what stands between a value and the next comma means nothing */
}

static void relaxed_push_between(struct relaxed *r, char c)
{
    if (relaxed_is_blank(c)) {
        if (r->state == AT_KEY || r->state == AT_ITEM || r->state == AT_AFTER)
            buf_add_char(&r->held, c);
        else if (r->state != AT_START)
            buf_add_char(r->out, c);
        return;
    }
    switch (r->state) {
    case AT_START:
        if (c == '{' || c == '[') {
            relaxed_open(r, c);
        } else if (!r->is_plausible) {
            r->has_failed = true;
        } else { /* the bracket was left out */
            relaxed_open(r, '{');
            relaxed_push(r, c);
        }
        break;
    case AT_KEY:
        relaxed_key(r, c);
        break;
    case AT_ITEM:
        if (c == ']' || c == '}')
            relaxed_close(r, c);
        else if (c != ',')
            relaxed_value(r, c);
        break;
    case AT_VALUE:
        relaxed_value(r, c);
        break;
    case AT_COLON:
        if (c == ':') {
            buf_add_char(r->out, c);
            r->state = AT_VALUE;
            r->is_plausible = true;
        } else if (!r->is_plausible) {
            r->has_failed = true;
        } else { /* a name without a value */
            buf_add_char(r->out, ':');
            r->state = AT_VALUE;
            relaxed_push(r, c);
        }
        break;
    default:
        relaxed_after(r, c);
    }
}

void relaxed_push(struct relaxed *r, char c)
{
    switch (r->state) {
    case IN_STRING:
        relaxed_string(r, c);
        break;
    case IN_ESCAPE:
        relaxed_escaped(r, c);
        break;
    case IN_HEX:
        relaxed_hex(r, c);
        break;
    case IN_QUOTE:
        relaxed_quote(r, c);
        break;
    case IN_NAME:
        relaxed_name(r, c);
        break;
    case IN_WORD:
        if (c == ',' || c == '}' || c == ']') {
            relaxed_end_word(r);
            relaxed_push(r, c);
        } else if (c != RELAXED_QUOTE) {
            buf_add_char(&r->word, c);
        }
        break;
    default:
        relaxed_push_between(r, c);
    }
}

bool relaxed_in_string(const struct relaxed *r)
{
    return r->state == IN_STRING || r->state == IN_ESCAPE || r->state == IN_HEX;
}

bool relaxed_in_name(const struct relaxed *r)
{
    return r->state == IN_NAME;
}

bool relaxed_wants_value(const struct relaxed *r)
{
    return r->state == AT_VALUE || r->state == AT_ITEM;
}

void relaxed_finish(struct relaxed *r)
{
    if (r->state == IN_ESCAPE)
        buf_add_str(r->out, "\\\\");
    if (r->state == IN_HEX) {
        buf_add_str(r->out, "\\\\u");
        buf_add(r->out, r->word.data, r->word.len);
    }
    if (r->state == IN_WORD)
        relaxed_end_word(r);
    if (r->state == IN_NAME)
        relaxed_end_name(r);
    if (relaxed_in_string(r) || r->state == IN_QUOTE) {
        buf_add_char(r->out, '"');
        r->state = r->is_key ? AT_COLON : AT_AFTER;
    }
    if (r->state == AT_COLON)
        buf_add_str(r->out, ":null");
    if (r->state == AT_VALUE)
        buf_add_str(r->out, "null");
    buf_reset(&r->held);
    while (r->depth > 0)
        relaxed_close_one(r);
}

bool relaxed_repair(const char *text, size_t n, struct buf *out)
{
    struct relaxed r;
    relaxed_init(&r, out);
    for (size_t i = 0; i < n && !r.is_done && !r.has_failed; i++)
        relaxed_push(&r, text[i]);
    bool is_fine = !r.has_failed && r.depth > 0;
    if (is_fine)
        relaxed_finish(&r);
    is_fine = is_fine || r.is_done;
    relaxed_release(&r);
    return is_fine;
}
