/* runner_state.c - the slots of recurrent layers: a sequence's state, snapshots of it, rows that are taken back.
 *
 * A slot holds the state behind all of the sequence's tokens. There is no way back from it, so what may be wanted again is kept
 * apart: a snapshot is another slot that stands at its exact number of tokens. A step of tentative rows does not touch the
 * slot: what the rows brought to each recurrent layer is kept, and once it is known how many stay, those are stepped again. */
#include "engine/runner_int.h"
#include "tensor/ops.h"

/* Floats of a layer's slots and kept rows. */
static size_t state_conv_floats(const struct model_state *s)
{
    return (size_t)(s->taps - 1) * (size_t)s->conv_cols;
}

static size_t state_matrix_floats(const struct model_state *s)
{
    return (size_t)s->n_heads * (size_t)s->key_dim * (size_t)s->value_dim;
}

/* Of a backend: 0 the model's, 1 its second one. */
static size_t runner_n_state_layers(const struct runner *r, int part)
{
    size_t n = 0;
    for (int64_t i = 0; i < r->model->n_layers; i++)
        n += r->model->layers[i].group == MODEL_GROUP_STATE && runner_part(r, i) == part;
    return n;
}

/* ... of the n-grams' convolution. */
static size_t state_ngram_cols(const struct model *m)
{
    return m->ngrams.n_heads ? (size_t)(m->n_streams * m->width) : 0;
}

static size_t keep_floats(const struct runner *r, int part)
{
    const struct model_state *s = &r->model->state;
    return runner_n_state_layers(r, part) * (size_t)r->keep.n_rows *
           (size_t)(s->conv_cols + 2 * s->n_heads);
}

static bool runner_alloc_keep(struct runner *r)
{
    const struct model_state *s = &r->model->state;
    r->keep.n_rows = r->keep_host.n_rows = r->max_seqs * r->max_tentative;
    size_t rows = (size_t)r->keep.n_rows, bytes[2] = { keep_floats(r, 0), keep_floats(r, 1) };
    for (int part = 0; part < 2; part++) {
        if (runner_part(r, r->model->ngrams.layer_i) == part)
            bytes[part] += rows * state_ngram_cols(r->model);
        bytes[part] *= sizeof(float);
    }
    if (rows == 0)
        return true;
    if (!runner_slab_alloc(r, &r->keep_slab, bytes))
        return false;
    for (int part = 0; part < 2; part++) {
        struct state_keep *k = part ? &r->keep_host : &r->keep;
        size_t n = runner_n_state_layers(r, part) * rows;
        k->mix = r->keep_slab.data[part];
        if (!k->mix)
            continue;
        k->decay = k->mix + n * (size_t)s->conv_cols;
        k->beta = k->decay + n * (size_t)s->n_heads;
        if (r->model->ngrams.n_heads > 0)
            k->ngram = k->mix + keep_floats(r, part);
    }
    r->keep.host = &r->keep_host;
    return true;
}

/* Where the layers' states stand in the blocks; the n-grams' behind those of the backend that has them. */
static void runner_place_states(struct runner *r, size_t n_slots)
{
    const struct model_state *s = &r->model->state;
    float *at[2] = { r->state_slab.data[0], r->state_slab.data[1] };
    for (int64_t i = 0; i < r->model->n_layers; i++) {
        float **to = &at[runner_part(r, i)];
        if (r->model->layers[i].group != MODEL_GROUP_STATE)
            continue;
        r->states[i] = (struct state_layer){ .n_slots = (int)n_slots,
                                             .taps = (int)s->taps,
                                             .conv_cols = (int)s->conv_cols,
                                             .n_heads = (int)s->n_heads,
                                             .n_key_heads = (int)s->n_key_heads,
                                             .key_dim = (int)s->key_dim,
                                             .value_dim = (int)s->value_dim,
                                             .is_tiled = s->is_tiled,
                                             .conv = *to + n_slots * state_matrix_floats(s),
                                             .matrix = *to };
        *to += n_slots * (state_conv_floats(s) + state_matrix_floats(s));
    }
    float *ngram = at[runner_part(r, r->model->ngrams.layer_i)];
    r->ngram_state = (struct state_layer){ .n_slots = (int)n_slots,
                                           .taps = (int)r->model->ngrams.taps,
                                           .conv_cols = (int)state_ngram_cols(r->model),
                                           .conv = ngram,
                                           .matrix = ngram }; /* of no numbers */
}

