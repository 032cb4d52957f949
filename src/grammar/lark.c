/* lark.c - grammars in Lark's notation (lark-parser.readthedocs.io, "Grammar Reference"): rules, terminals, strings, regular expressions,
 * ranges, groups, repetitions, aliases, priorities, %ignore, %import of common terminals. The rule `start` is the text.
 *
 * Texts, not trees: ?, !, _, aliases and priorities say nothing here, and a terminal may be shorter than it could be (Lark's Earley parser with
 * the dynamic_complete lexer reads the same texts). What is ignored may stand before and behind each terminal of a rule. */
#include "base/map.h"
#include "base/utf8.h"
#include "grammar/lark_int.h"

#include <stdio.h>
#include <string.h>

#define LARK_DEPTH  200
#define LARK_REPEAT 100000
#define LARK_NAME   100

struct lark {
    struct build *b;
    const char *text;
    size_t n, at;
    struct map names;
    struct lark_def *defs; /* [n_defs] */
    int32_t n_defs, cap_defs;
    int depth;
    bool in_terminal;
    const struct expr *
        gap; /* what is ignored, any number of times: a rule that is set at the end; NULL: nothing is */
    struct expr_list ignored;
};

static const struct expr *lark_alternatives(struct lark *x, struct lark_def *into);

/* --- places and names --- */

static int lark_line(const struct lark *x)
{
    int line = 1;
    for (size_t i = 0; i < x->at && i < x->n; i++)
        line += x->text[i] == '\n';
    return line;
}

static const struct expr *lark_fail(struct lark *x, enum err_code code, const char *what)
{
    return build_fail(x->b, code, "grammar, line %d: %s", lark_line(x), what);
}

static char lark_peek(const struct lark *x)
{
    return x->at < x->n ? x->text[x->at] : '\0';
}

static bool lark_is(const struct lark *x, const char *s)
{
    size_t n = strlen(s);
    return x->at <= x->n && x->n - x->at >= n && memcmp(x->text + x->at, s, n) == 0;
}

static bool lark_take(struct lark *x, const char *s)
{
    if (!lark_is(x, s))
        return false;
    x->at += strlen(s);
    return true;
}

/* Blanks, comments and lines that go on; line ends too, if they end nothing. */
static void lark_blanks(struct lark *x, bool takes_lines)
{
    while (x->at < x->n) {
        char c = x->text[x->at];
        if (lark_is(x, "//") || c == '#') {
            while (x->at < x->n && x->text[x->at] != '\n')
                x->at++;
        } else if (c == '\\' && (lark_is(x, "\\\n") || lark_is(x, "\\\r\n"))) {
            x->at += lark_is(x, "\\\n") ? 2 : 3;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || (c == '\n' && takes_lines)) {
            x->at++;
        } else {
            return;
        }
    }
}

static bool lark_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static size_t lark_word(struct lark *x, const char **word)
{
    size_t from = x->at;
    while (x->at < x->n && (lark_is_letter(x->text[x->at]) ||
                            (x->at > from && x->text[x->at] >= '0' && x->text[x->at] <= '9')))
        x->at++;
    *word = x->text + from;
    return x->at - from;
}

/* Terminals are in capitals. */
static bool lark_names_terminal(const char *word, size_t n)
{
    size_t i = 0;
    while (i < n && word[i] == '_')
        i++;
    return i < n && word[i] >= 'A' && word[i] <= 'Z';
}

/* The definition of that name, which may be yet to come: its number. */
static int32_t lark_def(struct lark *x, const char *word, size_t n)
{
    int32_t at = map_get(&x->names, word, n);
    if (at >= 0)
        return at;
    if (x->n_defs == x->cap_defs) {
        x->cap_defs = x->cap_defs ? 2 * x->cap_defs : 32;
        struct lark_def *defs = build_alloc(x->b, (size_t)x->cap_defs * sizeof(*defs));
        if (x->n_defs > 0)
            memcpy(defs, x->defs, (size_t)x->n_defs * sizeof(*defs));
        x->defs = defs;
    }
    x->defs[x->n_defs] = (struct lark_def){ .name = word, .n_name = n, .line = lark_line(x) };
    x->defs[x->n_defs].rule = build_new_rule(x->b, "a rule");
    x->defs[x->n_defs].is_terminal = lark_names_terminal(word, n);
    map_add(&x->names, word, n, x->n_defs);
    return x->n_defs++;
}

