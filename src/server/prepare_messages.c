/* prepare_messages.c - a request of Anthropic's Messages API, made into a chat request; and the count of its tokens.
 *
 * What both APIs have is written as chat has it and checked there; what only this one has is checked here. */
#include "server/messages.h"
#include "server/prepare_int.h"

#include <stdio.h>
#include <string.h>

struct claude { /* one request on its way */
    const struct prepare_context *ctx;
    const struct json *body;
    struct json_writer w; /* of the chat request */
    struct buf origins;   /* int32_t: of each of its messages, as in diagnosis.h */
    char *ignored;        /* of fields_ignore */
    struct api_error *e;
};

static bool claude_refuse(struct claude *q, const char *where, const char *why)
{
    return api_error_set(q->e, 400, NULL, where, "%s: %s", where, why);
}

/* A message of the chat request begins, made of that one, whose ids it has. */
static void claude_begin_message(struct claude *q, int32_t origin, const char *role)
{
    const struct json *messages = json_get(q->body, "messages");
    const struct json *ids =
        origin >= 0 ? json_get_set(&messages->items[origin], MESSAGES_TOKEN_IDS) : NULL;
    buf_add(&q->origins, &origin, sizeof(origin));
    json_begin_object(&q->w);
    json_field_str(&q->w, "role", role);
    if (ids)
        json_field_value(&q->w, MESSAGES_TOKEN_IDS, ids);
}

static const char *claude_show(const struct json *v)
{
    return json_is(v, JSON_TYPE_STRING) ? v->text : "(not a string)";
}

static bool claude_is(const struct json *block, const char *type)
{
    return json_str_eq(json_get(block, "type"), type);
}

/* --- blocks of text --- */

/* The text of a block, or NULL and an error: what is no text is refused, because to leave it out would change what was said. */
static const struct json *claude_text(struct claude *q, const struct json *block, const char *where)
{
    const struct json *source = json_get(block, "source");
    const struct json *text = json_get(block, "text");
    if (claude_is(block, "document") && claude_is(source, "text"))
        text = json_get(source, "data");
    else if (!claude_is(block, "text")) {
        api_error_set(q->e, 400, "unsupported_content", where,
                      "%s: a block of type '%.40s' cannot be read: this model reads text only",
                      where, claude_show(json_get(block, "type")));
        return NULL;
    }
    if (json_is(text, JSON_TYPE_STRING))
        return text;
    claude_refuse(q, where, "text must be a string");
    return NULL;
}

/* Content as chat has it: a string, or parts of text. only: a string or blocks; absent is an empty text. */
static bool claude_write_texts(struct claude *q, const struct json *v, const char *name,
                               const char *prefix)
{
    char where[64];
    if (json_is(v, JSON_TYPE_STRING) && !*prefix) {
        json_value(&q->w, v);
        return true;
    }
    if (v && !json_is(v, JSON_TYPE_STRING) && !json_is(v, JSON_TYPE_ARRAY))
        return claude_refuse(q, name, "must be a string or an array of blocks");
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_add_str(&text, prefix);
    if (json_is(v, JSON_TYPE_STRING))
        buf_add(&text, v->text, v->len);
    for (size_t i = 0; json_is(v, JSON_TYPE_ARRAY) && i < v->n; i++) {
        snprintf(where, sizeof(where), "%.40s[%zu]", name, i);
        const struct json *s = claude_text(q, &v->items[i], where);
        if (!s) {
            buf_release(&text);
            return false;
        }
        if (i > 0)
            buf_add_char(&text, '\n');
        buf_add(&text, s->text, s->len);
    }
    json_strn(&q->w, text.data, text.len);
    bool is_lost = text.failed;
    buf_release(&text);
    return !is_lost || claude_refuse(q, name, "too long");
}

static bool claude_write_system(struct claude *q)
{
    const struct json *v = json_get_set(q->body, "system");
    bool is_empty = !v || (json_is(v, JSON_TYPE_ARRAY) && v->n == 0) ||
                    (json_is(v, JSON_TYPE_STRING) && v->len == 0);
    if (is_empty)
        return true;
    claude_begin_message(q, DIAGNOSIS_FROM_SYSTEM, "system");
    json_key(&q->w, "content");
    if (!claude_write_texts(q, v, "system", ""))
        return false;
    json_end_object(&q->w);
    return true;
}

