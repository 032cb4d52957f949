#include "base/clock.h"
#include "engine/runner_int.h"
#include "tensor/index.h"
#include "tensor/ops.h"

#include <math.h>
#include <string.h>

#define RUNNER_TIMED_ROWS 16 /* steps of fewer tokens say little about what a prompt's cost */

static const char *const group_names[MODEL_GROUP_COUNT] = { "full", "window", "state" };
static const char *const group_texts[MODEL_GROUP_COUNT] = { "full attention", "window attention",
                                                            "states" };

/* Pages of a group that a sequence of n_tokens holds at most: a window's sequence keeps the window, and the rows of the step that
 * moves it on. */
static int32_t runner_pages(const struct runner *r, int group, int32_t n_tokens)
{
    if (!r->has_group[group])
        return 0;
    if (group == MODEL_GROUP_STATE)
        return n_tokens > 0;
    if (group == MODEL_GROUP_WINDOW) {
        int64_t held = (int64_t)r->model->window + r->max_rows + KV_PAGE_TOKENS;
        if (held < n_tokens)
            n_tokens = (int32_t)held;
    }
    return kv_pages_for(n_tokens);
}

static int64_t runner_seq_bytes(const struct runner *r, int64_t n_tokens)
{
    int64_t bytes = 0;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        bytes += (int64_t)runner_pages(r, g, (int32_t)n_tokens) * (int64_t)r->page_bytes[g];
    return bytes;
}

/* --- sizes --- */

static struct backend *slab_be(const struct runner *r, int part)
{
    return part ? r->model->host : r->model->be;
}

bool runner_slab_alloc(struct runner *r, struct runner_slab *s, const size_t bytes[2])
{
    bool is_ok = true;
    for (int part = 0; part < 2; part++) {
        struct backend *be = slab_be(r, part);
        if (bytes[part] == 0)
            continue;
        s->bytes[part] = bytes[part];
        s->data[part] = be->ops->alloc(be, MEM_CAT_KV, bytes[part]);
        is_ok = is_ok && s->data[part];
    }
    return is_ok;
}

void runner_slab_free(struct runner *r, struct runner_slab *s)
{
    for (int part = 0; part < 2; part++) {
        struct backend *be = slab_be(r, part);
        if (s->data[part])
            be->ops->free(be, MEM_CAT_KV, s->data[part], s->bytes[part]);
    }
    *s = (struct runner_slab){ 0 };
}

size_t runner_layer_page(const struct runner *r, int64_t i)
{
    struct backend *be = runner_be(r, i);
    const struct model_layer *l = &r->model->layers[i];
    return l->group == MODEL_GROUP_STATE || l->kv_from != i
               ? 0
               : be->ops->kv_page_bytes(be, r->cache_type, l->n_kv_heads, l->head_dim);
}

size_t runner_index_page(const struct runner *r, int64_t i)
{
    const struct model *m = r->model;
    struct index_layer ix = { .dim = (int)m->index_dim, .ratio = (int)m->index_ratio };
    return m->pick.n_heads > 0 && m->layers[i].group == MODEL_GROUP_FULL
               ? index_page_floats(&ix) * sizeof(float)
               : 0;
}

static void runner_size_pages(struct runner *r)
{
    const struct model *m = r->model;
    for (int64_t i = 0; i < m->n_layers; i++)
        r->page_bytes[m->layers[i].group] += runner_layer_page(r, i) + runner_index_page(r, i);
    r->page_bytes[MODEL_GROUP_STATE] = model_state_bytes(m);
}

/* Pages of a group that fit into what is left of the cache memory, where other groups need some of it too. */
static int64_t runner_fits(const struct runner *r, int group, int64_t kv_bytes, int64_t per_seq)
{
    bool has_full = r->page_bytes[MODEL_GROUP_FULL] > 0;
    if (r->page_bytes[group] == 0) /* no layer has it: the pages are notes for the tree alone */
        return 2 * per_seq * r->max_seqs;
    int64_t fits = kv_bytes / (int64_t)r->page_bytes[group];
    if (group == MODEL_GROUP_FULL || (group == MODEL_GROUP_WINDOW && !has_full))
        return fits;
    /* As many sequences' windows or states as leave each of them as much again for the full layers, at least one. */
    int64_t half = kv_bytes / 2 / (int64_t)r->page_bytes[group];
    return half > per_seq ? half : per_seq;
}

