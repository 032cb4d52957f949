#include "tensor/root_dots.h"

#include <math.h>

#define ROOT_LANES 16
#define ROOT_LEAST 1e-6f /* of the published code */

static float root_dot(const float *a, const float *b, int64_t n)
{
    float lanes[ROOT_LANES] = { 0 };
    for (int64_t i = 0; i < n; i++)
        lanes[i % ROOT_LANES] = fmaf(a[i], b[i], lanes[i % ROOT_LANES]);
    for (int w = ROOT_LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            lanes[i] += lanes[i + w];
    return lanes[0];
}

static float root_signed(float x)
{
    float least = fabsf(x) < ROOT_LEAST ? ROOT_LEAST : fabsf(x); /* a NaN stays */
    return x == 0 ? 0 : copysignf(sqrtf(least), x);
}

void root_dots(struct tensor y, struct tensor a, struct tensor b, float scale)
{
    int64_t n = a.cols / y.cols;
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t j = 0; j < y.cols; j++)
            y.data[t * y.stride + j] = root_signed(
                scale * root_dot(a.data + t * a.stride + j * n, b.data + t * b.stride + j * n, n));
}
