/* bench.h - what `plumb bench` measures, one round at a time.
 *
 * Owns: a runner with one sequence for each depth (filled once, gone back to after each measurement) and one for each row of the
 * widest step. Does not know: flags, output. Thread: one. */
#ifndef PLUMB_CLI_BENCH_H
#define PLUMB_CLI_BENCH_H

#include "cli/load.h"

#define BENCH_LIST_MAX 16
#define BENCH_ROWS_MAX 64 /* of a step whose time is measured */

struct bench_list {
    int32_t v[BENCH_LIST_MAX];
    int n;
};

struct bench_plan {
    int32_t prompt_tokens, gen_tokens; /* 0 = not measured */
    struct bench_list depths;          /* tokens that are in the cache before */
    struct bench_list rows;            /* steps of so many sequences; may be empty */
    int32_t row_steps;                 /* steps of each kind in a round */
    int32_t row_context;               /* tokens that each of these sequences has before */
    bool has_bandwidth;                /* read memory too */
};

struct bench_round {
    double prefill[BENCH_LIST_MAX],
        decode[BENCH_LIST_MAX];     /* tokens per second, by depth; 0 = not measured */
    double step_us[BENCH_LIST_MAX]; /* median of a step, by number of rows */
    double bandwidth;               /* bytes per second; 0 = not measured */
};

struct bench;

/* l and plan are borrowed until bench_free. Errors: those of runner_new, runner_step. */
enum err_code bench_new(struct load *l, const struct bench_plan *plan, struct bench **out,
                        struct err *err) MUST_CHECK;
void bench_free(struct bench *b); /* NULL is fine */

/* Each measurement once. */
enum err_code bench_once(struct bench *b, struct bench_round *out, struct err *err) MUST_CHECK;

/* Bytes of packed weights that decoding one token reads: all but the embedding, unless it is the head too. */
size_t bench_bytes_per_token(const struct model *m);
/* Bytes of the caches. */
size_t bench_cache_bytes(const struct bench *b);

/* The middle of v [n], n >= 1; sorts it. */
double bench_median(double *v, int n);

#endif
