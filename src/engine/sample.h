/* sample.h - from the logits of one position to the next token: a pure function of (logits, history, parameters, position).
 *
 * Order: logit bias, penalties, grammar mask, logprob capture (log-softmax here), then greedy (temperature 0), or top-p, min-p,
 * typical, XTC, top-k, temperature, draw. Each filter sees the probabilities (at temperature 1) of what the filters before it
 * left, renormalised; each keeps at least one candidate. Candidates stand in (logit descending, id ascending) order, so ties go
 * to the lowest id. The draw is Philox with key = seed and counter = (position, choice, kind of draw): no generator state.
 * Sums run in a fixed order and exp and log are base/fmath.h's: the same bits on every machine.
 *
 * Owns: scratch for one vocabulary, sized at init; nothing is allocated afterwards. Does not know: models, text, requests.
 * Thread: one at a time per struct sampler. */
#ifndef PLUMB_ENGINE_SAMPLE_H
#define PLUMB_ENGINE_SAMPLE_H

#include "base/mem.h"
#include "engine/engine.h"
#include "tensor/backend.h"

enum sample_draw { /* the draw kinds of one position */
                   SAMPLE_DRAW_TOKEN,
                   SAMPLE_DRAW_XTC,
};

struct sampler {
    int32_t n_vocab;
    struct backend *
        be; /* whose sampling ops are used, borrowed; NULL after sampler_init: none, the same bits slower */
    /* private to sample.c from here */
    float *weights;             /* [V] exp(logit - max) */
    uint64_t *keys, *tmp, *alt; /* [V] candidates: order key above, id below */
    int32_t *counts;            /* [V], all zero between calls */
};

/* What a row's position adds to its parameters. */
struct sample_context {
    const int32_t *
        history; /* [n_history] prompt and answer so far; n_history is the position of the token to come */
    int32_t n_history;
    const uint32_t *mask; /* bit id set = the grammar allows it; NULL = everything */
    const int32_t
        *forced; /* the id that is taken whatever the rest says, with its logprob; NULL = none */
    const int32_t *keep; /* [n_keep] ids that XTC never removes: end ids and newlines */
    int32_t n_keep;
};

/* Errors: ERR_NOMEM. Release with sampler_release (fine on a zeroed struct). */
enum err_code sampler_init(struct sampler *s, int32_t n_vocab, struct err *err) MUST_CHECK;
void sampler_release(struct sampler *s);

/* Are the parameters in their ranges? ERR_INVALID names field, value and range. n_vocab bounds the bias ids. */
enum err_code sample_params_check(const struct sample_params *p, int32_t n_vocab,
                                  struct err *err) MUST_CHECK;

/* Choose the next token. logits [V] host memory, changed. p has passed sample_params_check.
 * Errors: ERR_NUMERIC - a logit is not finite (says which), or nothing is left to choose from. */
enum err_code sample_token(struct sampler *s, float *logits, const struct sample_params *p,
                           const struct sample_context *ctx, struct engine_token *out,
                           struct err *err) MUST_CHECK;

/* May a short list be enough for such choices? Not for what changes logits or wants their logprobs, nor for typical_p over all ids. */
bool sample_may_be_short(const struct sample_params *p);

/* sample_token without the logits, by their short list at p's temperature: the same choice to the bit. False: the list does not say, or a
 * logit is not finite; out is to be ignored, and sample_token says. Need: sample_may_be_short, neither mask nor forced id. */
bool sample_short(struct sampler *s, const struct shortlist *list, const struct sample_params *p,
                  const struct sample_context *ctx, struct engine_token *out);

/* How likely id is after what gave these logits: id, logprob and the n_top likeliest ids, by the log-softmax alone.
 * logits [V], not changed. Errors: ERR_NUMERIC as above. */
enum err_code sample_score(struct sampler *s, const float *logits, int32_t id, int32_t n_top,
                           struct engine_token *out, struct err *err) MUST_CHECK;

/* Count the log-softmax of all ids into sig's bins. The bin of an id is floor((logprob - minimum) * n_bins / -minimum), where the
 * logprob is the f32 that an answer would show and the rest is computed in f64, clamped to [0, n_bins).
 * logits [V], not changed. Errors: ERR_NUMERIC as above. */
enum err_code sample_signal(struct sampler *s, const float *logits, const struct engine_signal *sig,
                            struct err *err) MUST_CHECK;

/* log(softmax(logits))[id], with the sums of sample_token. logits [V] finite. */
float sample_logprob(struct sampler *s, const float *logits, int32_t id);

/* The id of the greatest logit, ties to the lowest. */
int32_t sample_argmax(const float *logits, int32_t n_vocab);

#endif
