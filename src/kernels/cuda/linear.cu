/* Products of up to 16 rows by mma.sync: weights stream from memory once, each warp of a block has one segment of K.
 *
 * The contract of every product here: weights and activations bf16; K in units of 64 columns, cut into 8 segments at [i U / 8); a segment is
 * one chain of k16 steps from zero, in f32 by the tensor core; y = (0 + s0 + s1 + ... + s7) * post. */
#include "kernels/cuda/weight.cuh"

/* Tile and job of a block. */
static __device__ __forceinline__ int job_of(const cu_linear &p, int &tile)
{
    int j = 0;
    while (j + 1 < p.n_jobs) {
        int n = (p.w[j].out + CU_TILE_ROWS - 1) / CU_TILE_ROWS;
        if (tile < n)
            break;
        tile -= n;
        j++;
    }
    return j;
}

template <int NT>
static __device__ __forceinline__ void load_x(uint32_t b[NT][8], const uint16_t *x, int u,
                                              int pad_rows, int rows, int lane)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int t = n * 8 + lane / 4;
        uint4 v0 = make_uint4(0, 0, 0, 0), v1 = v0;
        if (t < rows) {
            const uint4 *at =
                (const uint4 *)(x + ((int64_t)u * pad_rows + t) * CU_UNIT + lane % 4 * 16);
            v0 = at[0], v1 = at[1];
        }
        b[n][0] = v0.x, b[n][1] = v0.y, b[n][2] = v0.z, b[n][3] = v0.w;
        b[n][4] = v1.x, b[n][5] = v1.y, b[n][6] = v1.z, b[n][7] = v1.w;
    }
}

template <int FORMAT> struct gemv_depth {
    static const int D = FORMAT == CU_FORMAT_4BIT ? 4 : 2; /* units that are loaded together */
};

template <int FORMAT, int GROUP, int NT>
static __global__ void __launch_bounds__(256) k_gemv(cu_linear p)
{
    const int D = gemv_depth<FORMAT>::D;
    __shared__ float part[CU_SEGMENTS][NT * 8][CU_TILE_ROWS + 1];
    int lane = (int)threadIdx.x % CU_WARP, seg = (int)threadIdx.x / CU_WARP;
    int tile = (int)blockIdx.x, j = job_of(p, tile);
    const cu_weight &w = p.w[j];
    int u0 = CU_SEG_FIRST(seg, w.units), u1 = CU_SEG_FIRST(seg + 1, w.units);
    int64_t base = (int64_t)tile * w.units;
    cu_piece<FORMAT, GROUP> next[D];
#pragma unroll
    for (int d = 0; d < D; d++)
        if (u0 + d < u1)
            cu_load_piece(next[d], w.codes, w.scales, base + u0 + d, lane);
    float acc[NT][4] = {};
    cu_wait_before();
    int t0 = (int)blockIdx.y * NT * 8, rows = p.rows - t0 < NT * 8 ? p.rows - t0 : NT * 8;
    const uint16_t *x = p.x + (int64_t)t0 * CU_UNIT;
    for (int u = u0; u < u1; u += D) {
        cu_piece<FORMAT, GROUP> cur[D];
#pragma unroll
        for (int d = 0; d < D; d++)
            cur[d] = next[d];
#pragma unroll
        for (int d = 0; d < D; d++)
            if (u + D + d < u1)
                cu_load_piece(next[d], w.codes, w.scales, base + u + D + d, lane);
#pragma unroll
        for (int d = 0; d < D; d++) {
            if (u + d >= u1)
                break;
            uint32_t b[NT][8];
            load_x<NT>(b, x, u + d, p.pad_rows, rows, lane);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t a[4];
                cu_fragment_of(cur[d], k, a);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    cu_mma<true>(acc[n], a, b[n][2 * k], b[n][2 * k + 1]);
            }
        }
    }
    int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            part[seg][n * 8 + 2 * q + c % 2][g + c / 2 * 8] = acc[n][c];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < NT * 8 * CU_TILE_ROWS; i += 256) {
        int t = i / CU_TILE_ROWS, r = i % CU_TILE_ROWS, row = tile * CU_TILE_ROWS + r;
        float y = 0;
        for (int s = 0; s < CU_SEGMENTS; s++)
            y += part[s][t][r];
        if (t < rows && row < w.out)
            p.y[j][(int64_t)(t0 + t) * p.stride[j] + row] = y * w.post;
    }
}

