#include "base/file.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"
#include "tensor/group.h"
#include "tensor/half.h"
#include "weights/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Sizes of the format document, written down apart from the structs. */
static void types_have_the_published_sizes(void **state)
{
    static const struct {
        enum dtype type;
        const char *name;
        int elems, bytes;
    } want[] = {
        { DTYPE_F32, "F32", 1, 4 },           { DTYPE_F16, "F16", 1, 2 },
        { DTYPE_BF16, "BF16", 1, 2 },         { DTYPE_Q4_0, "Q4_0", 32, 18 },
        { DTYPE_Q4_1, "Q4_1", 32, 20 },       { DTYPE_Q5_0, "Q5_0", 32, 22 },
        { DTYPE_Q5_1, "Q5_1", 32, 24 },       { DTYPE_Q8_0, "Q8_0", 32, 34 },
        { DTYPE_Q2_K, "Q2_K", 256, 84 },      { DTYPE_Q3_K, "Q3_K", 256, 110 },
        { DTYPE_Q4_K, "Q4_K", 256, 144 },     { DTYPE_Q5_K, "Q5_K", 256, 176 },
        { DTYPE_Q6_K, "Q6_K", 256, 210 },     { DTYPE_IQ4_NL, "IQ4_NL", 32, 18 },
        { DTYPE_IQ4_XS, "IQ4_XS", 256, 136 }, { DTYPE_MXFP4, "MXFP4", 32, 17 },
        { DTYPE_I64, "I64", 1, 8 },           { DTYPE_F64, "F64", 1, 8 },
        { DTYPE_IQ3_S, "IQ3_S", 256, 110 },   { DTYPE_TQ1_0, "TQ1_0", 256, 54 },
        { DTYPE_F8_E4M3, "F8_E4M3", 1, 1 },   { DTYPE_F8_E5M2, "F8_E5M2", 1, 1 },
        { DTYPE_MLX3, "MLX3", 32, 12 },       { DTYPE_MLX8, "MLX8", 32, 32 },
    };
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const struct dtype_info *info = dtype_info(want[i].type);
        assert_string_equal(info->name, want[i].name);
        assert_int_equal(info->block_elems, want[i].elems);
        assert_int_equal(info->block_bytes, want[i].bytes);
    }
    for (int t = 0; t < DTYPE_COUNT; t++)
        assert_non_null(dtype_info((enum dtype)t)->name);
    assert_int_equal(dtype_row_bytes(DTYPE_Q4_K, 1024), 4 * 144);
    assert_int_equal(dtype_row_bytes(DTYPE_F32, 0), 0);
    assert_true(dtype_row_bytes(DTYPE_F16, (int64_t)1 << 40) == (size_t)1 << 41);
}

static void mlx_types_go_by_their_bits(void **state)
{
    for (int bits = -1; bits <= 33; bits++) {
        enum dtype type = dtype_mlx(bits);
        bool has = bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
        assert_int_equal(type != DTYPE_COUNT, has);
        if (has)
            assert_int_equal(dtype_mlx_bits(type), bits);
    }
    assert_int_equal(dtype_mlx_bits(DTYPE_Q4_0), 0);
}

static void scales_of_later_rows_stand_further_on(void **state)
{
    static const uint8_t a[64], b[64];
    struct scales s = { a, b, DTYPE_BF16, 1, 64 };
    struct scales t = scales_from_row(&s, 3, 128);
    assert_ptr_equal(t.scales, a + 3 * 2 * 2);
    assert_ptr_equal(t.biases, b + 3 * 2 * 2);
    s = (struct scales){ a, NULL, DTYPE_F32, 128, 128 };
    t = scales_from_row(&s, 256, 130);
    assert_ptr_equal(t.scales, a + 2 * 2 * 4);
    assert_null(t.biases);
    s = (struct scales){ 0 };
    assert_null(scales_from_row(&s, 77, 130).scales);
}

/* Value of finite f16 bits by the definition, in double. */
static double f16_value(uint16_t h)
{
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return h & 0x8000 ? -v : v;
}

static void f16_widens_exactly(void **state)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        if ((h & 0x7C00) != 0x7C00) {
            assert_true((double)f == f16_value((uint16_t)h));
            assert_int_equal(signbit(f) != 0, h >> 15);
        } else if (h & 1023) {
            assert_true(isnan(f));
        } else {
            assert_true(isinf(f) && (signbit(f) != 0) == (h >> 15));
        }
    }
}

/* Between each pair of neighbours, zero to the first value that becomes infinite: just under the middle rounds down, just
 * over it up, the middle itself to the even one. This is the whole definition of nearest even. */
