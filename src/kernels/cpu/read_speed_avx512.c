#include "kernels/cpu/read_speed_int.h"

READ_SPEED_SUM(read_speed_sum_avx512)
