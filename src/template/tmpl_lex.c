/* tmpl_lex.c - template text to tokens, with jinja2's rules for white space (trim_blocks and lstrip_blocks on).
 *
 * Text between tags is cut here: "-" strips all white space on its side, a tag without "+" loses the blanks that stand alone before
 * it on its line, and the newline right after a block or comment goes away. Inside a tag an end mark counts only where brackets are
 * balanced, so that "}}" may close two dicts. */
#include "template/template_ast.h"

#include <stdlib.h>
#include <string.h>

/* Brackets open at once. jinja2 (Python) gives up at 200. */
#define LEX_BRACKETS_MAX 200

struct lexer {
    const char *name;
    const char *s; /* newlines normalised to \n, one at the end dropped */
    size_t n, at;
    int line;
    bool is_line_start; /* the match before ended with a newline */
    char brackets[LEX_BRACKETS_MAX];
    int n_brackets;
    struct arena *arena;
    struct token_array *out;
    struct err *err;
};

static enum err_code lex_fail(struct lexer *x, const char *what)
{
    return err_set(x->err, ERR_INVALID, "%s line %d: %s", x->name, x->line, what);
}

static enum err_code lex_full(struct lexer *x)
{
    return err_set(x->err, ERR_FULL, "%s: template is too large", x->name);
}

static enum err_code lex_add(struct lexer *x, enum token_kind kind, const char *s, size_t n,
                             struct token **out)
{
    struct token_array *a = x->out;
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 256;
        struct token *at = arena_alloc(x->arena, cap * sizeof(*at));
        if (!at)
            return lex_full(x);
        if (a->n)
            memcpy(at, a->at, a->n * sizeof(*at));
        a->at = at;
        a->cap = cap;
    }
    struct token *t = &a->at[a->n++];
    *t = (struct token){ .kind = (uint8_t)kind, .line = x->line, .s = s, .n = n };
    if (out)
        *out = t;
    return ERR_OK;
}

static void lex_skip(struct lexer *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->line += x->s[x->at] == '\n';
}

static size_t lex_space_at(const struct lexer *x, size_t at)
{
    uint32_t cp;
    if (at >= x->n)
        return 0;
    size_t len = utf8_decode(x->s + at, x->n - at, &cp);
    return len && uni_is_space(cp) ? len : 0;
}

static size_t lex_skip_space(const struct lexer *x, size_t at)
{
    for (size_t len; (len = lex_space_at(x, at)) > 0;)
        at += len;
    return at;
}

static bool lex_is(const struct lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);
    return at <= x->n && x->n - at >= n && memcmp(x->s + at, text, n) == 0;
}

/* Start of the trailing white space of [p0, p1). */
static size_t lex_strip_right(const struct lexer *x, size_t p0, size_t p1)
{
    while (p1 > p0) {
        size_t back = 1;
        uint32_t cp;
        while (back < 4 && p1 - back > p0 && ((unsigned char)x->s[p1 - back] & 0xC0) == 0x80)
            back++;
        if (!utf8_decode(x->s + p1 - back, back, &cp) || !uni_is_space(cp))
            break;
        p1 -= back;
    }
    return p1;
}

/* Emit the text [p0, p1) before a tag with this sign ('-', '+' or another char). */
static enum err_code lex_data(struct lexer *x, size_t p0, size_t p1, char sign, bool is_variable)
{
    size_t end = p1;
    if (sign == '-') {
        end = lex_strip_right(x, p0, p1);
    } else if (sign != '+' && !is_variable) {
        size_t line = p1;
        while (line > p0 && x->s[line - 1] != '\n')
            line--;
        if ((line > p0 || x->is_line_start) && lex_strip_right(x, line, p1) == line)
            end = line;
    }
    if (end > p0)
        TRY(lex_add(x, TOK_DATA, x->s + p0, end - p0, NULL));
    return ERR_OK;
}

