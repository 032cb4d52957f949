/* Products of many rows by wgmma (compute capability 9.0): the contract of linear.cu, the same bits.
 *
 * A block has 128 weight rows (two warpgroups) and N tokens. Weights go from memory to registers as fragments of A and are decoded
 * there; activations come by bulk copies into a ring of shared memory that one more warp fills. For few tokens each of the 8 segments
 * is a block of its own, whose sums go to memory and are added in order by a second kernel. */
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/weight.cuh"
#include "kernels/cuda/wgmma.cuh"

#define BLOCK_TILES 8 /* 128 weight rows */
#define STAGES      6
/* Two warpgroups that compute and one more warp, or (all of the registers go to two sets of sums) one more warpgroup that hands its own
 * registers over. */
#define WIDE       128 /* tokens of the latter, at least */
#define THREADS(n) ((n) >= WIDE ? 384 : 288)
#define PER_SM(n)  ((n) >= WIDE ? 1 : 2)

/* Tokens of a block where there are more. Codes take the registers that a third set of 64 sums would have; bf16 weights, which are as many
 * bytes as the activations, are loaded for more tokens at a time (prefill of the 8B shape: 28,620 tokens a second in place of 28,190). */
template <int FORMAT> struct many {
    static const int N = FORMAT == CU_FORMAT_BF16 ? 192 : WIDE;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

struct ring {
    uint64_t full[STAGES], empty[STAGES];
};

template <int N>
static __device__ void produce(const cu_linear &p, ring *r, uint8_t *smem, int u0, int u1)
{
    const int bytes = N * CU_UNIT * 2;
    int t0 = (int)blockIdx.x * N;
    for (int u = u0, i = 0; u < u1; u++, i++) {
        int s = i % STAGES;
        if (i >= STAGES)
            cu_bar_wait(&r->empty[s], (i / STAGES - 1) & 1);
        cu_bar_expect(&r->full[s], bytes);
        cu_copy_bulk(smem + s * bytes, p.x + ((int64_t)u * p.pad_rows + t0) * CU_UNIT, bytes,
                     &r->full[s]);
    }
}

/* Where a warp's 16 rows are. */
struct place {
    int job, tile;  /* of the job */
    int64_t column; /* of the job's first row among all jobs' */
};

static __device__ place place_of(const cu_linear &p, int warp)
{
    int block = (int)blockIdx.y, j = 0;
    int64_t column = 0;
    for (; j + 1 < p.n_jobs; j++) {
        int n = (p.w[j].out + 127) / 128;
        if (block < n)
            break;
        block -= n;
        column += (int64_t)n * 128;
    }
    return { j, block * BLOCK_TILES + warp, column };
}

template <int N, bool IS_SPLIT>
static __device__ void store(const cu_linear &p, const place &at, const float *c, int64_t columns,
                             int lane)
{
    const cu_weight &w = p.w[at.job];
    int t0 = (int)blockIdx.x * N + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        int t = t0 + i / 4 * 8 + i % 2, row = at.tile * CU_TILE_ROWS + lane / 4 + i % 4 / 2 * 8;
        if (t >= p.rows || row >= w.out)
            continue;
        if (IS_SPLIT)
            p.partial[((int64_t)blockIdx.z * p.rows + t) * columns + at.column + row] = c[i];
        else
            p.y[at.job][(int64_t)t * p.stride[at.job] + row] = c[i] * w.post;
    }
}

#if HAS_WGMMA
/* Units of weights that a lane has under way: in registers of their own each, since moving a piece waits for its load, and memory takes
 * longer than a unit's products. */
template <int FORMAT, int GROUP, int TOKENS> struct ahead {
    static const int MOST = FORMAT == CU_FORMAT_4BIT ? 4 : 3;
    static const int FEW = TOKENS == 32 && GROUP > 16 ? MOST - 1 : 1;
    static const int N = TOKENS == WIDE ? MOST : FEW; /* with 192 there are registers for one */
};

