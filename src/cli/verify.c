#include "cli/verify.h"
#include "base/dmath.h"
#include "tensor/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VERIFY_FEW_ROWS    7 /* of the second step and the next ones */
#define VERIFY_SINGLE_ROWS 4 /* at the end, a step for each */

/* --- op by op --- */

static void verify_layer(void *ctx, int layer_i, struct tensor x)
{
    compare_set_layer(ctx, layer_i + 1);
}

static enum err_code verify_step(struct runner *r, struct runner_item *item, float *weights,
                                 struct err *err)
{
    struct backend *be = r->model->be;
    int64_t n = r->model->n_vocab;
    bool is_finite = true;
    compare_set_layer(be, 0);
    enum err_code code = runner_step(r, item, 1, err);
    if (!code && item->has_failed)
        code = err_set(err, ERR_NUMERIC, "non-finite values in the model's activations");
    for (int32_t i = 0; i < item->n_out && !code; i++) {
        const float *logits = item->logits + i * n;
        if (!be->ops->argmax || !be->ops->exp_scaled)
            break;
        int64_t best = be->ops->argmax(be, logits, n, &is_finite);
        be->ops->exp_scaled(be, weights, logits, n, logits[best], 0.7f);
    }
    return code;
}

enum err_code verify_run_ops(struct model *m, enum dtype cache_type, const int32_t *ids, int32_t n,
                             int32_t *n_steps, struct err *err)
{
    BUG_ON(n < 1);
    struct runner_options ro = { .model = m,
                                 .n_ctx = n,
                                 .max_seqs = 1,
                                 .max_rows = n,
                                 .max_out = VERIFY_FEW_ROWS,
                                 .cache_type = cache_type };
    struct runner *r = NULL;
    struct runner_item item = { 0 };
    float *weights = mem_try_array(MEM_CAT_SCRATCH, (size_t)m->n_vocab, sizeof(*weights));
    enum err_code code = ERR_OK;
    if (!weights)
        code = err_set(err, ERR_NOMEM, "no memory for %lld logits", (long long)m->n_vocab);
    if (!code)
        code = runner_new(&ro, &r, err);
    if (!code)
        code = runner_open(r, &item.seq, err);
    if (!code)
        code = runner_reserve(r, item.seq, n, err);
    m->tap = (struct model_tap){ verify_layer, m->be };
    *n_steps = 0;
    for (int32_t at = 0; at < n && !code; at += item.n, ++*n_steps) {
        int32_t rest = n - at;
        item.ids = ids + at;
        int32_t few = rest - VERIFY_SINGLE_ROWS < VERIFY_FEW_ROWS ? rest - VERIFY_SINGLE_ROWS
                                                                  : VERIFY_FEW_ROWS;
        item.n = at == 0 ? (n + 1) / 2 : few > 0 ? few : 1;
        item.n_out = item.n < VERIFY_FEW_ROWS ? item.n : at == 0 ? 1 : VERIFY_FEW_ROWS;
        code = verify_step(r, &item, weights, err);
    }
    m->tap = (struct model_tap){ 0 };
    runner_free(r);
    mem_free(MEM_CAT_SCRATCH, weights);
    return code;
}

int verify_n_different(const struct backend *be)
{
    const struct compare_result *r;
    int n = 0;
    for (int i = 0; (r = compare_result_at(be, i)) != NULL; i++)
        n += r->n_different > 0;
    return n;
}

static const char *type_name(enum dtype type)
{
    return type == DTYPE_COUNT ? "" : dtype_info(type)->name;
}

static void print_first(const struct compare_result *r, struct buf *out)
{
    const struct compare_diff *d = &r->first;
    buf_printf(out,
               "%s %s: call %lld, layer %d%s%s, element [%lld][%lld] of [%lld][%lld] is %.9g, "
               "by ref %.9g\n",
               compare_op_name(r->op), type_name(r->type), (long long)d->call, d->layer,
               d->name[0] ? ", " : "", d->name, (long long)d->row, (long long)d->col,
               (long long)d->rows, (long long)d->cols, (double)d->fast, (double)d->oracle);
}

void verify_print_ops(const struct backend *be, struct buf *out)
{
    const struct compare_result *r;
    buf_printf(out, "%-12s %-8s %8s %14s %10s  %s\n", "op", "type", "calls", "elements",
               "different", "largest deviation");
    for (int i = 0; (r = compare_result_at(be, i)) != NULL; i++)
        buf_printf(out, "%-12s %-8s %8lld %14lld %10lld  %g\n", compare_op_name(r->op),
                   type_name(r->type), (long long)r->n_calls, (long long)r->n_elements,
                   (long long)r->n_different, r->max_diff);
    for (int i = 0; (r = compare_result_at(be, i)) != NULL; i++)
        if (r->n_different)
            print_first(r, out);
}

static void write_first(struct json_writer *w, const struct compare_diff *d)
{
    json_field_object(w, "first");
    json_field_int(w, "call", d->call);
    json_field_int(w, "layer", d->layer);
    json_field_str(w, "weight", d->name);
    json_field_array(w, "shape");
    json_int(w, d->rows);
    json_int(w, d->cols);
    json_end_array(w);
    json_field_int(w, "row", d->row);
    json_field_int(w, "column", d->col);
    json_field_double(w, "value", (double)d->fast);
    json_field_double(w, "reference", (double)d->oracle);
    json_end_object(w);
}

