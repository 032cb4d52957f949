/* tmpl_filter_pick.c - filters that give generators: map, select, reject, unique, batch, slice, items, reverse. */
#include "template/template_ast.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static enum err_code filter_##name(struct env *e, const struct value *v, const struct args *a, \
                                       struct value *out)

/* A generator with the filter's arguments kept for later. */
static enum err_code pick_new(
    struct env *e, enum err_code (*next)(struct env *, struct iter *, struct value *, bool *),
    const struct value *v, const struct args *a, struct iter **it, struct value *out)
{
    TRY(tmpl_generator(e, next, v, it, out));
    (*it)->args = *a;
    return ERR_OK;
}

/* The next item of the source, which is opened on first use. */
static enum err_code pick_draw(struct env *e, struct iter *it, struct value *out, bool *has)
{
    if (!it->inner)
        TRY(tmpl_iter(e, &it->source, &it->inner));
    return tmpl_next(e, it->inner, out, has);
}

static const struct value *pick_kwarg(const struct args *a, const char *name)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (str_is(a->kw[i].name, name))
            return &a->kw[i].value;
    return NULL;
}

/* args without the first n positional ones */
static struct args pick_rest(const struct args *a, size_t n)
{
    struct args rest = *a;
    rest.pos += n;
    rest.n -= n;
    return rest;
}

/* --- map --- */

static enum err_code map_attribute(struct env *e, struct iter *it, const struct value *path,
                                   const struct value *item, struct value *out)
{
    const struct value *fallback = pick_kwarg(&it->args, "default");
    for (size_t i = 0; i < it->args.n_kw; i++)
        if (!str_is(it->args.kw[i].name, "attribute") && !str_is(it->args.kw[i].name, "default"))
            return tmpl_fail(e, "FilterArgumentError: Unexpected keyword argument '%.*s'",
                             (int)(it->args.kw[i].name->n < 60 ? it->args.kw[i].name->n : 60),
                             it->args.kw[i].name->s);
    if (fallback && fallback->type == V_NONE)
        fallback = NULL;
    return tmpl_path(e, item, path, fallback, out);
}

static enum err_code next_map(struct env *e, struct iter *it, struct value *out, bool *has)
{
    struct value item;
    const struct value *path = it->args.n == 0 ? pick_kwarg(&it->args, "attribute") : NULL;
    *has = false;
    if (!it->inner && !tmpl_truth(&it->source))
        return ERR_OK;
    if (!path && it->args.n == 0)
        return tmpl_fail(e, "FilterArgumentError: map requires a filter argument");
    TRY(pick_draw(e, it, &item, has));
    if (!*has)
        return ERR_OK;
    if (path)
        return map_attribute(e, it, path, &item, out);
    const struct value *name = &it->args.pos[0];
    const struct filter *f = name->type == V_STR ? tmpl_filter_find(name->s->s, name->s->n) : NULL;
    if (!f)
        return tmpl_fail(e, "TemplateRuntimeError: No filter named '%.*s'.",
                         name->type == V_STR && name->s->n < 60 ? (int)name->s->n : 0,
                         name->type == V_STR ? name->s->s : "");
    struct args rest = pick_rest(&it->args, 1);
    return f->call(e, &item, &rest, out);
}

FILTER(map)
{
    struct iter *it;
    return pick_new(e, next_map, v, a, &it, out);
}

/* --- select and reject --- */

/* Does the item pass? */
static enum err_code pick_test(struct env *e, struct iter *it, const struct value *item, bool *out)
{
    struct value v = *item, result;
    size_t off = it->has_attr;
    if (it->has_attr)
        TRY(tmpl_path(e, item, &it->args.pos[0], NULL, &v));
    if (it->args.n <= off) {
        *out = tmpl_truth(&v) != it->is_flipped;
        return ERR_OK;
    }
    const struct value *name = &it->args.pos[off];
    const struct filter *test = name->type == V_STR ? tmpl_test_find(name->s->s, name->s->n) : NULL;
    if (!test)
        return tmpl_fail(e, "TemplateRuntimeError: No test named '%.*s'.",
                         name->type == V_STR && name->s->n < 60 ? (int)name->s->n : 0,
                         name->type == V_STR ? name->s->s : "");
    struct args rest = pick_rest(&it->args, off + 1);
    TRY(test->call(e, &v, &rest, &result));
    *out = tmpl_truth(&result) != it->is_flipped;
    return ERR_OK;
}

