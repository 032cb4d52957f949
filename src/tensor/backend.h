/* backend.h - device services and the ops that models are written in.
 *
 * A backend is a const vtable and a private state. *Base* ops exist in every backend; *fused* ops may be NULL and then the
 * wrapper in ops.h composes base ops, with the same bits. Models call the wrappers in ops.h (which check shapes), never a slot.
 * Ops are eager and work on the rows of one step; they return when the result may be used by the next op on the same backend
 * (host backends: when done; device backends: enqueued in order). Faults are seen at wait().
 * Thread: engine thread only, except open.
 * Letters: T rows of the step, D model width, H query heads, G kv heads, K head size, F ffn width, V vocabulary, P page tokens.
 *
 * Arithmetic: the rules of docs/DESIGN.md, section Exactness. Every variant of an op gives the bits of kernels/ref. */
#ifndef PLUMB_TENSOR_BACKEND_H
#define PLUMB_TENSOR_BACKEND_H

#include "base/mem.h"
#include "tensor/dtype.h"

#define BACKEND_API 1
/* Version of the CPU contract of docs/numerics.md: every CPU backend, level and thread count gives its bits. */
#define BACKEND_NUMERICS_CPU "cpu-1"
/* P: tokens in a cache page = the attention block, aligned to absolute positions. */
#define KV_PAGE_TOKENS          64
#define BACKEND_ROWS_MAX        8192 /* rows of one op, so that a backend can size its scratch at load */
#define BACKEND_SHORTLISTS_MAX  256 /* rows of a step that have a short list */
#define BACKEND_HEAD_DIM_MAX    512 /* K */
#define BACKEND_LINEAR_MANY_MAX 4
#define BACKEND_EXPERTS_MAX     1024 /* E */
#define BACKEND_STATE_DIM_MAX   256  /* rows and columns of a head's matrix state */
#define BACKEND_STATE_TAPS_MAX  16   /* W: taps of a causal convolution */

/* f32 activations [rows][cols] in backend memory; consecutive rows are `stride` floats apart. */
struct tensor {
    float *data;
    int64_t rows, cols;
    int64_t stride; /* >= cols */
};

/* A weight as the model file has it: out rows of `in` elements each, row-major, blocks along `in`. */
struct weight_source {
    const char *name; /* for messages */
    enum dtype type;
    int64_t out, in;
    const uint8_t
        *data; /* [out] rows of dtype_row_bytes(type, in) bytes; borrowed during pack only */
    struct scales scales; /* types with has_scales; borrowed during pack only. Else zeroed */
    void (*drop)(void *ctx, const uint8_t *data,
                 size_t n); /* may be NULL: called when source bytes are no longer needed */
    void *drop_ctx;
};

/* A packed weight; its inside is the backend's. */
struct weight;
struct weight_shape {
    enum dtype type; /* the source's */
    int64_t out, in;
    size_t bytes; /* packed */
};

/* Rotary embedding tables. inv_freq are computed by the model (host, double, rounded to f32). */
enum rope_kind {
    ROPE_KIND_NORMAL, /* pairs (2i, 2i+1) */
    ROPE_KIND_NEOX,   /* pairs (i, i + n_dims/2) */
};
struct rope {
    enum rope_kind kind;
    int n_dims;            /* rotated dims of a head, even, <= K; the rest pass through */
    const float *inv_freq; /* [n_dims/2] host memory */
    float scale;           /* cos and sin are multiplied by this (yarn); 1 = none */
};

enum glu_kind {
    GLU_KIND_SILU,
    GLU_KIND_GELU_TANH,
    GLU_KIND_SIGMOID,
    GLU_KIND_GELU_ERF,
    GLU_KIND_SWIGLU_CLAMPED, /* g = min(g, 7), u in [-7, 7]: g sigmoid(1.702 g) (u + 1) */
};

/* One layer's key-value cache: a slab of n_pages pages. The page layout is the backend's. */
struct kv_layer {
    enum dtype type; /* F16, BF16, F32, KV_Q8, KV_Q4 */
    int n_kv_heads;  /* G */
    int head_dim;    /* K */
    int n_pages;
    uint8_t *data; /* backend memory, n_pages * kv_page_bytes() */
};

/* A sequence's part of a step: rows [row0, row0 + n_rows) are its positions pos0, pos0+1, ... in order.
 * pages[i] holds positions [i*P, (i+1)*P); entries below the window may be -1. Recurrent layers look at slot alone. */
struct seq_view {
    int row0, n_rows;
    int32_t pos0;
    const int32_t *pages;
    int32_t
        slot; /* of the sequence's state; its content does not count where pos0 is 0: the state is zero then */
    bool is_tentative; /* the rows may be taken back: the slot stays as it was before them */
};

