/* params.h - what kernels are told: one plain struct per command, shared by the C side that records it and the CUDA side that runs it.
 *
 * Every pointer is device memory. A command with the same bytes does the same work on whatever its device arrays hold, so that a list
 * of commands can be captured as a graph once and replayed: all that changes from step to step (ids, positions, pages) is read
 * from arrays. Structs are zeroed before they are filled (their padding is compared too). */
#ifndef PLUMB_KERNELS_CUDA_PARAMS_H
#define PLUMB_KERNELS_CUDA_PARAMS_H

#include <stdint.h>
#include <vector_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- geometry --- */
#define CU_TILE_ROWS  16   /* weight rows of a tile: the M of the tensor core's instruction */
#define CU_UNIT       64   /* columns of a unit: what K is padded to, cut and loaded by */
#define CU_SEGMENTS   8    /* of K, in units: segment i is [i U / 8, (i + 1) U / 8) of U */
#define CU_SPLIT      256  /* positions of an attention split */
#define CU_PAGE       64   /* = KV_PAGE_TOKENS */
#define CU_JOBS       4    /* weights of one product */
#define CU_SLOTS      16   /* (row, head) pairs of an attention tile */
#define CU_GEMV_ROWS  16   /* rows up to which mma.sync kernels stream the weights */
#define CU_SPLIT_ROWS 64   /* rows up to which segments go to thread blocks of their own */
#define CU_NORM_MAX   8192 /* columns of a norm that holds its row in registers */
#define CU_BEST       32   /* blocks that look for a row's best column */
#define CU_BEST_ODD   (~0ull)
#define CU_KVQ_WARPS  4 /* of a block that quantises: each has a group of a head */

enum cu_format { CU_FORMAT_4BIT, CU_FORMAT_8BIT, CU_FORMAT_BF16 };

struct cu_tensor {
    float *data;
    int64_t stride;
    int rows, cols;
};

/* A packed weight (pack.c says how it lies in memory). */
struct cu_weight {
    const void *codes;
    const uint32_t *scales; /* bf16 pairs: scale low, bias high */
    int out, in;
    int units;  /* of K */
    int format; /* enum cu_format */
    int group;  /* 16, 32 or 64 columns share a scale; 0: none */
    float post; /* power of two that a product is multiplied by */
};

/* Where a row of the step lies. */
struct cu_row {
    int32_t seq; /* -1: in no sequence */
    int32_t pos;
};

struct cu_seq {
    int32_t row0, n_rows, pos0, slot;
    int32_t pages; /* first entry in the page array */
    int32_t is_tentative;
};

/* A tile of attention: slots slot0.. of a sequence, slot = row of the sequence * heads of a kv head + head. */
struct cu_tile {
    int32_t seq, slot0;
};

enum cu_cache { CU_CACHE_F16, CU_CACHE_BF16, CU_CACHE_Q8, CU_CACHE_Q4 };

struct cu_kv {
    uint8_t *data;
    int64_t page_bytes;
    int type; /* enum cu_cache; q8 and q4: where attention reads the codes itself */
    int n_kv_heads, head_dim;
    int pad_dim; /* head_dim rounded up to a unit */
    int n_pages;
};

/* --- commands --- */

struct cu_clear {
    uint32_t *flags;
    int n;
};

struct cu_embed {
    struct cu_tensor y;
    struct cu_weight w;
    const int32_t *ids;
};

/* x to bf16: tiled (swizzled rows of a unit) for wgmma, else in the order of mma.sync's lanes. */
struct cu_quantise {
    struct cu_tensor x;
    uint16_t *out;
    int units, pad_rows;
    int is_tiled;
    uint32_t *flags;
};

struct cu_linear {
    struct cu_weight w[CU_JOBS];
    float *y[CU_JOBS];
    int64_t stride[CU_JOBS];
    int n_jobs, rows;
    const uint16_t *x;
    int pad_rows;
    int n_sm; /* multiprocessors: blocks of the kernel that streams through rings */
    int has_glu,
        glu_kind;         /* two weights of one shape: y[0] becomes glu(y[0], y[1]) (enum cu_act) */
    struct cu_quantise q; /* of y[0] then; out NULL: none */
    float *
        partial; /* [CU_SEGMENTS][rows][sum of outs rounded up to 128]: a block for each segment; NULL: one for all */
};

enum cu_ew {
    CU_EW_ADD_BIAS,
    CU_EW_ADD,
    CU_EW_SCALE,
    CU_EW_SOFTCAP,
    CU_EW_GLU,
    CU_EW_ACT,
    CU_EW_COPY,
    CU_EW_GATE_ROWS,
    CU_EW_GATHER,
    CU_EW_SCATTER,
};

enum cu_act {
    CU_ACT_SILU,
    CU_ACT_GELU_TANH,
    CU_ACT_GELU_ERF,
    CU_ACT_SIGMOID,
    CU_ACT_SWIGLU_CLAMPED,
};

