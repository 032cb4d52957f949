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
    /* Of safetensors files alone; their scales are tensors of their own (struct scales). MLX's affine codes of 2 to 8 bits: a
     * row is a stream of bits, the lowest of each byte first (the words of the file are little-endian). */
    DTYPE_F8_E4M3, /* OCP FP8: no infinity, NaN is 0x7F and 0xFF */
    DTYPE_F8_E5M2,
    DTYPE_MLX2,
    DTYPE_MLX3,
    DTYPE_MLX4,
    DTYPE_MLX5,
    DTYPE_MLX6,
    DTYPE_MLX8,
    DTYPE_U8, /* known by size, as above */
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64,
    DTYPE_COUNT
};

/* Scales that stand apart from the codes of an fp8 or MLX matrix of [out][in] elements c:
 *
 *     MLX: w[r][i] = scales[r][i / cols] * c + biases[r][i / cols]     rows = 1, cols = 32, 64 or 128 divides in
 *     fp8: w[r][i] = scales[r / rows][i / cols] * c                    rows, cols >= 1; scales NULL: 1 everywhere
 *
 * Both arrays are row-major, [ceil(out / rows)][ceil(in / cols)], without gaps. */
struct scales {
    const uint8_t *scales, *biases; /* any alignment; biases: MLX only */
    enum dtype type;                /* of both: F16, BF16 or F32 */
    int64_t rows, cols;             /* elements that share a scale */
};

struct dtype_info {
    const char *name; /* "Q4_K" */
    int block_elems;  /* elements per block; 1 for plain types */
    int block_bytes;  /* bytes per block */
    bool can_decode;  /* weights_dequantize knows it */
    bool has_scales;  /* struct scales goes with it */
};

/* Need: 0 <= type < DTYPE_COUNT. */
const struct dtype_info *dtype_info(enum dtype type);

/* Bytes of one row of n elements. Need: n >= 0 and a multiple of the block, and the result fits size_t. */
size_t dtype_row_bytes(enum dtype type, int64_t n);

/* The type of MLX's codes of so many bits; DTYPE_COUNT: there is none. */
enum dtype dtype_mlx(int bits);
/* Bits of a code of an MLX type; 0: it is none. */
int dtype_mlx_bits(enum dtype type);

/* The scales of rows [row0, ...) of a matrix of rows of `in` elements. Need: row0 is a multiple of s->rows or s has no scales. */
struct scales scales_from_row(const struct scales *s, int64_t row0, int64_t in);

#endif
