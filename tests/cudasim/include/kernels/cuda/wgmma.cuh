/* wgmma.cuh - src/kernels/cuda/wgmma.cuh for the simulated device. */
#ifndef PLUMB_KERNELS_CUDA_WGMMA_CUH
#define PLUMB_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/ptx.cuh"

/* In units of 16 bytes, as the descriptor has it. */
static inline uint64_t cu_wgmma_operand(const void *p)
{
    if ((uintptr_t)p % 1024)
        cudasim::fail("operand %p of a product is not at a multiple of 1024 bytes", p);
    return (uint64_t)(uintptr_t)p >> 4;
}

static inline void cu_wgmma_fence(void)
{
    cudasim::meet_warps(cudasim::WGMMA_FENCE, NULL, NULL);
}

static inline void cu_wgmma_wait(void)
{
    cudasim::wgmma_wait();
}

static inline void cu_wgmma_hold(float &)
{
}

template <int N> static inline void cu_registers_more(void)
{
}
template <int N> static inline void cu_registers_fewer(void)
{
}

template <int N> struct cu_wgmma {
    static inline void run(float *c, const uint32_t a[4], uint64_t b, int keep)
    {
        cudasim::wgmma(N, c, a, b, keep);
    }
};

#endif
