/* v16.h - sixteen f32 lanes, written once for every instruction set: plain C, AVX2 (two registers), AVX-512 (one),
 * NEON (four).
 *
 * The including file's flags choose. Kernels written on it run the same operations per lane everywhere, and the same ones as
 * the scalar functions of tensor/fmath.h and kernels/ref, so their bits agree. Only static functions: no code of one instruction
 * set can be linked into another's file. */
#ifndef PLUMB_KERNELS_CPU_V16_H
#define PLUMB_KERNELS_CPU_V16_H

#include "tensor/fmath.h"
#include "tensor/half.h"

#include <stdbool.h>

#define V_INLINE static inline __attribute__((always_inline))

/* --- the native register: NV lanes --- */

#if defined(__AVX512F__)

#include <immintrin.h>
#define NV 16
typedef __m512 nv;

V_INLINE nv nv_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void nv_store(float *p, nv a)
{
    _mm512_storeu_ps(p, a);
}
V_INLINE nv nv_load_n(const float *p, int n) /* lanes from n on are 0; n >= 0 */
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << (n > 16 ? 16 : n)) - 1), p);
}
V_INLINE void nv_store_n(float *p, nv a, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n > 16 ? 16 : n)) - 1), a);
}
V_INLINE nv nv_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
V_INLINE void nv_store_f16(uint16_t *p, nv a)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
V_INLINE nv nv_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
/* fp8 is the upper byte of an f16; E4M3, with its exponent in E5M2's place, 2^-8 of itself. */
V_INLINE nv nv_load_e5m2(const uint8_t *p)
{
    __m256i v = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    return _mm512_cvtph_ps(_mm256_slli_epi16(v, 8));
}
V_INLINE nv nv_load_e4m3(const uint8_t *p)
{
    __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); /* the sign twice */
    v = _mm256_and_si256(_mm256_slli_epi16(v, 7), _mm256_set1_epi16((short)0xBFFF));
    return _mm512_mul_ps(_mm512_cvtph_ps(v), _mm512_set1_ps(256.0f));
}
V_INLINE nv nv_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
V_INLINE void nv_load_u4(const uint8_t *p, nv *lo, nv *hi) /* nibbles of NV bytes */
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    *lo = _mm512_cvtepi32_ps(_mm512_and_si512(b, _mm512_set1_epi32(15)));
    *hi = _mm512_cvtepi32_ps(_mm512_srli_epi32(b, 4));
}
V_INLINE void nv_store_u8(uint8_t *p, nv a) /* lanes in 0..255, to nearest even */
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
V_INLINE nv nv_set1(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE nv nv_add(nv a, nv b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE nv nv_sub(nv a, nv b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE nv nv_mul(nv a, nv b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE nv nv_div(nv a, nv b)
{
    return _mm512_div_ps(a, b);
}
V_INLINE nv nv_fma(nv a, nv b, nv c)
{
    return _mm512_fmadd_ps(a, b, c);
}
V_INLINE nv nv_max(nv a, nv b) /* a > b ? a : b */
{
    return _mm512_max_ps(a, b);
}
V_INLINE nv nv_min(nv a, nv b) /* a < b ? a : b */
{
    return _mm512_min_ps(a, b);
}
V_INLINE nv nv_abs(nv a)
{
    return _mm512_abs_ps(a);
}
V_INLINE nv nv_neg(nv a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
V_INLINE nv nv_copysign(nv mag, nv sign)
{
    nv m = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(m, mag), _mm512_and_ps(m, sign));
}
V_INLINE nv nv_select_lt(nv a, nv b, nv x, nv y) /* a < b ? x : y */
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
V_INLINE nv nv_finite_or_zero(nv a, bool *finite)
{
    __mmask16 ok = _mm512_cmp_ps_mask(_mm512_abs_ps(a), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    *finite = *finite && ok == 0xFFFF;
    return _mm512_maskz_mov_ps(ok, a);
}
V_INLINE nv nv_scale2(nv x,
                      nv n) /* x * 2^n, rounded once: what fmath_scale2 does in two products */
{
    return _mm512_scalef_ps(x, n);
}

#elif defined(__AVX2__)

#include <immintrin.h>
#define NV 8
typedef __m256 nv;

V_INLINE nv nv_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
V_INLINE void nv_store(float *p, nv a)
{
    _mm256_storeu_ps(p, a);
}
V_INLINE __m256i nv_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
V_INLINE nv nv_load_n(const float *p, int n)
{
    return _mm256_maskload_ps(p, nv_mask(n));
}
V_INLINE void nv_store_n(float *p, nv a, int n)
{
    _mm256_maskstore_ps(p, nv_mask(n), a);
}
V_INLINE nv nv_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
V_INLINE void nv_store_f16(uint16_t *p, nv a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE nv nv_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
V_INLINE nv nv_load_e5m2(const uint8_t *p)
{
    __m128i v = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_cvtph_ps(_mm_slli_epi16(v, 8));
}
V_INLINE nv nv_load_e4m3(const uint8_t *p)
{
    __m128i v = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
    v = _mm_and_si128(_mm_slli_epi16(v, 7), _mm_set1_epi16((short)0xBFFF));
    return _mm256_mul_ps(_mm256_cvtph_ps(v), _mm256_set1_ps(256.0f));
}
V_INLINE nv nv_load_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
V_INLINE void nv_load_u4(const uint8_t *p, nv *lo, nv *hi)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    *lo = _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15)));
    *hi = _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4));
}
V_INLINE void nv_store_u8(uint8_t *p, nv a)
{
    __m256i i = _mm256_cvtps_epi32(a);
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(w, w));
}
V_INLINE nv nv_set1(float x)
{
    return _mm256_set1_ps(x);
}
V_INLINE nv nv_add(nv a, nv b)
{
    return _mm256_add_ps(a, b);
}
V_INLINE nv nv_sub(nv a, nv b)
{
    return _mm256_sub_ps(a, b);
}
V_INLINE nv nv_mul(nv a, nv b)
{
    return _mm256_mul_ps(a, b);
}
V_INLINE nv nv_div(nv a, nv b)
{
    return _mm256_div_ps(a, b);
}
V_INLINE nv nv_fma(nv a, nv b, nv c)
{
    return _mm256_fmadd_ps(a, b, c);
}
V_INLINE nv nv_max(nv a, nv b)
{
    return _mm256_max_ps(a, b);
}
V_INLINE nv nv_min(nv a, nv b)
{
    return _mm256_min_ps(a, b);
}
V_INLINE nv nv_abs(nv a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
V_INLINE nv nv_neg(nv a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
V_INLINE nv nv_copysign(nv mag, nv sign)
{
    nv m = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(m, mag), _mm256_and_ps(m, sign));
}
V_INLINE nv nv_select_lt(nv a, nv b, nv x, nv y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
V_INLINE nv nv_finite_or_zero(nv a, bool *finite)
{
    nv ok = _mm256_cmp_ps(nv_abs(a), _mm256_set1_ps(INFINITY), _CMP_LT_OQ);
    *finite = *finite && _mm256_movemask_ps(ok) == 0xFF;
    return _mm256_and_ps(ok, a);
}
V_INLINE nv nv_scale2(nv x, nv n)
{
    __m256i i = _mm256_cvtps_epi32(n), a = _mm256_srai_epi32(i, 1), b = _mm256_sub_epi32(i, a);
    __m256i bias = _mm256_set1_epi32(127);
    nv pa = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a, bias), 23));
    nv pb = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(b, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, pa), pb);
}

