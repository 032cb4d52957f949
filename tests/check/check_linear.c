/* linear, linear_many and embed: every type x level x threads x row count, against ref; ref against fp64. */
#include "check.h"

#include "weights/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const enum dtype types[] = { DTYPE_Q4_0,    DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,
                                    DTYPE_Q8_0,    DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,
                                    DTYPE_Q2_K,    DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS,
                                    DTYPE_MXFP4,   DTYPE_MLX2, DTYPE_MLX3,   DTYPE_MLX4,
                                    DTYPE_MLX5,    DTYPE_MLX6, DTYPE_MLX8,   DTYPE_F8_E4M3,
                                    DTYPE_F8_E5M2, DTYPE_F16,  DTYPE_BF16,   DTYPE_F32 };

/* Row lengths in units of 32: one group, an odd number, more than one chunk of the scratch path. K types: in units of 256. */
#ifdef PLUMB_DEBUG /* the sanitizers are slow: fewer shapes, every path still */
static const int ins_32[] = { 1, 9, 33 };
static const int ins_256[] = { 1, 5 };
static const int outs[] = { 16, 21 };
static const int rows[] = { 1, 3, 8, 9, 17, 33 };
#else
static const int ins_32[] = { 1, 3, 9, 33, 70 };
static const int ins_256[] = { 1, 3, 5, 9 };
static const int outs[] = { 1, 16, 37, 83 };
static const int rows[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 50, 64, 170 };
#endif

static int64_t n_ins(enum dtype type)
{
    return dtype_info(type)->block_elems == 256 ? (int64_t)ARRAY_LEN(ins_256)
                                                : (int64_t)ARRAY_LEN(ins_32);
}

static int64_t in_of(enum dtype type, int64_t i)
{
    int64_t block = dtype_info(type)->block_elems;
    if (block == 256)
        return ins_256[i] * 256;
    if (block == 1)
        return ins_32[i] * 32 - i * 7 - 1; /* plain types take any length */
    return ins_32[i] * 32;
}

struct packed {
    enum dtype type;
    int64_t out, in;
    uint8_t *data;
    struct scales scales;
    struct weight *ref, *cpu[CHECK_BACKENDS_MAX];
};

static void pack_all(struct check *c, struct packed *p, enum dtype type, int64_t out, int64_t in)
{
    static int form; /* of scales that stand apart: one after the other */
    *p = (struct packed){ .type = type, .out = out, .in = in };
    p->data = check_scaled_weight(type, out, in, form++ % 9, &p->scales);
    p->ref = check_pack(c->ref, type, out, in, p->data, &p->scales);
    for (int b = 0; b < c->n_cpu; b++)
        p->cpu[b] = check_pack(c->cpu[b].be, type, out, in, p->data, &p->scales);
}

/* Rows of it as the weights module decodes them. */
static bool decode(const struct packed *p, int64_t row0, int64_t n, float *out, struct err *err)
{
    struct weights_tensor t = { .type = p->type,
                                .n_dims = 2,
                                .shape = { p->in, p->out, 1, 1 },
                                .data = p->data,
                                .scales = p->scales };
    return weights_decode_rows(&t, row0, n, out, err) == ERR_OK;
}

static void free_all(struct check *c, struct packed *p)
{
    c->ref->ops->unpack_free(c->ref, p->ref);
    for (int b = 0; b < c->n_cpu; b++)
        c->cpu[b].be->ops->unpack_free(c->cpu[b].be, p->cpu[b]);
    mem_free(MEM_CAT_WEIGHTS, p->data);
}

