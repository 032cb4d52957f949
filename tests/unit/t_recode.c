/* Writers and the copying of tensors: sink, gguf_write, safetensors_write, recode. */
#include "base/file.h"
#include "base/parallel.h"
#include "weights/gguf_write.h"
#include "weights/recode.h"
#include "weights/safetensors_write.h"
#include "weights/weights_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int make_dir(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/plumb-recode-XXXXXX");
    return mkdtemp(dir) ? 0 : 1;
}

static int remove_dir(void **state)
{
    return rmdir(dir); /* fails where a test left something */
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void count_range(void *ctx, int64_t i0, int64_t i1)
{
    int *seen = ctx;
    for (int64_t i = i0; i < i1; i++)
        seen[i]++;
}

static void ranges_cover_everything_once(void **state)
{
    for (int threads = 1; threads <= 5; threads++)
        for (int n = 0; n <= 11; n++) {
            int seen[11] = { 0 };
            parallel_for(threads, n, count_range, seen);
            for (int i = 0; i < 11; i++)
                assert_int_equal(seen[i], i < n);
        }
}

static void a_file_appears_only_when_it_is_whole(void **state)
{
    struct sink s;
    struct err err;
    struct file_map m;
    static uint8_t big[3 << 20];
    char path[128];
    snprintf(path, sizeof(path), "%s", path_of("whole"));
    memset(big, 7, sizeof(big));
    assert_int_equal(sink_open(&s, path, &err), ERR_OK);
    assert_int_equal(sink_write(&s, "abc", 3, &err), ERR_OK);
    assert_int_equal(sink_pad(&s, 32, &err), ERR_OK);
    assert_int_equal(sink_write(&s, big, sizeof(big), &err), ERR_OK);
    assert_int_equal(s.n, 32 + sizeof(big));
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(sink_sync(&s, &err), ERR_OK);
    assert_int_equal(access(s.part, F_OK), 0);
    assert_int_equal(sink_commit(&s, &err), ERR_OK);
    assert_int_equal(file_map_open(&m, path, &err), ERR_OK);
    assert_int_equal(m.size, 32 + sizeof(big));
    assert_memory_equal(m.data, "abc\0\0", 5);
    assert_memory_equal(m.data + 32, big, sizeof(big));
    file_map_close(&m);
    unlink(path);
}

static void what_is_given_up_leaves_nothing(void **state)
{
    struct sink s;
    struct err err;
    char part[128];
    assert_int_equal(sink_open(&s, path_of("gone"), &err), ERR_OK);
    snprintf(part, sizeof(part), "%s", s.part);
    assert_int_equal(sink_write(&s, "abc", 3, &err), ERR_OK);
    sink_abort(&s);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_int_not_equal(access(path_of("gone"), F_OK), 0);
    sink_abort(&s); /* fine twice */
    assert_int_equal(sink_open(&s, path_of("no/such/file"), &err), ERR_IO);
    assert_non_null(strstr(err.text, "No such file or directory"));
}

/* --- tensors --- */

#define ROWS 24
#define COLS 64

static float values[ROWS * COLS];

static void fill(void)
{
    for (int i = 0; i < ROWS * COLS; i++)
        values[i] = (float)((i * 7919) % 1009) / 512 - 1;
}

static struct weights_tensor tensor_of(const void *data, enum dtype type, int64_t cols,
                                       int64_t rows)
{
    struct weights_tensor t = { .name = "t",
                                .type = type,
                                .n_dims = rows > 1 ? 2 : 1,
                                .shape = { cols, rows, 1, 1 },
                                .data = data,
                                .bytes = dtype_row_bytes(type, cols) * (size_t)rows };
    return t;
}

static enum err_code gather(void *ctx, const void *data, size_t n, struct err *err)
{
    buf_add(ctx, data, n);
    return ERR_OK;
}

/* The weights that a piece's pages belong to: none is mapped. */
static struct weights *nothing(void)
{
    static uint8_t head[24] = { 'G', 'G', 'U', 'F', 3 };
    const struct weights_image image = { "nothing", head, sizeof(head) };
    struct weights *w = NULL;
    assert_int_equal(weights_open_images(&image, 1, &w, NULL), ERR_OK);
    return w;
}

static enum err_code run(const struct recode *r, int threads, struct buf *out, struct err *err)
{
    struct weights *w = nothing();
    const struct recode_out to = { .write = gather, .ctx = out, .threads = threads };
    enum err_code code = recode_check(r, err);
    if (!code)
        code = recode_run(r, w, &to, err);
    weights_close(w);
    return code;
}

static void rows_of_heads_go_to_halves(void **state)
{
    static const int32_t rows[] = { 0, 2, 4, 6, 1, 3, 5, 7 };
    struct buf halves;
    const struct weights_tensor t = tensor_of(values, DTYPE_F32, COLS, ROWS), *parts[] = { &t };
    struct recode r = { .name = "q",
                        .parts = parts,
                        .n_parts = 1,
                        .groups = 3,
                        .rows = rows,
                        .type = DTYPE_F32,
                        .n_dims = 2,
                        .shape = { COLS, ROWS, 1, 1 } };
    fill();
    buf_init(&halves, MEM_CAT_BASE, 1 << 20);
    assert_int_equal(run(&r, 1, &halves, NULL), ERR_OK);
    for (int h = 0; h < 3; h++) /* heads of 8 rows: pair i is rows 2 i and 2 i + 1 */
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 2; j++)
                assert_memory_equal(halves.data + (size_t)(8 * h + 4 * j + i) * COLS * 4,
                                    values + (8 * h + 2 * i + j) * COLS, COLS * 4);
    /* the same of a vector: elements are rows */
    const struct weights_tensor v = tensor_of(values, DTYPE_F32, ROWS, 1);
    parts[0] = &v;
    r.n_dims = 1;
    r.cols = 1;
    r.shape[0] = ROWS;
    r.shape[1] = 1;
    buf_reset(&halves);
    assert_int_equal(run(&r, 1, &halves, NULL), ERR_OK);
    assert_memory_equal(halves.data + (8 + 4 + 3) * 4, values + 8 + 7, 4);
    buf_release(&halves);
}

