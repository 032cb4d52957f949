/* fuzz_model.c - any bytes as a model file, all the way to an answer: header, vocabulary, hyperparameters, tensors, and two
 * steps on the reference backend. Right is an error that says why, or an answer; the file's numbers are believed nowhere. */
#include "base/log.h"
#include "cli/load_tokenizer.h"
#include "engine/engine_model.h"
#include "kernels/ref/ref.h"
#include "model/projected.h"
#include "weights/weights_int.h"

#include <stdlib.h>
#include <string.h>

#define FUZZ_STEPS  2
#define FUZZ_PROMPT "Hello a\xC3\xA9\xFF World</s>"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_set_level(LOG_LEVEL_ERROR);
    return 0;
}

static void assert_said(enum err_code code, const struct err *err)
{
    BUG_ON(code && (err->code != code || err->text[0] == '\0'));
}

/* Encode and decode, then the ids that the model has too; at least one. */
static int32_t make_prompt(const struct tokenizer *t, int32_t n_vocab, int32_t ids[8])
{
    struct token_list list;
    struct buf text;
    struct err err = { 0 };
    int32_t n = 0;
    token_list_init(&list, 64);
    buf_init(&text, MEM_CAT_TOKENIZER, 1 << 20);
    enum err_code code = tokenizer_encode(t, FUZZ_PROMPT, sizeof(FUZZ_PROMPT) - 1, NULL,
                                          TOKENIZER_FLAG_SPECIAL, &list, &err);
    assert_said(code, &err);
    if (!code)
        assert_said(tokenizer_decode(t, list.ids, list.n, true, &text, &err), &err);
    for (int32_t i = 0; !code && i < list.n; i++) {
        BUG_ON(list.ids[i] < 0 || list.ids[i] >= tokenizer_n_tokens(t));
        if (list.ids[i] < n_vocab && n < 8)
            ids[n++] = list.ids[i];
    }
    buf_release(&text);
    token_list_release(&list);
    if (n == 0)
        ids[n++] = n_vocab - 1;
    return n;
}

static void run_row(struct engine *e, const struct tokenizer *t)
{
    int32_t ids[8] = { 0 };
    row_id row;
    struct err err = { 0 };
    struct engine_request req = { .prompt = ids,
                                  .n_prompt = t ? make_prompt(t, e->info.n_vocab, ids) : 1,
                                  .max_tokens = FUZZ_STEPS + 2,
                                  .sample = { .top_p = 1,
                                              .typical_p = 1,
                                              .xtc_threshold = 1,
                                              .repetition_penalty = 1,
                                              .n_logprobs = 1 } };
    enum err_code code = e->ops->open(e, &req, &row, &err);
    assert_said(code, &err);
    if (code)
        return;
    code = e->ops->grow(e, row, INT32_MAX, &err);
    BUG_ON(code);                                   /* the context fits in the cache */
    for (int i = 0; i < FUZZ_STEPS && !code; i++) { /* of the second one a head has guessed */
        struct engine_work work = { .row = row, .n_tokens = req.n_prompt };
        struct engine_result result = { 0 };
        code = e->ops->step(e, &work, 1, &result, &err);
        assert_said(code, &err);
        if (code || result.finish != FINISH_NONE)
            break;
        BUG_ON(result.n_tokens < 1);
        for (int32_t k = 0; k < result.n_tokens; k++) {
            BUG_ON(result.tokens[k].id < 0 || result.tokens[k].id >= e->info.n_vocab);
            BUG_ON(!(result.tokens[k].logprob <= 0));
        }
    }
    e->ops->close(e, row);
}

static void run_model(struct model *m, const struct tokenizer *t)
{
    struct engine *e = NULL;
    struct drafter *d = NULL;
    struct err err = { 0 };
    struct draft_mtp_options mtp = {
        .model = m, .n_ctx = 64, .kv_bytes = 4 << 20, .max_rows = 1, .cache_type = DTYPE_F32
    };
    struct engine_bytes *bytes = mem_try_array(MEM_CAT_BASE, (size_t)m->n_vocab, sizeof(*bytes));
    BUG_ON(!bytes); /* n_vocab rows are in the file */
    for (int64_t i = 0; i < m->n_vocab; i++)
        bytes[i] = (struct engine_bytes){ "x", 1 };
    enum err_code code = m->nextn ? draft_mtp_new(&mtp, &d, &err) : ERR_OK;
    assert_said(code, &err);
    if (!code)
        code = engine_model_new(&(struct engine_model_options){ .model = m,
                                                                .token_bytes = bytes,
                                                                .model_id = "m",
                                                                .weights_digest = "d",
                                                                .n_ctx = 64,
                                                                .kv_bytes = 4 << 20,
                                                                .max_rows = 1,
                                                                .max_step_rows = 16,
                                                                .slow_drafter = d,
                                                                .drafts_always = true },
                                &e, &err);
    assert_said(code, &err);
    if (!code) {
        run_row(e, t);
        e->ops->free(e);
    }
    if (d)
        d->ops->free(d);
    mem_free(MEM_CAT_BASE, bytes);
}

