#include "cli/inspect_groups.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* In the order in which they are shown. */
static const char *const group_names[] = { "embeddings",   "attention", "state layers", "mlp",
                                           "experts",      "routers",   "norms",        "head",
                                           "other inputs", "other" };

/* The first part of a name that is met says the group. Words with a dot in front begin a name's part. */
static const struct {
    const char *part;
    int group;
} group_rules[] = {
    { "visual.", 8 },
    { "vision", 8 },
    { "audio", 8 },
    { "multi_modal_projector", 8 },
    { "pooler.", 7 },
    { "norm", 6 },
    { "layer_scalar", 6 },
    { "layer_output_scale", 6 },
    { "LayerNorm", 6 },
    { "emb_ln", 6 },
    { "ffn_gate_inp", 5 },
    { "router", 5 },
    { "mlp.gate.weight", 5 },
    { "shared_expert_gate", 5 },
    { "block_sparse_moe.gate", 5 },
    { "_exps.", 4 },
    { "experts.", 4 },
    { "switch_mlp.", 4 },
    { "switch_glu.", 4 },
    { "ssm_", 2 },
    { "linear_attn.", 2 },
    { "attn_gate", 2 },
    { "rope_f", 1 },
    { "attn", 1 },
    { "attention.", 1 },
    { "per_layer", 0 }, /* Gemma 4's inputs of its layers */
    { "inp_gate", 0 },
    { ".proj.weight", 0 },
    { "ffn_", 3 },
    { "mlp.", 3 },
    { "intermediate.dense", 3 },
    { "output.dense", 3 },
    { "embed", 0 },
    { "embd", 0 },
    { "token_types", 0 },
    { "lm_head", 7 },
    { "output.weight", 7 },
    { "dense_", 7 },
    { "_Dense.", 7 },
};

struct group_total {
    int32_t n_tensors;
    uint64_t elems, bytes;
};

struct groups {
    struct group_total of[ARRAY_LEN(group_names)][DTYPE_COUNT];
};

uint64_t inspect_tensor_elems(const struct weights_tensor *t)
{
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

uint64_t inspect_tensor_bytes(const struct weights_tensor *t)
{
    const struct scales *s = &t->scales;
    if (!s->scales || s->cols < 1 || s->rows < 1)
        return t->bytes;
    uint64_t rows = inspect_tensor_elems(t) / (uint64_t)t->shape[0];
    uint64_t n = (rows + (uint64_t)s->rows - 1) / (uint64_t)s->rows *
                 (((uint64_t)t->shape[0] + (uint64_t)s->cols - 1) / (uint64_t)s->cols);
    return t->bytes + n * dtype_row_bytes(s->type, 1) * (s->biases ? 2 : 1);
}

static int group_of(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(group_rules); i++)
        if (strstr(name, group_rules[i].part))
            return group_rules[i].group;
    return ARRAY_LEN(group_names) - 1;
}

static void groups_sum(struct groups *g, const struct weights *w)
{
    memset(g, 0, sizeof(*g));
    for (int32_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        struct group_total *sum = &g->of[group_of(t->name)][t->type];
        sum->n_tensors++;
        sum->elems += inspect_tensor_elems(t);
        sum->bytes += inspect_tensor_bytes(t);
    }
}

static double group_bits(const struct group_total *t)
{
    return t->elems ? 8.0 * (double)t->bytes / (double)t->elems : 0;
}

void inspect_groups_print(const struct weights *w)
{
    struct groups g;
    groups_sum(&g, w);
    printf("\ngroups\n  %-13s %-8s %8s %14s %14s %7s\n", "", "type", "tensors", "elements", "bytes",
           "bits");
    for (size_t i = 0; i < ARRAY_LEN(group_names); i++) {
        const char *name = group_names[i];
        for (int t = 0; t < DTYPE_COUNT; t++) {
            const struct group_total *sum = &g.of[i][t];
            if (!sum->n_tensors)
                continue;
            printf("  %-13s %-8s %8d %14" PRIu64 " %14" PRIu64 " %7.3f\n", name,
                   dtype_info((enum dtype)t)->name, sum->n_tensors, sum->elems, sum->bytes,
                   group_bits(sum));
            name = "";
        }
    }
}

void inspect_groups_json(struct json_writer *j, const struct weights *w)
{
    struct groups g;
    groups_sum(&g, w);
    json_field_object(j, "groups");
    for (size_t i = 0; i < ARRAY_LEN(group_names); i++) {
        bool is_open = false;
        for (int t = 0; t < DTYPE_COUNT; t++) {
            const struct group_total *sum = &g.of[i][t];
            if (!sum->n_tensors)
                continue;
            if (!is_open)
                json_field_object(j, group_names[i]);
            is_open = true;
            json_field_object(j, dtype_info((enum dtype)t)->name);
            json_field_int(j, "tensors", sum->n_tensors);
            json_field_uint(j, "elements", sum->elems);
            json_field_uint(j, "bytes", sum->bytes);
            json_field_double(j, "bits", group_bits(sum));
            json_end_object(j);
        }
        if (is_open)
            json_end_object(j);
    }
    json_end_object(j);
}
