/* dialect_openai.c - chat.completion, chat.completion.chunk and text_completion objects. */
#include "server/dialect.h"
#include "json/json.h"

#include <stdio.h>

static const char *openai_finish(enum finish f)
{
    return f == FINISH_LENGTH ? "length" : "stop";
}

/* --- parts --- */

static void openai_head(struct json_writer *w, const struct dialect_head *h, const char *object)
{
    json_begin_object(w);
    json_key(w, "id");
    json_str(w, h->id);
    json_key(w, "object");
    json_str(w, object);
    json_key(w, "created");
    json_int(w, h->created);
    json_key(w, "model");
    json_str(w, h->model);
    json_key(w, "system_fingerprint");
    json_str(w, h->fingerprint);
}

static void openai_rate(struct json_writer *w, const char *name, int64_t n, int64_t us)
{
    char key[48];
    snprintf(key, sizeof(key), "%s_n", name);
    json_key(w, key);
    json_int(w, n);
    snprintf(key, sizeof(key), "%s_ms", name);
    json_key(w, key);
    json_double(w, (double)us / 1000);
    snprintf(key, sizeof(key), "%s_per_second", name);
    json_key(w, key);
    json_double(w, us > 0 ? (double)n * 1e6 / (double)us : 0);
}

/* usage as OpenAI has it; timings as llama.cpp's clients read them. */
static void openai_usage(struct json_writer *w, const struct dialect_usage *u)
{
    json_key(w, "usage");
    json_begin_object(w);
    json_key(w, "prompt_tokens");
    json_int(w, u->prompt_tokens);
    json_key(w, "completion_tokens");
    json_int(w, u->completion_tokens);
    json_key(w, "total_tokens");
    json_int(w, u->prompt_tokens + u->completion_tokens);
    json_key(w, "prompt_tokens_details");
    json_begin_object(w);
    json_key(w, "cached_tokens");
    json_int(w, 0);
    json_end_object(w);
    json_end_object(w);
    json_key(w, "timings");
    json_begin_object(w);
    openai_rate(w, "prompt", u->prompt_tokens, u->prompt_us);
    openai_rate(w, "predicted", u->completion_tokens, u->decode_us);
    json_end_object(w);
}

static void openai_finish_reason(struct json_writer *w, enum finish f)
{
    json_key(w, "finish_reason");
    if (f == FINISH_NONE)
        json_null(w);
    else
        json_str(w, openai_finish(f));
}

static void openai_event_begin(struct buf *out, struct json_writer *w)
{
    buf_add_str(out, "data: ");
    json_writer_init(w, out);
}

/* The end of a chunk that has choices: where the usage comes last, the others say null. */
static void openai_event_end(struct buf *out, struct json_writer *w, const struct dialect_head *h)
{
    json_end_array(w);
    if (h->includes_usage) {
        json_key(w, "usage");
        json_null(w);
    }
    json_end_object(w);
    buf_add_str(out, "\n\n");
}

static void openai_close(struct buf *out, const struct dialect_head *h,
                         const struct dialect_usage *u, const char *object)
{
    if (h->includes_usage) {
        struct json_writer w;
        openai_event_begin(out, &w);
        openai_head(&w, h, object);
        json_key(&w, "choices");
        json_begin_array(&w);
        json_end_array(&w);
        openai_usage(&w, u);
        json_end_object(&w);
        buf_add_str(out, "\n\n");
    }
    buf_add_str(out, "data: [DONE]\n\n");
}

static void openai_error(struct buf *out, const struct api_error *e)
{
    buf_add_str(out, "data: ");
    api_error_write(out, e);
    buf_add_str(out, "\n\ndata: [DONE]\n\n");
}

/* --- chat --- */

#define CHAT_CHUNK "chat.completion.chunk"