/* The products of a unit. Its fragments were made before, not beside those of the one before: that was tried, and the compiler gave them
 * registers that the tensor cores still read. */
template <int N>
static __device__ __forceinline__ void multiply(float acc[N / 2], uint32_t a[4][4], const void *x,
                                                int keep)
{
    uint64_t b = cu_wgmma_operand(x);
#pragma unroll
    for (int k = 0; k < N / 2; k++)
        cu_wgmma_hold(acc[k]);
    cu_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        cu_wgmma<N>::run(acc, a[k], b + 2 * k, keep || k > 0);
    cu_wgmma_wait();
#pragma unroll
    for (int k = 0; k < N / 2; k++)
        cu_wgmma_hold(acc[k]);
}

template <int FORMAT, int GROUP, int N, bool IS_SPLIT>
static __device__ void consume(const cu_linear &p, ring *r, const uint8_t *smem, int s0, int s1,
                               int64_t columns)
{
    const int AHEAD = ahead<FORMAT, GROUP, N>::N;
    int lane = (int)threadIdx.x % CU_WARP, warp = (int)threadIdx.x / CU_WARP;
    place at = place_of(p, warp);
    const cu_weight &w = p.w[at.job];
    int tiles = (w.out + CU_TILE_ROWS - 1) / CU_TILE_ROWS;
    int64_t base = (int64_t)(at.tile < tiles ? at.tile : tiles - 1) * w.units;
    int u = CU_SEG_FIRST(s0, w.units), end = CU_SEG_FIRST(s1, w.units);
    cu_piece<FORMAT, GROUP> next[AHEAD];
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
        if (u + d < end)
            cu_load_piece(next[d], w.codes, w.scales, base + u + d, lane);
    cu_wait_before();
    float acc[N / 2], sums[IS_SPLIT ? 1 : N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = sums[IS_SPLIT ? 0 : i] = 0;
    int stage = 0, parity = 0, keep = 0, seg = s0, stop = u;
    while (stop == u && seg < s1) /* empty segments are zero */
        stop = CU_SEG_FIRST(++seg, w.units);
    for (; u < end; u += AHEAD) {
#pragma unroll
        for (int d = 0; d < AHEAD; d++) {
            if (u + d >= end)
                break;
            uint32_t a[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                cu_fragment_of(next[d], k, a[k]);
            if (u + d + AHEAD < end)
                cu_load_piece(next[d], w.codes, w.scales, base + u + d + AHEAD, lane);
            cu_bar_wait(&r->full[stage], parity);
            multiply<N>(acc, a, smem + stage * (N * CU_UNIT * 2), keep);
            if (threadIdx.x % 128 == 0)
                cu_bar_arrive(&r->empty[stage]);
            keep = 1;
            stage++;
            if (stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
            if (!IS_SPLIT && u + d + 1 == stop) {
#pragma unroll
                for (int k = 0; k < N / 2; k++)
                    sums[IS_SPLIT ? 0 : k] += acc[k];
                keep = 0;
                while (stop == u + d + 1 && seg < s1)
                    stop = CU_SEG_FIRST(++seg, w.units);
            }
        }
    }
    if (at.tile < tiles)
        store<N, IS_SPLIT>(p, at, IS_SPLIT ? acc : sums, columns,
                           lane); /* a segment alone is added to 0 later */
}
#endif

template <int FORMAT, int GROUP, int N, bool IS_SPLIT>
static __global__ void __launch_bounds__(THREADS(N), PER_SM(N))
    k_wgmma(cu_linear p, int64_t columns)
{
#if HAS_WGMMA
    CU_SHARED_ARRAY(uint8_t, smem, 1024);
    __shared__ ring r;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            cu_bar_init(&r.full[i], 1);
            cu_bar_init(&r.empty[i], 2);
        }
        cu_bar_made();
    }
    __syncthreads();
    int s0 = IS_SPLIT ? (int)blockIdx.z : 0, s1 = IS_SPLIT ? s0 + 1 : CU_SEGMENTS;
    if (threadIdx.x < 256) {
        if (N >= WIDE)
            cu_registers_more<240>();
        consume<FORMAT, GROUP, N, IS_SPLIT>(p, &r, smem, s0, s1, columns);
    } else {
        if (N >= WIDE)
            cu_registers_fewer<24>();
        cu_wait_before();
        if (threadIdx.x == 256)
            produce<N>(p, &r, smem, CU_SEG_FIRST(s0, p.w[0].units), CU_SEG_FIRST(s1, p.w[0].units));
    }
#endif
}

/* y = (0 + s0 + ... + s7) * post. */
static __global__ void k_add_segments(cu_linear p, int64_t columns)
{
    cu_wait_before();
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int t = (int)blockIdx.y, j = 0;
    for (; j + 1 < p.n_jobs; j++) {
        int64_t n = (p.w[j].out + 127) / 128 * 128;
        if (c < n)
            break;
        c -= n;
    }
    if (c >= p.w[j].out)
        return;
    const float *at =
        p.partial + (int64_t)t * columns + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    float y = 0;
#pragma unroll
    for (int s = 0; s < CU_SEGMENTS; s++)
        y += at[(int64_t)s * p.rows * columns];
    p.y[j][(int64_t)t * p.stride[j] + c] = y * p.w[j].post;
}

template <int FORMAT, int GROUP, int N, bool IS_SPLIT>
static int start(const cu_linear *p, int64_t columns, cu_stream s)
{
    return cu_launch_big(
        k_wgmma<FORMAT, GROUP, N, IS_SPLIT>,
        dim3(cu_blocks(p->rows, N), (unsigned)(columns / 128), IS_SPLIT ? CU_SEGMENTS : 1),
        dim3(THREADS(N)), STAGES * N * CU_UNIT * 2, s, *p, columns);
}

template <int FORMAT, int GROUP> static int launch(const cu_linear *p, cu_stream s)
{
    int64_t columns = 0;
    for (int j = 0; j < p->n_jobs; j++)
        columns += (p->w[j].out + 127) / 128 * 128;
    if (p->rows > WIDE)
        return start<FORMAT, GROUP, many<FORMAT>::N, false>(p, columns, s);
    if (p->rows > CU_SPLIT_ROWS)
        return start<FORMAT, GROUP, WIDE, false>(p, columns, s);
    if (!p->partial)
        return p->rows > 32 ? start<FORMAT, GROUP, 64, false>(p, columns, s)
                            : start<FORMAT, GROUP, 32, false>(p, columns, s);
    int e = p->rows > 32 ? start<FORMAT, GROUP, 64, true>(p, columns, s)
                         : start<FORMAT, GROUP, 32, true>(p, columns, s);
    if (e)
        return e;
    return cu_launch(k_add_segments, dim3((unsigned)(columns / 128), (unsigned)p->rows), dim3(128),
                     0, s, *p, columns);
}

extern "C" int cu_launch_linear_wgmma(const cu_linear *p, cu_stream s)
{
    int group = p->w[0].group;
    switch (p->w[0].format) {
    case CU_FORMAT_4BIT:
        return group == 16   ? launch<CU_FORMAT_4BIT, 16>(p, s)
               : group == 32 ? launch<CU_FORMAT_4BIT, 32>(p, s)
                             : launch<CU_FORMAT_4BIT, 64>(p, s);
    case CU_FORMAT_8BIT:
        return group == 16   ? launch<CU_FORMAT_8BIT, 16>(p, s)
               : group == 32 ? launch<CU_FORMAT_8BIT, 32>(p, s)
                             : launch<CU_FORMAT_8BIT, 64>(p, s);
    default:
        return launch<CU_FORMAT_BF16, 0>(p, s);
    }
}
