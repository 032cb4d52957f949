/* kvq.h - the 8-bit and 4-bit cache types: their arithmetic and their bytes.
 *
 * A head of one position is cut into groups of 64 elements (the last one may be shorter, 1..64). A group is a code per element,
 * 0..top (255 or 15), and an f16 scale s and bias b:
 *
 *     x' = fma(code, s, b)                                                   (f32, one rounding)
 *
 * Quantising a group; f32 operations in this order, min and max exact, rint to nearest even:
 *
 *     lo = min x, hi = max x         e = lo and d = hi - lo where |lo| > |hi|; else e = hi and d = lo - hi
 *     b = f16(e)                     a value that is not finite, or b infinite: the group fails
 *     b = 0: scale, bias and codes are 0 (both zeros of x give +0)
 *     r = e / (d / top)              not |r| < 2^20 (a constant group): s = 0
 *     z = rint(r)                    s = f16(b / z); |z| >= top / 2
 *     s = 0: codes are 0             else code = rint(min(max((x - b) * (1 / s), 0), top))
 *
 * This is the affine rule that MLX uses: the end of larger magnitude is a grid point (code 0), and so is zero, but for the
 * rounding of s. That matters where one channel of a group is far out (keys of the Qwen families): the others, around zero, stay
 * there. Codes are taken against the stored s and b, so the rounding of both costs nothing but at the other end of the grid.
 * An error is at most one step there, half a step elsewhere.
 *
 * f16 for s and b, not f32: 8.5 and 4.5 bits an element instead of 9 and 5. Root mean square error on normal data, in units of
 * the deviation: 0.00537 either way at 8 bits, 0.0910 at 4; the range is that of the f16 cache.
 *
 * A failed group is zero throughout, and the backend flags its row (backend.h, failed). */
#ifndef PLUMB_TENSOR_KVQ_H
#define PLUMB_TENSOR_KVQ_H

#include "tensor/backend.h"
#include "tensor/fmath.h"
#include "tensor/half.h"

#define KVQ_GROUP 64
#define KVQ_R_LIMIT \
    0x1p20f /* |r| from which a group counts as constant: its spread is under b * 2^-12 */
#define KVQ_TOP_8BIT 255
#define KVQ_TOP_4BIT 15

struct kvq_group {
    uint16_t scale, bias; /* f16 */
    uint8_t codes[KVQ_GROUP];
};

static inline bool kvq_is(enum dtype type)
{
    return type == DTYPE_KV_Q8 || type == DTYPE_KV_Q4;
}

static inline int kvq_top(enum dtype type)
{
    return type == DTYPE_KV_Q8 ? KVQ_TOP_8BIT : KVQ_TOP_4BIT;
}

/* Scale and bias of a group of finite values between lo and hi. False: the bias is not finite. */
static inline bool kvq_line(float lo, float hi, int top, uint16_t *scale, uint16_t *bias)
{
    bool is_lo = fabsf(lo) > fabsf(hi);
    float e = is_lo ? lo : hi, d = is_lo ? hi - lo : lo - hi;
    uint16_t b16 = f32_to_f16(e);
    float b = f16_to_f32(b16), r = e / (d / (float)top);
    *scale = *bias = 0;
    if (b == 0)
        return true;
    if (!isfinite(b))
        return false;
    *bias = b16;
    if (!(fabsf(r) < KVQ_R_LIMIT))
        return true;
    uint16_t s16 = f32_to_f16(b / ((r + FMATH_RINT) - FMATH_RINT));
    *scale = s16 & 0x7FFF ? s16 : 0; /* +0 where it underflows */
    return true;
}

/* The reference: kernels give the same bits. x [n], 1 <= n <= 64; codes from n on are 0. False: the group failed, *out is zero. */
bool kvq_quantise(struct kvq_group *out, const float *x, int n, int top) MUST_CHECK;
float kvq_value(int code, uint16_t scale, uint16_t bias);

/* --- bytes ---
 * A part (K or V of one kv head in one page) is three arrays, of `row` code bytes and G groups for each of P positions j:
 *
 *     codes    byte c of position j:  K: c * P + j      V: j * row + c
 *     scales   group g, position j:   u16 g * P + j     biases: the same, behind them
 *
 * Codes of 8 bits: element i is byte i. Codes of 4 bits: group g has bytes from 32 g on; of its L elements the first
 * h = (L + 1) / 2 are low nibbles of bytes 0..h-1 and the others are high nibbles, so that both unpack into runs. */

static inline int kvq_groups(int head_dim)
{
    return (head_dim + KVQ_GROUP - 1) / KVQ_GROUP;
}

/* Elements of group g. */
static inline int kvq_group_len(int head_dim, int g)
{
    int rest = head_dim - g * KVQ_GROUP;
    return rest < KVQ_GROUP ? rest : KVQ_GROUP;
}

/* Code bytes of n elements, and of a position. */
static inline int kvq_code_bytes(enum dtype type, int n)
{
    return type == DTYPE_KV_Q8 ? n : n / KVQ_GROUP * (KVQ_GROUP / 2) + (n % KVQ_GROUP + 1) / 2;
}

static inline size_t kvq_part_bytes(enum dtype type, int head_dim)
{
    size_t row = (size_t)kvq_code_bytes(type, head_dim) + 4 * (size_t)kvq_groups(head_dim);
    return row * KV_PAGE_TOKENS;
}

/* The arrays of a part. */
struct kvq_part {
    uint8_t *codes;
    uint16_t *scales, *biases; /* [G][P] */
    int row;                   /* code bytes of a position */
};

static inline struct kvq_part kvq_part_at(enum dtype type, int head_dim, uint8_t *part)
{
    struct kvq_part p = { .codes = part, .row = kvq_code_bytes(type, head_dim) };
    p.scales = (uint16_t *)(part + (size_t)p.row * KV_PAGE_TOKENS);
    p.biases = p.scales + kvq_groups(head_dim) * KV_PAGE_TOKENS;
    return p;
}

#endif
