/* Attention of few rows over q8 and q4 caches, with the bits of attention over what their pages say in f16 (kvq.cu takes it out): a warp has
 * the keys of its half page in registers, as the f16 kernel has them; its values go to shared memory as codes and become f16 where they
 * stand, a row of columns for each position. Heads of one or two whole units, scores without a cap: the others' pages are taken out.
 *
 * A code c stands in the middle of a float's mantissa: as bits 0x47000000 | c << 8 it is 2^15 + c, and
 *     fma(2^15 + c, s, b - 2^15 s) = fma(c, s, b)
 * as b - 2^15 s is exact: s is b over an integer between top / 2 and 2^20, so that both have their bits within 24 places (tried for each pair
 * of f16 numbers that can stand together, and all signs). Values are within f16 then; a key's base can take it beyond. */
#include "kernels/cuda/attention_narrow.cuh"

/* A head's bytes in a page (cu_kvq). */
template <bool IS_8BIT, int UNITS> struct page_shape {
    static const int DIM = UNITS * CU_UNIT, ROW = IS_8BIT ? DIM : DIM / 2;
    static const int SCALES_AT = CU_PAGE * ROW, BASE_AT = SCALES_AT + CU_PAGE * UNITS * 4;
    static const int RELATIVE_AT = BASE_AT + 2 * DIM;
    static const int V_AT = BASE_AT + (2 * DIM + 8 * UNITS + 63) / 64 * 64;
    static const int HEAD = V_AT + BASE_AT;
    static const int PIECES = ROW / 16;                     /* of 16 bytes, of a position's codes */
    static const int MINE = CU_PAGE / 2 * PIECES / CU_WARP; /* of half a page, that a lane has */
};

template <bool IS_8BIT> struct lane_codes {
    typedef uint4 type; /* of a unit's 16 places */
};
template <> struct lane_codes<false> {
    typedef uint2 type;
};

/* What a lane has of its warp's 32 positions; scales are those of position `lane`. */
template <bool IS_8BIT, int UNITS> struct codes {
    typename lane_codes<IS_8BIT>::type k[UNITS][TILES];
    uint32_t relative[UNITS], k_scales[UNITS], v_scales[UNITS];
};

static __device__ __forceinline__ float low_half(uint32_t x)
{
    return __half2float(__ushort_as_half((uint16_t)x));
}

static __device__ __forceinline__ float high_half(uint32_t x)
{
    return __half2float(__ushort_as_half((uint16_t)(x >> 16)));
}

/* What codes are multiplied by, and added to. */
struct line {
    float s, b;
};

static __device__ __forceinline__ line line_of(uint32_t scale_bias)
{
    float s = low_half(scale_bias);
    return { s, fmaf(-32768.0f, s, high_half(scale_bias)) };
}

/* Code I of a word of four. */
template <int I> static __device__ __forceinline__ float value_of(uint32_t word, const line &l)
{
    return fmaf(__uint_as_float(__byte_perm(word, 0x47000000u, 0x7404 | I << 4)), l.s, l.b);
}

/* Four codes as values ... */
static __device__ __forceinline__ uint2 values_f16(uint32_t word, const line &l)
{
    return { cu_pack2<false>(value_of<0>(word, l), value_of<1>(word, l)),
             cu_pack2<false>(value_of<2>(word, l), value_of<3>(word, l)) };
}

/* ... as keys: u times the base is added. */
static __device__ __forceinline__ uint2 keys_f16(uint32_t word, const line &l, float u,
                                                 const float base[4])
{
    return { cu_pack2_finite(fmaf(u, base[0], value_of<0>(word, l)),
                             fmaf(u, base[1], value_of<1>(word, l))),
             cu_pack2_finite(fmaf(u, base[2], value_of<2>(word, l)),
                             fmaf(u, base[3], value_of<3>(word, l))) };
}

/* Words of four codes each, in the order of the lane's places. */
static __device__ __forceinline__ uint4 bytes_of(uint4 codes)
{
    return codes;
}

static __device__ __forceinline__ uint4 bytes_of(uint2 codes)
{
    const uint32_t nibbles = 0x0F0F0F0Fu;
    return make_uint4(codes.x & nibbles, codes.y & nibbles, codes.x >> 4 & nibbles,
                      codes.y >> 4 & nibbles);
}

