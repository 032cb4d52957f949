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
    return c;
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
                     int n_seqs, int64_t rows, int32_t window, struct cu_kv *out)
{
    struct cuda_state *st = cuda_of(be);
    size_t page = cuda_kv_page_bytes(be, DTYPE_F16, kv->n_kv_heads, kv->head_dim);
    int32_t most = 1, n = 1;
    struct cu_kvq_expand c;
    if (!expanded_reserve(st, page * (size_t)kv->n_pages))
        return false;
    memset(&c, 0, sizeof(c));
    c.from = kvq_of(be, kv);
    c.to.data = st->expanded;
    c.to.page_bytes = (int64_t)page;
    c.to.n_kv_heads = kv->n_kv_heads;
    c.to.head_dim = kv->head_dim;
    c.to.pad_dim = (kv->head_dim + CU_UNIT - 1) / CU_UNIT * CU_UNIT;
    c.to.n_pages = kv->n_pages;
    c.seqs = cuda_put_seqs(st, seqs, n_seqs, rows)->dev_seqs;
    c.pages = cuda_pages(st);
    c.n_seqs = n_seqs;
    c.window = window;
    for (int i = 0; i < n_seqs; i++)
        if (seqs[i].n_rows > 0 && (seqs[i].pos0 + seqs[i].n_rows - 1) / CU_PAGE + 1 > most)
            most = (seqs[i].pos0 + seqs[i].n_rows - 1) / CU_PAGE + 1;
    while (n < most) /* steps at many lengths are one list of commands */
        n *= 2;
    c.n_pages = n;
    cuda_add(st, CUDA_OP_KVQ_EXPAND, &c, sizeof(c));
    *out = c.to;
    return true;
}
