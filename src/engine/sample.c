#include "engine/sample.h"
#include "base/dmath.h"
#include "base/philox.h"
#include "tensor/shortlist.h"

#include <float.h>
#include <math.h>

#define SAMPLE_SORT_MIN \
    64 /* candidates sorted at a time, doubling: most draws end within the first lot */
#define SAMPLE_SORT_MANY 512
#define SAMPLE_BAND \
    8.0f /* logits below the best that the first look takes in, then as many again, doubling */

/* The candidates of one choice: keys in (logit descending, id ascending) order once sorted, that is ascending as integers.
 * A key is made when its logit's band is reached, from the best one down: most choices never look at the rest of the vocabulary. */
struct cands {
    const float *logits; /* [n_vocab]; NULL: the short list is all that is known */
    const struct shortlist *list;
    uint32_t list_floor; /* candidates of lower orders may be missing from the list */
    bool
        is_unknown; /* something was asked that the list does not say: what is chosen is no choice */
    int32_t n_vocab;
    uint64_t *keys; /* [n_held]; the first n_sorted are the least of all, in order */
    uint64_t *tmp;  /* [n] scratch */
    int32_t n;      /* candidates in all */
    int32_t n_held, n_sorted;
    float max;   /* greatest logit */
    float floor; /* candidates of lower logits are not held yet */
    float width; /* of the next band */
    bool is_cut; /* some filter removed something: n is not every allowed id */
};

enum err_code sampler_init(struct sampler *s, int32_t n_vocab, struct err *err)
{
    *s = (struct sampler){ .n_vocab = n_vocab };
    size_t n = (size_t)n_vocab;
    s->weights = mem_try_big(MEM_CAT_SCRATCH, n * sizeof(*s->weights));
    s->keys = mem_try_big(MEM_CAT_SCRATCH, n * sizeof(*s->keys));
    s->tmp = mem_try_big(MEM_CAT_SCRATCH, n * sizeof(*s->tmp));
    s->alt = mem_try_big(MEM_CAT_SCRATCH, n * sizeof(*s->alt));
    s->counts = mem_try_big(MEM_CAT_SCRATCH, n * sizeof(*s->counts));
    if (s->weights && s->keys && s->tmp && s->alt && s->counts)
        return ERR_OK;
    sampler_release(s);
    return err_set(err, ERR_NOMEM, "sampler: no memory for a vocabulary of %d", n_vocab);
}

void sampler_release(struct sampler *s)
{
    size_t n = (size_t)s->n_vocab;
    mem_free_big(MEM_CAT_SCRATCH, s->weights, n * sizeof(*s->weights));
    mem_free_big(MEM_CAT_SCRATCH, s->keys, n * sizeof(*s->keys));
    mem_free_big(MEM_CAT_SCRATCH, s->tmp, n * sizeof(*s->tmp));
    mem_free_big(MEM_CAT_SCRATCH, s->alt, n * sizeof(*s->alt));
    mem_free_big(MEM_CAT_SCRATCH, s->counts, n * sizeof(*s->counts));
    *s = (struct sampler){ 0 };
}

/* --- parameters --- */

struct sample_range {
    const char *name;
    float value, min, max;
};

