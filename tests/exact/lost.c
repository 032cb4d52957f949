/* lost.c - the schedule in which a GPU is lost: an address that is none, which no context survives. */
#include "lab_int.h"

#include <string.h>

enum err_code lab_restore(void *ctx, struct err *err)
{
    struct lab *lab = ctx;
    model_unload(lab->model);
    enum err_code code = lab->be->ops->reset(lab->be, err);
    return code ? code : model_reload(lab->model, &lab->load, err);
}

/* A step of another row, whose kernels come behind one that writes where nothing is. */
static enum err_code lose(struct lab *lab, const struct exact_request *req, struct err *err)
{
    static struct exact_request lead;
    struct runner_row row;
    struct engine_result res;
    struct tensor nowhere = { .data = (float *)(uintptr_t)4096, .rows = 1, .cols = 1, .stride = 1 };
    lead = *req;
    request_make_leader(&lead.engine);
    enum err_code code = row_grow(lab, &row, row_open(lab, &lead, &row, err), err);
    struct engine_work work = { .row = row.row, .n_tokens = 5 };
    lab->be->ops->scale(lab->be, nowhere, 2);
    if (!code)
        code = lab->engine->ops->step(lab->engine, &work, 1, &res, err);
    if (code == ERR_LOST)
        code = lab->engine->ops->mend(lab->engine, err);
    else
        code =
            err_set(err, ERR_STATE, "the device was not lost: %s", code ? err->text : "no error");
    row_close(lab, &row);
    return code ? code : runner_check(engine_model_runner(lab->engine), err);
}

enum err_code lost_run(struct lab *lab, const struct exact_request *req, struct buf *record,
                       struct err *err)
{
    struct runner_row row;
    struct engine_result res = { 0 };
    int n_steps = 0, lost_at = 3;
    enum err_code code = row_grow(lab, &row, row_open(lab, req, &row, err), err);
    while (!code && res.finish == FINISH_NONE) {
        if (n_steps++ == lost_at) {
            code = lose(lab, req, err);
            row.pending = req->engine.n_prompt + row.n_emitted;
            if (!code)
                code = row_begin(lab, &row, err);
        }
        struct engine_work work = { .row = row.row, .n_tokens = 30 };
        if (!code)
            code = lab->engine->ops->step(lab->engine, &work, 1, &res, err);
        if (!code)
            row_take(lab, &row, &res, record);
    }
    row_close(lab, &row);
    return code;
}
