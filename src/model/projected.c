#include "model/projected.h"
#include "tensor/ops.h"

#include <string.h>

#define PROJECTED_ARCH "dflash" /* family_projected.c */

/* --- the model that it guesses for --- */

bool model_is_projected(const struct weights *w)
{
    const struct meta_value *v = weights_meta(w, "general.architecture");
    return v && v->type == META_TYPE_STRING && v->s.len == strlen(PROJECTED_ARCH) &&
           memcmp(v->s.data, PROJECTED_ARCH, v->s.len) == 0;
}

static enum err_code projected_check_taps(const struct model *m, const struct model *target,
                                          struct err *err)
{
    const struct model_projected *p = &m->projected;
    int last = p->taps.at[p->taps.n - 1];
    if (m->width != target->width)
        return err_set(err, ERR_INVALID,
                       "it reads states of width %lld, the model that it is to guess for has %lld",
                       (long long)m->width, (long long)target->width);
    if (p->n_target_layers > 0 && p->n_target_layers != target->n_layers)
        return err_set(err, ERR_INVALID,
                       "it is for a model of %lld layers, the one that it is to guess for has %lld",
                       (long long)p->n_target_layers, (long long)target->n_layers);
    if (last >= target->n_layers - 1)
        return err_set(err, ERR_INVALID,
                       "it reads what stands behind layer %d, the model that it is to guess for "
                       "has %lld layers, of which the last one gives nothing to read",
                       last, (long long)target->n_layers);
    return ERR_OK;
}

enum err_code model_project(struct model *m, const struct model *target, struct err *err)
{
    struct model_projected *p = &m->projected;
    BUG_ON(p->block == 0 || m->be != target->be);
    if (!m->be->ops->is_host)
        return err_set(err, ERR_UNSUPPORTED,
                       "what reads a model's hidden states in blocks is known to the CPU alone; "
                       "--device cpu runs it");
    if (target->is_two_way || target->n_labels > 0 || target->n_streams > 1 ||
        target->n_host_layers > 0) /* its embedding is another backend's */
        return err_set(err, ERR_UNSUPPORTED, "%s: no drafter is known for its hidden states",
                       target->arch);
    enum err_code code = projected_check_taps(m, target, err);
    if (!code && m->n_vocab != target->n_vocab)
        code = err_set(err, ERR_INVALID,
                       "it has %lld tokens, the model that it is to guess for has %lld: it needs "
                       "the same vocabulary",
                       (long long)m->n_vocab, (long long)target->n_vocab);
    if (!code && p->mask_id >= m->n_vocab)
        code = err_set(err, ERR_INVALID, "mask token %d is none of its %lld tokens", p->mask_id,
                       (long long)m->n_vocab);
    if (code)
        return code;
    p->borrows_embed = !m->embed;
    p->borrows_head = !m->head;
    m->embed = m->embed ? m->embed : target->embed;
    m->head = m->head ? m->head : target->head;
    return ERR_OK;
}

/* --- from logits to guesses --- */

#define WALK_ALIGN  16     /* floats: 64 bytes */
#define WALK_BARRED -1e30f /* a logit that nothing brings up again */

enum err_code projected_walk_init(struct projected_walk *w, const struct model *m, int32_t max_rows,
                                  struct err *err)
{
    const struct model_projected *p = &m->projected;
    int64_t rank = p->rank, joint = m->width + 2 * rank;
    *w = (struct projected_walk){ .m = m, .max_rows = max_rows };
    const struct {
        float **out;
        int64_t cols;
    } parts[] = {
        { &w->in, rank },
        { &w->made, 3 * rank },
        { &w->joint, joint },
        { &w->bias, p->markov_out && !p->w_selector ? m->n_vocab : 0 },
        { &w->state, rank },
        { &w->conf, 1 },
        { &w->next, p->n_candidates * rank },
    };
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        n += (size_t)(parts[i].cols * max_rows + WALK_ALIGN - 1) / WALK_ALIGN * WALK_ALIGN;
    w->bytes = n * sizeof(float);
    w->block = m->be->ops->alloc(m->be, MEM_CAT_SCRATCH, w->bytes);
    w->candidates = mem_try_array(MEM_CAT_SCRATCH, (size_t)p->n_candidates, sizeof(*w->candidates));
    if (!w->block || !w->candidates) {
        projected_walk_release(w);
        return err_set(err, ERR_NOMEM, "a drafter's head: no memory for %zu MiB", n >> 18);
    }
    float *at = w->block;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        *parts[i].out = at;
        at += (parts[i].cols * max_rows + WALK_ALIGN - 1) / WALK_ALIGN * WALK_ALIGN;
    }
    return ERR_OK;
}