/* Piece i of the lane's of its warp's half page: whose position, and which. */
template <int PIECES>
static __device__ __forceinline__ void piece_of(int i, int lane, int &row, int &c)
{
    row = i * (CU_WARP / PIECES) + lane / PIECES;
    c = lane % PIECES;
}

/* The first of the pieces of f16 that piece c of codes becomes. */
template <bool IS_8BIT> static __device__ __forceinline__ int first_of(int c)
{
    return IS_8BIT ? 2 * c : c / 2 * 8 + c % 2 * 2;
}

/* The page's base as the warp has it in shared memory: where its weights will stand. */
template <int UNITS>
static __device__ __forceinline__ uint4 *staged_base(shared<UNITS> &sh, int warp)
{
    return sh.weights[warp / 2][warp % 2 * 2];
}

/* Codes of the warp's positions: V's on their way to where the first of their values will stand. */
template <bool IS_8BIT, int UNITS>
static __device__ __forceinline__ void load_codes(codes<IS_8BIT, UNITS> &to, shared<UNITS> &sh,
                                                  const uint8_t *head, int warp, int lane)
{
    typedef page_shape<IS_8BIT, UNITS> S;
    const int LANE = IS_8BIT ? 16 : 8; /* bytes of a unit that it has */
    int half = warp % 2 * (CU_PAGE / 2);
    const uint8_t *k = head + (half + lane / 4) * S::ROW + lane % 4 * LANE;
    const uint8_t *v = head + S::V_AT + half * S::ROW + lane * 16;
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            to.k[u][n] = __ldcg(
                (const typename lane_codes<IS_8BIT>::type *)(k + n * 8 * S::ROW + u * 4 * LANE));
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        const uint8_t *scales = head + S::SCALES_AT + (u * CU_PAGE + half + lane) * 4;
        to.relative[u] = __ldcg((const uint32_t *)(head + S::RELATIVE_AT) + 2 * u + warp % 2);
        to.k_scales[u] = __ldcg((const uint32_t *)scales);
        to.v_scales[u] = __ldcg((const uint32_t *)(scales + S::V_AT));
    }
#pragma unroll
    for (int i = 0; i < S::MINE; i++) {
        int row, c;
        piece_of<S::PIECES>(i, lane, row, c);
        copy_async(&sh.v[warp / 2][0][0] + piece_at<UNITS>(half + row, first_of<IS_8BIT>(c)),
                   v + i * CU_WARP * 16);
    }
    if (lane < S::DIM / 8)
        copy_async(staged_base(sh, warp) + lane, head + S::BASE_AT + lane * 16);
}

/* The warp's values, each where it belongs; the lane's own copies alone are read. */
template <bool IS_8BIT, int UNITS>
static __device__ __forceinline__ void make_values(shared<UNITS> &sh,
                                                   const codes<IS_8BIT, UNITS> &from, int warp,
                                                   int lane)
{
    typedef page_shape<IS_8BIT, UNITS> S;
    uint4 *rows = &sh.v[warp / 2][0][0];
#pragma unroll 1
    for (int i = 0; i < S::MINE; i++) {
        int row, c;
        piece_of<S::PIECES>(i, lane, row, c);
        uint32_t scales = __shfl_sync(0xFFFFFFFFu, from.v_scales[0], row);
        if (UNITS > 1) {
            uint32_t other = __shfl_sync(0xFFFFFFFFu, from.v_scales[UNITS - 1], row);
            scales = c < S::PIECES / 2 ? scales : other;
        }
        line l = line_of(scales);
        int first = first_of<IS_8BIT>(c), at = warp % 2 * (CU_PAGE / 2) + row;
        uint4 x = rows[piece_at<UNITS>(at, first)];
        uint4 w = IS_8BIT ? x : bytes_of(uint2{ x.x, x.y }), z = bytes_of(uint2{ x.z, x.w });
        uint2 v0 = values_f16(w.x, l), v1 = values_f16(w.y, l);
        uint2 v2 = values_f16(IS_8BIT ? w.z : z.x, l), v3 = values_f16(IS_8BIT ? w.w : z.y, l);
        rows[piece_at<UNITS>(at, first)] = make_uint4(v0.x, v0.y, v1.x, v1.y);
        rows[piece_at<UNITS>(at, first + 1)] = make_uint4(v2.x, v2.y, v3.x, v3.y);
        if (!IS_8BIT) { /* high nibbles: columns 32 further on */
            v0 = values_f16(w.z, l), v1 = values_f16(w.w, l);
            v2 = values_f16(z.z, l), v3 = values_f16(z.w, l);
            rows[piece_at<UNITS>(at, first + 4)] = make_uint4(v0.x, v0.y, v1.x, v1.y);
            rows[piece_at<UNITS>(at, first + 5)] = make_uint4(v2.x, v2.y, v3.x, v3.y);
        }
    }
}

