/* compare.h - a backend that runs every op on two others with the same inputs and compares what they give, bit by bit; with one
 * of them missing, a backend that only tells of each op (a trace).
 *
 * A model runs on it as on any other. The fast backend's results go on, so that each op is judged alone: a wrong one is told once,
 * by name, and what follows is compared on the inputs that it made. The oracle gets copies of what an op changes.
 *
 * Owns: both backends, from compare_backend_open on. Need: both are host backends whose cache pages have the same bytes (ref and
 * the CPU's). A device has a contract and an oracle of its own.
 * Memory: beside the fast backend's, the oracle's packing of one weight at a time: weights are packed for it at each use, from the
 * file's bytes (sources with a drop), which must stay open as long as the backend, or from a copy of what was made for packing
 * alone (sources without); and copies of one op's outputs.
 * Thread: engine thread. Allocates in steps. */
#ifndef PLUMB_TENSOR_COMPARE_H
#define PLUMB_TENSOR_COMPARE_H

#include "tensor/backend.h"

enum compare_op {
    COMPARE_OP_EMBED,
    COMPARE_OP_LINEAR, /* linear_many too, each of its products */
    COMPARE_OP_ADD_BIAS,
    COMPARE_OP_RMS_NORM,
    COMPARE_OP_LAYER_NORM,
    COMPARE_OP_L2_NORM,
    COMPARE_OP_ROPE,
    COMPARE_OP_KV_STORE,
    COMPARE_OP_KV_COPY_PAGE,
    COMPARE_OP_ATTENTION,
    COMPARE_OP_GLU,
    COMPARE_OP_ACT,
    COMPARE_OP_ADD,
    COMPARE_OP_SCALE,
    COMPARE_OP_SOFTCAP,
    COMPARE_OP_COPY,
    COMPARE_OP_GATE_ROWS,
    COMPARE_OP_ROOT_DOTS,
    COMPARE_OP_GATHER,
    COMPARE_OP_SCATTER_ADD,
    COMPARE_OP_ROUTE,
    COMPARE_OP_CONV_SILU,
    COMPARE_OP_DELTA_GATES,
    COMPARE_OP_DELTA_RULE,
    COMPARE_OP_STATE_COPY,
    COMPARE_OP_FAILED, /* the rows' flags */
    COMPARE_OP_EXP_SCALED,
    COMPARE_OP_ARGMAX,
    COMPARE_OP_COUNT
};

const char *compare_op_name(enum compare_op op);

#define COMPARE_NAME_MAX 96

/* Where two results differ first. */
struct compare_diff {
    int64_t call;                 /* of this op and type, from 1 */
    int layer;                    /* as compare_set_layer said */
    int64_t rows, cols, row, col; /* of the result: its shape, the element's place */
    float fast, oracle;           /* values; bytes of cache pages as numbers */
    char name[COMPARE_NAME_MAX];  /* of the weight, "" where the op has none */
};

/* One op on one type of weight or cache (DTYPE_COUNT: it has none), all calls together. */
struct compare_result {
    enum compare_op op;
    enum dtype type;
    int64_t n_calls, n_elements, n_different;
    double max_diff; /* largest |fast - oracle|; infinity where one is finite and the other not */
    struct compare_diff first; /* where n_different > 0 */
};

/* One call that has ended. */
struct compare_event {
    enum compare_op op;
    enum dtype type;
    int layer;
    const char *name;    /* as in compare_diff */
    struct tensor y;     /* the fast backend's result; data NULL where it is no matrix of numbers */
    int64_t n_different; /* 0 without an oracle */
};

struct compare_options {
    struct backend *fast;
    struct backend *oracle;                                  /* NULL: nothing is compared */
    void (*on_op)(void *ctx, const struct compare_event *e); /* may be NULL */
    void *ctx;
};

/* On failure the caller keeps both. Errors: ERR_UNSUPPORTED - a backend that is no host's. */
enum err_code compare_backend_open(const struct compare_options *o, struct backend **out,
                                   struct err *err) MUST_CHECK;

/* What is told from now on is of this layer; a number of layers and up: behind them. */
void compare_set_layer(struct backend *be, int layer);

/* The i-th op and type that was called, by op, then type; NULL past the last. Borrowed until the next op. */
const struct compare_result *compare_result_at(const struct backend *be, int i);

#endif
