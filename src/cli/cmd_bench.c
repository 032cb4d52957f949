/* cmd_bench.c - tokens per second: prefill of a prompt and decoding one token at a time, with so many tokens in the cache before
 * (depths). Each number is the median of --repeat runs; the runs go round the depths, so that a slow minute of the machine hits
 * all alike. What is measured is what llama-bench -p, -n and -d measure. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/load.h"
#include "engine/sample.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BENCH_DEPTHS_MAX 16
#define BENCH_REPEAT_MAX 100
#define BENCH_STEP_ROWS  512

struct bench_options {
    struct load_options load;
    int64_t prompt_tokens, gen_tokens, repeat;
    const char *depth;
    bool json;
};

struct bench_depth {
    int32_t depth;
    double prefill[BENCH_REPEAT_MAX], decode[BENCH_REPEAT_MAX]; /* tokens per second */
};

struct bench {
    struct load load;
    struct runner *runner;
    struct bench_depth depths[BENCH_DEPTHS_MAX];
    int n_depths;
    int32_t *ids; /* [n_ctx] */
    int32_t n_ctx;
};

static void bench_defaults(void *options)
{
    struct bench_options *o = options;
    o->prompt_tokens = 512;
    o->gen_tokens = 64;
    o->repeat = 5;
    o->depth = "0";
}

/* "0,4096" into depths; false if it is no such list. */
static bool bench_parse_depths(struct bench *b, const char *text)
{
    for (const char *p = text;; p++) {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || v < 0 || v > 1 << 24 || b->n_depths == BENCH_DEPTHS_MAX)
            return false;
        b->depths[b->n_depths++].depth = (int32_t)v;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        p = end;
    }
}

