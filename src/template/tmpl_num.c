/* tmpl_num.c - arithmetic with Python's rules. Integers are int64; a result outside is kept as digits where the operation is
 * simple enough (tmpl_big.c), and a float meets Python's division and modulo. */
#include "template/template_ast.h"
#include "template/tmpl_big.h"
#include "template/tmpl_float.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[] = { "+", "-", "*", "/", "//", "%", "** or pow()" };

bool tmpl_is_number(const struct value *v)
{
    return v->type == V_BOOL || v->type == V_INT || v->type == V_BIG || v->type == V_FLOAT;
}

double tmpl_as_double(const struct value *v)
{
    if (v->type == V_FLOAT)
        return v->f;
    if (v->type != V_BIG)
        return v->type == V_BOOL ? v->b : (double)v->i;
    char text[512]; /* more digits than that are infinite anyway */
    size_t n = v->s->n < sizeof(text) ? v->s->n : sizeof(text) - 1;
    memcpy(text, v->s->s, n);
    text[n] = '\0';
    return v->s->n < sizeof(text) ? strtod(text, NULL) : text[0] == '-' ? -INFINITY : INFINITY;
}

enum err_code tmpl_int_from_digits(struct env *e, const char *s, size_t n, bool is_caller,
                                   struct value *out)
{
    bool is_negative = n && s[0] == '-';
    int64_t v = 0;
    bool is_big = false;
    for (size_t i = is_negative; i < n && !is_big; i++) {
        int d = s[i] - '0';
        is_big = __builtin_mul_overflow(v, 10, &v) ||
                 __builtin_add_overflow(v, is_negative ? -d : d, &v);
    }
    if (!is_big) {
        *out = tmpl_int(v, is_caller);
        return ERR_OK;
    }
    if (n - is_negative > TMPL_DIGITS_MAX)
        return tmpl_fail(e, "ValueError: an integer of %zu digits is over the limit of %d", n,
                         TMPL_DIGITS_MAX);
    TRY(tmpl_str(e, s, n, is_caller, out));
    out->type = V_BIG;
    out->is_caller = is_caller;
    return ERR_OK;
}

static enum err_code num_operands(struct env *e, int op, const struct value *a,
                                  const struct value *b)
{
    if (a->type == V_UNDEF)
        return tmpl_use_undef(e, a);
    if (b->type == V_UNDEF)
        return tmpl_use_undef(e, b);
    if (op == OP_ADD && a->type == V_STR)
        return tmpl_fail(e, "TypeError: can only concatenate str (not \"%s\") to str",
                         tmpl_type_name(b));
    if (op == OP_ADD && (a->type == V_LIST || a->type == V_TUPLE))
        return tmpl_fail(e, "TypeError: can only concatenate %s (not \"%s\") to %s",
                         tmpl_type_name(a), tmpl_type_name(b), tmpl_type_name(a));
    return tmpl_fail(e, "TypeError: unsupported operand type(s) for %s: '%s' and '%s'",
                     op_names[op], tmpl_type_name(a), tmpl_type_name(b));
}

