/* From ops to commands. */
#include "kernels/cuda/cuda_int.h"

#include "tensor/kvq.h"
#include "tensor/route.h"

#include <cuda_runtime_api.h>
#include <string.h>

#define WIDE_SLOTS   (8 * CU_SLOTS) /* of a tile of the kernel for many rows */
#define NARROW_SLOTS (2 * CU_SLOTS) /* that a sequence has at most without it */

static struct tensor rows_of(struct tensor t, int64_t first, int64_t n)
{
    t.data += first * t.stride;
    t.rows = n;
    return t;
}

/* --- products --- */

static void cuda_embed(struct backend *be, struct tensor y, const struct weight *w,
                       const int32_t *ids)
{
    cuda_room(cuda_of(be));
    struct cuda_state *st = cuda_of(be);
    struct cu_embed c;
    memset(&c, 0, sizeof(c));
    c.y = cu_of(y);
    c.w = w->w;
    c.ids = cuda_put(st, ids, (size_t)y.rows * sizeof(*ids), NULL);
    cuda_add(st, CUDA_OP_EMBED, &c, sizeof(c));
}

static bool is_tiled(const struct cuda_state *st, int64_t rows)
{
    return !st->is_plain && st->arch == 90 && rows > CU_GEMV_ROWS;
}

/* Whether segments go to blocks of their own: few rows, and too few blocks otherwise. */
static bool is_split(const struct cuda_state *st, const struct cu_linear *c)
{
    size_t columns = 0;
    for (int i = 0; i < c->n_jobs; i++)
        columns += (size_t)(c->w[i].out + 127) / 128 * 128;
    return c->rows <= CU_SPLIT_ROWS && columns / 128 < (size_t)st->n_sm &&
           columns * (size_t)c->rows * CU_SEGMENTS * sizeof(float) <= CUDA_PARTIAL;
}

/* Rings take up to 131 KiB of shared memory a block: compute capabilities before 9.0 and 12.0 have less (CUDA programming guide). */
static bool has_ring(const struct cuda_state *st, int rows)
{
    return st->arch >= 90 && st->arch < 120 && rows <= CU_GEMV_ROWS;
}

static void add_linear(struct cuda_state *st, struct cu_linear *c)
{
    enum cuda_op op = st->is_plain            ? CUDA_OP_LINEAR_PLAIN
                      : is_tiled(st, c->rows) ? CUDA_OP_LINEAR_WGMMA
                      : has_ring(st, c->rows) ? CUDA_OP_LINEAR_RING
                                              : CUDA_OP_LINEAR;
    if (op == CUDA_OP_LINEAR_WGMMA && is_split(st, c))
        c->partial = st->partial;
    cuda_add(st, op, c, sizeof(*c));
    c->partial = NULL;
    c->n_jobs = 0;
}

/* n weights on one x of at most CUDA_ROW_CHUNK rows from row0 on. Weights of one format go together. */
static void linear_chunk(struct cuda_state *st, int n, const struct tensor *y, struct tensor x,
                         const struct weight *const *w, int64_t row0)
{
    struct cu_quantise q;
    struct cu_linear c;
    memset(&q, 0, sizeof(q));
    memset(&c, 0, sizeof(c));
    q.x = cu_of(x);
    q.out = st->xq[st->xq_i];
    st->xq_i ^= 1;
    q.units = w[0]->w.units;
    q.is_tiled = is_tiled(st, x.rows);
    q.pad_rows = (int)((x.rows + 7) / 8 * 8);
    q.flags = st->flags + row0;
    cuda_add(st, CUDA_OP_QUANTISE, &q, sizeof(q));
    c.x = q.out;
    c.n_sm = st->n_sm;
    c.rows = (int)x.rows;
    c.pad_rows = q.pad_rows;
    for (int i = 0; i < n; i++) {
        if (c.n_jobs > 0 && (c.w[0].format != w[i]->w.format || c.w[0].group != w[i]->w.group))
            add_linear(st, &c);
        c.w[c.n_jobs] = w[i]->w;
        c.y[c.n_jobs] = y[i].data + row0 * y[i].stride;
        c.stride[c.n_jobs++] = y[i].stride;
    }
    add_linear(st, &c);
}

