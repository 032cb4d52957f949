/* Key-value pages and attention of the reference backend.
 *
 * A page of a layer holds, for each kv head g in turn, K transposed [K dims][P positions] and then V [P positions][K dims], so
 * that in both a vector register holds what one fma chain walks over. Element type: the layer's; KV_Q8 and KV_Q4: kvq.h. */
#include "kernels/ref/ref_int.h"
#include "tensor/fmath.h"
#include "tensor/half.h"
#include "tensor/kvq.h"

#include <string.h>

#define P KV_PAGE_TOKENS

size_t ref_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim)
{
    return (size_t)n_kv_heads * kv_head_bytes(type, head_dim);
}

/* K (v = 0) or V (v = 1) of head g in the page of position pos. */
static uint8_t *page_part(const struct kv_layer *kv, const struct seq_view *s, int32_t pos, int g,
                          int v)
{
    int32_t i = s->pages[pos / P];
    BUG_ON(i < 0 || i >= kv->n_pages);
    size_t heads = (size_t)i * (size_t)kv->n_kv_heads + (size_t)g;
    return kv->data + heads * kv_head_bytes(kv->type, kv->head_dim) +
           (v ? kv_part_bytes(kv->type, kv->head_dim, 0) : 0);
}

/* Where element d of position j lies: K is transposed. Elements, or code bytes. */
static int64_t element_at(int v, int row, int d, int j)
{
    return v ? (int64_t)j * row + d : (int64_t)d * P + j;
}

static bool store_groups(const struct kv_layer *kv, uint8_t *part, int v, int j, const float *x)
{
    struct kvq_part p = kvq_part_at(kv->type, kv->head_dim, v, part);
    bool ok = true;
    for (int g = 0; g < kvq_groups(kv->head_dim); g++) {
        struct kvq_group q;
        int n = kvq_group_len(kv->head_dim, g), half = (n + 1) / 2, g0 = g * KVQ_GROUP;
        if (!v && j == 0)
            kvq_base(p.base + g0, x + g0, n);
        ok = kvq_quantise(&q, x + g0, v ? NULL : p.base + g0, n, kvq_top(kv->type)) && ok;
        if (!v)
            kvq_set_relative(&p, g, j, q.is_relative);
        p.scales[g * P + j] = q.scale;
        p.biases[g * P + j] = q.bias;
        if (kv->type == DTYPE_KV_Q8)
            for (int i = 0; i < n; i++)
                p.codes[element_at(v, p.row, g0 + i, j)] = q.codes[i];
        else
            for (int i = 0; i < half; i++)
                p.codes[element_at(v, p.row, g0 / 2 + i, j)] =
                    (uint8_t)(q.codes[i] | (half + i < n ? q.codes[half + i] : 0) << 4);
    }
    return ok;
}

/* Position j of a part becomes x [K]. False: a quantised group failed. */
static bool store_head(const struct kv_layer *kv, uint8_t *part, int v, int j, const float *x)
{
    if (kvq_is(kv->type))
        return store_groups(kv, part, v, j, x);
    for (int d = 0; d < kv->head_dim; d++) {
        int64_t at = element_at(v, kv->head_dim, d, j);
        uint16_t h = kv->type == DTYPE_F16 ? f32_to_f16(x[d]) : f32_to_bf16(x[d]);
        if (kv->type == DTYPE_F32)
            memcpy(part + 4 * at, &x[d], 4);
        else
            memcpy(part + 2 * at, &h, 2);
    }
    return true;
}

/* Element d of position j of a quantised part. */
static float load_code(const struct kv_layer *kv, const uint8_t *part, int v, int d, int j)
{
    struct kvq_part p = kvq_part_at(kv->type, kv->head_dim, v, (uint8_t *)part);
    int g = d / KVQ_GROUP, i = d % KVQ_GROUP, half = (kvq_group_len(kv->head_dim, g) + 1) / 2;
    int byte = kv->type == DTYPE_KV_Q8 ? d : g * KVQ_GROUP / 2 + i % half;
    int code = p.codes[element_at(v, p.row, byte, j)];
    if (kv->type == DTYPE_KV_Q4)
        code = i < half ? code & 15 : code >> 4;
    uint16_t scale = p.scales[g * P + j], bias = p.biases[g * P + j];
    return v ? kvq_value(code, scale, bias)
             : kvq_key(code, scale, bias, p.relative[g] >> j & 1, p.base[d]);
}

/* Elements [from, to) of a part's row: of K, dim i at these positions; of V, position i in these dims. */
static void load_row(const struct kv_layer *kv, const uint8_t *part, int v, int i, int from, int to,
                     float *x)
{
    if (!kvq_is(kv->type)) {
        int64_t at = (int64_t)i * (v ? kv->head_dim : P) + from;
        ref_widen(kv->type, part + at * dtype_info(kv->type)->block_bytes, to - from, x + from);
        return;
    }
    for (int k = from; k < to; k++)
        x[k] = v ? load_code(kv, part, v, k, i) : load_code(kv, part, v, i, k);
}