/* --- turns --- */

/* Messages of one role in a row are one turn, as that API has it. */
struct claude_turn {
    const struct json *messages;
    size_t from, to;
};

/* A block of a turn; a message whose content is a string has one. */
struct claude_at {
    size_t message, i;        /* the next one's place */
    const struct json *block; /* NULL: a string, which is text */
    const struct json *text;
    char where[64];
};

/* The next block. Its message's content is an array or a string. */
static bool claude_next(const struct claude_turn *t, struct claude_at *at)
{
    while (at->message < t->to) {
        const struct json *content = json_get(&t->messages->items[at->message], "content");
        bool is_string = json_is(content, JSON_TYPE_STRING);
        if (at->i < (is_string ? 1 : content->n)) {
            at->block = is_string ? NULL : &content->items[at->i];
            at->text = is_string ? content : NULL;
            if (is_string)
                snprintf(at->where, sizeof(at->where), "messages[%zu].content", at->message);
            else
                snprintf(at->where, sizeof(at->where), "messages[%zu].content[%zu]", at->message,
                         at->i);
            at->i++;
            return true;
        }
        at->message++;
        at->i = 0;
    }
    return false;
}

/* The text of the block at hand, or NULL and an error. */
static const struct json *claude_text_at(struct claude *q, const struct claude_at *at)
{
    return at->block ? claude_text(q, at->block, at->where) : at->text;
}

/* --- messages --- */

/* The name in the tool_use block of that id; NULL. */
static const struct json *claude_tool_name(const struct claude *q, const struct json *id)
{
    const struct json *messages = json_get(q->body, "messages");
    for (size_t i = 0; json_is(id, JSON_TYPE_STRING) && i < messages->n; i++) {
        const struct json *content = json_get(&messages->items[i], "content");
        for (size_t k = 0; json_is(content, JSON_TYPE_ARRAY) && k < content->n; k++)
            if (claude_is(&content->items[k], "tool_use") &&
                json_str_eq(json_get(&content->items[k], "id"), id->text))
                return json_get(&content->items[k], "name");
    }
    return NULL;
}

/* A message of role tool. That the tool failed is part of what the model must know. */
static bool claude_write_result(struct claude *q, const struct claude_at *at)
{
    const struct json *block = at->block;
    const char *where = at->where;
    const struct json *id = json_get(block, "tool_use_id"), *is_error = json_get(block, "is_error");
    const struct json *name = claude_tool_name(q, id);
    bool has_failed = is_error && json_is(is_error, JSON_TYPE_BOOL) && is_error->boolean;
    if (!json_is(id, JSON_TYPE_STRING))
        return claude_refuse(q, where, "a tool_result needs a tool_use_id");
    claude_begin_message(q, (int32_t)at->message, "tool");
    json_field_value(&q->w, "tool_call_id", id);
    if (json_is(name, JSON_TYPE_STRING)) {
        json_field_value(&q->w, "name", name);
    }
    json_key(&q->w, "content");
    if (!claude_write_texts(q, json_get_set(block, "content"), where, has_failed ? "Error: " : ""))
        return false;
    json_end_object(&q->w);
    return true;
}

static bool claude_is_at(const struct claude_at *at, const char *type)
{
    return at->block && claude_is(at->block, type);
}

/* The texts of a user's blocks, in parts; nothing where there are none. */
static bool claude_write_user_texts(struct claude *q, const struct claude_turn *turn)
{
    size_t n = 0, n_results = 0;
    for (struct claude_at at = { .message = turn->from }; claude_next(turn, &at);)
        *(claude_is_at(&at, "tool_result") ? &n_results : &n) += 1;
    if (n == 0 && n_results > 0)
        return true;
    claude_begin_message(q, (int32_t)turn->from, "user");
    json_field_array(&q->w, "content");
    for (struct claude_at at = { .message = turn->from }; claude_next(turn, &at);) {
        if (claude_is_at(&at, "tool_result"))
            continue;
        const struct json *s = claude_text_at(q, &at);
        if (!s)
            return false;
        json_begin_object(&q->w);
        json_field_str(&q->w, "type", "text");
        json_field_value(&q->w, "text", s);
        json_end_object(&q->w);
    }
    json_end_array(&q->w);
    json_end_object(&q->w);
    return true;
}

