/* weight.cuh - packed weights: how they lie, and their fragments of the tensor core's A operand.
 *
 * A tile is 16 rows; behind one another lie the units (64 columns) of tile 0, then of tile 1, and so on. In a unit, lane l of a warp
 * (row g = l / 4 and g + 8, quad q = l % 4) has, for each of the four steps of 16 columns, the 8 weights of its fragment:
 * a0 a1 = row g, columns 2q 2q+1; a2 a3 = row g + 8; a4 a5 = row g, columns 2q+8 2q+9; a6 a7 = row g + 8.
 *
 *     4 bits: a word a step: nibbles 0 4 1 5 2 6 3 7 are a0..a7       512 bytes a unit
 *     8 bits: two words a step: bytes a0..a7                          1024
 *     bf16:   four words a step: halves a0..a7                        2048
 *
 * Scales of a unit: for each g, the groups of row g, then those of row g + 8; a word each, scale low, bias high (bf16).
 *
 * A code n as a bf16 pattern is n 2^-133 (0..255: patterns of denormals go on into the first normal exponent without a step), so that
 * one bf16 fma with scale 2^133 gives rn(n scale + bias). Second rows of 4-bit words stand 4 bits higher: scale 2^129. */
#ifndef PLUMB_KERNELS_CUDA_WEIGHT_CUH
#define PLUMB_KERNELS_CUDA_WEIGHT_CUH

#include "kernels/cuda/device.cuh"

/* First unit of segment i of K. */
#define CU_SEG_FIRST(i, units) ((int)((int64_t)(i) * (units) / CU_SEGMENTS))

template <int FORMAT> struct cu_fragment {
    static const int WORDS = FORMAT == CU_FORMAT_4BIT ? 1 : FORMAT == CU_FORMAT_8BIT ? 2 : 4;
};

/* Scale words of a lane in a unit. */
template <int GROUP> struct cu_groups {
    static const int N = GROUP == 0 ? 1 : 2 * CU_UNIT / GROUP;
};

/* What a lane has of a unit: 16-byte words of codes, scales. */
template <int FORMAT, int GROUP> struct cu_piece {
    uint4 codes[cu_fragment<FORMAT>::WORDS];
    uint32_t scales[cu_groups<GROUP>::N];
};

template <int FORMAT, int GROUP>
static __device__ __forceinline__ void cu_load_piece(cu_piece<FORMAT, GROUP> &p, const void *codes,
                                                     const uint32_t *scales, int64_t unit, int lane)
{
    const int W = cu_fragment<FORMAT>::WORDS, N = cu_groups<GROUP>::N;
    const uint4 *c = (const uint4 *)codes + unit * (W * CU_WARP) + lane;
#pragma unroll
    for (int i = 0; i < W; i++)
        p.codes[i] = __ldcs(c + i * CU_WARP);
    if (GROUP == 0)
        return;
    const uint32_t *s = scales + unit * (8 * N) + lane / 4 * N;
    if (N == 2) {
        uint2 v = __ldcs((const uint2 *)s);
        p.scales[0] = v.x;
        p.scales[N - 1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            uint4 v = __ldcs((const uint4 *)s + i);
            p.scales[(4 * i) % N] = v.x;
            p.scales[(4 * i + 1) % N] = v.y;
            p.scales[(4 * i + 2) % N] = v.z;
            p.scales[(4 * i + 3) % N] = v.w;
        }
    }
}

/* ... from a unit's codes and scales in shared memory. */
template <int FORMAT, int GROUP>
static __device__ __forceinline__ void cu_read_piece(cu_piece<FORMAT, GROUP> &p,
                                                     const uint8_t *codes, const uint8_t *scales,
                                                     int lane)
{
    const int W = cu_fragment<FORMAT>::WORDS, N = cu_groups<GROUP>::N;
    const uint4 *c = (const uint4 *)codes + lane;
#pragma unroll
    for (int i = 0; i < W; i++)
        p.codes[i] = c[i * CU_WARP];
    if (GROUP == 0)
        return;
    const uint32_t *s = (const uint32_t *)scales + lane / 4 * N;
    if (N == 2) {
        uint2 v = *(const uint2 *)s;
        p.scales[0] = v.x;
        p.scales[N - 1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            uint4 v = *((const uint4 *)s + i);
            p.scales[(4 * i) % N] = v.x;
            p.scales[(4 * i + 1) % N] = v.y;
            p.scales[(4 * i + 2) % N] = v.z;
            p.scales[(4 * i + 3) % N] = v.w;
        }
    }
}

