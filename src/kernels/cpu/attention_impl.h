/* attention_impl.h - attention's kernels on v16.h; included by attention_c.c, attention_avx2.c and attention_avx512.c, which name
 * the table. What each computes is said at struct attn_ops and, operation by operation, in kernels/ref/ref_attention.c. */
#ifndef PLUMB_KERNELS_CPU_ATTENTION_IMPL_H
#define PLUMB_KERNELS_CPU_ATTENTION_IMPL_H

#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/v16.h"

#include <string.h>

#define P KV_PAGE_TOKENS

static void attn_widen(float *y, const uint8_t *x, int64_t n, enum dtype type)
{
    const uint16_t *h = (const uint16_t *)x;
    int64_t i = 0;
    if (type == DTYPE_F32) {
        memcpy(y, x, (size_t)n * sizeof(float));
        return;
    }
    if (type == DTYPE_F16)
        for (; i + NV <= n; i += NV)
            nv_store(y + i, nv_load_f16(h + i));
    else
        for (; i + NV <= n; i += NV)
            nv_store(y + i, nv_load_bf16(h + i));
    for (; i < n; i++)
        y[i] = type == DTYPE_F16 ? f16_to_f32(h[i]) : bf16_to_f32(h[i]);
}

static void attn_narrow(uint8_t *y, const float *x, int64_t n, enum dtype type)
{
    uint16_t *h = (uint16_t *)y;
    int64_t i = 0;
    if (type == DTYPE_F32) {
        memcpy(y, x, (size_t)n * sizeof(float));
        return;
    }
    if (type == DTYPE_F16)
        for (; i + NV <= n; i += NV)
            nv_store_f16(h + i, nv_load(x + i));
    for (; i < n; i++)
        h[i] = type == DTYPE_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
}

/* Registers of a row of b that a pass covers: with ATTN_QUERIES rows of a they fill the register file. */
#if NV == 16
#define NB 4
#elif NV == 8
#define NB 2
#else
#define NB 16
#endif

/* n rows, nb registers of columns at b. n and nb are constants at each call. */
V_INLINE void product_block(float *const *c, const float *const *a, const int n, const int nb,
                            const float *b, int64_t b_stride, int k0, int k1)
{
    nv acc[ATTN_QUERIES][NB];
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 16
        for (int j = 0; j < nb; j++)
            acc[i][j] = nv_set1(0);
    for (int k = k0; k < k1; k++) {
        nv row[NB];
#pragma GCC unroll 16
        for (int j = 0; j < nb; j++)
            row[j] = nv_load(b + k * b_stride + NV * j);
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            nv x = nv_set1(a[i][k]);
#pragma GCC unroll 16
            for (int j = 0; j < nb; j++)
                acc[i][j] = nv_fma(x, row[j], acc[i][j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
#pragma GCC unroll 16
        for (int j = 0; j < nb; j++)
            nv_store(c[i] + NV * j, acc[i][j]);
}

V_INLINE void product_rows(float *const *c, const float *const *a, const int n, const float *b,
                           int64_t b_stride, int k0, int k1, int cols)
{
    float *at[ATTN_QUERIES];
    int j = 0;
    for (; j + NB * NV <= cols; j += NB * NV) {
#pragma GCC unroll 6
        for (int i = 0; i < n; i++)
            at[i] = c[i] + j;
        product_block(at, a, n, NB, b + j, b_stride, k0, k1);
    }
    for (; j + NV <= cols; j += NV) {
#pragma GCC unroll 6
        for (int i = 0; i < n; i++)
            at[i] = c[i] + j;
        product_block(at, a, n, 1, b + j, b_stride, k0, k1);
    }
    for (; j < cols; j++) {
        for (int i = 0; i < n; i++) {
            float s = 0;
            for (int k = k0; k < k1; k++)
                s = fmaf(a[i][k], b[k * b_stride + j], s);
            c[i][j] = s;
        }
    }
}

static void attn_product(float *const *c, const float *const *a, int n, const float *b,
                         int64_t b_stride, int k0, int k1, int cols)
{
    switch (n) {
    case 1:
        product_rows(c, a, 1, b, b_stride, k0, k1, cols);
        break;
    case 2:
        product_rows(c, a, 2, b, b_stride, k0, k1, cols);
        break;
    case 3:
        product_rows(c, a, 3, b, b_stride, k0, k1, cols);
        break;
    case 4:
        product_rows(c, a, 4, b, b_stride, k0, k1, cols);
        break;
    case 5:
        product_rows(c, a, 5, b, b_stride, k0, k1, cols);
        break;
    default:
        product_rows(c, a, 6, b, b_stride, k0, k1, cols);
        break;
    }
}

/* Put v outside [j0, j1): lanes of positions that are masked or not written. */
static void fill_outside(float *s, int j0, int j1, float v)
{
    for (int j = 0; j < j0; j++)
        s[j] = v;
    for (int j = j1; j < P; j++)
        s[j] = v;
}

static bool attn_weights(float *s, int j0, int j1, float scale, float softcap, float *max,
                         float *sum)
{
    nv k = nv_set1(scale), cap = nv_set1(softcap);
    fill_outside(s, j0, j1, 0);
    bool finite = true;
    for (int j = 0; j < P; j += NV) {
        nv v = nv_mul(nv_load(s + j), k);
        if (softcap > 0)
            v = nv_mul(cap, nv_tanh(nv_div(v, cap)));
        nv_finite_or_zero(v, &finite);
        nv_store(s + j, v);
    }
    if (!finite)
        return false;
    fill_outside(s, j0, j1, -INFINITY);
    nv m = nv_load(s);
    for (int j = NV; j < P; j += NV)
        m = nv_max(m, nv_load(s + j));
    float lanes[NV], mb = -INFINITY;
    nv_store(lanes, m);
    for (int j = 0; j < NV; j++)
        mb = lanes[j] > mb ? lanes[j] : mb;
    nv lane[16 / NV];
    for (int i = 0; i < 16 / NV; i++)
        lane[i] = nv_set1(0);
    for (int j = 0; j < P; j += 16) {
        for (int i = 0; i < 16 / NV; i++) {
            nv w = nv_exp(nv_sub(nv_load(s + j + NV * i), nv_set1(mb)));
            nv_store(s + j + NV * i, w);
            lane[i] = nv_add(lane[i], w); /* a weight outside is +0: the sum is unchanged */
        }
    }
    *max = mb;
    *sum = nv_sum16(lane);
    return true;
}

static void attn_merge(float *acc, const float *part, int n, float alpha, float beta)
{
    nv a = nv_set1(alpha), b = nv_set1(beta);
    int i = 0;
    for (; i + NV <= n; i += NV)
        nv_store(acc + i, nv_fma(nv_load(part + i), b, nv_mul(nv_load(acc + i), a)));
    for (; i < n; i++)
        acc[i] = fmaf(part[i], beta, acc[i] * alpha);
}

static bool attn_finish(float *y, const float *x, int n, float s)
{
    nv k = nv_set1(s);
    bool finite = true;
    int i = 0;
    for (; i + NV <= n; i += NV) {
        nv v = nv_mul(nv_load(x + i), k);
        nv_finite_or_zero(v, &finite);
        nv_store(y + i, v);
    }
    for (; i < n; i++) {
        y[i] = x[i] * s;
        finite = finite && isfinite(y[i]);
    }
    return finite;
}

#define ATTN_TABLE(label)                                                                     \
    {                                                                                         \
        .name = label, .widen = attn_widen, .product = attn_product, .weights = attn_weights, \
        .merge = attn_merge, .finish = attn_finish, .narrow = attn_narrow                     \
    }

#endif
