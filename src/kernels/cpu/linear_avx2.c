/* Matrix products with AVX2. */
#define YMM_VNNI 0
#include "kernels/cpu/linear_ymm.h"

const struct lin_ops lin_ops_avx2 = { "avx2", grouped, plain, 0 };
