#include "cli/serve_model.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/load_template.h"

#include <math.h>
#include <string.h>

#define TEMPLATE_BYTES_MAX (4 << 20)

/* What the template's text tells beside what it renders. */
static void serve_model_read_template(const struct serve_model *m, const char *text,
                                      struct server_model *out)
{
    out->knows_developer = strstr(text, "'developer'") || strstr(text, "\"developer\"");
    split_style_init(&out->style, text, m->load.tokenizer);
    log_info("server", "tool calls: %s; reasoning: %s", split_style_name(&out->style),
             out->style.thought ? out->style.thought->open : "none");
}

/* The template of --chat-template. */
static enum err_code serve_model_file_template(struct serve_model *m, struct server_model *out,
                                               struct err *err)
{
    struct buf text;
    buf_init(&text, MEM_CAT_TEMPLATE, TEMPLATE_BYTES_MAX);
    enum err_code code = file_read(m->template_path, &text, err);
    if (code == ERR_OK)
        code = template_parse(m->template_path, text.data, text.len, &m->chat_template, err);
    out->chat_template = m->chat_template;
    serve_model_read_template(m, text.data, out);
    buf_release(&text);
    return code;
}

static enum err_code serve_model_template(struct serve_model *m, struct server_model *out,
                                          struct err *err)
{
    const char *text;
    if (m->template_path)
        return serve_model_file_template(m, out, err);
    enum err_code code = load_chat(&m->load, err);
    if (code != ERR_OK || !m->load.chat_template)
        return code;
    out->chat_template = m->load.chat_template;
    code = weights_str(m->load.weights, "tokenizer.chat_template", &text, err);
    if (code == ERR_OK)
        serve_model_read_template(m, text, out);
    return code;
}

enum err_code serve_model_sampling(const struct weights *w, struct server_sampling *s,
                                   struct err *err)
{
    const struct {
        const char *key, *dir_key; /* of a file, of a directory's generation_config.json */
        double *out;
    } rows[] = {
        { "general.sampling.temp", "generation_config.temperature", &s->temperature },
        { "general.sampling.top_p", "generation_config.top_p", &s->top_p },
        { "general.sampling.min_p", "generation_config.min_p", &s->min_p },
        { NULL, "generation_config.typical_p", &s->typical_p },
        { "general.sampling.penalty_repeat", "generation_config.repetition_penalty",
          &s->repetition_penalty },
    };
    bool is_dir = weights_is_dir(w), samples = true;
    enum err_code code = ERR_OK;
    server_sampling_unset(s);
    for (size_t i = 0; i < ARRAY_LEN(rows) && code == ERR_OK; i++)
        if (is_dir || rows[i].key)
            code =
                weights_float_or(w, is_dir ? rows[i].dir_key : rows[i].key, NAN, rows[i].out, err);
    if (code == ERR_OK)
        code = weights_int_or(w, is_dir ? "generation_config.top_k" : "general.sampling.top_k", 0,
                              INT32_MAX, -1, &s->top_k, err);
    if (code == ERR_OK)
        code = weights_bool_or(w, "generation_config.do_sample", true, &samples, err);
    if (code == ERR_OK && !samples)
        s->temperature = 0; /* its makers advise greedy */
    return code;
}

enum err_code serve_model_open(struct serve_model *m, struct server_model *out, struct err *err)
{
    m->options.takes_embedders = true; /* requests are told what they can have */
    enum err_code code = load_open(&m->load, &m->options, err);
    *out = (struct server_model){ 0 };
    if (code == ERR_OK) {
        split_style_init(&out->style, NULL, m->load.tokenizer);
        code = serve_model_template(m, out, err);
    }
    if (code == ERR_OK)
        code = serve_model_sampling(m->load.weights, &out->sampling, err);
    if (code == ERR_OK)
        code = load_engine(&m->load, m->max_rows, &m->keep, err);
    if (code != ERR_OK)
        return code;
    out->tokenizer = m->load.tokenizer;
    out->engine = load_take_engine(&m->load);
    return ERR_OK;
}

int64_t serve_model_now(void *arg)
{
    int64_t now;
    return load_template_now(&now, NULL) == ERR_OK ? now : clock_wall_s();
}

void serve_model_close(struct serve_model *m)
{
    template_free(m->chat_template);
    m->chat_template = NULL;
    load_close(&m->load);
}
