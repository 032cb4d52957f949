/* families.h - what transformers computes with a tiny random model of each family (families/NAME.json, written by
 * make_families.py), against ours. Part of the program golden. */
#ifndef PLUMB_TESTS_GOLDEN_FAMILIES_H
#define PLUMB_TESTS_GOLDEN_FAMILIES_H

#include <stdbool.h>

/* Run the goldens of families/ whose names are among names [n] (all if n = 0), in the order of their names, each printing a line:
 *
 *     family NAME: layers ERROR, logits ERROR, greedy EQUAL of ALL
 *
 * An error is the largest difference divided by the largest magnitude of the reference's numbers there.
 * from: a folder whose NAME/ are Hugging Face directories to load instead of families/NAME.gguf; NULL = none. */
void families_run(const char *from, char *const *names, int n, int *n_passed, int *n_failed);

#endif
