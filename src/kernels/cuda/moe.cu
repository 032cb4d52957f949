/* Mixtures of experts without the host: which experts a row goes to (the bits of tensor/route.c), pairs of rows and experts by expert,
 * products of an expert's matrix with its rows, their sum in the order of ids.
 *
 * Pair p is choice p % n_used of row p / n_used. A product's bits are those of linear.cu for any rows beside it, and every pair has a place of
 * its own in what is made, so that the order in which pairs of an expert stand in its list (made by atomics) is nowhere to be seen. */
#include "kernels/cuda/weight.cuh"

#define EXPERTS_MAX 1024 /* = BACKEND_EXPERTS_MAX */

/* --- choice --- */

/* Greater is better: the value's order as an integer (-0 is 0, a NaN below all), then the lower id. */
static __device__ __forceinline__ unsigned long long score_key(float v, int id)
{
    uint32_t u = __float_as_uint(v + 0.0f);
    u = v != v ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ float warp_max(float v)
{
    for (int w = 16; w; w /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, w));
    return v;
}

/* A warp to a row: lane l has the experts l, l + 32, ... Sums are one lane's, by ascending ids. */
static __global__ void __launch_bounds__(CU_WARP) k_route(cu_route p)
{
    __shared__ float score[EXPERTS_MAX];
    __shared__ int32_t chosen[CU_USED_MAX];
    __shared__ float weight[CU_USED_MAX];
    cu_wait_before();
    int lane = (int)threadIdx.x, t = (int)blockIdx.x, n = p.logits.cols, n_chosen = 0;
    const float *x = p.logits.data + (int64_t)t * p.logits.stride;
    float max = -INFINITY;
    uint32_t taken = 0; /* bit j: expert j * 32 + lane */
    for (int i = lane; i < n; i += CU_WARP) {
        max = x[i] > max ? x[i] : max;
        score[i] =
            p.kind == CU_ROUTE_SIGMOID ? fmath_sigmoid(x[i]) + (p.bias ? p.bias[i] : 0) : x[i];
    }
    max = warp_max(max);
    for (int k = 0; k < p.n_used; k++) {
        unsigned long long best = 0;
        for (int i = lane, j = 0; i < n; i += CU_WARP, j++) {
            unsigned long long key = score_key(score[i], i);
            best = !(taken >> j & 1) && key > best ? key : best;
        }
        for (int w = 16; w; w /= 2) {
            unsigned long long other = __shfl_xor_sync(0xFFFFFFFFu, best, w);
            best = other > best ? other : best;
        }
        int id = (int)~(uint32_t)best;
        if (id % CU_WARP == lane)
            taken |= 1u << id / CU_WARP;
    }
    for (int j = 0; j * CU_WARP < n; j++) {
        uint32_t mask = __ballot_sync(0xFFFFFFFFu, taken >> j & 1);
        if (taken >> j & 1)
            chosen[n_chosen + __popc(mask & ((1u << lane) - 1))] = j * CU_WARP + lane;
        n_chosen += __popc(mask);
    }
    __syncwarp();
    if (p.kind == CU_ROUTE_SOFTMAX)
        for (int i = lane; i < n; i += CU_WARP)
            score[i] = fmath_exp(x[i] - max);
    for (int k = lane; k < p.n_used; k += CU_WARP)
        weight[k] = p.kind == CU_ROUTE_SIGMOID ? fmath_sigmoid(x[chosen[k]])
                                               : fmath_exp(x[chosen[k]] - max);
    __syncwarp();
    if (lane > 0)
        return;
    float all = 0, sum = 0;
    if (p.kind == CU_ROUTE_SOFTMAX)
#pragma unroll 8
        for (int i = 0; i < n; i++)
            all += score[i];
    else
        for (int k = 0; k < p.n_used; k++)
            all += weight[k];
    for (int k = 0; k < p.n_used && p.kind != CU_ROUTE_SIGMOID; k++)
        weight[k] /= all;
    for (int k = 0; k < p.n_used && p.is_normed; k++)
        sum += weight[k];
    for (int k = 0; k < p.n_used; k++) {
        float w = (p.is_normed ? weight[k] / sum : weight[k]) * p.scale;
        p.ids[t * p.n_used + k] = chosen[k];
        p.w[t * p.n_used + k] = p.expert_scale ? w * p.expert_scale[chosen[k]] : w;
    }
}

