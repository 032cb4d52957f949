/* read_speed_int.h - the reading loop, compiled once for each instruction set. */
#ifndef PLUMB_KERNELS_CPU_READ_SPEED_INT_H
#define PLUMB_KERNELS_CPU_READ_SPEED_INT_H

#include <stddef.h>
#include <stdint.h>

/* Exclusive or of all words. Need: p 64-byte aligned, n a multiple of 256. */
uint64_t read_speed_sum_c(const uint8_t *p, size_t n);
uint64_t read_speed_sum_avx2(const uint8_t *p, size_t n);
uint64_t read_speed_sum_avx512(const uint8_t *p, size_t n);

typedef uint64_t read_speed_v __attribute__((vector_size(64)));

#define READ_SPEED_SUM(name)                                           \
    uint64_t name(const uint8_t *p, size_t n)                          \
    {                                                                  \
        const read_speed_v *v = (const read_speed_v *)(const void *)p; \
        read_speed_v a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };       \
        for (size_t i = 0; i < n / 64; i += 4) {                       \
            __builtin_prefetch((const char *)(v + i) + 4096);          \
            __builtin_prefetch((const char *)(v + i) + 4096 + 64);     \
            __builtin_prefetch((const char *)(v + i) + 4096 + 128);    \
            __builtin_prefetch((const char *)(v + i) + 4096 + 192);    \
            a ^= v[i], b ^= v[i + 1], c ^= v[i + 2], d ^= v[i + 3];    \
        }                                                              \
        a ^= b ^ c ^ d;                                                \
        return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];  \
    }

#endif
