/* json_write.c - the writer. Output is compact: no blanks after commas and colons. */
#include "base/utf8.h"
#include "json/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_writer_init(struct json_writer *w, struct buf *out)
{
    *w = (struct json_writer){ .out = out };
}

/* The comma before an item, where one is due. */
static void json_item(struct json_writer *w)
{
    if (w->is_value_due) {
        w->is_value_due = false;
        return;
    }
    if (w->has_item[w->depth])
        buf_add_char(w->out, ',');
    w->has_item[w->depth] = true;
}

static void json_begin(struct json_writer *w, char c)
{
    json_item(w);
    buf_add_char(w->out, c);
    BUG_ON(w->depth + 1 >= (int)ARRAY_LEN(w->has_item));
    w->has_item[++w->depth] = false;
}

static void json_end(struct json_writer *w, char c)
{
    BUG_ON(w->depth == 0 || w->is_value_due);
    w->depth--;
    buf_add_char(w->out, c);
}

void json_begin_object(struct json_writer *w)
{
    json_begin(w, '{');
}

void json_end_object(struct json_writer *w)
{
    json_end(w, '}');
}

void json_begin_array(struct json_writer *w)
{
    json_begin(w, '[');
}

void json_end_array(struct json_writer *w)
{
    json_end(w, ']');
}

static void json_put_escape(struct buf *out, unsigned char c)
{
    static const char names[] = "btn\0fr"; /* from 0x08 on; 0x0B has none */
    if (c == '"' || c == '\\') {
        buf_add_char(out, '\\');
        buf_add_char(out, (char)c);
    } else if (c >= 0x08 && c <= 0x0D && names[c - 0x08]) {
        buf_add_char(out, '\\');
        buf_add_char(out, names[c - 0x08]);
    } else {
        buf_printf(out, "\\u%04x", c);
    }
}

static void json_put_str(struct buf *out, const char *s, size_t n)
{
    size_t run = 0; /* bytes before i that go out as they stand */
    buf_add_char(out, '"');
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (len && c >= 0x20 && c != '"' && c != '\\') {
            i += len;
            run += len;
            continue;
        }
        buf_add(out, s + i - run, run);
        run = 0;
        if (len) {
            json_put_escape(out, c);
            i += len;
        } else {
            buf_add_code_point(out, UTF8_REPLACEMENT);
            i += utf8_bad_length(s + i, n - i);
        }
    }
    buf_add(out, s + n - run, run);
    buf_add_char(out, '"');
}

void json_key(struct json_writer *w, const char *key)
{
    json_item(w);
    json_put_str(w->out, key, strlen(key));
    buf_add_char(w->out, ':');
    w->is_value_due = true;
}

void json_null(struct json_writer *w)
{
    json_raw(w, "null", 4);
}

void json_bool(struct json_writer *w, bool v)
{
    json_item(w);
    buf_add_str(w->out, v ? "true" : "false");
}

void json_int(struct json_writer *w, int64_t v)
{
    json_item(w);
    buf_printf(w->out, "%lld", (long long)v);
}

void json_uint(struct json_writer *w, uint64_t v)
{
    json_item(w);
    buf_printf(w->out, "%llu", (unsigned long long)v);
}

void json_double(struct json_writer *w, double v)
{
    char text[32];
    if (!isfinite(v)) {
        json_null(w);
        return;
    }
    json_raw(w, text, json_format_double(v, text));
}

void json_str(struct json_writer *w, const char *s)
{
    json_strn(w, s, strlen(s));
}

void json_strn(struct json_writer *w, const char *s, size_t n)
{
    json_item(w);
    json_put_str(w->out, s, n);
}

void json_raw(struct json_writer *w, const char *s, size_t n)
{
    json_item(w);
    buf_add(w->out, s, n);
}

/* Not through the writer's own nesting: a value of full depth may stand inside a reply. */
static void json_put_value(struct buf *out, const struct json *v)
{
    switch (v->type) {
    case JSON_TYPE_NULL:
        buf_add_str(out, "null");
        break;
    case JSON_TYPE_BOOL:
        buf_add_str(out, v->boolean ? "true" : "false");
        break;
    case JSON_TYPE_NUMBER:
        buf_add(out, v->text, v->len);
        break;
    case JSON_TYPE_STRING:
        json_put_str(out, v->text, v->len);
        break;
    case JSON_TYPE_ARRAY:
        buf_add_char(out, '[');
        for (size_t i = 0; i < v->n; i++) {
            if (i)
                buf_add_char(out, ',');
            json_put_value(out, &v->items[i]);
        }
        buf_add_char(out, ']');
        break;
    case JSON_TYPE_OBJECT:
        buf_add_char(out, '{');
        for (size_t i = 0; i < v->n; i++) {
            if (i)
                buf_add_char(out, ',');
            json_put_str(out, v->members[i].key, v->members[i].key_len);
            buf_add_char(out, ':');
            json_put_value(out, &v->members[i].value);
        }
        buf_add_char(out, '}');
        break;
    }
}

