/* lanes.cuh - sums over the lanes of a norm (docs/numerics.md, section CUDA). */
#ifndef PLUMB_KERNELS_CUDA_LANES_CUH
#define PLUMB_KERNELS_CUDA_LANES_CUH

#include "kernels/cuda/device.cuh"

/* The lanes' sum, in every thread: a tree of halves within a warp, then one over the warps. Thread t has lane t mod L, L = 32 or 256; shared
 * [L / 32]. */
template <int L> static __device__ __forceinline__ float cu_lane_sum(float v, float *shared)
{
    for (int w = 16; w; w /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, w);
    if (L == CU_WARP)
        return v;
    __syncthreads();
    if (threadIdx.x % CU_WARP == 0 && threadIdx.x < L)
        shared[threadIdx.x / CU_WARP] = v;
    __syncthreads();
    v = shared[threadIdx.x % (L / CU_WARP)];
    for (int w = L / CU_WARP / 2; w; w /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, w);
    return v;
}

#endif
