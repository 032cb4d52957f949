/* prepare_responses.c - a request of the Responses API, made into a chat request; and the list of a response's input items.
 *
 * A request that names kept responses is prepared twice: the first time finds out which, the second time has them. */
#include "server/items.h"
#include "server/prepare_responses_int.h"
#include "server/response.h"

#include <stdio.h>
#include <string.h>

#define RESPONSES_REFERENCES_MAX 1024 /* kept responses that item references name */
#define RESPONSES_ID_DIGITS      32   /* of "resp_..." */

/* --- plain fields --- */

static bool responses_refuse(const struct responses *q, const char *name, const char *instead,
                             struct api_error *e)
{
    if (!json_get_set(q->body, name))
        return true;
    return api_error_set(e, 400, "unsupported_value", name, "%s: is not supported; %s", name,
                         instead);
}

/* The member of an object as a string. False: e. */
static bool responses_string(const struct json *v, const char *name, const struct json **out,
                             struct api_error *e)
{
    *out = v;
    return !v || json_is(v, JSON_TYPE_STRING) ||
           api_error_set(e, 400, NULL, name, "%s: must be a string", name);
}

static bool responses_object(const struct responses *q, const char *name, const struct json **out,
                             struct api_error *e)
{
    *out = json_get_set(q->body, name);
    return !*out || json_is(*out, JSON_TYPE_OBJECT) ||
           api_error_set(e, 400, NULL, name, "%s: must be an object", name);
}

static bool responses_text(struct responses *q, struct api_error *e)
{
    const struct json *text;
    if (!responses_object(q, "text", &text, e) ||
        !responses_string(json_get_set(text, "verbosity"), "text.verbosity", &q->verbosity, e))
        return false;
    const struct json *format = json_get_set(text, "format"), *type = json_get(format, "type");
    if (!format || json_str_eq(type, "text"))
        return true;
    q->format = format;
    if (json_str_eq(type, "json_object") || json_str_eq(type, "json_schema"))
        return true;
    return api_error_set(e, 400, NULL, "text.format",
                         "text.format: must be an object of type text, json_object or json_schema");
}

static bool responses_reasoning(struct responses *q, struct api_error *e)
{
    const struct json *v;
    if (!responses_object(q, "reasoning", &v, e) ||
        !responses_string(json_get_set(v, "effort"), "reasoning.effort", &q->effort, e))
        return false;
    const struct json *summary = json_get_set(v, "summary");
    if (!summary)
        summary = json_get_set(v, "generate_summary"); /* its older name */
    if (!responses_string(summary, "reasoning.summary", &q->summary, e))
        return false;
    q->r->has_summary = q->summary && !json_str_eq(q->summary, "none");
    return true;
}

static bool responses_truncation(struct responses *q, struct api_error *e)
{
    const struct json *v = json_get_set(q->body, "truncation");
    q->is_auto = json_str_eq(v, "auto");
    return !v || q->is_auto || json_str_eq(v, "disabled") ||
           api_error_set(e, 400, NULL, "truncation", "truncation: must be 'auto' or 'disabled'");
}

static bool responses_include(struct responses *q, struct api_error *e)
{
    const struct json *v = json_get_set(q->body, "include");
    if (v && !json_is(v, JSON_TYPE_ARRAY))
        return api_error_set(e, 400, NULL, "include", "include: must be an array");
    for (size_t i = 0; v && i < v->n; i++)
        q->fields.logprobs =
            q->fields.logprobs || json_str_eq(&v->items[i], "message.output_text.logprobs");
    q->fields.logprobs = q->fields.logprobs || q->fields.n_logprobs > 0;
    return true;
}

