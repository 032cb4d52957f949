/* Row-wise ops of the CPU backend: split over threads where there is enough work, kernels by the table of the level. */
#include "kernels/cpu/cpu_int.h"
#include "tensor/fmath.h"
#include "tensor/index.h"
#include "tensor/root_dots.h"
#include "tensor/route.h"

#include <string.h>

/* Elements under which a job is not worth waking others for (a fork and join costs what 4,000 element-wise operations do). */
#define ROWS_ALONE 16384

enum rows_op {
    ROWS_OP_ADD,
    ROWS_OP_BIAS,
    ROWS_OP_SCALE,
    ROWS_OP_SOFTCAP,
    ROWS_OP_GLU,
    ROWS_OP_NORM,
    ROWS_OP_L2,
    ROWS_OP_ACT,
    ROWS_OP_LAYER_NORM,
    ROWS_OP_SCATTER
};

struct rows_job {
    struct cpu_state *st;
    enum rows_op op;
    struct tensor y, x, z;
    const float *w;          /* bias, norm weight, weights of rows */
    const float *b;          /* of a layer norm */
    const int32_t *rows;     /* scatter: of y */
    const uint8_t *is_first; /* scatter */
    float s;                 /* scale, cap, eps */
    float scale;             /* of an l2 norm */
    int n;                   /* norm group */
    enum glu_kind glu;
    int64_t per;     /* rows of a chunk */
    int64_t col_per; /* columns of a chunk (element-wise ops on few rows) */
    int64_t n_cols;  /* chunks per row block */
};

/* Rows [t] of a chunk, columns [c0, c1). */
static void rows_one(const struct rows_job *j, int64_t t, int64_t c0, int64_t c1)
{
    const struct rows_ops *k = &j->st->rows;
    float *y = j->y.data + (j->rows ? j->rows[t] : t) * j->y.stride;
    const float *x = j->x.data ? j->x.data + t * j->x.stride : NULL;
    int64_t n = c1 - c0;
    switch (j->op) {
    case ROWS_OP_ADD:
        k->add(y + c0, x + c0, n);
        break;
    case ROWS_OP_BIAS:
        k->add(y + c0, j->w + c0, n);
        break;
    case ROWS_OP_SCALE:
        k->scale(y + c0, n, j->s);
        break;
    case ROWS_OP_SOFTCAP:
        k->softcap(y + c0, n, j->s);
        break;
    case ROWS_OP_GLU:
        k->glu(y + c0, x + c0, j->z.data + t * j->z.stride + c0, n, j->glu);
        break;
    case ROWS_OP_ACT:
        k->act(y + c0, n, j->glu);
        break;
    case ROWS_OP_LAYER_NORM:
        k->layer_norm(y, x, j->w, j->b, (int)n, j->s);
        break;
    case ROWS_OP_SCATTER:
        k->add_scaled(y + c0, x + c0, n, j->w[t], j->is_first[t]);
        break;
    case ROWS_OP_NORM:
        for (int64_t c = c0; c < c1; c += j->n)
            k->rms_norm(y + c, x + c, j->w, j->n, j->s);
        break;
    case ROWS_OP_L2:
        for (int64_t c = c0; c < c1; c += j->n)
            k->l2_norm(y + c, x + c, j->n, j->s, j->scale);
        break;
    }
}

static void rows_chunk(void *ctx, int64_t chunk, int thread)
{
    const struct rows_job *j = ctx;
    int64_t t0 = chunk / j->n_cols * j->per, t1 = min_i64(t0 + j->per, j->y.rows);
    int64_t c0 = chunk % j->n_cols * j->col_per, c1 = min_i64(c0 + j->col_per, j->y.cols);
    for (int64_t t = t0; t < t1; t++)
        rows_one(j, t, c0, c1);
}

