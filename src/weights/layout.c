/* layout.c - matrices whose file has their rows or columns in another order, one at a time. */
#include "tensor/blocks.h"
#include "tensor/source.h"
#include "weights/weights.h"

#include <string.h>

#define MXFP4_ELEMS 32
#define MXFP4_CODES 16 /* bytes of a block's codes */

static int64_t layout_row(const struct weights_layout *l, int64_t r)
{
    return l->rows ? l->rows[r] : r;
}

static int64_t layout_run(const struct weights_layout *l, int64_t i)
{
    return l->runs ? l->runs[i] : i;
}

/* Bytes of a row in the file. */
static size_t layout_row_bytes(const struct weights_tensor *t)
{
    return t->layout && t->layout->is_apart ? (size_t)(t->shape[0] / MXFP4_ELEMS * MXFP4_CODES)
                                            : dtype_row_bytes(t->type, t->shape[0]);
}

struct weights_tensor weights_matrix(const struct weights_tensor *t, int64_t i)
{
    struct weights_tensor out = *t;
    int64_t rows = t->layout ? t->layout->n_rows : t->shape[1];
    BUG_ON(i < 0 || i >= t->shape[2] * t->shape[3]);
    out.n_dims = t->n_dims < 2 ? t->n_dims : 2;
    out.shape[2] = out.shape[3] = 1;
    out.bytes = layout_row_bytes(t) * (size_t)rows;
    out.data += (size_t)i * out.bytes;
    out.scales = scales_from_row(&t->scales, i * rows, t->shape[0]);
    return out;
}

/* --- what is moved --- */

static void take_turned(const struct weights_tensor *t, uint8_t *to)
{
    const struct weights_layout *l = t->layout;
    size_t size = dtype_row_bytes(t->type, 1);
    for (int64_t r = 0; r < t->shape[1]; r++)
        for (int64_t c = 0; c < t->shape[0]; c++, to += size)
            memcpy(to, t->data + (size_t)(c * l->n_rows + layout_row(l, r)) * size, size);
}

/* Code i of 32, of which two neighbours share a byte. */
static unsigned mxfp4_code(const uint8_t *codes, int i)
{
    return codes[i / 2] >> 4 * (i % 2) & 15;
}

static void take_apart(const struct weights_tensor *t, uint8_t *to)
{
    const int64_t n = t->shape[0] / MXFP4_ELEMS;
    for (int64_t r = 0; r < t->shape[1]; r++) {
        int64_t at = layout_row(t->layout, r) * n;
        for (int64_t b = 0; b < n; b++, at++) {
            struct block_mxfp4 block = { .e = t->scales.scales[at] };
            const uint8_t *codes = t->data + at * MXFP4_CODES;
            for (int i = 0; i < MXFP4_CODES; i++)
                block.qs[i] = (uint8_t)(mxfp4_code(codes, i) | mxfp4_code(codes, i + 16) << 4);
            memcpy(to, &block, sizeof(block));
            to += sizeof(block);
        }
    }
}

/* Rows of runs of `bytes` bytes, n of them; from: rows of the same length. */
static void take_rows(const struct weights_layout *l, int64_t rows, int64_t n, size_t bytes,
                      const uint8_t *from, uint8_t *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++, to += bytes)
            memcpy(to, from + (size_t)(layout_row(l, r) * n + layout_run(l, i)) * bytes, bytes);
}

/* --- scales --- */

/* Scales of the moved matrix: one or more for a row, whatever block the file's are for. Bytes; 0: none are moved. */
static size_t take_scale_bytes(const struct weights_tensor *t)
{
    const struct scales *s = &t->scales;
    if (!s->scales || t->layout->is_apart)
        return 0;
    return dtype_row_bytes(s->type, (t->shape[0] + s->cols - 1) / s->cols) * (size_t)t->shape[1];
}

