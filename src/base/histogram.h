/* histogram.h - counts of values in fixed buckets, written by one thread and read by any.
 *
 * As Prometheus means it: bucket i counts values <= bounds[i]; one more bucket has no bound. Nothing is allocated. */
#ifndef PLUMB_BASE_HISTOGRAM_H
#define PLUMB_BASE_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#define HISTOGRAM_BOUNDS_MAX 24

struct histogram_bounds { /* ascending */
    int n;
    double bounds[HISTOGRAM_BOUNDS_MAX];
};

extern const struct histogram_bounds histogram_seconds; /* 1 ms .. 10 minutes */
extern const struct histogram_bounds histogram_micros;  /* of a second: 10 us .. 100 ms */
extern const struct histogram_bounds histogram_counts;  /* 1 .. 256 */

struct histogram {
    const struct histogram_bounds *bounds;
    _Atomic int64_t counts[HISTOGRAM_BOUNDS_MAX + 1]; /* of each bucket by itself */
    _Atomic double sum;
};

struct histogram_snapshot {
    const struct histogram_bounds *bounds;
    int64_t counts[HISTOGRAM_BOUNDS_MAX + 1];
    int64_t count; /* of all buckets */
    double sum;
};

void histogram_init(struct histogram *h, const struct histogram_bounds *bounds);
void histogram_add(struct histogram *h, double value);
/* Each bucket by itself: values that are added meanwhile may be in one number and not yet in another. */
void histogram_read(const struct histogram *h, struct histogram_snapshot *out);

#endif