/* Split over rows; over columns too (in units of `unit`) where one row is long. */
static void rows_run(struct backend *be, struct rows_job *j, int64_t unit)
{
    struct cpu_state *st = cpu_of(be);
    j->st = st;
    int64_t rows = j->y.rows, cols = j->y.cols;
    j->col_per = cols;
    if (cols > ROWS_ALONE)
        j->col_per = (ROWS_ALONE / 2 + unit - 1) / unit * unit;
    j->n_cols = (cols + j->col_per - 1) / j->col_per;
    j->per = cols >= ROWS_ALONE / 2 ? 1 : ROWS_ALONE / 2 / cols;
    int64_t n = (rows + j->per - 1) / j->per * j->n_cols;
    if (rows * cols > ROWS_ALONE) {
        pool_run(st->pool, rows_chunk, j, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        rows_chunk(j, i, 0);
}

void cpu_add_bias(struct backend *be, struct tensor y, const float *b)
{
    rows_run(be, &(struct rows_job){ .op = ROWS_OP_BIAS, .y = y, .w = b }, 16);
}

void cpu_add(struct backend *be, struct tensor y, struct tensor x)
{
    rows_run(be, &(struct rows_job){ .op = ROWS_OP_ADD, .y = y, .x = x }, 16);
}

void cpu_scale(struct backend *be, struct tensor y, float s)
{
    rows_run(be, &(struct rows_job){ .op = ROWS_OP_SCALE, .y = y, .s = s }, 16);
}

void cpu_softcap(struct backend *be, struct tensor y, float cap)
{
    rows_run(be, &(struct rows_job){ .op = ROWS_OP_SOFTCAP, .y = y, .s = cap }, 16);
}

void cpu_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
             enum glu_kind kind)
{
    rows_run(be, &(struct rows_job){ .op = ROWS_OP_GLU, .y = y, .x = gate, .z = up, .glu = kind },
             16);
}

void cpu_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w, int n,
                  float eps)
{
    rows_run(be, &(struct rows_job){ .op = ROWS_OP_NORM, .y = y, .x = x, .w = w, .n = n, .s = eps },
             n);
}

void cpu_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                 float scale)
{
    rows_run(
        be,
        &(struct rows_job){ .op = ROWS_OP_L2, .y = y, .x = x, .n = n, .s = eps, .scale = scale },
        n);
}

void cpu_act(struct backend *be, struct tensor y, enum glu_kind kind)
{
    rows_run(be, &(struct rows_job){ .op = ROWS_OP_ACT, .y = y, .glu = kind }, 16);
}

void cpu_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                    const float *b, float eps)
{
    rows_run(
        be,
        &(struct rows_job){ .op = ROWS_OP_LAYER_NORM, .y = y, .x = x, .w = w, .b = b, .s = eps },
        y.cols);
}

void cpu_scatter_add(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                     const float *w, const uint8_t *is_first)
{
    struct tensor part = { y.data, x.rows, y.cols, y.stride };
    rows_run(
        be,
        &(struct rows_job){
            .op = ROWS_OP_SCATTER, .y = part, .x = x, .w = w, .rows = rows, .is_first = is_first },
        16);
}

struct route_job {
    struct tensor logits;
    const struct route *r;
    int32_t *ids;
    float *w;
};

static void route_one(void *ctx, int64_t t, int thread)
{
    const struct route_job *j = ctx;
    route_row(j->r, j->logits.data + t * j->logits.stride, (int)j->logits.cols,
              j->ids + t * j->r->n_used, j->w + t * j->r->n_used);
}

void cpu_route(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
               float *w)
{
    struct route_job j = { logits, r, ids, w };
    if (logits.rows * logits.cols * r->n_used > ROWS_ALONE) {
        pool_run(cpu_of(be)->pool, route_one, &j, logits.rows);
        return;
    }
    for (int64_t t = 0; t < logits.rows; t++)
        route_one(&j, t, 0);
}

struct exp_job {
    const struct rows_ops *k;
    float *y;
    const float *x;
    int64_t n;
    float max, t;
};

static void exp_chunk(void *ctx, int64_t chunk, int thread)
{
    const struct exp_job *j = ctx;
    int64_t i = chunk * (ROWS_ALONE / 2), end = min_i64(i + ROWS_ALONE / 2, j->n);
    j->k->exp_scaled(j->y + i, j->x + i, end - i, j->max, j->t);
}

void cpu_exp_scaled(struct backend *be, float *y, const float *x, int64_t n, float max, float t)
{
    struct cpu_state *st = cpu_of(be);
    struct exp_job j = { &st->rows, y, x, n, max, t };
    if (n > ROWS_ALONE && !st->is_parallel)
        pool_run(st->pool, exp_chunk, &j, (n + ROWS_ALONE / 2 - 1) / (ROWS_ALONE / 2));
    else
        st->rows.exp_scaled(y, x, n, max, t);
}

int64_t cpu_argmax(struct backend *be, const float *x, int64_t n, bool *finite)
{
    return cpu_of(be)->rows.argmax(x, n, finite);
}

void cpu_gate_rows(struct backend *be, struct tensor y, struct tensor g)
{
    for (int64_t t = 0; t < y.rows; t++)
        cpu_of(be)->rows.scale(y.data + t * y.stride, y.cols, fmath_sigmoid(g.data[t * g.stride]));
}

int cpu_index_add(struct backend *be, struct tensor means, int32_t *first, struct tensor k,
                  struct index_layer *ix, const struct seq_view *seqs, int n_seqs)
{
    return index_add_rows(means, first, k, ix, seqs, n_seqs);
}