static int64_t int_floordiv(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static enum err_code int_pow(struct env *e, int64_t a, int64_t b, bool is_caller, struct value *out)
{
    if (b < 0) {
        if (a == 0)
            return tmpl_fail(e, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
        *out = tmpl_float(tmpl_float_pow((double)a, (double)b), is_caller);
        return ERR_OK;
    }
    int64_t r = 1, base = a, left = b;
    bool is_over = false;
    while (left > 0 && !is_over) {
        if (left & 1)
            is_over = __builtin_mul_overflow(r, base, &r);
        left >>= 1;
        if (left && !is_over)
            is_over = __builtin_mul_overflow(base, base, &base);
    }
    if (is_over)
        return tmpl_big_pow(e, a, b, is_caller, out);
    *out = tmpl_int(r, is_caller);
    return ERR_OK;
}

static enum err_code int_binary(struct env *e, int op, const struct value *x, const struct value *y,
                                bool is_caller, struct value *out)
{
    int64_t a, b, r = 0;
    bool is_over = true;
    bool is_small = tmpl_as_int(x, &a);
    is_small = tmpl_as_int(y, &b) && is_small;
    if (is_small && b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return tmpl_fail(e, op == OP_DIV ? "ZeroDivisionError: division by zero"
                                         : "ZeroDivisionError: integer division or modulo by zero");
    if (op == OP_DIV && is_small) {
        *out = tmpl_float((double)((long double)a / (long double)b), is_caller);
        return ERR_OK;
    }
    if (op == OP_POW && is_small)
        return int_pow(e, a, b, is_caller, out);
    if (is_small && op == OP_ADD)
        is_over = __builtin_add_overflow(a, b, &r);
    else if (is_small && op == OP_SUB)
        is_over = __builtin_sub_overflow(a, b, &r);
    else if (is_small && op == OP_MUL)
        is_over = __builtin_mul_overflow(a, b, &r);
    else if (is_small && !(a == INT64_MIN && b == -1)) {
        r = int_floordiv(a, b);
        r = op == OP_MOD ? (int64_t)((uint64_t)a - (uint64_t)r * (uint64_t)b) : r;
        is_over = false;
    }
    if (is_over)
        return tmpl_big_binary(e, op, x, y, is_caller, out);
    *out = tmpl_int(r, is_caller);
    return ERR_OK;
}

/* Python's float // and %: the modulo has the divisor's sign. */
static double float_mod(double a, double b, double *div)
{
    double mod = tmpl_float_fmod(a, b);
    double q = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            q -= 1.0;
        }
    } else {
        mod = copysign(0.0, b);
    }
    double f = 0;
    if (q != 0) {
        f = tmpl_float_floor(q);
        if (q - f > 0.5)
            f += 1.0;
    } else {
        f = copysign(0.0, a / b);
    }
    *div = f;
    return mod;
}

static enum err_code float_binary(struct env *e, int op, double a, double b, bool is_caller,
                                  struct value *out)
{
    double r = 0, q;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return tmpl_fail(e, "ZeroDivisionError: %s",
                         op == OP_DIV   ? "float division by zero"
                         : op == OP_MOD ? "float modulo"
                                        : "float floor division by zero");
    if (op == OP_FLOORDIV || op == OP_MOD) /* the remainder is found bit by bit */
        TRY(tmpl_step(e, fabs(a) > fabs(b) * 0x1p64 ? 768 : 8));
    switch (op) {
    case OP_ADD:
        r = a + b;
        break;
    case OP_SUB:
        r = a - b;
        break;
    case OP_MUL:
        r = a * b;
        break;
    case OP_DIV:
        r = a / b;
        break;
    case OP_FLOORDIV:
        float_mod(a, b, &r);
        break;
    case OP_MOD:
        r = float_mod(a, b, &q);
        break;
    default:
        if (a == 0 && b < 0)
            return tmpl_fail(e, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
        if (a < 0 && tmpl_float_floor(b) != b && isfinite(a) && isfinite(b))
            return tmpl_fail(e, "TypeError: complex numbers are not supported");
        r = tmpl_float_pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b))
            return tmpl_fail(e, "OverflowError: (34, 'Numerical result out of range')");
        break;
    }
    *out = tmpl_float(r, is_caller);
    return ERR_OK;
}

/* text * n, list * n */
static enum err_code repeat(struct env *e, const struct value *v, int64_t n, struct value *out)
{
    if (n < 0)
        n = 0;
    if (v->type == V_STR) {
        struct sb b;
        if (v->s->n && (uint64_t)n > TMPL_BYTES_MAX / v->s->n)
            return tmpl_full(e, "template takes too much memory");
        TRY(tmpl_step(e, (size_t)n / 8));
        sb_init(&b, e);
        for (int64_t i = 0; i < n && v->s->n && !e->is_full; i++)
            sb_add_str(&b, v->s);
        TRY(sb_finish(&b, out));
        out->s->is_markup = v->s->is_markup;
        return ERR_OK;
    }
    size_t len = v->seq->n;
    if (len && (uint64_t)n > TMPL_BYTES_MAX / len)
        return tmpl_full(e, "template takes too much memory");
    TRY(tmpl_list_new(e, v->type, (size_t)n * len, out));
    out->is_caller = v->is_caller;
    for (int64_t i = 0; i < n; i++)
        for (size_t j = 0; j < len; j++)
            TRY(tmpl_push(e, out, v->seq->items[j]));
    return ERR_OK;
}

