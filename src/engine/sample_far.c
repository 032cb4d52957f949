/* sample_far.c - a candidate far down the order, found by sums of weights.
 *
 * The candidates are dealt out to buckets by their logits, a better bucket's before a worse one's. The buckets' sums say in which of
 * them the goal lies; that one alone is looked at again, until there are few enough to be sorted and walked. The sums are added in another
 * order than the contract's, so where the goal lies within what rounding can make of them nothing is said. */
#include "engine/sample_int.h"

#include <float.h>

#define FAR_BUCKETS 512
#define FAR_LANES   4 /* sums of a bucket: equal logits do not wait for one another's */
#define FAR_BLOCK   64
#define FAR_FEW     1024 /* candidates that are sorted rather than dealt out again */

/* Those among which the goal lies, ids ascending. */
struct far_set {
    const float *values, *weights; /* [n] logits and their weights */
    const int32_t *ids;            /* [n]; NULL: 0, 1, ... */
    int32_t n;
    double before;    /* sum of all better ones */
    float max, scale; /* of the buckets; scale 0: there is nothing to deal out */
};

/* Monotone, as each of its roundings is. */
static inline int32_t far_bucket(const struct far_set *f, float value)
{
    float x = (f->max - value) * f->scale;
    return (int32_t)(x < FAR_BUCKETS - 1 ? x : FAR_BUCKETS - 1);
}

static void far_buckets(const struct far_set *f, const float *values, int32_t n, int32_t *buckets)
{
    for (int32_t i = 0; i < n; i++)
        buckets[i] = far_bucket(f, values[i]);
}

/* Spread the buckets over what has a weight: one logit far below the others would leave one bucket for them all. */
static void far_spread(struct far_set *f)
{
    float lo[FAR_BLOCK], hi[FAR_BLOCK];
    for (int32_t i = 0; i < FAR_BLOCK; i++) {
        lo[i] = FLT_MAX;
        hi[i] = -FLT_MAX;
    }
    for (int32_t b = 0; b < f->n; b += FAR_BLOCK) {
        const float *v = f->values + b, *w = f->weights + b;
        int32_t n = f->n - b < FAR_BLOCK ? f->n - b : FAR_BLOCK;
        for (int32_t i = 0; i < n; i++) {
            float v_lo = w[i] > 0 ? v[i] : FLT_MAX;
            lo[i] = v_lo < lo[i] ? v_lo : lo[i];
            hi[i] = v[i] > hi[i] ? v[i] : hi[i];
        }
    }
    for (int32_t i = 1; i < FAR_BLOCK; i++) {
        lo[0] = lo[i] < lo[0] ? lo[i] : lo[0];
        hi[0] = hi[i] > hi[0] ? hi[i] : hi[0];
    }
    float scale = hi[0] > lo[0] ? FAR_BUCKETS / (hi[0] - lo[0]) : 0;
    f->max = hi[0];
    f->scale = scale <= FLT_MAX ? scale : 0;
}

/* Is the goal reached? -1: the sum does not say. */
static int far_reaches(const struct sample_goal *g, struct sample_sum sum)
{
    bool lo = g->is_over ? sum.lo > g->target.hi : sum.lo >= g->target.hi;
    bool hi = g->is_over ? sum.hi > g->target.lo : sum.hi >= g->target.lo;
    return lo == hi ? lo : -1;
}

/* The bucket in which the goal is reached, if any; what comes before it is added. -1: none. */
static int32_t far_pick(const struct cands *c, struct far_set *f, const struct sample_goal *goal)
{
    double sums[FAR_BUCKETS][FAR_LANES] = { { 0 } };
    int32_t buckets[FAR_BLOCK];
    for (int32_t b = 0; b < f->n; b += FAR_BLOCK) {
        int32_t n = f->n - b < FAR_BLOCK ? f->n - b : FAR_BLOCK;
        far_buckets(f, f->values + b, n, buckets);
        for (int32_t i = 0; i < n; i++)
            sums[buckets[i]][i % FAR_LANES] += (double)f->weights[b + i];
    }
    for (int32_t b = 0; b < FAR_BUCKETS; b++) {
        double sum = f->before + ((sums[b][0] + sums[b][1]) + (sums[b][2] + sums[b][3]));
        if (far_reaches(goal, sum_in_any_order(sum, c->n_vocab, 0)) != 0)
            return b;
        f->before = sum;
    }
    return -1;
}

/* Keep what is in the bucket. values, weights, ids: [f->n] space, may be f's own. */
static void far_narrow(struct far_set *f, int32_t bucket, float *values, float *weights,
                       int32_t *ids)
{
    int32_t buckets[FAR_BLOCK], kept = 0;
    for (int32_t b = 0; b < f->n; b += FAR_BLOCK) {
        int32_t n = f->n - b < FAR_BLOCK ? f->n - b : FAR_BLOCK, any = 0;
        far_buckets(f, f->values + b, n, buckets);
        for (int32_t i = 0; i < n; i++)
            any |= buckets[i] == bucket;
        for (int32_t i = 0; any && i < n; i++) {
            float weight = f->weights[b + i];
            values[kept] = f->values[b + i];
            weights[kept] = weight;
            ids[kept] = f->ids ? f->ids[b + i] : b + i;
            kept += (buckets[i] == bucket) & (weight > 0);
        }
    }
    f->values = values;
    f->weights = weights;
    f->ids = ids;
    f->n = kept;
}

bool sample_far(struct cands *c, const float *weights, const struct sample_goal *goal,
                uint64_t *key, struct sample_sum *sum)
{
    struct far_set f = { .values = c->logits, .weights = weights, .n = c->n_vocab };
    float *space = (float *)c->alt;
    cands_restart(c);
    for (far_spread(&f); f.n > FAR_FEW && f.scale > 0; far_spread(&f)) {
        int32_t bucket = far_pick(c, &f, goal);
        if (bucket < 0)
            return false;
        far_narrow(&f, bucket, space, space + c->n_vocab, (int32_t *)c->tmp);
    }
    for (int32_t i = 0; i < f.n; i++)
        c->keys[i] = shortlist_key(shortlist_order(f.values[i]), f.ids ? f.ids[i] : i);
    cands_sort_keys(c->keys, c->tmp, f.n);
    double run = f.before;
    for (int32_t i = 0; i < f.n; i++) {
        float w = weights[cands_key_id(c->keys[i])];
        run += (double)w;
        *sum = sum_in_any_order(run, c->n_vocab, w);
        int reaches = far_reaches(goal, *sum);
        *key = c->keys[i];
        if (reaches != 0)
            return reaches == 1;
    }
    return false;
}
