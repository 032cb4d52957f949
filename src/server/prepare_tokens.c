/* prepare_tokens.c - /tokenize, /detokenize, /apply-template, in the shapes that clients of llama.cpp and of vLLM send and read. */
#include "base/utf8.h"
#include "server/prepare_int.h"

/* *out stays where the switch is absent or null. False: e. */
static bool prepare_flag(const struct json *body, const char *name, bool *out, struct api_error *e)
{
    const struct json *v = json_get_set(body, name);
    if (v && !json_is(v, JSON_TYPE_BOOL))
        return api_error_set(e, 400, NULL, name, "%s: must be true or false", name);
    *out = v ? v->boolean : *out;
    return true;
}

struct tokenize_flags {
    bool parse_special, add_special, add_special_tokens, add_generation_prompt;
    bool with_pieces, return_token_strs;
};

static bool tokenize_read_flags(const struct json *body, struct tokenize_flags *f,
                                struct api_error *e)
{
    *f = (struct tokenize_flags){ .parse_special = true,
                                  .add_special_tokens = true,
                                  .add_generation_prompt = true };
    return prepare_flag(body, "parse_special", &f->parse_special, e) &&
           prepare_flag(body, "add_special", &f->add_special, e) &&
           prepare_flag(body, "add_special_tokens", &f->add_special_tokens, e) &&
           prepare_flag(body, "add_generation_prompt", &f->add_generation_prompt, e) &&
           prepare_flag(body, "with_pieces", &f->with_pieces, e) &&
           prepare_flag(body, "return_token_strs", &f->return_token_strs, e);
}

/* The bytes of a token: text where they are text, else an array of numbers. */
static void prepare_write_piece(struct json_writer *w, const struct tokenizer *t, int32_t id)
{
    struct tokenizer_str s = tokenizer_bytes(t, id, true);
    if (utf8_is_valid(s.data, s.len)) {
        json_strn(w, s.data, s.len);
        return;
    }
    json_begin_array(w);
    for (size_t i = 0; i < s.len; i++)
        json_int(w, (unsigned char)s.data[i]);
    json_end_array(w);
}

static void prepare_write_tokens(const struct prepare_context *ctx, const struct token_list *ids,
                                 const struct tokenize_flags *f, struct buf *out)
{
    const struct tokenizer *t = ctx->model->tokenizer;
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_array(&w, "tokens");
    for (int32_t i = 0; i < ids->n; i++) {
        if (!f->with_pieces) {
            json_int(&w, ids->ids[i]);
            continue;
        }
        json_begin_object(&w);
        json_field_int(&w, "id", ids->ids[i]);
        json_key(&w, "piece");
        prepare_write_piece(&w, t, ids->ids[i]);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_field_int(&w, "count", ids->n);
    json_field_int(&w, "max_model_len", ctx->model->engine->info.n_ctx);
    if (f->return_token_strs) {
        json_field_array(&w, "token_strs");
        for (int32_t i = 0; i < ids->n; i++) {
            struct tokenizer_str s = tokenizer_piece(t, ids->ids[i]);
            json_strn(&w, s.data, s.len);
        }
        json_end_array(&w);
    }
    json_end_object(&w);
}

/* {content, add_special, parse_special, with_pieces} or {prompt, add_special_tokens, return_token_strs} or {messages, ...}. */
void prepare_tokenize(const struct prepare_context *ctx, const struct json *body,
                      struct prepared *p)
{
    const struct json *text = json_get_set(body, "content");
    struct token_list ids;
    struct tokenize_flags f;
    struct err err;
    if (!tokenize_read_flags(body, &f, &p->error))
        return;
    unsigned flags = f.parse_special ? TOKENIZER_FLAG_SPECIAL : 0;
    bool has_special = text ? f.add_special : f.add_special_tokens;
    text = text ? text : json_get_set(body, "prompt");
    flags |= has_special ? TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_EOS : 0;
    token_list_init(&ids, prepare_max_tokens(ctx));
    if (json_is(text, JSON_TYPE_STRING)) {
        if (tokenizer_encode(ctx->model->tokenizer, text->text, text->len, NULL, flags, &ids,
                             &err) != ERR_OK)
            api_error_set(&p->error, 400, NULL, "content", "%s", err.text);
    } else if (text || !json_get_set(body, "messages")) {
        api_error_set(&p->error, 400, NULL, "content",
                      "content (or prompt): must be a string; or give messages");
    } else {
        (void)prepare_chat_prompt(ctx, body, PREPARE_UNSET, f.add_generation_prompt, &ids, NULL,
                                  NULL, &p->error);
    }
    if (p->error.status == 0)
        prepare_write_tokens(ctx, &ids, &f, &p->reply);
    token_list_release(&ids);
}

void prepare_detokenize(const struct prepare_context *ctx, const struct json *body,
                        struct prepared *p)
{
    const struct json *tokens = json_get_set(body, "tokens");
    struct buf text;
    struct err err;
    if (!json_is(tokens, JSON_TYPE_ARRAY)) {
        api_error_set(&p->error, 400, NULL, "tokens", "tokens: must be an array of token ids");
        return;
    }
    int32_t *ids = prepare_ids(ctx, tokens, "tokens", &p->error);
    if (!ids)
        return;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (tokenizer_decode(ctx->model->tokenizer, ids, (int32_t)tokens->n, true, &text, &err) !=
        ERR_OK) {
        api_error_set(&p->error, 400, NULL, "tokens", "%s", err.text);
    } else {
        static const char *const names[] = { "content", "prompt" }; /* llama.cpp's and vLLM's */
        struct json_writer w;
        json_writer_init(&w, &p->reply);
        json_begin_object(&w);
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            json_field_strn(&w, names[i], text.data, text.len);
        }
        json_end_object(&w);
    }
    buf_release(&text);
    mem_free(MEM_CAT_REQUEST, ids);
}

void prepare_apply_template(const struct prepare_context *ctx, const struct json *body,
                            struct prepared *p)
{
    struct template_output text;
    struct json_doc hoisted = { 0 };
    bool adds_prompt = true;
    if (!prepare_flag(body, "add_generation_prompt", &adds_prompt, &p->error))
        return;
    body = prepare_hoist(ctx, body, &hoisted, NULL, &p->error);
    if (!body)
        return;
    if (prepare_render(ctx, body, PREPARE_UNSET, adds_prompt, &text, &p->error)) {
        struct json_writer w;
        json_writer_init(&w, &p->reply);
        json_begin_object(&w);
        json_field_strn(&w, "prompt", text.text.data, text.text.len);
        json_end_object(&w);
    }
    template_output_release(&text);
    json_doc_release(&hoisted);
}
