#include "tensor/index.h"
#include "tensor/ops.h"

#include <string.h>

#define P            KV_PAGE_TOKENS
#define INDEX_LANES  16
#define INDEX_BLOCKS 256 /* of a piece of the scoring */

size_t index_page_floats(const struct index_layer *ix)
{
    return (size_t)(P + P / ix->ratio) * (size_t)ix->dim;
}

static float *index_raw(const struct index_layer *ix, const struct seq_view *s, int32_t pos)
{
    return ix->data + (size_t)s->pages[pos / P] * index_page_floats(ix) +
           (size_t)(pos % P) * (size_t)ix->dim;
}

static float *index_pooled(const struct index_layer *ix, const struct seq_view *s, int32_t block)
{
    int32_t pos = block * ix->ratio;
    return ix->data + (size_t)s->pages[pos / P] * index_page_floats(ix) +
           (size_t)(P + pos % P / ix->ratio) * (size_t)ix->dim;
}

/* Blocks that the rows complete: [first, end). */
static int32_t index_first(const struct index_layer *ix, const struct seq_view *s)
{
    return s->pos0 / ix->ratio;
}

static int32_t index_end(const struct index_layer *ix, const struct seq_view *s)
{
    return (s->pos0 + s->n_rows) / ix->ratio;
}

int index_add_rows(struct tensor means, int32_t *first, struct tensor k, struct index_layer *ix,
                   const struct seq_view *seqs, int n_seqs)
{
    int n = 0;
    for (int i = 0; i < n_seqs; i++) {
        const struct seq_view *s = &seqs[i];
        for (int t = 0; t < s->n_rows; t++)
            memcpy(index_raw(ix, s, s->pos0 + t), k.data + (s->row0 + t) * k.stride,
                   (size_t)ix->dim * sizeof(float));
        for (int32_t b = index_first(ix, s); b < index_end(ix, s); b++, n++) {
            float *to = means.data + n * means.stride;
            first[n] = b * ix->ratio;
            memcpy(to, index_raw(ix, s, first[n]), (size_t)ix->dim * sizeof(float));
            for (int j = 1; j < ix->ratio; j++) {
                const float *from = index_raw(ix, s, first[n] + j);
                for (int d = 0; d < ix->dim; d++)
                    to[d] += from[d];
            }
            for (int d = 0; d < ix->dim; d++)
                to[d] /= (float)ix->ratio;
        }
    }
    return n;
}

/* --- picking --- */

struct index_job {
    const struct index_layer *ix;
    const struct seq_view *seq;
    const float *q; /* [n_heads][dim] */
    int n_heads;
    int32_t n_blocks;
    float *scores;
};

static float index_dot(const float *a, const float *b, int n)
{
    float lanes[INDEX_LANES] = { 0 };
    int i = 0;
    for (; i + INDEX_LANES <= n; i += INDEX_LANES)
        for (int k = 0; k < INDEX_LANES; k++)
            lanes[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        lanes[i % INDEX_LANES] += a[i] * b[i];
    for (int w = INDEX_LANES / 2; w; w /= 2)
        for (int k = 0; k < w; k++)
            lanes[k] += lanes[k + w];
    return lanes[0];
}

static void index_score(void *ctx, int64_t chunk)
{
    const struct index_job *j = ctx;
    int32_t b0 = (int32_t)chunk * INDEX_BLOCKS;
    int32_t b1 = b0 + INDEX_BLOCKS < j->n_blocks ? b0 + INDEX_BLOCKS : j->n_blocks;
    for (int32_t b = b0; b < b1; b++) {
        const float *key = index_pooled(j->ix, j->seq, b);
        float sum = 0;
        for (int h = 0; h < j->n_heads; h++) {
            float dot = index_dot(j->q + h * j->ix->dim, key, j->ix->dim);
            sum += dot > 0 ? dot : 0; /* of a NaN nothing: the row fails elsewhere */
        }
        j->scores[b] = sum;
    }
}

/* Numbers that are not negative have the order of their bits. */
static uint32_t index_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

/* The bits of the n_best-th largest of scores [n]; *n_equal: how many of those equal to it are among the best. */
static uint32_t index_threshold(const float *scores, int32_t n, int32_t n_best, int32_t *n_equal)
{
    uint32_t found = 0, mask = 0;
    int32_t left = n_best;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = { 0 }, v = 255;
        for (int32_t i = 0; i < n; i++)
            if ((index_bits(scores[i]) & mask) == found)
                count[index_bits(scores[i]) >> shift & 255]++;
        for (; count[v] < left; v--)
            left -= count[v];
        found |= (uint32_t)v << shift;
        mask |= 255u << shift;
    }
    *n_equal = left;
    return found;
}

static void index_set(uint64_t *picked, int32_t first, int32_t n)
{
    for (int32_t pos = first; pos < first + n; pos++)
        picked[pos / P] |= (uint64_t)1 << pos % P;
}

/* One row at position pos. False: it sees everything. */
static bool index_pick_row(struct backend *be, uint64_t *picked, struct index_job *j, int32_t pos,
                           const struct index_pick *p)
{
    int32_t n_best = p->n_blocks, n_equal, ratio = j->ix->ratio;
    size_t words = (size_t)(pos / P) + 1;
    j->n_blocks = (pos + 1) / ratio;
    if (j->n_blocks <= n_best) {
        memset(picked, 255, words * sizeof(*picked));
        return false;
    }
    ops_parallel(be, index_score, j, (j->n_blocks + INDEX_BLOCKS - 1) / INDEX_BLOCKS);
    uint32_t least = index_threshold(j->scores, j->n_blocks, n_best, &n_equal);
    memset(picked, 0, words * sizeof(*picked));
    for (int32_t b = 0; b < j->n_blocks; b++) {
        uint32_t u = index_bits(j->scores[b]);
        if (u > least || (u == least && n_equal-- > 0))
            index_set(picked, b * ratio, ratio);
    }
    index_set(picked, j->n_blocks * ratio, pos + 1 - j->n_blocks * ratio);
    return true;
}

bool index_pick_rows(struct backend *be, uint64_t *picked, int64_t stride, struct tensor q,
                     struct tensor means, struct index_layer *ix, const struct index_pick *p,
                     float *scores, const struct seq_view *seqs, int n_seqs)
{
    bool is_any = false;
    int n = 0;
    for (int i = 0; i < n_seqs; i++)
        for (int32_t b = index_first(ix, &seqs[i]); b < index_end(ix, &seqs[i]); b++, n++)
            memcpy(index_pooled(ix, &seqs[i], b), means.data + n * means.stride,
                   (size_t)ix->dim * sizeof(float));
    for (int i = 0; i < n_seqs; i++)
        for (int t = 0; t < seqs[i].n_rows; t++) {
            int64_t row = seqs[i].row0 + t;
            struct index_job j = { .ix = ix,
                                   .seq = &seqs[i],
                                   .q = q.data + row * q.stride,
                                   .n_heads = p->n_heads,
                                   .scores = scores };
            bool has = index_pick_row(be, picked + row * stride, &j, seqs[i].pos0 + t, p);
            is_any = is_any || has;
        }
    return is_any;
}
