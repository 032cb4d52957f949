/* Arrays of the host that recorded commands read: pinned memory and its image on the device. */
#include "kernels/cuda/cuda_int.h"

#include <string.h>

void cuda_room(struct cuda_state *st)
{
    if (st->arena_used + CUDA_ARENA_BYTES / 4 > CUDA_ARENA_BYTES ||
        st->pages_used + CUDA_PAGES_BYTES / 2 > CUDA_PAGES_BYTES || st->n_plans == CUDA_PLANS)
        cuda_sync(st);
}

const void *cuda_put(struct cuda_state *st, const void *data, size_t n, void **host)
{
    BUG_ON(st->arena_used + CUDA_ALIGN(n) > CUDA_ARENA_BYTES); /* cuda_room */
    uint8_t *to = st->arena + st->arena_used, *dev = st->dev_arena + st->arena_used;
    if (data)
        memcpy(to, data, n);
    if (host)
        *host = to;
    st->arena_used += CUDA_ALIGN(n);
    return dev;
}

const int32_t *cuda_put_pos(struct cuda_state *st, const int32_t *pos, int64_t n)
{
    size_t bytes = (size_t)n * sizeof(*pos);
    if (st->pos_at && st->pos_n == n && memcmp(st->arena + st->pos_off, pos, bytes) == 0)
        return st->pos_at;
    const int32_t *at = cuda_put(st, pos, bytes, NULL);
    st->pos_at = at;
    st->pos_off = (size_t)((const uint8_t *)at - st->dev_arena);
    st->pos_n = n;
    return at;
}

static bool plan_is(const struct cuda_plan *p, const struct seq_view *seqs, int n, int64_t rows)
{
    return p->views == seqs && p->n == n && p->rows == rows &&
           memcmp(p->copy, seqs, (size_t)n * sizeof(*seqs)) == 0;
}

/* The sequence's page numbers, up to that of its last row; windows have none at the front. Returns where they stand, in entries. */
static int32_t put_pages(struct cuda_state *st, const struct seq_view *s)
{
    size_t n = s->pages && s->n_rows > 0 ? (size_t)(s->pos0 + s->n_rows - 1) / CU_PAGE + 1 : 0;
    size_t bytes = CUDA_ALIGN(n * sizeof(*s->pages));
    BUG_ON(st->pages_used + bytes > CUDA_PAGES_BYTES);
    st->pages_used += bytes;
    if (n > 0)
        memcpy(st->arena - st->pages_used, s->pages, n * sizeof(*s->pages));
    return -(int32_t)(st->pages_used / sizeof(*s->pages));
}

const struct cuda_plan *cuda_put_seqs(struct cuda_state *st, const struct seq_view *seqs, int n,
                                      int64_t rows)
{
    for (int i = 0; i < st->n_plans; i++)
        if (plan_is(&st->plans[i], seqs, n, rows))
            return &st->plans[i];
    BUG_ON(n > BACKEND_ROWS_MAX);
    struct cuda_plan *p = &st->plans[st->n_plans++];
    struct cu_row *host_rows;
    memcpy(p->copy, seqs, (size_t)n * sizeof(*seqs));
    p->views = seqs;
    p->n = n;
    p->rows = rows;
    p->dev_rows = cuda_put(st, NULL, (size_t)rows * sizeof(*host_rows), (void **)&host_rows);
    p->dev_seqs = cuda_put(st, NULL, (size_t)n * sizeof(*p->seqs), (void **)&p->seqs);
    for (int64_t t = 0; t < rows; t++)
        host_rows[t] = (struct cu_row){ -1, 0 };
    for (int i = 0; i < n; i++) {
        p->seqs[i] = (struct cu_seq){ seqs[i].row0, seqs[i].n_rows,          seqs[i].pos0,
                                      seqs[i].slot, put_pages(st, &seqs[i]), seqs[i].is_tentative };
        for (int t = 0; t < seqs[i].n_rows && seqs[i].row0 + t < rows; t++)
            host_rows[seqs[i].row0 + t] = (struct cu_row){ i, seqs[i].pos0 + t };
    }
    return p;
}