enum err_code runner_state_alloc(struct runner *r, struct err *err)
{
    const struct model_state *s = &r->model->state;
    if (!runner_has_state(r))
        return ERR_OK;
    size_t n_slots = (size_t)r->pools[MODEL_GROUP_STATE].n_pages, bytes[2];
    size_t one = state_conv_floats(s) + state_matrix_floats(s);
    size_t ngram = n_slots * (size_t)(r->model->ngrams.taps - 1) * state_ngram_cols(r->model);
    for (int part = 0; part < 2; part++)
        bytes[part] =
            sizeof(float) * (runner_n_state_layers(r, part) * n_slots * one +
                             (runner_part(r, r->model->ngrams.layer_i) == part ? ngram : 0));
    r->n_snapshots = (int32_t)n_slots;
    r->snapshots = mem_try_array(MEM_CAT_KV, n_slots, sizeof(*r->snapshots));
    r->states = mem_try_array(MEM_CAT_KV, (size_t)r->model->n_layers, sizeof(*r->states));
    r->keep_rows = mem_try_array(MEM_CAT_KV, (size_t)r->max_rows, sizeof(*r->keep_rows));
    bool is_there = runner_slab_alloc(r, &r->state_slab, bytes);
    if (!r->snapshots || !r->states || !r->keep_rows || !is_there || !runner_alloc_keep(r))
        return err_set(err, ERR_NOMEM, "states of recurrent layers: no memory for %zu MiB",
                       (bytes[0] + bytes[1]) >> 20);
    runner_place_states(r, n_slots);
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i < r->n_snapshots && !code; i++)
        code = kv_table_init(&r->snapshots[i].table, 1, err);
    return code;
}

void runner_state_free(struct runner *r)
{
    for (int32_t i = 0; r->snapshots && i < r->n_snapshots; i++) {
        kv_table_reset(&r->pools[MODEL_GROUP_STATE], &r->snapshots[i].table);
        kv_table_release(&r->snapshots[i].table);
    }
    mem_free(MEM_CAT_KV, r->snapshots);
    mem_free(MEM_CAT_KV, r->states);
    mem_free(MEM_CAT_KV, r->keep_rows);
    runner_slab_free(r, &r->state_slab);
    runner_slab_free(r, &r->keep_slab);
    r->snapshots = NULL;
    r->n_snapshots = 0;
    r->states = NULL;
    r->keep_rows = NULL;
    r->keep = r->keep_host = (struct state_keep){ 0 };
}

void runner_copy_slot(struct runner *r, int32_t dst, int32_t src)
{
    for (int64_t i = 0; i < r->model->n_layers; i++)
        if (r->model->layers[i].group == MODEL_GROUP_STATE)
            ops_state_copy(runner_be(r, i), &r->states[i], dst, src);
    if (r->model->ngrams.n_heads > 0)
        ops_state_copy(runner_be(r, r->model->ngrams.layer_i), &r->ngram_state, dst, src);
}

/* --- snapshots --- */

static bool snapshot_is_held(const struct runner_snapshot *s)
{
    return s->table.n > 0;
}

static void snapshot_drop(struct runner *r, struct runner_snapshot *s)
{
    kv_table_reset(&r->pools[MODEL_GROUP_STATE], &s->table);
}

void runner_drop_snapshots(struct runner *r, int32_t seq, int32_t n_tokens)
{
    for (int32_t i = 0; i < r->n_snapshots; i++) {
        struct runner_snapshot *s = &r->snapshots[i];
        if (snapshot_is_held(s) && s->seq == seq && s->len > n_tokens)
            snapshot_drop(r, s);
    }
}

bool runner_free_slots(struct runner *r, int32_t n, const struct runner_snapshot *but)
{
    while (runner_unpromised(r, MODEL_GROUP_STATE) < n) {
        struct runner_snapshot *oldest = NULL;
        for (int32_t i = 0; i < r->n_snapshots; i++) {
            struct runner_snapshot *s = &r->snapshots[i];
            if (snapshot_is_held(s) && s != but && (!oldest || s->age < oldest->age))
                oldest = s;
        }
        if (!oldest)
            return false;
        snapshot_drop(r, oldest);
    }
    return true;
}

static const struct runner_snapshot *snapshot_at(const struct runner *r, int32_t seq,
                                                 int32_t n_tokens)
{
    for (int32_t i = 0; i < r->n_snapshots; i++) {
        const struct runner_snapshot *s = &r->snapshots[i];
        if (snapshot_is_held(s) && s->seq == seq && s->len == n_tokens)
            return s;
    }
    return NULL;
}

