/* rope.cuh - rotary embeddings of heads that are turned whole: the bits of k_rope (rows.cu), for kernels that go on with what they turn. */
#ifndef PLUMB_KERNELS_CUDA_ROPE_CUH
#define PLUMB_KERNELS_CUDA_ROPE_CUH

#include "kernels/cuda/device.cuh"

/* Where pair k of a head stands in it. */
static __device__ __forceinline__ int2 pair_at(const cu_rope &p, int k)
{
    return p.is_neox ? int2{ k, k + p.half } : int2{ 2 * k, 2 * k + 1 };
}

/* Pair k of a head of row t, turned. */
static __device__ __forceinline__ float2 turned(const cu_rope &p, const float *head, int t, int k)
{
    float2 angle = *(const float2 *)(p.table + 2 * ((int64_t)t * p.half + k));
    int2 at = pair_at(p, k);
    float a = head[at.x], b = head[at.y];
    return make_float2(fmaf(a, angle.x, -(b * angle.y)), fmaf(a, angle.y, b * angle.x));
}

/* Pair i of all heads of row t, turned where it stands: *at in its head. */
static __device__ __forceinline__ float2 turn(const cu_rope &p, cu_tensor x, int t, int i, int2 *at)
{
    float *head = x.data + (int64_t)t * x.stride + i / p.half * p.head_dim;
    float2 y = turned(p, head, t, i % p.half);
    *at = pair_at(p, i % p.half);
    head[at->x] = y.x;
    head[at->y] = y.y;
    return y;
}

#endif
