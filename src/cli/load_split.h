/* load_split.h - which layers of a model a GPU takes: what they need there against what is free.
 *
 * Need is: packed weights and cache of the layers that the GPU has, the vocabulary's head, the step's buffers, and some room that graphs
 * and the driver take while it runs. What does not fit stays with the CPU: of a mixture of experts first the experts, of the first
 * layers on, then whole layers with what comes before them. */
#ifndef PLUMB_CLI_LOAD_SPLIT_H
#define PLUMB_CLI_LOAD_SPLIT_H

#include "model/model.h"

struct load_split_options {
    struct weights *weights;
    const struct backend *be; /* the GPU's */
    const char *gpu_layers;   /* --gpu-layers; NULL = "auto" */
    const char *cpu_experts;  /* --cpu-experts; NULL: as many as have to be */
    int64_t ctx, kv_memory;   /* 0 = not said */
    enum dtype cache_type;
    int step_rows;
    bool wants_head; /* as in struct load_options: its weights are counted, too */
};

struct load_split {
    int64_t n_host_layers, n_host_experts;
};

/* Where the flag says that no layer is the GPU's. */
bool load_split_is_none(const char *gpu_layers);

/* Errors: ERR_INVALID - a flag is neither a number nor "auto". */
enum err_code load_split_check(const char *gpu_layers, const char *cpu_experts,
                               struct err *err) MUST_CHECK;

/* Errors: ERR_NOMEM - it does not fit (need, have, remedies); ERR_INVALID - a flag; those of model_load. */
enum err_code load_split_plan(const struct load_split_options *o, struct load_split *out,
                              struct err *err) MUST_CHECK;

#endif
