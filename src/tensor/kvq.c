#include "tensor/kvq.h"

bool kvq_quantise(struct kvq_group *out, const float *x, int n, int top)
{
    float lo = x[0], hi = x[0];
    bool ok = true;
    *out = (struct kvq_group){ 0 };
    for (int i = 0; i < n; i++) {
        ok = ok && isfinite(x[i]);
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    if (!ok || !kvq_line(lo, hi, (float)top, &out->scale, &out->bias))
        return false;
    float s = f16_to_f32(out->scale), b = f16_to_f32(out->bias);
    if (s == 0)
        return true;
    float inv = 1.0f / s;
    for (int i = 0; i < n; i++) {
        float v = (x[i] - b) * inv;
        v = v > 0 ? v : 0;
        v = v < (float)top ? v : (float)top;
        out->codes[i] = (uint8_t)((v + FMATH_RINT) - FMATH_RINT);
    }
    return true;
}

float kvq_value(int code, uint16_t scale, uint16_t bias)
{
    return fmaf((float)code, f16_to_f32(scale), f16_to_f32(bias));
}
