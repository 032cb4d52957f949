#include "kernels/cpu/rows_impl.h"

const struct rows_ops rows_ops_avx512 = ROWS_TABLE("avx512");
