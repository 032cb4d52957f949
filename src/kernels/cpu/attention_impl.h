/* attention_impl.h - attention's kernels on v16.h; included by the attention_*.c of each instruction set, which name the
 * table. What each computes is said at struct attn_ops and, operation by operation, in kernels/ref/ref_attention.c. */
#ifndef PLUMB_KERNELS_CPU_ATTENTION_IMPL_H
#define PLUMB_KERNELS_CPU_ATTENTION_IMPL_H

#include "kernels/cpu/attention_product.h"
#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/v16.h"

#include <string.h>

#define P KV_PAGE_TOKENS

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

/* --- quantised caches --- */

/* x [KVQ_GROUP]: extremes. False: a value is not finite. */
V_INLINE bool group_range(const float *x, float *lo, float *hi)
{
    nv l = nv_set1(INFINITY), h = nv_set1(-INFINITY), zero = nv_set1(0), odd = zero;
    bool finite = true;
    for (int i = 0; i < KVQ_GROUP; i += NV) {
        nv v = nv_load(x + i);
        odd = nv_fma(v, zero, odd); /* NaN from the first value that is not finite */
        l = nv_min(l, v);
        h = nv_max(h, v);
    }
    nv_finite_or_zero(odd, &finite);
    *lo = -nv_hmax(nv_neg(l));
    *hi = nv_hmax(h);
    return finite;
}

/* out->codes from scale and bias. x [KVQ_GROUP] */
V_INLINE void group_codes(struct kvq_group *out, const float *x, int top)
{
    nv b = nv_set1(f16_to_f32(out->bias)), inv = nv_set1(1.0f / f16_to_f32(out->scale));
    nv most = nv_set1((float)top), zero = nv_set1(0);
    for (int i = 0; i < KVQ_GROUP; i += NV) {
        nv v = nv_mul(nv_sub(nv_load(x + i), b), inv);
        nv_store_u8(out->codes + i, nv_min(nv_max(v, zero), most));
    }
}

static bool attn_quantise(struct kvq_group *out, const float *x, const uint16_t *base, int n,
                          int top)
{
    float whole[KVQ_GROUP], near[KVQ_GROUP], lo, hi, near_lo, near_hi;
    uint16_t whole_base[KVQ_GROUP];
    if (n < KVQ_GROUP) { /* repeat an element: minimum and maximum stay */
        for (int i = 0; i < KVQ_GROUP; i++) {
            whole[i] = x[i < n ? i : 0];
            whole_base[i] = base ? base[i < n ? i : 0] : 0;
        }
        x = whole;
        base = base ? whole_base : NULL;
    }
    bool ok = group_range(x, &lo, &hi);
    out->is_relative = false;
    if (ok && base) {
        for (int i = 0; i < KVQ_GROUP; i += NV)
            nv_store(near + i, nv_sub(nv_load(x + i), nv_load_f16(base + i)));
        out->is_relative = group_range(near, &near_lo, &near_hi) && near_hi - near_lo < hi - lo;
    }
    if (out->is_relative) {
        x = near;
        lo = near_lo;
        hi = near_hi;
    }
    if (!ok || !kvq_line(lo, hi, top, &out->scale, &out->bias)) {
        memset(out, 0, sizeof(*out));
        return false;
    }
    if (out->scale == 0)
        memset(out->codes, 0, sizeof(out->codes));
    else
        group_codes(out, x, top);
    return true;
}

/* Positions that a pass over a group's rows of K covers: their scales and biases stay in registers. */
#if NV == 1
#define KVQ_REGS 16
#else
#define KVQ_REGS 4
#endif

/* n f16 numbers to f32. */
V_INLINE void widen_f16(float *y, const uint16_t *x, int n)
{
    int i = 0;
    for (; i + NV <= n; i += NV)
        nv_store(y + i, nv_load_f16(x + i));
    for (; i < n; i++)
        y[i] = f16_to_f32(x[i]);
}

/* What a pass over a group's rows of K needs of its positions. */
struct kvq_lanes {
    nv s[KVQ_REGS], b[KVQ_REGS], u[KVQ_REGS];
};

/* One row: dimension with the given base, KVQ_REGS registers of positions. Without a relative position the base adds a zero to
 * numbers that are never -0: left out. */
V_INLINE void unpack_key(float *y, const nv *codes, const struct kvq_lanes *l, float base,
                         const bool is_relative)
{
#pragma GCC unroll 16
    for (int k = 0; k < KVQ_REGS; k++) {
        nv x = nv_fma(codes[k], l->s[k], l->b[k]);
        nv_store(y + NV * k, is_relative ? nv_fma(l->u[k], nv_set1(base), x) : x);
    }
}