void projected_walk_release(struct projected_walk *w)
{
    if (w->block)
        w->m->be->ops->free(w->m->be, MEM_CAT_SCRATCH, w->block, w->bytes);
    mem_free(MEM_CAT_SCRATCH, w->candidates);
    *w = (struct projected_walk){ 0 };
}

void projected_walk_begin(struct projected_walk *w, int32_t slot)
{
    memset(w->state + slot * w->m->projected.rank, 0,
           (size_t)w->m->projected.rank * sizeof(*w->state));
}

/* Row i of the joint rows [n][cols] gets x [k] from column `at` on. */
static void walk_put(struct tensor joint, int64_t i, int64_t at, const float *x, int64_t k)
{
    memcpy(joint.data + i * joint.cols + at, x, (size_t)k * sizeof(*x));
}

static struct tensor walk_linear(const struct projected_walk *w, float *to, struct tensor x,
                                 const struct weight *weight, const float *bias)
{
    struct tensor y = tensor_of(to, x.rows, w->m->be->ops->shape(weight)->out);
    ops_linear(w->m->be, y, x, weight);
    if (bias)
        ops_add_bias(w->m->be, y, bias);
    return y;
}

/* in *= sigmoid(W [hidden; in] + b) */
static void walk_gate(struct projected_walk *w, const struct projected_guess *g, int32_t n)
{
    const struct model *m = w->m;
    const struct model_projected *p = &m->projected;
    struct tensor joint = tensor_of(w->joint, n, m->width + p->rank);
    for (int32_t i = 0; i < n; i++) {
        walk_put(joint, i, 0, g[i].hidden, m->width);
        walk_put(joint, i, m->width, w->in + i * p->rank, p->rank);
    }
    struct tensor gate = walk_linear(w, w->made, joint, p->w_markov_gate, p->b_markov_gate);
    struct tensor in = tensor_of(w->in, n, p->rank);
    ops_glu(m->be, in, gate, in, GLU_KIND_SIGMOID);
}

/* W [state; in; hidden] + b are three: state = g state + (1 - g) tanh(new), g the sigmoid of the first; in = tanh of the last. */
static void walk_recur(struct projected_walk *w, const struct projected_guess *g, int32_t n)
{
    const struct model *m = w->m;
    const struct model_projected *p = &m->projected;
    int64_t rank = p->rank;
    struct tensor joint = tensor_of(w->joint, n, m->width + 2 * rank);
    for (int32_t i = 0; i < n; i++) {
        walk_put(joint, i, 0, w->state + g[i].slot * rank, rank);
        walk_put(joint, i, rank, w->in + i * rank, rank);
        walk_put(joint, i, 2 * rank, g[i].hidden, m->width);
    }
    struct tensor made = walk_linear(w, w->made, joint, p->w_markov_joint, p->b_markov_joint);
    struct tensor gate = tensor_of(w->joint, n, rank); /* it has been read */
    ops_copy(m->be, gate, tensor_cols(made, 0, rank));
    ops_act(m->be, gate, GLU_KIND_SIGMOID);
    ops_softcap(m->be, made, 1); /* tanh */
    for (int32_t i = 0; i < n; i++)
        for (int64_t r = 0; r < rank; r++) {
            float *state = w->state + g[i].slot * rank + r, by = gate.data[i * rank + r];
            *state = by * *state + (1 - by) * made.data[i * made.cols + rank + r];
        }
    ops_copy(m->be, tensor_of(w->in, n, rank), tensor_cols(made, 2 * rank, rank));
}

