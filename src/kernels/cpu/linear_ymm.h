/* linear_ymm.h - 256-bit matrix products, shared by linear_avx2.c and linear_avxvnni.c (which defines YMM_VNNI 1).
 *
 * Half a tile at a time: one register holds 8 rows x 4 elements of k. Without VNNI, products of unsigned codes and signed
 * activations are added in pairs to int16 (vpmaddubsw), a few of them there, then widened: 8 with 4-bit codes (8 * 2 * 15 * 127 =
 * 30480), 4 with 5 bits (31496), 2 with 6 bits (32004). 8-bit codes would saturate: they go as |w| and x with w's sign (32512).
 * All of it is exact, so the bits are those of every other way. Few rows of x unpack codes in registers; more go through scratch, where
 * half a tile and four rows of x keep to 16 registers. */
#ifndef PLUMB_KERNELS_CPU_LINEAR_YMM_H
#define PLUMB_KERNELS_CPU_LINEAR_YMM_H

#if defined(__AVX2__) /* included by files built for it alone; elsewhere empty */

#include "kernels/cpu/linear_scratch.h"
#include "kernels/cpu/plain_impl.h"

#include <immintrin.h>
#include <string.h>

#define Y_INLINE static inline __attribute__((always_inline))

/* Bits of the unsigned codes that codes_pair gives; 5 where only half a group's products may be added. */
Y_INLINE int code_bits(const enum lin_kind kind)
{
    if (lin_has_halves(kind) && lin_code(kind) != LIN_CODE_6)
        return 5;
    static const int bits[LIN_CODE_COUNT] = { 2, 3, 4, 5, 6, 8, 8 };
    return kind == LIN_KIND_MXFP4 ? 5 : bits[lin_code(kind)];
}

/* Products that may be added in int16 before widening. */
Y_INLINE int narrow_max(const int bits)
{
    return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}

Y_INLINE __m256i y_load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

Y_INLINE __m256i y_bcast(const int8_t *p)
{
    int32_t u;
    memcpy(&u, p, 4);
    return _mm256_set1_epi32(u);
}

/* v shifted so that bit `from` of each byte comes to bit `to`. */
Y_INLINE __m256i y_move_bit(__m256i v, const int from, const int to)
{
    return from <= to ? _mm256_slli_epi32(v, to - from) : _mm256_srli_epi32(v, from - to);
}

Y_INLINE __m256i y_or_masked(__m256i a, __m256i b, __m256i mask)
{
    return _mm256_or_si256(a, _mm256_and_si256(b, mask));
}

/* Code vectors j and 4 + j (j = 0..3), rows of one half: c points at the group's codes plus 32 * half. */
Y_INLINE void codes_pair(const enum lin_kind kind, const uint8_t *c, const int j, __m256i *lo,
                         __m256i *hi)
{
    const enum lin_code code = lin_code(kind);
    __m256i a, b;
    if (code == LIN_CODE_8) {
        *lo = y_load(c + 64 * j);
        *hi = y_load(c + 256 + 64 * j);
        return;
    }
    if (code == LIN_CODE_2 || code == LIN_CODE_3) {
        const __m256i pair = _mm256_set1_epi8(3);
        a = _mm256_and_si256(y_move_bit(y_load(c), 2 * j, 0), pair);
        b = _mm256_and_si256(y_move_bit(y_load(c + 64), 2 * j, 0), pair);
        if (code == LIN_CODE_3) {
            __m256i h = y_load(c + 128), bit = _mm256_set1_epi8(4);
            a = y_or_masked(a, y_move_bit(h, j, 2), bit);
            b = y_or_masked(b, y_move_bit(h, 4 + j, 2), bit);
        }
    } else {
        const __m256i nibble = _mm256_set1_epi8(15), v = y_load(c + 64 * j);
        a = _mm256_and_si256(v, nibble);
        b = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
    }
    if (code == LIN_CODE_TABLE) {
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)lin_table(kind)));
        a = _mm256_shuffle_epi8(table, a);
        b = _mm256_shuffle_epi8(table, b);
    }
    if (code == LIN_CODE_5) {
        __m256i h = y_load(c + 256), bit = _mm256_set1_epi8(16);
        a = y_or_masked(a, y_move_bit(h, j, 4), bit);
        b = y_or_masked(b, y_move_bit(h, 4 + j, 4), bit);
    }
    if (code == LIN_CODE_6) {
        const __m256i bits = _mm256_set1_epi8(48);
        a = y_or_masked(a, y_move_bit(y_load(c + 256), 2 * j, 4), bits);
        b = y_or_masked(b, y_move_bit(y_load(c + 320), 2 * j, 4), bits);
    }
    *lo = a;
    *hi = b;
}