/* Every row of the packed weight equals the file's, decoded by the weights module. */
static void check_embed(struct check *c, const struct packed *p)
{
    const char *name = dtype_info(p->type)->name;
    struct check_buf want = check_buf_new(p->out, p->in, p->in);
    struct check_buf got = check_buf_new(p->out, p->in, p->in);
    struct err err = { 0 };
    int32_t ids[128];
    for (int i = 0; i < p->out; i++)
        ids[i] = i;
    bool ok = decode(p, 0, p->out, want.t.data, &err);
    check_that(c, ok, "embed/%s: %s", name, err.text);
    for (int64_t i = 0; i < p->out * p->in; i++)
        if (want.t.data[i] == 0)
            want.t.data[i] =
                0; /* a decoded -0 comes out as +0 in grouped types, and compares equal */
    for (int b = -1; b < c->n_cpu; b++) {
        struct backend *be = b < 0 ? c->ref : c->cpu[b].be;
        check_buf_reset(&got);
        ops_embed(be, got.t, b < 0 ? p->ref : p->cpu[b], ids);
        for (int64_t i = 0; i < p->out * p->in; i++)
            if (got.t.data[i] == 0)
                got.t.data[i] = 0;
        check_that(c, check_buf_same(&want, &got, false), "embed/%s/%s [%lld][%lld]", name,
                   b < 0 ? "ref" : c->cpu[b].name, (long long)p->out, (long long)p->in);
    }
    check_buf_free(&want);
    check_buf_free(&got);
}

/* ref's product lies within what rounding of the activations allows: half a step of each group times the sum of |w|, and f32
 * rounding of the chains. */
static void check_fp64(struct check *c, const struct packed *p, struct tensor y, struct tensor x)
{
    struct err err = { 0 };
    float *w = mem_alloc(MEM_CAT_SCRATCH, (size_t)p->in * sizeof(float));
    bool ok = true, grouped = dtype_info(p->type)->block_elems > 1;
    for (int64_t r = 0; r < p->out && ok; r++) {
        ok = decode(p, r, 1, w, &err);
        for (int64_t t = 0; t < x.rows && ok; t++) {
            const float *v = x.data + t * x.stride;
            double dot = 0, bound = 0, size = 0;
            for (int64_t g = 0; g < p->in; g += 32) {
                double max = 0, sum = 0;
                for (int64_t i = g; i < g + 32 && i < p->in; i++) {
                    dot += (double)w[i] * (double)v[i];
                    size += fabs((double)w[i] * (double)v[i]);
                    sum += fabs((double)w[i]);
                    max = fmax(max, fabs((double)v[i]));
                }
                bound += grouped ? sum * (max < 0x1p-120 ? max : max / 127 * 0.501) : 0;
            }
            double e = fabs(dot - (double)y.data[t * y.stride + r]);
            ok = e <= bound + 1e-4 * (bound + size) + 1e-37;
            if (!ok)
                printf("  row %lld of x, %lld of w: error %g, bound %g\n", (long long)t,
                       (long long)r, e, bound);
        }
    }
    check_that(c, ok, "linear-fp64/%s [%lld][%lld] %lld rows", dtype_info(p->type)->name,
               (long long)p->out, (long long)p->in, (long long)x.rows);
    mem_free(MEM_CAT_SCRATCH, w);
}

/* One product on ref and every backend; poison: that row holds NaN and infinity. */
static void check_product(struct check *c, const struct packed *p, int n_rows, int kind, int poison)
{
    struct check_buf x = check_buf_new(n_rows, p->in, p->in + check_range(0, 5));
    struct check_buf want = check_buf_new(n_rows, p->out, p->out + 3);
    struct check_buf got = check_buf_new(n_rows, p->out, p->out + 3);
    uint8_t flags[2][1024] = { { 0 } };
    for (int t = 0; t < n_rows; t++)
        check_fill(x.t.data + t * x.t.stride, (size_t)p->in, kind);
    if (poison >= 0) {
        float *row = x.t.data + poison * x.t.stride;
        row[check_rand() % (uint32_t)p->in] = NAN;
        row[check_rand() % (uint32_t)p->in] = -INFINITY;
    }
    ops_begin(c->ref, n_rows);
    ops_linear(c->ref, want.t, x.t, p->ref);
    ops_failed(c->ref, flags[0]);
    for (int t = 0; t < n_rows; t++)
        if (flags[0][t] != (t == poison))
            check_that(c, false, "linear/%s: row %d flag %d", dtype_info(p->type)->name, t,
                       flags[0][t]);
    if (poison < 0)
        check_fp64(c, p, want.t, x.t);
    for (int b = 0; b < c->n_cpu; b++) {
        check_buf_reset(&got);
        memset(flags[1], 0, sizeof(flags[1]));
        ops_begin(c->cpu[b].be, n_rows);
        ops_linear(c->cpu[b].be, got.t, x.t, p->cpu[b]);
        ops_failed(c->cpu[b].be, flags[1]);
        bool ok =
            check_buf_same(&want, &got, false) && memcmp(flags[0], flags[1], sizeof(flags[0])) == 0;
        check_that(c, ok, "linear/%s/%s [%lld][%lld] %d rows, data %d%s", dtype_info(p->type)->name,
                   c->cpu[b].name, (long long)p->out, (long long)p->in, n_rows, kind,
                   poison >= 0 ? ", one row not finite" : "");
    }
    check_buf_free(&x);
    check_buf_free(&want);
    check_buf_free(&got);
}

