#include "base/dmath.h"
#include "base/philox.h"
#include "engine/sample.h"
#include "kernels/cpu/cpu_backend.h"
#include "support/plain_shortlist.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define V_MAX 3000

static const struct sample_params off = { .temperature = 1,
                                          .top_p = 1,
                                          .typical_p = 1,
                                          .xtc_threshold = 1,
                                          .repetition_penalty = 1,
                                          .n_logprobs = -1 };

/* Random bits of the tests: philox over a counter, so that a failing case is named by its number. */
static uint32_t bits(uint64_t n, uint32_t what)
{
    uint32_t counter[4] = { (uint32_t)n, (uint32_t)(n >> 32), what, 7 }, key[2] = { 1, 2 }, out[4];
    philox4x32(counter, key, out);
    return out[0];
}

static float uniform(uint64_t n, uint32_t what)
{
    return (float)(bits(n, what) >> 8) * 0x1p-24f;
}

static void random_logits(uint64_t n, float *l, int v)
{
    float spread = 1 + 9 * uniform(n, 1);
    for (int i = 0; i < v; i++) {
        float a = uniform(n * V_MAX + (uint64_t)i, 2) + uniform(n * V_MAX + (uint64_t)i, 3) +
                  uniform(n * V_MAX + (uint64_t)i, 4) - 1.5f;
        l[i] = spread * a;
        if (bits(n, 5) % 4 == 0)
            l[i] = rintf(l[i] * 2) / 2; /* many ties */
    }
}

static struct sampler open_sampler(int v)
{
    struct sampler s;
    struct err err;
    assert_int_equal(sampler_init(&s, v, &err), ERR_OK);
    return s;
}

static int32_t sample(struct sampler *s, const float *logits, const struct sample_params *p,
                      int32_t n_history, struct engine_token *token)
{
    static float copy[V_MAX];
    static const int32_t history[4096];
    struct err err;
    struct sample_context ctx = { .history = history, .n_history = n_history };
    memcpy(copy, logits, (size_t)s->n_vocab * sizeof(float));
    assert_int_equal(sample_token(s, copy, p, &ctx, token, &err), ERR_OK);
    return token->id;
}

/* --- the oracle: the same stages with libm, full sorts and long sums; it says how near to a border it decided --- */

struct oracle_cand {
    int32_t id;
    double logit, p;
};

