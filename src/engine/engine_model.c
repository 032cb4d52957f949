#include "engine/engine_model.h"
#include "base/clock.h"
#include "engine/match.h"
#include "engine/sample.h"

#include <stdio.h>
#include <string.h>

/* Version of the CPU contract of docs/numerics.md: every CPU backend, level and thread count gives its bits. */
#define ENGINE_NUMERICS "cpu-1"

struct row {
    bool is_open;
    bool is_finished;
    bool ignore_end;
    int32_t seq;
    int32_t n_prompt;
    int32_t n_ids;   /* prompt and answer so far */
    int32_t n_fed;   /* of them in the cache */
    int32_t ids_max; /* n_prompt + the most tokens of the answer */
    int32_t *ids;    /* [ids_max] */
    struct sample_params sample;
    struct logit_bias *bias; /* the copy that sample.bias points to */
    struct match match;
    struct engine_token token; /* of the last step */
};

struct engine_model {
    struct engine base; /* first: the vtable casts */
    char fingerprint[20];
    char *model_id;
    struct runner *runner;
    struct sampler sampler;
    const struct engine_bytes *token_bytes;
    const int32_t *end_ids;
    int32_t n_end;
    int32_t *keep; /* [n_keep] end ids and newlines: what XTC spares */
    int32_t n_keep;
    struct row *rows;          /* [max_rows] */
    struct runner_item *items; /* [max_rows] */
};

static struct engine_model *engine_model_of(struct engine *e)
{
    return (struct engine_model *)(void *)e;
}

/* --- open and close --- */

static void row_release(struct row *row)
{
    mem_free(MEM_CAT_REQUEST, row->ids);
    mem_free(MEM_CAT_REQUEST, row->bias);
    match_release(&row->match);
    *row = (struct row){ 0 };
}

static enum err_code engine_model_check(const struct engine_model *em,
                                        const struct engine_request *req, struct err *err)
{
    const struct engine_info *info = &em->base.info;
    if (req->n_prompt < 1)
        return err_set(err, ERR_INVALID, "prompt: it has no tokens");
    if (req->n_prompt >= info->n_ctx)
        return err_set(
            err, ERR_FULL,
            "prompt: %d tokens do not fit into the context of %d with room for an answer",
            req->n_prompt, info->n_ctx);
    if (req->max_tokens == 0)
        return err_set(err, ERR_INVALID, "max_tokens: 0, at least 1 is needed");
    for (int32_t i = 0; i < req->n_prompt; i++)
        if (req->prompt[i] < 0 || req->prompt[i] >= info->n_vocab)
            return err_set(err, ERR_INVALID, "prompt: token id %d at %d is not in [0, %d)",
                           req->prompt[i], i, info->n_vocab);
    return sample_params_check(&req->sample, info->n_vocab, err);
}

static enum err_code row_init(struct row *row, const struct engine_request *req, int32_t n_ctx,
                              struct err *err)
{
    int32_t room = n_ctx - req->n_prompt;
    int32_t n_new = req->max_tokens < 0 || req->max_tokens > room ? room : req->max_tokens;
    size_t n_bias = (size_t)req->sample.n_bias;
    *row = (struct row){ .ignore_end = req->ignore_end,
                         .n_prompt = req->n_prompt,
                         .n_ids = req->n_prompt,
                         .ids_max = req->n_prompt + n_new,
                         .sample = req->sample };
    row->ids = mem_try_array(MEM_CAT_REQUEST, (size_t)row->ids_max, sizeof(*row->ids));
    row->bias = mem_try_array(MEM_CAT_REQUEST, n_bias, sizeof(*row->bias));
    if (!row->ids || !row->bias)
        return err_set(err, ERR_NOMEM, "request: no memory for %d token ids", row->ids_max);
    memcpy(row->ids, req->prompt, (size_t)req->n_prompt * sizeof(*row->ids));
    if (n_bias)
        memcpy(row->bias, req->sample.bias, n_bias * sizeof(*row->bias));
    row->sample.bias = row->bias;
    return match_init(&row->match, req->stops, req->n_stops, err);
}

static enum err_code engine_model_open(struct engine *e, const struct engine_request *req,
                                       row_id *out, struct err *err)
{
    struct engine_model *em = engine_model_of(e);
    enum err_code code = engine_model_check(em, req, err);
    if (code)
        return code;
    row_id id = 0;
    while (id < e->info.max_rows && em->rows[id].is_open)
        id++;
    if (id == e->info.max_rows)
        return err_set(err, ERR_NOMEM, "all %d rows are in use", e->info.max_rows);
    struct row *row = &em->rows[id];
    code = row_init(row, req, e->info.n_ctx, err);
    if (!code) /* the last token of an answer is never fed back */
        code = runner_open(em->runner, row->ids_max - 1, &row->seq, err);
    if (code) {
        row_release(row);
        return code;
    }
    row->is_open = true;
    *out = id;
    return ERR_OK;
}

