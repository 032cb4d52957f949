/* vector_types.h - CUDA's vector types, for C and C++. */
#ifndef PLUMB_CUDASIM_INCLUDE_VECTOR_TYPES_H
#define PLUMB_CUDASIM_INCLUDE_VECTOR_TYPES_H

struct uint2 {
    unsigned int x, y;
} __attribute__((aligned(8)));

struct uint3 {
    unsigned int x, y, z;
};

struct uint4 {
    unsigned int x, y, z, w;
} __attribute__((aligned(16)));

struct int2 {
    int x, y;
} __attribute__((aligned(8)));

struct int4 {
    int x, y, z, w;
} __attribute__((aligned(16)));

struct float2 {
    float x, y;
} __attribute__((aligned(8)));

struct float4 {
    float x, y, z, w;
} __attribute__((aligned(16)));

#endif