static int by_rank(const void *a, const void *b)
{
    const struct oracle_cand *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

struct oracle {
    struct oracle_cand c[V_MAX];
    int n;
    double margin; /* least distance to a border of any decision */
};

static void oracle_normalise(struct oracle *o)
{
    double sum = 0;
    for (int i = 0; i < o->n; i++)
        sum += o->c[i].p;
    for (int i = 0; i < o->n; i++)
        o->c[i].p /= sum;
}

static void oracle_near(struct oracle *o, double d)
{
    if (fabs(d) < o->margin)
        o->margin = fabs(d);
}

static void oracle_top_p(struct oracle *o, double top_p)
{
    double cum = 0;
    for (int i = 0; i < o->n && top_p < 1; i++) {
        cum += o->c[i].p;
        oracle_near(o, cum - top_p);
        if (cum >= top_p)
            o->n = i + 1;
    }
    oracle_normalise(o);
}

static void oracle_min_p(struct oracle *o, double min_p)
{
    int n = 0;
    for (int i = 0; i < o->n && min_p > 0; i++) {
        oracle_near(o, (o->c[i].p / o->c[0].p - min_p) * 1e-2);
        if (i == 0 || o->c[i].p / o->c[0].p >= min_p)
            n = i + 1;
    }
    if (min_p > 0)
        o->n = n;
    oracle_normalise(o);
}

static double oracle_entropy;
static int by_typical(const void *a, const void *b)
{
    const struct oracle_cand *x = a, *y = b;
    double dx = fabs(-log(x->p) - oracle_entropy), dy = fabs(-log(y->p) - oracle_entropy);
    if (fabs(dx - dy) > 1e-9)
        return dx < dy ? -1 : 1;
    return by_rank(a, b);
}

static void oracle_typical(struct oracle *o, double typical_p)
{
    if (typical_p >= 1)
        return;
    oracle_entropy = 0;
    for (int i = 0; i < o->n; i++)
        oracle_entropy -= o->c[i].p * log(o->c[i].p);
    qsort(o->c, (size_t)o->n, sizeof(o->c[0]), by_typical);
    double cum = 0;
    for (int i = 0; i < o->n; i++) {
        cum += o->c[i].p;
        oracle_near(o, cum - typical_p);
        if (cum >= typical_p) {
            if (i + 1 < o->n &&
                o->c[i].logit !=
                    o->c[i + 1].logit) /* two candidates whose order is a matter of rounding */
                oracle_near(o, fabs(-log(o->c[i].p) - oracle_entropy) -
                                   fabs(-log(o->c[i + 1].p) - oracle_entropy));
            o->n = i + 1;
        }
    }
    qsort(o->c, (size_t)o->n, sizeof(o->c[0]), by_rank);
    oracle_normalise(o);
}

static void oracle_xtc(struct oracle *o, const struct sample_params *p, int32_t pos)
{
    if (p->xtc_probability <= 0 || p->xtc_threshold > 0.5f ||
        philox_uniform(p->seed, (uint64_t)pos, p->choice, SAMPLE_DRAW_XTC) >= p->xtc_probability)
        return;
    int over = 0;
    for (int i = 0; i < o->n; i++) {
        oracle_near(o, o->c[i].p - (double)p->xtc_threshold);
        over += o->c[i].p >= (double)p->xtc_threshold;
    }
    if (over < 2)
        return;
    memmove(o->c, o->c + over - 1, (size_t)(o->n - over + 1) * sizeof(o->c[0]));
    o->n -= over - 1;
}

static int32_t oracle_sample(struct oracle *o, const float *logits, int v,
                             const struct sample_params *p, int32_t pos)
{
    o->n = v;
    o->margin = 1;
    for (int i = 0; i < v; i++)
        o->c[i] = (struct oracle_cand){ .id = i, .logit = (double)logits[i] };
    qsort(o->c, (size_t)o->n, sizeof(o->c[0]), by_rank);
    for (int i = 0; i < v; i++)
        o->c[i].p = exp(o->c[i].logit - o->c[0].logit);
    oracle_normalise(o);
    oracle_top_p(o, (double)p->top_p);
    oracle_min_p(o, (double)p->min_p);
    oracle_typical(o, (double)p->typical_p);
    oracle_xtc(o, p, pos);
    if (p->top_k > 0 && p->top_k < o->n)
        o->n = p->top_k;
    for (int i = 0; i < o->n; i++)
        o->c[i].p = exp((o->c[i].logit - o->c[0].logit) / (double)p->temperature);
    oracle_normalise(o);
    double u = (double)philox_uniform(p->seed, (uint64_t)pos, p->choice, SAMPLE_DRAW_TOKEN);
    double cum = 0;
    for (int i = 0; i < o->n; i++) {
        cum += o->c[i].p;
        oracle_near(o, cum - u);
        if (cum > u)
            return o->c[i].id;
    }
    return o->c[o->n - 1].id;
}

static struct sample_params random_params(uint64_t n)
{
    struct sample_params p = off;
    p.seed = bits(n, 20);
    p.choice = bits(n, 21) % 3;
    p.temperature = 0.05f + 2 * uniform(n, 22);
    if (bits(n, 30) % 2)
        p.top_p = uniform(n, 23);
    if (bits(n, 31) % 2)
        p.min_p = uniform(n, 24) * 0.3f;
    if (bits(n, 32) % 3 == 0)
        p.typical_p = uniform(n, 25);
    if (bits(n, 33) % 3 == 0) {
        p.xtc_probability = uniform(n, 26);
        p.xtc_threshold = uniform(n, 27) * 0.5f;
    }
    if (bits(n, 34) % 2)
        p.top_k = 1 + (int32_t)(bits(n, 28) % 60);
    return p;
}

static void every_mix_of_filters_agrees_with_full_sorts(void **state)
{
    static struct oracle o;
    static float logits[V_MAX];
    int n_near = 0, n_cases = 3000;
    for (int n = 0; n < n_cases; n++) {
        int v = n % 10 == 0 ? V_MAX : 2 + (int)(bits((uint64_t)n, 6) % 400);
        struct sampler s = open_sampler(v);
        struct sample_params p = random_params((uint64_t)n);
        struct engine_token token;
        random_logits((uint64_t)n, logits, v);
        int32_t want = oracle_sample(&o, logits, v, &p, n % 97);
        int32_t got = sample(&s, logits, &p, n % 97, &token);
        if (o.margin < 2e-6)
            n_near++;
        else if (got != want)
            fail_msg("case %d: got %d, want %d (margin %g)", n, got, want, o.margin);
        sampler_release(&s);
    }
    assert_in_range(n_near, 0, n_cases / 20);
}

/* With the sampling ops of a backend the same is chosen, to the bit of every probability. */
static void a_backends_ops_change_nothing(void **state)
{
    static float logits[V_MAX];
    struct backend *be;
    assert_int_equal(cpu_backend_open(&(struct cpu_options){ .threads = 2 }, &be, NULL), ERR_OK);
    for (int n = 0; n < 600; n++) {
        int v = n % 3 == 0 ? V_MAX : 2 + (int)(bits((uint64_t)n, 6) % 400);
        struct sampler s = open_sampler(v);
        struct sample_params p = random_params((uint64_t)n);
        struct engine_token want, got;
        p.n_logprobs = n % 2 ? 5 : -1;
        random_logits((uint64_t)n, logits, v);
        sample(&s, logits, &p, n % 97, &want);
        s.be = be;
        sample(&s, logits, &p, n % 97, &got);
        assert_int_equal(got.id, want.id);
        assert_int_equal(got.n_top, want.n_top);
        assert_memory_equal(&got.logprob, &want.logprob, sizeof(want.logprob));
        assert_memory_equal(got.top, want.top, sizeof(want.top[0]) * (size_t)want.n_top);
        sampler_release(&s);
    }
    be->ops->close(be);
}

/* Logits that are likelier to be of use: peaked, flat, ties at one value, at a few, with -0, all of them far from 0. */
static void odd_logits(uint64_t n, float *l, int v)
{
    random_logits(n, l, v);
    for (int i = 0; i < v; i++)
        switch (n % 8) {
        case 1:
            l[i] = i == v / 3 ? 30 : l[i] - 5;
            break;
        case 2:
            l[i] *= 0.02f;
            break;
        case 3:
            l[i] = i % 5 ? -0.0f : 0.0f;
            break;
        case 4:
            l[i] = (float)(bits(n * V_MAX + (uint64_t)i, 60) % 3);
            break;
        case 5:
            l[i] = l[i] * 8 - 1000;
            break;
        case 6:
            l[i] = -1e30f * uniform(n * V_MAX + (uint64_t)i, 61);
            break;
        default:
            break;
        }
}

static struct sample_params short_params(uint64_t n)
{
    struct sample_params p = random_params(n);
    if (n % 3 == 0) { /* what most requests have */
        p.typical_p = 1;
        p.xtc_probability = 0;
    }
    if (n % 5 == 0)
        p = (struct sample_params){ .seed = p.seed,
                                    .temperature = p.temperature,
                                    .top_p = 1,
                                    .typical_p = 1,
                                    .xtc_threshold = 1,
                                    .repetition_penalty = 1,
                                    .n_logprobs = -1 };
    if (n % 7 == 0)
        p.top_p = (float[]){ 0, 0.25f, 0.5f, 0.999999f }[n / 7 % 4];
    if (n % 11 == 0)
        p.temperature = (float[]){ 1, 1e-30f, 100 }[n / 11 % 3];
    if (!(p.top_p < 1) && !(p.min_p > 0))
        p.typical_p = 1;
    return p;
}

/* Whatever a short list says is what all logits say; and it says most of what is asked of it. */
static void a_short_list_says_what_all_logits_say(void **state)
{
    enum { N = 8000, V = 40000 };
    static float large[V], small[V_MAX];
    static struct shortlist list;
    int n_small = 0, n_said = 0, n_large = 0, n_large_said = 0;
    for (int n = 0; n < N; n++) {
        bool is_large = n % 80 == 0;
        int v = is_large ? V : n % 10 == 0 ? V_MAX : 1 + (int)(bits((uint64_t)n, 6) % 2500);
        float *logits = is_large ? large : small;
        struct sampler s = open_sampler(v);
        struct sample_params p = short_params((uint64_t)n);
        struct sample_context ctx = { .n_history = n % 97 };
        struct engine_token want, got = { 0 };
        struct err err;
        for (int at = 0; at < v; at += V_MAX)
            odd_logits((uint64_t)n, logits + at, v - at < V_MAX ? v - at : V_MAX);
        if (is_large) /* no copies of a few values */
            for (int i = 0; i < v; i++)
                logits[i] += uniform((uint64_t)i, 62);
        plain_shortlist(&list, logits, v, p.temperature);
        assert_true(sample_may_be_short(&p));
        bool is_said = sample_short(&s, &list, &p, &ctx, &got);
        assert_int_equal(sample_token(&s, logits, &p, &ctx, &want, &err), ERR_OK);
        if (is_said && (got.id != want.id || got.n_top != want.n_top || got.logprob != 0))
            fail_msg("case %d: got %d, want %d", n, got.id, want.id);
        *(is_large ? &n_large : &n_small) += 1;
        *(is_large ? &n_large_said : &n_said) += is_said;
        sampler_release(&s);
    }
    print_message("short lists: %d of %d small ones, %d of %d large ones said it\n", n_said,
                  n_small, n_large_said, n_large);
    assert_true(n_said > n_small * 8 / 10 && n_large_said > n_large / 2);
}

/* A sum that is right to the last bit would tell more than the list may know: where its neighbours choose otherwise it says nothing. */
static void a_short_list_is_silent_where_its_sums_could_decide(void **state)
{
    static struct shortlist list;
    struct sampler s = open_sampler(2);
    struct sample_params p = off;
    struct sample_context ctx = { 0 };
    struct engine_token token;
    p.top_p = 0.5f; /* half of two equal ones: 1 >= 0.5 * 2, and not of a little more */
    plain_shortlist(&list, (float[]){ 3, 3 }, 2, 1);
    assert_false(sample_short(&s, &list, &p, &ctx, &token));
    p.top_p = 0.25f;
    assert_true(sample_short(&s, &list, &p, &ctx, &token));
    assert_int_equal(token.id, 0);
    sampler_release(&s);
}

static void a_short_list_of_what_is_not_finite_or_all_equal_says_nothing(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY, 0 };
    static struct shortlist list;
    static float logits[20000];
    struct sampler s = open_sampler(20000);
    struct sample_context ctx = { 0 };
    struct engine_token token;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        logits[777] = bad[i];
        plain_shortlist(&list, logits, 20000, 1);
        assert_false(sample_short(&s, &list, &off, &ctx, &token));
    }
    sampler_release(&s);
}

