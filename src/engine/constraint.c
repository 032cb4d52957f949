#include "engine/constraint.h"

#include <string.h>

static size_t constraint_words(const struct constraint *c)
{
    return ((size_t)grammar_vocab_n(c->vocab) + 31) / 32;
}

enum err_code constraint_init(struct constraint *c, struct grammar *g, int32_t n_vocab,
                              struct err *err)
{
    *c = (struct constraint){ .whole = -1, .fits = true };
    if (!g)
        return ERR_OK;
    c->vocab = grammar_vocab_of(g);
    if (!c->vocab || grammar_vocab_n(c->vocab) != n_vocab)
        return err_set(err, ERR_INVALID, "grammar: compiled for %d tokens, the model has %d",
                       c->vocab ? grammar_vocab_n(c->vocab) : 0, n_vocab);
    c->mask = mem_try_array(MEM_CAT_REQUEST, constraint_words(c), sizeof(*c->mask));
    if (!c->mask)
        return err_set(err, ERR_NOMEM, "request: no memory for a mask of %d tokens", n_vocab);
    enum err_code code = grammar_state_new(g, &c->state, err);
    return code ? code : grammar_state_new(g, &c->probe, err);
}

void constraint_release(struct constraint *c)
{
    grammar_state_free(c->state);
    grammar_state_free(c->probe);
    mem_free(MEM_CAT_REQUEST, c->mask);
    *c = (struct constraint){ 0 };
}

size_t constraint_bytes_max(int32_t n_vocab)
{
    return 2 * grammar_state_bytes() + ((size_t)n_vocab + 31) / 32 * sizeof(uint32_t);
}

/* --- what may come --- */

static bool constraint_is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void constraint_let(struct constraint *c, int32_t id)
{
    c->mask[id / 32] |= 1u << id % 32;
}

static void constraint_bar(struct constraint *c, const struct constraint_ends *ends)
{
    for (int32_t i = 0; i < ends->n_ids; i++)
        c->mask[ends->ids[i] / 32] &= ~(1u << ends->ids[i] % 32);
    for (int32_t i = 0; i < ends->n_more; i++)
        c->mask[ends->more[i] / 32] &= ~(1u << ends->more[i] % 32);
}

static bool constraint_has_any(const struct constraint *c)
{
    size_t words = constraint_words(c);
    for (size_t i = 0; i < words; i++)
        if (c->mask[i] != 0)
            return true;
    return false;
}

/* End ids come exactly where the text may end, whatever their bytes are. */
static enum err_code constraint_set_ends(struct constraint *c, const struct constraint_ends *ends,
                                         bool is_complete, struct err *err)
{
    constraint_bar(c, ends);
    bool has_any = (is_complete && !ends->is_ignored) || constraint_has_any(c);
    for (int32_t i = 0; i < ends->n_ids && is_complete && !(ends->is_ignored && has_any); i++)
        constraint_let(c, ends->ids[i]);
    for (int32_t i = 0; i < ends->n_more && is_complete && !(ends->is_ignored && has_any); i++)
        constraint_let(c, ends->more[i]);
    if (!has_any && !is_complete)
        return err_set(err, ERR_INVALID,
                       "grammar: no token of the model's vocabulary goes on from here");
    return ERR_OK;
}

static enum err_code constraint_mask_text(struct constraint *c, struct err *err)
{
    if (grammar_mask(c->state, c->mask, NULL) < 0)
        return err_set(err, ERR_FULL,
                       "grammar: the tokens that may come here need more than %d stacks",
                       GRAMMAR_HEADS);
    return ERR_OK;
}

/* The bytes behind a span's end, at the beginning of the text: what of them is left for the grammar. */
static struct grammar_bytes constraint_trim(struct grammar_bytes s, int32_t n_blanks)
{
    for (int32_t i = 0; i < n_blanks && s.len > 0 && constraint_is_blank(*s.data); i++)
        s = (struct grammar_bytes){ s.data + 1, s.len - 1 };
    return s;
}

