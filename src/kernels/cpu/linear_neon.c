/* Matrix products with NEON's dot product.
 *
 * A register holds 4 rows x 4 elements of k, a quarter of a code vector; sdot takes the four elements of x from one lane of 16.
 * Codes are below 128 and go as they are, their bias undone by what the sums start from; 8-bit codes become signed. How many
 * quarters a pass takes is chosen so that sums and chains stay in the 32 registers: with one row of x a whole tile, else half
 * a tile and up to four rows. A group of 32 by 8 rows of Q4_K by 4 of x is 208 instructions, 64 of them sdot. Never timed: there was
 * an emulator only. */
#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/plain_impl.h"

#define N_INLINE static inline __attribute__((always_inline))
#define N_QUADS  4 /* registers of rows in a tile */

/* Quarter `quad` of code vectors j and 4 + j (j = 0..3); c points at the group's codes plus 16 * quad. */
N_INLINE void codes_pair(const enum lin_kind kind, const uint8_t *c, const int j, int8x16_t *lo,
                         int8x16_t *hi)
{
    uint8x16_t v = vld1q_u8(c + 64 * j);
    if (kind == LIN_KIND_Q8_0) {
        const uint8x16_t sign = vdupq_n_u8(0x80);
        *lo = vreinterpretq_s8_u8(veorq_u8(v, sign));
        *hi = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(c + 256 + 64 * j), sign));
        return;
    }
    uint8x16_t a = vandq_u8(v, vdupq_n_u8(15)), b = vshrq_n_u8(v, 4);
    if (kind == LIN_KIND_Q5_0 || kind == LIN_KIND_Q5_1 || kind == LIN_KIND_Q5_K) {
        uint8x16_t h = vld1q_u8(c + 256);
        const uint8x16_t bit = vdupq_n_u8(16);
        a = vorrq_u8(a, vandq_u8(h << (uint8_t)(4 - j), bit));
        b = vorrq_u8(b, vandq_u8(h >> (uint8_t)j, bit));
    }
    if (kind == LIN_KIND_Q6_K) {
        uint8x16_t h0 = vld1q_u8(c + 256), h1 = vld1q_u8(c + 320);
        const uint8x16_t bits = vdupq_n_u8(48);
        const uint8_t left = (uint8_t)(j < 2 ? 4 - 2 * j : 0), right = j == 3 ? 2 : 0;
        a = vorrq_u8(a, vandq_u8(h0 << left >> right, bits));
        b = vorrq_u8(b, vandq_u8(h1 << left >> right, bits));
    }
    *lo = vreinterpretq_s8_u8(a);
    *hi = vreinterpretq_s8_u8(b);
}

/* a + the products of w's rows with elements 4 * lane.. of x. */
N_INLINE int32x4_t dot4(int32x4_t a, int8x16_t w, int8x16_t x, const int lane)
{
    switch (lane) { /* the instruction wants a constant */
    case 0:
        return vdotq_laneq_s32(a, w, x, 0);
    case 1:
        return vdotq_laneq_s32(a, w, x, 1);
    case 2:
        return vdotq_laneq_s32(a, w, x, 2);
    default:
        return vdotq_laneq_s32(a, w, x, 3);
    }
}

N_INLINE int32x4_t n_bytes(const uint8_t *p, const bool is_signed) /* four bytes, widened */
{
    uint32x4_t u = nv_bytes(p);
    return is_signed ? vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_u32(u), 24), 24)
                     : vreinterpretq_s32_u32(u);
}

/* Of group `sub` of the block at b, four rows: d, m of affine kinds, the scales of Q6_K's halves. */
struct scales {
    float32x4_t d, m;
    int32x4_t s0, s1;
};

N_INLINE struct scales load_scales(const enum lin_kind kind, const uint8_t *b, int sub, int quad)
{
    struct scales s = { .m = vdupq_n_f32(0), .s0 = vdupq_n_s32(0), .s1 = vdupq_n_s32(0) };
    const uint8_t *d = lin_log2_groups(kind) == 1 ? b + 32 * sub : b, *sc = b + 32 * sub + 4 * quad;
    s.d = nv_load_f16((const uint16_t *)(d + 8 * quad));
    if (lin_is_affine(kind))
        s.m = nv_load_f16((const uint16_t *)(b + 32 + 8 * quad));
    if (kind == LIN_KIND_Q4_K || kind == LIN_KIND_Q5_K) {
        s.d = vmulq_f32(s.d, nv_load_u8(sc + 64));
        s.m = vmulq_f32(s.m, nv_load_u8(sc + 80));
    }
    if (kind == LIN_KIND_Q6_K) {
        s.s0 = n_bytes(sc + 32, true);
        s.s1 = n_bytes(sc + 48, true);
    }
    return s;
}

static inline const int32_t *neg_of(const enum lin_kind kind, const struct act *x)
{
    switch (lin_bias(kind)) {
    case 8:
        return x->neg8;
    case 16:
        return x->neg16;
    case 32:
        return x->neg32_0;
    default:
        return NULL;
    }
}

