/* quantize_k.c - blocks of 256 with scales of scales. A block's error is the sum of squares of what decoding gives less the input,
 * and everything here only ever lowers it: each sub-block's best scale and offset are found by a scan around the one that spans
 * its range, each followed by the least squares fit for the codes it gave; those are rounded to the block's 6 or 8 bits together with their
 * neighbours, the best pair staying; then the block's own two scales are fitted again for what was chosen. */
#include "tensor/blocks.h"
#include "weights/quantize_int.h"

#include <math.h>
#include <string.h>

#define K_BLOCK  256
#define K_SUB    32 /* elements of a sub-block of Q4_K and Q5_K */
#define K_SUBS   8
#define K_SUB6   16 /* of Q6_K */
#define K_SUBS6  16
#define K_ROUNDS 2 /* of choosing and fitting; a third gained under 0.05 % */

/* --- Q4_K and Q5_K: x = d s q - dmin m --- */

struct k_affine {
    float scale, min; /* x = scale q - min, both >= 0 */
};

/* Codes for a scale and an offset; returns the squared error. */
static float k_affine_codes(const float *x, float scale, float min, int levels, int32_t *q)
{
    float inverse = scale > 0 ? 1 / scale : 0, error = 0;
    for (int i = 0; i < K_SUB; i++) {
        float v = (x[i] + min) * inverse;
        v = v > 0 ? v : 0;
        v = v < (float)levels ? v : (float)levels;
        q[i] = quantize_nearest(v);
    }
    for (int i = 0; i < K_SUB; i++) {
        float r = scale * (float)q[i] - min - x[i];
        error += r * r;
    }
    return error;
}

/* The least squares fit of scale and min for the codes, min kept from going below 0. */
static struct k_affine k_affine_fit(const float *x, const int32_t *q)
{
    float sx = 0, sxq = 0;
    int32_t sq = 0, sqq = 0;
    for (int i = 0; i < K_SUB; i++) {
        sx += x[i];
        sxq += x[i] * (float)q[i];
        sq += q[i];
        sqq += q[i] * q[i];
    }
    float det = (float)(K_SUB * sqq - sq * sq);
    struct k_affine a = { 0 };
    if (sqq == 0)
        return (struct k_affine){ 0, sx < 0 ? -sx / K_SUB : 0 };
    if (det > 0) {
        a.scale = ((float)K_SUB * sxq - (float)sq * sx) / det;
        a.min = ((float)sq * sxq - (float)sqq * sx) / det;
    }
    if (!(a.min > 0) || !(a.scale > 0))
        a = (struct k_affine){ sxq > 0 ? sxq / (float)sqq : 0, 0 };
    return a;
}

