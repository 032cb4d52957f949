/* block_ngrams.c - hashed embeddings of the n-grams that end at each token (Qwen4-Exp), added to the residual streams of one layer:
 *
 *   e = the table's rows hash(n-gram), for each length from 2 on and each of its heads      v = W_v e
 *   gate_s = sigmoid(r(norm(W_k e)_s . norm(x)_s / sqrt(D)))       u_s = gate_s v       x += u + silu(conv(norm(u)))
 *
 * with r the signed root. What an n-gram is made of is read from the sequence's ids, so that it depends on nothing else; n-grams begin
 * behind the last end token in front of them. The convolution is dilated: its taps are as far apart as an n-gram is long. */
#include "model/model_int.h"
#include "tensor/ops.h"

#include <math.h>
#include <stdio.h>

/* Id `back` places in front of row j of the sequence; the end token before its beginning. */
static int32_t ngram_id(const struct model *m, const struct model_step *st,
                        const struct seq_view *s, const int32_t *before, int j, int back)
{
    if (j >= back)
        return st->ids[s->row0 + j - back];
    return s->pos0 + j >= back ? before[j - back] : m->ngrams.end_id;
}

/* The table's rows of the n-grams that end at row j: rows [n_heads]. */
static void ngram_hash(const struct model *m, const struct model_step *st, const struct seq_view *s,
                       const int32_t *before, int j, int32_t *rows)
{
    const struct model_ngrams *g = &m->ngrams;
    uint64_t mixed = (uint64_t)st->ids[s->row0 + j] * g->factors[0];
    bool is_cut = false;
    for (int back = 1, head = 0; back < g->size; back++) {
        int32_t id = ngram_id(m, st, s, before, j, back);
        is_cut = is_cut || id == g->end_id;
        mixed ^= (uint64_t)(is_cut ? g->end_id : id) * g->factors[back];
        for (int k = 0; k < g->per_size; k++, head++)
            rows[head] = (int32_t)(mixed % (uint64_t)g->rows[head] + (uint64_t)g->firsts[head]);
    }
}

/* e [T][E] */
static void ngram_embed(const struct model *m, struct model_step *st, struct tensor e)
{
    const struct model_ngrams *g = &m->ngrams;
    const struct seq_view *seqs = st->seqs[MODEL_GROUP_STATE];
    int32_t *rows = st->scratch->ngram_rows;
    for (int i = 0; i < st->n_seqs; i++)
        for (int j = 0; j < seqs[i].n_rows; j++) {
            struct tensor y = tensor_of(e.data + (seqs[i].row0 + j) * e.stride, g->n_heads, g->dim);
            ngram_hash(m, st, &seqs[i], st->ids_before[i], j, rows);
            if (g->n_parts == 1) {
                ops_embed(m->be, y, m->ngram_table[0], rows);
                continue;
            }
            for (int head = 0; head < g->n_heads; head++) {
                int32_t row = (int32_t)(rows[head] % g->part_rows);
                ops_embed(m->be, tensor_rows(y, head, 1), m->ngram_table[rows[head] / g->part_rows],
                          &row);
            }
        }
}

/* Keep what the tentative rows brought to the convolution. */
static void ngram_keep(const struct model *m, struct model_step *st, struct tensor in)
{
    const struct seq_view *seqs = st->seqs[MODEL_GROUP_STATE];
    struct tensor kept = tensor_of(st->keep->ngram, st->keep->n_rows, in.cols);
    for (int i = 0; i < st->n_seqs; i++)
        for (int32_t t = seqs[i].row0; seqs[i].is_tentative && t < seqs[i].row0 + seqs[i].n_rows;
             t++)
            ops_gather(m->be, tensor_rows(kept, st->keep_rows[t], 1), in, &t);
}

void block_ngrams(const struct model *m, struct model_step *st, const struct model_layer *l)
{
    struct model_scratch *sc = st->scratch;
    int64_t rows = st->n_rows, wide = st->x.cols;
    struct tensor e = tensor_of(sc->ngram, rows, m->ngrams.n_heads * m->ngrams.dim);
    struct tensor key = tensor_of(sc->mix_gate, rows, wide);
    struct tensor query = tensor_of(sc->mixed, rows, wide);
    struct tensor conv = tensor_of(sc->mix_conv, rows, wide);
    struct tensor gate = tensor_of(sc->inject, rows, m->n_streams);
    struct tensor value = tensor_of(sc->h, rows, m->width), all = key;
    ngram_embed(m, st, e);
    ops_linear_many(m->be, 2, (const struct tensor[]){ key, value }, e,
                    (const struct weight *const[]){ l->w_ngram_key, l->w_ngram_value });
    block_stream_norm(m, key, key, l->ngram_key_norm);
    block_stream_norm(m, query, st->x, l->ngram_query_norm);
    ops_root_dots(m->be, gate, key, query, 1 / sqrtf((float)m->width));
    for (int64_t s = 0; s < m->n_streams; s++) {
        struct tensor one = tensor_cols(all, s * m->width, m->width);
        ops_copy(m->be, one, value);
        ops_gate_rows(m->be, one, tensor_cols(gate, s, 1));
    }
    struct tensor in = query;
    block_stream_norm(m, in, all, l->ngram_conv_norm);
    if (st->keep)
        ngram_keep(m, st, in);
    ops_conv_silu(m->be, conv, in, l->ngram_conv_w, st->ngram_state, st->seqs[MODEL_GROUP_STATE],
                  st->n_seqs);
    ops_add(m->be, all, conv);
    ops_add(m->be, st->x, all);
}

