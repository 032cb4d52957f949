/* dtype.h - element types as stored in files and caches. Block formats are those of the GGUF format document (blocks.h). */
#ifndef PLUMB_TENSOR_DTYPE_H
#define PLUMB_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_MXFP4,
    DTYPE_I8,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_F64,
    /* Known by size only, so that a file that holds them can be opened and listed; nothing decodes them. */
    DTYPE_Q8_1,
    DTYPE_Q8_K,
    DTYPE_IQ1_S,
    DTYPE_IQ1_M,
    DTYPE_IQ2_XXS,
    DTYPE_IQ2_XS,
    DTYPE_IQ2_S,
    DTYPE_IQ3_XXS,
    DTYPE_IQ3_S,
    DTYPE_TQ1_0,
    DTYPE_TQ2_0,
    DTYPE_NVFP4,
    DTYPE_Q1_0,
    DTYPE_Q2_0,
    /* Of caches alone: kvq.h. A row of them has scales beside it, so they have no size here but that of a whole group. */
    DTYPE_KV_Q8,
    DTYPE_KV_Q4,
    DTYPE_COUNT
};

struct dtype_info {
    const char *name; /* "Q4_K" */
    int block_elems;  /* elements per block; 1 for plain types */
    int block_bytes;  /* bytes per block */
    bool can_decode;  /* weights_dequantize knows it */
};

/* Need: 0 <= type < DTYPE_COUNT. */
const struct dtype_info *dtype_info(enum dtype type);

/* Bytes of one row of n elements. Need: n >= 0 and a multiple of the block, and the result fits size_t. */
size_t dtype_row_bytes(enum dtype type, int64_t n);

#endif
