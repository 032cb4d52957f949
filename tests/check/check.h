/* check.h - the harness of tests/check: every kernel variant against ref, bit for bit.
 *
 * A case opens nothing itself: it is given the reference backend and the list of CPU backends (one per instruction-set level
 * and thread count) and says for each comparison whether it held. */
#ifndef PLUMB_TESTS_CHECK_CHECK_H
#define PLUMB_TESTS_CHECK_CHECK_H

#include "tensor/ops.h"

#include <math.h>
#include <stdint.h>

#define CHECK_BACKENDS_MAX 16

struct check_backend {
    char name[32]; /* "avx512/3": level and threads */
    struct backend *be;
};

struct check {
    const char *filter; /* part of a case's name, or NULL */
    struct backend *ref;
    struct check_backend cpu[CHECK_BACKENDS_MAX];
    int n_cpu;
    bool is_quick; /* a sample of the shapes, for sanitizer builds */
    int passed, failed, skipped;
};

/* printf-like name; counts and, on failure, prints. Returns ok. */
bool check_that(struct check *c, bool ok, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* fmax, but a NaN is the largest: what collects the worst error must not lose one. */
static inline double larger(double a, double b)
{
    return isnan(a) || b <= a ? a : b;
}
/* Whether the filter lets a group of cases run. */
bool check_wants(const struct check *c, const char *group);

/* --- data --- */

uint32_t check_rand(void);                     /* fixed seed: every run sees the same data */
float check_normal(void);                      /* roughly gaussian, unit variance */
int check_range(int lo, int hi);               /* lo..hi inclusive */
void check_fill(float *x, size_t n, int kind); /* one of CHECK_KINDS distributions, all finite */
#define CHECK_KINDS 6

/* A buffer of rows x stride floats filled with a pattern that no result has. */
struct check_buf {
    struct tensor t;
    size_t n; /* floats */
};
struct check_buf check_buf_new(int64_t rows, int64_t cols, int64_t stride);
void check_buf_free(struct check_buf *b);
void check_buf_reset(struct check_buf *b);
/* Both hold the same bits, the gaps between rows included (NaN equals NaN where any_nan). Prints the first difference. */
bool check_buf_same(const struct check_buf *a, const struct check_buf *b, bool any_nan);

/* A random weight of `type` as a file has it. Free with mem_free(MEM_CAT_WEIGHTS). Of types with scales those stand behind the
 * data: *scales tells where, and is zeroed for others. form (0..8): which kind of scales. */
uint8_t *check_weight(enum dtype type, int64_t out, int64_t in);
uint8_t *check_scaled_weight(enum dtype type, int64_t out, int64_t in, int form,
                             struct scales *scales);
struct weight *check_pack(struct backend *be, enum dtype type, int64_t out, int64_t in,
                          const uint8_t *data, const struct scales *scales);

void check_linear(struct check *c);
void check_rows(struct check *c);
void check_attention(struct check *c);
void check_state(struct check *c);
void check_cuda(struct check *c); /* the GPU alone: --device cuda */
void check_state_cuda(struct check *c, struct backend *be);
void check_fused_cuda(struct check *c, struct backend *fast, struct backend *plain);
void check_shortlist_cuda(struct check *c, struct backend *be);
void check_moe_cuda(struct check *c, struct backend *fast, struct backend *plain);
void check_kvq_cuda(struct check *c, struct backend *fast, struct backend *plain);
void check_bench(const char *filter, int threads, int level);
void check_bench_pool(const char *filter, int threads);

#endif
