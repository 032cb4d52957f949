/* dialect_openai.c - chat.completion, chat.completion.chunk and text_completion objects. */
#include "server/diagnosis.h"
#include "server/dialect.h"
#include "server/limits.h"
#include "json/json.h"

#include <stdio.h>

static const char *openai_finish(const struct dialect_choice *c)
{
    if (c->n_calls > 0 && c->finish != FINISH_LENGTH)
        return "tool_calls";
    return c->finish == FINISH_LENGTH ? "length" : "stop";
}

/* --- parts --- */

static void openai_head(struct json_writer *w, const struct dialect_head *h, const char *object)
{
    json_begin_object(w);
    json_field_str(w, "id", h->id);
    json_field_str(w, "object", object);
    json_field_int(w, "created", h->created);
    json_field_str(w, "model", h->model);
    json_field_str(w, "system_fingerprint", h->fingerprint);
}

static void openai_rate(struct json_writer *w, const char *name, int64_t n, int64_t us)
{
    char key[48];
    snprintf(key, sizeof(key), "%s_n", name);
    json_field_int(w, key, n);
    snprintf(key, sizeof(key), "%s_ms", name);
    json_field_double(w, key, (double)us / 1000);
    snprintf(key, sizeof(key), "%s_per_second", name);
    json_field_double(w, key, us > 0 ? (double)n * 1e6 / (double)us : 0);
}

/* What guessing next tokens has brought, where any was verified. */
static void openai_speculation(struct json_writer *w, const struct engine_speculation *s)
{
    int n = ENGINE_DRAFTS_MAX;
    if (s->rounds == 0)
        return;
    while (n > 0 && s->accepted_at[n - 1] == 0)
        n--;
    json_field_object(w, "speculation");
    json_field_int(w, "rounds", s->rounds);
    json_field_int(w, "drafted", s->drafted);
    json_field_int(w, "accepted", s->accepted);
    json_field_int(w, "computed", s->computed);
    json_field_array(w, "accepted_per_position");
    for (int i = 0; i < n; i++)
        json_int(w, s->accepted_at[i]);
    json_end_array(w);
    json_end_object(w);
}

/* usage as OpenAI has it; timings as llama.cpp's clients read them. */
static void openai_usage(struct json_writer *w, const struct dialect_head *h,
                         const struct dialect_usage *u)
{
    json_field_object(w, "usage");
    json_field_int(w, "prompt_tokens", u->prompt_tokens);
    json_field_int(w, "completion_tokens", u->completion_tokens);
    json_field_int(w, "total_tokens", u->prompt_tokens + u->completion_tokens);
    json_field_object(w, "prompt_tokens_details");
    json_field_int(w, "cached_tokens", u->cached_tokens);
    json_end_object(w);
    json_field_object(w, "completion_tokens_details");
    json_field_int(w, "reasoning_tokens", u->reasoning_tokens);
    json_end_object(w);
    openai_speculation(w, &u->speculation);
    dialect_diagnosis(w, h);
    json_end_object(w);
    dialect_timings(w, u);
}

void dialect_ids(struct json_writer *w, const struct dialect_head *h,
                 const struct dialect_choice *c)
{
    if (!h->returns_ids || c->finish == FINISH_NONE)
        return;
    json_field_array(w, "token_ids");
    for (size_t i = 0; i < c->n_ids; i++)
        json_int(w, c->ids[i]);
    json_end_array(w);
}

void dialect_diagnosis(struct json_writer *w, const struct dialect_head *h)
{
    if (!h->diagnosis)
        return;
    json_key(w, "cache_diagnostics");
    diagnosis_write(w, h->diagnosis, h->tokenizer);
}

void dialect_timings(struct json_writer *w, const struct dialect_usage *u)
{
    json_field_object(w, "timings");
    openai_rate(w, "prompt", u->prompt_tokens, u->prompt_us);
    openai_rate(w, "predicted", u->completion_tokens, u->decode_us);
    json_end_object(w);
}

static void openai_finish_reason(struct json_writer *w, const struct dialect_choice *c)
{
    json_key(w, "finish_reason");
    if (c->finish == FINISH_NONE)
        json_null(w);
    else
        json_str(w, openai_finish(c));
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
        json_field_null(w, "usage");
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
        json_field_array(&w, "choices");
        json_end_array(&w);
        openai_usage(&w, h, u);
        json_end_object(&w);
        buf_add_str(out, "\n\n");
    }
    buf_add_str(out, "data: [DONE]\n\n");
}

