/* tmpl_attr.c - a.b, a[b], a[b:c:d] with the rules of jinja2's sandbox: an attribute is looked up before an item for ".", after it
 * for "[]"; names that start with an underscore and methods that change a list or dict are out of reach. */
#include "template/template_ast.h"

#include <stdio.h>
#include <string.h>

/* Attributes that every Python object has. The sandbox refuses them all. */
static bool attr_is_dunder(const struct str *name)
{
    static const char *const names[] = {
        "__class__",         "__delattr__", "__dict__",      "__dir__",
        "__doc__",           "__eq__",      "__format__",    "__ge__",
        "__getattribute__",  "__gt__",      "__hash__",      "__init__",
        "__init_subclass__", "__le__",      "__lt__",        "__ne__",
        "__new__",           "__reduce__",  "__reduce_ex__", "__repr__",
        "__setattr__",       "__sizeof__",  "__str__",       "__subclasshook__",
        "__getstate__",      "__len__",     "__iter__",      "__getitem__",
        "__contains__",      "__add__",     "__mul__",       "__class_getitem__",
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (str_is(name, names[i]))
            return true;
    return false;
}

static bool attr_is_mutator(const struct value *obj, const struct str *name)
{
    static const char *const of_list[] = { "append", "clear", "pop",    "reverse",
                                           "insert", "sort",  "extend", "remove" };
    static const char *const of_dict[] = { "clear", "pop", "popitem", "setdefault", "update" };
    const char *const *names = obj->type == V_LIST ? of_list : of_dict;
    size_t n = obj->type == V_LIST   ? ARRAY_LEN(of_list)
               : obj->type == V_DICT ? ARRAY_LEN(of_dict)
                                     : 0;
    for (size_t i = 0; i < n; i++)
        if (str_is(name, names[i]))
            return true;
    return false;
}

static enum err_code attr_unsafe(struct env *e, const struct value *obj, const struct str *name,
                                 struct value *out)
{
    char text[160];
    snprintf(text, sizeof(text), "access to attribute '%.*s' of '%s' object is unsafe.",
             (int)(name->n < 60 ? name->n : 60), name->s, tmpl_type_name(obj));
    return tmpl_undef_hint(e, text, out);
}

static enum err_code attr_missing(struct env *e, const struct value *obj, struct value name,
                                  struct value *out)
{
    static const char *const types[] = {
        [V_BOOL] = "bool object",
        [V_INT] = "int object",
        [V_BIG] = "int object",
        [V_FLOAT] = "float object",
        [V_STR] = "str object",
        [V_LIST] = "list object",
        [V_TUPLE] = "tuple object",
        [V_DICT] = "dict object",
        [V_RANGE] = "range object",
        [V_ITER] = "generator object",
        [V_NONE] = "None",
        [V_MACRO] = "jinja2.runtime.Macro object",
        [V_LOOP] = "jinja2.runtime.LoopContext object",
        [V_NAMESPACE] = "jinja2.utils.Namespace object",
    };
    const char *type =
        obj->type < ARRAY_LEN(types) && types[obj->type] ? types[obj->type] : tmpl_type_name(obj);
    return tmpl_undef(e, type, name, out);
}

static enum err_code attr_field(struct env *e, const struct value *obj, const struct str *name,
                                struct value *out, bool *has)
{
    struct value *found;
    switch (obj->type) {
    case V_NAMESPACE:
        found = tmpl_dict_str(obj->dict, name->s, name->n);
        *has = found != NULL;
        if (found)
            *out = *found;
        return ERR_OK;
    case V_LOOP:
        return tmpl_loop_attr(e, obj->loop, name, out, has);
    case V_CYCLER:
        *has = str_is(name, "current");
        if (*has)
            *out = obj->cycler->items.items[obj->cycler->pos];
        return ERR_OK;
    case V_MACRO:
        *has = str_is(name, "name") && obj->macro->def->name;
        return *has ? tmpl_str(e, obj->macro->def->name->s, obj->macro->def->name->n, false, out)
                    : ERR_OK;
    case V_TUPLE:
        *has = obj->seq->is_group && (str_is(name, "grouper") || str_is(name, "list"));
        if (*has)
            *out = obj->seq->items[str_is(name, "list")];
        return ERR_OK;
    case V_RANGE:
        *has = str_is(name, "start") || str_is(name, "stop") || str_is(name, "step");
        if (*has)
            *out = tmpl_int(str_is(name, "start")  ? obj->range->start
                            : str_is(name, "stop") ? obj->range->stop
                                                   : obj->range->step,
                            false);
        return ERR_OK;
    case V_FLOAT:
        *has = str_is(name, "real") || str_is(name, "imag");
        if (*has)
            *out = tmpl_float(name->s[0] == 'r' ? obj->f : 0, obj->is_caller);
        return ERR_OK;
    case V_BOOL:
    case V_INT:
        *has = str_is(name, "real") || str_is(name, "numerator") || str_is(name, "imag") ||
               str_is(name, "denominator");
        if (*has) {
            int64_t i = 0;
            tmpl_as_int(obj, &i);
            *out = tmpl_int(name->s[0] == 'i' ? 0 : name->s[0] == 'd' ? 1 : i, obj->is_caller);
        }
        return ERR_OK;
    default:
        *has = false;
        return ERR_OK;
    }
}

enum err_code tmpl_real_attr(struct env *e, const struct value *obj, const struct str *name,
                             struct value *out, bool *has)
{
    *has = true;
    if (obj->type == V_UNDEF)
        return tmpl_use_undef(e, obj);
    if ((obj->type != V_NAMESPACE && attr_is_dunder(name)) || attr_is_mutator(obj, name))
        return attr_unsafe(e, obj, name, out);
    const struct method *m = tmpl_method_find(obj, name->s, name->n);
    if (m) {
        struct bound *b = tmpl_alloc(e, sizeof(*b));
        TRY(tmpl_check(e));
        *b = (struct bound){ .self = *obj, .method = m };
        *out = (struct value){ .type = V_METHOD, .bound = b };
        return ERR_OK;
    }
    return attr_field(e, obj, name, out, has);
}

/* obj[key] of sequences; false in *has if there is no such item. */
static enum err_code item_at(struct env *e, const struct value *obj, const struct value *key,
                             struct value *out, bool *has)
{
    int64_t i;
    size_t n;
    *has = false;
    if (!tmpl_as_int(key, &i) || !tmpl_len(obj, &n))
        return ERR_OK;
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return ERR_OK;
    switch (obj->type) {
    case V_STR: {
        TRY(tmpl_step(e, str_chars(obj->s) == obj->s->n ? 1 : (size_t)i / 64 + 1));
        size_t at = str_offset(obj->s, (size_t)i);
        *has = true;
        return tmpl_part(e, obj->s, at, at + str_step(obj->s, at), out);
    }
    case V_LIST:
    case V_TUPLE:
        *out = obj->seq->items[i];
        *has = true;
        return ERR_OK;
    case V_RANGE:
        *out = tmpl_int(obj->range->start + i * obj->range->step, false);
        *has = true;
        return ERR_OK;
    default:
        return ERR_OK;
    }
}

static enum err_code item_get(struct env *e, const struct value *obj, const struct value *key,
                              struct value *out, bool *has)
{
    struct value *found;
    *has = false;
    if (obj->type == V_UNDEF)
        return tmpl_use_undef(e, obj);
    if (obj->type != V_DICT)
        return item_at(e, obj, key, out, has);
    if (key->type == V_LIST || key->type == V_DICT)
        return ERR_OK; /* unhashable: jinja2 makes it undefined */
    TRY(tmpl_dict_get(e, obj->dict, key, &found));
    *has = found != NULL;
    if (found)
        *out = *found;
    return ERR_OK;
}

enum err_code tmpl_getattr(struct env *e, const struct value *obj, const struct str *name,
                           struct value *out)
{
    bool has;
    struct value key = { .type = V_STR, .s = (struct str *)name };
    TRY(tmpl_real_attr(e, obj, name, out, &has));
    if (!has)
        TRY(item_get(e, obj, &key, out, &has));
    return has ? ERR_OK : attr_missing(e, obj, key, out);
}

enum err_code tmpl_getitem(struct env *e, const struct value *obj, const struct value *key,
                           struct value *out)
{
    bool has;
    TRY(item_get(e, obj, key, out, &has));
    if (!has && key->type == V_STR)
        TRY(tmpl_real_attr(e, obj, key->s, out, &has));
    return has ? ERR_OK : attr_missing(e, obj, *key, out);
}

/* --- slices --- */

static enum err_code slice_bound(struct env *e, const struct value *v, int64_t fallback,
                                 int64_t *out)
{
    *out = fallback;
    if (v->type == V_MISSING || v->type == V_NONE)
        return ERR_OK;
    if (v->type == V_BIG) {
        *out = v->s->s[0] == '-' ? INT64_MIN : INT64_MAX;
        return ERR_OK;
    }
    if (!tmpl_as_int(v, out))
        return tmpl_fail(
            e, "TypeError: slice indices must be integers or None or have an __index__ method");
    return ERR_OK;
}

static int64_t slice_clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? low - 1 : i + n;
    return i < low ? low : i > high ? high : i;
}

