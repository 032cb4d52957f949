/* attention_product.h - attention's two products on v16.h (struct attn_product, cpu_int.h); part of attention_impl.h. */
#ifndef PLUMB_KERNELS_CPU_ATTENTION_PRODUCT_H
#define PLUMB_KERNELS_CPU_ATTENTION_PRODUCT_H

#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/v16.h"

/* Registers of a row of b that a pass covers: with ATTN_QUERIES rows of a they fill the register file. One or two rows of a take
 * twice as many, or each sum would wait for the one before it. */
#if NV == 16 || NV == 4
#define NB 4
#elif NV == 8
#define NB 2
#else
#define NB 16
#endif

/* Columns of b that a call works on: their first element of row 0, elements between rows, and where they are in c. */
struct product_cols {
    const uint8_t *b;
    int64_t stride;
    int at;
    const uint8_t
        *next; /* to be brought to the cache meanwhile: `step` bytes with each row; or NULL */
    int64_t step;
};

V_INLINE nv product_load(const uint8_t *b, int64_t i, enum dtype type)
{
    if (type == DTYPE_F16)
        return nv_load_f16((const uint16_t *)b + i);
    if (type == DTYPE_BF16)
        return nv_load_bf16((const uint16_t *)b + i);
    return nv_load((const float *)b + i);
}

/* Sums of a row of a, nb registers of them, to c: as they are or merged into what is there. */
V_INLINE void product_put(const struct attn_product *p, int row, int col, const nv *acc,
                          const int nb)
{
    float *c = p->c + row * p->c_stride + col;
    if (!p->alpha) {
#pragma GCC unroll 32
        for (int j = 0; j < nb; j++)
            nv_store(c + NV * j, acc[j]);
        return;
    }
    nv alpha = nv_set1(p->alpha[row]), beta = nv_set1(p->beta[row]);
#pragma GCC unroll 32
    for (int j = 0; j < nb; j++)
        nv_store(c + NV * j, nv_fma(acc[j], beta, nv_mul(nv_load(c + NV * j), alpha)));
}

/* Rows [i0, i0 + n) of a, nb registers of columns; n, nb, type and keep are constants at each call.
 * keep: the columns' values go to p->wide too, nb registers for each k. */
