/* cpu_int.h - what the files of the CPU backend share: packed weights, quantised activations, tables of kernels. */
#ifndef PLUMB_KERNELS_CPU_CPU_INT_H
#define PLUMB_KERNELS_CPU_CPU_INT_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "tensor/group.h"
#include "tensor/kvq.h"
#include "tensor/source.h"

#define TILE     16  /* weight rows of a tile: one 512-bit register of f32 */
#define CPU_ROWS 512 /* activation rows that linear quantises at a time */

/* Packed layout. A matrix is tiles of 16 rows, one after the other, each a run of blocks of `groups` groups: one linear
 * stream. Byte (4r + b) of a 64-byte code vector j belongs to row r, element k = 4j + b of the group. Codes are stored plus
 * `bias`, so that they are unsigned. Rows past `out` are zero too, groups past `in` are zero bytes.
 *
 * offset in a block                                                         (g: group in the block)
 * Q4_0        32g: d f16[16];        64 + 256g: nibbles
 * Q4_1         0: d f16[16];  32: m f16[16];  64: nibbles
 * Q5_0        32g: d f16[16];        64 + 320g: nibbles, fifth bits
 * Q5_1         0: d;  32: m;         64: nibbles, fifth bits
 * Q8_0        32g: d f16[16];        64 + 512g: bytes (j = 0..7)
 * IQ4_NL      32g: d f16[16];        64 + 256g: nibbles, places in a table
 * MXFP4       32g: d bf16[16];       64 + 256g: nibbles, places in a table
 * Q4_K         0: d;  32: -dmin;     64 + 32g: scale u8[16], min u8[16];  320 + 256g: nibbles
 * Q5_K         as Q4_K;              320 + 320g: nibbles, fifth bits
 * Q6_K         0: d;  32 + 32g: scale s8[16] of k < 16, then of k >= 16;  320 + 384g: nibbles, bit pairs
 * Q3_K         as Q6_K;              320 + 192g: bit pairs, third bits
 * Q2_K         0: d;  32: -dmin;     64 + 32g: u8[16] of k < 16, then of k >= 16: scale, min << 4;  320 + 128g: bit pairs
 * IQ4_XS       0: d;  32 + 16g: scale s8[16];  192 + 256g: nibbles, places in a table
 * MLX          0: d, then m, each [16] f16, bf16 or f32 as in the file; one block is what shares them: 1, 2 or 4 groups.
 *              2 bits: bit pairs; 3: bit pairs, third bits; 4: nibbles; 5: nibbles, fifth bits; 6: nibbles, bit pairs; 8: bytes
 * F16 BF16 F32 one block of `in` elements: [in][16]
 * F8           scales f32[16] of each part of the columns, then [in][16]
 * nibbles: 4 vectors j = 0..3: low nibble k = 4j + b, high nibble k = 16 + 4j + b
 * third, fifth bits: 1 vector: bit j is that bit of k = 4j + b, j = 0..7
 * bit pairs: 2 vectors h: bits 2j, 2j + 1 are two bits (of six the top ones) of k = 16h + 4j + b, j = 0..3 */
enum lin_kind {
    LIN_KIND_Q4_0,
    LIN_KIND_Q4_1,
    LIN_KIND_Q5_0,
    LIN_KIND_Q5_1,
    LIN_KIND_Q8_0,
    LIN_KIND_IQ4_NL,
    LIN_KIND_MXFP4,
    LIN_KIND_Q4_K,
    LIN_KIND_Q5_K,
    LIN_KIND_Q6_K,
    LIN_KIND_Q3_K,
    LIN_KIND_Q2_K,
    LIN_KIND_IQ4_XS,
    LIN_KIND_MLX2,
    LIN_KIND_MLX3,
    LIN_KIND_MLX4,
    LIN_KIND_MLX5,
    LIN_KIND_MLX6,
    LIN_KIND_MLX8,
    LIN_KIND_GROUPED, /* the kinds before this are quantised */
    LIN_KIND_F16 = LIN_KIND_GROUPED,
    LIN_KIND_BF16,
    LIN_KIND_F32,
    LIN_KIND_F8_E4M3,
    LIN_KIND_F8_E5M2,
    LIN_KIND_COUNT
};

