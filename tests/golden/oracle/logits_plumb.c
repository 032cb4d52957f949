/* logits_plumb.c - our logits for given ids, as raw float32, for tests/golden/oracle/compare.py.
 *
 *   logits_plumb MODEL [f32] [cuda] < ROWS > LOGITS      a row is one line: FROM ID ID ...; the logits of its positions FROM.. are
 *                                                        written; f32: the cache's type, in the place of f16; cuda: on the GPU
 *
 * Not built by the Makefile. After `make`, from the repository's root:
 *   cc -O2 -o logits_plumb -Isrc tests/golden/oracle/logits_plumb.c build/release/libplumb-all.a -levent -levent_pthreads -lyajl \
 *      -lpcre2-8 -lutf8proc -lcrypto -lsqlite3 -lpthread -lm
 * With CUDA=1: build/cuda/libplumb-all.a, and -L/usr/local/cuda/lib64 -lcudart_static -lstdc++ -ldl -lrt besides.
 */
#include "base/log.h"
#include "engine/runner.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS_MAX   1024
#define STEP_ROWS 64
#define LINE_MAX_ (1 << 16)

static int read_row(char *line, int32_t *ids, int *from)
{
    char *end;
    int n = 0;
    *from = (int)strtol(line, &end, 10);
    for (char *p = end; n < IDS_MAX; p = end) {
        long id = strtol(p, &end, 10);
        if (end == p)
            break;
        ids[n++] = (int32_t)id;
    }
    return n;
}

static enum err_code write_row(struct runner *runner, const int32_t *ids, int n, int from,
                               struct err *err)
{
    struct runner_item item = { 0 };
    int64_t n_vocab = runner->model->n_vocab;
    enum err_code code = runner_open(runner, &item.seq, err);
    if (code)
        return code;
    code = runner_reserve(runner, item.seq, n, err);
    for (int at = 0; at < n && !code; at += item.n) {
        item.ids = ids + at;
        item.n = n - at < STEP_ROWS ? n - at : STEP_ROWS;
        item.n_out = item.n;
        code = runner_step(runner, &item, 1, err);
        for (int i = 0; i < item.n && !code; i++)
            if (at + i >= from)
                fwrite(item.logits + i * n_vocab, sizeof(float), (size_t)n_vocab, stdout);
    }
    runner_close(runner, item.seq);
    return code;
}

static bool has_word(int argc, char **argv, const char *word)
{
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    static char line[LINE_MAX_];
    static int32_t ids[IDS_MAX];
    struct weights *weights = NULL;
    struct backend *be = NULL;
    struct model *model = NULL;
    struct runner *runner = NULL;
    struct err err;
    if (argc < 2)
        return 2;
    log_set_level(LOG_LEVEL_WARN);
    enum err_code code = weights_open(argv[1], &weights, &err);
    if (!code)
        code = has_word(argc, argv, "cuda")
                   ? cuda_backend_open(&(struct cuda_options){ 0 }, &be, &err)
                   : cpu_backend_open(NULL, &be, &err);
    if (!code)
        code =
            model_load(&(struct model_load_options){ .weights = weights, .be = be }, &model, &err);
    if (!code)
        code = runner_new(&(struct runner_options){ .model = model,
                                                    .n_ctx = IDS_MAX,
                                                    .max_seqs = 1,
                                                    .max_rows = STEP_ROWS,
                                                    .max_out = STEP_ROWS,
                                                    .cache_type = has_word(argc, argv, "f32")
                                                                      ? DTYPE_F32
                                                                      : DTYPE_F16 },
                          &runner, &err);
    while (!code && fgets(line, sizeof(line), stdin)) {
        int from, n = read_row(line, ids, &from);
        code = write_row(runner, ids, n, from, &err);
    }
    if (code)
        fprintf(stderr, "%s\n", err.text);
    return code != ERR_OK;
}
