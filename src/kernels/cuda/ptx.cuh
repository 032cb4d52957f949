/* ptx.cuh - instructions that C++ has no words for (PTX ISA): products, conversions, copies to shared memory, the order of kernels. Those of
 * barriers are in barrier.cuh, Hopper's products in wgmma.cuh. tests/cudasim has its own of these three files. */
#ifndef PLUMB_KERNELS_CUDA_PTX_CUH
#define PLUMB_KERNELS_CUDA_PTX_CUH

#include <stdint.h>

/* An array in shared memory whose size the launch gives. */
#define CU_SHARED_ARRAY(type, name, align) \
    extern __shared__ __align__(align)     \
    type name[]

/* The kernel behind this one may be launched as soon as all blocks of this one are: it waits for this one's end by itself. */
static __device__ __forceinline__ void cu_start_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Wait until the kernel before has ended and what it wrote can be read. */
static __device__ __forceinline__ void cu_grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* D = A B + C on 16 x 8 x 16: A's and B's fragments as PTX names them (PTX ISA, mma.m16n8k16). */
template <bool IS_BF16>
static __device__ __forceinline__ void cu_mma(float c[4], const uint32_t a[4], uint32_t b0,
                                              uint32_t b1)
{
    if (IS_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t cu_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Both halves of a times the scale in sb's low half, plus the bias in its high half: the instruction picks halves by itself. */
static __device__ __forceinline__ uint32_t cu_scale_bf16x2(uint32_t a, uint32_t sb)
{
    uint32_t d;
    asm("{.reg .b16 s, b; .reg .b32 ss, bb; mov.b32 {s, b}, %2; mov.b32 ss, {s, s}; "
        "mov.b32 bb, {b, b}; fma.rn.bf16x2 %0, %1, ss, bb;}"
        : "=r"(d)
        : "r"(a), "r"(sb));
    return d;
}

/* Two floats to the 16-bit type, nearest even; lo is the low half. */
template <bool IS_BF16> static __device__ __forceinline__ uint32_t cu_pack2(float lo, float hi)
{
    uint32_t d;
    if (IS_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

/* Two floats to f16, nearest even; what is beyond it becomes the largest finite value. */
static __device__ __forceinline__ uint32_t cu_pack2_finite(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

/* 2^x; flushes nothing that matters: arguments are <= 0. */
static __device__ __forceinline__ float cu_exp2(float x)
{
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ... where a denormal result is 0. */
static __device__ __forceinline__ float cu_exp2_flushed(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* --- copies --- */

/* An address in shared memory as instructions take it. */
static __device__ __forceinline__ uint32_t cu_shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes on their way to shared memory. */
static __device__ __forceinline__ void cu_copy16(uint32_t dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

/* ... of a long run: the cache fetches 128. */
static __device__ __forceinline__ void cu_copy16_of_run(uint32_t dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(dst), "l"(src)
                 : "memory");
}

/* Four matrices of eight rows of eight 16-bit values in shared memory, turned: lane l names row l % 8 of matrix l / 8 and gets, of each,
 * values 2 (l % 4) and the one behind it of column l / 4 (PTX ISA, ldmatrix). */
static __device__ __forceinline__ uint4 cu_turned(const void *row)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(cu_shared_at(row))
                 : "memory");
    return v;
}

/* The thread's copies since the last one of these are a group. */
static __device__ __forceinline__ void cu_copy_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most N of the thread's groups are under way. */
template <int N> static __device__ __forceinline__ void cu_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void cu_copy_wait_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
