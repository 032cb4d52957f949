/* template_int.h - values, the render environment and what the interpreter's files need of each other.
 *
 * The life of a template: text -> tokens (tmpl_lex) -> tree (parse, parse_expr, parse_postfix), immutable from then on -> walked by tmpl_exec
 * (statements) and tmpl_eval (expressions) over an environment that one render owns.
 * Everything a render makes lives in its arena, capped by TMPL_BYTES_MAX; nothing is freed before its end.
 * The oracle for behaviour is Python's jinja2 in an ImmutableSandboxedEnvironment; error texts follow Python's. */
#ifndef PLUMB_TEMPLATE_TEMPLATE_INT_H
#define PLUMB_TEMPLATE_TEMPLATE_INT_H

#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "template/template.h"

/* Bounds of one render. 16 M steps take about half a second; a conversation of 1000 messages takes some 100,000. */
#define TMPL_STEPS_MAX  ((int64_t)16 << 20)
#define TMPL_BYTES_MAX  ((size_t)128 << 20)
#define TMPL_DEPTH_MAX  1000   /* nested evaluations and statements, macro calls included */
#define TMPL_RANGE_MAX  100000 /* items of a range, as jinja2's sandbox */
#define TMPL_DIGITS_MAX 4300   /* of an integer, as Python's limit for str() */

#define TRY(call)                    \
    do {                             \
        enum err_code try_ = (call); \
        if (try_)                    \
            return try_;             \
    } while (0)

/* --- values --- */

enum vtype {
    V_MISSING = 0, /* no value at all: an argument left out; never seen by a template */
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, /* an integer outside int64: its digits */
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_NAMESPACE,
    V_RANGE,
    V_VIEW, /* dict.keys(), values(), items() */
    V_ITER, /* what filters such as map give: consumed once */
    V_MACRO,
    V_FUNC,   /* a global function */
    V_METHOD, /* a bound method */
    V_LOOP,
    V_CYCLER,
    V_JOINER,
};

struct value {
    uint8_t type;
    bool is_caller; /* not STR: its text counts as the caller's */
    union {
        bool b;
        int64_t i;
        double f;
        struct str *s;
        struct seq *seq;
        struct dict *dict; /* DICT, NAMESPACE */
        struct range *range;
        struct view *view;
        struct iter *iter;
        struct macro *macro;
        const struct func *func;
        struct bound *bound;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
        struct undef *undef;
    };
};

#define STR_UNCOUNTED SIZE_MAX

/* Immutable bytes and where they come from. Invariant: is_caller implies n_spans == 0; spans ascend, do not touch, and may reach
 * past n (the room is shared with a longer string): readers cut them. */
struct str {
    const char *s; /* UTF-8; not terminated */
    size_t n;
    size_t n_chars;           /* code points; STR_UNCOUNTED until asked */
    const struct span *spans; /* the caller's bytes */
    size_t n_spans;
    bool is_caller;    /* all bytes are the caller's */
    bool is_markup;    /* made by escape or safe: adding to it escapes the other side */
    struct room *room; /* may be NULL: growing space behind s, for cheap appending */
};

struct seq {
    struct value *items;
    size_t n, cap;
    bool is_group; /* a tuple of groupby: .grouper and .list */
};

struct dict_entry {
    struct value key, value;
    uint64_t hash;
};

struct dict {
    struct dict_entry *entries; /* in insertion order */
    size_t n, cap;
    uint32_t *index; /* open addressing, entry + 1; NULL while small */
    size_t index_cap;
};

