/* grammar_int.h - what the files of the grammar share: expressions (what the notations are read into), the builder that collects them as
 * rules, and the automata that are made of them.
 *
 * Notations (gbnf.c, regex.c, json_schema*.c) -> expressions (expr.c) -> per rule an automaton with spontaneous moves (nfa.c) -> a
 * deterministic one (dfa.c) -> walked by stack.c, masks by mask.c over the trie of vocab.c. */
#ifndef PLUMB_GRAMMAR_GRAMMAR_INT_H
#define PLUMB_GRAMMAR_GRAMMAR_INT_H

#include "grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>

#define EXPR_INF         INT64_MAX
#define BUILD_ARENA      ((size_t)192 << 20)
#define BUILD_RULES      20000
#define BUILD_NFA_STATES 400000
#define BUILD_STATES     60000
#define BUILD_WORK       60000000 /* set members that are looked at in all */
#define BUILD_SECONDS    4        /* of the thread's own time: a busy machine refuses no more */

/* --- expressions --- */

/* Where a string stands, and so what of it is escaped. */
enum text_kind {
    TEXT_NONE,
    TEXT_JSON,
    TEXT_ELEMENT,    /* JSON in an element: no '<' but as \u003c, or the element would end there */
    TEXT_VALUE,      /* ... of which the reader knows that it is no string: Python's words, too */
    TEXT_RAW,        /* the element's text itself: no '<' and no carriage return at all */
    TEXT_GEMMA,      /* between marks that no text has */
    TEXT_GEMMA_BARS, /* between marks that text could spell: no '|' */
    TEXT_PYTHON,     /* in double quotes */
    TEXT_SINGLE,     /* in single ones; otherwise as TEXT_PYTHON */
    TEXT_KINDS,
};

/* How a code point under 128 stands in such a text, and its escape. */
enum text_way { TEXT_WAY_RAW, TEXT_WAY_ESCAPED, TEXT_WAY_NEVER };
#define TEXT_ESCAPE_BYTES 6
enum text_way text_way(enum text_kind text, uint32_t cp);
size_t text_escape(uint32_t cp, char out[TEXT_ESCAPE_BYTES]);

enum expr_kind {
    EXPR_NONE,  /* no text at all */
    EXPR_EMPTY, /* the empty text */
    EXPR_BYTES, /* these bytes */
    EXPR_CLASS, /* one code point of these, as UTF-8 */
    EXPR_ANY,   /* one byte, whichever */
    EXPR_SEQ,
    EXPR_ALT,
    EXPR_REPEAT, /* kid 0, min to max times */
    EXPR_RULE,
    EXPR_LIST, /* items with separators */
    EXPR_AND,  /* of both kids; they are free of recursion */
    EXPR_NOT,  /* every text of bytes but the kid's */
    EXPR_MOD,  /* digits whose number is 0 modulo `min` */
    EXPR_TAGS,
    EXPR_BEGIN, /* of regular expressions, until they are taken out */
    EXPR_END,
};

struct expr_range {
    uint32_t lo, hi; /* code points, both included */
};

struct expr_item {
    const struct expr *e;
    bool is_optional;
};

struct expr_tag {
    const char *begin; /* [n_begin] the trigger included */
    size_t n_begin;
    int32_t trigger;
    const struct expr *rest; /* what follows the beginning */
};

struct expr {
    enum expr_kind kind;
    uint8_t text; /* CLASS: enum text_kind, of a string's characters; TEXT_NONE: as they are */
    int32_t n;    /* of kids, ranges, items or tags */
    int32_t rule; /* RULE */
    int64_t size; /* NFA states that it takes, about */
    int64_t min, max;
    const char *bytes; /* BYTES: [n_bytes] */
    size_t n_bytes;
    const struct expr **kids;
    const struct expr_range *ranges;
    const struct expr_item *items; /* LIST */
    const struct expr *sep, *rest; /* LIST: after the items min to max of `rest`; NULL = none */
    bool needs_one;                /* LIST: not empty */
    bool is_any_order;             /* LIST: of the items */
    const struct expr_tag *tags;   /* TAGS */
    const struct grammar_bytes *triggers;
    const struct grammar_bytes *marks; /* control tokens that may stand in the text */
    int32_t n_triggers, n_marks;
};