static void engine_model_close(struct engine *e, row_id id)
{
    struct engine_model *em = engine_model_of(e);
    BUG_ON(id < 0 || id >= e->info.max_rows || !em->rows[id].is_open);
    runner_close(em->runner, em->rows[id].seq);
    row_release(&em->rows[id]);
}

/* --- steps --- */

static enum err_code row_plan(struct row *row, const struct engine_work *work,
                              struct runner_item *item, struct err *err)
{
    int32_t left = row->n_ids - row->n_fed;
    if (!row->is_open || row->is_finished)
        return err_set(err, ERR_STATE, "row %d is %s", work->row,
                       row->is_open ? "finished" : "not open");
    if (work->n_tokens < 1)
        return err_set(err, ERR_STATE, "row %d: asked for %d tokens", work->row, work->n_tokens);
    int32_t n = work->n_tokens < left ? work->n_tokens : left;
    *item = (struct runner_item){ .seq = row->seq,
                                  .ids = row->ids + row->n_fed,
                                  .n = n,
                                  .out = n >= left ? RUNNER_OUT_LAST : RUNNER_OUT_NONE };
    return ERR_OK;
}

static bool engine_model_is_end(const struct engine_model *em, int32_t id)
{
    for (int32_t i = 0; i < em->n_end; i++)
        if (em->end_ids[i] == id)
            return true;
    return false;
}

static void row_finish(struct row *row, struct engine_result *res, enum finish finish)
{
    row->is_finished = true;
    res->finish = finish;
    if (finish != FINISH_STOP_STRING)
        match_finish(&row->match);
}

/* Sample from the row's logits and emit. */
static void row_emit(struct engine_model *em, struct row *row, float *logits,
                     struct engine_result *res)
{
    struct sample_context ctx = {
        .history = row->ids, .n_history = row->n_ids, .keep = em->keep, .n_keep = em->n_keep
    };
    if (sample_token(&em->sampler, logits, &row->sample, &ctx, &row->token, &res->err)) {
        row_finish(row, res, FINISH_ERROR);
        return;
    }
    int32_t id = row->token.id;
    if (!row->ignore_end && engine_model_is_end(em, id)) {
        row_finish(row, res, FINISH_END);
        return;
    }
    row->ids[row->n_ids++] = id;
    res->tokens = &row->token;
    res->n_tokens = 1;
    const struct engine_bytes *bytes = &em->token_bytes[id];
    int32_t stop = match_feed(&row->match, bytes->data, bytes->len);
    if (stop >= 0) {
        res->stop_index = stop;
        row_finish(row, res, FINISH_STOP_STRING);
    } else if (row->n_ids == row->ids_max) {
        row_finish(row, res, FINISH_LENGTH);
    }
}

static void row_take(struct engine_model *em, struct row *row, const struct runner_item *item,
                     struct engine_result *res)
{
    row->n_fed += item->n;
    res->n_taken = item->n;
    if (item->has_failed) {
        err_set(&res->err, ERR_NUMERIC,
                "non-finite values at positions [%d, %d); the model file may be damaged",
                row->n_fed - item->n, row->n_fed);
        row_finish(row, res, FINISH_ERROR);
    } else if (item->logits) {
        row_emit(em, row, item->logits, res);
    }
    res->text_safe = row->match.text_safe;
}

static enum err_code engine_model_step(struct engine *e, const struct engine_work *work, int32_t n,
                                       struct engine_result *results, struct err *err)
{
    struct engine_model *em = engine_model_of(e);
    int64_t n_rows = 0;
    if (n < 1 || n > e->info.max_rows)
        return err_set(err, ERR_STATE, "step of %d rows, 1 to %d are possible", n,
                       e->info.max_rows);
    mem_guard_enter();
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < n && !code; i++) {
        BUG_ON(work[i].row < 0 || work[i].row >= e->info.max_rows);
        code = row_plan(&em->rows[work[i].row], &work[i], &em->items[i], err);
        n_rows += code ? 0 : em->items[i].n;
    }
    if (!code && n_rows > e->info.max_step_rows)
        code = err_set(err, ERR_STATE, "step of %lld tokens, at most %d", (long long)n_rows,
                       e->info.max_step_rows);
    if (!code)
        code = runner_step(em->runner, em->items, n, err);
    for (int32_t i = 0; i < n && !code; i++) {
        results[i] = (struct engine_result){ .row = work[i].row };
        row_take(em, &em->rows[work[i].row], &em->items[i], &results[i]);
    }
    mem_guard_leave();
    return code;
}