static enum err_code slice_str(struct env *e, const struct str *s, int64_t start, int64_t stop,
                               int64_t step, size_t n, struct value *out)
{
    struct sb b;
    TRY(tmpl_step(e, s->n / 64 + 1));
    if (step == 1) {
        size_t p0 = str_offset(s, (size_t)start);
        size_t p1 = n ? str_offset(s, (size_t)start + n) : p0;
        return tmpl_part(e, s, p0, p1, out);
    }
    sb_init(&b, e);
    size_t at = str_offset(s, (size_t)start), at_char = (size_t)start;
    for (size_t i = 0; i < n; i++) {
        size_t want = (size_t)(start + (int64_t)i * step);
        while (at_char < want) {
            at += str_step(s, at);
            at_char++;
        }
        while (at_char > want) {
            at -= str_step_back(s, at);
            at_char--;
        }
        sb_add_part(&b, s, at, at + str_step(s, at));
    }
    TRY(tmpl_step(e, s->n / 8));
    TRY(sb_finish(&b, out));
    out->s->is_markup = s->is_markup;
    return ERR_OK;
}

enum err_code tmpl_slice(struct env *e, const struct value *obj, const struct value part[3],
                         struct value *out)
{
    int64_t start, stop, step;
    size_t len;
    if (obj->type == V_UNDEF)
        return tmpl_use_undef(e, obj);
    if (obj->type == V_DICT)
        return tmpl_fail(e, "TypeError: unhashable type: 'slice'");
    if (obj->type == V_VIEW || !tmpl_len(obj, &len))
        return tmpl_fail(e, "TypeError: '%s' object is not subscriptable", tmpl_type_name(obj));
    int64_t n = (int64_t)len;
    TRY(slice_bound(e, &part[2], 1, &step));
    if (step == 0)
        return tmpl_fail(e, "ValueError: slice step cannot be zero");
    if (step == INT64_MIN)
        step = -INT64_MAX;
    bool is_up = step > 0;
    TRY(slice_bound(e, &part[0], is_up ? 0 : INT64_MAX, &start));
    TRY(slice_bound(e, &part[1], is_up ? n : INT64_MIN, &stop));
    start = slice_clamp(start, n, is_up ? 0 : -1, is_up ? n : n - 1);
    bool is_open = part[1].type == V_MISSING || part[1].type == V_NONE;
    stop = is_open && !is_up ? -1 : slice_clamp(stop, n, is_up ? 0 : -1, is_up ? n : n - 1);
    size_t count = tmpl_range_n(start, stop, step);
    if (obj->type == V_STR)
        return slice_str(e, obj->s, start, stop, step, count, out);
    if (obj->type == V_RANGE) {
        struct range *r = tmpl_alloc(e, sizeof(*r));
        TRY(tmpl_check(e));
        const struct range *q = obj->range;
        *r = (struct range){ .start = q->start + start * q->step,
                             .stop = q->start + stop * q->step,
                             .step = q->step * step,
                             .n = count };
        *out = (struct value){ .type = V_RANGE, .range = r };
        return ERR_OK;
    }
    TRY(tmpl_list_new(e, obj->type, count, out));
    out->is_caller = obj->is_caller;
    for (size_t i = 0; i < count; i++)
        TRY(tmpl_push(e, out, obj->seq->items[start + (int64_t)i * step]));
    return ERR_OK;
}

