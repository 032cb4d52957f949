/* tmpl_format.c - the % operator on strings. */
#include "template/template_ast.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Digits after the point, and columns, that anybody could mean. */
#define FORMAT_PRECISION_MAX 1000

struct percent {
    struct env *e;
    struct sb b;
    const struct str *fmt;
    size_t at;
    const struct value *args; /* a tuple, or one value */
    size_t arg_i;
    bool is_mapped; /* %(name)s was used */
    bool left, plus, blank, alt, zero;
    int64_t width, precision; /* precision -1: none */
};

void tmpl_add_double(struct sb *b, double v, char conv, int precision, bool is_alt, bool is_caller)
{
    char fmt[8], text[1500];
    snprintf(fmt, sizeof(fmt), is_alt ? "%%#.*%c" : "%%.*%c", conv);
    if (precision > FORMAT_PRECISION_MAX)
        precision = FORMAT_PRECISION_MAX;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(text, sizeof(text), fmt, precision, fabs(v));
#pragma GCC diagnostic pop
    sb_add(b, text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1, is_caller);
}

static enum err_code percent_arg(struct percent *p, struct value *out)
{
    if (p->args->type != V_TUPLE) {
        if (p->arg_i++)
            return tmpl_fail(p->e, "TypeError: not enough arguments for format string");
        *out = *p->args;
        return ERR_OK;
    }
    if (p->arg_i >= p->args->seq->n)
        return tmpl_fail(p->e, "TypeError: not enough arguments for format string");
    *out = p->args->seq->items[p->arg_i++];
    return ERR_OK;
}

static char percent_peek(const struct percent *p)
{
    return p->at < p->fmt->n ? p->fmt->s[p->at] : '\0';
}

/* "(name)": the argument is that item of the mapping. */
static enum err_code percent_key(struct percent *p, struct value *out, bool *has)
{
    struct value key, *found;
    *has = percent_peek(p) == '(';
    if (!*has)
        return ERR_OK;
    size_t from = ++p->at;
    for (int depth = 1; depth; p->at++) {
        if (p->at >= p->fmt->n)
            return tmpl_fail(p->e, "ValueError: incomplete format key");
        depth += (p->fmt->s[p->at] == '(') - (p->fmt->s[p->at] == ')');
    }
    if (p->args->type != V_DICT)
        return tmpl_fail(p->e, "TypeError: format requires a mapping");
    p->is_mapped = true;
    TRY(tmpl_part(p->e, p->fmt, from, p->at - 1, &key));
    TRY(tmpl_dict_get(p->e, p->args->dict, &key, &found));
    if (!found)
        return tmpl_fail(p->e, "KeyError: '%.*s'", (int)(key.s->n < 60 ? key.s->n : 60), key.s->s);
    *out = *found;
    return ERR_OK;
}

/* Digits or "*". */
static enum err_code percent_number(struct percent *p, int64_t *out)
{
    struct value v;
    if (percent_peek(p) == '*') {
        p->at++;
        TRY(percent_arg(p, &v));
        if (!tmpl_as_int(&v, out))
            return tmpl_fail(p->e, "TypeError: * wants int");
    } else {
        for (*out = 0; percent_peek(p) >= '0' && percent_peek(p) <= '9' && *out < INT32_MAX;
             p->at++)
            *out = *out * 10 + (percent_peek(p) - '0');
    }
    if (*out > (int64_t)TMPL_BYTES_MAX || *out < -(int64_t)TMPL_BYTES_MAX)
        return tmpl_full(p->e, "a format's width is too large");
    return ERR_OK;
}

