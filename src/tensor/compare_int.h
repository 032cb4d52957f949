/* compare_int.h - what compare.c (backend services, results) and compare_ops.c (the ops) share. */
#ifndef PLUMB_TENSOR_COMPARE_INT_H
#define PLUMB_TENSOR_COMPARE_INT_H

#include "tensor/compare.h"

struct weight {
    struct weight *fast;
    struct weight_shape shape;
    struct weight_source source; /* for the oracle */
    void *copy;                  /* [copy_bytes] what source points to, or NULL: the file's bytes */
    size_t copy_bytes;
};

struct compare {
    struct backend_ops ops; /* the vtable, with what the fast backend lacks left out */
    struct backend *fast, *oracle;
    void (*on_op)(void *ctx, const struct compare_event *e);
    void *ctx;
    struct arena arena; /* copies of one op's outputs */
    int layer;
    int n_rows;         /* as begin said */
    enum err_code code; /* what an op could not do: wait tells */
    struct err err;
    struct compare_result results[COMPARE_OP_COUNT][DTYPE_COUNT + 1];
};

static inline struct compare *compare_of(const struct backend *be)
{
    return be->state;
}

/* A call under way. begin sets the step's allocation guard aside, end takes it back. */
struct compare_call {
    struct compare *c;
    struct compare_result *r;
    const char *name; /* of the weight */
    struct tensor y, want;
    int64_t n_different;
    int guard;
};

struct compare_call compare_begin(struct backend *be, enum compare_op op, enum dtype type,
                                  const char *name);
/* Begin a call whose result is y; want is a copy of it for the oracle. */
struct compare_call compare_begin_on(struct backend *be, enum compare_op op, struct tensor y);
void compare_end(struct compare_call *call);

/* Whether there is an oracle, and memory for it so far. */
static inline bool compare_is_on(const struct compare_call *call)
{
    return call->c->oracle && !call->c->code;
}

/* n bytes until the call's end. NULL: no memory, which wait will tell. */
void *compare_take(struct compare_call *call, size_t n);
/* A copy without gaps; data NULL where nothing is compared. */
struct tensor compare_copy(struct compare_call *call, struct tensor t);
/* An input as the oracle gets it: its copy of y where the op works in place. */
struct tensor compare_input(const struct compare_call *call, struct tensor x);
/* The oracle's packing of w, freed by the caller. NULL: wait will tell. */
struct weight *compare_pack(struct compare_call *call, const struct weight *w);

/* Compare results. Without an oracle only y's elements are counted. */
void compare_check(struct compare_call *call, struct tensor y, struct tensor want);
void compare_check_bytes(struct compare_call *call, const uint8_t *y, const uint8_t *want,
                         int64_t rows, int64_t cols);
void compare_check_ints(struct compare_call *call, const int32_t *y, const int32_t *want,
                        int64_t rows, int64_t cols);

extern const struct backend_ops compare_ops; /* compare_ops.c: the ops alone */

#endif