void ref_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                  const struct seq_view *seqs, int n_seqs)
{
    for (int s = 0; s < n_seqs; s++) {
        for (int t = 0; t < seqs[s].n_rows; t++) {
            int32_t pos = seqs[s].pos0 + t;
            int64_t row = seqs[s].row0 + t;
            for (int g = 0; g < kv->n_kv_heads; g++) {
                const float *kx = k.data + row * k.stride + g * kv->head_dim;
                const float *vx = v.data + row * v.stride + g * kv->head_dim;
                bool ok = store_head(kv, page_part(kv, &seqs[s], pos, g, 0), 0, pos % P, kx);
                ok = store_head(kv, page_part(kv, &seqs[s], pos, g, 1), 1, pos % P, vx) && ok;
                if (!ok)
                    ref_of(be)->flags[row] = 1;
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

/* Bits of the block's positions that the row sees. */
static uint64_t block_bits(const struct attn_params *p, int64_t row, int32_t b)
{
    return p->picked ? p->picked[row * p->picked_words + b / P] : UINT64_MAX;
}

/* Scores of positions [j0, j1) of a block that are picked: one ascending chain over the head's dims, scaled, capped.
 * False: one of them is not finite. */
static bool block_scores(const float *q, const struct kv_layer *kv, const uint8_t *kp, int j0,
                         int j1, uint64_t bits, const struct attn_params *p, float *score)
{
    bool finite = true;
    float k[P];
    memset(score, 0, P * sizeof(*score));
    for (int d = 0; d < kv->head_dim; d++) {
        load_row(kv, kp, 0, d, j0, j1, k);
        for (int j = j0; j < j1; j++)
            if (bits >> j & 1)
                score[j] = fmaf(q[d], k[j], score[j]);
    }
    for (int j = j0; j < j1; j++) {
        if (!(bits >> j & 1))
            continue;
        score[j] *= p->scale;
        if (p->softcap > 0)
            score[j] = p->softcap * fmath_tanh(score[j] / p->softcap);
        finite = finite && isfinite(score[j]);
    }
    return finite;
}

/* One block by itself: its maximum, sum and weighted V; then merged. 16 lanes sum the weights (lane = position % 16, positions
 * ascending), V accumulates in ascending position. Positions outside [j0, j1) are skipped, never multiplied. */
static void block_merge(const float *score, const struct kv_layer *kv, const uint8_t *vp, int j0,
                        int j1, uint64_t bits, struct running *r)
{
    float mb = -INFINITY, lanes[16] = { 0 }, w[P];
    float a[BACKEND_HEAD_DIM_MAX] = { 0 }, v[BACKEND_HEAD_DIM_MAX];
    for (int j = j0; j < j1; j++)
        mb = bits >> j & 1 && score[j] > mb ? score[j] : mb;
    for (int j = j0; j < j1; j++) {
        if (!(bits >> j & 1))
            continue;
        w[j] = fmath_exp(score[j] - mb);
        lanes[j % 16] += w[j];
    }
    float lb = ref_lane_sum(lanes);
    float m = r->m > mb ? r->m : mb;
    float alpha = fmath_exp(r->m - m), beta = fmath_exp(mb - m);
    r->m = m;
    r->l = fmaf(lb, beta, r->l * alpha);
    for (int j = j0; j < j1; j++) {
        if (!(bits >> j & 1))
            continue;
        load_row(kv, vp, 1, j, 0, kv->head_dim, v);
        for (int d = 0; d < kv->head_dim; d++)
            a[d] = fmaf(w[j], v[d], a[d]);
    }
    for (int d = 0; d < kv->head_dim; d++)
        r->acc[d] = fmaf(a[d], beta, r->acc[d] * alpha);
}

/* One query head of one row at position pos. A non-finite score or result makes the head zero; false then. */
static bool attend(float *out, const float *q, int h, const struct kv_layer *kv,
                   const struct seq_view *seq, int64_t row, int32_t pos,
                   const struct attn_params *p)
{
    int g = h / (p->n_heads / kv->n_kv_heads), n = kv->head_dim;
    struct running r = { .m = -INFINITY };
    if (p->sinks) {
        r.m = p->sinks[h];
        r.l = 1;
    }
    int32_t first = p->window && pos >= p->window ? pos - p->window + 1 : 0;
    int32_t end = attn_end(p, seq, pos);
    bool ok = true;
    for (int32_t b = first / P * P; b < end && ok; b += P) {
        int j0 = first > b ? first - b : 0;
        int j1 = end - b < P ? end - b : P;
        float score[P];
        uint64_t bits = block_bits(p, row, b);
        if (bits == 0)
            continue;
        ok = block_scores(q, kv, page_part(kv, seq, b, g, 0), j0, j1, bits, p, score);
        if (ok)
            block_merge(score, kv, page_part(kv, seq, b, g, 1), j0, j1, bits, &r);
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
                            kv, &seqs[s], row, seqs[s].pos0 + t, p))
                    st->flags[row] = 1;
            }
}
