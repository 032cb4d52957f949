/* tmpl_call.c - calling what can be called, binding arguments, and the global functions. */
#include "template/template_ast.h"

#include <string.h>

bool tmpl_is_callable(const struct value *v)
{
    switch (v->type) {
    case V_MACRO:
    case V_FUNC:
    case V_METHOD:
    case V_LOOP:
    case V_JOINER:
    case V_UNDEF: /* as Python says: the class has __call__ */
        return true;
    default:
        return false;
    }
}

enum err_code tmpl_call(struct env *e, const struct value *f, const struct args *a,
                        struct value *out)
{
    TRY(tmpl_step(e, 1));
    switch (f->type) {
    case V_MACRO:
        return tmpl_macro_call(e, f->macro, a, out);
    case V_FUNC:
        return f->func->call(e, a, out);
    case V_METHOD:
        return f->bound->method->call(e, &f->bound->self, a, out);
    case V_LOOP:
        return tmpl_loop_call(e, f->loop, a, out);
    case V_JOINER:
        if (f->joiner->is_used)
            *out = f->joiner->sep;
        else
            TRY(tmpl_cstr(e, "", out));
        f->joiner->is_used = true;
        return ERR_OK;
    case V_UNDEF:
        return tmpl_use_undef(e, f);
    default:
        return tmpl_fail(e, "TypeError: '%s' object is not callable", tmpl_type_name(f));
    }
}

/* --- binding --- */

/* Index of the name in the blank-separated list, or -1. */
static int bind_index(const char *names, const struct str *name)
{
    int i = 0;
    for (const char *p = names; *p; i++) {
        size_t n = strcspn(p, " ");
        if (n == name->n && memcmp(p, name->s, n) == 0)
            return i;
        p += n + (p[n] == ' ');
    }
    return -1;
}

static size_t bind_count(const char *names)
{
    size_t n = *names ? 1 : 0;
    for (const char *p = names; *p; p++)
        n += *p == ' ';
    return n;
}

enum err_code tmpl_bind(struct env *e, const char *what, const char *names, size_t need,
                        const struct args *a, struct value *out)
{
    size_t n = bind_count(names);
    for (size_t i = 0; i < n; i++)
        out[i] = (struct value){ .type = V_MISSING };
    if (a->n > n)
        return tmpl_fail(e, "TypeError: %s takes at most %zu arguments (%zu given)", what, n, a->n);
    for (size_t i = 0; i < a->n; i++)
        out[i] = a->pos[i];
    for (size_t i = 0; i < a->n_kw; i++) {
        int at = bind_index(names, a->kw[i].name);
        int shown = (int)(a->kw[i].name->n < 60 ? a->kw[i].name->n : 60);
        if (at < 0)
            return tmpl_fail(e, "TypeError: %s got an unexpected keyword argument '%.*s'", what,
                             shown, a->kw[i].name->s);
        if (out[at].type != V_MISSING)
            return tmpl_fail(e, "TypeError: %s got multiple values for argument '%.*s'", what,
                             shown, a->kw[i].name->s);
        out[at] = a->kw[i].value;
    }
    for (size_t i = 0; i < need; i++)
        if (out[i].type == V_MISSING)
            return tmpl_fail(e, "TypeError: %s misses argument %zu", what, i + 1);
    return ERR_OK;
}

enum err_code tmpl_arg_int(struct env *e, const struct value *v, int64_t *out)
{
    if (v->type == V_MISSING || tmpl_as_int(v, out))
        return ERR_OK;
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (v->type == V_BIG)
        return tmpl_fail(e, "OverflowError: Python int too large to convert to C ssize_t");
    return tmpl_fail(e, "TypeError: '%s' object cannot be interpreted as an integer",
                     tmpl_type_name(v));
}

enum err_code tmpl_arg_bool(const struct value *v, bool *out)
{
    if (v->type != V_MISSING)
        *out = tmpl_truth(v);
    return ERR_OK;
}

enum err_code tmpl_arg_str(struct env *e, const struct value *v, const struct str **out)
{
    if (v->type == V_MISSING)
        return ERR_OK;
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (v->type != V_STR)
        return tmpl_fail(e, "TypeError: expected str, got %s", tmpl_type_name(v));
    *out = v->s;
    return ERR_OK;
}

/* --- globals --- */

static enum err_code call_range(struct env *e, const struct args *a, struct value *out)
{
    int64_t v[3] = { 0, 0, 1 };
    if (a->n_kw)
        return tmpl_fail(e, "TypeError: range() takes no keyword arguments");
    if (a->n < 1 || a->n > 3)
        return tmpl_fail(e, "TypeError: range expected 1 to 3 arguments, got %zu", a->n);
    for (size_t i = 0; i < a->n; i++)
        TRY(tmpl_arg_int(e, &a->pos[i], a->n == 1 ? &v[1] : &v[i]));
    if (v[2] == 0)
        return tmpl_fail(e, "ValueError: range() arg 3 must not be zero");
    size_t n = tmpl_range_n(v[0], v[1], v[2]);
    if (n > TMPL_RANGE_MAX)
        return tmpl_fail(
            e,
            "OverflowError: Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
            TMPL_RANGE_MAX);
    struct range *r = tmpl_alloc(e, sizeof(*r));
    TRY(tmpl_check(e));
    *r = (struct range){ .start = v[0], .stop = v[1], .step = v[2], .n = n };
    *out = (struct value){ .type = V_RANGE, .range = r };
    return ERR_OK;
}

