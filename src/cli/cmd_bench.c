/* cmd_bench.c - tokens per second: prefill of a prompt and decoding one token at a time, with so many tokens in the cache before
 * (depths); steps of several rows; how fast memory is read. Each number is the median of --repeat rounds; a round measures
 * everything once, so that a slow minute of the machine hits all alike. Prefill and decoding are what llama-bench -p, -n and -d
 * measure. With --paced another program says when a round runs, so that rounds of several programs can take turns. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/bench.h"

#include <stdio.h>
#include <stdlib.h>

#define REPEAT_MAX 1000

struct bench_options {
    struct load_options load;
    int64_t prompt_tokens, gen_tokens, row_steps, row_context, repeat;
    const char *depth, *rows;
    bool bandwidth, paced, json;
};

static void bench_defaults(void *options)
{
    struct bench_options *o = options;
    o->prompt_tokens = 512;
    o->gen_tokens = 64;
    o->row_steps = 16;
    o->row_context = 16;
    o->repeat = 5;
    o->depth = "0";
}

/* "0,4096" into out; false if it is no such list of numbers in [min, max]. */
static bool bench_parse_list(struct bench_list *out, const char *text, long min, long max)
{
    for (const char *p = text;; p++) {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || v < min || v > max || out->n == BENCH_LIST_MAX)
            return false;
        out->v[out->n++] = (int32_t)v;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        p = end;
    }
}

/* --- output --- */

/* The measurements of a round, or their medians, as members of a JSON object. */
static void bench_print_json(const struct bench_plan *p, const struct bench_round *r)
{
    printf("\"depths\":[");
    for (int i = 0; i < p->depths.n; i++)
        printf("%s{\"depth\":%d,\"prefill\":%.3f,\"decode\":%.3f}", i ? "," : "", p->depths.v[i],
               r->prefill[i], r->decode[i]);
    printf("],\"rows\":[");
    for (int i = 0; i < p->rows.n; i++)
        printf("%s{\"rows\":%d,\"step_us\":%.1f}", i ? "," : "", p->rows.v[i], r->step_us[i]);
    printf("],\"bandwidth\":%.0f", r->bandwidth);
}

static void bench_print_head(const struct load *l, const struct bench *b)
{
    printf("\"model\":\"%s\",\"backend\":\"%s\",\"load_seconds\":%.3f,\"load_us\":{\"file\":%lld,"
           "\"text\":%lld,\"weights\":%lld},\"weight_bytes\":%zu,\"token_bytes\":%zu,"
           "\"cache_bytes\":%zu",
           l->id, l->be->ops->name, (double)l->load_us / 1e6, (long long)l->file_us,
           (long long)l->text_us, (long long)l->weights_us, l->model->weight_bytes,
           bench_bytes_per_token(l->model), bench_cache_bytes(b));
}

static void bench_print_text(const struct load *l, const struct bench_plan *p,
                             const struct bench_round *r, int n)
{
    printf("%s on %s, loaded in %.2f s (file %.2f, tokenizer %.2f, weights %.2f); medians of %d\n",
           l->id, l->be->ops->name, (double)l->load_us / 1e6, (double)l->file_us / 1e6,
           (double)l->text_us / 1e6, (double)l->weights_us / 1e6, n);
    printf("   depth  prefill t/s   decode t/s\n");
    for (int i = 0; i < p->depths.n; i++)
        printf("%8d %12.2f %12.2f\n", p->depths.v[i], r->prefill[i], r->decode[i]);
    if (p->rows.n)
        printf("    rows      step ms  to the first\n");
    for (int i = 0; i < p->rows.n; i++)
        printf("%8d %12.2f %12.2f\n", p->rows.v[i], r->step_us[i] / 1e3,
               r->step_us[i] / r->step_us[0]);
    if (r->bandwidth > 0)
        printf("memory is read at %.1f GB/s; decoding at depth %d reads %.1f GB/s, %.0f %% of it\n",
               r->bandwidth / 1e9, p->depths.v[0],
               r->decode[0] * (double)bench_bytes_per_token(l->model) / 1e9,
               r->decode[0] * (double)bench_bytes_per_token(l->model) * 100 / r->bandwidth);
}

/* --- rounds --- */

/* Every field of a round is a double, so the medians go field by field. */
#define ROUND_FIELDS (sizeof(struct bench_round) / sizeof(double))

static struct bench_round bench_medians(const struct bench_round *all, int n)
{
    struct bench_round out;
    double v[REPEAT_MAX];
    for (size_t f = 0; f < ROUND_FIELDS; f++) {
        for (int i = 0; i < n; i++)
            v[i] = ((const double *)(const void *)&all[i])[f];
        ((double *)(void *)&out)[f] = bench_median(v, n);
    }
    return out;
}

