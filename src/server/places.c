#include "server/places.h"
#include "server/limits.h"

#include <stdio.h>
#include <string.h>

/* Each search that fails runs to the text's end: so many may. */
#define PLACES_HIDDEN_MAX 64

/* The rendered text that is looked through. */
struct places_text {
    const char *text;
    const struct span_list *caller;
};

static void place_name(struct place *p, const struct json *v)
{
    size_t n = json_is(v, JSON_TYPE_STRING) ? v->len : 0;
    if (n > sizeof(p->name) - 1)
        n = sizeof(p->name) - 1;
    while (n > 0 && n < v->len && ((unsigned char)v->text[n] & 0xC0) == 0x80)
        n--;
    if (n > 0)
        memcpy(p->name, v->text, n);
    p->name[n] = '\0';
}

/* --- finding --- */

static bool places_is_span(const struct places_text *t, size_t i, const char *s, size_t n)
{
    const struct span *span = &t->caller->spans[i];
    return span->p1 - span->p0 == n && memcmp(t->text + span->p0, s, n) == 0;
}

/* The text s [n] among the caller's bytes from `at` on: a span of its own before one that holds it (outside `taken`). False: it is not
 * there. */
static bool places_search(const struct places_text *t, size_t at, const char *s, size_t n,
                          const struct place *taken, struct place *out)
{
    const struct span_list *l = t->caller;
    size_t first = span_at(l->spans, l->n, at);
    for (size_t i = first; n > 0 && i < l->n; i++) {
        if (l->spans[i].p0 < at || !places_is_span(t, i, s, n))
            continue;
        out->from = l->spans[i].p0;
        out->to = l->spans[i].p1;
        return true;
    }
    for (size_t i = first; n > 0 && i < l->n; i++) {
        size_t p0 = l->spans[i].p0 < at ? at : l->spans[i].p0;
        const char *hit = memmem(t->text + p0, l->spans[i].p1 - p0, s, n);
        if (hit && hit < t->text + taken->to && hit + n > t->text + taken->from) {
            p0 = taken->to < l->spans[i].p1 ? taken->to : l->spans[i].p1;
            hit = memmem(t->text + p0, l->spans[i].p1 - p0, s, n);
        }
        if (!hit)
            continue;
        out->from = (size_t)(hit - t->text);
        out->to = out->from + n;
        return true;
    }
    return false;
}

/* The message's text into out: a string, or the texts of parts as templates get them; without blanks at its ends. */
static void places_gather(const struct json *message, struct buf *out)
{
    const struct json *v = json_get(message, "content");
    if (json_is(v, JSON_TYPE_STRING))
        buf_add(out, v->text, v->len);
    for (size_t i = 0; json_is(v, JSON_TYPE_ARRAY) && i < v->n; i++) {
        const struct json *s = json_get(&v->items[i], "text");
        if (i > 0)
            buf_add_char(out, '\n');
        if (json_is(s, JSON_TYPE_STRING))
            buf_add(out, s->text, s->len);
    }
    while (out->len > 0 && strchr(" \t\r\n", out->data[out->len - 1]))
        buf_cut(out, out->len - 1);
    size_t blanks = strspn(out->data, " \t\r\n");
    buf_drop(out, blanks < out->len ? blanks : out->len);
}

/* Where a message without a text is to be seen: its first call's name. */
static const struct json *places_call_name(const struct json *message)
{
    const struct json *calls = json_get(message, "tool_calls");
    if (!json_is(calls, JSON_TYPE_ARRAY) || calls->n == 0)
        return NULL;
    const struct json *name = json_get(json_get(&calls->items[0], "function"), "name");
    return json_is(name, JSON_TYPE_STRING) ? name : NULL;
}

/* The role's own span between `at` and the message's text: that is where it begins. */
static size_t places_begin(const struct places_text *t, size_t at, const struct place *p)
{
    size_t n = strlen(p->name);
    for (size_t i = span_at(t->caller->spans, t->caller->n, at); i < t->caller->n; i++) {
        if (t->caller->spans[i].p0 >= p->from)
            break;
        if (t->caller->spans[i].p0 >= at && places_is_span(t, i, p->name, n))
            return t->caller->spans[i].p0;
    }
    return p->from;
}

static void places_find_messages(struct places *p, const struct places_text *t,
                                 const struct json *messages)
{
    struct buf text;
    size_t at = 0;
    int32_t n_hidden = 0;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    for (int32_t i = 0; i < p->n_messages && n_hidden < PLACES_HIDDEN_MAX; i++) {
        const struct json *message = &messages->items[i], *call = places_call_name(message);
        struct place *place = &p->messages[i], taken = i > 0 ? p->messages[0] : (struct place){ 0 };
        place_name(place, json_get(message, "role"));
        buf_reset(&text);
        places_gather(message, &text);
        bool is_found = places_search(t, at, text.data, text.len, &taken, place) ||
                        (call && places_search(t, at, call->text, call->len, &taken, place));
        n_hidden += !is_found;
        if (!is_found)
            continue;
        place->begin = places_begin(t, at, place);
        if (i > 0 || strcmp(place->name, "system") != 0) /* that one may stand anywhere */
            at = place->to;
    }
    buf_release(&text);
}