#elif defined(__ARM_FEATURE_DOTPROD)

#include "kernels/cpu/v16_neon.h"

#else

#define NV 1
typedef float nv;

V_INLINE nv nv_load(const float *p)
{
    return *p;
}
V_INLINE void nv_store(float *p, nv a)
{
    *p = a;
}
V_INLINE nv nv_load_n(const float *p, int n)
{
    return n > 0 ? *p : 0;
}
V_INLINE void nv_store_n(float *p, nv a, int n)
{
    if (n > 0)
        *p = a;
}
V_INLINE nv nv_load_f16(const uint16_t *p)
{
    return f16_to_f32(*p);
}
V_INLINE void nv_store_f16(uint16_t *p, nv a)
{
    *p = f32_to_f16(a);
}
V_INLINE nv nv_load_bf16(const uint16_t *p)
{
    return bf16_to_f32(*p);
}
V_INLINE nv nv_load_e5m2(const uint8_t *p)
{
    return f8_e5m2_to_f32(*p);
}
V_INLINE nv nv_load_e4m3(const uint8_t *p)
{
    return f8_e4m3_to_f32(*p);
}
V_INLINE nv nv_load_u8(const uint8_t *p)
{
    return (float)*p;
}
V_INLINE void nv_load_u4(const uint8_t *p, nv *lo, nv *hi)
{
    *lo = (float)(*p & 15);
    *hi = (float)(*p >> 4);
}
V_INLINE void nv_store_u8(uint8_t *p, nv a)
{
    *p = (uint8_t)((a + FMATH_RINT) - FMATH_RINT);
}
V_INLINE nv nv_set1(float x)
{
    return x;
}
V_INLINE nv nv_add(nv a, nv b)
{
    return a + b;
}
V_INLINE nv nv_sub(nv a, nv b)
{
    return a - b;
}
V_INLINE nv nv_mul(nv a, nv b)
{
    return a * b;
}
V_INLINE nv nv_div(nv a, nv b)
{
    return a / b;
}
V_INLINE nv nv_fma(nv a, nv b, nv c)
{
    return fmaf(a, b, c);
}
V_INLINE nv nv_max(nv a, nv b)
{
    return a > b ? a : b;
}
V_INLINE nv nv_min(nv a, nv b)
{
    return a < b ? a : b;
}
V_INLINE nv nv_abs(nv a)
{
    return fabsf(a);
}
V_INLINE nv nv_neg(nv a)
{
    return -a;
}
V_INLINE nv nv_copysign(nv mag, nv sign)
{
    return copysignf(mag, sign);
}
V_INLINE nv nv_select_lt(nv a, nv b, nv x, nv y)
{
    return a < b ? x : y;
}
V_INLINE nv nv_finite_or_zero(nv a, bool *finite)
{
    bool ok = isfinite(a);
    *finite = *finite && ok;
    return ok ? a : 0;
}
V_INLINE nv nv_scale2(nv x, nv n)
{
    return fmath_scale2(x, n == n ? (int32_t)n : 0);
}

