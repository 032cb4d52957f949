/* gbnf.c - llama.cpp's notation for grammars (GBNF): rules NAME ::= ..., text in quotes, classes in brackets, groups, * + ? {m,n}. */
#include "base/map.h"
#include "base/utf8.h"
#include "grammar/grammar_int.h"

#include <string.h>

#define GBNF_DEPTH  200
#define GBNF_REPEAT 100000

struct gbnf {
    struct build *b;
    const char *text;
    size_t n, at;
    struct map names; /* of rules */
    int depth;
};

static const struct expr *gbnf_alternatives(struct gbnf *g, bool is_nested);

static const struct expr *gbnf_fail(struct gbnf *g, enum err_code code, const char *what)
{
    int line = 1;
    for (size_t i = 0; i < g->at && i < g->n; i++)
        line += g->text[i] == '\n';
    return build_fail(g->b, code, "grammar, line %d: %s", line, what);
}

static char gbnf_peek(const struct gbnf *g)
{
    return g->at < g->n ? g->text[g->at] : '\0';
}

/* Blanks and comments; line ends too if they do not end the rule. */
static void gbnf_blanks(struct gbnf *g, bool takes_lines)
{
    for (; g->at < g->n; g->at++) {
        char c = g->text[g->at];
        if (c == '#') {
            while (g->at + 1 < g->n && g->text[g->at + 1] != '\n')
                g->at++;
        } else if (c != ' ' && c != '\t' && c != '\r' && (c != '\n' || !takes_lines)) {
            return;
        }
    }
}

static bool gbnf_is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t gbnf_word(struct gbnf *g, const char **word)
{
    size_t from = g->at;
    while (g->at < g->n && gbnf_is_word(g->text[g->at]))
        g->at++;
    *word = g->text + from;
    return g->at - from;
}

static int32_t gbnf_rule(struct gbnf *g, const char *word, size_t n)
{
    int32_t rule = map_get(&g->names, word, n);
    if (rule >= 0)
        return rule;
    char *name = build_alloc(g->b, n + 1);
    memcpy(name, word, n);
    rule = build_new_rule(g->b, name);
    map_add(&g->names, name, n, rule);
    return rule;
}

/* A character of a text or class, escapes decoded. */
static uint32_t gbnf_char(struct gbnf *g)
{
    static const char letters[] = "nrt\"\\[]'-", values[] = "\n\r\t\"\\[]'-";
    uint32_t cp = 0;
    if (gbnf_peek(g) != '\\') {
        size_t n = g->at < g->n ? utf8_decode(g->text + g->at, g->n - g->at, &cp) : 0;
        if (n == 0)
            gbnf_fail(g, ERR_INVALID, "not UTF-8, or a text that is not closed");
        g->at += n ? n : 1;
        return cp;
    }
    g->at++;
    char c = gbnf_peek(g);
    const char *p = c ? strchr(letters, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    g->at++;
    if (p)
        return (uint8_t)values[p - letters];
    if (digits == 0)
        gbnf_fail(g, ERR_INVALID, "an escape that is not known");
    for (int i = 0; i < digits; i++, g->at++) {
        c = gbnf_peek(g);
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            gbnf_fail(g, ERR_INVALID, "not enough hexadecimal digits");
            return 0;
        }
        cp = cp << 4 | (uint32_t)d;
    }
    if (cp > 0x10FFFF)
        gbnf_fail(g, ERR_INVALID, "not a code point");
    return cp;
}

static const struct expr *gbnf_text(struct gbnf *g)
{
    struct buf out;
    buf_init(&out, MEM_CAT_GRAMMAR, g->n + 4);
    g->at++;
    while (!g->b->code && gbnf_peek(g) != '"') {
        if (g->at >= g->n)
            gbnf_fail(g, ERR_INVALID, "a text that is not closed");
        else
            buf_add_code_point(&out, gbnf_char(g));
    }
    g->at++;
    const struct expr *e = expr_bytes(g->b, out.data, out.len);
    buf_release(&out);
    return e;
}

static const struct expr *gbnf_class(struct gbnf *g)
{
    struct expr_range *r, *out;
    int32_t n = 0, cap = 0;
    g->at++;
    bool is_not = gbnf_peek(g) == '^';
    g->at += is_not;
    for (size_t i = g->at; i < g->n && g->text[i] != ']'; i += g->text[i] == '\\' ? 2 : 1)
        cap++;
    r = build_alloc(g->b, (size_t)(cap + 2) * sizeof(*r));
    while (!g->b->code && gbnf_peek(g) != ']') {
        if (g->at >= g->n || n > cap)
            return gbnf_fail(g, ERR_INVALID, "a class that is not closed");
        uint32_t lo = gbnf_char(g), hi = lo;
        if (gbnf_peek(g) == '-' && g->at + 1 < g->n && g->text[g->at + 1] != ']') {
            g->at++;
            hi = gbnf_char(g);
        }
        if (hi < lo)
            return gbnf_fail(g, ERR_INVALID, "a range that ends before it begins");
        r[n++] = (struct expr_range){ lo, hi };
    }
    g->at++;
    if (!is_not)
        return expr_class(g->b, r, n, false);
    n = expr_ranges_join(r, n);
    out = build_alloc(g->b, (size_t)(n + 2) * sizeof(*out));
    n = expr_ranges_invert(r, n, out);
    return expr_class(g->b, out, n, false);
}

/* --- repetition and sequences --- */