void runner_copy_page(struct runner *r, int64_t l, int32_t dst, int32_t src)
{
    int64_t n = (int64_t)(runner_index_page(r, l) / sizeof(float));
    ops_kv_copy_page(runner_be(r, l), &r->layers[l], dst, src);
    if (n > 0)
        ops_copy(runner_be(r, l), tensor_of(r->index[l].data + dst * n, 1, n),
                 tensor_of(r->index[l].data + src * n, 1, n));
}

/* The slabs of the layers' indexes. */
static enum err_code runner_alloc_index(struct runner *r, struct err *err)
{
    const struct model *m = r->model;
    size_t n_pages = (size_t)r->pools[MODEL_GROUP_FULL].n_pages;
    size_t words = (size_t)kv_pages_for(r->n_ctx);
    if (m->pick.n_heads == 0)
        return ERR_OK;
    size_t bytes[2] = { 0 };
    for (int64_t i = 0; i < m->n_layers; i++)
        bytes[runner_part(r, i)] += runner_index_page(r, i) * n_pages;
    r->index = mem_try_array(MEM_CAT_KV, (size_t)m->n_layers, sizeof(*r->index));
    bool is_there = runner_slab_alloc(r, &r->index_slab, bytes);
    r->picked = mem_try_array(MEM_CAT_SCRATCH, (size_t)r->max_rows * words, sizeof(*r->picked));
    r->pick_scores = mem_try_array(MEM_CAT_SCRATCH, (size_t)r->n_ctx, sizeof(*r->pick_scores));
    if (!r->index || !is_there || !r->picked || !r->pick_scores)
        return err_set(err, ERR_NOMEM, "indexes of sparse attention: no memory for %zu MiB",
                       (bytes[0] + bytes[1]) >> 20);
    float *at[2] = { r->index_slab.data[0], r->index_slab.data[1] };
    for (int64_t i = 0; i < m->n_layers; i++) {
        size_t n = runner_index_page(r, i) / sizeof(float) * n_pages;
        r->index[i] = (struct index_layer){ .dim = (int)m->index_dim,
                                            .ratio = (int)m->index_ratio,
                                            .data = at[runner_part(r, i)] };
        if (n > 0)
            at[runner_part(r, i)] += n;
    }
    return ERR_OK;
}

static void runner_free_index(struct runner *r)
{
    runner_slab_free(r, &r->index_slab);
    mem_free(MEM_CAT_KV, r->index);
    mem_free(MEM_CAT_SCRATCH, r->picked);
    mem_free(MEM_CAT_SCRATCH, r->pick_scores);
    r->index = NULL;
    r->picked = NULL;
    r->pick_scores = NULL;
}

/* The longest sequence and the pages of each group. Windows are bounded by the sequences, states by them and a snapshot for each; the
 * rest is for full layers. */
static enum err_code runner_size(struct runner *r, const struct runner_options *o, struct err *err)
{
    const struct model *m = r->model;
    int64_t kv_bytes = o->kv_bytes > 0 ? o->kv_bytes : RUNNER_KV_DEFAULT;
    int64_t n_ctx = o->n_ctx > 0 ? o->n_ctx : m->n_ctx_train;
    if (m->is_two_way && n_ctx > r->max_rows)
        n_ctx = r->max_rows; /* a text is one step */
    if (m->pos_embed && n_ctx > m->n_ctx_train)
        n_ctx = m->n_ctx_train; /* there are no positions behind */
    if (n_ctx > INT32_MAX / 2)
        n_ctx = INT32_MAX / 2;
    if (o->n_ctx <= 0)
        while (n_ctx > KV_PAGE_TOKENS && runner_seq_bytes(r, n_ctx) > kv_bytes / 2)
            n_ctx = n_ctx > 2 * KV_PAGE_TOKENS ? n_ctx * 7 / 8 / KV_PAGE_TOKENS * KV_PAGE_TOKENS
                                               : KV_PAGE_TOKENS;
    r->n_ctx = (int32_t)n_ctx;
    int64_t need = runner_seq_bytes(r, n_ctx);
    if (need > kv_bytes)
        return err_set(err, ERR_INVALID,
                       "context of %lld tokens needs %lld MiB of cache, %lld MiB are allowed: ask "
                       "for a smaller --ctx or a larger --kv-memory",
                       (long long)n_ctx, (long long)(need >> 20), (long long)(kv_bytes >> 20));
    int64_t seqs = r->max_seqs;
    for (int g = MODEL_GROUP_COUNT - 1; g >= 0; g--) { /* states and windows first */
        if (!r->has_group[g])
            continue;
        int64_t per_seq = runner_pages(r, g, r->n_ctx);
        int64_t n = per_seq * seqs * (g == MODEL_GROUP_STATE || r->page_bytes[g] == 0 ? 2 : 1);
        int64_t fits = runner_fits(r, g, kv_bytes, per_seq);
        n = n < fits ? n : fits;
        if (n < per_seq)
            return err_set(err, ERR_INVALID,
                           "%lld MiB of cache do not hold one sequence of %d tokens",
                           (long long)((o->kv_bytes) >> 20), r->n_ctx);
        enum err_code code = kv_pool_init(&r->pools[g], (int32_t)n, err);
        if (code)
            return code;
        kv_bytes -= n * (int64_t)r->page_bytes[g];
    }
    return ERR_OK;
}

