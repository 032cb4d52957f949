/* Attention of many rows: a block of eight warps, 16 slots each, walks the pages of a sequence; K and V come into shared memory two pages
 * deep. The steps are those of attention.cuh, so a row has the bits that it has alone. Heads of up to 128 columns. Also made for rows that
 * see later positions of their sequence (IS_BOTH). */
#include "kernels/cuda/attention.cuh"

#define WARPS   8
#define AT_ONCE 4 /* columns of eight whose chains run side by side */

/* K and V of a page; 16-byte pieces of a row are swizzled by its number, so that a warp's reads meet no bank twice. */
template <int DIM>
static __device__ __forceinline__ void load_page(uint8_t *to, const uint16_t *page, int thread)
{
    /* All threads' pieces are a multiple of eight rows, of K and of V: what comes next to a thread is swizzled as its first one is. */
    const int K_PIECES = DIM / 8, STRIDE = WARPS * CU_WARP * 16, HALF = CU_PAGE * DIM * 2;
    const uint8_t *from = (const uint8_t *)page + thread * 16;
    int row = thread / K_PIECES, v_row = thread / 8;
    uint8_t *k = to + (row * K_PIECES + (thread % K_PIECES ^ (row & 7))) * 16;
    uint8_t *v = to + HALF + (v_row * 8 + (thread % 8 ^ (v_row & 7))) * 16;
#pragma unroll
    for (int i = 0; i < HALF; i += STRIDE) {
        copy_async(k + i, from + i);
        copy_async(v + i, from + HALF + i);
    }
    cu_copy_group();
}

/* Pieces 2q and 2q + 1 of a run of 64 elements of row `row`. */
static __device__ __forceinline__ void read_run(uint4 &x, uint4 &y, const uint8_t *at, int row,
                                                int pieces, int run, int q)
{
    const uint4 *r = (const uint4 *)(at + row * pieces * 16);
    x = r[(run * 8 + 2 * q) ^ (row & 7)];
    y = r[(run * 8 + 2 * q + 1) ^ (row & 7)];
}

/* The last key that the row at pos of the sequence sees; it grows with pos. */
template <bool IS_BOTH>
static __device__ __forceinline__ int last_key(const cu_attention &p, const cu_seq &s, int pos)
{
    int end = s.pos0 + s.n_rows - 1;
    if (!IS_BOTH || pos < 0)
        return pos;
    return p.window && p.window - 1 < end - pos ? pos + p.window - 1 : end;
}

static __device__ __forceinline__ bool is_between(const cu_attention &p, int pos, int last, int key)
{
    return key <= last && (p.window == 0 || key > pos - p.window);
}

