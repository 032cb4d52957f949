/* nfa_class.c - characters as bytes: UTF-8 (RFC 3629), and JSON's escapes. Part of nfa.c.
 *
 * What follows the first byte is a tree over blocks of 64, 4096, ... code points in which equal subtrees are one: the automaton of a class
 * is deterministic and as small as can be, whatever the class holds. */
#include "grammar/grammar_int.h"

#include <string.h>

#define CLASS_SLOTS 4096 /* of subtrees: a category of Unicode has some 400 */

struct class_node {
    int32_t state, next[64]; /* by continuation byte; -1 = none */
};

struct class_tree {
    struct nfa *a;
    const struct expr *e;
    int32_t to;
    uint32_t least; /* code point that is encoded in so many bytes */
    struct class_node *nodes;
    int32_t n_nodes, cap_nodes;
    int32_t slots[CLASS_SLOTS]; /* number + 1 */
};

/* How many code points of [lo, hi] are in: none, all, or -1: some. */
static int32_t class_overlap(const struct class_tree *t, uint32_t lo, uint32_t hi)
{
    const struct expr_range *r = t->e->ranges;
    int32_t from = 0, end = t->e->n;
    if (hi < t->least)
        return 0;
    while (from < end) { /* the first range that does not end before lo */
        int32_t middle = (from + end) / 2;
        if (r[middle].hi < lo)
            from = middle + 1;
        else
            end = middle;
    }
    if (from == t->e->n || r[from].lo > hi)
        return 0;
    return r[from].lo <= lo && r[from].hi >= hi && lo >= t->least ? (int32_t)(hi - lo + 1) : -1;
}

/* The state from which these go on; the same one for the same. */
static int32_t class_state(struct class_tree *t, const int32_t next[64])
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < 64; i++)
        h = (h ^ (uint64_t)(uint32_t)next[i]) * 1099511628211u;
    h ^= h >> 31;
    for (; t->slots[h % CLASS_SLOTS]; h++) {
        const struct class_node *x = &t->nodes[t->slots[h % CLASS_SLOTS] - 1];
        if (memcmp(x->next, next, sizeof(x->next)) == 0)
            return x->state;
    }
    int32_t state = nfa_state(t->a);
    for (int i = 0, end; i < 64; i = end) {
        for (end = i + 1; end < 64 && next[end] == next[i]; end++)
            ;
        if (next[i] >= 0)
            nfa_byte(t->a, state, (uint8_t)(0x80 + i), (uint8_t)(0x7F + end), next[i]);
    }
    if (t->n_nodes + 1 >= CLASS_SLOTS) /* no class has that many */
        return state;
    if (t->n_nodes == t->cap_nodes) {
        t->cap_nodes = t->cap_nodes ? 2 * t->cap_nodes : 16;
        t->nodes = mem_realloc(MEM_CAT_GRAMMAR, t->nodes, (size_t)t->cap_nodes * sizeof(*t->nodes));
    }
    struct class_node *x = &t->nodes[t->n_nodes++];
    x->state = state;
    memcpy(x->next, next, sizeof(x->next));
    t->slots[h % CLASS_SLOTS] = t->n_nodes;
    return state;
}

/* Where the code points from lo on that `more` continuation bytes tell apart are read; -1: none of them is in. */
static int32_t class_block(struct class_tree *t, uint32_t lo, int more)
{
    int32_t next[64], n = class_overlap(t, lo, lo + (1u << 6 * more) - 1);
    if (n == 0)
        return -1;
    if (more == 0)
        return t->to;
    if (n > 0) { /* all of them: every subtree is the same */
        int32_t all = class_block(t, lo, more - 1);
        for (int i = 0; i < 64; i++)
            next[i] = all;
        return class_state(t, next);
    }
    for (uint32_t i = 0; i < 64; i++)
        next[i] = class_block(t, lo + (i << 6 * (more - 1)), more - 1);
    return class_state(t, next);
}

static void class_emit_long(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    static const struct {
        uint32_t least;
        uint8_t lead, last;
        int more;
    } rows[] = { { 0x80, 0xC2, 0xDF, 1 }, { 0x800, 0xE0, 0xEF, 2 }, { 0x10000, 0xF0, 0xF4, 3 } };
    struct class_tree *t = mem_alloc(MEM_CAT_GRAMMAR, sizeof(*t));
    t->a = a;
    t->e = e;
    t->to = to;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        t->least = rows[i].least;
        for (uint32_t lead = rows[i].lead; lead <= rows[i].last && !a->b->code; lead++) {
            uint32_t bits = lead & (0x3Fu >> rows[i].more);
            int32_t next = class_block(t, bits << 6 * rows[i].more, rows[i].more);
            if (next >= 0)
                nfa_byte(a, from, (uint8_t)lead, (uint8_t)lead, next);
        }
    }
    mem_free(MEM_CAT_GRAMMAR, t->nodes);
    mem_free(MEM_CAT_GRAMMAR, t);
}

static void class_emit_escape(struct nfa *a, uint32_t cp, int32_t from, int32_t to)
{
    char text[TEXT_ESCAPE_BYTES];
    size_t n = text_escape(cp, text);
    for (size_t i = 0; i < n; i++) {
        int32_t next = i + 1 == n ? to : nfa_state(a);
        nfa_byte(a, from, (uint8_t)text[i], (uint8_t)text[i], next);
        from = next;
    }
}

/* ASCII, as such a text has it. */
static void class_emit_ascii(struct nfa *a, const struct expr_range *r, enum text_kind text,
                             int32_t from, int32_t to)
{
    uint32_t hi = r->hi < 0x7F ? r->hi : 0x7F;
    for (uint32_t lo = r->lo, end; lo <= hi; lo = end) {
        enum text_way way = text_way(text, lo);
        end = lo + 1;
        if (way == TEXT_WAY_ESCAPED)
            class_emit_escape(a, lo, from, to);
        if (way != TEXT_WAY_RAW)
            continue;
        while (end <= hi && text_way(text, end) == TEXT_WAY_RAW)
            end++;
        nfa_byte(a, from, (uint8_t)lo, (uint8_t)(end - 1), to);
    }
}

void nfa_emit_class(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < e->n && !a->b->code && e->ranges[i].lo < 0x80; i++)
        class_emit_ascii(a, &e->ranges[i], (enum text_kind)e->text, from, to);
    if (e->ranges[e->n - 1].hi >= 0x80)
        class_emit_long(a, e, from, to);
}
