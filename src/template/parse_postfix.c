/* parse_postfix.c - what may stand behind an expression: attributes, subscripts, calls, filters, tests. */
#include "template/template_ast.h"

#include <string.h>

static bool parse_is_slice_end(const struct parser *p)
{
    const struct token *t = parse_peek(p);
    return parse_is_op(t, "]") || parse_is_op(t, ",");
}

/* One subscript: an expression, or "a:b:c" as an N_SLICE without a subject. */
static enum err_code parse_subscript_part(struct parser *p, struct node **out)
{
    int line = parse_peek(p)->line;
    struct node *part[3] = { 0 };
    if (!parse_is_op(parse_peek(p), ":")) {
        TRY(parse_expression(p, &part[0]));
        if (!parse_is_op(parse_peek(p), ":")) {
            *out = part[0];
            return ERR_OK;
        }
    }
    parse_take(p);
    if (!parse_is_slice_end(p) && !parse_is_op(parse_peek(p), ":"))
        TRY(parse_expression(p, &part[1]));
    if (parse_skip_op(p, ":") && !parse_is_slice_end(p))
        TRY(parse_expression(p, &part[2]));
    TRY(parse_node(p, N_SLICE, line, out));
    memcpy((*out)->part, part, sizeof(part));
    return ERR_OK;
}

static enum err_code parse_subscript(struct parser *p, struct node **subject)
{
    struct node_vec list = { 0 };
    int line = parse_take(p)->line;
    struct node *n = NULL;
    while (!parse_is_op(parse_peek(p), "]")) {
        struct node *part = NULL;
        if (list.n)
            TRY(parse_expect_op(p, ","));
        TRY(parse_subscript_part(p, &part));
        if (part->kind == N_SLICE && !part->a && (list.n || parse_is_op(parse_peek(p), ",")))
            return parse_unsupported(p, line, "a slice inside a tuple");
        TRY(parse_vec_add(p, &list, part));
    }
    TRY(parse_expect_op(p, "]"));
    if (list.n == 1 && list.at[0]->kind == N_SLICE && !list.at[0]->a) {
        list.at[0]->a = *subject;
        *subject = list.at[0];
        return ERR_OK;
    }
    TRY(parse_node(p, N_GETITEM, line, &n));
    n->a = *subject;
    if (list.n == 1) {
        n->b = list.at[0];
    } else {
        TRY(parse_node(p, N_TUPLE, line, &n->b));
        n->b->list = parse_vec_take(&list);
    }
    *subject = n;
    return ERR_OK;
}

static enum err_code parse_attribute(struct parser *p, struct node **subject)
{
    int line = parse_take(p)->line;
    const struct token *t = parse_take(p);
    struct node *n = NULL;
    if (t->kind == TOK_NAME) {
        TRY(parse_node(p, N_GETATTR, line, &n));
        TRY(parse_str(p, t->s, t->n, &n->str));
    } else if (t->kind == TOK_INTEGER) {
        TRY(parse_node(p, N_GETITEM, line, &n));
        TRY(parse_integer(p, t, &n->b));
    } else {
        return parse_fail(p, t->line, "expected name or number");
    }
    n->a = *subject;
    *subject = n;
    return ERR_OK;
}

static enum err_code parse_kwarg(struct parser *p, struct call_args *c, struct node_vec *kw,
                                 size_t *cap)
{
    const struct token *name = parse_take(p);
    struct str *str = NULL;
    struct node *value = NULL;
    parse_take(p);
    for (size_t i = 0; i < kw->n; i++)
        if (c->kw_names[i]->n == name->n && memcmp(c->kw_names[i]->s, name->s, name->n) == 0)
            return parse_fail(p, name->line, "keyword argument repeated: %.*s", (int)name->n,
                              name->s);
    if (kw->n == *cap) {
        size_t grown = *cap ? *cap * 2 : 4;
        const struct str **names = arena_alloc(&p->t->arena, grown * sizeof(*names));
        if (!names)
            return parse_full(p);
        if (kw->n)
            memcpy(names, c->kw_names, kw->n * sizeof(*names));
        c->kw_names = names;
        *cap = grown;
    }
    TRY(parse_str(p, name->s, name->n, &str));
    c->kw_names[kw->n] = str;
    TRY(parse_expression(p, &value));
    return parse_vec_add(p, kw, value);
}

static enum err_code parse_call_args(struct parser *p, struct call_args **out)
{
    struct call_args *c = arena_alloc(&p->t->arena, sizeof(*c));
    struct node_vec pos = { 0 }, kw = { 0 };
    size_t cap = 0;
    int line = parse_peek(p)->line;
    bool is_bad = false, is_first = true;
    if (!c)
        return parse_full(p);
    TRY(parse_expect_op(p, "("));
    for (; !parse_is_op(parse_peek(p), ")") && !is_bad; is_first = false) {
        struct node *item = NULL;
        if (!is_first) {
            TRY(parse_expect_op(p, ","));
            if (parse_is_op(parse_peek(p), ")"))
                break;
        }
        if (parse_is_op(parse_peek(p), "*")) {
            is_bad = c->dyn_pos || c->dyn_kw;
            parse_take(p);
            TRY(parse_expression(p, &c->dyn_pos));
        } else if (parse_is_op(parse_peek(p), "**")) {
            is_bad = c->dyn_kw;
            parse_take(p);
            TRY(parse_expression(p, &c->dyn_kw));
        } else if (parse_peek(p)->kind == TOK_NAME && parse_is_op(parse_look(p), "=")) {
            is_bad = c->dyn_kw;
            TRY(parse_kwarg(p, c, &kw, &cap));
        } else {
            is_bad = c->dyn_pos || c->dyn_kw || kw.n;
            TRY(parse_expression(p, &item));
            TRY(parse_vec_add(p, &pos, item));
        }
    }
    if (is_bad)
        return parse_fail(p, line, "invalid syntax for function call expression");
    c->pos = parse_vec_take(&pos);
    c->kw = parse_vec_take(&kw);
    *out = c;
    return parse_expect_op(p, ")");
}

