/* cmd_perplexity.c - how well a model predicts a text, in windows (score.h). */
#include "base/clock.h"
#include "base/dmath.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/load.h"
#include "cli/score.h"
#include "engine/sample.h"
#include "json/json.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define PERPLEXITY_FILE_MAX ((size_t)256 << 20)

struct perplexity_options {
    struct load_options load;
    const char *file;
    int64_t windows;
    bool json;
};

struct perplexity {
    struct load load;
    struct runner *runner;
    struct sampler sampler;
    struct token_list ids;
    int32_t n_scored, n_windows;
    double nll, nll2; /* sums of -log p and of its square */
    int64_t us;
};

static void perplexity_defaults(void *options)
{
    struct perplexity_options *o = options;
    o->load.ctx = 512;
    o->windows = INT_MAX;
}

static enum err_code perplexity_tokenize(struct perplexity *p, const char *file, struct err *err)
{
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, PERPLEXITY_FILE_MAX);
    enum err_code code = file_read(file, &text, err);
    if (!code)
        code = tokenizer_encode(p->load.tokenizer, text.data, text.len, NULL, TOKENIZER_FLAG_BOS,
                                &p->ids, err);
    buf_release(&text);
    return code;
}

static enum err_code perplexity_row(void *ctx, float *const *logits, int32_t next, struct err *err)
{
    struct perplexity *p = ctx;
    double nll = -(double)sample_logprob(&p->sampler, logits[0], next);
    p->nll += nll;
    p->nll2 += nll * nll;
    p->n_scored++;
    return ERR_OK;
}

static enum err_code perplexity_measure(struct perplexity *p, const struct perplexity_options *o,
                                        struct err *err)
{
    struct runner_options ro = { .model = p->load.model,
                                 .n_ctx = o->load.ctx,
                                 .kv_bytes = load_kv_default(),
                                 .max_seqs = 1,
                                 .max_rows = SCORE_ROWS,
                                 .max_out = SCORE_ROWS,
                                 .cache_type = p->load.cache_type };
    if (p->ids.n < o->load.ctx)
        return err_set(err, ERR_INVALID, "%s: %d tokens, one window needs %lld", o->file, p->ids.n,
                       (long long)o->load.ctx);
    enum err_code code = runner_new(&ro, &p->runner, err);
    if (!code)
        code = sampler_init(&p->sampler, (int32_t)p->load.model->n_vocab, err);
    int64_t start = clock_us();
    int32_t window = (int32_t)o->load.ctx, n = p->ids.n / window;
    const struct tokenizer *t = p->load.tokenizer;
    struct score_options so = { .runners = &p->runner,
                                .n_models = 1,
                                .bos = tokenizer_adds_bos(t) ? tokenizer_bos(t) : -1,
                                .on_row = perplexity_row,
                                .ctx = p };
    for (int32_t i = 0; i < n && i < o->windows && !code; i++) {
        code = score_window(&so, p->ids.ids + (int64_t)i * window, window, err);
        p->n_windows += !code;
        if (isatty(STDERR_FILENO) && !code)
            fprintf(stderr, "\r%d of %d windows, perplexity %.4f ", i + 1, n,
                    dmath_exp(p->nll / p->n_scored));
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    p->us = clock_us() - start;
    return code;
}

static void perplexity_print(const struct perplexity *p, const struct perplexity_options *o)
{
    double mean = p->nll / p->n_scored;
    double variance =
        p->n_scored > 1 ? (p->nll2 / p->n_scored - mean * mean) / (p->n_scored - 1) : 0;
    double value = dmath_exp(mean), error = score_root(variance) * value;
    double rate = p->us > 0 ? (double)p->n_windows * (double)o->load.ctx * 1e6 / (double)p->us : 0;
    if (o->json)
        printf("{\"model\":\"%s\",\"perplexity\":%.6f,\"standard_error\":%.6f,\"scored\":%d,"
               "\"windows\":%d,\"window\":%lld,\"tokens\":%d,\"tokens_per_second\":%.1f}\n",
               p->load.id, value, error, p->n_scored, p->n_windows, (long long)o->load.ctx,
               p->ids.n, rate);
    else
        printf("perplexity %.4f +/- %.4f over %d tokens in %d windows of %lld (%.1f tokens/s)\n",
               value, error, p->n_scored, p->n_windows, (long long)o->load.ctx, rate);
}

static int perplexity_run(void *options)
{
    const struct perplexity_options *o = options;
    struct perplexity p = { 0 };
    struct err err;
    if (!o->file)
        return cli_usage("perplexity", "--file is missing");
    log_set_level(LOG_LEVEL_WARN);
    token_list_init(&p.ids, INT32_MAX);
    enum err_code code = load_open(&p.load, &o->load, &err);
    if (!code)
        code = perplexity_tokenize(&p, o->file, &err);
    if (!code)
        code = perplexity_measure(&p, o, &err);
    if (!code)
        perplexity_print(&p, o);
    runner_free(p.runner);
    sampler_release(&p.sampler);
    token_list_release(&p.ids);
    load_close(&p.load);
    return code ? cli_fail("perplexity", &err) : 0;
}

const struct cli_verb cmd_perplexity = {
    .name = "perplexity",
    .summary = "measure how well a model predicts a text",
    .usage = "--model M --file F [--ctx 512] [--json]",
    .flags =
        (const struct cli_flag[]){
            LOAD_FLAGS(struct perplexity_options, load),
            { "file", "F", "text to predict; - is stdin", CLI_FLAG_STRING,
              offsetof(struct perplexity_options, file), 0, 0 },
            { "windows", "N", "windows of --ctx tokens (default 512) at most; default all",
              CLI_FLAG_INT, offsetof(struct perplexity_options, windows), 1, INT_MAX },
            { "json", NULL, "print one JSON object", CLI_FLAG_BOOL,
              offsetof(struct perplexity_options, json), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct perplexity_options),
    .defaults = perplexity_defaults,
    .run = perplexity_run,
};