static void only_plain_draws_may_be_short(void **state)
{
    struct sample_params p = off;
    assert_true(sample_may_be_short(&p));
    p.n_logprobs = 0;
    assert_false(sample_may_be_short(&p));
    p = off;
    p.temperature = 0;
    assert_false(sample_may_be_short(&p));
    p = off;
    p.presence_penalty = 0.1f;
    assert_false(sample_may_be_short(&p));
    p = off;
    p.n_bias = 1;
    assert_false(sample_may_be_short(&p));
    p = off;
    p.typical_p = 0.9f;
    assert_false(sample_may_be_short(&p));
    p.min_p = 0.05f;
    assert_true(sample_may_be_short(&p));
}

static void greedy_takes_the_lowest_of_equal_ids(void **state)
{
    struct sampler s = open_sampler(6);
    struct engine_token token;
    struct sample_params p = off;
    p.temperature = 0;
    assert_int_equal(sample(&s, (float[]){ 1, 3, -2, 3, 3, 0 }, &p, 0, &token), 1);
    assert_int_equal(sample(&s, (float[]){ -0.0f, 0.0f, -1, -1, -1, -1 }, &p, 0, &token), 0);
    assert_int_equal(sample(&s, (float[]){ -5, -5, -5, -5, -5, -4 }, &p, 0, &token), 5);
    sampler_release(&s);
}

