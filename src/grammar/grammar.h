/* grammar.h - what an answer may be: a grammar over bytes, walked byte by byte or token by token, and the mask of the tokens that may
 * come next.
 *
 * A grammar is compiled once (from a JSON schema, a regular expression, GBNF, a list of choices or tags) into pushdown automata over
 * bytes: each rule a deterministic one, calls between them on a stack. A state is the set of stacks that what was read can have led to;
 * it depends on nothing else. Everything is bounded: what would need more is an error when compiled, never a looser grammar.
 * Bounds while walking: GRAMMAR_DEPTH calls on a stack, GRAMMAR_HEADS stacks; text that needs more is refused as if it did not fit.
 * Owns: automata and a cache of masks (a lock guards it). Does not know: models, requests, where an answer ends.
 * Thread: a compiled grammar may be used by any; a state by one at a time. Allocation: none in steps and masks. */
#ifndef PLUMB_GRAMMAR_GRAMMAR_H
#define PLUMB_GRAMMAR_GRAMMAR_H

#include "base/buf.h"

#define GRAMMAR_DEPTH        400
#define GRAMMAR_HEADS        96
#define GRAMMAR_BACK         64        /* steps that can be taken back */
#define GRAMMAR_TOKEN_BYTES  255       /* longer tokens are never allowed */
#define GRAMMAR_SOURCE_BYTES (4 << 20) /* of a grammar's text */

struct grammar;
struct grammar_vocab; /* the tokens of a model by their bytes */
struct json;

/* --- vocabulary --- */

struct grammar_bytes { /* borrowed, not terminated */
    const char *data;
    size_t len;
};

/* bytes [n]: what each token stands for in a text; tokens without any are never allowed. Copied. Free with _free, after the
 * grammars that were compiled for it. Errors: ERR_NOMEM. */
enum err_code grammar_vocab_new(const struct grammar_bytes *bytes, int32_t n,
                                struct grammar_vocab **out, struct err *err) MUST_CHECK;
void grammar_vocab_free(struct grammar_vocab *v); /* NULL is fine */
int32_t grammar_vocab_n(const struct grammar_vocab *v);
struct grammar_bytes grammar_vocab_bytes(const struct grammar_vocab *v, int32_t id);
/* The longest token that bytes [n] begin with, or -1; *len: its bytes. */
int32_t grammar_vocab_longest(const struct grammar_vocab *v, const char *bytes, size_t n,
                              size_t *len);

/* --- compiling --- */

enum grammar_kind {
    GRAMMAR_KIND_SCHEMA,   /* a JSON schema (2020-12), as JSON */
    GRAMMAR_KIND_OBJECT,   /* any JSON object */
    GRAMMAR_KIND_REGEX,    /* the whole text, RE2's syntax */
    GRAMMAR_KIND_GBNF,     /* llama.cpp's notation; the rule `root` */
    GRAMMAR_KIND_LARK,     /* Lark's; the rule `start` */
    GRAMMAR_KIND_CHOICE,   /* a JSON array of strings */
    GRAMMAR_KIND_TAGS,     /* JSON: text with constrained regions (docs/structured-output.md) */
    GRAMMAR_KIND_CALLS,    /* JSON: calls of tools (calls.c) */
    GRAMMAR_KIND_MESSAGES, /* JSON: messages, some of which are calls (calls.c) */
};

struct grammar_source {
    enum grammar_kind kind;
    const char *text; /* [n] */
    size_t n;
    bool is_compact;   /* JSON without blanks between its tokens */
    bool is_any_order; /* declared properties in any order; else in the declared one */
    bool has_no_masks; /* of the first, for all: nothing is enforced by it; it has less time, too */
    const char *before, *after; /* literal text around it; NULL = none */
};

/* notes (may be NULL): appended "a,b": keywords of a schema that say more than the grammar asks for, each once.
 * v may be NULL: then there are no masks. Errors: ERR_INVALID - malformed, or nothing fits it; ERR_UNSUPPORTED - a construct that
 * cannot be enforced; ERR_FULL - too large for the bounds; ERR_NOMEM. Texts name keyword and JSON path, or rule and line. */
