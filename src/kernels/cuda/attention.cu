/* Attention of few rows: a block of four warps has 16 slots (rows of a sequence times heads that share a kv head) and one split, or all of
 * them one after the other. Warps take a page each for the scores, then columns of V each. */
#include "kernels/cuda/attention.cuh"

#define WARPS    4
#define PITCH    (CU_PAGE + 4)
#define COMBINED 16 /* splits that are loaded together */

struct scores {
    float s[WARPS][CU_SLOTS][PITCH];
    float max[WARPS][CU_SLOTS];
};

/* Shared memory for scores, in whose place the results come. */
static __host__ __device__ __forceinline__ size_t scratch_bytes(int pad_dim)
{
    size_t results = (size_t)CU_SLOTS * (size_t)pad_dim * sizeof(float);
    return results > sizeof(scores) ? results : sizeof(scores);
}

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
template <bool IS_BF16, bool HAS_CAP>
static __device__ void page_scores(const cu_attention &p, const uint16_t *sq, const uint16_t *k,
                                   int key0, int pos_g, int pos_h, bool has_upper, scores *sc,
                                   int warp, int lane)
{
    int g = lane / 4, q = lane % 4, units = p.kv.pad_dim / CU_UNIT;
    float c[8][4] = {};
    for (int v = 0; v < units; v++) {
        uint32_t a[4][4];
        load_a(a, sq + v * CU_UNIT, p.kv.pad_dim, g, q);
        uint4 x[8], y[8];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint4 *at =
                (const uint4 *)(k + (int64_t)(n * 8 + g) * p.kv.pad_dim + v * CU_UNIT + q * 16);
            x[n] = __ldcg(at), y[n] = __ldcg(at + 1);
        }
        products<IS_BF16, 8>(c, a, x, y);
    }
    float mg = -INFINITY, mh = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int key = key0 + n * 8 + 2 * q;
        float s0 = score_of<HAS_CAP>(p, c[n][0], pos_g, key);
        float s1 = score_of<HAS_CAP>(p, c[n][1], pos_g, key + 1);
        mg = fmaxf(mg, fmaxf(s0, s1));
        *(float2 *)&sc->s[warp][g][n * 8 + 2 * q] = make_float2(s0, s1);
    }
    if (has_upper)
#pragma unroll
        for (int n = 0; n < 8; n++) {
            int key = key0 + n * 8 + 2 * q;
            float s0 = score_of<HAS_CAP>(p, c[n][2], pos_h, key);
            float s1 = score_of<HAS_CAP>(p, c[n][3], pos_h, key + 1);
            mh = fmaxf(mh, fmaxf(s0, s1));
            *(float2 *)&sc->s[warp][g + 8][n * 8 + 2 * q] = make_float2(s0, s1);
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
                                int column0, bool has_upper, int lane)
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
        for (int i = 0; i < 4; i += 2) {
            float2 x = *(const float2 *)&sc->s[page][g][j * 16 + i / 2 * 8 + 2 * q];
            a[j][i] = cu_pack2<IS_BF16>(p_of<IS_BF16>(x.x, base0), p_of<IS_BF16>(x.y, base0));
            a[j][i + 1] = 0;
        }
    if (has_upper)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 1; i < 4; i += 2) {
                float2 x = *(const float2 *)&sc->s[page][g + 8][j * 16 + i / 2 * 8 + 2 * q];
                a[j][i] = cu_pack2<IS_BF16>(p_of<IS_BF16>(x.x, base1), p_of<IS_BF16>(x.y, base1));
            }
#pragma unroll
    for (int j = 0; j < 4; j++)
        cu_mma<IS_BF16>(st.l, a[j], one, one);
    uint4 x[NT], y[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint4 *at = (const uint4 *)(v + (int64_t)(column0 + n * 8 + g) * CU_PAGE + q * 16);
        x[n] = __ldcg(at), y[n] = __ldcg(at + 1);
    }
    products<IS_BF16, NT>(st.o, a, x, y);
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

/* The result of the warp's columns to shared memory, [16][pad_dim]. */
template <int NT>
static __device__ __forceinline__ void put_total(const state<NT> &st, float *o, int pad_dim,
                                                 int column0, int lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float inv = 1.0f / st.l[2 * i];
        float *to = o + (lane / 4 + 8 * i) * pad_dim + column0 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < NT; n++)
            *(float2 *)(to + n * 8) = make_float2(st.o[n][2 * i] * inv, st.o[n][2 * i + 1] * inv);
    }
}