/* X(Q4_0) X(Q4_1) ...: every quantised kind, in the order above. */
/* clang-format off */
#define LIN_KINDS_GROUPED(X)                                                     \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(Q4_K) X(Q5_K)   \
    X(Q6_K) X(Q3_K) X(Q2_K) X(IQ4_XS) X(MLX2) X(MLX3) X(MLX4) X(MLX5) X(MLX6) X(MLX8)
/* clang-format on */

/* How a group's codes are stored. */
enum lin_code {
    LIN_CODE_2,
    LIN_CODE_3,
    LIN_CODE_4,
    LIN_CODE_5,
    LIN_CODE_6,
    LIN_CODE_8,
    LIN_CODE_TABLE, /* nibbles */
    LIN_CODE_COUNT
};

/* What the scales of a group are. */
enum lin_scales {
    LIN_SCALES_D,      /* d f16 */
    LIN_SCALES_BF16,   /* d bf16 */
    LIN_SCALES_DM,     /* d, m f16 */
    LIN_SCALES_K,      /* d, m f16 times integers */
    LIN_SCALES_XS,     /* d f16 times an integer */
    LIN_SCALES_HALVES, /* d f16; an integer for each half */
    LIN_SCALES_MINS,   /* d, m f16; two integers for each half */
    LIN_SCALES_MLX,    /* d, m of a type that only the weight knows */
};

/* Constant expressions of the kind, so that a kernel specialised on it folds them. */
static inline enum lin_code lin_code(enum lin_kind k)
{
    static const enum lin_code codes[LIN_KIND_GROUPED] = {
        LIN_CODE_4, LIN_CODE_4, LIN_CODE_5, LIN_CODE_5, LIN_CODE_8, LIN_CODE_TABLE, LIN_CODE_TABLE,
        LIN_CODE_4, LIN_CODE_5, LIN_CODE_6, LIN_CODE_3, LIN_CODE_2, LIN_CODE_TABLE, LIN_CODE_2,
        LIN_CODE_3, LIN_CODE_4, LIN_CODE_5, LIN_CODE_6, LIN_CODE_8,
    };
    return codes[k];
}
static inline enum lin_scales lin_scales(enum lin_kind k)
{
    static const enum lin_scales scales[LIN_KIND_MLX2] = {
        LIN_SCALES_D,      LIN_SCALES_DM,   LIN_SCALES_D,  LIN_SCALES_DM, LIN_SCALES_D,
        LIN_SCALES_D,      LIN_SCALES_BF16, LIN_SCALES_K,  LIN_SCALES_K,  LIN_SCALES_HALVES,
        LIN_SCALES_HALVES, LIN_SCALES_MINS, LIN_SCALES_XS,
    };
    return k >= LIN_KIND_MLX2 ? LIN_SCALES_MLX : scales[k];
}
static inline int lin_code_bytes(enum lin_kind k) /* of a group */
{
    static const int bytes[LIN_CODE_COUNT] = { 128, 192, 256, 320, 384, 512, 256 };
    return bytes[lin_code(k)];
}
/* What the stored (in tables: the looked-up) unsigned code has more than the code. */
static inline int lin_bias(enum lin_kind k)
{
    static const int bias[LIN_KIND_MLX2] = { 8, 0, 16, 0, 128, 128, 16, 0, 0, 32, 4, 0, 128 };
    return k >= LIN_KIND_MLX2 ? 0 : bias[k];
}
static inline bool lin_is_affine(enum lin_kind k)
{
    enum lin_scales s = lin_scales(k);
    return s == LIN_SCALES_DM || s == LIN_SCALES_K || s == LIN_SCALES_MINS || s == LIN_SCALES_MLX;
}
/* Whether each half of a group has a scale. */
static inline bool lin_has_halves(enum lin_kind k)
{
    return lin_scales(k) == LIN_SCALES_HALVES || lin_scales(k) == LIN_SCALES_MINS;
}
/* The table of a LIN_CODE_TABLE kind, with the bias. */
static inline const uint8_t *lin_table(enum lin_kind k)
{
    static const _Alignas(64) uint8_t iq4[16] = { 1,   24,  45,  63,  79,  93,  106, 118,
                                                  129, 141, 153, 166, 181, 197, 217, 241 };
    static const _Alignas(64)
        uint8_t mxfp4[16] = { 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4 };
    return k == LIN_KIND_MXFP4 ? mxfp4 : iq4;
}

