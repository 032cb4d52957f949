/* rows_impl.h - the row-wise kernels on v16.h; included by the rows_*.c of each instruction set, which name the table.
 * What each computes is said at struct rows_ops and, operation by operation, in kernels/ref. */
#ifndef PLUMB_KERNELS_CPU_ROWS_IMPL_H
#define PLUMB_KERNELS_CPU_ROWS_IMPL_H

#include "base/dmath.h"
#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/v16.h"

#include <string.h>

/* Rounding of 32 activations: kernels/ref/ref_linear.c, quantise_group. */
#if NV == 1

static bool quantise_group(const float *x, int8_t *q, uint16_t *bf16, float *d, int32_t sum[2])
{
    uint32_t max_bits = 0;
    for (int i = 0; i < GROUP; i++) {
        uint32_t u = half_bits_of_f32(x[i]) & 0x7FFFFFFFu;
        max_bits = u > max_bits ? u : max_bits;
    }
    float max = half_f32_of_bits(max_bits);
    bool finite = max_bits < 0x7F800000u, zero = !finite || max < 0x1p-120f;
    float inv = zero ? 0 : 127.0f / max;
    *d = zero ? 0 : max / 127.0f;
    sum[0] = sum[1] = 0;
    for (int i = 0; i < GROUP; i++) {
        q[i] = zero ? 0 : (int8_t)(x[i] * inv + FMATH_RINT - FMATH_RINT);
        sum[i / 16] += q[i];
    }
    return finite;
}

#elif NV == 4

V_INLINE bool quantise_group(const float *x, int8_t *q, uint16_t *bf16, float *d, int32_t sum[2])
{
    nv v[8];
    uint32x4_t m = vdupq_n_u32(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = nv_load(x + 4 * i);
        m = vmaxq_u32(m, vreinterpretq_u32_f32(nv_abs(v[i])));
    }
    uint32_t max_bits = vmaxvq_u32(m);
    float max = half_f32_of_bits(max_bits);
    if (max_bits >= 0x7F800000u || max < 0x1p-120f) {
        memset(q, 0, GROUP);
        *d = 0;
        sum[0] = sum[1] = 0;
        return max_bits < 0x7F800000u;
    }
    nv inv = nv_set1(127.0f / max);
    *d = max / 127.0f;
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        int16x4_t w[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            w[i] = vmovn_s32(vcvtnq_s32_f32(nv_mul(v[4 * h + i], inv)));
        int16x8_t lo = vcombine_s16(w[0], w[1]), hi = vcombine_s16(w[2], w[3]);
        vst1q_s8(q + 16 * h, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
        sum[h] = vaddvq_s16(vaddq_s16(lo, hi)); /* at most 16 * 127 */
    }
    return true;
}

#else

/* Sums of bytes 0..15 and 16..31: against ones, then across. */
V_INLINE void sum_halves(__m256i q, int32_t sum[2])
{
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4E));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xB1));
    sum[0] = _mm256_extract_epi32(s, 0);
    sum[1] = _mm256_extract_epi32(s, 4);
}

V_INLINE int32_t max_lane(__m256i m)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1));
    return _mm_cvtsi128_si32(a);
}

#if NV == 16
/* Integers of up to 8 bits, as act's bf16 holds them: the upper half of their floats. */
V_INLINE void store_bf16(uint16_t *to, __m512i v)
{
    __m512i f = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_shuffle_epi32(v, 0xD8)));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(f, 16)));
}
#endif

V_INLINE bool quantise_group(const float *x, int8_t *q, uint16_t *bf16, float *d, int32_t sum[2])
{
#if NV == 16
    __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
    __m512i m = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(v0)),
                                 _mm512_castps_si512(_mm512_abs_ps(v1)));
    int32_t max_bits =
        max_lane(_mm256_max_epi32(_mm512_castsi512_si256(m), _mm512_extracti32x8_epi32(m, 1)));
