/* The cache's pages: layout (as kernels/ref/ref_attention.c: K transposed per head, then V; quantised types: tensor/kvq.h),
 * storing. Rows of different pages are stored by different threads, so no line is written by two. */
#include "kernels/cpu/cpu_int.h"

#include <string.h>

#define P KV_PAGE_TOKENS

size_t cpu_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim)
{
    return (size_t)n_kv_heads * kv_head_bytes(type, head_dim);
}

uint8_t *cpu_kv_part(const struct kv_layer *kv, const struct seq_view *s, int32_t b, int g, int v)
{
    int32_t i = s->pages[b];
    BUG_ON(i < 0 || i >= kv->n_pages);
    size_t heads = (size_t)i * (size_t)kv->n_kv_heads + (size_t)g;
    return kv->data + heads * kv_head_bytes(kv->type, kv->head_dim) +
           (v ? kv_part_bytes(kv->type, kv->head_dim, 0) : 0);
}

void cpu_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src)
{
    size_t page = cpu_kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim);
    memcpy(kv->data + (size_t)dst * page, kv->data + (size_t)src * page, page);
}

/* --- storing --- */

struct store_job {
    struct cpu_state *st;
    struct kv_layer *kv;
    struct tensor k, v;
    const struct seq_view *seq;
};

static void store_plain(const struct store_job *j, uint8_t *kp, uint8_t *vp, int at, const float *k,
                        const float *v)
{
    enum dtype type = j->kv->type;
    int n = j->kv->head_dim;
    size_t size = (size_t)dtype_info(type)->block_bytes;
    uint8_t tmp[BACKEND_HEAD_DIM_MAX * 4];
    kp += (size_t)at * size;
    j->st->attn.narrow(vp + (size_t)at * (size_t)n * size, v, n, type);
    j->st->attn.narrow(tmp, k, n, type);
    if (size == 2)
        for (int d = 0; d < n; d++)
            memcpy(kp + (size_t)d * P * 2, tmp + 2 * d, 2);
    else
        for (int d = 0; d < n; d++)
            memcpy(kp + (size_t)d * P * 4, tmp + 4 * d, 4);
}

/* The code bytes of a group of n elements, in place: pairs for 4 bits. Returns how many. */
static int pack_codes(enum dtype type, uint8_t *codes, int n)
{
    int half = (n + 1) / 2;
    if (type == DTYPE_KV_Q8)
        return n;
    if (n % 2)
        codes[n] = 0; /* the last high nibble */
    for (int i = 0; i < half; i++)
        codes[i] = (uint8_t)(codes[i] | codes[half + i] << 4);
    return half;
}

/* Position `at` of a part becomes x: K transposed, V as it is. False: a group failed. */
static bool store_quantised(const struct store_job *j, uint8_t *part, int v, int at, const float *x)
{
    enum dtype type = j->kv->type;
    struct kvq_part p = kvq_part_at(type, j->kv->head_dim, v, part);
    bool ok = true;
    for (int g = 0, byte = 0; g < kvq_groups(j->kv->head_dim); g++) {
        struct kvq_group q;
        int n = kvq_group_len(j->kv->head_dim, g), g0 = g * KVQ_GROUP;
        if (!v && at == 0)
            kvq_base(p.base + g0, x + g0, n);
        ok = j->st->attn.quantise(&q, x + g0, v ? NULL : p.base + g0, n, kvq_top(type)) && ok;
        n = pack_codes(type, q.codes, n);
        p.scales[g * P + at] = q.scale;
        p.biases[g * P + at] = q.bias;
        if (v) {
            memcpy(p.codes + at * p.row + byte, q.codes, (size_t)n);
        } else {
            kvq_set_relative(&p, g, at, q.is_relative);
            for (int i = 0; i < n; i++)
                p.codes[(byte + i) * P + at] = q.codes[i];
        }
        byte += n;
    }
    return ok;
}

static void store_head(const struct store_job *j, int32_t pos, int64_t row, int g)
{
    int at = pos % P;
    uint8_t *kp = cpu_kv_part(j->kv, j->seq, pos / P, g, 0);
    uint8_t *vp = cpu_kv_part(j->kv, j->seq, pos / P, g, 1);
    const float *k = j->k.data + row * j->k.stride + g * j->kv->head_dim;
    const float *v = j->v.data + row * j->v.stride + g * j->kv->head_dim;
    if (!kvq_is(j->kv->type)) {
        store_plain(j, kp, vp, at, k, v);
        return;
    }
    bool ok = store_quantised(j, kp, 0, at, k);
    if (!store_quantised(j, vp, 1, at, v) || !ok)
        __atomic_store_n(&j->st->flags[row], 1, __ATOMIC_RELAXED);
}

/* The rows of one page: two threads never write the same line. */
static void store_page(void *ctx, int64_t chunk, int thread)
{
    const struct store_job *j = ctx;
    int32_t first = j->seq->pos0, last = first + j->seq->n_rows;
    int32_t page = first / P + (int32_t)chunk;
    int32_t p0 = page * P > first ? page * P : first;
    int32_t p1 = (page + 1) * P < last ? (page + 1) * P : last;
    for (int32_t pos = p0; pos < p1; pos++)
        for (int g = 0; g < j->kv->n_kv_heads; g++)
            store_head(j, pos, j->seq->row0 + (pos - first), g);
}

void cpu_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                  const struct seq_view *seqs, int n_seqs)
{
    struct store_job j = { cpu_of(be), kv, k, v, NULL };
    for (int s = 0; s < n_seqs; s++) {
        j.seq = &seqs[s];
        if (seqs[s].n_rows == 0)
            continue;
        int64_t pages = (seqs[s].pos0 + seqs[s].n_rows - 1) / P - seqs[s].pos0 / P + 1;
        pool_run(j.st->pool, store_page, &j, pages);
    }
}