enum err_code grammar_compile(const struct grammar_source *source, struct grammar_vocab *v,
                              struct grammar **out, struct buf *notes, struct err *err) MUST_CHECK;
/* Alternatives that are sources of their own: one of them. */
enum err_code grammar_compile_any(const struct grammar_source *sources, int32_t n,
                                  struct grammar_vocab *v, struct grammar **out, struct buf *notes,
                                  struct err *err) MUST_CHECK;
struct grammar *grammar_ref(struct grammar *g);                  /* NULL stays NULL */
void grammar_unref(struct grammar *g);                           /* NULL is fine */
struct grammar_vocab *grammar_vocab_of(const struct grammar *g); /* that it was compiled for */
/* Bytes of memory that it takes now: masks that are kept make it grow, up to some 20 MiB for 150,000 tokens. */
size_t grammar_size(const struct grammar *g);
uint64_t grammar_id(const struct grammar *g); /* of what it was compiled from: a hash, no secret */
int32_t grammar_n_states(const struct grammar *g);

/* --- walking --- */

struct grammar_state;

/* At the grammar's beginning. Refs the grammar. Errors: ERR_NOMEM. Free with grammar_state_free. */
enum err_code grammar_state_new(struct grammar *g, struct grammar_state **out,
                                struct err *err) MUST_CHECK;
void grammar_state_free(struct grammar_state *s); /* NULL is fine */
size_t grammar_state_bytes(void);                 /* memory of one */
void grammar_state_reset(struct grammar_state *s);
/* to becomes what from is, its past included. Both are of the same grammar. */
void grammar_state_copy(struct grammar_state *to, const struct grammar_state *from);

/* One step of n bytes (a token's, or one). False: they do not fit; the state is as before. n = 0 is a step that changes nothing. */
bool grammar_step(struct grammar_state *s, const char *bytes, size_t n) MUST_CHECK;
/* Take the last n steps back. False: that many are not remembered; the state is as before. */
bool grammar_back(struct grammar_state *s, int32_t n) MUST_CHECK;
bool grammar_is_complete(const struct grammar_state *s); /* the text may end here */
bool grammar_is_over(const struct grammar_state *s);     /* ... and cannot go on */
/* The bytes that must come next, whatever is chosen: as many as are certain, at most max. */
size_t grammar_forced(const struct grammar_state *s, char *out, size_t max);
/* The bytes that may come next: bit b of allowed[b / 32]. */
void grammar_next_bytes(const struct grammar_state *s, uint32_t allowed[8]);

/* How the JSON of a text has been laid out so far; zeroed at its beginning. */
struct grammar_layout {
    int32_t indent,
        unit; /* blanks that the line begins with; more of them for a level, where that was seen */
    int32_t n_blanks; /* since `last` */
    char first, last; /* characters that are no blanks: of the line, and of all; 0 = none yet */
    char before;      /* the first of the line before */
    bool has_line;    /* a line end was among those blanks */
    bool
        is_apart; /* the last of several blanks was no part of the token behind them: most tokenizers make it one */
};
/* The bytes of one more token. */
void grammar_layout_feed(struct grammar_layout *l, const char *bytes, size_t n);
/* Tokens that spell what comes next for certain, but for blanks between JSON's tokens, which are taken to be laid out as before: the longest
 * tokens first, up to n_max into ids; not one that what is open then might go on. probe: another state of the grammar, overwritten.
 * Returns how many. Needs a grammar that was compiled for a vocabulary. */
int32_t grammar_spell(const struct grammar_state *s, const struct grammar_layout *l,
                      struct grammar_state *probe, int32_t *ids, int32_t n_max);

/* Set bit id of mask [(n_vocab + 31) / 32] for exactly the tokens whose bytes fit here. Returns their number, 2 for more, and the id if it is
 * only one in *only (may be NULL). Below 0: the bounds do not hold the mask. Needs a grammar that was compiled for a vocabulary. */
int32_t grammar_mask(struct grammar_state *s, uint32_t *mask, int32_t *only);

#endif
