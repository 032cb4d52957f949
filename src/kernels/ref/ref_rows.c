/* Element-wise ops, norms and rotary embeddings of the reference backend. */
#include "base/dmath.h"
#include "kernels/ref/ref_int.h"
#include "tensor/fmath.h"
#include "tensor/index.h"
#include "tensor/root_dots.h"
#include "tensor/route.h"

#include <math.h>
#include <string.h>

float ref_lane_sum(float lanes[16])
{
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++)
            lanes[i] += lanes[i + w];
    return lanes[0];
}

void ref_add_bias(struct backend *be, struct tensor y, const float *b)
{
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = 0; i < y.cols; i++)
            y.data[t * y.stride + i] += b[i];
}

/* Sum of squares: 16 lanes, lane l takes elements l, l + 16, ... ascending; then the fixed tree. y = (x * r) * w. */
static void norm_group(float *y, const float *x, const float *w, int n, float eps)
{
    float lanes[16] = { 0 };
    for (int i = 0; i < n; i++)
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    float r = 1.0f / sqrtf(ref_lane_sum(lanes) / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * r * w[i];
}

void ref_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w, int n,
                  float eps)
{
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t c = 0; c < x.cols; c += n)
            norm_group(y.data + t * y.stride + c, x.data + t * x.stride + c, w, n, eps);
}

void ref_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                 float scale)
{
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t c = 0; c < x.cols; c += n) {
            const float *from = x.data + t * x.stride + c;
            float lanes[16] = { 0 };
            for (int i = 0; i < n; i++)
                lanes[i % 16] = fmaf(from[i], from[i], lanes[i % 16]);
            float r = scale / sqrtf(ref_lane_sum(lanes) + eps);
            for (int i = 0; i < n; i++)
                y.data[t * y.stride + c + i] = from[i] * r;
        }
}

static void rope_head(float *x, const struct rope *r, const float *cs, const float *sn)
{
    int half = r->n_dims / 2;
    for (int i = 0; i < half; i++) {
        int a = r->kind == ROPE_KIND_NEOX ? i : 2 * i;
        int b = r->kind == ROPE_KIND_NEOX ? i + half : 2 * i + 1;
        float xa = x[a], xb = x[b];
        x[a] = fmaf(xa, cs[i], -(xb * sn[i]));
        x[b] = fmaf(xa, sn[i], xb * cs[i]);
    }
}

/* The angle pos * inv_freq is exact in double; sin and cos are rounded to f32, then scaled. */
void ref_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
              const int32_t *pos)
{
    float cs[BACKEND_HEAD_DIM_MAX / 2], sn[BACKEND_HEAD_DIM_MAX / 2];
    for (int64_t t = 0; t < x.rows; t++) {
        for (int i = 0; i < r->n_dims / 2; i++) {
            fmath_sincos((double)pos[t] * (double)r->inv_freq[i], &sn[i], &cs[i]);
            sn[i] *= r->scale;
            cs[i] *= r->scale;
        }
        for (int64_t h = 0; h < x.cols / head_dim; h++)
            rope_head(x.data + t * x.stride + h * head_dim, r, cs, sn);
    }
}

static float glu_one(float g, float u, enum glu_kind kind)
{
    switch (kind) {
    case GLU_KIND_SILU:
        return fmath_silu(g) * u;
    case GLU_KIND_GELU_TANH:
        return fmath_gelu_tanh(g) * u;
    case GLU_KIND_SIGMOID:
        return fmath_sigmoid(g) * u;
    case GLU_KIND_GELU_ERF:
        return fmath_gelu_erf(g) * u;
    default:
        return fmath_swiglu_clamped(g, u);
    }
}

void ref_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
             enum glu_kind kind)
{
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = 0; i < y.cols; i++)
            y.data[t * y.stride + i] =
                glu_one(gate.data[t * gate.stride + i], up.data[t * up.stride + i], kind);
}

