/* cuda_int.h - what the files of the CUDA backend share. backend.c: the device, memory, order. record.c: commands, graphs. arrays.c: host
 * arrays that commands read. ops.c: from ops to commands. fuse.c: commands that become one. pack.c: weights. */
#ifndef PLUMB_KERNELS_CUDA_CUDA_INT_H
#define PLUMB_KERNELS_CUDA_CUDA_INT_H

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/params.h"
#include "tensor/shortlist.h"

/* Version of the contract of docs/numerics.md, section CUDA. */
#define CUDA_NUMERICS 1
/* Rows of a product at a time: what the buffer of bf16 activations has room for. */
#define CUDA_ROW_CHUNK 2048
/* Extra rows in that buffer: a block of tokens reads past the last one. */
#define CUDA_ROW_SLACK    192
#define CUDA_ALIGN(n)     (((n) + 15) & ~(size_t)15)
#define CUDA_COMMANDS_MAX ((size_t)2 << 20) /* bytes */
#define CUDA_ARENA_BYTES  ((size_t)8 << 20)
#define CUDA_PAGES_BYTES  ((size_t)16 << 20)
#define CUDA_PARTIAL      ((size_t)96 << 20) /* bytes of partial sums, of products or attention */
/* A decoding step of 1 to 64 rows has 64 lists, more by the lengths of few rows. Commands: 58 KiB of them for a step of 32 layers. */
#define CUDA_GRAPHS      128
#define CUDA_GRAPH_BYTES ((size_t)32 << 20)
#define CUDA_SEEN        4096
#define CUDA_FUSED       2 /* commands that a rule of fuse.c looks at */
#define CUDA_PLANS       4
#define CUDA_OUT_BYTES   ((size_t)BACKEND_ROWS_MAX * (sizeof(uint32_t) + CU_BEST * sizeof(uint64_t)))
#define CUDA_LISTS_BYTES (BACKEND_SHORTLISTS_MAX * sizeof(struct shortlist))
#define CUDA_TABLES      2
#define CUDA_TABLE_BYTES ((size_t)4 << 20) /* of each at load: 2,048 rows of 256 rotated numbers */

struct weight {
    struct weight_shape shape;
    struct cu_weight w;
    /* Of a layer's first expert, once they were asked for: device [n_set], where all of them are. */
    struct cu_expert *set;
    int n_set;
};

enum cuda_op {
    CUDA_OP_CLEAR,
    CUDA_OP_EMBED,
    CUDA_OP_QUANTISE,
    CUDA_OP_LINEAR,
    CUDA_OP_LINEAR_WGMMA,
    CUDA_OP_LINEAR_RING,
    CUDA_OP_LINEAR_PLAIN,
    CUDA_OP_ELEMENTWISE,
    CUDA_OP_NORM,
    CUDA_OP_ROW_NORM,
    CUDA_OP_GLU,
    CUDA_OP_ROPE_STORE,
    CUDA_OP_ROPE_KVQ_STORE,
    CUDA_OP_ROPE_TABLE,
    CUDA_OP_ROPE,
    CUDA_OP_KV_STORE,
    CUDA_OP_KVQ_STORE,
    CUDA_OP_KVQ_EXPAND,
    CUDA_OP_ATTENTION,
    CUDA_OP_ATTENTION_PLAIN,
    CUDA_OP_BEST,
    CUDA_OP_SHORTLIST,
    CUDA_OP_ROUTE,
    CUDA_OP_GROUP,
    CUDA_OP_EXPERTS,
    CUDA_OP_COMBINE,
    CUDA_OP_CONV,
    CUDA_OP_DELTA_GATES,
    CUDA_OP_DELTA,
    CUDA_OP_COUNT
};

struct cuda_graph {
    uint64_t hash;
    size_t n;      /* bytes of commands; 0 = free */
    uint8_t *cmds; /* of the state's graph_cmds */
    void *exec;    /* NULL: there was no memory for it */
    int next;      /* the one that was run after it: looked at first */
};

/* Sequences of a step as kernels read them. */
struct cuda_plan {
    const struct seq_view *views; /* the caller's, and what they said */
    struct seq_view *copy;        /* [BACKEND_ROWS_MAX] */
    int n;
    int64_t rows;
    const struct cu_row *dev_rows;
    const struct cu_seq *dev_seqs;
    struct cu_seq *seqs; /* host, in the arena */
};