#else
    nv v[4];
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        v[i] = nv_load(x + 8 * i);
        m = _mm256_max_epi32(m, _mm256_castps_si256(nv_abs(v[i])));
    }
    int32_t max_bits = max_lane(m);
#endif
    float max = half_f32_of_bits((uint32_t)max_bits);
    if (max_bits >= 0x7F800000 || max < 0x1p-120f) {
        memset(q, 0, GROUP);
        if (bf16)
            memset(bf16, 0, GROUP * sizeof(*bf16));
        *d = 0;
        sum[0] = sum[1] = 0;
        return max_bits < 0x7F800000;
    }
    nv inv = nv_set1(127.0f / max);
    *d = max / 127.0f;
#if NV == 16
    __m512i i0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, inv));
    __m512i i1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, inv));
    __m128i lo = _mm512_cvtsepi32_epi8(i0), hi = _mm512_cvtsepi32_epi8(i1);
    __m256i r = _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
    if (bf16) {
        store_bf16(bf16, i0);
        store_bf16(bf16 + 16, i1);
    }
#else
    __m256i i0 = _mm256_cvtps_epi32(nv_mul(v[0], inv)), i1 = _mm256_cvtps_epi32(nv_mul(v[1], inv));
    __m256i i2 = _mm256_cvtps_epi32(nv_mul(v[2], inv)), i3 = _mm256_cvtps_epi32(nv_mul(v[3], inv));
    __m256i r = _mm256_packs_epi16(_mm256_packs_epi32(i0, i1), _mm256_packs_epi32(i2, i3));
    r = _mm256_permutevar8x32_epi32(r, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
    _mm256_storeu_si256((__m256i *)q, r);
    sum_halves(r, sum);
    return true;
}

#endif

static bool rows_quantise(struct act *a, int64_t t, const float *x, int64_t g0, int64_t g1)
{
    bool finite = true;
    for (int64_t g = g0; g < g1; g++) {
        int64_t i = act_index(a, t, g);
        int32_t sum[2];
        finite = quantise_group(x + g * GROUP, a->q + i * GROUP,
                                a->bf16 ? a->bf16 + i * GROUP : NULL, &a->d[i], sum) &&
                 finite;
        int32_t both = sum[0] + sum[1];
        a->s[i] = a->d[i] * (float)both;
        a->neg8[i] = -8 * both;
        a->neg16[i] = -16 * both;
        a->neg128[i] = -128 * both;
        a->neg32_0[i] = -32 * sum[0];
        a->neg32_1[i] = -32 * sum[1];
    }
    return finite;
}

static bool rows_clean(float *y, const float *x, int64_t n)
{
    bool finite = true;
    int64_t i = 0;
    for (; i + NV <= n; i += NV)
        nv_store(y + i, nv_finite_or_zero(nv_load(x + i), &finite));
    if (i < n)
        nv_store_n(y + i, nv_finite_or_zero(nv_load_n(x + i, (int)(n - i)), &finite), (int)(n - i));
    return finite;
}

/* Sum of squares of n elements in 16 lanes. */
V_INLINE float rows_squares(const float *x, int n)
{
    nv lane[16 / NV];
    for (int k = 0; k < 16 / NV; k++)
        lane[k] = nv_set1(0);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int k = 0; k < 16 / NV; k++) {
            nv v = nv_load(x + i + NV * k);
            lane[k] = nv_fma(v, v, lane[k]);
        }
    }
    for (int k = 0; k < 16 / NV && i + NV * k < n; k++) {
        nv v = nv_load_n(x + i + NV * k, n - i - NV * k); /* fma(0, 0, sum) is sum */
        lane[k] = nv_fma(v, v, lane[k]);
    }
    return nv_sum16(lane);
}

static void rows_rms_norm(float *y, const float *x, const float *w, int n, float eps)
{
    int i;
    nv r = nv_set1(1.0f / sqrtf(rows_squares(x, n) / (float)n + eps));
    for (i = 0; i + NV <= n; i += NV)
        nv_store(y + i, nv_mul(nv_mul(nv_load(x + i), r), nv_load(w + i)));
    if (i < n)
        nv_store_n(y + i, nv_mul(nv_mul(nv_load_n(x + i, n - i), r), nv_load_n(w + i, n - i)),
                   n - i);
}