static enum err_code percent_flags(struct percent *p)
{
    p->left = p->plus = p->blank = p->alt = p->zero = false;
    p->width = 0;
    p->precision = -1;
    for (;; p->at++) {
        char c = percent_peek(p);
        if (c == '-')
            p->left = true;
        else if (c == '+')
            p->plus = true;
        else if (c == ' ')
            p->blank = true;
        else if (c == '#')
            p->alt = true;
        else if (c == '0')
            p->zero = true;
        else
            break;
    }
    TRY(percent_number(p, &p->width));
    if (p->width < 0) {
        p->left = true;
        p->width = -p->width;
    }
    if (percent_peek(p) == '.') {
        p->at++;
        TRY(percent_number(p, &p->precision));
        if (p->precision < 0)
            p->precision = 0;
    }
    if (percent_peek(p) && strchr("hlL", percent_peek(p)))
        p->at++;
    return ERR_OK;
}

/* prefix (sign, 0x) and body, in p->width columns. */
static enum err_code percent_pad(struct percent *p, const char *prefix, const struct str *body,
                                 bool is_number, bool is_caller)
{
    size_t have = strlen(prefix) + str_chars(body);
    size_t fill = (size_t)p->width > have ? (size_t)p->width - have : 0;
    bool zero = p->zero && is_number && !p->left;
    if (!p->left && !zero)
        sb_fill(&p->b, ' ', fill, false);
    sb_add_cstr(&p->b, prefix, is_caller);
    if (zero)
        sb_fill(&p->b, '0', fill, is_caller);
    sb_add_str(&p->b, body);
    if (p->left)
        sb_fill(&p->b, ' ', fill, false);
    return tmpl_check(p->e);
}

static const char *percent_sign(const struct percent *p, bool is_negative)
{
    return is_negative ? "-" : p->plus ? "+" : p->blank ? " " : "";
}

static enum err_code percent_int(struct percent *p, char conv, struct value v)
{
    struct sb b;
    struct value text;
    char digits[32], prefix[4];
    int64_t i;
    if (v.type == V_UNDEF)
        return tmpl_use_undef(p->e, &v);
    if (v.type == V_FLOAT && strchr("diu", conv))
        TRY(tmpl_int_from_double(p->e, v.f, v.is_caller, &v));
    if (v.type != V_BIG && !tmpl_as_int(&v, &i))
        return tmpl_fail(p->e,
                         strchr("diu", conv)
                             ? "TypeError: %%%c format: a real number is required, not %s"
                             : "TypeError: %%%c format: an integer is required, not %s",
                         conv, tmpl_type_name(&v));
    sb_init(&b, p->e);
    bool is_negative = v.type == V_BIG ? v.s->s[0] == '-' : i < 0;
    if (v.type == V_BIG) {
        if (!strchr("diu", conv))
            return tmpl_fail(
                p->e, "OverflowError: %%%c of an integer over 64 bits is not supported", conv);
        sb_add(&b, v.s->s + is_negative, v.s->n - is_negative, v.is_caller);
    } else {
        unsigned long long u = is_negative ? 0 - (unsigned long long)i : (unsigned long long)i;
        snprintf(digits, sizeof(digits),
                 conv == 'x'   ? "%llx"
                 : conv == 'X' ? "%llX"
                 : conv == 'o' ? "%llo"
                               : "%llu",
                 u);
        int64_t zeros = p->precision - (int64_t)strlen(digits);
        sb_fill(&b, '0', zeros > 0 ? (size_t)zeros : 0, v.is_caller);
        sb_add_cstr(&b, digits, v.is_caller);
    }
    snprintf(prefix, sizeof(prefix), "%s", percent_sign(p, is_negative));
    if (p->alt && strchr("xXo", conv))
        snprintf(prefix, sizeof(prefix), "%s0%c", percent_sign(p, is_negative), conv);
    TRY(sb_finish(&b, &text));
    return percent_pad(p, prefix, text.s, true, v.is_caller);
}