static void f16_narrows_to_nearest_even(void **state)
{
    for (uint32_t h = 0; h < 0x7C00; h++) {
        double a = f16_value((uint16_t)h), b = h == 0x7BFF ? 65536.0 : f16_value((uint16_t)(h + 1));
        float mid = (float)((a + b) / 2);
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_true((double)mid == (a + b) / 2);
        assert_int_equal(f32_to_f16((float)a), h);
        assert_int_equal(f32_to_f16(half_f32_of_bits(half_bits_of_f32(mid) - 1)), h);
        assert_int_equal(f32_to_f16(half_f32_of_bits(half_bits_of_f32(mid) + 1)), h + 1);
        assert_int_equal(f32_to_f16(mid), even);
        assert_int_equal(f32_to_f16(-mid), even | 0x8000);
    }
    assert_int_equal(f32_to_f16(INFINITY), 0x7C00);
    assert_int_equal(f32_to_f16(-3e38f), 0xFC00);
    assert_int_equal(f32_to_f16(1e-30f), 0);
    assert_int_equal(f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(f32_to_f16(NAN) & 0x7E00, 0x7E00);
    assert_int_equal(f32_to_f16(half_f32_of_bits(0x7F800001)) & 0x7E00, 0x7E00);
}

static void bf16_narrows_to_nearest_even(void **state)
{
    for (uint32_t h = 0; h < 0x7F80; h++) {
        uint32_t mid = h << 16 | 0x8000;
        assert_int_equal(half_bits_of_f32(bf16_to_f32((uint16_t)h)), h << 16);
        assert_int_equal(f32_to_bf16(half_f32_of_bits(mid - 1)), h);
        assert_int_equal(f32_to_bf16(half_f32_of_bits(mid)), h + (h & 1));
        assert_int_equal(f32_to_bf16(half_f32_of_bits(mid + 1)), h + 1);
        assert_int_equal(f32_to_bf16(half_f32_of_bits(mid | 0x80000000u)), (h + (h & 1)) | 0x8000);
    }
    assert_int_equal(f32_to_bf16(half_f32_of_bits(0x7F800001)), 0x7FC0);
    assert_int_equal(f32_to_bf16(-INFINITY), 0xFF80);
}

static void e8m0_is_a_power_of_two(void **state)
{
    for (int e = 0; e < 256; e++)
        assert_true((double)e8m0_half_to_f32((uint8_t)e) == ldexp(1.0, e - 128));
}

/* --- decoding, against the values of the gguf package (tests/golden/dequant/make_dequant.py) --- */

struct golden {
    char type[16], source[64];
    uint32_t n, n_bytes;
};

static enum dtype type_by_name(const char *name)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strcmp(dtype_info((enum dtype)t)->name, name) == 0)
            return (enum dtype)t;
    fail_msg("no type %s", name);
    return DTYPE_COUNT;
}

static void check_golden(const struct golden *g, const uint8_t *bytes, const uint8_t *want)
{
    static float got[4096];
    enum dtype type = type_by_name(g->type);
    struct err err;
    assert_true(g->n <= ARRAY_LEN(got));
    assert_int_equal(dtype_row_bytes(type, g->n), g->n_bytes);
    assert_int_equal(weights_dequantize(type, bytes, g->n, got, &err), ERR_OK);
    for (uint32_t i = 0; i < g->n; i++) {
        float w;
        memcpy(&w, want + 4 * i, 4);
        if (isnan(w) ? !isnan(got[i]) : memcmp(&w, &got[i], 4) != 0)
            fail_msg("%s, %s, element %u: got %a, want %a", g->type, g->source, i, (double)got[i],
                     (double)w);
    }
}

static void blocks_decode_as_published(void **state)
{
    struct file_map m;
    struct err err;
    bool has_type[DTYPE_COUNT] = { false };
    int n_model_blocks = 0;
    if (file_map_open(&m, "tests/golden/dequant/dequant.bin", &err))
        fail_msg("%s", err.text);
    for (size_t pos = 0; pos < m.size;) {
        struct golden g;
        assert_true(m.size - pos >= sizeof(g));
        memcpy(&g, m.data + pos, sizeof(g));
        pos += sizeof(g);
        assert_true(m.size - pos >= g.n_bytes + (size_t)4 * g.n);
        check_golden(&g, m.data + pos, m.data + pos + g.n_bytes);
        pos += g.n_bytes + (size_t)4 * g.n;
        has_type[type_by_name(g.type)] = true;
        n_model_blocks += strncmp(g.source, "random", 6) != 0;
    }
    file_map_close(&m);
    for (int t = 0; t < DTYPE_COUNT; t++)
        assert_int_equal(has_type[t], dtype_info((enum dtype)t)->can_decode);
    assert_true(n_model_blocks >= 24);
}