static bool is_repeatable(const struct value *v)
{
    return v->type == V_STR || v->type == V_LIST || v->type == V_TUPLE;
}

static enum err_code join_lists(struct env *e, const struct value *a, const struct value *b,
                                struct value *out)
{
    TRY(tmpl_list_new(e, a->type, a->seq->n + b->seq->n, out));
    out->is_caller = a->is_caller && b->is_caller;
    for (size_t i = 0; i < a->seq->n; i++)
        TRY(tmpl_push(e, out, a->seq->items[i]));
    for (size_t i = 0; i < b->seq->n; i++)
        TRY(tmpl_push(e, out, b->seq->items[i]));
    return ERR_OK;
}

/* text + text, where safe text (escape, safe) makes the other side escaped. */
static enum err_code add_text(struct env *e, const struct value *a, const struct value *b,
                              struct value *out)
{
    struct value x = *a, y = *b;
    const struct args none = { 0 };
    bool is_markup = a->s->is_markup || b->s->is_markup;
    if (is_markup) {
        TRY(tmpl_filter_escape(e, a, &none, &x));
        TRY(tmpl_filter_escape(e, b, &none, &y));
    }
    TRY(tmpl_concat(e, x.s, y.s, out));
    out->s->is_markup = is_markup;
    return ERR_OK;
}

enum err_code tmpl_binary(struct env *e, int op, const struct value *a, const struct value *b,
                          struct value *out)
{
    int64_t n;
    bool is_caller = a->is_caller || b->is_caller;
    if (tmpl_is_number(a) && tmpl_is_number(b)) {
        if (a->type != V_FLOAT && b->type != V_FLOAT)
            return int_binary(e, op, a, b, is_caller, out);
        return float_binary(e, op, tmpl_as_double(a), tmpl_as_double(b), is_caller, out);
    }
    if (op == OP_ADD && a->type == V_STR && b->type == V_STR)
        return add_text(e, a, b, out);
    if (op == OP_ADD && a->type == b->type && (a->type == V_LIST || a->type == V_TUPLE))
        return join_lists(e, a, b, out);
    if (op == OP_MUL && is_repeatable(a) && tmpl_as_int(b, &n))
        return repeat(e, a, n, out);
    if (op == OP_MUL && is_repeatable(b) && tmpl_as_int(a, &n))
        return repeat(e, b, n, out);
    if (op == OP_MOD && a->type == V_STR)
        return tmpl_percent(e, a->s, b, out);
    return num_operands(e, op, a, b);
}

enum err_code tmpl_sum(struct env *e, const struct value *a, const struct value *b,
                       struct value *out)
{
    return tmpl_binary(e, OP_ADD, a, b, out);
}

enum err_code tmpl_negate(struct env *e, const struct value *v, bool is_minus, struct value *out)
{
    struct value zero = tmpl_int(0, v->is_caller);
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (!tmpl_is_number(v))
        return tmpl_fail(e, "TypeError: bad operand type for unary %s: '%s'", is_minus ? "-" : "+",
                         tmpl_type_name(v));
    if (v->type == V_FLOAT) {
        *out = tmpl_float(is_minus ? -v->f : v->f, v->is_caller);
        return ERR_OK;
    }
    return tmpl_binary(e, is_minus ? OP_SUB : OP_ADD, &zero, v, out);
}

/* --- conversions --- */

enum err_code tmpl_int_from_double(struct env *e, double d, bool is_caller, struct value *out)
{
    char text[400];
    if (isnan(d))
        return tmpl_fail(e, "ValueError: cannot convert float NaN to integer");
    if (isinf(d))
        return tmpl_fail(e, "OverflowError: cannot convert float infinity to integer");
    int n = snprintf(text, sizeof(text), "%.0f", tmpl_float_trunc(d));
    return tmpl_int_from_digits(e, text, (size_t)n, is_caller, out);
}

