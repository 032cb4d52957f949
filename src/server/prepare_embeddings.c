/* prepare_embeddings.c - the texts of a request for embeddings, and the rows that compute them. */
#include "server/prepare_int.h"

#include <stdio.h>

/* The numbers of all of them: filled by the engine, so they stand before the first request is made. */
static bool inputs_room(struct prepare_generation *g, size_t n, struct api_error *e)
{
    struct prepared *p = g->p;
    int64_t bytes = (int64_t)n * p->embeddings.n_embd * (int64_t)sizeof(float);
    if (n == 0 || n > LIMIT_INPUTS)
        return api_error_set(e, 400, NULL, "input", "input: %zu texts, 1 to %d are possible", n,
                             LIMIT_INPUTS);
    if (bytes > LIMIT_SCORES_BYTES)
        return api_error_set(
            e, 400, NULL, "input",
            "input: %zu embeddings of %d numbers are over %d MiB: send fewer at once", n,
            p->embeddings.n_embd, LIMIT_SCORES_BYTES >> 20);
    p->embeddings.hidden = mem_try_array(MEM_CAT_REQUEST, (size_t)bytes, 1);
    if (!p->embeddings.hidden)
        return api_error_set(e, 503, "out_of_memory", NULL, "no memory for %zu embeddings", n);
    p->score_bytes = bytes;
    prepare_room(p, (int32_t)n);
    return true;
}

/* Errors name the text. */
static bool inputs_add(struct prepare_generation *g, const int32_t *ids, int32_t n,
                       const char *where, struct api_error *e)
{
    int32_t n_ctx = g->ctx->model->engine->info.n_ctx;
    if (n == 0)
        return api_error_set(e, 400, NULL, where, "%s: it has no tokens", where);
    if (n > n_ctx)
        return api_error_set(
            e, 400, "context_length_exceeded", where,
            "%s: this model's maximum context length is %d tokens, and the text has %d", where,
            n_ctx, n);
    return prepare_add_prompt(g, ids, n, NULL, false, e);
}

/* A text is a user's: what looks like a control token in it is text. The file says whether it begins and ends with one. */
static bool inputs_text(struct prepare_generation *g, const struct json *v, const char *where,
                        struct api_error *e)
{
    const struct json *instruction = json_get_set(g->body, "instruction");
    struct token_list ids;
    struct buf text;
    struct err err;
    bool is_fine = false;
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (instruction)
        buf_printf(&text, "Instruct: %.*s\nQuery:", (int)instruction->len, instruction->text);
    buf_add(&text, v->text, v->len);
    if (v->len == 0)
        api_error_set(e, 400, NULL, where, "%s: it is empty", where);
    else if (buf_check(&text, where, &err) != ERR_OK ||
             tokenizer_encode(g->ctx->model->tokenizer, text.data, text.len, NULL,
                              TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_EOS, &ids, &err) != ERR_OK)
        api_error_set(e, 400, "context_length_exceeded", where, "%s: %s", where, err.text);
    else
        is_fine = inputs_add(g, ids.ids, ids.n, where, e);
    buf_release(&text);
    token_list_release(&ids);
    return is_fine;
}

static bool inputs_one(struct prepare_generation *g, const struct json *v, const char *where,
                       struct api_error *e)
{
    if (json_is(v, JSON_TYPE_STRING))
        return inputs_text(g, v, where, e);
    if (!json_is(v, JSON_TYPE_ARRAY))
        return api_error_set(e, 400, NULL, where, "%s: must be a string or token ids", where);
    if (json_get_set(g->body, "instruction"))
        return api_error_set(e, 400, NULL, "instruction",
                             "instruction: needs texts, not token ids");
    int32_t *ids = prepare_ids(g->ctx, v, where, e);
    bool is_fine =
        ids && inputs_add(g, ids, v->n > INT32_MAX ? INT32_MAX : (int32_t)v->n, where, e);
    mem_free(MEM_CAT_REQUEST, ids);
    return is_fine;
}

bool prepare_inputs(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "input");
    const struct json *instruction = json_get_set(g->body, "instruction");
    bool is_list =
        json_is(v, JSON_TYPE_ARRAY) && (v->n == 0 || !json_is(&v->items[0], JSON_TYPE_NUMBER));
    char where[32];
    if (!v)
        return api_error_set(e, 400, NULL, "input",
                             "input: is missing: a string, or an array of strings");
    if (instruction && (!json_is(instruction, JSON_TYPE_STRING) || instruction->len > 1 << 20))
        return api_error_set(e, 400, NULL, "instruction",
                             "instruction: must be a string, at most 1 MiB");
    if (!inputs_room(g, is_list ? v->n : 1, e))
        return false;
    if (!is_list)
        return inputs_one(g, v, "input", e);
    for (size_t i = 0; i < v->n; i++) {
        snprintf(where, sizeof(where), "input[%zu]", i);
        if (g->in->is_cancelled && atomic_load(g->in->is_cancelled))
            return api_error_set(e, 499, "cancelled", NULL, "cancelled");
        if (!inputs_one(g, &v->items[i], where, e))
            return false;
    }
    return true;
}