/* Would this be a beginning of the text? */
static bool constraint_may_begin(struct constraint *c, struct grammar_bytes s)
{
    struct grammar_bytes rest = constraint_trim(s, CONSTRAINT_BLANKS);
    if (rest.len == 0)
        return true;
    if (!grammar_step(c->state, s.data, s.len) &&
        !(rest.len < s.len && grammar_step(c->state, rest.data, rest.len)))
        return false;
    BUG_ON(!grammar_back(c->state, 1));
    return true;
}

/* In a span all may come but its end with something behind it that is no beginning of the text. */
static void constraint_mask_span(struct constraint *c, const struct guide *g)
{
    int32_t n = grammar_vocab_n(c->vocab);
    memset(c->mask, 0xFF, constraint_words(c) * sizeof(*c->mask));
    if (n % 32)
        c->mask[n / 32] = (1u << n % 32) - 1;
    if (c->whole == 0 && guide_close_matched(g) == 0)
        return;
    bool is_whole = guide_close_matched(g) == 0;
    for (int32_t id = 0; id < n; id++) {
        struct grammar_bytes s = grammar_vocab_bytes(c->vocab, id);
        bool is_shown = s.len > 0 && (unsigned char)*s.data != CONSTRAINT_MARK;
        int32_t rest = is_shown ? guide_rest(g, s.data, s.len) : 0;
        if (rest <= 0)
            continue;
        c->whole = is_whole ? 1 : c->whole;
        struct grammar_bytes after = { s.data + s.len - rest, (size_t)rest };
        if (guide_goes_on(g) ? constraint_trim(after, CONSTRAINT_BLANKS).len > 0
                             : !constraint_may_begin(c, after))
            c->mask[id / 32] &= ~(1u << id % 32);
    }
    if (is_whole && c->whole < 0)
        c->whole = 0;
}

/* Before a span that may open: what fits the grammar, and what goes on with the marker. */
static enum err_code constraint_mask_before(struct constraint *c, const struct guide *g,
                                            struct err *err)
{
    enum err_code code = ERR_OK;
    if (c->fits)
        code = constraint_mask_text(c, err);
    else
        memset(c->mask, 0, constraint_words(c) * sizeof(*c->mask));
    for (int32_t id = 0; id < grammar_vocab_n(c->vocab) && !code; id++) {
        struct grammar_bytes s = grammar_vocab_bytes(c->vocab, id);
        if (guide_opens(g, id, s.data, s.len))
            constraint_let(c, id);
    }
    return code;
}

/* Blanks alone, behind a span. */
static void constraint_let_blanks(struct constraint *c)
{
    for (int32_t id = 0; id < grammar_vocab_n(c->vocab); id++) {
        struct grammar_bytes s = grammar_vocab_bytes(c->vocab, id);
        if (s.len > 0 && constraint_is_blank(*s.data) && constraint_trim(s, c->n_blanks).len == 0)
            constraint_let(c, id);
    }
}

enum err_code constraint_mask(struct constraint *c, const struct guide *g,
                              const struct constraint_ends *ends, const uint32_t **mask,
                              struct err *err)
{
    enum err_code code = ERR_OK;
    bool may_end = g->phase != GUIDE_OPEN && c->fits && grammar_is_complete(c->state);
    if (g->phase == GUIDE_OPEN)
        constraint_mask_span(c, g);
    else if (g->phase == GUIDE_BEFORE)
        code = constraint_mask_before(c, g, err);
    else
        code = constraint_mask_text(c, err);
    if (!code && g->phase == GUIDE_ANSWER && c->n_blanks > 0)
        constraint_let_blanks(c);
    *mask = c->mask;
    return code ? code : constraint_set_ends(c, ends, may_end, err);
}

/* --- what has come --- */

static enum err_code constraint_fail(const struct constraint *c, int32_t id, struct err *err)
{
    struct grammar_bytes s = grammar_vocab_bytes(c->vocab, id);
    return err_set(err, ERR_FULL,
                   "grammar: token %d ('%.*s') leads to a text that is not in it, or that needs "
                   "more than %d stacks",
                   id, (int)(s.len < 40 ? s.len : 40), s.data, GRAMMAR_HEADS);
}

