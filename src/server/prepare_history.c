/* prepare_history.c - a rendered prompt to ids, where replies may bring the ids that they were sampled with.
 *
 * A reply comes back as text, and the text may be cut into other tokens than the model chose: then nothing that was kept behind it fits.
 * A message's token_ids say how it was cut. They are taken only where they spell the very bytes of the rendered prompt, control
 * tokens where the template has them, and nowhere else; the rest of the prompt is tokenized around them. So a prompt's ids are a function of
 * the request alone: the ids are part of what the client sends, or of the kept conversation that it names. */
#include "server/messages.h"
#include "server/places.h"
#include "server/prepare_int.h"

#include <stdio.h>
#include <string.h>

#define HISTORY_TRIES 16 /* places at which a reply's ids are tried */

struct reply { /* ids that stand for text[from, to) */
    size_t from, to;
    int32_t *ids; /* [n] */
    int32_t n;
};

struct history {
    const struct prepare_context *ctx;
    const struct template_output *text;
    struct places places;
    struct reply *replies; /* [n_replies], ascending */
    int32_t n_replies;
    int64_t n_ids; /* of all replies that were looked at */
    int32_t n_used, n_ignored;
};

static bool history_is_control(const struct tokenizer *t, int32_t id)
{
    return tokenizer_bytes(t, id, false).len == 0 && tokenizer_bytes(t, id, true).len > 0;
}

bool prepare_encode_part(const struct prepare_context *ctx, const struct template_output *text,
                         size_t from, size_t to, struct token_list *out, struct api_error *e)
{
    const struct span_list *all = &text->caller;
    struct span_list part = { .spans =
                                  mem_alloc(MEM_CAT_REQUEST, sizeof(struct span) * (all->n + 1)) };
    struct err err;
    for (size_t i = 0; i < all->n; i++) {
        size_t p0 = all->spans[i].p0 < from ? from : all->spans[i].p0;
        size_t p1 = all->spans[i].p1 > to ? to : all->spans[i].p1;
        if (p0 < p1)
            part.spans[part.n++] = (struct span){ p0 - from, p1 - from };
    }
    enum err_code code = tokenizer_encode(ctx->model->tokenizer, text->text.data + from, to - from,
                                          &part, TOKENIZER_FLAG_SPECIAL, out, &err);
    mem_free(MEM_CAT_REQUEST, part.spans);
    return code == ERR_OK ||
           api_error_set(e, 400, "context_length_exceeded", "messages", "%s", err.text);
}

static bool history_encode(const struct history *h, size_t from, size_t to, struct token_list *out,
                           struct api_error *e)
{
    return prepare_encode_part(h->ctx, h->text, from, to, out, e);
}

/* --- one reply --- */

static int32_t history_next_control(const struct tokenizer *t, const int32_t *ids, int32_t n,
                                    int32_t *at)
{
    while (*at < n && !history_is_control(t, ids[*at]))
        (*at)++;
    return *at < n ? ids[(*at)++] : -1;
}

/* The reply's control tokens are those that the text has there by itself: no text of the caller's becomes one, and none becomes text. */
static bool history_has_same_controls(const struct history *h, const struct reply *r)
{
    const struct tokenizer *t = h->ctx->model->tokenizer;
    struct token_list own;
    struct api_error e = { 0 };
    int32_t i = 0, k = 0, id;
    token_list_init(&own, prepare_max_tokens(h->ctx));
    bool is_same = history_encode(h, r->from, r->to, &own, &e);
    do {
        id = history_next_control(t, r->ids, r->n, &i);
        is_same = is_same && id == history_next_control(t, own.ids, own.n, &k);
    } while (is_same && id >= 0);
    token_list_release(&own);
    return is_same;
}

static bool history_stands(const struct history *h, size_t at, const struct buf *said,
                           struct reply *r)
{
    if (said->len > h->text->text.len - at ||
        memcmp(h->text->text.data + at, said->data, said->len) != 0)
        return false;
    r->from = at;
    r->to = at + said->len;
    return true;
}

/* Find where the reply's text stands: around the message's own text, or (where its last characters were cut) at the beginning of that.
 * False: nowhere. */
static bool history_place(const struct history *h, const struct place *message, size_t after,
                          const struct buf *said, struct reply *r)
{
    const char *own = h->text->text.data + message->from, *at = said->data;
    size_t n = message->to - message->from, before = strspn(said->data, " \t\r\n");
    if (message->from >= after + before && history_stands(h, message->from - before, said, r))
        return true;
    for (int tries = 0; tries < HISTORY_TRIES; tries++, at++) {
        at = memmem(at, said->len - (size_t)(at - said->data), own, n);
        before = at ? (size_t)(at - said->data) : 0;
        if (!at || message->from < after + before)
            return false;
        if (history_stands(h, message->from - before, said, r))
            return true;
    }
    return false;
}