struct range {
    int64_t start, stop, step;
    size_t n;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct view {
    struct dict *dict;
    enum view_kind kind;
    bool is_caller;
};

struct undef {              /* what the error will say when it is used */
    const struct str *hint; /* the whole message, or NULL */
    const char *type;       /* "dict object"; NULL for a plain variable */
    struct value name;
};

struct bound {
    struct value self;
    const struct method *method;
};

struct cycler {
    struct seq items;
    size_t pos;
};

struct joiner {
    struct value sep;
    bool is_used;
};

struct kwarg {
    const struct str *name;
    struct value value;
};

struct args {
    struct value *pos;
    size_t n;
    struct kwarg *kw;
    size_t n_kw;
};

struct env;

/* A lazy sequence. next sets *out and *has, or *has = false at the end. */
struct iter {
    enum err_code (*next)(struct env *e, struct iter *it, struct value *out, bool *has);
    const char *kind; /* Python's type name, for messages */
    struct value source;
    size_t i;           /* position in source */
    struct iter *inner; /* of the filters that draw from another one */
    struct dict *seen;  /* unique */
    struct args args;   /* of the filter */
    const void *impl;   /* filter or test */
    bool is_flipped, has_attr;
};

struct func {
    const char *name;
    enum err_code (*call)(struct env *e, const struct args *a, struct value *out);
};

struct method {
    const char *name;
    enum err_code (*call)(struct env *e, const struct value *self, const struct args *a,
                          struct value *out);
};

struct filter {
    const char *name;
    enum err_code (*call)(struct env *e, const struct value *v, const struct args *a,
                          struct value *out);
};

/* --- environment --- */

struct slot {
    int32_t name;
    struct value value;
};

struct scope {
    struct scope *parent; /* NULL: the template's top level follows */
    struct slot *slots;
    int32_t n, cap;
    bool is_captured; /* a macro looks into it: not to be used again */
};

/* A string being made. Failures (no room left) are remembered in the environment and told by sb_finish. */
struct sb {
    struct env *e;
    char *data;
    size_t len, cap;
    struct span *spans;
    size_t n_spans, cap_spans;
};

struct env {
    const struct template *t;
    struct arena arena;
    struct err *err;
    bool is_full;
    int line; /* of what runs now */
    int depth;
    int64_t steps;      /* left */
    struct value *root; /* [n_names] variables of the top level */
    struct scope *scope;
    struct sb *out;
    size_t out_max; /* bytes of the rendered text */
    struct sb *main_out;
    int64_t now;
};

/* --- tmpl.c: errors, limits --- */

/* template_render with other bounds; for tests. */
enum err_code tmpl_render(const struct template *t, const struct template_input *in, int64_t steps,
                          size_t bytes, struct template_output *out, struct err *err) MUST_CHECK;

/* Record "NAME line N: text" and return ERR_INVALID. */
enum err_code tmpl_fail(struct env *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
enum err_code tmpl_full(struct env *e, const char *what);
/* n steps of work are done. */
enum err_code tmpl_step(struct env *e, size_t n) MUST_CHECK;
/* From the arena; NULL (and the next tmpl_check fails) when it is used up. */
void *tmpl_alloc(struct env *e, size_t n);
void *tmpl_alloc_array(struct env *e, size_t n, size_t size);
enum err_code tmpl_check(struct env *e) MUST_CHECK;

/* --- tmpl_value.c --- */

struct value tmpl_none(void);
struct value tmpl_bool(bool b);
struct value tmpl_int(int64_t i, bool is_caller);
struct value tmpl_float(double f, bool is_caller);
enum err_code tmpl_undef(struct env *e, const char *type, struct value name, struct value *out);
enum err_code tmpl_undef_hint(struct env *e, const char *hint, struct value *out);
enum err_code tmpl_use_undef(struct env *e, const struct value *v); /* its error */
const char *tmpl_type_name(const struct value *v);                  /* as Python's: "str" */
bool tmpl_is_integer(const struct value *v);                        /* INT, BIG; not BOOL */
bool tmpl_as_int(const struct value *v, int64_t *i);                /* INT and BOOL */
bool tmpl_truth(const struct value *v);
enum err_code tmpl_equal(struct env *e, const struct value *a, const struct value *b, bool *out);
/* -1, 0, 1; a type error names op. */
enum err_code tmpl_compare(struct env *e, const char *op, const struct value *a,
                           const struct value *b, int *out);
/* Are they ordered at all under op ("<", ...)? NaN gives false. */
enum err_code tmpl_ordered(struct env *e, const char *op, const struct value *a,
                           const struct value *b, bool *out);
enum err_code tmpl_contains(struct env *e, const struct value *seq, const struct value *item,
                            bool *out);
enum err_code tmpl_from_json(struct env *e, const struct json *j, bool is_caller,
                             struct value *out);

/* --- tmpl_dict.c: sequences and dicts --- */

enum err_code tmpl_list_new(struct env *e, enum vtype type, size_t cap, struct value *out);
enum err_code tmpl_push(struct env *e, struct value *list, struct value item);
enum err_code tmpl_dict_new(struct env *e, struct value *out);
enum err_code tmpl_dict_set(struct env *e, struct dict *d, struct value key, struct value value);
/* *out is NULL if absent. Unhashable keys are a type error. */
enum err_code tmpl_dict_get(struct env *e, const struct dict *d, const struct value *key,
                            struct value **out);
struct value *tmpl_dict_str(const struct dict *d, const char *key, size_t n); /* NULL if absent */
/* len(v); false if it has none. */
bool tmpl_len(const struct value *v, size_t *n);

/* --- sb.c, str.c: strings and their origin --- */

void sb_init(struct sb *b, struct env *e);
void sb_add(struct sb *b, const char *s, size_t n, bool is_caller);
void sb_add_cstr(struct sb *b, const char *s, bool is_caller);
void sb_add_str(struct sb *b, const struct str *s);
void sb_add_part(struct sb *b, const struct str *s, size_t p0, size_t p1); /* bytes */
void sb_fill(struct sb *b, char c, size_t n, bool is_caller);
enum err_code sb_finish(struct sb *b, struct value *out) MUST_CHECK;

/* A string over borrowed bytes; NULL when memory is used up. */
struct str *tmpl_str_new(struct env *e, const char *s, size_t n, bool is_caller);
enum err_code tmpl_str_value(struct env *e, struct str *s, struct value *out);
/* First span of s that ends after byte p. */
size_t str_span_at(const struct str *s, size_t p);
/* The bytes are copied. */
enum err_code tmpl_str(struct env *e, const char *s, size_t n, bool is_caller, struct value *out);
enum err_code tmpl_cstr(struct env *e, const char *s, struct value *out);
/* Bytes [p0, p1) of s, sharing them. */
enum err_code tmpl_part(struct env *e, const struct str *s, size_t p0, size_t p1,
                        struct value *out);
enum err_code tmpl_concat(struct env *e, const struct str *a, const struct str *b,
                          struct value *out);
bool str_is(const struct str *s, const char *text);
bool str_equal(const struct str *a, const struct str *b);
int str_compare(const struct str *a, const struct str *b); /* by code point */
bool str_is_touched(const struct str *s);                  /* any byte is the caller's */
bool str_is_caller_at(const struct str *s, size_t at);     /* is that byte the caller's? */
size_t str_chars(const struct str *s);
size_t str_offset(const struct str *s, size_t char_i); /* byte offset; n if past the end */
size_t str_step(const struct str *s, size_t at);       /* bytes of the code point at `at` */
size_t str_step_back(const struct str *s, size_t at);
/* First (last) occurrence of b in bytes [from, to) of a, or SIZE_MAX. */
size_t str_find(const struct str *a, const struct str *b, size_t from, size_t to);
size_t str_rfind(const struct str *a, const struct str *b, size_t from, size_t to);

/* --- tmpl_repr.c --- */

void tmpl_add_text(struct sb *b, const struct value *v); /* str(v) */
enum err_code tmpl_to_text(struct env *e, const struct value *v, struct value *out);
void tmpl_add_repr(struct sb *b, const struct value *v, int depth); /* repr(v) */
enum err_code tmpl_tojson(struct env *e, const struct value *v, const struct args *a,
                          struct value *out);

/* --- tmpl_num.c --- */

enum err_code tmpl_binary(struct env *e, int op, const struct value *a, const struct value *b,
                          struct value *out);
enum err_code tmpl_negate(struct env *e, const struct value *v, bool is_minus, struct value *out);
double tmpl_as_double(const struct value *v); /* BOOL INT BIG FLOAT */
bool tmpl_is_number(const struct value *v);   /* those */
/* Digits (with sign, canonical) to INT or BIG. */
enum err_code tmpl_int_from_digits(struct env *e, const char *s, size_t n, bool is_caller,
                                   struct value *out);
/* int() of a float. */
enum err_code tmpl_int_from_double(struct env *e, double d, bool is_caller, struct value *out);
/* int(text, base); *ok = false if it is no integer. */
enum err_code tmpl_int_from_text(struct env *e, const struct str *s, int base, struct value *out,
                                 bool *ok);
bool tmpl_float_from_text(const struct str *s, double *out);
enum err_code tmpl_sum(struct env *e, const struct value *a, const struct value *b,
                       struct value *out); /* a + b */

/* --- uni.c --- */

bool uni_is_space(uint32_t cp);     /* as str.isspace */
bool uni_is_line_end(uint32_t cp);  /* as str.splitlines */
bool uni_is_printable(uint32_t cp); /* as repr */
bool uni_is_word(uint32_t cp);      /* \w */
bool uni_is_alpha(uint32_t cp);
bool uni_is_digit(uint32_t cp); /* decimal */
bool uni_is_numeric(uint32_t cp);
bool uni_is_upper(uint32_t cp);
bool uni_is_lower(uint32_t cp);
bool uni_is_cased(uint32_t cp);
bool uni_is_title(uint32_t cp);
/* Full case mapping to out[3]; returns how many. */
enum uni_case { UNI_UPPER, UNI_LOWER, UNI_TITLE, UNI_FOLD };
int uni_map(uint32_t cp, enum uni_case to, uint32_t out[3]);

/* --- tmpl_iter.c --- */

enum err_code tmpl_iter(struct env *e, const struct value *v, struct iter **out);
bool tmpl_is_iterable(const struct value *v);
enum err_code tmpl_next(struct env *e, struct iter *it, struct value *out, bool *has);
enum err_code tmpl_to_list(struct env *e, const struct value *v, struct value *out);
/* A generator over `source`; *out is an ITER. */
enum err_code tmpl_generator(struct env *e,
                             enum err_code (*next)(struct env *, struct iter *, struct value *,
                                                   bool *),
                             const struct value *source, struct iter **it, struct value *out);
size_t tmpl_range_n(int64_t start, int64_t stop, int64_t step);

/* --- tmpl_attr.c --- */

enum err_code tmpl_getattr(struct env *e, const struct value *obj, const struct str *name,
                           struct value *out);
enum err_code tmpl_getitem(struct env *e, const struct value *obj, const struct value *key,
                           struct value *out);
enum err_code tmpl_slice(struct env *e, const struct value *obj, const struct value part[3],
                         struct value *out);
/* obj's real attribute (method, field); false if it has none. */
enum err_code tmpl_real_attr(struct env *e, const struct value *obj, const struct str *name,
                             struct value *out, bool *has);
/* Follow "a.b.0" from item; used by map(attribute=...), sort, groupby, ... `fallback` may be NULL. */
enum err_code tmpl_path(struct env *e, const struct value *item, const struct value *path,
                        const struct value *fallback, struct value *out);

/* --- tmpl_call.c --- */

enum err_code tmpl_call(struct env *e, const struct value *f, const struct args *a,
                        struct value *out);
/* Bind arguments to the names in `names` ("a b c", blank-separated; the first `need` have no default). out[] gets V_MISSING where
 * one is left out. */
enum err_code tmpl_bind(struct env *e, const char *what, const char *names, size_t need,
                        const struct args *a, struct value *out);
bool tmpl_is_callable(const struct value *v);
/* Typed looks at bound arguments; a missing one leaves *out. */
enum err_code tmpl_arg_int(struct env *e, const struct value *v, int64_t *out);
enum err_code tmpl_arg_bool(const struct value *v, bool *out);
enum err_code tmpl_arg_str(struct env *e, const struct value *v, const struct str **out);
extern const struct func *const tmpl_globals[];
extern const size_t tmpl_n_globals;

/* --- tmpl_format.c, tmpl_spec.c --- */

enum err_code tmpl_percent(struct env *e, const struct str *fmt, const struct value *args,
                           struct value *out);
enum err_code tmpl_format(struct env *e, const struct str *fmt, const struct args *a,
                          const struct value *mapping, struct value *out);
/* format(v, spec) */
enum err_code tmpl_format_spec(struct env *e, struct sb *b, const struct value *v,
                               const struct str *spec);
/* A double as printf's %e %f %g with precision and #; sign not printed. text has room for cap. */
void tmpl_add_double(struct sb *b, double v, char conv, int precision, bool is_alt, bool is_caller);

/* --- tables --- */

const struct method *tmpl_method_find(const struct value *self, const char *name, size_t n);
extern const struct method tmpl_str_methods[];      /* tmpl_method.c */
extern const struct method tmpl_str_case_methods[]; /* tmpl_method_case.c */
extern const struct method tmpl_list_methods[];     /* tmpl_method_seq.c */
extern const struct method tmpl_dict_methods[];
extern const struct method tmpl_float_methods[];
extern const struct method tmpl_loop_methods[];
extern const struct method tmpl_cycler_methods[];

const struct filter *tmpl_filter_find(const char *name, size_t n); /* filters of all files */
const struct filter *tmpl_test_find(const char *name, size_t n);
bool tmpl_filter_is_refused(const char *name, size_t n); /* jinja2 has it, we do not */
extern const struct filter
    tmpl_text_filters[]; /* tmpl_filter_text.c; each table ends with a NULL name */
extern const struct filter tmpl_wrap_filters[];
extern const struct filter tmpl_seq_filters[];
extern const struct filter tmpl_pick_filters[];
extern const struct filter tmpl_num_filters[];
enum err_code tmpl_filter_escape(struct env *e, const struct value *v, const struct args *a,
                                 struct value *out);

enum err_code tmpl_strftime(struct env *e, const struct args *a, struct value *out);

/* Used by methods and filters alike. */
enum err_code tmpl_strip(struct env *e, const struct str *s, const struct str *chars, bool left,
                         bool right, struct value *out);
enum err_code tmpl_replace(struct env *e, const struct str *s, const struct str *old,
                           const struct str *new, int64_t count, struct value *out);
enum err_code tmpl_map_case(struct env *e, const struct str *s, enum uni_case to,
                            struct value *out);
enum err_code tmpl_capitalize(struct env *e, const struct str *s, struct value *out);
enum err_code tmpl_center(struct env *e, const struct str *s, int64_t width, const struct str *fill,
                          struct value *out);
enum err_code tmpl_split_lines(struct env *e, const struct str *s, bool keep_ends,
                               struct value *out);
enum err_code tmpl_join(struct env *e, const struct str *sep, const struct value *items,
                        bool is_strict, struct value *out);
/* sorted(list, key), stable; keys[] is sorted along. */
enum err_code tmpl_sort(struct env *e, struct value *items, struct value *keys, size_t n,
                        bool is_reverse);

#endif
