/* sample [made] | [time|lists MODEL TEXT WINDOWS]: see sample.h; made logits without a model. */
#include "sample.h"

#include "base/file.h"
#include "base/log.h"
#include "cli/load.h"
#include "cli/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CTX   512
#define TIMED 48 /* rows that are timed of a text or a kind of made logits */

static uint64_t rand_state = 0x9E3779B97F4A7C15u;

static float uniform(void) /* xorshift64*; (0, 1] */
{
    rand_state ^= rand_state >> 12;
    rand_state ^= rand_state << 25;
    rand_state ^= rand_state >> 27;
    return (float)((rand_state * 0x2545F4914F6CDD1Du >> 40) + 1) * 0x1p-24f;
}

static float normal(void)
{
    return sqrtf(-2 * logf(uniform())) * cosf(6.2831853f * uniform());
}

static const char *const kinds[] = { "flat",  "flat, narrow", "flat, far from 0",
                                     "equal", "two values",   "one and a tail",
                                     "peaked" };

static float made(int kind, int32_t i)
{
    switch (kind) {
    case 0:
        return normal();
    case 1:
        return 0.05f * normal();
    case 2:
        return 1000 + normal();
    case 3:
        return 3;
    case 4:
        return uniform() < 0.5f ? 3 : 3.001f;
    case 5:
        return i == 77 ? 17 : normal();
    default:
        return 4 * normal();
    }
}

static void time_made(int32_t n_vocab)
{
    float *logits = mem_try_big(MEM_CAT_SCRATCH, (size_t)TIMED * (size_t)n_vocab * sizeof(float));
    BUG_ON(!logits);
    for (int k = 0; k < (int)ARRAY_LEN(kinds); k++) {
        char name[64];
        for (int32_t r = 0; r < TIMED; r++)
            for (int32_t i = 0; i < n_vocab; i++)
                logits[(int64_t)r * n_vocab + i] = made(k, i);
        snprintf(name, sizeof(name), "%dk %s", n_vocab / 1024, kinds[k]);
        sample_time(name, logits, TIMED, n_vocab);
    }
    mem_free_big(MEM_CAT_SCRATCH, logits, (size_t)TIMED * (size_t)n_vocab * sizeof(float));
}

/* --- a model's logits --- */

struct text {
    struct load load;
    struct runner *runner;
    struct token_list ids;
    struct sample_lists *lists; /* NULL: choices are timed */
    float *logits;              /* [TIMED][V], for that */
    int32_t n, n_kept, every;
};

static enum err_code text_row(void *ctx, float *const *logits, int32_t next, struct err *err)
{
    struct text *t = ctx;
    int64_t n_vocab = t->load.model->n_vocab;
    if (t->lists)
        sample_lists_take(t->lists, logits[0]);
    else if (t->n % t->every == 0 && t->n_kept < TIMED)
        memcpy(t->logits + t->n_kept++ * n_vocab, logits[0], (size_t)n_vocab * sizeof(float));
    t->n++;
    return ERR_OK;
}

static enum err_code text_open(struct text *t, const char *model, const char *file, struct err *err)
{
    struct load_options o = { .model = model, .ctx = CTX, .device = "cpu" };
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 28);
    token_list_init(&t->ids, INT32_MAX);
    enum err_code code = load_open(&t->load, &o, err);
    if (!code)
        code = file_read(file, &text, err);
    if (!code)
        code = tokenizer_encode(t->load.tokenizer, text.data, text.len, NULL, TOKENIZER_FLAG_BOS,
                                &t->ids, err);
    struct runner_options ro = { .model = t->load.model,
                                 .n_ctx = CTX,
                                 .kv_bytes = load_kv_default(),
                                 .max_seqs = 1,
                                 .max_rows = SCORE_ROWS,
                                 .max_out = SCORE_ROWS,
                                 .cache_type = t->load.cache_type };
    buf_release(&text);
    return code ? code : runner_new(&ro, &t->runner, err);
}

static enum err_code text_walk(struct text *t, int32_t windows, struct err *err)
{
    const struct tokenizer *k = t->load.tokenizer;
    struct score_options so = { .runners = &t->runner,
                                .n_models = 1,
                                .bos = tokenizer_adds_bos(k) ? tokenizer_bos(k) : -1,
                                .on_row = text_row,
                                .ctx = t };
    enum err_code code = ERR_OK;
    if (windows > t->ids.n / CTX)
        windows = t->ids.n / CTX;
    t->every = windows * score_rows(CTX) / TIMED;
    t->every += t->every == 0;
    for (int32_t i = 0; i < windows && !code; i++)
        code = score_window(&so, t->ids.ids + (int64_t)i * CTX, CTX, err);
    return code;
}

static int text_run(bool is_timed, const char *model, const char *file, int32_t windows)
{
    struct text t = { 0 };
    struct err err;
    size_t bytes = 0;
    enum err_code code = text_open(&t, model, file, &err);
    if (!code) {
        int32_t n_vocab = (int32_t)t.load.model->n_vocab;
        bytes = (size_t)TIMED * (size_t)n_vocab * sizeof(float);
        if (is_timed)
            t.logits = mem_try_big(MEM_CAT_SCRATCH, bytes);
        else
            t.lists = sample_lists_new(n_vocab);
        code = text_walk(&t, windows, &err);
        if (!code && is_timed)
            sample_time(t.load.id, t.logits, t.n_kept, n_vocab);
        if (!code && !is_timed)
            sample_lists_print(t.lists, t.load.id);
    }
    if (code)
        printf("%s: %s\n", model, err.text);
    if (t.lists)
        sample_lists_free(t.lists);
    mem_free_big(MEM_CAT_SCRATCH, t.logits, bytes);
    runner_free(t.runner);
    token_list_release(&t.ids);
    load_close(&t.load);
    return code != ERR_OK;
}

int main(int argc, char **argv)
{
    log_set_level(LOG_LEVEL_WARN);
    if (argc == 5 && (strcmp(argv[1], "time") == 0 || strcmp(argv[1], "lists") == 0))
        return text_run(argv[1][0] == 't', argv[2], argv[3], (int32_t)strtol(argv[4], NULL, 10));
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "made") != 0)) {
        printf("usage: sample [made] | time MODEL TEXT WINDOWS | lists MODEL TEXT WINDOWS\n");
        return 2;
    }
    static const int32_t vocabularies[] = { 32768, 128256, 262144 };
    for (size_t i = 0; i < ARRAY_LEN(vocabularies); i++)
        time_made(vocabularies[i]);
    return 0;
}