/* Rows of a group of n dimensions at KVQ_REGS registers of positions. */
V_INLINE void unpack_keys(float *y, const uint8_t *codes, const float *base, int n, enum dtype type,
                          const struct kvq_lanes *l, const bool is_relative)
{
    nv c[KVQ_REGS], h[KVQ_REGS];
    int half = (n + 1) / 2;
    if (type == DTYPE_KV_Q8) {
        for (int i = 0; i < n; i++) {
#pragma GCC unroll 16
            for (int k = 0; k < KVQ_REGS; k++)
                c[k] = nv_load_u8(codes + i * P + NV * k);
            unpack_key(y + i * P, c, l, base[i], is_relative);
        }
        return;
    }
    for (int i = 0; i < half; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < KVQ_REGS; k++)
            nv_load_u4(codes + i * P + NV * k, &c[k], &h[k]);
        unpack_key(y + i * P, c, l, base[i], is_relative);
        if (half + i < n)
            unpack_key(y + (half + i) * P, h, l, base[half + i], is_relative);
    }
}

static void attn_unpack_k(float *y, const struct kvq_part *part, int head_dim, enum dtype type)
{
    float use[P], base[KVQ_GROUP];
    for (int g = 0; g < kvq_groups(head_dim); g++) {
        const uint8_t *codes = part->codes + kvq_code_bytes(type, g * KVQ_GROUP) * P;
        const uint64_t relative = part->relative[g];
        int n = kvq_group_len(head_dim, g);
        widen_f16(base, part->base + g * KVQ_GROUP, n);
        for (int j = 0; relative && j < P; j++)
            use[j] = (float)(relative >> j & 1);
        for (int j = 0; j < P; j += KVQ_REGS * NV) {
            struct kvq_lanes l;
            float *to = y + g * KVQ_GROUP * P + j;
#pragma GCC unroll 16
            for (int k = 0; k < KVQ_REGS; k++) {
                l.s[k] = nv_load_f16(part->scales + g * P + j + NV * k);
                l.b[k] = nv_load_f16(part->biases + g * P + j + NV * k);
                l.u[k] = relative ? nv_load(use + j + NV * k) : nv_set1(0);
            }
            if (relative)
                unpack_keys(to, codes + j, base, n, type, &l, true);
            else
                unpack_keys(to, codes + j, base, n, type, &l, false);
        }
    }
}

/* One group of one position of V. */
V_INLINE void unpack_group(float *y, const uint8_t *codes, int n, enum dtype type, float scale,
                           float bias)
{
    nv s = nv_set1(scale), b = nv_set1(bias);
    int half = (n + 1) / 2, i = 0;
    if (type == DTYPE_KV_Q8) {
        for (; i + NV <= n; i += NV)
            nv_store(y + i, nv_fma(nv_load_u8(codes + i), s, b));
        for (; i < n; i++)
            y[i] = fmaf((float)codes[i], scale, bias);
        return;
    }
    for (; i + NV <= n - half; i += NV) {
        nv l, h;
        nv_load_u4(codes + i, &l, &h);
        nv_store(y + i, nv_fma(l, s, b));
        nv_store(y + half + i, nv_fma(h, s, b));
    }
    for (; i < half; i++) {
        y[i] = fmaf((float)(codes[i] & 15), scale, bias);
        if (half + i < n)
            y[half + i] = fmaf((float)(codes[i] >> 4), scale, bias);
    }
}

static void attn_unpack_v(float *y, const struct kvq_part *part, int head_dim, enum dtype type)
{
    float s[P], b[P];
    for (int g = 0; g < kvq_groups(head_dim); g++) {
        int d = g * KVQ_GROUP, n = kvq_group_len(head_dim, g);
        const uint8_t *codes = part->codes + kvq_code_bytes(type, d);
        float *to = y + d;
        widen_f16(s, part->scales + g * P, P);
        widen_f16(b, part->biases + g * P, P);
        if (n == KVQ_GROUP && type == DTYPE_KV_Q8)
            for (int j = 0; j < P; j++)
                unpack_group(to + j * head_dim, codes + j * part->row, KVQ_GROUP, DTYPE_KV_Q8, s[j],
                             b[j]);
        else if (n == KVQ_GROUP)
            for (int j = 0; j < P; j++)
                unpack_group(to + j * head_dim, codes + j * part->row, KVQ_GROUP, DTYPE_KV_Q4, s[j],
                             b[j]);
        else
            for (int j = 0; j < P; j++)
                unpack_group(to + j * head_dim, codes + j * part->row, n, type, s[j], b[j]);
    }
}

