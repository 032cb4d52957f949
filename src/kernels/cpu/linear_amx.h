/* linear_amx.h - tile instructions and int8 products, shared by linear_amx.c and linear_few_amx.c.
 *
 * The tile instructions are spelled in asm: gcc 12's intrinsics declare neither the memory that they read nor all of the
 * configuration, so stores to it may legally be moved. Nothing else touches tile registers. */
#ifndef PLUMB_KERNELS_CPU_LINEAR_AMX_H
#define PLUMB_KERNELS_CPU_LINEAR_AMX_H

/* Included by files built for it alone; elsewhere empty. The second name is clang 14's. */
#if defined(__AMX_INT8__) || defined(__AMXINT8__)

#include "kernels/cpu/linear_zmm.h"

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

/* Per call: the registers are released at its end, so that a thread that is switched out does not carry 8 KiB of tiles. */
static inline void tiles_configure(const struct tile_config *c)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*c));
}

static inline void tiles_release(void)
{
    __asm__ volatile("tilerelease");
}

/* Products start from C = DOT_ZERO, whose bits are 0x4B400000. A sum of less than 2^22 added to them stays in the float's binade,
 * and subtracting the float leaves the dot, exactly. While tile instructions are in flight, and for about 100 cycles after, port 5
 * does no 512-bit multiplication, fma or conversion (48 of them: 9.3 ns alone, 17.9 beside one tile instruction; Emerald
 * Rapids), but it adds and subtracts. */
#define DOT_ZERO 12582912.0f /* 1.5 * 2^23 */

/* A row of C before an int8 product; a stride of 0 makes every row of it. */
static const _Alignas(64) float dot_zero[TILE] = {
    DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO,
    DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO,
};

/* C = A * B: 16 rows of x, 16 of w, whose codes `tdp` takes as signed (tdpbssd) or not (tdpbsud). */
#define PRODUCT_INT8(tdp, C, A, B, x, codes)                                                    \
    __asm__ volatile("tileloadd (%0,%5,1), %%tmm" C "\n\t"                                      \
                     "tileloadd (%1,%3,1), %%tmm" A "\n\t"                                      \
                     "tileloadd (%2,%4,1), %%tmm" B "\n\t" tdp " %%tmm" B ", %%tmm" A           \
                     ", %%tmm" C ::"r"(dot_zero),                                               \
                     "r"(x), "r"(codes), "r"((int64_t)GROUP), "r"((int64_t)64), "r"((int64_t)0) \
                     : "memory")
#define TILE_STORE(C, dot) \
    __asm__ volatile("tilestored %%tmm" C ", (%0,%1,1)" ::"r"(dot), "r"((int64_t)64) : "memory")

#define STEP (TILE * GROUP) /* elements of a tile A or B */

/* Four signed bytes of each lane times minus the lane's factor, modulo 256. */
Z_INLINE __m512i scale_negated(__m512i codes, __m512 factor)
{
    __m512i f = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_cvtps_epi32(factor));
    f = _mm512_or_si512(_mm512_and_si512(f, _mm512_set1_epi32(0xFFFF)), _mm512_slli_epi32(f, 16));
    __m512i even = _mm512_mullo_epi16(codes, f);
    __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(codes, 8), f);
    return z_or_masked(_mm512_slli_epi16(odd, 8), even, _mm512_set1_epi16(255));
}

/* Codes of a group as bytes, the bias off; MLX8's unsigned. Q2_K: times the scale of the half, at most 45. Q3_K if `fold`: times minus
 * that scale, -128..124 (the other sign would not fit). kind and fold are constants at each call. */
Z_INLINE void unpack_codes(const enum lin_kind kind, const uint8_t *c, const struct zscales *z,
                           const bool fold, uint8_t *to)
{
    const __m512i bias = _mm512_set1_epi8((char)lin_bias(kind));
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i lo, hi;
        codes_pair(kind, c, j, &lo, &hi);
        if (lin_bias(kind)) {
            lo = _mm512_sub_epi8(lo, bias);
            hi = _mm512_sub_epi8(hi, bias);
        }
        if (kind == LIN_KIND_Q2_K) {
            lo = scale_bytes(lo, z->s0);
            hi = scale_bytes(hi, z->s1);
        } else if (kind == LIN_KIND_Q3_K && fold) {
            lo = scale_negated(lo, z->s0);
            hi = scale_negated(hi, z->s1);
        }
        _mm512_store_si512(to + 64 * j, lo);
        _mm512_store_si512(to + 256 + 64 * j, hi);
    }
}

/* linear_few_amx.c: more than 8 rows of x, any number of tiles. */
void linear_few_grouped(const struct lin_job *j, int64_t tile0, int64_t tile1,
                        struct lin_scratch *s);

#endif

#endif
