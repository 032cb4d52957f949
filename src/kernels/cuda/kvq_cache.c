/* Quantised caches: from ops to commands. */
#include "kernels/cuda/cuda_int.h"

#include "tensor/kvq.h"

#include <cuda_runtime_api.h>
#include <string.h>

static struct cu_kvq kvq_of(const struct backend *be, const struct kv_layer *kv)
{
    struct cu_kvq c;
    memset(&c, 0, sizeof(c));
    c.data = kv->data;
    c.page_bytes = (int64_t)cuda_kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim);
    c.head_bytes = (int64_t)kv_head_bytes(kv->type, kv->head_dim);
    c.v_at = (int64_t)kv_part_bytes(kv->type, kv->head_dim, 0);
    c.n_kv_heads = kv->n_kv_heads;
    c.head_dim = kv->head_dim;
    c.groups = kvq_groups(kv->head_dim);
    c.row = kvq_code_bytes(kv->type, kv->head_dim);
    c.is_8bit = kv->type == DTYPE_KV_Q8;
    c.is_whole = kv->head_dim % CU_UNIT == 0;
    return c;
}

static struct cu_kv kv_of(const struct backend *be, const struct kv_layer *kv, enum dtype type)
{
    struct cu_kv c;
    memset(&c, 0, sizeof(c));
    c.page_bytes = (int64_t)cuda_kv_page_bytes(be, type, kv->n_kv_heads, kv->head_dim);
    c.n_kv_heads = kv->n_kv_heads;
    c.head_dim = kv->head_dim;
    c.pad_dim = (kv->head_dim + CU_UNIT - 1) / CU_UNIT * CU_UNIT;
    c.n_pages = kv->n_pages;
    return c;
}

bool cuda_kvq_pages(struct backend *be, const struct kv_layer *kv, const struct attn_params *p,
                    struct cu_kv *out)
{
    if (cuda_of(be)->is_plain || p->is_two_way || p->softcap > 0 ||
        (kv->head_dim != CU_UNIT && kv->head_dim != 2 * CU_UNIT))
        return false;
    *out = kv_of(be, kv, kv->type);
    out->data = kv->data;
    out->type = kv->type == DTYPE_KV_Q8 ? CU_CACHE_Q8 : CU_CACHE_Q4;
    return true;
}

void cuda_kvq_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                    const struct seq_view *seqs, int n_seqs)
{
    struct cuda_state *st = cuda_of(be);
    const struct cuda_plan *plan = cuda_put_seqs(st, seqs, n_seqs, k.rows);
    struct cu_kvq_store c;
    memset(&c, 0, sizeof(c));
    c.kv = kvq_of(be, kv);
    c.k = cu_of(k);
    c.v = cu_of(v);
    c.rows = plan->dev_rows;
    c.seqs = plan->dev_seqs;
    c.pages = cuda_pages(st);
    c.flags = st->flags;
    c.is_single = 1;
    for (int i = 0; i < n_seqs; i++)
        c.is_single &= seqs[i].n_rows <= 1;
    cuda_add(st, CUDA_OP_KVQ_STORE, &c, sizeof(c));
}

/* Memory for all of a layer's pages as f16; the largest layer's is kept for the others. */
static bool expanded_reserve(struct cuda_state *st, size_t bytes)
{
    struct err err = { 0 };
    if (bytes <= st->expanded_bytes)
        return true;
    cuda_sync(st);
    cuda_give(st, MEM_CAT_KV, st->expanded, st->expanded_bytes);
    st->expanded_bytes = 0;
    st->expanded = cuda_take(st, MEM_CAT_KV, bytes, "a layer of the quantised cache as f16", &err);
    if (!st->expanded) {
        cuda_fault(st, err.text, (int)cudaErrorMemoryAllocation);
        return false;
    }
    st->expanded_bytes = bytes;
    return true;
}

bool cuda_kvq_expand(struct backend *be, const struct kv_layer *kv, const struct seq_view *seqs,
                     int n_seqs, int64_t rows, int n_few, int32_t window, struct cu_kv *out)
{
    struct cuda_state *st = cuda_of(be);
    int32_t most = 0, n = 1;
    struct cu_kvq_expand c;
    memset(&c, 0, sizeof(c));
    c.to = kv_of(be, kv, DTYPE_F16);
    if (!expanded_reserve(st, (size_t)c.to.page_bytes * (size_t)kv->n_pages))
        return false;
    c.to.data = st->expanded;
    *out = c.to;
    for (int i = 0; i < n_seqs; i++)
        if (seqs[i].n_rows > n_few && (seqs[i].pos0 + seqs[i].n_rows - 1) / CU_PAGE + 1 > most)
            most = (seqs[i].pos0 + seqs[i].n_rows - 1) / CU_PAGE + 1;
    if (most == 0)
        return true;
    c.from = kvq_of(be, kv);
    c.seqs = cuda_put_seqs(st, seqs, n_seqs, rows)->dev_seqs;
    c.pages = cuda_pages(st);
    c.n_seqs = n_seqs;
    c.window = window;
    c.n_few = n_few;
    while (n < most) /* steps at many lengths are one list of commands */
        n *= 2;
    c.n_pages = n;
    cuda_add(st, CUDA_OP_KVQ_EXPAND, &c, sizeof(c));
    return true;
}
