#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_int.h"
#include "tensor/ops.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

/* --- open and close --- */

static void row_release(struct row *row)
{
    mem_free(MEM_CAT_REQUEST, row->ids);
    mem_free(MEM_CAT_REQUEST, row->bias);
    guide_release(&row->guide);
    constraint_release(&row->constraint);
    *row = (struct row){ 0 };
}

/* What a request may want beside or instead of an answer. */
static enum err_code engine_model_check_scores(const struct engine_model *em,
                                               const struct engine_request *req, struct err *err)
{
    const struct engine_signal *sig = &req->signal;
    const struct engine_info *info = &em->base.info;
    bool is_answered = !req->hidden || req->prompt_scores || sig->n_bins != 0;
    if ((info->is_embedder || info->n_labels > 0) && is_answered)
        return err_set(err, ERR_INVALID, "%s",
                       info->n_labels > 0 ? ENGINE_CLASSIFIER_TEXT : ENGINE_EMBEDDER_TEXT);
    bool is_signal = sig->n_bins != 0;
    if (sig->n_bins < 0 || sig->n_bins > ENGINE_SIGNAL_BINS_MAX)
        return err_set(err, ERR_INVALID, "signal: %d bins are not in [1, %d]", sig->n_bins,
                       ENGINE_SIGNAL_BINS_MAX);
    if (is_signal && !(sig->minimum < 0 && sig->minimum >= -FLT_MAX))
        return err_set(err, ERR_INVALID, "signal: a minimum of %g is not a finite number below 0",
                       (double)sig->minimum);
    if (is_signal && (req->max_tokens != 0 || !sig->bins))
        return err_set(err, ERR_INVALID, "signal: it has no answer, but max_tokens is %d",
                       req->max_tokens);
    if (req->prompt_scores && (req->n_score_top < 0 || req->n_score_top > ENGINE_LOGPROBS_MAX))
        return err_set(err, ERR_INVALID, "prompt scores: %d alternatives are not in [0, %d]",
                       req->n_score_top, ENGINE_LOGPROBS_MAX);
    if (req->hidden && req->max_tokens != 0)
        return err_set(err, ERR_INVALID, "embedding: it has no answer, but max_tokens is %d",
                       req->max_tokens);
    if (req->max_tokens == 0 && !is_signal && !req->hidden && !req->prompt_scores)
        return err_set(err, ERR_INVALID, "max_tokens: 0, at least 1 is needed");
    return ERR_OK;
}

static enum err_code engine_model_check(const struct engine_model *em,
                                        const struct engine_request *req, struct err *err)
{
    const struct engine_info *info = &em->base.info;
    if (req->n_prompt < 1)
        return err_set(err, ERR_INVALID, "prompt: it has no tokens");
    if (req->n_prompt > info->n_ctx || (req->n_prompt == info->n_ctx && req->max_tokens != 0))
        return err_set(err, ERR_FULL, "prompt: %d tokens do not fit into the context of %d%s",
                       req->n_prompt, info->n_ctx,
                       req->max_tokens != 0 ? " with room for an answer" : "");
    enum err_code code = engine_model_check_scores(em, req, err);
    if (code)
        return code;
    if (req->n_end_ids < 0 || req->n_end_ids > ENGINE_ENDS_MAX)
        return err_set(err, ERR_INVALID, "%d end ids, at most %d are allowed", req->n_end_ids,
                       ENGINE_ENDS_MAX);
    for (int32_t i = 0; i < req->n_prompt; i++)
        if (req->prompt[i] < 0 || req->prompt[i] >= info->n_vocab)
            return err_set(err, ERR_INVALID, "prompt: token id %d at %d is not in [0, %d)",
                           req->prompt[i], i, info->n_vocab);
    for (int32_t i = 0; i < req->n_begun; i++)
        if (req->begun[i] < 0 || req->begun[i] >= info->n_vocab)
            return err_set(err, ERR_INVALID, "begun answer: token id %d at %d is not in [0, %d)",
                           req->begun[i], i, info->n_vocab);
    return sample_params_check(&req->sample, info->n_vocab, err);
}