void runner_spare_slot(struct runner *r, int32_t seq, int32_t n_tokens)
{
    (void)runner_free_slots(r, 1, snapshot_at(r, seq, n_tokens));
}

bool runner_snapshot(struct runner *r, int32_t seq)
{
    struct runner_seq *s = &r->seqs[seq];
    BUG_ON(!s->is_open);
    if (!runner_has_state(r) || s->len == 0)
        return true;
    runner_settle(r, seq, s->len);
    if (snapshot_at(r, seq, s->len))
        return true;
    if (!runner_free_slots(r, 1, NULL))
        return false;
    struct runner_snapshot *to = r->snapshots;
    while (snapshot_is_held(to))
        to++; /* there are as many as slots */
    enum err_code code = kv_table_reserve(&r->pools[MODEL_GROUP_STATE], &to->table, 1, NULL);
    if (!code)
        code = kv_table_extend(&r->pools[MODEL_GROUP_STATE], &to->table, 1, NULL);
    BUG_ON(code != ERR_OK); /* a slot is free */
    to->seq = seq;
    to->len = s->len;
    to->age = r->next_age++;
    runner_copy_slot(r, to->table.pages[0], runner_slot(s));
    return true;
}

int32_t runner_slot_at(const struct runner *r, int32_t seq, int32_t n_tokens)
{
    const struct runner_seq *s = &r->seqs[seq];
    if (s->len == n_tokens && n_tokens > 0 && s->n_tentative == 0)
        return runner_slot(s);
    const struct runner_snapshot *snap = snapshot_at(r, seq, n_tokens);
    return snap ? snap->table.pages[0] : -1;
}

int32_t runner_state_below(const struct runner *r, int32_t seq, int32_t n_tokens)
{
    const struct runner_seq *s = &r->seqs[seq];
    int32_t best = s->len <= n_tokens && s->n_tentative == 0 ? s->len : 0;
    for (int32_t i = 0; i < r->n_snapshots; i++) {
        const struct runner_snapshot *snap = &r->snapshots[i];
        if (snapshot_is_held(snap) && snap->seq == seq && snap->len <= n_tokens && snap->len > best)
            best = snap->len;
    }
    return best;
}

/* --- tentative rows --- */

void runner_settle(struct runner *r, int32_t seq, int32_t n_tokens)
{
    struct runner_seq *s = &r->seqs[seq];
    if (s->n_tentative == 0)
        return;
    int32_t before = s->len - s->n_tentative, n = n_tokens - before;
    BUG_ON(n < 0 || n > s->n_tentative);
    s->n_tentative = 0;
    if (n == 0)
        return;
    struct model_step st = { .n_rows = n,
                             .state = r->states,
                             .ngram_state = &r->ngram_state,
                             .keep = &r->keep,
                             .scratch = &r->scratch };
    struct seq_view view = {
        .row0 = seq * r->max_tentative, .n_rows = n, .pos0 = before, .slot = runner_slot(s)
    };
    model_state_replay(r->model, &st, &view, 1);
}

/* --- invariants --- */

enum err_code runner_state_check(const struct runner *r, struct err *err)
{
    if (!runner_has_state(r))
        return ERR_OK;
    for (int32_t i = 0; i < r->max_seqs; i++) {
        const struct runner_seq *s = &r->seqs[i];
        if (s->is_open && s->len > 0 && s->tables[MODEL_GROUP_STATE].n != 1)
            return err_set(err, ERR_STATE, "sequence %d: %d tokens and %d slots", i, s->len,
                           s->tables[MODEL_GROUP_STATE].n);
        if (s->n_tentative < 0 || s->n_tentative > s->len || s->n_tentative > r->max_tentative)
            return err_set(err, ERR_STATE, "sequence %d: %d tentative rows of %d tokens", i,
                           s->n_tentative, s->len);
    }
    for (int32_t i = 0; i < r->n_snapshots; i++) {
        const struct runner_snapshot *s = &r->snapshots[i];
        if (snapshot_is_held(s) &&
            (!r->seqs[s->seq].is_open || s->len < 1 || s->len > r->seqs[s->seq].len))
            return err_set(err, ERR_STATE, "snapshot of sequence %d at %d, which has %d tokens",
                           s->seq, s->len, r->seqs[s->seq].len);
    }
    return ERR_OK;
}
