/* check_shortlist.c - the GPU's short lists against plain C, by memcmp. */
#include "check.h"
#include "support/plain_shortlist.h"

#include <string.h>

#define ROWS 11

/* Rows of every kind, then: equal values, zeros of both signs, ties at a few values, one that towers, one value that is none. */
static void fill_rows(struct check_buf *x, int64_t cols)
{
    for (int t = 0; t < ROWS; t++) {
        float *row = x->t.data + t * x->t.stride;
        check_fill(row, (size_t)cols, t % CHECK_KINDS);
        for (int64_t i = 0; t >= CHECK_KINDS && i < cols; i++) {
            float v = 4 * check_normal();
            row[i] = t == 6 ? -2.5f : t == 7 ? (i % 3 ? -0.0f : 0.0f) : t == 8 ? rintf(v) : v;
        }
    }
    x->t.data[9 * x->t.stride + cols / 3] = 150;
    x->t.data[10 * x->t.stride + cols / 2] = check_rand() % 2 ? NAN : -INFINITY;
}

static void check_lists(struct check *c, struct backend *be, int64_t cols)
{
    static const float temperatures[ROWS] = { 1,    0.7f,   -1,   2.5f, 0.01f, 100,
                                              0.8f, 1e-30f, 1.3f, 1,    0.5f };
    static struct shortlist want;
    struct check_buf x = check_buf_new(ROWS, cols, cols + 3);
    struct shortlist *got = be->ops->host_alloc(be, ROWS * sizeof(*got));
    int32_t best[ROWS];
    struct tensor d = x.t;
    d.data = be->ops->alloc(be, MEM_CAT_SCRATCH, x.n * sizeof(float));
    BUG_ON(!got || !d.data);
    fill_rows(&x, cols);
    be->ops->upload(be, d.data, x.t.data, x.n * sizeof(float));
    ops_begin(be, ROWS);
    be->ops->best(be, d, best);
    be->ops->shortlist(be, d, temperatures, got);
    check_that(c, be->ops->wait(be, NULL) == ERR_OK, "cuda/shortlist [%lld]", (long long)cols);
    int slot = 0;
    for (int t = 0; t < ROWS; t++) {
        if (temperatures[t] < 0)
            continue;
        plain_shortlist(&want, x.t.data + t * x.t.stride, (int32_t)cols, temperatures[t]);
        plain_shortlist_sort(&got[slot]);
        check_that(c, memcmp(&got[slot++], &want, sizeof(want)) == 0,
                   "cuda/shortlist [%lld]: row %d", (long long)cols, t);
    }
    be->ops->host_free(be, got);
    be->ops->free(be, MEM_CAT_SCRATCH, d.data, x.n * sizeof(float));
    check_buf_free(&x);
}

void check_shortlist_cuda(struct check *c, struct backend *be)
{
    static const int64_t vocabularies[] = { 1, 31, 1024, 1025, 49152, 128256, 262208 };
    for (size_t i = 0; i < ARRAY_LEN(vocabularies); i++)
        if (!c->is_quick || vocabularies[i] < 100000)
            check_lists(c, be, vocabularies[i]);
}