/* Where things are in a block. Of all kinds but MLX's a constant expression of the kind. */
struct lin_block {
    int shift; /* log2 of the groups */
    int bytes;
    int codes; /* offset of the first group's */
};

struct weight {
    struct weight_shape shape;
    enum lin_kind kind;
    int64_t n_groups; /* of a row, if grouped */
    int64_t n_tiles;
    size_t tile_bytes;
    struct lin_block block; /* if grouped */
    enum dtype scale_type;  /* of MLX kinds: F16, BF16, F32 */
    int64_t scale_cols;     /* of F8: columns that share a scale */
    uint8_t *data;          /* [n_tiles][tile_bytes], 64-byte aligned */
};

static inline struct lin_block lin_block_of(enum lin_kind k)
{
    static const int8_t shift[] = { 1, 1, 0, 3, 3, 3, 3 };
    static const int16_t codes[] = { 64, 64, 64, 320, 192, 320, 320 };
    const enum lin_scales s = lin_scales(k);
    return (struct lin_block){ shift[s], codes[s] + (lin_code_bytes(k) << shift[s]), codes[s] };
}

/* The same, with the kind known at compile time. */
static inline struct lin_block lin_block(const enum lin_kind k, const struct weight *w)
{
    return k >= LIN_KIND_MLX2 ? w->block : lin_block_of(k);
}

/* Quantised activations of up to CPU_ROWS rows. Rows lie in blocks of mb, the number of rows up to 8, else 16: row t, group g is at index
 * (t / mb * n_groups + g) * mb + t % mb of every array, so the rows of a block are beside each other in each group. */
struct act {
    int mb;
    int64_t n_groups;
    int8_t *q; /* [.][32] */
    float *d;  /* [.] scale */
    float *s;  /* [.] d * sum of q */
    /* [.] What undoes a bias in the codes: -8, -16, -128 times the sum of q; -32 times that over each half. */
    int32_t *neg8, *neg16, *neg128, *neg32_0, *neg32_1;
    uint16_t *bf16; /* [.][32] q as bf16, each four in the order 0 2 1 3; NULL: not asked for */
    float *f;       /* [rows][in] cleaned copy, for float weights */
};

static inline int64_t act_index(const struct act *a, int64_t t, int64_t g)
{
    return (t / a->mb * a->n_groups + g) * a->mb + t % a->mb;
}

/* One matrix product of a job: y[t] = x[t] * W^T for rows [0, n_rows). */
struct lin_job {
    const struct weight *w;
    const struct act *x;
    int n_rows;
    float *y; /* [n_rows], y_stride apart */
    int64_t y_stride;
};

/* Rows of x in a pass of the kernels that unpack into registers (linear_direct.h), a divisor of TILE: of 16 registers of 8 lanes four
 * accumulators each are as many as fit. */
#define DIRECT_ROWS 4

/* Per-thread scratch of linear: an unpacked part of a tile and the accumulators of a few tiles. */
#define LIN_CHUNK      32 /* groups that are unpacked at a time */
#define AMX_CHUNK      16 /* for tiles: 28 KiB with two blocks of x and the dots; 32 is 4 % slower */
#define AMX_CHUNK_BF16 8  /* for tiles of bf16, 4 times as large */
#define LIN_MINS       512 /* groups whose minimums are unpacked at a time */
#define LIN_N_TILES    4   /* tiles that share a pass over the activations */
struct lin_scratch {
    union {
        _Alignas(64) uint8_t codes[LIN_CHUNK][512]; /* [group][j][4r + b], unsigned */
        _Alignas(64) uint8_t tiles[(AMX_CHUNK_BF16 + 1) * 4 * GROUP * TILE]; /* linear_amx.c */
    };
    _Alignas(64) float scale[LIN_CHUNK][3][TILE]; /* d, then m or (s0, s1) */
    _Alignas(64) float min[LIN_MINS][TILE];
    _Alignas(64) float acc[LIN_N_TILES][2][CPU_ROWS][TILE]; /* ad, am */
    _Alignas(64) float dot[2][2][TILE][TILE]; /* tile products: [step][one of two][row of x][row] */
};

