#include "weights/recode.h"
#include "base/dmath.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "tensor/blocks.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define RECODE_PIECE     ((int64_t)1 << 21) /* elements that are decoded at a time: 8 MiB of f32 */
#define MXFP4_ELEMS      32
#define RECODE_JOINT_MAX 4
#define RECODE_F16       65504.0f /* largest f16: scales of every block type are one */

static const struct weights_tensor *recode_source(const struct recode *r)
{
    return r->parts[0];
}

static int64_t recode_cols(const struct recode *r)
{
    return r->cols ? r->cols : recode_source(r)->shape[0];
}

static int64_t recode_elems(const struct recode *r)
{
    return r->shape[0] * r->shape[1] * r->shape[2] * r->shape[3];
}

static int64_t recode_groups(const struct recode *r)
{
    return r->groups ? r->groups : 1;
}

static bool recode_is_mlx(const struct recode *r)
{
    return dtype_mlx_bits(r->type) != 0;
}

/* Of a row in the destination. */
static size_t recode_row_bytes(const struct recode *r)
{
    const int64_t cols = recode_cols(r);
    if (r->form == RECODE_FORM_CODES)
        return (size_t)(cols / MXFP4_ELEMS) * sizeof(((struct block_mxfp4 *)0)->qs);
    if (r->form == RECODE_FORM_EXPONENTS)
        return (size_t)(cols / MXFP4_ELEMS);
    return dtype_row_bytes(r->type, cols);
}

static bool recode_is_apart(const struct recode *r)
{
    return r->form == RECODE_FORM_CODES || r->form == RECODE_FORM_EXPONENTS;
}

static int64_t recode_rows(const struct recode *r)
{
    int64_t n = recode_is_apart(r) ? (int64_t)recode_row_bytes(r) : recode_cols(r);
    return n > 0 ? recode_elems(r) / n : 0;
}

static int64_t recode_part_rows(const struct recode *r, int part)
{
    const struct weights_tensor *t = r->parts[part];
    if (r->n_rows)
        return r->n_rows;
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3] / recode_cols(r);
}

static bool recode_has_layout(const struct recode *r)
{
    return recode_source(r)->layout;
}

/* Whether the source's elements are the destination's. */
static bool recode_is_copy(const struct recode *r)
{
    const struct weights_tensor *t = recode_source(r);
    if (recode_is_apart(r))
        return true;
    if (t->type != r->type || r->change || r->form ||
        (r->runs && r->run % dtype_info(r->type)->block_elems != 0))
        return false;
    if (recode_is_mlx(r) && r->runs)
        return false;
    return !recode_is_mlx(r) || (t->scales.type == r->mlx.type && t->scales.cols == r->mlx.group);
}

size_t recode_bytes(const struct recode *r)
{
    return recode_row_bytes(r) * (size_t)recode_rows(r);
}

size_t recode_scale_bytes(const struct recode *r)
{
    return recode_is_mlx(r) ? (size_t)(recode_elems(r) / r->mlx.group) *
                                  (size_t)dtype_info(r->mlx.type)->block_bytes
                            : 0;
}

/* --- checks --- */

static enum err_code recode_rows_differ(const struct recode *r, int64_t have, struct err *err)
{
    return err_set(err, ERR_INVALID,
                   "tensor %s: %" PRId64 " rows wanted, the source's %s has %" PRId64, r->name,
                   recode_rows(r), recode_source(r)->name, have);
}

/* Rows of a group are there, and columns are whole runs. */
static enum err_code recode_check_moves(const struct recode *r, struct err *err)
{
    const int64_t groups = recode_groups(r), rows = recode_rows(r), cols = recode_cols(r);
    int64_t have = 0;
    bool is_whole = rows % groups == 0;
    for (int i = 0; i < r->n_parts; i++) {
        int64_t n = recode_part_rows(r, i);
        is_whole &= n % groups == 0;
        have += n;
    }
    if (!is_whole || (!r->rows && have != rows) || recode_elems(r) % (rows > 0 ? rows : 1) != 0)
        return recode_rows_differ(r, have, err);
    for (int64_t i = 0; r->rows && i < rows / groups; i++)
        if (r->rows[i] < 0 || r->rows[i] >= have / groups)
            return recode_rows_differ(r, have, err);
    if (r->runs && (r->run < 1 || cols % r->run != 0))
        return err_set(err, ERR_INVALID, "tensor %s: rows of %" PRId64 " are no runs of %" PRId64,
                       r->name, cols, r->run);
    return ERR_OK;
}

