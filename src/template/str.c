/* str.c - immutable strings with the origin of each byte: cutting, comparing, searching. */
#include "template/template_int.h"

#include <string.h>

/* First span of s that ends after byte p. */
size_t str_span_at(const struct str *s, size_t p)
{
    return span_at(s->spans, s->n_spans, p);
}

struct str *tmpl_str_new(struct env *e, const char *s, size_t n, bool is_caller)
{
    struct str *str = tmpl_alloc(e, sizeof(*str));
    if (str)
        *str = (struct str){
            .s = s ? s : "", .n = n, .n_chars = STR_UNCOUNTED, .is_caller = is_caller
        };
    return str;
}

enum err_code tmpl_str_value(struct env *e, struct str *s, struct value *out)
{
    TRY(tmpl_check(e));
    *out = (struct value){ .type = V_STR, .s = s };
    return ERR_OK;
}

enum err_code tmpl_str(struct env *e, const char *s, size_t n, bool is_caller, struct value *out)
{
    char *copy = arena_strndup(&e->arena, s, n);
    if (!copy)
        e->is_full = true;
    return tmpl_str_value(e, tmpl_str_new(e, copy, n, is_caller), out);
}

enum err_code tmpl_cstr(struct env *e, const char *s, struct value *out)
{
    return tmpl_str_value(e, tmpl_str_new(e, s, strlen(s), false), out);
}

enum err_code tmpl_part(struct env *e, const struct str *s, size_t p0, size_t p1, struct value *out)
{
    struct str *part = tmpl_str_new(e, s->s + p0, p1 - p0, s->is_caller);
    TRY(tmpl_check(e));
    part->is_markup = s->is_markup;
    size_t first = str_span_at(s, p0), n = 0;
    while (first + n < s->n_spans && s->spans[first + n].p0 < p1)
        n++;
    if (n) {
        struct span *spans = tmpl_alloc_array(e, n, sizeof(*spans));
        TRY(tmpl_check(e));
        for (size_t i = 0; i < n; i++) {
            struct span q = s->spans[first + i];
            spans[i].p0 = (q.p0 < p0 ? p0 : q.p0) - p0;
            spans[i].p1 = (q.p1 > p1 ? p1 : q.p1) - p0;
        }
        if (n == 1 && spans[0].p0 == 0 && spans[0].p1 == part->n) {
            part->is_caller = true;
        } else {
            part->spans = spans;
            part->n_spans = n;
        }
    }
    return tmpl_str_value(e, part, out);
}

bool str_is(const struct str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->s, text, s->n) == 0;
}

bool str_equal(const struct str *a, const struct str *b)
{
    return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
}

int str_compare(const struct str *a, const struct str *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->s, b->s, n) : 0; /* UTF-8 sorts as its code points do */
    if (c)
        return c < 0 ? -1 : 1;
    return a->n == b->n ? 0 : a->n < b->n ? -1 : 1;
}

bool str_is_touched(const struct str *s)
{
    return s->is_caller || s->n_spans > 0;
}

bool str_is_caller_at(const struct str *s, size_t at)
{
    if (s->n_spans == 0)
        return s->is_caller;
    size_t i = str_span_at(s, at);
    return i < s->n_spans && s->spans[i].p0 <= at;
}

size_t str_chars(const struct str *s)
{
    if (s->n_chars == STR_UNCOUNTED)
        ((struct str *)s)->n_chars =
            utf8_count(s->s, s->n); /* a cache; strings of the tree are counted at load */
    return s->n_chars;
}

size_t str_step(const struct str *s, size_t at)
{
    uint32_t cp;
    size_t len = utf8_decode(s->s + at, s->n - at, &cp);
    return len ? len : utf8_bad_length(s->s + at, s->n - at);
}

size_t str_step_back(const struct str *s, size_t at)
{
    size_t back = 1;
    while (back < 4 && back < at && ((unsigned char)s->s[at - back] & 0xC0) == 0x80)
        back++;
    return back;
}

size_t str_offset(const struct str *s, size_t char_i)
{
    if (str_chars(s) == s->n)
        return char_i < s->n ? char_i : s->n;
    size_t at = 0;
    for (; char_i > 0 && at < s->n; char_i--)
        at += str_step(s, at);
    return at;
}

size_t str_find(const struct str *a, const struct str *b, size_t from, size_t to)
{
    if (from > to || b->n > to - from)
        return SIZE_MAX;
    if (b->n == 0)
        return from;
    const char *p = memmem(a->s + from, to - from, b->s, b->n);
    return p ? (size_t)(p - a->s) : SIZE_MAX;
}

size_t str_rfind(const struct str *a, const struct str *b, size_t from, size_t to)
{
    if (from > to || b->n > to - from)
        return SIZE_MAX;
    for (size_t at = to - b->n + 1; at-- > from;)
        if (memcmp(a->s + at, b->s, b->n) == 0)
            return at;
    return SIZE_MAX;
}