/* Step over what the answer has begun with: the row is as it was when that had been emitted. */
static enum err_code row_begin(struct row *row, const struct engine_request *req,
                               const struct engine_bytes *token_bytes, struct err *err)
{
    if (req->n_begun > 0 && req->n_begun >= row->ids_max - row->n_prompt)
        return err_set(err, ERR_INVALID, "begun answer: %d tokens, it ends after %d", req->n_begun,
                       row->ids_max - row->n_prompt);
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < req->n_begun && !code; i++) {
        row->ids[row->n_ids++] = req->begun[i];
        if (row_feed(row, token_bytes, req->begun[i], &code, err) >= 0)
            return err_set(err, ERR_INVALID,
                           "begun answer: a stop string has ended it with token %d of %d", i + 1,
                           req->n_begun);
    }
    if (!code && row->constraint.state && constraint_is_over(&row->constraint, &row->guide))
        code =
            err_set(err, ERR_INVALID, "begun answer: its grammar ends with token %d", req->n_begun);
    return code;
}

static enum err_code row_init(struct row *row, const struct engine_request *req, int32_t n_ctx,
                              int32_t n_vocab, struct err *err)
{
    int32_t room = n_ctx - req->n_prompt;
    int32_t n_new = req->max_tokens < 0 || req->max_tokens > room ? room : req->max_tokens;
    size_t n_bias = (size_t)req->sample.n_bias;
    *row = (struct row){ .ignore_end = req->ignore_end,
                         .n_prompt = req->n_prompt,
                         .n_ids = req->n_prompt,
                         .ids_max = req->n_prompt + n_new,
                         .fed_max = req->n_prompt + (n_new > 0 ? n_new - 1 : 0),
                         .n_scored = req->prompt_scores ? 1 : req->n_prompt,
                         .n_score_top = req->n_score_top,
                         .scores = req->prompt_scores,
                         .signal = req->signal,
                         .hidden = req->hidden,
                         .miss = req->miss,
                         .no_drafts = req->no_drafts || n_new < 2,
                         .n_ends = req->n_end_ids,
                         .session = req->session,
                         .sample = req->sample };
    memcpy(row->salt, req->cache_salt, sizeof(row->salt));
    memcpy(row->end_ids, req->end_ids, sizeof(row->end_ids));
    if (row->scores)
        row->scores[0] = (struct engine_token){ .id = req->prompt[0] };
    row->ids = mem_try_array(MEM_CAT_REQUEST, (size_t)row->ids_max, sizeof(*row->ids));
    row->bias = mem_try_array(MEM_CAT_REQUEST, n_bias, sizeof(*row->bias));
    if (!row->ids || !row->bias)
        return err_set(err, ERR_NOMEM, "request: no memory for %d token ids", row->ids_max);
    memcpy(row->ids, req->prompt, (size_t)req->n_prompt * sizeof(*row->ids));
    if (n_bias)
        memcpy(row->bias, req->sample.bias, n_bias * sizeof(*row->bias));
    row->sample.bias = row->bias;
    enum err_code code = guide_init(&row->guide, req, n_vocab, err);
    return code ? code : constraint_init(&row->constraint, req->grammar, n_vocab, err);
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
    code = row_init(row, req, e->info.n_ctx, e->info.n_vocab, err);
    if (!code)
        code = row_begin(row, req, em->token_bytes, err);
    if (!code)
        engine_cuts_choose(em, row, req);
    if (!code)
        code = runner_open(em->runner, &row->seq, err);
    if (code) {
        row_release(row);
        return code;
    }
    row->is_open = true;
    draft_open(em, id, req);
    *out = id;
    return ERR_OK;
}

void row_keep(struct engine_model *em, const struct row *row, bool goes_on)
{
    if (!row->has_failed && row->ids_max > row->n_prompt) /* what has no answer has no next turn */
        runner_keep(em->runner, row->seq, row->salt, row->ids, row->n_fed, goes_on);
}