/* --- life --- */

static void engine_model_free(struct engine *e)
{
    struct engine_model *em = engine_model_of(e);
    for (row_id i = 0; em->rows && i < e->info.max_rows; i++)
        row_release(&em->rows[i]);
    runner_free(em->runner);
    sampler_release(&em->sampler);
    mem_free(MEM_CAT_BASE, em->rows);
    mem_free(MEM_CAT_BASE, em->items);
    mem_free(MEM_CAT_BASE, em->keep);
    mem_free(MEM_CAT_BASE, em->model_id);
    mem_free(MEM_CAT_BASE, em);
}

static const struct engine_ops engine_model_ops = {
    .open = engine_model_open,
    .step = engine_model_step,
    .close = engine_model_close,
    .free = engine_model_free,
};

void engine_model_fingerprint(const char *weights_digest, const char *numerics, char out[20])
{
    char text[160];
    uint64_t h = 14695981039346656037u; /* FNV-1a, 64 bits: an identity, not a secret */
    snprintf(text, sizeof(text), "%s/%s/%s", weights_digest, PLUMB_VERSION, numerics);
    for (const char *p = text; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    snprintf(out, 20, "fp_%012llx", (unsigned long long)(h >> 16));
}

/* What XTC spares: end ids and every token that is just a newline. */
static void engine_model_init_keep(struct engine_model *em)
{
    int32_t n_vocab = em->base.info.n_vocab, n = em->n_end;
    for (int32_t i = 0; i < n_vocab; i++)
        n += em->token_bytes[i].len == 1 && em->token_bytes[i].data[0] == '\n';
    em->keep = mem_alloc(MEM_CAT_BASE, (size_t)n * sizeof(*em->keep));
    for (int32_t i = 0; i < em->n_end; i++)
        em->keep[em->n_keep++] = em->end_ids[i];
    for (int32_t i = 0; i < n_vocab; i++)
        if (em->token_bytes[i].len == 1 && em->token_bytes[i].data[0] == '\n')
            em->keep[em->n_keep++] = i;
}

enum err_code engine_model_new(const struct engine_model_options *o, struct engine **out,
                               struct err *err)
{
    const struct model *m = o->model;
    int32_t max_rows = o->max_rows > 0 ? o->max_rows : ENGINE_MODEL_ROWS;
    int32_t max_step_rows = o->max_step_rows > 0 ? o->max_step_rows : ENGINE_MODEL_STEP_ROWS;
    struct engine_model *em = mem_alloc(MEM_CAT_BASE, sizeof(*em));
    em->base.ops = &engine_model_ops;
    em->token_bytes = o->token_bytes;
    em->end_ids = o->end_ids;
    em->n_end = o->n_end;
    em->rows = mem_alloc(MEM_CAT_BASE, (size_t)max_rows * sizeof(*em->rows));
    em->items = mem_alloc(MEM_CAT_BASE, (size_t)max_rows * sizeof(*em->items));
    em->model_id = mem_strdup(MEM_CAT_BASE, o->model_id);
    engine_model_fingerprint(o->weights_digest, ENGINE_NUMERICS, em->fingerprint);
    em->base.info = (struct engine_info){ .model_id = em->model_id,
                                          .fingerprint = em->fingerprint,
                                          .n_vocab = (int32_t)m->n_vocab,
                                          .n_ctx_train = (int32_t)m->n_ctx_train,
                                          .max_rows = max_rows,
                                          .max_step_rows = max_step_rows,
                                          .created = clock_wall_s() };
    engine_model_init_keep(em);
    struct runner_options ro = { .model = o->model,
                                 .n_ctx = o->n_ctx,
                                 .kv_bytes = o->kv_bytes,
                                 .max_seqs = max_rows,
                                 .max_rows = max_step_rows,
                                 .max_out = max_rows < max_step_rows ? max_rows : max_step_rows,
                                 .cache_type = o->cache_type };
    enum err_code code = runner_new(&ro, &em->runner, err);
    if (!code)
        code = sampler_init(&em->sampler, (int32_t)m->n_vocab, err);
    if (code) {
        engine_model_free(&em->base);
        return code;
    }
    em->base.info.n_ctx = em->runner->n_ctx;
    *out = &em->base;
    return ERR_OK;
}

const struct runner *engine_model_runner(const struct engine *e)
{
    return ((const struct engine_model *)(const void *)e)->runner;
}