/* s without white space at its ends. */
static void trim_text(const struct str *s, size_t *p0, size_t *p1)
{
    uint32_t cp;
    *p0 = 0;
    *p1 = s->n;
    while (*p0 < *p1 && utf8_decode(s->s + *p0, *p1 - *p0, &cp) && uni_is_space(cp))
        *p0 += str_step(s, *p0);
    while (*p1 > *p0) {
        size_t back = str_step_back(s, *p1);
        if (!utf8_decode(s->s + *p1 - back, back, &cp) || !uni_is_space(cp))
            break;
        *p1 -= back;
    }
}

/* Digits of [p0, p1) without underscores (one between digits is allowed) into out; 0 if they are not digits of base. */
static size_t clean_digits(const struct str *s, size_t p0, size_t p1, int base, char *out)
{
    size_t n = 0;
    for (size_t i = p0; i < p1; i++) {
        char c = s->s[i];
        if (c == '_') {
            if (i + 1 == p1 || s->s[i + 1] == '_' || i == p0)
                return 0;
            continue;
        }
        int d = c >= '0' && c <= '9'        ? c - '0'
                : isalpha((unsigned char)c) ? (c | 32) - 'a' + 10
                                            : 99;
        if (d >= base)
            return 0;
        out[n++] = c;
    }
    return n;
}

enum err_code tmpl_int_from_text(struct env *e, const struct str *s, int base, struct value *out,
                                 bool *ok)
{
    size_t p0, p1;
    char text[TMPL_DIGITS_MAX + 2];
    trim_text(s, &p0, &p1);
    *ok = false;
    bool is_negative = p0 < p1 && s->s[p0] == '-';
    p0 += p0 < p1 && (s->s[p0] == '-' || s->s[p0] == '+');
    if (p1 - p0 > TMPL_DIGITS_MAX)
        return ERR_OK;
    if (p1 - p0 > 2 && s->s[p0] == '0') {
        char c = (char)(s->s[p0 + 1] | 32);
        int known = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (known && (base == known || base == 0)) {
            base = known;
            p0 += 2 + (s->s[p0 + 2] == '_');
        }
    }
    if (base == 0)
        base = 10;
    size_t n = clean_digits(s, p0, p1, base, text + 1);
    if (n == 0)
        return ERR_OK;
    *ok = true;
    text[0] = '-';
    size_t zeros = 0;
    while (zeros + 1 < n && text[1 + zeros] == '0')
        zeros++;
    if (base == 10) {
        text[zeros] = '-';
        return tmpl_int_from_digits(e, text + zeros + !is_negative, n - zeros + is_negative,
                                    str_is_touched(s), out);
    }
    struct value v = tmpl_int(0, str_is_touched(s)), radix = tmpl_int(base, false);
    for (size_t i = zeros; i < n; i++) {
        char c = text[1 + i];
        struct value d = tmpl_int(c <= '9' ? c - '0' : (c | 32) - 'a' + 10, false);
        TRY(tmpl_binary(e, OP_MUL, &v, &radix, &v));
        TRY(tmpl_binary(e, OP_ADD, &v, &d, &v));
    }
    *out = v;
    return is_negative ? tmpl_negate(e, &v, true, out) : ERR_OK;
}

bool tmpl_float_from_text(const struct str *s, double *out)
{
    static const char *const words[] = { "inf", "infinity", "nan" };
    size_t p0, p1, n = 0;
    char text[1100];
    trim_text(s, &p0, &p1);
    if (p0 == p1 || p1 - p0 >= sizeof(text))
        return false;
    for (size_t i = p0; i < p1; i++) {
        char c = s->s[i];
        if (c == '_') {
            if (i == p0 || i + 1 == p1 || !isdigit((unsigned char)s->s[i - 1]) ||
                !isdigit((unsigned char)s->s[i + 1]))
                return false;
            continue;
        }
        text[n++] = c;
    }
    text[n] = '\0';
    const char *body = text + (text[0] == '-' || text[0] == '+');
    bool is_word = false;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        is_word |= strcasecmp(body, words[i]) == 0;
    if (!is_word && (strspn(body, "0123456789.eE+-") != strlen(body) || !body[0]))
        return false;
    char *end;
    *out = strtod(text, &end);
    return *end == '\0';
}