/* --- literals --- */

static uint32_t lark_hex(struct lark *x, int digits)
{
    uint32_t cp = 0;
    for (int i = 0; i < digits; i++, x->at++) {
        char c = lark_peek(x);
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            lark_fail(x, ERR_INVALID, "not enough hexadecimal digits");
            return 0;
        }
        cp = cp << 4 | (uint32_t)d;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        lark_fail(x, ERR_INVALID, "not a code point");
    return cp > 0x10FFFF ? 0 : cp;
}

/* Behind a backslash of a string. */
static void lark_escape(struct lark *x, struct buf *out)
{
    static const char letters[] = "nftr\"\\", values[] = "\n\f\t\r\"\\";
    char c = lark_peek(x);
    const char *p = c ? strchr(letters, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
        x->at++;
        buf_add_code_point(out, lark_hex(x, digits));
    } else if (p) {
        x->at++;
        buf_add_char(out, values[p - letters]);
    } else { /* the backslash stands for itself */
        buf_add_char(out, '\\');
    }
}

/* "..." with its escapes decoded. */
static void lark_string(struct lark *x, struct buf *out)
{
    x->at++;
    while (!x->b->code && lark_peek(x) != '"') {
        if (x->at >= x->n || x->text[x->at] == '\n')
            lark_fail(x, ERR_INVALID, "a string that is not closed");
        else if (x->text[x->at++] == '\\')
            lark_escape(x, out);
        else
            buf_add_char(out, x->text[x->at - 1]);
    }
    x->at++;
    if (!x->b->code && !utf8_is_valid(out->data ? out->data : "", out->len))
        lark_fail(x, ERR_INVALID, "a string that is not UTF-8");
}

/* The text in any case: as a regular expression. */
static const struct expr *lark_any_case(struct lark *x, const struct buf *text)
{
    struct buf pattern;
    char where[40];
    buf_init(&pattern, MEM_CAT_GRAMMAR, 2 * x->n + 64);
    buf_add_str(&pattern, "(?i)");
    for (size_t i = 0; i < text->len; i++) {
        if (strchr("\\.+*?()[]{}|^$/-", text->data[i]) && text->data[i])
            buf_add_char(&pattern, '\\');
        buf_add_char(&pattern, text->data[i]);
    }
    snprintf(where, sizeof(where), "grammar, line %d", lark_line(x));
    const struct expr *e = regex_whole(x->b, pattern.data, pattern.len, true, where);
    buf_release(&pattern);
    return e;
}

static const struct expr *lark_range(struct lark *x, const struct buf *from)
{
    struct buf to;
    uint32_t lo = 0, hi = 0;
    buf_init(&to, MEM_CAT_GRAMMAR, x->n + 16);
    lark_blanks(x, false);
    if (lark_peek(x) != '"')
        lark_fail(x, ERR_INVALID, "a range ends with a string");
    else
        lark_string(x, &to);
    size_t n = from->len > 0 ? utf8_decode(from->data, from->len, &lo) : 0;
    size_t k = to.len > 0 ? utf8_decode(to.data, to.len, &hi) : 0;
    if (!x->b->code && (n == 0 || k == 0 || n != from->len || k != to.len || lo > hi))
        lark_fail(x, ERR_INVALID, "a range is of two single characters, the lower one first");
    buf_release(&to);
    struct expr_range r = { lo, hi };
    return x->b->code ? expr_none() : expr_class(x->b, &r, 1, true);
}

static const struct expr *lark_text(struct lark *x)
{
    struct buf text;
    const struct expr *e;
    buf_init(&text, MEM_CAT_GRAMMAR, 4 * x->n + 16);
    lark_string(x, &text);
    if (x->b->code) {
        e = expr_none();
    } else if (lark_take(x, "..")) {
        e = lark_range(x, &text);
    } else if (lark_peek(x) == 'i' && !(x->at + 1 < x->n && lark_is_letter(x->text[x->at + 1]))) {
        x->at++;
        e = lark_any_case(x, &text);
    } else {
        e = json_text_plain(x->b, text.data ? text.data : "", text.len);
    }
    buf_release(&text);
    return e;
}