enum err_code sample_params_check(const struct sample_params *p, int32_t n_vocab, struct err *err)
{
    const struct sample_range ranges[] = {
        { "temperature", p->temperature, 0, 100 },
        { "top_p", p->top_p, 0, 1 },
        { "min_p", p->min_p, 0, 1 },
        { "typical_p", p->typical_p, 0, 1 },
        { "xtc_probability", p->xtc_probability, 0, 1 },
        { "xtc_threshold", p->xtc_threshold, 0, 1 },
        { "repetition_penalty", p->repetition_penalty, 0.01f, 100 },
        { "presence_penalty", p->presence_penalty, -100, 100 },
        { "frequency_penalty", p->frequency_penalty, -100, 100 },
        { "top_k", (float)p->top_k, 0, 2147483648.0f },
        { "penalty_last_n", (float)p->penalty_last_n, 0, 2147483648.0f },
        { "n_logprobs", (float)p->n_logprobs, -1, ENGINE_LOGPROBS_MAX },
    };
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        const struct sample_range *r = &ranges[i];
        if (!(r->value >= r->min && r->value <= r->max))
            return err_set(err, ERR_INVALID, "%s: %g is not in [%g, %g]", r->name, (double)r->value,
                           (double)r->min, (double)r->max);
    }
    if (p->n_bias > ENGINE_BIAS_MAX)
        return err_set(err, ERR_INVALID, "logit_bias: %d entries, at most %d are allowed",
                       p->n_bias, ENGINE_BIAS_MAX);
    for (int32_t i = 0; i < p->n_bias; i++) {
        const struct logit_bias *b = &p->bias[i];
        if (b->id < 0 || b->id >= n_vocab)
            return err_set(err, ERR_INVALID, "logit_bias: token id %d is not in [0, %d)", b->id,
                           n_vocab);
        if (!(b->bias >= -1e9f && b->bias <= 1e9f))
            return err_set(err, ERR_INVALID, "logit_bias: %g for token %d is not in [-1e9, 1e9]",
                           (double)b->bias, b->id);
    }
    return ERR_OK;
}

/* --- logits --- */

/* The greatest logit's id; *finite: whether all are (if not, the id may be any). */
static int32_t sample_best(const struct sampler *s, const float *logits, bool *finite)
{
    if (s->be && s->be->ops->argmax)
        return (int32_t)s->be->ops->argmax(s->be, logits, s->n_vocab, finite);
    *finite = true;
    for (int32_t i = 0; i < s->n_vocab; i++)
        *finite = *finite && isfinite(logits[i]);
    return sample_argmax(logits, s->n_vocab);
}

/* The greatest logit's id. Errors: ERR_NUMERIC - one is not finite. */
static enum err_code sample_scan(const struct sampler *s, const float *logits, int32_t *best,
                                 struct err *err)
{
    bool finite;
    *best = sample_best(s, logits, &finite);
    if (finite)
        return ERR_OK;
    int32_t i = 0;
    while (isfinite(logits[i]))
        i++;
    return err_set(err, ERR_NUMERIC,
                   "non-finite logits: token %d has %g; the model file may be damaged", i,
                   (double)logits[i]);
}

static void sample_bias(float *logits, const struct sample_params *p)
{
    for (int32_t i = 0; i < p->n_bias; i++) {
        float *l = &logits[p->bias[i].id];
        *l = p->bias[i].bias <= -100 ? -INFINITY : *l + p->bias[i].bias;
    }
}

static void sample_penalties(struct sampler *s, float *logits, const struct sample_params *p,
                             const struct sample_context *ctx)
{
    int32_t n = ctx->n_history;
    if (p->penalty_last_n > 0 && p->penalty_last_n < n)
        n = p->penalty_last_n;
    const int32_t *ids = ctx->history + (ctx->n_history - n);
    for (int32_t i = 0; i < n; i++)
        s->counts[ids[i]]++;
    for (int32_t i = 0; i < n; i++) {
        int32_t count = s->counts[ids[i]];
        if (count == 0)
            continue; /* seen already */
        s->counts[ids[i]] = 0;
        float *l = &logits[ids[i]];
        *l = *l > 0 ? *l / p->repetition_penalty : *l * p->repetition_penalty;
        *l -= (float)count * p->frequency_penalty;
        *l -= p->presence_penalty;
    }
}

static void sample_mask(float *logits, int32_t n, const uint32_t *mask)
{
    if (!mask)
        return;
    for (int32_t i = 0; i < n; i++)
        if (!(mask[i >> 5] >> (i & 31) & 1))
            logits[i] = -INFINITY;
}

