/* Attention of few rows over f16 and bf16 caches, and the choice of a kernel; the store; the oracle. */
#include "kernels/cuda/attention_narrow.cuh"

template <int UNITS>
static __device__ __forceinline__ part part_of(const cu_attention &p, const task &k, int sp,
                                               int warp, int lane)
{
    part o;
    o.page = sp * SPLIT_PAGES + warp / 2;
    int near = min(max(o.page, k.page0), k.page1); /* where nobody sees its page */
    o.kv = kv_page(p.kv, p.pages[k.s.pages + near], (int)blockIdx.y);
    o.keys = o.kv + (warp % 2 * (CU_PAGE / 2) + lane / 4) * shape<UNITS>::DIM + lane % 4 * 16;
    return o;
}

template <int UNITS>
static __device__ __forceinline__ void load_keys(keys<UNITS> &k, const uint16_t *at)
{
#pragma unroll
    for (int v = 0; v < keys<UNITS>::N; v++)
        load_rows<TILES, shape<UNITS>::DIM>(k.x[v], k.y[v], at + v * CU_UNIT);
}

/* The warp's half of V's columns in its page, on its way to shared memory. */
template <int UNITS>
static __device__ __forceinline__ void load_values(shared<UNITS> &sh, const uint16_t *v, int warp,
                                                   int lane)
{
    const int ROWS = shape<UNITS>::DIM / 2;
    int row = warp % 2 * ROWS + lane / 8, c = lane % 8;
    const uint16_t *from = v + row * CU_PAGE + c * 8;
#pragma unroll
    for (int i = 0; i < ROWS / 4; i++)
        copy_async(&sh.v[warp / 2][row + 4 * i][c ^ ((row + 4 * i) & 7)], from + i * 4 * CU_PAGE);
}

/* Keys and values of the warp's page, if earlier steps have stored all of it (has_old) or the step's own rows are in it (has_new): what is
 * old may be read before the kernels before this one have ended, where the command says so (has_old). */
template <int UNITS>
static __device__ __forceinline__ void load_part(keys<UNITS> &kk, shared<UNITS> &sh,
                                                 const cu_attention &p, const task &k,
                                                 const part &o, bool has_old, bool has_new,
                                                 int warp, int lane)
{
    bool is_new = !p.has_old || (o.page + 1) * CU_PAGE > k.s.pos0;
    if (!(is_new ? has_new : has_old) || o.page < k.page0 || o.page > k.page1)
        return;
    load_keys(kk, o.keys);
    if (shape<UNITS>::IS_AHEAD)
        load_values<UNITS>(sh, o.kv + kv_part(p.kv), warp, lane);
}

template <bool IS_BF16, int UNITS, bool HAS_CAP>
static __global__ void __launch_bounds__(THREADS, UNITS <= 2 ? 2 : 1)
    k_attention(const __grid_constant__ cu_attention p)
{
    CU_SHARED_ARRAY(uint8_t, smem, 16);
    shared<UNITS> &sh = *(shared<UNITS> *)smem;
    int lane = (int)threadIdx.x % CU_WARP, warp = (int)threadIdx.x / CU_WARP, g = (int)blockIdx.y;
    cu_start_next();
    task k = task_of(p);
    int split = (int)blockIdx.x, column0 = warp * UNITS * 8;
    if (p.n_splits && split > k.page1 / SPLIT_PAGES)
        return; /* others wait for the kernel before */
    slot at[2] = { slot_of(p, k.s, g, k.tile.slot0 + lane / 4),
                   slot_of(p, k.s, g, k.tile.slot0 + lane / 4 + 8) };
    int sp0 = p.n_splits ? split : k.page0 / SPLIT_PAGES;
    int sp1 = p.n_splits ? split : k.page1 / SPLIT_PAGES;
    part o = part_of<UNITS>(p, k, sp0, warp, lane);
    keys<UNITS> kk = {};
    load_part<UNITS>(kk, sh, p, k, o, true, false, warp, lane);
    cu_wait_before();
    state<UNITS> st, total;
    total_init(total, p, at);
#pragma unroll 1
    for (int sp = sp0; sp <= sp1; sp++) {
        if (sp > sp0) {
            __syncthreads(); /* all of the split before is read */
            o = part_of<UNITS>(p, k, sp, warp, lane);
        }
        load_part<UNITS>(kk, sh, p, k, o, sp > sp0, true, warp, lane);
        if (sp == sp0)
            load_queries<IS_BF16, UNITS>(sh, p, k.s, g, k.tile.slot0, k.n);
        __syncthreads();
        state_clear(st);
        add_split<IS_BF16, UNITS, HAS_CAP, false>(st, sh, p, k, o, kk, at, warp, lane);
        if (!p.n_splits)
            total_add(total, st);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && k.n <= 8)
            break;
        if (p.n_splits)
            store_partial<UNITS>(p, st, i, at[i], split, column0, lane);
        else
            store_total<UNITS>(p, total, i, at[i], column0, lane);
    }
}

