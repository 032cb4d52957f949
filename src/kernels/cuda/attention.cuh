/* attention.cuh - what the attention kernels share: pages, slots, the steps of the softmax.
 *
 * A page of a kv head: K, a row of pad_dim elements for each of 64 positions, then V, a row of 64 positions for each of pad_dim elements; in
 * both, each run of 64 elements lies in the order in which lanes read it (cu_lane_order). Values are finite: the store sees to that.
 *
 * The contract. Positions are cut into splits of 256, these into blocks of 64 (the pages). With q, k, v of the cache's type:
 *     s = (chain of k16 steps over the head's columns) * scale, capped; -inf where the row does not see the position
 * A split begins with m = -inf, l = 0, o = 0 and walks its blocks in ascending order:
 *     m' = max(m, max s)   a = 2^((m - m') log2 e)   p = rn(2^((s - m') log2 e)) in the cache's type
 *     l = chain of k16 steps of p 1 onto l a         o = chain of k16 steps of p v onto o a          m = m'
 * Splits are merged in ascending order onto M = -inf, L = 0, O = 0 (M = sink, L = 1 where the head has one):
 *     M' = max(M, m)   a = 2^((M - M') log2 e)   b = 2^((m - M') log2 e)   L = fma(l, b, L a)   O = fma(o, b, O a)
 * and the result is O * (1 / L). A block or split in which a row sees nothing changes nothing. */
#ifndef PLUMB_KERNELS_CUDA_ATTENTION_CUH
#define PLUMB_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/device.cuh"
#include "tensor/fmath.h"

#define LOG2E       0x1.715476p+0f
#define SPLIT_PAGES (CU_SPLIT / CU_PAGE)

static __device__ __forceinline__ int64_t kv_part(const cu_kv &kv) /* elements of K, and of V */
{
    return (int64_t)CU_PAGE * kv.pad_dim;
}

/* K of head g in a page; V follows. */
static __device__ __forceinline__ const uint16_t *kv_page(const cu_kv &kv, int32_t page, int g)
{
    return (const uint16_t *)(kv.data + page * kv.page_bytes) + (int64_t)g * 2 * kv_part(kv);
}

static __device__ __forceinline__ int64_t kv_k_at(const cu_kv &kv, int j, int d)
{
    return (int64_t)j * kv.pad_dim + d / CU_UNIT * CU_UNIT + cu_lane_order(d % CU_UNIT);
}

static __device__ __forceinline__ int64_t kv_v_at(const cu_kv &kv, int j, int d)
{
    return kv_part(kv) + (int64_t)d * CU_PAGE + cu_lane_order(j);
}

/* 16 bytes on their way to shared memory. */
static __device__ __forceinline__ void copy_async(void *dst, const void *src)
{
    cu_copy16(cu_shared_at(dst), src);
}

/* A (row, head) pair of a tile. */
struct slot {
    int row, head; /* of the step; row -1: none */
    int pos;
};

/* The row of its sequence that slot i has; slots are few enough for the product with a rounded reciprocal. */
static __device__ __forceinline__ int row_of(const cu_attention &p, int i)
{
    return p.per_magic ? (int)__umulhi((uint32_t)i, p.per_magic) : i;
}

static __device__ __forceinline__ slot slot_of(const cu_attention &p, const cu_seq &s, int g, int i)
{
    int t = row_of(p, i);
    if (t >= s.n_rows)
        return { -1, 0, -1 };
    return { s.row0 + t, g * p.per + i - t * p.per, s.pos0 + t };
}

static __device__ __forceinline__ bool sees(const cu_attention &p, int pos, int key)
{
    return key <= pos && (p.window == 0 || key > pos - p.window);
}

/* Whether all slots of a warp see all of a page: positions are those of its first and last one. */
static __device__ __forceinline__ bool is_seen(const cu_attention &p, int pos0, int pos1, int key0)
{
    return key0 + CU_PAGE - 1 <= pos0 && (p.window == 0 || key0 > pos1 - p.window);
}

/* Kernels are made with the cap and without: a page's scores have it 32 times, and that much code is fetched slower than it runs. */
template <bool HAS_CAP>
static __device__ __forceinline__ float capped(const cu_attention &p, float dot)
{
    float s = dot * p.scale;
    return HAS_CAP ? p.softcap * fmath_tanh(s / p.softcap) : s;
}

