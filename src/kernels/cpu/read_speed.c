#include "kernels/cpu/read_speed.h"
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/read_speed_int.h"

#include <stdatomic.h>
#include <string.h>

#define CHUNK ((size_t)256 << 10)

struct read_speed {
    struct pool *pool;
    uint64_t (*sum)(const uint8_t *p, size_t n);
    uint8_t *data; /* [READ_SPEED_BYTES] */
    _Atomic uint64_t total;
};

static void fill_chunk(void *ctx, int64_t chunk, int thread)
{
    struct read_speed *r = ctx;
    memset(r->data + (size_t)chunk * CHUNK, (int)chunk, CHUNK);
}

static void sum_chunk(void *ctx, int64_t chunk, int thread)
{
    struct read_speed *r = ctx;
    atomic_fetch_xor(&r->total, r->sum(r->data + (size_t)chunk * CHUNK, CHUNK));
}

enum err_code read_speed_new(int threads, struct read_speed **out, struct err *err)
{
    struct read_speed *r = mem_alloc(MEM_CAT_BASE, sizeof(*r));
    enum err_code code = pool_new(threads > 0 ? threads : cpu_threads_default(), &r->pool, err);
    r->sum = read_speed_sum_c;
#if defined(__x86_64__)
    if (cpu_level_available(CPU_LEVEL_AVX2))
        r->sum = read_speed_sum_avx2;
    if (cpu_level_available(CPU_LEVEL_AVX512))
        r->sum = read_speed_sum_avx512;
#endif
    if (!code) {
        r->data = mem_try_big(MEM_CAT_BASE, READ_SPEED_BYTES);
        if (!r->data)
            code = err_set(err, ERR_NOMEM, "no memory for the %zu MiB of the reading test",
                           READ_SPEED_BYTES >> 20);
    }
    if (code) {
        read_speed_free(r);
        return code;
    }
    pool_run(r->pool, fill_chunk, r, (int64_t)(READ_SPEED_BYTES / CHUNK));
    *out = r;
    return ERR_OK;
}

void read_speed_free(struct read_speed *r)
{
    if (!r)
        return;
    pool_free(r->pool);
    if (r->data)
        mem_free_big(MEM_CAT_BASE, r->data, READ_SPEED_BYTES);
    mem_free(MEM_CAT_BASE, r);
}

double read_speed_once(struct read_speed *r)
{
    int64_t t = clock_us();
    pool_run(r->pool, sum_chunk, r, (int64_t)(READ_SPEED_BYTES / CHUNK));
    return (double)READ_SPEED_BYTES * 1e6 / (double)(clock_us() - t + 1);
}
