/* mtp.h - heads for multi-token prediction against the published maths (mtp/NAME.json, written by make_mtp.py). Part of the program
 * golden. */
#ifndef PLUMB_TESTS_GOLDEN_MTP_H
#define PLUMB_TESTS_GOLDEN_MTP_H

/* Run the models of mtp/ whose names are among names [n] (all if n = 0), each printing a line:
 *
 *     head NAME: logits ERROR, guesses EQUAL of ALL, with our states EQUAL of ALL, directory FORM
 *
 * Logits: of the head given the reference's states, as families.h counts errors. Guesses: ids that the head makes one after another, from
 * the reference's states and then from those that our model has of the prompt. FORM as in families.h, of the head's logits. */
void mtp_run(char *const *names, int n, int *n_passed, int *n_failed);

#endif