template <bool HAS_CAP>
static __device__ __forceinline__ float score_of(const cu_attention &p, float dot, int pos, int key)
{
    return sees(p, pos, key) ? capped<HAS_CAP>(p, dot) : -INFINITY;
}

/* What is subtracted from scores: finite, so that what is not seen gives 0. */
static __device__ __forceinline__ float base_of(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

static __device__ __forceinline__ float weight_of(float s, float base)
{
    return cu_exp2((s - base) * LOG2E);
}

/* ... as it is rounded to the cache's type. What is denormal in f32 is 0 in f16, so that the instruction that flushes it will do. */
template <bool IS_BF16> static __device__ __forceinline__ float p_of(float s, float base)
{
    return IS_BF16 ? weight_of(s, base) : cu_exp2_flushed((s - base) * LOG2E);
}

/* Running state of a row: its factors when another one with maximum m joins. */
static __device__ __forceinline__ void merge_factors(float &M, float m, float &a, float &b)
{
    float n = fmaxf(M, m), base = base_of(n);
    a = weight_of(M, base);
    b = weight_of(m, base);
    M = n;
}

/* Pages that some slot of [first, last] positions sees. */
static __device__ __forceinline__ int first_page(const cu_attention &p, int pos)
{
    return p.window && pos >= p.window ? (pos - p.window + 1) / CU_PAGE : 0;
}

/* Partial results of a split: [row][head][split] of m, l, then pad_dim sums; floats of one. */
static __device__ __forceinline__ int64_t partial_at(const cu_attention &p, int row, int head,
                                                     int split)
{
    return (((int64_t)row * p.n_heads + head) * p.n_splits + split) * (p.kv.pad_dim + 4);
}

/* Four columns of a row's query in the cache's type; a value that is not finite fails the row and is zero. */
template <bool IS_BF16>
static __device__ __forceinline__ uint2 finite_q(const cu_attention &p, int row, float4 x)
{
    uint32_t v[2] = { cu_pack2<IS_BF16>(x.x, x.y), cu_pack2<IS_BF16>(x.z, x.w) };
    bool is_odd = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t odd = (cu_is_odd<IS_BF16>((uint16_t)v[i]) ? 0xFFFFu : 0) |
                       (cu_is_odd<IS_BF16>((uint16_t)(v[i] >> 16)) ? 0xFFFF0000u : 0);
        is_odd = is_odd || odd;
        v[i] &= ~odd;
    }
    if (is_odd)
        p.flags[row] = 1;
    return make_uint2(v[0], v[1]);
}

/* ... to where it stands from column d on, in the lanes' order. */
template <bool IS_BF16>
static __device__ __forceinline__ void put_q(const cu_attention &p, const slot &at, int d, float4 x,
                                             uint16_t *row)
{
    uint2 v = finite_q<IS_BF16>(p, at.row, x);
    uint16_t *unit = row + d / CU_UNIT * CU_UNIT;
    *(uint32_t *)(unit + cu_lane_order(d % CU_UNIT)) = v.x;
    *(uint32_t *)(unit + cu_lane_order(d % CU_UNIT + 2)) = v.y;
}

/* Where column d (even) of slot r stands among the fragments of A: a lane's eight of each step of 16 columns in a row. */
static __device__ __forceinline__ int fragment_at(int r, int d)
{
    int lane = r % 8 * 4 + d % 8 / 2, pair = d % 16 / 8 * 2 + r / 8;
    return (d / 16 * CU_WARP + lane) * 8 + pair * 2;
}

/* Q of 16 slots to shared memory in the cache's type, as fragments of A: eight threads to a slot, four columns at a time. */
template <bool IS_BF16>
static __device__ __forceinline__ void load_q(const cu_attention &p, const cu_seq &s, int g,
                                              int slot0, uint16_t *sq, int thread, int n_threads)
{
    int dim = p.kv.head_dim, c = thread % 8 * 4;
    bool is_whole = dim % 4 == 0 && p.q.stride % 4 == 0 && (uintptr_t)p.q.data % 16 == 0;
#pragma unroll 1
    for (int r = thread / 8; r < CU_SLOTS; r += n_threads / 8) {
        slot at = slot_of(p, s, g, slot0 + r);
        const float *x = p.q.data + (int64_t)at.row * p.q.stride + at.head * dim;
        bool is_in = at.row >= 0;
#pragma unroll 4
        for (int d = c; d < p.kv.pad_dim; d += 32) {
            int left = is_in ? dim - d : 0;
            float4 v =
                is_whole ? cu_load_quad<true>(x + d, left) : cu_load_quad<false>(x + d, left);
            uint2 pairs = finite_q<IS_BF16>(p, at.row, v);
            *(uint32_t *)(sq + fragment_at(r, d)) = pairs.x;
            *(uint32_t *)(sq + fragment_at(r, d + 2)) = pairs.y;
        }
    }
}

