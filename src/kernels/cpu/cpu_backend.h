/* cpu_backend.h - the fast CPU backend: packed weights, a thread pool, the best instruction set that the machine has.
 *
 * Gives the bits of kernels/ref at every level and thread count. Nothing is allocated after the weights are packed.
 * Thread: one thread drives a backend (its pool works for it); several backends may exist. */
#ifndef PLUMB_KERNELS_CPU_CPU_BACKEND_H
#define PLUMB_KERNELS_CPU_CPU_BACKEND_H

#include "tensor/backend.h"

/* Instruction-set levels, each including those before it where the machine has them. A level is an upper bound: what the
 * machine lacks is left out, all of another architecture's too. */
enum cpu_level {
    CPU_LEVEL_AUTO,    /* all that the machine has */
    CPU_LEVEL_GENERIC, /* plain C */
    CPU_LEVEL_NEON,    /* ARM: NEON and its dot product */
    CPU_LEVEL_AVX2,    /* x86: AVX2, FMA, F16C */
    CPU_LEVEL_AVXVNNI, /* + AVX-VNNI (256 bit) */
    CPU_LEVEL_AVX512,  /* + AVX-512 F BW VL DQ VNNI */
    CPU_LEVEL_AMX,     /* + AMX-TILE, AMX-INT8, AMX-BF16 */
    CPU_LEVEL_COUNT
};

/* Names as flags spell them: auto generic neon avx2 avxvnni avx512 amx. */
const char *cpu_level_name(enum cpu_level level);
/* Errors: ERR_INVALID - the text lists the names. */
enum err_code cpu_level_parse(const char *name, enum cpu_level *out, struct err *err) MUST_CHECK;
/* Whether this architecture has the level at all. */
bool cpu_level_is_native(enum cpu_level level);
/* Whether the machine and its operating system can run every instruction that the level adds. */
bool cpu_level_available(enum cpu_level level);

/* Physical cores that this process may use (affinity, cgroup quota), at least 1: the default of threads. */
int cpu_threads_default(void);

struct cpu_options {
    int threads; /* including the calling one; 0 = cpu_threads_default(); at most CPU_THREADS_MAX */
    enum cpu_level level;
};

#define CPU_THREADS_MAX 256

/* In:     opt may be NULL: all defaults.
 * Out:    *out, closed by its ops->close, which ends the threads.
 * Errors: ERR_NOMEM; ERR_INVALID (threads out of range); ERR_IO (a thread could not be started). */
enum err_code cpu_backend_open(const struct cpu_options *opt, struct backend **out,
                               struct err *err) MUST_CHECK;

#endif
