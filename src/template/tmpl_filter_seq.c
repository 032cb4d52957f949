/* tmpl_filter_seq.c - filters of sequences that give a value or a list: sort, groupby, first, join, sum, ... */
#include "template/template_ast.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static enum err_code filter_##name(struct env *e, const struct value *v, const struct args *a, \
                                       struct value *out)

/* --- sorting --- */

struct sorter {
    struct env *e;
    const struct value *keys;
    bool is_reverse;
    bool failed;
    enum err_code code;
};

/* Merge sort of order[0..n) by keys: stable, and its errors come out as Python's. */
static enum err_code sort_order(struct sorter *s, size_t *order, size_t *spare, size_t n)
{
    size_t half = n / 2, i = 0, j = half, k = 0;
    if (n < 2)
        return ERR_OK;
    TRY(sort_order(s, order, spare, half));
    TRY(sort_order(s, order + half, spare, n - half));
    while (i < half && j < n) {
        const struct value *left = &s->keys[order[i]], *right = &s->keys[order[j]];
        bool takes_right;
        TRY(tmpl_step(s->e, 1));
        TRY(tmpl_ordered(s->e, "<", s->is_reverse ? left : right, s->is_reverse ? right : left,
                         &takes_right));
        spare[k++] = takes_right ? order[j++] : order[i++];
    }
    while (i < half)
        spare[k++] = order[i++];
    memcpy(order, spare, k * sizeof(*order)); /* what is left on the right is in place */
    return ERR_OK;
}

enum err_code tmpl_sort(struct env *e, struct value *items, struct value *keys, size_t n,
                        bool is_reverse)
{
    size_t *order = tmpl_alloc_array(e, n + 1, 2 * sizeof(*order));
    struct value *copy = tmpl_alloc_array(e, n + 1, 2 * sizeof(*copy));
    struct sorter s = { .e = e, .keys = keys, .is_reverse = is_reverse };
    TRY(tmpl_check(e));
    if (n == 0)
        return ERR_OK;
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    TRY(sort_order(&s, order, order + n, n));
    memcpy(copy, items, n * sizeof(*copy));
    memcpy(copy + n, keys, n * sizeof(*copy));
    for (size_t i = 0; i < n; i++) {
        items[i] = copy[order[i]];
        keys[i] = copy[n + order[i]];
    }
    return ERR_OK;
}

/* lower() of a text, anything else as it is */
static enum err_code fold_case(struct env *e, bool is_sensitive, struct value *v)
{
    if (is_sensitive || v->type != V_STR)
        return ERR_OK;
    return tmpl_map_case(e, v->s, UNI_LOWER, v);
}

/* The sort key of an item: the list of its attributes ("age,name"), as lists compare: equal ones need no order. */
static enum err_code sort_key(struct env *e, const struct value *item, const struct value *path,
                              bool is_sensitive, struct value *out)
{
    struct value part, key;
    TRY(tmpl_list_new(e, V_LIST, 1, out));
    if (path->type != V_STR) {
        TRY(tmpl_path(e, item, path, NULL, &key));
        TRY(fold_case(e, is_sensitive, &key));
        return tmpl_push(e, out, key);
    }
    for (size_t p0 = 0; p0 <= path->s->n;) {
        const char *comma = p0 < path->s->n ? memchr(path->s->s + p0, ',', path->s->n - p0) : NULL;
        size_t p1 = comma ? (size_t)(comma - path->s->s) : path->s->n;
        TRY(tmpl_part(e, path->s, p0, p1, &part));
        TRY(tmpl_path(e, item, &part, NULL, &key));
        TRY(fold_case(e, is_sensitive, &key));
        TRY(tmpl_push(e, out, key));
        p0 = p1 + 1;
    }
    return ERR_OK;
}

FILTER(sort)
{
    struct value arg[3], keys, key;
    bool is_reverse = false, is_sensitive = false;
    TRY(tmpl_bind(e, "sort", "reverse case_sensitive attribute", 0, a, arg));
    tmpl_arg_bool(&arg[0], &is_reverse);
    tmpl_arg_bool(&arg[1], &is_sensitive);
    TRY(tmpl_to_list(e, v, out));
    TRY(tmpl_list_new(e, V_LIST, out->seq->n, &keys));
    for (size_t i = 0; i < out->seq->n; i++) {
        TRY(sort_key(e, &out->seq->items[i], &arg[2], is_sensitive, &key));
        TRY(tmpl_push(e, &keys, key));
    }
    return tmpl_sort(e, out->seq->items, keys.seq->items, out->seq->n, is_reverse);
}

