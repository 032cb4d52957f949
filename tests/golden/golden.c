/* golden.c - continuations that llama.cpp made, against ours on the same files.
 *
 *   golden [--quick] [--families] [NAME...]    from the repository's root; goldens: llama_cpp/NAME.json, families/NAME.json, mlx/NAME,
 * projected/NAME.json
 *
 * Teacher-forced: the reference's ids are fed and at each of its positions our best token must be its choice, unless its own two
 * best were nearer than NEAR. That holds without exception for the tiny f16 models (goldens of their F32 copies), where nothing
 * is rounded but sums: they prove the families. On quantised weights both engines round activations to 8 bits, each in its own
 * way, so neither is the truth: there llama.cpp's choice may differ up to WIDE at up to WIDE_SHARE of the positions, and the
 * judge is oracle.h, which holds what the file's weights say without such rounding (docs/numerics.md has the distances).
 */
#include "families.h"
#include "lab.h"
#include "mlx.h"
#include "mtp.h"
#include "oracle.h"
#include "projected.h"

#include "base/file.h"
#include "base/log.h"
#include "engine/sample.h"
#include "support/test_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDE       0.5
#define WIDE_SHARE 0.02
#define IDS_MAX    512
#define STEP_ROWS  64

static const struct {
    const char *name;
    bool is_tiny;
    bool is_quick;
    double wide; /* a wrong choice up to this gap is the rounding of activations */
} models[] = {
    { "llama-f16", true, true, NEAR },
    { "llama-yarn", true, true, NEAR },
    { "qwen2-f16", true, true, NEAR },
    { "gemma3-f16", true, true, NEAR },
    { "smollm2", false, true, WIDE },
    { "gemma3-270m", false, false, WIDE },
    { "qwen2.5-coder-0.5b", false, false, WIDE },
};

static int n_passed, n_failed, n_skipped;

static const struct runner_options sizes = {
    .n_ctx = IDS_MAX, .max_rows = STEP_ROWS, .max_out = STEP_ROWS, .cache_type = DTYPE_F16
};

/* --- goldens --- */

static int read_ids(const struct json *array, int32_t *ids, int n)
{
    for (size_t i = 0; i < array->n && n < IDS_MAX; i++)
        ids[n++] = (int32_t)strtol(array->items[i].text, NULL, 10);
    return n;
}

struct tally {
    int n, n_equal, n_near, n_wide, n_wrong;
    double wide;
    struct oracle *oracle; /* NULL for the tiny models */
};

/* Our logits [n_vocab] at position pos of the answer, to which the reference says `id`, `gap` over its second best. */
static void check_position(struct tally *t, const struct json *row, int pos, int32_t id,
                           const float *logits, int32_t n_vocab)
{
    double gap = strtod(json_get(row, "gap")->items[pos].text, NULL);
    int32_t best = sample_argmax(logits, n_vocab);
    const char *text = json_get(row, "text")->text;
    if (t->oracle)
        oracle_position(t->oracle, (int)strtol(text, NULL, 10), pos, logits, n_vocab);
    t->n++;
    t->n_near += gap < NEAR;
    t->n_equal += best == id;
    if (best == id || gap < NEAR)
        return;
    if (gap < t->wide) {
        t->n_wide++;
        return;
    }
    t->n_wrong++;
    printf("position %d of prompt %s: reference %d by %.3f, ours %d\n", pos, text, id, gap, best);
}

/* One prompt: logits of every position from the last of the prompt on. */
static enum err_code check_row(struct golden_lab *lab, const struct json *row, struct tally *t,
                               struct err *err)
{
    int32_t ids[IDS_MAX];
    int n_prompt = read_ids(json_get(row, "prompt"), ids, 0);
    int n = read_ids(json_get(row, "greedy"), ids, n_prompt);
    struct runner_item item = { 0 };
    enum err_code code = runner_open(lab->runner, &item.seq, err);
    if (code)
        return code;
    code = runner_reserve(lab->runner, item.seq, n, err);
    for (int at = 0; at < n && !code; at += item.n) {
        item.ids = ids + at;
        item.n = n - at < STEP_ROWS ? n - at : STEP_ROWS;
        item.n_out = item.n;
        code = runner_step(lab->runner, &item, 1, err);
        for (int i = 0; i < item.n && !code; i++) {
            int pos = at + i + 1 - n_prompt; /* of the answer */
            if (pos < 0 || pos >= n - n_prompt)
                continue;
            check_position(t, row, pos, ids[n_prompt + pos],
                           item.logits + (int64_t)i * lab->model->n_vocab,
                           (int32_t)lab->model->n_vocab);
        }
    }
    runner_close(lab->runner, item.seq);
    return code;
}

