/* json_number.c - numbers between bounds as expressions, by their digits. */
#include "grammar/json_schema_int.h"

#include <stdio.h>
#include <string.h>

static const struct expr *number_digits(struct build *b, char lo, char hi)
{
    struct expr_range r = { (uint8_t)lo, (uint8_t)hi };
    return lo > hi ? expr_none() : expr_class(b, &r, 1, false);
}

static const struct expr *number_any(struct build *b, int64_t min, int64_t max)
{
    return expr_repeat(b, number_digits(b, '0', '9'), min, max);
}

/* --- whole numbers --- */

static bool number_is_all(const char *s, char c)
{
    return strspn(s, (const char[]){ c, '\0' }) == strlen(s);
}

/* Digits of the length of s that are at least (at most) s. */
static const struct expr *number_from(struct build *b, const char *s, bool is_least)
{
    int64_t n = (int64_t)strlen(s);
    if (number_is_all(s, is_least ? '0' : '9'))
        return number_any(b, n, n);
    const struct expr *same = expr_seq2(b, expr_bytes(b, s, 1), number_from(b, s + 1, is_least));
    const struct expr *other = is_least ? number_digits(b, (char)(s[0] + 1), '9')
                                        : number_digits(b, '0', (char)(s[0] - 1));
    return expr_alt2(b, same, expr_seq2(b, other, number_any(b, n - 1, n - 1)));
}

/* Digits between lo and hi, which are of one length. */
static const struct expr *number_span(struct build *b, const char *lo, const char *hi)
{
    int64_t n = (int64_t)strlen(lo);
    if (n == 0)
        return expr_empty();
    if (lo[0] > hi[0])
        return expr_none();
    bool is_low = number_is_all(lo + 1, '0'), is_high = number_is_all(hi + 1, '9');
    if (is_low && is_high)
        return expr_seq2(b, number_digits(b, lo[0], hi[0]), number_any(b, n - 1, n - 1));
    if (lo[0] == hi[0])
        return expr_seq2(b, expr_bytes(b, lo, 1), number_span(b, lo + 1, hi + 1));
    const struct expr *middle =
        expr_seq2(b, number_digits(b, (char)(lo[0] + !is_low), (char)(hi[0] - !is_high)),
                  number_any(b, n - 1, n - 1));
    const struct expr *low = expr_none(), *high = expr_none();
    if (!is_low)
        low = expr_seq2(b, expr_bytes(b, lo, 1), number_from(b, lo + 1, true));
    if (!is_high)
        high = expr_seq2(b, expr_bytes(b, hi, 1), number_from(b, hi + 1, false));
    return expr_alt2(b, low, expr_alt2(b, middle, high));
}

/* Whole numbers from lo to hi without a sign, no zeros in front; hi "" = no bound. Both have NUMBER_DIGITS digits at most. */
const struct expr *json_number_whole(struct build *b, const char *lo, const char *hi)
{
    char top[NUMBER_DIGITS + 1], one[NUMBER_DIGITS + 1];
    int64_t n = (int64_t)strlen(lo), last = *hi ? (int64_t)strlen(hi) : NUMBER_DIGITS;
    if (n > last)
        return expr_none();
    if (n == last)
        return number_span(b, lo, *hi ? hi : "9999999999999999999");
    memset(top, '9', (size_t)n);
    top[n] = '\0';
    memset(one, '0', (size_t)last);
    one[0] = '1';
    one[last] = '\0';
    int64_t full = *hi ? last - 1 : last; /* digits of numbers that no bound touches */
    const struct expr *low = number_span(b, lo, top), *middle = expr_none(), *high = expr_none();
    if (full > n)
        middle = expr_seq2(b, number_digits(b, '1', '9'), number_any(b, n, full - 1));
    if (*hi)
        high = number_span(b, one, hi);
    return expr_alt2(b, low, expr_alt2(b, middle, high));
}

/* --- decimals --- */

