/* block_streams.c - S residual streams side by side in the place of one, with hyper-connections (Zhu et al. 2024, as Qwen4-Exp has them)
 * in the place of the branches' norms:
 *
 *   n = norm(x), each stream by itself       g = sigmoid(W_up silu(W_down n / S))
 *   h = mean over the streams of g n         x_s += branch(h) * 2 sigmoid(W_inject n / S)_s */
#include "model/model_int.h"
#include "tensor/ops.h"

void block_embed_streams(const struct model *m, struct model_step *st)
{
    st->x = tensor_of(st->scratch->x, st->n_rows, m->n_streams * m->width);
    st->h = tensor_of(st->scratch->h, st->n_rows, m->width);
    if (st->first > 0) /* x is there */
        return;
    ops_embed(m->be, st->h, m->embed, st->ids);
    for (int64_t s = 0; s < m->n_streams; s++)
        ops_copy(m->be, tensor_cols(st->x, s * m->width, m->width), st->h);
}

void block_stream_norm(const struct model *m, struct tensor y, struct tensor x, const float *w)
{
    for (int64_t s = 0; s < m->n_streams; s++)
        ops_rms_norm(m->be, tensor_cols(y, s * m->width, m->width),
                     tensor_cols(x, s * m->width, m->width), w + s * m->width, (int)m->width,
                     m->eps);
}

void block_mix(const struct model *m, struct model_step *st, const struct model_mix *mix)
{
    struct model_scratch *sc = st->scratch;
    int64_t rows = st->x.rows;
    float one = 1 / (float)m->n_streams;
    struct tensor norm = tensor_of(sc->mixed, rows, st->x.cols);
    struct tensor gate = tensor_of(sc->mix_gate, rows, st->x.cols);
    struct tensor low = tensor_of(sc->mix_low, rows, m->mix_rank);
    block_stream_norm(m, norm, st->x, mix->norm);
    ops_linear(m->be, low, norm, mix->down);
    ops_scale(m->be, low, one);
    ops_act(m->be, low, GLU_KIND_SILU);
    ops_linear(m->be, gate, low, mix->up);
    ops_glu(m->be, gate, gate, norm, GLU_KIND_SIGMOID);
    st->h = tensor_of(sc->h, rows, m->width);
    ops_copy(m->be, st->h, tensor_cols(gate, 0, m->width));
    for (int64_t s = 1; s < m->n_streams; s++)
        ops_add(m->be, st->h, tensor_cols(gate, s * m->width, m->width));
    ops_scale(m->be, st->h, one);
    if (!mix->inject)
        return;
    st->inject = tensor_of(sc->inject, rows, m->n_streams);
    ops_linear(m->be, st->inject, norm, mix->inject);
    ops_scale(m->be, st->inject, one);
}

void block_inject(const struct model *m, struct model_step *st)
{
    struct tensor part = tensor_of(st->scratch->mixed, st->x.rows, m->width);
    if (st->inject.rows > st->x.rows) { /* the branch left the rows out that need no logits */
        struct tensor out = tensor_of(st->scratch->inject_out, st->x.rows, m->n_streams);
        ops_gather(m->be, out, st->inject, st->out_rows);
        st->inject = out;
    }
    for (int64_t s = 0; s < m->n_streams; s++) {
        ops_copy(m->be, part, st->h);
        ops_gate_rows(m->be, part, tensor_cols(st->inject, s, 1));
        ops_scale(m->be, part, 2);
        ops_add(m->be, tensor_cols(st->x, s * m->width, m->width), part);
    }
}

enum err_code model_parse_streams(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    enum err_code code =
        weights_int(w, model_key(m, "hyper_connection.count", key), 2, 16, &m->n_streams, err);
    return code ? code
                : weights_int(w, model_key(m, "hyper_connection.low_rank", key), 1, 1 << 16,
                              &m->mix_rank, err);
}
