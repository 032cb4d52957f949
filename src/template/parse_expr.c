/* parse_expr.c - expressions, by jinja2's precedence: if-else, or, and, not, comparisons, + -, ~, * / // %, **, unary, postfix. */
#include "template/template_ast.h"

#include <string.h>

static enum err_code parse_unary(struct parser *p, bool with_filter, struct node **out);

/* *left = kind(*left, b) */
static enum err_code parse_pair(struct parser *p, enum node_kind kind, int op, int line,
                                struct node *b, struct node **left)
{
    struct node *n = NULL;
    TRY(parse_node(p, kind, line, &n));
    n->op = (uint8_t)op;
    n->a = *left;
    n->b = b;
    *left = n;
    return ERR_OK;
}

static int parse_find_op(const struct token *t, const char *const *ops)
{
    for (int i = 0; ops[i]; i++)
        if (parse_is_op(t, ops[i]))
            return i;
    return -1;
}

static enum err_code parse_pow(struct parser *p, struct node **out)
{
    struct node *b = NULL;
    TRY(parse_unary(p, true, out));
    while (parse_is_op(parse_peek(p), "**")) {
        int line = parse_take(p)->line;
        TRY(parse_unary(p, true, &b));
        TRY(parse_pair(p, N_BINARY, OP_POW, line, b, out));
    }
    return ERR_OK;
}

static enum err_code parse_product(struct parser *p, struct node **out)
{
    static const char *const ops[] = { "*", "/", "//", "%", NULL };
    static const int kinds[] = { OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD };
    struct node *b = NULL;
    TRY(parse_pow(p, out));
    for (int op; (op = parse_find_op(parse_peek(p), ops)) >= 0;) {
        int line = parse_take(p)->line;
        TRY(parse_pow(p, &b));
        TRY(parse_pair(p, N_BINARY, kinds[op], line, b, out));
    }
    return ERR_OK;
}

static enum err_code parse_concat(struct parser *p, struct node **out)
{
    struct node_vec list = { 0 };
    int line = parse_peek(p)->line;
    TRY(parse_product(p, out));
    while (parse_skip_op(p, "~")) {
        struct node *b = NULL;
        if (list.n == 0)
            TRY(parse_vec_add(p, &list, *out));
        TRY(parse_product(p, &b));
        TRY(parse_vec_add(p, &list, b));
    }
    if (list.n == 0)
        return ERR_OK;
    TRY(parse_node(p, N_CONCAT, line, out));
    (*out)->list = parse_vec_take(&list);
    return ERR_OK;
}

static enum err_code parse_add(struct parser *p, struct node **out)
{
    static const char *const ops[] = { "+", "-", NULL };
    struct node *b = NULL;
    TRY(parse_concat(p, out));
    for (int op; (op = parse_find_op(parse_peek(p), ops)) >= 0;) {
        int line = parse_take(p)->line;
        TRY(parse_concat(p, &b));
        TRY(parse_pair(p, N_BINARY, op ? OP_SUB : OP_ADD, line, b, out));
    }
    return ERR_OK;
}

/* The comparison that comes next, taken; -1 if none. */
static int parse_compare_op(struct parser *p)
{
    static const char *const ops[] = { "==", "!=", "<", "<=", ">", ">=", NULL };
    static const int kinds[] = { OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE };
    int op = parse_find_op(parse_peek(p), ops);
    if (op >= 0) {
        parse_take(p);
        return kinds[op];
    }
    if (parse_skip_name(p, "in"))
        return OP_IN;
    if (parse_is_name(parse_peek(p), "not") && parse_is_name(parse_look(p), "in")) {
        parse_take(p);
        parse_take(p);
        return OP_NOT_IN;
    }
    return -1;
}

