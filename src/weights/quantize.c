/* quantize.c - plain types, the blocks of 32, and MLX's groups. */
#include "base/err.h"
#include "tensor/blocks.h"
#include "weights/quantize_int.h"

#include <math.h>

#define BLOCK 32

/* --- blocks of 32 --- */

static float quantize_inverse(float d)
{
    return d == 0 ? 0 : 1 / d;
}

/* The element of largest magnitude, the first of equals, with its sign. */
static float quantize_extreme(const float *x)
{
    float most = x[0];
    for (int i = 1; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    return most;
}

/* Codes of a scale that puts the extreme element on -half: trunc(x / d + half + 1/2). */
static uint16_t quantize_symmetric(const float *x, int half, uint8_t q[BLOCK])
{
    float d = quantize_extreme(x) / (float)-half, inverse = quantize_inverse(d);
    for (int i = 0; i < BLOCK; i++)
        q[i] = (uint8_t)quantize_clamp((int32_t)(x[i] * inverse + ((float)half + 0.5f)), 0,
                                       2 * half - 1);
    return f32_to_f16(d);
}

/* Codes 0..levels from the least element to the largest. */
static uint16_t quantize_range(const float *x, int levels, uint8_t q[BLOCK], uint16_t *min)
{
    float least = x[0], most = x[0];
    for (int i = 1; i < BLOCK; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    float d = (most - least) / (float)levels, inverse = quantize_inverse(d);
    for (int i = 0; i < BLOCK; i++)
        q[i] = (uint8_t)quantize_clamp((int32_t)((x[i] - least) * inverse + 0.5f), 0, levels);
    *min = f32_to_f16(least);
    return f32_to_f16(d);
}

static void quantize_nibbles(const uint8_t q[BLOCK], uint8_t qs[BLOCK / 2])
{
    for (int i = 0; i < BLOCK / 2; i++)
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + BLOCK / 2] & 15) << 4);
}

static void quantize_fifth_bits(const uint8_t q[BLOCK], uint8_t qh[4])
{
    uint32_t bits = 0;
    for (int i = 0; i < BLOCK; i++)
        bits |= (uint32_t)(q[i] >> 4 & 1) << i;
    memcpy(qh, &bits, 4);
}

static void quantize_q4_0(const float *x, uint8_t *out)
{
    uint8_t q[BLOCK];
    struct block_q4_0 b = { .d = quantize_symmetric(x, 8, q) };
    quantize_nibbles(q, b.qs);
    memcpy(out, &b, sizeof(b));
}

static void quantize_q4_1(const float *x, uint8_t *out)
{
    uint8_t q[BLOCK];
    struct block_q4_1 b;
    b.d = quantize_range(x, 15, q, &b.m);
    quantize_nibbles(q, b.qs);
    memcpy(out, &b, sizeof(b));
}

static void quantize_q5_0(const float *x, uint8_t *out)
{
    uint8_t q[BLOCK];
    struct block_q5_0 b = { .d = quantize_symmetric(x, 16, q) };
    quantize_nibbles(q, b.qs);
    quantize_fifth_bits(q, b.qh);
    memcpy(out, &b, sizeof(b));
}

static void quantize_q5_1(const float *x, uint8_t *out)
{
    uint8_t q[BLOCK];
    struct block_q5_1 b;
    b.d = quantize_range(x, 31, q, &b.m);
    quantize_nibbles(q, b.qs);
    quantize_fifth_bits(q, b.qh);
    memcpy(out, &b, sizeof(b));
}

/* Ties go away from zero here, as the reference says. */
static void quantize_q8_0(const float *x, uint8_t *out)
{
    float d = fabsf(quantize_extreme(x)) / 127, inverse = quantize_inverse(d);
    struct block_q8_0 b = { .d = f32_to_f16(d) };
    for (int i = 0; i < BLOCK; i++) {
        float v = x[i] * inverse, a = fabsf(v), whole = floorf(a);
        whole += floorf(2 * (a - whole));
        b.qs[i] = (int8_t)(v < 0 ? -whole : whole);
    }
    memcpy(out, &b, sizeof(b));
}

/* --- plain types --- */

static void quantize_plain(enum dtype type, const float *x, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = type == DTYPE_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
        memcpy(out + 2 * i, &h, 2);
    }
}

/* --- dispatch --- */

typedef void (*quantize_fn)(const float *x, uint8_t *out);

static const quantize_fn quantize_blocks[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = quantize_q4_0, [DTYPE_Q4_1] = quantize_q4_1, [DTYPE_Q5_0] = quantize_q5_0,
    [DTYPE_Q5_1] = quantize_q5_1, [DTYPE_Q8_0] = quantize_q8_0, [DTYPE_Q4_K] = quantize_q4_k,
    [DTYPE_Q5_K] = quantize_q5_k, [DTYPE_Q6_K] = quantize_q6_k,
};

bool quantize_can(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16 || quantize_blocks[type];
}

void quantize_row(enum dtype type, const float *x, int64_t n, uint8_t *out)
{
    const struct dtype_info *info = dtype_info(type);
    BUG_ON(!quantize_can(type) || n % info->block_elems != 0);
    if (type == DTYPE_F32)
        memcpy(out, x, (size_t)n * sizeof(*x));
    else if (type == DTYPE_F16 || type == DTYPE_BF16)
        quantize_plain(type, x, n, out);
    else
        for (int64_t i = 0; i < n / info->block_elems; i++)
            quantize_blocks[type](x + i * info->block_elems, out + i * info->block_bytes);
}

/* --- MLX --- */

/* Append codes to a stream of bits, the lowest of each byte first. */
struct quantize_stream {
    uint8_t *out;
    uint64_t held;
    int n_held;
};

static void quantize_push(struct quantize_stream *s, uint32_t code, int bits)
{
    s->held |= (uint64_t)code << s->n_held;
    for (s->n_held += bits; s->n_held >= 8; s->n_held -= 8) {
        *s->out++ = (uint8_t)s->held;
        s->held >>= 8;
    }
}

/* MLX's rule: the end of the range that lies further from 0 is met exactly, and 0 is a code if it can be. */
static void quantize_mlx_scale(const float *x, int group, float levels, float *scale, float *bias)
{
    float least = x[0], most = x[0];
    for (int i = 1; i < group; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    bool is_low = fabsf(least) > fabsf(most);
    float s = (most - least) / levels, edge = is_low ? least : most;
    s = s > 1e-7f ? s : 1e-7f;
    s = is_low ? s : -s;
    float steps = rintf(edge / s);
    *scale = steps != 0 ? edge / steps : s;
    *bias = steps != 0 ? edge : 0;
}

void quantize_mlx_row(const struct quantize_mlx *q, const float *x, int64_t n, uint8_t *codes,
                      uint8_t *scales, uint8_t *biases)
{
    struct quantize_stream stream = { .out = codes };
    float levels = (float)((1 << q->bits) - 1), scale, bias;
    int bytes = dtype_info(q->type)->block_bytes;
    BUG_ON(n % q->group != 0 || dtype_mlx(q->bits) == DTYPE_COUNT);
    for (int64_t g = 0; g < n / q->group; g++) {
        const float *group = x + g * q->group;
        quantize_mlx_scale(group, q->group, levels, &scale, &bias);
        for (int i = 0; i < q->group; i++) {
            float v = rintf((group[i] - bias) / scale);
            v = v > 0 ? v : 0;
            quantize_push(&stream, (uint32_t)(v < levels ? v : levels), q->bits);
        }
        quantize_row(q->type, &scale, 1, scales + g * bytes);
        quantize_row(q->type, &bias, 1, biases + g * bytes);
    }
}
