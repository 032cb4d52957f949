/* json.c - reading: a pre-pass over the text for the rules that yajl does not know, then yajl's events into a value tree.
 *
 * The pre-pass checks UTF-8, depth and white space and finds lone surrogate escapes; those are overwritten in a copy by an
 * escaped U+FFFD of the same length, so that every offset stays the caller's. The tree is built on a stack: a finished array or
 * object is moved to the arena in one piece. */
#include "json/json.h"
#include "base/map.h"
#include "base/utf8.h"

#include <string.h>
#include <yajl/yajl_parse.h>

/* Members a stack element may be compared with one by one; above it a hash finds duplicate keys. */
#define JSON_LINEAR_MEMBERS 16

struct json_frame {
    bool is_object;
    size_t base; /* first stack element that belongs to it */
};

struct json_builder {
    struct arena *arena;
    struct json_member *stack; /* [cap], first n in use; keys only inside objects */
    size_t n, cap;
    struct json_frame frames[JSON_DEPTH_MAX];
    int depth;
    const char *key; /* of the value that comes next */
    size_t key_len;
    const char *twice;
    bool is_full; /* out of the caller's bytes (or the system's) */
};

/* --- events --- */

static struct json *json_push(struct json_builder *b)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 64;
        size_t bytes = cap * sizeof(*b->stack);
        struct json_member *p =
            bytes / 4 > b->arena->max ? NULL : mem_try_array(b->arena->cat, cap, sizeof(*p));
        if (!p) {
            b->is_full = true;
            return NULL;
        }
        if (b->n)
            memcpy(p, b->stack, b->n * sizeof(*p));
        mem_free(b->arena->cat, b->stack);
        b->stack = p;
        b->cap = cap;
    }
    struct json_member *m = &b->stack[b->n++];
    *m = (struct json_member){ .key = b->key, .key_len = b->key_len };
    b->key = NULL;
    b->key_len = 0;
    return &m->value;
}

static const char *json_copy(struct json_builder *b, const char *s, size_t n)
{
    char *p = arena_strndup(b->arena, s, n);
    if (!p)
        b->is_full = true;
    return p;
}

static int json_on_null(void *ctx)
{
    struct json *v = json_push(ctx);
    if (v)
        v->type = JSON_TYPE_NULL;
    return v != NULL;
}

static int json_on_bool(void *ctx, int boolean)
{
    struct json *v = json_push(ctx);
    if (!v)
        return 0;
    v->type = JSON_TYPE_BOOL;
    v->boolean = boolean;
    return 1;
}

static int json_on_text(struct json_builder *b, enum json_type type, const char *s, size_t n)
{
    struct json *v = json_push(b);
    if (!v)
        return 0;
    v->type = type;
    v->text = json_copy(b, s, n);
    v->len = n;
    return v->text != NULL;
}

static int json_on_number(void *ctx, const char *s, size_t n)
{
    return json_on_text(ctx, JSON_TYPE_NUMBER, s, n);
}

static int json_on_string(void *ctx, const unsigned char *s, size_t n)
{
    return json_on_text(ctx, JSON_TYPE_STRING, (const char *)s, n);
}

static int json_on_key(void *ctx, const unsigned char *s, size_t n)
{
    struct json_builder *b = ctx;
    b->key = json_copy(b, (const char *)s, n);
    b->key_len = n;
    return b->key != NULL;
}

static int json_open(struct json_builder *b, bool is_object)
{
    struct json *v = json_push(b);
    if (!v)
        return 0;
    v->type = is_object ? JSON_TYPE_OBJECT : JSON_TYPE_ARRAY;
    BUG_ON(b->depth == JSON_DEPTH_MAX); /* the pre-pass has counted */
    b->frames[b->depth++] = (struct json_frame){ .is_object = is_object, .base = b->n };
    return 1;
}

static int json_on_start_map(void *ctx)
{
    return json_open(ctx, true);
}

static int json_on_start_array(void *ctx)
{
    return json_open(ctx, false);
}

