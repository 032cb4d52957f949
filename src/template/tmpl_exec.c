/* tmpl_exec.c - statements, scopes, macros.
 *
 * Scopes are jinja2's: loop bodies, macros, with, set blocks, filter blocks and call blocks have their own; if has none. A name is
 * looked up outwards; set writes to the innermost. */
#include "template/template_ast.h"

#include <string.h>

/* --- scopes --- */

enum err_code tmpl_scope_push(struct env *e, struct scope *parent, struct scope **out)
{
    struct scope *s = tmpl_alloc(e, sizeof(*s));
    TRY(tmpl_check(e));
    s->parent = parent;
    *out = s;
    return ERR_OK;
}

enum err_code tmpl_scope_set(struct env *e, int32_t name, struct value v)
{
    struct scope *s = e->scope;
    if (!s) {
        e->root[name] = v;
        return ERR_OK;
    }
    for (int32_t i = 0; i < s->n; i++) {
        if (s->slots[i].name == name) {
            s->slots[i].value = v;
            return ERR_OK;
        }
    }
    if (s->n == s->cap) {
        int32_t cap = s->cap ? s->cap * 2 : 4;
        struct slot *slots = tmpl_alloc_array(e, (size_t)cap, sizeof(*slots));
        TRY(tmpl_check(e));
        if (s->n)
            memcpy(slots, s->slots, (size_t)s->n * sizeof(*slots));
        s->slots = slots;
        s->cap = cap;
    }
    s->slots[s->n++] = (struct slot){ .name = name, .value = v };
    return ERR_OK;
}

const struct value *tmpl_scope_get(const struct env *e, int32_t name)
{
    for (const struct scope *s = e->scope; s; s = s->parent)
        for (int32_t i = 0; i < s->n; i++)
            if (s->slots[i].name == name)
                return &s->slots[i].value;
    return &e->root[name];
}

/* Everything from here outwards stays as it is seen now: a macro holds on to it. */
static void scope_capture(struct scope *s)
{
    for (; s && !s->is_captured; s = s->parent)
        s->is_captured = true;
}

/* --- assignment --- */

static enum err_code assign_tuple(struct env *e, const struct node *target, const struct value *v)
{
    struct value list;
    size_t want = target->list.n;
    if (!tmpl_is_iterable(v))
        return tmpl_fail(e, "TypeError: cannot unpack non-iterable %s object", tmpl_type_name(v));
    TRY(tmpl_to_list(e, v, &list));
    if (list.seq->n < want)
        return tmpl_fail(e, "ValueError: not enough values to unpack (expected %zu, got %zu)", want,
                         list.seq->n);
    if (list.seq->n > want)
        return tmpl_fail(e, "ValueError: too many values to unpack (expected %zu)", want);
    for (size_t i = 0; i < want; i++)
        TRY(tmpl_assign(e, target->list.at[i], &list.seq->items[i]));
    return ERR_OK;
}

static enum err_code assign_namespace(struct env *e, const struct node *target,
                                      const struct value *v)
{
    const struct value *ns = tmpl_scope_get(e, target->id);
    struct value key = { .type = V_STR, .s = target->str };
    if (ns->type != V_NAMESPACE)
        return tmpl_fail(e,
                         "TemplateRuntimeError: cannot assign attribute on non-namespace object");
    if (target->str->n && target->str->s[0] == '_')
        return tmpl_fail(
            e,
            "SecurityError: Chat templates cannot store underscore-prefixed attributes on a "
            "namespace, but got '%.*s'. Please rename the attribute.",
            (int)(target->str->n < 60 ? target->str->n : 60), target->str->s);
    return tmpl_dict_set(e, ns->dict, key, *v);
}

enum err_code tmpl_assign(struct env *e, const struct node *target, const struct value *v)
{
    if (target->kind == N_NAME)
        return tmpl_scope_set(e, target->id, *v);
    if (target->kind == N_NSREF)
        return assign_namespace(e, target, v);
    return assign_tuple(e, target, v);
}

/* --- output --- */

