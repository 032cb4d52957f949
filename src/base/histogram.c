#include "base/histogram.h"

const struct histogram_bounds histogram_seconds = {
    .n = 18,
    .bounds = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120,
                300, 600 },
};

const struct histogram_bounds histogram_micros = {
    .n = 13,
    .bounds = { 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                0.025, 0.05, 0.1 },
};

const struct histogram_bounds histogram_counts = {
    .n = 9,
    .bounds = { 1, 2, 4, 8, 16, 32, 64, 128, 256 },
};

void histogram_init(struct histogram *h, const struct histogram_bounds *bounds)
{
    h->bounds = bounds;
    for (int i = 0; i <= HISTOGRAM_BOUNDS_MAX; i++)
        atomic_store(&h->counts[i], 0);
    atomic_store(&h->sum, 0);
}

void histogram_add(struct histogram *h, double value)
{
    int i = 0;
    while (i < h->bounds->n && value > h->bounds->bounds[i])
        i++;
    atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
    /* One writer: a load and a store suffice. */
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    atomic_store_explicit(&h->sum, sum + value, memory_order_relaxed);
}

void histogram_read(const struct histogram *h, struct histogram_snapshot *out)
{
    out->bounds = h->bounds;
    out->count = 0;
    for (int i = 0; i <= HISTOGRAM_BOUNDS_MAX; i++) {
        out->counts[i] = atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        out->count += out->counts[i];
    }
    out->sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
}
