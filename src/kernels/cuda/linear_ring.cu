/* Products of up to 16 rows from compute capability 9.0 on: the contract of linear.cu, the same bits.
 *
 * One or two blocks of each multiprocessor walk over tiles. Each of a block's 8 warps has one segment of K and streams the tile's weights
 * there into a ring of shared memory of its own, also while warps wait for one another or for what the kernel before makes: a ring is
 * filled before that kernel has ended, so that memory is read with hardly a gap from one product to the next. A stage is two pieces: two
 * units of a tile, or a unit of each of two: of the same tile of two products that a gate joins, or of neighbours where weights are bf16,
 * which halves what activations cost (with 8 rows they are half as many bytes as such weights). These kernels are bound by instructions
 * and their latency before they are by memory, so codes have two blocks and everything of a stage is done once for both pieces. */
#include "kernels/cuda/weight.cuh"

#define THREADS (CU_SEGMENTS * CU_WARP)
#define PIECES  2

/* A stage: for each piece codes, then scales. */
template <int FORMAT, int GROUP, int NT> struct ring_shape {
    static const int PER_SM = FORMAT != CU_FORMAT_BF16 && NT == 1 ? 2 : 1;
    static const int CODES = 512 * cu_fragment<FORMAT>::WORDS;
    static const int SCALES = GROUP ? 8 * cu_groups<GROUP>::N * 4 : 0;
    static const int PIECE = CODES + SCALES;
    static const int BYTES = PIECES * PIECE;
    static const int STAGES = (PER_SM == 2 ? 7680 : 12288) / BYTES;
};

/* What a block takes at a time: TILES tiles from `tile` on, or that tile of both products. */
struct tile_at {
    int job, tile;
};

template <int FORMAT, bool HAS_GLU> struct item {
    static const int TILES = HAS_GLU || FORMAT == CU_FORMAT_BF16 ? PIECES : 1;
    static const int STEP = HAS_GLU ? 1 : TILES; /* tiles of one product */
};

static __host__ __device__ __forceinline__ int tiles_of(int out)
{
    return (out + CU_TILE_ROWS - 1) / CU_TILE_ROWS;
}

static __host__ __device__ __forceinline__ int items_of(int out, int step)
{
    return (tiles_of(out) + step - 1) / step;
}

/* The jobs' items one after the other. */
template <int STEP> static __device__ __forceinline__ tile_at locate(const cu_linear &p, int i)
{
    tile_at at = { 0, i };
#pragma unroll
    for (int j = 0; j + 1 < CU_JOBS; j++) {
        int n = items_of(p.w[j].out, STEP);
        if (at.job == j && j + 1 < p.n_jobs && at.tile >= n) {
            at.tile -= n;
            at.job = j + 1;
        }
    }
    at.tile *= STEP;
    return at;
}

/* A field of the job's weight, without an array in memory. */
#define OF_JOB(p, job, field)      \
    ((job) == 0   ? (p).w[0].field \
     : (job) == 1 ? (p).w[1].field \
     : (job) == 2 ? (p).w[2].field \
                  : (p).w[3].field)

