/* regex.c - regular expressions in RE2's syntax (github.com/google/re2/wiki/Syntax), and those of JSON Schema (ECMA 262) as far as both
 * agree. What needs more than a finite automaton (back-references, look-around, word boundaries) is refused.
 *
 * Where the dialects differ in what a class holds the smaller set is taken: \d, \w and \s are ASCII's, their complements leave out what
 * Unicode counts there as well, and a dot is no line end of any kind. */
#include "base/utf8.h"
#include "grammar/grammar_int.h"

#include <string.h>
#include <utf8proc.h>

#define REGEX_DEPTH  200
#define REGEX_REPEAT 100000

struct regex {
    struct build *b;
    const char *text, *where;
    size_t n, at;
    bool in_string, folds, has_dot_all;
    bool is_ecma; /* a pattern of a schema */
    bool is_not;  /* in a class whose complement counts: the larger sets are taken */
    int depth;
};

static const struct expr *regex_alternatives(struct regex *r);

static const struct expr *regex_fail(struct regex *r, enum err_code code, const char *what)
{
    return build_fail(r->b, code, "%s: regular expression, at byte %zu: %s", r->where, r->at, what);
}

static bool regex_is(const struct regex *r, const char *s)
{
    size_t n = strlen(s);
    /* What has failed may stand behind the end. */
    return r->at <= r->n && r->n - r->at >= n && memcmp(r->text + r->at, s, n) == 0;
}

static bool regex_take(struct regex *r, const char *s)
{
    if (!regex_is(r, s))
        return false;
    r->at += strlen(s);
    return true;
}

/* --- classes --- */

struct regex_set { /* of code points */
    struct build *b;
    struct expr_range *r;
    int32_t n, cap;
};

static void set_add(struct regex_set *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 16;
        struct expr_range *r = build_alloc(s->b, (size_t)s->cap * sizeof(*r));
        if (s->n)
            memcpy(r, s->r, (size_t)s->n * sizeof(*r));
        s->r = r;
    }
    s->r[s->n++] = (struct expr_range){ lo, hi };
}

static void set_add_not(struct regex_set *s, struct regex_set *x)
{
    struct expr_range *out = build_alloc(s->b, (size_t)(x->n + 2) * sizeof(*out));
    x->n = expr_ranges_join(x->r, x->n);
    int32_t n = expr_ranges_invert(x->r, x->n, out);
    for (int32_t i = 0; i < n; i++)
        set_add(s, out[i].lo, out[i].hi);
}

#define UNICODE_RUNS 6000 /* of code points of one category: 3,400 in Unicode 16 */

/* General categories of all code points, in order: filled by the first who asks. */
static struct {
    struct expr_range runs[UNICODE_RUNS]; /* [n] */
    uint8_t category[UNICODE_RUNS];       /* [n] utf8proc's number */
    int32_t n;
} unicode;
static pthread_once_t unicode_once = PTHREAD_ONCE_INIT;

static void unicode_init(void)
{
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        uint8_t category = (uint8_t)utf8proc_category((utf8proc_int32_t)cp);
        if (unicode.n > 0 && unicode.category[unicode.n - 1] == category) {
            unicode.runs[unicode.n - 1].hi = cp;
            continue;
        }
        BUG_ON(unicode.n == UNICODE_RUNS);
        unicode.category[unicode.n] = category;
        unicode.runs[unicode.n++] = (struct expr_range){ cp, cp };
    }
}

/* The code points of a category: "L", "Lu", ...; false: there is none of that name. */
static bool set_add_category(struct regex_set *s, const char *name, size_t n)
{
    static const char *const names[] = {
        "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
        "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"
    };
    uint32_t wanted = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (n >= 1 && n <= 2 && memcmp(names[i], name, n) == 0)
            wanted |= 1u << i;
    if (!wanted)
        return false;
    pthread_once(&unicode_once, unicode_init);
    for (int32_t i = 0; i < unicode.n; i++)
        if (wanted >> unicode.category[i] & 1)
            set_add(s, unicode.runs[i].lo, unicode.runs[i].hi);
    return true;
}