static void the_draw_follows_the_distribution(void **state)
{
    static const float logits[] = { 0, 1, 2, -1, 0.5f };
    enum { N = 40000 };
    struct sampler s = open_sampler(5);
    struct sample_params p = off;
    struct engine_token token;
    p.temperature = 0.8f;
    int count[5] = { 0 };
    double sum = 0;
    for (int i = 0; i < N; i++) {
        p.seed = 1000 + (uint64_t)i;
        count[sample(&s, logits, &p, i % 11, &token)]++;
    }
    for (int i = 0; i < 5; i++)
        sum += exp((double)logits[i] / 0.8);
    for (int i = 0; i < 5; i++) {
        double want = N * exp((double)logits[i] / 0.8) / sum;
        double sigma = sqrt(want);
        if (fabs(count[i] - want) > 5 * sigma)
            fail_msg("id %d: %d draws, want %.0f", i, count[i], want);
    }
    sampler_release(&s);
}

static void position_choice_and_seed_change_the_draw_and_nothing_else(void **state)
{
    static float logits[200];
    struct sampler s = open_sampler(200);
    struct engine_token token;
    struct sample_params p = off;
    random_logits(3, logits, 200);
    p.seed = 5;
    int32_t base[20], n_pos = 0, n_choice = 0, n_seed = 0;
    for (int i = 0; i < 20; i++)
        base[i] = sample(&s, logits, &p, i, &token);
    for (int i = 0; i < 20; i++) {
        struct sample_params q = p;
        assert_int_equal(sample(&s, logits, &p, i, &token), base[i]); /* no state between calls */
        n_pos += base[i] != base[0];
        q.choice = 1;
        n_choice += sample(&s, logits, &q, i, &token) != base[i];
        q = p;
        q.seed = (uint64_t)5 << 32;
        n_seed += sample(&s, logits, &q, i, &token) != base[i];
    }
    assert_in_range(n_pos, 5, 20);
    assert_in_range(n_choice, 5, 20);
    assert_in_range(n_seed, 5, 20);
    sampler_release(&s);
}

