/* families.c - tiny models of every family against transformers, layer by layer. */
#include "families.h"

#include "base/file.h"
#include "engine/runner.h"
#include "engine/sample.h"
#include "kernels/cpu/cpu_backend.h"
#include "json/json.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "tests/golden/families/"
/* Ours and the reference's f32 sums run in another order; measured: 2e-7 to 2e-6. */
#define TOLERANCE 1e-5
#define ROWS_MAX  256

struct family_lab {
    const char *name, *from;
    struct json_doc doc;
    struct backend *be;
    struct weights *weights;
    struct model *model;
    struct runner *runner;
    double layers, logits; /* largest errors so far */
    int n_taps;
};

static double number(const struct json *v)
{
    return strtod(v->text, NULL);
}

/* Largest difference of x [n] from the numbers of a golden row, relative to the largest of these. */
static double row_error(const struct json *row, const float *x, int64_t n)
{
    double most = 0, diff = 0;
    if (row->n != (size_t)n)
        return INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double v = number(&row->items[i]), d = fabs(v - (double)x[i]);
        most = fmax(most, fabs(v));
        diff = d > diff || isnan(d) ? d : diff;
    }
    return isnan(diff) ? INFINITY : diff / most;
}

static void tap(void *ctx, int layer_i, struct tensor x)
{
    struct family_lab *lab = ctx;
    const struct json *layers = json_get(&lab->doc.root, "layers");
    const struct json *rows = json_get(&lab->doc.root, "rows");
    if ((size_t)layer_i >= layers->n)
        return;
    lab->n_taps++;
    for (size_t i = 0; i < rows->n; i++) {
        const float *at = x.data + (int64_t)number(&rows->items[i]) * x.stride;
        lab->layers = fmax(lab->layers, row_error(&layers->items[layer_i].items[i], at, x.cols));
    }
}

static enum err_code lab_open(struct family_lab *lab, struct err *err)
{
    char path[256];
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 22);
    snprintf(path, sizeof(path), FOLDER "%s.json", lab->name);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = json_parse(&lab->doc, text.data, text.len, (size_t)1 << 26, err);
    buf_release(&text);
    snprintf(path, sizeof(path), FOLDER "%s.gguf", lab->name);
    if (lab->from)
        snprintf(path, sizeof(path), "%s/%s", lab->from, lab->name);
    if (!code)
        code = weights_open(path, &lab->weights, err);
    if (!code)
        code = model_adapt(lab->weights, err);
    if (!code)
        code = cpu_backend_open(NULL, &lab->be, err);
    if (!code)
        code = model_load(&(struct model_load_options){ .weights = lab->weights, .be = lab->be },
                          &lab->model, err);
    if (code)
        return code;
    lab->model->tap = (struct model_tap){ tap, lab };
    return runner_new(&(struct runner_options){ .model = lab->model,
                                                .n_ctx = ROWS_MAX,
                                                .kv_bytes = (int64_t)64 << 20,
                                                .max_seqs = 1,
                                                .max_rows = ROWS_MAX,
                                                .max_out = ROWS_MAX,
                                                .cache_type = DTYPE_F32 },
                      &lab->runner, err);
}

static void lab_close(struct family_lab *lab)
{
    runner_free(lab->runner);
    model_free(lab->model);
    if (lab->weights)
        weights_close(lab->weights);
    if (lab->be)
        lab->be->ops->close(lab->be);
    json_doc_release(&lab->doc);
}

static int read_ids(const struct json *array, int32_t *ids, int n)
{
    for (size_t i = 0; i < array->n && n < ROWS_MAX; i++)
        ids[n++] = (int32_t)number(&array->items[i]);
    return n;
}

/* Prompt and answer in one step, all logits: what each row's layers and logits are, and how many answers are ours too. */
static enum err_code lab_run(struct family_lab *lab, int *n_equal, int *n_greedy, struct err *err)
{
    int32_t ids[ROWS_MAX];
    const struct json *root = &lab->doc.root, *rows = json_get(root, "rows");
    int n_prompt = read_ids(json_get(root, "prompt"), ids, 0);
    int n = read_ids(json_get(root, "greedy"), ids, n_prompt);
    int64_t n_vocab = lab->model->n_vocab;
    struct runner_item item = { .ids = ids, .n = n, .n_out = n };
    enum err_code code = runner_open(lab->runner, &item.seq, err);
    if (!code)
        code = runner_reserve(lab->runner, item.seq, n, err);
    if (!code)
        code = runner_step(lab->runner, &item, 1, err);
    if (code)
        return code;
    for (size_t i = 0; i < rows->n; i++) {
        const float *at = item.logits + (int64_t)number(&rows->items[i]) * n_vocab;
        lab->logits =
            fmax(lab->logits, row_error(&json_get(root, "logits")->items[i], at, n_vocab));
    }
    *n_equal = 0;
    *n_greedy = n - n_prompt;
    for (int i = n_prompt; i < n; i++)
        *n_equal += sample_argmax(item.logits + (i - 1) * n_vocab, (int32_t)n_vocab) == ids[i];
    return item.has_failed ? err_set(err, ERR_INVALID, "a number is not finite") : ERR_OK;
}

static bool check_family(const char *from, const char *name)
{
    struct family_lab lab = { .name = name, .from = from };
    struct err err;
    int n_equal = 0, n_greedy = 0;
    enum err_code code = lab_open(&lab, &err);
    if (!code)
        code = lab_run(&lab, &n_equal, &n_greedy, &err);
    bool is_good = false;
    if (code) {
        printf("FAIL: family %s: %s\n", name, err.text);
    } else {
        size_t n_layers = json_get(&lab.doc.root, "layers")->n;
        is_good = (size_t)lab.n_taps == n_layers && n_layers == (size_t)lab.model->n_layers &&
                  lab.layers <= TOLERANCE && lab.logits <= TOLERANCE && n_equal == n_greedy;
        printf("%sfamily %s: layers %.1e, logits %.1e, greedy %d of %d\n",
               is_good ? "" : "FAIL: ", name, lab.layers, lab.logits, n_equal, n_greedy);
    }
    lab_close(&lab);
    return is_good;
}

void families_run(const char *from, char *const *names, int n, int *n_passed, int *n_failed)
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
        bool is_good = check_family(from, name);
        *n_passed += is_good;
        *n_failed += !is_good;
    }
    globfree(&found);
}