/* Characters that differ in case from one of the set, for a complement to leave out: by their folds. */
static void set_add_cases(struct regex_set *s)
{
    uint8_t *folds = build_alloc(s->b, 0x110000 / 8);
    for (int32_t i = 0; i < s->n; i++)
        for (uint32_t c = s->r[i].lo; c <= s->r[i].hi && c <= 0x10FFFF; c++) {
            int32_t fold = utf8proc_tolower(utf8proc_toupper((utf8proc_int32_t)c));
            folds[fold / 8] |= (uint8_t)(1 << fold % 8);
        }
    s->b->work += 1000000;
    for (int32_t c = 0; c <= 0x10FFFF; c++) {
        int32_t fold = utf8proc_tolower(utf8proc_toupper(c));
        if (folds[fold / 8] >> fold % 8 & 1)
            set_add(s, (uint32_t)c, (uint32_t)c);
    }
}

/* What Perl's letter stands for; wide: in Unicode, of which a complement leaves all out. */
static void set_add_perl(struct regex_set *s, char c, bool is_wide)
{
    if (c != 's')
        set_add(s, '0', '9');
    if (c == 'd' && is_wide)
        set_add_category(s, "Nd", 2);
    if (c == 'w') {
        set_add(s, 'a', 'z');
        set_add(s, 'A', 'Z');
        set_add(s, '_', '_');
    }
    if (c == 'w' && is_wide) {
        set_add_category(s, "L", 1);
        set_add_category(s, "N", 1);
        set_add_category(s, "M", 1);
        set_add_category(s, "Pc", 2);
    }
    if (c == 's') {
        set_add(s, '\t', '\r');
        set_add(s, ' ', ' ');
    }
    if (c == 's' && is_wide) {
        set_add(s, 0x1C, 0x1F);
        set_add(s, 0x85, 0x85);
        set_add(s, 0xFEFF, 0xFEFF);
        set_add_category(s, "Z", 1);
    }
}

static bool regex_hex(struct regex *r, int n, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++, r->at++) {
        char c = r->at < r->n ? r->text[r->at] : 'x';
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            regex_fail(r, ERR_INVALID, "not enough hexadecimal digits");
            return false;
        }
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return true;
}

/* \x41, \x{1F600}, \u0041, \u{1F600}, behind the letter. */
static bool regex_code(struct regex *r, char letter, uint32_t *out)
{
    if (regex_take(r, "{")) {
        const char *end = memchr(r->text + r->at, '}', r->n - r->at);
        size_t n = end ? (size_t)(end - r->text) - r->at : 0;
        if (n < 1 || n > 6) {
            regex_fail(r, ERR_INVALID, "a code point in braces has 1 to 6 digits");
            return false;
        }
        bool is_fine = regex_hex(r, (int)n, out);
        r->at++;
        return is_fine;
    }
    if (!regex_hex(r, letter == 'x' ? 2 : letter == 'u' ? 4 : 8, out))
        return false;
    uint32_t low;
    if (*out >= 0xD800 && *out < 0xDC00 && regex_take(r, "\\u")) {
        if (!regex_hex(r, 4, &low))
            return false;
        *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    }
    return true;
}

/* \p{L}, \pL, \P{Lu} behind the letter. */
static void regex_property(struct regex *r, bool is_not, struct regex_set *out)
{
    struct regex_set s = { .b = r->b };
    const char *name = r->text + r->at;
    size_t n = r->at < r->n;
    if (regex_take(r, "{")) {
        const char *end = memchr(r->text + r->at, '}', r->n - r->at);
        name = r->text + r->at;
        n = end ? (size_t)(end - name) : 0;
        r->at += n;
    } else {
        r->at += n;
    }
    bool is_braced = n > 0 && name > r->text && name[-1] == '{';
    if (!set_add_category(&s, name, n)) {
        regex_fail(r, ERR_UNSUPPORTED, "only general categories (\\p{L}, \\p{Lu}, ...) are known");
        return;
    }
    r->at += is_braced;
    for (int32_t i = 0; i < s.n && !is_not; i++)
        set_add(out, s.r[i].lo, s.r[i].hi);
    if (is_not)
        set_add_not(out, &s);
}