/* Where the end mark ("%}", "#}") with its sign and following white space ends; 0 if none stands at `at`. */
static size_t lex_close(const struct lexer *x, size_t at, const char *mark, bool has_plus,
                        bool has_trim)
{
    if (has_plus && lex_is(x, at, "+") && lex_is(x, at + 1, mark))
        return at + 3;
    if (lex_is(x, at, "-") && lex_is(x, at + 1, mark))
        return lex_skip_space(x, at + 3);
    if (!lex_is(x, at, mark))
        return 0;
    return at + 2 + (has_trim && lex_is(x, at + 2, "\n"));
}

static char lex_sign(const struct lexer *x, size_t at)
{
    return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : ' ';
}

static void lex_goto(struct lexer *x, size_t to)
{
    x->is_line_start = to > 0 && x->s[to - 1] == '\n';
    lex_skip(x, to);
}

static enum err_code lex_comment(struct lexer *x, size_t at)
{
    for (; at < x->n; at++) {
        size_t end = lex_close(x, at, "#}", true, true);
        if (end) {
            lex_goto(x, end);
            return ERR_OK;
        }
    }
    return lex_fail(x, "Missing end of comment tag");
}

/* End of a "{% raw %}" that starts at `at`, or 0. */
static size_t lex_raw_open(const struct lexer *x, size_t at)
{
    size_t i = at + 2;
    i = lex_skip_space(x, i + (lex_sign(x, i) != ' '));
    if (!lex_is(x, i, "raw"))
        return 0;
    return lex_close(x, lex_skip_space(x, i + 3), "%}", false, false);
}

static enum err_code lex_raw(struct lexer *x, size_t at)
{
    size_t from = at;
    for (; at < x->n; at++) {
        if (!lex_is(x, at, "{%"))
            continue;
        char sign = lex_sign(x, at + 2);
        size_t i = lex_skip_space(x, at + 2 + (sign != ' '));
        if (!lex_is(x, i, "endraw"))
            continue;
        size_t end = lex_close(x, lex_skip_space(x, i + 6), "%}", true, true);
        if (!end)
            continue;
        TRY(lex_data(x, from, at, sign, false));
        lex_goto(x, end);
        return ERR_OK;
    }
    return lex_fail(x, "Missing end of raw directive");
}

/* --- inside tags --- */

static bool lex_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* End of "(\d+_)*\d+" from at; at itself if there is none. */
static size_t lex_digits(const struct lexer *x, size_t at)
{
    size_t end = at;
    while (at < x->n && lex_is_digit(x->s[at])) {
        end = ++at;
        if (at < x->n && x->s[at] == '_')
            at++;
    }
    return end;
}

/* End of a float that starts at at, or 0. */
static size_t lex_float_end(const struct lexer *x, size_t at)
{
    size_t i = lex_digits(x, at), end = 0;
    if (i == at || (at > 0 && x->s[at - 1] == '.'))
        return 0;
    if (lex_is(x, i, ".") && lex_digits(x, i + 1) > i + 1)
        end = i = lex_digits(x, i + 1);
    if (i < x->n && (x->s[i] | 32) == 'e') {
        size_t j = i + 1;
        j += j < x->n && (x->s[j] == '+' || x->s[j] == '-');
        if (lex_digits(x, j) > j)
            end = lex_digits(x, j);
    }
    return end;
}

/* Digits of `base` with underscores between. */
static size_t lex_base_end(const struct lexer *x, size_t at, int base)
{
    size_t end = at;
    for (;;) {
        size_t i = at + (at < x->n && x->s[at] == '_');
        if (i >= x->n)
            return end;
        char c = x->s[i];
        int d = lex_is_digit(c)                      ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : 99;
        if (d >= base)
            return end;
        at = end = i + 1;
    }
}

static enum err_code lex_number(struct lexer *x)
{
    size_t at = x->at, end = lex_float_end(x, at);
    bool is_float = end > 0;
    if (!is_float && x->s[at] == '0' && at + 1 < x->n) {
        char c = (char)(x->s[at + 1] | 32);
        int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (base && lex_base_end(x, at + 2, base) > at + 2)
            end = lex_base_end(x, at + 2, base);
        else
            end = lex_base_end(x, at + 1, 1); /* zeros */
    } else if (!is_float) {
        end = lex_base_end(x, at, 10);
    }
    char *text = arena_alloc(x->arena, end - at + 1);
    if (!text)
        return lex_full(x);
    size_t n = 0;
    for (size_t i = at; i < end; i++)
        if (x->s[i] != '_')
            text[n++] = x->s[i];
    struct token *t;
    TRY(lex_add(x, is_float ? TOK_FLOAT : TOK_INTEGER, text, n, &t));
    if (is_float)
        t->f = strtod(text, NULL);
    lex_goto(x, end);
    return ERR_OK;
}