struct cuda_table {
    const float *inv_freq;
    float scale;
    int half;
    const int32_t *pos; /* device */
    int64_t rows;
    float *data;
    size_t bytes;
};

/* What stands between the kernels of a mixture of experts, of CUDA_ROW_CHUNK pairs. */
struct cuda_moe {
    uint8_t *block;
    size_t bytes;
    int64_t ff, width;
    float *gate, *up, *out, *w; /* [pairs][ff] [pairs][ff] [pairs][width] [pairs] */
    int32_t *ids, *list, *n_active;
    struct int4 *active; /* [BACKEND_EXPERTS_MAX] */
    uint32_t *flags;     /* [pairs] */
};

struct cuda_state {
    struct backend *host;
    bool is_plain;
    int device, arch, n_sm; /* arch: 90 = compute capability 9.0 */
    char numerics[32];
    void *stream;
    /* commands that are recorded and not yet run */
    uint8_t *cmds;
    size_t n_cmds;
    size_t last[CUDA_FUSED]; /* where the last ones begin, the latest first; SIZE_MAX: none */
    struct cuda_graph graphs[CUDA_GRAPHS];
    /* Commands of graphs, one behind the other; where there is no more room, from the start again in the place of the oldest. */
    uint8_t *graph_cmds;
    size_t graph_at; /* end of the latest ones */
    int graph_next;  /* the oldest graph */
    uint64_t
        seen[CUDA_SEEN]; /* hashes of lists that have no graph yet, at their rest by CUDA_SEEN */
    int graph_i;         /* the one that was run last */
    /* host arrays of the recorded commands: pinned memory and its image on the device. Page numbers grow downwards from there, so that the
     * arrays stand where they stood in the last step and one copy takes both. */
    uint8_t *arena, *dev_arena;
    size_t arena_used, arena_sent; /* bytes */
    size_t pages_used, pages_sent; /* bytes */
    uint8_t *arrays, *dev_arrays;  /* CUDA_PAGES_BYTES before the arena */
    struct seq_view *row_views;    /* [BACKEND_ROWS_MAX + 1] of attention_by_rows */
    /* what the commands since the last flush have in common */
    struct cuda_plan plans[CUDA_PLANS];
    int n_plans;
    struct cuda_table tables[CUDA_TABLES];
    int n_tables;
    const int32_t
        *pos_at; /* device array of the last positions, and where they stand in the arena */
    size_t pos_off;
    int64_t pos_n;
    /* device memory */
    uint32_t *flags,
        *host_flags; /* what a step says, CUDA_OUT_BYTES: [n_rows], at best_at the rows' best ranks [n_best][CU_BEST] */
    int n_rows;
    size_t best_at;
    int32_t *best_to; /* the caller's, filled when the step is waited for; NULL: none */
    int n_best;
    struct shortlist *lists;    /* [BACKEND_SHORTLISTS_MAX] */
    struct shortlist *lists_to; /* as best_to */
    int n_lists;
    uint16_t *xq
        [2]; /* bf16 activations of products, by turns: what a product makes may be the input of the next */
    int xq_i;
    int64_t xq_in; /* columns that each has room for */
    float *partial;
    struct cuda_moe moe;
    uint8_t *expanded; /* [expanded_bytes] a layer's quantised pages as f16 */
    size_t expanded_bytes;
    float *staging; /* pinned, [CUDA_STAGING] bytes */
    int64_t bytes;  /* taken from the device, all together */
    bool has_failed;
    struct err fault;
};

#define CUDA_STAGING ((size_t)64 << 20)

static inline struct cuda_state *cuda_of(const struct backend *be)
{
    return be->state;
}

/* Where the entries of sequences' page numbers are counted from. */
static inline const int32_t *cuda_pages(const struct cuda_state *st)
{
    return (const int32_t *)(const void *)st->dev_arena;
}

/* --- record.c --- */

