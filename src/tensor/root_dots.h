/* root_dots.h - signed roots of dots of activations, by rows: what gates n-gram embeddings (backend.h, root_dots).
 *
 * The same function serves every backend on the host: a row has a dot for each residual stream, beside matrices of as many columns. */
#ifndef PLUMB_TENSOR_ROOT_DOTS_H
#define PLUMB_TENSOR_ROOT_DOTS_H

#include "tensor/backend.h"

/* y [T][J], a and b [T][J*n]. A dot is 16 fused chains, chain i over the columns i, i + 16, ..., which are then added as those of a norm. */
void root_dots(struct tensor y, struct tensor a, struct tensor b, float scale);

#endif
