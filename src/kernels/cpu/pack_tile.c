/* Repacking a tile: 16 rows of a file's blocks to one block after the other of the packed layout (cpu_int.h).
 *
 * Four rows make a vector step: four bytes of each are a word of a code vector, so what turns rows into tiles are 4x4 transposes of
 * words. Blocks go in the outer loop and rows inside: a packed block is written whole while it is in the first-level cache, which its
 * 16 source streams do not crowd out. The vectors are the compiler's (128 bits, every machine has them). One core, source in the
 * caches: see `check --bench pack`. */
#include "kernels/cpu/cpu_int.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

#include <string.h>

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

#define PACK_INLINE static inline __attribute__((always_inline))

PACK_INLINE u32x4 load128(const void *p)
{
    u32x4 v;
    memcpy(&v, p, 16);
    return v;
}

PACK_INLINE void store128(void *p, u32x4 v)
{
    memcpy(p, &v, 16);
}

PACK_INLINE uint32_t load32(const void *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}

#if defined(__clang__)
#define SHUFFLE4(a, b, ...)  __builtin_shufflevector(a, b, __VA_ARGS__)
#define SHUFFLE8(a, b, ...)  __builtin_shufflevector(a, b, __VA_ARGS__)
#define SHUFFLE16(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE4(a, b, ...)  __builtin_shuffle(a, b, (u32x4){ __VA_ARGS__ })
#define SHUFFLE8(a, b, ...)  __builtin_shuffle(a, b, (u16x8){ __VA_ARGS__ })
#define SHUFFLE16(a, b, ...) __builtin_shuffle(a, b, (u8x16){ __VA_ARGS__ })
#endif

/* v[row][word] to v[word][row] */
PACK_INLINE void transpose32(u32x4 v[4])
{
    u32x4 a = SHUFFLE4(v[0], v[1], 0, 4, 1, 5), b = SHUFFLE4(v[0], v[1], 2, 6, 3, 7);
    u32x4 c = SHUFFLE4(v[2], v[3], 0, 4, 1, 5), d = SHUFFLE4(v[2], v[3], 2, 6, 3, 7);
    v[0] = SHUFFLE4(a, c, 0, 1, 4, 5);
    v[1] = SHUFFLE4(a, c, 2, 3, 6, 7);
    v[2] = SHUFFLE4(b, d, 0, 1, 4, 5);
    v[3] = SHUFFLE4(b, d, 2, 3, 6, 7);
}

