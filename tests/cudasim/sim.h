/* sim.h - what the files of the simulated device share. fibers.cc: grids, blocks, threads, what threads do together. copies.cc: copies to
 * shared memory and barriers. numbers.cc: products and 16-bit numbers. device.cc: the runtime's functions: memory, streams, graphs. */
#ifndef PLUMB_CUDASIM_SIM_H
#define PLUMB_CUDASIM_SIM_H

#include <cuda_runtime.h>

namespace cudasim
{

/* --- fibers.cc --- */

void run_grid(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()> &body);

/* --- copies.cc --- */

/* Copies land when they are waited for, not when they are begun. */
extern bool copies_are_late;
void end_thread(int thread);
void end_block();
/* Land what no thread has waited for yet; false: there is none. */
bool land_late_copies();
/* The thread that runs, of its block. */
int this_thread();

} // namespace cudasim

#endif
