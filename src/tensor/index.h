/* index.h - which keys a row of sparse attention sees: the work of the ops index_add and index_pick (backend.h) on the host.
 *
 * Keys stand in blocks of `ratio` positions. A complete block has one pooled key, made once from its positions' raw keys; a row scores the
 * complete blocks it sees and picks the best, beside the positions behind the last of them. Everything is a function of the row's own
 * sequence up to it: pooled keys are made again when a block's positions are written again. */
#ifndef PLUMB_TENSOR_INDEX_H
#define PLUMB_TENSOR_INDEX_H

#include "tensor/backend.h"

size_t index_page_floats(const struct index_layer *ix);

int index_add_rows(struct tensor means, int32_t *first, struct tensor k, struct index_layer *ix,
                   const struct seq_view *seqs, int n_seqs);
/* be: for its threads. A dot is 16 chains of rounded products, chain i over the numbers i, i + 16, ..., which are then added as those of a
 * norm; a block's score is the sum over the heads, in their order, of what of their dots is over 0; of equal scores the earlier block wins. */
bool index_pick_rows(struct backend *be, uint64_t *picked, int64_t stride, struct tensor q,
                     struct tensor means, struct index_layer *ix, const struct index_pick *p,
                     float *scores, const struct seq_view *seqs, int n_seqs);

#endif