static enum err_code parse_compare(struct parser *p, struct node **out)
{
    struct node_vec list = { 0 };
    int line = parse_peek(p)->line;
    TRY(parse_add(p, out));
    for (int op; (op = parse_compare_op(p)) >= 0;) {
        struct node *operand = NULL;
        TRY(parse_node(p, N_OPERAND, line, &operand));
        operand->op = (uint8_t)op;
        TRY(parse_add(p, &operand->a));
        TRY(parse_vec_add(p, &list, operand));
    }
    if (list.n == 0)
        return ERR_OK;
    struct node *n = NULL;
    TRY(parse_node(p, N_COMPARE, line, &n));
    n->a = *out;
    n->list = parse_vec_take(&list);
    *out = n;
    return ERR_OK;
}

static enum err_code parse_not(struct parser *p, struct node **out)
{
    const struct token *t = parse_peek(p);
    if (!parse_skip_name(p, "not"))
        return parse_compare(p, out);
    TRY(parse_nest(p, t->line));
    struct node *n = NULL;
    TRY(parse_node(p, N_NOT, t->line, &n));
    TRY(parse_not(p, &n->a));
    p->depth--;
    *out = n;
    return ERR_OK;
}

static enum err_code parse_and(struct parser *p, struct node **out)
{
    struct node *b = NULL;
    TRY(parse_not(p, out));
    while (parse_is_name(parse_peek(p), "and")) {
        int line = parse_take(p)->line;
        TRY(parse_not(p, &b));
        TRY(parse_pair(p, N_AND, 0, line, b, out));
    }
    return ERR_OK;
}

enum err_code parse_or_test(struct parser *p, struct node **out)
{
    struct node *b = NULL;
    TRY(parse_nest(p, parse_peek(p)->line));
    TRY(parse_and(p, out));
    while (parse_is_name(parse_peek(p), "or")) {
        int line = parse_take(p)->line;
        TRY(parse_and(p, &b));
        TRY(parse_pair(p, N_OR, 0, line, b, out));
    }
    p->depth--;
    return ERR_OK;
}

enum err_code parse_expression(struct parser *p, struct node **out)
{
    int line = parse_peek(p)->line;
    const struct node *unknown = p->unknown;
    TRY(parse_nest(p, line));
    TRY(parse_or_test(p, out));
    if (parse_is_name(parse_peek(p), "if"))
        p->unknown =
            unknown; /* inside a conditional an unknown filter is an error only when it runs */
    p->n_ifs++;
    while (parse_skip_name(p, "if")) {
        struct node *n = NULL;
        TRY(parse_node(p, N_COND, line, &n));
        n->a = *out;
        TRY(parse_or_test(p, &n->b));
        if (parse_skip_name(p, "else"))
            TRY(parse_expression(p, &n->c));
        *out = n;
    }
    p->n_ifs--;
    p->depth--;
    return ERR_OK;
}

/* --- literals and names --- */

static enum err_code parse_const(struct parser *p, int line, struct value v, struct node **out)
{
    TRY(parse_node(p, N_CONST, line, out));
    (*out)->value = v;
    return ERR_OK;
}

static enum err_code parse_strings(struct parser *p, const struct token *t, struct node **out)
{
    struct value v = { .type = V_STR };
    size_t n = t->n;
    for (size_t i = p->i; p->tokens.at[i].kind == TOK_STRING; i++)
        n += p->tokens.at[i].n;
    char *text = arena_alloc(&p->t->arena, n + 1);
    if (!text)
        return parse_full(p);
    memcpy(text, t->s, t->n);
    for (size_t at = t->n; parse_peek(p)->kind == TOK_STRING;) {
        const struct token *more = parse_take(p);
        memcpy(text + at, more->s, more->n);
        at += more->n;
    }
    TRY(parse_str(p, text, n, &v.s));
    return parse_const(p, t->line, v, out);
}