/* Parts with layouts that are put together: all of them are in memory. */
static bool recode_is_joint(const struct recode *r)
{
    bool is = recode_has_layout(r) && r->rows && r->n_parts > 1 && r->n_parts <= RECODE_JOINT_MAX;
    for (int i = 0; i < r->n_parts && is; i++)
        is = r->parts[i]->shape[2] * r->parts[i]->shape[3] == 1;
    return is;
}

static enum err_code recode_check_parts(const struct recode *r, struct err *err)
{
    const struct weights_tensor *t = recode_source(r);
    for (int i = 1; i < r->n_parts; i++) {
        const struct weights_tensor *p = r->parts[i];
        if (p->type != t->type || p->shape[0] != t->shape[0] ||
            recode_part_rows(r, i) != recode_part_rows(r, 1))
            return err_set(err, ERR_INVALID, "tensors %s and %s: not of one shape and type",
                           t->name, p->name);
    }
    /* matrices are taken out of it one at a time, unless there is one of each part */
    bool is_plain = !r->n_rows && !r->cols && r->n_dims >= 2 && !r->form &&
                    (!r->rows || r->n_parts == 1 || recode_is_joint(r));
    if (recode_has_layout(r) && !is_plain)
        return err_set(err, ERR_INVALID, "tensor %s: is moved already in %s", r->name, t->name);
    return recode_check_moves(r, err);
}

