/* tmpl_big.h - integers outside int64: add, subtract, multiply, divide on decimal digits, up to TMPL_DIGITS_MAX of them. */
#ifndef PLUMB_TEMPLATE_TMPL_BIG_H
#define PLUMB_TEMPLATE_TMPL_BIG_H

#include "template/template_int.h"

/* x op y for integers of any size (op as enum op_kind). Errors: ERR_INVALID - division by zero, too many digits. */
enum err_code tmpl_big_binary(struct env *e, int op, const struct value *x, const struct value *y,
                              bool is_caller, struct value *out);
enum err_code tmpl_big_pow(struct env *e, int64_t base, int64_t power, bool is_caller,
                           struct value *out);

#endif
