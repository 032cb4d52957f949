/* prepare_infill.c - /infill and the `suffix` of completions: prompts with a gap that the answer fills. */
#include "server/fim.h"
#include "server/prepare_int.h"

#include <string.h>

/* What stands around the gap. Texts may be NULL: empty. */
struct infill {
    const struct json *prefix, *suffix;
    const struct json *begun; /* of the answer, given by the caller */
    const struct json *extra; /* array of {filename, text} */
};

static const struct fim_tokens *infill_tokens(const struct prepare_generation *g, const char *param,
                                              struct api_error *e)
{
    const struct fim_tokens *f = fim_find(g->ctx->model->tokenizer);
    if (!f)
        api_error_set(
            e, 400, "unsupported_value", param,
            "%s: this model has no fill-in-the-middle tokens: it was not made to fill gaps", param);
    return f;
}

static void infill_add(struct fim_prompt *p, const struct json *v)
{
    if (v)
        fim_add_text(p, v->text, v->len);
}

/* Further files come first, each under its name where the model knows how. */
static bool infill_add_extra(struct fim_prompt *p, const struct fim_tokens *f,
                             const struct json *extra, struct api_error *e)
{
    for (size_t i = 0; extra && i < extra->n; i++) {
        const struct json *text = json_get_set(&extra->items[i], "text");
        const struct json *name = json_get_set(&extra->items[i], "filename");
        if (!json_is(text, JSON_TYPE_STRING) || (name && !json_is(name, JSON_TYPE_STRING)))
            return api_error_set(e, 400, NULL, "input_extra",
                                 "input_extra[%zu]: must be an object with a text and a filename",
                                 i);
        if (f->file) {
            fim_add_token(p, f->file);
            infill_add(p, name);
        }
        fim_add_text(p, "\n", f->file ? 1 : 0);
        infill_add(p, text);
        fim_add_text(p, "\n", 1);
    }
    if (extra && extra->n > 0 && f->file) {
        fim_add_token(p, f->file);
        fim_add_text(p, "\n", 1);
    }
    return true;
}

static bool infill_make(struct prepare_generation *g, const struct fim_tokens *f,
                        const struct infill *x, const char *param, struct api_error *e)
{
    struct fim_prompt p;
    struct token_list ids;
    struct err err;
    g->engine.n_end_ids = fim_ends(g->ctx->model->tokenizer, g->engine.end_ids, ENGINE_ENDS_MAX);
    fim_init(&p, LIMIT_PROMPT_BYTES);
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    bool is_fine = infill_add_extra(&p, f, x->extra, e);
    fim_add_token(&p, f->prefix);
    infill_add(&p, x->prefix);
    fim_add_token(&p, f->suffix);
    infill_add(&p, x->suffix);
    fim_add_token(&p, f->middle);
    infill_add(&p, x->begun);
    if (is_fine && fim_encode(&p, g->ctx->model->tokenizer, &ids, &err) != ERR_OK)
        is_fine = api_error_set(e, 400, "context_length_exceeded", param, "%s", err.text);
    is_fine = is_fine && prepare_add_prompt(g, ids.ids, ids.n, NULL, false, e);
    token_list_release(&ids);
    fim_release(&p);
    return is_fine;
}

static bool infill_text(const struct prepare_generation *g, const char *name,
                        const struct json **out, struct api_error *e)
{
    *out = json_get_set(g->body, name);
    return !*out || json_is(*out, JSON_TYPE_STRING) ||
           api_error_set(e, 400, NULL, name, "%s: must be a string", name);
}

bool prepare_infill(struct prepare_generation *g, struct api_error *e)
{
    struct infill x = { .extra = json_get_set(g->body, "input_extra") };
    const struct fim_tokens *f = infill_tokens(g, "input_prefix", e);
    if (!f || !infill_text(g, "input_prefix", &x.prefix, e) ||
        !infill_text(g, "input_suffix", &x.suffix, e) || !infill_text(g, "prompt", &x.begun, e))
        return false;
    if (x.extra && !json_is(x.extra, JSON_TYPE_ARRAY))
        return api_error_set(e, 400, NULL, "input_extra", "input_extra: must be an array");
    if (!x.prefix && !x.suffix)
        return api_error_set(e, 400, NULL, "input_prefix",
                             "input_prefix or input_suffix: one of them is needed");
    return infill_make(g, f, &x, "input_prefix", e);
}

bool prepare_suffix(struct prepare_generation *g, const struct json *suffix, struct api_error *e)
{
    struct infill x = { .prefix = json_get_set(g->body, "prompt"), .suffix = suffix };
    const struct fim_tokens *f = infill_tokens(g, "suffix", e);
    if (!f)
        return false;
    if (!json_is(suffix, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, "suffix", "suffix: must be a string");
    if (!json_is(x.prefix, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, "prompt", "prompt: with a suffix it must be a string");
    if (g->fields.echo)
        return api_error_set(e, 400, "unsupported_value", "echo", "echo: not with a suffix");
    return infill_make(g, f, &x, "prompt", e);
}
