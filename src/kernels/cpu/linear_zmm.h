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

/* v shifted so that bit `from` of each byte comes to bit `to`. */
Z_INLINE __m512i z_move_bit(__m512i v, const int from, const int to)
{
    return from <= to ? _mm512_slli_epi32(v, (unsigned)(to - from))
                      : _mm512_srli_epi32(v, (unsigned)(from - to));
}

/* Code vectors j and 4 + j (j = 0..3) of the group at c: k = 4j + b and k = 16 + 4j + b. */
Z_INLINE void codes_pair(const enum lin_kind kind, const uint8_t *c, const int j, __m512i *lo,
                         __m512i *hi)
{
    const enum lin_code code = lin_code(kind);
    __m512i a, b;
    if (code == LIN_CODE_8) {
        *lo = _mm512_load_si512(c + 64 * j);
        *hi = _mm512_load_si512(c + 256 + 64 * j);
        return;
    }
    if (code == LIN_CODE_2 || code == LIN_CODE_3) {
        const __m512i pair = _mm512_set1_epi8(3);
        a = _mm512_and_si512(z_move_bit(_mm512_load_si512(c), 2 * j, 0), pair);
        b = _mm512_and_si512(z_move_bit(_mm512_load_si512(c + 64), 2 * j, 0), pair);
        if (code == LIN_CODE_3) {
            __m512i h = _mm512_load_si512(c + 128), bit = _mm512_set1_epi8(4);
            a = z_or_masked(a, z_move_bit(h, j, 2), bit);
            b = z_or_masked(b, z_move_bit(h, 4 + j, 2), bit);
        }
    } else {
        const __m512i nibble = _mm512_set1_epi8(15), v = _mm512_load_si512(c + 64 * j);
        a = _mm512_and_si512(v, nibble);
        b = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
    }
    if (code == LIN_CODE_TABLE) {
        const __m512i table =
            _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)lin_table(kind)));
        a = _mm512_shuffle_epi8(table, a);
        b = _mm512_shuffle_epi8(table, b);
    }
    if (code == LIN_CODE_5) {
        __m512i h = _mm512_load_si512(c + 256), bit = _mm512_set1_epi8(16);
        a = z_or_masked(a, z_move_bit(h, j, 4), bit);
        b = z_or_masked(b, z_move_bit(h, 4 + j, 4), bit);
    }
    if (code == LIN_CODE_6) {
        const __m512i bits = _mm512_set1_epi8(48);
        a = z_or_masked(a, z_move_bit(_mm512_load_si512(c + 256), 2 * j, 4), bits);
        b = z_or_masked(b, z_move_bit(_mm512_load_si512(c + 320), 2 * j, 4), bits);
    }
    *lo = a;
    *hi = b;
}

Z_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}

Z_INLINE __m512 load_bf16(const uint8_t *p)
{
    __m512i v = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

Z_INLINE __m512 load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)));
}

Z_INLINE __m512 load_s8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)));
}

/* Of a group, 16 rows: d, and what the kind has (cpu_int.h): m; the integers s, o of each half. */
struct zscales {
    __m512 d, m, s0, s1, o0, o1;
};

Z_INLINE void load_mlx(enum dtype type, const uint8_t *b, struct zscales *s)
{
    if (type == DTYPE_BF16) {
        s->d = load_bf16(b);
        s->m = load_bf16(b + 32);
    } else if (type == DTYPE_F16) {
        s->d = load_f16(b);
        s->m = load_f16(b + 32);
    } else {
        s->d = _mm512_load_ps((const float *)(const void *)b);
        s->m = _mm512_load_ps((const float *)(const void *)(b + 64));
    }
}

