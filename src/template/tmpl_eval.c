/* tmpl_eval.c - expressions. */
#include "template/template_ast.h"

#include <string.h>

static enum err_code eval_name(struct env *e, const struct node *n, struct value *out)
{
    const struct value *v = tmpl_scope_get(e, n->id);
    if (v->type != V_MISSING) {
        *out = *v;
        return ERR_OK;
    }
    struct value name = { .type = V_STR, .s = e->t->name_strs[n->id] };
    return tmpl_undef(e, NULL, name, out);
}

static enum err_code eval_items(struct env *e, const struct node *n, struct value *out)
{
    TRY(tmpl_list_new(e, n->kind == N_LIST ? V_LIST : V_TUPLE, n->list.n, out));
    for (size_t i = 0; i < n->list.n; i++) {
        struct value item;
        TRY(tmpl_eval(e, n->list.at[i], &item));
        TRY(tmpl_push(e, out, item));
    }
    return ERR_OK;
}

static enum err_code eval_dict(struct env *e, const struct node *n, struct value *out)
{
    TRY(tmpl_dict_new(e, out));
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        struct value key, item;
        TRY(tmpl_eval(e, n->list.at[i], &key));
        TRY(tmpl_eval(e, n->list.at[i + 1], &item));
        TRY(tmpl_dict_set(e, out->dict, key, item));
    }
    return ERR_OK;
}

static enum err_code eval_cond(struct env *e, const struct node *n, struct value *out)
{
    struct value test;
    TRY(tmpl_eval(e, n->b, &test));
    if (tmpl_truth(&test))
        return tmpl_eval(e, n->a, out);
    if (n->c)
        return tmpl_eval(e, n->c, out);
    return tmpl_undef_hint(
        e, "the inline if-expression evaluated to false and no else section was defined.", out);
}

static enum err_code eval_logic(struct env *e, const struct node *n, struct value *out)
{
    TRY(tmpl_eval(e, n->a, out));
    if (tmpl_truth(out) == (n->kind == N_OR))
        return ERR_OK;
    return tmpl_eval(e, n->b, out);
}

static enum err_code compare_pair(struct env *e, int op, const struct value *a,
                                  const struct value *b, bool *out)
{
    static const char *const names[] = {
        [OP_LT] = "<", [OP_LE] = "<=", [OP_GT] = ">", [OP_GE] = ">="
    };
    if (op == OP_EQ || op == OP_NE) {
        TRY(tmpl_equal(e, a, b, out));
        *out = *out == (op == OP_EQ);
        return ERR_OK;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        TRY(tmpl_contains(e, b, a, out));
        *out = *out == (op == OP_IN);
        return ERR_OK;
    }
    return tmpl_ordered(e, names[op], a, b, out);
}

static enum err_code eval_compare(struct env *e, const struct node *n, struct value *out)
{
    struct value left, right;
    bool is_true = true;
    TRY(tmpl_eval(e, n->a, &left));
    for (size_t i = 0; i < n->list.n && is_true; i++) {
        TRY(tmpl_eval(e, n->list.at[i]->a, &right));
        TRY(compare_pair(e, n->list.at[i]->op, &left, &right, &is_true));
        left = right;
    }
    *out = tmpl_bool(is_true);
    return ERR_OK;
}

static enum err_code eval_binary(struct env *e, const struct node *n, struct value *out)
{
    struct value a, b;
    TRY(tmpl_eval(e, n->a, &a));
    TRY(tmpl_eval(e, n->b, &b));
    e->line = n->line;
    return tmpl_binary(e, n->op, &a, &b, out);
}

static enum err_code eval_concat(struct env *e, const struct node *n, struct value *out)
{
    struct value text, item;
    TRY(tmpl_eval(e, n->list.at[0], &item));
    TRY(tmpl_to_text(e, &item, out));
    for (size_t i = 1; i < n->list.n; i++) {
        TRY(tmpl_eval(e, n->list.at[i], &item));
        TRY(tmpl_to_text(e, &item, &text));
        TRY(tmpl_concat(e, out->s, text.s, out));
    }
    return ERR_OK;
}

static enum err_code eval_subscript(struct env *e, const struct node *n, struct value *out)
{
    struct value obj, key;
    TRY(tmpl_eval(e, n->a, &obj));
    TRY(tmpl_eval(e, n->b, &key));
    e->line = n->line;
    return tmpl_getitem(e, &obj, &key, out);
}

static enum err_code eval_slice(struct env *e, const struct node *n, struct value *out)
{
    struct value obj, part[3] = { 0 };
    TRY(tmpl_eval(e, n->a, &obj));
    for (int i = 0; i < 3; i++)
        if (n->part[i])
            TRY(tmpl_eval(e, n->part[i], &part[i]));
    e->line = n->line;
    return tmpl_slice(e, &obj, part, out);
}

/* --- calls --- */

static enum err_code args_star(struct env *e, const struct node *n, struct value *list)
{
    struct value v, more;
    TRY(tmpl_eval(e, n, &v));
    TRY(tmpl_to_list(e, &v, &more));
    for (size_t i = 0; i < more.seq->n; i++)
        TRY(tmpl_push(e, list, more.seq->items[i]));
    return ERR_OK;
}