/* Tiles [tile0, tile1) of a job, all its rows. Need: 1 <= tile1 - tile0 <= LIN_N_TILES when n_rows > 8. */
typedef void lin_fn(const struct lin_job *job, int64_t tile0, int64_t tile1, struct lin_scratch *s);

struct lin_ops {
    const char *name;
    lin_fn *grouped, *plain; /* quantised kinds; float kinds */
    int bf16_rows;           /* from so many rows on Q6_K reads act's bf16; 0: never */
};

/* Row-wise kernels. All pointers may be unaligned. */
struct rows_ops {
    const char *name;
    /* Quantise (part of) row t: groups [g0, g1). False: a value was not finite. */
    bool (*quantise)(struct act *a, int64_t t, const float *x, int64_t g0, int64_t g1);
    /* Copy with non-finite values as zero. False: there was one. */
    bool (*clean)(float *y, const float *x, int64_t n);
    void (*rms_norm)(float *y, const float *x, const float *w, int n, float eps);
    void (*l2_norm)(float *y, const float *x, int n, float eps, float scale);
    void (*rope)(float *x, const struct rope *r, const float *cs, const float *sn);
    void (*glu)(float *y, const float *g, const float *u, int64_t n, enum glu_kind kind);
    void (*act)(float *y, int64_t n, enum glu_kind kind);
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, int n, float eps);
    /* y = w * x + (is_first ? 0 : y), fused */
    void (*add_scaled)(float *y, const float *x, int64_t n, float w, bool is_first);
    void (*add)(float *y, const float *x, int64_t n);
    void (*scale)(float *y, int64_t n, float s);
    void (*softcap)(float *y, int64_t n, float cap);
    void (*exp_scaled)(float *y, const float *x, int64_t n, float max, float t);
    int64_t (*argmax)(const float *x, int64_t n, bool *finite);
};

/* Attention kernels over one page part (K or V of a kv head in a page; P = KV_PAGE_TOKENS positions). A query is a head of a
 * row.
 *
 * A product: c[i][j] = chain over k in [k0, k1) ascending of a[i][k] * b[k][j], from zero, for i < n and j < cols. */
#define ATTN_QUERIES 6 /* rows of a that share a pass over b */
struct attn_product {
    float *c;
    int64_t c_stride;
    const float *const *a; /* [n] */
    int n;
    const uint8_t *b;
    enum dtype type; /* of b: F32, F16 or BF16 */
    int64_t stride;  /* elements of b between rows */
    int k0, k1, cols;
    /* [n] or NULL. With them the result s is merged: c = fma(s, beta, c * alpha) */
    const float *alpha, *beta;
    const uint8_t *next; /* memory to bring to the cache meanwhile, or NULL */
    int64_t next_bytes;
    float *wide; /* scratch: [P * head_dim] */
};

struct attn_ops {
    const char *name;
    void (*product)(const struct attn_product *p);
    /* w [n][P] products of keys. For positions [j0[i], j1[i]) of row i: scaled and capped, then exp(score - max), 0 outside;
     * gives max and sum. bad[i] becomes true where a score is not finite. */
    void (*weights)(float *w, int n, const int *j0, const int *j1, float scale, float softcap,
                    float *max, float *sum, bool *bad);
    /* Merge maxima and sums of a block into the running ones: gives the factors of what is there and of the block. */
    void (*factors)(float *m, float *l, const float *mb, const float *lb, int n, float *alpha,
                    float *beta);
    /* Merge a block's maximum, sum and weighted V (n dims) into the running ones. */
    void (*merge)(float *acc, float *m, float *l, const float *part, int n, float mb, float lb);
    /* y[i] = x[i] * s. False: a result is not finite. */
    bool (*finish)(float *y, const float *x, int n, float s);
    void (*narrow)(uint8_t *y, const float *x, int64_t n, enum dtype type);
    /* KV_Q8 and KV_Q4. quantise: kvq_quantise, whose codes from n on may be anything here. unpack_k, unpack_v: a part's values,
     * K as [head_dim][P] and V as [P][head_dim]; what was never written may give anything. */
    bool (*quantise)(struct kvq_group *out, const float *x, const uint16_t *base, int n, int top);
    void (*unpack_k)(float *y, const struct kvq_part *part, int head_dim, enum dtype type);
    void (*unpack_v)(float *y, const struct kvq_part *part, int head_dim, enum dtype type);
};