struct cu_elementwise {
    struct cu_tensor y, a, b;
    const float *v;
    const int32_t *rows;
    const uint8_t *first;
    float s;
    int op, kind;
};

enum cu_norm_kind { CU_NORM_RMS, CU_NORM_L2, CU_NORM_LAYER };

struct cu_norm {
    struct cu_tensor y, x;
    const float *w, *b;
    float eps, scale;
    int n, kind;
};

/* What stands between two products: x += h (where h has data), y = the RMS norm of x, y to bf16 (where q has an output). */
struct cu_row_norm {
    struct cu_tensor x, h, y;
    const float *w;
    float eps;
    struct cu_quantise q; /* its x is y */
};

/* y = glu(a, b), y to bf16. */
struct cu_glu {
    struct cu_elementwise e;
    struct cu_quantise q; /* its x is e.y */
};

struct cu_rope_table {
    float *table; /* [rows][n_dims / 2] of cos, sin */
    const float *inv_freq;
    const int32_t *pos;
    float scale;
    int rows, half;
};

struct cu_rope {
    struct cu_tensor x;
    const float *table;
    int head_dim, half, is_neox;
};

struct cu_kv_store {
    struct cu_kv kv;
    struct cu_tensor k, v;
    const struct cu_row *rows;
    const struct cu_seq *seqs;
    const int32_t *pages;
    uint32_t *flags;
};

/* A layer's quantised pages. Their codes and numbers are those of tensor/kvq.h, and lie as there where a head is not of whole units. Else K,
 * and V without base and bits:
 *     codes        a row for each position; those of K in the lanes' order within a unit: 64 bytes, or, of 4 bits, 8 for each quad of lanes,
 *                  whose low nibbles are its first 8 places
 *     u32          [groups][64]: scale low, bias high
 *     base         f16 [head_dim], in the lanes' order
 *     u64          [groups]: relative positions; filled up to 64 bytes */
struct cu_kvq {
    uint8_t *data;
    int64_t page_bytes, head_bytes, v_at; /* of a head's bytes those of V begin there */
    int n_kv_heads, head_dim, groups;
    int row;               /* code bytes of a position */
    int is_8bit, is_whole; /* heads are of whole units */
};

struct cu_kvq_store {
    struct cu_kvq kv;
    struct cu_tensor k, v;
    const struct cu_row *rows;
    const struct cu_seq *seqs;
    const int32_t *pages;
    uint32_t *flags;
    int is_single; /* no sequence has two rows */
};

/* What the rows of sequences see, as f16 to pages of the same numbers. */
struct cu_kvq_expand {
    struct cu_kvq from;
    struct cu_kv to;
    const struct cu_seq *seqs;
    const int32_t *pages;
    int n_seqs, n_pages, window; /* n_pages: of the longest sequence, at least */
    int n_few;                   /* sequences of so many rows, or fewer, are left out */
};

/* Queries and keys of one head size are turned whole; keys and values go to their pages. */
struct cu_rope_store {
    struct cu_rope q;
    struct cu_kv_store kv; /* its k is turned as q is */
};

/* The same of a quantised cache, where a page's first key is in no other row of the step. */
struct cu_rope_kvq_store {
    struct cu_rope q;
    struct cu_kvq_store kv;
};

struct cu_kv_copy {
    uint8_t *dst;
    const uint8_t *src;
    int64_t bytes;
};

struct cu_attention {
    struct cu_kv kv;
    struct cu_tensor out, q;
    const struct cu_seq *seqs;
    const struct cu_tile *tiles;
    const int32_t *pages;
    const float *sinks;
    uint32_t *flags;
    float *partial; /* see attention.cu */
    float scale, softcap;
    int window, n_heads;
    int per;            /* heads of a kv head */
    uint32_t per_magic; /* n / per is the high word of n * this; 0: per is 1 */
    int has_old; /* what stands before a sequence's first row was stored by earlier steps: it may be read at once */
    int n_tiles, n_splits;      /* n_splits 0: each tile walks its splits by itself */
    int is_wide;                /* tiles of 8 x CU_SLOTS slots */
    int is_both;                /* rows see later positions of their sequence: wide tiles alone */
    int n_rows;                 /* that the tiles have together */
    int is_whole;               /* those are all of out, and heads are of even size */
    struct cu_quantise to_bf16; /* its x is out; out NULL: none */
};

/* For each row and each of CU_BEST parts of its columns a rank, the greatest of which is the row's best column: in the high word the value's
 * order as an integer, in the low one the column's complement. CU_BEST_ODD: a value is not finite. */
struct cu_best {
    struct cu_tensor x;
    unsigned long long *best; /* [rows][CU_BEST] */
};

/* What a sampled choice needs of a row (tensor/shortlist.h), whose best ranks k_best has found. */
struct cu_shortlist_row {
    float t;
    int32_t slot; /* of lists; -1: none is wanted */
};

struct cu_shortlist {
    struct cu_tensor x;
    const unsigned long long *best;      /* [x.rows][CU_BEST] */
    const struct cu_shortlist_row *rows; /* [x.rows] */
    struct shortlist *lists;
};

