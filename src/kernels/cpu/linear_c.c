/* Matrix products in plain C over packed tiles: what a machine without the vector files runs, and a check of the layout. */
#include "kernels/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

/* The sums of x over each half, which act has times -32, times the integers of the minimum. */
static int32_t mins_sum(const struct group *c, const struct act *x, int64_t i)
{
    return c->o[0] * (x->neg32_0[i] / -32) + c->o[1] * (x->neg32_1[i] / -32);
}

/* Groups [g0, g0 + n) of a tile in canonical form, row by row. */
static void grouped_tile(const struct lin_job *j, int64_t tile, struct lin_scratch *s)
{
    const struct weight *w = j->w;
    const uint8_t *data = w->data + (size_t)tile * w->tile_bytes;
    bool affine = lin_is_affine(w->kind);
    int rows = (int)min_i64(TILE, w->shape.out - tile * TILE);
    for (int r = 0; r < rows; r++) {
        for (int t = 0; t < j->n_rows; t++)
            s->acc[0][0][t][0] = s->acc[0][1][t][0] = 0;
        for (int64_t g = 0; g < w->n_groups; g++) {
            struct group c;
            cpu_weight_group(w, data, r, g, &c);
            for (int t = 0; t < j->n_rows; t++) {
                int64_t i = act_index(j->x, t, g);
                const int8_t *q = j->x->q + i * GROUP;
                int32_t dot[2] = { 0, 0 };
                for (int k = 0; k < 16; k++) {
                    dot[0] += c.c[k] * q[k];
                    dot[1] += c.c[16 + k] * q[16 + k];
                }
                float *ad = &s->acc[0][0][t][0], *am = &s->acc[0][1][t][0];
                *ad = fmaf((float)(c.s[0] * dot[0] + c.s[1] * dot[1]), c.d * j->x->d[i], *ad);
                *am = fmaf(c.m, j->x->d[i] * (float)mins_sum(&c, j->x, i), *am);
            }
        }
        for (int t = 0; t < j->n_rows; t++)
            j->y[t * j->y_stride + tile * TILE + r] =
                affine ? s->acc[0][0][t][0] + s->acc[0][1][t][0] : s->acc[0][0][t][0];
    }
}

static void grouped(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    for (int64_t tile = tile0; tile < tile1; tile++)
        grouped_tile(j, tile, s);
}

/* The chain of columns [c0, c1) of a tile's row. */
static float plain_part(const struct weight *w, const uint8_t *codes, const float *x, int64_t c0,
                        int64_t c1, int r)
{
    float a = 0;
    for (int64_t i = c0; i < c1; i++)
        a = fmaf(cpu_weight_element(w, codes, i, r), x[i], a);
    return a;
}

static float plain_dot(const struct weight *w, const uint8_t *tile, const float *x, int r)
{
    const int64_t in = w->shape.in;
    const uint8_t *codes = tile + cpu_f8_scale_bytes(w);
    float y = 0;
    if (!source_is_f8(w->shape.type))
        return plain_part(w, tile, x, 0, in, r);
    for (int64_t c = 0; c * w->scale_cols < in; c++) {
        float scale,
            a = plain_part(w, codes, x, c * w->scale_cols, min_i64(in, (c + 1) * w->scale_cols), r);
        memcpy(&scale, tile + (c * TILE + r) * 4, 4);
        y = fmaf(scale, a, y);
    }
    return y;
}

static void plain(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    const struct weight *w = j->w;
    for (int64_t tile = tile0; tile < tile1; tile++) {
        const uint8_t *data = w->data + (size_t)tile * w->tile_bytes;
        int rows = (int)min_i64(TILE, w->shape.out - tile * TILE);
        for (int t = 0; t < j->n_rows; t++)
            for (int r = 0; r < rows; r++)
                j->y[t * j->y_stride + tile * TILE + r] =
                    plain_dot(w, data, j->x->f + t * w->shape.in, r);
    }
}

const struct lin_ops lin_ops_c = { "c", grouped, plain, 0 };
