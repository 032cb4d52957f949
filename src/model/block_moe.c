/* block_moe.c - mixtures of experts: the rows of a step are grouped by expert, so that each expert's weights are read once.
 *
 * Nothing that a row gets depends on the others: an expert's matrices give each row the bits they give it alone, and its results
 * are added in the order of the experts' ids. */
#include "model/model_int.h"
#include "tensor/ops.h"

#include <math.h>
#include <string.h>

struct model_moe {
    struct backend *be;
    size_t bytes;
    float *block;          /* backend memory, one allocation */
    float *logits;         /* [T][E] */
    float *in, *out, *sum; /* [T][D] */
    float *norm;           /* [T][D] of block_moe_beside */
    /* host memory */
    int32_t *ids, *rows; /* [T][n_used] by row; by expert, its rows ascending */
    float *w, *row_w;    /* the same */
    uint8_t *is_first;   /* [T][n_used] by expert: the row's first */
    uint8_t *failed;     /* [T] */
    int32_t *start;      /* [E + 1] in rows */
};

void block_moe_release(struct model_moe *moe)
{
    if (!moe)
        return;
    if (moe->block)
        moe->be->ops->free(moe->be, MEM_CAT_SCRATCH, moe->block, moe->bytes);
    void *const host[] = { moe->ids,      moe->rows,   moe->w,    moe->row_w,
                           moe->is_first, moe->failed, moe->start };
    for (size_t i = 0; i < ARRAY_LEN(host); i++)
        mem_free(MEM_CAT_SCRATCH, host[i]);
    mem_free(MEM_CAT_SCRATCH, moe);
}

enum err_code block_moe_scratch(const struct model *m, int max_rows, struct model_moe **out,
                                struct err *err)
{
    *out = NULL;
    if (m->n_experts == 0)
        return ERR_OK;
    struct model_moe *moe = mem_try(MEM_CAT_SCRATCH, sizeof(*moe));
    if (!moe)
        return err_set(err, ERR_NOMEM, "step buffers: no memory for the experts");
    size_t rows = (size_t)max_rows, n = rows * (size_t)m->route.n_used;
    size_t width = (size_t)m->width, experts = (size_t)m->n_experts;
    moe->be = m->be;
    moe->bytes = rows * (experts + 4 * width) * sizeof(float);
    moe->block = m->be->ops->alloc(m->be, MEM_CAT_SCRATCH, moe->bytes);
    moe->ids = mem_try_array(MEM_CAT_SCRATCH, n, sizeof(*moe->ids));
    moe->rows = mem_try_array(MEM_CAT_SCRATCH, n, sizeof(*moe->rows));
    moe->w = mem_try_array(MEM_CAT_SCRATCH, n, sizeof(*moe->w));
    moe->row_w = mem_try_array(MEM_CAT_SCRATCH, n, sizeof(*moe->row_w));
    moe->is_first = mem_try_array(MEM_CAT_SCRATCH, n, sizeof(*moe->is_first));
    moe->failed = mem_try_array(MEM_CAT_SCRATCH, rows, sizeof(*moe->failed));
    moe->start = mem_try_array(MEM_CAT_SCRATCH, experts + 1, sizeof(*moe->start));
    if (!moe->block || !moe->ids || !moe->rows || !moe->w || !moe->row_w || !moe->is_first ||
        !moe->failed || !moe->start) {
        size_t mib = moe->bytes >> 20;
        block_moe_release(moe);
        return err_set(err, ERR_NOMEM, "step buffers: no memory for %zu MiB (experts, %d tokens)",
                       mib, max_rows);
    }
    moe->in = moe->block;
    moe->out = moe->in + rows * width;
    moe->sum = moe->out + rows * width;
    moe->norm = moe->sum + rows * width;
    moe->logits = moe->norm + rows * width;
    *out = moe;
    return ERR_OK;
}