static enum err_code parse_call(struct parser *p, struct node **subject)
{
    struct node *n = NULL;
    TRY(parse_node(p, N_CALL, parse_peek(p)->line, &n));
    n->a = *subject;
    TRY(parse_call_args(p, &n->call));
    *subject = n;
    return ERR_OK;
}

enum err_code parse_postfix(struct parser *p, struct node **subject)
{
    for (;;) {
        const struct token *t = parse_peek(p);
        if (parse_is_op(t, "."))
            TRY(parse_attribute(p, subject));
        else if (parse_is_op(t, "["))
            TRY(parse_subscript(p, subject));
        else if (parse_is_op(t, "("))
            TRY(parse_call(p, subject));
        else
            return ERR_OK;
    }
}

/* "name" or "a.b" of a filter or test. */
static enum err_code parse_dotted(struct parser *p, struct str **out, int *line)
{
    const struct token *t = NULL;
    TRY(parse_expect_kind(p, TOK_NAME, "a filter's or test's name", &t));
    *line = t->line;
    size_t n = t->n;
    const char *s = t->s;
    while (parse_skip_op(p, ".")) {
        TRY(parse_expect_kind(p, TOK_NAME, "a name", &t));
        n = (size_t)(t->s + t->n - s);
    }
    return parse_str(p, s, n, out);
}

static enum err_code parse_lookup(struct parser *p, struct node *n, bool is_test)
{
    n->filter =
        is_test ? tmpl_test_find(n->str->s, n->str->n) : tmpl_filter_find(n->str->s, n->str->n);
    int shown = (int)(n->str->n < 60 ? n->str->n : 60);
    if (!n->filter && !is_test && tmpl_filter_is_refused(n->str->s, n->str->n))
        return parse_unsupported(p, n->line, "filter '%.*s'", shown, n->str->s);
    if (!n->filter && p->n_ifs == 0 && !p->unknown)
        p->unknown = n;
    return ERR_OK;
}

enum err_code parse_filter(struct parser *p, struct node *subject, bool is_inline,
                           struct node **out)
{
    *out = subject;
    while (is_inline || parse_skip_op(p, "|")) {
        struct node *n = NULL;
        TRY(parse_node(p, N_FILTER, 0, &n));
        TRY(parse_dotted(p, &n->str, &n->line));
        TRY(parse_lookup(p, n, false));
        if (parse_is_op(parse_peek(p), "("))
            TRY(parse_call_args(p, &n->call));
        n->a = *out;
        *out = n;
        is_inline = false;
    }
    return ERR_OK;
}

/* Does the next token start the one argument that a test may have without brackets? */
static bool parse_is_test_arg(const struct parser *p)
{
    const struct token *t = parse_peek(p);
    if (t->kind == TOK_STRING || t->kind == TOK_INTEGER || t->kind == TOK_FLOAT)
        return true;
    if (t->kind == TOK_NAME)
        return !parse_is_name(t, "else") && !parse_is_name(t, "or") && !parse_is_name(t, "and");
    return parse_is_op(t, "[") || parse_is_op(t, "{");
}

static enum err_code parse_test(struct parser *p, struct node **subject)
{
    int line = parse_take(p)->line, name_line;
    bool is_negated = parse_skip_name(p, "not");
    struct node *n = NULL;
    TRY(parse_node(p, N_TEST, line, &n));
    TRY(parse_dotted(p, &n->str, &name_line));
    TRY(parse_lookup(p, n, true));
    n->a = *subject;
    if (parse_is_op(parse_peek(p), "(")) {
        TRY(parse_call_args(p, &n->call));
    } else if (parse_is_test_arg(p)) {
        struct node_vec list = { 0 };
        struct node *arg = NULL;
        if (parse_is_name(parse_peek(p), "is"))
            return parse_fail(p, line, "You cannot chain multiple tests with is");
        TRY(parse_nest(p, line));
        TRY(parse_primary(p, 0, &arg));
        TRY(parse_postfix(p, &arg));
        p->depth--;
        TRY(parse_vec_add(p, &list, arg));
        n->call = arena_alloc(&p->t->arena, sizeof(*n->call));
        if (!n->call)
            return parse_full(p);
        n->call->pos = parse_vec_take(&list);
    }
    *subject = n;
    if (!is_negated)
        return ERR_OK;
    TRY(parse_node(p, N_NOT, line, subject));
    (*subject)->a = n;
    return ERR_OK;
}

enum err_code parse_filters(struct parser *p, struct node **subject)
{
    for (;;) {
        const struct token *t = parse_peek(p);
        if (parse_is_op(t, "|"))
            TRY(parse_filter(p, *subject, false, subject));
        else if (parse_is_name(t, "is"))
            TRY(parse_test(p, subject));
        else if (parse_is_op(t, "("))
            TRY(parse_call(p, subject));
        else
            return ERR_OK;
    }
}