Y_INLINE __m256 y_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)p));
}

Y_INLINE __m256 y_bf16(const uint8_t *p)
{
    __m256i v = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

Y_INLINE __m256i y_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

Y_INLINE __m256 y_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(y_bytes(p));
}

Y_INLINE __m256 y_s8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* Of a group, 8 rows: d, and what the kind has (cpu_int.h): m; the integers s, o of each half. */
struct yscales {
    __m256 d, m, s0, s1, o0, o1;
};

Y_INLINE void load_mlx(enum dtype type, const uint8_t *b, int half, struct yscales *s)
{
    if (type == DTYPE_BF16) {
        s->d = y_bf16(b + 16 * half);
        s->m = y_bf16(b + 32 + 16 * half);
    } else if (type == DTYPE_F16) {
        s->d = y_f16(b + 16 * half);
        s->m = y_f16(b + 32 + 16 * half);
    } else {
        s->d = _mm256_load_ps((const float *)(const void *)(b + 32 * half));
        s->m = _mm256_load_ps((const float *)(const void *)(b + 64 + 32 * half));
    }
}

/* Scales of group `sub` of the block at b, rows of one half. */
Y_INLINE struct yscales load_scales(const enum lin_kind kind, const struct weight *w,
                                    const uint8_t *b, int sub, int half)
{
    const enum lin_scales form = lin_scales(kind);
    const __m256 zero = _mm256_setzero_ps();
    struct yscales s = { zero, zero, zero, zero, zero, zero };
    if (form == LIN_SCALES_MLX) {
        load_mlx(w->scale_type, b, half, &s);
        return s;
    }
    const uint8_t *d = form == LIN_SCALES_D || form == LIN_SCALES_BF16 ? b + 32 * sub : b;
    const uint8_t *n = b + 32 * sub + 8 * half;
    s.d = form == LIN_SCALES_BF16 ? y_bf16(d + 16 * half) : y_f16(d + 16 * half);
    if (lin_is_affine(kind))
        s.m = y_f16(b + 32 + 16 * half);
    if (form == LIN_SCALES_K) {
        s.d = _mm256_mul_ps(s.d, y_u8(n + 64));
        s.m = _mm256_mul_ps(s.m, y_u8(n + 80));
    }
    if (form == LIN_SCALES_XS)
        s.d = _mm256_mul_ps(s.d, y_s8(b + 32 + 16 * sub + 8 * half));
    if (form == LIN_SCALES_HALVES) {
        s.s0 = y_s8(n + 32);
        s.s1 = y_s8(n + 48);
    }
    if (form == LIN_SCALES_MINS) {
        const __m256i u0 = y_bytes(n + 64), u1 = y_bytes(n + 80), low = _mm256_set1_epi32(15);
        s.s0 = _mm256_cvtepi32_ps(_mm256_and_si256(u0, low));
        s.s1 = _mm256_cvtepi32_ps(_mm256_and_si256(u1, low));
        s.o0 = _mm256_cvtepi32_ps(_mm256_srli_epi32(u0, 4));
        s.o1 = _mm256_cvtepi32_ps(_mm256_srli_epi32(u1, 4));
    }
    return s;
}

/* Dot products of a group for nt rows of x: the eight code vectors are given one by one, in any order, each k once. */
struct dots {
    __m256i wide[DIRECT_ROWS];   /* int32 */
    __m256i narrow[DIRECT_ROWS]; /* int16 pairs not yet widened */
    int n;                       /* products in narrow */
};

Y_INLINE void dots_flush(struct dots *a, const int nt)
{
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        a->wide[t] =
            _mm256_add_epi32(a->wide[t], _mm256_madd_epi16(a->narrow[t], _mm256_set1_epi16(1)));
    }
    a->n = 0;
}