static void cuda_linear_many(struct backend *be, int n, const struct tensor *y, struct tensor x,
                             const struct weight *const *w)
{
    for (int64_t t = 0; t < x.rows; t += CUDA_ROW_CHUNK) {
        int64_t rows = x.rows - t < CUDA_ROW_CHUNK ? x.rows - t : CUDA_ROW_CHUNK;
        linear_chunk(cuda_of(be), n, y, rows_of(x, t, rows), w, t);
    }
}

static void cuda_linear(struct backend *be, struct tensor y, struct tensor x,
                        const struct weight *w)
{
    cuda_linear_many(be, 1, &y, x, &w);
}

/* --- element-wise --- */

static void elementwise(struct backend *be, struct cu_elementwise *c, enum cu_ew op)
{
    c->op = (int)op;
    cuda_add(cuda_of(be), CUDA_OP_ELEMENTWISE, c, sizeof(*c));
}

#define ELEMENTWISE(y_)       \
    struct cu_elementwise c;  \
    memset(&c, 0, sizeof(c)); \
    c.y = cu_of(y_)

int cuda_act_of(enum glu_kind kind)
{
    static const int acts[] = { [GLU_KIND_SILU] = CU_ACT_SILU,
                                [GLU_KIND_GELU_TANH] = CU_ACT_GELU_TANH,
                                [GLU_KIND_GELU_ERF] = CU_ACT_GELU_ERF,
                                [GLU_KIND_SIGMOID] = CU_ACT_SIGMOID,
                                [GLU_KIND_SWIGLU_CLAMPED] = CU_ACT_SWIGLU_CLAMPED };
    BUG_ON((size_t)kind >= ARRAY_LEN(acts));
    return acts[kind];
}

static void cuda_add_bias(struct backend *be, struct tensor y, const float *b)
{
    ELEMENTWISE(y);
    c.v = b;
    elementwise(be, &c, CU_EW_ADD_BIAS);
}

static void cuda_add_rows(struct backend *be, struct tensor y, struct tensor x)
{
    ELEMENTWISE(y);
    c.a = cu_of(x);
    elementwise(be, &c, CU_EW_ADD);
}

static void cuda_scale(struct backend *be, struct tensor y, float s)
{
    ELEMENTWISE(y);
    c.s = s;
    elementwise(be, &c, CU_EW_SCALE);
}

static void cuda_softcap(struct backend *be, struct tensor y, float cap)
{
    ELEMENTWISE(y);
    c.s = cap;
    elementwise(be, &c, CU_EW_SOFTCAP);
}

static void cuda_copy(struct backend *be, struct tensor y, struct tensor x)
{
    ELEMENTWISE(y);
    c.a = cu_of(x);
    elementwise(be, &c, CU_EW_COPY);
}

static void cuda_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
                     enum glu_kind kind)
{
    ELEMENTWISE(y);
    c.a = cu_of(gate);
    c.b = cu_of(up);
    c.kind = cuda_act_of(kind);
    elementwise(be, &c, CU_EW_GLU);
}

static void cuda_act(struct backend *be, struct tensor y, enum glu_kind kind)
{
    ELEMENTWISE(y);
    c.kind = cuda_act_of(kind);
    elementwise(be, &c, CU_EW_ACT);
}

static void cuda_gate_rows(struct backend *be, struct tensor y, struct tensor g)
{
    ELEMENTWISE(y);
    c.a = cu_of(g);
    elementwise(be, &c, CU_EW_GATE_ROWS);
}

