#include "base/dmath.h"
#include "engine/sample_int.h"

#include <math.h>

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

double sample_add(const struct sampler *s)
{
    double lane[4] = { 0 };
    int32_t i = 0, n = s->n_vocab;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            lane[j] += (double)s->weights[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += (double)s->weights[i];
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

double sample_weigh(const struct sampler *s, const float *logits, float max, float t)
{
    float *weights = s->weights;
    int32_t n = s->n_vocab;
    if (s->be && s->be->ops->exp_scaled)
        s->be->ops->exp_scaled(s->be, weights, logits, n, max, t);
    else
        for (int32_t i = 0; i < n; i++)
            weights[i] = dmath_expf((logits[i] - max) / t);
    return sample_add(s);
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

static void sample_capture(struct cands *c, const struct sample_softmax *m, int32_t n,
                           struct engine_token *out)
{
    cands_sort(c, n);
    out->n_top = n < c->n ? n : c->n;
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top[i].id = cands_key_id(c->keys[i]);
        out->top[i].logprob = sample_log(m, cands_key_logit(c->keys[i]));
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
    bool is_adjusted = sample_adjust(s, logits, p, ctx);
    if (is_adjusted)
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
    struct sample_softmax m = { 0 };
    cands_init(&c, s, logits, max, is_adjusted);
    if (p->n_logprobs >= 0 || sample_has_filters(p))
        m = sample_softmax_of(s, logits, max);
    if (p->n_logprobs >= 0)
        sample_capture(&c, &m, p->n_logprobs, out);
    c.is_summed = true;
    if (!is_chosen)
        out->id = sample_choose(s, &c, sum_of(m.sum), p, ctx);
    if (c.is_unknown) { /* sums left it open: all in order, then */
        cands_init(&c, s, logits, max, is_adjusted);
        out->id = sample_choose(s, &c, sum_of(m.sum), p, ctx);
    }
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
    struct cands c;
    for (int i = 0; i < SHORTLIST_PARTS; i++)
        if (list->parts[i].n < 0)
            return false;
    cands_init_list(&c, s, list);
    out->id = sample_choose(s, &c, sample_sum_listed(&c, false), p, ctx);
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
        cands_init(&c, s, logits, m.max, true);
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