/* v[row][byte] of 4 rows to words: out[i / 4][i % 4] has byte i of the rows. */
PACK_INLINE void transpose8(const u32x4 v[4], u32x4 out[4])
{
    u8x16 r0 = (u8x16)v[0], r1 = (u8x16)v[1], r2 = (u8x16)v[2], r3 = (u8x16)v[3];
#define LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
    u16x8 a = (u16x8)SHUFFLE16(r0, r1, LOW), b = (u16x8)SHUFFLE16(r0, r1, HIGH);
    u16x8 c = (u16x8)SHUFFLE16(r2, r3, LOW), d = (u16x8)SHUFFLE16(r2, r3, HIGH);
#undef LOW
#undef HIGH
    out[0] = (u32x4)SHUFFLE8(a, c, 0, 8, 1, 9, 2, 10, 3, 11);
    out[1] = (u32x4)SHUFFLE8(a, c, 4, 12, 5, 13, 6, 14, 7, 15);
    out[2] = (u32x4)SHUFFLE8(b, d, 0, 8, 1, 9, 2, 10, 3, 11);
    out[3] = (u32x4)SHUFFLE8(b, d, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* --- pieces of a packed block: rows [4q, 4q + 4), r[k] the source block of row 4q + k --- */

struct quad {
    const uint8_t *r[4];
    int q;
};

/* 4 * n words of each row, v[row][n], to code vectors from j on. */
PACK_INLINE void put_codes(uint8_t *codes, int j, int q, u32x4 v[4])
{
    transpose32(v);
    for (int i = 0; i < 4; i++)
        store128(codes + 64 * (j + i) + 16 * q, v[i]);
}

/* A 16-bit field at offset `from` of each row's block to f16[16] at `at`. */
PACK_INLINE void put_half(uint8_t *at, const struct quad *s, size_t from, uint16_t flip)
{
    for (int k = 0; k < 4; k++) {
        uint16_t h;
        memcpy(&h, s->r[k] + from, 2);
        h ^= flip;
        memcpy(at + 2 * (4 * s->q + k), &h, 2);
    }
}

/* 16 bytes of each row: byte i of all rows to at + (i % 8) * step + (i / 8) * half. */
PACK_INLINE void put_bytes(uint8_t *at, int q, const u32x4 v[4], int step, int half)
{
    u32x4 w[4];
    transpose8(v, w);
    for (int i = 0; i < 16; i++) {
        uint32_t u = w[i / 4][i % 4];
        memcpy(at + i % 8 * step + i / 8 * half + 4 * q, &u, 4);
    }
}

/* 16 bytes of nibbles in the file's order, which is the tile's. */
PACK_INLINE void put_nibbles(uint8_t *codes, const struct quad *s, size_t from)
{
    u32x4 v[4];
    for (int k = 0; k < 4; k++)
        v[k] = load128(s->r[k] + from);
    put_codes(codes, 0, s->q, v);
}

/* 32 bytes whose low nibbles are one group and whose high ones another. */
PACK_INLINE void put_nibbles_k(uint8_t *low, uint8_t *high, const struct quad *s, size_t from)
{
    u32x4 l[4], h[4];
    for (int k = 0; k < 4; k++) {
        u32x4 a = load128(s->r[k] + from), b = load128(s->r[k] + from + 16);
        l[k] = (a & 0x0F0F0F0Fu) | (b & 0x0F0F0F0Fu) << 4;
        h[k] = (a >> 4 & 0x0F0F0F0Fu) | (b & 0xF0F0F0F0u);
    }
    put_codes(low, 0, s->q, l);
    put_codes(high, 0, s->q, h);
}

/* Exchange the bits of x whose index has bit a (of the index) set and bit b not with those that have b and not a. mask: the former;
 * shift: 2^b - 2^a. */
PACK_INLINE u32x4 swap_bits(u32x4 x, int shift, uint32_t mask)
{
    u32x4 t = (x >> shift ^ x) & mask;
    return x ^ t ^ t << shift;
}

/* Fifth bits: bit 4j + b of a row's word to bit j of byte b, a rotation of the five bits of the index by two. */
PACK_INLINE void put_fifth(uint8_t *codes, const struct quad *s, size_t from)
{
    u32x4 x = { load32(s->r[0] + from), load32(s->r[1] + from), load32(s->r[2] + from),
                load32(s->r[3] + from) };
    x = swap_bits(x, 14, 0x0000CCCCu);
    x = swap_bits(x, 7, 0x00AA00AAu);
    x = swap_bits(x, 2, 0x0C0C0C0Cu);
    x = swap_bits(x, 1, 0x22222222u);
    store128(codes + 256 + 16 * s->q, x);
}

/* --- formats of 32: `sub` is the group in the packed block --- */

PACK_INLINE void pack_q4_0(uint8_t *b, const struct quad *s, int sub)
{
    put_half(b + 32 * sub, s, offsetof(struct block_q4_0, d), 0);
    put_nibbles(b + 64 + 256 * sub, s, offsetof(struct block_q4_0, qs));
}

PACK_INLINE void pack_q4_1(uint8_t *b, const struct quad *s, int sub)
{
    put_half(b, s, offsetof(struct block_q4_1, d), 0);
    put_half(b + 32, s, offsetof(struct block_q4_1, m), 0);
    put_nibbles(b + 64, s, offsetof(struct block_q4_1, qs));
}

PACK_INLINE void pack_q5_0(uint8_t *b, const struct quad *s, int sub)
{
    put_half(b + 32 * sub, s, offsetof(struct block_q5_0, d), 0);
    put_nibbles(b + 64 + 320 * sub, s, offsetof(struct block_q5_0, qs));
    put_fifth(b + 64 + 320 * sub, s, offsetof(struct block_q5_0, qh));
}

PACK_INLINE void pack_q5_1(uint8_t *b, const struct quad *s, int sub)
{
    put_half(b, s, offsetof(struct block_q5_1, d), 0);
    put_half(b + 32, s, offsetof(struct block_q5_1, m), 0);
    put_nibbles(b + 64, s, offsetof(struct block_q5_1, qs));
    put_fifth(b + 64, s, offsetof(struct block_q5_1, qh));
}

PACK_INLINE void pack_q8_0(uint8_t *b, const struct quad *s, int sub)
{
    put_half(b + 32 * sub, s, offsetof(struct block_q8_0, d), 0);
    for (int half = 0; half < 2; half++) {
        u32x4 v[4];
        for (int k = 0; k < 4; k++) /* plus 128 is a flip of the top bit */
            v[k] = load128(s->r[k] + offsetof(struct block_q8_0, qs) + 16 * half) ^ 0x80808080u;
        put_codes(b + 64 + 512 * sub, 4 * half, s->q, v);
    }
}

/* --- formats of 256 --- */

/* d, -dmin, and for each group a scale and a minimum (block_k_scales, four at a time). */
PACK_INLINE void put_k_head(uint8_t *b, const struct quad *s, size_t d, size_t dmin, size_t scales)
{
    u32x4 v[4];
    put_half(b, s, d, 0);
    put_half(b + 32, s, dmin, 0x8000u);
    for (int k = 0; k < 4; k++) {
        const uint8_t *p = s->r[k] + scales;
        uint32_t x = load32(p), y = load32(p + 4), z = load32(p + 8);
        v[k] = (u32x4){ x & 0x3F3F3F3Fu, (z & 0x0F0F0F0Fu) | (x >> 2 & 0x30303030u),
                        y & 0x3F3F3F3Fu, (z >> 4 & 0x0F0F0F0Fu) | (y >> 2 & 0x30303030u) };
    }
    put_bytes(b + 64, s->q, v, 32, 16);
}

PACK_INLINE void pack_q4_k(uint8_t *b, const struct quad *s, int sub)
{
    put_k_head(b, s, offsetof(struct block_q4_k, d), offsetof(struct block_q4_k, dmin),
               offsetof(struct block_q4_k, scales));
    for (int j = 0; j < 8; j += 2)
        put_nibbles_k(b + 320 + 256 * j, b + 320 + 256 * (j + 1), s,
                      offsetof(struct block_q4_k, qs) + 16 * (size_t)j);
}

/* n bits (1, 2) of each byte, from bit `at` on, of `words` code words side by side to one word. */
PACK_INLINE u32x4 gather_bits(const u32x4 *w, int words, int at, int n)
{
    uint32_t mask = n == 1 ? 0x01010101u : 0x03030303u;
    u32x4 u = w[0] >> at & mask;
    for (int k = 1; k < words; k++)
        u |= (w[k] >> at & mask) << n * k;
    return u;
}

PACK_INLINE void pack_q5_k(uint8_t *b, const struct quad *s, int sub)
{
    u32x4 w[8];
    put_k_head(b, s, offsetof(struct block_q5_k, d), offsetof(struct block_q5_k, dmin),
               offsetof(struct block_q5_k, scales));
    for (int j = 0; j < 8; j += 2)
        put_nibbles_k(b + 320 + 320 * j, b + 320 + 320 * (j + 1), s,
                      offsetof(struct block_q5_k, qs) + 16 * (size_t)j);
    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 4; k++)
            w[4 * half + k] =
                load128(s->r[k] + offsetof(struct block_q5_k, qh) + 16 * (size_t)half);
        transpose32(w + 4 * half);
    }
    for (int j = 0; j < 8; j++)
        store128(b + 320 + 320 * j + 256 + 16 * s->q, gather_bits(w, 8, j, 1));
}