/* A recurrent layer's states, by slot: the last W - 1 inputs of a causal convolution and, for each of Hs heads, a matrix of Ks rows
 * (of a key) and Vs columns (of a value). Gs key heads serve Hs heads. */
struct state_layer {
    int n_slots;
    int taps;        /* W, 2..BACKEND_STATE_TAPS_MAX */
    int conv_cols;   /* C */
    int n_heads;     /* Hs, a multiple of Gs */
    int n_key_heads; /* Gs */
    int key_dim;     /* Ks, even */
    int value_dim;   /* Vs */
    bool is_tiled;   /* head h has key head h % Gs; else h / (Hs / Gs) */
    float *conv;     /* backend memory [n_slots][W - 1][C], oldest first */
    float *matrix;   /* backend memory [n_slots][Hs][Ks][Vs] */
};

/* A layer's index of keys, by the pages of its cache: raw keys of all positions, then pooled keys of complete blocks of `ratio` positions. */
struct index_layer {
    int dim, ratio; /* numbers of a key; ratio divides P */
    float *data;    /* backend memory [n_pages][P + P / ratio][dim] */
};
struct index_pick {
    int n_heads;
    int32_t n_blocks; /* that are picked at most */
};

struct attn_params {
    float scale;        /* multiplies q.k */
    float softcap;      /* 0 = none: s = cap * tanh(s / cap) */
    int32_t window;     /* 0 = full; else key positions in (pos - window, pos] */
    int n_heads;        /* H, a multiple of the layer's G */
    const float *sinks; /* [H] host memory or NULL */
    /* Rows see the later positions of their sequence's rows too, and a window its (pos - window, pos + window) */
    bool is_two_way;
    /* NULL: all. Else host memory [rows][picked_words]: bit i of word b says that position b P + i is seen; each row sees one at
     * least. Only without softcap, and on host backends. */
    const uint64_t *picked;
    int64_t picked_words;
};

/* The first position behind those that the query at pos sees. */
static inline int32_t attn_end(const struct attn_params *p, const struct seq_view *s, int32_t pos)
{
    int32_t all = s->pos0 + s->n_rows;
    if (!p->is_two_way)
        return pos + 1;
    return p->window && p->window < all - pos ? pos + p->window : all;
}

struct route;     /* tensor/route.h */
struct shortlist; /* tensor/shortlist.h */
struct backend;

/* The experts of a layer: matrices gate, up [X][D] and down [D][X] of each of E, biases in backend memory or NULL. */
struct experts {
    const struct route *route;
    int n;                                                      /* E */
    const struct weight *const *gate, *const *up, *const *down; /* [E] */
    const float *b_gate, *b_up, *b_down;                        /* [E][X] [E][X] [E][D] */
    const float *scale; /* host memory [E] or NULL: a row's weights are multiplied by it */
    enum glu_kind glu;
};
struct backend_ops {
    int api_version; /* BACKEND_API; checked at open */
    const char *name;
    bool is_host; /* its memory is host memory: what download would copy may be read where it is */
    const char *numerics; /* names the arithmetic: backends of one name give the same bits */

    /* --- memory and order --- */
    void *(*alloc)(struct backend *be, enum mem_cat cat,
                   size_t bytes); /* NULL: no memory; zeroed */
    void (*free)(struct backend *be, enum mem_cat cat, void *p, size_t bytes);
    void (*upload)(struct backend *be, void *dst, const void *host, size_t bytes);
    void (*download)(struct backend *be, void *host, const void *src, size_t bytes);
    /* All that was asked for so far is under way, and what the host does until it waits costs nothing. NULL: ops are over when they
     * return. */
    void (*start)(struct backend *be);
    /* Errors: ERR_IO - something failed, and what it was to make is not there; ERR_LOST - and so is all that memory held. */
    enum err_code (*wait)(struct backend *be, struct err *err);
    /* After ERR_LOST, when all that was allocated and packed is freed: open the device anew. NULL: it is not lost.
     * Errors: ERR_IO, ERR_NOMEM - it cannot be used any more by this process. */
    enum err_code (*reset)(struct backend *be, struct err *err);
    /* Device memory that is free. NULL: its memory is the host's. */
    int64_t (*free_bytes)(const struct backend *be);
    /* Host memory that download is fast to, not zeroed; NULL: no memory. Both NULL: any memory does. */
    void *(*host_alloc)(struct backend *be, size_t bytes);
    void (*host_free)(struct backend *be, void *p);
    void (*close)(struct backend *be);