static void check_type(struct check *c, enum dtype type)
{
    struct packed p;
    for (int64_t i = 0; i < n_ins(type); i++) {
        for (size_t o = 0; o < ARRAY_LEN(outs); o++) {
            if (c->is_quick && ((size_t)i + o + (size_t)type) % 4 != 0)
                continue;
            pack_all(c, &p, type, outs[o], in_of(type, i));
            check_embed(c, &p);
            for (size_t r = 0; r < ARRAY_LEN(rows); r++)
                if (o + 1 == ARRAY_LEN(outs) || (r + o) % 5 == 0) /* all row counts on one shape */
                    check_product(c, &p, rows[r], (int)((r + o) % CHECK_KINDS), -1);
            check_product(c, &p, 6, 0, 4);
            free_all(c, &p);
        }
    }
    pack_all(c, &p, type, 21, in_of(type, 1));
    for (int k = 0; k < CHECK_KINDS; k++)
        check_product(c, &p, 20, k, -1);
    if (!c->is_quick || type == DTYPE_Q8_0)
        check_product(c, &p, 515, 0, 513); /* more than one pass */
    free_all(c, &p);
    if (type == DTYPE_Q4_1 || type == DTYPE_MLX4) { /* more groups than LIN_MINS */
        pack_all(c, &p, type, 16, (int64_t)32 * 515);
        check_product(c, &p, 50, 0, -1);
        free_all(c, &p);
    }
}

/* q, k and v of different types at once. */
static void check_many(struct check *c)
{
    static const enum dtype mix[4] = { DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_F16, DTYPE_Q8_0 };
    static const int counts[] = { 1, 2, 5, 16, 40, 176 };
    struct packed p[4];
    for (int i = 0; i < 4; i++)
        pack_all(c, &p[i], mix[i], 20 + 16 * i, 512);
    for (size_t n = 0; n < ARRAY_LEN(counts); n++) {
        struct check_buf x = check_buf_new(counts[n], 512, 512), want[4], got[4];
        struct tensor y[4];
        const struct weight *w[4];
        check_fill(x.t.data, (size_t)counts[n] * 512, 0);
        for (int i = 0; i < 4; i++) {
            want[i] = check_buf_new(counts[n], p[i].out, p[i].out);
            got[i] = check_buf_new(counts[n], p[i].out, p[i].out);
            ops_linear(c->ref, want[i].t, x.t, p[i].ref);
        }
        for (int b = 0; b < c->n_cpu; b++) {
            bool ok = true;
            for (int i = 0; i < 4; i++) {
                check_buf_reset(&got[i]);
                y[i] = got[i].t;
                w[i] = p[i].cpu[b];
            }
            ops_linear_many(c->cpu[b].be, 4, y, x.t, w);
            for (int i = 0; i < 4; i++)
                ok = check_buf_same(&want[i], &got[i], false) && ok;
            check_that(c, ok, "linear-many/%s %d rows", c->cpu[b].name, counts[n]);
        }
        for (int i = 0; i < 4; i++) {
            check_buf_free(&want[i]);
            check_buf_free(&got[i]);
        }
        check_buf_free(&x);
    }
    for (int i = 0; i < 4; i++)
        free_all(c, &p[i]);
}

void check_linear(struct check *c)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        char group[64];
        snprintf(group, sizeof(group), "linear/%s", dtype_info(types[i])->name);
        if (check_wants(c, group))
            check_type(c, types[i]);
    }
    if (check_wants(c, "linear-many"))
        check_many(c);
}
