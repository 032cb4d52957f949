/* mlx.c - whole MLX-quantised models: the same greedy ids as mlx-lm, but at near ties, and the reason where they differ. */
#include "mlx.h"

#include "base/dmath.h"
#include "base/file.h"
#include "engine/sample.h"
#include "lab.h"
#include "tensor/half.h"
#include "json/json.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "tests/golden/mlx/"
/* Gap of the judge's two best logits under which either is right. */
#define NEAR_TIE 0.1
/* Mean KL from the judge that computes with the decoded weights. Measured: 4.6e-4 to 8.4e-4, as its copy with 8-bit inputs. */
#define KL_MAX 1.2e-3
/* From the judge with 8-bit inputs, by the largest logit of all: the stored numbers are f16 (2.4e-4); and where sums in another order
 * round an input to the next code, that shows in its row and those after it (1.3e-2). A fault of one matrix shows as 0.1 and more. */
#define ERROR_MAX  3e-2
#define SAME_MAX   1e-3
#define SAME_SHARE 0.25 /* measured: 0.48 to 1 */
#define IDS_MAX    128

struct mlx_lab {
    const char *name;
    struct json_doc doc;
    struct buf judges; /* f16 [2][rows][V] */
    struct golden_lab on;
    int64_t n_vocab, n_rows, row; /* of all answers; the next one */
    int n_equal, n_wrong, n_same; /* n_same: rows within SAME_MAX of judge 1 */
    double kl, error, most;       /* sum; largest difference and logit of judge 1 */
    char gaps[128];               /* of positions with another id */
};

static enum err_code lab_read(struct mlx_lab *lab, struct err *err)
{
    char path[256];
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 20);
    snprintf(path, sizeof(path), FOLDER "%s/answers.json", lab->name);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = json_parse(&lab->doc, text.data, text.len, (size_t)1 << 24, err);
    buf_release(&text);
    snprintf(path, sizeof(path), FOLDER "%s/judges.f16", lab->name);
    return code ? code : file_read(path, &lab->judges, err);
}

static double judge(const struct mlx_lab *lab, int which, int64_t i)
{
    uint16_t half;
    memcpy(&half, lab->judges.data + 2 * ((which * lab->n_rows + lab->row) * lab->n_vocab + i), 2);
    return (double)f16_to_f32(half);
}

static enum err_code lab_open(struct mlx_lab *lab, struct err *err)
{
    static const struct runner_options sizes = { .n_ctx = IDS_MAX,
                                                 .kv_bytes = (int64_t)64 << 20,
                                                 .max_rows = IDS_MAX,
                                                 .max_out = IDS_MAX,
                                                 .cache_type = DTYPE_F32 };
    char path[256];
    snprintf(path, sizeof(path), FOLDER "%s", lab->name);
    enum err_code code = golden_lab_open(&lab->on, path, &sizes, err);
    if (code)
        return code;
    lab->n_vocab = lab->on.model->n_vocab;
    lab->n_rows = (int64_t)lab->judges.len / 4 / lab->n_vocab;
    for (lab->row = 0; lab->row < lab->n_rows; lab->row++)
        for (int64_t i = 0; i < lab->n_vocab; i++)
            lab->most = fmax(lab->most, fabs(judge(lab, 1, i)));
    lab->row = 0;
    return ERR_OK;
}

static void lab_close(struct mlx_lab *lab)
{
    golden_lab_close(&lab->on);
    json_doc_release(&lab->doc);
    buf_release(&lab->judges);
}

/* KL of judge 0's distribution from that of the logits. */
static double row_kl(const struct mlx_lab *lab, const float *logits)
{
    double sums[2] = { 0, 0 }, kl = 0;
    for (int64_t i = 0; i < lab->n_vocab; i++) {
        sums[0] += dmath_exp(judge(lab, 0, i));
        sums[1] += dmath_exp((double)logits[i]);
    }
    for (int64_t i = 0; i < lab->n_vocab; i++) {
        double p = judge(lab, 0, i) - dmath_log(sums[0]);
        kl += dmath_exp(p) * (p - ((double)logits[i] - dmath_log(sums[1])));
    }
    return kl;
}

static int64_t judge_best(const struct mlx_lab *lab, int which)
{
    int64_t best = 0;
    for (int64_t i = 1; i < lab->n_vocab; i++)
        best = judge(lab, which, i) > judge(lab, which, best) ? i : best;
    return best;
}

