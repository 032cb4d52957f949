/* hf.h - Hugging Face directories in GGUF's words: what a family says about its config.json and its tensors' names.
 *
 * A family is written against GGUF alone. When a directory is loaded, hf.c finds the map whose `names` hold config.json's
 * architectures[0] (or its model_type), gives the weights the keys and tensor names that the published converter would write, and
 * loading goes on as from a file. Rows of tables say what is a rule; `more` what is not. */
#ifndef PLUMB_MODEL_HF_H
#define PLUMB_MODEL_HF_H

#include "weights/weights_edit.h"

enum hf_transform {
    HF_TRANSFORM_NONE,
    HF_TRANSFORM_ADD_ONE, /* vector: x + 1 (norms of gemma) */
    HF_TRANSFORM_NEG_EXP, /* vector: -exp(x) (A_log of state layers) */
    HF_TRANSFORM_SQUEEZE, /* dimensions of 1 are left out ([C][1][K] convolutions) */
    HF_TRANSFORM_DROP,    /* known and not needed */
};

/* One name. %d stands for a number; the n-th of hf is the n-th of gguf. */
struct hf_name {
    const char *hf;   /* as in a text-only checkpoint: "model.layers.%d.self_attn.q_proj.weight" */
    const char *gguf; /* "blk.%d.attn_q.weight" */
    enum hf_transform transform;
};

/* ... of a layer, as most checkpoints spell it. */
#define HF_LAYER_AS(hf_, gguf_, transform_)                 \
    {                                                       \
        "model.layers.%d." hf_, "blk.%d." gguf_, transform_ \
    }
#define HF_LAYER(hf_, gguf_) HF_LAYER_AS(hf_, gguf_, HF_TRANSFORM_NONE)

/* One value of config.json that becomes the key ARCH.gguf. Paths with dots lead into objects. */
struct hf_key {
    const char *hf, *gguf;
};

struct hf {
    struct weights *w;
    const struct hf_map *map;
    /* private to hf.c: the tensors so far */
    struct weights_tensor *tensors;
    int32_t n, cap;
    int64_t n_nextn,
        nextn_first;    /* layers of a head for multi-token prediction, numbered so (hf_nextn.h) */
    bool is_generator;  /* the architecture has a vocabulary head */
    bool is_classifier; /* ... one for labels */
};

/* The tables end with a row of NULL. What is common to most families stands in hf.c and is looked at after a family's own. */
struct hf_map {
    const char *arch;  /* what general.architecture would be */
    const char *names; /* architectures[0] and model_type values, blanks between */
    const char *acts;  /* spellings of the family's activation, blanks between; NULL = silu */
    /* GGUF has rows of q and k so that rotary pairs are neighbours, the directory half a head apart */
    bool is_permuted;
    bool has_ropes;       /* `more` says the rotary keys */
    bool has_layer_types; /* `more` reads layer_types; else all must be full_attention */
    const struct hf_name *tensors;
    const struct hf_key *keys;
    const char *const
        *ignored; /* prefixes of tensors that are not loaded; NULL ends; may be NULL */
    enum err_code (*more)(struct hf *h,
                          struct err *err); /* keys that no table can say; may be NULL */
    /* Asked about every tensor before the tables (name as in a text-only checkpoint), for what a row cannot say: gives it names with the
     * hf_emit functions and sets *is_done, or leaves it. May be NULL */
    enum err_code (*take)(struct hf *h, const struct weights_tensor *t, const char *name,
                          bool *is_done, struct err *err);
};

/* config.json's value at the path, of text_config where there is one; NULL if absent or null. */
const struct meta_value *hf_config(const struct hf *h, const char *path);
/* The first of the paths (blanks between) that is there, as a number or text; the fallback where none is.
 * Errors: ERR_INVALID - another type or range, named. */
enum err_code hf_int(const struct hf *h, const char *paths, int64_t min, int64_t max,
                     int64_t fallback, int64_t *out, struct err *err) MUST_CHECK;
enum err_code hf_float(const struct hf *h, const char *paths, double fallback, double *out,
                       struct err *err) MUST_CHECK;
enum err_code hf_bool(const struct hf *h, const char *paths, bool fallback, bool *out,
                      struct err *err) MUST_CHECK;
enum err_code hf_str(const struct hf *h, const char *paths, const char *fallback, const char **out,
                     struct err *err) MUST_CHECK;