FILTER(dictsort)
{
    struct value arg[3], keys, key, view;
    const struct str *by = NULL;
    const struct args none = { 0 };
    bool is_sensitive = false, is_reverse = false;
    TRY(tmpl_bind(e, "dictsort", "case_sensitive by reverse", 0, a, arg));
    tmpl_arg_bool(&arg[0], &is_sensitive);
    TRY(tmpl_arg_str(e, &arg[1], &by));
    tmpl_arg_bool(&arg[2], &is_reverse);
    if (by && !str_is(by, "key") && !str_is(by, "value"))
        return tmpl_fail(e,
                         "FilterArgumentError: You can only sort by either \"key\" or \"value\"");
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (v->type != V_DICT)
        return tmpl_fail(e, "AttributeError: '%s' object has no attribute 'items'",
                         tmpl_type_name(v));
    TRY(tmpl_method_find(v, "items", 5)->call(e, v, &none, &view));
    TRY(tmpl_to_list(e, &view, out));
    TRY(tmpl_list_new(e, V_LIST, out->seq->n, &keys));
    for (size_t i = 0; i < out->seq->n; i++) {
        key = out->seq->items[i].seq->items[by && str_is(by, "value")];
        TRY(fold_case(e, is_sensitive, &key));
        TRY(tmpl_push(e, &keys, key));
    }
    return tmpl_sort(e, out->seq->items, keys.seq->items, out->seq->n, is_reverse);
}

FILTER(groupby)
{
    struct value arg[3], keys, key, items, group;
    bool is_sensitive = false, is_same = false;
    TRY(tmpl_bind(e, "groupby", "attribute default case_sensitive", 1, a, arg));
    tmpl_arg_bool(&arg[2], &is_sensitive);
    const struct value *fallback =
        arg[1].type == V_MISSING || arg[1].type == V_NONE ? NULL : &arg[1];
    TRY(tmpl_to_list(e, v, &items));
    TRY(tmpl_list_new(e, V_LIST, items.seq->n, &keys));
    for (size_t i = 0; i < items.seq->n; i++) {
        TRY(tmpl_path(e, &items.seq->items[i], &arg[0], fallback, &key));
        TRY(fold_case(e, is_sensitive, &key));
        TRY(tmpl_push(e, &keys, key));
    }
    TRY(tmpl_sort(e, items.seq->items, keys.seq->items, items.seq->n, false));
    TRY(tmpl_list_new(e, V_LIST, 0, out));
    for (size_t i = 0; i < items.seq->n; i++) {
        if (i)
            TRY(tmpl_equal(e, &keys.seq->items[i - 1], &keys.seq->items[i], &is_same));
        if (!is_same) {
            struct value list;
            TRY(tmpl_list_new(e, V_TUPLE, 2, &group));
            group.seq->is_group = true;
            TRY(tmpl_path(e, &items.seq->items[i], &arg[0], fallback, &key));
            TRY(tmpl_push(e, &group, key));
            TRY(tmpl_list_new(e, V_LIST, 0, &list));
            TRY(tmpl_push(e, &group, list));
            TRY(tmpl_push(e, out, group));
        }
        TRY(tmpl_push(e, &group.seq->items[1], items.seq->items[i]));
    }
    return ERR_OK;
}

/* --- one item, one number --- */

FILTER(first)
{
    struct iter *it;
    bool has;
    TRY(tmpl_bind(e, "first", "", 0, a, NULL));
    TRY(tmpl_iter(e, v, &it));
    TRY(tmpl_next(e, it, out, &has));
    return has ? ERR_OK : tmpl_undef_hint(e, "No first item, sequence was empty.", out);
}

FILTER(last)
{
    struct value list;
    TRY(tmpl_bind(e, "last", "", 0, a, NULL));
    if (v->type == V_ITER || !tmpl_is_iterable(v))
        return tmpl_fail(e, "TypeError: '%s' object is not reversible", tmpl_type_name(v));
    TRY(tmpl_to_list(e, v, &list));
    if (list.seq->n == 0)
        return tmpl_undef_hint(e, "No last item, sequence was empty.", out);
    *out = list.seq->items[list.seq->n - 1];
    return ERR_OK;
}