#endif

/* --- functions of a register, as tensor/fmath.h --- */

V_INLINE nv nv_exp(nv x)
{
    x = nv_max(nv_set1(FMATH_EXP_MIN), x); /* a NaN passes: the second operand is returned */
    x = nv_min(nv_set1(FMATH_EXP_MAX), x);
    nv magic = nv_set1(FMATH_RINT);
    nv n = nv_sub(nv_fma(x, nv_set1(FMATH_LOG2E), magic), magic);
    nv r = nv_fma(n, nv_set1(-FMATH_LN2_HI), x);
    r = nv_fma(n, nv_set1(-FMATH_LN2_LO), r);
    nv p = nv_fma(nv_set1(FMATH_EXP_P4), r, nv_set1(FMATH_EXP_P3));
    p = nv_fma(p, r, nv_set1(FMATH_EXP_P2));
    p = nv_fma(p, r, nv_set1(FMATH_EXP_P1));
    p = nv_fma(p, r, nv_set1(FMATH_EXP_P0));
    p = nv_fma(p, nv_mul(r, r), r);
    return nv_scale2(nv_add(nv_set1(1.0f), p), n);
}

V_INLINE nv nv_tanh(nv x)
{
    nv a = nv_abs(x), one = nv_set1(1.0f), z = nv_mul(a, a);
    nv p = nv_fma(nv_set1(FMATH_TANH_P4), z, nv_set1(FMATH_TANH_P3));
    p = nv_fma(p, z, nv_set1(FMATH_TANH_P2));
    p = nv_fma(p, z, nv_set1(FMATH_TANH_P1));
    p = nv_fma(p, z, nv_set1(FMATH_TANH_P0));
    nv low = nv_fma(nv_mul(a, z), p, a);
    nv e = nv_exp(nv_add(a, a));
    nv high = nv_sub(one, nv_div(nv_set1(2.0f), nv_add(e, one)));
    return nv_copysign(nv_select_lt(a, nv_set1(FMATH_TANH_SPLIT), low, high), x);
}

