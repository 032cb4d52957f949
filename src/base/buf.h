/* buf.h - a growable byte buffer with a cap from birth.
 *
 * Adding past the cap (or without memory) adds nothing and sets `failed`, which is sticky: a writer may add many pieces and
 * look once at the end. data is always terminated by a NUL that len does not count (data is "" while empty). Not thread-safe. */
#ifndef PLUMB_BASE_BUF_H
#define PLUMB_BASE_BUF_H

#include "base/mem.h"

struct buf {
    char *data;
    size_t len;
    size_t max; /* cap in bytes */
    bool failed;
    enum mem_cat cat;
    size_t cap; /* private to buf.c */
};

void buf_init(struct buf *b, enum mem_cat cat, size_t max);
void buf_release(struct buf *b);
void buf_reset(struct buf *b); /* empty, failed cleared, memory kept */

void buf_add(struct buf *b, const void *data, size_t n);
void buf_add_str(struct buf *b, const char *s);
void buf_add_char(struct buf *b, char c);
void buf_add_code_point(struct buf *b, uint32_t cp); /* as UTF-8 */
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Drop n bytes at the front. Need: n <= len. */
void buf_drop(struct buf *b, size_t n);

/* Drop what follows the first len bytes. Need: len <= b->len. `failed` stays. */
void buf_cut(struct buf *b, size_t len);

/* Ownership of the bytes to the caller (mem_free with b->cat); b is empty afterwards. */
char *buf_take(struct buf *b, size_t *len);

/* ERR_FULL naming `what` and the cap if anything was lost, else ERR_OK. */
enum err_code buf_check(const struct buf *b, const char *what, struct err *err) MUST_CHECK;

#endif