static enum err_code next_select(struct env *e, struct iter *it, struct value *out, bool *has)
{
    *has = false;
    if (!it->inner && !tmpl_truth(&it->source))
        return ERR_OK;
    if (it->has_attr && it->args.n == 0)
        return tmpl_fail(e, "FilterArgumentError: Missing parameter for attribute name");
    for (;;) {
        bool passes = false;
        TRY(pick_draw(e, it, out, has));
        if (!*has)
            return ERR_OK;
        TRY(pick_test(e, it, out, &passes));
        if (passes)
            return ERR_OK;
    }
}

static enum err_code select_new(struct env *e, const struct value *v, const struct args *a,
                                bool is_flipped, bool has_attr, struct value *out)
{
    struct iter *it;
    TRY(pick_new(e, next_select, v, a, &it, out));
    it->is_flipped = is_flipped;
    it->has_attr = has_attr;
    return ERR_OK;
}

FILTER(select)
{
    return select_new(e, v, a, false, false, out);
}

FILTER(reject)
{
    return select_new(e, v, a, true, false, out);
}

FILTER(selectattr)
{
    return select_new(e, v, a, false, true, out);
}

FILTER(rejectattr)
{
    return select_new(e, v, a, true, true, out);
}

/* --- unique --- */

static enum err_code next_unique(struct env *e, struct iter *it, struct value *out, bool *has)
{
    struct value key, *found;
    for (;;) {
        TRY(pick_draw(e, it, out, has));
        if (!*has)
            return ERR_OK;
        TRY(tmpl_path(e, out, &it->args.pos[1], NULL, &key));
        if (key.type == V_STR && !it->is_flipped)
            TRY(tmpl_map_case(e, key.s, UNI_LOWER, &key));
        TRY(tmpl_dict_get(e, it->seen, &key, &found));
        if (!found)
            return tmpl_dict_set(e, it->seen, key, tmpl_none());
    }
}

FILTER(unique)
{
    struct value *arg = tmpl_alloc_array(e, 2, sizeof(*arg)), seen;
    struct iter *it;
    TRY(tmpl_check(e));
    TRY(tmpl_bind(e, "unique", "case_sensitive attribute", 0, a, arg));
    TRY(tmpl_dict_new(e, &seen));
    TRY(tmpl_generator(e, next_unique, v, &it, out));
    it->args = (struct args){ .pos = arg, .n = 2 };
    it->seen = seen.dict;
    tmpl_arg_bool(&arg[0], &it->is_flipped);
    return ERR_OK;
}

/* --- batch and slice --- */

static enum err_code next_batch(struct env *e, struct iter *it, struct value *out, bool *has)
{
    int64_t size = 0;
    struct value item;
    bool more = true;
    TRY(tmpl_arg_int(e, &it->args.pos[0], &size));
    const struct value *fill = &it->args.pos[1];
    *has = false;
    TRY(tmpl_list_new(e, V_LIST, 0, out));
    do {
        TRY(pick_draw(e, it, &item, &more));
        if (more)
            TRY(tmpl_push(e, out, item));
        /* Python compares for equality after the first item: a size of 0 or less never ends a batch. */
    } while (more && (int64_t)out->seq->n != size);
    *has = out->seq->n > 0;
    if (!*has || fill->type == V_MISSING || fill->type == V_NONE)
        return ERR_OK;
    while ((int64_t)out->seq->n < size)
        TRY(tmpl_push(e, out, *fill));
    return ERR_OK;
}

FILTER(batch)
{
    struct value *arg = tmpl_alloc_array(e, 2, sizeof(*arg));
    struct iter *it;
    TRY(tmpl_check(e));
    TRY(tmpl_bind(e, "batch", "linecount fill_with", 1, a, arg));
    TRY(tmpl_generator(e, next_batch, v, &it, out));
    it->args = (struct args){ .pos = arg, .n = 2 };
    return ERR_OK;
}

