/* Recurrent layers, token by token: the bits of kernels/ref. */
#include "kernels/cuda/device.cuh"

#define COLUMNS 32 /* of a head's matrix in a block: a thread each */

/* Column c of the input at row t of the sequence: rows before it are the state's, or zero where the sequence begins. */
static __device__ __forceinline__ float conv_input(const cu_conv &p, const cu_seq &s, int t, int c)
{
    if (t >= 0)
        return p.x.data[(int64_t)(s.row0 + t) * p.x.stride + c];
    if (s.pos0 == 0)
        return 0;
    int64_t slot = (int64_t)s.slot * (p.taps - 1);
    return p.state[(slot + p.taps - 1 + t) * p.x.cols + c];
}

static __global__ void k_conv(cu_conv p)
{
    cu_wait_before();
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x), row = (int)blockIdx.y;
    cu_row r = p.rows[row];
    if (c >= p.x.cols || r.seq < 0)
        return;
    cu_seq s = p.seqs[r.seq];
    int t = row - s.row0;
    float acc = p.w[c] * conv_input(p, s, t - p.taps + 1, c);
    for (int j = 1; j < p.taps; j++)
        acc = fmaf(p.w[(int64_t)j * p.x.cols + c], conv_input(p, s, t - p.taps + 1 + j, c), acc);
    p.y.data[(int64_t)row * p.y.stride + c] = fmath_silu(acc);
}

/* The states become the last inputs. Ascending: what is read was not yet written. */
static __global__ void k_conv_move(cu_conv p)
{
    cu_wait_before();
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    cu_seq s = p.seqs[blockIdx.y];
    if (c >= p.x.cols || s.is_tentative || s.n_rows == 0)
        return;
    float *state = p.state + (int64_t)s.slot * (p.taps - 1) * p.x.cols + c;
    for (int i = 0; i < p.taps - 1; i++)
        state[(int64_t)i * p.x.cols] = conv_input(p, s, s.n_rows - (p.taps - 1) + i, c);
}

extern "C" int cu_launch_conv(const cu_conv *p, cu_stream s)
{
    unsigned blocks = cu_blocks(p->x.cols, 128);
    int e = cu_launch(k_conv, dim3(blocks, (unsigned)p->x.rows), dim3(128), 0, s, *p);
    return e ? e : cu_launch(k_conv_move, dim3(blocks, (unsigned)p->n_seqs), dim3(128), 0, s, *p);
}

static __global__ void k_delta_gates(cu_delta_gates p)
{
    cu_wait_before();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = i / p.a.cols, h = i % p.a.cols;
    if (t >= p.a.rows)
        return;
    float *a = p.a.data + (int64_t)t * p.a.stride + h, *b = p.b.data + (int64_t)t * p.b.stride + h;
    *a = fmath_exp(p.scale[h] * fmath_softplus_of(*a + p.bias[h]));
    *b = fmath_sigmoid(*b);
}

extern "C" int cu_launch_delta_gates(const cu_delta_gates *p, cu_stream s)
{
    return cu_launch(k_delta_gates, dim3(cu_blocks((int64_t)p->a.rows * p->a.cols, 128)), dim3(128),
                     0, s, *p);
}

/* A column's product with a vector of keys: the even and the odd rows, each an ascending chain. */
static __device__ __forceinline__ float column(const float *m, const float *with, int n)
{
    float even = 0, odd = 0;
#pragma unroll 8
    for (int i = 0; i < n; i += 2) {
        even = fmaf(m[i * COLUMNS], with[i], even);
        odd = fmaf(m[(i + 1) * COLUMNS], with[i + 1], odd);
    }
    return even + odd;
}

static __global__ void __launch_bounds__(COLUMNS) k_delta(cu_delta p)
{
    CU_SHARED_ARRAY(float, smem, 16);
    float *m = smem + threadIdx.x, *k = smem + p.key_dim * COLUMNS, *q = k + p.key_dim;
    cu_wait_before();
    cu_seq s = p.seqs[blockIdx.z];
    int h = (int)blockIdx.y, j = (int)(blockIdx.x * COLUMNS + threadIdx.x);
    int g = p.is_tiled ? h % p.n_key_heads : h / (p.n_heads / p.n_key_heads);
    bool is_in = j < p.value_dim;
    float *matrix =
        p.matrix + ((int64_t)s.slot * p.n_heads + h) * p.key_dim * p.value_dim + (is_in ? j : 0);
    for (int i = 0; i < p.key_dim; i++)
        m[i * COLUMNS] = s.pos0 == 0 || !is_in ? 0 : matrix[(int64_t)i * p.value_dim];
    for (int t = s.row0; t < s.row0 + s.n_rows; t++) {
        __syncwarp();
        for (int i = (int)threadIdx.x; i < p.key_dim; i += COLUMNS) {
            k[i] = p.k.data[(int64_t)t * p.k.stride + g * p.key_dim + i];
            q[i] = p.q.data[(int64_t)t * p.q.stride + g * p.key_dim + i];
        }
        __syncwarp();
        float decay = p.decay.data[(int64_t)t * p.decay.stride + h];
        float beta = p.beta.data[(int64_t)t * p.beta.stride + h];
        float v = is_in ? p.v.data[(int64_t)t * p.v.stride + h * p.value_dim + j] : 0;
        float d = fmaf(-decay, column(m, k, p.key_dim), v) * beta;
#pragma unroll 8
        for (int i = 0; i < p.key_dim; i++)
            m[i * COLUMNS] = fmaf(k[i], d, m[i * COLUMNS] * decay);
        float out = column(m, q, p.key_dim);
        if (is_in)
            p.out.data[(int64_t)t * p.out.stride + h * p.value_dim + j] = out;
    }
    if (s.is_tentative || s.n_rows == 0 || !is_in)
        return;
    for (int i = 0; i < p.key_dim; i++)
        matrix[(int64_t)i * p.value_dim] = m[i * COLUMNS];
}

extern "C" int cu_launch_delta(const cu_delta *p, cu_stream s)
{
    size_t smem = ((size_t)p->key_dim * COLUMNS + 2 * (size_t)p->key_dim) * sizeof(float);
    return cu_launch_big(
        k_delta, dim3(cu_blocks(p->value_dim, COLUMNS), (unsigned)p->n_heads, (unsigned)p->n_seqs),
        dim3(COLUMNS), smem, s, *p);
}