enum err_code parse_integer(struct parser *p, const struct token *t, struct node **out)
{
    struct value v = { .type = V_INT };
    int base = t->n > 1 && t->s[0] == '0' ? ((t->s[1] | 32) == 'x'   ? 16
                                             : (t->s[1] | 32) == 'o' ? 8
                                             : (t->s[1] | 32) == 'b' ? 2
                                                                     : 10)
                                          : 10;
    for (size_t i = base == 10 ? 0 : 2; i < t->n; i++) {
        char c = t->s[i];
        int d = c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
        if (__builtin_mul_overflow(v.i, base, &v.i) || __builtin_add_overflow(v.i, d, &v.i)) {
            if (base != 10)
                return parse_unsupported(p, t->line, "the integer %.*s",
                                         (int)(t->n < 80 ? t->n : 80), t->s);
            v.type = V_BIG;
            TRY(parse_str(p, t->s, t->n, &v.s));
            break;
        }
    }
    return parse_const(p, t->line, v, out);
}

/* The variable is read here; the three special ones are a macro's. */
static void parse_note_load(struct parser *p, int32_t id)
{
    struct macro_def *m = p->macro;
    p->t->is_loaded[id] = true;
    if (!m)
        return;
    m->has_varargs |= id == m->varargs_id;
    m->has_kwargs |= id == m->kwargs_id;
    m->has_caller |= id == m->caller_id;
}

static enum err_code parse_name(struct parser *p, const struct token *t, unsigned flags,
                                struct node **out)
{
    struct value v = { .type = V_BOOL };
    if (parse_is_name(t, "true") || parse_is_name(t, "True")) {
        v.b = true;
        return parse_const(p, t->line, v, out);
    }
    if (parse_is_name(t, "false") || parse_is_name(t, "False"))
        return parse_const(p, t->line, v, out);
    if (parse_is_name(t, "none") || parse_is_name(t, "None"))
        return parse_const(p, t->line, (struct value){ .type = V_NONE }, out);
    bool is_ns = (flags & TUPLE_NAMESPACE) && parse_skip_op(p, ".");
    TRY(parse_node(p, is_ns ? N_NSREF : N_NAME, t->line, out));
    TRY(parse_name_id(p, t->s, t->n, &(*out)->id));
    if (!(flags & TUPLE_SIMPLE) || is_ns)
        parse_note_load(p, (*out)->id);
    if (!is_ns)
        return ERR_OK;
    const struct token *attr = NULL;
    TRY(parse_expect_kind(p, TOK_NAME, "a name", &attr));
    return parse_str(p, attr->s, attr->n, &(*out)->str);
}

static enum err_code parse_items(struct parser *p, const char *end, bool is_dict, struct node *n)
{
    struct node_vec list = { 0 };
    while (!parse_is_op(parse_peek(p), end)) {
        struct node *item = NULL;
        if (list.n) {
            TRY(parse_expect_op(p, ","));
            if (parse_is_op(parse_peek(p), end))
                break;
        }
        TRY(parse_expression(p, &item));
        TRY(parse_vec_add(p, &list, item));
        if (!is_dict)
            continue;
        TRY(parse_expect_op(p, ":"));
        TRY(parse_expression(p, &item));
        TRY(parse_vec_add(p, &list, item));
    }
    n->list = parse_vec_take(&list);
    return parse_expect_op(p, end);
}

enum err_code parse_primary(struct parser *p, unsigned flags, struct node **out)
{
    const struct token *t = parse_take(p);
    switch (t->kind) {
    case TOK_NAME:
        return parse_name(p, t, flags, out);
    case TOK_STRING:
        return parse_strings(p, t, out);
    case TOK_INTEGER:
        return parse_integer(p, t, out);
    case TOK_FLOAT:
        return parse_const(p, t->line, (struct value){ .type = V_FLOAT, .f = t->f }, out);
    default:
        break;
    }
    if (parse_is_op(t, "(")) {
        TRY(parse_tuple(p, TUPLE_PARENS, NULL, out));
        return parse_expect_op(p, ")");
    }
    if (parse_is_op(t, "[")) {
        TRY(parse_node(p, N_LIST, t->line, out));
        return parse_items(p, "]", false, *out);
    }
    if (parse_is_op(t, "{")) {
        TRY(parse_node(p, N_DICT, t->line, out));
        return parse_items(p, "}", true, *out);
    }
    if (t->kind == TOK_EOF)
        return parse_fail(p, t->line, "unexpected end of template in an expression");
    return parse_fail(p, t->line, "unexpected '%.*s'", (int)(t->n < 40 ? t->n : 40), t->s);
}

