#include "lab.h"

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

enum err_code golden_lab_open(struct golden_lab *lab, const char *path,
                              const struct runner_options *sizes, struct err *err)
{
    struct runner_options o = *sizes;
    *lab = (struct golden_lab){ 0 };
    enum err_code code = weights_open(path, &lab->weights, err);
    if (!code)
        code = model_adapt(lab->weights, err);
    if (!code)
        code = cpu_backend_open(NULL, &lab->be, err);
    if (!code)
        code = model_load(&(struct model_load_options){ .weights = lab->weights, .be = lab->be },
                          &lab->model, err);
    o.model = lab->model;
    o.max_seqs = 1;
    if (!code)
        code = runner_new(&o, &lab->runner, err);
    if (code)
        golden_lab_close(lab);
    return code;
}

void golden_lab_close(struct golden_lab *lab)
{
    runner_free(lab->runner);
    model_free(lab->model);
    if (lab->weights)
        weights_close(lab->weights);
    if (lab->be)
        lab->be->ops->close(lab->be);
    *lab = (struct golden_lab){ 0 };
}

double golden_number(const struct json *v)
{
    return strtod(v->text, NULL);
}

double golden_row_error(const struct json *row, const float *x, int64_t n)
{
    double most = 0, diff = 0;
    if (row->n != (size_t)n)
        return INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double v = golden_number(&row->items[i]), d = fabs(v - (double)x[i]);
        most = fmax(most, fabs(v));
        diff = d > diff || isnan(d) ? d : diff;
    }
    return isnan(diff) ? INFINITY : diff / most;
}