/* Behind the point: at least f, digit by digit; over: more than f. */
static const struct expr *number_part_from(struct build *b, const char *f, bool is_over)
{
    if (*f == '\0') {
        const struct expr *more =
            expr_seq3(b, expr_repeat(b, expr_text(b, "0"), 0, NUMBER_PART),
                      number_digits(b, '1', '9'), number_any(b, 0, NUMBER_PART));
        return is_over ? more : number_any(b, 0, NUMBER_PART);
    }
    return expr_alt2(
        b, expr_seq2(b, expr_bytes(b, f, 1), number_part_from(b, f + 1, is_over)),
        expr_seq2(b, number_digits(b, (char)(f[0] + 1), '9'), number_any(b, 0, NUMBER_PART)));
}

static const struct expr *number_part_to(struct build *b, const char *f, bool is_under)
{
    const struct expr *rest;
    if (f[1] == '\0')
        rest = is_under ? expr_none() : expr_repeat(b, expr_text(b, "0"), 0, NUMBER_PART);
    else
        rest = expr_alt2(b, expr_empty(), number_part_to(b, f + 1, is_under));
    return expr_alt2(
        b, expr_seq2(b, expr_bytes(b, f, 1), rest),
        expr_seq2(b, number_digits(b, '0', (char)(f[0] - 1)), number_any(b, 0, NUMBER_PART)));
}

static const struct expr *number_point(struct build *b, const struct expr *digits)
{
    return expr_seq2(b, expr_text(b, "."), digits);
}

/* Point and digits, or nothing: at least (at most) 0.f. */
static const struct expr *number_tail(struct build *b, const char *f, bool is_least, bool excludes)
{
    const struct expr *digit = number_any(b, 1, NUMBER_PART);
    if (is_least && *f == '\0')
        return excludes ? number_point(b, number_part_from(b, f, true))
                        : expr_optional(b, number_point(b, digit));
    if (is_least) {
        const struct expr *x = number_part_from(b, f, excludes);
        return number_point(b, x);
    }
    if (*f == '\0')
        return excludes ? expr_none()
                        : expr_optional(b, number_point(b, expr_repeat(b, expr_text(b, "0"), 1,
                                                                       NUMBER_PART)));
    return expr_alt2(b, expr_empty(), number_point(b, number_part_to(b, f, excludes)));
}

static int number_compare_whole(const char *x, const char *y)
{
    size_t n = strlen(x), m = strlen(y);
    return n != m ? (n < m ? -1 : 1) : strcmp(x, y);
}

/* One more than s, or one less (then s is not 0). */
static void number_next(const char *s, int by, char out[NUMBER_DIGITS + 2])
{
    long long v = 0;
    for (const char *p = s; *p; p++)
        v = v * 10 + (*p - '0');
    v += by;
    char text[NUMBER_DIGITS + 2];
    int n = 0;
    do
        text[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0 && n <= NUMBER_DIGITS);
    for (int i = 0; i < n; i++)
        out[i] = text[n - 1 - i];
    out[n] = '\0';
}

/* Decimals without a sign between lo and hi (NULL: no bound). */
static const struct expr *number_between(struct build *b, const struct json_bound *lo,
                                         const struct json_bound *hi)
{
    char next[NUMBER_DIGITS + 2], before[NUMBER_DIGITS + 2];
    const struct expr *part = expr_optional(b, number_point(b, number_any(b, 1, NUMBER_PART)));
    const struct expr *low =
        expr_seq2(b, expr_text(b, lo->whole), number_tail(b, lo->part, true, lo->excludes));
    number_next(lo->whole, 1, next);
    if (!hi)
        return expr_alt2(b, low, expr_seq2(b, json_number_whole(b, next, ""), part));
    int c = number_compare_whole(lo->whole, hi->whole);
    const struct expr *to = number_tail(b, hi->part, false, hi->excludes);
    if (c > 0)
        return expr_none();
    if (c == 0)
        return expr_seq2(b, expr_text(b, lo->whole),
                         expr_and(b, number_tail(b, lo->part, true, lo->excludes), to));
    const struct expr *high = expr_seq2(b, expr_text(b, hi->whole), to), *middle = expr_none();
    number_next(hi->whole, -1, before);
    if (number_compare_whole(next, before) <= 0)
        middle = expr_seq2(b, json_number_whole(b, next, before), part);
    return expr_alt2(b, low, expr_alt2(b, middle, high));
}

static bool number_is_zero(const struct json_bound *x)
{
    return strcmp(x->whole, "0") == 0 && x->part[0] == '\0';
}

