#include "server/items.h"
#include "server/fields.h"
#include "server/limits.h"
#include "server/messages.h"

#include <stdio.h>
#include <string.h>

void items_init(struct items *x)
{
    struct buf *const bufs[] = { &x->system, &x->messages, &x->reasoning, &x->text,
                                 &x->calls,  &x->origins,  &x->ids };
    *x = (struct items){ 0 };
    for (size_t i = 0; i < ARRAY_LEN(bufs); i++)
        buf_init(bufs[i], MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
}

void items_release(struct items *x)
{
    buf_release(&x->system);
    buf_release(&x->messages);
    buf_release(&x->reasoning);
    buf_release(&x->text);
    buf_release(&x->calls);
    buf_release(&x->origins);
    buf_release(&x->ids);
}

/* --- texts --- */

static void items_add_line(struct buf *b, const char *between, const char *text, size_t n)
{
    if (b->len > 0 && n > 0)
        buf_add_str(b, between);
    buf_add(b, text, n);
}

void items_add_system(struct items *x, const char *text, size_t n)
{
    items_add_line(&x->system, "\n\n", text, n);
}

/* The text of a part, or NULL: it is of another kind. */
static const struct json *items_part_text(const struct json *part)
{
    static const char *const texts[] = { "input_text", "output_text", "text", "summary_text",
                                         "reasoning_text" };
    const struct json *type = json_get(part, "type");
    if (json_str_eq(type, "refusal"))
        return json_get(part, "refusal");
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (json_str_eq(type, texts[i]))
            return json_get(part, "text");
    return NULL;
}

/* Content as a text: a string, null, or parts, joined by a line feed. Outputs of tools may be any JSON (is_output). */
static bool items_read_text(const struct json *v, const char *where, bool is_output,
                            struct buf *out, struct api_error *e)
{
    if (!v || v->type == JSON_TYPE_NULL)
        return true;
    if (v->type == JSON_TYPE_STRING) {
        buf_add(out, v->text, v->len);
        return true;
    }
    bool is_parts = v->type == JSON_TYPE_ARRAY;
    if (is_output && (!is_parts || (v->n > 0 && !json_get(&v->items[0], "type")))) {
        struct json_writer w;
        json_writer_init(&w, out);
        json_value(&w, v);
        return true;
    }
    if (!is_parts)
        return api_error_set(e, 400, NULL, where, "%s: must be a string or an array of parts",
                             where);
    for (size_t i = 0; i < v->n; i++) {
        const struct json *type = json_get(&v->items[i], "type");
        const struct json *text = items_part_text(&v->items[i]);
        if (!json_is(type, JSON_TYPE_STRING))
            return api_error_set(e, 400, NULL, where, "%s[%zu]: must be an object with a type",
                                 where, i);
        if (!text)
            return api_error_set(e, 400, "unsupported_content", where,
                                 "%s[%zu]: type '%.40s' is not supported: this model reads text "
                                 "only",
                                 where, i, type->text);
        if (!json_is(text, JSON_TYPE_STRING))
            return api_error_set(e, 400, NULL, where, "%s[%zu]: text must be a string", where, i);
        if (i > 0)
            buf_add_char(out, '\n');
        buf_add(out, text->text, text->len);
    }
    return true;
}

/* --- messages --- */

static void items_begin_message(struct items *x, struct json_writer *w, const char *role,
                                int32_t origin)
{
    if (x->messages.len > 0)
        buf_add_char(&x->messages, ',');
    buf_add(&x->origins, &origin, sizeof(origin));
    json_writer_init(w, &x->messages);
    json_begin_object(w);
    json_field_str(w, "role", role);
}

/* The assistant's message is whole. */
static void items_flush(struct items *x)
{
    struct json_writer w;
    if (x->is_open && (x->has_text || x->has_calls || x->reasoning.len > 0)) {
        items_begin_message(x, &w, "assistant", x->opened_at);
        json_key(&w, "content");
        if (x->has_text || !x->has_calls)
            json_strn(&w, x->text.data, x->text.len);
        else
            json_null(&w);
        if (x->reasoning.len > 0) {
            json_field_strn(&w, "reasoning_content", x->reasoning.data, x->reasoning.len);
        }
        if (x->ids.len > 0)
            json_field_raw(&w, MESSAGES_TOKEN_IDS, x->ids.data, x->ids.len);
        buf_reset(&x->ids);
        if (x->has_calls) {
            json_key(&w, "tool_calls");
            buf_add_char(&x->calls, ']');
            json_raw(&w, x->calls.data, x->calls.len);
        }
        json_end_object(&w);
    }
    buf_reset(&x->reasoning);
    buf_reset(&x->text);
    buf_reset(&x->calls);
    x->is_open = x->has_text = x->has_calls = false;
}

static void items_add_message(struct items *x, const char *role, const struct buf *text,
                              const struct json *call_id)
{
    struct json_writer w;
    items_flush(x);
    items_begin_message(x, &w, role, x->origin);
    if (call_id) {
        json_field_strn(&w, "tool_call_id", call_id->text, call_id->len);
    }
    json_field_strn(&w, "content", text->data, text->len);
    json_end_object(&w);
}

static bool items_is_skipping(const struct items *x)
{
    return x->n_users <= x->n_skip && x->n_skip > 0;
}

/* --- items --- */

/* A message with its text; the role is a known one. */
static void items_take_message(struct items *x, const struct json *role, const struct buf *text)
{
    if (json_str_eq(role, "system") || json_str_eq(role, "developer")) {
        items_add_system(x, text->data, text->len);
        return;
    }
    if (json_str_eq(role, "user"))
        x->n_users++;
    if (items_is_skipping(x))
        return;
    if (json_str_eq(role, "user")) {
        items_add_message(x, "user", text, NULL);
        return;
    }
    if (x->has_text || x->has_calls)
        items_flush(x);
    x->is_open = x->has_text = true;
    buf_add(&x->text, text->data, text->len);
}

static bool items_message(struct items *x, const struct json *item, const char *where,
                          struct buf *text, struct api_error *e)
{
    static const char *const roles[] = { "user", "assistant", "system", "developer" };
    const struct json *role = json_get(item, "role");
    char content[80];
    bool is_known = false;
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        is_known = is_known || json_str_eq(role, roles[i]);
    if (!is_known)
        return api_error_set(e, 400, NULL, where,
                             "%s: the role must be user, assistant, system or developer", where);
    snprintf(content, sizeof(content), "%s.content", where);
    if (!items_read_text(json_get(item, "content"), content, false, text, e))
        return false;
    items_take_message(x, role, text);
    return true;
}

static bool items_reasoning(struct items *x, const struct json *item, const char *where,
                            struct buf *text, struct api_error *e)
{
    const struct json *content = json_get_set(item, "content");
    const struct json *summary = json_get_set(item, "summary");
    char name[80];
    bool has_content = json_is(content, JSON_TYPE_ARRAY) && content->n > 0;
    snprintf(name, sizeof(name), "%s.%s", where, has_content ? "content" : "summary");
    if (!items_read_text(has_content ? content : summary, name, false, text, e))
        return false;
    if (text->len == 0 || items_is_skipping(x)) /* encrypted or empty: nothing that we could read */
        return true;
    if (x->has_text || x->has_calls)
        items_flush(x);
    x->is_open = true;
    items_add_line(&x->reasoning, "\n", text->data, text->len);
    return true;
}

/* A call of a function, or (is_custom) of a custom tool, whose input is the one argument. */
static bool items_call(struct items *x, const struct json *item, const char *where, bool is_custom,
                       struct api_error *e)
{
    const struct json *name = json_get(item, "name"), *id = json_get(item, "call_id");
    const struct json *input = json_get_set(item, is_custom ? "input" : "arguments");
    struct json_writer w;
    if (!json_is(name, JSON_TYPE_STRING) || !json_is(id, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, where, "%s: needs a call_id and a name", where);
    if (items_is_skipping(x))
        return true;
    buf_add_char(&x->calls, x->has_calls ? ',' : '[');
    x->is_open = x->has_calls = true;
    json_writer_init(&w, &x->calls);
    json_begin_object(&w);
    json_field_strn(&w, "id", id->text, id->len);
    json_field_str(&w, "type", "function");
    json_field_object(&w, "function");
    json_field_strn(&w, "name", name->text, name->len);
    json_key(&w, "arguments");
    if (is_custom) {
        json_begin_object(&w);
        json_key(&w, "input");
    }
    if (input)
        json_value(&w, input);
    else
        json_str(&w, "");
    if (is_custom)
        json_end_object(&w);
    json_end_object(&w);
    json_end_object(&w);
    return true;
}

static bool items_output(struct items *x, const struct json *item, const char *where,
                         struct buf *text, struct api_error *e)
{
    const struct json *id = json_get(item, "call_id");
    char name[80];
    if (!json_is(id, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, where, "%s: needs a call_id", where);
    snprintf(name, sizeof(name), "%s.output", where);
    if (!items_read_text(json_get(item, "output"), name, true, text, e))
        return false;
    if (!items_is_skipping(x))
        items_add_message(x, "tool", text, id);
    return true;
}

static bool items_add_one(struct items *x, const struct json *item, const char *where,
                          bool is_found, struct buf *text, struct api_error *e);

static bool items_reference(struct items *x, const struct json *item, const char *where,
                            struct buf *text, struct api_error *e)
{
    const struct json *id = json_get(item, "id");
    const struct json *found =
        json_is(id, JSON_TYPE_STRING) && x->find ? x->find(x->find_arg, id->text) : NULL;
    if (!found)
        return api_error_set(e, 404, "item_not_found", where,
                             "%s: no kept response has an item '%.80s'", where,
                             json_is(id, JSON_TYPE_STRING) ? id->text : "");
    return items_add_one(x, found, where, true, text, e);
}

static bool items_skip(struct items *x, const struct json *type)
{
    char name[80];
    snprintf(name, sizeof(name), "input.%.60s", type->text);
    if (x->ignored && !strstr(x->ignored, name))
        fields_ignore(x->ignored, name, strlen(name));
    return true;
}

/* is_found: it stands for a reference, and is none. */
static bool items_add_one(struct items *x, const struct json *item, const char *where,
                          bool is_found, struct buf *text, struct api_error *e)
{
    const struct json *type = json_get_set(item, "type");
    if (!json_is(item, JSON_TYPE_OBJECT))
        return api_error_set(e, 400, NULL, where, "%s: must be an object", where);
    if (type && type->type != JSON_TYPE_STRING)
        return api_error_set(e, 400, NULL, where, "%s: type must be a string", where);
    if (json_str_eq(type, "message") || (!type && json_get(item, "role")))
        return items_message(x, item, where, text, e);
    if (json_str_eq(type, "reasoning"))
        return items_reasoning(x, item, where, text, e);
    if (json_str_eq(type, "function_call"))
        return items_call(x, item, where, false, e);
    if (json_str_eq(type, "custom_tool_call"))
        return items_call(x, item, where, true, e);
    if (json_str_eq(type, "function_call_output") || json_str_eq(type, "custom_tool_call_output"))
        return items_output(x, item, where, text, e);
    if (!is_found && (json_str_eq(type, "item_reference") || (!type && json_get(item, "id"))))
        return items_reference(x, item, where, text, e);
    if (!type)
        return api_error_set(e, 400, NULL, where, "%s: needs a type or a role", where);
    return items_skip(x, type);
}

bool items_add(struct items *x, const struct json *v, const char *where, struct api_error *e)
{
    struct buf text;
    bool is_fine = true;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (json_is(v, JSON_TYPE_STRING)) {
        static const struct json user = { .type = JSON_TYPE_STRING, .text = "user", .len = 4 };
        buf_add(&text, v->text, v->len);
        items_take_message(x, &user, &text);
    } else if (json_is(v, JSON_TYPE_ARRAY)) {
        for (size_t i = 0; i < v->n && is_fine; i++) {
            char name[48];
            snprintf(name, sizeof(name), "%.24s[%zu]", where, i);
            x->origin = x->origin < 0 ? x->origin : (int32_t)i;
            x->opened_at = x->is_open ? x->opened_at : x->origin;
            buf_reset(&text);
            is_fine = items_add_one(x, &v->items[i], name, false, &text, e);
        }
    } else {
        is_fine =
            api_error_set(e, 400, NULL, where, "%s: must be a string or an array of items", where);
    }
    buf_release(&text);
    return is_fine;
}

bool items_write_messages(struct items *x, struct buf *out, struct api_error *e)
{
    struct json_writer w;
    const struct buf *const bufs[] = { &x->system, &x->messages, &x->reasoning, &x->text,
                                       &x->calls };
    items_flush(x);
    for (size_t i = 0; i < ARRAY_LEN(bufs); i++)
        if (bufs[i]->failed)
            return api_error_set(e, 400, NULL, "input", "input: more than %d bytes of text",
                                 LIMIT_PROMPT_BYTES);
    if (x->system.len == 0 && x->messages.len == 0)
        return api_error_set(e, 400, NULL, "input", "input: has no message");
    buf_add_char(out, '[');
    if (x->system.len > 0) {
        json_writer_init(&w, out);
        json_begin_object(&w);
        json_field_str(&w, "role", "system");
        json_field_strn(&w, "content", x->system.data, x->system.len);
        json_end_object(&w);
        if (x->messages.len > 0)
            buf_add_char(out, ',');
    }
    buf_add(out, x->messages.data, x->messages.len);
    buf_add_char(out, ']');
    return true;
}

/* --- the input as it is kept --- */

static const char *items_id_prefix(const struct json *type)
{
    static const char *const rows[][2] = { { "reasoning", "rs" },
                                           { "function_call", "fc" },
                                           { "function_call_output", "fco" },
                                           { "custom_tool_call", "ctc" },
                                           { "custom_tool_call_output", "ctco" } };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (json_str_eq(type, rows[i][0]))
            return rows[i][1];
    return "msg";
}

static void items_write_part(struct json_writer *w, const struct json *text, bool is_answer)
{
    json_begin_array(w);
    json_begin_object(w);
    json_field_str(w, "type", is_answer ? "output_text" : "input_text");
    json_field_strn(w, "text", text->text, text->len);
    if (is_answer) {
        json_field_raw(w, "annotations", "[]", 2);
    }
    json_end_object(w);
    json_end_array(w);
}

static void items_write_item(struct json_writer *w, const struct json *item, const char *id,
                             size_t index)
{
    const struct json *type = json_get_set(item, "type"), *own = json_get_set(item, "id");
    bool is_message = json_get(item, "role") != NULL;
    bool is_answer = json_str_eq(json_get(item, "role"), "assistant");
    json_begin_object(w);
    json_key(w, "id");
    if (json_is(own, JSON_TYPE_STRING)) {
        json_strn(w, own->text, own->len);
    } else {
        char text[128];
        snprintf(text, sizeof(text), "%s_%s_i%zu", items_id_prefix(type),
                 strchr(id, '_') ? strchr(id, '_') + 1 : id, index);
        json_str(w, text);
    }
    json_key(w, "type");
    if (type)
        json_value(w, type);
    else
        json_str(w, is_message ? "message" : "item_reference");
    if (is_message && !json_get_set(item, "status")) {
        json_field_str(w, "status", "completed");
    }
    for (size_t i = 0; i < item->n; i++) {
        const struct json_member *m = &item->members[i];
        if (strcmp(m->key, "id") == 0 || strcmp(m->key, "type") == 0 ||
            json_is(&m->value, JSON_TYPE_NULL))
            continue;
        json_key(w, m->key);
        if (is_message && strcmp(m->key, "content") == 0 && json_is(&m->value, JSON_TYPE_STRING))
            items_write_part(w, &m->value, is_answer);
        else
            json_value(w, &m->value);
    }
    json_end_object(w);
}

void items_write_input(const struct json *v, const char *id, struct buf *out)
{
    struct json_writer w;
    struct json_member members[] = {
        { .key = "role",
          .key_len = 4,
          .value = { .type = JSON_TYPE_STRING, .text = "user", .len = 4 } },
        { .key = "content", .key_len = 7, .value = *v },
    };
    const struct json one = { .type = JSON_TYPE_OBJECT, .members = members, .n = 2 };
    bool is_list = v->type == JSON_TYPE_ARRAY;
    json_writer_init(&w, out);
    json_begin_array(&w);
    for (size_t i = 0; i < (is_list ? v->n : 1); i++)
        items_write_item(&w, is_list ? &v->items[i] : &one, id, i);
    json_end_array(&w);
}