static void empty_filters_keep_one(void **state)
{
    static const float logits[] = { 0, 3, 2.9f, -1 };
    struct sampler s = open_sampler(4);
    struct engine_token token;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct sample_params p = off;
        p.seed = seed;
        p.top_p = 0;
        assert_int_equal(sample(&s, logits, &p, 0, &token), 1);
        p = off;
        p.seed = seed;
        p.min_p = 1;
        assert_int_equal(sample(&s, logits, &p, 0, &token), 1);
        p = off;
        p.seed = seed;
        p.top_k = 1;
        assert_int_equal(sample(&s, logits, &p, 0, &token), 1);
        p = off;
        p.seed = seed;
        p.typical_p = 0;
        int32_t id = sample(&s, logits, &p, 0, &token);
        assert_true(id == 1 || id == 2); /* the one nearest to the entropy */
    }
    sampler_release(&s);
}

static void a_tiny_temperature_is_greedy_and_a_large_one_is_flat(void **state)
{
    static const float logits[] = { 1, 2, 60, 59.99f };
    struct sampler s = open_sampler(4);
    struct engine_token token;
    struct sample_params p = off;
    int seen[4] = { 0 };
    for (uint64_t seed = 0; seed < 400; seed++) {
        p.seed = seed;
        p.temperature = 1e-6f;
        assert_int_equal(sample(&s, logits, &p, 0, &token), 2);
        p.temperature = 1e-30f;
        assert_int_equal(sample(&s, logits, &p, 0, &token), 2);
        p.temperature = 100;
        seen[sample(&s, logits, &p, 0, &token)]++;
    }
    for (int i = 0; i < 4; i++)
        assert_in_range(seen[i], 40, 200);
    sampler_release(&s);
}