/* What a lane copies next: 16 bytes of each word of codes of both pieces, and of the scales of one of them. */
template <int FORMAT, int GROUP, int NT, bool HAS_GLU> struct feeder {
    typedef ring_shape<FORMAT, GROUP, NT> shape;
    static const int TILES = item<FORMAT, HAS_GLU>::TILES, UNITS = PIECES / TILES;
    static const int STEP = item<FORMAT, HAS_GLU>::STEP;
    static const int SCALE_LANES = shape::SCALES / 16; /* of a piece */
    const uint8_t *codes[TILES], *scales;
    int i, left, n; /* tile; units left of the segment; units that it has */

    __device__ __forceinline__ void point(const cu_linear &p, int n_tiles, int u0, int lane)
    {
        left = i < n_tiles ? n : 0;
        if (left == 0)
            return;
        tile_at at = { 0, i };
        if (!HAS_GLU)
            at = locate<STEP>(p, i);
        int64_t unit = (int64_t)at.tile * p.w[0].units + u0;
        const uint8_t *s = (const uint8_t *)OF_JOB(p, at.job, scales);
        codes[0] = (const uint8_t *)OF_JOB(p, at.job, codes) + unit * shape::CODES + lane * 16;
        if (HAS_GLU)
            codes[TILES - 1] = (const uint8_t *)p.w[1].codes + unit * shape::CODES + lane * 16;
        else if (TILES > 1) /* the last one may stand alone */
            codes[TILES - 1] = codes[0] + (at.tile + 1 < tiles_of(OF_JOB(p, at.job, out))
                                               ? (int64_t)p.w[0].units * shape::CODES
                                               : 0);
        if (SCALE_LANES == 0)
            return;
        const int L = SCALE_LANES ? SCALE_LANES : 1;
        if (HAS_GLU && lane >= L)
            s = (const uint8_t *)p.w[1].scales;
        scales = s + unit * shape::SCALES + (HAS_GLU ? lane % L : lane) * 16;
    }

    /* codes_to, scales_to: where the lane's pieces of the stage go in shared memory. */
    __device__ __forceinline__ void feed(const cu_linear &p, int n_tiles, int u0, uint32_t codes_to,
                                         uint32_t scales_to, int lane)
    {
        if (left > 0) {
            bool is_full = UNITS == 1 || left > 1;
#pragma unroll
            for (int k = 0; k < PIECES; k++)
#pragma unroll
                for (int w = 0; w < shape::CODES / 512; w++)
                    if (k == 0 || is_full)
                        cu_copy16_of_run(codes_to + k * shape::PIECE + w * 512,
                                         codes[TILES > 1 ? k : 0] +
                                             (TILES > 1 ? 0 : k * shape::CODES) + w * 512);
#pragma unroll
            for (int t = 0; t < TILES; t++)
                codes[t] += UNITS * shape::CODES;
            if (lane < (is_full ? PIECES : 1) * SCALE_LANES)
                cu_copy16_of_run(scales_to, scales);
            scales += UNITS * shape::SCALES;
            left -= UNITS;
            if (left <= 0) {
                i += (int)gridDim.x;
                point(p, n_tiles, u0, lane);
            }
        }
        cu_copy_group(); /* an empty group too: groups are counted */
    }
};

/* What a lane has of a stage: its pieces of the weights, and of the activations those of the rows that there are (others stay as they are,
 * zero from the start). */
template <int FORMAT, int GROUP, int NT, int UNITS> struct stage_regs {
    cu_piece<FORMAT, GROUP> w[PIECES];
    uint32_t x[UNITS][NT][8];
};

/* at: where the lane's first row has them. */
template <int NT>
static __device__ __forceinline__ void load_x(uint32_t x[NT][8], const uint16_t *at,
                                              const bool is_row[NT])
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (!is_row[n])
            continue;
        const uint4 *from = (const uint4 *)(at + n * 8 * CU_UNIT);
        uint4 v0 = from[0], v1 = from[1];
        x[n][0] = v0.x, x[n][1] = v0.y, x[n][2] = v0.z, x[n][3] = v0.w;
        x[n][4] = v1.x, x[n][5] = v1.y, x[n][6] = v1.z, x[n][7] = v1.w;
    }
}

/* The sums of all segments: [segment][tile][token][row of the tile]. */
template <int NT, int TILES> struct sums {
    float s[CU_SEGMENTS][TILES][NT * 8][CU_TILE_ROWS + 1];
};

template <int NT, int TILES>
static __device__ __forceinline__ void put_sums(sums<NT, TILES> &part,
                                                const float acc[TILES][NT][4], int seg, int lane)
{
    int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                part.s[seg][t][n * 8 + 2 * q + c % 2][g + c / 2 * 8] = acc[t][n][c];
}

/* 0 + s0 + ... + s7 */
template <int NT, int TILES>
static __device__ __forceinline__ float sum_of(const sums<NT, TILES> &part, int tile, int t, int r)
{
    float y = 0;
#pragma unroll
    for (int s = 0; s < CU_SEGMENTS; s++)
        y += part.s[s][tile][t][r];
    return y;
}

template <int NT, int TILES>
static __device__ __forceinline__ void finish(const cu_linear &p, const sums<NT, TILES> &part,
                                              tile_at at)
{
    float *to = at.job == 0 ? p.y[0] : at.job == 1 ? p.y[1] : at.job == 2 ? p.y[2] : p.y[3];
    int64_t stride = at.job == 0   ? p.stride[0]
                     : at.job == 1 ? p.stride[1]
                     : at.job == 2 ? p.stride[2]
                                   : p.stride[3];
#pragma unroll
    for (int i = (int)threadIdx.x; i < TILES * NT * 8 * CU_TILE_ROWS; i += THREADS) {
        int r = i % CU_TILE_ROWS, t = i / CU_TILE_ROWS % (NT * 8), k = i / (NT * 8 * CU_TILE_ROWS);
        int row = (at.tile + k) * CU_TILE_ROWS + r;
        if (t < p.rows && row < OF_JOB(p, at.job, out))
            to[(int64_t)t * stride + row] = sum_of(part, k, t, r) * OF_JOB(p, at.job, post);
    }
}