/* An escape behind its backslash: a code point in *cp, or classes in out (then *cp is UINT32_MAX). */
static void regex_escape(struct regex *r, struct regex_set *out, uint32_t *cp)
{
    static const char letters[] = "nrtfvae", values[] = "\n\r\t\f\v\a\x1B";
    *cp = UINT32_MAX;
    if (r->at == r->n) {
        regex_fail(r, ERR_INVALID, "a backslash at the end");
        return;
    }
    size_t n = utf8_decode(r->text + r->at, r->n - r->at, cp);
    char c = n == 1 ? (char)*cp : '\0';
    r->at += n ? n : 1;
    const char *p = c ? strchr(letters, c) : NULL;
    if (p) {
        *cp = (uint8_t)values[p - letters];
    } else if (c && strchr("dws", c)) {
        set_add_perl(out, c, r->is_not);
        *cp = UINT32_MAX;
    } else if (c && strchr("DWS", c)) {
        struct regex_set s = { .b = r->b };
        set_add_perl(&s, (char)(c + 32), !r->is_not);
        set_add_not(out, &s);
        *cp = UINT32_MAX;
    } else if (c == 'x' || c == 'u' || c == 'U') {
        if (!regex_code(r, c, cp))
            *cp = 'x';
    } else if (c == 'p' || c == 'P') {
        regex_property(r, c == 'P', out);
        *cp = UINT32_MAX;
    } else if (c == '0') { /* octal, two digits more at most */
        *cp = 0;
        for (int i = 0; i < 2 && r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '7';
             i++)
            *cp = *cp * 8 + (uint32_t)(r->text[r->at++] - '0');
    } else if ((c >= '1' && c <= '9') || c == 'k' || c == 'g') {
        regex_fail(r, ERR_UNSUPPORTED, "back-references cannot be enforced");
    } else if (c && strchr("bBAzZGQEXRC", c)) {
        regex_fail(r, ERR_UNSUPPORTED, "this escape cannot be enforced");
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        regex_fail(r, ERR_INVALID, "an escape that is not known");
    }
}

static bool regex_posix(struct regex *r, struct regex_set *s)
{
    static const struct {
        const char *name, *ranges;
    } rows[] = {
        { "[:alnum:]", "09AZaz" },  { "[:alpha:]", "AZaz" },    { "[:digit:]", "09" },
        { "[:lower:]", "az" },      { "[:upper:]", "AZ" },      { "[:space:]", "\t\r  " },
        { "[:xdigit:]", "09AFaf" }, { "[:word:]", "09AZaz__" }, { "[:punct:]", "!/:@[`{~" },
        { "[:print:]", " ~" },      { "[:graph:]", "!~" },      { "[:blank:]", "\t\t  " },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (!regex_take(r, rows[i].name))
            continue;
        for (const char *p = rows[i].ranges; *p; p += 2)
            set_add(s, (uint8_t)p[0], (uint8_t)p[1]);
        return true;
    }
    return false;
}

/* One character of a class, or classes (then false). */
static bool regex_class_char(struct regex *r, struct regex_set *s, uint32_t *cp)
{
    if (regex_take(r, "\\")) {
        if (regex_take(r, "b")) {
            *cp = '\b';
            return true;
        }
        regex_escape(r, s, cp);
        return *cp != UINT32_MAX;
    }
    if (regex_is(r, "[:") && regex_posix(r, s))
        return false;
    size_t n = utf8_decode(r->text + r->at, r->n - r->at, cp);
    r->at += n ? n : 1;
    return true;
}

/* The other case of ASCII's letters. */
static void set_add_ascii_cases(struct regex_set *s)
{
    for (int32_t i = 0, n = s->n; i < n; i++)
        for (uint32_t c = 'a'; c <= 'z'; c++) {
            if (s->r[i].lo <= c && c <= s->r[i].hi)
                set_add(s, c - 32, c - 32);
            if (s->r[i].lo <= c - 32 && c - 32 <= s->r[i].hi)
                set_add(s, c, c);
        }
}

