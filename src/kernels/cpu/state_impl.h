/* state_impl.h - recurrent layers on v16.h; included by the state_*.c of each instruction set, which name the table.
 * What each computes is said at its slot in tensor/backend.h and, operation by operation, in kernels/ref/ref_state.c. */
#ifndef PLUMB_KERNELS_CPU_STATE_IMPL_H
#define PLUMB_KERNELS_CPU_STATE_IMPL_H

#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/v16.h"

#include <string.h>

/* --- convolution --- */

static void state_conv_row(float *y, const float *const *x, const float *w, int64_t w_stride,
                           int taps, int64_t c0, int64_t c1)
{
    int64_t c = c0;
    for (; c + NV <= c1; c += NV) {
        nv acc = nv_mul(nv_load(w + c), nv_load(x[0] + c));
        for (int j = 1; j < taps; j++)
            acc = nv_fma(nv_load(w + j * w_stride + c), nv_load(x[j] + c), acc);
        nv_store(y + c, nv_silu(acc));
    }
    if (c < c1) {
        int n = (int)(c1 - c);
        nv acc = nv_mul(nv_load_n(w + c, n), nv_load_n(x[0] + c, n));
        for (int j = 1; j < taps; j++)
            acc = nv_fma(nv_load_n(w + j * w_stride + c, n), nv_load_n(x[j] + c, n), acc);
        nv_store_n(y + c, nv_silu(acc), n);
    }
}

static void state_conv(const struct conv_job *j, int64_t c0, int64_t c1)
{
    const struct seq_view *s = j->seq;
    const float *x[BACKEND_STATE_TAPS_MAX];
    int before = j->taps - 1;
    size_t bytes = (size_t)(c1 - c0) * sizeof(float);
    for (int i = 0; i < before && s->pos0 == 0; i++)
        memset(j->state + i * j->x.cols + c0, 0, bytes);
    for (int t = 0; t < s->n_rows; t++) {
        for (int i = 0; i < j->taps; i++) {
            int at = t - before + i;
            x[i] = at >= 0 ? j->x.data + (s->row0 + at) * j->x.stride
                           : j->state + (before + at) * j->x.cols;
        }
        state_conv_row(j->y.data + (s->row0 + t) * j->y.stride, x, j->w, j->x.cols, j->taps, c0,
                       c1);
    }
    for (int i = 0; i < before && !s->is_tentative; i++) { /* the last inputs, oldest first */
        int at = s->n_rows - before + i;
        const float *from = at >= 0 ? j->x.data + (s->row0 + at) * j->x.stride
                                    : j->state + (before + at) * j->x.cols;
        memmove(j->state + i * j->x.cols + c0, from + c0, bytes);
    }
}

/* --- delta rule --- */

#define DELTA_V \
    4 /* registers beside one another: with two chains each as many as hide the latency and fit into 16 */

