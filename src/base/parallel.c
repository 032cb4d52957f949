#include "base/parallel.h"

#include <pthread.h>
#include <stdbool.h>

struct parallel_range {
    void (*fn)(void *ctx, int64_t i0, int64_t i1);
    void *ctx;
    int64_t i0, i1;
    pthread_t thread;
    bool is_apart;
};

static void *parallel_main(void *range)
{
    struct parallel_range *r = range;
    r->fn(r->ctx, r->i0, r->i1);
    return NULL;
}

void parallel_for(int threads, int64_t n, void (*fn)(void *ctx, int64_t i0, int64_t i1), void *ctx)
{
    struct parallel_range ranges[PARALLEL_THREADS_MAX];
    int64_t k = threads < PARALLEL_THREADS_MAX ? threads : PARALLEL_THREADS_MAX;
    k = k < n ? k : n;
    k = k > 0 ? k : 1;
    for (int64_t i = 0; i < k; i++) {
        struct parallel_range *r = &ranges[i];
        *r =
            (struct parallel_range){ .fn = fn, .ctx = ctx, .i0 = n * i / k, .i1 = n * (i + 1) / k };
        r->is_apart = i + 1 < k && pthread_create(&r->thread, NULL, parallel_main, r) == 0;
    }
    for (int64_t i = 0; i < k; i++)
        if (!ranges[i].is_apart)
            parallel_main(&ranges[i]);
    for (int64_t i = 0; i < k; i++)
        if (ranges[i].is_apart)
            pthread_join(ranges[i].thread, NULL);
}