/* ids [n][n_used] to each expert's rows, by counting. */
static void moe_group(const struct model *m, struct model_moe *moe, int64_t n)
{
    int used = m->route.n_used;
    int32_t *start = moe->start;
    memset(start, 0, (size_t)(m->n_experts + 1) * sizeof(*start));
    for (int64_t i = 0; i < n * used; i++)
        start[moe->ids[i] + 1]++;
    for (int64_t e = 0; e < m->n_experts; e++)
        start[e + 1] += start[e];
    for (int64_t i = 0; i < n * used; i++) {
        int32_t at = start[moe->ids[i]]++; /* becomes the end of the expert's rows */
        moe->rows[at] = (int32_t)(i / used);
        moe->row_w[at] = moe->w[i];
        moe->is_first[at] = i % used == 0;
    }
    memmove(start + 1, start, (size_t)m->n_experts * sizeof(*start));
    start[0] = 0;
}

/* out = expert e of in. */
static void moe_expert(const struct model *m, struct model_step *st, const struct model_layer *l,
                       int64_t e, struct tensor in, struct tensor out)
{
    int64_t ff = m->n_ff_expert;
    struct tensor gate = tensor_of(st->scratch->gate, in.rows, ff);
    struct tensor up = tensor_of(st->scratch->up, in.rows, ff);
    ops_linear_many(m->be, 2, (const struct tensor[]){ gate, up }, in,
                    (const struct weight *const[]){ l->w_gate_e[e], l->w_up_e[e] });
    if (l->b_gate_e)
        ops_add_bias(m->be, gate, l->b_gate_e + e * ff);
    if (l->b_up_e)
        ops_add_bias(m->be, up, l->b_up_e + e * ff);
    ops_glu(m->be, gate, gate, up, m->glu);
    ops_linear(m->be, out, gate, l->w_down_e[e]);
    if (l->b_down_e)
        ops_add_bias(m->be, out, l->b_down_e + e * m->width);
}

/* The router's numbers for the rows of x. */
static struct tensor moe_logits(const struct model *m, struct model_step *st,
                                const struct model_layer *l, struct tensor x)
{
    struct tensor logits = tensor_of(st->scratch->moe->logits, x.rows, m->n_experts);
    ops_linear(m->be, logits, x, l->router);
    if (l->b_router)
        ops_add_bias(m->be, logits, l->b_router);
    return logits;
}

/* Which experts the rows of x go to. */
static void moe_route(const struct model *m, struct model_step *st, const struct model_layer *l,
                      struct tensor x, struct tensor logits)
{
    struct model_moe *moe = st->scratch->moe;
    ops_route(m->be, logits, &m->route, moe->ids, moe->w);
    for (int64_t i = 0; l->expert_scale && i < x.rows * m->route.n_used; i++)
        moe->w[i] *= l->expert_scale[moe->ids[i]];
    moe_group(m, moe, x.rows);
}

/* sum = what the experts make of x, as they were routed. */
static void moe_experts(const struct model *m, struct model_step *st, const struct model_layer *l,
                        struct tensor x, struct tensor sum)
{
    struct model_moe *moe = st->scratch->moe;
    ops_failed(m->be, st->flags); /* the flags of the next ops are those of an expert's rows */
    for (int64_t e = 0; e < m->n_experts; e++) {
        int32_t at = moe->start[e], n = moe->start[e + 1] - at;
        if (n == 0)
            continue;
        struct tensor in = tensor_of(moe->in, n, m->width), out = tensor_of(moe->out, n, m->width);
        ops_begin(m->be, n);
        ops_gather(m->be, in, x, moe->rows + at);
        moe_expert(m, st, l, e, in, out);
        ops_scatter_add(m->be, sum, out, moe->rows + at, moe->row_w + at, moe->is_first + at);
        memset(moe->failed, 0, (size_t)n);
        ops_failed(m->be, moe->failed);
        for (int32_t i = 0; i < n; i++)
            st->flags[moe->rows[at + i]] |= moe->failed[i];
    }
    ops_begin(m->be, (int)x.rows);
}

