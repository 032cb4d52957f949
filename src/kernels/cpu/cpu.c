/* Detection: instruction sets (and whether the system saves their registers), cores, affinity, cgroup quota. */
#include "kernels/cpu/cpu.h"

#include "base/buf.h"
#include "base/file.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const char *const level_names[CPU_LEVEL_COUNT] = { "auto",    "generic", "neon", "avx2",
                                                          "avxvnni", "avx512",  "amx" };

const char *cpu_level_name(enum cpu_level level)
{
    BUG_ON((unsigned)level >= CPU_LEVEL_COUNT);
    return level_names[level];
}

enum err_code cpu_level_parse(const char *name, enum cpu_level *out, struct err *err)
{
    for (int i = 0; i < CPU_LEVEL_COUNT; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum cpu_level)i;
            return ERR_OK;
        }
    }
    return err_set(
        err, ERR_INVALID,
        "instruction set \"%s\" is not one of auto, generic, neon, avx2, avxvnni, avx512, amx",
        name);
}

#if defined(__x86_64__)

struct cpuid {
    uint32_t a, b, c, d;
};

static struct cpuid cpuid(uint32_t leaf, uint32_t sub)
{
    struct cpuid r = { 0 };
    __get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d);
    return r;
}

/* XCR0: which register sets the system saves. Need: OSXSAVE. */
static uint64_t xcr0(void)
{
    uint32_t a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

#define XCR0_AVX    0x6u     /* xmm, ymm */
#define XCR0_AVX512 0xE6u    /* + opmask, zmm */
#define XCR0_AMX    0x60000u /* tile configuration and data */

static bool has_bits(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

/* One test per level: every flag that files of its suffix are compiled with (Makefile). */
static bool level_detected(enum cpu_level level)
{
    struct cpuid l1 = cpuid(1, 0), l7 = cpuid(7, 0), l71 = cpuid(7, 1);
    if (level <= CPU_LEVEL_GENERIC)
        return true;
    if (level == CPU_LEVEL_NEON)
        return false;
    /* FMA 12, OSXSAVE 27, AVX 28, F16C 29; AVX2 7.b5 */
    bool avx2 =
        has_bits(l1.c, 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29) && has_bits(l7.b, 1u << 5);
    if (!avx2 || (xcr0() & XCR0_AVX) != XCR0_AVX)
        return false;
    if (level == CPU_LEVEL_AVX2)
        return true;
    if (level == CPU_LEVEL_AVXVNNI)
        return has_bits(l71.a, 1u << 4);
    /* AVX-512 F b16, DQ b17, BW b30, VL b31, VNNI c11 */
    bool avx512 = has_bits(l7.b, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) &&
                  has_bits(l7.c, 1u << 11) && (xcr0() & XCR0_AVX512) == XCR0_AVX512;
    if (level == CPU_LEVEL_AVX512)
        return avx512;
    /* AMX-BF16 d22, AMX-TILE d24, AMX-INT8 d25 */
    return avx512 && has_bits(l7.d, 1u << 22 | 1u << 24 | 1u << 25) &&
           (xcr0() & XCR0_AMX) == XCR0_AMX;
}

/* Ask the system for the tile registers: per process, before the threads that use them start. False: refused. */
static bool amx_enable(void)
{
    enum { ARCH_REQ_XCOMP_PERM_ = 0x1023, XFEATURE_XTILEDATA_ = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_XTILEDATA_) == 0;
}

bool cpu_level_is_native(enum cpu_level level)
{
    return level != CPU_LEVEL_NEON;
}

bool cpu_level_available(enum cpu_level level)
{
    return level_detected(level) && (level != CPU_LEVEL_AMX || amx_enable());
}

#elif defined(__aarch64__)

bool cpu_level_is_native(enum cpu_level level)
{
    return level <= CPU_LEVEL_NEON;
}

bool cpu_level_available(enum cpu_level level)
{
    /* armv8.2-a+dotprod: the dot product, and what ARMv8.1 made part of every processor */
    const unsigned long neon = HWCAP_ASIMDDP | HWCAP_ASIMDRDM | HWCAP_ATOMICS | HWCAP_CRC32;
    return level <= CPU_LEVEL_GENERIC ||
           (level == CPU_LEVEL_NEON && (getauxval(AT_HWCAP) & neon) == neon);
}

#else

bool cpu_level_is_native(enum cpu_level level)
{
    return level <= CPU_LEVEL_GENERIC;
}

bool cpu_level_available(enum cpu_level level)
{
    return level <= CPU_LEVEL_GENERIC;
}

#endif

enum cpu_level cpu_level_resolve(enum cpu_level asked)
{
    enum cpu_level l = asked == CPU_LEVEL_AUTO ? CPU_LEVEL_COUNT - 1 : asked;
    while (l > CPU_LEVEL_GENERIC && !cpu_level_available(l))
        l--;
    return l;
}

/* --- cores --- */

/* Read a small system file; empty on any error. */
static const char *read_small(const char *path, struct buf *b)
{
    buf_reset(b);
    if (file_read(path, b, NULL) != ERR_OK)
        buf_reset(b);
    return b->data;
}

static long topology(int cpu, const char *what, struct buf *b)
{
    char path[128];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
    const char *s = read_small(path, b);
    return *s ? strtol(s, NULL, 10) : -1;
}

int cpu_cores(cpu_set_t *out, int max)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 0;
    struct {
        long package, core;
    } seen[CPU_THREADS_MAX];
    struct buf b;
    buf_init(&b, MEM_CAT_BASE, 64 << 10);
    int n = 0;
    max = max < CPU_THREADS_MAX ? max : CPU_THREADS_MAX;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        long package = topology(cpu, "physical_package_id", &b);
        long core = topology(cpu, "core_id", &b);
        int i = 0;
        while (i < n && (seen[i].package != package || seen[i].core != core || core < 0))
            i++;
        if (i == max)
            continue;
        if (i == n) {
            seen[n].package = package;
            seen[n].core = core;
            CPU_ZERO(&out[n++]);
        }
        CPU_SET(cpu, &out[i]);
    }
    buf_release(&b);
    return n;
}

