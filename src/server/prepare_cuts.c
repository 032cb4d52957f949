/* prepare_cuts.c - where later prompts may part from this one, for models whose layers go on only from places that were kept.
 *
 * The conversation is rendered again as it might be sent later: without its last message, without its last two; with an answer and
 * a further turn of the user, and with a tool call and a further turn. As far as the ids agree, a later prompt will agree, too. The
 * last two give the stable boundary: what a template writes only behind the newest turn (an opened think span, say) lies beyond it.
 * A template that fails on one of these has no cut there. Rendering is done for each of these, tokenizing only for what follows the last
 * control token that a text shares with the prompt. */
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

/* The prompt as it was made, and where in its bytes each of its control tokens ends. */
struct cuts {
    const struct prepare_generation *g;
    const struct template_output *text;
    const struct token_list *ids;
    /* Of the control tokens, in their order: ids up to and with it, and its first byte. */
    struct anchor {
        int32_t n;
        size_t from, to;
    } * anchors; /* [n_anchors] */
    int32_t n_anchors;
};

/* No anchors where ids do not spell the text byte by byte (a tokenizer that normalises): then all of a text is tokenized. */
static void cuts_find_anchors(struct cuts *c)
{
    const struct tokenizer *t = c->g->ctx->model->tokenizer;
    size_t at = 0;
    c->anchors = mem_try_array(MEM_CAT_REQUEST, (size_t)c->ids->n, sizeof(*c->anchors));
    for (int32_t i = 0; i < c->ids->n && c->anchors; i++) {
        struct tokenizer_str s = tokenizer_bytes(t, c->ids->ids[i], true);
        if (s.len > c->text->text.len - at || memcmp(c->text->text.data + at, s.data, s.len) != 0) {
            c->n_anchors = 0;
            return;
        }
        if (s.len > 0 && tokenizer_bytes(t, c->ids->ids[i], false).len == 0)
            c->anchors[c->n_anchors++] = (struct anchor){ i + 1, at, at + s.len };
        at += s.len;
    }
}

/* Bytes that both begin with, the template's and the caller's alike. */
static size_t cuts_bytes_alike(const struct template_output *a, const struct template_output *b)
{
    size_t n = 0, most = a->text.len < b->text.len ? a->text.len : b->text.len;
    while (n < most && a->text.data[n] == b->text.data[n])
        n++;
    for (size_t i = 0; i < a->caller.n || i < b->caller.n; i++) {
        const struct span none = { SIZE_MAX, SIZE_MAX };
        const struct span *x = i < a->caller.n ? &a->caller.spans[i] : &none;
        const struct span *y = i < b->caller.n ? &b->caller.spans[i] : &none;
        size_t from = x->p0 < y->p0 ? x->p0 : y->p0, to = x->p1 < y->p1 ? x->p1 : y->p1;
        if (from >= n || (x->p0 == y->p0 && to >= n))
            break;
        if (x->p0 != y->p0 || x->p1 != y->p1)
            return x->p0 != y->p0 ? from : to;
    }
    return n;
}

/* Ids that the prompt and that text begin with both. Nothing joins over a control token: up to the last one in the bytes that they share
 * the ids are the same, and only what follows it is tokenized. */
static int32_t cuts_ids_alike(const struct cuts *c, const struct template_output *other)
{
    size_t n_bytes = cuts_bytes_alike(c->text, other), from = 0;
    struct token_list ids;
    struct api_error e = { 0 };
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_anchors && c->anchors[i].to <= n_bytes; i++) {
        n = c->anchors[i].n - 1;
        from = c->anchors[i].from;
    }
    token_list_init(&ids, prepare_max_tokens(c->g->ctx));
    if (prepare_encode_part(c->g->ctx, other, from, other->text.len, &ids, &e))
        for (int32_t i = 0; i < ids.n && n < c->ids->n && ids.ids[i] == c->ids->ids[n]; i++)
            n++;
    token_list_release(&ids);
    return n;
}

/* Ids that prompt and the conversation of these messages begin with both. 0: it cannot be rendered. */
static int32_t cuts_alike(const struct cuts *c, struct json *body, const struct json *messages)
{
    struct template_output text;
    struct api_error e = { 0 };
    for (size_t i = 0; i < body->n; i++)
        if (strcmp(body->members[i].key, "messages") == 0)
            body->members[i].value = *messages;
    bool is_fine = prepare_chat_text(c->g->ctx, body, c->g->thinks, false, &text, NULL, &e);
    int32_t n = is_fine ? cuts_ids_alike(c, &text) : 0;
    template_output_release(&text);
    return n;
}

/* The conversation goes on: with a text, and with a tool call where there are tools. The least of what stays. */
static int32_t cuts_stable(const struct cuts *c, struct json *body, struct json *messages,
                           bool has_tools)
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
    int32_t stable = cuts_alike(c, body, messages);
    if (has_tools) {
        items[n] = (struct json){ .type = JSON_TYPE_OBJECT, .members = calls, .n = 3 };
        int32_t other = cuts_alike(c, body, messages);
        if (other > 0 && (other < stable || stable == 0))
            stable = other;
    }
    messages->n = n;
    return stable;
}

void prepare_cuts(struct prepare_generation *g, const struct template_output *text,
                  const struct token_list *prompt)
{
    const struct json *own = json_get_set(g->body, "messages");
    if (!g->ctx->model->engine->info.keeps_ends || prompt->n < CUTS_LEAST ||
        !json_is(own, JSON_TYPE_ARRAY) || own->n == 0)
        return;
    struct json body = *g->body, messages = *own;
    struct cuts c = { .g = g, .text = text, .ids = prompt };
    size_t bytes = body.n * sizeof(*body.members);
    body.members = mem_try(MEM_CAT_REQUEST, bytes);
    messages.items = mem_try_array(MEM_CAT_REQUEST, own->n + 2, sizeof(*messages.items));
    cuts_find_anchors(&c);
    if (body.members && messages.items) {
        int32_t at[3] = { 0, 0, 0 };
        memcpy(body.members, g->body->members, bytes);
        memcpy(messages.items, own->items, own->n * sizeof(*messages.items));
        const struct json *tools = json_get_set(g->body, "tools");
        for (size_t k = 0; k < 2 && messages.n > 1; k++) {
            messages.n--; /* the one before its end first */
            at[1 - k] = cuts_alike(&c, &body, &messages);
        }
        messages.n = own->n;
        at[2] = cuts_stable(&c, &body, &messages, json_is(tools, JSON_TYPE_ARRAY) && tools->n > 0);
        for (size_t i = 0; i < ARRAY_LEN(at); i++) {
            int32_t n = g->engine.n_cuts, last = n > 0 ? g->engine.cuts[n - 1] : 0;
            if (at[i] >= CUTS_LEAST && at[i] > last)
                g->engine.cuts[g->engine.n_cuts++] = at[i];
        }
    }
    mem_free(MEM_CAT_REQUEST, body.members);
    mem_free(MEM_CAT_REQUEST, messages.items);
    mem_free(MEM_CAT_REQUEST, c.anchors);
}