/* The same by the host, whose memory has the layer's experts: the rows go there and what is made of them comes back. */
static void moe_experts_host(const struct model *m, struct model_step *st,
                             const struct model_layer *l, struct tensor x, struct tensor sum)
{
    struct model_scratch *s = st->scratch, buffers = *s->host;
    struct model_moe moe = *s->moe, *own = s->host->moe;
    struct model host = *m;
    size_t bytes = (size_t)(x.rows * x.cols) * sizeof(float);
    BUG_ON(x.stride != x.cols || sum.stride != sum.cols);
    host.be = m->host;
    moe.in = own->in;
    moe.out = own->out;
    buffers.moe = &moe;
    m->be->ops->download(m->be, own->norm, x.data, bytes);
    st->scratch = &buffers;
    ops_begin(host.be, (int)x.rows);
    moe_experts(&host, st, l, tensor_of(own->norm, x.rows, x.cols),
                tensor_of(own->sum, x.rows, x.cols));
    st->scratch = s;
    m->be->ops->upload(m->be, sum.data, own->sum, bytes);
}

/* sum = what the experts make of x, routed by logits. */
static void moe_sum(const struct model *m, struct model_step *st, const struct model_layer *l,
                    struct tensor x, struct tensor logits, struct tensor sum)
{
    int64_t layer_i = l - m->layers;
    bool is_hosts = layer_i >= m->n_host_layers && layer_i < m->n_host_experts;
    struct experts e = { .route = &m->route,
                         .n = (int)m->n_experts,
                         .gate = (const struct weight *const *)l->w_gate_e,
                         .up = (const struct weight *const *)l->w_up_e,
                         .down = (const struct weight *const *)l->w_down_e,
                         .b_gate = l->b_gate_e,
                         .b_up = l->b_up_e,
                         .b_down = l->b_down_e,
                         .scale = l->expert_scale,
                         .glu = m->glu };
    if (!is_hosts && ops_moe(m->be, sum, x, logits, &e))
        return;
    block_start(m, st); /* what comes next is waited for */
    moe_route(m, st, l, x, logits);
    if (is_hosts)
        moe_experts_host(m, st, l, x, sum);
    else
        moe_experts(m, st, l, x, sum);
}

void block_moe(const struct model *m, struct model_step *st, const struct model_layer *l,
               struct tensor x)
{
    struct model_moe *moe = st->scratch->moe;
    struct tensor sum = tensor_of(x.data == moe->sum ? st->scratch->h : moe->sum, x.rows, m->width);
    moe_sum(m, st, l, x, moe_logits(m, st, l, x), sum);
    st->h = sum;
}

void block_moe_beside(const struct model *m, struct model_step *st, const struct model_layer *l)
{
    struct model_moe *moe = st->scratch->moe;
    struct tensor norm = tensor_of(moe->norm, st->x.rows, m->width);
    struct tensor sum = tensor_of(moe->sum, st->x.rows, m->width);
    block_ffn_dense(m, st, l, st->h);
    block_post_norm(m, st, l->ffn_out_norm);
    ops_rms_norm(m->be, norm, st->x, l->router_norm, (int)m->width, m->eps);
    ops_scale(m->be, norm, 1 / sqrtf((float)m->width));
    struct tensor logits = moe_logits(m, st, l, norm);
    ops_rms_norm(m->be, norm, st->x, l->expert_norm, (int)m->width, m->eps);
    moe_sum(m, st, l, norm, logits, sum);
    ops_rms_norm(m->be, sum, sum, l->expert_out_norm, (int)m->width, m->eps);
    ops_add(m->be, st->h, sum);
}

void block_moe_shared(const struct model *m, struct model_step *st, const struct model_layer *l,
                      struct tensor x)
{
    struct tensor gate = tensor_of(st->scratch->gate, x.rows, l->n_ff);
    struct tensor up = tensor_of(st->scratch->up, x.rows, l->n_ff);
    struct tensor g = tensor_of(st->scratch->moe->logits, x.rows, 1);
    block_moe(m, st, l, x);
    ops_linear(m->be, g, x, l->w_shared_gate);
    ops_linear_many(m->be, 2, (const struct tensor[]){ gate, up }, x,
                    (const struct weight *const[]){ l->w_gate, l->w_up });
    ops_glu(m->be, gate, gate, up, m->glu);
    ops_linear(m->be, x, gate, l->w_down);
    ops_gate_rows(m->be, x, g);
    ops_add(m->be, st->h, x);
}