V_INLINE void product_block(const struct attn_product *p, int i0, const int n, const int nb,
                            struct product_cols cols, const enum dtype type, const bool keep)
{
    nv acc[ATTN_QUERIES][2 * NB];
    const float *a[ATTN_QUERIES];
#pragma GCC unroll 6
    for (int i = 0; i < n; i++) {
        a[i] = p->a[i0 + i];
#pragma GCC unroll 32
        for (int j = 0; j < nb; j++)
            acc[i][j] = nv_set1(0);
    }
    for (int k = p->k0; k < p->k1; k++) {
        nv row[2 * NB];
        if (cols.next) {
            __builtin_prefetch(cols.next);
            __builtin_prefetch(cols.next + cols.step / 2);
            cols.next += cols.step;
        }
#pragma GCC unroll 32
        for (int j = 0; j < nb; j++) {
            row[j] = product_load(cols.b, k * cols.stride + NV * j, type);
            if (keep)
                nv_store(p->wide + (k * nb + j) * NV, row[j]);
        }
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            nv x = nv_set1(a[i][k]);
#pragma GCC unroll 32
            for (int j = 0; j < nb; j++)
                acc[i][j] = nv_fma(x, row[j], acc[i][j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
        product_put(p, i0 + i, cols.at, acc[i], nb);
}

#define PRODUCT_CASE(n)                                \
    case n:                                            \
        product_block(p, i0, n, nb, cols, type, keep); \
        break;

V_INLINE void product_rows(const struct attn_product *p, int i0, int n, const int nb,
                           struct product_cols cols, const enum dtype type, const bool keep)
{
    switch (n) {
        PRODUCT_CASE(1)
        PRODUCT_CASE(2)
        PRODUCT_CASE(3)
        PRODUCT_CASE(4)
        PRODUCT_CASE(5)
        PRODUCT_CASE(6)
    }
}

static void product_f32(const struct attn_product *p, int i0, int n, struct product_cols cols)
{
    product_rows(p, i0, n, NB, cols, DTYPE_F32, false);
}

/* Rows of a that go next: groups as few as there can be, and even (7 rows are 4 and 3). */
V_INLINE int product_group(const struct attn_product *p, int i)
{
    int left = p->n - i, groups = (left + ATTN_QUERIES - 1) / ATTN_QUERIES;
    return (left + groups - 1) / groups;
}

/* NB registers of columns for all rows of a: the first group widens them, the others find them widened. */
V_INLINE void product_panel(const struct attn_product *p, struct product_cols cols,
                            const enum dtype type)
{
    int n = product_group(p, 0);
    if (n < p->n && type != DTYPE_F32)
        product_rows(p, 0, n, NB, cols, type, true);
    else
        product_rows(p, 0, n, NB, cols, type, false);
    struct product_cols rest = { cols.b, cols.stride, cols.at, NULL, 0 };
    if (type != DTYPE_F32) {
        rest.b = (const uint8_t *)p->wide;
        rest.stride = NB * NV;
    }
    for (int i = n; i < p->n; i += n) {
        n = product_group(p, i);
        product_f32(p, i, n, rest);
    }
}

/* Columns of less than a register. */
V_INLINE void product_column(const struct attn_product *p, int col, const enum dtype type)
{
    for (int i = 0; i < p->n; i++) {
        float *c = p->c + i * p->c_stride + col, s = 0;
        for (int k = p->k0; k < p->k1; k++) {
            int64_t at = k * p->stride + col;
            float x = type == DTYPE_F16    ? f16_to_f32(((const uint16_t *)p->b)[at])
                      : type == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)p->b)[at])
                                           : ((const float *)p->b)[at];
            s = fmaf(p->a[i][k], x, s);
        }
        *c = p->alpha ? fmaf(s, p->beta[i], *c * p->alpha[i]) : s;
    }
}

/* To the panel of columns behind one of `width`. */
V_INLINE void product_advance(const struct attn_product *p, struct product_cols *cols, int width,
                              int64_t size)
{
    cols->at += width;
    cols->b += width * size;
    cols->next += cols->next ? (p->k1 - p->k0) * cols->step : 0;
}

V_INLINE void product_type(const struct attn_product *p, const enum dtype type)
{
    const int64_t size = type == DTYPE_F32 ? 4 : 2;
    const int width = p->n <= 2 ? 2 * NB * NV : NB * NV;
    int panels = p->cols / width > 0 ? p->cols / width : 1;
    struct product_cols cols = { p->b, p->stride, 0, p->next, 0 };
    cols.step = p->next_bytes / (panels * (int64_t)(p->k1 - p->k0));
    for (; p->n <= 2 && cols.at + 2 * NB * NV <= p->cols;
         product_advance(p, &cols, 2 * NB * NV, size)) {
        if (p->n == 1)
            product_block(p, 0, 1, 2 * NB, cols, type, false);
        else
            product_block(p, 0, 2, 2 * NB, cols, type, false);
    }
    for (; cols.at + NB * NV <= p->cols; product_advance(p, &cols, NB * NV, size))
        product_panel(p, cols, type);
    cols.next = NULL;
    for (; cols.at + NV <= p->cols; product_advance(p, &cols, NV, size)) {
        for (int i = 0, n; i < p->n; i += n) {
            n = product_group(p, i);
            product_rows(p, i, n, 1, cols, type, false);
        }
    }
    for (int j = cols.at; j < p->cols; j++)
        product_column(p, j, type);
}

static void attn_product(const struct attn_product *p)
{
    if (p->type == DTYPE_F16)
        product_type(p, DTYPE_F16);
    else if (p->type == DTYPE_BF16)
        product_type(p, DTYPE_BF16);
    else
        product_type(p, DTYPE_F32);
}

#endif
