/* recode.h - one tensor of a model file written as another type, its rows in another order: what converting is made of.
 *
 * Reads the source's map piece by piece, so that memory does not grow with the tensor (but for the scales of MLX's codes). The result
 * does not depend on the number of threads. Of a tensor with a layout (weights.h) one matrix is in memory. */
#ifndef PLUMB_WEIGHTS_RECODE_H
#define PLUMB_WEIGHTS_RECODE_H

#include "weights/quantize.h"
#include "weights/weights.h"

enum recode_change { /* of each element, in f32 */
                     RECODE_KEEP,
                     RECODE_ADD_ONE,
                     RECODE_SUB_ONE,
                     RECODE_NEG_EXP, /* -exp(x) */
                     RECODE_LOG_NEG, /* log(-x), its inverse */
};

/* How a matrix of the destination stands. */
enum recode_form {
    RECODE_FORM_ROWS,
    RECODE_FORM_TURNED,    /* [cols][rows]; plain types */
    RECODE_FORM_CODES,     /* of MXFP4 alone: 16 bytes a block, neighbours in a byte; type is U8 */
    RECODE_FORM_EXPONENTS, /* of MXFP4 alone: one byte a block */
};

/* Row r of group g of the destination is row rows[r] of group g of the source, which is run g of the first part's rows, behind it run g
 * of the second's, and so on. */
struct recode {
    const char *name; /* in the destination */
    /* [n_parts], of one type and row length; all but the first of one shape */
    const struct weights_tensor *const *parts;
    int n_parts;
    int64_t row0, n_rows;  /* of every part; n_rows 0 = all */
    int64_t cols;          /* elements of a row; 0 = the first part's shape[0] */
    int64_t groups;        /* 0 = 1 */
    const int32_t *rows;   /* [rows of the destination / groups]; NULL: r */
    int64_t run;           /* columns move in runs of so many ... */
    const int32_t *runs;   /* [cols / run] ... run i is the source's run runs[i]; NULL: i */
    enum recode_form form; /* of each group */
    enum recode_change change;
    enum dtype type;         /* of the destination; MLX: of the codes */
    struct quantize_mlx mlx; /* where type is MLX's; its type is that of scales and biases */
    int n_dims;
    int64_t shape[WEIGHTS_DIMS_MAX]; /* as in weights_tensor */
};

/* Shapes agree, the types can be read and written, rows are whole blocks.
 * Errors: ERR_UNSUPPORTED, ERR_INVALID - name the tensor and the remedy. */
enum err_code recode_check(const struct recode *r, struct err *err) MUST_CHECK;

/* Bytes of the destination's data (MLX: of the codes), and of its scales, as many again being its biases (0: none). */
size_t recode_bytes(const struct recode *r);
size_t recode_scale_bytes(const struct recode *r);
struct recode_out {
    enum err_code (*write)(void *ctx, const void *data, size_t n, struct err *err);
    void *ctx;
    uint8_t *scales, *biases; /* [recode_scale_bytes] each; NULL where that is 0 */
    int threads;
    const volatile int *stop; /* not 0: ERR_CANCELLED at the next piece; may be NULL */
};

/* Errors: those of write; ERR_NUMERIC - a value that the type cannot hold (NaN, infinite, beyond f16's range); ERR_NOMEM;
 * ERR_CANCELLED. */
enum err_code recode_run(const struct recode *r, const struct weights *w,
                         const struct recode_out *out, struct err *err) MUST_CHECK;

#endif