/* Scores of the warp's 16 slots with a page, capped and masked; their rows' maxima join m. */
template <bool IS_BF16, int DIM, bool HAS_CAP>
static __device__ __forceinline__ void scores_of(float c[8][4], const cu_attention &p,
                                                 const uint16_t *sq, const uint8_t *k, int key0,
                                                 const int pos[2], const int last[2], bool is_all,
                                                 int lane)
{
    int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0;
#pragma unroll
    for (int v = 0; v < DIM / CU_UNIT; v++) {
        uint32_t a[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint4 f = ((const uint4 *)sq)[(v * 4 + j) * CU_WARP + lane];
            a[j][0] = f.x, a[j][1] = f.y, a[j][2] = f.z, a[j][3] = f.w;
        }
#pragma unroll
        for (int n = 0; n < 8; n += AT_ONCE) {
            uint4 x[AT_ONCE], y[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                read_run(x[i], y[i], k, (n + i) * 8 + g, DIM / 8, v, q);
            products<IS_BF16, AT_ONCE>(c + n, a, x, y);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = capped<HAS_CAP>(p, c[n][i]);
    if (is_all)
        return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!is_between(p, pos[i / 2], last[i / 2], key0 + n * 8 + 2 * q + i % 2))
                c[n][i] = -INFINITY;
}

template <bool IS_BF16, int DIM>
static __device__ __forceinline__ void add_page(state<DIM / 8> &st, float c[8][4], const uint8_t *v,
                                                int lane)
{
    const uint32_t one = IS_BF16 ? 0x3F803F80u : 0x3C003C00u;
    int g = lane / 4, q = lane % 4;
    float m[2] = { st.m[0], st.m[1] }, base[2], alpha[2];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            m[i / 2] = fmaxf(m[i / 2], c[n][i]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xFFFFFFFFu, m[i], 1));
        m[i] = fmaxf(m[i], __shfl_xor_sync(0xFFFFFFFFu, m[i], 2));
        base[i] = base_of(m[i]);
        alpha[i] = weight_of(st.m[i], base[i]);
        st.m[i] = m[i];
    }
    uint32_t a[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *s = &c[2 * j + i / 2][i % 2 * 2];
            a[j][i] = cu_pack2<IS_BF16>(p_of<IS_BF16>(s[0], base[i % 2]),
                                        p_of<IS_BF16>(s[1], base[i % 2]));
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        st.l[i] *= alpha[i / 2];
#pragma unroll
    for (int j = 0; j < 4; j++)
        cu_mma<IS_BF16>(st.l, a[j], one, one);
#pragma unroll
    for (int n = 0; n < DIM / 8; n += AT_ONCE) {
        uint4 x[AT_ONCE], y[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            read_run(x[i], y[i], v, (n + i) * 8 + g, 8, 0, q);
#pragma unroll
        for (int i = 0; i < 4 * AT_ONCE; i++)
            st.o[n + i / 4][i % 4] *= alpha[i % 4 / 2];
        products<IS_BF16, AT_ONCE>(st.o + n, a, x, y);
    }
}

template <bool IS_BF16, int DIM, bool HAS_CAP, bool IS_BOTH>
static __global__ void __launch_bounds__(WARPS *CU_WARP, 1) k_wide(cu_attention p)
{
    CU_SHARED_ARRAY(uint8_t, smem, 128);
    const int PAGE_BYTES = 2 * CU_PAGE * DIM * 2;
    uint16_t *sq = (uint16_t *)(smem + 2 * PAGE_BYTES);
    int lane = (int)threadIdx.x % CU_WARP, warp = (int)threadIdx.x / CU_WARP, g = (int)blockIdx.x;
    cu_wait_before();
    cu_tile tile = p.tiles[gridDim.y - 1 - blockIdx.y]; /* those with most to do first */
    cu_seq s = p.seqs[tile.seq];
    int last_slot = min(tile.slot0 + WARPS * CU_SLOTS, s.n_rows * p.per) - 1;
    int page0 = first_page(p, s.pos0 + row_of(p, tile.slot0)),
        page1 = last_key<IS_BOTH>(p, s, s.pos0 + row_of(p, last_slot)) / CU_PAGE;
    int slot0 = tile.slot0 + warp * CU_SLOTS;
    load_page<DIM>(smem, kv_page(p.kv, p.pages[s.pages + page0], g), (int)threadIdx.x);
    load_q<IS_BF16>(p, s, g, slot0, sq + warp * CU_SLOTS * DIM, lane, CU_WARP);
    __syncwarp();
    slot at[2] = { slot_of(p, s, g, slot0 + lane / 4), slot_of(p, s, g, slot0 + lane / 4 + 8) };
    int pos[2] = { at[0].pos, at[1].pos };
    int last[2] = { last_key<IS_BOTH>(p, s, pos[0]), last_key<IS_BOTH>(p, s, pos[1]) };
    /* The pages that some slot of the warp sees. */
    int warp_last = min(slot0 + CU_SLOTS, s.n_rows * p.per) - 1;
    int mine0 = first_page(p, s.pos0 + row_of(p, slot0));
    int pos0 = s.pos0 + row_of(p, slot0), pos1 = s.pos0 + row_of(p, warp_last);
    int mine1 = slot0 <= warp_last ? last_key<IS_BOTH>(p, s, pos1) / CU_PAGE : -1;
    state<DIM / 8> st, total;
    state_clear(total);
    state_clear(st);
    for (int i = 0; i < 2; i++)
        if (p.sinks && at[i].row >= 0) {
            total.m[i] = p.sinks[at[i].head];
            total.l[2 * i] = total.l[2 * i + 1] = 1;
        }
    for (int page = page0, i = 0; page <= page1; page++, i++) {
        if (page < page1)
            load_page<DIM>(smem + (i + 1) % 2 * PAGE_BYTES,
                           kv_page(p.kv, p.pages[s.pages + page + 1], g), (int)threadIdx.x);
        if (page < page1)
            cu_copy_wait<1>();
        else
            cu_copy_wait<0>();
        __syncthreads();
        if (page >= mine0 && page <= mine1) {
            const uint8_t *k = smem + i % 2 * PAGE_BYTES;
            float c[8][4];
            bool is_all = is_seen(p, last_key<IS_BOTH>(p, s, pos0), pos1, page * CU_PAGE);
            scores_of<IS_BF16, DIM, HAS_CAP>(c, p, sq + warp * CU_SLOTS * DIM, k, page * CU_PAGE,
                                             pos, last, is_all, lane);
            add_page<IS_BF16, DIM>(st, c, k + CU_PAGE * DIM * 2, lane);
            if (page % 4 == 3 || page == mine1) {
                total_add(total, st);
                state_clear(st);
            }
        }
        __syncthreads();
    }
    float *o = (float *)smem + warp * CU_SLOTS * DIM; /* the pages are read */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float inv = 1.0f / total.l[2 * i];
        float *to = o + (lane / 4 + 8 * i) * DIM + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            *(float2 *)(to + n * 8) =
                make_float2(total.o[n][2 * i] * inv, total.o[n][2 * i + 1] * inv);
    }
    __syncwarp();
    store_slots(p, s, g, slot0, o, lane, CU_WARP);
}

template <bool IS_BF16, int DIM, bool IS_BOTH> static int launch(const cu_attention *p, cu_stream s)
{
    size_t smem = 2 * 2 * CU_PAGE * DIM * 2 + WARPS * CU_SLOTS * DIM * 2;
    void (*kernel)(cu_attention) =
        p->softcap > 0 ? k_wide<IS_BF16, DIM, true, IS_BOTH> : k_wide<IS_BF16, DIM, false, IS_BOTH>;
    return cu_launch_big(kernel, dim3((unsigned)p->kv.n_kv_heads, (unsigned)p->n_tiles),
                         dim3(WARPS * CU_WARP), smem, s, *p);
}

template <bool IS_BOTH> static int launch_any(const cu_attention *p, cu_stream s)
{
    if (p->kv.pad_dim == 64)
        return p->kv.type ? launch<true, 64, IS_BOTH>(p, s) : launch<false, 64, IS_BOTH>(p, s);
    return p->kv.type ? launch<true, 128, IS_BOTH>(p, s) : launch<false, 128, IS_BOTH>(p, s);
}

int cu_attention_wide(const cu_attention *p, cu_stream s)
{
    return p->is_both ? launch_any<true>(p, s) : launch_any<false>(p, s);
}
