/* cpu.h - what the machine can run and how many cores this process may use. */
#ifndef PLUMB_KERNELS_CPU_CPU_H
#define PLUMB_KERNELS_CPU_CPU_H

#include "kernels/cpu/cpu_backend.h"

/* The level that `asked` comes down to here: the highest available one that is not above it. */
enum cpu_level cpu_level_resolve(enum cpu_level asked);

#endif
