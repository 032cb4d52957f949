/* The small modules of base: err, map, philox, file, log, clock. */
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/map.h"
#include "base/philox.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void a_long_text_is_cut_at_a_code_point(void **state)
{
    char text[2000];
    struct err err;
    for (int offset = 0; offset < 5; offset++) {
        size_t n = 0;
        memset(text, 'a', (size_t)offset);
        for (n = (size_t)offset; n + 4 < sizeof(text); n += 4)
            memcpy(text + n, "\xF0\x9F\x98\x80", 4);
        text[n] = '\0';
        assert_int_equal(err_set(&err, ERR_IO, "%s", text), ERR_IO);
        assert_true(strlen(err.text) > ERR_TEXT_MAX - 6 && strlen(err.text) < ERR_TEXT_MAX);
        assert_true(utf8_is_valid(err.text, strlen(err.text)));
        assert_int_equal(err_prefix(&err, ERR_INVALID, "%s", text), ERR_IO);
        assert_true(utf8_is_valid(err.text, strlen(err.text)));
    }
    err_set(&err, ERR_FULL, "no room");
    assert_int_equal(err_prefix(&err, ERR_FULL, "file %d", 3), ERR_FULL);
    assert_string_equal(err.text, "file 3: no room");
    assert_int_equal(err_set(NULL, ERR_FULL, "x"), ERR_FULL);
    assert_int_equal(err_prefix(NULL, ERR_IO, "x"), ERR_IO);
    assert_string_equal(err_name(ERR_NOT_FOUND), "not found");
    assert_string_equal(err_name((enum err_code)99), "unknown");
}

static void a_map_finds_what_was_added(void **state)
{
    enum { N = 20000 };
    static char keys[N][12];
    struct map m;
    map_init(&m, MEM_CAT_BASE);
    assert_int_equal(map_get(&m, "x", 1), -1);
    for (int i = 0; i < N; i++) {
        int n = snprintf(keys[i], sizeof(keys[i]), "%d", i * 7);
        assert_true(map_add(&m, keys[i], (size_t)n, i));
        assert_false(map_add(&m, keys[i], (size_t)n, i + 1));
    }
    assert_int_equal(m.len, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(map_get(&m, keys[i], strlen(keys[i])), i);
    assert_int_equal(map_get(&m, "1", 1), -1);
    assert_true(map_add(&m, "", 0, 5)); /* the empty key, and one with a NUL inside */
    assert_true(map_add(&m, "\0", 1, 6));
    assert_int_equal(map_get(&m, "", 0), 5);
    assert_int_equal(map_get(&m, "\0", 1), 6);
    map_release(&m);
    assert_int_equal(map_get(&m, "", 0), -1);
}

/* The known answers of the Random123 distribution (philox4x32, 10 rounds). */
static void philox_gives_the_published_numbers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u },
          { ~0u, ~0u },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        uint32_t out[4];
        philox4x32(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof(out));
    }
    double sum = 0;
    for (uint64_t pos = 0; pos < 100000; pos++) {
        float u = philox_uniform(42, pos, 0, 1);
        assert_true(u >= 0 && u < 1);
        sum += (double)u;
    }
    assert_true(sum > 49500 && sum < 50500);
    assert_true(philox_uniform(42, 7, 0, 1) != philox_uniform(42, 7, 1, 1));
    assert_true(philox_uniform(42, 7, 0, 1) != philox_uniform(42, 7, 0, 2));
    assert_true(philox_uniform(42, 1ull << 32, 0, 1) != philox_uniform(42, 0, 0, 1));
}

static void files_are_read_whole_or_not(void **state)
{
    char path[] = "/tmp/plumb-t-base-XXXXXX";
    int fd = mkstemp(path);
    struct buf b;
    struct file_map m = { 0 };
    struct err err;
    assert_true(fd >= 0);
    buf_init(&b, MEM_CAT_BASE, 40000);
    assert_int_equal(file_map_open(&m, path, &err), ERR_INVALID); /* empty */
    assert_non_null(strstr(err.text, path));
    for (int i = 0; i < 40000; i++)
        assert_int_equal(write(fd, &(char){ (char)i }, 1), 1);
    close(fd);
    assert_int_equal(file_read(path, &b, &err), ERR_OK);
    assert_int_equal(b.len, 40000);
    assert_int_equal(file_map_open(&m, path, &err), ERR_OK);
    assert_int_equal(m.size, 40000);
    file_map_drop(&m, 0, m.size);
    assert_memory_equal(m.data, b.data, 40000); /* dropped pages are read again */
    file_map_close(&m);
    file_map_close(&m);
    buf_release(&b);
    buf_init(&b, MEM_CAT_BASE, 39999);
    assert_int_equal(file_read(path, &b, &err), ERR_FULL);
    buf_release(&b);
    unlink(path);
    assert_int_equal(file_read(path, &b, &err), ERR_NOT_FOUND);
    assert_int_equal(file_map_open(&m, path, &err), ERR_NOT_FOUND);
    assert_int_equal(file_map_open(&m, "/", &err), ERR_INVALID);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_map_open(&m, path, &err),
                     ERR_INVALID); /* and it does not wait for a writer */
    unlink(path);
}

static void the_cache_directory_follows_the_environment(void **state)
{
    struct buf b;
    struct err err;
    buf_init(&b, MEM_CAT_BASE, 100);
    assert_int_equal(file_cache_dir("/x", "/h", &b, &err), ERR_OK);
    assert_string_equal(b.data, "/x/plumb");
    buf_reset(&b);
    assert_int_equal(file_cache_dir("relative", "/h", &b, &err), ERR_OK);
    assert_string_equal(b.data, "/h/.cache/plumb");
    buf_reset(&b);
    assert_int_equal(file_cache_dir(NULL, "", &b, &err), ERR_NOT_FOUND);
    buf_release(&b);
}

/* What the four calls write to stderr, caught in a file. */
static void catch_log(char *out, size_t cap)
{
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(f);
    dup2(fileno(f), STDERR_FILENO);
    log_error("http", "e %d", 1);
    log_warn("http", "w");
    log_info("http", "i");
    log_debug("http", "d");
    log_debug("sched", "d");
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(f);
    out[fread(out, 1, cap - 1, f)] = '\0';
    fclose(f);
}

static void a_log_line_has_component_and_level(void **state)
{
    char got[4096];
    catch_log(got, sizeof(got));
    assert_string_equal(got, "http: error: e 1\nhttp: warning: w\nhttp: i\n");
    log_set_level(LOG_LEVEL_ERROR);
    catch_log(got, sizeof(got));
    assert_string_equal(got, "http: error: e 1\n");
    log_enable("x,sched");
    catch_log(got, sizeof(got));
    assert_string_equal(got, "http: error: e 1\nsched: debug: d\n");
    log_set_level(LOG_LEVEL_INFO);
    log_enable("all");
    catch_log(got, sizeof(got));
    assert_string_equal(
        got, "http: error: e 1\nhttp: warning: w\nhttp: i\nhttp: debug: d\nsched: debug: d\n");
    log_enable("");
}

static void time_moves_forward(void **state)
{
    int64_t a = clock_us();
    usleep(2000);
    assert_true(clock_us() - a >= 2000);
    assert_true(clock_wall_s() > 1700000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_text_is_cut_at_a_code_point),
        cmocka_unit_test(a_map_finds_what_was_added),
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(files_are_read_whole_or_not),
        cmocka_unit_test(the_cache_directory_follows_the_environment),
        cmocka_unit_test(a_log_line_has_component_and_level),
        cmocka_unit_test(time_moves_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
