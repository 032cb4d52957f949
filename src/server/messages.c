#include "server/messages.h"
#include "server/limits.h"

#include <stdio.h>
#include <string.h>

struct messages_writer {
    struct json_writer w;
    unsigned flags;
    struct messages_seen *seen;
    struct api_error *e;
};

/* Printable part of a client's string for an error text. */
static const char *messages_show(const struct json *v)
{
    return v && v->type == JSON_TYPE_STRING ? v->text : "(not a string)";
}

static bool messages_is_text_part(const struct json *part)
{
    const struct json *type = json_get(part, "type");
    return json_str_eq(type, "text") || json_str_eq(type, "input_text") ||
           json_str_eq(type, "output_text");
}

/* Content as parts: their texts, joined. */
static bool messages_gather_parts(struct messages_writer *m, const struct json *parts, size_t index,
                                  struct buf *text)
{
    for (size_t i = 0; i < parts->n; i++) {
        const struct json *part = &parts->items[i];
        char where[64];
        snprintf(where, sizeof(where), "messages[%zu].content[%zu]", index, i);
        if (!json_is(part, JSON_TYPE_OBJECT)) {
            return api_error_set(m->e, 400, NULL, where, "%s: must be an object with a type",
                                 where);
        }
        const struct json *body = json_get(part, "text");
        if (json_str_eq(json_get(part, "type"), "refusal"))
            body = json_get(part, "refusal");
        else if (!messages_is_text_part(part)) {
            return api_error_set(m->e, 400, "unsupported_content", where,
                                 "%s: type '%.40s' is not supported: this model reads text only",
                                 where, messages_show(json_get(part, "type")));
        }
        if (!json_is(body, JSON_TYPE_STRING))
            return api_error_set(m->e, 400, NULL, where, "%s: text must be a string", where);
        if (i > 0)
            buf_add_char(text, '\n');
        buf_add(text, body->text, body->len);
    }
    return true;
}

static bool messages_write_parts(struct messages_writer *m, const struct json *parts, size_t index)
{
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    bool is_fine = messages_gather_parts(m, parts, index, &text);
    if (is_fine)
        json_strn(&m->w, text.data, text.len);
    buf_release(&text);
    return is_fine;
}

static bool messages_write_content(struct messages_writer *m, const struct json *v, size_t index)
{
    char where[48];
    switch (v->type) {
    case JSON_TYPE_STRING:
        json_strn(&m->w, v->text, v->len);
        return true;
    case JSON_TYPE_ARRAY:
        return messages_write_parts(m, v, index);
    case JSON_TYPE_NULL:
        m->seen->has_null = true;
        if (m->flags & MESSAGES_FLAG_NO_NULL)
            json_str(&m->w, "");
        else
            json_null(&m->w);
        return true;
    default:
        snprintf(where, sizeof(where), "messages[%zu].content", index);
        return api_error_set(m->e, 400, NULL, where, "%s: must be a string, null or an array",
                             where);
    }
}

/* Arguments as templates want them: an object. What is no JSON object stays a string; nothing counts as {}. */
static void messages_write_arguments(struct messages_writer *m, const struct json *v)
{
    struct json_doc doc = { 0 };
    if (json_is(v, JSON_TYPE_NULL) || (v->type == JSON_TYPE_STRING && v->len == 0)) {
        json_begin_object(&m->w);
        json_end_object(&m->w);
        return;
    }
    if (v->type == JSON_TYPE_STRING &&
        json_parse(&doc, v->text, v->len, LIMIT_JSON_VALUES, NULL) == ERR_OK &&
        json_is(&doc.root, JSON_TYPE_OBJECT))
        json_value(&m->w, &doc.root);
    else
        json_value(&m->w, v);
    json_doc_release(&doc);
}

static void messages_write_function(struct messages_writer *m, const struct json *f)
{
    json_begin_object(&m->w);
    for (size_t i = 0; i < f->n; i++) {
        json_key(&m->w, f->members[i].key);
        if (strcmp(f->members[i].key, "arguments") == 0)
            messages_write_arguments(m, &f->members[i].value);
        else
            json_value(&m->w, &f->members[i].value);
    }
    if (!json_get(f, "arguments")) {
        json_field_object(&m->w, "arguments");
        json_end_object(&m->w);
    }
    json_end_object(&m->w);
}

