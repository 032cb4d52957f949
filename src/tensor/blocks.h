/* blocks.h - the bytes of quantised blocks as model files hold them (GGUF format document; little-endian).
 *
 * A block is a run of consecutive elements of one row. Field order is the file's, and no struct has padding. Scales are f16
 * bits (half.h). q is an element's stored number, i its index in the block; "sub-block j" is elements [32j, 32j+32) or, where
 * 16 is said, [16j, 16j+16). Nothing here needs more than 2-byte alignment. */
#ifndef PLUMB_TENSOR_BLOCKS_H
#define PLUMB_TENSOR_BLOCKS_H

#include <stdint.h>

/* x = d * (q - 8), q 4 bits: element i is the low nibble of qs[i] for i < 16, the high nibble of qs[i-16] above. */
struct block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
};

/* x = d * q + m; nibbles as Q4_0. */
struct block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
};

/* x = d * (q - 16), q 5 bits: nibbles as Q4_0, bit 4 is bit i of the little-endian u32 qh. */
struct block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
};

/* x = d * q + m; bits as Q5_0. */
struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
};

/* x = d * q */
struct block_q8_0 {
    uint16_t d;
    int8_t qs[32];
};

/* x = d * s * q - dmin * m, q 2 bits. Sub-blocks of 16: scales[j] = s (low nibble), m (high nibble).
 * Element i of half h = i / 128, with r = i % 128: bits 2*(r / 32) of qs[32h + r % 32]. */
struct block_q2_k {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, dmin;
};

/* x = d * (s - 32) * (q - 4), q 3 bits, s 6 bits. Low two bits of q as Q2_K; bit 2 is bit i / 32 of hmask[i % 32].
 * Sub-blocks of 16: the low four bits of s_j are nibble j / 8 of scales[j % 8]; the high two are bits 2*(j / 4) of
 * scales[8 + j % 4]. */
struct block_q3_k {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
};

/* x = d * s * q - dmin * m, q 4 bits, s and m 6 bits (block_k_scales). Sub-block j: low nibbles of qs[32 * (j / 2) ...] for
 * even j, high nibbles for odd j.
 * scales[12]: s_j = scales[j] & 63 and m_j = scales[j + 4] & 63 for j < 4; for j >= 4 the low four bits of s_j and m_j are the
 * low and high nibble of scales[j + 4], and the high two are the top bits of scales[j - 4] and scales[j]. */
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
};

/* As Q4_K with q of 5 bits: bit 4 of sub-block j's element i is bit j of qh[i]. */
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};

/* x = d * s * (q - 32), q 6 bits, s int8 per sub-block of 16. Element i of half h = i / 128, with r = i % 128: the low four
 * bits are nibble r / 64 of ql[64h + r % 64]; the high two are bits 2*(r / 32) of qh[32h + r % 32]. */
struct block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
};

/* x = d * iq4_values[q]; nibbles as Q4_0. */
struct block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
};

/* x = d * (s - 32) * iq4_values[q], s 6 bits. Sub-block j: nibbles of qs[16j ...] as Q4_0; the low four bits of s_j are nibble
 * j % 2 of scales_l[j / 2], the high two are bits 2j of scales_h. */
struct block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
};

/* x = 2^(e - 128) * mxfp4_values[q]; nibbles as Q4_0. (E2M1 numbers, doubled so that they are integers; OCP MX 1.0.) */
struct block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
};

_Static_assert(sizeof(struct block_q4_0) == 18, "Q4_0 is 18 bytes");
_Static_assert(sizeof(struct block_q4_1) == 20, "Q4_1 is 20 bytes");
_Static_assert(sizeof(struct block_q5_0) == 22, "Q5_0 is 22 bytes");
_Static_assert(sizeof(struct block_q5_1) == 24, "Q5_1 is 24 bytes");
_Static_assert(sizeof(struct block_q8_0) == 34, "Q8_0 is 34 bytes");
_Static_assert(sizeof(struct block_q2_k) == 84, "Q2_K is 84 bytes");
_Static_assert(sizeof(struct block_q3_k) == 110, "Q3_K is 110 bytes");
_Static_assert(sizeof(struct block_q4_k) == 144, "Q4_K is 144 bytes");
_Static_assert(sizeof(struct block_q5_k) == 176, "Q5_K is 176 bytes");
_Static_assert(sizeof(struct block_q6_k) == 210, "Q6_K is 210 bytes");
_Static_assert(sizeof(struct block_iq4_nl) == 18, "IQ4_NL is 18 bytes");
_Static_assert(sizeof(struct block_iq4_xs) == 136, "IQ4_XS is 136 bytes");
_Static_assert(sizeof(struct block_mxfp4) == 17, "MXFP4 is 17 bytes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "files are read in place: little-endian hosts only");

/* The non-uniform 4-bit grid of IQ4_NL and IQ4_XS. */
static const int8_t iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113 };

/* E2M1 doubled: 0 .5 1 1.5 2 3 4 6 and their negatives. */
static const int8_t mxfp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* s and m of sub-block j (0..7) of Q4_K and Q5_K. */
static inline void block_k_scales(const uint8_t scales[12], int j, int *s, int *m)
{
    if (j < 4) {
        *s = scales[j] & 63;
        *m = scales[j + 4] & 63;
    } else {
        *s = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        *m = (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
    }
}

/* s of sub-block j (0..15, of 16 elements) of Q3_K, 32 already taken off. */
static inline int block_q3_k_scale(const uint8_t scales[12], int j)
{
    int low = scales[j % 8] >> 4 * (j / 8) & 15;
    int high = scales[8 + j % 4] >> 2 * (j / 4) & 3;
    return (low | high << 4) - 32;
}

/* s of sub-block j (0..7) of IQ4_XS, 32 already taken off. */
static inline int block_iq4_xs_scale(const struct block_iq4_xs *b, int j)
{
    int low = b->scales_l[j / 2] >> 4 * (j % 2) & 15;
    int high = b->scales_h >> 2 * j & 3;
    return (low | high << 4) - 32;
}

#endif