template <bool IS_BF16, int UNITS> static int narrow(const cu_attention *p, cu_stream s)
{
    return launch_narrow<UNITS>(p->softcap > 0 ? k_attention<IS_BF16, UNITS, true>
                                               : k_attention<IS_BF16, UNITS, false>,
                                p, s);
}

int cu_attention_wide(const cu_attention *p, cu_stream s); /* attention_wide.cu */
int cu_attention_kvq(const cu_attention *p, cu_stream s);  /* attention_kvq.cu */

template <bool IS_BF16> static int launch(const cu_attention *p, cu_stream s)
{
    switch (p->kv.pad_dim / CU_UNIT) {
    case 1:
        return narrow<IS_BF16, 1>(p, s);
    case 2:
        return narrow<IS_BF16, 2>(p, s);
    case 3:
        return narrow<IS_BF16, 3>(p, s);
    case 4:
        return narrow<IS_BF16, 4>(p, s);
    case 5:
        return narrow<IS_BF16, 5>(p, s);
    case 6:
        return narrow<IS_BF16, 6>(p, s);
    case 7:
        return narrow<IS_BF16, 7>(p, s);
    default:
        return narrow<IS_BF16, 8>(p, s);
    }
}

extern "C" int cu_launch_attention(const cu_attention *p, cu_stream s)
{
    if (p->is_wide)
        return cu_attention_wide(p, s);
    if (p->kv.type == CU_CACHE_Q8 || p->kv.type == CU_CACHE_Q4)
        return cu_attention_kvq(p, s);
    return p->kv.type ? launch<true>(p, s) : launch<false>(p, s);
}

/* --- keys and values to their pages --- */

template <bool IS_BF16> static __global__ void k_kv_store(cu_kv_store p)
{
    cu_wait_before();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y;
    cu_row r = p.rows[t];
    if (i >= p.k.cols || r.seq < 0)
        return;
    int g = i / p.kv.head_dim, d = i % p.kv.head_dim, j = r.pos % CU_PAGE;
    int32_t page = p.pages[p.seqs[r.seq].pages + r.pos / CU_PAGE];
    uint16_t *at = (uint16_t *)kv_page(p.kv, page, g);
    uint16_t k = cu_pack1<IS_BF16>(p.k.data[(int64_t)t * p.k.stride + i]);
    uint16_t v = cu_pack1<IS_BF16>(p.v.data[(int64_t)t * p.v.stride + i]);
    if (cu_is_odd<IS_BF16>(k) || cu_is_odd<IS_BF16>(v)) {
        p.flags[t] = 1;
        k = v = 0;
    }
    at[kv_k_at(p.kv, j, d)] = k;
    at[kv_v_at(p.kv, j, d)] = v;
}

extern "C" int cu_launch_kv_store(const cu_kv_store *p, cu_stream s)
{
    dim3 grid(cu_blocks(p->k.cols, 128), (unsigned)p->k.rows);
    return p->kv.type ? cu_launch(k_kv_store<true>, grid, dim3(128), 0, s, *p)
                      : cu_launch(k_kv_store<false>, grid, dim3(128), 0, s, *p);
}

/* --- the oracle: a warp per row and head, everything one after the other --- */

struct plain {
    float s[CU_PAGE], o[512], total[512];
    uint16_t q[512];
};