static enum err_code take_scales_fit(const struct weights_tensor *t, struct err *err)
{
    const struct weights_layout *l = t->layout;
    const int64_t cols = t->scales.cols;
    if (take_scale_bytes(t) == 0 ||
        (!l->is_turned && (!l->runs || cols >= t->shape[0] || l->run % cols == 0)))
        return ERR_OK;
    return err_set(err, ERR_UNSUPPORTED,
                   "tensor %s: scales of %lld columns, whose parts of %lld stand apart", t->name,
                   (long long)t->scales.cols, (long long)l->run);
}

static void take_scales(const struct weights_tensor *t, const uint8_t *from, uint8_t *to)
{
    const struct weights_layout *l = t->layout;
    const struct scales *s = &t->scales;
    size_t size = dtype_row_bytes(s->type, 1);
    int64_t n = (t->shape[0] + s->cols - 1) / s->cols;
    int64_t per = l->runs && n > 1 ? l->run / s->cols : 0; /* scales of a run; 0: none part */
    for (int64_t r = 0; r < t->shape[1]; r++) {
        int64_t row = layout_row(l, r) / s->rows * n;
        for (int64_t i = 0; i < n; i++, to += size) {
            int64_t at = per ? layout_run(l, i / per) * per + i % per : i;
            memcpy(to, from + (size_t)(row + at) * size, size);
        }
    }
}

/* Bytes of a run of columns. MLX's codes are a stream of bits, of which eight numbers are whole bytes. */
static enum err_code take_run_bytes(const struct weights_tensor *t, size_t *out, struct err *err)
{
    const struct weights_layout *l = t->layout;
    const int64_t run = l->runs ? l->run : t->shape[0];
    const int bits = dtype_mlx_bits(t->type);
    if (bits && run % 8 == 0)
        *out = (size_t)(run / 8) * (size_t)bits;
    else if (run % dtype_info(t->type)->block_elems == 0)
        *out = dtype_row_bytes(t->type, run);
    else
        return err_set(err, ERR_UNSUPPORTED,
                       "tensor %s: runs of %lld columns, which are no whole blocks of %s", t->name,
                       (long long)run, dtype_info(t->type)->name);
    return ERR_OK;
}

enum err_code weights_take(const struct weights_tensor *t, struct weights_tensor *out, void **mem,
                           struct err *err)
{
    const struct weights_layout *l = t->layout;
    *out = *t;
    *mem = NULL;
    if (!l)
        return ERR_OK;
    BUG_ON(t->shape[2] != 1 || t->shape[3] != 1);
    size_t run_bytes = 0;
    enum err_code code = take_scales_fit(t, err);
    if (!code && !l->is_apart && !l->is_turned)
        code = take_run_bytes(t, &run_bytes, err);
    if (code)
        return code;
    size_t bytes = dtype_row_bytes(t->type, t->shape[0]) * (size_t)t->shape[1];
    size_t n_scales = take_scale_bytes(t), n_biases = t->scales.biases ? n_scales : 0;
    uint8_t *to = mem_try(MEM_CAT_WEIGHTS, bytes + n_scales + n_biases);
    if (!to)
        return err_set(err, ERR_NOMEM, "tensor %s: no memory for %zu bytes", t->name, bytes);
    if (l->is_apart)
        take_apart(t, to);
    else if (l->is_turned)
        take_turned(t, to);
    else
        take_rows(l, t->shape[1], l->runs ? t->shape[0] / l->run : 1, run_bytes, t->data, to);
    if (n_scales)
        take_scales(t, t->scales.scales, to + bytes);
    if (n_biases)
        take_scales(t, t->scales.biases, to + bytes + n_scales);
    out->layout = NULL;
    out->data = to;
    out->bytes = bytes;
    out->scales = (struct scales){ 0 };
    if (n_scales)
        out->scales = (struct scales){ .scales = to + bytes,
                                       .biases = n_biases ? to + bytes + n_scales : NULL,
                                       .type = t->scales.type,
                                       .rows = 1,
                                       .cols = t->scales.cols };
    *mem = to;
    return ERR_OK;
}
