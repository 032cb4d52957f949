/* prepare_cuts.c - where later prompts may part from this one, for models whose layers go on only from places that were kept.
 *
 * The conversation is rendered again as it might be sent later: without its last message, without its last two; with an answer and
 * a further turn of the user, and with a tool call and a further turn. As far as the ids agree, a later prompt will agree, too. The
 * last two give the stable boundary: what a template writes only behind the newest turn (an opened think span, say) lies beyond it.
 * A template that fails on one of these has no cut there. */
#include "server/prepare_int.h"

#include <string.h>

#define CUTS_LEAST 256 /* ids: what is shorter is not worth it */

static struct json text_of(const char *s)
{
    return (struct json){ .type = JSON_TYPE_STRING, .text = s, .len = strlen(s) };
}

#define MEMBER(name, v)                                      \
    {                                                        \
        .key = name, .key_len = sizeof(name) - 1, .value = v \
    }

/* Ids that prompt and the conversation of these messages begin with both. 0: it cannot be rendered. */
static int32_t cuts_alike(const struct prepare_generation *g, struct json *body,
                          const struct json *messages, bool adds_generation_prompt,
                          const struct token_list *prompt)
{
    struct token_list ids;
    struct api_error e = { 0 };
    int32_t n = 0;
    for (size_t i = 0; i < body->n; i++)
        if (strcmp(body->members[i].key, "messages") == 0)
            body->members[i].value = *messages;
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    if (prepare_chat_prompt(g->ctx, body, g->thinks, adds_generation_prompt, &ids, NULL, NULL, &e))
        while (n < ids.n && n < prompt->n && ids.ids[n] == prompt->ids[n])
            n++;
    token_list_release(&ids);
    return n;
}

/* The conversation goes on: with a text, and with a tool call where there are tools. The least of what stays. */
static int32_t cuts_stable(const struct prepare_generation *g, struct json *body,
                           struct json *messages, bool has_tools, const struct token_list *prompt)
{
    struct json_member function[] = { MEMBER("name", text_of("f")),
                                      MEMBER("arguments", text_of("{}")) };
    struct json_member call[] = {
        MEMBER("id", text_of("call_1")), MEMBER("type", text_of("function")),
        MEMBER("function", ((struct json){ .type = JSON_TYPE_OBJECT, .members = function, .n = 2 }))
    };
    struct json one = { .type = JSON_TYPE_OBJECT, .members = call, .n = 3 };
    struct json_member text[] = { MEMBER("role", text_of("assistant")),
                                  MEMBER("content", text_of("x")) };
    struct json_member calls[] = {
        MEMBER("role", text_of("assistant")), MEMBER("content", text_of("")),
        MEMBER("tool_calls", ((struct json){ .type = JSON_TYPE_ARRAY, .items = &one, .n = 1 }))
    };
    struct json_member user[] = { MEMBER("role", text_of("user")),
                                  MEMBER("content", text_of("x")) };
    size_t n = messages->n;
    struct json *items = messages->items; /* [n + 2] */
    items[n] = (struct json){ .type = JSON_TYPE_OBJECT, .members = text, .n = 2 };
    items[n + 1] = (struct json){ .type = JSON_TYPE_OBJECT, .members = user, .n = 2 };
    messages->n = n + 2;
    int32_t stable = cuts_alike(g, body, messages, false, prompt);
    if (has_tools) {
        items[n] = (struct json){ .type = JSON_TYPE_OBJECT, .members = calls, .n = 3 };
        int32_t other = cuts_alike(g, body, messages, false, prompt);
        if (other > 0 && (other < stable || stable == 0))
            stable = other;
    }
    messages->n = n;
    return stable;
}

void prepare_cuts(struct prepare_generation *g, const struct token_list *prompt)
{
    const struct json *own = json_get_set(g->body, "messages");
    if (!g->ctx->model->engine->info.keeps_ends || prompt->n < CUTS_LEAST ||
        !json_is(own, JSON_TYPE_ARRAY) || own->n == 0)
        return;
    struct json body = *g->body, messages = *own;
    size_t bytes = body.n * sizeof(*body.members);
    body.members = mem_try(MEM_CAT_REQUEST, bytes);
    messages.items = mem_try_array(MEM_CAT_REQUEST, own->n + 2, sizeof(*messages.items));
    if (body.members && messages.items) {
        int32_t at[3] = { 0, 0, 0 };
        memcpy(body.members, g->body->members, bytes);
        memcpy(messages.items, own->items, own->n * sizeof(*messages.items));
        const struct json *tools = json_get_set(g->body, "tools");
        for (size_t k = 0; k < 2 && messages.n > 1; k++) {
            messages.n--; /* the one before its end first */
            at[1 - k] = cuts_alike(g, &body, &messages, false, prompt);
        }
        messages.n = own->n;
        at[2] = cuts_stable(g, &body, &messages, json_is(tools, JSON_TYPE_ARRAY) && tools->n > 0,
                            prompt);
        for (size_t i = 0; i < ARRAY_LEN(at); i++) {
            int32_t n = g->engine.n_cuts, last = n > 0 ? g->engine.cuts[n - 1] : 0;
            if (at[i] >= CUTS_LEAST && at[i] > last)
                g->engine.cuts[g->engine.n_cuts++] = at[i];
        }
    }
    mem_free(MEM_CAT_REQUEST, body.members);
    mem_free(MEM_CAT_REQUEST, messages.items);
}
