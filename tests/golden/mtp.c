/* mtp.c - heads that guess, alone: fed with the reference's states, and with our own model's. */
#include "mtp.h"
#include "lab.h"

#include "base/file.h"
#include "engine/runner.h"
#include "engine/sample.h"
#include "kernels/cpu/cpu_backend.h"
#include "weights/weights.h"
#include "json/json.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FOLDER    "tests/golden/mtp/"
#define TOLERANCE 1e-5
#define ROWS_MAX  128
#define GUESSES   4

struct mtp_golden {
    struct json_doc doc;
    int32_t ids[ROWS_MAX];
    int n_ids;
    float *states; /* [n_ids][D] */
    int64_t width;
};

struct mtp_lab {
    struct backend *be;
    struct weights *weights;
    struct model *model;
    struct runner *runner, *head;
};

struct mtp_score {
    double logits;
    int n_guesses, n_equal, n_own; /* with the reference's states, with ours */
    struct buf bits;               /* the head's logits */
};

static enum err_code golden_read(struct mtp_golden *g, const char *name, struct err *err)
{
    char path[256];
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 22);
    snprintf(path, sizeof(path), FOLDER "%s.json", name);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = json_parse(&g->doc, text.data, text.len, (size_t)1 << 26, err);
    buf_release(&text);
    if (code)
        return code;
    const struct json *prompt = json_get(&g->doc.root, "prompt");
    const struct json *states = json_get(&g->doc.root, "states");
    g->n_ids = (int)prompt->n;
    g->width = (int64_t)states->items[0].n;
    g->states = mem_alloc(MEM_CAT_BASE, prompt->n * (size_t)g->width * sizeof(float));
    for (int i = 0; i < g->n_ids; i++) {
        g->ids[i] = (int32_t)golden_number(&prompt->items[i]);
        for (int64_t k = 0; k < g->width; k++)
            g->states[i * g->width + k] = (float)golden_number(&states->items[i].items[k]);
    }
    return ERR_OK;
}

static void lab_close(struct mtp_lab *lab)
{
    runner_free(lab->head);
    runner_free(lab->runner);
    model_free(lab->model);
    weights_close(lab->weights);
    if (lab->be)
        lab->be->ops->close(lab->be);
}

static enum err_code lab_open(struct mtp_lab *lab, const char *path, struct err *err)
{
    struct runner_options o = { .n_ctx = ROWS_MAX,
                                .kv_bytes = (int64_t)64 << 20,
                                .max_seqs = 1,
                                .max_rows = ROWS_MAX,
                                .max_out = ROWS_MAX,
                                .cache_type = DTYPE_F32 };
    struct err why = { 0 };
    *lab = (struct mtp_lab){ 0 };
    enum err_code code = weights_open(path, &lab->weights, err);
    if (!code)
        code = cpu_backend_open(NULL, &lab->be, err);
    if (!code)
        code = model_load(&(struct model_load_options){ .weights = lab->weights,
                                                        .be = lab->be,
                                                        .nextn_err = &why },
                          &lab->model, err);
    if (!code && !lab->model->nextn)
        code = err_set(err, ERR_NOT_FOUND, "no head: %s", why.text);
    if (code)
        return code;
    o.model = lab->model->nextn;
    code = runner_new(&o, &lab->head, err);
    o.model = lab->model;
    o.taps = (struct model_taps){ .n = 1, .at = { (int)lab->model->n_layers } };
    return code ? code : runner_new(&o, &lab->runner, err);
}

/* n states as an op takes them, which does not write to them. */
static struct tensor rows_of(const struct mtp_lab *lab, const float *states, int n)
{
    int64_t width = lab->model->width;
    return (struct tensor){ (float *)(uintptr_t)states, n, width, width };
}

/* The head reads the ids behind n states; how many of the last ones get logits. The sequence is open afterwards. */
static enum err_code head_read(struct mtp_lab *lab, struct runner_item *it, const int32_t *ids,
                               const float *states, int n, int n_out, struct err *err)
{
    *it = (struct runner_item){
        .ids = ids + 1, .n = n, .n_out = n_out, .inputs = rows_of(lab, states, n)
    };
    enum err_code code = runner_open(lab->head, &it->seq, err);
    if (!code)
        code = runner_reserve(lab->head, it->seq, n + GUESSES, err);
    return code ? code : runner_step(lab->head, it, 1, err);
}