extern "C" int cu_launch_route(const cu_route *p, cu_stream s)
{
    return cu_launch(k_route, dim3((unsigned)p->logits.rows), dim3(CU_WARP), 0, s, *p);
}

/* --- pairs by expert --- */

/* One block: counts, their sums from the left, the experts that have any, then each pair to its expert's list. */
static __global__ void __launch_bounds__(EXPERTS_MAX) k_group(cu_group p)
{
    __shared__ int sum[2][EXPERTS_MAX];
    __shared__ int count[EXPERTS_MAX];
    cu_wait_before();
    int e = (int)threadIdx.x;
    count[e] = 0;
    __syncthreads();
    for (int i = e; i < p.n_pairs; i += EXPERTS_MAX) {
        atomicAdd(&count[p.ids[i]], 1);
        p.pair_flags[i] = 0;
    }
    __syncthreads();
    /* pairs in the low half, experts that have some in the high one */
    int mine = count[e] | (count[e] > 0 ? 1 << 16 : 0), from = 0;
    sum[0][e] = mine;
    for (int step = 1; step < EXPERTS_MAX; step *= 2, from ^= 1) {
        __syncthreads();
        sum[from ^ 1][e] = sum[from][e] + (e >= step ? sum[from][e - step] : 0);
    }
    __syncthreads();
    int before = sum[from][e] - mine;
    if (count[e] > 0)
        p.active[before >> 16] = make_int4(e, before & 0xFFFF, count[e], 0);
    if (e == EXPERTS_MAX - 1)
        *p.n_active = sum[from][e] >> 16;
    count[e] = before & 0xFFFF;
    __syncthreads();
    for (int i = e; i < p.n_pairs; i += EXPERTS_MAX)
        p.list[atomicAdd(&count[p.ids[i]], 1)] = i;
}

extern "C" int cu_launch_group(const cu_group *p, cu_stream s)
{
    return cu_launch(k_group, dim3(1), dim3(EXPERTS_MAX), 0, s, *p);
}

/* --- products --- */

template <int FORMAT> struct expert_depth {
    static const int D = FORMAT == CU_FORMAT_4BIT ? 4 : 2; /* units that are loaded together */
};