static void cuda_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows)
{
    cuda_room(cuda_of(be));
    ELEMENTWISE(y);
    c.a = cu_of(x);
    c.rows = cuda_put(cuda_of(be), rows, (size_t)y.rows * sizeof(*rows), NULL);
    elementwise(be, &c, CU_EW_GATHER);
}

static void cuda_scatter_add(struct backend *be, struct tensor y, struct tensor x,
                             const int32_t *rows, const float *w, const uint8_t *is_first)
{
    cuda_room(cuda_of(be));
    struct cuda_state *st = cuda_of(be);
    size_t n = (size_t)x.rows;
    ELEMENTWISE(y);
    c.a = cu_of(x);
    c.rows = cuda_put(st, rows, n * sizeof(*rows), NULL);
    c.v = cuda_put(st, w, n * sizeof(*w), NULL);
    c.first = cuda_put(st, is_first, n, NULL);
    elementwise(be, &c, CU_EW_SCATTER);
}

/* --- norms --- */

static void norm(struct backend *be, struct tensor y, struct tensor x, enum cu_norm_kind kind,
                 int n, const float *w, const float *b, float eps, float scale)
{
    struct cu_norm c;
    memset(&c, 0, sizeof(c));
    c.y = cu_of(y);
    c.x = cu_of(x);
    c.kind = (int)kind;
    c.n = n;
    c.w = w;
    c.b = b;
    c.eps = eps;
    c.scale = scale;
    cuda_add(cuda_of(be), CUDA_OP_NORM, &c, sizeof(c));
}

static void cuda_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                          int n, float eps)
{
    norm(be, y, x, CU_NORM_RMS, n, w, NULL, eps, 1);
}

static void cuda_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                         float scale)
{
    norm(be, y, x, CU_NORM_L2, n, NULL, NULL, eps, scale);
}

static void cuda_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                            const float *b, float eps)
{
    norm(be, y, x, CU_NORM_LAYER, (int)x.cols, w, b, eps, 1);
}

/* --- rotary embeddings --- */

/* Memory for a table; kept for the next ones that fit. */
static bool table_reserve(struct cuda_state *st, struct cuda_table *t, size_t bytes)
{
    struct err err;
    if (bytes <= t->bytes)
        return true;
    float *data = cuda_take(st, MEM_CAT_SCRATCH, 2 * bytes, "rotary embeddings", &err);
    if (!data) {
        cuda_fault(st, "rotary embeddings", (int)cudaErrorMemoryAllocation);
        return false;
    }
    cuda_sync(st);
    cuda_give(st, MEM_CAT_SCRATCH, t->data, t->bytes);
    t->data = data;
    t->bytes = 2 * bytes;
    return true;
}

/* The cosines and sines of the rows, made once for all heads and layers. NULL: a fault. */
static const float *rope_table(struct cuda_state *st, const struct rope *r, const int32_t *pos,
                               int64_t rows)
{
    const int32_t *at = cuda_put_pos(st, pos, rows);
    int half = r->n_dims / 2;
    for (int i = 0; i < st->n_tables; i++) {
        const struct cuda_table *t = &st->tables[i];
        if (t->inv_freq == r->inv_freq && t->half == half && t->scale == r->scale && t->pos == at &&
            t->rows == rows)
            return t->data;
    }
    if (st->n_tables == CUDA_TABLES)
        st->n_tables = 0; /* the commands before this one have read it by then */
    struct cuda_table *t = &st->tables[st->n_tables];
    if (!table_reserve(st, t, (size_t)rows * (size_t)half * 2 * sizeof(float)))
        return NULL;
    at = cuda_put_pos(st, pos, rows); /* making room may have run what was recorded */
    st->n_tables = (int)(t - st->tables) + 1;
    t->inv_freq = r->inv_freq;
    t->half = half;
    t->scale = r->scale;
    t->pos = at;
    t->rows = rows;
    struct cu_rope_table c;
    memset(&c, 0, sizeof(c));
    c.table = t->data;
    c.inv_freq = cuda_put(st, r->inv_freq, (size_t)half * sizeof(float), NULL);
    c.pos = at;
    c.scale = r->scale;
    c.rows = (int)rows;
    c.half = half;
    cuda_add(st, CUDA_OP_ROPE_TABLE, &c, sizeof(c));
    return t->data;
}