/* How many of the row's guesses are the golden's. */
static enum err_code head_guess(struct mtp_lab *lab, const struct mtp_golden *g,
                                const float *states, int row, const struct json *want, int *n_equal,
                                struct err *err)
{
    struct runner_item it;
    int32_t n_vocab = (int32_t)lab->model->n_vocab, id;
    enum err_code code = head_read(lab, &it, g->ids, states, row + 1, 1, err);
    for (size_t i = 0; i < want->n && !code; i++) {
        id = sample_argmax(it.logits, n_vocab);
        *n_equal += id == (int32_t)golden_number(&want->items[i]);
        it = (struct runner_item){
            .seq = it.seq, .ids = &id, .n = 1, .n_out = 1, .inputs = rows_of(lab, it.made, 1)
        };
        code = runner_step(lab->head, &it, 1, err);
    }
    runner_close(lab->head, it.seq);
    return code;
}

static enum err_code head_score(struct mtp_lab *lab, const struct mtp_golden *g,
                                struct mtp_score *s, struct err *err)
{
    const struct json *root = &g->doc.root, *rows = json_get(root, "rows");
    const struct json *logits = json_get(root, "logits"), *guesses = json_get(root, "guesses");
    int64_t n_vocab = lab->model->n_vocab;
    struct runner_item it, own = { .ids = g->ids, .n = g->n_ids, .wants_taps = true };
    enum err_code code = head_read(lab, &it, g->ids, g->states, g->n_ids - 1, g->n_ids - 1, err);
    if (code)
        return code;
    for (size_t i = 0; i < rows->n; i++)
        s->logits =
            fmax(s->logits,
                 golden_row_error(&logits->items[i],
                                  it.logits + (int64_t)golden_number(&rows->items[i]) * n_vocab,
                                  n_vocab));
    buf_add(&s->bits, (const char *)it.logits,
            (size_t)(g->n_ids - 1) * (size_t)n_vocab * sizeof(float));
    runner_close(lab->head, it.seq);
    code = runner_open(lab->runner, &own.seq, err);
    if (!code)
        code = runner_reserve(lab->runner, own.seq, g->n_ids, err);
    if (!code)
        code = runner_step(lab->runner, &own, 1, err);
    for (size_t i = 0; i < rows->n && !code; i++) {
        int row = (int)golden_number(&rows->items[i]);
        s->n_guesses += (int)guesses->items[i].n;
        code = head_guess(lab, g, g->states, row, &guesses->items[i], &s->n_equal, err);
        if (!code)
            code = head_guess(lab, g, own.tapped, row, &guesses->items[i], &s->n_own, err);
    }
    return code;
}

static bool score_is_good(const struct mtp_score *s)
{
    return s->logits <= TOLERANCE && s->n_guesses > 0 && s->n_equal == s->n_guesses &&
           s->n_own == s->n_guesses;
}

static bool check_head(const char *name)
{
    struct mtp_golden g = { 0 };
    struct mtp_score scores[2] = { 0 };
    struct err err = { 0 };
    enum err_code code = golden_read(&g, name, &err);
    for (int i = 0; i < 2; i++) {
        char path[256];
        struct mtp_lab lab = { 0 };
        buf_init(&scores[i].bits, MEM_CAT_BASE, (size_t)1 << 24);
        snprintf(path, sizeof(path), i ? FOLDER "hf/%s" : FOLDER "%s.gguf", name);
        if (!code)
            code = lab_open(&lab, path, &err);
        if (!code)
            code = head_score(&lab, &g, &scores[i], &err);
        lab_close(&lab);
    }
    const struct mtp_score *s = &scores[0];
    bool is_same = s->bits.len == scores[1].bits.len &&
                   memcmp(s->bits.data, scores[1].bits.data, s->bits.len) == 0;
    bool is_good = !code && score_is_good(s) && score_is_good(&scores[1]) && is_same;
    if (code)
        printf("FAIL: head %s: %s\n", name, err.text);
    else
        printf("%shead %s: logits %.1e, guesses %d of %d, with our states %d of %d, directory %s\n",
               is_good ? "" : "FAIL: ", name, s->logits, s->n_equal, s->n_guesses, s->n_own,
               s->n_guesses, is_same ? "the same bits" : "other bits");
    json_doc_release(&g.doc);
    mem_free(MEM_CAT_BASE, g.states);
    buf_release(&scores[0].bits);
    buf_release(&scores[1].bits);
    return is_good;
}

void mtp_run(char *const *names, int n, int *n_passed, int *n_failed)
{
    glob_t found = { 0 };
    if (glob(FOLDER "*.gguf", 0, NULL, &found)) {
        printf("FAIL: no models in " FOLDER "\n");
        (*n_failed)++;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = found.gl_pathv[i] + strlen(FOLDER);
        name[strlen(name) - strlen(".gguf")] = '\0';
        bool is_named = n == 0;
        for (int k = 0; k < n; k++)
            is_named = is_named || strcmp(names[k], name) == 0;
        if (!is_named)
            continue;
        bool is_good = check_head(name);
        *n_passed += is_good;
        *n_failed += !is_good;
    }
    globfree(&found);
}
