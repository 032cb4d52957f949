/* tmpl_big.c - schoolbook arithmetic in base 1e9. Numbers are short (a seed, an id): no need for more. */
#include "template/tmpl_big.h"
#include "template/template_ast.h"

#include <stdio.h>
#include <string.h>

#define BIG_BASE  1000000000u
#define BIG_LIMBS (TMPL_DIGITS_MAX / 9 + 3)

struct big { /* little-endian limbs; n = 0 is zero */
    bool is_negative;
    size_t n;
    uint32_t limb[2 * BIG_LIMBS];
};

static void big_trim(struct big *x)
{
    while (x->n && x->limb[x->n - 1] == 0)
        x->n--;
    if (x->n == 0)
        x->is_negative = false;
}

static void big_read(const char *s, size_t n, struct big *x)
{
    x->is_negative = s[0] == '-';
    x->n = 0;
    for (size_t end = n, from = x->is_negative; end > from;) {
        size_t start = end - from > 9 ? end - 9 : from;
        uint32_t v = 0;
        for (size_t i = start; i < end; i++)
            v = v * 10 + (uint32_t)(s[i] - '0');
        x->limb[x->n++] = v;
        end = start;
    }
    big_trim(x);
}

static void big_from(const struct value *v, struct big *x)
{
    char text[24];
    int64_t i;
    if (v->type == V_BIG) {
        big_read(v->s->s, v->s->n, x);
        return;
    }
    tmpl_as_int(v, &i);
    big_read(text, (size_t)snprintf(text, sizeof(text), "%lld", (long long)i), x);
}

static enum err_code big_give(struct env *e, const struct big *x, bool is_caller, struct value *out)
{
    char text[9 * 2 * BIG_LIMBS + 16];
    size_t n = 0;
    if (x->n > BIG_LIMBS)
        return tmpl_fail(e, "ValueError: an integer is over the limit of %d digits",
                         TMPL_DIGITS_MAX);
    if (x->is_negative)
        text[n++] = '-';
    n += (size_t)snprintf(text + n, 12, "%u", x->n ? x->limb[x->n - 1] : 0);
    for (size_t i = x->n; i > 1; i--)
        n += (size_t)snprintf(text + n, 12, "%09u", x->limb[i - 2]);
    return tmpl_int_from_digits(e, text, n, is_caller, out);
}

static int big_compare(const struct big *a, const struct big *b)
{
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    for (size_t i = a->n; i > 0; i--)
        if (a->limb[i - 1] != b->limb[i - 1])
            return a->limb[i - 1] < b->limb[i - 1] ? -1 : 1;
    return 0;
}

/* |a| + |b| and |a| - |b| (need |a| >= |b|); the sign stays out's. */
static void big_add(const struct big *a, const struct big *b, struct big *out)
{
    uint32_t carry = 0;
    size_t n = a->n > b->n ? a->n : b->n;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = carry + (i < a->n ? a->limb[i] : 0) + (i < b->n ? b->limb[i] : 0);
        carry = v >= BIG_BASE;
        out->limb[i] = carry ? v - BIG_BASE : v;
    }
    out->n = n;
    if (carry)
        out->limb[out->n++] = 1;
}

static void big_sub(const struct big *a, const struct big *b, struct big *out)
{
    uint32_t borrow = 0;
    for (size_t i = 0; i < a->n; i++) {
        uint32_t d = borrow + (i < b->n ? b->limb[i] : 0);
        borrow = a->limb[i] < d;
        out->limb[i] = a->limb[i] + (borrow ? BIG_BASE : 0) - d;
    }
    out->n = a->n;
    big_trim(out);
}

static void big_signed_add(const struct big *a, const struct big *b, bool is_minus, struct big *out)
{
    bool b_negative = b->is_negative != is_minus;
    if (a->is_negative == b_negative) {
        out->is_negative = a->is_negative;
        big_add(a, b, out);
    } else if (big_compare(a, b) >= 0) {
        out->is_negative = a->is_negative;
        big_sub(a, b, out);
    } else {
        out->is_negative = b_negative;
        big_sub(b, a, out);
    }
    big_trim(out);
}

static void big_mul(const struct big *a, const struct big *b, struct big *out)
{
    memset(out->limb, 0, sizeof(out->limb));
    for (size_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < b->n || carry; j++) {
            uint64_t v =
                out->limb[i + j] + carry + (j < b->n ? (uint64_t)a->limb[i] * b->limb[j] : 0);
            out->limb[i + j] = (uint32_t)(v % BIG_BASE);
            carry = v / BIG_BASE;
        }
    }
    out->n = a->n + b->n;
    out->is_negative = a->is_negative != b->is_negative;
    big_trim(out);
}