PACK_INLINE void pack_q6_k(uint8_t *b, const struct quad *s, int sub)
{
    u32x4 v[4];
    put_half(b, s, offsetof(struct block_q6_k, d), 0);
    for (int k = 0; k < 4; k++)
        v[k] = load128(s->r[k] + offsetof(struct block_q6_k, scales));
    put_bytes(b + 32, s->q, v, 16, 128);
    for (int half = 0; half < 2; half++) { /* groups 4 half .. 4 half + 3 */
        uint8_t *codes = b + 320 + 384 * 4 * half;
        for (int j = 0; j < 2; j++)
            put_nibbles_k(codes + 384 * j, codes + 384 * (j + 2), s,
                          offsetof(struct block_q6_k, ql) + 64 * (size_t)half + 32 * (size_t)j);
        for (int h = 0; h < 2; h++) {
            for (int k = 0; k < 4; k++)
                v[k] = load128(s->r[k] + offsetof(struct block_q6_k, qh) + 32 * (size_t)half +
                               16 * (size_t)h);
            transpose32(v);
            for (int j = 0; j < 4; j++)
                store128(codes + 384 * j + 256 + 64 * h + 16 * s->q, gather_bits(v, 4, 2 * j, 2));
        }
    }
}

/* 16 bytes of each row to b + 16 * i + 4q; `v` as stored. */
PACK_INLINE void put_rows16(uint8_t *at, int q, const u32x4 v[4], int step)
{
    u32x4 w[4];
    transpose8(v, w);
    for (int i = 0; i < 16; i++) {
        uint32_t u = w[i / 4][i % 4];
        memcpy(at + i * step + 4 * q, &u, 4);
    }
}

