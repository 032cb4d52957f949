/* linear_zmm.h - 512-bit unpacking and VNNI products, shared by linear_avx512.c and linear_amx.c.
 *
 * One register holds 16 rows x 4 elements of k, a lane is a row, so there is no sum across lanes at all. Two paths:
 * - direct (up to 8 rows of x): codes are unpacked in registers and used by every row of x; bound by reading the weights;
 * - through scratch (more rows): LIN_CHUNK groups are unpacked once to bytes, then blocks of 8 rows of x pass over them; the
 *   accumulators of all rows are kept in memory between chunks, which changes no bit.
 * vpdpbusd with a broadcast memory operand is spelled in asm: gcc 12 never folds the broadcast (measured: 30 -> 57 GB/s). */
#ifndef PLUMB_KERNELS_CPU_LINEAR_ZMM_H
#define PLUMB_KERNELS_CPU_LINEAR_ZMM_H

#if defined(__AVX512F__) /* included by files built for it alone; elsewhere empty */

#include "kernels/cpu/linear_scratch.h"

#include <immintrin.h>
#include <string.h>

#define Z_INLINE static inline __attribute__((always_inline))

/* acc += dot of 4 unsigned bytes of w with the 4 signed bytes at x, per lane. */
Z_INLINE void dp(__m512i *acc, __m512i w, const int8_t *x)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(w), "m"(*(const int8_t(*)[4])x));
}

Z_INLINE __m512i z_or_masked(__m512i a, __m512i b, __m512i mask) /* a | (b & mask) */
{
    return _mm512_ternarylogic_epi32(a, b, mask, 0xF8);
}

/* Code vectors j and 4 + j (j = 0..3) of the group at c: k = 4j + b and k = 16 + 4j + b. */
Z_INLINE void codes_pair(const enum lin_kind kind, const uint8_t *c, const int j, __m512i *lo,
                         __m512i *hi)
{
    __m512i v = _mm512_load_si512(c + 64 * j);
    if (kind == LIN_KIND_Q8_0) {
        *lo = v;
        *hi = _mm512_load_si512(c + 256 + 64 * j);
        return;
    }
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i a = _mm512_and_si512(v, nibble);
    __m512i b = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
    if (kind == LIN_KIND_Q5_0 || kind == LIN_KIND_Q5_1 || kind == LIN_KIND_Q5_K) {
        __m512i h = _mm512_load_si512(c + 256), bit = _mm512_set1_epi8(16);
        a = z_or_masked(a, _mm512_slli_epi32(h, (unsigned)(4 - j)), bit);
        b = z_or_masked(b, j ? _mm512_srli_epi32(h, (unsigned)j) : h, bit);
    }
    if (kind == LIN_KIND_Q6_K) {
        __m512i h0 = _mm512_load_si512(c + 256), h1 = _mm512_load_si512(c + 320);
        const __m512i bits = _mm512_set1_epi8(48);
        if (j < 2) {
            h0 = _mm512_slli_epi32(h0, (unsigned)(4 - 2 * j));
            h1 = _mm512_slli_epi32(h1, (unsigned)(4 - 2 * j));
        } else if (j == 3) {
            h0 = _mm512_srli_epi32(h0, 2);
            h1 = _mm512_srli_epi32(h1, 2);
        }
        a = z_or_masked(a, h0, bits);
        b = z_or_masked(b, h1, bits);
    }
    *lo = a;
    *hi = b;
}

Z_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}

Z_INLINE __m512 load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)));
}

Z_INLINE __m512 load_s8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)));
}

/* Scales of group `sub` of the block at b: d, and m (affine) or s0, s1 (Q6_K). */
Z_INLINE void load_scales(const enum lin_kind kind, const uint8_t *b, int sub, __m512 *d, __m512 *x,
                          __m512 *y)
{
    *d = load_f16(lin_log2_groups(kind) == 1 ? b + 32 * sub : b);
    if (lin_is_affine(kind))
        *x = load_f16(b + 32);
    if (kind == LIN_KIND_Q4_K || kind == LIN_KIND_Q5_K) {
        *d = _mm512_mul_ps(*d, load_u8(b + 64 + 32 * sub));
        *x = _mm512_mul_ps(*x, load_u8(b + 80 + 32 * sub));
    }
    if (kind == LIN_KIND_Q6_K) {
        *x = load_s8(b + 32 + 32 * sub);
        *y = load_s8(b + 48 + 32 * sub);
    }
}

/* The array of struct act that undoes the kind's bias; NULL: none. */
static inline const int32_t *neg_of(const enum lin_kind kind, const struct act *x)
{
    switch (lin_bias(kind)) {
    case 8:
        return x->neg8;
    case 16:
        return x->neg16;
    case 128:
        return x->neg128;
    case 32:
        return x->neg32_0;
    default:
        return NULL;
    }
}

Z_INLINE __m512 to_f32(__m512i v)
{
    return _mm512_cvtepi32_ps(v);
}

/* One step of the chains: ad = fma(dot, d * dx, ad), am = fma(m, s, am); Q6_K: dot = s0 dot0 + s1 dot1, exact in f32. */
Z_INLINE void chain(const bool affine, const bool halves, __m512i dot, __m512i dot1, __m512 d,
                    __m512 m, __m512 m1, const float *dx, const float *s, __m512 *ad, __m512 *am)
{
    __m512 u = to_f32(dot);
    if (halves)
        u = _mm512_fmadd_ps(m, u, _mm512_mul_ps(m1, to_f32(dot1)));
    *ad = _mm512_fmadd_ps(u, _mm512_mul_ps(d, _mm512_set1_ps(*dx)), *ad);
    if (affine)
        *am = _mm512_fmadd_ps(m, _mm512_set1_ps(*s), *am);
}