static enum err_code bench_repeat(struct load *l, struct bench *b, const struct bench_plan *p,
                                  const struct bench_options *o, struct err *err)
{
    int n = (int)o->repeat;
    enum err_code code = ERR_OK;
    struct bench_round *all = mem_alloc(MEM_CAT_BASE, (size_t)n * sizeof(*all));
    for (int i = 0; i < n && !code; i++)
        code = bench_once(b, &all[i], err);
    if (!code) {
        struct bench_round r = bench_medians(all, n);
        if (o->json) {
            printf("{");
            bench_print_head(l, b);
            printf(",\"prompt_tokens\":%d,\"gen_tokens\":%d,\"repeat\":%d,", p->prompt_tokens,
                   p->gen_tokens, n);
            bench_print_json(p, &r);
            printf("}\n");
        } else {
            bench_print_text(l, p, &r, n);
        }
    }
    mem_free(MEM_CAT_BASE, all);
    return code;
}

/* A first line tells of the model; then one line of JSON for each line read, until there is no more. */
static enum err_code bench_paced(struct load *l, struct bench *b, const struct bench_plan *p,
                                 struct err *err)
{
    struct bench_round r;
    int c;
    printf("{");
    bench_print_head(l, b);
    printf("}\n");
    fflush(stdout);
    while ((c = getchar()) != EOF) {
        if (c != '\n')
            continue;
        enum err_code code = bench_once(b, &r, err);
        if (code)
            return code;
        printf("{");
        bench_print_json(p, &r);
        printf("}\n");
        fflush(stdout);
    }
    return ERR_OK;
}

static int bench_run(void *options)
{
    const struct bench_options *o = options;
    struct bench_plan plan = { .prompt_tokens = (int32_t)o->prompt_tokens,
                               .gen_tokens = (int32_t)o->gen_tokens,
                               .row_steps = (int32_t)o->row_steps,
                               .row_context = (int32_t)o->row_context,
                               .has_bandwidth = o->bandwidth };
    struct load l = { 0 };
    struct bench *b = NULL;
    struct err err;
    if (!bench_parse_list(&plan.depths, o->depth, 0, 1 << 24))
        return cli_usage("bench", "--depth: '%s' is not a list of up to %d numbers such as 0,4096",
                         o->depth, BENCH_LIST_MAX);
    if (o->rows && !bench_parse_list(&plan.rows, o->rows, 1, BENCH_ROWS_MAX))
        return cli_usage("bench",
                         "--rows: '%s' is not a list of up to %d numbers from 1 to %d such as 1,16",
                         o->rows, BENCH_LIST_MAX, BENCH_ROWS_MAX);
    log_set_level(LOG_LEVEL_WARN);
    enum err_code code = load_open(&l, &o->load, &err);
    if (!code)
        code = bench_new(&l, &plan, &b, &err);
    if (!code)
        code = o->paced ? bench_paced(&l, b, &plan, &err) : bench_repeat(&l, b, &plan, o, &err);
    bench_free(b);
    load_close(&l);
    return code ? cli_fail("bench", &err) : 0;
}

const struct cli_verb cmd_bench = {
    .name = "bench",
    .summary = "measure tokens per second of prefill and decoding",
    .usage = "--model M [--prompt-tokens 512] [--gen-tokens 64] [--depth 0,4096] [--rows 1,4,16]"
             " [--bandwidth] [--json]",
    .flags =
        (const struct cli_flag[]){
            LOAD_FLAGS(struct bench_options, load),
            { "prompt-tokens", "N", "tokens of the prefill; 0 = leave it out; default 512",
              CLI_FLAG_INT, offsetof(struct bench_options, prompt_tokens), 0, 1 << 24 },
            { "gen-tokens", "N", "tokens decoded; 0 = leave it out; default 64", CLI_FLAG_INT,
              offsetof(struct bench_options, gen_tokens), 0, 1 << 20 },
            { "depth", "N,...", "tokens in the cache before; default 0", CLI_FLAG_STRING,
              offsetof(struct bench_options, depth), 0, 0 },
            { "rows", "N,...", "time steps of so many sequences, a token each; default none",
              CLI_FLAG_STRING, offsetof(struct bench_options, rows), 0, 0 },
            { "row-steps", "N", "steps of each kind in a round; default 16", CLI_FLAG_INT,
              offsetof(struct bench_options, row_steps), 1, 1000 },
            { "row-context", "N", "tokens in the cache of each of these sequences; default 16",
              CLI_FLAG_INT, offsetof(struct bench_options, row_context), 1, 1 << 20 },
            { "bandwidth", NULL, "read memory too, and tell what share of its speed decoding has",
              CLI_FLAG_BOOL, offsetof(struct bench_options, bandwidth), 0, 0 },
            { "repeat", "N", "rounds of which the median is told; default 5", CLI_FLAG_INT,
              offsetof(struct bench_options, repeat), 1, REPEAT_MAX },
            { "paced", NULL, "one round, as a line of JSON, for each line on stdin", CLI_FLAG_BOOL,
              offsetof(struct bench_options, paced), 0, 0 },
            { "json", NULL, "print one JSON object", CLI_FLAG_BOOL,
              offsetof(struct bench_options, json), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct bench_options),
    .defaults = bench_defaults,
    .run = bench_run,
};
