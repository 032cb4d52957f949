/* Ops on rows: element-wise, norms, rotary embeddings, embeddings, activations to bf16.
 *
 * Element-wise ops and rotations give the bits of kernels/ref. Norms sum in L lanes (L = 32 up to 1024 columns, else 256): lane l takes
 * elements l, l + L, ... ascending; within runs of 32 lanes a tree of halves, then a tree of halves over the runs. */
#include "kernels/cuda/lanes.cuh"

#define THREADS 256

/* --- flags --- */

static __global__ void k_clear(cu_clear p)
{
    cu_wait_before();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < p.n)
        p.flags[i] = 0;
}

extern "C" int cu_launch_clear(const cu_clear *p, cu_stream s)
{
    return cu_launch(k_clear, dim3(cu_blocks(p->n, THREADS)), dim3(THREADS), 0, s, *p);
}

/* --- element-wise --- */

static __device__ void elementwise_one(const cu_elementwise &p, int t, int i)
{
    float *y = p.y.data + (int64_t)t * p.y.stride + i;
    const float *a = p.a.data + (int64_t)t * p.a.stride + i;
    switch (p.op) {
    case CU_EW_ADD_BIAS:
        *y += p.v[i];
        break;
    case CU_EW_ADD:
        *y += *a;
        break;
    case CU_EW_SCALE:
        *y *= p.s;
        break;
    case CU_EW_SOFTCAP:
        *y = p.s * fmath_tanh(*y / p.s);
        break;
    case CU_EW_GLU:
        *y = cu_glu_one(*a, p.b.data[(int64_t)t * p.b.stride + i], p.kind);
        break;
    case CU_EW_ACT:
        *y = cu_act_one(*y, p.kind);
        break;
    case CU_EW_COPY:
        *y = *a;
        break;
    case CU_EW_GATE_ROWS:
        *y *= fmath_sigmoid(p.a.data[(int64_t)t * p.a.stride]);
        break;
    case CU_EW_GATHER:
        *y = p.a.data[(int64_t)p.rows[t] * p.a.stride + i];
        break;
    case CU_EW_SCATTER:
        y = p.y.data + (int64_t)p.rows[t] * p.y.stride + i;
        *y = fmaf(p.v[t], *a, p.first[t] ? 0 : *y);
        break;
    }
}

static __global__ void k_elementwise(cu_elementwise p, int rows, int cols)
{
    cu_wait_before();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < cols)
        for (int t = (int)blockIdx.y; t < rows; t += (int)gridDim.y)
            elementwise_one(p, t, i);
}

extern "C" int cu_launch_elementwise(const cu_elementwise *p, cu_stream s)
{
    int rows = p->op == CU_EW_SCATTER ? p->a.rows : p->y.rows;
    return cu_launch(k_elementwise, dim3(cu_blocks(p->y.cols, THREADS), (unsigned)rows),
                     dim3(THREADS), 0, s, *p, rows, p->y.cols);
}

/* --- norms --- */

template <int L>
static __device__ void norm_group(const cu_norm &p, float *y, const float *x, float *shared)
{
    int l = (int)threadIdx.x % L;
    float sum = 0, mean = 0;
    if (p.kind == CU_NORM_LAYER) {
        for (int i = l; i < p.n; i += L)
            sum += x[i];
        mean = cu_lane_sum<L>(sum, shared) / (float)p.n;
        sum = 0;
    }
    for (int i = l; i < p.n; i += L) {
        float v = p.kind == CU_NORM_LAYER ? x[i] - mean : x[i];
        sum = fmaf(v, v, sum);
    }
    sum = cu_lane_sum<L>(sum, shared);
    float r = p.kind == CU_NORM_L2 ? p.scale / sqrtf(sum + p.eps)
                                   : 1.0f / sqrtf(sum / (float)p.n + p.eps);
    for (int i = l; i < p.n; i += L) {
        if (p.kind == CU_NORM_RMS)
            y[i] = x[i] * r * p.w[i];
        else if (p.kind == CU_NORM_L2)
            y[i] = x[i] * r;
        else
            y[i] = fmaf((x[i] - mean) * r, p.w[i], p.b[i]);
    }
}

template <int L> static __global__ void k_norm(cu_norm p, int per_row, int64_t n_groups)
{
    __shared__ float shared[L / CU_WARP];
    cu_wait_before();
    int64_t g = (int64_t)blockIdx.x * (blockDim.x / L) + threadIdx.x / L;
    if (g >= n_groups)
        return;
    int64_t t = g / per_row, c = g % per_row * p.n;
    norm_group<L>(p, p.y.data + t * p.y.stride + c, p.x.data + t * p.x.stride + c, shared);
}

extern "C" int cu_launch_norm(const cu_norm *p, cu_stream s)
{
    int per_row = p->x.cols / p->n;
    int64_t n = (int64_t)p->x.rows * per_row;
    if (p->n <= 1024)
        return cu_launch(k_norm<32>, dim3(cu_blocks(n, 4)), dim3(128), 0, s, *p, per_row, n);
    return cu_launch(k_norm<256>, dim3((unsigned)n), dim3(256), 0, s, *p, per_row, n);
}

/* --- rotary embeddings --- */

static __global__ void k_rope_table(cu_rope_table p)
{
    cu_wait_before();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= p.rows * p.half)
        return;
    int t = i / p.half, k = i % p.half;
    float sn, cs;
    fmath_sincos_of((double)p.pos[t] * (double)p.inv_freq[k], &sn, &cs);
    p.table[2 * i] = cs * p.scale;
    p.table[2 * i + 1] = sn * p.scale;
}

extern "C" int cu_launch_rope_table(const cu_rope_table *p, cu_stream s)
{
    return cu_launch(k_rope_table, dim3(cu_blocks((int64_t)p->rows * p->half, 128)), dim3(128), 0,
                     s, *p);
}

static __global__ void k_rope(cu_rope p)
{
    cu_wait_before();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y;
    int heads = p.x.cols / p.head_dim;
    if (i >= heads * p.half)
        return;
    int h = i / p.half, k = i % p.half;
    float *x = p.x.data + (int64_t)t * p.x.stride + h * p.head_dim;
    const float *angle = p.table + 2 * ((int64_t)t * p.half + k);
    float cs = angle[0], sn = angle[1];
    int a = p.is_neox ? k : 2 * k, b = p.is_neox ? k + p.half : 2 * k + 1;
    float xa = x[a], xb = x[b];
    x[a] = fmaf(xa, cs, -(xb * sn));
    x[b] = fmaf(xa, sn, xb * cs);
}

extern "C" int cu_launch_rope(const cu_rope *p, cu_stream s)
{
    int n = p->x.cols / p->head_dim * p->half;
    return cu_launch(k_rope, dim3(cu_blocks(n, 128), (unsigned)p->x.rows), dim3(128), 0, s, *p);
}

/* --- activations to bf16 --- */

/* Two columns of a row. */
static __global__ void k_quantise(cu_quantise p)
{
    cu_wait_before();
    int k = 2 * (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y;
    if (k >= p.units * CU_UNIT)
        return;
    const float *x = p.x.data + (int64_t)t * p.x.stride + k;
    cu_put_bf16x2(p, t, k, k < p.x.cols ? x[0] : 0, k + 1 < p.x.cols ? x[1] : 0);
}

extern "C" int cu_launch_quantise(const cu_quantise *p, cu_stream s)
{
    int pairs = p->units * CU_UNIT / 2;
    return cu_launch(k_quantise, dim3(cu_blocks(pairs, 128), (unsigned)p->x.rows), dim3(128), 0, s,
                     *p);
}
