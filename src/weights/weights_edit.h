/* weights_edit.h - giving an opened directory the keys, names and shapes that families are written against.
 *
 * Only between weights_open and the first use by others: what was handed out before is not valid after. */
#ifndef PLUMB_WEIGHTS_WEIGHTS_EDIT_H
#define PLUMB_WEIGHTS_WEIGHTS_EDIT_H

#include "weights/weights.h"

/* Memory that lives as long as w, for names and for what is made from small tensors. NULL: no memory. */
void *weights_alloc(struct weights *w, size_t n) MUST_CHECK;
char *weights_strndup(struct weights *w, const char *s, size_t n) MUST_CHECK;

/* Add a key, or give it another value. What v points to lives as long as w (or is static); a string is copied.
 * Errors: ERR_INVALID - no room for another key, or not a key; ERR_NOMEM. */
enum err_code weights_set_meta(struct weights *w, const char *key, const struct meta_value *v,
                               struct err *err) MUST_CHECK;
enum err_code weights_set_int(struct weights *w, const char *key, int64_t v,
                              struct err *err) MUST_CHECK;
enum err_code weights_set_float(struct weights *w, const char *key, double v,
                                struct err *err) MUST_CHECK;
enum err_code weights_set_bool(struct weights *w, const char *key, bool v,
                               struct err *err) MUST_CHECK;
enum err_code weights_set_str(struct weights *w, const char *key, const char *v,
                              struct err *err) MUST_CHECK;
/* v[0..n) is copied. */
enum err_code weights_set_ints(struct weights *w, const char *key, const int64_t *v, uint64_t n,
                               struct err *err) MUST_CHECK;

/* Put other tensors in the place of all that are there: same tensors under other names, views, some left out, vectors made with
 * weights_alloc. The structs are copied; names and data live as long as w.
 * Errors: ERR_INVALID - a name occurs twice (text names it); ERR_NOMEM. */
enum err_code weights_set_tensors(struct weights *w, const struct weights_tensor *tensors,
                                  int32_t n, struct err *err) MUST_CHECK;

#endif