static int json_on_end_array(void *ctx)
{
    struct json_builder *b = ctx;
    size_t base = b->frames[--b->depth].base;
    size_t n = b->n - base;
    struct json *v = &b->stack[base - 1].value;
    v->items =
        n > SIZE_MAX / sizeof(*v->items) ? NULL : arena_alloc(b->arena, n * sizeof(*v->items));
    if (!v->items) {
        b->is_full = true;
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        v->items[i] = b->stack[base + i].value;
    v->n = n;
    b->n = base;
    return 1;
}

/* Index among the first n members of the one with m's key, or n. */
static size_t json_member_index(const struct json_member *members, size_t n,
                                const struct json_member *m)
{
    for (size_t i = 0; i < n; i++)
        if (members[i].key_len == m->key_len && memcmp(members[i].key, m->key, m->key_len) == 0)
            return i;
    return n;
}

/* Squeeze duplicate keys out of members[0..n): first place, last value. Returns what is left. */
static size_t json_dedupe(struct json_builder *b, struct json_member *members, size_t n)
{
    size_t kept = 0;
    bool is_hashed = n > JSON_LINEAR_MEMBERS && n < INT32_MAX;
    struct map seen;
    map_init(&seen, b->arena->cat);
    for (size_t i = 0; i < n; i++) {
        size_t at = kept;
        if (!is_hashed)
            at = json_member_index(members, kept, &members[i]);
        else if (!map_add(&seen, members[i].key, members[i].key_len, (int32_t)kept))
            at = (size_t)map_get(&seen, members[i].key, members[i].key_len);
        if (at == kept) {
            members[kept++] = members[i];
        } else {
            members[at].value = members[i].value;
            b->twice = members[at].key;
        }
    }
    map_release(&seen);
    return kept;
}

static int json_on_end_map(void *ctx)
{
    struct json_builder *b = ctx;
    size_t base = b->frames[--b->depth].base;
    struct json_member *members = b->stack + base;
    size_t n = json_dedupe(b, members, b->n - base);
    struct json *v = &b->stack[base - 1].value;
    v->members = arena_alloc(b->arena, n * sizeof(*members));
    if (!v->members) {
        b->is_full = true;
        return 0;
    }
    if (n)
        memcpy(v->members, members, n * sizeof(*members));
    v->n = n;
    b->n = base;
    return 1;
}

static const yajl_callbacks json_callbacks = {
    .yajl_null = json_on_null,
    .yajl_boolean = json_on_bool,
    .yajl_number = json_on_number,
    .yajl_string = json_on_string,
    .yajl_start_map = json_on_start_map,
    .yajl_map_key = json_on_key,
    .yajl_end_map = json_on_end_map,
    .yajl_start_array = json_on_start_array,
    .yajl_end_array = json_on_end_array,
};

/* --- yajl's own memory: its parse state and the longest unescaped string, at most about twice the text --- */

static void *json_yajl_malloc(void *ctx, size_t n)
{
    return mem_alloc(*(enum mem_cat *)ctx, n);
}

static void *json_yajl_realloc(void *ctx, void *p, size_t n)
{
    return mem_realloc(*(enum mem_cat *)ctx, p, n);
}

static void json_yajl_free(void *ctx, void *p)
{
    mem_free(*(enum mem_cat *)ctx, p);
}

/* --- pre-pass --- */

static enum err_code json_error(const char *text, size_t len, size_t at, const char *what,
                                struct err *err)
{
    size_t line = 1, start = 0;
    if (at > len)
        at = len;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    return err_set(err, ERR_INVALID, "JSON line %zu, column %zu: %s", line,
                   utf8_count(text + start, at - start) + 1, what);
}

/* Value of the four hex digits at s, or -1. */
static int32_t json_hex4(const char *s)
{
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Code unit of a \uXXXX at text[at..len), or -1. */
static int32_t json_unit_at(const char *text, size_t len, size_t at)
{
    if (len - at < 6 || text[at] != '\\' || text[at + 1] != 'u')
        return -1;
    return json_hex4(text + at + 2);
}

static bool json_is_lead(int32_t unit)
{
    return unit >= 0xD800 && unit < 0xDC00;
}

static bool json_is_trail(int32_t unit)
{
    return unit >= 0xDC00 && unit < 0xE000;
}

/* Walk a string's escape at text[at]; returns its length. A lone surrogate is counted, and overwritten where fix is not NULL. */
static size_t json_scan_escape(const char *text, size_t len, size_t at, char *fix, size_t *n_lone)
{
    int32_t unit = json_unit_at(text, len, at);
    if (unit < 0)
        return 2;
    if (json_is_lead(unit) && json_is_trail(json_unit_at(text, len, at + 6)))
        return 12;
    if (json_is_lead(unit) || json_is_trail(unit)) {
        (*n_lone)++;
        if (fix)
            memcpy(fix + at, "\\ufffd", 6);
    }
    return 6;
}

/* Rules that yajl does not check: depth, and white space that RFC 8259 does not have. Counts lone surrogates. */
static enum err_code json_scan(const char *text, size_t len, char *fix, size_t *n_lone,
                               struct err *err)
{
    bool in_string = false;
    int depth = 0;
    for (size_t i = 0; i < len;) {
        char c = text[i];
        if (in_string && c == '\\') {
            i += json_scan_escape(text, len, i, fix, n_lone);
            continue;
        }
        if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && (c == '[' || c == '{')) {
            if (++depth > JSON_DEPTH_MAX)
                return json_error(text, len, i, "nested deeper than 64", err);
        } else if (!in_string && (c == ']' || c == '}')) {
            depth--;
        } else if (!in_string && (c == '\v' || c == '\f')) {
            return json_error(text, len, i, "not JSON white space", err);
        }
        i++;
    }
    return ERR_OK;
}

static enum err_code json_check_utf8(const char *text, size_t len, struct err *err)
{
    uint32_t cp;
    size_t n;
    for (size_t i = 0; i < len; i += n) {
        n = utf8_decode(text + i, len - i, &cp);
        if (n == 0)
            return json_error(text, len, i, "not UTF-8", err);
    }
    return ERR_OK;
}

/* --- parsing --- */

static enum err_code json_yajl_error(yajl_handle h, const char *text, size_t len, struct err *err)
{
    unsigned char *msg = yajl_get_error(h, 0, (const unsigned char *)text, len);
    char what[128];
    size_t n = strcspn((const char *)msg, "\n");
    if (n >= sizeof(what))
        n = sizeof(what) - 1;
    memcpy(what, msg, n);
    what[n] = '\0';
    yajl_free_error(h, msg);
    return json_error(text, len, yajl_get_bytes_consumed(h), what, err);
}

static enum err_code json_run(struct json_builder *b, const char *text, size_t len, struct err *err)
{
    enum mem_cat cat = b->arena->cat;
    yajl_alloc_funcs funcs = { json_yajl_malloc, json_yajl_realloc, json_yajl_free, &cat };
    yajl_handle h = yajl_alloc(&json_callbacks, &funcs, b);
    yajl_status status = yajl_parse(h, (const unsigned char *)text, len);
    if (status == yajl_status_ok)
        status = yajl_complete_parse(h);
    enum err_code code = ERR_OK;
    if (b->is_full)
        code = err_set(err, ERR_FULL, "JSON: over its limit of %zu bytes of values", b->arena->max);
    else if (status != yajl_status_ok)
        code = json_yajl_error(h, text, len, err);
    else if (yajl_parse(h, (const unsigned char *)"\n", 1) != yajl_status_ok)
        code = json_error(text, len, len, "half a token follows the value",
                          err); /* yajl waits for the rest */
    yajl_free(h);
    return code;
}

static enum err_code json_build(struct json_doc *doc, const char *text, size_t len, struct err *err)
{
    struct json_builder b = { .arena = &doc->arena };
    enum err_code code = json_run(&b, text, len, err);
    if (!code)
        doc->root = b.stack[0].value;
    doc->twice = b.twice;
    mem_free(doc->arena.cat, b.stack);
    return code;
}

enum err_code json_parse(struct json_doc *doc, const char *text, size_t len, size_t max_bytes,
                         struct err *err)
{
    size_t n_lone = 0;
    char *fixed = NULL;
    *doc = (struct json_doc){ 0 };
    arena_init(&doc->arena, MEM_CAT_REQUEST, max_bytes);
    enum err_code code = json_check_utf8(text, len, err);
    if (!code)
        code = json_scan(text, len, NULL, &n_lone, err);
    if (!code && n_lone) {
        fixed = mem_try(MEM_CAT_REQUEST, len);
        if (!fixed) {
            code = err_set(err, ERR_NOMEM, "JSON: no memory for %zu bytes", len);
            goto out;
        }
        memcpy(fixed, text, len);
        code = json_scan(text, len, fixed, &n_lone, err);
    }
    if (!code)
        code = json_build(doc, fixed ? fixed : text, len, err);
out:
    mem_free(MEM_CAT_REQUEST, fixed);
    if (code)
        json_doc_release(doc);
    return code;
}

void json_doc_release(struct json_doc *doc)
{
    arena_release(&doc->arena);
    *doc = (struct json_doc){ 0 };
}
