/* json_value.c - looking at values: members, exact conversions. */
#include "json/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct json *json_get(const struct json *obj, const char *key)
{
    if (!json_is(obj, JSON_TYPE_OBJECT))
        return NULL;
    size_t n = strlen(key);
    for (size_t i = 0; i < obj->n; i++)
        if (obj->members[i].key_len == n && memcmp(obj->members[i].key, key, n) == 0)
            return &obj->members[i].value;
    return NULL;
}

const struct json *json_get_set(const struct json *obj, const char *key)
{
    const struct json *v = json_get(obj, key);
    return json_is(v, JSON_TYPE_NULL) ? NULL : v;
}

bool json_is(const struct json *v, enum json_type type)
{
    return v && v->type == type;
}

bool json_str_eq(const struct json *v, const char *s)
{
    return json_is(v, JSON_TYPE_STRING) && v->len == strlen(s) && memcmp(v->text, s, v->len) == 0;
}

/* A number's spelling taken apart: value = sign * (digits of int and frac, dot left out) * 10^exp. */
struct json_decimal {
    bool is_negative;
    const char *whole, *frac;
    size_t n_whole, n_frac;
    int64_t exp; /* as written, clamped far outside of what matters */
};

#define JSON_EXP_CLAMP 1000000000

static struct json_decimal json_split(const struct json *v)
{
    struct json_decimal d = { 0 };
    const char *p = v->text, *end = v->text + v->len;
    if (p < end && *p == '-') {
        d.is_negative = true;
        p++;
    }
    d.whole = p;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    d.n_whole = (size_t)(p - d.whole);
    if (p < end && *p == '.') {
        d.frac = ++p;
        while (p < end && *p >= '0' && *p <= '9')
            p++;
        d.n_frac = (size_t)(p - d.frac);
    }
    if (p < end && (*p | 32) == 'e') {
        bool is_down = *++p == '-';
        p += *p == '-' || *p == '+';
        for (; p < end && d.exp < JSON_EXP_CLAMP; p++)
            d.exp = d.exp * 10 + (*p - '0');
        if (is_down)
            d.exp = -d.exp;
    }
    return d;
}

static char json_digit(const struct json_decimal *d, size_t i)
{
    return i < d->n_whole ? d->whole[i] : d->frac[i - d->n_whole];
}

/* Exact int64 of a decimal; false if it has a fraction or does not fit. */
static bool json_decimal_int(const struct json_decimal *d, int64_t *out)
{
    size_t n = d->n_whole + d->n_frac;
    int64_t point = (int64_t)d->n_whole + d->exp; /* digits left of the dot */
    uint64_t limit = (uint64_t)INT64_MAX + d->is_negative, u = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t digit = (uint64_t)(json_digit(d, i) - '0');
        if ((int64_t)i >= point) {
            if (digit)
                return false;
            continue;
        }
        if (u > (limit - digit) / 10)
            return false;
        u = u * 10 + digit;
    }
    for (int64_t i = (int64_t)n; i < point && u; i++) {
        if (u > limit / 10)
            return false;
        u *= 10;
    }
    *out = d->is_negative ? (int64_t)(0 - u) : (int64_t)u;
    return true;
}

enum err_code json_to_int(const struct json *v, const char *what, int64_t min, int64_t max,
                          int64_t *out, struct err *err)
{
    int64_t i;
    if (!json_is(v, JSON_TYPE_NUMBER))
        return err_set(err, ERR_INVALID, "%s: must be an integer", what);
    struct json_decimal d = json_split(v);
    if (!json_decimal_int(&d, &i) || i < min || i > max)
        return err_set(err, ERR_INVALID, "%s: %.64s is not an integer from %lld to %lld", what,
                       v->text, (long long)min, (long long)max);
    *out = i;
    return ERR_OK;
}

enum err_code json_to_double(const struct json *v, const char *what, double min, double max,
                             double *out, struct err *err)
{
    if (!json_is(v, JSON_TYPE_NUMBER))
        return err_set(err, ERR_INVALID, "%s: must be a number", what);
    double x = strtod(v->text, NULL);
    if (!isfinite(x) || x < min || x > max)
        return err_set(err, ERR_INVALID, "%s: %.64s is not a number from %g to %g", what, v->text,
                       min, max);
    *out = x;
    return ERR_OK;
}