static enum err_code exec_output(struct env *e, const struct node *n)
{
    for (size_t i = 0; i < n->list.n; i++) {
        struct value v;
        TRY(tmpl_eval(e, n->list.at[i], &v));
        size_t before = e->out->len;
        tmpl_add_text(e->out, &v);
        TRY(tmpl_check(e));
        TRY(tmpl_step(e, (e->out->len - before) / 64));
        if (e->out == e->main_out && e->out->len > e->out_max)
            return tmpl_full(e, "rendered template is over its limit of bytes");
    }
    return ERR_OK;
}

/* Run body into a string of its own, in a scope under `parent`. */
enum err_code tmpl_capture(struct env *e, const struct node_list *body, enum flow *flow,
                           struct value *out)
{
    struct sb text, *outer = e->out;
    sb_init(&text, e);
    e->out = &text;
    enum err_code code = tmpl_exec_list(e, body, flow);
    e->out = outer;
    return code ? code : sb_finish(&text, out);
}

static enum err_code exec_set_block(struct env *e, const struct node *n, enum flow *flow)
{
    struct scope *outer = e->scope;
    struct value text;
    TRY(tmpl_scope_push(e, outer, &e->scope));
    TRY(tmpl_capture(e, &n->body, flow, &text));
    if (*flow == FLOW_ON && n->b)
        TRY(tmpl_eval_filter(e, n->b, &text, &text));
    e->scope = outer;
    return *flow == FLOW_ON ? tmpl_assign(e, n->a, &text) : ERR_OK;
}

/* What a filter or call block gives goes out as it is: anything but a text is an error there. */
static enum err_code exec_add_str(struct env *e, const struct value *v)
{
    if (v->type != V_STR)
        return tmpl_fail(e, "TypeError: expected str instance, %s found", tmpl_type_name(v));
    sb_add_str(e->out, v->s);
    TRY(tmpl_step(e, v->s->n / 64));
    return tmpl_check(e);
}

static enum err_code exec_filter_block(struct env *e, const struct node *n, enum flow *flow)
{
    struct scope *outer = e->scope;
    struct value text;
    TRY(tmpl_scope_push(e, outer, &e->scope));
    TRY(tmpl_capture(e, &n->body, flow, &text));
    if (*flow == FLOW_ON) {
        TRY(tmpl_eval_filter(e, n->a, &text, &text));
        TRY(exec_add_str(e, &text));
    }
    e->scope = outer;
    return ERR_OK;
}

static enum err_code exec_with(struct env *e, const struct node *n, enum flow *flow)
{
    struct scope *outer = e->scope, *inner;
    TRY(tmpl_scope_push(e, outer, &inner));
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        struct value v;
        TRY(tmpl_eval(e, n->list.at[i + 1], &v));
        e->scope = inner;
        TRY(tmpl_assign(e, n->list.at[i], &v));
        e->scope = outer;
    }
    e->scope = inner;
    TRY(tmpl_exec_list(e, &n->body, flow));
    e->scope = outer;
    return ERR_OK;
}

/* A generation block sees everything around it; a block only the top level, unless scoped. */
static enum err_code exec_scope(struct env *e, const struct node *n, enum flow *flow)
{
    struct scope *outer = e->scope;
    bool is_inside = n->kind == N_SCOPE || n->is_scoped;
    TRY(tmpl_scope_push(e, is_inside ? outer : NULL, &e->scope));
    TRY(tmpl_exec_list(e, &n->body, flow));
    e->scope = outer;
    return ERR_OK;
}

static enum err_code exec_if(struct env *e, const struct node *n, enum flow *flow)
{
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        struct value test;
        TRY(tmpl_eval(e, n->list.at[i], &test));
        if (tmpl_truth(&test))
            return tmpl_exec_list(e, &n->list.at[i + 1]->list, flow);
    }
    return n->c ? tmpl_exec_list(e, &n->c->list, flow) : ERR_OK;
}

/* --- macros --- */

static enum err_code macro_value(struct env *e, const struct node *n, struct value *out)
{
    struct macro *m = tmpl_alloc(e, sizeof(*m));
    TRY(tmpl_check(e));
    *m = (struct macro){ .def = n->macro, .scope = e->scope };
    scope_capture(e->scope);
    *out = (struct value){ .type = V_MACRO, .macro = m };
    return ERR_OK;
}

