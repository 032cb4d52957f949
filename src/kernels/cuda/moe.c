/* Mixtures of experts: from the op to commands. What is made once (arrays of the experts' places, buffers) is made at the first step that
 * asks; where it finds no memory the caller groups rows by itself, with the same bits. */
#include "kernels/cuda/cuda_int.h"

#include "tensor/route.h"

#include <cuda_runtime_api.h>
#include <string.h>

/* --- memory --- */

void cuda_moe_release(struct cuda_state *st)
{
    cuda_give(st, MEM_CAT_SCRATCH, st->moe.block, st->moe.bytes);
    st->moe = (struct cuda_moe){ 0 };
}

static bool moe_reserve(struct cuda_state *st, int64_t ff, int64_t width)
{
    struct cuda_moe *m = &st->moe;
    const size_t pairs = CUDA_ROW_CHUNK;
    if (ff <= m->ff && width <= m->width)
        return true;
    ff = ff > m->ff ? ff : m->ff;
    width = width > m->width ? width : m->width;
    const struct {
        void **out;
        size_t bytes;
    } parts[] = {
        { (void **)&m->gate, pairs * (size_t)ff * sizeof(*m->gate) },
        { (void **)&m->up, pairs * (size_t)ff * sizeof(*m->up) },
        { (void **)&m->out, pairs * (size_t)width * sizeof(*m->out) },
        { (void **)&m->w, pairs * sizeof(*m->w) },
        { (void **)&m->ids, pairs * sizeof(*m->ids) },
        { (void **)&m->list, pairs * sizeof(*m->list) },
        { (void **)&m->flags, pairs * sizeof(*m->flags) },
        { (void **)&m->active, BACKEND_EXPERTS_MAX * sizeof(*m->active) },
        { (void **)&m->n_active, sizeof(*m->n_active) },
    };
    size_t bytes = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        bytes += CUDA_ALIGN(parts[i].bytes);
    uint8_t *block = cuda_take(st, MEM_CAT_SCRATCH, bytes, "experts", NULL);
    if (!block)
        return false;
    cuda_sync(st);
    cuda_moe_release(st);
    *m = (struct cuda_moe){ .block = block, .bytes = bytes, .ff = ff, .width = width };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        *parts[i].out = block;
        block += CUDA_ALIGN(parts[i].bytes);
    }
    return true;
}

/* Where the experts' matrices are, on the device. NULL: they are not all of one form, or there is no memory. */
static const struct cu_expert *moe_set(struct cuda_state *st, const struct weight *const *w, int n)
{
    struct weight *first = (struct weight *)(uintptr_t)w[0];
    if (first->set)
        return first->n_set == n ? first->set : NULL;
    for (int i = 1; i < n; i++)
        if (w[i]->w.format != w[0]->w.format || w[i]->w.group != w[0]->w.group ||
            w[i]->w.out != w[0]->w.out || w[i]->w.in != w[0]->w.in)
            return NULL;
    size_t bytes = (size_t)n * sizeof(*first->set);
    struct cu_expert *set = cuda_take(st, MEM_CAT_WEIGHTS, bytes, "experts", NULL);
    struct cu_expert *host = (struct cu_expert *)(void *)st->staging;
    if (!set)
        return NULL;
    cuda_sync(st);
    memset(host, 0, bytes);
    for (int i = 0; i < n; i++)
        host[i] = (struct cu_expert){ w[i]->w.codes, w[i]->w.scales, w[i]->w.post };
    cuda_fault(st, "experts", cuda_transfer(st, set, host, bytes, cudaMemcpyHostToDevice));
    if (st->has_failed) {
        cuda_give(st, MEM_CAT_WEIGHTS, set, bytes);
        return NULL;
    }
    first->set = set;
    first->n_set = n;
    return set;
}

/* --- commands --- */

static void add_quantise(struct cuda_state *st, struct tensor x, int units, uint16_t *out,
                         uint32_t *flags, struct cu_quantise *q)
{
    memset(q, 0, sizeof(*q));
    q->x = cu_of(x);
    q->out = out;
    q->units = units;
    q->pad_rows = (int)((x.rows + 7) / 8 * 8);
    q->flags = flags;
}

static void add_route(struct cuda_state *st, struct tensor logits, const struct experts *e,
                      const float *bias, const float *scale)
{
    static const int kinds[] = { [ROUTE_KIND_SOFTMAX] = CU_ROUTE_SOFTMAX,
                                 [ROUTE_KIND_SOFTMAX_USED] = CU_ROUTE_SOFTMAX_USED,
                                 [ROUTE_KIND_SIGMOID] = CU_ROUTE_SIGMOID };
    struct cu_route r;
    struct cu_group g;
    memset(&r, 0, sizeof(r));
    memset(&g, 0, sizeof(g));
    r.logits = cu_of(logits);
    r.bias = bias;
    r.expert_scale = scale;
    r.ids = st->moe.ids;
    r.w = st->moe.w;
    r.scale = e->route->scale;
    r.kind = kinds[e->route->kind];
    r.n_used = e->route->n_used;
    r.is_normed = e->route->is_normed;
    cuda_append(st, CUDA_OP_ROUTE, &r, sizeof(r));
    g.ids = st->moe.ids;
    g.list = st->moe.list;
    g.active = st->moe.active;
    g.n_active = st->moe.n_active;
    g.pair_flags = st->moe.flags;
    g.n_pairs = (int)logits.rows * e->route->n_used;
    cuda_append(st, CUDA_OP_GROUP, &g, sizeof(g));
}

