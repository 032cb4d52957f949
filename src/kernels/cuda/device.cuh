/* device.cuh - what kernels share: the tensor core's instructions, rounding, the project's own functions, launching. */
#ifndef PLUMB_KERNELS_CUDA_DEVICE_CUH
#define PLUMB_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/params.h"
#include "kernels/cuda/ptx.cuh"
#define FMATH_FN static __host__ __device__ inline
#include "tensor/fmath.h"
#include "tensor/fmath_impl.h"

#define CU_WARP     32
#define CU_CARVEOUT 72 /* per cent of the most: 164 KiB of 228 on compute capability 9.0 */

/* Launched beside the kernels before it: nothing that they wrote may be read, and nothing that they read may be written, before this.
 * Every kernel waits, so that the end of the one before it is the end of all before it. */
static __device__ __forceinline__ void cu_wait_before(void)
{
    cu_start_next();
    cu_grid_wait();
}

template <bool IS_BF16> static __device__ __forceinline__ uint16_t cu_pack1(float x)
{
    return (uint16_t)cu_pack2<IS_BF16>(x, 0.0f);
}

/* Whether a 16-bit value is infinite or NaN. */
template <bool IS_BF16> static __device__ __forceinline__ bool cu_is_odd(uint16_t h)
{
    return IS_BF16 ? (h & 0x7F80) == 0x7F80 : (h & 0x7C00) == 0x7C00;
}

/* A unit's column (0..63) to its place in the order in which lanes of a fragment read: lane t of four has 16 places in a row, four for
 * each step of 16 columns. */
static __host__ __device__ __forceinline__ int cu_lane_order(int k)
{
    int j = k / 16, r = k % 16;
    return r % 8 / 2 * 16 + j * 4 + r / 8 * 2 + r % 2;
}

static __device__ inline float cu_act_one(float v, int kind)
{
    switch (kind) {
    case CU_ACT_SILU:
        return fmath_silu(v);
    case CU_ACT_GELU_TANH:
        return fmath_gelu_tanh(v);
    case CU_ACT_GELU_ERF:
        return fmath_gelu_erf(v);
    default:
        return fmath_sigmoid(v);
    }
}

static __device__ inline float cu_glu_one(float g, float u, int kind)
{
    return kind == CU_ACT_SWIGLU_CLAMPED ? fmath_swiglu_clamped(g, u) : cu_act_one(g, kind) * u;
}

/* Where column c of a unit stands in row t of the bf16 activations ... */
static __device__ __forceinline__ int cu_bf16_at_column(const cu_quantise &q, int t, int c)
{
    return q.is_tiled ? ((c / 8) ^ (t & 7)) * 8 + c % 8 : cu_lane_order(c);
}

/* ... and column k of the row among all. */
static __device__ __forceinline__ int64_t cu_bf16_at(const cu_quantise &q, int t, int k)
{
    return ((int64_t)(k / CU_UNIT) * q.pad_rows + t) * CU_UNIT +
           cu_bf16_at_column(q, t, k % CU_UNIT);
}

/* One value to its place; what is not finite, or becomes infinite, counts as zero and fails its row. */
static __device__ __forceinline__ void cu_put_bf16(const cu_quantise &q, int t, int k, float x)
{
    uint16_t v = cu_pack1<true>(x);
    if (cu_is_odd<true>(v)) {
        v = 0;
        q.flags[t] = 1;
    }
    q.out[cu_bf16_at(q, t, k)] = v;
}

/* Two bf16 values of row t as they are stored: an exponent of ones carries into the sign's place. */
static __device__ __forceinline__ uint32_t cu_finite_bf16x2(const cu_quantise &q, int t, uint32_t v)
{
    uint32_t odd = ((v & 0x7F807F80u) + 0x00800080u) & 0x80008000u;
    if (odd) {
        q.flags[t] = 1;
        v &= ~((odd >> 15) * 0xFFFFu);
    }
    return v;
}

/* ... columns k (even) and k + 1. */
static __device__ __forceinline__ void cu_put_bf16x2(const cu_quantise &q, int t, int k, float x0,
                                                     float x1)
{
    *(uint32_t *)(q.out + cu_bf16_at(q, t, k)) = cu_finite_bf16x2(q, t, cu_pack2<true>(x0, x1));
}

/* Four numbers that others have written, of `left` that there are; zero behind them. IS_WHOLE: a multiple of four, at a multiple of 16 bytes. */
template <bool IS_WHOLE>
static __device__ __forceinline__ float4 cu_load_quad(const float *x, int left)
{
    if (IS_WHOLE)
        return left > 0 ? __ldcg((const float4 *)x) : make_float4(0, 0, 0, 0);
    float4 v;
    v.x = left > 0 ? __ldcg(x) : 0;
    v.y = left > 1 ? __ldcg(x + 1) : 0;
    v.z = left > 2 ? __ldcg(x + 2) : 0;
    v.w = left > 3 ? __ldcg(x + 3) : 0;
    return v;
}

/* Launch beside the end of what the stream does before. */
template <typename... P>
static cudaError_t cu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, cu_stream s,
                             const P &...args)
{
    cudaLaunchAttribute attr[1];
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid;
    cfg.blockDim = block;
    cfg.dynamicSmemBytes = smem;
    cfg.stream = (cudaStream_t)s;
    cfg.attrs = attr;
    cfg.numAttrs = 1;
    return cudaLaunchKernelEx(&cfg, kernel, args...);
}

/* As cu_launch, of a kernel that takes more shared memory than the default allows. All of them ask for the same share of a multiprocessor's
 * memory, what the largest needs: whatever one has set stays, and the cache that is left must hold the activations of eight rows. */
template <typename... P>
static cudaError_t cu_launch_big(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                 cu_stream s, const P &...args)
{
    if (smem > 8 * 1024) { /* the kernel has some of its own too */
        cudaError_t e = cudaFuncSetAttribute(
            (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        if (e == cudaSuccess)
            e = cudaFuncSetAttribute((const void *)kernel,
                                     cudaFuncAttributePreferredSharedMemoryCarveout, CU_CARVEOUT);
        if (e != cudaSuccess)
            return e;
    }
    return cu_launch(kernel, grid, block, smem, s, args...);
}

static inline unsigned cu_blocks(int64_t n, int64_t per)
{
    return (unsigned)((n + per - 1) / per);
}

#endif
