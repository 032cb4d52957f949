/* sb.c - making strings out of pieces, with the origin of each byte. */
#include "template/template_int.h"

#include <string.h>

/* From this length on a concatenation leaves room behind itself, so that a loop which appends does not copy each time. */
#define ROOM_FROM 256

struct
    room { /* bytes and spans that several strings share prefixes of; only the longest may grow in place */
    char *data;
    size_t len, cap;
    struct span *spans;
    size_t n_spans, cap_spans;
};

/* --- builder --- */

void sb_init(struct sb *b, struct env *e)
{
    *b = (struct sb){ .e = e };
}

static bool sb_reserve(struct sb *b, size_t n)
{
    if (b->e->is_full)
        return false;
    if (n <= b->cap - b->len)
        return true;
    if (n > TMPL_BYTES_MAX) {
        b->e->is_full = true;
        return false;
    }
    size_t cap = b->cap ? b->cap * 2 : 64;
    if (cap < b->len + n)
        cap = b->len + n;
    char *data = tmpl_alloc(b->e, cap);
    if (!data)
        return false;
    if (b->len)
        memcpy(data, b->data, b->len);
    b->data = data;
    b->cap = cap;
    return true;
}

/* [p0, p1) of the text is the caller's. Need: p0 is not before the last span's end. */
static void sb_mark(struct sb *b, size_t p0, size_t p1)
{
    if (b->n_spans && b->spans[b->n_spans - 1].p1 == p0) {
        b->spans[b->n_spans - 1].p1 = p1;
        return;
    }
    if (b->n_spans == b->cap_spans) {
        size_t cap = b->cap_spans ? b->cap_spans * 2 : 4;
        struct span *spans = tmpl_alloc_array(b->e, cap, sizeof(*spans));
        if (!spans)
            return;
        if (b->n_spans)
            memcpy(spans, b->spans, b->n_spans * sizeof(*spans));
        b->spans = spans;
        b->cap_spans = cap;
    }
    b->spans[b->n_spans++] = (struct span){ p0, p1 };
}

void sb_add(struct sb *b, const char *s, size_t n, bool is_caller)
{
    if (n == 0 || !sb_reserve(b, n))
        return;
    memcpy(b->data + b->len, s, n);
    if (is_caller)
        sb_mark(b, b->len, b->len + n);
    b->len += n;
}

void sb_add_cstr(struct sb *b, const char *s, bool is_caller)
{
    sb_add(b, s, strlen(s), is_caller);
}

void sb_fill(struct sb *b, char c, size_t n, bool is_caller)
{
    if (n == 0 || !sb_reserve(b, n))
        return;
    memset(b->data + b->len, c, n);
    if (is_caller)
        sb_mark(b, b->len, b->len + n);
    b->len += n;
}

void sb_add_part(struct sb *b, const struct str *s, size_t p0, size_t p1)
{
    size_t at = b->len;
    sb_add(b, s->s + p0, p1 - p0, s->is_caller);
    if (s->is_caller || b->e->is_full)
        return;
    for (size_t i = str_span_at(s, p0); i < s->n_spans && s->spans[i].p0 < p1; i++) {
        size_t from = s->spans[i].p0 < p0 ? p0 : s->spans[i].p0;
        size_t to = s->spans[i].p1 > p1 ? p1 : s->spans[i].p1;
        if (from < to)
            sb_mark(b, at + from - p0, at + to - p0);
    }
}

void sb_add_str(struct sb *b, const struct str *s)
{
    sb_add_part(b, s, 0, s->n);
}

enum err_code sb_finish(struct sb *b, struct value *out)
{
    bool is_whole = b->n_spans == 1 && b->spans[0].p0 == 0 && b->spans[0].p1 == b->len;
    struct str *s = tmpl_str_new(b->e, b->data, b->len, is_whole);
    TRY(tmpl_check(b->e));
    if (!is_whole) {
        s->spans = b->spans;
        s->n_spans = b->n_spans;
    }
    TRY(tmpl_step(b->e, b->len / 64 + 1));
    return tmpl_str_value(b->e, s, out);
}

/* --- appending --- */

/* A builder that holds a already, in a's own room where a is the longest there. */
static enum err_code room_open(struct env *e, const struct str *a, struct sb *b, struct room **room)
{
    sb_init(b, e);
    *room = a->room;
    if (*room && (*room)->len == a->n && !a->is_caller) {
        b->data = (*room)->data;
        b->len = (*room)->len;
        b->cap = (*room)->cap;
        b->spans = (*room)->spans;
        b->n_spans = (*room)->n_spans;
        b->cap_spans = (*room)->cap_spans;
        return ERR_OK;
    }
    *room = tmpl_alloc(e, sizeof(**room));
    TRY(tmpl_check(e));
    sb_add_str(b, a);
    return tmpl_step(e, a->n / 64 + 1);
}

enum err_code tmpl_concat(struct env *e, const struct str *a, const struct str *b,
                          struct value *out)
{
    struct sb text;
    struct room *room = NULL;
    if (a->n + b->n < ROOM_FROM) {
        sb_init(&text, e);
        sb_add_str(&text, a);
        sb_add_str(&text, b);
        return sb_finish(&text, out);
    }
    TRY(room_open(e, a, &text, &room));
    sb_add_str(&text, b);
    TRY(tmpl_check(e));
    TRY(tmpl_step(e, b->n / 64 + 1));
    *room = (struct room){ .data = text.data,
                           .len = text.len,
                           .cap = text.cap,
                           .spans = text.spans,
                           .n_spans = text.n_spans,
                           .cap_spans = text.cap_spans };
    struct str *s = tmpl_str_new(e, text.data, text.len, false);
    TRY(tmpl_check(e));
    s->spans = text.spans;
    s->n_spans = text.n_spans;
    s->room = room;
    return tmpl_str_value(e, s, out);
}