/* Rows that a directory has in another order, of each matrix of a stack. */
static void layouts_are_undone(void **state)
{
    static const int32_t rows[] = { 7, 6, 5, 4, 3, 2, 1, 0 };
    static const enum dtype types[] = { DTYPE_F32, DTYPE_MLX4 };
    const struct weights_layout layout = { .n_rows = 8, .rows = rows };
    struct weights_tensor t = tensor_of(values, DTYPE_F32, COLS, 8);
    const struct weights_tensor *parts[] = { &t };
    t.n_dims = 3;
    t.shape[2] = 3;
    t.bytes *= 3;
    t.layout = &layout;
    fill();
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        struct buf out;
        uint8_t scales[2][ROWS * 2 * 4], want[2][8], codes[COLS / 2];
        struct recode r = { .name = "stack",
                            .parts = parts,
                            .n_parts = 1,
                            .type = types[k],
                            .mlx = { 4, 32, DTYPE_F32 },
                            .n_dims = 3,
                            .shape = { COLS, 8, 3, 1 } };
        const struct recode_out to = {
            .write = gather, .ctx = &out, .scales = scales[0], .biases = scales[1], .threads = 2
        };
        struct weights *w = nothing();
        buf_init(&out, MEM_CAT_BASE, 1 << 20);
        assert_int_equal(recode_check(&r, NULL), ERR_OK);
        assert_int_equal(recode_run(&r, w, &to, NULL), ERR_OK);
        assert_int_equal(out.len, recode_bytes(&r));
        for (int i = 0; i < ROWS; i++) {
            const float *from = values + (i / 8 * 8 + 7 - i % 8) * COLS;
            if (k == 0) {
                assert_memory_equal(out.data + (size_t)i * COLS * 4, from, COLS * 4);
                continue;
            }
            quantize_mlx_row(&r.mlx, from, COLS, codes, want[0], want[1]);
            assert_memory_equal(out.data + (size_t)i * sizeof(codes), codes, sizeof(codes));
            assert_memory_equal(scales[0] + i * 8, want[0], 8);
            assert_memory_equal(scales[1] + i * 8, want[1], 8);
        }
        buf_release(&out);
        weights_close(w);
    }
}

