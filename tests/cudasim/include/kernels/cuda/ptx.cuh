/* ptx.cuh - src/kernels/cuda/ptx.cuh for the simulated device. */
#ifndef PLUMB_KERNELS_CUDA_PTX_CUH
#define PLUMB_KERNELS_CUDA_PTX_CUH

#include <math.h>

#include "cudasim.h"
#include "vector_types.h"

#define CU_SHARED_ARRAY(type, name, align) type *name = (type *)cudasim::dynamic_shared()

/* That the next one may begin is known; how early it does, grid.cc decides. */
static inline void cu_start_next(void)
{
}

static inline void cu_grid_wait(void)
{
    cudasim::wait_for_kernels();
}

template <bool IS_BF16>
static inline void cu_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    cudasim::mma(IS_BF16, c, a, b0, b1);
}

static inline uint16_t cu_fma_bf16(uint16_t a, uint16_t b, uint16_t c)
{
    /* exact in double: products have 16 bits, and what a sum loses there is far below a bf16's last place */
    double y = (double)cudasim::float_of_bf16(a) * (double)cudasim::float_of_bf16(b) +
               (double)cudasim::float_of_bf16(c);
    return cudasim::bf16_of_double(y);
}

static inline uint32_t cu_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return cu_fma_bf16((uint16_t)a, (uint16_t)b, (uint16_t)c) |
           (uint32_t)cu_fma_bf16((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16))
               << 16;
}

static inline uint32_t cu_scale_bf16x2(uint32_t a, uint32_t sb)
{
    uint32_t s = sb & 0xFFFFu, b = sb >> 16;
    return cu_fma_bf16x2(a, s | s << 16, b | b << 16);
}

template <bool IS_BF16> static inline uint32_t cu_pack2(float lo, float hi)
{
    return IS_BF16 ? cudasim::bf16_of(lo) | (uint32_t)cudasim::bf16_of(hi) << 16
                   : cudasim::f16_of(lo) | (uint32_t)cudasim::f16_of(hi) << 16;
}

static inline uint32_t cu_pack2_finite(float lo, float hi)
{
    return cudasim::f16_of(fminf(fmaxf(lo, -65504.0f), 65504.0f)) |
           (uint32_t)cudasim::f16_of(fminf(fmaxf(hi, -65504.0f), 65504.0f)) << 16;
}

/* The instruction's last bits are the processor's own; kernels that must agree use the same one. */
static inline float cu_exp2(float x)
{
    return exp2f(x);
}

static inline float cu_exp2_flushed(float x)
{
    float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}

/* An address in shared memory: from the block's array on. */
static inline uint32_t cu_shared_at(const void *p)
{
    return (uint32_t)((uintptr_t)p - (uintptr_t)cudasim::dynamic_shared());
}

static inline void cu_copy16(uint32_t dst, const void *src)
{
    cudasim::copy16((uint8_t *)cudasim::dynamic_shared() + (int32_t)dst, src);
}

static inline void cu_copy16_of_run(uint32_t dst, const void *src)
{
    cu_copy16(dst, src);
}

static inline uint4 cu_turned(const void *row)
{
    uint4 v;
    cudasim::turned((uint32_t *)&v, row);
    return v;
}

static inline void cu_copy_group(void)
{
    cudasim::copy_group();
}

template <int N> static inline void cu_copy_wait(void)
{
    cudasim::copy_wait(N);
}

static inline void cu_copy_wait_all(void)
{
    cudasim::copy_wait_all();
}

#endif