V_INLINE nv nv_erf(nv x)
{
    nv a = nv_abs(x), z = nv_mul(a, a), m = nv_min(nv_set1(FMATH_ERF_MAX), a); /* a NaN passes */
    nv p = nv_fma(nv_set1(FMATH_ERF_P6), z, nv_set1(FMATH_ERF_P5));
    p = nv_fma(p, z, nv_set1(FMATH_ERF_P4));
    p = nv_fma(p, z, nv_set1(FMATH_ERF_P3));
    p = nv_fma(p, z, nv_set1(FMATH_ERF_P2));
    p = nv_fma(p, z, nv_set1(FMATH_ERF_P1));
    p = nv_fma(p, z, nv_set1(FMATH_ERF_P0));
    nv low = nv_fma(a, p, a);
    nv q = nv_fma(nv_set1(FMATH_ERF_Q8), m, nv_set1(FMATH_ERF_Q7));
    q = nv_fma(q, m, nv_set1(FMATH_ERF_Q6));
    q = nv_fma(q, m, nv_set1(FMATH_ERF_Q5));
    q = nv_fma(q, m, nv_set1(FMATH_ERF_Q4));
    q = nv_fma(q, m, nv_set1(FMATH_ERF_Q3));
    q = nv_fma(q, m, nv_set1(FMATH_ERF_Q2));
    q = nv_fma(q, m, nv_set1(FMATH_ERF_Q1));
    q = nv_fma(q, m, nv_set1(FMATH_ERF_Q0));
    nv high = nv_sub(nv_set1(1.0f), nv_exp(nv_neg(q)));
    return nv_copysign(nv_select_lt(a, nv_set1(FMATH_ERF_SPLIT), low, high), x);
}

V_INLINE nv nv_silu(nv g)
{
    return nv_div(g, nv_add(nv_set1(1.0f), nv_exp(nv_neg(g))));
}

V_INLINE nv nv_sigmoid(nv g)
{
    nv one = nv_set1(1.0f);
    return nv_div(one, nv_add(one, nv_exp(nv_neg(g))));
}

V_INLINE nv nv_gelu_tanh(nv g)
{
    nv g3 = nv_mul(nv_mul(g, g), g);
    nv t = nv_tanh(nv_mul(nv_set1(FMATH_GELU_C), nv_fma(nv_set1(FMATH_GELU_K), g3, g)));
    return nv_mul(nv_mul(nv_set1(0.5f), g), nv_add(nv_set1(1.0f), t));
}

V_INLINE nv nv_gelu_erf(nv g)
{
    nv t = nv_erf(nv_mul(nv_set1(FMATH_SQRT_HALF), g));
    return nv_mul(nv_mul(nv_set1(0.5f), g), nv_add(nv_set1(1.0f), t));
}

V_INLINE nv nv_swiglu_clamped(nv g, nv u)
{
    nv limit = nv_set1(FMATH_SWIGLU_LIMIT);
    g = nv_min(limit, g); /* a NaN passes, as in nv_exp */
    u = nv_max(nv_neg(limit), nv_min(limit, u));
    nv s = nv_mul(g, nv_sigmoid(nv_mul(nv_set1(FMATH_SWIGLU_SLOPE), g)));
    return nv_mul(s, nv_add(u, nv_set1(1.0f)));
}

V_INLINE float nv_first(nv a)
{
#if NV == 16
    return _mm512_cvtss_f32(a);
#elif NV == 8
    return _mm256_cvtss_f32(a);
#elif NV == 4
    return vgetq_lane_f32(a, 0);
#else
    return a;
#endif
}

/* Largest lane of numbers that are not NaN. */
V_INLINE float nv_hmax(nv a)
{
#if NV == 16
    return _mm512_reduce_max_ps(a);
#elif NV == 8
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
#elif NV == 4
    return vmaxvq_f32(a);
#else
    return a;
#endif
}

/* Sum of 16 lanes: l + (l + 8), then 4, 2, 1. lane[i] holds lanes [NV * i, NV * (i + 1)). */
V_INLINE float nv_sum16(const nv lane[16 / NV])
{
#if NV == 1
    float s[16];
    for (int i = 0; i < 16; i++)
        s[i] = lane[i];
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++)
            s[i] += s[i + w];
    return s[0];
#elif NV == 4
    nv a = nv_add(nv_add(lane[0], lane[2]), nv_add(lane[1], lane[3]));
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
#else
#if NV == 16
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(lane[0]), _mm512_extractf32x8_ps(lane[0], 1));
#else
    __m256 a = _mm256_add_ps(lane[0], lane[1]);
#endif
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_shuffle_ps(b, b, 1));
    return _mm_cvtss_f32(b);
#endif
}

#endif
