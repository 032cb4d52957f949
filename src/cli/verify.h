/* verify.h - what `plumb verify` measures: a model op by op against the reference backend, and its distributions against those of a
 * reference model. */
#ifndef PLUMB_CLI_VERIFY_H
#define PLUMB_CLI_VERIFY_H

#include "cli/kld_file.h"
#include "cli/score.h"
#include "tensor/compare.h"
#include "json/json.h"

/* A text of about 700 tokens: prose, code, numbers, several scripts. */
extern const char verify_text[];

/* --- op by op --- */

/* Run ids [n] through a model whose backend compares or traces (tensor/compare.h), as one sequence: half of them in one step, then
 * seven a step, the last four one by one, so that the kernels for many, few and single rows have their turn; and the sampler's ops on each
 * logits row. n >= 1. n_steps: out.
 * Errors: ERR_NOMEM; ERR_NUMERIC - a row failed. */
enum err_code verify_run_ops(struct model *m, enum dtype cache_type, const int32_t *ids, int32_t n,
                             int32_t *n_steps, struct err *err) MUST_CHECK;

/* Ops that differ; 0 = every bit is the oracle's. */
int verify_n_different(const struct backend *be);

/* The results as a table, and where each op that differs did so first. */
void verify_print_ops(const struct backend *be, struct buf *out);
/* The same as members "ops" and "is_equal" of an open object. */
void verify_write_ops(const struct backend *be, struct json_writer *w);

/* --- distributions --- */

struct verify_options {
    struct runner *runner;           /* the model's */
    struct runner *reference;        /* or NULL */
    struct kld_file *reference_file; /* or NULL */
    struct kld_file *save;           /* the model's log probabilities go here; or NULL */
    int32_t bos;                     /* see score_options */
};

struct verify_divergence {
    int64_t n;                                          /* positions */
    double kl_mean, kl_error, kl_median, kl_99, kl_max; /* KL(reference || model), nats */
    double same_top; /* share of positions with the same likeliest token */
    double perplexity, reference_perplexity;
};

/* Score n_windows windows of `window` ids each. The kl and reference fields of out are 0 without a reference.
 * Errors: ERR_INVALID - vocabularies of two sizes; ERR_NUMERIC, ERR_NOMEM; those of the files. */
enum err_code verify_score(const struct verify_options *o, const int32_t *ids, int32_t window,
                           int32_t n_windows, struct verify_divergence *out,
                           struct err *err) MUST_CHECK;

#endif