static struct k_affine k_affine_search(const float *x, int levels)
{
    int32_t q[K_SUB];
    float least = 0, most = x[0];
    for (int i = 0; i < K_SUB; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    struct k_affine best = { 0, -least };
    if (!(most > least))
        return best;
    float error = k_affine_codes(x, 0, best.min, levels, q);
    for (int step = -10; step <= 10; step++) {
        float scale = (most - least) / ((float)levels + 0.1f * (float)step);
        k_affine_codes(x, scale, -least, levels, q);
        struct k_affine a = k_affine_fit(x, q);
        float e = k_affine_codes(x, a.scale, a.min, levels, q);
        if (e < error) {
            error = e;
            best = a;
        }
    }
    return best;
}

struct k_block {
    int levels;
    float d, dmin;                /* as f16 holds them */
    int32_t s[K_SUBS], m[K_SUBS]; /* 0..63 */
    int32_t q[K_BLOCK];
};

/* The 6-bit scale and offset of a sub-block among the neighbours of the exact ones. Returns its error. */
static float k_affine_round(struct k_block *b, const float *x, int sub, struct k_affine exact)
{
    int32_t q[K_SUB];
    float best = INFINITY;
    int32_t s0 = b->d > 0 ? quantize_clamp(quantize_nearest(exact.scale / b->d), 0, 63) : 0;
    int32_t m0 = b->dmin > 0 ? quantize_clamp(quantize_nearest(exact.min / b->dmin), 0, 63) : 0;
    for (int32_t s = s0 > 0 ? s0 - 1 : 0; s <= s0 + 1 && s <= 63; s++)
        for (int32_t m = m0 > 0 ? m0 - 1 : 0; m <= m0 + 1 && m <= 63; m++) {
            float e = k_affine_codes(x, b->d * (float)s, b->dmin * (float)m, b->levels, q);
            if (e >= best)
                continue;
            best = e;
            b->s[sub] = s;
            b->m[sub] = m;
            memcpy(b->q + sub * K_SUB, q, sizeof(q));
        }
    return best;
}

static float k_round_all(struct k_block *b, const float *x, const struct k_affine exact[K_SUBS])
{
    float error = 0;
    for (int j = 0; j < K_SUBS; j++)
        error += k_affine_round(b, x + j * K_SUB, j, exact[j]);
    return error;
}

/* d and dmin by least squares for the chosen integers: x = d u - dmin v with u = s q, v = m. */
static bool k_affine_refit(const struct k_block *b, const float *x, float *d, float *dmin)
{
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0;
    for (int i = 0; i < K_BLOCK; i++) {
        double u = (double)(b->s[i / K_SUB] * b->q[i]), v = (double)b->m[i / K_SUB];
        uu += u * u;
        uv += u * v;
        vv += v * v;
        xu += (double)x[i] * u;
        xv += (double)x[i] * v;
    }
    double det = uu * vv - uv * uv;
    if (det > 0) {
        *d = f16_to_f32(f32_to_f16((float)((xu * vv - xv * uv) / det)));
        *dmin = f16_to_f32(f32_to_f16((float)((xu * uv - xv * uu) / det)));
    } else {
        *d = uu > 0 ? f16_to_f32(f32_to_f16((float)(xu / uu))) : 0;
        *dmin = 0;
    }
    return *d >= 0 && *dmin >= 0 && (*d != b->d || *dmin != b->dmin);
}

static void k_affine_block(struct k_block *best, const float *x, int levels)
{
    struct k_affine exact[K_SUBS];
    struct k_block b = { .levels = levels };
    float scale = 0, min = 0;
    for (int j = 0; j < K_SUBS; j++) {
        exact[j] = k_affine_search(x + j * K_SUB, levels);
        scale = exact[j].scale > scale ? exact[j].scale : scale;
        min = exact[j].min > min ? exact[j].min : min;
    }
    b.d = f16_to_f32(f32_to_f16(scale / 63));
    b.dmin = f16_to_f32(f32_to_f16(min / 63));
    float error = k_round_all(&b, x, exact);
    *best = b;
    for (int round = 0; round < K_ROUNDS; round++) {
        if (!k_affine_refit(best, x, &b.d, &b.dmin))
            break;
        float e = k_round_all(&b, x, exact);
        if (!(e < error))
            break;
        error = e;
        *best = b;
    }
}

static void k_pack_scales(const struct k_block *b, uint8_t out[12])
{
    for (int j = 0; j < 4; j++) {
        out[j] = (uint8_t)(b->s[j] | (b->s[j + 4] >> 4) << 6);
        out[j + 4] = (uint8_t)(b->m[j] | (b->m[j + 4] >> 4) << 6);
        out[j + 8] = (uint8_t)((b->s[j + 4] & 15) | (b->m[j + 4] & 15) << 4);
    }
}

static void k_pack_nibbles(const struct k_block *b, uint8_t qs[K_BLOCK / 2])
{
    for (int i = 0; i < K_BLOCK / 2; i++) {
        int at = i / K_SUB * 2 * K_SUB + i % K_SUB;
        qs[i] = (uint8_t)((b->q[at] & 15) | (b->q[at + K_SUB] & 15) << 4);
    }
}

void quantize_q4_k(const float *x, uint8_t *out)
{
    struct k_block b;
    struct block_q4_k o;
    k_affine_block(&b, x, 15);
    o.d = f32_to_f16(b.d);
    o.dmin = f32_to_f16(b.dmin);
    k_pack_scales(&b, o.scales);
    k_pack_nibbles(&b, o.qs);
    memcpy(out, &o, sizeof(o));
}

void quantize_q5_k(const float *x, uint8_t *out)
{
    struct k_block b;
    struct block_q5_k o = { 0 };
    k_affine_block(&b, x, 31);
    o.d = f32_to_f16(b.d);
    o.dmin = f32_to_f16(b.dmin);
    k_pack_scales(&b, o.scales);
    k_pack_nibbles(&b, o.qs);
    for (int i = 0; i < K_BLOCK; i++)
        o.qh[i % K_SUB] |= (uint8_t)((b.q[i] >> 4 & 1) << i / K_SUB);
    memcpy(out, &o, sizeof(o));
}

/* --- Q6_K: x = d s (q - 32) --- */

static float k_six_codes(const float *x, float scale, int32_t *q)
{
    float inverse = scale != 0 ? 1 / scale : 0, error = 0;
    for (int i = 0; i < K_SUB6; i++) {
        float v = x[i] * inverse;
        v = v > -32 ? v : -32;
        v = v < 31 ? v : 31;
        q[i] = quantize_nearest(v);
    }
    for (int i = 0; i < K_SUB6; i++) {
        float r = scale * (float)q[i] - x[i];
        error += r * r;
    }
    return error;
}

static float k_six_search(const float *x)
{
    int32_t q[K_SUB6];
    float most = x[0], best = 0;
    for (int i = 1; i < K_SUB6; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    if (most == 0)
        return 0;
    float error = k_six_codes(x, 0, q);
    for (int step = -9; step <= 9; step++) {
        float scale = most / (-32 + 0.1f * (float)step), sxq = 0;
        int32_t sqq = 0;
        k_six_codes(x, scale, q);
        for (int i = 0; i < K_SUB6; i++) {
            sxq += x[i] * (float)q[i];
            sqq += q[i] * q[i];
        }
        scale = sqq ? sxq / (float)sqq : scale;
        float e = k_six_codes(x, scale, q);
        if (e < error) {
            error = e;
            best = scale;
        }
    }
    return best;
}

struct k_six {
    float d;
    int32_t s[K_SUBS6]; /* -128..127 */
    int32_t q[K_BLOCK]; /* -32..31 */
};

static float k_six_round(struct k_six *b, const float *x, const float exact[K_SUBS6])
{
    int32_t q[K_SUB6];
    float error = 0;
    for (int j = 0; j < K_SUBS6; j++) {
        float best = INFINITY;
        int32_t s0 = b->d != 0 ? quantize_clamp(quantize_nearest(exact[j] / b->d), -128, 127) : 0;
        for (int32_t s = s0 > -128 ? s0 - 1 : -128; s <= s0 + 1 && s <= 127; s++) {
            float e = k_six_codes(x + j * K_SUB6, b->d * (float)s, q);
            if (e >= best)
                continue;
            best = e;
            b->s[j] = s;
            memcpy(b->q + j * K_SUB6, q, sizeof(q));
        }
        error += best;
    }
    return error;
}

static bool k_six_refit(const struct k_six *b, const float *x, float *d)
{
    double uu = 0, xu = 0;
    for (int i = 0; i < K_BLOCK; i++) {
        double u = (double)(b->s[i / K_SUB6] * b->q[i]);
        uu += u * u;
        xu += (double)x[i] * u;
    }
    *d = uu > 0 ? f16_to_f32(f32_to_f16((float)(xu / uu))) : 0;
    return *d != b->d;
}

void quantize_q6_k(const float *x, uint8_t *out)
{
    float exact[K_SUBS6], most = 0;
    struct k_six b, best;
    struct block_q6_k o = { 0 };
    for (int j = 0; j < K_SUBS6; j++) {
        exact[j] = k_six_search(x + j * K_SUB6);
        if (fabsf(exact[j]) > fabsf(most))
            most = exact[j];
    }
    b.d = f16_to_f32(f32_to_f16(most / -128));
    float error = k_six_round(&b, x, exact);
    best = b;
    for (int round = 0; round < K_ROUNDS; round++) {
        if (!k_six_refit(&best, x, &b.d))
            break;
        float e = k_six_round(&b, x, exact);
        if (!(e < error))
            break;
        error = e;
        best = b;
    }
    o.d = f32_to_f16(best.d);
    for (int j = 0; j < K_SUBS6; j++)
        o.scales[j] = (int8_t)best.s[j];
    for (int i = 0; i < K_BLOCK; i++) {
        int half = i / 128, r = i % 128, q = best.q[i] + 32;
        o.ql[64 * half + r % 64] |= (uint8_t)((q & 15) << 4 * (r / 64));
        o.qh[32 * half + r % 32] |= (uint8_t)((q >> 4) << 2 * (r / 32));
    }
    memcpy(out, &o, sizeof(o));
}
