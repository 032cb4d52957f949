/* Key-value pages and attention of the reference backend.
 *
 * A page of a layer holds, for each kv head g in turn, K transposed [K dims][P positions] and then V [P positions][K dims], so
 * that in both a vector register holds what one fma chain walks over. Element type: the layer's. */
#include "kernels/ref/ref_int.h"
#include "tensor/fmath.h"
#include "tensor/half.h"

#include <string.h>

#define P KV_PAGE_TOKENS

size_t ref_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim)
{
    size_t n = (size_t)n_kv_heads * (size_t)head_dim * P * 2;
    return n * (size_t)dtype_info(type)->block_bytes;
}

/* First element of K (v = 0) or V (v = 1) of head g in the page of position pos. */
static uint8_t *page_part(const struct kv_layer *kv, const struct seq_view *s, int32_t pos, int g,
                          int v)
{
    size_t page = ref_kv_page_bytes(NULL, kv->type, kv->n_kv_heads, kv->head_dim);
    size_t part = page / 2 / (size_t)kv->n_kv_heads;
    int32_t i = s->pages[pos / P];
    BUG_ON(i < 0 || i >= kv->n_pages);
    return kv->data + (size_t)i * page + (size_t)(2 * g + v) * part;
}

static void store_one(enum dtype type, uint8_t *part, int64_t i, float x)
{
    if (type == DTYPE_F32) {
        memcpy(part + 4 * i, &x, 4);
        return;
    }
    uint16_t h = type == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    memcpy(part + 2 * i, &h, 2);
}

static float load_one(enum dtype type, const uint8_t *part, int64_t i)
{
    float x;
    ref_widen(type, part + i * dtype_info(type)->block_bytes, 1, &x);
    return x;
}

void ref_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                  const struct seq_view *seqs, int n_seqs)
{
    int n = kv->head_dim;
    for (int s = 0; s < n_seqs; s++) {
        for (int t = 0; t < seqs[s].n_rows; t++) {
            int32_t pos = seqs[s].pos0 + t;
            int64_t row = seqs[s].row0 + t;
            for (int g = 0; g < kv->n_kv_heads; g++) {
                uint8_t *kp = page_part(kv, &seqs[s], pos, g, 0);
                uint8_t *vp = page_part(kv, &seqs[s], pos, g, 1);
                for (int d = 0; d < n; d++) {
                    store_one(kv->type, kp, (int64_t)d * P + pos % P,
                              k.data[row * k.stride + g * n + d]);
                    store_one(kv->type, vp, (int64_t)(pos % P) * n + d,
                              v.data[row * v.stride + g * n + d]);
                }
            }
        }
    }
}

void ref_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src)
{
    size_t page = ref_kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim);
    memcpy(kv->data + (size_t)dst * page, kv->data + (size_t)src * page, page);
}

/* Running softmax over blocks: weights exp(score - m), their sum l, the weighted sum of V. */
struct running {
    float m, l;
    float acc[BACKEND_HEAD_DIM_MAX];
};

/* Scores of positions [j0, j1) of a block: one ascending chain over the head's dims, scaled, capped.
 * False: one of them is not finite. */
static bool block_scores(const float *q, const struct kv_layer *kv, const uint8_t *kp, int j0,
                         int j1, const struct attn_params *p, float *score)
{
    bool finite = true;
    for (int j = j0; j < j1; j++) {
        float s = 0;
        for (int d = 0; d < kv->head_dim; d++)
            s = fmaf(q[d], load_one(kv->type, kp, (int64_t)d * P + j), s);
        s *= p->scale;
        if (p->softcap > 0)
            s = p->softcap * fmath_tanh(s / p->softcap);
        finite = finite && isfinite(s);
        score[j] = s;
    }
    return finite;
}

/* One block by itself: its maximum, sum and weighted V; then merged. 16 lanes sum the weights (lane = position % 16, positions
 * ascending), V accumulates in ascending position. Positions outside [j0, j1) are skipped, never multiplied. */
static void block_merge(const float *score, const struct kv_layer *kv, const uint8_t *vp, int j0,
                        int j1, struct running *r)
{
    float mb = -INFINITY, lanes[16] = { 0 }, w[P];
    for (int j = j0; j < j1; j++)
        mb = score[j] > mb ? score[j] : mb;
    for (int j = j0; j < j1; j++) {
        w[j] = fmath_exp(score[j] - mb);
        lanes[j % 16] += w[j];
    }
    float lb = ref_lane_sum(lanes);
    float m = r->m > mb ? r->m : mb;
    float alpha = fmath_exp(r->m - m), beta = fmath_exp(mb - m);
    r->m = m;
    r->l = fmaf(lb, beta, r->l * alpha);
    for (int d = 0; d < kv->head_dim; d++) {
        float a = 0;
        for (int j = j0; j < j1; j++)
            a = fmaf(w[j], load_one(kv->type, vp, (int64_t)j * kv->head_dim + d), a);
        r->acc[d] = fmaf(a, beta, r->acc[d] * alpha);
    }
}

/* One query head of one row at position pos. A non-finite score or result makes the head zero; false then. */
static bool attend(float *out, const float *q, int h, const struct kv_layer *kv,
                   const struct seq_view *seq, int32_t pos, const struct attn_params *p)
{
    int g = h / (p->n_heads / kv->n_kv_heads), n = kv->head_dim;
    struct running r = { .m = -INFINITY };
    if (p->sinks) {
        r.m = p->sinks[h];
        r.l = 1;
    }
    int32_t first = p->window && pos >= p->window ? pos - p->window + 1 : 0;
    bool ok = true;
    for (int32_t b = first / P * P; b <= pos && ok; b += P) {
        int j0 = first > b ? first - b : 0;
        int j1 = pos - b + 1 < P ? pos - b + 1 : P;
        float score[P];
        ok = block_scores(q, kv, page_part(kv, seq, b, g, 0), j0, j1, p, score);
        if (ok)
            block_merge(score, kv, page_part(kv, seq, b, g, 1), j0, j1, &r);
    }
    float inv = 1.0f / r.l;
    for (int d = 0; d < n; d++) {
        out[d] = r.acc[d] * inv;
        ok = ok && isfinite(out[d]);
    }
    if (!ok)
        memset(out, 0, (size_t)n * sizeof(float));
    return ok;
}

void ref_attention(struct backend *be, struct tensor out, struct tensor q,
                   const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                   const struct attn_params *p)
{
    struct ref_state *st = ref_of(be);
    int n = kv->head_dim;
    for (int s = 0; s < n_seqs; s++)
        for (int t = 0; t < seqs[s].n_rows; t++)
            for (int h = 0; h < p->n_heads; h++) {
                int64_t row = seqs[s].row0 + t;
                if (!attend(out.data + row * out.stride + h * n, q.data + row * q.stride + h * n, h,
                            kv, &seqs[s], seqs[s].pos0 + t, p))
                    st->flags[row] = 1;
            }
}
