/* dequant.c - blocks to f32, one function a type, as blocks.h describes them. Plain and complete: the oracle for packing.
 * The order of the roundings is the format's own: first scale times sub-scale, then times q, then the minimum off. */
#include "tensor/blocks.h"
#include "tensor/group.h"
#include "tensor/source.h"
#include "weights/weights.h"

#include <string.h>

/* Blocks are copied out first: a tensor's data may stand at any byte. */
#define DEQUANT_LOAD(TYPE) \
    struct TYPE b;         \
    memcpy(&b, p, sizeof(b))

/* --- plain types: one element --- */

static void dequant_f32(const uint8_t *p, float *y)
{
    memcpy(y, p, 4);
}

static void dequant_f16(const uint8_t *p, float *y)
{
    uint16_t h;
    memcpy(&h, p, 2);
    *y = f16_to_f32(h);
}

static void dequant_bf16(const uint8_t *p, float *y)
{
    uint16_t h;
    memcpy(&h, p, 2);
    *y = bf16_to_f32(h);
}

static void dequant_i8(const uint8_t *p, float *y)
{
    *y = (float)(int8_t)*p;
}

static void dequant_i16(const uint8_t *p, float *y)
{
    int16_t v;
    memcpy(&v, p, 2);
    *y = (float)v;
}

static void dequant_i32(const uint8_t *p, float *y)
{
    int32_t v;
    memcpy(&v, p, 4);
    *y = (float)v;
}

static void dequant_i64(const uint8_t *p, float *y)
{
    int64_t v;
    memcpy(&v, p, 8);
    *y = (float)v;
}

static void dequant_f64(const uint8_t *p, float *y)
{
    double v;
    memcpy(&v, p, 8);
    *y = (float)v;
}

/* --- blocks of 32 --- */

static int dequant_nibble(const uint8_t *qs, int i)
{
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static int dequant_bit5(const uint8_t qh[4], int i)
{
    return (qh[i / 8] >> i % 8 & 1) << 4;
}

static void dequant_q4_0(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q4_0);
    float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(dequant_nibble(b.qs, i) - 8);
}

static void dequant_q4_1(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q4_1);
    float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)dequant_nibble(b.qs, i) + m;
}

static void dequant_q5_0(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q5_0);
    float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)((dequant_nibble(b.qs, i) | dequant_bit5(b.qh, i)) - 16);
}

static void dequant_q5_1(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q5_1);
    float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(dequant_nibble(b.qs, i) | dequant_bit5(b.qh, i)) + m;
}

static void dequant_q8_0(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q8_0);
    float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)b.qs[i];
}

static void dequant_iq4_nl(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_iq4_nl);
    float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)iq4_values[dequant_nibble(b.qs, i)];
}

static void dequant_mxfp4(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_mxfp4);
    float d = e8m0_half_to_f32(b.e);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)mxfp4_values[dequant_nibble(b.qs, i)];
}

/* --- blocks of 256 --- */

/* The two bits that Q2_K and Q3_K keep of element i. */
static int dequant_two_bits(const uint8_t qs[64], int i)
{
    return qs[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
}

static void dequant_q2_k(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q2_k);
    float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int i = 0; i < 256; i++) {
        float ds = d * (float)(b.scales[i / 16] & 15), m = dmin * (float)(b.scales[i / 16] >> 4);
        y[i] = ds * (float)dequant_two_bits(b.qs, i) - m;
    }
}

static void dequant_q3_k(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q3_k);
    float d = f16_to_f32(b.d);
    for (int i = 0; i < 256; i++) {
        float ds = d * (float)block_q3_k_scale(b.scales, i / 16);
        int high = (b.hmask[i % 32] >> i / 32 & 1) << 2;
        y[i] = ds * (float)((dequant_two_bits(b.qs, i) | high) - 4);
    }
}

/* Nibble of element i in Q4_K's and Q5_K's order. */
static int dequant_k_nibble(const uint8_t qs[128], int i)
{
    return qs[32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15;
}

static void dequant_q4_k(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q4_k);
    float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int i = 0; i < 256; i++) {
        int s, m;
        block_k_scales(b.scales, i / 32, &s, &m);
        y[i] = d * (float)s * (float)dequant_k_nibble(b.qs, i) - dmin * (float)m;
    }
}

static void dequant_q5_k(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q5_k);
    float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int i = 0; i < 256; i++) {
        int s, m;
        block_k_scales(b.scales, i / 32, &s, &m);
        int q = dequant_k_nibble(b.qs, i) | (b.qh[i % 32] >> i / 32 & 1) << 4;
        y[i] = d * (float)s * (float)q - dmin * (float)m;
    }
}

