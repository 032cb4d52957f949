/* Matrix products with AVX-VNNI: 256 bits wide. */
#define YMM_VNNI 1
#include "kernels/cpu/linear_ymm.h"

const struct lin_ops lin_ops_avxvnni = { "avxvnni", grouped, plain, 0 };
