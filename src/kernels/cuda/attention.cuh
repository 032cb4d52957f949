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

#define LOG2E 0x1.715476p+0f

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

/* A (row, head) pair of a tile. */
struct slot {
    int row, head; /* of the step; row -1: none */
    int pos;
};

static __device__ __forceinline__ slot slot_of(const cu_attention &p, const cu_seq &s, int g, int i)
{
    int per = p.n_heads / p.kv.n_kv_heads, t = i / per;
    if (t >= s.n_rows)
        return { -1, 0, -1 };
    return { s.row0 + t, g * per + i % per, s.pos0 + t };
}

static __device__ __forceinline__ bool sees(const cu_attention &p, int pos, int key)
{
    return key <= pos && (p.window == 0 || key > pos - p.window);
}

static __device__ __forceinline__ float score_of(const cu_attention &p, float dot, int pos, int key)
{
    float s = dot * p.scale;
    if (p.softcap > 0)
        s = p.softcap * fmath_tanh(s / p.softcap);
    return sees(p, pos, key) ? s : -INFINITY;
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

/* Q of 16 slots to shared memory in the cache's type and the lanes' order. A value that is not finite fails its row and is zero. */
template <bool IS_BF16>
static __device__ void load_q(const cu_attention &p, const cu_seq &s, int g, int slot0,
                              uint16_t *sq, int thread, int n_threads)
{
    for (int i = thread; i < CU_SLOTS * p.kv.pad_dim; i += n_threads) {
        int r = i / p.kv.pad_dim, d = i % p.kv.pad_dim;
        slot at = slot_of(p, s, g, slot0 + r);
        uint16_t v = 0;
        if (at.row >= 0 && d < p.kv.head_dim) {
            v = cu_pack1<IS_BF16>(
                p.q.data[(int64_t)at.row * p.q.stride + at.head * p.kv.head_dim + d]);
            if (cu_is_odd<IS_BF16>(v)) {
                p.flags[at.row] = 1;
                v = 0;
            }
        }
        sq[r * p.kv.pad_dim + d / CU_UNIT * CU_UNIT + cu_lane_order(d % CU_UNIT)] = v;
    }
}

#endif
