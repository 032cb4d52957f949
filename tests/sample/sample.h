/* sample.h - what a choice costs, and how often a GPU's short list is enough for it: by made logits and by a model's of a text. */
#ifndef PLUMB_TESTS_SAMPLE_SAMPLE_H
#define PLUMB_TESTS_SAMPLE_SAMPLE_H

#include "base/err.h"
#include "engine/sample.h"

/* Parameters that people use. */
struct sample_case {
    const char *name;
    float temperature, top_p, min_p;
    int32_t top_k;
    float xtc_threshold; /* with a probability of a half; 0 = off */
};
extern const struct sample_case sample_cases[];
extern const int sample_n_cases;

struct sample_params sample_case_params(const struct sample_case *c, float temperature);

/* Time choices on rows of logits [n][n_vocab]: the mean and the worst row, each row's best of some, and a digest of the ids. */
void sample_time(const char *name, const float *logits, int32_t n, int32_t n_vocab);

/* Of a position's logits [n_vocab]: does its list say what comes at each of some temperatures, with each case's filters? */
struct sample_lists;
struct sample_lists *sample_lists_new(int32_t n_vocab);
void sample_lists_take(struct sample_lists *l, float *logits);
void sample_lists_print(const struct sample_lists *l, const char *name);
void sample_lists_free(struct sample_lists *l);

#endif