static void xtc_spares_end_ids_and_newlines(void **state)
{
    static const float logits[] = { 5, 4.9f, 4.8f, 4.7f, -9 };
    static const int32_t keep[] = { 1 };
    struct sampler s = open_sampler(5);
    struct sample_params p = off;
    struct sample_context ctx = { .keep = keep, .n_keep = 1 };
    p.xtc_probability = 1;
    p.xtc_threshold = 0.1f;
    int seen[5] = { 0 };
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct engine_token token;
        struct err err;
        float copy[5];
        memcpy(copy, logits, sizeof(copy));
        p.seed = seed;
        assert_int_equal(sample_token(&s, copy, &p, &ctx, &token, &err), ERR_OK);
        seen[token.id]++;
    }
    assert_int_equal(seen[0], 0);
    assert_int_equal(seen[2], 0);
    assert_in_range(seen[1], 50, 150);
    assert_in_range(seen[3], 50, 150);
    p.xtc_threshold = 0.51f; /* off */
    p.seed = 0;
    struct engine_token token;
    int n_first = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        p.seed = seed;
        n_first += sample(&s, logits, &p, 0, &token) == 0;
    }
    assert_in_range(n_first, 20, 120);
    sampler_release(&s);
}

static void penalties_follow_the_history_window(void **state)
{
    static const int32_t history[] = { 4, 1, 1, 2, 2, 2 };
    struct sampler s = open_sampler(6);
    struct engine_token token;
    struct err err;
    struct sample_params p = off;
    p.temperature = 0;
    p.n_logprobs = 6;
    p.repetition_penalty = 2;
    p.frequency_penalty = 0.25f;
    p.presence_penalty = 0.5f;
    for (int last_n = 0; last_n < 2; last_n++) {
        float l[] = { 1, 2, -3, 0.5f, 4, -1 };
        p.penalty_last_n = last_n ? 4 : 0; /* whole, then the last four: 1 2 2 2 */
        struct sample_context ctx = { .history = history, .n_history = 6 };
        assert_int_equal(sample_token(&s, l, &p, &ctx, &token, &err), ERR_OK);
        float want[] = {
            1,    2 / 2.0f - (last_n ? 1 : 2) * 0.25f - 0.5f, -3 * 2.0f - 3 * 0.25f - 0.5f,
            0.5f, last_n ? 4 : 4 / 2.0f - 0.25f - 0.5f,       -1
        };
        assert_memory_equal(l, want, sizeof(want));
    }
    for (int i = 0; i < 6; i++)
        assert_int_equal(s.counts[i], 0);
    sampler_release(&s);
}

static void bias_bans_and_lifts(void **state)
{
    static const struct logit_bias bias[] = { { 1, -100 }, { 2, 50 }, { 3, -200 } };
    struct sampler s = open_sampler(4);
    struct engine_token token;
    struct sample_params p = off;
    p.bias = bias;
    p.n_bias = 3;
    p.n_logprobs = 4;
    for (uint64_t seed = 0; seed < 100; seed++) {
        p.seed = seed;
        int32_t id = sample(&s, (float[]){ 45, 90, 0, 90 }, &p, 0, &token);
        assert_true(id == 0 || id == 2);
        assert_int_equal(token.n_top,
                         2); /* banned tokens are no alternatives: logprobs are finite */
        assert_int_equal(token.top[0].id, 2);
    }
    sampler_release(&s);
}

static void a_mask_leaves_what_the_grammar_allows(void **state)
{
    struct sampler s = open_sampler(40);
    struct engine_token token;
    struct err err;
    uint32_t mask[2] = { 0x80000000u, 0x2 };
    struct sample_params p = off;
    struct sample_context ctx = { .mask = mask };
    for (uint64_t seed = 0; seed < 50; seed++) {
        float l[40];
        random_logits(seed, l, 40);
        p.seed = seed;
        assert_int_equal(sample_token(&s, l, &p, &ctx, &token, &err), ERR_OK);
        assert_true(token.id == 31 || token.id == 33);
    }
    mask[0] = mask[1] = 0;
    float l[40] = { 0 };
    assert_int_equal(sample_token(&s, l, &p, &ctx, &token, &err), ERR_NUMERIC);
    assert_non_null(strstr(err.text, "no token is left"));
    sampler_release(&s);
}

