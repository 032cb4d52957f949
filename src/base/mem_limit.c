#include "base/mem_limit.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 4096

/* One version of the control groups' files. */
struct mem_limit_kind {
    const char *mount, *limit, *used, *droppable; /* the last one is a key of memory.stat */
};

static const struct mem_limit_kind kinds[] = {
    { "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file " },
    { "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
      "total_inactive_file " },
};

/* Append the file's text; false where there is none. */
static bool mem_limit_read(const char *root, const char *path, struct buf *out)
{
    char full[PATH_BYTES];
    int n = snprintf(full, sizeof(full), "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof(full) && file_read(full, out, NULL) == ERR_OK;
}

/* The number at the start of a line after key ("" = at the start of the text); -1 where there is none, as "max" is none. */
static int64_t mem_limit_number(const char *root, const char *path, const char *key)
{
    struct buf text;
    int64_t n = -1;
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 16);
    const char *line = mem_limit_read(root, path, &text) ? text.data : NULL;
    for (; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        char *end;
        long long v = strtoll(line + strlen(key), &end, 10);
        n = end != line + strlen(key) && v >= 0 ? (int64_t)v : -1;
        break;
    }
    buf_release(&text);
    return n;
}

static int64_t mem_limit_min(int64_t a, int64_t b)
{
    return a < 0 ? b : b < 0 ? a : a < b ? a : b;
}

/* What one group leaves; -1 where it has no limit. */
static int64_t mem_limit_group(const char *root, const struct mem_limit_kind *kind,
                               const char *group)
{
    char path[PATH_BYTES];
    const char *const names[] = { kind->limit, kind->used, "memory.stat" };
    const char *const keys[] = { "", "", kind->droppable };
    int64_t values[3];
    for (int i = 0; i < 3; i++) {
        int n = snprintf(path, sizeof(path), "%s%s/%s", kind->mount, group, names[i]);
        values[i] = n > 0 && (size_t)n < sizeof(path) ? mem_limit_number(root, path, keys[i]) : -1;
    }
    if (values[0] < 0 || values[1] < 0)
        return -1;
    int64_t used = values[1] - (values[2] > 0 ? values[2] : 0);
    return used < 0 ? values[0] : used < values[0] ? values[0] - used : 0;
}

/* The group and those above it. group is changed. */
static int64_t mem_limit_groups(const char *root, const struct mem_limit_kind *kind, char *group)
{
    int64_t least = -1;
    for (;;) {
        least = mem_limit_min(least, mem_limit_group(root, kind, group));
        char *cut = strrchr(group, '/');
        if (!cut)
            return least;
        *cut = '\0';
    }
}

/* Is "memory" one of the names, which commas separate? */
static bool mem_limit_has_memory(const char *names, size_t len)
{
    for (const char *p = names, *end = names + len; p < end;) {
        size_t n = strcspn(p, ",:\n");
        if (n == 6 && memcmp(p, "memory", 6) == 0)
            return true;
        p += n + 1;
    }
    return false;
}

/* A line of /proc/self/cgroup, "number:controllers:/path" (cgroups(7)): version 2 has no controllers. */
static int64_t mem_limit_line(const char *root, const char *line, size_t len)
{
    char group[PATH_BYTES];
    const char *names = memchr(line, ':', len);
    const char *path = names ? memchr(names + 1, ':', len - (size_t)(names + 1 - line)) : NULL;
    if (!path)
        return -1;
    size_t n_names = (size_t)(path - names - 1), n = len - (size_t)(path + 1 - line);
    bool is_v2 = n_names == 0 && line[0] == '0';
    if (!is_v2 && !mem_limit_has_memory(names + 1, n_names))
        return -1;
    snprintf(group, sizeof(group), "%.*s", (int)(n < PATH_BYTES ? n : 0), path + 1);
    if (strcmp(group, "/") == 0 || strstr(group, "/..")) /* outside of what can be seen */
        group[0] = '\0';
    return mem_limit_groups(root, &kinds[is_v2 ? 0 : 1], group);
}

int64_t mem_limit_available(const char *root)
{
    struct buf text;
    char top[1] = "";
    int64_t kib = mem_limit_number(root, "/proc/meminfo", "MemAvailable:");
    int64_t least = kib >= 0 && kib < INT64_MAX / 1024 ? kib * 1024 : -1;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        least = mem_limit_min(least, mem_limit_groups(root, &kinds[i], top));
    buf_init(&text, MEM_CAT_BASE, (size_t)1 << 16);
    if (mem_limit_read(root, "/proc/self/cgroup", &text)) {
        for (const char *line = text.data; *line;) {
            size_t len = strcspn(line, "\n");
            least = mem_limit_min(least, mem_limit_line(root, line, len));
            line += len + (line[len] == '\n');
        }
    }
    buf_release(&text);
    return least;
}