static const struct expr *regex_class_of(struct regex *r, struct regex_set *s, bool is_not)
{
    if (build_is_late(r->b))
        return expr_none();
    if (r->folds && is_not)
        set_add_cases(s);
    else if (r->folds)
        set_add_ascii_cases(s);
    if (!is_not)
        return expr_class(r->b, s->r, s->n, r->in_string);
    struct regex_set out = { .b = r->b };
    set_add_not(&out, s);
    return expr_class(r->b, out.r, out.n, r->in_string);
}

static const struct expr *regex_class(struct regex *r)
{
    struct regex_set s = { .b = r->b };
    bool is_not = regex_take(r, "^"), is_first = true;
    r->is_not = is_not;
    while (!r->b->code && (is_first || !regex_is(r, "]"))) {
        uint32_t lo, hi;
        is_first = false;
        if (r->at >= r->n)
            return regex_fail(r, ERR_INVALID, "a class is not closed");
        if (regex_is(r, "]") && s.n == 0 && r->is_ecma)
            break; /* in ECMA 262 an empty class */
        if (!regex_class_char(r, &s, &lo))
            continue;
        hi = lo;
        if (regex_is(r, "-") && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            if (!regex_class_char(r, &s, &hi)) {
                set_add(&s, '-', '-');
                hi = lo;
            }
        }
        if (hi < lo)
            return regex_fail(r, ERR_INVALID, "a range that ends before it begins");
        set_add(&s, lo, hi);
    }
    r->at++;
    r->is_not = false;
    return regex_class_of(r, &s, is_not);
}

static const struct expr *regex_char(struct regex *r, uint32_t cp)
{
    struct regex_set s = { .b = r->b };
    set_add(&s, cp, cp);
    return regex_class_of(r, &s, false);
}

static const struct expr *regex_dot(struct regex *r)
{
    struct regex_set s = { .b = r->b }, out = { .b = r->b };
    if (!r->has_dot_all) {
        set_add(&s, '\n', '\n');
        set_add(&s, '\r', '\r');
        set_add(&s, 0x2028, 0x2029);
        set_add(&s, 0x85, 0x85);
    }
    set_add_not(&out, &s);
    return expr_class(r->b, out.r, out.n, r->in_string);
}

/* --- groups and repetitions --- */

/* Behind "(?": flags, names; what cannot be enforced fails. True: it was flags alone, "(?i)". */
static bool regex_group_head(struct regex *r)
{
    bool is_on = true;
    if (regex_take(r, ":"))
        return false;
    if (regex_is(r, "=") || regex_is(r, "!") || regex_is(r, "<=") || regex_is(r, "<!") ||
        regex_is(r, ">")) {
        regex_fail(r, ERR_UNSUPPORTED, "look-around cannot be enforced");
        return false;
    }
    if (regex_take(r, "P<") || regex_take(r, "<")) {
        const char *end = memchr(r->text + r->at, '>', r->n - r->at);
        if (!end)
            regex_fail(r, ERR_INVALID, "a group's name is not closed");
        else
            r->at = (size_t)(end - r->text) + 1;
        return false;
    }
    for (; r->at < r->n; r->at++) {
        char c = r->text[r->at];
        if (c == ')' || c == ':') {
            r->at++;
            return c == ')';
        }
        if (c == '-')
            is_on = false;
        else if (c == 'i')
            r->folds = is_on;
        else if (c == 's')
            r->has_dot_all = is_on;
        else if (c != 'U')
            break;
    }
    regex_fail(r, ERR_UNSUPPORTED, "a group of a kind that is not known");
    return false;
}

static const struct expr *regex_group(struct regex *r)
{
    bool folds = r->folds, has_dot_all = r->has_dot_all;
    if (++r->depth > REGEX_DEPTH)
        return regex_fail(r, ERR_FULL, "groups are nested too deep");
    if (regex_take(r, "?") && regex_group_head(r)) {
        r->depth--;
        return expr_empty(); /* the flags stay */
    }
    const struct expr *e = regex_alternatives(r);
    if (!regex_take(r, ")"))
        return regex_fail(r, ERR_INVALID, "a group is not closed");
    r->folds = folds;
    r->has_dot_all = has_dot_all;
    r->depth--;
    return e;
}