enum err_code cuda_record_init(struct cuda_state *st, struct err *err) MUST_CHECK;
void cuda_record_release(struct cuda_state *st);
/* Add a command of n bytes, or make it a part of those before it. */
void cuda_add(struct cuda_state *st, enum cuda_op op, const void *params, size_t n);
/* ... as it is. */
void cuda_append(struct cuda_state *st, enum cuda_op op, const void *params, size_t n);
/* The parameters of the command i before the latest, if it is this op and was not run yet; else NULL. */
void *cuda_last(struct cuda_state *st, int i, enum cuda_op op);
/* Take the latest n commands back, which cuda_last has given. */
void cuda_drop(struct cuda_state *st, int n);
/* Run what is recorded. A fault is kept for wait. */
void cuda_flush(struct cuda_state *st);
/* ... and wait until it is done: the arenas are empty then. */
void cuda_sync(struct cuda_state *st);
/* Keep a fault: what was being done, and the runtime's error. */
void cuda_fault(struct cuda_state *st, const char *what, int error);
/* --- arrays.c --- */

/* Room for the arrays of one op: pointers that cuda_put and its like give stay good until the next call. */
void cuda_room(struct cuda_state *st);
/* A copy of n bytes for the commands that follow; returns its device address. *host (may be NULL): where it is here. */
const void *cuda_put(struct cuda_state *st, const void *data, size_t n, void **host);
/* Positions of rows; the same as the last ones are not copied again. */
const int32_t *cuda_put_pos(struct cuda_state *st, const int32_t *pos, int64_t n);
const struct cuda_plan *cuda_put_seqs(struct cuda_state *st, const struct seq_view *seqs, int n,
                                      int64_t rows);

/* --- backend.c --- */

/* Errors: ERR_NOMEM, with what is free. Zeroed; counted in the ledger (mem_device_bytes). */
void *cuda_take(struct cuda_state *st, enum mem_cat cat, size_t bytes, const char *what,
                struct err *err);
void cuda_give(struct cuda_state *st, enum mem_cat cat, void *p, size_t bytes);
/* Copy and wait until it is done; kind is a cudaMemcpyKind. Returns the runtime's error. */
int cuda_transfer(struct cuda_state *st, void *dst, const void *src, size_t bytes,
                  int kind) MUST_CHECK;
enum err_code cuda_reserve_rows(struct cuda_state *st, int64_t in, struct err *err) MUST_CHECK;

/* --- fuse.c --- */

/* Whether the command became a part of the latest ones. */
bool cuda_fuse(struct cuda_state *st, enum cuda_op op, const void *params);

/* --- pack.c --- */

bool cuda_supports(const struct backend *be, enum dtype type);
enum err_code cuda_pack(struct backend *be, const struct weight_source *src, struct weight **out,
                        struct err *err);
void cuda_unpack_free(struct backend *be, struct weight *w);
const struct weight_shape *cuda_shape(const struct weight *w);
size_t cuda_packed_bytes(const struct backend *be, const struct weight_source *src);

/* --- kvq_cache.c --- */

void cuda_kvq_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                    const struct seq_view *seqs, int n_seqs);
/* The layer's own pages, where attention of few rows reads them as they are. */
bool cuda_kvq_pages(struct backend *be, const struct kv_layer *kv, const struct attn_params *p,
                    struct cu_kv *out);
/* What the rows of sequences of more than n_few see of a quantised layer, as an f16 one that is good until the next. Its memory is taken
 * even if there are none, so that a first step of one token takes all there is to take. False: a fault. */
bool cuda_kvq_expand(struct backend *be, const struct kv_layer *kv, const struct seq_view *seqs,
                     int n_seqs, int64_t rows, int n_few, int32_t window, struct cu_kv *out);

/* --- moe.c --- */

bool cuda_moe(struct backend *be, struct tensor y, struct tensor x, struct tensor logits,
              const struct experts *e);
void cuda_moe_release(struct cuda_state *st);

/* --- ops.c --- */

static inline struct cu_tensor cu_of(struct tensor t)
{
    return (struct cu_tensor){ t.data, t.stride, (int)t.rows, (int)t.cols };
}
int cuda_act_of(enum glu_kind kind); /* enum cu_act */

extern const struct backend_ops cuda_ops_base; /* the ops; memory and order are backend.c's */
size_t cuda_kv_page_bytes(const struct backend *be, enum dtype type, int n_kv_heads, int head_dim);

#endif