/* Whether layer i of layer_types is of the kind given; fallback where there is no such list. */
enum err_code hf_layer_is(const struct hf *h, int64_t i, const char *kind, bool fallback, bool *out,
                          struct err *err) MUST_CHECK;
/* attention.sliding_window, and attention.sliding_window_pattern (1 = the layer has the window) from layer_types, without it all
 * but every period-th (1: none). */
enum err_code hf_windows(struct hf *h, int64_t period, struct err *err) MUST_CHECK;

/* attention.sliding_window where it is shorter than the context: every layer has the window. For `more`. */
enum err_code hf_window(struct hf *h, struct err *err) MUST_CHECK;

/* Set ARCH.name. */
enum err_code hf_set_int(struct hf *h, const char *name, int64_t v, struct err *err) MUST_CHECK;
enum err_code hf_set_float(struct hf *h, const char *name, double v, struct err *err) MUST_CHECK;
enum err_code hf_set_bool(struct hf *h, const char *name, bool v, struct err *err) MUST_CHECK;
enum err_code hf_set_str(struct hf *h, const char *name, const char *v, struct err *err) MUST_CHECK;
enum err_code hf_set_ints(struct hf *h, const char *name, const int64_t *v, uint64_t n,
                          struct err *err) MUST_CHECK;

#define HF_NAME_MAX 256
/* Numbers of name at the pattern's %d (at most two): false = it is another name. */
bool hf_match(const char *pattern, const char *name, int64_t at[2], int *n);
/* Give the model the tensor under the GGUF name that the pattern and its numbers say. */
enum err_code hf_emit_as(struct hf *h, const struct weights_tensor *t, const char *gguf,
                         const int64_t at[2], int n, enum hf_transform transform,
                         struct err *err) MUST_CHECK;
/* n numbers (indexes of a layout, say) that live as long as the weights. NULL: no memory; *err says it. */
int32_t *hf_indexes(struct hf *h, int64_t n, struct err *err) MUST_CHECK;
struct weights_layout *hf_layout(struct hf *h, const struct weights_layout *l,
                                 struct err *err) MUST_CHECK;
/* A small tensor decoded to f32 in another order. t is [all][width]; what the model gets has n rows of these, row i the row rows[i]
 * (NULL: i), and is [n * width / cols][cols], or of one dimension (cols 0). */
struct hf_rows {
    const int32_t *rows;
    int64_t all, width, n, cols;
};
enum err_code hf_emit_rows(struct hf *h, const struct weights_tensor *t, const char *name,
                           const struct hf_rows *r, enum hf_transform transform,
                           struct err *err) MUST_CHECK;

/* q and k of maps with is_permuted; as hf_map.take. */
enum err_code hf_take_permuted(struct hf *h, const struct weights_tensor *t, const char *name,
                               bool *is_done, struct err *err) MUST_CHECK;
/* Give the model the tensor under that name: as it is, or changed. */
enum err_code hf_push(struct hf *h, const struct weights_tensor *t, const char *name,
                      struct err *err) MUST_CHECK;
enum err_code hf_emit(struct hf *h, const struct weights_tensor *t, const char *name,
                      enum hf_transform transform, struct err *err) MUST_CHECK;

/* Give the model a vector of our own making (copied) under a name of GGUF's. */
enum err_code hf_emit_vector(struct hf *h, const char *name, const float *v, int64_t n,
                             struct err *err) MUST_CHECK;

/* pooling_type, by the directory's 1_Pooling/config.json where it has modules.json; else nothing. For `more`.
 * Errors: ERR_UNSUPPORTED - a pooling or a module that is not known. */
enum err_code hf_pooling(struct hf *h, struct err *err) MUST_CHECK;

/* --- names, read either way (export.c) --- */
/* The pattern with its %d filled in. */
void hf_fill(const char *pattern, const int64_t at[2], int n, char out[HF_NAME_MAX]);
/* The tables that most families share; each ends with a row of NULL. */
const struct hf_name *hf_common_names(void);
const struct hf_key *hf_common_keys(void);

/* rotary keys and tensors (hf_rope.c). */
enum err_code hf_rope(struct hf *h, struct err *err) MUST_CHECK;
/* ... of layers with full attention in Gemma 4: of a head's pairs the first part turns, with frequencies of the whole head. */
enum err_code hf_rope_partial(struct hf *h, int64_t head_dim, struct err *err) MUST_CHECK;

#endif
