#include "base/buf.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

static char buf_empty[1]; /* shared by all that are empty: never written, by any thread */

void buf_init(struct buf *b, enum mem_cat cat, size_t max)
{
    *b = (struct buf){ .data = buf_empty, .cat = cat, .max = max };
}

void buf_release(struct buf *b)
{
    if (b->cap)
        mem_free(b->cat, b->data);
    buf_init(b, b->cat, b->max);
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->cap)
        b->data[0] = '\0';
}

static bool buf_reserve(struct buf *b, size_t n)
{
    if (b->failed || n > b->max - b->len) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    char *p = mem_try(b->cat, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    memcpy(p, b->data, b->len);
    if (b->cap)
        mem_free(b->cat, b->data);
    b->data = p;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, const void *data, size_t n)
{
    if (n == 0 || !buf_reserve(b, n))
        return;
    memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void buf_add_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_add_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_add_code_point(struct buf *b, uint32_t cp)
{
    char out[4];
    buf_add(b, out, utf8_encode(cp, out));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    BUG_ON(n < 0);
    if (!buf_reserve(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void buf_drop(struct buf *b, size_t n)
{
    BUG_ON(n > b->len);
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

void buf_cut(struct buf *b, size_t len)
{
    BUG_ON(len > b->len);
    if (len == b->len) /* the empty one is shared and not written */
        return;
    b->len = len;
    b->data[len] = '\0';
}

char *buf_take(struct buf *b, size_t *len)
{
    char *p = b->cap ? b->data : mem_alloc(b->cat, 1);
    if (len)
        *len = b->len;
    buf_init(b, b->cat, b->max);
    return p;
}

enum err_code buf_check(const struct buf *b, const char *what, struct err *err)
{
    if (!b->failed)
        return ERR_OK;
    return err_set(err, ERR_FULL, "%s: over its limit of %zu bytes", what, b->max);
}
