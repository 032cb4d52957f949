/* lab.h - a model on the fast backend with a runner of one sequence, as the programs of this directory compute with. */
#ifndef PLUMB_TESTS_GOLDEN_LAB_H
#define PLUMB_TESTS_GOLDEN_LAB_H

#include "engine/runner.h"
#include "weights/weights.h"
#include "json/json.h"

struct golden_lab {
    struct backend *be;
    struct weights *weights;
    struct model *model;
    struct runner *runner;
};

/* sizes: n_ctx and what else the caller wants of the runner; model and max_seqs are set here. The file may be a directory.
 * Errors: those of opening; *lab is closed then. */
enum err_code golden_lab_open(struct golden_lab *lab, const char *path,
                              const struct runner_options *sizes, struct err *err) MUST_CHECK;
void golden_lab_close(struct golden_lab *lab); /* fine on a zeroed lab; twice too */

/* A number of a golden. */
double golden_number(const struct json *v);
/* Largest difference of x [n] from the numbers of a golden's row, relative to the largest of these; INFINITY: there are not n, or one of the
 * differences is no number. */
double golden_row_error(const struct json *row, const float *x, int64_t n);

#endif