void ref_act(struct backend *be, struct tensor y, enum glu_kind kind)
{
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = 0; i < y.cols; i++) {
            float *v = &y.data[t * y.stride + i];
            *v = kind == GLU_KIND_SILU        ? fmath_silu(*v)
                 : kind == GLU_KIND_GELU_TANH ? fmath_gelu_tanh(*v)
                 : kind == GLU_KIND_GELU_ERF  ? fmath_gelu_erf(*v)
                                              : fmath_sigmoid(*v);
        }
}

/* Both sums in 16 lanes and the fixed tree, as in norm_group. */
static void layer_norm_row(float *y, const float *x, const float *w, const float *b, int64_t n,
                           float eps)
{
    float sum[16] = { 0 }, squares[16] = { 0 };
    for (int64_t i = 0; i < n; i++)
        sum[i % 16] += x[i];
    float mean = ref_lane_sum(sum) / (float)n;
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] - mean;
        squares[i % 16] = fmaf(y[i], y[i], squares[i % 16]);
    }
    float r = 1.0f / sqrtf(ref_lane_sum(squares) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = fmaf(y[i] * r, w[i], b[i]);
}

void ref_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                    const float *b, float eps)
{
    for (int64_t t = 0; t < x.rows; t++)
        layer_norm_row(y.data + t * y.stride, x.data + t * x.stride, w, b, x.cols, eps);
}

void ref_scatter_add(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                     const float *w, const uint8_t *is_first)
{
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t i = 0; i < x.cols; i++) {
            float *v = &y.data[rows[t] * y.stride + i];
            *v = fmaf(w[t], x.data[t * x.stride + i], is_first[t] ? 0 : *v);
        }
}

void ref_route(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
               float *w)
{
    for (int64_t t = 0; t < logits.rows; t++)
        route_row(r, logits.data + t * logits.stride, (int)logits.cols, ids + t * r->n_used,
                  w + t * r->n_used);
}

void ref_add(struct backend *be, struct tensor y, struct tensor x)
{
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = 0; i < y.cols; i++)
            y.data[t * y.stride + i] += x.data[t * x.stride + i];
}

void ref_scale(struct backend *be, struct tensor y, float s)
{
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = 0; i < y.cols; i++)
            y.data[t * y.stride + i] *= s;
}

void ref_softcap(struct backend *be, struct tensor y, float cap)
{
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = 0; i < y.cols; i++)
            y.data[t * y.stride + i] = cap * fmath_tanh(y.data[t * y.stride + i] / cap);
}

void ref_exp_scaled(struct backend *be, float *y, const float *x, int64_t n, float max, float t)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dmath_expf((x[i] - max) / t);
}

int64_t ref_argmax(struct backend *be, const float *x, int64_t n, bool *finite)
{
    int64_t best = 0;
    *finite = true;
    for (int64_t i = 0; i < n; i++) {
        *finite = *finite && isfinite(x[i]);
        if (x[i] > x[best])
            best = i;
    }
    return best;
}

void ref_gate_rows(struct backend *be, struct tensor y, struct tensor g)
{
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = 0; i < y.cols; i++)
            y.data[t * y.stride + i] *= fmath_sigmoid(g.data[t * g.stride]);
}

int ref_index_add(struct backend *be, struct tensor means, int32_t *first, struct tensor k,
                  struct index_layer *ix, const struct seq_view *seqs, int n_seqs)
{
    return index_add_rows(means, first, k, ix, seqs, n_seqs);
}

bool ref_index_pick(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                    struct tensor means, struct index_layer *ix, const struct index_pick *p,
                    float *scores, const struct seq_view *seqs, int n_seqs)
{
    return index_pick_rows(be, picked, words, q, means, ix, p, scores, seqs, n_seqs);
}

void ref_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                   float scale)
{
    root_dots(y, a, b, scale);
}

void ref_copy(struct backend *be, struct tensor y, struct tensor x)
{
    for (int64_t t = 0; t < y.rows; t++)
        memcpy(y.data + t * y.stride, x.data + t * x.stride, (size_t)y.cols * sizeof(float));
}

void ref_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows)
{
    for (int64_t i = 0; i < y.rows; i++)
        memcpy(y.data + i * y.stride, x.data + rows[i] * x.stride, (size_t)y.cols * sizeof(float));
}