struct build_rule {
    const struct expr *e; /* NULL until it is set */
    const char *name;     /* for messages */
    int32_t n_refs;
    int32_t automaton; /* -1: none was needed */
    int64_t size;
    bool is_recursive, is_inlined, is_called; /* is_called: in place only if used once */
    uint8_t mark;
};

struct build_loop {
    int32_t rule; /* of the body; -1: items in any order */
    int64_t min, max;
    const struct expr *list;             /* in any order: its items are rules */
    int32_t *items, sep_rule, rest_rule; /* [list->n] rules; rest: -1 = none */
};

struct build_text { /* made when first asked for */
    const struct expr *jchar, *jraw, *jstring, *any_value, *ws;
    int32_t any_object; /* rule; is there if any_value is */
};

struct build_spare {
    struct build_spare *next;
    int64_t unused; /* keeps what follows aligned */
};

struct build {
    struct arena arena;
    struct build_spare *spare;
    struct build_rule *rules; /* [n_rules] */
    int32_t n_rules, cap_rules;
    struct build_loop *loops; /* [n_loops] */
    int32_t n_loops, cap_loops;
    struct build_text texts[TEXT_KINDS];
    const struct expr *number;  /* made when first asked for */
    enum text_kind text;        /* how values are written just now */
    struct grammar_bytes quote; /* TEXT_GEMMA: around a string */
    bool is_compact, is_any_order;
    struct buf *notes;
    struct err *err;
    enum err_code code; /* the first failure */
    const char *where;  /* the rule that is being written out; NULL = none */
    int64_t deadline_us;
    int64_t work;
    uint32_t n_asked; /* whether it is late */
};