static enum err_code args_double_star(struct env *e, const struct node *n, struct args *a)
{
    struct value v;
    TRY(tmpl_eval(e, n, &v));
    if (v.type == V_UNDEF)
        return tmpl_use_undef(e, &v);
    if (v.type != V_DICT)
        return tmpl_fail(e, "TypeError: argument after ** must be a mapping, not %s",
                         tmpl_type_name(&v));
    struct kwarg *kw = tmpl_alloc_array(e, a->n_kw + v.dict->n, sizeof(*kw));
    TRY(tmpl_check(e));
    if (a->n_kw)
        memcpy(kw, a->kw, a->n_kw * sizeof(*kw));
    a->kw = kw;
    for (size_t i = 0; i < v.dict->n; i++) {
        const struct dict_entry *entry = &v.dict->entries[i];
        if (entry->key.type != V_STR)
            return tmpl_fail(e, "TypeError: keywords must be strings");
        for (size_t j = 0; j < a->n_kw; j++)
            if (str_equal(kw[j].name, entry->key.s))
                return tmpl_fail(e, "TypeError: got multiple values for keyword argument '%.*s'",
                                 (int)(entry->key.s->n < 60 ? entry->key.s->n : 60),
                                 entry->key.s->s);
        TRY(tmpl_step(e, a->n_kw));
        kw[a->n_kw++] = (struct kwarg){ .name = entry->key.s, .value = entry->value };
    }
    return ERR_OK;
}

enum err_code tmpl_eval_args(struct env *e, const struct call_args *c, struct args *out)
{
    struct value list;
    *out = (struct args){ 0 };
    if (!c)
        return ERR_OK;
    TRY(tmpl_list_new(e, V_LIST, c->pos.n, &list));
    for (size_t i = 0; i < c->pos.n; i++) {
        struct value v;
        TRY(tmpl_eval(e, c->pos.at[i], &v));
        TRY(tmpl_push(e, &list, v));
    }
    if (c->dyn_pos)
        TRY(args_star(e, c->dyn_pos, &list));
    if (c->kw.n) {
        out->kw = tmpl_alloc_array(e, c->kw.n, sizeof(*out->kw));
        TRY(tmpl_check(e));
        for (size_t i = 0; i < c->kw.n; i++) {
            out->kw[i].name = c->kw_names[i];
            TRY(tmpl_eval(e, c->kw.at[i], &out->kw[i].value));
        }
        out->n_kw = c->kw.n;
    }
    if (c->dyn_kw)
        TRY(args_double_star(e, c->dyn_kw, out));
    out->pos = list.seq->items;
    out->n = list.seq->n;
    return ERR_OK;
}

static enum err_code eval_call(struct env *e, const struct node *n, struct value *out)
{
    struct value f;
    struct args a;
    TRY(tmpl_eval(e, n->a, &f));
    TRY(tmpl_eval_args(e, n->call, &a));
    e->line = n->line;
    return tmpl_call(e, &f, &a, out);
}

enum err_code tmpl_eval_filter(struct env *e, const struct node *n, const struct value *subject,
                               struct value *out)
{
    struct value v;
    struct args a;
    if (n->a && n->a->kind == N_FILTER && subject) {
        if (++e->depth > TMPL_DEPTH_MAX)
            return tmpl_full(e, "template is nested too deep");
        TRY(tmpl_eval_filter(e, n->a, subject, &v));
        e->depth--;
    } else if (n->a)
        TRY(tmpl_eval(e, n->a, &v));
    else if (subject)
        v = *subject;
    else
        return tmpl_fail(e, "TemplateRuntimeError: a filter without a subject");
    TRY(tmpl_eval_args(e, n->call, &a));
    e->line = n->line;
    if (!n->filter)
        return tmpl_fail(e, "TemplateRuntimeError: No %s named '%.*s' found.",
                         n->kind == N_TEST ? "test" : "filter",
                         (int)(n->str->n < 60 ? n->str->n : 60), n->str->s);
    TRY(tmpl_step(e, 1));
    return n->filter->call(e, &v, &a, out);
}

static enum err_code eval_node(struct env *e, const struct node *n, struct value *out)
{
    struct value v;
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return ERR_OK;
    case N_NAME:
        return eval_name(e, n, out);
    case N_TUPLE:
    case N_LIST:
        return eval_items(e, n, out);
    case N_DICT:
        return eval_dict(e, n, out);
    case N_COND:
        return eval_cond(e, n, out);
    case N_OR:
    case N_AND:
        return eval_logic(e, n, out);
    case N_NOT:
        TRY(tmpl_eval(e, n->a, &v));
        *out = tmpl_bool(!tmpl_truth(&v));
        return ERR_OK;
    case N_COMPARE:
        return eval_compare(e, n, out);
    case N_BINARY:
        return eval_binary(e, n, out);
    case N_CONCAT:
        return eval_concat(e, n, out);
    case N_NEG:
    case N_POS:
        TRY(tmpl_eval(e, n->a, &v));
        return tmpl_negate(e, &v, n->kind == N_NEG, out);
    case N_GETATTR:
        TRY(tmpl_eval(e, n->a, &v));
        e->line = n->line;
        return tmpl_getattr(e, &v, n->str, out);
    case N_GETITEM:
        return eval_subscript(e, n, out);
    case N_SLICE:
        return eval_slice(e, n, out);
    case N_CALL:
        return eval_call(e, n, out);
    case N_FILTER:
    case N_TEST:
        return tmpl_eval_filter(e, n, NULL, out);
    default:
        BUG_ON(true); /* the parser makes no such expression */
    }
    return ERR_OK;
}

enum err_code tmpl_eval(struct env *e, const struct node *n, struct value *out)
{
    TRY(tmpl_step(e, 1));
    if (++e->depth > TMPL_DEPTH_MAX)
        return tmpl_full(e, "template is nested too deep");
    enum err_code code = eval_node(e, n, out);
    e->depth--;
    return code;
}