/* rest = rest * base + limb, quotient limb by bisection: divisors are rarely long. */
static uint32_t big_div_step(struct big *rest, const struct big *b, uint32_t limb)
{
    struct big part = { 0 }, q = { .n = 1 };
    memmove(rest->limb + 1, rest->limb, rest->n * sizeof(*rest->limb));
    rest->limb[0] = limb;
    rest->n++;
    big_trim(rest);
    uint32_t lo = 0, hi = BIG_BASE - 1;
    while (lo < hi) {
        q.limb[0] = lo + (hi - lo + 1) / 2;
        big_mul(b, &q, &part);
        if (big_compare(&part, rest) <= 0)
            lo = q.limb[0];
        else
            hi = q.limb[0] - 1;
    }
    q.limb[0] = lo;
    q.n = lo ? 1 : 0;
    big_mul(b, &q, &part);
    big_sub(rest, &part, rest);
    return lo;
}

/* |a| / |b|, truncated */
static void big_divmod(const struct big *a, const struct big *b, struct big *quotient,
                       struct big *rest)
{
    *quotient = (struct big){ .n = a->n };
    *rest = (struct big){ 0 };
    for (size_t i = a->n; i > 0; i--)
        quotient->limb[i - 1] = big_div_step(rest, b, a->limb[i - 1]);
    big_trim(quotient);
}

/* Python's floor division and modulo. */
static void big_floor(const struct big *a, const struct big *b, struct big *quotient,
                      struct big *rest)
{
    struct big one = { .n = 1, .limb = { 1 } }, t;
    struct big a_abs = *a, b_abs = *b;
    a_abs.is_negative = b_abs.is_negative = false;
    big_divmod(&a_abs, &b_abs, quotient, rest);
    if (a->is_negative != b->is_negative) {
        if (rest->n) {
            t = *quotient;
            big_add(&t, &one, quotient);
            t = *rest;
            big_sub(&b_abs, &t, rest);
        }
        quotient->is_negative = quotient->n > 0;
    }
    rest->is_negative = b->is_negative && rest->n > 0;
}

enum err_code tmpl_big_binary(struct env *e, int op, const struct value *x, const struct value *y,
                              bool is_caller, struct value *out)
{
    struct big *a = tmpl_alloc(e, 4 * sizeof(struct big)), *b, *r, *rest;
    int64_t power;
    TRY(tmpl_check(e));
    TRY(tmpl_step(e, 200));
    b = a + 1;
    r = a + 2;
    rest = a + 3;
    big_from(x, a);
    big_from(y, b);
    if (b->n == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return tmpl_fail(e, op == OP_DIV ? "ZeroDivisionError: division by zero"
                                         : "ZeroDivisionError: integer division or modulo by zero");
    switch (op) {
    case OP_ADD:
    case OP_SUB:
        big_signed_add(a, b, op == OP_SUB, r);
        break;
    case OP_MUL:
        TRY(tmpl_step(e, a->n * b->n / 16));
        big_mul(a, b, r);
        break;
    case OP_FLOORDIV:
    case OP_MOD:
        TRY(tmpl_step(e, a->n * b->n * 16));
        big_floor(a, b, r, rest);
        return big_give(e, op == OP_MOD ? rest : r, is_caller, out);
    case OP_DIV:
        *out = tmpl_float(tmpl_as_double(x) / tmpl_as_double(y), is_caller);
        return ERR_OK;
    default:
        if (y->type == V_BIG || !tmpl_as_int(y, &power) || x->type != V_BIG || power < 0 ||
            power > 400)
            return tmpl_fail(e, "OverflowError: a power is over the limit of %d digits",
                             TMPL_DIGITS_MAX);
        *out = tmpl_int(1, is_caller);
        for (int64_t i = 0; i < power; i++)
            TRY(tmpl_binary(e, OP_MUL, out, x, out));
        return ERR_OK;
    }
    return big_give(e, r, is_caller, out);
}

enum err_code tmpl_big_pow(struct env *e, int64_t base, int64_t power, bool is_caller,
                           struct value *out)
{
    struct value factor = tmpl_int(base, is_caller);
    if (power > TMPL_DIGITS_MAX * 4)
        return tmpl_fail(e, "OverflowError: a power is over the limit of %d digits",
                         TMPL_DIGITS_MAX);
    *out = tmpl_int(1, is_caller);
    for (int64_t left = power; left > 0; left >>= 1) {
        if (left & 1)
            TRY(tmpl_binary(e, OP_MUL, out, &factor, out));
        if (left > 1)
            TRY(tmpl_binary(e, OP_MUL, &factor, &factor, &factor));
    }
    return ERR_OK;
}
