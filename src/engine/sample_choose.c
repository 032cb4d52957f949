/* sample_choose.c - filters and draw. */
#include "base/dmath.h"
#include "base/philox.h"
#include "engine/sample_int.h"

#include <math.h>

/* May sums look for a candidate behind the n first? Weights are 1 at most: n candidates at least make a sum of n. One walks until that has
 * cost as much as looking at all; not far where the order is a long one: the sum is a good part of their number, or what is held has
 * ended, and the next band may hold half of the vocabulary. */
static bool sample_is_far(const struct cands *c, double n, struct sample_sum sum)
{
    bool is_long = sum.lo >= c->n_vocab / 256.0 && n >= 64;
    bool is_over = n > 0 && n == c->n_held;
    return c->is_summed && c->n_sorted < c->n && (is_long || is_over || n >= c->n_vocab / 32.0);
}

static float cand_weight(const struct cands *c, int32_t i)
{
    return dmath_expf(cands_key_logit(c->keys[i]) - c->max);
}

/* Is value >= share * sum? */
static bool sum_is_reached(struct cands *c, double value, double share, struct sample_sum sum)
{
    bool is_reached = value >= share * sum.hi;
    c->is_unknown = c->is_unknown || is_reached != (value >= share * sum.lo);
    return is_reached;
}

/* --- filters: each takes the sum of the weights left and returns the new one --- */

static struct sample_sum sample_top_p(struct sampler *s, struct cands *c, float top_p,
                                      struct sample_sum sum)
{
    if (top_p >= 1)
        return sum;
    struct sample_goal goal = { .target = { (double)top_p * sum.lo, (double)top_p * sum.hi } };
    double kept = 0;
    bool is_far = sample_is_far(c, goal.target.lo, sum);
    for (int32_t i = 0; i < c->n && !is_far && cands_sort(c, i + 1); i++) {
        kept += (double)cand_weight(c, i);
        if (sum_is_reached(c, kept, (double)top_p, sum)) {
            cands_cut(c, i + 1);
            return sum_of(kept);
        }
        is_far = sample_is_far(c, i + 1, sum);
    }
    uint64_t last;
    if (!is_far)
        return sum;
    if (sample_far(c, s->weights, &goal, &last, &sum))
        cands_cut_behind(c, last);
    else
        c->is_unknown = true;
    return sum;
}

/* The sum of the weights of what is left; the others' are 0 then. */
static struct sample_sum sample_add_left(struct sampler *s, const struct cands *c, float least)
{
    float *w = s->weights, last = c->last;
    int32_t last_id = c->last_id;
    for (int32_t i = 0; i < s->n_vocab; i++) /* cands_has, as vector code */
        w[i] = (c->logits[i] > last) | ((c->logits[i] == last) & (i <= last_id)) ? w[i] : 0;
    for (int32_t i = 0; i < c->n_dropped; i++)
        w[c->dropped[i]] = 0;
    return sum_in_any_order(sample_add(s), c->n_vocab, least);
}

/* The same by a look at all weights: what is best of those under min_p is the first to go. */
static struct sample_sum sample_min_p_far(struct sampler *s, struct cands *c, float min_p,
                                          struct sample_sum sum)
{
    const float *w = s->weights, *l = c->logits;
    float best = -INFINITY;
    for (int32_t i = 0; i < c->n_vocab; i++)
        if ((w[i] < min_p) & (l[i] > best) && cands_has(c, i))
            best = l[i];
    if (best == -INFINITY)
        return sum;
    cands_cut_behind(c, shortlist_key(shortlist_order(best) + 1, INT32_MAX));
    return sample_add_left(s, c, min_p);
}

static struct sample_sum sample_min_p(struct sampler *s, struct cands *c, float min_p,
                                      struct sample_sum sum)
{
    if (min_p <= 0)
        return sum;
    double kept = 0;
    bool is_far = sample_is_far(c, sum.lo, sum);
    for (int32_t i = 0; i < c->n && !is_far && cands_sort(c, i + 1); i++) {
        float w = cand_weight(c, i);
        if (i > 0 && w < min_p) {
            cands_cut(c, i);
            return sum_of(kept);
        }
        kept += (double)w;
        is_far = sample_is_far(c, i + 1, sum);
    }
    return is_far ? sample_min_p_far(s, c, min_p, sum) : sum;
}

/* Locally typical sampling (Meister et al. 2022): candidates by |surprise - entropy|, the least first, until typical_p is
 * reached; ties to the better logit. */