void verify_write_ops(const struct backend *be, struct json_writer *w)
{
    const struct compare_result *r;
    json_field_array(w, "ops");
    for (int i = 0; (r = compare_result_at(be, i)) != NULL; i++) {
        json_begin_object(w);
        json_field_str(w, "op", compare_op_name(r->op));
        if (r->type != DTYPE_COUNT)
            json_field_str(w, "type", type_name(r->type));
        json_field_int(w, "calls", r->n_calls);
        json_field_int(w, "elements", r->n_elements);
        json_field_int(w, "different", r->n_different);
        json_field_double(w, "largest_deviation", r->max_diff);
        if (r->n_different)
            write_first(w, &r->first);
        json_end_object(w);
    }
    json_end_array(w);
    json_field_bool(w, "is_equal", verify_n_different(be) == 0);
}

/* --- distributions --- */

struct scoring {
    const struct verify_options *o;
    int64_t n_vocab, n_same;
    float *wanted; /* [V] the reference's */
    double *kl;    /* [n] */
    int64_t n, n_max;
    double nll, reference_nll;
};

/* logits [V] to log probabilities in place, with sums in f64; returns the likeliest id. */
static int64_t to_logprobs(float *x, int64_t n)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    float max = x[best];
    for (int64_t i = 0; i < n; i++)
        sum += dmath_exp((double)x[i] - (double)max);
    double lse = (double)max + dmath_log(sum);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] - lse);
    return best;
}

/* KL(p || q) of log probabilities; what of p is under `floor` counts for nothing. */
static double divergence(const float *p, const float *q, int64_t n, double floor)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        if ((double)p[i] > floor)
            sum += dmath_exp((double)p[i]) * ((double)p[i] - (double)q[i]);
    return sum;
}

/* Compare one position with the reference's log probabilities, whose likeliest id is wanted_best. */
static void score_against(struct scoring *s, const float *p, const float *q, int64_t best,
                          int64_t wanted_best, int32_t next)
{
    double floor = s->o->reference ? -(double)INFINITY : KLD_FILE_FLOOR;
    s->reference_nll -= (double)p[next];
    s->n_same += best == wanted_best;
    s->kl[s->n] = divergence(p, q, s->n_vocab, floor);
}

static enum err_code verify_row(void *ctx, float *const *logits, int32_t next, struct err *err)
{
    struct scoring *s = ctx;
    const struct verify_options *o = s->o;
    int64_t best = to_logprobs(logits[0], s->n_vocab), wanted_best = 0;
    enum err_code code = ERR_OK;
    BUG_ON(s->n >= s->n_max);
    s->nll -= (double)logits[0][next];
    if (o->save)
        code = kld_file_write(o->save, logits[0], err);
    if (o->reference) {
        wanted_best = to_logprobs(logits[1], s->n_vocab);
        score_against(s, logits[1], logits[0], best, wanted_best, next);
    } else if (o->reference_file && !code) {
        code = kld_file_read(o->reference_file, s->wanted, err);
        for (int64_t i = 1; i < s->n_vocab && !code; i++)
            wanted_best = s->wanted[i] > s->wanted[wanted_best] ? i : wanted_best;
        if (!code)
            score_against(s, s->wanted, logits[0], best, wanted_best, next);
    }
    s->n++;
    return code;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void verify_sum_up(struct scoring *s, struct verify_divergence *out)
{
    double sum = 0, squares = 0, n = (double)s->n;
    bool has_reference = s->o->reference || s->o->reference_file;
    *out = (struct verify_divergence){ .n = s->n, .perplexity = dmath_exp(s->nll / n) };
    if (!has_reference)
        return;
    for (int64_t i = 0; i < s->n; i++) {
        sum += s->kl[i];
        squares += s->kl[i] * s->kl[i];
    }
    qsort(s->kl, (size_t)s->n, sizeof(*s->kl), by_value);
    out->kl_mean = sum / n;
    if (s->n > 1)
        out->kl_error = score_root((squares / n - out->kl_mean * out->kl_mean) / (n - 1));
    out->kl_median = s->kl[s->n / 2];
    out->kl_99 = s->kl[(s->n - 1) * 99 / 100];
    out->kl_max = s->kl[s->n - 1];
    out->same_top = (double)s->n_same / n;
    out->reference_perplexity = dmath_exp(s->reference_nll / n);
}

enum err_code verify_score(const struct verify_options *o, const int32_t *ids, int32_t window,
                           int32_t n_windows, struct verify_divergence *out, struct err *err)
{
    struct runner *runners[] = { o->runner, o->reference };
    struct scoring s = { .o = o, .n_vocab = o->runner->model->n_vocab };
    struct score_options so = { .runners = runners,
                                .n_models = o->reference ? 2 : 1,
                                .bos = o->bos,
                                .on_row = verify_row,
                                .ctx = &s };
    int64_t theirs = o->reference        ? o->reference->model->n_vocab
                     : o->reference_file ? o->reference_file->n_vocab
                                         : s.n_vocab;
    if (theirs != s.n_vocab)
        return err_set(err, ERR_INVALID,
                       "the reference has a vocabulary of %lld tokens, the model of %lld",
                       (long long)theirs, (long long)s.n_vocab);
    s.n_max = (int64_t)score_rows(window) * n_windows;
    s.kl = mem_try_array(MEM_CAT_SCRATCH, (size_t)s.n_max, sizeof(*s.kl));
    s.wanted = mem_try_array(MEM_CAT_SCRATCH, (size_t)s.n_vocab, sizeof(*s.wanted));
    enum err_code code = ERR_OK;
    if (!s.kl || !s.wanted)
        code = err_set(err, ERR_NOMEM, "no memory for %lld positions", (long long)s.n_max);
    for (int32_t i = 0; i < n_windows && !code; i++)
        code = score_window(&so, ids + (int64_t)i * window, window, err);
    if (!code)
        verify_sum_up(&s, out);
    mem_free(MEM_CAT_SCRATCH, s.kl);
    mem_free(MEM_CAT_SCRATCH, s.wanted);
    return code;
}
