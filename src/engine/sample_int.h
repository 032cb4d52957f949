/* sample_int.h - what the files of the sampler share.
 *
 * A choice knows its candidates by one of three: a short list (sample_short); all logits, where sums that were added in another order than
 * the contract's decide as far as they can (sample_far); all logits in order. What the first two cannot say is asked of the next, so
 * that the last is the only one that has to be right everywhere, and the slow one. */
#ifndef PLUMB_ENGINE_SAMPLE_INT_H
#define PLUMB_ENGINE_SAMPLE_INT_H

#include "engine/sample.h"
#include "tensor/shortlist.h"

/* The candidates of one choice: keys in (logit descending, id ascending) order once sorted, that is ascending as integers.
 * A key is made when its logit's band is reached, from the best one down: most choices never look at the rest of the vocabulary. */
struct cands {
    const float *logits; /* [n_vocab]; NULL: the short list is all that is known */
    const struct shortlist *list;
    uint32_t list_floor; /* candidates of lower orders may be missing from the list */
    bool is_summed;      /* sums may decide (sample_far) */
    bool
        is_unknown; /* something was asked that list or sums do not say: what is chosen is no choice */
    int32_t n_vocab;
    uint64_t *keys;  /* [n_held]; the first n_sorted are the least of all, in order */
    uint64_t *tmp;   /* [n_vocab] scratch */
    uint64_t *alt;   /* [n_vocab] scratch */
    float last;      /* of logits: the worst candidate's, and */
    int32_t last_id; /* the greatest id that has it and is one */
    int32_t
        *dropped; /* [n_dropped] ids that cands_drop has removed; stand in alt until sample_far */
    int32_t n_dropped;
    int32_t n; /* candidates in all */
    int32_t n_held, n_sorted;
    float max;   /* greatest logit */
    float floor; /* candidates of lower logits are not held yet */
    float width; /* of the next band */
    bool is_cut; /* some filter removed something: n is not every allowed id */
};

static inline float cands_key_logit(uint64_t key)
{
    return shortlist_logit(shortlist_key_order(key));
}

static inline int32_t cands_key_id(uint64_t key)
{
    return (int32_t)(uint32_t)key;
}

/* Has cands_cut_behind left the id? Of logits. */
static inline bool cands_has(const struct cands *c, int32_t id)
{
    float v = c->logits[id];
    return (v > c->last) | ((v == c->last) & (id <= c->last_id));
}

/* Of logits: may_lack - some may be -INFINITY, which are no candidates. The sampler's scratch is borrowed. */
void cands_init(struct cands *c, struct sampler *s, const float *logits, float max, bool may_lack);
void cands_init_list(struct cands *c, struct sampler *s, const struct shortlist *list);

/* Make the first `want` candidates (or all) sorted. False: they are unknown. */
bool cands_sort(struct cands *c, int32_t want);

/* Hold nothing; what is a candidate stays one. */
void cands_restart(struct cands *c);

/* The first n are all that is left, in order. */
void cands_keep(struct cands *c, int32_t n);

/* Keep the first n, which are sorted. */
void cands_cut(struct cands *c, int32_t n);

/* Keep those up to this key, of which nothing needs to be sorted. Need: logits, with more candidates than are sorted. */
void cands_cut_behind(struct cands *c, uint64_t last);

/* Remove the first n, which are sorted, but for the ids `keep` [n_keep]; the rest moves up. Once; nothing but walks, cands_cut and sample_far
 * may follow. */
void cands_drop(struct cands *c, int32_t n, const int32_t *keep, int32_t n_keep);

/* keys [n] ascending; tmp [n]. */
void cands_sort_keys(uint64_t *keys, uint64_t *tmp, int32_t n);

/* Where a sum of weights lies that is added in the order which the contract names. What is done with sums (products, comparisons) is
 * monotone: what both ends say, every sum between them says. */
struct sample_sum {
    double lo, hi;
};

static inline struct sample_sum sum_of(double sum)
{
    return (struct sample_sum){ sum, sum };
}

/* The same n weights were added in any order. `least`: no weight that is not 0 is under half of it, 0 = nobody knows. They are
 * multiples of 2^-25 least, so below 2^53 times that no sum of them is rounded, and all orders give the same (f64 has 53 bits). Else two
 * sums differ by less than the (n 2^-51)th part (tensor/shortlist.h). */
static inline struct sample_sum sum_in_any_order(double sum, int32_t n, float least)
{
    double error = sum <= (double)least * 0x1p28 ? 0 : n * 0x1p-51;
    return (struct sample_sum){ sum * (1 - error), sum * (1 + error) };
}

/* What is looked for: the first candidate at which the running sum in order reaches the target, or is over it. */
struct sample_goal {
    struct sample_sum target;
    bool is_over;
};

/* Find it far down the order, without sorting the way there. weights [n_vocab]: of the logits, ascending with them (but for rounding), 0 for
 * those that are no candidates. c holds nothing afterwards.
 * Out: its key, and the sum up to it. False: sums do not say. */
bool sample_far(struct cands *c, const float *weights, const struct sample_goal *goal,
                uint64_t *key, struct sample_sum *sum);

/* The sum of s->weights, over four lanes (id mod 4) that are added as (0+1)+(2+3). */
double sample_add(const struct sampler *s);

/* s->weights[i] = exp((logits[i] - max) / t); returns their sum. */
double sample_weigh(const struct sampler *s, const float *logits, float max, float t);

/* Filters and draw; sum: of all weights at temperature 1, which stand in s->weights where sums may decide and a filter is on. The id counts
 * if nothing was unknown. */
int32_t sample_choose(struct sampler *s, struct cands *c, struct sample_sum sum,
                      const struct sample_params *p, const struct sample_context *ctx);

/* A sum of all logits' weights, at temperature 1 or the row's, by their list. */
struct sample_sum sample_sum_listed(const struct cands *c, bool is_drawn);

#endif
