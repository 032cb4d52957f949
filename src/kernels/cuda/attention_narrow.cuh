/* attention_narrow.cuh - attention of few rows, whatever the cache's type.
 *
 * A block of eight warps has 16 slots (rows of a sequence times heads that share a kv head) and one split, or all of
 * them one after the other. Two warps take a page for the scores, half of its positions each, and turn them into fragments of weights;
 * then each warp has an eighth of V's columns. What a warp runs is short and straight: with so few warps to a scheduler an instruction takes
 * five cycles, and code that runs once is fetched more slowly still. */
#ifndef PLUMB_KERNELS_CUDA_ATTENTION_NARROW_CUH
#define PLUMB_KERNELS_CUDA_ATTENTION_NARROW_CUH

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

/* Where 16-byte piece c of a position's row stands where V lies by positions: eight rows' pieces of one number meet no bank twice, nor do the
 * even pieces of one row. */
template <int UNITS> static __device__ __forceinline__ int piece_at(int row, int c)
{
    return row * 8 * UNITS + (c ^ (row & 7) ^ (c >> 3));
}

/* ... the same of values that lie by positions: turned as they are read. */
template <int UNITS>
static __device__ __forceinline__ void values_by_position(uint4 x[UNITS], uint4 y[UNITS],
                                                          const shared<UNITS> &sh, int i, int warp,
                                                          int lane)
{
    const uint4 *rows = &sh.v[i][0][0];
#pragma unroll
    for (int n = 0; n < UNITS; n++) {
        x[n] = cu_turned(rows + piece_at<UNITS>(lane, warp * UNITS + n));
        y[n] = cu_turned(rows + piece_at<UNITS>(CU_WARP + lane, warp * UNITS + n));
    }
}

/* One split onto a state that is clear. BY_POSITION: how V lies in shared memory. */
template <bool IS_BF16, int UNITS, bool HAS_CAP, bool BY_POSITION>
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
        if (BY_POSITION)
            values_by_position<UNITS>(x, y, sh, i, warp, lane);
        else
            values_of<UNITS>(x, y, sh, p, k, first, i, warp, lane);
        add_page<IS_BF16, UNITS>(st, sh.weights[i], x, y, w[0].alpha[i], w[1].alpha[i], lane);
    }
    st.m[0] = w[0].m, st.m[1] = w[1].m;
}

int cu_attention_combine(const cu_attention *p, cu_stream s); /* attention_combine.cu */

/* A block for each split, and what makes them one; or one for all of a tile's. */
template <int UNITS>
static int launch_narrow(void (*kernel)(cu_attention), const cu_attention *p, cu_stream s)
{
    unsigned splits = p->n_splits ? (unsigned)p->n_splits : 1;
    int e = cu_launch_big(kernel, dim3(splits, (unsigned)p->kv.n_kv_heads, (unsigned)p->n_tiles),
                          dim3(THREADS), sizeof(shared<UNITS>), s, *p);
    return e || !p->n_splits ? e : cu_attention_combine(p, s);
}

#endif