/* What the row leaves is its session's. */
static void row_pin(struct engine_model *em, const struct row *row)
{
    if (row->session != 0 && !row->has_failed && row->ids_max > row->n_prompt)
        runner_pin(em->runner, row->session, row->salt, row->ids, row->n_fed,
                   row->cut_to_disk < row->n_fed ? row->cut_to_disk : 0);
}

static void engine_model_close(struct engine *e, row_id id)
{
    struct engine_model *em = engine_model_of(e);
    struct row *row = engine_model_row(em, id);
    row_keep(em, row, false);
    row_pin(em, row);
    runner_close(em->runner, row->seq);
    draft_close(em, id);
    row_release(row);
}

/* --- memory --- */

static enum err_code engine_model_grow(struct engine *e, row_id id, int32_t n_tokens,
                                       struct err *err)
{
    struct engine_model *em = engine_model_of(e);
    struct row *row = engine_model_row(em, id);
    int32_t n = n_tokens < row->fed_max ? n_tokens : row->fed_max;
    mem_guard_enter();
    enum err_code code = runner_reserve(em->runner, row->seq, n, err);
    mem_guard_leave();
    return code;
}

static int32_t engine_model_share(struct engine *e, row_id id, row_id from_id)
{
    struct engine_model *em = engine_model_of(e);
    struct row *row = engine_model_row(em, id), *from = engine_model_row(em, from_id);
    BUG_ON(row->n_fed > 0 || row == from);
    if (from->has_failed || row->n_scored < row->n_prompt || e->info.is_embedder)
        return 0; /* what failed alone fails alone; a score needs its position's logits */
    int32_t max = from->n_fed < row->n_prompt - 1 ? from->n_fed : row->n_prompt - 1, n = 0;
    while (n < max && row->ids[n] == from->ids[n])
        n++;
    mem_guard_enter();
    row->n_fed = runner_share(em->runner, row->seq, from->seq, n);
    mem_guard_leave();
    return row->n_fed;
}

/* What is told is about the prompt, though an answer that is resumed finds what it had emitted, too. */
static int32_t row_reuse_told(struct engine_model *em, struct row *row)
{
    struct engine_miss *m = row->miss;
    int32_t n = runner_reuse_told(em->runner, row->seq, row->salt, row->ids, row->n_ids, m);
    int32_t left = row->n_prompt - (m->n_found < row->n_prompt ? m->n_found : row->n_prompt);
    m->n_given_up = m->n_given_up < left ? m->n_given_up : left;
    m->n_found = row->n_prompt - left;
    m->n_reused = n < row->n_prompt ? n : row->n_prompt;
    m->n_disk = m->n_disk < m->n_reused ? m->n_disk : m->n_reused;
    return n;
}

static int32_t engine_model_reuse(struct engine *e, row_id id)
{
    struct engine_model *em = engine_model_of(e);
    struct row *row = engine_model_row(em, id);
    BUG_ON(row->n_fed > 0);
    if (e->info.is_embedder) /* a token's keys depend on what comes after it */
        return 0;
    if (row->n_scored < row->n_prompt) { /* a score needs its position's logits */
        if (row->miss)
            row->miss->reason = ENGINE_MISS_SCORED;
        return 0;
    }
    mem_guard_enter();
    row->n_fed = row->miss
                     ? row_reuse_told(em, row)
                     : runner_reuse(em->runner, row->seq, row->salt, row->ids, row->n_ids - 1);
    mem_guard_leave();
    return row->n_fed;
}

static void engine_model_unpin(struct engine *e, uint64_t session)
{
    runner_unpin(engine_model_of(e)->runner, session);
}

static bool engine_model_fetch(struct engine *e, row_id id)
{
    struct engine_model *em = engine_model_of(e);
    const struct row *row = engine_model_row(em, id);
    if (row->n_fed > 0 || row->n_scored < row->n_prompt)
        return false; /* a score needs its position's logits */
    return runner_fetch(em->runner, row->seq, row->salt, row->ids, row->n_ids - 1);
}

