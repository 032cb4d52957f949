#include "kernels/cpu/state_impl.h"

const struct state_ops state_ops_avx512 = STATE_TABLE("avx512");