static int lex_hex(const char *s, size_t n, size_t want, uint32_t *cp)
{
    *cp = 0;
    if (n < want)
        return 0;
    for (size_t i = 0; i < want; i++) {
        char c = s[i];
        int d = lex_is_digit(c)                      ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return 0;
        *cp = *cp * 16 + (uint32_t)d;
    }
    return 1;
}

/* One backslash escape at s[0..n), s[0] == '\\'. Returns the bytes read, 0 for a bad one. */
static size_t lex_escape(const char *s, size_t n, char *out, size_t *n_out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    uint32_t cp = 0;
    const char *known = n > 1 && s[1] ? strchr(from, s[1]) : NULL;
    *n_out = 0;
    if (n < 2)
        return 0;
    if (known) {
        out[(*n_out)++] = to[known - from];
        return 2;
    }
    if (s[1] == '\n')
        return 2;
    if (s[1] >= '0' && s[1] <= '7') {
        size_t i = 1;
        for (; i < 4 && i < n && s[i] >= '0' && s[i] <= '7'; i++)
            cp = cp * 8 + (uint32_t)(s[i] - '0');
        *n_out = utf8_encode(cp, out);
        return i;
    }
    size_t digits = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;
    if (digits) {
        if (!lex_hex(s + 2, n - 2, digits, &cp) || cp > 0x10FFFF)
            return 0;
        *n_out = utf8_encode(cp, out);
        return 2 + digits;
    }
    if (s[1] == 'N')
        return 0;
    out[(*n_out)++] = '\\'; /* an unknown one stays */
    return 1;
}

static enum err_code lex_string(struct lexer *x)
{
    char quote = x->s[x->at];
    size_t from = x->at + 1, end = from, n = 0;
    while (end < x->n && x->s[end] != quote)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return lex_fail(x, "unexpected char: a string has no end");
    char *text = arena_alloc(x->arena, end - from + 4);
    if (!text)
        return lex_full(x);
    for (size_t i = from; i < end;) {
        if (x->s[i] != '\\') {
            text[n++] = x->s[i++];
            continue;
        }
        size_t n_out, used = lex_escape(x->s + i, end - i, text + n, &n_out);
        if (!used)
            return lex_fail(x, "a string has an escape that cannot be decoded");
        i += used;
        n += n_out;
    }
    TRY(lex_add(x, TOK_STRING, text, n, NULL));
    lex_goto(x, end + 1);
    return ERR_OK;
}

static enum err_code lex_name(struct lexer *x, bool *is_name)
{
    size_t i = x->at;
    uint32_t cp;
    for (size_t len; i < x->n; i += len) {
        len = utf8_decode(x->s + i, x->n - i, &cp);
        if (!len || !(uni_is_word(cp)))
            break;
    }
    *is_name = i > x->at;
    if (!*is_name)
        return ERR_OK;
    TRY(lex_add(x, TOK_NAME, x->s + x->at, i - x->at, NULL));
    lex_goto(x, i);
    return ERR_OK;
}

static enum err_code lex_bracket(struct lexer *x, char c)
{
    static const char pairs[] = "(){}[]";
    const char *p = strchr(pairs, c);
    if (!p)
        return ERR_OK;
    if ((p - pairs) % 2 == 0) {
        if (x->n_brackets == LEX_BRACKETS_MAX)
            return err_set(x->err, ERR_INVALID,
                           "%s line %d: more than %d brackets inside each other", x->name, x->line,
                           LEX_BRACKETS_MAX);
        x->brackets[x->n_brackets++] = p[1];
        return ERR_OK;
    }
    if (x->n_brackets == 0 || x->brackets[--x->n_brackets] != c)
        return err_set(x->err, ERR_INVALID, "%s line %d: unexpected '%c'", x->name, x->line, c);
    return ERR_OK;
}

