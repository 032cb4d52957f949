/* tmpl_spec.c - str.format and its format specifications. */
#include "template/template_ast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct spec {
    const struct str *fill; /* one code point; NULL: blank */
    char align;             /* < > = ^, 0: none given */
    char sign;              /* + - blank */
    bool alt, zero;
    char group; /* , _ or 0 */
    int64_t width, precision;
    char type; /* 0: none given */
};

/* --- parsing a specification --- */

static enum err_code spec_number(struct env *e, const struct str *s, size_t *at, int64_t *out)
{
    for (*out = 0; *at < s->n && s->s[*at] >= '0' && s->s[*at] <= '9'; ++*at) {
        *out = *out * 10 + (s->s[*at] - '0');
        if (*out > (int64_t)TMPL_BYTES_MAX)
            return tmpl_full(e, "a format's width is too large");
    }
    return ERR_OK;
}

static bool spec_is_align(char c)
{
    return c == '<' || c == '>' || c == '=' || c == '^';
}

static enum err_code spec_parse(struct env *e, const struct str *s, struct spec *f)
{
    size_t at = 0;
    struct value fill;
    *f = (struct spec){ .precision = -1, .sign = '-' };
    size_t first = s->n ? str_step(s, 0) : 0;
    if (first < s->n && spec_is_align(s->s[first])) {
        TRY(tmpl_part(e, s, 0, first, &fill));
        f->fill = fill.s;
        f->align = s->s[first];
        at = first + 1;
    } else if (s->n && spec_is_align(s->s[0])) {
        f->align = s->s[at++];
    }
    if (at < s->n && strchr("+- ", s->s[at]))
        f->sign = s->s[at++];
    if (at < s->n && s->s[at] == '#') {
        f->alt = true;
        at++;
    }
    if (at < s->n && s->s[at] == '0') {
        f->zero = true;
        at++;
    }
    TRY(spec_number(e, s, &at, &f->width));
    if (at < s->n && (s->s[at] == ',' || s->s[at] == '_'))
        f->group = s->s[at++];
    if (at < s->n && s->s[at] == '.') {
        size_t from = ++at;
        TRY(spec_number(e, s, &at, &f->precision));
        if (at == from)
            return tmpl_fail(e, "ValueError: Format specifier missing precision");
        if (f->precision > 1000)
            return tmpl_full(e, "a format's precision is too large");
    }
    if (at < s->n)
        f->type = s->s[at++];
    if (at < s->n)
        return tmpl_fail(e, "ValueError: Invalid format specifier");
    return ERR_OK;
}

/* --- writing --- */

static void spec_fill(struct sb *b, const struct spec *f, size_t n, bool is_zero, bool is_caller)
{
    if (!f->fill) {
        sb_fill(b, is_zero ? '0' : ' ', n, is_caller);
        return;
    }
    for (size_t i = 0; i < n && !b->e->is_full; i++)
        sb_add_str(b, f->fill);
}

static enum err_code spec_pad(struct sb *b, const struct spec *f, const char *prefix,
                              const struct str *body, char align, bool is_caller)
{
    size_t have = strlen(prefix) + str_chars(body);
    size_t fill = (size_t)f->width > have ? (size_t)f->width - have : 0;
    bool is_zero = f->zero && !f->fill;
    if (f->align)
        align = f->align;
    size_t left = align == '>' ? fill : align == '^' ? fill / 2 : 0;
    size_t right = align == '<' ? fill : align == '^' ? fill - left : 0;
    TRY(tmpl_step(b->e, fill / 8));
    spec_fill(b, f, left, is_zero, false);
    sb_add_cstr(b, prefix, is_caller);
    if (align == '=')
        spec_fill(b, f, fill, is_zero, false);
    sb_add_str(b, body);
    spec_fill(b, f, right, is_zero, false);
    return tmpl_check(b->e);
}

/* digits (the integer part) with separators every `every`, then the rest. */
static void spec_group(struct sb *b, const char *text, char sep, int every, bool is_caller)
{
    size_t n = strspn(text, "0123456789abcdefABCDEF");
    if (!sep) {
        sb_add_cstr(b, text, is_caller);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (i && (n - i) % (size_t)every == 0)
            sb_add(b, &sep, 1, is_caller);
        sb_add(b, text + i, 1, is_caller);
    }
    sb_add_cstr(b, text + n, is_caller);
}