static enum err_code percent_float(struct percent *p, char conv, const struct value *v)
{
    struct sb b;
    struct value text;
    if (v->type == V_UNDEF)
        return tmpl_use_undef(p->e, v);
    if (!tmpl_is_number(v))
        return tmpl_fail(p->e, "TypeError: must be real number, not %s", tmpl_type_name(v));
    double d = tmpl_as_double(v);
    if (p->precision > FORMAT_PRECISION_MAX)
        return tmpl_full(p->e, "a format's precision is too large");
    sb_init(&b, p->e);
    tmpl_add_double(&b, d, conv, p->precision < 0 ? 6 : (int)p->precision, p->alt, v->is_caller);
    TRY(sb_finish(&b, &text));
    return percent_pad(p, percent_sign(p, signbit(d) && !isnan(d)), text.s, true, v->is_caller);
}

static enum err_code percent_text(struct percent *p, char conv, const struct value *v)
{
    struct value text;
    struct sb b;
    if (conv == 's') {
        TRY(tmpl_to_text(p->e, v, &text));
    } else {
        sb_init(&b, p->e);
        tmpl_add_repr(&b, v, 0);
        TRY(sb_finish(&b, &text));
    }
    if (p->precision >= 0)
        TRY(tmpl_part(p->e, text.s, 0, str_offset(text.s, (size_t)p->precision), &text));
    return percent_pad(p, "", text.s, false, false);
}

static enum err_code percent_char(struct percent *p, const struct value *v)
{
    char out[4];
    int64_t i;
    struct value text = *v;
    if (tmpl_as_int(v, &i)) {
        if (i < 0 || i > 0x10FFFF)
            return tmpl_fail(p->e, "OverflowError: %%c arg not in range(0x110000)");
        TRY(tmpl_str(p->e, out, utf8_encode((uint32_t)i, out), v->is_caller, &text));
    } else if (v->type != V_STR || str_chars(v->s) != 1) {
        return tmpl_fail(p->e, "TypeError: %%c requires int or char");
    }
    return percent_pad(p, "", text.s, false, false);
}

static enum err_code percent_one(struct percent *p)
{
    struct value v = { .type = V_MISSING };
    bool has_key;
    TRY(percent_key(p, &v, &has_key));
    TRY(percent_flags(p));
    char c = percent_peek(p);
    if (p->at >= p->fmt->n)
        return tmpl_fail(p->e, "ValueError: incomplete format");
    p->at++;
    if (c == '%') {
        sb_add_part(&p->b, p->fmt, p->at - 1, p->at);
        return ERR_OK;
    }
    if (!c || !strchr("diouxXeEfFgGcrsa", c))
        return tmpl_fail(p->e, "ValueError: unsupported format character '%c' (0x%x) at index %zu",
                         c >= 0x20 && c < 0x7F ? c : '?', (unsigned char)c, p->at - 1);
    if (!has_key)
        TRY(percent_arg(p, &v));
    if (strchr("diouxX", c))
        return percent_int(p, c, v);
    if (strchr("eEfFgG", c))
        return percent_float(p, c, &v);
    return c == 'c' ? percent_char(p, &v) : percent_text(p, c, &v);
}

enum err_code tmpl_percent(struct env *e, const struct str *fmt, const struct value *args,
                           struct value *out)
{
    struct percent p = { .e = e, .fmt = fmt, .args = args };
    sb_init(&p.b, e);
    while (p.at < fmt->n) {
        const char *next = memchr(fmt->s + p.at, '%', fmt->n - p.at);
        size_t to = next ? (size_t)(next - fmt->s) : fmt->n;
        sb_add_part(&p.b, fmt, p.at, to);
        p.at = to + (next != NULL);
        TRY(tmpl_step(e, 1));
        if (next)
            TRY(percent_one(&p));
    }
    size_t want = args->type == V_TUPLE ? args->seq->n : 1;
    /* A mapping (or anything with items) may be left unused. */
    bool may_rest = p.is_mapped || args->type == V_UNDEF || args->type == V_DICT ||
                    args->type == V_LIST || args->type == V_RANGE;
    if (p.arg_i < want && !may_rest)
        return tmpl_fail(e, "TypeError: not all arguments converted during string formatting");
    TRY(sb_finish(&p.b, out));
    out->s->is_markup = fmt->is_markup;
    return ERR_OK;
}