/* The two low bits of every code: Q2_K's and Q3_K's arrangement, which is that of Q6_K's upper bits. */
PACK_INLINE void put_pairs(uint8_t *codes, int step, const struct quad *s, size_t from)
{
    for (int i = 0; i < 4; i++) { /* groups 4 (i / 2) .. 4 (i / 2) + 3, their half i % 2 */
        u32x4 v[4];
        for (int k = 0; k < 4; k++)
            v[k] = load128(s->r[k] + from + 16 * (size_t)i);
        transpose32(v);
        for (int j = 0; j < 4; j++)
            store128(codes + (4 * (i / 2) + j) * step + 64 * (i % 2) + 16 * s->q,
                     gather_bits(v, 4, 2 * j, 2));
    }
}

PACK_INLINE void pack_q2_k(uint8_t *b, const struct quad *s, int sub)
{
    u32x4 v[4];
    put_half(b, s, offsetof(struct block_q2_k, d), 0);
    put_half(b + 32, s, offsetof(struct block_q2_k, dmin), 0x8000u);
    for (int k = 0; k < 4; k++)
        v[k] = load128(s->r[k] + offsetof(struct block_q2_k, scales));
    put_rows16(b + 64, s->q, v, 16);
    put_pairs(b + 320, 128, s, offsetof(struct block_q2_k, qs));
}

PACK_INLINE void pack_q3_k(uint8_t *b, const struct quad *s, int sub)
{
    u32x4 w[8], v[4];
    put_half(b, s, offsetof(struct block_q3_k, d), 0);
    for (int k = 0; k < 4; k++) {
        uint8_t scales[16];
        for (int j = 0; j < 16; j++)
            scales[j] = (uint8_t)block_q3_k_scale(s->r[k] + offsetof(struct block_q3_k, scales), j);
        v[k] = load128(scales);
    }
    put_rows16(b + 32, s->q, v, 16);
    put_pairs(b + 320, 192, s, offsetof(struct block_q3_k, qs));
    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 4; k++)
            w[4 * half + k] =
                load128(s->r[k] + offsetof(struct block_q3_k, hmask) + 16 * (size_t)half);
        transpose32(w + 4 * half);
    }
    for (int j = 0; j < 8; j++)
        store128(b + 320 + 192 * j + 128 + 16 * s->q, gather_bits(w, 8, j, 1));
}

PACK_INLINE void pack_iq4_nl(uint8_t *b, const struct quad *s, int sub)
{
    put_half(b + 32 * sub, s, offsetof(struct block_iq4_nl, d), 0);
    put_nibbles(b + 64 + 256 * sub, s, offsetof(struct block_iq4_nl, qs));
}

