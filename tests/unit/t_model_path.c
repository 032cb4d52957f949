#include "cli/model_path.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void an_id_is_the_name_without_folder_suffix_and_part(void **state)
{
    static const char *const table[][2] = {
        { "/models/smollm2.gguf", "smollm2" },
        { "m.gguf", "m" },
        { "a/b/qwen-00001-of-00003.gguf", "qwen" },
        { "a/b.d/qwen2.5", "qwen2.5" },
        { "-00001-of-00003.gguf", "-00001-of-00003" },
        { "m-00001-of-0003.gguf", "m-00001-of-0003" },
        { "m-0000x-of-00003.gguf", "m-0000x-of-00003" },
        { ".gguf", ".gguf" },
        { "m.gguf.bak", "m.gguf.bak" },
    };
    struct buf b;
    buf_init(&b, MEM_CAT_BASE, 256);
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        buf_reset(&b);
        model_path_id(table[i][0], &b);
        assert_string_equal(b.data, table[i][1]);
    }
    buf_release(&b);
}

static void assert_path(const char *xdg, const char *model, const char *want)
{
    struct buf b;
    struct err err = { 0 };
    buf_init(&b, MEM_CAT_BASE, 256);
    enum err_code code = model_path_in(xdg, NULL, model, &b, &err);
    if (want && code)
        fail_msg("%s", err.text);
    if (want)
        assert_string_equal(b.data, want);
    else
        assert_int_equal(code, ERR_NOT_FOUND);
    buf_release(&b);
}

static void a_name_is_in_the_cache_and_a_slash_makes_a_path(void **state)
{
    char dir[] = "/tmp/t_model_path.XXXXXX";
    char path[128], good[160];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/plumb", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/plumb/models", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_path(dir, NULL, NULL);
    snprintf(good, sizeof(good), "%s/smollm2.gguf", path);
    FILE *f = fopen(good, "wb");
    assert_non_null(f);
    fclose(f);
    assert_path(dir, NULL, good);
    assert_path(dir, "smollm2", good);
    assert_path(dir, "./smollm2", "./smollm2"); /* opening it says what is wrong */
    assert_path(dir, "smollm2.gguf", NULL);
    assert_path(dir, "smollm", NULL);
    assert_path(dir, "", NULL);
    assert_path(NULL, "smollm2", NULL);
    assert_path(NULL, "Makefile", "Makefile"); /* a file of the working directory */
    unlink(good);
    snprintf(good, sizeof(good), "%s/minilm", path); /* a model may be a directory */
    assert_int_equal(mkdir(good, 0700), 0);
    assert_path(dir, "minilm", good);
    rmdir(good);
    rmdir(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    rmdir(dir);
}

static void a_path_over_the_cap_is_an_error(void **state)
{
    struct buf b;
    struct err err;
    buf_init(&b, MEM_CAT_BASE, 4);
    assert_int_equal(model_path_in(NULL, NULL, "./long/path", &b, &err), ERR_FULL);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_id_is_the_name_without_folder_suffix_and_part),
        cmocka_unit_test(a_name_is_in_the_cache_and_a_slash_makes_a_path),
        cmocka_unit_test(a_path_over_the_cap_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