const struct expr *json_number_range(struct build *b, const struct json_bound *lo,
                                     const struct json_bound *hi)
{
    static const struct json_bound zero = { .whole = "0" },
                                   over = { .whole = "0", .excludes = true };
    struct json_bound x, y;
    const struct expr *negative = expr_none(), *positive = expr_none();
    if (!lo || lo->is_negative) { /* magnitudes: the bounds change places */
        bool is_below = hi && hi->is_negative;
        if (is_below)
            x = *hi;
        if (lo)
            y = *lo;
        negative = expr_seq2(b, expr_text(b, "-"),
                             number_between(b, is_below ? &x : &over, lo ? &y : NULL));
    }
    if (!hi || !hi->is_negative) {
        const struct json_bound *from = lo && !lo->is_negative ? lo : &zero;
        if (!(hi && number_is_zero(hi) && hi->excludes))
            positive = number_between(b, from, hi);
    }
    return expr_alt2(b, negative, positive);
}

/* --- bounds as they are written --- */

bool json_number_bound(const struct json *v, struct json_bound *out)
{
    char digits[2 * NUMBER_DIGITS + 4];
    int n = 0, exponent = 0, sign = 1;
    bool is_point = false;
    const char *p = v->text;
    *out = (struct json_bound){ .is_negative = *p == '-' };
    p += *p == '-';
    for (; *p && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') {
            is_point = true;
            continue;
        }
        exponent -= is_point;
        if (n == 0 && *p == '0')
            continue;
        if (n == 2 * NUMBER_DIGITS)
            return false;
        digits[n++] = *p;
    }
    if (*p) {
        int e = 0;
        p++;
        sign = *p == '-' ? -1 : 1;
        p += *p == '-' || *p == '+';
        for (; *p && e < 1000; p++)
            e = e * 10 + (*p - '0');
        exponent += sign * e;
    }
    while (n > 0 && digits[n - 1] == '0') {
        n--;
        exponent++;
    }
    if (n == 0) {
        out->whole[0] = '0';
        out->is_negative = false;
        return true;
    }
    int whole = n + exponent, k = 0;
    if (whole > NUMBER_DIGITS - 1 || -exponent > NUMBER_PART)
        return false;
    for (int i = 0; i < whole; i++)
        out->whole[k++] = i < n ? digits[i] : '0';
    if (whole <= 0)
        out->whole[k++] = '0';
    k = 0;
    for (int i = whole; i < n; i++)
        out->part[k++] = i < 0 ? '0' : digits[i];
    return true;
}

/* The least whole number that is in (is_least), or the greatest. */
long long json_number_round(const struct json_bound *x, bool is_least)
{
    long long v = 0;
    for (const char *p = x->whole; *p; p++)
        v = v * 10 + (*p - '0');
    bool has_part = x->part[0] != '\0';
    if (x->is_negative) {
        v = -v;
        if (has_part)
            return is_least ? v : v - 1;
    } else if (has_part) {
        return is_least ? v + 1 : v;
    }
    return v + (x->excludes ? (is_least ? 1 : -1) : 0);
}

static void number_text(long long v, char out[NUMBER_DIGITS + 2])
{
    snprintf(out, NUMBER_DIGITS + 2, "%lld", v < 0 ? -v : v);
}

const struct expr *json_number_integers(struct build *b, const long long *lo, const long long *hi)
{
    char from[NUMBER_DIGITS + 2], to[NUMBER_DIGITS + 2];
    const struct expr *negative = expr_none(), *positive = expr_none();
    if (lo && hi && *lo > *hi)
        return expr_none();
    if (!lo || *lo < 0) {
        number_text(hi && *hi < 0 ? *hi : 1, from);
        if (lo)
            number_text(*lo, to);
        negative = expr_seq2(b, expr_text(b, "-"), json_number_whole(b, from, lo ? to : ""));
    }
    if (!hi || *hi >= 0) {
        number_text(lo && *lo > 0 ? *lo : 0, from);
        if (hi)
            number_text(*hi, to);
        positive = json_number_whole(b, from, hi ? to : "");
    }
    return expr_alt2(b, negative, positive);
}