static void rows_layer_norm(float *y, const float *x, const float *w, const float *b, int n,
                            float eps)
{
    nv lane[16 / NV];
    int i = 0;
    for (int k = 0; k < 16 / NV; k++)
        lane[k] = nv_set1(0);
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16 / NV; k++)
            lane[k] = nv_add(lane[k], nv_load(x + i + NV * k));
    for (int k = 0; k < 16 / NV && i + NV * k < n; k++)
        lane[k] =
            nv_add(lane[k], nv_load_n(x + i + NV * k, n - i - NV * k)); /* + 0 changes no bit */
    nv mean = nv_set1(nv_sum16(lane) / (float)n);
    for (i = 0; i + NV <= n; i += NV)
        nv_store(y + i, nv_sub(nv_load(x + i), mean));
    if (i < n)
        nv_store_n(y + i, nv_sub(nv_load_n(x + i, n - i), mean), n - i);
    nv r = nv_set1(1.0f / sqrtf(rows_squares(y, n) / (float)n + eps));
    for (i = 0; i + NV <= n; i += NV)
        nv_store(y + i, nv_fma(nv_mul(nv_load(y + i), r), nv_load(w + i), nv_load(b + i)));
    if (i < n)
        nv_store_n(y + i,
                   nv_fma(nv_mul(nv_load_n(y + i, n - i), r), nv_load_n(w + i, n - i),
                          nv_load_n(b + i, n - i)),
                   n - i);
}

static void rows_l2_norm(float *y, const float *x, int n, float eps, float scale)
{
    nv r = nv_set1(scale / sqrtf(rows_squares(x, n) + eps));
    int i = 0;
    for (; i + NV <= n; i += NV)
        nv_store(y + i, nv_mul(nv_load(x + i), r));
    if (i < n)
        nv_store_n(y + i, nv_mul(nv_load_n(x + i, n - i), r), n - i);
}

static void rows_rope(float *x, const struct rope *r, const float *cs, const float *sn)
{
    int half = r->n_dims / 2, i = 0;
    if (r->kind == ROPE_KIND_NEOX) {
        for (; i + NV <= half; i += NV) {
            nv a = nv_load(x + i), b = nv_load(x + half + i), c = nv_load(cs + i),
               s = nv_load(sn + i);
            nv_store(x + i, nv_fma(a, c, nv_neg(nv_mul(b, s))));
            nv_store(x + half + i, nv_fma(a, s, nv_mul(b, c)));
        }
    }
    for (; i < half; i++) {
        int ia = r->kind == ROPE_KIND_NEOX ? i : 2 * i;
        int ib = r->kind == ROPE_KIND_NEOX ? i + half : 2 * i + 1;
        float a = x[ia], b = x[ib];
        x[ia] = fmaf(a, cs[i], -(b * sn[i]));
        x[ib] = fmaf(a, sn[i], b * cs[i]);
    }
}

/* y[i] = expression over registers a (of x) and b (of z); the tail by masked loads and stores. */
#define ROWS_MAP(n_, y_, x_, z_, expr)                                     \
    do {                                                                   \
        int64_t i_ = 0;                                                    \
        for (; i_ + NV <= (n_); i_ += NV) {                                \
            nv a = nv_load((x_) + i_), b = nv_load((z_) + i_);             \
            (void)b;                                                       \
            nv_store((y_) + i_, expr);                                     \
        }                                                                  \
        if (i_ < (n_)) {                                                   \
            int m_ = (int)((n_)-i_);                                       \
            nv a = nv_load_n((x_) + i_, m_), b = nv_load_n((z_) + i_, m_); \
            (void)b;                                                       \
            nv_store_n((y_) + i_, expr, m_);                               \
        }                                                                  \
    } while (0)

