/* families.c - tiny models of every family against transformers, layer by layer. */
#include "families.h"

#include "base/file.h"
#include "engine/sample.h"
#include "lab.h"
#include "json/json.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "tests/golden/families/"
/* Ours and the reference's f32 sums run in another order; measured: 2e-7 to 7e-6. The most have the gated delta nets, and it is the
 * reference that is further off, for it computes the recurrence in chunks: qwen35moe with seed 3, all of transformers in f64, its
 * f32 is 1.5e-6, 3.5e-6, 4.4e-6, 6.7e-6 from that after its four layers, ours 2.8e-6 at most. */
#define TOLERANCE 1e-5
#define ROWS_MAX  256
/* ids of a model without a golden */
#define IDS_WITHOUT 100

struct family_lab {
    const char *name;
    bool has_golden;
    struct json_doc doc;
    struct golden_lab on;
    double layers, logits; /* largest errors so far */
    int n_taps, n_equal, n_greedy;
    int64_t n_layers;
    struct buf bits; /* all logits */
};

static void tap(void *ctx, int layer_i, struct tensor x)
{
    struct family_lab *lab = ctx;
    const struct json *layers = json_get(&lab->doc.root, "layers");
    const struct json *rows = json_get(&lab->doc.root, "rows");
    if ((size_t)layer_i >= layers->n)
        return;
    lab->n_taps++;
    for (size_t i = 0; i < rows->n; i++) {
        int64_t row = (int64_t)golden_number(&rows->items[i]);
        if (row >= x.rows) /* the last layer of a model whose first row is all that counts */
            continue;
        const float *at = x.data + row * x.stride;
        lab->layers =
            fmax(lab->layers, golden_row_error(&layers->items[layer_i].items[i], at, x.cols));
    }
}

static enum err_code lab_read_golden(struct family_lab *lab, struct err *err)
{
    char path[256];
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 22);
    snprintf(path, sizeof(path), FOLDER "%s.json", lab->name);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = json_parse(&lab->doc, text.data, text.len, (size_t)1 << 26, err);
    buf_release(&text);
    return code;
}

static enum err_code lab_open(struct family_lab *lab, const char *path, struct err *err)
{
    static const struct runner_options sizes = { .n_ctx = ROWS_MAX,
                                                 .kv_bytes = (int64_t)64 << 20,
                                                 .max_rows = ROWS_MAX,
                                                 .max_out = ROWS_MAX,
                                                 .cache_type = DTYPE_F32 };
    enum err_code code = golden_lab_open(&lab->on, path, &sizes, err);
    if (!code && lab->has_golden)
        lab->on.model->tap = (struct model_tap){ tap, lab };
    return code;
}

static int read_ids(const struct json *array, int32_t *ids, int n)
{
    for (size_t i = 0; i < array->n && n < ROWS_MAX; i++)
        ids[n++] = (int32_t)golden_number(&array->items[i]);
    return n;
}

/* The prompt and the answer of the golden; without one any ids do. */
static int lab_ids(const struct family_lab *lab, int32_t ids[ROWS_MAX], int *n_prompt)
{
    const struct json *root = &lab->doc.root;
    *n_prompt = IDS_WITHOUT;
    for (int i = 0; i < IDS_WITHOUT && !lab->has_golden; i++)
        ids[i] = (i * 7919 + i * i * 31) % (int32_t)lab->on.model->n_vocab;
    if (!lab->has_golden)
        return IDS_WITHOUT;
    *n_prompt = read_ids(json_get(root, "prompt"), ids, 0);
    return read_ids(json_get(root, "greedy"), ids, *n_prompt);
}

static void lab_compare(struct family_lab *lab, const float *logits, const int32_t *ids,
                        int n_prompt, int n)
{
    const struct json *root = &lab->doc.root, *rows = json_get(root, "rows");
    int64_t n_vocab = lab->on.model->n_vocab;
    for (size_t i = 0; i < rows->n; i++) {
        const float *at = logits + (int64_t)golden_number(&rows->items[i]) * n_vocab;
        lab->logits =
            fmax(lab->logits, golden_row_error(&json_get(root, "logits")->items[i], at, n_vocab));
    }
    lab->n_greedy = n - n_prompt;
    lab->n_equal = 0;
    for (int i = n_prompt; i < n; i++)
        lab->n_equal += sample_argmax(logits + (i - 1) * n_vocab, (int32_t)n_vocab) == ids[i];
}

/* Prompt and answer in one step, all logits: what each row's layers and logits are, and how many answers are ours too. */
static enum err_code lab_run(struct family_lab *lab, struct err *err)
{
    int32_t ids[ROWS_MAX];
    int n_prompt, n = lab_ids(lab, ids, &n_prompt);
    struct runner_item item = { .ids = ids, .n = n, .n_out = n };
    enum err_code code = runner_open(lab->on.runner, &item.seq, err);
    if (!code)
        code = runner_reserve(lab->on.runner, item.seq, n, err);
    if (!code)
        code = runner_step(lab->on.runner, &item, 1, err);
    if (code)
        return code;
    lab->n_taps = lab->has_golden ? lab->n_taps : 0;
    if (lab->has_golden)
        lab_compare(lab, item.logits, ids, n_prompt, n);
    buf_reset(&lab->bits);
    buf_add(&lab->bits, (const char *)item.logits,
            (size_t)n * (size_t)lab->on.model->n_vocab * sizeof(float));
    return item.has_failed ? err_set(err, ERR_INVALID, "a number is not finite") : ERR_OK;
}

