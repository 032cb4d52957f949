#include "engine/expected.h"

void expected_init(struct expected *x, struct grammar *g, int32_t n_vocab)
{
    *x = (struct expected){ 0 };
    struct grammar_vocab *vocab = g ? grammar_vocab_of(g) : NULL;
    if (!vocab || grammar_vocab_n(vocab) != n_vocab)
        return;
    x->vocab = vocab;
    if (grammar_state_new(g, &x->state, NULL) || grammar_state_new(g, &x->probe, NULL))
        expected_release(x);
}

void expected_release(struct expected *x)
{
    grammar_state_free(x->state);
    grammar_state_free(x->probe);
    *x = (struct expected){ 0 };
}

size_t expected_bytes_max(void)
{
    return 2 * grammar_state_bytes();
}

void expected_feed(struct expected *x, int32_t id)
{
    if (!x->state)
        return;
    struct grammar_bytes s = grammar_vocab_bytes(x->vocab, id);
    grammar_layout_feed(&x->layout, s.data, s.len);
    if (grammar_step(x->state, s.data, s.len))
        return;
    grammar_state_reset(x->state);
    if (!grammar_step(x->state, s.data, s.len)) /* it may be a beginning itself */
        grammar_state_reset(x->state);
}

int32_t expected_ahead(const struct expected *x, int32_t *ids, int32_t n_max)
{
    return x->state ? grammar_spell(x->state, &x->layout, x->probe, ids, n_max) : 0;
}