template <bool IS_BF16, int NT, bool HAS_CAP>
static __global__ void __launch_bounds__(WARPS *CU_WARP) k_attention(cu_attention p)
{
    extern __shared__ __align__(16) uint8_t smem[];
    scores *sc = (scores *)smem;
    uint16_t *sq = (uint16_t *)(smem + scratch_bytes(p.kv.pad_dim));
    int lane = (int)threadIdx.x % CU_WARP, warp = (int)threadIdx.x / CU_WARP, g = (int)blockIdx.y;
    cu_start_next();
    cu_tile tile = p.tiles[blockIdx.z];
    cu_seq s = p.seqs[tile.seq];
    int split = (int)blockIdx.x;
    int last_slot = min(tile.slot0 + CU_SLOTS, s.n_rows * p.per) - 1;
    int page0 = first_page(p, s.pos0 + row_of(p, tile.slot0)),
        page1 = (s.pos0 + row_of(p, last_slot)) / CU_PAGE;
    bool is_in = !p.n_splits || split <= page1 / WARPS;
    slot at[2] = { slot_of(p, s, g, tile.slot0 + lane / 4),
                   slot_of(p, s, g, tile.slot0 + lane / 4 + 8) };
    int column0 = warp * NT * 8;
    bool has_upper = last_slot - tile.slot0 >= 8; /* else rows g + 8 of all products are nobody's */
    int sp0 = p.n_splits ? split : page0 / WARPS, sp1 = p.n_splits ? split : page1 / WARPS;
    if (!p.is_small && is_in && lane == 0 && sp0 * WARPS + warp >= page0 &&
        sp0 * WARPS + warp <= page1)
        fetch_page(kv_page(p.kv, p.pages[s.pages + sp0 * WARPS + warp], g), 2 * kv_part(p.kv));
    /* A first pass before the kernel that makes q, k and v has ended: its results are thrown away, but the pages of earlier steps and these
     * instructions, which take longer to come than to run, are near then. */
    for (int pass = p.is_small && is_in ? 0 : 1; pass < 2; pass++) {
        bool is_real = pass == 1;
        if (is_real)
            cu_wait_before();
        if (!is_in)
            return;
        load_q<IS_BF16>(p, s, g, tile.slot0, sq, (int)threadIdx.x, WARPS * CU_WARP, is_real);
        __syncthreads();
        state<NT> st, total;
        state_clear(total);
        for (int i = 0; i < 2; i++)
            if (p.sinks && at[i].row >= 0) {
                total.m[i] = p.sinks[at[i].head];
                total.l[2 * i] = total.l[2 * i + 1] = 1;
            }
#pragma unroll 1
        for (int sp = sp0; sp <= (is_real ? sp1 : sp0); sp++) {
            int page = sp * WARPS + warp;
            if (page >= page0 && page <= page1)
                page_scores<IS_BF16, HAS_CAP>(p, sq, kv_page(p.kv, p.pages[s.pages + page], g),
                                              page * CU_PAGE, at[0].pos, at[1].pos, has_upper, sc,
                                              warp, lane);
            __syncthreads();
            state_clear(st);
#pragma unroll 1
            for (int i = 0; i < WARPS; i++) {
                page = sp * WARPS + i;
                if (page >= page0 && page <= page1)
                    add_page<IS_BF16, NT>(st, sc, i,
                                          kv_page(p.kv, p.pages[s.pages + page], g) + kv_part(p.kv),
                                          column0, has_upper, lane);
            }
            if (!p.n_splits)
                state_merge<NT>(total, st);
            else if (is_real)
                store_partial<NT>(p, st, at, sp, column0, lane);
            __syncthreads();
        }
        if (p.n_splits)
            continue;
        put_total<NT>(total, (float *)smem, p.kv.pad_dim, column0, lane);
        __syncthreads();
        if (is_real)
            store_slots(p, s, g, tile.slot0, (const float *)smem, (int)threadIdx.x,
                        WARPS * CU_WARP);
    }
}

/* Merge the splits of a row and head; a thread per column. */
static __global__ void k_combine(cu_attention p)
{
    cu_start_next();
    int d = (int)threadIdx.x, head = (int)blockIdx.x;
    cu_tile tile = p.tiles[blockIdx.z];
    cu_seq s = p.seqs[tile.seq];
    int t =
        row_of(p, tile.slot0) + (int)blockIdx.y; /* one of the rows that the tile has a slot of */
    int slot0 = t * p.per + head % p.per;
    cu_wait_before();
    if (t >= s.n_rows || slot0 < tile.slot0 || slot0 >= tile.slot0 + CU_SLOTS)
        return;
    int row = s.row0 + t, pos = s.pos0 + t, end = pos / CU_SPLIT + 1;
    float M = -INFINITY, L = 0, O = 0;
    if (p.sinks) {
        M = p.sinks[head];
        L = 1;
    }
    for (int sp = first_page(p, pos) / WARPS; sp < end; sp += COMBINED) {
        float m[COMBINED], l[COMBINED], o[COMBINED];
#pragma unroll
        for (int i = 0; i < COMBINED; i++) {
            const float *from = p.partial + partial_at(p, row, head, sp + i < end ? sp + i : sp);
            m[i] = from[0];
            l[i] = from[1];
            o[i] = from[4 + d];
        }
#pragma unroll
        for (int i = 0; i < COMBINED; i++) {
            float a, b;
            if (sp + i >= end)
                break;
            merge_factors(M, m[i], a, b);
            L = fmaf(l[i], b, L * a);
            O = fmaf(o[i], b, O * a);
        }
    }
    float v = O * (1.0f / L);
    bool ok = store_one(p, row, head, d, v);
    if (!ok)
        p.flags[row] = 1;
    if (p.to_bf16.out && d < p.kv.head_dim)
        cu_put_bf16(p.to_bf16, row, head * p.kv.head_dim + d, ok ? v : 0);
}

template <bool IS_BF16, int NT> static int narrow(const cu_attention *p, cu_stream s)
{
    void (*kernel)(cu_attention) =
        p->softcap > 0 ? k_attention<IS_BF16, NT, true> : k_attention<IS_BF16, NT, false>;
    size_t smem = scratch_bytes(p->kv.pad_dim) + (size_t)CU_SLOTS * p->kv.pad_dim * 2;
    int splits = p->n_splits ? p->n_splits : 1;
    int e = cu_launch_big(kernel,
                          dim3((unsigned)splits, (unsigned)p->kv.n_kv_heads, (unsigned)p->n_tiles),
                          dim3(WARPS * CU_WARP), smem, s, *p);
    if (e || !p->n_splits)
        return e;
    unsigned rows = (unsigned)((CU_SLOTS + p->per - 1) / p->per + (CU_SLOTS % p->per != 0));
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