FILTER(length)
{
    size_t n;
    TRY(tmpl_bind(e, "length", "", 0, a, NULL));
    if (v->type == V_LOOP) {
        static const struct str name = { .s = "length", .n = 6, .n_chars = 6 };
        return tmpl_getattr(e, v, &name, out);
    }
    if (!tmpl_len(v, &n))
        return tmpl_fail(e, "TypeError: object of type '%s' has no len()", tmpl_type_name(v));
    *out = tmpl_int((int64_t)n, false);
    return v->type == V_STR ? tmpl_step(e, v->s->n / 64) : ERR_OK;
}

/* min or max by a key; the first of equal ones. */
static enum err_code extreme(struct env *e, const struct value *v, const struct args *a,
                             const char *op, struct value *out)
{
    struct value arg[2], best = { 0 }, key, item;
    bool is_sensitive = false, has, is_better;
    struct iter *it;
    TRY(tmpl_bind(e, "min", "case_sensitive attribute", 0, a, arg));
    tmpl_arg_bool(&arg[0], &is_sensitive);
    TRY(tmpl_iter(e, v, &it));
    TRY(tmpl_next(e, it, out, &has));
    if (!has)
        return tmpl_undef_hint(e, "No aggregated item, sequence was empty.", out);
    TRY(tmpl_path(e, out, &arg[1], NULL, &best));
    TRY(fold_case(e, is_sensitive, &best));
    for (;;) {
        TRY(tmpl_next(e, it, &item, &has));
        if (!has)
            return ERR_OK;
        TRY(tmpl_path(e, &item, &arg[1], NULL, &key));
        TRY(fold_case(e, is_sensitive, &key));
        TRY(tmpl_ordered(e, op, &key, &best, &is_better));
        if (is_better) {
            best = key;
            *out = item;
        }
    }
}

FILTER(min)
{
    return extreme(e, v, a, "<", out);
}

FILTER(max)
{
    return extreme(e, v, a, ">", out);
}

FILTER(sum)
{
    struct value arg[2], item;
    struct iter *it;
    bool has;
    TRY(tmpl_bind(e, "sum", "attribute start", 0, a, arg));
    *out = arg[1].type == V_MISSING ? tmpl_int(0, false) : arg[1];
    if (out->type == V_STR)
        return tmpl_fail(e, "TypeError: sum() can't sum strings [use ''.join(seq) instead]");
    TRY(tmpl_iter(e, v, &it));
    for (;;) {
        struct value total = *out;
        TRY(tmpl_next(e, it, &item, &has));
        if (!has)
            return ERR_OK;
        TRY(tmpl_path(e, &item, &arg[0], NULL, &item));
        TRY(tmpl_sum(e, &total, &item, out));
    }
}

FILTER(join)
{
    struct value arg[2], sep, items = *v;
    TRY(tmpl_bind(e, "join", "d attribute", 0, a, arg));
    if (arg[0].type == V_MISSING)
        TRY(tmpl_cstr(e, "", &sep));
    else
        TRY(tmpl_to_text(e, &arg[0], &sep));
    if (arg[1].type != V_MISSING && arg[1].type != V_NONE) {
        TRY(tmpl_to_list(e, v, &items));
        for (size_t i = 0; i < items.seq->n; i++) {
            struct value item = items.seq->items[i];
            TRY(tmpl_path(e, &item, &arg[1], NULL, &items.seq->items[i]));
        }
    }
    TRY(tmpl_join(e, sep.s, &items, false, out));
    out->s->is_markup = false;
    return ERR_OK;
}

FILTER(list)
{
    TRY(tmpl_bind(e, "list", "", 0, a, NULL));
    return tmpl_to_list(e, v, out);
}

const struct filter tmpl_seq_filters[] = {
    { "sort", filter_sort },
    { "dictsort", filter_dictsort },
    { "groupby", filter_groupby },
    { "first", filter_first },
    { "last", filter_last },
    { "length", filter_length },
    { "count", filter_length },
    { "min", filter_min },
    { "max", filter_max },
    { "sum", filter_sum },
    { "join", filter_join },
    { "list", filter_list },
    { NULL, NULL },
};