/* Feed ids [from, to) of the fixed text; the last row's logits are computed, as a prompt's would be. */
static enum err_code bench_feed(struct bench *b, int32_t seq, int32_t from, int32_t to,
                                struct err *err)
{
    enum err_code code = ERR_OK;
    struct runner_item item = { .seq = seq };
    for (int32_t at = from; at < to && !code; at += item.n) {
        item.ids = b->ids + at;
        item.n = to - at < BENCH_STEP_ROWS ? to - at : BENCH_STEP_ROWS;
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
    enum err_code code = runner_reserve(b->runner, seq, b->n_ctx, err);
    return code ? code : bench_feed(b, seq, 0, depth, err);
}

static enum err_code bench_decode(struct bench *b, int32_t seq, int32_t depth, int32_t n,
                                  struct err *err)
{
    enum err_code code = ERR_OK;
    struct runner_item item = { .seq = seq, .n = 1, .n_out = 1 };
    int32_t id = b->ids[depth];
    for (int32_t i = 0; i < n && !code; i++) {
        item.ids = &id;
        code = runner_step(b->runner, &item, 1, err);
        if (!code)
            id = sample_argmax(item.logits, (int32_t)b->load.model->n_vocab);
    }
    return code;
}

/* One run at one depth. */
static enum err_code bench_once(struct bench *b, const struct bench_options *o,
                                struct bench_depth *d, int round, struct err *err)
{
    int32_t seq, n_prompt = (int32_t)o->prompt_tokens, n_gen = (int32_t)o->gen_tokens;
    enum err_code code = runner_open(b->runner, &seq, err);
    if (code)
        return code;
    code = runner_reserve(b->runner, seq, b->n_ctx, err);
    if (!code)
        code = bench_feed(b, seq, 0, d->depth, err);
    int64_t t = clock_us();
    if (!code)
        code = bench_feed(b, seq, d->depth, d->depth + n_prompt, err);
    d->prefill[round] = (double)n_prompt * 1e6 / (double)(clock_us() - t + 1);
    if (!code)
        code = bench_rewind(b, seq, d->depth, err);
    t = clock_us();
    if (!code)
        code = bench_decode(b, seq, d->depth, n_gen, err);
    d->decode[round] = (double)n_gen * 1e6 / (double)(clock_us() - t + 1);
    runner_close(b->runner, seq);
    return code;
}

static int bench_by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double bench_median(const double *v, int n)
{
    double sorted[BENCH_REPEAT_MAX];
    memcpy(sorted, v, (size_t)n * sizeof(*v));
    qsort(sorted, (size_t)n, sizeof(*sorted), bench_by_size);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void bench_print(const struct bench *b, const struct bench_options *o)
{
    int n = (int)o->repeat;
    double load_s = (double)b->load.load_us / 1e6;
    if (o->json)
        printf("{\"model\":\"%s\",\"backend\":\"%s\",\"load_seconds\":%.3f,\"weight_bytes\":%zu,"
               "\"prompt_tokens\":%lld,\"gen_tokens\":%lld,\"repeat\":%d,\"depths\":[",
               b->load.id, b->load.be->ops->name, load_s, b->load.model->weight_bytes,
               (long long)o->prompt_tokens, (long long)o->gen_tokens, n);
    else
        printf("%s on %s, loaded in %.2f s; medians of %d\n   depth  prefill t/s   decode t/s\n",
               b->load.id, b->load.be->ops->name, load_s, n);
    for (int i = 0; i < b->n_depths; i++) {
        const struct bench_depth *d = &b->depths[i];
        printf(o->json ? "%s{\"depth\":%d,\"prefill\":%.2f,\"decode\":%.2f}"
                       : "%s%8d %12.2f %12.2f\n",
               o->json && i ? "," : "", d->depth, bench_median(d->prefill, n),
               bench_median(d->decode, n));
    }
    if (o->json)
        printf("]}\n");
}

static enum err_code bench_measure(struct bench *b, const struct bench_options *o, struct err *err)
{
    int64_t deepest = 0,
            longest = o->prompt_tokens > o->gen_tokens ? o->prompt_tokens : o->gen_tokens;
    for (int i = 0; i < b->n_depths; i++)
        deepest = b->depths[i].depth > deepest ? b->depths[i].depth : deepest;
    struct runner_options ro = { .model = b->load.model,
                                 .n_ctx = deepest + longest + 1,
                                 .kv_bytes = o->load.kv_memory,
                                 .max_seqs = 1,
                                 .max_rows = BENCH_STEP_ROWS,
                                 .max_out = 1,
                                 .cache_type = b->load.cache_type };
    if (ro.kv_bytes == 0)
        ro.kv_bytes = load_kv_default();
    enum err_code code = runner_new(&ro, &b->runner, err);
    if (code)
        return code;
    b->n_ctx = b->runner->n_ctx;
    b->ids = mem_alloc(MEM_CAT_BASE, (size_t)b->n_ctx * sizeof(*b->ids));
    for (int32_t i = 0; i < b->n_ctx; i++)
        b->ids[i] = (int32_t)((int64_t)i * 7919 % (b->load.model->n_vocab * 9 / 10));
    for (int round = 0; round < o->repeat && !code; round++)
        for (int i = 0; i < b->n_depths && !code; i++)
            code = bench_once(b, o, &b->depths[i], round, err);
    return code;
}

static int bench_run(void *options)
{
    const struct bench_options *o = options;
    struct bench b = { 0 };
    struct err err;
    if (!bench_parse_depths(&b, o->depth))
        return cli_usage("bench", "--depth: '%s' is not a list of up to %d numbers such as 0,4096",
                         o->depth, BENCH_DEPTHS_MAX);
    log_set_level(LOG_LEVEL_WARN);
    enum err_code code = load_open(&b.load, &o->load, &err);
    if (!code)
        code = bench_measure(&b, o, &err);
    if (!code)
        bench_print(&b, o);
    runner_free(b.runner);
    mem_free(MEM_CAT_BASE, b.ids);
    load_close(&b.load);
    return code ? cli_fail("bench", &err) : 0;
}

const struct cli_verb cmd_bench = {
    .name = "bench",
    .summary = "measure tokens per second of prefill and decoding",
    .usage = "--model M [--prompt-tokens 512] [--gen-tokens 64] [--depth 0,4096] [--json]",
    .flags =
        (const struct cli_flag[]){
            LOAD_FLAGS(struct bench_options, load),
            { "prompt-tokens", "N", "tokens of the prefill; default 512", CLI_FLAG_INT,
              offsetof(struct bench_options, prompt_tokens), 1, 1 << 24 },
            { "gen-tokens", "N", "tokens decoded; default 64", CLI_FLAG_INT,
              offsetof(struct bench_options, gen_tokens), 1, 1 << 20 },
            { "depth", "N,...", "tokens in the cache before; default 0", CLI_FLAG_STRING,
              offsetof(struct bench_options, depth), 0, 0 },
            { "repeat", "N", "runs of which the median is told; default 5", CLI_FLAG_INT,
              offsetof(struct bench_options, repeat), 1, BENCH_REPEAT_MAX },
            { "json", NULL, "print one JSON object", CLI_FLAG_BOOL,
              offsetof(struct bench_options, json), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct bench_options),
    .defaults = bench_defaults,
    .run = bench_run,
};
