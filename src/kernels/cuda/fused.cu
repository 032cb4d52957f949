/* Several ops in one kernel, with the bits of the ops one after the other (record.c and fuse.c say when): what stands between the products
 * of a step. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/lanes.cuh"

/* --- residual, norm, bf16 --- */

/* A row of at most L * N columns: lane l has elements l, l + L, ... Straight code for each of them is kept short: it runs once, so that it
 * takes as long as it takes to be fetched. */
template <int L, int N>
static __device__ __forceinline__ void norm_row(const cu_row_norm &p, int t, int l, const float *w,
                                                float *shared, bool is_real)
{
    const float *h = p.h.data + (int64_t)t * p.h.stride + l;
    float *x = p.x.data + (int64_t)t * p.x.stride + l, *y = p.y.data + (int64_t)t * p.y.stride + l;
    float v[N], a[N], sum = 0;
    int left = p.x.cols - l; /* the lane has element i where i L < left */
    bool has_h = p.h.data != NULL;
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = i * L < left ? __ldcg(x + i * L) : 0;
        a[i] = has_h && i * L < left ? __ldcg(h + i * L) : 0;
    }
    if (has_h)
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] += a[i];
            if (is_real && i * L < left)
                x[i * L] = v[i];
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i * L < left)
            sum = fmaf(v[i], v[i], sum);
    sum = cu_lane_sum<L>(sum, shared);
    float r = 1.0f / sqrtf(sum / (float)p.x.cols + p.eps);
    uint16_t *out = p.q.out;
    int64_t unit = (int64_t)p.q.pad_rows * CU_UNIT;
    int at[2] = { cu_bf16_at_column(p.q, t, l % CU_UNIT),
                  cu_bf16_at_column(p.q, t, (l + 32) % CU_UNIT) };
    bool is_odd = false;
    if (out)
        out += l / CU_UNIT * unit + (int64_t)t * CU_UNIT;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float f = v[i] * r * w[i];
        bool is_in = i * L < left;
        if (is_in && is_real)
            y[i * L] = f;
        if (out && is_real && i * L - (CU_UNIT - 1) < left) {
            /* behind the last column: zeros to the end of its unit */
            uint16_t c = is_in ? cu_pack1<true>(f) : 0;
            bool odd = cu_is_odd<true>(c);
            is_odd = is_odd || odd;
            if (l + i * L < p.q.units * CU_UNIT)
                out[i * L / CU_UNIT * unit + at[L % CU_UNIT ? i % 2 : 0]] = odd ? 0 : c;
        }
    }
    if (is_odd)
        p.q.flags[t] = 1;
}

/* Few rows: a first pass before the kernel that makes them has ended, whose results are thrown away: these instructions take longer to come
 * than to run. */
template <int L, int N> static __global__ void __launch_bounds__(L) k_row_norm(cu_row_norm p)
{
    __shared__ float shared[L / CU_WARP];
    int l = (int)threadIdx.x;
    float w[N];
    cu_start_next();
#pragma unroll
    for (int i = 0; i < N; i++)
        w[i] = l + i * L < p.x.cols ? p.w[l + i * L] : 0;
#pragma unroll 1
    for (int pass = gridDim.x <= CU_GEMV_ROWS ? 0 : 1; pass < 2; pass++) {
        if (pass == 1)
            cu_wait_before();
        norm_row<L, N>(p, (int)blockIdx.x, l, w, shared, pass == 1);
    }
}

extern "C" int cu_launch_row_norm(const cu_row_norm *p, cu_stream s)
{
    dim3 grid((unsigned)p->x.rows);
    int n = p->x.cols;
    if (n <= 1024)
        return cu_launch(k_row_norm<32, 32>, grid, dim3(32), 0, s, *p);
    if (n <= 2048)
        return cu_launch(k_row_norm<256, 8>, grid, dim3(256), 0, s, *p);
    if (n <= 4096)
        return cu_launch(k_row_norm<256, 16>, grid, dim3(256), 0, s, *p);
    return cu_launch(k_row_norm<256, 32>, grid, dim3(256), 0, s, *p);
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

/* The pair k of head h of x, turned; where it stands. */
static __device__ __forceinline__ float2 turn(const cu_rope &p, cu_tensor x, int t, int i, int *a,
                                              int *b)
{
    int h = i / p.half, k = i % p.half;
    float *at = x.data + (int64_t)t * x.stride + h * p.head_dim;
    float2 angle = *(const float2 *)(p.table + 2 * ((int64_t)t * p.half + k));
    *a = p.is_neox ? k : 2 * k;
    *b = p.is_neox ? k + p.half : 2 * k + 1;
    float xa = at[*a], xb = at[*b];
    float2 y = make_float2(fmaf(xa, angle.x, -(xb * angle.y)), fmaf(xa, angle.y, xb * angle.x));
    at[*a] = y.x;
    at[*b] = y.y;
    return y;
}

/* A block's columns: pairs of queries, then pairs of keys, each beside the pair of values at the same place. */
template <bool IS_BF16> static __global__ void k_rope_store(cu_rope_store p)
{
    cu_start_next();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y, a, b;
    int n_q = p.q.x.cols / 2, n_k = p.kv.k.cols / 2, half = p.q.half, d = p.kv.kv.head_dim;
    cu_row r = p.kv.rows[t];
    uint16_t *at = NULL;
    if (i >= n_q && i < n_q + n_k && r.seq >= 0) {
        int32_t page = p.kv.pages[p.kv.seqs[r.seq].pages + r.pos / CU_PAGE];
        at = (uint16_t *)kv_page(p.kv.kv, page, (i - n_q) / half);
    }
    cu_wait_before();
    if (i < n_q) {
        (void)turn(p.q, p.q.x, t, i, &a, &b);
        return;
    }
    i -= n_q;
    if (i >= n_k)
        return;
    float2 k = turn(p.q, p.kv.k, t, i, &a, &b);
    if (!at)
        return;
    const float *from = p.kv.v.data + (int64_t)t * p.kv.v.stride + i / half * d;
    uint16_t out[4] = { cu_pack1<IS_BF16>(k.x), cu_pack1<IS_BF16>(k.y), cu_pack1<IS_BF16>(from[a]),
                        cu_pack1<IS_BF16>(from[b]) };
    for (int n = 0; n < 2; n++)
        if (cu_is_odd<IS_BF16>(out[n]) || cu_is_odd<IS_BF16>(out[n + 2])) {
            p.kv.flags[t] = 1;
            out[n] = out[n + 2] = 0;
        }
    at[kv_k_at(p.kv.kv, r.pos % CU_PAGE, a)] = out[0];
    at[kv_k_at(p.kv.kv, r.pos % CU_PAGE, b)] = out[1];
    at[kv_v_at(p.kv.kv, r.pos % CU_PAGE, a)] = out[2];
    at[kv_v_at(p.kv.kv, r.pos % CU_PAGE, b)] = out[3];
}

extern "C" int cu_launch_rope_store(const cu_rope_store *p, cu_stream s)
{
    dim3 grid(cu_blocks(p->q.x.cols / 2 + p->kv.k.cols / 2, 128), (unsigned)p->q.x.rows);
    return p->kv.kv.type ? cu_launch(k_rope_store<true>, grid, dim3(128), 0, s, *p)
                         : cu_launch(k_rope_store<false>, grid, dim3(128), 0, s, *p);
}
