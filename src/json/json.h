/* json.h - JSON values as read, and a writer (RFC 8259).
 *
 * Reading is strict (UTF-8, no trailing bytes, no comments) with three rules that templates and tools need: a number keeps its
 * spelling (integers of any size survive), a lone surrogate escape becomes U+FFFD, and nesting is at most JSON_DEPTH_MAX.
 * A duplicate key keeps its first place and takes the last value. Values live in the document's arena.
 * Syntax by yajl; the value tree and the writer are ours. */
#ifndef PLUMB_JSON_JSON_H
#define PLUMB_JSON_JSON_H

#include "base/buf.h"

#define JSON_DEPTH_MAX 64

enum json_type {
    JSON_TYPE_NULL,
    JSON_TYPE_BOOL,
    JSON_TYPE_NUMBER,
    JSON_TYPE_STRING,
    JSON_TYPE_ARRAY,
    JSON_TYPE_OBJECT,
};

struct json {
    enum json_type type;
    bool boolean; /* BOOL */
    const char
        *text;  /* STRING: bytes (may hold NUL, terminated after len); NUMBER: spelling as read */
    size_t len; /* bytes of text */
    struct json *items;          /* ARRAY: [n] */
    struct json_member *members; /* OBJECT: [n], in the order read */
    size_t n;
};

struct json_member {
    const char *key; /* terminated; may hold NUL */
    size_t key_len;
    struct json value;
};

struct json_doc {
    struct json root;
    struct arena arena;
    const char *twice; /* a key that its object holds more than once, or NULL */
};

/* Parse text[0..len). Release with json_doc_release (fine on a zeroed doc; after failure doc is zeroed).
 * Errors: ERR_INVALID with line, column and what is wrong; ERR_FULL - over max_bytes of values. */
enum err_code json_parse(struct json_doc *doc, const char *text, size_t len, size_t max_bytes,
                         struct err *err) MUST_CHECK;
void json_doc_release(struct json_doc *doc);

/* The member's value; NULL if absent or obj is not an object. `key` is a C string. */
const struct json *json_get(const struct json *obj, const char *key);
/* As json_get, and a null value counts as absent. */
const struct json *json_get_set(const struct json *obj, const char *key);

bool json_is(const struct json *v, enum json_type type); /* v may be NULL */
bool json_str_eq(const struct json *v, const char *s);   /* v may be NULL */

/* Exact conversions; ERR_INVALID (text names `what`, the value and the range) if v is not a number, not integral
 * (1.0 and 1e3 are), or outside [min, max]. */
enum err_code json_to_int(const struct json *v, const char *what, int64_t min, int64_t max,
                          int64_t *out, struct err *err) MUST_CHECK;
/* Nearest double; ERR_INVALID if not a finite number in [min, max]. */
enum err_code json_to_double(const struct json *v, const char *what, double min, double max,
                             double *out, struct err *err) MUST_CHECK;

/* --- writer: appends to a buf, commas are its business --- */
struct json_writer {
    struct buf *out;
    int depth;
    bool has_item[JSON_DEPTH_MAX + 2]; /* per depth: a comma is due before the next item */
    bool is_value_due;                 /* after a key */
};

void json_writer_init(struct json_writer *w, struct buf *out);
void json_begin_object(struct json_writer *w);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w);
void json_end_array(struct json_writer *w);
void json_key(struct json_writer *w, const char *key);
void json_null(struct json_writer *w);
void json_bool(struct json_writer *w, bool v);
void json_int(struct json_writer *w, int64_t v);
void json_uint(struct json_writer *w, uint64_t v);
void json_double(struct json_writer *w,
                 double v); /* shortest that reads back, as Python's repr; non-finite -> null */
void json_str(struct json_writer *w, const char *s);
void json_strn(struct json_writer *w, const char *s,
               size_t n); /* ill-formed UTF-8 -> U+FFFD; control characters escaped */
void json_raw(struct json_writer *w, const char *s,
              size_t n);                                      /* a whole JSON value, as it stands */
void json_value(struct json_writer *w, const struct json *v); /* numbers as spelled */

/* A member: its key and its value at once, or a key and the beginning of its value. */
void json_field_null(struct json_writer *w, const char *key);
void json_field_bool(struct json_writer *w, const char *key, bool v);
void json_field_int(struct json_writer *w, const char *key, int64_t v);
void json_field_uint(struct json_writer *w, const char *key, uint64_t v);
void json_field_double(struct json_writer *w, const char *key, double v);
void json_field_str(struct json_writer *w, const char *key, const char *s);
void json_field_strn(struct json_writer *w, const char *key, const char *s, size_t n);
void json_field_raw(struct json_writer *w, const char *key, const char *s, size_t n);
void json_field_value(struct json_writer *w, const char *key, const struct json *v);
void json_field_object(struct json_writer *w, const char *key);
void json_field_array(struct json_writer *w, const char *key);

/* Shortest decimal that reads back to v, in Python's repr form ("0.1", "1e-07", "1.0", "inf", "nan"). out[32]. */
size_t json_format_double(double v, char *out);

#endif