static bool engine_model_is_fetching(const struct engine *e, row_id id)
{
    const struct engine_model *em = (const struct engine_model *)(const void *)e;
    return runner_is_fetching(em->runner, em->rows[id].seq);
}

static int64_t engine_model_tend(struct engine *e)
{
    return runner_tier_tend(engine_model_of(e)->runner);
}

static void engine_model_set_wake(struct engine *e, void (*wake)(void *arg), void *arg)
{
    runner_tier_set_wake(engine_model_of(e)->runner, wake, arg);
}

static void engine_model_set_meanwhile(struct engine *e, void (*fn)(void *arg), void *arg)
{
    runner_set_meanwhile(engine_model_of(e)->runner, fn, arg);
}

static void engine_model_flush(struct engine *e)
{
    runner_flush(engine_model_of(e)->runner);
}

static bool engine_model_flush_is_over(struct engine *e, bool *is_durable)
{
    return runner_flush_is_over(engine_model_of(e)->runner, is_durable);
}

static void engine_model_disk_stats(const struct engine *e, struct engine_disk_stats *out)
{
    const struct runner *r = engine_model_runner(e);
    struct tier_stats s;
    runner_tier_stats(r, &s);
    *out = (struct engine_disk_stats){ .is_there = r->tier != NULL,
                                       .is_on = s.is_on,
                                       .files = s.files,
                                       .bytes = s.bytes,
                                       .max_bytes = s.max_bytes,
                                       .written = s.written,
                                       .written_bytes = s.written_bytes,
                                       .read = s.read,
                                       .read_bytes = s.read_bytes,
                                       .dropped = s.dropped,
                                       .failed = s.failed,
                                       .evicted = s.evicted,
                                       .quarantined = s.quarantined,
                                       .pending = s.pending };
}

/* What was emitted stays: the ids are fed again and only the last one's logits are looked at. */
static void engine_model_rewind(struct engine *e, row_id id)
{
    struct engine_model *em = engine_model_of(e);
    struct row *row = engine_model_row(em, id);
    mem_guard_enter();
    row_keep(em, row, false);
    runner_rewind(em->runner, row->seq);
    mem_guard_leave();
    row->n_fed = 0;
    if (row->n_ids > row->n_prompt) /* its cuts were kept on the first way */
        row->n_cuts = 0;
}

static enum err_code engine_model_mend(struct engine *e, struct err *err)
{
    struct engine_model *em = engine_model_of(e);
    struct drafter *slow = em->slow;
    if (em->is_lost && (!em->restore || (slow && !slow->ops->lose)))
        return err_set(err, ERR_UNSUPPORTED, "nothing is known that would open it again");
    for (row_id i = 0; i < e->info.max_rows; i++) {
        struct row *row = &em->rows[i];
        row->n_fed = 0;
        if (row->n_ids > row->n_prompt)
            row->n_cuts = 0;
    }
    if (!em->is_lost) {
        runner_forget(em->runner); /* guesses may be wrong */
        return ERR_OK;
    }
    runner_lose(em->runner);
    if (slow)
        slow->ops->lose(slow);
    enum err_code code = em->restore(em->restore_ctx, err);
    if (code) /* there may be no device to ask */
        return code;
    code = runner_restore(em->runner, err);
    if (!code && slow)
        code = slow->ops->mend(slow, err);
    if (!code)
        code = runner_warm(em->runner, err);
    code = ops_loaded(em->runner->model->be, code, err);
    em->is_lost = code != ERR_OK;
    return code;
}

static void engine_model_usage(const struct engine *e, struct engine_usage *out)
{
    runner_usage(engine_model_runner(e), out);
}

/* --- life --- */

