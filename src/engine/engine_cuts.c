/* engine_cuts.c - where in a prompt ends are kept, for layers that have a window or a state: its chunks are cut there. */
#include "engine/engine_int.h"

#define CUT_DISTANCE \
    1024 /* from the prompt's end, of the first of those that nobody asked for; it doubles back */

/* In order, once. False: it is too early in the prompt, or all places are taken. */
static bool cut_add(struct row *row, int32_t at)
{
    int32_t i = 0;
    if (at >= row->n_prompt) /* the last id is taken again: it gives the next token */
        at = row->n_prompt - 1;
    if (at < ENGINE_CUT_LEAST || row->n_cuts == ENGINE_CUTS_MAX)
        return false;
    while (i < row->n_cuts && row->cuts[i] < at)
        i++;
    if (i < row->n_cuts && row->cuts[i] == at)
        return true;
    for (int32_t k = row->n_cuts++; k > i; k--)
        row->cuts[k] = row->cuts[k - 1];
    row->cuts[i] = at;
    return true;
}

void engine_cuts_choose(const struct engine_model *em, struct row *row,
                        const struct engine_request *req)
{
    row->n_cuts = 0;
    if (!em->base.info.keeps_ends || row->ids_max == row->n_prompt || row->n_scored < row->n_prompt)
        return;
    if (req->n_begun > 0) /* the one that had begun it kept them */
        return;
    for (int32_t i = req->n_cuts; i-- > 0;)
        cut_add(row, req->cuts[i]);
    if (req->n_cuts == 0) /* the same again: what stands behind it costs one block of rows */
        cut_add(row, (row->n_prompt - 1) / ENGINE_MODEL_BLOCK * ENGINE_MODEL_BLOCK);
    row->cut_to_disk = row->n_cuts > 0 ? row->cuts[row->n_cuts - 1] : 0;
    for (int32_t d = CUT_DISTANCE; d < row->n_prompt && cut_add(row, row->n_prompt - d); d *= 2)
        ;
}

int32_t engine_cuts_next(const struct row *row)
{
    int32_t i = 0;
    while (i < row->n_cuts && row->cuts[i] <= row->n_fed)
        i++;
    return i < row->n_cuts ? row->cuts[i] : INT32_MAX;
}

bool engine_cuts_is_at(const struct row *row)
{
    for (int32_t i = 0; i < row->n_cuts; i++)
        if (row->cuts[i] == row->n_fed)
            return true;
    return false;
}