/* v where the position is in [j0, j1), else other: lanes of positions that are masked or not written. */
V_INLINE nv keep_inside(nv v, nv at, int j0, int j1, float other)
{
    nv o = nv_set1(other);
    v = nv_select_lt(at, nv_set1((float)j1), v, o);
    return nv_select_lt(at, nv_set1((float)j0), o, v);
}

/* exp of less rounds to zero (exp(-104) is 0.485 of the least denormal). It is not computed: a result that underflows costs a
 * hundred cycles and more, and positions that are masked have one each (a third of the time of a prefill's weights). */
#define WEIGHT_ZERO (-104.0f)

V_INLINE bool weights_row(float *s, int j0, int j1, nv k, float softcap, float *max, float *sum)
{
    static const float lanes[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    nv cap = nv_set1(softcap), zero = nv_set1(0), odd = zero;
    nv m = nv_set1(-INFINITY), v[P / NV], lane[16 / NV];
    const bool whole = j0 == 0 && j1 == P;
#pragma GCC unroll 16
    for (int i = 0; i < P / NV; i++) {
        nv at = nv_add(nv_load(lanes + i * NV % 16), nv_set1((float)(i * NV / 16 * 16)));
        v[i] = nv_mul(nv_load(s + i * NV), k);
        if (softcap > 0)
            v[i] = nv_mul(cap, nv_tanh(nv_div(v[i], cap)));
        if (!whole)
            v[i] = keep_inside(v[i], at, j0, j1, 0);
        odd = nv_fma(v[i], zero, odd); /* NaN from the first value that is not finite */
        if (!whole)
            v[i] = keep_inside(v[i], at, j0, j1, -INFINITY);
        m = nv_max(m, v[i]);
    }
    bool finite = true;
    nv_finite_or_zero(odd, &finite);
    *max = nv_hmax(m);
#pragma GCC unroll 16
    for (int i = 0; i < P / NV; i++) {
        nv d = nv_sub(v[i], nv_set1(*max)), least = nv_set1(WEIGHT_ZERO);
        nv w = nv_select_lt(d, least, zero, nv_exp(nv_select_lt(d, least, zero, d)));
        nv_store(s + i * NV, w); /* outside: +0, the sum is unchanged */
        lane[i % (16 / NV)] = i < 16 / NV ? w : nv_add(lane[i % (16 / NV)], w);
    }
    *sum = nv_sum16(lane);
    return finite;
}

static void attn_weights(float *w, int n, const int *j0, const int *j1, float scale, float softcap,
                         float *max, float *sum, bool *bad)
{
    nv k = nv_set1(scale);
    for (int i = 0; i < n; i++, w += P) {
        bool ok;
        if (softcap > 0)
            ok = weights_row(w, j0[i], j1[i], k, softcap, &max[i], &sum[i]);
        else if (j0[i] == 0 && j1[i] == P)
            ok = weights_row(w, 0, P, k, 0, &max[i], &sum[i]);
        else
            ok = weights_row(w, j0[i], j1[i], k, 0, &max[i], &sum[i]);
        bad[i] = bad[i] || !ok;
    }
}

static void attn_factors(float *m, float *l, const float *mb, const float *lb, int n, float *alpha,
                         float *beta)
{
    for (int i = 0; i < n; i += NV) {
        nv a = nv_load_n(m + i, n - i), b = nv_load_n(mb + i, n - i), top = nv_max(a, b);
        nv_store_n(m + i, top, n - i);
        a = nv_exp(nv_sub(a, top));
        b = nv_exp(nv_sub(b, top));
        nv_store_n(alpha + i, a, n - i);
        nv_store_n(beta + i, b, n - i);
        nv sum = nv_mul(nv_load_n(l + i, n - i), a);
        nv_store_n(l + i, nv_fma(nv_load_n(lb + i, n - i), b, sum), n - i);
    }
}

static void attn_merge(float *acc, float *m, float *l, const float *part, int n, float mb, float lb)
{
    float top = *m > mb ? *m : mb;
    nv a = nv_exp(nv_set1(*m - top)), b = nv_exp(nv_set1(mb - top));
    float alpha = nv_first(a), beta = nv_first(b);
    int i = 0;
    *m = top;
    *l = fmaf(lb, beta, *l * alpha);
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

#define ATTN_TABLE(label)                                                                         \
    {                                                                                             \
        .name = label, .product = attn_product, .weights = attn_weights, .factors = attn_factors, \
        .merge = attn_merge, .finish = attn_finish, .narrow = attn_narrow,                        \
        .quantise = attn_quantise, .unpack_k = attn_unpack_k, .unpack_v = attn_unpack_v           \
    }

#endif
