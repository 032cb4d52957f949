/* v16_neon.h - the native register of v16.h on ARM: four lanes.
 *
 * Everything here is IEEE's single operation under the default FPCR (pool_set_fp). Maximum and minimum are compare and select:
 * the instructions for them choose otherwise between zeros, and for NaN. */
#ifndef PLUMB_KERNELS_CPU_V16_NEON_H
#define PLUMB_KERNELS_CPU_V16_NEON_H

#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define NV_INLINE static inline __attribute__((always_inline))

#define NV 4
typedef float32x4_t nv;

NV_INLINE nv nv_load(const float *p)
{
    return vld1q_f32(p);
}
NV_INLINE void nv_store(float *p, nv a)
{
    vst1q_f32(p, a);
}
NV_INLINE nv nv_load_n(const float *p, int n)
{
    float lane[4] = { 0 };
    if (n >= 4)
        return vld1q_f32(p);
    for (int i = 0; i < n; i++)
        lane[i] = p[i];
    return vld1q_f32(lane);
}
NV_INLINE void nv_store_n(float *p, nv a, int n)
{
    float lane[4];
    if (n >= 4) {
        vst1q_f32(p, a);
        return;
    }
    vst1q_f32(lane, a);
    for (int i = 0; i < n; i++)
        p[i] = lane[i];
}
NV_INLINE nv nv_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
NV_INLINE void nv_store_f16(uint16_t *p, nv a)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
NV_INLINE nv nv_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
NV_INLINE uint32x4_t nv_bytes(const uint8_t *p) /* four bytes, widened */
{
    uint32_t u;
    memcpy(&u, p, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(u)))));
}
NV_INLINE nv nv_load_e5m2(const uint8_t *p)
{
    uint16x4_t v = vmovn_u32(nv_bytes(p));
    return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(v, 8)));
}
NV_INLINE nv nv_load_e4m3(const uint8_t *p)
{
    uint16x4_t v = vmovn_u32(nv_bytes(p));
    v = vorr_u16(vshl_n_u16(vand_u16(v, vdup_n_u16(0x80)), 8),
                 vshl_n_u16(vand_u16(v, vdup_n_u16(0x7F)), 7));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(v)), 256.0f);
}
NV_INLINE nv nv_load_u8(const uint8_t *p)
{
    return vcvtq_f32_u32(nv_bytes(p));
}
NV_INLINE void nv_load_u4(const uint8_t *p, nv *lo, nv *hi)
{
    uint32x4_t b = nv_bytes(p);
    *lo = vcvtq_f32_u32(vandq_u32(b, vdupq_n_u32(15)));
    *hi = vcvtq_f32_u32(vshrq_n_u32(b, 4));
}
NV_INLINE void nv_store_u8(uint8_t *p, nv a)
{
    uint16x4_t h = vmovn_u32(vcvtnq_u32_f32(a));
    uint32_t u = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(h, h))), 0);
    memcpy(p, &u, 4);
}
NV_INLINE nv nv_set1(float x)
{
    return vdupq_n_f32(x);
}
NV_INLINE nv nv_add(nv a, nv b)
{
    return vaddq_f32(a, b);
}
NV_INLINE nv nv_sub(nv a, nv b)
{
    return vsubq_f32(a, b);
}
NV_INLINE nv nv_mul(nv a, nv b)
{
    return vmulq_f32(a, b);
}
NV_INLINE nv nv_div(nv a, nv b)
{
    return vdivq_f32(a, b);
}
NV_INLINE nv nv_fma(nv a, nv b, nv c)
{
    return vfmaq_f32(c, a, b);
}
NV_INLINE nv nv_max(nv a, nv b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
NV_INLINE nv nv_min(nv a, nv b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
NV_INLINE nv nv_abs(nv a)
{
    return vabsq_f32(a);
}
NV_INLINE nv nv_neg(nv a)
{
    return vnegq_f32(a);
}
NV_INLINE nv nv_copysign(nv mag, nv sign)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, mag);
}
NV_INLINE nv nv_select_lt(nv a, nv b, nv x, nv y)
{
    return vbslq_f32(vcltq_f32(a, b), x, y);
}
NV_INLINE nv nv_finite_or_zero(nv a, bool *finite)
{
    uint32x4_t ok = vcltq_f32(vabsq_f32(a), vdupq_n_f32(INFINITY));
    *finite = *finite && vminvq_u32(ok) != 0;
    return vreinterpretq_f32_u32(vandq_u32(ok, vreinterpretq_u32_f32(a)));
}
NV_INLINE nv nv_scale2(nv x, nv n)
{
    int32x4_t i = vcvtnq_s32_f32(n), a = vshrq_n_s32(i, 1), b = vsubq_s32(i, a);
    int32x4_t bias = vdupq_n_s32(127);
    nv pa = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(a, bias), 23));
    nv pb = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(b, bias), 23));
    return vmulq_f32(vmulq_f32(x, pa), pb);
}

#endif