static void cuda_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
                      const int32_t *pos)
{
    cuda_room(cuda_of(be));
    struct cuda_state *st = cuda_of(be);
    struct cu_rope c;
    memset(&c, 0, sizeof(c));
    c.table = rope_table(st, r, pos, x.rows);
    c.x = cu_of(x);
    c.head_dim = head_dim;
    c.half = r->n_dims / 2;
    c.is_neox = r->kind == ROPE_KIND_NEOX;
    if (c.table)
        cuda_add(st, CUDA_OP_ROPE, &c, sizeof(c));
}

/* --- caches and attention --- */

static int pad_dim(int head_dim)
{
    return (head_dim + CU_UNIT - 1) / CU_UNIT * CU_UNIT;
}

size_t cuda_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim)
{
    if (kvq_is(type))
        return (size_t)n_kv_heads * kv_head_bytes(type, head_dim);
    return (size_t)n_kv_heads * 2 * CU_PAGE * (size_t)pad_dim(head_dim) * sizeof(uint16_t);
}

static bool cuda_caches(const struct backend *be, enum dtype type)
{
    return type == DTYPE_F16 || type == DTYPE_BF16 || kvq_is(type);
}

static struct cu_kv kv_of(const struct backend *be, const struct kv_layer *kv)
{
    struct cu_kv c;
    memset(&c, 0, sizeof(c));
    BUG_ON(!cuda_caches(be, kv->type) || kvq_is(kv->type));
    c.data = kv->data;
    c.page_bytes = (int64_t)cuda_kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim);
    c.type = kv->type == DTYPE_BF16;
    c.n_kv_heads = kv->n_kv_heads;
    c.head_dim = kv->head_dim;
    c.pad_dim = pad_dim(kv->head_dim);
    c.n_pages = kv->n_pages;
    return c;
}

static void cuda_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                          const struct seq_view *seqs, int n_seqs)
{
    cuda_room(cuda_of(be));
    struct cuda_state *st = cuda_of(be);
    if (kvq_is(kv->type)) {
        cuda_kvq_store(be, kv, k, v, seqs, n_seqs);
        return;
    }
    const struct cuda_plan *plan = cuda_put_seqs(st, seqs, n_seqs, k.rows);
    struct cu_kv_store c;
    memset(&c, 0, sizeof(c));
    c.kv = kv_of(be, kv);
    c.k = cu_of(k);
    c.v = cu_of(v);
    c.rows = plan->dev_rows;
    c.seqs = plan->dev_seqs;
    c.pages = cuda_pages(st);
    c.flags = st->flags;
    cuda_add(st, CUDA_OP_KV_STORE, &c, sizeof(c));
}

static void copy_now(struct cuda_state *st, void *dst, const void *src, size_t bytes)
{
    cuda_flush(st);
    cuda_fault(
        st, "copy",
        (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)st->stream));
}

static void cuda_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src)
{
    size_t page = cuda_kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim);
    copy_now(cuda_of(be), kv->data + (size_t)dst * page, kv->data + (size_t)src * page, page);
}

/* The tiles of the sequences that the kernel for many rows takes, or of the others (has_wide false: of all); *rows: that they have together. */
static int put_tiles(struct cuda_state *st, const struct seq_view *seqs, int n_seqs, int per,
                     bool has_wide, bool is_wide, const struct cu_tile **dev, int *rows)
{
    int slots = is_wide ? WIDE_SLOTS : CU_SLOTS, n = 0;
    struct cu_tile *host;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1)
            *dev = cuda_put(st, NULL, (size_t)n * sizeof(*host), (void **)&host);
        n = *rows = 0;
        for (int i = 0; i < n_seqs; i++) {
            int all = seqs[i].n_rows * per;
            if (has_wide && (all > NARROW_SLOTS) != is_wide)
                continue;
            *rows += seqs[i].n_rows;
            for (int s = 0; s < all; s += slots, n++)
                if (pass == 1)
                    host[n] = (struct cu_tile){ i, s };
        }
        if (n == 0)
            return 0;
    }
    return n;
}

