/* ref_int.h - what the files of the reference backend share. */
#ifndef PLUMB_KERNELS_REF_REF_INT_H
#define PLUMB_KERNELS_REF_REF_INT_H

#include "kernels/ref/ref.h"
#include "tensor/group.h"
#include "tensor/source.h"

#define REF_ROWS 64 /* rows of x that linear takes in one pass over the weights */

struct weight {
    struct weight_shape shape;
    size_t row_bytes;
    uint8_t *data;        /* [out] rows as in the file, then the scales */
    struct scales scales; /* in data */
};

/* A group of quantised activations. */
struct ref_xgroup {
    int8_t q[GROUP];
    float d;
    int32_t sum[2]; /* of q over each half */
};

struct ref_state {
    uint8_t flags[BACKEND_ROWS_MAX]; /* 1: a non-finite value met this row since begin */
    int n_rows;
    int64_t max_in;       /* longest `in` packed so far; sizes the buffers below */
    struct ref_xgroup *x; /* [REF_ROWS][max_in / GROUP] */
    float *xf;            /* [REF_ROWS][max_in] */
    struct group *w;      /* [max_in / GROUP] one weight row */
    float *wf;            /* [max_in] one weight row */
    float matrix[BACKEND_STATE_DIM_MAX * BACKEND_STATE_DIM_MAX]; /* a head's state under way */
};

static inline struct ref_state *ref_of(struct backend *be)
{
    return be->state;
}

/* Widen n stored elements (F16, BF16, F32). */
void ref_widen(enum dtype type, const uint8_t *src, int64_t n, float *out);
/* Sum of 16 lanes by the fixed tree: l + (l + 8), then 4, 2, 1. Overwrites lanes. */
float ref_lane_sum(float lanes[16]);

void ref_embed(struct backend *be, struct tensor y, const struct weight *w, const int32_t *ids);
void ref_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w);

void ref_add_bias(struct backend *be, struct tensor y, const float *b);
void ref_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w, int n,
                  float eps);
void ref_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
              const int32_t *pos);
void ref_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
             enum glu_kind kind);
int ref_index_add(struct backend *be, struct tensor means, int32_t *first, struct tensor k,
                  struct index_layer *ix, const struct seq_view *seqs, int n_seqs);
bool ref_index_pick(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                    struct tensor means, struct index_layer *ix, const struct index_pick *p,
                    float *scores, const struct seq_view *seqs, int n_seqs);
void ref_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                   float scale);
void ref_act(struct backend *be, struct tensor y, enum glu_kind kind);
void ref_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                    const float *b, float eps);
void ref_scatter_add(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                     const float *w, const uint8_t *is_first);
void ref_route(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
               float *w);
void ref_add(struct backend *be, struct tensor y, struct tensor x);
void ref_scale(struct backend *be, struct tensor y, float s);
void ref_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                 float scale);
void ref_softcap(struct backend *be, struct tensor y, float cap);
void ref_exp_scaled(struct backend *be, float *y, const float *x, int64_t n, float max, float t);
int64_t ref_argmax(struct backend *be, const float *x, int64_t n, bool *finite);
void ref_gate_rows(struct backend *be, struct tensor y, struct tensor g);
void ref_copy(struct backend *be, struct tensor y, struct tensor x);
void ref_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows);

size_t ref_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim);
void ref_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                  const struct seq_view *seqs, int n_seqs);
void ref_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src);
void ref_attention(struct backend *be, struct tensor out, struct tensor q,
                   const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                   const struct attn_params *p);

void ref_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                   struct state_layer *st, const struct seq_view *seqs, int n_seqs);
void ref_delta_gates(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                     const float *s);
void ref_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                    struct tensor v, struct tensor decay, struct tensor beta,
                    struct state_layer *st, const struct seq_view *seqs, int n_seqs);
void ref_state_copy(struct backend *be, struct state_layer *st, int32_t dst, int32_t src);

#endif