    /* --- weights: load time --- */
    bool (*supports)(const struct backend *be, enum dtype weight_type);
    enum err_code (*pack)(struct backend *be, const struct weight_source *src, struct weight **out,
                          struct err *err);
    void (*unpack_free)(struct backend *be, struct weight *w);
    const struct weight_shape *(*shape)(const struct weight *w);
    /* What pack will take for it, its data not looked at. NULL: not known. */
    size_t (*packed_bytes)(const struct backend *be, const struct weight_source *src);
    /* Whether caches may have the type. NULL: all of struct kv_layer. */
    bool (*caches)(const struct backend *be, enum dtype type);
    size_t (*kv_page_bytes)(const struct backend *be, enum dtype type, int n_kv_heads,
                            int head_dim);

    /* --- base ops --- */
    /* y[t] = row ids[t] of w, decoded to f32.   y [T][in]   ids [T] host memory */
    void (*embed)(struct backend *be, struct tensor y, const struct weight *w, const int32_t *ids);
    /* y = x * W^T   x [T][in]  W [out][in]  y [T][out]; y overlaps nothing.
     * A non-finite x fails its row: x quantises to zero there and the backend's row flag is set (see failed). */
    void (*linear)(struct backend *be, struct tensor y, struct tensor x, const struct weight *w);
    /* y[t][j] += b[j].   b [cols] backend memory */
    void (*add_bias)(struct backend *be, struct tensor y, const float *b);
    /* Per row and per group of n columns: y = x * w / sqrt(mean(x^2) + eps).   w [n]; cols % n == 0; y may be x */
    void (*rms_norm)(struct backend *be, struct tensor y, struct tensor x, const float *w, int n,
                     float eps);
    /* In place on n_heads heads of size K per row at position pos[t].   pos [T] host memory */
    void (*rope)(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
                 const int32_t *pos);
    /* Write k and v [T][G*K] of the rows into the sequences' pages, rounded to the layer's type (nearest even;
     * KV_Q8 and KV_Q4: kvq.h, where a non-finite value fails its row). A page's first position is stored before its
     * others, or with them: their bytes may depend on it. */
    void (*kv_store)(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                     const struct seq_view *seqs, int n_seqs);
    /* Page dst becomes a copy of page src: all its positions, unwritten ones included.   0 <= src, dst < kv->n_pages */
    void (*kv_copy_page)(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src);
    /* out[t] = attention of q[t] over the positions that p lets it see.   out, q [T][H*K] */
    void (*attention)(struct backend *be, struct tensor out, struct tensor q,
                      const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                      const struct attn_params *p);
    /* y = act(gate) * up; y may be gate.   all [T][F] */
    void (*glu)(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
                enum glu_kind kind);
    /* Per row and per group of n columns: y = x * scale / sqrt(sum(x^2) + eps).   cols % n == 0; y may be x */
    void (*l2_norm)(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                    float scale);
    /* y = act(y).   kind: all but SWIGLU_CLAMPED */
    void (*act)(struct backend *be, struct tensor y, enum glu_kind kind);
    /* Per row: y = (x - mean) / sqrt(variance + eps) * w + b.   w, b [cols]; y may be x */
    void (*layer_norm)(struct backend *be, struct tensor y, struct tensor x, const float *w,
                       const float *b, float eps);
    void (*add)(struct backend *be, struct tensor y, struct tensor x); /* y += x */
    void (*scale)(struct backend *be, struct tensor y, float s);       /* y *= s */
    void (*softcap)(struct backend *be, struct tensor y, float cap);   /* y = cap * tanh(y / cap) */
    void (*copy)(struct backend *be, struct tensor y, struct tensor x); /* y = x */
    /* y[t] *= sigmoid(g[t]).   g [T][1] */
    void (*gate_rows)(struct backend *be, struct tensor y, struct tensor g);
    /* Per row and per group j of n columns: y[j] = r(scale * sum(a_j b_j)), with r(x) the root of max(|x|, 1e-6) and the sign of x
     * (0 where x is 0).   a, b [T][J*n]; y [T][J]. NULL: models that need it are refused (tensor/root_dots.h). */
    void (*root_dots)(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                      float scale);
    /* y[i] = x[rows[i]], copied.   rows [y.rows] host memory */
    void (*gather)(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows);
    /* y[rows[i]] = w[i] * x[i] + (is_first[i] ? 0 : y[rows[i]]), fused.   rows (different ones), w, is_first [x.rows] host memory */
    void (*scatter_add)(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                        const float *w, const uint8_t *is_first);
    /* Each row's experts by route_row (tensor/route.h).   logits [T][E]; ids, w [T][n_used] host memory */
    void (*route)(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
                  float *w);
    /* --- recurrent layers: token by token, so that every cut of a sequence into steps has the same bits --- */
    /* y[t] = silu(sum over j of w[j] * x[t - W + 1 + j]), what lies before the rows by the state, which moves on.
     * x, y [T][C]; w [W][C] backend memory; y overlaps nothing */
    void (*conv_silu)(struct backend *be, struct tensor y, struct tensor x, const float *w,
                      struct state_layer *st, const struct seq_view *seqs, int n_seqs);
    /* In place: a = exp(s * softplus(a + bias)), the decay; b = sigmoid(b).   a, b [T][Hs]; bias, s [Hs] backend memory */
    void (*delta_gates)(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                        const float *s);
    /* The gated delta rule (Yang et al. 2024), for each row in order, with S the head's matrix, k and q of its key head:
     *   m = S^T k;  d = (v - decay m) beta;  S = decay S + k d^T;  out = S^T q
     * Both products are, per column, an ascending chain over the even rows plus one over the odd ones.
     * q, k [T][Gs*Ks]  v, out [T][Hs*Vs]  decay, beta [T][Hs]; out overlaps nothing */
    void (*delta_rule)(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                       struct tensor v, struct tensor decay, struct tensor beta,
                       struct state_layer *st, const struct seq_view *seqs, int n_seqs);
    /* Slot dst becomes a copy of slot src. */
    void (*state_copy)(struct backend *be, struct state_layer *st, int32_t dst, int32_t src);
    /* --- sparse attention: both NULL, then models that need it are refused (tensor/index.h) --- */
    /* Write the rows' raw keys k [T][dim]. For each block that they complete, by rows ascending, the mean of its keys to the next row of
     * means, its first position to first. Returns how many, at most T. */
    int (*index_add)(struct backend *be, struct tensor means, int32_t *first, struct tensor k,
                     struct index_layer *ix, const struct seq_view *seqs, int n_seqs);
    /* Write these blocks' pooled keys, then pick for each row: as attn_params.picked. scores: host memory, as many as a sequence has
     * blocks. False: every row sees everything. q [T][n_heads*dim] */
    bool (*index_pick)(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                       struct tensor means, struct index_layer *ix, const struct index_pick *p,
                       float *scores, const struct seq_view *seqs, int n_seqs);
    /* begin(T) clears the flags of rows [0, T). failed sets flags[t] |= 1 for each row t < T in which a non-finite value
     * met linear, attention or (quantised types) kv_store since begin. flags [T] host memory. A row is a row of the tensor that the op got: where rows
     * are gathered in between (the vocabulary head), ask before and begin again with the new count. */
    void (*begin)(struct backend *be, int n_rows);
    void (*failed)(struct backend *be, uint8_t *flags);

