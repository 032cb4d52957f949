/* tmpl_method_case.c - str methods about case and character classes. */
#include "template/template_ast.h"

#include <string.h>

/* --- case maps --- */

/* Map the code point at s[at..at+len), whose bytes keep their origin. */
static void add_mapped(struct sb *b, const struct str *s, size_t at, size_t len, uint32_t cp,
                       enum uni_case to)
{
    uint32_t out[3];
    int n = uni_map(cp, to, out);
    if (n == 1 && out[0] == cp) {
        sb_add_part(b, s, at, at + len);
        return;
    }
    bool is_caller = str_is_caller_at(s, at);
    for (int i = 0; i < n; i++) {
        char text[4];
        sb_add(b, text, utf8_encode(out[i], text), is_caller);
    }
}

static bool case_is_ignorable(uint32_t cp)
{
    static const uint32_t known[] = { '\'',   '.',    ':',    '^',    '`',    0xA8,   0xAD,
                                      0xAF,   0xB4,   0xB7,   0xB8,   0x2018, 0x2019, 0x2024,
                                      0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A };
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i] == cp)
            return true;
    return cp >= 0x300 && cp < 0x370; /* combining marks */
}

/* Is the capital sigma at `at` the last letter of a word? */
static bool is_final_sigma(const struct str *s, size_t at)
{
    uint32_t cp;
    size_t i = at;
    bool has_before = false;
    while (i > 0 && !has_before) {
        size_t back = str_step_back(s, i);
        utf8_decode(s->s + i - back, back, &cp);
        i -= back;
        if (case_is_ignorable(cp))
            continue;
        has_before = uni_is_cased(cp);
        break;
    }
    if (!has_before)
        return false;
    for (i = at + 2; i < s->n; i += str_step(s, i)) {
        utf8_decode(s->s + i, s->n - i, &cp);
        if (!case_is_ignorable(cp))
            return !uni_is_cased(cp);
    }
    return true;
}

static void add_lower(struct sb *b, const struct str *s, size_t at, size_t len, uint32_t cp)
{
    if (cp == 0x3A3 && is_final_sigma(s, at))
        sb_add_cstr(b, "\xCF\x82", str_is_caller_at(s, at));
    else
        add_mapped(b, s, at, len, cp, UNI_LOWER);
}

enum err_code tmpl_map_case(struct env *e, const struct str *s, enum uni_case to, struct value *out)
{
    struct sb b;
    sb_init(&b, e);
    for (size_t at = 0; at < s->n && !e->is_full;) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        size_t len = str_step(s, at);
        if (to == UNI_LOWER)
            add_lower(&b, s, at, len, cp);
        else
            add_mapped(&b, s, at, len, cp, to);
        at += len;
    }
    TRY(tmpl_step(e, s->n));
    TRY(sb_finish(&b, out));
    out->s->is_markup = s->is_markup;
    return ERR_OK;
}

enum err_code tmpl_capitalize(struct env *e, const struct str *s, struct value *out)
{
    struct sb b;
    sb_init(&b, e);
    for (size_t at = 0; at < s->n && !e->is_full;) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        size_t len = str_step(s, at);
        if (at)
            add_lower(&b, s, at, len, cp);
        else
            add_mapped(&b, s, at, len, cp, UNI_TITLE);
        at += len;
    }
    TRY(tmpl_step(e, s->n));
    return sb_finish(&b, out);
}

static enum err_code no_args(struct env *e, const char *name, const struct args *a)
{
    return tmpl_bind(e, name, "", 0, a, NULL);
}

#define CASE_METHOD(name, expr)                                                 \
    static enum err_code method_##name(struct env *e, const struct value *self, \
                                       const struct args *a, struct value *out) \
    {                                                                           \
        TRY(no_args(e, #name "()", a));                                         \
        return expr;                                                            \
    }

CASE_METHOD(upper, tmpl_map_case(e, self->s, UNI_UPPER, out))
CASE_METHOD(lower, tmpl_map_case(e, self->s, UNI_LOWER, out))
CASE_METHOD(casefold, tmpl_map_case(e, self->s, UNI_FOLD, out))
CASE_METHOD(capitalize, tmpl_capitalize(e, self->s, out))

static enum err_code method_title(struct env *e, const struct value *self, const struct args *a,
                                  struct value *out)
{
    struct sb b;
    const struct str *s = self->s;
    bool is_inside = false;
    TRY(no_args(e, "title()", a));
    sb_init(&b, e);
    for (size_t at = 0; at < s->n && !e->is_full;) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        size_t len = str_step(s, at);
        if (is_inside)
            add_lower(&b, s, at, len, cp);
        else
            add_mapped(&b, s, at, len, cp, UNI_TITLE);
        is_inside = uni_is_cased(cp);
        at += len;
    }
    TRY(tmpl_step(e, s->n));
    return sb_finish(&b, out);
}

static enum err_code method_swapcase(struct env *e, const struct value *self, const struct args *a,
                                     struct value *out)
{
    struct sb b;
    const struct str *s = self->s;
    TRY(no_args(e, "swapcase()", a));
    sb_init(&b, e);
    for (size_t at = 0; at < s->n && !e->is_full;) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        size_t len = str_step(s, at);
        if (uni_is_upper(cp))
            add_lower(&b, s, at, len, cp);
        else if (uni_is_lower(cp))
            add_mapped(&b, s, at, len, cp, UNI_UPPER);
        else
            sb_add_part(&b, s, at, at + len);
        at += len;
    }
    TRY(tmpl_step(e, s->n));
    return sb_finish(&b, out);
}

