/* The cache's quantised groups against a numpy statement of the same (tests/golden/kvq/make_kvq.py, which was held against MLX),
 * and what the header promises of errors and layout. */
#include "base/file.h"
#include "base/philox.h"
#include "tensor/kvq.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct golden {
    uint32_t n, top, ok, has_base, is_relative;
    float x[KVQ_GROUP];
    uint16_t base[KVQ_GROUP];
    uint16_t scale, bias;
    uint8_t codes[KVQ_GROUP];
    float value[KVQ_GROUP];
};

static void groups_are_those_of_numpy(void **state)
{
    struct file_map m;
    struct err err;
    int n_failed = 0, n_flat = 0, n_relative = 0;
    if (file_map_open(&m, "tests/golden/kvq/kvq.bin", &err))
        fail_msg("%s", err.text);
    assert_int_equal(m.size % sizeof(struct golden), 0);
    assert_true(m.size / sizeof(struct golden) >= 300);
    for (size_t i = 0; i < m.size / sizeof(struct golden); i++) {
        struct golden g;
        struct kvq_group q;
        memcpy(&g, m.data + i * sizeof(g), sizeof(g));
        bool ok = kvq_quantise(&q, g.x, g.has_base ? g.base : NULL, (int)g.n, (int)g.top);
        if (ok != g.ok || q.is_relative != g.is_relative || q.scale != g.scale ||
            q.bias != g.bias || memcmp(q.codes, g.codes, sizeof(q.codes)) != 0)
            fail_msg(
                "record %zu (%u elements, top %u): scale %04x, want %04x; bias %04x, want %04x", i,
                g.n, g.top, q.scale, g.scale, q.bias, g.bias);
        for (uint32_t k = 0; k < g.n; k++)
            assert_true(kvq_key(q.codes[k], q.scale, q.bias, q.is_relative, g.base[k]) ==
                        g.value[k]);
        n_failed += !ok;
        n_flat += ok && q.scale == 0;
        n_relative += q.is_relative;
    }
    file_map_close(&m);
    assert_true(n_failed >= 40 && n_flat >= 20 && n_relative >= 40);
}

static float uniform(uint32_t i, uint32_t what) /* -1..1 */
{
    uint32_t counter[4] = { i, what, 0, 0 }, key[2] = { 5, 6 }, out[4];
    philox4x32(counter, key, out);
    return (float)(out[0] >> 8) * 0x1p-23f - 1;
}

/* Half a step, a whole one at the far end, and what the roundings of scale and bias to f16 add. */
static void errors_are_under_a_step(void **state)
{
    for (uint32_t i = 0; i < 2000; i++) {
        int n = 1 + (int)(i % KVQ_GROUP), top = i % 2 ? KVQ_TOP_8BIT : KVQ_TOP_4BIT;
        float x[KVQ_GROUP], size = ldexpf(1, (int)(i % 20) - 8);
        struct kvq_group q;
        for (int k = 0; k < n; k++)
            x[k] = (uniform(i, (uint32_t)k) + uniform(i, 99)) * size;
        assert_true(kvq_quantise(&q, x, NULL, n, top));
        float s = fabsf(f16_to_f32(q.scale)), b = fabsf(f16_to_f32(q.bias));
        for (int k = 0; k < n; k++) {
            float e = fabsf(kvq_value(q.codes[k], q.scale, q.bias) - x[k]);
            if (e > 1.01f * s + b * 0x1p-10f)
                fail_msg("group %u: %g became off by %g, a step is %g", i, (double)x[k], (double)e,
                         (double)s);
        }
    }
}

/* Zero is a grid point: the error there is what rounding scale and bias leaves. */
static void zero_stays_zero(void **state)
{
    float x[KVQ_GROUP] = { 0 };
    struct kvq_group q;
    x[5] = -93;
    x[6] = 2;
    for (int top = KVQ_TOP_4BIT; top <= KVQ_TOP_8BIT; top += KVQ_TOP_8BIT - KVQ_TOP_4BIT) {
        assert_true(kvq_quantise(&q, x, NULL, KVQ_GROUP, top));
        assert_true(kvq_value(q.codes[5], q.scale, q.bias) == -93);
        assert_true(fabsf(kvq_value(q.codes[0], q.scale, q.bias)) < 93 * 0x1p-10f);
    }
}

static void parts_have_the_size_of_their_arrays(void **state)
{
    static const struct {
        int head_dim, groups, bytes8, bytes4; /* code bytes of a position */
    } want[] = { { 1, 1, 1, 1 },    { 12, 1, 12, 6 },  { 64, 1, 64, 32 },   { 65, 2, 65, 33 },
                 { 80, 2, 80, 40 }, { 97, 2, 97, 49 }, { 128, 2, 128, 64 }, { 512, 8, 512, 256 } };
    static uint8_t part[1 << 17];
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        int n = want[i].head_dim;
        assert_int_equal(kvq_groups(n), want[i].groups);
        assert_int_equal(kvq_code_bytes(DTYPE_KV_Q8, n), want[i].bytes8);
        assert_int_equal(kvq_code_bytes(DTYPE_KV_Q4, n), want[i].bytes4);
        for (int t = DTYPE_KV_Q8; t <= DTYPE_KV_Q4; t++) {
            struct kvq_part k = kvq_part_at((enum dtype)t, n, 0, part);
            struct kvq_part v = kvq_part_at((enum dtype)t, n, 1, part);
            size_t end_k = (size_t)((uint8_t *)(k.base + n) - part);
            size_t end_v = (size_t)((uint8_t *)(v.biases + kvq_groups(n) * KV_PAGE_TOKENS) - part);
            assert_int_equal(end_v, kvq_part_bytes((enum dtype)t, n, 1));
            assert_int_equal((end_k + 63) / 64 * 64, kvq_part_bytes((enum dtype)t, n, 0));
            assert_int_equal(((uint8_t *)k.relative - part) % 64, 0);
        }
    }
}

/* A base that does not fit f16 is none; one that does makes a key with far channels as good as one without. */
static void a_key_near_the_first_one_keeps_its_steps(void **state)
{
    float first[KVQ_GROUP], x[KVQ_GROUP];
    uint16_t base[KVQ_GROUP];
    struct kvq_group q;
    for (int k = 0; k < KVQ_GROUP; k++) {
        first[k] = uniform(1, (uint32_t)k) + (k % 20 == 3 ? 150 : 0);
        x[k] = uniform(2, (uint32_t)k) + (k % 20 == 3 ? 151 : 0);
    }
    kvq_base(base, first, KVQ_GROUP);
    assert_true(kvq_quantise(&q, x, base, KVQ_GROUP, KVQ_TOP_8BIT));
    assert_true(q.is_relative);
    for (int k = 0; k < KVQ_GROUP; k++) {
        float got = kvq_key(q.codes[k], q.scale, q.bias, true, base[k]);
        assert_true(fabsf(got - x[k]) < 5.0f / 255);
    }
    first[9] = 70000;
    kvq_base(base, first, KVQ_GROUP);
    for (int k = 0; k < KVQ_GROUP; k++)
        assert_int_equal(base[k], 0);
    assert_true(kvq_quantise(&q, x, base, KVQ_GROUP, KVQ_TOP_8BIT));
    assert_false(q.is_relative);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_those_of_numpy),
        cmocka_unit_test(errors_are_under_a_step),
        cmocka_unit_test(zero_stays_zero),
        cmocka_unit_test(a_key_near_the_first_one_keeps_its_steps),
        cmocka_unit_test(parts_have_the_size_of_their_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
