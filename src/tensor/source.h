/* source.h - what every backend asks of a weight before it packs it, and fp8's values. */
#ifndef PLUMB_TENSOR_SOURCE_H
#define PLUMB_TENSOR_SOURCE_H

#include "tensor/backend.h"
#include "tensor/half.h"

/* Shape and block fit; types with scales have them, in a form that the header of struct scales allows; no fp8 code is NaN or
 * infinite (its product would be NaN for every input).
 * Errors: ERR_INVALID - names the weight and what does not fit. */
enum err_code source_check(const struct weight_source *src, struct err *err) MUST_CHECK;

static inline bool source_is_f8(enum dtype type)
{
    return type == DTYPE_F8_E4M3 || type == DTYPE_F8_E5M2;
}

/* Element i of an array of F16, BF16 or F32, widened. */
static inline float source_float(const uint8_t *p, enum dtype type, int64_t i)
{
    uint16_t h;
    float f;
    if (type == DTYPE_F32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    return type == DTYPE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Columns of an fp8 matrix with rows of `in` that share a scale: all of them where there is none. */
static inline int64_t source_f8_cols(const struct scales *s, int64_t in)
{
    return s->scales && s->cols < in ? s->cols : in;
}

/* The scale of row r, columns from c * source_f8_cols() on. */
static inline float source_f8_scale(const struct scales *s, int64_t in, int64_t r, int64_t c)
{
    if (!s->scales)
        return 1;
    return source_float(s->scales, s->type, r / s->rows * ((in + s->cols - 1) / s->cols) + c);
}

#endif
