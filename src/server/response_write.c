/* response_write.c - the object and the events of a response, from its log. */
#include "server/response_int.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

enum item_kind { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_FUNCTION, ITEM_CUSTOM };

/* One item of the output: records of the log that belong together. */
struct response_item {
    const struct response *response;
    enum item_kind kind;
    int32_t index;
    size_t begin, end;          /* in the log */
    const char *call_id, *name; /* of a call */
    size_t n_call_id, n_name;
};

static const char *const response_statuses[] = { "queued",     "in_progress", "completed",
                                                 "incomplete", "failed",      "cancelled" };

/* --- items --- */

/* What an item that begins with the record holds. ITEM_NONE: none begins there. */
static enum item_kind response_item_kind(enum response_record_kind k)
{
    switch (k) {
    case RESPONSE_RECORD_REASONING:
        return ITEM_REASONING;
    case RESPONSE_RECORD_CONTENT:
    case RESPONSE_RECORD_LOGPROBS:
        return ITEM_MESSAGE;
    case RESPONSE_RECORD_FUNCTION:
        return ITEM_FUNCTION;
    case RESPONSE_RECORD_CUSTOM:
        return ITEM_CUSTOM;
    default:
        return ITEM_NONE;
    }
}

/* Does the record end an item of that kind? Calls end with each other's beginning; texts of one kind belong together. */
static bool response_ends_item(enum item_kind open, enum response_record_kind k)
{
    enum item_kind next = response_item_kind(k);
    if (k == RESPONSE_RECORD_END)
        return true;
    return next != ITEM_NONE && (next != open || open == ITEM_FUNCTION || open == ITEM_CUSTOM);
}

/* The item whose first record stands at `at`, as far as the log goes up to `until`. */
static struct response_item response_item_at(const struct response *r, int32_t index, size_t at,
                                             size_t until)
{
    struct response_item item = { .response = r, .index = index, .begin = at };
    struct response_record rec;
    if (!response_next_record(&r->log, &at, &rec))
        return item;
    item.kind = response_item_kind(rec.kind);
    if (item.kind == ITEM_FUNCTION || item.kind == ITEM_CUSTOM) {
        const char *nul = memchr(rec.text, '\0', rec.n);
        item.call_id = rec.text;
        item.n_call_id = nul ? (size_t)(nul - rec.text) : rec.n;
        item.name = nul ? nul + 1 : "";
        item.n_name = nul ? rec.n - item.n_call_id - 1 : 0;
    }
    for (item.end = at; at < until && response_next_record(&r->log, &at, &rec); item.end = at)
        if (response_ends_item(item.kind, rec.kind))
            break;
    return item;
}

/* The next item at or behind *at; *at moves behind it. *is_whole: the log tells its end. False: there is none. */
static bool response_next_item(const struct response *r, int32_t index, size_t *at,
                               struct response_item *out, bool *is_whole)
{
    struct response_record rec;
    size_t begin = *at;
    while (response_next_record(&r->log, at, &rec)) {
        if (response_item_kind(rec.kind) != ITEM_NONE) {
            *out = response_item_at(r, index, begin, r->log.len);
            *at = out->end;
            *is_whole = out->end < r->log.len;
            return true;
        }
        begin = *at;
    }
    return false;
}