/* The n likeliest ids of logits [n_vocab], of equal ones the lower. */
static int32_t walk_best(const float *logits, int64_t n_vocab, int32_t *ids, int32_t n)
{
    int32_t n_ids = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (n_ids == n && !(logits[id] > logits[ids[n - 1]]))
            continue;
        int32_t at = n_ids < n ? n_ids++ : n - 1;
        for (; at > 0 && logits[id] > logits[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
    return n_ids;
}

/* Of the row's candidates: logit + sum over r of in[r] (W hidden)[r] next[r]. */
static void walk_select_row(struct projected_walk *w, const struct projected_guess *g, float *in,
                            const float *hidden)
{
    const struct model *m = w->m;
    int64_t rank = m->projected.rank;
    int32_t n = walk_best(g->logits, m->n_vocab, w->candidates, m->projected.n_candidates);
    ops_embed(m->be, tensor_of(w->next, n, rank), m->projected.markov_out, w->candidates);
    for (int64_t r = 0; r < rank; r++)
        in[r] *= hidden[r];
    for (int32_t c = 0; c < n;
         c++) { /* each place of `next` has been read when its score goes there */
        float score = g->logits[w->candidates[c]];
        for (int64_t r = 0; r < rank; r++)
            score += in[r] * w->next[c * rank + r];
        w->next[c * rank] = score;
    }
    for (int64_t id = 0; id < m->n_vocab; id++)
        g->logits[id] = WALK_BARRED;
    for (int32_t c = 0; c < n; c++)
        g->logits[w->candidates[c]] = w->next[c * rank];
}

static void walk_select(struct projected_walk *w, const struct projected_guess *g, int32_t n)
{
    const struct model *m = w->m;
    struct tensor joint = tensor_of(w->joint, n, m->width);
    for (int32_t i = 0; i < n; i++)
        walk_put(joint, i, 0, g[i].hidden, m->width);
    struct tensor hidden = walk_linear(w, w->made, joint, m->projected.w_selector, NULL);
    for (int32_t i = 0; i < n; i++)
        walk_select_row(w, &g[i], w->in + i * m->projected.rank, hidden.data + i * hidden.cols);
}

/* in holds what the guesses before are, not yet gated. */
static void walk_trust(struct projected_walk *w, struct projected_guess *g, int32_t n)
{
    const struct model *m = w->m;
    const struct model_projected *p = &m->projected;
    struct tensor joint =
        tensor_of(w->joint, n, m->width + (p->confidence_has_markov ? p->rank : 0));
    for (int32_t i = 0; i < n; i++) {
        walk_put(joint, i, 0, g[i].hidden, m->width);
        if (p->confidence_has_markov)
            walk_put(joint, i, m->width, w->in + i * p->rank, p->rank);
    }
    struct tensor conf = walk_linear(w, w->conf, joint, p->w_confidence, p->b_confidence);
    ops_act(m->be, conf, GLU_KIND_SIGMOID);
    for (int32_t i = 0; i < n; i++)
        g[i].confidence = conf.data[i];
}

void projected_walk_step(struct projected_walk *w, struct projected_guess *g, int32_t n)
{
    const struct model *m = w->m;
    const struct model_projected *p = &m->projected;
    BUG_ON(n > w->max_rows);
    ops_begin(m->be, n);
    struct tensor in = tensor_of(w->in, n, p->rank);
    for (int32_t i = 0; i < n; i++) {
        g[i].confidence = -1;
        if (p->rank > 0) /* ids of many rows, one after the other: they need no array */
            ops_embed(m->be, tensor_rows(in, i, 1), p->markov_in, &g[i].prev);
    }
    if (p->w_confidence)
        walk_trust(w, g, n);
    if (p->head == PROJECTED_HEAD_SELECTOR)
        walk_select(w, g, n);
    if (p->rank == 0 || p->head == PROJECTED_HEAD_SELECTOR)
        return;
    if (p->head == PROJECTED_HEAD_GATED)
        walk_gate(w, g, n);
    if (p->head == PROJECTED_HEAD_RECURRENT)
        walk_recur(w, g, n);
    struct tensor bias = walk_linear(w, w->bias, in, p->markov_out, NULL);
    for (int32_t i = 0; i < n; i++)
        ops_add(m->be, tensor_of(g[i].logits, 1, m->n_vocab), tensor_rows(bias, i, 1));
}