static void logprobs_are_the_log_softmax_before_the_filters(void **state)
{
    static float logits[V_MAX];
    for (uint64_t n = 0; n < 60; n++) {
        int v = 3 + (int)(bits(n, 9) % 2000);
        struct sampler s = open_sampler(v);
        struct sample_params p = random_params(n);
        struct engine_token token;
        p.n_logprobs = (int32_t)(n % 21);
        random_logits(n, logits, v);
        sample(&s, logits, &p, 1, &token);
        static struct oracle o;
        o.n = v;
        double sum = 0;
        for (int i = 0; i < v; i++) {
            o.c[i] = (struct oracle_cand){ .id = i, .logit = (double)logits[i] };
            sum += exp((double)logits[i]);
        }
        qsort(o.c, (size_t)v, sizeof(o.c[0]), by_rank);
        assert_true(fabs((double)logits[token.id] - log(sum) - (double)token.logprob) < 2e-5);
        assert_int_equal(token.n_top, p.n_logprobs < v ? p.n_logprobs : v);
        for (int i = 0; i < token.n_top; i++) {
            assert_int_equal(token.top[i].id, o.c[i].id);
            assert_true(fabs(o.c[i].logit - log(sum) - (double)token.top[i].logprob) < 2e-5);
        }
        float again = sample_logprob(&s, logits, token.id);
        assert_memory_equal(&again, &token.logprob, sizeof(again));
        sampler_release(&s);
    }
}

/* The choice depends on the logits alone, not on which id carries them, as long as ids keep their order among ties. */
static void renaming_the_ids_renames_the_choice(void **state)
{
    static float logits[500], moved[500];
    for (uint64_t n = 0; n < 200; n++) {
        struct sampler s = open_sampler(500);
        struct sample_params p = random_params(n);
        struct engine_token token;
        random_logits(n * 4 + 1, logits, 500);
        int perm[500];
        for (int i = 0; i < 500; i++)
            perm[i] = i;
        for (int i = 499; i > 0; i--) {
            int j = (int)(bits(n * 500 + (uint64_t)i, 40) % (uint32_t)(i + 1)), t = perm[i];
            perm[i] = perm[j];
            perm[j] = t;
        }
        bool has_ties = false;
        for (int i = 0; i < 500; i++) {
            moved[perm[i]] = logits[i];
            for (int j = 0; j < i; j++)
                has_ties = has_ties || logits[i] == logits[j];
        }
        static struct oracle o;
        oracle_sample(&o, logits, 500, &p, 3);
        if (!has_ties && o.margin > 2e-6) /* sums in id order differ in their last bits */
            assert_int_equal(perm[sample(&s, logits, &p, 3, &token)],
                             sample(&s, moved, &p, 3, &token));
        sampler_release(&s);
    }
}

static void non_finite_logits_are_an_error_that_names_the_token(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    struct sampler s = open_sampler(7);
    struct engine_token token;
    struct err err;
    struct sample_context ctx = { 0 };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        float l[7] = { 0 };
        l[5] = bad[i];
        assert_int_equal(sample_token(&s, l, &off, &ctx, &token, &err), ERR_NUMERIC);
        assert_non_null(strstr(err.text, "token 5"));
    }
    sampler_release(&s);
}

static void parameters_out_of_range_are_named(void **state)
{
    struct err err;
    struct sample_params p = off;
    assert_int_equal(sample_params_check(&p, 10, &err), ERR_OK);
    p.temperature = NAN;
    assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "temperature"));
    p = off;
    p.top_p = 1.5f;
    assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "top_p"));
    p = off;
    p.n_logprobs = 21;
    assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
    const struct logit_bias bias = { 10, 1 };
    p = off;
    p.bias = &bias;
    p.n_bias = 1;
    assert_int_equal(sample_params_check(&p, 10, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "token id 10"));
}

