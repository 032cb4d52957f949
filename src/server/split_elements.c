/* split_elements.c - calls written as elements: a value is raw text, and the tool's schema says what it is. */
#include "server/split_int.h"

#include <string.h>

#define ELEMENT_NAME_BYTES 256

static void element_trim(const char *data, size_t *from, size_t *to)
{
    while (*from < *to && strchr(" \t\r\n\"'\xFE", data[*from]))
        (*from)++;
    while (*to > *from && strchr(" \t\r\n\"'\xFF", data[*to - 1]))
        (*to)--;
}

/* What may follow a name or a value: 1, 0 = something else, -1 = not to be told yet. */
static int element_follows(const struct splitter *s, size_t at, bool after_value)
{
    const struct split_elements *x = s->format->elements;
    const char *const markers[] = { x->key_open, x->call_close, s->format->close };
    int found = 0;
    if (at == s->in.len)
        return s->is_end ? 1 : -1;
    for (size_t i = 0; i < ARRAY_LEN(markers) && found <= 0; i++) {
        long n = split_match(s, at, markers[i]);
        found = n > 0 ? 1 : n < 0 ? -1 : found;
    }
    return found;
}

/* The name at in[at]: [*from, *to), *next behind what ends it. */
static enum split_verdict element_name(const struct splitter *s, size_t at, size_t *from,
                                       size_t *to, size_t *next)
{
    const struct split_elements *x = s->format->elements;
    const char *ends = *x->call_open ? ">" : "\n<{";
    size_t p = at;
    while (p < s->in.len && !strchr(ends, s->in.data[p]) && s->in.data[p] != SPLIT_MARK)
        p++;
    if (p - at > ELEMENT_NAME_BYTES)
        return SPLIT_NO;
    if (p == s->in.len && !(s->is_end && !*x->call_open))
        return s->is_end ? SPLIT_NO : SPLIT_MORE;
    *from = at;
    *to = p;
    *next = p + (*x->call_open != '\0');
    element_trim(s->in.data, from, to);
    return SPLIT_YES;
}

enum split_verdict split_try_elements(struct splitter *s, size_t at)
{
    const struct split_elements *x = s->format->elements;
    size_t from, to, next;
    if (*x->call_open) {
        long n = split_match(s, at, x->call_open);
        if (n <= 0)
            return n < 0 ? SPLIT_MORE : SPLIT_NO;
        at += (size_t)n;
    }
    enum split_verdict v = element_name(s, at, &from, &to, &next);
    if (v != SPLIT_YES)
        return v;
    const struct tool *tool = split_find_tool(s, s->in.data + from, to - from);
    if (!tool)
        return SPLIT_NO;
    next = split_skip_blanks(s, next);
    if (next < s->in.len && s->in.data[next] == '{')
        return split_start_arguments(s, tool, next, 0);
    int follows = element_follows(s, next, false);
    if (follows < 0)
        return SPLIT_MORE;
    if (follows == 0 || (next == s->in.len && s->was_cut))
        return SPLIT_NO;
    split_begin_call(s, tool);
    buf_add_char(&s->args, '{');
    s->n_keys = 0;
    s->pos = s->scan = next;
    s->state = SPLIT_ELEMENT;
    return SPLIT_YES;
}

static bool element_close(struct splitter *s)
{
    buf_add_char(&s->args, '}');
    split_end_call(s);
    return true;
}

bool split_element(struct splitter *s)
{
    const struct split_elements *x = s->format->elements;
    size_t p = split_skip_blanks(s, s->pos);
    if (p == s->in.len)
        return s->is_end && !s->was_cut ? element_close(s) : false;
    long key = split_match(s, p, x->key_open), close = split_match(s, p, x->call_close);
    if (key > 0 || close > 0)
        s->pos = s->scan = p + (size_t)(key > 0 ? key : close);
    if (key > 0) {
        s->state = SPLIT_KEY;
        return true;
    }
    if (close > 0)
        return element_close(s);
    if (key < 0 || close < 0)
        return false;
    return element_close(s); /* what comes is no element: content, or the section's end */
}

/* in[from, *to) is KEY" string="true": *to is the key's end then; whether it is a string. */
static enum tools_type key_type(const struct splitter *s, size_t from, size_t *to)
{
    const char *key = s->in.data + from, *quote = memchr(key, '"', *to - from);
    if (!quote)
        return TOOLS_TYPE_UNKNOWN;
    size_t left = *to - from - (size_t)(quote - key);
    *to = (size_t)(quote - s->in.data);
    return memmem(quote, left, "\"true\"", 6)    ? TOOLS_TYPE_STRING
           : memmem(quote, left, "\"false\"", 7) ? TOOLS_TYPE_OTHER
                                                 : TOOLS_TYPE_UNKNOWN;
}