/* Where our id is not mlx-lm's: a near tie, or what a judge says too. */
static void lab_miss(struct mlx_lab *lab, int64_t ours, double gap)
{
    bool is_theirs = ours == judge_best(lab, 0), is_rounding = ours == judge_best(lab, 1);
    size_t at = strlen(lab->gaps);
    snprintf(lab->gaps + at, sizeof(lab->gaps) - at, "%s%.3f%s", at ? ", " : "", gap,
             is_theirs ? " ours is the judge's" : "");
    lab->n_wrong += !is_theirs && !is_rounding && gap >= NEAR_TIE;
}

static void lab_row(struct mlx_lab *lab, const float *logits, int32_t want, double gap)
{
    int64_t ours = sample_argmax(logits, (int32_t)lab->n_vocab);
    double error = 0;
    lab->n_equal += ours == want;
    if (ours != want)
        lab_miss(lab, ours, gap);
    lab->kl += row_kl(lab, logits);
    for (int64_t i = 0; i < lab->n_vocab; i++)
        error = fmax(error, fabs((double)logits[i] - judge(lab, 1, i)));
    lab->error = fmax(lab->error, error);
    lab->n_same += error <= SAME_MAX * lab->most;
    lab->row++;
}

/* One prompt and mlx-lm's answer to it, in one step. */
static enum err_code lab_answer(struct mlx_lab *lab, const struct json *answer, struct err *err)
{
    const struct json *prompt = json_get(answer, "prompt"), *greedy = json_get(answer, "greedy");
    const struct json *gaps = json_get(answer, "judge");
    int32_t ids[IDS_MAX], n = 0;
    for (size_t i = 0; i < prompt->n; i++)
        ids[n++] = (int32_t)strtol(prompt->items[i].text, NULL, 10);
    for (size_t i = 0; i < greedy->n; i++)
        ids[n++] = (int32_t)strtol(greedy->items[i].text, NULL, 10);
    struct runner_item item = { .ids = ids, .n = n - 1, .n_out = (int32_t)greedy->n };
    enum err_code code = runner_open(lab->on.runner, &item.seq, err);
    if (!code)
        code = runner_reserve(lab->on.runner, item.seq, n, err);
    if (!code)
        code = runner_step(lab->on.runner, &item, 1, err);
    for (int32_t i = 0; i < item.n_out && !code; i++)
        lab_row(lab, item.logits + i * lab->n_vocab, ids[(int32_t)prompt->n + i],
                strtod(gaps->items[i].items[2].text, NULL));
    runner_close(lab->on.runner, item.seq);
    return code;
}

static bool check_model(const char *name)
{
    struct mlx_lab lab = { .name = name };
    struct err err;
    buf_init(&lab.judges, MEM_CAT_BASE, (size_t)1 << 24);
    enum err_code code = lab_read(&lab, &err);
    if (!code)
        code = lab_open(&lab, &err);
    for (size_t i = 0; !code && i < lab.doc.root.n; i++)
        code = lab_answer(&lab, &lab.doc.root.items[i], &err);
    bool is_good = false;
    if (code) {
        printf("FAIL: mlx %s: %s\n", name, err.text);
    } else {
        double kl = lab.kl / (double)lab.row, error = lab.error / lab.most;
        is_good = lab.row == lab.n_rows && lab.row > 0 && lab.n_wrong == 0 && kl <= KL_MAX &&
                  error <= ERROR_MAX && lab.n_same >= SAME_SHARE * (double)lab.row;
        printf("%smlx %s: greedy %d of %lld as mlx-lm", is_good ? "" : "FAIL: ", name, lab.n_equal,
               (long long)lab.row);
        if (lab.gaps[0])
            printf(" (the others at gaps of %s)", lab.gaps);
        printf(", KL %.1e from the judge; from it with 8-bit inputs %.1e, %d rows the same\n", kl,
               error, lab.n_same);
    }
    lab_close(&lab);
    return is_good;
}

void mlx_run(char *const *names, int n, int *n_passed, int *n_failed)
{
    glob_t found = { 0 };
    if (glob(FOLDER "*/answers.json", 0, NULL, &found)) {
        printf("FAIL: no models in " FOLDER "\n");
        (*n_failed)++;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = found.gl_pathv[i] + strlen(FOLDER);
        bool is_named = n == 0;
        *strchr(name, '/') = '\0';
        for (int k = 0; k < n; k++)
            is_named = is_named || strcmp(names[k], name) == 0;
        if (!is_named)
            continue;
        bool is_good = check_model(name);
        *n_passed += is_good;
        *n_failed += !is_good;
    }
    globfree(&found);
}
