/* projected.h - drafters that read hidden states (projected/NAME, written by make_projected.py) against the published code. Part of the
 * program golden. */
#ifndef PLUMB_TESTS_GOLDEN_PROJECTED_H
#define PLUMB_TESTS_GOLDEN_PROJECTED_H

/* Run those whose names are among names [n] (all if n = 0), in the order of their names, each printing a line, and another one for NAME.gguf
 * where llama.cpp's converter has made that:
 *
 *     projected NAME: logits ERROR, confidence ERROR, guesses EQUAL of ALL
 *
 * The first error is of the block's logits and of what the head makes of them, relative to the largest of these; the second is a probability's.
 * Both must be under 1e-5, and the guesses must be the published ones twice: picked here, and by the drafter as the engine asks it. */
void projected_run(char *const *names, int n, int *n_passed, int *n_failed);

#endif