bool cpu_should_bind(int threads, const cpu_set_t *cores, int n)
{
    int cpus = 0;
    for (int i = 0; i < n; i++)
        cpus += CPU_COUNT(&cores[i]);
    return threads > 1 && threads == n && cpus > n;
}

/* CPUs that a quota of `quota` us per `period` us amounts to, rounded up; 0 = no limit. */
static int quota_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    return (int)((quota + period - 1) / period);
}

static int min_limit(int a, int b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* The smallest quota of the process's cgroup and its ancestors (v2), or of the mounted controller (v1). 0 = none. */
static int cgroup_cpus(struct buf *b)
{
    char dir[1024] = "";
    const char *s = read_small("/proc/self/cgroup", b);
    for (const char *line = s; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "0::/", 4) == 0)
            snprintf(dir, sizeof(dir), "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    }
    int limit = 0;
    for (int depth = 0; depth < 64; depth++) {
        char path[1200];
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", dir);
        long long quota = 0, period = 0;
        if (sscanf(read_small(path, b), "%lld %lld", &quota, &period) == 2)
            limit = min_limit(limit, quota_cpus(quota, period));
        char *slash = strrchr(dir, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    long long quota = strtoll(read_small("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", b), NULL, 10);
    long long period = strtoll(read_small("/sys/fs/cgroup/cpu/cpu.cfs_period_us", b), NULL, 10);
    return min_limit(limit, quota_cpus(quota, period));
}

int cpu_threads_default(void)
{
    struct buf b;
    buf_init(&b, MEM_CAT_BASE, 64 << 10);
    cpu_set_t *cores = mem_alloc(MEM_CAT_BASE, CPU_THREADS_MAX * sizeof(*cores));
    int n = min_limit(cpu_cores(cores, CPU_THREADS_MAX), cgroup_cpus(&b));
    mem_free(MEM_CAT_BASE, cores);
    buf_release(&b);
    return n > 0 ? n : 1;
}