    /* --- sampling, where the logits are: NULL means that they are downloaded and looked at on the host --- */
    /* best[i] = the lowest column of the greatest value of row i (0 and -0 are equal), -1 where one is not finite. The array is filled
     * by the next failed or wait.   best [x.rows] host memory */
    void (*best)(struct backend *be, struct tensor x, int32_t *best);
    /* lists[k] = the short list of the row k-th of those with t[row] > 0, at that temperature (tensor/shortlist.h), BACKEND_SHORTLISTS_MAX
     * of them at most. x: what best was asked of just before; filled when its array is.   t [x.rows], lists: host_alloc's memory */
    void (*shortlist)(struct backend *be, struct tensor x, const float *t, struct shortlist *lists);

    /* --- sampling, on host memory: NULL means that the sampler's own code, which gives the same bits, is used --- */
    /* y[i] = dmath_expf((x[i] - max) / t).   y, x [n] */
    void (*exp_scaled)(struct backend *be, float *y, const float *x, int64_t n, float max, float t);
    /* The lowest index of the greatest of x [n], n >= 1. *finite: whether all are; if not, the index may be any. */
    int64_t (*argmax)(struct backend *be, const float *x, int64_t n, bool *finite);

    /* --- host threads: NULL means one, the caller --- */
    int (*threads)(const struct backend *be);
    /* fn(ctx, i) for each i in [0, n), in any order, on all of them; returns when all are done. Inside, nothing of the backend but
     * the two ops above may be called. */
    void (*parallel)(struct backend *be, void (*fn)(void *ctx, int64_t i), void *ctx, int64_t n);

    /* --- fused ops: NULL means the wrapper composes base ops --- */
    /* linear of n weights on one x (q, k, v; gate and up): x is quantised once. n <= 4 */
    void (*linear_many)(struct backend *be, int n, const struct tensor *y, struct tensor x,
                        const struct weight *const *w);
    /* A mixture of experts: y[t] = the sum, by ascending ids, over the experts that route gives logits[t], of weight * (down(act(gate x[t])
     * * up x[t])), with the bits of route, gather, linear, add_bias, glu and scatter_add one after the other; what is not finite in a
     * row's experts fails the row. y overlaps nothing.   logits [T][E]  x, y [T][D]. False: not these; nothing was done. */
    bool (*moe)(struct backend *be, struct tensor y, struct tensor x, struct tensor logits,
                const struct experts *e);
};

struct backend {
    const struct backend_ops *ops;
    void *state; /* private to the backend */
};

#endif
