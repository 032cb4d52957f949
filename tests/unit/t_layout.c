/* t_layout.c - matrices that stand otherwise in their file: taking one gives what decoding first and moving then gives. */
#include "tensor/dtype.h"
#include "weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROWS     8  /* in the file, of one matrix */
#define COLS     64 /* in the file */
#define MATRICES 2
#define RUN      32

static uint8_t codes[MATRICES * ROWS * COLS * 4];
static uint16_t scales[MATRICES * ROWS * COLS], biases[MATRICES * ROWS * COLS];
static const int32_t odd_rows[] = { 7, 5, 3, 1 }, swapped[] = { 1, 0 };

static int fill(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(codes); i++)
        codes[i] = (uint8_t)((i * 37 + i / 7) & 0x3B); /* of every float type a finite number */
    for (size_t i = 0; i < ARRAY_LEN(scales); i++) {
        scales[i] = (uint16_t)(0x3C00 + i % 512);
        biases[i] = (uint16_t)(0x3800 + i % 300);
    }
    return 0;
}

/* Matrix `which` of a stack, as the layout l has it, element by element. */
static void check(struct weights_tensor *t, const struct weights_layout *l, int64_t rows, int which)
{
    static float plain[MATRICES * ROWS * COLS], got[ROWS * COLS];
    struct err err = { 0 };
    struct weights_tensor taken, view;
    void *mem;
    t->shape[0] = COLS;
    t->shape[1] = ROWS;
    t->shape[2] = MATRICES;
    t->shape[3] = 1;
    t->n_dims = 3;
    assert_int_equal(weights_decode_rows(t, 0, MATRICES * ROWS, plain, &err), ERR_OK);
    t->layout = l;
    t->shape[1] = rows;
    view = weights_matrix(t, which);
    assert_int_equal(weights_take(&view, &taken, &mem, &err), ERR_OK);
    assert_non_null(mem);
    assert_null(taken.layout);
    assert_int_equal(taken.shape[1], rows);
    assert_int_equal(weights_decode_rows(&taken, 0, rows, got, &err), ERR_OK);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < COLS; c++) {
            int64_t row = l->rows ? l->rows[r] : r;
            int64_t col = l->runs ? l->runs[c / RUN] * RUN + c % RUN : c;
            float want = plain[(which * ROWS + row) * COLS + col];
            if (memcmp(&got[r * COLS + c], &want, sizeof(want)) != 0)
                fail_msg("%s: [%d][%d] is %g, want %g", t->name, (int)r, (int)c,
                         (double)got[r * COLS + c], (double)want);
        }
    mem_free(MEM_CAT_WEIGHTS, mem);
}

static void rows_and_runs_of_columns_move_with_their_scales(void **state)
{
    (void)state;
    const struct {
        const char *name;
        enum dtype type;
        int64_t rows, cols; /* that share a scale */
    } types[] = {
        { "f32", DTYPE_F32, 0, 0 },
        { "bf16", DTYPE_BF16, 0, 0 },
        { "q8_0", DTYPE_Q8_0, 0, 0 },
        { "mlx4", DTYPE_MLX4, 1, 32 },
        { "mlx3", DTYPE_MLX3, 1, 32 },
        { "fp8 plain", DTYPE_F8_E4M3, 0, 0 },
        { "fp8 rows", DTYPE_F8_E4M3, 1, 64 },
        { "fp8 blocks", DTYPE_F8_E4M3, 4, 16 },
        { "fp8 one", DTYPE_F8_E5M2, MATRICES * ROWS, 64 },
    };
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct weights_tensor t = {
            .name = types[i].name, .type = types[i].type, .data = codes, .bytes = sizeof(codes)
        };
        struct weights_layout some = { .n_rows = ROWS, .rows = odd_rows };
        struct weights_layout columns = { .n_rows = ROWS, .run = RUN, .runs = swapped };
        if (types[i].rows)
            t.scales = (struct scales){ .scales = (uint8_t *)scales,
                                        .biases = dtype_mlx_bits(t.type) ? (uint8_t *)biases : NULL,
                                        .type = DTYPE_F16,
                                        .rows = types[i].rows,
                                        .cols = types[i].cols };
        else
            t.scales = (struct scales){ .rows = 1, .cols = COLS };
        int last = types[i].rows <= ROWS; /* one scale for all is no stack's */
        struct weights_tensor again = t;
        check(&t, &some, ARRAY_LEN(odd_rows), last);
        check(&again, &columns, ROWS, 0);
    }
}

