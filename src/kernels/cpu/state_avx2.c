#include "kernels/cpu/state_impl.h"

const struct state_ops state_ops_avx2 = STATE_TABLE("avx2");
