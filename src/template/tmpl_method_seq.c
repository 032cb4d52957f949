/* tmpl_method_seq.c - methods of lists, tuples, dicts and numbers that the sandbox allows: those that change nothing. */
#include "template/template_ast.h"
#include "template/tmpl_float.h"

#include <math.h>
#include <string.h>

static enum err_code seq_count(struct env *e, const struct value *self, const struct args *a,
                               struct value *out)
{
    struct value v;
    int64_t n = 0;
    TRY(tmpl_bind(e, "count()", "value", 1, a, &v));
    for (size_t i = 0; i < self->seq->n; i++) {
        bool is_same;
        TRY(tmpl_step(e, 1));
        TRY(tmpl_equal(e, &self->seq->items[i], &v, &is_same));
        n += is_same;
    }
    *out = tmpl_int(n, false);
    return ERR_OK;
}

static enum err_code seq_index(struct env *e, const struct value *self, const struct args *a,
                               struct value *out)
{
    struct value v[3];
    int64_t n = (int64_t)self->seq->n, start = 0, stop = n;
    TRY(tmpl_bind(e, "index()", "value start stop", 1, a, v));
    TRY(tmpl_arg_int(e, &v[1], &start));
    TRY(tmpl_arg_int(e, &v[2], &stop));
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    stop = stop < 0 ? stop + n : stop;
    for (int64_t i = start; i < stop && i < n; i++) {
        bool is_same;
        TRY(tmpl_step(e, 1));
        TRY(tmpl_equal(e, &self->seq->items[i], &v[0], &is_same));
        if (is_same) {
            *out = tmpl_int(i, false);
            return ERR_OK;
        }
    }
    return tmpl_fail(e, "ValueError: value is not in %s", tmpl_type_name(self));
}

static enum err_code list_copy(struct env *e, const struct value *self, const struct args *a,
                               struct value *out)
{
    TRY(tmpl_bind(e, "copy()", "", 0, a, NULL));
    return tmpl_to_list(e, self, out);
}

const struct method tmpl_list_methods[] = {
    { "count", seq_count },
    { "index", seq_index },
    { "copy", list_copy }, /* tuples have none: it is the last */
    { NULL, NULL },
};

static enum err_code dict_get(struct env *e, const struct value *self, const struct args *a,
                              struct value *out)
{
    struct value v[2], *found;
    if (a->n_kw)
        return tmpl_fail(e, "TypeError: dict.get() takes no keyword arguments");
    TRY(tmpl_bind(e, "get()", "key default", 1, a, v));
    TRY(tmpl_dict_get(e, self->dict, &v[0], &found));
    *out = found ? *found : v[1].type == V_MISSING ? tmpl_none() : v[1];
    return ERR_OK;
}

static enum err_code dict_view(struct env *e, const struct value *self, const struct args *a,
                               enum view_kind kind, struct value *out)
{
    TRY(tmpl_bind(e, "items()", "", 0, a, NULL));
    struct view *v = tmpl_alloc(e, sizeof(*v));
    TRY(tmpl_check(e));
    *v = (struct view){ .dict = self->dict, .kind = kind, .is_caller = self->is_caller };
    *out = (struct value){ .type = V_VIEW, .is_caller = self->is_caller, .view = v };
    return ERR_OK;
}

static enum err_code dict_keys(struct env *e, const struct value *self, const struct args *a,
                               struct value *out)
{
    return dict_view(e, self, a, VIEW_KEYS, out);
}

static enum err_code dict_values(struct env *e, const struct value *self, const struct args *a,
                                 struct value *out)
{
    return dict_view(e, self, a, VIEW_VALUES, out);
}

static enum err_code dict_items(struct env *e, const struct value *self, const struct args *a,
                                struct value *out)
{
    return dict_view(e, self, a, VIEW_ITEMS, out);
}

static enum err_code dict_copy(struct env *e, const struct value *self, const struct args *a,
                               struct value *out)
{
    TRY(tmpl_bind(e, "copy()", "", 0, a, NULL));
    TRY(tmpl_dict_new(e, out));
    out->is_caller = self->is_caller;
    for (size_t i = 0; i < self->dict->n; i++)
        TRY(tmpl_dict_set(e, out->dict, self->dict->entries[i].key, self->dict->entries[i].value));
    return ERR_OK;
}

static enum err_code dict_fromkeys(struct env *e, const struct value *self, const struct args *a,
                                   struct value *out)
{
    struct value v[2], keys;
    TRY(tmpl_bind(e, "fromkeys()", "iterable value", 1, a, v));
    TRY(tmpl_to_list(e, &v[0], &keys));
    TRY(tmpl_dict_new(e, out));
    for (size_t i = 0; i < keys.seq->n; i++)
        TRY(tmpl_dict_set(e, out->dict, keys.seq->items[i],
                          v[1].type == V_MISSING ? tmpl_none() : v[1]));
    return ERR_OK;
}

const struct method tmpl_dict_methods[] = {
    { "get", dict_get },     { "keys", dict_keys }, { "values", dict_values },
    { "items", dict_items }, { "copy", dict_copy }, { "fromkeys", dict_fromkeys },
    { NULL, NULL },
};

static enum err_code float_is_integer(struct env *e, const struct value *self, const struct args *a,
                                      struct value *out)
{
    TRY(tmpl_bind(e, "is_integer()", "", 0, a, NULL));
    *out = tmpl_bool(isfinite(self->f) && tmpl_float_floor(self->f) == self->f);
    return ERR_OK;
}

const struct method tmpl_float_methods[] = {
    { "is_integer", float_is_integer },
    { NULL, NULL },
};

static const struct method *method_in(const struct method *m, const char *name, size_t n)
{
    for (; m->name; m++)
        if (strlen(m->name) == n && memcmp(m->name, name, n) == 0)
            return m;
    return NULL;
}

/* The dict type itself, as a global, has the one method of a class. */
static const struct method dict_class_methods[] = {
    { "fromkeys", dict_fromkeys },
    { NULL, NULL },
};

const struct method *tmpl_method_find(const struct value *self, const char *name, size_t n)
{
    const struct method *m;
    switch (self->type) {
    case V_STR:
        m = method_in(tmpl_str_methods, name, n);
        return m ? m : method_in(tmpl_str_case_methods, name, n);
    case V_LIST:
        return method_in(tmpl_list_methods, name, n);
    case V_TUPLE:
        m = method_in(tmpl_list_methods, name, n);
        return m && m->call == list_copy ? NULL : m;
    case V_DICT:
        return method_in(tmpl_dict_methods, name, n);
    case V_FLOAT:
        return method_in(tmpl_float_methods, name, n);
    case V_LOOP:
        return method_in(tmpl_loop_methods, name, n);
    case V_CYCLER:
        return method_in(tmpl_cycler_methods, name, n);
    case V_FUNC:
        return strcmp(self->func->name, "dict") == 0 ? method_in(dict_class_methods, name, n)
                                                     : NULL;
    default:
        return NULL;
    }
}