/* What the products of a layer's experts have in common. */
static struct cu_experts experts_of(const struct cuda_state *st, const struct experts *e, int rows)
{
    struct cu_experts c;
    int pairs = rows * e->route->n_used;
    memset(&c, 0, sizeof(c));
    c.list = st->moe.list;
    c.active = st->moe.active;
    c.n_active = st->moe.n_active;
    c.rows = rows;
    c.n_active_max = pairs < e->n ? pairs : e->n;
    return c;
}

static void shape_of(struct cu_experts *c, const struct weight *w, const struct cu_quantise *q,
                     int per)
{
    c->x = q->out;
    c->pad_rows = q->pad_rows;
    c->per = per;
    c->out = w->w.out;
    c->units = w->w.units;
    c->format = w->w.format;
    c->group = w->w.group;
}

/* Rows row0.. of the step, at most CUDA_ROW_CHUNK pairs. */
static void moe_chunk(struct cuda_state *st, struct tensor y, struct tensor x, struct tensor logits,
                      const struct experts *e, const struct cu_expert *const sets[3],
                      const float *bias, const float *scale, uint32_t *flags)
{
    int used = e->route->n_used;
    int64_t pairs = x.rows * used, ff = e->gate[0]->w.out;
    struct tensor gate = { st->moe.gate, pairs, ff, ff };
    struct cu_quantise q;
    struct cu_glu glu;
    struct cu_experts c = experts_of(st, e, (int)x.rows);
    add_route(st, logits, e, bias, scale);
    add_quantise(st, x, e->gate[0]->w.units, st->xq[st->xq_i], flags, &q);
    cuda_append(st, CUDA_OP_QUANTISE, &q, sizeof(q));
    shape_of(&c, e->gate[0], &q, used);
    c.n_jobs = 2;
    c.w[0] = sets[0], c.w[1] = sets[1];
    c.bias[0] = e->b_gate, c.bias[1] = e->b_up;
    c.y[0] = st->moe.gate, c.y[1] = st->moe.up;
    cuda_append(st, CUDA_OP_EXPERTS, &c, sizeof(c));
    memset(&glu, 0, sizeof(glu));
    glu.e.y = glu.e.a = glu.e.b = cu_of(gate);
    glu.e.b.data = st->moe.up;
    glu.e.op = CU_EW_GLU;
    glu.e.kind = cuda_act_of(e->glu);
    add_quantise(st, gate, e->down[0]->w.units, st->xq[st->xq_i ^ 1], st->moe.flags, &glu.q);
    cuda_append(st, CUDA_OP_GLU, &glu, sizeof(glu));
    c = experts_of(st, e, (int)x.rows);
    shape_of(&c, e->down[0], &glu.q, 1);
    c.n_jobs = 1;
    c.w[0] = sets[2];
    c.bias[0] = e->b_down;
    c.y[0] = st->moe.out;
    cuda_append(st, CUDA_OP_EXPERTS, &c, sizeof(c));
    struct cu_combine sum;
    memset(&sum, 0, sizeof(sum));
    sum.y = cu_of(y);
    sum.x = st->moe.out;
    sum.w = st->moe.w;
    sum.pair_flags = st->moe.flags;
    sum.flags = flags;
    sum.n_used = used;
    cuda_append(st, CUDA_OP_COMBINE, &sum, sizeof(sum));
}

bool cuda_moe(struct backend *be, struct tensor y, struct tensor x, struct tensor logits,
              const struct experts *e)
{
    struct cuda_state *st = cuda_of(be);
    const struct weight *const *const all[3] = { e->gate, e->up, e->down };
    const struct cu_expert *sets[3];
    int used = e->route->n_used;
    size_t bytes = (size_t)e->n * sizeof(float);
    if (st->is_plain || used > CU_USED_MAX || e->n > BACKEND_EXPERTS_MAX ||
        e->up[0]->w.format != e->gate[0]->w.format || e->up[0]->w.group != e->gate[0]->w.group ||
        !moe_reserve(st, e->gate[0]->w.out, x.cols))
        return false;
    for (int i = 0; i < 3; i++)
        if (!(sets[i] = moe_set(st, all[i], e->n)))
            return false;
    cuda_room(st);
    const float *bias = e->route->bias ? cuda_put(st, e->route->bias, bytes, NULL) : NULL;
    const float *scale = e->scale ? cuda_put(st, e->scale, bytes, NULL) : NULL;
    int64_t chunk = CUDA_ROW_CHUNK / used;
    for (int64_t t = 0; t < x.rows; t += chunk) {
        int64_t n = x.rows - t < chunk ? x.rows - t : chunk;
        struct tensor parts[3] = { y, x, logits };
        for (int i = 0; i < 3; i++) {
            parts[i].data += t * parts[i].stride;
            parts[i].rows = n;
        }
        moe_chunk(st, parts[0], parts[1], parts[2], e, sets, bias, scale, st->flags + t);
    }
    return true;
}