static bool messages_write_each_call(struct messages_writer *m, const struct json *calls,
                                     size_t index)
{
    char where[64];
    snprintf(where, sizeof(where), "messages[%zu].tool_calls", index);
    if (!json_is(calls, JSON_TYPE_ARRAY))
        return api_error_set(m->e, 400, NULL, where, "%s: must be an array", where);
    for (size_t i = 0; i < calls->n; i++) {
        const struct json *call = &calls->items[i], *f = json_get(call, "function");
        if (!json_is(f, JSON_TYPE_OBJECT) || !json_is(json_get(f, "name"), JSON_TYPE_STRING))
            return api_error_set(m->e, 400, NULL, where, "%s[%zu]: needs a function with a name",
                                 where, i);
        json_begin_object(&m->w);
        for (size_t k = 0; k < call->n; k++) {
            if (call->members[k].value.type == JSON_TYPE_NULL)
                continue;
            json_key(&m->w, call->members[k].key);
            if (&call->members[k].value == f)
                messages_write_function(m, f);
            else
                json_value(&m->w, &call->members[k].value);
        }
        json_end_object(&m->w);
    }
    return true;
}

static bool messages_write_calls(struct messages_writer *m, const struct json *calls, size_t index)
{
    json_begin_array(&m->w);
    bool is_fine = messages_write_each_call(m, calls, index);
    json_end_array(&m->w);
    return is_fine;
}

static bool messages_write_role(struct messages_writer *m, const struct json *v, size_t index)
{
    static const char *const roles[] = { "system", "user", "assistant", "tool", "function" };
    char where[48];
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (json_str_eq(v, roles[i])) {
            json_str(&m->w, roles[i]);
            return true;
        }
    if (json_str_eq(v, "developer")) {
        json_str(&m->w, m->flags & MESSAGES_FLAG_DEVELOPER ? "developer" : "system");
        return true;
    }
    snprintf(where, sizeof(where), "messages[%zu].role", index);
    return api_error_set(m->e, 400, NULL, where,
                         "%s: '%.40s' is none of system, developer, user, assistant, tool", where,
                         messages_show(v));
}

/* Names that clients and templates have for the same thing; the first one that is set wins. */
static const char *const reasoning_names[] = { "reasoning_content", "thinking", "reasoning" };

static bool messages_is_reasoning(const char *key)
{
    for (size_t i = 0; i < ARRAY_LEN(reasoning_names); i++)
        if (strcmp(key, reasoning_names[i]) == 0)
            return true;
    return false;
}

/* Templates read one of the first two: both are there. */
static void messages_write_reasoning(struct messages_writer *m, const struct json *message)
{
    const struct json *v = NULL;
    for (size_t i = 0; i < ARRAY_LEN(reasoning_names) && !v; i++)
        v = json_get_set(message, reasoning_names[i]);
    for (size_t i = 0; v && i < 2; i++) {
        json_field_value(&m->w, reasoning_names[i], v);
    }
}

static bool messages_write_member(struct messages_writer *m, const struct json_member *x,
                                  size_t index)
{
    const char *key = x->key;
    bool is_content = strcmp(key, "content") == 0;
    bool is_calls = strcmp(key, "tool_calls") == 0;
    if (json_is(&x->value, JSON_TYPE_NULL) && !is_content)
        return true;
    if (is_calls && x->value.type == JSON_TYPE_ARRAY && x->value.n == 0)
        return true; /* some clients send it with every message: no calls, as if absent */
    if (messages_is_reasoning(key) || strcmp(key, MESSAGES_TOKEN_IDS) == 0)
        return true;
    json_key(&m->w, key);
    if (strcmp(key, "role") == 0)
        return messages_write_role(m, &x->value, index);
    if (is_content)
        return messages_write_content(m, &x->value, index);
    if (is_calls)
        return messages_write_calls(m, &x->value, index);
    json_value(&m->w, &x->value);
    return true;
}

