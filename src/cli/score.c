#include "cli/score.h"
#include "base/dmath.h"

double score_root(double x)
{
    return x > 0 ? dmath_exp(0.5 * dmath_log(x)) : 0;
}

/* The next rows of a window on one model; their logits stay until its next step. */
static enum err_code score_step(struct runner *r, struct runner_item *item, const int32_t *ids,
                                int32_t n, int32_t n_out, struct err *err)
{
    item->ids = ids;
    item->n = n;
    item->n_out = n_out;
    enum err_code code = runner_step(r, item, 1, err);
    if (!code && item->has_failed)
        code = err_set(err, ERR_NUMERIC, "non-finite values in the model's activations");
    return code;
}

/* Tokens [at, at + n) of the window on every model, then their scored rows. */
static enum err_code score_part(const struct score_options *o, struct runner_item *items,
                                const int32_t *ids, int32_t at, int32_t n, int32_t half,
                                struct err *err)
{
    int32_t n_out = at + n > half ? n : 0;
    int32_t first[SCORE_ROWS];
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < n; i++)
        first[i] = at + i == 0 && o->bos >= 0 ? o->bos : ids[at + i];
    for (int m = 0; m < o->n_models && !code; m++)
        code = score_step(o->runners[m], &items[m], first, n, n_out, err);
    for (int32_t i = at < half ? half - at : 0; i < n && !code; i++) {
        float *logits[SCORE_MODELS_MAX] = { NULL };
        for (int m = 0; m < o->n_models; m++)
            logits[m] = items[m].logits + (int64_t)i * o->runners[m]->model->n_vocab;
        code = o->on_row(o->ctx, logits, ids[at + i + 1], err);
    }
    return code;
}

enum err_code score_window(const struct score_options *o, const int32_t *ids, int32_t n,
                           struct err *err)
{
    struct runner_item items[SCORE_MODELS_MAX] = { { 0 } };
    enum err_code code = ERR_OK;
    int n_open = 0;
    while (n_open < o->n_models && !code) {
        struct runner *r = o->runners[n_open];
        code = runner_open(r, &items[n_open].seq, err);
        if (code)
            break;
        code = runner_reserve(r, items[n_open++].seq, n, err);
    }
    for (int32_t at = 0; at < n - 1 && !code; at += SCORE_ROWS)
        code = score_part(o, items, ids, at, n - 1 - at < SCORE_ROWS ? n - 1 - at : SCORE_ROWS,
                          n / 2, err);
    while (n_open-- > 0)
        runner_close(o->runners[n_open], items[n_open].seq);
    return code;
}
