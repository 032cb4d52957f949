/* Matrix products in plain C over packed tiles: what a machine without the vector files runs, and a check of the layout. */
#include "kernels/cpu/cpu_int.h"
#include "tensor/half.h"

#include <math.h>
#include <string.h>

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
                *am = fmaf(c.m, j->x->s[i], *am);
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

static float element(const struct weight *w, const uint8_t *tile, int64_t i, int r)
{
    uint16_t h;
    float f;
    if (w->kind == LIN_KIND_F32) {
        memcpy(&f, tile + (i * TILE + r) * 4, 4);
        return f;
    }
    memcpy(&h, tile + (i * TILE + r) * 2, 2);
    return w->kind == LIN_KIND_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static void plain(const struct lin_job *j, int64_t tile0, int64_t tile1, struct lin_scratch *s)
{
    const struct weight *w = j->w;
    for (int64_t tile = tile0; tile < tile1; tile++) {
        const uint8_t *data = w->data + (size_t)tile * w->tile_bytes;
        int rows = (int)min_i64(TILE, w->shape.out - tile * TILE);
        for (int t = 0; t < j->n_rows; t++) {
            const float *x = j->x->f + t * w->shape.in;
            for (int r = 0; r < rows; r++) {
                float a = 0;
                for (int64_t i = 0; i < w->shape.in; i++)
                    a = fmaf(element(w, data, i, r), x[i], a);
                j->y[t * j->y_stride + tile * TILE + r] = a;
            }
        }
    }
}

const struct lin_ops lin_ops_c = { "c", grouped, plain, 0 };
