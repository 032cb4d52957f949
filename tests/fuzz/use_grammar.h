/* use_grammar.h - a grammar that was compiled from what a fuzzer found: walked at random, its masks against stepping every token, forks
 * and steps back against the state before. */
#ifndef PLUMB_TESTS_FUZZ_USE_GRAMMAR_H
#define PLUMB_TESTS_FUZZ_USE_GRAMMAR_H

#include "grammar/grammar.h"

#include <stdint.h>
#include <string.h>

#define USE_TOKENS 320
#define USE_TEXT   400

struct use {
    struct grammar_vocab *vocab;
    struct grammar_bytes tokens[USE_TOKENS];
    char text[USE_TOKENS][12];
    uint64_t random;
};

static uint32_t use_random(struct use *u, uint32_t n)
{
    u->random = u->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(u->random >> 33) % n;
}

/* Every byte, and pieces of JSON, words and characters. Made once. */
static void use_init(struct use *u)
{
    static const char *const parts[] = { "\"", "\":", ", ", "{\"",      "\"}",
                                         "[]", "1",   "0.", "-",        "true",
                                         "a",  "b",   "\\", "\\u00",    "\n ",
                                         "  ", "é",   "日", "\xE6\x97", "\xF0\x9F" };
    if (u->vocab)
        return;
    for (uint32_t i = 0; i < USE_TOKENS; i++) {
        size_t n = 0;
        if (i < 256)
            u->text[i][n++] = (char)i;
        for (uint32_t k = 0; i >= 256 && k < 1 + i % 3; k++) {
            const char *p = parts[(i * 7 + k * 5 + i / 20) % ARRAY_LEN(parts)];
            memcpy(u->text[i] + n, p, strlen(p));
            n += strlen(p);
        }
        u->tokens[i] = (struct grammar_bytes){ u->text[i], n };
    }
    u->tokens[300].len = 0;
    BUG_ON(grammar_vocab_new(u->tokens, USE_TOKENS, &u->vocab, NULL) != ERR_OK);
}

static void use_check_mask(struct use *u, struct grammar_state *s, struct grammar_state *other)
{
    uint32_t mask[(USE_TOKENS + 31) / 32], before[8], after[8];
    int32_t only, count = 0, last = -1, n = grammar_mask(s, mask, &only);
    if (n < 0) /* more than the bounds hold: the row ends */
        return;
    grammar_next_bytes(s, before);
    grammar_state_copy(other, s);
    for (int32_t i = 0; i < USE_TOKENS; i++) {
        bool is_allowed = mask[i / 32] >> i % 32 & 1;
        bool is_fine =
            u->tokens[i].len > 0 && grammar_step(other, u->tokens[i].data, u->tokens[i].len);
        BUG_ON(is_fine != is_allowed);
        BUG_ON(is_fine && !grammar_back(other, 1));
        count += is_fine;
        last = is_fine ? i : last;
    }
    grammar_next_bytes(other,
                       after); /* all steps taken back: the same state, the other's is untouched */
    BUG_ON(memcmp(before, after, sizeof(before)) != 0);
    grammar_next_bytes(s, after);
    BUG_ON(memcmp(before, after, sizeof(before)) != 0);
    BUG_ON(n != (count < 2 ? count : 2) || only != (count == 1 ? last : -1));
    BUG_ON(count == 0 &&
           !grammar_is_complete(s)); /* every byte is a token: nothing is a dead end */
}

/* One random walk. True: text [*n] is complete. */
static bool use_walk(struct use *u, struct grammar_state *s, struct grammar_state *other,
                     char text[USE_TEXT], size_t *n)
{
    grammar_state_reset(s);
    for (*n = 0; *n < USE_TEXT; (*n)++) {
        uint32_t allowed[8];
        int list[256], k = 0;
        if (grammar_is_complete(s) && (grammar_is_over(s) || use_random(u, 4) == 0))
            return true;
        if (use_random(u, 8) == 0)
            use_check_mask(u, s, other);
        grammar_next_bytes(s, allowed);
        for (int c = 0; c < 256; c++)
            if (allowed[c / 32] >> c % 32 & 1)
                list[k++] = c;
        if (k == 0)
            return grammar_is_complete(s);
        text[*n] = (char)list[use_random(u, (uint32_t)k)];
        if (!grammar_step(s, text + *n, 1)) /* the bounds of depth and heads */
            return false;
    }
    return false;
}

/* So many random walks; `check` is told each complete text, with the state at its end. */
static inline void use_texts(struct use *u, struct grammar *g, int n_walks,
                             void (*check)(struct grammar_state *s, const char *text, size_t n))
{
    struct grammar_state *s, *other;
    char text[USE_TEXT];
    size_t n;
    BUG_ON(grammar_state_new(g, &s, NULL) != ERR_OK ||
           grammar_state_new(g, &other, NULL) != ERR_OK);
    for (int i = 0; i < n_walks; i++)
        if (use_walk(u, s, other, text, &n))
            check(s, text, n);
    grammar_state_free(s);
    grammar_state_free(other);
}

/* A check: the same text in one step. */
static inline void use_whole(struct grammar_state *s, const char *text, size_t n)
{
    grammar_state_reset(s);
    BUG_ON(!grammar_step(s, text, n) || !grammar_is_complete(s));
}

#endif
