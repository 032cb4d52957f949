/* lark_int.h - what reading a grammar in Lark's notation gathers before rules are made of it. */
#ifndef PLUMB_GRAMMAR_LARK_INT_H
#define PLUMB_GRAMMAR_LARK_INT_H

#include "grammar/grammar_int.h"

struct lark_alt { /* one of a rule's alternatives: its parts in a row */
    const struct expr **parts;
    int32_t n;
    int32_t leads; /* the first part is this definition by itself; -1: it is none */
};

struct lark_def {
    const char *name;
    size_t n_name;
    int line; /* of the definition, or of the first use as long as there is none */
    int32_t rule;
    bool is_terminal, is_defined;
    struct lark_alt *alts; /* [n_alts] */
    int32_t n_alts, cap_alts;
};

void lark_add_alt(struct build *b, struct lark_def *d, const struct lark_alt *alt);
/* Left recursion, direct or not, becomes repetition: defs [n] stand for the same texts. Fails through the build. */
void lark_turn(struct build *b, struct lark_def *defs, int32_t n);

#endif