/* What does not fit, with what is there. */
static enum err_code runner_no_memory(const struct runner *r, const char *what,
                                      const size_t bytes[2], struct err *err)
{
    const struct backend *be = r->model->be;
    if (!be->ops->free_bytes || r->slab.data[0]) /* it is the host's that is short */
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu MiB", what,
                       bytes[be->ops->free_bytes ? 1 : 0] >> 20);
    return err_set(
        err, ERR_NOMEM,
        "%s: %zu MiB are needed in the GPU's memory, %lld MiB are free: ask for a smaller "
        "--ctx or --kv-memory, or fewer --gpu-layers",
        what, bytes[0] >> 20, (long long)(be->ops->free_bytes(be) >> 20));
}

/* The layers' slabs stand one after the other in one block: thirty of them rounded to huge pages each would take half as much again
 * of a small cache. */
static enum err_code runner_alloc_layers(struct runner *r, struct err *err)
{
    const struct model *m = r->model;
    r->layers = mem_alloc(MEM_CAT_KV, (size_t)m->n_layers * sizeof(*r->layers));
    size_t bytes[2] = { 0 };
    for (int64_t i = 0; i < m->n_layers; i++)
        bytes[runner_part(r, i)] +=
            runner_layer_page(r, i) * (size_t)r->pools[m->layers[i].group].n_pages;
    if (!runner_slab_alloc(r, &r->slab, bytes))
        return runner_no_memory(r, "cache", bytes, err);
    uint8_t *at[2] = { r->slab.data[0], r->slab.data[1] };
    for (int64_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        int32_t n_pages = r->pools[l->group].n_pages;
        r->layers[i] = (struct kv_layer){ .type = r->cache_type,
                                          .n_kv_heads = l->n_kv_heads,
                                          .head_dim = l->head_dim,
                                          .n_pages = n_pages,
                                          .data = at[runner_part(r, i)] };
        if (runner_layer_page(r, i) > 0)
            at[runner_part(r, i)] += runner_layer_page(r, i) * (size_t)n_pages;
    }
    return ERR_OK;
}

static enum err_code runner_alloc_seqs(struct runner *r, struct err *err)
{
    r->seqs = mem_alloc(MEM_CAT_KV, (size_t)r->max_seqs * sizeof(*r->seqs));
    for (int32_t i = 0; i < r->max_seqs; i++)
        for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
            int32_t cap = kv_pages_for(runner_span(g, r->n_ctx));
            enum err_code code = kv_table_init(&r->seqs[i].tables[g], cap, err);
            if (code)
                return code;
        }
    return ERR_OK;
}

static size_t runner_logits_bytes(const struct runner *r)
{
    return (size_t)r->max_out * (size_t)r->model->n_vocab * sizeof(*r->logits);
}

static size_t runner_hidden_bytes(const struct runner *r)
{
    return (size_t)r->max_out * (size_t)r->model->n_embd * sizeof(*r->hidden);
}

