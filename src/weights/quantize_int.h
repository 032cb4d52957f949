/* quantize_int.h - what the quantisers share with each other. */
#ifndef PLUMB_WEIGHTS_QUANTIZE_INT_H
#define PLUMB_WEIGHTS_QUANTIZE_INT_H

#include "tensor/half.h"
#include "weights/quantize.h"

/* To the nearest integer, ties to even. Need: |v| < 2^22. The sum's low bits hold it, so loops over this become vector code. */
static inline int32_t quantize_nearest(float v)
{
    return (int32_t)(half_bits_of_f32(v + 0x1.8p+23f) - half_bits_of_f32(0x1.8p+23f));
}

static inline int32_t quantize_clamp(int32_t q, int32_t min, int32_t max)
{
    return q < min ? min : q > max ? max : q;
}

/* One block of 256 (quantize_k.c). */
void quantize_q4_k(const float *x, uint8_t *out);
void quantize_q5_k(const float *x, uint8_t *out);
void quantize_q6_k(const float *x, uint8_t *out);

#endif