/* --- paths --- */

/* One part of a path: digits are an index. */
static enum err_code path_part(struct env *e, const struct str *s, size_t p0, size_t p1,
                               struct value *out)
{
    bool is_index = p1 > p0;
    for (size_t i = p0; i < p1; i++)
        is_index = is_index && s->s[i] >= '0' && s->s[i] <= '9';
    if (is_index)
        return tmpl_int_from_digits(e, s->s + p0, p1 - p0, false, out);
    return tmpl_part(e, s, p0, p1, out);
}

enum err_code tmpl_path(struct env *e, const struct value *item, const struct value *path,
                        const struct value *fallback, struct value *out)
{
    struct value v = *item, part, next;
    if (path->type == V_NONE || path->type == V_MISSING) {
        *out = v;
        return ERR_OK;
    }
    if (path->type != V_STR) {
        TRY(tmpl_getitem(e, &v, path, out));
        if (out->type == V_UNDEF && fallback)
            *out = *fallback;
        return ERR_OK;
    }
    const struct str *s = path->s;
    for (size_t p0 = 0; p0 <= s->n;) {
        const char *dot = p0 < s->n ? memchr(s->s + p0, '.', s->n - p0) : NULL;
        size_t p1 = dot ? (size_t)(dot - s->s) : s->n;
        TRY(path_part(e, s, p0, p1, &part));
        TRY(tmpl_getitem(e, &v, &part, &next));
        v = next.type == V_UNDEF && fallback ? *fallback : next;
        p0 = p1 + 1;
    }
    *out = v;
    return ERR_OK;
}