/* Splits in blocks of their own, rounded up to a power of two so that steps at many lengths are one list of commands; 0: too many rows for
 * that, or the partial sums would not fit. */
static int splits_of(const struct cuda_state *st, const struct cu_attention *c,
                     const struct seq_view *seqs, int n_seqs)
{
    int64_t most = 1, n = 1;
    for (int i = 0; i < n_seqs; i++)
        if (seqs[i].n_rows > 0 && (seqs[i].pos0 + seqs[i].n_rows - 1) / CU_SPLIT + 1 > most)
            most = (seqs[i].pos0 + seqs[i].n_rows - 1) / CU_SPLIT + 1;
    while (n < most)
        n *= 2;
    size_t floats =
        (size_t)c->q.rows * (size_t)c->n_heads * (size_t)n * (size_t)(c->kv.pad_dim + 4);
    if (most == 1 || c->n_tiles * c->kv.n_kv_heads > 2 * st->n_sm ||
        floats * sizeof(float) > CUDA_PARTIAL)
        return 0;
    return (int)n;
}

static struct cu_attention attention_of(struct cuda_state *st, struct tensor out, struct tensor q,
                                        struct cu_kv pages, const struct attn_params *p)
{
    struct cu_attention c;
    memset(&c, 0, sizeof(c));
    c.kv = pages;
    c.out = cu_of(out);
    c.q = cu_of(q);
    c.pages = cuda_pages(st);
    c.flags = st->flags;
    c.scale = p->scale;
    c.softcap = p->softcap;
    c.window = p->window;
    c.n_heads = p->n_heads;
    c.per = p->n_heads / pages.n_kv_heads;
    c.per_magic =
        c.per > 1 ? (uint32_t)((((uint64_t)1 << 32) + (uint64_t)c.per - 1) / (uint64_t)c.per) : 0;
    if (p->sinks)
        c.sinks = cuda_put(st, p->sinks, (size_t)p->n_heads * sizeof(float), NULL);
    return c;
}

static void add_attention(struct cuda_state *st, struct cu_attention *c,
                          const struct seq_view *seqs, int n_seqs, bool has_wide, bool is_wide)
{
    c->seqs = cuda_put_seqs(st, seqs, n_seqs, c->q.rows)->dev_seqs;
    c->n_tiles = put_tiles(st, seqs, n_seqs, c->per, has_wide, is_wide, &c->tiles, &c->n_rows);
    if (c->n_tiles == 0)
        return;
    c->is_wide = is_wide;
    c->n_splits = is_wide || st->is_plain ? 0 : splits_of(st, c, seqs, n_seqs);
    c->partial = c->n_splits ? st->partial : NULL;
    c->is_whole = c->n_rows == c->q.rows && c->kv.head_dim % 2 == 0;
    cuda_add(st, st->is_plain ? CUDA_OP_ATTENTION_PLAIN : CUDA_OP_ATTENTION, c, sizeof(*c));
}

/* Rows that see later positions, by the kernels of those that do not: each is a sequence of its own, at the last position that it sees. Its
 * window is longer by as much, and the same for all rows of a command: those whose window is cut by the end have one each. */
