/* What a greedy choice needs of the logits, so that they may stay where they are. */
#include "kernels/cuda/device.cuh"

#define THREADS 1024

/* Greater is better: the value's order as an integer (-0 is 0), then the lower column. */
static __device__ __forceinline__ unsigned long long rank_of(float v, int column)
{
    uint32_t u = __float_as_uint(v + 0.0f);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (uint32_t)~column;
}

static __global__ void __launch_bounds__(THREADS) k_best(cu_best p)
{
    __shared__ unsigned long long best[THREADS / CU_WARP];
    cu_wait_before();
    const float *x = p.x.data + (int64_t)blockIdx.x * p.x.stride;
    unsigned long long most = 0;
    bool is_odd = false;
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < p.x.cols; i += THREADS) {
        float v = x[i];
        unsigned long long r = rank_of(v, i);
        is_odd = is_odd || !isfinite(v);
        most = r > most ? r : most;
    }
    for (int w = 16; w; w /= 2) {
        unsigned long long other = __shfl_xor_sync(0xFFFFFFFFu, most, w);
        most = other > most ? other : most;
    }
    if (threadIdx.x % CU_WARP == 0)
        best[threadIdx.x / CU_WARP] = most;
    is_odd = __syncthreads_or(is_odd);
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < THREADS / CU_WARP; i++)
        most = best[i] > most ? best[i] : most;
    p.best[blockIdx.x] = is_odd ? -1 : (int32_t) ~(uint32_t)most;
}

extern "C" int cu_launch_best(const cu_best *p, cu_stream s)
{
    return cu_launch(k_best, dim3((unsigned)p->x.rows), dim3(THREADS), 0, s, *p);
}
