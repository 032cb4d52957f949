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

/* The values of config.json (export_config.c, export_rope.c). */
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