static enum err_code runner_alloc_step(struct runner *r, struct err *err)
{
    size_t rows = (size_t)r->max_rows, outs = (size_t)r->max_out;
    r->ids = mem_try_array(MEM_CAT_SCRATCH, rows, sizeof(*r->ids));
    r->pos = mem_try_array(MEM_CAT_SCRATCH, rows, sizeof(*r->pos));
    r->failed = mem_try_array(MEM_CAT_SCRATCH, rows, 1);
    r->out_rows = mem_try_array(MEM_CAT_SCRATCH, outs, sizeof(*r->out_rows));
    r->best = mem_try_array(MEM_CAT_SCRATCH, outs, sizeof(*r->best));
    bool is_ok = r->ids && r->pos && r->failed && r->out_rows && r->best && runner_lists_alloc(r);
    if (r->model->ngrams.n_heads > 0) {
        r->history = mem_try_array(MEM_CAT_SCRATCH, (size_t)r->max_seqs * (size_t)r->n_ctx,
                                   sizeof(*r->history));
        r->ids_before = mem_try_array(MEM_CAT_SCRATCH, (size_t)r->max_seqs, sizeof(*r->ids_before));
        is_ok = is_ok && r->history && r->ids_before;
    }
    if (!r->model->be->ops->is_host) {
        r->logits = runner_host_take(r, runner_logits_bytes(r));
        r->hidden = runner_host_take(r, runner_hidden_bytes(r));
        is_ok = is_ok && r->logits && r->hidden;
    }
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        r->views[g] = mem_try_array(MEM_CAT_SCRATCH, (size_t)r->max_seqs, sizeof(**r->views));
        is_ok = is_ok && r->views[g];
    }
    if (!is_ok)
        return err_set(err, ERR_NOMEM, "step buffers: no memory for %d tokens", r->max_rows);
    enum err_code code = model_scratch_init(&r->scratch, r->model, r->max_rows, r->max_out, err);
    if (!code && r->model->be->ops->is_host) {
        r->logits = r->scratch.logits;
        r->hidden = r->scratch.h;
    }
    return code;
}

static void runner_free_step(struct runner *r)
{
    bool is_host = r->model->be->ops->is_host;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        mem_free(MEM_CAT_SCRATCH, r->views[g]);
        r->views[g] = NULL;
    }
    model_scratch_release(&r->scratch);
    mem_free(MEM_CAT_SCRATCH, r->ids);
    mem_free(MEM_CAT_SCRATCH, r->history);
    mem_free(MEM_CAT_SCRATCH, r->ids_before);
    mem_free(MEM_CAT_SCRATCH, r->pos);
    mem_free(MEM_CAT_SCRATCH, r->failed);
    mem_free(MEM_CAT_SCRATCH, r->out_rows);
    mem_free(MEM_CAT_SCRATCH, r->best);
    runner_lists_free(r);
    if (!is_host) {
        runner_host_give(r, r->logits, runner_logits_bytes(r));
        runner_host_give(r, r->hidden, runner_hidden_bytes(r));
    }
    r->ids = r->pos = r->history = r->out_rows = r->best = NULL;
    r->ids_before = NULL;
    r->failed = NULL;
    r->logits = r->hidden = NULL;
}

enum err_code runner_new(const struct runner_options *o, struct runner **out, struct err *err)
{
    BUG_ON(o->max_seqs < 1 || o->max_rows < 1 || o->max_rows > BACKEND_ROWS_MAX || o->max_out < 1);
    const struct backend *be = o->model->be;
    if (be->ops->caches && !be->ops->caches(be, o->cache_type))
        return err_set(err, ERR_UNSUPPORTED, "a cache of type %s is not known to the %s backend",
                       dtype_info(o->cache_type)->name, be->ops->name);
    struct runner *r = mem_alloc(MEM_CAT_KV, sizeof(*r));
    r->model = o->model;
    r->max_seqs = o->max_seqs;
    r->max_rows = o->max_rows;
    r->max_out = o->max_out;
    r->max_tentative = o->max_tentative;
    r->cache_type = o->cache_type;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        r->has_group[g] = o->model->has_group[g] || (g == MODEL_GROUP_FULL && o->keep_bytes > 0);
    r->taps = o->taps;
    r->choose = o->choose;
    r->choose_ctx = o->choose_ctx;
    runner_size_pages(r);
    enum err_code code = runner_size(r, o, err);
    if (!code)
        code = runner_alloc_seqs(r, err);
    if (!code)
        code = runner_keep_alloc(r, o->keep_bytes, err);
    if (!code)
        code = runner_restore(r, err);
    if (code) {
        runner_free(r);
        return code;
    }
    *out = r;
    return ERR_OK;
}

/* What is in backend memory, with what describes it. */
static void runner_free_device(struct runner *r)
{
    runner_state_free(r);
    runner_free_index(r);
    runner_slab_free(r, &r->slab);
    mem_free(MEM_CAT_KV, r->layers);
    r->layers = NULL;
    runner_free_step(r);
    runner_taps_free(r);
}

enum err_code runner_restore(struct runner *r, struct err *err)
{
    enum err_code code = runner_alloc_layers(r, err);
    if (!code)
        code = runner_alloc_index(r, err);
    if (!code)
        code = runner_state_alloc(r, err);
    if (!code)
        code = runner_alloc_step(r, err);
    return code ? code : runner_taps_alloc(r, err);
}