/* q: the four elements of x for the first row; rows are GROUP bytes apart. */
Y_INLINE void dots_add(struct dots *a, const int bits, const int nt, __m256i w, const int8_t *q)
{
#if YMM_VNNI
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
        a->wide[t] = _mm256_dpbusd_avx_epi32(a->wide[t], w, y_bcast(q + t * GROUP));
#else
    if (bits == 8)
        w = _mm256_xor_si256(w, _mm256_set1_epi8(-128)); /* back to signed */
    __m256i mag = bits == 8 ? _mm256_abs_epi8(w) : w;
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        __m256i x = y_bcast(q + t * GROUP);
        __m256i p = _mm256_maddubs_epi16(mag, bits == 8 ? _mm256_sign_epi8(x, w) : x);
        a->narrow[t] = a->n ? _mm256_add_epi16(a->narrow[t], p) : p;
        __asm__(
            ""
            : "+x"(a->narrow[t])); /* else gcc makes a tree of the sums, and spills its leaves */
    }
    if (++a->n == narrow_max(bits))
        dots_flush(a, nt);
#endif
}

/* What the wide sums start from: `neg` (NULL: zero) times 2^-eighth; negated where codes are used as signed and the sum of x is to
 * be added. */
Y_INLINE void dots_start(struct dots *a, const int nt, const int32_t *neg, const int eighth,
                         const bool negated)
{
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
        int32_t v = neg ? neg[t] >> eighth : 0;
        a->wide[t] = _mm256_set1_epi32(negated ? -v : v);
        a->narrow[t] =
            _mm256_setzero_si256(); /* no code where n is known: the first product takes its place */
    }
    a->n = 0;
}

/* The array of struct act that undoes the kind's bias. Codes of 8 bits are used as signed without VNNI: then those that had a bias
 * need none, and those that had none need it. */
static inline const int32_t *neg_of(const enum lin_kind kind, const struct act *x)
{
    switch (lin_bias(kind)) {
    case 8:
        return x->neg8;
    case 16:
        return x->neg16;
    case 128:
        return YMM_VNNI ? x->neg128 : NULL;
    case 4:
    case 32:
        return x->neg32_0;
    default:
        return kind == LIN_KIND_MLX8 && !YMM_VNNI ? x->neg128 : NULL;
    }
}

/* am = fma(m, dx * (o0 sum0 + o1 sum1), am): the sums of x over each half, which act has times -32. Exact up to dx. */
Y_INLINE __m256 chain_mins(__m256 am, const struct yscales *s, const struct act *x, int64_t i)
{
    __m256 u = _mm256_mul_ps(s->o1, _mm256_set1_ps((float)x->neg32_1[i]));
    u = _mm256_fmadd_ps(s->o0, _mm256_set1_ps((float)x->neg32_0[i]), u);
    u = _mm256_mul_ps(u, _mm256_set1_ps(-0x1p-5f));
    return _mm256_fmadd_ps(s->m, _mm256_mul_ps(_mm256_set1_ps(x->d[i]), u), am);
}

Y_INLINE void chain(const enum lin_kind kind, __m256i dot, __m256i dot1, const struct yscales *s,
                    const struct act *x, int64_t i, __m256 *ad, __m256 *am)
{
    __m256 u = _mm256_cvtepi32_ps(dot);
    if (lin_has_halves(kind))
        u = _mm256_fmadd_ps(s->s0, u, _mm256_mul_ps(s->s1, _mm256_cvtepi32_ps(dot1)));
    *ad = _mm256_fmadd_ps(u, _mm256_mul_ps(s->d, _mm256_set1_ps(x->d[i])), *ad);
    if (lin_scales(kind) == LIN_SCALES_MINS)
        *am = chain_mins(*am, s, x, i);
    else if (lin_is_affine(kind))
        *am = _mm256_fmadd_ps(s->m, _mm256_set1_ps(x->s[i]), *am);
}

Y_INLINE void store_half(const struct lin_job *j, int64_t tile, int half, int64_t t, __m256 y)
{
    int64_t row = tile * TILE + 8 * half, left = j->w->shape.out - row;
    float *at = j->y + t * j->y_stride + row;
    if (left >= 8)
        _mm256_storeu_ps(at, y);
    else if (left > 0)
        nv_store_n(at, y, (int)left);
}