static void stacks_are_made_and_cut(void **state)
{
    struct buf stack, one;
    const struct weights_tensor a = tensor_of(values, DTYPE_F32, COLS, 8),
                                b = tensor_of(values + 8 * COLS, DTYPE_F32, COLS, 8),
                                *parts[] = { &a, &b };
    struct recode r = { .name = "experts",
                        .parts = parts,
                        .n_parts = 2,
                        .type = DTYPE_Q8_0,
                        .n_dims = 3,
                        .shape = { COLS, 8, 2, 1 } };
    fill();
    buf_init(&stack, MEM_CAT_BASE, 1 << 20);
    buf_init(&one, MEM_CAT_BASE, 1 << 20);
    assert_int_equal(run(&r, 1, &stack, NULL), ERR_OK);
    size_t row = dtype_row_bytes(DTYPE_Q8_0, COLS);
    assert_int_equal(stack.len, 16 * row);
    struct weights_tensor whole = tensor_of(stack.data, DTYPE_Q8_0, COLS, 8);
    whole.n_dims = 3;
    whole.shape[2] = 2;
    const struct weights_tensor *from[] = { &whole };
    struct recode cut = { .name = "expert 1",
                          .parts = from,
                          .n_parts = 1,
                          .row0 = 8,
                          .n_rows = 8,
                          .type = DTYPE_Q8_0,
                          .n_dims = 2,
                          .shape = { COLS, 8, 1, 1 } };
    assert_int_equal(run(&cut, 1, &one, NULL), ERR_OK);
    assert_memory_equal(one.data, stack.data + 8 * row, 8 * row);
    buf_release(&stack);
    buf_release(&one);
}

/* Rows of two parts in turn, of every matrix; half of the rows of every matrix; columns in runs. */
static void rows_and_columns_move_inside_groups(void **state)
{
    static const int32_t in_turn[] = { 0, 4, 1, 5, 2, 6, 3, 7 }, second[] = { 2, 3 },
                         runs[] = { 1, 0 };
    struct buf out;
    struct weights_tensor a = tensor_of(values, DTYPE_F32, COLS, 12),
                          b = tensor_of(values + 12 * COLS, DTYPE_F32, COLS, 12);
    const struct weights_tensor *parts[] = { &a, &b };
    struct recode r = { .name = "both",
                        .parts = parts,
                        .n_parts = 2,
                        .groups = 3,
                        .rows = in_turn,
                        .type = DTYPE_F32,
                        .n_dims = 3,
                        .shape = { COLS, 8, 3, 1 } };
    fill();
    buf_init(&out, MEM_CAT_BASE, 1 << 20);
    assert_int_equal(run(&r, 2, &out, NULL), ERR_OK);
    for (int i = 0; i < 24; i++) {
        const float *from = values + (i % 2 * 12 + i / 8 * 4 + i % 8 / 2) * COLS;
        assert_memory_equal(out.data + (size_t)i * COLS * 4, from, COLS * 4);
    }
    struct recode half = { .name = "half",
                           .parts = parts,
                           .n_parts = 1,
                           .groups = 3,
                           .rows = second,
                           .run = COLS / 2,
                           .runs = runs,
                           .type = DTYPE_F32,
                           .n_dims = 3,
                           .shape = { COLS, 2, 3, 1 } };
    for (int k = 0; k < 2; k++) { /* copied, and through f16 back */
        buf_reset(&out);
        half.type = k ? DTYPE_F16 : DTYPE_F32;
        size_t size = k ? 2 : 4, bytes = COLS / 2 * size;
        assert_int_equal(run(&half, 1, &out, NULL), ERR_OK);
        for (int i = 0; i < 12; i++) {
            uint8_t want[COLS * 2];
            const float *from =
                values + (i / 4 * 4 + 2 + i / 2 % 2) * COLS + (1 - i % 2) * COLS / 2;
            quantize_row(half.type, from, COLS / 2, want);
            assert_memory_equal(out.data + (size_t)i * bytes, want, bytes);
        }
    }
    half.rows = in_turn; /* row 4 of four */
    half.shape[1] = 8;
    assert_int_equal(recode_check(&half, NULL), ERR_INVALID);
    buf_release(&out);
}

