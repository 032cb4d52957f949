/* score.h - a text through one model or several side by side, in windows as llama.cpp's llama-perplexity cuts them, so that the
 * numbers compare: windows of n tokens, one after the other, no overlap, a remainder is left out; of each window the second half is
 * scored (the first is context): positions [n/2, n - 1) predict their next token. */
#ifndef PLUMB_CLI_SCORE_H
#define PLUMB_CLI_SCORE_H

#include "engine/runner.h"

#define SCORE_ROWS \
    64 /* rows of one step: their logits are held at once. max_rows, max_out of the runners */
#define SCORE_MODELS_MAX 2

struct score_options {
    struct runner *const *runners; /* [n_models] of max_seqs >= 1 */
    int n_models;                  /* 0..SCORE_MODELS_MAX */
    int32_t
        bos; /* stands in place of each window's first token for models that want it; -1 = none */
    /* Told of each scored position: the models' logits [V], which may be changed, and the token that came. */
    enum err_code (*on_row)(void *ctx, float *const *logits, int32_t next, struct err *err);
    void *ctx;
};

/* Tokens that are scored of a window of n. */
static inline int32_t score_rows(int32_t n)
{
    return n - 1 - n / 2;
}

/* One window, ids [n]. Errors: the runners'; ERR_NUMERIC - a model's activations are not finite; on_row's. */
enum err_code score_window(const struct score_options *o, const int32_t *ids, int32_t n,
                           struct err *err) MUST_CHECK;

/* exp(0.5 log(x)); 0 for x <= 0. */
double score_root(double x);

#endif