static void engine_model_free(struct engine *e)
{
    struct engine_model *em = engine_model_of(e);
    for (row_id i = 0; em->rows && i < e->info.max_rows; i++) {
        if (em->rows[i].is_open)
            draft_close(em, i);
        row_release(&em->rows[i]);
    }
    runner_free(em->runner);
    for (int i = 0; i < em->n_samplers; i++)
        sampler_release(&em->samplers[i]);
    mem_free(MEM_CAT_BASE, em->rows);
    mem_free(MEM_CAT_BASE, em->items);
    mem_free(MEM_CAT_BASE, em->asks);
    mem_free(MEM_CAT_BASE, em->plan);
    mem_free(MEM_CAT_BASE, em->seen);
    mem_free(MEM_CAT_BASE, em->keep);
    mem_free(MEM_CAT_BASE, em->no_end);
    mem_free(MEM_CAT_BASE, em->model_id);
    mem_free(MEM_CAT_BASE, em);
}

static const struct engine_ops engine_model_ops = {
    .open = engine_model_open,
    .grow = engine_model_grow,
    .share = engine_model_share,
    .reuse = engine_model_reuse,
    .unpin = engine_model_unpin,
    .fetch = engine_model_fetch,
    .is_fetching = engine_model_is_fetching,
    .tend = engine_model_tend,
    .set_wake = engine_model_set_wake,
    .set_meanwhile = engine_model_set_meanwhile,
    .flush = engine_model_flush,
    .flush_is_over = engine_model_flush_is_over,
    .disk_stats = engine_model_disk_stats,
    .rewind = engine_model_rewind,
    .step = engine_model_step,
    .mend = engine_model_mend,
    .close = engine_model_close,
    .usage = engine_model_usage,
    .free = engine_model_free,
};

static void engine_model_identity(const char *weights_digest, const char *numerics,
                                  enum dtype cache_type, char *out)
{
    snprintf(out, ENGINE_MODEL_IDENTITY, "%s/%s/%s/%s", weights_digest, PLUMB_VERSION, numerics,
             dtype_info(cache_type)->name);
}

void engine_model_fingerprint(const char *weights_digest, const char *numerics,
                              enum dtype cache_type, char out[20])
{
    char text[ENGINE_MODEL_IDENTITY];
    uint64_t h = 14695981039346656037u; /* FNV-1a, 64 bits: an identity, not a secret */
    engine_model_identity(weights_digest, numerics, cache_type, text);
    for (const char *p = text; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    snprintf(out, 20, "fp_%012llx", (unsigned long long)(h >> 16));
}

/* What XTC spares: end ids and every token that is just a newline. And the mask of all other ids. */
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
    em->no_end = mem_alloc(MEM_CAT_BASE, ((size_t)n_vocab + 31) / 32 * sizeof(*em->no_end));
    memset(em->no_end, 0xFF, ((size_t)n_vocab + 31) / 32 * sizeof(*em->no_end));
    for (int32_t i = 0; i < em->n_end; i++)
        em->no_end[em->end_ids[i] / 32] &= ~(1u << em->end_ids[i] % 32);
}

int64_t engine_model_request_bytes(const struct engine *e)
{
    int64_t blocks = 6 * 64; /* what the allocator rounds up */
    int64_t row = (int64_t)e->info.n_ctx * (int64_t)sizeof(int32_t) +
                  ENGINE_BIAS_MAX * (int64_t)sizeof(struct logit_bias) +
                  (int64_t)guide_bytes_max() + (int64_t)constraint_bytes_max(e->info.n_vocab) +
                  (int64_t)expected_bytes_max();
    return e->info.max_rows * (row + blocks);
}

static void engine_model_log_line(const char *name, int64_t bytes, const char *what)
{
    log_info("engine", "  %-8s %8.1f  %s", name, (double)bytes / 0x1p20, what);
}

/* The host's and a GPU's together. */
static int64_t mem_all(enum mem_cat cat)
{
    return mem_bytes(cat) + mem_device_bytes(cat);
}