/* Recurrent layers. A convolution's columns [c0, c1) of one sequence; a head's columns [c0, c1) of the delta rule. */
struct conv_job {
    const struct seq_view *seq;
    struct tensor y, x;
    const float *w;
    float *state; /* [W - 1][C] */
    int taps;
};

struct delta_job {
    const struct seq_view *seq;
    const float *q, *k, *v; /* row 0 of the sequence, of the head's first element */
    float *out;
    const float *decay, *beta; /* row 0, the head's */
    int64_t q_stride, k_stride, v_stride, out_stride, decay_stride, beta_stride;
    float *matrix; /* [Ks][Vs] of the head in the slot */
    int key_dim, value_dim;
    float *work; /* scratch: [Ks][64], one thread's */
};

struct state_ops {
    const char *name;
    void (*conv)(const struct conv_job *j, int64_t c0, int64_t c1);
    void (*delta)(const struct delta_job *j, int c0, int c1);
};

extern const struct lin_ops lin_ops_c, lin_ops_avx2, lin_ops_avxvnni, lin_ops_avx512, lin_ops_amx,
    lin_ops_neon;
extern const struct rows_ops rows_ops_c, rows_ops_avx2, rows_ops_avx512, rows_ops_neon;
extern const struct attn_ops attn_ops_c, attn_ops_avx2, attn_ops_avx512, attn_ops_neon;

extern const struct state_ops state_ops_c, state_ops_avx2, state_ops_avx512, state_ops_neon;

struct rope_cache;

struct cpu_state {
    enum cpu_level level;
    struct lin_ops lin;
    struct rows_ops rows;
    struct attn_ops attn;
    struct state_ops state;
    struct pool *pool;
    bool
        is_parallel; /* the pool runs what the caller of `parallel` gave: ops called there stay on their thread */
    struct mem_region region; /* packed weights */
    int64_t n_weights;        /* live; at zero the region empties */
    uint8_t flags[BACKEND_ROWS_MAX];
    int n_rows;
    int64_t max_in; /* longest `in` packed so far; sizes act */
    size_t act_bytes;
    uint8_t *act_mem;
    struct lin_scratch *scratch;       /* [threads] */
    struct attn_scratch *attn_scratch; /* [threads] */
    struct attn_run *attn_runs;        /* slices under way */
    float *attn_parts;                 /* results of blocks that wait to be merged */
    struct rope_cache *rope_cache;
    float *state_work; /* [threads][BACKEND_STATE_DIM_MAX][STATE_COLS] */
};

static inline struct cpu_state *cpu_of(struct backend *be)
{
    return be->state;
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* pack.c */
bool cpu_supports(const struct backend *be, enum dtype type);
enum err_code cpu_pack(struct backend *be, const struct weight_source *src, struct weight **out,
                       struct err *err);
void cpu_unpack_free(struct backend *be, struct weight *w);
const struct weight_shape *cpu_shape(const struct weight *w);
/* Group g of row r in a tile, in canonical form. */
void cpu_weight_group(const struct weight *w, const uint8_t *tile, int r, int64_t g,
                      struct group *out);
/* Element i of row r of an unquantised tile, whose elements begin at `codes`; widened, before any scale. */
float cpu_weight_element(const struct weight *w, const uint8_t *codes, int64_t i, int r);
/* Bytes of the scales before the elements of a tile. */
static inline size_t cpu_f8_scale_bytes(const struct weight *w)
{
    int64_t parts = w->scale_cols ? (w->shape.in + w->scale_cols - 1) / w->scale_cols : 0;
    return (size_t)parts * TILE * sizeof(float);
}
/* Decode row r of w to f32 (embed, tests). */
void cpu_weight_row(const struct weight *w, int64_t r, float *out);

/* pack_tile.c: 16 rows of the file's blocks to one tile, but for scales that stand apart. Need: the tile is zero, n_groups > 0. */
void cpu_pack_tile(const struct weight *w, uint8_t *tile, const uint8_t *rows, size_t row_bytes);

/* linear.c */
void cpu_embed(struct backend *be, struct tensor y, const struct weight *w, const int32_t *ids);
void cpu_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w);
void cpu_linear_many(struct backend *be, int n, const struct tensor *y, struct tensor x,
                     const struct weight *const *w);