static enum err_code exec_macro(struct env *e, const struct node *n)
{
    struct value v;
    TRY(macro_value(e, n, &v));
    return tmpl_scope_set(e, n->id, v);
}

static enum err_code exec_call_block(struct env *e, const struct node *n)
{
    static struct str caller = { .s = "caller", .n = 6, .n_chars = 6 };
    struct value f, v;
    struct args a;
    TRY(tmpl_eval(e, n->a->a, &f));
    TRY(tmpl_eval_args(e, n->a->call, &a));
    struct kwarg *kw = tmpl_alloc_array(e, a.n_kw + 1, sizeof(*kw));
    TRY(tmpl_check(e));
    if (a.n_kw)
        memcpy(kw, a.kw, a.n_kw * sizeof(*kw));
    kw[a.n_kw].name = &caller;
    TRY(macro_value(e, n, &kw[a.n_kw].value));
    a.kw = kw;
    a.n_kw++;
    e->line = n->line;
    TRY(tmpl_call(e, &f, &a, &v));
    return exec_add_str(e, &v);
}

/* The value given for a parameter: by place, or by name (and then marked as used). */
static const struct value *macro_given(const struct env *e, const struct macro_def *d, size_t i,
                                       const struct args *a, bool *used)
{
    if (i < a->n)
        return &a->pos[i];
    const struct str *name = e->t->name_strs[d->params[i]];
    for (size_t k = 0; k < a->n_kw; k++) {
        if (str_equal(a->kw[k].name, name)) {
            used[k] = true;
            return &a->kw[k].value;
        }
    }
    return NULL;
}

static enum err_code macro_bind_params(struct env *e, const struct macro_def *d,
                                       const struct args *a, bool *used)
{
    /* All given ones first: a default may look at any parameter before it only, but never at an outer one of the same name. */
    for (size_t i = 0; i < d->n_params; i++) {
        const struct value *given = macro_given(e, d, i, a, used);
        TRY(tmpl_scope_set(e, d->params[i], given ? *given : (struct value){ .type = V_MISSING }));
    }
    for (size_t i = 0; i < d->n_params; i++) {
        struct value v;
        if (tmpl_scope_get(e, d->params[i])->type != V_MISSING)
            continue;
        if (d->defaults[i]) {
            TRY(tmpl_eval(e, d->defaults[i], &v));
        } else {
            struct sb b;
            sb_init(&b, e);
            sb_add_cstr(&b, "parameter '", false);
            sb_add_str(&b, e->t->name_strs[d->params[i]]);
            sb_add_cstr(&b, "' was not provided", false);
            TRY(sb_finish(&b, &v));
            const struct str *hint = v.s;
            TRY(tmpl_undef(e, NULL, v, &v));
            v.undef->hint = hint;
        }
        TRY(tmpl_scope_set(e, d->params[i], v));
    }
    return ERR_OK;
}

static enum err_code macro_bind_caller(struct env *e, const struct macro_def *d,
                                       const struct args *a, bool *used)
{
    struct value v = { .type = V_MISSING };
    for (size_t i = 0; i < d->n_params; i++)
        if (d->params[i] == d->caller_id)
            return ERR_OK;
    if (!d->has_caller)
        return ERR_OK;
    for (size_t k = 0; k < a->n_kw; k++) {
        if (!used[k] && str_is(a->kw[k].name, "caller")) {
            used[k] = true;
            v = a->kw[k].value;
        }
    }
    if (v.type == V_MISSING || v.type == V_NONE)
        TRY(tmpl_undef_hint(e, "No caller defined", &v));
    return tmpl_scope_set(e, d->caller_id, v);
}

static bool macro_has_param(const struct macro_def *d, int32_t id)
{
    for (size_t i = 0; i < d->n_params; i++)
        if (d->params[i] == id)
            return true;
    return false;
}

