#include "cli/bench.h"
#include "base/clock.h"
#include "engine/sample.h"
#include "kernels/cpu/read_speed.h"

#include <stdlib.h>

#define STEP_ROWS   512 /* tokens of a step of the prefill, on the host */
#define READ_PASSES 5   /* of memory in a round: 0.1 s */

struct bench {
    const struct bench_plan *plan;
    const struct model *model;
    struct runner *runner;
    struct read_speed *memory; /* NULL where not wanted */
    int32_t depth_seq[BENCH_LIST_MAX];
    int32_t row_seq[BENCH_ROWS_MAX];
    int32_t n_row_seqs;
    int32_t step_rows; /* of the prefill */
    int32_t *ids;      /* [n_ctx or BENCH_ROWS_MAX] the fixed text */
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_size);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

size_t bench_bytes_per_token(const struct model *m)
{
    const struct weight_shape *embed = model_layer_be(m, 0)->ops->shape(m->embed);
    return m->weight_bytes - (m->head == m->embed ? 0 : embed->bytes);
}

size_t bench_cache_bytes(const struct bench *b)
{
    return b->runner->slab.bytes[0] + b->runner->slab.bytes[1];
}

/* Feed ids [from, to) of the fixed text; the last row's logits are computed, as a prompt's would be. */
static enum err_code bench_feed(struct bench *b, int32_t seq, int32_t from, int32_t to,
                                struct err *err)
{
    enum err_code code = ERR_OK;
    struct runner_item item = { .seq = seq };
    for (int32_t at = from; at < to && !code; at += item.n) {
        item.ids = b->ids + at;
        item.n = to - at < b->step_rows ? to - at : b->step_rows;
        item.n_out = at + item.n == to;
        code = runner_step(b->runner, &item, 1, err);
    }
    return code;
}

/* Back to depth tokens: by truncation where the windows allow it, else from the start. */
static enum err_code bench_rewind(struct bench *b, int32_t seq, int32_t depth, struct err *err)
{
    if (runner_can_truncate(b->runner, seq, depth)) {
        runner_truncate(b->runner, seq, depth);
        return ERR_OK;
    }
    runner_rewind(b->runner, seq);
    enum err_code code = runner_reserve(b->runner, seq, b->runner->n_ctx, err);
    return code ? code : bench_feed(b, seq, 0, depth, err);
}

static enum err_code bench_decode(struct bench *b, int32_t seq, int32_t depth, int32_t n,
                                  struct err *err)
{
    enum err_code code = ERR_OK;
    struct runner_item item = { .seq = seq, .n = 1, .n_out = 1, .wants_best = true };
    int32_t id = b->ids[depth];
    for (int32_t i = 0; i < n && !code; i++) {
        item.ids = &id;
        code = runner_step(b->runner, &item, 1, err);
        if (!code)
            id = item.best ? *item.best : sample_argmax(item.logits, (int32_t)b->model->n_vocab);
    }
    return code;
}

static double bench_rate(int32_t n, int64_t start)
{
    return (double)n * 1e6 / (double)(clock_us() - start + 1);
}

static enum err_code bench_depth(struct bench *b, int i, struct bench_round *out, struct err *err)
{
    const struct bench_plan *p = b->plan;
    int32_t seq = b->depth_seq[i], depth = p->depths.v[i];
    enum err_code code = bench_rewind(b, seq, depth, err);
    int64_t t = clock_us();
    if (!code && p->prompt_tokens > 0) {
        code = bench_feed(b, seq, depth, depth + p->prompt_tokens, err);
        out->prefill[i] = bench_rate(p->prompt_tokens, t);
        if (!code)
            code = bench_rewind(b, seq, depth, err);
    }
    t = clock_us();
    if (!code && p->gen_tokens > 0) {
        code = bench_decode(b, seq, depth, p->gen_tokens, err);
        out->decode[i] = bench_rate(p->gen_tokens, t);
    }
    return code;
}

/* One step of n sequences, a token each, the likeliest of all: what n clients take. */
static enum err_code bench_wide_step(struct bench *b, int32_t n, double *us, struct err *err)
{
    struct runner_item items[BENCH_ROWS_MAX];
    for (int32_t i = 0; i < n; i++)
        items[i] = (struct runner_item){
            .seq = b->row_seq[i], .ids = b->ids + i, .n = 1, .n_out = 1, .wants_best = true
        };
    int64_t t = clock_us();
    enum err_code code = runner_step(b->runner, items, n, err);
    *us = (double)(clock_us() - t);
    return code;
}

