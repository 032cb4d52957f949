/* parse.c - statements: tokens to a tree that is checked here, so that a render meets no construct it does not know. */
#include "template/template_ast.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --- tokens --- */

const struct token *parse_peek(const struct parser *p)
{
    return &p->tokens.at[p->i];
}

const struct token *parse_look(const struct parser *p)
{
    return &p->tokens.at[p->i + (p->tokens.at[p->i].kind != TOK_EOF)];
}

const struct token *parse_take(struct parser *p)
{
    const struct token *t = parse_peek(p);
    if (t->kind != TOK_EOF)
        p->i++;
    return t;
}

bool parse_is_op(const struct token *t, const char *op)
{
    return t->kind == TOK_OP && t->op[0] == op[0] && t->op[1] == op[1];
}

bool parse_is_name(const struct token *t, const char *name)
{
    return t->kind == TOK_NAME && t->n == strlen(name) && memcmp(t->s, name, t->n) == 0;
}

bool parse_skip_op(struct parser *p, const char *op)
{
    if (!parse_is_op(parse_peek(p), op))
        return false;
    p->i++;
    return true;
}

bool parse_skip_name(struct parser *p, const char *name)
{
    if (!parse_is_name(parse_peek(p), name))
        return false;
    p->i++;
    return true;
}

/* "'token'" for messages. */
static const char *parse_describe(const struct token *t, char out[48])
{
    static const char *const kinds[] = {
        [TOK_EOF] = "end of template",
        [TOK_DATA] = "template data",
        [TOK_BLOCK_BEGIN] = "begin of statement block",
        [TOK_BLOCK_END] = "end of statement block",
        [TOK_VAR_BEGIN] = "begin of print statement",
        [TOK_VAR_END] = "end of print statement",
        [TOK_STRING] = "string",
    };
    if (t->kind < ARRAY_LEN(kinds) && kinds[t->kind])
        return kinds[t->kind];
    snprintf(out, 48, "'%.*s'",
             (int)(t->n < 40 ? utf8_complete_prefix(t->s, t->n) : utf8_complete_prefix(t->s, 40)),
             t->s);
    return out;
}

enum err_code parse_fail(struct parser *p, int line, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(p->err, ERR_INVALID, "%s line %d: %s", p->t->name, line, text);
}

enum err_code parse_unsupported(struct parser *p, int line, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(p->err, ERR_UNSUPPORTED, "%s line %d: %s is not supported", p->t->name, line,
                   text);
}

enum err_code parse_full(struct parser *p)
{
    return err_set(p->err, ERR_FULL, "%s: template is too large", p->t->name);
}

enum err_code parse_expect_op(struct parser *p, const char *op)
{
    char what[48];
    const struct token *t = parse_peek(p);
    if (parse_skip_op(p, op))
        return ERR_OK;
    return parse_fail(p, t->line, "expected token '%s', got %s", op, parse_describe(t, what));
}

enum err_code parse_expect_kind(struct parser *p, enum token_kind kind, const char *what,
                                const struct token **out)
{
    char got[48];
    const struct token *t = parse_peek(p);
    if (t->kind != kind)
        return parse_fail(p, t->line, "expected %s, got %s", what, parse_describe(t, got));
    parse_take(p);
    if (out)
        *out = t;
    return ERR_OK;
}

/* --- tree --- */

enum err_code parse_node(struct parser *p, enum node_kind kind, int line, struct node **out)
{
    struct node *n = arena_alloc(&p->t->arena, sizeof(*n));
    if (!n)
        return parse_full(p);
    n->kind = (uint8_t)kind;
    n->line = line;
    *out = n;
    return ERR_OK;
}

enum err_code parse_vec_add(struct parser *p, struct node_vec *v, struct node *n)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 4;
        struct node **at = arena_alloc(&p->t->arena, cap * sizeof(*at));
        if (!at)
            return parse_full(p);
        if (v->n)
            memcpy(at, v->at, v->n * sizeof(*at));
        v->at = at;
        v->cap = cap;
    }
    v->at[v->n++] = n;
    return ERR_OK;
}

struct node_list parse_vec_take(struct node_vec *v)
{
    return (struct node_list){ .at = v->at, .n = v->n };
}

