/* dialect_messages.c - message objects and message streams of Anthropic's API.
 *
 * A stream is message_start, for each block of content its start, deltas and stop, then message_delta and message_stop; `ping` while
 * there is nothing to tell. Blocks are numbered through; a call is a block of its own. */
#include "server/dialect.h"
#include "server/limits.h"
#include "server/prints.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

/* --- pieces --- */

static const char *messages_stop_reason(const struct dialect_choice *c)
{
    if (c->finish == FINISH_LENGTH)
        return "max_tokens";
    if (c->n_calls > 0)
        return "tool_use";
    return c->finish == FINISH_STOP_STRING ? "stop_sequence" : "end_turn";
}

static void messages_write_stop(struct json_writer *w, const struct dialect_choice *c)
{
    bool is_string = c && strcmp(messages_stop_reason(c), "stop_sequence") == 0 && c->stop_string;
    json_key(w, "stop_reason");
    if (c)
        json_str(w, messages_stop_reason(c));
    else
        json_null(w);
    json_key(w, "stop_sequence");
    if (is_string)
        json_str(w, c->stop_string);
    else
        json_null(w);
}

/* h: its diagnosis is told; NULL: not yet. */
static void messages_write_usage(struct json_writer *w, const struct dialect_head *h,
                                 int64_t prompt, int64_t cached, int64_t output)
{
    json_field_object(w, "usage");
    json_key(w, "input_tokens"); /* what the cache had is not among them */
    json_int(w, prompt - cached);
    json_field_int(w, "cache_creation_input_tokens", 0);
    json_field_int(w, "cache_read_input_tokens", cached);
    json_field_int(w, "output_tokens", output);
    json_field_str(w, "service_tier", "standard");
    if (h)
        dialect_diagnosis(w, h);
    json_end_object(w);
}

/* In what the request differs from the one that it names. null: in nothing, or there is none yet. */
static void messages_write_diagnostics(struct json_writer *w, const struct dialect_head *h)
{
    static const char *const names[] = {
        [PRINT_NOT_FOUND] = "previous_message_not_found",
        [PRINT_SAME] = NULL,
        [PRINT_TOOLS] = "tools_changed",
        [PRINT_SYSTEM] = "system_changed",
        [PRINT_EFFORT] = "unavailable",
        [PRINT_OPTIONS] = "unavailable",
        [PRINT_MESSAGES] = "messages_changed",
    };
    if (!h->compared)
        return;
    enum print_change change = h->compared->change;
    bool has_count = change == PRINT_TOOLS || change == PRINT_SYSTEM || change == PRINT_MESSAGES;
    json_key(w, "diagnostics");
    if (!h->has_earlier || change == PRINT_SAME) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    json_field_object(w, "cache_miss_reason");
    json_field_str(w, "type", names[change]);
    if (has_count)
        json_field_int(w, "cache_missed_input_tokens", h->compared->missed_tokens);
    json_end_object(w);
    json_end_object(w);
}

/* A mark that clients hand back with a thinking block and nobody checks: the same for the same block. */
static void messages_signature(const struct dialect_head *h, int32_t block, char out[24])
{
    uint64_t x = 14695981039346656037u; /* FNV-1a, 64 bits */
    for (const char *p = h->id; *p; p++)
        x = (x ^ (unsigned char)*p) * 1099511628211u;
    x = (x ^ (uint64_t)(uint32_t)block) * 1099511628211u;
    snprintf(out, 24, "plumb%016llx", (unsigned long long)x);
}

/* A call's id with this API's prefix. */
static void messages_write_id(struct json_writer *w, const struct part *p)
{
    char id[SPLIT_ID_BYTES + 8];
    const char *rest = strchr(p->id, '_');
    snprintf(id, sizeof(id), "toolu_%s", rest ? rest + 1 : p->id);
    json_field_str(w, "id", id);
}

/* The arguments as an object; what the answer's length cut is none. */
static void messages_write_input(struct json_writer *w, const struct part *p)
{
    struct json_doc doc = { 0 };
    json_key(w, "input");
    if (p && json_parse(&doc, p->text, p->n, LIMIT_JSON_VALUES, NULL) == ERR_OK &&
        json_is(&doc.root, JSON_TYPE_OBJECT)) {
        json_value(w, &doc.root);
    } else {
        json_begin_object(w);
        json_end_object(w);
    }
    json_doc_release(&doc);
}

static const char *messages_block_type(enum part_kind kind)
{
    return kind == PART_CONTENT ? "text" : kind == PART_REASONING ? "thinking" : "tool_use";
}

/* A whole block; of a stream (is_start) without what is still to come. */
static void messages_write_block(struct json_writer *w, const struct dialect_head *h, int32_t index,
                                 const struct part *p, bool is_start)
{
    char signature[24];
    json_begin_object(w);
    json_field_str(w, "type", messages_block_type(p->kind));
    switch (p->kind) {
    case PART_CONTENT:
        json_field_strn(w, "text", p->text, is_start ? 0 : p->n);
        break;
    case PART_REASONING:
        messages_signature(h, index, signature);
        json_field_strn(w, "thinking", p->text, is_start ? 0 : p->n);
        json_field_str(w, "signature", is_start ? "" : signature);
        break;
    default:
        messages_write_id(w, p);
        json_field_str(w, "name", p->name);
        messages_write_input(w, is_start ? NULL : p);
        break;
    }
    json_end_object(w);
}

static void messages_write_head(struct json_writer *w, const struct dialect_head *h)
{
    json_begin_object(w);
    json_field_str(w, "id", h->id);
    json_field_str(w, "type", "message");
    json_field_str(w, "role", "assistant");
    json_field_str(w, "model", h->model);
    json_key(w, "content");
}

