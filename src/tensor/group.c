#include "tensor/group.h"

#include "tensor/blocks.h"
#include "tensor/half.h"
#include "tensor/source.h"

typedef void decode_fn(const uint8_t *row, int64_t g, struct group *out);

/* Fields that most types share: one scale, no minimum. */
static void set_plain(struct group *out, float d, float m)
{
    out->d = d;
    out->m = m;
    out->s[0] = out->s[1] = 1;
    out->o[0] = out->o[1] = 1;
}

static void decode_nibbles(const uint8_t *qs, int bias, int16_t *c)
{
    for (int i = 0; i < 16; i++) {
        c[i] = (int16_t)((qs[i] & 15) - bias);
        c[16 + i] = (int16_t)((qs[i] >> 4) - bias);
    }
}

static void decode_5bit(const uint8_t *qs, const uint8_t *qh, int bias, int16_t *c)
{
    for (int i = 0; i < 16; i++) {
        c[i] = (int16_t)(((qs[i] & 15) | (qh[i / 8] >> i % 8 & 1) << 4) - bias);
        c[16 + i] = (int16_t)((qs[i] >> 4 | (qh[2 + i / 8] >> i % 8 & 1) << 4) - bias);
    }
}

static void decode_q4_0(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q4_0 *b = (const struct block_q4_0 *)row + g;
    set_plain(out, f16_to_f32(b->d), 0);
    decode_nibbles(b->qs, 8, out->c);
}

static void decode_q4_1(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q4_1 *b = (const struct block_q4_1 *)row + g;
    set_plain(out, f16_to_f32(b->d), f16_to_f32(b->m));
    decode_nibbles(b->qs, 0, out->c);
}

static void decode_q5_0(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q5_0 *b = (const struct block_q5_0 *)row + g;
    set_plain(out, f16_to_f32(b->d), 0);
    decode_5bit(b->qs, b->qh, 16, out->c);
}

static void decode_q5_1(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q5_1 *b = (const struct block_q5_1 *)row + g;
    set_plain(out, f16_to_f32(b->d), f16_to_f32(b->m));
    decode_5bit(b->qs, b->qh, 0, out->c);
}

static void decode_q8_0(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q8_0 *b = (const struct block_q8_0 *)row + g;
    set_plain(out, f16_to_f32(b->d), 0);
    for (int i = 0; i < GROUP; i++)
        out->c[i] = b->qs[i];
}

static void decode_q4_k(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q4_k *b = (const struct block_q4_k *)row + g / 8;
    int j = (int)(g % 8), s, m;
    block_k_scales(b->scales, j, &s, &m);
    set_plain(out, f16_to_f32(b->d) * (float)s, -f16_to_f32(b->dmin) * (float)m);
    for (int i = 0; i < GROUP; i++)
        out->c[i] = (int16_t)(b->qs[32 * (j / 2) + i] >> 4 * (j % 2) & 15);
}

static void decode_q5_k(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q5_k *b = (const struct block_q5_k *)row + g / 8;
    int j = (int)(g % 8), s, m;
    block_k_scales(b->scales, j, &s, &m);
    set_plain(out, f16_to_f32(b->d) * (float)s, -f16_to_f32(b->dmin) * (float)m);
    for (int i = 0; i < GROUP; i++)
        out->c[i] =
            (int16_t)((b->qs[32 * (j / 2) + i] >> 4 * (j % 2) & 15) | (b->qh[i] >> j & 1) << 4);
}

static void decode_q6_k(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q6_k *b = (const struct block_q6_k *)row + g / 8;
    int j = (int)(g % 8), h = j / 4, k = j % 4;
    set_plain(out, f16_to_f32(b->d), 0);
    out->s[0] = b->scales[2 * j];
    out->s[1] = b->scales[2 * j + 1];
    for (int i = 0; i < GROUP; i++) {
        int low = b->ql[64 * h + 32 * (k % 2) + i] >> 4 * (k / 2) & 15;
        int high = b->qh[32 * h + i] >> 2 * k & 3;
        out->c[i] = (int16_t)((low | high << 4) - 32);
    }
}

/* Two bits of element i of group j in Q2_K's and Q3_K's order. */
static int two_bits(const uint8_t *qs, int j, int i)
{
    return qs[32 * (j / 4) + i] >> 2 * (j % 4) & 3;
}