/* Callers lower p->depth themselves on the way out; an error ends the parse anyway. */
enum err_code parse_nest(struct parser *p, int line)
{
    if (++p->depth > TMPL_NEST_MAX)
        return parse_fail(p, line, "nested deeper than %d", TMPL_NEST_MAX);
    return ERR_OK;
}

enum err_code parse_str(struct parser *p, const char *s, size_t n, struct str **out)
{
    struct str *str = arena_alloc(&p->t->arena, sizeof(*str));
    if (!str)
        return parse_full(p);
    *str = (struct str){ .s = s, .n = n, .n_chars = utf8_count(s, n) };
    *out = str;
    return ERR_OK;
}

enum err_code parse_name_id(struct parser *p, const char *s, size_t n, int32_t *id)
{
    struct template *t = p->t;
    *id = map_get(&t->names, s, n);
    if (*id >= 0)
        return ERR_OK;
    if (t->n_names == t->cap_names) {
        int32_t cap = t->cap_names ? t->cap_names * 2 : 64;
        struct str **strs = arena_alloc(&t->arena, (size_t)cap * sizeof(*strs));
        bool *loaded = arena_alloc(&t->arena, (size_t)cap * sizeof(*loaded));
        if (!strs || !loaded)
            return parse_full(p);
        if (t->n_names) {
            memcpy(strs, t->name_strs, (size_t)t->n_names * sizeof(*strs));
            memcpy(loaded, t->is_loaded, (size_t)t->n_names * sizeof(*loaded));
        }
        t->name_strs = strs;
        t->is_loaded = loaded;
        t->cap_names = cap;
    }
    TRY(parse_str(p, s, n, &t->name_strs[t->n_names]));
    *id = t->n_names++;
    map_add(&t->names, s, n, *id);
    return ERR_OK;
}

/* --- statements --- */

static enum err_code parse_until(struct parser *p, const char *const *ends, const char *tag,
                                 int line, struct node_list *out);

/* The body of a block tag: from its "%}" to one of `ends`, whose name is the next token. */
static enum err_code parse_body(struct parser *p, const char *const *ends, const char *tag,
                                int line, struct node_list *out)
{
    int n_ifs = p->n_ifs;
    parse_skip_op(p, ":");
    TRY(parse_expect_kind(p, TOK_BLOCK_END, "end of statement block", NULL));
    if (strcmp(tag, "if") != 0)
        p->n_ifs =
            0; /* a scope of its own: unknown filters are told at load again, as jinja2 does */
    TRY(parse_until(p, ends, tag, line, out));
    p->n_ifs = n_ifs;
    return ERR_OK;
}

/* As parse_body, for a tag with one end, which is taken. */
static enum err_code parse_body_to(struct parser *p, const char *end, const char *tag, int line,
                                   struct node_list *out)
{
    const char *const ends[] = { end, NULL };
    TRY(parse_body(p, ends, tag, line, out));
    parse_take(p);
    return ERR_OK;
}

static enum err_code parse_if(struct parser *p, struct node *n)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct node_vec list = { 0 };
    p->n_ifs++;
    for (;;) {
        struct node *test = NULL, *body = NULL;
        TRY(parse_tuple(p, TUPLE_NO_COND, NULL, &test));
        TRY(parse_node(p, N_BODY, n->line, &body));
        TRY(parse_body(p, ends, "if", n->line, &body->list));
        TRY(parse_vec_add(p, &list, test));
        TRY(parse_vec_add(p, &list, body));
        const struct token *end = parse_take(p);
        if (parse_is_name(end, "elif"))
            continue;
        if (parse_is_name(end, "else")) {
            TRY(parse_node(p, N_BODY, n->line, &n->c));
            TRY(parse_body_to(p, "endif", "if", n->line, &n->c->list));
        }
        break;
    }
    p->n_ifs--;
    n->list = parse_vec_take(&list);
    return ERR_OK;
}