static void rows_glu(float *y, const float *g, const float *u, int64_t n, enum glu_kind kind)
{
    if (kind == GLU_KIND_SILU)
        ROWS_MAP(n, y, g, u, nv_mul(nv_silu(a), b));
    else if (kind == GLU_KIND_SIGMOID)
        ROWS_MAP(n, y, g, u, nv_mul(nv_sigmoid(a), b));
    else if (kind == GLU_KIND_SWIGLU_CLAMPED)
        ROWS_MAP(n, y, g, u, nv_swiglu_clamped(a, b));
    else if (kind == GLU_KIND_GELU_ERF)
        ROWS_MAP(n, y, g, u, nv_mul(nv_gelu_erf(a), b));
    else
        ROWS_MAP(n, y, g, u, nv_mul(nv_gelu_tanh(a), b));
}

static void rows_act(float *y, int64_t n, enum glu_kind kind)
{
    if (kind == GLU_KIND_SILU)
        ROWS_MAP(n, y, y, y, nv_silu(a));
    else if (kind == GLU_KIND_SIGMOID)
        ROWS_MAP(n, y, y, y, nv_sigmoid(a));
    else if (kind == GLU_KIND_GELU_ERF)
        ROWS_MAP(n, y, y, y, nv_gelu_erf(a));
    else
        ROWS_MAP(n, y, y, y, nv_gelu_tanh(a));
}

static void rows_add_scaled(float *y, const float *x, int64_t n, float w, bool is_first)
{
    nv k = nv_set1(w);
    if (is_first)
        ROWS_MAP(n, y, x, x, nv_fma(k, a, nv_set1(0)));
    else
        ROWS_MAP(n, y, x, y, nv_fma(k, a, b));
}

static void rows_add(float *y, const float *x, int64_t n)
{
    ROWS_MAP(n, y, y, x, nv_add(a, b));
}

static void rows_scale(float *y, int64_t n, float s)
{
    nv k = nv_set1(s);
    ROWS_MAP(n, y, y, y, nv_mul(a, k));
}

static void rows_softcap(float *y, int64_t n, float cap)
{
    nv k = nv_set1(cap);
    ROWS_MAP(n, y, y, y, nv_mul(k, nv_tanh(nv_div(a, k))));
}

/* For sampling. Plain loops: the compiler makes vector code of this file's instruction set of them. */
static void rows_exp_scaled(float *y, const float *x, int64_t n, float max, float t)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dmath_expf((x[i] - max) / t);
}

/* Ascends with the value; -0 becomes +0, for they tie. */
static inline int32_t rows_order(float x)
{
    uint32_t u = dmath_f32_bits(x + 0.0f);
    return (int32_t)(u ^ ((uint32_t)((int32_t)u >> 31) & 0x7fffffffu));
}

static int64_t rows_argmax(const float *x, int64_t n, bool *finite)
{
    enum { BLOCK = 512 };
    int64_t best = 0;
    int32_t max = INT32_MIN;
    uint32_t bad = 0;
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t end = min_i64(b + BLOCK, n);
        int32_t m = INT32_MIN;
        for (int64_t i = b; i < end; i++) {
            int32_t k = rows_order(x[i]);
            bad |= (dmath_f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
            m = k > m ? k : m;
        }
        if (m > max) {
            max = m;
            best = b;
        }
    }
    while (rows_order(x[best]) != max)
        best++;
    *finite = !bad;
    return best;
}

#define ROWS_TABLE(label)                                                                         \
    {                                                                                             \
        .name = label, .quantise = rows_quantise, .clean = rows_clean, .rms_norm = rows_rms_norm, \
        .l2_norm = rows_l2_norm, .layer_norm = rows_layer_norm, .rope = rows_rope,                \
        .glu = rows_glu, .act = rows_act, .add_scaled = rows_add_scaled, .add = rows_add,         \
        .scale = rows_scale, .softcap = rows_softcap, .exp_scaled = rows_exp_scaled,              \
        .argmax = rows_argmax                                                                     \
    }

#endif
