/* Which layers a GPU takes, by a backend that only tells sizes. */
#include "base/log.h"
#include "cli/load_split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define FAMILIES "tests/golden/families/"
#define MIB      ((int64_t)1 << 20)

static int64_t free_now;

static int64_t stub_free(const struct backend *be)
{
    return free_now;
}

static size_t stub_packed(const struct backend *be, const struct weight_source *src)
{
    return (size_t)(src->out * src->in) * 16384; /* so that tiny models have sizes of real ones */
}

static size_t stub_page(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim)
{
    return (size_t)(n_kv_heads * head_dim) * KV_PAGE_TOKENS * 4;
}

static const struct backend_ops stub_ops = {
    .name = "stub", .free_bytes = stub_free, .packed_bytes = stub_packed, .kv_page_bytes = stub_page
};

static enum err_code plan(const char *file, const char *layers, const char *experts,
                          struct load_split *out, struct err *err)
{
    struct backend be = { .ops = &stub_ops };
    struct load_split_options o = { .be = &be,
                                    .gpu_layers = layers,
                                    .cpu_experts = experts,
                                    .ctx = 256,
                                    .cache_type = DTYPE_F16,
                                    .step_rows = 64 };
    assert_int_equal(weights_open(file, &o.weights, err), ERR_OK);
    enum err_code code = load_split_plan(&o, out, err);
    weights_close(o.weights);
    return code;
}

/* The less is free, the more stays with the CPU: never less than before, and at last nothing fits. */
static void less_and_less(const char *file, bool has_experts)
{
    struct err err;
    struct load_split at, before = { 0, 0 };
    enum err_code code = ERR_OK;
    bool had_layers = false, had_experts = false;
    free_now = 100000 * MIB;
    assert_int_equal(plan(file, NULL, NULL, &at, &err), ERR_OK);
    assert_int_equal(at.n_host_layers + at.n_host_experts, 0);
    for (; free_now > 0 && !code; free_now = free_now * 49 / 50) {
        code = plan(file, NULL, NULL, &at, &err);
        if (code)
            break;
        assert_true(at.n_host_layers >= before.n_host_layers);
        assert_true(at.n_host_experts >= before.n_host_experts);
        had_experts = had_experts || (at.n_host_experts > 0 && at.n_host_layers == 0);
        had_layers = had_layers || at.n_host_layers > 0;
        before = at;
    }
    assert_int_equal(code, ERR_NOMEM);
    assert_true(had_layers);
    assert_int_equal(had_experts, has_experts);
    assert_non_null(strstr(err.text, "--device cpu"));
}

static void it_fits_or_says_what_does(void **state)
{
    less_and_less(FAMILIES "qwen3.gguf", false);
    less_and_less(FAMILIES "qwen3moe.gguf", true);
    less_and_less(FAMILIES "qwen35-tied.gguf", false);
}

static void a_number_is_taken_or_refused_with_one_that_fits(void **state)
{
    struct err err;
    struct load_split at;
    free_now = 100000 * MIB;
    assert_int_equal(plan(FAMILIES "qwen3.gguf", "1", NULL, &at, &err), ERR_OK);
    assert_true(at.n_host_layers > 0);
    assert_int_equal(plan(FAMILIES "qwen3.gguf", "99", NULL, &at, &err), ERR_OK);
    assert_int_equal(at.n_host_layers, 0);
    assert_int_equal(plan(FAMILIES "qwen3moe.gguf", NULL, "1", &at, &err), ERR_OK);
    assert_int_equal(at.n_host_layers, 0);
    assert_int_equal(at.n_host_experts, 1);
    while (plan(FAMILIES "qwen3.gguf", NULL, NULL, &at, &err) == ERR_OK && at.n_host_layers == 0)
        free_now = free_now * 99 / 100;
    assert_int_equal(at.n_host_layers, 1);
    assert_int_equal(plan(FAMILIES "qwen3.gguf", "99", NULL, &at, &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "MiB are free: --gpu-layers "));
    assert_non_null(strstr(err.text, "--ctx"));
}

static void flags_that_are_no_numbers_are_refused(void **state)
{
    struct err err;
    struct load_split at;
    free_now = 100000 * MIB;
    assert_int_equal(plan(FAMILIES "qwen3.gguf", "all of them", NULL, &at, &err), ERR_INVALID);
    assert_int_equal(plan(FAMILIES "qwen3.gguf", "-3", NULL, &at, &err), ERR_INVALID);
    assert_int_equal(plan(FAMILIES "qwen3.gguf", NULL, "4x", &at, &err), ERR_INVALID);
    assert_int_equal(plan(FAMILIES "qwen3.gguf", NULL, "4", &at, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "no experts"));
    assert_int_equal(load_split_check("auto", "3", &err), ERR_OK);
    assert_int_equal(load_split_check("5", "some", &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "--cpu-experts: 'some'"));
    assert_true(load_split_is_none("0"));
    assert_false(load_split_is_none(NULL) || load_split_is_none("auto"));
}

/* Layers that read the keys of others stay with them. */
static void keys_are_where_they_are_read(void **state)
{
    struct err err;
    struct load_split at;
    for (free_now = 100000 * MIB; free_now > MIB; free_now = free_now * 19 / 20)
        if (plan(FAMILIES "gemma4-e.gguf", NULL, NULL, &at, &err) == ERR_OK)
            assert_true(at.n_host_layers < 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_fits_or_says_what_does),
        cmocka_unit_test(a_number_is_taken_or_refused_with_one_that_fits),
        cmocka_unit_test(flags_that_are_no_numbers_are_refused),
        cmocka_unit_test(keys_are_where_they_are_read),
    };
    log_set_level(LOG_LEVEL_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