/* The columns under way: DELTA_V registers of each row, row i at work + i * DELTA_V * NV. */
V_INLINE void delta_product(const float *work, const float *with, int n_keys, nv out[DELTA_V])
{
    nv even[DELTA_V], odd[DELTA_V];
#pragma GCC unroll 4
    for (int r = 0; r < DELTA_V; r++)
        even[r] = odd[r] = nv_set1(0);
    for (int i = 0; i < n_keys; i += 2) {
        const float *a = work + i * DELTA_V * NV, *b = a + DELTA_V * NV;
        nv wa = nv_set1(with[i]), wb = nv_set1(with[i + 1]);
#pragma GCC unroll 4
        for (int r = 0; r < DELTA_V; r++) {
            even[r] = nv_fma(nv_load(a + r * NV), wa, even[r]);
            odd[r] = nv_fma(nv_load(b + r * NV), wb, odd[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < DELTA_V; r++)
        out[r] = nv_add(even[r], odd[r]);
}

/* S = decay S + k d^T and out = S^T q, in one pass. */
V_INLINE void delta_update(float *work, const float *k, const float *q, int n_keys, nv decay,
                           const nv d[DELTA_V], nv out[DELTA_V])
{
    nv even[DELTA_V], odd[DELTA_V];
#pragma GCC unroll 4
    for (int r = 0; r < DELTA_V; r++)
        even[r] = odd[r] = nv_set1(0);
    for (int i = 0; i < n_keys; i += 2) {
        float *a = work + i * DELTA_V * NV, *b = a + DELTA_V * NV;
        nv ka = nv_set1(k[i]), kb = nv_set1(k[i + 1]), qa = nv_set1(q[i]), qb = nv_set1(q[i + 1]);
#pragma GCC unroll 4
        for (int r = 0; r < DELTA_V; r++) {
            nv sa = nv_fma(ka, d[r], nv_mul(nv_load(a + r * NV), decay));
            nv sb = nv_fma(kb, d[r], nv_mul(nv_load(b + r * NV), decay));
            nv_store(a + r * NV, sa);
            nv_store(b + r * NV, sb);
            even[r] = nv_fma(sa, qa, even[r]);
            odd[r] = nv_fma(sb, qb, odd[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < DELTA_V; r++)
        out[r] = nv_add(even[r], odd[r]);
}

V_INLINE int delta_lanes(int n, int r) /* of n columns in register r */
{
    return n > r * NV ? n - r * NV : 0;
}

static void delta_row(const struct delta_job *j, int t, int c, int n)
{
    const float *k = j->k + t * j->k_stride, *q = j->q + t * j->q_stride;
    const float *v = j->v + t * j->v_stride + c;
    float *out = j->out + t * j->out_stride + c;
    nv decay = nv_set1(j->decay[t * j->decay_stride]), beta = nv_set1(j->beta[t * j->beta_stride]);
    nv d[DELTA_V], o[DELTA_V];
    delta_product(j->work, k, j->key_dim, d);
#pragma GCC unroll 4
    for (int r = 0; r < DELTA_V; r++)
        d[r] = nv_mul(nv_fma(nv_neg(decay), d[r], nv_load_n(v + r * NV, delta_lanes(n, r))), beta);
    delta_update(j->work, k, q, j->key_dim, decay, d, o);
#pragma GCC unroll 4
    for (int r = 0; r < DELTA_V; r++)
        nv_store_n(out + r * NV, o[r], delta_lanes(n, r));
}

/* Between the slot's [Ks][Vs] and the work's rows of DELTA_V registers, n <= DELTA_V * NV columns. */
static void delta_load(const struct delta_job *j, int c, int n)
{
    for (int i = 0; i < j->key_dim; i++) {
        float *to = j->work + i * DELTA_V * NV;
        if (j->seq->pos0 == 0)
            memset(to, 0, DELTA_V * NV * sizeof(*to));
        else
            for (int r = 0; r < DELTA_V; r++)
                nv_store(to + r * NV, nv_load_n(j->matrix + (int64_t)i * j->value_dim + c + r * NV,
                                                delta_lanes(n, r)));
    }
}

static void delta_save(const struct delta_job *j, int c, int n)
{
    for (int i = 0; i < j->key_dim; i++)
        memcpy(j->matrix + (int64_t)i * j->value_dim + c, j->work + i * DELTA_V * NV,
               (size_t)n * sizeof(float));
}

static void state_delta(const struct delta_job *j, int c0, int c1)
{
    for (int c = c0; c < c1; c += DELTA_V * NV) {
        int n = c1 - c < DELTA_V * NV ? c1 - c : DELTA_V * NV;
        delta_load(j, c, n);
        for (int t = 0; t < j->seq->n_rows; t++)
            delta_row(j, t, c, n);
        if (!j->seq->is_tentative)
            delta_save(j, c, n);
    }
}

#define STATE_TABLE(label)                                      \
    {                                                           \
        .name = label, .conv = state_conv, .delta = state_delta \
    }

#endif