/* Categories are the process's: kernels, sampling and the tokenizer count with those who called for them. */
static void engine_model_log_memory(const struct engine_model *em)
{
    const struct runner *r = em->runner;
    struct engine_usage u;
    char text[128];
    int64_t slabs = 0, requests = engine_model_request_bytes(&em->base), total = requests;
    int64_t on_device = 0;
    for (int i = 0; i < MEM_CAT_COUNT; i++)
        on_device += mem_device_bytes((enum mem_cat)i);
    runner_usage(r, &u);
    log_info("engine", "memory         MiB");
    snprintf(text, sizeof(text), "%lld parameters", (long long)r->model->n_params);
    engine_model_log_line("weights", mem_all(MEM_CAT_WEIGHTS), text);
    for (int32_t i = 0; i < u.n_groups; i++) {
        int64_t bytes = u.groups[i].page_bytes * u.groups[i].n_pages;
        if (strcmp(u.groups[i].name, "state") == 0)
            snprintf(text, sizeof(text), "states of recurrent layers: %lld slots of %.1f MiB, F32",
                     (long long)u.groups[i].n_pages, (double)u.groups[i].page_bytes / 0x1p20);
        else
            snprintf(text, sizeof(text), "%s attention: %lld pages of %d tokens, %s",
                     u.groups[i].name, (long long)u.groups[i].n_pages, KV_PAGE_TOKENS,
                     dtype_info(r->cache_type)->name);
        engine_model_log_line("cache", bytes, text);
        slabs += bytes;
    }
    if (em->other_kv > 0)
        engine_model_log_line("cache", em->other_kv, "of the drafter");
    slabs += em->other_kv;
    snprintf(text, sizeof(text), "page tables of %d sequences of %d tokens", r->max_seqs, r->n_ctx);
    engine_model_log_line("tables", mem_all(MEM_CAT_KV) - slabs, text);
    snprintf(text, sizeof(text), "%d tokens, %d with logits; kernels, sampling", r->max_rows,
             r->max_out);
    engine_model_log_line("step", mem_all(MEM_CAT_SCRATCH), text);
    snprintf(text, sizeof(text), "at most: ids, biases, stop strings, grammars' states of %d rows",
             r->max_seqs);
    engine_model_log_line("requests", requests, text);
    int64_t others = mem_bytes(MEM_CAT_TOKENIZER) + mem_bytes(MEM_CAT_TEMPLATE) +
                     mem_bytes(MEM_CAT_GRAMMAR) + mem_bytes(MEM_CAT_BASE);
    engine_model_log_line("text", others, "tokenizer, templates and small things");
    total += others + mem_all(MEM_CAT_WEIGHTS) + mem_all(MEM_CAT_KV) + mem_all(MEM_CAT_SCRATCH);
    if (on_device > 0)
        engine_model_log_line("GPU", on_device, "of these: weights, cache and step buffers there");
    engine_model_log_line("total", total, on_device > 0 ? "the host's and the GPU's" : "");
}

