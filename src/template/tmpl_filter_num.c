/* tmpl_filter_num.c - filters of numbers, of defaults, and the list of all filters. */
#include "template/template_ast.h"
#include "template/tmpl_float.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static enum err_code filter_##name(struct env *e, const struct value *v, const struct args *a, \
                                       struct value *out)

FILTER(abs)
{
    struct value zero = tmpl_int(0, false);
    bool is_less;
    TRY(tmpl_bind(e, "abs", "", 0, a, NULL));
    if (!tmpl_is_number(v))
        return tmpl_fail(e, "TypeError: bad operand type for abs(): '%s'", tmpl_type_name(v));
    if (v->type == V_FLOAT) {
        *out = tmpl_float(fabs(v->f), v->is_caller);
        return ERR_OK;
    }
    TRY(tmpl_ordered(e, "<", v, &zero, &is_less));
    return tmpl_negate(e, v, is_less, out);
}

/* int(float(v)), or the default */
static enum err_code int_by_float(struct env *e, const struct value *v,
                                  const struct value *fallback, struct value *out)
{
    double d;
    *out = *fallback;
    if (v->type != V_STR || !tmpl_float_from_text(v->s, &d) || !isfinite(d))
        return ERR_OK;
    return tmpl_int_from_double(e, d, str_is_touched(v->s), out);
}

FILTER(int)
{
    struct value arg[2], zero = tmpl_int(0, false);
    int64_t base = 10;
    bool ok = false;
    TRY(tmpl_bind(e, "int", "default base", 0, a, arg));
    const struct value *fallback = arg[0].type == V_MISSING ? &zero : &arg[0];
    if (arg[1].type != V_MISSING && !tmpl_as_int(&arg[1], &base))
        base = -1; /* of no use, and looked at for texts only */
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (v->type == V_FLOAT && !isnan(v->f))
        return tmpl_int_from_double(e, v->f, v->is_caller, out);
    if (tmpl_is_number(v) && v->type != V_FLOAT)
        return tmpl_negate(e, v, false, out);
    if (v->type == V_STR && (base == 0 || (base >= 2 && base <= 36)))
        TRY(tmpl_int_from_text(e, v->s, (int)base, out, &ok));
    return ok ? ERR_OK : int_by_float(e, v, fallback, out);
}

FILTER(float)
{
    struct value arg;
    double d;
    TRY(tmpl_bind(e, "float", "default", 0, a, &arg));
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (tmpl_is_number(v)) {
        d = tmpl_as_double(v);
        if (v->type == V_BIG && isinf(d))
            return tmpl_fail(e, "OverflowError: int too large to convert to float");
        *out = tmpl_float(d, v->is_caller);
    } else if (v->type == V_STR && tmpl_float_from_text(v->s, &d)) {
        *out = tmpl_float(d, str_is_touched(v->s));
    } else {
        *out = arg.type == V_MISSING ? tmpl_float(0, false) : arg;
    }
    return ERR_OK;
}

/* round(d, digits) as Python: correctly rounded, halves to even. */
static double round_double(double d, int64_t digits)
{
    char text[700];
    if (!isfinite(d) || digits > 323)
        return d;
    if (digits < -308)
        return copysign(0.0, d);
    if (digits >= 0) {
        snprintf(text, sizeof(text), "%.*f", (int)digits, d);
        return strtod(text, NULL);
    }
    double p = tmpl_float_pow10((long)-digits);
    return tmpl_float_round_even(d / p) * p;
}

static enum err_code round_int(struct env *e, const struct value *v, int64_t digits,
                               struct value *out)
{
    int64_t i, p = 1;
    if (digits >= 0 || !tmpl_as_int(v, &i))
        return tmpl_negate(e, v, false, out);
    for (; digits < 0 && p <= INT64_MAX / 10; digits++)
        p *= 10;
    if (digits < 0) {
        *out = tmpl_int(0, v->is_caller);
        return ERR_OK;
    }
    int64_t rest = i % p, down = i - rest;
    if (rest < 0) {
        rest += p;
        down -= p;
    }
    bool is_up = rest > p - rest || (rest == p - rest && (down / p) % 2 != 0);
    struct value low = tmpl_int(down, v->is_caller), step = tmpl_int(is_up ? p : 0, false);
    return tmpl_sum(e, &low, &step, out);
}