PACK_INLINE void pack_iq4_xs(uint8_t *b, const struct quad *s, int sub)
{
    put_half(b, s, offsetof(struct block_iq4_xs, d), 0);
    for (int k = 0; k < 4; k++) {
        struct block_iq4_xs x;
        memcpy(&x, s->r[k], sizeof(x));
        for (int j = 0; j < 8; j++)
            b[32 + 16 * j + 4 * s->q + k] = (uint8_t)block_iq4_xs_scale(&x, j);
    }
    for (int j = 0; j < 8; j++)
        put_nibbles(b + 192 + 256 * j, s, offsetof(struct block_iq4_xs, qs) + 16 * (size_t)j);
}

PACK_INLINE void pack_mxfp4(uint8_t *b, const struct quad *s, int sub)
{
    for (int k = 0; k < 4; k++) { /* the scale as bf16, which has f32's exponents */
        uint16_t h = f32_to_bf16(e8m0_half_to_f32(*s->r[k]));
        memcpy(b + 32 * sub + 2 * (4 * s->q + k), &h, 2);
    }
    put_nibbles(b + 64 + 256 * sub, s, offsetof(struct block_mxfp4, qs));
}

/* --- MLX: streams of bits --- */

/* A group's codes of four rows, as bytes, to the arrangement of `code`. w[j]: elements 4j..4j+3. */
PACK_INLINE void put_bits(uint8_t *codes, const enum lin_code code, int q, const u32x4 w[8])
{
    uint8_t *at = codes + 16 * q;
    if (code == LIN_CODE_8) {
        for (int j = 0; j < 8; j++)
            store128(at + 64 * j, w[j]);
    } else if (code == LIN_CODE_2 || code == LIN_CODE_3) {
        for (int h = 0; h < 2; h++)
            store128(at + 64 * h, gather_bits(w + 4 * h, 4, 0, 2));
        if (code == LIN_CODE_3)
            store128(at + 128, gather_bits(w, 8, 2, 1));
    } else {
        for (int j = 0; j < 4; j++)
            store128(at + 64 * j, (w[j] & 0x0F0F0F0Fu) | (w[4 + j] & 0x0F0F0F0Fu) << 4);
        if (code == LIN_CODE_5)
            store128(at + 256, gather_bits(w, 8, 4, 1));
        for (int h = 0; h < 2 && code == LIN_CODE_6; h++)
            store128(at + 256 + 64 * h, gather_bits(w + 4 * h, 4, 4, 2));
    }
}

PACK_INLINE void pack_mlx(const struct weight *w, uint8_t *tile, const uint8_t *rows,
                          size_t row_bytes, const enum lin_kind kind, const int bits)
{
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int sub = (int)(g & ((1 << w->block.shift) - 1));
        uint8_t *codes = tile + (g >> w->block.shift) * w->block.bytes + w->block.codes +
                         sub * lin_code_bytes(kind);
        for (int q = 0; q < TILE / 4; q++) {
            u32x4 v[8];
            for (int k = 0; k < 4; k++) {
                const uint8_t *p = rows + (size_t)(4 * q + k) * row_bytes + 4 * bits * g;
                uint64_t x[4];
                for (int i = 0; i < 4; i++)
                    x[i] = group_mlx_codes(p + bits * i, bits);
                v[k] = load128(x);
                v[4 + k] = load128(x + 2);
            }
            transpose32(v);
            transpose32(v + 4);
            put_bits(codes, lin_code(kind), q, v);
        }
    }
}

/* --- tiles --- */

typedef void pack_quad_fn(uint8_t *block, const struct quad *s, int sub);

