/* Choices by sums against the contract written down plainly: sort everything, walk from the best one. t_sample_far [CASES] */
#include "base/dmath.h"
#include "base/philox.h"
#include "engine/sample_int.h"
#include "kernels/cpu/cpu_backend.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define V_MAX 9000

static int n_cases = 30000;

static uint64_t rand_state;

static uint32_t rnd(void) /* xorshift64* */
{
    rand_state ^= rand_state >> 12;
    rand_state ^= rand_state << 25;
    rand_state ^= rand_state >> 27;
    return (uint32_t)(rand_state * 0x2545F4914F6CDD1Du >> 32);
}

static float uniform(void)
{
    return (float)(rnd() >> 8) * 0x1p-24f;
}

static float normal(void)
{
    float s = -6;
    for (int i = 0; i < 12; i++)
        s += uniform();
    return s;
}

/* --- the contract --- */

struct plain {
    float logit;
    int32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct plain *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static struct plain plain[V_MAX];
static double plain_kept; /* the sum of a filter's */

static float plain_weight(int32_t i, float max, float t)
{
    return dmath_expf((plain[i].logit - max) / t);
}

static double plain_total(const float *logits, int32_t v, float max, float t)
{
    double lane[4] = { 0 };
    for (int32_t i = 0; i < v; i++)
        lane[i < v / 4 * 4 ? i % 4 : i - v / 4 * 4] += (double)dmath_expf((logits[i] - max) / t);
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

/* How many top_p leaves of n; plain_kept is theirs. */
static int32_t plain_top_p(int32_t n, float max, float top_p)
{
    double sum = plain_kept, kept = 0;
    for (int32_t i = 0; i < n; i++) {
        kept += (double)plain_weight(i, max, 1);
        if (kept >= (double)top_p * sum) {
            plain_kept = kept;
            return i + 1;
        }
    }
    return n;
}

static int32_t plain_min_p(int32_t n, float max, float min_p)
{
    double kept = 0;
    for (int32_t i = 0; i < n; i++) {
        float w = plain_weight(i, max, 1);
        if (i > 0 && w < min_p) {
            plain_kept = kept;
            return i;
        }
        kept += (double)w;
    }
    return n;
}

static float plain_odd[V_MAX]; /* how far a surprise is from the entropy */

static int by_odd(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (plain_odd[x] != plain_odd[y])
        return plain_odd[x] < plain_odd[y] ? -1 : 1;
    return by_number(a, b);
}

static int32_t plain_typical(int32_t n, float max, float typical_p)
{
    static int32_t order[V_MAX];
    double sum = plain_kept, log_sum = dmath_log(sum), entropy = 0;
    for (int32_t i = 0; i < n; i++) {
        double w = (double)plain_weight(i, max, 1);
        if (w > 0)
            entropy -= w / sum * ((double)(plain[i].logit - max) - log_sum);
    }
    for (int32_t i = 0; i < n; i++) {
        plain_odd[i] = (float)fabs(log_sum - (double)(plain[i].logit - max) - entropy);
        order[i] = i;
    }
    qsort(order, (size_t)n, sizeof(*order), by_odd);
    double kept = 0;
    int32_t m = 0;
    while (m < n && (m == 0 || kept < (double)typical_p * sum))
        kept += (double)plain_weight(order[m++], max, 1);
    qsort(order, (size_t)m, sizeof(*order), by_number);
    for (int32_t i = 0; i < m; i++)
        plain[i] = plain[order[i]];
    plain_kept = kept;
    return m;
}

static int32_t plain_xtc(int32_t n, float max, const struct sample_params *p,
                         const struct sample_context *ctx)
{
    int32_t over = 0, m = 0;
    if (p->xtc_probability <= 0 || p->xtc_threshold > 0.5f ||
        philox_uniform(p->seed, (uint64_t)ctx->n_history, p->choice, SAMPLE_DRAW_XTC) >=
            p->xtc_probability)
        return n;
    while (over < n && (double)plain_weight(over, max, 1) >= (double)p->xtc_threshold * plain_kept)
        over++;
    for (int32_t i = 0; i < n && over >= 2; i++) {
        bool is_kept = i >= over - 1;
        for (int32_t k = 0; k < ctx->n_keep; k++)
            is_kept = is_kept || plain[i].id == ctx->keep[k];
        if (is_kept)
            plain[m++] = plain[i];
    }
    return over >= 2 ? m : n;
}

/* The choice of logits [v], which biases, penalties and masks have been through. */
static int32_t plain_choose(const float *logits, int32_t v, const struct sample_params *p,
                            const struct sample_context *ctx)
{
    int32_t n = 0, last = 0;
    for (int32_t i = 0; i < v; i++)
        if (logits[i] != -INFINITY)
            plain[n++] = (struct plain){ logits[i], i };
    qsort(plain, (size_t)n, sizeof(*plain), by_rank);
    float max = plain[0].logit, t = p->temperature;
    int32_t n_all = n;
    plain_kept = plain_total(logits, v, max, 1);
    n = p->top_p < 1 ? plain_top_p(n, max, p->top_p) : n;
    n = p->min_p > 0 ? plain_min_p(n, max, p->min_p) : n;
    n = p->typical_p < 1 ? plain_typical(n, max, p->typical_p) : n;
    n = plain_xtc(n, max, p, ctx);
    n = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    double total = n < n_all ? 0 : plain_total(logits, v, max, t), run = 0;
    for (int32_t i = 0; i < n && n < n_all; i++)
        total += (double)plain_weight(i, plain[0].logit, t);
    double target =
        (double)philox_uniform(p->seed, (uint64_t)ctx->n_history, p->choice, SAMPLE_DRAW_TOKEN) *
        total;
    for (int32_t i = 0; i < n; i++) {
        float w = plain_weight(i, plain[0].logit, t);
        run += (double)w;
        last = w > 0 ? i : last;
        if (run > target)
            return plain[i].id;
    }
    return plain[last].id;
}

/* --- cases --- */

static float one_logit(int kind, int32_t i, float spread)
{
    switch (kind) {
    case 0: /* flat */
        return spread * normal();
    case 1: /* peaked */
        return 10 * spread * normal();
    case 2: /* all equal */
        return -0.0f;
    case 3: /* two values, and the better one rare */
        return rnd() % 16 ? 1 : 1 + spread;
    case 4: /* ties at a few values */
        return rintf(4 * spread * normal());
    case 5: /* far from 0: ties, too */
        return 1000 + spread * normal();
    case 6: /* some above a long tail */
        return i % 97 == 0 ? 8 + spread * normal() : 0.01f * spread * normal();
    case 7: /* of all magnitudes */
        return ldexpf(normal(), (int)(rnd() % 250) - 140);
    case 8: /* one far below */
        return i == 3 ? -1e30f : spread * normal();
    case 9: /* next to one another */
        return dmath_bits_f32(0x3F800000u + rnd() % 3);
    default: /* in order */
        return -spread * (float)i * 0.01f;
    }
}

static float logits[V_MAX], copy[V_MAX];

static int32_t make_logits(void)
{
    int kind = (int)(rnd() % 11);
    float spread = expf(4 * uniform() - 3);
    int32_t v = rnd() % 12 == 0 ? 1 + (int32_t)(rnd() % V_MAX) : 1 + (int32_t)(rnd() % 700);
    if (rnd() % 5 == 0) /* sums of equal weights meet the draw exactly */
        v = 1 << rnd() % 14;
    v = v < V_MAX ? v : V_MAX;
    for (int32_t i = 0; i < v; i++)
        logits[i] = one_logit(kind, i, spread);
    return v;
}

static struct sample_params make_params(void)
{
    static const float shares[] = { 0, 0.25f, 0.5f, 0.95f, 0.999999f };
    static const float temperatures[] = { 1, 1, 0.7f, 100, 1e-30f };
    struct sample_params p = { .temperature = 0.1f + 2 * uniform(),
                               .top_p = 1,
                               .typical_p = 1,
                               .xtc_threshold = 1,
                               .repetition_penalty = 1,
                               .n_logprobs = -1,
                               .seed = rnd(),
                               .choice = rnd() % 3 };
    if (rnd() % 3 == 0)
        p.temperature = temperatures[rnd() % ARRAY_LEN(temperatures)];
    if (rnd() % 3 == 0)
        p.top_p = rnd() % 2 ? uniform() : shares[rnd() % ARRAY_LEN(shares)];
    if (rnd() % 3 == 0)
        p.min_p = rnd() % 2 ? 0.05f : powf(uniform(), 4);
    if (rnd() % 8 == 0)
        p.typical_p = uniform();
    if (rnd() % 6 == 0) {
        p.xtc_probability = 1;
        p.xtc_threshold = 0.5f * powf(uniform(), 6);
    }
    if (rnd() % 4 == 0)
        p.top_k = 1 + (int32_t)(rnd() % (rnd() % 2 ? 60 : 3000));
    if (rnd() % 8 == 0)
        p.n_logprobs = (int32_t)(rnd() % 21);
    return p;
}

/* What a grammar and biases leave. */
static void make_limits(int32_t v, struct sample_params *p, struct sample_context *ctx)
{
    static uint32_t mask[V_MAX / 32 + 1];
    static struct logit_bias bias[8];
    static int32_t keep[3];
    if (rnd() % 5 == 0) {
        uint32_t rare = rnd() % 3;
        for (int32_t i = 0; i <= v / 32; i++)
            mask[i] = rare == 0 ? rnd() : rare == 1 ? rnd() & rnd() & rnd() : ~(rnd() & rnd());
        mask[0] |= 1;
        ctx->mask = mask;
    }
    if (rnd() % 5 == 0) {
        p->n_bias = 1 + (int32_t)(rnd() % ARRAY_LEN(bias));
        p->bias = bias;
    }
    for (int32_t i = 0; i < p->n_bias; i++)
        bias[i] =
            (struct logit_bias){ (int32_t)(rnd() % (uint32_t)v), rnd() % 3 ? 6 * normal() : -100 };
    for (size_t i = 0; i < ARRAY_LEN(keep); i++)
        keep[i] = (int32_t)(rnd() % (uint32_t)v);
    ctx->keep = keep;
    ctx->n_keep = ARRAY_LEN(keep);
}

static void every_choice_is_the_one_of_a_full_walk(void **state)
{
    struct backend *be;
    assert_int_equal(cpu_backend_open(&(struct cpu_options){ .threads = 1 }, &be, NULL), ERR_OK);
    struct sampler s;
    int n_none = 0;
    assert_int_equal(sampler_init(&s, V_MAX, NULL), ERR_OK);
    for (int n = 0; n < n_cases; n++) {
        rand_state = 0x9E3779B97F4A7C15u * ((uint64_t)n + 1);
        int32_t v = make_logits();
        struct sample_params p = make_params();
        struct sample_context ctx = { .n_history = n % 97 };
        struct engine_token token;
        struct err err;
        static const int32_t history[97];
        ctx.history = history;
        make_limits(v, &p, &ctx);
        memcpy(copy, logits, (size_t)v * sizeof(*copy));
        s.n_vocab = v; /* its space is for more */
        s.be = rnd() % 2 ? be : NULL;
        if (sample_token(&s, copy, &p, &ctx, &token, &err)) {
            n_none++; /* biases took the only id that the mask had left */
            continue;
        }
        int32_t want = plain_choose(copy, v, &p, &ctx); /* biases and masks are in it now */
        if (token.id != want)
            fail_msg("case %d of %d logits: got %d, want %d", n, v, token.id, want);
    }
    print_message("%d cases, nothing left in %d\n", n_cases, n_none);
    s.n_vocab = V_MAX;
    sampler_release(&s);
    be->ops->close(be);
}

/* --- the search itself --- */

/* The first of v candidates in order at which the running sum of weights meets the goal; v: none. *run: the sum there. */
static int32_t walk(int32_t v, const struct sample_goal *goal, double *run)
{
    *run = 0;
    for (int32_t i = 0; i < v; i++) {
        *run += (double)plain_weight(i, plain[0].logit, 1);
        if (goal->is_over ? *run > goal->target.lo : *run >= goal->target.lo)
            return i;
    }
    return v;
}

/* It finds what a walk finds, or says nothing: seldom, unless the goal is the very sum at some candidate. */
static void a_search_by_sums_finds_what_a_walk_finds(void **state)
{
    struct sampler s;
    int n_found[2] = { 0 }, n_all[2] = { 0 };
    assert_int_equal(sampler_init(&s, V_MAX, NULL), ERR_OK);
    for (int n = 0; n < n_cases / 3; n++) {
        rand_state = 0xD1B54A32D192ED03u * ((uint64_t)n + 1);
        int32_t v = s.n_vocab = make_logits();
        struct cands c;
        struct sample_sum got;
        uint64_t key;
        double run, total = sample_weigh(&s, logits, logits[sample_argmax(logits, v)], 1);
        struct sample_goal goal = { sum_of((double)uniform() * total), rnd() % 2 };
        bool is_met = rnd() % 2;
        for (int32_t i = 0; i < v; i++)
            plain[i] = (struct plain){ logits[i], i };
        qsort(plain, (size_t)v, sizeof(*plain), by_rank);
        if (is_met) {
            walk(1 + (int32_t)(rnd() % (uint32_t)v), &(struct sample_goal){ sum_of(DBL_MAX), 0 },
                 &run);
            goal.target = sum_of(run);
        }
        cands_init(&c, &s, logits, plain[0].logit, false);
        bool is_found = sample_far(&c, s.weights, &goal, &key, &got);
        int32_t at = walk(v, &goal, &run);
        n_all[is_met]++;
        n_found[is_met] += is_found;
        if (is_found &&
            (at == v || cands_key_id(key) != plain[at].id || !(got.lo <= run) || !(got.hi >= run)))
            fail_msg("case %d of %d logits: got %d at [%.17g, %.17g], want %d at %.17g", n, v,
                     cands_key_id(key), got.lo, got.hi, plain[at].id, run);
    }
    print_message("%d of %d found; %d of %d that a sum meets\n", n_found[0], n_all[0], n_found[1],
                  n_all[1]);
    assert_true(n_found[0] > n_all[0] - n_all[0] / 100);
    s.n_vocab = V_MAX;
    sampler_release(&s);
}

/* Sums of weights of one size are no matter of order: it says what they say even where they meet the target. Others are. */
static void sums_that_rounding_could_change_say_nothing(void **state)
{
    struct sampler s;
    struct cands c;
    struct sample_sum sum;
    uint64_t key;
    assert_int_equal(sampler_init(&s, 4096, NULL), ERR_OK);
    for (int32_t i = 0; i < 4096; i++)
        logits[i] = 0;
    sample_weigh(&s, logits, 0, 1);
    cands_init(&c, &s, logits, 0, false);
    struct sample_goal goal = { sum_of(3000), false };
    assert_true(sample_far(&c, s.weights, &goal, &key, &sum));
    assert_int_equal(cands_key_id(key), 2999);
    goal.is_over = true;
    assert_true(sample_far(&c, s.weights, &goal, &key, &sum));
    assert_int_equal(cands_key_id(key), 3000);
    for (int32_t i = 2000; i < 4096; i++)
        logits[i] = -30;
    double total = sample_weigh(&s, logits, 0, 1);
    cands_init(&c, &s, logits, 0, false);
    goal = (struct sample_goal){ sum_of(total), false };
    assert_false(sample_far(&c, s.weights, &goal, &key, &sum));
    goal = (struct sample_goal){ { 1999, 2000 }, false };
    assert_false(sample_far(&c, s.weights, &goal, &key, &sum));
    sampler_release(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_is_the_one_of_a_full_walk),
        cmocka_unit_test(a_search_by_sums_finds_what_a_walk_finds),
        cmocka_unit_test(sums_that_rounding_could_change_say_nothing),
    };
    if (argc > 1)
        n_cases = (int)strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("sample_far", tests, NULL, NULL);
}