template <int NT, int TILES>
static __device__ __forceinline__ void finish_glu(const cu_linear &p, const sums<NT, TILES> &part,
                                                  int tile)
{
    int i = (int)threadIdx.x, r = i % CU_TILE_ROWS, t = i / CU_TILE_ROWS;
    int row = tile * CU_TILE_ROWS + r;
    if (t >= NT * 8 || t >= p.rows || row >= p.w[0].out)
        return;
    float gate = sum_of(part, 0, t, r) * p.w[0].post;
    float up = sum_of(part, TILES - 1, t, r) * p.w[1].post, v = cu_glu_one(gate, up, p.glu_kind);
    p.y[0][(int64_t)t * p.stride[0] + row] = v;
    p.y[1][(int64_t)t * p.stride[1] + row] = up;
    if (p.q.out)
        cu_put_bf16(p.q, t, row, v);
}

/* A stage of the ring to registers, when its copies are there. */
template <int FORMAT, int GROUP, int NT>
static __device__ __forceinline__ void read_stage(cu_piece<FORMAT, GROUP> w[PIECES],
                                                  const uint8_t *at, int lane)
{
    typedef ring_shape<FORMAT, GROUP, NT> shape;
#pragma unroll
    for (int k = 0; k < PIECES; k++)
        cu_read_piece(w[k], at + k * shape::PIECE, at + k * shape::PIECE + shape::CODES, lane);
}

/* A warp's way through the stages of its segment, tile after tile. */
template <int FORMAT, int GROUP, int NT, bool HAS_GLU> struct walk {
    typedef ring_shape<FORMAT, GROUP, NT> shape;
    typedef feeder<FORMAT, GROUP, NT, HAS_GLU> feed_type;
    static const int STAGES = shape::STAGES, BYTES = shape::BYTES;
    static const int TILES = feed_type::TILES, UNITS = feed_type::UNITS;
    typedef stage_regs<FORMAT, GROUP, NT, UNITS> regs;

    feed_type feed;
    const uint8_t *ring;
    uint32_t to, scales_at; /* where the lane's copies go: codes, and scales from there */
    int stage, free_stage;  /* bytes from the ring's start on */
    const uint16_t *x0, *x; /* of the segment, of the stage */
    int64_t x_step;
    bool is_row[NT];

    /* Stages are filled as far as there is room. */
    __device__ __forceinline__ void begin(const cu_linear &p, int n_tiles, uint8_t *smem, int u0,
                                          int n, int lane)
    {
        const int L = shape::SCALES / 16 + !shape::SCALES;
        int seg = (int)threadIdx.x / CU_WARP;
        ring = smem + seg * (STAGES * BYTES);
        to = cu_shared_at(ring) + lane * 16;
        scales_at = lane / L * shape::PIECE + shape::CODES + lane % L * 16 - lane * 16;
        stage = 0, free_stage = (STAGES - 1) * BYTES;
        feed.i = (int)blockIdx.x;
        feed.n = n;
        feed.point(p, n_tiles, u0, lane);
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            feed.feed(p, n_tiles, u0, to + i * BYTES, to + i * BYTES + scales_at, lane);
        x_step = (int64_t)p.pad_rows * CU_UNIT;
        x0 = x = p.x + u0 * x_step + lane / 4 * CU_UNIT + lane % 4 * 16;
#pragma unroll
        for (int k = 0; k < NT; k++)
            is_row[k] = k * 8 + lane / 4 < p.rows;
    }

    /* The stage to registers, of as many units. */
    __device__ __forceinline__ void read(regs &r, int units, int lane)
    {
#pragma unroll
        for (int d = 0; d < UNITS; d++)
            if (d < units)
                load_x<NT>(r.x[d], x + d * x_step, is_row);
        cu_copy_wait<STAGES - 2>();
        __syncwarp(); /* what the others have copied is there, and all have read the stage that is free now */
        read_stage<FORMAT, GROUP, NT>(r.w, ring + stage, lane);
    }

    /* Fill a stage, read the next one to `next` and make the products of what was read before; left: units from there to the segment's end. */
    __device__ __forceinline__ void step(float acc[TILES][NT][4], const regs &now, regs &next,
                                         const cu_linear &p, int n_tiles, int u0, int n, int left,
                                         int lane)
    {
        feed.feed(p, n_tiles, u0, to + free_stage, to + free_stage + scales_at, lane);
        free_stage = stage;
        stage = stage + BYTES == STAGES * BYTES ? 0 : stage + BYTES;
        x = left > UNITS ? x + UNITS * x_step : x0;
        read(next, left > UNITS ? left - UNITS : n, lane);
#pragma unroll
        for (int k = 0; k < 4 * PIECES; k++) {
            /* Tile by tile in each step of 16 columns, or one unit after the other. */
            int piece = TILES > 1 ? k % PIECES : k / 4, j = TILES > 1 ? k / PIECES : k % 4;
            if (TILES == 1 && piece == 1 && left == 1)
                break;
            uint32_t a[4];
            cu_fragment_of(now.w[piece], j, a);
#pragma unroll
            for (int t = 0; t < NT; t++)
                cu_mma<true>(acc[TILES > 1 ? piece : 0][t], a,
                             now.x[TILES > 1 ? 0 : piece][t][2 * j],
                             now.x[TILES > 1 ? 0 : piece][t][2 * j + 1]);
        }
    }
};

