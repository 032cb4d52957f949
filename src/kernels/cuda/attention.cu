/* Attention of few rows: a block of four warps has 16 slots (rows of a sequence times heads that share a kv head) and one split, or all of
 * them one after the other. Warps take a page each for the scores, then columns of V each. */
#include "kernels/cuda/attention.cuh"

#define WARPS 4
#define PITCH (CU_PAGE + 4)

struct scores {
    float s[WARPS][CU_SLOTS][PITCH];
    float max[WARPS][CU_SLOTS];
};

/* Four steps of 16 columns of an A operand, rows g and g + 8 of a [16][pitch] array in the lanes' order. */
static __device__ __forceinline__ void load_a(uint32_t a[4][4], const uint16_t *at, int pitch,
                                              int g, int q)
{
    const uint4 *lo = (const uint4 *)(at + g * pitch + q * 16);
    const uint4 *hi = (const uint4 *)(at + (g + 8) * pitch + q * 16);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 x = lo[i], y = hi[i];
        a[2 * i][0] = x.x, a[2 * i][2] = x.y, a[2 * i + 1][0] = x.z, a[2 * i + 1][2] = x.w;
        a[2 * i][1] = y.x, a[2 * i][3] = y.y, a[2 * i + 1][1] = y.z, a[2 * i + 1][3] = y.w;
    }
}

/* Scores of the 16 slots with the 64 positions of a page. */
template <bool IS_BF16>
static __device__ void page_scores(const cu_attention &p, const uint16_t *sq, const uint16_t *k,
                                   int key0, int pos_g, int pos_h, scores *sc, int warp, int lane)
{
    int g = lane / 4, q = lane % 4, units = p.kv.pad_dim / CU_UNIT;
    float c[8][4] = {};
    for (int v = 0; v < units; v++) {
        uint32_t a[4][4];
        load_a(a, sq + v * CU_UNIT, p.kv.pad_dim, g, q);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint4 *at =
                (const uint4 *)(k + (int64_t)(n * 8 + g) * p.kv.pad_dim + v * CU_UNIT + q * 16);
            uint4 x = __ldcg(at), y = __ldcg(at + 1);
            cu_mma<IS_BF16>(c[n], a[0], x.x, x.y);
            cu_mma<IS_BF16>(c[n], a[1], x.z, x.w);
            cu_mma<IS_BF16>(c[n], a[2], y.x, y.y);
            cu_mma<IS_BF16>(c[n], a[3], y.z, y.w);
        }
    }
    float mg = -INFINITY, mh = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int key = key0 + n * 8 + 2 * q;
        float s0 = score_of(p, c[n][0], pos_g, key), s1 = score_of(p, c[n][1], pos_g, key + 1);
        float s2 = score_of(p, c[n][2], pos_h, key), s3 = score_of(p, c[n][3], pos_h, key + 1);
        mg = fmaxf(mg, fmaxf(s0, s1));
        mh = fmaxf(mh, fmaxf(s2, s3));
        *(float2 *)&sc->s[warp][g][n * 8 + 2 * q] = make_float2(s0, s1);
        *(float2 *)&sc->s[warp][g + 8][n * 8 + 2 * q] = make_float2(s2, s3);
    }
    for (int w = 1; w < 4; w *= 2) {
        mg = fmaxf(mg, __shfl_xor_sync(0xFFFFFFFFu, mg, w));
        mh = fmaxf(mh, __shfl_xor_sync(0xFFFFFFFFu, mh, w));
    }
    if (q == 0) {
        sc->max[warp][g] = mg;
        sc->max[warp][g + 8] = mh;
    }
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

/* One block onto the state. v: the page's V; the warp's columns begin at column0. */
template <bool IS_BF16, int NT>
static __device__ void add_page(state<NT> &st, const scores *sc, int page, const uint16_t *v,
                                int column0, int lane)
{
    const uint32_t one = IS_BF16 ? 0x3F803F80u : 0x3C003C00u;
    int g = lane / 4, q = lane % 4;
    float m0 = fmaxf(st.m[0], sc->max[page][g]), m1 = fmaxf(st.m[1], sc->max[page][g + 8]);
    float base0 = base_of(m0), base1 = base_of(m1);
    float a0 = weight_of(st.m[0], base0), a1 = weight_of(st.m[1], base1);
    st.m[0] = m0, st.m[1] = m1;
    st.l[0] *= a0, st.l[1] *= a0, st.l[2] *= a1, st.l[3] *= a1;
#pragma unroll
    for (int n = 0; n < NT; n++)
        st.o[n][0] *= a0, st.o[n][1] *= a0, st.o[n][2] *= a1, st.o[n][3] *= a1;
    uint32_t a[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *s = &sc->s[page][g + i % 2 * 8][j * 16 + i / 2 * 8 + 2 * q];
            float2 x = *(const float2 *)s;
            float base = i % 2 ? base1 : base0;
            a[j][i] = cu_pack2<IS_BF16>(weight_of(x.x, base), weight_of(x.y, base));
        }
#pragma unroll
    for (int j = 0; j < 4; j++)
        cu_mma<IS_BF16>(st.l, a[j], one, one);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint4 *at = (const uint4 *)(v + (int64_t)(column0 + n * 8 + g) * CU_PAGE + q * 16);
        uint4 x = __ldcg(at), y = __ldcg(at + 1);
        cu_mma<IS_BF16>(st.o[n], a[0], x.x, x.y);
        cu_mma<IS_BF16>(st.o[n], a[1], x.z, x.w);
        cu_mma<IS_BF16>(st.o[n], a[2], y.x, y.y);
        cu_mma<IS_BF16>(st.o[n], a[3], y.z, y.w);
    }
}