/* Scales of group `sub` of the block at b. */
Z_INLINE struct zscales load_scales(const enum lin_kind kind, const struct weight *w,
                                    const uint8_t *b, int sub)
{
    const enum lin_scales form = lin_scales(kind);
    const __m512 zero = _mm512_setzero_ps();
    struct zscales s = { zero, zero, zero, zero, zero, zero };
    if (form == LIN_SCALES_MLX) {
        load_mlx(w->scale_type, b, &s);
        return s;
    }
    const uint8_t *d = form == LIN_SCALES_D || form == LIN_SCALES_BF16 ? b + 32 * sub : b;
    s.d = form == LIN_SCALES_BF16 ? load_bf16(d) : load_f16(d);
    if (lin_is_affine(kind))
        s.m = load_f16(b + 32);
    if (form == LIN_SCALES_K) {
        s.d = _mm512_mul_ps(s.d, load_u8(b + 64 + 32 * sub));
        s.m = _mm512_mul_ps(s.m, load_u8(b + 80 + 32 * sub));
    }
    if (form == LIN_SCALES_XS)
        s.d = _mm512_mul_ps(s.d, load_s8(b + 32 + 16 * sub));
    if (form == LIN_SCALES_HALVES) {
        s.s0 = load_s8(b + 32 + 32 * sub);
        s.s1 = load_s8(b + 48 + 32 * sub);
    }
    if (form == LIN_SCALES_MINS) {
        __m512i u0 = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(b + 64 + 32 * sub)));
        __m512i u1 = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(b + 80 + 32 * sub)));
        const __m512i low = _mm512_set1_epi32(15);
        s.s0 = _mm512_cvtepi32_ps(_mm512_and_si512(u0, low));
        s.s1 = _mm512_cvtepi32_ps(_mm512_and_si512(u1, low));
        s.o0 = _mm512_cvtepi32_ps(_mm512_srli_epi32(u0, 4));
        s.o1 = _mm512_cvtepi32_ps(_mm512_srli_epi32(u1, 4));
    }
    return s;
}

/* Four bytes of each lane times the lane's factor. Need: products under 256. */
Z_INLINE __m512i scale_bytes(__m512i codes, __m512 factor)
{
    __m512i f = _mm512_cvtps_epi32(factor);
    return _mm512_mullo_epi16(codes, _mm512_or_si512(f, _mm512_slli_epi32(f, 16)));
}