static bool gbnf_number(struct gbnf *g, int64_t *out)
{
    size_t from = g->at;
    *out = 0;
    for (; gbnf_peek(g) >= '0' && gbnf_peek(g) <= '9'; g->at++)
        if (*out <= GBNF_REPEAT)
            *out = *out * 10 + (gbnf_peek(g) - '0');
    return g->at > from;
}

static bool gbnf_bounds(struct gbnf *g, int64_t *min, int64_t *max)
{
    g->at++;
    gbnf_blanks(g, true);
    bool has_min = gbnf_number(g, min), has_max = false;
    *max = *min;
    gbnf_blanks(g, true);
    if (gbnf_peek(g) == ',') {
        g->at++;
        gbnf_blanks(g, true);
        has_max = gbnf_number(g, max);
        if (!has_max)
            *max = EXPR_INF;
        gbnf_blanks(g, true);
    }
    if (gbnf_peek(g) != '}' || (!has_min && !has_max) || *min > *max) {
        gbnf_fail(g, ERR_INVALID, "a repetition is {m}, {m,}, {,n} or {m,n}");
        return false;
    }
    if (*min > GBNF_REPEAT || (*max > GBNF_REPEAT && *max != EXPR_INF)) {
        gbnf_fail(g, ERR_FULL, "a repetition of more than 100000 times");
        return false;
    }
    g->at++;
    return true;
}

static const struct expr *gbnf_repeated(struct gbnf *g, const struct expr *x, bool is_nested)
{
    while (!g->b->code) {
        size_t from = g->at;
        gbnf_blanks(g, is_nested);
        char c = gbnf_peek(g);
        int64_t min = c == '+', max = c == '?' ? 1 : EXPR_INF;
        if (c == '{') {
            if (!gbnf_bounds(g, &min, &max))
                return x;
        } else if (c == '*' || c == '+' || c == '?') {
            g->at++;
        } else {
            g->at = from;
            return x;
        }
        x = expr_repeat(g->b, x, min, max);
    }
    return x;
}

static const struct expr *gbnf_group(struct gbnf *g)
{
    if (++g->depth > GBNF_DEPTH)
        return gbnf_fail(g, ERR_FULL, "groups are nested too deep");
    g->at++;
    const struct expr *e = gbnf_alternatives(g, true);
    gbnf_blanks(g, true);
    if (gbnf_peek(g) != ')')
        return gbnf_fail(g, ERR_INVALID, "a group is not closed");
    g->at++;
    g->depth--;
    return e;
}

/* One item, or NULL: none begins here. */
static const struct expr *gbnf_item(struct gbnf *g)
{
    static const struct expr_range all = { 0, 0x10FFFF };
    char c = gbnf_peek(g);
    const char *word;
    if (c == '"')
        return gbnf_text(g);
    if (c == '[')
        return gbnf_class(g);
    if (c == '(')
        return gbnf_group(g);
    if (c == '.') {
        g->at++;
        return expr_class(g->b, &all, 1, false);
    }
    if (c == '<' || c == '!')
        return gbnf_fail(g, ERR_UNSUPPORTED, "tokens (<...>) are not supported, only text");
    if (!gbnf_is_word(c))
        return NULL;
    size_t n = gbnf_word(g, &word);
    return expr_rule(g->b, gbnf_rule(g, word, n));
}

static const struct expr *gbnf_alternatives(struct gbnf *g, bool is_nested)
{
    struct expr_list all = { 0 }, parts = { 0 };
    while (!g->b->code) {
        parts.n = 0;
        gbnf_blanks(g, true);
        const struct expr *x;
        while (!g->b->code && (x = gbnf_item(g))) {
            expr_list_add(g->b, &parts, gbnf_repeated(g, x, is_nested));
            gbnf_blanks(g, is_nested);
        }
        expr_list_add(g->b, &all, expr_seq(g->b, parts.items, parts.n));
        gbnf_blanks(g, is_nested);
        if (gbnf_peek(g) != '|')
            break;
        g->at++;
    }
    return g->b->code ? expr_none() : expr_alt(g->b, all.items, all.n);
}

static void gbnf_definition(struct gbnf *g)
{
    const char *word;
    size_t n = gbnf_word(g, &word);
    if (n == 0) {
        gbnf_fail(g, ERR_INVALID, "a rule begins with its name");
        return;
    }
    int32_t rule = gbnf_rule(g, word, n);
    gbnf_blanks(g, false);
    if (g->at + 3 > g->n || memcmp(g->text + g->at, "::=", 3) != 0) {
        gbnf_fail(g, ERR_INVALID, "::= is missing behind a rule's name");
        return;
    }
    g->at += 3;
    const struct expr *e = gbnf_alternatives(g, false);
    if (g->b->code)
        return;
    if (gbnf_peek(g) != '\n' && g->at < g->n) {
        gbnf_fail(g, ERR_INVALID, "a character that is not expected here");
        return;
    }
    build_set_rule(g->b, rule, e); /* of several of one name the last counts */
}

const struct expr *gbnf_read(struct build *b, const char *text, size_t n)
{
    struct gbnf g = { .b = b, .text = text, .n = n };
    map_init(&g.names, MEM_CAT_GRAMMAR);
    gbnf_blanks(&g, true);
    while (!b->code && g.at < g.n) {
        gbnf_definition(&g);
        gbnf_blanks(&g, true);
    }
    int32_t root = map_get(&g.names, "root", 4);
    map_release(&g.names);
    if (!b->code && (root < 0 || !b->rules[root].e))
        return build_fail(b, ERR_INVALID, "grammar: there is no rule named root");
    return b->code ? expr_none() : expr_rule(b, root);
}