static enum err_code parse_for(struct parser *p, struct node *n)
{
    static const char *const ends[] = { "endfor", "else", NULL };
    char what[48];
    TRY(parse_target(p, 0, "in", &n->a));
    if (!parse_skip_name(p, "in"))
        return parse_fail(p, n->line, "expected token 'in', got %s",
                          parse_describe(parse_peek(p), what));
    TRY(parse_tuple(p, TUPLE_NO_COND, "recursive", &n->b));
    if (parse_skip_name(p, "if"))
        TRY(parse_expression(p, &n->c));
    n->is_recursive = parse_skip_name(p, "recursive");
    p->n_loops++;
    p->n_fors++;
    TRY(parse_body(p, ends, "for", n->line, &n->body));
    p->n_loops--;
    if (parse_is_name(parse_take(p), "else"))
        TRY(parse_body_to(p, "endfor", "for", n->line, &n->else_body));
    p->n_fors--;
    return ERR_OK;
}

static enum err_code parse_set(struct parser *p, struct node *n)
{
    TRY(parse_target(p, TUPLE_NAMESPACE, NULL, &n->a));
    if (parse_skip_op(p, "="))
        return parse_tuple(p, 0, NULL, &n->b);
    n->kind = N_SET_BLOCK;
    TRY(parse_filter(p, NULL, false, &n->b));
    return parse_body_to(p, "endset", "set", n->line, &n->body);
}

static enum err_code parse_with(struct parser *p, struct node *n)
{
    struct node_vec list = { 0 };
    while (parse_peek(p)->kind != TOK_BLOCK_END) {
        struct node *target = NULL, *value = NULL;
        if (list.n)
            TRY(parse_expect_op(p, ","));
        TRY(parse_target(p, 0, NULL, &target));
        TRY(parse_expect_op(p, "="));
        TRY(parse_expression(p, &value));
        TRY(parse_vec_add(p, &list, target));
        TRY(parse_vec_add(p, &list, value));
    }
    n->list = parse_vec_take(&list);
    return parse_body_to(p, "endwith", "with", n->line, &n->body);
}

/* "(a, b=1)" of a macro or call block. */
static enum err_code parse_signature(struct parser *p, struct macro_def *m)
{
    size_t cap = 0;
    bool has_default = false;
    TRY(parse_expect_op(p, "("));
    while (!parse_is_op(parse_peek(p), ")")) {
        const struct token *name = NULL;
        if (m->n_params)
            TRY(parse_expect_op(p, ","));
        if (m->n_params == cap) {
            size_t grown = cap ? cap * 2 : 8;
            int32_t *params = arena_alloc(&p->t->arena, grown * sizeof(*params));
            struct node **defaults = arena_alloc(&p->t->arena, grown * sizeof(struct node *));
            if (!params || !defaults)
                return parse_full(p);
            if (cap) {
                memcpy(params, m->params, cap * sizeof(*params));
                memcpy(defaults, m->defaults, cap * sizeof(struct node *));
            }
            m->params = params;
            m->defaults = defaults;
            cap = grown;
        }
        size_t i = m->n_params;
        TRY(parse_target_name(p, &m->params[i], &name));
        for (size_t j = 0; j < i; j++)
            if (m->params[j] == m->params[i])
                return parse_fail(p, name->line, "duplicate argument '%.*s'", (int)name->n,
                                  name->s);
        if (parse_skip_op(p, "=")) {
            TRY(parse_expression(p, &m->defaults[i]));
            has_default = true;
        } else if (has_default) {
            return parse_fail(p, name->line, "non-default argument follows default argument");
        }
        m->n_params++;
    }
    return parse_expect_op(p, ")");
}

static enum err_code parse_macro_new(struct parser *p, struct macro_def **out)
{
    struct macro_def *m = arena_alloc(&p->t->arena, sizeof(*m));
    if (!m)
        return parse_full(p);
    TRY(parse_name_id(p, "varargs", 7, &m->varargs_id));
    TRY(parse_name_id(p, "kwargs", 6, &m->kwargs_id));
    TRY(parse_name_id(p, "caller", 6, &m->caller_id));
    *out = m;
    return ERR_OK;
}

