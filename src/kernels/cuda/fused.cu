/* Several ops in one kernel, with the bits of the ops one after the other (record.c and fuse.c say when): what stands between the products
 * of a step. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/rope.cuh"

/* --- residual, norm, bf16 --- */

#define NORM_THREADS 256

/* A row of at most QUADS * 4 * NORM_THREADS columns. A thread loads and stores runs of four columns; the lanes of the sum, which have every
 * L-th column, read the row from shared memory. */
template <int L_, int QUADS_> struct row_shape {
    static const int L = L_, QUADS = QUADS_, COLS = QUADS * 4 * NORM_THREADS, N = COLS / L;
};

template <typename S> struct row_shared {
    float v[S::COLS];
    float warps[NORM_THREADS / CU_WARP];
};

template <bool IS_WHOLE>
static __device__ __forceinline__ void store_quad(float *x, float4 v, int left)
{
    if (IS_WHOLE) {
        if (left > 0)
            *(float4 *)x = v;
        return;
    }
    float f[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < left)
            x[i] = f[i];
}

/* The sum of the row's squares, in every thread. */
template <typename S> static __device__ __forceinline__ float sum_squares(row_shared<S> &sh)
{
    int thread = (int)threadIdx.x;
    float sum = 0;
    if (S::L == NORM_THREADS || thread < S::L)
#pragma unroll
        for (int i = 0; i < S::N; i++) {
            float v = sh.v[thread % S::L + i * S::L];
            sum = fmaf(v, v, sum);
        }
    if (S::L == NORM_THREADS)
        return cu_lane_sum<S::L>(sum, sh.warps);
    sum = cu_lane_sum<CU_WARP>(sum, sh.warps);
    if (thread == 0)
        sh.warps[0] = sum;
    __syncthreads();
    return sh.warps[0];
}

/* Straight code for each run is kept short: it runs once, so that it takes as long as it takes to be fetched. */
template <typename S, bool IS_WHOLE>
static __device__ __forceinline__ void norm_row(const cu_row_norm &p, int t, const float4 *w,
                                                row_shared<S> &sh, bool is_real)
{
    int thread = (int)threadIdx.x, cols = p.x.cols;
    float *x = p.x.data + (int64_t)t * p.x.stride, *y = p.y.data + (int64_t)t * p.y.stride;
    const float *h = p.h.data + (int64_t)t * p.h.stride;
    float4 v[S::QUADS], a[S::QUADS];
    bool has_h = p.h.data != NULL;
#pragma unroll
    for (int i = 0; i < S::QUADS; i++) {
        int c = (i * NORM_THREADS + thread) * 4;
        v[i] = cu_load_quad<IS_WHOLE>(x + c, cols - c);
        a[i] = has_h ? cu_load_quad<IS_WHOLE>(h + c, cols - c) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < S::QUADS; i++) {
        int c = (i * NORM_THREADS + thread) * 4;
        if (has_h) {
            v[i].x += a[i].x, v[i].y += a[i].y, v[i].z += a[i].z, v[i].w += a[i].w;
            store_quad<IS_WHOLE>(x + c, v[i], is_real ? cols - c : 0);
        }
        *(float4 *)(sh.v + c) = v[i];
    }
    __syncthreads();
    float r = 1.0f / sqrtf(sum_squares<S>(sh) / (float)cols + p.eps);
    /* Where a run stands in its unit is the same in all of them; its second half follows, or is the next pair of lanes'. */
    const int UNITS = NORM_THREADS * 4 / CU_UNIT;
    int64_t unit = (int64_t)p.q.pad_rows * CU_UNIT;
    uint16_t *out = p.q.out + thread * 4 / CU_UNIT * unit + (int64_t)t * CU_UNIT +
                    cu_bf16_at_column(p.q, t, thread * 4 % CU_UNIT);
    int half = p.q.is_tiled ? 2 : 16;
#pragma unroll
    for (int i = 0; i < S::QUADS; i++) {
        int c = (i * NORM_THREADS + thread) * 4;
        float4 f = make_float4(v[i].x * r * w[i].x, v[i].y * r * w[i].y, v[i].z * r * w[i].z,
                               v[i].w * r * w[i].w);
        store_quad<IS_WHOLE>(y + c, f, is_real ? cols - c : 0);
        if (p.q.out && is_real && c < p.q.units * CU_UNIT) {
            uint16_t *to = out + i * UNITS * unit;
            *(uint32_t *)to = cu_finite_bf16x2(p.q, t, cu_pack2<true>(f.x, f.y));
            *(uint32_t *)(to + half) = cu_finite_bf16x2(p.q, t, cu_pack2<true>(f.z, f.w));
        }
    }
}

/* Few rows: a first pass before the kernel that makes them has ended, whose results are thrown away: these instructions take longer to come
 * than to run. */
template <typename S, bool IS_WHOLE>
static __global__ void __launch_bounds__(NORM_THREADS) k_row_norm(cu_row_norm p)
{
    __shared__ __align__(16) row_shared<S> sh;
    float4 w[S::QUADS];
    cu_start_next();
#pragma unroll
    for (int i = 0; i < S::QUADS; i++) {
        int c = (i * NORM_THREADS + (int)threadIdx.x) * 4;
        w[i] = cu_load_quad<IS_WHOLE>(p.w + c, p.x.cols - c);
    }
#pragma unroll 1
    for (int pass = gridDim.x <= CU_GEMV_ROWS ? 0 : 1; pass < 2; pass++) {
        if (pass == 1)
            cu_wait_before();
        norm_row<S, IS_WHOLE>(p, (int)blockIdx.x, w, sh, pass == 1);
        __syncthreads();
    }
}