template <bool IS_8BIT, int UNITS>
static __device__ __forceinline__ void make_keys(keys<UNITS> &to, const codes<IS_8BIT, UNITS> &from,
                                                 const uint4 *base16, int lane)
{
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        uint4 b0 = base16[u * 8 + lane % 4 * 2], b1 = base16[u * 8 + lane % 4 * 2 + 1];
        uint32_t halves[8] = { b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w };
        float base[16];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            base[2 * i] = low_half(halves[i]);
            base[2 * i + 1] = high_half(halves[i]);
        }
        uint32_t mine = from.relative[u] >> lane / 4;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            line l = line_of(__shfl_sync(0xFFFFFFFFu, from.k_scales[u], n * 8 + lane / 4));
            float is_relative = mine >> n * 8 & 1 ? 1.0f : 0.0f;
            uint4 w = bytes_of(from.k[u][n]);
            uint2 k0 = keys_f16(w.x, l, is_relative, base),
                  k1 = keys_f16(w.y, l, is_relative, base + 4),
                  k2 = keys_f16(w.z, l, is_relative, base + 8),
                  k3 = keys_f16(w.w, l, is_relative, base + 12);
            to.x[u][n] = make_uint4(k0.x, k0.y, k1.x, k1.y);
            to.y[u][n] = make_uint4(k2.x, k2.y, k3.x, k3.y);
        }
    }
}

/* One turn of the loop loads what may be read before the kernels before this one have ended: that code is there once, and has been fetched. */
template <bool IS_8BIT, int UNITS>
static __global__ void __launch_bounds__(THREADS, 2)
    k_attention_kvq(const __grid_constant__ cu_attention p)
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
    keys<UNITS> kk = {};
    state<UNITS> st, total;
    bool is_early = true;
#pragma unroll 1
    for (int sp = sp0; sp <= sp1;) {
        if (sp > sp0)
            __syncthreads(); /* all of the split before is read */
        part o = { sp * SPLIT_PAGES + warp / 2, NULL, NULL };
        bool is_new = !p.has_old || (o.page + 1) * CU_PAGE > k.s.pos0;
        if (o.page >= k.page0 && o.page <= k.page1 && (is_early ? !is_new : is_new || sp > sp0)) {
            codes<IS_8BIT, UNITS> c;
            load_codes(c, sh,
                       p.kv.data + p.pages[k.s.pages + o.page] * p.kv.page_bytes +
                           g * page_shape<IS_8BIT, UNITS>::HEAD,
                       warp, lane);
            __syncwarp(); /* no load is put off until copies have come */
            cu_copy_wait_all();
            __syncwarp();
            make_values(sh, c, warp, lane);
            make_keys(kk, c, staged_base(sh, warp), lane);
        }
        if (is_early) {
            is_early = false;
            cu_grid_wait();
            total_init(total, p, at);
            load_queries<false, UNITS>(sh, p, k.s, g, k.tile.slot0, k.n);
            continue;
        }
        __syncthreads();
        state_clear(st);
        add_split<false, UNITS, false, true>(st, sh, p, k, o, kk, at, warp, lane);
        if (!p.n_splits)
            total_add(total, st);
        sp++;
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

template <bool IS_8BIT, int UNITS> static int launch(const cu_attention *p, cu_stream s)
{
    return launch_narrow<UNITS>(k_attention_kvq<IS_8BIT, UNITS>, p, s);
}

int cu_attention_kvq(const cu_attention *p, cu_stream s)
{
    if (p->kv.type == CU_CACHE_Q8)
        return p->kv.pad_dim == CU_UNIT ? launch<true, 1>(p, s) : launch<true, 2>(p, s);
    return p->kv.pad_dim == CU_UNIT ? launch<false, 1>(p, s) : launch<false, 2>(p, s);
}