/* A block has 16 rows of an expert's matrix, and in turn NT * 8 of its pairs; a warp has a segment of K. */
template <int FORMAT, int GROUP, int NT>
static __global__ void __launch_bounds__(256) k_experts(cu_experts p)
{
    const int D = expert_depth<FORMAT>::D;
    __shared__ float part[CU_SEGMENTS][NT * 8][CU_TILE_ROWS + 1];
    __shared__ int32_t pairs[NT * 8];
    cu_wait_before();
    if ((int)blockIdx.y >= *p.n_active)
        return;
    int lane = (int)threadIdx.x % CU_WARP, seg = (int)threadIdx.x / CU_WARP;
    int tiles = (p.out + CU_TILE_ROWS - 1) / CU_TILE_ROWS;
    int j = (int)blockIdx.x / tiles, tile = (int)blockIdx.x % tiles;
    int4 mine = p.active[blockIdx.y];
    cu_expert w = p.w[j][mine.x];
    int u0 = CU_SEG_FIRST(seg, p.units), u1 = CU_SEG_FIRST(seg + 1, p.units);
    int64_t base = (int64_t)tile * p.units;
    for (int first = 0; first < mine.z; first += NT * 8) {
        int rows = mine.z - first < NT * 8 ? mine.z - first : NT * 8;
        if ((int)threadIdx.x < rows)
            pairs[threadIdx.x] = p.list[mine.y + first + (int)threadIdx.x];
        __syncthreads();
        float acc[NT][4] = {};
        const uint16_t *at[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            int t = n * 8 + lane / 4;
            at[n] = t < rows ? p.x + (int64_t)(pairs[t] / p.per) * CU_UNIT + lane % 4 * 16 : NULL;
        }
        for (int u = u0; u < u1; u += D) {
            cu_piece<FORMAT, GROUP> cur[D];
#pragma unroll
            for (int d = 0; d < D; d++)
                if (u + d < u1)
                    cu_load_piece(cur[d], w.codes, w.scales, base + u + d, lane);
#pragma unroll
            for (int d = 0; d < D; d++) {
                if (u + d >= u1)
                    break;
                uint32_t b[NT][8];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    uint4 v0 = make_uint4(0, 0, 0, 0), v1 = v0;
                    if (at[n]) {
                        const uint4 *from =
                            (const uint4 *)(at[n] + (int64_t)(u + d) * p.pad_rows * CU_UNIT);
                        v0 = from[0], v1 = from[1];
                    }
                    b[n][0] = v0.x, b[n][1] = v0.y, b[n][2] = v0.z, b[n][3] = v0.w;
                    b[n][4] = v1.x, b[n][5] = v1.y, b[n][6] = v1.z, b[n][7] = v1.w;
                }
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
            if (t >= rows || row >= p.out)
                continue;
            y *= w.post;
            p.y[j][(int64_t)pairs[t] * p.out + row] =
                p.bias[j] ? y + p.bias[j][(int64_t)mine.x * p.out + row] : y;
        }
        __syncthreads(); /* before pairs and part are written again */
    }
}

template <int FORMAT, int GROUP> static int experts(const cu_experts *p, cu_stream s)
{
    dim3 grid(cu_blocks(p->out, CU_TILE_ROWS) * (unsigned)p->n_jobs, (unsigned)p->n_active_max);
    if (p->rows <= 8)
        return cu_launch(k_experts<FORMAT, GROUP, 1>, grid, dim3(256), 0, s, *p);
    if (p->rows <= 16)
        return cu_launch(k_experts<FORMAT, GROUP, 2>, grid, dim3(256), 0, s, *p);
    return cu_launch(k_experts<FORMAT, GROUP, 4>, grid, dim3(256), 0, s, *p);
}

extern "C" int cu_launch_experts(const cu_experts *p, cu_stream s)
{
    switch (p->format) {
    case CU_FORMAT_4BIT:
        return p->group == 16   ? experts<CU_FORMAT_4BIT, 16>(p, s)
               : p->group == 32 ? experts<CU_FORMAT_4BIT, 32>(p, s)
                                : experts<CU_FORMAT_4BIT, 64>(p, s);
    case CU_FORMAT_8BIT:
        return p->group == 16   ? experts<CU_FORMAT_8BIT, 16>(p, s)
               : p->group == 32 ? experts<CU_FORMAT_8BIT, 32>(p, s)
                                : experts<CU_FORMAT_8BIT, 64>(p, s);
    default:
        return experts<CU_FORMAT_BF16, 0>(p, s);
    }
}

/* --- the sum --- */

static __global__ void k_combine(cu_combine p)
{
    cu_wait_before();
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y;
    int64_t pair = (int64_t)t * p.n_used;
    if (c == 0) {
        uint32_t failed = 0;
        for (int k = 0; k < p.n_used; k++)
            failed |= p.pair_flags[pair + k];
        if (failed)
            p.flags[t] = 1;
    }
    if (c >= p.y.cols)
        return;
    float sum = 0;
    for (int k = 0; k < p.n_used; k++)
        sum = fmaf(p.w[pair + k], p.x[(pair + k) * p.y.cols + c], sum);
    p.y.data[(int64_t)t * p.y.stride + c] = sum;
}

extern "C" int cu_launch_combine(const cu_combine *p, cu_stream s)
{
    return cu_launch(k_combine, dim3(cu_blocks(p->y.cols, 256), (unsigned)p->y.rows), dim3(256), 0,
                     s, *p);
}