static void check_model(const char *name, const char *path, double wide, bool is_tiny)
{
    char golden[256];
    struct golden_lab lab;
    struct oracle oracle = { 0 };
    struct json_doc doc;
    struct buf text;
    struct err err;
    struct tally t = { .wide = wide, .oracle = is_tiny ? NULL : &oracle };
    snprintf(golden, sizeof(golden), "tests/golden/llama_cpp/%s.json", name);
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 20);
    enum err_code code = file_read(golden, &text, &err);
    if (!code)
        code = json_parse(&doc, text.data, text.len, (size_t)1 << 24, &err);
    if (!code && t.oracle)
        code = oracle_init(t.oracle, name, &err);
    if (!code)
        code = golden_lab_open(&lab, path, &sizes, &err);
    if (code) {
        printf("FAIL: %s: %s\n", name, err.text);
        n_failed++;
        buf_release(&text);
        return;
    }
    for (size_t i = 0; i < doc.root.n && !code; i++) {
        int before = t.n_wrong;
        code = check_row(&lab, &doc.root.items[i], &t, &err);
        n_passed += !code && t.n_wrong == before;
        n_failed += code || t.n_wrong != before;
    }
    if (code)
        printf("FAIL: %s: %s\n", name, err.text);
    printf("%s: %d of %d positions equal, %d near ties, %d other choices at gaps of 0.1 to 0.5, %d "
           "beyond\n",
           name, t.n_equal, t.n, t.n_near, t.n_wide, t.n_wrong);
    if (t.n_wide > WIDE_SHARE * t.n) {
        printf("FAIL: %s: rounding decided more than %g of the positions\n", name, WIDE_SHARE);
        n_failed++;
    }
    if (t.oracle && !code) {
        bool has_held = oracle_finish(t.oracle);
        n_passed += has_held;
        n_failed += !has_held;
    }
    oracle_release(&oracle);
    golden_lab_close(&lab);
    json_doc_release(&doc);
    buf_release(&text);
}

int main(int argc, char **argv)
{
    bool is_quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    int first = 1 + is_quick;
    bool has_families = argc > first && strcmp(argv[first], "--families") == 0;
    first += has_families;
    if (argc > first && argv[first][0] == '-') {
        fprintf(stderr, "usage: golden [--quick] [--families] [NAME...]\n");
        return 2;
    }
    log_set_level(LOG_LEVEL_WARN);
    families_run(argv + first, argc - first, &n_passed, &n_failed);
    if (!has_families)
        mtp_run(argv + first, argc - first, &n_passed, &n_failed);
    if (!has_families)
        mlx_run(argv + first, argc - first, &n_passed, &n_failed);
    if (!has_families)
        projected_run(argv + first, argc - first, &n_passed, &n_failed);
    for (size_t m = 0; m < ARRAY_LEN(models) && !has_families; m++) {
        char path[4096];
        bool is_named = argc == first;
        for (int i = first; i < argc; i++)
            is_named = is_named || strcmp(argv[i], models[m].name) == 0;
        if (!is_named)
            continue;
        if ((is_quick && !models[m].is_tiny && !models[m].is_quick) ||
            !test_model_path(models[m].name, models[m].is_tiny, path, sizeof(path))) {
            printf("skip: model-not-fetched: %s\n", models[m].name);
            n_skipped++;
            continue;
        }
        check_model(models[m].name, path, models[m].wide, models[m].is_tiny);
    }
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed != 0;
}
