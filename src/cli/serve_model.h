/* serve_model.h - a loaded model with its chat template, in the form that the server takes: for the verbs serve and chat. */
#ifndef PLUMB_CLI_SERVE_MODEL_H
#define PLUMB_CLI_SERVE_MODEL_H

#include "cli/load.h"
#include "server/server.h"

struct serve_model {
    struct load_options options;
    const char *template_path; /* NULL: the model file's own */
    int32_t max_rows;
    struct load_engine_options keep; /* histories */
    /* private to serve_model.c from here */
    struct load load;
    struct template *chat_template;
};

/* Load and fill out, whose engine is given away. m must stay until serve_model_close. Thread: the engine thread.
 * Errors: of loading; a chat template that cannot be parsed (names its line). */
enum err_code serve_model_open(struct serve_model *m, struct server_model *out,
                               struct err *err) MUST_CHECK;
/* What the model's makers advise (GGUF general.sampling.*, a directory's generation_config.json); what they do not say is unset. Errors: a value of a wrong type. */
enum err_code serve_model_sampling(const struct weights *w, struct server_sampling *s,
                                   struct err *err) MUST_CHECK;
/* For server_config.now: the time that templates see (load_template.h). */
int64_t serve_model_now(void *arg);

void serve_model_close(
    struct serve_model *m); /* after the engine is freed; fine on a zeroed struct */

#endif