static struct sample_sum sample_typical(struct cands *c, float typical_p, struct sample_sum sums)
{
    uint64_t *alt = c->alt;
    double sum = sums.lo;
    if (typical_p >= 1)
        return sums;
    c->is_unknown = c->is_unknown || sums.lo < sums.hi;
    if (!cands_sort(c, c->n))
        return sums;
    double log_sum = dmath_log(sum), entropy = 0;
    for (int32_t i = 0; i < c->n; i++) {
        double w = (double)cand_weight(c, i);
        if (w > 0)
            entropy -= w / sum * ((double)(cands_key_logit(c->keys[i]) - c->max) - log_sum);
    }
    for (int32_t i = 0; i < c->n; i++) {
        double surprise = log_sum - (double)(cands_key_logit(c->keys[i]) - c->max);
        float d = (float)(surprise > entropy ? surprise - entropy : entropy - surprise);
        alt[i] = (uint64_t)dmath_f32_bits(d) << 32 | (uint32_t)i; /* d >= 0: its bits ascend */
    }
    cands_sort_keys(alt, c->tmp, c->n);
    double kept = 0;
    int32_t n = 0;
    while (n < c->n && (n == 0 || kept < (double)typical_p * sum)) {
        alt[n] = (uint32_t)alt[n];
        kept += (double)cand_weight(c, (int32_t)alt[n++]);
    }
    cands_sort_keys(alt, c->tmp, n); /* back in rank order */
    for (int32_t i = 0; i < n; i++)
        c->keys[i] = c->keys[alt[i]];
    cands_keep(c, n);
    return sum_of(kept);
}

/* XTC ("exclude top choices", p-e-w 2024): with the given probability, of the candidates that reach the threshold all but the
 * least likely are removed; end ids and newlines never. */
static void sample_xtc(struct cands *c, const struct sample_params *p,
                       const struct sample_context *ctx, struct sample_sum sum)
{
    if (p->xtc_probability <= 0 || p->xtc_threshold > 0.5f)
        return;
    if (philox_uniform(p->seed, (uint64_t)ctx->n_history, p->choice, SAMPLE_DRAW_XTC) >=
        p->xtc_probability)
        return;
    int32_t n_over = 0;
    while (n_over < c->n && cands_sort(c, n_over + 1) &&
           sum_is_reached(c, (double)cand_weight(c, n_over), (double)p->xtc_threshold, sum))
        n_over++;
    if (n_over < 2)
        return;
    if (!c->is_summed && !cands_sort(c, c->n)) /* the draw needs the sum of all that is left */
        return;
    cands_drop(c, n_over - 1, ctx->keep, ctx->n_keep);
}

/* --- the choice --- */

struct sample_sum sample_sum_listed(const struct cands *c, bool is_drawn)
{
    double sum = 0;
    for (int i = 0; i < SHORTLIST_PARTS; i++)
        sum += is_drawn ? c->list->parts[i].sum_t : c->list->parts[i].sum;
    return sum_in_any_order(sum, c->n_vocab, 0);
}

/* The weights of what is left at temperature t, and their sum. */
static struct sample_sum sample_weigh_left(struct sampler *s, const struct cands *c, float max,
                                           float t)
{
    double sum = sample_weigh(s, c->logits, max, t);
    return c->is_cut ? sample_add_left(s, c, dmath_expf((c->last - max) / t)) : sum_of(sum);
}

/* Draw by the weights at temperature t: the first candidate in rank order at which the running sum passes u * total. */
static int32_t sample_draw(struct sampler *s, struct cands *c, const struct sample_params *p,
                           const struct sample_context *ctx)
{
    float t = p->temperature;
    bool is_keyed = c->is_cut && c->n_sorted == c->n;
    float max = c->n_sorted > 0 ? cands_key_logit(c->keys[0]) : c->max; /* the best may be gone */
    double cut = 0;
    for (int32_t i = 0; is_keyed && i < c->n; i++)
        cut += (double)dmath_expf((cands_key_logit(c->keys[i]) - max) / t);
    struct sample_sum total = is_keyed  ? sum_of(cut)
                              : c->list ? sample_sum_listed(c, true)
                                        : sample_weigh_left(s, c, max, t);
    double u =
        (double)philox_uniform(p->seed, (uint64_t)ctx->n_history, p->choice, SAMPLE_DRAW_TOKEN);
    struct sample_goal goal = { .target = { u * total.lo, u * total.hi }, .is_over = true };
    bool is_far = sample_is_far(c, goal.target.lo, total);
    double sum = 0;
    int32_t last = 0; /* rounding may leave the target just above the last sum */
    for (int32_t i = 0; i < c->n && !is_far && cands_sort(c, i + 1); i++) {
        float w = dmath_expf((cands_key_logit(c->keys[i]) - max) / t);
        sum += (double)w;
        if (w > 0)
            last = i;
        c->is_unknown = c->is_unknown || (sum > goal.target.hi) != (sum > goal.target.lo);
        if (sum > goal.target.hi)
            return cands_key_id(c->keys[i]);
        is_far = sample_is_far(c, i + 1, total);
    }
    uint64_t key;
    if (!is_far)
        return cands_key_id(c->keys[last]);
    if (sample_far(c, s->weights, &goal, &key, &total))
        return cands_key_id(key);
    c->is_unknown = true;
    return -1;
}

int32_t sample_choose(struct sampler *s, struct cands *c, struct sample_sum sum,
                      const struct sample_params *p, const struct sample_context *ctx)
{
    sum = sample_top_p(s, c, p->top_p, sum);
    sum = sample_min_p(s, c, p->min_p, sum);
    sum = sample_typical(c, p->typical_p, sum);
    sample_xtc(c, p, ctx, sum);
    if (p->top_k > 0 && p->top_k < c->n)
        cands_cut(c, p->top_k);
    return c->is_unknown ? -1 : sample_draw(s, c, p, ctx);
}