enum err_code recode_check(const struct recode *r, struct err *err)
{
    const struct weights_tensor *t = recode_source(r);
    const struct dtype_info *from = dtype_info(t->type), *to = dtype_info(r->type);
    int64_t cols = recode_cols(r);
    enum err_code code = recode_check_parts(r, err);
    if (code)
        return code;
    if (recode_is_apart(r) && (t->type != DTYPE_MXFP4 || r->type != DTYPE_U8))
        return err_set(err, ERR_INVALID, "tensor %s: %s is %s, which is not of codes and exponents",
                       r->name, t->name, from->name);
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

/* Row i of the destination: the part and its row. */
static const struct weights_tensor *recode_row(const struct recode *r, int64_t i, int64_t *row)
{
    const int64_t groups = recode_groups(r), per = recode_rows(r) / groups, g = i / per;
    int64_t from = r->rows ? r->rows[i % per] : i % per;
    int64_t n = recode_part_rows(r, 0) / groups, part = 0;
    if (from >= n) {
        from -= n;
        n = recode_part_rows(r, 1) / groups;
        part = 1 + from / n;
    }
    *row = r->row0 + g * n + from % n;
    return r->parts[part];
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

/* Columns in the destination's order. spare: room for a row. */
static void recode_move_columns(const struct recode *r, float *x, float *spare)
{
    const int64_t cols = recode_cols(r);
    if (!r->runs)
        return;
    memcpy(spare, x, (size_t)cols * sizeof(*x));
    for (int64_t i = 0; i < cols / r->run; i++)
        memcpy(x + i * r->run, spare + r->runs[i] * r->run, (size_t)r->run * sizeof(*x));
}

static void recode_decode(const struct recode *r, int64_t i, float *x, float *spare)
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
    recode_change(r->change, x, cols);
    recode_move_columns(r, x, spare);
}

static void recode_is_bad(struct recode_piece *p)
{
    __atomic_store_n(&p->is_bad, true, __ATOMIC_RELAXED);
}

static void recode_rows_of(void *ctx, int64_t i0, int64_t i1)
{
    struct recode_piece *p = ctx;
    const struct recode *r = p->r;
    int64_t cols = recode_cols(r);
    size_t row_bytes = recode_row_bytes(r), row_scales = 0;
    float *spare = r->runs ? mem_alloc(MEM_CAT_WEIGHTS, (size_t)cols * sizeof(*spare)) : NULL;
    if (recode_is_mlx(r))
        row_scales = (size_t)(cols / r->mlx.group) * (size_t)dtype_info(r->mlx.type)->block_bytes;
    for (int64_t i = i0; i < i1; i++) {
        float *x = p->x + i * cols;
        uint8_t *out = p->out + (size_t)i * row_bytes;
        recode_decode(r, p->row0 + i, x, spare);
        if (!recode_fits(r, x, cols)) {
            recode_is_bad(p);
            break;
        }
        size_t at = (size_t)(p->row0 + i) * row_scales;
        if (recode_is_mlx(r))
            quantize_mlx_row(&r->mlx, x, cols, out, p->to->scales + at, p->to->biases + at);
        else
            quantize_row(r->type, x, cols, out);
    }
    mem_free(MEM_CAT_WEIGHTS, spare);
}

/* Elements i and i + 16 of a block share a byte, 2 i and 2 i + 1 do in a directory. */
static void recode_part_block(const struct recode *r, const struct block_mxfp4 *b, uint8_t *out)
{
    if (r->form == RECODE_FORM_EXPONENTS) {
        *out = b->e;
        return;
    }
    for (int i = 0; i < MXFP4_ELEMS; i += 2) {
        int shift = i < MXFP4_ELEMS / 2 ? 0 : 4;
        const uint8_t *at = b->qs + i % (MXFP4_ELEMS / 2);
        out[i / 2] = (uint8_t)((at[0] >> shift & 15) | (at[1] >> shift & 15) << 4);
    }
}

/* One row as it stands, or in other runs, or one of the two things in its blocks. */
static void recode_copy_row(const struct recode *r, const uint8_t *from, uint8_t *to)
{
    const int64_t cols = recode_cols(r);
    if (recode_is_apart(r)) {
        const int64_t n = cols / MXFP4_ELEMS;
        const size_t out_bytes = recode_row_bytes(r) / (size_t)n;
        for (int64_t i = 0; i < n; i++) {
            struct block_mxfp4 b;
            memcpy(&b, from + (size_t)i * sizeof(b), sizeof(b));
            recode_part_block(r, &b, to + (size_t)i * out_bytes);
        }
        return;
    }
    if (!r->runs) {
        memcpy(to, from, recode_row_bytes(r));
        return;
    }
    size_t bytes = dtype_row_bytes(r->type, r->run);
    for (int64_t i = 0; i < cols / r->run; i++)
        memcpy(to + (size_t)i * bytes, from + (size_t)r->runs[i] * bytes, bytes);
}

static void recode_copy_of(void *ctx, int64_t i0, int64_t i1)
{
    struct recode_piece *p = ctx;
    const struct recode *r = p->r;
    int64_t cols = recode_cols(r), row;
    size_t row_bytes = recode_row_bytes(r), row_scales = 0;
    if (recode_is_mlx(r))
        row_scales = (size_t)(cols / r->mlx.group) * (size_t)dtype_info(r->mlx.type)->block_bytes;
    for (int64_t i = i0; i < i1; i++) {
        const struct weights_tensor *t = recode_row(r, p->row0 + i, &row);
        recode_copy_row(r, t->data + (size_t)row * dtype_row_bytes(t->type, cols),
                        p->out + (size_t)i * row_bytes);
        size_t to = (size_t)(p->row0 + i) * row_scales, from = (size_t)row * row_scales;
        if (!row_scales)
            continue;
        memcpy(p->to->scales + to, t->scales.scales + from, row_scales);
        memcpy(p->to->biases + to, t->scales.biases + from, row_scales);
    }
}

/* Columns [i0, i1) of a group as the destination's rows. */
static void recode_turn_of(void *ctx, int64_t i0, int64_t i1)
{
    struct recode_piece *p = ctx;
    const struct recode *r = p->r;
    const int64_t cols = recode_cols(r), rows = recode_rows(r) / recode_groups(r);
    const size_t bytes = dtype_row_bytes(r->type, rows);
    float *column = mem_alloc(MEM_CAT_WEIGHTS, (size_t)rows * sizeof(*column));
    for (int64_t c = i0; c < i1; c++) {
        for (int64_t i = 0; i < rows; i++)
            column[i] = p->x[i * cols + c];
        if (!recode_fits(r, column, rows)) {
            recode_is_bad(p);
            break;
        }
        quantize_row(r->type, column, rows, p->out + (size_t)c * bytes);
    }
    mem_free(MEM_CAT_WEIGHTS, column);
}

static void recode_decode_of(void *ctx, int64_t i0, int64_t i1)
{
    struct recode_piece *p = ctx;
    const int64_t cols = recode_cols(p->r);
    float *spare = mem_alloc(MEM_CAT_WEIGHTS, (size_t)cols * sizeof(*spare));
    for (int64_t i = i0; i < i1; i++)
        recode_decode(p->r, p->row0 + i, p->x + i * cols, spare);
    mem_free(MEM_CAT_WEIGHTS, spare);
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

/* Rows [p->row0, p->row0 + n) into p->out. */
static void recode_piece_run(struct recode_piece *p, int64_t n)
{
    const struct recode *r = p->r;
    const int threads = p->to->threads;
    if (r->form == RECODE_FORM_TURNED) {
        parallel_for(threads, n, recode_decode_of, p);
        parallel_for(threads, recode_cols(r), recode_turn_of, p);
    } else if (recode_is_copy(r)) {
        parallel_for(1, n, recode_copy_of, p);
    } else {
        parallel_for(threads, n, recode_rows_of, p);
    }
}

static enum err_code recode_pieces(const struct recode *r, const struct recode_out *out,
                                   struct err *err)
{
    int64_t cols = recode_cols(r), rows = recode_rows(r), step = RECODE_PIECE / cols;
    bool is_copy = recode_is_copy(r);
    size_t row_bytes = recode_row_bytes(r);
    enum err_code code = ERR_OK;
    step = step < 1 ? 1 : step < rows ? step : rows;
    if (r->form == RECODE_FORM_TURNED) /* a matrix at a time */
        step = rows / recode_groups(r);
    struct recode_piece p = { .r = r, .to = out };
    p.out = mem_try_array(MEM_CAT_WEIGHTS, (size_t)step, row_bytes);
    if (!is_copy)
        p.x = mem_try_array(MEM_CAT_WEIGHTS, (size_t)(step * cols), sizeof(*p.x));
    if (!p.out || (!is_copy && !p.x))
        code = err_set(err, ERR_NOMEM, "tensor %s: no memory for %" PRId64 " rows", r->name, step);
    for (; p.row0 < rows && !code; p.row0 += step) {
        int64_t n = rows - p.row0 < step ? rows - p.row0 : step;
        recode_piece_run(&p, n);
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
    const int64_t n_matrices = part->shape[2] * part->shape[3] * r->n_parts;
    void *mem = NULL;
    enum err_code code = weights_take(&view, &flat, &mem, err);
    if (code)
        return code;
    one.parts = parts;
    one.n_parts = 1;
    one.n_dims = 2;
    one.shape[0] = view.shape[0];
    one.shape[1] = recode_rows(r) / n_matrices;
    one.shape[2] = one.shape[3] = 1;
    one.groups = r->groups > n_matrices ? r->groups / n_matrices : 0;
    code = recode_pieces(&one, out, err);
    if (out->scales) {
        out->scales += recode_scale_bytes(&one);
        out->biases += recode_scale_bytes(&one);
    }
    mem_free(MEM_CAT_WEIGHTS, mem);
    return code;
}

static enum err_code recode_joint(const struct recode *r, const struct recode_out *out,
                                  struct err *err)
{
    struct weights_tensor flat[RECODE_JOINT_MAX];
    const struct weights_tensor *parts[RECODE_JOINT_MAX];
    void *mem[RECODE_JOINT_MAX] = { NULL };
    struct recode one = *r;
    enum err_code code = ERR_OK;
    for (int i = 0; i < r->n_parts && !code; i++) {
        struct weights_tensor view = weights_matrix(r->parts[i], 0);
        code = weights_take(&view, &flat[i], &mem[i], err);
        parts[i] = &flat[i];
    }
    one.parts = parts;
    if (!code)
        code = recode_pieces(&one, out, err);
    for (int i = 0; i < r->n_parts; i++)
        mem_free(MEM_CAT_WEIGHTS, mem[i]);
    return code;
}

enum err_code recode_run(const struct recode *r, const struct weights *w,
                         const struct recode_out *out, struct err *err)
{
    struct recode_out at = *out;
    enum err_code code = ERR_OK;
    if (recode_is_joint(r)) {
        code = recode_joint(r, out, err);
        for (int p = 0; p < r->n_parts; p++)
            weights_drop(w, r->parts[p]->data, r->parts[p]->bytes);
        return code;
    }
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
