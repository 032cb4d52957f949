/* cmd_template.c - render a chat template over variables from a JSON file: what a model's prompt will look like. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/load_template.h"
#include "cli/model_path.h"

#include <stdio.h>

#define TEMPLATE_INPUT_MAX  ((size_t)64 << 20)
#define TEMPLATE_OUTPUT_MAX ((size_t)64 << 20)

struct template_options {
    const char *model, *file, *input;
};

static enum err_code template_render_input(const struct template *t, const struct json *own,
                                           const char *path, struct err *err)
{
    struct buf text;
    struct json_doc doc = { 0 };
    struct template_output out;
    struct template_input in = { .own = own };
    buf_init(&text, MEM_CAT_REQUEST, TEMPLATE_INPUT_MAX);
    template_output_init(&out, TEMPLATE_OUTPUT_MAX);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = json_parse(&doc, text.data, text.len, TEMPLATE_INPUT_MAX * 8, err);
    if (!code && !json_is(&doc.root, JSON_TYPE_OBJECT))
        code = err_set(err, ERR_INVALID, "%s: must hold a JSON object of variables", path);
    in.caller = &doc.root;
    if (!code)
        code = load_template_now(&in.now, err);
    if (!code)
        code = template_render(t, &in, &out, err);
    if (!code)
        fwrite(out.text.data, 1, out.text.len, stdout);
    template_output_release(&out);
    json_doc_release(&doc);
    buf_release(&text);
    return code;
}

static enum err_code template_from_file(const char *path, struct template **out, struct err *err)
{
    struct buf text;
    buf_init(&text, MEM_CAT_TEMPLATE, (size_t)1 << 20);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = template_parse(path, text.data, text.len, out, err);
    buf_release(&text);
    return code;
}

static enum err_code template_from_model(const char *model, struct template **out,
                                         struct json_doc *own, struct err *err)
{
    struct buf path;
    struct weights *w = NULL;
    buf_init(&path, MEM_CAT_BASE, 1 << 16);
    enum err_code code = model_path(model, &path, err);
    if (!code)
        code = weights_open(path.data, &w, err);
    if (!code)
        code = load_template(w, out, err);
    if (!code)
        code = load_template_own(w, own, err);
    weights_close(w);
    buf_release(&path);
    return code;
}

static int template_run(void *options)
{
    struct template_options *o = options;
    struct template *t = NULL;
    struct json_doc own = { 0 };
    struct err err = { 0 };
    if (!o->input || (o->model && o->file))
        return cli_usage("template", "wants --input, and --model or --template");
    enum err_code code = o->file ? template_from_file(o->file, &t, &err)
                                 : template_from_model(o->model, &t, &own, &err);
    if (!code)
        code = template_render_input(t, &own.root, o->input, &err);
    json_doc_release(&own);
    template_free(t);
    return code ? cli_fail("template", &err) : 0;
}

const struct cli_verb cmd_template = {
    .name = "template",
    .summary = "render a chat template",
    .usage = "(--model M | --template FILE) --input FILE.json",
    .flags =
        (const struct cli_flag[]){
            { "model", "M", "path or name of a model, whose template is taken; default smollm2",
              CLI_FLAG_STRING, offsetof(struct template_options, model), 0, 0 },
            { "template", "FILE", "a template's own file", CLI_FLAG_STRING,
              offsetof(struct template_options, file), 0, 0 },
            { "input", "FILE", "JSON object: each key is a variable as it stands; - reads stdin",
              CLI_FLAG_STRING, offsetof(struct template_options, input), 0, 0 },
            { 0 } },
    .options_bytes = sizeof(struct template_options),
    .run = template_run,
};
