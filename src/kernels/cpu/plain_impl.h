/* plain_impl.h - products with f16, bf16, f32 and fp8 weights on v16.h; included by the vector files of linear.
 *
 * One ascending fma chain per output element (a lane is a row), x cleaned of non-finite values. A step of k loads 16 weights
 * and feeds every row of x in the block; with one row two tiles go together, so that two chains hide the fma's latency.
 * fp8: a chain for each part of the columns that has one scale, and one of those times their scales. */
#ifndef PLUMB_KERNELS_CPU_PLAIN_IMPL_H
#define PLUMB_KERNELS_CPU_PLAIN_IMPL_H

#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/v16.h"

#define PLAIN_ROWS (NV == 16 ? 8 : 4)

V_INLINE bool plain_is_f8(const enum lin_kind kind)
{
    return kind == LIN_KIND_F8_E4M3 || kind == LIN_KIND_F8_E5M2;
}

/* Bytes of an element. */
V_INLINE size_t plain_size(const enum lin_kind kind)
{
    return plain_is_f8(kind) ? 1 : kind == LIN_KIND_F32 ? 4 : 2;
}

V_INLINE void plain_load(const enum lin_kind kind, const uint8_t *w, nv out[16 / NV])
{
#pragma GCC unroll 4
    for (int k = 0; k < 16 / NV; k++) {
        if (kind == LIN_KIND_F32)
            out[k] = nv_load((const float *)w + NV * k);
        else if (kind == LIN_KIND_F16)
            out[k] = nv_load_f16((const uint16_t *)w + NV * k);
        else if (kind == LIN_KIND_BF16)
            out[k] = nv_load_bf16((const uint16_t *)w + NV * k);
        else if (kind == LIN_KIND_F8_E5M2)
            out[k] = nv_load_e5m2(w + NV * k);
        else
            out[k] = nv_load_e4m3(w + NV * k);
    }
}

/* acc = the chains of columns [c0, c1) of nw tiles whose elements begin at `codes`, for rows of x from x on. */
V_INLINE void plain_chain(const enum lin_kind kind, const struct weight *w, const uint8_t *codes,
                          const int nw, const float *x, const int nt, int64_t c0, int64_t c1,
                          nv acc[8][2][16 / NV])
{
    const size_t step = TILE * plain_size(kind);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
        for (int u = 0; u < nw; u++)
#pragma GCC unroll 4
            for (int k = 0; k < 16 / NV; k++)
                acc[t][u][k] = nv_set1(0);
    for (int64_t i = c0; i < c1; i++) {
#pragma GCC unroll 2
        for (int u = 0; u < nw; u++) {
            nv v[16 / NV];
            plain_load(kind, codes + (size_t)u * w->tile_bytes + (size_t)i * step, v);
#pragma GCC unroll 8
            for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
                for (int k = 0; k < 16 / NV; k++)
                    acc[t][u][k] = nv_fma(v[k], nv_set1(x[t * w->shape.in + i]), acc[t][u][k]);
        }
    }
}

V_INLINE void plain_store(const struct lin_job *j, int64_t tile, const int nw, int t0, const int nt,
                          nv acc[8][2][16 / NV])
{
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
        for (int u = 0; u < nw; u++) {
            int64_t row = (tile + u) * TILE;
            float *y = j->y + (t0 + t) * j->y_stride + row;
#pragma GCC unroll 4
            for (int k = 0; k < 16 / NV; k++) {
                int64_t left = j->w->shape.out - row - NV * k;
                if (left > 0)
                    nv_store_n(y + NV * k, acc[t][u][k], (int)min_i64(left, NV));
            }
        }
}

/* Rows [t0, t0 + nt) of x times nw tiles from `tile` on; kind, nt and nw are constants at each call. */
V_INLINE void plain_block(const enum lin_kind kind, const struct lin_job *j, int64_t tile,
                          const int nw, int t0, const int nt)
{
    const struct weight *w = j->w;
    const uint8_t *data = w->data + (size_t)tile * w->tile_bytes;
    const float *x = j->x->f + t0 * w->shape.in;
    nv acc[8][2][16 / NV], y[8][2][16 / NV];
    if (!plain_is_f8(kind)) {
        plain_chain(kind, w, data, nw, x, nt, 0, w->shape.in, acc);
        plain_store(j, tile, nw, t0, nt, acc);
        return;
    }
    const uint8_t *codes = data + cpu_f8_scale_bytes(w);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
        for (int u = 0; u < nw; u++)
#pragma GCC unroll 4
            for (int k = 0; k < 16 / NV; k++)
                y[t][u][k] = nv_set1(0);
    for (int64_t c = 0, c0 = 0; c0 < w->shape.in; c++, c0 += w->scale_cols) {
        plain_chain(kind, w, codes, nw, x, nt, c0, min_i64(c0 + w->scale_cols, w->shape.in), acc);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
            for (int u = 0; u < nw; u++)
#pragma GCC unroll 4
                for (int k = 0; k < 16 / NV; k++) {
                    const uint8_t *at = data + (size_t)u * w->tile_bytes + c * TILE * 4;
                    nv scale = nv_load((const float *)(const void *)at + NV * k);
                    y[t][u][k] = nv_fma(scale, acc[t][u][k], y[t][u][k]);
                }
    }
    plain_store(j, tile, nw, t0, nt, y);
}

V_INLINE void plain_kind(const enum lin_kind kind, const struct lin_job *j, int64_t tile0,
                         int64_t tile1)
{
    int t = 0;
    for (; t + PLAIN_ROWS <= j->n_rows; t += PLAIN_ROWS)
        for (int64_t tile = tile0; tile < tile1; tile++)
            plain_block(kind, j, tile, 1, t, PLAIN_ROWS);
    for (; t < j->n_rows; t++) {
        int64_t tile = tile0;
        for (; tile + 2 <= tile1; tile += 2)
            plain_block(kind, j, tile, 2, t, 1);
        if (tile < tile1)
            plain_block(kind, j, tile, 1, t, 1);
    }
}

static void plain(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    switch (j->w->kind) {
    case LIN_KIND_F16:
        plain_kind(LIN_KIND_F16, j, tile0, tile1);
        break;
    case LIN_KIND_BF16:
        plain_kind(LIN_KIND_BF16, j, tile0, tile1);
        break;
    case LIN_KIND_F8_E4M3:
        plain_kind(LIN_KIND_F8_E4M3, j, tile0, tile1);
        break;
    case LIN_KIND_F8_E5M2:
        plain_kind(LIN_KIND_F8_E5M2, j, tile0, tile1);
        break;
    default:
        plain_kind(LIN_KIND_F32, j, tile0, tile1);
    }
}

#endif
