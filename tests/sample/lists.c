/* lists.c - how often a short list says what comes. */
#include "sample.h"
#include "support/plain_shortlist.h"

#include <stdio.h>

static const float temperatures[] = { 0.7f, 1, 1.3f };

/* Those of sample_cases at temperature 1 stand for the filters. */
struct sample_lists {
    struct sampler s;
    int32_t n; /* positions */
    int32_t n_said[32][ARRAY_LEN(temperatures)];
};

struct sample_lists *sample_lists_new(int32_t n_vocab)
{
    struct sample_lists *l = mem_alloc(MEM_CAT_SCRATCH, sizeof(*l));
    *l = (struct sample_lists){ 0 };
    BUG_ON(sampler_init(&l->s, n_vocab, NULL) || sample_n_cases > (int)ARRAY_LEN(l->n_said));
    return l;
}

void sample_lists_take(struct sample_lists *l, float *logits)
{
    static struct shortlist list;
    struct sample_context ctx = { .n_history = l->n++ };
    struct engine_token token;
    for (size_t t = 0; t < ARRAY_LEN(temperatures); t++) {
        plain_shortlist(&list, logits, l->s.n_vocab, temperatures[t]);
        for (int c = 0; c < sample_n_cases; c++) {
            struct sample_params p = sample_case_params(&sample_cases[c], temperatures[t]);
            if (sample_cases[c].temperature < 1)
                continue;
            l->n_said[c][t] += sample_short(&l->s, &list, &p, &ctx, &token);
        }
    }
}

void sample_lists_print(const struct sample_lists *l, const char *name)
{
    for (int c = 0; c < sample_n_cases; c++) {
        if (sample_cases[c].temperature < 1)
            continue;
        printf("%s, %d positions, %s:", name, l->n, sample_cases[c].name);
        for (size_t t = 0; t < ARRAY_LEN(temperatures); t++)
            printf("  t %.1f %.2f %% missed", (double)temperatures[t],
                   100.0 * (l->n - l->n_said[c][t]) / l->n);
        printf("\n");
    }
}

void sample_lists_free(struct sample_lists *l)
{
    sampler_release(&l->s);
    mem_free(MEM_CAT_SCRATCH, l);
}