/* The widths take turns step by step: what slows the machine for a second slows all alike. */
static enum err_code bench_rows(struct bench *b, struct bench_round *out, struct err *err)
{
    const struct bench_plan *p = b->plan;
    enum err_code code = ERR_OK;
    double *us = mem_alloc(MEM_CAT_BASE, (size_t)p->rows.n * (size_t)p->row_steps *
                                             sizeof(*us)); /* [rows][steps] */
    for (int32_t i = 0; i < b->n_row_seqs && !code; i++) {
        runner_rewind(b->runner, b->row_seq[i]);
        code = runner_reserve(b->runner, b->row_seq[i], p->row_context + p->rows.n * p->row_steps,
                              err);
        if (!code)
            code = bench_feed(b, b->row_seq[i], 0, p->row_context, err);
    }
    for (int32_t step = 0; step < p->row_steps && !code; step++)
        for (int k = 0; k < p->rows.n && !code; k++)
            code = bench_wide_step(b, p->rows.v[k], &us[k * p->row_steps + step], err);
    for (int k = 0; k < p->rows.n && !code; k++)
        out->step_us[k] = bench_median(us + k * p->row_steps, p->row_steps);
    mem_free(MEM_CAT_BASE, us);
    return code;
}

static void bench_memory(struct bench *b, struct bench_round *out)
{
    double v[READ_PASSES];
    for (int i = 0; i < READ_PASSES; i++)
        v[i] = read_speed_once(b->memory);
    out->bandwidth = bench_median(v, READ_PASSES);
}

enum err_code bench_once(struct bench *b, struct bench_round *out, struct err *err)
{
    enum err_code code = ERR_OK;
    *out = (struct bench_round){ 0 };
    if (b->memory)
        bench_memory(b, out);
    for (int i = 0; i < b->plan->depths.n && !code; i++)
        code = bench_depth(b, i, out, err);
    return code || b->plan->rows.n == 0 ? code : bench_rows(b, out, err);
}

/* --- life --- */

static enum err_code bench_open_seqs(struct bench *b, struct err *err)
{
    enum err_code code = ERR_OK;
    for (int i = 0; i < b->plan->depths.n && !code; i++) {
        code = runner_open(b->runner, &b->depth_seq[i], err);
        if (!code)
            code = runner_reserve(b->runner, b->depth_seq[i], b->runner->n_ctx, err);
        if (!code)
            code = bench_feed(b, b->depth_seq[i], 0, b->plan->depths.v[i], err);
    }
    for (int32_t i = 0; i < b->n_row_seqs && !code; i++)
        code = runner_open(b->runner, &b->row_seq[i], err);
    return code;
}

static int32_t list_max(const struct bench_list *l)
{
    int32_t max = 0;
    for (int i = 0; i < l->n; i++)
        max = l->v[i] > max ? l->v[i] : max;
    return max;
}

enum err_code bench_new(struct load *l, const struct bench_plan *plan, struct bench **out,
                        struct err *err)
{
    struct bench *b = mem_alloc(MEM_CAT_BASE, sizeof(*b));
    b->plan = plan;
    b->model = l->model;
    b->step_rows = l->host ? LOAD_STEP_ROWS_GPU : STEP_ROWS;
    b->n_row_seqs = list_max(&plan->rows);
    BUG_ON(b->n_row_seqs > BENCH_ROWS_MAX);
    int64_t longest =
        list_max(&plan->depths) +
        (int64_t)(plan->prompt_tokens > plan->gen_tokens ? plan->prompt_tokens : plan->gen_tokens);
    int64_t wide = plan->rows.n ? plan->row_context + (int64_t)plan->rows.n * plan->row_steps : 0;
    struct runner_options ro = { .model = l->model,
                                 .n_ctx = (longest > wide ? longest : wide) + 1,
                                 .kv_bytes = l->o->kv_memory,
                                 .max_seqs = plan->depths.n + b->n_row_seqs,
                                 .max_rows = b->step_rows,
                                 .max_out = b->n_row_seqs > 1 ? b->n_row_seqs : 1,
                                 .cache_type = l->cache_type };
    if (ro.kv_bytes == 0)
        ro.kv_bytes = load_kv_default();
    enum err_code code = runner_new(&ro, &b->runner, err);
    if (!code) {
        int32_t n = b->runner->n_ctx > BENCH_ROWS_MAX ? b->runner->n_ctx : BENCH_ROWS_MAX;
        b->ids = mem_alloc(MEM_CAT_BASE, (size_t)n * sizeof(*b->ids));
        for (int32_t i = 0; i < n; i++)
            b->ids[i] = (int32_t)((int64_t)i * 7919 % (b->model->n_vocab * 9 / 10));
        code = bench_open_seqs(b, err);
    }
    if (!code && plan->has_bandwidth)
        code = read_speed_new((int)l->o->threads, &b->memory, err);
    if (code) {
        bench_free(b);
        return code;
    }
    *out = b;
    return ERR_OK;
}

void bench_free(struct bench *b)
{
    if (!b)
        return;
    read_speed_free(b->memory);
    runner_free(b->runner);
    mem_free(MEM_CAT_BASE, b->ids);
    mem_free(MEM_CAT_BASE, b);
}