FILTER(round)
{
    struct value arg[2];
    const struct str *method = NULL;
    int64_t digits = 0;
    TRY(tmpl_bind(e, "round", "precision method", 0, a, arg));
    bool is_plain = arg[0].type == V_NONE; /* round(x, None): to an integer */
    if (!is_plain)
        TRY(tmpl_arg_int(e, &arg[0], &digits));
    TRY(tmpl_arg_str(e, &arg[1], &method));
    if (method && !str_is(method, "common") && !str_is(method, "ceil") && !str_is(method, "floor"))
        return tmpl_fail(e, "FilterArgumentError: method must be common, ceil or floor");
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (!tmpl_is_number(v))
        return tmpl_fail(e, "TypeError: type %s doesn't define __round__ method",
                         tmpl_type_name(v));
    if (!method || str_is(method, "common")) {
        if (v->type != V_FLOAT)
            return round_int(e, v, digits, out);
        if (is_plain)
            return tmpl_int_from_double(e, isfinite(v->f) ? tmpl_float_round_even(v->f) : v->f,
                                        v->is_caller, out);
        *out = tmpl_float(round_double(v->f, digits), v->is_caller);
        return ERR_OK;
    }
    if (is_plain)
        return tmpl_fail(
            e, "TypeError: unsupported operand type(s) for ** or pow(): 'int' and 'NoneType'");
    double p = tmpl_float_pow10(digits > 400 ? 400 : digits < -400 ? -400 : (long)digits);
    double x = tmpl_as_double(v) * p;
    if (!isfinite(x) || p == 0)
        return tmpl_fail(e, "OverflowError: cannot convert float infinity to integer");
    *out = tmpl_float((str_is(method, "ceil") ? -tmpl_float_floor(-x) : tmpl_float_floor(x)) / p,
                      v->is_caller);
    if (out->f == 0) /* an integer's zero has no sign */
        out->f = 0;
    return ERR_OK;
}

FILTER(filesizeformat)
{
    static const char *const units[] = { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" };
    static const char *const binary_units[] = { "KiB", "MiB", "GiB", "TiB",
                                                "PiB", "EiB", "ZiB", "YiB" };
    struct value arg, number;
    bool is_binary = false;
    char text[400];
    const struct args none = { 0 };
    TRY(tmpl_bind(e, "filesizeformat", "binary", 0, a, &arg));
    tmpl_arg_bool(&arg, &is_binary);
    if (!tmpl_is_number(v) && !(v->type == V_STR && tmpl_float_from_text(v->s, &number.f)))
        return tmpl_fail(e, "TypeError: filesizeformat needs a number, not %s", tmpl_type_name(v));
    TRY(filter_float(e, v, &none, &number));
    double bytes = number.f, base = is_binary ? 1024 : 1000, unit = base;
    size_t i = 0;
    if (bytes == 1) {
        snprintf(text, sizeof(text), "1 Byte");
    } else if (bytes < base) {
        snprintf(text, sizeof(text), "%.0f Bytes", tmpl_float_trunc(bytes));
    } else {
        for (unit = base * base; i + 1 < ARRAY_LEN(units) && bytes >= unit; i++)
            unit *= base;
        snprintf(text, sizeof(text), "%.1f %s", base * bytes / unit,
                 is_binary ? binary_units[i] : units[i]);
    }
    return tmpl_str(e, text, strlen(text), number.is_caller, out);
}

FILTER(default)
{
    struct value arg[2];
    bool by_truth = false;
    TRY(tmpl_bind(e, "default", "default_value boolean", 0, a, arg));
    tmpl_arg_bool(&arg[1], &by_truth);
    if (v->type != V_UNDEF && !(by_truth && !tmpl_truth(v))) {
        *out = *v;
        return ERR_OK;
    }
    if (arg[0].type == V_MISSING)
        return tmpl_cstr(e, "", out);
    *out = arg[0];
    return ERR_OK;
}

FILTER(attr)
{
    struct value name;
    bool has;
    TRY(tmpl_bind(e, "attr", "name", 1, a, &name));
    if (name.type != V_STR)
        return tmpl_fail(e, "TypeError: attribute name must be string, not '%s'",
                         tmpl_type_name(&name));
    TRY(tmpl_real_attr(e, v, name.s, out, &has));
    return has ? ERR_OK : tmpl_undef(e, tmpl_type_name(v), name, out);
}

const struct filter tmpl_num_filters[] = {
    { "abs", filter_abs },
    { "int", filter_int },
    { "float", filter_float },
    { "round", filter_round },
    { "filesizeformat", filter_filesizeformat },
    { "default", filter_default },
    { "d", filter_default },
    { "attr", filter_attr },
    { NULL, NULL },
};

const struct filter *tmpl_filter_find(const char *name, size_t n)
{
    static const struct filter *const tables[] = { tmpl_text_filters, tmpl_wrap_filters,
                                                   tmpl_seq_filters, tmpl_pick_filters,
                                                   tmpl_num_filters };
    for (size_t t = 0; t < ARRAY_LEN(tables); t++)
        for (const struct filter *f = tables[t]; f->name; f++)
            if (strlen(f->name) == n && memcmp(f->name, name, n) == 0)
                return f;
    return NULL;
}

bool tmpl_filter_is_refused(const char *name, size_t n)
{
    /* random: an answer must not depend on it. urlize makes HTML links, pprint is for debugging. */
    static const char *const names[] = { "random", "urlize", "pprint" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
            return true;
    return false;
}