enum err_code engine_model_new(const struct engine_model_options *o, struct engine **out,
                               struct err *err)
{
    const struct model *m = o->model;
    if (m->projected.block > 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: it guesses for another model", m->arch);
    int32_t max_rows = o->max_rows > 0 ? o->max_rows : ENGINE_MODEL_ROWS;
    int32_t max_step_rows = o->max_step_rows > 0 ? o->max_step_rows : ENGINE_MODEL_STEP_ROWS;
    if (m->is_two_way) { /* a text is one step */
        int64_t n_ctx = o->n_ctx > 0 ? o->n_ctx : m->n_ctx_train;
        int64_t most = n_ctx < BACKEND_ROWS_MAX ? n_ctx : BACKEND_ROWS_MAX;
        max_step_rows = max_step_rows > most ? max_step_rows : (int32_t)most;
    }
    int32_t max_out = max_rows > ENGINE_MODEL_OUT ? max_rows : ENGINE_MODEL_OUT;
    if (max_out > max_step_rows)
        max_out = max_step_rows;
    struct engine_model *em = mem_alloc(MEM_CAT_BASE, sizeof(*em));
    em->base.ops = &engine_model_ops;
    em->token_bytes = o->token_bytes;
    em->end_ids = o->end_ids;
    em->n_end = o->n_end;
    em->rows = mem_alloc(MEM_CAT_BASE, (size_t)max_rows * sizeof(*em->rows));
    em->items = mem_alloc(MEM_CAT_BASE, (size_t)max_rows * sizeof(*em->items));
    em->asks = mem_alloc(MEM_CAT_BASE, (size_t)max_rows * sizeof(*em->asks));
    em->plan = mem_alloc(MEM_CAT_BASE, (size_t)max_rows * sizeof(*em->plan));
    em->drafter = o->drafter;
    em->slow = o->slow_drafter;
    em->drafts_always = o->drafts_always;
    em->restore = o->restore;
    em->restore_ctx = o->restore_ctx;
    em->drafts_max = m->has_group[MODEL_GROUP_STATE] ? ENGINE_MODEL_STATE_DRAFTS : DRAFT_MAX;
    em->model_id = mem_strdup(MEM_CAT_BASE, o->model_id);
    char names[MODEL_NUMERICS];
    const char *numerics = o->numerics ? o->numerics : model_numerics(m, names);
    engine_model_fingerprint(o->weights_digest, numerics, o->cache_type, em->fingerprint);
    engine_model_identity(o->weights_digest, numerics, o->cache_type, em->identity);
    em->base.info = (struct engine_info){ .model_id = em->model_id,
                                          .fingerprint = em->fingerprint,
                                          .identity = em->identity,
                                          .n_vocab = (int32_t)m->n_vocab,
                                          .n_embd = (int32_t)m->n_embd,
                                          .is_embedder = m->is_two_way,
                                          .n_labels = (int32_t)m->n_labels,
                                          .n_ctx_train = (int32_t)m->n_ctx_train,
                                          .max_rows = max_rows,
                                          .max_step_rows = max_step_rows,
                                          .step_block = ENGINE_MODEL_BLOCK,
                                          .created = clock_wall_s() };
    engine_model_init_keep(em);
    struct runner_options ro = { .model = o->model,
                                 .n_ctx = o->n_ctx,
                                 .kv_bytes = o->kv_bytes,
                                 .max_seqs = max_rows,
                                 .max_rows = max_step_rows,
                                 .max_out = max_out,
                                 .max_tentative = em->drafts_max + 1,
                                 .cache_type = o->cache_type,
                                 .keep_bytes = o->keep_bytes,
                                 .choose = engine_model_choose,
                                 .choose_ctx = em };
    if (em->slow && em->slow->ops->taps) {
        ro.taps = *em->slow->ops->taps(em->slow);
        em->seen = mem_alloc(MEM_CAT_BASE, (size_t)max_rows * sizeof(*em->seen));
    }
    em->other_kv = mem_bytes(MEM_CAT_KV);
    enum err_code code = runner_new(&ro, &em->runner, err);
    if (!code && o->disk_dir) {
        struct runner_tier_options to = { .dir = o->disk_dir,
                                          .max_bytes = o->disk_bytes,
                                          .weights_digest = o->weights_digest,
                                          .numerics = numerics };
        memcpy(to.content, o->content, sizeof(to.content));
        code = runner_tier_open(em->runner, &to, err);
    }
    int n_samplers = ops_threads(m->be) < max_rows ? ops_threads(m->be) : max_rows;
    while (!code && em->n_samplers < n_samplers && em->n_samplers < ENGINE_SAMPLERS_MAX) {
        struct sampler *s = &em->samplers[em->n_samplers];
        code = sampler_init(s, (int32_t)m->n_vocab, err);
        s->be = m->be;
        em->n_samplers += code == ERR_OK;
    }
    if (!code)
        code = runner_warm(em->runner, err);
    code = ops_loaded(m->be, code, err);
    if (code) {
        engine_model_free(&em->base);
        return code;
    }
    em->base.info.n_ctx = em->runner->n_ctx;
    em->base.info.keeps_ends = em->runner->n_ends > 0;
    engine_model_log_memory(em);
    *out = &em->base;
    return ERR_OK;
}

const struct runner *engine_model_runner(const struct engine *e)
{
    return ((const struct engine_model *)(const void *)e)->runner;
}
