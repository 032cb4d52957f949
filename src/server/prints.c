#include "server/prints.h"

#include <stdio.h>
#include <string.h>

#define PRINT_SEED 14695981039346656037u /* FNV-1a, 64 bits */

static uint64_t print_bytes(uint64_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return (h ^ n) * 1099511628211u;
}

/* Of a value; *bytes grows by the texts in it. v may be NULL. */
static uint64_t print_value(uint64_t h, const struct json *v, int64_t *bytes)
{
    if (!v)
        return print_bytes(h, "", 0);
    h = (h ^ (uint64_t)v->type) * 1099511628211u;
    if (v->type == JSON_TYPE_STRING || v->type == JSON_TYPE_NUMBER) {
        *bytes += (int64_t)v->len;
        return print_bytes(h, v->text, v->len);
    }
    if (v->type == JSON_TYPE_BOOL)
        return (h ^ v->boolean) * 1099511628211u;
    for (size_t i = 0; v->type == JSON_TYPE_ARRAY && i < v->n; i++)
        h = print_value(h, &v->items[i], bytes);
    for (size_t i = 0; v->type == JSON_TYPE_OBJECT && i < v->n; i++) {
        h = print_bytes(h, v->members[i].key, v->members[i].key_len);
        h = print_value(h, &v->members[i].value, bytes);
    }
    return (h ^ v->n) * 1099511628211u;
}

static bool print_is_system(const struct json *message)
{
    const struct json *role = json_get(message, "role");
    return json_str_eq(role, "system") || json_str_eq(role, "developer");
}

struct print *print_new(const struct json *body)
{
    static const char *const options[] = { "tool_choice", "thinking", "chat_template_kwargs",
                                           "documents", "cache_salt" };
    const struct json *messages = json_get(body, "messages");
    size_t n = json_is(messages, JSON_TYPE_ARRAY) ? messages->n : 0, first = 0;
    int64_t unused = 0;
    if (n > PRINTS_MESSAGES_MAX)
        return NULL;
    struct print *p = mem_alloc(MEM_CAT_SERVER, sizeof(*p));
    p->messages = mem_alloc(MEM_CAT_SERVER, sizeof(*p->messages) * (n + 1));
    p->system = p->options = PRINT_SEED;
    for (; first < n && print_is_system(&messages->items[first]); first++)
        p->system = print_value(p->system, &messages->items[first], &p->bytes);
    p->tools = print_value(PRINT_SEED, json_get_set(body, "tools"), &p->bytes);
    p->effort = print_value(PRINT_SEED, json_get_set(body, "reasoning_effort"), &unused);
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        p->options = print_value(p->options, json_get_set(body, options[i]), &unused);
    struct print_message sum = { PRINT_SEED, p->bytes };
    for (size_t i = first; i < n; i++) {
        sum.hash = print_value(sum.hash, &messages->items[i], &sum.bytes);
        p->messages[p->n++] = sum;
    }
    return p;
}

void print_free(struct print *p)
{
    if (!p)
        return;
    mem_free(MEM_CAT_SERVER, p->messages);
    mem_free(MEM_CAT_SERVER, p);
}

void prints_put(struct prints *p, const char *id, uint64_t account, struct print *print)
{
    struct prints_entry *e = &p->entries[p->at];
    p->at = (p->at + 1) % PRINTS_MAX;
    print_free(e->print);
    *e = (struct prints_entry){ .account = account, .print = print };
    snprintf(e->id, sizeof(e->id), "%s", id);
}

void prints_release(struct prints *p)
{
    for (int32_t i = 0; i < PRINTS_MAX; i++)
        print_free(p->entries[i].print);
    *p = (struct prints){ 0 };
}

/* --- comparing --- */

static enum print_change print_diff(const struct print *a, const struct print *b, int64_t *common)
{
    int32_t k = 0;
    *common = 0;
    if (a->tools != b->tools)
        return PRINT_TOOLS;
    if (a->system != b->system)
        return PRINT_SYSTEM;
    if (a->effort != b->effort)
        return PRINT_EFFORT;
    if (a->options != b->options)
        return PRINT_OPTIONS;
    while (k < a->n && k < b->n && a->messages[k].hash == b->messages[k].hash)
        k++;
    *common = k > 0 ? a->messages[k - 1].bytes : a->bytes;
    return k < a->n ? PRINT_MESSAGES : PRINT_SAME;
}

struct print_result prints_compare(const struct prints *p, const char *id, uint64_t account,
                                   const struct print *now)
{
    const struct print *before = NULL;
    int64_t common;
    for (int32_t i = 0; i < PRINTS_MAX; i++) {
        const struct prints_entry *e = &p->entries[i];
        if (e->print && e->account == account && strcmp(e->id, id) == 0)
            before = e->print;
    }
    if (!before || !now)
        return (struct print_result){ .change = PRINT_NOT_FOUND };
    enum print_change change = print_diff(before, now, &common);
    int64_t all = before->n > 0 ? before->messages[before->n - 1].bytes : before->bytes;
    double missed = all > 0 ? 1 - (double)common / (double)all : 1;
    return (struct print_result){ .change = change,
                                  .before_tokens = before->n_tokens,
                                  .missed_tokens =
                                      (int64_t)((double)before->n_tokens * missed + 0.5) };
}