static void openai_error(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                         const struct api_error *e)
{
    buf_add_str(out, "data: ");
    api_error_write(out, e);
    buf_add_str(out, "\n\ndata: [DONE]\n\n");
}

/* --- chat --- */

#define CHAT_CHUNK "chat.completion.chunk"

/* A tool call, or a piece of one. Of a stream the first piece has id and name, the others only more of the arguments. */
static void openai_call(struct json_writer *w, const struct part *p, bool is_stream)
{
    bool has_head = !is_stream || p->kind == PART_CALL_BEGIN;
    json_begin_object(w);
    if (is_stream) {
        json_field_int(w, "index", p->call);
    }
    if (has_head) {
        json_field_str(w, "id", p->id);
        json_field_str(w, "type", "function");
    }
    json_field_object(w, "function");
    if (has_head) {
        json_field_str(w, "name", p->name);
    }
    json_field_strn(w, "arguments", p->kind == PART_CALL_BEGIN ? "" : p->text, p->n);
    json_end_object(w);
    json_end_object(w);
}

static void openai_delta(struct json_writer *w, const struct part *p)
{
    switch (p->kind) {
    case PART_REASONING:
    case PART_CONTENT:
        json_field_strn(w, p->kind == PART_CONTENT ? "content" : "reasoning_content", p->text,
                        p->n);
        break;
    case PART_CALL_BEGIN:
    case PART_CALL_ARGUMENTS:
        json_field_array(w, "tool_calls");
        openai_call(w, p, true);
        json_end_array(w);
        break;
    case PART_CALL_END:
        break;
    }
}

/* p NULL: an empty delta. */
static void openai_chat_chunk(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c, const struct part *p, bool has_role)
{
    struct json_writer w;
    openai_event_begin(out, &w);
    openai_head(&w, h, CHAT_CHUNK);
    json_field_array(&w, "choices");
    json_begin_object(&w);
    json_field_int(&w, "index", c->index);
    json_field_object(&w, "delta");
    if (has_role) {
        json_field_str(&w, "role", "assistant");
    }
    if (p)
        openai_delta(&w, p);
    dialect_ids(&w, h, c);
    json_end_object(&w);
    if (p && p->kind == PART_CONTENT && !has_role) {
        dialect_chat_logprobs(&w, h, c);
    } else {
        json_field_null(&w, "logprobs");
    }
    openai_finish_reason(&w, c);
    json_end_object(&w);
    openai_event_end(out, &w, h);
}

static void openai_chat_begin(struct buf *out, const struct dialect_head *h,
                              struct dialect_state *st, const struct dialect_choice *c)
{
    static const struct part empty = { .kind = PART_CONTENT, .text = "" };
    openai_chat_chunk(out, h, c, &empty, true);
}

static void openai_chat_part(struct buf *out, const struct dialect_head *h,
                             struct dialect_state *st, const struct dialect_choice *c,
                             const struct part *p)
{
    if (p->kind != PART_CALL_END)
        openai_chat_chunk(out, h, c, p, false);
}

static void openai_chat_end(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                            const struct dialect_choice *c)
{
    st->is_ended = true;
    openai_chat_chunk(out, h, c, NULL, false);
}

/* The first answer that has not ended. A comment would do for HTTP, but clients that count events see none. */
static int32_t openai_alive(const struct dialect_state *st, int32_t n)
{
    int32_t i = 0;
    while (i < n - 1 && st[i].is_ended)
        i++;
    return i;
}

static void openai_chat_keep_alive(struct buf *out, const struct dialect_head *h,
                                   struct dialect_state *st, int32_t n)
{
    const struct dialect_choice c = { .index = openai_alive(st, n) };
    openai_chat_chunk(out, h, &c, NULL, false);
}

static void openai_chat_close(struct buf *out, const struct dialect_head *h,
                              struct dialect_state *st, const struct dialect_choice *c, int32_t n,
                              const struct dialect_usage *u)
{
    openai_close(out, h, u, CHAT_CHUNK);
}

/* The parts of that kind, one after the other. */
static void openai_joined(struct json_writer *w, const struct dialect_choice *c,
                          enum part_kind kind)
{
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].kind == kind)
            buf_add(&text, c->parts[i].text, c->parts[i].n);
    json_strn(w, text.data, text.len);
    buf_release(&text);
}

static bool openai_has(const struct dialect_choice *c, enum part_kind kind)
{
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].kind == kind)
            return true;
    return false;
}

