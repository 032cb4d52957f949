#include "weights/recode.h"
#include "base/dmath.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define RECODE_PIECE ((int64_t)1 << 21) /* elements that are decoded at a time: 8 MiB of f32 */
#define RECODE_F16   65504.0f           /* largest f16: scales of every block type are one */

static const struct weights_tensor *recode_source(const struct recode *r)
{
    return r->parts[0];
}

/* A vector whose order changes is a column. */
static int64_t recode_cols(const struct recode *r)
{
    return r->n_dims == 1 && r->order ? 1 : r->shape[0];
}

static int64_t recode_elems(const struct recode *r)
{
    return r->shape[0] * r->shape[1] * r->shape[2] * r->shape[3];
}

static int64_t recode_rows(const struct recode *r)
{
    return recode_elems(r) / recode_cols(r);
}

/* Rows of one part. */
static int64_t recode_part_rows(const struct recode *r)
{
    const struct weights_tensor *t = recode_source(r);
    if (r->n_rows)
        return r->n_rows;
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3] / recode_cols(r);
}

static bool recode_has_layout(const struct recode *r)
{
    return recode_source(r)->layout;
}

static bool recode_is_mlx(const struct recode *r)
{
    return dtype_mlx_bits(r->type) != 0;
}

/* Whether the source's bytes are the destination's, but for the order of rows. */
static bool recode_is_copy(const struct recode *r)
{
    const struct weights_tensor *t = recode_source(r);
    if (t->type != r->type || r->change)
        return false;
    return !recode_is_mlx(r) || (t->scales.type == r->mlx.type && t->scales.cols == r->mlx.group);
}

size_t recode_bytes(const struct recode *r)
{
    return dtype_row_bytes(r->type, recode_cols(r)) * (size_t)recode_rows(r);
}

size_t recode_scale_bytes(const struct recode *r)
{
    return recode_is_mlx(r) ? (size_t)(recode_elems(r) / r->mlx.group) *
                                  (size_t)dtype_info(r->mlx.type)->block_bytes
                            : 0;
}

enum err_code recode_check(const struct recode *r, struct err *err)
{
    const struct weights_tensor *t = recode_source(r);
    const struct dtype_info *from = dtype_info(t->type), *to = dtype_info(r->type);
    int64_t cols = recode_cols(r), rows = recode_rows(r);
    if (rows != recode_part_rows(r) * r->n_parts ||
        (recode_has_layout(r) && (r->order || r->n_rows || r->n_dims < 2)) ||
        (r->order && rows % (2 * r->heads) != 0))
        return err_set(err, ERR_INVALID,
                       "tensor %s: %" PRId64 " rows wanted, the source's %s has %" PRId64, r->name,
                       rows, t->name, recode_part_rows(r) * r->n_parts);
    for (int i = 1; i < r->n_parts; i++)
        if (r->parts[i]->type != t->type || r->parts[i]->shape[0] != t->shape[0] ||
            r->parts[i]->shape[1] != t->shape[1])
            return err_set(err, ERR_INVALID, "tensors %s and %s: not of one shape and type",
                           t->name, r->parts[i]->name);
    if (cols % to->block_elems != 0 || (recode_is_mlx(r) && cols % r->mlx.group != 0))
        return err_set(err, ERR_INVALID, "tensor %s: rows of %" PRId64 " are no whole blocks of %s",
                       r->name, cols, to->name);
    if (recode_is_copy(r))
        return ERR_OK;
    if (!from->can_decode && !from->has_scales)
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor %s: type %s cannot be read; convert from a file of another type",
                       t->name, from->name);
    if (!recode_is_mlx(r) && !quantize_can(r->type))
        return err_set(err, ERR_UNSUPPORTED, "tensor %s: type %s cannot be written", r->name,
                       to->name);
    return ERR_OK;
}

/* The row of all parts that comes to place i. */
static int64_t recode_from(const struct recode *r, int64_t i)
{
    if (!r->order)
        return i;
    int64_t head = recode_rows(r) / r->heads, half = head / 2, at = i % head;
    return i - at + at % half * 2 + at / half;
}

