#include "projected.h"

#include "base/file.h"
#include "engine/draft.h"
#include "engine/sample.h"
#include "lab.h"
#include "model/projected.h"
#include "tensor/ops.h"
#include "json/json.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDER    "tests/golden/projected/"
#define TOLERANCE 1e-5
#define TEXT_MAX  192
#define BLOCK_MAX 16
#define PIECE     37 /* states that the drafter gets at a time */

struct projected_lab {
    const char *name, *form; /* the drafter is at FOLDER, name, form */
    struct golden_lab on;    /* the target */
    struct json_doc doc;
    struct weights *weights;
    struct model *model;
    struct runner *runner;
    struct drafter *drafter;
    struct tensor states; /* of the whole text */
    int32_t ids[TEXT_MAX];
    int32_t n_ids;
    double logits, confidence; /* largest errors so far */
    int n_guesses, n_equal;
};

static int32_t number_of(const struct json *obj, const char *key)
{
    return (int32_t)golden_number(json_get(obj, key));
}

/* --- opening --- */

static enum err_code lab_read_golden(struct projected_lab *lab, struct err *err)
{
    char path[256];
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 22);
    snprintf(path, sizeof(path), FOLDER "%s.json", lab->name);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = json_parse(&lab->doc, text.data, text.len, (size_t)1 << 26, err);
    buf_release(&text);
    const struct json *ids = code ? NULL : json_get(&lab->doc.root, "text");
    for (size_t i = 0; ids && i < ids->n && lab->n_ids < TEXT_MAX; i++)
        lab->ids[lab->n_ids++] = (int32_t)golden_number(&ids->items[i]);
    return code;
}

static enum err_code lab_open_drafter(struct projected_lab *lab, struct err *err)
{
    char path[256];
    snprintf(path, sizeof(path), FOLDER "%s%s", lab->name, lab->form);
    enum err_code code = weights_open(path, &lab->weights, err);
    if (!code)
        code = model_load(&(struct model_load_options){ .weights = lab->weights, .be = lab->on.be },
                          &lab->model, err);
    if (!code)
        code = model_project(lab->model, lab->on.model, err);
    return code;
}

/* The target's states of the whole text. */
static enum err_code lab_look(struct projected_lab *lab, struct err *err)
{
    struct runner_item it = { .ids = lab->ids, .n = lab->n_ids, .wants_taps = true };
    enum err_code code = runner_open(lab->on.runner, &it.seq, err);
    if (!code)
        code = runner_reserve(lab->on.runner, it.seq, it.n, err);
    if (!code)
        code = runner_step(lab->on.runner, &it, 1, err);
    int64_t cols = lab->model->projected.taps.n * lab->model->width;
    lab->states = (struct tensor){ (float *)(uintptr_t)it.tapped, it.n, cols, cols };
    return code;
}

static enum err_code lab_open(struct projected_lab *lab, struct err *err)
{
    struct runner_options sizes = {
        .n_ctx = TEXT_MAX, .max_rows = TEXT_MAX, .max_out = 1, .cache_type = DTYPE_F32
    };
    enum err_code code = lab_read_golden(lab, err);
    if (!code)
        code = golden_lab_open(&lab->on, FOLDER "target.gguf", &sizes, err);
    if (!code)
        code = lab_open_drafter(lab, err);
    if (code)
        return code;
    runner_free(lab->on.runner); /* another one: it looks where the drafter wants it to */
    lab->on.runner = NULL;
    sizes.model = lab->on.model;
    sizes.max_seqs = 1;
    sizes.taps = lab->model->projected.taps;
    code = runner_new(&sizes, &lab->on.runner, err);
    sizes.model = lab->model;
    sizes.max_out = BLOCK_MAX;
    sizes.taps = (struct model_taps){ 0 };
    if (!code)
        code = runner_new(&sizes, &lab->runner, err);
    struct draft_model_options o = { .model = lab->model,
                                     .n_vocab = (int32_t)lab->model->n_vocab,
                                     .n_ctx = TEXT_MAX,
                                     .max_rows = 2,
                                     .cache_type = DTYPE_F32 };
    if (!code)
        code = draft_projected_new(&o, &lab->drafter, err);
    return code ? code : lab_look(lab, err);
}

