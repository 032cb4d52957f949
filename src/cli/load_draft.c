#include "cli/load_draft.h"
#include "base/log.h"
#include "cli/load_tokenizer.h"
#include "cli/model_path.h"
#include "model/projected.h"

#include <string.h>

int64_t load_draft_kv(const struct model *model, const struct model *draft, int64_t bytes)
{
    double one = (double)(model->n_layers * model->n_kv_heads * model->head_dim);
    double other = (double)(draft->n_layers * draft->n_kv_heads * draft->head_dim);
    return (int64_t)((double)bytes * other / (one + other));
}

/* Ids that both have must mean the same; the larger vocabulary may have more. */
static enum err_code load_draft_check(const struct tokenizer *t, const struct tokenizer *of_draft,
                                      struct err *err)
{
    int32_t n = tokenizer_n_tokens(t), n_draft = tokenizer_n_tokens(of_draft);
    int32_t both = n < n_draft ? n : n_draft;
    for (int32_t i = 0; i < both; i++) {
        struct tokenizer_str a = tokenizer_bytes(t, i, true);
        struct tokenizer_str b = tokenizer_bytes(of_draft, i, true);
        if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
            return err_set(err, ERR_INVALID,
                           "token %d is '%.*s' here and '%.*s' in the model that it is to guess "
                           "for: it needs the same vocabulary",
                           i, (int)(b.len < 32 ? b.len : 32), b.data,
                           (int)(a.len < 32 ? a.len : 32), a.data);
    }
    if (n != n_draft)
        log_info("draft", "the vocabularies have %d and %d tokens; the first %d are guessed", n,
                 n_draft, both);
    return ERR_OK;
}

/* Drafters that read the model's states mostly come without a tokenizer: the other model's is theirs. */
static bool load_draft_has_tokenizer(const struct weights *w)
{
    return !model_is_projected(w) || weights_meta(w, "tokenizer.ggml.model") ||
           weights_text(w, "tokenizer.json").data;
}

static enum err_code load_draft_tokens(const struct load_draft *d,
                                       const struct load_draft_options *o, struct err *err)
{
    struct tokenizer *t = NULL;
    if (!load_draft_has_tokenizer(d->weights))
        return ERR_OK;
    enum err_code code = load_tokenizer(d->weights, &t, err);
    if (!code)
        code = load_draft_check(o->tokenizer, t, err);
    tokenizer_free(t);
    return code;
}

static enum err_code load_draft_read(struct load_draft *d, const struct load_draft_options *o,
                                     struct err *err)
{
    struct buf path;
    buf_init(&path, MEM_CAT_BASE, 4096);
    enum err_code code = model_path(o->path, &path, err);
    if (!code)
        code = weights_open(path.data, &d->weights, err);
    buf_release(&path);
    if (!code)
        code = model_adapt(d->weights, err);
    if (!code)
        code = load_draft_tokens(d, o, err);
    if (!code)
        code = model_load(&(struct model_load_options){ .weights = d->weights, .be = o->be },
                          &d->model, err);
    if (!code && d->model->is_two_way)
        code = err_set(err, ERR_UNSUPPORTED, "%s", ENGINE_EMBEDDER_TEXT);
    if (!code && model_is_projected(d->weights))
        code = model_project(d->model, o->model, err);
    return code;
}

enum err_code load_draft_open(struct load_draft *d, const struct load_draft_options *o,
                              struct err *err)
{
    *d = (struct load_draft){ 0 };
    enum err_code code = load_draft_read(d, o, err);
    if (!code) {
        struct draft_model_options dm = { .model = d->model,
                                          .n_vocab = (int32_t)o->model->n_vocab,
                                          .n_ctx = o->n_ctx,
                                          .kv_bytes =
                                              load_draft_kv(o->model, d->model, o->kv_bytes),
                                          .max_rows = o->max_rows,
                                          .cache_type = o->cache_type };
        dm.end_ids = tokenizer_end_ids(o->tokenizer, &dm.n_end);
        code = model_is_projected(d->weights) ? draft_projected_new(&dm, &d->drafter, err)
                                              : draft_model_new(&dm, &d->drafter, err);
    }
    if (!code)
        return ERR_OK;
    load_draft_close(d);
    return err_prefix(err, code, "--speculate draft:%s", o->path);
}

void load_draft_close(struct load_draft *d)
{
    if (d->drafter)
        d->drafter->ops->free(d->drafter);
    model_free(d->model);
    weights_close(d->weights);
    *d = (struct load_draft){ 0 };
}