/* text NULL: no delta. */
static void openai_chat_chunk(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c, bool has_role)
{
    struct json_writer w;
    openai_event_begin(out, &w);
    openai_head(&w, h, CHAT_CHUNK);
    json_key(&w, "choices");
    json_begin_array(&w);
    json_begin_object(&w);
    json_key(&w, "index");
    json_int(&w, c->index);
    json_key(&w, "delta");
    json_begin_object(&w);
    if (has_role) {
        json_key(&w, "role");
        json_str(&w, "assistant");
    }
    if (c->text) {
        json_key(&w, "content");
        json_strn(&w, c->text, c->n);
    }
    json_end_object(&w);
    if (c->text && !has_role) {
        dialect_chat_logprobs(&w, h, c);
    } else {
        json_key(&w, "logprobs");
        json_null(&w);
    }
    openai_finish_reason(&w, c->finish);
    json_end_object(&w);
    openai_event_end(out, &w, h);
}

static void openai_chat_begin(struct buf *out, const struct dialect_head *h, int32_t index)
{
    struct dialect_choice c = { .index = index, .text = "" };
    openai_chat_chunk(out, h, &c, true);
}

static void openai_chat_delta(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c)
{
    openai_chat_chunk(out, h, c, false);
}

static void openai_chat_close(struct buf *out, const struct dialect_head *h,
                              const struct dialect_usage *u)
{
    openai_close(out, h, u, CHAT_CHUNK);
}

static void openai_chat_whole(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c, int32_t n,
                              const struct dialect_usage *u)
{
    struct json_writer w;
    json_writer_init(&w, out);
    openai_head(&w, h, "chat.completion");
    json_key(&w, "choices");
    json_begin_array(&w);
    for (int32_t i = 0; i < n; i++) {
        json_begin_object(&w);
        json_key(&w, "index");
        json_int(&w, c[i].index);
        json_key(&w, "message");
        json_begin_object(&w);
        json_key(&w, "role");
        json_str(&w, "assistant");
        json_key(&w, "content");
        json_strn(&w, c[i].text, c[i].n);
        json_key(&w, "refusal");
        json_null(&w);
        json_end_object(&w);
        dialect_chat_logprobs(&w, h, &c[i]);
        openai_finish_reason(&w, c[i].finish);
        json_end_object(&w);
    }
    json_end_array(&w);
    openai_usage(&w, u);
    json_end_object(&w);
}

const struct dialect dialect_chat = {
    .id_prefix = "chatcmpl-",
    .begin = openai_chat_begin,
    .text = openai_chat_delta,
    .end = openai_chat_delta,
    .close = openai_chat_close,
    .error = openai_error,
    .whole = openai_chat_whole,
};

/* --- completions --- */

static void openai_text_choice(struct json_writer *w, const struct dialect_head *h,
                               const struct dialect_choice *c)
{
    json_begin_object(w);
    json_key(w, "text");
    json_strn(w, c->text ? c->text : "", c->n);
    json_key(w, "index");
    json_int(w, c->index);
    if (c->text) {
        dialect_text_logprobs(w, h, c);
    } else {
        json_key(w, "logprobs");
        json_null(w);
    }
    dialect_prompt_logprobs(w, h, c);
    openai_finish_reason(w, c->finish);
    json_end_object(w);
}

static void openai_text_chunk(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c)
{
    struct json_writer w;
    openai_event_begin(out, &w);
    openai_head(&w, h, "text_completion");
    json_key(&w, "choices");
    json_begin_array(&w);
    openai_text_choice(&w, h, c);
    openai_event_end(out, &w, h);
}

static void openai_text_close(struct buf *out, const struct dialect_head *h,
                              const struct dialect_usage *u)
{
    openai_close(out, h, u, "text_completion");
}

static void openai_text_whole(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c, int32_t n,
                              const struct dialect_usage *u)
{
    struct json_writer w;
    json_writer_init(&w, out);
    openai_head(&w, h, "text_completion");
    json_key(&w, "choices");
    json_begin_array(&w);
    for (int32_t i = 0; i < n; i++)
        openai_text_choice(&w, h, &c[i]);
    json_end_array(&w);
    openai_usage(&w, u);
    json_end_object(&w);
}

const struct dialect dialect_completions = {
    .id_prefix = "cmpl-",
    .text = openai_text_chunk,
    .end = openai_text_chunk,
    .close = openai_text_close,
    .error = openai_error,
    .whole = openai_text_whole,
};