void runner_forget(struct runner *r)
{
    for (int32_t i = 0; i < r->max_seqs; i++)
        if (r->seqs[i].is_open)
            runner_rewind(r, i);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        BUG_ON(r->has_group[g] && !runner_make_room(r, g, r->pools[g].n_pages));
    r->fault = (struct err){ 0 };
}

void runner_lose(struct runner *r)
{
    runner_forget(r);
    runner_free_device(r);
}

void runner_free(struct runner *r)
{
    if (!r)
        return;
    for (int32_t i = 0; r->seqs && i < r->max_seqs; i++)
        for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
            kv_table_reset(&r->pools[g], &r->seqs[i].tables[g]);
            kv_table_release(&r->seqs[i].tables[g]);
        }
    mem_free(MEM_CAT_KV, r->seqs);
    runner_tier_close(r);
    runner_keep_free(r);
    runner_free_device(r);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        kv_pool_release(&r->pools[g]);
    mem_free(MEM_CAT_KV, r);
}

/* --- sequences --- */

enum err_code runner_open(struct runner *r, int32_t *seq, struct err *err)
{
    int32_t i = 0;
    while (i < r->max_seqs && r->seqs[i].is_open)
        i++;
    if (i == r->max_seqs)
        return err_set(err, ERR_NOMEM, "all %d sequences are in use", r->max_seqs);
    r->seqs[i].is_open = true;
    r->seqs[i].len = 0;
    *seq = i;
    return ERR_OK;
}

void runner_rewind(struct runner *r, int32_t seq)
{
    struct runner_seq *s = &r->seqs[seq];
    BUG_ON(!s->is_open);
    runner_fetch_end(r, seq);
    runner_drop_snapshots(r, seq, 0);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        kv_table_reset(&r->pools[g], &s->tables[g]);
    s->len = s->n_tentative = 0;
    s->round = (struct runner_round){ 0 };
    runner_trim(r); /* what the sequence used with the tree is idle now */
}

void runner_close(struct runner *r, int32_t seq)
{
    runner_rewind(r, seq);
    r->seqs[seq].is_open = false;
}

/* Pages that the sequence lacks for n_tokens in all. */
static int32_t runner_lacks(const struct runner *r, const struct runner_seq *s, int group,
                            int32_t n_tokens)
{
    const struct kv_table *t = &s->tables[group];
    int32_t n = runner_pages(r, group, n_tokens) - (t->n - t->first) - t->n_reserved;
    return n > 0 ? n : 0;
}

enum err_code runner_reserve(struct runner *r, int32_t seq, int32_t n_tokens, struct err *err)
{
    struct runner_seq *s = &r->seqs[seq];
    BUG_ON(!s->is_open);
    if (n_tokens > r->n_ctx)
        return err_set(err, ERR_FULL, "%d tokens are over the context of %d", n_tokens, r->n_ctx);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        int32_t n = runner_lacks(r, s, g, n_tokens);
        if (!runner_make_room(r, g, n))
            return err_set(err, ERR_NOMEM,
                           "%d tokens need %d pages more of %s, %d of %d are free and not promised",
                           n_tokens, n, group_texts[g], runner_unpromised(r, g),
                           r->pools[g].n_pages);
    }
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        enum err_code code =
            kv_table_reserve(&r->pools[g], &s->tables[g], runner_lacks(r, s, g, n_tokens), err);
        BUG_ON(code != ERR_OK); /* asked above */
    }
    return ERR_OK;
}

int32_t runner_room(const struct runner *r, int32_t seq)
{
    const struct runner_seq *s = &r->seqs[seq];
    int32_t room = r->n_ctx;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        if (r->model->has_group[g] && g != MODEL_GROUP_STATE && kv_table_room(&s->tables[g]) < room)
            room = kv_table_room(&s->tables[g]);
    return room - s->len;
}

/* --- sharing --- */

/* Entries [first, pages_for(n)) of the group's table are copied when a sequence begins with n tokens of another one. */
static int32_t runner_copy_first(const struct runner *r, int group, int32_t n)
{
    if (group == MODEL_GROUP_STATE)
        return 0; /* a slot */
    if (group == MODEL_GROUP_FULL)
        return n / KV_PAGE_TOKENS;             /* whole pages are shared */
    int32_t lowest = n + 1 - r->model->window; /* that the next token, at position n, sees */
    return lowest > 0 ? lowest / KV_PAGE_TOKENS : 0;
}

static bool runner_can_share(struct runner *r, const struct runner_seq *from, int32_t n)
{
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        int32_t first = runner_copy_first(r, g, n);
        if (r->has_group[g] &&
            (first < from->tables[g].first ||
             (g == MODEL_GROUP_STATE ? runner_unpromised(r, g) < 1
                                     : !runner_make_room(r, g, kv_pages_for(n) - first))))
            return false;
    }
    return true;
}