Z_INLINE void store_tile(const struct lin_job *j, int64_t tile, int64_t t, __m512 y)
{
    int64_t left = j->w->shape.out - tile * TILE;
    float *at = j->y + t * j->y_stride + tile * TILE;
    if (left >= TILE)
        _mm512_storeu_ps(at, y);
    else
        _mm512_mask_storeu_ps(at, (__mmask16)((1u << left) - 1), y);
}

#define DIRECT_MAX 8

/* Rows [t0, t0 + nt) of x, all in one block of it; kind and nt are constants at each call. */
Z_INLINE void direct(const enum lin_kind kind, const int nt, const struct lin_job *job, int t0,
                     int64_t tile)
{
    const bool affine = lin_is_affine(kind), halves = kind == LIN_KIND_Q6_K;
    const struct act *x = job->x;
    const int shift = lin_log2_groups(kind);
    const uint8_t *base = job->w->data + (size_t)tile * job->w->tile_bytes;
    const int32_t *neg = neg_of(kind, x);
    const int64_t n = job->w->n_groups, mb = x->mb;
    int64_t i = act_index(x, t0, 0);
    __m512 ad[DIRECT_MAX], am[DIRECT_MAX];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        ad[t] = am[t] = _mm512_setzero_ps();
    for (int64_t g = 0; g < n; g++, i += mb) {
        const int sub = (int)(g & ((1 << shift) - 1));
        const uint8_t *b = base + (g >> shift) * lin_block_bytes(kind);
        const uint8_t *c = b + lin_code_offset(kind) + sub * lin_code_bytes(kind);
        const int8_t *q = x->q + i * GROUP;
        __m512i dot[DIRECT_MAX], dot1[DIRECT_MAX];
#pragma GCC unroll 8
        for (int l = 0; l < lin_code_bytes(kind); l += 64)
            _mm_prefetch((const char *)c + 4096 + l, _MM_HINT_T0);
        _mm_prefetch((const char *)b + 4096 + (shift == 3 ? 64 * sub : 0), _MM_HINT_T0);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            dot[t] = neg ? _mm512_set1_epi32(neg[i + t]) : _mm512_setzero_si512();
            if (halves)
                dot1[t] = _mm512_set1_epi32(x->neg32_1[i + t]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i lo, hi;
            codes_pair(kind, c, j, &lo, &hi);
#pragma GCC unroll 8
            for (int t = 0; t < nt; t++)
                dp(&dot[t], lo, q + t * GROUP + 4 * j);
#pragma GCC unroll 8
            for (int t = 0; t < nt; t++)
                dp(halves ? &dot1[t] : &dot[t], hi, q + t * GROUP + 16 + 4 * j);
        }
        __m512 d, m = _mm512_setzero_ps(), m1 = m;
        load_scales(kind, b, sub, &d, &m, &m1);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            chain(affine, halves, dot[t], halves ? dot1[t] : dot[t], d, m, m1, &x->d[i + t],
                  &x->s[i + t], &ad[t], &am[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        store_tile(job, tile, t0 + t, affine ? _mm512_add_ps(ad[t], am[t]) : ad[t]);
}

/* Groups [g0, g0 + n) of a tile to scratch. kind is a constant at each call. */
Z_INLINE void unpack(const enum lin_kind kind, const uint8_t *base, int64_t g0, int n,
                     struct lin_scratch *s)
{
    const int shift = lin_log2_groups(kind);
    for (int k = 0; k < n; k++) {
        const int64_t g = g0 + k;
        const int sub = (int)(g & ((1 << shift) - 1));
        const uint8_t *b = base + (g >> shift) * lin_block_bytes(kind);
        const uint8_t *c = b + lin_code_offset(kind) + sub * lin_code_bytes(kind);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i lo, hi;
            codes_pair(kind, c, j, &lo, &hi);
            _mm512_store_si512(&s->codes[k][64 * j], lo);
            _mm512_store_si512(&s->codes[k][256 + 64 * j], hi);
        }
        __m512 d, m = _mm512_setzero_ps(), m1 = m;
        load_scales(kind, b, sub, &d, &m, &m1);
        _mm512_store_ps(s->scale[k][0], d);
        _mm512_store_ps(s->scale[k][1], m);
        _mm512_store_ps(s->scale[k][2], m1);
    }
}

#define UNPACK_CASE(kind)                        \
    case LIN_KIND_##kind:                        \
        unpack(LIN_KIND_##kind, base, g0, n, s); \
        break

Z_INLINE void unpack_any(enum lin_kind kind, const uint8_t *base, int64_t g0, int n,
                         struct lin_scratch *s)
{
    switch (kind) {
        UNPACK_CASE(Q4_0);
        UNPACK_CASE(Q4_1);
        UNPACK_CASE(Q5_0);
        UNPACK_CASE(Q5_1);
        UNPACK_CASE(Q8_0);
        UNPACK_CASE(Q4_K);
        UNPACK_CASE(Q5_K);
        UNPACK_CASE(Q6_K);
    default:
        BUG_ON(true);
    }
}

#endif

#endif
