/* half.h - f16, bf16 and E8M0 to and from f32 in integer arithmetic: exact widening, narrowing to nearest even.
 *
 * Same bits as F16C's instructions, NaN included (the payload's top bits are kept, and a signalling NaN turns quiet). */
#ifndef PLUMB_TENSOR_HALF_H
#define PLUMB_TENSOR_HALF_H

#include <stdint.h>
#include <string.h>

static inline float half_f32_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t half_bits_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = h >> 10 & 31, man = h & 1023;
    if (exp == 31)
        return half_f32_of_bits(sign | 0x7F800000u | man << 13 | (man ? 0x400000u : 0));
    if (exp == 0) { /* denormal: man * 2^-24, exact in f32 */
        float f = (float)man * 0x1p-24f;
        return half_f32_of_bits(sign | half_bits_of_f32(f));
    }
    return half_f32_of_bits(sign | (exp + 112) << 23 | man << 13);
}

static inline uint16_t f32_to_f16(float f)
{
    uint32_t u = half_bits_of_f32(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | (u >> 13 & 1023));
    if (u >= 0x477FF000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00u);
    if (u < 0x38800000u) { /* under 2^-14: a multiple of 2^-24, to nearest even */
        uint32_t exp = u >> 23;
        if (exp < 102) /* under 2^-25 */
            return sign;
        uint32_t man = (u & 0x7FFFFFu) | 0x800000u;
        uint32_t shift = 126 - exp; /* 14..24 */
        uint32_t q = man >> shift, rest = man & ((1u << shift) - 1), tie = 1u << (shift - 1);
        return (uint16_t)(sign | (q + (rest > tie || (rest == tie && (q & 1)))));
    }
    u += 0xFFF + (u >> 13 & 1);
    return (uint16_t)(sign | (u - 0x38000000u) >> 13);
}

static inline float bf16_to_f32(uint16_t h)
{
    return half_f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u = half_bits_of_f32(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* 2^(e - 128): half of the E8M0 scale 2^(e - 127), for values stored doubled (MXFP4). e = 0, 1 give f32 denormals. */
static inline float e8m0_half_to_f32(uint8_t e)
{
    return half_f32_of_bits(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* OCP FP8 (E4M3 has no infinity: 0x7F and 0xFF are NaN). Exact: every value is an f16, E4M3's times 2^-8. */
static inline float f8_e4m3_to_f32(uint8_t b)
{
    if ((b & 0x7F) == 0x7F)
        return half_f32_of_bits((uint32_t)(b & 0x80) << 24 | 0x7FC00000u);
    return f16_to_f32((uint16_t)((b & 0x80) << 8 | (b & 0x7F) << 7)) * 256.0f;
}

static inline float f8_e5m2_to_f32(uint8_t b)
{
    return f16_to_f32((uint16_t)(b << 8));
}

#endif
