/* barrier.cuh - barriers in shared memory and the bulk copies that arrive at them (PTX ISA, mbarrier, cp.async.bulk; from compute
 * capability 9.0). */
#ifndef PLUMB_KERNELS_CUDA_BARRIER_CUH
#define PLUMB_KERNELS_CUDA_BARRIER_CUH

#include "kernels/cuda/ptx.cuh"

static __device__ __forceinline__ void cu_bar_init(uint64_t *bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cu_shared_at(bar)), "r"(count)
                 : "memory");
}

/* The barriers that this thread has made may be used by copies from here on. */
static __device__ __forceinline__ void cu_bar_made(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void cu_bar_wait(uint64_t *bar, int parity)
{
    asm volatile(
        "{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; "
        "bra W; D:}" ::"r"(cu_shared_at(bar)),
        "r"(parity)
        : "memory");
}

static __device__ __forceinline__ void cu_bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cu_shared_at(bar)) : "memory");
}

/* One arrival; the barrier waits for so many bytes besides. */
static __device__ __forceinline__ void cu_bar_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cu_shared_at(bar)),
                 "r"(bytes)
                 : "memory");
}

/* Copy bytes (a multiple of 16, at multiples of 16) that the barrier has been told of. */
static __device__ __forceinline__ void cu_copy_bulk(void *dst, const void *src, int bytes,
                                                    uint64_t *bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(cu_shared_at(dst)),
        "l"(src), "r"(bytes), "r"(cu_shared_at(bar))
        : "memory");
}

#endif
