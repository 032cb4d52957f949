#include "template/messages.h"

#include <string.h>

/* Values of one arguments string, beyond which it stays a string. */
#define ARGUMENTS_BYTES_MAX ((size_t)16 << 20)

struct normaliser {
    struct arena *arena;
    unsigned flags;
    struct err *err;
};

static enum err_code messages_full(struct normaliser *n)
{
    return err_set(n->err, ERR_FULL, "messages: over their limit of %zu bytes", n->arena->max);
}

/* A deep copy into the arena; strings too, for they belong to a document that goes away. */
static enum err_code copy_value(struct normaliser *n, const struct json *v, struct json *out)
{
    *out = *v;
    if (v->text && !(out->text = arena_strndup(n->arena, v->text, v->len)))
        return messages_full(n);
    if (v->type == JSON_TYPE_ARRAY) {
        out->items = arena_alloc(n->arena, v->n * sizeof(*v->items));
        for (size_t i = 0; i < v->n; i++) {
            enum err_code code =
                out->items ? copy_value(n, &v->items[i], &out->items[i]) : messages_full(n);
            if (code)
                return code;
        }
    }
    if (v->type != JSON_TYPE_OBJECT)
        return ERR_OK;
    out->members = arena_alloc(n->arena, v->n * sizeof(*v->members));
    for (size_t i = 0; i < v->n; i++) {
        if (!out->members)
            return messages_full(n);
        struct json_member *m = &out->members[i];
        m->key_len = v->members[i].key_len;
        m->key = arena_strndup(n->arena, v->members[i].key, m->key_len);
        enum err_code code =
            m->key ? copy_value(n, &v->members[i].value, &m->value) : messages_full(n);
        if (code)
            return code;
    }
    return ERR_OK;
}

/* Room for one member more than obj has; what obj has is copied. */
static enum err_code widen(struct normaliser *n, const struct json *obj, size_t more,
                           struct json *out)
{
    const struct json_member *old = obj->members; /* obj may be out */
    *out = *obj;
    out->members = arena_alloc(n->arena, (obj->n + more) * sizeof(*out->members));
    if (!out->members)
        return messages_full(n);
    if (obj->n)
        memcpy(out->members, old, obj->n * sizeof(*old));
    return ERR_OK;
}

/* Set a member; a new one goes last. Need: room, and members that are ours. */
static void set_member(struct json *obj, const char *key, struct json value)
{
    struct json *old = (struct json *)json_get(obj, key);
    if (old) {
        *old = value;
        return;
    }
    obj->members[obj->n++] =
        (struct json_member){ .key = key, .key_len = strlen(key), .value = value };
}

static enum err_code normalise_arguments(struct normaliser *n, struct json *arguments)
{
    struct json_doc doc = { 0 };
    enum err_code code = ERR_OK;
    const struct json empty = { .type = JSON_TYPE_OBJECT };
    if (json_is(arguments, JSON_TYPE_NULL) || json_str_eq(arguments, "")) {
        *arguments = empty;
        return ERR_OK;
    }
    if (!json_is(arguments, JSON_TYPE_STRING) ||
        json_parse(&doc, arguments->text, arguments->len, ARGUMENTS_BYTES_MAX, NULL))
        return ERR_OK;
    if (json_is(&doc.root, JSON_TYPE_OBJECT))
        code = copy_value(n, &doc.root, arguments);
    json_doc_release(&doc);
    return code;
}

static enum err_code normalise_call(struct normaliser *n, struct json *call)
{
    const struct json *function = json_get(call, "function");
    struct json ours;
    if (!json_is(function, JSON_TYPE_OBJECT))
        return ERR_OK;
    enum err_code code = widen(n, call, 0, call);
    if (!code)
        code = widen(n, function, 1, &ours);
    if (code)
        return code;
    if (!json_get(&ours, "arguments"))
        set_member(&ours, "arguments", (struct json){ .type = JSON_TYPE_NULL });
    code = normalise_arguments(n, (struct json *)json_get(&ours, "arguments"));
    set_member(call, "function", ours);
    return code;
}

static enum err_code normalise_calls(struct normaliser *n, struct json *calls)
{
    struct json *items = arena_alloc(n->arena, calls->n * sizeof(*items));
    if (!items)
        return messages_full(n);
    for (size_t i = 0; i < calls->n; i++) {
        items[i] = calls->items[i];
        enum err_code code = normalise_call(n, &items[i]);
        if (code)
            return code;
    }
    calls->items = items;
    return ERR_OK;
}

