/* Attention of few rows: a block of eight warps has 16 slots (rows of a sequence times heads that share a kv head) and one split, or all of
 * them one after the other. Two warps take a page for the scores, half of its positions each, and turn them into fragments of weights;
 * then each warp has an eighth of V's columns. What a warp runs is short and straight: with so few warps to a scheduler an instruction takes
 * five cycles, and code that runs once is fetched more slowly still. */
#include "kernels/cuda/attention.cuh"

#define WARPS   8
#define THREADS (WARPS * CU_WARP)
#define TILES   4 /* of 8 positions, that a warp has scores of */

/* Columns of a head (padded), and of a warp in tiles of 8. */
template <int UNITS> struct shape {
    static const int DIM = UNITS * CU_UNIT, NT = UNITS;
    static const int PITCH = DIM + 8;        /* of a query: rows begin in other banks */
    static const bool IS_AHEAD = UNITS <= 2; /* keys and values come before the queries do */
};

template <int UNITS> struct shared {
    uint4 weights[SPLIT_PAGES][4][CU_WARP]; /* fragments of a page's steps of 16 positions */
    float max[CU_SLOTS][WARPS];             /* of the scores that a warp has */
    uint16_t q[CU_SLOTS][shape<UNITS>::PITCH];
    /* V of a split, pieces of 16 bytes swizzled by their row's number, so that a warp's reads meet no bank twice */
    uint4 v[shape<UNITS>::IS_AHEAD ? SPLIT_PAGES : 1]
           [shape<UNITS>::IS_AHEAD ? shape<UNITS>::DIM : 1][8];
};

/* Q of the tile's slots in the cache's type and the lanes' order; rows of nobody keep what was there. */
template <bool IS_BF16, int UNITS>
static __device__ __forceinline__ void load_queries(shared<UNITS> &sh, const cu_attention &p,
                                                    const cu_seq &s, int g, int slot0, int n)
{
    const int QUADS = shape<UNITS>::DIM / 4;
    int dim = p.kv.head_dim;
    bool is_whole = (dim | (int)p.q.stride | (int)((uintptr_t)p.q.data / 4)) % 4 == 0;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n * QUADS; i += THREADS) {
        int r = i / QUADS, d = i % QUADS * 4, t = row_of(p, slot0 + r);
        int head = g * p.per + slot0 + r - t * p.per;
        const float *x = p.q.data + (int64_t)(s.row0 + t) * p.q.stride + head * dim + d;
        float4 v = make_float4(0, 0, 0, 0);
        if (is_whole) {
            if (d < dim)
                v = __ldcg((const float4 *)x);
        } else {
            v.x = d < dim ? __ldcg(x) : 0;
            v.y = d + 1 < dim ? __ldcg(x + 1) : 0;
            v.z = d + 2 < dim ? __ldcg(x + 2) : 0;
            v.w = d + 3 < dim ? __ldcg(x + 3) : 0;
        }
        put_q<IS_BF16>(p, { s.row0 + t, head, 0 }, d, v, sh.q[r]);
    }
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

/* The lane's part of a unit of N rows of eight, PITCH elements apart. */
template <int N, int PITCH>
static __device__ __forceinline__ void load_rows(uint4 x[N], uint4 y[N], const uint16_t *at)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint4 *from = (const uint4 *)(at + n * 8 * PITCH);
        x[n] = __ldcg(from), y[n] = __ldcg(from + 1);
    }
}

/* Keys of the warp's 32 positions: all of them where heads are small, else a unit at a time. */
template <int UNITS> struct keys {
    static const int N = shape<UNITS>::IS_AHEAD ? UNITS : 1;
    uint4 x[N][TILES], y[N][TILES];
};

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

template <bool IS_BF16, int UNITS>
static __device__ __forceinline__ void dots(float c[TILES][4], keys<UNITS> &k, const uint16_t *at,
                                            const shared<UNITS> &sh, int lane)
{
    const int N = keys<UNITS>::N;
    uint32_t a[4][4];
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0;
#pragma unroll
    for (int v = 0; v < N; v++) {
        load_a(a, sh.q[0] + v * CU_UNIT, shape<UNITS>::PITCH, lane / 4, lane % 4);
        products<IS_BF16, TILES>(c, a, k.x[v], k.y[v]);
    }
#pragma unroll 1
    for (int v = N; v < UNITS; v++) {
        load_rows<TILES, shape<UNITS>::DIM>(k.x[0], k.y[0], at + v * CU_UNIT);
        load_a(a, sh.q[0] + v * CU_UNIT, shape<UNITS>::PITCH, lane / 4, lane % 4);
        products<IS_BF16, TILES>(c, a, k.x[0], k.y[0]);
    }
}

