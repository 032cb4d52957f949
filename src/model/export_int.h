/* export_int.h - what export's files share. */
#ifndef PLUMB_MODEL_EXPORT_INT_H
#define PLUMB_MODEL_EXPORT_INT_H

#include "model/export.h"
#include "model/hf.h"

/* ARCH.name's value; NULL if absent. */
const struct meta_value *export_meta(const struct export *x, const char *name);
/* As a number of one layer or of all; the fallback where it is absent or of another kind. */
int64_t export_int(const struct export *x, const char *name, int64_t fallback);
double export_float(const struct export *x, const char *name, double fallback);

bool export_is_mlx(const struct export *x);
/* Layers of the model, without those of a head for multi-token prediction, which are numbered behind them. */
int64_t export_trunk(const struct export *x);

/* --- tensors --- */

/* Add one that is src whole, under a name that is copied; what differs is set in *out, which stands until the next one is added. */
enum err_code export_add(struct export *x, const struct weights_tensor *src, const char *name,
                         struct recode **out, struct err *err) MUST_CHECK;
/* A further part, behind those there are. */
enum err_code export_add_part(struct export *x, struct recode *r, const struct weights_tensor *src,
                              struct err *err) MUST_CHECK;
/* Add the matrices of all experts of a layer as one stack. t: the first; single: their pattern. */
enum err_code export_stack(struct export *x, const struct weights_tensor *t, int64_t layer,
                           const char *single, const char *name, struct err *err) MUST_CHECK;
/* n numbers for rows and runs. NULL: no memory; *err says it. */
int32_t *export_indexes(struct export *x, int64_t n, struct err *err);
/* The pattern with its one number filled in. */
void export_fill(const char *pattern, int64_t layer, char out[HF_NAME_MAX]);
/* The tensor of GGUF's under the pattern; NULL if absent. */
const struct weights_tensor *export_find(const struct export *x, const char *pattern,
                                         int64_t layer);
/* The row of the tables that makes this name, the family's own first. */
const struct hf_name *export_row(const struct export *x, const char *name, int64_t at[2], int *n);
enum err_code export_unknown(const struct export *x, const struct weights_tensor *t,
                             struct err *err);

/* What rows of tables cannot say: sets *is_done, or leaves the tensor. */
typedef enum err_code (*export_give_fn)(struct export *x, const struct weights_tensor *t,
                                        bool *is_done, struct err *err);
enum err_code export_experts(struct export *x, const struct weights_tensor *t, bool *is_done,
                             struct err *err) MUST_CHECK; /* export_experts.c */
enum err_code export_delta(struct export *x, const struct weights_tensor *t, bool *is_done,
                           struct err *err) MUST_CHECK; /* export_delta.c; hybrids alone */
/* A classifier's head, of any family, and what config.json says of it (export_classifier.c). */
enum err_code export_classifier(struct export *x, const struct weights_tensor *t, bool *is_done,
                                struct err *err) MUST_CHECK;
bool export_is_classifier(const struct export *x);
/* The class's name instead of the family's. NULL: no memory; *err says it. */
const char *export_classifier_class(struct export *x, const char *class, struct err *err);
enum err_code export_labels(struct export *x, struct err *err) MUST_CHECK;

/* --- the values of config.json (export_config.c, export_family.c, export_rope.c) --- */

/* What config.json calls an architecture. variant: the key whose presence makes it this row; rows with one come first. */
struct export_family {
    const char *arch, *variant;
    const char *class, *type, *act;
    enum err_code (*more)(struct export *x, struct err *err);
};
/* Of architectures whose names are not as everywhere. */
struct export_naming {
    const char *arch;
    const char *mlx_type; /* what mlx-lm calls it; NULL: the same */
    const char *prefix;   /* of the tensors' names in MLX directories; NULL: none */
    bool is_bare;         /* tensors' names begin without "model." */
};
const struct export_naming *export_naming_of(const struct export *x); /* NULL: as everywhere */
/* More of a family (export_family.c). */
enum err_code export_gemma4(struct export *x, struct err *err);
enum err_code export_gpt_oss(struct export *x, struct err *err);
enum err_code export_hybrid(struct export *x, struct err *err);
enum err_code export_bert(struct export *x, struct err *err);
enum err_code export_nomic(struct export *x, struct err *err);

/* layer_types: the file's pattern, without one all but every period-th have the window; sliding_window. */
enum err_code export_windows(struct export *x, int64_t fallback, int64_t period,
                             struct err *err) MUST_CHECK;
/* decoder_sparse_step, mlp_only_layers: every layer has experts. */
enum err_code export_sparse(struct export *x, struct err *err) MUST_CHECK;
/* n texts; borrowed. */
enum err_code export_set_strs(struct export *x, const char *path, const struct meta_str *strs,
                              int64_t n, struct err *err) MUST_CHECK;

enum err_code export_config(struct export *x, struct err *err) MUST_CHECK;
enum err_code export_rope(struct export *x, struct err *err) MUST_CHECK;
enum err_code export_set(struct export *x, const char *path, const struct meta_value *v,
                         struct err *err) MUST_CHECK;
enum err_code export_set_int(struct export *x, const char *path, int64_t v,
                             struct err *err) MUST_CHECK;
/* The shortest decimal that is v as f32: 1e-05 and not 9.999999747378752e-06. */
enum err_code export_set_float(struct export *x, const char *path, double v,
                               struct err *err) MUST_CHECK;
enum err_code export_set_bool(struct export *x, const char *path, bool v,
                              struct err *err) MUST_CHECK;
enum err_code export_set_str(struct export *x, const char *path, const char *v,
                             struct err *err) MUST_CHECK;
enum err_code export_set_null(struct export *x, const char *path, struct err *err) MUST_CHECK;
enum err_code export_set_floats(struct export *x, const char *path, const float *v, int64_t n,
                                struct err *err) MUST_CHECK;

#endif