/* --- mixtures of experts (moe.cu). Pairs of a row and one of its experts: row * n_used + choice --- */
#define CU_USED_MAX 64 /* experts of a row */

enum cu_route_kind { CU_ROUTE_SOFTMAX, CU_ROUTE_SOFTMAX_USED, CU_ROUTE_SIGMOID };

struct cu_route {
    struct cu_tensor logits;
    const float *bias, *expert_scale; /* [experts] or NULL */
    int32_t *ids;                     /* [pairs] */
    float *w;
    float scale;
    int kind, n_used, is_normed;
};

struct cu_group {
    const int32_t *ids;  /* [pairs] */
    int32_t *list;       /* [pairs] by expert */
    struct int4 *active; /* experts that have pairs, ascending: id, first in list, how many, 0 */
    int32_t *n_active;
    uint32_t *pair_flags; /* [pairs] cleared */
    int n_pairs;
};

struct cu_expert {
    const void *codes;
    const uint32_t *scales;
    float post;
};

/* y of each pair = its expert's matrix times the pair's row of x, with the expert's bias. */
struct cu_experts {
    const struct cu_expert *w[2]; /* [experts], all of one form */
    const float *bias[2];         /* [experts][out] or NULL */
    float *y[2];                  /* [pairs][out] */
    const uint16_t *x;            /* in the order of mma.sync's lanes; pair p has row p / per */
    const int32_t *list, *n_active;
    const struct int4 *active;
    int out, units, format, group, n_jobs, per, pad_rows;
    int rows;         /* of the step: that an expert has at most */
    int n_active_max; /* experts that may have pairs */
};

/* y = the sum over a row's pairs of w x, by ascending ids. */
struct cu_combine {
    struct cu_tensor y;
    const float *x, *w; /* [pairs][cols] [pairs] */
    const uint32_t *pair_flags;
    uint32_t *flags;
    int n_used;
};

struct cu_conv {
    struct cu_tensor y, x;
    const float *w;
    float *state;
    const struct cu_row *rows;
    const struct cu_seq *seqs;
    int taps, n_seqs;
};

struct cu_delta_gates {
    struct cu_tensor a, b;
    const float *bias, *scale;
};

struct cu_delta {
    struct cu_tensor out, q, k, v, decay, beta;
    float *matrix;
    const struct cu_seq *seqs;
    int n_seqs, n_heads, n_key_heads, key_dim, value_dim, is_tiled;
};

/* --- launchers: enqueue on the stream; return a cudaError_t --- */
typedef void *cu_stream;

int cu_launch_clear(const struct cu_clear *p, cu_stream s);
int cu_launch_embed(const struct cu_embed *p, cu_stream s);
int cu_launch_quantise(const struct cu_quantise *p, cu_stream s);
int cu_launch_linear(const struct cu_linear *p,
                     cu_stream s); /* all jobs have one format and group */
int cu_launch_linear_wgmma(const struct cu_linear *p,
                           cu_stream s); /* compute capability 9.0 alone */
int cu_launch_linear_plain(const struct cu_linear *p, cu_stream s); /* the oracle */
int cu_launch_linear_ring(const struct cu_linear *p, cu_stream s); /* from compute capability 9.0 */
int cu_launch_row_norm(const struct cu_row_norm *p, cu_stream s);
int cu_launch_glu(const struct cu_glu *p, cu_stream s);
int cu_launch_rope_store(const struct cu_rope_store *p, cu_stream s);
int cu_launch_rope_kvq_store(const struct cu_rope_kvq_store *p, cu_stream s);
int cu_launch_elementwise(const struct cu_elementwise *p, cu_stream s);
int cu_launch_norm(const struct cu_norm *p, cu_stream s);
int cu_launch_rope_table(const struct cu_rope_table *p, cu_stream s);
int cu_launch_rope(const struct cu_rope *p, cu_stream s);
int cu_launch_kv_store(const struct cu_kv_store *p, cu_stream s);
int cu_launch_attention(const struct cu_attention *p, cu_stream s);
int cu_launch_attention_plain(const struct cu_attention *p, cu_stream s); /* the oracle */
int cu_launch_kvq_store(const struct cu_kvq_store *p, cu_stream s);
int cu_launch_kvq_expand(const struct cu_kvq_expand *p, cu_stream s);
int cu_launch_best(const struct cu_best *p, cu_stream s);
int cu_launch_shortlist(const struct cu_shortlist *p, cu_stream s);
int cu_launch_route(const struct cu_route *p, cu_stream s);
int cu_launch_group(const struct cu_group *p, cu_stream s);
int cu_launch_experts(const struct cu_experts *p, cu_stream s);
int cu_launch_combine(const struct cu_combine *p, cu_stream s);
int cu_launch_conv(const struct cu_conv *p, cu_stream s);
int cu_launch_delta_gates(const struct cu_delta_gates *p, cu_stream s);
int cu_launch_delta(const struct cu_delta *p, cu_stream s);

#ifdef __cplusplus
}
#endif
#endif