/* Fewer tokens: those that a state stands behind; else without the partly used page, then whole ones. */
static int32_t runner_share_less(const struct runner *r, int32_t from, int32_t n)
{
    return runner_has_state(r) ? runner_state_below(r, from, n - 1)
                               : (n - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
}

void runner_share_group(struct runner *r, int group, struct kv_table *to,
                        const struct kv_table *from, int32_t n_tokens)
{
    struct kv_pool *p = &r->pools[group];
    int32_t first = runner_copy_first(r, group, n_tokens);
    int32_t span = runner_span(group, n_tokens), n = kv_pages_for(span);
    if (group == MODEL_GROUP_FULL)
        kv_table_share(p, to, from, first);
    else
        kv_table_begin_at(to, first);
    enum err_code code = kv_table_reserve(p, to, n - first, NULL);
    if (!code)
        code = kv_table_extend(p, to, span, NULL);
    BUG_ON(code != ERR_OK); /* runner_can_share has asked */
    if (group == MODEL_GROUP_STATE)
        return; /* the slot is copied by the caller */
    for (int64_t l = 0; l < r->model->n_layers; l++)
        for (int32_t i = first;
             i < n && (int)r->model->layers[l].group == group && r->model->layers[l].kv_from == l;
             i++)
            runner_copy_page(r, l, to->pages[i], from->pages[i]);
}

int32_t runner_share(struct runner *r, int32_t seq, int32_t from, int32_t n_tokens)
{
    struct runner_seq *s = &r->seqs[seq], *f = &r->seqs[from];
    BUG_ON(!s->is_open || !f->is_open || seq == from || n_tokens > f->len);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        BUG_ON(s->tables[g].n > 0 || s->tables[g].n_reserved > 0);
    int32_t n = runner_has_state(r) ? runner_state_below(r, from, n_tokens) : n_tokens;
    if (runner_has_state(r) && n > 0)
        runner_spare_slot(r, from, n);
    while (n > 0 && !runner_can_share(r, f, n))
        n = runner_share_less(r, from, n);
    if (n <= 0)
        return 0;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        if (r->has_group[g])
            runner_share_group(r, g, &s->tables[g], &f->tables[g], n);
    if (runner_has_state(r))
        runner_copy_slot(r, runner_slot(s), runner_slot_at(r, from, n));
    if (r->history)
        runner_note_ids(r, seq, 0, r->history + (int64_t)from * r->n_ctx, n);
    s->len = n;
    return n;
}

/* --- steps --- */

static enum err_code runner_check_room(const struct runner *r, const struct runner_item *it,
                                       struct err *err)
{
    const struct runner_seq *s = &r->seqs[it->seq];
    enum err_code code = runner_round_check_step(r, it, err);
    if (code)
        return code;
    if (r->model->is_two_way && s->len > 0)
        return err_set(err, ERR_STATE, "sequence %d: %d tokens after %d: a text is one step",
                       it->seq, it->n, s->len);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        if (r->has_group[g] && runner_span(g, s->len + it->n) > kv_table_room(&s->tables[g]))
            return err_set(err, ERR_STATE,
                           "sequence %d: %d tokens after %d, room for %d of %s is promised",
                           it->seq, it->n, s->len, kv_table_room(&s->tables[g]), group_texts[g]);
    return ERR_OK;
}

static void runner_extend(struct runner *r, const struct runner_item *it)
{
    struct runner_seq *s = &r->seqs[it->seq];
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        if (!r->has_group[g])
            continue;
        enum err_code code =
            kv_table_extend(&r->pools[g], &s->tables[g], runner_span(g, s->len + it->n), NULL);
        BUG_ON(code != ERR_OK); /* runner_check_room has asked */
        BUG_ON(kv_table_is_shared(&r->pools[g], &s->tables[g],
                                  g == MODEL_GROUP_STATE ? 0 : s->len / KV_PAGE_TOKENS));
    }
}

void runner_note_ids(struct runner *r, int32_t seq, int32_t at, const int32_t *ids, int32_t n)
{
    if (r->history)
        memmove(r->history + (int64_t)seq * r->n_ctx + at, ids, (size_t)n * sizeof(*ids));
}

