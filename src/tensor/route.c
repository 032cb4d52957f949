#include "tensor/route.h"
#include "tensor/backend.h"
#include "tensor/fmath.h"

/* ids of the n_used largest scores, ascending. */
static void route_choose(const float *scores, int n, int n_used, int32_t *ids)
{
    bool is_chosen[BACKEND_EXPERTS_MAX] = { false };
    for (int k = 0; k < n_used; k++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            if (is_chosen[i])
                continue;
            bool is_better = best < 0 || scores[i] > scores[best] ||
                             (scores[best] != scores[best] && scores[i] == scores[i]);
            best = is_better ? i : best;
        }
        is_chosen[best] = true;
    }
    for (int i = 0, k = 0; i < n; i++)
        if (is_chosen[i])
            ids[k++] = i;
}

/* w = exp(x - max) of the listed logits; returns the sum of e over all of x[0..n) or, is_used, over the listed. */
static float route_exp(const float *logits, int n, const int32_t *ids, int n_used, bool is_used,
                       float *w)
{
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n && !is_used; i++)
        sum += fmath_exp(logits[i] - max);
    for (int k = 0; k < n_used; k++) {
        w[k] = fmath_exp(logits[ids[k]] - max);
        sum += is_used ? w[k] : 0;
    }
    return sum;
}

void route_row(const struct route *r, const float *logits, int n, int32_t *ids, float *w)
{
    float scores[BACKEND_EXPERTS_MAX], sum = 0;
    bool is_sigmoid = r->kind == ROUTE_KIND_SIGMOID;
    for (int i = 0; i < n && is_sigmoid; i++)
        scores[i] = fmath_sigmoid(logits[i]) + (r->bias ? r->bias[i] : 0);
    route_choose(is_sigmoid ? scores : logits, n, r->n_used, ids);
    if (is_sigmoid) {
        for (int k = 0; k < r->n_used; k++)
            w[k] = fmath_sigmoid(logits[ids[k]]);
    } else {
        float all = route_exp(logits, n, ids, r->n_used, r->kind == ROUTE_KIND_SOFTMAX_USED, w);
        for (int k = 0; k < r->n_used; k++)
            w[k] /= all;
    }
    for (int k = 0; k < r->n_used && r->is_normed; k++)
        sum += w[k];
    for (int k = 0; k < r->n_used; k++)
        w[k] = (r->is_normed ? w[k] / sum : w[k]) * r->scale;
}