/* d.update(source): a mapping or pairs. */
static enum err_code dict_update(struct env *e, struct dict *d, const struct value *source)
{
    struct value pairs, pair;
    if (source->type == V_DICT) {
        for (size_t i = 0; i < source->dict->n; i++)
            TRY(tmpl_dict_set(e, d, source->dict->entries[i].key, source->dict->entries[i].value));
        return ERR_OK;
    }
    TRY(tmpl_to_list(e, source, &pairs));
    for (size_t i = 0; i < pairs.seq->n; i++) {
        TRY(tmpl_to_list(e, &pairs.seq->items[i], &pair));
        if (pair.seq->n != 2)
            return tmpl_fail(
                e,
                "ValueError: dictionary update sequence element #%zu has length %zu; 2 is required",
                i, pair.seq->n);
        TRY(tmpl_dict_set(e, d, pair.seq->items[0], pair.seq->items[1]));
    }
    return ERR_OK;
}

static enum err_code call_dict(struct env *e, const struct args *a, struct value *out)
{
    if (a->n > 1)
        return tmpl_fail(e, "TypeError: dict expected at most 1 argument, got %zu", a->n);
    TRY(tmpl_dict_new(e, out));
    if (a->n)
        TRY(dict_update(e, out->dict, &a->pos[0]));
    for (size_t i = 0; i < a->n_kw; i++) {
        struct value key = { .type = V_STR, .s = (struct str *)a->kw[i].name };
        TRY(tmpl_dict_set(e, out->dict, key, a->kw[i].value));
    }
    return ERR_OK;
}

static enum err_code call_namespace(struct env *e, const struct args *a, struct value *out)
{
    TRY(call_dict(e, a, out));
    for (size_t i = 0; i < out->dict->n; i++) {
        const struct value *key = &out->dict->entries[i].key;
        if (key->type == V_STR && key->s->n && key->s->s[0] == '_')
            return tmpl_fail(
                e,
                "SecurityError: Chat templates cannot store underscore-prefixed attributes on a "
                "namespace, but got '%.*s'. Please rename the attribute.",
                (int)(key->s->n < 60 ? key->s->n : 60), key->s->s);
    }
    out->type = V_NAMESPACE;
    return ERR_OK;
}

static enum err_code call_joiner(struct env *e, const struct args *a, struct value *out)
{
    struct value sep;
    TRY(tmpl_bind(e, "joiner()", "sep", 0, a, &sep));
    if (sep.type == V_MISSING)
        TRY(tmpl_cstr(e, ", ", &sep));
    struct joiner *j = tmpl_alloc(e, sizeof(*j));
    TRY(tmpl_check(e));
    j->sep = sep;
    *out = (struct value){ .type = V_JOINER, .joiner = j };
    return ERR_OK;
}

static enum err_code call_cycler(struct env *e, const struct args *a, struct value *out)
{
    if (a->n_kw)
        return tmpl_fail(e, "TypeError: cycler() got an unexpected keyword argument");
    if (a->n == 0)
        return tmpl_fail(e, "RuntimeError: at least one item has to be provided");
    struct cycler *c = tmpl_alloc(e, sizeof(*c));
    TRY(tmpl_check(e));
    c->items = (struct seq){ .items = a->pos, .n = a->n, .cap = a->n };
    *out = (struct value){ .type = V_CYCLER, .cycler = c };
    return ERR_OK;
}

/* The template's own text, and nothing else: clients read it. */
static enum err_code call_raise(struct env *e, const struct args *a, struct value *out)
{
    struct value message, text;
    TRY(tmpl_bind(e, "raise_exception()", "message", 1, a, &message));
    TRY(tmpl_to_text(e, &message, &text));
    return err_set(e->err, ERR_INVALID, "%.*s", (int)(text.s->n < INT32_MAX ? text.s->n : 0),
                   text.s->s);
}

static enum err_code call_lipsum(struct env *e, const struct args *a, struct value *out)
{
    return err_set(e->err, ERR_UNSUPPORTED, "%s line %d: lipsum() is random and not supported",
                   e->t->name, e->line);
}

static const struct func global_range = { "range", call_range };
static const struct func global_dict = { "dict", call_dict };
static const struct func global_namespace = { "namespace", call_namespace };
static const struct func global_joiner = { "joiner", call_joiner };
static const struct func global_cycler = { "cycler", call_cycler };
static const struct func global_raise = { "raise_exception", call_raise };
static const struct func global_strftime = { "strftime_now", tmpl_strftime };
static const struct func global_lipsum = { "lipsum", call_lipsum };

const struct func *const tmpl_globals[] = { &global_range,    &global_dict,   &global_namespace,
                                            &global_joiner,   &global_cycler, &global_raise,
                                            &global_strftime, &global_lipsum };
const size_t tmpl_n_globals = ARRAY_LEN(tmpl_globals);
