/* What a greedy choice needs of the logits, so that they may stay where they are. */
#include "kernels/cuda/device.cuh"

#define THREADS 256

/* Greater is better: the value's order as an integer (-0 is 0), then the lower column (params.h). */
static __device__ __forceinline__ unsigned long long rank_of(float v, int column)
{
    uint32_t u = __float_as_uint(v + 0.0f);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (uint32_t)~column;
}

/* A block's part of a row. */
static __global__ void __launch_bounds__(THREADS) k_best(cu_best p)
{
    __shared__ unsigned long long best[THREADS / CU_WARP];
    cu_wait_before();
    const float *x = p.x.data + (int64_t)blockIdx.y * p.x.stride;
    unsigned long long most = 0;
#pragma unroll 4
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < p.x.cols; i += CU_BEST * THREADS) {
        float v = x[i];
        unsigned long long r = isfinite(v) ? rank_of(v, i) : CU_BEST_ODD;
        most = r > most ? r : most;
    }
    for (int w = 16; w; w /= 2) {
        unsigned long long other = __shfl_xor_sync(0xFFFFFFFFu, most, w);
        most = other > most ? other : most;
    }
    if (threadIdx.x % CU_WARP == 0)
        best[threadIdx.x / CU_WARP] = most;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < THREADS / CU_WARP; i++)
        most = best[i] > most ? best[i] : most;
    p.best[blockIdx.y * CU_BEST + blockIdx.x] = most;
}

extern "C" int cu_launch_best(const cu_best *p, cu_stream s)
{
    return cu_launch(k_best, dim3(CU_BEST, (unsigned)p->x.rows), dim3(THREADS), 0, s, *p);
}