static enum err_code spec_number_out(struct env *e, struct sb *b, const struct spec *f,
                                     const char *text, const char *base, bool is_negative,
                                     bool is_caller)
{
    struct sb body;
    struct value v;
    char prefix[8];
    snprintf(prefix, sizeof(prefix), "%s%s",
             is_negative      ? "-"
             : f->sign == '+' ? "+"
             : f->sign == ' ' ? " "
                              : "",
             base);
    sb_init(&body, e);
    spec_group(&body, text, f->group, base[0] && f->group == '_' ? 4 : 3, is_caller);
    TRY(sb_finish(&body, &v));
    struct spec g = *f;
    if (f->zero && !f->align) /* zeros go between sign and digits */
        g.align = '=';
    return spec_pad(b, &g, prefix, v.s, '>', is_caller);
}

static enum err_code spec_int(struct env *e, struct sb *b, const struct spec *f,
                              const struct value *v)
{
    char text[TMPL_DIGITS_MAX + 72];
    const char *base = "";
    int64_t i = 0;
    bool is_negative;
    if (f->precision >= 0)
        return tmpl_fail(e, "ValueError: Precision not allowed in integer format specifier");
    if (v->type == V_BIG) {
        is_negative = v->s->s[0] == '-';
        if (f->type && f->type != 'd' && f->type != 'n')
            return tmpl_fail(
                e, "OverflowError: this format of an integer over 64 bits is not supported");
        snprintf(text, sizeof(text), "%.*s", (int)(v->s->n - is_negative), v->s->s + is_negative);
        return spec_number_out(e, b, f, text, "", is_negative, v->is_caller);
    }
    tmpl_as_int(v, &i);
    is_negative = i < 0;
    unsigned long long u = is_negative ? 0 - (unsigned long long)i : (unsigned long long)i;
    switch (f->type) {
    case 'x':
    case 'X':
        snprintf(text, sizeof(text), f->type == 'x' ? "%llx" : "%llX", u);
        base = !f->alt ? "" : f->type == 'x' ? "0x" : "0X";
        break;
    case 'o':
        snprintf(text, sizeof(text), "%llo", u);
        base = f->alt ? "0o" : "";
        break;
    case 'b': {
        int n = 0;
        for (int bit = 63; bit >= 0; bit--)
            if (n || (u >> bit & 1) || bit == 0)
                text[n++] = (char)('0' + (u >> bit & 1));
        text[n] = '\0';
        base = f->alt ? "0b" : "";
        break;
    }
    case 'c': {
        struct value c;
        if (i < 0 || i > 0x10FFFF)
            return tmpl_fail(e, "OverflowError: %%c arg not in range(0x110000)");
        TRY(tmpl_str(e, text, utf8_encode((uint32_t)i, text), v->is_caller, &c));
        return spec_pad(b, f, "", c.s, '<', false);
    }
    default:
        snprintf(text, sizeof(text), "%llu", u);
        break;
    }
    return spec_number_out(e, b, f, text, base, is_negative, v->is_caller);
}

/* repr with a precision: as %g, but with a point, and one digit earlier in exponents. */
static void spec_plain_double(double d, int precision, char *out, size_t cap)
{
    char exp[64];
    if (precision == 0)
        precision = 1;
    snprintf(exp, sizeof(exp), "%.*e", precision > 40 ? 40 : precision - 1, d);
    const char *mark = strchr(exp, 'e');
    long point = mark ? strtol(mark + 1, NULL, 10) + 1 : 1;
    if (mark && (point <= -4 || point > precision - 1)) {
        size_t n = (size_t)(mark - exp);
        if (memchr(exp, '.', n))
            while (exp[n - 1] == '0' || exp[n - 1] == '.') {
                n--;
                if (exp[n] == '.')
                    break;
            }
        snprintf(out, cap, "%.*s%s", (int)n, exp, mark);
        return;
    }
    snprintf(out, cap, "%.*g", precision, d);
    if (!strpbrk(out, ".eni"))
        strncat(out, ".0", cap - strlen(out) - 1);
}

static enum err_code spec_float(struct env *e, struct sb *b, const struct spec *f,
                                const struct value *v)
{
    char text[1600], fmt[8];
    double d = tmpl_as_double(v);
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    char conv = f->type == '%' ? 'f' : f->type == 'n' ? 'g' : f->type;
    double shown = fabs(f->type == '%' ? d * 100 : d);
    if (!conv && f->precision < 0) {
        text[json_format_double(shown, text)] = '\0';
    } else if (!conv) {
        spec_plain_double(shown, (int)f->precision, text, sizeof(text));
    } else {
        snprintf(fmt, sizeof(fmt), f->alt ? "%%#.*%c" : "%%.*%c", conv);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof(text) - 2, fmt, precision, shown);
#pragma GCC diagnostic pop
        if (f->type == '%')
            strncat(text, "%", sizeof(text) - strlen(text) - 1);
    }
    return spec_number_out(e, b, f, text, "", signbit(d) && !isnan(d), v->is_caller);
}

