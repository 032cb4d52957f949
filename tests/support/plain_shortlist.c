#include "support/plain_shortlist.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define LANES 32
#define WARPS 8

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The column of a part behind column i; its first is part * SHORTLIST_RUN. */
static int32_t part_next(int32_t i)
{
    return i % SHORTLIST_RUN < SHORTLIST_RUN - 1 ? i + 1
                                                 : i + 1 + (SHORTLIST_PARTS - 1) * SHORTLIST_RUN;
}

/* The part's weights at temperature t: each of 256 threads its columns ascending, a tree over 32 threads, the eights in order. */
static double part_sum(const float *x, int32_t n, int part, float max, float t)
{
    double sum[WARPS][LANES] = { 0 }, all = 0;
    for (int32_t i = part * SHORTLIST_RUN; i < n; i = part_next(i))
        sum[i / (SHORTLIST_RUN * SHORTLIST_PARTS) % WARPS][i % LANES] +=
            (double)dmath_expf((x[i] - max) / t);
    for (int w = 0; w < WARPS; w++) {
        for (int half = LANES / 2; half; half /= 2)
            for (int l = 0; l < half; l++)
                sum[w][l] += sum[w][l + half];
        all = w == 0 ? sum[w][0] : all + sum[w][0];
    }
    return all;
}

static int part_count(const float *x, int32_t n, int part, uint32_t floor)
{
    int count = 0;
    for (int32_t i = part * SHORTLIST_RUN; i < n; i = part_next(i))
        count += shortlist_order(x[i]) >= floor;
    return count;
}

static uint32_t part_floor(const float *x, int32_t n, int part, float max)
{
    uint32_t low = 0, high = shortlist_order(max) + 1;
    if (part_count(x, n, part, 0) <= SHORTLIST_KEYS)
        return 0;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        int count = part_count(x, n, part, mid);
        if (count > SHORTLIST_KEYS)
            low = mid;
        else
            high = mid;
        if (count <= SHORTLIST_KEYS && count >= SHORTLIST_KEYS / 4 * 3)
            break;
    }
    return high;
}

void plain_shortlist(struct shortlist *out, const float *x, int32_t n, float t)
{
    int32_t best = 0, is_finite = 1;
    memset(out, 0, sizeof(*out));
    for (int32_t i = 0; i < n; i++) {
        is_finite = is_finite && isfinite(x[i]);
        best = x[i] > x[best] ? i : best;
    }
    for (int part = 0; part < SHORTLIST_PARTS; part++) {
        struct shortlist_part *p = &out->parts[part];
        p->n = -1;
        if (!is_finite)
            continue;
        p->n = 0;
        p->max = x[best] + 0.0f;
        p->sum = part_sum(x, n, part, p->max, 1);
        p->sum_t = part_sum(x, n, part, p->max, t);
        p->floor = part_floor(x, n, part, p->max);
        for (int32_t i = part * SHORTLIST_RUN; i < n; i = part_next(i))
            if (shortlist_order(x[i]) >= p->floor)
                p->keys[p->n++] = shortlist_key(shortlist_order(x[i]), i);
    }
    plain_shortlist_sort(out);
}

void plain_shortlist_sort(struct shortlist *list)
{
    for (int part = 0; part < SHORTLIST_PARTS; part++) {
        struct shortlist_part *p = &list->parts[part];
        if (p->n < 0)
            memset(p, 0, offsetof(struct shortlist_part, n));
        int32_t n = p->n > 0 ? p->n : 0;
        p->pad = 0;
        memset(p->keys + n, 0, (size_t)(SHORTLIST_KEYS - n) * sizeof(*p->keys));
        qsort(p->keys, (size_t)n, sizeof(*p->keys), by_value);
    }
}