static void lab_close(struct projected_lab *lab)
{
    if (lab->drafter)
        lab->drafter->ops->free(lab->drafter);
    runner_free(lab->runner);
    model_free(lab->model);
    weights_close(lab->weights);
    golden_lab_close(&lab->on);
    json_doc_release(&lab->doc);
}

/* --- the block's numbers --- */

/* The states of positions [first, start) become the sequence's context. */
static enum err_code lab_context(struct projected_lab *lab, int32_t seq, int32_t first,
                                 int32_t start, struct err *err)
{
    enum err_code code = ERR_OK;
    for (int32_t at = first; at < start && !code; at += PIECE) {
        struct runner_item it = { .seq = seq, .shift = first };
        it.n = start - at < PIECE ? start - at : PIECE;
        it.inputs = tensor_rows(lab->states, at, it.n);
        code = runner_step(lab->runner, &it, 1, err);
    }
    return code;
}

static void lab_compare_block(struct projected_lab *lab, const struct json *want,
                              const struct runner_item *it)
{
    int32_t first = it->n_out - (int32_t)json_get(want, "ids")->n;
    const struct json *said_of = json_get(want, "logits"); /* NULL: of a selector */
    const struct json *confidence = json_get(want, "confidence");
    const struct model *m = lab->model;
    struct projected_walk walk;
    struct err err;
    int32_t prev = it->ids[0];
    if (projected_walk_init(&walk, m, 2, &err)) {
        lab->logits = INFINITY;
        return;
    }
    projected_walk_begin(&walk, 1);
    for (int32_t i = 0; i < it->n_out - first; i++) {
        struct projected_guess g = { .slot = 1,
                                     .prev = prev,
                                     .hidden = it->hidden + (first + i) * m->width,
                                     .logits = it->logits + (first + i) * m->n_vocab };
        double base = golden_row_error(&json_get(want, "base")->items[i], g.logits, m->n_vocab);
        projected_walk_step(&walk, &g, 1);
        double said = said_of ? golden_row_error(&said_of->items[i], g.logits, m->n_vocab) : 0;
        lab->logits = fmax(lab->logits, fmax(base, said));
        if (confidence)
            lab->confidence = fmax(
                lab->confidence, fabs((double)g.confidence - golden_number(&confidence->items[i])));
        else if (g.confidence >= 0)
            lab->confidence = INFINITY;
        prev = (int32_t)golden_number(&json_get(want, "ids")->items[i]);
        lab->n_guesses++;
        lab->n_equal += sample_argmax(g.logits, (int32_t)m->n_vocab) == prev;
    }
    projected_walk_release(&walk);
}

static enum err_code lab_block(struct projected_lab *lab, const struct json *want, struct err *err)
{
    int32_t first = number_of(want, "first"), start = number_of(want, "start");
    int32_t rows = number_of(want, "rows"), ids[BLOCK_MAX];
    struct runner_item it = { .ids = ids, .n = rows, .shift = first, .wants_hidden = true };
    it.n_out = lab->model->projected.conv_taps > 0 ? rows : rows - lab->model->projected.first_out;
    ids[0] = lab->ids[start];
    for (int32_t i = 1; i < rows; i++)
        ids[i] = lab->model->projected.mask_id;
    enum err_code code = runner_open(lab->runner, &it.seq, err);
    if (!code)
        code = runner_reserve(lab->runner, it.seq, start - first + rows, err);
    if (!code)
        code = lab_context(lab, it.seq, first, start, err);
    if (!code)
        code = runner_step(lab->runner, &it, 1, err);
    if (!code)
        lab_compare_block(lab, want, &it);
    runner_close(lab->runner, it.seq);
    return code;
}

/* --- the drafter's guesses --- */

/* It sees [from, to) in pieces, of which each begins before the one before has ended. */
static void lab_see(struct projected_lab *lab, row_id row, int32_t from, int32_t to)
{
    for (int32_t at = from; at < to; at += PIECE - 5) {
        int32_t n = to - at < PIECE ? to - at : PIECE;
        struct draft_seen seen = { .row = row,
                                   .pos = at,
                                   .n = n,
                                   .ids = lab->ids,
                                   .n_ids = at + n + 1,
                                   .states = tensor_rows(lab->states, at, n) };
        lab->drafter->ops->see(lab->drafter, &seen, 1);
    }
}