/* Row i of the destination: the part and its row. */
static const struct weights_tensor *recode_row(const struct recode *r, int64_t i, int64_t *row)
{
    int64_t from = recode_from(r, i), n = recode_part_rows(r);
    *row = r->row0 + from % n;
    return r->parts[from / n];
}

static void recode_change(enum recode_change change, float *x, int64_t n)
{
    for (int64_t i = 0; i < n && change; i++) {
        double v = (double)x[i];
        x[i] = change == RECODE_ADD_ONE   ? x[i] + 1
               : change == RECODE_SUB_ONE ? x[i] - 1
               : change == RECODE_NEG_EXP ? (float)-dmath_exp(v)
                                          : (float)dmath_log(-v);
    }
}

/* --- one piece: rows [i0, i0 + n) of the destination --- */

struct recode_piece {
    const struct recode *r;
    int64_t row0;
    float *x;     /* [rows][cols]; NULL for a copy */
    uint8_t *out; /* the destination's bytes */
    const struct recode_out *to;
    bool is_bad; /* written as true only, by any thread */
};

/* What the destination's type can hold. */
static bool recode_fits(const struct recode *r, const float *x, int64_t n)
{
    enum dtype type = recode_is_mlx(r) ? r->mlx.type : r->type;
    bool is_block = dtype_info(r->type)->block_elems > 1 || recode_is_mlx(r);
    if (!is_block && type != DTYPE_F16)
        return true;
    float most = type == DTYPE_F32 || type == DTYPE_BF16 ? 1e30f : RECODE_F16;
    bool fits = true;
    for (int64_t i = 0; i < n; i++)
        fits &= fabsf(x[i]) <= most || (!is_block && !(fabsf(x[i]) < INFINITY));
    return fits;
}

static void recode_decode(const struct recode *r, int64_t i, float *x)
{
    int64_t row;
    const struct weights_tensor *t = recode_row(r, i, &row);
    int64_t cols = recode_cols(r);
    enum err_code code =
        dtype_info(t->type)->has_scales
            ? weights_decode_rows(t, row, 1, x, NULL)
            : weights_dequantize(t->type, t->data + dtype_row_bytes(t->type, cols) * (size_t)row,
                                 cols, x, NULL);
    BUG_ON(code); /* recode_check asked */
}

static void recode_rows_of(void *ctx, int64_t i0, int64_t i1)
{
    struct recode_piece *p = ctx;
    const struct recode *r = p->r;
    int64_t cols = recode_cols(r);
    size_t row_bytes = dtype_row_bytes(r->type, cols), row_scales = 0;
    if (recode_is_mlx(r))
        row_scales = (size_t)(cols / r->mlx.group) * (size_t)dtype_info(r->mlx.type)->block_bytes;
    for (int64_t i = i0; i < i1; i++) {
        float *x = p->x + i * cols;
        uint8_t *out = p->out + (size_t)i * row_bytes;
        recode_decode(r, p->row0 + i, x);
        recode_change(r->change, x, cols);
        if (!recode_fits(r, x, cols)) {
            __atomic_store_n(&p->is_bad, true, __ATOMIC_RELAXED);
            return;
        }
        size_t at = (size_t)(p->row0 + i) * row_scales;
        if (recode_is_mlx(r))
            quantize_mlx_row(&r->mlx, x, cols, out, p->to->scales + at, p->to->biases + at);
        else
            quantize_row(r->type, x, cols, out);
    }
}

static void recode_copy_of(void *ctx, int64_t i0, int64_t i1)
{
    struct recode_piece *p = ctx;
    const struct recode *r = p->r;
    int64_t cols = recode_cols(r), row;
    size_t row_bytes = dtype_row_bytes(r->type, cols), row_scales = 0;
    if (recode_is_mlx(r))
        row_scales = (size_t)(cols / r->mlx.group) * (size_t)dtype_info(r->mlx.type)->block_bytes;
    for (int64_t i = i0; i < i1; i++) {
        const struct weights_tensor *t = recode_row(r, p->row0 + i, &row);
        memcpy(p->out + (size_t)i * row_bytes, t->data + (size_t)row * row_bytes, row_bytes);
        size_t to = (size_t)(p->row0 + i) * row_scales, from = (size_t)row * row_scales;
        if (!row_scales)
            continue;
        memcpy(p->to->scales + to, t->scales.scales + from, row_scales);
        memcpy(p->to->biases + to, t->scales.biases + from, row_scales);
    }
}

