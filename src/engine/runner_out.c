/* runner_out.c - what a step gives, from where the backend has it to the host. */
#include "engine/runner_int.h"
#include "tensor/ops.h"
#include "tensor/shortlist.h"

void *runner_host_take(const struct runner *r, size_t bytes)
{
    struct backend *be = r->model->be;
    return be->ops->host_alloc ? be->ops->host_alloc(be, bytes)
                               : mem_try_big(MEM_CAT_SCRATCH, bytes);
}

void runner_host_give(const struct runner *r, void *p, size_t bytes)
{
    struct backend *be = r->model->be;
    if (be->ops->host_free && p)
        be->ops->host_free(be, p);
    else
        mem_free_big(MEM_CAT_SCRATCH, p, bytes);
}

static int32_t runner_lists_max(const struct runner *r)
{
    return r->max_out < BACKEND_SHORTLISTS_MAX ? r->max_out : BACKEND_SHORTLISTS_MAX;
}

bool runner_lists_alloc(struct runner *r)
{
    if (!r->choose || !r->model->be->ops->shortlist)
        return true;
    r->list_t = mem_try_array(MEM_CAT_SCRATCH, (size_t)r->max_out, sizeof(*r->list_t));
    r->lists = runner_host_take(r, (size_t)runner_lists_max(r) * sizeof(*r->lists));
    return r->list_t && r->lists;
}

void runner_lists_free(struct runner *r)
{
    mem_free(MEM_CAT_SCRATCH, r->list_t);
    if (r->lists)
        runner_host_give(r, r->lists, (size_t)runner_lists_max(r) * sizeof(*r->lists));
    r->list_t = NULL;
    r->lists = NULL;
}

static int64_t runner_taps_cols(const struct runner *r)
{
    return r->taps.n * r->model->width;
}

/* Columns of what the model takes of another one; 0: it takes nothing. */
static int64_t runner_inputs_cols(const struct runner *r)
{
    const struct model *m = r->model;
    return (m->w_join ? 1 : m->projected.block > 0 ? m->projected.taps.n : 0) * m->width;
}

static enum err_code runner_inputs_alloc(struct runner *r, struct err *err)
{
    const struct model *m = r->model;
    if (runner_inputs_cols(r) == 0)
        return ERR_OK;
    r->inputs_bytes = (size_t)r->max_rows * (size_t)runner_inputs_cols(r) * sizeof(*r->inputs);
    r->inputs = m->be->ops->alloc(m->be, MEM_CAT_SCRATCH, r->inputs_bytes);
    return r->inputs ? ERR_OK
                     : err_set(err, ERR_NOMEM, "another model's states: no memory for %zu MiB",
                               r->inputs_bytes >> 20);
}

enum err_code runner_taps_alloc(struct runner *r, struct err *err)
{
    const struct model *m = r->model;
    const struct model_taps *taps = &r->taps;
    if (taps->n == 0)
        return runner_inputs_alloc(r, err);
    for (int i = 0; i < taps->n; i++)
        BUG_ON(taps->n > MODEL_TAPS_MAX || taps->at[i] < -1 || taps->at[i] > m->n_layers ||
               (i > 0 && taps->at[i] <= taps->at[i - 1]));
    if (m->is_two_way || m->n_streams > 1)
        return err_set(err, ERR_UNSUPPORTED, "%s: no drafter is known for its hidden states",
                       m->arch);
    r->tapped_bytes = (size_t)r->max_rows * (size_t)runner_taps_cols(r) * sizeof(*r->tapped);
    r->tapped = m->be->ops->alloc(m->be, MEM_CAT_SCRATCH, r->tapped_bytes);
    return r->tapped ? ERR_OK
                     : err_set(err, ERR_NOMEM, "hidden states for a drafter: no memory for %zu MiB",
                               r->tapped_bytes >> 20);
}

void runner_taps_free(struct runner *r)
{
    if (r->tapped)
        r->model->be->ops->free(r->model->be, MEM_CAT_SCRATCH, r->tapped, r->tapped_bytes);
    if (r->inputs)
        r->model->be->ops->free(r->model->be, MEM_CAT_SCRATCH, r->inputs, r->inputs_bytes);
    r->tapped = r->inputs = NULL;
}

void runner_add_taps(struct runner *r, struct model_step *st, struct runner_item *it, int row0)
{
    it->tapped = NULL;
    it->made = r->scratch.h + (st->n_out - it->n_out) * r->model->n_embd;
    if (!it->wants_taps)
        return;
    BUG_ON(!r->tapped);
    it->tapped = r->tapped + row0 * runner_taps_cols(r);
    st->taps = &r->taps;
}

void runner_add_inputs(struct runner *r, struct model_step *st, const struct runner_item *it,
                       int row0)
{
    int64_t cols = runner_inputs_cols(r);
    bool is_head = r->model->w_join;
    BUG_ON(!is_head && ((it->inputs.rows > 0) != (it->ids == NULL) ||
                        (row0 > 0 && (st->inputs.rows > 0) != (it->inputs.rows > 0))));
    if (it->inputs.rows == 0 && !is_head)
        return;
    BUG_ON(!r->inputs || it->inputs.rows != it->n || (it->n_out > 0 && !is_head));
    ops_copy(r->model->be, tensor_of(r->inputs + row0 * cols, it->n, cols), it->inputs);
    st->inputs = tensor_of(r->inputs, row0 + it->n, cols);
}

