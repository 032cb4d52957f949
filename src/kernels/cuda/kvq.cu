/* Quantised caches (tensor/kvq.h: the rule, and where the bytes lie, which are those of the CPU). Attention reads them taken out to f16, a
 * layer's pages at a time, in a buffer of one layer's f16 pages. */
#include "kernels/cuda/attention.cuh"

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
    uint16_t *scales, *biases; /* [groups][64] */
    uint32_t *relative;        /* [groups][2], K only */
    uint16_t *base;            /* [head_dim], K only */
};

static __device__ __forceinline__ part part_of(const cu_kvq &q, int32_t page, int head, int v)
{
    part p;
    p.codes = q.data + page * q.page_bytes + head * q.head_bytes + (v ? q.v_at : 0);
    p.scales = (uint16_t *)(p.codes + (int64_t)q.row * CU_PAGE);
    p.biases = p.scales + q.groups * CU_PAGE;
    p.relative = (uint32_t *)(p.biases + q.groups * CU_PAGE);
    p.base = (uint16_t *)(p.relative + 2 * q.groups);
    return p;
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

/* The page's first key in this group: of this step where it is one of its rows. Lane l has columns l and l + 32; all zero where one is
 * not finite. */
static __device__ __forceinline__ void base_of_group(const cu_kvq_store &p, const cu_seq &s,
                                                     int pos, int head, int g, int n, int lane,
                                                     const part &to, uint16_t base[2])
{
    int first = pos / CU_PAGE * CU_PAGE;
    bool is_here = first >= s.pos0, is_odd = false;
    const float *x = p.k.data + (int64_t)(s.row0 + first - s.pos0) * p.k.stride +
                     head * p.kv.head_dim + g * GROUP_COLUMNS;
    for (int i = 0; i < 2; i++) {
        int c = lane + 32 * i;
        base[i] = 0;
        if (c < n)
            base[i] = is_here ? to_f16(x[c]) : to.base[g * GROUP_COLUMNS + c];
        is_odd = is_odd || (base[i] & 0x7C00) == 0x7C00;
    }
    if (__any_sync(0xFFFFFFFFu, is_odd))
        base[0] = base[1] = 0;
}

static __device__ __forceinline__ void put_codes(const cu_kvq &q, const part &to, int v, int j,
                                                 int g, int n, const uint32_t code[2], int lane)
{
    for (int i = 0; i < 2; i++) {
        int c = lane + 32 * i, byte = g * GROUP_COLUMNS + c, half = (n + 1) / 2;
        uint32_t b = code[i];
        if (!q.is_8bit) { /* the first half of the columns are low nibbles, the others high ones */
            int from = c + half;
            uint32_t lo = __shfl_sync(0xFFFFFFFFu, code[0], from % 32),
                     hi = __shfl_sync(0xFFFFFFFFu, code[1], from % 32);
            b |= from < n ? (from < 32 ? lo : hi) << 4 : 0;
            byte = g * GROUP_COLUMNS / 2 + c;
        }
        if (c < (q.is_8bit ? n : half))
            to.codes[v ? j * q.row + byte : byte * CU_PAGE + j] = (uint8_t)b;
    }
}

/* A warp has a group of a row's keys or values. */
static __global__ void __launch_bounds__(128) k_kvq_store(cu_kvq_store p)
{
    cu_wait_before();
    const cu_kvq &q = p.kv;
    int lane = (int)threadIdx.x % CU_WARP, t = (int)blockIdx.y;
    int unit = (int)(blockIdx.x * 4 + threadIdx.x / CU_WARP);
    int g = unit % q.groups, v = unit / q.groups % 2, head = unit / q.groups / 2;
    cu_row r = p.rows[t];
    if (head >= q.n_kv_heads || r.seq < 0)
        return;
    cu_seq s = p.seqs[r.seq];
    int j = r.pos % CU_PAGE, n = min(q.head_dim - g * GROUP_COLUMNS, GROUP_COLUMNS);
    part to = part_of(q, p.pages[s.pages + r.pos / CU_PAGE], head, v);
    const cu_tensor &from = v ? p.v : p.k;
    const float *x = from.data + (int64_t)t * from.stride + head * q.head_dim + g * GROUP_COLUMNS;
    uint16_t base[2] = { 0, 0 }, scale = 0, bias = 0;
    if (!v) {
        base_of_group(p, s, r.pos, head, g, n, lane, to, base);
        for (int i = 0; i < 2 && j == 0; i++)
            if (lane + 32 * i < n)
                to.base[g * GROUP_COLUMNS + lane + 32 * i] = base[i];
    }
    float a[2], y[2], lo = INFINITY, hi = -INFINITY, near_lo = lo, near_hi = hi;
    bool ok = true, is_relative = false;
    for (int i = 0; i < 2; i++) {
        a[i] = lane + 32 * i < n ? x[lane + 32 * i] : 0;
        y[i] = a[i] - from_f16(base[i]);
        ok = ok && isfinite(a[i]);
        if (lane + 32 * i < n) {
            lo = fminf(lo, a[i]), hi = fmaxf(hi, a[i]);
            near_lo = fminf(near_lo, y[i]), near_hi = fmaxf(near_hi, y[i]);
        }
    }
    ok = __all_sync(0xFFFFFFFFu, ok);
    lo = warp_min(lo), hi = warp_max(hi);
    near_lo = warp_min(near_lo), near_hi = warp_max(near_hi);
    if (ok) {
        is_relative = !v && near_hi - near_lo < hi - lo;
        ok = line(is_relative ? near_lo : lo, is_relative ? near_hi : hi, q.is_8bit ? 255 : 15,
                  &scale, &bias);
    }
    if (!ok) {
        scale = bias = 0;
        is_relative = false;
        if (lane == 0)
            p.flags[t] = 1;
    }
    float inv = 1.0f / from_f16(scale), b = from_f16(bias);
    uint32_t code[2];
    for (int i = 0; i < 2; i++)
        code[i] = scale && lane + 32 * i < n
                      ? code_of(is_relative ? y[i] : a[i], b, inv, q.is_8bit ? 255 : 15)
                      : 0;
    put_codes(q, to, v, j, g, n, code, lane);
    if (lane > 0)
        return;
    to.scales[g * CU_PAGE + j] = scale;
    to.biases[g * CU_PAGE + j] = bias;
    if (v)
        return;
    if (is_relative)
        atomicOr(&to.relative[2 * g + j / 32], 1u << j % 32);
    else
        atomicAnd(&to.relative[2 * g + j / 32], ~(1u << j % 32));
}

extern "C" int cu_launch_kvq_store(const cu_kvq_store *p, cu_stream s)
{
    int units = p->kv.n_kv_heads * 2 * p->kv.groups;
    return cu_launch(k_kvq_store, dim3(cu_blocks(units, 4), (unsigned)p->k.rows), dim3(128), 0, s,
                     *p);
}

/* --- out of the pages --- */

/* Element d of position j as f16. */
static __device__ __forceinline__ uint32_t value_at(const cu_kvq &q, const part &from, int v, int j,
                                                    int d)
{
    int g = d / GROUP_COLUMNS, c = d % GROUP_COLUMNS, byte = d, shift = 0;
    if (d >= q.head_dim)
        return 0;
    if (!q.is_8bit) {
        int half = (min(q.head_dim - g * GROUP_COLUMNS, GROUP_COLUMNS) + 1) / 2;
        byte = g * GROUP_COLUMNS / 2 + c % half;
        shift = c < half ? 0 : 4;
    }
    uint32_t code = from.codes[v ? j * q.row + byte : byte * CU_PAGE + j];
    code = q.is_8bit ? code : code >> shift & 15;
    float x = fmaf((float)code, from_f16(from.scales[g * CU_PAGE + j]),
                   from_f16(from.biases[g * CU_PAGE + j]));
    if (!v)
        x = fmaf((float)(from.relative[2 * g + j / 32] >> j % 32 & 1), from_f16(from.base[d]), x);
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
    if (s.n_rows == 0 || page < first || page > (s.pos0 + s.n_rows - 1) / CU_PAGE)
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
