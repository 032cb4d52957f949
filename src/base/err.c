#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cut a text that filled its buffer back to the last whole code point. */
static void err_trim(char *text, size_t cap)
{
    size_t n = strnlen(text, cap);
    if (n < cap - 1)
        return;
    size_t i = n;
    while (i > 0 && ((unsigned char)text[i - 1] & 0xC0) == 0x80)
        i--;
    if (i == 0)
        return;
    unsigned char lead = (unsigned char)text[i - 1];
    size_t want = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (n - (i - 1) < want)
        text[i - 1] = '\0';
}

enum err_code err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
        err_trim(err->text, sizeof(err->text));
        err->code = code;
    }
    return code;
}

enum err_code err_prefix(struct err *err, enum err_code code, const char *fmt, ...)
{
    if (err) {
        char old[ERR_TEXT_MAX];
        char head[ERR_TEXT_MAX - 2]; /* leaves room for ": " */
        va_list ap;
        memcpy(old, err->text, sizeof(old));
        va_start(ap, fmt);
        vsnprintf(head, sizeof(head), fmt, ap);
        va_end(ap);
        err_trim(head, sizeof(head));
        size_t n = strlen(head);
        memcpy(err->text, head, n);
        memcpy(err->text + n, ": ", 2);
        n += 2;
        size_t rest = strnlen(old, sizeof(err->text) - 1 - n);
        memcpy(err->text + n, old, rest);
        err->text[n + rest] = '\0';
        err_trim(err->text, sizeof(err->text));
        code = err->code;
    }
    return code;
}

const char *err_name(enum err_code code)
{
    static const char *const names[] = {
        [ERR_OK] = "ok",
        [ERR_INVALID] = "invalid",
        [ERR_UNSUPPORTED] = "unsupported",
        [ERR_NOT_FOUND] = "not found",
        [ERR_NOMEM] = "out of memory",
        [ERR_FULL] = "full",
        [ERR_IO] = "input/output",
        [ERR_NUMERIC] = "numeric",
        [ERR_CANCELLED] = "cancelled",
        [ERR_TIMEOUT] = "timeout",
        [ERR_STATE] = "state",
        [ERR_LOST] = "lost",
    };
    return (size_t)code < ARRAY_LEN(names) && names[code] ? names[code] : "unknown";
}

void bug_at(const char *file, int line, const char *what)
{
    fprintf(stderr, "plumb: bug at %s:%d: %s\n", file, line, what);
    abort();
}