void build_init(struct build *b, struct buf *notes, struct err *err);
void build_release(struct build *b);
/* Remember the first failure; returns an expression that fits nothing, so that callers can go on. */
const struct expr *build_fail(struct build *b, enum err_code code, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
void *build_alloc(struct build *b,
                  size_t n); /* zeroed; never NULL: over the bound the build fails */
void build_note(struct build *b, const char *keyword);
bool build_is_late(struct build *b); /* over its time: fails */

const struct expr *expr_none(void);
const struct expr *expr_empty(void);
const struct expr *expr_any(void);
const struct expr *expr_bytes(struct build *b, const char *bytes, size_t n);
const struct expr *expr_text(struct build *b, const char *text);
/* ranges need no order; surrogates are left out. in_string: of a string's text, as b->text has it. */
const struct expr *expr_class(struct build *b, const struct expr_range *ranges, int32_t n,
                              bool in_string);
/* The ranges sorted and joined, or what they leave of all code points; returns their number (<= n + 1), out has room for that. */
int32_t expr_ranges_join(struct expr_range *ranges, int32_t n);
int32_t expr_ranges_invert(const struct expr_range *joined, int32_t n, struct expr_range *out);
const struct expr *expr_seq(struct build *b, const struct expr *const *kids, int32_t n);
const struct expr *expr_seq2(struct build *b, const struct expr *x, const struct expr *y);
const struct expr *expr_seq3(struct build *b, const struct expr *x, const struct expr *y,
                             const struct expr *z);
const struct expr *expr_alt(struct build *b, const struct expr *const *kids, int32_t n);
const struct expr *expr_alt2(struct build *b, const struct expr *x, const struct expr *y);
const struct expr *expr_repeat(struct build *b, const struct expr *x, int64_t min, int64_t max);
const struct expr *expr_optional(struct build *b, const struct expr *x);
const struct expr *expr_and(struct build *b, const struct expr *x, const struct expr *y);
const struct expr *expr_not(struct build *b, const struct expr *x);
const struct expr *expr_mod(struct build *b, int64_t m);
enum list_flags { LIST_NEEDS_ONE = 1, LIST_ANY_ORDER = 2 };
/* min and max: of `rest`; in any order of the items, if there is no rest. Need: SET_MAX items at most where any order is asked for. */
const struct expr *expr_list(struct build *b, const struct expr_item *items, int32_t n,
                             const struct expr *sep, const struct expr *rest, int64_t min,
                             int64_t max, unsigned flags);
const struct expr *expr_rule(struct build *b, int32_t rule);
/* As `size`, with what rules that are written out in place add. */
int64_t expr_full_size(const struct build *b, const struct expr *e);
/* Characters of its texts, at most and at least; EXPR_INF: no bound. Classes count 1, bytes by their UTF-8. */
int64_t expr_longest(const struct build *b, const struct expr *e);
int64_t expr_shortest(const struct build *b, const struct expr *e);

int32_t build_new_rule(struct build *b, const char *name);
void build_set_rule(struct build *b, int32_t rule, const struct expr *e);

/* A list that grows in the build's arena. */
struct expr_list {
    const struct expr **items;
    int32_t n, cap;
};
void expr_list_add(struct build *b, struct expr_list *l, const struct expr *e);

/* --- notations: each fails through the build --- */

/* The whole text; anchors only where they say nothing. in_string: of a string's text, as b->text has it. */
const struct expr *regex_whole(struct build *b, const char *text, size_t n, bool in_string,
                               const char *where);
/* What the regular expression is found in: anchored by ^ and $ alone. in_string: over a string's text, as b->text has it. */
const struct expr *regex_search(struct build *b, const char *text, size_t n, bool in_string,
                                const char *where);
const struct expr *gbnf_read(struct build *b, const char *text, size_t n);
const struct expr *lark_read(struct build *b, const char *text, size_t n); /* as b->text has it */
const struct expr *json_schema_read(struct build *b, const struct json *schema);

/* JSON text (json_text.c), as b->text has it: characters of strings in any spelling and in the plain one, strings, blanks, values. */

/* From here on values are written so. quote: of TEXT_GEMMA, which says whether it is that or TEXT_GEMMA_BARS. */
void json_text_use(struct build *b, enum text_kind text, struct grammar_bytes quote);
/* Strings in each of the ways that there are: make's text (b->text is set) between quotes. */
const struct expr *json_text_quoted(struct build *b,
                                    const struct expr *(*make)(struct build *b, const void *arg),
                                    const void *arg);
const struct expr *json_text_word(struct build *b, const char *word); /* null, true, false */
/* A member's name with what stands before its value. is_call: of the arguments of a call. The former's text is its plain spelling. */
const struct expr *json_text_name(struct build *b, const struct expr *text, bool is_call);
/* NULL: it cannot be written. */
const struct expr *json_text_name_of(struct build *b, const char *name, size_t n, bool is_call);
const struct expr *json_text_char(struct build *b);
const struct expr *json_text_raw(struct build *b);
const struct expr *json_text_string(struct build *b);
const struct expr *json_text_ws(struct build *b);
const struct expr *json_text_number(struct build *b);
const struct expr *json_text_value(struct build *b);  /* any; a rule */
const struct expr *json_text_object(struct build *b); /* any; a rule */
/* "open blanks LIST blanks close" with commas. */
const struct expr *json_text_list(struct build *b, char open, char close,
                                  const struct expr_item *items, int32_t n, const struct expr *rest,
                                  int64_t min, int64_t max, unsigned flags);
/* The value as it is written, blanks between its tokens; strings in their plain spelling. */
const struct expr *json_text_constant(struct build *b, const struct json *v);
/* The text of a string's plain spelling, without the quotes. */
const struct expr *json_text_plain(struct build *b, const char *text, size_t n);
int64_t json_text_length(const char *text, size_t n); /* code points */
/* A text of a tag, its control tokens as the vocabulary has them. */
struct grammar_bytes tags_text(struct build *b, const struct json *v);
const struct expr *tags_pattern(struct build *b, struct grammar_bytes text);
const struct expr *elements_read(struct build *b, const struct json *v);
/* v's list of arguments, each a rule. False: the build has failed. */
bool calls_read_arguments(struct build *b, const struct json *v, struct expr_list *out);
/* Those that v names by its index. */
const struct expr *calls_arguments_of(struct build *b, const struct json *v,
                                      const struct expr_list *arguments);
const struct expr *calls_read_list(struct build *b, const struct json *v,
                                   const struct expr_list *arguments); /* without `end` */
const struct expr *calls_read(struct build *b, const struct json *v);
const struct expr *calls_read_messages(struct build *b, const struct json *v);
const struct expr *tags_read(struct build *b, const struct json *v);
const struct expr *tags_read_choice(struct build *b, const struct json *v);

/* --- automata of one rule, with spontaneous moves --- */

enum nfa_edge_kind { NFA_EDGE_EPS, NFA_EDGE_BYTES, NFA_EDGE_CALL, NFA_EDGE_LOOP };

struct nfa_edge {
    uint8_t kind, lo, hi;
    int32_t arg; /* rule or loop */
    int32_t target, next;
};

struct nfa {
    struct build *b;
    int32_t *first; /* [n_states] first edge, -1 = none */
    int32_t n_states, cap_states;
    struct nfa_edge *edges;
    int32_t n_edges, cap_edges;
    int inline_depth;
    bool is_whole; /* it will be combined with others: repetitions are written out, not counted */
};

void nfa_init(struct nfa *a, struct build *b);
void nfa_release(struct nfa *a);
int32_t nfa_state(struct nfa *a);
void nfa_edge(struct nfa *a, int32_t from, struct nfa_edge edge);
void nfa_eps(struct nfa *a, int32_t from, int32_t to);
void nfa_byte(struct nfa *a, int32_t from, uint8_t lo, uint8_t hi, int32_t to);
/* Edges out of `from` and into `to` for e. */
void nfa_emit(struct nfa *a, const struct expr *e, int32_t from, int32_t to);
void nfa_emit_class(struct nfa *a, const struct expr *e, int32_t from, int32_t to);
void nfa_emit_list(struct nfa *a, const struct expr *e, int32_t from, int32_t to);
void nfa_emit_tags(struct nfa *a, const struct expr *e, int32_t from, int32_t to);
void nfa_emit_algebra(struct nfa *a, const struct expr *e, int32_t from, int32_t to);
/* min to max times x, expanded or counted. */
void nfa_emit_repeat(struct nfa *a, const struct expr *x, int64_t min, int64_t max, int32_t from,
                     int32_t to);

/* --- deterministic automata --- */

struct dfa_call { /* a spontaneous move: through a rule, then on at target */
    bool is_loop;
    int32_t arg; /* rule, or loop */
    int32_t target;
};

struct dfa { /* of one rule or of all, while it is built; heap, MEM_CAT_GRAMMAR */
    int32_t n_states, cap_states, n_classes;
    int32_t *next;       /* [n_states][n_classes], -1 = none */
    bool *accepts;       /* [n_states] */
    int32_t *calls_at;   /* [n_states] first call ... */
    int32_t *n_calls_of; /* ... and how many */
    struct dfa_call *calls;
    int32_t n_calls, cap_calls;
};

void dfa_init(struct dfa *d, int32_t n_classes);
void dfa_release(struct dfa *d);
int32_t dfa_state(struct dfa *d, struct build *b); /* without moves */
/* Which bytes never differ in the automata's edges: class of each byte; returns the number of classes. marks[257]: cuts. */
void nfa_mark_cuts(const struct nfa *a, bool cuts[257]);
int32_t dfa_classes(const bool cuts[257], uint8_t class_of[256]);
/* Add the subset automaton of a from `start`, accepting at `accept`, to d; returns its first state. Fails through the build. */
int32_t dfa_subset(struct dfa *d, const struct nfa *a, int32_t start, int32_t accept,
                   const uint8_t class_of[256]);

/* --- the compiled grammar --- */

struct grammar;
/* What the build's rules are, from the one that is the whole: fills g's automaton. */
enum err_code link_grammar(struct build *b, const struct expr *root, struct grammar *g) MUST_CHECK;

struct grammar_loop {
    int32_t start;    /* of its body; of a set: of what separates two items */
    int32_t ret;      /* where it goes on behind it */
    int32_t min, max; /* INT32_MAX: no bound */
    int32_t set;      /* -1: none */
};

#define SET_MAX 62
#define SET_SEPARATOR \
    ((int64_t)1 << SET_MAX) /* in a frame's count: the call is of what separates */

struct grammar_set { /* items in any order: a frame's count holds a bit for each that was read */
    int32_t starts
        [SET_MAX +
         1]; /* [n] of each item, and behind them of what may follow any number of times, or -1 */
    int32_t n;
    bool needs_one;
    int64_t required;
};

struct grammar {
    atomic_int refs;
    struct grammar_vocab *vocab;
    int32_t n_states, n_classes, n_calls, n_loops, start;
    uint8_t class_of[256];
    int32_t *next;          /* [n_states][n_classes] */
    uint8_t *flags;         /* [n_states] enum state_flags */
    int32_t *calls_at;      /* [n_states + 1] */
    struct dfa_call *calls; /* arg: start state, or loop */
    struct grammar_loop *loops;
    struct grammar_set *sets;
    int32_t n_sets;
    size_t bytes;
    uint64_t id;
    pthread_mutex_t lock; /* guards cache; nothing else is locked meanwhile */
    struct mask_cache *cache;
};

enum state_flags {
    STATE_ACCEPTS = 1,
    STATE_READS = 2, /* it has moves on bytes */
    STATE_ENDS = 4,  /* accepts, and nothing else */
    STATE_CALLS = 8,
};

/* --- stacks --- */

struct stack_frame { /* where a call goes on. 0 is the bottom and means nothing */
    int32_t ret;     /* a state; ~loop of a loop */
    int32_t parent;
    int64_t
        count; /* of a loop: bodies that are complete; of a set: items that are read when it ends */
    int32_t depth;
};

struct stack_head {
    int32_t state, frame;
};

struct stack_pool {             /* frames, each once */
    struct stack_frame *frames; /* [cap] */
    int32_t *slots;             /* [cap * 2] hash table, 0 = none */
    int32_t n, cap;
};

struct stack_heads {
    int32_t n;
    bool is_bottom; /* one of the stacks has come to its end */
    bool is_over;   /* there were more than fit */
    struct stack_head at[GRAMMAR_HEADS];
};

void stack_pool_reset(struct stack_pool *p);
void stack_pool_index(struct stack_pool *p); /* make the table again */
/* The state with that frame, and all that it can become without a byte. */
void stack_add(const struct grammar *g, struct stack_pool *p, struct stack_heads *h, int32_t state,
               int32_t frame);
/* A call of `frame` has ended: what follows, with `parent` in the place of its parent. */
void stack_pop(const struct grammar *g, struct stack_pool *p, struct stack_heads *h,
               struct stack_frame frame, int32_t parent);
/* The body of a loop of which `count` are complete, above the bottom. */
void stack_body(const struct grammar *g, struct stack_pool *p, struct stack_heads *h, int32_t loop,
                int64_t count);
void stack_step(const struct grammar *g, struct stack_pool *p, const struct stack_heads *from,
                uint8_t byte, struct stack_heads *to);

struct grammar_state {
    struct grammar *g;
    struct stack_pool pool;
    struct stack_heads heads;
    int32_t n_past, past_at; /* ring */
    struct stack_heads past[GRAMMAR_BACK];
};

/* --- vocabulary --- */

struct vocab_node { /* of a trie, in depth-first order */
    int32_t skip;   /* the node behind its subtree */
    int32_t token;  /* that ends here, or -1; more of them follow in vocab.same */
    uint8_t byte, depth;
};

#define VOCAB_PLAIN_MAX GRAMMAR_TOKEN_BYTES /* characters of a token */

struct vocab_scratch {   /* what a walk finds: lists, and bit sets of what is in them */
    int32_t *ids, *pops; /* [n_tokens], [n_nodes] */
    uint32_t *has_id, *has_pop;
};

struct grammar_vocab {
    int32_t n_tokens;
    struct vocab_node *nodes; /* [n_nodes] node 0 is no node; a trie's root is its first */
    int32_t n_nodes;
    int32_t roots
        [3]; /* of the tokens that are characters of a JSON string which need no escape ("plain"); of the others; the end */
    int32_t *same; /* [n_tokens] another token of the same bytes, or -1 */
    char *text;    /* the tokens' bytes one behind the other */
    size_t *at;    /* [n_tokens + 1] where each begins */
    /* Plain tokens of at most i characters: bit sets, equal ones are the same; the last one has them all. */
    uint32_t *plain[VOCAB_PLAIN_MAX + 1];
    pthread_mutex_t lock; /* guards the scratch; taken inside a grammar's */
    struct vocab_scratch scratch;
};

bool vocab_scratch_init(struct vocab_scratch *s, const struct grammar_vocab *v) MUST_CHECK;
void vocab_scratch_release(struct vocab_scratch *s);

/* --- masks --- */

enum err_code mask_cache_new(struct grammar *g, struct err *err) MUST_CHECK;
void mask_cache_free(struct grammar *g);
/* Make the first mask and the widest ones beforehand, as far as MASK_WARM_US and half the cache go. Need: g is not shared yet. */
void mask_warm(struct grammar *g, const struct grammar_state *start);
size_t mask_cache_bytes(const struct grammar *g);

#endif