/* Four steps of 16 columns for N accumulators: step by step, so that one chain does not wait for another. */
template <bool IS_BF16, int N>
static __device__ __forceinline__ void products(float c[N][4], const uint32_t a[4][4],
                                                const uint4 x[N], const uint4 y[N])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        cu_mma<IS_BF16>(c[n], a[0], x[n].x, x[n].y);
#pragma unroll
    for (int n = 0; n < N; n++)
        cu_mma<IS_BF16>(c[n], a[1], x[n].z, x[n].w);
#pragma unroll
    for (int n = 0; n < N; n++)
        cu_mma<IS_BF16>(c[n], a[2], y[n].x, y[n].y);
#pragma unroll
    for (int n = 0; n < N; n++)
        cu_mma<IS_BF16>(c[n], a[3], y[n].z, y[n].w);
}

/* State of a warp's rows g and g + 8 over its NT * 8 columns of V. */
template <int NT> struct state {
    float m[2], l[4], o[NT][4];
};

template <int NT> static __device__ __forceinline__ void state_clear(state<NT> &st)
{
    st.m[0] = st.m[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++)
        st.l[i] = 0;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            st.o[n][i] = 0;
}

/* A split onto those before it. */
template <int NT>
static __device__ __forceinline__ void total_add(state<NT> &total, const state<NT> &st)
{
    float a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        merge_factors(total.m[i], st.m[i], a[i], b[i]);
        total.l[2 * i] = fmaf(st.l[2 * i], b[i], total.l[2 * i] * a[i]);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            total.o[n][i] = fmaf(st.o[n][i], b[i / 2], total.o[n][i] * a[i / 2]);
}

/* One value of the result; false: it is not finite. */
static __device__ __forceinline__ bool store_one(const cu_attention &p, int row, int head, int d,
                                                 float v)
{
    bool ok = isfinite(v);
    if (d < p.kv.head_dim)
        p.out.data[(int64_t)row * p.out.stride + head * p.kv.head_dim + d] = ok ? v : 0;
    return ok || d >= p.kv.head_dim;
}

/* The results of 16 slots, o [16][pad_dim] in shared memory, to their rows and as the product behind wants them: eight threads to a slot,
 * four columns at a time. From registers it would be the same code for each of them, and more than all the rest. */
static __device__ __forceinline__ void store_slots(const cu_attention &p, const cu_seq &s, int g,
                                                   int slot0, const float *o, int thread,
                                                   int n_threads)
{
    int dim = p.kv.head_dim;
    bool is_whole = dim % 4 == 0 && p.out.stride % 4 == 0 && (uintptr_t)p.out.data % 16 == 0;
#pragma unroll 1
    for (int r = thread / 8; r < CU_SLOTS; r += n_threads / 8) {
        slot at = slot_of(p, s, g, slot0 + r);
        if (at.row < 0)
            continue;
        float *to = p.out.data + (int64_t)at.row * p.out.stride + at.head * dim;
        bool is_odd = false;
#pragma unroll 1
        for (int d = thread % 8 * 4; d < dim; d += 32) {
            float4 f = *(const float4 *)(o + r * p.kv.pad_dim + d);
            float v[4] = { f.x, f.y, f.z, f.w };
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (d + i < dim && !isfinite(v[i])) {
                    is_odd = true;
                    v[i] = 0;
                }
            if (is_whole)
                *(float4 *)(to + d) = make_float4(v[0], v[1], v[2], v[3]);
            else
                for (int i = 0; i < 4 && d + i < dim; i++)
                    to[d + i] = v[i];
            for (int i = 0; p.to_bf16.out && i < 4 && d + i < dim; i += 2)
                cu_put_bf16x2(p.to_bf16, at.row, at.head * dim + d + i, v[i], v[i + 1]);
        }
        if (is_odd)
            p.flags[at.row] = 1;
    }
}

#endif
