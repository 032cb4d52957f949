#include "base/file.h"
#include "weights/quantize.h"
#include "weights/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define N_MAX 2048

/* Reading a golden from its start; every take is within the file. */
struct golden {
    struct file_map map;
    size_t at;
};

static void take(struct golden *g, void *out, size_t n)
{
    assert_true(n <= g->map.size - g->at);
    memcpy(out, g->map.data + g->at, n);
    g->at += n;
}

static void open_golden(struct golden *g, const char *path)
{
    struct err err;
    *g = (struct golden){ .at = 0 };
    if (file_map_open(&g->map, path, &err))
        fail_msg("%s", err.text);
}

static enum dtype type_named(const char *name)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strcmp(dtype_info((enum dtype)t)->name, name) == 0)
            return (enum dtype)t;
    fail_msg("type %s", name);
    return DTYPE_COUNT;
}

static double squared_error(enum dtype type, const float *x, int n, const uint8_t *bytes)
{
    static float y[N_MAX];
    double sum = 0;
    assert_int_equal(weights_dequantize(type, bytes, n, y, NULL), ERR_OK);
    for (int i = 0; i < n; i++)
        sum += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
    return sum;
}

/* quantize.bin (make_quantize.py): the package's bytes, and of K-quants at most what llama.cpp's search leaves. */
static void blocks_are_the_references_or_better(void **state)
{
    static float x[8][N_MAX];
    static uint8_t want[4 * N_MAX], got[4 * N_MAX];
    struct golden g;
    uint32_t n_inputs, n;
    int n_records = 0;
    open_golden(&g, "tests/golden/quantize/quantize.bin");
    take(&g, &n_inputs, 4);
    take(&g, &n, 4);
    assert_true(n_inputs <= 8 && n <= N_MAX);
    for (uint32_t i = 0; i < n_inputs; i++)
        take(&g, x[i], n * sizeof(float));
    for (; g.at < g.map.size; n_records++) {
        char name[16];
        uint32_t input, n_bytes;
        double error;
        take(&g, name, sizeof(name));
        take(&g, &input, 4);
        take(&g, &n_bytes, 4);
        take(&g, &error, 8);
        take(&g, want, n_bytes);
        enum dtype type = type_named(name);
        assert_true(quantize_can(type));
        quantize_row(type, x[input], n, got);
        if (n_bytes && memcmp(got, want, n_bytes) != 0)
            fail_msg("%s of input %u: not the reference's bytes", name, input);
        double ours = n_bytes ? 0 : squared_error(type, x[input], (int)n, got);
        double slack = 0; /* blocks of one value: how f16 rounds the scale decides */
        for (uint32_t i = 0; i < n; i++)
            slack += 1e-6 * (double)x[input][i] * (double)x[input][i];
        if (!n_bytes && ours > error + slack)
            fail_msg("%s of input %u: squared error %g, llama.cpp's is %g", name, input, ours,
                     error);
    }
    assert_int_equal(n_records, (int)n_inputs * 10);
    file_map_close(&g.map);
}

/* mlx.bin (make_mlx_quantize.py). */
static void codes_are_those_of_mlx(void **state)
{
    static const enum dtype types[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F32 };
    struct golden g;
    int n_records = 0;
    open_golden(&g, "tests/golden/quantize/mlx.bin");
    for (; g.at < g.map.size; n_records++) {
        uint32_t head[7]; /* bits, group, n, type, bytes of three parts */
        float x[N_MAX];
        uint8_t want[3][N_MAX], got[3][N_MAX];
        take(&g, head, sizeof(head));
        assert_true(head[2] <= N_MAX && head[3] < 3);
        take(&g, x, head[2] * sizeof(float));
        for (int i = 0; i < 3; i++) {
            assert_true(head[4 + i] <= N_MAX);
            take(&g, want[i], head[4 + i]);
        }
        struct quantize_mlx q = { (int)head[0], (int)head[1], types[head[3]] };
        quantize_mlx_row(&q, x, head[2], got[0], got[1], got[2]);
        for (int i = 0; i < 3; i++)
            if (memcmp(got[i], want[i], head[4 + i]) != 0)
                fail_msg("%u bits in groups of %u of %s: part %d differs from MLX's", head[0],
                         head[1], dtype_info(q.type)->name, i);
    }
    assert_int_equal(n_records, 6 * 3 * 3);
    file_map_close(&g.map);
}

/* Blocks of numbers that the format holds exactly come back exactly; of what it cannot hold, nothing is worse than leaving it out. */
static void hard_blocks_stay_bounded(void **state)
{
    static const enum dtype types[] = { DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,
                                        DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K };
    float x[6][256] = { { 0 } };
    uint8_t bytes[512];
    for (int i = 0; i < 256; i++) {
        x[1][i] = -0.5f;                     /* one value */
        x[2][i] = i == 77 ? 60000.0f : 0;    /* one large one, at f16's end */
        x[3][i] = i % 2 ? 1e-7f : -1e-7f;    /* scales that f16 has as denormals or not at all */
        x[4][i] = -1 - (float)(i % 16) / 16; /* all below zero */
        x[5][i] = (float)(i % 32) * 1e-40f;  /* denormal */
    }
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t k = 0; k < ARRAY_LEN(x); k++) {
            double square = 0;
            for (int i = 0; i < 256; i++)
                square += (double)x[k][i] * (double)x[k][i];
            quantize_row(types[t], x[k], 256, bytes);
            double error = squared_error(types[t], x[k], 256, bytes);
            if (!(error <= square * 1.0001 + 1e-30) && k != 3)
                fail_msg("%s of block %zu: squared error %g of %g", dtype_info(types[t])->name, k,
                         error, square);
            assert_true(isfinite(error));
            if (k == 0)
                assert_true(error == 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_the_references_or_better),
        cmocka_unit_test(codes_are_those_of_mlx),
        cmocka_unit_test(hard_blocks_stay_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