void json_value(struct json_writer *w, const struct json *v)
{
    json_item(w);
    json_put_value(w->out, v);
}

/* --- doubles --- */

/* v > 0 as "d.ddde[+-]xx" with n significant digits, in out; does it read back? */
static bool json_try_digits(double v, int n, char *out)
{
    snprintf(out, 32, "%.*e", n - 1, v);
    return strtod(out, NULL) == v;
}

/* The shortest digits that read back. A power of two has a nearer neighbour below than above: the n-digit decimal nearest to it
 * may fall outside on the near side while the next one up still reads back. */
static void json_shortest(double v, char *out)
{
    /* A normal double that has a spelling of 15 digits or less gets it at 15, with zeros after; a denormal has fewer digits. */
    int from = v < DBL_MIN ? 1 : 15, e;
    bool is_power = frexp(v, &e) == 0.5;
    for (int n = from; n < 17; n++) {
        if (json_try_digits(v, n, out))
            return;
        if (!is_power || n < 2)
            continue;
        char *last = out + n; /* of "d.ddd" */
        if (*last < '9') {
            ++*last;
            if (strtod(out, NULL) == v)
                return;
        }
    }
    json_try_digits(v, 17, out);
}

/* Digits d[0..n) with the point after `point` of them, in repr's layout. */
static size_t json_layout(char *out, const char *d, int n, int point)
{
    char *p = out;
    if (point > 16 || point <= -4) {
        *p++ = d[0];
        if (n > 1) {
            *p++ = '.';
            memcpy(p, d + 1, (size_t)n - 1);
            p += n - 1;
        }
        return (size_t)(p - out) +
               (size_t)snprintf(p, 8, "e%c%02d", point < 1 ? '-' : '+', abs(point - 1));
    }
    if (point <= 0)
        *p++ = '0';
    for (int i = 0; i < point; i++)
        *p++ = i < n ? d[i] : '0';
    *p++ = '.';
    for (int i = point; i < 0; i++)
        *p++ = '0';
    for (int i = point > 0 ? point : 0; i < n; i++)
        *p++ = d[i];
    if (p[-1] == '.')
        *p++ = '0';
    *p = '\0';
    return (size_t)(p - out);
}

size_t json_format_double(double v, char *out)
{
    char text[32], digits[32];
    char *p = out;
    if (isnan(v))
        return (size_t)snprintf(out, 32, "nan");
    if (signbit(v)) {
        *p++ = '-';
        v = -v;
    }
    if (isinf(v) || v == 0)
        return (size_t)(p - out) + (size_t)snprintf(p, 8, "%s", v == 0 ? "0.0" : "inf");
    json_shortest(v, text);
    int n = 0;
    const char *e = strchr(text, 'e');
    for (const char *s = text; s < e; s++)
        if (*s != '.')
            digits[n++] = *s;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    return (size_t)(p - out) + json_layout(p, digits, n, (int)strtol(e + 1, NULL, 10) + 1);
}

/* --- members --- */

void json_field_null(struct json_writer *w, const char *key)
{
    json_key(w, key);
    json_null(w);
}

void json_field_bool(struct json_writer *w, const char *key, bool v)
{
    json_key(w, key);
    json_bool(w, v);
}

void json_field_int(struct json_writer *w, const char *key, int64_t v)
{
    json_key(w, key);
    json_int(w, v);
}

void json_field_uint(struct json_writer *w, const char *key, uint64_t v)
{
    json_key(w, key);
    json_uint(w, v);
}

void json_field_double(struct json_writer *w, const char *key, double v)
{
    json_key(w, key);
    json_double(w, v);
}

void json_field_str(struct json_writer *w, const char *key, const char *s)
{
    json_key(w, key);
    json_str(w, s);
}

void json_field_strn(struct json_writer *w, const char *key, const char *s, size_t n)
{
    json_key(w, key);
    json_strn(w, s, n);
}

void json_field_raw(struct json_writer *w, const char *key, const char *s, size_t n)
{
    json_key(w, key);
    json_raw(w, s, n);
}

void json_field_value(struct json_writer *w, const char *key, const struct json *v)
{
    json_key(w, key);
    json_value(w, v);
}

void json_field_object(struct json_writer *w, const char *key)
{
    json_key(w, key);
    json_begin_object(w);
}

void json_field_array(struct json_writer *w, const char *key)
{
    json_key(w, key);
    json_begin_array(w);
}