/* Straight from the packed block: rows [t0, t0 + nt) of x. kind and nt are constants at each call. */
Y_INLINE void direct(const enum lin_kind kind, const int nt, const struct lin_job *job, int t0,
                     int64_t tile, int half)
{
    const bool affine = lin_is_affine(kind), halves = lin_has_halves(kind);
    const bool negated = kind == LIN_KIND_MLX8 && !YMM_VNNI;
    const struct act *x = job->x;
    const struct lin_block at = lin_block(kind, job->w);
    const int bits = code_bits(kind), eighth = lin_bias(kind) == 4 ? 3 : 0;
    const uint8_t *base = job->w->data + (size_t)tile * job->w->tile_bytes;
    const int32_t *neg = neg_of(kind, x);
    int64_t i = act_index(x, t0, 0);
    __m256 ad[DIRECT_ROWS], am[DIRECT_ROWS];
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
        ad[t] = am[t] = _mm256_setzero_ps();
    for (int64_t g = 0; g < job->w->n_groups; g++, i += x->mb) {
        const int sub = (int)(g & ((1 << at.shift) - 1));
        const uint8_t *b = base + (g >> at.shift) * at.bytes;
        const uint8_t *c = b + at.codes + sub * lin_code_bytes(kind);
        const int8_t *q = x->q + i * GROUP;
        struct dots a, a1;
        if (half == 0) {
#pragma GCC unroll 8
            for (int l = 0; l < lin_code_bytes(kind); l += 64)
                _mm_prefetch((const char *)c + 4096 + l, _MM_HINT_T0);
        }
        dots_start(&a, nt, neg ? neg + i : NULL, eighth, negated);
        if (halves)
            dots_start(&a1, nt, neg ? x->neg32_1 + i : NULL, eighth, false);
        __m256i hi[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m256i lo;
            codes_pair(kind, c + 32 * half, j, &lo, &hi[j]);
            dots_add(&a, bits, nt, lo, q + 4 * j);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            dots_add(halves ? &a1 : &a, bits, nt, hi[j], q + 16 + 4 * j);
        const struct yscales s = load_scales(kind, job->w, b, sub, half);
#pragma GCC unroll 4
        for (int t = 0; t < nt; t++)
            chain(kind, a.wide[t], halves ? a1.wide[t] : a.wide[t], &s, x, i + t, &ad[t], &am[t]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
        store_half(job, tile, half, t0 + t, affine ? _mm256_add_ps(ad[t], am[t]) : ad[t]);
}

#define DIRECT(kind, nt)                                                              \
    static void direct_##kind##_##nt(const struct lin_job *job, int t0, int64_t tile) \
    {                                                                                 \
        for (int half = 0; half < 2; half++)                                          \
            direct(LIN_KIND_##kind, nt, job, t0, tile, half);                         \
    }

#include "kernels/cpu/linear_direct.h"

/* --- through scratch: more rows of x --- */

/* Rows of x up to which unpacking into registers, for each DIRECT_ROWS of them again, is not slower (12: by 4 % either way; 16: by 5
 * to 10 % slower; 512: Q4_K 121 ms against 76). */
#define YMM_DIRECT_MAX 12

/* Groups [g0, g0 + n) of a tile as unsigned bytes. kind is a constant at each call. */
Y_INLINE void unpack(const enum lin_kind kind, const struct weight *w, const uint8_t *base,
                     int64_t g0, int n, struct lin_scratch *s)
{
    const struct lin_block at = lin_block(kind, w);
    for (int k = 0; k < n; k++) {
        const int64_t g = g0 + k;
        const int sub = (int)(g & ((1 << at.shift) - 1));
        const uint8_t *b = base + (g >> at.shift) * at.bytes;
        const uint8_t *c = b + at.codes + sub * lin_code_bytes(kind);
        for (int half = 0; half < 2; half++) {
            uint8_t *to = s->codes[k] + 32 * half;
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                __m256i lo, hi;
                codes_pair(kind, c + 32 * half, j, &lo, &hi);
                _mm256_store_si256((__m256i *)(to + 64 * j), lo);
                _mm256_store_si256((__m256i *)(to + 256 + 64 * j), hi);
            }
            const struct yscales z = load_scales(kind, w, b, sub, half);
            _mm256_store_ps(s->scale[k][0] + 8 * half, z.d);
            _mm256_store_ps(s->scale[k][1] + 8 * half, lin_is_affine(kind) ? z.m : z.s0);
            _mm256_store_ps(s->scale[k][2] + 8 * half, z.s1);
            if (lin_scales(kind) == LIN_SCALES_MINS) {
                _mm256_store_ps(s->min[3 * k] + 8 * half, z.s0);
                _mm256_store_ps(s->min[3 * k + 1] + 8 * half, z.o0);
                _mm256_store_ps(s->min[3 * k + 2] + 8 * half, z.o1);
            }
        }
    }
}

/* What unpack put in scratch for group k. */
Y_INLINE struct yscales scratch_scales(const enum lin_kind kind, const struct lin_scratch *s, int k,
                                       int half)
{
    const __m256 x = _mm256_load_ps(s->scale[k][1] + 8 * half);
    struct yscales z = { .d = _mm256_load_ps(s->scale[k][0] + 8 * half),
                         .m = x,
                         .s0 = x,
                         .s1 = _mm256_load_ps(s->scale[k][2] + 8 * half),
                         .o0 = x,
                         .o1 = x };
    if (lin_scales(kind) == LIN_SCALES_MINS) {
        z.s0 = _mm256_load_ps(s->min[3 * k] + 8 * half);
        z.o0 = _mm256_load_ps(s->min[3 * k + 1] + 8 * half);
        z.o1 = _mm256_load_ps(s->min[3 * k + 2] + 8 * half);
    }
    return z;
}

/* The groups in scratch times rows [t0, t0 + DIRECT_ROWS) of x, half a tile. Rows that do not exist are computed, and not stored. */
Y_INLINE void block(const enum lin_kind kind, const struct lin_job *job, int64_t tile, int half,
                    int t0, struct lin_scratch *s, int u, const struct part *p)
{
    enum { NT = DIRECT_ROWS };
    const bool affine = lin_is_affine(kind), halves = lin_has_halves(kind);
    const bool negated = kind == LIN_KIND_MLX8 && !YMM_VNNI;
    const int bits = code_bits(kind), eighth = lin_bias(kind) == 4 ? 3 : 0;
    const struct act *x = job->x;
    const int32_t *neg = neg_of(kind, x);
    int64_t i = act_index(x, t0, p->g0);
    __m256 ad[NT], am[NT];
#pragma GCC unroll 4
    for (int t = 0; t < NT; t++) {
        ad[t] = am[t] = _mm256_setzero_ps();
        if (!p->is_first) {
            ad[t] = _mm256_load_ps(s->acc[u][0][t0 + t] + 8 * half);
            if (affine)
                am[t] = _mm256_load_ps(s->acc[u][1][t0 + t] + 8 * half);
        }
    }
    for (int k = 0; k < p->n; k++, i += TILE) {
        const int8_t *q = x->q + i * GROUP;
        const uint8_t *c = s->codes[k] + 32 * half;
        struct dots a, a1;
        dots_start(&a, NT, neg ? neg + i : NULL, eighth, negated);
        if (halves)
            dots_start(&a1, NT, neg ? x->neg32_1 + i : NULL, eighth, false);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            dots_add(halves && j >= 4 ? &a1 : &a, bits, NT, y_load(c + 64 * j), q + 4 * j);
        const struct yscales z = scratch_scales(kind, s, k, half);
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++)
            chain(kind, a.wide[t], halves ? a1.wide[t] : a.wide[t], &z, x, i + t, &ad[t], &am[t]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < NT; t++) {
        if (!p->is_last) {
            _mm256_store_ps(s->acc[u][0][t0 + t] + 8 * half, ad[t]);
            if (affine)
                _mm256_store_ps(s->acc[u][1][t0 + t] + 8 * half, am[t]);
        } else if (t0 + t < job->n_rows) {
            store_half(job, tile, half, t0 + t, affine ? _mm256_add_ps(ad[t], am[t]) : ad[t]);
        }
    }
}

#define CHUNK(kind)                                                                               \
    static void chunk_##kind(const struct lin_job *j, int64_t tile, struct lin_scratch *s, int u, \
                             const struct part *p)                                                \
    {                                                                                             \
        const uint8_t *base = j->w->data + (size_t)tile * j->w->tile_bytes;                       \
        unpack(LIN_KIND_##kind, j->w, base, p->g0, p->n, s);                                      \
        for (int t0 = 0; t0 < j->n_rows; t0 += DIRECT_ROWS)                                       \
            for (int half = 0; half < 2; half++)                                                  \
                block(LIN_KIND_##kind, j, tile, half, t0, s, u, p);                               \
    }
#define CHUNK_ROW(kind) [LIN_KIND_##kind] = chunk_##kind,

LIN_KINDS_GROUPED(CHUNK)

static chunk_fn *const chunk_of[LIN_KIND_GROUPED] = { LIN_KINDS_GROUPED(CHUNK_ROW) };

static void grouped(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    if (j->n_rows <= YMM_DIRECT_MAX)
        grouped_direct(j, tile0, tile1, s);
    else
        through_scratch(j, tile0, tile1, s, chunk_of[j->w->kind], LIN_CHUNK);
}

#endif

#endif