static enum err_code spec_text(struct env *e, struct sb *b, const struct spec *f,
                               const struct str *s)
{
    struct value part;
    if (f->sign != '-')
        return tmpl_fail(e, "ValueError: Sign not allowed in string format specifier");
    if (f->align == '=')
        return tmpl_fail(e, "ValueError: '=' alignment not allowed in string format specifier");
    if (f->alt || f->group)
        return tmpl_fail(e, "ValueError: this is not allowed in string format specifier");
    TRY(tmpl_part(e, s, 0, f->precision >= 0 ? str_offset(s, (size_t)f->precision) : s->n, &part));
    return spec_pad(b, f, "", part.s, '<', false);
}

enum err_code tmpl_format_spec(struct env *e, struct sb *b, const struct value *v,
                               const struct str *spec)
{
    struct spec f;
    if (spec->n == 0) {
        tmpl_add_text(b, v);
        return ERR_OK;
    }
    TRY(spec_parse(e, spec, &f));
    bool is_int_type = !f.type || strchr("bcdoxXn", f.type);
    bool is_float_type = f.type && strchr("eEfFgG%n", f.type);
    if (v->type == V_STR && (!f.type || f.type == 's'))
        return spec_text(e, b, &f, v->s);
    if ((tmpl_is_integer(v) || v->type == V_BOOL) && is_int_type)
        return spec_int(e, b, &f, v);
    if (tmpl_is_number(v) && (is_float_type || (v->type == V_FLOAT && !f.type)))
        return spec_float(e, b, &f, v);
    if (v->type != V_STR && !tmpl_is_number(v))
        return tmpl_fail(e, "TypeError: unsupported format string passed to %s.__format__",
                         tmpl_type_name(v));
    return tmpl_fail(e, "ValueError: Unknown format code '%c' for object of type '%s'",
                     f.type >= 0x20 ? f.type : '?', tmpl_type_name(v));
}

/* --- str.format --- */

struct formatter {
    struct env *e;
    const struct args *args;
    const struct value *mapping; /* format_map's; may be NULL */
    int64_t next;                /* of the unnumbered fields; -1 after a numbered one */
    bool has_auto;
};

static enum err_code format_text(struct formatter *f, struct sb *b, const struct str *s, size_t p0,
                                 size_t p1, int depth);

static bool format_index(const struct str *s, size_t p0, size_t p1, int64_t *out)
{
    if (p0 == p1)
        return false;
    for (*out = 0; p0 < p1; p0++) {
        if (s->s[p0] < '0' || s->s[p0] > '9' || *out > INT32_MAX)
            return false;
        *out = *out * 10 + (s->s[p0] - '0');
    }
    return true;
}

/* The argument named by [p0, p1): "", a number, or a name. */
static enum err_code format_first(struct formatter *f, const struct str *s, size_t p0, size_t p1,
                                  struct value *out)
{
    int64_t i;
    struct value key, *found;
    if (p0 == p1) {
        if (f->next < 0)
            return tmpl_fail(f->e, "ValueError: cannot switch from manual field specification to "
                                   "automatic field numbering");
        i = f->next++;
        f->has_auto = true;
    } else if (format_index(s, p0, p1, &i)) {
        if (f->has_auto)
            return tmpl_fail(f->e, "ValueError: cannot switch from automatic field numbering to "
                                   "manual field specification");
        f->next = -1;
    } else {
        TRY(tmpl_part(f->e, s, p0, p1, &key));
        if (f->mapping) {
            TRY(tmpl_dict_get(f->e, f->mapping->dict, &key, &found));
            if (found) {
                *out = *found;
                return ERR_OK;
            }
        }
        for (size_t k = 0; k < f->args->n_kw; k++) {
            if (str_equal(f->args->kw[k].name, key.s)) {
                *out = f->args->kw[k].value;
                return ERR_OK;
            }
        }
        return tmpl_fail(f->e, "KeyError: '%.*s'", (int)(key.s->n < 60 ? key.s->n : 60), key.s->s);
    }
    if ((uint64_t)i >= f->args->n)
        return tmpl_fail(
            f->e, "IndexError: Replacement index %lld out of range for positional args tuple",
            (long long)i);
    *out = f->args->pos[i];
    return ERR_OK;
}