static enum err_code next_slice(struct env *e, struct iter *it, struct value *out, bool *has)
{
    int64_t slices = 0;
    TRY(tmpl_arg_int(e, &it->args.pos[0], &slices));
    const struct value *fill = &it->args.pos[1];
    if (it->i == 0) {
        TRY(tmpl_to_list(e, &it->source, &it->source));
        if (slices == 0)
            return tmpl_fail(e, "ZeroDivisionError: integer division or modulo by zero");
    }
    *has = (int64_t)it->i < slices;
    if (!*has)
        return ERR_OK;
    size_t n = it->source.seq->n, each = n / (size_t)slices, extra = n % (size_t)slices;
    size_t k = it->i++, start = k * each + (k < extra ? k : extra),
           end = start + each + (k < extra);
    TRY(tmpl_list_new(e, V_LIST, end - start, out));
    for (size_t i = start; i < end; i++)
        TRY(tmpl_push(e, out, it->source.seq->items[i]));
    if (fill->type != V_MISSING && fill->type != V_NONE && k >= extra)
        TRY(tmpl_push(e, out, *fill));
    return ERR_OK;
}

FILTER(slice)
{
    struct value *arg = tmpl_alloc_array(e, 2, sizeof(*arg));
    struct iter *it;
    TRY(tmpl_check(e));
    TRY(tmpl_bind(e, "slice", "slices fill_with", 1, a, arg));
    TRY(tmpl_generator(e, next_slice, v, &it, out));
    it->args = (struct args){ .pos = arg, .n = 2 };
    return ERR_OK;
}

/* --- items and reverse --- */

static enum err_code next_items(struct env *e, struct iter *it, struct value *out, bool *has)
{
    *has = false;
    if (it->source.type == V_UNDEF)
        return ERR_OK;
    if (it->source.type != V_DICT && !it->inner)
        return tmpl_fail(e, "TypeError: Can only get item pairs from a mapping.");
    if (!it->inner) {
        struct value view;
        const struct args none = { 0 };
        TRY(tmpl_method_find(&it->source, "items", 5)->call(e, &it->source, &none, &view));
        TRY(tmpl_iter(e, &view, &it->inner));
    }
    return tmpl_next(e, it->inner, out, has);
}

FILTER(items)
{
    struct iter *it;
    TRY(tmpl_bind(e, "items", "", 0, a, NULL));
    return tmpl_generator(e, next_items, v, &it, out);
}

static enum err_code next_reverse(struct env *e, struct iter *it, struct value *out, bool *has)
{
    const struct seq *seq = it->source.seq;
    *has = it->i < seq->n;
    if (*has)
        *out = seq->items[seq->n - ++it->i];
    return ERR_OK;
}

FILTER(reverse)
{
    static const struct value missing = { .type = V_MISSING };
    struct value list, part[3] = { missing, missing, tmpl_int(-1, false) };
    struct iter *it;
    TRY(tmpl_bind(e, "reverse", "", 0, a, NULL));
    if (v->type == V_STR)
        return tmpl_slice(e, v, part, out);
    if (!tmpl_is_iterable(v))
        return tmpl_fail(e, "FilterArgumentError: argument must be iterable");
    TRY(tmpl_to_list(e, v, &list));
    if (v->type == V_ITER)
        return tmpl_slice(e, &list, part, out);
    TRY(tmpl_generator(e, next_reverse, &list, &it, out));
    it->kind = "list_reverseiterator";
    return ERR_OK;
}

const struct filter tmpl_pick_filters[] = {
    { "map", filter_map },
    { "select", filter_select },
    { "reject", filter_reject },
    { "selectattr", filter_selectattr },
    { "rejectattr", filter_rejectattr },
    { "unique", filter_unique },
    { "batch", filter_batch },
    { "slice", filter_slice },
    { "items", filter_items },
    { "reverse", filter_reverse },
    { NULL, NULL },
};