/* The slot of the item's sequence, and where its rows are kept if they may be taken back. */
static void runner_add_state(struct runner *r, struct model_step *st, const struct runner_item *it,
                             int row0)
{
    struct seq_view *v = &r->views[MODEL_GROUP_STATE][st->n_seqs];
    v->slot = runner_slot(&r->seqs[it->seq]);
    v->is_tentative = it->is_tentative;
    if (!it->is_tentative)
        return;
    BUG_ON(it->n > r->max_tentative);
    st->keep = &r->keep;
    for (int32_t i = 0; i < it->n; i++)
        r->keep_rows[row0 + i] = it->seq * r->max_tentative + i;
}

/* Append the item's rows to the step. */
static void runner_add_rows(struct runner *r, struct model_step *st, struct runner_item *it)
{
    struct runner_seq *s = &r->seqs[it->seq];
    BUG_ON(!s->is_open || it->n < 1 || st->n_rows + it->n > r->max_rows);
    int row0 = st->n_rows;
    for (int32_t i = 0; i < it->n; i++) {
        r->ids[row0 + i] = it->ids ? it->ids[i] : 0;
        r->pos[row0 + i] = s->len + i + it->shift;
    }
    st->n_rows += it->n;
    int n_out = it->n_out;
    BUG_ON(n_out < 0 || n_out > it->n || st->n_out + n_out > r->max_out);
    it->logits =
        n_out && !it->has_no_head ? r->logits + (int64_t)st->n_out * r->model->n_vocab : NULL;
    it->hidden = it->wants_hidden ? r->hidden + (int64_t)st->n_out * r->model->n_embd : NULL;
    BUG_ON(n_out > 1 && r->model->is_two_way);
    int first_out = r->model->pooling == MODEL_POOLING_CLS ? row0 : st->n_rows - n_out;
    for (int i = 0; i < n_out; i++)
        r->out_rows[st->n_out++] = first_out + i;
    st->n_logits = it->has_no_head ? st->n_logits : st->n_out;
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        r->views[g][st->n_seqs] = (struct seq_view){
            .row0 = row0, .n_rows = it->n, .pos0 = s->len, .pages = s->tables[g].pages
        };
    if (runner_has_state(r))
        runner_add_state(r, st, it, row0);
    runner_add_taps(r, st, it, row0);
    runner_add_inputs(r, st, it, row0);
    runner_note_ids(r, it->seq, s->len, it->ids, it->n);
    if (r->history)
        r->ids_before[st->n_seqs] = r->history + (int64_t)it->seq * r->n_ctx + s->len;
    st->n_seqs++;
}

static void runner_commit(struct runner *r, struct runner_item *it, const uint8_t *failed)
{
    struct runner_seq *s = &r->seqs[it->seq];
    it->n_good = 0;
    while (it->n_good < it->n && !failed[it->n_good])
        it->n_good++;
    it->has_failed = it->n_good < it->n;
    int64_t n_hidden = it->has_no_head ? it->n_out * r->model->n_embd : 0;
    for (int64_t i = 0; i < n_hidden; i++) /* the head would have said so */
        it->has_failed = it->has_failed || !isfinite(it->hidden[i]);
    int32_t n_sure = s->len + (it->is_tentative ? 1 : it->n) - it->n_back;
    runner_round_begin(s, it);
    s->len += it->n;
    s->n_tentative = it->is_tentative && runner_has_state(r) ? it->n : 0;
    /* The next row, at position n_sure or later, sees positions over n_sure - window. */
    if (r->has_group[MODEL_GROUP_WINDOW])
        kv_table_drop_below(&r->pools[MODEL_GROUP_WINDOW], &s->tables[MODEL_GROUP_WINDOW],
                            n_sure + 1 - r->model->window);
}