/* "name.attr[item]" */
static enum err_code format_field(struct formatter *f, const struct str *s, size_t p0, size_t p1,
                                  struct value *out)
{
    size_t at = p0;
    while (at < p1 && s->s[at] != '.' && s->s[at] != '[')
        at++;
    TRY(format_first(f, s, p0, at, out));
    while (at < p1) {
        struct value key, next;
        int64_t i;
        bool is_item = s->s[at] == '[';
        size_t from = ++at;
        while (at < p1 && (is_item ? s->s[at] != ']' : s->s[at] != '.' && s->s[at] != '['))
            at++;
        if (from == at || (is_item && at == p1))
            return tmpl_fail(f->e, "ValueError: Empty attribute in format string");
        TRY(tmpl_part(f->e, s, from, at, &key));
        at += is_item;
        if (is_item && format_index(s, from, at - 1, &i))
            key = tmpl_int(i, false);
        if (is_item)
            TRY(tmpl_getitem(f->e, out, &key, &next));
        else
            TRY(tmpl_getattr(f->e, out, key.s, &next));
        *out = next;
    }
    return ERR_OK;
}

/* "field!conversion:spec", the text between braces. */
static enum err_code format_replacement(struct formatter *f, struct sb *b, const struct str *s,
                                        size_t p0, size_t p1, int depth)
{
    size_t end = p0;
    int brackets = 0;
    struct value v, spec;
    struct sb text;
    while (end < p1 && (brackets || (s->s[end] != '!' && s->s[end] != ':'))) {
        brackets += (s->s[end] == '[') - (s->s[end] == ']');
        end++;
    }
    TRY(format_field(f, s, p0, end, &v));
    if (end < p1 && s->s[end] == '!') {
        char c = end + 1 < p1 ? s->s[end + 1] : '\0';
        if (!strchr("sra", c) || !c || (end + 2 < p1 && s->s[end + 2] != ':'))
            return tmpl_fail(f->e, "ValueError: Unknown conversion specifier");
        if (c == 's') {
            TRY(tmpl_to_text(f->e, &v, &v));
        } else {
            sb_init(&text, f->e);
            tmpl_add_repr(&text, &v, 0);
            TRY(sb_finish(&text, &v));
        }
        end += 2;
    }
    sb_init(&text, f->e);
    if (end < p1)
        TRY(format_text(f, &text, s, end + 1, p1, depth + 1));
    TRY(sb_finish(&text, &spec));
    return tmpl_format_spec(f->e, b, &v, spec.s);
}

static enum err_code format_text(struct formatter *f, struct sb *b, const struct str *s, size_t p0,
                                 size_t p1, int depth)
{
    if (depth > 2)
        return tmpl_fail(f->e, "ValueError: Max string recursion exceeded");
    for (size_t at = p0; at < p1;) {
        char c = s->s[at];
        TRY(tmpl_step(f->e, 1));
        if (c != '{' && c != '}') {
            size_t from = at;
            while (at < p1 && s->s[at] != '{' && s->s[at] != '}')
                at++;
            sb_add_part(b, s, from, at);
            continue;
        }
        if (at + 1 < p1 && s->s[at + 1] == c) {
            sb_add_part(b, s, at, at + 1);
            at += 2;
            continue;
        }
        if (c == '}')
            return tmpl_fail(f->e, "ValueError: Single '}' encountered in format string");
        size_t from = ++at;
        for (int open = 1; open; at++) {
            if (at >= p1)
                return tmpl_fail(f->e, "ValueError: expected '}' before end of string");
            open += (s->s[at] == '{') - (s->s[at] == '}');
        }
        TRY(format_replacement(f, b, s, from, at - 1, depth));
    }
    return tmpl_check(f->e);
}

enum err_code tmpl_format(struct env *e, const struct str *fmt, const struct args *a,
                          const struct value *mapping, struct value *out)
{
    struct formatter f = { .e = e, .args = a, .mapping = mapping };
    struct sb b;
    sb_init(&b, e);
    TRY(format_text(&f, &b, fmt, 0, fmt->n, 0));
    TRY(sb_finish(&b, out));
    out->s->is_markup = fmt->is_markup;
    return ERR_OK;
}