static void lab_ask(struct projected_lab *lab, row_id row, const struct json *want)
{
    const struct json *ids = json_get(want, "ids");
    int32_t start = number_of(want, "start");
    struct draft_ask a = {
        .row = row, .ids = lab->ids, .n_ids = start + 1, .n_max = (int32_t)ids->n
    };
    lab->drafter->ops->draft(lab->drafter, &a, 1);
    lab->n_guesses += (int)ids->n;
    for (int32_t i = 0; i < a.n; i++)
        lab->n_equal += a.ids_out[i] == (int32_t)golden_number(&ids->items[i]);
}

/* The texts that begin with the first token are one row, which grows; the others are rows that the drafter meets late. */
static enum err_code lab_draft(struct projected_lab *lab, struct err *err)
{
    static const struct sample_params greedy = {
        .top_p = 1, .typical_p = 1, .xtc_threshold = 1, .repetition_penalty = 1
    };
    const struct json *cases = json_get(&lab->doc.root, "cases");
    struct engine_request req = { .prompt = lab->ids, .n_prompt = 1, .sample = greedy };
    int32_t end = 0;
    enum err_code code = lab->drafter->ops->open(lab->drafter, 0, &req, TEXT_MAX, err);
    for (size_t i = 0; i < cases->n && !code; i++) {
        const struct json *want = &cases->items[i];
        int32_t first = number_of(want, "first"), start = number_of(want, "start");
        row_id row = first > 0;
        if (row > 0)
            code = lab->drafter->ops->open(lab->drafter, row, &req, TEXT_MAX, err);
        if (code)
            break;
        lab_see(lab, row, row > 0 ? first : end, start);
        end = row > 0 || start < end ? end : start;
        lab_ask(lab, row, want);
        if (row > 0)
            lab->drafter->ops->close(lab->drafter, row, lab->ids, start + 1);
    }
    if (!code)
        lab->drafter->ops->close(lab->drafter, 0, lab->ids, end + 1);
    return code;
}

static bool check_projected(const char *name, const char *form)
{
    struct projected_lab lab = { .name = name, .form = form };
    struct err err;
    enum err_code code = lab_open(&lab, &err);
    const struct json *cases = code ? NULL : json_get(&lab.doc.root, "cases");
    for (size_t i = 0; !code && i < cases->n; i++)
        code = lab_block(&lab, &cases->items[i], &err);
    if (!code)
        code = lab_draft(&lab, &err);
    bool is_good = !code && lab.logits <= TOLERANCE && lab.confidence <= TOLERANCE &&
                   lab.n_equal == lab.n_guesses && lab.n_guesses > 0;
    if (code)
        printf("FAIL: projected %s%s: %s\n", name, form, err.text);
    else
        printf("%sprojected %s%s: logits %.1e, confidence %.1e, guesses %d of %d\n",
               is_good ? "" : "FAIL: ", name, form, lab.logits, lab.confidence, lab.n_equal,
               lab.n_guesses);
    lab_close(&lab);
    return is_good;
}

void projected_run(char *const *names, int n, int *n_passed, int *n_failed)
{
    glob_t found = { 0 };
    if (glob(FOLDER "*.json", 0, NULL, &found)) {
        printf("FAIL: no goldens in " FOLDER "\n");
        (*n_failed)++;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = found.gl_pathv[i] + strlen(FOLDER);
        name[strlen(name) - strlen(".json")] = '\0';
        bool is_named = n == 0;
        for (int k = 0; k < n; k++)
            is_named = is_named || strcmp(names[k], name) == 0;
        if (!is_named)
            continue;
        char path[256];
        snprintf(path, sizeof(path), FOLDER "%s.gguf", name);
        bool has_file = access(path, F_OK) == 0;
        int n_good = check_projected(name, "");
        n_good += has_file && check_projected(name, ".gguf");
        *n_passed += n_good;
        *n_failed += 1 + has_file - n_good;
    }
    globfree(&found);
}