/* /.../ with its flags. */
static const struct expr *lark_regex(struct lark *x)
{
    struct buf pattern;
    char where[40], flags[8];
    size_t from = ++x->at, n_flags = 0;
    while (x->at < x->n && x->text[x->at] != '/' && x->text[x->at] != '\n')
        x->at += x->text[x->at] == '\\' ? 2 : 1;
    if (x->at >= x->n || x->text[x->at] != '/')
        return lark_fail(x, ERR_INVALID, "a regular expression that is not closed");
    size_t to = x->at++;
    for (char c; (c = lark_peek(x)) && strchr("imslux", c); x->at++) {
        if (strchr("mlx", c))
            return lark_fail(x, ERR_UNSUPPORTED,
                             "the flags m, l and x of regular expressions are not supported");
        if (c != 'u' && n_flags + 1 < sizeof(flags))
            flags[n_flags++] = c;
    }
    buf_init(&pattern, MEM_CAT_GRAMMAR, 2 * x->n + 64);
    if (n_flags > 0)
        buf_printf(&pattern, "(?%.*s)", (int)n_flags, flags);
    buf_add(&pattern, x->text + from, to - from);
    snprintf(where, sizeof(where), "grammar, line %d", lark_line(x));
    const struct expr *e =
        regex_whole(x->b, pattern.data ? pattern.data : "", pattern.len, true, where);
    buf_release(&pattern);
    return e;
}

/* --- expressions --- */

/* A terminal in a rule: what is ignored may follow. */
static const struct expr *lark_terminal(struct lark *x, const struct expr *e)
{
    if (x->in_terminal || x->b->code)
        return e;
    if (!x->gap) {
        int32_t rule = build_new_rule(x->b, "what is ignored");
        x->gap = expr_rule(x->b, rule);
    }
    return expr_seq2(x->b, e, x->gap);
}

static const struct expr *lark_group(struct lark *x, char close)
{
    if (++x->depth > LARK_DEPTH)
        return lark_fail(x, ERR_FULL, "groups are nested too deep");
    x->at++;
    const struct expr *e = lark_alternatives(x, NULL);
    lark_blanks(x, true);
    if (!x->b->code && lark_peek(x) != close)
        return lark_fail(x, ERR_INVALID, "a group that is not closed");
    x->at++;
    x->depth--;
    return close == ']' ? expr_optional(x->b, e) : e;
}

static const struct expr *lark_name(struct lark *x, int32_t *leads)
{
    const char *word;
    size_t n = lark_word(x, &word);
    bool is_terminal = lark_names_terminal(word, n);
    if (x->in_terminal && !is_terminal)
        return lark_fail(x, ERR_INVALID, "a terminal cannot hold a rule");
    if (lark_peek(x) == '{' && !(x->at + 1 < x->n && strchr("0123456789,", x->text[x->at + 1])))
        return lark_fail(x, ERR_UNSUPPORTED, "templates are not supported");
    int32_t def = lark_def(x, word, n);
    const struct expr *e = expr_rule(x->b, x->defs[def].rule);
    if (!is_terminal)
        *leads = def;
    return is_terminal ? lark_terminal(x, e) : e;
}

/* One item, or NULL: none begins here. *leads: its definition, if it is a rule's name. */
static const struct expr *lark_item(struct lark *x, int32_t *leads)
{
    char c = lark_peek(x);
    *leads = -1;
    if (c == '"')
        return lark_terminal(x, lark_text(x));
    if (c == '/')
        return lark_terminal(x, lark_regex(x));
    if (c == '(')
        return lark_group(x, ')');
    if (c == '[')
        return lark_group(x, ']');
    if (lark_is_letter(c))
        return lark_name(x, leads);
    if (c == '<' || c == '@')
        return lark_fail(x, ERR_UNSUPPORTED, "tokens and other grammars are not supported");
    if (c == '%')
        return lark_fail(x, ERR_UNSUPPORTED, "a statement inside a rule is not supported");
    return NULL;
}

