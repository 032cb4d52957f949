#include "kernels/cpu/rows_impl.h"

const struct rows_ops rows_ops_neon = ROWS_TABLE("neon");