bool split_key(struct splitter *s)
{
    const struct split_elements *x = s->format->elements;
    size_t p = s->pos, from = s->pos, to, next;
    long n = 0;
    for (; p < s->in.len && p - s->pos <= ELEMENT_NAME_BYTES; p++)
        if ((n = split_match(s, p, x->key_end)) != 0)
            break;
    if (n > 0 && x->value_open) {
        next = split_skip_blanks(s, p + (size_t)n);
        long m = next == s->in.len && !s->is_end ? -1 : split_match(s, next, x->value_open);
        n = m > 0 ? (long)(next - p) + m : m;
    }
    if (n <= 0) {
        bool is_lost = n == 0 && (p - s->pos > ELEMENT_NAME_BYTES || p < s->in.len);
        return is_lost || (s->is_end && !s->was_cut) ? element_close(s) : false;
    }
    to = p;
    enum tools_type said = x->has_type ? key_type(s, from, &to) : TOOLS_TYPE_UNKNOWN;
    element_trim(s->in.data, &from, &to);
    buf_add_str(&s->args, s->n_keys++ > 0 ? ", \"" : "\"");
    for (size_t i = from; i < to; i++)
        if (s->in.data[i] != SPLIT_MARK && s->in.data[i] != SPLIT_MARK_END)
            relaxed_escape(&s->args, &s->in.data[i], 1);
    buf_add_str(&s->args, "\": ");
    s->type = tools_type_of(s->tool, s->in.data + from, to - from);
    s->type = s->type == TOOLS_TYPE_UNKNOWN ? said : s->type;
    s->is_raw_string = s->type == TOOLS_TYPE_STRING;
    s->is_value_started = s->is_cdata = false;
    buf_reset(&s->value);
    s->pos = s->scan = p + (size_t)n;
    s->state = SPLIT_VALUE;
    return true;
}

/* What is framing before a value. False: not to be told yet. */
static bool value_start(struct splitter *s)
{
    const struct split_elements *x = s->format->elements;
    long n = split_match(s, s->pos, "<![CDATA[");
    if (x->drops_newline && s->pos < s->in.len) {
        n = split_match(s, s->pos, "\r\n");
        n = n == 0 ? split_match(s, s->pos, "\n") : n;
    } else if (n > 0) {
        s->is_cdata = true;
    }
    if (n < 0 || (s->pos == s->in.len && !s->is_end))
        return false;
    s->pos += (size_t)n;
    s->is_value_started = true;
    if (s->is_raw_string)
        buf_add_char(&s->args, '"');
    return true;
}

/* Does the value end at in[at]? The bytes of what ends it, -1 = not to be told yet; -2 = it ends here without its own end. A value
 * may hold text that looks like its end: the real one is followed by another argument or the call's end. */
static long value_ends(const struct splitter *s, size_t at)
{
    const struct split_elements *x = s->format->elements;
    long n = split_match(s, at, s->is_cdata ? "]]>" : x->value_close), skipped = 0;
    if (n > 0 && s->is_cdata) {
        size_t p = split_skip_blanks(s, at + (size_t)n);
        long m = p == s->in.len && !s->is_end ? -1 : split_match(s, p, x->value_close);
        skipped = m > 0 ? (long)(p - at) + m : m;
        n = skipped;
    }
    if (n > 0) {
        int follows = element_follows(s, split_skip_blanks(s, at + (size_t)n), true);
        return follows > 0 ? n : follows;
    }
    if (n < 0)
        return -1;
    long close = s->is_cdata || !s->format->close ? 0 : split_match(s, at, x->call_close);
    if (close <= 0 || strcmp(x->call_close, s->format->close) == 0)
        return close > 0 ? -2 : close;
    size_t p = split_skip_blanks(s, at + (size_t)close);
    long section = p == s->in.len && !s->is_end ? -1 : split_match(s, p, s->format->close);
    return section > 0 ? -2 : section;
}

/* in[pos, to) belongs to the value. */
static void value_take(struct splitter *s, size_t to)
{
    for (; s->pos < to; s->pos++) {
        char c = s->in.data[s->pos];
        if (c == SPLIT_MARK) {
            while (s->pos + 1 < to && s->in.data[s->pos] != SPLIT_MARK_END)
                s->pos++;
        } else if (c == SPLIT_MARK_END) {
            ;
        } else if (s->is_raw_string) {
            relaxed_escape(&s->args, &c, 1);
        } else {
            buf_add_char(&s->value, c);
        }
    }
    s->scan = s->pos;
}

/* Without the line end that is framing, or may yet be. */
static size_t value_trim(const struct splitter *s, size_t to)
{
    if (s->is_cdata || !s->format->elements->drops_newline)
        return to;
    if (to > s->pos && s->in.data[to - 1] == '\n')
        to--;
    if (to > s->pos && s->in.data[to - 1] == '\r')
        to--;
    return to;
}

bool split_value(struct splitter *s)
{
    if (!s->is_value_started && !value_start(s))
        return false;
    size_t i = s->pos;
    long n = 0;
    for (; i < s->in.len; i++) {
        char c = s->in.data[i];
        if (c == '<' || c == SPLIT_MARK || c == ']')
            n = value_ends(s, i);
        if (n != 0)
            break;
        i = split_skip_mark(s, i);
    }
    bool is_over = n > 0 || n == -2;
    size_t end = value_trim(s, i);
    value_take(s, end);
    if (!is_over && (!s->is_end || s->was_cut))
        return false;
    s->pos = s->scan = is_over ? i + (size_t)(n > 0 ? n : 0) : s->in.len;
    if (s->is_raw_string)
        buf_add_char(&s->args, '"');
    else
        tools_write_value(s->type, s->value.data, s->value.len, &s->args);
    s->state = SPLIT_ELEMENT;
    return true;
}