/* What no parameter took: kwargs and varargs where the body looks at them, an error otherwise. */
static enum err_code macro_bind_rest(struct env *e, const struct macro_def *d, const struct args *a,
                                     const bool *used)
{
    struct value kwargs, varargs;
    const struct str *name = d->name;
    int shown = name ? (int)(name->n < 60 ? name->n : 60) : 6;
    const char *text = name ? name->s : "caller";
    bool takes_kw = d->has_kwargs && !macro_has_param(d, d->kwargs_id);
    TRY(tmpl_dict_new(e, &kwargs));
    for (size_t k = 0; k < a->n_kw; k++) {
        struct value key = { .type = V_STR, .s = (struct str *)a->kw[k].name };
        if (used[k])
            continue;
        if (!takes_kw)
            return tmpl_fail(e, "TypeError: macro '%.*s' takes no keyword argument '%.*s'", shown,
                             text, (int)(key.s->n < 60 ? key.s->n : 60), key.s->s);
        TRY(tmpl_dict_set(e, kwargs.dict, key, a->kw[k].value));
    }
    if (takes_kw)
        TRY(tmpl_scope_set(e, d->kwargs_id, kwargs));
    bool takes_pos = d->has_varargs && !macro_has_param(d, d->varargs_id);
    if (!takes_pos && a->n > d->n_params)
        return tmpl_fail(e, "TypeError: macro '%.*s' takes not more than %zu argument(s)", shown,
                         text, d->n_params);
    if (!takes_pos)
        return ERR_OK;
    TRY(tmpl_list_new(e, V_TUPLE, 0, &varargs));
    for (size_t i = d->n_params; i < a->n; i++)
        TRY(tmpl_push(e, &varargs, a->pos[i]));
    return tmpl_scope_set(e, d->varargs_id, varargs);
}

enum err_code tmpl_macro_call(struct env *e, const struct macro *m, const struct args *a,
                              struct value *out)
{
    struct scope *outer = e->scope;
    enum flow flow = FLOW_ON;
    int line = e->line;
    bool *used = tmpl_alloc(e, a->n_kw + 1);
    TRY(tmpl_check(e));
    e->depth += 10; /* a call weighs more than an operator: it uses more of the stack */
    if (e->depth > TMPL_DEPTH_MAX)
        return tmpl_full(e, "macros call each other too deep");
    TRY(tmpl_scope_push(e, m->scope, &e->scope));
    TRY(macro_bind_params(e, m->def, a, used));
    TRY(macro_bind_caller(e, m->def, a, used));
    TRY(macro_bind_rest(e, m->def, a, used));
    TRY(tmpl_capture(e, &m->def->body, &flow, out));
    e->scope = outer;
    e->depth -= 10;
    e->line = line;
    return ERR_OK;
}

/* --- all statements --- */

static enum err_code exec_node(struct env *e, const struct node *n, enum flow *flow)
{
    struct value v;
    e->line = n->line;
    switch (n->kind) {
    case N_OUTPUT:
        return exec_output(e, n);
    case N_IF:
        return exec_if(e, n, flow);
    case N_FOR:
        return tmpl_exec_for(e, n, flow);
    case N_SET:
        TRY(tmpl_eval(e, n->b, &v));
        e->line = n->line;
        return tmpl_assign(e, n->a, &v);
    case N_SET_BLOCK:
        return exec_set_block(e, n, flow);
    case N_MACRO:
        return exec_macro(e, n);
    case N_CALL_BLOCK:
        return exec_call_block(e, n);
    case N_FILTER_BLOCK:
        return exec_filter_block(e, n, flow);
    case N_WITH:
        return exec_with(e, n, flow);
    case N_BLOCK:
    case N_SCOPE:
        return exec_scope(e, n, flow);
    case N_BREAK:
        *flow = FLOW_BREAK;
        return ERR_OK;
    case N_CONTINUE:
        *flow = FLOW_CONTINUE;
        return ERR_OK;
    default:
        BUG_ON(true); /* the parser makes no such statement */
    }
    return ERR_OK;
}

enum err_code tmpl_exec_list(struct env *e, const struct node_list *body, enum flow *flow)
{
    struct scope *scope = e->scope;
    if (++e->depth > TMPL_DEPTH_MAX)
        return tmpl_full(e, "template is nested too deep");
    for (size_t i = 0; i < body->n && *flow == FLOW_ON; i++) {
        TRY(tmpl_step(e, 1));
        TRY(exec_node(e, body->at[i], flow));
        e->scope = scope;
    }
    e->depth--;
    return ERR_OK;
}