static void attention_by_rows(struct cuda_state *st, const struct cu_attention *from,
                              const struct seq_view *seqs, int n_seqs, const struct attn_params *p)
{
    int n = 0;
    for (int i = 0; i < n_seqs; i++)
        for (int t = 0; t < seqs[i].n_rows; t++) {
            int32_t pos = seqs[i].pos0 + t, end = attn_end(p, &seqs[i], pos);
            struct seq_view one = seqs[i];
            one.row0 += t;
            one.n_rows = 1;
            one.pos0 = end - 1;
            if (p->window == 0 || end - pos == p->window) {
                st->row_views[n++] = one;
                continue;
            }
            struct cu_attention c = *from;
            cuda_room(st);
            c.window = end - 1 - pos + p->window;
            st->row_views[BACKEND_ROWS_MAX] = one;
            add_attention(st, &c, &st->row_views[BACKEND_ROWS_MAX], 1, false, false);
        }
    struct cu_attention c = *from;
    cuda_room(st);
    c.window = p->window ? 2 * p->window - 1 : 0;
    if (n > 0)
        add_attention(st, &c, st->row_views, n, false, false);
}

static void cuda_attention(struct backend *be, struct tensor out, struct tensor q,
                           const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                           const struct attn_params *p)
{
    cuda_room(cuda_of(be));
    struct cuda_state *st = cuda_of(be);
    struct cu_kv pages;
    bool is_read = kvq_is(kv->type) && cuda_kvq_pages(be, kv, p, &pages);
    struct cu_attention c;
    if (is_read) {
        c = attention_of(st, out, q, pages, p);
        c.has_old = true;
        add_attention(st, &c, seqs, n_seqs, true, false);
    }
    int n_few = is_read ? NARROW_SLOTS / (p->n_heads / kv->n_kv_heads) : 0;
    if (!kvq_is(kv->type))
        pages = kv_of(be, kv);
    else if (!cuda_kvq_expand(be, kv, seqs, n_seqs, q.rows, n_few, p->window, &pages))
        return;
    c = attention_of(st, out, q, pages, p);
    /* Not where the step itself writes what is read: pages taken out of a quantised cache, later positions. */
    c.has_old = !kvq_is(kv->type) && !p->is_two_way;
    bool has_wide = !st->is_plain && c.kv.pad_dim <= 128;
    if (p->is_two_way && has_wide) {
        c.is_both = true;
        add_attention(st, &c, seqs, n_seqs, false, true);
    } else if (p->is_two_way) {
        BUG_ON(c.sinks); /* they would not outlive the room that is made */
        attention_by_rows(st, &c, seqs, n_seqs, p);
    } else {
        if (!is_read)
            add_attention(st, &c, seqs, n_seqs, has_wide, false);
        if (has_wide)
            add_attention(st, &c, seqs, n_seqs, has_wide, true);
    }
}

/* --- mixtures of experts --- */

static void cuda_route(struct backend *be, struct tensor logits, const struct route *r,
                       int32_t *ids, float *w)
{
    struct cuda_state *st = cuda_of(be);
    size_t row = (size_t)logits.cols * sizeof(float);
    int64_t piece = (int64_t)(CUDA_STAGING / row);
    for (int64_t t0 = 0; t0 < logits.rows; t0 += piece) {
        int64_t n = logits.rows - t0 < piece ? logits.rows - t0 : piece;
        cuda_flush(st);
        cuda_fault(st, "router",
                   (int)cudaMemcpy2DAsync(st->staging, row, logits.data + t0 * logits.stride,
                                          (size_t)logits.stride * sizeof(float), row, (size_t)n,
                                          cudaMemcpyDeviceToHost, (cudaStream_t)st->stream));
        cuda_sync(st);
        for (int64_t t = 0; t < n; t++)
            route_row(r, st->staging + t * logits.cols, (int)logits.cols,
                      ids + (t0 + t) * r->n_used, w + (t0 + t) * r->n_used);
    }
}

/* --- recurrent layers --- */