/* --- classes --- */

static bool is_alnum(uint32_t cp)
{
    return uni_is_alpha(cp) || uni_is_numeric(cp) || uni_is_digit(cp);
}

static bool is_ascii(uint32_t cp)
{
    return cp < 0x80;
}

static bool is_decimal(uint32_t cp)
{
    return uni_is_digit(cp) && (cp < 0x80 || (cp > 0xB9 && !(cp >= 0x2070 && cp < 0x2800)));
}

/* Do all code points pass (and is there one)? */
static bool all_are(const struct str *s, bool (*test)(uint32_t cp))
{
    for (size_t at = 0; at < s->n; at += str_step(s, at)) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        if (!test(cp))
            return false;
    }
    return s->n > 0;
}

/* At least one cased code point, and none of the other case. */
static bool all_cased(const struct str *s, bool (*is)(uint32_t cp), bool (*is_other)(uint32_t cp))
{
    bool has = false;
    for (size_t at = 0; at < s->n; at += str_step(s, at)) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        if (is_other(cp) || uni_is_title(cp))
            return false;
        has |= is(cp);
    }
    return has;
}

static bool str_is_title(const struct str *s)
{
    bool has = false, is_inside = false;
    for (size_t at = 0; at < s->n; at += str_step(s, at)) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        if (uni_is_upper(cp) || uni_is_title(cp)) {
            if (is_inside)
                return false;
            is_inside = has = true;
        } else if (uni_is_lower(cp)) {
            if (!is_inside)
                return false;
            has = true;
        } else {
            is_inside = false;
        }
    }
    return has;
}

static bool str_is_identifier(const struct str *s)
{
    uint32_t cp = '0';
    if (s->n)
        utf8_decode(s->s, s->n, &cp);
    return all_are(s, uni_is_word) && (cp == '_' || uni_is_alpha(cp));
}

#define CLASS_METHOD(name, test)                                                \
    static enum err_code method_##name(struct env *e, const struct value *self, \
                                       const struct args *a, struct value *out) \
    {                                                                           \
        TRY(no_args(e, #name "()", a));                                         \
        TRY(tmpl_step(e, self->s->n / 4));                                      \
        *out = tmpl_bool(test);                                                 \
        return ERR_OK;                                                          \
    }

CLASS_METHOD(isalpha, all_are(self->s, uni_is_alpha))
CLASS_METHOD(isalnum, all_are(self->s, is_alnum))
CLASS_METHOD(isdigit, all_are(self->s, uni_is_digit))
CLASS_METHOD(isdecimal, all_are(self->s, is_decimal))
CLASS_METHOD(isnumeric, all_are(self->s, uni_is_numeric))
CLASS_METHOD(isspace, all_are(self->s, uni_is_space))
CLASS_METHOD(isascii, self->s->n == 0 || all_are(self->s, is_ascii))
CLASS_METHOD(isprintable, self->s->n == 0 || all_are(self->s, uni_is_printable))
CLASS_METHOD(isupper, all_cased(self->s, uni_is_upper, uni_is_lower))
CLASS_METHOD(islower, all_cased(self->s, uni_is_lower, uni_is_upper))
CLASS_METHOD(istitle, str_is_title(self->s))
CLASS_METHOD(isidentifier, str_is_identifier(self->s))

const struct method tmpl_str_case_methods[] = {
    { "upper", method_upper },
    { "lower", method_lower },
    { "casefold", method_casefold },
    { "capitalize", method_capitalize },
    { "title", method_title },
    { "swapcase", method_swapcase },
    { "isalpha", method_isalpha },
    { "isalnum", method_isalnum },
    { "isdigit", method_isdigit },
    { "isdecimal", method_isdecimal },
    { "isnumeric", method_isnumeric },
    { "isspace", method_isspace },
    { "isascii", method_isascii },
    { "isprintable", method_isprintable },
    { "isupper", method_isupper },
    { "islower", method_islower },
    { "istitle", method_istitle },
    { "isidentifier", method_isidentifier },
    { NULL, NULL },
};