/* --- a stream --- */

static void messages_event(struct buf *out, struct json_writer *w, const char *type)
{
    buf_printf(out, "event: %s\ndata: ", type);
    json_writer_init(w, out);
    json_begin_object(w);
    json_field_str(w, "type", type);
}

static void messages_event_end(struct buf *out, struct json_writer *w)
{
    json_end_object(w);
    buf_add_str(out, "\n\n");
}

static void messages_event_index(struct buf *out, struct json_writer *w, const char *type,
                                 int32_t index)
{
    messages_event(out, w, type);
    json_field_int(w, "index", index);
}

static void messages_begin(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                           const struct dialect_choice *c)
{
    struct json_writer w;
    messages_event(out, &w, "message_start");
    json_key(&w, "message");
    messages_write_head(&w, h);
    json_begin_array(&w);
    json_end_array(&w);
    messages_write_stop(&w, NULL);
    messages_write_usage(&w, NULL, h->prompt_tokens, 0, 0);
    messages_write_diagnostics(&w, h);
    json_end_object(&w);
    messages_event_end(out, &w);
}

/* {type, name: text} of the open block. */
static void messages_delta(struct buf *out, const struct dialect_state *st, const char *type,
                           const char *name, const char *text, size_t n)
{
    struct json_writer w;
    messages_event_index(out, &w, "content_block_delta", st->n_blocks - 1);
    json_field_object(&w, "delta");
    json_field_str(&w, "type", type);
    json_field_strn(&w, name, text, n);
    json_end_object(&w);
    messages_event_end(out, &w);
}

static void messages_stop_block(struct buf *out, const struct dialect_head *h,
                                struct dialect_state *st)
{
    struct json_writer w;
    if (!st->is_open)
        return;
    if (st->open == PART_REASONING) {
        char signature[24];
        messages_signature(h, st->n_blocks - 1, signature);
        messages_delta(out, st, "signature_delta", "signature", signature, strlen(signature));
    }
    messages_event_index(out, &w, "content_block_stop", st->n_blocks - 1);
    messages_event_end(out, &w);
    st->is_open = false;
}

static void messages_start_block(struct buf *out, const struct dialect_head *h,
                                 struct dialect_state *st, const struct part *p)
{
    struct json_writer w;
    messages_stop_block(out, h, st);
    messages_event_index(out, &w, "content_block_start", st->n_blocks);
    json_key(&w, "content_block");
    messages_write_block(&w, h, st->n_blocks, p, true);
    messages_event_end(out, &w);
    st->n_blocks++;
    st->is_open = true;
    st->open = p->kind;
}

static void messages_part(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                          const struct dialect_choice *c, const struct part *p)
{
    bool is_text = p->kind == PART_CONTENT || p->kind == PART_REASONING;
    if (is_text && p->n == 0)
        return;
    if (p->kind == PART_CALL_BEGIN || (is_text && !(st->is_open && st->open == p->kind)))
        messages_start_block(out, h, st, p);
    if (p->kind == PART_CONTENT)
        messages_delta(out, st, "text_delta", "text", p->text, p->n);
    else if (p->kind == PART_REASONING)
        messages_delta(out, st, "thinking_delta", "thinking", p->text, p->n);
    else if (p->kind == PART_CALL_ARGUMENTS && p->n > 0)
        messages_delta(out, st, "input_json_delta", "partial_json", p->text, p->n);
    else if (p->kind == PART_CALL_END)
        messages_stop_block(out, h, st);
}

static void messages_end(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                         const struct dialect_choice *c)
{
    messages_stop_block(out, h, st);
}

static void messages_close(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                           const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    struct json_writer w;
    messages_event(out, &w, "message_delta");
    json_field_object(&w, "delta");
    messages_write_stop(&w, c);
    dialect_ids(&w, h, c);
    json_end_object(&w);
    messages_write_usage(&w, h, u->prompt_tokens, u->cached_tokens, u->completion_tokens);
    messages_event_end(out, &w);
    messages_event(out, &w, "message_stop");
    messages_event_end(out, &w);
}

static void messages_error(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                           const struct api_error *e)
{
    buf_add_str(out, "event: error\ndata: ");
    api_error_write_anthropic(out, e, NULL);
    buf_add_str(out, "\n\n");
}

static void messages_keep_alive(struct buf *out, const struct dialect_head *h,
                                struct dialect_state *st, int32_t n)
{
    struct json_writer w;
    messages_event(out, &w, "ping");
    messages_event_end(out, &w);
}

/* --- whole --- */

static void messages_whole(struct buf *out, const struct dialect_head *h,
                           const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    struct json_writer w;
    int32_t n_blocks = 0;
    json_writer_init(&w, out);
    messages_write_head(&w, h);
    json_begin_array(&w);
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].n > 0 || c->parts[i].kind == PART_CALL_ARGUMENTS)
            messages_write_block(&w, h, n_blocks++, &c->parts[i], false);
    json_end_array(&w);
    messages_write_stop(&w, c);
    dialect_ids(&w, h, c);
    messages_write_usage(&w, h, u->prompt_tokens, u->cached_tokens, u->completion_tokens);
    messages_write_diagnostics(&w, h);
    json_end_object(&w);
}

const struct dialect dialect_messages = {
    .id_prefix = "msg_",
    .begin = messages_begin,
    .part = messages_part,
    .end = messages_end,
    .close = messages_close,
    .error = messages_error,
    .keep_alive = messages_keep_alive,
    .whole = messages_whole,
};
