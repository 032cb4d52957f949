/* ref.h - the reference backend: plain C for every op, the oracle that every other variant is compared with, bit for bit.
 *
 * Complete, single-threaded and boring: it keeps a copy of a weight's rows as the file has them and decodes them at use. The
 * arithmetic that it spells out is the contract; docs/numerics.md says the same in words. */
#ifndef PLUMB_KERNELS_REF_REF_H
#define PLUMB_KERNELS_REF_REF_H

#include "tensor/backend.h"

/* Out:    *out, closed by its ops->close. Memory is host memory.
 * Errors: ERR_NOMEM. */
enum err_code ref_backend_open(struct backend **out, struct err *err) MUST_CHECK;

#endif