/* A drafter that reads states, bound to a model that is as it wants it: some states, a block. One that has no embedding or head of its
 * own would borrow what is not there. */
static void run_drafter(struct model *m, struct backend *be)
{
    int32_t ids[4] = { 0 };
    struct err err = { 0 };
    struct drafter *d = NULL;
    const struct model_taps *taps = &m->projected.taps;
    struct model target = { .be = be,
                            .arch = "any",
                            .width = m->width,
                            .n_layers = m->projected.n_target_layers,
                            .n_vocab = m->n_vocab,
                            .n_streams = 1 };
    if (!m->embed || !m->head)
        return;
    if (target.n_layers == 0)
        target.n_layers = taps->at[taps->n - 1] + 2;
    enum err_code code = model_project(m, &target, &err);
    struct draft_model_options o = { .model = m,
                                     .n_vocab = (int32_t)m->n_vocab,
                                     .n_ctx = 64,
                                     .kv_bytes = 4 << 20,
                                     .max_rows = 1,
                                     .cache_type = DTYPE_F16 };
    if (!code)
        code = draft_projected_new(&o, &d, &err);
    assert_said(code, &err);
    if (code)
        return;
    struct engine_request req = {
        .prompt = ids,
        .n_prompt = 1,
        .sample = { .top_p = 1, .typical_p = 1, .xtc_threshold = 1, .repetition_penalty = 1 }
    };
    int64_t cols = taps->n * m->width;
    float *states = mem_try_array(MEM_CAT_BASE, (size_t)(3 * cols), sizeof(*states));
    BUG_ON(!states || d->ops->open(d, 0, &req, 32, &err));
    for (int64_t i = 0; i < 3 * cols; i++)
        states[i] = (float)(i % 7) - 3;
    struct draft_seen seen = {
        .row = 0, .n = 3, .ids = ids, .n_ids = 4, .states = { states, 3, cols, cols }
    };
    struct draft_ask a = { .row = 0, .ids = ids, .n_ids = 4, .n_max = DRAFT_MAX };
    d->ops->see(d, &seen, 1);
    d->ops->draft(d, &a, 1);
    for (int32_t i = 0; i < a.n; i++)
        BUG_ON(a.ids_out[i] < 0 || a.ids_out[i] >= m->n_vocab);
    d->ops->close(d, 0, ids, 4);
    d->ops->free(d);
    mem_free(MEM_CAT_BASE, states);
}

static void run_file(struct weights *w)
{
    struct err err = { 0 };
    struct tokenizer *t = NULL;
    struct backend *be = NULL;
    struct model *m = NULL;
    enum err_code code = load_tokenizer(w, &t, &err);
    assert_said(code, &err);
    if (!code && tokenizer_n_tokens(t) > 0)
        make_prompt(t, tokenizer_n_tokens(t), (int32_t[8]){ 0 });
    BUG_ON(ref_backend_open(&be, &err));
    struct err no_head = { 0 };
    code = model_load(&(struct model_load_options){ .weights = w, .be = be, .nextn_err = &no_head },
                      &m, &err);
    assert_said(code, &err);
    BUG_ON(!code && !m->nextn && no_head.text[0] == '\0');
    if (!code && m->projected.block > 0)
        run_drafter(m, be);
    if (!code)
        run_model(m, t);
    model_free(m);
    be->ops->close(be);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct weights *w = NULL;
    struct err err = { 0 };
    uint8_t *copy = NULL;
    int64_t before[MEM_CAT_COUNT];
    for (int c = 0; c < MEM_CAT_COUNT; c++)
        before[c] = mem_bytes((enum mem_cat)c);
    BUG_ON(posix_memalign((void **)&copy, 64, size + 1));
    memcpy(copy, data, size);
    if (weights_open_images(&(struct weights_image){ "m", copy, size }, 1, &w, &err) == ERR_OK)
        run_file(w);
    weights_close(w);
    free(copy);
    for (int c = 0; c < MEM_CAT_COUNT; c++)
        BUG_ON(mem_bytes((enum mem_cat)c) != before[c]);
    return 0;
}