template <int L, int QUADS> static int row_norm(const cu_row_norm *p, cu_stream s)
{
    typedef row_shape<L, QUADS> shape;
    const cu_tensor *t[3] = { &p->x, &p->y, p->h.data ? &p->h : &p->x };
    uintptr_t odd = (uintptr_t)p->w % 16 + (uintptr_t)(p->x.cols % 4);
    for (int i = 0; i < 3; i++)
        odd |= (uintptr_t)t[i]->data % 16 | (uintptr_t)(t[i]->stride % 4);
    return cu_launch(odd ? k_row_norm<shape, false> : k_row_norm<shape, true>,
                     dim3((unsigned)p->x.rows), dim3(NORM_THREADS), 0, s, *p);
}

extern "C" int cu_launch_row_norm(const cu_row_norm *p, cu_stream s)
{
    int n = p->x.cols;
    if (n <= 1024)
        return row_norm<32, 1>(p, s);
    if (n <= 2048)
        return row_norm<256, 2>(p, s);
    if (n <= 4096)
        return row_norm<256, 4>(p, s);
    return row_norm<256, 8>(p, s);
}

/* --- gated units to bf16 --- */

/* Four columns of a row. */
template <int KIND> static __global__ void k_glu(cu_glu p)
{
    cu_wait_before();
    int k = 4 * (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y, n = p.e.y.cols;
    if (k >= p.q.units * CU_UNIT)
        return;
    float *y = p.e.y.data + (int64_t)t * p.e.y.stride + k;
    const float *a = p.e.a.data + (int64_t)t * p.e.a.stride + k;
    const float *b = p.e.b.data + (int64_t)t * p.e.b.stride + k;
    float v[4];
    if (k + 4 <= n && p.e.y.stride % 4 == 0 && p.e.a.stride % 4 == 0 && p.e.b.stride % 4 == 0) {
        float4 g = *(const float4 *)a, u = *(const float4 *)b;
        v[0] = cu_glu_one(g.x, u.x, KIND);
        v[1] = cu_glu_one(g.y, u.y, KIND);
        v[2] = cu_glu_one(g.z, u.z, KIND);
        v[3] = cu_glu_one(g.w, u.w, KIND);
        *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        for (int i = 0; i < 4; i++) {
            v[i] = k + i < n ? cu_glu_one(a[i], b[i], KIND) : 0;
            if (k + i < n)
                y[i] = v[i];
        }
    }
    for (int i = 0; i < 4; i += 2)
        cu_put_bf16x2(p.q, t, k + i, v[i], v[i + 1]);
}

extern "C" int cu_launch_glu(const cu_glu *p, cu_stream s)
{
    int quads = p->q.units * CU_UNIT / 4;
    static void (*const kernels[])(cu_glu) = { k_glu<CU_ACT_SILU>, k_glu<CU_ACT_GELU_TANH>,
                                               k_glu<CU_ACT_GELU_ERF>, k_glu<CU_ACT_SIGMOID>,
                                               k_glu<CU_ACT_SWIGLU_CLAMPED> };
    return cu_launch(kernels[p->e.kind], dim3(cu_blocks(quads, 128), (unsigned)p->e.y.rows),
                     dim3(128), 0, s, *p);
}

/* --- rotary embeddings and the cache --- */

/* A block's columns: pairs of queries, then pairs of keys, each beside the pair of values at the same place. */
template <bool IS_BF16> static __global__ void k_rope_store(cu_rope_store p)
{
    cu_start_next();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y;
    int2 c;
    int n_q = p.q.x.cols / 2, n_k = p.kv.k.cols / 2, half = p.q.half, d = p.kv.kv.head_dim;
    cu_row r = p.kv.rows[t];
    uint16_t *at = NULL;
    if (i >= n_q && i < n_q + n_k && r.seq >= 0) {
        int32_t page = p.kv.pages[p.kv.seqs[r.seq].pages + r.pos / CU_PAGE];
        at = (uint16_t *)kv_page(p.kv.kv, page, (i - n_q) / half);
    }
    cu_wait_before();
    if (i < n_q) {
        (void)turn(p.q, p.q.x, t, i, &c);
        return;
    }
    i -= n_q;
    if (i >= n_k)
        return;
    float2 k = turn(p.q, p.kv.k, t, i, &c);
    if (!at)
        return;
    const float *from = p.kv.v.data + (int64_t)t * p.kv.v.stride + i / half * d;
    uint16_t out[4] = { cu_pack1<IS_BF16>(k.x), cu_pack1<IS_BF16>(k.y),
                        cu_pack1<IS_BF16>(from[c.x]), cu_pack1<IS_BF16>(from[c.y]) };
    for (int n = 0; n < 2; n++)
        if (cu_is_odd<IS_BF16>(out[n]) || cu_is_odd<IS_BF16>(out[n + 2])) {
            p.kv.flags[t] = 1;
            out[n] = out[n + 2] = 0;
        }
    at[kv_k_at(p.kv.kv, r.pos % CU_PAGE, c.x)] = out[0];
    at[kv_k_at(p.kv.kv, r.pos % CU_PAGE, c.y)] = out[1];
    at[kv_v_at(p.kv.kv, r.pos % CU_PAGE, c.x)] = out[2];
    at[kv_v_at(p.kv.kv, r.pos % CU_PAGE, c.y)] = out[3];
}

extern "C" int cu_launch_rope_store(const cu_rope_store *p, cu_stream s)
{
    dim3 grid(cu_blocks(p->q.x.cols / 2 + p->kv.k.cols / 2, 128), (unsigned)p->q.x.rows);
    return p->kv.kv.type ? cu_launch(k_rope_store<true>, grid, dim3(128), 0, s, *p)
                         : cu_launch(k_rope_store<false>, grid, dim3(128), 0, s, *p);
}
