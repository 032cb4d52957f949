#include "base/err.h"
#include "base/mem_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB    (1 << 20)
#define V2     "/sys/fs/cgroup"
#define V1     "/sys/fs/cgroup/memory"
#define TREE_N 32

/* Files that stand for a machine's. */
struct tree {
    char root[64];
    char made[TREE_N][256]; /* in order of making */
    int n;
};

static void tree_open(struct tree *t)
{
    memset(t, 0, sizeof(*t));
    strcpy(t->root, "/tmp/t_mem_limit.XXXXXX");
    assert_non_null(mkdtemp(t->root));
}

static void tree_add_path(struct tree *t, const char *path)
{
    assert_in_range(t->n, 0, TREE_N - 1);
    snprintf(t->made[t->n++], sizeof(t->made[0]), "%s", path);
}

static void tree_write(struct tree *t, const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof(full), "%s%s", t->root, path);
    for (char *p = strchr(full + strlen(t->root) + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(full, 0700) == 0)
            tree_add_path(t, full);
        *p = '/';
    }
    if (access(full, F_OK) != 0)
        tree_add_path(t, full);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void tree_close(struct tree *t)
{
    while (t->n > 0)
        assert_int_equal(remove(t->made[--t->n]), 0);
    assert_int_equal(rmdir(t->root), 0);
}

static void machine(struct tree *t)
{
    tree_open(t);
    tree_write(t, "/proc/meminfo",
               "MemTotal: 8192000 kB\nMemFree: 1 kB\nMemAvailable:  4096000 kB\n");
}

static void without_groups_the_machine_counts(void **state)
{
    struct tree t;
    tree_open(&t);
    assert_int_equal(mem_limit_available(t.root), -1);
    tree_close(&t);
    machine(&t);
    assert_int_equal(mem_limit_available(t.root), 4096000LL * 1024);
    tree_write(&t, "/proc/self/cgroup", "0::/user.slice\n");
    tree_write(&t, V2 "/user.slice/memory.max", "max\n");
    tree_write(&t, V2 "/user.slice/memory.current", "1000\n");
    assert_int_equal(mem_limit_available(t.root), 4096000LL * 1024);
    tree_close(&t);
}

static void the_least_of_all_groups_above_counts(void **state)
{
    struct tree t;
    machine(&t);
    tree_write(&t, "/proc/self/cgroup", "1:name=systemd:/x\n0::/a/b/c\n");
    tree_write(&t, V2 "/a/b/c/memory.max", "1073741824\n");
    tree_write(&t, V2 "/a/b/c/memory.current", "73741824\n");
    assert_int_equal(mem_limit_available(t.root), 1000000000);
    tree_write(&t, V2 "/a/b/memory.max", "max\n");
    tree_write(&t, V2 "/a/b/memory.current", "173741824\n");
    assert_int_equal(mem_limit_available(t.root), 1000000000);
    tree_write(&t, V2 "/a/memory.max", "500000000\n");
    tree_write(&t, V2 "/a/memory.current", "300000000\n");
    assert_int_equal(mem_limit_available(t.root), 200000000);
    tree_write(&t, V2 "/a/memory.current", "600000000\n"); /* over the limit */
    assert_int_equal(mem_limit_available(t.root), 0);
    tree_close(&t);
}

/* The mapped model file is charged to the group, but its pages go when they are wanted. */
static void file_pages_nobody_used_lately_are_free(void **state)
{
    struct tree t;
    machine(&t);
    tree_write(&t, V2 "/memory.max",
               "1000000000\n"); /* a container sees its own group at the root */
    tree_write(&t, V2 "/memory.current", "900000000\n");
    assert_int_equal(mem_limit_available(t.root), 100000000);
    tree_write(&t, V2 "/memory.stat", "anon 5\nfile 800000000\ninactive_file 700000000\n");
    assert_int_equal(mem_limit_available(t.root), 800000000);
    tree_write(&t, V2 "/memory.stat", "inactive_file 900000001\n");
    assert_int_equal(mem_limit_available(t.root), 1000000000);
    tree_close(&t);
}

static void version_1_is_read_too(void **state)
{
    struct tree t;
    machine(&t);
    tree_write(&t, "/proc/self/cgroup",
               "9:cpu,cpuacct:/y\n5:hugetlb,memory:/docker/abc\n1:name=systemd:/z\n");
    tree_write(&t, V1 "/docker/abc/memory.limit_in_bytes", "600000000\n");
    tree_write(&t, V1 "/docker/abc/memory.usage_in_bytes", "250000000\n");
    tree_write(&t, V1 "/docker/abc/memory.stat", "cache 1\ntotal_inactive_file 50000000\n");
    assert_int_equal(mem_limit_available(t.root), 400000000);
    tree_write(&t, V1 "/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    tree_write(&t, V1 "/memory.usage_in_bytes", "999999999999\n");
    assert_int_equal(mem_limit_available(t.root), 400000000);
    tree_write(&t, V1 "/memory.limit_in_bytes", "300000000\n"); /* the container's own */
    tree_write(&t, V1 "/memory.usage_in_bytes", "100000000\n");
    assert_int_equal(mem_limit_available(t.root), 200000000);
    tree_close(&t);
}

static void odd_files_are_no_limits(void **state)
{
    static const char *const texts[] = { "",
                                         ":",
                                         "0:",
                                         "0::",
                                         "0::/../../etc\n",
                                         "::\n\n0::relative",
                                         "7:memory",
                                         "7:memory:",
                                         "0::/no/such/group\n" };
    struct tree t;
    machine(&t);
    tree_write(&t, V2 "/memory.max", "-5\n");
    tree_write(&t, V2 "/memory.current", "many\n");
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        tree_write(&t, "/proc/self/cgroup", texts[i]);
        assert_int_equal(mem_limit_available(t.root), 4096000LL * 1024);
    }
    tree_close(&t);
}

static void this_machine_has_some(void **state)
{
    assert_in_range(mem_limit_available("") / MIB, 1, 1 << 28);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_groups_the_machine_counts),
        cmocka_unit_test(the_least_of_all_groups_above_counts),
        cmocka_unit_test(file_pages_nobody_used_lately_are_free),
        cmocka_unit_test(version_1_is_read_too),
        cmocka_unit_test(odd_files_are_no_limits),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests_name("mem_limit", tests, NULL, NULL);
}