/* Make the activation buffers fit rows of `in`. False: no memory, all as before. */
bool cpu_linear_reserve(struct cpu_state *st, int64_t in);

/* rows.c */
void cpu_add_bias(struct backend *be, struct tensor y, const float *b);
void cpu_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w, int n,
                  float eps);
void cpu_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
              const int32_t *pos);
void cpu_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
             enum glu_kind kind);
void cpu_add(struct backend *be, struct tensor y, struct tensor x);
void cpu_scale(struct backend *be, struct tensor y, float s);
void cpu_softcap(struct backend *be, struct tensor y, float cap);
void cpu_exp_scaled(struct backend *be, float *y, const float *x, int64_t n, float max, float t);
int64_t cpu_argmax(struct backend *be, const float *x, int64_t n, bool *finite);
void cpu_act(struct backend *be, struct tensor y, enum glu_kind kind);
void cpu_layer_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                    const float *b, float eps);
void cpu_scatter_add(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows,
                     const float *w, const uint8_t *is_first);
void cpu_route(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
               float *w);
void cpu_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                 float scale);
void cpu_gate_rows(struct backend *be, struct tensor y, struct tensor g);
int cpu_index_add(struct backend *be, struct tensor means, int32_t *first, struct tensor k,
                  struct index_layer *ix, const struct seq_view *seqs, int n_seqs);
bool cpu_index_pick(struct backend *be, uint64_t *picked, int64_t words, struct tensor q,
                    struct tensor means, struct index_layer *ix, const struct index_pick *p,
                    float *scores, const struct seq_view *seqs, int n_seqs);
void cpu_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                   float scale);
void cpu_copy(struct backend *be, struct tensor y, struct tensor x);
void cpu_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows);
struct rope_cache *rope_cache_new(void); /* NULL: no memory */
void rope_cache_free(struct rope_cache *c);
void rope_cache_clear(struct rope_cache *c);

/* kv.c */
size_t cpu_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim);
void cpu_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                  const struct seq_view *seqs, int n_seqs);
void cpu_kv_copy_page(struct backend *be, struct kv_layer *kv, int32_t dst, int32_t src);
/* K (v = 0) or V (v = 1) of kv head g in block b of a sequence. */
uint8_t *cpu_kv_part(const struct kv_layer *kv, const struct seq_view *s, int32_t b, int g, int v);

/* attention.c */
void cpu_attention(struct backend *be, struct tensor out, struct tensor q,
                   const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                   const struct attn_params *p);
/* Per-thread scratch for `threads` threads. False: no memory. */
bool cpu_attention_init(struct cpu_state *st, int threads);
void cpu_attention_release(struct cpu_state *st, int threads);

/* state.c */
#define STATE_COLS \
    64 /* columns of a head's matrix that a thread takes at a time: with 128 rows 32 KiB, the first-level cache */
void cpu_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                   struct state_layer *st, const struct seq_view *seqs, int n_seqs);
void cpu_delta_gates(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                     const float *s);
void cpu_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                    struct tensor v, struct tensor decay, struct tensor beta,
                    struct state_layer *st, const struct seq_view *seqs, int n_seqs);
void cpu_state_copy(struct backend *be, struct state_layer *st, int32_t dst, int32_t src);
bool cpu_state_init(struct cpu_state *st, int threads); /* false: no memory */
void cpu_state_release(struct cpu_state *st, int threads);

#endif