static void cuda_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                           struct state_layer *state, const struct seq_view *seqs, int n_seqs)
{
    cuda_room(cuda_of(be));
    struct cuda_state *st = cuda_of(be);
    const struct cuda_plan *plan = cuda_put_seqs(st, seqs, n_seqs, x.rows);
    struct cu_conv c;
    memset(&c, 0, sizeof(c));
    c.y = cu_of(y);
    c.x = cu_of(x);
    c.w = w;
    c.state = state->conv;
    c.rows = plan->dev_rows;
    c.seqs = plan->dev_seqs;
    c.taps = state->taps;
    c.n_seqs = n_seqs;
    cuda_add(st, CUDA_OP_CONV, &c, sizeof(c));
}

static void cuda_delta_gates(struct backend *be, struct tensor a, struct tensor b,
                             const float *bias, const float *s)
{
    struct cu_delta_gates c;
    memset(&c, 0, sizeof(c));
    c.a = cu_of(a);
    c.b = cu_of(b);
    c.bias = bias;
    c.scale = s;
    cuda_add(cuda_of(be), CUDA_OP_DELTA_GATES, &c, sizeof(c));
}

static void cuda_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                            struct tensor v, struct tensor decay, struct tensor beta,
                            struct state_layer *state, const struct seq_view *seqs, int n_seqs)
{
    cuda_room(cuda_of(be));
    struct cuda_state *st = cuda_of(be);
    struct cu_delta c;
    memset(&c, 0, sizeof(c));
    c.out = cu_of(out);
    c.q = cu_of(q);
    c.k = cu_of(k);
    c.v = cu_of(v);
    c.decay = cu_of(decay);
    c.beta = cu_of(beta);
    c.matrix = state->matrix;
    c.seqs = cuda_put_seqs(st, seqs, n_seqs, q.rows)->dev_seqs;
    c.n_seqs = n_seqs;
    c.n_heads = state->n_heads;
    c.n_key_heads = state->n_key_heads;
    c.key_dim = state->key_dim;
    c.value_dim = state->value_dim;
    c.is_tiled = state->is_tiled;
    cuda_add(st, CUDA_OP_DELTA, &c, sizeof(c));
}

static void cuda_state_copy(struct backend *be, struct state_layer *s, int32_t dst, int32_t src)
{
    size_t conv = (size_t)(s->taps - 1) * (size_t)s->conv_cols;
    size_t matrix = (size_t)s->n_heads * (size_t)s->key_dim * (size_t)s->value_dim;
    copy_now(cuda_of(be), s->conv + (size_t)dst * conv, s->conv + (size_t)src * conv,
             conv * sizeof(float));
    copy_now(cuda_of(be), s->matrix + (size_t)dst * matrix, s->matrix + (size_t)src * matrix,
             matrix * sizeof(float));
}

const struct backend_ops cuda_ops_base = {
    .api_version = BACKEND_API,
    .name = "cuda",
    .supports = cuda_supports,
    .caches = cuda_caches,
    .pack = cuda_pack,
    .unpack_free = cuda_unpack_free,
    .shape = cuda_shape,
    .packed_bytes = cuda_packed_bytes,
    .kv_page_bytes = cuda_kv_page_bytes,
    .embed = cuda_embed,
    .linear = cuda_linear,
    .linear_many = cuda_linear_many,
    .add_bias = cuda_add_bias,
    .rms_norm = cuda_rms_norm,
    .rope = cuda_rope,
    .kv_store = cuda_kv_store,
    .kv_copy_page = cuda_kv_copy_page,
    .attention = cuda_attention,
    .glu = cuda_glu,
    .act = cuda_act,
    .layer_norm = cuda_layer_norm,
    .scatter_add = cuda_scatter_add,
    .route = cuda_route,
    .moe = cuda_moe,
    .add = cuda_add_rows,
    .scale = cuda_scale,
    .softcap = cuda_softcap,
    .copy = cuda_copy,
    .gate_rows = cuda_gate_rows,
    .gather = cuda_gather,
    .l2_norm = cuda_l2_norm,
    .conv_silu = cuda_conv_silu,
    .delta_gates = cuda_delta_gates,
    .delta_rule = cuda_delta_rule,
    .state_copy = cuda_state_copy,
};