static bool responses_keeping(struct responses *q, struct api_error *e)
{
    bool has_store = q->ctx->config->state_dir != NULL;
    const struct json *previous = json_get_set(q->body, "previous_response_id");
    q->r->is_background = q->fields.background;
    q->r->is_stored = has_store && q->fields.store;
    if (q->fields.background && !has_store)
        return api_error_set(e, 400, "unsupported_value", "background",
                             "background: this server keeps no responses (--no-store, or no state "
                             "directory)");
    if (q->fields.background && !q->fields.store)
        return api_error_set(e, 400, NULL, "background", "background: needs store");
    if (!previous)
        return true;
    if (!json_is(previous, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, "previous_response_id",
                             "previous_response_id: must be a string");
    if (!has_store || previous->len == 0 || previous->len >= STORE_ID_BYTES)
        return api_error_set(e, 404, "previous_response_not_found", "previous_response_id",
                             "previous_response_id: '%.80s' is not kept here%s", previous->text,
                             has_store ? "" : ": this server keeps no responses");
    snprintf(q->r->previous, sizeof(q->r->previous), "%s", previous->text);
    return true;
}

static bool responses_fields(struct responses *q, struct api_error *e)
{
    const struct json *instructions = json_get_set(q->body, "instructions");
    if (!fields_read(q->body, FIELDS_ROUTE_RESPONSES, &q->fields, q->ignored, e) ||
        !responses_refuse(q, "conversation", "chain responses by previous_response_id", e) ||
        !responses_refuse(q, "prompt", "write the prompt into instructions and input", e) ||
        !responses_text(q, e) || !responses_reasoning(q, e) || !responses_truncation(q, e) ||
        !responses_include(q, e) || !responses_keeping(q, e))
        return false;
    if (instructions && !json_is(instructions, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, "instructions", "instructions: must be a string");
    if (!json_get_set(q->body, "input"))
        return api_error_set(e, 400, NULL, "input", "input: must be a string or an array of items");
    return true;
}

/* --- kept responses --- */

/* The response that an item of it names, "msg_<digits>_<n>", into out. False: it is none of ours. */
static bool responses_id_of_item(const char *item, char *out)
{
    const char *first = strchr(item, '_');
    if (!first || strspn(first + 1, "0123456789abcdef") != RESPONSES_ID_DIGITS ||
        first[1 + RESPONSES_ID_DIGITS] != '_')
        return false;
    snprintf(out, STORE_ID_BYTES, "resp_%.*s", RESPONSES_ID_DIGITS, first + 1);
    return true;
}

/* Which kept responses the item references of the input name. */
static void responses_find_references(struct responses *q)
{
    const struct json *input = json_get_set(q->body, "input");
    struct prepared_response *r = q->r;
    for (size_t i = 0; json_is(input, JSON_TYPE_ARRAY) && i < input->n; i++) {
        const struct json *item = &input->items[i], *id = json_get(item, "id");
        const struct json *type = json_get_set(item, "type");
        bool is_reference = type ? json_str_eq(type, "item_reference") : !json_get(item, "role");
        char found[STORE_ID_BYTES];
        bool is_known = false;
        if (!is_reference || !json_is(id, JSON_TYPE_STRING) ||
            !responses_id_of_item(id->text, found) || r->n_more == RESPONSES_REFERENCES_MAX)
            continue;
        for (int32_t k = 0; k < r->n_more && !is_known; k++)
            is_known = strcmp(r->more[k], found) == 0;
        if (is_known)
            continue;
        r->more = mem_realloc(MEM_CAT_SERVER, r->more, sizeof(*r->more) * (size_t)(r->n_more + 1));
        memcpy(r->more[r->n_more++], found, sizeof(found));
    }
}

static bool responses_lost(struct api_error *e, const char *id, const char *why)
{
    return api_error_set(e, 404, "previous_response_not_found", "previous_response_id",
                         "the kept response '%s' cannot be read: %s", id, why);
}

/* A row to what it means. False: e. */
static bool responses_read_turn(struct store_row *row, struct responses_turn *turn,
                                struct api_error *e)
{
    struct err err;
    struct buf output;
    struct response *r = response_from_row(row, &err);
    memcpy(turn->id, row->id, sizeof(turn->id));
    buf_init(&turn->ids, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (!r)
        return responses_lost(e, row->id, err.text);
    buf_init(&output, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    bool is_fine = response_is_over(r);
    if (!is_fine)
        api_error_set(e, 400, "response_not_over", "previous_response_id",
                      "the response '%s' is still running: wait for its end", r->id);
    if (is_fine) {
        response_write_output(r, &output);
        response_write_ids(r, &turn->ids);
        is_fine = (json_parse(&turn->input, r->input.data, r->input.len, LIMIT_JSON_VALUES, &err) ==
                       ERR_OK &&
                   json_parse(&turn->output, output.data, output.len, LIMIT_JSON_VALUES, &err) ==
                       ERR_OK) ||
                  responses_lost(e, r->id, err.text);
    }
    buf_release(&output);
    response_unref(r);
    return is_fine;
}

static bool responses_read_history(struct responses *q, struct api_error *e)
{
    struct store_job *history = q->in->history;
    if (!history)
        return true;
    q->turns = mem_alloc(MEM_CAT_REQUEST, sizeof(*q->turns) * (size_t)(history->n + 1));
    q->n_chain = history->n_chain;
    for (int32_t i = 0; i < history->n; i++, q->n_turns++)
        if (!responses_read_turn(&history->rows[i], &q->turns[i], e)) {
            q->n_turns++;
            return false;
        }
    return true;
}

static const struct json *responses_find_in(const struct json *items, const char *id)
{
    for (size_t i = 0; i < items->n; i++)
        if (json_str_eq(json_get(&items->items[i], "id"), id))
            return &items->items[i];
    return NULL;
}

static const struct json *responses_find(void *arg, const char *id)
{
    const struct responses *q = arg;
    for (int32_t i = 0; i < q->n_turns; i++) {
        const struct json *found = responses_find_in(&q->turns[i].output.root, id);
        if (!found)
            found = responses_find_in(&q->turns[i].input.root, id);
        if (found)
            return found;
    }
    return NULL;
}

/* --- the chat request --- */

/* All messages but the n_skip oldest turns. *n_users: how many turns there are. */
static bool responses_messages(struct responses *q, int32_t n_skip, int32_t *n_users,
                               struct buf *out, struct api_error *e)
{
    const struct json *instructions = json_get_set(q->body, "instructions");
    struct items x;
    bool is_fine = true;
    items_init(&x);
    x.n_skip = n_skip;
    x.ignored = q->ignored;
    x.find = responses_find;
    x.find_arg = q;
    if (instructions)
        items_add_system(&x, instructions->text, instructions->len);
    x.origin = DIAGNOSIS_FROM_PREVIOUS;
    for (int32_t i = 0; i < q->n_chain && is_fine; i++) {
        is_fine = items_add(&x, &q->turns[i].input.root, "previous input", e);
        buf_reset(&x.ids);
        if (!x.is_open) /* else it becomes part of a message that the client began */
            buf_add(&x.ids, q->turns[i].ids.data, q->turns[i].ids.len);
        is_fine = is_fine && items_add(&x, &q->turns[i].output.root, "previous output", e);
        if (!x.is_open)
            buf_reset(&x.ids);
    }
    x.origin = 0;
    is_fine = is_fine && items_add(&x, json_get_set(q->body, "input"), "input", e) &&
              items_write_messages(&x, out, e);
    buf_reset(&q->origins);
    if (x.system.len > 0)
        buf_add(&q->origins, &(int32_t){ DIAGNOSIS_FROM_SYSTEM }, sizeof(int32_t));
    buf_add(&q->origins, x.origins.data, x.origins.len);
    *n_users = x.n_users;
    items_release(&x);
    return is_fine;
}

static void responses_options(const struct responses *q, struct json_writer *w)
{
    static const char *const same[] = {
        "model",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
        "repetition_penalty",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "logit_bias",
        "stop",
        "ignore_eos",
        "chat_template_kwargs",
        "documents",
        "priority",
        "cache_salt",
        "cache_diagnostics",
        "speculation",
        "deadline_ms",
        "parallel_tool_calls",
        "thinking",
        "thinking_budget",
    };
    for (size_t i = 0; i < ARRAY_LEN(same); i++)
        prepare_responses_copy(w, q->body, same[i]);
    if (q->fields.max_completion_tokens != FIELDS_UNSET) {
        json_field_int(w, "max_completion_tokens", q->fields.max_completion_tokens);
    }
    if (q->fields.logprobs) {
        json_field_bool(w, "logprobs", true);
        json_field_int(w, "top_logprobs",
                       q->fields.n_logprobs == FIELDS_UNSET ? 0 : q->fields.n_logprobs);
    }
    if (q->effort) {
        json_field_value(w, "reasoning_effort", q->effort);
    }
    if (q->format)
        json_field_value(w, "response_format", q->format);
}

static bool responses_write_chat(struct responses *q, int32_t n_skip, int32_t *n_users,
                                 struct buf *out, struct api_error *e)
{
    struct json_writer w;
    struct buf messages;
    buf_init(&messages, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    bool is_fine = responses_messages(q, n_skip, n_users, &messages, e);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_raw(&w, "messages", messages.data, messages.len);
    if (q->tools.len > 0) {
        json_field_array(&w, "tools");
        json_raw(&w, q->tools.data, q->tools.len);
        json_end_array(&w);
    }
    is_fine = is_fine && prepare_responses_choice(q, &w, e);
    responses_options(q, &w);
    json_end_object(&w);
    if (is_fine && (out->failed || messages.failed))
        is_fine = api_error_set(e, 400, NULL, "input", "input: over its limit of %d bytes",
                                LIMIT_PROMPT_BYTES);
    buf_release(&messages);
    return is_fine;
}

/* The names of chat's fields as this API has them. */
static void responses_rename(struct api_error *e)
{
    static const char *const names[][2] = { { "messages", "input" },
                                            { "max_completion_tokens", "max_output_tokens" },
                                            { "reasoning_effort", "reasoning.effort" },
                                            { "response_format", "text.format" } };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        api_error_rename(e, names[i][0], names[i][1]);
}

/* Prepare it without the n_skip oldest turns. Never NULL; the error says whether it went well. */
static struct prepared *responses_attempt(struct responses *q, int32_t n_skip, int32_t *n_users)
{
    struct prepared *p = prepare_new(PREPARE_CHAT);
    struct prepare_input in = *q->in;
    struct json_doc doc = { 0 };
    struct buf text;
    struct err err;
    in.custom = json_get_set(q->body, "tools");
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (responses_write_chat(q, n_skip, n_users, &text, &p->error)) {
        if (json_parse(&doc, text.data, text.len, LIMIT_JSON_VALUES, &err) != ERR_OK)
            api_error_set(&p->error, 400, NULL, "input", "%s", err.text);
        else
            prepare_generation(q->ctx, &in, &doc.root, p);
    }
    if (p->diagnosis) {
        p->diagnosis->n_origins = (int32_t)(q->origins.len / sizeof(int32_t));
        p->diagnosis->origins = mem_alloc(MEM_CAT_REQUEST, q->origins.len + sizeof(int32_t));
        memcpy(p->diagnosis->origins, q->origins.data, q->origins.len);
    }
    responses_rename(&p->error);
    json_doc_release(&doc);
    buf_release(&text);
    return p;
}

static bool responses_is_too_long(const struct prepared *p)
{
    return p->error.code && strcmp(p->error.code, "context_length_exceeded") == 0;
}

/* Prepare it; where it is too long and may be cut, with as many turns as fit. */
static struct prepared *responses_fit(struct responses *q)
{
    int32_t n_users = 0, low = 0;
    struct prepared *p = responses_attempt(q, 0, &n_users);
    bool is_cut = q->is_auto && responses_is_too_long(p);
    /* Without `low` turns it is too long, without `high` it fits or nothing would be left. */
    for (int32_t high = n_users; is_cut && high - low > 1;) {
        int32_t mid = low + (high - low) / 2;
        struct prepared *other = responses_attempt(q, mid, &n_users);
        if (responses_is_too_long(other)) {
            low = mid;
            prepare_free(other);
        } else {
            high = mid;
            prepare_free(p);
            p = other;
        }
    }
    return p;
}

/* --- the frame --- */

static void responses_frame_value(struct json_writer *w, const struct json *body, const char *name,
                                  const char *otherwise)
{
    const struct json *v = json_get_set(body, name);
    json_key(w, name);
    if (v)
        json_value(w, v);
    else
        json_raw(w, otherwise, strlen(otherwise));
}

static void responses_frame_string(struct json_writer *w, const char *name, const struct json *v)
{
    json_key(w, name);
    if (v)
        json_value(w, v);
    else
        json_null(w);
}

/* Shortest decimal of a float. */
static void responses_frame_float(struct json_writer *w, const char *name, float v)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "%.7g", (double)v);
    json_field_raw(w, name, text, (size_t)n);
}

/* Members of the object that the answer does not change. */
static void responses_write_frame(const struct responses *q, const struct prepared *p)
{
    const struct sample_params *s = &p->requests[0]->engine.sample;
    const struct json *body = q->body;
    struct json_writer w;
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    json_writer_init(&w, &text);
    json_begin_object(&w);
    json_field_str(&w, "model", q->ctx->model_id);
    json_field_str(&w, "system_fingerprint", q->ctx->model->engine->info.fingerprint);
    responses_frame_value(&w, body, "instructions", "null");
    responses_frame_value(&w, body, "previous_response_id", "null");
    responses_frame_value(&w, body, "max_output_tokens", "null");
    responses_frame_value(&w, body, "max_tool_calls", "null");
    responses_frame_float(&w, "temperature", s->temperature);
    responses_frame_float(&w, "top_p", s->top_p);
    responses_frame_value(&w, body, "top_logprobs", "0");
    responses_frame_value(&w, body, "parallel_tool_calls", "true");
    responses_frame_value(&w, body, "tool_choice", "\"auto\"");
    json_field_array(&w, "tools");
    json_raw(&w, q->served.data, q->served.len);
    json_end_array(&w);
    json_field_object(&w, "text");
    json_key(&w, "format");
    if (q->format)
        json_value(&w, q->format);
    else
        json_raw(&w, "{\"type\":\"text\"}", 15);
    if (q->verbosity)
        responses_frame_string(&w, "verbosity", q->verbosity);
    json_end_object(&w);
    json_field_object(&w, "reasoning");
    responses_frame_string(&w, "effort", q->effort);
    responses_frame_string(&w, "summary", q->summary);
    json_end_object(&w);
    responses_frame_value(&w, body, "truncation", "\"disabled\"");
    json_field_bool(&w, "store", q->r->is_stored);
    responses_frame_value(&w, body, "metadata", "{}");
    responses_frame_value(&w, body, "user", "null");
    responses_frame_value(&w, body, "safety_identifier", "null");
    responses_frame_value(&w, body, "prompt_cache_key", "null");
    json_field_str(&w, "service_tier", "default");
    json_end_object(&w);
    if (text.len > 2) /* without the braces */
        buf_add(&q->r->frame, text.data + 1, text.len - 2);
    q->r->frame.failed = q->r->frame.failed || text.failed;
    buf_release(&text);
}

/* --- the way in --- */

static struct prepared_response *responses_new(void)
{
    struct prepared_response *r = mem_alloc(MEM_CAT_REQUEST, sizeof(*r));
    buf_init(&r->frame, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_init(&r->input, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_init(&r->custom, MEM_CAT_REQUEST, 1 << 20);
    return r;
}

void prepare_responses_free(struct prepared_response *r)
{
    if (!r)
        return;
    buf_release(&r->frame);
    buf_release(&r->input);
    buf_release(&r->custom);
    mem_free(MEM_CAT_SERVER, r->more);
    mem_free(MEM_CAT_REQUEST, r);
}

/* Ready to be generated; or e. */
static struct prepared *responses_finish(struct responses *q)
{
    struct prepared *p = responses_fit(q);
    if (p->error.status != 0)
        return p;
    if (!prepare_compare(p, q->body, "prompt_cache_options", "comparison_response_id"))
        return p;
    responses_write_frame(q, p);
    items_write_input(json_get_set(q->body, "input"), q->in->id, &q->r->input);
    if (q->r->frame.failed || q->r->input.failed || q->r->custom.failed)
        api_error_set(&p->error, 400, NULL, "input", "input: over its limit of %d bytes",
                      LIMIT_PROMPT_BYTES);
    return p;
}

struct prepared *prepare_responses(const struct prepare_context *ctx,
                                   const struct prepare_input *in, const struct json *body)
{
    char ignored[LIMIT_IGNORED_BYTES] = "";
    struct responses q = { .ctx = ctx, .in = in, .body = body, .ignored = ignored };
    struct api_error e = { 0 };
    struct prepared *p = NULL;
    q.r = responses_new();
    buf_init(&q.tools, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_init(&q.served, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_init(&q.origins, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    bool is_fine = responses_fields(&q, &e) && prepare_responses_tools(&q, &e);
    if (is_fine && !in->history) {
        responses_find_references(&q);
        q.r->needs_history = q.r->previous[0] || (q.r->n_more > 0 && ctx->config->state_dir);
    }
    is_fine = is_fine && !q.r->needs_history && responses_read_history(&q, &e);
    if (is_fine)
        p = responses_finish(&q);
    else
        p = prepare_new(PREPARE_RESPONSES);
    if (e.status != 0)
        p->error = e;
    p->kind = PREPARE_RESPONSES;
    p->response = q.r;
    p->keeps_ids = q.r->is_stored;           /* for the turn that names it */
    fields_ignore_list(ignored, p->ignored); /* chat's own notes */
    memcpy(p->ignored, ignored, sizeof(ignored));
    for (int32_t i = 0; i < q.n_turns; i++) {
        json_doc_release(&q.turns[i].input);
        json_doc_release(&q.turns[i].output);
        buf_release(&q.turns[i].ids);
    }
    mem_free(MEM_CAT_REQUEST, q.turns);
    buf_release(&q.tools);
    buf_release(&q.served);
    buf_release(&q.origins);
    return p;
}

/* --- the list of input items --- */

/* The place behind the item named `after` in the order that is asked for; 0 without one; n: there is no such item. */
static size_t responses_list_start(const struct prepare_list *list, const struct json *items)
{
    if (!list->after[0])
        return 0;
    for (size_t i = 0; i < items->n; i++)
        if (json_str_eq(json_get(&items->items[i], "id"), list->after))
            return (list->is_ascending ? i : items->n - 1 - i) + 1;
    return items->n;
}

static void responses_list_id(struct json_writer *w, const char *name, const struct json *item)
{
    const struct json *id = json_get(item, "id");
    json_key(w, name);
    if (id)
        json_value(w, id);
    else
        json_null(w);
}

void prepare_response_items(const struct prepare_input *in, const struct json *items,
                            struct prepared *p)
{
    const struct prepare_list *list = in->list;
    const struct json *first = NULL, *last = NULL;
    struct json_writer w;
    size_t at = responses_list_start(list, items), n = 0;
    json_writer_init(&w, &p->reply);
    json_begin_object(&w);
    json_field_str(&w, "object", "list");
    json_field_array(&w, "data");
    for (; at < items->n && n < (size_t)list->limit; at++, n++) {
        last = &items->items[list->is_ascending ? at : items->n - 1 - at];
        first = first ? first : last;
        json_value(&w, last);
    }
    json_end_array(&w);
    responses_list_id(&w, "first_id", first);
    responses_list_id(&w, "last_id", last);
    json_field_bool(&w, "has_more", at < items->n);
    json_end_object(&w);
}