static bool messages_write_one(struct messages_writer *m, const struct json *message, size_t index)
{
    char where[48];
    snprintf(where, sizeof(where), "messages[%zu]", index);
    if (!json_is(message, JSON_TYPE_OBJECT))
        return api_error_set(m->e, 400, NULL, where, "%s: must be an object", where);
    if (!json_is(json_get(message, "role"), JSON_TYPE_STRING))
        return api_error_set(m->e, 400, NULL, where, "%s: needs a role", where);
    json_begin_object(&m->w);
    for (size_t i = 0; i < message->n; i++)
        if (!messages_write_member(m, &message->members[i], index))
            return false;
    messages_write_reasoning(m, message);
    if (!json_get(message, "content")) {
        static const struct json absent = { .type = JSON_TYPE_NULL };
        json_key(&m->w, "content");
        if (!messages_write_content(m, &absent, index))
            return false;
    }
    json_end_object(&m->w);
    return true;
}

/* --- turns of one role in a row --- */

/* How many messages from `from` on are one turn, if such turns are merged. */
static size_t messages_run(const struct json *messages, size_t from)
{
    const struct json *role = json_get(&messages->items[from], "role");
    size_t n = 1;
    if (!json_str_eq(role, "user") && !json_str_eq(role, "assistant") &&
        !json_str_eq(role, "system"))
        return 1;
    while (from + n < messages->n && json_is(&messages->items[from + n], JSON_TYPE_OBJECT) &&
           json_str_eq(json_get(&messages->items[from + n], "role"), role->text))
        n++;
    return n;
}

/* The texts of a run, joined as parts are; null where none has any. */
static bool messages_write_run_content(struct messages_writer *m, const struct json *run, size_t n,
                                       size_t index)
{
    struct buf text;
    size_t n_texts = 0;
    bool is_fine = true;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    for (size_t i = 0; i < n && is_fine; i++) {
        const struct json *v = json_get_set(&run[i], "content");
        if (!v)
            continue;
        if (n_texts++ > 0)
            buf_add_char(&text, '\n');
        if (json_is(v, JSON_TYPE_ARRAY))
            is_fine = messages_gather_parts(m, v, index + i, &text);
        else
            buf_add(&text, v->text, v->len);
    }
    if (n_texts > 0 || m->flags & MESSAGES_FLAG_NO_NULL)
        json_strn(&m->w, text.data, text.len);
    else
        json_null(&m->w);
    buf_release(&text);
    return is_fine;
}

static bool messages_write_run_calls(struct messages_writer *m, const struct json *run, size_t n,
                                     size_t index)
{
    bool has_any = false, is_fine = true;
    for (size_t i = 0; i < n; i++) {
        const struct json *v = json_get_set(&run[i], "tool_calls");
        has_any = has_any || (v && !(json_is(v, JSON_TYPE_ARRAY) && v->n == 0));
    }
    if (!has_any)
        return true;
    json_field_array(&m->w, "tool_calls");
    for (size_t i = 0; i < n && is_fine; i++) {
        const struct json *v = json_get_set(&run[i], "tool_calls");
        is_fine = !v || messages_write_each_call(m, v, index + i);
    }
    json_end_array(&m->w);
    return is_fine;
}

/* A run that was written message by message before: their contents are strings, parts or null. */
static bool messages_write_merged(struct messages_writer *m, const struct json *run, size_t n,
                                  size_t index)
{
    const struct json *thought = run;
    while (thought < run + n - 1 && !json_get_set(thought, reasoning_names[0]) &&
           !json_get_set(thought, reasoning_names[1]) && !json_get_set(thought, reasoning_names[2]))
        thought++;
    json_begin_object(&m->w);
    json_key(&m->w, "role");
    bool is_fine = messages_write_role(m, json_get(run, "role"), index);
    json_key(&m->w, "content");
    is_fine = is_fine && messages_write_run_content(m, run, n, index) &&
              messages_write_run_calls(m, run, n, index);
    messages_write_reasoning(m, thought);
    json_end_object(&m->w);
    return is_fine;
}

static bool messages_write_all(struct messages_writer *m, const struct json *messages)
{
    bool merges = m->flags & MESSAGES_FLAG_MERGE, is_fine = true;
    for (size_t i = 0, n = 1; i < messages->n && is_fine; i += n) {
        size_t run = messages_run(messages, i);
        m->seen->has_repeat = m->seen->has_repeat || run > 1;
        n = merges ? run : 1;
        is_fine = n > 1 ? messages_write_merged(m, &messages->items[i], n, i)
                        : messages_write_one(m, &messages->items[i], i);
    }
    return is_fine;
}