/* A macro's body: what it does not see of the outside is the loop to break from. */
static enum err_code parse_macro_body(struct parser *p, struct macro_def *m, const char *tag,
                                      int line)
{
    char end[16];
    struct macro_def *outer = p->macro;
    int n_loops = p->n_loops;
    snprintf(end, sizeof(end), "end%s", tag);
    p->macro = m;
    p->n_loops = 0;
    TRY(parse_body_to(p, end, tag, line, &m->body));
    p->macro = outer;
    p->n_loops = n_loops;
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i] == m->caller_id && m->has_caller && !m->defaults[i])
            return parse_fail(p, line,
                              "When defining macros or call blocks the special \"caller\" argument "
                              "must be omitted or be given a default.");
    /* A call block inside looks at its own varargs; so may the macro around it. */
    if (outer) {
        outer->has_caller |= m->has_caller;
        outer->has_kwargs |= m->has_kwargs;
        outer->has_varargs |= m->has_varargs;
    }
    return ERR_OK;
}

static enum err_code parse_macro(struct parser *p, struct node *n)
{
    const struct token *name = NULL;
    struct str *str = NULL;
    TRY(parse_macro_new(p, &n->macro));
    TRY(parse_target_name(p, &n->id, &name));
    TRY(parse_str(p, name->s, name->n, &str));
    n->macro->name = str;
    TRY(parse_signature(p, n->macro));
    return parse_macro_body(p, n->macro, "macro", n->line);
}

static enum err_code parse_call_block(struct parser *p, struct node *n)
{
    TRY(parse_macro_new(p, &n->macro));
    if (parse_is_op(parse_peek(p), "("))
        TRY(parse_signature(p, n->macro));
    TRY(parse_expression(p, &n->a));
    if (n->a->kind != N_CALL)
        return parse_fail(p, n->line, "expected call");
    return parse_macro_body(p, n->macro, "call", n->line);
}

static enum err_code parse_filter_block(struct parser *p, struct node *n)
{
    TRY(parse_filter(p, NULL, true, &n->a));
    return parse_body_to(p, "endfilter", "filter", n->line, &n->body);
}

static enum err_code parse_block(struct parser *p, struct node *n)
{
    const struct token *name = NULL;
    TRY(parse_expect_kind(p, TOK_NAME, "a block's name", &name));
    if (!map_add(&p->blocks, name->s, name->n, 1))
        return parse_fail(p, n->line, "block '%.*s' defined twice", (int)name->n, name->s);
    n->is_scoped = parse_skip_name(p, "scoped");
    if (parse_skip_name(p, "required"))
        return parse_unsupported(p, n->line, "a required block");
    int n_loops = p->n_loops;
    p->n_loops = 0;
    TRY(parse_body_to(p, "endblock", "block", n->line, &n->body));
    p->n_loops = n_loops;
    const struct token *t = parse_peek(p);
    if (t->kind == TOK_NAME && t->n == name->n && memcmp(t->s, name->s, t->n) == 0)
        parse_take(p);
    return ERR_OK;
}

static enum err_code parse_generation(struct parser *p, struct node *n)
{
    int n_loops = p->n_loops;
    p->n_loops = 0;
    TRY(parse_body_to(p, "endgeneration", "generation", n->line, &n->body));
    p->n_loops = n_loops;
    return ERR_OK;
}

static enum err_code parse_print(struct parser *p, struct node *n)
{
    struct node_vec list = { 0 };
    while (parse_peek(p)->kind != TOK_BLOCK_END) {
        struct node *item = NULL;
        if (list.n)
            TRY(parse_expect_op(p, ","));
        TRY(parse_expression(p, &item));
        TRY(parse_vec_add(p, &list, item));
    }
    n->list = parse_vec_take(&list);
    return ERR_OK;
}

static enum err_code parse_jump(struct parser *p, struct node *n)
{
    if (p->n_loops == 0)
        return parse_fail(p, n->line, "'%s' outside loop",
                          n->kind == N_BREAK ? "break" : "continue");
    return ERR_OK;
}

