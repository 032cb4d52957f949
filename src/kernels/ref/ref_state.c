/* Recurrent layers of the reference backend: a causal convolution and the gated delta rule, token by token. */
#include "kernels/ref/ref_int.h"
#include "tensor/fmath.h"

#include <math.h>
#include <string.h>

/* Column c of the input at row t of the sequence: rows before it are the state's. */
static float conv_input(const struct seq_view *s, struct tensor x, const float *state, int taps,
                        int t, int64_t c)
{
    return t >= 0 ? x.data[(s->row0 + t) * x.stride + c] : state[(taps - 1 + t) * x.cols + c];
}

/* The state becomes the last W - 1 inputs. Ascending, so that what is read was not yet written. */
static void conv_move_on(const struct seq_view *s, struct tensor x, float *state, int taps)
{
    for (int i = 0; i < taps - 1; i++)
        for (int64_t c = 0; c < x.cols; c++)
            state[i * x.cols + c] = conv_input(s, x, state, taps, s->n_rows - (taps - 1) + i, c);
}

void ref_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                   struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    size_t n_state = (size_t)(st->taps - 1) * (size_t)st->conv_cols;
    for (int i = 0; i < n_seqs; i++) {
        const struct seq_view *s = &seqs[i];
        float *state = st->conv + (size_t)s->slot * n_state;
        if (s->pos0 == 0)
            memset(state, 0, n_state * sizeof(*state));
        for (int t = 0; t < s->n_rows; t++)
            for (int64_t c = 0; c < x.cols; c++) {
                float acc = w[c] * conv_input(s, x, state, st->taps, t - st->taps + 1, c);
                for (int j = 1; j < st->taps; j++)
                    acc = fmaf(w[j * x.cols + c],
                               conv_input(s, x, state, st->taps, t - st->taps + 1 + j, c), acc);
                y.data[(s->row0 + t) * y.stride + c] = fmath_silu(acc);
            }
        if (!s->is_tentative && s->n_rows > 0)
            conv_move_on(s, x, state, st->taps);
    }
}

void ref_delta_gates(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                     const float *s)
{
    for (int64_t t = 0; t < a.rows; t++)
        for (int64_t h = 0; h < a.cols; h++) {
            float *pa = a.data + t * a.stride + h, *pb = b.data + t * b.stride + h;
            *pa = fmath_exp(s[h] * fmath_softplus(*pa + bias[h]));
            *pb = fmath_sigmoid(*pb);
        }
}

/* One row of one head. */
struct delta_row {
    const float *q, *k, *v;
    float *out;
    float decay, beta;
    int n_keys, n_values;
};

static float delta_column(const float *m, const struct delta_row *r, int j, const float *with)
{
    float even = 0, odd = 0;
    for (int i = 0; i < r->n_keys; i += 2) {
        even = fmaf(m[i * r->n_values + j], with[i], even);
        odd = fmaf(m[(i + 1) * r->n_values + j], with[i + 1], odd);
    }
    return even + odd;
}

static void delta_step(float *m, const struct delta_row *r)
{
    for (int j = 0; j < r->n_values; j++) {
        float d = fmaf(-r->decay, delta_column(m, r, j, r->k), r->v[j]) * r->beta;
        for (int i = 0; i < r->n_keys; i++) {
            float *e = &m[i * r->n_values + j];
            *e = fmaf(r->k[i], d, *e * r->decay);
        }
        r->out[j] = delta_column(m, r, j, r->q);
    }
}

void ref_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                    struct tensor v, struct tensor decay, struct tensor beta,
                    struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    float *work = ref_of(be)->matrix;
    size_t n = (size_t)st->key_dim * (size_t)st->value_dim, bytes = n * sizeof(*work);
    for (int i = 0; i < n_seqs; i++)
        for (int h = 0; h < st->n_heads; h++) {
            const struct seq_view *s = &seqs[i];
            int g = st->is_tiled ? h % st->n_key_heads : h / (st->n_heads / st->n_key_heads);
            float *m = st->matrix + ((size_t)s->slot * (size_t)st->n_heads + (size_t)h) * n;
            if (s->pos0 == 0)
                memset(work, 0, bytes);
            else
                memcpy(work, m, bytes);
            for (int64_t t = s->row0; t < s->row0 + s->n_rows; t++)
                delta_step(work, &(struct delta_row){
                                     .q = q.data + t * q.stride + (int64_t)g * st->key_dim,
                                     .k = k.data + t * k.stride + (int64_t)g * st->key_dim,
                                     .v = v.data + t * v.stride + (int64_t)h * st->value_dim,
                                     .out = out.data + t * out.stride + (int64_t)h * st->value_dim,
                                     .decay = decay.data[t * decay.stride + h],
                                     .beta = beta.data[t * beta.stride + h],
                                     .n_keys = st->key_dim,
                                     .n_values = st->value_dim });
            if (!s->is_tentative && s->n_rows > 0)
                memcpy(m, work, bytes);
        }
}

void ref_state_copy(struct backend *be, struct state_layer *st, int32_t dst, int32_t src)
{
    size_t conv = (size_t)(st->taps - 1) * (size_t)st->conv_cols;
    size_t matrix = (size_t)st->n_heads * (size_t)st->key_dim * (size_t)st->value_dim;
    memcpy(st->conv + (size_t)dst * conv, st->conv + (size_t)src * conv, conv * sizeof(float));
    memcpy(st->matrix + (size_t)dst * matrix, st->matrix + (size_t)src * matrix,
           matrix * sizeof(float));
}
