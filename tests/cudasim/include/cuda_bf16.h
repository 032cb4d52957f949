/* cuda_bf16.h - the simulated device's: kernels keep bf16 numbers as bits (ptx.cuh). */
#ifndef PLUMB_CUDASIM_INCLUDE_CUDA_BF16_H
#define PLUMB_CUDASIM_INCLUDE_CUDA_BF16_H

#endif
