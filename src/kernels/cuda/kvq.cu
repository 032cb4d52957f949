/* Quantised caches (tensor/kvq.h: the rule; cu_kvq: where the bytes lie). attention_kvq.cu reads them as they are; other attention has them
 * taken out to f16, a layer's pages at a time, in a buffer of one layer's f16 pages. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/rope.cuh"

#define GROUP_COLUMNS 64 /* = KVQ_GROUP */
#define R_LIMIT       0x1p20f
#define F16_MAX       65504.0f

static __device__ __forceinline__ float from_f16(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

static __device__ __forceinline__ uint16_t to_f16(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

static __device__ __forceinline__ float warp_min(float v)
{
    for (int w = 16; w; w /= 2)
        v = fminf(v, __shfl_xor_sync(0xFFFFFFFFu, v, w));
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
    for (int w = 16; w; w /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, w));
    return v;
}

/* The arrays of K (v = 0) or V of a head in a page. */
struct part {
    uint8_t *codes;
    uint16_t *scales, *biases; /* [groups][64], `pitch` apart */
    int pitch;
    uint32_t *relative; /* [groups][2], K only */
    uint16_t *base;     /* [head_dim], K only */
};

static __device__ __forceinline__ part part_of(const cu_kvq &q, int32_t page, int head, int v)
{
    part p;
    p.codes = q.data + page * q.page_bytes + head * q.head_bytes + (v ? q.v_at : 0);
    p.scales = (uint16_t *)(p.codes + (int64_t)q.row * CU_PAGE);
    p.biases = p.scales + (q.is_whole ? 1 : q.groups * CU_PAGE);
    p.pitch = q.is_whole ? 2 : 1;
    uint16_t *rest = p.scales + 2 * q.groups * CU_PAGE;
    p.relative = (uint32_t *)(rest + (q.is_whole ? q.head_dim : 0));
    p.base = rest + (q.is_whole ? 0 : 4 * q.groups);
    return p;
}

/* Where in its group's part of the base column c stands. */
static __device__ __forceinline__ int base_at(const cu_kvq &q, int c)
{
    return q.is_whole ? cu_lane_order(c) : c;
}

/* The byte of column c of group g at position j; of 4 bits c is a column of the group's first half, which has the low nibbles. */
static __device__ __forceinline__ int64_t code_at(const cu_kvq &q, int v, int j, int g, int c)
{
    int first = g * (q.is_8bit ? GROUP_COLUMNS : GROUP_COLUMNS / 2), o = cu_lane_order(c);
    if (v)
        return (int64_t)j * q.row + first + c;
    if (!q.is_whole)
        return (int64_t)(first + c) * CU_PAGE + j;
    return (int64_t)j * q.row + first + (q.is_8bit ? o : o / 16 * 8 + o % 16);
}

/* Scale and bias of finite values between lo and hi. False: the bias is not finite. */
static __device__ __forceinline__ bool line(float lo, float hi, int top, uint16_t *scale,
                                            uint16_t *bias)
{
    bool is_lo = fabsf(lo) > fabsf(hi);
    float e = is_lo ? lo : hi, d = is_lo ? hi - lo : lo - hi;
    uint16_t b16 = to_f16(e);
    float b = from_f16(b16), r = e / (d / (float)top);
    *scale = *bias = 0;
    if (b == 0)
        return true;
    if (!isfinite(b))
        return false;
    *bias = b16;
    if (!(fabsf(r) < R_LIMIT))
        return true;
    uint16_t s16 = to_f16(b / ((r + FMATH_RINT) - FMATH_RINT));
    *scale = s16 & 0x7FFF ? s16 : 0;
    return true;
}

static __device__ __forceinline__ uint32_t code_of(float x, float b, float inv, int top)
{
    float v = (x - b) * inv;
    v = v > 0 ? v : 0;
    v = v < (float)top ? v : (float)top;
    return (uint32_t)((v + FMATH_RINT) - FMATH_RINT);
}

static __device__ __forceinline__ void put_codes(const cu_kvq &q, const part &to, int v, int j,
                                                 int g, int n, const uint32_t code[2], int lane)
{
    for (int i = 0; i < 2; i++) {
        int c = lane + 32 * i, half = (n + 1) / 2;
        uint32_t b = code[i];
        if (!q.is_8bit) { /* the first half of the columns are low nibbles, the others high ones */
            int from = c + half;
            uint32_t lo = __shfl_sync(0xFFFFFFFFu, code[0], from % 32),
                     hi = __shfl_sync(0xFFFFFFFFu, code[1], from % 32);
            b |= from < n ? (from < 32 ? lo : hi) << 4 : 0;
        }
        if (c < (q.is_8bit ? n : half))
            to.codes[code_at(q, v, j, g, c)] = (uint8_t)b;
    }
}

/* Where a warp's group of a row's keys or values goes. */
struct place {
    int head, v, g, n; /* n: its columns; lane l has l and l + 32 */
    int seq, pos;      /* seq -1: nowhere */
};

/* The group x of row t to its page. base: the page's first key there, if this is a key; all zero where one of it is not finite. */
static __device__ __forceinline__ void store_group(const cu_kvq &q, uint32_t *flags,
                                                   const place &at, int t, const part &to,
                                                   const float x[2], uint16_t base[2], int lane)
{
    int j = at.pos % CU_PAGE, g = at.g, top = q.is_8bit ? 255 : 15;
    bool ok = true, is_relative = false,
         is_odd = (base[0] & 0x7C00) == 0x7C00 || (base[1] & 0x7C00) == 0x7C00;
    if (__any_sync(0xFFFFFFFFu, is_odd))
        base[0] = base[1] = 0;
    float y[2], lo = INFINITY, hi = -INFINITY, near_lo = lo, near_hi = hi;
    uint16_t scale = 0, bias = 0;
    for (int i = 0; i < 2; i++) {
        int c = lane + 32 * i;
        if (!at.v && j == 0 && c < at.n)
            to.base[g * GROUP_COLUMNS + base_at(q, c)] = base[i];
        y[i] = x[i] - from_f16(base[i]);
        ok = ok && isfinite(x[i]);
        if (c < at.n) {
            lo = fminf(lo, x[i]), hi = fmaxf(hi, x[i]);
            near_lo = fminf(near_lo, y[i]), near_hi = fmaxf(near_hi, y[i]);
        }
    }
    ok = __all_sync(0xFFFFFFFFu, ok);
    lo = warp_min(lo), hi = warp_max(hi);
    near_lo = warp_min(near_lo), near_hi = warp_max(near_hi);
    if (ok) {
        is_relative = !at.v && near_hi - near_lo < hi - lo;
        ok = line(is_relative ? near_lo : lo, is_relative ? near_hi : hi, top, &scale, &bias);
    }
    if (!ok) {
        scale = bias = 0;
        is_relative = false;
        if (lane == 0)
            flags[t] = 1;
    }
    float inv = 1.0f / from_f16(scale), b = from_f16(bias);
    uint32_t code[2];
    for (int i = 0; i < 2; i++)
        code[i] =
            scale && lane + 32 * i < at.n ? code_of(is_relative ? y[i] : x[i], b, inv, top) : 0;
    put_codes(q, to, at.v, j, g, at.n, code, lane);
    if (lane > 0)
        return;
    to.scales[(g * CU_PAGE + j) * to.pitch] = scale;
    to.biases[(g * CU_PAGE + j) * to.pitch] = bias;
    if (at.v)
        return;
    if (is_relative)
        atomicOr(&to.relative[2 * g + j / 32], 1u << j % 32);
    else
        atomicAnd(&to.relative[2 * g + j / 32], ~(1u << j % 32));
}

/* A warp has a group of a row's keys or values. */
static __global__ void __launch_bounds__(CU_KVQ_WARPS *CU_WARP) k_kvq_store(cu_kvq_store p)
{
    cu_wait_before();
    int lane = (int)threadIdx.x % CU_WARP, t = (int)blockIdx.y, groups = p.kv.groups;
    int unit = (int)blockIdx.x * CU_KVQ_WARPS + (int)threadIdx.x / CU_WARP;
    place at = { unit / groups / 2, unit / groups % 2, unit % groups, 0,
                 p.rows[t].seq,     p.rows[t].pos };
    at.n = min(p.kv.head_dim - at.g * GROUP_COLUMNS, GROUP_COLUMNS);
    if (at.head >= p.kv.n_kv_heads || at.seq < 0)
        return;
    cu_seq s = p.seqs[at.seq];
    part to = part_of(p.kv, p.pages[s.pages + at.pos / CU_PAGE], at.head, at.v);
    const cu_tensor &from = at.v ? p.v : p.k;
    int column = at.head * p.kv.head_dim + at.g * GROUP_COLUMNS;
    const float *row = from.data + (int64_t)t * from.stride + column;
    int first = at.pos / CU_PAGE * CU_PAGE; /* the page's first key: of this step? */
    const float *first_row = p.k.data + (int64_t)(s.row0 + first - s.pos0) * p.k.stride + column;
    float x[2];
    uint16_t base[2];
    for (int i = 0; i < 2; i++) {
        int c = lane + 32 * i;
        x[i] = c < at.n ? row[c] : 0;
        base[i] = 0;
        if (!at.v && c < at.n)
            base[i] = first >= s.pos0 ? to_f16(first_row[c])
                                      : to.base[at.g * GROUP_COLUMNS + base_at(p.kv, c)];
    }
    store_group(p.kv, p.flags, at, t, to, x, base, lane);
}

extern "C" int cu_launch_kvq_store(const cu_kvq_store *p, cu_stream s)
{
    int units = p->kv.n_kv_heads * 2 * p->kv.groups;
    return cu_launch(k_kvq_store, dim3(cu_blocks(units, CU_KVQ_WARPS), (unsigned)p->k.rows),
                     dim3(CU_KVQ_WARPS * CU_WARP), 0, s, *p);
}

/* Column c of a key's head of row t, turned. */
static __device__ __forceinline__ float turned_at(const cu_rope &p, const float *head, int t, int c)
{
    int k = !p.is_neox ? c / 2 : c < p.half ? c : c - p.half;
    float2 y = turned(p, head, t, k);
    return pair_at(p, k).x == c ? y.x : y.y;
}

/* Blocks of groups of keys and values, as k_kvq_store has them, of whole units; behind them blocks of pairs of queries. A block has all groups
 * of its heads: their keys are read before the turned ones are written. What is known of the shape keeps it short: it runs once. */
template <bool IS_8BIT>
static __global__ void __launch_bounds__(CU_KVQ_WARPS *CU_WARP)
    k_rope_kvq_store(const __grid_constant__ cu_rope_kvq_store p)
{
    cu_start_next();
    const cu_kvq_store &kv = p.kv;
    cu_kvq q = kv.kv;
    q.is_8bit = IS_8BIT;
    q.is_whole = 1;
    int lane = (int)threadIdx.x % CU_WARP, t = (int)blockIdx.y, shift = q.groups / 2;
    int unit = (int)blockIdx.x * CU_KVQ_WARPS + (int)threadIdx.x / CU_WARP;
    int n_units = (q.n_kv_heads * 2 * q.groups + CU_KVQ_WARPS - 1) / CU_KVQ_WARPS * CU_KVQ_WARPS;
    if (unit >= n_units) {
        int i = (unit - n_units) * CU_WARP + lane;
        int2 c;
        cu_grid_wait();
        if (i < p.q.x.cols / 2)
            (void)turn(p.q, p.q.x, t, i, &c);
        return;
    }
    place at = { unit >> shift >> 1, unit >> shift & 1, unit & (q.groups - 1),
                 GROUP_COLUMNS,      kv.rows[t].seq,    kv.rows[t].pos };
    bool is_head = at.head < q.n_kv_heads, is_stored = is_head && at.seq >= 0;
    part to = {};
    if (is_stored)
        to = part_of(q, kv.pages[kv.seqs[at.seq].pages + at.pos / CU_PAGE], at.head, at.v);
    const cu_tensor &from = at.v ? kv.v : kv.k;
    float *head = from.data + (int64_t)t * from.stride + at.head * q.head_dim;
    float x[2] = { 0, 0 };
    uint16_t base[2] = { 0, 0 };
    int c = at.g * GROUP_COLUMNS + lane;
    if (is_stored && !at.v && at.pos % CU_PAGE) /* of an earlier step */
        for (int i = 0; i < 2; i++)
            base[i] = to.base[at.g * GROUP_COLUMNS + base_at(q, lane + 32 * i)];
    cu_grid_wait();
    if (is_head)
        for (int i = 0; i < 2; i++)
            x[i] = at.v ? head[c + 32 * i] : turned_at(p.q, head, t, c + 32 * i);
    __syncthreads();
    if (is_head && !at.v)
        for (int i = 0; i < 2; i++)
            head[c + 32 * i] = x[i];
    if (!is_stored)
        return;
    if (!at.v && at.pos % CU_PAGE == 0)
        for (int i = 0; i < 2; i++)
            base[i] = to_f16(x[i]);
    store_group(q, kv.flags, at, t, to, x, base, lane);
}

extern "C" int cu_launch_rope_kvq_store(const cu_rope_kvq_store *p, cu_stream s)
{
    const int THREADS = CU_KVQ_WARPS * CU_WARP;
    unsigned blocks = cu_blocks(p->kv.kv.n_kv_heads * 2 * p->kv.kv.groups, CU_KVQ_WARPS) +
                      cu_blocks(p->q.x.cols / 2, THREADS);
    return cu_launch(p->kv.kv.is_8bit ? k_rope_kvq_store<true> : k_rope_kvq_store<false>,
                     dim3(blocks, (unsigned)p->q.x.rows), dim3((unsigned)THREADS), 0, s, *p);
}

/* --- out of the pages --- */

/* Element d of position j as f16. */
static __device__ __forceinline__ uint32_t value_at(const cu_kvq &q, const part &from, int v, int j,
                                                    int d)
{
    int g = d / GROUP_COLUMNS, c = d % GROUP_COLUMNS, half = GROUP_COLUMNS;
    if (d >= q.head_dim)
        return 0;
    if (!q.is_8bit)
        half = (min(q.head_dim - g * GROUP_COLUMNS, GROUP_COLUMNS) + 1) / 2;
    uint32_t code = from.codes[code_at(q, v, j, g, c % half)];
    code = q.is_8bit ? code : code >> (c < half ? 0 : 4) & 15;
    int at = (g * CU_PAGE + j) * from.pitch;
    float x = fmaf((float)code, from_f16(from.scales[at]), from_f16(from.biases[at]));
    if (!v)
        x = fmaf((float)(from.relative[2 * g + j / 32] >> j % 32 & 1),
                 from_f16(from.base[g * GROUP_COLUMNS + base_at(q, c)]), x);
    return to_f16(fminf(fmaxf(x, -F16_MAX), F16_MAX));
}

/* The column that stands at place o of a unit in the lanes' order: cu_lane_order turned round. */
static __device__ __forceinline__ int column_at(int o)
{
    return o % 16 / 4 * 16 + o / 16 * 2 + o % 4 / 2 * 8 + o % 2;
}

/* K or V of a head in a page, eight elements at a time. */
static __global__ void __launch_bounds__(256) k_kvq_expand(cu_kvq_expand p)
{
    cu_wait_before();
    cu_seq s = p.seqs[blockIdx.z];
    int page = (int)blockIdx.x, head = (int)blockIdx.y / 2, v = (int)blockIdx.y % 2;
    int first = p.window && s.pos0 >= p.window ? (s.pos0 - p.window + 1) / CU_PAGE : 0;
    if (s.n_rows <= p.n_few || page < first || page > (s.pos0 + s.n_rows - 1) / CU_PAGE)
        return;
    int32_t at = p.pages[s.pages + page];
    part from = part_of(p.from, at, head, v);
    uint16_t *to = (uint16_t *)kv_page(p.to, at, head);
    int dim = p.to.pad_dim;
    for (int i = (int)threadIdx.x; i < CU_PAGE * dim / 8; i += 256) {
        int row = v ? i % dim : i % CU_PAGE, o = (v ? i / dim : i / CU_PAGE) * 8;
        uint32_t out[4];
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            int c = o / CU_UNIT * CU_UNIT + column_at(o % CU_UNIT + e);
            uint32_t lo = v ? value_at(p.from, from, v, c, row) : value_at(p.from, from, v, row, c);
            uint32_t hi =
                v ? value_at(p.from, from, v, c + 1, row) : value_at(p.from, from, v, row, c + 1);
            out[e / 2] = lo | hi << 16;
        }
        int64_t place = v ? kv_part(p.to) + (int64_t)row * CU_PAGE + o : (int64_t)row * dim + o;
        *(uint4 *)(to + place) = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

extern "C" int cu_launch_kvq_expand(const cu_kvq_expand *p, cu_stream s)
{
    return cu_launch(
        k_kvq_expand,
        dim3((unsigned)p->n_pages, (unsigned)p->from.n_kv_heads * 2, (unsigned)p->n_seqs),
        dim3(256), 0, s, *p);
}