void block_ngrams_replay(const struct model *m, struct model_step *st, const struct seq_view *seq)
{
    int64_t wide = m->n_streams * m->width;
    struct tensor kept = tensor_of(st->keep->ngram, st->keep->n_rows, wide);
    struct seq_view view = *seq;
    view.row0 = 0;
    ops_conv_silu(m->be, tensor_of(st->scratch->mix_conv, seq->n_rows, wide),
                  tensor_rows(kept, seq->row0, seq->n_rows),
                  m->layers[m->ngrams.layer_i].ngram_conv_w, st->ngram_state, &view, 1);
}

/* --- metadata --- */

/* The key's first n numbers, each in [least, INT64_MAX]. */
static enum err_code ngram_list(const struct weights *w, const struct model *m, const char *name,
                                int n, int64_t least, int64_t *out, struct err *err)
{
    char key[128];
    enum err_code code = ERR_OK;
    model_key(m, name, key);
    if (!weights_meta(w, key))
        return err_set(err, ERR_INVALID, "%s: missing", key);
    for (int i = 0; i < n && !code; i++) {
        code = weights_array_int(w, key, (uint64_t)i, &out[i], err);
        if (!code && out[i] < least)
            code = err_set(err, ERR_INVALID, "%s: %lld is under %lld", key, (long long)out[i],
                           (long long)least);
    }
    return code;
}

/* The table: one matrix, or parts. */
static enum err_code ngram_table(const struct weights *w, struct model_ngrams *g, struct err *err)
{
    char name[64] = "per_layer_token_embd.weight";
    const struct weights_tensor *t = weights_find(w, name);
    int64_t most = 0;
    for (int i = 0; i < g->n_heads; i++) {
        int64_t end = g->rows[i] > INT32_MAX || g->firsts[i] > INT32_MAX
                          ? INT64_MAX
                          : g->firsts[i] + g->rows[i];
        most = end > most ? end : most;
    }
    g->n_parts = t ? 1 : 0;
    if (!t) {
        do
            snprintf(name, sizeof(name), "per_layer_token_embd.%lld.weight", (long long)g->n_parts);
        while (weights_find(w, name) && ++g->n_parts < 1 << 16);
        t = weights_find(w, "per_layer_token_embd.0.weight");
    }
    if (!t)
        return err_set(err, ERR_INVALID, "tensor per_layer_token_embd.weight: missing");
    g->part_rows = t->shape[1];
    g->dim = t->shape[0];
    if (most > INT32_MAX || g->part_rows * g->n_parts < most)
        return err_set(err, ERR_INVALID,
                       "tensor %s: %lld rows in all; the hashes reach %lld, at most %d", t->name,
                       (long long)(g->part_rows * g->n_parts), (long long)most, INT32_MAX);
    return ERR_OK;
}

enum err_code model_parse_ngrams(const struct weights *w, struct model *m, struct err *err)
{
    struct model_ngrams *g = &m->ngrams;
    int64_t size = 0, per = 0, kernel = 0, end = 0, factors[MODEL_NGRAM_MAX];
    char key[128];
    const struct meta_value *layers = weights_meta(w, model_key(m, "ple.layers", key));
    if (!layers || layers->type != META_TYPE_ARRAY || layers->array.n == 0)
        return ERR_OK;
    if (layers->array.n > 1)
        return err_set(err, ERR_UNSUPPORTED, "%s: %d layers with n-grams, one is supported", key,
                       (int)layers->array.n);
    enum err_code code = weights_array_int(w, key, 0, &g->layer_i, err);
    if (!code)
        code = weights_int(w, model_key(m, "ple.ngram_size", key), 2, MODEL_NGRAM_MAX, &size, err);
    if (!code)
        code = weights_int(w, model_key(m, "ple.heads_per_ngram", key), 1,
                           MODEL_NGRAM_HEADS_MAX / (size - 1), &per, err);
    if (!code)
        code = weights_int(w, model_key(m, "ple.conv_kernel", key), 2,
                           (BACKEND_STATE_TAPS_MAX - 1) / size + 1, &kernel, err);
    if (!code)
        code = weights_int(w, model_key(m, "ple.eos_token_id", key), 0, INT32_MAX, &end, err);
    if (code)
        return code;
    if (g->layer_i < 0 || g->layer_i >= m->n_layers ||
        m->layers[g->layer_i].group != MODEL_GROUP_STATE)
        return err_set(err, ERR_INVALID, "%s.ple.layers: %lld is no recurrent layer", m->arch,
                       (long long)g->layer_i);
    g->size = (int)size;
    g->per_size = (int)per;
    g->n_heads = (g->size - 1) * g->per_size;
    g->taps = (kernel - 1) * size + 1;
    g->end_id = (int32_t)end;
    code = ngram_list(w, m, "ple.layer_multipliers", g->size, 0, factors, err);
    for (int i = 0; i < g->size && !code; i++)
        g->factors[i] = (uint64_t)factors[i];
    if (!code)
        code = ngram_list(w, m, "ple.head_offsets", g->n_heads, 0, g->firsts, err);
    if (!code)
        code = ngram_list(w, m, "ple.head_vocab_sizes", g->n_heads, 1, g->rows, err);
    return code ? code : ngram_table(w, g, err);
}
