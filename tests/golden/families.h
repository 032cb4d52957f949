/* families.h - what transformers computes with a tiny random model of each family (families/NAME.json, written by
 * make_families.py), against ours. Part of the program golden. */
#ifndef PLUMB_TESTS_GOLDEN_FAMILIES_H
#define PLUMB_TESTS_GOLDEN_FAMILIES_H

#include <stdbool.h>

/* Run the models of families/ whose names are among names [n] (all if n = 0), in the order of their names, each printing a line:
 *
 *     family NAME: layers ERROR, logits ERROR, greedy EQUAL of ALL, directory FORM
 *
 * An error is the largest difference divided by the largest magnitude of the reference's numbers there. FORM: "the same bits" where
 * families/hf/NAME gives the logits of families/NAME.gguf, as it must; "none" where there is no such directory. A model without a
 * golden has the last part alone.
 */
void families_run(char *const *names, int n, int *n_passed, int *n_failed);

#endif
