/* template_ast.h - tokens, the tree, and the parser's files. */
#ifndef PLUMB_TEMPLATE_TEMPLATE_AST_H
#define PLUMB_TEMPLATE_TEMPLATE_AST_H

#include "template/template_int.h"

/* --- tokens (tmpl_lex.c) --- */

enum token_kind {
    TOK_EOF,
    TOK_DATA,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_NAME,
    TOK_STRING,
    TOK_INTEGER,
    TOK_FLOAT,
    TOK_OP, /* op[0], op[1] */
};

struct token {
    uint8_t kind;
    char op[2]; /* "+", "//" */
    int line;
    const char
        *s; /* DATA, NAME: text; STRING: unescaped; INTEGER: digits in base 10 or as spelled */
    size_t n;
    double f;
};

struct token_array {
    struct token *at;
    size_t n, cap;
};

/* Cut text into tokens; the last is TOK_EOF. Everything lives in `arena`. */
enum err_code tmpl_lex(const char *name, const char *text, size_t len, struct arena *arena,
                       struct token_array *out, struct err *err) MUST_CHECK;

/* --- tree --- */

enum node_kind {
    /* expressions */
    N_CONST,   /* value */
    N_NAME,    /* id */
    N_TUPLE,   /* list */
    N_LIST,    /* list */
    N_DICT,    /* list: key, value, key, value */
    N_COND,    /* a if b else c (c may be NULL) */
    N_OR,      /* a, b */
    N_AND,     /* a, b */
    N_NOT,     /* a */
    N_COMPARE, /* a; list of operands, each N_OPERAND */
    N_OPERAND, /* op, a */
    N_BINARY,  /* op, a, b */
    N_CONCAT,  /* list */
    N_NEG,     /* a */
    N_POS,     /* a */
    N_GETATTR, /* a, str */
    N_GETITEM, /* a, b */
    N_SLICE,   /* a; part[3], each may be NULL */
    N_CALL,    /* a, call */
    N_FILTER,  /* a (NULL: the block's text), filter, str, call */
    N_TEST,    /* a, filter, str, call */
    /* assignment targets: N_NAME, N_TUPLE and */
    N_NSREF, /* id, str */
    /* statements */
    N_OUTPUT,       /* list of expressions */
    N_IF,           /* list: test, body (N_BODY), test, body, ...; c: else body or NULL */
    N_FOR,          /* a: target, b: sequence, c: test or NULL, body, else_body, is_recursive */
    N_SET,          /* a: target, b: value */
    N_SET_BLOCK,    /* a: target, b: filter or NULL, body */
    N_MACRO,        /* id, macro */
    N_CALL_BLOCK,   /* a: the call, macro */
    N_FILTER_BLOCK, /* a: filter, body */
    N_WITH,         /* list: target, value, ...; body */
    N_BLOCK,        /* body; is_scoped */
    N_SCOPE,        /* body in a scope of its own: generation */
    N_BREAK,
    N_CONTINUE,
    N_BODY, /* list of statements */
};