static enum err_code recode_bad(const struct recode *r, struct err *err)
{
    const char *type = dtype_info(recode_is_mlx(r) ? r->mlx.type : r->type)->name;
    return err_set(
        err, ERR_NUMERIC,
        "tensor %s: holds a NaN, an infinity or a number beyond what %s %s; take BF16 or "
        "F32 for it",
        r->name, type, recode_is_mlx(r) ? "scales can have" : "can hold");
}

static enum err_code recode_pieces(const struct recode *r, const struct recode_out *out,
                                   struct err *err)
{
    int64_t cols = recode_cols(r), rows = recode_rows(r), step = RECODE_PIECE / cols;
    bool is_copy = recode_is_copy(r);
    size_t row_bytes = dtype_row_bytes(r->type, cols);
    enum err_code code = ERR_OK;
    step = step < 1 ? 1 : step < rows ? step : rows;
    struct recode_piece p = { .r = r, .to = out };
    p.out = mem_try_array(MEM_CAT_WEIGHTS, (size_t)step, row_bytes);
    if (!is_copy)
        p.x = mem_try_array(MEM_CAT_WEIGHTS, (size_t)(step * cols), sizeof(*p.x));
    if (!p.out || (!is_copy && !p.x))
        code = err_set(err, ERR_NOMEM, "tensor %s: no memory for %" PRId64 " rows", r->name, step);
    for (; p.row0 < rows && !code; p.row0 += step) {
        int64_t n = rows - p.row0 < step ? rows - p.row0 : step;
        parallel_for(is_copy ? 1 : out->threads, n, is_copy ? recode_copy_of : recode_rows_of, &p);
        if (p.is_bad)
            code = recode_bad(r, err);
        else if (out->stop && *out->stop)
            code = err_set(err, ERR_CANCELLED, "stopped");
        else
            code = out->write(out->ctx, p.out, (size_t)n * row_bytes, err);
    }
    mem_free(MEM_CAT_WEIGHTS, p.x);
    mem_free(MEM_CAT_WEIGHTS, p.out);
    return code;
}

/* Matrix i of a part that has a layout, out of it. */
static enum err_code recode_matrix(const struct recode *r, const struct weights_tensor *part,
                                   int64_t i, struct recode_out *out, struct err *err)
{
    struct weights_tensor view = weights_matrix(part, i), flat;
    const struct weights_tensor *parts[] = { &flat };
    struct recode one = *r;
    void *mem = NULL;
    enum err_code code = weights_take(&view, &flat, &mem, err);
    if (code)
        return code;
    one.parts = parts;
    one.n_parts = 1;
    one.n_dims = 2;
    one.shape[1] = view.shape[1];
    one.shape[2] = one.shape[3] = 1;
    code = recode_pieces(&one, out, err);
    if (out->scales) {
        out->scales += recode_scale_bytes(&one);
        out->biases += recode_scale_bytes(&one);
    }
    mem_free(MEM_CAT_WEIGHTS, mem);
    return code;
}

enum err_code recode_run(const struct recode *r, const struct weights *w,
                         const struct recode_out *out, struct err *err)
{
    struct recode_out at = *out;
    enum err_code code = ERR_OK;
    if (!recode_has_layout(r))
        code = recode_pieces(r, out, err);
    for (int p = 0; p < r->n_parts; p++) {
        const struct weights_tensor *t = r->parts[p];
        for (int64_t i = 0; recode_has_layout(r) && i < t->shape[2] * t->shape[3] && !code; i++)
            code = recode_matrix(r, t, i, &at, err);
        weights_drop(w, t->data, t->bytes);
    }
    return code;
}
