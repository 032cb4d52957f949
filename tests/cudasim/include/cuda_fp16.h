/* cuda_fp16.h - halves. */
#ifndef PLUMB_CUDASIM_INCLUDE_CUDA_FP16_H
#define PLUMB_CUDASIM_INCLUDE_CUDA_FP16_H

#include <stdint.h>

#include "cudasim.h"

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half h)
{
    return cudasim::float_of_f16(h.bits);
}

static inline __half __float2half_rn(float x)
{
    return { cudasim::f16_of(x) };
}

static inline __half __ushort_as_half(uint16_t bits)
{
    return { bits };
}

static inline uint16_t __half_as_ushort(__half h)
{
    return h.bits;
}

#endif
