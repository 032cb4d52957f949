#include "kernels/cpu/attention_impl.h"

const struct attn_ops attn_ops_avx2 = ATTN_TABLE("avx2");