bool cpu_index_pick(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                    struct tensor means, struct index_layer *ix, const struct index_pick *p,
                    float *scores, const struct seq_view *seqs, int n_seqs)
{
    return index_pick_rows(be, picked, words, q, means, ix, p, scores, seqs, n_seqs);
}

void cpu_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                   float scale)
{
    root_dots(y, a, b, scale);
}

void cpu_copy(struct backend *be, struct tensor y, struct tensor x)
{
    for (int64_t t = 0; t < y.rows; t++)
        memcpy(y.data + t * y.stride, x.data + t * x.stride, (size_t)y.cols * sizeof(float));
}

void cpu_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows)
{
    for (int64_t i = 0; i < y.rows; i++)
        memcpy(y.data + i * y.stride, x.data + rows[i] * x.stride, (size_t)y.cols * sizeof(float));
}

/* --- rope --- */

/* sin and cos of a step's positions, for each of the few ropes that a model has: every layer asks for the same ones. */
#define ROPE_CACHE_N    2
#define ROPE_CACHE_ROWS 1024

struct rope_table {
    struct rope key;
    int64_t rows; /* 0 = empty */
    int32_t pos[ROPE_CACHE_ROWS];
    float cs[ROPE_CACHE_ROWS][BACKEND_HEAD_DIM_MAX / 2],
        sn[ROPE_CACHE_ROWS][BACKEND_HEAD_DIM_MAX / 2];
};

struct rope_cache {
    int next; /* the one to replace */
    struct rope_table t[ROPE_CACHE_N];
};

struct rope_cache *rope_cache_new(void)
{
    return mem_try_big(MEM_CAT_SCRATCH, sizeof(struct rope_cache));
}

void rope_cache_free(struct rope_cache *c)
{
    mem_free_big(MEM_CAT_SCRATCH, c, sizeof(*c));
}

void rope_cache_clear(struct rope_cache *c)
{
    for (int i = 0; i < ROPE_CACHE_N; i++)
        c->t[i].rows = 0;
}

static void rope_angles(const struct rope *r, int32_t pos, float *cs, float *sn)
{
    for (int i = 0; i < r->n_dims / 2; i++) {
        fmath_sincos((double)pos * (double)r->inv_freq[i], &sn[i], &cs[i]);
        sn[i] *= r->scale;
        cs[i] *= r->scale;
    }
}

struct rope_job {
    struct cpu_state *st;
    struct tensor x;
    const struct rope *r;
    int head_dim;
    const int32_t *pos;
    struct rope_table *table; /* NULL: too many rows to keep */
    bool fill;                /* the table is to be computed */
};

static void rope_row(void *ctx, int64_t t, int thread)
{
    const struct rope_job *j = ctx;
    float cs_row[BACKEND_HEAD_DIM_MAX / 2], sn_row[BACKEND_HEAD_DIM_MAX / 2];
    float *cs = j->table ? j->table->cs[t] : cs_row, *sn = j->table ? j->table->sn[t] : sn_row;
    if (j->fill)
        rope_angles(j->r, j->pos[t], cs, sn);
    float *x = j->x.data + t * j->x.stride;
    for (int64_t c = 0; c < j->x.cols; c += j->head_dim)
        j->st->rows.rope(x + c, j->r, cs, sn);
}

static bool same_rope(const struct rope *a, const struct rope *b)
{
    return a->inv_freq == b->inv_freq && a->n_dims == b->n_dims && a->scale == b->scale;
}

void cpu_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
              const int32_t *pos)
{
    struct cpu_state *st = cpu_of(be);
    struct rope_cache *c = st->rope_cache;
    struct rope_job j = { st, x, r, head_dim, pos, NULL, true };
    size_t pos_bytes = (size_t)x.rows * sizeof(*pos);
    for (int i = 0; i < ROPE_CACHE_N && !j.table && x.rows <= ROPE_CACHE_ROWS; i++) {
        struct rope_table *t = &c->t[i];
        if (t->rows == x.rows && same_rope(&t->key, r) && memcmp(t->pos, pos, pos_bytes) == 0) {
            j.table = t;
            j.fill = false;
        }
    }
    if (!j.table && x.rows <= ROPE_CACHE_ROWS) {
        j.table = &c->t[c->next];
        c->next = (c->next + 1) % ROPE_CACHE_N;
        j.table->key = *r;
        j.table->rows = x.rows;
        memcpy(j.table->pos, pos, pos_bytes);
    }
    if (x.rows * x.cols > ROWS_ALONE) {
        pool_run(st->pool, rope_row, &j, x.rows);
        return;
    }
    for (int64_t t = 0; t < x.rows; t++)
        rope_row(&j, t, 0);
}