/* content is null only where there are calls and nothing else. */
static void openai_message(struct json_writer *w, const struct dialect_head *h,
                           const struct dialect_choice *c)
{
    json_begin_object(w);
    json_field_str(w, "role", "assistant");
    json_key(w, "content");
    if (c->n_calls > 0 && !openai_has(c, PART_CONTENT))
        json_null(w);
    else
        openai_joined(w, c, PART_CONTENT);
    if (openai_has(c, PART_REASONING)) {
        json_key(w, "reasoning_content");
        openai_joined(w, c, PART_REASONING);
    }
    json_field_null(w, "refusal");
    dialect_ids(w, h, c);
    if (c->n_calls > 0) {
        json_field_array(w, "tool_calls");
        for (size_t i = 0; i < c->n_parts; i++)
            if (c->parts[i].kind == PART_CALL_ARGUMENTS)
                openai_call(w, &c->parts[i], false);
        json_end_array(w);
    }
    json_end_object(w);
}

static void openai_chat_whole(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c, int32_t n,
                              const struct dialect_usage *u)
{
    struct json_writer w;
    json_writer_init(&w, out);
    openai_head(&w, h, "chat.completion");
    json_field_array(&w, "choices");
    for (int32_t i = 0; i < n; i++) {
        json_begin_object(&w);
        json_field_int(&w, "index", c[i].index);
        json_key(&w, "message");
        openai_message(&w, h, &c[i]);
        dialect_chat_logprobs(&w, h, &c[i]);
        openai_finish_reason(&w, &c[i]);
        json_end_object(&w);
    }
    json_end_array(&w);
    openai_usage(&w, h, u);
    json_end_object(&w);
}

const struct dialect dialect_chat = {
    .id_prefix = "chatcmpl-",
    .begin = openai_chat_begin,
    .part = openai_chat_part,
    .end = openai_chat_end,
    .close = openai_chat_close,
    .error = openai_error,
    .keep_alive = openai_chat_keep_alive,
    .whole = openai_chat_whole,
};

/* --- completions --- */

/* p NULL: an empty text, the end. */
static void openai_text_choice(struct json_writer *w, const struct dialect_head *h,
                               const struct dialect_choice *c, const struct part *p)
{
    json_begin_object(w);
    json_field_strn(w, "text", p ? p->text : "", p ? p->n : 0);
    json_field_int(w, "index", c->index);
    if (p) {
        dialect_text_logprobs(w, h, c);
    } else {
        json_field_null(w, "logprobs");
    }
    dialect_prompt_logprobs(w, h, c);
    dialect_ids(w, h, c);
    openai_finish_reason(w, c);
    json_end_object(w);
}

static void openai_text_part(struct buf *out, const struct dialect_head *h,
                             struct dialect_state *st, const struct dialect_choice *c,
                             const struct part *p)
{
    struct json_writer w;
    openai_event_begin(out, &w);
    openai_head(&w, h, "text_completion");
    json_field_array(&w, "choices");
    openai_text_choice(&w, h, c, p);
    openai_event_end(out, &w, h);
}

static void openai_text_end(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                            const struct dialect_choice *c)
{
    st->is_ended = true;
    openai_text_part(out, h, st, c, NULL);
}

static void openai_text_keep_alive(struct buf *out, const struct dialect_head *h,
                                   struct dialect_state *st, int32_t n)
{
    const struct dialect_choice c = { .index = openai_alive(st, n) };
    openai_text_part(out, h, st, &c, NULL);
}

static void openai_text_close(struct buf *out, const struct dialect_head *h,
                              struct dialect_state *st, const struct dialect_choice *c, int32_t n,
                              const struct dialect_usage *u)
{
    openai_close(out, h, u, "text_completion");
}

static void openai_text_whole(struct buf *out, const struct dialect_head *h,
                              const struct dialect_choice *c, int32_t n,
                              const struct dialect_usage *u)
{
    static const struct part nothing = { .kind = PART_CONTENT, .text = "" };
    struct json_writer w;
    json_writer_init(&w, out);
    openai_head(&w, h, "text_completion");
    json_field_array(&w, "choices");
    for (int32_t i = 0; i < n; i++) /* all of it is one part of content */
        openai_text_choice(&w, h, &c[i], c[i].n_parts > 0 ? c[i].parts : &nothing);
    json_end_array(&w);
    openai_usage(&w, h, u);
    json_end_object(&w);
}

const struct dialect dialect_completions = {
    .id_prefix = "cmpl-",
    .part = openai_text_part,
    .end = openai_text_end,
    .close = openai_text_close,
    .error = openai_error,
    .keep_alive = openai_text_keep_alive,
    .whole = openai_text_whole,
};
