/* Attention of few rows whose splits were blocks of their own: the splits' results become one. */
#include "kernels/cuda/attention.cuh"

#define COMBINED 8192 /* floats of partial sums that a block holds */

/* A split as it is merged onto those before it. */
struct joint {
    float a, b, l, unused;
};

/* The factors of n splits behind a maximum M, by one warp; returns the new maximum. */
static __device__ __forceinline__ float joints_of(joint *to, const float *from, int pitch, int n,
                                                  float M, int lane)
{
    for (int i0 = 0; i0 < n; i0 += CU_WARP) {
        int i = i0 + lane;
        float m = i < n ? from[i * pitch] : -INFINITY, most = m;
        for (int w = 1; w < CU_WARP; w *= 2) {
            float other = __shfl_up_sync(0xFFFFFFFFu, most, w);
            most = lane >= w ? fmaxf(most, other) : most;
        }
        most = fmaxf(most, M);
        float before = __shfl_up_sync(0xFFFFFFFFu, most, 1), base = base_of(most);
        if (lane == 0)
            before = M;
        if (i < n)
            to[i] = { weight_of(before, base), weight_of(m, base), from[i * pitch + 1], 0 };
        M = __shfl_sync(0xFFFFFFFFu, most, CU_WARP - 1);
    }
    return M;
}

/* Splits that a block of k_combine holds at a time. */
struct combine_shared {
    float sums[COMBINED];
    joint joints[COMBINED / (CU_UNIT + 4)];
};

/* Merge the splits of a row and head; a thread per column. Partial sums come to shared memory first: there are tens of them one behind the
 * other, and each would wait for memory. */
static __global__ void k_combine(const __grid_constant__ cu_attention p)
{
    CU_SHARED_ARRAY(uint8_t, smem, 16);
    combine_shared &sh = *(combine_shared *)smem;
    cu_start_next();
    int d = (int)threadIdx.x, head = (int)blockIdx.x, pitch = p.kv.pad_dim + 4;
    cu_tile tile = p.tiles[blockIdx.z];
    cu_seq s = p.seqs[tile.seq];
    int t =
        row_of(p, tile.slot0) + (int)blockIdx.y; /* one of the rows that the tile has a slot of */
    int slot0 = t * p.per + head % p.per;
    if (t >= s.n_rows || slot0 < tile.slot0 || slot0 >= tile.slot0 + CU_SLOTS)
        return; /* others wait for the kernel before */
    int row = s.row0 + t, pos = s.pos0 + t, end = pos / CU_SPLIT + 1, most = COMBINED / pitch;
    float M = -INFINITY, L = 0, O = 0;
    if (p.sinks) {
        M = p.sinks[head];
        L = 1;
    }
    cu_wait_before();
    for (int sp = first_page(p, pos) / SPLIT_PAGES; sp < end; sp += most) {
        int n = min(most, end - sp), n4 = n * (pitch / 4);
        const float4 *from = (const float4 *)(p.partial + partial_at(p, row, head, sp));
        __syncthreads(); /* those before are read */
#pragma unroll 1
        for (int i = d; i < n4; i += (int)blockDim.x)
            copy_async((float4 *)sh.sums + i, from + i);
        cu_copy_wait_all();
        __syncthreads();
        if (d < CU_WARP)
            M = joints_of(sh.joints, sh.sums, pitch, n, M, d);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < n; i++) {
            joint f = sh.joints[i];
            L = fmaf(f.l, f.b, L * f.a);
            O = fmaf(sh.sums[i * pitch + 4 + d], f.b, O * f.a);
        }
    }
    float v = O * (1.0f / L);
    bool ok = store_one(p, row, head, d, v);
    if (!ok)
        p.flags[row] = 1;
    if (p.to_bf16.out && d < p.kv.head_dim)
        cu_put_bf16(p.to_bf16, row, head * p.kv.head_dim + d, ok ? v : 0);
}

int cu_attention_combine(const cu_attention *p, cu_stream s)
{
    unsigned rows = (unsigned)((CU_SLOTS + p->per - 1) / p->per + (CU_SLOTS % p->per != 0));
    return cu_launch_big(k_combine, dim3((unsigned)p->n_heads, rows, (unsigned)p->n_tiles),
                         dim3((unsigned)p->kv.pad_dim), sizeof(combine_shared), s, *p);
}