static void every_allocation_failure_is_an_error(void **state)
{
    for (int n = 1; n <= 5; n++) {
        struct sampler s;
        struct err err;
        int64_t before = mem_bytes(MEM_CAT_SCRATCH);
        mem_fail_nth(n);
        assert_int_equal(sampler_init(&s, 100, &err), ERR_NOMEM);
        mem_fail_nth(0);
        assert_int_equal(mem_bytes(MEM_CAT_SCRATCH), before);
    }
}

static void own_exp_and_log_are_near_the_exact_ones(void **state)
{
    double worst_exp = 0, worst_log = 0, worst_pow = 0;
    float worst_f = 0;
    for (uint64_t n = 0; n < 200000; n++) {
        double x = ((double)uniform(n, 50) - 0.5) * 1400;
        double e = fabs(dmath_exp(x) - exp(x)) / exp(x);
        worst_exp = e > worst_exp ? e : worst_exp;
        double y = exp(((double)uniform(n, 51) - 0.5) * (n % 2 ? 1400 : 2));
        double l = log(y) == 0 ? 0 : fabs(dmath_log(y) - log(y)) / fabs(log(y));
        worst_log = l > worst_log ? l : worst_log;
        double base = 10000 * (1 + 100 * (double)uniform(n, 52)), at = -(double)uniform(n, 53);
        double q = fabs(dmath_pow(base, at) - pow(base, at)) / pow(base, at);
        worst_pow = q > worst_pow ? q : worst_pow;
        float f = -87 * uniform(n, 54);
        float d = fabsf(dmath_expf(f) - (float)exp((double)f)) / (float)exp((double)f);
        worst_f = d > worst_f ? d : worst_f;
    }
    assert_true(worst_exp < 4.5e-16);
    assert_true(worst_log < 4.5e-16);
    assert_true(worst_pow < 1e-14);
    assert_true(worst_f < 2.4e-7f);
    assert_true(dmath_exp(0) == 1 && dmath_log(1) == 0 && dmath_expf(0) == 1);
    assert_true(dmath_expf(-INFINITY) == 0 && dmath_expf(-200) == 0 && dmath_exp(-800) == 0);
    assert_true(isinf(dmath_exp(800)) && isnan(dmath_exp(NAN)) && isnan(dmath_log(-1)));
    assert_true(isinf(dmath_log(0)) && dmath_log(0) < 0 && isinf(dmath_log(INFINITY)));
    assert_true(fabs(dmath_log(0x1p-1070) - log(0x1p-1070)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mix_of_filters_agrees_with_full_sorts),
        cmocka_unit_test(a_backends_ops_change_nothing),
        cmocka_unit_test(a_short_list_says_what_all_logits_say),
        cmocka_unit_test(a_short_list_is_silent_where_its_sums_could_decide),
        cmocka_unit_test(a_short_list_of_what_is_not_finite_or_all_equal_says_nothing),
        cmocka_unit_test(only_plain_draws_may_be_short),
        cmocka_unit_test(greedy_takes_the_lowest_of_equal_ids),
        cmocka_unit_test(the_draw_follows_the_distribution),
        cmocka_unit_test(position_choice_and_seed_change_the_draw_and_nothing_else),
        cmocka_unit_test(empty_filters_keep_one),
        cmocka_unit_test(a_tiny_temperature_is_greedy_and_a_large_one_is_flat),
        cmocka_unit_test(xtc_spares_end_ids_and_newlines),
        cmocka_unit_test(penalties_follow_the_history_window),
        cmocka_unit_test(bias_bans_and_lifts),
        cmocka_unit_test(a_mask_leaves_what_the_grammar_allows),
        cmocka_unit_test(logprobs_are_the_log_softmax_before_the_filters),
        cmocka_unit_test(renaming_the_ids_renames_the_choice),
        cmocka_unit_test(non_finite_logits_are_an_error_that_names_the_token),
        cmocka_unit_test(parameters_out_of_range_are_named),
        cmocka_unit_test(every_allocation_failure_is_an_error),
        cmocka_unit_test(own_exp_and_log_are_near_the_exact_ones),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