static bool is_text_part(const struct json *part)
{
    return json_str_eq(json_get(part, "type"), "text") &&
           json_is(json_get(part, "text"), JSON_TYPE_STRING);
}

static enum err_code join_parts(struct normaliser *n, struct json *content)
{
    size_t len = 0, at = 0;
    for (size_t i = 0; i < content->n; i++) {
        if (!is_text_part(&content->items[i]))
            return ERR_OK; /* an image: not for joining */
        len += json_get(&content->items[i], "text")->len + 1;
    }
    char *text = arena_alloc(n->arena, len + 1);
    if (!text)
        return messages_full(n);
    for (size_t i = 0; i < content->n; i++) {
        const struct json *part = json_get(&content->items[i], "text");
        if (i)
            text[at++] = '\n';
        memcpy(text + at, part->text, part->len);
        at += part->len;
    }
    *content = (struct json){ .type = JSON_TYPE_STRING, .text = text, .len = at };
    return ERR_OK;
}

static void drop_nulls(struct json *obj)
{
    size_t kept = 0;
    for (size_t i = 0; i < obj->n; i++)
        if (obj->members[i].value.type != JSON_TYPE_NULL)
            obj->members[kept++] = obj->members[i];
    obj->n = kept;
}

static void alias_reasoning(struct json *message)
{
    static const char *const names[] = { "reasoning_content", "thinking", "reasoning" };
    const struct json *found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(names) && !found; i++)
        found = json_get(message, names[i]);
    if (!found)
        return;
    struct json reasoning = *found;
    if (!json_get(message, "thinking"))
        set_member(message, "thinking", reasoning);
    set_member(message, "reasoning_content", reasoning);
}

static enum err_code normalise_message(struct normaliser *n, const struct json *in,
                                       struct json *message)
{
    enum err_code code = widen(n, in, 3, message); /* content, thinking, reasoning_content */
    if (code)
        return code;
    drop_nulls(message);
    struct json *calls = (struct json *)json_get(message, "tool_calls");
    if (json_is(calls, JSON_TYPE_ARRAY))
        code = normalise_calls(n, calls);
    if (!json_get(message, "content"))
        set_member(message, "content", (struct json){ .type = JSON_TYPE_STRING, .text = "" });
    alias_reasoning(message);
    struct json *content = (struct json *)json_get(message, "content");
    if (!code && (n->flags & MESSAGES_FLAG_JOIN_TEXT) && json_is(content, JSON_TYPE_ARRAY))
        code = join_parts(n, content);
    return code;
}

enum err_code messages_normalise(const struct json *messages, unsigned flags, size_t max_bytes,
                                 struct json_doc *out, struct err *err)
{
    struct normaliser n = { .arena = &out->arena, .flags = flags, .err = err };
    enum err_code code = ERR_OK;
    *out = (struct json_doc){ 0 };
    arena_init(&out->arena, MEM_CAT_REQUEST, max_bytes);
    if (!json_is(messages, JSON_TYPE_ARRAY))
        return err_set(err, ERR_INVALID, "messages: must be an array");
    out->root = *messages;
    out->root.items = arena_alloc(&out->arena, messages->n * sizeof(struct json));
    if (!out->root.items)
        code = messages_full(&n);
    for (size_t i = 0; i < messages->n && !code; i++) {
        if (!json_is(&messages->items[i], JSON_TYPE_OBJECT))
            code = err_set(err, ERR_INVALID, "messages[%zu]: must be an object", i);
        else
            code = normalise_message(&n, &messages->items[i], &out->root.items[i]);
    }
    if (code)
        json_doc_release(out);
    return code;
}

/* Does the template show the mark, and not the parts' own spelling? */
static bool shows_text(const struct template *t, const char *variables)
{
    struct json_doc doc;
    struct template_output out;
    bool shows = false;
    if (json_parse(&doc, variables, strlen(variables), (size_t)1 << 16, NULL))
        return false;
    const struct template_input in = { .caller = &doc.root };
    template_output_init(&out, (size_t)1 << 20);
    if (template_render(t, &in, &out, NULL) == ERR_OK)
        shows = strstr(out.text.data, "m4rk") && !strstr(out.text.data, "'text'") &&
                !strstr(out.text.data, "\"text\"");
    template_output_release(&out);
    json_doc_release(&doc);
    return shows;
}

bool messages_takes_parts(const struct template *t)
{
    return shows_text(
        t,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"m4rk\"}]}],"
        "\"add_generation_prompt\":true,\"bos_token\":\"\",\"eos_token\":\"\"}");
}