/* Results of tools come first, wherever they stand: they belong to the calls before them. */
static bool claude_write_user(struct claude *q, const struct claude_turn *turn)
{
    for (struct claude_at at = { .message = turn->from }; claude_next(turn, &at);)
        if (claude_is_at(&at, "tool_result") && !claude_write_result(q, &at))
            return false;
    return claude_write_user_texts(q, turn);
}

static bool claude_write_call(struct claude *q, const struct json *block, const char *where)
{
    const struct json *id = json_get(block, "id"), *name = json_get(block, "name");
    const struct json *input = json_get_set(block, "input");
    if (!json_is(id, JSON_TYPE_STRING) || !json_is(name, JSON_TYPE_STRING) ||
        (input && !json_is(input, JSON_TYPE_OBJECT)))
        return claude_refuse(q, where,
                             "a tool_use needs an id, a name and an input that is an object");
    json_begin_object(&q->w);
    json_field_value(&q->w, "id", id);
    json_field_str(&q->w, "type", "function");
    json_field_object(&q->w, "function");
    json_field_value(&q->w, "name", name);
    if (input) {
        json_field_value(&q->w, "arguments", input);
    }
    json_end_object(&q->w);
    json_end_object(&q->w);
    return true;
}

/* What an assistant said, by kind of block: chat's message has one place for each. */
struct claude_said {
    struct buf text, thinking;
    size_t n_texts, n_calls;
};

static bool claude_gather(struct claude *q, const struct claude_turn *turn,
                          struct claude_said *said)
{
    for (struct claude_at at = { .message = turn->from }; claude_next(turn, &at);) {
        const struct json *thinking = at.block ? json_get(at.block, "thinking") : NULL;
        if (claude_is_at(&at, "thinking") && json_is(thinking, JSON_TYPE_STRING)) {
            buf_add(&said->thinking, thinking->text, thinking->len);
        } else if (claude_is_at(&at, "tool_use")) {
            said->n_calls++;
        } else if (!claude_is_at(&at, "redacted_thinking")) { /* nobody here can read it */
            const struct json *s = claude_text_at(q, &at);
            if (!s)
                return false;
            if (said->n_texts++ > 0)
                buf_add_char(&said->text, '\n');
            buf_add(&said->text, s->text, s->len);
        }
    }
    return true;
}

static bool claude_write_said(struct claude *q, const struct claude_turn *turn,
                              const struct claude_said *said)
{
    claude_begin_message(q, (int32_t)turn->from, "assistant");
    if (said->thinking.len > 0) {
        json_field_strn(&q->w, "reasoning_content", said->thinking.data, said->thinking.len);
    }
    json_key(&q->w, "content");
    if (said->n_texts > 0 || said->n_calls == 0)
        json_strn(&q->w, said->text.data, said->text.len);
    else
        json_null(&q->w);
    if (said->n_calls > 0) {
        json_field_array(&q->w, "tool_calls");
        for (struct claude_at at = { .message = turn->from }; claude_next(turn, &at);)
            if (claude_is_at(&at, "tool_use") && !claude_write_call(q, at.block, at.where))
                return false;
        json_end_array(&q->w);
    }
    json_end_object(&q->w);
    return true;
}