/* The message's ids, if they fit; n_ignored counts them else. False: e. */
static bool history_reply(struct history *h, int32_t message, const struct json *v,
                          struct api_error *e)
{
    const struct place *place = &h->places.messages[message];
    size_t after = 0;
    struct reply r = { 0 };
    struct buf said;
    char name[48];
    snprintf(name, sizeof(name), "messages[%d].token_ids", message);
    if (!json_is(v, JSON_TYPE_ARRAY))
        return api_error_set(e, 400, NULL, name, "%s: must be an array of token ids", name);
    if (v->n == 0)
        return true;
    for (int32_t i = 0; i < message; i++)
        after = h->places.messages[i].to > after ? h->places.messages[i].to : after;
    h->n_ids += (int64_t)v->n;
    if (h->n_ids > h->ctx->model->engine->info.n_ctx) { /* more than any prompt can have */
        h->n_ignored++;
        return true;
    }
    r.ids = prepare_ids(h->ctx, v, name, e);
    r.n = (int32_t)v->n;
    if (!r.ids)
        return false;
    buf_init(&said, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    for (int32_t i = 0; i < r.n; i++) {
        struct tokenizer_str s = tokenizer_bytes(h->ctx->model->tokenizer, r.ids[i], true);
        buf_add(&said, s.data, s.len);
    }
    bool is_taken = place->to > place->from && !said.failed &&
                    history_place(h, place, after, &said, &r) && history_has_same_controls(h, &r);
    buf_release(&said);
    if (is_taken) {
        h->replies[h->n_replies++] = r;
    } else {
        h->n_ignored++;
        mem_free(MEM_CAT_REQUEST, r.ids);
    }
    return true;
}

/* --- the prompt --- */

/* The replies' ids, and those of the text between them. False: e. */
static bool history_join(const struct history *h, struct token_list *out, struct api_error *e)
{
    size_t at = 0;
    struct err err;
    bool is_fine = true;
    for (int32_t i = 0; i <= h->n_replies && is_fine; i++) {
        const struct reply *r = i < h->n_replies ? &h->replies[i] : NULL;
        size_t to = r ? r->from : h->text->text.len;
        is_fine = at == to || history_encode(h, at, to, out, e);
        if (r && is_fine)
            is_fine = token_list_add(out, r->ids, r->n, &err) == ERR_OK ||
                      api_error_set(e, 400, "context_length_exceeded", "messages", "%s", err.text);
        at = r ? r->to : at;
    }
    return is_fine;
}

/* Do both spell the same bytes? What a tokenizer adds or drops between pieces would show. */
static bool history_spells_same(const struct history *h, const struct token_list *a,
                                const struct token_list *b)
{
    const struct tokenizer *t = h->ctx->model->tokenizer;
    struct buf x, y;
    struct err err;
    buf_init(&x, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_init(&y, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    bool is_same = tokenizer_decode(t, a->ids, a->n, true, &x, &err) == ERR_OK &&
                   tokenizer_decode(t, b->ids, b->n, true, &y, &err) == ERR_OK && !x.failed &&
                   !y.failed && x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    buf_release(&x);
    buf_release(&y);
    return is_same;
}

/* Put the replies' ids into the prompt's. out: the ids of the text alone. False: e. */
static bool history_apply(struct history *h, struct token_list *out, struct api_error *e)
{
    struct token_list joined;
    if (h->n_replies == 0)
        return true;
    token_list_init(&joined, out->max);
    bool is_fine = history_join(h, &joined, e);
    if (is_fine && history_spells_same(h, &joined, out)) {
        struct token_list plain = *out;
        *out = joined;
        joined = plain;
        h->n_used = h->n_replies;
    } else {
        h->n_ignored += h->n_replies;
    }
    token_list_release(&joined);
    return is_fine;
}

static bool history_is_wanted(const struct json *messages)
{
    for (size_t i = 0; json_is(messages, JSON_TYPE_ARRAY) && i < messages->n; i++)
        if (json_get_set(&messages->items[i], MESSAGES_TOKEN_IDS))
            return true;
    return false;
}

static bool history_read(struct history *h, const struct json *messages, struct api_error *e)
{
    for (size_t i = 0; i < messages->n; i++) {
        const struct json *v = json_get_set(&messages->items[i], MESSAGES_TOKEN_IDS);
        bool is_reply = json_str_eq(json_get(&messages->items[i], "role"), "assistant");
        if (v && is_reply && !history_reply(h, (int32_t)i, v, e))
            return false;
    }
    return true;
}

bool prepare_encode(const struct prepare_context *ctx, const struct json *body,
                    const struct template_output *text, struct token_list *out, struct diagnosis *d,
                    struct api_error *e)
{
    const struct json *messages = json_get(body, "messages");
    struct history h = { .ctx = ctx, .text = text };
    bool is_fine = history_encode(&h, 0, text->text.len, out, e);
    if (is_fine && history_is_wanted(messages)) {
        places_find(&h.places, body, text->text.data, text->text.len, &text->caller);
        h.replies = mem_alloc(MEM_CAT_REQUEST, sizeof(*h.replies) * messages->n);
        is_fine = history_read(&h, messages, e) && history_apply(&h, out, e);
    }
    if (d) {
        d->n_replies_used = h.n_used;
        d->n_replies_ignored = h.n_ignored;
    }
    for (int32_t i = 0; i < h.n_replies; i++)
        mem_free(MEM_CAT_REQUEST, h.replies[i].ids);
    mem_free(MEM_CAT_REQUEST, h.replies);
    places_release(&h.places);
    return is_fine;
}
