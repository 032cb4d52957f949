#include "kernels/cpu/state_impl.h"

const struct state_ops state_ops_c = STATE_TABLE("c");