/* A tool's definition begins with the object that its name stands in, as far as the caller's bytes go back. */
static size_t places_tool_begin(const struct places_text *t, size_t at, size_t name)
{
    size_t i = span_at(t->caller->spans, t->caller->n, name), p0 = t->caller->spans[i].p0;
    p0 = p0 > at ? p0 : at;
    for (size_t k = name; k > p0; k--)
        if (memcmp(t->text + k - 1, "{\"type\"", name - (k - 1) < 7 ? name - (k - 1) : 7) == 0 &&
            name - (k - 1) >= 7)
            return k - 1;
    return p0;
}

static void places_find_tools(struct places *p, const struct places_text *t,
                              const struct json *tools)
{
    size_t at = 0;
    for (int32_t i = 0; i < p->n_tools; i++) {
        const struct json *f = json_get(&tools->items[i], "function");
        const struct json *name = json_get(f ? f : &tools->items[i], "name");
        struct place *place = &p->tools[i];
        char quoted[PLACES_NAME_BYTES + 2];
        place_name(place, name);
        int n = snprintf(quoted, sizeof(quoted), "\"%s\"", place->name);
        const struct place taken = { 0 };
        bool is_found = place->name[0] &&
                        (places_search(t, at, quoted, (size_t)n, &taken, place) ||
                         places_search(t, at, place->name, strlen(place->name), &taken, place));
        if (!is_found)
            continue;
        size_t span = span_at(t->caller->spans, t->caller->n, place->from);
        place->from = places_tool_begin(t, at, place->from);
        if (i > 0 && p->tools[i - 1].to > place->from)
            p->tools[i - 1].to = place->from;
        at = place->to;
        place->to = t->caller->spans[span].p1;
    }
}

static int32_t places_count(const struct json *v)
{
    return json_is(v, JSON_TYPE_ARRAY) && v->n < INT32_MAX ? (int32_t)v->n : 0;
}

void places_find(struct places *p, const struct json *body, const char *text, size_t n,
                 const struct span_list *caller)
{
    const struct json *messages = json_get(body, "messages"), *tools = json_get(body, "tools");
    const struct places_text t = { text, caller };
    *p = (struct places){ .n_messages = places_count(messages), .n_tools = places_count(tools) };
    p->messages = mem_alloc(MEM_CAT_REQUEST, sizeof(*p->messages) * (size_t)(p->n_messages + 1));
    p->tools = mem_alloc(MEM_CAT_REQUEST, sizeof(*p->tools) * (size_t)(p->n_tools + 1));
    p->caller.spans = mem_alloc(MEM_CAT_REQUEST, sizeof(struct span) * (caller->n + 1));
    p->caller.n = caller->n;
    if (caller->n > 0)
        memcpy(p->caller.spans, caller->spans, sizeof(struct span) * caller->n);
    places_find_messages(p, &t, messages);
    places_find_tools(p, &t, tools);
}

void places_release(struct places *p)
{
    mem_free(MEM_CAT_REQUEST, p->messages);
    mem_free(MEM_CAT_REQUEST, p->tools);
    mem_free(MEM_CAT_REQUEST, p->caller.spans);
    *p = (struct places){ 0 };
}

/* --- asking --- */

size_t places_first_caller(const struct places *p, size_t at, size_t end)
{
    size_t i = span_at(p->caller.spans, p->caller.n, at);
    if (i == p->caller.n || p->caller.spans[i].p0 >= end || p->caller.spans[i].p0 <= at)
        return at;
    return p->caller.spans[i].p0;
}

bool places_is_caller(const struct places *p, size_t at)
{
    size_t i = span_at(p->caller.spans, p->caller.n, at);
    return i < p->caller.n && p->caller.spans[i].p0 <= at;
}

int32_t places_tool_at(const struct places *p, size_t at)
{
    int32_t m = places_message_at(p, at);
    if (m >= 0 && at >= p->messages[m].from && at < p->messages[m].to)
        return -1; /* a message may hold a tool's name */
    for (int32_t i = 0; i < p->n_tools; i++)
        if (at >= p->tools[i].from && at < p->tools[i].to)
            return i;
    return -1;
}

int32_t places_message_at(const struct places *p, size_t at)
{
    int32_t found = -1;
    for (int32_t i = 0; i < p->n_messages; i++) {
        const struct place *m = &p->messages[i];
        if (m->to > m->from && m->begin <= at &&
            (found < 0 || m->begin >= p->messages[found].begin))
            found = i;
    }
    return found;
}
