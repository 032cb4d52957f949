/* export.h - an opened model's tensors and keys as another kind of model file has them: what a converter writes.
 *
 * GGUF's side comes from a directory that model_adapt has translated, Hugging Face's side from a GGUF file, by the tables of hf.h read
 * the other way. Types are the caller's business. Does not know: files, JSON, tokenizers. */
#ifndef PLUMB_MODEL_EXPORT_H
#define PLUMB_MODEL_EXPORT_H

#include "weights/recode.h"

/* A value of config.json. Dots lead into objects: "rope_scaling.factor"; those of one object stand together. */
struct export_value {
    const char *path;
    bool is_null;
    struct meta_value v; /* numbers are I64 or F64 */
};

enum export_flags {
    /* names and layouts that mlx-lm makes of the published ones: experts are stacks, norms as they are computed with */
    EXPORT_FLAG_MLX = 1 << 0,
    EXPORT_FLAG_MXFP4 =
        1 << 1, /* what is MXFP4 stays it, where the family's directories can have it */
};

struct export
{
    const struct weights *w;
    struct recode *tensors; /* [n_tensors]; type is the source's still */
    int32_t n_tensors;
    struct export_value *values; /* [n_values]; of Hugging Face's side alone */
    int32_t n_values;
    /* private to export*.c */
    const struct hf_map *map;
    const char *arch;
    unsigned flags; /* enum export_flags */
    struct arena arena;
    int32_t cap;
};

/* Tensors under GGUF's names, experts stacked. Need: model_adapt was called
 * on w, which is a directory. Release with export_release, also after an error.
 * Errors: ERR_UNSUPPORTED, ERR_INVALID - name the tensor; ERR_NOMEM. */
enum err_code export_gguf(struct export *x, const struct weights *w, struct err *err) MUST_CHECK;

/* Tensors and config.json as Hugging Face has them. flags: enum export_flags. Need: w is a GGUF file, or a directory that model_adapt was
 * called on. Errors: ERR_UNSUPPORTED - the architecture has no table, or a key or tensor that the directory could not say; named; ERR_NOMEM. */
enum err_code export_hf(struct export *x, const struct weights *w, unsigned flags,
                        struct err *err) MUST_CHECK;

/* Whether what a directory says, once adapted, is what the GGUF file said: names, shapes, and the values of all keys that both have.
 * Errors: ERR_INVALID - the first that differs. */
enum err_code export_check(const struct weights *gguf, const struct weights *dir,
                           struct err *err) MUST_CHECK;

void export_release(struct export *x); /* fine on a zeroed one */

#endif