static enum err_code lex_operator(struct lexer *x)
{
    static const char *const twos[] = { "//", "**", "==", "!=", ">=", "<=" };
    char c = x->s[x->at];
    struct token *t;
    for (size_t i = 0; i < ARRAY_LEN(twos); i++) {
        if (!lex_is(x, x->at, twos[i]))
            continue;
        TRY(lex_add(x, TOK_OP, x->s + x->at, 2, &t));
        memcpy(t->op, twos[i], 2);
        lex_goto(x, x->at + 2);
        return ERR_OK;
    }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return err_set(x->err, ERR_INVALID, "%s line %d: unexpected char '%.*s'", x->name, x->line,
                       (int)(((unsigned char)c & 0x80) ? 0 : 1), &x->s[x->at]);
    TRY(lex_bracket(x, c));
    TRY(lex_add(x, TOK_OP, x->s + x->at, 1, &t));
    t->op[0] = c;
    lex_goto(x, x->at + 1);
    return ERR_OK;
}

static enum err_code lex_tag(struct lexer *x, bool is_block)
{
    x->n_brackets = 0;
    while (x->at < x->n) {
        size_t end = 0;
        if (x->n_brackets == 0)
            end = is_block ? lex_close(x, x->at, "%}", true, true)
                           : lex_close(x, x->at, "}}", false, false);
        if (end) {
            TRY(lex_add(x, is_block ? TOK_BLOCK_END : TOK_VAR_END, x->s + x->at, 2, NULL));
            lex_goto(x, end);
            return ERR_OK;
        }
        char c = x->s[x->at];
        bool is_name = false;
        if (lex_space_at(x, x->at)) {
            lex_goto(x, lex_skip_space(x, x->at));
            continue;
        }
        if (lex_is_digit(c)) {
            TRY(lex_number(x));
            continue;
        }
        TRY(lex_name(x, &is_name));
        if (is_name)
            continue;
        if (c == '\'' || c == '"')
            TRY(lex_string(x));
        else
            TRY(lex_operator(x));
    }
    return ERR_OK; /* the parser sees the end of the template inside a tag */
}

static enum err_code lex_root(struct lexer *x)
{
    size_t i = x->at;
    while (i < x->n &&
           !(x->s[i] == '{' && i + 1 < x->n && strchr("%{#", x->s[i + 1]) && x->s[i + 1]))
        i++;
    if (i >= x->n) {
        if (x->n > x->at)
            TRY(lex_add(x, TOK_DATA, x->s + x->at, x->n - x->at, NULL));
        lex_skip(x, x->n);
        return ERR_OK;
    }
    char kind = x->s[i + 1], sign = lex_sign(x, i + 2);
    size_t raw = kind == '%' ? lex_raw_open(x, i) : 0;
    TRY(lex_data(x, x->at, i, sign, kind == '{'));
    lex_skip(x, i);
    if (raw) {
        lex_goto(x, raw);
        return lex_raw(x, raw);
    }
    size_t inside = i + 2 + (sign != ' ');
    if (kind == '#') {
        lex_goto(x, inside);
        return lex_comment(x, inside);
    }
    TRY(lex_add(x, kind == '%' ? TOK_BLOCK_BEGIN : TOK_VAR_BEGIN, x->s + i, 2, NULL));
    lex_goto(x, inside);
    return lex_tag(x, kind == '%');
}

enum err_code tmpl_lex(const char *name, const char *text, size_t len, struct arena *arena,
                       struct token_array *out, struct err *err)
{
    struct lexer x = {
        .name = name, .line = 1, .is_line_start = true, .arena = arena, .out = out, .err = err
    };
    char *s = arena_alloc(arena, len + 1);
    if (!s)
        return lex_full(&x);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            continue;
        s[x.n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (x.n && s[x.n - 1] == '\n')
        x.n--;
    x.s = s;
    while (x.at < x.n)
        TRY(lex_root(&x));
    return lex_add(&x, TOK_EOF, "", 0, NULL);
}
