/* File calls through the hook: what fails says so, a write is torn in its middle, names are made durable. */
#include "base/fio.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], path[96], other[96];

static int setup(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/t_fio.XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof(path), "%s/a", dir);
    snprintf(other, sizeof(other), "%s/b", dir);
    return 0;
}

static int teardown(void **state)
{
    fio_set_hook(NULL, NULL);
    unlink(path);
    unlink(other);
    return rmdir(dir);
}

/* Past the system's cache where that can be; any place and length all the same. */
static void direct_is_a_wish(void **state)
{
    _Alignas(4096) static char from[3 * 4096], to[4 * 4096];
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (char)(i * 7 + i / 256);
    for (size_t n = sizeof(from) - 1; n <= sizeof(from); n++)
        for (size_t shift = 0; shift < 2; shift++) {
            int fd = fio_open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
            assert_true(fd >= 0);
            assert_true(fio_write(fd, path, from + shift, n - shift, 0));
            assert_true(fio_sync(fd, path));
            close(fd);
            fd = fio_open(path, O_RDONLY | O_DIRECT, 0);
            memset(to, 0, sizeof(to));
            assert_int_equal(fio_read(fd, path, to + shift, sizeof(to) - shift, 0), n - shift);
            assert_memory_equal(to + shift, from + shift, n - shift);
            assert_int_equal(fio_read(fd, path, to, 10, 5), 10);
            assert_memory_equal(to, from + shift + 5, 10);
            close(fd);
        }
}

struct fault {
    enum fio_op op;
    int nth, why;
};

static int fault_hook(void *arg, enum fio_op op, const char *name)
{
    struct fault *f = arg;
    return op == f->op && --f->nth == 0 ? f->why : 0;
}

static void what_is_written_is_read(void **state)
{
    char got[16] = "";
    int fd = fio_open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_true(fio_write(fd, path, "0123456789", 10, 0));
    assert_true(fio_sync(fd, path));
    assert_int_equal(fio_read(fd, path, got, 4, 3), 4);
    assert_memory_equal(got, "3456", 4);
    assert_int_equal(fio_read(fd, path, got, 16, 8), 2);
    close(fd);
    assert_true(fio_rename(path, other));
    assert_true(fio_sync_dir(dir));
    assert_true(fio_mkdir(dir, 0700));
    assert_false(fio_mkdir(other, 0700));
    assert_int_equal(errno, ENOTDIR);
    assert_true(fio_unlink(other));
    assert_false(fio_unlink(other));
    struct err err;
    assert_int_equal(fio_error(&err, other), ERR_NOT_FOUND);
}

static void a_write_is_torn_in_its_middle(void **state)
{
    char got[16] = "";
    struct fault f = { FIO_WRITE, 2, ENOSPC };
    struct err err;
    fio_set_hook(fault_hook, &f);
    int fd = fio_open(path, O_RDWR | O_CREAT, 0600);
    assert_false(fio_write(fd, path, "0123456789", 10, 0));
    assert_int_equal(fio_error(&err, path), ERR_FULL);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(fio_read(fd, path, got, 16, 0), 5);
    close(fd);
}

static void every_call_can_fail(void **state)
{
    const enum fio_op ops[] = { FIO_OPEN, FIO_READ, FIO_SYNC, FIO_RENAME, FIO_UNLINK, FIO_MKDIR };
    char got[4];
    int fd = fio_open(path, O_RDWR | O_CREAT, 0600);
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct fault f = { ops[i], 1, EIO };
        fio_set_hook(fault_hook, &f);
        errno = 0;
        bool has_failed = ops[i] == FIO_OPEN     ? fio_open(path, O_RDONLY, 0) < 0
                          : ops[i] == FIO_READ   ? fio_read(fd, path, got, 1, 0) < 0
                          : ops[i] == FIO_SYNC   ? !fio_sync(fd, path)
                          : ops[i] == FIO_RENAME ? !fio_rename(path, other)
                          : ops[i] == FIO_UNLINK ? !fio_unlink(path)
                                                 : !fio_mkdir(dir, 0700);
        assert_true(has_failed);
        assert_int_equal(errno, EIO);
        fio_set_hook(NULL, NULL);
    }
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(direct_is_a_wish, setup, teardown),
        cmocka_unit_test_setup_teardown(a_write_is_torn_in_its_middle, setup, teardown),
        cmocka_unit_test_setup_teardown(every_call_can_fail, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