/* A split's state onto the total. */
template <int NT>
static __device__ __forceinline__ void state_merge(state<NT> &to, const state<NT> &st)
{
    float a[2], b[2];
    for (int i = 0; i < 2; i++)
        merge_factors(to.m[i], st.m[i], a[i], b[i]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        to.l[i] = fmaf(st.l[i], b[i / 2], to.l[i] * a[i / 2]);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to.o[n][i] = fmaf(st.o[n][i], b[i / 2], to.o[n][i] * a[i / 2]);
}

/* Partial results of a split: [row][head][split] of m, l, then pad_dim sums; floats of one. */
static __device__ __forceinline__ int64_t partial_at(const cu_attention &p, int row, int head,
                                                     int split)
{
    return (((int64_t)row * p.n_heads + head) * p.n_splits + split) * (p.kv.pad_dim + 4);
}

template <int NT>
static __device__ void store_partial(const cu_attention &p, const state<NT> &st, const slot at[2],
                                     int split, int column0, int lane)
{
    int q = lane % 4;
    for (int i = 0; i < 2; i++) {
        if (at[i].row < 0)
            continue;
        float *to = p.partial + partial_at(p, at[i].row, at[i].head, split);
        if (column0 == 0 && q == 0) {
            to[0] = st.m[i];
            to[1] = st.l[2 * i];
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
            *(float2 *)(to + 4 + column0 + n * 8 + 2 * q) =
                make_float2(st.o[n][2 * i], st.o[n][2 * i + 1]);
    }
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

template <int NT>
static __device__ void store_total(const cu_attention &p, const state<NT> &st, const slot at[2],
                                   int column0, int lane)
{
    for (int i = 0; i < 2; i++) {
        if (at[i].row < 0)
            continue;
        float inv = 1.0f / st.l[2 * i];
        bool ok = true;
#pragma unroll
        for (int n = 0; n < NT; n++)
            for (int k = 0; k < 2; k++)
                ok = store_one(p, at[i].row, at[i].head, column0 + n * 8 + lane % 4 * 2 + k,
                               st.o[n][2 * i + k] * inv) &&
                     ok;
        if (!ok)
            p.flags[at[i].row] = 1;
    }
}

template <bool IS_BF16, int NT>
static __global__ void __launch_bounds__(WARPS *CU_WARP) k_attention(cu_attention p)
{
    extern __shared__ __align__(16) uint8_t smem[];
    scores *sc = (scores *)smem;
    uint16_t *sq = (uint16_t *)(smem + sizeof(scores));
    int lane = (int)threadIdx.x % CU_WARP, warp = (int)threadIdx.x / CU_WARP, g = (int)blockIdx.y;
    cu_wait_before();
    cu_tile tile = p.tiles[blockIdx.z];
    cu_seq s = p.seqs[tile.seq];
    int per = p.n_heads / p.kv.n_kv_heads, split = (int)blockIdx.x;
    int last_slot = min(tile.slot0 + CU_SLOTS, s.n_rows * per) - 1;
    int page0 = first_page(p, s.pos0 + tile.slot0 / per),
        page1 = (s.pos0 + last_slot / per) / CU_PAGE;
    if (p.n_splits && split > page1 / WARPS)
        return;
    load_q<IS_BF16>(p, s, g, tile.slot0, sq, (int)threadIdx.x, WARPS * CU_WARP);
    __syncthreads();
    slot at[2] = { slot_of(p, s, g, tile.slot0 + lane / 4),
                   slot_of(p, s, g, tile.slot0 + lane / 4 + 8) };
    int column0 = warp * NT * 8;
    state<NT> st, total;
    state_clear(total);
    for (int i = 0; i < 2; i++)
        if (p.sinks && at[i].row >= 0) {
            total.m[i] = p.sinks[at[i].head];
            total.l[2 * i] = total.l[2 * i + 1] = 1;
        }
    int sp0 = p.n_splits ? split : page0 / WARPS, sp1 = p.n_splits ? split : page1 / WARPS;
    for (int sp = sp0; sp <= sp1; sp++) {
        int page = sp * WARPS + warp;
        if (page >= page0 && page <= page1)
            page_scores<IS_BF16>(p, sq, kv_page(p.kv, p.pages[s.pages + page], g), page * CU_PAGE,
                                 at[0].pos, at[1].pos, sc, warp, lane);
        __syncthreads();
        state_clear(st);
        for (int i = 0; i < WARPS; i++) {
            page = sp * WARPS + i;
            if (page >= page0 && page <= page1)
                add_page<IS_BF16, NT>(st, sc, i,
                                      kv_page(p.kv, p.pages[s.pages + page], g) + kv_part(p.kv),
                                      column0, lane);
        }
        if (p.n_splits)
            store_partial<NT>(p, st, at, sp, column0, lane);
        else
            state_merge<NT>(total, st);
        __syncthreads();
    }
    if (!p.n_splits)
        store_total<NT>(p, total, at, column0, lane);
}

/* Merge the splits of a row and head; a thread per column. */
static __global__ void k_combine(cu_attention p)
{
    cu_wait_before();
    int d = (int)threadIdx.x, head = (int)blockIdx.x;
    cu_tile tile = p.tiles[blockIdx.z];
    cu_seq s = p.seqs[tile.seq];
    int per = p.n_heads / p.kv.n_kv_heads;
    int t = tile.slot0 / per + (int)blockIdx.y; /* one of the rows that the tile has a slot of */
    int slot0 = t * per + head % per;
    if (t >= s.n_rows || slot0 < tile.slot0 || slot0 >= tile.slot0 + CU_SLOTS)
        return;
    int row = s.row0 + t, pos = s.pos0 + t;
    float M = -INFINITY, L = 0, O = 0;
    if (p.sinks) {
        M = p.sinks[head];
        L = 1;
    }
    for (int sp = first_page(p, pos) / WARPS; sp <= pos / CU_SPLIT; sp++) {
        const float *from = p.partial + partial_at(p, row, head, sp);
        float m = from[0], a, b;
        merge_factors(M, m, a, b);
        L = fmaf(from[1], b, L * a);
        O = fmaf(from[4 + d], b, O * a);
    }
    if (!store_one(p, row, head, d, O * (1.0f / L)))
        p.flags[row] = 1;
}

template <bool IS_BF16, int NT> static int narrow(const cu_attention *p, cu_stream s)
{
    size_t smem = sizeof(scores) + (size_t)CU_SLOTS * p->kv.pad_dim * 2;
    int splits = p->n_splits ? p->n_splits : 1;
    int e = cu_launch_big(k_attention<IS_BF16, NT>,
                          dim3((unsigned)splits, (unsigned)p->kv.n_kv_heads, (unsigned)p->n_tiles),
                          dim3(WARPS * CU_WARP), smem, s, *p);
    if (e || !p->n_splits)
        return e;
    int per = p->n_heads / p->kv.n_kv_heads;
    unsigned rows = (unsigned)((CU_SLOTS + per - 1) / per + (CU_SLOTS % per != 0));
    return cu_launch(k_combine, dim3((unsigned)p->n_heads, rows, (unsigned)p->n_tiles),
                     dim3((unsigned)p->kv.pad_dim), 0, s, *p);
}

int cu_attention_wide(const cu_attention *p, cu_stream s); /* attention_wide.cu */

template <bool IS_BF16> static int launch(const cu_attention *p, cu_stream s)
{
    switch (p->kv.pad_dim) { /* columns of a warp: a quarter */
    case 64:
        return narrow<IS_BF16, 2>(p, s);
    case 128:
        return narrow<IS_BF16, 4>(p, s);
    case 192:
        return narrow<IS_BF16, 6>(p, s);
    case 256:
        return narrow<IS_BF16, 8>(p, s);
    case 320:
        return narrow<IS_BF16, 10>(p, s);
    case 384:
        return narrow<IS_BF16, 12>(p, s);
    case 448:
        return narrow<IS_BF16, 14>(p, s);
    default:
        return narrow<IS_BF16, 16>(p, s);
    }
}

extern "C" int cu_launch_attention(const cu_attention *p, cu_stream s)
{
    if (p->is_wide)
        return cu_attention_wide(p, s);
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
    for (int sp = page0 / WARPS; sp <= at.pos / CU_SPLIT; sp++) {
        float m = -INFINITY, l = 0;
        for (int d = lane; d < p.kv.pad_dim; d += CU_WARP)
            sh.o[d] = 0;
        __syncwarp();
        for (int page = max(sp * WARPS, page0); page <= min(sp * WARPS + 3, at.pos / CU_PAGE);
             page++) {
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
                    sh.s[j] = score_of(p, c[0], at.pos, page * CU_PAGE + j);
                    sh.s[j + 1] = score_of(p, c[1], at.pos, page * CU_PAGE + j + 1);
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