static void matrices_are_turned(void **state)
{
    static const int32_t rows[] = { 3, 2, 1, 0 };
    struct weights_tensor t = tensor_of(values, DTYPE_F32, COLS, 8);
    const struct weights_tensor *parts[] = { &t };
    struct buf out;
    float got;
    struct recode r = { .name = "turned",
                        .parts = parts,
                        .n_parts = 1,
                        .groups = 2,
                        .rows = rows,
                        .form = RECODE_FORM_TURNED,
                        .type = DTYPE_F32,
                        .n_dims = 3,
                        .shape = { 4, COLS, 2, 1 } };
    fill();
    buf_init(&out, MEM_CAT_BASE, 1 << 20);
    assert_int_equal(run(&r, 3, &out, NULL), ERR_OK);
    assert_int_equal(out.len, 8 * COLS * 4);
    for (int g = 0; g < 2; g++)
        for (int c = 0; c < COLS; c++)
            for (int i = 0; i < 4; i++) {
                memcpy(&got, out.data + (size_t)((g * COLS + c) * 4 + i) * 4, 4);
                assert_true(got == values[(g * 4 + 3 - i) * COLS + c]);
            }
    buf_release(&out);
}

/* What weights_take puts together comes apart again. */
static void mxfp4_comes_apart(void **state)
{
    uint8_t codes[ROWS * 2 * 16], exponents[ROWS * 2];
    struct weights_tensor whole, t = { .name = "e",
                                       .type = DTYPE_MXFP4,
                                       .n_dims = 2,
                                       .shape = { 64, ROWS, 1, 1 },
                                       .data = codes,
                                       .bytes = sizeof(codes) };
    const struct weights_layout l = { .n_rows = ROWS, .is_apart = true };
    const struct weights_tensor *parts[] = { &whole };
    struct buf out;
    void *mem;
    for (size_t i = 0; i < sizeof(codes); i++)
        codes[i] = (uint8_t)(i * 53 + i / 9);
    for (size_t i = 0; i < sizeof(exponents); i++)
        exponents[i] = (uint8_t)(100 + i);
    t.layout = &l;
    t.scales = (struct scales){ .scales = exponents, .type = DTYPE_U8, .rows = 1, .cols = 32 };
    assert_int_equal(weights_take(&t, &whole, &mem, NULL), ERR_OK);
    whole.scales = (struct scales){ 0 };
    struct recode r = { .name = "e",
                        .parts = parts,
                        .n_parts = 1,
                        .form = RECODE_FORM_CODES,
                        .type = DTYPE_U8,
                        .n_dims = 3,
                        .shape = { 16, 2, ROWS, 1 } };
    buf_init(&out, MEM_CAT_BASE, 1 << 20);
    assert_int_equal(run(&r, 1, &out, NULL), ERR_OK);
    assert_int_equal(out.len, sizeof(codes));
    assert_memory_equal(out.data, codes, sizeof(codes));
    buf_reset(&out);
    r.form = RECODE_FORM_EXPONENTS;
    r.n_dims = 2;
    memcpy(r.shape, (int64_t[]){ 2, ROWS, 1, 1 }, sizeof(r.shape));
    assert_int_equal(run(&r, 1, &out, NULL), ERR_OK);
    assert_int_equal(out.len, sizeof(exponents));
    assert_memory_equal(out.data, exponents, sizeof(exponents));
    const struct weights_tensor plain = tensor_of(values, DTYPE_F32, COLS, ROWS);
    parts[0] = &plain;
    assert_int_equal(recode_check(&r, NULL), ERR_INVALID);
    mem_free(MEM_CAT_WEIGHTS, mem);
    buf_release(&out);
}

static void threads_change_nothing(void **state)
{
    static const enum dtype types[] = { DTYPE_F16, DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_Q5_1 };
    const struct weights_tensor t = tensor_of(values, DTYPE_F32, COLS, ROWS), *parts[] = { &t };
    fill();
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct buf out[2];
        struct recode r = { .name = "t",
                            .parts = parts,
                            .n_parts = 1,
                            .type = types[i],
                            .n_dims = 2,
                            .shape = { COLS, ROWS, 1, 1 } };
        for (int k = 0; k < 2; k++) {
            buf_init(&out[k], MEM_CAT_BASE, 1 << 20);
            assert_int_equal(run(&r, k ? 5 : 1, &out[k], NULL), ERR_OK);
            assert_int_equal(out[k].len, recode_bytes(&r));
        }
        assert_memory_equal(out[0].data, out[1].data, out[0].len);
        buf_release(&out[0]);
        buf_release(&out[1]);
    }
}