int32_t sample_argmax(const float *logits, int32_t n_vocab)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* s->weights[i] = exp((logits[i] - max) / t); returns their sum, over four lanes (id mod 4) that are added as (0+1)+(2+3). */
static double sample_weigh(const struct sampler *s, const float *logits, float max, float t)
{
    float *weights = s->weights;
    int32_t n = s->n_vocab;
    if (s->be && s->be->ops->exp_scaled)
        s->be->ops->exp_scaled(s->be, weights, logits, n, max, t);
    else
        for (int32_t i = 0; i < n; i++)
            weights[i] = dmath_expf((logits[i] - max) / t);
    double lane[4] = { 0 };
    int32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            lane[j] += (double)weights[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += (double)weights[i];
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

/* What the log-softmax of one position is made of. */
struct sample_softmax {
    float max;
    double sum, log_sum;
};

static struct sample_softmax sample_softmax_of(struct sampler *s, const float *logits, float max)
{
    double sum = sample_weigh(s, logits, max, 1);
    return (struct sample_softmax){ max, sum, dmath_log(sum) };
}

static float sample_log(const struct sample_softmax *m, float logit)
{
    return (float)((double)(logit - m->max) - m->log_sum);
}

float sample_logprob(struct sampler *s, const float *logits, int32_t id)
{
    bool finite;
    float max = logits[sample_best(s, logits, &finite)];
    struct sample_softmax m = sample_softmax_of(s, logits, max);
    return sample_log(&m, logits[id]);
}

/* --- candidates in order --- */

static float cand_logit(uint64_t key)
{
    return shortlist_logit(shortlist_key_order(key));
}

static int32_t cand_id(uint64_t key)
{
    return (int32_t)(uint32_t)key;
}

static float cand_weight(const struct cands *c, int32_t i)
{
    return dmath_expf(cand_logit(c->keys[i]) - c->max);
}

/* Many keys: by digits of 11 bits, the lowest first, leaving out those that all share (262,144 keys: 3.7 ms, by merging
 * 17; 512: 6 us and 16). n > 0. */
static void cands_sort_many(uint64_t *keys, uint64_t *tmp, int32_t n)
{
    enum { BITS = 11, DIGITS = 6, VALUES = 1 << BITS };
    uint64_t *from = keys, *to = tmp;
    int32_t counts[DIGITS][VALUES];
    memset(counts, 0, sizeof(counts));
    for (int32_t i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++)
            counts[d][keys[i] >> BITS * d & (VALUES - 1)]++;
    for (int d = 0; d < DIGITS; d++) {
        int32_t *at = counts[d], sum = 0;
        if (at[keys[0] >> BITS * d & (VALUES - 1)] == n)
            continue;
        for (int v = 0; v < VALUES; v++) {
            int32_t count = at[v];
            at[v] = sum;
            sum += count;
        }
        for (int32_t i = 0; i < n; i++)
            to[at[from[i] >> BITS * d & (VALUES - 1)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != keys)
        memcpy(keys, from, (size_t)n * sizeof(*keys));
}

/* Ascending; tmp [n]. Few: merge sort, from runs of 8 by insertion. */
static void cands_sort_keys(uint64_t *keys, uint64_t *tmp, int32_t n)
{
    if (n >= SAMPLE_SORT_MANY) {
        cands_sort_many(keys, tmp, n);
        return;
    }
    for (int32_t a = 0; a < n; a += 8) {
        int32_t b = a + 8 < n ? a + 8 : n;
        for (int32_t i = a + 1; i < b; i++) {
            uint64_t k = keys[i];
            int32_t j = i;
            for (; j > a && keys[j - 1] > k; j--)
                keys[j] = keys[j - 1];
            keys[j] = k;
        }
    }
    for (int32_t width = 8; width < n; width *= 2) {
        for (int32_t a = 0; a < n; a += 2 * width) {
            int32_t mid = n - a > width ? a + width : n;
            int32_t end = n - mid > width ? mid + width : n;
            int32_t i = a, j = mid;
            for (int32_t o = a; o < end; o++)
                tmp[o] = j >= end || (i < mid && keys[i] <= keys[j]) ? keys[i++] : keys[j++];
        }
        memcpy(keys, tmp, (size_t)n * sizeof(*keys));
    }
}

/* Make keys of all logits in [lo, hi). Whole blocks without one are passed over by vector code. */
static void cands_hold_logits(struct cands *c, float lo, float hi)
{
    enum { BLOCK = 64 };
    for (int32_t b = 0; b < c->n_vocab; b += BLOCK) {
        const float *l = c->logits + b;
        int32_t n = c->n_vocab - b < BLOCK ? c->n_vocab - b : BLOCK, any = 0;
        for (int32_t i = 0; i < n; i++)
            any |= (l[i] >= lo) & !(l[i] >= hi);
        for (int32_t i = 0; any && i < n; i++)
            if (l[i] >= lo && !(l[i] >= hi))
                c->keys[c->n_held++] = shortlist_key(shortlist_order(l[i]), b + i);
    }
}

/* Take those of the list. */
static void cands_hold_listed(struct cands *c, float lo, float hi)
{
    for (int i = 0; i < SHORTLIST_PARTS; i++) {
        const struct shortlist_part *p = &c->list->parts[i];
        for (int32_t k = 0; k < p->n; k++) {
            float logit = cand_logit(p->keys[k]);
            if (logit >= lo && !(logit >= hi) && shortlist_key_order(p->keys[k]) >= c->list_floor)
                c->keys[c->n_held++] = p->keys[k];
        }
    }
}

/* The next band: logits in [floor - width, floor). */
static void cands_hold(struct cands *c)
{
    float hi = c->floor, lo = hi - c->width;
    if (hi == INFINITY)
        lo = c->max - c->width;
    bool is_listed = c->list && c->list_floor > 0 && lo <= shortlist_logit(c->list_floor);
    if (!(lo > -1e4f) || is_listed) /* so far below nothing is worth a band of its own */
        lo = -FLT_MAX;
    if (c->list)
        cands_hold_listed(c, lo, hi);
    else
        cands_hold_logits(c, lo, hi);
    c->floor = lo;
    c->width *= 2;
}

/* Sort the next lot of those that are held, at least `want` in all where there are so many. The lot is found by a histogram of the
 * keys' top bits, so the cost is linear in their number with a small factor and no input is bad. */
static void cands_sort_lot(struct cands *c, int32_t want)
{
    int32_t need = want - c->n_sorted;
    if (need < c->n_sorted)
        need = c->n_sorted;
    if (need < SAMPLE_SORT_MIN)
        need = SAMPLE_SORT_MIN;
    uint64_t *keys = c->keys + c->n_sorted;
    int32_t n = c->n_held - c->n_sorted, m = n;
    if (need < n) {
        int32_t histogram[4096] = { 0 };
        for (int32_t i = 0; i < n; i++)
            histogram[keys[i] >> 52]++;
        uint64_t last = 0;
        int32_t sum = histogram[0];
        while (sum < need)
            sum += histogram[++last];
        m = 0;
        for (int32_t i = 0; i < n; i++) {
            if (keys[i] >> 52 > last)
                continue;
            uint64_t k = keys[i];
            keys[i] = keys[m];
            keys[m++] = k;
        }
    }
    cands_sort_keys(keys, c->tmp, m);
    c->n_sorted += m;
}

/* Make the first `want` candidates (or all) sorted. False: they are unknown. */
static bool cands_sort(struct cands *c, int32_t want)
{
    if (want > c->n)
        want = c->n;
    while (c->n_sorted < want) {
        while (c->n_held == c->n_sorted && c->floor > -FLT_MAX)
            cands_hold(c);
        if (c->n_held == c->n_sorted)
            break;
        cands_sort_lot(c, want);
    }
    c->is_unknown = c->is_unknown || (c->list && c->n_sorted < want);
    return !c->is_unknown;
}

/* The first n are all that is left, in order. */
static void cands_keep(struct cands *c, int32_t n)
{
    c->is_cut = c->is_cut || n < c->n;
    c->n = c->n_held = c->n_sorted = n;
}

/* Keep the first n, which are sorted. */
static void cands_cut(struct cands *c, int32_t n)
{
    BUG_ON(n < 1 || n > c->n);
    if (n < c->n && cands_sort(c, n))
        cands_keep(c, n);
}

/* Where a sum of weights lies. Of logits it is what it is, lo == hi; the one that a short list has of all weights was made in another order.
 * All that is done with sums (products, comparisons) is monotone: what both ends say, every sum between them says. */
struct sample_sum {
    double lo, hi;
};

static struct sample_sum sum_of(double sum)
{
    return (struct sample_sum){ sum, sum };
}

/* Is value >= share * sum? */
static bool sum_is_reached(struct cands *c, double value, double share, struct sample_sum sum)
{
    bool is_reached = value >= share * sum.hi;
    c->is_unknown = c->is_unknown || is_reached != (value >= share * sum.lo);
    return is_reached;
}

/* --- filters: each takes the sum of the weights left and returns the new one --- */

static struct sample_sum sample_top_p(struct cands *c, float top_p, struct sample_sum sum)
{
    if (top_p >= 1)
        return sum;
    double kept = 0;
    for (int32_t i = 0; i < c->n && cands_sort(c, i + 1); i++) {
        kept += (double)cand_weight(c, i);
        if (sum_is_reached(c, kept, (double)top_p, sum)) {
            cands_cut(c, i + 1);
            return sum_of(kept);
        }
    }
    return sum;
}

static struct sample_sum sample_min_p(struct cands *c, float min_p, struct sample_sum sum)
{
    if (min_p <= 0)
        return sum;
    double kept = 0;
    for (int32_t i = 0; i < c->n && cands_sort(c, i + 1); i++) {
        float w = cand_weight(c, i);
        if (i > 0 && w < min_p) {
            cands_cut(c, i);
            return sum_of(kept);
        }
        kept += (double)w;
    }
    return sum;
}

/* Locally typical sampling (Meister et al. 2022): candidates by |surprise - entropy|, the least first, until typical_p is
 * reached; ties to the better logit. */
static struct sample_sum sample_typical(struct cands *c, float typical_p, struct sample_sum sums,
                                        uint64_t *alt)
{
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
            entropy -= w / sum * ((double)(cand_logit(c->keys[i]) - c->max) - log_sum);
    }
    for (int32_t i = 0; i < c->n; i++) {
        double surprise = log_sum - (double)(cand_logit(c->keys[i]) - c->max);
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

static bool sample_is_kept(const struct sample_context *ctx, int32_t id)
{
    for (int32_t i = 0; i < ctx->n_keep; i++)
        if (ctx->keep[i] == id)
            return true;
    return false;
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
    if (!cands_sort(c, c->n)) /* the rest moves up, so that the draw can go on in rank order */
        return;
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (i >= n_over - 1 || sample_is_kept(ctx, cand_id(c->keys[i])))
            c->keys[n++] = c->keys[i];
    cands_keep(c, n);
}

/* --- the choice --- */

/* A sum of all logits' weights that was made in another order lies there (tensor/shortlist.h). */
static struct sample_sum sum_listed(const struct cands *c, bool is_drawn)
{
    double sum = 0, error = c->n_vocab * 0x1p-51;
    for (int i = 0; i < SHORTLIST_PARTS; i++)
        sum += is_drawn ? c->list->parts[i].sum_t : c->list->parts[i].sum;
    return (struct sample_sum){ sum * (1 - error), sum * (1 + error) };
}

/* Draw by the weights at temperature t: the first candidate in rank order at which the running sum passes u * total. */
static int32_t sample_draw(struct sampler *s, struct cands *c, const struct sample_params *p,
                           const struct sample_context *ctx)
{
    float t = p->temperature;
    float max = c->is_cut ? cand_logit(c->keys[0]) : c->max;
    double cut = 0;
    for (int32_t i = 0; c->is_cut && i < c->n; i++)
        cut += (double)dmath_expf((cand_logit(c->keys[i]) - max) / t);
    struct sample_sum total = c->is_cut ? sum_of(cut)
                              : c->list ? sum_listed(c, true)
                                        : sum_of(sample_weigh(s, c->logits, max, t));
    double u =
        (double)philox_uniform(p->seed, (uint64_t)ctx->n_history, p->choice, SAMPLE_DRAW_TOKEN);
    double sum = 0;
    int32_t last = 0; /* rounding may leave the target just above the last sum */
    for (int32_t i = 0; i < c->n && cands_sort(c, i + 1); i++) {
        float w = dmath_expf((cand_logit(c->keys[i]) - max) / t);
        sum += (double)w;
        if (w > 0)
            last = i;
        c->is_unknown = c->is_unknown || (sum > u * total.hi) != (sum > u * total.lo);
        if (sum > u * total.hi)
            return cand_id(c->keys[i]);
    }
    return cand_id(c->keys[last]);
}

static void cands_init(struct cands *c, struct sampler *s, const float *logits, float max)
{
    *c = (struct cands){ .logits = logits,
                         .n_vocab = s->n_vocab,
                         .keys = s->keys,
                         .tmp = s->tmp,
                         .max = max,
                         .floor = INFINITY,
                         .width = SAMPLE_BAND };
    for (int32_t i = 0; i < s->n_vocab; i++)
        c->n += logits[i] != -INFINITY;
}

static bool sample_has_filters(const struct sample_params *p)
{
    return p->top_p < 1 || p->min_p > 0 || p->typical_p < 1 || p->xtc_probability > 0;
}

/* The logits as the request wants them. True: something may have changed. */
static bool sample_adjust(struct sampler *s, float *logits, const struct sample_params *p,
                          const struct sample_context *ctx)
{
    bool has_penalties =
        p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
    sample_bias(logits, p);
    if (has_penalties)
        sample_penalties(s, logits, p, ctx);
    sample_mask(logits, s->n_vocab, ctx->mask);
    return p->n_bias > 0 || has_penalties || ctx->mask;
}

/* Filters and draw; sum: of all weights at temperature 1. The id counts if nothing was unknown. */
static int32_t sample_choose(struct sampler *s, struct cands *c, struct sample_sum sum,
                             const struct sample_params *p, const struct sample_context *ctx)
{
    sum = sample_top_p(c, p->top_p, sum);
    sum = sample_min_p(c, p->min_p, sum);
    sum = sample_typical(c, p->typical_p, sum, s->alt);
    sample_xtc(c, p, ctx, sum);
    if (p->top_k > 0 && p->top_k < c->n)
        cands_cut(c, p->top_k);
    return c->is_unknown ? -1 : sample_draw(s, c, p, ctx);
}

static void sample_capture(struct cands *c, const struct sample_softmax *m, int32_t n,
                           struct engine_token *out)
{
    cands_sort(c, n);
    out->n_top = n < c->n ? n : c->n;
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top[i].id = cand_id(c->keys[i]);
        out->top[i].logprob = sample_log(m, cand_logit(c->keys[i]));
    }
}

enum err_code sample_token(struct sampler *s, float *logits, const struct sample_params *p,
                           const struct sample_context *ctx, struct engine_token *out,
                           struct err *err)
{
    int32_t best;
    bool finite; /* a bias may exclude ids */
    enum err_code code = sample_scan(s, logits, &best, err);
    if (code)
        return code;
    if (sample_adjust(s, logits, p, ctx))
        best = sample_best(s, logits, &finite);
    float max = logits[best];
    if (max == -INFINITY)
        return err_set(err, ERR_NUMERIC, "no token is left to choose from: all %d are excluded",
                       s->n_vocab);
    out->id = best;
    out->n_top = 0;
    out->logprob = 0;
    if (ctx->forced)
        out->id = *ctx->forced;
    bool is_chosen = p->temperature == 0 || ctx->forced;
    if (is_chosen && p->n_logprobs < 0)
        return ERR_OK;

    struct cands c;
    cands_init(&c, s, logits, max);
    struct sample_softmax m = { 0 };
    if (p->n_logprobs >= 0 || sample_has_filters(p))
        m = sample_softmax_of(s, logits, max);
    if (p->n_logprobs >= 0)
        sample_capture(&c, &m, p->n_logprobs, out);
    if (!is_chosen)
        out->id = sample_choose(s, &c, sum_of(m.sum), p, ctx);
    if (p->n_logprobs >= 0)
        out->logprob = sample_log(&m, logits[out->id]);
    return ERR_OK;
}

bool sample_may_be_short(const struct sample_params *p)
{
    bool has_cut = p->top_p < 1 || p->min_p > 0;
    return p->temperature > 0 && p->n_logprobs < 0 && p->n_bias == 0 &&
           p->repetition_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0 &&
           (has_cut || p->typical_p >= 1);
}

bool sample_short(struct sampler *s, const struct shortlist *list, const struct sample_params *p,
                  const struct sample_context *ctx, struct engine_token *out)
{
    BUG_ON(!sample_may_be_short(p) || ctx->mask || ctx->forced);
    struct cands c = { .list = list,
                       .n_vocab = s->n_vocab,
                       .keys = s->keys,
                       .tmp = s->tmp,
                       .n = s->n_vocab,
                       .max = list->parts[0].max,
                       .floor = INFINITY,
                       .width = SAMPLE_BAND };
    for (int i = 0; i < SHORTLIST_PARTS; i++) {
        if (list->parts[i].n < 0)
            return false;
        if (list->parts[i].floor > c.list_floor)
            c.list_floor = list->parts[i].floor;
    }
    out->id = sample_choose(s, &c, sum_listed(&c, false), p, ctx);
    out->n_top = 0;
    out->logprob = 0;
    return !c.is_unknown;
}

/* The log-softmax of logits as they are. Errors: ERR_NUMERIC. */
static enum err_code sample_plain_softmax(struct sampler *s, const float *logits,
                                          struct sample_softmax *out, struct err *err)
{
    int32_t best;
    enum err_code code = sample_scan(s, logits, &best, err);
    if (code == ERR_OK)
        *out = sample_softmax_of(s, logits, logits[best]);
    return code;
}

enum err_code sample_score(struct sampler *s, const float *logits, int32_t id, int32_t n_top,
                           struct engine_token *out, struct err *err)
{
    struct sample_softmax m;
    enum err_code code = sample_plain_softmax(s, logits, &m, err);
    if (code)
        return code;
    out->id = id;
    out->logprob = sample_log(&m, logits[id]);
    out->n_top = 0;
    if (n_top > 0) {
        struct cands c;
        cands_init(&c, s, logits, m.max);
        sample_capture(&c, &m, n_top, out);
    }
    return ERR_OK;
}

enum err_code sample_signal(struct sampler *s, const float *logits, const struct engine_signal *sig,
                            struct err *err)
{
    struct sample_softmax m;
    enum err_code code = sample_plain_softmax(s, logits, &m, err);
    if (code)
        return code;
    double minimum = (double)sig->minimum;
    memset(sig->bins, 0, (size_t)sig->n_bins * sizeof(*sig->bins));
    for (int32_t i = 0; i < s->n_vocab; i++) {
        double bin = ((double)sample_log(&m, logits[i]) - minimum) * sig->n_bins / -minimum;
        int32_t k = bin < 0 ? 0 : bin >= sig->n_bins ? sig->n_bins - 1 : (int32_t)bin;
        sig->bins[k]++;
    }
    return ERR_OK;
}
