/* mem_limit.h - how much memory the process may still take, as the machine and its control groups say.
 *
 * The machine: MemAvailable of /proc/meminfo (proc(5)). A control group: its limit less what is charged to it, where pages of
 * files that nobody used lately (inactive_file) count as free, as the kernel drops them first. Every group from the process's own
 * up to the root is asked, version 2 (memory.max, memory.current) and version 1 (memory.limit_in_bytes, memory.usage_in_bytes)
 * alike (the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst), mounted under /sys/fs/cgroup; the least counts.
 * A container that cannot see its group by name finds it at the mount's root, which is asked in any case. */
#ifndef PLUMB_BASE_MEM_LIMIT_H
#define PLUMB_BASE_MEM_LIMIT_H

#include <stdint.h>

/* Bytes; -1 where nothing says how much. root is put before each path: "", or in tests a directory that stands for "/". */
int64_t mem_limit_available(const char *root);

#endif
