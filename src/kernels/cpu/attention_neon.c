#include "kernels/cpu/attention_impl.h"

const struct attn_ops attn_ops_neon = ATTN_TABLE("neon");
