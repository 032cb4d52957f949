/* json_schema_int.h - what the files that read JSON schemas share.
 *
 * A *meeting* is a list of schemas that a value must satisfy all at once: what $ref, allOf and a branch of anyOf put together. Each
 * distinct one becomes a rule, so that recursion ends. */
#ifndef PLUMB_GRAMMAR_JSON_SCHEMA_INT_H
#define PLUMB_GRAMMAR_JSON_SCHEMA_INT_H

#include "grammar/grammar_int.h"
#include "json/json.h"

#define NUMBER_DIGITS 19 /* of the whole part, at most */
#define NUMBER_PART   20 /* behind the point */

/* --- numbers (json_number.c) --- */

struct json_bound {
    bool is_negative, excludes;
    char whole[NUMBER_DIGITS + 2], part[NUMBER_PART + 2]; /* no zeros at the outer ends */
};

/* v is a number as it is written. False: it has more digits than are dealt with. */
bool json_number_bound(const struct json *v, struct json_bound *out) MUST_CHECK;
long long json_number_round(const struct json_bound *x, bool is_least);
/* Decimals between two bounds, NULL = none; without exponents. */
const struct expr *json_number_range(struct build *b, const struct json_bound *lo,
                                     const struct json_bound *hi);
const struct expr *json_number_integers(struct build *b, const long long *lo, const long long *hi);
/* Whole numbers without a sign; both bounds by their digits, hi "" = none. */
const struct expr *json_number_whole(struct build *b, const char *lo, const char *hi);

/* What a format's strings are, without quotes, in the plain spelling; NULL: it is not known. */
const struct expr *json_format_read(struct build *b, const char *name);

/* --- meetings (json_schema.c) --- */

#define MEETING_MAX 48

enum meeting_flags { MEETING_NO_ANY = 1, MEETING_NO_ONE = 2, MEETING_NO_ALL = 4 };

struct meeting_schema {
    const struct json *v; /* an object */
    const char *path;     /* "#/properties/a" */
    unsigned done;        /* enum meeting_flags: keywords that are dealt with */
};

struct meeting {
    struct meeting_schema s[MEETING_MAX];
    int n;
    int n_roots;  /* schemas that joined by themselves: 1 = the others are parts of the first */
    bool is_none; /* one of them was false */
    bool is_call; /* the arguments of a call, where they are not written as other objects are */
};

struct schema_reader_memo {
    uint64_t hash;
    const struct json *v[MEETING_MAX];
    unsigned done[MEETING_MAX];
    int n, n_roots; /* 0, and no `first`: they do not matter */
    bool is_call;
    const struct json *first;
    int32_t rule;
    struct schema_reader_memo *next;
};

#define JSON_SCHEMA_SLOTS 1024

struct json_schema {
    struct build *b;
    const struct json *root;
    struct schema_index *index;
    struct schema_made *made;
    struct schema_reader_memo *slots[JSON_SCHEMA_SLOTS];
    int depth;
};

/* v joins the meeting, with what it refers to. */
void json_schema_join(struct json_schema *x, struct meeting *m, const struct json *v,
                      const char *path);
/* What satisfies them all, as a rule. */
const struct expr *json_schema_meet(struct json_schema *x, const struct meeting *m);
const char *json_schema_path(struct json_schema *x, const char *path, const char *more, size_t n);
const char *json_schema_at(const struct meeting *m); /* a path for messages */
const struct expr *json_schema_fail(struct json_schema *x, enum err_code code, const char *path,
                                    const char *keyword, const char *what);
/* An integer that is not negative, of every schema: the largest or least of them. False: none has it. */
bool json_schema_count(struct json_schema *x, const struct meeting *m, const char *keyword,
                       bool is_largest, int64_t *out);
/* What a member of dependentRequired, dependentSchemas or dependencies says, by other keywords; the same one for the same member. */
struct schema_made {
    const struct json_member *key;
    const struct json *v;
    struct schema_made *next;
};
const struct json *json_schema_depend(struct json_schema *x, const struct json_member *key);
/* The schema that v's $ref names; NULL: fails (json_schema_ref.c). */
const struct json *json_schema_resolve(struct json_schema *x, const struct json *v,
                                       const char *path);
void json_schema_index(
    struct json_schema *x); /* of root's $id and $anchor: before anything is resolved */

/* Do values satisfy them, but for patterns, formats and the list that they are from? (json_schema_check.c) */
struct json_schema_check {
    struct json s[MEETING_MAX];
    int n;
};
void json_schema_check_init(struct json_schema *x, const struct meeting *m, const struct json *list,
                            struct json_schema_check *out);
bool json_schema_allows(struct json_schema *x, const struct json_schema_check *c,
                        const struct json *value);

/* --- types (json_schema_types.c, json_schema_object.c) --- */

const struct expr *json_schema_string(struct json_schema *x, const struct meeting *m);
/* Patterns and formats alone, without quotes; NULL: there are none. */
const struct expr *json_schema_patterns(struct json_schema *x, const struct meeting *m);
const struct expr *json_schema_number(struct json_schema *x, const struct meeting *m,
                                      bool is_integer);
const struct expr *json_schema_array(struct json_schema *x, const struct meeting *m);
const struct expr *json_schema_object(struct json_schema *x, const struct meeting *m);

#endif
