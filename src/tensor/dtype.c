#include "tensor/dtype.h"
#include "base/err.h"
#include "tensor/blocks.h"

#define PLAIN(NAME, BYTES) [DTYPE_##NAME] = { #NAME, 1, BYTES, true, false }
#define BLOCK(NAME, ELEMS, STRUCT) \
    [DTYPE_##NAME] = { #NAME, ELEMS, (int)sizeof(struct STRUCT), true, false }
#define SIZED(NAME, ELEMS, BYTES)  [DTYPE_##NAME] = { #NAME, ELEMS, BYTES, false, false }
#define SCALED(NAME, ELEMS, BYTES) [DTYPE_##NAME] = { #NAME, ELEMS, BYTES, false, true }

static const struct dtype_info dtype_table[DTYPE_COUNT] = {
    PLAIN(F32, 4),
    PLAIN(F16, 2),
    PLAIN(BF16, 2),
    BLOCK(Q4_0, 32, block_q4_0),
    BLOCK(Q4_1, 32, block_q4_1),
    BLOCK(Q5_0, 32, block_q5_0),
    BLOCK(Q5_1, 32, block_q5_1),
    BLOCK(Q8_0, 32, block_q8_0),
    BLOCK(Q2_K, 256, block_q2_k),
    BLOCK(Q3_K, 256, block_q3_k),
    BLOCK(Q4_K, 256, block_q4_k),
    BLOCK(Q5_K, 256, block_q5_k),
    BLOCK(Q6_K, 256, block_q6_k),
    BLOCK(IQ4_NL, 32, block_iq4_nl),
    BLOCK(IQ4_XS, 256, block_iq4_xs),
    BLOCK(MXFP4, 32, block_mxfp4),
    PLAIN(I8, 1),
    PLAIN(I16, 2),
    PLAIN(I32, 4),
    PLAIN(I64, 8),
    PLAIN(F64, 8),
    SIZED(U8, 1, 1),
    SIZED(U16, 1, 2),
    SIZED(U32, 1, 4),
    SIZED(U64, 1, 8),
    SIZED(Q8_1, 32, 36),
    SIZED(Q8_K, 256, 292),
    SIZED(IQ1_S, 256, 50),
    SIZED(IQ1_M, 256, 56),
    SIZED(IQ2_XXS, 256, 66),
    SIZED(IQ2_XS, 256, 74),
    SIZED(IQ2_S, 256, 82),
    SIZED(IQ3_XXS, 256, 98),
    SIZED(IQ3_S, 256, 110),
    SIZED(TQ1_0, 256, 54),
    SIZED(TQ2_0, 256, 66),
    SIZED(NVFP4, 64, 36),
    SIZED(Q1_0, 128, 18),
    SIZED(Q2_0, 64, 18),
    SCALED(F8_E4M3, 1, 1),
    SCALED(F8_E5M2, 1, 1),
    SCALED(MLX2, 32, 8),
    SCALED(MLX3, 32, 12),
    SCALED(MLX4, 32, 16),
    SCALED(MLX5, 32, 20),
    SCALED(MLX6, 32, 24),
    SCALED(MLX8, 32, 32),
    [DTYPE_KV_Q8] = { "Q8", 64, 68, false, false },
    [DTYPE_KV_Q4] = { "Q4", 64, 36, false, false },
};

const struct dtype_info *dtype_info(enum dtype type)
{
    BUG_ON((unsigned)type >= DTYPE_COUNT);
    return &dtype_table[type];
}

size_t dtype_row_bytes(enum dtype type, int64_t n)
{
    const struct dtype_info *info = dtype_info(type);
    size_t bytes;
    BUG_ON(n < 0 || n % info->block_elems != 0);
    BUG_ON(__builtin_mul_overflow((uint64_t)(n / info->block_elems), (size_t)info->block_bytes,
                                  &bytes));
    return bytes;
}

enum dtype dtype_mlx(int bits)
{
    static const enum dtype types[] = { [2] = DTYPE_MLX2, [3] = DTYPE_MLX3, [4] = DTYPE_MLX4,
                                        [5] = DTYPE_MLX5, [6] = DTYPE_MLX6, [8] = DTYPE_MLX8 };
    bool has = bits >= 2 && bits <= 8 && bits != 7;
    return has ? types[bits] : DTYPE_COUNT;
}

int dtype_mlx_bits(enum dtype type)
{
    return type >= DTYPE_MLX2 && type <= DTYPE_MLX8 ? dtype_info(type)->block_bytes / 4 : 0;
}

struct scales scales_from_row(const struct scales *s, int64_t row0, int64_t in)
{
    struct scales out = *s;
    if (!s->scales)
        return out;
    BUG_ON(row0 < 0 || row0 % s->rows != 0);
    size_t at = (size_t)(row0 / s->rows) * dtype_row_bytes(s->type, (in + s->cols - 1) / s->cols);
    out.scales += at;
    if (out.biases)
        out.biases += at;
    return out;
}