static bool lark_number(struct lark *x, int64_t *out)
{
    size_t from = x->at;
    *out = 0;
    for (; lark_peek(x) >= '0' && lark_peek(x) <= '9'; x->at++)
        if (*out <= LARK_REPEAT)
            *out = *out * 10 + (lark_peek(x) - '0');
    return x->at > from;
}

/* ~n, ~n..m, {n}, {n,m}; the sign has been read. */
static bool lark_bounds(struct lark *x, bool is_tilde, int64_t *min, int64_t *max)
{
    lark_blanks(x, false);
    bool has_min = lark_number(x, min), has_max = false, is_open = false;
    *max = *min;
    lark_blanks(x, false);
    if (lark_take(x, is_tilde ? ".." : ",")) {
        lark_blanks(x, false);
        has_max = lark_number(x, max);
        is_open = !has_max && !is_tilde;
        lark_blanks(x, false);
    }
    *max = is_open ? EXPR_INF : *max;
    if ((!is_tilde && !lark_take(x, "}")) || (!has_min && (is_tilde || !has_max)) || *min > *max ||
        (is_tilde && !has_max && *max != *min)) {
        lark_fail(x, ERR_INVALID, "a repetition is ~n or ~n..m, n not over m");
        return false;
    }
    if (*min > LARK_REPEAT || (*max > LARK_REPEAT && *max != EXPR_INF)) {
        lark_fail(x, ERR_FULL, "a repetition of more than 100000 times");
        return false;
    }
    return true;
}

static const struct expr *lark_repeated(struct lark *x, const struct expr *e, int32_t *leads)
{
    while (!x->b->code) {
        size_t from = x->at;
        lark_blanks(x, x->depth > 0);
        char c = lark_peek(x);
        int64_t min = c == '+', max = c == '?' ? 1 : EXPR_INF;
        if (c == '~' || c == '{') {
            x->at++;
            if (!lark_bounds(x, c == '~', &min, &max))
                return e;
        } else if (c == '*' || c == '+' || c == '?') {
            x->at++;
        } else {
            x->at = from;
            return e;
        }
        e = expr_repeat(x->b, e, min, max);
        *leads = -1;
    }
    return e;
}

/* Parts up to what ends them, and the alias behind them. */
static void lark_parts(struct lark *x, struct expr_list *parts, int32_t *leads)
{
    const struct expr *e;
    const char *word;
    int32_t first;
    *leads = -1;
    lark_blanks(x, x->depth > 0);
    while (!x->b->code && (e = lark_item(x, &first))) {
        e = lark_repeated(x, e, &first);
        if (parts->n == 0)
            *leads = first;
        expr_list_add(x->b, parts, e);
        lark_blanks(x, x->depth > 0);
    }
    if (lark_take(x, "->")) {
        lark_blanks(x, false);
        if (lark_word(x, &word) == 0)
            lark_fail(x, ERR_INVALID, "an alias is a name");
        lark_blanks(x, x->depth > 0);
    }
}

/* Is what follows, on this line or the next, one more alternative? */
static bool lark_goes_on(struct lark *x)
{
    size_t from = x->at;
    lark_blanks(x, true);
    if (lark_take(x, "|"))
        return true;
    x->at = from;
    return false;
}

/* into: the alternatives of a rule, each by itself; NULL: they are returned as one. */
static const struct expr *lark_alternatives(struct lark *x, struct lark_def *into)
{
    struct expr_list all = { 0 };
    do {
        struct expr_list parts = { 0 };
        struct lark_alt alt;
        int32_t def = into ? (int32_t)(into - x->defs) : -1;
        lark_parts(x, &parts, &alt.leads);
        into = def >= 0 ? &x->defs[def] : NULL; /* they may have moved */
        if (x->b->code)
            return expr_none();
        alt.parts = parts.items;
        alt.n = parts.n;
        if (into)
            lark_add_alt(x->b, into, &alt);
        else
            expr_list_add(x->b, &all, expr_seq(x->b, parts.items, parts.n));
    } while (lark_goes_on(x));
    return into ? expr_none() : expr_alt(x->b, all.items, all.n);
}

