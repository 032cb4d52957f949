/* cpu.h - what the machine can run and how many cores this process may use. */
#ifndef PLUMB_KERNELS_CPU_CPU_H
#define PLUMB_KERNELS_CPU_CPU_H

#include "kernels/cpu/cpu_backend.h"

#include <sched.h>

/* The level that `asked` comes down to here: the highest available one that is not above it. */
enum cpu_level cpu_level_resolve(enum cpu_level asked);

/* The physical cores that the calling thread may run on, each with those of its CPUs that are allowed: at most `max`, also at most
 * CPU_THREADS_MAX. 0: the system does not say. */
int cpu_cores(cpu_set_t *out, int max);

/* Whether to bind each of `threads` threads to one of the n cores: only where they take all cores that are allowed and some core
 * has two CPUs, for only there the system may put two threads on one core and leave another idle. With fewer threads than cores
 * two programs would bind theirs to the same ones; with one CPU a core the system moves a thread away from what else runs there. */
bool cpu_should_bind(int threads, const cpu_set_t *cores, int n);

#endif