/* One scale for the row, columns in runs of eight: bytes of any width of codes. */
static void short_runs_of_codes_move(void **state)
{
    (void)state;
    static const int32_t runs[] = { 5, 0, 3, 1, 7, 2, 6, 4 };
    static const enum dtype types[] = { DTYPE_MLX2, DTYPE_MLX3, DTYPE_MLX5, DTYPE_MLX8 };
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        float plain[ROWS * COLS], got[ROWS * COLS];
        struct err err = { 0 };
        struct weights_tensor taken;
        void *mem;
        struct weights_layout l = { .n_rows = ROWS, .run = 8, .runs = runs };
        struct weights_tensor t = { .name = "w",
                                    .type = types[i],
                                    .n_dims = 2,
                                    .shape = { COLS, ROWS, 1, 1 },
                                    .data = codes,
                                    .scales = { (uint8_t *)scales, (uint8_t *)biases, DTYPE_F16, 1,
                                                COLS } };
        assert_int_equal(weights_decode_rows(&t, 0, ROWS, plain, &err), ERR_OK);
        t.layout = &l;
        assert_int_equal(weights_take(&t, &taken, &mem, &err), ERR_OK);
        assert_int_equal(weights_decode_rows(&taken, 0, ROWS, got, &err), ERR_OK);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t c = 0; c < COLS; c++)
                assert_true(got[r * COLS + c] == plain[r * COLS + runs[c / 8] * 8 + c % 8]);
        mem_free(MEM_CAT_WEIGHTS, mem);
        l.run = 4;
        assert_int_equal(weights_take(&t, &taken, &mem, &err), ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "tensor w: runs of 4 columns"));
    }
}

static void scales_over_runs_that_part_are_refused(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct weights_tensor out;
    void *mem;
    struct weights_layout l = { .n_rows = ROWS, .run = 16, .runs = swapped };
    struct weights_tensor t = { .name = "w",
                                .type = DTYPE_MLX4,
                                .n_dims = 2,
                                .shape = { COLS, ROWS, 1, 1 },
                                .data = codes,
                                .layout = &l,
                                .scales = { (uint8_t *)scales, (uint8_t *)biases, DTYPE_F16, 1,
                                            32 } };
    assert_int_equal(weights_take(&t, &out, &mem, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tensor w: scales of 32 columns"));
    assert_null(mem);
}

static void turned_matrices_are_turned_back(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct weights_tensor out;
    void *mem;
    float at;
    struct weights_layout l = { .n_rows = ROWS, .rows = odd_rows, .is_turned = true };
    struct weights_tensor t = { .name = "w",
                                .type = DTYPE_F32,
                                .n_dims = 3,
                                .shape = { 4, ARRAY_LEN(odd_rows), MATRICES, 1 },
                                .data = codes,
                                .layout = &l };
    struct weights_tensor view = weights_matrix(&t, 1);
    assert_int_equal(weights_take(&view, &out, &mem, &err), ERR_OK);
    for (int r = 0; r < (int)ARRAY_LEN(odd_rows); r++)
        for (int c = 0; c < 4; c++) {
            memcpy(&at, out.data + 4 * (r * 4 + c), 4);
            assert_memory_equal(&at, codes + 4 * ((4 + c) * ROWS + odd_rows[r]), 4);
        }
    mem_free(MEM_CAT_WEIGHTS, mem);
}

/* Elements 2i and 2i + 1 share byte i in the file, elements i and i + 16 in a block. */
static void mxfp4_in_two_tensors_becomes_blocks(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct weights_tensor out;
    void *mem;
    uint8_t in[2][2 * 2 * 16], exponents[2][2 * 2];
    for (size_t i = 0; i < sizeof(in); i++)
        ((uint8_t *)in)[i] = (uint8_t)(i * 29 + 3);
    for (size_t i = 0; i < sizeof(exponents); i++)
        ((uint8_t *)exponents)[i] = (uint8_t)(120 + i);
    static const int32_t second[] = { 1 };
    struct weights_layout l = { .n_rows = 2, .rows = second, .is_apart = true };
    struct weights_tensor t = { .name = "w",
                                .type = DTYPE_MXFP4,
                                .n_dims = 3,
                                .shape = { 64, 1, 2, 1 },
                                .data = (uint8_t *)in,
                                .bytes = sizeof(in),
                                .layout = &l,
                                .scales = { (uint8_t *)exponents, NULL, DTYPE_U8, 1, 32 } };
    struct weights_tensor view = weights_matrix(&t, 1);
    assert_int_equal(weights_take(&view, &out, &mem, &err), ERR_OK);
    assert_int_equal(out.bytes, 2 * 17);
    for (int b = 0; b < 2; b++) {
        const uint8_t *block = out.data + 17 * b, *from = in[1] + 32 + 16 * b;
        assert_int_equal(block[0], exponents[1][2 + b]);
        for (int i = 0; i < 32; i++) {
            unsigned code = i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4;
            assert_int_equal(code, from[i / 2] >> 4 * (i % 2) & 15);
        }
    }
    mem_free(MEM_CAT_WEIGHTS, mem);
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    struct err err = { 0 };
    struct weights_tensor out;
    void *mem;
    struct weights_layout l = { .n_rows = ROWS, .rows = odd_rows };
    struct weights_tensor t = { .name = "w",
                                .type = DTYPE_F32,
                                .n_dims = 2,
                                .shape = { COLS, ARRAY_LEN(odd_rows), 1, 1 },
                                .data = codes,
                                .layout = &l };
    mem_fail_nth(1);
    assert_int_equal(weights_take(&t, &out, &mem, &err), ERR_NOMEM);
    mem_fail_nth(0);
    assert_null(mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_runs_of_columns_move_with_their_scales),
        cmocka_unit_test(short_runs_of_codes_move),
        cmocka_unit_test(scales_over_runs_that_part_are_refused),
        cmocka_unit_test(turned_matrices_are_turned_back),
        cmocka_unit_test(mxfp4_in_two_tensors_becomes_blocks),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