static bool messages_write_tools(struct messages_writer *m, const struct json *body)
{
    const struct json *tools = json_get_set(body, "tools");
    if (!tools)
        return true;
    if (!json_is(tools, JSON_TYPE_ARRAY))
        return api_error_set(m->e, 400, NULL, "tools", "tools: must be an array");
    for (size_t i = 0; i < tools->n; i++)
        if (!json_is(&tools->items[i], JSON_TYPE_OBJECT))
            return api_error_set(m->e, 400, NULL, "tools", "tools[%zu]: must be an object", i);
    if (tools->n == 0 || json_str_eq(json_get_set(body, "tool_choice"), "none"))
        return true;
    json_field_value(&m->w, "tools", tools);
    return true;
}

/* How much the model is to think, in the names that templates have for it. */
static void messages_write_reasoning_switches(struct messages_writer *m, const struct json *body,
                                              const struct json *kwargs)
{
    static const char *const names[] = { "enable_thinking", "thinking" };
    const struct json *effort = json_get_set(body, "reasoning_effort");
    bool is_set = m->flags & (MESSAGES_FLAG_THOUGHT | MESSAGES_FLAG_NO_THOUGHT);
    for (size_t i = 0; i < ARRAY_LEN(names) && is_set; i++) {
        if (json_get(kwargs, names[i]))
            continue;
        json_field_bool(&m->w, names[i], m->flags & MESSAGES_FLAG_THOUGHT);
    }
    if (!effort || json_get(kwargs, "reasoning_effort"))
        return;
    json_key(&m->w, "reasoning_effort");
    if (!(m->flags & MESSAGES_FLAG_DEPTHS))
        json_value(&m->w, effort);
    else if (json_str_eq(effort, "none") || json_str_eq(effort, "minimal"))
        json_str(&m->w, "low");
    else
        json_str(&m->w, json_str_eq(effort, "xhigh") ? "high" : effort->text ? effort->text : "");
}

/* Variables that a caller may add. The ones that the server sets itself are not among them. */
static bool messages_write_extra(struct messages_writer *m, const struct json *body)
{
    static const char *const own[] = { "messages",  "tools",     "chat_template",
                                       "bos_token", "eos_token", "add_generation_prompt" };
    const struct json *kwargs = json_get_set(body, "chat_template_kwargs");
    if (kwargs && !json_is(kwargs, JSON_TYPE_OBJECT))
        return api_error_set(m->e, 400, NULL, "chat_template_kwargs",
                             "chat_template_kwargs: must be an object");
    const struct json *documents = json_get_set(body, "documents");
    if (documents && !json_get(kwargs, "documents")) {
        json_field_value(&m->w, "documents", documents);
    }
    messages_write_reasoning_switches(m, body, kwargs);
    for (size_t i = 0; kwargs && i < kwargs->n; i++) {
        bool is_own = false;
        for (size_t k = 0; k < ARRAY_LEN(own); k++)
            is_own = is_own || strcmp(kwargs->members[i].key, own[k]) == 0;
        if (is_own)
            continue;
        json_field_value(&m->w, kwargs->members[i].key, &kwargs->members[i].value);
    }
    return true;
}

bool messages_write(const struct json *body, unsigned flags, struct buf *out,
                    struct messages_seen *seen, struct api_error *e)
{
    struct messages_writer m = { .flags = flags, .seen = seen, .e = e };
    const struct json *messages = json_get_set(body, "messages");
    *seen = (struct messages_seen){ 0 };
    if (!json_is(messages, JSON_TYPE_ARRAY) || messages->n == 0)
        return api_error_set(e, 400, NULL, "messages", "messages: must be a non-empty array");
    json_writer_init(&m.w, out);
    json_begin_object(&m.w);
    json_field_array(&m.w, "messages");
    if (!messages_write_all(&m, messages))
        return false;
    json_end_array(&m.w);
    if (!messages_write_tools(&m, body) || !messages_write_extra(&m, body))
        return false;
    json_end_object(&m.w);
    return true;
}
