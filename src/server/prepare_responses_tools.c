/* prepare_responses_tools.c - tools of the Responses API, made into chat's. */
#include "server/prepare_responses_int.h"

#include <stdio.h>
#include <string.h>

void prepare_responses_copy(struct json_writer *w, const struct json *from, const char *name)
{
    const struct json *v = json_get_set(from, name);
    if (!v)
        return;
    json_field_value(w, name, v);
}

static void responses_function(struct json_writer *w, const struct json *tool)
{
    prepare_responses_copy(w, tool, "name");
    prepare_responses_copy(w, tool, "description");
    prepare_responses_copy(w, tool, "parameters");
    prepare_responses_copy(w, tool, "strict");
}

/* A custom tool takes free text: to the model it is a function with one string. A grammar is told here, and enforced (prepare_calls.c). */
static void responses_custom(struct json_writer *w, const struct json *tool)
{
    const struct json *description = json_get_set(tool, "description");
    const struct json *format = json_get_set(tool, "format");
    const struct json *definition = json_get_set(format, "definition");
    static const char parameters[] =
        "{\"type\":\"object\",\"properties\":{\"" TOOLS_CUSTOM_KEY
        "\":{\"type\":\"string\"}},\"required\":[\"" TOOLS_CUSTOM_KEY "\"]}";
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (json_is(description, JSON_TYPE_STRING))
        buf_add(&text, description->text, description->len);
    if (json_is(definition, JSON_TYPE_STRING)) {
        const struct json *syntax = json_get_set(format, "syntax");
        buf_printf(&text, "%sThe input must match this %.20s grammar:\n", text.len > 0 ? "\n" : "",
                   json_is(syntax, JSON_TYPE_STRING) ? syntax->text : "");
        buf_add(&text, definition->text, definition->len);
    }
    prepare_responses_copy(w, tool, "name");
    if (text.len > 0) {
        json_field_strn(w, "description", text.data, text.len);
    }
    json_field_raw(w, "parameters", parameters, strlen(parameters));
    buf_release(&text);
}

static void responses_add_tool(struct responses *q, const struct json *tool, bool is_custom)
{
    const struct json *nested = json_get_set(tool, "function"); /* as in chat: understood, too */
    struct json_writer w;
    if (q->tools.len > 0) {
        buf_add_char(&q->tools, ',');
        buf_add_char(&q->served, ',');
    }
    json_writer_init(&w, &q->served);
    json_value(&w, tool);
    json_writer_init(&w, &q->tools);
    json_begin_object(&w);
    json_field_str(&w, "type", "function");
    json_field_object(&w, "function");
    if (is_custom)
        responses_custom(&w, tool);
    else
        responses_function(&w, nested ? nested : tool);
    json_end_object(&w);
    json_end_object(&w);
}

/* Is the tool among those that tool_choice allows? */
static bool responses_is_allowed(const struct json *allowed, const struct json *name)
{
    if (!allowed)
        return true;
    for (size_t i = 0; i < allowed->n; i++)
        if (name && json_str_eq(json_get(&allowed->items[i], "name"), name->text))
            return true;
    return false;
}

static bool responses_tool(struct responses *q, const struct json *tool, size_t index,
                           const struct json *allowed, struct api_error *e)
{
    const struct json *type = json_get(tool, "type");
    char where[32];
    snprintf(where, sizeof(where), "tools[%zu]", index);
    if (!json_is(type, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, where, "%s: must be an object with a type", where);
    bool is_custom = json_str_eq(type, "custom");
    if (!is_custom && !json_str_eq(type, "function")) {
        char name[80];
        snprintf(name, sizeof(name), "tools.%.60s", type->text);
        if (!strstr(q->ignored, name))
            fields_ignore(q->ignored, name, strlen(name));
        return true;
    }
    const struct json *nested = json_get_set(tool, "function");
    const struct json *name = json_get(nested ? nested : tool, "name");
    if (!json_is(name, JSON_TYPE_STRING) || name->len == 0)
        return api_error_set(e, 400, NULL, where, "%s: needs a name", where);
    if (is_custom && (name->len > 128 || strpbrk(name->text, "\n\r")))
        return api_error_set(e, 400, NULL, where, "%s: the name is no name", where);
    if (!responses_is_allowed(allowed, name))
        return true;
    if (is_custom) {
        buf_add_char(&q->r->custom, '\n');
        buf_add(&q->r->custom, name->text, name->len);
        buf_add_char(&q->r->custom, '\n');
    }
    responses_add_tool(q, tool, is_custom);
    return true;
}

bool prepare_responses_tools(struct responses *q, struct api_error *e)
{
    const struct json *tools = json_get_set(q->body, "tools");
    const struct json *choice = json_get_set(q->body, "tool_choice"), *allowed = NULL;
    if (tools && !json_is(tools, JSON_TYPE_ARRAY))
        return api_error_set(e, 400, NULL, "tools", "tools: must be an array");
    if (json_str_eq(json_get(choice, "type"), "allowed_tools")) {
        allowed = json_get(choice, "tools");
        if (!json_is(allowed, JSON_TYPE_ARRAY))
            return api_error_set(e, 400, NULL, "tool_choice",
                                 "tool_choice: allowed_tools needs an array of tools");
    }
    for (size_t i = 0; tools && i < tools->n; i++)
        if (!responses_tool(q, &tools->items[i], i, allowed, e))
            return false;
    return true;
}

bool prepare_responses_choice(const struct responses *q, struct json_writer *w, struct api_error *e)
{
    const struct json *v = json_get_set(q->body, "tool_choice"), *type = json_get(v, "type");
    if (!v)
        return true;
    if (!json_is(v, JSON_TYPE_STRING) && !json_is(v, JSON_TYPE_OBJECT))
        return api_error_set(e, 400, NULL, "tool_choice",
                             "tool_choice: must be a string or an object");
    bool is_named = json_str_eq(type, "function") || json_str_eq(type, "custom");
    bool is_list = json_str_eq(type, "allowed_tools");
    if (type && !is_named && !is_list)
        return api_error_set(e, 400, "unsupported_value", "tool_choice",
                             "tool_choice: no tool of type '%.40s' is served",
                             json_is(type, JSON_TYPE_STRING) ? type->text : "");
    json_key(w, "tool_choice");
    if (is_list) {
        const struct json *mode = json_get_set(v, "mode");
        if (mode)
            json_value(w, mode);
        else
            json_str(w, "auto");
    } else if (is_named && !json_get(v, "function")) {
        json_begin_object(w);
        json_field_str(w, "type", "function");
        json_field_object(w, "function");
        prepare_responses_copy(w, v, "name");
        json_end_object(w);
        json_end_object(w);
    } else {
        json_value(w, v);
    }
    return true;
}
