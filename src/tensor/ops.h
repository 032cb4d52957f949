/* ops.h - the checked way to call a backend: one wrapper per op.
 *
 * Each wrapper verifies shapes (a wrong one is our mistake: BUG_ON), returns at once for zero rows, calls the backend's slot
 * and, where a fused slot is NULL, composes base ops with the same bits. What an op computes is said at its slot in backend.h.
 * Thread: engine thread. */
#ifndef PLUMB_TENSOR_OPS_H
#define PLUMB_TENSOR_OPS_H

#include "tensor/backend.h"

/* Contiguous [rows][cols] at data. */
struct tensor tensor_of(float *data, int64_t rows, int64_t cols);

/* Rows [first, first + n). */
static inline struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n)
{
    return (struct tensor){ t.data + first * t.stride, n, t.cols, t.stride };
}

/* Columns [first, first + n) of every row. */
struct tensor tensor_cols(struct tensor t, int64_t first, int64_t n);

void ops_begin(struct backend *be, int n_rows);
void ops_failed(struct backend *be, uint8_t *flags);
/* What loading has come to, code and err: a fault of the device is told first, and in the place of memory that was not had for it.
 * Errors: code; ERR_IO. */
enum err_code ops_loaded(struct backend *be, enum err_code code, struct err *err) MUST_CHECK;

int ops_threads(const struct backend *be); /* at least 1 */
void ops_parallel(struct backend *be, void (*fn)(void *ctx, int64_t i), void *ctx, int64_t n);

void ops_embed(struct backend *be, struct tensor y, const struct weight *w, const int32_t *ids);
void ops_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w);
/* y[i] = x * w[i]^T for i < n <= 4. */
void ops_linear_many(struct backend *be, int n, const struct tensor *y, struct tensor x,
                     const struct weight *const *w);
int ops_index_add(struct backend *be, struct tensor means, int32_t *first, struct tensor k,
                  struct index_layer *ix, const struct seq_view *seqs, int n_seqs);
bool ops_index_pick(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                    struct tensor means, struct index_layer *ix, const struct index_pick *p,
                    float *scores, const struct seq_view *seqs, int n_seqs);
void ops_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                   float scale);
void ops_add_bias(struct backend *be, struct tensor y, const float *b);
void ops_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w, int n,
                  float eps);
void ops_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
              const int32_t *pos);
void ops_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                  const struct seq_view *seqs, int n_seqs);
void ops_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src);
void ops_attention(struct backend *be, struct tensor out, struct tensor q,
                   const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                   const struct attn_params *p);
void ops_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
             enum glu_kind kind);
void ops_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                 float scale);
void ops_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                   struct state_layer *st, const struct seq_view *seqs, int n_seqs);
void ops_delta_gates(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                     const float *s);
void ops_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                    struct tensor v, struct tensor decay, struct tensor beta,
                    struct state_layer *st, const struct seq_view *seqs, int n_seqs);
void ops_state_copy(struct backend *be, struct state_layer *st, int32_t dst, int32_t src);
void ops_act(struct backend *be, struct tensor y, enum glu_kind kind);
void ops_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                    const float *b, float eps);
void ops_add(struct backend *be, struct tensor y, struct tensor x);
void ops_scale(struct backend *be, struct tensor y, float s);
void ops_softcap(struct backend *be, struct tensor y, float cap);
void ops_gate_rows(struct backend *be, struct tensor y, struct tensor g);
void ops_copy(struct backend *be, struct tensor y, struct tensor x);
void ops_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows);
void ops_scatter_add(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                     const float *w, const uint8_t *is_first);
void ops_route(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
               float *w);
/* False: the backend has no such op, or not for these. */
bool ops_moe(struct backend *be, struct tensor y, struct tensor x, struct tensor logits,
             const struct experts *e);

#endif