/* The logits of the items that want them, and of those whose likeliest ids or choices the backend could not tell; the others get theirs.
 * Neighbours come together. */
static void runner_download(struct runner *r, const struct model_step *st,
                            struct runner_item *items, int32_t n)
{
    struct backend *be = r->model->be;
    size_t vocab = (size_t)r->model->n_vocab, first = 0, end = 0;
    for (int32_t k = 0; k < n; k++) {
        struct runner_item *it = &items[k];
        if (!it->logits)
            continue;
        size_t at = (size_t)(it->logits - r->logits) / vocab;
        bool is_known = it->wants_best && st->best;
        for (int32_t i = 0; i < it->n_out && is_known; i++)
            is_known = r->best[at + (size_t)i] >= 0;
        if (is_known)
            it->best = r->best + at;
        if (is_known || it->is_chosen)
            continue;
        if (at != end) {
            if (end > first)
                be->ops->download(be, r->logits + first * vocab, r->scratch.logits + first * vocab,
                                  (end - first) * vocab * sizeof(float));
            first = at;
        }
        end = at + (size_t)it->n_out;
    }
    if (end > first)
        be->ops->download(be, r->logits + first * vocab, r->scratch.logits + first * vocab,
                          (end - first) * vocab * sizeof(float));
}

/* Ask for the short lists of those items that they may do for. */
static void runner_plan_lists(struct runner *r, struct model_step *st, struct runner_item *items,
                              int32_t n)
{
    int32_t n_lists = 0;
    for (int32_t i = 0; i < n; i++)
        items[i].lists = NULL;
    for (int32_t i = 0; i < st->n_logits && r->lists; i++)
        r->list_t[i] = -1;
    for (int32_t i = 0; i < n && r->lists; i++) { /* as their rows stand: lists are numbered so */
        struct runner_item *it = &items[i];
        if (!it->logits || !(it->list_t > 0) || n_lists + it->n_out > runner_lists_max(r))
            continue;
        int64_t at = (it->logits - r->logits) / r->model->n_vocab;
        for (int32_t k = 0; k < it->n_out; k++)
            r->list_t[at + k] = it->list_t;
        it->lists = r->lists + n_lists;
        n_lists += it->n_out;
        r->n_listed++;
    }
    if (n_lists == 0)
        return;
    st->best = r->best;
    st->list_t = r->list_t;
    st->lists = r->lists;
}

void runner_set_meanwhile(struct runner *r, void (*fn)(void *ctx), void *ctx)
{
    r->meanwhile = fn;
    r->meanwhile_ctx = ctx;
}

static void meanwhile(void *runner)
{
    struct runner *r = runner;
    int depth = mem_guard_suspend(); /* what others do is no part of the step */
    r->meanwhile(r->meanwhile_ctx);
    mem_guard_resume(depth);
}

void runner_meanwhile(struct runner *r)
{
    if (r->meanwhile)
        meanwhile(r);
}

/* Whether the step's ops are asked for in no time, to be waited for. Not where the host computes some of them: that takes longer than
 * whoever waits for the step before should wait. */
static bool runner_is_ahead(const struct runner *r)
{
    const struct model *m = r->model;
    return m->be->ops->start && m->n_host_layers == 0 && m->n_host_experts == 0;
}

enum err_code runner_forward(struct runner *r, struct model_step *st, struct runner_item *items,
                             int32_t n, struct err *err)
{
    struct backend *be = r->model->be;
    bool wants_hidden = false;
    for (int32_t i = 0; i < n; i++) {
        wants_hidden = wants_hidden || items[i].wants_hidden;
        items[i].best = NULL;
        items[i].is_chosen = false;
        if (items[i].wants_best && be->ops->best)
            st->best = r->best;
    }
    runner_plan_lists(r, st, items, n);
    if (st->taps)
        st->tapped = tensor_of(r->tapped, st->n_rows, runner_taps_cols(r));
    if (!runner_is_ahead(r)) {
        runner_meanwhile(r);
    } else if (r->meanwhile) {
        st->meanwhile = meanwhile;
        st->meanwhile_ctx = r;
    }
    model_step_run(r->model, st);
    enum err_code code = be->ops->wait(be, err);
    if (!code && st->list_t) {
        r->choose(r->choose_ctx, items, n);
        for (int32_t i = 0; i < n; i++)
            r->n_chosen += items[i].is_chosen;
    }
    if (!code && st->n_logits > 0 && !be->ops->is_host)
        runner_download(r, st, items, n);
    if (!code && wants_hidden && !be->ops->is_host)
        be->ops->download(be, r->hidden, r->scratch.h,
                          (size_t)st->n_out * (size_t)r->model->n_embd * sizeof(float));
    return code || be->ops->is_host ? code : be->ops->wait(be, err); /* nor has a copy failed */
}
