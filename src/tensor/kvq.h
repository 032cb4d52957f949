/* kvq.h - the 8-bit and 4-bit cache types: their arithmetic and their bytes.
 *
 * A head of one position is cut into groups of 64 elements (the last one may be shorter, 1..64). A group is a code per element,
 * 0..top (255 or 15), an f16 scale s and an f16 bias b. The keys of a page have an f16 *base* beside them: the page's first key
 * (zero in a group that has no finite f16 there). A group of a key is relative to it (u = 1) where that is the narrower:
 *
 *     x' = fma(code, s, b);  keys: x' = fma(u, base, x')                     (f32)
 *
 * Quantising a group x of keys or values; f32 operations in this order, min and max exact, rint to nearest even:
 *
 *     keys: y = x - base; where max y - min y < max x - min x: u = 1, and y takes the place of x
 *     lo = min x, hi = max x         e = lo and d = hi - lo where |lo| > |hi|; else e = hi and d = lo - hi
 *     b = f16(e)                     a value that is not finite, or b infinite: the group fails
 *     b = 0: scale, bias and codes are 0 (both zeros of x give +0)
 *     r = e / (d / top)              not |r| < 2^20 (a constant group): s = 0
 *     z = rint(r)                    s = f16(b / z); |z| >= top / 2
 *     s = 0: codes are 0             else code = rint(min(max((x - b) * (1 / s), 0), top))
 *
 * This is the affine rule that MLX uses: the end of larger magnitude is a grid point (code 0), and so is zero, but for the
 * rounding of s. Codes are taken against the stored s and b, so the rounding of both costs nothing but at the other end of the
 * grid. An error is at most one step there, half a step elsewhere.
 *
 * f16 for s and b, not f32: 8.5 and 4.5 bits an element instead of 9 and 5. Root mean square error on normal data, in units of
 * the deviation: 0.00537 either way at 8 bits, 0.0910 at 4; the range is that of the f16 cache.
 *
 * The base is there because keys have channels that are far out at every position (the key biases of the Qwen2 family reach 211,
 * all of them in the slowest rotated pairs), and a group that spans one has no steps left for its others. Within a page such a
 * channel hardly moves. The choice by group keeps it harmless: at the first page the first key is one that no other resembles.
 * Perplexity of Qwen2.5-Coder-0.5B on prose, f16 5.813: 8 bits 6.542 without and 5.814 with base, 4 bits 26.54 and 7.48. As the
 * base is a key at a fixed position, a group is a function of absolute positions like everything else.
 *
 * A failed group is zero throughout, and the backend flags its row (backend.h, failed). A page is written from its first position
 * on: a key meets the base of the first position that was stored last. */
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
    bool is_relative;     /* to the base */
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

/* The reference: kernels give the same bits. x [n], base [n] f16 or NULL, 1 <= n <= 64; codes from n on are 0.
 * False: the group failed, *out is zero. */
bool kvq_quantise(struct kvq_group *out, const float *x, const uint16_t *base, int n,
                  int top) MUST_CHECK;
float kvq_value(int code, uint16_t scale, uint16_t bias);
float kvq_key(int code, uint16_t scale, uint16_t bias, bool is_relative, uint16_t base);
/* The base of a group, from the page's first key. */
void kvq_base(uint16_t *base, const float *x, int n);

/* --- bytes ---
 * A part (K or V of one kv head in one page) is three arrays, of `row` code bytes and G groups for each of P positions j:
 *
 *     codes    byte c of position j:  K: c * P + j      V: j * row + c
 *     scales   group g, position j:   u16 g * P + j     biases: the same, behind them
 *
 * and, behind those of K, u64 [G] whose bit j says that position j is relative, and the base f16 [head_dim]; filled up to 64 bytes.
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

/* Bytes of K (v = 0) or V (v = 1). */
static inline size_t kvq_part_bytes(enum dtype type, int head_dim, int v)
{
    size_t groups = (size_t)kvq_groups(head_dim);
    size_t n = ((size_t)kvq_code_bytes(type, head_dim) + 4 * groups) * KV_PAGE_TOKENS;
    return v ? n : n + (8 * groups + 2 * (size_t)head_dim + 63) / 64 * 64;
}

/* The same of any cache type: the others store P positions of head_dim elements. */
static inline size_t kv_part_bytes(enum dtype type, int head_dim, int v)
{
    if (kvq_is(type))
        return kvq_part_bytes(type, head_dim, v);
    return (size_t)head_dim * KV_PAGE_TOKENS * (size_t)dtype_info(type)->block_bytes;
}

/* K and V of one head in a page. */
static inline size_t kv_head_bytes(enum dtype type, int head_dim)
{
    return kv_part_bytes(type, head_dim, 0) + kv_part_bytes(type, head_dim, 1);
}

/* The arrays of a part. */
struct kvq_part {
    uint8_t *codes;
    uint16_t *scales, *biases; /* [G][P] */
    uint64_t *relative;        /* [G], K only */
    uint16_t *base;            /* [head_dim], K only */
    int row;                   /* code bytes of a position */
};

/* part is aligned to 8 bytes. */
static inline struct kvq_part kvq_part_at(enum dtype type, int head_dim, int v, uint8_t *part)
{
    int groups = kvq_groups(head_dim);
    struct kvq_part p = { .codes = part, .row = kvq_code_bytes(type, head_dim) };
    p.scales = (uint16_t *)(void *)(part + (size_t)p.row * KV_PAGE_TOKENS);
    p.biases = p.scales + groups * KV_PAGE_TOKENS;
    if (!v) {
        p.relative = (uint64_t *)(void *)(p.biases + groups * KV_PAGE_TOKENS);
        p.base = (uint16_t *)(p.relative + groups);
    }
    return p;
}

/* Note of group g whether position j is relative. */
static inline void kvq_set_relative(const struct kvq_part *p, int g, int j, bool is_relative)
{
    uint64_t bit = (uint64_t)1 << j;
    p->relative[g] = is_relative ? p->relative[g] | bit : p->relative[g] & ~bit;
}

#endif