/* The scores of row g (half 0) or g + 8 of a lane, capped and masked; returns the row's maximum. key: the lane's first position. */
template <bool HAS_CAP>
static __device__ __forceinline__ float finish_scores(float c[TILES][4], int half,
                                                      const cu_attention &p, int pos, int key,
                                                      bool is_all)
{
    float most = -INFINITY;
    int last = pos - key, first = p.window ? last - p.window + 1 : INT32_MIN;
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            c[n][2 * half + i] = capped<HAS_CAP>(p, c[n][2 * half + i]);
    if (!is_all)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (n * 8 + i > last || n * 8 + i < first)
                    c[n][2 * half + i] = -INFINITY;
#pragma unroll
    for (int n = 0; n < TILES; n++)
        most = fmaxf(most, fmaxf(c[n][2 * half], c[n][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    return fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
}

/* A row's way through the pages of a split: the factor of what stands before each page, the maximum at the end. */
struct way {
    float alpha[SPLIT_PAGES], m;
};

/* Returns what is subtracted from the scores of page `mine`. */
static __device__ __forceinline__ float walk(way &w, const float *max, int mine)
{
    float4 x = *(const float4 *)max, y = *(const float4 *)(max + 4);
    float page[SPLIT_PAGES] = { fmaxf(x.x, x.y), fmaxf(x.z, x.w), fmaxf(y.x, y.y),
                                fmaxf(y.z, y.w) };
    float own = 0;
    w.m = -INFINITY;
#pragma unroll
    for (int i = 0; i < SPLIT_PAGES; i++) {
        float m = fmaxf(w.m, page[i]), base = base_of(m);
        w.alpha[i] = weight_of(w.m, base);
        own = i == mine ? base : own;
        w.m = m;
    }
    return own;
}

/* Weights of the row's scores as words of fragments: first columns, and those eight behind, of each step. */
template <bool IS_BF16>
static __device__ __forceinline__ void weigh(uint4 f[2], const float c[TILES][4], int half,
                                             float base)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t w[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            w[i] = cu_pack2<IS_BF16>(p_of<IS_BF16>(c[2 * j + i][2 * half], base),
                                     p_of<IS_BF16>(c[2 * j + i][2 * half + 1], base));
        if (half)
            f[j].y = w[0], f[j].w = w[1];
        else
            f[j].x = w[0], f[j].z = w[1];
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

/* One block onto the state: its weights, its values, the factors of what is there. */
template <bool IS_BF16, int NT>
static __device__ __forceinline__ void add_page(state<NT> &st, const uint4 weights[4][CU_WARP],
                                                const uint4 x[NT], const uint4 y[NT], float a0,
                                                float a1, int lane)
{
    const uint32_t one = IS_BF16 ? 0x3F803F80u : 0x3C003C00u;
    st.l[0] *= a0, st.l[1] *= a0, st.l[2] *= a1, st.l[3] *= a1;
#pragma unroll
    for (int n = 0; n < NT; n++)
        st.o[n][0] *= a0, st.o[n][1] *= a0, st.o[n][2] *= a1, st.o[n][3] *= a1;
    uint32_t a[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 f = weights[j][lane];
        a[j][0] = f.x, a[j][1] = f.y, a[j][2] = f.z, a[j][3] = f.w;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        cu_mma<IS_BF16>(st.l, a[j], one, one);
    products<IS_BF16, NT>(st.o, a, x, y);
}

/* The splits before a row's first one: none but the head's sink. */
template <int NT>
static __device__ __forceinline__ void total_init(state<NT> &total, const cu_attention &p,
                                                  const slot at[2])
{
    state_clear(total);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (p.sinks && at[i].row >= 0) {
            total.m[i] = p.sinks[at[i].head];
            total.l[2 * i] = 1;
        }
}

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

template <int NT>
static __device__ __forceinline__ void store_partial(const cu_attention &p, const state<NT> &st,
                                                     int i, const slot &at, int split, int column0,
                                                     int lane)
{
    int q = lane % 4;
    if (at.row < 0)
        return;
    float *to = p.partial + partial_at(p, at.row, at.head, split);
    if (column0 == 0 && q == 0)
        *(float2 *)to = make_float2(st.m[i], st.l[2 * i]);
    to += 4 + column0 + 2 * q;
#pragma unroll
    for (int n = 0; n < NT; n++)
        *(float2 *)(to + n * 8) = make_float2(st.o[n][2 * i], st.o[n][2 * i + 1]);
}

/* The results of row g (i 0) or g + 8 in the warp's columns, and as the product behind wants them. */
template <int NT>
static __device__ __forceinline__ void store_total(const cu_attention &p, const state<NT> &st,
                                                   int i, const slot &at, int column0, int lane)
{
    int dim = p.kv.head_dim, d = column0 + lane % 4 * 2;
    if (at.row < 0)
        return;
    float inv = 1.0f / st.l[2 * i];
    float *to = p.out.data + (int64_t)at.row * p.out.stride + at.head * dim + d;
    bool is_odd = false,
         is_even = ((dim | (int)p.out.stride) & 1) == 0 && (uintptr_t)p.out.data % 8 == 0;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float v0 = st.o[n][2 * i] * inv, v1 = st.o[n][2 * i + 1] * inv;
        if (d + n * 8 >= dim)
            break;
        is_odd = is_odd || !isfinite(v0) || (d + n * 8 + 1 < dim && !isfinite(v1));
        v0 = isfinite(v0) ? v0 : 0;
        v1 = isfinite(v1) ? v1 : 0;
        if (is_even) {
            *(float2 *)(to + n * 8) = make_float2(v0, v1);
        } else {
            to[n * 8] = v0;
            if (d + n * 8 + 1 < dim)
                to[n * 8 + 1] = v1;
        }
        if (p.to_bf16.out) /* heads are of even size then */
            cu_put_bf16x2(p.to_bf16, at.row, at.head * dim + d + n * 8, v0, v1);
    }
    if (is_odd)
        p.flags[at.row] = 1;
}

/* Where a block stands. */
struct task {
    cu_tile tile;
    cu_seq s;
    int n, page0, page1; /* slots; pages that some of them sees */
};

static __device__ __forceinline__ task task_of(const cu_attention &p)
{
    task k;
    k.tile = p.tiles[blockIdx.z];
    k.s = p.seqs[k.tile.seq];
    k.n = min(CU_SLOTS, k.s.n_rows * p.per - k.tile.slot0);
    k.page0 = first_page(p, k.s.pos0 + row_of(p, k.tile.slot0));
    k.page1 = (k.s.pos0 + row_of(p, k.tile.slot0 + k.n - 1)) / CU_PAGE;
    return k;
}

/* The warp's scores, their rows' maxima to shared memory. */
template <int UNITS, bool HAS_CAP>
static __device__ __forceinline__ void put_max(shared<UNITS> &sh, float c[TILES][4],
                                               const cu_attention &p, const task &k, int page,
                                               const slot at[2], int warp, int lane)
{
    int key = page * CU_PAGE + warp % 2 * (CU_PAGE / 2) + lane % 4 * 2;
    bool is_all = is_seen(p, k.s.pos0 + row_of(p, k.tile.slot0),
                          k.s.pos0 + row_of(p, k.tile.slot0 + k.n - 1), page * CU_PAGE);
    float most[2] = { -INFINITY, -INFINITY };
    if (page >= k.page0 && page <= k.page1) {
        most[0] = finish_scores<HAS_CAP>(c, 0, p, at[0].pos, key, is_all);
        if (k.n > 8)
            most[1] = finish_scores<HAS_CAP>(c, 1, p, at[1].pos, key, is_all);
    }
    if (lane % 4 == 0) {
        sh.max[lane / 4][warp] = most[0];
        sh.max[lane / 4 + 8][warp] = most[1];
    }
}

/* Scores to weights in shared memory; the ways of rows g and g + 8. */
template <bool IS_BF16, int UNITS>
static __device__ __forceinline__ void put_weights(way w[2], shared<UNITS> &sh,
                                                   const float c[TILES][4], bool has_upper,
                                                   int warp, int lane)
{
    uint4 f[2] = { make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0) };
    weigh<IS_BF16>(f, c, 0, walk(w[0], sh.max[lane / 4], warp / 2));
    if (has_upper)
        weigh<IS_BF16>(f, c, 1, walk(w[1], sh.max[lane / 4 + 8], warp / 2));
    else
        w[1] = { { 1, 1, 1, 1 }, -INFINITY };
#pragma unroll
    for (int j = 0; j < 2; j++)
        sh.weights[warp / 2][warp % 2 * 2 + j][lane] = f[j];
}

/* What a warp has of a split: its page, and where its keys begin there. */
struct part {
    int page;
    const uint16_t *kv, *keys;
};

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

/* The values of page i of a split for the warp's columns, from shared memory or from where they are. */
template <int UNITS>
static __device__ __forceinline__ void values_of(uint4 x[UNITS], uint4 y[UNITS],
                                                 const shared<UNITS> &sh, const cu_attention &p,
                                                 const task &k, int first, int i, int warp,
                                                 int lane)
{
    int row = warp * UNITS * 8 + lane / 4, q = lane % 4;
    if (shape<UNITS>::IS_AHEAD) {
#pragma unroll
        for (int n = 0; n < UNITS; n++) {
            x[n] = sh.v[i][row + n * 8][(2 * q) ^ (row & 7)];
            y[n] = sh.v[i][row + n * 8][(2 * q + 1) ^ (row & 7)];
        }
        return;
    }
    load_rows<UNITS, CU_PAGE>(x, y,
                              kv_page(p.kv, p.pages[k.s.pages + first + i], (int)blockIdx.y) +
                                  kv_part(p.kv) + row * CU_PAGE + q * 16);
}

/* One split onto a state that is clear. */
template <bool IS_BF16, int UNITS, bool HAS_CAP>
static __device__ __forceinline__ void add_split(state<UNITS> &st, shared<UNITS> &sh,
                                                 const cu_attention &p, const task &k,
                                                 const part &o, keys<UNITS> &kk, const slot at[2],
                                                 int warp, int lane)
{
    int first = o.page - warp / 2;
    float c[TILES][4];
    dots<IS_BF16, UNITS>(c, kk, o.keys, sh, lane);
    put_max<UNITS, HAS_CAP>(sh, c, p, k, o.page, at, warp, lane);
    __syncthreads();
    way w[2];
    put_weights<IS_BF16, UNITS>(w, sh, c, k.n > 8, warp, lane);
    cu_copy_wait_all();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SPLIT_PAGES; i++) {
        uint4 x[UNITS], y[UNITS];
        if (first + i < k.page0 || first + i > k.page1)
            continue;
        values_of<UNITS>(x, y, sh, p, k, first, i, warp, lane);
        add_page<IS_BF16, UNITS>(st, sh.weights[i], x, y, w[0].alpha[i], w[1].alpha[i], lane);
    }
    st.m[0] = w[0].m, st.m[1] = w[1].m;
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
        add_split<IS_BF16, UNITS, HAS_CAP>(st, sh, p, k, o, kk, at, warp, lane);
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

int cu_attention_combine(const cu_attention *p, cu_stream s); /* attention_combine.cu */

template <bool IS_BF16, int UNITS> static int narrow(const cu_attention *p, cu_stream s)
{
    void (*kernel)(cu_attention) =
        p->softcap > 0 ? k_attention<IS_BF16, UNITS, true> : k_attention<IS_BF16, UNITS, false>;
    int splits = p->n_splits ? p->n_splits : 1;
    int e = cu_launch_big(kernel,
                          dim3((unsigned)splits, (unsigned)p->kv.n_kv_heads, (unsigned)p->n_tiles),
                          dim3(THREADS), sizeof(shared<UNITS>), s, *p);
    if (e || !p->n_splits)
        return e;
    return cu_attention_combine(p, s);
}

int cu_attention_wide(const cu_attention *p, cu_stream s); /* attention_wide.cu */

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