template <int FORMAT, int GROUP> static int gemv(const cu_linear *p, cu_stream s)
{
    unsigned tiles = 0;
    for (int i = 0; i < p->n_jobs; i++)
        tiles += cu_blocks(p->w[i].out, CU_TILE_ROWS);
    if (p->rows <= 8)
        return cu_launch(k_gemv<FORMAT, GROUP, 1>, dim3(tiles), dim3(256), 0, s, *p);
    return cu_launch(k_gemv<FORMAT, GROUP, 2>, dim3(tiles, cu_blocks(p->rows, 16)), dim3(256), 0, s,
                     *p);
}

extern "C" int cu_launch_linear(const cu_linear *p, cu_stream s)
{
    int group = p->w[0].group;
    switch (p->w[0].format) {
    case CU_FORMAT_4BIT:
        return group == 16   ? gemv<CU_FORMAT_4BIT, 16>(p, s)
               : group == 32 ? gemv<CU_FORMAT_4BIT, 32>(p, s)
                             : gemv<CU_FORMAT_4BIT, 64>(p, s);
    case CU_FORMAT_8BIT:
        return group == 16   ? gemv<CU_FORMAT_8BIT, 16>(p, s)
               : group == 32 ? gemv<CU_FORMAT_8BIT, 32>(p, s)
                             : gemv<CU_FORMAT_8BIT, 64>(p, s);
    default:
        return gemv<CU_FORMAT_BF16, 0>(p, s);
    }
}

/* --- the oracle: a warp per tile of 16 rows and 8 tokens, weights one by one --- */

static __global__ void k_linear_plain(cu_linear p)
{
    cu_wait_before();
    int lane = (int)threadIdx.x, g = lane / 4, q = lane % 4, t0 = (int)blockIdx.y * 8;
    const cu_weight &w = p.w[0];
    int row0 = (int)blockIdx.x * CU_TILE_ROWS;
    float y[4] = {};
    for (int s = 0; s < CU_SEGMENTS; s++) {
        float acc[4] = {};
        for (int k0 = CU_SEG_FIRST(s, w.units) * CU_UNIT;
             k0 < CU_SEG_FIRST(s + 1, w.units) * CU_UNIT; k0 += 16) {
            uint32_t a[4], b[2];
            for (int i = 0; i < 4; i++) {
                int r = row0 + g + i % 2 * 8, c = k0 + 2 * q + i / 2 * 8;
                a[i] = cu_weight_at(w, r, c) | (uint32_t)cu_weight_at(w, r, c + 1) << 16;
            }
            for (int i = 0; i < 2; i++) {
                int t = t0 + g, k = k0 + 2 * q + i * 8, unit = k / CU_UNIT;
                b[i] = t < p.rows
                           ? *(const uint32_t *)(p.x + ((int64_t)unit * p.pad_rows + t) * CU_UNIT +
                                                 cu_lane_order(k % CU_UNIT))
                           : 0;
            }
            cu_mma<true>(acc, a, b[0], b[1]);
        }
        for (int i = 0; i < 4; i++)
            y[i] += acc[i];
    }
    for (int i = 0; i < 4; i++) {
        int row = row0 + g + i / 2 * 8, t = t0 + 2 * q + i % 2;
        if (row < w.out && t < p.rows)
            p.y[0][(int64_t)t * p.stride[0] + row] = y[i] * w.post;
    }
}

extern "C" int cu_launch_linear_plain(const cu_linear *p, cu_stream s)
{
    for (int i = 0; i < p->n_jobs; i++) {
        cu_linear one = *p;
        one.n_jobs = 1;
        one.w[0] = p->w[i], one.y[0] = p->y[i], one.stride[0] = p->stride[i];
        int e = cu_launch(k_linear_plain,
                          dim3(cu_blocks(one.w[0].out, CU_TILE_ROWS), cu_blocks(p->rows, 8)),
                          dim3(CU_WARP), 0, s, one);
        if (e)
            return e;
    }
    return 0;
}

/* --- embeddings --- */

static __global__ void k_embed(cu_embed p)
{
    cu_wait_before();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y;
    if (i < p.y.cols)
        p.y.data[(int64_t)t * p.y.stride + i] =
            __uint_as_float((uint32_t)cu_weight_at(p.w, p.ids[t], i) << 16) * p.w.post;
}

extern "C" int cu_launch_embed(const cu_embed *p, cu_stream s)
{
    return cu_launch(k_embed, dim3(cu_blocks(p->y.cols, 128), (unsigned)p->y.rows), dim3(128), 0, s,
                     *p);
}