/* Dot products of a group: nq quarters by nt rows of x, the rows GROUP bytes apart. Q6_K: each half on its own. */
N_INLINE void dots(const enum lin_kind kind, const int nt, const int nq, const uint8_t *c,
                   const int8_t *q, int32x4_t dot[DIRECT_ROWS][N_QUADS],
                   int32x4_t dot1[DIRECT_ROWS][N_QUADS])
{
    const bool halves = kind == LIN_KIND_Q6_K;
    int8x16_t x0[DIRECT_ROWS], x1[DIRECT_ROWS];
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        x0[t] = vld1q_s8(q + t * GROUP);
        x1[t] = vld1q_s8(q + t * GROUP + 16);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
#pragma GCC unroll 4
        for (int u = 0; u < nq; u++) {
            int8x16_t lo, hi;
            codes_pair(kind, c + 16 * u, j, &lo, &hi);
#pragma GCC unroll 4
            for (int t = 0; t < nt; t++) {
                dot[t][u] = dot4(dot[t][u], lo, x0[t], j);
                if (halves)
                    dot1[t][u] = dot4(dot1[t][u], hi, x1[t], j);
                else
                    dot[t][u] = dot4(dot[t][u], hi, x1[t], j);
            }
        }
    }
}

N_INLINE void store_quad(const struct lin_job *j, int64_t tile, int quad, int64_t t, float32x4_t y)
{
    int64_t row = tile * TILE + 4 * quad, left = j->w->shape.out - row;
    if (left > 0)
        nv_store_n(j->y + t * j->y_stride + row, y, (int)min_i64(left, 4));
}

/* Rows [t0, t0 + nt) of x by quarters [quad0, quad0 + nq) of a tile. kind, nt and nq are constants at each call. */
N_INLINE void direct(const enum lin_kind kind, const int nt, const int nq,
                     const struct lin_job *job, int t0, int64_t tile, int quad0)
{
    const bool affine = lin_is_affine(kind), halves = kind == LIN_KIND_Q6_K;
    const struct act *x = job->x;
    const int shift = lin_log2_groups(kind);
    const uint8_t *base = job->w->data + (size_t)tile * job->w->tile_bytes;
    const int32_t *neg = neg_of(kind, x);
    int64_t i = act_index(x, t0, 0);
    float32x4_t ad[DIRECT_ROWS][N_QUADS], am[DIRECT_ROWS][N_QUADS];
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
        for (int u = 0; u < nq; u++)
            ad[t][u] = am[t][u] = vdupq_n_f32(0);
    for (int64_t g = 0; g < job->w->n_groups; g++, i += x->mb) {
        const int sub = (int)(g & ((1 << shift) - 1));
        const uint8_t *b = base + (g >> shift) * lin_block_bytes(kind);
        const uint8_t *c = b + lin_code_offset(kind) + sub * lin_code_bytes(kind) + 16 * quad0;
        int32x4_t dot[DIRECT_ROWS][N_QUADS], dot1[DIRECT_ROWS][N_QUADS];
#pragma GCC unroll 4
        for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
            for (int u = 0; u < nq; u++) {
                dot[t][u] = vdupq_n_s32(neg ? neg[i + t] : 0);
                dot1[t][u] = vdupq_n_s32(halves ? x->neg32_1[i + t] : 0);
            }
        dots(kind, nt, nq, c, x->q + i * GROUP, dot, dot1);
#pragma GCC unroll 4
        for (int u = 0; u < nq; u++) {
            struct scales s = load_scales(kind, b, sub, quad0 + u);
#pragma GCC unroll 4
            for (int t = 0; t < nt; t++) {
                int32x4_t v = dot[t][u];
                if (halves) /* below 2^24: exact in f32 too */
                    v = vmlaq_s32(vmulq_s32(s.s0, v), s.s1, dot1[t][u]);
                float32x4_t p = vmulq_n_f32(s.d, x->d[i + t]);
                ad[t][u] = vfmaq_f32(ad[t][u], vcvtq_f32_s32(v), p);
                if (affine)
                    am[t][u] = vfmaq_n_f32(am[t][u], s.m, x->s[i + t]);
            }
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
        for (int u = 0; u < nq; u++)
            store_quad(job, tile, quad0 + u, t0 + t,
                       affine ? vaddq_f32(ad[t][u], am[t][u]) : ad[t][u]);
}

/* A whole tile for one row of x, else half of one: see above. */
#define DIRECT(kind, nt)                                                              \
    static void direct_##kind##_##nt(const struct lin_job *job, int t0, int64_t tile) \
    {                                                                                 \
        const int nq = nt == 1 ? N_QUADS : N_QUADS / 2;                               \
        for (int quad = 0; quad < N_QUADS; quad += nq)                                \
            direct(LIN_KIND_##kind, nt, nq, job, t0, tile, quad);                     \
    }

#include "kernels/cpu/linear_direct.h"

const struct lin_ops lin_ops_neon = { "neon", grouped_direct, plain, 0 };