static void decode_q2_k(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q2_k *b = (const struct block_q2_k *)row + g / 8;
    int j = (int)(g % 8);
    out->d = f16_to_f32(b->d);
    out->m = -f16_to_f32(b->dmin);
    for (int h = 0; h < 2; h++) {
        out->s[h] = (int8_t)(b->scales[2 * j + h] & 15);
        out->o[h] = b->scales[2 * j + h] >> 4;
    }
    for (int i = 0; i < GROUP; i++)
        out->c[i] = (int16_t)two_bits(b->qs, j, i);
}

static void decode_q3_k(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_q3_k *b = (const struct block_q3_k *)row + g / 8;
    int j = (int)(g % 8);
    set_plain(out, f16_to_f32(b->d), 0);
    for (int h = 0; h < 2; h++)
        out->s[h] = (int8_t)block_q3_k_scale(b->scales, 2 * j + h);
    for (int i = 0; i < GROUP; i++)
        out->c[i] = (int16_t)((two_bits(b->qs, j, i) | (b->hmask[i] >> j & 1) << 2) - 4);
}

static void decode_table(const uint8_t *qs, const int8_t table[16], int16_t *c)
{
    for (int i = 0; i < 16; i++) {
        c[i] = table[qs[i] & 15];
        c[16 + i] = table[qs[i] >> 4];
    }
}

static void decode_iq4_nl(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_iq4_nl *b = (const struct block_iq4_nl *)row + g;
    set_plain(out, f16_to_f32(b->d), 0);
    decode_table(b->qs, iq4_values, out->c);
}

static void decode_iq4_xs(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_iq4_xs *b = (const struct block_iq4_xs *)row + g / 8;
    int j = (int)(g % 8);
    set_plain(out, f16_to_f32(b->d) * (float)block_iq4_xs_scale(b, j), 0);
    decode_table(b->qs + 16 * j, iq4_values, out->c);
}

static void decode_mxfp4(const uint8_t *row, int64_t g, struct group *out)
{
    const struct block_mxfp4 *b = (const struct block_mxfp4 *)row + g;
    set_plain(out, e8m0_half_to_f32(b->e), 0);
    decode_table(b->qs, mxfp4_values, out->c);
}

static void decode_mlx(int bits, const uint8_t *row, const struct scales *s, int64_t g,
                       struct group *out)
{
    const uint8_t *p = row + 4 * bits * g;
    int64_t i = g * GROUP / s->cols;
    set_plain(out, source_float(s->scales, s->type, i), source_float(s->biases, s->type, i));
    for (int k = 0; k < 4; k++) {
        uint64_t x = group_mlx_codes(p + bits * k, bits);
        for (int b = 0; b < 8; b++)
            out->c[8 * k + b] = (int16_t)(x >> 8 * b & 255);
    }
}

static const struct {
    decode_fn *decode;
    bool affine;
} types[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = { decode_q4_0, false },     [DTYPE_Q4_1] = { decode_q4_1, true },
    [DTYPE_Q5_0] = { decode_q5_0, false },     [DTYPE_Q5_1] = { decode_q5_1, true },
    [DTYPE_Q8_0] = { decode_q8_0, false },     [DTYPE_Q2_K] = { decode_q2_k, true },
    [DTYPE_Q3_K] = { decode_q3_k, false },     [DTYPE_Q4_K] = { decode_q4_k, true },
    [DTYPE_Q5_K] = { decode_q5_k, true },      [DTYPE_Q6_K] = { decode_q6_k, false },
    [DTYPE_IQ4_NL] = { decode_iq4_nl, false }, [DTYPE_IQ4_XS] = { decode_iq4_xs, false },
    [DTYPE_MXFP4] = { decode_mxfp4, false },
};

bool group_is_type(enum dtype type)
{
    return (unsigned)type < DTYPE_COUNT && (types[type].decode || dtype_mlx_bits(type));
}

bool group_is_affine(enum dtype type)
{
    return types[type].affine || dtype_mlx_bits(type);
}

void group_decode(enum dtype type, const uint8_t *row, const struct scales *scales, int64_t g0,
                  int64_t n, struct group *out)
{
    const int bits = dtype_mlx_bits(type);
    BUG_ON(!group_is_type(type));
    for (int64_t i = 0; i < n; i++) {
        if (bits)
            decode_mlx(bits, row, scales, g0 + i, &out[i]);
        else
            types[type].decode(row, g0 + i, &out[i]);
    }
}