static bool parse_is_tuple_end(const struct parser *p, const char *end_name)
{
    const struct token *t = parse_peek(p);
    if (t->kind == TOK_VAR_END || t->kind == TOK_BLOCK_END || parse_is_op(t, ")"))
        return true;
    return end_name && parse_is_name(t, end_name);
}

enum err_code parse_tuple(struct parser *p, unsigned flags, const char *end_name, struct node **out)
{
    struct node_vec list = { 0 };
    bool is_tuple = false;
    int line = parse_peek(p)->line;
    for (;;) {
        struct node *item = NULL;
        if (list.n)
            TRY(parse_expect_op(p, ","));
        if (parse_is_tuple_end(p, end_name))
            break;
        if (flags & TUPLE_SIMPLE)
            TRY(parse_primary(p, flags, &item));
        else if (flags & TUPLE_NO_COND)
            TRY(parse_or_test(p, &item));
        else
            TRY(parse_expression(p, &item));
        TRY(parse_vec_add(p, &list, item));
        if (!parse_is_op(parse_peek(p), ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && list.n) {
        *out = list.at[0];
        return ERR_OK;
    }
    if (!is_tuple && !(flags & TUPLE_PARENS))
        return parse_fail(p, line, "Expected an expression");
    TRY(parse_node(p, N_TUPLE, line, out));
    (*out)->list = parse_vec_take(&list);
    return ERR_OK;
}

/* --- targets --- */

static enum err_code parse_check_target(struct parser *p, const struct node *n)
{
    if (n->kind == N_TUPLE) {
        for (size_t i = 0; i < n->list.n; i++)
            TRY(parse_check_target(p, n->list.at[i]));
        return ERR_OK;
    }
    if (n->kind != N_NAME && n->kind != N_NSREF)
        return parse_fail(p, n->line, "can't assign to this expression");
    if (n->kind == N_NAME && p->n_fors && str_is(p->t->name_strs[n->id], "loop"))
        return parse_fail(p, n->line, "Can't assign to special loop variable in for-loop target");
    return ERR_OK;
}

enum err_code parse_target(struct parser *p, unsigned flags, const char *end_name,
                           struct node **out)
{
    /* The loop's own target may not be "loop" either. */
    bool is_for = end_name != NULL;
    TRY(parse_tuple(p, flags | TUPLE_SIMPLE, end_name, out));
    p->n_fors += is_for;
    TRY(parse_check_target(p, *out));
    p->n_fors -= is_for;
    return ERR_OK;
}

enum err_code parse_target_name(struct parser *p, int32_t *id, const struct token **name)
{
    static const char *const consts[] = { "true", "false", "none", "True", "False", "None" };
    TRY(parse_expect_kind(p, TOK_NAME, "a name", name));
    for (size_t i = 0; i < ARRAY_LEN(consts); i++)
        if (parse_is_name(*name, consts[i]))
            return parse_fail(p, (*name)->line, "can't assign to '%s'", consts[i]);
    return parse_name_id(p, (*name)->s, (*name)->n, id);
}

/* --- unary --- */

static enum err_code parse_unary(struct parser *p, bool with_filter, struct node **out)
{
    const struct token *t = parse_peek(p);
    bool is_minus = parse_is_op(t, "-");
    TRY(parse_nest(p, t->line));
    if (is_minus || parse_is_op(t, "+")) {
        struct node *n = NULL;
        parse_take(p);
        TRY(parse_node(p, is_minus ? N_NEG : N_POS, t->line, &n));
        TRY(parse_unary(p, false, &n->a));
        *out = n;
    } else {
        TRY(parse_primary(p, 0, out));
    }
    TRY(parse_postfix(p, out));
    if (with_filter)
        TRY(parse_filters(p, out));
    p->depth--;
    return ERR_OK;
}