static bool regex_number(struct regex *r, int64_t *out)
{
    size_t from = r->at;
    *out = 0;
    for (; r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if (*out <= REGEX_REPEAT)
            *out = *out * 10 + (r->text[r->at] - '0');
    return r->at > from;
}

/* {2}, {2,}, {2,5} or {,5}; anything else is text. */
static bool regex_bounds(struct regex *r, int64_t *min, int64_t *max)
{
    size_t from = r->at++;
    bool has_min = regex_number(r, min), has_max = false;
    *max = *min;
    if (regex_take(r, ",")) {
        has_max = regex_number(r, max);
        if (!has_max)
            *max = EXPR_INF;
    }
    if (regex_take(r, "}") && (has_min || has_max))
        return true;
    r->at = from;
    return false;
}

static const struct expr *regex_repeated(struct regex *r, const struct expr *x)
{
    while (!r->b->code && r->at < r->n) {
        int64_t min = 0, max = EXPR_INF;
        if (regex_take(r, "+"))
            min = 1;
        else if (regex_take(r, "?"))
            max = 1;
        else if (regex_is(r, "{") ? !regex_bounds(r, &min, &max) : !regex_take(r, "*"))
            return x;
        if (!regex_take(r, "?") && regex_take(r, "+"))
            return regex_fail(r, ERR_UNSUPPORTED, "possessive repetitions cannot be enforced");
        if (x->kind == EXPR_BEGIN || x->kind == EXPR_END)
            return regex_fail(r, ERR_UNSUPPORTED, "an anchor is repeated");
        if (min > max)
            return regex_fail(r, ERR_INVALID, "a repetition's bounds are the wrong way round");
        if (min > REGEX_REPEAT || (max > REGEX_REPEAT && max != EXPR_INF))
            return regex_fail(r, ERR_FULL, "a repetition of more than 100000 times");
        x = expr_repeat(r->b, x, min, max);
    }
    return x;
}

static const struct expr *regex_atom(struct regex *r)
{
    static const struct expr begin = { .kind = EXPR_BEGIN }, end = { .kind = EXPR_END };
    struct regex_set s = { .b = r->b };
    uint32_t cp;
    if (regex_take(r, "^"))
        return &begin;
    if (regex_take(r, "$"))
        return &end;
    if (regex_take(r, "("))
        return regex_group(r);
    if (regex_take(r, "["))
        return regex_class(r);
    if (regex_take(r, "."))
        return regex_dot(r);
    if (regex_is(r, "*") || regex_is(r, "+") || regex_is(r, "?"))
        return regex_fail(r, ERR_INVALID, "nothing to repeat");
    if (regex_take(r, "\\A"))
        return &begin;
    if (regex_take(r, "\\z"))
        return &end;
    if (regex_take(r, "\\")) {
        regex_escape(r, &s, &cp);
        return cp == UINT32_MAX ? regex_class_of(r, &s, false) : regex_char(r, cp);
    }
    size_t n = utf8_decode(r->text + r->at, r->n - r->at, &cp);
    if (n == 0)
        return regex_fail(r, ERR_INVALID, "not UTF-8");
    r->at += n;
    return regex_char(r, cp);
}

static const struct expr *regex_alternatives(struct regex *r)
{
    struct expr_list all = { 0 }, parts = { 0 };
    while (!r->b->code) {
        parts.n = 0;
        while (!r->b->code && r->at < r->n && !regex_is(r, "|") && !regex_is(r, ")")) {
            const struct expr *x = regex_atom(r);
            expr_list_add(r->b, &parts, regex_repeated(r, x));
        }
        expr_list_add(r->b, &all, expr_seq(r->b, parts.items, parts.n));
        if (!regex_take(r, "|"))
            break;
    }
    return r->b->code ? expr_none() : expr_alt(r->b, all.items, all.n);
}

/* --- anchors --- */

/* An expression as two: what begins (or ends) at an anchor, and what does not ask for one. */
struct regex_halves {
    const struct expr *anchored, *free;
};

static bool regex_has_anchor(const struct expr *e)
{
    if (e->kind == EXPR_BEGIN || e->kind == EXPR_END)
        return true;
    for (int32_t i = 0; e->kids && i < e->n; i++)
        if (regex_has_anchor(e->kids[i]))
            return true;
    return false;
}

static struct regex_halves regex_split(struct build *b, const struct expr *e, enum expr_kind anchor)
{
    struct regex_halves out = { expr_none(), e };
    if (!regex_has_anchor(e))
        return out;
    if (e->kind == anchor)
        return (struct regex_halves){ expr_empty(), expr_none() };
    if (e->kind == EXPR_ALT) {
        struct expr_list x = { 0 }, y = { 0 };
        for (int32_t i = 0; i < e->n; i++) {
            struct regex_halves h = regex_split(b, e->kids[i], anchor);
            expr_list_add(b, &x, h.anchored);
            expr_list_add(b, &y, h.free);
        }
        return (struct regex_halves){ expr_alt(b, x.items, x.n), expr_alt(b, y.items, y.n) };
    }
    if (e->kind == EXPR_SEQ) {
        bool is_begin = anchor == EXPR_BEGIN;
        struct regex_halves h = regex_split(b, e->kids[is_begin ? 0 : e->n - 1], anchor);
        const struct expr *rest = expr_seq(b, e->kids + is_begin, e->n - 1);
        if (h.anchored->kind == EXPR_EMPTY) { /* more of them may follow: ^(^a|b) */
            struct regex_halves more = regex_split(b, rest, anchor);
            rest = expr_alt2(b, more.anchored, more.free);
        }
        out.anchored = is_begin ? expr_seq2(b, h.anchored, rest) : expr_seq2(b, rest, h.anchored);
        out.free = h.free->kind == EXPR_NONE ? h.free
                   : is_begin                ? expr_seq2(b, h.free, rest)
                                             : expr_seq2(b, rest, h.free);
        return out;
    }
    return out;
}

static const struct expr *regex_read(struct build *b, const char *text, size_t n, bool in_string,
                                     bool is_ecma, const char *where)
{
    struct regex r = { .b = b, .text = text, .n = n, .where = where };
    r.in_string = in_string;
    r.is_ecma = is_ecma;
    const struct expr *e = regex_alternatives(&r);
    if (!b->code && r.at < r.n)
        return regex_fail(&r, ERR_INVALID, "a bracket that was not opened");
    return e;
}

static const struct expr *regex_around(struct build *b, const struct expr *e,
                                       const struct expr *padding, const char *where)
{
    struct regex_halves x = regex_split(b, e, EXPR_BEGIN);
    e = expr_alt2(b, x.anchored, expr_seq2(b, padding, x.free));
    struct regex_halves y = regex_split(b, e, EXPR_END);
    e = expr_alt2(b, y.anchored, expr_seq2(b, y.free, padding));
    if (!b->code && regex_has_anchor(e))
        return build_fail(b, ERR_UNSUPPORTED,
                          "%s: regular expression: ^ or $ inside it cannot be enforced", where);
    return e;
}

const struct expr *regex_search(struct build *b, const char *text, size_t n, bool in_string,
                                const char *where)
{
    static const struct expr_range all = { 0, 0x10FFFF };
    const struct expr *e = regex_read(b, text, n, in_string, true, where);
    const struct expr *any = expr_repeat(b, expr_class(b, &all, 1, in_string), 0, EXPR_INF);
    return b->code ? expr_none() : regex_around(b, e, any, where);
}

const struct expr *regex_whole(struct build *b, const char *text, size_t n, bool in_string,
                               const char *where)
{
    const struct expr *e = regex_read(b, text, n, in_string, false, where);
    return b->code ? expr_none() : regex_around(b, e, expr_empty(), where);
}
