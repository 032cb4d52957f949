/* tmpl_iter.c - walking over values. An iterator draws one item at a time, so that a template which stops early, or changes a
 * namespace on the way, sees what Python's generators show. */
#include "template/template_ast.h"

#include <string.h>

size_t tmpl_range_n(int64_t start, int64_t stop, int64_t step)
{
    uint64_t span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 ? start >= stop : start <= stop)
        return 0;
    return (size_t)((span - 1) / by + 1);
}

static enum err_code next_seq(struct env *e, struct iter *it, struct value *out, bool *has)
{
    const struct seq *seq = it->source.seq;
    *has = it->i < seq->n;
    if (*has)
        *out = seq->items[it->i++];
    return ERR_OK;
}

static enum err_code next_char(struct env *e, struct iter *it, struct value *out, bool *has)
{
    const struct str *s = it->source.s;
    *has = it->i < s->n;
    if (!*has)
        return ERR_OK;
    size_t len = str_step(s, it->i);
    TRY(tmpl_part(e, s, it->i, it->i + len, out));
    it->i += len;
    return ERR_OK;
}

static enum err_code next_range(struct env *e, struct iter *it, struct value *out, bool *has)
{
    const struct range *r = it->source.range;
    *has = it->i < r->n;
    if (*has)
        *out = tmpl_int(r->start + (int64_t)it->i++ * r->step, false);
    return ERR_OK;
}

/* Item i of a dict, as its keys, values or pairs. */
static enum err_code view_item(struct env *e, const struct view *v, size_t i, struct value *out)
{
    const struct dict_entry *entry = &v->dict->entries[i];
    if (v->kind != VIEW_ITEMS) {
        *out = v->kind == VIEW_KEYS ? entry->key : entry->value;
        return ERR_OK;
    }
    TRY(tmpl_list_new(e, V_TUPLE, 2, out));
    out->is_caller = v->is_caller;
    TRY(tmpl_push(e, out, entry->key));
    return tmpl_push(e, out, entry->value);
}

static enum err_code next_view(struct env *e, struct iter *it, struct value *out, bool *has)
{
    const struct view *v = it->source.view;
    *has = it->i < v->dict->n;
    return *has ? view_item(e, v, it->i++, out) : ERR_OK;
}

static enum err_code next_key(struct env *e, struct iter *it, struct value *out, bool *has)
{
    const struct dict *d = it->source.dict;
    *has = it->i < d->n;
    if (*has)
        *out = d->entries[it->i++].key;
    return ERR_OK;
}

static enum err_code next_none(struct env *e, struct iter *it, struct value *out, bool *has)
{
    *has = false;
    return ERR_OK;
}

/* `for x in loop` draws pairs (item, loop) in Python; nobody wants that, and it is refused as not iterable. */
bool tmpl_is_iterable(const struct value *v)
{
    size_t n;
    return v->type == V_ITER || tmpl_len(v, &n);
}

enum err_code tmpl_iter(struct env *e, const struct value *v, struct iter **out)
{
    if (v->type == V_ITER) {
        *out = v->iter;
        return ERR_OK;
    }
    if (!tmpl_is_iterable(v))
        return tmpl_fail(e, "TypeError: '%s' object is not iterable", tmpl_type_name(v));
    struct iter *it = tmpl_alloc(e, sizeof(*it));
    TRY(tmpl_check(e));
    it->source = *v;
    switch (v->type) {
    case V_LIST:
    case V_TUPLE:
        it->next = next_seq;
        break;
    case V_STR:
        it->next = next_char;
        break;
    case V_RANGE:
        it->next = next_range;
        break;
    case V_VIEW:
        it->next = next_view;
        break;
    case V_DICT:
        it->next = next_key;
        break;
    default:
        it->next = next_none;
        break;
    }
    *out = it;
    return ERR_OK;
}

enum err_code tmpl_next(struct env *e, struct iter *it, struct value *out, bool *has)
{
    *has = false;
    TRY(tmpl_step(e, 1));
    if (++e->depth > TMPL_DEPTH_MAX)
        return tmpl_full(e, "generators are nested too deep");
    enum err_code code = it->next(e, it, out, has);
    e->depth--;
    return code;
}

enum err_code tmpl_to_list(struct env *e, const struct value *v, struct value *out)
{
    struct iter *it;
    size_t n = 0;
    TRY(tmpl_iter(e, v, &it));
    tmpl_len(v, &n);
    TRY(tmpl_list_new(e, V_LIST, n, out));
    out->is_caller = v->is_caller && v->type != V_STR;
    for (bool has = true; has;) {
        struct value item;
        TRY(tmpl_next(e, it, &item, &has));
        if (has)
            TRY(tmpl_push(e, out, item));
    }
    return ERR_OK;
}

enum err_code tmpl_generator(struct env *e,
                             enum err_code (*next)(struct env *, struct iter *, struct value *,
                                                   bool *),
                             const struct value *source, struct iter **it, struct value *out)
{
    struct iter *g = tmpl_alloc(e, sizeof(*g));
    TRY(tmpl_check(e));
    g->next = next;
    g->source = *source;
    *it = g;
    *out = (struct value){ .type = V_ITER, .iter = g };
    return ERR_OK;
}
