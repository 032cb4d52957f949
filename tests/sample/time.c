/* time.c - microseconds of a choice. */
#include "sample.h"

#include "kernels/cpu/cpu_backend.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const struct sample_case sample_cases[] = {
    { "t 1", 1, 1, 0, 0, 0 },
    { "t 0.7", 0.7f, 1, 0, 0, 0 },
    { "t 1 top_p 0.95", 1, 0.95f, 0, 0, 0 },
    { "t 0.7 top_p 0.95", 0.7f, 0.95f, 0, 0, 0 },
    { "t 1 min_p 0.05", 1, 1, 0.05f, 0, 0 },
    { "t 0.7 min_p 0.05", 0.7f, 1, 0.05f, 0, 0 },
    { "t 1 top_k 40", 1, 1, 0, 40, 0 },
    { "t 1 xtc 0.5 0.1", 1, 1, 0, 0, 0.1f },
};
const int sample_n_cases = ARRAY_LEN(sample_cases);

struct sample_params sample_case_params(const struct sample_case *c, float temperature)
{
    return (struct sample_params){ .temperature = temperature,
                                   .top_p = c->top_p,
                                   .min_p = c->min_p,
                                   .top_k = c->top_k,
                                   .typical_p = 1,
                                   .xtc_probability = c->xtc_threshold > 0 ? 0.5f : 0,
                                   .xtc_threshold = c->xtc_threshold,
                                   .repetition_penalty = 1,
                                   .n_logprobs = -1 };
}

static double now_us(void) /* of this thread alone: what others do on the machine counts little */
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The best of 5. */
static double time_one(struct sampler *s, const float *logits, float *copy,
                       const struct sample_params *p, int32_t pos, int32_t *id)
{
    double best = 1e30;
    struct sample_context ctx = { .n_history = pos };
    struct engine_token token;
    for (int k = 0; k < 5; k++) {
        memcpy(copy, logits, (size_t)s->n_vocab * sizeof(*copy));
        double t = now_us();
        BUG_ON(sample_token(s, copy, p, &ctx, &token, NULL));
        t = now_us() - t;
        best = t < best ? t : best;
    }
    *id = token.id;
    return best;
}

void sample_time(const char *name, const float *logits, int32_t n, int32_t n_vocab)
{
    struct sampler s;
    float *copy = mem_try_big(MEM_CAT_SCRATCH, (size_t)n_vocab * sizeof(*copy));
    BUG_ON(!copy || sampler_init(&s, n_vocab, NULL));
    BUG_ON(cpu_backend_open(&(struct cpu_options){ .threads = 1 }, &s.be, NULL));
    for (int c = 0; c < sample_n_cases; c++) {
        const struct sample_case *k = &sample_cases[c];
        struct sample_params p = sample_case_params(k, k->temperature);
        double sum = 0, worst = 0;
        uint64_t digest = 14695981039346656037u;
        for (int32_t i = 0; i < n; i++) {
            int32_t id;
            double us = time_one(&s, logits + (int64_t)i * n_vocab, copy, &p, i, &id);
            sum += us;
            worst = us > worst ? us : worst;
            digest = (digest ^ (uint32_t)id) * 1099511628211u;
        }
        printf("%-22s %-18s %8.1f us, worst %8.1f  (%08x)\n", name, k->name, sum / n, worst,
               (uint32_t)(digest ^ digest >> 32));
    }
    fflush(stdout);
    s.be->ops->close(s.be);
    sampler_release(&s);
    mem_free_big(MEM_CAT_SCRATCH, copy, (size_t)n_vocab * sizeof(*copy));
}