static const struct statement {
    const char *tag;
    enum node_kind kind;
    enum err_code (*parse)(struct parser *p,
                           struct node *n); /* after the tag's name; NULL: refused */
} statements[] = {
    { "if", N_IF, parse_if },
    { "for", N_FOR, parse_for },
    { "set", N_SET, parse_set },
    { "with", N_WITH, parse_with },
    { "macro", N_MACRO, parse_macro },
    { "call", N_CALL_BLOCK, parse_call_block },
    { "filter", N_FILTER_BLOCK, parse_filter_block },
    { "block", N_BLOCK, parse_block },
    { "generation", N_SCOPE, parse_generation },
    { "print", N_OUTPUT, parse_print },
    { "break", N_BREAK, parse_jump },
    { "continue", N_CONTINUE, parse_jump },
    { "include", N_BODY, NULL },
    { "import", N_BODY, NULL },
    { "from", N_BODY, NULL },
    { "extends", N_BODY, NULL },
    { "autoescape", N_BODY, NULL },
};

static enum err_code parse_statement(struct parser *p, const char *tag, int tag_line,
                                     struct node **out)
{
    const struct token *t = parse_take(p);
    if (t->kind != TOK_NAME)
        return parse_fail(p, t->line, "tag name expected");
    for (size_t i = 0; i < ARRAY_LEN(statements); i++) {
        const struct statement *s = &statements[i];
        if (!parse_is_name(t, s->tag))
            continue;
        if (!s->parse)
            return parse_unsupported(p, t->line, "{%% %s %%}", s->tag);
        TRY(parse_node(p, s->kind, t->line, out));
        TRY(parse_nest(p, t->line));
        TRY(s->parse(p, *out));
        p->depth--;
        return ERR_OK;
    }
    if (tag)
        return parse_fail(p, t->line, "unknown tag '%.*s' inside '%s' of line %d", (int)t->n, t->s,
                          tag, tag_line);
    return parse_fail(p, t->line, "unknown tag '%.*s'", (int)t->n, t->s);
}

static bool parse_at_end(const struct token *t, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (parse_is_name(t, *ends))
            return true;
    return false;
}

/* One print statement or piece of text. */
static enum err_code parse_output(struct parser *p, struct node_vec *body)
{
    const struct token *t = parse_take(p);
    struct node *n = NULL, *item = NULL;
    TRY(parse_node(p, N_OUTPUT, t->line, &n));
    if (t->kind == TOK_DATA) {
        TRY(parse_node(p, N_CONST, t->line, &item));
        item->value.type = V_STR;
        TRY(parse_str(p, t->s, t->n, &item->value.s));
    } else {
        TRY(parse_tuple(p, 0, NULL, &item));
        TRY(parse_expect_kind(p, TOK_VAR_END, "end of print statement", NULL));
    }
    struct node_vec list = { 0 };
    TRY(parse_vec_add(p, &list, item));
    n->list = parse_vec_take(&list);
    return parse_vec_add(p, body, n);
}

/* Up to one of the end tags (left as the next token), or to the end of the template if ends is NULL. */
static enum err_code parse_until(struct parser *p, const char *const *ends, const char *tag,
                                 int line, struct node_list *out)
{
    struct node_vec body = { 0 };
    for (;;) {
        const struct token *t = parse_peek(p);
        if (t->kind == TOK_EOF) {
            if (ends)
                return parse_fail(p, t->line,
                                  "unexpected end of template: '%s' of line %d is not closed", tag,
                                  line);
            break;
        }
        if (t->kind != TOK_BLOCK_BEGIN) {
            TRY(parse_output(p, &body));
            continue;
        }
        parse_take(p);
        if (parse_at_end(parse_peek(p), ends))
            break;
        struct node *n = NULL;
        TRY(parse_statement(p, tag, line, &n));
        TRY(parse_vec_add(p, &body, n));
        TRY(parse_expect_kind(p, TOK_BLOCK_END, "end of statement block", NULL));
    }
    *out = parse_vec_take(&body);
    return ERR_OK;
}

enum err_code parse_template(struct parser *p)
{
    TRY(parse_until(p, NULL, NULL, 0, &p->t->body));
    const struct node *u = p->unknown;
    if (u)
        return parse_fail(p, u->line, "No %s named '%.*s'.", u->kind == N_TEST ? "test" : "filter",
                          (int)(u->str->n < 60 ? u->str->n : 60), u->str->s);
    return ERR_OK;
}