/* The array of struct act that undoes a bias (4: that of 32, an eighth); NULL: none. */
static inline const int32_t *neg_of(const int bias, const struct act *x)
{
    switch (bias) {
    case 8:
        return x->neg8;
    case 16:
        return x->neg16;
    case 128:
        return x->neg128;
    case 4:
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

/* am = fma(m, dx * (o0 sum0 + o1 sum1), am): the sums of x over each half, which act has times -32. Exact up to dx. */
Z_INLINE __m512 chain_mins(__m512 am, __m512 m, __m512 o0, __m512 o1, const struct act *x,
                           int64_t i)
{
    __m512 u = _mm512_mul_ps(o1, _mm512_set1_ps((float)x->neg32_1[i]));
    u = _mm512_fmadd_ps(o0, _mm512_set1_ps((float)x->neg32_0[i]), u);
    u = _mm512_mul_ps(u, _mm512_set1_ps(-0x1p-5f));
    return _mm512_fmadd_ps(m, _mm512_mul_ps(_mm512_set1_ps(x->d[i]), u), am);
}

/* One step of the chains: ad = fma(dot, d * dx, ad), am = fma(m, s, am); halves: dot = s0 dot0 + s1 dot1, exact in f32. */
Z_INLINE void chain(const enum lin_kind kind, __m512i dot, __m512i dot1, const struct zscales *s,
                    const struct act *x, int64_t i, __m512 *ad, __m512 *am)
{
    __m512 u = to_f32(dot);
    if (lin_has_halves(kind))
        u = _mm512_fmadd_ps(s->s0, u, _mm512_mul_ps(s->s1, to_f32(dot1)));
    *ad = _mm512_fmadd_ps(u, _mm512_mul_ps(s->d, _mm512_set1_ps(x->d[i])), *ad);
    if (lin_scales(kind) == LIN_SCALES_MINS)
        *am = chain_mins(*am, s->m, s->o0, s->o1, x, i);
    else if (lin_is_affine(kind))
        *am = _mm512_fmadd_ps(s->m, _mm512_set1_ps(x->s[i]), *am);
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
    const bool affine = lin_is_affine(kind), halves = lin_has_halves(kind);
    const struct act *x = job->x;
    const struct lin_block at = lin_block(kind, job->w);
    const uint8_t *base = job->w->data + (size_t)tile * job->w->tile_bytes;
    const int32_t *neg = neg_of(lin_bias(kind), x);
    const int eighth = lin_bias(kind) == 4 ? 3 : 0;
    const int64_t n = job->w->n_groups, mb = x->mb;
    int64_t i = act_index(x, t0, 0);
    __m512 ad[DIRECT_MAX], am[DIRECT_MAX];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        ad[t] = am[t] = _mm512_setzero_ps();
    for (int64_t g = 0; g < n; g++, i += mb) {
        const int sub = (int)(g & ((1 << at.shift) - 1));
        const uint8_t *b = base + (g >> at.shift) * at.bytes;
        const uint8_t *c = b + at.codes + sub * lin_code_bytes(kind);
        const int8_t *q = x->q + i * GROUP;
        __m512i dot[DIRECT_MAX], dot1[DIRECT_MAX];
#pragma GCC unroll 8
        for (int l = 0; l < lin_code_bytes(kind); l += 64)
            _mm_prefetch((const char *)c + 4096 + l, _MM_HINT_T0);
        _mm_prefetch((const char *)b + 4096 + (at.shift == 3 ? 64 * sub : 0), _MM_HINT_T0);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
            dot[t] = neg ? _mm512_set1_epi32(neg[i + t] >> eighth) : _mm512_setzero_si512();
            if (halves)
                dot1[t] =
                    neg ? _mm512_set1_epi32(x->neg32_1[i + t] >> eighth) : _mm512_setzero_si512();
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
        const struct zscales s = load_scales(kind, job->w, b, sub);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
            chain(kind, dot[t], halves ? dot1[t] : dot[t], &s, x, i + t, &ad[t], &am[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
        store_tile(job, tile, t0 + t, affine ? _mm512_add_ps(ad[t], am[t]) : ad[t]);
}

/* The bias of unpacked codes: Q3_K's become those of Q6_K. */
Z_INLINE int unpacked_bias(enum lin_kind kind)
{
    return kind == LIN_KIND_Q3_K ? 32 : lin_bias(kind);
}

/* Groups [g0, g0 + n) of a tile to scratch. kind is a constant at each call. Q2_K: each half's scale goes into its codes, the
 * integers of the minimums to s->min. */
Z_INLINE void unpack(const enum lin_kind kind, const struct weight *w, const uint8_t *base,
                     int64_t g0, int n, struct lin_scratch *s)
{
    const struct lin_block at = lin_block(kind, w);
    const __m512i more = _mm512_set1_epi8((char)(unpacked_bias(kind) - lin_bias(kind)));
    for (int k = 0; k < n; k++) {
        const int64_t g = g0 + k;
        const int sub = (int)(g & ((1 << at.shift) - 1));
        const uint8_t *b = base + (g >> at.shift) * at.bytes;
        const uint8_t *c = b + at.codes + sub * lin_code_bytes(kind);
        const struct zscales z = load_scales(kind, w, b, sub);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i lo, hi;
            codes_pair(kind, c, j, &lo, &hi);
            if (unpacked_bias(kind) != lin_bias(kind)) {
                lo = _mm512_add_epi8(lo, more);
                hi = _mm512_add_epi8(hi, more);
            }
            if (lin_scales(kind) == LIN_SCALES_MINS) {
                lo = scale_bytes(lo, z.s0);
                hi = scale_bytes(hi, z.s1);
            }
            _mm512_store_si512(&s->codes[k][64 * j], lo);
            _mm512_store_si512(&s->codes[k][256 + 64 * j], hi);
        }
        _mm512_store_ps(s->scale[k][0], z.d);
        _mm512_store_ps(s->scale[k][1], lin_is_affine(kind) ? z.m : z.s0);
        _mm512_store_ps(s->scale[k][2], z.s1);
        if (lin_scales(kind) == LIN_SCALES_MINS) {
            _mm512_store_ps(s->min[2 * k], z.o0);
            _mm512_store_ps(s->min[2 * k + 1], z.o1);
        }
    }
}

#define UNPACK_CASE(kind)                           \
    case LIN_KIND_##kind:                           \
        unpack(LIN_KIND_##kind, w, base, g0, n, s); \
        break;

Z_INLINE void unpack_any(const struct weight *w, const uint8_t *base, int64_t g0, int n,
                         struct lin_scratch *s)
{
    switch (w->kind) {
        LIN_KINDS_GROUPED(UNPACK_CASE)
    default:
        BUG_ON(true);
    }
}

#endif

#endif