enum err_code runner_step(struct runner *r, struct runner_item *items, int32_t n, struct err *err)
{
    BUG_ON(n < 1 || n > r->max_seqs);
    if (r->fault.code)
        return err_set(err, r->fault.code, "%s", r->fault.text);
    enum err_code code = ERR_OK;
    struct model_step st = { .ids = r->ids,
                             .pos = r->pos,
                             .out_rows = r->out_rows,
                             .kv = r->layers,
                             .state = r->states,
                             .index = r->index,
                             .picked = r->picked,
                             .picked_words = kv_pages_for(r->n_ctx),
                             .pick_scores = r->pick_scores,
                             .ngram_state = &r->ngram_state,
                             .ids_before = r->ids_before,
                             .keep_rows = r->keep_rows,
                             .failed = r->failed,
                             .scratch = &r->scratch };
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        st.seqs[g] = r->views[g];
    mem_guard_enter();
    for (int32_t i = 0; i < n && !code; i++) {
        items[i].is_tentative =
            items[i].is_tentative && items[i].n > 1; /* without guesses nothing is kept */
        code = runner_check_room(r, &items[i], err);
    }
    for (int32_t k = 0; k < 2 * n && !code; k++) { /* those without logits last */
        struct runner_item *it = &items[k % n];
        BUG_ON(it->has_no_head && !it->wants_hidden);
        if (it->has_no_head != (k >= n))
            continue;
        runner_settle(r, it->seq, r->seqs[it->seq].len);
        runner_extend(r, it);
        runner_add_rows(r, &st, it);
    }
    int64_t start = clock_us();
    if (!code)
        code = runner_forward(r, &st, items, n, err);
    if (!code && st.n_rows >= RUNNER_TIMED_ROWS)
        r->token_seconds = (double)(clock_us() - start) * 1e-6 / st.n_rows;
    const uint8_t *failed = r->failed;
    for (int32_t k = 0; k < 2 * n && !code; k++) {
        if (items[k % n].has_no_head != (k >= n))
            continue;
        runner_commit(r, &items[k % n], failed);
        failed += items[k % n].n;
    }
    mem_guard_leave();
    return code;
}

enum err_code runner_warm(struct runner *r, struct err *err)
{
    const int32_t id = 0;
    bool is_headless = r->model->is_two_way || r->model->n_labels > 0;
    struct runner_item it = { .ids = &id, /* sequence 0 */
                              .n = 1,
                              .n_out = 1,
                              .wants_best = true,
                              .wants_hidden = is_headless,
                              .has_no_head = is_headless };
    struct runner_seq *s = &r->seqs[0];
    bool was_open = s->is_open;
    if (r->model->be->ops->is_host)
        return ERR_OK;
    BUG_ON(s->len > 0);
    s->is_open = true;
    enum err_code code = runner_reserve(r, 0, 1, err);
    if (!code)
        code = runner_step(r, &it, 1, err);
    runner_rewind(r, 0);
    s->is_open = was_open;
    return code;
}

void runner_usage(const struct runner *r, struct engine_usage *out)
{
    *out = (struct engine_usage){ .n_pins_lost = r->n_pins_lost };
    for (int g = 0; g < MODEL_GROUP_COUNT; g++)
        if (r->page_bytes[g] > 0) {
            out->groups[out->n_groups].name = group_names[g];
            out->groups[out->n_groups].page_bytes = (int64_t)r->page_bytes[g];
            out->groups[out->n_groups].n_pages = r->pools[g].n_pages;
            out->groups[out->n_groups].n_free = r->pools[g].n_free;
            out->groups[out->n_groups].n_kept = runner_kept_pages(r, g);
            out->groups[out->n_groups].n_pinned = runner_pinned_pages(r, g);
            out->groups[out->n_groups++].n_promised = r->pools[g].n_reserved;
        }
}

enum err_code runner_check(const struct runner *r, struct err *err)
{
    enum err_code code = ERR_OK;
    size_t n_max = (size_t)r->max_seqs + (size_t)r->n_snapshots + (size_t)r->n_ends;
    const struct kv_table **tables = mem_alloc(MEM_CAT_KV, n_max * sizeof(*tables));
    const struct kv_pool *full = &r->pools[MODEL_GROUP_FULL];
    int32_t *held = mem_alloc(MEM_CAT_KV, (size_t)full->n_pages * sizeof(*held));
    prefix_count_held(&r->prefix, held);
    if (r->prefix.max_idle > 0)
        code = prefix_check(&r->prefix, err);
    for (int g = 0; g < MODEL_GROUP_COUNT && !code; g++) {
        int32_t n = 0;
        for (int32_t i = 0; i < r->max_seqs; i++)
            tables[n++] = &r->seqs[i].tables[g];
        for (int32_t i = 0; i < r->n_snapshots && g == MODEL_GROUP_STATE; i++)
            tables[n++] = &r->snapshots[i].table;
        for (int32_t i = 0; i < r->n_ends && g != MODEL_GROUP_FULL; i++)
            tables[n++] = &r->ends[i].tables[g];
        if (r->pools[g].n_pages > 0)
            code = kv_pool_check(&r->pools[g], tables, n, g == MODEL_GROUP_FULL ? held : NULL, err);
    }
    if (!code)
        code = runner_round_check(r, err);
    if (!code)
        code = runner_state_check(r, err);
    if (!code)
        code = runner_pins_check(r, err);
    mem_free(MEM_CAT_KV, tables);
    mem_free(MEM_CAT_KV, held);
    return code;
}