/* The records of a kind, joined, as a JSON string or (logprobs) as an array. */
static void response_join(struct json_writer *w, const struct response_item *item,
                          enum response_record_kind kind)
{
    const struct response *r = item->response;
    struct response_record rec;
    struct buf text;
    bool is_list = kind == RESPONSE_RECORD_LOGPROBS;
    size_t at = item->begin;
    buf_init(&text, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    if (is_list)
        buf_add_char(&text, '[');
    while (at < item->end && response_next_record(&r->log, &at, &rec)) {
        if (rec.kind != kind)
            continue;
        if (is_list && text.len > 1)
            buf_add_char(&text, ',');
        buf_add(&text, rec.text, rec.n);
    }
    if (is_list) {
        buf_add_char(&text, ']');
        json_raw(w, text.data, text.len);
    } else {
        json_strn(w, text.data, text.len);
    }
    w->out->failed = w->out->failed || text.failed;
    buf_release(&text);
}

static void response_item_id(const struct response_item *item, char *out, size_t n)
{
    static const char *const prefixes[] = { "", "rs", "msg", "fc", "ctc" };
    const char *id = strchr(item->response->id, '_');
    snprintf(out, n, "%s_%s_%d", prefixes[item->kind], id ? id + 1 : item->response->id,
             item->index);
}

static void response_text_part(struct json_writer *w, const struct response_item *item,
                               const char *type, bool is_empty)
{
    json_begin_object(w);
    json_field_str(w, "type", type);
    json_key(w, "text");
    if (is_empty)
        json_str(w, "");
    else
        response_join(w, item,
                      item->kind == ITEM_MESSAGE ? RESPONSE_RECORD_CONTENT
                                                 : RESPONSE_RECORD_REASONING);
    if (item->kind == ITEM_MESSAGE) {
        json_field_array(w, "annotations");
        json_end_array(w);
        json_key(w, "logprobs");
        if (is_empty)
            json_raw(w, "[]", 2);
        else
            response_join(w, item, RESPONSE_RECORD_LOGPROBS);
    }
    json_end_object(w);
}

static bool response_has_summary(const struct response *r)
{
    return response_flags(r) & RESPONSE_FLAG_SUMMARY;
}

static const char *response_part_type(const struct response_item *item)
{
    if (item->kind == ITEM_MESSAGE)
        return "output_text";
    return response_has_summary(item->response) ? "summary_text" : "reasoning_text";
}

/* An array with the item's one part, or none. */
static void response_parts(struct json_writer *w, const struct response_item *item, bool has_part)
{
    json_begin_array(w);
    if (has_part)
        response_text_part(w, item, response_part_type(item), false);
    json_end_array(w);
}

static void response_item_body(struct json_writer *w, const struct response_item *item,
                               bool is_empty)
{
    bool has_summary = response_has_summary(item->response);
    switch (item->kind) {
    case ITEM_REASONING:
        json_key(w, "summary");
        response_parts(w, item, !is_empty && has_summary);
        json_key(w, "content");
        response_parts(w, item, !is_empty && !has_summary);
        json_field_null(w, "encrypted_content");
        break;
    case ITEM_MESSAGE:
        json_field_str(w, "role", "assistant");
        json_key(w, "content");
        response_parts(w, item, !is_empty);
        break;
    case ITEM_FUNCTION:
    case ITEM_CUSTOM:
        json_field_strn(w, "call_id", item->call_id, item->n_call_id);
        json_field_strn(w, "name", item->name, item->n_name);
        json_key(w, item->kind == ITEM_CUSTOM ? "input" : "arguments");
        if (is_empty)
            json_str(w, "");
        else
            response_join(w, item, RESPONSE_RECORD_ARGUMENTS);
        break;
    case ITEM_NONE:
        break;
    }
}

/* is_empty: as it is when it begins. */
static void response_write_item(struct json_writer *w, const struct response_item *item,
                                const char *status, bool is_empty)
{
    static const char *const types[] = { "", "reasoning", "message", "function_call",
                                         "custom_tool_call" };
    char id[STORE_ID_BYTES + 16];
    response_item_id(item, id, sizeof(id));
    json_begin_object(w);
    json_field_str(w, "id", id);
    json_field_str(w, "type", types[item->kind]);
    json_field_str(w, "status", status);
    response_item_body(w, item, is_empty);
    json_end_object(w);
}

/* The status of an item that nothing ended before the log's end. */
static const char *response_last_status(const struct response *r)
{
    if (r->outcome.status == RESPONSE_STATUS_COMPLETED)
        return "completed";
    return response_is_over(r) ? "incomplete" : "in_progress";
}

static void response_write_items(struct json_writer *w, const struct response *r)
{
    struct response_item item;
    bool is_whole;
    size_t at = 1;
    json_begin_array(w);
    for (int32_t i = 0; response_next_item(r, i, &at, &item, &is_whole); i++)
        response_write_item(w, &item, is_whole ? "completed" : response_last_status(r), false);
    json_end_array(w);
}

void response_write_output(const struct response *r, struct buf *out)
{
    struct json_writer w;
    json_writer_init(&w, out);
    response_write_items(&w, r);
}

/* --- the object --- */

/* A member that is the JSON of the log's only record of that kind; nothing where there is none. */
static void response_write_only(struct json_writer *w, const struct response *r,
                                enum response_record_kind kind, const char *name)
{
    struct response_record rec;
    for (size_t at = 1; response_next_record(&r->log, &at, &rec);)
        if (rec.kind == kind)
            json_field_raw(w, name, rec.text, rec.n);
}

static void response_write_usage(struct json_writer *w, const struct response *r,
                                 const struct response_outcome *o)
{
    json_key(w, "usage");
    if (!o->has_usage) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    json_field_int(w, "input_tokens", o->input_tokens);
    json_field_object(w, "input_tokens_details");
    json_field_int(w, "cached_tokens", o->cached_tokens);
    json_field_int(w, "cache_write_tokens", 0);
    json_end_object(w);
    json_field_int(w, "output_tokens", o->output_tokens);
    json_field_object(w, "output_tokens_details");
    json_field_int(w, "reasoning_tokens", o->reasoning_tokens);
    json_end_object(w);
    json_field_int(w, "total_tokens", o->input_tokens + o->output_tokens);
    response_write_only(w, r, RESPONSE_RECORD_DIAGNOSIS, "cache_diagnostics");
    json_end_object(w);
}

static void response_write_error(struct json_writer *w, const struct response_outcome *o)
{
    json_key(w, "error");
    if (o->status == RESPONSE_STATUS_FAILED) {
        json_begin_object(w);
        json_field_str(w, "code", o->error_code);
        json_field_str(w, "message", o->error_text);
        json_end_object(w);
    } else {
        json_null(w);
    }
    json_key(w, "incomplete_details");
    if (o->status == RESPONSE_STATUS_INCOMPLETE) {
        json_begin_object(w);
        json_field_str(w, "reason", "max_output_tokens");
        json_end_object(w);
    } else {
        json_null(w);
    }
}

/* The object as it is with that outcome; has_output: with what the log holds. */
static void response_write_with(struct json_writer *w, const struct response *r,
                                const struct response_outcome *o, bool has_output)
{
    json_begin_object(w);
    json_field_str(w, "id", r->id);
    json_field_str(w, "object", "response");
    json_field_int(w, "created_at", r->created_s);
    json_key(w, "completed_at");
    if (o->completed_s > 0)
        json_int(w, o->completed_s);
    else
        json_null(w);
    json_field_str(w, "status", response_statuses[o->status]);
    json_field_bool(w, "background", response_flags(r) & RESPONSE_FLAG_BACKGROUND);
    response_write_error(w, o);
    if (r->frame.len > 0) {
        buf_add_char(w->out, ',');
        buf_add(w->out, r->frame.data, r->frame.len);
    }
    json_key(w, "output");
    if (has_output)
        response_write_items(w, r);
    else
        json_raw(w, "[]", 2);
    response_write_usage(w, r, o);
    if (o->has_usage)
        response_write_only(w, r, RESPONSE_RECORD_COMPARED, "prompt_cache_diagnostics");
    json_end_object(w);
}

void response_write_object(const struct response *r, struct buf *out)
{
    struct json_writer w;
    json_writer_init(&w, out);
    response_write_with(&w, r, &r->outcome, true);
}

/* --- events --- */

/* One stream being written. */
struct response_events {
    const struct response *r;
    struct response_view *v;
    struct buf *out;
    struct json_writer w;
    size_t mark; /* where the event began in out */
};

static void response_event_begin(struct response_events *e, const char *type)
{
    e->mark = e->out->len;
    buf_printf(e->out, "event: %s\ndata: ", type);
    json_writer_init(&e->w, e->out);
    json_begin_object(&e->w);
    json_field_str(&e->w, "type", type);
    json_field_int(&e->w, "sequence_number", e->v->n_events);
}

static void response_event_end(struct response_events *e)
{
    json_end_object(&e->w);
    buf_add_str(e->out, "\n\n");
    if (e->v->n_events < e->v->after && !e->out->failed)
        buf_cut(e->out, e->mark);
    e->v->n_events++;
}

/* An event with the response, as it is with that status before it is over. */
static void response_event_state(struct response_events *e, const char *type,
                                 enum response_status status)
{
    const struct response_outcome o = { .status = status };
    response_event_begin(e, type);
    json_key(&e->w, "response");
    response_write_with(&e->w, e->r, &o, false);
    response_event_end(e);
}

static void response_event_place(struct response_events *e, const struct response_item *item)
{
    char id[STORE_ID_BYTES + 16];
    response_item_id(item, id, sizeof(id));
    json_field_str(&e->w, "item_id", id);
    json_field_int(&e->w, "output_index", item->index);
    if (item->kind == ITEM_FUNCTION || item->kind == ITEM_CUSTOM)
        return;
    json_field_int(&e->w,
                   item->kind == ITEM_REASONING && response_has_summary(item->response)
                       ? "summary_index"
                       : "content_index",
                   0);
}

static void response_event_item(struct response_events *e, const struct response_item *item,
                                const char *type, const char *status, bool is_empty)
{
    response_event_begin(e, type);
    json_field_int(&e->w, "output_index", item->index);
    json_key(&e->w, "item");
    response_write_item(&e->w, item, status, is_empty);
    response_event_end(e);
}

/* The names of an item's events. NULL: it has no parts. */
struct response_names {
    const char *part_added, *delta, *done, *part_done, *whole_key;
};

static const struct response_names *response_names_of(const struct response_item *item)
{
    static const struct response_names names[] = {
        [ITEM_REASONING] = { "response.content_part.added", "response.reasoning_text.delta",
                             "response.reasoning_text.done", "response.content_part.done", "text" },
        [ITEM_MESSAGE] = { "response.content_part.added", "response.output_text.delta",
                           "response.output_text.done", "response.content_part.done", "text" },
        [ITEM_FUNCTION] = { NULL, "response.function_call_arguments.delta",
                            "response.function_call_arguments.done", NULL, "arguments" },
        [ITEM_CUSTOM] = { NULL, "response.custom_tool_call_input.delta",
                          "response.custom_tool_call_input.done", NULL, "input" },
    };
    static const struct response_names summary = { "response.reasoning_summary_part.added",
                                                   "response.reasoning_summary_text.delta",
                                                   "response.reasoning_summary_text.done",
                                                   "response.reasoning_summary_part.done", "text" };
    return item->kind == ITEM_REASONING && response_has_summary(item->response)
               ? &summary
               : &names[item->kind];
}

static void response_event_part(struct response_events *e, const struct response_item *item,
                                const char *type, bool is_empty)
{
    if (!type)
        return;
    response_event_begin(e, type);
    response_event_place(e, item);
    json_key(&e->w, "part");
    response_text_part(&e->w, item, response_part_type(item), is_empty);
    response_event_end(e);
}

static void response_open_item(struct response_events *e, size_t at)
{
    struct response_view *v = e->v;
    struct response_item item = response_item_at(e->r, v->n_items, at, at);
    v->is_open = true;
    v->item_at = at;
    v->n_items++;
    response_event_item(e, &item, "response.output_item.added", "in_progress", true);
    response_event_part(e, &item, response_names_of(&item)->part_added, true);
}

/* End the open item with the record that ends before `until`. */
static void response_close_item(struct response_events *e, size_t until, const char *status)
{
    struct response_view *v = e->v;
    struct response_item item = response_item_at(e->r, v->n_items - 1, v->item_at, until);
    const struct response_names *names = response_names_of(&item);
    if (!v->is_open)
        return;
    v->is_open = false;
    response_event_begin(e, names->done);
    response_event_place(e, &item);
    if (item.kind == ITEM_FUNCTION) {
        json_field_strn(&e->w, "name", item.name, item.n_name);
    }
    json_key(&e->w, names->whole_key);
    response_join(&e->w, &item,
                  item.kind == ITEM_MESSAGE     ? RESPONSE_RECORD_CONTENT
                  : item.kind == ITEM_REASONING ? RESPONSE_RECORD_REASONING
                                                : RESPONSE_RECORD_ARGUMENTS);
    if (item.kind == ITEM_MESSAGE) {
        json_key(&e->w, "logprobs");
        response_join(&e->w, &item, RESPONSE_RECORD_LOGPROBS);
    }
    response_event_end(e);
    response_event_part(e, &item, names->part_done, false);
    response_event_item(e, &item, "response.output_item.done", status, false);
}

static void response_event_delta(struct response_events *e, const struct response_record *rec,
                                 const struct response_record *logprobs)
{
    struct response_item item =
        response_item_at(e->r, e->v->n_items - 1, e->v->item_at, e->v->item_at);
    response_event_begin(e, response_names_of(&item)->delta);
    response_event_place(e, &item);
    json_field_strn(&e->w, "delta", rec->text, rec->n);
    if (item.kind == ITEM_MESSAGE) {
        json_field_array(&e->w, "logprobs");
        if (logprobs->n > 0)
            json_raw(&e->w, logprobs->text, logprobs->n);
        json_end_array(&e->w);
    }
    response_event_end(e);
}

/* The record at v->at, which exists; log-probabilities are told with the content behind them. */
static void response_write_record(struct response_events *e)
{
    struct response_view *v = e->v;
    struct response_record rec, logprobs = { .n = 0 };
    size_t begin = v->at, next = v->at;
    (void)!response_next_record(&e->r->log, &next, &rec);
    if (rec.kind == RESPONSE_RECORD_LOGPROBS) {
        logprobs = rec;
        if (!response_next_record(&e->r->log, &next, &rec)) {
            v->at = next;
            return;
        }
    }
    enum item_kind open =
        v->is_open ? response_item_at(e->r, 0, v->item_at, v->item_at).kind : ITEM_NONE;
    if (v->is_open && response_ends_item(open, rec.kind))
        response_close_item(e, begin, "completed");
    if (!v->is_open && response_item_kind(rec.kind) != ITEM_NONE)
        response_open_item(e, begin);
    if (rec.kind == RESPONSE_RECORD_STARTED || rec.kind == RESPONSE_RECORD_KEEP_ALIVE)
        response_event_state(e, "response.in_progress", RESPONSE_STATUS_IN_PROGRESS);
    else if (v->is_open &&
             (rec.kind == RESPONSE_RECORD_CONTENT || rec.kind == RESPONSE_RECORD_REASONING ||
              rec.kind == RESPONSE_RECORD_ARGUMENTS))
        response_event_delta(e, &rec, &logprobs);
    v->at = next;
}

static void response_write_first(struct response_events *e)
{
    bool is_background = response_flags(e->r) & RESPONSE_FLAG_BACKGROUND;
    enum response_status status =
        is_background ? RESPONSE_STATUS_QUEUED : RESPONSE_STATUS_IN_PROGRESS;
    e->v->at = 1;
    response_event_state(e, "response.created", status);
    if (is_background)
        response_event_state(e, "response.queued", status);
    else
        response_event_state(e, "response.in_progress", status);
}

/* The API has no event for a cancel: it is told as an end that is not complete, with the status as it is. */
static void response_write_last(struct response_events *e)
{
    static const char *const types[] = { NULL,
                                         NULL,
                                         "response.completed",
                                         "response.incomplete",
                                         "response.failed",
                                         "response.incomplete" };
    enum response_status status = e->r->outcome.status;
    response_close_item(e, e->r->log.len, response_last_status(e->r));
    response_event_begin(e, types[status]);
    json_key(&e->w, "response");
    response_write_with(&e->w, e->r, &e->r->outcome, true);
    response_event_end(e);
    e->v->is_ended = true;
}

void response_write_events(const struct response *r, struct response_view *v, size_t max_bytes,
                           struct buf *out)
{
    struct response_events e = { .r = r, .v = v, .out = out };
    struct response_record rec;
    if (v->at == 0)
        response_write_first(&e);
    while (!v->is_ended && out->len < max_bytes && !out->failed) {
        size_t next = v->at;
        if (response_next_record(&r->log, &next, &rec))
            response_write_record(&e);
        else if (response_is_over(r))
            response_write_last(&e);
        else
            break;
    }
}