static bool claude_write_assistant(struct claude *q, const struct claude_turn *turn)
{
    struct claude_said said = { 0 };
    buf_init(&said.text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_init(&said.thinking, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    bool is_fine = claude_gather(q, turn, &said) && claude_write_said(q, turn, &said);
    buf_release(&said.text);
    buf_release(&said.thinking);
    return is_fine;
}

static bool claude_check_message(struct claude *q, const struct json *message, size_t i)
{
    const struct json *content = json_get(message, "content"), *role = json_get(message, "role");
    char where[48];
    snprintf(where, sizeof(where), "messages[%zu]", i);
    if (!json_is(message, JSON_TYPE_OBJECT))
        return claude_refuse(q, where, "must be an object");
    if (!json_str_eq(role, "user") && !json_str_eq(role, "system") &&
        !json_str_eq(role, "assistant"))
        return claude_refuse(q, where, "role must be user or assistant");
    snprintf(where, sizeof(where), "messages[%zu].content", i);
    if (!content || json_is(content, JSON_TYPE_NULL))
        return claude_refuse(q, where, "is missing: it must be a string or an array of blocks");
    return json_is(content, JSON_TYPE_STRING) || json_is(content, JSON_TYPE_ARRAY) ||
           claude_refuse(q, where, "must be a string or an array of blocks");
}

/* A message whose content is texts alone. */
static bool claude_write_plain(struct claude *q, const struct json *message, size_t i)
{
    char where[48];
    snprintf(where, sizeof(where), "messages[%zu].content", i);
    claude_begin_message(q, (int32_t)i, json_get(message, "role")->text);
    json_key(&q->w, "content");
    if (!claude_write_texts(q, json_get(message, "content"), where, ""))
        return false;
    json_end_object(&q->w);
    return true;
}

static bool claude_write_turn(struct claude *q, const struct claude_turn *turn)
{
    const struct json *first = &turn->messages->items[turn->from], *role = json_get(first, "role");
    bool is_string = json_is(json_get(first, "content"), JSON_TYPE_STRING);
    if (json_str_eq(role, "system") || (is_string && turn->to == turn->from + 1))
        return claude_write_plain(q, first, turn->from);
    return json_str_eq(role, "user") ? claude_write_user(q, turn) : claude_write_assistant(q, turn);
}

static bool claude_write_messages(struct claude *q)
{
    const struct json *messages = json_get_set(q->body, "messages");
    if (!json_is(messages, JSON_TYPE_ARRAY) || messages->n == 0)
        return claude_refuse(q, "messages", "must be a non-empty array");
    json_field_array(&q->w, "messages");
    if (!claude_write_system(q))
        return false;
    for (size_t i = 0; i < messages->n; i++)
        if (!claude_check_message(q, &messages->items[i], i))
            return false;
    for (struct claude_turn t = { .messages = messages }; t.from < messages->n; t.from = t.to) {
        const struct json *role = json_get(&messages->items[t.from], "role");
        for (t.to = t.from + 1; t.to < messages->n && !json_str_eq(role, "system"); t.to++)
            if (!json_str_eq(json_get(&messages->items[t.to], "role"), role->text))
                break;
        if (!claude_write_turn(q, &t))
            return false;
    }
    json_end_array(&q->w);
    return true;
}

/* --- tools --- */

static bool claude_write_tool(struct claude *q, const struct json *tool, size_t i)
{
    static const char *const members[][2] = { { "name", "name" },
                                              { "description", "description" },
                                              { "parameters", "input_schema" },
                                              { "strict", "strict" } };
    const struct json *schema = json_get_set(tool, "input_schema"),
                      *type = json_get_set(tool, "type");
    char where[48];
    snprintf(where, sizeof(where), "tools[%zu]", i);
    if (!json_is(tool, JSON_TYPE_OBJECT))
        return claude_refuse(q, where, "must be an object");
    if (type &&
        !json_str_eq(
            type,
            "custom")) { /* runs on the server of that API, or has a schema known there alone */
        snprintf(where, sizeof(where), "tools.%.40s", claude_show(type));
        fields_ignore(q->ignored, where, strlen(where));
        return true;
    }
    if (!json_is(json_get(tool, "name"), JSON_TYPE_STRING) || !json_is(schema, JSON_TYPE_OBJECT))
        return claude_refuse(q, where, "needs a name and an input_schema that is an object");
    json_begin_object(&q->w);
    json_field_str(&q->w, "type", "function");
    json_field_object(&q->w, "function");
    for (size_t k = 0; k < ARRAY_LEN(members); k++) {
        const struct json *v = json_get_set(tool, members[k][1]);
        if (!v)
            continue;
        json_field_value(&q->w, members[k][0], v);
    }
    json_end_object(&q->w);
    json_end_object(&q->w);
    return true;
}

static bool claude_write_tool_choice(struct claude *q)
{
    static const char *const kinds[][2] = { { "auto", "auto" },
                                            { "any", "required" },
                                            { "none", "none" } };
    const struct json *v = json_get_set(q->body, "tool_choice"), *name = json_get(v, "name");
    const struct json *alone = json_get_set(v, "disable_parallel_tool_use");
    if (!v)
        return true;
    if (alone && !json_is(alone, JSON_TYPE_BOOL))
        return claude_refuse(q, "tool_choice", "disable_parallel_tool_use must be true or false");
    if (alone && alone->boolean) {
        json_field_bool(&q->w, "parallel_tool_calls", false);
    }
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (claude_is(v, kinds[i][0])) {
            json_field_str(&q->w, "tool_choice", kinds[i][1]);
            return true;
        }
    if (!claude_is(v, "tool") || !json_is(name, JSON_TYPE_STRING))
        return claude_refuse(q, "tool_choice",
                             "must be an object of type auto, any, none, or tool with a name");
    json_field_object(&q->w, "tool_choice");
    json_field_str(&q->w, "type", "function");
    json_field_object(&q->w, "function");
    json_field_value(&q->w, "name", name);
    json_end_object(&q->w);
    json_end_object(&q->w);
    return true;
}

static bool claude_write_tools(struct claude *q)
{
    const struct json *tools = json_get_set(q->body, "tools");
    if (tools && !json_is(tools, JSON_TYPE_ARRAY))
        return claude_refuse(q, "tools", "must be an array");
    if (tools) {
        json_field_array(&q->w, "tools");
        for (size_t i = 0; i < tools->n; i++)
            if (!claude_write_tool(q, &tools->items[i], i))
                return false;
        json_end_array(&q->w);
    }
    return claude_write_tool_choice(q);
}

/* --- the rest --- */

/* Fields that chat has under the same name, or under another one. */
static void claude_write_fields(struct claude *q)
{
    static const char *const names[][2] = {
        { "model", "model" },
        { "stream", "stream" },
        { "max_tokens", "max_tokens" },
        { "stop_sequences", "stop" },
        { "temperature", "temperature" },
        { "top_p", "top_p" },
        { "top_k", "top_k" },
        { "min_p", "min_p" },
        { "typical_p", "typical_p" },
        { "xtc_probability", "xtc_probability" },
        { "xtc_threshold", "xtc_threshold" },
        { "repetition_penalty", "repetition_penalty" },
        { "repeat_penalty", "repeat_penalty" },
        { "repeat_last_n", "repeat_last_n" },
        { "presence_penalty", "presence_penalty" },
        { "frequency_penalty", "frequency_penalty" },
        { "seed", "seed" },
        { "logit_bias", "logit_bias" },
        { "ignore_eos", "ignore_eos" },
        { "priority", "priority" },
        { "cache_salt", "cache_salt" },
        { "cache_diagnostics", "cache_diagnostics" },
        { "speculation", "speculation" },
        { "return_token_ids", "return_token_ids" },
        { "deadline_ms", "deadline_ms" },
        { "thinking", "thinking" },
        { "thinking_budget", "thinking_budget" },
        { "chat_template_kwargs", "chat_template_kwargs" },
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct json *v = json_get_set(q->body, names[i][0]);
        if (!v)
            continue;
        json_field_value(&q->w, names[i][1], v);
    }
}

/* output_config.format, or output_format, its older place. */
static bool claude_write_format(struct claude *q)
{
    const struct json *config = json_get_set(q->body, "output_config");
    const struct json *v = json_get_set(config, "format");
    if (config && !json_is(config, JSON_TYPE_OBJECT))
        return claude_refuse(q, "output_config", "must be an object");
    if (!v)
        v = json_get_set(q->body, "output_format");
    if (!v)
        return true;
    if (!claude_is(v, "json_schema") || !json_get_set(v, "schema"))
        return claude_refuse(q, "output_config",
                             "format must be of type json_schema, with a schema");
    json_field_value(&q->w, "response_format", v);
    return true;
}

/* The chat request, as JSON in out. */
static bool claude_write(struct claude *q, struct buf *out)
{
    json_writer_init(&q->w, out);
    json_begin_object(&q->w);
    claude_write_fields(q);
    if (!claude_write_format(q) || !claude_write_messages(q) || !claude_write_tools(q))
        return false;
    json_end_object(&q->w);
    return true;
}

/* As this API calls them. */
static void claude_rename(struct api_error *e)
{
    api_error_rename(e, "stop", "stop_sequences");
    api_error_rename(e, "response_format", "output_config");
}

/* Parse the chat request that q writes. False: q->e. */
static bool claude_make(struct claude *q, struct json_doc *doc)
{
    struct buf text;
    struct err err;
    buf_init(&q->origins, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    bool is_fine = claude_write(q, &text);
    if (is_fine && (buf_check(&text, "messages", &err) != ERR_OK ||
                    json_parse(doc, text.data, text.len, LIMIT_JSON_VALUES, &err) != ERR_OK))
        is_fine = api_error_set(q->e, 400, NULL, "messages", "%s", err.text);
    buf_release(&text);
    return is_fine;
}

/* Places are told in the terms of this API. */
static void claude_give_origins(struct claude *q, struct diagnosis *d)
{
    d->n_origins = (int32_t)(q->origins.len / sizeof(*d->origins));
    d->origins = mem_alloc(MEM_CAT_REQUEST, q->origins.len + sizeof(*d->origins));
    memcpy(d->origins, q->origins.data, q->origins.len);
}

void prepare_messages(const struct prepare_context *ctx, const struct prepare_input *in,
                      const struct json *body, struct prepared *p)
{
    char ignored[LIMIT_IGNORED_BYTES];
    struct claude q = { .ctx = ctx, .body = body, .ignored = ignored, .e = &p->error };
    struct json_doc doc = { 0 };
    struct fields fields;
    bool is_fine = fields_read(body, FIELDS_ROUTE_MESSAGES, &fields, ignored, &p->error) &&
                   prepare_compare(p, body, "diagnostics", "previous_message_id");
    if (is_fine && fields.max_tokens == FIELDS_UNSET)
        is_fine = claude_refuse(&q, "max_tokens", "is missing: this API asks for it");
    if (is_fine && claude_make(&q, &doc)) {
        p->kind = PREPARE_CHAT;
        prepare_generation(ctx, in, &doc.root, p);
        p->kind = PREPARE_MESSAGES;
        if (p->diagnosis)
            claude_give_origins(&q, p->diagnosis);
        claude_rename(&p->error);
        fields_ignore_list(ignored, p->ignored); /* chat's own notes */
        memcpy(p->ignored, ignored, sizeof(ignored));
    }
    json_doc_release(&doc);
    buf_release(&q.origins);
}

/* The same prompt as that of the generation; but one that is too long is counted, so that a client knows by how much. */
static bool claude_count(const struct prepare_context *ctx, const struct json *chat,
                         struct token_list *ids, struct prepared *p)
{
    struct prepare_generation g = { .ctx = ctx, .body = chat, .p = p };
    return fields_read(chat, FIELDS_ROUTE_CHAT, &g.fields, p->ignored, &p->error) &&
           prepare_answer(&g, &p->error) &&
           prepare_chat_prompt(ctx, chat, g.thinks, true, ids, NULL, NULL, &p->error);
}

void prepare_count_tokens(const struct prepare_context *ctx, const struct json *body,
                          struct prepared *p)
{
    char ignored[LIMIT_IGNORED_BYTES];
    struct claude q = { .ctx = ctx, .body = body, .ignored = ignored, .e = &p->error };
    struct json_doc doc = { 0 };
    struct fields fields;
    struct token_list ids;
    token_list_init(&ids, prepare_max_tokens(ctx));
    if (fields_read(body, FIELDS_ROUTE_MESSAGES, &fields, ignored, &p->error) &&
        claude_make(&q, &doc) && claude_count(ctx, &doc.root, &ids, p)) {
        struct json_writer w;
        json_writer_init(&w, &p->reply);
        json_begin_object(&w);
        json_field_int(&w, "input_tokens", ids.n);
        json_end_object(&w);
    }
    claude_rename(&p->error);
    token_list_release(&ids);
    json_doc_release(&doc);
    buf_release(&q.origins);
}
