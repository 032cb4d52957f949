/* Matrix products of the reference backend: the canonical arithmetic of group.h, one output element at a time. */
#include "kernels/ref/ref_int.h"

#include <math.h>
#include <string.h>

void ref_widen(enum dtype type, const uint8_t *src, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (type == DTYPE_F8_E4M3)
            out[i] = f8_e4m3_to_f32(src[i]);
        else if (type == DTYPE_F8_E5M2)
            out[i] = f8_e5m2_to_f32(src[i]);
        else
            out[i] = source_float(src, type, i);
    }
}

/* The scales of row r of an MLX weight. */
static struct scales row_scales(const struct weight *w, int64_t r)
{
    return dtype_mlx_bits(w->shape.type) ? scales_from_row(&w->scales, r, w->shape.in) : w->scales;
}

void ref_embed(struct backend *be, struct tensor y, const struct weight *w, const int32_t *ids)
{
    struct ref_state *st = ref_of(be);
    for (int64_t t = 0; t < y.rows; t++) {
        const uint8_t *row = w->data + (size_t)ids[t] * w->row_bytes;
        float *out = y.data + t * y.stride;
        if (!group_is_type(w->shape.type)) {
            ref_widen(w->shape.type, row, y.cols, out);
            if (w->scales.scales)
                for (int64_t i = 0; i < y.cols; i++)
                    out[i] *= source_f8_scale(&w->scales, y.cols, ids[t], i / w->scales.cols);
            continue;
        }
        struct scales s = row_scales(w, ids[t]);
        group_decode(w->shape.type, row, &s, 0, y.cols / GROUP, st->w);
        for (int64_t i = 0; i < y.cols; i++)
            out[i] = group_value(&st->w[i / GROUP], (int)(i % GROUP));
    }
}

/* Round 32 activations to int8: d = max|x| / 127, q = rint(x * (127 / max|x|)), nearest even. A group whose largest magnitude
 * is under 2^-120 is zero (127 / max would overflow soon after); one with a non-finite value is zero too.
 * False: a value was not finite. */
static bool quantise_group(const float *x, struct ref_xgroup *out)
{
    memset(out, 0, sizeof(*out));
    uint32_t max_bits = 0; /* magnitudes order as their bits do, NaN above infinity */
    for (int i = 0; i < GROUP; i++) {
        uint32_t u = half_bits_of_f32(x[i]) & 0x7FFFFFFFu;
        max_bits = u > max_bits ? u : max_bits;
    }
    if (max_bits >= 0x7F800000u)
        return false;
    float max = half_f32_of_bits(max_bits);
    if (max < 0x1p-120f)
        return true;
    float inv = 127.0f / max;
    out->d = max / 127.0f;
    for (int i = 0; i < GROUP; i++) {
        float v = x[i] * inv;
        v = v + 12582912.0f; /* 1.5 * 2^23: what is kept is the nearest integer */
        out->q[i] = (int8_t)(v - 12582912.0f);
        out->sum[i / 16] += out->q[i];
    }
    return true;
}

static float dot_groups(const struct group *w, const struct ref_xgroup *x, int64_t n, bool affine)
{
    float ad = 0, am = 0;
    for (int64_t g = 0; g < n; g++, w++, x++) {
        int32_t dot[2] = { 0, 0 };
        for (int i = 0; i < 16; i++) {
            dot[0] += w->c[i] * x->q[i];
            dot[1] += w->c[16 + i] * x->q[16 + i];
        }
        ad = fmaf((float)(w->s[0] * dot[0] + w->s[1] * dot[1]), w->d * x->d, ad);
        if (affine)
            am = fmaf(w->m, x->d * (float)(w->o[0] * x->sum[0] + w->o[1] * x->sum[1]), am);
    }
    return affine ? ad + am : ad;
}

static void linear_quantised(struct ref_state *st, struct tensor y, struct tensor x, int64_t t0,
                             int n, const struct weight *w)
{
    int64_t n_groups = w->shape.in / GROUP;
    bool affine = group_is_affine(w->shape.type);
    for (int t = 0; t < n; t++)
        for (int64_t g = 0; g < n_groups; g++)
            if (!quantise_group(x.data + (t0 + t) * x.stride + g * GROUP, &st->x[t * n_groups + g]))
                st->flags[t0 + t] = 1;
    for (int64_t r = 0; r < w->shape.out; r++) {
        struct scales s = row_scales(w, r);
        group_decode(w->shape.type, w->data + (size_t)r * w->row_bytes, &s, 0, n_groups, st->w);
        for (int t = 0; t < n; t++)
            y.data[(t0 + t) * y.stride + r] =
                dot_groups(st->w, st->x + t * n_groups, n_groups, affine);
    }
}

/* One ascending chain of the widened row in st->wf, from zero; fp8: of each part that has one scale, and a chain of those. */
static float dot_float(const struct ref_state *st, const struct weight *w, int64_t r,
                       const float *x)
{
    int64_t in = w->shape.in, cols = source_f8_cols(&w->scales, in);
    float y = 0;
    for (int64_t c = 0; c * cols < in; c++) {
        float a = 0;
        for (int64_t i = c * cols; i < in && i < (c + 1) * cols; i++)
            a = fmaf(st->wf[i], x[i], a);
        if (!source_is_f8(w->shape.type))
            return a;
        y = fmaf(source_f8_scale(&w->scales, in, r, c), a, y);
    }
    return y;
}

/* f16, bf16, f32 and fp8 weights. A non-finite x counts as zero and fails its row. */
static void linear_float(struct ref_state *st, struct tensor y, struct tensor x, int64_t t0, int n,
                         const struct weight *w)
{
    int64_t in = w->shape.in;
    for (int t = 0; t < n; t++) {
        for (int64_t i = 0; i < in; i++) {
            float v = x.data[(t0 + t) * x.stride + i];
            if (!isfinite(v)) {
                st->flags[t0 + t] = 1;
                v = 0;
            }
            st->xf[t * in + i] = v;
        }
    }
    for (int64_t r = 0; r < w->shape.out; r++) {
        ref_widen(w->shape.type, w->data + (size_t)r * w->row_bytes, in, st->wf);
        for (int t = 0; t < n; t++)
            y.data[(t0 + t) * y.stride + r] = dot_float(st, w, r, st->xf + t * in);
    }
}

void ref_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w)
{
    struct ref_state *st = ref_of(be);
    for (int64_t t0 = 0; t0 < x.rows; t0 += REF_ROWS) {
        int n = (int)(x.rows - t0 < REF_ROWS ? x.rows - t0 : REF_ROWS);
        if (group_is_type(w->shape.type))
            linear_quantised(st, y, x, t0, n, w);
        else
            linear_float(st, y, x, t0, n, w);
    }
}
