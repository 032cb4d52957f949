/* prepare_render.c - messages to a prompt: the chat template and its variables. */
#include "base/clock.h"
#include "base/log.h"
#include "server/hoist.h"
#include "server/messages.h"
#include "server/prepare_int.h"

#include <string.h>

/* The program's own variables. */
static bool prepare_own(const struct prepare_context *ctx, bool adds_generation_prompt,
                        struct json_doc *own, struct api_error *e)
{
    const struct tokenizer *t = ctx->model->tokenizer;
    const struct {
        const char *name;
        int32_t id;
    } tokens[] = { { "bos_token", tokenizer_bos(t) }, { "eos_token", tokenizer_eos(t) } };
    struct json_writer w;
    struct buf text;
    struct err err;
    buf_init(&text, MEM_CAT_REQUEST, 1 << 16);
    json_writer_init(&w, &text);
    json_begin_object(&w);
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        if (tokens[i].id < 0) /* undefined, as in Hugging Face */
            continue;
        struct tokenizer_str s = tokenizer_piece(t, tokens[i].id);
        json_field_strn(&w, tokens[i].name, s.data, s.len);
    }
    json_field_bool(&w, "add_generation_prompt", adds_generation_prompt);
    json_end_object(&w);
    enum err_code code = json_parse(own, text.data, text.len, 1 << 20, &err);
    buf_release(&text);
    if (code != ERR_OK)
        api_error_set(e, 500, NULL, NULL, "%s", err.text);
    return code == ERR_OK;
}

/* One attempt. */
static bool prepare_render_once(const struct prepare_context *ctx, const struct json *body,
                                unsigned flags, const struct json *own, struct messages_seen *seen,
                                struct template_output *out, struct api_error *e)
{
    struct buf text;
    struct json_doc doc = { 0 };
    struct err err;
    bool is_fine = false;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (!messages_write(body, flags, &text, seen, e))
        goto out;
    if (buf_check(&text, "messages", &err) != ERR_OK ||
        json_parse(&doc, text.data, text.len, LIMIT_JSON_VALUES, &err) != ERR_OK) {
        api_error_set(e, 400, NULL, "messages", "%s", err.text);
        goto out;
    }
    const struct server_config *config = ctx->config;
    struct template_input in = { .caller = &doc.root, .own = own };
    in.now = ctx->now_s ? ctx->now_s : config->now ? config->now(config->now_arg) : clock_wall_s();
    enum err_code code = template_render(ctx->model->chat_template, &in, out, &err);
    is_fine = code == ERR_OK;
    if (!is_fine)
        api_error_set(e, 400, "template_error", "messages", "chat template: %s", err.text);
out:
    json_doc_release(&doc);
    buf_release(&text);
    return is_fine;
}

bool prepare_render(const struct prepare_context *ctx, const struct json *body,
                    enum prepare_switch thinks, bool adds_generation_prompt,
                    struct template_output *out, struct api_error *e)
{
    static const unsigned switches[] = { 0, MESSAGES_FLAG_NO_THOUGHT, MESSAGES_FLAG_THOUGHT };
    struct json_doc own = { 0 };
    unsigned flags = switches[thinks] | (ctx->model->knows_developer ? MESSAGES_FLAG_DEVELOPER : 0);
    flags |= split_style_has_channels(&ctx->model->style) ? MESSAGES_FLAG_DEPTHS : 0;
    struct messages_seen seen = { 0 };
    bool is_fine = false;
    template_output_init(out, LIMIT_PROMPT_BYTES);
    if (!ctx->model->chat_template)
        return api_error_set(e, 400, "no_chat_template", NULL,
                             "this model has no chat template: use /v1/completions");
    if (!prepare_own(ctx, adds_generation_prompt, &own, e))
        return false;
    is_fine = prepare_render_once(ctx, body, flags, &own.root, &seen, out, e);
    /* some templates cannot add null to a string, some want the turns of user and assistant to alternate */
    const unsigned again[] = { seen.has_null ? MESSAGES_FLAG_NO_NULL : 0,
                               seen.has_repeat ? MESSAGES_FLAG_MERGE | MESSAGES_FLAG_NO_NULL : 0 };
    for (size_t i = 0; i < ARRAY_LEN(again) && !is_fine; i++) {
        if (again[i] == 0 || !e->code || strcmp(e->code, "template_error") != 0)
            continue;
        template_output_release(out);
        template_output_init(out, LIMIT_PROMPT_BYTES);
        e->status = 0;
        is_fine = prepare_render_once(ctx, body, flags | again[i], &own.root, &seen, out, e);
    }
    json_doc_release(&own);
    return is_fine;
}

const struct json *prepare_hoist(const struct prepare_context *ctx, const struct json *body,
                                 struct json_doc *doc, int32_t *n_lines, struct api_error *e)
{
    int32_t n = 0;
    if (ctx->config->hoists_volatile && !hoist_apply(body, doc, &n, e))
        return NULL;
    if (n > 0) /* not the text: it is the client's */
        log_info("prompt", "%d volatile lines of a system prompt were moved to the end", n);
    if (n_lines)
        *n_lines = n;
    return n > 0 ? &doc->root : body;
}

bool prepare_chat_text(const struct prepare_context *ctx, const struct json *body,
                       enum prepare_switch thinks, bool adds_generation_prompt,
                       struct template_output *out, int32_t *n_hoisted, struct api_error *e)
{
    struct json_doc hoisted = { 0 };
    template_output_init(out, LIMIT_PROMPT_BYTES);
    body = prepare_hoist(ctx, body, &hoisted, n_hoisted, e);
    bool is_fine = body && prepare_render(ctx, body, thinks, adds_generation_prompt, out, e);
    json_doc_release(&hoisted);
    return is_fine;
}

bool prepare_chat_prompt(const struct prepare_context *ctx, const struct json *body,
                         enum prepare_switch thinks, bool adds_generation_prompt,
                         struct token_list *out, struct template_output *text, struct diagnosis *d,
                         struct api_error *e)
{
    struct template_output own;
    struct json_doc hoisted = { 0 };
    struct template_output *to = text ? text : &own;
    template_output_init(to, LIMIT_PROMPT_BYTES);
    body = prepare_hoist(ctx, body, &hoisted, d ? &d->n_hoisted : NULL, e);
    bool is_fine = body && prepare_render(ctx, body, thinks, adds_generation_prompt, to, e) &&
                   /* As Hugging Face does: the template says whether there is a bos. */
                   prepare_encode(ctx, body, to, out, d, e);
    if (is_fine && d) {
        diagnosis_set_ids(d, out->ids, out->n);
        diagnosis_set_text(d, ctx->model->tokenizer, body, to);
    }
    if (!text)
        template_output_release(&own);
    json_doc_release(&hoisted);
    return is_fine;
}
