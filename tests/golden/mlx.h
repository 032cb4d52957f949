/* mlx.h - tiny MLX-quantised directories (mlx/NAME, written by mlx-lm and make_models.py) against mlx-lm's answers and two judges.
 * Part of the program golden. */
#ifndef PLUMB_TESTS_GOLDEN_MLX_H
#define PLUMB_TESTS_GOLDEN_MLX_H

/* Run those whose names are among names [n] (all if n = 0), in the order of their names, each printing a line:
 *
 *     mlx NAME: greedy EQUAL of ALL as mlx-lm (the others at gaps of GAPS), KL NUMBER from the judge; from it with 8-bit inputs ERROR,
 *     ROWS rows the same
 *
 * A greedy id may differ only where the judge's own two best are nearer than 0.1, where ours is the judge's (mlx-lm computes in the
 * dtype of the scales), or where rounding the inputs of products to 8 bits, and nothing else, gives our id. ERROR: the largest
 * difference of a logit from the judge that rounds so, divided by the largest logit: it shows that this is all that we do otherwise. */
void mlx_run(char *const *names, int n, int *n_passed, int *n_failed);

#endif