static void dequant_q6_k(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_q6_k);
    float d = f16_to_f32(b.d);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, r = i % 128;
        int low = b.ql[64 * h + r % 64] >> 4 * (r / 64) & 15;
        int high = b.qh[32 * h + r % 32] >> 2 * (r / 32) & 3;
        y[i] = d * (float)b.scales[i / 16] * (float)((low | high << 4) - 32);
    }
}

static void dequant_iq4_xs(const uint8_t *p, float *y)
{
    DEQUANT_LOAD(block_iq4_xs);
    float d = f16_to_f32(b.d);
    for (int i = 0; i < 256; i++) {
        float ds = d * (float)block_iq4_xs_scale(&b, i / 32);
        y[i] = ds * (float)iq4_values[dequant_nibble(b.qs + 16 * (i / 32), i % 32)];
    }
}

/* y = one block at p; y has the type's block_elems elements */
typedef void dequant_fn(const uint8_t *p, float *y);

static dequant_fn *const dequant_table[DTYPE_COUNT] = {
    [DTYPE_F32] = dequant_f32,     [DTYPE_F16] = dequant_f16,       [DTYPE_BF16] = dequant_bf16,
    [DTYPE_Q4_0] = dequant_q4_0,   [DTYPE_Q4_1] = dequant_q4_1,     [DTYPE_Q5_0] = dequant_q5_0,
    [DTYPE_Q5_1] = dequant_q5_1,   [DTYPE_Q8_0] = dequant_q8_0,     [DTYPE_Q2_K] = dequant_q2_k,
    [DTYPE_Q3_K] = dequant_q3_k,   [DTYPE_Q4_K] = dequant_q4_k,     [DTYPE_Q5_K] = dequant_q5_k,
    [DTYPE_Q6_K] = dequant_q6_k,   [DTYPE_IQ4_NL] = dequant_iq4_nl, [DTYPE_IQ4_XS] = dequant_iq4_xs,
    [DTYPE_MXFP4] = dequant_mxfp4, [DTYPE_I8] = dequant_i8,         [DTYPE_I16] = dequant_i16,
    [DTYPE_I32] = dequant_i32,     [DTYPE_I64] = dequant_i64,       [DTYPE_F64] = dequant_f64,
};

enum err_code weights_dequantize(enum dtype type, const uint8_t *data, int64_t n, float *out,
                                 struct err *err)
{
    const struct dtype_info *info = dtype_info(type);
    BUG_ON(n < 0 || n % info->block_elems != 0);
    dequant_fn *fn = dequant_table[type];
    if (!fn)
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor type %s cannot be decoded; convert the model to Q8_0 or Q4_K",
                       info->name);
    for (int64_t i = 0; i < n; i += info->block_elems) {
        fn(data, out + i);
        data += info->block_bytes;
    }
    return ERR_OK;
}

static void decode_mlx_row(const struct weights_tensor *t, int64_t row, const uint8_t *data,
                           float *out)
{
    const int bits = dtype_mlx_bits(t->type);
    const struct scales s = scales_from_row(&t->scales, row, t->shape[0]);
    for (int64_t i = 0; i < t->shape[0]; i += 8) {
        uint64_t codes = group_mlx_codes(data + i / 8 * bits, bits);
        float d = source_float(s.scales, s.type, i / s.cols);
        float m = source_float(s.biases, s.type, i / s.cols);
        for (int k = 0; k < 8; k++)
            out[i + k] = d * (float)(codes >> 8 * k & 255) + m;
    }
}

static void decode_f8_row(const struct weights_tensor *t, int64_t row, const uint8_t *data,
                          float *out)
{
    for (int64_t i = 0; i < t->shape[0]; i++) {
        float f = t->type == DTYPE_F8_E4M3 ? f8_e4m3_to_f32(data[i]) : f8_e5m2_to_f32(data[i]);
        int64_t part = t->scales.scales ? i / t->scales.cols : 0;
        out[i] = f * source_f8_scale(&t->scales, t->shape[0], row, part);
    }
}

enum err_code weights_decode_rows(const struct weights_tensor *t, int64_t row0, int64_t n,
                                  float *out, struct err *err)
{
    BUG_ON(t->layout);
    const int64_t in = t->shape[0];
    const size_t row_bytes = dtype_row_bytes(t->type, in);
    const uint8_t *data = t->data + (size_t)row0 * row_bytes;
    if (!dtype_info(t->type)->has_scales)
        return weights_dequantize(t->type, data, n * in, out, err);
    for (int64_t r = 0; r < n; r++, data += row_bytes, out += in) {
        if (source_is_f8(t->type))
            decode_f8_row(t, row0 + r, data, out);
        else
            decode_mlx_row(t, row0 + r, data, out);
    }
    return ERR_OK;
}
