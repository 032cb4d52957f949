/* oracle.h - what the weights of a file say when no activation is rounded (oracle/NAME.json, written by make_oracle.py), against
 * our logits at the same positions. Part of the program golden. */
#ifndef PLUMB_TESTS_GOLDEN_ORACLE_H
#define PLUMB_TESTS_GOLDEN_ORACLE_H

#include "json/json.h"

#define NEAR 0.1 /* two best logits nearer than this: either may be chosen (both oracles) */

struct oracle {
    const char *name;
    struct json_doc doc;
    int n, n_near, n_equal, n_known, n_wrong;
    double kl; /* sum over the positions, see oracle_position */
};

/* Read tests/golden/oracle/NAME.json. Release with oracle_release. Errors: those of reading. */
enum err_code oracle_init(struct oracle *o, const char *name, struct err *err) MUST_CHECK;
void oracle_release(struct oracle *o);

/* Compare our logits [n_vocab] at position pos of the answer to prompt text: our best id must be the oracle's, unless its own two
 * best are near or the position is a known miss. Counts, and prints what is wrong. */
void oracle_position(struct oracle *o, int text, int pos, const float *logits, int32_t n_vocab);

/* Print the counts. Did everything hold: no choice beyond the known misses, each of those still missed, divergence in bounds? */
bool oracle_finish(const struct oracle *o);

#endif
