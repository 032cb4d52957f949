#include "tensor/kvq.h"

#include <string.h>

struct range {
    float lo, hi;
};

static struct range kvq_range(const float *x, int n)
{
    struct range r = { x[0], x[0] };
    for (int i = 1; i < n; i++) {
        r.lo = x[i] < r.lo ? x[i] : r.lo;
        r.hi = x[i] > r.hi ? x[i] : r.hi;
    }
    return r;
}

bool kvq_quantise(struct kvq_group *out, const float *x, const uint16_t *base, int n, int top)
{
    float y[KVQ_GROUP] = { 0 };
    *out = (struct kvq_group){ 0 };
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return false;
        y[i] = base ? x[i] - f16_to_f32(base[i]) : 0;
    }
    struct range r = kvq_range(x, n), near = kvq_range(y, n);
    out->is_relative = base && near.hi - near.lo < r.hi - r.lo;
    if (out->is_relative) {
        x = y;
        r = near;
    }
    if (!kvq_line(r.lo, r.hi, top, &out->scale, &out->bias)) {
        out->is_relative = false;
        return false;
    }
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

float kvq_key(int code, uint16_t scale, uint16_t bias, bool is_relative, uint16_t base)
{
    return fmaf(is_relative, f16_to_f32(base), kvq_value(code, scale, bias));
}

void kvq_base(uint16_t *base, const float *x, int n)
{
    bool ok = true;
    for (int i = 0; i < n; i++) {
        base[i] = f32_to_f16(x[i]);
        ok = ok && isfinite(f16_to_f32(base[i]));
    }
    if (!ok)
        memset(base, 0, (size_t)n * sizeof(*base));
}
