/* err.h - error codes and the text that goes with them; the one error convention of the project.
 *
 * A function that can fail for reasons outside the code returns enum err_code (0 = ok) and takes a struct err * as its
 * last parameter. The text names the object, the value and the remedy. err may be NULL; it is untouched on success.
 * A mistake of ours is BUG_ON: it aborts with file and line, in release builds too. Input never aborts. */
#ifndef PLUMB_BASE_ERR_H
#define PLUMB_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum err_code {
    ERR_OK = 0,
    ERR_INVALID,     /* input is malformed or out of range */
    ERR_UNSUPPORTED, /* well-formed, but a construct that this build does not know */
    ERR_NOT_FOUND,   /* named object does not exist */
    ERR_NOMEM,       /* allocation sized by input, model or concurrency failed */
    ERR_FULL,        /* a stated limit is reached; caller may retry later or with less */
    ERR_IO,          /* operating system refused; text carries strerror */
    ERR_NUMERIC,     /* non-finite values where finite ones are required */
    ERR_CANCELLED,   /* the caller asked to stop */
    ERR_TIMEOUT,
    ERR_STATE, /* right call at the wrong time (closed, draining, loading) */
    ERR_LOST,  /* a device is gone, with all that its memory held */
};

#define ERR_TEXT_MAX 512

struct err {
    enum err_code code;
    char text[ERR_TEXT_MAX]; /* UTF-8, always terminated; too long a text is cut at a code point */
};

#define MUST_CHECK        __attribute__((warn_unused_result))
#define PRINTF_LIKE(a, b) __attribute__((format(printf, a, b)))

/* Fill err (if not NULL) and return code, so that callers write: return err_set(err, ERR_INVALID, "..."); */
enum err_code err_set(struct err *err, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Put "context: " before the text that is there; returns err->code (or code if err is NULL). */
enum err_code err_prefix(struct err *err, enum err_code code, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Short constant name of a code: "invalid", "not found", ... */
const char *err_name(enum err_code code);

_Noreturn void bug_at(const char *file, int line, const char *what);
#define BUG_ON(cond)                           \
    do {                                       \
        if (__builtin_expect(!!(cond), 0))     \
            bug_at(__FILE__, __LINE__, #cond); \
    } while (0)

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