static void what_a_type_cannot_hold_is_refused_by_name(void **state)
{
    static const struct {
        float value;
        enum dtype type;
        bool fits;
    } cases[] = { { NAN, DTYPE_Q8_0, false },  { INFINITY, DTYPE_Q4_0, false },
                  { 70000, DTYPE_F16, false }, { 70000, DTYPE_Q8_0, false },
                  { 70000, DTYPE_BF16, true }, { NAN, DTYPE_BF16, true },
                  { 65504, DTYPE_F16, true },  { 1e30f, DTYPE_F32, true } };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf out;
        struct err err = { .text = "" };
        float x[COLS] = { 0 };
        x[37] = cases[i].value;
        const struct weights_tensor t = tensor_of(x, DTYPE_F32, COLS, 1), *parts[] = { &t };
        struct recode r = { .name = "blk.7.attn_v.weight",
                            .parts = parts,
                            .n_parts = 1,
                            .type = cases[i].type,
                            .n_dims = 1,
                            .shape = { COLS, 1, 1, 1 } };
        buf_init(&out, MEM_CAT_BASE, 1 << 20);
        assert_int_equal(run(&r, 1, &out, &err), cases[i].fits ? ERR_OK : ERR_NUMERIC);
        if (!cases[i].fits)
            assert_non_null(strstr(err.text, "blk.7.attn_v.weight"));
        buf_release(&out);
    }
}

static void changes_are_each_others_inverse(void **state)
{
    static const enum recode_change changes[][2] = { { RECODE_ADD_ONE, RECODE_SUB_ONE },
                                                     { RECODE_NEG_EXP, RECODE_LOG_NEG } };
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        float x[4] = { 0.5f, 1.25f, -0.75f, 2 };
        const float was[4] = { 0.5f, 1.25f, -0.75f, 2 };
        for (int k = 0; k < 2; k++) {
            struct buf out;
            const struct weights_tensor t = tensor_of(x, DTYPE_F32, 4, 1), *parts[] = { &t };
            struct recode r = { .name = "norm",
                                .parts = parts,
                                .n_parts = 1,
                                .change = changes[i][k],
                                .type = DTYPE_F32,
                                .n_dims = 1,
                                .shape = { 4, 1, 1, 1 } };
            buf_init(&out, MEM_CAT_BASE, 1 << 20);
            assert_int_equal(run(&r, 1, &out, NULL), ERR_OK);
            memcpy(x, out.data, sizeof(x));
            buf_release(&out);
            if (k == 0)
                assert_true(fabsf(x[0] - (i ? -expf(0.5f) : 1.5f)) < 1e-6f);
        }
        for (int k = 0; k < 4; k++)
            assert_true(fabsf(x[k] - was[k]) < 1e-6f);
    }
}

/* --- files --- */