template <bool IS_BF16> static __global__ void k_attention_plain(cu_attention p)
{
    __shared__ plain sh;
    cu_wait_before();
    int lane = (int)threadIdx.x, q = lane % 4, g = lane / 4;
    cu_tile tile = p.tiles[blockIdx.z];
    cu_seq s = p.seqs[tile.seq];
    int i0 = tile.slot0 + (int)blockIdx.x % CU_SLOTS;
    int kvh = (int)blockIdx.x / CU_SLOTS;
    slot at = slot_of(p, s, kvh, i0);
    if (at.row < 0)
        return;
    const float *x = p.q.data + (int64_t)at.row * p.q.stride + at.head * p.kv.head_dim;
    for (int d = lane; d < p.kv.pad_dim; d += CU_WARP) {
        uint16_t v = d < p.kv.head_dim ? cu_pack1<IS_BF16>(x[d]) : 0;
        if (cu_is_odd<IS_BF16>(v)) {
            p.flags[at.row] = 1;
            v = 0;
        }
        sh.q[d] = v;
        sh.total[d] = 0;
    }
    float M = p.sinks ? p.sinks[at.head] : -INFINITY, L = p.sinks ? 1 : 0;
    int page0 = first_page(p, at.pos);
    for (int sp = page0 / SPLIT_PAGES; sp <= at.pos / CU_SPLIT; sp++) {
        float m = -INFINITY, l = 0;
        for (int d = lane; d < p.kv.pad_dim; d += CU_WARP)
            sh.o[d] = 0;
        __syncwarp();
        for (int page = max(sp * SPLIT_PAGES, page0);
             page <= min(sp * SPLIT_PAGES + 3, at.pos / CU_PAGE); page++) {
            const uint16_t *kv = kv_page(p.kv, p.pages[s.pages + page], kvh);
            for (int n = 0; n < 8; n++) {
                float c[4] = {};
                for (int d = 0; d < p.kv.pad_dim; d += 16) {
                    uint32_t a[4] = {}, b[2];
                    if (g == 0) {
                        a[0] = sh.q[d + 2 * q] | (uint32_t)sh.q[d + 2 * q + 1] << 16;
                        a[2] = sh.q[d + 2 * q + 8] | (uint32_t)sh.q[d + 2 * q + 9] << 16;
                    }
                    for (int i = 0; i < 2; i++)
                        b[i] = kv[kv_k_at(p.kv, n * 8 + g, d + 2 * q + 8 * i)] |
                               (uint32_t)kv[kv_k_at(p.kv, n * 8 + g, d + 2 * q + 8 * i + 1)] << 16;
                    cu_mma<IS_BF16>(c, a, b[0], b[1]);
                }
                int j = n * 8 + 2 * q;
                if (g == 0) {
                    for (int i = 0; i < 2; i++) {
                        int key = page * CU_PAGE + j + i;
                        sh.s[j + i] = p.softcap > 0 ? score_of<true>(p, c[i], at.pos, key)
                                                    : score_of<false>(p, c[i], at.pos, key);
                    }
                }
            }
            __syncwarp();
            float mb = m;
            for (int j = 0; j < CU_PAGE; j++)
                mb = fmaxf(mb, sh.s[j]);
            float base = base_of(mb), alpha = weight_of(m, base);
            m = mb;
            uint32_t a[4][4] = {};
            for (int j = 0; j < 4 && g == 0; j++)
                for (int i = 0; i < 2; i++)
                    a[j][2 * i] =
                        cu_pack2<IS_BF16>(weight_of(sh.s[j * 16 + 8 * i + 2 * q], base),
                                          weight_of(sh.s[j * 16 + 8 * i + 2 * q + 1], base));
            float c[4] = { l * alpha, l * alpha, 0, 0 };
            for (int j = 0; j < 4; j++)
                cu_mma<IS_BF16>(c, a[j], IS_BF16 ? 0x3F803F80u : 0x3C003C00u,
                                IS_BF16 ? 0x3F803F80u : 0x3C003C00u);
            l = __shfl_sync(0xFFFFFFFFu, c[0], 0);
            for (int d = 0; d < p.kv.pad_dim; d += 8) {
                float o[4] = { sh.o[d + 2 * q] * alpha, sh.o[d + 2 * q + 1] * alpha, 0, 0 };
                __syncwarp();
                for (int j = 0; j < 4; j++) {
                    uint32_t b[2];
                    for (int i = 0; i < 2; i++)
                        b[i] = kv[kv_v_at(p.kv, j * 16 + 8 * i + 2 * q, d + g)] |
                               (uint32_t)kv[kv_v_at(p.kv, j * 16 + 8 * i + 2 * q + 1, d + g)] << 16;
                    cu_mma<IS_BF16>(o, a[j], b[0], b[1]);
                }
                if (g == 0)
                    sh.o[d + 2 * q] = o[0], sh.o[d + 2 * q + 1] = o[1];
                __syncwarp();
            }
        }
        float a, b;
        merge_factors(M, m, a, b);
        L = fmaf(l, b, L * a);
        for (int d = lane; d < p.kv.pad_dim; d += CU_WARP)
            sh.total[d] = fmaf(sh.o[d], b, sh.total[d] * a);
    }
    for (int d = lane; d < p.kv.head_dim; d += CU_WARP)
        if (!store_one(p, at.row, at.head, d, sh.total[d] * (1.0f / L)))
            p.flags[at.row] = 1;
}

extern "C" int cu_launch_attention_plain(const cu_attention *p, cu_stream s)
{
    dim3 grid((unsigned)(CU_SLOTS * p->kv.n_kv_heads), 1, (unsigned)p->n_tiles);
    return p->kv.type ? cu_launch(k_attention_plain<true>, grid, dim3(CU_WARP), 0, s, *p)
                      : cu_launch(k_attention_plain<false>, grid, dim3(CU_WARP), 0, s, *p);
}
