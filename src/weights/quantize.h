/* quantize.h - f32 numbers to the types of model files, deterministic and in plain C.
 *
 * Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are bit for bit what the published reference (the `gguf` package) gives; MLX's codes, scales and
 * biases what mlx.core.quantize gives for the same values. Q4_K, Q5_K and Q6_K have no published rule but the blocks themselves
 * (tensor/blocks.h): ours searches for the least squared error. No function reads or writes anything but its arguments. */
#ifndef PLUMB_WEIGHTS_QUANTIZE_H
#define PLUMB_WEIGHTS_QUANTIZE_H

#include "tensor/dtype.h"

/* Whether quantize_row knows the type: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K. */
bool quantize_can(enum dtype type);

/* x[0..n) to out[0..dtype_row_bytes(type, n)), any alignment. Plain types round to nearest even; what F16 cannot hold becomes
 * infinite. Need: quantize_can(type); n is a multiple of the block; for block types x is finite and below 1e30. */
void quantize_row(enum dtype type, const float *x, int64_t n, uint8_t *out);

/* MLX's affine codes of `bits` (2, 3, 4, 5, 6, 8) in groups: a row's n codes as a stream of bits, and n / group scales and biases of
 * the type given (F16, BF16 or F32). Need: n is a multiple of group (32, 64 or 128); x finite. */
struct quantize_mlx {
    int bits, group;
    enum dtype type;
};
void quantize_mlx_row(const struct quantize_mlx *q, const float *x, int64_t n, uint8_t *codes,
                      uint8_t *scales, uint8_t *biases);

#endif