static void a_written_gguf_reads_back(void **state)
{
    struct gguf_writer g;
    struct sink s;
    struct err err;
    struct weights *w = NULL;
    char path[128];
    const struct meta_str words[] = { { "one", 3 }, { "", 0 }, { "three", 5 } };
    const struct meta_value list = { .type = META_TYPE_ARRAY,
                                     .array = { .type = META_TYPE_STRING, .n = 3, .strs = words } };
    const int64_t shape[] = { COLS, ROWS };
    fill();
    snprintf(path, sizeof(path), "%s", path_of("w.gguf"));
    gguf_writer_init(&g);
    gguf_write_str(&g, "general.architecture", "llama", 5);
    gguf_write_u32(&g, "llama.block_count", 12);
    gguf_write_f32(&g, "llama.eps", 1e-5f);
    gguf_write_bool(&g, "flag", true);
    gguf_write_meta(&g, "words", &list);
    assert_int_equal(gguf_write_tensor(&g, "t", DTYPE_F32, 2, shape, sizeof(values), &err), ERR_OK);
    assert_int_equal(gguf_write_tensor(&g, "u", DTYPE_Q8_0, 1, shape, 68, &err), ERR_OK);
    assert_int_equal(gguf_write_tensor(&g, "v", DTYPE_MLX4, 1, shape, 32, &err), ERR_UNSUPPORTED);
    assert_int_equal(sink_open(&s, path, &err), ERR_OK);
    assert_int_equal(gguf_write_head(&g, &s, &err), ERR_OK);
    assert_int_equal(sink_write(&s, values, sizeof(values), &err), ERR_OK);
    assert_int_equal(sink_pad(&s, GGUF_WRITE_ALIGNMENT, &err), ERR_OK);
    assert_int_equal(sink_write(&s, values, 68, &err), ERR_OK);
    assert_int_equal(sink_pad(&s, GGUF_WRITE_ALIGNMENT, &err), ERR_OK);
    assert_int_equal(sink_commit(&s, &err), ERR_OK);
    gguf_writer_release(&g);
    if (weights_open(path, &w, &err))
        fail_msg("%s", err.text);
    int64_t n;
    double eps;
    assert_int_equal(weights_n_meta(w), 5);
    assert_int_equal(weights_int(w, "llama.block_count", 0, 99, &n, &err), ERR_OK);
    assert_int_equal(n, 12);
    assert_int_equal(weights_float_or(w, "llama.eps", 0, &eps, &err), ERR_OK);
    assert_true((float)eps == 1e-5f);
    assert_int_equal(weights_meta(w, "words")->array.strs[2].len, 5);
    assert_memory_equal(weights_find(w, "t")->data, values, sizeof(values));
    assert_memory_equal(weights_find(w, "u")->data, values, 68);
    weights_close(w);
    unlink(path);
}

static void a_written_safetensors_reads_back(void **state)
{
    struct safetensors_writer head;
    struct sink s;
    struct err err;
    struct weights *w = NULL;
    char path[128];
    const int64_t shape[] = { COLS, 8, 3 }, one[] = { 5 };
    const struct meta_str texts[WEIGHTS_TEXTS] = { { "{}", 2 } };
    struct file_map m;
    fill();
    snprintf(path, sizeof(path), "%s", path_of("w.safetensors"));
    safetensors_writer_init(&head);
    safetensors_write_tensor(&head, "a \"quoted\" name", DTYPE_F32, 3, shape, sizeof(values));
    safetensors_write_tensor(&head, "b", DTYPE_BF16, 1, one, 10);
    assert_int_equal(sink_open(&s, path, &err), ERR_OK);
    assert_int_equal(safetensors_write_head(&head, &s, &err), ERR_OK);
    assert_int_equal(s.n % 8, 0);
    assert_int_equal(sink_write(&s, values, sizeof(values), &err), ERR_OK);
    assert_int_equal(sink_write(&s, values, 10, &err), ERR_OK);
    assert_int_equal(sink_commit(&s, &err), ERR_OK);
    safetensors_writer_release(&head);
    assert_int_equal(file_map_open(&m, path, &err), ERR_OK);
    const struct weights_image image = { "w.safetensors", m.data, m.size };
    if (dir_open_images(&image, 1, texts, &w, &err))
        fail_msg("%s", err.text);
    const struct weights_tensor *t = weights_find(w, "a \"quoted\" name");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->shape[0], COLS);
    assert_int_equal(t->shape[2], 3);
    assert_memory_equal(t->data, values, sizeof(values));
    assert_int_equal(weights_find(w, "b")->type, DTYPE_BF16);
    assert_null(safetensors_type_name(DTYPE_Q4_K));
    weights_close(w);
    file_map_close(&m);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_cover_everything_once),
        cmocka_unit_test(a_file_appears_only_when_it_is_whole),
        cmocka_unit_test(what_is_given_up_leaves_nothing),
        cmocka_unit_test(rows_of_heads_go_to_halves),
        cmocka_unit_test(layouts_are_undone),
        cmocka_unit_test(stacks_are_made_and_cut),
        cmocka_unit_test(rows_and_columns_move_inside_groups),
        cmocka_unit_test(matrices_are_turned),
        cmocka_unit_test(mxfp4_comes_apart),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(what_a_type_cannot_hold_is_refused_by_name),
        cmocka_unit_test(changes_are_each_others_inverse),
        cmocka_unit_test(a_written_gguf_reads_back),
        cmocka_unit_test(a_written_safetensors_reads_back),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