static void types_known_by_size_only_are_refused(void **state)
{
    static const uint8_t block[128];
    float y[256];
    struct err err = { 0 };
    assert_int_equal(weights_dequantize(DTYPE_IQ2_XS, block, 256, y, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "IQ2_XS"));
}

/* MLX packs codes as one stream of bits, the lowest first (mlx.core.quantize). */
static void mlx_codes_are_a_stream_of_bits(void **state)
{
    (void)state;
    uint32_t r = 12345;
    for (int bits = 2; bits <= 8; bits++) {
        if (!dtype_mlx_bits(dtype_mlx(bits)))
            continue; /* 7 bits are not packed */
        for (int turn = 0; turn < 500; turn++) {
            uint8_t p[8];
            for (int i = 0; i < 8; i++)
                p[i] = (uint8_t)((r = r * 1664525 + 1013904223) >> 24);
            uint64_t got = group_mlx_codes(p, bits);
            for (int k = 0; k < 8; k++) {
                unsigned want = 0;
                for (int b = 0; b < bits; b++)
                    want |= (unsigned)(p[(k * bits + b) / 8] >> (k * bits + b) % 8 & 1) << b;
                assert_int_equal(got >> 8 * k & 255, want);
            }
        }
    }
}

/* Layout of mlx.bin: make_mlx.py. */
struct mlx_golden {
    uint32_t bits, cols, rows, in, kind, n_codes, n_scales, n_biases;
};

static void check_mlx(const struct mlx_golden *g, const uint8_t *at)
{
    static const enum dtype kinds[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F32 };
    static float got[1024];
    struct err err = { 0 };
    struct weights_tensor t = { .name = "mlx",
                                .type = g->bits == 43   ? DTYPE_F8_E4M3
                                        : g->bits == 52 ? DTYPE_F8_E5M2
                                                        : dtype_mlx((int)g->bits),
                                .n_dims = 2,
                                .shape = { g->in, g->rows, 1, 1 },
                                .data = at,
                                .bytes = g->n_codes };
    if (g->cols)
        t.scales = (struct scales){ .scales = at + g->n_codes,
                                    .biases = at + g->n_codes + g->n_scales,
                                    .type = kinds[g->kind],
                                    .rows = 1,
                                    .cols = g->cols };
    const uint8_t *want = at + g->n_codes + g->n_scales + g->n_biases;
    assert_true((size_t)g->rows * g->in <= ARRAY_LEN(got));
    if (weights_decode_rows(&t, 0, g->rows, got, &err))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < g->rows * g->in; i++)
        if (memcmp(&got[i], want + 4 * i, 4) != 0)
            fail_msg("%u bits, groups of %u, scales %u: element %u is %a", g->bits, g->cols,
                     g->kind, i, (double)got[i]);
}

static void mlx_and_8_bit_floats_decode_as_published(void **state)
{
    (void)state;
    struct file_map m;
    struct err err;
    int n = 0;
    if (file_map_open(&m, "tests/golden/dequant/mlx.bin", &err))
        fail_msg("%s", err.text);
    for (size_t pos = 0; pos < m.size; n++) {
        struct mlx_golden g;
        assert_true(m.size - pos >= sizeof(g));
        memcpy(&g, m.data + pos, sizeof(g));
        pos += sizeof(g);
        check_mlx(&g, m.data + pos);
        pos += g.n_codes + g.n_scales + g.n_biases + (size_t)4 * g.rows * g.in;
    }
    file_map_close(&m);
    assert_int_equal(n, 6 * 3 * 3 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_have_the_published_sizes),
        cmocka_unit_test(mlx_types_go_by_their_bits),
        cmocka_unit_test(mlx_codes_are_a_stream_of_bits),
        cmocka_unit_test(mlx_and_8_bit_floats_decode_as_published),
        cmocka_unit_test(scales_of_later_rows_stand_further_on),
        cmocka_unit_test(f16_widens_exactly),
        cmocka_unit_test(f16_narrows_to_nearest_even),
        cmocka_unit_test(bf16_narrows_to_nearest_even),
        cmocka_unit_test(e8m0_is_a_power_of_two),
        cmocka_unit_test(blocks_decode_as_published),
        cmocka_unit_test(types_known_by_size_only_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
