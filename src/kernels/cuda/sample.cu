/* What choices need of the logits, so that they may stay where they are. */
#include "kernels/cuda/device.cuh"
#define DMATH_FN static __host__ __device__ inline
#include "tensor/shortlist.h"

#define THREADS 256

/* Greater is better: the value's order, then the lower column (params.h). */
static __device__ __forceinline__ unsigned long long rank_of(float v, int column)
{
    return (unsigned long long)shortlist_order(v) << 32 | (uint32_t)~column;
}

/* The greatest rank of a warp's, in each of its lanes. */
static __device__ __forceinline__ unsigned long long most_of_warp(unsigned long long most)
{
    for (int w = 16; w; w /= 2) {
        unsigned long long other = __shfl_xor_sync(0xFFFFFFFFu, most, w);
        most = other > most ? other : most;
    }
    return most;
}

/* A block's part of a row. */
static __global__ void __launch_bounds__(THREADS) k_best(cu_best p)
{
    __shared__ unsigned long long best[THREADS / CU_WARP];
    cu_wait_before();
    const float *x = p.x.data + (int64_t)blockIdx.y * p.x.stride;
    unsigned long long most = 0;
#pragma unroll 4
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < p.x.cols; i += CU_BEST * THREADS) {
        float v = x[i];
        unsigned long long r = isfinite(v) ? rank_of(v, i) : CU_BEST_ODD;
        most = r > most ? r : most;
    }
    most = most_of_warp(most);
    if (threadIdx.x % CU_WARP == 0)
        best[threadIdx.x / CU_WARP] = most;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < THREADS / CU_WARP; i++)
        most = best[i] > most ? best[i] : most;
    p.best[blockIdx.y * CU_BEST + blockIdx.x] = most;
}

extern "C" int cu_launch_best(const cu_best *p, cu_stream s)
{
    return cu_launch(k_best, dim3(CU_BEST, (unsigned)p->x.rows), dim3(THREADS), 0, s, *p);
}

/* --- short lists --- */

#define WARPS (THREADS / CU_WARP)
static_assert(CU_BEST == SHORTLIST_PARTS && SHORTLIST_RUN == CU_WARP,
              "a block has a part, a warp a run");

/* A thread's columns of the block's part, ascending. */
#define FOR_COLUMNS(i, p)                                                        \
    for (int i = (int)(threadIdx.x / CU_WARP * CU_BEST + blockIdx.x) * CU_WARP + \
                 (int)(threadIdx.x % CU_WARP);                                   \
         i < (p).x.cols; i += CU_BEST * THREADS)

/* The sum over the block by a tree in each warp, then the warps in order; in thread 0. space [WARPS] */
static __device__ double sum_of_block(double v, double *space)
{
    for (int w = 16; w; w /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, w);
    __syncthreads();
    if (threadIdx.x % CU_WARP == 0)
        space[threadIdx.x / CU_WARP] = v;
    __syncthreads();
    v = space[0];
    for (int i = 1; i < WARPS; i++)
        v += space[i];
    return v;
}

/* Columns of the part whose order reaches the floor. space [WARPS] */
static __device__ int count_of_block(const cu_shortlist &p, const float *x, uint32_t floor,
                                     int *space)
{
    int n = 0;
#pragma unroll 4
    FOR_COLUMNS(i, p)
    n += shortlist_order(x[i]) >= floor;
    for (int w = 16; w; w /= 2)
        n += __shfl_xor_sync(0xFFFFFFFFu, n, w);
    __syncthreads();
    if (threadIdx.x % CU_WARP == 0)
        space[threadIdx.x / CU_WARP] = n;
    __syncthreads();
    n = 0;
    for (int i = 0; i < WARPS; i++)
        n += space[i];
    return n;
}

/* A floor that SHORTLIST_KEYS of the part's columns reach at most, and three quarters of as many if equal logits allow it. `above` is over
 * the order of every column. */
static __device__ uint32_t floor_of_block(const cu_shortlist &p, const float *x, uint32_t above,
                                          int *space)
{
    uint32_t low = 0, high = above; /* too many reach low; high is a floor */
    if (count_of_block(p, x, 0, space) <= SHORTLIST_KEYS)
        return 0;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        int n = count_of_block(p, x, mid, space);
        if (n > SHORTLIST_KEYS) {
            low = mid;
            continue;
        }
        high = mid;
        if (n >= SHORTLIST_KEYS / 4 * 3)
            break;
    }
    return high;
}

/* A block's part of a row. The row is read from the first level's cache each time but the first. */
static __global__ void __launch_bounds__(THREADS) k_shortlist(cu_shortlist p)
{
    __shared__ double sums[WARPS];
    __shared__ int counts[WARPS], n_listed;
    cu_wait_before();
    cu_shortlist_row row = p.rows[blockIdx.y];
    if (row.slot < 0)
        return;
    const float *x = p.x.data + (int64_t)blockIdx.y * p.x.stride;
    struct shortlist_part *out = &p.lists[row.slot].parts[blockIdx.x];
    unsigned long long most = most_of_warp(p.best[blockIdx.y * CU_BEST + threadIdx.x % CU_BEST]);
    if (threadIdx.x == 0)
        n_listed = 0;
    if (most == CU_BEST_ODD) {
        if (threadIdx.x == 0)
            out->n = -1;
        return;
    }
    uint32_t above = (uint32_t)(most >> 32) + 1;
    float max = shortlist_logit(above - 1);
    double sum = 0, sum_t = 0;
#pragma unroll 2
    FOR_COLUMNS(i, p)
    {
        float d = x[i] - max;
        sum += (double)dmath_expf(d);
        sum_t += (double)dmath_expf(d / row.t);
    }
    sum = sum_of_block(sum, sums);
    sum_t = sum_of_block(sum_t, sums);
    uint32_t floor = floor_of_block(p, x, above, counts);
    FOR_COLUMNS(i, p)
    {
        uint32_t order = shortlist_order(x[i]);
        if (order >= floor)
            out->keys[atomicAdd(&n_listed, 1)] = shortlist_key(order, i);
    }
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    out->sum = sum;
    out->sum_t = sum_t;
    out->max = max;
    out->floor = floor;
    out->n = n_listed;
}

extern "C" int cu_launch_shortlist(const cu_shortlist *p, cu_stream s)
{
    return cu_launch(k_shortlist, dim3(CU_BEST, (unsigned)p->x.rows), dim3(THREADS), 0, s, *p);
}
