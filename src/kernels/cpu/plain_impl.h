/* plain_impl.h - products with f16, bf16 and f32 weights on v16.h; included by the vector files of linear.
 *
 * One ascending fma chain per output element (a lane is a row), x cleaned of non-finite values. A step of k loads 16 weights
 * and feeds every row of x in the block; with one row two tiles go together, so that two chains hide the fma's latency. */
#ifndef PLUMB_KERNELS_CPU_PLAIN_IMPL_H
#define PLUMB_KERNELS_CPU_PLAIN_IMPL_H

#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/v16.h"

#define PLAIN_ROWS (NV == 16 ? 8 : 4)

V_INLINE void plain_load(const enum lin_kind kind, const uint8_t *w, nv out[16 / NV])
{
#pragma GCC unroll 4
    for (int k = 0; k < 16 / NV; k++) {
        if (kind == LIN_KIND_F32)
            out[k] = nv_load((const float *)w + NV * k);
        else if (kind == LIN_KIND_F16)
            out[k] = nv_load_f16((const uint16_t *)w + NV * k);
        else
            out[k] = nv_load_bf16((const uint16_t *)w + NV * k);
    }
}

/* Rows [t0, t0 + nt) of x times nw tiles from `tile` on; kind, nt and nw are constants at each call. */
V_INLINE void plain_block(const enum lin_kind kind, const struct lin_job *j, int64_t tile,
                          const int nw, int t0, const int nt)
{
    const struct weight *w = j->w;
    int64_t in = w->shape.in;
    const uint8_t *data = w->data + (size_t)tile * w->tile_bytes;
    const size_t step = TILE * (kind == LIN_KIND_F32 ? 4 : 2);
    const float *x = j->x->f + t0 * in;
    nv acc[8][2][16 / NV];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
        for (int u = 0; u < nw; u++)
#pragma GCC unroll 4
            for (int k = 0; k < 16 / NV; k++)
                acc[t][u][k] = nv_set1(0);
    for (int64_t i = 0; i < in; i++) {
#pragma GCC unroll 2
        for (int u = 0; u < nw; u++) {
            nv v[16 / NV];
            plain_load(kind, data + (size_t)u * w->tile_bytes + (size_t)i * step, v);
#pragma GCC unroll 8
            for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
                for (int k = 0; k < 16 / NV; k++)
                    acc[t][u][k] = nv_fma(v[k], nv_set1(x[t * in + i]), acc[t][u][k]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 2
        for (int u = 0; u < nw; u++) {
            int64_t row = (tile + u) * TILE;
            float *y = j->y + (t0 + t) * j->y_stride + row;
#pragma GCC unroll 4
            for (int k = 0; k < 16 / NV; k++) {
                int64_t left = w->shape.out - row - NV * k;
                if (left > 0)
                    nv_store_n(y + NV * k, acc[t][u][k], (int)min_i64(left, NV));
            }
        }
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
    if (j->w->kind == LIN_KIND_F16)
        plain_kind(LIN_KIND_F16, j, tile0, tile1);
    else if (j->w->kind == LIN_KIND_BF16)
        plain_kind(LIN_KIND_BF16, j, tile0, tile1);
    else
        plain_kind(LIN_KIND_F32, j, tile0, tile1);
}

#endif