/* The text's embedding (or labels), beside which no logits are. */
static enum err_code lab_embed(struct family_lab *lab, struct err *err)
{
    int32_t ids[ROWS_MAX];
    const struct json *want = json_get(&lab->doc.root, "embedding");
    int n = read_ids(json_get(&lab->doc.root, "prompt"), ids, 0);
    int n_out = lab->on.model->is_two_way ? 1 : n; /* a decoder's layers are compared by rows */
    int64_t n_embd = lab->on.model->n_embd;
    struct runner_item item = {
        .ids = ids, .n = n, .n_out = n_out, .wants_hidden = true, .has_no_head = true
    };
    enum err_code code = runner_open(lab->on.runner, &item.seq, err);
    if (!code)
        code = runner_reserve(lab->on.runner, item.seq, n, err);
    if (!code)
        code = runner_step(lab->on.runner, &item, 1, err);
    if (code)
        return code;
    lab->logits = golden_row_error(want, item.hidden + (n_out - 1) * n_embd, n_embd);
    buf_reset(&lab->bits);
    buf_add(&lab->bits, (const char *)item.hidden, (size_t)n_out * (size_t)n_embd * sizeof(float));
    return item.has_failed ? err_set(err, ERR_INVALID, "a number is not finite") : ERR_OK;
}

static bool lab_is_good(const struct family_lab *lab)
{
    size_t n_layers = lab->has_golden ? json_get(&lab->doc.root, "layers")->n : 0;
    return !lab->has_golden ||
           ((size_t)lab->n_taps == n_layers && n_layers == (size_t)lab->n_layers &&
            lab->layers <= TOLERANCE && lab->logits <= TOLERANCE && lab->n_equal == lab->n_greedy);
}

/* One form of the model: its file or its directory. */
static enum err_code lab_form(struct family_lab *lab, const char *path, struct err *err)
{
    lab->layers = lab->logits = 0;
    lab->n_taps = lab->n_equal = lab->n_greedy = 0;
    enum err_code code = lab_open(lab, path, err);
    if (!code)
        code = lab->has_golden && json_get(&lab->doc.root, "embedding") ? lab_embed(lab, err)
                                                                        : lab_run(lab, err);
    lab->n_layers = lab->on.model ? lab->on.model->n_layers : 0;
    golden_lab_close(&lab->on);
    return code;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static bool check_family(const char *name)
{
    char path[256];
    struct family_lab lab = { .name = name }, dir = { .name = name };
    struct err err;
    enum err_code code = ERR_OK;
    snprintf(path, sizeof(path), FOLDER "%s.json", name);
    lab.has_golden = exists(path);
    buf_init(&lab.bits, MEM_CAT_BASE, (size_t)1 << 24);
    buf_init(&dir.bits, MEM_CAT_BASE, (size_t)1 << 24);
    if (lab.has_golden)
        code = lab_read_golden(&lab, &err);
    dir.has_golden = lab.has_golden;
    dir.doc = lab.doc;
    snprintf(path, sizeof(path), FOLDER "%s.gguf", name);
    if (!code)
        code = lab_form(&lab, path, &err);
    snprintf(path, sizeof(path), FOLDER "hf/%s", name);
    bool has_dir = exists(path);
    if (!code && has_dir && (code = lab_form(&dir, path, &err)))
        err_prefix(&err, code, "directory");
    bool is_good = false, is_same = has_dir && lab.bits.len == dir.bits.len &&
                                    memcmp(lab.bits.data, dir.bits.data, lab.bits.len) == 0;
    if (code) {
        printf("FAIL: family %s: %s\n", name, err.text);
    } else {
        is_good = lab_is_good(&lab) && (!has_dir || is_same);
        printf("%sfamily %s: ", is_good ? "" : "FAIL: ", name);
        if (lab.has_golden && json_get(&lab.doc.root, "embedding"))
            printf("layers %.1e, embedding %.1e, ", lab.layers, lab.logits);
        else if (lab.has_golden)
            printf("layers %.1e, logits %.1e, greedy %d of %d, ", lab.layers, lab.logits,
                   lab.n_equal, lab.n_greedy);
        printf("directory %s\n", !has_dir ? "none" : is_same ? "the same bits" : "other bits");
        if (has_dir && !is_same && lab.has_golden)
            printf("  the directory: layers %.1e, logits %.1e, greedy %d of %d\n", dir.layers,
                   dir.logits, dir.n_equal, dir.n_greedy);
    }
    json_doc_release(&lab.doc);
    buf_release(&lab.bits);
    buf_release(&dir.bits);
    return is_good;
}

void families_run(char *const *names, int n, int *n_passed, int *n_failed)
{
    glob_t found = { 0 };
    char path[256];
    if (glob(FOLDER "*.gguf", 0, NULL, &found)) {
        printf("FAIL: no models in " FOLDER "\n");
        (*n_failed)++;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = found.gl_pathv[i] + strlen(FOLDER);
        name[strlen(name) - strlen(".gguf")] = '\0';
        bool is_named = n == 0, has_golden;
        for (int k = 0; k < n; k++)
            is_named = is_named || strcmp(names[k], name) == 0;
        snprintf(path, sizeof(path), FOLDER "%s.json", name);
        has_golden = exists(path);
        snprintf(path, sizeof(path), FOLDER "hf/%s", name);
        if (!is_named || (!has_golden && !exists(path)))
            continue;
        bool is_good = check_family(name);
        *n_passed += is_good;
        *n_failed += !is_good;
    }
    globfree(&found);
}
