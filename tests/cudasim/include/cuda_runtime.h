/* cuda_runtime.h - CUDA C++ as plain C++: a block's threads are fibers of one thread of the host (tests/cudasim/threads.cc), one block runs
 * after the other, and whatever threads do together is a meeting of theirs. */
#ifndef PLUMB_CUDASIM_INCLUDE_CUDA_RUNTIME_H
#define PLUMB_CUDASIM_INCLUDE_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include "cuda_runtime_api.h"
#include "cudasim.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* A device of compute capability 9.0 in code that asks when it is compiled; what asks at run time is told PLUMB_CUDASIM_ARCH. */
#define __CUDA_ARCH__             900
#define __CUDA_ARCH_FEAT_SM90_ALL 1

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* --- launching --- */

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attr, int value);
cudaError_t cudasim_launch(const cudaLaunchConfig_t &cfg, const void *kernel,
                           std::function<void()> body);

template <typename... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *cfg, void (*kernel)(P...), P... args)
{
    return cudasim_launch(*cfg, (const void *)kernel, [=] { kernel(args...); });
}

/* --- small things --- */

static inline float2 make_float2(float x, float y)
{
    return { x, y };
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}

static inline int4 make_int4(int x, int y, int z, int w)
{
    return { x, y, z, w };
}

static inline int min(int a, int b)
{
    return a < b ? a : b;
}

static inline int max(int a, int b)
{
    return a > b ? a : b;
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float __uint_as_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

static inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}

/* Bytes of y:x, one for each nibble of the selector; its top bit, which repeats the byte's sign, is not used. */
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
    uint64_t all = (uint64_t)y << 32 | x;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++)
        out |= (uint32_t)(all >> (selector >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
    return out;
}

template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <typename T> static inline T atomicAdd(T *p, T v)
{
    T old = *p;
    *p = old + v;
    return old;
}

template <typename T> static inline T atomicOr(T *p, T v)
{
    T old = *p;
    *p = old | v;
    return old;
}

template <typename T> static inline T atomicAnd(T *p, T v)
{
    T old = *p;
    *p = old & v;
    return old;
}

/* --- what threads do together --- */

#define __syncthreads() cudasim::sync_block()

static inline void __syncwarp(uint32_t mask = 0xFFFFFFFFu)
{
    cudasim::sync_warp(mask);
}

/* The value of lane `from`; with: of the lane whose number differs in these bits; by: of the lane so many below. */
template <typename T> static inline T __shfl_sync(uint32_t mask, T v, int from)
{
    return cudasim::shuffle(mask, v, cudasim::SHUFFLE, from);
}

template <typename T> static inline T __shfl_xor_sync(uint32_t mask, T v, int with)
{
    return cudasim::shuffle(mask, v, cudasim::SHUFFLE_XOR, with);
}

template <typename T> static inline T __shfl_up_sync(uint32_t mask, T v, int by)
{
    return cudasim::shuffle(mask, v, cudasim::SHUFFLE_UP, by);
}

static inline uint32_t __ballot_sync(uint32_t mask, int is)
{
    return cudasim::ballot(mask, is);
}

static inline int __any_sync(uint32_t mask, int is)
{
    return cudasim::ballot(mask, is) != 0;
}

static inline int __all_sync(uint32_t mask, int is)
{
    return cudasim::ballot(mask, !is) == 0;
}

#endif
