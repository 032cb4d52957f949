/* route.h - which experts a row goes to, and with what weights.
 *
 * The same function serves every backend on the host, as a row's few hundred numbers cost nothing beside its experts. */
#ifndef PLUMB_TENSOR_ROUTE_H
#define PLUMB_TENSOR_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

enum route_kind {
    ROUTE_KIND_SOFTMAX,      /* scores are the softmax of all logits; the chosen ones are weights */
    ROUTE_KIND_SOFTMAX_USED, /* the softmax of the chosen logits alone */
    ROUTE_KIND_SIGMOID,      /* each score by itself */
};

struct route {
    enum route_kind kind;
    int n_used;     /* experts of a row, 1..BACKEND_EXPERTS_MAX */
    bool is_normed; /* weights are divided by their sum */
    float scale;    /* then multiplied by this */
    const float
        *bias; /* [E] or NULL, host memory: added to the scores for the choice alone (SIGMOID) */
};

/* logits [n], n <= BACKEND_EXPERTS_MAX. ids, w [n_used]: the experts with the largest scores (of equal ones those with lower
 * ids), ids ascending. Sums go by ascending ids. A NaN is chosen last; ids are good whatever the logits are. */
void route_row(const struct route *r, const float *logits, int n, int32_t *ids, float *w);

#endif