static __device__ __forceinline__ uint32_t cu_word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The fragment of step j. 16-byte word i of a lane holds: 4 bits: words of steps 0..3; 8 bits: steps 2i, 2i + 1; bf16: step i. */
template <int FORMAT, int GROUP>
static __device__ __forceinline__ void cu_fragment_of(const cu_piece<FORMAT, GROUP> &p, int j,
                                                      uint32_t a[4])
{
    if (FORMAT == CU_FORMAT_BF16) {
        const uint4 &v = p.codes[j % cu_fragment<FORMAT>::WORDS];
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
        return;
    }
    const int N = cu_groups<GROUP>::N, half = N / 2;
    int group = GROUP == 0 ? 0 : j * 16 / (GROUP == 0 ? 1 : GROUP);
    uint32_t lo = p.scales[group % N], hi = p.scales[(half + group) % N];
    if (FORMAT == CU_FORMAT_4BIT) {
        uint32_t w = cu_word(p.codes[0], j), v = w >> 8;
        a[0] = cu_scale_bf16x2(w & 0x000F000Fu, lo);
        a[1] = cu_scale_bf16x2(w & 0x00F000F0u, hi);
        a[2] = cu_scale_bf16x2(v & 0x000F000Fu, lo);
        a[3] = cu_scale_bf16x2(v & 0x00F000F0u, hi);
    } else {
        const uint4 &v = p.codes[(j / 2) % cu_fragment<FORMAT>::WORDS];
        uint32_t w0 = cu_word(v, 2 * (j % 2)), w1 = cu_word(v, 2 * (j % 2) + 1);
        a[0] = cu_scale_bf16x2(__byte_perm(w0, 0, 0x4140), lo);
        a[1] = cu_scale_bf16x2(__byte_perm(w0, 0, 0x4342), hi);
        a[2] = cu_scale_bf16x2(__byte_perm(w1, 0, 0x4140), lo);
        a[3] = cu_scale_bf16x2(__byte_perm(w1, 0, 0x4342), hi);
    }
}

/* The weight at (row, column), as the tensor core gets it; times post it is the model's. Slow: for embeddings and the oracle. */
static __device__ inline uint16_t cu_weight_at(const cu_weight &w, int row, int col)
{
    int64_t unit = (int64_t)(row / CU_TILE_ROWS) * w.units + col / CU_UNIT;
    int r = row % CU_TILE_ROWS, c = col % CU_UNIT, j = c / 16, k = c % 16;
    int lane = r % 8 * 4 + k % 8 / 2, i = k / 8 * 4 + r / 8 * 2 + k % 2; /* a0..a7 */
    if (w.format == CU_FORMAT_BF16)
        return ((const uint16_t *)w.codes)[unit * 1024 + (j * CU_WARP + lane) * 8 + i];
    int n = 2 * CU_UNIT / w.group;
    uint32_t s = w.scales[unit * (8 * n) + r % 8 * n + r / 8 * (n / 2) + c / w.group];
    uint32_t code;
    if (w.format == CU_FORMAT_4BIT) {
        uint32_t word = ((const uint32_t *)w.codes)[unit * 128 + lane * 4 + j];
        code = word >> (i % 2 * 16 + i / 2 * 4) & 15;
        code <<= r / 8 * 4;
    } else {
        code = ((const uint8_t *)
                    w.codes)[unit * 1024 + ((j / 2) * CU_WARP + lane) * 16 + j % 2 * 8 + i];
    }
    return (uint16_t)cu_fma_bf16x2(code, s & 0xFFFFu, s >> 16);
}

#endif