/* Bytes at the beginning of the text, or in it. */
static bool constraint_step(struct constraint *c, struct grammar_bytes s)
{
    if (s.len == 0)
        return true;
    if (grammar_step(c->state, s.data, s.len)) {
        c->n_blanks = 0;
        return true;
    }
    struct grammar_bytes rest = constraint_trim(s, c->n_blanks);
    if (rest.len == s.len)
        return false;
    c->n_blanks = rest.len > 0 ? 0 : c->n_blanks - (int32_t)s.len;
    return rest.len == 0 || grammar_step(c->state, rest.data, rest.len);
}

enum err_code constraint_feed(struct constraint *c, const struct guide *g, enum guide_phase was,
                              bool is_forced, int32_t id, struct err *err)
{
    struct grammar_bytes s = grammar_vocab_bytes(c->vocab, id);
    grammar_layout_feed(&c->layout, s.data, s.len);
    if (was == GUIDE_ANSWER)
        return is_forced || constraint_step(c, s) ? ERR_OK : constraint_fail(c, id, err);
    if (was == GUIDE_BEFORE && !is_forced)
        c->fits = c->fits && grammar_step(c->state, s.data, s.len);
    if (g->has_span && g->phase != GUIDE_BEFORE && was == GUIDE_BEFORE) { /* it was the marker */
        grammar_state_reset(c->state);
        c->fits = true;
    }
    if (g->phase != GUIDE_ANSWER)
        return ERR_OK;
    if (!c->fits)
        return constraint_fail(c, id, err);
    if (!g->has_span || guide_next(g))
        return ERR_OK;
    c->n_blanks = CONSTRAINT_BLANKS;
    s = (struct grammar_bytes){ s.data + s.len - g->n_answer, (size_t)g->n_answer };
    return constraint_step(c, s) ? ERR_OK : constraint_fail(c, id, err);
}

bool constraint_is_over(const struct constraint *c, const struct guide *g)
{
    return g->phase == GUIDE_ANSWER && !guide_goes_on(g) && c->fits && c->n_blanks == 0 &&
           grammar_is_over(c->state);
}

/* --- guesses --- */

static bool constraint_is_in_text(const struct constraint *c, const struct guide *g)
{
    return g->phase == GUIDE_ANSWER && !guide_goes_on(g) && c->n_blanks == 0;
}

int32_t constraint_cut(struct constraint *c, const struct guide *g, const int32_t *ids, int32_t n)
{
    if (!constraint_is_in_text(c, g))
        return n;
    grammar_state_copy(c->probe, c->state);
    for (int32_t i = 0; i < n; i++) {
        struct grammar_bytes s = grammar_vocab_bytes(c->vocab, ids[i]);
        if (s.len == 0) /* an end, perhaps */
            return grammar_is_complete(c->probe) ? i + 1 : i;
        if (!grammar_step(c->probe, s.data, s.len))
            return i;
    }
    return n;
}

int32_t constraint_ahead(struct constraint *c, const struct guide *g, int32_t *ids, int32_t n_max,
                         bool *is_sure)
{
    char byte;
    int32_t n = 0, only;
    *is_sure = true;
    if (!constraint_is_in_text(c, g))
        return 0;
    bool is_certain = grammar_forced(c->state, &byte, 1) == 1;
    if (is_certain)
        grammar_state_copy(c->probe, c->state);
    while (is_certain && n < n_max && grammar_forced(c->probe, &byte, 1) == 1 &&
           grammar_mask(c->probe, c->mask, &only) == 1) {
        struct grammar_bytes s = grammar_vocab_bytes(c->vocab, only);
        if (!grammar_step(c->probe, s.data, s.len))
            break;
        ids[n++] = only;
    }
    if (n > 0)
        return n;
    *is_sure = false;
    return grammar_spell(c->state, &c->layout, c->probe, ids, n_max);
}
