/* barrier.cuh - src/kernels/cuda/barrier.cuh for the simulated device. */
#ifndef PLUMB_KERNELS_CUDA_BARRIER_CUH
#define PLUMB_KERNELS_CUDA_BARRIER_CUH

#include "kernels/cuda/ptx.cuh"

static inline void cu_bar_init(uint64_t *bar, int count)
{
    cudasim::bar_init(bar, count);
}

static inline void cu_bar_made(void)
{
}

static inline void cu_bar_wait(uint64_t *bar, int parity)
{
    cudasim::bar_wait(bar, parity);
}

static inline void cu_bar_arrive(uint64_t *bar)
{
    cudasim::bar_arrive(bar, 0);
}

static inline void cu_bar_expect(uint64_t *bar, int bytes)
{
    cudasim::bar_arrive(bar, bytes);
}

static inline void cu_copy_bulk(void *dst, const void *src, int bytes, uint64_t *bar)
{
    cudasim::copy_bulk(dst, src, bytes, bar);
}

#endif