/* --- statements --- */

/* Terminals that grammars import: those of Lark's own library. */
static const struct {
    const char *name, *regex;
} lark_common[] = {
    { "DIGIT", "[0-9]" },
    { "HEXDIGIT", "[0-9a-fA-F]" },
    { "INT", "[0-9]+" },
    { "SIGNED_INT", "[+-]?[0-9]+" },
    { "DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+" },
    { "FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
    { "SIGNED_FLOAT",
      "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
    { "NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
    { "SIGNED_NUMBER",
      "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
    { "ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\"" },
    { "LCASE_LETTER", "[a-z]" },
    { "UCASE_LETTER", "[A-Z]" },
    { "LETTER", "[a-zA-Z]" },
    { "WORD", "[a-zA-Z]+" },
    { "CNAME", "[_a-zA-Z][_a-zA-Z0-9]*" },
    { "WS_INLINE", "[ \\t]+" },
    { "WS", "[ \\t\\f\\r\\n]+" },
    { "CR", "\\r" },
    { "LF", "\\n" },
    { "NEWLINE", "(\\r?\\n)+" },
    { "SH_COMMENT", "#[^\\n]*" },
    { "CPP_COMMENT", "//[^\\n]*" },
    { "C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/" },
    { "SQL_COMMENT", "--[^\\n]*" },
};

/* From here on the text of the definition: false if it is there already. */
static bool lark_begin_def(struct lark *x, int32_t def)
{
    struct lark_def *d = &x->defs[def];
    char *name = build_alloc(x->b, LARK_NAME + 40);
    if (d->is_defined) {
        lark_fail(x, ERR_INVALID, "a name that is defined twice");
        return false;
    }
    d->is_defined = true;
    d->line = lark_line(x);
    snprintf(name, LARK_NAME + 40, "grammar, line %d: %.*s", d->line,
             (int)(d->n_name < LARK_NAME ? d->n_name : LARK_NAME), d->name);
    x->b->rules[d->rule].name = name;
    return !x->b->code;
}

static void lark_import_one(struct lark *x, const char *name, size_t n, const char *as, size_t n_as)
{
    size_t i = 0;
    while (i < ARRAY_LEN(lark_common) &&
           (strlen(lark_common[i].name) != n || memcmp(lark_common[i].name, name, n) != 0))
        i++;
    if (i == ARRAY_LEN(lark_common)) {
        lark_fail(x, ERR_UNSUPPORTED,
                  "%import has no such terminal: only those of `common` are here");
        return;
    }
    int32_t def = lark_def(x, as, n_as);
    if (!lark_begin_def(x, def))
        return;
    const char *regex = lark_common[i].regex;
    struct lark_alt alt = { .n = 1, .leads = -1 };
    alt.parts = build_alloc(x->b, sizeof(*alt.parts));
    alt.parts[0] = regex_whole(x->b, regex, strlen(regex), true, "common");
    lark_add_alt(x->b, &x->defs[def], &alt);
}

/* %import common.NAME [-> NAME], or common (NAME, ...). */
static void lark_import(struct lark *x)
{
    const char *name, *as;
    lark_blanks(x, false);
    if (!lark_take(x, "common")) {
        lark_fail(x, ERR_UNSUPPORTED, "%import is supported from `common` only");
        return;
    }
    lark_blanks(x, false);
    bool is_list = lark_take(x, "(");
    if (!is_list && !lark_take(x, ".")) {
        lark_fail(x, ERR_INVALID, "%import common.NAME, or common (NAME, ...)");
        return;
    }
    do {
        lark_blanks(x, is_list);
        size_t n = lark_word(x, &name), n_as = n;
        as = name;
        lark_blanks(x, is_list);
        if (lark_take(x, "->")) {
            lark_blanks(x, false);
            n_as = lark_word(x, &as);
        }
        if (n == 0 || n_as == 0 || !lark_names_terminal(as, n_as))
            lark_fail(x, ERR_INVALID, "%import needs the name of a terminal");
        else
            lark_import_one(x, name, n, as, n_as);
        lark_blanks(x, is_list);
    } while (!x->b->code && is_list && lark_take(x, ","));
    if (is_list && !lark_take(x, ")"))
        lark_fail(x, ERR_INVALID, "a list that is not closed");
}

static void lark_statement(struct lark *x)
{
    x->at++;
    if (lark_take(x, "ignore")) {
        x->in_terminal = true;
        expr_list_add(x->b, &x->ignored, lark_alternatives(x, NULL));
    } else if (lark_take(x, "import")) {
        lark_import(x);
    } else {
        lark_fail(x, ERR_UNSUPPORTED, "a statement that is neither %ignore nor %import");
    }
}

static void lark_definition(struct lark *x)
{
    const char *word;
    while (lark_peek(x) == '?' || lark_peek(x) == '!')
        x->at++;
    size_t n = lark_word(x, &word);
    if (n == 0) {
        lark_fail(x, ERR_INVALID, "a rule or terminal begins with its name");
        return;
    }
    int32_t def = lark_def(x, word, n);
    int64_t priority;
    lark_blanks(x, false);
    if (lark_take(x, ".")) {
        lark_take(x, "-");
        if (!lark_number(x, &priority))
            lark_fail(x, ERR_INVALID, "a priority is a number");
        lark_blanks(x, false);
    }
    if (lark_peek(x) == '{' || lark_peek(x) == '[') {
        lark_fail(x, ERR_UNSUPPORTED, "templates and attributes of rules are not supported");
        return;
    }
    if (!lark_take(x, ":")) {
        lark_fail(x, ERR_INVALID, "':' is missing behind a name");
        return;
    }
    if (!lark_begin_def(x, def))
        return;
    x->in_terminal = x->defs[def].is_terminal;
    lark_alternatives(x, &x->defs[def]);
}

static void lark_line_end(struct lark *x)
{
    lark_blanks(x, false);
    if (!x->b->code && x->at < x->n && lark_peek(x) != '\n')
        lark_fail(x, ERR_INVALID, "a character that is not expected here");
}

/* --- the whole --- */

static void lark_set_rules(struct lark *x)
{
    struct build *b = x->b;
    for (int32_t i = 0; i < x->n_defs && !b->code; i++)
        if (!x->defs[i].is_defined)
            build_fail(b, ERR_INVALID, "grammar, line %d: '%.*s' is not defined", x->defs[i].line,
                       (int)(x->defs[i].n_name < LARK_NAME ? x->defs[i].n_name : LARK_NAME),
                       x->defs[i].name);
    if (!b->code)
        lark_turn(b, x->defs, x->n_defs);
    for (int32_t i = 0; i < x->n_defs && !b->code; i++) {
        struct expr_list all = { 0 };
        for (int32_t k = 0; k < x->defs[i].n_alts; k++)
            expr_list_add(b, &all, expr_seq(b, x->defs[i].alts[k].parts, x->defs[i].alts[k].n));
        build_set_rule(b, x->defs[i].rule, expr_alt(b, all.items, all.n));
    }
}

const struct expr *lark_read(struct build *b, const char *text, size_t n)
{
    struct lark x = { .b = b, .text = text, .n = n };
    map_init(&x.names, MEM_CAT_GRAMMAR);
    lark_blanks(&x, true);
    while (!build_is_late(b) && x.at < x.n) {
        x.in_terminal = false;
        if (lark_peek(&x) == '%')
            lark_statement(&x);
        else
            lark_definition(&x);
        lark_line_end(&x);
        lark_blanks(&x, true);
    }
    int32_t start = map_get(&x.names, "start", 5);
    map_release(&x.names);
    if (!b->code && (start < 0 || !x.defs[start].is_defined))
        return build_fail(b, ERR_INVALID, "grammar: there is no rule named start");
    lark_set_rules(&x);
    if (b->code)
        return expr_none();
    const struct expr *gap = expr_repeat(b, expr_alt(b, x.ignored.items, x.ignored.n), 0, EXPR_INF);
    if (x.gap)
        build_set_rule(b, x.gap->rule, gap);
    return expr_seq2(b, gap, expr_rule(b, x.defs[start].rule));
}