PACK_INLINE void pack_blocks(uint8_t *tile, const uint8_t *rows, size_t row_bytes, enum lin_kind k,
                             size_t block, pack_quad_fn *fn)
{
    const struct lin_block at = lin_block_of(k);
    size_t n = row_bytes / block, per = at.shift == 1 ? 2 : 1;
    for (size_t i = 0; i < n; i++) {
        for (int q = 0; q < TILE / 4; q++) {
            const uint8_t *r = rows + (size_t)(4 * q) * row_bytes + i * block;
            struct quad s = { { r, r + row_bytes, r + 2 * row_bytes, r + 3 * row_bytes }, q };
            fn(tile + i / per * (size_t)at.bytes, &s, (int)(i % per));
        }
    }
}

/* [16][in] bytes to [in][16] */
static void pack_bytes(uint8_t *tile, const uint8_t *rows, size_t in)
{
    size_t i = 0;
    for (; i + 16 <= in; i += 16) {
        for (int q = 0; q < TILE / 4; q++) {
            u32x4 v[4];
            for (size_t k = 0; k < 4; k++)
                v[k] = load128(rows + (4 * (size_t)q + k) * in + i);
            put_rows16(tile + i * TILE, q, v, TILE);
        }
    }
    for (; i < in; i++)
        for (size_t r = 0; r < TILE; r++)
            tile[i * TILE + r] = rows[r * in + i];
}

/* [16][in] of `size` bytes to [in][16] */
static void pack_plain(uint8_t *tile, const uint8_t *rows, size_t row_bytes, size_t size)
{
    size_t in = row_bytes / size, i = 0;
    for (; i + 16 / size <= in; i += 16 / size) {
        for (size_t q = 0; q < TILE / 4; q++) {
            u32x4 v[4];
            for (size_t k = 0; k < 4; k++)
                v[k] = load128(rows + (4 * q + k) * row_bytes + i * size);
            uint8_t *at = tile + (i * TILE + 4 * q) * size;
            if (size == 4) {
                transpose32(v);
                for (size_t k = 0; k < 4; k++)
                    store128(at + k * TILE * 4, v[k]);
                continue;
            }
            for (size_t k = 0; k < 8; k++) {
                uint16_t h[4];
                for (int r = 0; r < 4; r++)
                    h[r] = ((u16x8)v[r])[k];
                memcpy(at + k * TILE * 2, h, 8);
            }
        }
    }
    for (; i < in; i++)
        for (size_t r = 0; r < TILE; r++)
            memcpy(tile + (i * TILE + r) * size, rows + r * row_bytes + i * size, size);
}

void cpu_pack_tile(const struct weight *w, uint8_t *tile, const uint8_t *rows, size_t row_bytes)
{
#define BLOCKS(k, format)                                                               \
    case LIN_KIND_##k:                                                                  \
        pack_blocks(tile, rows, row_bytes, LIN_KIND_##k, sizeof(struct block_##format), \
                    pack_##format);                                                     \
        break
#define MLX(bits)                                                     \
    case LIN_KIND_MLX##bits:                                          \
        pack_mlx(w, tile, rows, row_bytes, LIN_KIND_MLX##bits, bits); \
        break
    switch (w->kind) {
        BLOCKS(Q4_0, q4_0);
        BLOCKS(Q4_1, q4_1);
        BLOCKS(Q5_0, q5_0);
        BLOCKS(Q5_1, q5_1);
        BLOCKS(Q8_0, q8_0);
        BLOCKS(Q2_K, q2_k);
        BLOCKS(Q3_K, q3_k);
        BLOCKS(Q4_K, q4_k);
        BLOCKS(Q5_K, q5_k);
        BLOCKS(Q6_K, q6_k);
        BLOCKS(IQ4_NL, iq4_nl);
        BLOCKS(IQ4_XS, iq4_xs);
        BLOCKS(MXFP4, mxfp4);
        MLX(2);
        MLX(3);
        MLX(4);
        MLX(5);
        MLX(6);
        MLX(8);
    case LIN_KIND_F32:
        pack_plain(tile, rows, row_bytes, 4);
        break;
    case LIN_KIND_F8_E4M3:
    case LIN_KIND_F8_E5M2:
        pack_bytes(tile + cpu_f8_scale_bytes(w), rows, row_bytes);
        break;
    default:
        pack_plain(tile, rows, row_bytes, 2);
        break;
    }
#undef BLOCKS
#undef MLX
}