template <int FORMAT, int GROUP, int NT, bool HAS_GLU>
static __global__ void __launch_bounds__(THREADS, NT == 1 ? 2 : 1)
    k_ring(const __grid_constant__ cu_linear p, int n_tiles)
{
    typedef walk<FORMAT, GROUP, NT, HAS_GLU> walk_type;
    const int TILES = walk_type::TILES, UNITS = walk_type::UNITS;
    CU_SHARED_ARRAY(uint8_t, smem, 128);
    __shared__ sums<NT, TILES> part;
    cu_start_next();
    int lane = (int)threadIdx.x % CU_WARP, seg = (int)threadIdx.x / CU_WARP;
    int u0 = CU_SEG_FIRST(seg, p.w[0].units), n = CU_SEG_FIRST(seg + 1, p.w[0].units) - u0;
    walk_type way;
    way.begin(p, n_tiles, smem, u0, n, lane);
    cu_wait_before();
    typename walk_type::regs r[2] = {};
    way.read(r[0], n, lane);
    float acc[TILES][NT][4] = {};
    int left = n;
#pragma unroll 1
    for (int i = (int)blockIdx.x; i < n_tiles;) {
#pragma unroll
        for (
            int h = 0; h < 2;
            h++) { /* stages take turns with the registers: moving them took a sixth of all instructions */
            if (left > 0)
                way.step(acc, r[h], r[1 - h], p, n_tiles, u0, n, left, lane);
            left -= UNITS;
            if (left > 0)
                continue;
            __syncthreads(); /* the sums before these are read */
            put_sums<NT, TILES>(part, acc, seg, lane);
            __syncthreads();
            if (HAS_GLU)
                finish_glu<NT, TILES>(p, part, i);
            else
                finish<NT, TILES>(p, part, locate<item<FORMAT, HAS_GLU>::STEP>(p, i));
            i += (int)gridDim.x;
            if (i >= n_tiles)
                return;
            left = n;
#pragma unroll
            for (int k = 0; k < TILES * NT * 4; k++)
                acc[k / (NT * 4)][k / 4 % NT][k % 4] = 0;
        }
    }
}

template <int FORMAT, int GROUP, int NT, bool HAS_GLU>
static int start(const cu_linear *p, cu_stream s)
{
    typedef ring_shape<FORMAT, GROUP, NT> shape;
    int tiles = 0, most = shape::PER_SM * p->n_sm;
    for (int i = 0; i < (HAS_GLU ? 1 : p->n_jobs); i++)
        tiles += items_of(p->w[i].out, item<FORMAT, HAS_GLU>::STEP);
    return cu_launch_big(k_ring<FORMAT, GROUP, NT, HAS_GLU>,
                         dim3((unsigned)(tiles < most ? tiles : most)), dim3(THREADS),
                         (size_t)CU_SEGMENTS * shape::STAGES * shape::BYTES, s, *p, tiles);
}

template <int FORMAT, int GROUP> static int launch(const cu_linear *p, cu_stream s)
{
    if (p->has_glu)
        return p->rows <= 8 ? start<FORMAT, GROUP, 1, true>(p, s)
                            : start<FORMAT, GROUP, 2, true>(p, s);
    return p->rows <= 8 ? start<FORMAT, GROUP, 1, false>(p, s)
                        : start<FORMAT, GROUP, 2, false>(p, s);
}

extern "C" int cu_launch_linear_ring(const cu_linear *p, cu_stream s)
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
