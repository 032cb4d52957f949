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

/* v shifted so that bit `from` of each byte comes to bit `to`. */
N_INLINE uint8x16_t n_move_bit(uint8x16_t v, const int from, const int to)
{
    return from <= to ? v << (uint8_t)(to - from) : v >> (uint8_t)(from - to);
}

N_INLINE uint8x16_t n_or_masked(uint8x16_t a, uint8x16_t b, const uint8_t mask)
{
    return vorrq_u8(a, vandq_u8(b, vdupq_n_u8(mask)));
}

/* Quarter `quad` of code vectors j and 4 + j (j = 0..3); c points at the group's codes plus 16 * quad. 8-bit codes become signed. */
N_INLINE void codes_pair(const enum lin_kind kind, const uint8_t *c, const int j, int8x16_t *lo,
                         int8x16_t *hi)
{
    const enum lin_code code = lin_code(kind);
    const uint8x16_t sign = vdupq_n_u8(0x80);
    uint8x16_t a, b;
    if (code == LIN_CODE_8) {
        *lo = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(c + 64 * j), sign));
        *hi = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(c + 256 + 64 * j), sign));
        return;
    }
    if (code == LIN_CODE_2 || code == LIN_CODE_3) {
        a = vandq_u8(n_move_bit(vld1q_u8(c), 2 * j, 0), vdupq_n_u8(3));
        b = vandq_u8(n_move_bit(vld1q_u8(c + 64), 2 * j, 0), vdupq_n_u8(3));
        if (code == LIN_CODE_3) {
            uint8x16_t h = vld1q_u8(c + 128);
            a = n_or_masked(a, n_move_bit(h, j, 2), 4);
            b = n_or_masked(b, n_move_bit(h, 4 + j, 2), 4);
        }
    } else {
        uint8x16_t v = vld1q_u8(c + 64 * j);
        a = vandq_u8(v, vdupq_n_u8(15));
        b = vshrq_n_u8(v, 4);
    }
    if (code == LIN_CODE_TABLE) {
        const uint8x16_t table = vld1q_u8(lin_table(kind));
        a = vqtbl1q_u8(table, a);
        b = vqtbl1q_u8(table, b);
        if (lin_bias(kind) == 128) {
            a = veorq_u8(a, sign);
            b = veorq_u8(b, sign);
        }
    }
    if (code == LIN_CODE_5) {
        uint8x16_t h = vld1q_u8(c + 256);
        a = n_or_masked(a, n_move_bit(h, j, 4), 16);
        b = n_or_masked(b, n_move_bit(h, 4 + j, 4), 16);
    }
    if (code == LIN_CODE_6) {
        a = n_or_masked(a, n_move_bit(vld1q_u8(c + 256), 2 * j, 4), 48);
        b = n_or_masked(b, n_move_bit(vld1q_u8(c + 320), 2 * j, 4), 48);
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

/* Of a group, four rows: d, and what the kind has (cpu_int.h): m; the integers s, o of each half. */
struct nscales {
    float32x4_t d, m;
    int32x4_t s0, s1, o0, o1;
};

N_INLINE void load_mlx(enum dtype type, const uint8_t *b, int quad, struct nscales *s)
{
    const uint16_t *h = (const uint16_t *)(const void *)(b + 8 * quad);
    const float *f = (const float *)(const void *)(b + 16 * quad);
    if (type == DTYPE_BF16) {
        s->d = nv_load_bf16(h);
        s->m = nv_load_bf16(h + TILE);
    } else if (type == DTYPE_F16) {
        s->d = nv_load_f16(h);
        s->m = nv_load_f16(h + TILE);
    } else {
        s->d = nv_load(f);
        s->m = nv_load(f + TILE);
    }
}

/* Scales of group `sub` of the block at b. */
N_INLINE struct nscales load_scales(const enum lin_kind kind, const struct weight *w,
                                    const uint8_t *b, int sub, int quad)
{
    const enum lin_scales form = lin_scales(kind);
    const int32x4_t zero = vdupq_n_s32(0);
    struct nscales s = { vdupq_n_f32(0), vdupq_n_f32(0), zero, zero, zero, zero };
    if (form == LIN_SCALES_MLX) {
        load_mlx(w->scale_type, b, quad, &s);
        return s;
    }
    const uint8_t *d = form == LIN_SCALES_D || form == LIN_SCALES_BF16 ? b + 32 * sub : b;
    const uint8_t *sc = b + 32 * sub + 4 * quad;
    const uint16_t *h = (const uint16_t *)(const void *)(d + 8 * quad);
    s.d = form == LIN_SCALES_BF16 ? nv_load_bf16(h) : nv_load_f16(h);
    if (lin_is_affine(kind))
        s.m = nv_load_f16((const uint16_t *)(const void *)(b + 32 + 8 * quad));
    if (form == LIN_SCALES_K) {
        s.d = vmulq_f32(s.d, nv_load_u8(sc + 64));
        s.m = vmulq_f32(s.m, nv_load_u8(sc + 80));
    }
    if (form == LIN_SCALES_XS)
        s.d = vmulq_f32(s.d, vcvtq_f32_s32(n_bytes(b + 32 + 16 * sub + 4 * quad, true)));
    if (form == LIN_SCALES_HALVES) {
        s.s0 = n_bytes(sc + 32, true);
        s.s1 = n_bytes(sc + 48, true);
    }
    if (form == LIN_SCALES_MINS) {
        const int32x4_t u0 = n_bytes(sc + 64, false), u1 = n_bytes(sc + 80, false);
        s.s0 = vandq_s32(u0, vdupq_n_s32(15));
        s.s1 = vandq_s32(u1, vdupq_n_s32(15));
        s.o0 = vshrq_n_s32(u0, 4);
        s.o1 = vshrq_n_s32(u1, 4);
    }
    return s;
}

/* The array of struct act that undoes the kind's bias; codes of 8 bits, being signed, need it where they had none. */
static inline const int32_t *neg_of(const enum lin_kind kind, const struct act *x)
{
    if (kind == LIN_KIND_MLX8)
        return x->neg128;
    switch (lin_bias(kind)) {
    case 8:
        return x->neg8;
    case 16:
        return x->neg16;
    case 4:
    case 32:
        return x->neg32_0;
    default:
        return NULL;
    }
}

/* What a sum starts from: see above; MLX8's is negated. */
N_INLINE int32x4_t dots_start(const enum lin_kind kind, const int32_t *neg, int64_t i)
{
    int32_t v = neg ? neg[i] >> (lin_bias(kind) == 4 ? 3 : 0) : 0;
    return vdupq_n_s32(kind == LIN_KIND_MLX8 ? -v : v);
}

/* Dot products of a group: nq quarters by nt rows of x, the rows GROUP bytes apart. Q6_K: each half on its own. */
N_INLINE void dots(const enum lin_kind kind, const int nt, const int nq, const uint8_t *c,
                   const int8_t *q, int32x4_t dot[DIRECT_ROWS][N_QUADS],
                   int32x4_t dot1[DIRECT_ROWS][N_QUADS])
{
    const bool halves = lin_has_halves(kind);
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

/* dx * (o0 sum0 + o1 sum1): the sums of x over each half, which act has times -32. Exact up to dx. */
N_INLINE float32x4_t mins_factor(const struct nscales *s, const struct act *x, int64_t i)
{
    int32x4_t u = vmlaq_n_s32(vmulq_n_s32(s->o0, x->neg32_0[i]), s->o1, x->neg32_1[i]);
    return vmulq_n_f32(vmulq_n_f32(vcvtq_f32_s32(u), -0x1p-5f), x->d[i]);
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
    const bool affine = lin_is_affine(kind), halves = lin_has_halves(kind);
    const struct act *x = job->x;
    const struct lin_block at = lin_block(kind, job->w);
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
        const int sub = (int)(g & ((1 << at.shift) - 1));
        const uint8_t *b = base + (g >> at.shift) * at.bytes;
        const uint8_t *c = b + at.codes + sub * lin_code_bytes(kind) + 16 * quad0;
        int32x4_t dot[DIRECT_ROWS][N_QUADS], dot1[DIRECT_ROWS][N_QUADS];
#pragma GCC unroll 4
        for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
            for (int u = 0; u < nq; u++) {
                dot[t][u] = dots_start(kind, neg, i + t);
                dot1[t][u] = dots_start(kind, neg && halves ? x->neg32_1 : NULL, i + t);
            }
        dots(kind, nt, nq, c, x->q + i * GROUP, dot, dot1);
#pragma GCC unroll 4
        for (int u = 0; u < nq; u++) {
            struct nscales s = load_scales(kind, job->w, b, sub, quad0 + u);
#pragma GCC unroll 4
            for (int t = 0; t < nt; t++) {
                int32x4_t v = dot[t][u];
                if (halves) /* below 2^24: exact in f32 too */
                    v = vmlaq_s32(vmulq_s32(s.s0, v), s.s1, dot1[t][u]);
                float32x4_t p = vmulq_n_f32(s.d, x->d[i + t]);
                ad[t][u] = vfmaq_f32(ad[t][u], vcvtq_f32_s32(v), p);
                if (lin_scales(kind) == LIN_SCALES_MINS)
                    am[t][u] = vfmaq_f32(am[t][u], s.m, mins_factor(&s, x, i + t));
                else if (affine)
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