enum op_kind {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct node_list {
    struct node **at;
    size_t n;
};

struct call_args {
    struct node_list pos;
    const struct str **kw_names; /* [kw.n] */
    struct node_list kw;
    struct node *dyn_pos, *dyn_kw; /* *args, **kwargs; may be NULL */
};

struct macro_def {
    const struct str *name; /* NULL: a call block's caller */
    int32_t *params;        /* [n_params] name ids */
    struct node **defaults; /* [n_params], NULL where there is none */
    size_t n_params;
    struct node_list body;
    bool has_varargs, has_kwargs, has_caller; /* the body looks at them */
    int32_t varargs_id, kwargs_id, caller_id;
};

struct node {
    uint8_t kind;
    uint8_t op;
    bool is_recursive, is_scoped;
    int line;
    int32_t id;
    struct node *a, *b, *c;
    struct node *part[3];
    struct node_list list, body, else_body;
    struct str *str;
    struct value value;
    struct call_args *call;
    const struct filter *filter; /* NULL: no such filter or test; an error when it runs */
    struct macro_def *macro;
};

struct macro { /* a macro as a value */
    const struct macro_def *def;
    struct scope *scope; /* where it was defined */
};

struct loop {
    const struct node *node;
    struct scope *scope; /* outside */
    struct iter *iter;
    struct value source;
    bool has_length;
    size_t length;
    int64_t index0, depth0;
    bool has_after; /* one item was looked at ahead */
    struct value before, current, after, changed;
};

struct template
{
    struct arena arena;
    char *name;
    struct map names;       /* variable name -> id */
    struct str **name_strs; /* [n_names] */
    bool *is_loaded;        /* [n_names] read somewhere */
    int32_t n_names, cap_names;
    struct node_list body;
};

/* --- parser --- */

struct parser {
    struct template *t;
    struct token_array tokens;
    size_t i;
    int depth;
    int n_ifs; /* enclosing if and conditional expressions: unknown filters wait for the render there */
    int n_loops; /* enclosing loops of this function: break and continue */
    int n_fors;  /* enclosing loops, through macros too: `loop` is theirs */
    struct map blocks;
    const struct node *unknown; /* the first filter or test without a name that we know */
    struct macro_def *macro;    /* innermost, or NULL */
    struct err *err;
};

/* Levels of the parser's own recursion: a statement is one, a bracket three. */
#define TMPL_NEST_MAX 300

const struct token *parse_peek(const struct parser *p);
const struct token *parse_look(const struct parser *p); /* the one after */
const struct token *parse_take(struct parser *p);
bool parse_is_op(const struct token *t, const char *op);
bool parse_is_name(const struct token *t, const char *name);
bool parse_skip_op(struct parser *p, const char *op);
bool parse_skip_name(struct parser *p, const char *name);
enum err_code parse_expect_op(struct parser *p, const char *op);
enum err_code parse_expect_kind(struct parser *p, enum token_kind kind, const char *what,
                                const struct token **out);
enum err_code parse_fail(struct parser *p, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);
enum err_code parse_unsupported(struct parser *p, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);
enum err_code parse_full(struct parser *p);
enum err_code parse_node(struct parser *p, enum node_kind kind, int line, struct node **out);
enum err_code parse_nest(struct parser *p, int line);
enum err_code parse_name_id(struct parser *p, const char *s, size_t n, int32_t *id);
enum err_code parse_str(struct parser *p, const char *s, size_t n, struct str **out);

struct node_vec { /* being collected; taken into a node_list */
    struct node **at;
    size_t n, cap;
};
enum err_code parse_vec_add(struct parser *p, struct node_vec *v, struct node *n);
struct node_list parse_vec_take(struct node_vec *v);

/* Expressions; `tuple` forms take "a, b" too. */
enum tuple_flags {
    TUPLE_NO_COND = 1 << 0,
    TUPLE_PARENS = 1 << 1, /* () is a value */
    TUPLE_SIMPLE = 1 << 2, /* names and literals alone: a target */
    TUPLE_NAMESPACE = 1 << 3,
};
enum err_code parse_expression(struct parser *p, struct node **out);
enum err_code parse_primary(struct parser *p, unsigned flags, struct node **out);
enum err_code parse_integer(struct parser *p, const struct token *t, struct node **out);
enum err_code parse_postfix(struct parser *p, struct node **subject); /* . [] () */
enum err_code parse_filters(struct parser *p, struct node **subject); /* | is () */
enum err_code parse_or_test(struct parser *p, struct node **out);
enum err_code parse_tuple(struct parser *p, unsigned flags, const char *end_name,
                          struct node **out);
enum err_code parse_filter(struct parser *p, struct node *subject, bool is_inline,
                           struct node **out);
enum err_code parse_target(struct parser *p, unsigned flags, const char *end_name,
                           struct node **out);
enum err_code parse_target_name(struct parser *p, int32_t *id, const struct token **name);

/* The whole template. */
enum err_code parse_template(struct parser *p);

/* --- walking --- */

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

enum err_code tmpl_eval(struct env *e, const struct node *n, struct value *out) MUST_CHECK;
enum err_code tmpl_eval_filter(struct env *e, const struct node *n, const struct value *subject,
                               struct value *out) MUST_CHECK;
enum err_code tmpl_eval_args(struct env *e, const struct call_args *c, struct args *out) MUST_CHECK;
enum err_code tmpl_exec_list(struct env *e, const struct node_list *body,
                             enum flow *flow) MUST_CHECK;
enum err_code tmpl_exec_for(struct env *e, const struct node *n, enum flow *flow) MUST_CHECK;
enum err_code tmpl_loop_call(struct env *e, struct loop *l, const struct args *a,
                             struct value *out) MUST_CHECK;
enum err_code tmpl_loop_attr(struct env *e, struct loop *l, const struct str *name,
                             struct value *out, bool *has);
enum err_code tmpl_assign(struct env *e, const struct node *target,
                          const struct value *v) MUST_CHECK;
enum err_code tmpl_macro_call(struct env *e, const struct macro *m, const struct args *a,
                              struct value *out) MUST_CHECK;
enum err_code tmpl_scope_push(struct env *e, struct scope *parent, struct scope **out);
enum err_code tmpl_scope_set(struct env *e, int32_t name, struct value v) MUST_CHECK;
const struct value *tmpl_scope_get(const struct env *e, int32_t name); /* MISSING if absent */
/* Run body into a string of its own, in a scope under `parent`. */
enum err_code tmpl_capture(struct env *e, const struct node_list *body, enum flow *flow,
                           struct value *out) MUST_CHECK;

#endif
